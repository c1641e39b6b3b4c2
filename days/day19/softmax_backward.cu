// Day 19: the gradient of softmax
//
//   y = softmax(x)        gx[r, c] = y[r, c] · (gy[r, c] - sum_k gy[r, k] · y[r, k])
//   x, y, gx, gy: (rows, cols)
//
// Bytes: gy and y are read once and gx is written: 3 · rows · cols · sizeof(T). Operations: 4 per
// element, so memory bandwidth is the limit.
//
//   v1 two_passes   one block per row: the sum, then gy and y again for the output
//   v2 one_pass     both rows in registers, 16-byte loads: read once
//   softmax         the forward operator that this is the gradient of
//
// Run: python run_day.py 19

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "days/day19/row.cuh"

// ---------------------------------------------------------------------------------------------
// Softmax backward v1: the sum by day 5's tree, then a second pass over gy and y.

void check_pair(const Tensor& gy, const Tensor& y) {
  check(gy, "gy").on_gpu().floating().rank(2).contiguous();
  check(y, "y").on_gpu().like(gy, "gy").contiguous();
}

template <typename T>
__global__ void softmax_backward_v1_two_passes_kernel(const T* __restrict__ gy,
                                                      const T* __restrict__ y, T* __restrict__ gx,
                                                      int64_t cols) {
  __shared__ float partial[BLOCK];
  const T* gy_row = gy + blockIdx.x * cols;
  const T* y_row = y + blockIdx.x * cols;
  T* gx_row = gx + blockIdx.x * cols;

  // Thread t has columns t, t + 128, t + 256, …, so loads are coalesced.
  float dot = 0;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    dot += static_cast<float>(gy_row[c]) * static_cast<float>(y_row[c]);
  }
  partial[threadIdx.x] = dot;
  dot = tree_reduce(partial, [](float a, float b) { return a + b; });

  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    gx_row[c] =
        static_cast<T>(static_cast<float>(y_row[c]) * (static_cast<float>(gy_row[c]) - dot));
  }
}

Tensor softmax_backward_v1_two_passes(const Tensor& gy, const Tensor& y) {
  check_pair(gy, y);
  return output_like(gy, "softmax_backward_v1_two_passes", [&](auto zero, auto* gx) {
    using T = decltype(zero);
    softmax_backward_v1_two_passes_kernel<T>
        <<<grid_size(gy.size(0), "gy"), BLOCK, 0, current_stream(gy)>>>(data<T>(gy), data<T>(y), gx,
                                                                        gy.size(1));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: both rows stay in registers, in the type T, so the second pass reads no memory.
// All loads of a thread, up to 16 of 16 bytes, are in flight before the first result is used.

template <typename T, int PACKS>
__global__ void __launch_bounds__(BLOCK)
    softmax_backward_v2_one_pass_kernel(const T* __restrict__ gy, const T* __restrict__ y,
                                        T* __restrict__ gx, int packs) {
  constexpr int N = Pack<T>::N;
  __shared__ float shared[BLOCK / 32];
  const int64_t first = int64_t{blockIdx.x} * packs;  // this row's first pack
  const auto* gy_row = reinterpret_cast<const Pack<T>*>(gy) + first;
  const auto* y_row = reinterpret_cast<const Pack<T>*>(y) + first;
  auto* gx_row = reinterpret_cast<Pack<T>*>(gx) + first;

  Pack<T> a[PACKS], b[PACKS];  // of gy and y: packs t, t + 128, t + 256, …
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int p = threadIdx.x + k * BLOCK;
    if (p < packs) {
      a[k] = gy_row[p];
      b[k] = y_row[p];
    }
  }

  float dot = 0;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (threadIdx.x + k * BLOCK < packs) {
      for (int i = 0; i < N; ++i) {
        dot += static_cast<float>(a[k].at[i]) * static_cast<float>(b[k].at[i]);
      }
    }
  }
  dot = block_reduce(dot, shared, [](float u, float v) { return u + v; });

#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int p = threadIdx.x + k * BLOCK;
    if (p < packs) {
      for (int i = 0; i < N; ++i) {
        a[k].at[i] =
            static_cast<T>(static_cast<float>(b[k].at[i]) * (static_cast<float>(a[k].at[i]) - dot));
      }
      gx_row[p] = a[k];
    }
  }
}

Tensor softmax_backward_v2_one_pass(const Tensor& gy, const Tensor& y) {
  check_pair(gy, y);
  if (!fits_registers(gy) || !is_aligned(y, 16)) {
    fell_back("softmax_backward_v1_two_passes", "rows over 16 KB or not in packs of 16 bytes");
    return softmax_backward_v1_two_passes(gy, y);
  }
  const int64_t row_bytes = gy.size(1) * gy.element_size();
  return output_like(gy, "softmax_backward_v2_one_pass", [&](auto zero, auto* gx) {
    using T = decltype(zero);
    with_packs(row_bytes, [&](auto packs) {
      softmax_backward_v2_one_pass_kernel<T, packs()>
          <<<grid_size(gy.size(0), "gy"), BLOCK, 0, current_stream(gy)>>>(
              data<T>(gy), data<T>(y), gx, static_cast<int>(row_bytes / 16));
    });
  });
}

// ---------------------------------------------------------------------------------------------
// The forward operator.

template <typename Row, typename T>
__global__ void __launch_bounds__(BLOCK)
    softmax_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t cols) {
  const Row row(x, cols);
  const Statistics stats = statistics(row);
  const float scale = 1.0f / stats.sum;
  row.write(y + blockIdx.x * cols,
            [&](int64_t, float v) { return exponential<T>(v - stats.max) * scale; });
}

Tensor softmax(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  dispatch_row(x, [&](auto row, auto zero) {
    using T = decltype(zero);
    softmax_kernel<typename decltype(row)::type, T>
        <<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y),
                                                                     x.size(1));
  });
  check_launch("softmax");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day19, softmax, "(Tensor x) -> Tensor");
RUNG(day19, softmax_backward_v1_two_passes, "(Tensor gy, Tensor y) -> Tensor");
RUNG(day19, softmax_backward_v2_one_pass, "(Tensor gy, Tensor y) -> Tensor");

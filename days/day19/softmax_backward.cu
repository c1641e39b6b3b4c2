// Day 19: the gradients of softmax and of cross-entropy, with no buffer in between
//
//   y = softmax(x)                gx[r, c] = y[r, c] · (gy[r, c] - sum_k gy[r, k] · y[r, k])
//   loss[r] = -log y[r, t[r]]     gx[r, c] = g[r] · (y[r, c] - [c = t[r]])    x, y: (rows, cols)
//
// Bytes: softmax backward reads gy and y once and writes gx: 3 · rows · cols · sizeof(T). The
// gradient of cross-entropy reads x and writes gx: 2. With a buffer for y it would be 4.
// Operations: 4 to 7 per element, so memory bandwidth is the limit.
//
//   backward v1 two_passes    one block per row: the sum, then gy and y again for the output
//   backward v2 one_pass      both rows in registers, 16-byte loads: read once
//   cross_entropy v2 buffer   softmax to memory, then subtract and scale: 4 passes
//   cross_entropy v3 fused    softmax, subtract and scale on the row in registers: 2 passes
//   softmax, cross_entropy    the forward operators that these are the gradients of
//
// Run: python run_day.py 19

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/pack.cuh"         // taught in day 2
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5

#include <type_traits>

// One block per row. 128 threads with 8 packs of 16 bytes each hold a row of up to 16 KB.
constexpr int BLOCK = 128;
constexpr int MAX_PACKS = 8;

// Whether rows of x can be loaded in packs of 16 bytes and fit into a block's registers.
bool fits_registers(const Tensor& x) {
  const int64_t row_bytes = x.size(1) * x.element_size();
  return row_bytes % 16 == 0 && row_bytes <= 16 * MAX_PACKS * BLOCK && is_aligned(x, 16);
}

// Calls launch(constant) with the number of packs per thread as a compile-time constant, 1 to 8:
// registers cannot be indexed at run time, so the compiler must know how many a row takes.
template <typename F>
void with_packs(int64_t row_bytes, F&& launch) {
  const int64_t packs = ceil_div<int64_t>(row_bytes, 16 * BLOCK);
  if (packs <= 1) return launch(std::integral_constant<int, 1>{});
  if (packs <= 2) return launch(std::integral_constant<int, 2>{});
  if (packs <= 4) return launch(std::integral_constant<int, 4>{});
  launch(std::integral_constant<int, MAX_PACKS>{});
}

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
  const DeviceGuard guard(gy);
  Tensor gx = torch::stable::empty_like(gy);
  if (gy.numel() == 0) return gx;  // a grid of no blocks is an error
  const int64_t rows = gy.size(0), cols = gy.size(1);
  dispatch_floating(gy, [&](auto zero) {
    using T = decltype(zero);
    softmax_backward_v1_two_passes_kernel<T>
        <<<grid_size(rows, "gy"), BLOCK, 0, current_stream(gy)>>>(data<T>(gy), data<T>(y),
                                                                  mutable_data<T>(gx), cols);
  });
  check_launch("softmax_backward_v1_two_passes");
  return gx;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: both rows stay in registers, in the type T, so the second pass reads no memory.
// All loads of a thread, up to 16 of 16 bytes, are in flight before the first result is used.

// Combines the values of all threads by op, and returns the result to all. shared: one element per
// warp, which may be overwritten only after another barrier. All threads of the block must call it.
template <typename Op>
__device__ float block_reduce(float value, float (&shared)[BLOCK / 32], Op op) {
  // A warp shuffle reads the register of the lane `distance` away, without a barrier.
  for (int distance = 16; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();  // the results of all four warps are written before they are read
  value = shared[0];
  for (int warp = 1; warp < BLOCK / 32; ++warp) value = op(value, shared[warp]);
  return value;
}

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
  const DeviceGuard guard(gy);
  Tensor gx = torch::stable::empty_like(gy);
  if (gy.numel() == 0) return gx;
  const int64_t rows = gy.size(0), row_bytes = gy.size(1) * gy.element_size();
  dispatch_floating(gy, [&](auto zero) {
    using T = decltype(zero);
    with_packs(row_bytes, [&](auto packs) {
      softmax_backward_v2_one_pass_kernel<T, packs()>
          <<<grid_size(rows, "gy"), BLOCK, 0, current_stream(gy)>>>(
              data<T>(gy), data<T>(y), mutable_data<T>(gx), static_cast<int>(row_bytes / 16));
    });
  });
  check_launch("softmax_backward_v2_one_pass");
  return gx;
}

// ---------------------------------------------------------------------------------------------
// A block's row of x for the kernels below, in one of two places. each(f) calls f(v) for each of
// this thread's elements v; write(out, f) sets out[c] = f(c, v), where out is the output's row.

// In global memory, of any length: each pass reads it again.
template <typename T>
struct RowInMemory {
  using Element = T;
  const T* x;
  int64_t cols;

  __device__ RowInMemory(const T* x_, int64_t cols_) : x(x_ + blockIdx.x * cols_), cols(cols_) {}

  template <typename F>
  __device__ void each(F f) const {
    for (int64_t c = threadIdx.x; c < cols; c += BLOCK) f(static_cast<float>(x[c]));
  }
  template <typename F>
  __device__ void write(T* out, F f) const {
    for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
      out[c] = static_cast<T>(f(c, static_cast<float>(x[c])));
    }
  }
};

// In the block's registers: the constructor reads it once, in packs of 16 bytes.
template <typename T, int PACKS>
struct RowInRegisters {
  using Element = T;
  static constexpr int N = Pack<T>::N;
  Pack<T> v[PACKS];
  int packs;

  __device__ RowInRegisters(const T* x, int64_t cols) : packs(static_cast<int>(cols / N)) {
    const auto* row = reinterpret_cast<const Pack<T>*>(x + blockIdx.x * cols);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * BLOCK;
      if (p < packs) v[k] = row[p];
    }
  }
  template <typename F>
  __device__ void each(F f) const {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (threadIdx.x + k * BLOCK < packs) {
        for (int i = 0; i < N; ++i) f(static_cast<float>(v[k].at[i]));
      }
    }
  }
  template <typename F>
  __device__ void write(T* out, F f) const {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * BLOCK;
      if (p < packs) {
        Pack<T> pack;
        for (int i = 0; i < N; ++i) {
          pack.at[i] = static_cast<T>(f(int64_t{p} * N + i, static_cast<float>(v[k].at[i])));
        }
        reinterpret_cast<Pack<T>*>(out)[p] = pack;
      }
    }
  }
};

// exp, as exact as an output of type T needs. __expf, computed by the special function unit, has an
// error of at most 2 + 1.173 · |v| ulps: below 2^-16 for |v| <= 88, far below the rounding to 16
// bits.
template <typename T>
__device__ float exponential(float v) {
  return std::is_same_v<T, float> ? expf(v) : __expf(v);
}

// The maximum of a row, and sum_c exp(x[c] - max).
struct Statistics {
  float max, sum;
};

// All threads of the block must call it, and all receive the result.
template <typename Row>
__device__ Statistics statistics(const Row& row) {
  __shared__ float for_max[BLOCK / 32], for_sum[BLOCK / 32];
  float max = -INFINITY;
  row.each([&](float v) { max = fmaxf(max, v); });
  max = block_reduce(max, for_max, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  row.each([&](float v) { sum += exponential<typename Row::Element>(v - max); });
  return {max, block_reduce(sum, for_sum, [](float a, float b) { return a + b; })};
}

// Calls launch(row, zero). decltype(row)::type is the class above that holds a row of x; zero has
// the C++ type of x's dtype.
template <typename F>
void dispatch_row(const Tensor& x, F&& launch) {
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    if (!fits_registers(x)) return launch(std::type_identity<RowInMemory<T>>{}, zero);
    with_packs(x.size(1) * x.element_size(),
               [&](auto packs) { launch(std::type_identity<RowInRegisters<T, packs()>>{}, zero); });
  });
}

// ---------------------------------------------------------------------------------------------
// The forward operators.

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
  Tensor y = torch::stable::empty_like(x);
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

void check_logits(const Tensor& x, const Tensor& target) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  STD_TORCH_CHECK(x.size(1) > 0, "x: expected at least one column (class), got shape ",
                  shape_of(x));
  check(target, "target").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(target, "target").same_device(x, "x").size(0, x.size(0));
}

// A target outside [0, cols) is no class: its row has loss 0 and gradient 0. (A kernel cannot throw
// an exception as a launcher can.)
__device__ bool is_class(int64_t target, int64_t cols) {
  return target >= 0 && target < cols;
}

template <typename Row, typename T>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_kernel(const T* __restrict__ x, const int64_t* __restrict__ target,
                         float* __restrict__ loss, int64_t cols) {
  const Statistics stats = statistics(Row(x, cols));
  if (threadIdx.x == 0) {
    const int64_t t = target[blockIdx.x];
    // -log(exp(x[t] - max) / sum), without the exp, which could underflow
    loss[blockIdx.x] =
        is_class(t, cols)
            ? logf(stats.sum) - (static_cast<float>(x[blockIdx.x * cols + t]) - stats.max)
            : 0.0f;
  }
}

Tensor cross_entropy(const Tensor& x, const Tensor& target) {
  check_logits(x, target);
  const DeviceGuard guard(x);
  Tensor loss = torch::stable::new_empty(x, {x.size(0)}, ScalarType::Float);
  if (x.numel() == 0) return loss;
  dispatch_row(x, [&](auto row, auto zero) {
    using T = decltype(zero);
    cross_entropy_kernel<typename decltype(row)::type, T>
        <<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
            data<T>(x), data<int64_t>(target), mutable_data<float>(loss), x.size(1));
  });
  check_launch("cross_entropy");
  return loss;
}

// ---------------------------------------------------------------------------------------------
// The gradient of cross-entropy, v2: softmax to memory, then a second kernel in place.

template <typename T>
__global__ void subtract_and_scale_kernel(const float* __restrict__ g,
                                          const int64_t* __restrict__ target, T* y, int64_t cols) {
  const int64_t t = target[blockIdx.x];
  const float scale = g[blockIdx.x];
  const bool valid = is_class(t, cols);
  T* row = y + blockIdx.x * cols;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float difference = static_cast<float>(row[c]) - (c == t ? 1.0f : 0.0f);
    row[c] = static_cast<T>(valid ? difference * scale : 0.0f);
  }
}

void check_gradient(const Tensor& g, const Tensor& x) {
  check(g, "g").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(g, "g").same_device(x, "x").size(0, x.size(0));
}

Tensor cross_entropy_backward_v2_buffer(const Tensor& g, const Tensor& x, const Tensor& target) {
  check_logits(x, target);
  check_gradient(g, x);
  const DeviceGuard guard(x);
  const Tensor gx = softmax(x);
  if (x.numel() == 0) return gx;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    subtract_and_scale_kernel<T><<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
        data<float>(g), data<int64_t>(target), mutable_data<T>(gx), x.size(1));
  });
  check_launch("cross_entropy_backward_v2_buffer");
  return gx;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: softmax is never stored. The row of x is still in registers when its maximum and
// sum are known, and the gradient is computed from there: x is read once, gx is written once.

template <typename Row, typename T>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_backward_v3_fused_kernel(const float* __restrict__ g, const T* __restrict__ x,
                                           const int64_t* __restrict__ target, T* __restrict__ gx,
                                           int64_t cols) {
  const Row row(x, cols);
  const int64_t t = target[blockIdx.x];
  const float upstream = g[blockIdx.x];
  const bool valid = is_class(t, cols);
  const Statistics stats = statistics(row);
  const float scale = 1.0f / stats.sum;
  row.write(gx + blockIdx.x * cols, [&](int64_t c, float v) {
    const float difference = exponential<T>(v - stats.max) * scale - (c == t ? 1.0f : 0.0f);
    return valid ? difference * upstream : 0.0f;
  });
}

Tensor cross_entropy_backward_v3_fused(const Tensor& g, const Tensor& x, const Tensor& target) {
  check_logits(x, target);
  check_gradient(g, x);
  const DeviceGuard guard(x);
  Tensor gx = torch::stable::empty_like(x);
  if (x.numel() == 0) return gx;
  dispatch_row(x, [&](auto row, auto zero) {
    using T = decltype(zero);
    cross_entropy_backward_v3_fused_kernel<typename decltype(row)::type, T>
        <<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
            data<float>(g), data<T>(x), data<int64_t>(target), mutable_data<T>(gx), x.size(1));
  });
  check_launch("cross_entropy_backward_v3_fused");
  return gx;
}

// ---------------------------------------------------------------------------------------------

RUNG(day19, softmax, "(Tensor x) -> Tensor");
RUNG(day19, softmax_backward_v1_two_passes, "(Tensor gy, Tensor y) -> Tensor");
RUNG(day19, softmax_backward_v2_one_pass, "(Tensor gy, Tensor y) -> Tensor");
RUNG(day19, cross_entropy, "(Tensor x, Tensor target) -> Tensor");
RUNG(day19, cross_entropy_backward_v2_buffer, "(Tensor g, Tensor x, Tensor target) -> Tensor");
RUNG(day19, cross_entropy_backward_v3_fused, "(Tensor g, Tensor x, Tensor target) -> Tensor");

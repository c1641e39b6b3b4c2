// Day 20: cross-entropy, its gradient left where the logits were
//
//   p = softmax(x)    loss[r] = (1 - ε) · -log p[r, t[r]] + ε · mean_c(-log p[r, c])
//   dx[r, c] = w · (p[r, c] - (1 - ε) · [c = t[r]] - ε / V)      x, dx: (rows, V); t: (rows)
//
// w is 1, or for reduction "mean" one over the number of rows that count: those whose target is not
// ignore_index. The other rows have loss 0 and gradient 0. A target that names no class makes the
// loss and the gradient of its row NaN: a kernel cannot raise an exception.
//
// Bytes: x read once, dx written once; for 8192 × 50304 bf16 1.65 GB. Operations: about 10 per
// element, two of them exp, of which a multiprocessor of an H200 computes 16 per clock.
//
//   v1 plain          log p to memory in fp32, then a second kernel: 12 more bytes per element
//                     (plain_ce_loss.cu)
//   v2 in_place       statistics in one pass, the gradient in another, over the logits
//   v3 row_in_shared  the row stays in shared memory for the second pass: 1 read, 1 write
//   v4 rows_ahead     one block per multiprocessor, rows in registers, cp.async loads the next two
//
// Run: python run_day.py 20

#include "common/cuda/binding.cuh"
#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/ptx/cp_async.cuh"     // asynchronous copies to shared memory
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "days/day20/reduced_loss.cuh"
#include "days/day20/row_loss.cuh"

#include <cmath>
#include <string>
#include <tuple>

// ---------------------------------------------------------------------------------------------
// v2 against v1: between the two passes nothing but the logits is in memory, and the second pass
// overwrites each logit with its gradient. The first pass keeps a running maximum, as day 5's
// online softmax does.

constexpr int ROW_BLOCK = 512;

// Updates the statistics with one more piece of the row.
template <typename T, typename Piece>
__device__ void include(Statistics& mine, const Piece& piece, bool with_total) {
  const float before = mine.max;
  mine.max = fmaxf(before, max_of(piece));
  // Not where they are equal: both may be -inf, whose difference is NaN.
  if (before != mine.max) mine.sum *= exponential<T>(before - mine.max);
  add<T>(mine, piece, with_total);
}

// logits and dx may be the same memory.
template <typename T, typename Piece>
__global__ void __launch_bounds__(ROW_BLOCK)
    cross_entropy_v2_in_place_kernel(const T* logits, T* dx, const int64_t* __restrict__ target,
                                     float* __restrict__ losses, int64_t cols, LossTerms terms) {
  __shared__ Statistics shared[ROW_BLOCK / 32];
  const T* row = logits + blockIdx.x * cols;
  const auto* in = reinterpret_cast<const Piece*>(row);
  auto* out = reinterpret_cast<Piece*>(dx + blockIdx.x * cols);
  const int64_t t = target[blockIdx.x], pieces = cols / Piece::N;
  const float x_target = t >= 0 && t < cols ? static_cast<float>(row[t]) : 0.0f;

  Statistics mine;
  for (int64_t p = threadIdx.x; p < pieces; p += ROW_BLOCK) {
    include<T>(mine, in[p], terms.smoothing > 0);
  }
  // The barrier in block_combine: all threads have read x_target before any logit is overwritten.
  const RowTerms<T> all(block_combine(mine, shared), t, cols, terms, *terms.weight);
  for (int64_t p = threadIdx.x; p < pieces; p += ROW_BLOCK) {
    out[p] = gradient_of<T>(in[p], p * Piece::N, t, all);
  }
  if (threadIdx.x == 0) losses[blockIdx.x] = all.loss(x_target);
}

// Whether all rows of x are aligned to 16 bytes and consist of whole packs.
bool has_packs(const Tensor& x) {
  return x.size(1) * x.element_size() % 16 == 0 && is_aligned(x, 16);
}

void launch_v2(const Tensor& logits, const Tensor& dx, const Tensor& target, const LossTerms& terms,
               float* losses) {
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = has_packs(logits) && has_packs(dx)
                            ? cross_entropy_v2_in_place_kernel<T, Pack<T>>
                            : cross_entropy_v2_in_place_kernel<T, Single<T>>;
    kernel<<<grid_size(logits.size(0), "logits"), ROW_BLOCK, 0, current_stream(logits)>>>(
        data<T>(logits), mutable_data<T>(dx), data<int64_t>(target), losses, logits.size(1), terms);
  });
  check_launch("cross_entropy_v2_in_place");
}

// The loss; launch(logits, dx, target, terms, losses) leaves the gradient in the logits.
template <typename F>
Tensor in_place(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                double label_smoothing, const std::string& reduction, F launch) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  return with_terms(logits, target, ignore_index, label_smoothing, reduction,
                    [&](const LossTerms& terms, float* losses) {
                      launch(logits, logits, target, terms, losses);
                    });
}

Tensor cross_entropy_v2_in_place(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                 double label_smoothing, const std::string& reduction) {
  return in_place(logits, target, ignore_index, label_smoothing, reduction, launch_v2);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the row stays in shared memory for the second pass. Two blocks of 100 KB fit on a
// multiprocessor of an H200, so one can load while the other computes. A thread reads only what it
// has written itself, so the only barrier is the one for the statistics.

template <typename T>
__global__ void __launch_bounds__(ROW_BLOCK)
    cross_entropy_v3_row_in_shared_kernel(const T* logits, T* dx,
                                          const int64_t* __restrict__ target,
                                          float* __restrict__ losses, int packs, LossTerms terms) {
  extern __shared__ __align__(128) float4 dynamic[];
  __shared__ Statistics shared[ROW_BLOCK / 32];
  auto* row = reinterpret_cast<Pack<T>*>(dynamic);
  const auto* in = reinterpret_cast<const Pack<T>*>(logits) + int64_t{blockIdx.x} * packs;
  auto* out = reinterpret_cast<Pack<T>*>(dx) + int64_t{blockIdx.x} * packs;
  const int64_t t = target[blockIdx.x], cols = int64_t{packs} * Pack<T>::N;
  const float x_target =
      t >= 0 && t < cols ? static_cast<float>(logits[blockIdx.x * cols + t]) : 0.0f;

  Statistics mine;
#pragma unroll 4
  for (int p = threadIdx.x; p < packs; p += ROW_BLOCK) row[p] = in[p];
  for (int p = threadIdx.x; p < packs; p += ROW_BLOCK) {
    include<T>(mine, row[p], terms.smoothing > 0);
  }
  // The barrier in block_combine: all threads have read x_target before any logit is overwritten.
  const RowTerms<T> all(block_combine(mine, shared), t, cols, terms, *terms.weight);
  for (int p = threadIdx.x; p < packs; p += ROW_BLOCK) {
    out[p] = gradient_of<T>(row[p], int64_t{p} * Pack<T>::N, t, all);
  }
  if (threadIdx.x == 0) losses[blockIdx.x] = all.loss(x_target);
}

// Bytes for rows in shared memory: a little is left for the kernels' own arrays.
int64_t room_for_rows(const Tensor& logits) {
  return shared_limit(logits) - 1024;
}

void launch_v3(const Tensor& logits, const Tensor& dx, const Tensor& target, const LossTerms& terms,
               float* losses) {
  const int64_t row_bytes = logits.size(1) * logits.element_size();
  const bool packs = has_packs(logits) && has_packs(dx);
  if (!packs || row_bytes > room_for_rows(logits)) {
    fell_back("cross_entropy_v2_in_place",
              packs ? "a row does not fit into shared memory" : "rows are not aligned to 16 bytes");
    return launch_v2(logits, dx, target, terms, losses);
  }
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = cross_entropy_v3_row_in_shared_kernel<T>;
    allow_shared(kernel, row_bytes);
    kernel<<<grid_size(logits.size(0), "logits"), ROW_BLOCK, row_bytes, current_stream(logits)>>>(
        data<T>(logits), mutable_data<T>(dx), data<int64_t>(target), losses,
        static_cast<int>(row_bytes / 16), terms);
  });
  check_launch("cross_entropy_v3_row_in_shared");
}

Tensor cross_entropy_v3_row_in_shared(const Tensor& logits, const Tensor& target,
                                      int64_t ignore_index, double label_smoothing,
                                      const std::string& reduction) {
  return in_place(logits, target, ignore_index, label_smoothing, reduction, launch_v3);
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: a block of v3 has no loads in flight while it computes. Here one block per
// multiprocessor processes row after row. The current row is in its registers, and shared memory
// holds the next two, which cp.async loads meanwhile: 200 KB in flight per multiprocessor.

constexpr int MOST_PACKS = 16;  // per thread: 64 of its 128 registers

// rows_ahead: the number of rows that fit into shared memory, 1 or 2. cp.async needs compute
// capability 8.0; for older ones the body is left out and launch_v4 calls v3.
template <typename T, int PACKS>
__global__ void __launch_bounds__(ROW_BLOCK, 1)
    cross_entropy_v4_rows_ahead_kernel(const T* logits, T* dx, const int64_t* __restrict__ target,
                                       float* __restrict__ losses, int64_t rows, int packs,
                                       int rows_ahead, LossTerms terms) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int N = Pack<T>::N;
  extern __shared__ __align__(128) float4 dynamic[];
  // For even and odd rows: a warp may write the next row's while others still read this one's.
  __shared__ Statistics shared[2][ROW_BLOCK / 32];
  auto* slot = reinterpret_cast<Pack<T>*>(dynamic);  // (rows_ahead, packs)
  const auto* in = reinterpret_cast<const Pack<T>*>(logits);
  auto* out = reinterpret_cast<Pack<T>*>(dx);
  const int64_t cols = int64_t{packs} * N;

  // Loads this thread's packs of a row: t, t + 512, … No other thread reads them, so they need no
  // barrier. A group is committed even without a row, so that the number of groups is right.
  const auto fetch = [&](int64_t r, int place) {
    if (r < rows) {
#pragma unroll
      for (int k = 0; k < PACKS; ++k) {
        const int p = threadIdx.x + k * ROW_BLOCK;
        if (p < packs) ptx::cp_async<16>(&slot[place * packs + p], &in[r * packs + p]);
      }
    }
    ptx::cp_async_commit();
  };

  for (int i = 0; i < rows_ahead; ++i) fetch(blockIdx.x + int64_t{i} * gridDim.x, i);
  const float weight = *terms.weight;
  int place = 0, parity = 0;
  int64_t t = blockIdx.x < rows ? target[blockIdx.x] : 0;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t next_t =
        r + gridDim.x < rows ? target[r + gridDim.x] : 0;  // used for the next row
    if (rows_ahead == 2) {
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    Pack<T> v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * ROW_BLOCK;
      if (p < packs) v[k] = slot[place * packs + p];
    }
    // The thread that has the target's logit writes the loss.
    const bool valid = t >= 0 && t < cols;
    const bool owner = static_cast<int>(valid ? t / N : 0) % ROW_BLOCK == threadIdx.x;
    float x_target = 0;
    if (owner && valid) x_target = static_cast<float>(slot[place * packs + t / N].at[t % N]);
    fetch(r + int64_t{rows_ahead} * gridDim.x, place);

    // The whole row is in registers: the maximum first, then the sums, without rescaling.
    Statistics mine;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (threadIdx.x + k * ROW_BLOCK < packs) mine.max = fmaxf(mine.max, max_of(v[k]));
    }
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (threadIdx.x + k * ROW_BLOCK < packs) add<T>(mine, v[k], terms.smoothing > 0);
    }

    const RowTerms<T> all(block_combine(mine, shared[parity]), t, cols, terms, weight);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * ROW_BLOCK;
      if (p < packs) out[r * packs + p] = gradient_of<T>(v[k], int64_t{p} * N, t, all);
    }
    if (owner) losses[r] = all.loss(x_target);
    t = next_t;
    place = place + 1 < rows_ahead ? place + 1 : 0;
    parity ^= 1;
  }
#endif
}

bool has_cp_async(const Tensor& on) {
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index(on)),
             "cudaDeviceGetAttribute");
  return major >= 8;
}

void launch_v4(const Tensor& logits, const Tensor& dx, const Tensor& target, const LossTerms& terms,
               float* losses) {
  const int64_t row_bytes = logits.size(1) * logits.element_size(), packs = row_bytes / 16;
  const int64_t limit = room_for_rows(logits);
  const bool fits = row_bytes <= limit && packs <= MOST_PACKS * ROW_BLOCK;
  if (!has_packs(logits) || !has_packs(dx) || !fits || !has_cp_async(logits)) {
    fell_back("cross_entropy_v3_row_in_shared",
              !fits ? "a row does not fit" : "no aligned rows, or no cp.async");
    return launch_v3(logits, dx, target, terms, losses);
  }
  const int rows_ahead = 2 * row_bytes <= limit ? 2 : 1;
  const int64_t rows = logits.size(0);
  const int64_t blocks = multiprocessor_count(logits);
  const unsigned grid = grid_size(rows < blocks ? rows : blocks, "logits");
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = packs <= 4 * ROW_BLOCK ? cross_entropy_v4_rows_ahead_kernel<T, 4>
                        : packs <= 8 * ROW_BLOCK
                            ? cross_entropy_v4_rows_ahead_kernel<T, 8>
                            : cross_entropy_v4_rows_ahead_kernel<T, MOST_PACKS>;
    allow_shared(kernel, rows_ahead * row_bytes);
    kernel<<<grid, ROW_BLOCK, rows_ahead * row_bytes, current_stream(logits)>>>(
        data<T>(logits), mutable_data<T>(dx), data<int64_t>(target), losses, rows,
        static_cast<int>(packs), rows_ahead, terms);
  });
  check_launch("cross_entropy_v4_rows_ahead");
}

Tensor cross_entropy_v4_rows_ahead(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                   double label_smoothing, const std::string& reduction) {
  return in_place(logits, target, ignore_index, label_smoothing, reduction, launch_v4);
}

// The same, but the logits stay as they are and the gradient is a second output. Autograd needs
// that: a forward pass may not overwrite its input.
std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& target,
                                         int64_t ignore_index, double label_smoothing,
                                         const std::string& reduction) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  Tensor dx = allocate_like(logits);
  Tensor loss = with_terms(
      logits, target, ignore_index, label_smoothing, reduction,
      [&](const LossTerms& terms, float* losses) { launch_v4(logits, dx, target, terms, losses); });
  return {loss, dx};
}

// ---------------------------------------------------------------------------------------------
// The backward pass: the stored gradient times g, the gradient with respect to the loss, one number
// or one per row. If that is 1, as at the end of a chain, no memory is written.

constexpr int SCALE_BLOCK = 256;

template <typename T>
__global__ void cross_entropy_scale_kernel(T* __restrict__ dx, const float* __restrict__ g,
                                           bool by_row, int64_t cols) {
  const float factor = g[by_row ? blockIdx.x : 0];
  if (factor == 1) return;
  T* row = dx + blockIdx.x * cols;
  for (int64_t c = threadIdx.x; c < cols; c += SCALE_BLOCK) {
    row[c] = static_cast<T>(static_cast<float>(row[c]) * factor);
  }
}

void scale(const Tensor& dx, const Tensor& g) {
  check(dx, "dx").on_gpu().floating().rank(2).contiguous();
  check(g, "g").on_gpu().dtype({ScalarType::Float}).contiguous().same_device(dx, "dx");
  const bool by_row = g.dim() == 1;
  if (by_row) {
    check(g, "g").size(0, dx.size(0));
  } else {
    check(g, "g").rank(0);
  }
  if (dx.numel() == 0) return;
  const DeviceGuard guard(dx);
  dispatch_floating(dx, [&](auto zero) {
    using T = decltype(zero);
    cross_entropy_scale_kernel<T>
        <<<grid_size(dx.size(0), "dx"), SCALE_BLOCK, 0, current_stream(dx)>>>(
            mutable_data<T>(dx), data<float>(g), by_row, dx.size(1));
  });
  check_launch("scale");
}

// ---------------------------------------------------------------------------------------------

RUNG(day20, cross_entropy_v2_in_place, IN_PLACE);
RUNG(day20, cross_entropy_v3_row_in_shared, IN_PLACE);
RUNG(day20, cross_entropy_v4_rows_ahead, IN_PLACE);
RUNG(day20, cross_entropy, SEPARATE);
RUNG(day20, scale, "(Tensor(a!) dx, Tensor g) -> ()");

// Day 44: norms of rows: RMSNorm, L1 and L2
//
//   RMSNorm  y[r, c] = x[r, c] · s[r] · weight[c]     s[r] = 1 / sqrt(mean_c x[r, c]² + eps)
//   L1, L2   y[r, c] = x[r, c] · s[r]                 s[r] = 1 / max(norm of the row, eps)
//
// x, y: (rows, cols) in fp32, fp16 or bf16; weight: (cols,); s: (rows,) in fp32, for the backward
// pass in norms_backward.cu. Bytes: 2 · rows · cols · sizeof(T). Operations: 4 per element.
//
//   v1 naive        one thread per row: uncoalesced, the row read twice
//   v2 warp         one warp per row: coalesced, the row read twice
//   v3 vectorised   one block per row, the row in registers as packs of 16 bytes: up to 64 KB
//   v4 shared       one block per row, copied to shared memory by cp.async: up to 64 KB
//   v5 ring         persistent blocks, the next rows come during this one: up to 128 KB
//   v6 chosen       the fastest of these for the shape, the alignment and the card
//
// Run: python run_day.py 44

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // cp.async: day 20
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "days/day44/rows.cuh"

#include <algorithm>
#include <tuple>

// ---------------------------------------------------------------------------------------------
// What all rungs share.

// A matrix to normalise, with rows of `chunks` chunks of N elements.
template <typename T, int N>
struct Matrix {
  const Chunk<T, N>* x;       // (rows, chunks)
  const Chunk<T, N>* weight;  // (chunks,), or null
  Chunk<T, N>* y;             // (rows, chunks)
  float* scale;               // (rows,)
  int64_t rows, chunks;
  float eps;

  __device__ float cols() const { return static_cast<float>(chunks * N); }
};

template <typename Norm, typename T, int N>
__device__ float add_terms(float sum, const Chunk<T, N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum += Norm::term(static_cast<float>(x.at[i]));
  return sum;
}

// The sum of the terms of the elements first, first + stride … of a row of n elements. Runs of RUN
// terms are added first: a single accumulator would lose a digit in rows of 64k elements.
constexpr int RUN = 128;
template <typename Norm, typename T>
__device__ float add_row(const Chunk<T, 1>* x, int64_t first, int stride, int64_t n) {
  float sum = 0;
  for (int64_t begin = first; begin < n; begin += RUN * stride) {
    float of_run = 0;
    const int64_t end = min(begin + RUN * stride, n);
    for (int64_t c = begin; c < end; c += stride) of_run = add_terms<Norm>(of_run, x[c]);
    sum += of_run;
  }
  return sum;
}

// x · s · weight at chunk c of a row.
template <typename Norm, typename T, int N>
__device__ Chunk<T, N> scaled(const Chunk<T, N>& x, float s, const Matrix<T, N>& m, int64_t c) {
  Chunk<T, N> weight, y;
  if constexpr (Norm::WEIGHTED) weight = m.weight[c];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float value = static_cast<float>(x.at[i]) * s;
    if constexpr (Norm::WEIGHTED) value *= static_cast<float>(weight.at[i]);
    y.at[i] = static_cast<T>(value);
  }
  return y;
}

using Normed = std::tuple<Tensor, Tensor>;  // y and s

// Checks the arguments, allocates the results, and calls launch(matrix).
template <typename Launch>
Normed normalise(const Tensor& x, const Tensor* weight, double eps, const char* kernel,
                 Launch&& launch) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  if (weight) {
    check(*weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
    check(*weight, "weight").same_device(x, "x").size(0, x.size(1));
  }
  check_eps(eps);
  const DeviceGuard guard(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  Tensor y = torch::stable::empty_like(x);
  Tensor scale = torch::stable::new_empty(x, {rows}, ScalarType::Float);
  if (rows == 0) return {y, scale};
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(cols, {&x, weight ? weight : &x}, [&](auto size) {
      using C = Chunk<T, size>;
      launch(Matrix<T, size>{data<C>(x), weight ? data<C>(*weight) : nullptr, mutable_data<C>(y),
                             mutable_data<float>(scale), rows, cols / size,
                             static_cast<float>(eps)});
    });
  });
  check_launch(kernel);
  return {y, scale};
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per row, element by element. The lanes of a warp read 32 rows at a time.

constexpr int BLOCK = 256;

template <typename Norm, typename T>
__global__ void norm_v1_naive_kernel(Matrix<T, 1> m) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= m.rows) return;
  const Chunk<T, 1>* x = m.x + row * m.chunks;
  const float s = Norm::scale(add_row<Norm>(x, 0, 1, m.chunks), m.cols(), m.eps);
  for (int64_t c = 0; c < m.chunks; ++c) m.y[row * m.chunks + c] = scaled<Norm>(x[c], s, m, c);
  m.scale[row] = s;
}

// The same matrix, as chunks of one element.
template <typename T, int N>
Matrix<T, 1> by_element(const Matrix<T, N>& m) {
  using C = Chunk<T, 1>;
  return {reinterpret_cast<const C*>(m.x),
          reinterpret_cast<const C*>(m.weight),
          reinterpret_cast<C*>(m.y),
          m.scale,
          m.rows,
          m.chunks * N,
          m.eps};
}

template <typename Norm>
Normed norm_v1(const Tensor& x, const Tensor* weight, double eps) {
  return normalise(x, weight, eps, "norm_v1_naive", [&](auto m) {
    const unsigned grid = grid_size(ceil_div<int64_t>(m.rows, BLOCK), "x");
    norm_v1_naive_kernel<Norm><<<grid, BLOCK, 0, current_stream(x)>>>(by_element(m));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one warp per row, whose lanes read adjacent elements.

template <typename Norm, typename T>
__global__ void norm_v2_warp_kernel(Matrix<T, 1> m) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (row >= m.rows) return;  // the whole warp
  const Chunk<T, 1>* x = m.x + row * m.chunks;
  const float sum = warp_sum(add_row<Norm>(x, lane, 32, m.chunks));
  const float s = Norm::scale(sum, m.cols(), m.eps);
  for (int64_t c = lane; c < m.chunks; c += 32) {
    m.y[row * m.chunks + c] = scaled<Norm>(x[c], s, m, c);
  }
  if (lane == 0) m.scale[row] = s;
}

template <typename Norm>
Normed norm_v2(const Tensor& x, const Tensor* weight, double eps) {
  return normalise(x, weight, eps, "norm_v2_warp", [&](auto m) {
    const unsigned grid = grid_size(ceil_div<int64_t>(m.rows, BLOCK / 32), "x");
    norm_v2_warp_kernel<Norm><<<grid, BLOCK, 0, current_stream(x)>>>(by_element(m));
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the row is read once, in packs of 16 bytes, and stays in the registers of a block.
// Packs are kept as they came: 16-bit elements take half the registers that fp32 would.

constexpr int PACKS = 4;  // per thread, all in flight before the first is used

template <typename Norm, typename T, int N>
__global__ void __launch_bounds__(MAX_BLOCK) norm_v3_vectorised_kernel(Matrix<T, N> m) {
  __shared__ float sums[MAX_BLOCK / 32];
  const int64_t row = blockIdx.x;
  const int first = threadIdx.x, stride = blockDim.x;
  Chunk<T, N> x[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (first + k * stride < m.chunks) x[k] = m.x[row * m.chunks + first + k * stride];
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (first + k * stride < m.chunks) sum = add_terms<Norm>(sum, x[k]);
  }
  const float s = Norm::scale(block_sum(sum, sums), m.cols(), m.eps);
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int c = first + k * stride;
    if (c < m.chunks) m.y[row * m.chunks + c] = scaled<Norm>(x[k], s, m, c);
  }
  if (first == 0) m.scale[row] = s;
}

// Threads of a block that takes so many chunks of a row, `each` per thread.
int threads_for(int64_t chunks, int each) {
  return static_cast<int>(std::max<int64_t>(32, 32 * ceil_div<int64_t>(chunks, 32 * each)));
}

constexpr int64_t MAX_CHUNKS = MAX_BLOCK * PACKS;
constexpr char TOO_LONG[] = "a row too long for a block, or not made of aligned packs";

// Chunks of a row, if it has whole packs of 16 bytes that are aligned, else its elements.
int64_t chunks_of(const Tensor& x, const Tensor* weight) {
  const int64_t bytes = x.size(1) * x.element_size();
  const bool packs = bytes % 16 == 0 && is_aligned(x, 16) && (!weight || is_aligned(*weight, 16));
  return packs ? bytes / 16 : x.size(1);
}

template <typename Norm>
Normed norm_v3(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  if (chunks_of(x, weight) > MAX_CHUNKS) {
    fell_back("norm_v2_warp", TOO_LONG);
    return norm_v2<Norm>(x, weight, eps);
  }
  return normalise(x, weight, eps, "norm_v3_vectorised", [&](auto m) {
    const int threads = threads_for(m.chunks, PACKS);
    norm_v3_vectorised_kernel<Norm><<<grid_size(m.rows, "x"), threads, 0, current_stream(x)>>>(m);
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: the row waits in shared memory, where cp.async brings it: bytes in flight need no
// registers. A thread reads only what it copied itself, so no barrier is needed before.
//
// v5 against v4: persistent blocks (day 24), whose shared memory is a ring of RING places per
// thread. A place whose chunk has been stored takes a chunk of a later row.

template <typename Norm, int CHUNKS, int RING, typename T, int N>
__global__ void __launch_bounds__(MAX_BLOCK, CHUNKS == RING ? 2 : 1)
    norm_v4_shared_kernel(Matrix<T, N> m) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) char memory[];
  __shared__ float sums[2][MAX_BLOCK / 32];  // rows in turns, so that one barrier per row is enough
  auto* ring = reinterpret_cast<Chunk<T, N>*>(memory) + threadIdx.x;  // place p: ring[p * stride]
  const int first = threadIdx.x, stride = blockDim.x;

  int64_t next_row = blockIdx.x;  // of the chunk to copy next
  int next_chunk = 0, next_place = 0;
  const auto copy_next = [&] {
    const int c = first + next_chunk * stride;
    if (next_row < m.rows && c < m.chunks) {
      ptx::cp_async<16>(ring + next_place * stride, m.x + next_row * m.chunks + c);
    }
    ptx::cp_async_commit();  // also an empty group, so that each chunk is one
    next_place = next_place + 1 == RING ? 0 : next_place + 1;
    next_chunk = next_chunk + 1 == CHUNKS ? 0 : next_chunk + 1;
    if (next_chunk == 0) next_row += gridDim.x;
  };
#pragma unroll
  for (int p = 0; p < RING; ++p) copy_next();

  int begin = 0, turn = 0;  // begin: the place of the row's first chunk
  for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x, turn ^= 1) {
    const auto place = [&](int k) { return (begin + k < RING ? begin + k : begin + k - RING); };
    ptx::cp_async_wait<RING - CHUNKS>();  // this row has come; later chunks may not
    float sum = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS; ++k) {
      if (first + k * stride < m.chunks) sum = add_terms<Norm>(sum, ring[place(k) * stride]);
    }
    const float s = Norm::scale(block_sum(sum, sums[turn]), m.cols(), m.eps);
#pragma unroll
    for (int k = 0; k < CHUNKS; ++k) {
      const int c = first + k * stride;
      if (c < m.chunks) {
        m.y[row * m.chunks + c] = scaled<Norm>(ring[place(k) * stride], s, m, c);
      }
      if (RING > CHUNKS) copy_next();
    }
    if (first == 0) m.scale[row] = s;
    begin = place(CHUNKS);
  }
#endif
}

constexpr int SHARED_CHUNKS = 4, RING_CHUNKS = 8, RING_PLACES = 12;

template <typename Norm, int CHUNKS, int RING>
bool fits_shared(const Tensor& x, const Tensor* weight) {
  const int64_t chunks = chunks_of(x, weight);
  const int threads = threads_for(chunks, CHUNKS);
  const int64_t bytes = int64_t{threads} * RING * 16 + 2 * sizeof(float) * MAX_BLOCK / 32;
  return chunks * 16 == x.size(1) * x.element_size() && threads <= MAX_BLOCK &&
         bytes <= shared_limit(x);
}

template <typename Norm, int CHUNKS, int RING>
Normed norm_in_shared(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  require_capability(8, 0, "cp.async");
  if (!fits_shared<Norm, CHUNKS, RING>(x, weight)) {
    fell_back("norm_v2_warp", TOO_LONG);
    return norm_v2<Norm>(x, weight, eps);
  }
  return normalise(x, weight, eps, "norm_v4_shared", [&](auto m) {
    if constexpr (sizeof(*m.x) == 16) {
      const auto kernel =
          norm_v4_shared_kernel<Norm, CHUNKS, RING, std::decay_t<decltype(m.x->at[0])>,
                                sizeof(m.x->at) / sizeof(m.x->at[0])>;
      const int threads = threads_for(m.chunks, CHUNKS);
      const size_t bytes = size_t(threads) * RING * 16;
      allow_shared(kernel, bytes);
      const unsigned grid = CHUNKS == RING ? grid_size(m.rows, "x")
                                           : resident_grid(x, kernel, threads, bytes, m.rows);
      kernel<<<grid, threads, bytes, current_stream(x)>>>(m);
    }
  });
}

// ---------------------------------------------------------------------------------------------
// v6: one launcher that chooses: registers up to 64 KB, the ring above.

template <typename Norm>
Normed norm_chosen(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  const int64_t chunks = chunks_of(x, weight);
  if (chunks > MAX_CHUNKS && has_capability(8, 0) &&
      fits_shared<Norm, RING_CHUNKS, RING_PLACES>(x, weight)) {
    return norm_in_shared<Norm, RING_CHUNKS, RING_PLACES>(x, weight, eps);
  }
  return chunks <= MAX_CHUNKS ? norm_v3<Norm>(x, weight, eps) : norm_v2<Norm>(x, weight, eps);
}

// ---------------------------------------------------------------------------------------------

Normed rms_norm_v1_naive(const Tensor& x, const Tensor& weight, double eps) {
  return norm_v1<Rms>(x, &weight, eps);
}
Normed rms_norm_v2_warp(const Tensor& x, const Tensor& weight, double eps) {
  return norm_v2<Rms>(x, &weight, eps);
}
Normed rms_norm_v3_vectorised(const Tensor& x, const Tensor& weight, double eps) {
  return norm_v3<Rms>(x, &weight, eps);
}
Normed rms_norm_v4_shared(const Tensor& x, const Tensor& weight, double eps) {
  return norm_in_shared<Rms, SHARED_CHUNKS, SHARED_CHUNKS>(x, &weight, eps);
}
Normed rms_norm_v5_ring(const Tensor& x, const Tensor& weight, double eps) {
  return norm_in_shared<Rms, RING_CHUNKS, RING_PLACES>(x, &weight, eps);
}
Normed rms_norm_v6_chosen(const Tensor& x, const Tensor& weight, double eps) {
  return norm_chosen<Rms>(x, &weight, eps);
}
Normed l1_norm(const Tensor& x, double eps) {
  return norm_chosen<L1>(x, nullptr, eps);
}
Normed l2_norm(const Tensor& x, double eps) {
  return norm_chosen<L2>(x, nullptr, eps);
}

#define RMS_NORM "(Tensor x, Tensor weight, float eps=1e-6) -> (Tensor, Tensor)"
RUNG(day44, rms_norm_v1_naive, RMS_NORM);
RUNG(day44, rms_norm_v2_warp, RMS_NORM);
RUNG(day44, rms_norm_v3_vectorised, RMS_NORM);
RUNG(day44, rms_norm_v4_shared, RMS_NORM);
RUNG(day44, rms_norm_v5_ring, RMS_NORM);
RUNG(day44, rms_norm_v6_chosen, RMS_NORM);
RUNG(day44, l1_norm, "(Tensor x, float eps=1e-12) -> (Tensor, Tensor)");
RUNG(day44, l2_norm, "(Tensor x, float eps=1e-12) -> (Tensor, Tensor)");

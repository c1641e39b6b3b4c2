// Day 44: RMSNorm
//
//   y[r, c] = x[r, c] · s[r] · weight[c]      s[r] = 1 / sqrt(mean_c x[r, c]² + eps)
//
// x, y: (rows, cols) in fp32, fp16 or bf16; weight: (cols,); s: (rows,) in fp32, which a backward
// pass needs. Bytes: read x once, write y once, 2 · rows · cols · sizeof(T). Operations: 4 per
// element. So memory is the limit, but the row is needed twice: for the sum, then for y.
//
//   v1 naive        one thread per row: uncoalesced
//   v2 warp         one warp per row: coalesced, and the row is still read twice
//   v3 vectorised   one block per row, which keeps the row in registers: read once
//   v4 shared       shared memory keeps the row: more blocks are resident. Is that faster?
//
// v1 and v2 take any row. v3 and v4 take rows of aligned 16-byte chunks, up to 64 KB; further/
// takes every row.
//
// Run: python run_day.py 44

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/chunk.cuh"          // taught in day 35
#include "common/cuda/ptx.cuh"            // cp.async: day 20
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"    // taught in day 23

#include <cfloat>
#include <tuple>

using Normed = std::tuple<Tensor, Tensor>;  // y, scale

void check_arguments(const Tensor& x, const Tensor& weight, double eps) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(weight, "weight").same_device(x, "x").size(0, x.size(1));
  STD_TORCH_CHECK(eps >= 0 && eps <= FLT_MAX, "eps: expected a number of fp32 from 0, got ", eps);
}

// Allocates the results. Unless x has no rows, calls launch(zero, y, scale), with a value of the
// C++ type of x's dtype and the results' elements, and checks the launch.
template <typename Launch>
Normed normed(const Tensor& x, const char* kernel, Launch&& launch) {
  const DeviceGuard guard(x);
  const Tensor y = allocate_like(x), scale = allocate(x, {x.size(0)}, ScalarType::Float);
  if (x.size(0) == 0) return {y, scale};
  dispatch_floating(x, [&](auto zero) {
    launch(zero, mutable_data<decltype(zero)>(y), mutable_data<float>(scale));
  });
  check_launch(kernel);
  return {y, scale};
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per row. In each step of the loops, the lanes of a warp read one element of each
// of 32 rows.

constexpr int BLOCK = 256;  // threads

template <typename T>
__global__ void rms_norm_v1_naive_kernel(const T* __restrict__ x, const T* __restrict__ weight,
                                         T* __restrict__ y, float* __restrict__ scale, int64_t rows,
                                         int64_t cols, float eps) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= rows) return;
  const int64_t start = row * cols;
  float sum = 0;
  for (int64_t c = 0; c < cols; ++c) {
    const float value = static_cast<float>(x[start + c]);
    sum += value * value;
  }
  const float s = rsqrtf(sum / cols + eps);
  scale[row] = s;
  for (int64_t c = 0; c < cols; ++c) {
    y[start + c] = static_cast<T>(static_cast<float>(x[start + c]) * s * float(weight[c]));
  }
}

Normed rms_norm_v1_naive(const Tensor& x, const Tensor& weight, double eps) {
  check_arguments(x, weight, eps);
  return normed(x, "rms_norm_v1_naive", [&](auto zero, auto* y, float* scale) {
    using T = decltype(zero);
    const unsigned grid = grid_size(ceil_div<int64_t>(x.size(0), BLOCK), "x");
    rms_norm_v1_naive_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(weight), y, scale, x.size(0), x.size(1), static_cast<float>(eps));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one warp per row, whose lanes read neighbouring elements. Its lanes' sums are
// added by shuffles.

template <typename T>
__global__ void rms_norm_v2_warp_kernel(const T* __restrict__ x, const T* __restrict__ weight,
                                        T* __restrict__ y, float* __restrict__ scale, int64_t rows,
                                        int64_t cols, float eps) {
  const int64_t row = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (row >= rows) return;  // the whole warp
  const int64_t start = row * cols;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t c = lane; c < cols; c += 32) {
    const float value = static_cast<float>(x[start + c]);
    sum += value * value;
  }
  const float s = rsqrtf(warp_sum(sum) / cols + eps);
  if (lane == 0) scale[row] = s;
  for (int64_t c = lane; c < cols; c += 32) {
    y[start + c] = static_cast<T>(static_cast<float>(x[start + c]) * s * float(weight[c]));
  }
}

Normed rms_norm_v2_warp(const Tensor& x, const Tensor& weight, double eps) {
  check_arguments(x, weight, eps);
  return normed(x, "rms_norm_v2_warp", [&](auto zero, auto* y, float* scale) {
    using T = decltype(zero);
    const unsigned grid = grid_size(ceil_div<int64_t>(x.size(0), BLOCK / 32), "x");
    rms_norm_v2_warp_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(weight), y, scale, x.size(0), x.size(1), static_cast<float>(eps));
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a block takes the row, and each of its threads keeps four chunks of 16 bytes of it
// in registers until y is computed. So x is read once, and a load of a warp moves 512 bytes.

constexpr int PER_THREAD = 4;      // chunks in registers
constexpr int MAX_THREADS = 1024;  // × 4 chunks of 16 bytes: a row of 64 KB

template <typename T, int N>
__device__ float add_squares(float sum, const Chunk<T, N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum += static_cast<float>(x.at[i]) * static_cast<float>(x.at[i]);
  return sum;
}

template <typename T, int N>
__device__ Chunk<T, N> scaled(const Chunk<T, N>& x, float s, const Chunk<T, N>& weight) {
  Chunk<T, N> y;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    y.at[i] = static_cast<T>(static_cast<float>(x.at[i]) * s * static_cast<float>(weight.at[i]));
  }
  return y;
}

// The sum over the block, in all its threads, which must all call it. `sums` has a place per warp.
static __device__ float block_sum(float value, float* sums) {
  const int lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();  // every warp waits for the sums of all warps
  return warp_sum(lane < blockDim.x / 32 ? sums[lane] : 0.0f);
}

template <typename T, int N>
__global__ void __launch_bounds__(MAX_THREADS)
    rms_norm_v3_vectorised_kernel(const Chunk<T, N>* __restrict__ x,
                                  const Chunk<T, N>* __restrict__ weight,
                                  Chunk<T, N>* __restrict__ y, float* __restrict__ scale, int count,
                                  float eps) {
  __shared__ float sums[MAX_THREADS / 32];
  const int64_t start = int64_t{blockIdx.x} * count;  // the row's first chunk
  Chunk<T, N> kept[PER_THREAD];                       // chunks t, t + blockDim.x …, of thread t
  for (int k = 0, c = threadIdx.x; k < PER_THREAD; ++k, c += blockDim.x) {
    kept[k] = c < count ? load_whole(x + start + c) : Chunk<T, N>{};
  }
  float sum = 0;
  for (int k = 0; k < PER_THREAD; ++k) sum = add_squares(sum, kept[k]);
  const float s = rsqrtf(block_sum(sum, sums) / (count * N) + eps);
  if (threadIdx.x == 0) scale[blockIdx.x] = s;
  for (int k = 0, c = threadIdx.x; k < PER_THREAD; ++k, c += blockDim.x) {
    if (c < count) y[start + c] = scaled(kept[k], s, load_whole(weight + c));
  }
}

// The chunks of a row. Refuses rows that are not made of aligned ones, or have more than 64 KB.
int chunks_per_row(const Tensor& x, const Tensor& weight) {
  const int64_t bytes = x.size(1) * x.element_size();
  STD_TORCH_CHECK(bytes % 16 == 0 && bytes <= 16 * PER_THREAD * MAX_THREADS && is_aligned(x, 16),
                  "x: expected aligned rows of 16-byte chunks, at most 64 KB, got ", bytes,
                  " bytes");
  STD_TORCH_CHECK(is_aligned(weight, 16), "weight: expected an address that is a multiple of 16");
  return static_cast<int>(bytes / 16);
}

Normed rms_norm_v3_vectorised(const Tensor& x, const Tensor& weight, double eps) {
  check_arguments(x, weight, eps);
  const int count = chunks_per_row(x, weight);
  return normed(x, "rms_norm_v3_vectorised", [&](auto zero, auto* y, float* scale) {
    using C = Chunk<decltype(zero), 16 / sizeof(zero)>;
    const int threads = std::max(32, 32 * ceil_div(count, 32 * PER_THREAD));
    rms_norm_v3_vectorised_kernel<<<grid_size(x.size(0), "x"), threads, 0, current_stream(x)>>>(
        data<C>(x), data<C>(weight), reinterpret_cast<C*>(y), scale, count,
        static_cast<float>(eps));
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: the row waits in shared memory, where cp.async brings it. Its 64 KB need no
// registers, so three blocks of 512 threads are resident, where v3 has one of 1024. A thread reads
// only the chunks that it copied itself, so the row needs no barrier.

constexpr int SHARED_THREADS = 512;   // at most
constexpr int SHARED_PER_THREAD = 8;  // chunks
constexpr int IN_FLIGHT = 4;          // chunks of the weight that a thread loads at a time

template <typename T, int N>
__global__ void __launch_bounds__(SHARED_THREADS, 3)
    rms_norm_v4_shared_kernel(const Chunk<T, N>* __restrict__ x,
                              const Chunk<T, N>* __restrict__ weight, Chunk<T, N>* __restrict__ y,
                              float* __restrict__ scale, int count, float eps) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  __shared__ float sums[SHARED_THREADS / 32];
  extern __shared__ __align__(128) char memory[];
  const int64_t start = int64_t{blockIdx.x} * count;                 // the row's first chunk in x
  Chunk<T, N>* const kept = reinterpret_cast<Chunk<T, N>*>(memory);  // its chunks [0, count)
  for (int c = threadIdx.x; c < count; c += blockDim.x) ptx::cp_async<16>(kept + c, x + start + c);
  ptx::cp_async_wait_all();  // this thread's chunks are in shared memory
  float sum = 0;
#pragma unroll 4
  for (int c = threadIdx.x; c < count; c += blockDim.x) {
    sum = add_squares(sum, load_whole(kept + c));
  }
  const float s = rsqrtf(block_sum(sum, sums) / (count * N) + eps);
  if (threadIdx.x == 0) scale[blockIdx.x] = s;
  for (int first = threadIdx.x; first < count; first += IN_FLIGHT * blockDim.x) {
    RawChunk<Chunk<T, N>> w[IN_FLIGHT];  // all of them are loaded before the first store
    for (int k = 0, c = first; k < IN_FLIGHT; ++k, c += blockDim.x) {
      if (c < count) w[k] = load_raw(weight + c);
    }
    for (int k = 0, c = first; k < IN_FLIGHT; ++k, c += blockDim.x) {
      if (c < count) y[start + c] = scaled(load_whole(kept + c), s, w[k].chunk());
    }
  }
#endif
}

Normed rms_norm_v4_shared(const Tensor& x, const Tensor& weight, double eps) {
  check_arguments(x, weight, eps);
  const int count = chunks_per_row(x, weight);
  const DeviceGuard guard(x);
  require_capability(8, 0, "cp.async");
  require_shared_memory(16 * count + 256, "a row");  // 256: 64 bytes of sums, and alignment
  return normed(x, "rms_norm_v4_shared", [&](auto zero, auto* y, float* scale) {
    using C = Chunk<decltype(zero), 16 / sizeof(zero)>;
    const int threads = std::max(32, 32 * ceil_div(count, 32 * SHARED_PER_THREAD));
    const auto kernel = rms_norm_v4_shared_kernel<decltype(zero), 16 / sizeof(zero)>;
    allow_shared(kernel, 16 * count);
    kernel<<<grid_size(x.size(0), "x"), threads, 16 * count, current_stream(x)>>>(
        data<C>(x), data<C>(weight), reinterpret_cast<C*>(y), scale, count,
        static_cast<float>(eps));
  });
}

// ---------------------------------------------------------------------------------------------

#define RMS_NORM "(Tensor x, Tensor weight, float eps=1e-6) -> (Tensor, Tensor)"
RUNG(day44, rms_norm_v1_naive, RMS_NORM);
RUNG(day44, rms_norm_v2_warp, RMS_NORM);
RUNG(day44, rms_norm_v3_vectorised, RMS_NORM);
RUNG(day44, rms_norm_v4_shared, RMS_NORM);

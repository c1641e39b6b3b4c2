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
//   v3 vectorised   one block per row, packs of 16 bytes; registers keep up to 64 KB of the row
//   v4 shared       shared memory keeps a row of up to 64 KB, filled by cp.async
//   v5 bulk         bulk copies (day 55) both ways, up to 1 MB in the shared memory of a cluster
//   v6 chosen       v3 up to 32 KB, v5 above where the GPU has it
//
// Run: python run_day.py 44

#include "common/cuda/binding.cuh"         // taught in day 6
#include "common/cuda/capability.cuh"      // taught in day 24
#include "common/cuda/cluster_launch.cuh"  // taught in day 35
#include "common/cuda/ptx.cuh"             // cp.async: day 20; clusters: day 34; bulk: day 55
#include "common/cuda/shared_memory.cuh"   // taught in day 15
#include "common/cuda/tensor.cuh"          // taught in days 6 and 12
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

// Chunk c of the weight, for a norm that has one.
template <typename Norm, typename T, int N>
__device__ Chunk<T, N> weight_at(const Matrix<T, N>& m, int64_t c) {
  if constexpr (Norm::WEIGHTED) return m.weight[c];
  return Chunk<T, N>{};
}

// x · s · weight, of a chunk.
template <typename Norm, typename T, int N>
__device__ Chunk<T, N> scaled(const Chunk<T, N>& x, float s, const Chunk<T, N>& weight) {
  Chunk<T, N> y;
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
  Tensor y = allocate_like(x);
  Tensor scale = allocate(x, {rows}, ScalarType::Float);
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
  for (int64_t c = 0; c < m.chunks; ++c) {
    m.y[row * m.chunks + c] = scaled<Norm>(x[c], s, weight_at<Norm>(m, c));
  }
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
    m.y[row * m.chunks + c] = scaled<Norm>(x[c], s, weight_at<Norm>(m, c));
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
// v3 against v2: a block takes the row in packs of 16 bytes, and keeps the first PACKS per thread
// in registers: up to 64 KB of the row are read once. Packs are kept as they came; of bf16, nvcc
// 13.0 keeps each element in a register of its own all the same (60 per thread, fp16 45).

constexpr int PACKS = 4;  // per thread

// The chunks first, first + stride … of a row of `count` chunks, PACKS of them. All loads are
// issued before the first is used. What lies beyond the row is 0, whose term is 0 in every norm.
template <typename T, int N>
__device__ void load_packs(Chunk<T, N> (&to)[PACKS], const Chunk<T, N>* from, int64_t first,
                           int stride, int64_t count) {
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    to[k] = Chunk<T, N>{};
    if (first + k * stride < count) to[k] = load_whole(from + first + k * stride);
  }
}

template <typename Norm, typename T, int N>
__device__ void store_packs(Chunk<T, N>* to, const Chunk<T, N> (&x)[PACKS], float s,
                            const Matrix<T, N>& m, int64_t first, int stride) {
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int64_t c = first + k * stride;
    if (c < m.chunks) to[c] = scaled<Norm>(x[k], s, weight_at<Norm>(m, c));
  }
}

template <typename Norm, typename T, int N>
__global__ void __launch_bounds__(MAX_BLOCK) norm_v3_vectorised_kernel(Matrix<T, N> m) {
  __shared__ float sums[MAX_BLOCK / 32];
  const int64_t row = blockIdx.x;
  const Chunk<T, N>* const x = m.x + row * m.chunks;
  Chunk<T, N>* const y = m.y + row * m.chunks;
  const int first = threadIdx.x, stride = blockDim.x;
  const int64_t step = int64_t{PACKS} * stride;

  Chunk<T, N> kept[PACKS];
  load_packs(kept, x, first, stride, m.chunks);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) sum = add_terms<Norm>(sum, kept[k]);
#pragma unroll 4
  for (int64_t c = first + step; c < m.chunks; c += stride) sum = add_terms<Norm>(sum, x[c]);

  const float s = Norm::scale(block_sum(sum, sums), m.cols(), m.eps);
  if (first == 0) m.scale[row] = s;
  store_packs<Norm>(y, kept, s, m, first, stride);
  for (int64_t c = first + step; c < m.chunks; c += step) {  // these are read again
    load_packs(kept, x, c, stride, m.chunks);
    store_packs<Norm>(y, kept, s, m, c, stride);
  }
}

// Threads of a block that takes so many chunks of a row, at most `most`.
int threads_for(int64_t chunks, int most) {
  return static_cast<int>(
      std::clamp<int64_t>(32 * ceil_div<int64_t>(chunks, 32 * PACKS), 32, most));
}

template <typename Norm>
Normed norm_v3(const Tensor& x, const Tensor* weight, double eps) {
  return normalise(x, weight, eps, "norm_v3_vectorised", [&](auto m) {
    const int threads = threads_for(m.chunks, MAX_BLOCK);
    norm_v3_vectorised_kernel<Norm><<<grid_size(m.rows, "x"), threads, 0, current_stream(x)>>>(m);
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: the row waits in shared memory, where cp.async brings it: bytes in flight need no
// registers, and three blocks with 64 KB each are resident. A thread reads only what it copied
// itself.

constexpr int SHARED_BLOCK = 512, EACH = 8;       // packs per thread
constexpr int BLOCK_PACKS = SHARED_BLOCK * EACH;  // of a row, at most: 64 KB

// The weight of PACKS packs: first, first + stride … of `count`.
template <typename Norm, typename T, int N>
__device__ void load_weight(RawChunk<Chunk<T, N>> (&to)[PACKS], const Chunk<T, N>* weight,
                            int first, int stride, int count) {
  if constexpr (!Norm::WEIGHTED) return;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (first + k * stride < count) to[k] = load_raw(weight + first + k * stride);
  }
}

template <typename Norm, typename T, int N>
__global__ void __launch_bounds__(SHARED_BLOCK, 3) norm_v4_shared_kernel(Matrix<T, N> m) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  __shared__ float sums[SHARED_BLOCK / 32];
  auto* const kept = reinterpret_cast<Chunk<T, N>*>(memory);
  const int first = threadIdx.x, stride = blockDim.x, count = static_cast<int>(m.chunks);
  const int64_t row = blockIdx.x, start = row * count;

#pragma unroll 4
  for (int c = first; c < count; c += stride) ptx::cp_async<16>(kept + c, m.x + start + c);
  // Loaded behind the stores below, each pack of the weight would wait for one of them: as far as
  // the compiler knows, y and weight may overlap.
  RawChunk<Chunk<T, N>> weight[PACKS];
  load_weight<Norm>(weight, m.weight, first, stride, count);
  ptx::cp_async_wait_all();
  float sum = 0;
#pragma unroll 4
  for (int c = first; c < count; c += stride) sum = add_terms<Norm>(sum, load_whole(kept + c));

  const float s = Norm::scale(block_sum(sum, sums), m.cols(), m.eps);
  if (first == 0) m.scale[row] = s;
#pragma unroll
  for (int from = 0; from < EACH; from += PACKS) {
    if (from > 0) load_weight<Norm>(weight, m.weight, first + from * stride, stride, count);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int c = first + (from + k) * stride;
      if (c >= count) break;
      m.y[start + c] = scaled<Norm>(load_whole(kept + c), s, weight[k].chunk());
    }
  }
#endif
}

// Packs of a row if it is made of aligned ones, else 0.
int64_t packs_of(const Tensor& x, const Tensor* weight) {
  const int64_t bytes = x.size(1) * x.element_size();
  const bool packs = bytes % 16 == 0 && is_aligned(x, 16) && (!weight || is_aligned(*weight, 16));
  return packs ? bytes / 16 : 0;
}

bool fits_shared(const Tensor& x, int64_t packs) {
  return packs > 0 && packs <= BLOCK_PACKS &&
         shared_memory_fits(x, sizeof(float) * SHARED_BLOCK / 32, packs * 16);
}

template <typename Norm>
Normed norm_v4(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  require_capability(8, 0, "cp.async");
  if (!fits_shared(x, packs_of(x, weight))) {
    fell_back("norm_v3_vectorised", "a row above 64 KB, or not of aligned packs");
    return norm_v3<Norm>(x, weight, eps);
  }
  return normalise(x, weight, eps, "norm_v4_shared", [&](auto m) {
    if constexpr (sizeof(*m.x) == 16) {
      using T = std::decay_t<decltype(m.x->at[0])>;
      const auto kernel = norm_v4_shared_kernel<Norm, T, 16 / sizeof(T)>;
      const int threads = static_cast<int>(32 * ceil_div<int64_t>(m.chunks, 32 * EACH));
      const size_t bytes = m.chunks * 16;
      allow_shared(kernel, bytes);
      kernel<<<grid_size(m.rows, "x"), threads, bytes, current_stream(x)>>>(m);
    }
  });
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: no thread loads or stores x or y. A warp has 4 KB of the row, and a lane starts
// the bulk copy (day 55) that brings them. The warp scales them where they are, and a lane starts
// the copy back. The blocks of a cluster share a row above 64 KB, as in day 35.

constexpr int WARP_PACKS = 32 * EACH;
constexpr int MAX_CLUSTER = 16;  // blocks; more than 8 are not portable

// Older cards do not run this kernel, and have no instructions for some of its parts.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_BULK_COPIES 1
#endif

// Blocks of `length` packs of a row each.
template <typename Norm, typename T, int N, bool CLUSTER>
__global__ void __launch_bounds__(SHARED_BLOCK, 3) norm_v5_bulk_kernel(Matrix<T, N> m, int length) {
#ifdef HAS_BULK_COPIES
  extern __shared__ __align__(128) char memory[];
  __shared__ float sums[(CLUSTER ? MAX_CLUSTER : 1) * SHARED_BLOCK / 32];  // of all warps
  __shared__ uint64_t arrived[SHARED_BLOCK / 32];  // a warp's part of the row
  __shared__ uint64_t sums_arrived;                // mbarriers
  const int blocks = CLUSTER ? ptx::cluster_size() : 1;
  const int rank = CLUSTER ? ptx::cluster_block_rank() : 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int64_t row = blockIdx.x / blocks;
  // This warp's packs of the row: `count` from `first` on.
  const int first = rank * length + warp * WARP_PACKS;
  const int end = min((rank + 1) * length, static_cast<int>(m.chunks));
  const int count = max(0, min(end - first, WARP_PACKS));
  const int64_t start = row * m.chunks + first;
  auto* const part = reinterpret_cast<Chunk<T, N>*>(memory) + warp * WARP_PACKS;

  if (lane == 0 && count > 0) {
    ptx::mbarrier_init(&arrived[warp], 1);
    ptx::fence_mbarrier_init();  // before the copy uses it
    ptx::mbarrier_arrive_expect_bytes(&arrived[warp], count * 16);
    ptx::copy_bulk(part, m.x + start, count * 16, &arrived[warp]);
  }
  RawChunk<Chunk<T, N>> weight[PACKS];
  load_weight<Norm>(weight, m.weight + first, lane, 32, count);
  if constexpr (CLUSTER) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&sums_arrived, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_bytes(&sums_arrived, blocks * warps * sizeof(float));
    }
    ptx::cluster_arrive_relaxed();  // this block has begun, and its mbarrier is ready
  }
  __syncwarp();  // the warp's mbarrier is ready
  if (count > 0) ptx::mbarrier_wait(&arrived[warp], 0);
  float sum = 0;
#pragma unroll 4
  for (int i = lane; i < count; i += 32) sum = add_terms<Norm>(sum, load_whole(part + i));
  if constexpr (CLUSTER) {
    sum = warp_sum(sum);
    ptx::cluster_wait();  // all blocks have begun: their shared memory may be used
    if (lane < blocks) {
      auto* to = reinterpret_cast<uint32_t*>(&sums[rank * warps + warp]);
      ptx::store_async_to_rank(to, lane, __float_as_uint(sum), &sums_arrived);
    }
    ptx::mbarrier_wait(&sums_arrived, 0);  // the sums of all warps of the cluster have come
    sum = 0;
    for (int i = lane; i < blocks * warps; i += 32) sum += sums[i];
    sum = warp_sum(sum);
  } else {
    sum = block_sum(sum, sums);
  }
  const float s = Norm::scale(sum, m.cols(), m.eps);
  if (threadIdx.x == 0 && rank == 0) m.scale[row] = s;

#pragma unroll
  for (int from = 0; from < EACH; from += PACKS) {
    if (from > 0) load_weight<Norm>(weight, m.weight + first, lane + from * 32, 32, count);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int i = lane + (from + k) * 32;
      if (i >= count) break;
      part[i] = scaled<Norm>(load_whole(part + i), s, weight[k].chunk());
    }
  }
  ptx::fence_for_copy_engine();  // what this lane wrote, before it is copied …
  __syncwarp();                  // … and what the other lanes wrote
  if (lane == 0 && count > 0) {
    ptx::store_bulk(m.y + start, part, count * 16);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();  // the block's memory may go
  }
#endif
}

// How v5 takes rows of so many packs.
struct BulkShape {
  int64_t blocks = 1;  // per row, a power of two
  int length;          // packs of a row per block
  int threads, bytes;
  bool fits;

  BulkShape(const Tensor& x, int64_t packs) {
    while (blocks < MAX_CLUSTER && packs > blocks * BLOCK_PACKS) blocks *= 2;
    length = static_cast<int>(std::min<int64_t>(ceil_div(packs, blocks), BLOCK_PACKS));
    threads = 32 * ceil_div(length, WARP_PACKS);
    bytes = length * 16;
    const int64_t warps = SHARED_BLOCK / 32, sums = blocks > 1 ? MAX_CLUSTER * warps : warps;
    fits = packs > 0 && packs <= blocks * BLOCK_PACKS &&
           shared_memory_fits(x, 4 * sums + 8 * (warps + 1), bytes);
  }
};

template <typename Norm>
Normed norm_v5(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  require_capability(9, 0, "bulk copies");
  const BulkShape shape(x, packs_of(x, weight));
  if (!shape.fits) {
    fell_back("norm_v3_vectorised", "a row above 1 MB, or not of aligned packs");
    return norm_v3<Norm>(x, weight, eps);
  }
  return normalise(x, weight, eps, "norm_v5_bulk", [&](auto m) {
    if constexpr (sizeof(*m.x) == 16) {
      using T = std::decay_t<decltype(m.x->at[0])>;
      constexpr int N = 16 / sizeof(T);
      const unsigned grid = grid_size(m.rows * shape.blocks, "x");
      if (shape.blocks > 1) {
        launch_clusters(norm_v5_bulk_kernel<Norm, T, N, true>, grid,
                        static_cast<unsigned>(shape.blocks), shape.threads, shape.bytes,
                        current_stream(x), m, shape.length);
      } else {
        const auto kernel = norm_v5_bulk_kernel<Norm, T, N, false>;
        allow_shared(kernel, shape.bytes);
        kernel<<<grid, shape.threads, shape.bytes, current_stream(x)>>>(m, shape.length);
      }
    }
  });
}

// ---------------------------------------------------------------------------------------------
// v6: one launcher that chooses. Two blocks of v3 are resident with up to 32 KB of a row each, but
// only one with more.

constexpr int REGISTER_PACKS = MAX_BLOCK / 2 * PACKS;  // 32 KB

template <typename Norm>
Normed norm_chosen(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  const int64_t packs = packs_of(x, weight);
  if (packs > REGISTER_PACKS) {
    if (has_capability(9, 0) && BulkShape(x, packs).fits) return norm_v5<Norm>(x, weight, eps);
    if (has_capability(8, 0) && fits_shared(x, packs)) return norm_v4<Norm>(x, weight, eps);
  }
  return norm_v3<Norm>(x, weight, eps);
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
  return norm_v4<Rms>(x, &weight, eps);
}
Normed rms_norm_v5_bulk(const Tensor& x, const Tensor& weight, double eps) {
  return norm_v5<Rms>(x, &weight, eps);
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
RUNG(day44, rms_norm_v5_bulk, RMS_NORM);
RUNG(day44, rms_norm_v6_chosen, RMS_NORM);
RUNG(day44, l1_norm, "(Tensor x, float eps=1e-12) -> (Tensor, Tensor)");
RUNG(day44, l2_norm, "(Tensor x, float eps=1e-12) -> (Tensor, Tensor)");

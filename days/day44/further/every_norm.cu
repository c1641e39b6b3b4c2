// Day 44, further: RMSNorm, L1 and L2 norm of any row
//
//   RMSNorm  y[r, c] = x[r, c] · s[r] · weight[c]     s[r] = 1 / sqrt(mean_c x[r, c]² + eps)
//   L1, L2   y[r, c] = x[r, c] · s[r]                 s[r] = 1 / max(norm of the row, eps)
//
// x, y: (rows, cols) in fp32, fp16 or bf16; weight: (cols,); s: (rows,) in fp32, for the backward
// pass in norms_backward.cu. Bytes: 2 · rows · cols · sizeof(T). Operations: 4 per element.
//
//   any_row     the main line's v3 for every row: 64 KB in registers, the rest is read again
//   v5 bulk     bulk copies (day 55) both ways, up to 1 MB in the shared memory of a cluster
//   v6 chosen   any_row up to 32 KB; above it v5, or the main line's v4 on older GPUs
//
// Run: python run_day.py 44 --further

#include "common/cuda/binding.cuh"         // taught in day 6
#include "common/cuda/capability.cuh"      // taught in day 24
#include "common/cuda/cluster_launch.cuh"  // taught in day 35
#include "common/cuda/ptx.cuh"             // clusters: day 34; bulk copies: day 55
#include "common/cuda/shared_memory.cuh"   // taught in day 15
#include "common/cuda/tensor.cuh"          // taught in days 6 and 12
#include "days/day44/further/rows.cuh"

#include <algorithm>
#include <tuple>

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

// Chunk c of the weight, for a norm that has one.
template <typename Norm, typename T, int N>
__device__ Chunk<T, N> weight_at(const Matrix<T, N>& m, int64_t c) {
  if constexpr (Norm::WEIGHTED) return load_whole(m.weight + c);
  return Chunk<T, N>{};
}

// x · s · weight, of a chunk.
template <typename Norm, typename T, int N>
__device__ Chunk<T, N> scaled_chunk(const Chunk<T, N>& x, float s, const Chunk<T, N>& weight) {
  Chunk<T, N> y;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float value = static_cast<float>(x.at[i]) * s;
    if constexpr (Norm::WEIGHTED) value *= static_cast<float>(weight.at[i]);
    y.at[i] = static_cast<T>(value);
  }
  return y;
}

using Results = std::tuple<Tensor, Tensor>;  // y and s

// Checks the arguments, allocates the results, and calls launch(matrix).
template <typename Launch>
Results normalise(const Tensor& x, const Tensor* weight, double eps, const char* kernel,
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
// any_row against the main line's v3: chunks of one element where rows are not made of aligned
// chunks of 16 bytes, and what the registers do not hold is read again.

constexpr int KEPT = 4;  // chunks per thread

// KEPT chunks of a row of `count`: first, first + stride …. All loads are issued before the first
// is used. Chunks beyond the row are 0, and so are their terms in every norm.
template <typename T, int N>
__device__ void load_chunks(Chunk<T, N> (&to)[KEPT], const Chunk<T, N>* from, int64_t first,
                            int stride, int64_t count) {
#pragma unroll
  for (int k = 0; k < KEPT; ++k) {
    to[k] = Chunk<T, N>{};
    if (first + k * stride < count) to[k] = load_whole(from + first + k * stride);
  }
}

template <typename Norm, typename T, int N>
__device__ void store_chunks(Chunk<T, N>* to, const Chunk<T, N> (&x)[KEPT], float s,
                             const Matrix<T, N>& m, int64_t first, int stride) {
#pragma unroll
  for (int k = 0; k < KEPT; ++k) {
    const int64_t c = first + k * stride;
    if (c < m.chunks) to[c] = scaled_chunk<Norm>(x[k], s, weight_at<Norm>(m, c));
  }
}

template <typename Norm, typename T, int N>
__global__ void __launch_bounds__(MAX_BLOCK) norm_any_row_kernel(Matrix<T, N> m) {
  __shared__ float sums[MAX_BLOCK / 32];
  const int64_t row = blockIdx.x;
  const Chunk<T, N>* const x = m.x + row * m.chunks;
  Chunk<T, N>* const y = m.y + row * m.chunks;
  const int first = threadIdx.x, stride = blockDim.x;
  const int64_t step = int64_t{KEPT} * stride;

  Chunk<T, N> kept[KEPT];
  load_chunks(kept, x, first, stride, m.chunks);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < KEPT; ++k) sum = add_terms<Norm>(sum, kept[k]);
#pragma unroll 4
  for (int64_t c = first + step; c < m.chunks; c += stride) {
    sum = add_terms<Norm>(sum, load_whole(x + c));
  }

  const float s = Norm::scale(sum_of_block(sum, sums), m.cols(), m.eps);
  if (first == 0) m.scale[row] = s;
  store_chunks<Norm>(y, kept, s, m, first, stride);
  for (int64_t c = first + step; c < m.chunks; c += step) {  // these are read again
    load_chunks(kept, x, c, stride, m.chunks);
    store_chunks<Norm>(y, kept, s, m, c, stride);
  }
}

template <typename Norm>
Results norm_any_row(const Tensor& x, const Tensor* weight, double eps) {
  return normalise(x, weight, eps, "norm_any_row", [&](auto m) {
    const int64_t warps = std::clamp<int64_t>(ceil_div<int64_t>(m.chunks, 32 * KEPT), 1, 32);
    const int threads = static_cast<int>(32 * warps);
    norm_any_row_kernel<Norm><<<grid_size(m.rows, "x"), threads, 0, current_stream(x)>>>(m);
  });
}

// ---------------------------------------------------------------------------------------------
// v5 against the main line's v4: no thread loads or stores x or y. A warp has 4 KB of the row, and
// a lane starts the bulk copy (day 55) that brings them. The warp scales them where they are, and a
// lane starts the copy back. The blocks of a cluster share a row above 64 KB, as in day 35.

constexpr int BULK_BLOCK = 512;                  // threads
constexpr int EACH = 8;                          // chunks per thread
constexpr int BLOCK_CHUNKS = BULK_BLOCK * EACH;  // of a row, at most: 64 KB
constexpr int WARP_CHUNKS = 32 * EACH;
constexpr int MAX_CLUSTER = 16;  // blocks; more than 8 are not portable

// Older cards do not run this kernel, and have no instructions for some of its parts.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_BULK_COPIES 1
#endif

// KEPT chunks of the weight: first, first + 32 … of `count`. They are loaded ahead of the stores:
// y and weight could overlap, as far as the compiler knows, and each load would wait for a store.
template <typename Norm, typename T, int N>
__device__ void load_weight(RawChunk<Chunk<T, N>> (&to)[KEPT], const Chunk<T, N>* weight, int first,
                            int count) {
  if constexpr (!Norm::WEIGHTED) return;
#pragma unroll
  for (int k = 0; k < KEPT; ++k) {
    if (first + k * 32 < count) to[k] = load_raw(weight + first + k * 32);
  }
}

// Blocks of `length` chunks of a row each.
template <typename Norm, typename T, int N, bool CLUSTER>
__global__ void __launch_bounds__(BULK_BLOCK, 3) norm_v5_bulk_kernel(Matrix<T, N> m, int length) {
#ifdef HAS_BULK_COPIES
  extern __shared__ __align__(128) char memory[];
  __shared__ float sums[(CLUSTER ? MAX_CLUSTER : 1) * BULK_BLOCK / 32];  // of all warps
  __shared__ uint64_t arrived[BULK_BLOCK / 32];                          // a warp's part of the row
  __shared__ uint64_t sums_arrived;                                      // mbarriers
  const int blocks = CLUSTER ? ptx::cluster_size() : 1;
  const int rank = CLUSTER ? ptx::cluster_block_rank() : 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int64_t row = blockIdx.x / blocks;
  // This warp's chunks of the row: `count` from `first` on.
  const int first = rank * length + warp * WARP_CHUNKS;
  const int end = min((rank + 1) * length, static_cast<int>(m.chunks));
  const int count = max(0, min(end - first, WARP_CHUNKS));
  const int64_t start = row * m.chunks + first;
  auto* const part = reinterpret_cast<Chunk<T, N>*>(memory) + warp * WARP_CHUNKS;

  if (lane == 0 && count > 0) {
    ptx::mbarrier_init(&arrived[warp], 1);
    ptx::fence_mbarrier_init();  // before the copy uses it
    ptx::mbarrier_arrive_expect_bytes(&arrived[warp], count * 16);
    ptx::copy_bulk(part, m.x + start, count * 16, &arrived[warp]);
  }
  RawChunk<Chunk<T, N>> weight[KEPT];
  load_weight<Norm>(weight, m.weight + first, lane, count);
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
    sum = sum_of_block(sum, sums);
  }
  const float s = Norm::scale(sum, m.cols(), m.eps);
  if (threadIdx.x == 0 && rank == 0) m.scale[row] = s;

#pragma unroll
  for (int from = 0; from < EACH; from += KEPT) {
    if (from > 0) load_weight<Norm>(weight, m.weight + first, lane + from * 32, count);
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
      const int i = lane + (from + k) * 32;
      if (i >= count) break;
      part[i] = scaled_chunk<Norm>(load_whole(part + i), s, weight[k].chunk());
    }
  }
  ptx::fence_proxy_async();  // what this lane wrote, before it is copied …
  __syncwarp();              // … and what the other lanes wrote
  if (lane == 0 && count > 0) {
    ptx::store_bulk(m.y + start, part, count * 16);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();  // the block's memory may go
  }
#endif
}

// Chunks of 16 bytes of a row if it is made of aligned ones, else 0.
int64_t chunks_of(const Tensor& x, const Tensor* weight) {
  const int64_t bytes = x.size(1) * x.element_size();
  const bool whole = bytes % 16 == 0 && is_aligned(x, 16) && (!weight || is_aligned(*weight, 16));
  return whole ? bytes / 16 : 0;
}

// How v5 takes rows of so many chunks.
struct BulkShape {
  int64_t blocks = 1;  // per row, a power of two
  int length;          // chunks of a row per block
  int threads, bytes;
  bool fits;

  BulkShape(const Tensor& x, int64_t chunks) {
    while (blocks < MAX_CLUSTER && chunks > blocks * BLOCK_CHUNKS) blocks *= 2;
    length = static_cast<int>(std::min<int64_t>(ceil_div(chunks, blocks), BLOCK_CHUNKS));
    threads = 32 * ceil_div(length, WARP_CHUNKS);
    bytes = length * 16;
    const int64_t warps = BULK_BLOCK / 32, sums = blocks > 1 ? MAX_CLUSTER * warps : warps;
    fits = chunks > 0 && chunks <= blocks * BLOCK_CHUNKS &&
           shared_memory_fits(x, 4 * sums + 8 * (warps + 1), bytes);
  }
};

template <typename Norm>
Results norm_bulk(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  require_capability(9, 0, "bulk copies");
  const BulkShape shape(x, chunks_of(x, weight));
  if (!shape.fits) {
    fell_back("norm_any_row", "a row above 1 MB, or not of aligned chunks");
    return norm_any_row<Norm>(x, weight, eps);
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
// v6: one launcher that chooses. Two blocks of any_row are resident with up to 32 KB of a row each,
// but only one with more.

constexpr int REGISTER_CHUNKS = MAX_BLOCK / 2 * KEPT;  // 32 KB

template <typename Norm>
Results norm_chosen(const Tensor& x, const Tensor* weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  const int64_t chunks = chunks_of(x, weight);
  const bool bulk = chunks > REGISTER_CHUNKS && has_capability(9, 0) && BulkShape(x, chunks).fits;
  return bulk ? norm_bulk<Norm>(x, weight, eps) : norm_any_row<Norm>(x, weight, eps);
}

// ---------------------------------------------------------------------------------------------

Results rms_norm_any_row(const Tensor& x, const Tensor& weight, double eps) {
  return norm_any_row<Rms>(x, &weight, eps);
}
Results rms_norm_v5_bulk(const Tensor& x, const Tensor& weight, double eps) {
  return norm_bulk<Rms>(x, &weight, eps);
}
Results rms_norm_v4_shared(const Tensor& x, const Tensor& weight, double eps);  // of rms_norm.cu

Results rms_norm_v6_chosen(const Tensor& x, const Tensor& weight, double eps) {
  check(x, "x").on_gpu().rank(2);  // normalise checks the rest
  const DeviceGuard guard(x);
  const int64_t chunks = chunks_of(x, &weight);
  if (chunks > REGISTER_CHUNKS && chunks <= BLOCK_CHUNKS && has_capability(8, 0) &&
      !has_capability(9, 0)) {
    return rms_norm_v4_shared(x, weight, eps);
  }
  return norm_chosen<Rms>(x, &weight, eps);
}
Results l1_norm(const Tensor& x, double eps) {
  return norm_chosen<L1>(x, nullptr, eps);
}
Results l2_norm(const Tensor& x, double eps) {
  return norm_chosen<L2>(x, nullptr, eps);
}

#define RMS_NORM "(Tensor x, Tensor weight, float eps=1e-6) -> (Tensor, Tensor)"
RUNG(day44, rms_norm_any_row, RMS_NORM);
RUNG(day44, rms_norm_v5_bulk, RMS_NORM);
RUNG(day44, rms_norm_v6_chosen, RMS_NORM);
RUNG(day44, l1_norm, "(Tensor x, float eps=1e-12) -> (Tensor, Tensor)");
RUNG(day44, l2_norm, "(Tensor x, float eps=1e-12) -> (Tensor, Tensor)");

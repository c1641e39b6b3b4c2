// Day 35: softmax at the speed of light
//
//   y[r, c] = exp(x[r, c] - m[r]) / sum_c exp(x[r, c] - m[r])      m[r] = max_c x[r, c]
//
// x, y: (rows, cols) in fp32, fp16 or bf16. Bytes: 2 · rows · cols · sizeof(T), if each row is read
// once. Operations: 10 to 15 per element of 16 bits, with one exponential where it is kept (v1, v2)
// and two where it is computed again.
//
//   v1 warp      one warp per row, the row in its registers: rows of up to 2 KB, no barrier
//   v2 block     one block per row, the row in its registers: rows of up to 64 KB, one barrier
//   v3 online    one block per row, the row read twice: rows of any length
//   v4 shared    one block per row, the row in shared memory: up to 128 KB
//   v5 cluster   up to 16 blocks per row, in the shared memory of all of them: up to 1 MB
//   v6 chosen    the fastest of these for the shape, the alignment and the card
//
// Run: python run_day.py 35

#include "common/cuda/binding.cuh"         // taught in day 6
#include "common/cuda/capability.cuh"      // taught in day 24
#include "common/cuda/chunk.cuh"           // 16 bytes or one element; new here
#include "common/cuda/cluster_launch.cuh"  // new here
#include "common/cuda/ptx.cuh"             // cp.async: day 20; clusters: day 34
#include "common/cuda/shared_memory.cuh"   // taught in day 15
#include "common/cuda/tensor.cuh"          // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"     // taught in day 23

#include <algorithm>
#include <cstdint>
#include <type_traits>

// Packs of 16 bytes per thread, all loaded before the first is used. They become 32 exponentials in
// fp32. With 64 registers per thread, a multiprocessor holds 1024 threads: 64 KB in flight.
constexpr int PACKS = 4;
constexpr int WARP_BLOCK = 128;  // v1: 4 rows per block
constexpr int MAX_BLOCK = 1024;
constexpr float LOG2_E = 1.44269504f;

// ---------------------------------------------------------------------------------------------
// What all rungs share: a thread's part of a row, and pairs of maximum and sum.

// The maximum of some elements, and the sum of their exponentials relative to it.
struct Partial {
  float max, sum;
};

// exp(x - max), times 2^64 in 16-bit types. The sum that softmax divides by has the same factor.
// Without it, ex2.approx.ftz would return 0 for results below 2^-126, which bf16 can hold.
template <typename T>
__device__ float exponential(float x, float max) {
  if constexpr (sizeof(T) == 4) return expf(x - max);
  return ptx::exp2_approx(fmaf(x - max, LOG2_E, 64.0f));
}

// The scale from a sum relative to `from` to one relative to `to`, which is not smaller.
__device__ inline float rescale(float from, float to) {
  return expf(from - to);
}

// COUNT chunks of a row: first, first + stride …
template <typename T, int N, int COUNT>
struct Part {
  float v[COUNT][N];

  __device__ void set(int k, const Chunk<T, N>& chunk) {
    for (int i = 0; i < N; ++i) v[k][i] = static_cast<float>(chunk.at[i]);
  }

  // What stands beyond the end of a row: -inf adds nothing to the sum.
  static __device__ Chunk<T, N> nothing() {
    Chunk<T, N> chunk;
    for (int i = 0; i < N; ++i) chunk.at[i] = static_cast<T>(-INFINITY);
    return chunk;
  }

  // row: `count` chunks. All loads are issued before the first result is used.
  template <typename Index>
  __device__ void load(const Chunk<T, N>* row, Index first, int stride, Index count) {
    Chunk<T, N> loaded[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      loaded[k] = nothing();
      if (first + k * stride < count) loaded[k] = row[first + k * stride];
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) set(k, loaded[k]);
  }

  __device__ float maximum() const {
    float max = -INFINITY;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      for (int i = 0; i < N; ++i) max = fmaxf(max, v[k][i]);
    }
    return max;
  }

  // Replaces the elements by their exponentials, and returns the sum of these. Where the maximum is
  // -inf, 0 is subtracted instead, for exponentials of 0: -inf - -inf would be NaN.
  __device__ float exponentials(float max) {
    const float base = max == -INFINITY ? 0.0f : max;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      for (int i = 0; i < N; ++i) sum += v[k][i] = exponential<T>(v[k][i], base);
    }
    return sum;
  }

  // Stores exponentials · scale · shrink. Two factors, because their product can be less than the
  // smallest fp32 number where the result is not.
  template <typename Index>
  __device__ void store(Chunk<T, N>* row, float scale, float shrink, Index first, int stride,
                        Index count) const {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      Chunk<T, N> chunk;
      for (int i = 0; i < N; ++i) chunk.at[i] = static_cast<T>(v[k][i] * scale * shrink);
      if (first + k * stride < count) row[first + k * stride] = chunk;
    }
  }
};

// The parts of all 32 lanes as one pair, in every lane. All 32 lanes must call it.
template <typename P>
__device__ Partial warp_partial(P& part) {
  const float max = warp_max(part.maximum());
  return {max, warp_sum(part.exponentials(max))};
}

// One pair for `count` pairs in shared memory, in every lane. All 32 lanes must call it. All warps
// add in the same order, so they get equal bits. A row whose maximum is -inf or +inf gets a sum
// of NaN, as in PyTorch.
__device__ inline Partial merge_all(const Partial* pairs, int count) {
  const int lane = threadIdx.x % 32;
  float max = -INFINITY, sum = 0;
  for (int i = lane; i < count; i += 32) max = fmaxf(max, pairs[i].max);
  max = warp_max(max);
  for (int i = lane; i < count; i += 32) sum += pairs[i].sum * rescale(pairs[i].max, max);
  return {max, warp_sum(sum)};
}

// Whether the rows of x are made of aligned packs of 16 bytes.
bool has_packs(const Tensor& x) {
  return x.size(1) * x.element_size() % 16 == 0 && is_aligned(x, 16);
}

void check_rows(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
}

Tensor softmax_v3_online(const Tensor& x);

// ---------------------------------------------------------------------------------------------
// v1: one warp per row. No shared memory, no barrier.

template <typename T, int N, int COUNT>
__global__ void __launch_bounds__(WARP_BLOCK)
    softmax_v1_warp_kernel(const Chunk<T, N>* __restrict__ x, Chunk<T, N>* __restrict__ y,
                           int64_t rows, int chunks) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * WARP_BLOCK + threadIdx.x) / 32;
  if (row >= rows) return;  // the whole warp

  Part<T, N, COUNT> part;
  part.load(x + row * chunks, lane, 32, chunks);
  const Partial all = warp_partial(part);
  part.store(y + row * chunks, 1.0f / all.sum, 1.0f, lane, 32, chunks);  // all -inf: 0 · inf = NaN
}

// Rows that v1 takes: of up to PACKS packs per lane, or of 32 single elements per lane.
bool fits_warp(const Tensor& x) {
  const int64_t bytes = x.size(1) * x.element_size();
  return has_packs(x) ? bytes <= 32 * PACKS * 16 : x.size(1) <= 32 * 32;
}

template <typename T, int N, int COUNT>
void launch_warps(const Tensor& x, T* y) {
  using C = Chunk<T, N>;
  const unsigned blocks = grid_size(ceil_div<int64_t>(x.size(0), WARP_BLOCK / 32), "x");
  softmax_v1_warp_kernel<T, N, COUNT><<<blocks, WARP_BLOCK, 0, current_stream(x)>>>(
      data<C>(x), reinterpret_cast<C*>(y), x.size(0), static_cast<int>(x.size(1) / N));
}

Tensor softmax_v1_warp(const Tensor& x) {
  check_rows(x);
  if (!fits_warp(x)) {
    fell_back("softmax_v3_online", "a row too long for the registers of a warp");
    return softmax_v3_online(x);
  }
  return output_like(x, "softmax_v1_warp", [&](auto zero, auto* y) {
    using T = decltype(zero);
    constexpr int N = 16 / sizeof(T);
    const int64_t cols = x.size(1);
    if (!has_packs(x)) {
      return cols <= 128 ? launch_warps<T, 1, 4>(x, y) : launch_warps<T, 1, 32>(x, y);
    }
    if (cols <= 32 * N) return launch_warps<T, N, 1>(x, y);
    if (cols <= 64 * N) return launch_warps<T, N, 2>(x, y);
    launch_warps<T, N, PACKS>(x, y);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: as many warps as the row needs, PACKS per lane. Each warp leaves one pair of
// maximum and sum in shared memory, and after one barrier every warp merges them all.

template <typename T, int N>
__global__ void __launch_bounds__(MAX_BLOCK)
    softmax_v2_block_kernel(const Chunk<T, N>* __restrict__ x, Chunk<T, N>* __restrict__ y,
                            int chunks) {
  __shared__ Partial pairs[MAX_BLOCK / 32];
  const int64_t start = int64_t{blockIdx.x} * chunks;
  const int first = threadIdx.x, stride = blockDim.x;

  Part<T, N, PACKS> part;
  part.load(x + start, first, stride, chunks);
  const Partial mine = warp_partial(part);
  if (threadIdx.x % 32 == 0) pairs[threadIdx.x / 32] = mine;
  __syncthreads();  // every warp waits for the pairs of all warps
  const Partial all = merge_all(pairs, stride / 32);
  part.store(y + start, 1.0f / all.sum, rescale(mine.max, all.max), first, stride, chunks);
}

// Threads of a block that takes so many packs of a row.
int threads_for(int64_t packs) {
  return static_cast<int>(32 * ceil_div<int64_t>(packs, 32 * PACKS));
}

bool fits_block(const Tensor& x) {
  return has_packs(x) && x.size(1) * x.element_size() <= MAX_BLOCK * PACKS * 16;
}

constexpr char NO_BLOCK[] = "a row above 64 KB, or rows that are not made of aligned packs";

Tensor softmax_v2_block(const Tensor& x) {
  check_rows(x);
  if (!fits_block(x)) {
    fell_back("softmax_v3_online", NO_BLOCK);
    return softmax_v3_online(x);
  }
  return output_like(x, "softmax_v2_block", [&](auto zero, auto* y) {
    using T = decltype(zero);
    using C = Chunk<T, 16 / sizeof(T)>;
    const int packs = static_cast<int>(x.size(1) * sizeof(T) / 16);
    softmax_v2_block_kernel<<<grid_size(x.size(0), "x"), threads_for(packs), 0,
                              current_stream(x)>>>(data<C>(x), reinterpret_cast<C*>(y), packs);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the row is not kept. Each thread updates its maximum and sum PACKS chunks at a
// time (day 5), and after the merge the row is read again: from L2, if it is still there.

// Adds a part to the pair of those before; its elements become exponentials.
template <typename P>
__device__ void absorb(Partial& mine, P& part) {
  const float max = fmaxf(mine.max, part.maximum());
  const float shrink = max == mine.max ? 1.0f : rescale(mine.max, max);  // -inf - -inf is NaN
  mine = {max, mine.sum * shrink + part.exponentials(max)};
}

// The pairs of all 32 lanes as one, in every lane. All 32 lanes must call it.
__device__ inline Partial warp_merge(Partial mine) {
  const float max = warp_max(mine.max);
  const float shrink = max == mine.max ? 1.0f : rescale(mine.max, max);
  return {max, warp_sum(mine.sum * shrink)};
}

template <typename T, int N>
__global__ void __launch_bounds__(MAX_BLOCK)
    softmax_v3_online_kernel(const Chunk<T, N>* __restrict__ x, Chunk<T, N>* __restrict__ y,
                             int64_t chunks) {
  __shared__ Partial pairs[MAX_BLOCK / 32];
  const int64_t start = blockIdx.x * chunks;
  constexpr int COUNT = N == 1 ? 16 : PACKS;  // rows that are not aligned: 16 loads in flight
  const int stride = blockDim.x;
  const int64_t step = int64_t{stride} * COUNT;

  Partial mine{-INFINITY, 0};
  Part<T, N, COUNT> part;
  for (int64_t c = threadIdx.x; c < chunks; c += step) {
    part.load(x + start, c, stride, chunks);
    absorb(mine, part);
  }
  mine = warp_merge(mine);
  if (threadIdx.x % 32 == 0) pairs[threadIdx.x / 32] = mine;
  __syncthreads();  // every warp waits for the pairs of all warps
  const Partial all = merge_all(pairs, stride / 32);

  const float scale = 1.0f / all.sum;
  for (int64_t c = threadIdx.x; c < chunks; c += step) {
    part.load(x + start, c, stride, chunks);
    part.exponentials(all.max);
    part.store(y + start, scale, 1.0f, c, stride, chunks);
  }
}

template <typename T, int N>
void launch_online(const Tensor& x, T* y) {
  using C = Chunk<T, N>;
  const int64_t chunks = x.size(1) / N;
  softmax_v3_online_kernel<<<grid_size(x.size(0), "x"), std::min(MAX_BLOCK, threads_for(chunks)), 0,
                             current_stream(x)>>>(data<C>(x), reinterpret_cast<C*>(y), chunks);
}

Tensor softmax_v3_online(const Tensor& x) {
  check_rows(x);
  return output_like(x, "softmax_v3_online", [&](auto zero, auto* y) {
    using T = decltype(zero);
    has_packs(x) ? launch_online<T, 16 / sizeof(T)>(x, y) : launch_online<T, 1>(x, y);
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v2: a row waits in shared memory, where cp.async brings it, and the exponentials are
// computed twice. A thread needs few registers, so two blocks with 64 KB each are resident. Of a
// row of 128 KB, a thread keeps one pack in registers: two blocks with 112 KB fit besides.
//
// v5 against v4: the blocks of a cluster share a row. Each warp stores its pair in the shared
// memory of every block of the cluster, whose mbarriers count the bytes that have come.

// The threads of a block, the packs of each, how many of these it keeps in registers, and how many
// blocks are resident.
template <int THREADS_, int EACH_, int KEPT_, int BLOCKS_>
struct Room {
  static constexpr int THREADS = THREADS_, EACH = EACH_, KEPT = KEPT_, BLOCKS = BLOCKS_;
  static constexpr int PACKS = THREADS * EACH;

  static int threads(int64_t packs) {
    return static_cast<int>(32 * ceil_div<int64_t>(packs, 32 * EACH));
  }
  // Of shared memory, for so many packs of a row.
  static int64_t bytes(int64_t packs) {
    return 16 * std::max<int64_t>(0, packs - KEPT * threads(packs));
  }
};
using Half = Room<1024, 4, 0, 2>;   // up to 64 KB of a row
using Whole = Room<1024, 8, 1, 2>;  // up to 128 KB of a row
using Share = Room<512, 8, 0, 2>;   // up to 64 KB of a row, v5
constexpr int MAX_CLUSTER = 16;     // blocks; more than 8 have to be allowed per kernel

// Makes each element of `most` the larger one of the two; 16-bit types by two at a time.
template <typename T, int N>
__device__ void take_larger(Chunk<T, N>& most, const Chunk<T, N>& other) {
  if constexpr (sizeof(T) == 2) {
    using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    for (int i = 0; i < N; i += 2) {
      Two a = *reinterpret_cast<const Two*>(&most.at[i]);
      a = __hmax2(a, *reinterpret_cast<const Two*>(&other.at[i]));
      *reinterpret_cast<Two*>(&most.at[i]) = a;
    }
  } else {
    for (int i = 0; i < N; ++i) most.at[i] = fmaxf(most.at[i], other.at[i]);
  }
}

// Blocks of `length` packs of a row each; EACH: packs per thread, one after the other. A thread
// reads only what it copied itself, so no barrier has to come before that.
template <typename T, typename R, bool CLUSTER>
__global__ void __launch_bounds__(R::THREADS, R::BLOCKS)
    softmax_shared_kernel(const Chunk<T, 16 / sizeof(T)>* __restrict__ x,
                          Chunk<T, 16 / sizeof(T)>* __restrict__ y, int packs, int length) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int N = 16 / sizeof(T), WARPS = R::THREADS / 32;  // at most
  constexpr int EACH = R::EACH, KEPT = R::KEPT;
  extern __shared__ __align__(128) char memory[];
  __shared__ Partial pairs[CLUSTER ? MAX_CLUSTER * WARPS : WARPS];
  __shared__ uint64_t arrived;  // v5: the mbarrier of the pairs
  const int rank = CLUSTER ? ptx::cluster_block_rank() : 0;
  const int blocks = CLUSTER ? ptx::cluster_size() : 1;
  const int first = threadIdx.x, stride = blockDim.x;
  const int lane = first % 32, warp = first / 32, warps = stride / 32;
  const int count = min(length, packs - rank * length);
  const int64_t start = int64_t{blockIdx.x / blocks} * packs + rank * length;

  // The packs from KEPT on, where pack k of this thread is row[first + k * stride].
  auto* const row = reinterpret_cast<Chunk<T, N>*>(memory) - KEPT * stride;
#pragma unroll
  for (int k = KEPT; k < EACH; ++k) {
    const int c = first + k * stride;
    if (c < count) ptx::cp_async<16>(row + c, x + start + c);
  }
  ptx::cp_async_commit();
  Chunk<T, N> kept[KEPT + 1];  // one more: an array has at least one element
#pragma unroll
  for (int k = 0; k < KEPT; ++k) {
    if (first + k * stride < count) kept[k] = load_whole(x + start + first + k * stride);
  }
  const auto pack = [&](int k) {
    return k < KEPT ? kept[k] : load_whole(row + first + k * stride);
  };
  if constexpr (CLUSTER) {
    if (first == 0) {
      ptx::mbarrier_init(&arrived, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_bytes(&arrived, blocks * warps * sizeof(Partial));
    }
    ptx::cluster_arrive_relaxed();  // this block has begun, and its mbarrier is ready
  }
  ptx::cp_async_wait_all();

  using P = Part<T, N, 1>;
  Chunk<T, N> most = P::nothing();
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    if (first + k * stride < count) take_larger(most, pack(k));
  }
  P part;
  part.set(0, most);
  Partial mine{warp_max(part.maximum()), 0};
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    if (first + k * stride >= count) break;
    part.set(0, pack(k));
    mine.sum += part.exponentials(mine.max);
  }
  mine.sum = warp_sum(mine.sum);
  if constexpr (CLUSTER) {
    ptx::cluster_wait();  // all blocks have begun: their shared memory may be used
    if (lane < blocks) {
      auto* to = reinterpret_cast<uint32_t*>(&pairs[rank * warps + warp]);
      ptx::store_async_to_rank(to, lane, __float_as_uint(mine.max), &arrived);
      ptx::store_async_to_rank(to + 1, lane, __float_as_uint(mine.sum), &arrived);
    }
    ptx::mbarrier_wait(&arrived, 0);  // the pairs of all blocks have come
  } else {
    if (lane == 0) pairs[warp] = mine;
    __syncthreads();  // every warp waits for the pairs of all warps
  }
  const Partial all = merge_all(pairs, blocks * warps);
  const float scale = 1.0f / all.sum;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    if (first + k * stride >= count) break;
    part.set(0, pack(k));
    part.exponentials(all.max);
    part.store(y + start, scale, 1.0f, first + k * stride, stride, count);
  }
#endif
}

constexpr char NO_SHARED[] = "a row too long for shared memory, or not made of aligned packs";

int64_t packs_of(const Tensor& x) {
  return x.size(1) * x.element_size() / 16;
}

// Whether this GPU has room for so many packs of each row in a block, beside `pairs`.
template <typename R>
bool fits_shared(const Tensor& x, int64_t packs, int64_t pairs) {
  const int64_t own = pairs * static_cast<int64_t>(sizeof(Partial)) + 8;
  return has_packs(x) && packs <= R::PACKS && shared_memory_fits(x, own, R::bytes(packs));
}

bool fits_half(const Tensor& x) {
  return fits_shared<Half>(x, packs_of(x), Half::THREADS / 32);
}
bool fits_block_memory(const Tensor& x) {
  return fits_half(x) || fits_shared<Whole>(x, packs_of(x), Whole::THREADS / 32);
}

template <typename R>
Tensor softmax_in_shared(const Tensor& x) {
  return output_like(x, "softmax_v4_shared", [&](auto zero, auto* y) {
    using T = decltype(zero);
    using C = Chunk<T, 16 / sizeof(T)>;
    const auto kernel = softmax_shared_kernel<T, R, false>;
    const int packs = static_cast<int>(packs_of(x));
    const auto bytes = static_cast<int>(R::bytes(packs));
    allow_shared(kernel, bytes);
    kernel<<<grid_size(x.size(0), "x"), R::threads(packs), bytes, current_stream(x)>>>(
        data<C>(x), reinterpret_cast<C*>(y), packs, packs);
  });
}

Tensor softmax_v4_shared(const Tensor& x) {
  check_rows(x);
  const DeviceGuard guard(x);
  require_capability(8, 0, "cp.async");
  if (!fits_block_memory(x)) {
    fell_back("softmax_v3_online", NO_SHARED);
    return softmax_v3_online(x);
  }
  return fits_half(x) ? softmax_in_shared<Half>(x) : softmax_in_shared<Whole>(x);
}

// The smallest power of two of blocks that hold a row, or MAX_CLUSTER; st.async needs two.
int64_t cluster_for(int64_t packs) {
  int64_t blocks = 2;
  while (blocks < MAX_CLUSTER && packs > blocks * Share::PACKS) blocks *= 2;
  return blocks;
}

bool fits_cluster(const Tensor& x) {
  const int64_t packs = packs_of(x);
  return fits_shared<Share>(x, ceil_div(packs, cluster_for(packs)),
                            MAX_CLUSTER * Share::THREADS / 32);
}

// Shared memory that leaves no room for a third block of up to 64 KB. Two are a little faster on an
// H200, unless they wait for many others.
constexpr int64_t TWO_RESIDENT = 80 << 10;

Tensor softmax_v5_cluster(const Tensor& x) {
  check_rows(x);
  const DeviceGuard guard(x);
  require_capability(9, 0, "clusters");
  if (!fits_cluster(x)) {
    fell_back("softmax_v3_online", NO_SHARED);
    return softmax_v3_online(x);
  }
  return output_like(x, "softmax_v5_cluster", [&](auto zero, auto* y) {
    using T = decltype(zero);
    using C = Chunk<T, 16 / sizeof(T)>;
    const auto kernel = softmax_shared_kernel<T, Share, true>;
    const int packs = static_cast<int>(packs_of(x)), blocks = static_cast<int>(cluster_for(packs));
    const int length = ceil_div(packs, blocks);  // packs per block
    int64_t bytes = Share::bytes(length);
    if (blocks <= 4 && length > Share::PACKS / 2) bytes = std::max(bytes, TWO_RESIDENT);
    launch_clusters(kernel, grid_size(x.size(0) * blocks, "x"), blocks, Share::threads(length),
                    bytes, current_stream(x), data<C>(x), reinterpret_cast<C*>(y), packs, length);
  });
}

// ---------------------------------------------------------------------------------------------
// v6: one launcher that chooses: registers up to 32 KB, of a warp up to 1 KB and of a block above,
// shared memory up to 64 KB, a cluster above, and v3 where nothing holds the row. Without clusters,
// shared memory holds up to 128 KB.

Tensor softmax_v6_chosen(const Tensor& x) {
  check_rows(x);
  const DeviceGuard guard(x);
  if (fits_warp(x) && (!fits_block(x) || packs_of(x) <= 64)) return softmax_v1_warp(x);
  if (fits_block(x) && packs_of(x) <= 2048) return softmax_v2_block(x);
  const bool clusters = has_capability(9, 0) && fits_cluster(x);
  if (has_capability(8, 0) && (clusters ? fits_half(x) : fits_block_memory(x))) {
    return softmax_v4_shared(x);
  }
  if (clusters) return softmax_v5_cluster(x);
  return fits_block(x) ? softmax_v2_block(x) : softmax_v3_online(x);
}

// ---------------------------------------------------------------------------------------------

RUNG(day35, softmax_v1_warp, "(Tensor x) -> Tensor");
RUNG(day35, softmax_v2_block, "(Tensor x) -> Tensor");
RUNG(day35, softmax_v3_online, "(Tensor x) -> Tensor");
RUNG(day35, softmax_v4_shared, "(Tensor x) -> Tensor");
RUNG(day35, softmax_v5_cluster, "(Tensor x) -> Tensor");
RUNG(day35, softmax_v6_chosen, "(Tensor x) -> Tensor");

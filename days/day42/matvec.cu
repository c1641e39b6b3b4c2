// Day 42: matrix-vector products, y = A · x
//
//   y[m] = sum_k A[m, k] · x[k]        A: (M, K), x: (K,), y: (M,) in fp32, fp16 or bf16
//
// Bytes: (M · K + M + K) · sizeof(T). Operations: 2 · M · K, at most one per byte: memory-bound.
// What decides is how many bytes are in flight at once.
//
//   v1 thread    one thread per row: the lanes of a warp read far apart
//   v2 warp      one warp per row: coalesced, four packs of 16 bytes in flight per lane
//   v3 block     one block per row: more bytes in flight where rows are few
//   v4 split_k   several blocks per row; a second kernel adds up their partial sums
//   v5 rows      4 or 8 rows per group of 8 to 32 lanes: short rows, and x is loaded once for all
//   v6 cluster   the blocks of a cluster share 4 rows: split-K in one launch
//   v7 chosen    v3 or v5 where rows are many, v6 or v4 where they are few
//
// y = Aᵀ · x is in matvec_transposed.cu. Run: python run_day.py 42

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // clusters: day 34
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"      // taught in day 23
#include "days/day42/chunk.cuh"

#include <algorithm>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;

// ---------------------------------------------------------------------------------------------
// What all rungs share.

// A product to compute, with rows of `chunks` chunks of N elements.
template <typename T, int N>
struct Product {
  const Chunk<T, N>* a;  // (rows, chunks)
  const Chunk<T, N>* x;  // (chunks,)
  T* y;                  // (rows,)
  int64_t rows, chunks;
};

// sum[r] += the products of row[r] and x at the chunks k, k + stride … below end. ROWS · STEPS
// loads of A are issued before the first is used, and each chunk of x is loaded once for all rows.
template <int STEPS, int ROWS, typename T, int N>
__device__ void multiply_rows(float (&sum)[ROWS], const Chunk<T, N>* const (&row)[ROWS],
                              const Chunk<T, N>* __restrict__ x, int64_t k, int stride,
                              int64_t end) {
  for (; k + (STEPS - 1) * stride < end; k += STEPS * stride) {
    Chunk<T, N> from_a[STEPS][ROWS], from_x[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      from_x[s] = x[k + s * stride];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) from_a[s][r] = row[r][k + s * stride];
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) multiply_add(sum[r], from_a[s][r], from_x[s]);
    }
  }
  if (STEPS == 1) return;
  for (; k < end; k += stride) {  // fewer than STEPS chunks are left for this thread
    const Chunk<T, N> from_x = x[k];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) multiply_add(sum[r], row[r][k], from_x);
  }
}

// Checks a (M, K) and x (K,), allocates y (M,), and calls launch(product).
template <typename Launch>
Tensor multiply(const Tensor& a, const Tensor& x, const char* kernel, Launch&& launch) {
  check(a, "a").on_gpu().floating().rank(2).contiguous();
  check(x, "x").on_gpu().dtype({a.scalar_type()}).rank(1).contiguous();
  check(x, "x").same_device(a, "a").size(0, a.size(1));
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), K = a.size(1);
  Tensor y = allocate(a, {M});
  if (M == 0) return y;
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(K, {&a, &x}, [&](auto size) {
      using C = Chunk<T, size>;
      launch(Product<T, size>{data<C>(a), data<C>(x), mutable_data<T>(y), M, K / size});
    });
  });
  check_launch(kernel);
  return y;
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per row. At each step a warp reads one element of each of 32 rows, and uses only
// these bytes of 32 sectors.

// Terms that are added up before the next ones: a single accumulator for a whole row would round
// once per term, always to the precision of the large sum.
constexpr int64_t RUN = 256;

template <typename T>
__global__ void matvec_v1_thread_kernel(const T* __restrict__ a, const T* __restrict__ x,
                                        T* __restrict__ y, int64_t M, int64_t K) {
  const int64_t m = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (m >= M) return;
  float sum = 0;
  for (int64_t begin = 0; begin < K; begin += RUN) {
    float of_run = 0;
    const int64_t end = min(begin + RUN, K);
    for (int64_t k = begin; k < end; ++k) {
      of_run += static_cast<float>(a[m * K + k]) * static_cast<float>(x[k]);
    }
    sum += of_run;
  }
  y[m] = static_cast<T>(sum);
}

Tensor matvec_v1_thread(const Tensor& a, const Tensor& x) {
  return multiply(a, x, "matvec_v1_thread", [&](auto p) {
    const unsigned grid = grid_size(ceil_div<int64_t>(p.rows, BLOCK), "a");
    matvec_v1_thread_kernel<<<grid, BLOCK, 0, current_stream(a)>>>(p.a->at, p.x->at, p.y, p.rows,
                                                                   a.size(1));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one warp per row. The lanes read adjacent chunks of 16 bytes, four each before
// they multiply: 2 KB in flight per warp.

constexpr int STEPS = 4;

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK) matvec_v2_warp_kernel(Product<T, N> p) {
  const int lane = threadIdx.x % 32;
  const int64_t m = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (m >= p.rows) return;  // the whole warp
  const Chunk<T, N>* const row[] = {p.a + m * p.chunks};
  float sum[1] = {};
  multiply_rows<STEPS>(sum, row, p.x, lane, 32, p.chunks);
  const float total = warp_sum(sum[0]);
  if (lane == 0) p.y[m] = static_cast<T>(total);
}

Tensor matvec_v2_warp(const Tensor& a, const Tensor& x) {
  return multiply(a, x, "matvec_v2_warp", [&](auto p) {
    const unsigned grid = grid_size(ceil_div<int64_t>(p.rows, WARPS), "a");
    matvec_v2_warp_kernel<<<grid, BLOCK, 0, current_stream(a)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one block per row. With 128 rows, v2 has 128 warps on the whole GPU; this has
// 1024.

// The sum of all threads' values, in warp 0. All threads of the block must call it, once.
__device__ inline float block_sum(float value) {
  __shared__ float sums[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = warp_sum(value);
  if (lane == 0) sums[warp] = value;
  __syncthreads();  // warp 0 waits for the sums of all warps
  return warp == 0 ? warp_sum(lane < WARPS ? sums[lane] : 0.0f) : 0.0f;
}

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK) matvec_v3_block_kernel(Product<T, N> p) {
  const int64_t m = blockIdx.x;
  const Chunk<T, N>* const row[] = {p.a + m * p.chunks};
  float sum[1] = {};
  multiply_rows<STEPS>(sum, row, p.x, threadIdx.x, BLOCK, p.chunks);
  const float total = block_sum(sum[0]);
  if (threadIdx.x == 0) p.y[m] = static_cast<T>(total);
}

Tensor matvec_v3_block(const Tensor& a, const Tensor& x) {
  return multiply(a, x, "matvec_v3_block", [&](auto p) {
    matvec_v3_block_kernel<<<grid_size(p.rows, "a"), BLOCK, 0, current_stream(a)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: `splits` blocks per row, each with `length` chunks of it, so that any number of
// rows fills the GPU. Sums of fp32 go through a workspace, because blocks cannot wait for others.

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    matvec_v4_split_k_kernel(Product<T, N> p, float* __restrict__ partial, int splits,
                             int64_t length) {
  const int64_t m = blockIdx.x / splits;
  const int64_t begin = blockIdx.x % splits * length;
  const Chunk<T, N>* const row[] = {p.a + m * p.chunks};
  float sum[1] = {};
  multiply_rows<STEPS>(sum, row, p.x, begin + threadIdx.x, BLOCK, min(begin + length, p.chunks));
  const float total = block_sum(sum[0]);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

// y[m] = the sum of partial[m], (rows, splits): one warp per row, always in the same order.
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    add_splits_kernel(const float* __restrict__ partial, T* __restrict__ y, int64_t rows,
                      int splits) {
  const int lane = threadIdx.x % 32;
  const int64_t m = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (m >= rows) return;  // the whole warp
  float sum = 0;
  for (int s = lane; s < splits; s += 32) sum += partial[m * splits + s];
  const float total = warp_sum(sum);
  if (lane == 0) y[m] = static_cast<T>(total);
}

constexpr int FULL = 8;  // blocks of 256 threads that an H200's multiprocessor holds at most

Tensor matvec_v4_split_k(const Tensor& a, const Tensor& x) {
  return multiply(a, x, "matvec_v4_split_k", [&](auto p) {
    // Enough blocks to fill the GPU, but none with less than one round of loads.
    const int64_t enough = ceil_div<int64_t>(FULL * multiprocessor_count(a), p.rows);
    const int64_t rounds = ceil_div<int64_t>(p.chunks, BLOCK * STEPS);
    const int splits = static_cast<int>(std::max<int64_t>(1, std::min(enough, rounds)));
    const Tensor partial = allocate(a, {p.rows * splits}, ScalarType::Float);
    matvec_v4_split_k_kernel<<<grid_size(p.rows * splits, "a"), BLOCK, 0, current_stream(a)>>>(
        p, mutable_data<float>(partial), splits, ceil_div<int64_t>(p.chunks, splits));
    const unsigned grid = grid_size(ceil_div<int64_t>(p.rows, WARPS), "a");
    add_splits_kernel<<<grid, BLOCK, 0, current_stream(a)>>>(data<float>(partial), p.y, p.rows,
                                                             splits);
  });
}

// ---------------------------------------------------------------------------------------------
// v5 against v2: a group of LANES lanes, not more than a row has chunks, takes ROWS rows at one
// time. ROWS · STEPS chunks are in flight per lane even if a row has only one per lane.

// A warp's rows are adjacent, and each of its loads reads one row per group: GROUPS adjacent rows.
template <int LANES, int ROWS, int STEPS, typename T, int N>
__global__ void __launch_bounds__(BLOCK) matvec_v5_rows_kernel(Product<T, N> p) {
  static_assert(ROWS <= LANES, "lane r of a group stores row r");
  constexpr int GROUPS = 32 / LANES;
  const int lane = threadIdx.x % LANES;  // in its group
  const int64_t warp = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  const int64_t first = warp * (ROWS * GROUPS) + threadIdx.x % 32 / LANES;
  const Chunk<T, N>* row[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {  // beyond the last row: the last one again, and no store
    row[r] = p.a + min(first + r * GROUPS, p.rows - 1) * p.chunks;
  }
  float sum[ROWS] = {};
  multiply_rows<STEPS>(sum, row, p.x, lane, LANES, p.chunks);
  float mine = 0;  // of row `lane` of the group, so that one instruction stores all rows
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    // Distances below LANES stay in the group. All 32 lanes take part.
    for (int half = LANES / 2; half > 0; half /= 2) {
      sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], half);
    }
    if (lane == r) mine = sum[r];
  }
  const int64_t m = first + lane * GROUPS;
  if (lane < ROWS && m < p.rows) p.y[m] = static_cast<T>(mine);
}

template <int LANES, int ROWS, int STEPS, typename T, int N>
void launch_rows(const Tensor& a, const Product<T, N>& p) {
  constexpr int PER_BLOCK = WARPS * (32 / LANES) * ROWS;
  const unsigned grid = grid_size(ceil_div<int64_t>(p.rows, PER_BLOCK), "a");
  matvec_v5_rows_kernel<LANES, ROWS, STEPS><<<grid, BLOCK, 0, current_stream(a)>>>(p);
}

Tensor matvec_v5_rows(const Tensor& a, const Tensor& x) {
  return multiply(a, x, "matvec_v5_rows", [&](auto p) {
    if (p.chunks <= 8) return launch_rows<8, 8, 1>(a, p);
    if (p.chunks <= 16) return launch_rows<16, 8, 1>(a, p);
    if (p.chunks <= 32) return launch_rows<32, 8, 1>(a, p);
    launch_rows<32, 4, 2>(a, p);
  });
}

// ---------------------------------------------------------------------------------------------
// v6 against v4: the blocks that share rows form a cluster, and their sums meet in the shared
// memory of its first block: no workspace, no second launch. A block takes 4 rows, as a warp of v5
// does.

constexpr int CLUSTER = 8;  // blocks: the most that any kernel may have
constexpr int CLUSTER_ROWS = 4;

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK) __cluster_dims__(CLUSTER)
    matvec_v6_cluster_kernel(Product<T, N> p, int64_t length) {
  __shared__ float parts[CLUSTER_ROWS][CLUSTER * WARPS];
  const int rank = ptx::cluster_block_rank();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = int64_t{blockIdx.x / CLUSTER} * CLUSTER_ROWS;
  ptx::cluster_arrive_relaxed();  // this block has begun
  const Chunk<T, N>* row[CLUSTER_ROWS];
#pragma unroll
  for (int r = 0; r < CLUSTER_ROWS; ++r) row[r] = p.a + min(first + r, p.rows - 1) * p.chunks;
  float sum[CLUSTER_ROWS] = {};
  const int64_t begin = rank * length;
  multiply_rows<2>(sum, row, p.x, begin + threadIdx.x, BLOCK, min(begin + length, p.chunks));
#pragma unroll
  for (int r = 0; r < CLUSTER_ROWS; ++r) sum[r] = warp_sum(sum[r]);
  ptx::cluster_wait();  // the first block has begun: its shared memory may be used
  if (lane == 0) {
#pragma unroll
    for (int r = 0; r < CLUSTER_ROWS; ++r) {
      *ptx::map_to_rank(&parts[r][rank * WARPS + warp], 0) = sum[r];
    }
  }
  ptx::cluster_sync();  // the first block waits for the sums of all warps of the cluster
  if (rank != 0 || warp >= CLUSTER_ROWS || first + warp >= p.rows) return;
  float mine = 0;
  for (int i = lane; i < CLUSTER * WARPS; i += 32) mine += parts[warp][i];
  const float total = warp_sum(mine);
  if (lane == 0) p.y[first + warp] = static_cast<T>(total);
}

Tensor matvec_v6_cluster(const Tensor& a, const Tensor& x) {
  return multiply(a, x, "matvec_v6_cluster", [&](auto p) {
    require_capability(9, 0, "clusters");
    const unsigned grid = grid_size(ceil_div<int64_t>(p.rows, CLUSTER_ROWS) * CLUSTER, "a");
    matvec_v6_cluster_kernel<<<grid, BLOCK, 0, current_stream(a)>>>(
        p, ceil_div<int64_t>(p.chunks, CLUSTER));
  });
}

// ---------------------------------------------------------------------------------------------
// v7: one launcher that chooses, by what was faster on an H200.

Tensor matvec_v7_chosen(const Tensor& a, const Tensor& x) {
  check(a, "a").on_gpu().rank(2);  // the chosen launcher checks the rest
  const DeviceGuard guard(a);
  const int64_t rows = a.size(0), bytes = a.size(1) * a.element_size();
  const int64_t blocks = FULL * multiprocessor_count(a);  // that fill the GPU
  if (bytes <= 512) return matvec_v5_rows(a, x);          // one chunk per lane
  if (rows >= blocks) {  // enough rows for a block each, if a row has a round of loads for it
    return bytes >= 16 * BLOCK * STEPS ? matvec_v3_block(a, x) : matvec_v5_rows(a, x);
  }
  // A second launch weighs little in a long product.
  const bool fills = 4 * CLUSTER * ceil_div<int64_t>(rows, CLUSTER_ROWS) >= blocks / 2;
  const bool is_small = rows * bytes <= int64_t{1} << 27;
  return fills && is_small && has_capability(9, 0) ? matvec_v6_cluster(a, x)
                                                   : matvec_v4_split_k(a, x);
}

// ---------------------------------------------------------------------------------------------

RUNG(day42, matvec_v1_thread, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_v2_warp, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_v3_block, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_v4_split_k, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_v5_rows, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_v6_cluster, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_v7_chosen, "(Tensor a, Tensor x) -> Tensor");

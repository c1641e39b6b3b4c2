// Day 42: matrix-vector products with the transposed matrix, y = Aᵀ · x
//
//   y[k] = sum_m A[m, k] · x[m]        A: (M, K), x: (M,), y: (K,) in fp32, fp16 or bf16
//
// Bytes: (M · K + M + K) · sizeof(T). A is stored row by row, as for y = A · x, so a sum runs down
// a column: lanes that read adjacent elements belong to different sums, and no shuffle is needed.
//
//   v1 thread    one thread per column: coalesced, but only K threads
//   v2 block     one block per tile of columns: 16 bytes per load, rows shared out among threads
//   v3 split_m   several blocks per tile of columns; a second kernel adds up their partial sums
//   v4 chosen    v2 or v3, by the number of tiles
//
// Run: python run_day.py 42

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // kernels that start early: day 59
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "days/day42/chunk.cuh"

#include <algorithm>

constexpr int BLOCK = 256;

// Checks a (M, K) and x (M,), allocates y (K,), and calls launch(zero, y) with a value of the
// C++ type of the dtype.
template <typename Launch>
Tensor multiply_transposed(const Tensor& a, const Tensor& x, const char* kernel, Launch&& launch) {
  check(a, "a").on_gpu().floating().rank(2).contiguous();
  check(x, "x").on_gpu().dtype({a.scalar_type()}).rank(1).contiguous();
  check(x, "x").same_device(a, "a").size(0, a.size(0));
  const DeviceGuard guard(a);
  Tensor y = allocate(a, {a.size(1)});
  if (y.numel() == 0) return y;
  dispatch_floating(a, [&](auto zero) { launch(zero, mutable_data<decltype(zero)>(y)); });
  check_launch(kernel);
  return y;
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per column. The lanes of a warp read adjacent elements of a row.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    matvec_t_v1_thread_kernel(const T* __restrict__ a, const T* __restrict__ x, T* __restrict__ y,
                              int64_t M, int64_t K) {
  const int64_t k = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (k >= K) return;
  float sum = 0;
#pragma unroll 8
  for (int64_t m = 0; m < M; ++m) {
    sum += static_cast<float>(a[m * K + k]) * static_cast<float>(x[m]);
  }
  y[k] = static_cast<T>(sum);
}

Tensor matvec_t_v1_thread(const Tensor& a, const Tensor& x) {
  return multiply_transposed(a, x, "matvec_t_v1_thread", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const unsigned grid = grid_size(ceil_div<int64_t>(a.size(1), BLOCK), "a");
    matvec_t_v1_thread_kernel<<<grid, BLOCK, 0, current_stream(a)>>>(data<T>(a), data<T>(x), y,
                                                                     a.size(0), a.size(1));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: LANES threads side by side take a chunk of columns each, and the BLOCK / LANES
// groups of a block take different rows, STEPS at a time. Their sums meet in shared memory.

constexpr int STEPS = 8;
// Blocks per multiprocessor: that leaves 64 registers per thread. Without this number nvcc takes
// 32, which have no room for STEPS chunks: it then waits for every second or third load.
constexpr int RESIDENT = 4;

// A block's part of the product: the columns of tile `tile`, and of the rounds of ROUND rows those
// with the numbers turn, turn + turns … Calls store(column, sum) for each column. All threads of
// the block must call it, once.
template <int LANES, typename T, int N, typename Store>
__device__ void multiply_tile(const Chunk<T, N>* __restrict__ a, const T* __restrict__ x, int64_t M,
                              int64_t chunks, int64_t tile, int64_t turn, int64_t turns,
                              Store store) {
  constexpr int GROUPS = BLOCK / LANES, COLUMNS = LANES * N, ROUND = STEPS * GROUPS;
  __shared__ float sums[GROUPS][COLUMNS];
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const int64_t c = tile * LANES + lane;  // this thread's chunk of every row
  float sum[N] = {};
  if (c < chunks) {
    int64_t m = turn * ROUND + group;
    for (; m + (STEPS - 1) * GROUPS < M; m += turns * ROUND) {
      Chunk<T, N> from_a[STEPS];
#pragma unroll
      for (int s = 0; s < STEPS; ++s) from_a[s] = a[(m + s * GROUPS) * chunks + c];
#pragma unroll
      for (int s = 0; s < STEPS; ++s) scale_add(sum, from_a[s], x[m + s * GROUPS]);
    }
    for (int s = 0; s < STEPS && m < M; ++s, m += GROUPS) {  // what is left of a round
      scale_add(sum, a[m * chunks + c], x[m]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums[group][lane * N + i] = sum[i];
  __syncthreads();  // the threads of a column wait for the sums of all groups
  for (int k = threadIdx.x; k < COLUMNS; k += BLOCK) {
    float total = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) total += sums[g][k];
    if (tile * COLUMNS + k < chunks * N) store(tile * COLUMNS + k, total);
  }
}

template <int LANES, typename T, int N>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    matvec_t_v2_block_kernel(const Chunk<T, N>* a, const T* x, T* __restrict__ y, int64_t M,
                             int64_t chunks) {
  multiply_tile<LANES>(a, x, M, chunks, blockIdx.x, 0, 1,
                       [=](int64_t k, float sum) { y[k] = static_cast<T>(sum); });
}

// Calls f with the lanes per row and the elements per chunk, as constants: no more lanes than a row
// has chunks, if possible.
template <typename T, typename F>
void dispatch_tile(const Tensor& a, F&& f) {
  dispatch_chunk<T>(a.size(1), {&a}, [&](auto size) {
    const int64_t chunks = a.size(1) / size;
    if (chunks <= 8) return f(std::integral_constant<int, 8>{}, size, chunks);
    if (chunks <= 16) return f(std::integral_constant<int, 16>{}, size, chunks);
    f(std::integral_constant<int, 32>{}, size, chunks);
  });
}

Tensor matvec_t_v2_block(const Tensor& a, const Tensor& x) {
  return multiply_transposed(a, x, "matvec_t_v2_block", [&](auto zero, auto* y) {
    using T = decltype(zero);
    dispatch_tile<T>(a, [&](auto lanes, auto size, int64_t chunks) {
      const unsigned tiles = grid_size(ceil_div<int64_t>(chunks, lanes), "a");
      matvec_t_v2_block_kernel<lanes><<<tiles, BLOCK, 0, current_stream(a)>>>(
          data<Chunk<T, size>>(a), data<T>(x), y, a.size(0), chunks);
    });
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: `splits` blocks per tile of columns, which take its rounds in turns, so that all
// blocks read one part of A at a time. A second kernel adds up their sums. It starts early, and
// waits for the first one: only the launch overlaps (day 59).

template <int LANES, typename T, int N>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    matvec_t_v3_split_m_kernel(const Chunk<T, N>* a, const T* x, float* __restrict__ partial,
                               int64_t M, int64_t chunks, int64_t tiles, int64_t splits) {
  ptx::grid_dependency_launch();  // the next kernel may start once all blocks have begun
  const int64_t tile = blockIdx.x % tiles, split = blockIdx.x / tiles;  // neighbours share rows
  float* const to = partial + split * chunks * N;
  multiply_tile<LANES>(a, x, M, chunks, tile, split, splits,
                       [=](int64_t k, float sum) { to[k] = sum; });
}

constexpr int ADD_WARPS = 32;  // at most

// y[k] = the sum of partial[s, k] over all splits, always in the same order: a block takes 32
// columns, and its warps take the splits in turns.
template <typename T>
__global__ void __launch_bounds__(32 * ADD_WARPS)
    add_splits_kernel(const float* __restrict__ partial, T* __restrict__ y, int64_t K,
                      int64_t splits) {
  __shared__ float sums[ADD_WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int64_t k = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0;
  ptx::grid_dependency_wait();  // for the sums of all blocks
  if (k < K) {
#pragma unroll 16
    for (int64_t s = warp; s < splits; s += warps) sum += partial[s * K + k];
  }
  sums[warp][lane] = sum;
  __syncthreads();  // warp 0 waits for the sums of all warps
  if (warp != 0 || k >= K) return;
  float total = 0;
  for (int w = 0; w < warps; ++w) total += sums[w][lane];
  y[k] = static_cast<T>(total);
}

Tensor matvec_t_v3_split_m(const Tensor& a, const Tensor& x) {
  return multiply_transposed(a, x, "matvec_t_v3_split_m", [&](auto zero, auto* y) {
    using T = decltype(zero);
    dispatch_tile<T>(a, [&](auto lanes, auto size, int64_t chunks) {
      const int64_t M = a.size(0), K = a.size(1);
      const int64_t tiles = ceil_div<int64_t>(chunks, lanes);
      const auto kernel = matvec_t_v3_split_m_kernel<lanes, T, size>;
      // As many blocks as are resident at once, but none with less than one round of loads.
      const int64_t resident = resident_grid(a, kernel, BLOCK, 0, INT32_MAX);
      const int64_t rounds = ceil_div<int64_t>(M, STEPS * BLOCK / lanes);
      const int64_t splits = std::max<int64_t>(1, std::min(resident / tiles, rounds));
      const Tensor partial = allocate(a, {splits * K}, ScalarType::Float);
      kernel<<<grid_size(tiles * splits, "a"), BLOCK, 0, current_stream(a)>>>(
          data<Chunk<T, size>>(a), data<T>(x), mutable_data<float>(partial), M, chunks, tiles,
          splits);
      cudaLaunchAttribute early = {};
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(grid_size(ceil_div<int64_t>(K, 32), "a"));
      config.blockDim = dim3(static_cast<unsigned>(32 * std::min<int64_t>(ADD_WARPS, splits)));
      config.stream = current_stream(a);
      config.attrs = &early;
      config.numAttrs = has_capability(9, 0) ? 1 : 0;
      check_cuda(
          cudaLaunchKernelEx(&config, add_splits_kernel<T>, data<float>(partial), y, K, splits),
          "add_splits");
    });
  });
}

// ---------------------------------------------------------------------------------------------
// v4: v2 where every multiprocessor gets a tile of columns, else v3.

Tensor matvec_t_v4_chosen(const Tensor& a, const Tensor& x) {
  check(a, "a").on_gpu().rank(2);  // the chosen launcher checks the rest
  const int64_t tiles = a.size(1) * a.element_size() / (32 * 16);  // of 32 chunks of 16 bytes
  return tiles >= multiprocessor_count(a) ? matvec_t_v2_block(a, x) : matvec_t_v3_split_m(a, x);
}

// ---------------------------------------------------------------------------------------------

RUNG(day42, matvec_t_v1_thread, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_t_v2_block, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_t_v3_split_m, "(Tensor a, Tensor x) -> Tensor");
RUNG(day42, matvec_t_v4_chosen, "(Tensor a, Tensor x) -> Tensor");

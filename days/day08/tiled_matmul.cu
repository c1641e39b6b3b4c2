// Day 8: matrix multiplication through tiles in shared memory
//
//   C[m, n] = sum_k A[m, k] · B[k, n]      A: (M, K), B: (K, N), C: (M, N), all row-major
//
// Operations: 2 · M · N · K. Loads from global memory with tiles of T × T: 2 · M · N · K / T
// numbers, because each number that a block loads is used by T of its threads. With T = 32 the
// 69 GB that day 7 loaded for 2048³ become 2.1 GB.
//
//   v0 naive         day 7's first kernel, as the baseline
//   v1 static_tile   32 × 32 tiles, their size known to the compiler
//   v2 dynamic_tile  tile size chosen at run time, shared memory sized by the launch
//   v3 two_outputs   each thread computes two elements: three shared loads for two multiply-adds
//
// Run: python run_day.py 8

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"

// Checks A (M, K) and B (K, N), and allocates C (M, N).
Tensor make_output(const Tensor& a, const Tensor& b) {
  check(a, "a").on_gpu().floating().rank(2).contiguous();
  check(b, "b").on_gpu().dtype({a.scalar_type()}).rank(2).contiguous();
  check(b, "b").same_device(a, "a").size(0, a.size(1));
  return allocate(a, {a.size(0), b.size(1)});
}

// The element (row, col) of a (rows, cols) matrix as fp32, or 0 outside of it. Zeros add nothing to
// a sum, so tiles at the edge need no special case.
template <typename T>
__device__ float element_or_zero(const T* __restrict__ matrix, int64_t row, int64_t col,
                                 int64_t rows, int64_t cols) {
  return row < rows && col < cols ? static_cast<float>(matrix[row * cols + col]) : 0.0f;
}

// ---------------------------------------------------------------------------------------------
// v0: one thread per element, all loads from global memory, rows along threadIdx.x (see day 7).

template <typename T>
__global__ void matmul_v0_naive_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                       T* __restrict__ c, int64_t M, int64_t N, int64_t K) {
  const int64_t m = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t n = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  if (m >= M || n >= N) return;
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) {
    sum += static_cast<float>(a[m * K + k]) * static_cast<float>(b[k * N + n]);
  }
  c[m * N + n] = static_cast<T>(sum);
}

Tensor matmul_v0_naive(const Tensor& a, const Tensor& b) {
  Tensor c = make_output(a, b);
  if (c.numel() == 0) return c;  // a grid of 0 blocks is a launch error
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const dim3 block(32, 8);
  const dim3 grid(grid_size(ceil_div<int64_t>(M, block.x), "a"),
                  grid_size_y(ceil_div<int64_t>(N, block.y), "b"));
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    matmul_v0_naive_kernel<T><<<grid, block, 0, current_stream(a)>>>(data<T>(a), data<T>(b),
                                                                     mutable_data<T>(c), M, N, K);
  });
  check_launch("matmul_v0_naive");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v1 against v0: the 1024 threads of a block together load a 32 × 32 tile of A and one of B into
// shared memory. Each thread then multiplies a row of the one by a column of the other from there.

constexpr int TILE = 32;

template <typename T>
__global__ void matmul_v1_static_tile_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                             T* __restrict__ c, int64_t M, int64_t N, int64_t K) {
  __shared__ float a_tile[TILE][TILE];  // (m, k)
  __shared__ float b_tile[TILE][TILE];  // (k, n)
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t m = int64_t{blockIdx.y} * TILE + ty;
  const int64_t n = int64_t{blockIdx.x} * TILE + tx;

  float sum = 0;
  for (int64_t k0 = 0; k0 < K; k0 += TILE) {
    a_tile[ty][tx] = element_or_zero(a, m, k0 + tx, M, K);
    b_tile[ty][tx] = element_or_zero(b, k0 + ty, n, K, N);
    __syncthreads();  // both tiles are complete before any thread multiplies
    // Per step of k: one broadcast (a_tile, the warp shares ty) and 32 neighbours (b_tile).
    for (int k = 0; k < TILE; ++k) sum += a_tile[ty][k] * b_tile[k][tx];
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
  }
  if (m < M && n < N) c[m * N + n] = static_cast<T>(sum);
}

Tensor matmul_v1_static_tile(const Tensor& a, const Tensor& b) {
  Tensor c = make_output(a, b);
  if (c.numel() == 0) return c;
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const dim3 grid(grid_size(ceil_div<int64_t>(N, TILE), "b"),
                  grid_size_y(ceil_div<int64_t>(M, TILE), "a"));
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    matmul_v1_static_tile_kernel<T><<<grid, dim3(TILE, TILE), 0, current_stream(a)>>>(
        data<T>(a), data<T>(b), mutable_data<T>(c), M, N, K);
  });
  check_launch("matmul_v1_static_tile");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the tile is as large as the block that was launched. A static array needs a size
// that the compiler knows. The size of this dynamic array is the third launch argument, and the
// kernel divides the array into its two tiles.

template <typename T>
__global__ void matmul_v2_dynamic_tile_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                              T* __restrict__ c, int64_t M, int64_t N, int64_t K) {
  extern __shared__ float tiles[];
  const int tile = blockDim.x;
  float* a_tile = tiles;                // (m, k), row-major
  float* b_tile = tiles + tile * tile;  // (k, n)
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t m = int64_t{blockIdx.y} * tile + ty;
  const int64_t n = int64_t{blockIdx.x} * tile + tx;

  float sum = 0;
  for (int64_t k0 = 0; k0 < K; k0 += tile) {
    a_tile[ty * tile + tx] = element_or_zero(a, m, k0 + tx, M, K);
    b_tile[ty * tile + tx] = element_or_zero(b, k0 + ty, n, K, N);
    __syncthreads();  // both tiles are complete before any thread multiplies
    for (int k = 0; k < tile; ++k) sum += a_tile[ty * tile + k] * b_tile[k * tile + tx];
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
  }
  if (m < M && n < N) c[m * N + n] = static_cast<T>(sum);
}

// tile: side of a tile, 1 to 32 (a block may have at most 1024 = 32 × 32 threads).
Tensor matmul_v2_dynamic_tile(const Tensor& a, const Tensor& b, int64_t tile) {
  STD_TORCH_CHECK(tile >= 1 && tile <= 32, "tile: expected 1 to 32, got ", tile);
  Tensor c = make_output(a, b);
  if (c.numel() == 0) return c;
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const dim3 block(static_cast<unsigned>(tile), static_cast<unsigned>(tile));
  const dim3 grid(grid_size(ceil_div<int64_t>(N, tile), "b"),
                  grid_size_y(ceil_div<int64_t>(M, tile), "a"));
  const size_t tile_bytes = 2 * tile * tile * sizeof(float);
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    matmul_v2_dynamic_tile_kernel<T><<<grid, block, tile_bytes, current_stream(a)>>>(
        data<T>(a), data<T>(b), mutable_data<T>(c), M, N, K);
  });
  check_launch("matmul_v2_dynamic_tile");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v3 against v1: each thread computes (m, n) and (m, n + 32). The element of A that it has loaded
// from shared memory serves both: three shared loads for two multiply-adds instead of four. The
// tile of C is twice as wide, so half as many blocks load each tile of A.

template <typename T>
__global__ void matmul_v3_two_outputs_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                             T* __restrict__ c, int64_t M, int64_t N, int64_t K) {
  __shared__ float a_tile[TILE][TILE];      // (m, k)
  __shared__ float b_tile[TILE][2 * TILE];  // (k, n)
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t m = int64_t{blockIdx.y} * TILE + ty;
  const int64_t n = int64_t{blockIdx.x} * (2 * TILE) + tx;

  float left = 0, right = 0;
  for (int64_t k0 = 0; k0 < K; k0 += TILE) {
    a_tile[ty][tx] = element_or_zero(a, m, k0 + tx, M, K);
    b_tile[ty][tx] = element_or_zero(b, k0 + ty, n, K, N);
    b_tile[ty][tx + TILE] = element_or_zero(b, k0 + ty, n + TILE, K, N);
    __syncthreads();  // the tiles are complete before any thread multiplies
    for (int k = 0; k < TILE; ++k) {
      const float both = a_tile[ty][k];
      left += both * b_tile[k][tx];
      right += both * b_tile[k][tx + TILE];
    }
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
  }
  if (m < M && n < N) c[m * N + n] = static_cast<T>(left);
  if (m < M && n + TILE < N) c[m * N + n + TILE] = static_cast<T>(right);
}

Tensor matmul_v3_two_outputs(const Tensor& a, const Tensor& b) {
  Tensor c = make_output(a, b);
  if (c.numel() == 0) return c;
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const dim3 grid(grid_size(ceil_div<int64_t>(N, 2 * TILE), "b"),
                  grid_size_y(ceil_div<int64_t>(M, TILE), "a"));
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    matmul_v3_two_outputs_kernel<T><<<grid, dim3(TILE, TILE), 0, current_stream(a)>>>(
        data<T>(a), data<T>(b), mutable_data<T>(c), M, N, K);
  });
  check_launch("matmul_v3_two_outputs");
  return c;
}

// ---------------------------------------------------------------------------------------------

RUNG(day08, matmul_v0_naive, "(Tensor a, Tensor b) -> Tensor");
RUNG(day08, matmul_v1_static_tile, "(Tensor a, Tensor b) -> Tensor");
RUNG(day08, matmul_v2_dynamic_tile, "(Tensor a, Tensor b, int tile=16) -> Tensor");
RUNG(day08, matmul_v3_two_outputs, "(Tensor a, Tensor b) -> Tensor");

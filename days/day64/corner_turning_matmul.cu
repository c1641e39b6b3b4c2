// Day 64: the matrix products of a linear layer, in CUDA and in Triton
//
//   output            y  = x · Wᵀ      x: (M, K), W: (N, K), y: (M, N)
//   weight gradient   dW = gᵀ · x      g: (K, M), x: (K, N), dW: (M, N)
//
// All matrices are row-major, in bf16 or fp16; sums are in fp32. So Wᵀ is a column-major operand,
// and so is gᵀ: their tiles are loaded along the dimension that is contiguous in memory.
//
// Operations: 2 · M · N · K. 8192³ takes 1.1 T of them on 0.4 GB: arithmetic is the limit.
//
//   linear v1 strided         day 8's tiles: neighbouring threads load neighbouring columns of Wᵀ
//   linear v2 corner_turning  they load along a row of W, and store a column of the tile
//   linear v3 tensor_cores    mma.sync on tiles that cp.async copies; tiles in groups, for L2
//   weight_gradient v1        the same kernel; ldmatrix transposes both tiles while it reads them
//
// corner_turning_triton.py has the twins. Run: python run_day.py 64

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/mma_tiles.cuh"      // taught in day 26
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "common/cuda/tile_order.cuh"     // taught in day 54

// A and B as the product needs them, (M, K) and (K, N), stored in one of two ways each.
template <typename T>
struct Product {
  const T* a;             // stored as (M, K), or as (K, M)
  const T* b;             // stored as (N, K), or as (K, N)
  T* c;                   // (M, N)
  int64_t lda, ldb, ldc;  // elements from row to row, as they are stored
  int M, N, K;
};

// Checks the operands, makes C, and calls launch(product) unless C is empty. outer_a, inner_a: the
// dimensions of a that are M and K; outer_b, inner_b: those of b that are N and K.
template <typename Launch>
Tensor multiply(const Tensor& a, const char* name_a, const Tensor& b, const char* name_b,
                int outer_a, int outer_b, const char* kernel, Launch&& launch) {
  const int inner_a = 1 - outer_a, inner_b = 1 - outer_b;
  check(a, name_a).on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(2).contiguous();
  check(b, name_b).on_gpu().dtype({a.scalar_type()}).rank(2).contiguous().same_device(a, name_a);
  check(b, name_b).size(inner_b, a.size(inner_a));
  const int64_t M = a.size(outer_a), N = b.size(outer_b), K = a.size(inner_a);
  constexpr int64_t MOST = INT32_MAX - 1024;  // so that the end of the last tile is an int, too
  STD_TORCH_CHECK(M < MOST && N < MOST && K < MOST, name_a, ", ", name_b,
                  ": expected fewer than 2^31 - 1024 rows and columns");
  const DeviceGuard guard(a);
  const Tensor c = allocate(a, {M, N});
  if (c.numel() == 0) return c;
  const auto run = [&]<typename T>(T) {
    launch(Product<T>{data<T>(a), data<T>(b), mutable_data<T>(c), a.size(1), b.size(1), N,
                      static_cast<int>(M), static_cast<int>(N), static_cast<int>(K)});
  };
  a.scalar_type() == ScalarType::Half ? run(__half{}) : run(__nv_bfloat16{});
  check_launch(kernel);
  return c;
}

// ---------------------------------------------------------------------------------------------
// v1 and v2: tiles of fp32 in shared memory, as on day 8. Each of 16 × 16 threads computes 4 × 4
// outputs, 16 rows and 16 columns apart.

constexpr int SIDE = 64;    // rows and columns of a block's outputs
constexpr int DEPTH = 32;   // values of k per step: a warp loads 64 adjacent bytes of a row
constexpr int ACROSS = 16;  // threads along a side
constexpr int EACH = SIDE / ACROSS;
constexpr int SCALAR_THREADS = ACROSS * ACROSS;

// A row of one more element than needed: 32 elements of a column lie in 32 banks.
using TileOfA = float[SIDE][DEPTH + 1];  // (m, k)
using TileOfB = float[DEPTH][SIDE + 1];  // (k, n)

// The element (row, col) of a matrix with `cols` columns, or 0 outside of it.
template <typename T>
__device__ __forceinline__ float element_or_zero(const T* __restrict__ matrix, int row, int col,
                                                 int rows, int64_t cols) {
  return row < rows && col < cols ? static_cast<float>(matrix[row * cols + col]) : 0.0f;
}

template <typename T>
__device__ void load_a(TileOfA& tile, const Product<T>& p, int m, int k) {
#pragma unroll
  for (int i = threadIdx.x; i < SIDE * DEPTH; i += SCALAR_THREADS) {
    const int row = i / DEPTH, col = i % DEPTH;
    tile[row][col] = element_or_zero(p.a, m + row, k + col, p.M, p.lda);
  }
}

// Neighbouring threads load neighbouring columns of the tile: as day 8 does, for a row-major B. Of
// W these are elements of different rows, K elements apart, and each lies in a sector of its own.
template <typename T>
__device__ void load_b_strided(TileOfB& tile, const Product<T>& p, int n, int k) {
#pragma unroll
  for (int i = threadIdx.x; i < SIDE * DEPTH; i += SCALAR_THREADS) {
    const int row = i / SIDE, col = i % SIDE;
    tile[row][col] = element_or_zero(p.b, n + col, k + row, p.N, p.ldb);
  }
}

// Neighbouring threads load neighbours of a row of W, and store them in a column of the tile.
template <typename T>
__device__ void load_b_corner_turning(TileOfB& tile, const Product<T>& p, int n, int k) {
#pragma unroll
  for (int i = threadIdx.x; i < SIDE * DEPTH; i += SCALAR_THREADS) {
    const int row = i % DEPTH, col = i / DEPTH;
    tile[row][col] = element_or_zero(p.b, n + col, k + row, p.N, p.ldb);
  }
}

// sums[i][j] is the output of row threadIdx.x / ACROSS + i · ACROSS of the block's tile, and of
// column threadIdx.x % ACROSS + j · ACROSS.
using Sums = float[EACH][EACH];

__device__ inline void multiply_tiles(Sums& sums, const TileOfA& a, const TileOfB& b) {
  const int y = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS;
#pragma unroll 8
  for (int k = 0; k < DEPTH; ++k) {
    float of_a[EACH], of_b[EACH];
    for (int i = 0; i < EACH; ++i) of_a[i] = a[y + i * ACROSS][k], of_b[i] = b[k][x + i * ACROSS];
    for (int i = 0; i < EACH; ++i) {
      for (int j = 0; j < EACH; ++j) sums[i][j] += of_a[i] * of_b[j];
    }
  }
}

template <typename T>
__device__ void store_sums(const Product<T>& p, const Sums& sums, int m, int n) {
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const int row = m + threadIdx.x / ACROSS + i * ACROSS;
      const int col = n + threadIdx.x % ACROSS + j * ACROSS;
      if (row < p.M && col < p.N) p.c[row * p.ldc + col] = static_cast<T>(sums[i][j]);
    }
  }
}

// A block per tile, row by row.
template <typename T>
unsigned scalar_grid(const Product<T>& p) {
  return grid_size(int64_t{ceil_div(p.M, SIDE)} * ceil_div(p.N, SIDE), "x");
}

template <typename T>
__global__ void __launch_bounds__(SCALAR_THREADS) linear_v1_strided_kernel(const Product<T> p) {
  __shared__ TileOfA a;
  __shared__ TileOfB b;
  const Corner at = tile_at<1>(blockIdx.x, ceil_div(p.M, SIDE), ceil_div(p.N, SIDE));
  const int m = at.m * SIDE, n = at.n * SIDE;
  Sums sums = {};
  for (int k = 0; k < p.K; k += DEPTH) {
    load_a(a, p, m, k);
    load_b_strided(b, p, n, k);
    __syncthreads();  // both tiles are complete before any thread multiplies
    multiply_tiles(sums, a, b);
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
  }
  store_sums(p, sums, m, n);
}

Tensor linear_v1_strided(const Tensor& x, const Tensor& w) {
  return multiply(x, "x", w, "w", 0, 0, "linear_v1_strided", [&](const auto& p) {
    linear_v1_strided_kernel<<<scalar_grid(p), SCALAR_THREADS, 0, current_stream(x)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the tile of Wᵀ is loaded along k, in which W is contiguous.

template <typename T>
__global__ void __launch_bounds__(SCALAR_THREADS)
    linear_v2_corner_turning_kernel(const Product<T> p) {
  __shared__ TileOfA a;
  __shared__ TileOfB b;
  const Corner at = tile_at<1>(blockIdx.x, ceil_div(p.M, SIDE), ceil_div(p.N, SIDE));
  const int m = at.m * SIDE, n = at.n * SIDE;
  Sums sums = {};
  for (int k = 0; k < p.K; k += DEPTH) {
    load_a(a, p, m, k);
    load_b_corner_turning(b, p, n, k);
    __syncthreads();  // both tiles are complete before any thread multiplies
    multiply_tiles(sums, a, b);
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
  }
  store_sums(p, sums, m, n);
}

Tensor linear_v2_corner_turning(const Tensor& x, const Tensor& w) {
  return multiply(x, "x", w, "w", 0, 0, "linear_v2_corner_turning", [&](const auto& p) {
    linear_v2_corner_turning_kernel<<<scalar_grid(p), SCALAR_THREADS, 0, current_stream(x)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: tensor cores. Tiles stay as they are stored, and ldmatrix makes fragments of them:
// it transposes a tile whose rows are k, and leaves one whose rows are m or n as it is.

constexpr int BM = 128, BN = 128, BK = 64;  // as the twin's
constexpr int WM = 64, WN = 64;             // of a warp: 128 sums per thread
constexpr int THREADS = 32 * (BM / WM) * (BN / WN);
constexpr int STAGES = 3;  // of 32 KB; two blocks per multiprocessor of an H200
constexpr int STAGE = (BM + BN) * BK;
constexpr int SHARED = STAGES * STAGE * 2;  // bytes
constexpr int GROUP = 8;                    // rows of tiles that are computed together

// Older cards get empty kernels, which are never launched.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_MMA
#endif

// Copies the ROWS × COLS elements from (row, col) on of a matrix (rows, cols) to a swizzled tile,
// with zeros beyond the matrix. WHOLE: rows are multiples of 16 bytes, and cp.async copies chunks;
// otherwise threads copy elements.
template <int ROWS, int COLS, bool WHOLE, typename T>
__device__ __forceinline__ void copy_tile(T* tile, const T* matrix, int64_t ld, int row, int col,
                                          int rows, int cols) {
  constexpr int CHUNKS = COLS / tiles::CHUNK, STEP = THREADS / CHUNKS;
  static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "all chunks of a thread have one swizzle");
  const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  T* to = tile + tiles::swizzled<COLS>(first, chunk);
  row += first, col += chunk * tiles::CHUNK;
  const T* from = matrix + row * ld + col;
  const int there = min(tiles::CHUNK, cols - col);  // elements of the chunk, if the row is there
#pragma unroll
  for (int i = 0; i < ROWS; i += STEP, from += STEP * ld, to += STEP * COLS) {
    const bool exists = row + i < rows;
    if constexpr (WHOLE) {
      ptx::cp_async_zero_fill<16>(to, from, exists && there > 0 ? 16 : 0);
    } else {
      for (int e = 0; e < tiles::CHUNK; ++e) {
        to[e] = exists && e < there ? from[e] : static_cast<T>(0.0f);
      }
    }
  }
}

// A_BY_K: A's rows are m, so that k is contiguous. B_BY_K: B's rows are n.
template <bool A_BY_K, bool B_BY_K, bool WHOLE, typename T>
__device__ __forceinline__ void copy_stage(T* stage, const Product<T>& p, Corner at, int k) {
  const int m = at.m * BM, n = at.n * BN;
  if constexpr (A_BY_K) {
    copy_tile<BM, BK, WHOLE>(stage, p.a, p.lda, m, k, p.M, p.K);
  } else {
    copy_tile<BK, BM, WHOLE>(stage, p.a, p.lda, k, m, p.K, p.M);
  }
  if constexpr (B_BY_K) {
    copy_tile<BN, BK, WHOLE>(stage + BM * BK, p.b, p.ldb, n, k, p.N, p.K);
  } else {
    copy_tile<BK, BN, WHOLE>(stage + BM * BK, p.b, p.ldb, k, n, p.K, p.N);
  }
}

using WarpSums = float[WM / 16][WN / 8][4];

// sums += the products of a stage, of the warp's rows from m on and its columns from n on.
template <bool A_BY_K, bool B_BY_K, typename T>
__device__ __forceinline__ void multiply_stage(WarpSums& sums, const T* stage, int m, int n) {
  const T *of_a = stage, *of_b = stage + BM * BK;
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    uint32_t a[WM / 16][4], b[WN / 16][2][2];
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
      if constexpr (A_BY_K) tiles::load_a<BK>(a[i], of_a, m + 16 * i, k);
      if constexpr (!A_BY_K) tiles::load_a_transposed<BM>(a[i], of_a, k, m + 16 * i);
    }
#pragma unroll
    for (int j = 0; j < WN / 16; ++j) {
      if constexpr (B_BY_K) tiles::load_b_transposed<BK>(b[j], of_b, n + 16 * j, k);
      if constexpr (!B_BY_K) tiles::load_b<BN>(b[j], of_b, k, n + 16 * j);
    }
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
      for (int j = 0; j < WN / 8; ++j) {
        ptx::mma_m16n8k16<T>(sums[i][j], a[i], b[j / 2][j % 2], sums[i][j]);
      }
    }
  }
}

// Rounds and stores a warp's sums. A lane has two neighbours of rows lane / 4 and lane / 4 + 8.
template <typename T>
__device__ __forceinline__ void store_warp_sums(const Product<T>& p, const WarpSums& sums, int m,
                                                int n) {
  const int lane = threadIdx.x % 32, even = p.N % 2 == 0;
#pragma unroll
  for (int i = 0; i < WM / 8; ++i) {
    const int row = m + 8 * i + lane / 4, cols = row < p.M ? p.N : 0;
    T* const to = p.c + row * p.ldc;
#pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
      const int col = n + 8 * j + lane % 4 * 2;
      const float low = sums[i / 2][j][i % 2 * 2], high = sums[i / 2][j][i % 2 * 2 + 1];
      if (even && col < cols) *reinterpret_cast<uint32_t*>(to + col) = tiles::pack<T>(low, high);
      if (!even && col < cols) to[col] = static_cast<T>(low);
      if (!even && col + 1 < cols) to[col + 1] = static_cast<T>(high);
    }
  }
}

template <bool A_BY_K, bool B_BY_K, bool WHOLE, typename T>
__global__ void __launch_bounds__(THREADS, 2) tensor_cores_kernel(const Product<T> p) {
#ifdef HAS_MMA
  extern __shared__ __align__(128) uint4 shared[];
  T* const stages = reinterpret_cast<T*>(shared);
  const Corner at = tile_at<GROUP>(blockIdx.x, ceil_div(p.M, BM), ceil_div(p.N, BN));
  const int warp = threadIdx.x / 32, m = warp / (BN / WN) * WM, n = warp % (BN / WN) * WN;
  const auto copy = [&](int step) {
    if (step < ceil_div(p.K, BK)) {
      copy_stage<A_BY_K, B_BY_K, WHOLE>(stages + step % STAGES * STAGE, p, at, step * BK);
    }
    ptx::cp_async_commit();  // one group per step, which may be empty
  };
  for (int step = 0; step < STAGES - 1; ++step) copy(step);
  WarpSums sums = {};
  for (int step = 0; step < ceil_div(p.K, BK); ++step) {
    ptx::cp_async_wait<STAGES - 2>();  // this thread's copies of the step are complete …
    __syncthreads();  // … and all others', and all warps have read the stage of the step before
    copy(step + STAGES - 1);
    multiply_stage<A_BY_K, B_BY_K>(sums, stages + step % STAGES * STAGE, m, n);
  }
  store_warp_sums(p, sums, at.m * BM + m, at.n * BN + n);
#endif
}

template <bool A_BY_K, bool B_BY_K, typename T>
void launch_tensor_cores(const Product<T>& p, const Tensor& a, const Tensor& b) {
  require_capability(8, 0, "mma.sync of 16×8×16");
  require_shared_memory(SHARED, "three stages");
  const bool whole = p.lda % 8 == 0 && p.ldb % 8 == 0 && is_aligned(a, 16) && is_aligned(b, 16);
  const auto kernel = whole ? tensor_cores_kernel<A_BY_K, B_BY_K, true, T>
                            : tensor_cores_kernel<A_BY_K, B_BY_K, false, T>;
  allow_shared(kernel, SHARED);
  const int64_t tiles = int64_t{ceil_div(p.M, BM)} * ceil_div(p.N, BN);
  kernel<<<grid_size(tiles, "x"), THREADS, SHARED, current_stream(a)>>>(p);
}

Tensor linear_v3_tensor_cores(const Tensor& x, const Tensor& w) {
  return multiply(x, "x", w, "w", 0, 0, "linear_v3_tensor_cores",
                  [&](const auto& p) { launch_tensor_cores<true, true>(p, x, w); });
}

Tensor weight_gradient_v1_tensor_cores(const Tensor& g, const Tensor& x) {
  return multiply(g, "g", x, "x", 1, 1, "weight_gradient_v1_tensor_cores",
                  [&](const auto& p) { launch_tensor_cores<false, false>(p, g, x); });
}

// ---------------------------------------------------------------------------------------------

RUNG(day64, linear_v1_strided, "(Tensor x, Tensor w) -> Tensor");
RUNG(day64, linear_v2_corner_turning, "(Tensor x, Tensor w) -> Tensor");
RUNG(day64, linear_v3_tensor_cores, "(Tensor x, Tensor w) -> Tensor");
RUNG(day64, weight_gradient_v1_tensor_cores, "(Tensor g, Tensor x) -> Tensor");

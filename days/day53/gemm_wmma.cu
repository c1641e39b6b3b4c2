// Day 53: matrix products on tensor cores, through WMMA
//
//   C[m, n] = Σ_k A[m, k] · B[k, n]      A: (M, K), B: (K, N), row-major, any sizes
//
//   A, B: fp16 or bf16 (sums fp32, C like A), fp32 (as tf32; sums, C fp32), int8 (sums, C int32)
//
// 4096³ takes 137 G operations on 101 MB (bf16): arithmetic is the limit, if loads are reused.
//
//   v1 naive      one warp per 16×16 tile of C, fragments loaded from global memory
//   v2 shared     a block computes 128×128, a warp 64×64: loaded data is used more often
//   v3 padded     longer rows of the tiles, so that loading a fragment has fewer bank conflicts
//   v4 pipelined  cp.async loads the next tiles during the products
//
// Run: python run_day.py 53

#include "common/cuda/binding.cuh"       // taught in day 6
#include "common/cuda/capability.cuh"    // taught in day 24
#include "common/cuda/ptx/cp_async.cuh"  // taught in day 20
#include "common/cuda/tensor.cuh"        // taught in days 6 and 12

#include <mma.h>
#include <type_traits>

namespace wmma = nvcuda::wmma;

// Older cards lack bf16, tf32 and cp.async. They get empty kernels, which are never launched.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
constexpr bool HAS_AMPERE = true;
using TensorFloat = wmma::precision::tf32;
__device__ float to_tf32(float x) {
  return wmma::__float_to_tf32(x);
}
#else
constexpr bool HAS_AMPERE = false;
using TensorFloat = void;
__device__ float to_tf32(float x);
#endif

// ---------------------------------------------------------------------------------------------
// The types. Element: in memory. Factor: what the tensor core multiplies. Sum: the accumulators'.
// ROUND: fp32 to tf32; without it, the tensor core ignores the last 13 bits, which truncates.
template <typename E, typename F, typename S, typename R, bool ROUND = false>
struct Kind {
  using Element = E;
  using Factor = F;
  using Sum = S;
  using Result = R;
  static constexpr int DEPTH = sizeof(E) == 4 ? 8 : 16;  // products per sum of one mma_sync
  static constexpr int B_PAD = sizeof(E) == 1 ? 16 : 8;  // elements after a row of B, see v3
  static constexpr bool ROUNDS = ROUND;
  static constexpr bool AMPERE = sizeof(E) == 4 || std::is_same_v<E, __nv_bfloat16>;
};
using Fp16 = Kind<__half, __half, float, __half>;
using Fp16Sums = Kind<__half, __half, __half, __half>;
using Bf16 = Kind<__nv_bfloat16, __nv_bfloat16, float, __nv_bfloat16>;
using Tf32 = Kind<float, TensorFloat, float, float, true>;
using Tf32Truncated = Kind<float, TensorFloat, float, float>;
using Int8 = Kind<signed char, signed char, int, int>;

template <typename Type>
struct Product {
  const typename Type::Element* a;  // (M, K)
  const typename Type::Element* b;  // (K, N)
  typename Type::Result* c;         // (M, N)
  int64_t M, N, K;
  bool aligned;  // rows of A and B begin at multiples of 16 bytes
};

// ---------------------------------------------------------------------------------------------
// Fragments: 16×16 numbers (tf32: 16×8 and 8×16) that the lanes of a warp hold together. Which lane
// holds which number is not documented.

constexpr int SIDE = 16;
template <typename Type, typename Use>
using Fragment =
    wmma::fragment<Use, SIDE, SIDE, Type::DEPTH, typename Type::Factor, wmma::row_major>;
template <typename Type>
using Sums = wmma::fragment<wmma::accumulator, SIDE, SIDE, Type::DEPTH, typename Type::Sum>;

// A warp loads a fragment of A or B. stride: elements from row to row, a multiple of 16 bytes.
template <typename Type, typename Use>
__device__ __forceinline__ void load(Fragment<Type, Use>& fragment,
                                     const typename Type::Element* from, int64_t stride) {
  wmma::load_matrix_sync(fragment, from, static_cast<unsigned>(stride));
  if constexpr (Type::ROUNDS) {
#pragma unroll
    for (float& x : fragment.x) x = to_tf32(x);
  }
}

// A warp writes `rows` × `cols` of the sums. They pass through shared memory: only there is it
// known where a sum lies, so that sums beyond the edge can be left out, and the others converted.
template <typename Type>
__device__ __forceinline__ void store(typename Type::Result* c, const Sums<Type>& sums,
                                      typename Type::Sum* scratch, int64_t stride, int64_t rows,
                                      int64_t cols) {
  wmma::store_matrix_sync(scratch, sums, SIDE, wmma::mem_row_major);
  __syncwarp();  // all lanes have stored their sums before any lane reads
#pragma unroll
  for (int e = threadIdx.x % 32; e < SIDE * SIDE; e += 32) {
    const int row = e / SIDE, col = e % SIDE;
    if (row < rows && col < cols) {
      c[row * stride + col] = static_cast<typename Type::Result>(scratch[e]);
    }
  }
  __syncwarp();  // all lanes have read before the next sums are stored
}

// THREADS threads copy ROWS × COLS elements, one by one, with zeros beyond `rows` or `cols`.
template <int ROWS, int COLS, int THREADS, typename T>
__device__ __forceinline__ void copy_elements(T* tile, int pitch, const T* from, int64_t stride,
                                              int64_t rows, int64_t cols) {
  for (int e = threadIdx.x % THREADS; e < ROWS * COLS; e += THREADS) {
    const int row = e / COLS, col = e % COLS;
    tile[row * pitch + col] =
        row < rows && col < cols ? from[row * stride + col] : static_cast<T>(0);
  }
}

// ---------------------------------------------------------------------------------------------
// What all launchers do: checks, the result, and launch(type, product).

template <typename Type, typename Launch>
Tensor run(const Tensor& a, const Tensor& b, const char* name, Launch&& launch) {
  check(b, "b").on_gpu().dtype({a.scalar_type()}).rank(2).contiguous().same_device(a, "a");
  check(b, "b").size(0, a.size(1));
  const int64_t M = a.size(0), N = b.size(1), K = a.size(1);
  STD_TORCH_CHECK(K <= INT32_MAX && N <= INT32_MAX,
                  "a, b: expected rows of fewer than 2^31 elements, got ", K, " and ", N);
  const DeviceGuard guard(a);
  if (Type::AMPERE) require_capability(8, 0, "wmma of bfloat16 and float32");
  const bool is_int8 = a.scalar_type() == ScalarType::Char;
  Tensor c = allocate(a, {M, N}, is_int8 ? ScalarType::Int : a.scalar_type());
  if (c.numel() == 0) return c;
  using Element = typename Type::Element;
  const bool whole_rows = K * sizeof(Element) % 16 == 0 && N * sizeof(Element) % 16 == 0;
  launch(Type{},
         Product<Type>{data<Element>(a), data<Element>(b), mutable_data<typename Type::Result>(c),
                       M, N, K, whole_rows && is_aligned(a, 32) && is_aligned(b, 32)});
  check_launch(name);
  return c;
}

template <typename Launch>
Tensor run_any(const Tensor& a, const Tensor& b, const char* name, Launch&& launch) {
  using enum ScalarType;
  check(a, "a").on_gpu().dtype({Half, BFloat16, Float, Char}).rank(2).contiguous();
  if (a.scalar_type() == Half) return run<Fp16>(a, b, name, launch);
  if (a.scalar_type() == BFloat16) return run<Bf16>(a, b, name, launch);
  if (a.scalar_type() == Float) return run<Tf32>(a, b, name, launch);
  return run<Int8>(a, b, name, launch);
}

template <typename Type>
unsigned tiles_of(const Product<Type>& p, int rows, int cols) {
  return grid_size(ceil_div<int64_t>(p.M, rows) * ceil_div<int64_t>(p.N, cols), "a and b");
}

// ---------------------------------------------------------------------------------------------
// v1: one warp per tile of C. Each fragment of A is loaded N / 16 times, each of B M / 16 times.

constexpr int V1_WARPS = 4;  // independent of each other; their tiles are adjacent
template <typename Type>
struct Edge {  // for a warp whose fragments reach beyond the matrix
  typename Type::Element a[SIDE * Type::DEPTH], b[Type::DEPTH * SIDE];
  typename Type::Sum sums[SIDE * SIDE];
};

template <typename Type>
__global__ void __launch_bounds__(32 * V1_WARPS) gemm_v1_naive_kernel(const Product<Type> p) {
  if constexpr (HAS_AMPERE || !Type::AMPERE) {
    constexpr int DEPTH = Type::DEPTH;
    __shared__ __align__(32) Edge<Type> edges[V1_WARPS];
    Edge<Type>& edge = edges[threadIdx.x / 32];
    const int64_t tile = int64_t{blockIdx.x} * V1_WARPS + threadIdx.x / 32;
    const int64_t tiles_n = ceil_div<int64_t>(p.N, SIDE);
    const int64_t m0 = tile / tiles_n * SIDE, n0 = tile % tiles_n * SIDE;
    if (m0 >= p.M) return;  // the whole warp
    const bool inside = p.aligned && m0 + SIDE <= p.M && n0 + SIDE <= p.N;
    Sums<Type> sums;
    wmma::fill_fragment(sums, 0);
    for (int64_t k = 0; k < p.K; k += DEPTH) {
      Fragment<Type, wmma::matrix_a> a;  // A[m0 + [0, 16), k + [0, DEPTH)]
      Fragment<Type, wmma::matrix_b> b;  // B[k + [0, DEPTH), n0 + [0, 16)]
      const auto *from_a = p.a + m0 * p.K + k, *from_b = p.b + k * p.N + n0;
      if (inside && k + DEPTH <= p.K) {
        load<Type>(a, from_a, p.K);
        load<Type>(b, from_b, p.N);
      } else {  // through shared memory, filled up with zeros
        copy_elements<SIDE, DEPTH, 32>(edge.a, DEPTH, from_a, p.K, p.M - m0, p.K - k);
        copy_elements<DEPTH, SIDE, 32>(edge.b, SIDE, from_b, p.N, p.K - k, p.N - n0);
        __syncwarp();  // both tiles are complete before the warp loads fragments of them
        load<Type>(a, edge.a, DEPTH);
        load<Type>(b, edge.b, SIDE);
        __syncwarp();  // the warp has loaded them before the next tiles overwrite these
      }
      wmma::mma_sync(sums, a, b, sums);
    }
    store<Type>(p.c + m0 * p.N + n0, sums, edge.sums, p.N, p.M - m0, p.N - n0);
  }
}

Tensor gemm_v1_naive(const Tensor& a, const Tensor& b) {
  return run_any(a, b, "gemm_v1_naive", [&]<typename Type>(Type, const Product<Type>& p) {
    const unsigned grid = ceil_div(tiles_of(p, SIDE, SIDE), unsigned{V1_WARPS});
    gemm_v1_naive_kernel<Type><<<grid, 32 * V1_WARPS, 0, current_stream(a)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: tiles in shared memory serve the whole block, and a fragment in registers serves
// four products. A block multiplies (BM, BK) by (BK, BN) per step, each of its 2×2 warps 64×64.

constexpr int BM = 128, BN = 128;
constexpr int BK_BYTES = 64;  // of a row of A per step: BK = 32 in fp16, 16 in tf32, 64 in int8
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int EACH = 4;  // fragments of A, and of B, that a warp multiplies with each other

// v3 against v2: PADDED rows. Fragments are loaded from eight rows at a time, 16 bytes of each: no
// banks are shared if the rows are an odd multiple of 16 bytes apart. But tf32 takes a fragment of
// B from four rows, 32 bytes of each, which have to be 8 banks apart.
template <typename Type, bool PADDED>
struct __align__(32) Tiles {
  static constexpr int BK = BK_BYTES / sizeof(typename Type::Element);
  static constexpr int A_PITCH = BK + (PADDED ? 16 / sizeof(typename Type::Element) : 0);
  static constexpr int B_PITCH = BN + (PADDED ? Type::B_PAD : 0);
  typename Type::Element a[BM * A_PITCH], b[BK * B_PITCH];
};

// The block copies ROWS × COLS elements, zeros beyond the edges. ASYNC: only starts the copies.
template <int ROWS, int COLS, int PITCH, bool ASYNC, typename T>
__device__ __forceinline__ void load_tile(T* tile, const T* from, int64_t stride, int64_t rows,
                                          int64_t cols, bool aligned) {
  if (!aligned) return copy_elements<ROWS, COLS, THREADS>(tile, PITCH, from, stride, rows, cols);
  constexpr int CHUNK = 16 / sizeof(T), CHUNKS = COLS / CHUNK;  // per row
#pragma unroll
  for (int e = threadIdx.x; e < ROWS * CHUNKS; e += THREADS) {
    // Eight lanes store 128 bytes at a time: one row, or the same chunk of eight short rows.
    constexpr bool SHORT = CHUNKS < 8;
    const int row = SHORT ? e / (8 * CHUNKS) * 8 + e % 8 : e / CHUNKS;
    const int col = CHUNK * (SHORT ? e / 8 % CHUNKS : e % CHUNKS);
    const bool inside = row < rows && col < cols;
    const T* source = inside ? from + row * stride + col : from;
    if constexpr (ASYNC) {
      ptx::cp_async_zero_fill<16>(tile + row * PITCH + col, source, inside ? 16 : 0);
    } else {
      *reinterpret_cast<uint4*>(tile + row * PITCH + col) =
          inside ? *reinterpret_cast<const uint4*>(source) : uint4{};
    }
  }
}

// sums += the warp's 64 rows of A, from m on, times its 64 columns of B, from n on.
template <typename Type, typename Tiles>
__device__ __forceinline__ void multiply(Sums<Type> (&sums)[EACH][EACH], const Tiles& tiles, int m,
                                         int n) {
#pragma unroll
  for (int k = 0; k < Tiles::BK; k += Type::DEPTH) {
    Fragment<Type, wmma::matrix_a> a[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      load<Type>(a[i], tiles.a + (m + SIDE * i) * Tiles::A_PITCH + k, Tiles::A_PITCH);
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      Fragment<Type, wmma::matrix_b> b;
      load<Type>(b, tiles.b + k * Tiles::B_PITCH + n + SIDE * j, Tiles::B_PITCH);
#pragma unroll
      for (int i = 0; i < EACH; ++i) wmma::mma_sync(sums[i][j], a[i], b, sums[i][j]);
    }
  }
}

// v4 against v3: two STAGES. While the tensor cores multiply one, cp.async fills the other.
template <typename Type, bool PADDED, int STAGES>
__global__ void __launch_bounds__(THREADS, 2) gemm_shared_kernel(const Product<Type> p) {
  constexpr bool ASYNC = STAGES > 1;
  if constexpr (HAS_AMPERE || !(ASYNC || Type::AMPERE)) {
    using Tile = Tiles<Type, PADDED>;
    constexpr int BK = Tile::BK;
    __shared__ Tile stages[STAGES];
    __shared__ __align__(32) typename Type::Sum scratch[WARPS][SIDE * SIDE];
    const int64_t tiles_n = ceil_div<int64_t>(p.N, BN);
    const int64_t m0 = blockIdx.x / tiles_n * BM, n0 = blockIdx.x % tiles_n * BN;
    const auto fetch = [&](int64_t k) {
      if (k >= p.K) return;
      Tile& tile = stages[k / BK % STAGES];
      load_tile<BM, BK, Tile::A_PITCH, ASYNC>(tile.a, p.a + m0 * p.K + k, p.K, p.M - m0, p.K - k,
                                              p.aligned);
      load_tile<BK, BN, Tile::B_PITCH, ASYNC>(tile.b, p.b + k * p.N + n0, p.N, p.K - k, p.N - n0,
                                              p.aligned);
    };
    const int warp = threadIdx.x / 32, m = warp / 2 * (SIDE * EACH), n = warp % 2 * (SIDE * EACH);
    Sums<Type> sums[EACH][EACH];
#pragma unroll
    for (int i = 0; i < EACH * EACH; ++i) wmma::fill_fragment(sums[i / EACH][i % EACH], 0);
    if constexpr (ASYNC) fetch(0);
    for (int64_t k = 0; k < p.K; k += BK) {
      if constexpr (ASYNC) ptx::cp_async_wait_all();
      // ASYNC: every thread's copies for k have arrived, and all warps have read the other stage.
      // Else: all warps have read the tiles before they are overwritten.
      __syncthreads();
      fetch(ASYNC ? k + BK : k);
      if constexpr (!ASYNC) __syncthreads();  // the tiles are complete before any warp reads them
      multiply<Type>(sums, stages[k / BK % STAGES], m, n);
    }
#pragma unroll
    for (int i = 0; i < EACH * EACH; ++i) {
      const int64_t row = m0 + m + SIDE * (i / EACH), col = n0 + n + SIDE * (i % EACH);
      store<Type>(p.c + row * p.N + col, sums[i / EACH][i % EACH], scratch[warp], p.N, p.M - row,
                  p.N - col);
    }
  }
}

template <bool PADDED, int STAGES>
auto shared_launch(const Tensor& a) {
  return [&a]<typename Type>(Type, const Product<Type>& p) {
    if (STAGES > 1) require_capability(8, 0, "cp.async");
    const auto kernel = gemm_shared_kernel<Type, PADDED, STAGES>;
    kernel<<<tiles_of(p, BM, BN), THREADS, 0, current_stream(a)>>>(p);
  };
}

Tensor gemm_v2_shared(const Tensor& a, const Tensor& b) {
  return run_any(a, b, "gemm_v2_shared", shared_launch<false, 1>(a));
}
Tensor gemm_v3_padded(const Tensor& a, const Tensor& b) {
  return run_any(a, b, "gemm_v3_padded", shared_launch<true, 1>(a));
}
Tensor gemm_v4_pipelined(const Tensor& a, const Tensor& b) {
  return run_any(a, b, "gemm_v4_pipelined", shared_launch<true, 2>(a));
}

// For the table of errors: what the type of the sums, and what rounding to tf32, is good for.
Tensor gemm_fp16_sums(const Tensor& a, const Tensor& b) {
  check(a, "a").on_gpu().dtype({ScalarType::Half}).rank(2).contiguous();
  return run<Fp16Sums>(a, b, "gemm_fp16_sums", shared_launch<true, 1>(a));
}
Tensor gemm_tf32_truncated(const Tensor& a, const Tensor& b) {
  check(a, "a").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  return run<Tf32Truncated>(a, b, "gemm_tf32_truncated", shared_launch<true, 1>(a));
}

RUNG(day53, gemm_v1_naive, "(Tensor a, Tensor b) -> Tensor");
RUNG(day53, gemm_v2_shared, "(Tensor a, Tensor b) -> Tensor");
RUNG(day53, gemm_v3_padded, "(Tensor a, Tensor b) -> Tensor");
RUNG(day53, gemm_v4_pipelined, "(Tensor a, Tensor b) -> Tensor");
RUNG(day53, gemm_fp16_sums, "(Tensor a, Tensor b) -> Tensor");
RUNG(day53, gemm_tf32_truncated, "(Tensor a, Tensor b) -> Tensor");

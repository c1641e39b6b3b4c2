// C = f(A · B + bias): arguments, tiles in shared memory and their products. Days 57 and 60 use
// them too, days 83, 88 and 90 by persistent.cuh.
#pragma once

#include "common/cuda/capability.cuh"  // taught in day 24
#include "common/cuda/matrix_map.cuh"  // taught in day 55
#include "common/cuda/ptx.cuh"         // wgmma: taught here; TMA: day 55
#include "common/cuda/tensor.cuh"      // taught in days 6 and 12

#include <optional>

using ptx::Major, ptx::Swizzle, ptx::TensorMap;

enum Activation { NONE, RELU, GELU };

template <typename T>
struct Gemm {
  const T* a;     // (M, K)
  const T* b;     // (K, N), or stored as (N, K)
  const T* bias;  // (N,) or null
  T* c;           // (M, N)
  int64_t M, N, K;
  int activation;
  float* partial = nullptr;  // (splits, M, N), parts of the sums, where there are several: v8
  int splits = 1;
};

// ---------------------------------------------------------------------------------------------
// Tiles. One step of the sum takes BK values of k, a row of 128 bytes, so that the swizzle of 128
// bytes makes both wgmma and TMA free of bank conflicts.

constexpr int BK = 64;
constexpr int ROW = BK * 2;     // bytes of a row of a tile
constexpr int WARPGROUP = 128;  // threads that issue a wgmma together, for 64 rows of A
constexpr int ROWS = 64;        // of A per wgmma

// One warpgroup loads, and CONSUMERS of them multiply.
constexpr int CONSUMERS = 2, CONSUMER_WARPS = CONSUMERS * 4;
constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);

// BM × BN elements of C. B_MAJOR: kK where B is stored as (N, K), else kMN: then 64 columns and BK
// rows make up a box of 8 KB, and a tile has BN / 64 of them.
template <typename Element, int M, int N, Major B>
struct Tile {
  using T = Element;
  static constexpr int BM = M, BN = N;
  static constexpr Major B_MAJOR = B;
  static constexpr int A_BYTES = BM * ROW, B_BYTES = BN * ROW, BYTES = A_BYTES + B_BYTES;
  static constexpr int BOX_BYTES = 64 * ROW;  // of B, kMN
};

// sums += 64 rows of A, at a, times B, at b: four wgmmas, each for 16 values of k.
template <typename P>
__device__ __forceinline__ void multiply(float (&sums)[P::BN / 2], const char* a, const char* b) {
  constexpr bool K_MAJOR = P::B_MAJOR == Major::kK;
#pragma unroll
  for (int k = 0; k < BK / 16; ++k) {
    const uint64_t of_a = ptx::wgmma_descriptor(a + k * 32, Swizzle::k128, 0, 8 * ROW);
    const uint64_t of_b = ptx::wgmma_descriptor(b + k * (K_MAJOR ? 32 : 16 * ROW), Swizzle::k128,
                                                K_MAJOR ? 0 : P::BOX_BYTES, 8 * ROW);
    ptx::wgmma<typename P::T, typename P::T, Major::kK, P::B_MAJOR>(sums, of_a, of_b);
  }
}

// Starts to load the `rank`-th of PARTS equal parts of B's tile of step k, which is BN columns from
// n on: parts of the columns where B is stored as (N, K), else parts of the values of k.
template <typename P, int PARTS = 1, typename Load>
__device__ __forceinline__ void load_b(char* tile, int n, int k, int rank, Load load) {
  if constexpr (P::B_MAJOR == Major::kK) {
    load(tile + rank * (P::B_BYTES / PARTS), k, n + rank * (P::BN / PARTS));
  } else {
#pragma unroll
    for (int i = 0; i < P::BN / 64; ++i) {
      load(tile + i * P::BOX_BYTES + rank * (P::BOX_BYTES / PARTS), n + i * 64,
           k + rank * (BK / PARTS));
    }
  }
}

// Starts to load both tiles of step k, and announces their bytes at `full`.
template <typename P>
__device__ __forceinline__ void load_tiles(char* stage, const TensorMap& a, const TensorMap& b,
                                           int m, int n, int k, uint64_t* full) {
  ptx::mbarrier_arrive_expect_bytes(full, P::BYTES);
  ptx::load_tensor(stage, a, {k, m}, full);
  load_b<P>(stage + P::A_BYTES, n, k, 0,
            [&](char* to, int inner, int outer) { ptx::load_tensor(to, b, {inner, outer}, full); });
}

// ---------------------------------------------------------------------------------------------
// The epilogue: f(sum + bias), rounded.

__device__ __forceinline__ float activated(float x, int activation) {
  if (activation == RELU) return fmaxf(x, 0.0f);
  if (activation == NONE) return x;
  return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// sums: of columns [n, n + 2 · COUNT), as wgmma leaves them (wgmma.cuh).
template <typename T, int COUNT>
__device__ __forceinline__ void finish(float (&sums)[COUNT], const Gemm<T>& p, int64_t n) {
  if (p.bias) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int64_t col = n + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      if (col < p.N) sums[i] += static_cast<float>(p.bias[col]);
    }
  }
  if (p.activation == NONE) return;
#pragma unroll
  for (float& x : sums) x = activated(x, p.activation);
}

// Stores 64 rows from m on and 2 · COUNT columns from n on into `to`, (M, N), element by element.
template <typename To, typename T, int COUNT>
__device__ __forceinline__ void store_elements(const float (&sums)[COUNT], To* to, const Gemm<T>& p,
                                               int64_t m, int64_t n) {
  const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
  const int64_t row = m + thread / 32 * 16 + lane / 4, first = n + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int64_t r = row + i / 2 % 2 * 8, col = first + i / 4 * 8 + i % 2;
    if (r < p.M && col < p.N) to[r * p.N + col] = static_cast<To>(sums[i]);
  }
}

template <typename T, int COUNT>
__device__ __forceinline__ void store_sums(float (&sums)[COUNT], const Gemm<T>& p, int64_t m,
                                           int64_t n) {
  finish(sums, p, n);
  store_elements(sums, p.c, p, m, n);
}

// ---------------------------------------------------------------------------------------------
// Launchers.

// The matrix t by rows that are adjacent in memory.
template <typename T>
TensorMap tile_map(const T* at, int64_t rows, int64_t cols, int box_rows, int box_cols,
                   Swizzle swizzle = Swizzle::k128) {
  return ptx::make_tensor_map(
      at, {.sizes = {cols, rows}, .box = {box_cols, box_rows}, .swizzle = swizzle});
}
template <typename P>
TensorMap map_of_a(const Gemm<typename P::T>& p) {
  return tile_map(p.a, p.M, p.K, P::BM, BK);
}
template <typename P, int PARTS = 1>
TensorMap map_of_b(const Gemm<typename P::T>& p) {
  return P::B_MAJOR == Major::kK ? tile_map(p.b, p.N, p.K, P::BN / PARTS, BK)
                                 : tile_map(p.b, p.K, p.N, BK / PARTS, 64);
}

// Checks the arguments and calls launch(gemm, major of B) unless C is empty.
//
// a: (M, K), contiguous. b: (K, N), contiguous, or the transpose of a contiguous (N, K). bias:
// (N,). bf16 or fp16; rows in memory are multiples of 16 bytes, as TMA needs.
template <typename Launch>
Tensor multiply_matrices(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                         int64_t activation, const char* kernel, Launch&& launch) {
  check(a, "a").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(2).contiguous();
  check(b, "b").on_gpu().dtype({a.scalar_type()}).rank(2).same_device(a, "a").size(0, a.size(1));
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  // A dimension of one element may have any stride.
  const bool cols = (K == 1 || b.stride(0) == 1) && (N == 1 || b.stride(1) == K);
  const bool rows = (N == 1 || b.stride(1) == 1) && (K == 1 || b.stride(0) == N);
  STD_TORCH_CHECK(rows || cols || b.numel() == 0,
                  "b: expected a contiguous matrix or the transpose of one, got strides ",
                  b.stride(0), " and ", b.stride(1));
  STD_TORCH_CHECK(K % 8 == 0, "a: expected rows of a multiple of 8 elements, as TMA needs, got ",
                  K);
  STD_TORCH_CHECK(cols || N % 8 == 0,
                  "b: expected rows of a multiple of 8 elements, as TMA needs, got ", N);
  STD_TORCH_CHECK(M < INT32_MAX && N < INT32_MAX && K < INT32_MAX,
                  "a, b: expected fewer than 2^31 rows and columns");
  if (bias) {
    check(*bias, "bias").on_gpu().dtype({a.scalar_type()}).rank(1).contiguous().size(0, N);
    check(*bias, "bias").same_device(a, "a");
  }
  STD_TORCH_CHECK(activation >= NONE && activation <= GELU,
                  "activation: expected 0 (none), 1 (relu) or 2 (gelu), got ", activation);
  const DeviceGuard guard(a);
  Tensor c = allocate(a, {M, N});
  if (c.numel() == 0) return c;
  require_wgmma();
  STD_TORCH_CHECK(K > 0, "a: expected at least 8 columns, got 0");
  STD_TORCH_CHECK(is_aligned(a, 16) && is_aligned(b, 16),
                  "a, b: TMA needs addresses that are multiples of 16");
  const auto with_type = [&](auto zero) {
    using T = decltype(zero);
    const Gemm<T> p{data<T>(a), data<T>(b), bias ? data<T>(*bias) : nullptr, mutable_data<T>(c), M,
                    N,          K,          static_cast<int>(activation)};
    if (cols) {
      launch(p, std::integral_constant<Major, Major::kK>{});
    } else {
      launch(p, std::integral_constant<Major, Major::kMN>{});
    }
  };
  if (a.scalar_type() == ScalarType::Half) {
    with_type(__half{});
  } else {
    with_type(__nv_bfloat16{});
  }
  check_launch(kernel);
  return c;
}

#define GEMM "(Tensor a, Tensor b, Tensor? bias=None, int activation=0) -> Tensor"

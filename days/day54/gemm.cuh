// C = A · B of 16-bit numbers: arguments, whole rows, C's rows out of fragments, for all rungs.
#pragma once

#include "common/cuda/capability.cuh"  // taught in day 24
#include "common/cuda/mma_tiles.cuh"   // taught in day 26
#include "common/cuda/tensor.cuh"      // taught in days 6 and 12

template <typename T>
struct Gemm {
  const T* a;        // (M, K), lda elements from row to row
  const T* b;        // (K, N), or stored as (N, K), ldb elements from row to row
  T* c;              // (M, N)
  int64_t lda, ldb;  // multiples of 8: rows begin at multiples of 16 bytes
  int M, N, K;
};

// ---------------------------------------------------------------------------------------------
// Rows that do not begin at multiples of 16 bytes are copied, with zeros behind them, before the
// product: cp.async copies 16 bytes at a time only between such addresses.

constexpr int PAD_THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(PAD_THREADS)
    pad_rows_kernel(const T* from, T* to, int64_t rows, int64_t cols, int64_t pitch) {
  const int64_t count = rows * pitch, stride = int64_t{gridDim.x} * PAD_THREADS;
  for (int64_t i = int64_t{blockIdx.x} * PAD_THREADS + threadIdx.x; i < count; i += stride) {
    const int64_t row = i / pitch, col = i % pitch;
    to[i] = col < cols ? from[row * cols + col] : static_cast<T>(0.0f);
  }
}

// x, stored as (rows, cols), or a copy of it whose rows are a multiple of 8 elements.
template <typename T>
Tensor whole_rows(const Tensor& x, int64_t rows, int64_t cols) {
  if (cols % 8 == 0 && is_aligned(x, 16)) return x;
  const int64_t pitch = ceil_div<int64_t>(cols, 8) * 8;
  Tensor copy = allocate(x, {rows, pitch});
  const int64_t blocks = ceil_div<int64_t>(rows * pitch, PAD_THREADS * 8);
  pad_rows_kernel<T><<<grid_size(blocks, "a, b"), PAD_THREADS, 0, current_stream(x)>>>(
      data<T>(x), mutable_data<T>(copy), rows, cols, pitch);
  check_launch("pad_rows");
  return copy;
}

// ---------------------------------------------------------------------------------------------
// C's rows out of fragments: a lane has two neighbours of each 16×8 result, four lanes a row of it.

// The transpose of a matrix of 4×4 words, a column in each of four adjacent lanes: afterwards
// words[i] of lane t is what words[t] of lane i was.
__device__ __forceinline__ void transpose_in_four_lanes(uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t low = words[i], high = words[i | bit];
      const uint32_t got = __shfl_xor_sync(0xffffffff, upper ? low : high, bit);
      words[i] = upper ? got : low, words[i | bit] = upper ? high : got;
    }
  }
}

// Rounds and stores a warp's sums: ROWS fragments of 16 rows from m on, COLS of 8 columns. Its
// first 32 columns begin at n, the next STRIDE columns further. Four fragments beside each other
// give each lane 8 adjacent columns, 16 bytes.
template <int STRIDE, typename T, int ROWS, int COLS>
__device__ __forceinline__ void store_sums(const Gemm<T>& p, const float (&sums)[ROWS][COLS][4],
                                           int m, int n) {
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const bool wide = p.N % 8 == 0;
#pragma unroll
  for (int i = 0; i < 2 * ROWS; ++i) {
    const int row = m + 8 * i + lane / 4, half = i % 2 * 2;
    T* const to = p.c + int64_t{row} * p.N;
    if (wide) {
#pragma unroll
      for (int j = 0; j < COLS; j += 4) {
        uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const auto& of = sums[i / 2][j + k];
          words[k] = tiles::pack<T>(of[half], of[half + 1]);
        }
        transpose_in_four_lanes(words);
        const int col = n + j / 4 * STRIDE + 8 * quad;
        const uint4 eight = make_uint4(words[0], words[1], words[2], words[3]);
        if (row < p.M && col < p.N) *reinterpret_cast<uint4*>(to + col) = eight;
      }
    } else if (row < p.M) {
#pragma unroll
      for (int j = 0; j < 2 * COLS; ++j) {
        const int col = n + j / 8 * STRIDE + 8 * (j / 2 % 4) + 2 * quad + j % 2;
        if (col < p.N) to[col] = static_cast<T>(sums[i / 2][j / 2][half + j % 2]);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------
// What all launchers do.

// Checks the arguments and calls launch(gemm, b is stored as (N, K)) unless C is empty.
//
// a: (M, K), contiguous. b: (K, N), contiguous, or the transpose of a contiguous (N, K). fp16 or
// bf16, sums in fp32. K may be 0.
template <typename Launch>
Tensor multiply_matrices(const Tensor& a, const Tensor& b, const char* kernel, Launch&& launch) {
  check(a, "a").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(2).contiguous();
  check(b, "b").on_gpu().dtype({a.scalar_type()}).rank(2).same_device(a, "a").size(0, a.size(1));
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  // A dimension of one element may have any stride.
  const bool rows = (N == 1 || b.stride(1) == 1) && (K == 1 || b.stride(0) == N);
  const bool cols = (K == 1 || b.stride(0) == 1) && (N == 1 || b.stride(1) == K);
  STD_TORCH_CHECK(rows || cols || b.numel() == 0,
                  "b: expected a contiguous matrix or the transpose of one, got strides ",
                  b.stride(0), " and ", b.stride(1));
  constexpr int64_t MOST = INT32_MAX - 1024;  // so that the end of the last tile is an int, too
  STD_TORCH_CHECK(M < MOST && N < MOST && K < MOST,
                  "a, b: expected fewer than 2^31 - 1024 rows and columns");
  const DeviceGuard guard(a);
  require_capability(8, 0, "mma.sync of 16×8×16");
  if (K == 0) return allocate_zeros(a, {M, N});
  Tensor c = allocate(a, {M, N});
  if (c.numel() == 0) return c;
  const auto run = [&]<typename T>(T) {
    const Tensor whole_a = whole_rows<T>(a, M, K);
    const Tensor whole_b = rows ? whole_rows<T>(b, K, N) : whole_rows<T>(b, N, K);
    const auto pitch = [](int64_t n) { return ceil_div<int64_t>(n, 8) * 8; };
    const Gemm<T> p{
        data<T>(whole_a),    data<T>(whole_b),    mutable_data<T>(c),  pitch(K),
        pitch(rows ? N : K), static_cast<int>(M), static_cast<int>(N), static_cast<int>(K)};
    rows ? launch(p, std::false_type{}) : launch(p, std::true_type{});
  };
  a.scalar_type() == ScalarType::Half ? run(__half{}) : run(__nv_bfloat16{});
  check_launch(kernel);
  return c;
}

// Day 7: matrix multiplication from global memory, and what the order of the threads costs
//
//   C[m, n] = sum_k A[m, k] · B[k, n]      A: (M, K), B: (K, N), C: (M, N), all row-major
//
// Operations: 2 · M · N · K (a multiply and an add). Bytes, each matrix touched once: (M·K + K·N +
// M·N) · sizeof(T). For 2048³ fp32: 17.2 GFLOP and 50 MB, 341 FLOP per byte, so arithmetic should
// be the limit. But each of the M·N threads loads 2·K numbers: 69 GB of loads for those 50 MB.
//
//   v1 row_major   neighbouring threads take neighbouring rows: loads of A and stores of C scatter
//   v2 coalesced   neighbouring threads take neighbouring columns: all accesses are coalesced
//
// Run: python run_day.py 7

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"

// A block computes 32 × 8 elements of C; its threads with the same threadIdx.y are one warp.
constexpr int BLOCK_X = 32;
constexpr int BLOCK_Y = 8;

// Checks A (M, K) and B (K, N), and allocates C (M, N).
Tensor make_output(const Tensor& a, const Tensor& b) {
  check(a, "a").on_gpu().floating().rank(2).contiguous();
  check(b, "b").on_gpu().dtype({a.scalar_type()}).rank(2).contiguous();
  check(b, "b").same_device(a, "a").size(0, a.size(1));
  return allocate(a, {a.size(0), b.size(1)});
}

// ---------------------------------------------------------------------------------------------
// v1: threadIdx.x counts rows. At each k the 32 lanes of a warp read from 32 different rows of A, K
// elements apart: 32 sectors. All read the same element of B: a broadcast of one sector. The sum is
// fp32 whatever T is.

template <typename T>
__global__ void matmul_v1_row_major_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                           T* __restrict__ c, int64_t M, int64_t N, int64_t K) {
  const int64_t m = int64_t{blockIdx.x} * BLOCK_X + threadIdx.x;
  const int64_t n = int64_t{blockIdx.y} * BLOCK_Y + threadIdx.y;
  if (m >= M || n >= N) return;
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) {
    sum += static_cast<float>(a[m * K + k]) * static_cast<float>(b[k * N + n]);
  }
  c[m * N + n] = static_cast<T>(sum);
}

Tensor matmul_v1_row_major(const Tensor& a, const Tensor& b) {
  Tensor c = make_output(a, b);
  if (c.numel() == 0) return c;  // a grid of 0 blocks is a launch error
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const dim3 grid(grid_size(ceil_div<int64_t>(M, BLOCK_X), "a"),
                  grid_size_y(ceil_div<int64_t>(N, BLOCK_Y), "b"));
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    matmul_v1_row_major_kernel<T><<<grid, dim3(BLOCK_X, BLOCK_Y), 0, current_stream(a)>>>(
        data<T>(a), data<T>(b), mutable_data<T>(c), M, N, K);
  });
  check_launch("matmul_v1_row_major");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: threadIdx.x counts columns. At each k the 32 lanes read neighbouring elements of a
// row of B, which is coalesced (4 sectors in fp32, if aligned), and the same element of A, a
// broadcast. They store neighbouring elements of C.

template <typename T>
__global__ void matmul_v2_coalesced_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                           T* __restrict__ c, int64_t M, int64_t N, int64_t K) {
  const int64_t n = int64_t{blockIdx.x} * BLOCK_X + threadIdx.x;
  const int64_t m = int64_t{blockIdx.y} * BLOCK_Y + threadIdx.y;
  if (m >= M || n >= N) return;
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) {
    sum += static_cast<float>(a[m * K + k]) * static_cast<float>(b[k * N + n]);
  }
  c[m * N + n] = static_cast<T>(sum);
}

Tensor matmul_v2_coalesced(const Tensor& a, const Tensor& b) {
  Tensor c = make_output(a, b);
  if (c.numel() == 0) return c;
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const dim3 grid(grid_size(ceil_div<int64_t>(N, BLOCK_X), "b"),
                  grid_size_y(ceil_div<int64_t>(M, BLOCK_Y), "a"));
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    matmul_v2_coalesced_kernel<T><<<grid, dim3(BLOCK_X, BLOCK_Y), 0, current_stream(a)>>>(
        data<T>(a), data<T>(b), mutable_data<T>(c), M, N, K);
  });
  check_launch("matmul_v2_coalesced");
  return c;
}

// ---------------------------------------------------------------------------------------------

RUNG(day07, matmul_v1_row_major, "(Tensor a, Tensor b) -> Tensor");
RUNG(day07, matmul_v2_coalesced, "(Tensor a, Tensor b) -> Tensor");

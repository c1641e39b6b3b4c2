// Day 82: C = op(A) · op(B) + β · C for row-major matrices, sums in fp32: by cuBLAS (day 25), or by
// a kernel with one thread per element where cuBLAS's headers are missing, as on the CPU backend.
#pragma once

#include "common/cuda/tensor.cuh"        // taught in days 6 and 12
#include "days/day25/cublas_handle.cuh"  // taught in day 25

#include <cstdint>
#include <type_traits>

// ld: elements from one row to the next, as they lie in memory. transposed: op is the transpose.
template <typename T>
struct Matrix {
  const T* at;
  int64_t ld;
  bool transposed;
};

#ifdef HAVE_CUBLAS
using Products = Library;  // handle and workspace, for all products of a launcher

template <typename T>
constexpr cudaDataType_t TYPE_OF = std::is_same_v<T, float>    ? CUDA_R_32F
                                   : std::is_same_v<T, __half> ? CUDA_R_16F
                                                               : CUDA_R_16BF;

// C: (M, N), op(A): (M, K), op(B): (K, N); none of them may be 0. With β = 0, C is not read.
template <typename T, typename To>
void multiply(const Products& by, Matrix<T> a, Matrix<T> b, To* c, int64_t ld, int64_t M, int64_t N,
              int64_t K, float beta) {
  const float alpha = 1;
  const auto op = [](const Matrix<T>& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  // cuBLAS is column-major, so it computes Cᵀ = op(B)ᵀ · op(A)ᵀ.
  check_cublas(cublasGemmEx_64(by.handle, op(b), op(a), N, M, K, &alpha, b.at, TYPE_OF<T>, b.ld,
                               a.at, TYPE_OF<T>, a.ld, &beta, c, TYPE_OF<To>, ld,
                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               "cublasGemmEx");
}
#endif

#ifndef HAVE_CUBLAS
struct Products {
  const Tensor& on;
};

template <typename T>
__device__ float element(const Matrix<T>& m, int64_t row, int64_t col) {
  return static_cast<float>(m.at[m.transposed ? col * m.ld + row : row * m.ld + col]);
}

constexpr int PRODUCT_BLOCK = 256;

template <typename T, typename To>
__global__ void __launch_bounds__(PRODUCT_BLOCK)
    product_kernel(Matrix<T> a, Matrix<T> b, To* c, int64_t ld, int64_t M, int64_t N, int64_t K,
                   float beta) {
  const int64_t i = int64_t{blockIdx.x} * PRODUCT_BLOCK + threadIdx.x;
  if (i >= M * N) return;
  const int64_t m = i / N, n = i % N;
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += element(a, m, k) * element(b, k, n);
  To& to = c[m * ld + n];
  to = static_cast<To>(beta == 0 ? sum : sum + beta * static_cast<float>(to));
}

template <typename T, typename To>
void multiply(const Products& by, Matrix<T> a, Matrix<T> b, To* c, int64_t ld, int64_t M, int64_t N,
              int64_t K, float beta) {
  const int64_t blocks = ceil_div<int64_t>(M * N, PRODUCT_BLOCK);
  product_kernel<<<grid_size(blocks, "weight"), PRODUCT_BLOCK, 0, current_stream(by.on)>>>(
      a, b, c, ld, M, N, K, beta);
  check_launch("product");
}
#endif

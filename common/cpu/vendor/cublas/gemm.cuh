// Products of column-major matrices for cuBLAS and cuBLASLt: D = f(alpha op(A) op(B) + beta C).
#pragma once

#include "cublas_v2.h"

#include <algorithm>

namespace cudacpu_blas {

inline bool is_op(cublasOperation_t op) {
  return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
}

// Sums of half and bfloat16 are kept in float, those of int8 in int.
template <class T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<double> {
  using Type = double;
};
template <>
struct SumOf<int8_t> {
  using Type = int;
};
template <>
struct SumOf<int> {
  using Type = int;
};
template <class T>
using Sum = typename SumOf<T>::Type;

template <class S>
inline S to_sum(__half x) {
  return static_cast<S>(__half2float(x));
}
template <class S>
inline S to_sum(__nv_bfloat16 x) {
  return static_cast<S>(__bfloat162float(x));
}
template <class S, class T>
inline S to_sum(T x) {
  return static_cast<S>(x);
}
template <class T, class S>
inline T from_sum(S x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

// alpha or beta: a value of the host, or the address of one in device memory.
template <class T>
struct Scalar {
  T value;
  const T* address;
};
template <class T>
Scalar<T> scalar(cublasPointerMode_t mode, const void* from) {
  const auto* typed = static_cast<const T*>(from);
  return mode == CUBLAS_POINTER_MODE_DEVICE ? Scalar<T>{T{}, typed} : Scalar<T>{*typed, nullptr};
}
template <class T>
__device__ inline T value_of(const Scalar<T>& scalar) {
  return scalar.address ? *scalar.address : scalar.value;
}

// The matrices of a batch: `stride` elements apart, or each at an address of a list in device
// memory.
template <class T>
struct Batch {
  T* first;
  int64_t ld;
  int64_t stride = 0;
  T* const* list = nullptr;

  __device__ T* at(int64_t i) const { return list ? list[i] : first + i * stride; }
};

enum class Activation { kNone, kRelu, kGelu, kGeluGradient };

// The operations on an element of the product before it is stored.
struct Epilogue {
  const void* bias = nullptr;  // per row of D
  cudaDataType bias_type = CUDA_R_32F;
  Activation activation = Activation::kNone;
  void* aux = nullptr;  // of D's type: what GELU was taken of
  int64_t aux_ld = 0, aux_stride = 0;
};

template <class In, class Out, class Scale>
struct Product {
  int64_t m, n, k;
  bool transposed_a, transposed_b;
  Scalar<Scale> alpha, beta;
  Batch<const In> a, b;
  Batch<const Out> c;
  Batch<Out> d;
  Epilogue epilogue;
};

constexpr int TILE = 64;   // rows and columns of D per block
constexpr int DEPTH = 32;  // columns of op(A) that are copied at a time

// GELU by tanh, as cuBLASLt has it, and its derivative.
template <class S>
__device__ inline S gelu(S x) {
  const S inner = static_cast<S>(0.7978845608028654) * (x + static_cast<S>(0.044715) * x * x * x);
  return static_cast<S>(0.5) * x * (1 + tanh(inner));
}
template <class S>
__device__ inline S gelu_gradient(S x) {
  const S slope = static_cast<S>(0.7978845608028654);
  const S t = tanh(slope * (x + static_cast<S>(0.044715) * x * x * x));
  const S inner = slope * (1 + 3 * static_cast<S>(0.044715) * x * x);
  return static_cast<S>(0.5) * (1 + t + x * (1 - t * t) * inner);
}

template <class S, class Out>
__device__ inline S finished(S x, const Epilogue& e, int64_t row, int64_t col, int64_t batch) {
  if (e.bias) {
    switch (e.bias_type) {
      case CUDA_R_16F:
        x += to_sum<S>(static_cast<const __half*>(e.bias)[row]);
        break;
      case CUDA_R_16BF:
        x += to_sum<S>(static_cast<const __nv_bfloat16*>(e.bias)[row]);
        break;
      case CUDA_R_64F:
        x += to_sum<S>(static_cast<const double*>(e.bias)[row]);
        break;
      default:
        x += to_sum<S>(static_cast<const float*>(e.bias)[row]);
    }
  }
  auto* aux = static_cast<Out*>(e.aux) + batch * e.aux_stride + col * e.aux_ld + row;
  switch (e.activation) {
    case Activation::kRelu:
      return std::max<S>(x, 0);
    case Activation::kGelu:
      if (e.aux) *aux = from_sum<Out>(x);
      return gelu(x);
    case Activation::kGeluGradient:
      return x * gelu_gradient(to_sum<S>(*aux));
    default:
      return x;
  }
}

// One thread per block computes a tile of D, so that the compiler can use the CPU's vectors.
template <class In, class Out, class Scale>
__global__ void gemm_kernel(Product<In, Out, Scale> p) {
  using S = Sum<In>;
  const int64_t batch = blockIdx.z, row = int64_t{blockIdx.x} * TILE,
                col = int64_t{blockIdx.y} * TILE;
  const int rows = static_cast<int>(std::min<int64_t>(TILE, p.m - row));
  const int cols = static_cast<int>(std::min<int64_t>(TILE, p.n - col));
  const Scale alpha = value_of(p.alpha), beta = value_of(p.beta);
  const bool with_product = to_sum<S>(alpha) != 0, with_c = to_sum<S>(beta) != 0;
  S sums[TILE][TILE] = {};  // [column][row]
  S a[DEPTH][TILE] = {};
  const In* from_a = p.a.at(batch);
  const In* from_b = p.b.at(batch);
  for (int64_t first = 0; with_product && first < p.k; first += DEPTH) {
    const int depth = static_cast<int>(std::min<int64_t>(DEPTH, p.k - first));
    for (int x = 0; x < depth; ++x) {
      for (int i = 0; i < rows; ++i) {
        a[x][i] = to_sum<S>(p.transposed_a ? from_a[(row + i) * p.a.ld + first + x]
                                           : from_a[(first + x) * p.a.ld + row + i]);
      }
    }
    for (int j = 0; j < cols; ++j) {
      for (int x = 0; x < depth; ++x) {
        const S b = to_sum<S>(p.transposed_b ? from_b[(first + x) * p.b.ld + col + j]
                                             : from_b[(col + j) * p.b.ld + first + x]);
        for (int i = 0; i < TILE; ++i) sums[j][i] += a[x][i] * b;
      }
    }
  }
  const Out* c = p.c.at(batch);
  Out* d = p.d.at(batch);
  for (int j = 0; j < cols; ++j) {
    for (int i = 0; i < rows; ++i) {
      S x = to_sum<S>(alpha) * sums[j][i];  // of beta 0, C may hold anything
      if (with_c) x += to_sum<S>(beta) * to_sum<S>(c[(col + j) * p.c.ld + row + i]);
      x = finished<S, Out>(x, p.epilogue, row + i, col + j, batch);
      d[(col + j) * p.d.ld + row + i] = from_sum<Out>(x);
    }
  }
}

inline cublasStatus_t launched() {
  return cudaPeekAtLastError() == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}

// Check what cuBLAS checks of the sizes.
template <class In, class Out, class Scale>
cublasStatus_t multiply(const Product<In, Out, Scale>& p, int64_t batches, cudaStream_t stream) {
  const auto rows_of_a = p.transposed_a ? p.k : p.m, rows_of_b = p.transposed_b ? p.n : p.k;
  const bool sizes = p.m >= 0 && p.n >= 0 && p.k >= 0 && batches >= 0;
  if (!sizes || p.a.ld < std::max<int64_t>(rows_of_a, 1) ||
      p.b.ld < std::max<int64_t>(rows_of_b, 1) || p.c.ld < std::max<int64_t>(p.m, 1) ||
      p.d.ld < std::max<int64_t>(p.m, 1))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p.m == 0 || p.n == 0 || batches == 0) return CUBLAS_STATUS_SUCCESS;
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + TILE - 1) / TILE); };
  const dim3 grid(tiles(p.m), tiles(p.n), static_cast<unsigned>(batches));
  gemm_kernel<In, Out, Scale><<<grid, 1, 0, stream>>>(p);
  return launched();
}

}  // namespace cudacpu_blas

// Day 30: the MLP of a GPT-2 block, GELU with bias by itself and in the epilogue of a product
//
//   y = gelu(x · W1ᵀ + b1) · W2ᵀ + b2     x, y: (rows, C), W1: (4C, C), W2: (C, 4C)
//
// with gelu(v) = v / (1 + exp(-2u)), u = √(2/π) · (v + 0.044715 v³), which is the formula with
// tanh. bias_gelu alone, gelu(x + bias), reads x and writes y; its backward pass reads gy and x and
// writes gx: 5 · sizeof(T) per element of (rows, 4C), bound by memory. The six products of a
// training step take 48 · rows · C² operations on tensor cores, which bound the MLP.
//
//   bias_gelu v1 two_passes   one thread per element; the bias gradient reads gx again
//   bias_gelu v2 one_pass     packs of 16 bytes; gx is summed while it is in registers
//   mlp v1 kernels            products by cuBLAS, bias_gelu v2 between them
//   mlp v2 epilogue           the forward half of bias_gelu in the epilogue of cuBLASLt
//
// Run: python run_day.py 30

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "days/day25/cublas_handle.cuh"     // taught in day 25
#include "days/day30/row_sums.cuh"

#include <map>
#include <tuple>
#include <type_traits>

constexpr int BLOCK = 128;

// ---------------------------------------------------------------------------------------------
// GELU and its derivative. With the sigmoid s = 1 / (1 + exp(-2u)), nothing cancels for large
// negative v, where 1 + tanh(u) would.

constexpr float SQRT_2_OVER_PI = 0.79788456f, CUBIC = 0.044715f;

// s and 1 - s. For 16-bit results the special function unit is exact enough: errors below 2⁻¹⁶.
struct Sigmoid {
  float s, rest;
};
template <typename T>
__device__ Sigmoid sigmoid_of_2u(float v) {
  const float minus_2u = -2 * SQRT_2_OVER_PI * v * (1 + CUBIC * v * v);
  constexpr bool exact = std::is_same_v<T, float>;
  const float e = exact ? expf(minus_2u) : __expf(minus_2u);
  const float s = exact ? 1 / (1 + e) : __fdividef(1.0f, 1 + e);  // 0 where e overflows
  return {s, e < 1 ? e * s : 1 - s};  // the left form keeps the digits of a small rest
}

template <typename T>
__device__ float gelu(float v) {
  return v * sigmoid_of_2u<T>(v).s;
}

template <typename T>
__device__ float gelu_derivative(float v) {
  const auto [s, rest] = sigmoid_of_2u<T>(v);
  return s + v * s * rest * (2 * SQRT_2_OVER_PI) * (1 + 3 * CUBIC * v * v);
}

// ---------------------------------------------------------------------------------------------
// bias_gelu v1: one thread per element, and a second pass over gx for the gradient of the bias.

template <typename T>
__global__ void bias_gelu_v1_kernel(const T* __restrict__ x, const T* __restrict__ bias,
                                    T* __restrict__ y, int64_t n, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  y[i] = static_cast<T>(gelu<T>(static_cast<float>(x[i]) + static_cast<float>(bias[i % cols])));
}

template <typename T>
__global__ void bias_gelu_backward_v1_kernel(const T* __restrict__ gy, const T* __restrict__ x,
                                             const T* __restrict__ bias, T* __restrict__ gx,
                                             int64_t n, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  const float v = static_cast<float>(x[i]) + static_cast<float>(bias[i % cols]);
  gx[i] = static_cast<T>(static_cast<float>(gy[i]) * gelu_derivative<T>(v));
}

template <typename T>
__global__ void bias_column_sums_kernel(const T* __restrict__ gx, float* __restrict__ partial,
                                        int64_t rows, int64_t cols) {
  column_sums<1>(partial, rows, cols, [&](int64_t r, int64_t c, float (&sums)[1]) {
    sums[0] += static_cast<float>(gx[r * cols + c]);
  });
}

void check_bias_gelu(const Tensor& x, const Tensor& bias) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(bias, "bias").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(bias, "bias").same_device(x, "x").size(0, x.size(1));
}

Tensor bias_gelu_v1_two_passes(const Tensor& x, const Tensor& bias) {
  check_bias_gelu(x, bias);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const unsigned blocks = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    bias_gelu_v1_kernel<T><<<blocks, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(bias), mutable_data<T>(y), x.numel(), x.size(1));
  });
  check_launch("bias_gelu_v1");
  return y;
}

// Returns the gradients of x and of bias.
std::tuple<Tensor, Tensor> bias_gelu_backward_v1_two_passes(const Tensor& gy, const Tensor& x,
                                                            const Tensor& bias) {
  check_bias_gelu(x, bias);
  check(gy, "gy").on_gpu().like(x, "x").contiguous();
  const DeviceGuard guard(x);
  Tensor gx = allocate_like(x), gb = allocate_like(bias);
  const int64_t rows = x.size(0), cols = x.size(1);
  const dim3 grid = column_grid(rows, cols);
  Tensor partial = allocate(x, {grid.y, cols}, ScalarType::Float);
  if (x.numel() > 0) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
    dispatch_floating(x, [&](auto zero) {
      using T = decltype(zero);
      bias_gelu_backward_v1_kernel<T><<<blocks, BLOCK, 0, current_stream(x)>>>(
          data<T>(gy), data<T>(x), data<T>(bias), mutable_data<T>(gx), x.numel(), cols);
      bias_column_sums_kernel<T><<<grid, dim3(32, TALL), 0, current_stream(x)>>>(
          data<T>(gx), mutable_data<float>(partial), rows, cols);
    });
    check_launch("bias_gelu_backward_v1");
  }
  sum_chunks(partial, gb);
  return {gx, gb};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a thread takes one pack of columns and many rows, so that it loads the bias once
// and adds up gx in registers. ROWS loads are in flight at a time.

constexpr int ROWS = 2;

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    bias_gelu_v2_kernel(const Pack<T>* __restrict__ x, const Pack<T>* __restrict__ bias,
                        Pack<T>* __restrict__ y, int64_t rows, int packs) {
  const int p = blockIdx.x * BLOCK + threadIdx.x;
  if (p >= packs) return;
  const Pack<T> b = bias[p];
  for (int64_t r0 = int64_t{blockIdx.y} * ROWS; r0 < rows; r0 += gridDim.y * ROWS) {
    Pack<T> v[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r0 + k < rows) v[k] = x[(r0 + k) * packs + p];
    }
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r0 + k >= rows) break;
      for (int i = 0; i < Pack<T>::N; ++i) {
        v[k].at[i] =
            static_cast<T>(gelu<T>(static_cast<float>(v[k].at[i]) + static_cast<float>(b.at[i])));
      }
      y[(r0 + k) * packs + p] = v[k];
    }
  }
}

// partial[blockIdx.y][c] = the sum of gx over the rows of the block
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    bias_gelu_backward_v2_kernel(const Pack<T>* __restrict__ gy, const Pack<T>* __restrict__ x,
                                 const Pack<T>* __restrict__ bias, Pack<T>* __restrict__ gx,
                                 float* __restrict__ partial, int64_t rows, int packs) {
  constexpr int N = Pack<T>::N;
  const int p = blockIdx.x * BLOCK + threadIdx.x;
  if (p >= packs) return;
  const Pack<T> b = bias[p];
  float sums[N] = {};
  for (int64_t r0 = int64_t{blockIdx.y} * ROWS; r0 < rows; r0 += gridDim.y * ROWS) {
    Pack<T> v[ROWS], g[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r0 + k >= rows) break;
      v[k] = x[(r0 + k) * packs + p];
      g[k] = gy[(r0 + k) * packs + p];
    }
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r0 + k >= rows) break;
      for (int i = 0; i < N; ++i) {
        const float slope =
            gelu_derivative<T>(static_cast<float>(v[k].at[i]) + static_cast<float>(b.at[i]));
        const float gi = static_cast<float>(g[k].at[i]) * slope;
        sums[i] += gi;
        g[k].at[i] = static_cast<T>(gi);
      }
      gx[(r0 + k) * packs + p] = g[k];
    }
  }
  for (int i = 0; i < N; ++i) partial[(int64_t{blockIdx.y} * packs + p) * N + i] = sums[i];
}

// Whether x and bias are made of aligned packs.
bool has_packs(const Tensor& x, const Tensor& bias) {
  return x.size(1) * x.element_size() % 16 == 0 && is_aligned(x, 16) && is_aligned(bias, 16);
}

// A strip of BLOCK packs per block along x; along y as many blocks as are resident at once.
template <typename Kernel>
dim3 strips(Kernel kernel, const Tensor& x) {
  const int64_t packs = x.size(1) * x.element_size() / 16;
  const unsigned columns = grid_size(ceil_div<int64_t>(packs, BLOCK), "x");
  const int64_t most = ceil_div<int64_t>(resident_grid(x, kernel, BLOCK, 0, INT32_MAX), columns);
  return dim3(columns, static_cast<unsigned>(std::min(most, ceil_div<int64_t>(x.size(0), ROWS))));
}

constexpr char NO_PACKS[] = "rows that are not made of aligned packs of 16 bytes";

Tensor bias_gelu_v2_one_pass(const Tensor& x, const Tensor& bias) {
  check_bias_gelu(x, bias);
  if (!has_packs(x, bias)) {
    fell_back("bias_gelu_v1_two_passes", NO_PACKS);
    return bias_gelu_v1_two_passes(x, bias);
  }
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  dispatch_floating(x, [&](auto zero) {
    using P = Pack<decltype(zero)>;
    const auto kernel = bias_gelu_v2_kernel<decltype(zero)>;
    kernel<<<strips(kernel, x), BLOCK, 0, current_stream(x)>>>(data<P>(x), data<P>(bias),
                                                               mutable_data<P>(y), x.size(0),
                                                               static_cast<int>(x.size(1) / P::N));
  });
  check_launch("bias_gelu_v2");
  return y;
}

std::tuple<Tensor, Tensor> bias_gelu_backward_v2_one_pass(const Tensor& gy, const Tensor& x,
                                                          const Tensor& bias) {
  check_bias_gelu(x, bias);
  check(gy, "gy").on_gpu().like(x, "x").contiguous();
  if (!has_packs(x, bias) || !is_aligned(gy, 16) || x.numel() == 0) {
    if (x.numel() > 0) fell_back("bias_gelu_backward_v1_two_passes", NO_PACKS);
    return bias_gelu_backward_v1_two_passes(gy, x, bias);
  }
  const DeviceGuard guard(x);
  Tensor gx = allocate_like(x), gb = allocate_like(bias);
  dispatch_floating(x, [&](auto zero) {
    using P = Pack<decltype(zero)>;
    const auto kernel = bias_gelu_backward_v2_kernel<decltype(zero)>;
    const dim3 grid = strips(kernel, x);
    Tensor partial = allocate(x, {grid.y, x.size(1)}, ScalarType::Float);
    kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<P>(gy), data<P>(x), data<P>(bias),
                                                  mutable_data<P>(gx), mutable_data<float>(partial),
                                                  x.size(0), static_cast<int>(x.size(1) / P::N));
    check_launch("bias_gelu_backward_v2");
    sum_chunks(partial, gb);
  });
  return {gx, gb};
}

#ifdef HAVE_CUBLAS
// ---------------------------------------------------------------------------------------------
// mlp v2 against v1: bias and GELU run in the epilogue of the first product (cuBLASLt, day 25),
// which also stores x · W1ᵀ + b1 in an auxiliary matrix for the backward pass. The derivative has
// an epilogue too, linear_gelu_backward: slower than product and kernel, so v2 does not call it.

// c (M, N) = epilogue(a (M, K) · b), b stored as (K, N), or as (N, K) if b_transposed. bias: (N,),
// read or written by the epilogue. aux: (M, N), likewise. In column-major terms (day 25): Cᵀ = Bᵀ
// Aᵀ.
void lt_matmul(const Tensor& a, const Tensor& b, bool b_transposed, const Tensor& c,
               cublasLtEpilogue_t epilogue, const Tensor& bias, const Tensor& aux) {
  const int64_t M = c.size(0), N = c.size(1), K = a.size(1);
  const cudaDataType_t type = type_of(a);
  const cublasOperation_t op_b = b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description;
  check_cublas(cublasLtMatmulDescCreate(&description.it, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  const auto set = [&](cublasLtMatmulDescAttributes_t name, auto value) {
    check_cublas(cublasLtMatmulDescSetAttribute(description.it, name, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, op_b);  // the first operand of the library is our b
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.const_data_ptr());
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.const_data_ptr());
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, N);
  Layout a_layout, b_layout, c_layout;
  check_cublas(cublasLtMatrixLayoutCreate(&a_layout.it, type, K, M, K), "layout of a");
  check_cublas(cublasLtMatrixLayoutCreate(&b_layout.it, type, b_transposed ? K : N,
                                          b_transposed ? N : K, b_transposed ? K : N),
               "layout of b");
  check_cublas(cublasLtMatrixLayoutCreate(&c_layout.it, type, N, M, N), "layout of c");

  // The heuristic that chooses a kernel costs host time: its answer is kept per shape.
  const auto handle = reinterpret_cast<cublasLtHandle_t>(handle_of(a));
  using Key = std::tuple<int, cudaDataType_t, cublasLtEpilogue_t, int64_t, int64_t, int64_t>;
  thread_local std::map<Key, cublasLtMatmulAlgo_t> answers;
  const Key key{a.get_device_index(), type, epilogue, M, N, K};
  auto answer = answers.find(key);
  if (answer == answers.end()) {
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference.it), "cublasLtMatmulPreferenceCreate");
    const size_t bytes = WORKSPACE;
    check_cublas(cublasLtMatmulPreferenceSetAttribute(
                     preference.it, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
                 "cublasLtMatmulPreferenceSetAttribute");
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    check_cublas(
        cublasLtMatmulAlgoGetHeuristic(handle, description.it, b_layout.it, a_layout.it,
                                       c_layout.it, c_layout.it, preference.it, 1, &best, &found),
        "cublasLtMatmulAlgoGetHeuristic");
    STD_TORCH_CHECK(found > 0, "x: cuBLASLt has no kernel with this epilogue for shape ",
                    shape_of(a));
    answer = answers.emplace(key, best.algo).first;
  }
  const Workspace workspace(a);
  const float alpha = 1, beta = 0;
  check_cublas(cublasLtMatmul(handle, description.it, &alpha, b.const_data_ptr(), b_layout.it,
                              a.const_data_ptr(), a_layout.it, &beta, c.const_data_ptr(),
                              c_layout.it, c.mutable_data_ptr(), c_layout.it, &answer->second,
                              workspace.start, WORKSPACE, current_stream(a)),
               "cublasLtMatmul");
}

// The 16-bit matrices that the library's fast kernels take: aligned, in rows of whole packs.
const check check_aligned_matrix(const Tensor& t, const char* name) {
  const check checked(t, name);
  checked.on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(2).contiguous();
  STD_TORCH_CHECK(t.numel() > 0 && t.size(1) % 8 == 0 && is_aligned(t, 16), name,
                  ": expected elements in aligned rows of a multiple of 8, got ", shape_of(t));
  return checked;
}

// gelu(x · wᵀ + bias), and what GELU was applied to. x: (rows, K), w: (N, K), bias: (N,); 16-bit.
std::tuple<Tensor, Tensor> linear_gelu(const Tensor& x, const Tensor& w, const Tensor& bias) {
  check_aligned_matrix(x, "x");
  check_aligned_matrix(w, "w").same_device(x, "x").size(1, x.size(1));
  check(bias, "bias").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous().size(0, w.size(0));
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {x.size(0), w.size(0)});
  Tensor before = allocate_like(y);
  lt_matmul(x, w, true, y, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, bias, before);
  return {y, before};
}

// The gradients of x · wᵀ + bias before GELU, and of the bias: gelu'(before) · (gy · w), and its
// sums over the rows. gy: (rows, K), w: (K, N), before: (rows, N).
std::tuple<Tensor, Tensor> linear_gelu_backward(const Tensor& gy, const Tensor& w,
                                                const Tensor& before) {
  check_aligned_matrix(gy, "gy");
  check_aligned_matrix(w, "w").same_device(gy, "gy").size(0, gy.size(1));
  check_aligned_matrix(before, "before")
      .same_device(gy, "gy")
      .size(0, gy.size(0))
      .size(1, w.size(1));
  const DeviceGuard guard(gy);
  Tensor g = allocate_like(before);
  Tensor gb = allocate(gy, {w.size(1)});
  lt_matmul(gy, w, false, g, CUBLASLT_EPILOGUE_DGELU_BGRAD, gb, before);
  return {g, gb};
}
#endif

// ---------------------------------------------------------------------------------------------

RUNG(day30, bias_gelu_v1_two_passes, "(Tensor x, Tensor bias) -> Tensor");
RUNG(day30, bias_gelu_v2_one_pass, "(Tensor x, Tensor bias) -> Tensor");
RUNG(day30, bias_gelu_backward_v1_two_passes,
     "(Tensor gy, Tensor x, Tensor bias) -> (Tensor, Tensor)");
RUNG(day30, bias_gelu_backward_v2_one_pass,
     "(Tensor gy, Tensor x, Tensor bias) -> (Tensor, Tensor)");
#ifdef HAVE_CUBLAS
RUNG(day30, linear_gelu, "(Tensor x, Tensor w, Tensor bias) -> (Tensor, Tensor)");
RUNG(day30, linear_gelu_backward, "(Tensor gy, Tensor w, Tensor before) -> (Tensor, Tensor)");
#endif

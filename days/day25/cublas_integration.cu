// Day 25: cuBLAS from C++: products of matrices, beside our own kernels
//
//   gemm          C = A · B                             A: (M, K), B: (K, N), row-major
//   linear_gelu   Y = gelu(X · W + bias)                X: (M, K), W: (K, N), bias: (N,)
//   attention     softmax(Q · Kᵀ / √D) · V              Q: (heads, S, D), K, V: (heads, T, D)
//
// Operations of gemm: 2 · M · N · K, on tensor cores (day 26) for 16-bit types.
//
//   v1 own         tiles (day 8), the softmax with one block per row (day 5)
//   v2 cublas      the library's kernels, which expect column-major matrices
//   v3 cublaslt    linear_gelu: bias and GELU in the epilogue of the library's kernel
//
// Run: python run_day.py 25

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"
#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "days/day25/cublas_handle.cuh"

#include <map>
#include <tuple>

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// gemm v1: day 8's tiles, with what the other problems of this day need: a batch of products along
// the grid's z, B optionally transposed, and an epilogue, a function applied to each result.

constexpr int TILE = 32;

// matrices: number of products in the batch; the matrices of one tensor are consecutive in memory.
struct Product {
  int64_t matrices, M, N, K;
  bool b_transposed;  // B is stored as (N, K)
  float alpha;
};

struct Plain {
  __device__ float operator()(float v, int64_t) const { return v; }
};

__device__ float gelu_tanh(float v) {
  // With √(2/π) · (v + 0.044715 v³), the same approximation as cuBLASLt's epilogue.
  return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
}

template <typename T>
struct BiasGelu {
  const T* bias;  // (N,)
  __device__ float operator()(float v, int64_t n) const {
    return gelu_tanh(v + static_cast<float>(bias[n]));
  }
};

template <typename T>
__device__ float element_or_zero(const T* matrix, int64_t row, int64_t col, int64_t rows,
                                 int64_t cols) {
  return row < rows && col < cols ? static_cast<float>(matrix[row * cols + col]) : 0.0f;
}

template <typename T, typename Epilogue>
__global__ void gemm_v1_own_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                   T* __restrict__ c, Product p, Epilogue epilogue) {
  __shared__ float a_tile[TILE][TILE];      // (m, k)
  __shared__ float b_tile[TILE][TILE + 1];  // (k, n), padded for the transposed store
  a += blockIdx.z * p.M * p.K;
  b += blockIdx.z * p.K * p.N;
  c += blockIdx.z * p.M * p.N;
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t m = int64_t{blockIdx.y} * TILE + ty;
  const int64_t n0 = int64_t{blockIdx.x} * TILE;

  float sum = 0;
  for (int64_t k0 = 0; k0 < p.K; k0 += TILE) {
    a_tile[ty][tx] = element_or_zero(a, m, k0 + tx, p.M, p.K);
    if (p.b_transposed) {  // rows of B run along k, so lanes load along k
      b_tile[tx][ty] = element_or_zero(b, n0 + ty, k0 + tx, p.N, p.K);
    } else {
      b_tile[ty][tx] = element_or_zero(b, k0 + ty, n0 + tx, p.K, p.N);
    }
    __syncthreads();  // both tiles are complete before any thread multiplies
    for (int k = 0; k < TILE; ++k) sum += a_tile[ty][k] * b_tile[k][tx];
    __syncthreads();  // all threads are done with the tiles before any overwrites them
  }
  const int64_t n = n0 + tx;
  if (m < p.M && n < p.N) c[m * p.N + n] = static_cast<T>(epilogue(p.alpha * sum, n));
}

// c = epilogue(alpha · a · b) for elements of type T. K may be 0; matrices, M and N may not.
template <typename T, typename Epilogue>
void own_gemm(const Tensor& a, const Tensor& b, Tensor& c, const Product& p, Epilogue epilogue) {
  STD_TORCH_CHECK(p.matrices <= 65535, "q: expected at most 65535 heads, the limit of a grid, got ",
                  p.matrices);
  const dim3 grid(grid_size(ceil_div<int64_t>(p.N, TILE), "b"),
                  grid_size_y(ceil_div<int64_t>(p.M, TILE), "a"),
                  static_cast<unsigned>(p.matrices));
  gemm_v1_own_kernel<T><<<grid, dim3(TILE, TILE), 0, current_stream(a)>>>(
      data<T>(a), data<T>(b), mutable_data<T>(c), p, epilogue);
  check_launch("gemm_v1_own");
}

// Checks A (M, K) and B (K, N).
Product check_gemm(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) {
  check(a, a_name).on_gpu().floating().rank(2).contiguous();
  check(b, b_name).on_gpu().dtype({a.scalar_type()}).rank(2).contiguous().same_device(a, a_name);
  check(b, b_name).size(0, a.size(1));
  return {1, a.size(0), b.size(1), a.size(1), false, 1.0f};
}

Tensor gemm_v1_own(const Tensor& a, const Tensor& b) {
  const Product p = check_gemm(a, "a", b, "b");
  const DeviceGuard guard(a);
  Tensor c = allocate(a, {p.M, p.N});
  if (c.numel() == 0) return c;  // a grid of no blocks is an error
  dispatch_floating(a, [&](auto zero) { own_gemm<decltype(zero)>(a, b, c, p, Plain{}); });
  return c;
}

// ---------------------------------------------------------------------------------------------
// linear_gelu v1: product, bias and GELU in one kernel of our own.

// Checks X (M, K), W (K, N), bias (N,).
Product check_linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const Product p = check_gemm(x, "x", w, "w");
  check(bias, "bias").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous().same_device(x, "x");
  check(bias, "bias").size(0, w.size(1));
  return p;
}

Tensor linear_gelu_v1_own(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const Product p = check_linear(x, w, bias);
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {p.M, p.N});
  if (y.numel() == 0) return y;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    own_gemm<T>(x, w, y, p, BiasGelu<T>{data<T>(bias)});
  });
  return y;
}

// ---------------------------------------------------------------------------------------------
// attention v1: two products of our own and a softmax between them; the scores go through memory.

// The softmax of each row of s (rows, cols), in place, with one block per row.
template <typename T>
__global__ void softmax_rows_kernel(T* __restrict__ s, int64_t cols) {
  __shared__ float shared[BLOCK];
  T* row = s + blockIdx.x * cols;
  float max = -INFINITY;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) max = fmaxf(max, static_cast<float>(row[c]));
  shared[threadIdx.x] = max;
  max = tree_reduce(shared, [](float p, float q) { return fmaxf(p, q); });
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) sum += expf(static_cast<float>(row[c]) - max);
  shared[threadIdx.x] = sum;
  sum = tree_reduce(shared, [](float p, float q) { return p + q; });
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    row[c] = static_cast<T>(expf(static_cast<float>(row[c]) - max) / sum);
  }
}

void softmax_rows(Tensor& s) {
  const int64_t cols = s.size(2), rows = s.size(0) * s.size(1);
  if (rows == 0 || cols == 0) return;
  dispatch_floating(s, [&](auto zero) {
    using T = decltype(zero);
    softmax_rows_kernel<T>
        <<<grid_size(rows, "q"), BLOCK, 0, current_stream(s)>>>(mutable_data<T>(s), cols);
  });
  check_launch("softmax_rows");
}

// Checks Q (heads, S, D), K and V (heads, T, D).
void check_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q, "q").on_gpu().floating().rank(3).contiguous();
  check(k, "k").on_gpu().dtype({q.scalar_type()}).rank(3).contiguous().same_device(q, "q");
  check(k, "k").size(0, q.size(0)).size(2, q.size(2));
  check(v, "v").on_gpu().like(k, "k").contiguous();
}

// multiply(a, b, c, product) computes c = alpha · a · b, with our own kernel or the library.
template <typename Multiply>
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, Multiply multiply) {
  const int64_t heads = q.size(0), S = q.size(1), D = q.size(2), T = k.size(1);
  Tensor out = allocate_like(q);
  if (out.numel() == 0) return out;
  Tensor scores = allocate(q, {heads, S, T});
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  if (T > 0) multiply(q, k, scores, Product{heads, S, T, D, true, scale});
  softmax_rows(scores);
  multiply(scores, v, out, Product{heads, S, D, T, false, 1.0f});
  return out;
}

Tensor attention_v1_own(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attention(q, k, v);
  const DeviceGuard guard(q);
  return attention(q, k, v, [](const Tensor& a, const Tensor& b, Tensor& c, const Product& p) {
    dispatch_floating(a, [&](auto zero) { own_gemm<decltype(zero)>(a, b, c, p, Plain{}); });
  });
}

#ifdef HAVE_CUBLAS
// ---------------------------------------------------------------------------------------------
// The library.

// c = alpha · a · b for row-major matrices. BLAS is column-major, so our A (M, K) is Aᵀ (K, M) to
// it. Instead of transposing anything we request Cᵀ = Bᵀ · Aᵀ: B is passed first, M and N are
// swapped, and the column-major result Cᵀ (N, M) is C in row-major order. Only a B that is stored
// as (N, K) needs the library's transposition.
void cublas_gemm(const Tensor& a, const Tensor& b, Tensor& c, const Product& p) {
  if (p.K == 0) {  // a matrix without columns has no valid leading dimension; the product is 0
    check_cuda(
        cudaMemsetAsync(c.mutable_data_ptr(), 0, c.numel() * c.element_size(), current_stream(a)),
        "cudaMemsetAsync");
    return;
  }
  const Library library(a);
  const cudaDataType_t type = type_of(a);
  const cublasOperation_t op_b = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int64_t ld_b = p.b_transposed ? p.K : p.N;  // elements from one row to the next
  const float beta = 0;                             // c is not read
  if (p.matrices == 1) {
    check_cublas(
        cublasGemmEx_64(library.handle, op_b, CUBLAS_OP_N, p.N, p.M, p.K, &p.alpha,
                        b.const_data_ptr(), type, ld_b, a.const_data_ptr(), type, p.K, &beta,
                        c.mutable_data_ptr(), type, p.N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
  } else {
    check_cublas(cublasGemmStridedBatchedEx_64(library.handle, op_b, CUBLAS_OP_N, p.N, p.M, p.K,
                                               &p.alpha, b.const_data_ptr(), type, ld_b, p.K * p.N,
                                               a.const_data_ptr(), type, p.K, p.M * p.K, &beta,
                                               c.mutable_data_ptr(), type, p.N, p.M * p.N,
                                               p.matrices, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmStridedBatchedEx");
  }
}

Tensor gemm_v2_cublas(const Tensor& a, const Tensor& b) {
  const Product p = check_gemm(a, "a", b, "b");
  const DeviceGuard guard(a);
  Tensor c = allocate(a, {p.M, p.N});
  if (c.numel() > 0) cublas_gemm(a, b, c, p);
  return c;
}

// linear_gelu v2 against v1: the library multiplies, and a kernel of our own adds the bias and
// applies GELU. Y is written, read and written again.
template <typename T>
__global__ void bias_gelu_kernel(T* __restrict__ y, const T* __restrict__ bias, int64_t elements,
                                 int64_t N) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < elements) y[i] = static_cast<T>(BiasGelu<T>{bias}(static_cast<float>(y[i]), i % N));
}

Tensor linear_gelu_v2_cublas(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const Product p = check_linear(x, w, bias);
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {p.M, p.N});
  if (y.numel() == 0) return y;
  cublas_gemm(x, w, y, p);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    bias_gelu_kernel<T>
        <<<grid_size(ceil_div<int64_t>(y.numel(), BLOCK), "x"), BLOCK, 0, current_stream(x)>>>(
            mutable_data<T>(y), data<T>(bias), y.numel(), p.N);
  });
  check_launch("bias_gelu");
  return y;
}

// linear_gelu v3 against v2: the description that cuBLASLt takes includes an epilogue, which
// applies bias and GELU to the accumulators, so Y is written once and never read.

Tensor linear_gelu_v3_cublaslt(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const Product p = check_linear(x, w, bias);
  // The library's fast kernels require aligned matrices and rows. In fp32 this epilogue was off by
  // up to 4e-6 near 0, outside the tolerance of fp32. Both cases go to v2.
  const int64_t pack = 16 / x.element_size();
  if (x.scalar_type() == ScalarType::Float || p.M == 0 || p.N % pack != 0 || p.K % pack != 0 ||
      p.N == 0 || p.K == 0 || !is_aligned(x, 16) || !is_aligned(w, 16) || !is_aligned(bias, 16)) {
    fell_back("linear_gelu_v2_cublas", "fp32, no elements, or matrices that are not aligned");
    return linear_gelu_v2_cublas(x, w, bias);
  }
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {p.M, p.N});
  const cudaDataType_t type = type_of(x);

  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description;
  check_cublas(cublasLtMatmulDescCreate(&description.it, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  set(description.it, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_BIAS);
  set(description.it, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.const_data_ptr());
  set(description.it, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);

  // Yᵀ = Wᵀ · Xᵀ as above: (N, M) = (N, K) · (K, M), column-major. The epilogue adds the bias along
  // the N rows of Yᵀ, which are the columns of our Y.
  Layout w_layout, x_layout, y_layout;
  check_cublas(cublasLtMatrixLayoutCreate(&w_layout.it, type, p.N, p.K, p.N), "layout of w");
  check_cublas(cublasLtMatrixLayoutCreate(&x_layout.it, type, p.K, p.M, p.K), "layout of x");
  check_cublas(cublasLtMatrixLayoutCreate(&y_layout.it, type, p.N, p.M, p.N), "layout of y");

  // A cuBLAS handle is also a cuBLASLt handle. The library's heuristic, which chooses among its
  // kernels, costs host time, so its answer is cached per shape.
  const auto handle = reinterpret_cast<cublasLtHandle_t>(handle_of(x));
  using Key = std::tuple<int, cudaDataType_t, int64_t, int64_t, int64_t>;
  thread_local std::map<Key, cublasLtMatmulHeuristicResult_t> answers;
  const Key key{x.get_device_index(), type, p.M, p.N, p.K};
  auto answer = answers.find(key);
  if (answer == answers.end()) {
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference.it), "cublasLtMatmulPreferenceCreate");
    const size_t bytes = WORKSPACE;
    check_cublas(cublasLtMatmulPreferenceSetAttribute(
                     preference.it, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
                 "cublasLtMatmulPreferenceSetAttribute");
    const uint32_t alignment = 16;  // as checked above; the default is 256
    for (auto name :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      check_cublas(
          cublasLtMatmulPreferenceSetAttribute(preference.it, name, &alignment, sizeof alignment),
          "cublasLtMatmulPreferenceSetAttribute");
    }
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, description.it, w_layout.it, x_layout.it,
                                       y_layout.it, y_layout.it, preference.it, 1, &best, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) best.state = CUBLAS_STATUS_NOT_SUPPORTED;
    answer = answers.emplace(key, best).first;
  }
  if (answer->second.state != CUBLAS_STATUS_SUCCESS) {
    fell_back("linear_gelu_v2_cublas", "the library has no kernel with this epilogue");
    return linear_gelu_v2_cublas(x, w, bias);
  }

  const Workspace workspace(x);
  const float alpha = 1, beta = 0;
  check_cublas(cublasLtMatmul(handle, description.it, &alpha, w.const_data_ptr(), w_layout.it,
                              x.const_data_ptr(), x_layout.it, &beta, y.const_data_ptr(),
                              y_layout.it, y.mutable_data_ptr(), y_layout.it, &answer->second.algo,
                              workspace.start, WORKSPACE, current_stream(x)),
               "cublasLtMatmul");
  return y;
}

// attention v2 against v1: both products from the library, with one call each for all heads.
Tensor attention_v2_cublas(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attention(q, k, v);
  const DeviceGuard guard(q);
  return attention(q, k, v, cublas_gemm);
}
#endif

// ---------------------------------------------------------------------------------------------

RUNG(day25, gemm_v1_own, "(Tensor a, Tensor b) -> Tensor");
RUNG(day25, linear_gelu_v1_own, "(Tensor x, Tensor w, Tensor bias) -> Tensor");
RUNG(day25, attention_v1_own, "(Tensor q, Tensor k, Tensor v) -> Tensor");
#ifdef HAVE_CUBLAS
RUNG(day25, gemm_v2_cublas, "(Tensor a, Tensor b) -> Tensor");
RUNG(day25, linear_gelu_v2_cublas, "(Tensor x, Tensor w, Tensor bias) -> Tensor");
RUNG(day25, linear_gelu_v3_cublaslt, "(Tensor x, Tensor w, Tensor bias) -> Tensor");
RUNG(day25, attention_v2_cublas, "(Tensor q, Tensor k, Tensor v) -> Tensor");
#endif

// cuBLAS on the CPU backend: each function launches a kernel. See cublas_v2.h.
#include "gemm.cuh"
#include "handle.cuh"

#include <cmath>

using namespace cudacpu_blas;

namespace {

constexpr int CHUNK = 4096;  // elements of a vector per block

// Vectors with a negative increment begin at their other end.
template <class T>
struct Vector {
  T* first;
  int64_t inc;
  __device__ T& operator[](int64_t i) const { return first[i * inc]; }
};
template <class T>
Vector<T> vector(T* x, int64_t n, int inc) {
  return {inc < 0 ? x + (1 - n) * inc : x, inc};
}

unsigned chunks(int64_t n) {
  return static_cast<unsigned>((n + CHUNK - 1) / CHUNK);
}

template <class Each>
__global__ void elementwise_kernel(int64_t n, Each each) {
  const int64_t first = int64_t{blockIdx.x} * CHUNK;
  for (int64_t i = first; i < std::min(n, first + CHUNK); ++i) each(i);
}
template <class Each>
cublasStatus_t elementwise(cublasHandle_t handle, int64_t n, Each each) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  elementwise_kernel<<<chunks(n), 1, 0, handle->stream>>>(n, each);
  return launched();
}

// Reduce a whole vector by one thread: `take` is called for each index in turn.
template <class R, class S, class Take, class Finish>
__global__ void reduce_kernel(int64_t n, R* result, S start, Take take, Finish finish) {
  S state = start;
  for (int64_t i = 0; i < n; ++i) take(state, i);
  *result = finish(state);
}
template <class R, class S, class Take, class Finish>
cublasStatus_t reduce(cublasHandle_t handle, int64_t n, R* result, S start, Take take,
                      Finish finish) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!result) return CUBLAS_STATUS_INVALID_VALUE;
  const bool on_host = handle->pointers == CUBLAS_POINTER_MODE_HOST;
  if (on_host && !handle->result && cudaMalloc(&handle->result, sizeof(double)) != cudaSuccess)
    return CUBLAS_STATUS_ALLOC_FAILED;
  R* at = on_host ? static_cast<R*>(handle->result) : result;
  reduce_kernel<<<1, 1, 0, handle->stream>>>(std::max<int64_t>(n, 0), at, start, take, finish);
  if (launched() != CUBLAS_STATUS_SUCCESS) return launched();
  if (!on_host) return CUBLAS_STATUS_SUCCESS;
  const bool copied = cudaMemcpyAsync(result, at, sizeof(R), cudaMemcpyDeviceToHost,
                                      handle->stream) == cudaSuccess &&
                      cudaStreamSynchronize(handle->stream) == cudaSuccess;
  return copied ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

// Return the 1-based index of the first element of largest, or smallest, magnitude; 0 if none.
template <bool LARGEST, class T>
cublasStatus_t extremum(cublasHandle_t handle, int n, const T* x, int incx, int* result) {
  struct Found {
    T magnitude;
    int index;
  };
  if (incx < 1) n = 0;
  const auto v = vector(x, n, incx);
  const auto take = [=](Found& best, int64_t i) {
    const T magnitude = std::fabs(v[i]);
    if (best.index == 0 || (LARGEST ? magnitude > best.magnitude : magnitude < best.magnitude))
      best = {magnitude, static_cast<int>(i + 1)};
  };
  return reduce(handle, n, result, Found{}, take, [](Found best) { return best.index; });
}

template <class T>
__global__ void gemv_kernel(bool transposed, int64_t m, int64_t n, Scalar<T> alpha_of, const T* a,
                            int64_t lda, Vector<const T> x, Scalar<T> beta_of, Vector<T> y) {
  const int64_t outputs = transposed ? n : m, terms = transposed ? m : n;
  const int64_t first = int64_t{blockIdx.x} * TILE;
  const int count = static_cast<int>(std::min<int64_t>(TILE, outputs - first));
  const T alpha = value_of(alpha_of), beta = value_of(beta_of);
  T sums[TILE] = {};
  for (int64_t k = 0; alpha != 0 && k < terms; ++k) {
    const T factor = x[k];
    for (int i = 0; i < count; ++i)
      sums[i] += (transposed ? a[(first + i) * lda + k] : a[k * lda + first + i]) * factor;
  }
  for (int i = 0; i < count; ++i)
    y[first + i] = alpha * sums[i] + (beta != 0 ? beta * y[first + i] : 0);
}

template <class T>
cublasStatus_t gemv(cublasHandle_t handle, cublasOperation_t op, int m, int n, const T* alpha,
                    const T* a, int lda, const T* x, int incx, const T* beta, T* y, int incy) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!is_op(op) || m < 0 || n < 0 || lda < std::max(m, 1) || incx == 0 || incy == 0 || !alpha ||
      !beta)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  const bool transposed = op != CUBLAS_OP_N;
  const int outputs = transposed ? n : m, terms = transposed ? m : n;
  gemv_kernel<T><<<static_cast<unsigned>((outputs + TILE - 1) / TILE), 1, 0, handle->stream>>>(
      transposed, m, n, scalar<T>(handle->pointers, alpha), a, lda, vector(x, terms, incx),
      scalar<T>(handle->pointers, beta), vector(y, outputs, incy));
  return launched();
}

template <class T>
cublasStatus_t ger(cublasHandle_t handle, int m, int n, const T* alpha, const T* x, int incx,
                   const T* y, int incy, T* a, int lda) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || lda < std::max(m, 1) || incx == 0 || incy == 0 || !alpha)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto factor = scalar<T>(handle->pointers, alpha);
  const auto u = vector(x, m, incx), v = vector(y, n, incy);
  return elementwise(handle, int64_t{m} * n, [=](int64_t i) {
    a[i / m * lda + i % m] += value_of(factor) * u[i % m] * v[i / m];
  });
}

template <class T>
cublasStatus_t geam(cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb, int m,
                    int n, const T* alpha, const T* a, int lda, const T* beta, const T* b, int ldb,
                    T* c, int ldc) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto rows = [=](cublasOperation_t op) { return std::max(op == CUBLAS_OP_N ? m : n, 1); };
  if (!is_op(opa) || !is_op(opb) || m < 0 || n < 0 || !alpha || !beta || ldc < std::max(m, 1) ||
      lda < rows(opa) || ldb < rows(opb))
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto p = scalar<T>(handle->pointers, alpha), q = scalar<T>(handle->pointers, beta);
  return elementwise(handle, int64_t{m} * n, [=](int64_t i) {
    const int64_t row = i % m, col = i / m;
    const T with_a = value_of(p), with_b = value_of(q);
    T sum = 0;
    if (with_a != 0) sum += with_a * (opa == CUBLAS_OP_N ? a[col * lda + row] : a[row * lda + col]);
    if (with_b != 0) sum += with_b * (opb == CUBLAS_OP_N ? b[col * ldb + row] : b[row * ldb + col]);
    c[col * ldc + row] = sum;
  });
}

// The arguments of a product of any types. `alpha` and `beta` are of the type Scale.
struct Gemm {
  cublasHandle_t handle;
  cublasOperation_t opa, opb;
  int m, n, k;
  const void *alpha, *a, *b, *beta;
  void* c;
  int lda, ldb, ldc;
  long long stride_a = 0, stride_b = 0, stride_c = 0;
  int batches = 1;
  bool lists = false;  // a, b and c are lists of matrices
};

template <class In, class Out, class Scale>
cublasStatus_t gemm(const Gemm& g) {
  if (!g.handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!is_op(g.opa) || !is_op(g.opb) || !g.alpha || !g.beta) return CUBLAS_STATUS_INVALID_VALUE;
  const auto batch = [&](auto* zero, const void* x, int ld, long long stride) {
    using T = std::remove_pointer_t<decltype(zero)>;
    using Address = std::remove_const_t<T>*;
    auto* address = const_cast<void*>(x);
    return g.lists ? Batch<T>{nullptr, ld, 0, static_cast<T* const*>(address)}
                   : Batch<T>{static_cast<Address>(address), ld, stride};
  };
  const cublasPointerMode_t mode = g.handle->pointers;
  const Product<In, Out, Scale> product{
      g.m,
      g.n,
      g.k,
      g.opa != CUBLAS_OP_N,
      g.opb != CUBLAS_OP_N,
      scalar<Scale>(mode, g.alpha),
      scalar<Scale>(mode, g.beta),
      batch(static_cast<const In*>(nullptr), g.a, g.lda, g.stride_a),
      batch(static_cast<const In*>(nullptr), g.b, g.ldb, g.stride_b),
      batch(static_cast<const Out*>(nullptr), g.c, g.ldc, g.stride_c),
      batch(static_cast<Out*>(nullptr), g.c, g.ldc, g.stride_c),
      {}};
  return multiply(product, g.batches, g.handle->stream);
}

cublasStatus_t gemm_of(const Gemm& g, cudaDataType a, cudaDataType b, cudaDataType c,
                       cublasComputeType_t compute) {
  if (a != b) return CUBLAS_STATUS_NOT_SUPPORTED;
  switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      if (a == CUDA_R_16F && c == a) return gemm<__half, __half, __half>(g);
      break;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      if (a == CUDA_R_64F && c == a) return gemm<double, double, double>(g);
      break;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      if (a == CUDA_R_8I && c == CUDA_R_32I) return gemm<int8_t, int, int>(g);
      break;
    default:
      if (a == CUDA_R_32F && c == a) return gemm<float, float, float>(g);
      if (a == CUDA_R_16F && c == a) return gemm<__half, __half, float>(g);
      if (a == CUDA_R_16F && c == CUDA_R_32F) return gemm<__half, float, float>(g);
      if (a == CUDA_R_16BF && c == a) return gemm<__nv_bfloat16, __nv_bfloat16, float>(g);
      if (a == CUDA_R_16BF && c == CUDA_R_32F) return gemm<__nv_bfloat16, float, float>(g);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

// Copy rows of a matrix of elements between host and device.
cublasStatus_t copy(int rows, int cols, int bytes, const void* from, int from_ld, void* to,
                    int to_ld, cudaMemcpyKind kind, cudaStream_t stream, bool wait) {
  if (rows < 0 || cols < 0 || bytes <= 0 || from_ld < rows || to_ld < rows || from_ld < 1 ||
      to_ld < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (rows == 0 || cols == 0) return CUBLAS_STATUS_SUCCESS;
  const auto size = static_cast<size_t>(bytes);
  const cudaError_t error =
      wait ? cudaMemcpy2D(to, to_ld * size, from, from_ld * size, rows * size, cols, kind)
           : cudaMemcpy2DAsync(to, to_ld * size, from, from_ld * size, rows * size, cols, kind,
                               stream);
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  cudaFree(handle->result);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) {
  if (!version) return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

#define CUDACPU_SETTING(name, T, member)                            \
  cublasStatus_t cublasSet##name(cublasHandle_t handle, T value) {  \
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;              \
    handle->member = value;                                         \
    return CUBLAS_STATUS_SUCCESS;                                   \
  }                                                                 \
  cublasStatus_t cublasGet##name(cublasHandle_t handle, T* value) { \
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;              \
    if (!value) return CUBLAS_STATUS_INVALID_VALUE;                 \
    *value = handle->member;                                        \
    return CUBLAS_STATUS_SUCCESS;                                   \
  }
CUDACPU_SETTING(Stream, cudaStream_t, stream)
CUDACPU_SETTING(PointerMode, cublasPointerMode_t, pointers)
CUDACPU_SETTING(AtomicsMode, cublasAtomicsMode_t, atomics)
CUDACPU_SETTING(MathMode, cublasMath_t, math)
#undef CUDACPU_SETTING

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void*, size_t) {
  return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
#define CUDACPU_STATUS(name) \
  case name:                 \
    return #name;
    CUDACPU_STATUS(CUBLAS_STATUS_SUCCESS)
    CUDACPU_STATUS(CUBLAS_STATUS_NOT_INITIALIZED)
    CUDACPU_STATUS(CUBLAS_STATUS_ALLOC_FAILED)
    CUDACPU_STATUS(CUBLAS_STATUS_INVALID_VALUE)
    CUDACPU_STATUS(CUBLAS_STATUS_ARCH_MISMATCH)
    CUDACPU_STATUS(CUBLAS_STATUS_MAPPING_ERROR)
    CUDACPU_STATUS(CUBLAS_STATUS_EXECUTION_FAILED)
    CUDACPU_STATUS(CUBLAS_STATUS_INTERNAL_ERROR)
    CUDACPU_STATUS(CUBLAS_STATUS_NOT_SUPPORTED)
    CUDACPU_STATUS(CUBLAS_STATUS_LICENSE_ERROR)
#undef CUDACPU_STATUS
  }
  return "unknown status";
}
const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value was used as an argument";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the kernel failed to execute";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality is not supported";
    default:
      return cublasGetStatusName(status);
  }
}

cublasStatus_t cublasSetMatrix(int rows, int cols, int bytes, const void* a, int lda, void* b,
                               int ldb) {
  return copy(rows, cols, bytes, a, lda, b, ldb, cudaMemcpyHostToDevice, nullptr, true);
}
cublasStatus_t cublasGetMatrix(int rows, int cols, int bytes, const void* a, int lda, void* b,
                               int ldb) {
  return copy(rows, cols, bytes, a, lda, b, ldb, cudaMemcpyDeviceToHost, nullptr, true);
}
cublasStatus_t cublasSetMatrixAsync(int rows, int cols, int bytes, const void* a, int lda, void* b,
                                    int ldb, cudaStream_t stream) {
  return copy(rows, cols, bytes, a, lda, b, ldb, cudaMemcpyHostToDevice, stream, false);
}
cublasStatus_t cublasGetMatrixAsync(int rows, int cols, int bytes, const void* a, int lda, void* b,
                                    int ldb, cudaStream_t stream) {
  return copy(rows, cols, bytes, a, lda, b, ldb, cudaMemcpyDeviceToHost, stream, false);
}
// A vector is a row: n columns of one element.
cublasStatus_t cublasSetVector(int n, int bytes, const void* x, int incx, void* y, int incy) {
  return cublasSetMatrix(1, n, bytes, x, incx, y, incy);
}
cublasStatus_t cublasGetVector(int n, int bytes, const void* x, int incx, void* y, int incy) {
  return cublasGetMatrix(1, n, bytes, x, incx, y, incy);
}
cublasStatus_t cublasSetVectorAsync(int n, int bytes, const void* x, int incx, void* y, int incy,
                                    cudaStream_t stream) {
  return cublasSetMatrixAsync(1, n, bytes, x, incx, y, incy, stream);
}
cublasStatus_t cublasGetVectorAsync(int n, int bytes, const void* x, int incx, void* y, int incy,
                                    cudaStream_t stream) {
  return cublasGetMatrixAsync(1, n, bytes, x, incx, y, incy, stream);
}

#define CUDACPU_BLAS(L, T)                                                                        \
  cublasStatus_t cublas##L##axpy(cublasHandle_t handle, int n, const T* alpha, const T* x,        \
                                 int incx, T* y, int incy) {                                      \
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                            \
    const auto factor = scalar<T>(handle->pointers, alpha);                                       \
    const auto u = vector(x, n, incx);                                                            \
    const auto v = vector(y, n, incy);                                                            \
    return elementwise(handle, n, [=](int64_t i) { v[i] += value_of(factor) * u[i]; });           \
  }                                                                                               \
  cublasStatus_t cublas##L##scal(cublasHandle_t handle, int n, const T* alpha, T* x, int incx) {  \
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                            \
    const auto factor = scalar<T>(handle->pointers, alpha);                                       \
    const auto u = vector(x, n, incx);                                                            \
    return elementwise(handle, incx < 1 ? 0 : n,                                                  \
                       [=](int64_t i) { u[i] = value_of(factor) * u[i]; });                       \
  }                                                                                               \
  cublasStatus_t cublas##L##copy(cublasHandle_t handle, int n, const T* x, int incx, T* y,        \
                                 int incy) {                                                      \
    const auto u = vector(x, n, incx);                                                            \
    const auto v = vector(y, n, incy);                                                            \
    return elementwise(handle, n, [=](int64_t i) { v[i] = u[i]; });                               \
  }                                                                                               \
  cublasStatus_t cublas##L##swap(cublasHandle_t handle, int n, T* x, int incx, T* y, int incy) {  \
    const auto u = vector(x, n, incx);                                                            \
    const auto v = vector(y, n, incy);                                                            \
    return elementwise(handle, n, [=](int64_t i) { std::swap(u[i], v[i]); });                     \
  }                                                                                               \
  cublasStatus_t cublas##L##dot(cublasHandle_t handle, int n, const T* x, int incx, const T* y,   \
                                int incy, T* result) {                                            \
    const auto u = vector(x, n, incx);                                                            \
    const auto v = vector(y, n, incy);                                                            \
    return reduce(                                                                                \
        handle, n, result, 0.0, [=](double& sum, int64_t i) { sum += double{u[i]} * v[i]; },      \
        [](double sum) { return static_cast<T>(sum); });                                          \
  }                                                                                               \
  cublasStatus_t cublas##L##nrm2(cublasHandle_t handle, int n, const T* x, int incx, T* result) { \
    const auto u = vector(x, n, incx);                                                            \
    return reduce(                                                                                \
        handle, incx < 1 ? 0 : n, result, 0.0,                                                    \
        [=](double& norm, int64_t i) { norm = std::hypot(norm, double{u[i]}); },                  \
        [](double norm) { return static_cast<T>(norm); });                                        \
  }                                                                                               \
  cublasStatus_t cublas##L##asum(cublasHandle_t handle, int n, const T* x, int incx, T* result) { \
    const auto u = vector(x, n, incx);                                                            \
    return reduce(                                                                                \
        handle, incx < 1 ? 0 : n, result, 0.0,                                                    \
        [=](double& sum, int64_t i) { sum += std::fabs(double{u[i]}); },                          \
        [](double sum) { return static_cast<T>(sum); });                                          \
  }                                                                                               \
  cublasStatus_t cublas##L##gemv(cublasHandle_t handle, cublasOperation_t op, int m, int n,       \
                                 const T* alpha, const T* a, int lda, const T* x, int incx,       \
                                 const T* beta, T* y, int incy) {                                 \
    return gemv(handle, op, m, n, alpha, a, lda, x, incx, beta, y, incy);                         \
  }                                                                                               \
  cublasStatus_t cublas##L##ger(cublasHandle_t handle, int m, int n, const T* alpha, const T* x,  \
                                int incx, const T* y, int incy, T* a, int lda) {                  \
    return ger(handle, m, n, alpha, x, incx, y, incy, a, lda);                                    \
  }                                                                                               \
  cublasStatus_t cublas##L##geam(cublasHandle_t handle, cublasOperation_t opa,                    \
                                 cublasOperation_t opb, int m, int n, const T* alpha, const T* a, \
                                 int lda, const T* beta, const T* b, int ldb, T* c, int ldc) {    \
    return geam(handle, opa, opb, m, n, alpha, a, lda, beta, b, ldb, c, ldc);                     \
  }
CUDACPU_BLAS(S, float)
CUDACPU_BLAS(D, double)
#undef CUDACPU_BLAS

cublasStatus_t cublasIsamax(cublasHandle_t handle, int n, const float* x, int incx, int* result) {
  return extremum<true>(handle, n, x, incx, result);
}
cublasStatus_t cublasIdamax(cublasHandle_t handle, int n, const double* x, int incx, int* result) {
  return extremum<true>(handle, n, x, incx, result);
}
cublasStatus_t cublasIsamin(cublasHandle_t handle, int n, const float* x, int incx, int* result) {
  return extremum<false>(handle, n, x, incx, result);
}
cublasStatus_t cublasIdamin(cublasHandle_t handle, int n, const double* x, int incx, int* result) {
  return extremum<false>(handle, n, x, incx, result);
}

#define CUDACPU_BLAS(L, T)                                                                       \
  cublasStatus_t cublas##L##gemm(                                                                \
      cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k,  \
      const T* alpha, const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {  \
    return gemm<T, T, T>({handle, opa, opb, m, n, k, alpha, a, b, beta, c, lda, ldb, ldc});      \
  }                                                                                              \
  cublasStatus_t cublas##L##gemmBatched(                                                         \
      cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k,  \
      const T* alpha, const T* const a[], int lda, const T* const b[], int ldb, const T* beta,   \
      T* const c[], int ldc, int batches) {                                                      \
    return gemm<T, T, T>({handle, opa, opb, m, n, k, alpha, a, b, beta, const_cast<T**>(c), lda, \
                          ldb, ldc, 0, 0, 0, batches, true});                                    \
  }                                                                                              \
  cublasStatus_t cublas##L##gemmStridedBatched(                                                  \
      cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k,  \
      const T* alpha, const T* a, int lda, long long stride_a, const T* b, int ldb,              \
      long long stride_b, const T* beta, T* c, int ldc, long long stride_c, int batches) {       \
    return gemm<T, T, T>({handle, opa, opb, m, n, k, alpha, a, b, beta, c, lda, ldb, ldc,        \
                          stride_a, stride_b, stride_c, batches});                               \
  }
CUDACPU_BLAS(S, float)
CUDACPU_BLAS(D, double)
CUDACPU_BLAS(H, __half)
#undef CUDACPU_BLAS

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                            int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  return gemm_of({handle, opa, opb, m, n, k, alpha, a, b, beta, c, lda, ldb, ldc}, a_type, b_type,
                 c_type, compute);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t opa,
                                          cublasOperation_t opb, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType a_type,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType b_type, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType c_type, int ldc,
                                          long long stride_c, int batches,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  return gemm_of({handle, opa, opb, m, n, k, alpha, a, b, beta, c, lda, ldb, ldc, stride_a,
                  stride_b, stride_c, batches},
                 a_type, b_type, c_type, compute);
}

}  // extern "C"

// Calls every kind of function of cuBLAS, in several sizes and layouts, and compares each with
// plain loops. All values are small integers, which every type holds exactly.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "check.cuh"

#define CHECK_BLAS(call)                                                        \
  do {                                                                          \
    cublasStatus_t status = (call);                                             \
    if (status != CUBLAS_STATUS_SUCCESS) {                                      \
      printf("%s:%d: %s\n", __FILE__, __LINE__, cublasGetStatusString(status)); \
      exit(3);                                                                  \
    }                                                                           \
  } while (0)

cublasHandle_t handle;
int compared = 0, wrong = 0;

void expect(const char* what, double got, double expected) {
  ++compared;
  if (got == expected) return;
  if (++wrong <= 10) printf("%s: %g, expected %g\n", what, got, expected);
}

template <class T>
struct OnDevice {
  T* data;
  size_t n;
  explicit OnDevice(const std::vector<double>& values) : n(values.size()) {
    std::vector<T> typed(n);
    for (size_t i = 0; i < n; ++i) typed[i] = static_cast<T>(static_cast<float>(values[i]));
    CHECK(cudaMalloc(&data, n * sizeof(T)));
    CHECK(cudaMemcpy(data, typed.data(), n * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnDevice() { cudaFree(data); }
  std::vector<double> values() const {
    std::vector<T> typed(n);
    CHECK(cudaMemcpy(typed.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
    std::vector<double> all(n);
    for (size_t i = 0; i < n; ++i) all[i] = static_cast<double>(static_cast<float>(typed[i]));
    return all;
  }
};

std::vector<double> integers(size_t n, int seed) {
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<int>((i * 7 + seed * 13 + i * i % 5) % 7) - 3;
  return x;
}

// Element (i, j) of op(a).
double at(const std::vector<double>& a, int ld, cublasOperation_t op, int i, int j, int base = 0) {
  return a[base + (op == CUBLAS_OP_N ? j * ld + i : i * ld + j)];
}

template <class In, class Out, class Scale, class Call>
void product(const char* name, int m, int n, int k, cublasOperation_t opa, cublasOperation_t opb,
             double alpha, double beta, int batches, const Call& call) {
  const int lda = (opa == CUBLAS_OP_N ? m : k) + 2, ldb = (opb == CUBLAS_OP_N ? k : n) + 1;
  const int ldc = m + 3, cols_a = opa == CUBLAS_OP_N ? k : m, cols_b = opb == CUBLAS_OP_N ? n : k;
  const int sa = lda * cols_a, sb = ldb * cols_b, sc = ldc * n;
  const auto a = integers(sa * batches, 1), b = integers(sb * batches, 2);
  const auto c = integers(sc * batches, 3);
  OnDevice<In> da(a), db(b);
  OnDevice<Out> dc(c);
  const Scale with = static_cast<Scale>(static_cast<float>(alpha));
  const Scale plus = static_cast<Scale>(static_cast<float>(beta));
  CHECK_BLAS(call(&with, da.data, lda, sa, db.data, ldb, sb, &plus, dc.data, ldc, sc));
  const auto got = dc.values();
  for (int s = 0; s < batches; ++s)
    for (int j = 0; j < n; ++j)
      for (int i = 0; i < ldc; ++i) {
        double sum = 0;
        for (int x = 0; i < m && x < k; ++x)
          sum += at(a, lda, opa, i, x, s * sa) * at(b, ldb, opb, x, j, s * sb);
        const double old = c[s * sc + j * ldc + i];
        expect(name, got[s * sc + j * ldc + i], i < m ? alpha * sum + beta * old : old);
      }
}

template <class In, class Out, class Scale>
void products(const char* name, cudaDataType in, cudaDataType out, cublasComputeType_t compute) {
  const cublasOperation_t ops[] = {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C};
  const int sizes[][3] = {{1, 1, 1}, {3, 5, 2}, {64, 64, 32}, {65, 70, 33}, {7, 129, 0}};
  for (const auto& size : sizes)
    for (cublasOperation_t opa : ops)
      for (cublasOperation_t opb : ops) {
        const int m = size[0], n = size[1], k = size[2];
        const auto call = [&](auto* alpha, auto* a, int lda, int sa, auto* b, int ldb, int sb,
                              auto* beta, auto* c, int ldc, int sc) {
          return cublasGemmStridedBatchedEx(handle, opa, opb, m, n, k, alpha, a, in, lda, sa, b, in,
                                            ldb, sb, beta, c, out, ldc, sc, 2, compute,
                                            CUBLAS_GEMM_DEFAULT);
        };
        product<In, Out, Scale>(name, m, n, k, opa, opb, 1, 0, 2, call);
        product<In, Out, Scale>(name, m, n, k, opa, opb, 2, -1, 2, call);
      }
}

template <class T>
struct Names;
#define NAMES(T, L)                               \
  template <>                                     \
  struct Names<T> {                               \
    static constexpr auto gemm = cublas##L##gemm; \
    static constexpr auto gemv = cublas##L##gemv; \
    static constexpr auto ger = cublas##L##ger;   \
    static constexpr auto geam = cublas##L##geam; \
    static constexpr auto axpy = cublas##L##axpy; \
    static constexpr auto scal = cublas##L##scal; \
    static constexpr auto copy = cublas##L##copy; \
    static constexpr auto swap = cublas##L##swap; \
    static constexpr auto dot = cublas##L##dot;   \
    static constexpr auto nrm2 = cublas##L##nrm2; \
    static constexpr auto asum = cublas##L##asum; \
  };
NAMES(float, S)
NAMES(double, D)

template <class T>
void vectors(int n, int incx, int incy) {
  using F = Names<T>;
  const int ax = std::abs(incx), ay = std::abs(incy);
  const auto x = integers(n * ax + 1, 4), y = integers(n * ay + 1, 5);
  const auto of = [n](const std::vector<double>& v, int inc, int i) {
    return v[inc < 0 ? (i - n + 1) * inc : i * inc];
  };
  const T two = 2;
  {
    OnDevice<T> dx(x), dy(y);
    CHECK_BLAS(F::axpy(handle, n, &two, dx.data, incx, dy.data, incy));
    const auto got = dy.values();
    for (int i = 0; i < n; ++i)
      expect("axpy", of(got, incy, i), of(y, incy, i) + 2 * of(x, incx, i));
    CHECK_BLAS(F::copy(handle, n, dx.data, incx, dy.data, incy));
    const auto copied = dy.values();
    for (int i = 0; i < n; ++i) expect("copy", of(copied, incy, i), of(x, incx, i));
  }
  {
    OnDevice<T> dx(x), dy(y);
    CHECK_BLAS(F::swap(handle, n, dx.data, incx, dy.data, incy));
    const auto gx = dx.values(), gy = dy.values();
    for (int i = 0; i < n; ++i) {
      expect("swap", of(gx, incx, i), of(y, incy, i));
      expect("swap", of(gy, incy, i), of(x, incx, i));
    }
  }
  OnDevice<T> dx(x), dy(y);
  T result = -1;
  double dot = 0, squares = 0, magnitudes = 0;
  for (int i = 0; i < n; ++i) {
    dot += of(x, incx, i) * of(y, incy, i);
    squares += of(x, incx, i) * of(x, incx, i);
    magnitudes += std::fabs(of(x, incx, i));
  }
  CHECK_BLAS(F::dot(handle, n, dx.data, incx, dy.data, incy, &result));
  expect("dot", result, dot);
  if (incx < 1) return;
  CHECK_BLAS(F::asum(handle, n, dx.data, incx, &result));
  expect("asum", result, magnitudes);
  CHECK_BLAS(F::nrm2(handle, n, dx.data, incx, &result));
  expect("nrm2", std::fabs(result - std::sqrt(squares)) <= 1e-5 * std::sqrt(squares), 1);
  CHECK_BLAS(F::scal(handle, n, &two, dx.data, incx));
  const auto scaled = dx.values();
  for (int i = 0; i < n; ++i) expect("scal", of(scaled, incx, i), 2 * of(x, incx, i));
}

template <class T>
void matrices(int m, int n) {
  using F = Names<T>;
  const int lda = m + 1;
  const auto a = integers(lda * n, 1);
  const T two = 2, minus = -1, zero = 0;
  for (cublasOperation_t op : {CUBLAS_OP_N, CUBLAS_OP_T}) {
    const int outputs = op == CUBLAS_OP_N ? m : n, terms = op == CUBLAS_OP_N ? n : m;
    const auto x = integers(terms * 2, 2), y = integers(outputs, 3);
    OnDevice<T> da(a), dx(x), dy(y);
    CHECK_BLAS(F::gemv(handle, op, m, n, &two, da.data, lda, dx.data, 2, &minus, dy.data, 1));
    const auto got = dy.values();
    for (int i = 0; i < outputs; ++i) {
      double sum = 0;
      for (int k = 0; k < terms; ++k) sum += at(a, lda, op, i, k) * x[2 * k];
      expect("gemv", got[i], 2 * sum - y[i]);
    }
    const auto b = integers(lda * n, 6);
    const int ldo = outputs + 1;
    OnDevice<T> db(b), out(std::vector<double>(ldo * terms, 9));
    CHECK_BLAS(F::geam(handle, op, op, outputs, terms, &two, da.data, lda, &minus, db.data, lda,
                       out.data, ldo));
    const auto sums = out.values();
    for (int j = 0; j < terms; ++j)
      for (int i = 0; i < outputs; ++i)
        expect("geam", sums[j * ldo + i], 2 * at(a, lda, op, i, j) - at(b, lda, op, i, j));
    // Of beta 0, the other matrix is not read.
    CHECK_BLAS(F::geam(handle, op, CUBLAS_OP_N, outputs, terms, &two, da.data, lda, &zero, nullptr,
                       outputs, out.data, ldo));
  }
  const auto u = integers(m, 7), v = integers(n, 8);
  OnDevice<T> da(a), du(u), dv(v);
  CHECK_BLAS(F::ger(handle, m, n, &two, du.data, 1, dv.data, 1, da.data, lda));
  const auto got = da.values();
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < m; ++i) expect("ger", got[j * lda + i], a[j * lda + i] + 2 * u[i] * v[j]);
}

// Lists of matrices, scalars and results in device memory, a stream of the program's.
void modes() {
  const auto a = integers(4, 1);
  OnDevice<float> x(a), y(a), z(std::vector<double>(8, 0)), scalars({2, 0, -1});
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK_BLAS(cublasSetStream(handle, stream));
  CHECK_BLAS(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE));
  CHECK_BLAS(cublasSdot(handle, 4, x.data, 1, y.data, 1, scalars.data + 2));
  const float* hosts[] = {x.data, y.data, x.data, y.data};
  float* outs[] = {z.data, z.data + 4};
  const float** lists;
  CHECK(cudaMalloc(&lists, 6 * sizeof(float*)));
  CHECK(cudaMemcpy(lists, hosts, sizeof hosts, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(lists + 4, outs, sizeof outs, cudaMemcpyHostToDevice));
  CHECK_BLAS(cublasSgemmBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, scalars.data, lists, 2,
                                lists + 2, 2, scalars.data + 1, const_cast<float**>(lists + 4), 2,
                                2));
  CHECK(cudaStreamSynchronize(stream));
  CHECK_BLAS(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST));
  CHECK_BLAS(cublasSetStream(handle, nullptr));
  double dot = 0;
  for (double v : a) dot += v * v;
  expect("dot on the device", scalars.values()[2], dot);
  for (int s = 0; s < 2; ++s)
    for (int j = 0; j < 2; ++j)
      for (int i = 0; i < 2; ++i)
        expect("gemmBatched", z.values()[4 * s + 2 * j + i],
               2 * (a[i] * a[2 * j] + a[2 + i] * a[2 * j + 1]));
  CHECK(cudaFree(lists));
  CHECK(cudaStreamDestroy(stream));
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

void epilogues() {
  const int m = 5, n = 3, k = 4;
  const auto a = integers(m * k, 1), b = integers(k * n, 2), bias = integers(m, 3);
  OnDevice<float> da(a), db(b), dbias(bias), d(std::vector<double>(m * n)), aux(d.values());
  cublasLtHandle_t lt;
  CHECK_BLAS(cublasLtCreate(&lt));
  cublasLtMatrixLayout_t la, lb, lc;
  CHECK_BLAS(cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, k, m, k));
  CHECK_BLAS(cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, k, n, k));
  CHECK_BLAS(cublasLtMatrixLayoutCreate(&lc, CUDA_R_32F, m, n, m));
  const float one = 1, zero = 0;
  for (cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU}) {
    cublasLtMatmulDesc_t desc;
    CHECK_BLAS(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const float* bias_pointer = dbias.data;
    float* aux_pointer = aux.data;
    const int64_t ld = m;
    const auto set = [&](cublasLtMatmulDescAttributes_t which, const void* value, size_t bytes) {
      CHECK_BLAS(cublasLtMatmulDescSetAttribute(desc, which, value, bytes));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer, sizeof bias_pointer);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux_pointer, sizeof aux_pointer);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    CHECK_BLAS(cublasLtMatmul(lt, desc, &one, da.data, la, db.data, lb, &zero, d.data, lc, d.data,
                              lc, nullptr, nullptr, 0, nullptr));
    const auto got = d.values(), kept = aux.values();
    for (int j = 0; j < n; ++j)
      for (int i = 0; i < m; ++i) {
        double x = 0;
        for (int s = 0; s < k; ++s) x += a[i * k + s] * b[j * k + s];
        if (epilogue & CUBLASLT_EPILOGUE_BIAS) x += bias[i];
        if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) expect("aux", kept[j * m + i], x);
        if (epilogue & CUBLASLT_EPILOGUE_RELU) x = std::fmax(x, 0);
        if (epilogue & CUBLASLT_EPILOGUE_GELU)
          expect("gelu", std::fabs(got[j * m + i] - gelu(x)) < 1e-5, 1);
        else
          expect("epilogue", got[j * m + i], x);
      }
    CHECK_BLAS(cublasLtMatmulDescDestroy(desc));
  }
  for (auto layout : {la, lb, lc}) CHECK_BLAS(cublasLtMatrixLayoutDestroy(layout));
  CHECK_BLAS(cublasLtDestroy(lt));
}

void refusals() {
  const float one = 1;
  float x = 0;
  const auto refused = [](cublasStatus_t status, cublasStatus_t expected) {
    expect("status", status, expected);
  };
  refused(cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, &x, 1, &x, 1, &one, &x, 1),
          CUBLAS_STATUS_NOT_INITIALIZED);
  refused(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 1, 1, &one, &x, 3, &x, 1, &one, &x, 4),
          CUBLAS_STATUS_INVALID_VALUE);
  refused(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, -1, 1, 1, &one, &x, 1, &x, 1, &one, &x, 1),
          CUBLAS_STATUS_INVALID_VALUE);
  refused(
      cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, &x, CUDA_R_16F, 1, &x,
                   CUDA_R_32F, 1, &one, &x, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      CUBLAS_STATUS_NOT_SUPPORTED);
}

int main() {
  CHECK_BLAS(cublasCreate(&handle));
  products<float, float, float>("float", CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F);
  products<double, double, double>("double", CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F);
  products<__half, __half, __half>("half", CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F);
  products<__nv_bfloat16, float, float>("bfloat16", CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F);
  products<int8_t, int, int>("int8", CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I);
  for (int n : {0, 1, 5, 5000})
    for (int incx : {1, 3, -2})
      for (int incy : {1, -1}) {
        vectors<float>(n, incx, incy);
        vectors<double>(n, incx, incy);
      }
  int index = -1;
  OnDevice<float> x({1, -3, 3, 0.5f, 2});
  CHECK_BLAS(cublasIsamax(handle, 5, x.data, 1, &index));
  expect("isamax", index, 2);
  CHECK_BLAS(cublasIsamin(handle, 5, x.data, 1, &index));
  expect("isamin", index, 4);
  matrices<float>(7, 70);
  matrices<double>(65, 3);
  modes();
  epilogues();
  refusals();
  CHECK_BLAS(cublasDestroy(handle));
  printf("%d of %d wrong\n", wrong, compared);
  return wrong != 0;
}

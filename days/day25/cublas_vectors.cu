// Day 25: cuBLAS from C++: products and reductions of vectors in fp32, beside our own kernels
//
//   gemv   y = A · x, A: (M, K)          dot    Σ x[i] · y[i]
//   axpy   a · x + y                     amax   where |x[i]| is largest, counted from 1
//
// Bytes of gemv: 4 · M · K, of dot 8 · n, of axpy 12 · n, of amax 4 · n: memory bandwidth is the
// bound.
//
//   v1 own         one warp per row (day 23), reductions in two stages (day 14)
//   v2 cublas      the library's kernels
//
// Run: python run_day.py 25

#include "common/cuda/binding.cuh"
#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/tensor.cuh"
#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day25/cublas_handle.cuh"

// ---------------------------------------------------------------------------------------------
// Vectors in fp32: gemv with one warp per row, dot and amax in two stages, axpy by element.

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;

__global__ void gemv_v1_own_kernel(const float* __restrict__ a, const float* __restrict__ x,
                                   float* __restrict__ y, int64_t M, int64_t K) {
  const int lane = threadIdx.x % 32;
  const int64_t m = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (m >= M) return;  // the same for all 32 lanes, so all take part in the shuffles
  float sum[4] = {};   // independent sums, so that a lane has several loads in flight
  int64_t k = lane;
  for (; k + 96 < K; k += 128) {
#pragma unroll
    for (int u = 0; u < 4; ++u) sum[u] += a[m * K + k + 32 * u] * x[k + 32 * u];
  }
  for (; k < K; k += 32) sum[0] += a[m * K + k] * x[k];
  const float total = warp_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (lane == 0) y[m] = total;
}

// Checks A (M, K), x (K,); allocates y (M,).
Tensor make_gemv(const Tensor& a, const Tensor& x) {
  check(a, "a").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(x, "x").same_device(a, "a").size(0, a.size(1));
  return allocate(a, {a.size(0)});
}

Tensor gemv_v1_own(const Tensor& a, const Tensor& x) {
  Tensor y = make_gemv(a, x);
  if (y.numel() == 0) return y;
  const DeviceGuard guard(a);
  const unsigned grid = grid_size(ceil_div<int64_t>(a.size(0), WARPS), "a");
  gemv_v1_own_kernel<<<grid, BLOCK, 0, current_stream(a)>>>(
      data<float>(a), data<float>(x), mutable_data<float>(y), a.size(0), a.size(1));
  check_launch("gemv_v1_own");
  return y;
}

// Blocks of the first stage: 8 per multiprocessor at most. The second stage is one block.
unsigned first_stage(const Tensor& x) {
  const int64_t most = 8 * multiprocessor_count(x);
  const int64_t blocks = ceil_div<int64_t>(x.numel(), 4 * BLOCK);
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

// partial[b] = the sum of x[i] · y[i] over block b's elements. With y == nullptr it is the sum of
// x; the second stage sums the partial results of the first that way.
__global__ void dot_v1_own_kernel(const float* __restrict__ x, const float* __restrict__ y,
                                  float* __restrict__ partial, int64_t n) {
  __shared__ float shared[BLOCK];
  const int64_t threads = int64_t{gridDim.x} * BLOCK;
  float sum[4] = {};
  int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  for (; i + 3 * threads < n; i += 4 * threads) {
#pragma unroll
    for (int u = 0; u < 4; ++u) sum[u] += x[i + u * threads] * (y ? y[i + u * threads] : 1.0f);
  }
  for (; i < n; i += threads) sum[0] += x[i] * (y ? y[i] : 1.0f);
  shared[threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  const float total = tree_reduce(shared, [](float p, float q) { return p + q; });
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

void check_vectors(const Tensor& x, const Tensor& y) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(y, "y").on_gpu().like(x, "x").contiguous();
}

Tensor dot_v1_own(const Tensor& x, const Tensor& y) {
  check_vectors(x, y);
  const DeviceGuard guard(x);
  Tensor result = allocate(x, {});
  const int64_t n = x.numel();
  const unsigned grid = first_stage(x);
  Tensor partial = allocate(x, {int64_t{grid}});
  if (grid > 0) {
    dot_v1_own_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<float>(x), data<float>(y),
                                                             mutable_data<float>(partial), n);
  }
  dot_v1_own_kernel<<<1, BLOCK, 0, current_stream(x)>>>(data<float>(partial), nullptr,
                                                        mutable_data<float>(result), grid);
  check_launch("dot_v1_own");
  return result;
}

__global__ void axpy_v1_own_kernel(float a, const float* __restrict__ x,
                                   const float* __restrict__ y, float* __restrict__ z, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) z[i] = a * x[i] + y[i];
}

Tensor axpy_v1_own(const Tensor& x, const Tensor& y, double a) {
  check_vectors(x, y);
  const DeviceGuard guard(x);
  Tensor z = allocate_like(y);
  const int64_t n = x.numel();
  if (n == 0) return z;
  axpy_v1_own_kernel<<<grid_size(ceil_div<int64_t>(n, BLOCK), "x"), BLOCK, 0, current_stream(x)>>>(
      static_cast<float>(a), data<float>(x), data<float>(y), mutable_data<float>(z), n);
  check_launch("axpy_v1_own");
  return z;
}

struct Largest {
  float size;  // |x[i]|
  int64_t at;  // i + 1, as in BLAS; among equal sizes the smallest
};

__device__ Largest larger(Largest p, Largest q) {
  return q.size > p.size || (q.size == p.size && q.at < p.at) ? q : p;
}

// partial[b] = the largest of block b's elements. The second stage, one block with n == 0, reduces
// the `blocks` partial results of the first and writes the answer.
__global__ void amax_v1_own_kernel(const float* __restrict__ x, int64_t n, Largest* partial,
                                   int blocks, int64_t* answer) {
  __shared__ Largest shared[BLOCK];
  const int64_t threads = int64_t{gridDim.x} * BLOCK;
  Largest mine{-1.0f, INT64_MAX};
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < n; i += threads) {
    mine = larger(mine, Largest{fabsf(x[i]), i + 1});
  }
  for (int b = threadIdx.x; b < blocks; b += BLOCK) mine = larger(mine, partial[b]);
  shared[threadIdx.x] = mine;
  const Largest result = tree_reduce(shared, [](Largest p, Largest q) { return larger(p, q); });
  if (threadIdx.x == 0) {
    if (answer) {
      *answer = result.at;
    } else {
      partial[blockIdx.x] = result;
    }
  }
}

Tensor make_amax(const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  STD_TORCH_CHECK(x.numel() > 0, "x: expected at least one element, got none");
  return allocate(x, {}, ScalarType::Long);
}

Tensor amax_v1_own(const Tensor& x) {
  Tensor index = make_amax(x);
  const DeviceGuard guard(x);
  const int64_t n = x.numel();
  const unsigned grid = first_stage(x);
  const Tensor room = allocate(index, {2 * int64_t{grid}});  // 16 bytes each
  auto* partial = static_cast<Largest*>(room.mutable_data_ptr());
  amax_v1_own_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<float>(x), n, partial, 0, nullptr);
  amax_v1_own_kernel<<<1, BLOCK, 0, current_stream(x)>>>(nullptr, 0, partial, grid,
                                                         mutable_data<int64_t>(index));
  check_launch("amax_v1_own");
  return index;
}

#ifdef HAVE_CUBLAS
// ---------------------------------------------------------------------------------------------
// The library.

// gemv v2: our A (M, K) is Aᵀ (K, M) to the library, which transposes it back.
Tensor gemv_v2_cublas(const Tensor& a, const Tensor& x) {
  Tensor y = make_gemv(a, x);
  const int64_t M = a.size(0), K = a.size(1);
  const DeviceGuard guard(a);
  if (M == 0) return y;
  if (K == 0) {
    check_cuda(cudaMemsetAsync(y.mutable_data_ptr(), 0, M * sizeof(float), current_stream(a)),
               "cudaMemsetAsync");
    return y;
  }
  const Library library(a);
  const float alpha = 1, beta = 0;
  check_cublas(cublasSgemv_64(library.handle, CUBLAS_OP_T, K, M, &alpha, data<float>(a), K,
                              data<float>(x), 1, &beta, mutable_data<float>(y), 1),
               "cublasSgemv");
  return y;
}

// dot v2: the result stays in device memory. With the default pointer mode, the call would wait for
// the kernel and return the result to the host.
Tensor dot_v2_cublas(const Tensor& x, const Tensor& y) {
  check_vectors(x, y);
  const DeviceGuard guard(x);
  Tensor result = allocate(x, {});
  const Library library(x, CUBLAS_POINTER_MODE_DEVICE);
  check_cuda(cudaMemsetAsync(result.mutable_data_ptr(), 0, sizeof(float), current_stream(x)),
             "cudaMemsetAsync");  // the sum of an empty vector
  if (x.numel() == 0) return result;
  check_cublas(cublasSdot_64(library.handle, x.numel(), data<float>(x), 1, data<float>(y), 1,
                             mutable_data<float>(result)),
               "cublasSdot");
  return result;
}

// axpy v2: BLAS overwrites y, so a caller that still needs y must copy it first: 20 bytes per
// element instead of 12.
Tensor axpy_v2_cublas(const Tensor& x, const Tensor& y, double a) {
  check_vectors(x, y);
  const DeviceGuard guard(x);
  Tensor z = allocate_like(y);
  const int64_t n = x.numel();
  if (n == 0) return z;
  check_cuda(cudaMemcpyAsync(z.mutable_data_ptr(), y.const_data_ptr(), n * sizeof(float),
                             cudaMemcpyDeviceToDevice, current_stream(x)),
             "copy of y");
  const Library library(x);
  const float alpha = static_cast<float>(a);
  check_cublas(
      cublasSaxpy_64(library.handle, n, &alpha, data<float>(x), 1, mutable_data<float>(z), 1),
      "cublasSaxpy");
  return z;
}

// amax v2: the index counts from 1, as in Fortran.
Tensor amax_v2_cublas(const Tensor& x) {
  Tensor index = make_amax(x);
  const DeviceGuard guard(x);
  const Library library(x, CUBLAS_POINTER_MODE_DEVICE);
  check_cublas(
      cublasIsamax_64(library.handle, x.numel(), data<float>(x), 1, mutable_data<int64_t>(index)),
      "cublasIsamax");
  return index;
}
#endif

// ---------------------------------------------------------------------------------------------

RUNG(day25, gemv_v1_own, "(Tensor a, Tensor x) -> Tensor");
RUNG(day25, dot_v1_own, "(Tensor x, Tensor y) -> Tensor");
RUNG(day25, axpy_v1_own, "(Tensor x, Tensor y, float a=1.0) -> Tensor");
RUNG(day25, amax_v1_own, "(Tensor x) -> Tensor");
#ifdef HAVE_CUBLAS
RUNG(day25, gemv_v2_cublas, "(Tensor a, Tensor x) -> Tensor");
RUNG(day25, dot_v2_cublas, "(Tensor x, Tensor y) -> Tensor");
RUNG(day25, axpy_v2_cublas, "(Tensor x, Tensor y, float a=1.0) -> Tensor");
RUNG(day25, amax_v2_cublas, "(Tensor x) -> Tensor");
#endif

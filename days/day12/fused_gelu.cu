// Day 12: one operator, three ways to build it
//
//   y[r, c]  = gelu(x[r, c] + bias[c])                  x, y: (rows, cols), bias: (cols,)
//   gx[r, c] = g[r, c] · gelu'(x[r, c] + bias[c])       the gradient of x from g, that of y
//   gelu(v)  = v/2 · (1 + erf(v / √2))
//
// Bytes: fused_gelu reads x and writes y, 2 · rows · cols · sizeof(T); fused_gelu_backward reads g
// and x and writes gx, 3 · rows · cols · sizeof(T). Operations: about 20 per element, so both are
// bound by memory.
//
// The lesson is the build, not the kernels. This file uses CUDA only, binding.cpp uses PyTorch, and
// three build systems make the same library from the two:
//
//   jit       torch.utils.cpp_extension.load, from Python
//   setup.py  setuptools, run by pip
//   cmake     CMakeLists.txt, find_package(Torch)
//
// Run: python run_day.py 12

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

constexpr int BLOCK = 256;
constexpr int ROWS = 4;  // rows per thread: one load of the bias serves four elements

// Conversions by function, not by cast: PyTorch's cpp_extension removes the casts of half types
// (-D__CUDA_NO_HALF_CONVERSIONS__), and a kernel should compile in every build.
__device__ float to_float(float v) {
  return v;
}
__device__ float to_float(__half v) {
  return __half2float(v);
}
__device__ float to_float(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
template <typename T>
__device__ T from_float(float v);
template <>
__device__ float from_float<float>(float v) {
  return v;
}
template <>
__device__ __half from_float<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

constexpr float INV_SQRT_2 = 0.70710678118654752f;
constexpr float INV_SQRT_2PI = 0.39894228040143268f;

// Φ(v), the cumulative distribution function of the standard normal distribution.
__device__ float normal_cdf(float v) {
  return 0.5f * (1.0f + erff(v * INV_SQRT_2));
}

__device__ float gelu(float v) {
  return v * normal_cdf(v);
}

// d/dv v · Φ(v) = Φ(v) + v · φ(v)
__device__ float gelu_derivative(float v) {
  return normal_cdf(v) + v * INV_SQRT_2PI * expf(-0.5f * v * v);
}

// One thread per column, for ROWS consecutive rows from ROWS · blockIdx.y on.
template <typename T>
__global__ void fused_gelu_kernel(const T* __restrict__ x, const T* __restrict__ bias,
                                  T* __restrict__ y, int64_t rows, int64_t cols) {
  const int64_t c = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (c >= cols) return;
  const float b = to_float(bias[c]);
  for (int64_t r0 = int64_t{blockIdx.y} * ROWS; r0 < rows; r0 += int64_t{gridDim.y} * ROWS) {
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r0 + k >= rows) break;
      const int64_t i = (r0 + k) * cols + c;
      y[i] = from_float<T>(gelu(to_float(x[i]) + b));
    }
  }
}

template <typename T>
__global__ void fused_gelu_backward_kernel(const T* __restrict__ g, const T* __restrict__ x,
                                           const T* __restrict__ bias, T* __restrict__ gx,
                                           int64_t rows, int64_t cols) {
  const int64_t c = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (c >= cols) return;
  const float b = to_float(bias[c]);
  for (int64_t r0 = int64_t{blockIdx.y} * ROWS; r0 < rows; r0 += int64_t{gridDim.y} * ROWS) {
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r0 + k >= rows) break;
      const int64_t i = (r0 + k) * cols + c;
      gx[i] = from_float<T>(to_float(g[i]) * gelu_derivative(to_float(x[i]) + b));
    }
  }
}

// A grid has few blocks along y, 65535 on today's cards; beyond that the kernels stride over the
// rows.
dim3 grid_of(int64_t rows, int64_t cols) {
  int device, most;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxGridDimY, device);
  const int64_t down = (rows + ROWS - 1) / ROWS;
  return dim3(static_cast<unsigned>((cols + BLOCK - 1) / BLOCK),
              static_cast<unsigned>(down < most ? down : most));
}

// The interface to binding.cpp: pointers, sizes, a stream. Both return the launch's error.
template <typename T>
cudaError_t launch_fused_gelu(const T* x, const T* bias, T* y, int64_t rows, int64_t cols,
                              cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;  // a grid of no blocks is an error
  fused_gelu_kernel<T><<<grid_of(rows, cols), BLOCK, 0, stream>>>(x, bias, y, rows, cols);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_fused_gelu_backward(const T* g, const T* x, const T* bias, T* gx, int64_t rows,
                                       int64_t cols, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;
  fused_gelu_backward_kernel<T>
      <<<grid_of(rows, cols), BLOCK, 0, stream>>>(g, x, bias, gx, rows, cols);
  return cudaGetLastError();
}

// binding.cpp uses these templates but does not see their definitions, so they are instantiated
// here.
template cudaError_t launch_fused_gelu(const float*, const float*, float*, int64_t, int64_t,
                                       cudaStream_t);
template cudaError_t launch_fused_gelu(const __half*, const __half*, __half*, int64_t, int64_t,
                                       cudaStream_t);
template cudaError_t launch_fused_gelu(const __nv_bfloat16*, const __nv_bfloat16*, __nv_bfloat16*,
                                       int64_t, int64_t, cudaStream_t);
template cudaError_t launch_fused_gelu_backward(const float*, const float*, const float*, float*,
                                                int64_t, int64_t, cudaStream_t);
template cudaError_t launch_fused_gelu_backward(const __half*, const __half*, const __half*,
                                                __half*, int64_t, int64_t, cudaStream_t);
template cudaError_t launch_fused_gelu_backward(const __nv_bfloat16*, const __nv_bfloat16*,
                                                const __nv_bfloat16*, __nv_bfloat16*, int64_t,
                                                int64_t, cudaStream_t);

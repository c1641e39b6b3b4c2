// Logarithm, square root and its reciprocal as the special function unit gives them, each in one
// instruction (sm_75).
//
// __logf, sqrtf and rsqrtf use it too, but handle arguments below the smallest normal number, which
// takes three instructions more.
#pragma once

#include <cfloat>
#include <cmath>

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// The logarithm to base 2. An x below the smallest normal number counts as 0, whose logarithm is
// -inf. GPU and CPU: each within 2^-21 of the result, or of 1 where that is more. PTX:
// lg2.approx.ftz.f32 result, x;
__device__ __forceinline__ float log2_approx(float x) {
#ifdef CUDA_ON_CPU
  return log2f(fabsf(x) < FLT_MIN ? 0.0f : x);
#else
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// The square root. An x below the smallest normal number counts as 0.
// GPU and CPU: each within 2^-22 of the result, relatively. PTX: sqrt.approx.ftz.f32 result, x;
__device__ __forceinline__ float sqrt_approx(float x) {
#ifdef CUDA_ON_CPU
  return sqrtf(fabsf(x) < FLT_MIN ? 0.0f : x);
#else
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// 1 / √x. An x below the smallest normal number counts as 0, for which it is inf.
// GPU and CPU: each within 2^-22 of the result, relatively. PTX: rsqrt.approx.ftz.f32 result, x;
__device__ __forceinline__ float rsqrt_approx(float x) {
#ifdef CUDA_ON_CPU
  return 1.0f / sqrtf(fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x);
#else
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

}  // namespace ptx

// Powers of two as the special function unit gives them, in one instruction (sm_75).
//
// exp2f and __expf use it too, but keep results below the smallest normal number, which takes three
// instructions more.
#pragma once

#include <cfloat>
#include <cmath>

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// 2^x. What is smaller than the smallest normal number is 0; 2^-inf is 0, 2^inf is inf.
// GPU and CPU: each within 2^-22 of the result, relatively. PTX: ex2.approx.ftz.f32 result, x;
__device__ __forceinline__ float exp2_approx(float x) {
#ifdef CUDA_ON_CPU
  const float result = exp2f(x);
  return result < FLT_MIN ? 0.0f : result;
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

}  // namespace ptx

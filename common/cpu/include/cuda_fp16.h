// Half precision: NVIDIA's own header, whose host side has the types, conversions and operators,
// and what it has for device code only.
#pragma once

#include <cuda_runtime.h>

#include_next <cuda_fp16.h>

#include "cudacpu/half_math.h"

CUDACPU_HALF_MATH(__half, __half2, __half2float, __float2half_rn, __double2half)
CUDACPU_HALF_TO_INTEGER(__half, half, __half2float)

inline __half atomicAdd(__half* address, __half value) {
  return cudacpu::atomic_update<uint16_t>(address, [=](__half old) { return __hadd(old, value); });
}
inline __half2 atomicAdd(__half2* address, __half2 value) {
  return cudacpu::atomic_update<uint32_t>(address,
                                          [=](__half2 old) { return __hadd2(old, value); });
}

template <>
inline constexpr bool cudacpu::kHasShuffle<__half> = true;
template <>
inline constexpr bool cudacpu::kHasShuffle<__half2> = true;

// bfloat16: NVIDIA's own header, whose host side has the types, conversions and operators, and what
// it has for device code only.
#pragma once

#include <cuda_runtime.h>

#include_next <cuda_bf16.h>

#include "cudacpu/half_math.h"

CUDACPU_HALF_MATH(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __float2bfloat16_rn,
                  __double2bfloat16)
CUDACPU_HALF_TO_INTEGER(__nv_bfloat16, bfloat16, __bfloat162float)

// Integers in the directed roundings: rounding twice in one direction is rounding once.
#define CUDACPU_INTEGER_TO_BFLOAT16(name, T, through, mode)        \
  inline __nv_bfloat16 __##name##2bfloat16_##mode(T x) {           \
    return __float2bfloat16_##mode(__##through##2float_##mode(x)); \
  }
#define CUDACPU_INTEGERS_TO_BFLOAT16(mode)                       \
  CUDACPU_INTEGER_TO_BFLOAT16(short, short, int, mode)           \
  CUDACPU_INTEGER_TO_BFLOAT16(ushort, unsigned short, int, mode) \
  CUDACPU_INTEGER_TO_BFLOAT16(int, int, int, mode)               \
  CUDACPU_INTEGER_TO_BFLOAT16(uint, unsigned, uint, mode)        \
  CUDACPU_INTEGER_TO_BFLOAT16(ll, long long, ll, mode)           \
  CUDACPU_INTEGER_TO_BFLOAT16(ull, unsigned long long, ull, mode)
CUDACPU_INTEGERS_TO_BFLOAT16(rz)
CUDACPU_INTEGERS_TO_BFLOAT16(rd)
CUDACPU_INTEGERS_TO_BFLOAT16(ru)
#undef CUDACPU_INTEGERS_TO_BFLOAT16
#undef CUDACPU_INTEGER_TO_BFLOAT16

inline __nv_bfloat16 atomicAdd(__nv_bfloat16* address, __nv_bfloat16 value) {
  return cudacpu::atomic_update<uint16_t>(address,
                                          [=](__nv_bfloat16 old) { return __hadd(old, value); });
}
inline __nv_bfloat162 atomicAdd(__nv_bfloat162* address, __nv_bfloat162 value) {
  return cudacpu::atomic_update<uint32_t>(address,
                                          [=](__nv_bfloat162 old) { return __hadd2(old, value); });
}

template <>
inline constexpr bool cudacpu::kHasShuffle<__nv_bfloat16> = true;
template <>
inline constexpr bool cudacpu::kHasShuffle<__nv_bfloat162> = true;

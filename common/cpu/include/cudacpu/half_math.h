// Functions that NVIDIA's headers define in device code only, once for each of half and bfloat16.
#pragma once

#include <cmath>

#include "cudacpu/convert.h"

// One function of one value, and of the pair: computed in float and rounded once.
#define CUDACPU_HALF_UNARY(T, T2, name, to_float, from_float, expression) \
  inline T h##name(const T a) {                                           \
    const float x = to_float(a);                                          \
    return from_float(expression);                                        \
  }                                                                       \
  inline T2 h2##name(const T2 a) {                                        \
    T2 result;                                                            \
    result.x = h##name(static_cast<T>(a.x));                              \
    result.y = h##name(static_cast<T>(a.y));                              \
    return result;                                                        \
  }

// A fused multiply-add of three values rounds once: double holds the sum, or all of it that counts.
#define CUDACPU_HALF_FMA(T, T2, to_float, from_double, suffix, expression)                    \
  inline T __hfma##suffix(const T a, const T b, const T c) {                                  \
    const double x = std::fma(double{to_float(a)}, double{to_float(b)}, double{to_float(c)}); \
    return from_double(expression);                                                           \
  }                                                                                           \
  inline T2 __hfma2##suffix(const T2 a, const T2 b, const T2 c) {                             \
    T2 result;                                                                                \
    result.x = __hfma##suffix(static_cast<T>(a.x), static_cast<T>(b.x), static_cast<T>(c.x)); \
    result.y = __hfma##suffix(static_cast<T>(a.y), static_cast<T>(b.y), static_cast<T>(c.y)); \
    return result;                                                                            \
  }

#define CUDACPU_HALF_MATH(T, T2, to_float, from_float, from_double)                           \
  CUDACPU_HALF_FMA(T, T2, to_float, from_double, , x)                                         \
  CUDACPU_HALF_FMA(T, T2, to_float, from_double, _sat, x > 0 ? (x < 1 ? x : 1) : 0)           \
  CUDACPU_HALF_FMA(T, T2, to_float, from_double, _relu, x > 0 || x != x ? x : 0)              \
  CUDACPU_HALF_UNARY(T, T2, ceil, to_float, from_float, ceilf(x))                             \
  CUDACPU_HALF_UNARY(T, T2, floor, to_float, from_float, floorf(x))                           \
  CUDACPU_HALF_UNARY(T, T2, trunc, to_float, from_float, truncf(x))                           \
  CUDACPU_HALF_UNARY(T, T2, rint, to_float, from_float, rintf(x))                             \
  CUDACPU_HALF_UNARY(T, T2, cos, to_float, from_float, cosf(x))                               \
  CUDACPU_HALF_UNARY(T, T2, sin, to_float, from_float, sinf(x))                               \
  CUDACPU_HALF_UNARY(T, T2, tanh, to_float, from_float, tanhf(x))                             \
  CUDACPU_HALF_UNARY(T, T2, tanh_approx, to_float, from_float, tanhf(x))                      \
  CUDACPU_HALF_UNARY(T, T2, exp, to_float, from_float, expf(x))                               \
  CUDACPU_HALF_UNARY(T, T2, exp2, to_float, from_float, exp2f(x))                             \
  CUDACPU_HALF_UNARY(T, T2, exp10, to_float, from_float, exp10f(x))                           \
  CUDACPU_HALF_UNARY(T, T2, log, to_float, from_float, logf(x))                               \
  CUDACPU_HALF_UNARY(T, T2, log2, to_float, from_float, log2f(x))                             \
  CUDACPU_HALF_UNARY(T, T2, log10, to_float, from_float, log10f(x))                           \
  CUDACPU_HALF_UNARY(T, T2, rcp, to_float, from_float, 1.0f / x)                              \
  CUDACPU_HALF_UNARY(T, T2, sqrt, to_float, from_float, sqrtf(x))                             \
  CUDACPU_HALF_UNARY(T, T2, rsqrt, to_float, from_float, 1.0f / sqrtf(x))                     \
  /* Complex: (a.x + i a.y) * (b.x + i b.y) + (c.x + i c.y). */                               \
  inline T2 __hcmadd(const T2 a, const T2 b, const T2 c) {                                    \
    T2 result;                                                                                \
    result.x = __hfma(__hneg(static_cast<T>(a.y)), static_cast<T>(b.y),                       \
                      __hfma(static_cast<T>(a.x), static_cast<T>(b.x), static_cast<T>(c.x))); \
    result.y = __hfma(static_cast<T>(a.y), static_cast<T>(b.x),                               \
                      __hfma(static_cast<T>(a.x), static_cast<T>(b.y), static_cast<T>(c.y))); \
    return result;                                                                            \
  }

// Conversions to an integer other than towards zero (those NVIDIA's host side has).
#define CUDACPU_HALF_TO_INTEGER_AS(T, from, to_float, to, To) \
  inline To __##from##2##to##_rn(const T a) {                 \
    return cudacpu::saturate<To>(rintf(to_float(a)));         \
  }                                                           \
  inline To __##from##2##to##_rd(const T a) {                 \
    return cudacpu::saturate<To>(floorf(to_float(a)));        \
  }                                                           \
  inline To __##from##2##to##_ru(const T a) {                 \
    return cudacpu::saturate<To>(ceilf(to_float(a)));         \
  }
#define CUDACPU_HALF_TO_INTEGER(T, from, to_float)                      \
  CUDACPU_HALF_TO_INTEGER_AS(T, from, to_float, short, short)           \
  CUDACPU_HALF_TO_INTEGER_AS(T, from, to_float, ushort, unsigned short) \
  CUDACPU_HALF_TO_INTEGER_AS(T, from, to_float, int, int)               \
  CUDACPU_HALF_TO_INTEGER_AS(T, from, to_float, uint, unsigned)         \
  CUDACPU_HALF_TO_INTEGER_AS(T, from, to_float, ll, long long)          \
  CUDACPU_HALF_TO_INTEGER_AS(T, from, to_float, ull, unsigned long long)

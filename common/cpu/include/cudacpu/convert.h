// Conversions with a rounding mode, and the bits of floating-point values.
//
// Conversions to an integer saturate and turn NaN into 0, as the hardware's do. A plain cast does
// not: `(int)1e10f` is INT_MAX on a GPU and undefined in C++.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

namespace cudacpu {

template <class To, class From>
To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

template <class Integer, class Float>
Integer saturate(Float rounded) {
  using Limits = std::numeric_limits<Integer>;
  if (rounded != rounded) return 0;
  if (rounded <= static_cast<Float>(Limits::min())) return Limits::min();
  if (rounded >= static_cast<Float>(Limits::max())) return Limits::max();
  return static_cast<Integer>(rounded);
}

template <class Float>
Float round_even(Float x) {
  return std::nearbyint(x);
}

#if defined(__F16C__)
// Four fp16 numbers, given by their bits, as float, by one instruction; without <immintrin.h>,
// which takes g++ a second to read.
typedef float FourFloats __attribute__((vector_size(16)));
inline FourFloats floats_of_halves(long long four) {
  typedef long long TwoWords __attribute__((vector_size(16)));
  typedef short EightShorts __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps(reinterpret_cast<EightShorts>(TwoWords{four, 0}));
}
#endif

}  // namespace cudacpu

inline int __float_as_int(float x) {
  return cudacpu::bits<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return cudacpu::bits<unsigned>(x);
}
inline float __int_as_float(int x) {
  return cudacpu::bits<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return cudacpu::bits<float>(x);
}
inline long long __double_as_longlong(double x) {
  return cudacpu::bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return cudacpu::bits<double>(x);
}
inline int __double2hiint(double x) {
  return static_cast<int>(cudacpu::bits<long long>(x) >> 32);
}
inline int __double2loint(double x) {
  return static_cast<int>(cudacpu::bits<long long>(x));
}
inline double __hiloint2double(int high, int low) {
  return cudacpu::bits<double>(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}

#define CUDACPU_TO_INTEGER(from, From, to, To)            \
  inline To __##from##2##to##_rn(From x) {                \
    return cudacpu::saturate<To>(cudacpu::round_even(x)); \
  }                                                       \
  inline To __##from##2##to##_rz(From x) {                \
    return cudacpu::saturate<To>(std::trunc(x));          \
  }                                                       \
  inline To __##from##2##to##_rd(From x) {                \
    return cudacpu::saturate<To>(std::floor(x));          \
  }                                                       \
  inline To __##from##2##to##_ru(From x) {                \
    return cudacpu::saturate<To>(std::ceil(x));           \
  }
CUDACPU_TO_INTEGER(float, float, int, int)
CUDACPU_TO_INTEGER(float, float, uint, unsigned)
CUDACPU_TO_INTEGER(float, float, ll, long long)
CUDACPU_TO_INTEGER(float, float, ull, unsigned long long)
CUDACPU_TO_INTEGER(double, double, int, int)
CUDACPU_TO_INTEGER(double, double, uint, unsigned)
CUDACPU_TO_INTEGER(double, double, ll, long long)
CUDACPU_TO_INTEGER(double, double, ull, unsigned long long)
#undef CUDACPU_TO_INTEGER

inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
  return static_cast<float>(x);
}
inline float __ll2float_rn(long long x) {
  return static_cast<float>(x);
}
inline float __ull2float_rn(unsigned long long x) {
  return static_cast<float>(x);
}
inline double __int2double_rn(int x) {
  return x;
}
inline double __uint2double_rn(unsigned x) {
  return x;
}
inline double __ll2double_rn(long long x) {
  return static_cast<double>(x);
}
inline double __ull2double_rn(unsigned long long x) {
  return static_cast<double>(x);
}
inline float __double2float_rn(double x) {
  return static_cast<float>(x);
}

// Arithmetic and conversions with a stated rounding: __fadd_rd, __int2float_rz, and their like.
//
// Computed in that rounding mode of the processor: correctly rounded, as IEEE 754 has it. Rounding
// to nearest is in math.h and convert.h.
#pragma once

#include <cfenv>
#include <cmath>

namespace cudacpu {

// Keep the compiler from knowing the value, or moving what uses it across this place.
template <class T>
inline void hide(T& value) {
  __asm__ volatile("" : "+m"(value) : : "memory");
}

// f(values...) in a rounding mode. The compiler knows nothing of modes: the barriers keep it from
// computing before the mode is set, after it is reset, or while compiling.
template <class F, class... T>
inline auto rounded(int mode, F f, T... values) {
  fesetround(mode);
  (..., hide(values));
  auto result = f(values...);
  hide(result);
  fesetround(FE_TONEAREST);
  return result;
}

}  // namespace cudacpu

#define CUDACPU_ROUNDED(name, suffix, mode)                                          \
  inline float __f##name##_##suffix(float a, float b) {                              \
    return cudacpu::rounded(                                                         \
        mode, [](float x, float y) { return x CUDACPU_OPERATOR_##name y; }, a, b);   \
  }                                                                                  \
  inline double __d##name##_##suffix(double a, double b) {                           \
    return cudacpu::rounded(                                                         \
        mode, [](double x, double y) { return x CUDACPU_OPERATOR_##name y; }, a, b); \
  }
#define CUDACPU_OPERATOR_add +
#define CUDACPU_OPERATOR_sub -
#define CUDACPU_OPERATOR_mul *
#define CUDACPU_OPERATOR_div /
#define CUDACPU_CONVERTED(from, From, to, To, suffix, mode)                      \
  inline To __##from##2##to##_##suffix(From a) {                                 \
    return cudacpu::rounded(mode, [](From x) { return static_cast<To>(x); }, a); \
  }
#define CUDACPU_ROUNDING(suffix, mode)                                                  \
  CUDACPU_ROUNDED(add, suffix, mode)                                                    \
  CUDACPU_ROUNDED(sub, suffix, mode)                                                    \
  CUDACPU_ROUNDED(mul, suffix, mode)                                                    \
  CUDACPU_ROUNDED(div, suffix, mode)                                                    \
  inline float __fmaf_##suffix(float a, float b, float c) {                             \
    return cudacpu::rounded(                                                            \
        mode, [](float x, float y, float z) { return std::fma(x, y, z); }, a, b, c);    \
  }                                                                                     \
  inline float __fmaf_ieee_##suffix(float a, float b, float c) {                        \
    return __fmaf_##suffix(a, b, c);                                                    \
  }                                                                                     \
  inline double __fma_##suffix(double a, double b, double c) {                          \
    return cudacpu::rounded(                                                            \
        mode, [](double x, double y, double z) { return std::fma(x, y, z); }, a, b, c); \
  }                                                                                     \
  inline float __frcp_##suffix(float a) {                                               \
    return __fdiv_##suffix(1.0f, a);                                                    \
  }                                                                                     \
  inline double __drcp_##suffix(double a) {                                             \
    return __ddiv_##suffix(1.0, a);                                                     \
  }                                                                                     \
  inline float __fsqrt_##suffix(float a) {                                              \
    return cudacpu::rounded(mode, [](float x) { return std::sqrt(x); }, a);             \
  }                                                                                     \
  inline double __dsqrt_##suffix(double a) {                                            \
    return cudacpu::rounded(mode, [](double x) { return std::sqrt(x); }, a);            \
  }                                                                                     \
  CUDACPU_CONVERTED(int, int, float, float, suffix, mode)                               \
  CUDACPU_CONVERTED(uint, unsigned, float, float, suffix, mode)                         \
  CUDACPU_CONVERTED(ll, long long, float, float, suffix, mode)                          \
  CUDACPU_CONVERTED(ull, unsigned long long, float, float, suffix, mode)                \
  CUDACPU_CONVERTED(ll, long long, double, double, suffix, mode)                        \
  CUDACPU_CONVERTED(ull, unsigned long long, double, double, suffix, mode)              \
  CUDACPU_CONVERTED(double, double, float, float, suffix, mode)
CUDACPU_ROUNDING(rz, FE_TOWARDZERO)
CUDACPU_ROUNDING(rd, FE_DOWNWARD)
CUDACPU_ROUNDING(ru, FE_UPWARD)
#undef CUDACPU_ROUNDING
#undef CUDACPU_CONVERTED
#undef CUDACPU_ROUNDED
#undef CUDACPU_OPERATOR_add
#undef CUDACPU_OPERATOR_sub
#undef CUDACPU_OPERATOR_mul
#undef CUDACPU_OPERATOR_div

inline float __fmaf_ieee_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}

// Mathematical functions that CUDA has beyond <cmath>.
//
// Results are those of the host's library: within an ulp or two of the device's, not the same bits.
// The fast intrinsics (__expf) are the accurate functions here, so their error does not show.
#pragma once

#include <math.h>  // and not only <cmath>: isnan and its like without `std::`

#include <cmath>

namespace cudacpu {
template <class R>
inline R smaller(R a, R b) {
  return b < a ? b : a;
}
template <class R>
inline R larger(R a, R b) {
  return a < b ? b : a;
}
}  // namespace cudacpu

// ::min and ::max as CUDA declares them, each mixture of types included.
#define CUDACPU_MIN_MAX(R, A, B)      \
  inline R min(A a, B b) {            \
    return cudacpu::smaller<R>(a, b); \
  }                                   \
  inline R max(A a, B b) {            \
    return cudacpu::larger<R>(a, b);  \
  }
CUDACPU_MIN_MAX(int, int, int)
CUDACPU_MIN_MAX(unsigned, unsigned, unsigned)
CUDACPU_MIN_MAX(unsigned, int, unsigned)
CUDACPU_MIN_MAX(unsigned, unsigned, int)
CUDACPU_MIN_MAX(long, long, long)
CUDACPU_MIN_MAX(unsigned long, unsigned long, unsigned long)
CUDACPU_MIN_MAX(unsigned long, long, unsigned long)
CUDACPU_MIN_MAX(unsigned long, unsigned long, long)
CUDACPU_MIN_MAX(long long, long long, long long)
CUDACPU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
CUDACPU_MIN_MAX(unsigned long long, long long, unsigned long long)
CUDACPU_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef CUDACPU_MIN_MAX
// Inline versions of functions of the C library, because maxss treats NaN otherwise: here as on the
// device, the other operand is the result. glibc keeps the definition behind the name.
#define CUDACPU_EXTREMUM(name, T, comparison)                                          \
  extern "C" {                                                                         \
  __attribute__((gnu_inline, always_inline)) extern inline T name(T a, T b) noexcept { \
    return a != a || b comparison a ? b : a;                                           \
  }                                                                                    \
  }
CUDACPU_EXTREMUM(fminf, float, <)
CUDACPU_EXTREMUM(fmaxf, float, >)
CUDACPU_EXTREMUM(fmin, double, <)
CUDACPU_EXTREMUM(fmax, double, >)
#undef CUDACPU_EXTREMUM

inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}
inline double min(float a, double b) {
  return fmin(a, b);
}
inline double max(float a, double b) {
  return fmax(a, b);
}
inline double min(double a, float b) {
  return fmin(a, b);
}
inline double max(double a, float b) {
  return fmax(a, b);
}
inline long long llmin(long long a, long long b) {
  return min(a, b);
}
inline long long llmax(long long a, long long b) {
  return max(a, b);
}
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) {
  return min(a, b);
}
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) {
  return max(a, b);
}
inline unsigned umin(unsigned a, unsigned b) {
  return min(a, b);
}
inline unsigned umax(unsigned a, unsigned b) {
  return max(a, b);
}

// Reciprocals and roots.
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float rsqrt(float x) {
  return rsqrtf(x);
}
inline float rcbrtf(float x) {
  return 1.0f / cbrtf(x);
}
inline double rcbrt(double x) {
  return 1.0 / cbrt(x);
}
inline float rhypotf(float x, float y) {
  return 1.0f / hypotf(x, y);
}
inline double rhypot(double x, double y) {
  return 1.0 / hypot(x, y);
}
inline float norm3df(float a, float b, float c) {
  return std::hypot(a, b, c);
}
inline double norm3d(double a, double b, double c) {
  return std::hypot(a, b, c);
}
inline float norm4df(float a, float b, float c, float d) {
  return hypotf(hypotf(a, b), hypotf(c, d));
}
inline double norm4d(double a, double b, double c, double d) {
  return hypot(hypot(a, b), hypot(c, d));
}

inline float rnorm3df(float a, float b, float c) {
  return 1.0f / norm3df(a, b, c);
}
inline double rnorm3d(double a, double b, double c) {
  return 1.0 / norm3d(a, b, c);
}
inline float rnorm4df(float a, float b, float c, float d) {
  return 1.0f / norm4df(a, b, c, d);
}
inline double rnorm4d(double a, double b, double c, double d) {
  return 1.0 / norm4d(a, b, c, d);
}
inline double norm(int n, const double* x) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum = hypot(sum, x[i]);
  return sum;
}
inline float normf(int n, const float* x) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum = hypotf(sum, x[i]);
  return sum;
}
inline double rnorm(int n, const double* x) {
  return 1.0 / norm(n, x);
}
inline float rnormf(int n, const float* x) {
  return 1.0f / normf(n, x);
}

// Multiples of pi, reduced before the multiplication so that whole numbers come out exact.
inline double sinpi(double x) {
  double r = x - 2.0 * std::nearbyint(0.5 * x);  // in [-1, 1]
  if (r > 0.5) r = 1.0 - r;
  if (r < -0.5) r = -1.0 - r;
  return sin(M_PI * r);
}
inline double cospi(double x) {
  double r = fabs(x - 2.0 * std::nearbyint(0.5 * x));  // in [0, 1]
  return r < 0.25 ? cos(M_PI * r) : sinpi(0.5 - r);
}
inline float sinpif(float x) {
  return static_cast<float>(sinpi(static_cast<double>(x)));
}
inline float cospif(float x) {
  return static_cast<float>(cospi(static_cast<double>(x)));
}
inline void sincospif(float x, float* s, float* c) {
  *s = sinpif(x), *c = cospif(x);
}
inline void sincospi(double x, double* s, double* c) {
  *s = sinpi(x), *c = cospi(x);
}

// The normal distribution.
inline double normcdf(double x) {
  return 0.5 * erfc(-x * M_SQRT1_2);
}
inline float normcdff(float x) {
  return static_cast<float>(normcdf(static_cast<double>(x)));
}
inline double erfcx(double x) {
  return x < 25.0 ? exp(x * x) * erfc(x) : 0.5641895835477563 / x;
}
inline float erfcxf(float x) {
  return static_cast<float>(erfcx(static_cast<double>(x)));
}

// The inverse of erfc, for which erfc(x) = y. A rational guess, then Halley's steps, each of which
// trebles the number of correct digits.
inline double erfcinv(double y) {
  if (!(y > 0 && y < 2)) return y == 0 ? INFINITY : y == 2 ? -INFINITY : NAN;
  if (y > 1) return -erfcinv(2 - y);
  double t = sqrt(-2 * log(y / 2));
  double x = M_SQRT1_2 * (t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t)));
  for (int i = 0; i < 3; ++i) {
    double slope = M_2_SQRTPI * exp(-x * x), error = erfc(x) - y;
    if (slope == 0) break;
    x += error / (slope - x * error);
  }
  return x;
}
// Near 0, where 1 - x would lose x, by the same steps on erf.
inline double erfinv(double x) {
  if (fabs(x) > 0.5) return x > 0 ? erfcinv(1 - x) : -erfcinv(1 + x);
  double r = x / M_2_SQRTPI;
  for (int i = 0; i < 3; ++i) {
    double error = erf(r) - x;
    r -= error / (M_2_SQRTPI * exp(-r * r) + r * error);
  }
  return r;
}
inline double normcdfinv(double p) {
  return -M_SQRT2 * erfcinv(2 * p);
}
inline float erfcinvf(float y) {
  return static_cast<float>(erfcinv(static_cast<double>(y)));
}
inline float erfinvf(float x) {
  return static_cast<float>(erfinv(static_cast<double>(x)));
}
inline float normcdfinvf(float p) {
  return static_cast<float>(normcdfinv(static_cast<double>(p)));
}

// Modified Bessel functions of the first kind.
inline double cyl_bessel_i0(double x) {
  return std::cyl_bessel_i(0.0, fabs(x));
}
inline double cyl_bessel_i1(double x) {
  return copysign(std::cyl_bessel_i(1.0, fabs(x)), x);
}
inline float cyl_bessel_i0f(float x) {
  return static_cast<float>(cyl_bessel_i0(static_cast<double>(x)));
}
inline float cyl_bessel_i1f(float x) {
  return static_cast<float>(cyl_bessel_i1(static_cast<double>(x)));
}

// Division and saturation.
inline float fdividef(float a, float b) {
  return a / b;
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __saturatef(float x) {
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}  // NaN: 0

// Basic operations that a compiler must not contract into an FMA: the barrier keeps the product.
namespace cudacpu {
template <class T>
inline T exactly(T x) {
  __asm__("" : "+m"(x));
  return x;
}
}  // namespace cudacpu
inline float __fadd_rn(float a, float b) {
  return cudacpu::exactly(a + b);
}
inline float __fsub_rn(float a, float b) {
  return cudacpu::exactly(a - b);
}
inline float __fmul_rn(float a, float b) {
  return cudacpu::exactly(a * b);
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float a) {
  return 1.0f / a;
}
inline float __fsqrt_rn(float a) {
  return sqrtf(a);
}
inline float __frsqrt_rn(float a) {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(a)));
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline double __dadd_rn(double a, double b) {
  return cudacpu::exactly(a + b);
}
inline double __dsub_rn(double a, double b) {
  return cudacpu::exactly(a - b);
}
inline double __dmul_rn(double a, double b) {
  return cudacpu::exactly(a * b);
}
inline double __ddiv_rn(double a, double b) {
  return a / b;
}
inline double __drcp_rn(double a) {
  return 1.0 / a;
}
inline double __dsqrt_rn(double a) {
  return sqrt(a);
}
inline double __fma_rn(double a, double b, double c) {
  return fma(a, b, c);
}

// Fast intrinsics. glibc declares functions of these names, so that only macros can take them over.
#define __expf(...) expf(__VA_ARGS__)
#define __exp2f(...) exp2f(__VA_ARGS__)
#define __exp10f(...) exp10f(__VA_ARGS__)
#define __logf(...) logf(__VA_ARGS__)
#define __log2f(...) log2f(__VA_ARGS__)
#define __log10f(...) log10f(__VA_ARGS__)
#define __powf(...) powf(__VA_ARGS__)
#define __sinf(...) sinf(__VA_ARGS__)
#define __cosf(...) cosf(__VA_ARGS__)
#define __tanf(...) tanf(__VA_ARGS__)
#define __tanhf(...) tanhf(__VA_ARGS__)
#define __sincosf(...) sincosf(__VA_ARGS__)

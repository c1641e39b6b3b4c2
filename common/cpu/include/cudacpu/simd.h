// Two 16-bit or four 8-bit integers in a word: the SIMD intrinsics of CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>

namespace cudacpu {

// f(a, b) for each T in the words a and b; results are cut to T's size.
template <class T, class F>
inline unsigned each_part(unsigned a, unsigned b, F f) {
  using Unsigned = std::make_unsigned_t<T>;
  constexpr int kBits = 8 * sizeof(T);
  unsigned result = 0;
  for (int i = 0; i < 32; i += kBits) {
    int value = f(int{static_cast<T>(a >> i)}, int{static_cast<T>(b >> i)});
    result |= static_cast<unsigned>(static_cast<Unsigned>(value)) << i;
  }
  return result;
}
template <class T>
inline int saturate_part(int value) {
  return std::clamp<int>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
}
// Round a half up among positive sums, and down among negative ones.
inline int signed_average(int a, int b) {
  return (a + b + (a + b >= 0)) >> 1;
}
template <class T>
inline unsigned sum_of_differences(unsigned a, unsigned b) {
  unsigned sum = 0;
  for (unsigned i = 0; i < 32; i += 8 * sizeof(T))
    sum += static_cast<unsigned>(std::abs(static_cast<T>(a >> i) - static_cast<T>(b >> i)));
  return sum;
}

}  // namespace cudacpu

#define CUDACPU_SIMD(name, T, expression)                                               \
  inline unsigned name(unsigned a, unsigned b) {                                        \
    return cudacpu::each_part<T>(a, b, [](int x, int y) -> int { return expression; }); \
  }
#define CUDACPU_SIMD_OF_ONE(name, T, expression)                                      \
  inline unsigned name(unsigned a) {                                                  \
    return cudacpu::each_part<T>(a, 0, [](int x, int) -> int { return expression; }); \
  }
#define CUDACPU_SIMD_COMPARISON(name, n, T, operation)     \
  CUDACPU_SIMD(__vcmp##name##n, T, x operation y ? -1 : 0) \
  CUDACPU_SIMD(__vset##name##n, T, x operation y)

#define CUDACPU_SIMD_ALL(n, S, U)                                             \
  CUDACPU_SIMD_OF_ONE(__vabs##n, S, std::abs(x))                              \
  CUDACPU_SIMD_OF_ONE(__vabsss##n, S, cudacpu::saturate_part<S>(std::abs(x))) \
  CUDACPU_SIMD_OF_ONE(__vneg##n, S, -x)                                       \
  CUDACPU_SIMD_OF_ONE(__vnegss##n, S, cudacpu::saturate_part<S>(-x))          \
  CUDACPU_SIMD(__vadd##n, U, x + y)                                           \
  CUDACPU_SIMD(__vaddss##n, S, cudacpu::saturate_part<S>(x + y))              \
  CUDACPU_SIMD(__vaddus##n, U, cudacpu::saturate_part<U>(x + y))              \
  CUDACPU_SIMD(__vsub##n, U, x - y)                                           \
  CUDACPU_SIMD(__vsubss##n, S, cudacpu::saturate_part<S>(x - y))              \
  CUDACPU_SIMD(__vsubus##n, U, cudacpu::saturate_part<U>(x - y))              \
  CUDACPU_SIMD(__vavgs##n, S, cudacpu::signed_average(x, y))                  \
  CUDACPU_SIMD(__vavgu##n, U, (x + y + 1) >> 1)                               \
  CUDACPU_SIMD(__vhaddu##n, U, (x + y) >> 1)                                  \
  CUDACPU_SIMD(__vabsdiffs##n, S, std::abs(x - y))                            \
  CUDACPU_SIMD(__vabsdiffu##n, U, std::abs(x - y))                            \
  CUDACPU_SIMD(__vmaxs##n, S, std::max(x, y))                                 \
  CUDACPU_SIMD(__vmaxu##n, U, std::max(x, y))                                 \
  CUDACPU_SIMD(__vmins##n, S, std::min(x, y))                                 \
  CUDACPU_SIMD(__vminu##n, U, std::min(x, y))                                 \
  CUDACPU_SIMD_COMPARISON(eq, n, U, ==)                                       \
  CUDACPU_SIMD_COMPARISON(ne, n, U, !=)                                       \
  CUDACPU_SIMD_COMPARISON(ges, n, S, >=)                                      \
  CUDACPU_SIMD_COMPARISON(geu, n, U, >=)                                      \
  CUDACPU_SIMD_COMPARISON(gts, n, S, >)                                       \
  CUDACPU_SIMD_COMPARISON(gtu, n, U, >)                                       \
  CUDACPU_SIMD_COMPARISON(les, n, S, <=)                                      \
  CUDACPU_SIMD_COMPARISON(leu, n, U, <=)                                      \
  CUDACPU_SIMD_COMPARISON(lts, n, S, <)                                       \
  CUDACPU_SIMD_COMPARISON(ltu, n, U, <)                                       \
  inline unsigned __vsads##n(unsigned a, unsigned b) {                        \
    return cudacpu::sum_of_differences<S>(a, b);                              \
  }                                                                           \
  inline unsigned __vsadu##n(unsigned a, unsigned b) {                        \
    return cudacpu::sum_of_differences<U>(a, b);                              \
  }
CUDACPU_SIMD_ALL(2, int16_t, uint16_t)
CUDACPU_SIMD_ALL(4, int8_t, uint8_t)
#undef CUDACPU_SIMD_ALL
#undef CUDACPU_SIMD_COMPARISON
#undef CUDACPU_SIMD_OF_ONE
#undef CUDACPU_SIMD

// Minima and maxima of three, of a sum and a third, with a floor of 0 (relu), and with a predicate
// that is true if the first argument was taken. `i` is min or max.
#define CUDACPU_DPX(i, compare)                                                                 \
  inline int __vi##i##3_s32(int a, int b, int c) {                                              \
    return std::i(std::i(a, b), c);                                                             \
  }                                                                                             \
  inline unsigned __vi##i##3_u32(unsigned a, unsigned b, unsigned c) {                          \
    return std::i(std::i(a, b), c);                                                             \
  }                                                                                             \
  inline unsigned __vi##i##3_s16x2(unsigned a, unsigned b, unsigned c) {                        \
    return __v##i##s2(__v##i##s2(a, b), c);                                                     \
  }                                                                                             \
  inline unsigned __vi##i##3_u16x2(unsigned a, unsigned b, unsigned c) {                        \
    return __v##i##u2(__v##i##u2(a, b), c);                                                     \
  }                                                                                             \
  inline int __vi##i##_s32_relu(int a, int b) {                                                 \
    return std::max(std::i(a, b), 0);                                                           \
  }                                                                                             \
  inline unsigned __vi##i##_s16x2_relu(unsigned a, unsigned b) {                                \
    return __vmaxs2(__v##i##s2(a, b), 0);                                                       \
  }                                                                                             \
  inline int __vi##i##3_s32_relu(int a, int b, int c) {                                         \
    return std::max(__vi##i##3_s32(a, b, c), 0);                                                \
  }                                                                                             \
  inline unsigned __vi##i##3_s16x2_relu(unsigned a, unsigned b, unsigned c) {                   \
    return __vmaxs2(__vi##i##3_s16x2(a, b, c), 0);                                              \
  }                                                                                             \
  inline unsigned __viadd##i##_u32(unsigned a, unsigned b, unsigned c) {                        \
    return std::i(a + b, c);                                                                    \
  }                                                                                             \
  inline int __viadd##i##_s32(int a, int b, int c) {                                            \
    return std::i(static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)), c);    \
  }                                                                                             \
  inline int __viadd##i##_s32_relu(int a, int b, int c) {                                       \
    return std::max(__viadd##i##_s32(a, b, c), 0);                                              \
  }                                                                                             \
  inline unsigned __viadd##i##_s16x2(unsigned a, unsigned b, unsigned c) {                      \
    return __v##i##s2(__vadd2(a, b), c);                                                        \
  }                                                                                             \
  inline unsigned __viadd##i##_u16x2(unsigned a, unsigned b, unsigned c) {                      \
    return __v##i##u2(__vadd2(a, b), c);                                                        \
  }                                                                                             \
  inline unsigned __viadd##i##_s16x2_relu(unsigned a, unsigned b, unsigned c) {                 \
    return __vmaxs2(__viadd##i##_s16x2(a, b, c), 0);                                            \
  }                                                                                             \
  inline int __vib##i##_s32(int a, int b, bool* first) {                                        \
    *first = a compare b;                                                                       \
    return std::i(a, b);                                                                        \
  }                                                                                             \
  inline unsigned __vib##i##_u32(unsigned a, unsigned b, bool* first) {                         \
    *first = a compare b;                                                                       \
    return std::i(a, b);                                                                        \
  }                                                                                             \
  inline unsigned __vib##i##_s16x2(unsigned a, unsigned b, bool* first_high, bool* first_low) { \
    *first_high = static_cast<int16_t>(a >> 16) compare static_cast<int16_t>(b >> 16);          \
    *first_low = static_cast<int16_t>(a) compare static_cast<int16_t>(b);                       \
    return __v##i##s2(a, b);                                                                    \
  }                                                                                             \
  inline unsigned __vib##i##_u16x2(unsigned a, unsigned b, bool* first_high, bool* first_low) { \
    *first_high = a >> 16 compare b >> 16;                                                      \
    *first_low = (a & 0xffff) compare(b & 0xffff);                                              \
    return __v##i##u2(a, b);                                                                    \
  }
CUDACPU_DPX(max, >=)
CUDACPU_DPX(min, <=)
#undef CUDACPU_DPX

// Sums of wgmma: in float; products of fp8 as Hopper does, with 13 bits.
#pragma once

#include "tensor_core.h"

#include <cmath>

namespace cudacpu {

constexpr unsigned kRowsOfWarp = 16;

typedef float EightFloats __attribute__((vector_size(32), aligned(4)));
typedef int32_t EightInts __attribute__((vector_size(32), aligned(4)));

// sums (16 x n) += a (16 x depth) · b (depth x n).
inline void multiply_add(float* sums, const float* a, const float* b, unsigned n, unsigned depth) {
  constexpr unsigned kTogether = 8;  // rows whose sums stay in registers
  for (unsigned column = 0; column < n; column += 8) {
    for (unsigned row = 0; row < kRowsOfWarp; row += kTogether) {
      EightFloats partial[kTogether];
      for (unsigned r = 0; r < kTogether; ++r)
        memcpy(&partial[r], sums + (row + r) * n + column, 32);
      for (unsigned k = 0; k < depth; ++k) {
        EightFloats of_b;
        memcpy(&of_b, b + k * n + column, 32);
#pragma GCC unroll 8
        for (unsigned r = 0; r < kTogether; ++r) partial[r] += a[(row + r) * depth + k] * of_b;
      }
      for (unsigned r = 0; r < kTogether; ++r)
        memcpy(sums + (row + r) * n + column, &partial[r], 32);
    }
  }
}

// The exponent of a finite number of a type whose smallest normal one has `least`; far below all
// others for 0.
inline int32_t exponent_of(float x, int32_t least) {
  return x == 0 ? -1000
                : std::max(static_cast<int32_t>(bits<uint32_t>(x) >> 23 & 0xff) - 127, least);
}

// The same as multiply_add for fp8 (depth 32), with the bits that an H200 keeps: the exponents of a
// product's factors are added, and 13 bits below the largest such sum, or the exponent of the value
// in `sums`, all 33 numbers are cut off; so is their sum 13 bits below its exponent. (Fitted to an
// H200's results, and equal to them.) `least_a` and `least_b`: see exponent_of.
inline void multiply_add_fp8(float* sums, const float* a, const float* b, unsigned n,
                             int32_t least_a, int32_t least_b) {
  constexpr unsigned kDepth = 32;
  constexpr int32_t kBits = 13, kFloatBits = 23, kBias = 127;
  constexpr int32_t kLowest = -110;  // so that a power of two, and one over it, are normal
  auto finite = [](const float* x, size_t count) {
    return std::all_of(x, x + count, [](float value) { return std::isfinite(value); });
  };
  if (!finite(a, kRowsOfWarp * kDepth) || !finite(b, kDepth * n) || !finite(sums, kRowsOfWarp * n))
    return multiply_add(sums, a, b, n, kDepth);
  std::vector<int32_t> exponents_b(kDepth * n);
  for (size_t i = 0; i < exponents_b.size(); ++i) exponents_b[i] = exponent_of(b[i], least_b);
  for (unsigned row = 0; row < kRowsOfWarp; ++row) {
    const float* row_a = a + row * kDepth;
    int32_t exponents_a[kDepth];
    for (unsigned k = 0; k < kDepth; ++k) exponents_a[k] = exponent_of(row_a[k], least_a);
    for (unsigned column = 0; column < n; column += 8) {
      EightFloats sum, of_b;
      EightInts word, exponents;
      memcpy(&sum, sums + row * n + column, sizeof sum);
      memcpy(&word, &sum, sizeof word);
      EightInts largest = (word >> kFloatBits & 0xff) - kBias;
      largest = largest > kLowest ? largest : EightInts{} + kLowest;
      for (unsigned k = 0; k < kDepth; ++k) {
        memcpy(&exponents, &exponents_b[k * n + column], sizeof exponents);
        exponents += exponents_a[k];
        largest = largest > exponents ? largest : exponents;
      }
      auto power_of_two = [](EightInts exponent) {
        EightInts power = (exponent + kBias) << kFloatBits;
        EightFloats result;
        memcpy(&result, &power, sizeof result);
        return result;
      };
      const EightFloats scale = power_of_two(kBits - largest);
      EightInts total = __builtin_convertvector(sum * scale, EightInts);
      for (unsigned k = 0; k < kDepth; ++k) {
        memcpy(&of_b, b + k * n + column, sizeof of_b);
        total += __builtin_convertvector(row_a[k] * of_b * scale, EightInts);
      }
      sum = __builtin_convertvector(total, EightFloats);
      memcpy(&word, &sum, sizeof word);
      word &= -(1 << (kFloatBits - kBits));
      memcpy(&sum, &word, sizeof sum);
      sum *= power_of_two(largest - kBits);
      memcpy(sums + row * n + column, &sum, sizeof sum);
    }
  }
}

}  // namespace cudacpu

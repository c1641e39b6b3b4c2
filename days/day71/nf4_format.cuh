// NF4's levels, and the scale of a block. Shared by days 71 and 72.
#pragma once

#include <cfloat>
#include <cstdint>

constexpr int CODES = 16;

// Quantiles of the normal distribution, the largest scaled to 1, and one of them 0.
static __constant__ float LEVELS[CODES] = {
    -1.0f,          -0.696192801f, -0.525073051f, -0.394917488f, -0.284441382f, -0.18477343f,
    -0.0910500363f, 0.0f,          0.0795802996f, 0.160930201f,  0.246112302f,  0.337915242f,
    0.440709829f,   0.562617004f,  0.722956836f,  1.0f};

constexpr uint32_t INFINITY_BITS = 0x7f800000;

// The bits of |x|, as integers, are ordered as the numbers are; infinity is above all of them, and
// NaN above infinity.
__device__ inline uint32_t magnitude(float x) {
  return __float_as_uint(x) & 0x7fffffff;
}

// What the numbers of a block are multiplied by. Below 2^-128 the reciprocal would be infinite, and
// 0 · ∞ is NaN. A block with a number that is not finite has no scale.
__device__ inline float inverse_of(uint32_t largest) {
  return largest < INFINITY_BITS ? fminf(1 / __uint_as_float(largest), FLT_MAX) : 0;
}

__device__ inline float absmax_of(uint32_t largest) {
  return __uint_as_float(largest < INFINITY_BITS ? largest : 0x7fc00000);  // NaN
}

// How int4 weights lie in memory, shared by the kernel that packs them and those that multiply.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

constexpr int GROUP = 128;  // weights of a row that share a scale and a zero point
constexpr int WORD = 8;     // weights per 32-bit word

// The bit at which weight k of a word begins. Weights 2j and 2j + 1 are 16 bits apart, at 4j and
// 4j + 16, so that one shift and one mask leave them in the two halves of the word.
__device__ __forceinline__ int bit_of(int k) {
  return k / 2 * 4 + k % 2 * 16;
}

// Scale, in the low half, and zero point of a group, a whole number from 0 to 15.
using Params = __nv_bfloat162;

inline void check_whole_groups(const Tensor& t, const char* name, int64_t weights) {
  STD_TORCH_CHECK(weights % GROUP == 0, name, ": expected rows of a multiple of ", GROUP,
                  " weights, got ", weights);
}

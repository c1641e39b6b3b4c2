// The second quantisation: an absmax becomes one byte. Shared by the files of day 72.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

constexpr int BLOCK_WEIGHTS = 64;  // that share an absmax
constexpr int GROUP = 256;         // absmaxes that share a scale
constexpr int LEVELS_8 = 256;      // of an absmax

// The quantised absmaxes of a matrix. Absmax b is levels[q[b]] · scales[b / 256] + offset.
struct Absmaxes {
  const uint8_t* q;
  const float* levels;  // (256)
  const float* scales;  // (⌈blocks / 256⌉)
  const float* offset;  // (1)
};

// levels: a.levels, or a copy of them.
__device__ inline float absmax_at(const Absmaxes& a, const float* levels, float offset,
                                  int64_t block) {
  return fmaf(levels[a.q[block]], a.scales[block / GROUP], offset);
}

inline void check_levels(const Tensor& levels, const Tensor& offset, const Tensor& like,
                         const char* name) {
  check(levels, "levels").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(levels, "levels").size(0, LEVELS_8).same_device(like, name);
  check(offset, "offset").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(offset, "offset").size(0, 1).same_device(like, name);
}

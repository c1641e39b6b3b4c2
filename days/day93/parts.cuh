// Rows of fp32 in parts of four elements, by one access of 16 bytes where the rows allow it.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

__device__ inline float4 load4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

__device__ inline void store4(float* to, float4 value) {
  *reinterpret_cast<float4*>(to) = value;
}

// Elements [at, at + 4) of a row of `count`; 0 beyond its end. packs: rows begin at multiples of 16
// bytes.
__device__ inline float4 load_part(const float* row, int at, int count, bool packs) {
  if (packs) return at < count ? load4(row + at) : float4{};
  return make_float4(at < count ? row[at] : 0.0f, at + 1 < count ? row[at + 1] : 0.0f,
                     at + 2 < count ? row[at + 2] : 0.0f, at + 3 < count ? row[at + 3] : 0.0f);
}

__device__ inline float& part_of(float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// Whether all rows begin at multiples of 16 bytes.
inline bool packs_rows(const Tensor& t) {
  return t.size(1) % 4 == 0 && is_aligned(t, 16);
}

// Products of chunks. Shared by the files of day 42.
#pragma once

#include "common/cuda/chunk.cuh"  // taught in day 35

// sum += a · x, in fp32.
template <typename T, int N>
__device__ void multiply_add(float& sum, const Chunk<T, N>& a, const Chunk<T, N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum += static_cast<float>(a.at[i]) * static_cast<float>(x.at[i]);
}

// sum[i] += a[i] · x, in fp32.
template <typename T, int N>
__device__ void scale_add(float (&sum)[N], const Chunk<T, N>& a, T x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] += static_cast<float>(a.at[i]) * static_cast<float>(x);
}

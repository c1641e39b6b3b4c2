// Products of chunks, and the choice of their size. Shared by the files of day 42.
#pragma once

#include "common/cuda/chunk.cuh"  // taught in day 35
#include "common/cuda/tensor.cuh"

#include <initializer_list>
#include <type_traits>

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

// Calls f with the elements per chunk, as a constant: 16 bytes if rows of K elements have whole
// chunks and all tensors are aligned to them, else 1.
template <typename T, typename F>
void dispatch_chunk(int64_t K, std::initializer_list<const Tensor*> tensors, F&& f) {
  constexpr int N = 16 / sizeof(T);
  bool whole = K % N == 0;
  for (const Tensor* tensor : tensors) whole = whole && is_aligned(*tensor, 16);
  if (whole) return f(std::integral_constant<int, N>{});
  f(std::integral_constant<int, 1>{});
}

// Elements that one instruction moves, as many as the alignment allows. Taught in days 35 and 42.
#pragma once

#include "common/cuda/tensor.cuh"

#include <cstring>
#include <initializer_list>
#include <type_traits>

// N elements that one instruction loads: 16 bytes, or a single element where rows are not aligned.
template <typename T, int N>
struct alignas(N * sizeof(T)) Chunk {
  T at[N];
};

// A chunk in registers as it lies in memory: 16 bytes are four registers, loaded by one
// instruction. nvcc may take a Chunk of bf16 apart instead: a register for each element, or, where
// it sees no more than the conversion to fp32, eight loads of 2 bytes, with bank conflicts in
// shared memory.
template <typename C>
struct RawChunk {
  std::conditional_t<sizeof(C) == 16, uint4, C> words;

  __device__ C chunk() const {
    C chunk;
    memcpy(&chunk, &words, sizeof chunk);
    return chunk;
  }
};

template <typename T, int N>
__device__ RawChunk<Chunk<T, N>> load_raw(const Chunk<T, N>* from) {
  return *reinterpret_cast<const RawChunk<Chunk<T, N>>*>(from);
}

// The chunk at `from`, by one load.
template <typename T, int N>
__device__ Chunk<T, N> load_whole(const Chunk<T, N>* from) {
  return load_raw(from).chunk();
}

// Calls f with the elements per chunk, as a constant: 16 bytes if rows of `cols` elements have
// whole chunks and all tensors are aligned to them, else 1. A null tensor is one that is not given.
template <typename T, typename F>
void dispatch_chunk(int64_t cols, std::initializer_list<const Tensor*> tensors, F&& f) {
  constexpr int N = 16 / sizeof(T);
  bool whole = cols % N == 0;
  for (const Tensor* tensor : tensors) whole = whole && (!tensor || is_aligned(*tensor, 16));
  if (whole) return f(std::integral_constant<int, N>{});
  f(std::integral_constant<int, 1>{});
}

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

// The chunk's elements in fp32. A bf16 number is the upper half of an fp32 number, so that a word
// with two of them takes a shift and a mask; nvcc 13 takes three instructions for the two.
template <typename T, int N>
__device__ Chunk<float, N> widened(const RawChunk<Chunk<T, N>>& raw) {
  Chunk<float, N> wide;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N == 8) {
    const unsigned words[] = {raw.words.x, raw.words.y, raw.words.z, raw.words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wide.at[2 * i] = __uint_as_float(words[i] << 16);
      wide.at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
    const Chunk<T, N> chunk = raw.chunk();
#pragma unroll
    for (int i = 0; i < N; ++i) wide.at[i] = static_cast<float>(chunk.at[i]);
  }
  return wide;
}

// The chunk at `from`, by one load.
template <typename T, int N>
__device__ Chunk<T, N> load_whole(const Chunk<T, N>* from) {
  return load_raw(from).chunk();
}

// Call f with the elements per chunk, as a constant: 16 bytes if rows of `cols` elements have
// whole chunks and all tensors are aligned to them, else 1. A null tensor is one that is not given.
template <typename T, typename F>
void dispatch_chunk(int64_t cols, std::initializer_list<const Tensor*> tensors, F&& f) {
  constexpr int N = 16 / sizeof(T);
  bool whole = cols % N == 0;
  for (const Tensor* tensor : tensors) whole = whole && (!tensor || is_aligned(*tensor, 16));
  if (whole) return f(std::integral_constant<int, N>{});
  f(std::integral_constant<int, 1>{});
}

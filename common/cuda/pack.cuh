// Sixteen bytes as one piece: what a thread loads or stores with one instruction. Taught in day 2.
#pragma once

// N elements in 16 bytes; alignas tells the compiler that one 16-byte access may move them all, so
// their address must be a multiple of 16 (see is_aligned in tensor.cuh).
template <typename T>
struct alignas(16) Pack {
  static constexpr int N = 16 / sizeof(T);
  T at[N];
};

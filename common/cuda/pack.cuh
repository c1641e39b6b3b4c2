// 16 bytes of elements, moved by one instruction. Taught in day 2.
#pragma once

// N elements that are loaded and stored as one piece of 16 bytes; the address must be a multiple
// of 16 (see is_aligned in tensor.cuh).
template <typename T>
struct alignas(16) Pack {
  static constexpr int N = 16 / sizeof(T);
  T at[N];
};

// Elements that one instruction moves, as many as the alignment allows. Taught in day 35.
#pragma once

// N elements that one instruction loads: 16 bytes, or a single element where rows are not aligned.
template <typename T, int N>
struct alignas(N * sizeof(T)) Chunk {
  T at[N];
};

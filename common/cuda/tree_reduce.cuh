// All threads of a block combine a value each into one, in log2(N) steps. Taught in day 5.
#pragma once

// partial: an array in shared memory with a place for each of the block's N threads, N a power of
// two; thread t has written partial[t]. Every thread of the block must call it, and every one gets
// the result. The order of combination depends on N alone, so equal inputs give equal bits.
template <typename T, int N, typename Op>
__device__ T tree_reduce(T (&partial)[N], Op op) {
  static_assert((N & (N - 1)) == 0, "each step halves the number of values");
  for (int half = N / 2; half > 0; half /= 2) {
    __syncthreads();  // all of the level above is written before any thread reads it
    if (threadIdx.x < half) {
      partial[threadIdx.x] = op(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
  }
  __syncthreads();  // thread 0 has written the result that all read now
  const T result = partial[0];
  __syncthreads();  // all have read it before the caller reuses partial
  return result;
}

// A header that a source reaches by its name alone, with shared memory in it.
#pragma once

// Combines the values of all threads of a block (at most 1024); every thread gets the result.
template <typename T, typename Combine>
__device__ T block_reduce(T value, T identity, Combine combine) {
  __shared__ T partial[32];
  unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = lane < blockDim.x / 32 ? partial[lane] : identity;
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  __syncthreads();  // no thread writes `partial` again before all have read it
  return value;
}

// The way of a wgmma's sums to global memory: rounded to 16 bits, written to shared memory by
// stmatrix, and from there stored by TMA. Taught in day 56.
#pragma once

#include "common/cuda/mma_tiles.cuh"
#include "common/cuda/ptx.cuh"

// A part is 64 × 64 elements, in the 128-byte swizzle: the box of the tensor map to store to.
constexpr int PART = 64, PART_BYTES = PART * 128;

// Store 64 columns of a warpgroup's 64 rows, sums[0 … 31] of each thread as wgmma leaves them. All
// of its threads call it. Parts go through BUFFERS buffers in turn; `turn` counts them. barrier:
// one of the block's named barriers, for the warpgroup alone. store(buffer): starts TMA's store, in
// thread 0, which later waits by ptx::bulk_wait_read for the last ones.
template <typename T, int BUFFERS, typename Store>
__device__ __forceinline__ void store_part(const float* sums, char* buffers, int& turn, int barrier,
                                           Store store) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int row = thread / 32 * 16 + lane % 16;  // that this lane passes to stmatrix
  char* buffer = buffers + turn++ % BUFFERS * PART_BYTES;
  if (thread == 0) ptx::bulk_wait_read<BUFFERS - 1>();  // its last store has read the buffer
  ptx::barrier_sync(barrier, 128);
#pragma unroll
  for (int pair = 0; pair < PART / 16; ++pair) {  // 16 columns: four matrices of 8 × 8
    const float* of = sums + pair * 8;
    const uint32_t matrices[] = {tiles::pack<T>(of[0], of[1]), tiles::pack<T>(of[2], of[3]),
                                 tiles::pack<T>(of[4], of[5]), tiles::pack<T>(of[6], of[7])};
    const int piece = pair * 2 + lane / 16;
    ptx::stmatrix_x4(buffer + ptx::swizzled(ptx::Swizzle::k128, row * 128 + piece * 16), matrices);
  }
  ptx::fence_proxy_async();         // what this thread wrote, before TMA reads it …
  ptx::barrier_sync(barrier, 128);  // … and what all others wrote
  if (thread == 0) {
    store(buffer);
    ptx::bulk_commit();
  }
}

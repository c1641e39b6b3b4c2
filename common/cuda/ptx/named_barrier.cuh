// Barriers for some of a block's warps: a block has 16 of them, by number (sm_70).
//
// Number 0 is __syncthreads; 1 to 15 are free. `threads` is the number of participants, in whole
// warps: a multiple of 32, the same at every call for this phase of the barrier. Warps that sync
// wait; warps that only arrive continue, which makes a producer and its consumers: the one arrives
// when a buffer is full, the others sync on the same number. All lanes of a warp must make the
// call.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// Wait until `threads` threads, this one included, have arrived at barrier `id`.
// PTX: bar.sync id, threads;
__device__ __forceinline__ void barrier_sync(int id, int threads PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::named_barrier_sync(id, threads, PTX_SITE);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// Arrive at barrier `id` without waiting; some other warp must sync there.
// PTX: bar.arrive id, threads;
__device__ __forceinline__ void barrier_arrive(int id, int threads PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::named_barrier_arrive(id, threads, PTX_SITE);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace ptx

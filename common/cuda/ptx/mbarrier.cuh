// Barriers that are objects in shared memory: arriving and waiting are separate (sm_80).
//
// An mbarrier is 8 bytes. It counts arrivals, and on sm_90 also bytes that TMA still
// has to bring. When as many have arrived as it was initialised for, and no bytes are due, its
// phase is complete and the next begins by itself. Phases have parity 0, 1, 0, 1, …: a waiter
// passes the parity of the phase that must be complete, and keeps count of it. Waiting for parity 1
// of a new barrier returns at once.
//
// Every address is that of a `uint64_t` in the block's shared memory. One thread initialises it;
// the others may use it after a __syncthreads(). TMA may if that thread has called
// fence_mbarrier_init (or fence_proxy_async) in between.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// A barrier whose phases need `arrivals` arrivals (1 to 2^20 - 1).
// PTX: mbarrier.init.shared.b64 [barrier], arrivals;
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(80, "mbarrier.init", PTX_SITE);
  cudacpu::mbarrier_init(barrier, arrivals, PTX_SITE);
#else
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
#endif
}

// Make this thread's mbarrier_init visible to TMA and to the other blocks of the
// cluster: between it and the __syncthreads() or cluster_sync after which they use the mbarrier.
// cp.async needs none. On the CPU only the tracer requires it; a trap before sm_90.
// PTX: fence.mbarrier_init.release.cluster;
__device__ __forceinline__ void fence_mbarrier_init() {
#ifdef CUDA_ON_CPU
  cudacpu::trace_mbarrier_fence();
#elif __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  __trap();
#endif
}

// End a barrier, before its memory is used for something else.
// PTX: mbarrier.inval.shared.b64 [barrier];
__device__ __forceinline__ void mbarrier_invalidate(uint64_t* barrier PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_invalidate(barrier, PTX_SITE);
#else
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// One arrival. What this thread wrote before is visible to those who waited for the phase.
// PTX: mbarrier.arrive.shared.b64 state, [barrier];
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_arrive(barrier, 0, PTX_SITE);
#else
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
      : "memory");
#endif
}

// One arrival, and `bytes` more are due in this phase. sm_90; a trap before.
// PTX: mbarrier.arrive.expect_tx.shared.b64 state, [barrier], bytes;
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(uint64_t* barrier,
                                                             int bytes PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_arrive(barrier, bytes, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}

// One arrival, when all cp.async that this thread has started are complete. It counts as one of the
// arrivals that the barrier was initialised for (.noinc).
// PTX: cp.async.mbarrier.arrive.noinc.shared.b64 [barrier];
__device__ __forceinline__ void cp_async_arrive(uint64_t* barrier PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::arrive_after_copies(barrier, PTX_SITE);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#endif
}

// Return true if the phase of this parity (0 or 1) is complete.
// PTX: mbarrier.test_wait.parity.shared.b64 complete, [barrier], parity;
__device__ __forceinline__ bool mbarrier_test(uint64_t* barrier, int parity PTX_HERE) {
#ifdef CUDA_ON_CPU
  return cudacpu::mbarrier_test(barrier, parity, PTX_SITE);
#else
  uint32_t complete;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(complete)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return complete != 0;
#endif
}

// Wait until the phase of this parity (0 or 1) is complete: on sm_80 by test_wait in a loop.
// PTX: mbarrier.try_wait.parity.shared.b64 complete, [barrier], parity;   until complete. From
// sm_90 on, its thread sleeps for a while in hardware.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_wait(barrier, parity, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  uint32_t complete;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!complete);
#else
  while (!mbarrier_test(barrier, parity)) {
  }
#endif
}

}  // namespace ptx

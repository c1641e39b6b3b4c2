// Copies from global to shared memory that run while the thread continues (sm_80).
//
// A thread starts copies, closes them into a group (commit), and later waits until at most N of its
// youngest groups are still under way. What has arrived is visible to the thread that waited; other
// threads need a __syncthreads() after that wait.
//
// A sector of 32 bytes should arrive in an aligned 32 bytes of shared memory. So dynamic shared
// memory is declared __align__(128): without it, day 76's kernel took a fifth longer.
//
// On the CPU backend a copy takes place as late as is legal: at the wait that requires it. Without
// one it never does, and shared memory keeps its poison. In random order every copy either waits or
// takes place at once, so that one that starts before others have read the old values shows too.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// Start a copy of Bytes (4, 8 or 16) from global to shared memory; both addresses must be
// multiples of Bytes. 16 bytes pass by the L1 cache (.cg), fewer cannot (.ca).
// PTX: cp.async.cg.shared.global [to], [from], 16;   or   cp.async.ca.shared.global …, 4 or 8;
template <int Bytes>
__device__ __forceinline__ void cp_async(void* shared_to, const void* global_from PTX_HERE) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(80, "cp.async", PTX_SITE);
  cudacpu::start_copy(shared_to, global_from, Bytes, Bytes, PTX_SITE);
#else
  const uint32_t to = shared_address(shared_to);
  const size_t from = __cvta_generic_to_global(global_from);
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(Bytes)
                 : "memory");
  }
#endif
}

// Start a copy of which only the first `valid` bytes (0 to Bytes) are read and the rest becomes
// zero: for the edge of a matrix. With 0, global_from is not read, but must still be aligned.
// PTX: cp.async.cg.shared.global [to], [from], 16, valid;   or   .ca with 4 or 8
template <int Bytes>
__device__ __forceinline__ void cp_async_zero_fill(void* shared_to, const void* global_from,
                                                   int valid PTX_HERE) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(80, "cp.async", PTX_SITE);
  cudacpu::start_copy(shared_to, global_from, Bytes, valid, PTX_SITE);
#else
  const uint32_t to = shared_address(shared_to);
  const size_t from = __cvta_generic_to_global(global_from);
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes),
                 "r"(valid)
                 : "memory");
  }
#endif
}

// Close this thread's copies since the last commit into a group, which may be empty.
// PTX: cp.async.commit_group;
__device__ __forceinline__ void cp_async_commit() {
#ifdef CUDA_ON_CPU
  cudacpu::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until all groups of this thread are complete but the N youngest.
// PTX: cp.async.wait_group N;
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  static_assert(N >= 0, "how many groups may still be under way");
#ifdef CUDA_ON_CPU
  cudacpu::wait_for_copies(N);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// Wait for all copies of this thread, committed or not.
// PTX: cp.async.wait_all;
__device__ __forceinline__ void cp_async_wait_all() {
#ifdef CUDA_ON_CPU
  cudacpu::commit_copies();
  cudacpu::wait_for_copies(0);
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace ptx

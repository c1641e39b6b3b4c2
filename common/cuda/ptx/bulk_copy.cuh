// Copies of a contiguous piece by TMA, one thread for all (sm_90, TMA's simplest form).
//
// One thread announces the bytes at an mbarrier (mbarrier_arrive_expect_bytes) and starts the copy;
// the threads that need the data wait for the phase. On the CPU backend the copy takes place at
// that wait, in random order at once or then.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// Make this thread's writes to shared memory, an mbarrier's initialisation included, visible to
// TMA: wherever stores are followed by a copy, and between mbarrier_init and the first
// copy_bulk, where fence_mbarrier_init suffices, too. On the CPU only the tracer requires it; a
// trap before sm_90.
// PTX: fence.proxy.async.shared::cta;
__device__ __forceinline__ void fence_proxy_async() {
#ifdef CUDA_ON_CPU
  cudacpu::trace_engine_fence();
#elif __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  __trap();
#endif
}

// Start a copy of `bytes` from global to shared memory. Both addresses and `bytes` are multiples
// of 16. When it is complete, as many bytes of those due at `barrier` have come. A trap before
// sm_90. PTX: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from],
// bytes, [barrier];
__device__ __forceinline__ void copy_bulk(void* shared_to, const void* global_from, int bytes,
                                          uint64_t* barrier PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::start_bulk_copy(shared_to, global_from, bytes, barrier, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared_to)),
      "l"(__cvta_generic_to_global(global_from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#else
  __trap();
#endif
}

// Start a copy of `bytes` from this block's shared memory to that of block `rank` of the cluster.
// `shared_to` and `barrier` are given as addresses in this block; the copy writes, and is counted
// by, what lies there in the other. Addresses and `bytes` are multiples of 16.
// PTX: cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [from], bytes,
// [barrier]; where mapa.shared::cluster has made `to` and `barrier`
__device__ __forceinline__ void copy_bulk_to_rank(void* shared_to, uint32_t rank,
                                                  const void* shared_from, int bytes,
                                                  uint64_t* barrier PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::queue_copy_to_rank(shared_to, rank, shared_from, bytes, barrier, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %1; "
      "mapa.shared::cluster.u32 barrier, %4, %1; "
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%2], %3, "
      "[barrier]; }" ::"r"(shared_address(shared_to)),
      "r"(rank), "r"(shared_address(shared_from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#else
  __trap();
#endif
}

// Start a copy of `bytes` from this block's shared memory to global memory, as a part of this
// thread's next bulk group. Both addresses and `bytes` are multiples of 16. What threads wrote to
// the source comes before by fence_proxy_async in each of them and a barrier.
// PTX: cp.async.bulk.global.shared::cta.bulk_group [to], [from], bytes;
__device__ __forceinline__ void store_bulk(void* global_to, const void* shared_from,
                                           int bytes PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::start_flat_store(global_to, shared_from, bytes, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(global_to)),
               "r"(shared_address(shared_from)), "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}

// Close this thread's stores since the last commit into a group, which may be empty.
// PTX: cp.async.bulk.commit_group;
__device__ __forceinline__ void bulk_commit() {
#ifdef CUDA_ON_CPU
  cudacpu::commit_stores();
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  __trap();
#endif
}

// Wait until all bulk groups of this thread but the N youngest have read their shared memory, so
// that it may be overwritten, or the block return.
// PTX: cp.async.bulk.wait_group.read N;
template <int N>
__device__ __forceinline__ void bulk_wait_read() {
  static_assert(N >= 0, "how many groups may still be under way");
#ifdef CUDA_ON_CPU
  cudacpu::wait_for_stores(N, true);
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#else
  __trap();
#endif
}

// Wait until all bulk groups of this thread but the N youngest are complete: this thread sees what
// they wrote to global memory.
// PTX: cp.async.bulk.wait_group N;
template <int N>
__device__ __forceinline__ void bulk_wait() {
  static_assert(N >= 0, "how many groups may still be under way");
#ifdef CUDA_ON_CPU
  cudacpu::wait_for_stores(N, false);
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
#else
  __trap();
#endif
}

}  // namespace ptx

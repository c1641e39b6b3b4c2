// Thread block clusters: blocks that are resident together and reach each other's shared memory
// (sm_90).
//
// A kernel has clusters by __cluster_dims__(x, y, z), or by a launch with cudaLaunchKernelEx and
// cudaLaunchAttributeClusterDimension; otherwise each block is a cluster by itself. Up to 8 blocks,
// or 16 where the kernel has cudaFuncAttributeNonPortableClusterSizeAllowed.
//
// Another block's shared memory may be used from when that block has begun (cluster_sync at the
// start) until it returns (cluster_sync at the end). A pointer from map_to_rank can be
// dereferenced, and used with atomics, like any other.
//
// cooperative_groups::this_cluster() has most of this, too. Everything here is a trap before sm_90.
// On the CPU backend the blocks of a cluster run on one OS thread, and the shared memory of a block
// that has not begun, or has returned, is closed to the others.
#pragma once

#include "common/cuda/ptx/site.cuh"

// nvcc refuses the attribute below sm_90, where nothing else here stops a file from compiling. (The
// CPU backend keeps it: a card without clusters refuses the launch.)
#if !defined(CUDA_ON_CPU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#undef __cluster_dims__
#define __cluster_dims__(...)
#endif

namespace ptx {

// Rank of this block in its cluster: x + extent.x·(y + extent.y·z).
// PTX: mov.u32 result, %cluster_ctarank;
__device__ __forceinline__ uint32_t cluster_block_rank() {
#ifdef CUDA_ON_CPU
  return __clusterRelativeBlockRank();
#elif __CUDA_ARCH__ >= 900
  uint32_t result;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(result));
  return result;
#else
  __trap();
  return 0;
#endif
}

// Blocks of a cluster.
// PTX: mov.u32 result, %cluster_nctarank;
__device__ __forceinline__ uint32_t cluster_size() {
#ifdef CUDA_ON_CPU
  return __clusterSizeInBlocks();
#elif __CUDA_ARCH__ >= 900
  uint32_t result;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(result));
  return result;
#else
  __trap();
  return 0;
#endif
}

// Three registers of one name.
#if !defined(CUDA_ON_CPU) && __CUDA_ARCH__ >= 900
#define PTX_CLUSTER_DIM3(name, on_cpu)               \
  dim3 result;                                       \
  asm("mov.u32 %0, %%" name ".x;" : "=r"(result.x)); \
  asm("mov.u32 %0, %%" name ".y;" : "=r"(result.y)); \
  asm("mov.u32 %0, %%" name ".z;" : "=r"(result.z)); \
  return result;
#elif defined(CUDA_ON_CPU)
#define PTX_CLUSTER_DIM3(name, on_cpu) return on_cpu;
#else
#define PTX_CLUSTER_DIM3(name, on_cpu) \
  __trap();                            \
  return dim3();
#endif

// Index of this block in its cluster. PTX: mov.u32 result, %cluster_ctaid.x;   .y, .z
__device__ __forceinline__ dim3 cluster_block_index(){
    PTX_CLUSTER_DIM3("cluster_ctaid", __clusterRelativeBlockIdx())}
// Extents of a cluster, in blocks. PTX: mov.u32 result, %cluster_nctaid.x;   .y, .z
__device__ __forceinline__ dim3 cluster_extent(){PTX_CLUSTER_DIM3("cluster_nctaid", __clusterDim())}
// Index of this cluster in the grid. PTX: mov.u32 result, %clusterid.x;   .y, .z
__device__ __forceinline__ dim3 cluster_index(){PTX_CLUSTER_DIM3("clusterid", __clusterIdx())}
// Extents of the grid, in clusters. PTX: mov.u32 result, %nclusterid.x;   .y, .z
__device__ __forceinline__ dim3
    cluster_grid(){PTX_CLUSTER_DIM3("nclusterid", __clusterGridDimInClusters())}
#undef PTX_CLUSTER_DIM3

// ---------------------------------------------------------------- the cluster's barrier

// Arrive at the barrier of the cluster without waiting. What this thread wrote before is visible
// to those that have waited. Every thread arrives, then waits. PTX: barrier.cluster.arrive.release;
__device__ __forceinline__ void cluster_arrive(PTX_ONLY_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::arrive_at_cluster_barrier("barrier.cluster.arrive", PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#else
  __trap();
#endif
}

// Arrive without making writes visible: to signal that a block has begun, or is done with reading.
// PTX: barrier.cluster.arrive.relaxed;
__device__ __forceinline__ void cluster_arrive_relaxed(PTX_ONLY_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::arrive_at_cluster_barrier("barrier.cluster.arrive.relaxed", PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#else
  __trap();
#endif
}

// Wait until all threads of the cluster that have not returned have arrived.
// PTX: barrier.cluster.wait.acquire;
__device__ __forceinline__ void cluster_wait(PTX_ONLY_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::wait_at_cluster_barrier("barrier.cluster.wait", PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __trap();
#endif
}

// Both: a __syncthreads() for the cluster.
// PTX: barrier.cluster.arrive.release; and barrier.cluster.wait.acquire;
__device__ __forceinline__ void cluster_sync(PTX_ONLY_HERE) {
  cluster_arrive(PTX_PASS_HERE);
  cluster_wait(PTX_PASS_HERE);
}

// ---------------------------------------------------------------- addresses

// The place in block `rank` of the cluster of what `shared` points to in this one.
// PTX: mapa.u64 result, shared, rank;
template <typename T>
__device__ __forceinline__ T* map_to_rank(T* shared, uint32_t rank PTX_HERE) {
#ifdef CUDA_ON_CPU
  return static_cast<T*>(cudacpu::map_to_rank(shared, rank, "mapa", PTX_SITE));
#elif __CUDA_ARCH__ >= 900
  uint64_t result;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(result) : "l"(shared), "r"(rank));
  return reinterpret_cast<T*>(result);
#else
  __trap();
  return nullptr;
#endif
}

// The rank of the block in whose shared memory this is.
// PTX: getctarank.u64 result, shared;
__device__ __forceinline__ uint32_t rank_of(const void* shared PTX_HERE) {
#ifdef CUDA_ON_CPU
  return cudacpu::rank_of_address(shared, "getctarank", PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  uint32_t result;
  asm volatile("getctarank.u64 %0, %1;" : "=r"(result) : "l"(shared));
  return result;
#else
  __trap();
  return 0;
#endif
}

// ---------------------------------------------------------------- loads, stores, arrivals

// The 32-bit word in block `rank` at the place of `shared` in this one.
// PTX: ld.shared::cluster.u32 result, [address]; where mapa.shared::cluster has made the address
__device__ __forceinline__ uint32_t load_from_rank(const uint32_t* shared, uint32_t rank PTX_HERE) {
#ifdef CUDA_ON_CPU
  const char* what = "ld.shared::cluster";
  const void* from = cudacpu::map_to_rank(shared, rank, what, PTX_SITE);
  cudacpu::check_cluster_access(from, 4, what, PTX_SITE);
  return *static_cast<const uint32_t*>(from);
#elif __CUDA_ARCH__ >= 900
  uint32_t result;
  asm volatile(
      "{ .reg .b32 address; mapa.shared::cluster.u32 address, %1, %2; "
      "ld.shared::cluster.u32 %0, [address]; }"
      : "=r"(result)
      : "r"(shared_address(shared)), "r"(rank)
      : "memory");
  return result;
#else
  __trap();
  return 0;
#endif
}

// Store a 32-bit word there.
// PTX: st.shared::cluster.u32 [address], value; where mapa.shared::cluster has made the address
__device__ __forceinline__ void store_to_rank(uint32_t* shared, uint32_t rank,
                                              uint32_t value PTX_HERE) {
#ifdef CUDA_ON_CPU
  const char* what = "st.shared::cluster";
  void* to = cudacpu::map_to_rank(shared, rank, what, PTX_SITE);
  cudacpu::check_cluster_access(to, 4, what, PTX_SITE);
  *static_cast<uint32_t*>(to) = value;
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 address; mapa.shared::cluster.u32 address, %0, %1; "
      "st.shared::cluster.u32 [address], %2; }" ::"r"(shared_address(shared)),
      "r"(rank), "r"(value)
      : "memory");
#else
  __trap();
#endif
}

// Store asynchronously: when the word is there, 4 of the bytes due at the mbarrier `barrier` of
// block `rank` have come. Both addresses are given as those of this block.
// PTX: st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [address], value, [barrier]; where
// mapa.shared::cluster has made both addresses
__device__ __forceinline__ void store_async_to_rank(uint32_t* shared, uint32_t rank, uint32_t value,
                                                    uint64_t* barrier PTX_HERE) {
#ifdef CUDA_ON_CPU
  const char* what = "st.async";
  cudacpu::queue_async_store(
      static_cast<uint32_t*>(cudacpu::map_to_rank(shared, rank, what, PTX_SITE)), value,
      static_cast<uint64_t*>(cudacpu::map_to_rank(barrier, rank, what, PTX_SITE)), PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 address, barrier; mapa.shared::cluster.u32 address, %0, %1; "
      "mapa.shared::cluster.u32 barrier, %3, %1; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [address], %2, [barrier]; }" ::"r"(
          shared_address(shared)),
      "r"(rank), "r"(value), "r"(shared_address(barrier))
      : "memory");
#else
  __trap();
#endif
}

// One arrival at the mbarrier in block `rank` at the place of `barrier` in this one. What this
// thread wrote before is visible to those who waited by mbarrier_wait_cluster.
// PTX: mbarrier.arrive.release.cluster.shared::cluster.b64 _, [barrier]; where mapa.shared::cluster
// has made the address
__device__ __forceinline__ void mbarrier_arrive_at_rank(uint64_t* barrier, uint32_t rank PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_arrive_at_rank(barrier, rank, 0, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 address; mapa.shared::cluster.u32 address, %0, %1; "
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [address]; }" ::"r"(
          shared_address(barrier)),
      "r"(rank)
      : "memory");
#else
  __trap();
#endif
}

// Arrive without ordering anything, so nvcc need not wait until this thread's writes are visible in
// the cluster: for a thread that only read, as a consumer that returns a buffer. The CPU backend
// treats it as a release: its race detector misses a write before it.
// PTX: mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [barrier]; where mapa.shared::cluster
// has made the address
__device__ __forceinline__ void mbarrier_arrive_relaxed_at_rank(uint64_t* barrier,
                                                                uint32_t rank PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_arrive_at_rank(barrier, rank, 0, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 address; mapa.shared::cluster.u32 address, %0, %1; "
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [address]; }" ::"r"(
          shared_address(barrier)),
      "r"(rank)
      : "memory");
#else
  __trap();
#endif
}

// mbarrier_arrive_at_rank, and `bytes` more are due there in this phase.
// PTX: mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [barrier], bytes; where
// mapa.shared::cluster has made the address
__device__ __forceinline__ void mbarrier_arrive_expect_bytes_at_rank(uint64_t* barrier,
                                                                     uint32_t rank,
                                                                     int bytes PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_arrive_at_rank(barrier, rank, bytes, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 address; mapa.shared::cluster.u32 address, %0, %1; "
      "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [address], %2; }" ::"r"(
          shared_address(barrier)),
      "r"(rank), "r"(bytes)
      : "memory");
#else
  __trap();
#endif
}

// mbarrier_wait, after which also what other blocks of the cluster wrote before they arrived is
// visible. The mbarrier is this block's own.
// PTX: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [barrier], parity; until
// complete
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t* barrier, int parity PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::mbarrier_wait(barrier, parity, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  uint32_t complete;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!complete);
#else
  __trap();
#endif
}

}  // namespace ptx

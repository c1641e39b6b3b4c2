// Thread block clusters: blocks that are resident together and reach each other's shared memory.
//
// All blocks of a cluster run on one OS thread, each with its arena. A __shared__ variable lies at
// the same offset in all of them, so that mapping an address to another block is a change of arena.
// A launch without clusters has clusters of one block, as on the hardware.
#pragma once

#include "cudacpu/sync.h"

namespace cudacpu {

dim3 cluster_dims();       // blocks of a cluster
unsigned cluster_rank();   // of the running block in its cluster
bool launched_clusters();  // true if the launch, or the kernel, requested clusters

// The barrier of a cluster, in two halves. Every thread arrives, then waits; threads that have
// returned count as arrived.
void arrive_at_cluster_barrier(const char* what, Site site);
void wait_at_cluster_barrier(const char* what, Site site);

// The address in block `rank` of the cluster that belongs to this one; `pointer` may be in the
// shared memory of any block of the cluster.
void* map_to_rank(const void* pointer, unsigned rank, const char* what, Site site);
// The block of the cluster that has this address in its shared memory.
unsigned rank_of_address(const void* pointer, const char* what, Site site);
// Trap unless these bytes are shared memory of a running block of the cluster, and aligned.
void check_cluster_access(const void* pointer, size_t bytes, const char* what, Site site);

}  // namespace cudacpu

// CUDA C++'s own names for all this.
inline dim3 __clusterDim() {
  return cudacpu::cluster_dims();
}
inline unsigned __clusterSizeInBlocks() {
  const dim3 dims = cudacpu::cluster_dims();
  return dims.x * dims.y * dims.z;
}
inline dim3 __clusterRelativeBlockIdx() {
  const dim3 dims = cudacpu::cluster_dims();
  return {blockIdx.x % dims.x, blockIdx.y % dims.y, blockIdx.z % dims.z};
}
inline unsigned __clusterRelativeBlockRank() {
  return cudacpu::cluster_rank();
}
inline dim3 __clusterIdx() {
  const dim3 dims = cudacpu::cluster_dims();
  return {blockIdx.x / dims.x, blockIdx.y / dims.y, blockIdx.z / dims.z};
}
inline dim3 __clusterGridDimInClusters() {
  const dim3 dims = cudacpu::cluster_dims();
  return {gridDim.x / dims.x, gridDim.y / dims.y, gridDim.z / dims.z};
}
inline bool __clusterDimIsSpecified() {
  return cudacpu::launched_clusters();
}
inline void __cluster_barrier_arrive(CUDACPU_HERE) {
  cudacpu::arrive_at_cluster_barrier("__cluster_barrier_arrive", {file, line});
}
inline void __cluster_barrier_arrive_relaxed(CUDACPU_HERE) {
  cudacpu::arrive_at_cluster_barrier("__cluster_barrier_arrive_relaxed", {file, line});
}
inline void __cluster_barrier_wait(CUDACPU_HERE) {
  cudacpu::wait_at_cluster_barrier("__cluster_barrier_wait", {file, line});
}
inline void* __cluster_map_shared_rank(const void* pointer, unsigned rank, CUDACPU_HERE) {
  return cudacpu::map_to_rank(pointer, rank, "__cluster_map_shared_rank", {file, line});
}
inline unsigned __cluster_query_shared_rank(const void* pointer, CUDACPU_HERE) {
  return cudacpu::rank_of_address(pointer, "__cluster_query_shared_rank", {file, line});
}

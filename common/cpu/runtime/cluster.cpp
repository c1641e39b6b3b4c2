// Thread block clusters: their barrier, and addresses in each other's shared memory.
//
// The shared memory of a block may be used by the others from its first instruction to its last. A
// program ensures that with the cluster's barrier. To find those that do not, the arena of a block
// that has not begun, or has returned, is closed: an access faults, and the report gives the
// reason.
#include "runtime.h"

#include <cudacpu/capability.h>

namespace cudacpu {

namespace {

// Return the running thread's cluster. In a launch without clusters, a block forms one by itself.
Cluster& cluster_of_current() {
  ResidentBlock& block = block_of(*current);
  if (!block.cluster) worker->form_cluster({&block});
  return *block.cluster;
}

}  // namespace

dim3 cluster_dims() {
  return worker->launch()->config.cluster;
}

unsigned cluster_rank() {
  return block_of(*current).rank;
}

bool launched_clusters() {
  return worker->launch()->cluster_size > 1;
}

void arrive_at_cluster_barrier(const char* what, Site site) {
  needs_capability(90, what, site);
  arrive(cluster_of_current().barrier, current->cluster_arrival, what, site);
}

void wait_at_cluster_barrier(const char* what, Site site) {
  if (current->cluster_arrival == ArrivalPhase::kNone)
    trap(site, "%s: this thread has not arrived at the cluster's barrier", what);
  wait(cluster_of_current().barrier, current->cluster_arrival, what, site);
}

void leave_cluster_barrier(Thread& thread) {
  leave(block_of(thread).cluster->barrier, thread.cluster_arrival);
}

std::string describe_cluster_barrier(const Thread& thread) {
  const Cluster* cluster = block_of(thread).cluster;
  return cluster ? describe(cluster->barrier, thread, "cluster") : "";
}

// ------------------------------------------------------------------ addresses

ResidentBlock* block_around(const void* pointer) {
  ResidentBlock& own = block_of(*current);
  if (is_in_arena(own, pointer)) return &own;
  if (!own.cluster) return nullptr;
  for (ResidentBlock* block : own.cluster->blocks)
    if (is_in_arena(*block, pointer)) return block;
  return nullptr;
}

ResidentBlock& running_block_around(const void* pointer, const char* what, Site site) {
  ResidentBlock* block = block_around(pointer);
  if (!block)
    trap(site, "%s: %p is not in the shared memory of a block of this cluster", what, pointer);
  if (block->arena_state != ArenaState::kOpen)
    trap(site, "%s: %s", what, explain_closed_arena(*block).c_str());
  return *block;
}

std::string explain_closed_arena(const ResidentBlock& block) {
  const uint3& i = block.index;
  std::string which = format("the shared memory of block (%u,%u,%u), rank %u of the cluster, ", i.x,
                             i.y, i.z, block.rank);
  if (block.arena_state == ArenaState::kNotBegun)
    return which +
           "is used before that block has begun; cluster.sync() at the start of the kernel "
           "waits for all blocks";
  return which +
         "is used after that block has returned; cluster.sync() at the end of the kernel "
         "keeps every block until the others are done";
}

void* map_to_rank(const void* pointer, unsigned rank, const char* what, Site site) {
  needs_capability(90, what, site);
  const ResidentBlock* block = block_around(pointer);
  if (!block)
    trap(site, "%s: %p is not in the shared memory of a block of this cluster", what, pointer);
  unsigned size = worker->launch()->cluster_size;
  if (rank >= size)
    trap(site, "%s: rank %d; the cluster has %u block(s), ranks 0 to %u", what,
         static_cast<int>(rank), size, size - 1);
  char* arena = size == 1 ? block->arena : block->cluster->blocks[rank]->arena;
  return arena + (static_cast<const char*>(pointer) - block->arena);
}

unsigned rank_of_address(const void* pointer, const char* what, Site site) {
  needs_capability(90, what, site);
  const ResidentBlock* block = block_around(pointer);
  if (!block)
    trap(site, "%s: %p is not in the shared memory of a block of this cluster", what, pointer);
  return block->rank;
}

void check_cluster_access(const void* pointer, size_t bytes, const char* what, Site site) {
  running_block_around(pointer, what, site);
  if (reinterpret_cast<uintptr_t>(pointer) % bytes)
    trap(site, "%s: misaligned address: %p must be a multiple of %zu", what, pointer, bytes);
}

}  // namespace cudacpu

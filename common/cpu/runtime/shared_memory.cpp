// The arena of each block, and where in it a __shared__ variable lies.
#include "runtime.h"

#include <sys/mman.h>

namespace cudacpu {

namespace {

std::atomic<uint32_t> variables{1};  // 0 is the number of one that was never met

// Numbers a variable on first use, once, whichever worker comes first.
uint32_t number_of(SharedVariable& variable) {
  std::atomic_ref<uint32_t> number(variable.number);
  uint32_t known = number.load();
  if (known) return known;
  uint32_t fresh = variables.fetch_add(1);
  if (fresh >= kMaxSharedVariables)
    trap({"", 0}, "more than %zu __shared__ declarations in one process", kMaxSharedVariables);
  return number.compare_exchange_strong(known, fresh) ? fresh : known;
}

}  // namespace

char* map_arena() {
  void* arena = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) throw KernelError("no memory for the shared memory of a block");
  return static_cast<char*>(arena);
}

void unmap_arena(char* arena) {
  if (!arena) return;
  allow(arena, kArenaBytes);  // whatever takes its place
  munmap(arena, kArenaBytes);
}

void* locate_shared(SharedVariable& variable, Site site) {
  return current->block->arena + worker->place(variable, site);
}

bool is_in_arena(const Block& block, const void* pointer) {
  return static_cast<size_t>(static_cast<const char*>(pointer) - block.arena) < kArenaBytes;
}

void set_arena_state(ResidentBlock& block, ArenaState state) {
  bool open = state == ArenaState::kOpen;
  if (open != (block.arena_state == ArenaState::kOpen))
    mprotect(block.arena, kArenaBytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  block.arena_state = state;
}

uint32_t place_shared(SharedVariable& variable, Site site) {
  return worker->place(variable, site);
}

uint32_t Worker::place(SharedVariable& variable, Site site) {
  uint32_t number = number_of(variable);
  if (offsets_[number] != kNotPlaced) return offsets_[number];
  size_t alignment = std::max<size_t>(variable.alignment, 16);
  size_t offset = (shared_end_ + kSharedGap + alignment - 1) / alignment * alignment;
  size_t end = offset + variable.size;

  size_t dynamic = launch_->config.shared_bytes;
  size_t gaps = kSharedGap * (variables_.size() + 1);
  size_t statics = end - kSharedBase - (dynamic + 15) / 16 * 16 - gaps;
  Kernel* kernel = launch_->kernel.load();
  if (statics > kSharedDefault)
    trap(site, "%zu bytes of static __shared__ variables: nvcc allows 48 KB in a kernel", statics);
  if (kernel) {
    size_t before = kernel->static_shared.load();
    while (before < statics && !kernel->static_shared.compare_exchange_weak(before, statics)) {
    }
    size_t limit = kernel->dynamic_limit.load() ? model().shared_opt_in : kSharedDefault;
    if (statics + dynamic > limit)
      trap(site,
           "%zu bytes of static and %zu of dynamic shared memory are more than the %zu of a block: "
           "a GPU refuses this launch (cudaErrorInvalidValue)%s",
           statics, dynamic, limit,
           limit == kSharedDefault ? "; cudaFuncSetAttribute with "
                                     "cudaFuncAttributeMaxDynamicSharedMemorySize raises the limit"
                                   : "");
  }
  if (end > kArenaBytes)
    trap(site, "too many __shared__ variables for this build, which keeps a gap beside each");
  for (ResidentBlock* block : live_) {
    if (block->arena_state != ArenaState::kOpen) continue;  // it is poisoned when it is opened
    allow(block->arena + offset, variable.size);
    memset(block->arena + offset, 0xff, variable.size);
  }
  shared_end_ = end;
  offsets_[number] = static_cast<uint32_t>(offset);
  variables_.push_back(&variable);
  return offsets_[number];
}

// Unwritten shared memory is NaN; what lies between variables is out of bounds, where that is
// watched.
void Worker::poison(ResidentBlock& block) {
  char* arena = block.arena;
  if (!kSharedGap) {
    memset(arena + kSharedBase, 0xff, shared_end_ - kSharedBase);
    return;
  }
  forbid(arena, kArenaBytes);
  each_shared_variable([&](size_t offset, size_t size, const char*) {
    allow(arena + offset, size);
    memset(arena + offset, 0xff, size);
  });
}

void Worker::forget_shared_variables() {
  for (SharedVariable* variable : variables_) offsets_[variable->number] = kNotPlaced;
  variables_.clear();
}

}  // namespace cudacpu

// The arena of each block, and where in it a __shared__ variable lies.
#include "runtime.h"

#include <sys/mman.h>

namespace cudacpu {

namespace {

std::atomic<uint32_t> variables{1};  // 0 is the number of one that was never met

// Number a variable on first use, once, whichever worker comes first.
uint32_t number_of(SharedVariable& variable) {
  std::atomic_ref<uint32_t> number(variable.number);
  uint32_t known = number.load();
  if (known) return known;
  uint32_t fresh = variables.fetch_add(1);
  if (fresh >= kMaxSharedVariables)
    trap({"", 0}, "more than %zu __shared__ declarations in one process", kMaxSharedVariables);
  return number.compare_exchange_strong(known, fresh) ? fresh : known;
}

// A NaN of every floating-point type, as unwritten memory is, but no value that a kernel computes.
constexpr uint16_t kGuardWord = 0xfff5;

bool is_guard_byte(const char* at, size_t offset) {
  return static_cast<uint8_t>(*at) == (offset % 2 ? kGuardWord >> 8 : kGuardWord & 0xff);
}

void fill_guard(char* arena, size_t offset, size_t bytes) {
  for (size_t i = offset; i < offset + bytes; ++i)
    arena[i] = static_cast<char>(i % 2 ? kGuardWord >> 8 : kGuardWord & 0xff);
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
    size_t limit = kernel->dynamic_limit.load() ? most_shared() : kSharedDefault;
    if (statics + dynamic > limit)
      trap(site,
           "%zu bytes of static and %zu of dynamic shared memory are more than the %zu of a block: "
           "a GPU refuses this launch (cudaErrorInvalidValue)%s",
           statics, dynamic, limit,
           limit == kSharedDefault ? "; cudaFuncSetAttribute with "
                                     "cudaFuncAttributeMaxDynamicSharedMemorySize raises the limit"
                                   : "");
  }
  if (end + kSharedGap > kArenaBytes)
    trap(site, "too many __shared__ variables for this build, which keeps a gap beside each");
  for (ResidentBlock* block : live_) {
    if (block->arena_state != ArenaState::kOpen) continue;  // it is poisoned when it is opened
    allow(block->arena + offset, variable.size);
    memset(block->arena + offset, 0xff, variable.size);
  }
  // Existing guards stay as they are: they may show what a thread has done.
  const bool first = shared_end_ == kSharedBase;
  const size_t guarded = first ? kSharedBase - kSharedGap : shared_end_ + kSharedGap;
  shared_end_ = end;
  offsets_[number] = static_cast<uint32_t>(offset);
  variables_.push_back(&variable);
  if (!kWatchesAddresses)
    for (ResidentBlock* block : live_) {
      if (block->arena_state != ArenaState::kOpen) continue;
      fill_guard(block->arena, guarded, offset - guarded);
      fill_guard(block->arena, end, kSharedGap);
    }
  return offsets_[number];
}

// Guards lie in front of the first part of a block's shared memory, between any two, and behind the
// last: each(offset, bytes).
template <class Each>
void Worker::each_guard(Each each) const {
  size_t end = kSharedBase - kSharedGap;
  each_shared_variable([&](size_t offset, size_t size, const char*) {
    each(end, offset - end);
    end = offset + size;
  });
  each(end, shared_end_ + kSharedGap - end);
}

// Check, when a block has ended, that no thread has written beside an array.
void Worker::check_guards(const ResidentBlock& block) {
  if (kWatchesAddresses || block.arena_state != ArenaState::kOpen) return;
  if (shared_end_ == kSharedBase) return;
  each_guard([&](size_t offset, size_t bytes) {
    size_t first = offset, last = offset + bytes;
    while (first < last && is_guard_byte(block.arena + first, first)) ++first;
    while (last > first && is_guard_byte(block.arena + last - 1, last - 1)) --last;
    if (first == last) return;
    const uint3& i = block.index;
    launch_->fail(Stop::kFailed,
                  format("out of bounds: block (%u,%u,%u) wrote %s: %s\n"
                         "  --sanitize names the line and the thread\n",
                         i.x, i.y, i.z, in_bytes(last - first).c_str(),
                         describe_shared(block, block.arena + first, last - first).c_str()));
  });
}

// Unwritten shared memory is NaN; what lies between variables is out of bounds.
void Worker::poison(ResidentBlock& block) {
  char* arena = block.arena;
  if (!kWatchesAddresses) {
    if (shared_end_ == kSharedBase) return;
    memset(arena + kSharedBase, 0xff, shared_end_ - kSharedBase);
    each_guard([&](size_t offset, size_t bytes) { fill_guard(arena, offset, bytes); });
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

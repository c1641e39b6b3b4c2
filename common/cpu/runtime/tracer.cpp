// The compiler's calls at each access, and which of them are accesses to the memory of a GPU.
//
// The names are those that -fsanitize=thread makes the compiler call; nothing of its own runtime is
// linked. Passed over: host code, a thread's own stack, the built-in variables, kernel arguments
// (on the stack of the OS thread, or kept by a graph) and the scheduler's structures, which the
// headers of this backend read. What is left is shared memory, by its address, or global memory.
#include "tracer.h"

#include <link.h>
#include <pthread.h>

#include <unordered_map>

namespace cudacpu::trace {

TracedLaunch traced;

namespace {

std::atomic<Mode> chosen{Mode::kOff};
std::mutex one_launch;  // at a time is traced

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t address) const { return address - begin < end - begin; }
};

Range range_of(const void* begin, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(begin);
  return {address, address + bytes};
}

Range fiber_stacks, host_stack, kernel_arguments, own_library, thread_locals;
std::vector<Range> constants;  // __constant__ variables of each library

Range find_host_stack() {
  pthread_attr_t attributes;
  void* lowest = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &lowest, &bytes);
    pthread_attr_destroy(&attributes);
  }
  return range_of(lowest, bytes);
}

// Return the image of this library: its constants, which inlined code reads.
Range find_own_library() {
  Range found;
  auto look = [](dl_phdr_info* info, size_t, void* data) {
    Range image{~uintptr_t{0}, 0};
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD) continue;
      uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
      image.begin = std::min(image.begin, begin);
      image.end = std::max(image.end, begin + segment.p_memsz);
    }
    if (!image.holds(reinterpret_cast<uintptr_t>(&find_own_library))) return 0;
    *static_cast<Range*>(data) = image;
    return 1;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

Range find_thread_locals() {
  Range found{~uintptr_t{0}, 0};
  auto add = [&](const void* variable, size_t bytes) {
    Range range = range_of(variable, bytes);
    found.begin = std::min(found.begin, range.begin);
    found.end = std::max(found.end, range.end);
  };
  add(&threadIdx, sizeof threadIdx), add(&blockIdx, sizeof blockIdx);
  add(&blockDim, sizeof blockDim), add(&gridDim, sizeof gridDim);
  add(&current, sizeof current), add(&worker, sizeof worker);
  add(&entry_pending, sizeof entry_pending), add(&polled, sizeof polled);
  add(&last_finding, sizeof last_finding);
  return found;
}

// ------------------------------------------------------------------ sites

struct HashSite {
  size_t operator()(const AccessSite& site) const {
    auto a = reinterpret_cast<uintptr_t>(site.pc), b = reinterpret_cast<uintptr_t>(site.caller);
    auto c = reinterpret_cast<uintptr_t>(site.source.file);
    return a * 0x9e3779b97f4a7c15ull ^ b * 0xbf58476d1ce4e5b9ull ^
           (c + static_cast<uintptr_t>(site.source.line)) * 0x94d049bb133111ebull;
  }
};
std::vector<AccessSite>& sites() {
  static auto& instance = *new std::vector<AccessSite>;
  return instance;
}

uint32_t number_of(const AccessSite& site) {
  static auto& numbers = *new std::unordered_map<AccessSite, uint32_t, HashSite>;
  auto [found, is_new] = numbers.try_emplace(site, static_cast<uint32_t>(sites().size()));
  if (is_new) sites().push_back(site);
  return found->second;
}

// The same, through a small cache: every access calls this.
uint32_t number_of(const void* pc, const void* caller) {
  struct Entry {
    const void *pc, *caller;
    uint32_t number;
  };
  static Entry cache[1024];
  size_t hash = HashSite{}({pc, caller, {nullptr, 0}});
  Entry& entry = cache[hash >> 40 & 1023];
  if (entry.pc != pc || entry.caller != caller)
    entry = {pc, caller, number_of(AccessSite{pc, caller, {nullptr, 0}})};
  return entry.number;
}

// ------------------------------------------------------------------ accesses

// Return true if the address is not in a GPU's memory; else set its space and its owner.
bool is_private(uintptr_t address, Space& space, ResidentBlock*& owner) {
  ResidentBlock& block = *running.block->block;
  owner = &block;
  if (address - reinterpret_cast<uintptr_t>(block.arena) >= kSharedBytes)
    owner = block.cluster ? block_around(reinterpret_cast<const void*>(address)) : nullptr;
  if (owner) {
    space = Space::kShared;
    return false;
  }
  auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (!fiber_stacks.holds(frame)) {
    auto [begin, end] = worker->fibers().mapping_of(reinterpret_cast<const void*>(frame));
    fiber_stacks = {reinterpret_cast<uintptr_t>(begin), reinterpret_cast<uintptr_t>(end)};
  }
  if (fiber_stacks.holds(address) || thread_locals.holds(address) || host_stack.holds(address) ||
      kernel_arguments.holds(address) || own_library.holds(address))
    return true;
  const auto& threads = block.threads;
  if (range_of(&block, sizeof block).holds(address) ||
      range_of(threads.data(), threads.size() * sizeof(Thread)).holds(address) ||
      range_of(block.variables, kMaxSharedVariables * sizeof *block.variables).holds(address))
    return true;
  space = Space::kGlobal;
  for (const Range& range : constants)
    if (range.holds(address)) space = Space::kConstant;
  return false;
}

void trace_access(const Access& access) {
  if (mode() == Mode::kRaces) {
    if (access.space != Space::kConstant) check_access(access);
  } else if (mode() == Mode::kProfile) {
    count_access(access);
  } else {
    record_access(access);
  }
}

bool is_tracing() {
  return current && running.thread;
}

bool looks_for_races() {
  return is_tracing() && mode() == Mode::kRaces;
}

uint32_t site_of(const void* pc) {
  const auto& callers = running.thread->callers;
  return number_of(pc, callers.empty() ? nullptr : callers.back());
}

__attribute__((always_inline)) inline void on_access(const void* pointer, size_t bytes, Kind kind,
                                                     bool is_volatile, const void* pc,
                                                     bool is_store = false) {
  if (!is_tracing()) return;
  auto address = reinterpret_cast<uintptr_t>(pointer);
  Space space;
  ResidentBlock* owner;
  if (is_private(address, space, owner)) return;
  Access access{address,    static_cast<uint32_t>(bytes), site_of(pc), kind, space, owner,
                is_volatile};
  access.is_store = is_store;
  trace_access(access);
}

// A volatile access is one that others may make at the same time, as a flag that is waited for. Not
// in shared memory among the lanes of a warp: there it is an old way to do without __syncwarp,
// which is no longer right. (races.cpp distinguishes the warps.)
void on_volatile(const void* pointer, size_t bytes, Kind kind, const void* pc) {
  if (!is_tracing()) return;
  if (mode() == Mode::kRaces && kind == Kind::kWrite) released_at(pointer, true);
  on_access(pointer, bytes, kind, true, pc);
  if (mode() == Mode::kRaces && kind == Kind::kRead) acquired_at(pointer);
}

// The effect of an atomic operation on memory.
enum class Effect : uint8_t { kLoad, kStore, kUpdate, kFailed };

// Trace an atomic access. A loop around compare-and-swap begins with a load, which is a part of it.
void on_atomic(const void* pointer, size_t bytes, Effect effect, const void* pc) {
  if (!is_tracing()) return;
  const AtomicOrder order = std::exchange(running.thread->next_order, AtomicOrder{});
  const bool races = mode() == Mode::kRaces;
  const bool stores = effect == Effect::kStore || effect == Effect::kUpdate;
  if (races && stores) {
    if (order.releases)
      released_all_at(pointer, order.reach, effect == Effect::kStore);
    else
      released_at(pointer, effect == Effect::kStore);
  }
  if (races || effect != Effect::kLoad)
    on_access(pointer, bytes, Kind::kAtomic, false, pc, effect == Effect::kStore);
  if (races && !order.releases) note_update(pointer, stores, site_of(pc));
  if (!races || effect == Effect::kStore) return;
  if (effect == Effect::kFailed ? order.acquires_on_failure : order.acquires)
    acquired_at(pointer);
  else
    seen_at(pointer);
}

void access_by_runtime(const void* pointer, size_t bytes, Kind kind, Site site,
                       bool is_pending = false, bool by_engine = false, bool at_mbarrier = false) {
  if (!is_tracing() || bytes == 0) return;
  auto address = reinterpret_cast<uintptr_t>(pointer);
  Space space;
  ResidentBlock* owner;
  if (is_private(address, space, owner)) return;
  uint32_t number = number_of(AccessSite{nullptr, nullptr, site});
  Access access{address, static_cast<uint32_t>(bytes), number, kind, space, owner};
  access.is_pending = is_pending;
  access.by_engine = by_engine;
  access.at_mbarrier = at_mbarrier;
  trace_access(access);
}

}  // namespace

Mode mode() {
  return chosen.load(std::memory_order_relaxed);
}

bool is_on() {
  return mode() != Mode::kOff;
}

const AccessSite& site_at(uint32_t number) {
  return sites()[number];
}
size_t number_of_sites() {
  return sites().size();
}

void DeleteBlockTrace::operator()(BlockTrace* block) const {
  delete block;
}

// ------------------------------------------------------------------ what the runtime tells

void launch_begins(Launch& launch) {
  if (!is_on()) return;
  one_launch.lock();
  if (!own_library.end) own_library = find_own_library();
  host_stack = find_host_stack();
  kernel_arguments = range_of(launch.call, launch.call_bytes);
  thread_locals = find_thread_locals();
  traced.launch = &launch;
  forget_released();
  begin_global_shadow();
  record_launch_begins();
}

void launch_ends() {
  if (!traced.launch) return;
  record_launch_ends();
  traced.launch = nullptr;
  running = {};
  one_launch.unlock();
}

void block_begins(ResidentBlock& block) {
  if (!is_on()) return;
  if (!block.trace) {
    block.trace.reset(new BlockTrace);
    block.trace->block = &block;
  }
  const dim3& grid = gridDim;
  block.trace->number = block.index.x + grid.x * (block.index.y + grid.y * block.index.z);
  if (block.trace->launch != traced.number) block.trace->warps.clear();  // another one failed
  block.trace->launch = traced.number;
  begin_clocks(*block.trace);
  begin_shared_shadow(*block.trace);
}

void block_ends(ResidentBlock& block) {
  if (!is_on()) return;
  for (WarpTrace& warp : block.trace->warps) flush_requests(warp);
  record_block_ends();
}

void switched_to(Thread& thread) {
  if (!is_on()) return;
  BlockTrace& block = *block_of(thread).trace;
  auto rank = static_cast<unsigned>(&thread - block.block->threads.data());
  running = {&block, &block.threads[rank], &block.warps[rank / kWarpSize], rank, rank % kWarpSize};
}

void thread_begins(Thread&) {
  if (is_on()) running.thread->callers.clear();
}

void block_met(ResidentBlock& block) {
  if (!is_on()) return;
  meet_block(*block.trace);
  record_barrier(block);
  for (WarpTrace& warp : block.trace->warps) flush_requests(warp);
}

void grid_met(const std::vector<ResidentBlock*>& blocks) {
  if (!is_on()) return;
  meet_grid(blocks);
  for (ResidentBlock* block : blocks) {
    for (WarpTrace& warp : block->trace->warps) flush_requests(warp);
    record_barrier(*block);
  }
}

void warp_met(Thread* lanes, uint32_t which) {
  if (!is_on()) return;
  meet_warp(lanes, which);
  BlockTrace& block = *block_of(lanes[0]).trace;
  auto first = static_cast<size_t>(lanes - block.block->threads.data());
  record_warp_meeting(*block.block, first / kWarpSize);
  if (which == lanes[0].warp->alive) flush_requests(block.warps[first / kWarpSize]);
}

void mbarrier_initialised(const void* barrier, Site site) {
  if (!is_on()) return;
  forget_barriers(barrier, static_cast<const char*>(barrier) + 1);
  access_by_runtime(barrier, 8, Kind::kWrite, site);
}

void image_accessed(const void* begin, size_t bytes, Kind kind, Site site) {
  if (mode() == Mode::kRaces) access_by_runtime(begin, bytes, kind, site);
}

void copy_started(const void* to, const void* from, size_t bytes, size_t valid, Site site) {
  access_by_runtime(from, valid, Kind::kRead, site);
  access_by_runtime(to, bytes, Kind::kWrite, site, true);
}

void copy_done(ResidentBlock& block, unsigned rank, const void* to, size_t bytes, uint32_t clock) {
  if (mode() != Mode::kRaces) return;
  Starter starter{block.trace->number, static_cast<uint16_t>(rank), clock};
  settle(reinterpret_cast<uintptr_t>(to), bytes, &block, starter, clock);
}

// Start work, which is not counted: it is no request of a warp.
Starter work_started(const Spans& spans, Site site) {
  if (mode() != Mode::kRaces && mode() != Mode::kRecord) return {};
  for (const Span& span : spans)
    access_by_runtime(span.begin, span.bytes, span.kind, site, true, true, span.is_mbarrier);
  return {running.block->number, static_cast<uint16_t>(running.rank), running.thread->clock++};
}

void work_done(const Spans& spans, const Starter& starter, uint32_t clock) {
  if (mode() != Mode::kRaces) return;
  for (const Span& span : spans)
    settle(reinterpret_cast<uintptr_t>(span.begin), span.bytes, block_around(span.begin), starter,
           clock);
}

void work_done_at(const void* barrier, const Spans& spans, const Starter& starter) {
  if (mode() != Mode::kRaces) return;
  work_done(spans, starter, starter.clock);
  publish_at(barrier, {starter.block, starter.rank, starter.clock});
}

}  // namespace cudacpu::trace

namespace cudacpu {

void trace_read(const void* address, size_t bytes, Site site) {
  trace::access_by_runtime(address, bytes, trace::Kind::kRead, site);
}
void trace_write(const void* address, size_t bytes, Site site) {
  trace::access_by_runtime(address, bytes, trace::Kind::kWrite, site);
}
void trace_fence() {
  if (trace::looks_for_races()) trace::fence(trace::kDevice);
}
void trace_block_fence() {
  if (trace::looks_for_races()) trace::fence(trace::kBlock);
}
void trace_engine_fence() {
  if (trace::looks_for_races()) trace::fence_for_engine();
}
void trace_mbarrier_fence() {
  if (trace::looks_for_races()) trace::fence_mbarrier_init();
}
void trace_acquire_fence() {
  if (trace::looks_for_races()) trace::acquire_fence();
}
void trace_order(int success, int failure, bool reaches_device) {
  if (!trace::is_tracing()) return;
  auto acquires = [](int order) { return order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE; };
  const bool releases =
      success == __ATOMIC_RELEASE || success == __ATOMIC_ACQ_REL || success == __ATOMIC_SEQ_CST;
  trace::running.thread->next_order = {acquires(success), acquires(failure), releases,
                                       reaches_device ? trace::kDevice : trace::kBlock};
}
bool trace_constants(const void* begin, const void* end) {
  auto bytes = static_cast<const char*>(end) - static_cast<const char*>(begin);
  if (bytes) trace::constants.push_back(trace::range_of(begin, static_cast<size_t>(bytes)));
  return true;
}

}  // namespace cudacpu

// ------------------------------------------------------------------ what the compiler calls

using namespace cudacpu::trace;

#define CUDACPU_PC __builtin_return_address(0)

extern "C" {

void cudacpu_set_trace(int wanted) {
  chosen = static_cast<Mode>(wanted);
}

void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void __tsan_func_entry(const void* caller) {
  if (is_tracing()) running.thread->callers.push_back(caller);
}
void __tsan_func_exit() {
  if (is_tracing() && !running.thread->callers.empty()) running.thread->callers.pop_back();
}

#define CUDACPU_ACCESS(bytes)                                   \
  void __tsan_read##bytes(void* address) {                      \
    on_access(address, bytes, Kind::kRead, false, CUDACPU_PC);  \
  }                                                             \
  void __tsan_write##bytes(void* address) {                     \
    on_access(address, bytes, Kind::kWrite, false, CUDACPU_PC); \
  }                                                             \
  void __tsan_unaligned_read##bytes(void* address) {            \
    on_access(address, bytes, Kind::kRead, false, CUDACPU_PC);  \
  }                                                             \
  void __tsan_unaligned_write##bytes(void* address) {           \
    on_access(address, bytes, Kind::kWrite, false, CUDACPU_PC); \
  }                                                             \
  void __tsan_volatile_read##bytes(void* address) {             \
    on_volatile(address, bytes, Kind::kRead, CUDACPU_PC);       \
  }                                                             \
  void __tsan_volatile_write##bytes(void* address) {            \
    on_volatile(address, bytes, Kind::kWrite, CUDACPU_PC);      \
  }                                                             \
  void __tsan_unaligned_volatile_read##bytes(void* address) {   \
    on_volatile(address, bytes, Kind::kRead, CUDACPU_PC);       \
  }                                                             \
  void __tsan_unaligned_volatile_write##bytes(void* address) {  \
    on_volatile(address, bytes, Kind::kWrite, CUDACPU_PC);      \
  }
CUDACPU_ACCESS(1)
CUDACPU_ACCESS(2)
CUDACPU_ACCESS(4)
CUDACPU_ACCESS(8)
CUDACPU_ACCESS(16)
#undef CUDACPU_ACCESS

void __tsan_read_range(void* address, size_t bytes) {
  on_access(address, bytes, Kind::kRead, false, CUDACPU_PC);
}
void __tsan_write_range(void* address, size_t bytes) {
  on_access(address, bytes, Kind::kWrite, false, CUDACPU_PC);
}

// Calls of these, which backend.ldflags renames.
void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
  on_access(from, bytes, Kind::kRead, false, CUDACPU_PC);
  on_access(to, bytes, Kind::kWrite, false, CUDACPU_PC);
  return memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, size_t bytes) {
  on_access(from, bytes, Kind::kRead, false, CUDACPU_PC);
  on_access(to, bytes, Kind::kWrite, false, CUDACPU_PC);
  return memmove(to, from, bytes);
}
void* __wrap_memset(void* to, int value, size_t bytes) {
  on_access(to, bytes, Kind::kWrite, false, CUDACPU_PC);
  return memset(to, value, bytes);
}

void __tsan_atomic_thread_fence(int) {
  cudacpu::trace_fence();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {}

#define CUDACPU_FETCH(bits, T, name)                                       \
  T __tsan_atomic##bits##_fetch_##name(volatile T* at, T value, int) {     \
    on_atomic(const_cast<T*>(at), sizeof(T), Effect::kUpdate, CUDACPU_PC); \
    return __atomic_fetch_##name(at, value, __ATOMIC_SEQ_CST);             \
  }
#define CUDACPU_SWAP(bits, T, name)                                                            \
  int __tsan_atomic##bits##_compare_exchange_##name(volatile T* at, T* expected, T value, int, \
                                                    int) {                                     \
    bool done = __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,      \
                                            __ATOMIC_SEQ_CST);                                 \
    on_atomic(const_cast<T*>(at), sizeof(T), done ? Effect::kUpdate : Effect::kFailed,         \
              CUDACPU_PC);                                                                     \
    return done;                                                                               \
  }
#define CUDACPU_ATOMIC(bits, T)                                            \
  CUDACPU_FETCH(bits, T, add)                                              \
  CUDACPU_FETCH(bits, T, sub)                                              \
  CUDACPU_FETCH(bits, T, and)                                              \
  CUDACPU_FETCH(bits, T, or)                                               \
  CUDACPU_FETCH(bits, T, xor)                                              \
  CUDACPU_SWAP(bits, T, strong)                                            \
  CUDACPU_SWAP(bits, T, weak)                                              \
  T __tsan_atomic##bits##_load(const volatile T* at, int) {                \
    on_atomic(const_cast<T*>(at), sizeof(T), Effect::kLoad, CUDACPU_PC);   \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                          \
  }                                                                        \
  void __tsan_atomic##bits##_store(volatile T* at, T value, int) {         \
    on_atomic(const_cast<T*>(at), sizeof(T), Effect::kStore, CUDACPU_PC);  \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                         \
  }                                                                        \
  T __tsan_atomic##bits##_exchange(volatile T* at, T value, int) {         \
    on_atomic(const_cast<T*>(at), sizeof(T), Effect::kUpdate, CUDACPU_PC); \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);               \
  }
CUDACPU_ATOMIC(8, uint8_t)
CUDACPU_ATOMIC(16, uint16_t)
CUDACPU_ATOMIC(32, uint32_t)
CUDACPU_ATOMIC(64, uint64_t)
#undef CUDACPU_ATOMIC
#undef CUDACPU_SWAP
#undef CUDACPU_FETCH

}  // extern "C"

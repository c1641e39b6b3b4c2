// Calls of the runtime to the tracer. Only in builds of the variant "trace"; elsewhere, nothing.
//
// There, the compiler calls __tsan_read4 and its like at every access (tracer.cpp). An access is
// checked against those before it (races.cpp, with what is ordered from happens_before.cpp),
// counted (access_counts.cpp), or recorded (access_record.cpp). The launches of such a process run
// on one OS thread, one at a time.
#pragma once

#include <cudacpu/thread.h>

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace cudacpu {

struct Launch;
struct ResidentBlock;

namespace trace {

// The thread that started something asynchronous, and its clock then.
struct Starter {
  uint32_t block;
  uint16_t rank;
  uint32_t clock;
};

enum class Kind : uint8_t { kRead, kWrite, kAtomic };

// The bytes that asynchronous work reads and writes while it is under way.
struct Span {
  const void* begin;
  size_t bytes;
  Kind kind;
  bool is_mbarrier = false;
};
using Spans = std::vector<Span>;

// The bytes of the mbarrier that counts a copy, which relies on them while it is under way: a read,
// so that the mbarrier must have been initialised before, with a fence, and may not be initialised
// again meanwhile.
inline Span mbarrier_span(const uint64_t* barrier) {
  return {barrier, sizeof *barrier, Kind::kRead, true};
}

// Add one, or make the last one longer.
inline void add_span(Spans& spans, const void* begin, size_t bytes, Kind kind) {
  if (!spans.empty()) {
    Span& last = spans.back();
    if (last.kind == kind && static_cast<const char*>(last.begin) + last.bytes == begin) {
      last.bytes += bytes;
      return;
    }
  }
  spans.push_back({begin, bytes, kind});
}

#ifdef CUDACPU_TRACE

struct BlockTrace;  // what is known of a resident block; it belongs to its ResidentBlock
struct DeleteBlockTrace {
  void operator()(BlockTrace* block) const;
};

void launch_begins(Launch& launch);
void launch_ends();
void block_begins(ResidentBlock& block);
void block_ends(ResidentBlock& block);
void thread_begins(Thread& thread);
void switched_to(Thread& thread);

// Record that threads have met: each knows from now on what the others have done before.
void block_met(ResidentBlock& block);
void grid_met(const std::vector<ResidentBlock*>& blocks);
void warp_met(Thread* lanes, uint32_t which);

// Barriers where some arrive and some wait, known by their addresses. The running thread, or lanes
// of its warp, arrive; when a phase ends, those who wait learn what was done before the arrivals.
void arrived_at(const void* barrier);
void warp_arrived_at(const void* barrier, Thread* lanes, uint32_t which);
void phase_ended(const void* barrier);
void waited_at(const void* barrier);
void mbarrier_initialised(const void* barrier, Site site);

// Copies that take place later: the running thread starts one, and it is done for `rank` (a thread
// of its block) at its time `clock`.
uint32_t clock_of_current();
void copy_started(const void* to, const void* from, size_t bytes, size_t valid, Site site);
void copy_done(ResidentBlock& block, unsigned rank, const void* to, size_t bytes, uint32_t clock);
// Start work of TMA or a wgmma, which see the stores of threads only after a fence for
// them.
Starter work_started(const Spans& spans, Site site);
void work_done(const Spans& spans, const Starter& starter, uint32_t clock);
// Record that it is done, for all who wait for the phase of this barrier.
void work_done_at(const void* barrier, const Spans& spans, const Starter& starter);

// Follow device memory of the runtime API that nothing has written yet (unset_memory.cpp).
void follow(const void* begin, size_t bytes);
void follow_no_longer(const void* begin);
// Record that a copy or a fill has written it.
void written(const void* begin, size_t bytes);
// Return the first and the last of these bytes that nothing has written, if they are more than the
// padding of structures.
std::optional<std::pair<size_t, size_t>> unset_part(const void* begin, size_t bytes);

// Record that the running thread has read or written elements of a texture or surface. They are not
// counted: how a GPU arranges them in memory is not known.
void image_accessed(const void* begin, size_t bytes, Kind kind, Site site);

// Return true if accesses are recorded. Then one OS thread runs the launch, and copies are as late
// as they can be, whatever the order of threads.
bool is_on();

#else

inline void launch_begins(Launch&) {}
inline void launch_ends() {}
inline void block_begins(ResidentBlock&) {}
inline void block_ends(ResidentBlock&) {}
inline void thread_begins(Thread&) {}
inline void switched_to(Thread&) {}
inline void block_met(ResidentBlock&) {}
inline void grid_met(const std::vector<ResidentBlock*>&) {}
inline void warp_met(Thread*, uint32_t) {}
inline void arrived_at(const void*) {}
inline void warp_arrived_at(const void*, Thread*, uint32_t) {}
inline void phase_ended(const void*) {}
inline void waited_at(const void*) {}
inline void mbarrier_initialised(const void*, Site) {}
inline uint32_t clock_of_current() {
  return 0;
}
inline void copy_started(const void*, const void*, size_t, size_t, Site) {}
inline void copy_done(ResidentBlock&, unsigned, const void*, size_t, uint32_t) {}
inline Starter work_started(const Spans&, Site) {
  return {};
}
inline void work_done(const Spans&, const Starter&, uint32_t) {}
inline void work_done_at(const void*, const Spans&, const Starter&) {}
inline void follow(const void*, size_t) {}
inline void follow_no_longer(const void*) {}
inline void written(const void*, size_t) {}
inline std::optional<std::pair<size_t, size_t>> unset_part(const void*, size_t) {
  return {};
}
inline void image_accessed(const void*, size_t, Kind, Site) {}
inline bool is_on() {
  return false;
}

#endif

// Return true if the bytes that asynchronous work reads and writes are needed: by the tracer, or in
// builds of the variant "address" by the check when it is started.
inline bool wants_spans() {
#ifdef CUDACPU_ADDRESS
  return true;
#else
  return is_on();
#endif
}

// Return these, if they are needed.
inline Spans spans_of(std::initializer_list<Span> all) {
  return wants_spans() ? Spans(all) : Spans();
}

}  // namespace trace
}  // namespace cudacpu

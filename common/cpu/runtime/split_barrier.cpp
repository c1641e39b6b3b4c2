// Barriers in two halves: a thread arrives, does something else, and waits. Of a cluster, or of a
// block.
#include "runtime.h"

namespace cudacpu {

namespace {

void complete_phase(SplitBarrier& barrier) {
  barrier.arrived = 0;
  ++barrier.phase;
  trace::phase_ended(&barrier);
  worker->make_ready(barrier.waiting);
}

// Return the mark of an arrival at this phase; the phase after cannot end without the thread.
ArrivalPhase arrival_at(uint32_t phase) {
  return phase % 2 ? ArrivalPhase::kOdd : ArrivalPhase::kEven;
}

struct SplitWait {
  Wait wait;
  SplitBarrier& barrier;
  ArrivalPhase& mine;
};

void* wait_for_phase(void* argument, void* stack_pointer) {
  auto& waiting = *static_cast<SplitWait*>(argument);
  Thread& self = *current;
  self.state = ThreadState::kWaiting;
  bool complete = waiting.mine != arrival_at(waiting.barrier.phase);
  waiting.mine = ArrivalPhase::kNone;
  if (complete) {
    // But the last to arrive must not get a head start.
    ThreadList only_self;
    only_self.push_back(&self);
    worker->make_ready(only_self);
  } else {
    waiting.barrier.waiting.push_back(&self);
  }
  return worker->suspend(self, waiting.wait, stack_pointer);
}

// Return the block's split barrier; its first use creates it, with all threads of the block.
BlockSplitBarrier& split_barrier_of_current() {
  ResidentBlock& block = block_of(*current);
  BlockSplitBarrier& split = block.split_barrier;
  if (split.mine.empty()) {
    split.mine.assign(block.threads.size(), ArrivalPhase::kNone);
    split.barrier.alive = block.alive;
  }
  return split;
}

size_t rank_in_block(const Thread& thread) {
  return static_cast<size_t>(&thread - block_of(thread).threads.data());
}

}  // namespace

void arrive(SplitBarrier& barrier, ArrivalPhase& mine, const char* what, Site site) {
  if (mine != ArrivalPhase::kNone)
    trap(site,
         "%s: this thread has arrived before and not waited since; arrivals and waits must "
         "alternate",
         what);
  mine = arrival_at(barrier.phase);
  worker->progress();
  trace::arrived_at(&barrier);
  if (++barrier.arrived == barrier.alive) complete_phase(barrier);
}

void wait(SplitBarrier& barrier, ArrivalPhase& mine, const char* what, Site site) {
  SplitWait wait{{what, site}, barrier, mine};
  cudacpu_suspend(&wait_for_phase, &wait);
  trace::waited_at(&barrier);
}

void leave(SplitBarrier& barrier, ArrivalPhase& mine) {
  --barrier.alive;
  if (mine == arrival_at(barrier.phase)) --barrier.arrived;
  mine = ArrivalPhase::kNone;
  if (barrier.arrived && barrier.arrived == barrier.alive) complete_phase(barrier);
}

std::string describe(const SplitBarrier& barrier, const Thread& thread, const char* whose) {
  for (const Thread* other = barrier.waiting.first; other; other = other->next)
    if (other == &thread)
      return format(", where %llu of the %s's %llu threads have arrived",
                    static_cast<unsigned long long>(barrier.arrived), whose,
                    static_cast<unsigned long long>(barrier.alive));
  return "";
}

// ------------------------------------------------------------------ of a block

void arrive_at_split_barrier(const char* what, Site site) {
  BlockSplitBarrier& split = split_barrier_of_current();
  arrive(split.barrier, split.mine[rank_in_block(*current)], what, site);
}

void wait_at_split_barrier(const char* what, Site site) {
  BlockSplitBarrier& split = split_barrier_of_current();
  ArrivalPhase& mine = split.mine[rank_in_block(*current)];
  if (mine == ArrivalPhase::kNone)
    trap(site, "%s: this thread has not arrived at the block's barrier", what);
  wait(split.barrier, mine, what, site);
}

void leave_split_barrier(Thread& thread) {
  BlockSplitBarrier& split = block_of(thread).split_barrier;
  leave(split.barrier, split.mine[rank_in_block(thread)]);
}

}  // namespace cudacpu

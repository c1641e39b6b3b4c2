// bar.sync and bar.arrive: barriers of some warps of a block.
//
// The lanes of a warp meet first, as in every warp collective; then the warp arrives as a whole.
#include "runtime.h"

#include <cudacpu/ptx.h>

namespace cudacpu {

namespace {

struct NamedArrival {
  unsigned id;
  unsigned threads;
  uint32_t phase;        // of the barrier, when this warp arrived
  bool divided = false;  // the lanes of the warp do not want the same
  unsigned expected;     // how many threads the first warp to arrive named
};

void arrive_at_named_barrier(Thread* lanes, uint32_t arrived) {
  Thread& first = lanes[__builtin_ctz(arrived)];
  const auto request = *static_cast<const NamedArrival*>(first.exchange);
  NamedBarrier& barrier = block_of(first).named_barriers[request.id];
  if (barrier.arrived == 0) barrier.expected = request.threads;
  bool divided = false;
  for (uint32_t left = arrived; left; left &= left - 1) {
    const auto& lane = *static_cast<const NamedArrival*>(lanes[__builtin_ctz(left)].exchange);
    divided = divided || lane.id != request.id || lane.threads != request.threads;
  }
  for (uint32_t left = arrived; left; left &= left - 1) {
    auto& lane = *static_cast<NamedArrival*>(lanes[__builtin_ctz(left)].exchange);
    lane.phase = barrier.phase;
    lane.divided = divided;
    lane.expected = barrier.expected;
  }
  if (divided || request.threads != barrier.expected) return;
  trace::warp_arrived_at(&barrier, lanes, arrived);
  barrier.arrived += kWarpSize;  // a warp counts as a whole, even if lanes have returned
  if (barrier.arrived < barrier.expected) return;
  barrier.arrived = 0;
  ++barrier.phase;
  trace::phase_ended(&barrier);
  worker->make_ready(barrier.waiting);
}

const Operation kBarrierSync{"bar.sync", arrive_at_named_barrier};
const Operation kBarrierArrive{"bar.arrive", arrive_at_named_barrier};

NamedArrival arrive(const Operation& operation, int id, int threads, Site site) {
  ResidentBlock& block = block_of(*current);
  if (id < 1 || id > 15)
    trap(site, "%s: barrier %d; allowed are 1 to 15, and 0 is __syncthreads", operation.name, id);
  size_t limit = block.warps.size() * kWarpSize;
  if (threads <= 0 || threads % 32 || static_cast<size_t>(threads) > limit)
    trap(site, "%s: barrier %d for %d threads; it must be a multiple of 32, up to the block's %zu",
         operation.name, id, threads, limit);
  block.has_named_barriers = true;
  NamedArrival arrival{static_cast<unsigned>(id), static_cast<unsigned>(threads), 0, false, 0};
  collect(0xffffffffu, operation, &arrival, site);
  if (arrival.divided)
    trap(site, "%s: the lanes of a warp name different barriers or numbers of threads",
         operation.name);
  if (arrival.expected != arrival.threads)
    trap(site, "%s: barrier %d for %d threads, while another warp there says %u", operation.name,
         id, threads, arrival.expected);
  return arrival;
}

struct NamedWait {
  Wait wait;
  NamedBarrier& barrier;
  uint32_t phase;
};

void* wait_at_named_barrier(void* argument, void* stack_pointer) {
  auto& waiting = *static_cast<NamedWait*>(argument);
  Thread& self = *current;
  self.state = ThreadState::kWaiting;
  if (waiting.barrier.phase == waiting.phase) {
    waiting.barrier.waiting.push_back(&self);
  } else {
    // Complete already; but the last warp must not get a head start.
    ThreadList only_self;
    only_self.push_back(&self);
    worker->make_ready(only_self);
  }
  return worker->suspend(self, waiting.wait, stack_pointer);
}

}  // namespace

void named_barrier_sync(int id, int threads, Site site) {
  NamedArrival arrival = arrive(kBarrierSync, id, threads, site);
  NamedWait wait{{"bar.sync", site}, block_of(*current).named_barriers[arrival.id], arrival.phase};
  cudacpu_suspend(&wait_at_named_barrier, &wait);
  trace::waited_at(&wait.barrier);
}

void named_barrier_arrive(int id, int threads, Site site) {
  arrive(kBarrierArrive, id, threads, site);
}

void forget_named_barriers(ResidentBlock& block) {
  for (NamedBarrier& barrier : block.named_barriers) barrier = NamedBarrier{};
  block.has_named_barriers = false;
}

std::string describe_named_barrier(const Thread& thread) {
  const ResidentBlock& block = block_of(thread);
  for (unsigned id = 1; id < 16; ++id) {
    const NamedBarrier& barrier = block.named_barriers[id];
    for (const Thread* other = barrier.waiting.first; other; other = other->next)
      if (other == &thread)
        return format(", barrier %u, where %u of %u threads have arrived", id, barrier.arrived,
                      barrier.expected);
  }
  return "";
}

}  // namespace cudacpu

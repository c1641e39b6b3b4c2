// __syncthreads and its counting forms, and the barrier of a whole grid.
#include "runtime.h"

namespace cudacpu {

void* arrive_at_block_barrier(void* argument, void* stack_pointer) {
  auto& arrival = *static_cast<const Arrival*>(argument);
  Thread& self = *current;
  ResidentBlock& block = block_of(self);
  Barrier& barrier = block.barrier;
  if (barrier.arrived == 0) {
    barrier.first = &arrival;
    barrier.kind = arrival.kind;
    barrier.predicates = 0;
  } else if (barrier.kind != arrival.kind || !same(barrier.first->wait.site, arrival.wait.site)) {
    const Wait& other = barrier.first->wait;
    trap(arrival.wait.site,
         "divergent barrier: this thread is in %s while %u other thread(s) of its block wait in %s "
         "at %s:%d; all threads of a block must reach the same barrier",
         arrival.wait.what, barrier.arrived, other.what, other.site.file, other.site.line);
  }
  ++barrier.arrived;
  barrier.predicates += arrival.predicate;
  // The last to arrive queues behind the others: it must not get a head start in any order.
  barrier.waiting.push_back(&self);
  self.state = ThreadState::kWaiting;
  if (barrier.arrived == block.alive) release_barrier(block);
  return worker->suspend(self, arrival.wait, stack_pointer);
}

namespace {

void name_incomplete_barrier(const Barrier& barrier) {
  Launch& launch = *worker->launch();
  if (barrier.arrived == launch.threads || launch.named_a_barrier.exchange(true)) return;
  const Wait& wait = barrier.first->wait;
  fprintf(
      stderr,
      "CUDA on CPU: divergent barrier: %u of %u threads of a block had returned when the others "
      "met in %s at %s:%d; all threads of a block must reach it\n%s\n",
      launch.threads - barrier.arrived, launch.threads, wait.what, wait.site.file, wait.site.line,
      launch.describe().c_str());
}

}  // namespace

void release_barrier(ResidentBlock& block) {
  Barrier& barrier = block.barrier;
  if (barrier.arrived != worker->launch()->threads) [[unlikely]]
    note_early_return(block, barrier);
  if (settings().strict_barriers.load(std::memory_order_relaxed)) name_incomplete_barrier(barrier);
  switch (barrier.kind) {
    case BarrierKind::kCount:
      block.barrier_result = static_cast<int>(barrier.predicates);
      break;
    case BarrierKind::kAnd:
      block.barrier_result = barrier.predicates == barrier.arrived;
      break;
    case BarrierKind::kOr:
      block.barrier_result = barrier.predicates > 0;
      break;
    case BarrierKind::kPlain:
      break;
  }
  barrier.arrived = 0;
  trace::block_met(block);
  worker->make_ready(barrier.waiting);
}

void* arrive_at_grid_barrier(void* wait, void* stack_pointer) {
  return worker->arrive_at_grid_barrier(*static_cast<const Wait*>(wait), stack_pointer);
}

// Blocks may arrive from different places in the source, as they may on the hardware.
void* Worker::arrive_at_grid_barrier(const Wait& wait, void* stack_pointer) {
  if (!launch_->config.cooperative)
    trap(wait.site,
         "grid.sync() in a kernel that was not launched cooperatively: its blocks need not be "
         "resident at the same time; launch it with cudaLaunchCooperativeKernel");
  grid_.waiting.push_back(current);
  current->state = ThreadState::kWaiting;
  release_grid_barrier();
  return suspend(*current, wait, stack_pointer);
}

// Threads that have returned count as arrived, but for the first of each block: on the hardware, it
// is the one that reports its block to the others. They would wait for ever, and here that is a
// deadlock.
void Worker::release_grid_barrier() {
  if (grid_.waiting.size != grid_.alive || grid_.absent) return;
  trace::grid_met(live_);
  make_ready(grid_.waiting);
}

bool launched_cooperatively() {
  return worker->launch()->config.cooperative;
}

}  // namespace cudacpu

// __syncthreads and its counting forms.
#include "runtime.h"

namespace cudacpu {

namespace {

const char* name(BarrierKind kind) {
  switch (kind) {
    case BarrierKind::kCount:
      return "__syncthreads_count";
    case BarrierKind::kAnd:
      return "__syncthreads_and";
    case BarrierKind::kOr:
      return "__syncthreads_or";
    default:
      return "__syncthreads";
  }
}

bool same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

}  // namespace

int sync_block(BarrierKind kind, bool predicate, Site site) {
  Thread& self = *current;
  ResidentBlock& block = block_of(self);
  Barrier& barrier = block.barrier;
  if (barrier.arrived == 0) {
    barrier.kind = kind;
    barrier.site = site;
    barrier.predicates = 0;
  } else if (!same(barrier.site, site) || barrier.kind != kind) {
    trap(site,
         "divergent barrier: this thread is in %s while %u other thread(s) of its block wait in %s "
         "at %s:%d; all threads of a block must reach the same barrier",
         name(kind), barrier.arrived, name(barrier.kind), barrier.site.file, barrier.site.line);
  }
  ++barrier.arrived;
  barrier.predicates += predicate;
  barrier.waiting.push_back(&self);
  if (barrier.arrived < block.alive) {
    worker->park(name(kind), site);
  } else {
    // The last to arrive queues behind the others: it must not get a head start in any order.
    release_barrier(barrier);
    worker->switch_away();
  }
  return barrier.result;
}

void release_barrier(Barrier& barrier) {
  switch (barrier.kind) {
    case BarrierKind::kCount:
      barrier.result = static_cast<int>(barrier.predicates);
      break;
    case BarrierKind::kAnd:
      barrier.result = barrier.predicates == barrier.arrived;
      break;
    case BarrierKind::kOr:
      barrier.result = barrier.predicates > 0;
      break;
    default:
      break;
  }
  barrier.arrived = 0;
  worker->make_ready(barrier.waiting);
}

}  // namespace cudacpu

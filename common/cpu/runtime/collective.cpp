// Warp collectives: lanes of a mask meet, the last one computes for all.
#include "runtime.h"

namespace cudacpu {

namespace {

// Calls f(lane) for each bit.
template <class F>
void each(uint32_t lanes, F f) {
  for (; lanes; lanes &= lanes - 1) f(static_cast<unsigned>(__builtin_ctz(lanes)));
}

// What an undefined value is: in another order of threads another one, so that a result shows that
// it depends on it.
uint64_t undefined() {
  return worker->launch()->schedule.threads == Order::kForward ? ~uint64_t{0} : 0x4b4b4b4b4b4b4b4b;
}

std::atomic<bool> shuffle_noted{false};
std::string shuffle_text;  // of the first lane that read one that its mask left out

void compute_shuffle(Thread* lanes, uint32_t arrived) {
  each(arrived, [&](unsigned lane) {
    auto& mine = *static_cast<Shuffle*>(lanes[lane].exchange);
    if (arrived >> mine.source & 1) {
      auto& theirs = *static_cast<Shuffle*>(lanes[mine.source].exchange);
      mine.result[0] = theirs.value[0];
      mine.result[1] = theirs.value[1];
    } else {
      mine.result[0] = mine.result[1] = undefined();
    }
  });
}

void compute_vote(Thread* lanes, uint32_t arrived) {
  uint32_t ballot = 0;
  each(arrived, [&](unsigned lane) {
    ballot |= uint32_t{static_cast<Vote*>(lanes[lane].exchange)->predicate} << lane;
  });
  each(arrived, [&](unsigned lane) {
    auto& vote = *static_cast<Vote*>(lanes[lane].exchange);
    vote.ballot = ballot;
    vote.arrived = arrived;
  });
}

void compute_match(Thread* lanes, uint32_t arrived) {
  each(arrived, [&](unsigned lane) {
    auto& mine = *static_cast<Match*>(lanes[lane].exchange);
    mine.same = 0;
    each(arrived, [&](unsigned other) {
      auto& theirs = *static_cast<Match*>(lanes[other].exchange);
      mine.same |= uint32_t{theirs.value == mine.value} << other;
    });
    mine.all_the_same = mine.same == arrived;
  });
}

template <class T, class Combine>
void reduce_lanes(Thread* lanes, uint32_t arrived, Combine combine) {
  auto value = [&](unsigned lane) -> uint32_t& {
    return static_cast<Reduce*>(lanes[lane].exchange)->value;
  };
  T result = static_cast<T>(value(static_cast<unsigned>(__builtin_ctz(arrived))));
  each(arrived & (arrived - 1),
       [&](unsigned lane) { result = combine(result, static_cast<T>(value(lane))); });
  each(arrived, [&](unsigned lane) { value(lane) = static_cast<uint32_t>(result); });
}

template <class T>
void compute_min(Thread* lanes, uint32_t arrived) {
  reduce_lanes<T>(lanes, arrived, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
void compute_max(Thread* lanes, uint32_t arrived) {
  reduce_lanes<T>(lanes, arrived, [](T a, T b) { return a < b ? b : a; });
}
void compute_add(Thread* lanes, uint32_t arrived) {
  reduce_lanes<uint32_t>(lanes, arrived, [](uint32_t a, uint32_t b) { return a + b; });
}
void compute_and(Thread* lanes, uint32_t arrived) {
  reduce_lanes<uint32_t>(lanes, arrived, [](uint32_t a, uint32_t b) { return a & b; });
}
void compute_or(Thread* lanes, uint32_t arrived) {
  reduce_lanes<uint32_t>(lanes, arrived, [](uint32_t a, uint32_t b) { return a | b; });
}
void compute_xor(Thread* lanes, uint32_t arrived) {
  reduce_lanes<uint32_t>(lanes, arrived, [](uint32_t a, uint32_t b) { return a ^ b; });
}
void compute_nothing(Thread*, uint32_t) {}

// Computes, takes the entry out of the table, and lets the lanes run next, lowest first (highest
// first in reverse order), before any other warp.
void complete(Warp& warp, Collective& entry) {
  uint32_t arrived = entry.arrived;
  entry.first->operation.compute(warp.lanes, arrived);
  trace::warp_met(warp.lanes, arrived);
  entry = warp.table[--warp.pending];
  worker->progress();
  Order order = worker->launch()->schedule.threads;
  if (order == Order::kReverse) {
    each(arrived, [&](unsigned lane) { worker->make_ready_first(warp.lanes[lane]); });
    return;
  }
  Thread* lanes[kWarpSize];
  unsigned count = 0;
  each(arrived, [&](unsigned lane) { lanes[count++] = &warp.lanes[lane]; });
  if (order == Order::kRandom)
    for (unsigned i = count; i > 1; --i) std::swap(lanes[i - 1], lanes[worker->random() % i]);
  while (count > 0) worker->make_ready_first(*lanes[--count]);
}

}  // namespace

void note_shuffle_outside(uint32_t mask, uint32_t source, const Operation& operation, Site site) {
  if (shuffle_noted.exchange(true, std::memory_order_relaxed)) return;
  shuffle_text = format(
      "%s:%d: lane %u reads lane %u by %s, and the mask 0x%08x leaves that lane out: the value is "
      "undefined",
      site.file, site.line, current->lane, source, operation.name, mask);
}

const Operation kShuffle{"__shfl_sync", compute_shuffle};
const Operation kShuffleUp{"__shfl_up_sync", compute_shuffle};
const Operation kShuffleDown{"__shfl_down_sync", compute_shuffle};
const Operation kShuffleXor{"__shfl_xor_sync", compute_shuffle};
const Operation kBallot{"__ballot_sync", compute_vote};
const Operation kAny{"__any_sync", compute_vote};
const Operation kAll{"__all_sync", compute_vote};
const Operation kSyncWarp{"__syncwarp", compute_nothing};
const Operation kMatchAny{"__match_any_sync", compute_match};
const Operation kMatchAll{"__match_all_sync", compute_match};
const Operation kReduceAdd{"__reduce_add_sync", compute_add};
const Operation kReduceMin{"__reduce_min_sync", compute_min<int32_t>};
const Operation kReduceMax{"__reduce_max_sync", compute_max<int32_t>};
const Operation kReduceMinUnsigned{"__reduce_min_sync", compute_min<uint32_t>};
const Operation kReduceMaxUnsigned{"__reduce_max_sync", compute_max<uint32_t>};
const Operation kReduceAnd{"__reduce_and_sync", compute_and};
const Operation kReduceOr{"__reduce_or_sync", compute_or};
const Operation kReduceXor{"__reduce_xor_sync", compute_xor};

void* meet_lanes(void* argument, void* stack_pointer) {
  auto& meeting = *static_cast<const Meeting*>(argument);
  const Site& site = meeting.wait.site;
  const uint32_t mask = meeting.mask;
  Thread& self = *current;
  Warp& warp = *self.warp;
  uint32_t me = uint32_t{1} << self.lane;
  if (!(mask & me))
    trap(site, "%s: the calling lane %u is not in the mask 0x%08x", meeting.wait.what, self.lane,
         mask);
  self.exchange = meeting.exchange;
  uint32_t expected = mask & warp.alive;
  if (expected == me) {
    meeting.operation.compute(warp.lanes, me);
    return stack_pointer;
  }
  Collective* entry = warp.table;
  Collective* end = warp.table + warp.pending;
  while (entry != end && entry->mask != mask) ++entry;
  if (entry == end) {
    *entry = {mask, 0, &meeting};
    ++warp.pending;
  } else if (&entry->first->operation != &meeting.operation) {
    const Wait& other = entry->first->wait;
    trap(site,
         "lane %u is in %s while lanes 0x%08x of the same mask 0x%08x wait in %s at %s:%d; all "
         "lanes "
         "of a mask must call the same function",
         self.lane, meeting.wait.what, entry->arrived, mask, other.what, other.site.file,
         other.site.line);
  }
  entry->arrived |= me;
  self.state = ThreadState::kWaiting;
  if (entry->arrived == expected) complete(warp, *entry);
  return worker->suspend(self, meeting.wait, stack_pointer);
}

void complete_collectives(Warp& warp) {
  for (unsigned i = 0; i < warp.pending;) {
    Collective& entry = warp.table[i];
    if (entry.arrived == (entry.mask & warp.alive))
      complete(warp, entry);  // and look at this place again, for another has moved there
    else
      ++i;
  }
}

}  // namespace cudacpu

// The first shuffle that read a lane outside of its mask, or "".
extern "C" const char* cudacpu_shuffle_outside() {
  return cudacpu::shuffle_text.c_str();
}

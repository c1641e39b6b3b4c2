// Warp collectives: lanes of a mask meet, the last one computes for all.
#include "runtime.h"

namespace cudacpu {

namespace {

// Call f(lane) for each bit.
template <class F>
void each(uint32_t lanes, F f) {
  for (; lanes; lanes &= lanes - 1) f(static_cast<unsigned>(__builtin_ctz(lanes)));
}

// Return an undefined value: it changes with the order of threads, so that a result that depends on
// it changes, too.
uint64_t undefined() {
  return worker->launch()->schedule.threads == Order::kForward ? ~uint64_t{0} : 0x4b4b4b4b4b4b4b4b;
}

std::atomic<bool> shuffle_noted{false};
std::string shuffle_text;  // of the first lane that read one that did not take part

void compute_shuffle(Thread* lanes, uint32_t arrived) {
  each(arrived, [&](unsigned lane) {
    auto& mine = *static_cast<Shuffle*>(lanes[lane].exchange);
    mine.undefined = !(arrived >> mine.source & 1);
    if (!mine.undefined) {
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

// Return "lane 3", "lanes 16 to 31", or "lanes 0x80000001".
std::string in_words(uint32_t lanes) {
  const int count = __builtin_popcount(lanes), first = __builtin_ctz(lanes);
  const int last = 31 - __builtin_clz(lanes);
  if (count == 1) return format("lane %d", first);
  if (last - first + 1 == count) return format("lanes %d to %d", first, last);
  return format("lanes 0x%08x", lanes);
}

// The lanes of a mask that the block has, and that returned without making the call.
uint32_t lanes_that_returned(const Meeting& meeting, const Thread& thread, uint32_t arrived) {
  const auto& threads = block_of(thread).threads;
  const auto left = static_cast<size_t>(threads.data() + threads.size() - thread.warp->lanes);
  const uint32_t exist = left >= kWarpSize ? ~0u : (1u << left) - 1;
  return meeting.mask & exist & ~arrived;
}

// Report the lanes of a shuffle's mask that have returned, if that is checked: nothing orders their
// return before the call, and CUDA demands the call of each lane that is named and has not
// returned. Return true if the launch ends for it.
bool refuse_mask(const Meeting& meeting, const Thread& thread, uint32_t arrived) {
  if (meeting.mask == arrived || !meeting.operation.shuffles) return false;
  const Masks masks = settings().masks.load(std::memory_order_relaxed);
  if (masks == Masks::kAny) return false;
  const uint32_t returned = lanes_that_returned(meeting, thread, arrived);
  if (!returned) return false;
  Launch& launch = *worker->launch();
  const Wait& wait = meeting.wait;
  const std::string text =
      format(
          "%s: the mask 0x%08x names %s, which returned and never made this call; a mask names "
          "the lanes that make the call: find them by __ballot_sync while all are there\n"
          "  at %s:%d\n",
          wait.what, meeting.mask, in_words(returned).c_str(), wait.site.file, wait.site.line) +
      describe(thread);
  if (masks == Masks::kEndLaunch) {
    launch.fail(Stop::kFailed, text);
    return true;
  }
  if (!launch.named_a_mask.exchange(true))
    fprintf(stderr, "CUDA on CPU: %s%s\n", text.c_str(), launch.describe().c_str());
  return false;
}

// Compute, take the entry out of the table, and let the lanes run next, lowest first (highest first
// in reverse order), before any other warp.
void complete(Warp& warp, Collective& entry) {
  uint32_t arrived = entry.arrived;
  const Thread& first = warp.lanes[__builtin_ctz(arrived)];
  if (refuse_mask(*entry.first, first, arrived)) [[unlikely]]
    return;
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

void note_undefined_shuffle(uint32_t mask, uint32_t source, const Operation& operation, Site site) {
  if (shuffle_noted.exchange(true, std::memory_order_relaxed)) return;
  const size_t threads = block_of(*current).threads.size();
  const auto rank = static_cast<size_t>(current - block_of(*current).threads.data());
  std::string why = "which has returned";
  if (!(mask >> source & 1))
    why = format("which the mask 0x%08x leaves out", mask);
  else if (rank / kWarpSize * kWarpSize + source >= threads)
    why = format("which the mask 0x%08x names, and a block of %zu threads does not have", mask,
                 threads);
  shuffle_text = format("%s:%d: lane %u reads lane %u by %s, %s: the value is undefined", site.file,
                        site.line, current->lane, source, operation.name, why.c_str());
}

void forget_undefined_shuffle() {
  shuffle_text.clear();
  shuffle_noted.store(false);
}

const Operation kShuffle{"__shfl_sync", compute_shuffle, true};
const Operation kShuffleUp{"__shfl_up_sync", compute_shuffle, true};
const Operation kShuffleDown{"__shfl_down_sync", compute_shuffle, true};
const Operation kShuffleXor{"__shfl_xor_sync", compute_shuffle, true};
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
    if (refuse_mask(meeting, self, me)) return worker->next_is_main();
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
  for (unsigned i = 0; i < warp.pending && !worker->launch()->stopping();) {
    Collective& entry = warp.table[i];
    if (entry.arrived == (entry.mask & warp.alive))
      complete(warp, entry);  // and look at this place again, for another has moved there
    else
      ++i;
  }
}

}  // namespace cudacpu

// Return the first shuffle that read a lane that did not take part, or "".
extern "C" const char* cudacpu_undefined_shuffle() {
  return cudacpu::shuffle_text.c_str();
}

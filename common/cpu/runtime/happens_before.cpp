// Clocks and what threads know of each other: see happens_before.h.
#include "happens_before.h"

#include <map>
#include <unordered_map>

namespace cudacpu::trace {

Running running;

namespace {

// What was made known by atomic and volatile stores to each address.
std::unordered_map<const void*, Knowledge>& released() {
  static auto& instance = *new std::unordered_map<const void*, Knowledge>;
  return instance;
}

bool precedes(const Known& a, const Known& b) {
  return a.block != b.block ? a.block < b.block : a.rank < b.rank;
}

// What a thread has done, and knows of its block beyond `known`.
void append_own(KnownList& list, const BlockTrace& block, unsigned rank) {
  unsigned first = rank / kWarpSize * kWarpSize;
  const uint32_t* lanes = block.warps[rank / kWarpSize].lanes[rank % kWarpSize];
  for (unsigned lane = 0; lane < kWarpSize && first + lane < block.threads.size(); ++lane) {
    uint32_t clock = first + lane == rank ? block.threads[rank].clock : lanes[lane];
    if (clock >= block.floor)
      list.push_back({block.number, static_cast<uint16_t>(first + lane), clock});
  }
  if (block.floor > 0) list.push_back({block.number, kAllThreads, block.floor - 1});
}

// All that a thread knows and has done.
Knowledge snapshot(const BlockTrace& block, unsigned rank) {
  auto own = std::make_shared<KnownList>();
  append_own(*own, block, rank);
  return join(own, block.threads[rank].known);
}

Knowledge join_all(const std::vector<Knowledge>& parts) {
  Knowledge result;
  for (const Knowledge& part : parts) result = join(result, part);
  return result;
}

// Adds to `parts` unless the same list is there; threads mostly share one.
void add_part(std::vector<Knowledge>& parts, const Knowledge& part) {
  if (part && std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
}

unsigned rank_of(const Thread& thread) {
  return static_cast<unsigned>(&thread - block_of(thread).threads.data());
}

// What those who arrived at a barrier in this phase have made known, and in the last one all did.
struct BarrierKnowledge {
  KnownList arrivals;
  std::vector<Knowledge> known;
  Knowledge complete;
};
std::map<const void*, BarrierKnowledge>& barriers() {
  static auto& instance = *new std::map<const void*, BarrierKnowledge>;
  return instance;
}

void arrive(const void* barrier, BlockTrace& block, unsigned rank) {
  BarrierKnowledge& here = barriers()[barrier];
  append_own(here.arrivals, block, rank);
  add_part(here.known, block.threads[rank].known);
  ++block.threads[rank].clock;
}

// Of a sorted list: keeps the latest clock of each thread, and only what the entry for all threads
// of its block, which comes last, does not cover.
void compress(KnownList& list) {
  size_t kept = 0, begin = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    Known entry = list[i];
    if (kept == begin || list[begin].block != entry.block) begin = kept;
    if (kept > begin && list[kept - 1].rank == entry.rank) {
      entry.clock = std::max(entry.clock, list[--kept].clock);
    }
    if (entry.rank == kAllThreads) {
      size_t end = kept;
      kept = begin;
      for (size_t k = begin; k < end; ++k)
        if (list[k].clock > entry.clock) list[kept++] = list[k];
    }
    list[kept++] = entry;
  }
  list.resize(kept);
}

}  // namespace

Knowledge join(const Knowledge& a, const Knowledge& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto result = std::make_shared<KnownList>(a->size() + b->size());
  std::merge(a->begin(), a->end(), b->begin(), b->end(), result->begin(), precedes);
  compress(*result);
  return result;
}

bool is_known(uint32_t block, unsigned rank, uint32_t clock) {
  const BlockTrace& mine = *running.block;
  if (block == mine.number) {
    if (clock < mine.floor) return true;
    if (rank / kWarpSize == running.rank / kWarpSize &&
        clock <= running.warp->lanes[running.lane][rank % kWarpSize])
      return true;
  }
  if (!running.thread->known) return false;
  const KnownList& known = *running.thread->known;
  for (uint16_t key : {static_cast<uint16_t>(rank), kAllThreads}) {
    Known wanted{block, key, 0};
    auto found = std::lower_bound(known.begin(), known.end(), wanted, precedes);
    if (found != known.end() && found->block == block && found->rank == key &&
        clock <= found->clock)
      return true;
  }
  return false;
}

// ------------------------------------------------------------------ threads meet

void begin_clocks(BlockTrace& block) {
  block.floor = 0;
  block.threads.resize(block.block->threads.size());
  block.warps.resize(block.block->warps.size());
  for (ThreadTrace& thread : block.threads) {
    thread.clock = 1;
    thread.known = thread.fenced = nullptr;
  }
  for (WarpTrace& warp : block.warps) memset(warp.lanes, 0, sizeof warp.lanes);
  forget_barriers(block.block, block.block + 1);  // its named barriers
}

namespace {

// All threads of these blocks have met.
void meet(const std::vector<BlockTrace*>& blocks) {
  std::vector<Knowledge> known, fenced;
  for (BlockTrace* block : blocks) {
    uint32_t latest = block->floor;
    for (ThreadTrace& thread : block->threads) {
      latest = std::max(latest, thread.clock);
      add_part(known, thread.known);
      add_part(fenced, thread.fenced);
    }
    block->floor = latest + 1;
    if (blocks.size() > 1)
      add_part(known, std::make_shared<KnownList>(
                          KnownList{{block->number, kAllThreads, block->floor - 1}}));
  }
  Knowledge all_known = join_all(known), all_fenced = join_all(fenced);
  for (BlockTrace* block : blocks) {
    for (ThreadTrace& thread : block->threads) {
      thread.clock = block->floor;
      thread.known = all_known;
      thread.fenced = all_fenced;
    }
  }
}

}  // namespace

void meet_block(BlockTrace& block) {
  meet({&block});
}

void meet_grid(const std::vector<ResidentBlock*>& blocks) {
  std::vector<BlockTrace*> all;
  for (ResidentBlock* block : blocks) all.push_back(block->trace.get());
  meet(all);
}

void meet_warp(Thread* lanes, uint32_t which) {
  BlockTrace& block = *block_of(lanes[0]).trace;
  unsigned first = rank_of(lanes[0]);
  WarpTrace& warp = block.warps[first / kWarpSize];
  alignas(32) uint32_t joined[kWarpSize] = {};
  std::vector<Knowledge> known, fenced;
  for (uint32_t left = which; left; left &= left - 1) {
    unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
    ThreadTrace& thread = block.threads[first + lane];
    warp.lanes[lane][lane] = thread.clock++;
    for (unsigned i = 0; i < kWarpSize; ++i) joined[i] = std::max(joined[i], warp.lanes[lane][i]);
    add_part(known, thread.known);
    add_part(fenced, thread.fenced);
  }
  Knowledge all_known = join_all(known), all_fenced = join_all(fenced);
  for (uint32_t left = which; left; left &= left - 1) {
    unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
    ThreadTrace& thread = block.threads[first + lane];
    memcpy(warp.lanes[lane], joined, sizeof joined);
    if (thread.known != all_known) thread.known = all_known;
    if (thread.fenced != all_fenced) thread.fenced = all_fenced;
  }
}

// ------------------------------------------------------------------ barriers that are objects

void arrived_at(const void* barrier) {
  if (is_on()) arrive(barrier, *running.block, running.rank);
}

void warp_arrived_at(const void* barrier, Thread* lanes, uint32_t which) {
  if (!is_on()) return;
  for (uint32_t left = which; left; left &= left - 1) {
    const Thread& lane = lanes[__builtin_ctz(left)];
    arrive(barrier, *block_of(lane).trace, rank_of(lane));
  }
}

void publish_at(const void* barrier, const Known& access) {
  barriers()[barrier].arrivals.push_back(access);
}

void phase_ended(const void* barrier) {
  if (!is_on()) return;
  BarrierKnowledge& here = barriers()[barrier];
  auto arrivals = std::make_shared<KnownList>(std::move(here.arrivals));
  std::sort(arrivals->begin(), arrivals->end(), precedes);
  compress(*arrivals);
  add_part(here.known, arrivals);
  here.complete = join_all(here.known);
  here.arrivals.clear();
  here.known.clear();
}

void waited_at(const void* barrier) {
  if (!is_on()) return;
  ThreadTrace& thread = *running.thread;
  thread.known = join(thread.known, barriers()[barrier].complete);
}

void forget_barriers(const void* begin, const void* end) {
  barriers().erase(barriers().lower_bound(begin), barriers().lower_bound(end));
}

uint32_t clock_of_current() {
  return is_on() ? running.thread->clock : 0;
}

// ------------------------------------------------------------------ fences and atomics

// What was done before a fence is known to whoever sees a later atomic or volatile store. Seeing it
// is enough: the fence that the reader needs, too, is not asked for.
void fence() {
  running.thread->fenced = snapshot(*running.block, running.rank);
  ++running.thread->clock;
}

void released_at(const void* address, bool replaces) {
  const Knowledge& fenced = running.thread->fenced;
  if (!fenced && !replaces) return;  // as most atomics: they only count
  Knowledge& here = released()[address];
  here = replaces ? fenced : join(here, fenced);
}

void acquired_at(const void* address) {
  auto found = released().find(address);
  ThreadTrace& thread = *running.thread;
  if (found != released().end()) thread.known = join(thread.known, found->second);
}

void forget_released() {
  released().clear();
  barriers().clear();
}

}  // namespace cudacpu::trace

// Clocks and what threads know of each other: see happens_before.h.
#include "happens_before.h"

#include <map>
#include <unordered_map>

namespace cudacpu::trace {

Running running;

namespace {

// Knowledge released by atomic and volatile stores to an address: to all, and to each block.
struct Released {
  Knowledge to_all;
  std::unordered_map<uint32_t, Knowledge> to_block;
};
std::unordered_map<const void*, Released>& released() {
  static auto& instance = *new std::unordered_map<const void*, Released>;
  return instance;
}

// The updates of each address, in the order in which they took place.
constexpr size_t kMostUpdates = size_t{1} << 20;  // of all addresses together
std::unordered_map<const void*, std::vector<Update>>& updates() {
  static auto& instance = *new std::unordered_map<const void*, std::vector<Update>>;
  return instance;
}
size_t updates_kept = 0;

bool precedes(const Known& a, const Known& b) {
  return a.block != b.block ? a.block < b.block : a.rank < b.rank;
}

// Append the accesses of a thread, and those of its block that it knows beyond `known`.
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

// Return all that a thread knows and has done.
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

// Add to `parts` unless the same list is there; threads mostly share one.
void add_part(std::vector<Knowledge>& parts, const Knowledge& part) {
  if (part && std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
}

unsigned rank_of(const Thread& thread) {
  return static_cast<unsigned>(&thread - block_of(thread).threads.data());
}

// Knowledge of the threads that arrived at a barrier in this phase, and of all in the last phase.
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

// Compress a sorted list: keep the latest clock of each thread, and drop entries that the one for
// all threads of its block, which comes last, covers.
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

namespace {

// Return true if the running thread knows the access, given this knowledge.
bool is_in(uint32_t floor, const uint32_t (&lanes)[kWarpSize], const Knowledge& others,
           uint32_t block, unsigned rank, uint32_t clock) {
  if (block == running.block->number) {
    if (clock < floor) return true;
    if (rank / kWarpSize == running.rank / kWarpSize && clock <= lanes[rank % kWarpSize])
      return true;
  }
  if (!others) return false;
  const KnownList& known = *others;
  for (uint16_t key : {static_cast<uint16_t>(rank), kAllThreads}) {
    Known wanted{block, key, 0};
    auto found = std::lower_bound(known.begin(), known.end(), wanted, precedes);
    if (found != known.end() && found->block == block && found->rank == key &&
        clock <= found->clock)
      return true;
  }
  return false;
}

}  // namespace

bool is_known(uint32_t block, unsigned rank, uint32_t clock) {
  return is_in(running.block->floor, running.warp->lanes[running.lane], running.thread->known,
               block, rank, clock);
}

// ------------------------------------------------------------------ threads meet

void begin_clocks(BlockTrace& block) {
  block.floor = 0;
  block.threads.resize(block.block->threads.size());
  block.warps.resize(block.block->warps.size());
  for (ThreadTrace& thread : block.threads) {
    thread.clock = 1;
    thread.fence_clock = 0;
    thread.updates_seen.fill({});
    thread.known = nullptr;
    thread.seen = nullptr;
    thread.next_order = {};
    thread.fenced.fill(nullptr);
    thread.engine_fences.clear();
    thread.known_to_engine = {};
    thread.mbarrier_fences.clear();
  }
  for (WarpTrace& warp : block.warps) memset(warp.lanes, 0, sizeof warp.lanes);
  forget_barriers(block.block, block.block + 1);  // its named barriers
}

namespace {

// The joint knowledge and fences of threads that meet, which all of them have from then on.
class Meeting {
 public:
  void add(const ThreadTrace& thread) {
    add_part(known_, thread.known);
    for (unsigned reach = 0; reach < kReaches; ++reach)
      add_part(fenced_[reach], thread.fenced[reach]);
  }
  void add(const Knowledge& known) { add_part(known_, known); }
  void end() {
    known_ = {join_all(known_)};
    for (auto& parts : fenced_) parts = {join_all(parts)};
  }
  void tell(ThreadTrace& thread) const {
    if (thread.known != known_[0]) thread.known = known_[0];
    for (unsigned reach = 0; reach < kReaches; ++reach)
      if (thread.fenced[reach] != fenced_[reach][0]) thread.fenced[reach] = fenced_[reach][0];
  }

 private:
  std::vector<Knowledge> known_;
  std::array<std::vector<Knowledge>, kReaches> fenced_;
};

// Let all threads of these blocks meet.
void meet(const std::vector<BlockTrace*>& blocks) {
  Meeting meeting;
  for (BlockTrace* block : blocks) {
    uint32_t latest = block->floor;
    for (ThreadTrace& thread : block->threads) {
      latest = std::max(latest, thread.clock);
      meeting.add(thread);
    }
    block->floor = latest + 1;
    if (blocks.size() > 1)
      meeting.add(
          std::make_shared<KnownList>(KnownList{{block->number, kAllThreads, block->floor - 1}}));
  }
  meeting.end();
  for (BlockTrace* block : blocks) {
    for (ThreadTrace& thread : block->threads) {
      thread.clock = block->floor;
      meeting.tell(thread);
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
  Meeting meeting;
  for (uint32_t left = which; left; left &= left - 1) {
    unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
    ThreadTrace& thread = block.threads[first + lane];
    warp.lanes[lane][lane] = thread.clock++;
    for (unsigned i = 0; i < kWarpSize; ++i) joined[i] = std::max(joined[i], warp.lanes[lane][i]);
    meeting.add(thread);
  }
  meeting.end();
  for (uint32_t left = which; left; left &= left - 1) {
    unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
    ThreadTrace& thread = block.threads[first + lane];
    memcpy(warp.lanes[lane], joined, sizeof joined);
    meeting.tell(thread);
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

// Make earlier accesses known to each thread that sees a later atomic or volatile store. Seeing it
// is enough: the reader needs a fence, too, but it is not required here.
void fence(Reach reach) {
  acquire_fence();
  auto& fenced = running.thread->fenced;
  fenced[kBlock] = snapshot(*running.block, running.rank);
  if (reach == kDevice) fenced[kDevice] = fenced[kBlock];
  running.thread->fence_clock = running.thread->clock++;
}

void acquire_fence() {
  ThreadTrace& thread = *running.thread;
  thread.known = join(thread.known, std::exchange(thread.seen, nullptr));
}

namespace {

void make_known_at(const void* address, const Knowledge& to_block, const Knowledge& to_all,
                   bool replaces) {
  Released& here = released()[address];
  if (replaces) here = {};
  here.to_all = join(here.to_all, to_all);
  if (to_block == to_all) return;
  Knowledge& there = here.to_block[running.block->number];
  there = join(there, to_block);
}

// Return the knowledge released at this address to the running thread.
Knowledge known_at(const void* address) {
  auto found = released().find(address);
  if (found == released().end()) return nullptr;
  const auto& to_block = found->second.to_block.find(running.block->number);
  return to_block == found->second.to_block.end() ? found->second.to_all
                                                  : join(found->second.to_all, to_block->second);
}

}  // namespace

void released_at(const void* address, bool replaces) {
  const auto& fenced = running.thread->fenced;
  if (!fenced[kBlock] && !replaces) return;  // as most atomics: they only count
  make_known_at(address, fenced[kBlock], fenced[kDevice], replaces);
}

void released_all_at(const void* address, Reach reach, bool replaces) {
  Knowledge all = snapshot(*running.block, running.rank);
  ++running.thread->clock;
  make_known_at(address, all, reach == kDevice ? all : running.thread->fenced[kDevice], replaces);
}

void acquired_at(const void* address) {
  running.thread->known = join(running.thread->known, known_at(address));
}

void seen_at(const void* address) {
  running.thread->seen = join(running.thread->seen, known_at(address));
}

void note_update(const void* address, bool update, uint32_t site) {
  if (updates_kept == kMostUpdates) return;
  ThreadTrace& thread = *running.thread;
  std::vector<Update>& here = updates()[address];
  auto& seen = thread.updates_seen;
  auto place = std::find_if(seen.begin(), seen.end() - 1,
                            [=](const SeenUpdates& one) { return one.address == address; });
  std::move_backward(seen.begin(), place, place + 1);
  seen[0] = {address, here.size()};
  if (!update) return;
  here.push_back({running.block->number, static_cast<uint16_t>(running.rank), thread.clock,
                  thread.fence_clock, site});
  ++updates_kept;
}

const uint32_t* update_without_fence(uint32_t block, unsigned rank, uint32_t clock) {
  for (const SeenUpdates& seen : running.thread->updates_seen) {
    if (!seen.address) continue;
    const std::vector<Update>& all = updates()[seen.address];
    for (size_t i = 0; i < seen.count; ++i) {
      const Update& one = all[i];
      if (one.block == block && one.rank == rank && one.clock >= clock && one.fence_clock < clock)
        return &one.site;
    }
  }
  return nullptr;
}

void fence_for_engine() {
  ThreadTrace& thread = *running.thread;
  thread.engine_fences.push_back(thread.clock++);
  auto& seen = thread.known_to_engine;
  seen.floor = running.block->floor;
  memcpy(seen.lanes, running.warp->lanes[running.lane], sizeof seen.lanes);
  seen.known = thread.known;
}

void fence_mbarrier_init() {
  ThreadTrace& thread = *running.thread;
  thread.mbarrier_fences.push_back(thread.clock++);
}

bool is_fenced_for_engine(uint32_t block, unsigned rank, uint32_t clock, bool begins_mbarrier) {
  const auto& seen = running.thread->known_to_engine;
  if (is_in(seen.floor, seen.lanes, seen.known, block, rank, clock)) return true;
  const BlockTrace* writer = running.block;
  if (block != writer->number) {
    const Cluster& cluster = *writer->block->cluster;  // else it could not write here
    auto other =
        std::find_if(cluster.blocks.begin(), cluster.blocks.end(),
                     [=](const ResidentBlock* one) { return one->trace->number == block; });
    writer = (*other)->trace.get();
  }
  const bool mine = writer == running.block && rank == running.rank;
  auto fenced_by = [&](const std::vector<uint32_t>& fences) {
    auto after = std::lower_bound(fences.begin(), fences.end(), clock);
    return after != fences.end() && (mine || is_known(block, rank, *after));
  };
  const ThreadTrace& thread = writer->threads[rank];
  return fenced_by(thread.engine_fences) || (begins_mbarrier && fenced_by(thread.mbarrier_fences));
}

void forget_released() {
  released().clear();
  updates().clear();
  updates_kept = 0;
  barriers().clear();
}

}  // namespace cudacpu::trace

// Tiles of several warps (cooperative groups): their threads meet, the last one computes for all.
#include "runtime.h"

namespace cudacpu {

namespace {

// Return the number of the thread's tile among the block's meetings.
unsigned meeting_number(const Thread& thread, unsigned size) {
  auto rank = static_cast<unsigned>(&thread - block_of(thread).threads.data());
  return (kMaxThreadsPerBlock + rank) / size;
}

void complete(TileMeeting& meeting, Thread* threads) {
  const TilePart& part = *meeting.first;
  part.operation.compute(threads, part.size);
  for (unsigned i = 0; i < part.size; i += kWarpSize)
    trace::warp_arrived_at(&meeting, threads + i, ~0u);
  trace::phase_ended(&meeting);
  meeting.arrived = 0;
  worker->make_ready(meeting.waiting);
}

void compute_no_tile_result(Thread*, unsigned) {}

}  // namespace

const TileOperation kSyncTile{"sync of a tile", compute_no_tile_result};

void* meet_tile(void* argument, void* stack_pointer) {
  auto& part = *static_cast<const TilePart*>(argument);
  Thread& self = *current;
  ResidentBlock& block = block_of(self);
  if (!block.tile_meetings) block.tile_meetings = std::make_unique<TileMeetings>();
  unsigned number = meeting_number(self, part.size);
  TileMeeting& meeting = block.tile_meetings->of[number];
  if (meeting.arrived == 0) {
    meeting.first = &part;
  } else if (&meeting.first->operation != &part.operation) {
    const Wait& other = meeting.first->wait;
    trap(part.wait.site,
         "%s, while %u other thread(s) of the tile of %u are in %s at %s:%d; all threads of a tile "
         "must call the same function",
         part.wait.what, meeting.arrived, part.size, other.what, other.site.file, other.site.line);
  }
  self.exchange = part.exchange;
  // The last to arrive queues behind the others: it must not get a head start in any order.
  meeting.waiting.push_back(&self);
  self.state = ThreadState::kWaiting;
  if (++meeting.arrived == part.size) {
    Thread* threads = &block.threads[(number * part.size) % kMaxThreadsPerBlock];
    complete(meeting, threads);
  }
  return worker->suspend(self, part.wait, stack_pointer);
}

void tile_meeting_over(unsigned size) {
  const ResidentBlock& block = block_of(*current);
  trace::waited_at(&block.tile_meetings->of[meeting_number(*current, size)]);
}

void check_tile(unsigned size, Site site) {
  ResidentBlock& block = block_of(*current);
  if (block.threads.size() % size)
    trap(site, "tiled_partition<%u>: the block's %zu threads are no multiple of the tile's", size,
         block.threads.size());
}

std::string describe_tile(const Thread& thread) {
  const ResidentBlock& block = block_of(thread);
  if (!block.tile_meetings) return "";
  for (const TileMeeting& meeting : block.tile_meetings->of)
    for (const Thread* other = meeting.waiting.first; other; other = other->next)
      if (other == &thread)
        return format(", where %u of the tile's %u threads have arrived", meeting.arrived,
                      meeting.first->size);
  return "";
}

}  // namespace cudacpu

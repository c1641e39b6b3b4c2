// Collectives of a tile of several warps: its threads meet, the last one computes for all.
//
// The same mechanism as a warp's collectives (warp.h), for 64 to 1024 threads of a block.
#pragma once

#include "cudacpu/thread.h"

namespace cudacpu {

struct TileOperation {
  const char* name;
  // threads[i].exchange is what the thread of rank i brought.
  void (*compute)(Thread* threads, unsigned size);
};

// A thread's part in it.
struct TilePart {
  Wait wait;
  const TileOperation& operation;
  unsigned size;
  void* exchange;
};
void* meet_tile(void* part, void* stack_pointer);
void tile_meeting_over(unsigned size);  // the running thread goes on; for the tracer

// Meet the other threads of the running thread's tile of `size` threads; on return, `exchange`
// holds this thread's results.
inline void collect_tile(unsigned size, const TileOperation& operation, void* exchange, Site site) {
  TilePart part{{operation.name, site}, operation, size, exchange};
  cudacpu_suspend(&meet_tile, &part);
  tile_meeting_over(size);
}

// Trap unless the block has all threads of the running thread's tile.
void check_tile(unsigned size, Site site);

extern const TileOperation kSyncTile;

}  // namespace cudacpu

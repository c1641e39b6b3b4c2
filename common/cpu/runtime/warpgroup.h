// The work that a warpgroup has under way: wgmmas that were issued, their accumulators, their
// groups.
//
// Each warp issues alone and never waits for the others there. A wgmma is one operation of four
// parts, 16 rows for each warp; it is complete, for all who wait, when all four have been issued
// and computed.
#pragma once

#include "runtime.h"

#include <cudacpu/ptx.h>

#include <deque>
#include <list>

namespace cudacpu {

constexpr unsigned kWarpsInGroup = 4;

// A warp's 16 rows of a d, while wgmmas compute it.
struct Accumulator {
  float* lanes[kWarpSize];  // where each lane has its n/2 elements: poison until all is complete
  unsigned n;
  uint64_t last;            // the number of the youngest wgmma that adds to it
  bool under_way;           // if not: `sums` is what the lanes were given
  bool fenced;              // since then
  std::vector<float> sums;  // 16 x n
};

struct IssuedWgmma {
  Wgmma instruction;
  Site site;
  uint32_t computed = 0;  // for which warps
  Accumulator* accumulators[kWarpsInGroup];
  uint32_t a[kWarpsInGroup][kWarpSize][4];  // if it is in registers
  trace::Spans reads;
  trace::Starter starters[kWarpsInGroup];
};

struct WarpOfGroup {
  uint64_t issued = 0;               // wgmmas
  std::vector<uint64_t> group_ends;  // of each group not waited for: how many were issued by then
  bool fenced = false;               // ever
  std::list<Accumulator> accumulators;
  size_t register_limits = 0;  // how often it called setmaxnreg
};

struct Warpgroup {
  std::deque<IssuedWgmma> wgmmas;  // those not computed for every warp
  uint64_t computed = 0;           // wgmmas that came before these
  WarpOfGroup warps[kWarpsInGroup];
  ThreadList waiting;  // for warps that have not issued what others have
  std::vector<std::pair<int, Site>> register_limits;
};

// A warp of a warpgroup.
struct Member {
  ResidentBlock& block;
  Warpgroup& group;
  unsigned number;  // of the warp, 0 to 3

  WarpOfGroup& warp() const { return group.warps[number]; }
};

// Return the warpgroup of this thread. End the launch if its block has not all four warps of it.
Member warpgroup_of(const Thread& thread, const char* what, Site site);

}  // namespace cudacpu

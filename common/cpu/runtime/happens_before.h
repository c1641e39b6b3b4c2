// The order of accesses, whatever the order in which threads really ran.
//
// Each thread has a clock, which advances whenever others may learn of what it did. An access is
// known by thread and clock. A thread knows an access if a chain of barriers, or of a fence, an
// atomic access and another that sees it, leads from there to here:
//
//   floor    of a block: accesses of its threads before this clock are known to all of them, by a
//            barrier of the block; most orders are of this kind, and a comparison
//   lanes    of a thread: up to which clock it knows the lanes of its warp
//   known    whatever else it knows, of other warps and blocks
#pragma once

#include "runtime.h"

#include <array>

namespace cudacpu::trace {

constexpr uint16_t kAllThreads = 0xffff;

// Accesses of a thread (or of all threads) of a block, up to a clock.
struct Known {
  uint32_t block;
  uint16_t rank;
  uint32_t clock;
};
// Sorted by block and rank; never changed once it is made, so that threads can share it.
using KnownList = std::vector<Known>;
using Knowledge = std::shared_ptr<const KnownList>;

Knowledge join(const Knowledge& a, const Knowledge& b);

// The scope of a fence. A fence that reaches the device reaches the block.
enum Reach : unsigned { kBlock, kDevice };
constexpr unsigned kReaches = 2;

// The memory order of an atomic operation. CUDA's functions have none: their fences count, but a
// fence of the reader is not required.
struct AtomicOrder {
  bool acquires = true;
  bool acquires_on_failure = true;
  bool releases = false;
  Reach reach = kDevice;
};

// An atomic update by CUDA's functions, which orders nothing unless a fence stands before it.
struct Update {
  uint32_t block;
  uint16_t rank;
  uint32_t clock;
  uint32_t fence_clock;  // of the thread's last fence before; 0: it had none
  uint32_t site;
};
// The updates of an address that a thread has seen: the first `count` of them.
struct SeenUpdates {
  const void* address = nullptr;
  size_t count = 0;
};
constexpr size_t kSeenUpdates = 4;  // addresses that are kept for a thread

struct ThreadTrace {
  uint32_t clock;
  uint32_t fence_clock;
  std::array<SeenUpdates, kSeenUpdates> updates_seen;  // the latest first
  Knowledge known;
  Knowledge seen;  // by relaxed atomic loads: known after a fence
  AtomicOrder next_order;
  // The accesses that an atomic or volatile store of this thread makes known, by its fences' reach.
  std::array<Knowledge, kReaches> fenced;
  // Its fences for TMA: their clocks, and what it knew at the last one.
  std::vector<uint32_t> engine_fences;
  struct {
    uint32_t floor;
    uint32_t lanes[kWarpSize];
    Knowledge known;
  } known_to_engine;
  std::vector<uint32_t> mbarrier_fences;  // those for mbarriers that it has begun: their clocks
  std::vector<const void*> callers;       // of the functions that it is in
  uintptr_t read_address = 0;             // of its latest plain read, and where that stands
  uint32_t read_site = 0;
};

struct Request;
struct SiteRequests;

struct WarpTrace {
  alignas(32) uint32_t lanes[kWarpSize][kWarpSize];
  std::vector<std::unique_ptr<SiteRequests>> requests;  // by site
  WarpTrace();
  WarpTrace(WarpTrace&&) noexcept;
  ~WarpTrace();
};

struct ShadowPage;
constexpr size_t kPageBytes = 4096;
constexpr size_t kSharedBytes = 256 * 1024;

struct BlockTrace {
  ResidentBlock* block;
  uint32_t launch = 0;
  uint32_t number;  // in the grid
  uint32_t floor;
  std::vector<ThreadTrace> threads;
  std::vector<WarpTrace> warps;
  std::array<std::unique_ptr<ShadowPage>, kSharedBytes / kPageBytes> shadow;  // of shared memory
  std::vector<uint64_t> written = std::vector<uint64_t>(kSharedBytes / 64);   // a bit for each byte
};

// The running thread.
struct Running {
  BlockTrace* block;
  ThreadTrace* thread;
  WarpTrace* warp;
  unsigned rank;
  unsigned lane;
};
extern Running running;

// Return true if the running thread knows the access of thread `rank` of block `block` at its
// `clock`.
bool is_known(uint32_t block, unsigned rank, uint32_t clock);

void fence(Reach reach);
void acquire_fence();
void fence_for_engine();
void fence_mbarrier_init();
// Return true if a fence for TMA lies on the way from a store of a thread to the
// running one: the former's, if the latter knows of it, or the latter's, if it knew of the store.
// For the store that begins an mbarrier, the former's fence may also be the one for those.
bool is_fenced_for_engine(uint32_t block, unsigned rank, uint32_t clock, bool begins_mbarrier);
// An atomic access to an address, or a volatile one that counts as such. The first makes known what
// the thread has fenced, the second all that it has done and knows; a store replaces what others
// have made known there.
void released_at(const void* address, bool replaces);
void released_all_at(const void* address, Reach reach, bool replaces);
void acquired_at(const void* address);
void seen_at(const void* address);  // by a relaxed load
// Record an atomic update, or only the sight of those before, for `update_without_fence`.
void note_update(const void* address, bool updates, uint32_t site);
// Return the site of an update that thread `rank` of block `block` made after its access at
// `clock`, without a fence between, and that the running thread has seen; null if there is none.
const uint32_t* update_without_fence(uint32_t block, unsigned rank, uint32_t clock);
// Forget that, and what is known of barriers; or of those at these addresses.
void forget_released();
void forget_barriers(const void* begin, const void* end);
// Make the access known to all who wait for the next phase of this barrier.
void publish_at(const void* barrier, const Known& access);

}  // namespace cudacpu::trace

// Declarations that the parts of the tracer share.
#pragma once

#include "happens_before.h"

namespace cudacpu::trace {

enum class Mode : uint8_t { kOff, kRaces, kProfile, kRecord };
Mode mode();

// ------------------------------------------------------------------ tracer.cpp

// The place of an access: an address in the code and the one that its function was called from; or
// a place in the source, for an access by the runtime on behalf of a thread.
struct AccessSite {
  const void* pc;
  const void* caller;
  Site source;
  bool operator==(const AccessSite& other) const {
    return pc == other.pc && caller == other.caller && source.line == other.source.line &&
           source.file == other.source.file;
  }
};
const AccessSite& site_at(uint32_t number);
size_t number_of_sites();

enum class Space : uint8_t { kGlobal, kShared, kConstant };

struct Access {
  uintptr_t address;
  uint32_t bytes;
  uint32_t site;
  Kind kind;
  Space space;
  ResidentBlock* owner;  // of this shared memory
  bool is_volatile = false;
  bool is_pending = false;   // it has been started, and takes place before a wait for it ends
  bool by_engine = false;    // by TMA or a tensor core
  bool at_mbarrier = false;  // of which TMA counts bytes
  bool is_store = false;     // atomic, and reads nothing
};

// The launch that runs.
struct TracedLaunch {
  Launch* launch = nullptr;
  uint32_t number = 0;
};
extern TracedLaunch traced;

// ------------------------------------------------------------------ happens_before.cpp

void begin_clocks(BlockTrace& block);
void meet_block(BlockTrace& block);
void meet_grid(const std::vector<ResidentBlock*>& blocks);
void meet_warp(Thread* lanes, uint32_t which);

// ------------------------------------------------------------------ unset_memory.cpp

// Return true if some of these bytes are device memory that nothing has written.
bool reads_unset(uintptr_t address, size_t bytes);

// ------------------------------------------------------------------ races.cpp

void check_access(const Access& access);
// Mark the work that that thread had started here by that time as done, as an access of it at time
// `clock`. owner: of shared memory; null for global memory.
void settle(uintptr_t address, size_t bytes, ResidentBlock* owner, const Starter& starter,
            uint32_t clock);
void begin_shared_shadow(BlockTrace& block);
void begin_global_shadow();
std::string races_as_json();  // and forgets them

// ------------------------------------------------------------------ access_counts.cpp

void count_access(const Access& access);
// End the requests of lanes that have met, or are gone: their next access is a new request.
void flush_requests(WarpTrace& warp);
std::string counts_as_json();  // and forgets them

// ------------------------------------------------------------------ access_record.cpp
// In mode kRecord; elsewhere, all but the last do nothing.

void record_launch_begins();
void record_launch_ends();
void record_access(const Access& access);
void record_barrier(const ResidentBlock& block);                    // its threads have met
void record_warp_meeting(const ResidentBlock& block, size_t warp);  // the same, of lanes
void record_block_ends();
std::string launches_as_json();  // and forgets them

// ------------------------------------------------------------------ trace_report.cpp

// The kernel that runs now, among those that the report names.
uint32_t kernel_number();
std::string quoted(const std::string& text);

}  // namespace cudacpu::trace

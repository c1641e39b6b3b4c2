// Counts that a GPU's profiler would report for each access: requests, sectors, bank conflicts,
// lanes.
//
// A request is one access that the lanes of a warp make together. Lanes run one after the other
// here: the k-th times that each of them reaches a place count as one request. Counting restarts
// where all lanes of the warp meet. Lanes that diverge (a branch, loops of different lengths) and
// reach the same place separately count as together here, though they might not be on a GPU.
#include "tracer.h"

#include <deque>
#include <map>
#include <tuple>

namespace cudacpu::trace {

struct Request {
  uintptr_t address[kWarpSize];
  uint32_t lanes = 0;
  uint32_t bytes = 0;
  uint32_t site = 0;
  Kind kind = Kind::kRead;
  Space space = Space::kGlobal;
};

// Requests of one warp at one place that are not complete, and how often each lane was there.
struct SiteRequests {
  uint32_t times[kWarpSize] = {};
  uint32_t finished = 0;
  std::deque<Request> open;
};

WarpTrace::WarpTrace() = default;
WarpTrace::WarpTrace(WarpTrace&&) noexcept = default;
WarpTrace::~WarpTrace() = default;

namespace {

constexpr uint32_t kSectorBytes = 32;
constexpr uint32_t kBanks = 32;
constexpr uint32_t kBankBytes = 4;

struct Counts {
  uint64_t requests = 0;
  uint64_t lanes = 0;
  uint64_t bytes = 0;       // requested by the lanes
  uint64_t sectors = 0;     // of global memory
  uint64_t wavefronts = 0;  // of shared memory: passes that the banks need,
  uint64_t conflicts = 0;   // and how many of these would be saved without conflicts
};
using CountsKey = std::tuple<uint32_t, uint32_t, Kind, Space>;  // kernel, site
std::map<CountsKey, Counts>& counts() {
  static auto& instance = *new std::map<CountsKey, Counts>;
  return instance;
}

// Count the different numbers from first(lane) to last(lane), over these lanes.
template <class First, class Last>
uint64_t count_different(uint32_t lanes, First first, Last last, std::vector<uintptr_t>& found) {
  found.clear();
  for (; lanes; lanes &= lanes - 1) {
    auto lane = static_cast<unsigned>(__builtin_ctz(lanes));
    for (uintptr_t number = first(lane); number <= last(lane); ++number)
      if (found.empty() || found.back() != number) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found.size();
}

uint64_t count_sectors(const Request& request, std::vector<uintptr_t>& scratch) {
  auto first = [&](unsigned lane) { return request.address[lane] / kSectorBytes; };
  auto last = [&](unsigned lane) {
    return (request.address[lane] + request.bytes - 1) / kSectorBytes;
  };
  return count_different(request.lanes, first, last, scratch);
}

// Count the passes over shared memory: in each, a bank delivers one word, to all lanes that read
// it. Accesses of 8 bytes per lane are served by half-warps, those of 16 bytes by quarters.
void count_wavefronts(const Request& request, Counts& counts, std::vector<uintptr_t>& scratch) {
  unsigned together = request.bytes <= 4 ? 32 : request.bytes == 8 ? 16 : 8;
  for (unsigned begin = 0; begin < kWarpSize; begin += together) {
    uint32_t group = together == 32 ? ~0u : ((1u << together) - 1) << begin;
    if (!(request.lanes & group)) continue;
    auto first = [&](unsigned lane) { return request.address[lane] / kBankBytes; };
    auto last = [&](unsigned lane) {
      return (request.address[lane] + request.bytes - 1) / kBankBytes;
    };
    count_different(request.lanes & group, first, last, scratch);
    uint64_t words[kBanks] = {}, most = 0;
    for (uintptr_t word : scratch) most = std::max(most, ++words[word % kBanks]);
    counts.wavefronts += most;
    counts.conflicts += most - 1;
  }
}

void tally(const Request& request) {
  static std::vector<uintptr_t> scratch;
  Counts& here = counts()[{kernel_number(), request.site, request.kind, request.space}];
  ++here.requests;
  auto lanes = static_cast<uint64_t>(__builtin_popcount(request.lanes));
  here.lanes += lanes;
  here.bytes += lanes * request.bytes;
  if (request.space != Space::kShared)
    here.sectors += count_sectors(request, scratch);
  else if (request.kind != Kind::kAtomic)
    count_wavefronts(request, here, scratch);
}

}  // namespace

void count_access(const Access& access) {
  auto& sites = running.warp->requests;
  if (sites.size() <= access.site) sites.resize(number_of_sites());
  if (!sites[access.site]) sites[access.site] = std::make_unique<SiteRequests>();
  SiteRequests& here = *sites[access.site];
  uint32_t index = here.times[running.lane]++ - here.finished;
  if (index == here.open.size()) here.open.emplace_back();
  Request& request = here.open[index];
  // Only distances within shared memory matter.
  bool shared = access.space == Space::kShared;
  uintptr_t origin = shared ? reinterpret_cast<uintptr_t>(access.owner->arena) : 0;
  request.address[running.lane] = access.address - origin;
  request.lanes |= uint32_t{1} << running.lane;
  request.bytes = std::max(request.bytes, access.bytes);
  request.site = access.site;
  request.kind = access.kind;
  request.space = access.space;
  uint32_t alive = running.block->block->warps[running.rank / kWarpSize].alive;
  while (!here.open.empty() && (here.open.front().lanes & alive) == alive) {
    tally(here.open.front());
    here.open.pop_front();
    ++here.finished;
  }
}

void flush_requests(WarpTrace& warp) {
  for (auto& site : warp.requests) {
    if (!site || (site->open.empty() && !site->finished)) continue;
    for (const Request& request : site->open) tally(request);
    *site = SiteRequests{};
  }
}

std::string counts_as_json() {
  static const char* const kKinds[] = {"load", "store", "atomic"};
  static const char* const kSpaces[] = {"global", "shared", "constant"};
  std::string text = "[";
  for (const auto& [key, sums] : counts()) {
    auto [kernel, site, kind, space] = key;
    text += text.size() > 1 ? ", " : "";
    text += format("{\"kernel\": %u, \"site\": %u, \"kind\": \"%s %s\", \"requests\": %zu, ",
                   kernel, site, kSpaces[static_cast<int>(space)], kKinds[static_cast<int>(kind)],
                   static_cast<size_t>(sums.requests));
    text += format("\"lanes\": %zu, \"bytes\": %zu, \"sectors\": %zu, \"wavefronts\": %zu, ",
                   static_cast<size_t>(sums.lanes), static_cast<size_t>(sums.bytes),
                   static_cast<size_t>(sums.sectors), static_cast<size_t>(sums.wavefronts));
    text += format("\"conflicts\": %zu}", static_cast<size_t>(sums.conflicts));
  }
  counts().clear();
  return text + "]";
}

}  // namespace cudacpu::trace

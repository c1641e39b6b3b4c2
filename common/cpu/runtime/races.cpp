// Races: two accesses of a byte by different threads, one at least a write, that nothing orders.
//
// For every four bytes, the shadow keeps up to four accesses that are not out of date: what is
// known to a later write of the same bytes is. Reads by more threads than that are forgotten, but
// not in favour of a second one from the same warp. Where all four are taken, one of two that are
// alike and known gives way: each write that races with it races with the new access, too.
#include "tracer.h"

#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace cudacpu::trace {

struct Past {
  uint32_t block;
  uint32_t clock;
  uint32_t site;
  uint16_t rank;
  uint8_t mask;      // of the four bytes; 0: nothing is kept here
  uint8_t kind : 2;  // Kind
  uint8_t size : 3;  // log2 of the bytes that it touched
  uint8_t pending : 1;
  uint8_t is_volatile : 1;
  uint8_t copied : 1;  // written by something asynchronous
};
static_assert(sizeof(Past) == 16);
constexpr unsigned kPasts = 4;
constexpr unsigned kGroupSize = 4 * kWarpSize;

struct Cell {
  Past pasts[kPasts];
};

struct ShadowPage {
  uint32_t launch = 0;  // to which the cells belong
  Cell cells[kPageBytes / 4];
};

namespace {

constexpr size_t kKeptPages = 4096;    // from one launch to the next: 16 MB of memory
constexpr size_t kMostPages = 32768;   // 128 MB, whose shadow takes 2 GB
constexpr size_t kMostFindings = 200;  // of different pairs of places

struct Place {
  uint32_t site;
  uint32_t block;
  unsigned rank;
  Kind kind;
  uint32_t bytes;
};
struct Finding {
  // "race", "copy" (of what is under way), "fence", "mbarrier" (its fence), "unwritten", "host"
  const char* what;
  uint32_t kernel;
  dim3 block_shape, grid;
  Space space;
  std::string memory;  // what it is called, or ""
  Place first, second;
  std::optional<uint32_t> unfenced;  // the site of an atomic that would order them after a fence
};

struct Found {
  std::vector<Finding> findings;
  std::set<std::tuple<std::string_view, uint32_t, uint32_t>> told;  // what, and both sites
  std::set<uint32_t> guesses;  // sites of reads that a compare-and-swap of the same word follows
  size_t more = 0;             // that were not kept
  size_t pages_left_out = 0;   // of global memory
};
Found& found() {
  static auto& instance = *new Found;
  return instance;
}

std::unordered_map<uintptr_t, std::unique_ptr<ShadowPage>>& global_pages() {
  static auto& instance = *new std::unordered_map<uintptr_t, std::unique_ptr<ShadowPage>>;
  return instance;
}

struct CachedPage {
  uintptr_t number;
  ShadowPage* page;
};
CachedPage cached_pages[256];

ShadowPage& fresh(std::unique_ptr<ShadowPage>& page) {
  if (!page) page = std::make_unique<ShadowPage>();
  if (page->launch != traced.number) {
    memset(page->cells, 0, sizeof page->cells);
    page->launch = traced.number;
  }
  return *page;
}

// The shadow of the page with this address; null beyond the limit.
ShadowPage* global_page(uintptr_t address) {
  uintptr_t number = address / kPageBytes;
  CachedPage& cached = cached_pages[number % 256];
  if (cached.number == number && cached.page) return cached.page;
  auto& pages = global_pages();
  auto place = pages.find(number);
  if (place == pages.end()) {
    if (pages.size() >= kMostPages) {
      ++found().pages_left_out;
      return nullptr;
    }
    place = pages.try_emplace(number).first;
  }
  cached = {number, &fresh(place->second)};
  return cached.page;
}

void report(const char* what, const Access& access, const Place& first,
            const uint32_t* unfenced = nullptr) {
  Found& all = found();
  if (!all.told.insert({what, first.site, access.site}).second) return;
  if (all.findings.size() >= kMostFindings) {
    ++all.more;
    return;
  }
  const Configuration& config = traced.launch->config;
  Place second{access.site, running.block->number, running.rank, access.kind, access.bytes};
  auto* pointer = reinterpret_cast<const void*>(access.address);
  std::string memory = describe_address(pointer, access.bytes);
  if (memory.empty()) memory = describe_allocation(pointer);
  all.findings.push_back({what, kernel_number(), config.block, config.grid, access.space,
                          std::move(memory), first, second,
                          unfenced ? std::optional(*unfenced) : std::nullopt});
}

// Report an access that is wrong by itself.
void report_one(const char* what, const Access& access) {
  report(what, access,
         {access.site, running.block->number, running.rank, access.kind, access.bytes});
}

// Return true if a kernel of a program may not use this memory. An answer holds for a page, as long
// as the launch lasts.
bool is_of_host(uintptr_t address) {
  static struct {
    uintptr_t page;
    uint32_t launch;
  } known[256];
  if (!refuses_host_pointers()) return false;
  auto& last = known[address / kPageBytes % 256];
  if (last.launch == traced.number && last.page == address / kPageBytes) return false;
  if (is_host_memory(reinterpret_cast<const void*>(address)) && !is_in_heap(address)) return true;
  last = {address / kPageBytes, traced.number};
  return false;
}

bool is_strong(uint8_t kind, bool is_volatile, bool same_warp, Space space) {
  return kind == static_cast<uint8_t>(Kind::kAtomic) ||
         (is_volatile && !(space == Space::kShared && same_warp));
}

unsigned log2_of(uint32_t bytes) {
  return std::min(7u, 31u - static_cast<unsigned>(__builtin_clz(bytes)));
}

// The place in a full cell of a past access to bytes of the mask that the running thread knows, and
// that is like another one there; -1 if there is none.
int doubled_place(const Cell& cell, uint8_t mask) {
  for (unsigned i = 0; i < kPasts; ++i) {
    const Past& past = cell.pasts[i];
    if (past.pending || past.mask & ~mask || !is_known(past.block, past.rank, past.clock)) continue;
    for (unsigned k = 0; k < kPasts; ++k) {
      const Past& other = cell.pasts[k];
      if (k != i && other.kind == past.kind && other.is_volatile == past.is_volatile)
        return static_cast<int>(i);
    }
  }
  return -1;
}

Place place_of(const Past& past) {
  return {past.site, past.block, past.rank, static_cast<Kind>(past.kind), 1u << past.size};
}

// Record the access in one cell, after a look at those before it. Return false if it raced.
bool check_cell(Cell& cell, uint8_t mask, const Access& access) {
  constexpr auto kRead = static_cast<uint8_t>(Kind::kRead);
  const uint32_t block = running.block->number;
  const bool reads = access.kind == Kind::kRead;
  bool good = true;
  int place = -1;    // that this access can take
  int crowded = -1;  // one of this kind, which is kept only as long as there is room
  for (unsigned i = 0; i < kPasts; ++i) {
    Past& past = cell.pasts[i];
    if (!past.mask) {
      if (place < 0) place = static_cast<int>(i);
      continue;
    }
    bool same_block = past.block == block;
    bool mine = same_block && past.rank == running.rank;
    bool same_warp = same_block && past.rank / kWarpSize == running.rank / kWarpSize;
    bool start_known = mine || is_known(past.block, past.rank, past.clock);
    bool known = !past.pending && start_known;
    bool harmless =
        (reads && past.kind == kRead) ||
        (is_strong(past.kind, past.is_volatile, same_warp, access.space) &&
         is_strong(static_cast<uint8_t>(access.kind), access.is_volatile, same_warp, access.space));
    if (!known && !harmless && past.mask & mask) {
      // A thread that does not even know of its start needs more than a wait.
      bool lacks_wait = past.pending && (past.kind != kRead || start_known);
      const bool unordered = !lacks_wait && !past.pending;
      report(lacks_wait ? "copy" : "race", access, place_of(past),
             unordered ? update_without_fence(past.block, past.rank, past.clock) : nullptr);
      good = false;
    }
    bool stored = past.kind != kRead && !past.copied;
    if (known && stored && reads && access.by_engine && access.space == Space::kShared &&
        past.mask & mask &&
        !is_fenced_for_engine(past.block, past.rank, past.clock, access.at_mbarrier)) {
      report(access.at_mbarrier ? "mbarrier" : "fence", access, place_of(past));
      good = false;
    }
    // Accesses that this one makes out of date: each that races with them races with this one, too.
    bool stronger = access.kind == Kind::kWrite && !access.is_volatile;
    bool alike =
        past.kind == static_cast<uint8_t>(access.kind) && past.is_volatile == access.is_volatile;
    // Reads of what the threads of a warpgroup have started end together, or in order.
    bool same_group = same_block && past.rank / kGroupSize == running.rank / kGroupSize;
    bool prolongs = reads && alike && past.pending && access.is_pending && same_group;
    // An atomic sees what those before it have made of the word, and so does all that follows it.
    bool sees = alike && access.kind == Kind::kAtomic;
    if ((past.mask & ~mask) == 0 && ((alike && known) || sees || stronger || prolongs)) {
      past.mask = 0;
      if (place < 0) place = static_cast<int>(i);
    } else if (alike && !past.pending && (same_warp || !reads)) {
      crowded = static_cast<int>(i);
    }
  }
  if (place < 0) place = crowded;
  if (place < 0) place = doubled_place(cell, mask);
  if (place < 0 && access.kind == Kind::kWrite) place = static_cast<int>(running.rank % kPasts);
  if (place < 0) return good;
  cell.pasts[place] = {block,
                       running.thread->clock,
                       access.site,
                       static_cast<uint16_t>(running.rank),
                       mask,
                       static_cast<uint8_t>(access.kind),
                       static_cast<uint8_t>(log2_of(access.bytes)),
                       access.is_pending,
                       access.is_volatile,
                       access.is_pending};
  return good;
}

// Call f(cell, mask of its bytes) for every four bytes; f returns true to go on.
template <class PageOf, class F>
void each_cell(uintptr_t address, size_t bytes, PageOf page_of, F f) {
  for (uintptr_t end = address + bytes; address < end;) {
    uintptr_t next = std::min(end, (address & ~uintptr_t{3}) + 4);
    auto mask = static_cast<uint8_t>(((1u << (next - address)) - 1) << address % 4);
    ShadowPage* page = page_of(address);
    if (page && !f(page->cells[address % kPageBytes / 4], mask)) return;
    address = next;
  }
}

// Return true if all these bytes of shared memory have been written; or record that they are.
bool all_written(const BlockTrace& block, uintptr_t offset, size_t bytes) {
  for (uintptr_t at = offset; at < offset + bytes; ++at)
    if (!(block.written[at / 64] >> at % 64 & 1)) return false;
  return true;
}
void note_written(BlockTrace& block, uintptr_t offset, size_t bytes) {
  for (uintptr_t at = offset; at < offset + bytes && at < kSharedBytes; ++at)
    block.written[at / 64] |= uint64_t{1} << at % 64;
}

void check_shared(const Access& access) {
  BlockTrace& block = *access.owner->trace;
  uintptr_t offset = access.address - reinterpret_cast<uintptr_t>(access.owner->arena);
  if (offset + access.bytes > kSharedBytes) return;  // beyond: the address sanitizer's to tell
  bool good = true;
  auto page_of = [&](uintptr_t at) { return &fresh(block.shadow[at / kPageBytes]); };
  each_cell(offset, access.bytes, page_of, [&](Cell& cell, uint8_t mask) {
    good = check_cell(cell, mask, access);
    return good;
  });
  const bool reads = access.kind != Kind::kWrite && !access.is_store;
  if (reads && good && !all_written(block, offset, access.bytes)) report_one("unwritten", access);
  if (access.kind != Kind::kRead) note_written(block, offset, access.bytes);
}

}  // namespace

// Record a plain read before a loop around compare-and-swap. Its value may be out of date: the swap
// detects that. CUDA's guide has this form, and the race is harmless.
static void note_guess(const Access& access) {
  ThreadTrace& thread = *running.thread;
  if (access.kind == Kind::kAtomic && access.address == thread.read_address)
    found().guesses.insert(thread.read_site);
  if (access.kind != Kind::kRead) return;
  thread.read_address = access.address;
  thread.read_site = access.site;
}

static bool is_guess(const Finding& finding) {
  auto guessed = [](const Place& place, const Place& other) {
    return place.kind == Kind::kRead && other.kind == Kind::kAtomic &&
           found().guesses.count(place.site);
  };
  return guessed(finding.first, finding.second) || guessed(finding.second, finding.first);
}

void check_access(const Access& access) {
  note_guess(access);
  if (access.space == Space::kShared) return check_shared(access);
  if (is_of_host(access.address)) return report_one("host", access);
  bool good = true;
  each_cell(access.address, access.bytes, global_page, [&](Cell& cell, uint8_t mask) {
    good = check_cell(cell, mask, access);
    return good;
  });
  const bool reads = access.kind != Kind::kWrite && !access.is_store;
  if (reads && good && reads_unset(access.address, access.bytes)) report_one("unwritten", access);
  if (access.kind != Kind::kRead)
    written(reinterpret_cast<const void*>(access.address), access.bytes);
}

void settle(uintptr_t address, size_t bytes, ResidentBlock* owner, const Starter& starter,
            uint32_t clock) {
  auto settle_cell = [&](Cell& cell, uint8_t) {
    for (Past& past : cell.pasts) {
      if (!past.mask || !past.pending || past.clock > starter.clock) continue;
      if (past.block != starter.block || past.rank != starter.rank) continue;
      past.pending = 0;
      past.clock = clock;
    }
    return true;
  };
  if (!owner) return each_cell(address, bytes, global_page, settle_cell);
  auto page_of = [&](uintptr_t at) { return &fresh(owner->trace->shadow[at / kPageBytes]); };
  each_cell(address - reinterpret_cast<uintptr_t>(owner->arena), bytes, page_of, settle_cell);
}

// Reset the shadow of shared memory: another block ran here before.
void begin_shared_shadow(BlockTrace& block) {
  for (auto& page : block.shadow)
    if (page) page->launch = 0;
  std::fill(block.written.begin(), block.written.end(), 0);
}

void begin_global_shadow() {
  ++traced.number;
  memset(cached_pages, 0, sizeof cached_pages);
  if (global_pages().size() > kKeptPages) global_pages().clear();
}

namespace {

std::string as_json(const Place& place, const Finding& finding) {
  static const char* const kWords[] = {"read", "write", "atomic"};
  const dim3 &shape = finding.block_shape, &grid = finding.grid;
  unsigned b = place.block, t = place.rank;
  return format(
      "{\"site\": %u, \"access\": \"%s\", \"bytes\": %u, \"block\": [%u, %u, %u], "
      "\"thread\": [%u, %u, %u]}",
      place.site, kWords[static_cast<int>(place.kind)], place.bytes, b % grid.x,
      b / grid.x % grid.y, b / (grid.x * grid.y), t % shape.x, t / shape.x % shape.y,
      t / (shape.x * shape.y));
}

}  // namespace

std::string races_as_json() {
  Found& all = found();
  std::string text = "[";
  for (const Finding& finding : all.findings) {
    if (is_guess(finding)) continue;
    text += text.size() > 1 ? ", " : "";
    text += format("{\"what\": \"%s\", \"kernel\": %u, \"shared\": %s, ", finding.what,
                   finding.kernel, finding.space == Space::kShared ? "true" : "false");
    text += "\"memory\": " + quoted(finding.memory);
    text += ", \"first\": " + as_json(finding.first, finding);
    text += ", \"second\": " + as_json(finding.second, finding);
    if (finding.unfenced) text += format(", \"unfenced\": %u", *finding.unfenced);
    text += "}";
  }
  text += format("], \"more\": %zu, \"left_out\": %zu", all.more, all.pages_left_out);
  all = Found{};
  return text;
}

}  // namespace cudacpu::trace

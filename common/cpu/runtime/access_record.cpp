// Every access of a launch, one after the other, for a drawing of it: which thread read or wrote
// what, and how many barriers its block had passed by then.
#include "tracer.h"

#include <map>
#include <unordered_map>

namespace cudacpu::trace {

namespace {

constexpr size_t kMostRecorded = 200'000;  // accesses; further ones are only counted

struct RecordedAccess {
  uintptr_t address;  // in shared memory: the place in the block's own
  uint32_t block;
  uint32_t owner;  // the block of the shared memory
  uint32_t phase;  // barriers that the block of the thread had passed
  uint32_t bytes;
  uint16_t rank;
  Kind kind;
  bool is_shared;
};

struct SharedArray {
  size_t offset, bytes;
  std::string declaration;
};

struct RecordedLaunch {
  uint32_t kernel = 0;
  dim3 grid, block;
  std::vector<RecordedAccess> accesses;
  std::unordered_map<uint32_t, uint32_t> barriers;  // that each block passed, by its number
  std::map<std::pair<uint32_t, unsigned>, uint32_t> warp_meetings;  // by block and warp
  size_t left_out = 0;
  std::vector<SharedArray> shared;
  std::vector<std::pair<uintptr_t, size_t>> allocations;  // of the runtime API, where it accessed
};

std::vector<RecordedLaunch>& launches() {
  static auto& instance = *new std::vector<RecordedLaunch>;
  return instance;
}

bool records() {
  return mode() == Mode::kRecord && traced.launch;
}

// Record the allocation of the runtime API that holds the address, if one does.
void note_allocation(RecordedLaunch& launch, uintptr_t address) {
  for (const auto& [begin, bytes] : launch.allocations)
    if (address - begin < bytes) return;
  auto [begin, bytes] = allocation_around(reinterpret_cast<const void*>(address));
  if (begin) launch.allocations.emplace_back(reinterpret_cast<uintptr_t>(begin), bytes);
}

}  // namespace

void record_launch_begins() {
  if (!records()) return;
  RecordedLaunch& launch = launches().emplace_back();
  launch.grid = traced.launch->config.grid;
  launch.block = traced.launch->config.block;
}

void record_launch_ends() {
  if (records()) launches().back().kernel = kernel_number();
}

void record_access(const Access& access) {
  if (access.space == Space::kConstant || access.at_mbarrier) return;
  RecordedLaunch& launch = launches().back();
  if (launch.accesses.size() >= kMostRecorded) {
    ++launch.left_out;
    return;
  }
  const bool is_shared = access.space == Space::kShared;
  const uint32_t block = running.block->number;
  uintptr_t address = access.address;
  if (is_shared)
    address -= reinterpret_cast<uintptr_t>(access.owner->arena);
  else
    note_allocation(launch, address);
  launch.accesses.push_back({address, block, is_shared ? access.owner->trace->number : block,
                             launch.barriers[block], access.bytes,
                             static_cast<uint16_t>(running.rank), access.kind, is_shared});
}

void record_barrier(const ResidentBlock& block) {
  if (records()) ++launches().back().barriers[block.trace->number];
}

void record_warp_meeting(const ResidentBlock& block, size_t warp) {
  if (records())
    ++launches().back().warp_meetings[{block.trace->number, static_cast<unsigned>(warp)}];
}

void record_block_ends() {
  if (!records() || !launches().back().shared.empty()) return;
  worker->each_shared_variable([](size_t offset, size_t bytes, const char* declaration) {
    launches().back().shared.push_back({offset, bytes, declaration});
  });
}

std::string launches_as_json() {
  std::string text = "[";
  for (const RecordedLaunch& launch : launches()) {
    const dim3 &grid = launch.grid, &block = launch.block;
    text += text.size() > 1 ? ", " : "";
    text += format(
        "{\"kernel\": %u, \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"left_out\": %zu",
        launch.kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, launch.left_out);
    auto add_list = [&text](const char* name, const auto& items, auto as_json) {
      text += std::string(", \"") + name + "\": [";
      const char* comma = "";
      for (const auto& item : items) text += std::exchange(comma, ", ") + as_json(item);
      text += "]";
    };
    add_list("barriers", launch.barriers,
             [](const auto& each) { return format("[%u, %u]", each.first, each.second); });
    add_list("warp_meetings", launch.warp_meetings, [](const auto& each) {
      return format("[%u, %u, %u]", each.first.first, each.first.second, each.second);
    });
    add_list("allocations", launch.allocations,
             [](const auto& each) { return format("[%zu, %zu]", each.first, each.second); });
    add_list("shared", launch.shared, [](const SharedArray& each) {
      return format("[%zu, %zu, ", each.offset, each.bytes) + quoted(each.declaration) + "]";
    });
    add_list("accesses", launch.accesses, [](const RecordedAccess& each) {
      return format("[%d, %d, %u, %u, %u, %u, %zu, %u]", static_cast<int>(each.kind),
                    each.is_shared, each.block, unsigned{each.rank}, each.phase, each.owner,
                    each.address, each.bytes);
    });
    text += "}";
  }
  launches().clear();
  return text + "]";
}

}  // namespace cudacpu::trace

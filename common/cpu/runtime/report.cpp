// Words for what happened.
#include "runtime.h"

#include <dlfcn.h>
#include <unwind.h>

#include <cstdarg>
#include <ctime>

namespace cudacpu {

namespace {

constexpr size_t kExamples = 4;  // thread ids shown for each group

// Headers of this backend, of the toolkit and of the compiler, PTX wrappers and collectives of CUB,
// inlined into a kernel: the line to show is the one that used them.
bool is_helper(const std::string& line) {
  for (const char* part :
       {"/cpu/include/", "/common/cuda/ptx/", "/nvidia/", "/usr/include/", "/usr/local/cuda",
        "/vendor/cub/cub/block/", "/vendor/cub/cub/warp/", "/vendor/cub/cub/thread/"})
    if (line.find(part) != std::string::npos) return true;
  return false;
}

std::string position(const Thread& thread) {
  const uint3 &b = block_of(thread).index, &t = thread.index;
  return format("block (%u,%u,%u) thread (%u,%u,%u)", b.x, b.y, b.z, t.x, t.y, t.z);
}

}  // namespace

std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string in_bytes(size_t n) {
  return format(n == 1 ? "%zu byte" : "%zu bytes", n);
}

std::string describe(const Thread& thread) {
  return "  " + position(thread) + "\n";
}

std::string describe_waiting(const std::vector<ResidentBlock*>& blocks) {
  struct Group {
    std::string where;
    std::vector<const Thread*> threads;
  };
  std::vector<Group> groups;
  for (const ResidentBlock* block : blocks) {
    for (const Thread& thread : block->threads) {
      bool waits = thread.state == ThreadState::kWaiting || thread.state == ThreadState::kReady;
      // The one that polls at this moment is running.
      if (!waits && &thread != current) continue;
      std::string where =
          format("%s at %s:%d", thread.wait->what, thread.wait->site.file, thread.wait->site.line);
      for (unsigned i = 0; i < thread.warp->pending; ++i) {
        const Collective& entry = thread.warp->table[i];
        if (!(entry.arrived >> thread.lane & 1)) continue;
        uint32_t missing = entry.mask & thread.warp->alive & ~entry.arrived;
        where += format(", mask 0x%08x, for lanes 0x%08x", entry.mask, missing);
      }
      where += describe_named_barrier(thread) + describe_mbarrier(thread) +
               describe_cluster_barrier(thread) +
               describe(block->split_barrier.barrier, thread, "block") + describe_tile(thread) +
               describe_warpgroup(thread);
      auto group = std::find_if(groups.begin(), groups.end(),
                                [&](const Group& g) { return g.where == where; });
      if (group == groups.end()) group = groups.insert(groups.end(), Group{where, {}});
      group->threads.push_back(&thread);
    }
  }
  std::string text;
  for (const Group& group : groups) {
    text += format("  %zu thread(s) wait in ", group.threads.size()) + group.where + ": ";
    for (size_t i = 0; i < std::min(kExamples, group.threads.size()); ++i)
      text += (i ? ", " : "") + position(*group.threads[i]);
    text += group.threads.size() > kExamples ? ", …\n" : "\n";
  }
  return text;
}

// The dynamic linker knows a library by the name that it was loaded by, the system also if its file
// was renamed since, as a build does when it is complete.
std::string library_at(const void* pc) {
  FILE* maps = fopen("/proc/self/maps", "r");
  if (!maps) return "";
  std::string result;
  char text[4096];
  auto address = reinterpret_cast<uintptr_t>(pc);
  while (result.empty() && fgets(text, sizeof text, maps)) {
    uintptr_t begin, end;
    int path = 0;
    int read = sscanf(text, "%zx-%zx %*s %*s %*s %*s %n", &begin, &end, &path);
    if (read == 2 && path && address >= begin && address < end) result = text + path;
  }
  fclose(maps);
  result.erase(result.find_last_not_of("\n") + 1);
  return result;
}

std::string source_line(const void* pc) {
  Dl_info info;
  std::string library = library_at(pc);
  if (!dladdr(pc, &info) || library.empty() || library.find('\'') != std::string::npos) return "";
  auto offset = static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase);
  std::string command = format("addr2line -i -e '%s' 0x%zx 2>/dev/null", library.c_str(),
                               static_cast<size_t>(offset));
  FILE* output = popen(command.c_str(), "r");
  if (!output) return "";
  std::string result;
  char text[1024];
  while (fgets(text, sizeof text, output)) {
    std::string line = text;
    line.erase(line.find_last_not_of("\n") + 1);
    line = line.substr(0, line.find(" (discriminator"));
    bool known = line.find("??") == std::string::npos;
    if (known && result.empty() && !is_helper(line)) result = line;
  }
  pclose(output);
  return result;
}

const void* calling_code() {
  struct Search {
    const void* library;
    const void* found;
  };
  Dl_info own;
  if (!dladdr(reinterpret_cast<const void*>(&calling_line), &own)) return nullptr;
  Search search{own.dli_fbase, nullptr};
  auto look = [](_Unwind_Context* context, void* data) {
    auto& search = *static_cast<Search*>(data);
    auto* pc = reinterpret_cast<const void*>(_Unwind_GetIP(context));
    Dl_info info;
    if (!dladdr(pc, &info)) return _URC_END_OF_STACK;
    if (info.dli_fbase == search.library) return _URC_NO_REASON;
    search.found = pc;
    return _URC_END_OF_STACK;
  };
  _Unwind_Backtrace(look, &search);
  return search.found;
}

std::string calling_line() {
  const auto* code = static_cast<const char*>(calling_code());
  return code ? source_line(code - 1) : "";  // the call is before the address of its return
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace cudacpu

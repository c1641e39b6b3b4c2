// Device memory is closed to the host code of a program, and so are __device__ variables: its pages
// cannot be accessed but while a kernel, a copy or a fill runs. On a GPU, host code that follows
// such a pointer ends with a segmentation fault; here too, with a message.
//
// Each kernel opens and closes the pages, which takes time in proportion to them. So memory stays
// open for a while where that would cost more than kShare of the program's time.
#include "runtime.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <map>

namespace cudacpu {

namespace {

constexpr double kShare = 0.05;       // of the program's time
constexpr double kGrace = 0.05;       // s that may be spent at any time
constexpr size_t kMostRanges = 4096;  // Linux keeps 65,530 ranges of pages per process

struct DevicePages {
  std::mutex mutex;
  std::map<char*, size_t> ranges;  // whole pages: bytes, by address
  unsigned users = 0;              // kernels, copies and fills that run now
  bool open = false;
  double spent = 0;  // s
  double since = 0;  // the first range: s
};

DevicePages& pages() {
  static auto& instance = *new DevicePages;
  return instance;
}

// The program's __device__ variables, and those of which host code has the address that kernels
// use.
struct DeviceVariables {
  std::vector<std::pair<const char*, const char*>> sections;
  std::vector<std::pair<const char*, const char*>> given;
};
DeviceVariables& variables() {
  static auto& instance = *new DeviceVariables;
  return instance;
}
bool holds(const std::vector<std::pair<const char*, const char*>>& ranges, const void* address) {
  return std::any_of(ranges.begin(), ranges.end(), [=](const auto& range) {
    return range.first <= address && address < range.second;
  });
}

std::atomic<bool> closing{false};  // in programs
std::atomic<bool> any{false};      // range

void protect_range(char* begin, size_t bytes, bool open) {
  mprotect(begin, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

// Of the processor: a thread that waits for a core spends none.
double own_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The caller holds the lock.
void protect_all(bool open) {
  DevicePages& p = pages();
  if (p.open == open) return;
  const double begin = own_seconds();
  for (auto [address, bytes] : p.ranges) protect_range(address, bytes, open);
  p.open = open;
  p.spent += own_seconds() - begin;
}

}  // namespace

void close_to_host(void* address, size_t bytes) {
  if (!closing.load(std::memory_order_relaxed)) return;
  DevicePages& p = pages();
  std::lock_guard lock(p.mutex);
  if (p.ranges.size() == kMostRanges) return;
  if (p.ranges.empty()) {
    install_fault_handlers();
    p.since = seconds();
    any.store(true);
  }
  p.ranges[static_cast<char*>(address)] = bytes;
  if (!p.open) protect_range(static_cast<char*>(address), bytes, false);
}

void open_to_host(void* address) {
  if (!any.load(std::memory_order_relaxed)) return;
  DevicePages& p = pages();
  std::lock_guard lock(p.mutex);
  auto found = p.ranges.find(static_cast<char*>(address));
  if (found == p.ranges.end()) return;
  protect_range(found->first, found->second, true);
  p.ranges.erase(found);
}

void begin_device_work() {
  if (!any.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(pages().mutex);
  ++pages().users;
  protect_all(true);
}

void end_device_work() {
  if (!any.load(std::memory_order_relaxed)) return;
  DevicePages& p = pages();
  std::lock_guard lock(p.mutex);
  if (p.users > 0 && --p.users > 0) return;  // the first range may be younger than this work
  if (p.spent <= kGrace + kShare * (seconds() - p.since)) protect_all(false);
}

bool is_variable_of_host(const void* address) {
  std::lock_guard lock(pages().mutex);
  return holds(variables().sections, address) && !holds(variables().given, address);
}

void give_address(const void* variable, size_t bytes) {
  std::lock_guard lock(pages().mutex);
  if (!holds(variables().sections, variable)) return;
  const auto* begin = static_cast<const char*>(variable);
  variables().given.emplace_back(begin, begin + bytes);
}

// Called by a signal handler, on the thread that accessed it.
void explain_host_access(const void* address, void* pc) {
  if (!any.load()) return;
  for (auto [begin, bytes] : pages().ranges) {
    const auto offset = static_cast<const char*>(address) - begin;
    if (offset < 0 || static_cast<size_t>(offset) >= bytes) continue;
    const std::string line = source_line(pc);
    fflush(stdout);
    if (holds(variables().sections, address)) {
      fprintf(
          stderr,
          "CUDA on CPU: host code accessed the device memory of a __device__ variable%s%s\n  on a "
          "GPU, host code has another variable of that name, which kernels do not see: copy by "
          "cudaMemcpyFromSymbol and cudaMemcpyToSymbol\n",
          line.empty() ? "" : "\n  at ", line.c_str());
      return;
    }
    fprintf(
        stderr,
        "CUDA on CPU: host code accessed device memory (address %p, %s from where an allocation "
        "begins)%s%s\n  a GPU ends the program here: copy it by cudaMemcpy, or allocate it by "
        "cudaMallocManaged\n",
        address, in_bytes(static_cast<size_t>(offset)).c_str(), line.empty() ? "" : "\n  at ",
        line.c_str());
    return;
  }
}

}  // namespace cudacpu

extern "C" {

void cudacpu_close_device_memory(int on) {
  cudacpu::closing.store(on != 0);
}

// Close whole pages of __device__ variables, as far as device memory is closed.
void cudacpu_close_device_variables(void* begin, void* end) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto page = static_cast<uintptr_t>(getpagesize());
  if (begin == end || address % page || !cudacpu::closing.load()) return;
  auto* first = static_cast<char*>(begin);
  cudacpu::variables().sections.emplace_back(first, static_cast<char*>(end));
  cudacpu::close_to_host(begin, static_cast<size_t>(static_cast<char*>(end) - first));
}

}  // extern "C"

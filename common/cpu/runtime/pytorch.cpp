// The environment of a launcher that PyTorch calls, as strict as a launcher's check needs it.
//
// While one is checked, the current stream is not the default one, and the current device is not
// the tensors': a launcher that names neither gives its work to the wrong one, which this backend
// refuses. And host code may not touch tensors (their pages are closed to it), as it cannot on a
// GPU; kernels may write only those that the operator's schema marks.
#include "graph.h"

#include <sys/mman.h>
#include <unistd.h>

namespace cudacpu {

namespace {

constexpr int kTensorsDevice = 0;
constexpr int kOtherDevice = 1;

std::atomic<bool> checks_launcher{false};
// PyTorch's current stream: null is the default one. It is another one in each call.
std::atomic<CUstream_st*> played_stream{nullptr};
CUstream_st played_streams[2] = {{cudaStreamNonBlocking, 0}, {cudaStreamNonBlocking, 0}};
std::atomic<uint64_t> work_done{0};
// The first launches since the check began, a line each: grid and block.
constexpr uint64_t kLaunchesKept = 16;
std::mutex launches_mutex;
std::string launches_text;
uint64_t launches = 0;
// The first barrier since then that threads missed because they had returned.
std::atomic<bool> early_return_noted{false};
std::string early_return;
thread_local int chosen_device = -1;  // by cudaSetDevice, since the check began

int current_device() {
  if (!checks_launcher.load(std::memory_order_relaxed)) return kTensorsDevice;
  return chosen_device < 0 ? kOtherDevice : chosen_device;
}

// Memory that lies on the other device, for checks of launchers: none while both are 0.
std::atomic<uintptr_t> other_begin{0};
std::atomic<uintptr_t> other_end{0};

// The whole pages of a tensor and of the bands around it.
struct ClosedTensor {
  char* begin;
  size_t bytes;
  bool writable;
  std::string name;

  bool holds(const void* address) const {
    return static_cast<size_t>(static_cast<const char*>(address) - begin) < bytes;
  }
};

std::mutex tensors_mutex;
std::vector<ClosedTensor> closed_tensors;
std::atomic<bool> tensors_closed{false};  // to host code; so there are some
std::atomic<int> open_for{0};             // kernels and copies that run now
// The first access of host code.
void* host_code = nullptr;
const ClosedTensor* host_touched = nullptr;

void protect(bool open) {
  for (const ClosedTensor& tensor : closed_tensors)
    mprotect(tensor.begin, tensor.bytes,
             !open             ? PROT_NONE
             : tensor.writable ? PROT_READ | PROT_WRITE
                               : PROT_READ);
}

// Throw if a launcher does this without a device guard.
void check_device_of_caller(const char* what, const std::string& where = "") {
  if (!checks_launcher.load(std::memory_order_relaxed) || current) return;
  if (current_device() != kTensorsDevice)
    throw KernelError(
        format("CUDA on CPU: on the wrong device: %s while device %d is current, and "
               "the tensors are on device %d: a launcher needs a device guard, "
               "`const DeviceGuard guard(x);`%s",
               what, current_device(), kTensorsDevice, where.c_str()));
}

}  // namespace

cudaError_t check_device(int device) {
  return device >= 0 && device < device_count() ? cudaSuccess : set_error(cudaErrorInvalidDevice);
}

int device_of(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const bool other = other_begin.load() <= address && address < other_end.load();
  return other ? kOtherDevice : kTensorsDevice;
}

int device_count() {
  return checks_launcher.load() ? 2 : 1;
}

void check_caller(cudaStream_t stream, const char* what, Site site) {
  if (!checks_launcher.load(std::memory_order_relaxed) || current) return;
  std::string where = site.line ? format("\n  at %s:%d", site.file, site.line) : "";
  check_device_of_caller(what, where);
  if (is_default(stream))
    throw KernelError(
        format("CUDA on CPU: on the wrong stream: %s on the default stream, while "
               "PyTorch's current stream is another one, with which it is not "
               "ordered: pass current_stream(x)%s",
               what, where.c_str()));
  const bool earlier = stream == &played_streams[0] || stream == &played_streams[1];
  if (earlier && stream != current_stream())
    throw KernelError(
        format("CUDA on CPU: on the wrong stream: %s on the stream that was PyTorch's current one "
               "in an earlier call: ask current_stream(x) in each call%s",
               what, where.c_str()));
}

void count_work() {
  work_done.fetch_add(1, std::memory_order_relaxed);
}

void note_launch(const dim3& grid, const dim3& block) {
  if (!checks_launcher.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(launches_mutex);
  if (launches++ >= kLaunchesKept) return;
  launches_text += format("%u %u %u %u %u %u\n", grid.x, grid.y, grid.z, block.x, block.y, block.z);
}

void note_early_return(const ResidentBlock& block, const Barrier& barrier) {
  if (!checks_launcher.load(std::memory_order_relaxed) || early_return_noted.load()) return;
  std::lock_guard lock(launches_mutex);
  if (early_return_noted.exchange(true)) return;
  const Launch& launch = *worker->launch();
  const Wait& wait = barrier.first->wait;
  const uint3& i = block.index;
  early_return =
      format("%u of %u threads of block (%u,%u,%u) had returned when the others met in %s at %s:%d",
             launch.threads - barrier.arrived, launch.threads, i.x, i.y, i.z, wait.what,
             wait.site.file, wait.site.line) +
      ", in kernel " + launch.kernel_name();
}

MemoryOpen::MemoryOpen() {
  begin_device_work();
  if (!tensors_closed.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(tensors_mutex);
  if (open_for.fetch_add(1) == 0) protect(true);
}

MemoryOpen::~MemoryOpen() {
  end_device_work();
  if (!tensors_closed.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(tensors_mutex);
  if (open_for.fetch_sub(1) == 1) protect(false);
}

// Called by a signal handler, on the thread that accessed it: nothing else changes the list then.
bool host_may_go_on(const void* address, void* pc) {
  if (!tensors_closed.load()) return false;
  for (const ClosedTensor& tensor : closed_tensors) {
    if (!tensor.holds(address)) continue;
    host_code = pc;
    host_touched = &tensor;
    tensors_closed.store(false);  // once is enough: the call has failed
    for (const ClosedTensor& each : closed_tensors)
      mprotect(each.begin, each.bytes, PROT_READ | PROT_WRITE);
    return true;
  }
  return false;
}

std::string read_only_tensor_at(const void* address) {
  std::lock_guard lock(tensors_mutex);
  for (const ClosedTensor& tensor : closed_tensors)
    if (!tensor.writable && tensor.holds(address)) return tensor.name;
  return "";
}

cudaStream_t current_stream() {
  return played_stream.load(std::memory_order_relaxed);
}
void play_current_stream(bool on) {
  static unsigned calls = 0;
  if (on == (played_stream.load() != nullptr)) return;
  played_stream.store(on ? &played_streams[calls++ % 2] : nullptr);
}

DeviceGuard::DeviceGuard() : before_(chosen_device) {
  chosen_device = kTensorsDevice;
}
DeviceGuard::~DeviceGuard() {
  chosen_device = before_;
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return set_error(cudaErrorInvalidValue);
  *count = device_count();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (!device) return set_error(cudaErrorInvalidValue);
  // Queried properties, its compute capability for example, would be another GPU's.
  check_device_of_caller("the number of the current device was requested");
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  chosen_device = device;
  return cudaSuccess;
}

// Begin (1) or end (0) a launcher's check, in the calling thread and those that it starts.
void cudacpu_check_launcher(int on) {
  chosen_device = -1;
  if (on) {
    std::lock_guard lock(launches_mutex);
    launches_text.clear();
    launches = 0;
    early_return.clear();
    early_return_noted.store(false);
    forget_undefined_shuffle();
  }
  checks_launcher.store(on != 0);
  play_current_stream(on != 0);
}

// Return the device that the launcher chose in this thread without restoring the one before, or -1.
int cudacpu_device_left() {
  return chosen_device;
}

// Place this memory alone on the other device from now on.
void cudacpu_on_other_device(uintptr_t begin, size_t bytes) {
  other_begin.store(begin);
  other_end.store(begin + bytes);
}

// Return the first launches of the check that began last: see note_launch. The text is valid until
// the next check begins.
const char* cudacpu_launches() {
  return launches_text.c_str();
}

// Return the number of launches of that check.
uint64_t cudacpu_launch_count() {
  return launches;
}

// Return the first barrier of that check that threads missed because they had returned, or "".
const char* cudacpu_early_return() {
  return early_return.c_str();
}

// Return the number of kernels, copies and fills so far.
uint64_t cudacpu_work_done() {
  return work_done.load();
}

// Register a tensor, whose memory is closed to host code from cudacpu_close_tensors on, with `band`
// bytes of its own around it.
void cudacpu_add_tensor(uintptr_t begin, size_t bytes, size_t band, int writable,
                        const char* name) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  if (band < page || !bytes) return;
  const uintptr_t first = (begin - band + page - 1) / page * page;
  const uintptr_t end = (begin + bytes + band) / page * page;
  std::lock_guard lock(tensors_mutex);
  closed_tensors.push_back({reinterpret_cast<char*>(first), end - first, writable != 0, name});
}

void cudacpu_close_tensors() {
  install_fault_handlers();
  std::lock_guard lock(tensors_mutex);
  host_code = nullptr;
  host_touched = nullptr;
  open_for.store(0);
  if (closed_tensors.empty()) return;
  tensors_closed.store(true);
  protect(false);
}

// Open tensors for the work of PyTorch itself (1), or end that (0).
void cudacpu_open_tensors(int open) {
  if (!tensors_closed.load()) return;
  std::lock_guard lock(tensors_mutex);
  if (open ? open_for.fetch_add(1) == 0 : open_for.fetch_sub(1) == 1) protect(open != 0);
}

// Open all of them for good. Return the one that host code touched, and the place, or "".
const char* cudacpu_forget_tensors() {
  static std::string found;
  std::lock_guard lock(tensors_mutex);
  for (const ClosedTensor& tensor : closed_tensors)
    mprotect(tensor.begin, tensor.bytes, PROT_READ | PROT_WRITE);
  found.clear();
  if (host_touched) {
    const std::string line = source_line(host_code);
    found = host_touched->name + (line.empty() ? "" : ", at " + line);
  }
  closed_tensors.clear();
  tensors_closed.store(false);
  host_code = nullptr;
  host_touched = nullptr;
  return found.c_str();
}

}  // extern "C"

// cudaIpc…MemHandle: memory that several processes use, each at an address of its own.
//
// The pages of an allocation become those of a nameless file (memfd) when its handle is requested:
// its content moves there, its address stays. The handle identifies the file for another process:
// among the open files of this one, as long as it lives and has not freed the memory.
#include "runtime.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

namespace cudacpu {

namespace {

constexpr uint32_t kHandleMark = 0x63704970;

// The contents of the 64 bytes of a handle, which are opaque to the program.
struct Handle {
  uint32_t mark;
  int32_t process;
  int32_t file;
  uint64_t number;  // of the export, in that process
  uint64_t bytes;   // whole pages
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

struct Import {
  void* address;
  uint64_t bytes;
  unsigned times;  // opened
};

struct Sharing {
  std::mutex mutex;
  std::map<void*, Handle> exports;                         // by address
  std::map<std::pair<int32_t, uint64_t>, Import> imports;  // by process and number
  uint64_t next_number = 1;
};

Sharing& sharing() {
  static auto& instance = *new Sharing;
  return instance;
}

std::atomic<bool> shares{false};

// The caller holds the lock.
void note_whether_it_shares() {
  shares.store(!sharing().exports.empty() || !sharing().imports.empty());
}

// Move the pages to a file; return -1 if that is not possible.
int move_to_file(void* address, size_t bytes) {
  open_to_host(address);
  const int file = memfd_create("cuda-on-cpu", MFD_CLOEXEC);
  if (file < 0) return -1;
  auto left = static_cast<const char*>(address);
  const char* end = left + bytes;
  while (left < end) {
    const ssize_t written = ::write(file, left, static_cast<size_t>(end - left));
    if (written <= 0) break;
    left += written;
  }
  const int flags = MAP_SHARED | MAP_FIXED;
  if (left == end && mmap(address, bytes, PROT_READ | PROT_WRITE, flags, file, 0) == address)
    return file;
  close(file);
  return -1;
}

}  // namespace

bool shares_memory() {
  return shares.load(std::memory_order_relaxed);
}

void stop_sharing(void* address) {
  if (!shares_memory()) return;
  std::lock_guard lock(sharing().mutex);
  auto found = sharing().exports.find(address);
  if (found == sharing().exports.end()) return;
  // The C library gets back pages of this process alone.
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  mmap(address, found->second.bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  close(found->second.file);
  sharing().exports.erase(found);
  note_whether_it_shares();
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

// Return the handle of memory from cudaMalloc; for an address within it, that of all of it.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  if (!handle) return set_error(cudaErrorInvalidValue);
  if (kWatchesAddresses)
    return set_error(cudaErrorNotSupported,
                     "memory that processes share, in a build that watches addresses");
  const auto [begin, bytes] = pages_of_allocation(address);
  if (!begin || is_of_pool(begin)) return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(sharing().mutex);
  auto found = sharing().exports.find(begin);
  if (found == sharing().exports.end()) {
    const int file = move_to_file(begin, bytes);
    if (file < 0) return set_error(cudaErrorMemoryAllocation);
    Handle made{kHandleMark, getpid(), file, sharing().next_number++, bytes};
    found = sharing().exports.emplace(begin, made).first;
    note_whether_it_shares();
  }
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &found->second, sizeof(Handle));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
  Handle found;
  memcpy(&found, &handle, sizeof found);
  if (!address || flags != cudaIpcMemLazyEnablePeerAccess || found.mark != kHandleMark)
    return set_error(cudaErrorInvalidValue);
  if (found.process == getpid())
    return set_error(cudaErrorDeviceUninitialized, "the handle was made by this process");
  std::lock_guard lock(sharing().mutex);
  Import& import = sharing().imports[{found.process, found.number}];
  if (!import.times) {
    const std::string path = format("/proc/%d/fd/%d", found.process, found.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* pages = MAP_FAILED;
    if (file >= 0) {
      pages = mmap(nullptr, found.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      close(file);
    }
    if (pages == MAP_FAILED) {
      sharing().imports.erase({found.process, found.number});
      return set_error(cudaErrorInvalidResourceHandle,
                       "the process that made the handle has freed the memory, or has ended");
    }
    import = {pages, found.bytes, 0};
    note_whether_it_shares();
  }
  ++import.times;
  *address = import.address;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  std::lock_guard lock(sharing().mutex);
  auto& imports = sharing().imports;
  auto found = std::find_if(imports.begin(), imports.end(),
                            [&](const auto& entry) { return entry.second.address == address; });
  if (found == imports.end()) return set_error(cudaErrorInvalidValue);
  if (--found->second.times) return cudaSuccess;
  munmap(address, found->second.bytes);
  imports.erase(found);
  note_whether_it_shares();
  return cudaSuccess;
}

}  // extern "C"

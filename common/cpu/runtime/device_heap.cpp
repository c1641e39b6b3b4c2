// The heap of kernels: what `malloc` and `new` in device code allocate. It has the size that
// cudaLimitMallocHeapSize sets, and a call that finds it full returns null, as on a GPU. The linker
// renames the calls (backend.ldflags); in host code they are the C library's.
#include "runtime.h"

#include <map>

namespace cudacpu {

namespace {

struct Piece {
  size_t bytes;
  bool in_use;
};

struct Heap {
  std::mutex mutex;
  std::map<uintptr_t, Piece> pieces;  // by address; one that was freed remains: see is_in_heap
  size_t used = 0;                    // bytes
  std::string refused;                // the last allocation that returned null
};

Heap& heap() {
  static auto& instance = *new Heap;
  return instance;
}

void* allocate_in_kernel(size_t bytes, const char* function) {
  std::lock_guard lock(heap().mutex);
  const size_t limit = device_heap_bytes();
  if (bytes > limit || heap().used > limit - bytes) {
    heap().refused = format(
        "%s returned null: %zu bytes do not fit the heap of kernels, %zu bytes of which %zu are in "
        "use; cudaDeviceSetLimit(cudaLimitMallocHeapSize, ...) makes it larger",
        function, bytes, limit, heap().used);
    return nullptr;
  }
  void* memory = malloc(bytes);
  if (!memory) return nullptr;
  heap().pieces[reinterpret_cast<uintptr_t>(memory)] = {bytes, true};
  heap().used += bytes;
  return memory;
}

// Take memory out of the heap before it is freed.
void leave_heap(const void* memory) {
  if (!current) return;
  std::lock_guard lock(heap().mutex);
  auto found = heap().pieces.find(reinterpret_cast<uintptr_t>(memory));
  if (found == heap().pieces.end() || !found->second.in_use) return;
  found->second.in_use = false;
  heap().used -= found->second.bytes;
}

}  // namespace

bool is_in_heap(uintptr_t address) {
  std::lock_guard lock(heap().mutex);
  auto after = heap().pieces.upper_bound(address);
  if (after == heap().pieces.begin()) return false;
  const auto& [begin, piece] = *std::prev(after);
  return address < begin + piece.bytes;
}

std::string through_null(uintptr_t address) {
  std::lock_guard lock(heap().mutex);
  const std::string text =
      format("illegal memory access through a null pointer (address 0x%zx)", address);
  return heap().refused.empty() ? text : text + "\n  " + heap().refused;
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

void* __wrap_malloc(size_t bytes) {
  return current ? allocate_in_kernel(bytes, "malloc") : malloc(bytes);
}
void* __wrap__Znwm(size_t bytes) {
  return current ? allocate_in_kernel(bytes, "new") : operator new(bytes);
}
void* __wrap__Znam(size_t bytes) {
  return current ? allocate_in_kernel(bytes, "new") : operator new[](bytes);
}

#define CUDACPU_FREE(name, call, ...)            \
  void __wrap_##name(void* memory __VA_ARGS__) { \
    leave_heap(memory);                          \
    call(memory);                                \
  }
CUDACPU_FREE(free, free)
CUDACPU_FREE(_ZdlPv, operator delete)
CUDACPU_FREE(_ZdaPv, operator delete[])
CUDACPU_FREE(_ZdlPvm, operator delete, , size_t)
CUDACPU_FREE(_ZdaPvm, operator delete[], , size_t)
#undef CUDACPU_FREE

}  // extern "C"

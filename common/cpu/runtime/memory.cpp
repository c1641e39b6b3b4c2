// Device memory, which is host memory here, and copies, which are done when they are called.
#include "runtime.h"

#include <map>

namespace cudacpu {

namespace {

constexpr size_t kAlignment = 256;  // of cudaMalloc
constexpr size_t kPitch = 512;

struct Allocation {
  size_t bytes;
  cudaMemoryType type;
};

struct Memory {
  std::mutex mutex;
  std::map<char*, Allocation> allocations;  // by address
};

Memory& memory() {
  static auto& instance = *new Memory;
  return instance;
}

// The allocation that holds the address, or null. The caller holds the lock.
const std::pair<char* const, Allocation>* find(const void* address) {
  auto& allocations = memory().allocations;
  auto after = allocations.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == allocations.begin()) return nullptr;
  const auto& candidate = *std::prev(after);
  return address < candidate.first + std::max<size_t>(candidate.second.bytes, 1) ? &candidate
                                                                                 : nullptr;
}

cudaError_t allocate(void** address, size_t bytes, cudaMemoryType type) {
  if (!address) return set_error(cudaErrorInvalidValue);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  size_t free = 0;
  // Linux hands out more than there is and kills the process later: ask first.
  if (bytes >= size_t{64} << 20 && (cudaMemGetInfo(&free, nullptr), bytes > free))
    return set_error(cudaErrorMemoryAllocation);
  void* block = aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!block) return set_error(cudaErrorMemoryAllocation);
  memset(block, 0xff, bytes);  // fresh device memory holds anything: here NaN
  std::lock_guard lock(memory().mutex);
  memory().allocations[static_cast<char*>(block)] = {bytes, type};
  *address = block;
  return cudaSuccess;
}

cudaError_t release(void* address, cudaMemoryType type) {
  if (!address) return cudaSuccess;
  std::lock_guard lock(memory().mutex);
  auto found = memory().allocations.find(static_cast<char*>(address));
  if (found == memory().allocations.end() || found->second.type != type)
    return set_error(cudaErrorInvalidValue);
  memory().allocations.erase(found);
  free(address);
  return cudaSuccess;
}

// False if the range begins in an allocation of ours and ends beyond it. Memory that this library
// did not allocate (a tensor, the host's) cannot be judged.
bool fits(const void* address, size_t bytes) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  return !holder ||
         static_cast<const char*>(address) + bytes <= holder->first + holder->second.bytes;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return set_error(cudaErrorInvalidMemcpyDirection);
  if (bytes == 0) return cudaSuccess;
  if (!to || !from || !fits(to, bytes) || !fits(from, bytes))
    return set_error(cudaErrorInvalidValue);
  memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                      size_t height, cudaMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch) return set_error(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    cudaError_t status = copy(static_cast<char*>(to) + row * to_pitch,
                              static_cast<const char*>(from) + row * from_pitch, width, kind);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (!to || !fits(to, bytes)) return set_error(cudaErrorInvalidValue);
  memset(to, value, bytes);
  return cudaSuccess;
}

// Whether the range is memory that moves, managed or the system's own, and the location one where
// it could be. The system's memory cannot be judged.
cudaError_t check_movable(const void* address, size_t bytes, cudaMemLocation location) {
  switch (location.type) {
    case cudaMemLocationTypeDevice:
      if (location.id != 0) return set_error(cudaErrorInvalidDevice);
      break;
    case cudaMemLocationTypeHost:
    case cudaMemLocationTypeHostNuma:
    case cudaMemLocationTypeHostNumaCurrent:
      break;
    default:
      return set_error(cudaErrorInvalidValue);
  }
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  if (!address || bytes == 0) return set_error(cudaErrorInvalidValue);
  if (!holder) return cudaSuccess;
  auto offset = static_cast<size_t>(static_cast<const char*>(address) - holder->first);
  const auto& [size, type] = holder->second;
  return type == cudaMemoryTypeManaged && bytes <= size - offset ? cudaSuccess
                                                                 : set_error(cudaErrorInvalidValue);
}

}  // namespace
}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return allocate(address, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) {
  return allocate(address, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return allocate(address, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return allocate(address, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) {
  return allocate(address, bytes, cudaMemoryTypeManaged);
}

cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  if (!pitch) return set_error(cudaErrorInvalidValue);
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  return allocate(address, *pitch * height, cudaMemoryTypeDevice);
}

cudaError_t cudaFree(void* address) {
  if (!address) return cudaSuccess;
  {
    std::lock_guard lock(memory().mutex);
    const auto* holder = find(address);
    if (holder && holder->second.type == cudaMemoryTypeManaged)
      memory().allocations.at(holder->first).type = cudaMemoryTypeDevice;
  }
  return release(address, cudaMemoryTypeDevice);
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t) {
  return cudaFree(address);
}
cudaError_t cudaFreeHost(void* address) {
  return release(address, cudaMemoryTypeHost);
}

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  return address && bytes ? cudaSuccess : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaHostUnregister(void* address) {
  return address ? cudaSuccess : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  if (!device || !host) return set_error(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

// Where managed memory is makes no difference here: these two only look at their arguments.
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation location,
                                 unsigned flags, cudaStream_t) {
  if (flags != 0) return set_error(cudaErrorInvalidValue);
  return check_movable(address, bytes, location);
}
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation location) {
  switch (advice) {
    case cudaMemAdviseSetReadMostly:
    case cudaMemAdviseUnsetReadMostly:
    case cudaMemAdviseUnsetPreferredLocation:
      location = {cudaMemLocationTypeHost, 0};  // it is ignored
      break;
    case cudaMemAdviseSetAccessedBy:
    case cudaMemAdviseUnsetAccessedBy:
      if (location.type != cudaMemLocationTypeDevice && location.type != cudaMemLocationTypeHost)
        return set_error(cudaErrorInvalidValue);
      break;
    case cudaMemAdviseSetPreferredLocation:
      break;
    default:
      return set_error(cudaErrorInvalidValue);
  }
  return check_movable(address, bytes, location);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  if (!attributes) return set_error(cudaErrorInvalidValue);
  *attributes = {};
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  attributes->type = holder ? holder->second.type : cudaMemoryTypeUnregistered;
  attributes->device = holder ? 0 : -2;  // cudaInvalidDeviceId
  if (holder) {
    attributes->devicePointer = const_cast<void*>(address);
    if (holder->second.type != cudaMemoryTypeDevice)
      attributes->hostPointer = const_cast<void*>(address);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return copy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return copy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, kind);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, kind);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return fill(to, value, bytes);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return fill(to, value, bytes);
}
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  if (width > pitch) return set_error(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    cudaError_t status = fill(static_cast<char*>(to) + row * pitch, value, width);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t) {
  return cudaMemset2D(to, pitch, value, width, height);
}

// A __device__ or __constant__ variable is a variable.
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  if (!symbol) return set_error(cudaErrorInvalidSymbol);
  return copy(static_cast<char*>(const_cast<void*>(symbol)) + offset, from, bytes, kind);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  if (!symbol) return set_error(cudaErrorInvalidSymbol);
  return copy(to, static_cast<const char*>(symbol) + offset, bytes, kind);
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  if (!address || !symbol) return set_error(cudaErrorInvalidSymbol);
  *address = const_cast<void*>(symbol);
  return cudaSuccess;
}

}  // extern "C"

// Memory pools: what cudaMallocAsync takes memory from, and how much of it is reserved and used.
//
// The memory itself is the C library's. What a pool keeps of it is a figure, which goes down as on
// a GPU at its next synchronisation: to what is used, or to the release threshold.
#include "graph.h"

#include <unordered_map>

// NVIDIA's headers name this type and leave it open.
struct CUmemPoolHandle_st {
  uint64_t largest = 0;  // bytes that it may have; 0: any number
  uint64_t threshold = 0;
  uint64_t used = 0, most_used = 0;
  uint64_t reserved = 0, most_reserved = 0;
  int reuse[3] = {1, 1, 1};   // how freed memory is found again, which has no meaning here
  bool is_destroyed = false;  // it ends with its last allocation
  cudacpu::LiveHandle counted = {};
};

namespace cudacpu {

namespace {

constexpr uint64_t kUnit = 512;                  // of an allocation
constexpr uint64_t kReservedUnit = 32ull << 20;  // of what a pool takes from the device

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Pools {
  std::mutex mutex;
  cudaMemPool_t standard = new CUmemPoolHandle_st;
  cudaMemPool_t current = standard;
  std::vector<cudaMemPool_t> created;
  std::unordered_map<const void*, std::pair<cudaMemPool_t, uint64_t>> allocations;

  bool knows(cudaMemPool_t pool) const {
    return pool == standard || (std::find(created.begin(), created.end(), pool) != created.end() &&
                                !pool->is_destroyed);
  }
  void remove(cudaMemPool_t pool) {
    created.erase(std::find(created.begin(), created.end(), pool));
    delete pool;
  }
};

Pools& pools() {
  static auto& instance = *new Pools;
  return instance;
}

// Release reserved memory that is neither used nor to be kept.
void release_beyond(CUmemPoolHandle_st& pool, uint64_t kept) {
  if (kept >= pool.reserved) return;
  pool.reserved = std::min(pool.reserved, round_up(std::max(pool.used, kept), kReservedUnit));
}

cudaError_t allocate_from(void** address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  const uint64_t size = round_up(bytes, kUnit);
  {
    std::lock_guard lock(pools().mutex);
    if (!pools().knows(pool)) return set_error(cudaErrorInvalidValue);
    if (pool->largest && pool->used + size > pool->largest)
      return set_error(cudaErrorMemoryAllocation);
  }
  bool captured = false;
  cudaError_t status = allocate_in_order(address, bytes, stream, captured);
  if (status != cudaSuccess || captured || !*address) return status;
  std::lock_guard lock(pools().mutex);
  pools().allocations[*address] = {pool, size};
  pool->used += size;
  pool->most_used = std::max(pool->most_used, pool->used);
  pool->reserved = std::max(pool->reserved, round_up(pool->used, kReservedUnit));
  pool->most_reserved = std::max(pool->most_reserved, pool->reserved);
  return cudaSuccess;
}

// The attribute's place in the pool, if it is one of 64 bits; else null.
uint64_t* figure(CUmemPoolHandle_st& pool, cudaMemPoolAttr attribute) {
  switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold:
      return &pool.threshold;
    case cudaMemPoolAttrReservedMemCurrent:
      return &pool.reserved;
    case cudaMemPoolAttrReservedMemHigh:
      return &pool.most_reserved;
    case cudaMemPoolAttrUsedMemCurrent:
      return &pool.used;
    case cudaMemPoolAttrUsedMemHigh:
      return &pool.most_used;
    default:
      return nullptr;
  }
}
int* reuse_switch(CUmemPoolHandle_st& pool, cudaMemPoolAttr attribute) {
  const int first = cudaMemPoolReuseFollowEventDependencies;
  const int i = static_cast<int>(attribute) - first;
  return i >= 0 && i < 3 ? &pool.reuse[i] : nullptr;
}

}  // namespace

bool is_of_pool(const void* address) {
  std::lock_guard lock(pools().mutex);
  return pools().allocations.count(address) > 0;
}

void leave_pool(const void* address) {
  std::lock_guard lock(pools().mutex);
  auto found = pools().allocations.find(address);
  if (found == pools().allocations.end()) return;
  auto [pool, bytes] = found->second;
  pools().allocations.erase(found);
  pool->used -= bytes;
  release_beyond(*pool, pool->threshold);
  if (pool->is_destroyed && pool->used == 0) pools().remove(pool);
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

// The codes for a device that is not there are an H200's.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (!pool) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  *pool = pools().standard;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  if (!pool || device != 0) return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(pools().mutex);
  *pool = pools().current;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  if (device != 0) return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(pools().mutex);
  if (!pools().knows(pool)) return set_error(cudaErrorInvalidValue);
  pools().current = pool;
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* wanted) {
  if (!pool || !wanted || wanted->allocType != cudaMemAllocationTypePinned ||
      wanted->location.type != cudaMemLocationTypeDevice)
    return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = check_device(wanted->location.id); error != cudaSuccess) return error;
  if (wanted->handleTypes != cudaMemHandleTypeNone)
    return set_error(cudaErrorNotSupported, "a pool that processes share");
  *pool = new CUmemPoolHandle_st;
  (*pool)->largest = wanted->maxSize;
  std::lock_guard lock(pools().mutex);
  pools().created.push_back(*pool);
  return cudaSuccess;
}
// Destroy a pool. Memory that was allocated from it stays until it is freed.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  std::lock_guard lock(pools().mutex);
  if (!pools().knows(pool) || pool == pools().standard) return set_error(cudaErrorInvalidValue);
  if (pools().current == pool) pools().current = pools().standard;
  pool->is_destroyed = true;
  if (pool->used == 0) pools().remove(pool);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  std::lock_guard lock(pools().mutex);
  if (!value || !pools().knows(pool)) return set_error(cudaErrorInvalidValue);
  if (const uint64_t* place = figure(*pool, attribute))
    *static_cast<uint64_t*>(value) = *place;
  else if (const int* choice = reuse_switch(*pool, attribute))
    *static_cast<int*>(value) = *choice;
  else
    return set_error(cudaErrorInvalidValue);
  return cudaSuccess;
}
// The figures can only be read, and the highest ones set to 0.
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  std::lock_guard lock(pools().mutex);
  if (!value || !pools().knows(pool)) return set_error(cudaErrorInvalidValue);
  if (int* choice = reuse_switch(*pool, attribute)) {
    *choice = *static_cast<const int*>(value);
    return cudaSuccess;
  }
  const uint64_t wanted = *static_cast<const uint64_t*>(value);
  if (attribute == cudaMemPoolAttrReleaseThreshold)
    pool->threshold = wanted;
  else if (attribute == cudaMemPoolAttrUsedMemHigh && wanted == 0)
    pool->most_used = pool->used;
  else if (attribute == cudaMemPoolAttrReservedMemHigh && wanted == 0)
    pool->most_reserved = pool->reserved;
  else
    return set_error(cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t kept) {
  std::lock_guard lock(pools().mutex);
  if (!pools().knows(pool)) return set_error(cudaErrorInvalidValue);
  release_beyond(*pool, kept);
  return cudaSuccess;
}

// Access from the device that has the pool is always there; there is no other.
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* accesses,
                                 size_t count) {
  std::lock_guard lock(pools().mutex);
  if (!pools().knows(pool) || (count && !accesses)) return set_error(cudaErrorInvalidValue);
  for (size_t i = 0; i < count; ++i) {
    const cudaMemLocation& location = accesses[i].location;
    if (location.type != cudaMemLocationTypeDevice) return set_error(cudaErrorInvalidValue);
    if (location.id != 0) return set_error(cudaErrorInvalidDevice, "there is only one device");
    if (accesses[i].flags != cudaMemAccessFlagsProtReadWrite)
      return set_error(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool,
                                 cudaMemLocation* location) {
  std::lock_guard lock(pools().mutex);
  if (!flags || !location || !pools().knows(pool)) return set_error(cudaErrorInvalidValue);
  if (location->type != cudaMemLocationTypeDevice || location->id != 0)
    return set_error(cudaErrorInvalidDevice, "there is only one device");
  *flags = cudaMemAccessFlagsProtReadWrite;
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  cudaMemPool_t pool;
  if (cudaError_t status = cudaDeviceGetMemPool(&pool, 0); status != cudaSuccess) return status;
  return allocate_from(address, bytes, pool, stream);
}
cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return allocate_from(address, bytes, pool, stream);
}

}  // extern "C"

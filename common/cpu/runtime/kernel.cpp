// Data of each kernel, and the part of the runtime API that queries or sets it.
#include "runtime.h"

#include <unordered_map>

namespace cudacpu {

Kernel& kernel_at(const void* address) {
  static auto& kernels = *new std::unordered_map<const void*, Kernel>;
  static auto& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  return kernels[address];
}

KnownKernel::KnownKernel(const KernelType& type) : KernelType(type) {
  kernel_at(address).type.store(this);
}

std::string more_shared_than_set(size_t bytes, const Kernel& kernel) {
  const std::string text = format("dynamic shared memory of %zu bytes: ", bytes);
  const size_t most = kernel.max_dynamic();
  if (kernel.dynamic_limit.load())
    return text + format("cudaFuncSetAttribute has allowed this kernel %zu", most);
  return text + format(
                    "a kernel has at most %zu until cudaFuncSetAttribute allows it more "
                    "(cudaFuncAttributeMaxDynamicSharedMemorySize)",
                    most);
}

namespace {

constexpr uint64_t kMultiprocessorsOfGroup = 16;
constexpr int kRegisters = 32;  // of a thread: unknown here; with 32, they do not limit anything

// Blocks of the model's multiprocessor: limited by threads and by shared memory.
int resident_blocks(const void* function, int threads, size_t dynamic) {
  const Kernel& kernel = kernel_at(function);
  if (threads <= 0 || threads > static_cast<int>(kernel.max_threads.load())) return 0;
  if (dynamic > kernel.max_dynamic()) return 0;
  const Model& card = model();
  size_t shared = dynamic + kernel.static_shared.load() + card.shared_reserved;
  int rounded = (threads + 31) / 32 * 32;
  int by_shared = shared ? static_cast<int>(card.shared / shared) : card.blocks;
  return std::min({card.threads / rounded, card.blocks, by_shared});
}

// Blocks that can be resident in a group of multiprocessors, within which a cluster has to be.
uint64_t blocks_side_by_side(const void* function, const cudaLaunchConfig_t& config) {
  const dim3& block = config.blockDim;
  uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaxThreadsPerBlock) return 0;
  return kMultiprocessorsOfGroup *
         static_cast<uint64_t>(
             resident_blocks(function, static_cast<int>(threads), config.dynamicSmemBytes));
}

}  // namespace

uint64_t most_resident(const Launch& launch) {
  const KernelType* type = launch.type.load();
  return static_cast<uint64_t>(model().multiprocessors) *
         static_cast<uint64_t>(resident_blocks(type ? type->address : nullptr,
                                               static_cast<int>(launch.threads),
                                               launch.config.shared_bytes));
}

cudaError_t check_cooperative(const void* kernel, const Configuration& config) {
  const dim3 &grid = config.grid, &block = config.block;
  if (std::string wrong = wrong_with_shape(grid, block); !wrong.empty())
    return set_error(cudaErrorInvalidConfiguration, std::move(wrong));
  uint64_t threads = uint64_t{block.x} * block.y * block.z;
  uint64_t resident = static_cast<uint64_t>(
      resident_blocks(kernel, static_cast<int>(threads), config.shared_bytes));
  uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (blocks <= resident * static_cast<uint64_t>(model().multiprocessors)) return cudaSuccess;
  return set_error(cudaErrorCooperativeLaunchTooLarge);
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (!function) return set_error(cudaErrorInvalidDeviceFunction);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize: {
      Kernel& kernel = kernel_at(function);
      if (value < 0) return set_error(cudaErrorInvalidValue);
      const size_t bytes = static_cast<size_t>(value) + kernel.static_shared.load();
      if (bytes > most_shared())
        return set_error(cudaErrorInvalidValue, too_much_shared(bytes, most_shared()));
      kernel.dynamic_limit.store(static_cast<size_t>(value));
      return cudaSuccess;
    }
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      if (value != 0 && value != 1) return set_error(cudaErrorInvalidValue);
      kernel_at(function).any_cluster_size.store(value == 1);
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return value < -1 || value > 100 ? set_error(cudaErrorInvalidValue) : cudaSuccess;
    default:
      return set_error(cudaErrorNotSupported);
  }
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (!attributes) return set_error(cudaErrorInvalidValue);
  if (!function) return set_error(cudaErrorInvalidDeviceFunction);
  const Kernel& kernel = kernel_at(function);
  *attributes = {};
  attributes->sharedSizeBytes = kernel.static_shared.load();
  attributes->maxThreadsPerBlock = static_cast<int>(kernel.max_threads.load());
  attributes->numRegs = kRegisters;
  attributes->binaryVersion = attributes->ptxVersion = model().capability;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernel.max_dynamic());
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  return cudaSuccess;
}
cudaError_t cudaFuncSetSharedMemConfig(const void*, cudaSharedMemConfig) {
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int threads, size_t dynamic) {
  if (!blocks || threads <= 0) return set_error(cudaErrorInvalidValue);
  *blocks = resident_blocks(function, threads, dynamic);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                   const void* function,
                                                                   int threads, size_t dynamic,
                                                                   unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, dynamic);
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function,
                                                 const cudaLaunchConfig_t* config) {
  if (!size || !config) return set_error(cudaErrorInvalidValue);
  if (model().max_cluster == 1) return set_error(cudaErrorNotSupported);
  unsigned limit =
      kernel_at(function).any_cluster_size.load() ? model().max_cluster : kPortableClusterSize;
  *size = static_cast<int>(std::min<uint64_t>(limit, blocks_side_by_side(function, *config)));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
  if (!clusters || !config) return set_error(cudaErrorInvalidValue);
  if (model().max_cluster == 1) return set_error(cudaErrorNotSupported);
  Configuration wanted{config->gridDim, config->blockDim, config->dynamicSmemBytes};
  read_attributes(*config, wanted);
  uint64_t size = uint64_t{wanted.cluster.x} * wanted.cluster.y * wanted.cluster.z;
  bool any = kernel_at(function).any_cluster_size.load();
  if (size == 0 || size > (any ? model().max_cluster : kPortableClusterSize))
    return set_error(cudaErrorInvalidClusterSize);
  const uint64_t groups = std::max<uint64_t>(
      1, static_cast<uint64_t>(model().multiprocessors) / kMultiprocessorsOfGroup);
  *clusters = static_cast<int>(blocks_side_by_side(function, *config) / size * groups);
  return cudaSuccess;
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* dynamic, const void* function,
                                                      int blocks, int) {
  if (!dynamic || blocks <= 0) return set_error(cudaErrorInvalidValue);
  size_t each = model().shared / static_cast<size_t>(blocks);
  size_t used = kernel_at(function).static_shared.load() + model().shared_reserved;
  *dynamic = std::min(each > used ? each - used : 0, kernel_at(function).max_dynamic());
  return cudaSuccess;
}

}  // extern "C"

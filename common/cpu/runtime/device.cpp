// The device, which plays the card of a model (models.h).
#include "graph.h"

#include <cuda_profiler_api.h>

#include <unistd.h>

namespace cudacpu {

namespace {

// Everything is either the card's limit, which kernels are held to, or a fact about this machine,
// as its memory is. What the emulation has no notion of (clock rates, bus widths) stays 0.
cudaDeviceProp properties_of_model() {
  const Model& card = model();
  cudaDeviceProp p = {};
  snprintf(p.name, sizeof p.name, "%s", device_name().c_str());
  p.major = card.capability / 10;
  p.minor = card.capability % 10;
  p.multiProcessorCount = card.multiprocessors;
  p.totalGlobalMem = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  p.sharedMemPerBlock = kSharedDefault;
  p.sharedMemPerBlockOptin = card.shared_opt_in;
  p.sharedMemPerMultiprocessor = card.shared;
  p.reservedSharedMemPerBlock = card.shared_reserved;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = static_cast<int>(kWarpSize);
  p.maxThreadsPerBlock = static_cast<int>(kMaxThreadsPerBlock);
  p.maxThreadsPerMultiProcessor = card.threads;
  p.maxBlocksPerMultiProcessor = card.blocks;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = max_grid_y();
  p.totalConstMem = 65536;
  p.memPitch = 0x7fffffff;
  p.textureAlignment = kTextureAlignment;
  p.texturePitchAlignment = kTexturePitchAlignment;
  p.surfaceAlignment = kTextureAlignment;
  p.maxTexture1D = p.maxSurface1D = kMaxWidth;
  p.maxTexture2D[0] = p.maxSurface2D[0] = kMaxWidth;
  p.maxTexture2D[1] = p.maxSurface2D[1] = kMaxHeight;
  for (int d = 0; d < 3; ++d) p.maxTexture3D[d] = p.maxSurface3D[d] = kMaxSide3D;
  p.l2CacheSize = static_cast<int>(card.l2);
  p.unifiedAddressing = p.managedMemory = p.concurrentManagedAccess = 1;
  p.canMapHostMemory = p.hostRegisterSupported = p.streamPrioritiesSupported = 1;
  p.memoryPoolsSupported = p.concurrentKernels = p.computePreemptionSupported = 1;
  p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.asyncEngineCount = card.copy_engines;
  p.pageableMemoryAccess = !refuses_host_pointers();
  p.canUseHostPointerForRegisteredMem = p.directManagedMemAccessFromHost = 1;
  p.cooperativeLaunch = 1;
  p.clusterLaunch = card.max_cluster > 1;
  p.integrated = 1;  // host and device share their memory
  p.pciDeviceID = p.pciBusID = p.pciDomainID = 0;
  return p;
}

size_t available_memory() {
  FILE* file = fopen("/proc/meminfo", "r");
  size_t kilobytes = 0;
  char line[128];
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "MemAvailable: %zu kB", &kilobytes) == 1) break;
  if (file) fclose(file);
  return kilobytes * 1024;
}

size_t stack_limit = 1024, printf_limit = 1 << 20, heap_limit = 8 << 20;

size_t* limit_of(cudaLimit limit) {
  switch (limit) {
    case cudaLimitStackSize:
      return &stack_limit;
    case cudaLimitPrintfFifoSize:
      return &printf_limit;
    case cudaLimitMallocHeapSize:
      return &heap_limit;
    default:
      return nullptr;
  }
}

}  // namespace

size_t device_heap_bytes() {
  return heap_limit;
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return check_device(device);
}
cudaError_t cudaSetDeviceFlags(unsigned) {
  return cudaSuccess;
}

cudaError_t cudaCtxResetPersistingL2Cache() {
  return cudaSuccess;
}

// There is one device, which is no peer of itself.
cudaError_t cudaDeviceGetP2PAttribute(int*, cudaDeviceP2PAttr, int, int) {
  return set_error(cudaErrorInvalidDevice, "there is only one device");
}
cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* properties) {
  if (!device || !properties) return set_error(cudaErrorInvalidValue);
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  if (!flags) return set_error(cudaErrorInvalidValue);
  *flags = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!properties) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  *properties = properties_of_model();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!value) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  const cudaDeviceProp p = properties_of_model();
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = p.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = p.maxThreadsDim[1];
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = p.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = p.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
      *value = p.maxGridSize[1];
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = p.maxGridSize[2];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = static_cast<int>(p.reservedSharedMemPerBlock);
      break;
    case cudaDevAttrTotalConstantMemory:
      *value = static_cast<int>(p.totalConstMem);
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = p.regsPerBlock;
      break;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = p.regsPerMultiprocessor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = p.maxBlocksPerMultiProcessor;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrIntegrated:
      *value = p.integrated;
      break;
    case cudaDevAttrCanMapHostMemory:
      *value = p.canMapHostMemory;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = p.unifiedAddressing;
      break;
    case cudaDevAttrManagedMemory:
      *value = p.managedMemory;
      break;
    case cudaDevAttrPageableMemoryAccess:
      *value = p.pageableMemoryAccess;
      break;
    case cudaDevAttrConcurrentManagedAccess:
      *value = p.concurrentManagedAccess;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = p.memoryPoolsSupported;
      break;
    case cudaDevAttrStreamPrioritiesSupported:
      *value = p.streamPrioritiesSupported;
      break;
    case cudaDevAttrClusterLaunch:
      *value = p.clusterLaunch;
      break;
    case cudaDevAttrCooperativeLaunch:
      *value = p.cooperativeLaunch;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = p.asyncEngineCount;
      break;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
      *value = 1;
      break;
    case cudaDevAttrMaxPitch:
      *value = static_cast<int>(p.memPitch);
      break;
    case cudaDevAttrTextureAlignment:
      *value = static_cast<int>(p.textureAlignment);
      break;
    case cudaDevAttrTexturePitchAlignment:
      *value = static_cast<int>(p.texturePitchAlignment);
      break;
    case cudaDevAttrMaxTexture1DWidth:
      *value = p.maxTexture1D;
      break;
    case cudaDevAttrMaxTexture2DWidth:
      *value = p.maxTexture2D[0];
      break;
    case cudaDevAttrMaxTexture2DHeight:
      *value = p.maxTexture2D[1];
      break;
    case cudaDevAttrMaxTexture3DWidth:
    case cudaDevAttrMaxTexture3DHeight:
    case cudaDevAttrMaxTexture3DDepth:
      *value = p.maxTexture3D[0];
      break;
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      *value = 1;
      break;
    default:
      if (attribute <= 0 || attribute >= cudaDevAttrMax) return set_error(cudaErrorInvalidValue);
      *value = 0;  // what the emulation has no notion of, such as clocks, or does not do
  }
  return cudaSuccess;
}

// All work was done when it was called, unless streams are late.
cudaError_t cudaDeviceSynchronize() {
  const cudaError_t error = refuse_for_device("cudaDeviceSynchronize");
  return error != cudaSuccess ? error : wait_for_all();
}
cudaError_t cudaDeviceReset() {
  cudaError_t error = refuse_for_device("cudaDeviceReset");
  if (error == cudaSuccess) error = wait_for_all();
  lose_context(cudaSuccess);
  return error;
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  size_t* stored = limit_of(limit);
  if (!value || !stored)
    return set_error(value ? cudaErrorUnsupportedLimit : cudaErrorInvalidValue);
  *value = *stored;
  return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  size_t* stored = limit_of(limit);
  if (!stored) return set_error(cudaErrorUnsupportedLimit);
  *stored = value;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  if (!config) return set_error(cudaErrorInvalidValue);
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return cudaSuccess;
}
// Banks have four bytes on every card since Maxwell, whatever is set.
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
  if (!config) return set_error(cudaErrorInvalidValue);
  *config = cudaSharedMemBankSizeFourByte;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!can) return set_error(cudaErrorInvalidValue);
  *can = 0;
  return device == 0 && peer == 0 ? cudaSuccess : set_error(cudaErrorInvalidDevice);
}

// For a profiler that records nothing outside of them.
cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (!id || length < 13) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  snprintf(id, static_cast<size_t>(length), "0000:00:00.0");
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return set_error(cudaErrorInvalidValue);
  *version = CUDART_VERSION;  // of the headers that the runtime was built with
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (free) *free = available_memory();
  if (total) *total = properties_of_model().totalGlobalMem;
  return cudaSuccess;
}

}  // extern "C"

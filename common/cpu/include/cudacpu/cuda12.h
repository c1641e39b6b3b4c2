// Functions of the runtime API as they were before CUDA 13, for programs that were written for
// earlier toolkits.
#pragma once

namespace cudacpu {
inline cudaMemLocation location_of(int device) {
  cudaMemLocation location{};
  location.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  location.id = device == cudaCpuDeviceId ? 0 : device;
  return location;
}
}  // namespace cudacpu

inline cudaError_t cudaMemPrefetchAsync(const void* from, size_t bytes, int device,
                                        cudaStream_t stream = nullptr) {
  return ::cudaMemPrefetchAsync(from, bytes, cudacpu::location_of(device), 0, stream);
}
inline cudaError_t cudaMemAdvise(const void* from, size_t bytes, cudaMemoryAdvise advice,
                                 int device) {
  return ::cudaMemAdvise(from, bytes, advice, cudacpu::location_of(device));
}
// (NVIDIA's header has this one for nvcc only.)
inline cudaError_t cudaGraphExecUpdate(cudaGraphExec_t graph, cudaGraph_t source,
                                       cudaGraphNode_t* error_node,
                                       cudaGraphExecUpdateResult* result) {
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t error = ::cudaGraphExecUpdate(graph, source, &info);
  if (error_node) *error_node = info.errorNode;
  if (result) *result = info.result;
  return error;
}
inline cudaError_t cudaThreadSynchronize() {
  return cudaDeviceSynchronize();
}
inline cudaError_t cudaThreadExit() {
  return cudaDeviceReset();
}

// The members of cudaDeviceProp that CUDA 13 has removed; in programs, which own their types.
#ifdef CUDACPU_PROGRAM_MODEL

struct cudacpu_DeviceProp : cudaDeviceProp {
  int clockRate, memoryClockRate, deviceOverlap, kernelExecTimeoutEnabled, computeMode;
  int maxTexture1DLinear, singleToDoublePrecisionPerfRatio, cooperativeMultiDeviceLaunch;
};

inline cudaError_t cudaGetDeviceProperties(cudacpu_DeviceProp* properties, int device) {
  const cudaError_t error =
      ::cudaGetDeviceProperties(static_cast<cudaDeviceProp*>(properties), device);
  if (error != cudaSuccess) return error;
  cudacpu_DeviceProp& p = *properties;
  cudaDeviceGetAttribute(&p.clockRate, cudaDevAttrClockRate, device);
  cudaDeviceGetAttribute(&p.memoryClockRate, cudaDevAttrMemoryClockRate, device);
  cudaDeviceGetAttribute(&p.deviceOverlap, cudaDevAttrGpuOverlap, device);
  cudaDeviceGetAttribute(&p.kernelExecTimeoutEnabled, cudaDevAttrKernelExecTimeout, device);
  cudaDeviceGetAttribute(&p.computeMode, cudaDevAttrComputeMode, device);
  cudaDeviceGetAttribute(&p.maxTexture1DLinear, cudaDevAttrMaxTexture1DLinearWidth, device);
  cudaDeviceGetAttribute(&p.singleToDoublePrecisionPerfRatio,
                         cudaDevAttrSingleToDoublePrecisionPerfRatio, device);
  p.cooperativeMultiDeviceLaunch = 0;
  return cudaSuccess;
}

#define cudaDeviceProp cudacpu_DeviceProp

#endif

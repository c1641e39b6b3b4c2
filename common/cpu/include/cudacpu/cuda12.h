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

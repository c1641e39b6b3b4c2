// 3D memory and copies: slices of rows, each slice as a 2D copy; and copies between devices, of
// which there is one.
#include "graph.h"

using namespace cudacpu;

namespace {

// The first byte of slice z.
char* slice(const cudaPitchedPtr& memory, const cudaPos& at, size_t z) {
  return static_cast<char*>(memory.ptr) + ((at.z + z) * memory.ysize + at.y) * memory.pitch + at.x;
}

}  // namespace

namespace cudacpu {

cudaError_t slices_of(const cudaMemcpy3DParms* copy, std::vector<Copy>& slices) {
  if (!copy) return set_error(cudaErrorInvalidValue);
  if (copy->srcArray || copy->dstArray)
    return set_error(cudaErrorNotSupported, "arrays, which are for textures");
  for (size_t z = 0; z < copy->extent.depth; ++z) {
    slices.push_back({slice(copy->dstPtr, copy->dstPos, z), copy->dstPtr.pitch,
                      slice(copy->srcPtr, copy->srcPos, z), copy->srcPtr.pitch, copy->extent.width,
                      copy->extent.height, copy->kind});
  }
  return cudaSuccess;
}

}  // namespace cudacpu

extern "C" {

cudaError_t cudaMalloc3D(cudaPitchedPtr* memory, cudaExtent extent) {
  if (!memory) return set_error(cudaErrorInvalidValue);
  *memory = {nullptr, 0, extent.width, extent.height};
  return cudaMallocPitch(&memory->ptr, &memory->pitch, extent.width, extent.height * extent.depth);
}
cudaError_t cudaMemset3DAsync(cudaPitchedPtr memory, int value, cudaExtent extent,
                              cudaStream_t stream) {
  for (size_t z = 0; z < extent.depth; ++z) {
    cudaError_t status = cudaMemset2DAsync(slice(memory, {}, z), memory.pitch, value, extent.width,
                                           extent.height, stream);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
cudaError_t cudaMemset3D(cudaPitchedPtr memory, int value, cudaExtent extent) {
  return cudaMemset3DAsync(memory, value, extent, nullptr);
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* copy, cudaStream_t stream) {
  std::vector<Copy> slices;
  cudaError_t status = slices_of(copy, slices);
  for (size_t z = 0; status == cudaSuccess && z < slices.size(); ++z) {
    const Copy& c = slices[z];
    status = cudaMemcpy2DAsync(c.to, c.to_pitch, c.from, c.from_pitch, c.width, c.height, c.kind,
                               stream);
  }
  return status;
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* copy) {
  const cudaError_t status = cudaMemcpy3DAsync(copy, nullptr);
  return status != cudaSuccess ? status : wait_for(cudaStreamLegacy);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  for (int device : {to_device, from_device})
    if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                           size_t bytes) {
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr);
}
// A device is no peer of itself, and there is no other.
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned flags) {
  return set_error(flags ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceDisablePeerAccess(int) {
  return set_error(cudaErrorInvalidDevice);
}

}  // extern "C"

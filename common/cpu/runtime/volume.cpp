// 3D memory and copies, also of arrays: slices of rows, each slice as a 2D copy; and copies between
// devices, of which there is one.
#include "texture.h"

using namespace cudacpu;

namespace {

// The first byte of slice z.
char* slice(const cudaPitchedPtr& memory, const cudaPos& at, size_t z) {
  return static_cast<char*>(memory.ptr) + ((at.z + z) * memory.ysize + at.y) * memory.pitch + at.x;
}

// One end of a copy as bytes: an array's memory and a position in it, which is in elements.
struct End {
  cudaPitchedPtr memory;
  cudaPos at;
};
// Return false if there is no such array, or the extent does not fit into it.
bool end_of(const cudaArray* array, cudaPos at, const cudaExtent& extent, End& end) {
  if (!is_array(array) || at.x + extent.width > array->extent.width ||
      at.y + extent.height > array->rows() || at.z + extent.depth > array->slices())
    return false;
  at.x *= array->element_bytes();
  end = {{array->data, array->pitch(), array->pitch(), array->rows()}, at};
  return true;
}

}  // namespace

namespace cudacpu {

cudaError_t slices_of(const cudaMemcpy3DParms* copy, std::vector<Copy>& slices) {
  if (!copy) return set_error(cudaErrorInvalidValue);
  End to{copy->dstPtr, copy->dstPos}, from{copy->srcPtr, copy->srcPos};
  cudaExtent extent = copy->extent;
  const cudaArray *target = copy->dstArray, *source = copy->srcArray;
  if ((target && !end_of(target, copy->dstPos, extent, to)) ||
      (source && !end_of(source, copy->srcPos, extent, from)) ||
      (target && source && target->element_bytes() != source->element_bytes()))
    return set_error(cudaErrorInvalidValue);
  // Elements where an array takes part, else bytes.
  if (target || source) extent.width *= (target ? target : source)->element_bytes();
  const bool is_one =
      to.memory.ysize == extent.height && from.memory.ysize == extent.height;  // as one slice
  if (is_one) extent = {extent.width, extent.height * extent.depth, 1};
  for (size_t z = 0; z < extent.depth; ++z) {
    slices.push_back({slice(to.memory, to.at, z), to.memory.pitch, slice(from.memory, from.at, z),
                      from.memory.pitch, extent.width, extent.height, copy->kind});
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

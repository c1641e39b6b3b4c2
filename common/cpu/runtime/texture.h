// Arrays, textures and surfaces, as the functions of the runtime API make them (array.cpp) and
// kernels use them (texture.cpp).
#pragma once

#include "graph.h"

// NVIDIA's headers name this type and leave it open. Texels lie row by row, without gaps.
struct cudaArray {
  cudaChannelFormatDesc format;
  cudaExtent extent;  // in elements; 0 for a dimension that it lacks; depth: layers, if it has some
  unsigned flags;
  char* data;

  bool layered() const { return flags & cudaArrayLayered; }
  size_t element_bytes() const {
    return static_cast<size_t>(format.x + format.y + format.z + format.w) / 8;
  }
  size_t pitch() const { return extent.width * element_bytes(); }
  size_t rows() const { return std::max<size_t>(extent.height, 1); }
  size_t slices() const { return std::max<size_t>(extent.depth, 1); }
};

namespace cudacpu {

// The memory that a texture or a surface covers.
struct Image {
  char* data;
  int size[3];   // elements along x, y, z; 1 for a dimension that it lacks
  int layers;    // 0 without them
  size_t pitch;  // bytes from one row to the next
  int dimensions;
  unsigned component_bits;
  unsigned components;
  cudaChannelFormatKind kind;

  size_t element_bytes() const { return component_bits / 8 * components; }
  size_t slice_bytes() const { return pitch * static_cast<size_t>(size[1]); }
};

struct Texture {
  cudaResourceDesc resource;
  cudaTextureDesc description;
  Image image;
  bool returns_float;
  bool is_linear_memory;
};

struct Surface {
  cudaResourceDesc resource;
  Image image;
};

// Return true if it is an array that exists.
bool is_array(const cudaArray* array);
// The object of this handle; null for a handle that does not exist.
const Texture* texture_at(cudaTextureObject_t handle);
const Surface* surface_at(cudaSurfaceObject_t handle);

}  // namespace cudacpu

// Texture fetches, and reads and writes of surfaces, by kernels.
//
// The rules are those of "Texture Fetching" in NVIDIA's CUDA C++ Programming Guide: how coordinates
// outside of the texture are mapped into it, and that the weights of linear filtering have 8 bits
// of fraction. The guide does not say how a weight gets its 8 bits; here it is rounded to nearest.
#include "texture.h"

#include <cuda_fp16.h>

#include <cmath>

namespace cudacpu {

namespace {

constexpr float kWeightSteps = 256;
constexpr float kFarthest = 1e9f;  // a coordinate, so that its element fits into an int
constexpr int kOutside = -1;       // the border

// Along one dimension: the elements that a coordinate lies between, and the second one's weight.
struct Taps {
  int at[2];
  float weight;
};

// Return the place of element i among n, or kOutside.
int place(int i, int n, cudaTextureAddressMode mode) {
  auto modulo = [](int a, int b) { return (a % b + b) % b; };
  switch (mode) {
    case cudaAddressModeWrap:
      return modulo(i, n);
    case cudaAddressModeMirror: {
      const int there = modulo(i, 2 * n);
      return there < n ? there : 2 * n - 1 - there;
    }
    case cudaAddressModeBorder:
      return i < 0 || i >= n ? kOutside : i;
    default:
      return std::clamp(i, 0, n - 1);
  }
}

Taps taps(float x, int n, cudaTextureAddressMode mode, const cudaTextureDesc& description) {
  if (description.normalizedCoords) {
    if (mode == cudaAddressModeWrap) x -= std::floor(x);
    if (mode == cudaAddressModeMirror) x -= 2 * std::floor(x / 2);
    x *= static_cast<float>(n);
  } else if (mode == cudaAddressModeWrap || mode == cudaAddressModeMirror) {
    mode = cudaAddressModeClamp;  // the two need normalised coordinates
  }
  const bool linear = description.filterMode == cudaFilterModeLinear;
  if (linear) x -= 0.5f;
  x = x > kFarthest ? kFarthest : x > -kFarthest ? x : -kFarthest;  // also of NaN
  const float below = std::floor(x);
  const int i = static_cast<int>(below);
  if (!linear) return {{place(i, n, mode), 0}, 0};
  const float weight = std::floor((x - below) * kWeightSteps + 0.5f) / kWeightSteps;
  return {{place(i, n, mode), place(i + 1, n, mode)}, weight};
}

template <class T>
T load(const char* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

// A component of an element, as 32 bits.
unsigned component(const Texture& texture, const char* at) {
  const Image& image = texture.image;
  const bool is_byte = image.component_bits == 8;
  if (image.component_bits == 32) return load<unsigned>(at);
  if (image.kind == cudaChannelFormatKindFloat)
    return bits<unsigned>(__half2float(load<__half_raw>(at)));
  // The largest number is 1, and so is the smallest -1, of which there are two.
  if (image.kind == cudaChannelFormatKindUnsigned) {
    const unsigned value = is_byte ? load<uint8_t>(at) : load<uint16_t>(at);
    if (!texture.returns_float) return value;
    return bits<unsigned>(static_cast<float>(value) / (is_byte ? 255.0f : 65535.0f));
  }
  const int value = is_byte ? load<int8_t>(at) : load<int16_t>(at);
  if (!texture.returns_float) return static_cast<unsigned>(value);
  const float part = static_cast<float>(value) / (is_byte ? 127.0f : 32767.0f);
  return bits<unsigned>(part < -1 ? -1.0f : part);
}

// The element at these places, or the border's colour.
Texel element(const Texture& texture, int x, int y, int z, Site site) {
  Texel texel = {};
  const Image& image = texture.image;
  if (x == kOutside || y == kOutside || z == kOutside) {
    if (!texture.is_linear_memory)
      for (unsigned i = 0; i < image.components; ++i)
        texel.bits[i] = bits<unsigned>(texture.description.borderColor[i]);
    return texel;
  }
  const char* at = image.data + static_cast<size_t>(z) * image.slice_bytes() +
                   static_cast<size_t>(y) * image.pitch +
                   static_cast<size_t>(x) * image.element_bytes();
  check_access(at, image.element_bytes(), false, site);
  trace::image_accessed(at, image.element_bytes(), trace::Kind::kRead, site);
  for (unsigned i = 0; i < image.components; ++i)
    texel.bits[i] = component(texture, at + i * (image.component_bits / 8));
  return texel;
}

// Trap unless the function fits the number of dimensions; further ones may have one element.
void check_shape(const Image& image, const ImageCall& call) {
  const bool too_many =
      (call.dimensions < 2 && image.size[1] > 1) || (call.dimensions < 3 && image.size[2] > 1);
  if (!too_many && call.layered == (image.layers > 0)) return;
  trap(call.site, "%s of an image with %d %s%s", call.function, image.dimensions,
       image.dimensions == 1 ? "dimension" : "dimensions", image.layers ? " and layers" : "");
}

const Texture& checked(cudaTextureObject_t handle, TexelType type, const ImageCall& call) {
  const Texture* texture = texture_at(handle);
  if (!texture)
    trap(call.site, "%s: 0x%llx is no texture object: never created, or destroyed", call.function,
         handle);
  check_shape(texture->image, call);
  if (type.components > texture->image.components)
    trap(call.site, "%s reads %u components of a texture that has %u", call.function,
         type.components, texture->image.components);
  // Words of 32 bits may stand for either.
  if (type.is_float != texture->returns_float && texture->image.component_bits != 32)
    trap(call.site, "%s reads %s of a texture that returns %s", call.function,
         type.is_float ? "float" : "integers", texture->returns_float ? "float" : "integers");
  return *texture;
}

// The byte of a surface, or null where nothing is to be done.
char* surface_byte(size_t bytes, cudaSurfaceObject_t handle, SurfacePlace at,
                   cudaSurfaceBoundaryMode mode, const ImageCall& call) {
  const Surface* surface = surface_at(handle);
  if (!surface)
    trap(call.site, "%s: 0x%llx is no surface object: never created, or destroyed", call.function,
         handle);
  const Image& image = surface->image;
  check_shape(image, call);
  const int size = static_cast<int>(bytes), row = static_cast<int>(image.pitch);
  if (at.x % size)
    trap(call.site,
         "%s at byte %d, which is no multiple of the %zu bytes that are accessed (x is "
         "in bytes)",
         call.function, at.x, bytes);
  const int depth = image.layers ? image.layers : image.size[2];
  const SurfacePlace last{row - size, image.size[1] - 1, depth - 1};
  const bool outside =
      at.x < 0 || at.x > last.x || at.y < 0 || at.y > last.y || at.z < 0 || at.z > last.z;
  if (outside && mode == cudaBoundaryModeZero) return nullptr;
  if (outside && mode == cudaBoundaryModeTrap)
    trap(call.site,
         "%s outside of the surface: byte %d of a row of %d, row %d of %d, slice %d of "
         "%d",
         call.function, at.x, row, at.y, image.size[1], at.z, depth);
  at = {std::clamp(at.x, 0, last.x), std::clamp(at.y, 0, last.y), std::clamp(at.z, 0, last.z)};
  return image.data + static_cast<size_t>(at.z) * image.slice_bytes() +
         static_cast<size_t>(at.y) * image.pitch + static_cast<size_t>(at.x);
}

}  // namespace

Texel fetch_texel(cudaTextureObject_t handle, int x, TexelType type, ImageCall call) {
  const Texture& texture = checked(handle, type, call);
  const auto mode =
      texture.is_linear_memory || texture.description.addressMode[0] == cudaAddressModeBorder
          ? cudaAddressModeBorder
          : cudaAddressModeClamp;
  return element(texture, place(x, texture.image.size[0], mode), 0, 0, call.site);
}

Texel sample_texture(cudaTextureObject_t handle, Coordinates at, TexelType type, ImageCall call) {
  const Texture& texture = checked(handle, type, call);
  if (texture.is_linear_memory)
    trap(call.site, "%s of linear memory, which only tex1Dfetch reads", call.function);
  const Image& image = texture.image;
  const cudaTextureDesc& description = texture.description;
  Taps taps_of[3];
  const float x[] = {at.x, at.y, at.z};
  for (int d = 0; d < 3; ++d)
    taps_of[d] = d < call.dimensions
                     ? taps(x[d], image.size[d], description.addressMode[d], description)
                     : Taps{{0, 0}, 0};
  if (image.layers) taps_of[2].at[0] = std::clamp(at.layer, 0, image.layers - 1);
  // Also in the middle of an element, where the neighbours have no weight.
  if (taps_of[0].weight == 0 && taps_of[1].weight == 0 && taps_of[2].weight == 0)
    return element(texture, taps_of[0].at[0], taps_of[1].at[0], taps_of[2].at[0], call.site);
  float sum[4] = {};
  for (int corner = 0; corner < 1 << call.dimensions; ++corner) {
    float weight = 1;
    int place[] = {0, 0, taps_of[2].at[0]};
    for (int d = 0; d < call.dimensions; ++d) {
      const int second = corner >> d & 1;
      place[d] = taps_of[d].at[second];
      weight *= second ? taps_of[d].weight : 1 - taps_of[d].weight;
    }
    if (weight == 0) continue;
    const Texel texel = element(texture, place[0], place[1], place[2], call.site);
    for (unsigned i = 0; i < image.components; ++i) sum[i] += weight * bits<float>(texel.bits[i]);
  }
  Texel result = {};
  for (unsigned i = 0; i < image.components; ++i) result.bits[i] = bits<unsigned>(sum[i]);
  return result;
}

void read_surface(void* to, size_t bytes, cudaSurfaceObject_t surface, SurfacePlace at,
                  cudaSurfaceBoundaryMode mode, ImageCall call) {
  const char* from = surface_byte(bytes, surface, at, mode, call);
  if (!from) {
    memset(to, 0, bytes);
    return;
  }
  check_access(from, bytes, false, call.site);
  trace::image_accessed(from, bytes, trace::Kind::kRead, call.site);
  memcpy(to, from, bytes);
}

void write_surface(const void* from, size_t bytes, cudaSurfaceObject_t surface, SurfacePlace at,
                   cudaSurfaceBoundaryMode mode, ImageCall call) {
  char* to = surface_byte(bytes, surface, at, mode, call);
  if (!to) return;
  check_access(to, bytes, true, call.site);
  trace::image_accessed(to, bytes, trace::Kind::kWrite, call.site);
  memcpy(to, from, bytes);
}

}  // namespace cudacpu

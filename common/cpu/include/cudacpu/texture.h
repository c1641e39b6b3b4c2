// Texture and surface functions of device code, on the objects of cudaCreateTextureObject and
// cudaCreateSurfaceObject. The runtime library looks texels up (runtime/texture.cpp).
#pragma once

#include <cstring>
#include <type_traits>

#include "cudacpu/thread.h"

namespace cudacpu {

// The result of a texture unit: four components of 32 bits.
struct Texel {
  unsigned bits[4];
};

// The function that a kernel calls, and what it expects of the texture or surface.
struct ImageCall {
  const char* function;
  Site site;
  int dimensions;  // without the layer
  bool layered;
};
struct TexelType {
  unsigned components;
  bool is_float;
};

struct Coordinates {
  float x, y, z;
  int layer;
};
Texel sample_texture(cudaTextureObject_t texture, Coordinates at, TexelType type, ImageCall call);
Texel fetch_texel(cudaTextureObject_t texture, int x, TexelType type, ImageCall call);

// x in bytes; z is the layer if the surface has layers.
struct SurfacePlace {
  int x, y, z;
};
void read_surface(void* to, size_t bytes, cudaSurfaceObject_t surface, SurfacePlace at,
                  cudaSurfaceBoundaryMode mode, ImageCall call);
void write_surface(const void* from, size_t bytes, cudaSurfaceObject_t surface, SurfacePlace at,
                   cudaSurfaceBoundaryMode mode, ImageCall call);

// The type of a component, and how many there are; of a vector, x is one of them.
template <class T, bool = std::is_arithmetic_v<T>>
struct TexelTraits {
  using Component = T;
};
template <class T>
struct TexelTraits<T, false> {
  using Component = decltype(T().x);
};

template <class T>
constexpr TexelType texel_type() {
  using Component = typename TexelTraits<T>::Component;
  constexpr unsigned components = sizeof(T) / sizeof(Component);
  static_assert(components == 1 || components == 2 || components == 4,
                "a texture has 1, 2 or 4 components");
  static_assert(std::is_same_v<Component, float> ||
                    (std::is_integral_v<Component> && sizeof(Component) <= 4 &&
                     !std::is_same_v<Component, bool>),
                "the components of a texture are float, or integers of 8, 16 or 32 bits");
  return {components, std::is_same_v<Component, float>};
}

template <class T>
T from_texel(const Texel& texel) {
  using Component = typename TexelTraits<T>::Component;
  T value;
  for (unsigned i = 0; i < texel_type<T>().components; ++i) {
    Component component;
    if constexpr (std::is_same_v<Component, float>)
      memcpy(&component, &texel.bits[i], sizeof component);
    else
      component = static_cast<Component>(texel.bits[i]);
    memcpy(reinterpret_cast<char*>(&value) + i * sizeof component, &component, sizeof component);
  }
  return value;
}

}  // namespace cudacpu

#define CUDACPU_LIST(...) __VA_ARGS__

// Each function in two forms: with the result, or with the address of the result.
#define CUDACPU_TEXTURE(name, lookup, dimensions, layered, parameters, arguments, coordinates)    \
  template <class T>                                                                              \
  T name(cudaTextureObject_t texture, CUDACPU_LIST parameters, CUDACPU_HERE) {                    \
    return cudacpu::from_texel<T>(cudacpu::lookup(texture, coordinates, cudacpu::texel_type<T>(), \
                                                  {#name, {file, line}, dimensions, layered}));   \
  }                                                                                               \
  template <class T>                                                                              \
  void name(T* result, cudaTextureObject_t texture, CUDACPU_LIST parameters, CUDACPU_HERE) {      \
    *result = name<T>(texture, CUDACPU_LIST arguments, file, line);                               \
  }
CUDACPU_TEXTURE(tex1Dfetch, fetch_texel, 1, false, (int x), (x), (x))
CUDACPU_TEXTURE(tex1D, sample_texture, 1, false, (float x), (x), (cudacpu::Coordinates{x, 0, 0, 0}))
CUDACPU_TEXTURE(tex2D, sample_texture, 2, false, (float x, float y), (x, y),
                (cudacpu::Coordinates{x, y, 0, 0}))
CUDACPU_TEXTURE(tex3D, sample_texture, 3, false, (float x, float y, float z), (x, y, z),
                (cudacpu::Coordinates{x, y, z, 0}))
CUDACPU_TEXTURE(tex1DLayered, sample_texture, 1, true, (float x, int layer), (x, layer),
                (cudacpu::Coordinates{x, 0, 0, layer}))
CUDACPU_TEXTURE(tex2DLayered, sample_texture, 2, true, (float x, float y, int layer), (x, y, layer),
                (cudacpu::Coordinates{x, y, 0, layer}))
#undef CUDACPU_TEXTURE

#define CUDACPU_SURFACE(name, dimensions, layered, parameters, arguments, ...)          \
  template <class T>                                                                    \
  T name##read(cudaSurfaceObject_t surface, CUDACPU_LIST parameters,                    \
               cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap, CUDACPU_HERE) {     \
    T value;                                                                            \
    cudacpu::read_surface(&value, sizeof value, surface, {__VA_ARGS__}, mode,           \
                          {#name "read", {file, line}, dimensions, layered});           \
    return value;                                                                       \
  }                                                                                     \
  template <class T>                                                                    \
  void name##read(T* result, cudaSurfaceObject_t surface, CUDACPU_LIST parameters,      \
                  cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap, CUDACPU_HERE) {  \
    *result = name##read<T>(surface, CUDACPU_LIST arguments, mode, file, line);         \
  }                                                                                     \
  template <class T>                                                                    \
  void name##write(T value, cudaSurfaceObject_t surface, CUDACPU_LIST parameters,       \
                   cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap, CUDACPU_HERE) { \
    cudacpu::write_surface(&value, sizeof value, surface, {__VA_ARGS__}, mode,          \
                           {#name "write", {file, line}, dimensions, layered});         \
  }
CUDACPU_SURFACE(surf1D, 1, false, (int x), (x), x, 0, 0)
CUDACPU_SURFACE(surf2D, 2, false, (int x, int y), (x, y), x, y, 0)
CUDACPU_SURFACE(surf3D, 3, false, (int x, int y, int z), (x, y, z), x, y, z)
CUDACPU_SURFACE(surf1DLayered, 1, true, (int x, int layer), (x, layer), x, 0, layer)
CUDACPU_SURFACE(surf2DLayered, 2, true, (int x, int y, int layer), (x, y, layer), x, y, layer)
#undef CUDACPU_SURFACE
#undef CUDACPU_LIST

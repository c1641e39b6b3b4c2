// Arrays, which textures and surfaces show, copies from and to them, and the objects themselves.
#include "texture.h"

#include <set>

namespace cudacpu {

namespace {

struct Arrays {
  std::mutex mutex;
  std::set<const cudaArray*> all;
};

Arrays& arrays() {
  static auto& instance = *new Arrays;
  return instance;
}

constexpr size_t kMostObjects = 1 << 20;  // of one kind

// Objects by handle, which kernels look up without a lock. A handle is used again as late as
// possible, so that one that was destroyed is noticed.
template <class T>
std::atomic<const T*> slots[kMostObjects];
template <class T>
constexpr unsigned long long kFirstHandle = std::is_same_v<T, Texture> ? 1ull << 32 : 2ull << 32;

template <class T>
std::atomic<const T*>* slot_of(unsigned long long handle) {
  const unsigned long long number = handle - kFirstHandle<T>;
  return number < kMostObjects ? &slots<T>[number] : nullptr;
}
template <class T>
const T* object_at(unsigned long long handle) {
  const auto* slot = slot_of<T>(handle);
  return slot ? slot->load() : nullptr;
}

template <class T>
cudaError_t add_object(unsigned long long* handle, const T& object) {
  static std::mutex mutex;
  static size_t next = 0;
  std::lock_guard lock(mutex);
  for (size_t tried = 0; tried < kMostObjects; ++tried, ++next) {
    auto& slot = slots<T>[next % kMostObjects];
    if (slot.load()) continue;
    slot.store(new T(object));
    *handle = kFirstHandle<T> + next++ % kMostObjects;
    return cudaSuccess;
  }
  return set_error(cudaErrorMemoryAllocation);
}

// Remove an object, after the kernels that were launched before: they may use it.
template <class T>
cudaError_t remove_object(unsigned long long handle) {
  if (handle == 0) return cudaSuccess;
  auto* slot = slot_of<T>(handle);
  if (!slot || !slot->load()) return set_error(cudaErrorInvalidValue);
  const cudaError_t before = wait_for_all();
  delete slot->exchange(nullptr);
  return before;
}

// The components of an element, of which each has as many bits as the first.
cudaError_t read_format(const cudaChannelFormatDesc& format, Image& image) {
  const int widths[] = {format.x, format.y, format.z, format.w};
  int components = 0;
  while (components < 4 && widths[components] > 0) ++components;
  for (int i = 0; i < 4; ++i)
    if (widths[i] != (i < components ? format.x : 0))
      return set_error(cudaErrorInvalidChannelDescriptor);
  const bool is_float = format.f == cudaChannelFormatKindFloat;
  if (!is_float && format.f != cudaChannelFormatKindSigned &&
      format.f != cudaChannelFormatKindUnsigned)
    return set_error(format.f == cudaChannelFormatKindNone ? cudaErrorInvalidChannelDescriptor
                                                           : cudaErrorNotSupported,
                     "an element's components are integers or float");
  const bool has_width = format.x == 32 || format.x == 16 || (format.x == 8 && !is_float);
  if (!has_width || components == 3) return set_error(cudaErrorInvalidChannelDescriptor);
  image.kind = format.f;
  image.component_bits = static_cast<unsigned>(format.x);
  image.components = static_cast<unsigned>(components);
  return cudaSuccess;
}

cudaError_t image_of(const cudaArray* array, Image& image) {
  if (!is_array(array)) return set_error(cudaErrorInvalidValue);
  const cudaExtent& extent = array->extent;
  const bool layered = array->layered();
  image.data = array->data;
  image.size[0] = static_cast<int>(extent.width);
  image.size[1] = static_cast<int>(array->rows());
  image.size[2] = layered ? 1 : static_cast<int>(array->slices());
  image.layers = layered ? static_cast<int>(extent.depth) : 0;
  image.pitch = array->pitch();
  image.dimensions = extent.height == 0 ? 1 : extent.depth == 0 || layered ? 2 : 3;
  return read_format(array->format, image);
}

bool is_aligned(const void* address) {
  return address && reinterpret_cast<uintptr_t>(address) % kTextureAlignment == 0;
}

cudaError_t image_of(const cudaResourceDesc& resource, Image& image) {
  image = {};
  if (resource.resType == cudaResourceTypeArray) return image_of(resource.res.array.array, image);
  if (resource.resType == cudaResourceTypeMipmappedArray)
    return set_error(cudaErrorNotSupported, "mipmapped arrays");
  const auto& linear = resource.res.linear;
  const auto& pitched = resource.res.pitch2D;
  const bool is_linear = resource.resType == cudaResourceTypeLinear;
  if (!is_linear && resource.resType != cudaResourceTypePitch2D)
    return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = read_format(is_linear ? linear.desc : pitched.desc, image);
      error != cudaSuccess)
    return error;
  const void* data = is_linear ? linear.devPtr : pitched.devPtr;
  if (!is_aligned(data))
    return set_error(cudaErrorInvalidValue,
                     format("a texture's memory is at a multiple of %zu bytes, not at %p",
                            kTextureAlignment, data));
  const size_t width = is_linear ? linear.sizeInBytes / image.element_bytes() : pitched.width;
  const size_t height = is_linear ? 1 : pitched.height;
  const size_t most = is_linear ? kMaxLinear : kMaxWidth;
  if (width == 0 || width > most || height == 0 || height > kMaxHeight)
    return set_error(cudaErrorInvalidValue,
                     format("a texture of %zu x %zu elements: at most %zu x %d", width, height,
                            most, is_linear ? 1 : kMaxHeight));
  image.pitch = is_linear ? linear.sizeInBytes : pitched.pitchInBytes;
  if (!is_linear &&
      (image.pitch % kTexturePitchAlignment || image.pitch < width * image.element_bytes()))
    return set_error(cudaErrorInvalidValue,
                     format("the pitch of a texture's rows is a multiple of %zu bytes, not %zu",
                            kTexturePitchAlignment, image.pitch));
  image.data = static_cast<char*>(const_cast<void*>(data));
  image.size[0] = static_cast<int>(width);
  image.size[1] = static_cast<int>(height);
  image.size[2] = 1;
  image.dimensions = is_linear ? 1 : 2;
  return cudaSuccess;
}

cudaError_t make_texture(const cudaResourceDesc& resource, const cudaTextureDesc& description,
                         Texture& texture) {
  texture = {resource, description, {}, false, resource.resType == cudaResourceTypeLinear};
  if (cudaError_t error = image_of(resource, texture.image); error != cudaSuccess) return error;
  const Image& image = texture.image;
  const bool normalises =
      description.readMode == cudaReadModeNormalizedFloat && image.component_bits < 32;
  texture.returns_float = normalises || image.kind == cudaChannelFormatKindFloat;
  if (texture.is_linear_memory) return cudaSuccess;  // read without filter and address mode
  if (description.filterMode == cudaFilterModeLinear && !texture.returns_float)
    return set_error(cudaErrorInvalidFilterSetting);
  if (description.sRGB && normalises && image.component_bits == 8)
    return set_error(cudaErrorNotSupported, "conversion from sRGB");
  return cudaSuccess;
}

// The place of byte x of row y, where so many bytes of so many rows follow; null if they do not
// fit.
char* place_in(const cudaArray* array, size_t x, size_t y, size_t width, size_t height) {
  if (!is_array(array) || x + width > array->pitch() || y + height > array->rows()) return nullptr;
  return array->data + y * array->pitch() + x;
}
// The same where so many bytes follow, row after row.
char* place_in(const cudaArray* array, size_t x, size_t y, size_t bytes) {
  if (!is_array(array)) return nullptr;
  const size_t offset = y * array->pitch() + x;
  return offset + bytes > array->rows() * array->pitch() ? nullptr : array->data + offset;
}

}  // namespace

bool is_array(const cudaArray* array) {
  std::lock_guard lock(arrays().mutex);
  return arrays().all.count(array) > 0;
}

const Texture* texture_at(cudaTextureObject_t handle) {
  return object_at<Texture>(handle);
}
const Surface* surface_at(cudaSurfaceObject_t handle) {
  return object_at<Surface>(handle);
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                            cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}
cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc* format, cudaArray_const_t array) {
  if (!format || !is_array(array)) return set_error(cudaErrorInvalidValue);
  *format = array->format;
  return cudaSuccess;
}

cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* format,
                              cudaExtent extent, unsigned flags) {
  constexpr unsigned kKnown = cudaArrayLayered | cudaArraySurfaceLoadStore;
  if (!array || !format) return set_error(cudaErrorInvalidValue);
  if (flags & ~kKnown)
    return set_error(cudaErrorNotSupported,
                     "arrays for cubemaps, gathers, and sparse or deferred memory");
  const bool layered = flags & cudaArrayLayered;
  const bool is_3d = extent.depth > 0 && !layered;
  const size_t widest = is_3d ? kMaxSide3D : kMaxWidth, highest = is_3d ? kMaxSide3D : kMaxHeight;
  if (extent.width == 0 || extent.width > widest || extent.height > highest ||
      extent.depth > kMaxSide3D || (is_3d && extent.height == 0) || (layered && extent.depth == 0))
    return set_error(cudaErrorInvalidValue,
                     cudacpu::format("an array of %zu x %zu x %zu elements", extent.width,
                                     extent.height, extent.depth));
  Image image;
  if (cudaError_t error = read_format(*format, image); error != cudaSuccess) return error;
  auto fresh = std::make_unique<cudaArray>(cudaArray{*format, extent, flags, nullptr});
  void* data = nullptr;
  const size_t bytes = fresh->pitch() * fresh->rows() * fresh->slices();
  if (cudaError_t error = cudaMalloc(&data, bytes); error != cudaSuccess) return error;
  fresh->data = static_cast<char*>(data);
  *array = fresh.release();
  std::lock_guard lock(arrays().mutex);
  arrays().all.insert(*array);
  return cudaSuccess;
}
cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* format, size_t width,
                            size_t height, unsigned flags) {
  return cudaMalloc3DArray(array, format, {width, height, 0}, flags);
}
cudaError_t cudaFreeArray(cudaArray_t array) {
  if (!array) return cudaSuccess;
  {
    std::lock_guard lock(arrays().mutex);
    if (!arrays().all.erase(array)) return set_error(cudaErrorInvalidValue);
  }
  const cudaError_t error = cudaFree(array->data);
  delete array;
  return error;
}
cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* format, cudaExtent* extent, unsigned* flags,
                             cudaArray_t array) {
  if (!is_array(array)) return set_error(cudaErrorInvalidValue);
  if (format) *format = array->format;
  if (extent) *extent = array->extent;
  if (flags) *flags = array->flags;
  return cudaSuccess;
}

// ------------------------------------------------------------------ copies

cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch,
                                size_t width, size_t height, cudaMemcpyKind kind) {
  char* place = place_in(to, x, y, width, height);
  if (!place) return set_error(cudaErrorInvalidValue);
  return cudaMemcpy2D(place, to->pitch(), from, pitch, width, height, kind);
}
cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from,
                                     size_t pitch, size_t width, size_t height, cudaMemcpyKind kind,
                                     cudaStream_t stream) {
  char* place = place_in(to, x, y, width, height);
  if (!place) return set_error(cudaErrorInvalidValue);
  return cudaMemcpy2DAsync(place, to->pitch(), from, pitch, width, height, kind, stream);
}
cudaError_t cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t from, size_t x,
                                  size_t y, size_t width, size_t height, cudaMemcpyKind kind) {
  const char* place = place_in(from, x, y, width, height);
  if (!place) return set_error(cudaErrorInvalidValue);
  return cudaMemcpy2D(to, pitch, place, from->pitch(), width, height, kind);
}
cudaError_t cudaMemcpy2DFromArrayAsync(void* to, size_t pitch, cudaArray_const_t from, size_t x,
                                       size_t y, size_t width, size_t height, cudaMemcpyKind kind,
                                       cudaStream_t stream) {
  const char* place = place_in(from, x, y, width, height);
  if (!place) return set_error(cudaErrorInvalidValue);
  return cudaMemcpy2DAsync(to, pitch, place, from->pitch(), width, height, kind, stream);
}
cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t to, size_t to_x, size_t to_y,
                                     cudaArray_const_t from, size_t x, size_t y, size_t width,
                                     size_t height, cudaMemcpyKind kind) {
  const char* place = place_in(from, x, y, width, height);
  if (!place) return set_error(cudaErrorInvalidValue);
  return cudaMemcpy2DToArray(to, to_x, to_y, place, from->pitch(), width, height, kind);
}

// Functions that NVIDIA has declared deprecated: the bytes fill row after row.
cudaError_t cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t bytes,
                              cudaMemcpyKind kind) {
  char* place = place_in(to, x, y, bytes);
  return place ? cudaMemcpy(place, from, bytes, kind) : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from,
                                   size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  char* place = place_in(to, x, y, bytes);
  return place ? cudaMemcpyAsync(place, from, bytes, kind, stream)
               : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyFromArray(void* to, cudaArray_const_t from, size_t x, size_t y, size_t bytes,
                                cudaMemcpyKind kind) {
  const char* place = place_in(from, x, y, bytes);
  return place ? cudaMemcpy(to, place, bytes, kind) : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyFromArrayAsync(void* to, cudaArray_const_t from, size_t x, size_t y,
                                     size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const char* place = place_in(from, x, y, bytes);
  return place ? cudaMemcpyAsync(to, place, bytes, kind, stream) : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyArrayToArray(cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from,
                                   size_t x, size_t y, size_t bytes, cudaMemcpyKind kind) {
  const char* place = place_in(from, x, y, bytes);
  return place ? cudaMemcpyToArray(to, to_x, to_y, place, bytes, kind)
               : set_error(cudaErrorInvalidValue);
}

// ------------------------------------------------------------------ objects

cudaError_t cudaCreateTextureObject(cudaTextureObject_t* handle, const cudaResourceDesc* resource,
                                    const cudaTextureDesc* description,
                                    const cudaResourceViewDesc* view) {
  if (!handle || !resource || !description) return set_error(cudaErrorInvalidValue);
  if (view) return set_error(cudaErrorNotSupported, "a texture with a resource view");
  Texture texture;
  if (cudaError_t error = make_texture(*resource, *description, texture); error != cudaSuccess)
    return error;
  return add_object(handle, texture);
}
cudaError_t cudaDestroyTextureObject(cudaTextureObject_t handle) {
  return remove_object<Texture>(handle);
}
cudaError_t cudaGetTextureObjectResourceDesc(cudaResourceDesc* resource,
                                             cudaTextureObject_t handle) {
  const Texture* texture = texture_at(handle);
  if (!resource || !texture) return set_error(cudaErrorInvalidValue);
  *resource = texture->resource;
  return cudaSuccess;
}
cudaError_t cudaGetTextureObjectTextureDesc(cudaTextureDesc* description,
                                            cudaTextureObject_t handle) {
  const Texture* texture = texture_at(handle);
  if (!description || !texture) return set_error(cudaErrorInvalidValue);
  *description = texture->description;
  return cudaSuccess;
}
// No texture has a resource view.
cudaError_t cudaGetTextureObjectResourceViewDesc(cudaResourceViewDesc*, cudaTextureObject_t) {
  return set_error(cudaErrorInvalidValue);
}

cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* handle, const cudaResourceDesc* resource) {
  if (!handle || !resource || resource->resType != cudaResourceTypeArray)
    return set_error(cudaErrorInvalidValue);
  const cudaArray* array = resource->res.array.array;
  if (!is_array(array)) return set_error(cudaErrorInvalidValue);
  if (!(array->flags & cudaArraySurfaceLoadStore))
    return set_error(cudaErrorInvalidValue,
                     "the array of a surface is made with cudaArraySurfaceLoadStore");
  Surface surface{*resource, {}};
  if (cudaError_t error = image_of(array, surface.image); error != cudaSuccess) return error;
  return add_object(handle, surface);
}
cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t handle) {
  return remove_object<Surface>(handle);
}
cudaError_t cudaGetSurfaceObjectResourceDesc(cudaResourceDesc* resource,
                                             cudaSurfaceObject_t handle) {
  const Surface* surface = surface_at(handle);
  if (!resource || !surface) return set_error(cudaErrorInvalidValue);
  *resource = surface->resource;
  return cudaSuccess;
}

}  // extern "C"

// Tensor maps: descriptions of a tensor in global memory for TMA, which copies boxes
// (sm_90).
//
// The host makes a map and passes it to the kernel by value, as a `const __grid_constant__
// ptx::TensorMap` parameter; tensor_copy.cuh copies with it. A tensor has 1 to 5 dimensions, and
// dimension 0 is the contiguous one: a row-major matrix of M x K is {K, M}. A box lies in shared
// memory row by row, dimension 0 first. With a swizzle, each row takes all of the 32, 64 or 128
// bytes that it spans, even if the box is narrower.
//
//   ptx::make_tensor_map(a, {.sizes = {K, M}, .box = {64, 128}, .swizzle = ptx::Swizzle::k128})
//
// On a GPU the driver writes the map (cuTensorMapEncodeTiled); on the CPU backend the same 128
// bytes hold another structure. Arguments that both refuse are checked here, with a message.
#pragma once

#include "common/cuda/ptx/swizzle.cuh"

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#ifdef CUDA_ON_CPU
#include <cudacpu/tensor_map.h>
#endif

namespace ptx {

using TensorMap = CUtensorMap;

// The fill of a load for elements beyond the tensor. NaN is for floating-point elements only.
enum class OutOfBounds : uint8_t { kZero, kNan };

// A number for each dimension, the contiguous one first; of more than five, only their count.
class PerDimension {
 public:
  PerDimension() = default;
  PerDimension(std::initializer_list<int64_t> values) {
    for (int64_t value : values) push_back(value);
  }
  void push_back(int64_t value) {
    if (size_ < std::size(values_)) values_[size_] = value;
    ++size_;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t& operator[](size_t i) { return values_[i]; }
  int64_t operator[](size_t i) const { return values_[i]; }

 private:
  int64_t values_[5] = {};
  size_t size_ = 0;
};

// The tensor and its boxes.
struct TensorLayout {
  PerDimension sizes;         // elements: 1 to 2^32
  PerDimension strides = {};  // bytes from one index of dimensions 1, 2, … to the next: multiples
                              // of 16, below 2^40; if empty, the tensor is dense
  PerDimension box;           // elements: 1 to 256; in dimension 0, a multiple of 16 bytes, and
                              // with a swizzle no more than it spans
  PerDimension element_strides = {};  // 1 to 8, and 1 in dimension 0: every how many-th element of
                                      // the box is taken; if empty, all are
  Swizzle swizzle = Swizzle::kNone;
  OutOfBounds fill = OutOfBounds::kZero;
};
static_assert(std::is_trivially_copyable_v<TensorLayout>, "a call makes one, and takes no memory");

namespace detail {

[[noreturn]] inline void refuse(const std::string& message) {
  throw std::invalid_argument("make_tensor_map: " + message);
}

inline std::string with_index(const char* name, size_t i, int64_t value) {
  return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(value);
}

template <typename T>
constexpr CUtensorMapDataType element_type() {
  if constexpr (std::is_same_v<T, __half>) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if constexpr (std::is_same_v<T, float>) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  if constexpr (std::is_same_v<T, int32_t>) return CU_TENSOR_MAP_DATA_TYPE_INT32;
  static_assert(sizeof(T) == 1 || std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16> ||
                    std::is_same_v<T, float> || std::is_same_v<T, int32_t>,
                "T is __half, __nv_bfloat16, float, int32_t or a type of one byte");
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

// Fills in what is left empty, and checks every limit. `bytes`: of an element. A launcher makes a
// map in each call, so no message is put together before it is needed.
inline TensorLayout complete(TensorLayout layout, const void* tensor, int64_t bytes,
                             bool is_float) {
  const size_t rank = layout.sizes.size();
  if (rank < 1 || rank > 5)
    refuse("sizes: " + std::to_string(rank) + " dimensions; allowed are 1 to 5");
  auto check_count = [&](const char* name, size_t count, size_t expected) {
    if (count != expected)
      refuse(std::string(name) + ": " + std::to_string(count) + " values for a tensor of " +
             std::to_string(rank) + " dimension(s); expected " + std::to_string(expected));
  };
  if (!tensor || reinterpret_cast<uintptr_t>(tensor) % 16 != 0)
    refuse("tensor: its address must be a multiple of 16, and not null");
  for (size_t i = 0; i < rank; ++i)
    if (layout.sizes[i] < 1 || layout.sizes[i] > int64_t{1} << 32)
      refuse(with_index("sizes", i, layout.sizes[i]) + "; allowed are 1 to 2^32");
  if (layout.strides.empty()) {
    int64_t stride = bytes;
    for (size_t i = 0; i + 1 < rank; ++i) layout.strides.push_back(stride *= layout.sizes[i]);
  }
  check_count("strides", layout.strides.size(), rank - 1);
  for (size_t i = 0; i + 1 < rank; ++i) {
    const int64_t stride = layout.strides[i];
    if (stride <= 0 || stride >= int64_t{1} << 40 || stride % 16 != 0)
      refuse(with_index("strides", i, stride) +
             " bytes; it must be a positive multiple of 16, below 2^40");
  }
  check_count("box", layout.box.size(), rank);
  for (size_t i = 0; i < rank; ++i)
    if (layout.box[i] < 1 || layout.box[i] > 256)
      refuse(with_index("box", i, layout.box[i]) + " elements; allowed are 1 to 256");
  const int64_t row = layout.box[0] * bytes;
  if (row % 16 != 0)
    refuse(with_index("box", 0, layout.box[0]) + " elements, " + std::to_string(row) +
           " bytes; it must be a multiple of 16 bytes");
  const int64_t span = 16 << static_cast<int>(layout.swizzle);
  if (layout.swizzle != Swizzle::kNone && row > span)
    refuse(with_index("box", 0, layout.box[0]) + " elements, " + std::to_string(row) +
           " bytes; with this swizzle, at most " + std::to_string(span));
  if (layout.element_strides.empty())
    for (size_t i = 0; i < rank; ++i) layout.element_strides.push_back(1);
  check_count("element_strides", layout.element_strides.size(), rank);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t most = i == 0 ? 1 : 8;
    if (layout.element_strides[i] < 1 || layout.element_strides[i] > most)
      refuse(with_index("element_strides", i, layout.element_strides[i]) + "; allowed are 1 to " +
             std::to_string(most));
  }
  if (layout.fill != OutOfBounds::kZero && !is_float)
    refuse("fill: NaN is for floating-point elements only");
  return layout;
}

#ifndef CUDA_ON_CPU
// The driver's function, without linking with the driver's library.
inline decltype(&cuTensorMapEncodeTiled) encode_function() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || !found)
    throw std::runtime_error("make_tensor_map: this driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}
#endif

}  // namespace detail

// A map of the tensor at `tensor`, in global memory. T: __half, __nv_bfloat16, float, int32_t, or a
// type of one byte (fp8 too). Throws std::invalid_argument, naming the argument, for what the copy
// engine cannot do.
template <typename T>
TensorMap make_tensor_map(const T* tensor, const TensorLayout& given) {
  constexpr CUtensorMapDataType type = detail::element_type<T>();
  constexpr bool is_float =
      type != CU_TENSOR_MAP_DATA_TYPE_UINT8 && type != CU_TENSOR_MAP_DATA_TYPE_INT32;
  const TensorLayout layout = detail::complete(given, tensor, sizeof(T), is_float);
  const size_t rank = layout.sizes.size();
  cuuint64_t sizes[5] = {}, strides[5] = {};
  cuuint32_t box[5] = {}, element_strides[5] = {};
  for (size_t i = 0; i < rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(layout.sizes[i]);
    if (i + 1 < rank) strides[i] = static_cast<cuuint64_t>(layout.strides[i]);
    box[i] = static_cast<cuuint32_t>(layout.box[i]);
    element_strides[i] = static_cast<cuuint32_t>(layout.element_strides[i]);
  }
  void* start = const_cast<void*>(static_cast<const void*>(tensor));
  TensorMap map;
#ifdef CUDA_ON_CPU
  cudacpu::encode_tensor_map(&map, type, static_cast<unsigned>(rank), start, sizes, strides, box,
                             element_strides, static_cast<unsigned>(layout.swizzle),
                             layout.fill == OutOfBounds::kNan);
#else
  static const auto encode = detail::encode_function();
  const CUtensorMapSwizzle swizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                         CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  const CUresult result =
      encode(&map, type, static_cast<cuuint32_t>(rank), start, sizes, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[static_cast<int>(layout.swizzle)],
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             layout.fill == OutOfBounds::kNan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
                                              : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("make_tensor_map: the driver refuses the map, with error " +
                             std::to_string(static_cast<int>(result)));
#endif
  return map;
}

}  // namespace ptx

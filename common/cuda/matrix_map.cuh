// Helpers for TMA in a launcher and a kernel: a matrix's tensor map, a place for tiles. Taught in
// day 55.
#pragma once

#include "common/cuda/capability.cuh"
#include "common/cuda/ptx/site.cuh"
#include "common/cuda/ptx/tensor_map.cuh"
#include "common/cuda/tensor.cuh"

// Older cards do not run kernels that use TMA, and have no instructions for some of their parts.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_TMA 1
#endif

// A launcher calls this after its DeviceGuard.
inline void require_tma() {
  require_capability(9, 0, "TMA");
}

// The tensor map of the matrix t, (rows, cols), for boxes of box_rows x box_cols elements. Elements
// of a row are adjacent, rows may be further apart than they are long. T is the C++ type of t's
// dtype; `name` is the argument that messages speak of. A box may reach beyond the matrix: loads
// fill with zeros, stores leave out what is beyond.
template <typename T>
ptx::TensorMap matrix_map(const Tensor& t, const char* name, int64_t box_rows, int64_t box_cols,
                          ptx::Swizzle swizzle = ptx::Swizzle::kNone) {
  constexpr int64_t MOST = int64_t{1} << 31, SIZE = sizeof(T);  // coordinates are 32-bit integers
  check(t, name).rank(2);
  const int64_t rows = t.size(0), cols = t.size(1);
  STD_TORCH_CHECK(rows > 0 && cols > 0 && rows <= MOST && cols <= MOST, name, ": its shape is ",
                  shape_of(t), "; TMA takes 1 to 2^31 rows and columns");
  STD_TORCH_CHECK(cols == 1 || t.stride(1) == 1, name,
                  ": the elements of a row must be adjacent; call .contiguous()");
  const int64_t pitch = rows == 1 ? ceil_div(cols * SIZE, int64_t{16}) * 16 : t.stride(0) * SIZE;
  STD_TORCH_CHECK(pitch > 0 && pitch % 16 == 0, name, ": its rows are ", pitch,
                  " bytes apart; TMA needs a multiple of 16");
  STD_TORCH_CHECK(is_aligned(t, 16), name, ": TMA needs an address that is a multiple of 16");
  return ptx::make_tensor_map(
      data<T>(t),
      {.sizes = {cols, rows}, .strides = {pitch}, .box = {box_cols, box_rows}, .swizzle = swizzle});
}

// Refuse a tensor to store to whose rows are not multiples of 16 bytes: TMA stores whole pieces of
// 16 bytes, so a row that ends within one would overwrite the next row.
inline void check_row_bytes(const Tensor& t, const char* name) {
  const int64_t bytes = t.size(-1) * static_cast<int64_t>(t.element_size());
  STD_TORCH_CHECK(bytes % 16 == 0, name, ": its rows have ", bytes,
                  " bytes; TMA needs a multiple of 16");
}

// Dynamic shared memory from a multiple of 1024 bytes on, where the pattern of every swizzle
// begins. The launcher reserves TILE_ALIGNMENT bytes more than the kernel uses.
constexpr int TILE_ALIGNMENT = 1024;
__device__ inline char* tile_memory() {
  extern __shared__ __align__(1024) char shared[];
  return shared + (TILE_ALIGNMENT - ptx::shared_address(shared) % TILE_ALIGNMENT) % TILE_ALIGNMENT;
}

// Sparse matrices as arguments of a launcher: the checks of their index tensors, and a kernel for
// the type of their indices. Day 36 introduces the formats.
#pragma once

#include "common/cuda/tensor.cuh"

// Row pointers, rows or columns: a contiguous vector of int32 or int64. A launcher does not see the
// values, because it would have to wait for the GPU; kernels must stay inside their arrays with
// any.
inline const check& check_indices(const check& indices) {
  return indices.on_gpu().dtype({ScalarType::Int, ScalarType::Long}).rank(1).contiguous();
}

// Values of entries, or a dense vector: contiguous fp32.
inline const check& check_floats(const check& floats, int64_t rank = 1) {
  return floats.on_gpu().dtype({ScalarType::Float}).rank(rank).contiguous();
}

// Refuse arrays with more elements than their indices can count.
inline void check_reach(const Tensor& t, const char* name, const Tensor& indices) {
  STD_TORCH_CHECK(indices.scalar_type() == ScalarType::Long || t.numel() <= 2147483647, name,
                  ": has ", t.numel(), " elements, more than int32 indices reach; use int64");
}

// A matrix in CSR.
inline void check_csr(const Tensor& row_ptr, const Tensor& col, const Tensor& value) {
  check_indices(check(row_ptr, "row_ptr"));
  STD_TORCH_CHECK(row_ptr.numel() > 0, "row_ptr: expected one element per row and one more, got 0");
  check_indices(check(col, "col")).dtype({row_ptr.scalar_type()}).same_device(row_ptr, "row_ptr");
  check_floats(check(value, "value")).size(0, col.numel()).same_device(row_ptr, "row_ptr");
  check_reach(col, "col", row_ptr);
}

// Call f with a value of the C++ type of the indices:
//   dispatch_index(col, [&](auto zero) { using Index = decltype(zero); kernel<Index><<<...>>>(...);
//   });
template <typename F>
void dispatch_index(const Tensor& indices, F&& f) {
  if (indices.scalar_type() == ScalarType::Int) return f(int32_t{});
  f(int64_t{});
}

// Return true if `index` is in [0, size). A negative one is huge as an unsigned number.
__device__ inline bool is_index(int64_t index, int64_t size) {
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(size);
}

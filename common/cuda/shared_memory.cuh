// More than 48 KB of shared memory per block: how much there is, and the request for it. Day 15's
// v4 does both in its launcher.
#pragma once

#include "common/cuda/kernel_queries.cuh"
#include "common/cuda/tensor.cuh"

// Bytes of shared memory that one block may request on the GPU of `on`, static and dynamic
// together: 227 KB with compute capability 9.0, 163 KB with 8.0, 99 KB with 8.6, 8.9 and 12.0, 64
// KB with 7.5.
inline int64_t shared_limit(const Tensor& on) {
  int limit = 0;
  check_cuda(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index(on)),
      "cudaDeviceGetAttribute");
  return limit;
}

// Dynamic shared memory that is accessed by 16 bytes is declared __align__(128), so that a sector
// of 32 bytes is one part of it (day 76). After a kernel's own arrays, up to this many bytes stay
// free.
constexpr int SHARED_ALIGNMENT = 128;

// Return true if the GPU of `on` has `dynamic` bytes of dynamic shared memory for a block of a
// kernel whose own arrays have `own` bytes.
inline bool shared_memory_fits(const Tensor& on, int64_t own, int64_t dynamic) {
  return own + SHARED_ALIGNMENT + dynamic <= shared_limit(on);
}

// Let a kernel be launched with this many bytes of dynamic shared memory. Without it 48 KB is the
// limit.
template <typename Kernel>
void allow_shared(Kernel kernel, int64_t bytes) {
  raise_attribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

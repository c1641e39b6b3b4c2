// The number of the GPU's multiprocessors (taught in day 2), and the grid that fills them (day 16).
#pragma once

#include "common/cuda/kernel_queries.cuh"
#include "common/cuda/tensor.cuh"

// The number for the GPU of `on`; on the CPU backend, for the card that it simulates.
inline int multiprocessor_count(const Tensor& on) {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_index(on)),
             "cudaDeviceGetAttribute");
  return count;
}

// The blocks of `kernel` that are resident on the GPU of `on` at one time, or `work` if that is
// less.
template <typename Kernel>
unsigned resident_grid(const Tensor& on, Kernel kernel, int block, size_t shared_bytes,
                       int64_t work) {
  const int64_t resident =
      int64_t{multiprocessor_count(on)} * blocks_per_multiprocessor(kernel, block, shared_bytes);
  return static_cast<unsigned>(work < resident ? work : resident);
}

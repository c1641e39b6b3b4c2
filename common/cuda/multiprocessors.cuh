// How many multiprocessors the GPU has. Taught in day 2.
#pragma once

#include "common/cuda/tensor.cuh"

// Those of the GPU that `on` lives on; on the CPU backend, of the card that it plays.
inline int multiprocessor_count(const Tensor& on) {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_index(on)),
             "cudaDeviceGetAttribute");
  return count;
}

// Queries and settings of a kernel: the number of its blocks that are resident at one time, and
// permission for more shared memory or larger clusters than any GPU has. They stay the same for as
// long as the process runs, so each thread does it once per kernel and GPU, not in each call.
#pragma once

#include "common/cuda/tensor.cuh"

#include <map>
#include <tuple>

enum class About { ATTRIBUTE, BLOCKS, CLUSTERS };

// This thread's cached value for a kernel on the current GPU; 0 if it has not been queried yet.
template <typename Kernel>
int& remembered(About about, Kernel kernel, int64_t a, int64_t b = 0, int64_t c = 0) {
#ifdef CUDA_ON_CPU
  static thread_local int nothing;  // the card that is played may be another one in each call
  return nothing = 0;
#else
  using Key = std::tuple<About, const void*, int, int64_t, int64_t, int64_t>;
  static thread_local std::map<Key, int> answers;
  int gpu = 0;
  check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
  return answers[{about, reinterpret_cast<const void*>(kernel), gpu, a, b, c}];
#endif
}

// Raise an attribute of a kernel to at least this value.
template <typename Kernel>
void raise_attribute(Kernel kernel, cudaFuncAttribute attribute, int value) {
  int& reached = remembered(About::ATTRIBUTE, kernel, attribute);
  if (value <= reached) return;
  check_cuda(cudaFuncSetAttribute(kernel, attribute, value), "cudaFuncSetAttribute");
  reached = value;
}

// The blocks of a kernel that are resident on a multiprocessor at one time. It depends on the
// kernel's registers, and on the threads and the dynamic shared memory per block.
template <typename Kernel>
int blocks_per_multiprocessor(Kernel kernel, int block, size_t shared_bytes) {
  int& blocks = remembered(About::BLOCKS, kernel, block, static_cast<int64_t>(shared_bytes));
  if (blocks == 0) {
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, shared_bytes),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  }
  return blocks;
}

// The clusters of a kernel that are resident on the current GPU at one time, when it is launched by
// `config`, whose only attribute is a cluster of `cluster` blocks.
template <typename Kernel>
int resident_clusters(Kernel kernel, const cudaLaunchConfig_t& config, int cluster) {
  int& clusters = remembered(About::CLUSTERS, kernel, cluster, config.blockDim.x,
                             static_cast<int64_t>(config.dynamicSmemBytes));
  if (clusters == 0) {
    check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
               "cudaOccupancyMaxActiveClusters");
  }
  return clusters;
}

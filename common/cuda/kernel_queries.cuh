// Queries and settings of a kernel: the number of its blocks that are resident at one time, and
// permission for more shared memory or larger clusters than any GPU has. They stay the same for as
// long as the process runs, so it is done once per kernel and GPU, not in each call.
#pragma once

#include "common/cuda/tensor.cuh"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

enum class About { ATTRIBUTE, BLOCKS, CLUSTERS };

// A cached value, 0 if it has not been queried yet, and the lock under which it is read and
// written. All threads share the value: with one per thread, a thread that raises an attribute for
// the first time (autograd has threads of its own) would lower what another thread had raised.
struct Cached {
  std::unique_lock<std::mutex> lock;
  int& value;
};

// The cached value for a kernel on the current GPU.
template <typename Kernel>
Cached cached(About about, Kernel kernel, int64_t a, int64_t b = 0, int64_t c = 0) {
  static std::mutex mutex;
  std::unique_lock lock(mutex);
#ifdef CUDA_ON_CPU
  static int nothing;  // the card that is played may be another one in each call
  return {std::move(lock), nothing = 0};
#else
  using Key = std::tuple<About, const void*, int, int64_t, int64_t, int64_t>;
  static std::map<Key, int> values;
  int gpu = 0;
  check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
  return {std::move(lock), values[{about, reinterpret_cast<const void*>(kernel), gpu, a, b, c}]};
#endif
}

// Raise an attribute of a kernel to at least this value.
template <typename Kernel>
void raise_attribute(Kernel kernel, cudaFuncAttribute attribute, int value) {
  const Cached reached = cached(About::ATTRIBUTE, kernel, attribute);
  if (value <= reached.value) return;
  check_cuda(cudaFuncSetAttribute(kernel, attribute, value), "cudaFuncSetAttribute");
  reached.value = value;
}

// The blocks of a kernel that are resident on a multiprocessor at one time. It depends on the
// kernel's registers, and on the threads and the dynamic shared memory per block.
template <typename Kernel>
int blocks_per_multiprocessor(Kernel kernel, int block, size_t shared_bytes) {
  const Cached blocks = cached(About::BLOCKS, kernel, block, static_cast<int64_t>(shared_bytes));
  if (blocks.value == 0) {
    check_cuda(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks.value, kernel, block, shared_bytes),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  }
  return blocks.value;
}

// The clusters of a kernel that are resident on the current GPU at one time, when it is launched by
// `config`, whose only attribute is a cluster of `cluster` blocks.
template <typename Kernel>
int resident_clusters(Kernel kernel, const cudaLaunchConfig_t& config, int cluster) {
  const Cached clusters = cached(About::CLUSTERS, kernel, cluster, config.blockDim.x,
                                 static_cast<int64_t>(config.dynamicSmemBytes));
  if (clusters.value == 0) {
    check_cuda(cudaOccupancyMaxActiveClusters(&clusters.value, kernel, &config),
               "cudaOccupancyMaxActiveClusters");
  }
  return clusters.value;
}

// A launch whose blocks form clusters of a size that is chosen at run time. Taught in day 35.
#pragma once

#include "common/cuda/kernel_queries.cuh"
#include "common/cuda/shared_memory.cuh"
#include "common/cuda/tensor.cuh"

// Launch kernel(arguments...) with `grid` blocks, a multiple of `cluster`, the number of blocks
// per cluster: a power of two up to 16. More than 8 are not portable, and allowed here. The kernel
// may have `shared_bytes` of dynamic shared memory, more than 48 KB too.
template <typename... Parameters, typename... Arguments>
void launch_clusters(void (*kernel)(Parameters...), unsigned grid, unsigned cluster,
                     unsigned threads, size_t shared_bytes, cudaStream_t stream,
                     Arguments... arguments) {
  allow_shared(kernel, static_cast<int64_t>(shared_bytes));
  raise_attribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
             "cudaLaunchKernelEx");
}

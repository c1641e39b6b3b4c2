// Adds up what blocks have summed per column. Used by both backward passes of day 44.
#pragma once

#include "common/cuda/tensor.cuh"

constexpr int ADD_WARPS = 32;

// to[c] = the sum of partial[b, c] over all b < blocks, always in the same order: a block takes 32
// columns, and its warps take the rows of partial in turns.
template <typename T>
__global__ void __launch_bounds__(32 * ADD_WARPS)
    add_columns_kernel(const float* __restrict__ partial, T* __restrict__ to, int64_t blocks,
                       int64_t cols) {
  __shared__ float sums[ADD_WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0;
  if (c < cols) {
#pragma unroll 8
    for (int64_t b = warp; b < blocks; b += ADD_WARPS) sum += partial[b * cols + c];
  }
  sums[warp][lane] = sum;
  __syncthreads();  // warp 0 waits for the sums of all warps
  if (warp != 0 || c >= cols) return;
  float total = 0;
  for (int w = 0; w < ADD_WARPS; ++w) total += sums[w][lane];
  to[c] = static_cast<T>(total);
}

// to (cols,) = the sums of the columns of partial (blocks, cols), which is in fp32.
inline void add_columns(const Tensor& partial, Tensor& to) {
  const int64_t blocks = partial.size(0), cols = partial.size(1);
  dispatch_floating(to, [&](auto zero) {
    using T = decltype(zero);
    add_columns_kernel<<<grid_size(ceil_div<int64_t>(cols, 32), "cols"), 32 * ADD_WARPS, 0,
                         current_stream(to)>>>(data<float>(partial), mutable_data<T>(to), blocks,
                                               cols);
  });
}

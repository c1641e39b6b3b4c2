// A copy of a K-major operand that is not K-major: its tiles can then be copied by packs.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12
#include "days/day51/gemm.cuh"     // taught in day 51

constexpr int SIDE = 32,
              SIDE_ROWS = 8;  // a block: SIDE × SIDE_ROWS threads for SIDE × SIDE elements

// to[k, mn] = x[mn, k]. The column of padding keeps the lanes that read a column in different
// banks.
__global__ void __launch_bounds__(SIDE* SIDE_ROWS)
    transpose_operand_kernel(Operand x, float* __restrict__ to) {
  __shared__ float tile[SIDE][SIDE + 1];
  const int64_t across = ceil_div<int64_t>(x.K, SIDE);
  const int64_t k = blockIdx.x % across * SIDE, mn = blockIdx.x / across * SIDE;
  const int lane = threadIdx.x;
#pragma unroll
  for (int i = threadIdx.y; i < SIDE; i += SIDE_ROWS) {
    if (x.has(mn + i, k + lane)) tile[i][lane] = *x.address(mn + i, k + lane);
  }
  __syncthreads();  // the tile is complete before any thread reads a column
#pragma unroll
  for (int i = threadIdx.y; i < SIDE; i += SIDE_ROWS) {
    if (x.has(mn + lane, k + i)) to[(k + i) * x.size + mn + lane] = tile[lane][i];
  }
}

// The copy takes 8 bytes per element, and saves time in each of `others` columns of the product (or
// rows, for B): below these sizes, it would take longer than it saves.
inline bool copy_pays(const Operand& x, int64_t others) {
  return x.k_stride == 1 && x.size % 4 == 0 && x.size >= 64 && x.K >= 256 && others >= 1024;
}

// Replaces x by a copy that is not K-major, if that pays. The copy's memory is in the result.
inline Tensor copy_if_it_pays(Operand& x, int64_t others, const Tensor& on, cudaStream_t stream) {
  if (!copy_pays(x, others)) return {};
  const Tensor copy = allocate(on, {x.K, x.size});
  const int64_t blocks = ceil_div<int64_t>(x.size, SIDE) * ceil_div<int64_t>(x.K, SIDE);
  transpose_operand_kernel<<<grid_size(blocks, "a, b"), dim3(SIDE, SIDE_ROWS), 0, stream>>>(
      x, mutable_data<float>(copy));
  x = {data<float>(copy), x.size, x.K, 1, x.size};
  return copy;
}

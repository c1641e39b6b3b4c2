// Day 30: sums over all rows of a matrix, which the gradients of weights and biases are.
//
// A grid of one block per 32 columns would leave most of the GPU idle, so the rows are split into
// chunks: first one sum per chunk and column, then the sum over the chunks. The order of additions
// is fixed, so equal inputs give equal bits.
#pragma once

#include "common/cuda/tensor.cuh"

#include <algorithm>

constexpr int TALL = 8;       // rows of threads of a block
constexpr int CHUNKS = 128;   // at most
constexpr int SUM_ROWS = 32;  // rows of threads that add up the chunks

// partial[chunk][s][c] = the sum of f(r, c)[s] over the rows of the chunk; blockIdx.y is the chunk.
template <int SUMS, typename F>
__device__ void column_sums(float* __restrict__ partial, int64_t rows, int64_t cols, F f) {
  __shared__ float shared[TALL][SUMS][32];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sums[SUMS] = {};
  if (c < cols) {
    for (int64_t r = blockIdx.y * TALL + threadIdx.y; r < rows; r += gridDim.y * TALL) {
      f(r, c, sums);
    }
  }
  for (int s = 0; s < SUMS; ++s) shared[threadIdx.y][s][threadIdx.x] = sums[s];
  __syncthreads();  // all rows of threads have stored their sums before the first row reads them
  if (threadIdx.y > 0 || c >= cols) return;
  for (int s = 0; s < SUMS; ++s) {
    float sum = 0;
    for (int y = 0; y < TALL; ++y) sum += shared[y][s][threadIdx.x];
    partial[(int64_t{blockIdx.y} * SUMS + s) * cols + c] = sum;
  }
}

// out[i] = sum over chunks of partial[chunk][i], i in [0, n)
template <typename T>
__global__ void sum_chunks_kernel(const float* __restrict__ partial, T* __restrict__ out,
                                  int64_t chunks, int64_t n) {
  __shared__ float shared[SUM_ROWS][32];
  const int64_t i = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  for (int64_t k = threadIdx.y; k < chunks && i < n; k += SUM_ROWS) sum += partial[k * n + i];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // all rows of threads have stored their sums before the first row reads them
  if (threadIdx.y > 0 || i >= n) return;
  for (int y = 1; y < SUM_ROWS; ++y) sum += shared[y][threadIdx.x];
  out[i] = static_cast<T>(sum);
}

// out: any shape, with as many elements as a chunk has sums. partial: (chunks, …) in fp32.
inline void sum_chunks(const Tensor& partial, Tensor& out) {
  const int64_t n = out.numel();
  if (n == 0) return;  // a grid of no blocks is an error
  dispatch_floating(out, [&](auto zero) {
    using T = decltype(zero);
    sum_chunks_kernel<T>
        <<<grid_size(ceil_div<int64_t>(n, 32), "x"), dim3(32, SUM_ROWS), 0, current_stream(out)>>>(
            data<float>(partial), mutable_data<T>(out), partial.size(0), n);
  });
  check_launch("sum_chunks");
}

inline dim3 column_grid(int64_t rows, int64_t cols) {
  return dim3(grid_size(ceil_div<int64_t>(cols, 32), "x"),
              static_cast<unsigned>(std::min<int64_t>(CHUNKS, ceil_div<int64_t>(rows, TALL))));
}

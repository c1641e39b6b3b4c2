// Day 86: layer norm (day 45) for rows of at most 1024 columns, one warp per row, forward with the
// addition before it, backward with the sums of three gradients.
#pragma once

#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day86/passes.cuh"

constexpr int WARPS = 8;  // per block, where a warp has a row

// A lane has the chunks lane, lane + 32 … of its row, in registers: CHUNKS at most.

template <int CHUNKS, typename F>
__device__ __forceinline__ void each_chunk(int C, F f) {
#pragma unroll
  for (int k = 0; k < CHUNKS; ++k) {
    const int col = (32 * k + static_cast<int>(threadIdx.x) % 32) * EIGHT;
    if (col < C) f(k, col);
  }
}

// y = (h - mean) · rstd · weight + shift, where h is first x + added + bias if `added` is given.
struct Norm {
  const Half *x, *added, *bias, *weight, *shift;
  Half *h, *y;
  float2* stats;
  int64_t rows;
  int C;
};

template <int CHUNKS>
__global__ void __launch_bounds__(WARPS * 32) norm_kernel(const Norm n) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32, start = row * n.C;
  if (row >= n.rows) return;  // whole warps
  Floats h[CHUNKS];
  float sum = 0, squares = 0;
  each_chunk<CHUNKS>(n.C, [&](int k, int col) {
    h[k] = load8(n.x + start + col);
    if (n.added) {
      const Floats more = load8(n.added + start + col);
      Floats b{};
      if (n.bias) b = load8(n.bias + col);
#pragma unroll
      for (int e = 0; e < EIGHT; ++e) {  // rounded, as the backward pass will read it
        h[k].at[e] = __bfloat162float(__float2bfloat16_rn(h[k].at[e] + (more.at[e] + b.at[e])));
      }
      store8(n.h + start + col, h[k]);
    }
#pragma unroll
    for (const float e : h[k].at) sum += e;
  });
  const float mean = warp_sum(sum) / static_cast<float>(n.C);
  each_chunk<CHUNKS>(n.C, [&](int k, int) {
#pragma unroll
    for (const float e : h[k].at) squares += (e - mean) * (e - mean);
  });
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(n.C) + 1e-5f);
  each_chunk<CHUNKS>(n.C, [&](int k, int col) {
    const Floats w = load8(n.weight + col), b = load8(n.shift + col);
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) {
      h[k].at[e] = fmaf((h[k].at[e] - mean) * rstd, w.at[e], b.at[e]);
    }
    store8(n.y + start + col, h[k]);
  });
  if (threadIdx.x % 32 == 0) n.stats[row] = make_float2(mean, rstd);
}

// gx = rstd · (g - mean(g) - n · mean(g · n)) + more, with n = (h - mean) · rstd, g = gy · weight.
struct NormBackward {
  const Half *gy, *h, *weight, *more;  // more may be null, or gx
  const float2* stats;
  Half* gx;        // may be gy
  float* partial;  // (blocks, sums, C): sums of gx where sums is 3, of gy · n, of gy
  int64_t rows;
  int C, sums;  // 0, 2 or 3
};

template <int CHUNKS>
__global__ void __launch_bounds__(WARPS * 32) norm_backward_kernel(const NormBackward n) {
  __shared__ float shared[3 * CHUNKS * 32 * EIGHT];
  const int warp = threadIdx.x / 32;
  Floats of_gx[CHUNKS]{}, of_gyn[CHUNKS]{}, of_gy[CHUNKS]{};
  for (int64_t row = int64_t{blockIdx.x} * WARPS + warp; row < n.rows; row += gridDim.x * WARPS) {
    const int64_t start = row * n.C;
    const float2 stats = n.stats[row];
    Floats g[CHUNKS], normed[CHUNKS];
    float sum = 0, product = 0;
    each_chunk<CHUNKS>(n.C, [&](int k, int col) {
      g[k] = load8(n.gy + start + col);
      normed[k] = load8(n.h + start + col);
      const Floats w = load8(n.weight + col);
#pragma unroll
      for (int e = 0; e < EIGHT; ++e) {
        const float x = (normed[k].at[e] - stats.x) * stats.y;
        of_gyn[k].at[e] += g[k].at[e] * x;
        of_gy[k].at[e] += g[k].at[e];
        normed[k].at[e] = x;
        g[k].at[e] = __fmul_rn(g[k].at[e], w.at[e]);
        sum += g[k].at[e];
        product += g[k].at[e] * x;
      }
    });
    sum = warp_sum(sum) / static_cast<float>(n.C);
    product = warp_sum(product) / static_cast<float>(n.C);
    each_chunk<CHUNKS>(n.C, [&](int k, int col) {
      Floats more{};
      if (n.more) more = load8(n.more + start + col);
#pragma unroll
      for (int e = 0; e < EIGHT; ++e) {
        const float gx = stats.y * (g[k].at[e] - sum - normed[k].at[e] * product) + more.at[e];
        g[k].at[e] = gx;
        of_gx[k].at[e] += gx;
      }
      store8(n.gx + start + col, g[k]);
    });
  }
  if (n.sums == 0) return;
  const int skipped = 3 - n.sums;
  for (int w = 0; w < WARPS; ++w) {
    if (warp == w) {
      each_chunk<CHUNKS>(n.C, [&](int k, int col) {
#pragma unroll
        for (int e = 0; e < EIGHT; ++e) {
          float* const to = shared + col + e;
          to[0] = (w ? to[0] : 0) + of_gx[k].at[e];
          to[n.C] = (w ? to[n.C] : 0) + of_gyn[k].at[e];
          to[2 * n.C] = (w ? to[2 * n.C] : 0) + of_gy[k].at[e];
        }
      });
    }
    __syncthreads();  // each warp adds to what the warp before it has stored
  }
  for (int i = threadIdx.x; i < n.sums * n.C; i += WARPS * 32) {
    n.partial[int64_t{blockIdx.x} * n.sums * n.C + i] = shared[skipped * n.C + i];
  }
}

// What the norms of day 44 have in common. Each one scales a row of x by a function of one sum:
//
//   y[c] = x[c] · s · weight[c]        s = scale(sum of term(x[c]))        weight: of RMSNorm only
//
// The gradient has a second part, because s depends on all elements of the row. With g = gy ·
// weight and D = sum of g[c] · x[c], it is the same for all three:
//
//   gx[c] = s · (g[c] - direction(x[c], s) · pull(D))
#pragma once

#include "common/cuda/chunk.cuh"  // taught in day 35
#include "common/cuda/tensor.cuh"
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <cfloat>

// RMSNorm: the row is divided by the root of the mean of its squares.
struct Rms {
  static constexpr bool WEIGHTED = true;
  static __device__ float term(float x) { return x * x; }
  static __device__ float scale(float sum, float cols, float eps) {
    return rsqrtf(sum / cols + eps);
  }
  static __device__ float direction(float x, float s) { return x * s; }
  static __device__ float pull(float D, float s, float cols, float) { return D * s / cols; }
};

// Where the norm is below eps, the row is divided by eps, which does not depend on the row. The
// comparison keeps a norm of NaN.
__device__ inline float inverse(float norm, float eps) {
  return 1.0f / (norm < eps ? eps : norm);
}
__device__ inline float pull_of(float D, float s, float eps) {
  return s >= 1.0f / eps ? 0.0f : D * s;
}

// The row is divided by the sum of its absolute values.
struct L1 {
  static constexpr bool WEIGHTED = false;
  static __device__ float term(float x) { return fabsf(x); }
  static __device__ float scale(float sum, float, float eps) { return inverse(sum, eps); }
  static __device__ float direction(float x, float) {
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
  }
  static __device__ float pull(float D, float s, float, float eps) { return pull_of(D, s, eps); }
};

// The row is divided by the root of the sum of its squares.
struct L2 {
  static constexpr bool WEIGHTED = false;
  static __device__ float term(float x) { return x * x; }
  static __device__ float scale(float sum, float, float eps) { return inverse(sqrtf(sum), eps); }
  static __device__ float direction(float x, float s) { return x * s; }
  static __device__ float pull(float D, float s, float, float eps) { return pull_of(D, s, eps); }
};

inline void check_eps(double eps) {
  STD_TORCH_CHECK(eps >= 0 && eps <= FLT_MAX, "eps: expected a number of fp32 from 0, got ", eps);
}

constexpr int MAX_BLOCK = 1024;

// The sum over a block, in all its threads, in the same order in every warp. `sums` has a place for
// each warp. All threads of the block must call it; before `sums` is written again, they must have
// passed another barrier.
__device__ inline float sum_of_block(float value, float* sums) {
  const int lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();  // every warp waits for the sums of all warps
  return warp_sum(lane < blockDim.x / 32 ? sums[lane] : 0.0f);
}

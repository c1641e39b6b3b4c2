// What the kernels of day 45's forward pass share: the moments of a row, and what normalises it.
#pragma once

#include "days/day45/rows.cuh"

// Count, mean and m2 (the sum of squared distances from the mean) of some elements, as in day 9.
// The mean is base + mean, and base is one of the elements, or the mean of a few: rounding that sum
// would lose digits of a row far from 0.
struct Moments {
  float count, base, mean, m2;
};

// Mean and 1 / sqrt(variance + eps). A variance below 0 can only come from rounding; the comparison
// passes NaN on. A row with an infinity gets a mean of NaN, or it would depend on the infinity's
// place whether distances from it are NaN.
__device__ inline Statistics statistics_of(const Moments& row, float eps) {
  const float variance = __fdividef(row.m2, row.count);
  const float rstd = rsqrtf((variance < 0 ? 0.0f : variance) + eps);
  return {isnan(rstd) ? rstd : row.base + row.mean, rstd};
}

// What a kernel reads and writes, as chunks of N elements.
template <typename T, int N>
struct Rows {
  const Chunk<T, N>*x, *residual, *weight, *bias;  // residual may be null: then h is not written
  Chunk<T, N>*h, *y;
  float *mean, *rstd;  // (rows,)
  int64_t rows, chunks;
  float eps;
};

// x + residual, rounded to T as an addition before the norm would round it.
template <typename T, int N>
__device__ Chunk<T, N> added(const Chunk<T, N>& x, const Chunk<T, N>& residual) {
  Chunk<T, N> h;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    h.at[i] = static_cast<T>(static_cast<float>(x.at[i]) + static_cast<float>(residual.at[i]));
  }
  return h;
}

// What turns an element into its normal form, (x - base) · rstd + shift: the same as
// (x - mean) · rstd with one operation less, and with base + `beyond` for a mean that has more
// digits than a float.
struct Normal {
  float base, rstd, shift;

  __device__ Normal(float base, float beyond, float rstd)
      : base(base), rstd(rstd), shift(-beyond * rstd) {}
};

// The chunk's distances from a base.
template <int N>
__device__ Chunk<float, N> from_base(Chunk<float, N> h, float base) {
#pragma unroll
  for (int i = 0; i < N; ++i) h.at[i] -= base;
  return h;
}

// y, from distances from to.base.
template <typename T, int N>
__device__ Chunk<T, N> scaled(const Chunk<float, N>& distances, const Normal& to,
                              const RawChunk<Chunk<T, N>>& weight,
                              const RawChunk<Chunk<T, N>>& bias) {
  const Chunk<float, N> w = widened(weight), b = widened(bias);
  Chunk<T, N> y;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float n = fmaf(distances.at[i], to.rstd, to.shift);
    y.at[i] = static_cast<T>(fmaf(n, w.at[i], b.at[i]));
  }
  return y;
}

// y, from elements.
template <typename T, int N>
__device__ Chunk<T, N> normalised(const Chunk<float, N>& h, const Normal& to,
                                  const RawChunk<Chunk<T, N>>& weight,
                                  const RawChunk<Chunk<T, N>>& bias) {
  return scaled(from_base(h, to.base), to, weight, bias);
}

// ---------------------------------------------------------------------------------------------
// v3: rows of a block wait in a ring of stages in shared memory.

constexpr int RING_BLOCK = 256;
constexpr int PACKS = 4;   // per thread
constexpr int STAGES = 3;  // of 16 KB, or of 32 KB with a residual: 96 KB fit into an RTX card

constexpr int ring_bytes(bool residual) {
  return STAGES * PACKS * RING_BLOCK * 16 * (residual ? 2 : 1);
}

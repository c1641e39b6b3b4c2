// Day 20: what all rungs of fused_ce_loss.cu compute of one row: its statistics, its loss, and the
// gradient of its elements. 16-bit elements are compared and converted two at a time.
#pragma once

#include "common/cuda/pack.cuh"      // taught in day 2
#include "common/cuda/ptx/exp2.cuh"  // 2^x in one instruction
#include "days/day20/reduced_loss.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

constexpr float LOG2_E = 1.44269504f;  // exp(v) = 2^(v · log2 e)

// exp(v) for v <= 0, as exact as an output of type T can show. For the 16-bit types one instruction
// of the special function unit does: its error is about 2 ulps of fp32, far below the rounding to
// 16 bits. Its results below the smallest normal number are 0, which a sum whose largest term is 1
// does not show.
template <typename T>
__device__ float exponential(float v) {
  return std::is_same_v<T, float> ? expf(v) : ptx::exp2_approx(v * LOG2_E);
}

// A gradient may be that small, and bf16 can represent it. So the gradient uses LIFT<T> · exp(v),
// which stays a normal number, and the factor 1 / LIFT<T> is part of a multiplication that is
// needed anyway.
template <typename T>
constexpr float LIFT = std::is_same_v<T, float> ? 1.0f : 0x1p64f;
template <typename T>
__device__ float lifted_exponential(float v) {
  return std::is_same_v<T, float> ? expf(v) : ptx::exp2_approx(v * LOG2_E + 64);
}

// Of some elements of a row: the maximum, the sum of exp(x - max), and the sum of x, which only
// label smoothing needs.
struct Statistics {
  float max = -INFINITY, sum = 0, total = 0;
};

// The statistics of the whole warp, returned to all lanes.
__device__ Statistics warp_combine(const Statistics& mine) {
  Statistics all = mine;
  for (int distance = 16; distance > 0; distance /= 2) {
    all.max = fmaxf(all.max, __shfl_xor_sync(0xffffffff, all.max, distance));
  }
  // Not where they are equal: both may be -inf, whose difference is NaN.
  all.sum *= mine.max == all.max ? 1.0f : expf(mine.max - all.max);
  for (int distance = 16; distance > 0; distance /= 2) {
    all.sum += __shfl_xor_sync(0xffffffff, all.sum, distance);
    all.total += __shfl_xor_sync(0xffffffff, all.total, distance);
  }
  return all;
}

// Of the whole block, returned to all threads, which must all call it. shared: one place per warp;
// the caller may overwrite it only after another barrier.
template <int WARPS>
__device__ Statistics block_combine(const Statistics& mine, Statistics (&shared)[WARPS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Statistics ours = warp_combine(mine);
  if (lane == 0) shared[warp] = ours;
  __syncthreads();  // every warp has written its statistics before any are read
  return warp_combine(lane < WARPS ? shared[lane] : Statistics{});
}

// A row's loss, and its gradient as a function of x: LIFT<T> · exp(x - max) · scale - everywhere,
// minus `at_target` at the target.
template <typename T>
struct RowTerms {
  bool ignored, valid;
  float max, log_sum, smoothing, mean, scale, everywhere, at_target;

  __device__ RowTerms(const Statistics& all, int64_t target, int64_t cols, const LossTerms& terms,
                      float weight)
      : ignored(target == terms.ignore_index),
        valid(target >= 0 && target < cols),
        max(all.max),
        log_sum(logf(all.sum)),
        smoothing(terms.smoothing),
        mean(all.total / static_cast<float>(cols)) {
    scale = valid ? weight / all.sum / LIFT<T> : NAN;
    everywhere = weight * smoothing / static_cast<float>(cols);
    at_target = weight * (1 - smoothing);
  }

  // x_target: the logit of the target; unused when the target is invalid.
  __device__ float loss(float x_target) const {
    if (ignored) return 0;
    if (!valid) return NAN;
    const float hit = log_sum + (max - x_target);
    // Without smoothing the mean is left out: one logit of -inf makes it -inf, and 0 · inf is NaN.
    return smoothing > 0 ? (1 - smoothing) * hit + smoothing * (log_sum + (max - mean)) : hit;
  }
};

// One element, for rows that are not aligned to 16 bytes.
template <typename T>
struct Single {
  static constexpr int N = 1;
  T at[1];
};

// Adjacent elements of a row, as fp32. One instruction converts two 16-bit numbers.
template <int N>
struct Floats {
  float at[N];
};

template <typename Piece>
__device__ Floats<Piece::N> unpack(const Piece& piece) {
  Floats<Piece::N> out;
#pragma unroll
  for (int i = 0; i < Piece::N; ++i) out.at[i] = static_cast<float>(piece.at[i]);
  return out;
}

__device__ void convert(float a, float b, __half* to) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ void convert(float a, float b, __nv_bfloat16* to) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ void convert(float a, float b, float* to) {
  to[0] = a;
  to[1] = b;
}

template <typename Piece>
__device__ Piece pack(const Floats<Piece::N>& from) {
  Piece out;
  if constexpr (Piece::N == 1) {
    out.at[0] = from.at[0];
  } else {
#pragma unroll
    for (int i = 0; i < Piece::N; i += 2) convert(from.at[i], from.at[i + 1], &out.at[i]);
  }
  return out;
}

// The maximum of a piece. One instruction compares two pairs of 16-bit numbers. A maximum ignores
// NaN and returns the other argument; the sum becomes NaN.
template <typename T>
__device__ float max_of(const Single<T>& piece) {
  return static_cast<float>(piece.at[0]);
}
__device__ float max_of(const Pack<float>& pack) {
  return fmaxf(fmaxf(pack.at[0], pack.at[1]), fmaxf(pack.at[2], pack.at[3]));
}
template <typename T>
__device__ float max_of(const Pack<T>& pack) {
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const auto* two = reinterpret_cast<const Two*>(&pack);
  const Two four = __hmax2(__hmax2(two[0], two[1]), __hmax2(two[2], two[3]));
  return static_cast<float>(__hmax(four.x, four.y));
}

// Adds a piece to sum and total; mine.max already includes it.
template <typename T, typename Piece>
__device__ void add(Statistics& mine, const Piece& piece, bool with_total) {
  // While all elements are -inf, x - max would be NaN; exp(-inf - 0) is the 0 that is right.
  const float base = mine.max == -INFINITY ? 0.0f : mine.max;
  const auto x = unpack(piece);
#pragma unroll
  for (const float v : x.at) mine.sum += exponential<T>(v - base);
  if (with_total) {
#pragma unroll
    for (const float v : x.at) mine.total += v;
  }
}

// The gradient of columns [first, first + N) of the row.
template <typename T, typename Piece>
__device__ Piece gradient_of(const Piece& piece, int64_t first, int64_t target,
                             const RowTerms<T>& row) {
  Floats<Piece::N> x = unpack(piece);
#pragma unroll
  for (float& v : x.at) v = lifted_exponential<T>(v - row.max) * row.scale - row.everywhere;
  if (row.ignored) x = {};
  // Only the piece that contains the target compares its N columns with it.
  const int64_t hit = target - first;
  if (hit >= 0 && hit < Piece::N && !row.ignored) {
#pragma unroll
    for (int i = 0; i < Piece::N; ++i) x.at[i] -= i == hit ? row.at_target : 0.0f;
  }
  return pack<Piece>(x);
}

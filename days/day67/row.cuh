// Day 67: what all rungs of chunked_ce.cu compute of a row: its statistics, its loss, its gradient.
#pragma once

#include "common/cuda/chunk.cuh"        // taught in days 35 and 42
#include "common/cuda/ptx/exp2.cuh"     // taught in day 20
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

constexpr float LOG2_E = 1.44269504f;
constexpr float SLACK = 8;  // how far a logit may be above the base of its sum: e^8 is 2981

// exp(v) for 16-bit outputs is one instruction, which returns 0 for results below 2^-126. bf16 can
// hold such probabilities. So exponentials and their sum have a factor of 2^64, which cancels.
template <typename T>
constexpr float LIFT = sizeof(T) == 4 ? 1.0f : 0x1p64f;
template <typename T>
__device__ float exponential(float x, float base) {
  if constexpr (sizeof(T) == 4) return expf(x - base);
  return ptx::exp2_approx(fmaf(x - base, LOG2_E, 64.0f));
}

// Of some logits: sum = sum of LIFT · exp(x - base), total = sum of x, which only label smoothing
// needs. base is at most SLACK below the maximum. It begins as the least number and not as -inf:
// -inf - -inf would be NaN.
struct Statistics {
  float base = -FLT_MAX, sum = 0, total = 0;
};

// The elements of a chunk. bf16 is the upper half of fp32: one instruction each.
template <typename T, int N>
struct Floats {
  float at[N];

  __device__ explicit Floats(const RawChunk<Chunk<T, N>>& raw) {
    if constexpr (std::is_same_v<T, __nv_bfloat16> && N == 8) {
      const unsigned words[] = {raw.words.x, raw.words.y, raw.words.z, raw.words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        at[2 * i] = __uint_as_float(words[i] << 16);
        at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    } else {
      const Chunk<T, N> chunk = raw.chunk();
      for (int i = 0; i < N; ++i) at[i] = static_cast<float>(chunk.at[i]);
    }
  }
};

template <typename T, int N>
__device__ void store_raw(Chunk<T, N>* to, const RawChunk<Chunk<T, N>>& raw) {
  *reinterpret_cast<RawChunk<Chunk<T, N>>*>(to) = raw;
}

// Two numbers as 16-bit ones in a word, by one instruction.
template <typename T>
__device__ unsigned two_in_word(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 two = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&two);
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&two);
  }
}

template <typename T, int N>
__device__ RawChunk<Chunk<T, N>> rounded(const float (&from)[N]) {
  RawChunk<Chunk<T, N>> to;
  if constexpr (sizeof(T) == 2 && N == 8) {
    to.words = {two_in_word<T>(from[0], from[1]), two_in_word<T>(from[2], from[3]),
                two_in_word<T>(from[4], from[5]), two_in_word<T>(from[6], from[7])};
  } else {
    Chunk<T, N> chunk;
    for (int i = 0; i < N; ++i) chunk.at[i] = static_cast<T>(from[i]);
    memcpy(&to, &chunk, sizeof to);
  }
  return to;
}

// The larger one of each two 16-bit numbers in words.
template <typename T>
__device__ unsigned larger(unsigned a, unsigned b) {
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const Two most = __hmax2(*reinterpret_cast<const Two*>(&a), *reinterpret_cast<const Two*>(&b));
  return *reinterpret_cast<const unsigned*>(&most);
}

// Of a chunk. NaN is no number to a maximum, which returns the others; the sum becomes NaN.
template <typename T, int N>
__device__ float maximum(const RawChunk<Chunk<T, N>>& raw) {
  if constexpr (sizeof(T) == 2 && N == 8) {
    const unsigned most =
        larger<T>(larger<T>(raw.words.x, raw.words.y), larger<T>(raw.words.z, raw.words.w));
    const unsigned swapped = __byte_perm(most, 0, 0x1032);
    const unsigned both = larger<T>(most, swapped);
    return static_cast<float>(*reinterpret_cast<const T*>(&both));
  } else {
    float most = -INFINITY;
    for (const float x : Floats<T, N>(raw).at) most = fmaxf(most, x);
    return most;
  }
}

// ---------------------------------------------------------------------------------------------
// The statistics of a row, chunk by chunk, and their merge.

// Adds a chunk to the statistics. The sum is rescaled only where an exponential might overflow.
template <bool SMOOTHED, typename T, int N>
__device__ void include(Statistics& mine, const RawChunk<Chunk<T, N>>& chunk) {
  const float most = maximum(chunk);
  if (most > mine.base + SLACK) {
    mine.sum *= expf(mine.base - most);
    mine.base = most;
  }
  const Floats<T, N> x(chunk);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    mine.sum += exponential<T>(x.at[i], mine.base);
    if (SMOOTHED) mine.total += x.at[i];
  }
}

// Of the whole warp, in every lane. All 32 lanes must call it.
template <bool SMOOTHED>
__device__ Statistics warp_merge(const Statistics& mine) {
  const float base = warp_max(mine.base);
  return {base, warp_sum(mine.sum * expf(mine.base - base)), SMOOTHED ? warp_sum(mine.total) : 0};
}

// Of the whole block, in every thread; all must call it. shared: one place per warp, which may be
// overwritten after the next barrier.
template <bool SMOOTHED, int WARPS>
__device__ Statistics block_merge(const Statistics& mine, Statistics (&shared)[WARPS]) {
  static_assert(WARPS <= 32, "one lane per warp");
  const int lane = threadIdx.x % 32;
  const Statistics ours = warp_merge<SMOOTHED>(mine);
  if (lane == 0) shared[threadIdx.x / 32] = ours;
  __syncthreads();  // every warp waits for the statistics of all warps
  return warp_merge<SMOOTHED>(lane < WARPS ? shared[lane] : Statistics{});
}

// ---------------------------------------------------------------------------------------------

// What the kernels work on: rows of `chunks` chunks.
template <typename T, int N>
struct Job {
  const Chunk<T, N>* x;   // (rows, chunks)
  Chunk<T, N>* dx;        // (rows, chunks)
  const int64_t* target;  // (rows)
  float* losses;          // (rows)
  const float* weight;    // (), w: counted on the GPU so that the host does not wait
  int64_t rows, chunks, ignore_index;
  float smoothing;  // ε
};

// A row's loss, and its gradient as a function of a logit.
template <bool SMOOTHED>
struct Row {
  bool ignored, valid;
  float scale, everywhere, at_target;

  template <typename T, int N>
  __device__ Row(const Job<T, N>& job, const Statistics& all, int64_t target, float weight)
      : ignored(target == job.ignore_index), valid(target >= 0 && target < job.chunks * N) {
    scale = valid ? weight / all.sum : NAN;
    everywhere = SMOOTHED ? weight * job.smoothing / static_cast<float>(job.chunks * N) : 0;
    at_target = SMOOTHED ? weight * (1 - job.smoothing) : weight;
  }

  template <typename T>
  __device__ float gradient(float x, float base) const {
    const float p = exponential<T>(x, base) * scale;
    return SMOOTHED ? p - everywhere : p;
  }

  // Of a chunk, as if it had not the target.
  template <typename T, int N>
  __device__ RawChunk<Chunk<T, N>> gradients(const RawChunk<Chunk<T, N>>& chunk, float base) const {
    float to[N] = {};
    if (!ignored) {
      const Floats<T, N> x(chunk);
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = gradient<T>(x.at[i], base);
    }
    return rounded<T>(to);
  }

  // x: the target's logit. One thread calls it, after it has stored the gradients of the chunk that
  // has the target: its own stores come in order.
  template <typename T, int N>
  __device__ void finish(const Job<T, N>& job, const Statistics& all, int64_t row, int64_t target,
                         float x) const {
    float loss = ignored ? 0 : NAN;
    if (valid && !ignored) {
      const float log_sum = logf(all.sum * (1 / LIFT<T>));
      const float mean = all.total / static_cast<float>(job.chunks * N);
      loss = log_sum + (all.base - x);
      if (SMOOTHED) {
        loss = (1 - job.smoothing) * loss + job.smoothing * (log_sum + (all.base - mean));
      }
      auto* dx = reinterpret_cast<T*>(job.dx + row * job.chunks);
      dx[target] = static_cast<T>(gradient<T>(x, all.base) - at_target);
    }
    job.losses[row] = loss;
  }
};

// The chunk that has the target; the first one, if no chunk has it.
template <int N>
__device__ int64_t chunk_of(int64_t target, int64_t chunks) {
  return target >= 0 && target < chunks * N ? target / N : 0;
}

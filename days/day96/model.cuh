// Day 96: a GPT-2 that decodes token by token: its arrays, and the device code that all rungs
// share.
#pragma once

#include "common/cuda/chunk.cuh"        // taught in days 35 and 42
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <algorithm>
#include <cmath>

using bf16 = __nv_bfloat16;
constexpr int PER_CHUNK = 8;  // bf16 numbers in 16 bytes
using Raw = RawChunk<Chunk<bf16, PER_CHUNK>>;

// 12 warps: on 132 multiprocessors, a GPT-2 of 768 channels gives a block 18, 6, 24 and 24 units of
// a layer's four matrices, 6 per warp.
constexpr int WARPS = 12, THREADS = 32 * WARPS;
constexpr int MOST_D = 128;  // elements per head: q, k and v have a thread per element
constexpr float EPSILON = 1e-5f;
constexpr float LOG2_OF_E = 1.44269504f;

// The matrices in the order in which a token meets them.
enum Matrix { QKV, PROJ, FC, OUT, HEAD, MATRICES };

// Where a layer's vectors begin, in multiples of C. A norm is its weights, then its biases.
enum Vector { NORM1 = 0, QKV_BIAS = 2, PROJ_BIAS = 5, NORM2 = 6, FC_BIAS = 8, OUT_BIAS = 12 };
constexpr int VECTORS = 13;

struct Model {
  const bf16* matrices[MATRICES];  // (L, 3C, C), (L, C, C), (L, 4C, C), (L, C, 4C), (V, C)
  const bf16 *positions, *vectors, *last_norm;  // (P, C), (L, 13C), (2C)
  bf16* cache;                                  // (L, keys and values, H, P, D)
  const int64_t* token;                         // (1)
  int64_t* tokens;                              // (steps)
  float* logits;                                // (steps, V)
  int L, C, V, P, H, D, first, steps;           // first: the position of `token`

  __host__ __device__ int rows(int kind) const {
    return kind == QKV ? 3 * C : kind == FC ? 4 * C : kind == HEAD ? V : C;
  }
  // A unit is C elements that lie side by side: a row, or a quarter of a row of OUT.
  __host__ __device__ int units_per_row(int kind) const { return kind == OUT ? 4 : 1; }
  __device__ int chunks() const { return C / PER_CHUNK; }  // per unit

  __device__ const Raw* matrix(int kind, int layer) const {
    const int64_t units = int64_t{layer} * rows(kind) * units_per_row(kind);
    return reinterpret_cast<const Raw*>(matrices[kind]) + units * chunks();
  }
  __device__ const bf16* vector(int layer, int place) const {
    return vectors + (layer * VECTORS + place) * C;
  }
  // The keys (which = 0) or values (1) of one head: (P, D).
  __device__ bf16* cached(int layer, int which, int head) const {
    return cache + int64_t{(layer * 2 + which) * H + head} * P * D;
  }
  // NaN for a token outside the vocabulary.
  __device__ float embedding(int64_t id, int position, int c) const {
    if (id < 0 || id >= V) return NAN;
    return static_cast<float>(matrices[HEAD][id * C + c]) +
           static_cast<float>(positions[int64_t{position} * C + c]);
  }
};

// ---------------------------------------------------------------------------------------------

__device__ inline const bf16* norm_before(const Model& m, int kind, int layer) {
  return kind == HEAD ? m.last_norm : m.vector(layer, kind == QKV ? NORM1 : NORM2);
}

// The products of 8 weights and 8 elements of a vector, added to sum.
__device__ __forceinline__ float multiply_add(float sum, const Raw& weights, const float* x) {
  const Chunk<float, PER_CHUNK> wide = widened(weights);
#pragma unroll
  for (int i = 0; i < PER_CHUNK; ++i) sum = fmaf(wide.at[i], x[i], sum);
  return sum;
}

// Larger is better, of equal logits the smaller index. NaN never is.
struct Best {
  float logit = -INFINITY;
  int index = 0;

  __device__ void consider(const Best& other) {
    if (other.logit > logit || (other.logit == logit && other.index < index)) *this = other;
  }
};

// The best of the block's threads, in every thread. `of_warps` has WARPS elements.
__device__ inline Best block_best(Best best, Best* of_warps) {
  for (int half = 16; half > 0; half /= 2) {
    best.consider({__shfl_xor_sync(FULL_WARP, best.logit, half),
                   __shfl_xor_sync(FULL_WARP, best.index, half)});
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();  // every thread waits for the best of all warps
  for (int w = 0; w < WARPS; ++w) best.consider(of_warps[w]);
  return best;
}

// ---------------------------------------------------------------------------------------------
// Attention of one query. D / 8 neighbouring lanes have a row of keys: day 74's loop, in which a
// group of lanes takes AHEAD rows at a time.

struct AttendShared {
  float rows[3][MOST_D];       // q, and the new k and v
  float parts[WARPS][MOST_D];  // of the warps
  float max[WARPS], sum[WARPS];
};

constexpr int AHEAD = 3;  // rows of keys and of values that a lane has in flight

// Rounds an element of the new k (which = 1) or v (2) as the cache has it, and stores it there.
__device__ inline float append(const Model& m, int layer, int which, int head, int position, int j,
                               float value, bool store) {
  const bf16 rounded = static_cast<bf16>(value);
  if (store) m.cached(layer, which - 1, head)[int64_t{position} * m.D + j] = rounded;
  return static_cast<float>(rounded);
}

// Adds (max, sum, out) of other rows to those of this lane; an output is relative to 2^max.
__device__ inline void merge(float& max, float& sum, float (&out)[PER_CHUNK], float other_max,
                             float other_sum, const float (&other)[PER_CHUNK]) {
  const float most = fmaxf(max, other_max);
  const float base = most == -INFINITY ? 0.0f : most;  // -inf - -inf would be NaN
  const float mine = exp2f(max - base), theirs = exp2f(other_max - base);
  sum = sum * mine + other_sum * theirs;
#pragma unroll
  for (int e = 0; e < PER_CHUNK; ++e) out[e] = out[e] * mine + other[e] * theirs;
  max = most;
}

// The positions of one split: `length` that lie side by side.
struct Run {
  int split, length;

  __device__ bool has_any(int last) const { return split * length <= last; }
  __device__ bool has(int position) const {
    return split * length <= position && position - split * length < length;
  }
  // Row `row` of this split's.
  __device__ int position_of(int row) const { return split * length + row; }
  // How many rows of this split's lie before a position.
  __device__ int rows_before(int position) const {
    return min(max(position - split * length, 0), length);
  }
};

// Of head `head`: the positions of one split, up to `position`, the new one. fetch(which, j)
// gives element j of q, k or v of the new position. Calls emit(j, output, log2 of the sum of all
// exponentials) from thread j. The rows of the cache are loaded before anything is fetched.
template <typename Split, typename Fetch, typename Emit>
__device__ void attend(const Model& m, AttendShared& shared, int layer, int head,
                       const Split& split, int position, Fetch&& fetch, Emit&& emit) {
  const int D = m.D, lanes = D / PER_CHUNK, groups = THREADS / lanes;
  const int sub = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int old = split.rows_before(position);  // are in the cache
  const Raw* const keys = reinterpret_cast<const Raw*>(m.cached(layer, 0, head)) + sub;
  const Raw* const values = reinterpret_cast<const Raw*>(m.cached(layer, 1, head)) + sub;
  Raw k[AHEAD], v[AHEAD];
  const auto load = [&](int from) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int row = from + group + i * groups;
      if (row >= old) break;
      const int64_t chunk = int64_t{split.position_of(row)} * lanes;
      k[i] = keys[chunk], v[i] = values[chunk];
    }
  };
  load(0);

  const bool has_new = split.has(position);
  const int which = threadIdx.x / D, j = threadIdx.x % D;
  if (which < (has_new ? 3 : 1)) shared.rows[which][j] = fetch(which, j);
  __syncthreads();  // every thread waits for q, k and v

  const float* const q = shared.rows[0] + PER_CHUNK * sub;
  const float scale = LOG2_OF_E * rsqrtf(static_cast<float>(D));  // exp2 does for exp
  const auto group_sum = [&](float value) {
    for (int half = lanes / 2; half > 0; half /= 2) {
      value += __shfl_xor_sync(FULL_WARP, value, half);
    }
    return value * scale;
  };
  float max = -INFINITY, sum = 0, out[PER_CHUNK] = {};
  if (has_new) {
    float score = 0;
    for (int e = 0; e < PER_CHUNK; ++e) score += q[e] * shared.rows[1][PER_CHUNK * sub + e];
    score = group_sum(score);
    if (group == 0) {
      max = score, sum = 1;
      for (int e = 0; e < PER_CHUNK; ++e) out[e] = shared.rows[2][PER_CHUNK * sub + e];
    }
  }
  for (int from = 0; from < old; from += AHEAD * groups) {
    float score[AHEAD], most = -INFINITY;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const bool is_there = from + group + i * groups < old;
      score[i] = group_sum(is_there ? multiply_add(0.0f, k[i], q) : 0.0f);
      if (!is_there) score[i] = -INFINITY;
      most = fmaxf(most, score[i]);
    }
    const float base = most == -INFINITY ? 0.0f : most;
    float other_sum = 0, other[PER_CHUNK] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (from + group + i * groups >= old) break;
      const float weight = exp2f(score[i] - base);
      const Chunk<float, PER_CHUNK> wide = widened(v[i]);
      other_sum += weight;
#pragma unroll
      for (int e = 0; e < PER_CHUNK; ++e) other[e] = fmaf(weight, wide.at[e], other[e]);
    }
    merge(max, sum, out, most, other_sum, other);
    load(from + AHEAD * groups);
  }

  for (int distance = lanes; distance < 32; distance *= 2) {  // the groups of a warp
    float other[PER_CHUNK];
#pragma unroll
    for (int e = 0; e < PER_CHUNK; ++e) other[e] = __shfl_xor_sync(FULL_WARP, out[e], distance);
    const float other_max = __shfl_xor_sync(FULL_WARP, max, distance);
    const float other_sum = __shfl_xor_sync(FULL_WARP, sum, distance);
    merge(max, sum, out, other_max, other_sum, other);
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) shared.max[warp] = max, shared.sum[warp] = sum;
  if (threadIdx.x % 32 < lanes) {
#pragma unroll
    for (int e = 0; e < PER_CHUNK; ++e) shared.parts[warp][PER_CHUNK * sub + e] = out[e];
  }
  __syncthreads();  // the threads that merge wait for the parts of all warps
  if (threadIdx.x >= D) return;
  float most = -INFINITY, total = 0, result = 0;
  for (int w = 0; w < WARPS; ++w) most = fmaxf(most, shared.max[w]);
  const float base = most == -INFINITY ? 0.0f : most;
  for (int w = 0; w < WARPS; ++w) {
    const float weight = exp2f(shared.max[w] - base);
    total += weight * shared.sum[w];
    result += weight * shared.parts[w][threadIdx.x];
  }
  emit(static_cast<int>(threadIdx.x), result / total, base + log2f(total));
}

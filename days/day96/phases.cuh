// Day 96: the phases of a token, between which v1 to v3 wait for all blocks.
#pragma once

#include "days/day83/elements.cuh"  // gelu: taught in day 83
#include "days/day96/model.cuh"

#include <climits>

// A phase reads what an earlier one left in global memory. Block `blockIdx.x` of
// `gridDim.x` does its part; all threads of the block call it.

struct Buffers {
  float *x, *normed, *qkv, *attended, *hidden;  // (C), (C), (3C), (C), (4C)
};

__device__ inline void embed(const Model& m, const Buffers& b, int step) {
  const int64_t id = step == 0 ? *m.token : m.tokens[step - 1];
  for (int c = blockIdx.x * THREADS + threadIdx.x; c < m.C; c += gridDim.x * THREADS) {
    b.x[c] = m.embedding(id, m.first + step, c);
  }
}

// (vector - mean) / deviation · weights + biases, in place in shared memory. norm: (2C).
__device__ inline void normalise(float* vector, const bf16* norm, int C) {
  const int lane = threadIdx.x % 32;
  float sum = 0, squares = 0;
  for (int c = lane; c < C; c += 32) sum += vector[c];
  const float mean = warp_sum(sum) / C;
  for (int c = lane; c < C; c += 32) squares += (vector[c] - mean) * (vector[c] - mean);
  const float scale = rsqrtf(warp_sum(squares) / C + EPSILON);
  __syncthreads();  // all warps have read the vector before any thread overwrites it
  for (int c = threadIdx.x; c < C; c += THREADS) {
    vector[c] =
        (vector[c] - mean) * scale * static_cast<float>(norm[c]) + static_cast<float>(norm[C + c]);
  }
  __syncthreads();  // the vector is complete
}

// One matrix and a vector in shared memory, normalised where a norm stands before: a warp per row.
template <int KIND>
__device__ void multiply_rows(const Model& m, const Buffers& b, int layer, int step,
                              const float* vector) {
  const int chunks = m.C * m.units_per_row(KIND) / PER_CHUNK;
  const int place = KIND == QKV    ? QKV_BIAS
                    : KIND == PROJ ? PROJ_BIAS
                    : KIND == FC   ? FC_BIAS
                                   : OUT_BIAS;
  for (int row = blockIdx.x * WARPS + threadIdx.x / 32; row < m.rows(KIND);
       row += gridDim.x * WARPS) {
    const Raw* const weights = m.matrix(KIND, layer) + row * chunks;
    float sum = 0;
#pragma unroll 4
    for (int c = threadIdx.x % 32; c < chunks; c += 32) {
      sum = multiply_add(sum, weights[c], vector + PER_CHUNK * c);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 != 0) continue;
    if (KIND != HEAD) sum += static_cast<float>(m.vector(layer, place)[row]);
    if (KIND == QKV) b.qkv[row] = sum;
    if (KIND == PROJ || KIND == OUT) b.x[row] += sum;
    if (KIND == FC) b.hidden[row] = gelu<float>(sum);
    if (KIND == HEAD) m.logits[int64_t{step} * m.V + row] = sum;
  }
}

// The same of what the phase before left. NORM: of x, by every block; else normalised before.
template <int KIND, bool NORM>
__device__ void multiply(const Model& m, const Buffers& b, int layer, int step, float* vector) {
  const float* const from = KIND == PROJ  ? b.attended
                            : KIND == OUT ? b.hidden
                            : NORM        ? b.x
                                          : b.normed;
  for (int i = threadIdx.x; i < m.C * m.units_per_row(KIND); i += THREADS) vector[i] = from[i];
  __syncthreads();  // the vector is complete
  if (NORM) normalise(vector, norm_before(m, KIND, layer), m.C);
  multiply_rows<KIND>(m, b, layer, step, vector);
}

// One block per head. STORE: into the cache.
template <bool STORE>
__device__ void attend_heads(const Model& m, const Buffers& b, int layer, int step,
                             AttendShared& shared) {
  const int position = m.first + step;
  for (int head = blockIdx.x; head < m.H; head += gridDim.x) {
    const auto fetch = [&](int which, int j) {
      const float value = b.qkv[which * m.C + head * m.D + j];
      return which == 0 ? value : append(m, layer, which, head, position, j, value, STORE);
    };
    const auto emit = [&](int j, float value, float) { b.attended[head * m.D + j] = value; };
    attend(m, shared, layer, head, Run{0, INT_MAX}, position, fetch, emit);
  }
}

// One block: the largest logit's index is the next token.
__device__ inline void choose(const Model& m, int step, Best* of_warps) {
  Best best;
  for (int v = threadIdx.x; v < m.V; v += THREADS) {
    best.consider({m.logits[int64_t{step} * m.V + v], v});
  }
  best = block_best(best, of_warps);
  if (threadIdx.x == 0) m.tokens[step] = best.index;
}

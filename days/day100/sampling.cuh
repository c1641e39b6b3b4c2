// Day 100: a token drawn by all blocks of day 96's kernel together, without a sort.
//
// The word with the largest logit / temperature + noise, with noise = -log(-log(1 - v)) and v
// uniform and independent for each word, is distributed as softmax(logits / temperature). Of the
// words that top-k and top-p keep, the largest sum is such a draw from those words alone.
#pragma once

#include "common/cuda/philox.cuh"  // taught in day 33
#include "days/day96/megakernel.cuh"

#include <climits>

// A split of attention's positions, which are dealt in groups of GROUP. Which split has a position
// does not depend on how many tokens a launch decodes, so nor do the bits of a sum.
struct Dealt {
  static constexpr int GROUP = 16, TURN = GROUP * SPLITS;
  int split, length;  // day 96's arguments, of which the first is enough

  __device__ bool has_any(int last) const { return split * GROUP <= last; }
  __device__ bool has(int position) const { return position % TURN / GROUP == split; }
  __device__ int position_of(int row) const {
    return row / GROUP * TURN + split * GROUP + row % GROUP;
  }
  __device__ int rows_before(int position) const {
    return position / TURN * GROUP + min(max(position % TURN - split * GROUP, 0), GROUP);
  }
};

struct Sampler;

// Whether top-k and top-p keep a word, by how many words have larger logits, the mass of those, and
// the mass of all words. The word with the largest logit is always kept. In final_project.cu.
__device__ bool is_kept(const Sampler& s, float count, float mass, float total);

struct Sampler {
  float per_temperature;  // 0: the largest logit
  int top_k;              // 0: all words
  float top_p;            // 1: all words
  uint64_t seed;

  using Split = Dealt;
  struct Shared {
    Best best[2][WARPS];
    float sums[2][WARPS][3];
    float logit;
  };

  // The noise of a word after the token at `position`: the same whatever launch computes it.
  __device__ float noise(int word, int position) const {
    const uint4 four = philox::random4(seed, static_cast<uint64_t>(word), position);
    // 32 bits of v, since the largest noise belongs to the smallest v. Below 1, even rounded.
    const float v = fminf((static_cast<float>(four.x) + 0.5f) * 0x1p-32f, 1 - 0x1p-24f);
    return -logf(-log1pf(-v));
  }

  // Sums of three numbers over the block, in every thread.
  static __device__ void block_sums(float (&sums)[3], float (&of_warps)[WARPS][3]) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      sums[i] = warp_sum(sums[i]);
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][i] = sums[i];
    }
    __syncthreads();  // every thread waits for the sums of all warps
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      sums[i] = 0;
      for (int w = 0; w < WARPS; ++w) sums[i] += of_warps[w][i];
    }
  }

  static __device__ bool is_before(float logit, int word, const Best& other) {
    return logit > other.logit || (logit == other.logit && word < other.index);
  }

  // The next token, in every thread of every block; `share` is the words of this block.
  __device__ int64_t next(const Model& m, int step, const Share& share, Best, Exchange& exchange,
                          Shared& shared) const {
    const float* const logits = m.logits + int64_t{step} * m.V;
    const int end = share.first_row + share.rows;
    __syncthreads();  // this block's logits are stored
    Best rejected{-INFINITY, INT_MAX};
    for (;;) {
      // The largest sum of the words before all rejected ones.
      Best best;
      for (int word = share.first_row + threadIdx.x; word < end; word += THREADS) {
        const float logit = logits[word];
        if (!is_before(logit, word, rejected)) continue;
        best.consider({per_temperature == 0
                           ? logit
                           : fmaf(logit, per_temperature, noise(word, m.first + step)),
                       word});
      }
      best = block_best(best, shared.best[0]);
      const bool is_here = share.first_row <= best.index && best.index < end;
      const unsigned mine[] = {__float_as_uint(best.logit), static_cast<unsigned>(best.index),
                               is_here ? __float_as_uint(logits[best.index]) : 0};
      Best seen;
      float its_logit = 0;
      exchange(mine, [&](const unsigned (&words)[3]) {
        const Best other{__uint_as_float(words[0]), static_cast<int>(words[1])};
        seen.consider(other);
        if (seen.logit == other.logit && seen.index == other.index) {
          its_logit = __uint_as_float(words[2]);
        }
      });
      const Best chosen = block_best(seen, shared.best[1]);
      const bool all = per_temperature == 0 || (top_k == 0 && top_p == 1);
      if (all || chosen.logit == -INFINITY) return chosen.index;
      if (seen.index == chosen.index && seen.logit == chosen.logit) shared.logit = its_logit;
      __syncthreads();  // the thread that received the chosen word has stored its logit

      // How many words come before it, their mass, and that of all words, as shares of its own.
      const Best candidate{shared.logit, chosen.index};
      float sums[3] = {};
      for (int word = share.first_row + threadIdx.x; word < end; word += THREADS) {
        const float logit = logits[word];
        if (logit != logit) continue;  // NaN
        const float mass = expf((logit - candidate.logit) * per_temperature);
        const bool before = is_before(logit, word, candidate);
        sums[0] += before ? 1 : 0;
        sums[1] += before ? mass : 0;
        sums[2] += mass;
      }
      block_sums(sums, shared.sums[0]);
      const unsigned of_block[] = {__float_as_uint(sums[0]), __float_as_uint(sums[1]),
                                   __float_as_uint(sums[2])};
      float of_all[3] = {};
      exchange(of_block, [&](const unsigned (&words)[3]) {
#pragma unroll
        for (int i = 0; i < 3; ++i) of_all[i] += __uint_as_float(words[i]);
      });
      block_sums(of_all, shared.sums[1]);
      if (is_kept(*this, of_all[0], of_all[1], of_all[2])) return candidate.index;
      rejected = candidate;  // and with it, all words behind it
    }
  }
};

// Day 96: what v4 has in place of barriers: words with a tag that shows whether they have arrived,
// and a ring in shared memory through which the weights come, in the order of their use.
#pragma once

#include "common/cuda/ptx/cp_async.cuh"  // taught in day 20
#include "days/day96/model.cuh"

// ---------------------------------------------------------------------------------------------
// A number and its tag travel in one word of 8 bytes, which a thread stores and loads as a whole.
// A thread that sees the tag has the number: no fence, no counter, no second load.

using Word = unsigned long long;  // the tag in the upper half, the bits of the number in the lower

__device__ __forceinline__ void send(Word* to, unsigned tag, unsigned bits) {
  *static_cast<volatile Word*>(to) = Word{tag} << 32 | bits;
}
__device__ __forceinline__ void send(Word* to, unsigned tag, float value) {
  send(to, tag, __float_as_uint(value));
}

template <int N>
struct Seen {
  Word words[N];
  bool all;  // whether all have the tag
};

// One look at N words, whose loads are in flight together. at(i) is the address of word i, null
// where there is none.
template <int N, typename At>
__device__ __forceinline__ Seen<N> look(unsigned tag, At& at) {
  Seen<N> seen;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Word* const from = at(i);
    seen.words[i] = from ? *static_cast<const volatile Word*>(from) : Word{tag} << 32;
  }
  seen.all = true;
#pragma unroll
  for (int i = 0; i < N; ++i) seen.all &= seen.words[i] >> 32 == tag;
  return seen;
}

// Waits for N words of this tag, and calls take(i, bits) with each that exists. Of many words, the
// first is polled alone: until it arrives, a look is one load instead of N.
template <int N, typename At, typename Take>
__device__ __forceinline__ void receive(unsigned tag, At&& at, Take&& take) {
  if constexpr (N > 2) {
    const auto first = [&](int) { return at(0); };
    while (!look<1>(tag, first).all) {
    }
  }
  Seen<N> seen;
  do {
    seen = look<N>(tag, at);
  } while (!seen.all);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (at(i)) take(i, static_cast<unsigned>(seen.words[i]));
  }
}

// ---------------------------------------------------------------------------------------------
// The units of a token, one after the other: QKV, PROJ, FC, OUT of layer 0, of layer 1, …, HEAD.
// Of each matrix a block has a range of rows, and its warps take the units in turn.

struct Share {
  int first_row, rows;  // of this block
};

// Block `block` of `blocks`: shares differ by one row at most. (2^20 rows times 2^11 blocks would
// be too many for an int; no GPU has so many multiprocessors.)
__device__ inline Share share_of(int rows, int block, int blocks) {
  const int first = rows * block / blocks;
  return {first, rows * (block + 1) / blocks - first};
}

// The position of a warp in the sequence of its units.
struct Place {
  int unit;        // of this block's share of the matrix
  int matrix = 0;  // 4 · layer + QKV, PROJ, FC or OUT; 4 · L for HEAD
  int step = 0;    // of m.steps tokens

  __device__ static int kind(const Model& m, int matrix) {
    return matrix == 4 * m.L ? HEAD : matrix % 4;
  }
  // Goes on to the matrix that contains the unit.
  __device__ void settle(const Model& m, const Share* shares) {
    while (step < m.steps) {
      const int k = kind(m, matrix), units = shares[k].rows * m.units_per_row(k);
      if (unit < units) return;
      unit -= units;
      if (matrix++ == 4 * m.L) matrix = 0, ++step;
    }
  }
};

// A lane copies the chunks that it multiplies itself, so that it waits for no other thread. Slots
// hold STAGES units per warp. While two are multiplied, STAGES - 2 are in flight, of whatever
// matrix, layer or token: the order is known long before any activation.
template <int PER_LANE, int STAGES>
struct Ring {
  Raw* slots;  // of this lane: slot i of stage s at (s · PER_LANE + i) · 32
  Place next;  // to fetch
  int stage = 0;

  __device__ void fetch(const Model& m, const Share* shares) {
    next.settle(m, shares);
    if (next.step < m.steps) {
      const int k = Place::kind(m, next.matrix);
      const int unit = shares[k].first_row * m.units_per_row(k) + next.unit;
      const Raw* const from = m.matrix(k, k == HEAD ? 0 : next.matrix / 4) + unit * m.chunks();
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) {
        const int c = threadIdx.x % 32 + 32 * i;
        if (c < m.chunks()) ptx::cp_async<16>(slots + (stage * PER_LANE + i) * 32, from + c);
      }
      next.unit += WARPS;
    }
    ptx::cp_async_commit();  // without a unit, an empty group: the count below stays right
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }

  __device__ void start(const Model& m, const Share* shares) {
    for (int s = 0; s < STAGES; ++s) fetch(m, shares);
  }

  // This lane's products of x and a unit that has arrived: the oldest, or with `after` = 1 the
  // next.
  __device__ float unit_product(const Model& m, int after,
                                const float (&x)[PER_LANE][PER_CHUNK]) const {
    const int at = stage + after < STAGES ? stage + after : stage + after - STAGES;
    float sums[2] = {};  // two chains of multiply-adds
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      if (static_cast<int>(threadIdx.x % 32) + 32 * i >= m.chunks()) break;
      sums[i % 2] = multiply_add(sums[i % 2], slots[(at * PER_LANE + i) * 32], x[i]);
    }
    return sums[0] + sums[1];
  }
};

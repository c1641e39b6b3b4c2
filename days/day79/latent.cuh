// Decoding over a latent cache: how the tokens are cut into ranges, and how a block stores the part
// of the output that it computes from its range.
#pragma once

#include "days/day76/split_decode.cuh"  // parts and their merge: taught in day 76
#include "days/day77/shares.cuh"        // shares of a line: taught in day 77

constexpr int RANK = 512;         // elements of a latent vector: the values
constexpr int ROPE = 64;          // elements of a key that carry its position
constexpr int KEY = RANK + ROPE;  // elements of a row of the cache
constexpr int HEADS = 64;         // of queries per block: the rows of a wgmma
constexpr int BN = 64;            // tokens per unit: ranges begin at multiples
constexpr int HALF = RANK / 2;    // values of one warp of v2, one warpgroup of v3: columns of o
constexpr int SUMS = HALF / 8;    // times 4: elements of o that a thread has, of two rows
constexpr float SLACK = 8;        // exponentials are at most 2⁸ (day 26's lazy rescaling)

template <typename T>
struct Latent {
  const T *q, *cache;       // (B, H, KEY), (B, T, KEY)
  const int* lengths;       // (B,)
  T* o;                     // (B, H, RANK)
  int64_t room;             // rows per sequence: the cache's T
  int B, H, tiles, splits;  // tiles: of HEADS heads; splits: ranges per sequence, of v1 to v3
  float scale_log2;         // scale · log2 e, so that exp2 does for exp
  Parts parts;              // rows part · H + head
  int* arrived;             // (B · tiles), only of v4: the blocks that have stored their part

  __device__ int length_of(int b) const {
    return static_cast<int>(max(int64_t{0}, min(int64_t{lengths[b]}, room)));
  }
};

__device__ inline int64_t units_of(int length) {
  return (int64_t{length} + BN - 1) / BN;
}

// Tokens [begin, end) of sequence b, as part `part` of the `count` parts from `first` on.
struct Range {
  int b = 0, begin = 0, end = 0, count = 0;
  int64_t part = 0, first = 0;
};

// Range `index` of B · splits. The units of a sequence are divided evenly among `count` ranges.
template <typename T>
__device__ Range split_range(const Latent<T>& n, int64_t index) {
  Range r;
  r.b = static_cast<int>(index / n.splits);
  const int64_t split = index % n.splits, units = units_of(n.length_of(r.b));
  r.count = static_cast<int>(min(int64_t{n.splits}, units));
  r.part = index, r.first = index - split;
  if (split >= r.count) return r;
  r.begin = static_cast<int>(units * split / r.count * BN);
  const int64_t end = units * (split + 1) / r.count * BN;
  r.end = static_cast<int>(min(end, int64_t{n.length_of(r.b)}));
  return r;
}

// Stores a thread's elements of rows head and head + 8 (h = 0, 1): columns column + 8c and the next
// one are elements 4c + 2h + [0, 2) of o. If it is the only part of a sequence, o has been divided
// by the sums already, and is the output.
template <typename T, typename F>
__device__ __forceinline__ void store_rows(const Latent<T>& n, const Range& r, int head, int column,
                                           F&& element) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = head + 8 * h;
    if (row >= n.H) continue;
    T* const whole = n.o + (int64_t{r.b} * n.H + row) * RANK + column;
    float* const part = n.parts.outputs + (r.part * n.H + row) * RANK + column;
#pragma unroll
    for (int c = 0; c < SUMS; ++c) {
      const float low = element(4 * c + 2 * h), high = element(4 * c + 2 * h + 1);
      if (r.count == 1) {
        *reinterpret_cast<uint32_t*>(whole + 8 * c) = tiles::pack<T>(low, high);
      } else {
        *reinterpret_cast<float2*>(part + 8 * c) = {low, high};
      }
    }
  }
}

// What o has to be multiplied by at the end: 1 / sum where it is the output.
__device__ __forceinline__ float last_factor(const Range& r, float sum) {
  return r.count == 1 ? 1 / sum : 1;
}

// ---------------------------------------------------------------------------------------------
// The ranges of a block. Each warp walks over them on its own.

// v3: one range, of one sequence.
template <typename T, bool EVEN>
struct Walk {
  Range only;

  __device__ explicit Walk(const Latent<T>& n) : only(split_range(n, blockIdx.x / n.tiles)) {}

  __device__ bool next(const Latent<T>&, Range& r) {
    r = only;
    only.end = 0;
    return r.begin < r.end;
  }
};

// v4: the units of all sequences stand in one line, and a share is an equal range of it.
template <typename T>
struct Walk<T, true> {
  int64_t all, shares, share;  // all: units
  int64_t unit = 0, end = 0;   // what is left of the share
  int64_t before = 0;          // units of the sequences before b
  int b = 0;

  // All lanes of a warp call it: it adds up the units of all sequences, and looks for the one that
  // contains the first unit of the share, 32 sequences at a time.
  __device__ explicit Walk(const Latent<T>& n) {
    const int lane = threadIdx.x % 32;
    int64_t units = 0;
    for (int i = lane; i < n.B; i += 32) units += units_of(n.length_of(i));
    all = warp_sum(units);
    share = blockIdx.x / n.tiles;
    shares = min(all, int64_t{gridDim.x / n.tiles});  // at least a unit per share
    if (share >= shares) return;
    unit = start_of(all, share, shares), end = start_of(all, share + 1, shares);
    for (;; b += 32) {
      units = b + lane < n.B ? units_of(n.length_of(b + lane)) : 0;
      const int64_t scanned = warp_inclusive_scan(units);
      const unsigned behind = __ballot_sync(FULL_WARP, before + scanned > unit);
      if (behind != 0) {
        const int found = __ffs(static_cast<int>(behind)) - 1;
        before += __shfl_sync(FULL_WARP, scanned - units, found);
        b += found;
        return;
      }
      before += __shfl_sync(FULL_WARP, scanned, 31);
    }
  }

  __device__ bool next(const Latent<T>& n, Range& r) {
    if (unit >= end) return false;
    int length = n.length_of(b);
    while (before + units_of(length) <= unit) {  // empty ones too
      before += units_of(length);
      length = n.length_of(++b);
    }
    const int64_t units = units_of(length), last = min(units, end - before);
    r.b = b;
    r.begin = static_cast<int>((unit - before) * BN);
    r.end = static_cast<int>(min(last * BN, int64_t{length}));
    // The parts are numbered along the line. From one part to the next, the share, the sequence or
    // both grow, so share + b is different for each.
    const int64_t first = share_of(all, before, shares);
    r.part = share + b, r.first = first + b;
    r.count = static_cast<int>(share_of(all, before + units - 1, shares) - first + 1);
    unit = before + last;
    return true;
  }
};

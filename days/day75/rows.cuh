// Attention by wgmma: how work is cut into tiles, and what a warpgroup computes of its 64 rows.
#pragma once

#include "common/cuda/matrix_map.cuh"  // taught in day 55
#include "common/cuda/mma_tiles.cuh"   // taught in day 26
#include "common/cuda/ptx.cuh"         // wgmma: taught in day 56
#include "common/cuda/store_part.cuh"  // taught in day 56

#include <cmath>

using ptx::Major, ptx::Swizzle, ptx::TensorMap;

constexpr int WARPGROUP = 128;                        // threads that issue a wgmma together
constexpr int ROWS = 64;                              // of q per wgmma
constexpr int CONSUMERS = 2, BM = CONSUMERS * ROWS;   // rows of q per block
constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);  // a warpgroup of producers comes first
constexpr int ROW = 128;                              // bytes of a row of a box: 64 elements
constexpr int STAGES = 2;                             // tiles of k, and of v, that are in flight
constexpr int KEYS = 128;                             // per tile
constexpr int KEYS_FULL = 176;       // without a mask, D = 128: fewer, longer steps
constexpr int64_t IN_L2 = 32 << 20;  // bytes of k and v used at one time
constexpr float SLACK = 8;           // p is at most 2⁸ (day 26's lazy rescaling)
constexpr float LOG2_E = 1.44269504f;

// What each rung adds to the one before it.
enum Rung { WARP_ROLES, PING_PONG, PIPELINED, PERSISTENT };

// OUT_IN_ROWS: o is (B, S, H · D), as a product takes it (day 86), and not (B, H, S, D).
template <typename Element, int COLS, int KEYS_PER_TILE, Rung RUNG_OF, bool OUT_IN_ROWS = false>
struct Plan {
  using T = Element;
  static constexpr int D = COLS, BN = KEYS_PER_TILE;
  static constexpr Rung R = RUNG_OF;
  static constexpr bool IN_ROWS = OUT_IN_ROWS;
  static constexpr int Q_BYTES = ROWS * D * 2, TILE_BYTES = BN * D * 2;
  static constexpr int TILES = CONSUMERS * Q_BYTES + 2 * STAGES * TILE_BYTES;
  // Buffers for parts of o that TMA stores, per consumer: two if there is room in a block's 227 KB.
  static constexpr int BUFFERS =
      TILES + CONSUMERS * 2 * PART_BYTES + TILE_ALIGNMENT <= 226 * 1024 ? 2 : 1;
  static constexpr size_t SHARED = TILES + CONSUMERS * BUFFERS * PART_BYTES + TILE_ALIGNMENT;
  static_assert(D % 64 == 0 && BN % 16 == 0 && BN <= 256);
};

struct Arguments {
  float* lse;
  int* tickets;            // v4: how many tiles have been taken, beside the first of each block
  int heads, group;        // B · H; how many of them are computed at one time
  int S, T, tiles, count;  // tiles: of BM rows, per head; count: of all heads
  bool causal;
  int ahead;                // T - S
  float scale_log2, slack;  // slack: how much a score may exceed the maximum before o is rescaled
  int H;                    // of one sequence, where o is in rows
};

// A tile of rows: its head, its first row, and the tiles of keys that its last row sees.
struct Work {
  int head, i0, steps;
};

// Tile `index`. Within a group of heads, whose k and v fit into L2, the longest come first.
template <int BN>
__device__ __forceinline__ Work work_at(const Arguments& n, int index) {
  const int first = index / (n.group * n.tiles) * n.group;
  const int heads = min(n.group, n.heads - first), at = index - first * n.tiles;
  const int i0 = (n.tiles - 1 - at / heads) * BM;
  const int end = n.causal ? min(n.T, i0 + BM + n.ahead) : n.T;
  return {first + at % heads, i0, end > 0 ? (end + BN - 1) / BN : 0};
}

// ---------------------------------------------------------------------------------------------
// A consumer's 64 rows. Thread 32w + 4g + t of it has rows 16w + g and 16w + g + 8 (h = 0, 1), and
// of each 8 columns the two from 2t on: element i is in row h = i / 2 % 2 and column i / 4 * 8 +
// 2t + i % 2.

template <typename P>
struct Rows {
  float o[P::D / 2], s[P::BN / 2];
  uint32_t p[P::BN / 16][4];  // the exponentials of s, rounded: a of the second product
  float max[2], sum[2];       // sum: over the thread's columns
};

// s = q · kᵀ. A descriptor counts in units of 16 bytes.
template <typename P>
__device__ __forceinline__ void multiply_keys(Rows<P>& r, const char* q, const char* k) {
  const uint64_t of_q = ptx::wgmma_descriptor(q, Swizzle::k128, 0, 8 * ROW);
  const uint64_t of_k = ptx::wgmma_descriptor(k, Swizzle::k128, 0, 8 * ROW);
#pragma unroll
  for (int d = 0; d < P::D / 16; ++d) {  // boxes of 64 columns; 16 columns are 32 bytes
    const int box = d / 4, within = d % 4 * 32;
    ptx::wgmma<typename P::T>(r.s, of_q + (box * ROWS * ROW + within) / 16,
                              of_k + (box * P::BN * ROW + within) / 16, d > 0);
  }
}

// o += p · v. v is (keys, D) with D contiguous: MN-major.
template <typename P>
__device__ __forceinline__ void multiply_values(Rows<P>& r, const char* v) {
  const uint64_t of_v = ptx::wgmma_descriptor(v, Swizzle::k128, P::BN * ROW, 8 * ROW);
#pragma unroll
  for (int j = 0; j < P::BN / 16; ++j) {
    ptx::wgmma<typename P::T, typename P::T, Major::kMN>(r.o, r.p[j], of_v + j * 16 * ROW / 16);
  }
}

// -inf for keys beyond the last one or beyond the diagonal. i0, j0: the first row and key of s.
template <typename P>
__device__ __forceinline__ void mask(Rows<P>& r, const Arguments& n, int i0, int j0) {
  const int thread = threadIdx.x % WARPGROUP, row = i0 + thread / 32 * 16 + thread % 32 / 4;
  const int keys = n.T - j0 - thread % 4 * 2, diagonal = row + n.ahead + 1 - j0 - thread % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int end = n.causal ? min(keys, diagonal + 8 * h) : keys;
#pragma unroll
    for (int c = 0; c < P::BN / 8; ++c) {
      if (8 * c >= end) r.s[4 * c + 2 * h] = -INFINITY;
      if (8 * c + 1 >= end) r.s[4 * c + 2 * h + 1] = -INFINITY;
    }
  }
}

// s becomes its exponentials, relative to the maximum. Returns true if that grew by more than
// n.slack in any row of the warp; then o has to be multiplied by rescale.
template <typename P>
__device__ __forceinline__ bool softmax_step(Rows<P>& r, const Arguments& n, float (&rescale)[2]) {
  float top[2][2] = {{r.max[0], r.max[0]}, {r.max[1], r.max[1]}};  // two chains per row
#pragma unroll
  for (int i = 0; i < P::BN / 2; ++i) {
    float& x = top[i / 2 % 2][i % 2];
    x = fmaxf(x, r.s[i]);
  }
  bool grown = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h][0] = tiles::row_max(fmaxf(top[h][0], top[h][1]));
    grown |= top[h][0] > r.max[h] + n.slack;
  }
  grown = __any_sync(0xffffffff, grown);
  float shift[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float now = grown ? top[h][0] : r.max[h];
    shift[h] = now == -INFINITY ? 0 : now * n.scale_log2;  // -inf - -inf would be NaN
    rescale[h] = ptx::exp2_approx(r.max[h] * n.scale_log2 - shift[h]);
    if (grown) r.max[h] = now, r.sum[h] *= rescale[h];
  }
#pragma unroll
  for (int i = 0; i < P::BN / 2; ++i) {
    r.s[i] = ptx::exp2_approx(r.s[i] * n.scale_log2 - shift[i / 2 % 2]);
    r.sum[i / 2 % 2] += r.s[i];
  }
  return grown;
}

// A thread's part of the accumulator for 16 keys is its part of operand a, so rounding is enough.
template <typename P>
__device__ __forceinline__ void round_scores(Rows<P>& r) {
#pragma unroll
  for (int j = 0; j < P::BN / 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r.p[j][i] = tiles::pack<typename P::T>(r.s[8 * j + 2 * i], r.s[8 * j + 2 * i + 1]);
  }
}

template <int COUNT>
__device__ __forceinline__ void multiply_rows(float (&o)[COUNT], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) o[i] *= factor[i / 2 % 2];
}

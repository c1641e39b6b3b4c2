// Which steps of which tiles a block computes, and in which order.
#pragma once

#include "days/day54/gemm.cuh"

// What the blocks compute. The first stream_tiles tiles, stream_tiles · steps steps of k, are split
// into equal ranges, one per block. Of the others, each block computes every gridDim.x-th.
struct Schedule {
  int tiles_m, tiles_n, steps, stream_tiles;
  float* partial;    // stream-K: BM · BN sums per range, of a tile that another block finishes
  unsigned* ticket;  // stream-K: a counter, and per range whether `partial` is there; or null

  __host__ __device__ int tiles() const { return tiles_m * tiles_n; }
  // The first step of a range; that of range gridDim.x is the end.
  __device__ int begin(int range) const {
    return static_cast<int>(int64_t{stream_tiles} * steps * range / gridDim.x);
  }
};

// The order of tiles. Tiles that are computed at the same time should share rows of A and columns
// of B: groups of GROUP rows of C, within a group column by column. 132 blocks then compute about
// 16 × 8 tiles of 128 × 256, 2048 × 2048 elements, at a time.

constexpr int GROUP = 2048;

struct Corner {
  int m, n;  // of a tile, in tiles
};
template <typename P>
__device__ Corner tile_at(int i, const Schedule& s) {
  constexpr int TALL = GROUP / P::BM;
  const int group = i / (TALL * s.tiles_n), first = group * TALL;
  const int rows = min(TALL, s.tiles_m - first), within = i % (TALL * s.tiles_n);
  return {first + within % rows, within / rows};
}

// A block's work, part by part: `count` steps from `first` on of a tile.
struct Work {
  int tile, first, count;
  int at, end;    // what is left of the block's range
  int next_tile;  // the next of its whole tiles

  __device__ __forceinline__ bool next(const Schedule& s) {
    if (at < end) {
      tile = at / s.steps, first = at % s.steps, count = min(s.steps - first, end - at);
      at += count;
      return true;
    }
    tile = next_tile, first = 0, count = s.steps;
    next_tile += gridDim.x;
    return tile < s.tiles();
  }
};

__device__ inline Work work_of(const Schedule& s, int range) {
  return {0, 0, 0, s.begin(range), s.begin(range + 1), s.stream_tiles + range};
}

template <typename P>
Schedule all_tiles(const Gemm<typename P::T>& p) {
  return {ceil_div(p.M, P::BM), ceil_div(p.N, P::BN), ceil_div(p.K, P::BK), 0, nullptr, nullptr};
}

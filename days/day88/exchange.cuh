// Day 88: who adds which tile of the output, and what a kernel knows of all ranks
#pragma once

#include "days/day56/further/persistent.cuh"  // taught in day 56
#include "days/day87/meeting.cuh"             // taught in day 87

constexpr int STAGES = 4, GROUP = 8;  // as day 56's v5
constexpr int HALVES = 2, PARTS = 3;  // of a tile: 64 rows each, 64 columns each
constexpr int TILE_ROWS = HALVES * ROWS, TILE_COLS = PARTS * PART, TILE = TILE_ROWS * TILE_COLS;

template <typename T>
using ShardTile = Tile<T, TILE_ROWS, TILE_COLS, Major::kK>;

// The tiles of a matrix, numbered in the order in which a product computes them (day 54).
struct Tiles {
  int64_t rows = 0, cols = 0;
  int m = 0, n = 0;  // how many below each other, and beside each other

  Tiles() = default;
  Tiles(int64_t rows, int64_t cols)
      : rows(rows),
        cols(cols),
        m(static_cast<int>(ceil_div<int64_t>(rows, TILE_ROWS))),
        n(static_cast<int>(ceil_div<int64_t>(cols, TILE_COLS))) {}

  __host__ __device__ int count() const { return m * n; }
  __device__ Corner at(int number) const { return tile_at<GROUP>(number, m, n); }

  // The inverse: groups of GROUP rows of tiles, within a group column by column.
  __device__ int number_of(const Corner& tile) const {
    const int first = tile.m / GROUP * GROUP, below = min(GROUP, m - first);
    return first * n + tile.n * below + tile.m - first;
  }
};

// Tile i belongs to rank i % ranks, as its tile i / ranks: at all times of the product, each rank
// sends to all others. buffers: the output of each rank, (rows, cols).
struct Exchange : Peers {
  // Of each rank: (ranks, share, TILE), a slot for what each rank has computed of its tiles.
  void* slots[MOST_RANKS];
  Tiles tiles;

  __host__ __device__ int share() const { return (tiles.count() + ranks - 1) / ranks; }

  // Behind the Signals of rank r: 1 where `source` has stored its part of r's tile `mine`. All are
  // 0 between two calls.
  __device__ uint32_t& landed(int r, int mine, int source) const {
    return reinterpret_cast<uint32_t*>(signals[r] + 1)[mine * ranks + source];
  }

  template <typename T>
  __host__ __device__ T* slot(int r, int source) const {
    return static_cast<T*>(slots[r]) + int64_t{source} * share() * TILE;
  }
};

// Words of a rank's signals, with the flags of its tiles.
inline int64_t signal_words(const Exchange& e) {
  return SIGNAL_WORDS + int64_t{e.share()} * e.ranks;
}

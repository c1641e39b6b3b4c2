// The order in which tiles of a product are computed (taught in day 54): neighbours in time share
// rows of A or columns of B, which L2 then has.
#pragma once

struct Corner {
  int m, n;  // of a tile, in tiles
};

// The i-th tile of tiles_m × tiles_n: groups of GROUP rows of tiles, within a group column by
// column.
template <int GROUP>
__device__ inline Corner tile_at(int i, int tiles_m, int tiles_n) {
  const int group = i / (GROUP * tiles_n), first = group * GROUP;
  const int rows = min(GROUP, tiles_m - first), within = i % (GROUP * tiles_n);
  return {first + within % rows, within / rows};
}

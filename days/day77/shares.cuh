// Divides the places of a line evenly among any number of blocks.
#pragma once

#include <cstdint>

// Where share i of `shares` begins.
__device__ inline int64_t start_of(int64_t places, int64_t i, int64_t shares) {
  return places * i / shares;
}

// The share that contains a place: the largest i with start_of(places, i, shares) <= place.
__device__ inline int64_t share_of(int64_t places, int64_t place, int64_t shares) {
  return ((place + 1) * shares - 1) / places;
}

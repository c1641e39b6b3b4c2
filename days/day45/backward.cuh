// Day 45: what the kernels of the backward pass share.
#pragma once

#include "days/day45/rows.cuh"

// What a backward pass reads and writes, as chunks of N elements.
template <typename T, int N>
struct Backward {
  const Chunk<T, N>*gy, *h, *gh, *weight;  // gh may be null
  Chunk<T, N>* gx;
  const float *mean, *rstd;  // (rows,)
  int64_t rows, chunks;
};

// The sums of g and of g · n over elements of a row.
struct RowSums {
  float g, gn;
};

// Those of 32 lanes, in every lane.
__device__ inline RowSums merge_lanes(RowSums mine) {
  return {warp_sum(mine.g), warp_sum(mine.gn)};
}

template <typename T, int N>
__device__ Statistics statistics_of(const Backward<T, N>& b, int64_t row) {
  return row < b.rows ? Statistics{b.mean[row], b.rstd[row]} : Statistics{0, 0};
}

struct Terms {
  float g, n;  // of an element
};

// ---------------------------------------------------------------------------------------------
// v2: the next rows wait in a ring of stages in shared memory.

constexpr int SMALL_BLOCK = 256;
constexpr int PACKS = 2;       // per thread and tensor: up to 16 KB of a row per block
constexpr int STAGES = 3;      // of up to 32 KB: 96 KB fit into the 99 KB of an RTX card
constexpr int64_t FEWEST = 8;  // rows per team, where there are few: each team stores 2 · cols sums

// Bytes of the stages of `tensors` tensors.
constexpr int ring_bytes(int threads, int tensors) {
  return threads * STAGES * tensors * PACKS * 16;
}

// Stores what a team has summed for the columns of one pack: gw at `to`, gb `cols` behind it.
template <int N>
__device__ void store_sums(float* to, int64_t cols, const float (&gw)[N], const float (&gb)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    *reinterpret_cast<float4*>(to + i) = {gw[i], gw[i + 1], gw[i + 2], gw[i + 3]};
    *reinterpret_cast<float4*>(to + cols + i) = {gb[i], gb[i + 1], gb[i + 2], gb[i + 3]};
  }
}

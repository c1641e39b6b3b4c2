// Which threads handle which part of a row: one warp per short row, several blocks per long row.
#pragma once

#include "common/cuda/chunk.cuh"   // taught in days 35 and 42
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <type_traits>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int64_t SEGMENT = 2048;     // chunks per team: 8 per thread of a block
constexpr int64_t WARP_CHUNKS = 512;  // a row of at most so many chunks gets a warp

// The shape of x if each row has a step; a single long row if the tensor has one step.
struct Rows {
  int64_t rows, cols;
};
Rows rows_of(const Tensor& x, const Tensor& s) {
  if (s.size(0) == 1) return {1, x.numel()};
  return {x.size(0), x.size(1)};
}

struct Segments {
  int64_t rows, chunks;  // chunks of each row
  unsigned splits;       // teams per row: 1 if a team is a warp
};

// The chunks of a team: `count` from `start` on. Thread `lane` has lane, lane + WIDTH … of them.
template <int WIDTH>
struct Team {
  int64_t row, start;
  int lane, count;  // 0 beyond the rows

  __device__ explicit Team(const Segments& n) : lane(threadIdx.x % WIDTH) {
    unsigned split = 0;
    if constexpr (WIDTH == BLOCK) {
      row = blockIdx.x / n.splits;
      split = blockIdx.x % n.splits;
    } else {
      row = int64_t{blockIdx.x} * (BLOCK / WIDTH) + threadIdx.x / WIDTH;
    }
    start = row * n.chunks + split * SEGMENT;
    count = row < n.rows ? static_cast<int>(min(n.chunks - split * SEGMENT, SEGMENT)) : 0;
  }
};

// Calls f(elements per chunk, threads per team, segments, grid), the first two as constants.
template <typename T, typename F>
void dispatch_team(const Tensor& x, const Tensor& s, std::initializer_list<const Tensor*> tensors,
                   F&& f) {
  const Rows n = rows_of(x, s);
  dispatch_chunk<T>(n.cols, tensors, [&](auto size) {
    const int64_t chunks = n.cols / size();
    if (chunks <= WARP_CHUNKS) {
      const unsigned grid = grid_size(ceil_div<int64_t>(n.rows, WARPS), "x");
      f(size, std::integral_constant<int, 32>{}, Segments{n.rows, chunks, 1}, grid);
    } else {
      const unsigned splits = grid_size(ceil_div(chunks, SEGMENT), "x");
      f(size, std::integral_constant<int, BLOCK>{}, Segments{n.rows, chunks, splits},
        grid_size(n.rows * splits, "x"));
    }
  });
}

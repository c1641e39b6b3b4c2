// Boxes of pixels, which TMA loads: BM outputs are columns × rows × images, 64 of them a box too.
#pragma once

#include "days/day56/further/tiles.cuh"  // multiply and its constants, taught in day 56
#include "days/day60/further/gather.cuh"

constexpr int MOST_SCALE = 8;  // of TMA: every how many-th element of a box it can take
constexpr int MOST_BOX = 256;  // elements that a side of a box spans

// A divisor that the host knows. On the GPU n / d is then a multiplication and a shift, for n ≥ 0
// (T. Granlund, P. Montgomery: Division by Invariant Integers using Multiplication, 1994).
struct Divisor {
  int value = 1, shift = 31;             // shift: 31 + ⌈log2(value)⌉
  uint32_t multiplier = (1u << 31) + 1;  // ⌊2^shift / value⌋ + 1

  Divisor() = default;
  constexpr Divisor(int d) : value(d) {
    while (int64_t{1} << (shift - 31) < d) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << shift) / d + 1);
  }
  __host__ __device__ constexpr operator int() const { return value; }
};
__host__ __device__ constexpr int operator/(int n, const Divisor& d) {
  return static_cast<int>(uint64_t{static_cast<uint32_t>(n)} * d.multiplier >> d.shift);
}
__host__ __device__ constexpr int operator%(int n, const Divisor& d) {
  return n - n / d * d.value;
}
constexpr bool is_exact(int d) {
  for (const int n : {0, d - 1, d, INT32_MAX / d * d - 1, INT32_MAX / d * d, INT32_MAX}) {
    if (n / Divisor(d) != n / d || n % Divisor(d) != n % d) return false;
  }
  return true;
}
static_assert(is_exact(1) && is_exact(2) && is_exact(3) && is_exact(7) && is_exact(641) &&
              is_exact((1 << 30) + 1) && is_exact(INT32_MAX));

struct Box {
  int cols, rows, images;
  Divisor across, down;  // how many boxes cover an image's columns and its rows
  int deep;              // and all images

  __host__ __device__ int count() const { return across * down * deep; }
};

// The first pixel of box `index`.
__device__ __forceinline__ Pixel corner_of(const Box& box, int index) {
  return {index / box.across / box.down * box.images, index / box.across % box.down * box.rows,
          index % box.across * box.cols};
}

// Moves `at` to the first pixel of the next box. No division, unlike corner_of.
__device__ __forceinline__ void next_box(const Box& box, Pixel& at) {
  at.col += box.cols;
  if (at.col < box.across * box.cols) return;
  at.col = 0, at.row += box.rows;
  if (at.row < box.down * box.rows) return;
  at.row = 0, at.n += box.images;
}

// The box of `pixels` pixels, a multiple of ROWS, of which the fewest cover all outputs. Each ROWS
// of its pixels are a box too.
inline Box best_box(const Axis& rows, const Axis& cols, int N, int pixels) {
  const auto span = [](int outputs, const Axis& axis) { return (outputs - 1) * axis.scale + 1; };
  const auto divides = [&](int side, int whole) {
    return whole % side == 0 && (ROWS % side == 0 || side % ROWS == 0);
  };
  Box best{};
  for (int c = pixels; c >= 1; --c) {
    if (!divides(c, pixels)) continue;
    for (int r = pixels / c; r >= 1; --r) {
      if (!divides(c * r, pixels) || span(c, cols) > MOST_BOX || span(r, rows) > MOST_BOX) continue;
      const int images = pixels / c / r;
      const Box box{
          c, r, images, ceil_div(cols.outputs, c), ceil_div(rows.outputs, r), ceil_div(N, images)};
      if (best.cols == 0 || box.count() < best.count()) best = box;
    }
  }
  return best;
}

// Of the inputs of a box of outputs, 64 channels of each: (N, rows.inputs, cols.inputs, channels).
inline TensorMap map_of_inputs(const bf16* from, const Axis& rows, const Axis& cols, int N,
                               int channels, const Box& box) {
  return ptx::make_tensor_map(from, {.sizes = {channels, cols.inputs, rows.inputs, N},
                                     .box = {DEPTH, (box.cols - 1) * cols.scale + 1,
                                             (box.rows - 1) * rows.scale + 1, box.images},
                                     .element_strides = {1, cols.scale, rows.scale, 1},
                                     .swizzle = Swizzle::k128});
}

// ---------------------------------------------------------------------------------------------
// What a launcher plans.

// A filter of one tap at stride 1 moves no pixel: all images are one row of pixels.
inline Gather flattened(Gather g) {
  const auto same = [](const Axis& a) {
    return a.taps == 1 && a.scale == 1 && a.first == 0 && a.inputs == a.outputs;
  };
  const bool dense = g.to_col == g.channels && g.to_row == g.to_col * g.cols.outputs &&
                     g.to_n == g.to_row * g.rows.outputs;
  if (!same(g.rows) || !same(g.cols) || !dense) return g;
  g.cols.inputs = g.cols.outputs = g.pixels();
  g.rows.inputs = g.rows.outputs = g.N = 1;
  return g;
}

// Clusters, of blocks of which a multiprocessor holds one, that run at the same time.
inline int64_t places_for(const Tensor& on, int cluster) {
  return std::max(1, multiprocessor_count(on) / cluster);
}

// How many tiles of m pixels × n channels each cluster computes, one after the other.
inline double rounds(const Gather& g, int m, int n, int cluster, int64_t places) {
  const int64_t clusters = ceil_div(best_box(g.rows, g.cols, g.N, m).count(), cluster);
  return static_cast<double>(ceil_div(clusters * ceil_div(g.channels, n), places));
}

// About how long tiles take whose sums are split: steps of a tile at the given rate, and the
// exchange of the sums, which takes as long as EXCHANGE steps (H200).
inline double split_time(const Gather& g, int m, int n, int split, double rate, const Tensor& on) {
  constexpr int EXCHANGE = 8;
  const double steps = ceil_div(g.steps(), split) / rate + EXCHANGE;
  return rounds(g, m, n, 1, places_for(on, split)) * steps * m * n;
}

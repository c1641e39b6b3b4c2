// Which input an output reads, forward and backward: what all products of further/ have in common.
#pragma once

#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day60/conv.cuh"

#include <algorithm>
#include <numeric>

constexpr int DEPTH = 64;  // channels per step of a sum: rows of 128 bytes in shared memory

// A pixel of a batch of images by its number.
struct Pixel {
  int n, row, col;
};
__device__ __forceinline__ Pixel pixel_at(int index, int rows, int cols) {
  return {index / cols / rows, index / cols % rows, index % cols};
}

// One side of the images. Output position o reads input o · scale + first + i · step for i in
// [0, taps), which is tap tap0 + i · tap_step of the filter. It is zero outside of [0, inputs).
struct Axis {
  int outputs, inputs, scale, first, step, taps, tap0, tap_step;
};

// What the forward pass and the data gradient have in common: a product of (N · rows · cols pixels)
// × (taps · depth) and (taps · depth) × (channels).
struct Gather {
  Axis rows, cols;
  int N, depth, channels;        // depth: channels of `from`; channels: of `to`
  int S, filter_channels;        // of the filter, (K, R, S, C): S and C
  int64_t filter_row;            // elements from one of its K to the next
  const bf16 *from, *filter;     // (N, rows.inputs, cols.inputs, depth)
  bf16* to;                      // its first pixel, (N, rows.outputs, cols.outputs, channels)
  int64_t to_n, to_row, to_col;  // elements from one image, row, column of `to` to the next

  __host__ __device__ int pixels() const { return N * rows.outputs * cols.outputs; }
  __host__ __device__ int steps() const {
    return rows.taps * cols.taps * ((depth + DEPTH - 1) / DEPTH);
  }
};

inline int64_t filter_row(const Conv& v) {
  return int64_t{v.R} * v.S * v.C;
}

// y = conv(x, w).
inline Gather forward_gather(const Conv& v, const bf16* x, const bf16* w, bf16* y) {
  const Axis rows{v.P, v.H, v.stride, -v.padding, v.dilation, v.R, 0, 1};
  const Axis cols{v.Q, v.W, v.stride, -v.padding, v.dilation, v.S, 0, 1};
  const int64_t row = int64_t{v.Q} * v.K;
  return {rows, cols, v.N, v.C, v.K, v.S, v.C, filter_row(v), x, w, y, row * v.P, row, v.K};
}

// The rows (or columns) phase, phase + stride, … of dx. Row h has a product with row p of dy for
// each tap r where p · stride - padding + r · dilation = h. Within a phase these are the same taps
// for all rows, and neighbouring rows of dx read neighbouring rows of dy.
inline Axis gradient_axis(const Conv& v, int size, int outputs, int taps, int phase) {
  const int tap_step = v.stride / std::gcd(v.stride, v.dilation);
  int tap0 = 0;
  while (tap0 < taps && (phase + v.padding - tap0 * v.dilation) % v.stride != 0) ++tap0;
  const int first = tap0 < taps ? (phase + v.padding - tap0 * v.dilation) / v.stride : 0;
  return {ceil_div(size - phase, v.stride),
          outputs,
          1,
          first,
          -tap_step * v.dilation / v.stride,
          ceil_div(std::max(taps - tap0, 0), tap_step),
          tap0,
          tap_step};
}

// One phase of dx = the gradient with respect to x of the sum of y · dy.
inline Gather gradient_gather(const Conv& v, const bf16* dy, const bf16* w, bf16* dx, int row,
                              int col) {
  const int64_t width = int64_t{v.W} * v.C;
  return {gradient_axis(v, v.H, v.P, v.R, row),
          gradient_axis(v, v.W, v.Q, v.S, col),
          v.N,
          v.K,
          v.C,
          v.S,
          v.C,
          filter_row(v),
          dy,
          w,
          dx + row * width + int64_t{col} * v.C,
          width * v.H,
          width * v.stride,
          int64_t{v.C} * v.stride};
}

// Into how many parts a sum of so many steps is cut, so that tiles × parts blocks take the least
// time. A step takes a microsecond or less; a part, of `sums` numbers in fp32, is written and read.
inline int parts_for(int64_t tiles, int64_t steps, int64_t sums, int64_t places) {
  constexpr double STEP_SECONDS = 1e-6, BYTES_PER_SECOND = 2e12;
  constexpr int64_t FEWEST_STEPS = 8, MOST_PARTS = 128;
  int64_t best = 1;
  double least = 0;
  for (int64_t parts = 1; parts <= std::clamp<int64_t>(steps / FEWEST_STEPS, 1, MOST_PARTS);
       ++parts) {
    const int64_t in_turn = ceil_div(tiles * parts, places) * ceil_div(steps, parts);
    const double time = static_cast<double>(in_turn) * STEP_SECONDS +
                        static_cast<double>(parts * sums) * 8 / BYTES_PER_SECOND;
    if (parts > 1 && time >= least) continue;
    best = parts;
    least = time;
  }
  return static_cast<int>(best);
}

// ---------------------------------------------------------------------------------------------
// Checks of the gradients.

// dy has the sizes of y.
inline void check_gradient(const Tensor& dy, const Conv& v) {
  STD_TORCH_CHECK((sizes_of(dy) == std::array<int64_t, 4>{v.N, v.P, v.Q, v.K}), "dy: expected (",
                  v.N, ", ", v.P, ", ", v.Q, ", ", v.K,
                  ") by the other tensor, height, width, stride, padding and dilation, got ",
                  shape_of(dy));
}

// Of dx, whose height and width no other argument says.
inline Conv check_data_gradient(const Tensor& dy, const Tensor& w, int64_t height, int64_t width,
                                int64_t stride, int64_t padding, int64_t dilation) {
  check_images(dy, "dy");
  check_images(w, "w");
  check(w, "w").same_device(dy, "dy");
  const Conv v = conv_of({dy.size(0), height, width, w.size(3)}, sizes_of(w), stride, padding,
                         dilation, "height, width", "w");
  check_gradient(dy, v);
  STD_TORCH_CHECK(int64_t{v.N} * v.H < MOST_ELEMENTS / v.C / v.W,
                  "height, width: expected fewer than 2^31 elements of the result");
  return v;
}

// Of dw, whose height and width no other argument says.
inline Conv check_weight_gradient(const Tensor& dy, const Tensor& x, int64_t height, int64_t width,
                                  int64_t stride, int64_t padding, int64_t dilation) {
  check_images(dy, "dy");
  check_images(x, "x");
  check(x, "x").same_device(dy, "dy");
  const Conv v = conv_of(sizes_of(x), {dy.size(3), height, width, x.size(3)}, stride, padding,
                         dilation, "x", "height, width");
  check_gradient(dy, v);
  STD_TORCH_CHECK(int64_t{v.R} * v.S < MOST_ELEMENTS / v.C / v.K,
                  "height, width: expected fewer than 2^31 elements of the result");
  return v;
}

#define DATA_GRADIENT                                                              \
  "(Tensor dy, Tensor w, int height, int width, int stride=1, int padding=0, int " \
  "dilation=1) -> Tensor"
#define WEIGHT_GRADIENT                                                            \
  "(Tensor dy, Tensor x, int height, int width, int stride=1, int padding=0, int " \
  "dilation=1) -> Tensor"

// The main line's last rung, which others fall back to.
Tensor conv2d_v3_additions(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                           int64_t dilation);

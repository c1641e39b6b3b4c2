// What all rungs of day 31 share: the sizes of a convolution, and the checks of the arguments.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

// x: (N, C, H, W), w: (O, C / groups, KH, KW), y: (N, O, OH, OW).
struct Conv {
  int64_t N;
  int C, H, W, O, KH, KW, OH, OW, stride, padding, dilation, groups;

  __host__ __device__ int channels() const { return C / groups; }  // that an output reads
  __host__ __device__ int outputs() const { return O / groups; }   // channels of a group
};

constexpr int64_t MOST = 1 << 20;    // of a size: no product of two that the kernels form overflows
constexpr int64_t MOST_TAPS = 1024;  // of a filter's side, its stride and its dilation

// `value` as an int, if it is between low and high.
inline int bounded(int64_t value, int64_t low, int64_t high, const char* name) {
  STD_TORCH_CHECK(value >= low && value <= high, name, ": expected ", low, " to ", high, ", got ",
                  value);
  return static_cast<int>(value);
}

// Outputs along a dimension of x with `size` elements, for `taps` taps of the filter.
inline int outputs_along(int size, int taps, const Conv& conv) {
  const int padded = size + 2 * conv.padding, reach = (taps - 1) * conv.dilation + 1;
  STD_TORCH_CHECK(padded >= reach, "x: expected ", reach,
                  " elements or more along each side of the padded image, for the dilated filter ",
                  "w, got ", padded);
  return (padded - reach) / conv.stride + 1;
}

inline Conv check_conv(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation, int64_t groups) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(4).contiguous();
  check(w, "w").on_gpu().dtype({ScalarType::Float}).rank(4).contiguous().same_device(x, "x");
  Conv conv{};
  conv.N = x.size(0);
  conv.C = bounded(x.size(1), 1, MOST, "x, its channels");
  conv.H = bounded(x.size(2), 0, MOST, "x, its height");
  conv.W = bounded(x.size(3), 0, MOST, "x, its width");
  conv.O = bounded(w.size(0), 1, MOST, "w, its output channels");
  conv.KH = bounded(w.size(2), 1, MOST_TAPS, "w, its height");
  conv.KW = bounded(w.size(3), 1, MOST_TAPS, "w, its width");
  conv.stride = bounded(stride, 1, MOST_TAPS, "stride");
  conv.padding = bounded(padding, 0, MOST, "padding");
  conv.dilation = bounded(dilation, 1, MOST_TAPS, "dilation");
  conv.groups = bounded(groups, 1, MOST, "groups");
  STD_TORCH_CHECK(conv.C % groups == 0 && conv.O % groups == 0, "groups: expected a divisor of ",
                  conv.C, " input channels and ", conv.O, " output channels, got ", groups);
  STD_TORCH_CHECK(w.size(1) == conv.channels(), "w: expected ", conv.channels(),
                  " channels, those of x divided by groups, got ", w.size(1));
  conv.OH = outputs_along(conv.H, conv.KH, conv);
  conv.OW = outputs_along(conv.W, conv.KW, conv);
  return conv;
}

inline Tensor new_output(const Tensor& x, const Conv& conv) {
  return allocate(x, {conv.N, conv.O, conv.OH, conv.OW});
}

// Convolutions of NHWC images: sizes, and the checks of all launchers.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <array>

using bf16 = __nv_bfloat16;
constexpr int CHUNK = 8;  // channels of 16 bytes, the unit of all copies

// x: (N, H, W, C), w: (K, R, S, C), y: (N, P, Q, K).
struct Conv {
  int N, H, W, C, K, R, S, stride, padding, dilation, P, Q;
  // The rows and the columns of the im2col matrix.
  __host__ __device__ int pixels() const { return N * P * Q; }
  __host__ __device__ int columns() const { return R * S * C; }
};

constexpr int64_t MOST_ELEMENTS = int64_t{1} << 31;  // of a tensor
constexpr int64_t MOST_SIDE = 1 << 30;               // of images
constexpr int64_t MOST_TAPS = 1024;                  // along a side; also padding, stride, dilation

inline int bounded(int64_t value, int64_t low, int64_t high, const char* name) {
  STD_TORCH_CHECK(value >= low && value <= high, name, ": expected ", low, " to ", high, ", got ",
                  value);
  return static_cast<int>(value);
}

inline void check_images(const Tensor& t, const char* name) {
  check(t, name).on_gpu().dtype({ScalarType::BFloat16}).rank(4).contiguous();
  STD_TORCH_CHECK(t.size(3) > 0 && t.size(3) % CHUNK == 0, name,
                  ": expected a multiple of 8 channels, 16 bytes, got ", t.size(3),
                  "; add channels of zeros");
  STD_TORCH_CHECK(t.numel() < MOST_ELEMENTS, name, ": expected fewer than 2^31 elements, got ",
                  t.numel());
  STD_TORCH_CHECK(is_aligned(t, 16), name, ": expected an address that is a multiple of 16");
}

inline std::array<int64_t, 4> sizes_of(const Tensor& t) {
  return {t.size(0), t.size(1), t.size(2), t.size(3)};
}

inline int outputs_along(int size, int taps, const Conv& v, const char* images,
                         const char* filter) {
  const int padded = size + 2 * v.padding, reach = (taps - 1) * v.dilation + 1;
  STD_TORCH_CHECK(padded >= reach, images, ", ", filter, ", padding, dilation: expected at least ",
                  reach, " elements along a side of the padded images, got ", padded);
  return (padded - reach) / v.stride + 1;
}

// Sizes from those of x and w. images, filter: the arguments that they are from.
inline Conv conv_of(const std::array<int64_t, 4>& x, const std::array<int64_t, 4>& w,
                    int64_t stride, int64_t padding, int64_t dilation, const char* images,
                    const char* filter) {
  Conv v{bounded(x[0], 0, MOST_SIDE, images),       bounded(x[1], 1, MOST_SIDE, images),
         bounded(x[2], 1, MOST_SIDE, images),       bounded(x[3], CHUNK, MOST_SIDE, images),
         bounded(w[0], CHUNK, MOST_SIDE, filter),   bounded(w[1], 1, MOST_TAPS, filter),
         bounded(w[2], 1, MOST_TAPS, filter),       bounded(stride, 1, MOST_TAPS, "stride"),
         bounded(padding, 0, MOST_TAPS, "padding"), bounded(dilation, 1, MOST_TAPS, "dilation")};
  STD_TORCH_CHECK(w[3] == x[3], "w: expected ", x[3], " input channels as x, got ", w[3]);
  STD_TORCH_CHECK(v.K % CHUNK == 0, filter, ": expected a multiple of 8 output channels, got ", v.K,
                  "; add channels of zeros");
  v.P = outputs_along(v.H, v.R, v, images, filter);
  v.Q = outputs_along(v.W, v.S, v, images, filter);
  STD_TORCH_CHECK(int64_t{v.N} * v.P < MOST_ELEMENTS / v.K / v.Q, images,
                  ", padding: expected fewer than 2^31 elements of the result");
  return v;
}

inline Conv check_forward(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                          int64_t dilation) {
  check_images(x, "x");
  check_images(w, "w");
  check(w, "w").same_device(x, "x");
  return conv_of(sizes_of(x), sizes_of(w), stride, padding, dilation, "x", "w");
}

#define FORWARD "(Tensor x, Tensor w, int stride=1, int padding=0, int dilation=1) -> Tensor"

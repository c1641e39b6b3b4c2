// What the kernels of day 48 share: the two passes over a channel, sizes and layouts, checks.
#pragma once

#include "common/cuda/chunk.cuh"   // taught in day 35
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <cmath>
#include <optional>
#include <tuple>
#include <type_traits>

constexpr int BLOCK = 512;
constexpr int WARPS = BLOCK / 32;

template <int VALUE>
using Number = std::integral_constant<int, VALUE>;

// Statistics of some elements of a channel: their count, and two numbers that a pass defines.
struct Part {
  float count, a, b;
};

// The same for COLUMNS channels of which a thread has equally many elements each. base: what a pass
// subtracts from the elements until all are added.
template <int COLUMNS>
struct Parts {
  float count = 0, a[COLUMNS] = {}, b[COLUMNS] = {}, base[COLUMNS] = {};

  __device__ Part at(int c) const { return {count, a[c], b[c]}; }
};

struct Arguments {
  const void* in[2];  // x, and gy in the backward pass
  void* out;          // y, or gx
  const float *weight, *bias;
  float *mean, *rstd;  // (C,) each; the forward pass writes them, the backward pass reads them
  float *running_mean, *running_var;  // read in inference; null if they are not tracked
  float *gw, *gb;
  Part* partial;  // of each slice of each channel
  float momentum, eps;
  bool training;
};

// Once per channel, so the accurate functions cost nothing.
__device__ inline float inverse_deviation(float variance, float eps) {
  return 1.0f / sqrtf(variance + eps);
}

// ---------------------------------------------------------------------------------------------
// A pass reads IN tensors for its statistics, adds and finishes a thread's parts, merges parts,
// makes four coefficients per channel, and computes each output element from them.

// y = (x - mean) · rstd · weight + bias. A part is the count, the mean, and the sum of squared
// distances from the mean (day 9), all of x - origin.
struct Forward {
  static constexpr int IN = 1;

  // The first element of the channel, which lies at `first`: near to the mean where the mean is
  // far from 0. Differences from it keep digits that the sums of large numbers would lose.
  template <typename T>
  __device__ static float origin(const Arguments& p, int64_t, int64_t first) {
    const float x = static_cast<float>(static_cast<const T*>(p.in[0])[first]);
    return isfinite(x) ? x : 0;
  }

  // Chan, Golub and LeVeque, 1983.
  __device__ static Part merge(Part x, Part y) {
    if (y.count == 0) return x;  // if x has no elements either, share would be 0 / 0
    const float count = x.count + y.count, distance = y.a - x.a;
    const float share = __fdividef(y.count, count);  // to 2 ulps, for counts below 2^126
    // An infinite mean stays infinite; by the formula, inf - inf would be NaN.
    const float mean = isfinite(distance) ? x.a + distance * share : x.a + y.a;
    return {count, mean, x.b + y.b + distance * distance * (x.count * share)};
  }

  // Adds `valid` chunks: sums of the distances from the base, and of their squares. The base is the
  // thread's first element, so these squares are at most n + 1 times those about the mean of the
  // thread's n elements. Welford's update (day 9) would divide once per element.
  template <int COLUMNS, typename T, int N, int U>
  __device__ static void add(Parts<COLUMNS>& parts, const RawChunk<Chunk<T, N>> (&in)[IN][U],
                             int valid, const float (&)[COLUMNS]) {
    if (valid == U) {  // without a comparison per chunk
      add_some(parts, in, Number<U>{});
    } else {
      add_some(parts, in, valid);
    }
  }

  template <int COLUMNS, typename T, int N, int U, typename Count>
  __device__ static void add_some(Parts<COLUMNS>& parts, const RawChunk<Chunk<T, N>> (&in)[IN][U],
                                  Count valid) {
    constexpr int EACH = N / COLUMNS;  // elements of a chunk per channel
    const bool first = parts.count == 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const auto element = [&](int u, int i) {
        return static_cast<float>(in[0][u].chunk().at[c * EACH + i]);
      };
      if (first) parts.base[c] = isfinite(element(0, 0)) ? element(0, 0) : 0;
#pragma unroll
      for (int u = 0; u < U; ++u) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          if (u >= valid) break;
          const float distance = element(u, i) - parts.base[c];
          parts.a[c] += distance, parts.b[c] += distance * distance;
        }
      }
    }
    parts.count += valid * EACH;
  }

  // The sums become the mean of x - origin, and the squared distances from the mean.
  template <int COLUMNS>
  __device__ static void finish(Parts<COLUMNS>& parts, const float (&origin)[COLUMNS]) {
    if (parts.count == 0) return;
    const float inverse = 1.0f / parts.count;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const float distance = parts.a[c] * inverse, more = parts.b[c] - parts.a[c] * distance;
      parts.a[c] = parts.base[c] - origin[c] + distance;
      parts.b[c] = more < 0 ? 0 : more;
    }
  }

  // writer: whether this thread stores what the channel's statistics change.
  __device__ static float4 coefficients(Part all, float origin, int64_t c, const Arguments& p,
                                        bool writer) {
    const float rstd = inverse_deviation(all.b / all.count, p.eps);
    if (writer) {
      const float mean = origin + all.a;
      p.mean[c] = mean;
      p.rstd[c] = rstd;
      if (p.running_mean != nullptr) {
        // PyTorch normalises by the biased variance and tracks the unbiased one.
        const float unbiased = all.b / (all.count - 1), old = 1 - p.momentum;
        p.running_mean[c] = p.momentum * mean + old * p.running_mean[c];
        p.running_var[c] = p.momentum * unbiased + old * p.running_var[c];
      }
    }
    // One subtraction per element needs origin + all.a as one number. What its rounding loses
    // goes into the bias: Knuth's TwoSum, whose operations the compiler must not reorder.
    const float mean = __fadd_rn(origin, all.a), back = __fadd_rn(mean, -origin);
    const float lost =
        __fadd_rn(__fadd_rn(origin, __fadd_rn(back, -mean)), __fadd_rn(all.a, -back));
    const float scale = rstd * p.weight[c];
    return {mean, scale, p.bias[c] - lost * scale, 0};
  }

  // x · scale + (bias - mean · scale) would be one operation, and cancel where the mean is large.
  __device__ static float result(float4 k, float x, float) { return (x - k.x) * k.y + k.z; }
};

// The same with the running statistics: nothing has to be known of x.
struct Inference : Forward {
  template <typename T>
  __device__ static float origin(const Arguments&, int64_t, int64_t) {
    return 0;
  }
  __device__ static float4 coefficients(Part, float, int64_t c, const Arguments& p, bool) {
    const float rstd = inverse_deviation(p.running_var[c], p.eps);
    return {p.running_mean[c], rstd * p.weight[c], p.bias[c], 0};
  }
};

// gx = weight · rstd · (gy - mean(gy) - (x - mean) · rstd² · mean(gy · (x - mean))). A part is the
// count, the sum of gy, and the sum of gy · (x - mean).
struct Backward {
  static constexpr int IN = 2;

  template <typename T>
  __device__ static float origin(const Arguments& p, int64_t c, int64_t) {
    return p.mean[c];
  }

  __device__ static Part merge(Part x, Part y) { return {x.count + y.count, x.a + y.a, x.b + y.b}; }

  template <int COLUMNS, typename T, int N, int U>
  __device__ static void add(Parts<COLUMNS>& parts, const RawChunk<Chunk<T, N>> (&in)[IN][U],
                             int valid, const float (&origin)[COLUMNS]) {
    constexpr int EACH = N / COLUMNS;
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (u >= valid) continue;
        const float gy = static_cast<float>(in[1][u].chunk().at[i]);
        parts.a[i / EACH] += gy;
        parts.b[i / EACH] += gy * (static_cast<float>(in[0][u].chunk().at[i]) - origin[i / EACH]);
      }
    }
    parts.count += valid * EACH;
  }

  // The sums are parts as they are.
  template <int COLUMNS>
  __device__ static void finish(Parts<COLUMNS>&, const float (&)[COLUMNS]) {}

  __device__ static float4 coefficients(Part all, float mean, int64_t c, const Arguments& p,
                                        bool writer) {
    const float rstd = p.rstd[c];
    if (writer) {
      p.gw[c] = all.b * rstd;
      p.gb[c] = all.a;
    }
    // In inference the statistics do not depend on x, and only the first term is left.
    const float count = p.training ? all.count : INFINITY;
    return {mean, rstd * p.weight[c], all.a / count, rstd * rstd * (all.b / count)};
  }

  __device__ static float result(float4 k, float x, float gy) {
    return k.y * (gy - k.z - (x - k.x) * k.w);
  }
};

// ---------------------------------------------------------------------------------------------
// Sizes. Both layouts are (outer, channels, inner) with contiguous inner: for NCHW, outer is N and
// inner H · W; for channels_last, outer is N · H · W and inner 1.

struct Sizes {
  int64_t outer, channels, inner;

  __host__ __device__ int64_t count() const { return outer * inner; }  // elements per channel
  // Where element i of channel c is.
  __device__ int64_t at(int64_t c, int64_t i) const {
    return (i / inner * channels + c) * inner + i % inner;
  }
};

inline bool is_channels_last(const Tensor& x) {
  int64_t expected = x.size(1);
  const auto fits = [&](int64_t d, int64_t stride) {
    return x.size(d) == 1 || x.stride(d) == stride;
  };
  for (int64_t d = x.dim() - 1; d > 1; --d) {
    if (!fits(d, expected)) return false;
    expected *= x.size(d);
  }
  return fits(1, 1) && fits(0, expected);
}

// Checks x or gy, and says which layout it has.
inline Sizes sizes_of(const Tensor& x, const char* name = "x") {
  check(x, name).on_gpu().floating();
  STD_TORCH_CHECK(x.dim() >= 2, name, ": expected (N, C, ...), got ", shape_of(x));
  const int64_t channels = x.size(1);
  if (x.numel() == 0) return {0, channels, 1};
  const int64_t outer = x.size(0), inner = x.numel() / (outer * channels);
  if (x.is_contiguous()) return {outer, channels, inner};
  STD_TORCH_CHECK(is_channels_last(x), name,
                  ": expected a tensor that is contiguous or channels_last, got other strides");
  return {outer * inner, channels, 1};
}

inline void check_per_channel(const Tensor& t, const char* name, const Tensor& x) {
  check(t, name).on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(t, name).same_device(x, "x").size(0, x.size(1));
}

inline void check_eps(double eps) {
  STD_TORCH_CHECK(eps >= 0, "eps: expected 0 or more, got ", eps);  // also refuses NaN
}

using Outputs = std::tuple<Tensor, Tensor, Tensor>;  // y, mean, rstd; or gx, gw, gb
using Optional = std::optional<Tensor>;

// A number per channel: written by a kernel, or 0 where there are no elements and no launch.
inline Tensor per_channel(const Tensor& x, const Sizes& s) {
  return s.count() > 0 ? allocate(x, {s.channels}, ScalarType::Float)
                       : allocate_zeros(x, {s.channels}, ScalarType::Float);
}

// Checks what all forward rungs take, and makes their outputs. Empty ones are complete.
inline Sizes prepare_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const Optional& running_mean, const Optional& running_var,
                             double momentum, double eps, Outputs& out, Arguments& p) {
  const Sizes s = sizes_of(x);
  check_per_channel(weight, "weight", x);
  check_per_channel(bias, "bias", x);
  STD_TORCH_CHECK(running_mean.has_value() == running_var.has_value(),
                  "running_mean, running_var: expected both or none");
  if (running_mean) {
    check_per_channel(*running_mean, "running_mean", x);
    check_per_channel(*running_var, "running_var", x);
  }
  STD_TORCH_CHECK(momentum >= 0 && momentum <= 1, "momentum: expected 0 to 1, got ", momentum);
  check_eps(eps);
  STD_TORCH_CHECK(s.count() != 1, "x: Expected more than 1 value per channel when training, got ",
                  "input size ", shape_of(x));
  out = {allocate_like(x), per_channel(x, s), per_channel(x, s)};
  auto& [y, mean, rstd] = out;
  p.in[0] = x.const_data_ptr();
  p.out = y.mutable_data_ptr();
  p.weight = data<float>(weight);
  p.bias = data<float>(bias);
  p.mean = mutable_data<float>(mean);
  p.rstd = mutable_data<float>(rstd);
  if (running_mean) {
    p.running_mean = mutable_data<float>(*running_mean);
    p.running_var = mutable_data<float>(*running_var);
  }
  p.momentum = static_cast<float>(momentum);
  p.eps = static_cast<float>(eps);
  return s;
}

inline Sizes prepare_backward(const Tensor& gy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight, bool training, Outputs& out,
                              Arguments& p) {
  const Sizes s = sizes_of(x);
  check(gy, "gy").like(x, "x");
  STD_TORCH_CHECK(sizes_of(gy, "gy").inner == s.inner,
                  "gy: expected the layout of x, contiguous or channels_last, got the other");
  check_per_channel(mean, "mean", x);
  check_per_channel(rstd, "rstd", x);
  check_per_channel(weight, "weight", x);
  out = {allocate_like(x), per_channel(x, s), per_channel(x, s)};
  auto& [gx, gw, gb] = out;
  p.in[0] = x.const_data_ptr();
  p.in[1] = gy.const_data_ptr();
  p.out = gx.mutable_data_ptr();
  p.weight = data<float>(weight);
  p.mean = const_cast<float*>(data<float>(mean));  // Backward only reads them
  p.rstd = const_cast<float*>(data<float>(rstd));
  p.gw = mutable_data<float>(gw);
  p.gb = mutable_data<float>(gb);
  p.training = training;
  return s;
}

// The arguments and results of all rungs that train.
#define FORWARD                                                                                \
  "(Tensor x, Tensor weight, Tensor bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, " \
  "float momentum, float eps) -> (Tensor, Tensor, Tensor)"
#define BACKWARD                                                                   \
  "(Tensor gy, Tensor x, Tensor mean, Tensor rstd, Tensor weight, bool training) " \
  "-> (Tensor, Tensor, Tensor)"

// What the kernels of day 48 share: the two passes over a channel, sizes and layouts, checks.
#pragma once

#include "common/cuda/chunk.cuh"   // taught in day 35
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <cmath>
#include <optional>
#include <tuple>

constexpr int BLOCK = 512;
constexpr int WARPS = BLOCK / 32;

// Statistics of some elements of a channel: their count, and two numbers that a pass defines.
struct Part {
  float count, a, b;
};

// The same for COLUMNS channels of which a thread has equally many elements each.
template <int COLUMNS>
struct Parts {
  float count = 0, a[COLUMNS] = {}, b[COLUMNS] = {};

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
// A pass reads IN tensors for its statistics, merges parts, makes four coefficients per channel,
// and computes each output element from them.

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
    const float count = x.count + y.count, share = y.count / count, distance = y.a - x.a;
    // An infinite mean stays infinite; by the formula, inf - inf would be NaN.
    const float mean = isfinite(distance) ? x.a + distance * share : x.a + y.a;
    return {count, mean, x.b + y.b + distance * distance * (x.count * share)};
  }

  // Adds `valid` chunks at once: their own mean first, then the distances from it, then one merge.
  // Welford's update (day 9) would divide once per element.
  template <int COLUMNS, typename T, int N, int U>
  __device__ static void add(Parts<COLUMNS>& parts, const Chunk<T, N> (&in)[IN][U], int valid,
                             const float (&origin)[COLUMNS]) {
    constexpr int EACH = N / COLUMNS;  // elements of a chunk per channel
    const float count = valid * EACH, inverse = 1.0f / count;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const auto sum = [&](auto f) {
        float total = 0;
#pragma unroll
        for (int u = 0; u < U; ++u) {
#pragma unroll
          for (int i = 0; i < EACH; ++i) {
            if (u < valid) total += f(static_cast<float>(in[0][u].at[c * EACH + i]) - origin[c]);
          }
        }
        return total;
      };
      const float mean = sum([](float v) { return v; }) * inverse;
      const float m2 = sum([&](float v) { return (v - mean) * (v - mean); });
      const Part both = merge(parts.at(c), {count, mean, m2});
      parts.a[c] = both.a;
      parts.b[c] = both.b;
    }
    parts.count += count;
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
    return {all.a, rstd * p.weight[c], p.bias[c], origin};
  }

  // x · scale + (bias - mean · scale) would be one operation, and cancel where the mean is large.
  __device__ static float result(float4 k, float x, float) { return (x - k.w - k.x) * k.y + k.z; }
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
  __device__ static void add(Parts<COLUMNS>& parts, const Chunk<T, N> (&in)[IN][U], int valid,
                             const float (&origin)[COLUMNS]) {
    constexpr int EACH = N / COLUMNS;
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (u >= valid) continue;
        const float gy = static_cast<float>(in[1][u].at[i]);
        parts.a[i / EACH] += gy;
        parts.b[i / EACH] += gy * (static_cast<float>(in[0][u].at[i]) - origin[i / EACH]);
      }
    }
    parts.count += valid * EACH;
  }

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

// Checks x, and says which layout it has.
inline Sizes sizes_of(const Tensor& x) {
  check(x, "x").on_gpu().floating();
  STD_TORCH_CHECK(x.dim() >= 2, "x: expected (N, C, ...), got ", shape_of(x));
  const int64_t channels = x.size(1);
  if (x.numel() == 0) {
    check(x, "x").contiguous();
    return {0, channels, 1};
  }
  const int64_t outer = x.size(0), inner = x.numel() / (outer * channels);
  if (x.is_contiguous()) return {outer, channels, inner};
  STD_TORCH_CHECK(is_channels_last(x),
                  "x: expected a tensor that is contiguous or channels_last, got other strides");
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
  using namespace torch::stable;
  return s.count() > 0 ? new_empty(x, {s.channels}, ScalarType::Float)
                       : new_zeros(x, {s.channels}, ScalarType::Float);
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
  const DeviceGuard guard(x);
  out = {torch::stable::empty_like(x), per_channel(x, s), per_channel(x, s)};
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
  check(gy, "gy").on_gpu().like(x, "x");
  for (int64_t d = 0; d < x.dim() && x.numel() > 0; ++d) {
    STD_TORCH_CHECK(gy.size(d) == 1 || gy.stride(d) == x.stride(d),
                    "gy: expected the strides of x, got others in dimension ", d);
  }
  check_per_channel(mean, "mean", x);
  check_per_channel(rstd, "rstd", x);
  check_per_channel(weight, "weight", x);
  const DeviceGuard guard(x);
  out = {torch::stable::empty_like(x), per_channel(x, s), per_channel(x, s)};
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

// ---------------------------------------------------------------------------------------------
// A thread's chunks of a slice, one after the other.

// A channel of NCHW is cut into slices of `length` chunks, without regard to its planes.
struct Planes {
  int64_t chunks, plane, step, length;  // chunks of a channel; of a plane; from plane to plane
  int64_t jump;                         // BLOCK chunks further, where the plane does not end
  int slices, rest;                     // rest: BLOCK % plane

  Planes(const Sizes& s, int N, int64_t most)
      : chunks(s.count() / N), plane(s.inner / N), step(s.channels * plane) {
    length = ceil_div(chunks, most);
    slices = static_cast<int>(ceil_div(chunks, length));
    jump = BLOCK / plane * step + BLOCK % plane;
    rest = static_cast<int>(BLOCK % plane);
  }
};

struct PlaneWalk {
  int64_t at, offset;
  int count = 0;
  const Planes& g;

  __device__ PlaneWalk(const Planes& g, int64_t channel, int slice) : g(g) {
    const int64_t first = slice * g.length + threadIdx.x;
    const int64_t end = min((slice + 1) * g.length, g.chunks);
    if (first < end) count = static_cast<int>((end - first + BLOCK - 1) / BLOCK);
    offset = first % g.plane;
    at = first / g.plane * g.step + channel * g.plane + offset;
  }
  // Where the next chunk is. No division: a step of BLOCK chunks passes at most one end of a plane
  // more than BLOCK / plane.
  __device__ int64_t next() {
    const int64_t here = at;
    at += g.jump;
    offset += g.rest;
    if (offset >= g.plane) {
      offset -= g.plane;
      at += g.step - g.plane;
    }
    return here;
  }
  __device__ int slot(int k) const { return k; }
};

// Rows of channels_last: a block takes `width` columns of chunks, with BLOCK / width rows at once,
// of a slice of `length` rows.
struct Rows {
  static constexpr int MAX_WIDTH = 16;  // 256 bytes; a power of two, so that shuffles find columns
  int64_t rows, columns, length, channels;
  int width, strips, slices;

  // limit: of blocks.
  Rows(const Sizes& s, int N, int64_t limit)
      : rows(s.outer), columns(s.channels / N), channels(s.channels), width(1) {
    while (width < MAX_WIDTH && width < columns) width *= 2;
    strips = static_cast<int>(ceil_div<int64_t>(columns, width));
    const int64_t per_block = 4 * BLOCK / width;  // at least: each slice stores a part per channel
    const int64_t most = std::min(limit / strips, ceil_div(rows, per_block));
    length = ceil_div<int64_t>(rows, std::max<int64_t>(1, most));
    slices = static_cast<int>(ceil_div(rows, length));
  }
};

struct RowWalk {
  int64_t at, step;
  int count = 0;
  bool backwards;

  __device__ RowWalk(const Rows& g, int strip, int slice, bool backwards) : backwards(backwards) {
    const int teams = BLOCK / g.width;
    const int64_t column = int64_t{strip} * g.width + threadIdx.x % g.width;
    const int64_t first = slice * g.length + threadIdx.x / g.width;
    const int64_t end = min((slice + 1) * g.length, g.rows);
    if (first < end && column < g.columns) {
      count = static_cast<int>((end - first + teams - 1) / teams);
    }
    step = teams * g.columns;
    at = first * g.columns + column;
    if (backwards) {
      at += (count - 1) * step;
      step = -step;
    }
  }
  __device__ int64_t next() {
    const int64_t here = at;
    at += step;
    return here;
  }
  __device__ int slot(int k) const { return backwards ? count - 1 - k : k; }
};

// Chunks that a block keeps in shared memory from the statistics to the output: `room` per thread
// and tensor. A thread reads only what it stored itself, so no barrier is needed.
template <typename T, int N>
struct Kept {
  Chunk<T, N>* memory = nullptr;
  int room = 0;

  __device__ Chunk<T, N>& at(int tensor, int slot) const {
    return memory[(tensor * room + slot) * BLOCK + threadIdx.x];
  }
};

// Chunks per thread and tensor that are loaded before the first is used: 64 KB per multiprocessor
// with two blocks of planes, or one block of rows.
template <class Walk>
constexpr int batch(int in, int N) {
  const bool rows = std::is_same_v<Walk, RowWalk>;
  return (N == 1 && rows ? 16 : N == 1 || rows ? 8 : 4) / in;
}

// This thread's part of its chunks.
template <class Pass, typename T, int N, int COLUMNS, class Walk>
__device__ Parts<COLUMNS> reduce(Walk walk, const Arguments& p, const float (&origin)[COLUMNS],
                                 Kept<T, N> kept = {}) {
  constexpr int U = batch<Walk>(Pass::IN, N);
  Parts<COLUMNS> parts;
  for (int k = 0; k < walk.count; k += U) {
    Chunk<T, N> in[Pass::IN][U];
    const int valid = min(U, walk.count - k);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= valid) break;
      const int64_t at = walk.next();
#pragma unroll
      for (int i = 0; i < Pass::IN; ++i) in[i][u] = static_cast<const Chunk<T, N>*>(p.in[i])[at];
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= valid || k + u >= kept.room) break;
#pragma unroll
      for (int i = 0; i < Pass::IN; ++i) kept.at(i, k + u) = in[i][u];
    }
    Pass::add(parts, in, valid, origin);
  }
  return parts;
}

// Computes and stores the outputs of this thread's chunks.
template <class Pass, typename T, int N, int COLUMNS, class Walk>
__device__ void apply(Walk walk, const Arguments& p, const float4 (&coefficients)[COLUMNS],
                      Kept<T, N> kept = {}) {
  constexpr int U = batch<Walk>(Pass::IN, N);
  for (int k = 0; k < walk.count; k += U) {
    Chunk<T, N> in[Pass::IN][U];
    int64_t at[U];
    const int valid = min(U, walk.count - k);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= valid) break;
      at[u] = walk.next();
      const int slot = walk.slot(k + u);
#pragma unroll
      for (int i = 0; i < Pass::IN; ++i) {
        in[i][u] =
            slot < kept.room ? kept.at(i, slot) : static_cast<const Chunk<T, N>*>(p.in[i])[at[u]];
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= valid) break;
      Chunk<T, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = static_cast<float>(in[0][u].at[i]);
        const float other = static_cast<float>(in[Pass::IN - 1][u].at[i]);
        const float4 k = coefficients[i * COLUMNS / N];
        result.at[i] = static_cast<T>(Pass::result(k, x, other));
      }
      static_cast<Chunk<T, N>*>(p.out)[at[u]] = result;
    }
  }
}

// The arguments and results of all rungs that train.
#define FORWARD                                                                                \
  "(Tensor x, Tensor weight, Tensor bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, " \
  "float momentum, float eps) -> (Tensor, Tensor, Tensor)"
#define BACKWARD                                                                   \
  "(Tensor gy, Tensor x, Tensor mean, Tensor rstd, Tensor weight, bool training) " \
  "-> (Tensor, Tensor, Tensor)"

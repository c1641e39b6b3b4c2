// Day 31: convolution in two dimensions
//
//   y[n, o, i, j] = sum over c, p, q of w[o, c, p, q] · x[n, c + g, row, col]
//   row = i·s + p·d - pad, col = j·s + q·d - pad
//
// x: (N, C, H, W), w: (O, C / groups, KH, KW), y: (N, O, OH, OW), all fp32. s is the stride, d the
// dilation, g the first channel of o's group; outside of x there are zeros. Operations: 2 · C /
// groups · KH · KW per output. For 3×3 and 128 channels that is 2304 per output. With 4 bytes of x
// and 4 of y per output it is 288 per byte, so arithmetic is the limit.
//
//   v1 naive            one thread per output, all operands from global memory
//   v2 tiled            a tile of x with its halo in shared memory: a block loads an input once
//   v3 register_blocked 4 × 14 or 8 × 8 outputs per thread: 4 or 8 channels share a loaded input
//   v4 winograd         (winograd.cu) 3 × 3 filters with 16 multiplications per 4 outputs, not 36
//
// Run: python run_day.py 31

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "days/day31/conv.cuh"

#include <algorithm>

// ---------------------------------------------------------------------------------------------
// v1: 2 · C / groups · KH · KW loads per output. Neighbouring threads have neighbouring outputs.

constexpr int BLOCK_V1 = 256;

__global__ void __launch_bounds__(BLOCK_V1)
    conv2d_v1_naive_kernel(const float* __restrict__ x, const float* __restrict__ w,
                           float* __restrict__ y, Conv conv, int64_t count) {
  const int64_t index = int64_t{blockIdx.x} * BLOCK_V1 + threadIdx.x;
  if (index >= count) return;
  const int j = static_cast<int>(index % conv.OW), i = static_cast<int>(index / conv.OW % conv.OH);
  const int64_t plane = index / conv.OW / conv.OH;  // n · O + o
  const int o = static_cast<int>(plane % conv.O);
  const int64_t n = plane / conv.O;
  const int first = o / conv.outputs() * conv.channels();

  float sum = 0;
  for (int c = 0; c < conv.channels(); ++c) {
    const float* image = x + (n * conv.C + first + c) * conv.H * conv.W;
    const float* taps = w + (int64_t{o} * conv.channels() + c) * conv.KH * conv.KW;
    for (int p = 0; p < conv.KH; ++p) {
      const int row = i * conv.stride + p * conv.dilation - conv.padding;
      if (row < 0 || row >= conv.H) continue;
      for (int q = 0; q < conv.KW; ++q) {
        const int col = j * conv.stride + q * conv.dilation - conv.padding;
        if (col < 0 || col >= conv.W) continue;
        sum += taps[p * conv.KW + q] * image[int64_t{row} * conv.W + col];
      }
    }
  }
  y[index] = sum;
}

Tensor conv2d_v1_naive(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation, int64_t groups) {
  const Conv conv = check_conv(x, w, stride, padding, dilation, groups);
  const DeviceGuard guard(x);
  Tensor y = new_output(x, conv);
  if (y.numel() == 0) return y;
  conv2d_v1_naive_kernel<<<grid_size(ceil_div<int64_t>(y.numel(), BLOCK_V1), "x"), BLOCK_V1, 0,
                           current_stream(x)>>>(data<float>(x), data<float>(w),
                                                mutable_data<float>(y), conv, y.numel());
  check_launch("conv2d_v1_naive");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a block computes 16 × 16 outputs of one channel. For each input channel it loads
// the inputs that these outputs need into shared memory: the tile, and a halo around it.

constexpr int TILE = 16;
constexpr size_t SHARED = 48 << 10;  // bytes that every card grants without asking

// The part of an input channel that ROWS × COLS outputs need.
template <int ROWS, int COLS>
struct Halo {
  int rows, cols, pitch;  // pitch: of a row in shared memory, whole packs of 4

  __host__ __device__ explicit Halo(const Conv& conv)
      : rows((ROWS - 1) * conv.stride + (conv.KH - 1) * conv.dilation + 1),
        cols((COLS - 1) * conv.stride + (conv.KW - 1) * conv.dilation + 1),
        pitch((cols + 3) / 4 * 4) {}

  __host__ __device__ int plane() const { return rows * pitch; }  // of one channel, elements

  // Loads it: `channels` planes of x from `image` on. (top, left): its first element in x, which
  // may lie in the padding. A thread has the same elements of each plane: it divides and compares
  // once, and its loads from all planes are in flight together.
  __device__ void load(float* tile, const float* image, const Conv& conv, int top, int left,
                       int channels) const {
    const int64_t next = int64_t{conv.H} * conv.W;
    for (int e = threadIdx.x; e < rows * cols; e += blockDim.x) {
      const int r = e / cols, q = e % cols, row = top + r, col = left + q;
      const bool inside = row >= 0 && row < conv.H && col >= 0 && col < conv.W;
      const float* from = inside ? image + int64_t{row} * conv.W + col : image;
      float* to = tile + r * pitch + q;
#pragma unroll 8
      for (int c = 0; c < channels; ++c) {
        to[c * plane()] = inside ? from[c * next] : 0.0f;
      }
    }
  }
};

__global__ void __launch_bounds__(TILE* TILE)
    conv2d_v2_tiled_kernel(const float* __restrict__ x, const float* __restrict__ w,
                           float* __restrict__ y, Conv conv) {
  extern __shared__ __align__(128) float tile[];
  const Halo<TILE, TILE> halo(conv);
  const int across = (conv.OW + TILE - 1) / TILE, down = (conv.OH + TILE - 1) / TILE;
  const int i0 = blockIdx.x / across % down * TILE, j0 = blockIdx.x % across * TILE;
  const int64_t plane = blockIdx.x / across / down;  // n · O + o
  const int o = static_cast<int>(plane % conv.O), first = o / conv.outputs() * conv.channels();
  const float* image = x + (plane / conv.O * conv.C + first) * conv.H * conv.W;
  const float* taps = w + int64_t{o} * conv.channels() * conv.KH * conv.KW;
  const int tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;

  float sum = 0;
  for (int c = 0; c < conv.channels(); ++c) {
    __syncthreads();  // all threads are done with the tile of the previous channel
    halo.load(tile, image + int64_t{c} * conv.H * conv.W, conv, i0 * conv.stride - conv.padding,
              j0 * conv.stride - conv.padding, 1);
    __syncthreads();  // the tile is complete
    for (int p = 0; p < conv.KH; ++p) {
      const float* row = tile + (ty * conv.stride + p * conv.dilation) * halo.pitch;
      for (int q = 0; q < conv.KW; ++q) {
        sum += taps[(c * conv.KH + p) * conv.KW + q] * row[tx * conv.stride + q * conv.dilation];
      }
    }
  }
  const int i = i0 + ty, j = j0 + tx;
  if (i < conv.OH && j < conv.OW) y[(plane * conv.OH + i) * conv.OW + j] = sum;
}

Tensor conv2d_v2_tiled(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation, int64_t groups) {
  const Conv conv = check_conv(x, w, stride, padding, dilation, groups);
  const Halo<TILE, TILE> halo(conv);
  const size_t bytes = sizeof(float) * halo.rows * halo.pitch;
  if (bytes > SHARED) {
    fell_back("conv2d_v1_naive", "a filter whose halo does not fit in shared memory");
    return conv2d_v1_naive(x, w, stride, padding, dilation, groups);
  }
  const DeviceGuard guard(x);
  Tensor y = new_output(x, conv);
  if (y.numel() == 0) return y;
  const int64_t tiles = int64_t{ceil_div(conv.OH, TILE)} * ceil_div(conv.OW, TILE);
  conv2d_v2_tiled_kernel<<<grid_size(conv.N * conv.O * tiles, "x"), TILE * TILE, bytes,
                           current_stream(x)>>>(data<float>(x), data<float>(w),
                                                mutable_data<float>(y), conv);
  check_launch("conv2d_v2_tiled");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a block computes BO output channels × ROWS × COLS outputs, a thread OUTPUTS ×
// WIDTH of them in registers. Each input serves OUTPUTS weights, each weight WIDTH inputs. Weights
// come through shared memory, loads are wider, and 3 × 3 with stride 1 has constants.

constexpr int BO = 64;
constexpr int BLOCK = 128;
constexpr int CHANNELS = 16;             // input channels per step, at most
constexpr size_t STEP_BYTES = 56 << 10;  // of shared memory for them: four blocks on 9.0

template <int ROWS_, int COLS_, int OUTPUTS_, int WIDTH_>
struct Shape {
  static constexpr int ROWS = ROWS_, COLS = COLS_, OUTPUTS = OUTPUTS_, WIDTH = WIDTH_;
  static constexpr int LANES = BO / OUTPUTS;  // neighbouring threads with the same outputs
  static_assert(BLOCK == LANES * ROWS * COLS / WIDTH, "each thread has its part of the tile");
  static_assert(OUTPUTS % 4 == 0 && WIDTH % 2 == 0, "loads of 4 weights and 2 inputs");

  static int64_t tiles(const Conv& conv) {  // that cover a channel of an image
    return int64_t{ceil_div(conv.OH, ROWS)} * ceil_div(conv.OW, COLS);
  }
};

using Wide = Shape<8, 16, 8, 8>;    // 64 multiply-adds for 16 values from shared memory
using Exact = Shape<4, 28, 4, 14>;  // 56 for 18; covers images of 28, 56, 112 and 224 exactly

// The weights as the blocks read them: (strips of BO output channels of a group, C / groups · KH ·
// KW, BO). A thread loads four neighbouring output channels at once. Zeros fill up the last strip.
__global__ void arrange_weights_kernel(const float* __restrict__ w, float* __restrict__ arranged,
                                       Conv conv, int64_t count) {
  const int64_t index = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (index >= count) return;
  const int length = conv.channels() * conv.KH * conv.KW, strips = (conv.outputs() + BO - 1) / BO;
  const int64_t strip = index / BO / length;
  const int64_t k = index / BO % length, o = strip % strips * BO + index % BO;
  const int64_t channel = strip / strips * conv.outputs() + o;
  arranged[index] = o < conv.outputs() ? w[channel * length + k] : 0.0f;
}

// Where a thread works: the block's image, group, strip of output channels and tile of outputs; the
// thread's outputs of a row, and its output channels.
template <typename S>
struct Place {
  int i0, j0, ti, tj, og, o0, outputs;
  int64_t n, strip;
  const float* image;  // of the group's first channel

  __device__ Place(const Conv& conv, const float* x) {
    const int across = (conv.OW + S::COLS - 1) / S::COLS, down = (conv.OH + S::ROWS - 1) / S::ROWS;
    const int strips = (conv.outputs() + BO - 1) / BO, group = blockIdx.y / strips;
    j0 = blockIdx.x % across * S::COLS;
    i0 = blockIdx.x / across % down * S::ROWS;
    n = blockIdx.x / across / down;
    strip = blockIdx.y;
    o0 = group * conv.outputs() + blockIdx.y % strips * BO;
    outputs = min(BO, conv.outputs() - static_cast<int>(blockIdx.y % strips) * BO);
    image = x + (n * conv.C + group * conv.channels()) * conv.H * conv.W;
    og = threadIdx.x % S::LANES;
    ti = threadIdx.x / S::LANES / (S::COLS / S::WIDTH);
    tj = threadIdx.x / S::LANES % (S::COLS / S::WIDTH) * S::WIDTH;
  }

  // A thread's output channels: og · 4 + {0 … 3}, and as many LANES · 4 further on. The float4 of
  // neighbouring lanes then lie side by side, without bank conflicts.
  __device__ int channel(int a) const { return a / 4 * (S::LANES * 4) + og * 4 + a % 4; }
};

template <int OUTPUTS, int WIDTH>
__device__ __forceinline__ void multiply_add(float (&sums)[OUTPUTS][WIDTH], const float* weights,
                                             const float* inputs, int step) {
  float4 a[OUTPUTS / 4];
#pragma unroll
  for (int f = 0; f < OUTPUTS / 4; ++f) {
    a[f] = *reinterpret_cast<const float4*>(weights + f * (BO * 4 / OUTPUTS));
  }
#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o) {
    const float weight = reinterpret_cast<const float*>(a)[o];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sums[o][j] += weight * inputs[j * step];
  }
}

// Adds the products of `channels` input channels. PLAIN: 3 × 3, stride 1 and dilation 1, known at
// compile time; the thread then loads the WIDTH + 2 inputs of a row once for all three taps of it.
template <typename S, bool PLAIN>
__device__ void multiply_channels(float (&sums)[S::OUTPUTS][S::WIDTH], const float* weights,
                                  const float* tile, const Halo<S::ROWS, S::COLS>& halo,
                                  const Conv& conv, const Place<S>& place, int channels) {
  if constexpr (PLAIN) {
    constexpr int PITCH = (S::COLS + 2 + 3) / 4 * 4;
    for (int c = 0; c < channels; ++c) {
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const float* from = tile + (c * (S::ROWS + 2) + place.ti + p) * PITCH + place.tj;
        float row[S::WIDTH + 2];
#pragma unroll
        for (int q = 0; q < S::WIDTH + 2; q += 2) {
          const float2 pair = *reinterpret_cast<const float2*>(from + q);
          row[q] = pair.x;
          row[q + 1] = pair.y;
        }
#pragma unroll
        for (int q = 0; q < 3; ++q) {
          multiply_add(sums, weights + (c * 9 + p * 3 + q) * BO + place.og * 4, row + q, 1);
        }
      }
    }
  } else {
    const int taps = conv.KH * conv.KW;
    for (int k = 0; k < channels * taps; ++k) {
      const int c = k / taps, p = k / conv.KW % conv.KH, q = k % conv.KW;
      const int row = c * halo.rows + place.ti * conv.stride + p * conv.dilation;
      multiply_add(sums, weights + k * BO + place.og * 4,
                   tile + row * halo.pitch + place.tj * conv.stride + q * conv.dilation,
                   conv.stride);
    }
  }
}

template <typename S>
__device__ void store_outputs(const float (&sums)[S::OUTPUTS][S::WIDTH], float* y, const Conv& conv,
                              const Place<S>& place) {
  const int i = place.i0 + place.ti, j0 = place.j0 + place.tj;
  if (i >= conv.OH) return;
#pragma unroll
  for (int a = 0; a < S::OUTPUTS; ++a) {
    const int o = place.channel(a);
    if (o >= place.outputs) continue;
    float* row = y + ((place.n * conv.O + place.o0 + o) * conv.OH + i) * conv.OW + j0;
#pragma unroll
    for (int j = 0; j < S::WIDTH; j += 2) {
      if (conv.OW % 2 == 0 && j0 + j < conv.OW) {  // one store for two
        *reinterpret_cast<float2*>(row + j) = make_float2(sums[a][j], sums[a][j + 1]);
      } else {
        if (j0 + j < conv.OW) row[j] = sums[a][j];
        if (j0 + j + 1 < conv.OW) row[j + 1] = sums[a][j + 1];
      }
    }
  }
}

// chunk: input channels per step. While one of the four blocks of a multiprocessor loads, the
// others multiply: that takes at most 128 registers per thread.
template <typename S, bool PLAIN>
__global__ void __launch_bounds__(BLOCK, 4)
    conv2d_v3_register_blocked_kernel(const float* __restrict__ x,
                                      const float* __restrict__ arranged, float* __restrict__ y,
                                      Conv conv, int chunk) {
  extern __shared__ __align__(128) float shared[];
  const Halo<S::ROWS, S::COLS> halo(conv);
  const Place<S> place(conv, x);
  const int taps = conv.KH * conv.KW, length = conv.channels() * taps;
  float *weights = shared, *tile = shared + chunk * taps * BO;
  const auto* from = reinterpret_cast<const float4*>(arranged + place.strip * length * BO);

  float sums[S::OUTPUTS][S::WIDTH] = {};
  for (int c0 = 0; c0 < conv.channels(); c0 += chunk) {
    const int channels = min(chunk, conv.channels() - c0);
    __syncthreads();  // all threads are done with the previous channels
#pragma unroll 8
    for (int e = threadIdx.x; e < channels * taps * BO / 4; e += BLOCK) {
      reinterpret_cast<float4*>(weights)[e] = from[c0 * taps * BO / 4 + e];
    }
    halo.load(tile, place.image + int64_t{c0} * conv.H * conv.W, conv,
              place.i0 * conv.stride - conv.padding, place.j0 * conv.stride - conv.padding,
              channels);
    __syncthreads();  // weights and tile are complete
    multiply_channels<S, PLAIN>(sums, weights, tile, halo, conv, place, channels);
  }
  store_outputs(sums, y, conv, place);
}

Tensor arrange_weights(const Tensor& w, const Conv& conv, int64_t strips) {
  const int64_t count = strips * conv.channels() * conv.KH * conv.KW * BO;
  Tensor arranged = allocate(w, {count});
  arrange_weights_kernel<<<grid_size(ceil_div<int64_t>(count, BLOCK), "w"), BLOCK, 0,
                           current_stream(w)>>>(data<float>(w), mutable_data<float>(arranged), conv,
                                                count);
  check_launch("arrange_weights");
  return arranged;
}

// Whether y was written: a filter whose halo is too large for S is left to other rungs.
template <typename S>
bool launch_blocked(const Tensor& x, const Tensor& w, Tensor& y, const Conv& conv) {
  const Halo<S::ROWS, S::COLS> halo(conv);
  const size_t bytes =  // of shared memory, per input channel
      sizeof(float) * (size_t(conv.KH) * conv.KW * BO + size_t(halo.rows) * halo.pitch);
  const int chunk = static_cast<int>(
      std::min<size_t>({CHANNELS, STEP_BYTES / bytes, static_cast<size_t>(conv.channels())}));
  if (chunk == 0) return false;
  if (y.numel() == 0) return true;
  const int64_t strips = int64_t{conv.groups} * ceil_div(conv.outputs(), BO);
  const Tensor arranged = arrange_weights(w, conv, strips);
  const dim3 grid(grid_size(conv.N * S::tiles(conv), "x"), grid_size_y(strips, "w"));
  const bool plain = conv.KH == 3 && conv.KW == 3 && conv.stride == 1 && conv.dilation == 1;
  const auto kernel = plain ? conv2d_v3_register_blocked_kernel<S, true>
                            : conv2d_v3_register_blocked_kernel<S, false>;
  allow_shared(kernel, bytes * chunk);
  kernel<<<grid, BLOCK, bytes * chunk, current_stream(x)>>>(data<float>(x), data<float>(arranged),
                                                            mutable_data<float>(y), conv, chunk);
  check_launch("conv2d_v3_register_blocked");
  return true;
}

Tensor conv2d_v3_register_blocked(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                                  int64_t dilation, int64_t groups) {
  const Conv conv = check_conv(x, w, stride, padding, dilation, groups);
  const DeviceGuard guard(x);
  Tensor y = new_output(x, conv);
  // The shape whose tiles cover fewer outputs that are not there.
  const bool exact =
      Exact::tiles(conv) * Exact::ROWS * Exact::COLS < Wide::tiles(conv) * Wide::ROWS * Wide::COLS;
  if (conv.outputs() >= Wide::OUTPUTS) {
    if (exact ? launch_blocked<Exact>(x, w, y, conv) : launch_blocked<Wide>(x, w, y, conv))
      return y;
  }
  fell_back("conv2d_v2_tiled", "few output channels per group, or a filter too large for a tile");
  return conv2d_v2_tiled(x, w, stride, padding, dilation, groups);
}

// ---------------------------------------------------------------------------------------------

#define ARGUMENTS "(Tensor x, Tensor w, int stride=1, int padding=0, int dilation=1, int groups=1)"
RUNG(day31, conv2d_v1_naive, ARGUMENTS " -> Tensor");
RUNG(day31, conv2d_v2_tiled, ARGUMENTS " -> Tensor");
RUNG(day31, conv2d_v3_register_blocked, ARGUMENTS " -> Tensor");

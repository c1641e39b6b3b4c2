// Day 31: convolution in two dimensions
//
//   y[n, o, i, j] = sum over c, p, q of w[o, c, p, q] · x[n, c + g, i·s + p·d - pad, j·s + q·d -
//   pad]
//
// x: (N, C, H, W), w: (O, C / groups, KH, KW), y: (N, O, OH, OW), all fp32. s is the stride, d the
// dilation, g the first channel of o's group; outside of x there are zeros. Operations: 2 · C /
// groups · KH · KW per output. For 3×3 and 128 channels that is 2304 per output and 576 per byte,
// so arithmetic is the limit.
//
//   v1 naive            one thread per output, all operands from global memory
//   v2 tiled            a tile of x with its halo in shared memory: each input is loaded once
//   v3 register_blocked 8 × 8 outputs per thread: 8 output channels share every loaded input
//
// Run: python run_day.py 31

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <algorithm>

// What all rungs compute: the sizes above.
struct Conv {
  int64_t N;
  int C, H, W, O, KH, KW, OH, OW, stride, padding, dilation, groups;

  __host__ __device__ int channels() const { return C / groups; }  // that an output reads
  __host__ __device__ int outputs() const { return O / groups; }   // channels of a group
};

// ---------------------------------------------------------------------------------------------
// v1: 2 · C / groups · KH · KW loads per output. Neighbouring threads have neighbouring outputs.

constexpr int BLOCK_V1 = 256;

__global__ void __launch_bounds__(BLOCK_V1)
    conv2d_v1_naive_kernel(const float* __restrict__ x, const float* __restrict__ w,
                           float* __restrict__ y, Conv conv, int64_t count) {
  const int64_t index = int64_t{blockIdx.x} * BLOCK_V1 + threadIdx.x;
  if (index >= count) return;
  const int j = index % conv.OW, i = index / conv.OW % conv.OH;
  const int64_t plane = index / conv.OW / conv.OH;  // n · O + o
  const int o = plane % conv.O;
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

constexpr int64_t MOST = 1 << 20;    // of a size: no product of two that the kernels form overflows
constexpr int64_t MOST_TAPS = 1024;  // of a filter's side, its stride and its dilation

// `value` as an int, if it is between low and high.
int bounded(int64_t value, int64_t low, int64_t high, const char* name) {
  STD_TORCH_CHECK(value >= low && value <= high, name, ": expected ", low, " to ", high, ", got ",
                  value);
  return static_cast<int>(value);
}

// Outputs along a dimension of x with `size` elements, for `taps` taps of the filter.
int outputs_along(int size, int taps, const Conv& conv) {
  const int padded = size + 2 * conv.padding, reach = (taps - 1) * conv.dilation + 1;
  STD_TORCH_CHECK(padded >= reach, "x: expected ", reach,
                  " elements or more along each side of the padded image, for the dilated filter ",
                  "w, got ", padded);
  return (padded - reach) / conv.stride + 1;
}

Conv check_conv(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding, int64_t dilation,
                int64_t groups) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(4).contiguous();
  check(w, "w").on_gpu().dtype({ScalarType::Float}).rank(4).contiguous().same_device(x, "x");
  Conv conv{};
  conv.N = x.size(0);
  conv.C = bounded(x.size(1), 0, MOST, "x, its channels");
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

Tensor new_output(const Tensor& x, const Conv& conv) {
  return torch::stable::new_empty(x, {conv.N, conv.O, conv.OH, conv.OW});
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

  // Loads it: `channels` planes of x from `image` on. (top, left): its first element in x, which
  // may lie in the padding. The warps of the block take lines in turns: no division per element.
  __device__ void load(float* tile, const float* image, const Conv& conv, int top, int left,
                       int channels) const {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll 4
    for (int line = threadIdx.x / 32; line < channels * rows; line += warps) {
      const int row = top + line % rows;
      const float* from = image + (int64_t{line / rows} * conv.H + row) * conv.W;
      for (int q = lane; q < cols; q += 32) {
        const int col = left + q;
        const bool inside = row >= 0 && row < conv.H && col >= 0 && col < conv.W;
        tile[line * pitch + q] = inside ? from[col] : 0.0f;
      }
    }
  }
};

__global__ void __launch_bounds__(TILE* TILE)
    conv2d_v2_tiled_kernel(const float* __restrict__ x, const float* __restrict__ w,
                           float* __restrict__ y, Conv conv) {
  extern __shared__ __align__(16) float tile[];
  const Halo<TILE, TILE> halo(conv);
  const int across = (conv.OW + TILE - 1) / TILE, down = (conv.OH + TILE - 1) / TILE;
  const int i0 = blockIdx.x / across % down * TILE, j0 = blockIdx.x % across * TILE;
  const int64_t plane = blockIdx.x / across / down;  // n · O + o
  const int o = plane % conv.O, first = o / conv.outputs() * conv.channels();
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
// v3 against v2: a block computes BO output channels × BI rows × BJ columns, a thread TO × TJ of
// them in registers. For each input it takes TO weights from shared memory, for each weight TJ
// inputs: 64 multiply-adds for 16 values.

constexpr int BO = 64, BI = 8, BJ = 16;
constexpr int TO = 8, TJ = 8;
constexpr int BLOCK_V3 = BO / TO * BI * BJ / TJ;  // 128
constexpr int PITCH_W = BO + 4;                   // fewer bank conflicts where weights are stored
static_assert(BO / TO == 8, "lanes l and l + 8 of a warp share the output channels");

// `length` weights of each of BO output channels: those of some input channels, transposed to [c,
// p, q][o], so that a thread loads four neighbouring output channels at once. Beyond `outputs`
// there are zeros.
__device__ void load_weights(float* to, const float* w, int outputs, int length, int64_t pitch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int k = lane; k < length; k += 32) {
#pragma unroll 8
    for (int o = warp; o < BO; o += BLOCK_V3 / 32) {
      to[k * PITCH_W + o] = o < outputs ? w[o * pitch + k] : 0.0f;
    }
  }
}

// Output channels of thread group `og`: og · 4 + {0 … 3} and BO / 2 + og · 4 + {0 … 3}. The float4
// of eight lanes then lie side by side, without bank conflicts.
__device__ inline int channel_of(int og, int a) {
  return a / 4 * (BO / 2) + og * 4 + a % 4;
}

__device__ inline void multiply_add(float (&sums)[TO][TJ], const float* weights,
                                    const float* inputs, int step) {
  float4 halves[2];
  halves[0] = *reinterpret_cast<const float4*>(weights);
  halves[1] = *reinterpret_cast<const float4*>(weights + BO / 2);
  const float a[TO] = {halves[0].x, halves[0].y, halves[0].z, halves[0].w,
                       halves[1].x, halves[1].y, halves[1].z, halves[1].w};
#pragma unroll
  for (int o = 0; o < TO; ++o) {
#pragma unroll
    for (int j = 0; j < TJ; ++j) sums[o][j] += a[o] * inputs[j * step];
  }
}

// PLAIN: 3 × 3, stride 1 and dilation 1, known at compile time. The thread then loads the TJ + 2
// inputs of a row once, for all three taps of that row.
template <bool PLAIN>
__global__ void __launch_bounds__(BLOCK_V3, 4)
    conv2d_v3_register_blocked_kernel(const float* __restrict__ x, const float* __restrict__ w,
                                      float* __restrict__ y, Conv conv, int chunk) {
  extern __shared__ __align__(16) float shared[];
  const Halo<BI, BJ> halo(conv);
  const int taps = PLAIN ? 9 : conv.KH * conv.KW;
  float *weights = shared, *tile = shared + chunk * taps * PITCH_W;

  const int across = (conv.OW + BJ - 1) / BJ, down = (conv.OH + BI - 1) / BI;
  const int j0 = blockIdx.x % across * BJ, i0 = blockIdx.x / across % down * BI;
  const int64_t n = blockIdx.x / across / down;
  const int strips = (conv.outputs() + BO - 1) / BO;  // per group
  const int group = blockIdx.y / strips, strip = blockIdx.y % strips;
  const int o0 = group * conv.outputs() + strip * BO;
  const int outputs = min(BO, conv.outputs() - strip * BO);
  const float* image = x + (n * conv.C + group * conv.channels()) * conv.H * conv.W;
  const int64_t pitch = int64_t{conv.channels()} * taps;  // from one output channel to the next

  const int og = threadIdx.x % 8, pixels = threadIdx.x / 8;
  const int ti = pixels / (BJ / TJ), tj = pixels % (BJ / TJ) * TJ;
  float sums[TO][TJ] = {};
  for (int c0 = 0; c0 < conv.channels(); c0 += chunk) {
    const int channels = min(chunk, conv.channels() - c0);
    __syncthreads();  // all threads are done with the previous channels
    load_weights(weights, w + o0 * pitch + int64_t{c0} * taps, outputs, channels * taps, pitch);
    halo.load(tile, image + int64_t{c0} * conv.H * conv.W, conv, i0 * conv.stride - conv.padding,
              j0 * conv.stride - conv.padding, channels);
    __syncthreads();  // weights and tile are complete
    if constexpr (PLAIN) {
      for (int c = 0; c < channels; ++c) {
#pragma unroll
        for (int p = 0; p < 3; ++p) {
          const float* from = tile + (c * (BI + 2) + ti + p) * halo.pitch + tj;
          float row[TJ + 2];
#pragma unroll
          for (int q = 0; q < TJ + 2; q += 2) {
            const float2 pair = *reinterpret_cast<const float2*>(from + q);
            row[q] = pair.x;
            row[q + 1] = pair.y;
          }
#pragma unroll
          for (int q = 0; q < 3; ++q) {
            multiply_add(sums, weights + (c * 9 + p * 3 + q) * PITCH_W + og * 4, row + q, 1);
          }
        }
      }
    } else {
      for (int k = 0; k < channels * taps; ++k) {
        const int c = k / taps, p = k / conv.KW % conv.KH, q = k % conv.KW;
        const int row = c * halo.rows + ti * conv.stride + p * conv.dilation;
        multiply_add(sums, weights + k * PITCH_W + og * 4,
                     tile + row * halo.pitch + tj * conv.stride + q * conv.dilation, conv.stride);
      }
    }
  }

  const int i = i0 + ti;
  if (i >= conv.OH) return;
#pragma unroll
  for (int a = 0; a < TO; ++a) {
    const int o = channel_of(og, a);
    if (o >= outputs) continue;
    float* row = y + ((n * conv.O + o0 + o) * conv.OH + i) * conv.OW + j0 + tj;
#pragma unroll
    for (int j = 0; j < TJ; j += 4) {
      if (conv.OW % 4 == 0 && j0 + tj + j < conv.OW) {  // whole packs: one store for four
        *reinterpret_cast<float4*>(row + j) =
            make_float4(sums[a][j], sums[a][j + 1], sums[a][j + 2], sums[a][j + 3]);
      } else {
        for (int e = j; e < j + 4; ++e) {
          if (j0 + tj + e < conv.OW) row[e] = sums[a][e];
        }
      }
    }
  }
}

Tensor conv2d_v3_register_blocked(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                                  int64_t dilation, int64_t groups) {
  const Conv conv = check_conv(x, w, stride, padding, dilation, groups);
  const Halo<BI, BJ> halo(conv);
  // Input channels per step: as many as fit, at most 8.
  const size_t each =
      sizeof(float) * (conv.KH * conv.KW * PITCH_W + size_t(halo.rows) * halo.pitch);
  const int chunk = static_cast<int>(std::min<size_t>({8, SHARED / each, size_t(conv.channels())}));
  if (chunk == 0 || conv.outputs() < TO) {
    fell_back("conv2d_v2_tiled", "few output channels per group, or a filter too large for a tile");
    return conv2d_v2_tiled(x, w, stride, padding, dilation, groups);
  }
  const DeviceGuard guard(x);
  Tensor y = new_output(x, conv);
  if (y.numel() == 0) return y;
  const int64_t tiles = int64_t{ceil_div(conv.OH, BI)} * ceil_div(conv.OW, BJ);
  const dim3 grid(grid_size(conv.N * tiles, "x"),
                  grid_size_y(int64_t{conv.groups} * ceil_div(conv.outputs(), BO), "w"));
  const bool plain = conv.KH == 3 && conv.KW == 3 && conv.stride == 1 && conv.dilation == 1;
  const auto kernel =
      plain ? conv2d_v3_register_blocked_kernel<true> : conv2d_v3_register_blocked_kernel<false>;
  kernel<<<grid, BLOCK_V3, each * chunk, current_stream(x)>>>(data<float>(x), data<float>(w),
                                                              mutable_data<float>(y), conv, chunk);
  check_launch("conv2d_v3_register_blocked");
  return y;
}

// ---------------------------------------------------------------------------------------------

#define ARGUMENTS "(Tensor x, Tensor w, int stride=1, int padding=0, int dilation=1, int groups=1)"
RUNG(day31, conv2d_v1_naive, ARGUMENTS " -> Tensor");
RUNG(day31, conv2d_v2_tiled, ARGUMENTS " -> Tensor");
RUNG(day31, conv2d_v3_register_blocked, ARGUMENTS " -> Tensor");

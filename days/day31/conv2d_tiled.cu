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
//   v4 pipelined        the next channels come by cp.async while these are multiplied
//
// Run: python run_day.py 31

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/ptx.cuh"            // cp.async: day 20
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12

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

  __host__ __device__ int plane() const { return rows * pitch; }  // of one channel, elements

  // Loads it: `channels` planes of x from `image` on. (top, left): its first element in x, which
  // may lie in the padding. A thread has the same elements of each plane: it divides and compares
  // once, and its loads from all planes are in flight together.
  template <bool ASYNC>
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
        if constexpr (ASYNC) {
          ptx::cp_async_zero_fill<4>(to + c * plane(), from + c * next, inside ? 4 : 0);
        } else {
          to[c * plane()] = inside ? from[c * next] : 0.0f;
        }
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
  const int o = static_cast<int>(plane % conv.O), first = o / conv.outputs() * conv.channels();
  const float* image = x + (plane / conv.O * conv.C + first) * conv.H * conv.W;
  const float* taps = w + int64_t{o} * conv.channels() * conv.KH * conv.KW;
  const int tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;

  float sum = 0;
  for (int c = 0; c < conv.channels(); ++c) {
    __syncthreads();  // all threads are done with the tile of the previous channel
    halo.load<false>(tile, image + int64_t{c} * conv.H * conv.W, conv,
                     i0 * conv.stride - conv.padding, j0 * conv.stride - conv.padding, 1);
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
// them in registers. Each input serves TO weights, each weight TJ inputs: 64 multiply-adds for 16
// values from shared memory.

constexpr int BO = 64, BI = 8, BJ = 16;
constexpr int TO = 8, TJ = 8;
constexpr int BLOCK = BO / TO * BI * BJ / TJ;  // 128
constexpr int CHANNELS = 8;                    // input channels per step, at most
static_assert(BO / TO == 8, "lanes l and l + 8 of a warp share the output channels");

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
// thread's TJ outputs of a row, and its output channels.
struct Place {
  int i0, j0, ti, tj, og, o0, outputs;
  int64_t n, strip;
  const float* image;  // of the group's first channel

  __device__ Place(const Conv& conv, const float* x) {
    const int across = (conv.OW + BJ - 1) / BJ, down = (conv.OH + BI - 1) / BI;
    const int strips = (conv.outputs() + BO - 1) / BO, group = blockIdx.y / strips;
    j0 = blockIdx.x % across * BJ;
    i0 = blockIdx.x / across % down * BI;
    n = blockIdx.x / across / down;
    strip = blockIdx.y;
    o0 = group * conv.outputs() + blockIdx.y % strips * BO;
    outputs = min(BO, conv.outputs() - static_cast<int>(blockIdx.y % strips) * BO);
    image = x + (n * conv.C + group * conv.channels()) * conv.H * conv.W;
    og = threadIdx.x % 8;
    ti = threadIdx.x / 8 / (BJ / TJ);
    tj = threadIdx.x / 8 % (BJ / TJ) * TJ;
  }
};

// Output channels of og: og · 4 + {0 … 3} and BO / 2 + og · 4 + {0 … 3}. The float4 of eight lanes
// then lie side by side, without bank conflicts.
__device__ inline int channel_of(int og, int a) {
  return a / 4 * (BO / 2) + og * 4 + a % 4;
}

__device__ __forceinline__ void multiply_add(float (&sums)[TO][TJ], const float* weights,
                                             const float* inputs, int step) {
  const float4 low = *reinterpret_cast<const float4*>(weights);
  const float4 high = *reinterpret_cast<const float4*>(weights + BO / 2);
  const float a[TO] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int o = 0; o < TO; ++o) {
#pragma unroll
    for (int j = 0; j < TJ; ++j) sums[o][j] += a[o] * inputs[j * step];
  }
}

// Adds the products of `channels` input channels. PLAIN: 3 × 3, stride 1 and dilation 1, known at
// compile time; the thread then loads the TJ + 2 inputs of a row once for all three taps of it.
template <bool PLAIN>
__device__ void multiply_channels(float (&sums)[TO][TJ], const float* weights, const float* tile,
                                  const Halo<BI, BJ>& halo, const Conv& conv, const Place& place,
                                  int channels) {
  if constexpr (PLAIN) {
    constexpr int PITCH = (BJ + 2 + 3) / 4 * 4;
    for (int c = 0; c < channels; ++c) {
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const float* from = tile + (c * (BI + 2) + place.ti + p) * PITCH + place.tj;
        float row[TJ + 2];
#pragma unroll
        for (int q = 0; q < TJ + 2; q += 2) {
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

__device__ void store_outputs(const float (&sums)[TO][TJ], float* y, const Conv& conv,
                              const Place& place) {
  const int i = place.i0 + place.ti;
  if (i >= conv.OH) return;
#pragma unroll
  for (int a = 0; a < TO; ++a) {
    const int o = channel_of(place.og, a), j0 = place.j0 + place.tj;
    if (o >= place.outputs) continue;
    float* row = y + ((place.n * conv.O + place.o0 + o) * conv.OH + i) * conv.OW + j0;
#pragma unroll
    for (int j = 0; j < TJ; j += 4) {
      if (conv.OW % 4 == 0 && j0 + j < conv.OW) {  // whole packs: one store for four
        *reinterpret_cast<float4*>(row + j) =
            make_float4(sums[a][j], sums[a][j + 1], sums[a][j + 2], sums[a][j + 3]);
      } else {
#pragma unroll
        for (int e = j; e < j + 4; ++e) {
          if (j0 + e < conv.OW) row[e] = sums[a][e];
        }
      }
    }
  }
}

// chunk: input channels per step.
template <bool PLAIN>
__global__ void __launch_bounds__(BLOCK)
    conv2d_v3_register_blocked_kernel(const float* __restrict__ x,
                                      const float* __restrict__ arranged, float* __restrict__ y,
                                      Conv conv, int chunk) {
  extern __shared__ __align__(16) float shared[];
  const Halo<BI, BJ> halo(conv);
  const Place place(conv, x);
  const int taps = conv.KH * conv.KW, length = conv.channels() * taps;
  float *weights = shared, *tile = shared + chunk * taps * BO;
  const auto* from = reinterpret_cast<const float4*>(arranged + place.strip * length * BO);

  float sums[TO][TJ] = {};
  for (int c0 = 0; c0 < conv.channels(); c0 += chunk) {
    const int channels = min(chunk, conv.channels() - c0);
    __syncthreads();  // all threads are done with the previous channels
#pragma unroll 8
    for (int e = threadIdx.x; e < channels * taps * BO / 4; e += BLOCK) {
      reinterpret_cast<float4*>(weights)[e] = from[c0 * taps * BO / 4 + e];
    }
    halo.load<false>(tile, place.image + int64_t{c0} * conv.H * conv.W, conv,
                     place.i0 * conv.stride - conv.padding, place.j0 * conv.stride - conv.padding,
                     channels);
    __syncthreads();  // weights and tile are complete
    multiply_channels<PLAIN>(sums, weights, tile, halo, conv, place, channels);
  }
  store_outputs(sums, y, conv, place);
}

// Bytes of shared memory for the weights and the inputs of one input channel.
size_t bytes_per_channel(const Conv& conv) {
  return sizeof(float) * (size_t(conv.KH) * conv.KW * BO +
                          size_t(Halo<BI, BJ>(conv).rows) * Halo<BI, BJ>(conv).pitch);
}

// Input channels per step: as many as fit in `bytes`, at most CHANNELS; 0 if the rung is no use.
int channels_per_step(const Conv& conv, size_t bytes) {
  if (conv.outputs() < TO) return 0;
  return static_cast<int>(
      std::min<size_t>({CHANNELS, bytes / bytes_per_channel(conv), size_t(conv.channels())}));
}

constexpr char UNFIT[] = "few output channels per group, or a filter too large for a tile";

// Launches `plain` or `general` after the weights have been arranged for it.
template <typename Kernel>
Tensor launch_blocked(const Tensor& x, const Tensor& w, const Conv& conv, Kernel plain,
                      Kernel general, int chunk, size_t bytes) {
  const DeviceGuard guard(x);
  Tensor y = new_output(x, conv);
  if (y.numel() == 0) return y;
  const int64_t strips = int64_t{conv.groups} * ceil_div(conv.outputs(), BO);
  const int64_t count = strips * conv.channels() * conv.KH * conv.KW * BO;
  Tensor arranged = torch::stable::new_empty(x, {count});
  arrange_weights_kernel<<<grid_size(ceil_div<int64_t>(count, BLOCK), "w"), BLOCK, 0,
                           current_stream(x)>>>(data<float>(w), mutable_data<float>(arranged), conv,
                                                count);
  check_launch("arrange_weights");
  const int64_t tiles = int64_t{ceil_div(conv.OH, BI)} * ceil_div(conv.OW, BJ);
  const dim3 grid(grid_size(conv.N * tiles, "x"), grid_size_y(strips, "w"));
  const bool is_plain = conv.KH == 3 && conv.KW == 3 && conv.stride == 1 && conv.dilation == 1;
  const auto kernel = is_plain ? plain : general;
  allow_shared(kernel, bytes);
  kernel<<<grid, BLOCK, bytes, current_stream(x)>>>(data<float>(x), data<float>(arranged),
                                                    mutable_data<float>(y), conv, chunk);
  check_launch("conv2d, register-blocked");
  return y;
}

Tensor conv2d_v3_register_blocked(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                                  int64_t dilation, int64_t groups) {
  const Conv conv = check_conv(x, w, stride, padding, dilation, groups);
  const int chunk = channels_per_step(conv, SHARED);
  if (chunk == 0) {
    fell_back("conv2d_v2_tiled", UNFIT);
    return conv2d_v2_tiled(x, w, stride, padding, dilation, groups);
  }
  return launch_blocked(x, w, conv, conv2d_v3_register_blocked_kernel<true>,
                        conv2d_v3_register_blocked_kernel<false>, chunk,
                        chunk * bytes_per_channel(conv));
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: two buffers. cp.async fills one with the next channels while the threads multiply
// those in the other; where an input lies in the padding, it stores zeros.

constexpr size_t BUFFER = 26 << 10;  // bytes, at most: 8 channels of a 3×3 filter

template <bool PLAIN>
__global__ void __launch_bounds__(BLOCK)
    conv2d_v4_pipelined_kernel(const float* __restrict__ x, const float* __restrict__ arranged,
                               float* __restrict__ y, Conv conv, int chunk) {
  extern __shared__ __align__(16) float shared[];
  const Halo<BI, BJ> halo(conv);
  const Place place(conv, x);
  const int taps = conv.KH * conv.KW, length = conv.channels() * taps;
  const int buffer = chunk * (taps * BO + halo.plane());  // elements
  const float* from = arranged + place.strip * length * BO;

  const auto copy = [&](int c0, float* to) {
    const int channels = min(chunk, conv.channels() - c0);
    for (int e = threadIdx.x * 4; e < channels * taps * BO; e += BLOCK * 4) {
      ptx::cp_async<16>(to + e, from + c0 * taps * BO + e);
    }
    halo.load<true>(to + chunk * taps * BO, place.image + int64_t{c0} * conv.H * conv.W, conv,
                    place.i0 * conv.stride - conv.padding, place.j0 * conv.stride - conv.padding,
                    channels);
  };
  float sums[TO][TJ] = {};
  copy(0, shared);
  ptx::cp_async_commit();
  for (int c0 = 0, turn = 0; c0 < conv.channels(); c0 += chunk, turn ^= 1) {
    const float* weights = shared + turn * buffer;
    if (c0 + chunk < conv.channels()) copy(c0 + chunk, shared + (turn ^ 1) * buffer);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();  // this thread's copies for c0; the group of the next channels may run
    __syncthreads();          // those of all threads
    multiply_channels<PLAIN>(sums, weights, weights + chunk * taps * BO, halo, conv, place,
                             min(chunk, conv.channels() - c0));
    __syncthreads();  // all threads are done with the buffer that is filled next
  }
  store_outputs(sums, y, conv, place);
}

Tensor conv2d_v4_pipelined(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                           int64_t dilation, int64_t groups) {
  const Conv conv = check_conv(x, w, stride, padding, dilation, groups);
  const int chunk = channels_per_step(conv, BUFFER);
  if (chunk == 0) {
    fell_back("conv2d_v2_tiled", UNFIT);
    return conv2d_v2_tiled(x, w, stride, padding, dilation, groups);
  }
  const DeviceGuard guard(x);
  require_capability(8, 0, "cp.async");
  require_shared_memory(2 * chunk * bytes_per_channel(conv), "two buffers");
  return launch_blocked(x, w, conv, conv2d_v4_pipelined_kernel<true>,
                        conv2d_v4_pipelined_kernel<false>, chunk,
                        2 * chunk * bytes_per_channel(conv));
}

// ---------------------------------------------------------------------------------------------

#define ARGUMENTS "(Tensor x, Tensor w, int stride=1, int padding=0, int dilation=1, int groups=1)"
RUNG(day31, conv2d_v1_naive, ARGUMENTS " -> Tensor");
RUNG(day31, conv2d_v2_tiled, ARGUMENTS " -> Tensor");
RUNG(day31, conv2d_v3_register_blocked, ARGUMENTS " -> Tensor");
RUNG(day31, conv2d_v4_pipelined, ARGUMENTS " -> Tensor");

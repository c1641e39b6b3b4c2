// Day 60, further: the gradient with respect to x, on all cards from 8.0 on.
//
//   dx[n, h, w, c] = Σ_{r, s, k} dy[n, p, q, k] · w[k, r, s, c]   where p·stride - pad + r·dilation
//                                                                 = h, and q, s the same for w
//
// A phase of the stride is a convolution of dy at stride 1 (gather.cuh), of which threads gather
// the rows, as the main line's v3 does. v4 by TMA is in conv2d_boxes.cu.

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day60/further/gathered.cuh"

// The tap and the channels of a step: channels innermost.
struct Tap {
  int i = 0, j = 0, c = 0;

  __device__ void advance(const Gather& g) {
    if ((c += DEPTH) < g.depth) return;
    c = 0;
    if (++j < g.cols.taps) return;
    j = 0;
    ++i;
  }
  __device__ int of_filter(const Gather& g) const {
    return (g.rows.tap0 + i * g.rows.tap_step) * g.S + g.cols.tap0 + j * g.cols.tap_step;
  }
};

// Where the inputs of the first tap are, for each pixel of which this thread copies chunks.
struct Pixels {
  using Rows = Copies<false>;
  const bf16* image[Rows::COUNT];
  int row[Rows::COUNT], col[Rows::COUNT];

  __device__ Pixels(const Gather& g, int first) {
#pragma unroll
    for (int i = 0; i < Rows::COUNT; ++i) {
      const int pixel = first + Rows::row(i);
      const Pixel at = pixel_at(pixel, g.rows.outputs, g.cols.outputs);
      image[i] = g.from + int64_t{at.n} * g.rows.inputs * g.cols.inputs * g.depth;
      row[i] = pixel < g.pixels() ? at.row * g.rows.scale + g.rows.first : NOWHERE;
      col[i] = at.col * g.cols.scale + g.cols.first;
    }
  }

  // Starts to copy the inputs of one tap, channels [tap.c, tap.c + DEPTH).
  __device__ __forceinline__ void load(bf16* tile, const Gather& g, const Tap& tap) const {
    const int channel = tap.c + Rows::offset();
#pragma unroll
    for (int i = 0; i < Rows::COUNT; ++i) {
      const int r = row[i] + tap.i * g.rows.step, c = col[i] + tap.j * g.cols.step;
      const bool inside =
          r >= 0 && r < g.rows.inputs && c >= 0 && c < g.cols.inputs && channel < g.depth;
      const int64_t offset = (int64_t{r} * g.cols.inputs + c) * g.depth + channel;
      Rows::copy(tile, i, inside ? image[i] + offset : g.from, inside);
    }
  }
};

// Starts to copy the filter for channels [n, n + SIDE) of dx: rows of the tile are output channels
// k, the sum's index.
__device__ __forceinline__ void load_filter(bf16* tile, const Gather& g, const Tap& tap, int n) {
  using Rows = Copies<true>;
  const bf16* filter = g.filter + int64_t{tap.of_filter(g)} * g.filter_channels;
#pragma unroll
  for (int i = 0; i < Rows::COUNT; ++i) {
    const int k = tap.c + Rows::row(i), c = n + Rows::offset();
    const bool inside = k < g.depth && c < g.filter_channels;
    Rows::copy(tile, i, inside ? filter + k * g.filter_row + c : g.filter, inside);
  }
}

__global__ void __launch_bounds__(GATHER_THREADS, 2)
    conv2d_data_gradient_v3_kernel(const __grid_constant__ Gather g, int tiles_n) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) bf16 gathered[];
  const int m = blockIdx.x / tiles_n * SIDE, n = blockIdx.x % tiles_n * SIDE;
  const Pixels pixels(g, m);
  Tap tap;
  float sums[4][4][4] = {};
  multiply_steps<false>(sums, gathered, g.steps(), [&](bf16* a, bf16* b) {
    pixels.load(a, g, tap);
    load_filter(b, g, tap, n);
    tap.advance(g);
  });

  // Through shared memory, so that a warp stores two whole rows of 128 channels at a time.
  __syncthreads();  // all warps have read the last tiles
  each_pair(sums, [&](int row, int col, float left, float right) {
    const uint32_t pair = tiles::pack<bf16>(left, right);
    memcpy(gathered + tiles::swizzled<SIDE>(row, col / CHUNK) + col % CHUNK, &pair, sizeof pair);
  });
  __syncthreads();  // all sums are there
  const int chunk = threadIdx.x % (SIDE / CHUNK), channel = n + chunk * CHUNK;
#pragma unroll
  for (int row = threadIdx.x / (SIDE / CHUNK); row < SIDE; row += GATHER_THREADS * CHUNK / SIDE) {
    if (m + row >= g.pixels() || channel >= g.channels) continue;
    const Pixel at = pixel_at(m + row, g.rows.outputs, g.cols.outputs);
    bf16* to = g.to + at.n * g.to_n + at.row * g.to_row + at.col * g.to_col + channel;
    *reinterpret_cast<uint4*>(to) =
        *reinterpret_cast<const uint4*>(gathered + tiles::swizzled<SIDE>(row, chunk));
  }
#endif
}

void launch_gathered(const Gather& g, cudaStream_t stream) {
  const auto kernel = conv2d_data_gradient_v3_kernel;
  const int tiles_n = ceil_div(g.channels, SIDE);
  const int blocks = ceil_div(g.pixels(), SIDE) * tiles_n;
  if (blocks == 0) return;  // there are no images
  allow_shared(kernel, GATHER_SHARED);
  kernel<<<grid_size(blocks, "x"), GATHER_THREADS, GATHER_SHARED, stream>>>(g, tiles_n);
}

Tensor conv2d_data_gradient_v3(const Tensor& dy, const Tensor& w, int64_t height, int64_t width,
                               int64_t stride, int64_t padding, int64_t dilation) {
  const Conv v = check_data_gradient(dy, w, height, width, stride, padding, dilation);
  const DeviceGuard guard(dy);
  require_gathering();
  Tensor dx = allocate(dy, {v.N, v.H, v.W, v.C});
  for (int row = 0; row < std::min(v.stride, v.H); ++row) {
    for (int col = 0; col < std::min(v.stride, v.W); ++col) {
      launch_gathered(
          gradient_gather(v, data<bf16>(dy), data<bf16>(w), mutable_data<bf16>(dx), row, col),
          current_stream(dy));
    }
  }
  check_launch("conv2d_data_gradient_v3");
  return dx;
}

RUNG(day60, conv2d_data_gradient_v3, DATA_GRADIENT);

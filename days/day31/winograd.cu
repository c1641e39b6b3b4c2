// Day 31, v4: 3 × 3 filters by Winograd's minimal filtering F(2×2, 3×3). The ladder stands in
// conv2d_tiled.cu.
//
//   Y = Aᵀ · [(G · g · Gᵀ) ⊙ (Bᵀ · d · B)] · A
//
// d: a tile of 4 × 4 inputs of one channel, g: its 3 × 3 weights, Y: 2 × 2 outputs. The product ⊙
// of elements takes 16 multiplications, the direct form 36. Channels are added up before Aᵀ … A, so
// each of the 16 places in the tile is a matrix product of its own. P: tiles of all images.
//
//   U = G · g · Gᵀ: (16, C, O)    V = Bᵀ · d · B: (16, C, P)    M = Uᵀ · V: (16, O, P)
//
// Operations: 2 · 16 · C · O · P, 4/9 of the direct form. Neighbouring tiles overlap by two rows or
// columns, so V has four times the elements of x; M has four times those of y. Both are written and
// read once.
//
// Run: python run_day.py 31

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12
#include "days/day31/conv.cuh"

#include <algorithm>
#include <limits>

constexpr int BN = 128;     // tiles per block
constexpr int BK = 8;       // channels per step of the product
constexpr int BLOCK = 128;  // threads of the transforms, one tile each
static_assert(BLOCK == BN, "the tiles of a block of the transforms are of one channel");

// The sizes of U, V and M. Zeros fill up C, O and P to whole tiles of the product, which therefore
// has no edges.
struct Sizes {
  int down, across, tiles;  // along an image, and in all images
  int C, O, P;

  // Elements from one of the 16 places to the next.
  __host__ __device__ int64_t U() const { return int64_t{C} * O; }
  __host__ __device__ int64_t V() const { return int64_t{C} * P; }
  __host__ __device__ int64_t M() const { return int64_t{O} * P; }
};

struct Two {
  float at[2];
};
struct Four {
  float at[4];
};

// F(2, 3): two outputs of a filter with three taps from four inputs, by 4 multiplications instead
// of 6: output_transform(filter_transform(g) ⊙ input_transform(d)).
__device__ Four filter_transform(float g0, float g1, float g2) {  // G
  const float even = (g0 + g2) / 2, odd = g1 / 2;
  return {g0, even + odd, even - odd, g2};
}

__device__ Four input_transform(float d0, float d1, float d2, float d3) {  // Bᵀ
  return {d0 - d2, d1 + d2, d2 - d1, d1 - d3};
}

__device__ Two output_transform(float m0, float m1, float m2, float m3) {  // Aᵀ
  return {m0 + m1 + m2, m1 - m2 - m3};
}

// One thread per pair of channels. Neighbouring threads have neighbouring output channels.
__global__ void __launch_bounds__(BLOCK)
    transform_filters_kernel(const float* __restrict__ w, float* __restrict__ U, Conv conv,
                             Sizes s) {
  const int64_t index = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t c = index / s.O, o = index % s.O;
  const bool inside = c < conv.C && o < conv.O;
  const float* g = w + (o * conv.C + c) * 9;
  Four columns[3];
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    columns[q] = inside ? filter_transform(g[q], g[3 + q], g[6 + q]) : Four{};
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Four row = filter_transform(columns[0].at[i], columns[1].at[i], columns[2].at[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) U[(i * 4 + j) * s.U() + index] = row.at[j];
  }
}

// One thread per channel and tile. Neighbouring threads have neighbouring tiles.
__global__ void __launch_bounds__(BLOCK)
    transform_inputs_kernel(const float* __restrict__ x, float* __restrict__ V, Conv conv,
                            Sizes s) {
  const int blocks = s.P / BLOCK;
  const int c = blockIdx.x / blocks, tile = blockIdx.x % blocks * BLOCK + threadIdx.x;
  const int left = tile % s.across * 2 - conv.padding;
  const int top = tile / s.across % s.down * 2 - conv.padding;
  const int64_t n = tile / s.across / s.down;
  const bool exists = c < conv.C && tile < s.tiles;
  const float* image = x + (n * conv.C + c) * conv.H * conv.W;
  Four columns[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    float d[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int row = top + p, col = left + q;
      const bool inside = exists && row >= 0 && row < conv.H && col >= 0 && col < conv.W;
      d[p] = inside ? image[int64_t{row} * conv.W + col] : 0.0f;
    }
    columns[q] = input_transform(d[0], d[1], d[2], d[3]);
  }
  float* to = V + int64_t{c} * s.P + tile;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Four row =
        input_transform(columns[0].at[i], columns[1].at[i], columns[2].at[i], columns[3].at[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[(i * 4 + j) * s.V()] = row.at[j];
  }
}

// A thread's part of a tile of BK × WIDTH elements, in registers between global and shared memory.
template <int WIDTH, int THREADS>
struct Staged {
  static constexpr int ACROSS = WIDTH / 4, COUNT = BK * ACROSS / THREADS;
  static_assert(COUNT * THREADS == BK * ACROSS, "all threads have the same work");
  float4 packs[COUNT];

  __device__ void load(const float* from, int64_t pitch) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int e = threadIdx.x + i * THREADS;
      packs[i] = *reinterpret_cast<const float4*>(from + e / ACROSS * pitch + e % ACROSS * 4);
    }
  }

  __device__ void store(float (&tile)[BK][WIDTH]) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int e = threadIdx.x + i * THREADS;
      *reinterpret_cast<float4*>(&tile[e / ACROSS][e % ACROSS * 4]) = packs[i];
    }
  }
};

// One of the 16 products M = Uᵀ · V. A block computes BM × BN elements of it, a thread 8 × 8: rows
// m + {0 … 3} and 16 further on, columns n + {0 … 3} and 32 further on. A warp has 32 × 64.
template <int BM>
__global__ void __launch_bounds__(BM* BN / 64, 2)
    winograd_products_kernel(const float* __restrict__ U, const float* __restrict__ V,
                             float* __restrict__ M, Sizes s) {
  constexpr int THREADS = BM * BN / 64;
  __shared__ __align__(16) float a[2][BK][BM], b[2][BK][BN];
  // Blocks that follow each other read the same tile of V.
  const int strips = s.O / BM, across = s.P / BN;
  const int64_t o0 = blockIdx.x % strips * BM, p0 = blockIdx.x / strips % across * BN;
  const int64_t place = blockIdx.x / strips / across;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int m = warp / 2 * 32 + lane / 8 * 4, n = warp % 2 * 64 + lane % 8 * 4;
  const float *from_u = U + place * s.U() + o0, *from_v = V + place * s.V() + p0;

  Staged<BM, THREADS> next_a;
  Staged<BN, THREADS> next_b;
  next_a.load(from_u, s.O);
  next_b.load(from_v, s.P);
  next_a.store(a[0]);
  next_b.store(b[0]);
  __syncthreads();  // the first channels are in shared memory

  float sums[8][8] = {};
  const int steps = s.C / BK;
  for (int step = 0; step < steps; ++step) {
    const int now = step % 2;
    const bool more = step + 1 < steps;
    if (more) {  // these loads are in flight during the multiplications
      next_a.load(from_u += BK * s.O, s.O);
      next_b.load(from_v += int64_t{BK} * s.P, s.P);
    }
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float u[8], v[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(u + half * 4) =
            *reinterpret_cast<const float4*>(&a[now][k][m + half * 16]);
        *reinterpret_cast<float4*>(v + half * 4) =
            *reinterpret_cast<const float4*>(&b[now][k][n + half * 32]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] += u[i] * v[j];
      }
    }
    if (more) {
      next_a.store(a[1 - now]);
      next_b.store(b[1 - now]);
      __syncthreads();  // the next channels are complete, and all threads are done with these
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float* row = M + place * s.M() + (o0 + m + i / 4 * 16 + i % 4) * s.P + p0 + n;
    *reinterpret_cast<float4*>(row) = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    *reinterpret_cast<float4*>(row + 32) =
        make_float4(sums[i][4], sums[i][5], sums[i][6], sums[i][7]);
  }
}

// One thread per output channel and tile: 2 × 2 outputs, those of the last tiles may not exist.
__global__ void __launch_bounds__(BLOCK)
    transform_outputs_kernel(const float* __restrict__ M, float* __restrict__ y, Conv conv,
                             Sizes s) {
  const int blocks = s.P / BLOCK;
  const int o = blockIdx.x / blocks, tile = blockIdx.x % blocks * BLOCK + threadIdx.x;
  if (tile >= s.tiles) return;
  const int j = tile % s.across * 2, i = tile / s.across % s.down * 2;
  const int64_t n = tile / s.across / s.down;
  const float* from = M + int64_t{o} * s.P + tile;
  Two columns[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    columns[q] = output_transform(from[q * s.M()], from[(4 + q) * s.M()], from[(8 + q) * s.M()],
                                  from[(12 + q) * s.M()]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (i + r >= conv.OH) continue;
    const Two row =
        output_transform(columns[0].at[r], columns[1].at[r], columns[2].at[r], columns[3].at[r]);
    float* to = y + ((n * conv.O + o) * conv.OH + i + r) * conv.OW + j;
    if (conv.OW % 2 == 0) {  // one store for two
      *reinterpret_cast<float2*>(to) = make_float2(row.at[0], row.at[1]);
    } else {
      to[0] = row.at[0];
      if (j + 1 < conv.OW) to[1] = row.at[1];
    }
  }
}

Sizes sizes_of(const Conv& conv) {
  Sizes s{};
  s.down = ceil_div(conv.OH, 2);
  s.across = ceil_div(conv.OW, 2);
  s.tiles = bounded(conv.N * s.down * s.across, 1, std::numeric_limits<int>::max() - BN,
                    "x, its number of 2 × 2 outputs per channel");
  s.C = ceil_div(std::max(conv.C, 1), BK) * BK;
  s.O = ceil_div(conv.O, 64) * 64;
  s.P = ceil_div(s.tiles, BN) * BN;
  return s;
}

template <int BM>
void launch_products(const Tensor& U, const Tensor& V, Tensor& M, const Sizes& s) {
  const int64_t blocks = int64_t{16} * (s.O / BM) * (s.P / BN);
  winograd_products_kernel<BM><<<grid_size(blocks, "x"), BM * BN / 64, 0, current_stream(V)>>>(
      data<float>(U), data<float>(V), mutable_data<float>(M), s);
  check_launch("winograd_products");
}

// v4 against v3: fewer multiplications. The filters and the inputs are transformed, so that 16
// matrix products take the place of the convolution, and their results are transformed back.
Tensor conv2d_v4_winograd(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                          int64_t dilation, int64_t groups) {
  const Conv conv = check_conv(x, w, stride, padding, dilation, groups);
  STD_TORCH_CHECK(conv.KH == 3 && conv.KW == 3, "w: expected a filter of 3 × 3, got ", conv.KH,
                  " × ", conv.KW);
  STD_TORCH_CHECK(stride == 1, "stride: expected 1, got ", stride);
  STD_TORCH_CHECK(dilation == 1, "dilation: expected 1, got ", dilation);
  STD_TORCH_CHECK(groups == 1, "groups: expected 1, got ", groups);
  const DeviceGuard guard(x);
  Tensor y = new_output(x, conv);
  if (y.numel() == 0) return y;
  const Sizes s = sizes_of(conv);
  const Tensor U = allocate(x, {16, s.C, s.O});
  const Tensor V = allocate(x, {16, s.C, s.P});
  Tensor M = allocate(x, {16, s.O, s.P});
  const cudaStream_t stream = current_stream(x);

  // C · O is a multiple of BLOCK.
  transform_filters_kernel<<<grid_size(s.U() / BLOCK, "w"), BLOCK, 0, stream>>>(
      data<float>(w), mutable_data<float>(U), conv, s);
  check_launch("transform_filters");
  transform_inputs_kernel<<<grid_size(s.V() / BLOCK, "x"), BLOCK, 0, stream>>>(
      data<float>(x), mutable_data<float>(V), conv, s);
  check_launch("transform_inputs");
  if (s.O % 128 == 0) {
    launch_products<128>(U, V, M, s);
  } else {
    launch_products<64>(U, V, M, s);
  }
  transform_outputs_kernel<<<grid_size(int64_t{conv.O} * (s.P / BLOCK), "x"), BLOCK, 0, stream>>>(
      data<float>(M), mutable_data<float>(y), conv, s);
  check_launch("transform_outputs");
  return y;
}

RUNG(day31, conv2d_v4_winograd,
     "(Tensor x, Tensor w, int stride=1, int padding=0, int dilation=1, int groups=1) -> Tensor");

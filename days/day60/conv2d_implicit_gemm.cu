// Day 60: convolution as an implicit GEMM on tensor cores
//
//   y[n, p, q, k] = Σ_{r, s, c} x[n, p·stride - pad + r·dilation, q·stride - pad + s·dilation, c]
//                              · w[k, r, s, c]
//
// x: (N, H, W, C), w: (K, R, S, C), y: (N, P, Q, K), bf16; sums in fp32; zeros outside of x. As a
// product: im2col's matrix (N·P·Q) × (R·S·C), whose rows are the inputs of an output pixel, by w.
// 32 × 56 × 56 pixels, C = K = 128, 3 × 3: 29.6 GFLOP; x, w, y have 52 MB, the matrix 231 MB.
//
//   v1 im2col      a kernel stores the matrix, another one multiplies it with the filter
//   v2 implicit    the product's copies find each 16 bytes of the matrix in x: nothing is stored
//   v3 additions   what v2 divides at every step, it divides once: a step is an addition
//
// Run: python run_day.py 60

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/mma_tiles.cuh"      // taught in day 26
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day60/conv.cuh"

// A block computes BM pixels × BN output channels, each of its 8 warps 64 × 32. A step takes BK
// columns of the matrix, rows of 128 bytes in shared memory. Three stages are 96 KB: two blocks per
// multiprocessor with compute capability 9.0, one with 8.6.
constexpr int BM = 128, BN = 128, BK = 64, THREADS = 256, STAGES = 3;
constexpr int TILE = BM * BK;  // elements of a tile, of the matrix or of the filter
constexpr size_t SHARED = 2 * STAGES * TILE * sizeof(bf16);

// A thread copies COPIES chunks of a tile: the same columns of 4 rows.
constexpr int COPIES = TILE / CHUNK / THREADS;
__device__ __forceinline__ int row_of_copy(int i) {
  return threadIdx.x / (BK / CHUNK) + i * (BM / COPIES);
}
__device__ __forceinline__ int column_of_copies() {
  return threadIdx.x % (BK / CHUNK) * CHUNK;
}

// Starts this thread's copy i of a tile; zeros where `from` is null.
__device__ __forceinline__ void copy(bf16* tile, int i, const bf16* from) {
  bf16* to = tile + tiles::swizzled<BK>(row_of_copy(i), column_of_copies() / CHUNK);
  ptx::cp_async_zero_fill<16>(to, from, from ? 16 : 0);
}

// Starts to copy a tile of a stored matrix of `rows` rows: its rows from `first` on, and this
// thread's columns from `column` on.
__device__ __forceinline__ void copy_stored(bf16* tile, const bf16* matrix, int first, int rows,
                                            int column, int columns) {
#pragma unroll
  for (int i = 0; i < COPIES; ++i) {
    const int row = first + row_of_copy(i);
    const bool inside = row < rows && column < columns;
    copy(tile, i, inside ? matrix + int64_t{row} * columns + column : nullptr);
  }
}

// sums += the products of one step, whose tiles of the matrix and of the filter are in `stage`.
__device__ __forceinline__ void multiply_step(float (&sums)[4][4][4], const bf16* stage) {
  const int warp = threadIdx.x / 32, m0 = warp / 4 * 64, n0 = warp % 4 * 32;
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    uint32_t b[2][2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) tiles::load_b_transposed<BK>(b[j], stage + TILE, n0 + j * 16, k);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t a[4];
      tiles::load_a<BK>(a, stage, m0 + i * 16, k);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        ptx::mma_m16n8k16<bf16>(sums[i][j], a, b[j / 2][j % 2], sums[i][j]);
      }
    }
  }
}

// Stores the block's sums, in pairs of neighbouring channels. y: (pixels, K).
__device__ __forceinline__ void store_tile(const float (&sums)[4][4][4], bf16* y, int m, int n,
                                           const Conv& v) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4 * 4 * 2; ++i) {  // two rows of each of 4 × 4 fragments
    const float* pair = &sums[i / 8][i / 2 % 4][i % 2 * 2];
    const int row = m + warp / 4 * 64 + i / 8 * 16 + i % 2 * 8 + lane / 4;
    const int channel = n + warp % 4 * 32 + i / 2 % 4 * 8 + lane % 4 * 2;
    if (row >= v.pixels() || channel >= v.K) continue;
    *reinterpret_cast<__nv_bfloat162*>(y + int64_t{row} * v.K + channel) =
        __floats2bfloat162_rn(pair[0], pair[1]);
  }
}

// Where x has element (pixel, column) of the matrix, and the 7 beside it. Null for zeros: outside
// of the image, and beyond the matrix.
__device__ __forceinline__ const bf16* input_of(const bf16* x, const Conv& v, int pixel,
                                                int column) {
  if (pixel >= v.pixels() || column >= v.columns()) return nullptr;
  const int n = pixel / v.Q / v.P, p = pixel / v.Q % v.P, q = pixel % v.Q;
  const int r = column / v.C / v.S, s = column / v.C % v.S, c = column % v.C;
  const int row = p * v.stride - v.padding + r * v.dilation;
  const int col = q * v.stride - v.padding + s * v.dilation;
  if (row < 0 || row >= v.H || col < 0 || col >= v.W) return nullptr;
  return x + ((int64_t{n} * v.H + row) * v.W + col) * v.C + c;
}

// v1: the matrix is stored, and multiplied by a product that knows nothing of images.
__global__ void im2col_kernel(const bf16* x, bf16* matrix, Conv v) {
  const int pixel = blockIdx.x * (BM / COPIES) + row_of_copy(0);
  if (pixel >= v.pixels()) return;
  for (int column = column_of_copies(); column < v.columns(); column += BK) {
    const bf16* from = input_of(x, v, pixel, column);
    *reinterpret_cast<uint4*>(matrix + int64_t{pixel} * v.columns() + column) =
        from ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }
}

__global__ void __launch_bounds__(THREADS, 2)
    conv2d_v1_im2col_kernel(const bf16* matrix, const bf16* w, bf16* y, Conv v) {
#ifdef HAS_BF16_MMA  // compute capability 8.0; launches require it
  extern __shared__ __align__(128) bf16 stages[];
  const int tiles_n = (v.K + BN - 1) / BN, steps = (v.columns() + BK - 1) / BK;
  const int m = blockIdx.x / tiles_n * BM, n = blockIdx.x % tiles_n * BN;
  float sums[4][4][4] = {};
  const auto load = [&](int step) {
    bf16* stage = stages + step % STAGES * 2 * TILE;
    const int column = step * BK + column_of_copies();
    if (step < steps) {
      copy_stored(stage, matrix, m, v.pixels(), column, v.columns());
      copy_stored(stage + TILE, w, n, v.K, column, v.columns());
    }
    ptx::cp_async_commit();
  };
  for (int step = 0; step < STAGES - 1; ++step) load(step);
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();  // all copies of this step have arrived; all warps have read the step before
    load(step + STAGES - 1);
    multiply_step(sums, stages + step % STAGES * 2 * TILE);
  }
  store_tile(sums, y, m, n, v);
#endif
}

// y, by the product of a rung. a: what its kernel reads the matrix from.
template <typename Kernel>
Tensor launch(Kernel kernel, const Tensor& a, const Tensor& w, const Conv& v, const char* name) {
  const DeviceGuard guard(w);
  require_capability(8, 0, "mma of bfloat16");
  require_shared_memory(SHARED, "three pairs of tiles");
  Tensor y = allocate(w, {v.N, v.P, v.Q, v.K});
  if (y.numel() == 0) return y;  // there are no images
  const int64_t blocks = ceil_div(v.pixels(), BM) * ceil_div(v.K, BN);
  allow_shared(kernel, SHARED);
  kernel<<<grid_size(blocks, "x"), THREADS, SHARED, current_stream(w)>>>(
      data<bf16>(a), data<bf16>(w), mutable_data<bf16>(y), v);
  check_launch(name);
  return y;
}

Tensor conv2d_v1_im2col(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                        int64_t dilation) {
  const Conv v = check_forward(x, w, stride, padding, dilation);
  const DeviceGuard guard(x);
  Tensor matrix = allocate(x, {v.pixels(), v.columns()});
  if (matrix.numel() > 0) {
    const unsigned blocks = grid_size(ceil_div(v.pixels(), BM / COPIES), "x");
    im2col_kernel<<<blocks, THREADS, 0, current_stream(x)>>>(data<bf16>(x),
                                                             mutable_data<bf16>(matrix), v);
    check_launch("im2col");
  }
  return launch(conv2d_v1_im2col_kernel, matrix, w, v, "conv2d_v1_im2col");
}

// v2 against v1: a copy of the matrix's tile reads x, where im2col would have read it.
__global__ void __launch_bounds__(THREADS, 2)
    conv2d_v2_implicit_kernel(const bf16* x, const bf16* w, bf16* y, Conv v) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) bf16 stages[];
  const int tiles_n = (v.K + BN - 1) / BN, steps = (v.columns() + BK - 1) / BK;
  const int m = blockIdx.x / tiles_n * BM, n = blockIdx.x % tiles_n * BN;
  float sums[4][4][4] = {};
  const auto load = [&](int step) {
    bf16* stage = stages + step % STAGES * 2 * TILE;
    const int column = step * BK + column_of_copies();
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < COPIES; ++i) copy(stage, i, input_of(x, v, m + row_of_copy(i), column));
      copy_stored(stage + TILE, w, n, v.K, column, v.columns());
    }
    ptx::cp_async_commit();
  };
  for (int step = 0; step < STAGES - 1; ++step) load(step);
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();  // all copies of this step have arrived; all warps have read the step before
    load(step + STAGES - 1);
    multiply_step(sums, stages + step % STAGES * 2 * TILE);
  }
  store_tile(sums, y, m, n, v);
#endif
}

Tensor conv2d_v2_implicit(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                          int64_t dilation) {
  const Conv v = check_forward(x, w, stride, padding, dilation);
  return launch(conv2d_v2_implicit_kernel, x, w, v, "conv2d_v2_implicit");
}

// The column of a thread's chunks in the matrix: channel c of tap (r, s).
struct Column {
  int r, s, c;
  __device__ __forceinline__ void advance(int columns, const Conv& v) {
    for (c += columns; c >= v.C; c -= v.C) {
      if (++s == v.S) s = 0, ++r;
    }
  }
};

// v3 against v2: a thread's pixels stay the same and its column moves by BK per step, so that the
// loop divides nothing.
__global__ void __launch_bounds__(THREADS, 2)
    conv2d_v3_additions_kernel(const bf16* x, const bf16* w, bf16* y, Conv v) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) bf16 stages[];
  const int tiles_n = (v.K + BN - 1) / BN, steps = (v.columns() + BK - 1) / BK;
  const int m = blockIdx.x / tiles_n * BM, n = blockIdx.x % tiles_n * BN;
  int image[COPIES];               // where the image of each copy's pixel begins in x
  int row0[COPIES], col0[COPIES];  // the pixel's input for tap (0, 0)
#pragma unroll
  for (int i = 0; i < COPIES; ++i) {
    const int pixel = min(m + row_of_copy(i), v.pixels() - 1);  // beyond the last: never stored
    image[i] = pixel / v.Q / v.P * v.H * v.W * v.C;
    row0[i] = pixel / v.Q % v.P * v.stride - v.padding;
    col0[i] = pixel % v.Q * v.stride - v.padding;
  }
  Column at{};
  at.advance(column_of_copies(), v);
  float sums[4][4][4] = {};
  const auto load = [&](int step) {
    bf16* stage = stages + step % STAGES * 2 * TILE;
    const int column = step * BK + column_of_copies();
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < COPIES; ++i) {
        const int row = row0[i] + at.r * v.dilation, col = col0[i] + at.s * v.dilation;
        const bool inside = row >= 0 && row < v.H && col >= 0 && col < v.W && at.r < v.R;
        copy(stage, i, inside ? x + (image[i] + (row * v.W + col) * v.C + at.c) : nullptr);
      }
      at.advance(BK, v);
      copy_stored(stage + TILE, w, n, v.K, column, v.columns());
    }
    ptx::cp_async_commit();
  };
  for (int step = 0; step < STAGES - 1; ++step) load(step);
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();  // all copies of this step have arrived; all warps have read the step before
    load(step + STAGES - 1);
    multiply_step(sums, stages + step % STAGES * 2 * TILE);
  }
  store_tile(sums, y, m, n, v);
#endif
}

Tensor conv2d_v3_additions(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                           int64_t dilation) {
  const Conv v = check_forward(x, w, stride, padding, dilation);
  return launch(conv2d_v3_additions_kernel, x, w, v, "conv2d_v3_additions");
}

RUNG(day60, conv2d_v1_im2col, FORWARD);
RUNG(day60, conv2d_v2_implicit, FORWARD);
RUNG(day60, conv2d_v3_additions, FORWARD);

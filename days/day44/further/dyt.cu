// Day 44: dynamic tanh (DyT), a layer that replaces a norm and needs no sum over the row
//
//   y[r, c] = weight[c] · tanh(alpha · x[r, c]) + bias[c]
//   backward, with t = tanh(alpha · x) and u = gy · weight · (1 - t²):
//   gx = alpha · u      galpha = sum of u · x over all
//   gw[c] = sum_r gy[r, c] · t[r, c]                gb[c] = sum_r gy[r, c]
//
// x, y, gy, gx: (rows, cols) in fp32, fp16 or bf16; weight, bias: (cols,); alpha: (1,), all of one
// dtype. Bytes: 2 · rows · cols · sizeof(T) forward, 3 backward.
//
//   v1 naive        one element per thread
//   v2 vectorised   16 bytes per load; a thread keeps its columns, with their weights in registers
//   v3 approximate  tanh in one instruction where the result has 16 bits
//   backward        as v2, and gw, gb and galpha are summed in registers over many rows
//
// Run: python run_day.py 44 --further

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "days/day44/further/column_sums.cuh"
#include "days/day44/further/rows.cuh"

#include <algorithm>
#include <tuple>

constexpr int BLOCK = 256;

void check_parameter(const Tensor& of, const char* name, const Tensor& x, int64_t size) {
  check(of, name).on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(of, name).same_device(x, "x").size(0, size);
}

// ---------------------------------------------------------------------------------------------
// v1: one element per thread: 2 bytes per load in bf16, and a division for the column.

template <typename T>
__global__ void dyt_v1_naive_kernel(const T* __restrict__ x, const T* __restrict__ alpha,
                                    const T* __restrict__ weight, const T* __restrict__ bias,
                                    T* __restrict__ y, int64_t n, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  const int64_t c = i % cols;
  const float t = tanhf(static_cast<float>(*alpha) * static_cast<float>(x[i]));
  y[i] = static_cast<T>(static_cast<float>(weight[c]) * t + static_cast<float>(bias[c]));
}

void check_dyt(const Tensor& x, const Tensor& alpha, const Tensor& weight, const Tensor& bias) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check_parameter(alpha, "alpha", x, 1);
  check_parameter(weight, "weight", x, x.size(1));
  check_parameter(bias, "bias", x, x.size(1));
}

Tensor dyt_v1_naive(const Tensor& x, const Tensor& alpha, const Tensor& weight,
                    const Tensor& bias) {
  check_dyt(x, alpha, weight, bias);
  return output_like(x, "dyt_v1_naive", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
    dyt_v1_naive_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(alpha), data<T>(weight), data<T>(bias), y, x.numel(), x.size(1));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a thread takes a chunk of columns of four rows at one time, and loads weight and
// bias once. The 32 rows of a block follow each other, so that the resident blocks work in one
// window of the matrix, which moves on, as in a copy.
//
// v3 against v2: tanh.approx (day 10) is one instruction of the special function unit, where tanhf
// computes a polynomial and also an exponential and a reciprocal, and selects one of the results.
// Its relative error is 2^-11: an eighth of the rounding to bf16, 2^-8, and as much as the rounding
// to fp16. fp32 keeps tanhf.

constexpr int ROWS = 4;      // in flight per thread
constexpr int LANES = 32;    // chunks of columns per block
constexpr int RESIDENT = 4;  // blocks per multiprocessor, with 64 registers per thread

template <bool APPROXIMATE, typename T>
__device__ float tanh_of(float x) {
  return APPROXIMATE && sizeof(T) == 2 ? __tanhf(x) : tanhf(x);
}

template <bool APPROXIMATE, typename T, int N>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    dyt_kernel(const Chunk<T, N>* __restrict__ x, const T* __restrict__ alpha,
               const Chunk<T, N>* __restrict__ weight, const Chunk<T, N>* __restrict__ bias,
               Chunk<T, N>* __restrict__ y, int64_t rows, int64_t chunks) {
  const int64_t c = int64_t{blockIdx.x} * LANES + threadIdx.x % LANES;
  if (c >= chunks) return;
  constexpr int step = BLOCK / LANES, BLOCK_ROWS = ROWS * step;
  const int64_t row = int64_t{blockIdx.y} * BLOCK_ROWS + threadIdx.x / LANES;
  const float a = static_cast<float>(*alpha);
  const RawChunk<Chunk<T, N>> weights = load_raw(weight + c), biases = load_raw(bias + c);
  for (int64_t r = row; r < rows; r += int64_t{gridDim.y} * BLOCK_ROWS) {
    RawChunk<Chunk<T, N>> from[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r + k * step < rows) from[k] = load_raw(x + (r + k * step) * chunks + c);
    }
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      if (r + k * step >= rows) break;
      const Chunk<T, N> v = from[k].chunk(), w = weights.chunk(), b = biases.chunk();
      Chunk<T, N> to;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float t = tanh_of<APPROXIMATE, T>(a * static_cast<float>(v.at[i]));
        to.at[i] = static_cast<T>(static_cast<float>(w.at[i]) * t + static_cast<float>(b.at[i]));
      }
      y[(r + k * step) * chunks + c] = to;
    }
  }
}

// Blocks along the rows: at most what `rounds` rounds of a thread need, and what fills the GPU.
unsigned row_blocks(const Tensor& x, int64_t column_blocks, int resident, int rounds) {
  const int64_t enough =
      ceil_div<int64_t>(int64_t{multiprocessor_count(x)} * resident, column_blocks);
  const int64_t needed = ceil_div<int64_t>(x.size(0), BLOCK / LANES * rounds);
  return static_cast<unsigned>(std::max<int64_t>(1, std::min({enough, needed, max_grid_y()})));
}

template <bool APPROXIMATE>
Tensor dyt_in_chunks(const Tensor& x, const Tensor& alpha, const Tensor& weight, const Tensor& bias,
                     const char* name) {
  check_dyt(x, alpha, weight, bias);
  return output_like(x, name, [&](auto zero, auto* y) {
    using T = decltype(zero);
    dispatch_chunk<T>(x.size(1), {&x, &weight, &bias}, [&](auto size) {
      using C = Chunk<T, size>;
      const int64_t chunks = x.size(1) / size, columns = ceil_div<int64_t>(chunks, LANES);
      const int64_t along = ceil_div<int64_t>(x.size(0), BLOCK / LANES * ROWS);
      const dim3 grid(grid_size(columns, "x"),
                      static_cast<unsigned>(std::clamp<int64_t>(along, 1, max_grid_y())));
      dyt_kernel<APPROXIMATE><<<grid, BLOCK, 0, current_stream(x)>>>(
          data<C>(x), data<T>(alpha), data<C>(weight), data<C>(bias), reinterpret_cast<C*>(y),
          x.size(0), chunks);
    });
  });
}

Tensor dyt_v2_vectorised(const Tensor& x, const Tensor& alpha, const Tensor& weight,
                         const Tensor& bias) {
  return dyt_in_chunks<false>(x, alpha, weight, bias, "dyt_v2_vectorised");
}

Tensor dyt_v3_approximate(const Tensor& x, const Tensor& alpha, const Tensor& weight,
                          const Tensor& bias) {
  return dyt_in_chunks<true>(x, alpha, weight, bias, "dyt_v3_approximate");
}

// ---------------------------------------------------------------------------------------------
// backward: the threads of a column add their sums in shared memory, and the blocks in a workspace
// (row_blocks, 2 · cols + column_blocks): gw, gb, and one part of galpha per block.
//
// tanh and its derivative 1 - tanh², without branches.
struct TanhAndSlope {
  float tanh, slope;
};

// With e = exp(-2|v|), which neither overflows nor cancels: tanh = (1 - e) / (1 + e), and the
// derivative is 4e / (1 + e)². 1 - e loses digits near 0, where two terms of the series are exact
// enough for 16 bits.
template <typename T>
__device__ TanhAndSlope tanh_and_slope(float v) {
  const float e = sizeof(T) == 2 ? __expf(-2.0f * fabsf(v)) : expf(-2.0f * fabsf(v));
  const float r = __fdividef(1.0f, 1.0f + e);
  const float slope = 4.0f * e * r * r;
  if constexpr (sizeof(T) == 4) return {tanhf(v), slope};
  const float large = copysignf((1.0f - e) * r, v), small = v - v * v * v * (1.0f / 3);
  return {fabsf(v) < 1.0f / 64 ? small : large, slope};
}

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    dyt_backward_kernel(const Chunk<T, N>* __restrict__ gy, const Chunk<T, N>* __restrict__ x,
                        const T* __restrict__ alpha, const Chunk<T, N>* __restrict__ weight,
                        Chunk<T, N>* __restrict__ gx, float* __restrict__ gw,
                        float* __restrict__ gb, float* __restrict__ galpha, int64_t rows,
                        int64_t chunks) {
  constexpr int GROUPS = BLOCK / LANES;
  __shared__ float sums[2][GROUPS][N][LANES];
  __shared__ float of_warps[BLOCK / 32];
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const int64_t c = int64_t{blockIdx.x} * LANES + lane;
  const int64_t step = int64_t{gridDim.y} * GROUPS;
  const float a = static_cast<float>(*alpha);
  float mine[2][N] = {}, of_alpha = 0;
  if (c < chunks) {
    const Chunk<T, N> w = weight[c];
#pragma unroll 2
    for (int64_t r = int64_t{blockIdx.y} * GROUPS + group; r < rows; r += step) {
      const Chunk<T, N> upstream = gy[r * chunks + c], from = x[r * chunks + c];
      Chunk<T, N> to;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = static_cast<float>(upstream.at[i]), v = static_cast<float>(from.at[i]);
        const TanhAndSlope t = tanh_and_slope<T>(a * v);
        const float u = g * static_cast<float>(w.at[i]) * t.slope;
        to.at[i] = static_cast<T>(a * u);
        mine[0][i] += g * t.tanh;
        mine[1][i] += g;
        of_alpha += u * v;
      }
      gx[r * chunks + c] = to;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sums[0][group][i][lane] = mine[0][i];
    sums[1][group][i][lane] = mine[1][i];
  }
  of_alpha = sum_of_block(of_alpha, of_warps);  // its barrier: all sums are written
  for (int i = group; i < N && c < chunks; i += GROUPS) {
    float total[2] = {};
    for (int g = 0; g < GROUPS; ++g) {
      total[0] += sums[0][g][i][lane];
      total[1] += sums[1][g][i][lane];
    }
    gw[blockIdx.y * chunks * N + c * N + i] = total[0];
    gb[blockIdx.y * chunks * N + c * N + i] = total[1];
  }
  if (threadIdx.x == 0) galpha[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = of_alpha;
}

using DytGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // gx, galpha, gw, gb

DytGradients dyt_backward(const Tensor& gy, const Tensor& x, const Tensor& alpha,
                          const Tensor& weight) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(gy, "gy").on_gpu().like(x, "x").contiguous();
  check_parameter(alpha, "alpha", x, 1);
  check_parameter(weight, "weight", x, x.size(1));
  const DeviceGuard guard(x);
  Tensor gx = allocate_like(x), galpha = allocate_like(alpha);
  Tensor gw = allocate_like(weight), gb = allocate_like(weight);
  const int64_t cols = x.size(1);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(cols, {&gy, &x, &weight}, [&](auto size) {
      using C = Chunk<T, size>;
      const int64_t chunks = cols / size;
      const int64_t columns = std::max<int64_t>(1, ceil_div<int64_t>(chunks, LANES));
      const unsigned along = row_blocks(x, columns, 8, 8);
      const dim3 grid(grid_size(columns, "x"), along);
      const auto workspace = [&](int64_t rows, int64_t width) {
        return allocate(x, {rows, width}, ScalarType::Float);
      };
      const Tensor gws = workspace(along, cols), gbs = workspace(along, cols);
      const Tensor galphas = workspace(along * columns, 1);
      dyt_backward_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
          data<C>(gy), data<C>(x), data<T>(alpha), data<C>(weight), mutable_data<C>(gx),
          mutable_data<float>(gws), mutable_data<float>(gbs), mutable_data<float>(galphas),
          x.size(0), chunks);
      if (cols > 0) {
        add_columns(gws, gw);
        add_columns(gbs, gb);
      }
      add_columns(galphas, galpha);
    });
  });
  check_launch("dyt_backward");
  return {gx, galpha, gw, gb};
}

// ---------------------------------------------------------------------------------------------

#define DYT "(Tensor x, Tensor alpha, Tensor weight, Tensor bias) -> Tensor"
RUNG(day44, dyt_v1_naive, DYT);
RUNG(day44, dyt_v2_vectorised, DYT);
RUNG(day44, dyt_v3_approximate, DYT);
RUNG(day44, dyt_backward,
     "(Tensor gy, Tensor x, Tensor alpha, Tensor weight) -> (Tensor, Tensor, Tensor, Tensor)");

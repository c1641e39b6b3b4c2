// Day 65: layer normalisation and batch normalisation, in CUDA and in Triton
//
//   y[r, c] = (x[r, c] - m) / sqrt(v + eps) · w[c] + b[c]       x, y: (rows, cols), w, b: (cols,)
//
//   layer norm   m and v: mean and variance of row r
//   batch norm   m and v: mean and variance of column c, as in a training step
//
// x in fp32, fp16 or bf16; statistics in fp32. Bytes: layer norm reads x and writes y. Batch norm
// reads x twice, once for the statistics and once for y, unless x fits into L2.
// Operations: about 10 per element, so memory is the limit.
//
//   layer_norm v1 two_reads  one block per row; statistics by tiles, and x again for y
//   layer_norm v2 row        the row stays in the block's registers
//   batch_norm v1 strip      one block per strip of columns: few blocks, of all rows
//   batch_norm v2 slices     a strip is cut into slices of rows, whose statistics are merged
//
// norm_twins_triton.py has the twins. Run: python run_day.py 65

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/chunk.cuh"    // taught in day 35
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <algorithm>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int LOADS = 4;                   // in flight per thread
constexpr int64_t MOST_BLOCKS = 2048;      // of batch norm: three rounds or more on an H200
constexpr int SLICE_ROWS = WARPS * LOADS;  // a slice has a multiple of these

// Of some elements: their number, their mean, and the sum of squared distances from it (day 9).
struct Moments {
  float count, mean, m2;
};

// The moments of both together (Chan, Golub & LeVeque, 1983).
__device__ inline Moments merge(Moments a, Moments b) {
  if (b.count == 0) return a;  // if a has no elements either, share would be 0 / 0
  const float count = a.count + b.count, distance = b.mean - a.mean;
  const float share = __fdividef(b.count, count);  // a few instructions instead of a call
  return {count, a.mean + distance * share, a.m2 + b.m2 + distance * distance * (a.count * share)};
}

// Two passes over `values` in registers: the mean, then squared distances from it. Those that
// `counted` says no to are 0, and left out. The mean is rounded, and the mean of the distances
// from it is what rounding took away: of equal values, m2 is 0.
template <int COUNT, typename F>
__device__ inline Moments moments_of(const float (&values)[COUNT], F&& counted) {
  float count = 0, sum = 0, rest = 0, m2 = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) count += counted(i), sum += values[i];
  const float inverse = 1 / fmaxf(count, 1), mean = sum * inverse;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float distance = counted(i) ? values[i] - mean : 0;
    rest += distance, m2 += distance * distance;
  }
  return {count, mean + rest * inverse, m2 - rest * (rest * inverse)};
}

// Rounding may leave an m2 below 0. The comparison passes NaN on.
__device__ inline float scale_of(Moments all, float eps) {
  return rsqrtf((all.m2 < 0 ? 0 : all.m2 / all.count) + eps);
}

void check_inputs(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(weight, "weight").same_device(x, "x").size(0, x.size(1));
  check(bias, "bias").on_gpu().like(weight, "weight").contiguous();
  STD_TORCH_CHECK(eps >= 0, "eps: expected 0 or more, got ", eps);  // also refuses NaN
}

// What kernels get, in chunks of N elements.
template <typename T, int N>
struct Arguments {
  const Chunk<T, N>*x, *weight, *bias;
  Chunk<T, N>* y;
  int64_t rows, chunks;  // per row
  float eps;
};

// Makes y and calls launch(arguments).
template <typename Launch>
Tensor normalise(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                 const char* kernel, Launch&& launch) {
  return output_like(x, kernel, [&](auto zero, auto* y) {
    using T = decltype(zero);
    dispatch_chunk<T>(x.size(1), {&x, &weight, &bias}, [&](auto n) {
      using C = Chunk<T, n>;
      launch(Arguments<T, n>{data<C>(x), data<C>(weight), data<C>(bias), reinterpret_cast<C*>(y),
                             x.size(0), x.size(1) / n, static_cast<float>(eps)});
    });
  });
}

// ---------------------------------------------------------------------------------------------
// Layer norm. A tile is LOADS chunks per thread, BLOCK chunks apart, of one row.

template <typename T, int N>
struct RowTile {
  float at[LOADS * N];
  int64_t first, last;  // chunks of the row

  __device__ void load(const Chunk<T, N>* row, int64_t from, int64_t chunks) {
    first = from, last = chunks;
    RawChunk<Chunk<T, N>> loaded[LOADS] = {};
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      if (first + k * BLOCK < last) loaded[k] = load_raw(row + first + k * BLOCK);
    }
#pragma unroll
    for (int i = 0; i < LOADS * N; ++i) at[i] = static_cast<float>(loaded[i / N].chunk().at[i % N]);
  }

  __device__ Moments moments() const {
    return moments_of(at, [&](int i) { return first + i / N * BLOCK < last; });
  }

  __device__ void store(const Arguments<T, N>& p, int64_t start, Moments all) const {
    const float scale = scale_of(all, p.eps);
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      const int64_t c = first + k * BLOCK;
      if (c >= last) break;
      const Chunk<T, N> weight = load_whole(p.weight + c), bias = load_whole(p.bias + c);
      Chunk<T, N> y;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float normal = (at[k * N + n] - all.mean) * scale;
        y.at[n] = static_cast<T>(normal * static_cast<float>(weight.at[n]) +
                                 static_cast<float>(bias.at[n]));
      }
      p.y[start + c] = y;
    }
  }
};

// The moments of all threads as one, in every thread, where the last bits may differ: each lane
// merges in an order of its own. All threads of the block must call it, once.
__device__ inline Moments block_merge(Moments mine) {
  __shared__ Moments of_warp[WARPS];
  const auto warp_merge = [&] {
    for (int distance = 16; distance > 0; distance /= 2) {
      const Moments other{__shfl_xor_sync(0xffffffff, mine.count, distance),
                          __shfl_xor_sync(0xffffffff, mine.mean, distance),
                          __shfl_xor_sync(0xffffffff, mine.m2, distance)};
      mine = merge(mine, other);
    }
  };
  warp_merge();
  const int lane = threadIdx.x % 32;
  if (lane == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();  // every warp waits for the moments of all warps
  mine = lane < WARPS ? of_warp[lane] : Moments{};
  warp_merge();
  return mine;
}

// v1: x is read twice, tile by tile.
template <typename T, int N>
__global__ void __launch_bounds__(BLOCK) layer_norm_v1_two_reads_kernel(const Arguments<T, N> p) {
  const int64_t start = blockIdx.x * p.chunks;
  RowTile<T, N> tile;
  Moments mine{};
  for (int64_t c = threadIdx.x; c < p.chunks; c += BLOCK * LOADS) {
    tile.load(p.x + start, c, p.chunks);
    mine = merge(mine, tile.moments());
  }
  const Moments all = block_merge(mine);
  for (int64_t c = threadIdx.x; c < p.chunks; c += BLOCK * LOADS) {
    tile.load(p.x + start, c, p.chunks);
    tile.store(p, start, all);
  }
}

Tensor layer_norm_v1_two_reads(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               double eps) {
  check_inputs(x, weight, bias, eps);
  return normalise(x, weight, bias, eps, "layer_norm_v1_two_reads", [&](const auto& p) {
    layer_norm_v1_two_reads_kernel<<<grid_size(p.rows, "x"), BLOCK, 0, current_stream(x)>>>(p);
  });
}

// v2 against v1: a row of one tile, 16 KB, stays in registers.
template <typename T, int N>
__global__ void __launch_bounds__(BLOCK) layer_norm_v2_row_kernel(const Arguments<T, N> p) {
  const int64_t start = blockIdx.x * p.chunks;
  RowTile<T, N> tile;
  tile.load(p.x + start, threadIdx.x, p.chunks);
  tile.store(p, start, block_merge(tile.moments()));
}

Tensor layer_norm_v2_row(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_inputs(x, weight, bias, eps);
  return normalise(x, weight, bias, eps, "layer_norm_v2_row", [&](const auto& p) {
    const unsigned grid = grid_size(p.rows, "x");
    if (p.chunks <= BLOCK * LOADS) {
      layer_norm_v2_row_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(p);
    } else {
      fell_back("layer_norm_v1_two_reads", "a row that is longer than a tile");
      layer_norm_v1_two_reads_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(p);
    }
  });
}

// ---------------------------------------------------------------------------------------------
// Batch norm. A strip is 32 chunks of columns, one for each lane. Each of a block's warps takes
// LOADS rows of a slice at a time, WARPS rows apart: loads are coalesced along the row, and the
// statistics of a column need no shuffle.

struct Slices {
  int64_t length;  // rows of a slice; the last one may be shorter
  unsigned strips, slices;

  __host__ __device__ unsigned blocks() const { return strips * slices; }
};

Slices cut_rows(int64_t rows, int64_t chunks, int64_t most_blocks) {
  const int64_t strips = ceil_div<int64_t>(chunks, 32);
  const int64_t most = std::max<int64_t>(1, most_blocks / strips);
  const int64_t units = ceil_div<int64_t>(ceil_div<int64_t>(rows, SLICE_ROWS), most);
  const int64_t length = units * SLICE_ROWS;
  return {length, grid_size(strips, "x"), grid_size(ceil_div(rows, length), "x")};
}

// Calls f(rows of the slice that a thread loads next, the first of them) for all of a slice. The
// loads of LOADS rows are issued before the first one is used.
template <typename T, int N, typename F>
__device__ void for_rows(const Arguments<T, N>& p, const Slices& s, int64_t slice, int64_t chunk,
                         F&& f) {
  const int64_t last = min((slice + 1) * s.length, p.rows);
  for (int64_t row = slice * s.length + threadIdx.x / 32; row < last; row += SLICE_ROWS) {
    RawChunk<Chunk<T, N>> loaded[LOADS] = {};
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      const bool there = row + k * WARPS < last && chunk < p.chunks;
      if (there) loaded[k] = load_raw(p.x + (row + k * WARPS) * p.chunks + chunk);
    }
    f(loaded, row, last);
  }
}

// The moments of a slice's columns, stored as (slices, cols).
template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_reduce_kernel(const Arguments<T, N> p, const Slices s, Moments* parts) {
  __shared__ Moments of_warp[WARPS][32 * N];
  const int lane = threadIdx.x % 32;
  const int64_t strip = blockIdx.x % s.strips, slice = blockIdx.x / s.strips;
  float count = 0, mean[N] = {}, m2[N] = {};
  for_rows(p, s, slice, strip * 32 + lane, [&](const auto& loaded, int64_t row, int64_t last) {
    const auto there = [&](int k) { return row + k * WARPS < last; };
    float here = 0;
    for (int k = 0; k < LOADS; ++k) here += there(k);
    const float share = here / (count + here);  // one division for all columns
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float column[LOADS];
      for (int k = 0; k < LOADS; ++k) column[k] = static_cast<float>(loaded[k].chunk().at[n]);
      const Moments tile = moments_of(column, there);
      const float distance = tile.mean - mean[n];
      mean[n] += distance * share;
      m2[n] += tile.m2 + distance * distance * (count * share);
    }
    count += here;
  });
  for (int n = 0; n < N; ++n) of_warp[threadIdx.x / 32][lane * N + n] = {count, mean[n], m2[n]};
  __syncthreads();  // the moments of all warps are there before any thread merges them
  for (int c = threadIdx.x; c < 32 * N; c += BLOCK) {
    const int64_t col = strip * 32 * N + c;
    Moments all = of_warp[0][c];
    for (int w = 1; w < WARPS; ++w) all = merge(all, of_warp[w][c]);
    if (col < p.chunks * N) parts[slice * p.chunks * N + col] = all;
  }
}

// The moments of all slices of 32 columns as one, always merged in the same order: mean and scale.
__global__ void __launch_bounds__(BLOCK)
    batch_norm_merge_kernel(const Moments* __restrict__ parts, float2* __restrict__ statistics,
                            int64_t cols, int slices, float eps) {
  __shared__ Moments of_warp[WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t col = int64_t{blockIdx.x} * 32 + lane;
  Moments mine{};
  for (int s = warp; s < slices && col < cols; s += WARPS)
    mine = merge(mine, parts[s * cols + col]);
  of_warp[warp][lane] = mine;
  __syncthreads();  // the moments of all warps are there before the first one merges them
  if (warp > 0 || col >= cols) return;
  for (int w = 1; w < WARPS; ++w) mine = merge(mine, of_warp[w][lane]);
  statistics[col] = make_float2(mine.mean, scale_of(mine, eps));
}

// The last slices come first: of those that the reduction read last, L2 may still have a part.
template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_apply_kernel(const Arguments<T, N> p, const Slices s,
                            const float2* __restrict__ statistics) {
  const int64_t block = s.blocks() - 1 - blockIdx.x;
  const int64_t slice = block / s.strips, chunk = block % s.strips * 32 + threadIdx.x % 32;
  if (chunk >= p.chunks) return;
  const Chunk<T, N> w = load_whole(p.weight + chunk), b = load_whole(p.bias + chunk);
  float mean[N], scale[N], bias[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float2 of = statistics[chunk * N + n];
    mean[n] = of.x, scale[n] = of.y * static_cast<float>(w.at[n]);
    bias[n] = static_cast<float>(b.at[n]);
  }
  for_rows(p, s, slice, chunk, [&](const auto& loaded, int64_t row, int64_t last) {
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      if (row + k * WARPS >= last) break;
      Chunk<T, N> y;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float normal = (static_cast<float>(loaded[k].chunk().at[n]) - mean[n]) * scale[n];
        y.at[n] = static_cast<T>(normal + bias[n]);
      }
      p.y[(row + k * WARPS) * p.chunks + chunk] = y;
    }
  });
}

// most_blocks: into how many blocks x is cut at most, if it has as many strips or fewer.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  int64_t most_blocks, const char* kernel) {
  check_inputs(x, weight, bias, eps);
  STD_TORCH_CHECK(x.size(0) != 1, "x: expected more than one row, as a variance needs them");
  return normalise(x, weight, bias, eps, kernel, [&]<typename T, int N>(const Arguments<T, N>& p) {
    const Slices s = cut_rows(p.rows, p.chunks, most_blocks);
    const int64_t cols = x.size(1);
    const Tensor parts = allocate(x, {s.slices * cols, 3}, ScalarType::Float);
    const Tensor statistics = allocate(x, {cols, 2}, ScalarType::Float);
    const cudaStream_t stream = current_stream(x);
    batch_norm_reduce_kernel<<<grid_size(int64_t{s.strips} * s.slices, "x"), BLOCK, 0, stream>>>(
        p, s, mutable_data<Moments>(parts));
    batch_norm_merge_kernel<<<grid_size(ceil_div<int64_t>(cols, 32), "x"), BLOCK, 0, stream>>>(
        data<Moments>(parts), mutable_data<float2>(statistics), cols, static_cast<int>(s.slices),
        p.eps);
    batch_norm_apply_kernel<<<s.blocks(), BLOCK, 0, stream>>>(p, s, data<float2>(statistics));
  });
}

// v1: one slice. 4 strips of 1024 columns in bf16 keep 4 multiprocessors busy.
Tensor batch_norm_v1_strip(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return batch_norm(x, weight, bias, eps, 1, "batch_norm_v1_strip");
}

// v2 against v1: as many slices as make MOST_BLOCKS blocks.
Tensor batch_norm_v2_slices(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return batch_norm(x, weight, bias, eps, MOST_BLOCKS, "batch_norm_v2_slices");
}

// ---------------------------------------------------------------------------------------------

#define NORM "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor"
RUNG(day65, layer_norm_v1_two_reads, NORM);
RUNG(day65, layer_norm_v2_row, NORM);
RUNG(day65, batch_norm_v1_strip, NORM);
RUNG(day65, batch_norm_v2_slices, NORM);

// Day 63: reductions in several stages, in CUDA and in Triton
//
//   log-sum-exp   y[r]    = log sum_c exp(x[r, c])
//   softmax       y[r, c] = exp(x[r, c] - m[r]) / sum_c exp(x[r, c] - m[r]), m[r] = max_c x[r, c]
//
// x: (rows, cols) in fp32, fp16 or bf16. Many blocks share a row. Each of them reduces its part to
// a pair: the maximum, and the sum of the exponentials relative to it.
//
// Bytes: log-sum-exp reads x once; softmax reads x and writes y, if a row stays in registers.
// Operations: about 12 per element, most of them for expf.
//
//   log_sum_exp v1 atomics  the blocks of a row merge their pairs into one word by compare-and-swap
//   log_sum_exp v2 stages   they store them, and a second kernel merges them in a fixed order
//   softmax v1 stages       the same first stage; the second kernel reads x again
//   softmax v2 row          one block per row, which keeps it in registers
//
// multi_stage_triton.py has the twins. Run: python run_day.py 63

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/chunk.cuh"        // taught in day 35
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <algorithm>
#include <cstring>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int LOADS = 4;      // in flight per thread: a tile is BLOCK · LOADS chunks of a row
constexpr int64_t TILES = 4;  // per part at least, so that merging costs little beside it
constexpr int64_t MOST_PARTS = 4096;  // of all rows: 31 per multiprocessor of an H200

// The maximum of some elements, and the sum of their exponentials relative to it: of exp(x - max),
// or of exp(x) where the maximum is infinite and the difference would be NaN.
struct Pair {
  float max, sum;
};

// The pair of no elements.
__device__ inline Pair nothing() {
  return {-INFINITY, 0};
}

__device__ inline float base_of(float max) {
  return isinf(max) ? 0.0f : max;
}

// The scale from a sum relative to `from` to one relative to `to`, which is not smaller.
__device__ inline float rescale(float from, float to) {
  return from == to ? 1.0f : expf(from - to);
}

__device__ inline Pair merge(Pair a, Pair b) {
  const float max = fmaxf(a.max, b.max);
  return {max, a.sum * rescale(a.max, max) + b.sum * rescale(b.max, max)};
}

// The pairs of all 32 lanes as one, in every lane. All 32 lanes must call it.
__device__ inline Pair warp_merge(Pair mine) {
  const float max = warp_max(mine.max);
  return {max, warp_sum(mine.sum * rescale(mine.max, max))};
}

// The pairs of all threads as one, in every thread. All threads of the block must call it, once.
__device__ inline Pair block_merge(Pair mine) {
  __shared__ Pair of_warp[WARPS];
  const int lane = threadIdx.x % 32;
  mine = warp_merge(mine);
  if (lane == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();  // every warp waits for the pairs of all warps
  return warp_merge(lane < WARPS ? of_warp[lane] : nothing());
}

// What a thread has of a tile: LOADS chunks of N elements, BLOCK chunks apart.
template <typename T, int N>
struct Tile {
  float at[LOADS][N];

  // Chunks first, first + BLOCK … of a row, those below `last`. Beyond it stands -inf, whose
  // exponential is 0. All loads are issued before the first result is used.
  __device__ void load(const Chunk<T, N>* row, int64_t first, int64_t last) {
    Chunk<T, N> loaded[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      for (int i = 0; i < N; ++i) loaded[k].at[i] = static_cast<T>(-INFINITY);
      if (first + k * BLOCK < last) loaded[k] = load_whole(row + first + k * BLOCK);
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      for (int i = 0; i < N; ++i) at[k][i] = static_cast<float>(loaded[k].at[i]);
    }
  }

  // Returns `before` with all elements added. They become exponentials, relative to the new
  // maximum.
  __device__ Pair absorb(Pair before) {
    float max = before.max;
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      for (int i = 0; i < N; ++i) max = fmaxf(max, at[k][i]);
    }
    float sum = before.sum * rescale(before.max, max);
    const float base = base_of(max);
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      for (int i = 0; i < N; ++i) sum += at[k][i] = expf(at[k][i] - base);
    }
    return {max, sum};
  }

  // Stores exponentials · shrink · scale, a chunk where load() took one from.
  __device__ void store(Chunk<T, N>* row, int64_t first, int64_t last, float shrink, float scale) {
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      Chunk<T, N> chunk;
      for (int i = 0; i < N; ++i) chunk.at[i] = static_cast<T>(at[k][i] * shrink * scale);
      if (first + k * BLOCK < last) row[first + k * BLOCK] = chunk;
    }
  }
};

// How rows are cut. The last part of a row may be shorter.
struct Cut {
  int64_t chunks, length;  // of a row, of a part
  unsigned parts;          // per row
};

Cut cut_rows(const Tensor& x, int n) {
  const int64_t chunks = x.size(1) / n, tiles = ceil_div<int64_t>(chunks, BLOCK * LOADS);
  const int64_t most = std::max<int64_t>(1, MOST_PARTS / x.size(0));
  const int64_t per_part = std::max(TILES, ceil_div(tiles, most));
  const int64_t parts = std::max<int64_t>(1, ceil_div(tiles, per_part));
  return {chunks, per_part * BLOCK * LOADS, static_cast<unsigned>(parts)};
}

// The pair of a block's part of a row, in every thread. All threads of the block must call it.
template <typename T, int N>
__device__ Pair reduce_part(const Chunk<T, N>* __restrict__ x, const Cut& cut) {
  const Chunk<T, N>* row = x + int64_t{blockIdx.x / cut.parts} * cut.chunks;
  const int64_t first = blockIdx.x % cut.parts * cut.length;
  const int64_t last = min(first + cut.length, cut.chunks);
  Pair mine = nothing();
  for (int64_t c = first + threadIdx.x; c < last; c += BLOCK * LOADS) {
    Tile<T, N> tile;
    tile.load(row, c, last);
    mine = tile.absorb(mine);
  }
  return block_merge(mine);
}

void check_rows(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
}

// Makes y, (rows), and calls launch(x's chunks, y's elements, how rows are cut, blocks for that).
template <typename F>
Tensor reduce_rows(const Tensor& x, const char* name, F&& launch) {
  check_rows(x);
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {x.size(0)});
  if (x.size(0) == 0) return y;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(x.size(1), {&x}, [&](auto n) {
      const Cut cut = cut_rows(x, n);
      launch(data<Chunk<T, n>>(x), mutable_data<T>(y), cut, grid_size(x.size(0) * cut.parts, "x"));
    });
  });
  check_launch(name);
  return y;
}

// ---------------------------------------------------------------------------------------------
// v1: a word of 64 bits per row holds a pair. 0 stands for none: no pair has the sum 0 and the
// maximum 0. The order in which blocks come changes the rounding of the sum.

__device__ void merge_atomically(unsigned long long* word, Pair mine) {
  unsigned long long old = 0, seen;
  do {
    seen = old;
    Pair merged = mine;
    if (seen != 0) {
      Pair there;
      memcpy(&there, &seen, sizeof there);
      merged = merge(there, mine);
    }
    unsigned long long bits;
    memcpy(&bits, &merged, sizeof bits);
    old = atomicCAS(word, seen, bits);  // stores only if no other block came in between
  } while (old != seen);
}

template <typename T, int N>
__global__ void log_sum_exp_v1_atomics_kernel(const Chunk<T, N>* __restrict__ x,
                                              unsigned long long* words, Cut cut) {
  const Pair pair = reduce_part(x, cut);
  if (threadIdx.x == 0) merge_atomically(words + blockIdx.x / cut.parts, pair);
}

template <typename T>
__global__ void log_sum_exp_v1_logarithm_kernel(const Pair* __restrict__ pairs, T* __restrict__ y,
                                                int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row < rows) y[row] = static_cast<T>(base_of(pairs[row].max) + logf(pairs[row].sum));
}

Tensor log_sum_exp_v1_atomics(const Tensor& x) {
  return reduce_rows(x, "log_sum_exp_v1", [&](auto* chunks, auto* y, Cut cut, unsigned blocks) {
    const Tensor words = allocate_zeros(x, {x.size(0)}, ScalarType::Long);
    log_sum_exp_v1_atomics_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
        chunks, mutable_data<unsigned long long>(words), cut);
    log_sum_exp_v1_logarithm_kernel<<<grid_size(ceil_div<int64_t>(x.size(0), BLOCK), "x"), BLOCK, 0,
                                      current_stream(x)>>>(data<Pair>(words), y, x.size(0));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: no atomics. Each block stores its pair in a place of its own. The second kernel
// begins when the first has ended, so it sees all pairs, and merges them in the same order always.

template <typename T, int N>
__global__ void log_sum_exp_v2_parts_kernel(const Chunk<T, N>* __restrict__ x,
                                            Pair* __restrict__ pairs, Cut cut) {
  const Pair pair = reduce_part(x, cut);
  if (threadIdx.x == 0) pairs[blockIdx.x] = pair;
}

// The pairs of a row's parts as one, in every thread. All threads of the block must call it, once.
__device__ inline Pair merge_parts(const Pair* __restrict__ pairs, int64_t parts) {
  Pair mine = nothing();
  for (int64_t p = threadIdx.x; p < parts; p += BLOCK) mine = merge(mine, pairs[p]);
  return block_merge(mine);
}

template <typename T>
__global__ void log_sum_exp_v2_merge_kernel(const Pair* __restrict__ pairs, T* __restrict__ y,
                                            int64_t parts) {
  const Pair pair = merge_parts(pairs + blockIdx.x * parts, parts);
  if (threadIdx.x == 0) y[blockIdx.x] = static_cast<T>(base_of(pair.max) + logf(pair.sum));
}

Tensor log_sum_exp_v2_stages(const Tensor& x) {
  return reduce_rows(x, "log_sum_exp_v2", [&](auto* chunks, auto* y, Cut cut, unsigned blocks) {
    const Tensor pairs = allocate(x, {int64_t{blocks}, 2}, ScalarType::Float);
    log_sum_exp_v2_parts_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
        chunks, mutable_data<Pair>(pairs), cut);
    log_sum_exp_v2_merge_kernel<<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
        data<Pair>(pairs), y, cut.parts);
  });
}

// ---------------------------------------------------------------------------------------------
// softmax v1: stage one is that of log_sum_exp_v2. In stage two the blocks have the same parts;
// each merges all pairs of its row, for itself, and reads its part of x again: three passes, not
// two.

// What an exponential relative to pair.max is multiplied by. A row with +inf is all NaN, as in
// PyTorch; in a row of -inf alone it is 1 / 0, and 0 · inf is NaN as well.
__device__ inline float scale_of(Pair pair) {
  return pair.max == INFINITY ? NAN : 1.0f / pair.sum;
}

template <typename T, int N>
__global__ void softmax_v1_stages_kernel(const Chunk<T, N>* __restrict__ x,
                                         const Pair* __restrict__ pairs,
                                         Chunk<T, N>* __restrict__ y, Cut cut) {
  const int64_t row = blockIdx.x / cut.parts, start = row * cut.chunks;
  const int64_t first = blockIdx.x % cut.parts * cut.length;
  const int64_t last = min(first + cut.length, cut.chunks);
  const Pair all = merge_parts(pairs + row * cut.parts, cut.parts);
  for (int64_t c = first + threadIdx.x; c < last; c += BLOCK * LOADS) {
    Tile<T, N> tile;
    tile.load(x + start, c, last);
    tile.absorb({all.max, 0});
    tile.store(y + start, c, last, 1.0f, scale_of(all));
  }
}

template <typename T, int N>
void launch_stages(const Tensor& x, T* y) {
  using C = Chunk<T, N>;
  const Cut cut = cut_rows(x, N);
  const unsigned blocks = grid_size(x.size(0) * cut.parts, "x");
  const Tensor pairs = allocate(x, {int64_t{blocks}, 2}, ScalarType::Float);
  log_sum_exp_v2_parts_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
      data<C>(x), mutable_data<Pair>(pairs), cut);
  softmax_v1_stages_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(data<C>(x), data<Pair>(pairs),
                                                                    reinterpret_cast<C*>(y), cut);
}

Tensor softmax_v1_stages(const Tensor& x) {
  check_rows(x);
  return output_like(x, "softmax_v1_stages", [&](auto zero, auto* y) {
    using T = decltype(zero);
    dispatch_chunk<T>(x.size(1), {&x}, [&](auto n) { launch_stages<T, n>(x, y); });
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a row of one tile, 16 KB, stays in the registers of a block until its sum is
// known.

template <typename T, int N>
__global__ void softmax_v2_row_kernel(const Chunk<T, N>* __restrict__ x,
                                      Chunk<T, N>* __restrict__ y, int64_t chunks) {
  const int64_t start = blockIdx.x * chunks;
  Tile<T, N> tile;
  tile.load(x + start, threadIdx.x, chunks);
  const Pair mine = tile.absorb(nothing());
  const Pair all = block_merge(mine);
  tile.store(y + start, threadIdx.x, chunks, rescale(mine.max, all.max), scale_of(all));
}

Tensor softmax_v2_row(const Tensor& x) {
  check_rows(x);
  return output_like(x, "softmax_v2_row", [&](auto zero, auto* y) {
    using T = decltype(zero);
    dispatch_chunk<T>(x.size(1), {&x}, [&](auto n) {
      using C = Chunk<T, n>;
      const int64_t chunks = x.size(1) / n;
      if (chunks > BLOCK * LOADS) {
        fell_back("softmax_v1_stages", "a row that is longer than a tile");
        return launch_stages<T, n>(x, y);
      }
      softmax_v2_row_kernel<<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
          data<C>(x), reinterpret_cast<C*>(y), chunks);
    });
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day63, log_sum_exp_v1_atomics, "(Tensor x) -> Tensor");
RUNG(day63, log_sum_exp_v2_stages, "(Tensor x) -> Tensor");
RUNG(day63, softmax_v1_stages, "(Tensor x) -> Tensor");
RUNG(day63, softmax_v2_row, "(Tensor x) -> Tensor");

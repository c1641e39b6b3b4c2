// Day 18: everything that a backward pass derives from one gradient, in one launch
//
//   g (B, S, H·D)  gradient of a layer's output; column c = h · D + d belongs to head h
//   heads   (B, H, S, D) bf16   heads[b, h, s, d]   = g[b, s, h·D + d]     split heads, cast
//   heads_t (B, H, D, S) bf16   heads_t[b, h, d, s] = g[b, s, h·D + d]     and transposed (day 21)
//   bias_grad (H·D)      fp32   bias_grad[c] = sum_{b, s} g[b, s, c]
//
// Bytes: read g once, write two bf16 copies: 4 + 2 + 2 = 8 per element of fp32. Separate launches
// move 18. For 16×4096×2048 that is 1.07 GB against 2.4 GB. Operations: one addition per element.
//
//   v1 separate   cast, split heads, transpose, column sums: one launch each
//   v2 fused      one launch, one thread per column: one read of g; 2-byte stores to heads_t
//   v3 tiles      tiles in shared memory: 16-byte accesses, coalesced on both sides
//   The forward operator that this is the gradient of is in merge_heads.cu.
//
// Run: python run_day.py 18

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day18/prep.cuh"

#include <tuple>

// Rows (b, s) that one block sums before it writes a partial result. Writing and reading the
// partial sums moves 2/256 of g's bytes, and 16 × 4096 rows still give 256 blocks per strip of
// columns.
constexpr int CHUNK = 256;

int64_t chunks_of(Sizes n) {
  return int64_t{n.B} * ceil_div<int64_t>(n.S, CHUNK);
}

// strip: columns that one block sums. with_heads_t: whether heads_t is written.
Outputs make_outputs(const Tensor& g, Sizes n, int strip, bool with_heads_t) {
  const auto low = ScalarType::BFloat16;
  const int64_t B = n.B, S = n.S, H = n.H, D = n.D, C = n.C;
  return {
      allocate(g, {n.B, n.H, n.S, n.D}, low),
      with_heads_t ? allocate(g, {B, H, D, S}, low) : allocate(g, {0}, low),
      // Written by the kernel; for a g without rows there is no launch, and the sums are 0.
      g.numel() ? allocate(g, {C}, ScalarType::Float) : allocate_zeros(g, {C}, ScalarType::Float),
      allocate(g, {g.numel() ? chunks_of(n) : 0, C}, ScalarType::Float),
      allocate_zeros(g, {ceil_div<int64_t>(C, strip)}, ScalarType::Int)};
}

// ---------------------------------------------------------------------------------------------
// Sums over all rows in one launch. No block has all rows, and floating-point atomics would add in
// another order in each run. So each block writes its partial sums and increments a counter. The
// last block of a strip to do so adds the partial sums of all chunks, always in the same order.

// Rows [begin, end) of batch b: chunk `number` of `count`.
struct Chunk {
  unsigned number, count, b, begin, end;
};
__device__ Chunk chunk_of(Sizes n, unsigned number) {
  const unsigned per_batch = (n.S + CHUNK - 1) / CHUNK;
  const unsigned begin = number % per_batch * CHUNK;
  return {number, n.B * per_batch, number / per_batch, begin, min(begin + CHUNK, n.S)};
}

// chunk_sum: thread t's sum of column first + t, t in [0, STRIP), over the chunk's rows. All
// threads of the block must call it.
template <int STRIP>
__device__ void finish_column_sums(float chunk_sum, Chunk rows, unsigned first, unsigned C,
                                   float* partial, int* arrived, float* bias_grad) {
  constexpr int PARTS = BLOCK / STRIP;  // threads that share a column in the last block
  __shared__ bool last;
  __shared__ float parts[PARTS][STRIP];
  const int column = threadIdx.x % STRIP, part = threadIdx.x / STRIP;
  const unsigned c = first + column;
  if (part == 0 && c < C) partial[int64_t{rows.number} * C + c] = chunk_sum;
  __threadfence();  // a block that reads the new count also reads these sums
  __syncthreads();  // all threads have written their sums before thread 0 counts the block
  if (threadIdx.x == 0) last = atomicAdd(&arrived[first / STRIP], 1) == rows.count - 1;
  __syncthreads();  // thread 0 has written `last`
  if (!last) return;
  __threadfence();  // no sum below is read before the count

  float sum = 0;
  if (c < C) {
#pragma unroll 8
    for (int64_t k = part; k < rows.count; k += PARTS) sum += partial[k * C + c];
  }
  parts[part][column] = sum;
  __syncthreads();  // all parts are written before part 0 adds them
  if (part == 0 && c < C) {
    for (int p = 1; p < PARTS; ++p) sum += parts[p][column];
    bias_grad[c] = sum;
  }
}

// ---------------------------------------------------------------------------------------------
// v1: four separate operators. Each reads from memory what the previous one has just written.

template <typename T>
__global__ void cast_kernel(const T* __restrict__ g, bf16* __restrict__ low, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) low[i] = static_cast<bf16>(static_cast<float>(g[i]));
}

// The element (b, s, c) of this thread. A block has 256 columns of one row (b, s).
struct Place {
  unsigned b, s, c;
};
__device__ Place place_of_thread(Sizes n, unsigned blocks_per_row) {
  const unsigned row = blockIdx.x / blocks_per_row;
  return {row / n.S, row % n.S, blockIdx.x % blocks_per_row * BLOCK + threadIdx.x};
}

// TRANSPOSE false: low to heads, coalesced loads and stores. TRANSPOSE true: low to heads_t; the
// loads are coalesced, but adjacent lanes store S elements apart.
template <bool TRANSPOSE>
__global__ void rearrange_kernel(const bf16* __restrict__ low, bf16* __restrict__ out, Sizes n,
                                 unsigned blocks_per_row) {
  const auto [b, s, c] = place_of_thread(n, blocks_per_row);
  if (c >= n.C) return;
  out[TRANSPOSE ? index_in_heads_t(n, b, s, c) : index_in_heads(n, b, s, c)] =
      low[(int64_t{b} * n.S + s) * n.C + c];
}

// One thread per column; a block has 256 columns of one chunk of rows.
template <typename T>
__global__ void column_sums_kernel(const T* __restrict__ g, float* partial, int* arrived,
                                   float* bias_grad, Sizes n, unsigned strips) {
  const unsigned first = blockIdx.x % strips * BLOCK, c = first + threadIdx.x;
  const Chunk rows = chunk_of(n, blockIdx.x / strips);
  float sum = 0;
  if (c < n.C) {
    const T* column = g + int64_t{rows.b} * n.S * n.C + c;
#pragma unroll 8
    for (int64_t s = rows.begin; s < rows.end; ++s) sum += static_cast<float>(column[s * n.C]);
  }
  finish_column_sums<BLOCK>(sum, rows, first, n.C, partial, arrived, bias_grad);
}

std::tuple<Tensor, Tensor, Tensor> backward_prep_v1_separate(const Tensor& g, int64_t heads) {
  const Sizes n = check_inputs(g, heads);
  const DeviceGuard guard(g);
  const Outputs out = make_outputs(g, n, BLOCK, true);
  const int64_t elements = g.numel();
  if (elements == 0) return {out.heads, out.heads_t, out.bias_grad};
  const Tensor low = allocate(g, {elements}, ScalarType::BFloat16);
  const unsigned strips = ceil_div<unsigned>(n.C, BLOCK);
  const unsigned cast_grid = grid_size(ceil_div<int64_t>(elements, BLOCK), "g");
  const unsigned grid = grid_size(int64_t{n.B} * n.S * strips, "g");
  const unsigned sums_grid = grid_size(chunks_of(n) * strips, "g");
  const cudaStream_t stream = current_stream(g);
  dispatch_floating(g, [&](auto zero) {
    using T = decltype(zero);
    cast_kernel<T><<<cast_grid, BLOCK, 0, stream>>>(data<T>(g), mutable_data<bf16>(low), elements);
    column_sums_kernel<T><<<sums_grid, BLOCK, 0, stream>>>(
        data<T>(g), mutable_data<float>(out.partial), mutable_data<int>(out.arrived),
        mutable_data<float>(out.bias_grad), n, strips);
  });
  rearrange_kernel<false>
      <<<grid, BLOCK, 0, stream>>>(data<bf16>(low), mutable_data<bf16>(out.heads), n, strips);
  rearrange_kernel<true>
      <<<grid, BLOCK, 0, stream>>>(data<bf16>(low), mutable_data<bf16>(out.heads_t), n, strips);
  check_launch("backward_prep_v1_separate");
  return {out.heads, out.heads_t, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one launch. A thread loops over a column of g, and uses each element for the sum
// and both copies. Loads and stores to heads are coalesced; stores to heads_t are not: 32 lanes
// write 2 bytes each, in 32 different rows.

template <typename T, bool WITH_HEADS_T>
__global__ void backward_prep_v2_fused_kernel(const T* __restrict__ g, bf16* __restrict__ heads,
                                              bf16* __restrict__ heads_t, float* partial,
                                              int* arrived, float* bias_grad, Sizes n,
                                              unsigned strips) {
  const unsigned first = blockIdx.x % strips * BLOCK, c = first + threadIdx.x;
  const Chunk rows = chunk_of(n, blockIdx.x / strips);
  float sum = 0;
  if (c < n.C) {
    const T* column = g + int64_t{rows.b} * n.S * n.C + c;
    bf16* in_heads = heads + index_in_heads(n, rows.b, 0, c);
    bf16* in_heads_t = heads_t + index_in_heads_t(n, rows.b, 0, c);
#pragma unroll 8
    for (int64_t s = rows.begin; s < rows.end; ++s) {
      const float value = static_cast<float>(column[s * n.C]);
      sum += value;
      in_heads[s * n.D] = static_cast<bf16>(value);
      if (WITH_HEADS_T) in_heads_t[s] = static_cast<bf16>(value);
    }
  }
  finish_column_sums<BLOCK>(sum, rows, first, n.C, partial, arrived, bias_grad);
}

template <bool WITH_HEADS_T>
Outputs launch_v2(const Tensor& g, Sizes n) {
  const DeviceGuard guard(g);
  Outputs out = make_outputs(g, n, BLOCK, WITH_HEADS_T);
  if (g.numel() == 0) return out;  // a grid of no blocks is an error
  const unsigned strips = ceil_div<unsigned>(n.C, BLOCK);
  // Strips of one chunk are adjacent in the grid: they read the same rows at about the same time.
  const unsigned grid = grid_size(chunks_of(n) * strips, "g");
  dispatch_floating(g, [&](auto zero) {
    using T = decltype(zero);
    backward_prep_v2_fused_kernel<T, WITH_HEADS_T><<<grid, BLOCK, 0, current_stream(g)>>>(
        data<T>(g), mutable_data<bf16>(out.heads), mutable_data<bf16>(out.heads_t),
        mutable_data<float>(out.partial), mutable_data<int>(out.arrived),
        mutable_data<float>(out.bias_grad), n, strips);
  });
  check_launch("backward_prep_v2_fused");
  return out;
}

std::tuple<Tensor, Tensor, Tensor> backward_prep_v2_fused(const Tensor& g, int64_t heads) {
  const Outputs out = launch_v2<true>(g, check_inputs(g, heads));
  return {out.heads, out.heads_t, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a block processes tiles of 64 rows × 64 columns. A thread loads 8 adjacent
// elements of a row, stores them to heads as 16 bytes, and writes them to shared memory. After a
// barrier it reads 8 adjacent elements of a column from there: 16 bytes of heads_t. The next tile's
// loads are in flight meanwhile, so that the barriers do not leave the memory idle.

constexpr int TILE = 64;             // rows and columns; 64 bf16 are the 128 bytes of a cache line
constexpr int LANES = TILE / E;      // threads along a row of the tile, 8
constexpr int ROWS = BLOCK / LANES;  // rows of the tile that the block loads at once, 32
// Words (2 bf16) between two rows in shared memory: one more than a row has, so that the 4 rows × 8
// lanes of a warp store to 32 different banks (no bank conflict, day 14). Reads down the columns
// still meet two lanes in each of 16 banks.
constexpr int STRIDE = TILE / 2 + 1;

// 8 elements, 16 or 32 bytes; loaded and stored 16 bytes at a time.
template <typename T>
struct alignas(16) Eight {
  T at[E];
};

// Two adjacent elements of a row: one word of shared memory.
struct alignas(4) Two {
  bf16 left, right;
};

// Stores 16 bytes that will not be read soon: __stcs marks their line to leave L2 first.
__device__ void store_streaming(bf16* to, const Eight<bf16>& value) {
  __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&value));
}

template <typename T, bool WITH_HEADS_T>
__global__ void __launch_bounds__(BLOCK)
    backward_prep_v3_tiles_kernel(const T* __restrict__ g, bf16* __restrict__ heads,
                                  bf16* __restrict__ heads_t, float* partial, int* arrived,
                                  float* bias_grad, Sizes n, unsigned strips) {
  __shared__ Two tile[TILE][STRIDE];  // (s, pair of columns)
  __shared__ float sums[ROWS][TILE];
  const unsigned first = blockIdx.x % strips * TILE;
  const Chunk rows = chunk_of(n, blockIdx.x / strips);

  // Loading: columns [c, c + 8) of rows `row` and row + 32. D is a multiple of 8, so the 8 columns
  // belong to one head, and all of them are inside g or none is.
  const unsigned lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
  const unsigned c = first + lane * E;
  const T* from = g + int64_t{rows.b} * n.S * n.C + c;
  bf16* to_heads = heads + index_in_heads(n, rows.b, 0, c);
  // Storing heads_t: rows [8 · lane, 8 · lane + 8) of columns c2 and c2 + 1.
  const unsigned c2 = first + 2 * row;
  bf16* to_heads_t = heads_t + index_in_heads_t(n, rows.b, 0, c2);

  Eight<T> in[TILE / ROWS];  // this thread's part of the next tile
  const auto load = [&](unsigned s0) {
#pragma unroll
    for (int k = 0; k < TILE / ROWS; ++k) {
      const unsigned s = s0 + k * ROWS + row;
      if (s < rows.end && c < n.C) {
        in[k] = *reinterpret_cast<const Eight<T>*>(from + int64_t{s} * n.C);
      }
    }
  };
  float sum[E] = {};
  load(rows.begin);
  for (unsigned s0 = rows.begin; s0 < rows.end; s0 += TILE) {
#pragma unroll
    for (int k = 0; k < TILE / ROWS; ++k) {
      const unsigned r = k * ROWS + row, s = s0 + r;
      if (s < rows.end && c < n.C) {
        Eight<bf16> low;
        for (int i = 0; i < E; ++i) {
          const float value = static_cast<float>(in[k].at[i]);
          sum[i] += value;
          low.at[i] = static_cast<bf16>(value);
        }
        store_streaming(to_heads + int64_t{s} * n.D, low);
        for (int i = 0; WITH_HEADS_T && i < E; i += 2) {
          tile[r][lane * (E / 2) + i / 2] = Two{low.at[i], low.at[i + 1]};
        }
      }
    }
    load(s0 + TILE);  // the next tile's loads are in flight while this one is transposed (day 21)
    if (WITH_HEADS_T) {
      __syncthreads();  // the tile is complete before its columns are read
      const unsigned s = s0 + lane * E;
      if (s < rows.end && c2 < n.C) {  // S is a multiple of 8: all 8 rows exist, or none
        Eight<bf16> left, right;
        for (int i = 0; i < E; ++i) {
          const Two pair = tile[lane * E + i][row];
          left.at[i] = pair.left;
          right.at[i] = pair.right;
        }
        store_streaming(to_heads_t + s, left);
        store_streaming(to_heads_t + n.S + s, right);
      }
      __syncthreads();  // all threads have read the tile before the next one overwrites it
    }
  }

  for (int i = 0; i < E; ++i) sums[row][lane * E + i] = sum[i];
  __syncthreads();  // the 8 sums of every thread are written before 64 threads add them
  float chunk_sum = 0;
  if (threadIdx.x < TILE) {
    for (int r = 0; r < ROWS; ++r) chunk_sum += sums[r][threadIdx.x];
  }
  finish_column_sums<TILE>(chunk_sum, rows, first, n.C, partial, arrived, bias_grad);
}

template <bool WITH_HEADS_T>
Outputs launch_v3(const Tensor& g, Sizes n) {
  if (n.D % E != 0 || (WITH_HEADS_T && n.S % E != 0) || !is_aligned(g, 16)) {
    fell_back("backward_prep_v2_fused", "rows or a start that are no multiples of 16 bytes");
    return launch_v2<WITH_HEADS_T>(g, n);
  }
  const DeviceGuard guard(g);
  Outputs out = make_outputs(g, n, TILE, WITH_HEADS_T);
  if (g.numel() == 0) return out;
  const unsigned strips = ceil_div<unsigned>(n.C, TILE);
  const unsigned grid = grid_size(chunks_of(n) * strips, "g");
  dispatch_floating(g, [&](auto zero) {
    using T = decltype(zero);
    backward_prep_v3_tiles_kernel<T, WITH_HEADS_T><<<grid, BLOCK, 0, current_stream(g)>>>(
        data<T>(g), mutable_data<bf16>(out.heads), mutable_data<bf16>(out.heads_t),
        mutable_data<float>(out.partial), mutable_data<int>(out.arrived),
        mutable_data<float>(out.bias_grad), n, strips);
  });
  check_launch("backward_prep_v3_tiles");
  return out;
}

Outputs launch_v3(const Tensor& g, Sizes n, bool with_heads_t) {
  return with_heads_t ? launch_v3<true>(g, n) : launch_v3<false>(g, n);
}

std::tuple<Tensor, Tensor, Tensor> backward_prep_v3_tiles(const Tensor& g, int64_t heads) {
  const Outputs out = launch_v3<true>(g, check_inputs(g, heads));
  return {out.heads, out.heads_t, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------

RUNG(day18, backward_prep_v1_separate, "(Tensor g, int heads) -> (Tensor, Tensor, Tensor)");
RUNG(day18, backward_prep_v2_fused, "(Tensor g, int heads) -> (Tensor, Tensor, Tensor)");
RUNG(day18, backward_prep_v3_tiles, "(Tensor g, int heads) -> (Tensor, Tensor, Tensor)");

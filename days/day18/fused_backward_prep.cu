// Day 18: everything that a backward pass needs of one gradient, in one launch
//
//   g (B, S, H·D)  gradient of a layer's output; column c = h · D + d belongs to head h
//   heads  (B, H, S, D) bf16   heads[b, h, s, d]  = g[b, s, h·D + d]       split heads, cast
//   turned (B, H, D, S) bf16   turned[b, h, d, s] = g[b, s, h·D + d]       and transposed
//   bias_grad (H·D)     fp32   bias_grad[c] = sum_{b, s} g[b, s, c]
//
// Bytes: read g once, write two bf16 copies: 4 + 2 + 2 = 8 an element of fp32. Separate launches
// move 18. For 16×4096×2048 that is 1.07 GB against 2.4 GB. Operations: one addition an element.
//
//   v1 separate   cast, split heads, transpose, column sums: a launch each
//   v2 fused      one launch, a thread a column: one read of g; turned in pieces of 2 bytes
//   v3 tiles      tiles through shared memory: 16 bytes, neighbours together, both ways
//   merge_heads   the forward operator whose backward this is; its gradient runs v3
//
// Run: python run_day.py 18

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <tuple>

constexpr int BLOCK = 256;

// Rows (b, s) that one block sums up before it writes a partial result: 1/256 of g's size, twice,
// is little, and 16 × 4096 rows still make 256 blocks for each strip of columns.
constexpr int CHUNK = 256;

using bf16 = __nv_bfloat16;

// Sizes of the problem, in elements; C = H · D. In 32 bits, because threads divide by them, and a
// division of 64 bits takes a hundred instructions.
struct Sizes {
  unsigned B, S, H, D, C;
};

// Where g[b, s, c] goes in heads: column c is place d = c % D of head h = c / D.
__device__ int64_t place_in_heads(Sizes n, unsigned b, unsigned s, unsigned c) {
  return ((int64_t{b} * n.H + c / n.D) * n.S + s) * n.D + c % n.D;
}

// And in turned: there (h, d) in this order is c again, so it is one S×C transpose for each b.
__device__ int64_t place_in_turned(Sizes n, unsigned b, unsigned s, unsigned c) {
  return (int64_t{b} * n.C + c) * n.S + s;
}

// What a launcher returns, and the workspace for sums across blocks.
struct Outputs {
  Tensor heads, turned, bias_grad;
  Tensor partial;  // (chunks, C): sums of g over the rows of one chunk
  Tensor arrived;  // (strips,): blocks of a strip of columns that have written theirs
};

// t: (B, S, C), or (B, H, S, D); its sizes are refused where they do not fit.
Sizes make_sizes(const Tensor& t, const char* name, int64_t B, int64_t S, int64_t H, int64_t D) {
  constexpr int64_t most = 2147483647;
  STD_TORCH_CHECK(B <= most && S <= most && H * D <= most, name,
                  ": expected sizes below 2^31, got ", shape_of(t));
  return {static_cast<unsigned>(B), static_cast<unsigned>(S), static_cast<unsigned>(H),
          static_cast<unsigned>(D), static_cast<unsigned>(H * D)};
}

Sizes check_inputs(const Tensor& g, int64_t heads) {
  check(g, "g").on_gpu().floating().rank(3).contiguous();
  const int64_t C = g.size(2);
  STD_TORCH_CHECK(heads >= 1 && heads <= 2147483647 && C % heads == 0,
                  "heads: expected a divisor of g's last size ", C, ", got ", heads);
  return make_sizes(g, "g", g.size(0), g.size(1), heads, C / heads);
}

int64_t chunks_of(Sizes n) {
  return int64_t{n.B} * ceil_div<int64_t>(n.S, CHUNK);
}

// strip: columns that one block sums. turned: whether that copy is wanted.
Outputs make_outputs(const Tensor& g, Sizes n, int strip, bool turned) {
  using torch::stable::new_empty;
  using torch::stable::new_zeros;
  const auto low = ScalarType::BFloat16;
  const int64_t B = n.B, S = n.S, H = n.H, D = n.D, C = n.C;
  return {new_empty(g, {n.B, n.H, n.S, n.D}, low),
          turned ? new_empty(g, {B, H, D, S}, low) : new_empty(g, {0}, low),
          // Written by the kernel, but for a g without rows: its sums are 0.
          g.numel() ? new_empty(g, {C}, ScalarType::Float) : new_zeros(g, {C}, ScalarType::Float),
          new_empty(g, {g.numel() ? chunks_of(n) : 0, C}, ScalarType::Float),
          new_zeros(g, {ceil_div<int64_t>(C, strip)}, ScalarType::Int)};
}

// ---------------------------------------------------------------------------------------------
// Sums over all rows in one launch. No block sees them all, and floating-point atomics would add in
// another order each time. So each block writes its partial sums, counts itself, and whoever finds
// that it was the last one of its strip adds up all of them, in the order of the chunks.

// Rows [begin, end) of batch b: chunk `number` of `count`.
struct Chunk {
  unsigned number, count, b, begin, end;
};
__device__ Chunk chunk_of(Sizes n, unsigned number) {
  const unsigned a_batch = (n.S + CHUNK - 1) / CHUNK;
  const unsigned begin = number % a_batch * CHUNK;
  return {number, n.B * a_batch, number / a_batch, begin, min(begin + CHUNK, n.S)};
}

// mine: thread t's sum for column first + t, t in [0, STRIP), over the chunk's rows. All threads of
// the block must call it.
template <int STRIP>
__device__ void finish_column_sums(float mine, Chunk rows, unsigned first, unsigned C,
                                   float* partial, int* arrived, float* bias_grad) {
  constexpr int PARTS = BLOCK / STRIP;  // threads that share a column in the last block
  __shared__ bool last;
  __shared__ float parts[PARTS][STRIP];
  const int column = threadIdx.x % STRIP, part = threadIdx.x / STRIP;
  const unsigned c = first + column;
  if (part == 0 && c < C) partial[int64_t{rows.number} * C + c] = mine;
  __threadfence();  // whoever sees this block counted sees its sums too
  __syncthreads();  // all threads have written theirs before thread 0 counts the block
  if (threadIdx.x == 0) last = atomicAdd(&arrived[first / STRIP], 1) == rows.count - 1;
  __syncthreads();  // thread 0 has written last
  if (!last) return;
  __threadfence();  // nothing below is read before the count was

  float sum = 0;
  if (c < C) {
#pragma unroll 8
    for (int64_t k = part; k < rows.count; k += PARTS) sum += partial[k * C + c];
  }
  parts[part][column] = sum;
  __syncthreads();  // all parts are there before part 0 adds them
  if (part == 0 && c < C) {
    for (int p = 1; p < PARTS; ++p) sum += parts[p][column];
    bias_grad[c] = sum;
  }
}

// ---------------------------------------------------------------------------------------------
// v1: what four separate operators do. Each reads from memory what the one before has just written.

template <typename T>
__global__ void cast_kernel(const T* __restrict__ g, bf16* __restrict__ low, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) low[i] = static_cast<bf16>(static_cast<float>(g[i]));
}

// What a block of 256 columns of one row (b, s) needs to know; blocks_a_row of them have a row.
struct Place {
  unsigned b, s, c;
};
__device__ Place place_of_thread(Sizes n, unsigned blocks_a_row) {
  const unsigned row = blockIdx.x / blocks_a_row;
  return {row / n.S, row % n.S, blockIdx.x % blocks_a_row * BLOCK + threadIdx.x};
}

// TURN false: low to heads; true: low to turned. Neighbours load neighbours; into heads they store
// neighbours too, as d runs along c; into turned, they store S elements apart.
template <bool TURN>
__global__ void rearrange_kernel(const bf16* __restrict__ low, bf16* __restrict__ out, Sizes n,
                                 unsigned blocks_a_row) {
  const auto [b, s, c] = place_of_thread(n, blocks_a_row);
  if (c >= n.C) return;
  out[TURN ? place_in_turned(n, b, s, c) : place_in_heads(n, b, s, c)] =
      low[(int64_t{b} * n.S + s) * n.C + c];
}

// A thread a column, a block 256 columns of one chunk of rows.
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
  if (elements == 0) return {out.heads, out.turned, out.bias_grad};
  const Tensor low = torch::stable::new_empty(g, {elements}, ScalarType::BFloat16);
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
      <<<grid, BLOCK, 0, stream>>>(data<bf16>(low), mutable_data<bf16>(out.turned), n, strips);
  check_launch("backward_prep_v1_separate");
  return {out.heads, out.turned, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one launch. A thread walks down a column of g, and what it has loaded serves the
// sum and both copies. Loads and stores to heads coalesce across the warp; stores to turned do not:
// 32 lanes write 2 bytes each into 32 rows.

template <typename T, bool TURNED>
__global__ void backward_prep_v2_fused_kernel(const T* __restrict__ g, bf16* __restrict__ heads,
                                              bf16* __restrict__ turned, float* partial,
                                              int* arrived, float* bias_grad, Sizes n,
                                              unsigned strips) {
  const unsigned first = blockIdx.x % strips * BLOCK, c = first + threadIdx.x;
  const Chunk rows = chunk_of(n, blockIdx.x / strips);
  float sum = 0;
  if (c < n.C) {
    const T* column = g + int64_t{rows.b} * n.S * n.C + c;
    bf16* in_heads = heads + place_in_heads(n, rows.b, 0, c);
    bf16* in_turned = turned + place_in_turned(n, rows.b, 0, c);
#pragma unroll 8
    for (int64_t s = rows.begin; s < rows.end; ++s) {
      const float value = static_cast<float>(column[s * n.C]);
      sum += value;
      in_heads[s * n.D] = static_cast<bf16>(value);
      if (TURNED) in_turned[s] = static_cast<bf16>(value);
    }
  }
  finish_column_sums<BLOCK>(sum, rows, first, n.C, partial, arrived, bias_grad);
}

template <bool TURNED>
Outputs launch_v2(const Tensor& g, Sizes n) {
  const DeviceGuard guard(g);
  Outputs out = make_outputs(g, n, BLOCK, TURNED);
  if (g.numel() == 0) return out;  // a grid of no blocks is an error
  const unsigned strips = ceil_div<unsigned>(n.C, BLOCK);
  // Strips of one chunk are neighbours in the grid: they read the same rows at the same time.
  const unsigned grid = grid_size(chunks_of(n) * strips, "g");
  dispatch_floating(g, [&](auto zero) {
    using T = decltype(zero);
    backward_prep_v2_fused_kernel<T, TURNED><<<grid, BLOCK, 0, current_stream(g)>>>(
        data<T>(g), mutable_data<bf16>(out.heads), mutable_data<bf16>(out.turned),
        mutable_data<float>(out.partial), mutable_data<int>(out.arrived),
        mutable_data<float>(out.bias_grad), n, strips);
  });
  check_launch("backward_prep_v2_fused");
  return out;
}

std::tuple<Tensor, Tensor, Tensor> backward_prep_v2_fused(const Tensor& g, int64_t heads) {
  const Outputs out = launch_v2<true>(g, check_inputs(g, heads));
  return {out.heads, out.turned, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a block takes tiles of 64 rows × 64 columns. A thread loads 8 neighbours in a row,
// stores them to heads as 16 bytes, and puts them into shared memory; after a barrier it takes 8
// neighbours in a column out of there, and those are 16 bytes of turned. The next tile's loads are
// under way meanwhile, so that memory does not wait for the barriers.

constexpr int TILE = 64;             // rows and columns; 64 bf16 are the 128 bytes of a cache line
constexpr int E = 8;                 // elements a thread handles at once: 16 bytes of bf16
constexpr int LANES = TILE / E;      // threads along a row of the tile, 8
constexpr int ROWS = BLOCK / LANES;  // rows of the tile that the block loads at once, 32
// Words (2 bf16) from row to row in shared memory: one more than the row has, so that a warp's 4
// rows × 8 lanes store to 32 different banks.
constexpr int STRIDE = TILE / 2 + 1;

// 8 elements, 16 or 32 bytes; loaded and stored 16 bytes at a time.
template <typename T>
struct alignas(16) Eight {
  T at[E];
};

// Neighbours in a row, one word of shared memory: a bank is 4 bytes wide.
struct alignas(4) Two {
  bf16 left, right;
};

// A store of 16 bytes that nobody will read soon: the L2 cache writes it back early.
__device__ void stream(bf16* to, const Eight<bf16>& value) {
  __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&value));
}

template <typename T, bool TURNED>
__global__ void __launch_bounds__(BLOCK)
    backward_prep_v3_tiles_kernel(const T* __restrict__ g, bf16* __restrict__ heads,
                                  bf16* __restrict__ turned, float* partial, int* arrived,
                                  float* bias_grad, Sizes n, unsigned strips) {
  __shared__ Two tile[TILE][STRIDE];  // (s, pair of columns)
  __shared__ float sums[ROWS][TILE];
  const unsigned first = blockIdx.x % strips * TILE;
  const Chunk rows = chunk_of(n, blockIdx.x / strips);

  // Loading: columns [c, c + 8) of rows `row` and row + 32. D is a multiple of 8, so the 8 columns
  // are in one head, and inside of g or outside of it all together.
  const unsigned lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
  const unsigned c = first + lane * E;
  const T* from = g + int64_t{rows.b} * n.S * n.C + c;
  bf16* to_heads = heads + place_in_heads(n, rows.b, 0, c);
  // Storing turned: rows [8 · lane, 8 · lane + 8) of columns c2 and c2 + 1.
  const unsigned c2 = first + 2 * row;
  bf16* to_turned = turned + place_in_turned(n, rows.b, 0, c2);

  Eight<T> in[TILE / ROWS];  // this thread's part of the tile that comes next
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
        stream(to_heads + int64_t{s} * n.D, low);
        for (int i = 0; TURNED && i < E; i += 2) {
          tile[r][lane * (E / 2) + i / 2] = Two{low.at[i], low.at[i + 1]};
        }
      }
    }
    load(s0 + TILE);  // the next tile is on its way while this one is turned
    if (TURNED) {
      __syncthreads();  // the tile is complete before anybody reads columns of it
      const unsigned s = s0 + lane * E;
      if (s < rows.end && c2 < n.C) {  // S is a multiple of 8: all eight rows are there, or none
        Eight<bf16> left, right;
        for (int i = 0; i < E; ++i) {
          const Two pair = tile[lane * E + i][row];
          left.at[i] = pair.left;
          right.at[i] = pair.right;
        }
        stream(to_turned + s, left);
        stream(to_turned + n.S + s, right);
      }
      __syncthreads();  // all have read the tile before the next one overwrites it
    }
  }

  for (int i = 0; i < E; ++i) sums[row][lane * E + i] = sum[i];
  __syncthreads();  // every thread's eight sums are there before 64 threads add them up
  float mine = 0;
  if (threadIdx.x < TILE) {
    for (int r = 0; r < ROWS; ++r) mine += sums[r][threadIdx.x];
  }
  finish_column_sums<TILE>(mine, rows, first, n.C, partial, arrived, bias_grad);
}

template <bool TURNED>
Outputs launch_v3(const Tensor& g, Sizes n) {
  // A row of heads or of turned that ends, or a g that starts, in the middle of 16 bytes: v2.
  if (n.D % E != 0 || (TURNED && n.S % E != 0) || !is_aligned(g, 16)) {
    return launch_v2<TURNED>(g, n);
  }
  const DeviceGuard guard(g);
  Outputs out = make_outputs(g, n, TILE, TURNED);
  if (g.numel() == 0) return out;
  const unsigned strips = ceil_div<unsigned>(n.C, TILE);
  const unsigned grid = grid_size(chunks_of(n) * strips, "g");
  dispatch_floating(g, [&](auto zero) {
    using T = decltype(zero);
    backward_prep_v3_tiles_kernel<T, TURNED><<<grid, BLOCK, 0, current_stream(g)>>>(
        data<T>(g), mutable_data<bf16>(out.heads), mutable_data<bf16>(out.turned),
        mutable_data<float>(out.partial), mutable_data<int>(out.arrived),
        mutable_data<float>(out.bias_grad), n, strips);
  });
  check_launch("backward_prep_v3_tiles");
  return out;
}

std::tuple<Tensor, Tensor, Tensor> backward_prep_v3_tiles(const Tensor& g, int64_t heads) {
  const Outputs out = launch_v3<true>(g, check_inputs(g, heads));
  return {out.heads, out.turned, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------
// The forward operator: merge the heads of attention's output and add a bias.
//
//   y[b, s, h·D + d] = o[b, h, s, d] + bias[h·D + d]      o bf16, bias and y fp32

// N: neighbouring elements a thread, 8 where a row of a head is made of eights, else 1.
template <int N>
__global__ void merge_heads_kernel(const bf16* __restrict__ o, const float* __restrict__ bias,
                                   float* __restrict__ y, Sizes n, unsigned blocks_a_row) {
  struct alignas(N == 1 ? 2 : 16) In {
    bf16 at[N];
  };
  struct alignas(N == 1 ? 4 : 16) Out {
    float at[N];
  };
  const unsigned row = blockIdx.x / blocks_a_row;
  const unsigned c = (blockIdx.x % blocks_a_row * BLOCK + threadIdx.x) * N;
  if (c >= n.C) return;
  const In in = *reinterpret_cast<const In*>(o + place_in_heads(n, row / n.S, row % n.S, c));
  Out out = *reinterpret_cast<const Out*>(bias + c);
  for (int i = 0; i < N; ++i) out.at[i] += static_cast<float>(in.at[i]);
  *reinterpret_cast<Out*>(y + int64_t{row} * n.C + c) = out;
}

Tensor merge_heads(const Tensor& o, const Tensor& bias) {
  check(o, "o").on_gpu().dtype({ScalarType::BFloat16}).rank(4).contiguous();
  const Sizes n = make_sizes(o, "o", o.size(0), o.size(2), o.size(1), o.size(3));
  check(bias, "bias").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(bias, "bias").same_device(o, "o").size(0, n.C);
  const DeviceGuard guard(o);
  Tensor y =
      torch::stable::new_empty(o, {o.size(0), o.size(2), o.size(1) * o.size(3)}, ScalarType::Float);
  if (y.numel() == 0) return y;
  const bool eights = n.D % E == 0 && is_aligned(o, 16) && is_aligned(bias, 16);
  const unsigned blocks_a_row = ceil_div<unsigned>(n.C, BLOCK * (eights ? E : 1));
  const auto kernel = eights ? merge_heads_kernel<E> : merge_heads_kernel<1>;
  kernel<<<grid_size(int64_t{n.B} * n.S * blocks_a_row, "o"), BLOCK, 0, current_stream(o)>>>(
      data<bf16>(o), data<float>(bias), mutable_data<float>(y), n, blocks_a_row);
  check_launch("merge_heads");
  return y;
}

// Its gradients: of o, which is g's heads, and of bias. Nobody asks for turned here.
std::tuple<Tensor, Tensor> merge_heads_backward(const Tensor& g, int64_t heads) {
  const Outputs out = launch_v3<false>(g, check_inputs(g, heads));
  return {out.heads, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day18, m) {
  m.def("backward_prep_v1_separate(Tensor g, int heads) -> (Tensor, Tensor, Tensor)");
  m.def("backward_prep_v2_fused(Tensor g, int heads) -> (Tensor, Tensor, Tensor)");
  m.def("backward_prep_v3_tiles(Tensor g, int heads) -> (Tensor, Tensor, Tensor)");
  m.def("merge_heads(Tensor o, Tensor bias) -> Tensor");
  m.def("merge_heads_backward(Tensor g, int heads) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(day18, CUDA, m) {
  m.impl("backward_prep_v1_separate", TORCH_BOX(&backward_prep_v1_separate));
  m.impl("backward_prep_v2_fused", TORCH_BOX(&backward_prep_v2_fused));
  m.impl("backward_prep_v3_tiles", TORCH_BOX(&backward_prep_v3_tiles));
  m.impl("merge_heads", TORCH_BOX(&merge_heads));
  m.impl("merge_heads_backward", TORCH_BOX(&merge_heads_backward));
}

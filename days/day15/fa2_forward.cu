// Day 15: FlashAttention-2 forward, first version, on CUDA cores
//
//   s = q · kᵀ / sqrt(D)      p = softmax(s)      o = p · v      lse[i] = log sum_j exp(s[i, j])
//   q, k, v, o: (B, H, S, D), D up to 128; lse: (B, H, S). causal: only keys j <= i.
//
// Operations: two products, 4 · B · H · S² · D; for 1×16×4096×64 that is 69 GFLOP. Bytes: 67 MB
// for q, k, v and o in fp32. But s has S² elements per head: another 1.1 GB.
//
//   v1 three_kernels    product, softmax, product, with s in memory
//   v2 tiled_online     outer loop over tiles of keys, inner loop over rows; o is kept in memory
//   v3 fa2_order        outer loop over rows: o stays in registers, S/32 blocks per head, not one
//   v4 register_tiles   128 × 64 tiles; a thread computes 8 × 4 of s and 8 × D/16 of o
//
// Run: python run_day.py 15

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5

#include <cmath>
#include <tuple>
#include <type_traits>

constexpr int MAX_D = 128;

// N = B · H heads; each has matrices of S rows and D columns.
struct Sizes {
  int64_t N, S;
  int D;
  float scale;  // 1 / sqrt(D)
  bool causal;
};

Sizes check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  check(q, "q").on_gpu().floating().rank(4).contiguous();
  check(k, "k").on_gpu().like(q, "q").contiguous();
  check(v, "v").on_gpu().like(q, "q").contiguous();
  const int64_t D = q.size(3);
  STD_TORCH_CHECK(D >= 1 && D <= MAX_D, "q: expected 1 to ", MAX_D,
                  " elements in the last dimension, got shape ", shape_of(q));
  return {q.size(0) * q.size(1), q.size(2), static_cast<int>(D),
          static_cast<float>(1 / std::sqrt(static_cast<double>(D))), causal};
}

Tensor make_lse(const Tensor& q) {
  return torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
}

// ---------------------------------------------------------------------------------------------
// v1: the formula, step by step. The two products are those of day 8, with 32 × 32 tiles.

constexpr int TILE = 32;

// Element (m, n) of A · B. A: (M, K), row-major. B: (K, N), row-major; with B_TRANSPOSED it is
// stored as (N, K). Blocks have 32 × 32 threads, and every thread must call it, even outside the
// result.
template <bool B_TRANSPOSED, typename TA, typename TB>
__device__ float tiled_product(const TA* a, const TB* b, int64_t m0, int64_t n0, int64_t M,
                               int64_t N, int64_t K) {
  __shared__ float a_tile[TILE][TILE];      // (m, k)
  __shared__ float b_tile[TILE][TILE + 1];  // (k, n); 33 words: B_TRANSPOSED stores columns
  const int tx = threadIdx.x, ty = threadIdx.y;
  float sum = 0;
  for (int64_t k0 = 0; k0 < K; k0 += TILE) {
    const bool a_inside = m0 + ty < M && k0 + tx < K;
    a_tile[ty][tx] = a_inside ? static_cast<float>(a[(m0 + ty) * K + k0 + tx]) : 0.0f;
    if (B_TRANSPOSED) {  // consecutive threads along k, which is contiguous in memory
      const bool inside = n0 + ty < N && k0 + tx < K;
      b_tile[tx][ty] = inside ? static_cast<float>(b[(n0 + ty) * K + k0 + tx]) : 0.0f;
    } else {
      const bool inside = k0 + ty < K && n0 + tx < N;
      b_tile[ty][tx] = inside ? static_cast<float>(b[(k0 + ty) * N + n0 + tx]) : 0.0f;
    }
    __syncthreads();  // both tiles are complete before they are read
    for (int k = 0; k < TILE; ++k) sum += a_tile[ty][k] * b_tile[k][tx];
    __syncthreads();  // all threads have read the tiles before they are overwritten
  }
  return sum;
}

// s (N, S, S) = q · kᵀ · scale, and -inf where the mask hides a key.
template <typename T>
__global__ void scores_kernel(const T* __restrict__ q, const T* __restrict__ k,
                              float* __restrict__ s, Sizes n, int64_t tiles) {
  const int64_t head = blockIdx.x / (tiles * tiles), tile = blockIdx.x % (tiles * tiles);
  const int64_t i0 = tile / tiles * TILE, j0 = tile % tiles * TILE;
  const int64_t at = head * n.S * n.D;
  const float sum = tiled_product<true>(q + at, k + at, i0, j0, n.S, n.S, n.D);
  const int64_t i = i0 + threadIdx.y, j = j0 + threadIdx.x;
  if (i < n.S && j < n.S) {
    s[(head * n.S + i) * n.S + j] = n.causal && j > i ? -INFINITY : sum * n.scale;
  }
}

constexpr int ROW_BLOCK = 256;

// One block per row of s, in place.
__global__ void softmax_rows_kernel(float* __restrict__ s, float* __restrict__ lse, int64_t S) {
  __shared__ float partial[ROW_BLOCK];
  float* row = s + blockIdx.x * S;
  float max = -INFINITY;
  for (int64_t j = threadIdx.x; j < S; j += ROW_BLOCK) max = fmaxf(max, row[j]);
  partial[threadIdx.x] = max;
  max = tree_reduce(partial, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int64_t j = threadIdx.x; j < S; j += ROW_BLOCK) sum += row[j] = expf(row[j] - max);
  partial[threadIdx.x] = sum;
  sum = tree_reduce(partial, [](float a, float b) { return a + b; });
  for (int64_t j = threadIdx.x; j < S; j += ROW_BLOCK) row[j] /= sum;
  if (threadIdx.x == 0) lse[blockIdx.x] = max + logf(sum);
}

template <typename T>
__global__ void output_kernel(const float* __restrict__ p, const T* __restrict__ v,
                              T* __restrict__ o, Sizes n, int64_t tiles, int64_t d_tiles) {
  const int64_t head = blockIdx.x / (tiles * d_tiles), tile = blockIdx.x % (tiles * d_tiles);
  const int64_t i0 = tile / d_tiles * TILE, d0 = tile % d_tiles * TILE;
  const int64_t at = head * n.S * n.D;
  const float sum = tiled_product<false>(p + head * n.S * n.S, v + at, i0, d0, n.S, n.D, n.S);
  const int64_t i = i0 + threadIdx.y, d = d0 + threadIdx.x;
  if (i < n.S && d < n.D) o[at + i * n.D + d] = static_cast<T>(sum);
}

std::tuple<Tensor, Tensor> attention_v1_three_kernels(const Tensor& q, const Tensor& k,
                                                      const Tensor& v, bool causal) {
  const Sizes n = check_inputs(q, k, v, causal);
  const DeviceGuard guard(q);
  Tensor o = torch::stable::empty_like(q), lse = make_lse(q);
  if (q.numel() == 0) return {o, lse};  // a grid of no blocks is an error
  const Tensor s = torch::stable::new_empty(q, {n.N, n.S, n.S}, ScalarType::Float);
  const int64_t tiles = ceil_div<int64_t>(n.S, TILE), d_tiles = ceil_div<int64_t>(n.D, TILE);
  const dim3 block(TILE, TILE);
  const cudaStream_t stream = current_stream(q);
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    scores_kernel<T><<<grid_size(n.N * tiles * tiles, "q"), block, 0, stream>>>(
        data<T>(q), data<T>(k), mutable_data<float>(s), n, tiles);
    softmax_rows_kernel<<<grid_size(n.N * n.S, "q"), ROW_BLOCK, 0, stream>>>(
        mutable_data<float>(s), mutable_data<float>(lse), n.S);
    output_kernel<T><<<grid_size(n.N * tiles * d_tiles, "q"), block, 0, stream>>>(
        data<float>(s), data<T>(v), mutable_data<T>(o), n, tiles, d_tiles);
  });
  check_launch("attention_v1_three_kernels");
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: s is never stored. A block processes 32 keys at a time. Day 5's online softmax
// carries the maximum and sum of each row from tile to tile; the output, not yet divided by the
// sum, is rescaled whenever the maximum grows. This is the loop order of the first FlashAttention:
// tiles of keys outside, rows inside. One block per head; the state of a row is kept in global
// memory between two tiles.

constexpr int KEYS = 32;             // per tile: one per lane of a warp
constexpr int WARPS = 8;             // per block; each processes rows of its own
constexpr int COLUMNS = MAX_D / 32;  // columns of o per lane

// A tile of keys and their values. Rows of k have one unused word at the end: lane j reads row j,
// and 32 rows then start in 32 different banks (no bank conflict, day 14).
struct KeyTile {
  float k[KEYS][MAX_D + 1];
  float v[KEYS][MAX_D];
};

// What a warp keeps in shared memory for its current row. Each lane writes one element of `p`, and
// all lanes read all of it.
struct WarpRow {
  float q[MAX_D];
  float p[KEYS];
};

// A row's state after some tiles. sum: of exp(s - max) so far. o: the sum of exp(s - max) · v so
// far, columns lane, lane + 32, …
struct RowState {
  float max, sum, o[COLUMNS];
};

// The maximum and the sum of the warp's 32 values, returned to all lanes (warp shuffles, day 9).
__device__ float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;
}

// Loads keys [j0, j0 + 32) of a head; all threads of the block must call it. Keys beyond S become
// zeros: their p is 0, and 0 · v must not be NaN.
template <typename T>
__device__ void load_keys(KeyTile& tile, const T* k, const T* v, int64_t j0, Sizes n) {
  __syncthreads();  // all threads have read the previous tile before it is overwritten
  for (int e = threadIdx.x; e < KEYS * n.D; e += WARPS * 32) {
    const int j = e / n.D, d = e % n.D;
    const bool inside = j0 + j < n.S;
    tile.k[j][d] = inside ? static_cast<float>(k[(j0 + j) * n.D + d]) : 0.0f;
    tile.v[j][d] = inside ? static_cast<float>(v[(j0 + j) * n.D + d]) : 0.0f;
  }
  __syncthreads();  // the tile is complete before it is read
}

// Updates the state of row i with one tile of keys. All lanes of the warp must call it.
template <typename T>
__device__ void attend(RowState& row, const KeyTile& tile, WarpRow& shared, const T* q, int64_t i,
                       int64_t j0, Sizes n) {
  const int lane = threadIdx.x % 32;
  for (int d = lane; d < n.D; d += 32) shared.q[d] = static_cast<float>(q[i * n.D + d]);
  __syncwarp();  // the row of q is complete before the lanes read it

  float s = 0;  // the score of row i and key j0 + lane
  for (int d = 0; d < n.D; ++d) s += shared.q[d] * tile.k[lane][d];
  const int64_t j = j0 + lane;
  s = j < n.S && !(n.causal && j > i) ? s * n.scale : -INFINITY;

  // The first tile contains key 0, which every row sees, so max is finite from then on.
  const float max = fmaxf(row.max, warp_max(s));
  const float p = expf(s - max), rescale = expf(row.max - max);
  row.max = max;
  row.sum = row.sum * rescale + warp_sum(p);
  shared.p[lane] = p;
  __syncwarp();  // all 32 elements of p are written before the lanes read them
  for (int c = 0; c < COLUMNS; ++c) {
    const int d = lane + 32 * c;
    if (d >= n.D) break;
    float o = row.o[c] * rescale;
    for (int k = 0; k < KEYS; ++k) o += shared.p[k] * tile.v[k][d];
    row.o[c] = o;
  }
  __syncwarp();  // all lanes have read q and p before the next row overwrites them
}

// Divides the output by the sum, once, and stores the row's log-sum-exp.
template <typename T>
__device__ void finish(const RowState& row, T* o, float* lse, int64_t i, Sizes n) {
  const int lane = threadIdx.x % 32;
  for (int c = 0; c < COLUMNS; ++c) {
    const int d = lane + 32 * c;
    if (d < n.D) o[i * n.D + d] = static_cast<T>(row.o[c] / row.sum);
  }
  if (lane == 0) lse[i] = row.max + logf(row.sum);
}

// state: (N, S, 2), max and sum. acc: (N, S, D), the output so far, not yet divided.
template <typename T>
__global__ void attention_v2_tiled_online_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                                 const T* __restrict__ v, T* __restrict__ o,
                                                 float* __restrict__ lse, float2* state, float* acc,
                                                 Sizes n) {
  __shared__ KeyTile tile;
  __shared__ WarpRow rows[WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t head = blockIdx.x, at = head * n.S * n.D;
  for (int64_t j0 = 0; j0 < n.S; j0 += KEYS) {
    load_keys(tile, k + at, v + at, j0, n);
    // Rows warp, warp + 8, warp + 16, … With each tile a row goes to the same warp, so no barrier
    // is needed for its state. With a causal mask, rows before j0 see none of these keys.
    for (int64_t i = (n.causal ? j0 : 0) + warp; i < n.S; i += WARPS) {
      RowState row{-INFINITY, 0, {}};
      if (j0 > 0) {  // the state that this warp stored one tile ago
        const float2 before = state[head * n.S + i];
        row.max = before.x;
        row.sum = before.y;
        for (int c = 0; c < COLUMNS; ++c) {
          const int d = lane + 32 * c;
          if (d < n.D) row.o[c] = acc[at + i * n.D + d];
        }
      }
      attend(row, tile, rows[warp], q + at, i, j0, n);
      const bool last = j0 + KEYS >= n.S || (n.causal && j0 + KEYS > i);
      if (last) {
        finish(row, o + at, lse + head * n.S, i, n);
      } else {
        if (lane == 0) state[head * n.S + i] = {row.max, row.sum};
        for (int c = 0; c < COLUMNS; ++c) {
          const int d = lane + 32 * c;
          if (d < n.D) acc[at + i * n.D + d] = row.o[c];
        }
      }
    }
  }
}

std::tuple<Tensor, Tensor> attention_v2_tiled_online(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, bool causal) {
  const Sizes n = check_inputs(q, k, v, causal);
  const DeviceGuard guard(q);
  Tensor o = torch::stable::empty_like(q), lse = make_lse(q);
  if (q.numel() == 0) return {o, lse};
  const Tensor state = torch::stable::new_empty(q, {n.N, n.S, 2}, ScalarType::Float);
  const Tensor acc = torch::stable::new_empty(q, {n.N, n.S, n.D}, ScalarType::Float);
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    attention_v2_tiled_online_kernel<T><<<grid_size(n.N, "q"), WARPS * 32, 0, current_stream(q)>>>(
        data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse),
        static_cast<float2*>(state.mutable_data_ptr()), mutable_data<float>(acc), n);
  });
  check_launch("attention_v2_tiled_online");
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the loops are exchanged. A block owns 32 rows of q and loops over the keys; the
// state of its rows stays in registers from the first tile to the last. Rows are independent of
// each other, so there are S/32 blocks per head where v2 has one.

constexpr int ROWS = 4;  // per warp

template <typename T>
__global__ void attention_v3_fa2_order_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                              const T* __restrict__ v, T* __restrict__ o,
                                              float* __restrict__ lse, Sizes n, int64_t tiles) {
  __shared__ KeyTile tile;
  __shared__ WarpRow rows[WARPS];
  const int warp = threadIdx.x / 32;
  const int64_t head = blockIdx.x / tiles, at = head * n.S * n.D;
  const int64_t i0 = blockIdx.x % tiles * (WARPS * ROWS);  // the block's rows [i0, i0 + 32)
  RowState state[ROWS];
  for (int r = 0; r < ROWS; ++r) state[r] = {-INFINITY, 0, {}};

  const int64_t rows_end = i0 + WARPS * ROWS < n.S ? i0 + WARPS * ROWS : n.S;
  const int64_t end = n.causal ? rows_end : n.S;  // no row of the block sees a later key
  for (int64_t j0 = 0; j0 < end; j0 += KEYS) {
    load_keys(tile, k + at, v + at, j0, n);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int64_t i = i0 + warp * ROWS + r;
      if (i < n.S) attend(state[r], tile, rows[warp], q + at, i, j0, n);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int64_t i = i0 + warp * ROWS + r;
    if (i < n.S) finish(state[r], o + at, lse + head * n.S, i, n);
  }
}

std::tuple<Tensor, Tensor> attention_v3_fa2_order(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  bool causal) {
  const Sizes n = check_inputs(q, k, v, causal);
  const DeviceGuard guard(q);
  Tensor o = torch::stable::empty_like(q), lse = make_lse(q);
  if (q.numel() == 0) return {o, lse};
  const int64_t tiles = ceil_div<int64_t>(n.S, WARPS * ROWS);
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    attention_v3_fa2_order_kernel<T>
        <<<grid_size(n.N * tiles, "q"), WARPS * 32, 0, current_stream(q)>>>(
            data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse), n,
            tiles);
  });
  check_launch("attention_v3_fa2_order");
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: v3 loads two floats from shared memory for each fused multiply-add. Here a thread
// computes 8 × 4 elements of s, and 8 × D/16 of o, in registers: 12 loads of 16 bytes serve 128
// fused multiply-adds.

constexpr int BM = 128;   // rows of q per block
constexpr int BN = 64;    // keys per tile
constexpr int SIDE = 16;  // 16 × 16 threads: (tx, ty) has rows ty + 16 · r and keys tx + 16 · c
constexpr int TM = BM / SIDE, TN = BN / SIDE;  // 8 × 4 elements of s
// Unused words at the end of each row in shared memory. They make the distance of two rows 4 mod 32
// words, so 8 consecutive rows start in 8 different groups of 4 banks. A 16-byte load is served for
// 8 lanes at a time: without bank conflicts (day 14) when those read 8 consecutive rows. And 4
// words keep every row on a multiple of 16 bytes.
constexpr int PAD = 4;

// Read and written as float4, so aligned to 16 bytes. DP: D rounded up to 32, 64 or 128.
template <int DP>
struct alignas(16) Tiles {
  float q[BM][DP + PAD];
  float k[BN][DP + PAD];
  float v[BN][DP + PAD];
  float p[BM][BN + PAD];
};

// Four elements, loaded by one instruction.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

// Loads rows [0, rows) of a matrix (…, D) into `tile`, as fp32; zeros beyond `rows` and beyond D.
// wide: D and the address allow loads of four elements.
template <int HEIGHT, int DP, typename T>
__device__ void load_tile(float (&tile)[HEIGHT][DP + PAD], const T* from, int64_t rows, int D,
                          bool wide) {
#pragma unroll 4
  for (int e = threadIdx.x; e < HEIGHT * DP / 4; e += SIDE * SIDE) {
    const int row = e / (DP / 4), d = e % (DP / 4) * 4;
    float4 four{0, 0, 0, 0};
    if (row < rows && wide && d < D) {
      const auto in = *reinterpret_cast<const Four<T>*>(from + int64_t{row} * D + d);
      four = {static_cast<float>(in.at[0]), static_cast<float>(in.at[1]),
              static_cast<float>(in.at[2]), static_cast<float>(in.at[3])};
    } else if (row < rows && !wide) {
      const T* in = from + int64_t{row} * D + d;
      if (d + 0 < D) four.x = static_cast<float>(in[0]);
      if (d + 1 < D) four.y = static_cast<float>(in[1]);
      if (d + 2 < D) four.z = static_cast<float>(in[2]);
      if (d + 3 < D) four.w = static_cast<float>(in[3]);
    }
    *reinterpret_cast<float4*>(&tile[row][d]) = four;
  }
}

template <typename T, int DP>
__global__ void __launch_bounds__(SIDE* SIDE, DP <= 64 ? 2 : 1)
    attention_v4_register_tiles_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                       const T* __restrict__ v, T* __restrict__ o,
                                       float* __restrict__ lse, Sizes n, int64_t tiles, bool wide) {
  extern __shared__ float4 shared[];  // float4, so that it is aligned to 16 bytes
  auto& tile = *reinterpret_cast<Tiles<DP>*>(shared);
  constexpr int W = DP / SIDE < 4 ? DP / SIDE : 4;  // adjacent columns of o: 2 or 4
  constexpr int GROUPS = DP / SIDE / W;             // columns g · 16 · W + tx · W + [0, W)
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  // The last rows first: with a causal mask they have the most keys, and the shortest blocks should
  // run at the end.
  const int64_t head = blockIdx.x % n.N, i0 = (tiles - 1 - blockIdx.x / n.N) * BM;
  const int64_t at = head * n.S * n.D;
  const float log2_scale = n.scale * 1.44269504f;  // exp(x · scale) = 2^(x · scale · log2 e)

  float acc[TM][GROUPS * W] = {};  // o, not yet divided
  float max[TM], sum[TM];          // max: times log2_scale; sum: over this thread's keys only
  for (int r = 0; r < TM; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0;
  }
  load_tile<BM, DP>(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);

  const int64_t rows_end = i0 + BM < n.S ? i0 + BM : n.S;
  const int64_t end = n.causal ? rows_end : n.S;
  for (int64_t j0 = 0; j0 < end; j0 += BN) {
    __syncthreads();  // all threads have read k and v of the previous tile
    load_tile<BN, DP>(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
    load_tile<BN, DP>(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);
    __syncthreads();  // q, k and v are complete before they are read

    float s[TM][TN] = {};
#pragma unroll 2
    for (int d = 0; d < DP; d += 4) {
      float4 b[TN];
#pragma unroll
      for (int c = 0; c < TN; ++c) {
        b[c] = *reinterpret_cast<const float4*>(&tile.k[tx + SIDE * c][d]);
      }
#pragma unroll
      for (int r = 0; r < TM; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(&tile.q[ty + SIDE * r][d]);
#pragma unroll
        for (int c = 0; c < TN; ++c) {
          s[r][c] += a.x * b[c].x;
          s[r][c] += a.y * b[c].y;
          s[r][c] += a.z * b[c].z;
          s[r][c] += a.w * b[c].w;
        }
      }
    }

    // Only tiles on the diagonal and the last tile contain masked elements.
    if (j0 + BN > n.S || (n.causal && j0 + BN - 1 > i0)) {
#pragma unroll
      for (int r = 0; r < TM; ++r) {
#pragma unroll
        for (int c = 0; c < TN; ++c) {
          const int64_t i = i0 + ty + SIDE * r, j = j0 + tx + SIDE * c;
          if (j >= n.S || (n.causal && j > i)) s[r][c] = -INFINITY;
        }
      }
    }

    // The online softmax of 8 rows. A row's 64 elements are held by the 16 lanes with the same ty.
#pragma unroll
    for (int r = 0; r < TM; ++r) {
      float tile_max = s[r][0];
      for (int c = 1; c < TN; ++c) tile_max = fmaxf(tile_max, s[r][c]);
      for (int distance = SIDE / 2; distance > 0; distance /= 2) {
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffff, tile_max, distance));
      }
      const float new_max = fmaxf(max[r], tile_max * log2_scale);
      const float rescale = exp2f(max[r] - new_max);
      max[r] = new_max;
      sum[r] *= rescale;
#pragma unroll
      for (int c = 0; c < TN; ++c) {
        const float p = exp2f(s[r][c] * log2_scale - new_max);
        sum[r] += p;
        tile.p[ty + SIDE * r][tx + SIDE * c] = p;
      }
#pragma unroll
      for (int c = 0; c < GROUPS * W; ++c) acc[r][c] *= rescale;
    }
    __syncwarp();  // a row of p is written and read by the 16 lanes of one ty, all in this warp

#pragma unroll 2
    for (int j = 0; j < BN; j += 4) {
      alignas(16) float b[4][GROUPS * W];  // (key, column); written as float4 or float2
#pragma unroll
      for (int key = 0; key < 4; ++key) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
          using Wide = std::conditional_t<W == 4, float4, float2>;
          *reinterpret_cast<Wide*>(&b[key][g * W]) =
              *reinterpret_cast<const Wide*>(&tile.v[j + key][g * SIDE * W + tx * W]);
        }
      }
#pragma unroll
      for (int r = 0; r < TM; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(&tile.p[ty + SIDE * r][j]);
#pragma unroll
        for (int c = 0; c < GROUPS * W; ++c) {
          acc[r][c] += a.x * b[0][c];
          acc[r][c] += a.y * b[1][c];
          acc[r][c] += a.z * b[2][c];
          acc[r][c] += a.w * b[3][c];
        }
      }
    }
    // No barrier for p: it is overwritten only after the two barriers of the next tile.
  }

#pragma unroll
  for (int r = 0; r < TM; ++r) {
    float total = sum[r];
    for (int distance = SIDE / 2; distance > 0; distance /= 2) {
      total += __shfl_xor_sync(0xffffffff, total, distance);
    }
    const int64_t i = i0 + ty + SIDE * r;
    if (i < n.S) {
#pragma unroll
      for (int c = 0; c < GROUPS * W; ++c) {
        const int d = c / W * SIDE * W + tx * W + c % W;
        if (d < n.D) o[at + i * n.D + d] = static_cast<T>(acc[r][c] / total);
      }
      if (tx == 0) lse[head * n.S + i] = max[r] * 0.693147181f + logf(total);  // ln 2
    }
  }
}

std::tuple<Tensor, Tensor> attention_v4_register_tiles(const Tensor& q, const Tensor& k,
                                                       const Tensor& v, bool causal) {
  const Sizes n = check_inputs(q, k, v, causal);
  const DeviceGuard guard(q);
  // Shared memory per block: 227 KB with compute capability 9.0, 163 KB with 8.0, 99 KB with 8.6.
  int limit = 0;
  check_cuda(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index(q)),
      "cudaDeviceGetAttribute");
  const size_t bytes = n.D <= 32   ? sizeof(Tiles<32>)
                       : n.D <= 64 ? sizeof(Tiles<64>)
                                   : sizeof(Tiles<128>);
  if (bytes > static_cast<size_t>(limit)) {
    fell_back("attention_v3_fa2_order", "tiles larger than the GPU's shared memory per block");
    return attention_v3_fa2_order(q, k, v, causal);
  }
  Tensor o = torch::stable::empty_like(q), lse = make_lse(q);
  if (q.numel() == 0) return {o, lse};
  const int64_t tiles = ceil_div<int64_t>(n.S, BM);
  const unsigned grid = grid_size(n.N * tiles, "q");
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    const bool wide = n.D % 4 == 0 && is_aligned(q, 4 * sizeof(T)) &&
                      is_aligned(k, 4 * sizeof(T)) && is_aligned(v, 4 * sizeof(T));
    const auto kernel = n.D <= 32   ? attention_v4_register_tiles_kernel<T, 32>
                        : n.D <= 64 ? attention_v4_register_tiles_kernel<T, 64>
                                    : attention_v4_register_tiles_kernel<T, 128>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
    kernel<<<grid, SIDE * SIDE, bytes, current_stream(q)>>>(
        data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse), n, tiles,
        wide);
  });
  check_launch("attention_v4_register_tiles");
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------

RUNG(day15, attention_v1_three_kernels,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day15, attention_v2_tiled_online,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day15, attention_v3_fa2_order,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day15, attention_v4_register_tiles,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");

// Day 15: FlashAttention-2 forward, first version, on CUDA cores
//
//   s = q · kᵀ / sqrt(D)      p = softmax(s)      o = p · v      lse[i] = log sum_j exp(s[i, j])
//   q, k, v, o: (B, H, S, D), D up to 128; lse: (B, H, S). causal: only keys j <= i.
//
// Operations: two products, 4 · B · H · S² · D; for 1×16×4096×64 that is 69 GFLOP. Bytes: 67 MB
// for q, k, v and o in fp32. But s has S² elements per head: another 1.1 GB.
//
//   v1 three_kernels    product, softmax, product, with s in memory (naive_attention.cu)
//   v2 tiled_online     outer loop over tiles of keys, inner loop over rows; o is kept in memory
//   v3 fa2_order        outer loop over rows: o stays in registers, S/32 blocks per head, not one
//   v4 register_tiles   128 × 64 tiles; a thread computes 8 × 4 of s and 8 × D/16 of o
//                       (register_tiles.cu)
//
// Run: python run_day.py 15

#include "days/day15/attention_by.cuh"

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

Attended attention_v2_tiled_online(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  const char* name = "attention_v2_tiled_online";
  return attention_by(q, k, v, causal, name, [&](auto zero, Sizes n, auto* o, float* lse) {
    using T = decltype(zero);
    const Tensor state = allocate(q, {n.N, n.S, 2}, ScalarType::Float);
    const Tensor acc = allocate(q, {n.N, n.S, n.D}, ScalarType::Float);
    attention_v2_tiled_online_kernel<T><<<grid_size(n.N, "q"), WARPS * 32, 0, current_stream(q)>>>(
        data<T>(q), data<T>(k), data<T>(v), o, lse, static_cast<float2*>(state.mutable_data_ptr()),
        mutable_data<float>(acc), n);
  });
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

Attended attention_v3_fa2_order(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  const char* name = "attention_v3_fa2_order";
  return attention_by(q, k, v, causal, name, [&](auto zero, Sizes n, auto* o, float* lse) {
    using T = decltype(zero);
    const int64_t tiles = ceil_div<int64_t>(n.S, WARPS * ROWS);
    attention_v3_fa2_order_kernel<T>
        <<<grid_size(n.N * tiles, "q"), WARPS * 32, 0, current_stream(q)>>>(
            data<T>(q), data<T>(k), data<T>(v), o, lse, n, tiles);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day15, attention_v2_tiled_online, ATTENTION);
RUNG(day15, attention_v3_fa2_order, ATTENTION);

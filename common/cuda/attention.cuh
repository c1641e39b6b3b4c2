// Attention by tiles on CUDA cores: the forward pass of FlashAttention-2, and the pieces that it is
// made of. Taught in day 15.
//
// 64 rows of q meet 64 keys in a block of 16 × 16 threads. Thread (tx, ty) computes 4 × 4 elements
// of a product over d (q · kᵀ), and 4 × DP/16 of a product over keys (p · v), in registers. DP is D
// rounded up to 64 or 128.
#pragma once

#include "common/cuda/binding.cuh"
#include "common/cuda/shared_memory.cuh"
#include "common/cuda/tensor.cuh"

#include <cmath>
#include <tuple>

namespace fa2 {

constexpr int MAX_D = 128;

// N = B · H heads; each has matrices of S rows and D columns.
struct Sizes {
  int64_t N, S;
  int D;
  float scale;  // 1 / sqrt(D)
  bool causal;
};

inline Sizes check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  check(q, "q").on_gpu().floating().rank(4).contiguous();
  check(k, "k").on_gpu().like(q, "q").contiguous();
  check(v, "v").on_gpu().like(q, "q").contiguous();
  const int64_t D = q.size(3);
  STD_TORCH_CHECK(D >= 1 && D <= MAX_D, "q: expected 1 to ", MAX_D,
                  " elements in the last dimension, got shape ", shape_of(q));
  return {q.size(0) * q.size(1), q.size(2), static_cast<int>(D),
          static_cast<float>(1 / std::sqrt(static_cast<double>(D))), causal};
}

// True if rows of D elements can be loaded four elements at a time.
inline bool is_wide(const Sizes& n, std::initializer_list<const Tensor*> tensors) {
  bool wide = n.D % 4 == 0;
  for (const Tensor* t : tensors) wide = wide && is_aligned(*t, 4 * t->element_size());
  return wide;
}

constexpr int BM = 64;    // rows of q per block
constexpr int BN = 64;    // keys per tile
constexpr int SIDE = 16;  // 16 × 16 threads
constexpr int THREADS = SIDE * SIDE;
constexpr int TM = BM / SIDE, TN = BN / SIDE;
// Unused words at the end of each row in shared memory. They make the distance of two rows 4 mod 32
// words, so 8 consecutive rows start in 8 different groups of 4 banks and cover all 32. A 16-byte
// load is served for 8 lanes at a time: without bank conflicts (day 14) when those read 8
// consecutive rows. And 4 words keep every row on a multiple of 16 bytes.
constexpr int PAD = 4;
constexpr float LOG2_E = 1.44269504f;  // exp(x) = 2^(x · log2 e)

template <int DP>
using RowTile = float[BM][DP + PAD];
template <int DP>
using KeyTile = float[BN][DP + PAD];
using ScoreTile = float[BM][BN + PAD];

// Four elements, loaded by one instruction.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

// Load rows [0, rows) of a matrix (…, D) into `tile`, as fp32; zeros beyond `rows` and beyond D.
// wide: D and the address allow loads of four elements.
template <int HEIGHT, int WIDTH, typename T>
__device__ void load_tile(float (&tile)[HEIGHT][WIDTH], const T* from, int64_t rows, int D,
                          bool wide) {
  constexpr int FOURS = (WIDTH - PAD) / 4;
#pragma unroll 4
  for (int e = threadIdx.x; e < HEIGHT * FOURS; e += THREADS) {
    const int row = e / FOURS, d = e % FOURS * 4;
    const T* in = from + int64_t{row} * D + d;
    float4 four{0, 0, 0, 0};
    if (row < rows && wide && d < D) {
      const auto loaded = *reinterpret_cast<const Four<T>*>(in);
      four = {static_cast<float>(loaded.at[0]), static_cast<float>(loaded.at[1]),
              static_cast<float>(loaded.at[2]), static_cast<float>(loaded.at[3])};
    } else if (row < rows && !wide) {
      if (d + 0 < D) four.x = static_cast<float>(in[0]);
      if (d + 1 < D) four.y = static_cast<float>(in[1]);
      if (d + 2 < D) four.z = static_cast<float>(in[2]);
      if (d + 3 < D) four.w = static_cast<float>(in[3]);
    }
    *reinterpret_cast<float4*>(&tile[row][d]) = four;
  }
}

// sums[r][c] = a[ty + 16 r] · b[tx + 16 c], over d.
template <int WIDTH>
__device__ void multiply_rows(const float (&a)[BM][WIDTH], const float (&b)[BN][WIDTH],
                              float (&sums)[TM][TN]) {
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
  for (auto& row : sums) {
#pragma unroll
    for (float& sum : row) sum = 0;
  }
#pragma unroll 4
  for (int d = 0; d < WIDTH - PAD; d += 4) {
    float4 y[TN];
#pragma unroll
    for (int c = 0; c < TN; ++c) y[c] = *reinterpret_cast<const float4*>(&b[tx + SIDE * c][d]);
#pragma unroll
    for (int r = 0; r < TM; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(&a[ty + SIDE * r][d]);
#pragma unroll
      for (int c = 0; c < TN; ++c) {
        sums[r][c] += x.x * y[c].x;
        sums[r][c] += x.y * y[c].y;
        sums[r][c] += x.z * y[c].z;
        sums[r][c] += x.w * y[c].w;
      }
    }
  }
}

// The column of a (…, DP) tile that is a thread's c-th: groups of four, 64 columns apart.
__device__ inline int column_of(int c) {
  return c / 4 * (4 * SIDE) + threadIdx.x % SIDE * 4 + c % 4;
}

// acc[r][c] += sum_j s[ty + 16 r][j] · b[j][column_of(c)]: s · b, over keys.
template <int WIDTH, int COLUMNS>
__device__ void multiply_keys(const ScoreTile& s, const float (&b)[BN][WIDTH],
                              float (&acc)[TM][COLUMNS]) {
  const int ty = threadIdx.x / SIDE;
#pragma unroll 2
  for (int j = 0; j < BN; j += 4) {
    alignas(16) float y[4][COLUMNS];  // (key, column); written as float4
#pragma unroll
    for (int key = 0; key < 4; ++key) {
#pragma unroll
      for (int c = 0; c < COLUMNS; c += 4) {
        *reinterpret_cast<float4*>(&y[key][c]) =
            *reinterpret_cast<const float4*>(&b[j + key][column_of(c)]);
      }
    }
#pragma unroll
    for (int r = 0; r < TM; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(&s[ty + SIDE * r][j]);
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        acc[r][c] += x.x * y[0][c];
        acc[r][c] += x.y * y[1][c];
        acc[r][c] += x.z * y[2][c];
        acc[r][c] += x.w * y[3][c];
      }
    }
  }
}

__device__ inline void store_scores(ScoreTile& s, const float (&mine)[TM][TN]) {
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
  for (int r = 0; r < TM; ++r) {
#pragma unroll
    for (int c = 0; c < TN; ++c) s[ty + SIDE * r][tx + SIDE * c] = mine[r][c];
  }
}

// The keys of a tile, from j0, that each of its rows, from i0, attends to.
struct Window {
  int rows, keys, ahead;  // row i sees key j if j <= i + ahead

  __device__ Window(int64_t i0, int64_t j0, const Sizes& n)
      : rows(static_cast<int>(n.S - i0 < BM ? n.S - i0 : BM)),
        keys(static_cast<int>(n.S - j0 < BN ? n.S - j0 : BN)),
        ahead(!n.causal || i0 - j0 >= BN ? BN : static_cast<int>(i0 - j0)) {}

  __device__ bool sees(int i, int j) const { return i < rows && j < keys && j <= i + ahead; }
  // Only tiles on the diagonal and at the end hide anything.
  __device__ bool is_open() const { return rows == BM && keys == BN && ahead >= BN - 1; }
};

// Call f(r, c) for each of this thread's elements that the window hides.
template <typename F>
__device__ void for_hidden(const Window& window, F f) {
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  if (window.is_open()) return;
#pragma unroll
  for (int r = 0; r < TM; ++r) {
#pragma unroll
    for (int c = 0; c < TN; ++c) {
      if (!window.sees(ty + SIDE * r, tx + SIDE * c)) f(r, c);
    }
  }
}

// ---------------------------------------------------------------------------------------------
// The product of the rungs that keep whole matrices in memory.

constexpr int TILE = 32;

// One element per thread by 32 × 32 tiles, as in day 8: element (m, n) of A · B. A: (M, K)
// row-major, or stored as (K, M) if A_TRANSPOSED; B: (K, N), or stored as (N, K) if B_TRANSPOSED.
// Blocks have 32 × 32 threads, and every thread must call it, even outside the result.
template <bool A_TRANSPOSED, bool B_TRANSPOSED, typename TA, typename TB>
__device__ float tiled_product(const TA* a, const TB* b, int64_t m0, int64_t n0, int64_t M,
                               int64_t N, int64_t K) {
  __shared__ float a_tile[TILE][TILE + 1];  // (m, k); padded: A_TRANSPOSED stores columns
  __shared__ float b_tile[TILE][TILE + 1];  // (k, n)
  const int tx = threadIdx.x, ty = threadIdx.y;
  float sum = 0;
  for (int64_t k0 = 0; k0 < K; k0 += TILE) {
    // tx runs along the dimension that is contiguous in memory.
    const int64_t m = m0 + (A_TRANSPOSED ? tx : ty), ka = k0 + (A_TRANSPOSED ? ty : tx);
    const int64_t n = n0 + (B_TRANSPOSED ? ty : tx), kb = k0 + (B_TRANSPOSED ? tx : ty);
    const int64_t at_a = A_TRANSPOSED ? ka * M + m : m * K + ka;
    const int64_t at_b = B_TRANSPOSED ? n * K + kb : kb * N + n;
    a_tile[m - m0][ka - k0] = m < M && ka < K ? static_cast<float>(a[at_a]) : 0.0f;
    b_tile[kb - k0][n - n0] = n < N && kb < K ? static_cast<float>(b[at_b]) : 0.0f;
    __syncthreads();  // both tiles are complete before they are read
    for (int k = 0; k < TILE; ++k) sum += a_tile[ty][k] * b_tile[k][tx];
    __syncthreads();  // all threads have read the tiles before they are overwritten
  }
  return sum;
}

// ---------------------------------------------------------------------------------------------
// The forward pass: o and lse of one tile of rows per block.

template <int DP>
struct alignas(16) ForwardTiles {
  RowTile<DP> q;
  KeyTile<DP> k, v;
  ScoreTile p;
};

template <typename T, int DP>
__global__ void __launch_bounds__(THREADS, DP <= 64 ? 2 : 1)
    forward_kernel(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   T* __restrict__ o, float* __restrict__ lse, Sizes n, int64_t tiles, bool wide) {
  extern __shared__ __align__(128) float4 shared[];
  auto& tile = *reinterpret_cast<ForwardTiles<DP>*>(shared);
  constexpr int COLUMNS = DP / SIDE;
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  // The last rows first: with a causal mask they have the most keys.
  const int64_t head = blockIdx.x % n.N, i0 = (tiles - 1 - blockIdx.x / n.N) * BM;
  const int64_t at = head * n.S * n.D;

  float acc[TM][COLUMNS] = {};  // o, not yet divided
  float max[TM], sum[TM];       // max: times log2 e; sum: over this thread's keys only
#pragma unroll
  for (int r = 0; r < TM; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0;
  }
  load_tile(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);

  const int64_t rows_end = i0 + BM < n.S ? i0 + BM : n.S;
  const int64_t end = n.causal ? rows_end : n.S;  // no row of the block sees a later key
  for (int64_t j0 = 0; j0 < end; j0 += BN) {
    __syncthreads();  // all threads have read k and v of the previous tile
    load_tile(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
    load_tile(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);
    __syncthreads();  // q, k and v are complete before they are read
    float p[TM][TN];
    multiply_rows(tile.q, tile.k, p);
    for_hidden(Window(i0, j0, n), [&](int r, int c) { p[r][c] = -INFINITY; });
#pragma unroll
    for (int r = 0; r < TM; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (float& x : p[r]) {
        x *= n.scale * LOG2_E;
        top = fmaxf(top, x);
      }
      for (int distance = SIDE / 2; distance > 0; distance /= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, distance));
      }
      top = fmaxf(max[r], top);  // every row sees key 0, so it is finite from the first tile on
      const float rescale = exp2f(max[r] - top);
      max[r] = top;
      sum[r] *= rescale;
#pragma unroll
      for (int c = 0; c < TN; ++c) {
        p[r][c] = exp2f(p[r][c] - top);
        sum[r] += p[r][c];
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) acc[r][c] *= rescale;
    }
    store_scores(tile.p, p);
    __syncwarp();  // a row of p is written and read by the 16 lanes of one ty, all in this warp
    multiply_keys(tile.p, tile.v, acc);
  }

#pragma unroll
  for (int r = 0; r < TM; ++r) {
    for (int distance = SIDE / 2; distance > 0; distance /= 2) {
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], distance);
    }
    const int64_t i = i0 + ty + SIDE * r;
    if (i >= n.S) continue;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int d = column_of(c);
      if (d < n.D) o[at + i * n.D + d] = static_cast<T>(acc[r][c] / sum[r]);
    }
    if (tx == 0) lse[head * n.S + i] = (max[r] + log2f(sum[r])) / LOG2_E;
  }
}

// The same algorithm with one warp per row and no shared memory, for GPUs on which the tiles do not
// fit. Lane l has columns l, l + 32, … of the row.
constexpr int ROWS_PER_BLOCK = THREADS / 32;

template <typename T>
__global__ void forward_by_rows_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                       const T* __restrict__ v, T* __restrict__ o,
                                       float* __restrict__ lse, Sizes n) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * ROWS_PER_BLOCK + threadIdx.x / 32;
  if (row >= n.N * n.S) return;  // the whole warp
  const int64_t head = row / n.S * n.S * n.D, keys = n.causal ? row % n.S + 1 : n.S;
  float acc[MAX_D / 32] = {}, max = -INFINITY, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    float s = 0;
    for (int d = lane; d < n.D; d += 32) {
      s += static_cast<float>(q[row * n.D + d]) * static_cast<float>(k[head + j * n.D + d]);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      s += __shfl_xor_sync(0xffffffff, s, distance);
    }
    const float top = fmaxf(max, s * n.scale), rescale = expf(max - top);
    const float p = expf(s * n.scale - top);
    max = top;
    sum = sum * rescale + p;
    for (int c = 0, d = lane; d < n.D; ++c, d += 32) {
      acc[c] = acc[c] * rescale + p * static_cast<float>(v[head + j * n.D + d]);
    }
  }
  for (int c = 0, d = lane; d < n.D; ++c, d += 32) {
    o[row * n.D + d] = static_cast<T>(acc[c] / sum);
  }
  if (lane == 0) lse[row] = max + logf(sum);
}

// o (B, H, S, D) and lse (B, H, S).
inline std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                          bool causal) {
  const Sizes n = check_inputs(q, k, v, causal);
  const DeviceGuard guard(q);
  Tensor o = allocate_like(q);
  Tensor lse = allocate(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  if (q.numel() == 0) return {o, lse};  // a grid of no blocks is an error
  const int64_t tiles = ceil_div<int64_t>(n.S, BM);
  const int64_t bytes = n.D <= 64 ? sizeof(ForwardTiles<64>) : sizeof(ForwardTiles<128>);
  const bool fits = bytes <= shared_limit(q), wide = is_wide(n, {&q, &k, &v});
  if (!fits) fell_back("one warp per row", "the tiles do not fit into shared memory");
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    if (fits) {
      const auto kernel = n.D <= 64 ? forward_kernel<T, 64> : forward_kernel<T, 128>;
      allow_shared(kernel, bytes);
      kernel<<<grid_size(n.N * tiles, "q"), THREADS, bytes, current_stream(q)>>>(
          data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse), n,
          tiles, wide);
    } else {
      const unsigned grid = grid_size(ceil_div<int64_t>(n.N * n.S, ROWS_PER_BLOCK), "q");
      forward_by_rows_kernel<T><<<grid, THREADS, 0, current_stream(q)>>>(
          data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse), n);
    }
  });
  check_launch("attention");
  return {o, lse};
}

}  // namespace fa2

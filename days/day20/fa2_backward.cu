// Day 20: the backward pass of attention without its S×S matrices, on CUDA cores
//
//   forward (day 15)   s = q · kᵀ / sqrt(D)    p = exp(s - lse)    o = p · v
//   backward           gv = pᵀ · go    gp = go · vᵀ    δ = sum_d go · o
//                      gs = p · (gp - δ + glse) / sqrt(D)    gq = gs · k    gk = gsᵀ · q
//   q, k, v, o, go and gq, gk, gv: (B, H, S, D), D up to 128; lse, glse, δ: (B, H, S)
//
// Operations: five products, 10 · B · H · S² · D; for 1×16×4096×64 that is 172 GFLOP. Bytes: 134 MB
// in fp32 for all that is given and wanted; p and gs would be 1.1 GB each.
//
//   v1 naive       p and gs whole in memory, five products of day 8's kind
//   v2 two_walks   tiles; keys stay for gk and gv, then rows stay for gq: seven products, no S×S
//   v3 one_walk    keys stay, and gq is added up in memory with atomicAdd: five products
//
// Run: python run_day.py 20

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <cmath>
#include <tuple>

constexpr int MAX_D = 128;

// N = B · H heads, each with matrices of S rows and D columns.
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
  STD_TORCH_CHECK(D >= 1 && D <= MAX_D, "q: expected a head of 1 to ", MAX_D,
                  " elements in its last dimension, got shape ", shape_of(q));
  return {q.size(0) * q.size(1), q.size(2), static_cast<int>(D),
          static_cast<float>(1 / std::sqrt(static_cast<double>(D))), causal};
}

// lse or its gradient: one fp32 number a row of q.
void check_rows(const Tensor& t, const char* name, const Tensor& q) {
  check(t, name).on_gpu().dtype({ScalarType::Float}).rank(3).contiguous().same_device(q, "q");
  for (int64_t dim = 0; dim < 3; ++dim) check(t, name).size(dim, q.size(dim));
}

// All that a backward pass is given. go, glse: the gradients with respect to o and lse.
struct Given {
  const Tensor &go, &glse, &q, &k, &v, &o, &lse;
  bool causal;

  Sizes check_all() const {
    const Sizes n = check_inputs(q, k, v, causal);
    check(go, "go").on_gpu().like(q, "q").contiguous();
    check(o, "o").on_gpu().like(q, "q").contiguous();
    check_rows(lse, "lse", q);
    check_rows(glse, "glse", q);
    return n;
  }
};

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // gq, gk, gv

// ---------------------------------------------------------------------------------------------
// δ, which all rungs need. The gradient of a softmax subtracts from each gp their mean by p; that
// mean is sum_j p · gp = sum_d go · o, for which no p is needed. lse's own gradient is p: glse is
// added, and not put into δ beforehand, since with few keys gp - δ may cancel and glse is all.

constexpr int WARPS = 8;  // a block, each with a row

template <typename T>
__global__ void attention_delta_kernel(const T* __restrict__ go, const T* __restrict__ o,
                                       float* __restrict__ delta, int64_t rows, int D) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;  // the whole warp
  float sum = 0;
  for (int d = lane; d < D; d += 32) {
    sum += static_cast<float>(go[row * D + d]) * static_cast<float>(o[row * D + d]);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  }
  if (lane == 0) delta[row] = sum;
}

Tensor make_delta(const Given& given, const Sizes& n) {
  const Tensor delta = torch::stable::empty_like(given.lse);
  const unsigned grid = grid_size(ceil_div<int64_t>(n.N * n.S, WARPS), "q");
  dispatch_floating(given.q, [&](auto zero) {
    using T = decltype(zero);
    attention_delta_kernel<T><<<grid, WARPS * 32, 0, current_stream(given.q)>>>(
        data<T>(given.go), data<T>(given.o), mutable_data<float>(delta), n.N * n.S, n.D);
  });
  return delta;
}

// lse, δ and glse, a number each a row of q.
struct RowNumbers {
  const float *lse, *delta, *glse;
};

RowNumbers row_numbers(const Given& given, const Tensor& delta) {
  return {data<float>(given.lse), data<float>(delta), data<float>(given.glse)};
}

// ---------------------------------------------------------------------------------------------
// v1: as the formulas have it, with p and gs in memory. The products are day 8's.

constexpr int TILE = 32;

// Element (m, n) of A · B. A: (M, K) row-major, or (K, M) if A_TURNED; B: (K, N), or (N, K) if
// B_TURNED. Blocks of 32 × 32 threads; all must call it, also those outside of the result.
template <bool A_TURNED, bool B_TURNED, typename TA, typename TB>
__device__ float tiled_product(const TA* a, const TB* b, int64_t m0, int64_t n0, int64_t M,
                               int64_t N, int64_t K) {
  __shared__ float a_tile[TILE][TILE + 1];  // (m, k); padded, as a turned matrix is stored along m
  __shared__ float b_tile[TILE][TILE + 1];  // (k, n)
  const int tx = threadIdx.x, ty = threadIdx.y;
  float sum = 0;
  for (int64_t k0 = 0; k0 < K; k0 += TILE) {
    // tx runs along memory, whichever way the matrix lies.
    const int64_t m = m0 + (A_TURNED ? tx : ty), ka = k0 + (A_TURNED ? ty : tx);
    const int64_t n = n0 + (B_TURNED ? ty : tx), kb = k0 + (B_TURNED ? tx : ty);
    const int64_t at_a = A_TURNED ? ka * M + m : m * K + ka;
    const int64_t at_b = B_TURNED ? n * K + kb : kb * N + n;
    a_tile[m - m0][ka - k0] = m < M && ka < K ? static_cast<float>(a[at_a]) : 0.0f;
    b_tile[kb - k0][n - n0] = n < N && kb < K ? static_cast<float>(b[at_b]) : 0.0f;
    __syncthreads();  // both tiles are complete before anybody multiplies
    for (int k = 0; k < TILE; ++k) sum += a_tile[ty][k] * b_tile[k][tx];
    __syncthreads();  // all are done with the tiles before anybody overwrites them
  }
  return sum;
}

// p (N, S, S), from q, k and lse.
template <typename T>
__global__ void attention_probabilities_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                               const float* __restrict__ lse, float* __restrict__ p,
                                               Sizes n, int64_t tiles) {
  const int64_t head = blockIdx.x / (tiles * tiles), tile = blockIdx.x % (tiles * tiles);
  const int64_t i0 = tile / tiles * TILE, j0 = tile % tiles * TILE, at = head * n.S * n.D;
  const float s = tiled_product<false, true>(q + at, k + at, i0, j0, n.S, n.S, n.D) * n.scale;
  const int64_t i = i0 + threadIdx.y, j = j0 + threadIdx.x;
  if (i < n.S && j < n.S) {
    const int64_t row = head * n.S + i;
    p[row * n.S + j] = n.causal && j > i ? 0.0f : expf(s - lse[row]);
  }
}

// gs (N, S, S), from p, go, v, δ and glse.
template <typename T>
__global__ void attention_slopes_kernel(const float* __restrict__ p, const T* __restrict__ go,
                                        const T* __restrict__ v, RowNumbers rows,
                                        float* __restrict__ gs, Sizes n, int64_t tiles) {
  const int64_t head = blockIdx.x / (tiles * tiles), tile = blockIdx.x % (tiles * tiles);
  const int64_t i0 = tile / tiles * TILE, j0 = tile % tiles * TILE, at = head * n.S * n.D;
  const float gp = tiled_product<false, true>(go + at, v + at, i0, j0, n.S, n.S, n.D);
  const int64_t i = i0 + threadIdx.y, j = j0 + threadIdx.x;
  if (i < n.S && j < n.S) {
    const int64_t row = head * n.S + i;
    gs[row * n.S + j] = p[row * n.S + j] * (gp - rows.delta[row] + rows.glse[row]) * n.scale;
  }
}

// out = a · b, or aᵀ · b if TURNED; a: (N, S, S), b and out: (N, S, D).
template <bool TURNED, typename T>
__global__ void attention_product_kernel(const float* __restrict__ a, const T* __restrict__ b,
                                         T* __restrict__ out, Sizes n, int64_t tiles,
                                         int64_t d_tiles) {
  const int64_t head = blockIdx.x / (tiles * d_tiles), tile = blockIdx.x % (tiles * d_tiles);
  const int64_t i0 = tile / d_tiles * TILE, d0 = tile % d_tiles * TILE, at = head * n.S * n.D;
  const float sum = tiled_product<TURNED, false>(a + head * n.S * n.S, b + at, i0, d0, n.S,
                                                 static_cast<int64_t>(n.D), n.S);
  const int64_t i = i0 + threadIdx.y, d = d0 + threadIdx.x;
  if (i < n.S && d < n.D) out[at + i * n.D + d] = static_cast<T>(sum);
}

Gradients attention_backward_v1_naive(const Tensor& go, const Tensor& glse, const Tensor& q,
                                      const Tensor& k, const Tensor& v, const Tensor& o,
                                      const Tensor& lse, bool causal) {
  const Given given{go, glse, q, k, v, o, lse, causal};
  const Sizes n = given.check_all();
  const DeviceGuard guard(q);
  Tensor gq = torch::stable::empty_like(q), gk = torch::stable::empty_like(q),
         gv = torch::stable::empty_like(q);
  if (q.numel() == 0) return {gq, gk, gv};  // a grid of no blocks is an error
  const Tensor delta = make_delta(given, n);
  const Tensor p = torch::stable::new_empty(q, {n.N, n.S, n.S}, ScalarType::Float);
  const Tensor gs = torch::stable::empty_like(p);
  const int64_t tiles = ceil_div<int64_t>(n.S, TILE), d_tiles = ceil_div<int64_t>(n.D, TILE);
  const unsigned square = grid_size(n.N * tiles * tiles, "q");
  const unsigned flat = grid_size(n.N * tiles * d_tiles, "q");
  const dim3 block(TILE, TILE);
  const cudaStream_t stream = current_stream(q);
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    attention_probabilities_kernel<T><<<square, block, 0, stream>>>(
        data<T>(q), data<T>(k), data<float>(lse), mutable_data<float>(p), n, tiles);
    attention_slopes_kernel<T><<<square, block, 0, stream>>>(data<float>(p), data<T>(go),
                                                             data<T>(v), row_numbers(given, delta),
                                                             mutable_data<float>(gs), n, tiles);
    attention_product_kernel<true, T><<<flat, block, 0, stream>>>(
        data<float>(p), data<T>(go), mutable_data<T>(gv), n, tiles, d_tiles);
    attention_product_kernel<true, T><<<flat, block, 0, stream>>>(
        data<float>(gs), data<T>(q), mutable_data<T>(gk), n, tiles, d_tiles);
    attention_product_kernel<false, T><<<flat, block, 0, stream>>>(
        data<float>(gs), data<T>(k), mutable_data<T>(gq), n, tiles, d_tiles);
  });
  check_launch("attention_backward_v1_naive");
  return {gq, gk, gv};
}

// ---------------------------------------------------------------------------------------------
// Tiles, for v2, v3 and the forward pass: 64 rows of q meet 64 keys. 16 × 16 threads; thread
// (tx, ty) has 4 × 4 elements of a product over d, as in day 15, and 4 × DP/16 of one over rows or
// keys. DP is D rounded up to 64 or 128.

constexpr int BM = 64;    // rows of q, go and o
constexpr int BN = 64;    // keys
constexpr int SIDE = 16;  // 16 × 16 threads
constexpr int THREADS = SIDE * SIDE;
constexpr int TM = BM / SIDE, TN = BN / SIDE;
// Rows in shared memory are longer by 4 words: those that a half-warp reads 16 bytes of start in
// different banks, and each still starts at a multiple of 16 bytes.
constexpr int PAD = 4;
constexpr float LOG2_E = 1.44269504f;  // exp(x) = 2^(x · log2 e)

template <int DP>
using RowTile = float[BM][DP + PAD];
template <int DP>
using KeyTile = float[BN][DP + PAD];
using ScoreTile = float[BM][BN + PAD];

template <int DP>
struct Tiles {
  RowTile<DP> q, go;
  KeyTile<DP> k, v;
  ScoreTile s;  // p, and after that gs
  float lse[BM], delta[BM], glse[BM];
};

template <int DP>
struct ForwardTiles {
  RowTile<DP> q;
  KeyTile<DP> k, v;
  ScoreTile p;
};

// Four elements, loaded with one instruction.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

// Rows [0, rows) of a matrix (S, D) into `tile`, as fp32; zeros beyond `rows` and beyond D. wide:
// D and the address allow loads of four elements.
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

// The numbers of 64 rows, from the one numbered `first`: 64 threads for each kind. Rows beyond the
// end are 0; nothing of them is used.
template <int DP>
__device__ void load_rows(Tiles<DP>& tile, const RowNumbers& from, int64_t first, int64_t rows) {
  const int kind = threadIdx.x / BM, i = threadIdx.x % BM;
  const bool inside = i < rows;
  if (kind == 0) tile.lse[i] = inside ? from.lse[first + i] * LOG2_E : 0.0f;
  if (kind == 1) tile.delta[i] = inside ? from.delta[first + i] : 0.0f;
  if (kind == 2) tile.glse[i] = inside ? from.glse[first + i] : 0.0f;
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
__device__ int column_of(int c) {
  return c / 4 * (4 * SIDE) + threadIdx.x % SIDE * 4 + c % 4;
}

// acc[r][c] += sum_j s[ty + 16 r][j] · b[j][column_of(c)]: s · b, over keys.
template <int WIDTH, int COLUMNS>
__device__ void multiply_keys(const ScoreTile& s, const float (&b)[BN][WIDTH],
                              float (&acc)[TM][COLUMNS]) {
  const int ty = threadIdx.x / SIDE;
#pragma unroll 2
  for (int j = 0; j < BN; j += 4) {
    float y[4][COLUMNS];
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

// acc[r][c] += sum_i s[i][4 ty + r] · b[i][column_of(c)]: sᵀ · b, over rows.
template <int WIDTH, int COLUMNS>
__device__ void multiply_turned(const ScoreTile& s, const float (&b)[BM][WIDTH],
                                float (&acc)[TN][COLUMNS]) {
  const int ty = threadIdx.x / SIDE;
#pragma unroll 4
  for (int i = 0; i < BM; ++i) {
    const float4 x = *reinterpret_cast<const float4*>(&s[i][TN * ty]);
#pragma unroll
    for (int c = 0; c < COLUMNS; c += 4) {
      const float4 y = *reinterpret_cast<const float4*>(&b[i][column_of(c)]);
      const float of_x[TN] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int r = 0; r < TN; ++r) {
        acc[r][c + 0] += of_x[r] * y.x;
        acc[r][c + 1] += of_x[r] * y.y;
        acc[r][c + 2] += of_x[r] * y.z;
        acc[r][c + 3] += of_x[r] * y.w;
      }
    }
  }
}

// Which of the tile's rows, from i0, may look at which of its keys, from j0.
struct Window {
  int rows, keys, ahead;  // row i sees key j if j <= i + ahead

  __device__ Window(int64_t i0, int64_t j0, const Sizes& n)
      : rows(static_cast<int>(n.S - i0 < BM ? n.S - i0 : BM)),
        keys(static_cast<int>(n.S - j0 < BN ? n.S - j0 : BN)),
        ahead(!n.causal || i0 - j0 >= BN ? BN : static_cast<int>(i0 - j0)) {}

  __device__ bool sees(int i, int j) const { return i < rows && j < keys && j <= i + ahead; }
  // Only the tiles at the diagonal and at the end hide anything.
  __device__ bool is_open() const { return rows == BM && keys == BN && ahead >= BN - 1; }
};

// Calls f(r, c) for each of this thread's elements that the window hides.
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

// This thread's 4 × 4 elements of p, computed again from q, k and lse.
template <int DP>
__device__ void recompute_p(const Tiles<DP>& tile, const Window& window, float scale,
                            float (&p)[TM][TN]) {
  const int ty = threadIdx.x / SIDE;
  multiply_rows(tile.q, tile.k, p);
#pragma unroll
  for (int r = 0; r < TM; ++r) {
#pragma unroll
    for (float& x : p[r]) x = exp2f(x * (scale * LOG2_E) - tile.lse[ty + SIDE * r]);
  }
  for_hidden(window, [&](int r, int c) { p[r][c] = 0; });
}

// Makes gs of p: p · (go · vᵀ - δ + glse) · scale. What is hidden is 0 again, also where v is
// infinite.
template <int DP>
__device__ void turn_into_gs(const Tiles<DP>& tile, const Window& window, float scale,
                             float (&p)[TM][TN]) {
  const int ty = threadIdx.x / SIDE;
  float gp[TM][TN];
  multiply_rows(tile.go, tile.v, gp);
#pragma unroll
  for (int r = 0; r < TM; ++r) {
    const float delta = tile.delta[ty + SIDE * r], glse = tile.glse[ty + SIDE * r];
#pragma unroll
    for (int c = 0; c < TN; ++c) p[r][c] *= (gp[r][c] - delta + glse) * scale;
  }
  for_hidden(window, [&](int r, int c) { p[r][c] = 0; });
}

__device__ void store_scores(ScoreTile& s, const float (&mine)[TM][TN]) {
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
  for (int r = 0; r < TM; ++r) {
#pragma unroll
    for (int c = 0; c < TN; ++c) s[ty + SIDE * r][tx + SIDE * c] = mine[r][c];
  }
}

// More than the 48 KB of shared memory that a kernel has without asking.
template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "cudaFuncSetAttribute: shared memory");
}

// Whether the tensors can be loaded four elements at a time.
bool is_wide(const Sizes& n, std::initializer_list<const Tensor*> tensors) {
  bool wide = n.D % 4 == 0;
  for (const Tensor* t : tensors) wide = wide && is_aligned(*t, 4 * t->element_size());
  return wide;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: p and gs exist only as tiles. A block keeps 64 keys and walks over the rows: gk
// and gv grow in registers. For gq a second kernel keeps 64 rows and walks over the keys, and
// computes p and gs once more: 4 + 3 products instead of 5, but nothing is shared between blocks.
//
// v3 against v2: the first walk has gs, so it also multiplies it by k. That is one tile's part of
// gq; the parts of different blocks meet in memory (ADD_GQ).

template <typename T, int DP, bool ADD_GQ>
__global__ void __launch_bounds__(THREADS, DP <= 64 ? 2 : 1)
    attention_keys_stay_kernel(const T* __restrict__ go, const T* __restrict__ q,
                               const T* __restrict__ k, const T* __restrict__ v, RowNumbers numbers,
                               float* __restrict__ gq_sum, T* __restrict__ gk, T* __restrict__ gv,
                               Sizes n, bool wide) {
  extern __shared__ float4 shared[];  // as float4, so that it starts at a multiple of 16 bytes
  auto& tile = *reinterpret_cast<Tiles<DP>*>(shared);
  constexpr int COLUMNS = DP / SIDE;
  const int ty = threadIdx.x / SIDE;
  // The first keys first: with a causal mask most rows look at them.
  const int64_t head = blockIdx.x % n.N, j0 = blockIdx.x / n.N * BN, at = head * n.S * n.D;

  float gk_acc[TN][COLUMNS] = {}, gv_acc[TN][COLUMNS] = {};  // keys 4 ty + r
  load_tile(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
  load_tile(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);

  for (int64_t i0 = n.causal ? j0 / BM * BM : 0; i0 < n.S; i0 += BM) {
    __syncthreads();  // all are done with q and gs of the rows before
    load_tile(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);
    load_tile(tile.go, go + at + i0 * n.D, n.S - i0, n.D, wide);
    load_rows(tile, numbers, head * n.S + i0, n.S - i0);
    __syncthreads();  // all tiles are complete before anybody multiplies

    const Window window(i0, j0, n);
    float p[TM][TN];
    recompute_p(tile, window, n.scale, p);
    store_scores(tile.s, p);
    __syncthreads();  // p is complete: its columns were computed by many threads
    multiply_turned(tile.s, tile.go, gv_acc);
    turn_into_gs(tile, window, n.scale, p);
    __syncthreads();  // all are done with p before gs takes its place
    store_scores(tile.s, p);
    __syncthreads();  // gs is complete
    multiply_turned(tile.s, tile.q, gk_acc);

    if constexpr (ADD_GQ) {
      float part[TM][COLUMNS] = {};
      multiply_keys(tile.s, tile.k, part);
#pragma unroll
      for (int r = 0; r < TM; ++r) {
        const int64_t i = i0 + ty + SIDE * r;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const int d = column_of(c);
          if (i < n.S && d < n.D) atomicAdd(&gq_sum[at + i * n.D + d], part[r][c]);
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < TN; ++r) {
    const int64_t j = j0 + TN * ty + r;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int d = column_of(c);
      if (j >= n.S || d >= n.D) continue;
      gk[at + j * n.D + d] = static_cast<T>(gk_acc[r][c]);
      gv[at + j * n.D + d] = static_cast<T>(gv_acc[r][c]);
    }
  }
}

template <typename T, int DP>
__global__ void __launch_bounds__(THREADS, DP <= 64 ? 2 : 1)
    attention_rows_stay_kernel(const T* __restrict__ go, const T* __restrict__ q,
                               const T* __restrict__ k, const T* __restrict__ v, RowNumbers numbers,
                               T* __restrict__ gq, Sizes n, int64_t tiles, bool wide) {
  extern __shared__ float4 shared[];
  auto& tile = *reinterpret_cast<Tiles<DP>*>(shared);
  constexpr int COLUMNS = DP / SIDE;
  const int ty = threadIdx.x / SIDE;
  // The last rows first: with a causal mask they have the most keys.
  const int64_t head = blockIdx.x % n.N, i0 = (tiles - 1 - blockIdx.x / n.N) * BM;
  const int64_t at = head * n.S * n.D;

  float acc[TM][COLUMNS] = {};  // rows ty + 16 r
  load_tile(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);
  load_tile(tile.go, go + at + i0 * n.D, n.S - i0, n.D, wide);
  load_rows(tile, numbers, head * n.S + i0, n.S - i0);

  const int64_t past = i0 + BM < n.S ? i0 + BM : n.S;
  const int64_t end = n.causal ? past : n.S;  // the block's last row sees no key after itself
  for (int64_t j0 = 0; j0 < end; j0 += BN) {
    __syncthreads();  // all are done with k and gs of the keys before
    load_tile(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
    load_tile(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);
    __syncthreads();  // all tiles are complete before anybody multiplies
    const Window window(i0, j0, n);
    float p[TM][TN];
    recompute_p(tile, window, n.scale, p);
    turn_into_gs(tile, window, n.scale, p);
    store_scores(tile.s, p);
    __syncwarp();  // a row of gs is written and read by the 16 lanes of one ty, all in this warp
    multiply_keys(tile.s, tile.k, acc);
  }

#pragma unroll
  for (int r = 0; r < TM; ++r) {
    const int64_t i = i0 + ty + SIDE * r;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int d = column_of(c);
      if (i < n.S && d < n.D) gq[at + i * n.D + d] = static_cast<T>(acc[r][c]);
    }
  }
}

template <typename T, int DP, bool ADD_GQ>
void launch_keys_stay(const Given& given, const Tensor& delta, float* gq_sum, const Tensor& gk,
                      const Tensor& gv, const Sizes& n, bool wide) {
  const auto kernel = attention_keys_stay_kernel<T, DP, ADD_GQ>;
  allow_shared(kernel, sizeof(Tiles<DP>));
  kernel<<<grid_size(n.N * ceil_div<int64_t>(n.S, BN), "q"), THREADS, sizeof(Tiles<DP>),
           current_stream(given.q)>>>(data<T>(given.go), data<T>(given.q), data<T>(given.k),
                                      data<T>(given.v), row_numbers(given, delta), gq_sum,
                                      mutable_data<T>(gk), mutable_data<T>(gv), n, wide);
}

template <typename T, int DP>
void launch_rows_stay(const Given& given, const Tensor& delta, const Tensor& gq, const Sizes& n,
                      bool wide) {
  const auto kernel = attention_rows_stay_kernel<T, DP>;
  allow_shared(kernel, sizeof(Tiles<DP>));
  const int64_t tiles = ceil_div<int64_t>(n.S, BM);
  kernel<<<grid_size(n.N * tiles, "q"), THREADS, sizeof(Tiles<DP>), current_stream(given.q)>>>(
      data<T>(given.go), data<T>(given.q), data<T>(given.k), data<T>(given.v),
      row_numbers(given, delta), mutable_data<T>(gq), n, tiles, wide);
}

Gradients attention_backward_v2_two_walks(const Tensor& go, const Tensor& glse, const Tensor& q,
                                          const Tensor& k, const Tensor& v, const Tensor& o,
                                          const Tensor& lse, bool causal) {
  const Given given{go, glse, q, k, v, o, lse, causal};
  const Sizes n = given.check_all();
  const DeviceGuard guard(q);
  Tensor gq = torch::stable::empty_like(q), gk = torch::stable::empty_like(q),
         gv = torch::stable::empty_like(q);
  if (q.numel() == 0) return {gq, gk, gv};
  const Tensor delta = make_delta(given, n);
  const bool wide = is_wide(n, {&go, &q, &k, &v});
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    if (n.D <= 64) {
      launch_keys_stay<T, 64, false>(given, delta, nullptr, gk, gv, n, wide);
      launch_rows_stay<T, 64>(given, delta, gq, n, wide);
    } else {
      launch_keys_stay<T, 128, false>(given, delta, nullptr, gk, gv, n, wide);
      launch_rows_stay<T, 128>(given, delta, gq, n, wide);
    }
  });
  check_launch("attention_backward_v2_two_walks");
  return {gq, gk, gv};
}

// v3's sums are fp32; for other types they are rounded when all are complete.
template <typename T>
__global__ void attention_round_kernel(const float* __restrict__ sums, T* __restrict__ out,
                                       int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = static_cast<T>(sums[i]);
}

Gradients attention_backward_v3_one_walk(const Tensor& go, const Tensor& glse, const Tensor& q,
                                         const Tensor& k, const Tensor& v, const Tensor& o,
                                         const Tensor& lse, bool causal) {
  const Given given{go, glse, q, k, v, o, lse, causal};
  const Sizes n = given.check_all();
  const DeviceGuard guard(q);
  Tensor gq = torch::stable::empty_like(q), gk = torch::stable::empty_like(q),
         gv = torch::stable::empty_like(q);
  if (q.numel() == 0) return {gq, gk, gv};
  const Tensor delta = make_delta(given, n);
  const bool in_place = q.scalar_type() == ScalarType::Float;
  const Tensor sums = in_place ? gq : torch::stable::new_empty(q, {q.numel()}, ScalarType::Float);
  const cudaStream_t stream = current_stream(q);
  check_cuda(cudaMemsetAsync(sums.mutable_data_ptr(), 0, q.numel() * sizeof(float), stream),
             "cudaMemsetAsync");
  const bool wide = is_wide(n, {&go, &q, &k, &v});
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = n.D <= 64 ? launch_keys_stay<T, 64, true> : launch_keys_stay<T, 128, true>;
    launch(given, delta, mutable_data<float>(sums), gk, gv, n, wide);
    if (!in_place) {
      attention_round_kernel<T>
          <<<grid_size(ceil_div<int64_t>(q.numel(), 256), "q"), 256, 0, stream>>>(
              data<float>(sums), mutable_data<T>(gq), q.numel());
    }
  });
  check_launch("attention_backward_v3_one_walk");
  return {gq, gk, gv};
}

// ---------------------------------------------------------------------------------------------
// The forward pass that these are the backward of: day 15's, with this day's tiles.

template <typename T, int DP>
__global__ void __launch_bounds__(THREADS, DP <= 64 ? 2 : 1)
    attention_kernel(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                     T* __restrict__ o, float* __restrict__ lse, Sizes n, int64_t tiles,
                     bool wide) {
  extern __shared__ float4 shared[];
  auto& tile = *reinterpret_cast<ForwardTiles<DP>*>(shared);
  constexpr int COLUMNS = DP / SIDE;
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  const int64_t head = blockIdx.x % n.N, i0 = (tiles - 1 - blockIdx.x / n.N) * BM;
  const int64_t at = head * n.S * n.D;

  float acc[TM][COLUMNS] = {};  // o, not yet divided
  float max[TM], sum[TM];       // max in units of log 2; sum over this thread's keys alone
#pragma unroll
  for (int r = 0; r < TM; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0;
  }
  load_tile(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);

  const int64_t past = i0 + BM < n.S ? i0 + BM : n.S;
  const int64_t end = n.causal ? past : n.S;
  for (int64_t j0 = 0; j0 < end; j0 += BN) {
    __syncthreads();  // all are done with k and v of the keys before
    load_tile(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
    load_tile(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);
    __syncthreads();  // all tiles are complete before anybody multiplies
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
      top = fmaxf(max[r], top);  // every row sees key 0, so from the first tile on it is a number
      const float shrink = exp2f(max[r] - top);
      max[r] = top;
      sum[r] *= shrink;
#pragma unroll
      for (int c = 0; c < TN; ++c) {
        p[r][c] = exp2f(p[r][c] - top);
        sum[r] += p[r][c];
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) acc[r][c] *= shrink;
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

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     bool causal) {
  const Sizes n = check_inputs(q, k, v, causal);
  const DeviceGuard guard(q);
  Tensor o = torch::stable::empty_like(q);
  Tensor lse = torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  if (q.numel() == 0) return {o, lse};
  const int64_t tiles = ceil_div<int64_t>(n.S, BM);
  const bool wide = is_wide(n, {&q, &k, &v});
  dispatch_floating(q, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = n.D <= 64 ? attention_kernel<T, 64> : attention_kernel<T, 128>;
    const size_t bytes = n.D <= 64 ? sizeof(ForwardTiles<64>) : sizeof(ForwardTiles<128>);
    allow_shared(kernel, bytes);
    kernel<<<grid_size(n.N * tiles, "q"), THREADS, bytes, current_stream(q)>>>(
        data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse), n, tiles,
        wide);
  });
  check_launch("attention");
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day20, m) {
  m.def("attention(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
  m.def(
      "attention_backward_v1_naive(Tensor go, Tensor glse, Tensor q, Tensor k, Tensor v, Tensor o,"
      " Tensor lse, bool causal=False) -> (Tensor, Tensor, Tensor)");
  m.def(
      "attention_backward_v2_two_walks(Tensor go, Tensor glse, Tensor q, Tensor k, Tensor v,"
      " Tensor o, Tensor lse, bool causal=False) -> (Tensor, Tensor, Tensor)");
  m.def(
      "attention_backward_v3_one_walk(Tensor go, Tensor glse, Tensor q, Tensor k, Tensor v,"
      " Tensor o, Tensor lse, bool causal=False) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(day20, CUDA, m) {
  m.impl("attention", TORCH_BOX(&attention));
  m.impl("attention_backward_v1_naive", TORCH_BOX(&attention_backward_v1_naive));
  m.impl("attention_backward_v2_two_walks", TORCH_BOX(&attention_backward_v2_two_walks));
  m.impl("attention_backward_v3_one_walk", TORCH_BOX(&attention_backward_v3_one_walk));
}

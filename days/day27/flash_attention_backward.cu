// Day 27: the backward pass of attention on tensor cores
//
//   s = q · kᵀ / sqrt(D)    p = exp(s - lse)    gp = go · vᵀ    gs = p · (gp - δ) / sqrt(D)
//   gv = pᵀ · go            gk = gsᵀ · q        gq = gs · k     δ = sum_d go · o - glse
//   q, o, go, gq: (B, H, Sq, D); k, v, gk, gv: (B, H, Sk, D), D = 64 or 128, fp16 or bf16;
//   lse, glse, δ: (B, H, Sq), fp32
//
// Operations: five products, 10 · B · H · Sq · Sk · D; for 4×16×4096×128 that is 1.4 TFLOP. Bytes:
// 1.1 GB for all inputs and outputs, so tensor cores are the limit.
//
//   v1 two_passes   tensor cores; one pass for gk and gv, one for gq: seven products, equal bits
//   v2 pipelined    each tile is loaded while the tile before it is multiplied
//   v3 one_pass     five products; gq is accumulated in memory with atomicAdd
//
// Run: python run_day.py 27

#include "common/cuda/binding.cuh"
#include "common/cuda/capability.cuh"
#include "common/cuda/flash_attention.cuh"  // taught in day 26
#include "common/cuda/mma_tiles.cuh"        // taught in day 26
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/ptx/exp2.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"    // taught in day 23

#include <cmath>
#include <cstring>
#include <tuple>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_TENSOR_CORES_OF_BF16  // and cp.async; older cards get empty kernels, never launched
#endif

constexpr int BM = 64;  // rows of q per tile
constexpr float LOG2_E = 1.44269504f;

// What a row of q needs beside q and go, written by the kernel below.
struct alignas(8) RowNumbers {
  float lse;    // times log2 e; +inf for a row that sees no key, so that its p becomes 0
  float delta;  // δ
};

template <typename T>
struct Given {
  const T *go, *q, *k, *v;
  const RowNumbers* rows;
  int Sq, Sk;
  int below;    // row i sees key j <= i + below: Sk - Sq with a causal mask, else Sk
  float scale;  // 1 / sqrt(D)
};

// ---------------------------------------------------------------------------------------------
// δ and lse, as all rungs need them. D/8 lanes read one row, 16 bytes each.

constexpr int DELTA_BLOCK = 256;

template <typename T, int D>
__global__ void attention_row_numbers_kernel(const T* __restrict__ go, const T* __restrict__ o,
                                             const float* __restrict__ lse,
                                             const float* __restrict__ glse,
                                             RowNumbers* __restrict__ out, int64_t rows) {
  constexpr int LANES = D / Pack<T>::N;
  const int64_t e = int64_t{blockIdx.x} * DELTA_BLOCK + threadIdx.x, row = e / LANES;
  float sum = 0;
  if (row < rows) {
    const auto x = reinterpret_cast<const Pack<T>*>(go)[e];
    const auto y = reinterpret_cast<const Pack<T>*>(o)[e];
#pragma unroll
    for (int i = 0; i < Pack<T>::N; ++i) {
      sum += static_cast<float>(x.at[i]) * static_cast<float>(y.at[i]);
    }
  }
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(FULL_WARP, sum, distance);
  }
  if (row < rows && e % LANES == 0) {
    const float log_sum = lse[row] == -INFINITY ? INFINITY : lse[row] * LOG2_E;
    out[row] = {log_sum, sum - glse[row]};
  }
}

// ---------------------------------------------------------------------------------------------
// Keys stay: a block keeps 16 keys per warp, loops over the rows of q, and accumulates gk and gv.
//
// It computes the transposed matrices sᵀ = k · qᵀ and gpᵀ = v · goᵀ. Fragment c of such a product
// has 16 keys and 8 rows, and becomes fragment a of the next product in the same registers:
// gv += pᵀ · go and gk += gsᵀ · q need no shared memory for p and gs.

// One tile of rows. Two of them where the next is loaded while this one is multiplied.
template <typename T, int D>
struct alignas(16) RowStage {
  T q[BM * D], go[BM * D];
  RowNumbers rows[BM];
};

template <typename T, int D, int WARPS>
struct KeysShared {
  static constexpr int BN = 16 * WARPS;  // keys per block
  T *k, *v, *gs;  // (BN, D), (BN, D); gsᵀ of two tiles: (2, BN, BM), only if gq is accumulated
  RowStage<T, D>* stages;  // (1 + ahead)

  __device__ KeysShared(void* shared, int ahead)
      : k(static_cast<T*>(shared)),
        v(k + BN * D),
        gs(reinterpret_cast<T*>(reinterpret_cast<RowStage<T, D>*>(v + BN * D) + 1 + ahead)),
        stages(reinterpret_cast<RowStage<T, D>*>(v + BN * D)) {}

  static int64_t bytes(int ahead, bool add_gq) {
    return 2 * BN * D * sizeof(T) + (1 + ahead) * sizeof(RowStage<T, D>) +
           (add_gq ? 2 * BN * BM * sizeof(T) : 0);
  }
};

// c (16 × 8·N8) = a · bᵀ. of_a(fragment, d): columns [d, d + 16) of 16 rows of a; b: a tile.
template <int D, typename T, int N8, typename F>
__device__ __forceinline__ void multiply_rows(float (&c)[N8][4], F of_a, const T* b) {
#pragma unroll
  for (auto& tile : c) tile[0] = tile[1] = tile[2] = tile[3] = 0;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[4], of_b[2][2];
    of_a(a, d);
#pragma unroll
    for (int n = 0; n < N8; n += 2) {
      tiles::load_b_transposed<D>(of_b, b, 8 * n, d);
      ptx::mma_m16n8k16<T>(c[n], a, of_b[0], c[n]);
      ptx::mma_m16n8k16<T>(c[n + 1], a, of_b[1], c[n + 1]);
    }
  }
}

// c (16 × D) += a · b. a: K16 fragments of 16 × 16; b: a tile with 16·K16 rows of D.
template <int D, int K16, typename T>
__device__ __forceinline__ void multiply_add(float (&c)[D / 8][4], const uint32_t (&a)[K16][4],
                                             const T* b) {
#pragma unroll
  for (int k = 0; k < K16; ++k) {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t of_b[2][2];
      tiles::load_b<D>(of_b, b, 16 * k, 8 * n);
      ptx::mma_m16n8k16<T>(c[n], a[k], of_b[0], c[n]);
      ptx::mma_m16n8k16<T>(c[n + 1], a[k], of_b[1], c[n + 1]);
    }
  }
}

// Stores fragments c (16 × D), times `factor`, as rows [first, first + 16) of a matrix of `rows`.
template <int D, typename T>
__device__ void store_rows(T* to, int first, int rows, const float (&c)[D / 8][4], float factor) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + g + 8 * half;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<uint32_t*>(to + int64_t{row} * D + 8 * n + 2 * t) =
          tiles::pack<T>(c[n][2 * half] * factor, c[n][2 * half + 1] * factor);
    }
  }
}

// Sums of gq are not rows of a matrix but fragments c, lane after lane, so that a warp adds 512
// contiguous bytes: (heads, row tiles, BM/16, D/8, 32 lanes, 4 elements).
__device__ __forceinline__ void add_fragment(float* to, const float (&c)[4]) {
  to += threadIdx.x % 32 * 4;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(to), float4{c[0], c[1], c[2], c[3]});  // one instruction
#else
  for (int e = 0; e < 4; ++e) atomicAdd(to + e, c[e]);
#endif
}

// One tile's part of gq: gs (BM × BN) · k (BN × D), of which each warp computes 32 rows and
// 2·D/WARPS columns. sums: the tile's.
template <int D, int WARPS, typename T>
__device__ __forceinline__ void add_gq(float* sums, const T* gs, const T* k) {
  constexpr int COLUMNS = 2 * D / WARPS;
  const int m0 = threadIdx.x / 32 % 2 * 32, d0 = threadIdx.x / 64 * COLUMNS;
  float c[2][COLUMNS / 8][4] = {};
#pragma unroll
  for (int j = 0; j < 16 * WARPS; j += 16) {
    uint32_t a[2][4], b[2][2];
    tiles::load_a_transposed<BM>(a[0], gs, j, m0);
    tiles::load_a_transposed<BM>(a[1], gs, j, m0 + 16);
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n += 2) {
      tiles::load_b<D>(b, k, j, d0 + 8 * n);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        ptx::mma_m16n8k16<T>(c[m][n], a[m], b[0], c[m][n]);
        ptx::mma_m16n8k16<T>(c[m][n + 1], a[m], b[1], c[m][n + 1]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n) {
      add_fragment(sums + ((m0 / 16 + m) * (D / 8) + d0 / 8 + n) * 128, c[m][n]);
    }
  }
}

// v2 against v1: ahead = 1. Shared memory has two tiles of rows, and the copy of the next one is in
// flight while this one is multiplied. With ahead = 0 the warps wait for each copy.
//
// v3 against v2: ADD_GQ. gs is stored to shared memory, since gq needs all keys of the block, and
// multiplied by k. The product is one tile's part of gq; blocks add their parts in memory.
template <typename T, int D, int WARPS, bool ADD_GQ>
__global__ void __launch_bounds__(WARPS * 32, 8 / WARPS)
    attention_keys_stay_kernel(const Given<T> in, float* __restrict__ gq_sum, T* __restrict__ gk,
                               T* __restrict__ gv, int key_tiles, int ahead) {
#ifdef HAS_TENSOR_CORES_OF_BF16
  constexpr int BN = 16 * WARPS, THREADS = 32 * WARPS;
  extern __shared__ float4 dynamic[];  // float4, so that it is aligned to 16 bytes
  const KeysShared<T, D, WARPS> shared(dynamic, ahead);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  // Blocks of one head run at the same time, so its q, go and gq stay in the L2 cache. The first
  // keys first: with a causal mask most rows see them.
  const int64_t head = blockIdx.x / key_tiles;
  const int j0 = blockIdx.x % key_tiles * BN;
  const int64_t at_q = head * in.Sq * D, at_k = head * in.Sk * D;

  // Tiles of rows, from the first that sees a key of this block.
  const int first = max(j0 - in.below, 0) / BM;
  const int count = max((in.Sq + BM - 1) / BM - first, 0);
  const auto fetch = [&](int n) {
    RowStage<T, D>& stage = shared.stages[n & ahead];
    const int i0 = (first + n) * BM, rows = in.Sq - i0;
    const int64_t at = at_q + int64_t{i0} * D;
    tiles::load_async<BM, D, THREADS>(stage.q, in.q + at, D, rows);
    tiles::load_async<BM, D, THREADS>(stage.go, in.go + at, D, rows);
    if (threadIdx.x < BM && threadIdx.x < rows) {
      ptx::cp_async<8>(&stage.rows[threadIdx.x], in.rows + head * in.Sq + i0 + threadIdx.x);
    }
    ptx::cp_async_commit();
  };

  float gk_sum[D / 8][4] = {}, gv_sum[D / 8][4] = {};  // of keys 16·warp + g and + 8
  tiles::load_async<BN, D, THREADS>(shared.k, in.k + at_k + int64_t{j0} * D, D, in.Sk - j0);
  tiles::load_async<BN, D, THREADS>(shared.v, in.v + at_k + int64_t{j0} * D, D, in.Sk - j0);
  if (ahead && count > 0) fetch(0);

  // One round more than tiles: a round multiplies the gs of the round before, so that one barrier
  // per round is enough for it, too.
  for (int n = 0; n < count + ADD_GQ; ++n) {
    if (!ahead && n < count) fetch(n);
    ptx::cp_async_wait<0>();
    __syncthreads();  // the tile is complete, and all warps are done with the tile before it
    if (ahead && n + 1 < count) fetch(n + 1);

    if (n < count) {
      const RowStage<T, D>& stage = shared.stages[n & ahead];
      const int i0 = (first + n) * BM;
      float p[BM / 8][4], gp[BM / 8][4];  // pᵀ and gpᵀ: keys g and g + 8, rows 8j + 2t and + 1
      const auto of_k = [&](auto& a, int d) { tiles::load_a<D>(a, shared.k, 16 * warp, d); };
      const auto of_v = [&](auto& a, int d) { tiles::load_a<D>(a, shared.v, 16 * warp, d); };
      multiply_rows<D>(p, of_k, stage.q);
      multiply_rows<D>(gp, of_v, stage.go);

      // Only tiles at the diagonal and at the ends hide anything.
      const bool open = i0 + BM <= in.Sq && j0 + BN <= in.Sk && j0 + BN - 1 <= i0 + in.below;
      const int rows = in.Sq - i0, keys = in.Sk - j0, below = i0 + in.below - j0;
      const float scale = in.scale * LOG2_E;
#pragma unroll
      for (int j = 0; j < BM / 8; ++j) {
        const float4 two = *reinterpret_cast<const float4*>(&stage.rows[8 * j + 2 * t]);
        const float lse[2] = {two.x, two.z}, delta[2] = {two.y, two.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = 8 * j + 2 * t + e % 2, key = 16 * warp + g + e / 2 * 8;
          p[j][e] = ptx::exp2_approx(p[j][e] * scale - lse[e % 2]);
          gp[j][e] = p[j][e] * (gp[j][e] - delta[e % 2]);
          if (!open && (i >= rows || key >= keys || key > i + below)) p[j][e] = gp[j][e] = 0;
        }
      }
      uint32_t of_p[BM / 16][4], of_gs[BM / 16][4];
#pragma unroll
      for (int m = 0; m < BM / 16; ++m) {
        tiles::to_a<T>(of_p[m], p[2 * m], p[2 * m + 1]);
        tiles::to_a<T>(of_gs[m], gp[2 * m], gp[2 * m + 1]);
        if constexpr (ADD_GQ) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            T* to = shared.gs + n % 2 * BN * BM +
                    tiles::swizzled<BM>(16 * warp + g + e % 2 * 8, 2 * m + e / 2) + 2 * t;
            *reinterpret_cast<uint32_t*>(to) = of_gs[m][e];
          }
        }
      }
      multiply_add<D>(gv_sum, of_p, stage.go);
      multiply_add<D>(gk_sum, of_gs, stage.q);
    }
    if (ADD_GQ && n > 0) {
      const int64_t tile = head * ((in.Sq + BM - 1) / BM) + first + n - 1;
      add_gq<D, WARPS>(gq_sum + tile * BM * D, shared.gs + (n - 1) % 2 * BN * BM, shared.k);
    }
    if (!ahead) __syncthreads();  // all warps are done with the only tile before it is overwritten
  }
  store_rows<D>(gk + at_k, j0 + 16 * warp, in.Sk, gk_sum, in.scale);
  store_rows<D>(gv + at_k, j0 + 16 * warp, in.Sk, gv_sum, 1);
#endif
}

// ---------------------------------------------------------------------------------------------
// Rows stay: a block keeps 16 rows per warp, their q and go in registers, loops over the keys, and
// accumulates gq. p and gs are computed a second time, but blocks share no output.

constexpr int ROW_WARPS = BM / 16;

template <typename T, int D>
struct alignas(16) KeyStage {
  T k[BM * D], v[BM * D];  // 64 keys
};

template <typename T, int D>
__global__ void __launch_bounds__(ROW_WARPS * 32, 2)
    attention_rows_stay_kernel(const Given<T> in, T* __restrict__ gq, int row_tiles, int ahead) {
#ifdef HAS_TENSOR_CORES_OF_BF16
  constexpr int THREADS = 32 * ROW_WARPS;
  extern __shared__ float4 dynamic[];
  auto* stages = reinterpret_cast<KeyStage<T, D>*>(dynamic);  // (1 + ahead)
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  // The last rows first: with a causal mask they have the most keys.
  const int64_t head = blockIdx.x / row_tiles;
  const int i0 = (row_tiles - 1 - blockIdx.x % row_tiles) * BM;
  const int64_t at_q = head * in.Sq * D, at_k = head * in.Sk * D;

  // Rows g and g + 8 of the warp's. Those beyond the end are computed and not stored.
  RowNumbers mine[2] = {};
  for (int half = 0; half < 2; ++half) {
    const int row = i0 + 16 * warp + g + 8 * half;
    if (row < in.Sq) mine[half] = in.rows[head * in.Sq + row];
  }
  uint32_t q[D / 16][4], go[D / 16][4];  // columns [16d, 16d + 16) of the warp's rows
  tiles::load_async<BM, D, THREADS>(stages->k, in.q + at_q + int64_t{i0} * D, D, in.Sq - i0);
  tiles::load_async<BM, D, THREADS>(stages->v, in.go + at_q + int64_t{i0} * D, D, in.Sq - i0);
  ptx::cp_async_wait_all();
  __syncthreads();  // q and go are complete
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    tiles::load_a<D>(q[d], stages->k, 16 * warp, 16 * d);
    tiles::load_a<D>(go[d], stages->v, 16 * warp, 16 * d);
  }
  __syncthreads();  // all warps have read q and go before keys overwrite them

  // No row of the block sees a later key.
  const int end = max(min(i0 + BM + in.below, in.Sk), 0), count = (end + BM - 1) / BM;
  const auto fetch = [&](int n) {
    KeyStage<T, D>& stage = stages[n & ahead];
    const int64_t at = at_k + int64_t{n} * BM * D;
    tiles::load_async<BM, D, THREADS>(stage.k, in.k + at, D, in.Sk - n * BM);
    tiles::load_async<BM, D, THREADS>(stage.v, in.v + at, D, in.Sk - n * BM);
    ptx::cp_async_commit();
  };

  float gq_sum[D / 8][4] = {};
  if (ahead && count > 0) fetch(0);
  for (int n = 0; n < count; ++n) {
    if (!ahead) fetch(n);
    ptx::cp_async_wait<0>();
    __syncthreads();  // the tile is complete, and all warps are done with the tile before it
    if (ahead && n + 1 < count) fetch(n + 1);

    const KeyStage<T, D>& stage = stages[n & ahead];
    const int j0 = n * BM;
    float p[BM / 8][4], gp[BM / 8][4];  // rows g and g + 8, keys 8j + 2t and + 1
    const auto of_q = [&](auto& a, int d) { memcpy(a, q[d / 16], sizeof a); };
    const auto of_go = [&](auto& a, int d) { memcpy(a, go[d / 16], sizeof a); };
    multiply_rows<D>(p, of_q, stage.k);
    multiply_rows<D>(gp, of_go, stage.v);
    const bool open = j0 + BM <= in.Sk && j0 + BM - 1 <= i0 + in.below;
    const int keys = in.Sk - j0, below = i0 + in.below - j0;
    const float scale = in.scale * LOG2_E;
#pragma unroll
    for (int j = 0; j < BM / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = 8 * j + 2 * t + e % 2, i = 16 * warp + g + e / 2 * 8;
        const float value = ptx::exp2_approx(p[j][e] * scale - mine[e / 2].lse);
        gp[j][e] = value * (gp[j][e] - mine[e / 2].delta);
        if (!open && (key >= keys || key > i + below)) gp[j][e] = 0;
      }
    }
    uint32_t of_gs[BM / 16][4];
#pragma unroll
    for (int m = 0; m < BM / 16; ++m) tiles::to_a<T>(of_gs[m], gp[2 * m], gp[2 * m + 1]);
    multiply_add<D>(gq_sum, of_gs, stage.k);
    if (!ahead) __syncthreads();  // all warps are done with the only tile before it is overwritten
  }
  store_rows<D>(gq + at_q, i0 + 16 * warp, in.Sq, gq_sum, in.scale);
#endif
}

// gq from v3's sums, times the scale. A thread has 8 columns of rows g and g + 8 of a fragment:
// four lanes' elements, which are 64 contiguous bytes.
template <typename T, int D>
__global__ void attention_round_kernel(const float4* __restrict__ sums, T* __restrict__ gq, int Sq,
                                       float scale, int64_t threads) {
  const int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e >= threads) return;
  const int64_t groups = (Sq + BM - 1) / BM * (BM / 16), group = e / D;  // of 16 rows
  const int g = e % 8, n = e / 8 % (D / 8);
  const int64_t head = group / groups, row = group % groups * 16 + g;
  uint32_t low[4], high[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float4 x = sums[4 * e + t];
    low[t] = tiles::pack<T>(x.x * scale, x.y * scale);
    high[t] = tiles::pack<T>(x.z * scale, x.w * scale);
  }
  auto* to = reinterpret_cast<uint4*>(gq + (head * Sq + row) * D + 8 * n);
  if (row < Sq) to[0] = {low[0], low[1], low[2], low[3]};
  if (row + 8 < Sq) to[D] = {high[0], high[1], high[2], high[3]};  // 8 rows of D/8 packs
}

// ---------------------------------------------------------------------------------------------
// Launchers.

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // gq, gk, gv

struct Arguments {
  const Tensor &go, &glse, &q, &k, &v, &o, &lse;
  bool causal;
};

void check_matrix(const Tensor& t, const char* name) {
  check(t, name).on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(4).contiguous();
  STD_TORCH_CHECK(is_aligned(t, 16), name,
                  ": expected an address that is a multiple of 16 bytes; call .clone()");
}

// lse or its gradient: one fp32 number per row of q.
void check_rows(const Tensor& t, const char* name, const Tensor& q) {
  check(t, name).on_gpu().dtype({ScalarType::Float}).rank(3).contiguous().same_device(q, "q");
  for (int64_t dim = 0; dim < 3; ++dim) check(t, name).size(dim, q.size(dim));
}

constexpr int64_t MOST_ROWS = 1 << 30;  // so that sums of two positions fit into 32 bits

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_matrix(q, "q");
  STD_TORCH_CHECK(q.size(3) == 64 || q.size(3) == 128,
                  "q: expected 64 or 128 elements in the last dimension, got shape ", shape_of(q));
  STD_TORCH_CHECK(q.size(2) < MOST_ROWS, "q: expected less than 2^30 rows, got ", shape_of(q));
  check_matrix(k, "k");
  STD_TORCH_CHECK(k.size(2) < MOST_ROWS, "k: expected less than 2^30 rows, got ", shape_of(k));
  check(k, "k").dtype({q.scalar_type()}).same_device(q, "q");
  for (const int64_t dim : {0, 1, 3}) check(k, "k").size(dim, q.size(dim));
  check_matrix(v, "v");
  check(v, "v").like(k, "k");
}

void check_all(const Arguments& a) {
  check_inputs(a.q, a.k, a.v);
  check_matrix(a.o, "o");
  check(a.o, "o").like(a.q, "q");
  check_matrix(a.go, "go");
  check(a.go, "go").like(a.q, "q");
  check_rows(a.lse, "lse", a.q);
  check_rows(a.glse, "glse", a.q);
}

void clear(const Tensor& t) {
  if (t.numel() == 0) return;
  check_cuda(
      cudaMemsetAsync(t.mutable_data_ptr(), 0, t.numel() * t.element_size(), current_stream(t)),
      "cudaMemsetAsync");
}

// Calls f(element, dimension): a zero of the dtype's type, and D as an integral_constant.
template <typename F>
void dispatch(const Tensor& q, F f) {
  const auto with_type = [&](auto zero) {
    if (q.size(3) == 64) return f(zero, std::integral_constant<int, 64>{});
    f(zero, std::integral_constant<int, 128>{});
  };
  if (q.scalar_type() == ScalarType::Half) return with_type(__half{});
  with_type(__nv_bfloat16{});
}

template <int WARPS, bool ADD_GQ, typename T, int D>
void launch_keys_stay_with(const Tensor& q, const Given<T>& in, int64_t heads, int ahead,
                           float* gq_sum, const Gradients& made) {
  const auto kernel = attention_keys_stay_kernel<T, D, WARPS, ADD_GQ>;
  const int64_t bytes = KeysShared<T, D, WARPS>::bytes(ahead, ADD_GQ);
  require_shared_memory(bytes, "the tiles");
  allow_shared(kernel, bytes);
  const int tiles = ceil_div(in.Sk, 16 * WARPS);
  kernel<<<grid_size(heads * tiles, "k"), WARPS * 32, bytes, current_stream(q)>>>(
      in, gq_sum, mutable_data<T>(std::get<1>(made)), mutable_data<T>(std::get<2>(made)), tiles,
      ahead);
}

// 128 keys per block: for D = 128 and v3 that is 161 KB of shared memory. Where a block cannot have
// so much, 64 keys, and where not even those fit beside two tiles of rows, one tile of rows. 64
// keys also for D = 64 without gq, where two such blocks per multiprocessor are faster.
template <bool ADD_GQ, typename T, int D>
void launch_keys_stay(const Tensor& q, const Given<T>& in, int64_t heads, int ahead, float* gq_sum,
                      const Gradients& made) {
  const int64_t limit = shared_limit(q);
  if constexpr (D == 128 || ADD_GQ) {
    if (KeysShared<T, D, 8>::bytes(ahead, ADD_GQ) <= limit) {
      return launch_keys_stay_with<8, ADD_GQ, T, D>(q, in, heads, ahead, gq_sum, made);
    }
  }
  if (KeysShared<T, D, 4>::bytes(ahead, ADD_GQ) > limit) ahead = 0;
  launch_keys_stay_with<4, ADD_GQ, T, D>(q, in, heads, ahead, gq_sum, made);
}

template <typename T, int D>
void launch_rows_stay(const Tensor& q, const Given<T>& in, int64_t heads, int ahead,
                      const Gradients& made) {
  const auto kernel = attention_rows_stay_kernel<T, D>;
  const int64_t bytes = (1 + ahead) * sizeof(KeyStage<T, D>);
  allow_shared(kernel, bytes);
  const int tiles = ceil_div(in.Sq, BM);
  kernel<<<grid_size(heads * tiles, "q"), ROW_WARPS * 32, bytes, current_stream(q)>>>(
      in, mutable_data<T>(std::get<0>(made)), tiles, ahead);
}

// ahead: tiles that are loaded while another is multiplied, 0 or 1. one_pass: gq by atomicAdd.
Gradients backward(const Arguments& a, const char* name, int ahead, bool one_pass) {
  check_all(a);
  const DeviceGuard guard(a.q);
  require_capability(8, 0, "mma of 16×8×16");
  Gradients made{torch::stable::empty_like(a.q), torch::stable::empty_like(a.k),
                 torch::stable::empty_like(a.v)};
  if (a.q.numel() == 0 || a.k.numel() == 0) {  // sums of nothing
    for (const Tensor& t : {std::get<0>(made), std::get<1>(made), std::get<2>(made)}) clear(t);
    return made;
  }
  const int Sq = static_cast<int>(a.q.size(2)), Sk = static_cast<int>(a.k.size(2));
  const int64_t heads = a.q.size(0) * a.q.size(1), rows = heads * Sq;
  const cudaStream_t stream = current_stream(a.q);
  const Tensor numbers = torch::stable::new_empty(a.lse, {rows, 2}, ScalarType::Float);
  dispatch(a.q, [&](auto zero, auto dimension) {
    using T = decltype(zero);
    constexpr int D = decltype(dimension)::value;
    auto* of_rows = static_cast<RowNumbers*>(numbers.mutable_data_ptr());
    const Given<T> in{data<T>(a.go),
                      data<T>(a.q),
                      data<T>(a.k),
                      data<T>(a.v),
                      of_rows,
                      Sq,
                      Sk,
                      a.causal ? Sk - Sq : Sk,
                      static_cast<float>(1 / std::sqrt(double{D}))};
    const unsigned grid = grid_size(ceil_div<int64_t>(a.q.numel() / 8, DELTA_BLOCK), "q");
    attention_row_numbers_kernel<T, D><<<grid, DELTA_BLOCK, 0, stream>>>(
        in.go, data<T>(a.o), data<float>(a.lse), data<float>(a.glse), of_rows, rows);

    if (!one_pass) {
      launch_keys_stay<false, T, D>(a.q, in, heads, ahead, nullptr, made);
      launch_rows_stay<T, D>(a.q, in, heads, ahead, made);
      return;
    }
    // Whole tiles of rows, those beyond the end included.
    const int64_t count = heads * ceil_div(Sq, BM) * BM * D;
    const Tensor sums = torch::stable::new_empty(a.q, {count}, ScalarType::Float);
    clear(sums);
    launch_keys_stay<true, T, D>(a.q, in, heads, ahead, mutable_data<float>(sums), made);
    const unsigned blocks = grid_size(ceil_div<int64_t>(count / 16, 256), "q");
    attention_round_kernel<T, D>
        <<<blocks, 256, 0, stream>>>(static_cast<const float4*>(sums.const_data_ptr()),
                                     mutable_data<T>(std::get<0>(made)), Sq, in.scale, count / 16);
  });
  check_launch(name);
  return made;
}

#define ARGUMENTS                                                                          \
  const Tensor &go, const Tensor &glse, const Tensor &q, const Tensor &k, const Tensor &v, \
      const Tensor &o, const Tensor &lse, bool causal

Gradients attention_backward_v1_two_passes(ARGUMENTS) {
  return backward({go, glse, q, k, v, o, lse, causal}, "v1_two_passes", 0, false);
}

Gradients attention_backward_v2_pipelined(ARGUMENTS) {
  return backward({go, glse, q, k, v, o, lse, causal}, "v2_pipelined", 1, false);
}

Gradients attention_backward_v3_one_pass(ARGUMENTS) {
  return backward({go, glse, q, k, v, o, lse, causal}, "v3_one_pass", 1, true);
}

// Day 26's forward pass, o and lse: the operator that the above differentiate.
std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     bool causal) {
  check_inputs(q, k, v);
  const DeviceGuard guard(q);
  Tensor o = torch::stable::empty_like(q);
  Tensor lse = torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  flash::forward(q, k, v, nullptr, o, lse, causal);
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------

#define INPUTS                                                                               \
  "(Tensor go, Tensor glse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal" \
  "=False) -> (Tensor, Tensor, Tensor)"

RUNG(day27, attention, "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day27, attention_backward_v1_two_passes, INPUTS);
RUNG(day27, attention_backward_v2_pipelined, INPUTS);
RUNG(day27, attention_backward_v3_one_pass, INPUTS);

// The pass in which keys stay, for all rungs of day 27: gk, gv and, in v3, parts of gq.
#pragma once

#include "days/day27/backward_inputs.cuh"

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
#ifdef HAS_BF16_MMA
  constexpr int BN = 16 * WARPS, THREADS = 32 * WARPS;
  extern __shared__ __align__(128) float4 dynamic[];
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

template <int WARPS, bool ADD_GQ, typename T, int D>
void launch_keys_stay_with(const Tensor& on, const Given<T>& in, int64_t heads, int ahead,
                           float* gq_sum, T* gk, T* gv) {
  const auto kernel = attention_keys_stay_kernel<T, D, WARPS, ADD_GQ>;
  const int64_t bytes = KeysShared<T, D, WARPS>::bytes(ahead, ADD_GQ);
  require_shared_memory(bytes, "the tiles");
  allow_shared(kernel, bytes);
  const int tiles = ceil_div(in.Sk, 16 * WARPS);
  kernel<<<grid_size(heads * tiles, "k"), WARPS * 32, bytes, current_stream(on)>>>(
      in, gq_sum, gk, gv, tiles, ahead);
}

// 128 keys per block: for D = 128 and v3 that is 161 KB of shared memory. Where a block cannot have
// so much, 64 keys, and where not even those fit beside two tiles of rows, one tile of rows. 64
// keys also for D = 64 without gq, where two such blocks per multiprocessor are faster.
template <bool ADD_GQ, typename T, int D>
void launch_keys_stay(const Tensor& q, const Given<T>& in, int64_t heads, int ahead, float* gq_sum,
                      const Gradients& made) {
  const int64_t limit = shared_limit(q);
  T *gk = mutable_data<T>(std::get<1>(made)), *gv = mutable_data<T>(std::get<2>(made));
  if constexpr (D == 128 || ADD_GQ) {
    if (KeysShared<T, D, 8>::bytes(ahead, ADD_GQ) <= limit) {
      return launch_keys_stay_with<8, ADD_GQ, T, D>(q, in, heads, ahead, gq_sum, gk, gv);
    }
  }
  if (KeysShared<T, D, 4>::bytes(ahead, ADD_GQ) > limit) ahead = 0;
  launch_keys_stay_with<4, ADD_GQ, T, D>(q, in, heads, ahead, gq_sum, gk, gv);
}

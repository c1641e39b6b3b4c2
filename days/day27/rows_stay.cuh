// The pass in which rows stay: gq, which one block per 64 rows writes, so that two runs give equal
// bits.
#pragma once

#include "days/day27/backward_inputs.cuh"

#include <cstring>

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
#ifdef HAS_BF16_MMA
  constexpr int THREADS = 32 * ROW_WARPS;
  extern __shared__ __align__(128) float4 dynamic[];
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

template <typename T, int D>
void launch_rows_stay(const Tensor& on, const Given<T>& in, int64_t heads, int ahead, T* gq) {
  const auto kernel = attention_rows_stay_kernel<T, D>;
  const int64_t bytes = (1 + ahead) * sizeof(KeyStage<T, D>);
  allow_shared(kernel, bytes);
  const int tiles = ceil_div(in.Sq, BM);
  kernel<<<grid_size(heads * tiles, "q"), ROW_WARPS * 32, bytes, current_stream(on)>>>(
      in, gq, tiles, ahead);
}

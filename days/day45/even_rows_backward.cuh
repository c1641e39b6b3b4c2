// Day 45: v2's backward pass with gh, for rows of two packs for each of 256 threads. No pack needs
// a branch. gh comes by cp.async, too, and the block's two sums need fewer shuffles.
#pragma once

#include "days/day45/backward.cuh"

constexpr int EVEN_CHUNKS = SMALL_BLOCK * PACKS;  // per row
constexpr int EVEN_WARPS = SMALL_BLOCK / 32;

// The sum over all threads of the block, in each of them. warps: a round's part of shared memory, a
// sum of g and one of g · n per warp. A thread that writes it two rounds later has passed the
// barrier of the round in between, after which no thread reads what it held.
__device__ inline RowSums sum_over_block(RowSums mine, float4 (&warps)[2][EVEN_WARPS / 4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Five shuffles for both sums: lanes below 16 go on with g, the others with g · n.
  const bool upper = lane >= 16;
  const float given = __shfl_xor_sync(FULL_WARP, upper ? mine.g : mine.gn, 16);
  float sum = (upper ? mine.gn : mine.g) + given;
#pragma unroll
  for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, half);
  if (lane % 16 == 0) reinterpret_cast<float*>(warps[upper])[warp] = sum;
  __syncthreads();  // every warp waits for the sums of all warps
  const auto total = [&](const float4* of) {
    return ((of[0].x + of[0].y) + (of[0].z + of[0].w)) +
           ((of[1].x + of[1].y) + (of[1].z + of[1].w));
  };
  return {total(warps[0]), total(warps[1])};
}

template <typename T, int N>
__global__ void __launch_bounds__(SMALL_BLOCK, 2)
    layer_norm_backward_v2_even_kernel(Backward<T, N> b, float* __restrict__ partial) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using C = Chunk<T, N>;
  constexpr int COLS = EVEN_CHUNKS * N;
  extern __shared__ __align__(128) char memory[];
  __shared__ float4 warps[2][2][EVEN_WARPS / 4];  // rounds use the halves in turns

  // Pack k of tensor t (0: gy, 1: h, 2: gh) of a stage.
  auto* const ring = reinterpret_cast<C*>(memory) + threadIdx.x;
  const auto at = [&](int stage, int t, int k) {
    return ring + ((stage * 3 + t) * PACKS + k) * SMALL_BLOCK;
  };
  const auto copy = [&](int64_t row, int stage) {
    if (row < b.rows) {
      const int64_t start = row * EVEN_CHUNKS + threadIdx.x;
#pragma unroll
      for (int k = 0; k < PACKS; ++k) {
        ptx::cp_async<16>(at(stage, 0, k), b.gy + start + k * SMALL_BLOCK);
        ptx::cp_async<16>(at(stage, 1, k), b.h + start + k * SMALL_BLOCK);
        ptx::cp_async<16>(at(stage, 2, k), b.gh + start + k * SMALL_BLOCK);
      }
    }
    ptx::cp_async_commit();  // also an empty group, so that each row is one
  };
  const int64_t step = gridDim.x;
  int64_t row = blockIdx.x;
  for (int s = 0; s < STAGES - 1; ++s) copy(row + s * step, s);

  Chunk<float, N> weight[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    weight[k] = widened(load_raw(b.weight + threadIdx.x + k * SMALL_BLOCK));
  }
  float gw[PACKS][N] = {}, gb[PACKS][N] = {};
  Statistics s = statistics_of(b, row);

  for (int stage = 0, round = 0; row < b.rows; ++round, row += step) {
    copy(row + (STAGES - 1) * step, (stage + STAGES - 1) % STAGES);
    const Statistics next = statistics_of(b, row + step);  // in flight, like the copies
    ptx::cp_async_wait<STAGES - 1>();  // this row has come; those of the younger groups may not
    const float shift = -s.mean * s.rstd;
    Terms terms[PACKS][N];
    RowSums sums{0, 0};
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const Chunk<float, N> gy = widened(load_raw(at(stage, 0, k)));
      const Chunk<float, N> h = widened(load_raw(at(stage, 1, k)));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        // One operation less for elements of 16 bits: they have fewer digits than it loses.
        const float n = sizeof(T) == 2 ? fmaf(h.at[i], s.rstd, shift) : s.normalise(h.at[i]);
        const Terms of{__fmul_rn(gy.at[i], weight[k].at[i]), n};
        sums.g += of.g;
        sums.gn = fmaf(of.g, of.n, sums.gn);
        gw[k][i] = fmaf(gy.at[i], of.n, gw[k][i]);
        gb[k][i] += gy.at[i];
        terms[k][i] = of;
      }
    }
    sums = sum_over_block(sums, warps[round % 2]);
    const RowSums means{sums.g * (1.0f / COLS), sums.gn * (1.0f / COLS)};
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const Chunk<float, N> gh = widened(load_raw(at(stage, 2, k)));
      C gx;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float inner = fmaf(-terms[k][i].n, means.gn, terms[k][i].g - means.g);
        gx.at[i] = static_cast<T>(fmaf(s.rstd, inner, gh.at[i]));
      }
      b.gx[row * EVEN_CHUNKS + threadIdx.x + k * SMALL_BLOCK] = gx;
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
    s = next;
  }

  // The sums of this block, (2, COLS) of partial (blocks of the grid, 2, COLS).
  float* const to = partial + int64_t{blockIdx.x} * 2 * COLS + threadIdx.x * N;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) store_sums(to + k * SMALL_BLOCK * N, COLS, gw[k], gb[k]);
#endif
}

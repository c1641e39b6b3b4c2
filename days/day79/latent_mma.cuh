// v2: decoding over a latent cache by mma.sync.
#pragma once

#include "common/cuda/matrix_map.cuh"  // taught in day 55
#include "days/day79/latent.cuh"

// v2 against v1: a row that has been loaded serves 64 heads, by mma.sync. Warp (r, c) of 4 × 2 has
// heads 16r + [0, 16): the scores of tokens 16c + [0, 16) of a tile, and columns 256c + [0, 256) of
// o. Exponentials are exchanged through shared memory.

constexpr int TOKENS = 32;  // per tile
constexpr int MMA_THREADS = 256;
constexpr int MMA_TILE = TOKENS * KEY;  // elements
constexpr int P_ROW = 64;               // elements between rows of p, of which 32 are used
constexpr int MMA_BYTES = (HEADS * KEY + 2 * MMA_TILE + HEADS * P_ROW) * 2 + TILE_ALIGNMENT;

// Starts the copies of `count` rows, one behind the other; zeros from `rows` on: 0 · NaN would be
// NaN.
template <typename T>
__device__ void copy_rows(T* tile, const T* from, int count, int rows) {
  constexpr int CHUNKS = KEY / tiles::CHUNK;
  for (int e = threadIdx.x; e < count * CHUNKS; e += MMA_THREADS) {
    const int row = e / CHUNKS, chunk = e % CHUNKS;
    ptx::cp_async_zero_fill<16>(tile + tiles::swizzled<KEY>(row, chunk), from + e * tiles::CHUNK,
                                row < rows ? 16 : 0);
  }
}

template <typename T>
__global__ void __launch_bounds__(MMA_THREADS, 1) mla_mma_kernel(Latent<T> n) {
#ifdef HAS_BF16_MMA
  __shared__ float exchanged[2][HEADS];  // by c: maxima of a tile, and sums at the end
  T* const q = reinterpret_cast<T*>(tile_memory());
  T* const ring = q + HEADS * KEY;
  T* const p = ring + 2 * MMA_TILE;  // (HEADS, P_ROW)
  const Range range = split_range(n, blockIdx.x / n.tiles);
  if (range.begin >= range.end) return;
  const int first = static_cast<int>(blockIdx.x % n.tiles) * HEADS;
  const int r = threadIdx.x / 32 % 4, c = threadIdx.x / 128;
  const int g = threadIdx.x % 32 / 4, lane2 = threadIdx.x % 4 * 2;
  const T* const rows = n.cache + range.b * n.room * KEY;

  copy_rows(q, n.q + (int64_t{range.b} * n.H + first) * KEY, HEADS, n.H - first);
  copy_rows(ring, rows + int64_t{range.begin} * KEY, TOKENS, range.end - range.begin);
  ptx::cp_async_commit();
  float o[SUMS][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int t = range.begin, stage = 0; t < range.end; t += TOKENS, stage ^= 1) {
    ptx::cp_async_wait_all();
    __syncthreads();  // all copies are complete, and all threads have read the tile before
    const int next = t + TOKENS;
    if (next < range.end) {
      copy_rows(ring + (stage ^ 1) * MMA_TILE, rows + int64_t{next} * KEY, TOKENS,
                range.end - next);
    }
    ptx::cp_async_commit();
    const T* const tile = ring + stage * MMA_TILE;
    float s[2][4] = {};  // tokens 16c + [0, 8) and 16c + [8, 16)
#pragma unroll 4
    for (int d = 0; d < KEY; d += 16) {
      uint32_t a[4], b[2][2];
      tiles::load_a<KEY>(a, q, 16 * r, d);
      tiles::load_b_transposed<KEY>(b, tile, 16 * c, d);
      ptx::mma_m16n8k16<T>(s[0], a, b[0], s[0]);
      ptx::mma_m16n8k16<T>(s[1], a, b[1], s[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[i / 2][2 * h + i % 2];
        const int token = t + 16 * c + i / 2 * 8 + lane2 + i % 2;
        x = token < range.end ? x * n.scale_log2 : -INFINITY;
        top = fmaxf(top, x);
      }
      top = tiles::row_max(top);
      if (lane2 == 0) exchanged[c][16 * r + g + 8 * h] = top;
    }
    __syncthreads();  // both warps of a row wait for each other's maximum
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * r + g + 8 * h;
      const float now = fmaxf(most[h], fmaxf(exchanged[0][row], exchanged[1][row]));
      const float base = now == -INFINITY ? 0.0f : now;  // -inf - -inf would be NaN
      const float shrink = ptx::exp2_approx(most[h] - base);
      most[h] = now;
      sum[h] *= shrink;
#pragma unroll
      for (auto& x : o) x[2 * h] *= shrink, x[2 * h + 1] *= shrink;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float low = ptx::exp2_approx(s[i][2 * h] - base);
        const float high = ptx::exp2_approx(s[i][2 * h + 1] - base);
        sum[h] += low + high;
        T* const to = p + tiles::swizzled<P_ROW>(row, 2 * c + i) + lane2;
        *reinterpret_cast<uint32_t*>(to) = tiles::pack<T>(low, high);
      }
    }
    __syncthreads();  // all wait for the exponentials of the 32 tokens
#pragma unroll
    for (int k = 0; k < TOKENS; k += 16) {
      uint32_t a[4];
      tiles::load_a<P_ROW>(a, p, 16 * r, k);
#pragma unroll
      for (int d = 0; d < HALF; d += 16) {
        uint32_t b[2][2];
        tiles::load_b<KEY>(b, tile, k, HALF * c + d);
        ptx::mma_m16n8k16<T>(o[d / 8], a, b[0], o[d / 8]);
        ptx::mma_m16n8k16<T>(o[d / 8 + 1], a, b[1], o[d / 8 + 1]);
      }
    }
  }
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = tiles::row_sum(sum[h]);
    if (lane2 == 0) exchanged[c][16 * r + g + 8 * h] = sum[h];
  }
  __syncthreads();  // both warps of a row wait for each other's sum
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = 16 * r + g + 8 * h, head = first + row;
    const float all = exchanged[0][row] + exchanged[1][row];
    factor[h] = last_factor(range, all);
    if (c == 0 && lane2 == 0 && head < n.H) n.parts.stats[range.part * n.H + head] = {most[h], all};
  }
  store_rows(n, range, first + 16 * r + g, HALF * c + lane2,
             [&](int i) { return o[i / 4][i % 4] * factor[i / 2 % 2]; });
#endif
}

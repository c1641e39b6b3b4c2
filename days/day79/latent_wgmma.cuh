// Decoding over a latent cache by wgmma: boxes of 64 tokens × 64 columns in shared memory, and what
// a warpgroup computes from them.
#pragma once

#include "common/cuda/matrix_map.cuh"  // taught in day 55
#include "common/cuda/ptx.cuh"         // wgmma: taught in day 56
#include "days/day79/latent.cuh"

using ptx::Major, ptx::Swizzle, ptx::TensorMap;

constexpr int WARPGROUP = 128;                        // threads that issue a wgmma together
constexpr int CONSUMERS = 2 * WARPGROUP;              // the threads of both warpgroups
constexpr int WGMMA_THREADS = CONSUMERS + WARPGROUP;  // and a warpgroup, of which a thread loads
constexpr int BOX = 64;                               // columns that TMA loads at a time
constexpr int BOXES = KEY / BOX;                      // per tile: 0 rotary, 1 to 8 the values
constexpr int BOX_ROW = BOX * 2;                      // bytes
constexpr int BOX_BYTES = BN * BOX_ROW;               // of 64 tokens, or 64 heads
constexpr int SLOTS = 2 * BOXES;                      // boxes in shared memory: two tiles
constexpr int P_BYTES = HEADS * BN * 2;               // exponentials of a tile
constexpr int64_t WGMMA_BYTES = (BOXES + SLOTS) * BOX_BYTES + P_BYTES + TILE_ALIGNMENT;
static_assert(BOX_BYTES == HEADS * BOX_ROW, "boxes of q and of the cache are equally large");

// Named barriers: the first warpgroup has stored exponentials, the second has read them, and
// barriers of the first one and of both.
enum { P_FULL = 1, P_EMPTY, SCORERS, BOTH };

struct Barriers {
  uint64_t full[SLOTS], empty[SLOTS], q_full, q_empty;
  float factors[HEADS];  // what rows of o have to be multiplied by
  bool last;             // v4: whether this block merges
};

// x, which is the same in all lanes. The shuffle makes that known to the compiler, which computes
// descriptors once per warp: see day 75.
__device__ __forceinline__ int of_warp(int x) {
  return __shfl_sync(FULL_WARP, x, 0);
}

// ---------------------------------------------------------------------------------------------
// Boxes are counted over all tiles of a block: the i-th goes to slot i % SLOTS, for the i /
// SLOTS-th time.

struct Boxes {
  char* memory;
  Barriers& at;

  __device__ char* q_box(int box) const { return memory + box * BOX_BYTES; }
  __device__ char* slot(int i) const { return memory + (BOXES + i % SLOTS) * BOX_BYTES; }
  // Of thread t of each warpgroup, the four words of 16 tokens: p[j] of that thread.
  __device__ uint4* exponentials(int t, int j) const {
    char* const p = memory + (BOXES + SLOTS) * BOX_BYTES;
    return reinterpret_cast<uint4*>(p) + j * WARPGROUP + t;
  }
  __device__ void wait_full(int i) const { ptx::mbarrier_wait(&at.full[i % SLOTS], i / SLOTS % 2); }
  // This warp's products have read what `empty` guards.
  __device__ void release(uint64_t* empty) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
  }
  __device__ void release_values(int first) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) release(&at.empty[(first + i) % SLOTS]);
  }

  // s = q · kᵀ of the tile whose first box is the i-th. `between` is called when the products of
  // its first box have been issued. A descriptor counts in units of 16 bytes.
  template <typename T, typename F>
  __device__ __forceinline__ void multiply_keys(float (&s)[BN / 2], int i, F&& between) const {
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      wait_full(i + box);
      const uint64_t of_q = ptx::wgmma_descriptor(q_box(box), Swizzle::k128, 0, 8 * BOX_ROW);
      const uint64_t of_k = ptx::wgmma_descriptor(slot(i + box), Swizzle::k128, 0, 8 * BOX_ROW);
      if (box == 0) ptx::pin_registers(s);
      ptx::wgmma_fence();
#pragma unroll
      for (int d = 0; d < BOX / 16; ++d) {  // 16 columns are 32 bytes
        ptx::wgmma<T>(s, of_q + 2 * d, of_k + 2 * d, box > 0 || d > 0);
      }
      ptx::wgmma_commit();
      if (box == 0) between();
    }
  }

  // o += p · v. The tokens of v are rows of four boxes from the first-th on: MN-major.
  template <typename T>
  __device__ __forceinline__ void multiply_values(float (&o)[4 * SUMS], uint32_t (&p)[BN / 16][4],
                                                  int first) const {
    const uint64_t of_v = ptx::wgmma_descriptor(slot(first), Swizzle::k128, BOX_BYTES, 8 * BOX_ROW);
    ptx::pin_registers(p);
    ptx::wgmma_fence(o);
#pragma unroll
    for (int j = 0; j < BN / 16; ++j) {
      ptx::wgmma<T, T, Major::kMN>(o, p[j], of_v + j * 16 * BOX_ROW / 16);
    }
    ptx::wgmma_commit();
  }

  // The first warpgroup stores zeros beyond the last token, because 0 · NaN would be NaN.
  __device__ void clear_rows(int i, int tokens) const {
    for (int box = 0; box < BOXES; ++box) {
      wait_full(i + box);
      auto* const words = reinterpret_cast<uint4*>(slot(i + box) + tokens * BOX_ROW);
      for (int e = threadIdx.x; e < (BN - tokens) * BOX_ROW / 16; e += WARPGROUP) words[e] = {};
    }
    ptx::fence_proxy_async();               // what this thread wrote, before wgmma reads it …
    ptx::barrier_sync(SCORERS, WARPGROUP);  // … and what all others wrote
  }
};

// s becomes its exponentials, relative to the maximum. Returns true if that grew by more than SLACK
// in any row of the warp; then o has to be multiplied by rescale.
__device__ __forceinline__ bool softmax_step(float (&s)[BN / 2], float (&most)[2], float (&sum)[2],
                                             float scale_log2, int tokens, float (&rescale)[2]) {
  float top[2] = {most[0], most[1]};
#pragma unroll
  for (float& x : s) x *= scale_log2;
  if (tokens < BN) {
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) {
      if (i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= tokens) s[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int i = 0; i < BN / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
  bool grown = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = tiles::row_max(top[h]);
    grown |= top[h] > most[h] + SLACK;
  }
  grown = __any_sync(FULL_WARP, grown);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float now = grown ? top[h] : most[h];
    const float base = now == -INFINITY ? 0 : now;  // -inf - -inf would be NaN
    rescale[h] = grown ? ptx::exp2_approx(most[h] - base) : 1;
    most[h] = now;
    sum[h] *= rescale[h];
#pragma unroll
    for (int c = 0; c < BN / 8; ++c) {
      float* const two = &s[4 * c + 2 * h];
      two[0] = ptx::exp2_approx(two[0] - base), two[1] = ptx::exp2_approx(two[1] - base);
      sum[h] += two[0] + two[1];
    }
  }
  return grown;
}

__device__ __forceinline__ void multiply_rows(float (&o)[4 * SUMS], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 4 * SUMS; ++i) o[i] *= factor[i / 2 % 2];
}

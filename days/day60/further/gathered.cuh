// The gradients' v3: products of gathered matrices, whose tiles threads copy 16 bytes at a time.
#pragma once

#include "common/cuda/mma_tiles.cuh"      // taught in day 26
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day60/further/gather.cuh"

// A block computes 128 × 128 sums, each of its 8 warps 64 × 32. A step takes DEPTH values of the
// sum's index; both tiles are then 16 KB. Three stages are 96 KB: two blocks per multiprocessor
// with compute capability 9.0, one with 8.6.
constexpr int SIDE = 128, GATHER_THREADS = 256, GATHER_STAGES = 3;
constexpr int TILE_ELEMENTS = SIDE * DEPTH;
constexpr size_t GATHER_SHARED = 2 * GATHER_STAGES * TILE_ELEMENTS * sizeof(bf16);
constexpr int NOWHERE = -(1 << 30);  // an input row for pixels beyond the last one

// A tile whose rows are pixels or channels has rows of DEPTH elements; one whose rows are the sum's
// index has rows of SIDE elements. A thread copies one chunk of each of COPIES rows.
template <bool DEEP>  // whether rows are the sum's index
struct Copies {
  static constexpr int WIDTH = DEEP ? SIDE : DEPTH, PER_ROW = WIDTH / CHUNK;
  static constexpr int STEP = GATHER_THREADS / PER_ROW, COUNT = TILE_ELEMENTS / WIDTH / STEP;

  static __device__ __forceinline__ int row(int i) { return threadIdx.x / PER_ROW + i * STEP; }
  static __device__ __forceinline__ int offset() { return threadIdx.x % PER_ROW * CHUNK; }
  // Copy i of this thread, or zeros.
  static __device__ __forceinline__ void copy(bf16* tile, int i, const bf16* from, bool inside) {
    bf16* to = tile + tiles::swizzled<WIDTH>(row(i), offset() / CHUNK);
    ptx::cp_async_zero_fill<16>(to, from, inside ? 16 : 0);
  }
};

// sums += A · B of one step. The rows of B's tile are the sum's index; A_DEEP: those of A's, too.
template <bool A_DEEP>
__device__ __forceinline__ void multiply_gathered(float (&sums)[4][4][4], const bf16* a,
                                                  const bf16* b) {
  const int warp = threadIdx.x / 32, m0 = warp / 4 * 64, n0 = warp % 4 * 32;
#pragma unroll
  for (int k = 0; k < DEPTH; k += 16) {
    uint32_t of_a[4][4], of_b[2][2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (A_DEEP) {
        tiles::load_a_transposed<SIDE>(of_a[i], a, k, m0 + i * 16);
      } else {
        tiles::load_a<DEPTH>(of_a[i], a, m0 + i * 16, k);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) tiles::load_b<SIDE>(of_b[j], b, k, n0 + j * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        ptx::mma_m16n8k16<bf16>(sums[i][j], of_a[i], of_b[j / 2][j % 2], sums[i][j]);
      }
    }
  }
}

// All steps. load(a, b): starts the copies of the next step's tiles.
template <bool A_DEEP, typename Load>
__device__ __forceinline__ void multiply_steps(float (&sums)[4][4][4], bf16* shared, int steps,
                                               Load load) {
  const auto load_step = [&](int step) {
    bf16* stage = shared + step % GATHER_STAGES * 2 * TILE_ELEMENTS;
    if (step < steps) load(stage, stage + TILE_ELEMENTS);
    ptx::cp_async_commit();
  };
  for (int step = 0; step < GATHER_STAGES - 1; ++step) load_step(step);
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<GATHER_STAGES - 2>();
    __syncthreads();  // all copies of this step have arrived; all have read the step before
    load_step(step + GATHER_STAGES - 1);
    const bf16* stage = shared + step % GATHER_STAGES * 2 * TILE_ELEMENTS;
    multiply_gathered<A_DEEP>(sums, stage, stage + TILE_ELEMENTS);
  }
}

// Calls f(row, col, sum, sum of the next column) for this thread's sums.
template <typename F>
__device__ __forceinline__ void each_pair(const float (&sums)[4][4][4], F f) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / 4 * 64 + lane / 4, col = warp % 4 * 32 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      f(row + i * 16, col + j * 8, sums[i][j][0], sums[i][j][1]);
      f(row + i * 16 + 8, col + j * 8, sums[i][j][2], sums[i][j][3]);
    }
  }
}

inline void require_gathering() {
  require_capability(8, 0, "mma of bfloat16");
  require_shared_memory(GATHER_SHARED, "three pairs of tiles");
}

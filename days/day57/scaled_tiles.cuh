// Tiles of fp8 matrices with scales: their shapes, where they are, and products of one step.
#pragma once

#include "common/cuda/ptx.cuh"            // wgmma: taught in day 56
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/store_part.cuh"     // taught in day 56
#include "days/day56/further/tiles.cuh"   // WARPGROUP, ROW, ROWS: taught in day 56

#include <cuda_fp8.h>

using E4m3 = __nv_fp8_e4m3;

constexpr int DEPTH = 128;   // of K per step: a row of 128 bytes, and one block of the scales
constexpr int STAGES = 4;    // of 40 KB in v1, 48 KB in v2
constexpr int CLUSTER = 2;   // blocks that share B's tile
constexpr int GROUP = 8;     // rows of tiles that are computed together (day 54)
constexpr int SCALED = 128;  // rows of B per scale

// Who scales what. kRows: s_a (M) and s_b (N). kBlocks: s_a (K / 128, M), s_b (K / 128, N / 128).
enum class Scales { kRows, kBlocks };

struct Arguments {
  const float *a_scale, *b_scale;
  __nv_bfloat16* c;  // (M, N)
  int M, N, K;
};

// BM × BN elements of C per tile. v1's consumers take turns (day 56's ping-pong), each has all rows
// of its tiles; v2's share a tile. A consumer's rows are HALVES of 64: in v2 only one.
template <int M, int N, Scales S>
struct Shape {
  static constexpr int BM = M, BN = N;
  static constexpr Scales SCALES = S;
  static constexpr int SHARING = S == Scales::kRows ? 1 : CONSUMERS;  // consumers of a tile
  static constexpr int HALVES = M / SHARING / ROWS;
  static constexpr int A_BYTES = BM * ROW, B_BYTES = BN * ROW, BYTES = A_BYTES + B_BYTES;
  static constexpr int OF_B = BN / SCALED;                              // v2: scales of B per stage
  static constexpr int FACTORS = S == Scales::kBlocks ? BM * OF_B : 0;  // floats of a stage, v2
  static constexpr int BUFFERS = S == Scales::kBlocks ? 1 : 2;  // per consumer, for stores to C
  static constexpr size_t SHARED = STAGES * (BYTES + FACTORS * sizeof(float)) +
                                   CONSUMERS * BUFFERS * PART_BYTES + TILE_ALIGNMENT;
  static_assert(M % (SHARING * ROWS) == 0 && N % PART == 0 && N <= 256);
  static_assert(
      S == Scales::kRows || (HALVES == 1 && N == 2 * SCALED),
      "v2: a consumer has 64 rows, and each scale of B belongs to two quarters of its columns");
};
using RowScaled = Shape<128, 192, Scales::kRows>;
using BlockScaled = Shape<128, 256, Scales::kBlocks>;

// ---------------------------------------------------------------------------------------------

constexpr int UNIT = 16;  // bytes: a descriptor counts its tile's place in them

// The descriptor of a K-major tile, in two words. The tile's place is in the 14 lowest bits of
// `low`, which count all of shared memory. So the descriptor of a tile behind it is one sum away,
// and none has to be made from an address in a loop.
struct Descriptor {
  uint32_t low, high;

  __device__ explicit Descriptor(const char* tile) {
    const uint64_t both = ptx::wgmma_descriptor(tile, Swizzle::k128, 0, 8 * ROW);
    low = static_cast<uint32_t>(both), high = static_cast<uint32_t>(both >> 32);
  }
  __device__ __forceinline__ uint64_t plus(int units) const {
    return uint64_t{high} << 32 | (low + units);
  }
};

// sums += 64 rows of A times B, the tiles that begin of_a and of_b units behind a and b: four
// wgmmas, each for 32 values of k.
template <int COUNT>
__device__ __forceinline__ void multiply_step(float (&sums)[COUNT], const Descriptor& a, int of_a,
                                              const Descriptor& b, int of_b) {
#pragma unroll
  for (int k = 0; k < DEPTH / 32; ++k) {
    ptx::wgmma<E4m3>(sums, a.plus(of_a + k * (32 / UNIT)), b.plus(of_b + k * (32 / UNIT)));
  }
}

constexpr int QUARTER = 64;  // columns of v2's 256 that are multiplied at a time

// v2: 64 rows of A of one step, in the registers of a consumer. Four quarters are multiplied by
// them: a wgmma of 64 columns that read A from shared memory would need 4 KB per 32 clocks, all
// that a multiprocessor's shared memory can deliver.
struct Rows {
  uint32_t place;  // in a tile of A: what this lane passes to ldmatrix
  uint32_t a[DEPTH / 32][4];

  // The rows from `first` on.
  __device__ explicit Rows(int first) {
    const int lane = threadIdx.x % 32;
    const int row = first + threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
    place = row * ROW + ((lane / 16) ^ (row % 8)) * 16;  // the swizzle of 128 bytes
  }

  // ldmatrix takes two fp8 numbers for one of its elements, and leaves them where wgmma wants them.
  __device__ __forceinline__ void load(const char* tile) {
#pragma unroll
    for (int k = 0; k < DEPTH / 32; ++k) ptx::ldmatrix_x4(a[k], tile + (place ^ k * 32));
    ptx::pin_registers(a);
  }

  // part = these rows times QUARTER columns, which begin of_b units behind b: in flight from here.
  __device__ __forceinline__ void multiply(float (&part)[QUARTER / 2], const Descriptor& b,
                                           int of_b) const {
    ptx::wgmma_fence(part);
#pragma unroll
    for (int k = 0; k < DEPTH / 32; ++k)
      ptx::wgmma<E4m3>(part, a[k], b.plus(of_b + k * (32 / UNIT)), k > 0);
    ptx::wgmma_commit();
  }
};

// sums += what 128 of K gave, scaled: elements 4j and 4j + 1 are of the upper row, 4j + 2 and
// 4j + 3 of the lower one.
template <int COUNT>
__device__ __forceinline__ void promote(float* sums, const float (&part)[COUNT],
                                        const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] += scale[i / 2 % 2] * part[i];
}

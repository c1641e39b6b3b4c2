// Tiles of op(A) and op(B) in shared memory: their layout, and the copies that fill them.
#pragma once

#include "common/cuda/pack.cuh"          // taught in day 2
#include "common/cuda/ptx/cp_async.cuh"  // taught in day 20
#include "days/day51/gemm.cuh"           // taught in day 51

using Float4 = Pack<float>;

// How a block computes BM × BN elements of D: WARPS_M × WARPS_N warps of WM × WN elements each, the
// lanes of a warp TM × TN each. STAGES tiles of depth BK lie in shared memory, and RESIDENT blocks
// fit on a multiprocessor. SWIZZLED: see Layout.
template <int BM_, int BN_, int BK_, int WARPS_M, int WARPS_N_, int TM_, int TN_, int STAGES_,
          int RESIDENT_, bool SWIZZLED_ = false>
struct Tiling {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, WARPS_N = WARPS_N_;
  static constexpr int STAGES = STAGES_, RESIDENT = RESIDENT_;
  static constexpr bool SWIZZLED = SWIZZLED_;
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;
  static constexpr int LANES_M = WM / TM, LANES_N = WN / TN;
  static constexpr int BLOCK = WARPS_M * WARPS_N * 32;
  static_assert(LANES_M * LANES_N == 32 && LANES_M % 2 == 0, "the lanes cover a warp's tile");
  static_assert(TM % 4 == 0 && TN % 4 == 0, "fragments consist of packs");
  static_assert(STAGES >= 2, "one tile is filled while another one is read");
};

// Where a tile of BMN rows or columns keeps element (k, mn). PACKS: whole packs are stored, and the
// rows need no padding. Otherwise a warp stores 8 values of k for 4 of mn, which have to lie in 32
// banks: either 4 words behind each row move the next one on by 4 banks, or a swizzle does it.
template <typename T, int BMN, bool PACKS>
struct Layout {
  static constexpr bool SWIZZLED = T::SWIZZLED && !PACKS;
  static constexpr int PITCH = BMN + (PACKS || SWIZZLED ? 0 : 4);

  __host__ __device__ static constexpr int mask(int k) { return SWIZZLED ? k % 8 * 4 : 0; }
  __device__ static int place(int k, int mn) { return k * PITCH + (mn ^ mask(k)); }

  // place(k, mn + i · STEP), for a constant k and i: at most 8 values of k need a sum of their own,
  // the rest is a constant. STEP is 16 or 32, and mn % 32 < STEP.
  template <int STEP>
  __device__ static int place(int k, int mn, int i) {
    return k * PITCH + (mn ^ mask(k) % STEP) + (i * STEP ^ mask(k) / STEP * STEP);
  }
};

// A tile of each operand.
template <typename T, bool A_PACKS, bool B_PACKS>
struct Stage {
  using A = Layout<T, T::BM, A_PACKS>;
  using B = Layout<T, T::BN, B_PACKS>;
  alignas(16) float a[T::BK * A::PITCH];
  alignas(16) float b[T::BK * B::PITCH];
};

// The copies of one thread into the tiles of an operand: packs if PACKS, else single elements. A
// row or column outside of the operand is loaded as a copy of its last one, and its sums are never
// stored. Values of k outside of it are zeros.
template <typename T, int BMN, bool PACKS>
class Share {
  using In = Layout<T, BMN, PACKS>;
  static constexpr int WIDTH = PACKS ? 4 : 1;                   // elements per copy
  static constexpr int DEPTH = PACKS ? T::BLOCK * 4 / BMN : 8;  // all threads, one copy each:
  static constexpr int ACROSS = T::BLOCK * WIDTH / DEPTH;       // DEPTH values of k × ACROSS of mn
  static_assert(T::BK % DEPTH == 0 && BMN % ACROSS == 0, "all threads have the same work");
  static_assert(!In::SWIZZLED || ACROSS % 32 == 0, "the swizzle is the same for all of `from`");

  const float* from[BMN / ACROSS];
  int64_t down;  // elements from k to k + DEPTH
  int k, to;     // of the first copy: its k, and its place in the tile

 public:
  // Of the tiles from k0 on. Along k, four groups of lanes read a sector each; along mn, adjacent
  // lanes read adjacent elements or packs.
  __device__ Share(const Operand& x, int64_t mn0, int64_t k0) {
    const int t = threadIdx.x;
    const bool along_k = !PACKS && x.k_major();
    const int mn = along_k ? t / DEPTH : t % (ACROSS / WIDTH) * WIDTH;
    k = along_k ? t % DEPTH : t / (ACROSS / WIDTH);
    to = In::place(k, mn);
    down = DEPTH * x.k_stride;
    for (int i = 0; i < BMN / ACROSS; ++i) {
      from[i] = x.address(min(mn0 + mn + i * ACROSS, x.size - WIDTH), k0 + k);
    }
  }

  // Starts the copies of a whole tile, and goes on to the next one.
  __device__ void copy(float* tile) {
#pragma unroll
    for (int depth = 0; depth < T::BK; depth += DEPTH) {
      for (int i = 0; i < BMN / ACROSS; ++i) {
        ptx::cp_async<4 * WIDTH>(tile + to + depth * In::PITCH + i * ACROSS, from[i]);
        from[i] += down;
      }
    }
  }

  // The same of a tile that has only `left` values of k; the next tile begins after them.
  __device__ void copy(float* tile, const Operand& x, int left) {
#pragma unroll
    for (int depth = 0; depth < T::BK; depth += DEPTH) {
      const int bytes = k + depth < left ? 4 * WIDTH : 0;
      for (int i = 0; i < BMN / ACROSS; ++i) {
        float* const there = tile + to + depth * In::PITCH + i * ACROSS;
        ptx::cp_async_zero_fill<4 * WIDTH>(there, from[i] + depth / DEPTH * down, bytes);
      }
    }
    for (int i = 0; i < BMN / ACROSS; ++i) from[i] += left * x.k_stride;
  }
};

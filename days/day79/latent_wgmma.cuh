// Decoding over a latent cache by wgmma: 64 heads per block, tiles of 64 tokens, and three roles.
#pragma once

#include "common/cuda/matrix_map.cuh"  // taught in day 55
#include "common/cuda/ptx.cuh"         // wgmma: taught in day 56
#include "days/day79/latent.cuh"

using ptx::Major, ptx::Swizzle, ptx::TensorMap;

constexpr int WARPGROUP = 128;                        // threads that issue a wgmma together
constexpr int CONSUMERS = 2 * WARPGROUP;              // the threads of both warpgroups
constexpr int WGMMA_THREADS = CONSUMERS + WARPGROUP;  // and a warpgroup, of which a thread loads
constexpr int BOX = 64;                               // columns that TMA loads at a time
constexpr int BOXES = KEY / BOX;                      // per tile: 0 has the rope, 1 to 8 the values
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

// ---------------------------------------------------------------------------------------------
// The ranges of a block. Each warp walks over them on its own.

// Where share i of `shares` begins, when `units` are shared out evenly; and the share of a unit:
// day 77 explains both.
__device__ inline int64_t start_of(int64_t units, int64_t i, int64_t shares) {
  return units * i / shares;
}
__device__ inline int64_t share_of(int64_t units, int64_t unit, int64_t shares) {
  return ((unit + 1) * shares - 1) / units;
}

// v3: one range, of one sequence.
template <typename T, bool EVEN>
struct Walk {
  Range only;

  __device__ explicit Walk(const Latent<T>& n) : only(split_range(n, blockIdx.x / n.tiles)) {}

  __device__ bool next(const Latent<T>&, Range& r) {
    r = only;
    only.end = 0;
    return r.begin < r.end;
  }
};

// v4: the units of all sequences stand in one line, and a share is an equal range of it.
template <typename T>
struct Walk<T, true> {
  int64_t all, shares, share;  // all: units
  int64_t unit = 0, end = 0;   // what is left of the share
  int64_t before = 0;          // units of the sequences before b
  int b = 0;

  // All lanes of a warp call it: it adds up the units of all sequences, and looks for the one that
  // contains the first unit of the share, 32 sequences at a time.
  __device__ explicit Walk(const Latent<T>& n) {
    const int lane = threadIdx.x % 32;
    int64_t units = 0;
    for (int i = lane; i < n.B; i += 32) units += units_of(n.length_of(i));
    all = warp_sum(units);
    share = blockIdx.x / n.tiles;
    shares = min(all, int64_t{gridDim.x / n.tiles});  // at least a unit per share
    if (share >= shares) return;
    unit = start_of(all, share, shares), end = start_of(all, share + 1, shares);
    for (;; b += 32) {
      units = b + lane < n.B ? units_of(n.length_of(b + lane)) : 0;
      const int64_t scanned = warp_inclusive_scan(units);
      const unsigned behind = __ballot_sync(FULL_WARP, before + scanned > unit);
      if (behind != 0) {
        const int found = __ffs(static_cast<int>(behind)) - 1;
        before += __shfl_sync(FULL_WARP, scanned - units, found);
        b += found;
        return;
      }
      before += __shfl_sync(FULL_WARP, scanned, 31);
    }
  }

  __device__ bool next(const Latent<T>& n, Range& r) {
    if (unit >= end) return false;
    int length = n.length_of(b);
    while (before + units_of(length) <= unit) {  // empty ones too
      before += units_of(length);
      length = n.length_of(++b);
    }
    const int64_t units = units_of(length), last = min(units, end - before);
    r.b = b;
    r.begin = static_cast<int>((unit - before) * BN);
    r.end = static_cast<int>(min(last * BN, int64_t{length}));
    // The parts are numbered along the line: from one to the next, the share or the sequence is
    // another one, or both.
    const int64_t first = share_of(all, before, shares);
    r.part = share + b, r.first = first + b;
    r.count = static_cast<int>(share_of(all, before + units - 1, shares) - first + 1);
    unit = before + last;
    return true;
  }
};

// A number that all lanes have. The compiler learns it from the shuffle, and computes descriptors
// once per warp: see day 75.
__device__ __forceinline__ int of_warp(int x) {
  return __shfl_sync(FULL_WARP, x, 0);
}

// ---------------------------------------------------------------------------------------------
// Roles. Boxes are counted over all tiles of a block: the i-th goes to slot i % SLOTS, for the
// i / SLOTS-th time.

template <typename T, bool EVEN>
struct Roles {
  const Latent<T>& n;
  Barriers& at;
  char* memory;
  int tile;  // of heads

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

  // One thread loads: a tile's boxes in the order of their use, and q behind the first tile.
  __device__ void load(Walk<T, EVEN>& walk, const TensorMap& q, const TensorMap& cache) const {
    const auto column = [](int box) { return box == 0 ? RANK : (box - 1) * BOX; };
    Range r;
    for (int i = 0, round = 0; walk.next(n, r); ++round) {
      for (int t = r.begin; t < r.end; t += BN) {
        for (int box = 0; box < BOXES; ++box, ++i) {
          uint64_t* const full = &at.full[i % SLOTS];
          ptx::mbarrier_wait(&at.empty[i % SLOTS], 1 - i / SLOTS % 2);
          ptx::mbarrier_arrive_expect_bytes(full, BOX_BYTES);
          ptx::load_tensor(slot(i), cache, {column(box), t, r.b}, full);
        }
        if (t > r.begin) continue;
        ptx::mbarrier_wait(&at.q_empty, 1 - round % 2);
        ptx::mbarrier_arrive_expect_bytes(&at.q_full, BOXES * BOX_BYTES);
        for (int box = 0; box < BOXES; ++box) {
          ptx::load_tensor(q_box(box), q, {column(box), tile * HEADS, r.b}, &at.q_full);
        }
      }
    }
  }

  // s = q · kᵀ of the tile whose first box is the i-th. `between` is called when the products of
  // its first box have been issued. A descriptor counts in units of 16 bytes.
  template <typename F>
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

  // Zeros instead of what lies behind the last token: 0 · NaN would be NaN. By the first warpgroup.
  __device__ void clear_rows(int i, int tokens) const {
    for (int box = 0; box < BOXES; ++box) {
      wait_full(i + box);
      auto* const words = reinterpret_cast<uint4*>(slot(i + box) + tokens * BOX_ROW);
      for (int e = threadIdx.x; e < (BN - tokens) * BOX_ROW / 16; e += WARPGROUP) words[e] = {};
    }
    ptx::fence_for_copy_engine();           // what this thread wrote, before wgmma reads it …
    ptx::barrier_sync(SCORERS, WARPGROUP);  // … and what all others wrote
  }

  // s becomes its exponentials, relative to the maximum. Where that grew by more than SLACK in a
  // row of the warp, the result is true, and o has to be multiplied by rescale.
  __device__ __forceinline__ bool softmax_step(float (&s)[BN / 2], float (&most)[2],
                                               float (&sum)[2], int tokens,
                                               float (&rescale)[2]) const {
    float top[2] = {most[0], most[1]};
#pragma unroll
    for (float& x : s) x *= n.scale_log2;
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

  static __device__ __forceinline__ void multiply_rows(float (&o)[4 * SUMS],
                                                       const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 4 * SUMS; ++i) o[i] *= factor[i / 2 % 2];
  }

  // The next range of the block, for whole warps.
  __device__ bool next_range(Walk<T, EVEN>& walk, Range& r) const {
    const bool more = walk.next(n, r);
    r.begin = of_warp(r.begin), r.end = of_warp(r.end);
    return of_warp(more) != 0;
  }

  // What a thread of the first warpgroup has of its rows.
  struct Rows {
    float o[4 * SUMS] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    uint32_t p[BN / 16][4];  // the exponentials of a tile, rounded: a of the second product
  };

  __device__ void hand_over(const float (&factor)[2]) const {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if (threadIdx.x % 4 == 0) at.factors[row] = factor[0], at.factors[row + 8] = factor[1];
    ptx::barrier_arrive(P_FULL, CONSUMERS);
  }

  // Scores and exponentials of the tile from token t on, whose first box is the i-th; the latter
  // for both warpgroups. FIRST: of the range. Else products with the values of the tile before are
  // under way, which come to their end here.
  template <bool FIRST>
  __device__ __forceinline__ void attend(Rows& rows, const Range& r, int t, int i) const {
    if (t + BN > r.end) clear_rows(i, r.end - t);
    float s[BN / 2], factor[2];
    multiply_keys(s, i, [&] {
      if constexpr (!FIRST) {
        ptx::wgmma_wait<1>(rows.o);
        release_values(i - BOXES + 1);
      }
    });
    ptx::wgmma_wait<0>(s);
    release(&at.empty[i % SLOTS]);  // the rope
    if (t + BN >= r.end) release(&at.q_empty);
    const bool grown = softmax_step(s, rows.most, rows.sum, r.end - t, factor);
#pragma unroll
    for (int j = 0; j < BN / 16; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        rows.p[j][e] = tiles::pack<T>(s[8 * j + 2 * e], s[8 * j + 2 * e + 1]);
    }
    ptx::barrier_sync(P_EMPTY, CONSUMERS);  // the other warpgroup has read the tile before
#pragma unroll
    for (int j = 0; j < BN / 16; ++j) {
      const auto& p = rows.p[j];
      *exponentials(threadIdx.x, j) = {p[0], p[1], p[2], p[3]};
    }
    hand_over(factor);
    if (!FIRST && grown) multiply_rows(rows.o, factor);
  }

  // The first warpgroup: scores, exponentials, and values [0, 256).
  __device__ __forceinline__ void score(Walk<T, EVEN>& walk) const {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    Range r;
    for (int i = 0, round = 0; next_range(walk, r); ++round) {
      Rows rows;
      ptx::mbarrier_wait(&at.q_full, round % 2);
      attend<true>(rows, r, r.begin, i);
      i += BOXES;
      for (int t = r.begin + BN; t < r.end; t += BN, i += BOXES) {
        multiply_values(rows.o, rows.p, i - BOXES + 1);
        attend<false>(rows, r, t, i);
      }
      multiply_values(rows.o, rows.p, i - BOXES + 1);
      ptx::wgmma_wait<0>(rows.o);
      release_values(i - BOXES + 1);
      float factor[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = tile * HEADS + row + 8 * h;
        const float sum = tiles::row_sum(rows.sum[h]);
        factor[h] = last_factor(r, sum);
        if (threadIdx.x % 4 == 0 && head < n.H)
          n.parts.stats[r.part * n.H + head] = {rows.most[h], sum};
      }
      ptx::barrier_sync(P_EMPTY, CONSUMERS);
      hand_over(factor);
      store(rows.o, factor, r, 0);
    }
    ptx::barrier_sync(P_EMPTY, CONSUMERS);  // the one that is left over
  }

  // The second warpgroup: values [256, 512). A thread has the rows of the first one's thread with
  // the same place, so that it needs just its exponentials.
  __device__ __forceinline__ void add_values(Walk<T, EVEN>& walk) const {
    const int thread = threadIdx.x - WARPGROUP, row = thread / 32 * 16 + thread % 32 / 4;
    ptx::barrier_arrive(P_EMPTY, CONSUMERS);
    Range r;
    for (int i = 0; next_range(walk, r);) {
      float o[4 * SUMS] = {}, factor[2];
      for (int t = r.begin; t < r.end; t += BN, i += BOXES) {
        uint32_t p[BN / 16][4];
        ptx::barrier_sync(P_FULL, CONSUMERS);
#pragma unroll
        for (int j = 0; j < BN / 16; ++j) {
          const uint4 words = *exponentials(thread, j);
          p[j][0] = words.x, p[j][1] = words.y, p[j][2] = words.z, p[j][3] = words.w;
        }
        factor[0] = at.factors[row], factor[1] = at.factors[row + 8];
        ptx::barrier_arrive(P_EMPTY, CONSUMERS);
        if (__any_sync(FULL_WARP, factor[0] != 1 || factor[1] != 1)) multiply_rows(o, factor);
#pragma unroll
        for (int box = 5; box < BOXES; ++box) wait_full(i + box);
        multiply_values(o, p, i + 5);
        ptx::wgmma_wait<0>(o);
        release_values(i + 5);
      }
      ptx::barrier_sync(P_FULL, CONSUMERS);
      factor[0] = at.factors[row], factor[1] = at.factors[row + 8];
      ptx::barrier_arrive(P_EMPTY, CONSUMERS);
      store(o, factor, r, HALF);
    }
  }

  // The warpgroup's half of o, from column `first` on. In v4, the block that stores the last part
  // of a sequence merges them all.
  __device__ __forceinline__ void store(float (&o)[4 * SUMS], const float (&factor)[2],
                                        const Range& r, int first) const {
    const int thread = threadIdx.x % WARPGROUP, warp = threadIdx.x / 32;
    store_rows(n, r, tile * HEADS + thread / 32 * 16 + thread % 32 / 4, first + thread % 4 * 2,
               [&](int i) { return o[i] * factor[i / 2 % 2]; });
    if (!EVEN || r.count == 1) return;
    __threadfence();                     // a block that reads the new count also reads this part
    ptx::barrier_sync(BOTH, CONSUMERS);  // all threads have stored before the block is counted
    if (threadIdx.x == 0) {
      at.last = atomicAdd(n.arrived + int64_t{r.b} * n.tiles + tile, 1) == r.count - 1;
    }
    ptx::barrier_sync(BOTH, CONSUMERS);  // thread 0 has written `last`
    if (!at.last) return;
    __threadfence();  // no part is read before the count
    const int heads = min(HEADS, n.H - tile * HEADS);
    for (int h = warp; h < heads; h += CONSUMERS / 32) {
      const int head = tile * HEADS + h;
      store_output<RANK>(n.o + (int64_t{r.b} * n.H + head) * RANK, n.parts, r.first, r.count, n.H,
                         head);
    }
  }

  // The output of sequences without a token, by all threads.
  __device__ void store_empty() const {
    const int heads = min(HEADS, n.H - tile * HEADS);
    for (int64_t b = blockIdx.x / n.tiles; b < n.B; b += gridDim.x / n.tiles) {
      if (n.length_of(static_cast<int>(b)) > 0) continue;
      T* const o = n.o + (b * n.H + tile * HEADS) * RANK;
      for (int e = threadIdx.x; e < heads * RANK; e += WGMMA_THREADS) o[e] = T(0.0f);
    }
  }
};

template <typename T, bool EVEN>
__global__ void __launch_bounds__(WGMMA_THREADS, 1)
    mla_wgmma_kernel(const __grid_constant__ Latent<T> n, const __grid_constant__ TensorMap q,
                     const __grid_constant__ TensorMap cache) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ Barriers at;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      ptx::mbarrier_init(&at.full[i], 1);
      ptx::mbarrier_init(&at.empty[i], WARPGROUP / 32);
    }
    ptx::mbarrier_init(&at.q_full, 1);
    ptx::mbarrier_init(&at.q_empty, WARPGROUP / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are there before any thread uses one
  const Roles<T, EVEN> roles{n, at, tile_memory(), static_cast<int>(blockIdx.x % n.tiles)};
  const int role = of_warp(threadIdx.x / WARPGROUP);
  if (EVEN) roles.store_empty();
  Walk<T, EVEN> walk(n);
  if (role == 0) {  // 65,536 registers: 256 · 232 + 128 · 40
    ptx::setmaxnreg_inc<232>();
    roles.score(walk);
  } else if (role == 1) {
    ptx::setmaxnreg_inc<232>();
    roles.add_values(walk);
  } else {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == CONSUMERS) roles.load(walk, q, cache);
  }
#endif
}

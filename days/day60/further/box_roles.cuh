// What the kernels of v4 to v6 do in their loops: loads by one thread, products and stores by the
// consumers.
#pragma once

#include "common/cuda/cluster_launch.cuh"  // taught in day 35
#include "common/cuda/shared_memory.cuh"   // taught in day 15
#include "common/cuda/store_part.cuh"      // taught in day 56
#include "days/day60/further/boxes.cuh"

// A tile of BM pixels × BN channels: 128, 192 or 256 pixels. A consumer multiplies GROUPS groups of
// 64 pixels, so there are two or three consumers.
template <int M, int N, Major B>
struct ConvTile : Tile<bf16, M, N, B> {
  static constexpr int GROUPS = M == 256 ? 2 : 1, CONSUMERS = M / ROWS / GROUPS;
  static constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);
  // What setmaxnreg leaves to a thread of the producer, and gives to one of a consumer.
  static constexpr int FEW = CONSUMERS == 3 ? 32 : 40, MANY = CONSUMERS == 3 ? 160 : 232;
  static constexpr int STAGES = (192 << 10) / (M * ROW + N * ROW);
};

// A consumer stores 64 pixels × 64 channels at a time, through one of two buffers.
constexpr int BUFFERS = 2;

template <typename P>
constexpr size_t BOX_SHARED =
    P::STAGES * P::BYTES + P::CONSUMERS * BUFFERS * PART_BYTES + TILE_ALIGNMENT;

struct BoxPlan {
  Axis rows, cols;
  Box box;
  int S, depth, channels;
  int tiles_m;  // in units of the cluster's tiles
  Divisor tiles_n, tap_columns, tap_steps;
  int steps;
};

// Loads, products and stores of a block. CLUSTER blocks compute tiles of the same channels.
template <typename P, int CLUSTER>
struct BoxRoles {
  static constexpr uint16_t ALL = (1 << CLUSTER) - 1;  // blocks of the cluster
  static constexpr int COLS = P::BN / CLUSTER;         // of the filter's tile that a block loads

  const BoxPlan& g;
  char* stages;
  uint64_t *full, *empty;
  int rank, first, clusters;

  // Calls f(first pixel, first channel, number of steps before) for each tile of this block. Blocks
  // that run at the same time have all channels of the same pixels, which come from L2.
  template <typename F>
  __device__ __forceinline__ void each_tile(F f) const {
    int before = 0;
    for (int t = first; t < g.tiles_m * g.tiles_n; t += clusters, before += g.steps) {
      const int m = t / g.tiles_n * CLUSTER + rank;
      f(corner_of(g.box, m), t % g.tiles_n * P::BN, before);
    }
  }

  // Starts to load the filter: channels [n, n + BN) of the result, [depth, depth + 64) of the sum.
  __device__ __forceinline__ void load_filter(char* to, const TensorMap& filter, int n, int tap,
                                              int depth, uint64_t* arrived) const {
    const auto load = [&](char* part, int c, int k) {
      if constexpr (CLUSTER == 1) {
        ptx::load_tensor(part, filter, {c, tap, k}, arrived);
      } else {
        ptx::load_tensor_multicast(part, filter, {c, tap, k}, arrived, ALL);
      }
    };
    to += rank * COLS * ROW;
    if constexpr (P::B_MAJOR == Major::kK) {
      load(to, depth, n + rank * COLS);
    } else {
#pragma unroll
      for (int i = 0; i < COLS / 64; ++i) {
        load(to + i * P::BOX_BYTES, n + rank * COLS + i * 64, depth);
      }
    }
  }

  // One thread: starts to load step `step` of a tile, one tap and 64 channels. It is the load
  // number `count` of this block. load_filter(to, tap, first of the channels, mbarrier).
  template <typename LoadFilter>
  __device__ __forceinline__ void load_step(const TensorMap& from, const Pixel& at, int step,
                                            int count, LoadFilter load_filter) const {
    const int tap = step / g.tap_steps, c = step % g.tap_steps * DEPTH;
    const int i = tap / g.tap_columns, j = tap % g.tap_columns;
    const int row = at.row * g.rows.scale + g.rows.first + i * g.rows.step;
    const int col = at.col * g.cols.scale + g.cols.first + j * g.cols.step;
    const int of_filter =
        (g.rows.tap0 + i * g.rows.tap_step) * g.S + g.cols.tap0 + j * g.cols.tap_step;
    const int s = count % P::STAGES, round = count / P::STAGES;
    char* stage = stages + s * P::BYTES;
    ptx::mbarrier_wait(&empty[s], 1 - round % 2);  // all products have read the stage
    ptx::mbarrier_arrive_expect_bytes(&full[s], P::BYTES);
    ptx::load_tensor(stage, from, {c, col, row, at.n}, &full[s]);
    load_filter(stage + P::A_BYTES, of_filter, c, &full[s]);
  }

  // This warp's products have read stage s, which each block of the cluster writes to.
  __device__ __forceinline__ void release(int s) const {
    if constexpr (CLUSTER == 1) {
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&empty[s]);
    } else {
      if (threadIdx.x % 32 < CLUSTER)
        ptx::mbarrier_arrive_relaxed_at_rank(&empty[s], threadIdx.x % 32);
    }
  }

  __device__ __forceinline__ int consumer() const { return threadIdx.x / WARPGROUP - 1; }
  __device__ __forceinline__ int first_row() const { return consumer() * P::GROUPS * ROWS; }

  // A consumer: sums += its rows of `steps` loads, the first of which is number `before`. It
  // releases all stages but the last.
  __device__ __forceinline__ void multiply_tile(float (&sums)[P::GROUPS][P::BN / 2], int steps,
                                                int before) const {
    const int rows = first_row();
    // The zeros are written here: among the products of the loop, they would make these wait.
    ptx::wgmma_fence(sums);
    for (int i = 0; i < steps; ++i) {
      const int s = (before + i) % P::STAGES, round = (before + i) / P::STAGES;
      const char* stage = stages + s * P::BYTES;
      ptx::mbarrier_wait(&full[s], round % 2);
      ptx::wgmma_fence(sums);
#pragma unroll
      for (int group = 0; group < P::GROUPS; ++group) {
        multiply<P>(sums[group], stage + (rows + group * ROWS) * ROW, stage + P::A_BYTES);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the products of the step before have read their stage
      if (i > 0) release((before + i - 1) % P::STAGES);
    }
    ptx::wgmma_wait<0>(sums);
  }

  // A consumer: the first of its pixels in `group`, from the box's corner. It divides, so it is
  // called before the loop over tiles.
  __device__ __forceinline__ Pixel group_in_box(int group) const {
    return pixel_at(first_row() + group * ROWS, g.box.rows, g.box.cols);
  }

  // A consumer: stores channels [n, n + PART) of a group's pixels, which are a box too. `turn`
  // counts its stores.
  __device__ __forceinline__ void store_pixels(const float* sums, int n, const TensorMap& to,
                                               const Pixel& corner, const Pixel& group,
                                               int& turn) const {
    if (n >= g.channels) return;
    char* buffers = stages + P::STAGES * P::BYTES + consumer() * BUFFERS * PART_BYTES;
    store_part<bf16, BUFFERS>(sums, buffers, turn, 1 + consumer(), [&](const char* from) {
      ptx::store_tensor(to, {n, corner.col + group.col, corner.row + group.row, corner.n + group.n},
                        from);
    });
  }
};

// The kernels' arguments.
struct BoxWork {
  BoxPlan plan;
  TensorMap from, filter, to;
};
// PARTS: how many loads bring the columns of a filter's tile (kK).
template <typename P, int CLUSTER, int PARTS>
BoxWork box_work(const Gather& g) {
  constexpr bool K_MAJOR = P::B_MAJOR == Major::kK;
  const Box box = best_box(g.rows, g.cols, g.N, P::BM);
  const int tiles_m = ceil_div(box.count(), CLUSTER), tiles_n = ceil_div(g.channels, P::BN);
  const BoxPlan plan{g.rows,
                     g.cols,
                     box,
                     g.S,
                     g.depth,
                     g.channels,
                     tiles_m,
                     tiles_n,
                     std::max(1, g.cols.taps),
                     ceil_div(g.depth, DEPTH),
                     g.steps()};
  const TensorMap from = map_of_inputs(g.from, g.rows, g.cols, g.N, g.depth, box);
  const int64_t C = g.filter_channels, taps = g.filter_row / C;
  const TensorMap filter =
      ptx::make_tensor_map(g.filter, {.sizes = {C, taps, K_MAJOR ? g.channels : g.depth},
                                      .box = {DEPTH, 1, K_MAJOR ? P::BN / PARTS : DEPTH},
                                      .swizzle = Swizzle::k128});
  const int cols = std::min(box.cols, ROWS), rows = std::min(box.rows, ROWS / cols);
  const TensorMap to =
      ptx::make_tensor_map(g.to, {.sizes = {g.channels, g.cols.outputs, g.rows.outputs, g.N},
                                  .strides = {2 * g.to_col, 2 * g.to_row, 2 * g.to_n},
                                  .box = {PART, cols, rows, ROWS / cols / rows},
                                  .swizzle = Swizzle::k128});
  return {plan, from, filter, to};
}

// One thread prepares the mbarriers: full[s] has one arrival and the bytes of stage s, empty[s] one
// per consumer warp of each of `blocks` blocks. Meanwhile another one fetches the tensor maps, so
// that the first loads do not wait for them.
template <typename P>
__device__ __forceinline__ void init_stages(uint64_t* full, uint64_t* empty, int blocks,
                                            const TensorMap& from, const TensorMap& filter,
                                            const TensorMap& to) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < P::STAGES; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], blocks * P::CONSUMERS * WARPGROUP / 32);
    }
    ptx::fence_mbarrier_init();
  } else if (threadIdx.x == 32) {
    ptx::prefetch_tensor_map(from);
    ptx::prefetch_tensor_map(filter);
    ptx::prefetch_tensor_map(to);
  }
}

inline void require_boxes() {
  require_wgmma();
  require_shared_memory(BOX_SHARED<ConvTile<256, 128, Major::kK>>, "four pairs of tiles");
}

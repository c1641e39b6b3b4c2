// Persistent blocks: each computes several tiles of C, or parts of their sums. The main line's v4
// and v5 for both dtypes and both layouts of B, with any epilogue, in clusters, and for a part of
// K.
#pragma once

#include "common/cuda/cluster_launch.cuh"   // taught in day 35
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/store_part.cuh"       // taught here
#include "common/cuda/tile_order.cuh"       // taught in day 54
#include "days/day56/further/tiles.cuh"

#include <algorithm>

// A consumer stores its rows of C in parts of 64 × 64, each through one of two buffers, or through
// one where the stages leave no room for two in the 227 KB of a block.
template <typename P, int STAGES>
constexpr int BUFFERS =
    STAGES * P::BYTES + CONSUMERS * 2 * PART_BYTES + TILE_ALIGNMENT <= 227 * 1024 ? 2 : 1;

template <typename P, int STAGES>
constexpr size_t SHARED =
    STAGES * P::BYTES + CONSUMERS * BUFFERS<P, STAGES> * PART_BYTES + TILE_ALIGNMENT;

// ---------------------------------------------------------------------------------------------
// Consumers share a tile, each has a half of its rows; or they take turns (ping-pong): a
// consumer has all rows of each second tile, and stores it while the other one multiplies.
//
// CLUSTER blocks compute tiles of one column of tiles, one below the other. Each loads its own tile
// of A, and an equal part of B's tile, which goes to all of them.
//
// With splits (v8), the sum over K is divided: a block computes parts of sums, each for an equal
// number of steps. The last part may reach beyond K, where TMA loads zeros.

constexpr int TURN = 1 + CONSUMERS;  // barrier TURN + c: it is consumer c's turn

template <typename P, bool PING_PONG, int CLUSTER, int STAGES, int GROUP>
struct Roles {
  using T = typename P::T;
  static constexpr uint16_t ALL = (1 << CLUSTER) - 1;  // blocks of the cluster
  static constexpr int HALVES = P::BM / ROWS / (PING_PONG ? 1 : CONSUMERS);  // 64 rows each
  // Warps of the cluster that read a stage.
  static constexpr int READERS = CLUSTER * (PING_PONG ? 1 : CONSUMERS) * (WARPGROUP / 32);

  char* stages;
  uint64_t *full, *empty;
  int rank, steps, splits, clusters, first;
  int tiles_m, tiles_n;  // tiles_m: in units of CLUSTER tiles

  // What is computed at one time: the tile's corner, the part of the sum, the number of steps that
  // the block made before, and whether the block has a next one.
  struct Task {
    int m, n, split, before;
    bool more;
  };

  // Calls f for the block's tasks skip, skip + every …
  template <typename F>
  __device__ __forceinline__ void each_task(int skip, int every, F f) const {
    const int tasks = tiles_m * tiles_n * splits;
    int before = skip * steps;
    for (int i = first + skip * clusters; i < tasks;
         i += every * clusters, before += every * steps) {
      const Corner tile = tile_at<GROUP>(i / splits, tiles_m, tiles_n);
      f(Task{(tile.m * CLUSTER + rank) * P::BM, tile.n * P::BN, i % splits, before,
             i + clusters < tasks});
    }
  }

  __device__ __forceinline__ void load(const TensorMap& a, const TensorMap& b, int m, int n, int k,
                                       int s) const {
    char* stage = stages + s * P::BYTES;
    if constexpr (CLUSTER == 1) {
      load_tiles<P>(stage, a, b, m, n, k, &full[s]);
    } else {
      ptx::mbarrier_arrive_expect_bytes(&full[s], P::BYTES);  // also what the others bring
      ptx::load_tensor(stage, a, {k, m}, &full[s]);
      load_b<P, CLUSTER>(stage + P::A_BYTES, n, k, rank, [&](char* to, int inner, int outer) {
        ptx::load_tensor_multicast(to, b, {inner, outer}, &full[s], ALL);
      });
    }
  }

  // ahead(m, n) is called before the loads of a task.
  template <typename Ahead>
  __device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b,
                                          Ahead ahead) const {
    each_task(0, 1, [&](const Task& t) {
      ahead(t.m, t.n);
      for (int i = 0; i < steps; ++i) {
        const int s = (t.before + i) % STAGES, round = (t.before + i) / STAGES;
        ptx::mbarrier_wait(&empty[s], 1 - round % 2);  // all blocks' products have read the stage
        load(a, b, t.m, t.n, (t.split * steps + i) * BK, s);
      }
    });
  }

  // This warp's products have read stage s, which each block of the cluster writes to.
  __device__ __forceinline__ void release(int s) const {
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (CLUSTER == 1) {
      if (lane == 0) ptx::mbarrier_arrive(&empty[s]);
    } else {
      if (lane < CLUSTER) ptx::mbarrier_arrive_relaxed_at_rank(&empty[s], lane);
    }
  }

  // sums += the consumer's rows of A, from `row` of the tile on, times B, for all steps. All
  // products are issued at the end, those of the last step not complete.
  __device__ __forceinline__ void multiply_steps(float (&sums)[HALVES][P::BN / 2], int row,
                                                 int before) const {
    for (int i = 0; i < steps; ++i) {
      const int s = (before + i) % STAGES, round = (before + i) / STAGES;
      const char* stage = stages + s * P::BYTES;
      ptx::mbarrier_wait(&full[s], round % 2);
      ptx::wgmma_fence(sums);
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        multiply<P>(sums[h], stage + (row + h * ROWS) * ROW, stage + P::A_BYTES);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the products of the step before have read their stage
      if (i > 0) release((before + i - 1) % STAGES);
    }
  }

  // Multiplies the consumer's tasks, and calls finish(sums, m, n, split) for each: its rows begin
  // at m, its columns at n.
  template <typename Finish>
  __device__ __forceinline__ void consume(Finish finish) const {
    const int consumer = threadIdx.x / WARPGROUP - 1;
    const int row = PING_PONG ? 0 : consumer * HALVES * ROWS;
    const int skip = PING_PONG ? consumer : 0, every = PING_PONG ? CONSUMERS : 1;
    each_task(skip, every, [&](const Task& t) {
      float sums[HALVES][P::BN / 2] = {};
      // The other consumer has seen all stages of its task: the next full ones are ours.
      if (PING_PONG && t.before > 0) ptx::barrier_sync(TURN + consumer, CONSUMERS * WARPGROUP);
      multiply_steps(sums, row, t.before);
      if (PING_PONG && t.more) ptx::barrier_arrive(TURN + 1 - consumer, CONSUMERS * WARPGROUP);
      ptx::wgmma_wait<0>(sums);
      release((t.before + steps - 1) % STAGES);
      finish(sums, t.m + row, t.n, t.split);
    });
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
  }
};

// A consumer's buffers, and how many parts of C it has stored through them.
template <typename P, int STAGES>
struct Outbox {
  char* buffers;
  int stored = 0;

  explicit __device__ __forceinline__ Outbox(char* stages)
      : buffers(stages + STAGES * P::BYTES +
                (threadIdx.x / WARPGROUP - 1) * BUFFERS<P, STAGES> * PART_BYTES) {}

  // Stores 64 rows from m on and 64 columns from n on.
  __device__ __forceinline__ void store(const float* sums, const TensorMap& to, int m, int n) {
    store_part<typename P::T, BUFFERS<P, STAGES>>(
        sums, buffers, stored, static_cast<int>(threadIdx.x / WARPGROUP),
        [&](const char* from) { ptx::store_tensor(to, {n, m}, from); });
  }
};

// The whole block. finish(sums, m, n, split, outbox) gets what `consume` has for a task, and the
// consumer's Outbox; ahead(m, n) is called by the producer before it loads for the task.
template <typename P, bool PING_PONG, int CLUSTER, int STAGES, int GROUP, typename Finish,
          typename Ahead>
__device__ __forceinline__ void run_roles(const Gemm<typename P::T>& p, const TensorMap& a,
                                          const TensorMap& b, Finish finish, Ahead ahead) {
  using R = Roles<P, PING_PONG, CLUSTER, STAGES, GROUP>;
  __shared__ uint64_t full[STAGES], empty[STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], R::READERS);
    }
    ptx::fence_mbarrier_init();
  }
  // The mbarriers are there before any thread, of any block of the cluster, uses one.
  if constexpr (CLUSTER > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  const R roles{.stages = tile_memory(),
                .full = full,
                .empty = empty,
                .rank = CLUSTER > 1 ? static_cast<int>(blockIdx.x % CLUSTER) : 0,
                .steps = static_cast<int>(ceil_div<int64_t>(p.K, int64_t{BK} * p.splits)),
                .splits = p.splits,
                .clusters = static_cast<int>(gridDim.x / CLUSTER),
                .first = static_cast<int>(blockIdx.x / CLUSTER),
                .tiles_m = static_cast<int>(ceil_div<int64_t>(p.M, P::BM * CLUSTER)),
                .tiles_n = static_cast<int>(ceil_div<int64_t>(p.N, P::BN))};
  // 65,536 registers: the more sums a consumer has, the fewer are left for the producer.
  constexpr bool MANY = R::HALVES * P::BN / 2 > 128;
  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<MANY ? 24 : 40>();
    if (threadIdx.x == 0) roles.produce(a, b, ahead);
  } else {
    ptx::setmaxnreg_inc<MANY ? 240 : 232>();
    Outbox<P, STAGES> outbox(roles.stages);
    roles.consume([&](auto& sums, int m, int n, int split) { finish(sums, m, n, split, outbox); });
  }
  // A block's shared memory has to be there as long as others write to it and arrive in it.
  if constexpr (CLUSTER > 1) ptx::cluster_sync();
}

template <typename P, bool PING_PONG, int CLUSTER, int STAGES, int GROUP>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_persistent_kernel(const Gemm<typename P::T> p, const __grid_constant__ TensorMap a,
                           const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
                           bool by_tma) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const auto store = [&](auto& sums, int m, int n, int split, auto& outbox) {
#pragma unroll
    for (auto& half : sums) {
      if (p.splits > 1) {
        store_elements(half, p.partial + split * p.M * p.N, p, m, n);
      } else if (by_tma) {
        finish(half, p, n);
#pragma unroll
        for (int part = 0; part < P::BN / PART; ++part) {
          outbox.store(&half[part * (PART / 2)], c, m, n + part * PART);
        }
      } else {
        store_sums(half, p, m, n);
      }
      m += ROWS;
    }
  };
  run_roles<P, PING_PONG, CLUSTER, STAGES, GROUP>(p, a, b, store, [](int, int) {});
#endif
}

// Launches the kernel for tiles P on the current stream of the GPU of `on`. direct: C is stored
// from registers, element by element, and not by TMA.
template <typename P, bool PING_PONG, int CLUSTER, int STAGES, int GROUP = 8>
void launch_persistent(const Tensor& on, const Gemm<typename P::T>& p, bool direct = false) {
  constexpr size_t BYTES = SHARED<P, STAGES>;
  require_shared_memory(BYTES, "the pairs of tiles");
  const bool by_tma = !direct && p.N % 8 == 0;  // TMA stores rows of a multiple of 16 bytes
  const auto kernel = gemm_persistent_kernel<P, PING_PONG, CLUSTER, STAGES, GROUP>;
  const TensorMap to_a = map_of_a<P>(p), to_b = map_of_b<P, CLUSTER>(p);
  const TensorMap to_c = by_tma ? tile_map(p.c, p.M, p.N, ROWS, PART) : TensorMap{};
  const int64_t tasks =
      ceil_div<int64_t>(p.M, P::BM * CLUSTER) * ceil_div<int64_t>(p.N, P::BN) * p.splits;
  const int64_t places = std::max(1, multiprocessor_count(on) / CLUSTER);
  const unsigned grid = static_cast<unsigned>(std::min(tasks, places)) * CLUSTER;
  if constexpr (CLUSTER > 1) {
    launch_clusters(kernel, grid, CLUSTER, THREADS, BYTES, current_stream(on), p, to_a, to_b, to_c,
                    by_tma);
  } else {
    allow_shared(kernel, BYTES);
    kernel<<<grid, THREADS, BYTES, current_stream(on)>>>(p, to_a, to_b, to_c, by_tma);
  }
}

// What a rung does: tiles of 128 × BN in four stages.
template <int BN, bool PING_PONG, int CLUSTER, int GROUP = 8>
Tensor gemm_persistent(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                       int64_t activation, const char* name, bool direct = false) {
  return multiply_matrices(
      a, b, bias, activation, name, [&]<typename T>(const Gemm<T>& p, auto major) {
        launch_persistent<Tile<T, 128, BN, major()>, PING_PONG, CLUSTER, 4, GROUP>(a, p, direct);
      });
}

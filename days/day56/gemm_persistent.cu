// Day 56, second file: the last two rungs, whose blocks compute several tiles of C.
//
//   v5 persistent   a block per multiprocessor; tiles in an order that keeps A and B in L2; the
//                   producer loads the next tile's first steps while the consumers store C by TMA
//   v6 clusters     two blocks share B: each loads a half of its tile for both

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/cluster_launch.cuh"   // taught in day 35
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day56/tiles.cuh"

#include <algorithm>

// A consumer stores its 64 rows of C in parts of 64 columns, each through one of two buffers.
constexpr int PART = 64, PART_BYTES = ROWS * ROW, BUFFERS = 2;

template <typename P, int STAGES>
constexpr size_t SHARED = STAGES * P::BYTES + CONSUMERS * BUFFERS * PART_BYTES + TILE_ALIGNMENT;

// ---------------------------------------------------------------------------------------------
// The order of tiles. Neighbours in time share rows of A or columns of B, which L2 then has: groups
// of GROUP rows of tiles, within a group column by column.

struct Corner {
  int m, n;  // of a tile, in tiles
};
template <int GROUP>
__device__ inline Corner tile_at(int i, int tiles_m, int tiles_n) {
  const int group = i / (GROUP * tiles_n), first = group * GROUP;
  const int rows = min(GROUP, tiles_m - first), within = i % (GROUP * tiles_n);
  return {first + within % rows, within / rows};
}

// ---------------------------------------------------------------------------------------------
// C by TMA: stmatrix writes a warp's sums to shared memory as TMA's swizzle has it.

// Two sums as one register of 16-bit numbers.
template <typename T>
__device__ __forceinline__ uint32_t packed(float low, float high) {
  const T pair[] = {static_cast<T>(low), static_cast<T>(high)};
  uint32_t bits;
  memcpy(&bits, pair, sizeof bits);
  return bits;
}

// Stores 64 rows of a consumer from m on, columns from n on. `stored` counts the consumer's parts:
// buffers are used in turn. Thread 0 of the consumer starts the stores.
template <typename T, int COUNT>
__device__ __forceinline__ void store_by_tma(float (&sums)[COUNT], const Gemm<T>& p,
                                             const TensorMap& c, char* buffers, int consumer,
                                             int& stored, int m, int n) {
  const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
  const int row = thread / 32 * 16 + lane % 16;  // that this lane passes to stmatrix
  finish(sums, p, n);
#pragma unroll
  for (int part = 0; part < COUNT * 2 / PART; ++part) {
    char* buffer = buffers + stored++ % BUFFERS * PART_BYTES;
    if (thread == 0) ptx::bulk_wait_read<BUFFERS - 1>();  // its last store has read the buffer
    ptx::barrier_sync(1 + consumer, WARPGROUP);
#pragma unroll
    for (int pair = 0; pair < PART / 16; ++pair) {  // 16 columns: four matrices of 8 × 8
      const float* of = &sums[part * (PART / 2) + pair * 8];
      const uint32_t matrices[] = {packed<T>(of[0], of[1]), packed<T>(of[2], of[3]),
                                   packed<T>(of[4], of[5]), packed<T>(of[6], of[7])};
      const int piece = pair * 2 + lane / 16;
      ptx::stmatrix_x4(buffer + ptx::swizzled(Swizzle::k128, row * ROW + piece * 16), matrices);
    }
    ptx::fence_for_copy_engine();                // what this thread wrote, before TMA reads it …
    ptx::barrier_sync(1 + consumer, WARPGROUP);  // … and what all others wrote
    if (thread == 0) {
      ptx::store_tensor(c, {n + part * PART, m}, buffer);
      ptx::bulk_commit();
    }
  }
}

// ---------------------------------------------------------------------------------------------
// v5 to v7. Consumers share a tile, each has a half of its rows; or they take turns (ping-pong): a
// consumer has all rows of each second tile, and stores it while the other one multiplies.
//
// CLUSTER blocks compute tiles of one column of tiles, one below the other. Each loads its own tile
// of A, and an equal part of B's tile, which goes to all of them.

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
  int rank, steps, clusters, first, tiles_m, tiles_n;  // tiles_m: in units of CLUSTER tiles

  // Calls f(m, n, step, more) for the block's tiles skip, skip + every …: the tile's corner, the
  // number of steps before it, and whether the block has a next one.
  template <typename F>
  __device__ __forceinline__ void each_tile(int skip, int every, F f) const {
    int step = skip * steps;
    for (int i = first + skip * clusters; i < tiles_m * tiles_n;
         i += every * clusters, step += every * steps) {
      const Corner tile = tile_at<GROUP>(i, tiles_m, tiles_n);
      f((tile.m * CLUSTER + rank) * P::BM, tile.n * P::BN, step, i + clusters < tiles_m * tiles_n);
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

  __device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b) const {
    each_tile(0, 1, [&](int m, int n, int before, bool) {
      for (int i = 0; i < steps; ++i) {
        const int s = (before + i) % STAGES, round = (before + i) / STAGES;
        ptx::mbarrier_wait(&empty[s], 1 - round % 2);  // all blocks' products have read the stage
        load(a, b, m, n, i * BK, s);
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

  __device__ __forceinline__ void consume(const Gemm<T>& p, const TensorMap& c, bool by_tma) const {
    const int consumer = threadIdx.x / WARPGROUP - 1;
    const int row = PING_PONG ? 0 : consumer * HALVES * ROWS;
    char* buffers = stages + STAGES * P::BYTES + consumer * BUFFERS * PART_BYTES;
    int stored = 0;
    const int skip = PING_PONG ? consumer : 0, every = PING_PONG ? CONSUMERS : 1;
    each_tile(skip, every, [&](int m, int n, int before, bool more) {
      float sums[HALVES][P::BN / 2] = {};
      // The other one has seen all stages of the tile before: what is full from here on is ours.
      if (PING_PONG && before > 0) ptx::barrier_sync(TURN + consumer, CONSUMERS * WARPGROUP);
      multiply_steps(sums, row, before);
      if (PING_PONG && more) ptx::barrier_arrive(TURN + 1 - consumer, CONSUMERS * WARPGROUP);
      ptx::wgmma_wait<0>(sums);
      release((before + steps - 1) % STAGES);
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        const int at = m + row + h * ROWS;
        if (by_tma) {
          store_by_tma(sums[h], p, c, buffers, consumer, stored, at, n);
        } else {
          store_sums(sums[h], p, at, n);
        }
      }
    });
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
  }
};

template <typename P, bool PING_PONG, int CLUSTER, int STAGES, int GROUP>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_persistent_kernel(const Gemm<typename P::T> p, const __grid_constant__ TensorMap a,
                           const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
                           bool by_tma) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
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
                .steps = static_cast<int>(ceil_div<int64_t>(p.K, BK)),
                .clusters = static_cast<int>(gridDim.x / CLUSTER),
                .first = static_cast<int>(blockIdx.x / CLUSTER),
                .tiles_m = static_cast<int>(ceil_div<int64_t>(p.M, P::BM * CLUSTER)),
                .tiles_n = static_cast<int>(ceil_div<int64_t>(p.N, P::BN))};
  // 65,536 registers: the more sums a consumer has, the fewer are left for the producer.
  constexpr bool MANY = R::HALVES * P::BN / 2 > 128;
  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<MANY ? 24 : 40>();
    if (threadIdx.x == 0) roles.produce(a, b);
  } else {
    ptx::setmaxnreg_inc<MANY ? 240 : 232>();
    roles.consume(p, c, by_tma);
  }
  // A block's shared memory has to be there as long as others write to it and arrive in it.
  if constexpr (CLUSTER > 1) ptx::cluster_sync();
#endif
}

template <int BM, int BN, bool PING_PONG, int CLUSTER, int STAGES, int GROUP = 8>
Tensor gemm_persistent(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                       int64_t activation, const char* name) {
  return multiply_matrices(
      a, b, bias, activation, name, [&]<typename T>(const Gemm<T>& p, auto major) {
        using P = Tile<T, BM, BN, major()>;
        constexpr size_t BYTES = SHARED<P, STAGES>;
        require_shared_memory(BYTES, "the pairs of tiles");
        const bool by_tma = p.N % 8 == 0;  // TMA stores rows of a multiple of 16 bytes
        const auto kernel = gemm_persistent_kernel<P, PING_PONG, CLUSTER, STAGES, GROUP>;
        const TensorMap to_a = map_of_a<P>(p), to_b = map_of_b<P, CLUSTER>(p);
        const TensorMap to_c = by_tma ? tile_map(p.c, p.M, p.N, ROWS, PART) : TensorMap{};
        const int64_t work =
            ceil_div<int64_t>(p.M, P::BM * CLUSTER) * ceil_div<int64_t>(p.N, P::BN);
        const int64_t places = std::max(1, multiprocessor_count(a) / CLUSTER);
        const unsigned grid = static_cast<unsigned>(std::min(work, places)) * CLUSTER;
        if constexpr (CLUSTER > 1) {
          launch_clusters(kernel, grid, CLUSTER, THREADS, BYTES, current_stream(a), p, to_a, to_b,
                          to_c, by_tma);
        } else {
          allow_shared(kernel, BYTES);
          kernel<<<grid, THREADS, BYTES, current_stream(a)>>>(p, to_a, to_b, to_c, by_tma);
        }
      });
}

Tensor gemm_v5_persistent(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                          int64_t activation) {
  return gemm_persistent<128, 256, false, 1, 4>(a, b, bias, activation, "gemm_v5_persistent");
}
Tensor gemm_v6_ping_pong(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                         int64_t activation) {
  return gemm_persistent<128, 192, true, 1, 4>(a, b, bias, activation, "gemm_v6_ping_pong");
}
Tensor gemm_v7_clusters(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                        int64_t activation) {
  return gemm_persistent<128, 192, true, 2, 4>(a, b, bias, activation, "gemm_v7_clusters");
}

// ---------------------------------------------------------------------------------------------

RUNG(day56, gemm_v5_persistent, GEMM);
RUNG(day56, gemm_v6_ping_pong, GEMM);
RUNG(day56, gemm_v7_clusters, GEMM);

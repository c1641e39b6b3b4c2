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

constexpr int STAGES = 4;

// A consumer stores its 64 rows of C in parts of 64 columns, each through one of two buffers.
constexpr int PART = 64, PART_BYTES = ROWS * ROW, BUFFERS = 2;

template <typename P>
constexpr size_t SHARED = STAGES * P::BYTES + CONSUMERS * BUFFERS * PART_BYTES + TILE_ALIGNMENT;

// ---------------------------------------------------------------------------------------------
// The order of tiles. Neighbours in time share rows of A or columns of B, which L2 then has: groups
// of GROUP rows of tiles, within a group column by column.

constexpr int GROUP = 8;

struct Corner {
  int m, n;  // of a tile, in tiles
};
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

// Stores a consumer's 64 rows from m on, columns from n on. `part` counts the parts so far: buffers
// are used in turn. Thread 0 of the consumer starts the stores.
template <typename T, int COUNT>
__device__ __forceinline__ void store_by_tma(float (&sums)[COUNT], const Gemm<T>& p,
                                             const TensorMap& c, char* buffers, int consumer, int m,
                                             int n) {
  const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
  const int row = thread / 32 * 16 + lane % 16;  // that this lane passes to stmatrix
  finish(sums, p, n);
#pragma unroll
  for (int part = 0; part < COUNT * 2 / PART; ++part) {
    char* buffer = buffers + part % BUFFERS * PART_BYTES;
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
// v5 and v6. CLUSTER blocks compute tiles of one column of tiles, one below the other. Each loads
// its own tile of A, and an equal part of B's tile, which goes to all of them.

template <typename P, int CLUSTER>
struct Roles {
  using T = typename P::T;
  static constexpr uint16_t ALL = (1 << CLUSTER) - 1;  // blocks of the cluster
  static constexpr int COLS = P::BN / CLUSTER;         // of B that one block loads

  char* stages;
  uint64_t *full, *empty;
  int rank, steps, clusters, first, tiles_m, tiles_n;  // tiles_m: in units of CLUSTER tiles

  // Calls f(m, n, step): the tile's corner, and the number of steps before it.
  template <typename F>
  __device__ __forceinline__ void each_tile(F f) const {
    int step = 0;
    for (int i = first; i < tiles_m * tiles_n; i += clusters, step += steps) {
      const Corner tile = tile_at(i, tiles_m, tiles_n);
      f((tile.m * CLUSTER + rank) * P::BM, tile.n * P::BN, step);
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
      char* part = stage + P::A_BYTES + rank * (P::B_BYTES / CLUSTER);
      load_b<P, COLS>(part, n + rank * COLS, k, [&](char* to, int inner, int outer) {
        ptx::load_tensor_multicast(to, b, {inner, outer}, &full[s], ALL);
      });
    }
  }

  __device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b) const {
    each_tile([&](int m, int n, int before) {
      for (int i = 0; i < steps; ++i) {
        const int s = (before + i) % STAGES, round = (before + i) / STAGES;
        ptx::mbarrier_wait(&empty[s], 1 - round % 2);  // all blocks' products have read the stage
        load(a, b, m, n, i * BK, s);
      }
    });
  }

  // This warp's products have read stage s, which each block of the cluster writes to.
  __device__ __forceinline__ void release(int s) const {
    if constexpr (CLUSTER == 1) {
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&empty[s]);
    } else {
      const uint32_t lane = threadIdx.x % 32;
      if (lane < CLUSTER) ptx::mbarrier_arrive_relaxed_at_rank(&empty[s], lane);
    }
  }

  template <bool BY_TMA>
  __device__ __forceinline__ void consume(const Gemm<T>& p, const TensorMap& c) const {
    const int consumer = threadIdx.x / WARPGROUP - 1;
    char* buffers = stages + STAGES * P::BYTES + consumer * BUFFERS * PART_BYTES;
    each_tile([&](int m, int n, int before) {
      float sums[P::BN / 2] = {};
      for (int i = 0; i < steps; ++i) {
        const int s = (before + i) % STAGES, round = (before + i) / STAGES;
        const char* stage = stages + s * P::BYTES;
        ptx::mbarrier_wait(&full[s], round % 2);
        ptx::wgmma_fence(sums);
        multiply<P>(sums, stage + consumer * ROWS * ROW, stage + P::A_BYTES);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();  // the products of the step before have read their stage
        if (i > 0) release((before + i - 1) % STAGES);
      }
      ptx::wgmma_wait<0>(sums);
      release((before + steps - 1) % STAGES);
      if constexpr (BY_TMA) {
        store_by_tma(sums, p, c, buffers, consumer, m + consumer * ROWS, n);
      } else {
        store_sums(sums, p, int64_t{m} + consumer * ROWS, n);
      }
    });
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
  }
};

template <typename P, int CLUSTER, bool BY_TMA>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_persistent_kernel(const Gemm<typename P::T> p, const __grid_constant__ TensorMap a,
                           const __grid_constant__ TensorMap b,
                           const __grid_constant__ TensorMap c) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(P::BM == CONSUMERS * ROWS);
  __shared__ uint64_t full[STAGES], empty[STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], CLUSTER * CONSUMER_WARPS);
    }
    ptx::fence_mbarrier_init();
  }
  // The mbarriers are there before any thread, of any block of the cluster, uses one.
  if constexpr (CLUSTER > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  const int steps = static_cast<int>(ceil_div<int64_t>(p.K, BK));
  const int tiles_m = static_cast<int>(ceil_div<int64_t>(p.M, P::BM * CLUSTER));
  const int tiles_n = static_cast<int>(ceil_div<int64_t>(p.N, P::BN));
  const Roles<P, CLUSTER> roles{tile_memory(),
                                full,
                                empty,
                                CLUSTER > 1 ? static_cast<int>(blockIdx.x % CLUSTER) : 0,
                                steps,
                                static_cast<int>(gridDim.x / CLUSTER),
                                static_cast<int>(blockIdx.x / CLUSTER),
                                tiles_m,
                                tiles_n};
  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) roles.produce(a, b);
  } else {
    ptx::setmaxnreg_inc<232>();
    roles.template consume<BY_TMA>(p, c);
  }
  // A block's shared memory has to be there as long as others write to it and arrive in it.
  if constexpr (CLUSTER > 1) ptx::cluster_sync();
#endif
}

template <int CLUSTER>
Tensor gemm_persistent(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                       int64_t activation, const char* name) {
  return multiply_matrices(
      a, b, bias, activation, name, [&]<typename T>(const Gemm<T>& p, auto major) {
        using P = Tile<T, 128, 256, major()>;
        require_shared_memory(SHARED<P>, "four pairs of tiles");
        const bool by_tma = p.N % 8 == 0;  // TMA stores rows of a multiple of 16 bytes
        const auto kernel = by_tma ? gemm_persistent_kernel<P, CLUSTER, true>
                                   : gemm_persistent_kernel<P, CLUSTER, false>;
        const TensorMap to_a = map_of_a<P>(p), to_b = map_of_b<P, P::BN / CLUSTER>(p);
        const TensorMap to_c = by_tma ? tile_map(p.c, p.M, p.N, ROWS, PART) : TensorMap{};
        const int64_t work =
            ceil_div<int64_t>(p.M, P::BM * CLUSTER) * ceil_div<int64_t>(p.N, P::BN);
        const int64_t places = std::max(1, multiprocessor_count(a) / CLUSTER);
        const unsigned grid = static_cast<unsigned>(std::min(work, places)) * CLUSTER;
        if constexpr (CLUSTER > 1) {
          launch_clusters(kernel, grid, CLUSTER, THREADS, SHARED<P>, current_stream(a), p, to_a,
                          to_b, to_c);
        } else {
          allow_shared(kernel, SHARED<P>);
          kernel<<<grid, THREADS, SHARED<P>, current_stream(a)>>>(p, to_a, to_b, to_c);
        }
      });
}

Tensor gemm_v5_persistent(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                          int64_t activation) {
  return gemm_persistent<1>(a, b, bias, activation, "gemm_v5_persistent");
}
Tensor gemm_v6_clusters(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                        int64_t activation) {
  return gemm_persistent<2>(a, b, bias, activation, "gemm_v6_clusters");
}

// ---------------------------------------------------------------------------------------------

RUNG(day56, gemm_v5_persistent, GEMM);
RUNG(day56, gemm_v6_clusters, GEMM);

// Day 56: matrix products with wgmma, roles of warps, ping-pong
//
//   C = A · Bᵀ     A: (M, K), B: (N, K), C: (M, N); bf16, sums in fp32
//
// Operations: 2 · M · N · K. 8192³ takes 1.1 T of them on 0.4 GB: the operations are the limit. In
// all rungs a block computes 128 × 192 elements of C by two warpgroups, 64 values of k per step.
//
//   v1 wgmma       TMA loads the tiles of a step, then both warpgroups multiply them
//   v2 pipeline    four stages: TMA loads the tiles of the next three steps meanwhile
//   v3 warp_roles  a warpgroup only loads, two only multiply: no barrier of all per step
//   v4 persistent  one block per multiprocessor: loads for its next tile start before it stores C
//   v5 ping_pong   a warpgroup has a tile alone: one stores its tile while the other multiplies
//
// Run: python run_day.py 56

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/matrix_map.cuh"       // taught in day 55
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // wgmma: taught here; TMA and mbarriers: day 55
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/store_part.cuh"       // taught here: the epilogue, README
#include "common/cuda/tile_order.cuh"       // taught in day 54

using bf16 = __nv_bfloat16;
using ptx::Swizzle, ptx::TensorMap;

constexpr int BM = 128, BN = 192;          // elements of C per tile
constexpr int BK = 64, ROW = BK * 2;       // values of k per step: 128 bytes, a row of the swizzle
constexpr int WARPGROUP = 128, ROWS = 64;  // threads that issue a wgmma, for so many rows of A
constexpr int HALF = ROWS * ROW;           // bytes of these rows, half of A's tile
constexpr int A_BYTES = BM * ROW;          // a stage: a tile of A, (BM, BK), …
constexpr int STAGE = (BM + BN) * ROW;     // … and one of B, (BN, BK): 40 KB
constexpr int STAGES = 4;                  // v1 uses one of them
constexpr int BUFFERS = 2 * PART_BYTES;    // through which a warpgroup stores C, two parts of it
constexpr int TURN = 3;  // + c: consumer c's named barrier; 0 is __syncthreads, 1 + c for its store
constexpr int SHARED = STAGES * STAGE + 2 * BUFFERS + TILE_ALIGNMENT;

struct Product {
  TensorMap a, b, c;
  int M, N, K;

  __host__ __device__ int tiles() const { return ceil_div(M, BM) * ceil_div(N, BN); }
  __device__ int steps() const { return ceil_div(K, BK); }
  // The first row and column of tile i; tiles near in number share A and B in L2 (day 54).
  __device__ Corner corner(int i) const {
    const Corner tile = tile_at<8>(i, ceil_div(M, BM), ceil_div(N, BN));
    return {tile.m * BM, tile.n * BN};
  }
};

// One thread prepares mbarriers whose phases need so many arrivals.
__device__ __forceinline__ void init(uint64_t* barriers, int count, int arrivals) {
  for (int i = 0; i < count; ++i) ptx::mbarrier_init(&barriers[i], arrivals);
  ptx::fence_mbarrier_init();
}

// One thread expects the bytes of step `step` of the tile at `at`, and starts the loads.
__device__ __forceinline__ void load(char* stage, const Product& p, const Corner& at, int step,
                                     uint64_t* full) {
  ptx::mbarrier_arrive_expect_bytes(full, STAGE);
  ptx::load_tensor(stage, p.a, {step * BK, at.m}, full);
  ptx::load_tensor(stage + A_BYTES, p.b, {step * BK, at.n}, full);
}

// sums += 64 rows of A times Bᵀ, for one step: four wgmmas, each for 16 values of k, which are 32
// bytes of a row. Groups of 8 rows, in which the swizzle repeats, are 8 · ROW bytes apart.
__device__ __forceinline__ void multiply(float (&sums)[BN / 2], const char* a, const char* b) {
#pragma unroll
  for (int k = 0; k < BK / 16; ++k) {
    const uint64_t of_a = ptx::wgmma_descriptor(a + k * 32, Swizzle::k128, 0, 8 * ROW);
    const uint64_t of_b = ptx::wgmma_descriptor(b + k * 32, Swizzle::k128, 0, 8 * ROW);
    ptx::wgmma<bf16>(sums, of_a, of_b);
  }
}

// A warpgroup stores its sums: 64 rows from m on, in parts of 64 columns from n on. Each part is
// rounded, written to one of two buffers, and stored from there by TMA. `stored` counts parts.
__device__ __forceinline__ void store(const float (&sums)[BN / 2], char* buffers, int& stored,
                                      int barrier, const TensorMap& c, int m, int n) {
#pragma unroll
  for (int part = 0; part < BN / PART; ++part) {
    store_part<bf16, 2>(&sums[part * (PART / 2)], buffers, stored, barrier, [&](const char* from) {
      ptx::store_tensor(c, {n + part * PART, m}, from);
    });
  }
}

Tensor launch(const Tensor& a, const Tensor& b, void (*kernel)(Product), int warpgroups,
              bool persistent = false) {
  check(a, "a").on_gpu().dtype({ScalarType::BFloat16}).rank(2);  // matrix_map: strides, and K > 0
  check(b, "b").on_gpu().dtype({ScalarType::BFloat16}).rank(2).size(1, a.size(1));
  check(b, "b").same_device(a, "a");
  const int64_t M = a.size(0), N = b.size(0), K = a.size(1);
  STD_TORCH_CHECK(N % 8 == 0, "b: expected a multiple of 8 rows, as TMA stores C, got ", N);
  STD_TORCH_CHECK((M | N | K) >> 30 == 0, "a, b: expected fewer than 2^30 rows and columns");
  const DeviceGuard guard(a);
  Tensor c = allocate(a, {M, N});
  if (c.numel() == 0) return c;  // a grid of no blocks is an error
  require_wgmma();
  Product p{matrix_map<bf16>(a, "a", BM, BK, Swizzle::k128),
            matrix_map<bf16>(b, "b", BN, BK, Swizzle::k128),
            matrix_map<bf16>(c, "c", ROWS, PART, Swizzle::k128)};
  p.M = static_cast<int>(M), p.N = static_cast<int>(N), p.K = static_cast<int>(K);
  require_shared_memory(SHARED, "four stages");
  allow_shared(kernel, SHARED);
  const int threads = warpgroups * WARPGROUP, tiles = p.tiles();
  const unsigned blocks = persistent ? resident_grid(a, kernel, threads, SHARED, tiles) : tiles;
  kernel<<<blocks, threads, SHARED, current_stream(a)>>>(p);
  check_launch("gemm");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v1: load, wait, multiply, wait. Warpgroup w has rows 64w + [0, 64) of the block's tile.

__global__ void __launch_bounds__(2 * WARPGROUP, 1)
    gemm_v1_wgmma_kernel(const __grid_constant__ Product p) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full;
  const int warpgroup = threadIdx.x / WARPGROUP;
  char *stage = tile_memory(), *buffers = stage + STAGE + warpgroup * BUFFERS;
  const Corner at = p.corner(blockIdx.x);
  if (threadIdx.x == 0) init(&full, 1, 1);
  __syncthreads();  // the mbarrier is there before any thread uses it

  float sums[BN / 2] = {};
  for (int step = 0; step < p.steps(); ++step) {
    if (threadIdx.x == 0) load(stage, p, at, step, &full);
    ptx::mbarrier_wait(&full, step % 2);  // both tiles have arrived
    ptx::wgmma_fence(sums);
    multiply(sums, stage + warpgroup * HALF, stage + A_BYTES);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
    __syncthreads();  // both warpgroups have read the stage before the next loads
  }
  int stored = 0;
  store(sums, buffers, stored, 1 + warpgroup, p.c, at.m + warpgroup * ROWS, at.n);
  ptx::bulk_wait_read<0>();  // TMA has read the buffers before the block's memory goes
#endif
}

Tensor gemm_v1_wgmma(const Tensor& a, const Tensor& b) {
  return launch(a, b, gemm_v1_wgmma_kernel, 2);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: four stages. Step i uses stage i % STAGES, for the i / STAGES-th time. Loads start
// three steps earlier; the products of a step run on during the wait for the next tiles.

__global__ void __launch_bounds__(2 * WARPGROUP, 1)
    gemm_v2_pipeline_kernel(const __grid_constant__ Product p) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[STAGES];
  const int warpgroup = threadIdx.x / WARPGROUP, steps = p.steps();
  char *stages = tile_memory(), *buffers = stages + STAGES * STAGE + warpgroup * BUFFERS;
  const Corner at = p.corner(blockIdx.x);
  if (threadIdx.x == 0) {
    init(full, STAGES, 1);
    for (int s = 0; s < min(STAGES - 1, steps); ++s) load(stages + s * STAGE, p, at, s, &full[s]);
  }
  __syncthreads();  // the mbarriers are there before any thread uses one

  float sums[BN / 2] = {};
  for (int step = 0; step < steps; ++step) {
    const char* stage = stages + step % STAGES * STAGE;
    ptx::mbarrier_wait(&full[step % STAGES], step / STAGES % 2);
    ptx::wgmma_fence(sums);
    multiply(sums, stage + warpgroup * HALF, stage + A_BYTES);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // this warp's products of the step before are complete …
    __syncthreads();       // … and those of all warps: their stage is free
    const int next = step + STAGES - 1, s = next % STAGES;
    if (threadIdx.x == 0 && next < steps) load(stages + s * STAGE, p, at, next, &full[s]);
  }
  ptx::wgmma_wait<0>(sums);
  int stored = 0;
  store(sums, buffers, stored, 1 + warpgroup, p.c, at.m + warpgroup * ROWS, at.n);
  ptx::bulk_wait_read<0>();
#endif
}

Tensor gemm_v2_pipeline(const Tensor& a, const Tensor& b) {
  return launch(a, b, gemm_v2_pipeline_kernel, 2);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: warps have roles. Warpgroup 0 is the producer: one of its threads starts all
// loads. The other two warpgroups, the consumers, only multiply. They meet at mbarriers alone:
//   full[s]    the tiles of stage s have arrived     1 arrival, and their bytes
//   empty[s]   the products have read stage s        1 arrival per warp of the consumers

__device__ __forceinline__ void release(uint64_t* empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

__global__ void __launch_bounds__(3 * WARPGROUP, 1)
    gemm_v3_warp_roles_kernel(const __grid_constant__ Product p) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const int warpgroup = threadIdx.x / WARPGROUP, consumer = warpgroup - 1, steps = p.steps();
  char *stages = tile_memory(), *buffers = stages + STAGES * STAGE + consumer * BUFFERS;
  const Corner at = p.corner(blockIdx.x);
  if (threadIdx.x == 0) init(full, STAGES, 1), init(empty, STAGES, 8);
  __syncthreads();  // the mbarriers are there before any thread uses one

  if (warpgroup == 0) {
    for (int step = 0; threadIdx.x == 0 && step < steps; ++step) {
      const int s = step % STAGES, round = step / STAGES;
      ptx::mbarrier_wait(&empty[s], 1 - round % 2);  // at once in round 0
      load(stages + s * STAGE, p, at, step, &full[s]);
    }
    return;
  }
  float sums[BN / 2] = {};
  for (int step = 0; step < steps; ++step) {
    const int s = step % STAGES, round = step / STAGES;
    const char* stage = stages + s * STAGE;
    ptx::mbarrier_wait(&full[s], round % 2);
    ptx::wgmma_fence(sums);
    multiply(sums, stage + consumer * HALF, stage + A_BYTES);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // this warp's products of the step before have read their stage
    if (step > 0) release(&empty[(step - 1) % STAGES]);
  }
  ptx::wgmma_wait<0>(sums);
  int stored = 0;
  store(sums, buffers, stored, 1 + consumer, p.c, at.m + consumer * ROWS, at.n);
  ptx::bulk_wait_read<0>();
#endif
}

Tensor gemm_v3_warp_roles(const Tensor& a, const Tensor& b) {
  return launch(a, b, gemm_v3_warp_roles_kernel, 3);
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: one block per multiprocessor computes tile after tile. Its steps are numbered
// through all tiles: the first loads of the next one start before this one is stored.

__device__ __forceinline__ void produce(const Product& p, char* stages, uint64_t* full,
                                        uint64_t* empty) {
  const int tiles = p.tiles(), steps = p.steps(), blocks = gridDim.x;
  for (int i = blockIdx.x, before = 0; i < tiles; i += blocks, before += steps) {
    const Corner at = p.corner(i);
    for (int step = 0; step < steps; ++step) {
      const int s = (before + step) % STAGES, round = (before + step) / STAGES;
      ptx::mbarrier_wait(&empty[s], 1 - round % 2);
      load(stages + s * STAGE, p, at, step, &full[s]);
    }
  }
}

__global__ void __launch_bounds__(3 * WARPGROUP, 1)
    gemm_v4_persistent_kernel(const __grid_constant__ Product p) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const int warpgroup = threadIdx.x / WARPGROUP, consumer = warpgroup - 1, steps = p.steps();
  char *stages = tile_memory(), *buffers = stages + STAGES * STAGE + consumer * BUFFERS;
  if (threadIdx.x == 0) init(full, STAGES, 1), init(empty, STAGES, 8);
  __syncthreads();

  if (warpgroup == 0) {
    if (threadIdx.x == 0) produce(p, stages, full, empty);
    return;
  }
  const int tiles = p.tiles(), blocks = gridDim.x;
  int before = 0, stored = 0;  // steps of the block's tiles before this one; stored parts
  for (int i = blockIdx.x; i < tiles; i += blocks, before += steps) {
    const Corner at = p.corner(i);
    float sums[BN / 2] = {};
    for (int step = 0; step < steps; ++step) {
      const int s = (before + step) % STAGES, round = (before + step) / STAGES;
      const char* stage = stages + s * STAGE;
      ptx::mbarrier_wait(&full[s], round % 2);
      ptx::wgmma_fence(sums);
      multiply(sums, stage + consumer * HALF, stage + A_BYTES);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (step > 0) release(&empty[(before + step - 1) % STAGES]);
    }
    ptx::wgmma_wait<0>(sums);
    release(&empty[(before + steps - 1) % STAGES]);  // steps > 0; the producer goes on
    store(sums, buffers, stored, 1 + consumer, p.c, at.m + consumer * ROWS, at.n);
  }
  ptx::bulk_wait_read<0>();
#endif
}

Tensor gemm_v4_persistent(const Tensor& a, const Tensor& b) {
  return launch(a, b, gemm_v4_persistent_kernel, 3, true);
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: consumers take turns (ping-pong). Consumer c, 0 or 1, has all rows of the block's
// tiles c, c + 2, … and stores its tile while the other one multiplies. 192 sums do not fit into
// 168 registers (65,536 / 384, in eights): the producer gives up 144 per thread.

__global__ void __launch_bounds__(3 * WARPGROUP, 1)
    gemm_v5_ping_pong_kernel(const __grid_constant__ Product p) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const int warpgroup = threadIdx.x / WARPGROUP, consumer = warpgroup - 1, steps = p.steps();
  char *stages = tile_memory(), *buffers = stages + STAGES * STAGE + consumer * BUFFERS;
  if (threadIdx.x == 0) init(full, STAGES, 1), init(empty, STAGES, 4);
  __syncthreads();

  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x == 0) produce(p, stages, full, empty);
    return;
  }
  ptx::setmaxnreg_inc<240>();
  const int tiles = p.tiles(), blocks = gridDim.x;
  int before = consumer * steps, stored = 0;
  for (int i = blockIdx.x + consumer * blocks; i < tiles; i += 2 * blocks, before += 2 * steps) {
    const Corner at = p.corner(i);
    float sums[2][BN / 2] = {};  // of rows [0, 64) and [64, 128)
    // Wait for the turn: the other consumer has waited for all stages of the tile before.
    if (before > 0) ptx::barrier_sync(TURN + consumer, 2 * WARPGROUP);
    for (int step = 0; step < steps; ++step) {
      const int s = (before + step) % STAGES, round = (before + step) / STAGES;
      const char* stage = stages + s * STAGE;
      ptx::mbarrier_wait(&full[s], round % 2);
      ptx::wgmma_fence(sums);
      multiply(sums[0], stage, stage + A_BYTES);
      multiply(sums[1], stage + HALF, stage + A_BYTES);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (step > 0) release(&empty[(before + step - 1) % STAGES]);
    }
    if (i + blocks < tiles) ptx::barrier_arrive(TURN + 1 - consumer, 2 * WARPGROUP);
    ptx::wgmma_wait<0>(sums);
    release(&empty[(before + steps - 1) % STAGES]);
    store(sums[0], buffers, stored, 1 + consumer, p.c, at.m, at.n);
    store(sums[1], buffers, stored, 1 + consumer, p.c, at.m + ROWS, at.n);
  }
  ptx::bulk_wait_read<0>();
#endif
}

Tensor gemm_v5_ping_pong(const Tensor& a, const Tensor& b) {
  return launch(a, b, gemm_v5_ping_pong_kernel, 3, true);
}

#define GEMM "(Tensor a, Tensor b) -> Tensor"
RUNG(day56, gemm_v1_wgmma, GEMM);
RUNG(day56, gemm_v2_pipeline, GEMM);
RUNG(day56, gemm_v3_warp_roles, GEMM);
RUNG(day56, gemm_v4_persistent, GEMM);
RUNG(day56, gemm_v5_ping_pong, GEMM);

// Day 56: matrix products at Hopper's full rate
//
//   C = f(A · B + bias)     A: (M, K), B: (K, N), C: (M, N); bf16 or fp16, sums in fp32
//
// B may be stored as (N, K), as the weight of a linear layer is. f: none, relu or gelu.
//
// Operations: 2 · M · N · K. 8192³ takes 1.1 T of them, on 0.4 GB: arithmetic is the limit, and
// only wgmma reaches it. Each step of a block multiplies (BM, 64) by (64, BN).
//
//   v1 one_warpgroup   threads copy both tiles to shared memory, then multiply: 128 × 128
//   v2 pipeline        TMA copies the tiles of the next steps meanwhile
//   v3 warp_roles      one warpgroup only copies, two only multiply, 64 × 128 each
//   v4 wide_tiles      128 × 256: a quarter fewer bytes per operation
//   v5 to v7           gemm_persistent.cu
//   v8                 gemm_chosen.cu
//
// Run: python run_day.py 56

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day56/tiles.cuh"

// The blocks of a column of tiles are adjacent: they share B's tile, and find A's in L2.
template <typename P>
dim3 tile_grid(const Gemm<typename P::T>& p) {
  return dim3(grid_size(ceil_div<int64_t>(p.M, P::BM), "a"),
              grid_size(ceil_div<int64_t>(p.N, P::BN), "b"));
}

// ---------------------------------------------------------------------------------------------
// v1: one warpgroup per block. Its threads load both tiles, store them in the pattern of the
// swizzle, and multiply.

// Copies a tile of `rows` rows of 128 bytes; rows and pieces that do not exist become zeros.
template <typename T>
__device__ __forceinline__ void copy_tile(char* tile, const T* from, int64_t stride, int rows,
                                          int64_t existing_rows, int64_t existing_cols) {
  for (int i = threadIdx.x; i < rows * 8; i += WARPGROUP) {
    const int row = i / 8, col = i % 8 * 8;
    const bool exists = row < existing_rows && col < existing_cols;
    const auto* piece = reinterpret_cast<const uint4*>(from + row * stride + col);
    *reinterpret_cast<uint4*>(tile + ptx::swizzled(Swizzle::k128, i * 16)) =
        exists ? *piece : uint4{};
  }
}

template <typename P>
__global__ void __launch_bounds__(WARPGROUP)
    gemm_v1_one_warpgroup_kernel(const Gemm<typename P::T> p) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  char *tile_a = tile_memory(), *tile_b = tile_a + P::A_BYTES;
  const int64_t m = int64_t{blockIdx.x} * P::BM, n = int64_t{blockIdx.y} * P::BN;
  float sums[P::BM / ROWS][P::BN / 2] = {};
  for (int64_t k = 0; k < p.K; k += BK) {
    copy_tile(tile_a, p.a + m * p.K + k, p.K, P::BM, p.M - m, p.K - k);
    if constexpr (P::B_MAJOR == Major::kK) {
      copy_tile(tile_b, p.b + n * p.K + k, p.K, P::BN, p.N - n, p.K - k);
    } else {
      for (int i = 0; i < P::BN / 64; ++i) {
        copy_tile(tile_b + i * P::BOX_BYTES, p.b + k * p.N + n + i * 64, p.N, BK, p.K - k,
                  p.N - n - i * 64);
      }
    }
    ptx::fence_for_copy_engine();  // through the async proxy, wgmma reads what this thread …
    __syncthreads();               // … and what all others have stored
    ptx::wgmma_fence(sums);
#pragma unroll
    for (int i = 0; i < P::BM / ROWS; ++i) multiply<P>(sums[i], tile_a + i * ROWS * ROW, tile_b);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
    __syncthreads();  // all warps have read the tiles before any thread overwrites them
  }
#pragma unroll
  for (int i = 0; i < P::BM / ROWS; ++i) store_sums(sums[i], p, m + i * ROWS, n);
#endif
}

Tensor gemm_v1_one_warpgroup(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                             int64_t activation) {
  return multiply_matrices(a, b, bias, activation, "gemm_v1_one_warpgroup",
                           [&]<typename T>(const Gemm<T>& p, auto major) {
                             using P = Tile<T, 128, 128, major()>;
                             constexpr size_t SHARED = P::BYTES + TILE_ALIGNMENT;
                             const auto kernel = gemm_v1_one_warpgroup_kernel<P>;
                             allow_shared(kernel, SHARED);
                             kernel<<<tile_grid<P>(p), WARPGROUP, SHARED, current_stream(a)>>>(p);
                           });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: TMA loads the tiles, and those of the next steps during the products.

// stages: STAGES pairs of tiles. Step s uses stage s % STAGES, whose mbarrier completes phase
// s / STAGES when both tiles have come.
template <typename P, int STAGES>
__global__ void __launch_bounds__(WARPGROUP)
    gemm_v2_pipeline_kernel(const Gemm<typename P::T> p, const __grid_constant__ TensorMap a,
                            const __grid_constant__ TensorMap b) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[STAGES];
  char* stages = tile_memory();
  const int m = blockIdx.x * P::BM, n = blockIdx.y * P::BN;
  const int steps = static_cast<int>(ceil_div<int64_t>(p.K, BK));
  const auto load = [&](int step) {
    if (threadIdx.x != 0 || step >= steps) return;
    const int s = step % STAGES;
    load_tiles<P>(stages + s * P::BYTES, a, b, m, n, step * BK, &full[s]);
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) ptx::mbarrier_init(&full[s], 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are there before any thread waits at one
  for (int step = 0; step < STAGES - 1; ++step) load(step);

  float sums[P::BM / ROWS][P::BN / 2] = {};
  for (int step = 0; step < steps; ++step) {
    const char* stage = stages + step % STAGES * P::BYTES;
    ptx::mbarrier_wait(&full[step % STAGES], step / STAGES % 2);
    ptx::wgmma_fence(sums);
#pragma unroll
    for (int i = 0; i < P::BM / ROWS; ++i) {
      multiply<P>(sums[i], stage + i * ROWS * ROW, stage + P::A_BYTES);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // this warp's products of the step before are complete …
    __syncthreads();       // … and those of all warps, whose stage is free now
    load(step + STAGES - 1);
  }
  ptx::wgmma_wait<0>(sums);
#pragma unroll
  for (int i = 0; i < P::BM / ROWS; ++i) store_sums(sums[i], p, int64_t{m} + i * ROWS, n);
#endif
}

Tensor gemm_v2_pipeline(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                        int64_t activation) {
  return multiply_matrices(a, b, bias, activation, "gemm_v2_pipeline",
                           [&]<typename T>(const Gemm<T>& p, auto major) {
                             using P = Tile<T, 128, 128, major()>;
                             constexpr int STAGES = 3;  // 96 KB: two blocks per multiprocessor
                             constexpr size_t SHARED = STAGES * P::BYTES + TILE_ALIGNMENT;
                             const auto kernel = gemm_v2_pipeline_kernel<P, STAGES>;
                             require_shared_memory(SHARED, "three pairs of tiles");
                             allow_shared(kernel, SHARED);
                             kernel<<<tile_grid<P>(p), WARPGROUP, SHARED, current_stream(a)>>>(
                                 p, map_of_a<P>(p), map_of_b<P>(p));
                           });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: warps have roles. The producer, one thread, starts all loads. Two consumers, a
// warpgroup each, multiply 64 rows each. They meet at mbarriers only, never at __syncthreads.
//
//   full[s]    the tiles of stage s have come           1 arrival and the bytes, by the producer
//   empty[s]   the products have read stage s           an arrival per consumer warp

// A consumer: sums += its 64 rows of A, `first` bytes into a stage, times B, for all steps.
template <typename P, int STAGES>
__device__ __forceinline__ void consume(float (&sums)[P::BN / 2], const char* stages, int first,
                                        int steps, uint64_t* full, uint64_t* empty) {
  for (int step = 0; step < steps; ++step) {
    const char* stage = stages + step % STAGES * P::BYTES;
    ptx::mbarrier_wait(&full[step % STAGES], step / STAGES % 2);
    ptx::wgmma_fence(sums);
    multiply<P>(sums, stage + first, stage + P::A_BYTES);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // the products of the step before have read their stage
    if (step > 0 && threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&empty[(step - 1) % STAGES]);
  }
  ptx::wgmma_wait<0>(sums);
}

template <typename P, int STAGES>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_v3_warp_roles_kernel(const Gemm<typename P::T> p, const __grid_constant__ TensorMap a,
                              const __grid_constant__ TensorMap b) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(P::BM == CONSUMERS * ROWS);
  __shared__ uint64_t full[STAGES], empty[STAGES];
  char* stages = tile_memory();
  const int m = blockIdx.x * P::BM, n = blockIdx.y * P::BN;
  const int steps = static_cast<int>(ceil_div<int64_t>(p.K, BK));
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], CONSUMER_WARPS);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are there before any thread uses one

  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<40>();
    for (int step = 0; threadIdx.x == 0 && step < steps; ++step) {
      const int s = step % STAGES;
      ptx::mbarrier_wait(&empty[s], 1 - step / STAGES % 2);  // at once in the first round
      load_tiles<P>(stages + s * P::BYTES, a, b, m, n, step * BK, &full[s]);
    }
  } else {
    ptx::setmaxnreg_inc<232>();
    const int consumer = threadIdx.x / WARPGROUP - 1;
    float sums[P::BN / 2] = {};
    consume<P, STAGES>(sums, stages, consumer * ROWS * ROW, steps, full, empty);
    store_sums(sums, p, int64_t{m} + consumer * ROWS, n);
  }
#endif
}

template <int BN, int STAGES>
Tensor gemm_with_roles(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                       int64_t activation, const char* name) {
  return multiply_matrices(a, b, bias, activation, name,
                           [&]<typename T>(const Gemm<T>& p, auto major) {
                             using P = Tile<T, 128, BN, major()>;
                             constexpr size_t SHARED = STAGES * P::BYTES + TILE_ALIGNMENT;
                             const auto kernel = gemm_v3_warp_roles_kernel<P, STAGES>;
                             require_shared_memory(SHARED, "the pairs of tiles");
                             allow_shared(kernel, SHARED);
                             kernel<<<tile_grid<P>(p), THREADS, SHARED, current_stream(a)>>>(
                                 p, map_of_a<P>(p), map_of_b<P>(p));
                           });
}

Tensor gemm_v3_warp_roles(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                          int64_t activation) {
  return gemm_with_roles<128, 6>(a, b, bias, activation, "gemm_v3_warp_roles");
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: BN = 256. A step loads 48 KB for 4.2 M operations, where v3 loads 32 KB for 2.1 M;
// and a wgmma reads 64 rows of A for 256 columns. A consumer holds 128 sums per thread.

Tensor gemm_v4_wide_tiles(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                          int64_t activation) {
  return gemm_with_roles<256, 4>(a, b, bias, activation, "gemm_v4_wide_tiles");
}

// ---------------------------------------------------------------------------------------------

RUNG(day56, gemm_v1_one_warpgroup, GEMM);
RUNG(day56, gemm_v2_pipeline, GEMM);
RUNG(day56, gemm_v3_warp_roles, GEMM);
RUNG(day56, gemm_v4_wide_tiles, GEMM);

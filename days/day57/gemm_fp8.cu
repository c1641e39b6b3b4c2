// Day 57: products of fp8 matrices with scales
//
//   v1  C[m, n] = s_a[m] · s_b[n] · Σ_k A[m, k] · B[n, k]
//   v2  C[m, n] = Σ_j s_a[j, m] · s_b[j, n / 128] · Σ_k A[m, k] · B[n, k]   k: the j-th 128 of K
//
//   A: (M, K), B: (N, K) e4m3, C: (M, N) bf16; scales in fp32
//
// 8192³ takes 1.1 · 10¹² operations on 0.27 GB: arithmetic is the limit. Hopper's tensor cores add
// fp8 products with some 14 bits, so long sums lose digits.
//
//   v1 scaled_at_end   day 56's pipeline on bytes: a scale per row of A and per row of B, at the
//                      end; all of K is summed in the tensor cores
//   v2 promoted        a scale per 128 of K: sums of 128 products are scaled and added in
//                      registers, in fp32 (promotion)
//
// Run: python run_day.py 57

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/cluster_launch.cuh"   // taught in day 35
#include "common/cuda/matrix_map.cuh"       // taught in day 55
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // wgmma: taught in day 56; TMA: day 55
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/store_part.cuh"       // taught in day 56
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/tile_order.cuh"       // taught in day 54
#include "days/day56/tiles.cuh"             // WARPGROUP, ROW, ROWS: taught in day 56

#include <cuda_fp8.h>

#include <algorithm>

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
// of its tiles; v2's share a tile. A consumer's rows are HALVES of 64.
template <int M, int N, Scales S>
struct Shape {
  static constexpr int BM = M, BN = N;
  static constexpr Scales SCALES = S;
  static constexpr int SHARING = S == Scales::kRows ? 1 : CONSUMERS;  // consumers of a tile
  static constexpr int HALVES = M / SHARING / ROWS;
  static constexpr int A_BYTES = BM * ROW, B_BYTES = BN * ROW, BYTES = A_BYTES + B_BYTES;
  static constexpr int FACTORS = S == Scales::kBlocks ? BM + 4 : 0;  // scales of a stage, v2
  static constexpr int BUFFERS = S == Scales::kBlocks ? 1 : 2;  // per consumer, for stores to C
  static constexpr size_t SHARED = STAGES * (BYTES + FACTORS * sizeof(float)) +
                                   CONSUMERS * BUFFERS * PART_BYTES + TILE_ALIGNMENT;
  static_assert(M % (SHARING * ROWS) == 0 && N % PART == 0 && N <= 256);
  static_assert(S == Scales::kRows || N == SCALED, "one scale of B per tile");
};
using RowScaled = Shape<128, 192, Scales::kRows>;
using BlockScaled = Shape<256, 128, Scales::kBlocks>;

// sums (+)= 64 rows of A, at a, times B, at b: four wgmmas, each for 32 values of k.
template <int COUNT>
__device__ __forceinline__ void multiply_step(float (&sums)[COUNT], const char* a, const char* b,
                                              bool accumulate) {
#pragma unroll
  for (int k = 0; k < DEPTH / 32; ++k) {
    const uint64_t of_a = ptx::wgmma_descriptor(a + k * 32, Swizzle::k128, 0, 8 * ROW);
    const uint64_t of_b = ptx::wgmma_descriptor(b + k * 32, Swizzle::k128, 0, 8 * ROW);
    ptx::wgmma<E4m3>(sums, of_a, of_b, accumulate || k > 0);
  }
}

// sums += what 128 of K gave, scaled: elements 4j and 4j + 1 are of the upper row, 4j + 2 and
// 4j + 3 of the lower one.
template <int COUNT>
__device__ __forceinline__ void promote(float (&sums)[COUNT], const float (&part)[COUNT],
                                        float upper, float lower) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] += (i / 2 % 2 ? lower : upper) * part[i];
}

// The scale of one row of A, 0 beyond the last.
__device__ __forceinline__ float row_scale(const Arguments& p, int block, int row) {
  return row < p.M ? p.a_scale[int64_t{block} * p.M + row] : 0.0f;
}

constexpr int TURN = 1 + CONSUMERS;  // barrier TURN + c: it is consumer c's turn

template <typename P>
struct Roles {
  static constexpr int READERS = CLUSTER * P::SHARING * (WARPGROUP / 32);  // warps, of a stage
  static constexpr int COLS = P::BN / CLUSTER;                 // of B's tile that one block loads
  static constexpr int FILLERS = P::FACTORS > 0 ? 1 + 32 : 1;  // threads that fill a stage
  char* stages;
  uint64_t *full, *empty, *read;      // read: v2's scales have been
  int rank, steps, tiles_m, tiles_n;  // tiles_m: in units of CLUSTER tiles

  // A tile: its corner, the number of steps before it, and whether the block has a next one.
  struct Task {
    int m, n, before;
    bool more;
  };

  // Calls f for the block's tiles skip, skip + every …
  template <typename F>
  __device__ __forceinline__ void each_tile(int skip, int every, F f) const {
    const int clusters = static_cast<int>(gridDim.x) / CLUSTER, tiles = tiles_m * tiles_n;
    int before = skip * steps;
    for (int i = static_cast<int>(blockIdx.x) / CLUSTER + skip * clusters; i < tiles;
         i += every * clusters, before += every * steps) {
      const Corner tile = tile_at<GROUP>(i, tiles_m, tiles_n);
      f(Task{(tile.m * CLUSTER + rank) * P::BM, tile.n * P::BN, before, i + clusters < tiles});
    }
  }

  __device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b) const {
    each_tile(0, 1, [&](const Task& t) {
      for (int i = 0; i < steps; ++i) {
        const int s = (t.before + i) % STAGES, round = (t.before + i) / STAGES;
        ptx::mbarrier_wait(&empty[s], 1 - round % 2);  // both blocks' products have read the stage
        char* stage = stages + s * P::BYTES;
        ptx::mbarrier_arrive_expect_bytes(&full[s], P::BYTES);  // also what the other block brings
        ptx::load_tensor(stage, a, {i * DEPTH, t.m}, &full[s]);
        ptx::load_tensor_multicast(stage + P::A_BYTES + rank * COLS * ROW, b,
                                   {i * DEPTH, t.n + rank * COLS}, &full[s], (1 << CLUSTER) - 1);
      }
    });
  }

  // v2: where the scales of stage s are: one per row of A's tile, and after them that of B's.
  __device__ __forceinline__ float* factors(int s) const {
    char* behind = stages + STAGES * P::BYTES + CONSUMERS * P::BUFFERS * PART_BYTES;
    return reinterpret_cast<float*>(behind) + s * P::FACTORS;
  }

  // v2: one warp loads the scales of a step, and stores them when those before have been read.
  // Where the consumers loaded them, their next wgmma waited for that.
  __device__ __forceinline__ void bring_scales(const Arguments& p) const {
    const int lane = threadIdx.x % 32, scales_n = ceil_div(p.N, SCALED);
    each_tile(0, 1, [&](const Task& t) {
      float of_a[P::BM / 32], of_b;
      const auto load = [&](int block) {
#pragma unroll
        for (int i = 0; i < P::BM / 32; ++i) of_a[i] = row_scale(p, block, t.m + i * 32 + lane);
        of_b = p.b_scale[int64_t{block} * scales_n + t.n / SCALED];
      };
      load(0);
      for (int i = 0; i < steps; ++i) {
        const int s = (t.before + i) % STAGES, round = (t.before + i) / STAGES;
        ptx::mbarrier_wait(&read[s], 1 - round % 2);
        float* to = factors(s);
#pragma unroll
        for (int r = 0; r < P::BM / 32; ++r) to[r * 32 + lane] = of_a[r];
        if (lane == 0) to[P::BM] = of_b;
        ptx::mbarrier_arrive(&full[s]);
        if (i + 1 < steps) load(i + 1);
      }
    });
  }

  // This warp's products have read stage s, which both blocks write to.
  __device__ __forceinline__ void release(int s) const {
    if (threadIdx.x % 32 < CLUSTER)
      ptx::mbarrier_arrive_relaxed_at_rank(&empty[s], threadIdx.x % 32);
  }

  // v1: all of K in the tensor cores' sums; one group of wgmmas stays in flight, also at the end.
  __device__ __forceinline__ void sum_all(float (&sums)[P::HALVES][P::BN / 2], int before) const {
    for (int i = 0; i < steps; ++i) {
      const int s = (before + i) % STAGES, round = (before + i) / STAGES;
      const char* stage = stages + s * P::BYTES;
      ptx::mbarrier_wait(&full[s], round % 2);
      ptx::wgmma_fence(sums);
#pragma unroll
      for (int h = 0; h < P::HALVES; ++h) {
        multiply_step(sums[h], stage + h * ROWS * ROW, stage + P::A_BYTES, true);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the products of the step before have read their stage
      if (i > 0) release((before + i - 1) % STAGES);
    }
  }

  // The same when it is this consumer's turn: the other one has seen all stages before ours.
  __device__ __forceinline__ void sum_in_turn(float (&sums)[P::HALVES][P::BN / 2], int consumer,
                                              const Task& t) const {
    if (t.before > 0) ptx::barrier_sync(TURN + consumer, CONSUMERS * WARPGROUP);
    sum_all(sums, t.before);
    if (t.more) ptx::barrier_arrive(TURN + 1 - consumer, CONSUMERS * WARPGROUP);
    ptx::wgmma_wait<0>(sums);
    release((t.before + steps - 1) % STAGES);
  }

  // v2: sums += the products of stage s, scaled. While one consumer promotes, the other one's
  // wgmmas run.
  __device__ __forceinline__ void add_block(float (&sums)[P::HALVES][P::BN / 2], int s,
                                            int consumer) const {
    const char* stage = stages + s * P::BYTES;
    const float* factor = factors(s);
    const int of_thread = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < P::HALVES; ++h) {
      const int row = (consumer * P::HALVES + h) * ROWS;
      float part[P::BN / 2];
      ptx::wgmma_fence(part);
      multiply_step(part, stage + row * ROW, stage + P::A_BYTES, false);
      ptx::wgmma_commit();
      const float of_b = factor[P::BM];
      const float upper = of_b * factor[row + of_thread];
      const float lower = of_b * factor[row + of_thread + 8];
      ptx::wgmma_wait<0>(part);
      if (h == P::HALVES - 1) release(s);
      promote(sums[h], part, upper, lower);
    }
    __syncwarp();  // all lanes have read the scales before lane 0 says so
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&read[s]);
  }

  // v2: 128 of K at a time.
  __device__ __forceinline__ void sum_blocks(float (&sums)[P::HALVES][P::BN / 2], int consumer,
                                             int before) const {
    for (int i = 0; i < steps; ++i) {
      const int s = (before + i) % STAGES, round = (before + i) / STAGES;
      ptx::mbarrier_wait(&full[s], round % 2);
      add_block(sums, s, consumer);
    }
  }

  // v1: the scales of the rows and columns of a consumer's 64 rows from `row` on.
  __device__ __forceinline__ void scale_sums(float (&sums)[P::BN / 2], const Arguments& p, int row,
                                             int n) const {
    const float upper = row_scale(p, 0, row), lower = row_scale(p, 0, row + 8);
#pragma unroll
    for (int i = 0; i < P::BN / 2; ++i) {
      const int col = n + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      sums[i] *= (i / 2 % 2 ? lower : upper) * (col < p.N ? p.b_scale[col] : 0.0f);
    }
  }

  // Stores 64 rows of C, whose rows TMA takes only if they are a multiple of 16 bytes.
  __device__ __forceinline__ void store_rows(const float (&sums)[P::BN / 2], const Arguments& p,
                                             const TensorMap& c, int consumer, int& turn, int m,
                                             int n) const {
    if (p.N % 8 == 0) {
      char* buffers = stages + STAGES * P::BYTES + consumer * P::BUFFERS * PART_BYTES;
#pragma unroll
      for (int part = 0; part < P::BN / PART; ++part) {
        store_part<__nv_bfloat16, P::BUFFERS>(
            &sums[part * (PART / 2)], buffers, turn, 1 + consumer,
            [&](const char* from) { ptx::store_tensor(c, {n + part * PART, m}, from); });
      }
      return;
    }
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < P::BN / 2; ++i) {
      const int row = m + thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
      const int col = n + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row < p.M && col < p.N) p.c[int64_t{row} * p.N + col] = __float2bfloat16(sums[i]);
    }
  }

  __device__ __forceinline__ void consume(const Arguments& p, const TensorMap& c) const {
    const int consumer = threadIdx.x / WARPGROUP - 1, thread = threadIdx.x % WARPGROUP;
    constexpr bool IN_TURN = P::SHARING == 1;
    int turn = 0;
    each_tile(IN_TURN ? consumer : 0, IN_TURN ? CONSUMERS : 1, [&](const Task& t) {
      const int first = t.m + (IN_TURN ? 0 : consumer * P::HALVES * ROWS);
      const int row = first + thread / 32 * 16 + thread % 32 / 4;  // the upper one of this thread
      float sums[P::HALVES][P::BN / 2] = {};
      if constexpr (P::SCALES == Scales::kRows) {
        sum_in_turn(sums, consumer, t);
      } else {
        sum_blocks(sums, consumer, t.before);
      }
#pragma unroll
      for (int h = 0; h < P::HALVES; ++h) {
        if constexpr (P::SCALES == Scales::kRows) scale_sums(sums[h], p, row + h * ROWS, t.n);
        store_rows(sums[h], p, c, consumer, turn, first + h * ROWS, t.n);
      }
    });
    if (thread == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
  }
};

template <typename P>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_fp8_kernel(const Arguments p, const __grid_constant__ TensorMap a,
                    const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[STAGES], empty[STAGES], read[STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      ptx::mbarrier_init(&full[s], Roles<P>::FILLERS);
      ptx::mbarrier_init(&empty[s], Roles<P>::READERS);
      ptx::mbarrier_init(&read[s], CONSUMER_WARPS);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();  // the mbarriers of both blocks are there before any thread uses one
  const Roles<P> roles{tile_memory(),
                       full,
                       empty,
                       read,
                       static_cast<int>(blockIdx.x % CLUSTER),
                       ceil_div(p.K, DEPTH),
                       ceil_div(p.M, P::BM * CLUSTER),
                       ceil_div(p.N, P::BN)};
  constexpr bool MANY = P::HALVES * P::BN / 2 > 128;  // registers for sums
  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<MANY ? 24 : 40>();
    if (threadIdx.x == 0) roles.produce(a, b);
    if (P::FACTORS > 0 && threadIdx.x / 32 == 1) roles.bring_scales(p);
  } else {
    ptx::setmaxnreg_inc<MANY ? 240 : 232>();
    roles.consume(p, c);
  }
  ptx::cluster_sync();  // a block's shared memory is there as long as the other one writes to it
#endif
}

// Checks the arguments and multiplies. a_scale, b_scale: fp32 of the sizes of Scales.
template <typename P>
Tensor gemm_fp8(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale,
                const char* name) {
  check(a, "a").on_gpu().dtype({ScalarType::Float8_e4m3fn}).rank(2).contiguous();
  check(b, "b").on_gpu().dtype({ScalarType::Float8_e4m3fn}).rank(2).contiguous();
  check(b, "b").same_device(a, "a").size(1, a.size(1));
  const int64_t M = a.size(0), N = b.size(0), K = a.size(1);
  STD_TORCH_CHECK(K % 16 == 0, "a: expected rows of a multiple of 16 elements, as TMA needs, got ",
                  K);
  STD_TORCH_CHECK(M < INT32_MAX && N < INT32_MAX && K < INT32_MAX,
                  "a, b: expected fewer than 2^31 rows and columns");
  check(a_scale, "a_scale").on_gpu().dtype({ScalarType::Float}).contiguous();
  check(a_scale, "a_scale").same_device(a, "a");
  check(b_scale, "b_scale").on_gpu().dtype({ScalarType::Float}).contiguous();
  check(b_scale, "b_scale").same_device(a, "a");
  if constexpr (P::SCALES == Scales::kRows) {
    check(a_scale, "a_scale").rank(1).size(0, M);
    check(b_scale, "b_scale").rank(1).size(0, N);
  } else {
    const int64_t blocks = ceil_div<int64_t>(K, DEPTH);
    check(a_scale, "a_scale").rank(2).size(0, blocks).size(1, M);
    check(b_scale, "b_scale").rank(2).size(0, blocks).size(1, ceil_div<int64_t>(N, SCALED));
  }
  const DeviceGuard guard(a);
  Tensor c = torch::stable::new_empty(a, {M, N}, ScalarType::BFloat16);
  if (c.numel() == 0) return c;
  require_wgmma();
  STD_TORCH_CHECK(K > 0, "a: expected at least 16 columns, got 0");
  require_shared_memory(P::SHARED, "four pairs of tiles");
  const Arguments p{data<float>(a_scale), data<float>(b_scale), mutable_data<__nv_bfloat16>(c),
                    static_cast<int>(M),  static_cast<int>(N),  static_cast<int>(K)};
  const TensorMap to_a = matrix_map<E4m3>(a, "a", P::BM, DEPTH, Swizzle::k128);
  const TensorMap to_b = matrix_map<E4m3>(b, "b", P::BN / CLUSTER, DEPTH, Swizzle::k128);
  const TensorMap to_c =
      N % 8 == 0 ? matrix_map<__nv_bfloat16>(c, "c", ROWS, PART, Swizzle::k128) : TensorMap{};
  const int64_t work = ceil_div<int64_t>(M, P::BM * CLUSTER) * ceil_div<int64_t>(N, P::BN);
  const int64_t places = std::max(1, multiprocessor_count(a) / CLUSTER);
  const unsigned grid = static_cast<unsigned>(std::min(work, places)) * CLUSTER;
  launch_clusters(gemm_fp8_kernel<P>, grid, CLUSTER, THREADS, P::SHARED, current_stream(a), p, to_a,
                  to_b, to_c);
  check_launch(name);
  return c;
}

Tensor gemm_rows_v1_scaled_at_end(const Tensor& a, const Tensor& b, const Tensor& a_scale,
                                  const Tensor& b_scale) {
  return gemm_fp8<RowScaled>(a, b, a_scale, b_scale, "gemm_rows_v1_scaled_at_end");
}
Tensor gemm_blocks_v2_promoted(const Tensor& a, const Tensor& b, const Tensor& a_scale,
                               const Tensor& b_scale) {
  return gemm_fp8<BlockScaled>(a, b, a_scale, b_scale, "gemm_blocks_v2_promoted");
}

#define GEMM_FP8 "(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor"
RUNG(day57, gemm_rows_v1_scaled_at_end, GEMM_FP8);
RUNG(day57, gemm_blocks_v2_promoted, GEMM_FP8);

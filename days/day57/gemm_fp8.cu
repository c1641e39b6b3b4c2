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
//                      registers, in fp32 (promotion), while the next ones are made
//
// Run: python run_day.py 57

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/cluster_launch.cuh"   // taught in day 35
#include "common/cuda/matrix_map.cuh"       // taught in day 55
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/tile_order.cuh"       // taught in day 54
#include "days/day57/scaled_tiles.cuh"

#include <algorithm>

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

  // v2: where the scales of stage s are: per row of A's tile, first for B's first 128 columns.
  __device__ __forceinline__ float* factors(int s) const {
    char* behind = stages + STAGES * P::BYTES + CONSUMERS * P::BUFFERS * PART_BYTES;
    return reinterpret_cast<float*>(behind) + s * P::FACTORS;
  }

  // v2: one warp loads the scales of a step, and stores them when those before have been read.
  // Where the consumers loaded them, their next wgmma waited for that.
  __device__ __forceinline__ void bring_scales(const Arguments& p) const {
    const int lane = threadIdx.x % 32, scales_n = ceil_div(p.N, SCALED);
    each_tile(0, 1, [&](const Task& t) {
      float of_a[P::BM / 32], of_b[P::OF_B];
      const auto load = [&](int block) {
#pragma unroll
        for (int i = 0; i < P::BM / 32; ++i) of_a[i] = row_scale(p, block, t.m + i * 32 + lane);
#pragma unroll
        for (int j = 0; j < P::OF_B; ++j) {
          const int col = min(t.n / SCALED + j, scales_n - 1);  // the last tile may have less
          of_b[j] = p.b_scale[int64_t{block} * scales_n + col];
        }
      };
      load(0);
      for (int i = 0; i < steps; ++i) {
        const int s = (t.before + i) % STAGES, round = (t.before + i) / STAGES;
        ptx::mbarrier_wait(&read[s], 1 - round % 2);
        float* to = factors(s);
#pragma unroll
        for (int r = 0; r < P::FACTORS / 32; ++r) {
          to[r * 32 + lane] = of_a[r % (P::BM / 32)] * of_b[r / (P::BM / 32)];
        }
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

  // The upper one of this thread's two rows of 64, as wgmma has them; the lower one is 8 below.
  static __device__ __forceinline__ int row_of_thread() {
    return threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
  }

  // v1: all of K in the tensor cores' sums; one group of wgmmas stays in flight, also at the end.
  __device__ __forceinline__ void sum_all(float (&sums)[P::HALVES][P::BN / 2], int before,
                                          const Descriptor& a, const Descriptor& b) const {
    for (int i = 0; i < steps; ++i) {
      const unsigned step = before + i;  // unsigned, so that / and % are a shift and a mask
      const int s = step % STAGES, stage = s * (P::BYTES / UNIT);
      ptx::mbarrier_wait(&full[s], step / STAGES % 2);
      ptx::wgmma_fence(sums);
#pragma unroll
      for (int h = 0; h < P::HALVES; ++h) {
        multiply_step(sums[h], a, stage + h * (ROWS * ROW / UNIT), b, stage);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the products of the step before have read their stage
      if (i > 0) release((step - 1) % STAGES);
    }
  }

  // The same when it is this consumer's turn: the other one has seen all stages before ours.
  __device__ __forceinline__ void sum_in_turn(float (&sums)[P::HALVES][P::BN / 2], int consumer,
                                              const Task& t, const Descriptor& a,
                                              const Descriptor& b) const {
    if (t.before > 0) ptx::barrier_sync(TURN + consumer, CONSUMERS * WARPGROUP);
    sum_all(sums, t.before, a, b);
    if (t.more) ptx::barrier_arrive(TURN + 1 - consumer, CONSUMERS * WARPGROUP);
    ptx::wgmma_wait<0>(sums);
    release((t.before + steps - 1) % STAGES);
  }

  // v2 against v1: 128 of K at a time. A quarter of the columns is multiplied while the one before
  // is promoted, so quarters alternate between two sets of sums.
  struct Promotion {
    float part[2][QUARTER / 2] = {};  // of quarters 0 and 2, and of 1 and 3
    float scale[P::OF_B][2] = {};     // [quarter / 2][upper or lower row]
  };

  // Multiplies the four quarters of stage s. Each is promoted while the next one is multiplied, the
  // last one in the next step. row: this thread's upper one in A's tile.
  __device__ __forceinline__ void add_block(float (&sums)[P::BN / 2], Promotion& now,
                                            const Rows& rows, const Descriptor& b, int s,
                                            int row) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int before = (q + 3) % 4;  // for q = 0: quarter 3 of the step before
      auto& ready = now.part[before % 2];
      rows.multiply(now.part[q % 2], b, s * (P::BYTES / UNIT) + q * (QUARTER * ROW / UNIT));
      ptx::wgmma_wait<1>(ready);  // quarter q stays in flight
      promote(&sums[before * (QUARTER / 2)], ready, now.scale[before / 2]);
      for (int i = 0; q == 0 && i < P::OF_B * 2; ++i)  // the scales of this step
        now.scale[i / 2][i % 2] = factors(s)[i / 2 * P::BM + row + i % 2 * 8];
    }
    __syncwarp();  // all lanes have read the scales before lane 0 says so
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&read[s]);
  }

  // All steps of a tile. Quarter 3 of the last one has no next step that would promote it.
  __device__ __forceinline__ void sum_blocks(float (&sums)[P::BN / 2], int consumer, int before,
                                             const Descriptor& b) const {
    const int row = consumer * ROWS + row_of_thread();
    Rows rows(consumer * ROWS);
    Promotion now;
    for (int i = 0; i < steps; ++i) {
      const unsigned step = before + i;
      const int s = step % STAGES;
      ptx::mbarrier_wait(&full[s], step / STAGES % 2);
      ptx::wgmma_wait<0>(now.part);  // the products of the step before have read `rows` …
      if (i > 0) release((step - 1) % STAGES);  // … and their stage
      rows.load(stages + s * P::BYTES);
      add_block(sums, now, rows, b, s, row);
    }
    ptx::wgmma_wait<0>(now.part);
    release((before + steps - 1) % STAGES);
    promote(&sums[3 * (QUARTER / 2)], now.part[1], now.scale[1]);
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
    // By a shuffle, so that nvcc knows it to be the same in a warp, and with it what depends on it.
    const int consumer = __shfl_sync(0xffffffff, threadIdx.x / WARPGROUP - 1, 0);
    constexpr bool IN_TURN = P::SHARING == 1;
    const Descriptor a(stages), b(stages + P::A_BYTES);  // of stage 0
    int turn = 0;
    each_tile(IN_TURN ? consumer : 0, IN_TURN ? CONSUMERS : 1, [&](const Task& t) {
      const int first = t.m + (IN_TURN ? 0 : consumer * P::HALVES * ROWS);
      float sums[P::HALVES][P::BN / 2] = {};
      if constexpr (P::SCALES == Scales::kRows) {
        sum_in_turn(sums, consumer, t, a, b);
      } else {
        sum_blocks(sums[0], consumer, t.before, b);
      }
#pragma unroll
      for (int h = 0; h < P::HALVES; ++h) {
        if constexpr (P::SCALES == Scales::kRows) {
          scale_sums(sums[h], p, first + h * ROWS + row_of_thread(), t.n);
        }
        store_rows(sums[h], p, c, consumer, turn, first + h * ROWS, t.n);
      }
    });
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
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
  Tensor c = allocate(a, {M, N}, ScalarType::BFloat16);
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

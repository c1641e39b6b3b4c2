// Day 40: mixture of experts
//
//   y[t] = Σ_j gates[t][j] · silu(x[t] · w1[e]) · w2[e],  e = experts[t][j],  j in [0, k)
//
// x, y: (T, C), w1: (E, C, H), w2: (E, H, C), bf16; logits: (T, E), fp32, from which gate.cu
// makes gates and experts; silu(v) = v / (1 + exp(-v)). The S = T · k slots take 4 · S · C · H
// operations on 4 · E · C · H bytes of weights: S / E operations per byte, the number of rows per
// expert. For 2048 tokens, 64 experts and k = 8 that is 256. An H200 does about 190 in the time of
// a byte, so tensor cores are the limit, but not by much.
//
// v1 is in atomic_scatter.cu, gates in gate.cu, groups and combine in dispatch.cu.
//
//   v1 atomic_scatter   one thread per result, slot by slot; atomics add the slots up
//   v2 sorted           rows grouped by expert: a tile of rows shares each weight that it loads
//   v3 grouped_gemm     tensor cores, three stages of cp.async; x is gathered by the loads
//   v3 any_order        the same after a dispatch by atomics: other rows, equal bits in y
//   v3 capacity         the same for experts that take `capacity` slots at most
//
// Run: python run_day.py 40

#include <algorithm>

#include "common/cuda/binding.cuh"     // taught in day 6
#include "common/cuda/capability.cuh"  // what a card lacks
#include "common/cuda/mma_tiles.cuh"   // taught in day 26
#include "common/cuda/shared_memory.cuh"
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day40/moe.cuh"

// ---------------------------------------------------------------------------------------------
// v2 against v1: the rows of an expert lie together, so a block multiplies a tile of them by the
// same weights. The host does not know how many rows an expert has, and does not wait for the
// number: it launches as many tiles as there can be, and each block finds out which is its own.

// Some rows of one group. count is 0 where there is no tile of that number.
struct TileRows {
  int expert, first, count;
};

// Tile number `tile` of height M, where each group begins a new tile. Each lane looks at one expert
// at a time; all lanes of the warp must call it, and get the same.
template <int M>
__device__ TileRows find_tile(const int* __restrict__ offsets, int num_experts, int64_t tile) {
  const int lane = threadIdx.x % 32;
  int before = 0;  // tiles of the experts before e0
  for (int e0 = 0; e0 < num_experts; e0 += 32) {
    const int e = e0 + lane;
    const int first = e < num_experts ? offsets[e] : 0;
    const int rows = e < num_experts ? offsets[e + 1] - first : 0;
    const int tiles = (rows + M - 1) / M;
    const int end = before + warp_inclusive_scan(tiles);
    const unsigned reached = __ballot_sync(FULL_WARP, end > tile);
    if (reached != 0) {
      const int found = __ffs(reached) - 1;
      const int skipped = static_cast<int>(tile - __shfl_sync(FULL_WARP, end - tiles, found)) * M;
      const int rest = __shfl_sync(FULL_WARP, rows, found) - skipped;
      return {e0 + found, __shfl_sync(FULL_WARP, first, found) + skipped, rest < M ? rest : M};
    }
    before = __shfl_sync(FULL_WARP, end, 31);
  }
  return {0, 0, 0};
}

// out[r] = (row r of a) · w[e], for all rows r of each expert e; a: (rows, K), w: (E, K, N). FIRST:
// row r of a is that of its token, x[slots[r] / k], and silu follows.
struct Product {
  const bf16 *a, *w;
  bf16* out;
  const int *slots, *offsets;
  int num_experts, k;
  int64_t K, N;
};

template <bool FIRST>
__device__ const bf16* row_of_a(const Product& p, int64_t row) {
  return p.a + (FIRST ? p.slots[row] / p.k : row) * p.K;
}

constexpr int TILE = 32;  // rows, columns and depth
constexpr int TALL = 8;   // rows of threads; each thread has the rows threadIdx.y + TALL · i

template <bool FIRST>
__global__ void __launch_bounds__(32 * TALL) moe_v2_sorted_kernel(const Product p) {
  __shared__ float a_tile[TILE][TILE], w_tile[TILE][TILE];
  const int64_t tiles_n = (p.N + TILE - 1) / TILE;
  const TileRows rows = find_tile<TILE>(p.offsets, p.num_experts, blockIdx.x / tiles_n);
  if (rows.count == 0) return;  // the whole block
  const int64_t n = blockIdx.x % tiles_n * TILE + threadIdx.x;
  const bf16* const w = p.w + rows.expert * p.K * p.N;
  float sums[TILE / TALL] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += TILE) {
    for (int i = threadIdx.y; i < TILE; i += TALL) {
      const int64_t column = k0 + threadIdx.x, row = k0 + i;
      const bool in_a = i < rows.count && column < p.K, in_w = row < p.K && n < p.N;
      a_tile[i][threadIdx.x] =
          in_a ? static_cast<float>(row_of_a<FIRST>(p, rows.first + i)[column]) : 0.0f;
      w_tile[i][threadIdx.x] = in_w ? static_cast<float>(w[row * p.N + n]) : 0.0f;
    }
    __syncthreads();  // both tiles are written before they are read
    for (int i = 0; i < TILE; ++i) {
#pragma unroll
      for (int r = 0; r < TILE / TALL; ++r) {
        sums[r] += a_tile[threadIdx.y + TALL * r][i] * w_tile[i][threadIdx.x];
      }
    }
    __syncthreads();  // both tiles are read before the next step overwrites them
  }
  for (int r = 0; r < TILE / TALL; ++r) {
    const int row = threadIdx.y + TALL * r;
    if (row >= rows.count || n >= p.N) break;
    p.out[(rows.first + row) * p.N + n] = static_cast<bf16>(FIRST ? silu(sums[r]) : sums[r]);
  }
}

// The blocks that tiles of M × N results can need: each group has at most one tile that is not
// full.
unsigned tile_blocks(const Product& p, int64_t rows, int64_t M, int64_t N) {
  return grid_size((rows / M + p.num_experts) * ceil_div<int64_t>(p.N, N), "x");
}

void multiply_sorted(const Product& p, int64_t rows, bool first, cudaStream_t stream) {
  const auto kernel = first ? moe_v2_sorted_kernel<true> : moe_v2_sorted_kernel<false>;
  kernel<<<tile_blocks(p, rows, TILE, TILE), dim3(32, TALL), 0, stream>>>(p);
  check_launch("moe_v2_sorted");
}

// Gate, group(experts, number of experts), two products by `multiply`, combine.
template <typename Group, typename Multiply>
Tensor mixture(const Sizes& n, const Tensor& x, const Tensor& logits, const Tensor& w1,
               const Tensor& w2, int64_t k, Group group, Multiply multiply) {
  Tensor y = allocate_like(x);
  if (y.numel() == 0) return y;
  const auto [gates, experts] = gate_v3_eight_lanes(logits, k);
  const Groups groups = group(experts, n.E);
  Tensor hidden = allocate(x, {n.S, n.H});
  Tensor results = allocate(x, {n.S, n.C});
  const cudaStream_t stream = current_stream(x);
  Product p{};
  p.slots = data<int>(groups.slots), p.offsets = data<int>(groups.offsets);
  p.num_experts = static_cast<int>(n.E), p.k = static_cast<int>(k);
  p.a = data<bf16>(x), p.w = data<bf16>(w1), p.out = mutable_data<bf16>(hidden);
  p.K = n.C, p.N = n.H;
  if (n.H > 0) multiply(p, n.S, true, stream);  // a grid of no blocks is an error
  p.a = data<bf16>(hidden), p.w = data<bf16>(w2), p.out = mutable_data<bf16>(results);
  p.K = n.H, p.N = n.C;
  multiply(p, n.S, false, stream);
  combine(results, groups.rows, gates, y);
  return y;
}

Groups in_order(const Tensor& experts, int64_t num_experts) {
  return group_by_counting_sort(experts, num_experts, experts.numel());
}

Tensor moe_v2_sorted(const Tensor& x, const Tensor& logits, const Tensor& w1, const Tensor& w2,
                     int64_t k) {
  const Sizes n = check_mixture(x, logits, w1, w2, k);
  const DeviceGuard guard(x);
  return mixture(n, x, logits, w1, w2, k, in_order, multiply_sorted);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: tensor cores multiply, and their operands come by cp.async, up to STAGES - 1 steps
// ahead. A block has four warps, each with 64×64 of its 128×128 results.

constexpr int BM = 128, BN = 128, BK = 64;
constexpr int STAGES = 3;  // 96 KB: two blocks per multiprocessor with 9.0, one with 8.6
constexpr int THREADS = 128;
constexpr int WARP_TILE = 64;
constexpr int CHUNK = tiles::CHUNK;

struct Stage {
  bf16 a[BM * BK];  // (BM, BK)
  bf16 w[BK * BN];  // (BK, BN)
};
static_assert(sizeof(Stage) == BM * BN * sizeof(bf16), "results leave through the first stage");

// sums += the stage's rows [m0, m0 + 64) of a times its columns [n0, n0 + 64) of w
__device__ void multiply_stage(float (&sums)[WARP_TILE / 16][WARP_TILE / 8][4], const Stage& stage,
                               int m0, int n0) {
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    uint32_t a[WARP_TILE / 16][4];
#pragma unroll
    for (int i = 0; i < WARP_TILE / 16; ++i) tiles::load_a<BK>(a[i], stage.a, m0 + i * 16, k);
#pragma unroll
    for (int n = 0; n < WARP_TILE; n += 16) {
      uint32_t b[2][2];
      tiles::load_b<BN>(b, stage.w, k, n0 + n);
#pragma unroll
      for (int i = 0; i < WARP_TILE / 16; ++i) {
        ptx::mma_m16n8k16<bf16>(sums[i][n / 8], a[i], b[0], sums[i][n / 8]);
        ptx::mma_m16n8k16<bf16>(sums[i][n / 8 + 1], a[i], b[1], sums[i][n / 8 + 1]);
      }
    }
  }
}

template <bool FIRST>
__global__ void __launch_bounds__(THREADS, 2) moe_v3_grouped_gemm_kernel(const Product p) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) float4 dynamic[];
  Stage* const stages = reinterpret_cast<Stage*>(dynamic);
  const int64_t tiles_n = (p.N + BN - 1) / BN, n0 = blockIdx.x % tiles_n * BN;
  const TileRows rows = find_tile<BM>(p.offsets, p.num_experts, blockIdx.x / tiles_n);
  if (rows.count == 0) return;  // the whole block

  // A thread copies one chunk of the rows row_a + 16 · i of a, and one of the rows row_w + 8 · i of
  // w. What lies beyond the group or the matrix becomes zeros: then the address is not read.
  constexpr int CHUNKS_A = BK / CHUNK, STEP_A = THREADS / CHUNKS_A;
  constexpr int CHUNKS_W = BN / CHUNK, STEP_W = THREADS / CHUNKS_W;
  const int row_a = threadIdx.x / CHUNKS_A, chunk_a = threadIdx.x % CHUNKS_A;
  const int row_w = threadIdx.x / CHUNKS_W, chunk_w = threadIdx.x % CHUNKS_W;
  const bf16* from[BM / STEP_A];
#pragma unroll
  for (int i = 0; i < BM / STEP_A; ++i) {
    const int row = min(row_a + i * STEP_A, rows.count - 1);
    from[i] = row_of_a<FIRST>(p, rows.first + row) + chunk_a * CHUNK;
  }
  const bf16* const w = p.w + rows.expert * p.K * p.N + row_w * p.N + n0 + chunk_w * CHUNK;
  const bool in_n = n0 + chunk_w * CHUNK < p.N;
  const auto load = [&](int64_t step) {
    Stage& to = stages[step % STAGES];
    const int64_t k0 = step * BK;
    const bool in_k = k0 + chunk_a * CHUNK < p.K;
    bf16* const to_a = to.a + tiles::swizzled<BK>(row_a, chunk_a);
    bf16* const to_w = to.w + tiles::swizzled<BN>(row_w, chunk_w);
#pragma unroll
    for (int i = 0; i < BM / STEP_A; ++i) {
      const bool valid = in_k && row_a + i * STEP_A < rows.count;
      ptx::cp_async_zero_fill<16>(to_a + i * STEP_A * BK, from[i] + k0, valid ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < BK / STEP_W; ++i) {
      const bool valid = in_n && k0 + row_w + i * STEP_W < p.K;
      ptx::cp_async_zero_fill<16>(to_w + i * STEP_W * BN, w + (k0 + i * STEP_W) * p.N,
                                  valid ? 16 : 0);
    }
  };

  const int64_t steps = (p.K + BK - 1) / BK;
  for (int step = 0; step < STAGES - 1; ++step) {
    if (step < steps) load(step);
    ptx::cp_async_commit();  // a group per step, empty or not, so that waits can count them
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_m = warp / 2 * WARP_TILE, warp_n = warp % 2 * WARP_TILE;
  float sums[WARP_TILE / 16][WARP_TILE / 8][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    ptx::cp_async_wait<STAGES - 2>();
    // All copies of this step have arrived before a warp reads them, and all warps have multiplied
    // the step before, whose stage is filled next.
    __syncthreads();
    if (step + STAGES - 1 < steps) load(step + STAGES - 1);
    ptx::cp_async_commit();
    if (warp_m < rows.count) multiply_stage(sums, stages[step % STAGES], warp_m, warp_n);
  }

  __syncthreads();  // all warps have read the last stages before results overwrite the first
  bf16* const results = reinterpret_cast<bf16*>(dynamic);  // (BM, BN)
#pragma unroll
  for (int i = 0; i < WARP_TILE / 8; ++i) {
#pragma unroll
    for (int n = 0; n < WARP_TILE / 8; ++n) {
      const float* const pair = sums[i / 2][n] + i % 2 * 2;
      const float left = FIRST ? silu(pair[0]) : pair[0], right = FIRST ? silu(pair[1]) : pair[1];
      const int row = warp_m + i * 8 + lane / 4;
      bf16* const to = results + tiles::swizzled<BN>(row, warp_n / CHUNK + n) + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(to) = tiles::pack<bf16>(left, right);
    }
  }
  __syncthreads();  // all results are written before they are read
  for (int row = row_w; row < rows.count && in_n; row += STEP_W) {
    bf16* const to = p.out + (rows.first + row) * p.N + n0 + chunk_w * CHUNK;
    *reinterpret_cast<float4*>(to) =
        *reinterpret_cast<const float4*>(results + tiles::swizzled<BN>(row, chunk_w));
  }
#endif
}

void multiply_grouped(const Product& p, int64_t rows, bool first, cudaStream_t stream) {
  constexpr int64_t bytes = STAGES * sizeof(Stage);
  const auto kernel = first ? moe_v3_grouped_gemm_kernel<true> : moe_v3_grouped_gemm_kernel<false>;
  allow_shared(kernel, bytes);
  kernel<<<tile_blocks(p, rows, BM, BN), THREADS, bytes, stream>>>(p);
  check_launch("moe_v3_grouped_gemm");
}

// Tensor cores if the rows consist of aligned packs of 16 bytes, otherwise v2's kernel.
template <typename Group>
Tensor on_tensor_cores(const Tensor& x, const Tensor& logits, const Tensor& w1, const Tensor& w2,
                       int64_t k, Group group) {
  const Sizes n = check_mixture(x, logits, w1, w2, k);
  const DeviceGuard guard(x);
  require_capability(8, 0, "mma of bf16 and cp.async");
  require_shared_memory(STAGES * sizeof(Stage), "three stages of two tiles");
  const bool packs = n.C % CHUNK == 0 && n.H % CHUNK == 0;
  if (packs && is_aligned(x, 16) && is_aligned(w1, 16) && is_aligned(w2, 16)) {
    return mixture(n, x, logits, w1, w2, k, group, multiply_grouped);
  }
  fell_back("moe_v2_sorted", "rows that are not made of aligned packs of 16 bytes");
  return mixture(n, x, logits, w1, w2, k, group, multiply_sorted);
}

Tensor moe_v3_grouped_gemm(const Tensor& x, const Tensor& logits, const Tensor& w1,
                           const Tensor& w2, int64_t k) {
  return on_tensor_cores(x, logits, w1, w2, k, in_order);
}

Tensor moe_v3_any_order(const Tensor& x, const Tensor& logits, const Tensor& w1, const Tensor& w2,
                        int64_t k) {
  return on_tensor_cores(x, logits, w1, w2, k, group_by_atomics);
}

Tensor moe_v3_capacity(const Tensor& x, const Tensor& logits, const Tensor& w1, const Tensor& w2,
                       int64_t k, int64_t capacity) {
  return on_tensor_cores(x, logits, w1, w2, k, [&](const Tensor& experts, int64_t num_experts) {
    return group_by_counting_sort(experts, num_experts, capacity);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day40, moe_v2_sorted, "(Tensor x, Tensor logits, Tensor w1, Tensor w2, int k) -> Tensor");
RUNG(day40, moe_v3_grouped_gemm,
     "(Tensor x, Tensor logits, Tensor w1, Tensor w2, int k) -> Tensor");
RUNG(day40, moe_v3_any_order, "(Tensor x, Tensor logits, Tensor w1, Tensor w2, int k) -> Tensor");
RUNG(day40, moe_v3_capacity,
     "(Tensor x, Tensor logits, Tensor w1, Tensor w2, int k, int capacity) -> Tensor");

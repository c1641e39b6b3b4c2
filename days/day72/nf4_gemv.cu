// Day 72: NF4 with double quantisation, part 2: matrix-vector products
//
//   W[n, k] = LEVELS[code[n, k]] · absmax[b]    b = (n · K + k) / 64
//   y[n]    = Σ_k W[n, k] · x[k]                x: (K) bf16, y: (N) bf16
//
// codes: (N, K / 2) uint8, the first of two weights in the high nibble. absmax: see part 1.
// 16384 × 16384 weights take 138 MB, where bf16 takes 537 MB. At 4.2 TB/s an H200 reads 8.1 T
// weights per second, and its lanes can execute 4.1 instructions per weight.
//
//   v1 two_steps     W is written as bf16, and cuBLAS multiplies: 4.5 bytes per weight
//   v2 levels        one kernel, one warp per row; each code looks up its level
//   v3 pairs         a byte looks up both of its levels; one copy of the table per lane
//   v4 tensor_cores  in part 3, nf4_tensor_cores.cu
//
// Run: python run_day.py 72

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day71/nf4_format.cuh"    // LEVELS: taught in day 71
#include "days/day72/product.cuh"
#include "days/day72/tables.cuh"

#include <cstdint>

// ---------------------------------------------------------------------------------------------
// v1: a thread dequantises one word to 16 bytes. W is written and read once more: 4.5 bytes per
// weight instead of half a byte.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// Where weight k of a word begins: the lowest byte comes first, and in it the high nibble.
__device__ __forceinline__ int bit_of(int k) {
  return 4 * (k ^ 1);
}

__global__ void __launch_bounds__(THREADS)
    dequantize_kernel(const uint32_t* __restrict__ words, const Absmaxes absmaxes,
                      Pack<__nv_bfloat16>* __restrict__ weights, int64_t count) {
  __shared__ float levels[CODES];
  if (threadIdx.x < CODES) levels[threadIdx.x] = LEVELS[threadIdx.x];
  __syncthreads();  // all wait for the levels
  const int64_t i = int64_t{blockIdx.x} * THREADS + threadIdx.x;
  if (i >= count) return;
  const uint32_t word = words[i];
  const float scale =
      absmax_at(absmaxes, absmaxes.levels, *absmaxes.offset, i / (BLOCK_WEIGHTS / WORD));
  Pack<__nv_bfloat16> eight;
#pragma unroll
  for (int k = 0; k < WORD; ++k) {
    eight.at[k] = __float2bfloat16(levels[word >> bit_of(k) & 15] * scale);
  }
  weights[i] = eight;
}

Tensor nf4_gemv_v1_two_steps(GEMV_ARGUMENTS) {
  const auto launch = [&](const Product& p, Tensor& y, cudaStream_t stream) {
    const Tensor weights = allocate(x, {p.N, p.K});
    const int64_t words = p.N * p.K / WORD;
    dequantize_kernel<<<grid_size(ceil_div<int64_t>(words, THREADS), "codes"), THREADS, 0,
                        stream>>>(data<uint32_t>(codes), p.absmaxes,
                                  mutable_data<Pack<__nv_bfloat16>>(weights), words);
    torch::stable::copy_(y, torch::stable::matmul(weights, x));
  };
  return multiply(x, codes, q, levels, scales, offset, launch);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one kernel, one warp per row. Lane l has the chunks l, l + 32 … of its row. Each
// weight takes a shift, a mask, a load of its level, a product, and half of the conversion of a
// pair of x to fp32.

// A pair of bf16 as two floats: bf16 is the upper half of fp32.
__device__ __forceinline__ float2 floats_of(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

__global__ void __launch_bounds__(THREADS) nf4_gemv_v2_levels_kernel(const Product p) {
  __shared__ float levels[CODES], levels_8[LEVELS_8];
  if (threadIdx.x < CODES) levels[threadIdx.x] = LEVELS[threadIdx.x];
  levels_8[threadIdx.x] = p.absmaxes.levels[threadIdx.x];
  static_assert(THREADS == LEVELS_8);
  __syncthreads();  // all wait for the levels
  const int64_t n = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (n >= p.N) return;  // the whole warp
  const int64_t chunks = p.K / CHUNK;
  const float offset = *p.absmaxes.offset;
  float sum = 0;
  for (int64_t c = lane; c < chunks; c += 32) {
    const int64_t index = n * chunks + c;
    const Registers words = p.codes[index];
    const float scale = absmax_at(p.absmaxes, levels_8, offset, index / BLOCK_CHUNKS);
    float part = 0;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      const Registers elements = p.x[c * WORDS + i];
#pragma unroll
      for (int j = 0; j < WORD / 2; ++j) {
        const float2 e = floats_of(elements.at[j]);
        part += levels[words.at[i] >> bit_of(2 * j) & 15] * e.x;
        part += levels[words.at[i] >> bit_of(2 * j + 1) & 15] * e.y;
      }
    }
    sum += scale * part;
  }
  sum = warp_sum(sum);
  if (lane == 0) p.y[n] = __float2bfloat16(sum);
}

Tensor nf4_gemv_v2_levels(GEMV_ARGUMENTS) {
  const auto launch = [](const Product& p, Tensor&, cudaStream_t stream) {
    const unsigned grid = grid_size(ceil_div<int64_t>(p.N, WARPS), "codes");
    nf4_gemv_v2_levels_kernel<<<grid, THREADS, 0, stream>>>(p);
  };
  return multiply(x, codes, q, levels, scales, offset, launch);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a byte is the index of two levels. Every lane has its own copy of the table, at
// distances of 8 bytes, so lanes never conflict, and an entry lies at 256 · byte + 8 · lane: one
// PRMT puts these two bytes side by side. A lane has the same chunk of 4 rows, for which it
// converts x to fp32 once.

// One row of W; beyond the last one, the last one again.
struct Row {
  const Registers* codes;
  int64_t block;  // the first of the row
};

__device__ __forceinline__ Row row_of(const Product& p, int64_t n) {
  const int64_t block = min(n, p.N - 1) * (p.K / BLOCK_WEIGHTS);
  return {p.codes + block * BLOCK_CHUNKS, block};
}

constexpr int V3_THREADS = 512;
constexpr int V3_ROWS = 4;  // per warp
constexpr int V3_BLOCK_ROWS = V3_THREADS / 32 * V3_ROWS;

__global__ void __launch_bounds__(V3_THREADS, 2) nf4_gemv_v3_pairs_kernel(const Product p) {
  extern __shared__ __align__(128) char tables[];
  fill_tables<float2>(tables, p.absmaxes.levels,
                      [](float first, float second) { return float2{first, second}; });
  const auto* levels_8 = reinterpret_cast<const float*>(tables + TABLE);
  const int64_t n0 = int64_t{blockIdx.x} * V3_BLOCK_ROWS + threadIdx.x / 32 * V3_ROWS;
  const uint32_t lane = threadIdx.x % 32, chunks = static_cast<uint32_t>(p.K / CHUNK);
  Row rows[V3_ROWS];
#pragma unroll
  for (int r = 0; r < V3_ROWS; ++r) rows[r] = row_of(p, n0 + r);
  const float offset = *p.absmaxes.offset;
  float sums[V3_ROWS] = {};
  for (uint32_t first = 0; first < chunks; first += 32) {  // as many iterations in all lanes
    const uint32_t c = min(first + lane, chunks - 1);
    Registers words[V3_ROWS];
    float parts[V3_ROWS] = {};
#pragma unroll
    for (int r = 0; r < V3_ROWS; ++r) words[r] = rows[r].codes[c];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      const Registers elements = p.x[c * WORDS + i];
#pragma unroll
      for (int j = 0; j < WORD / 2; ++j) {
        const float2 e = floats_of(elements.at[j]);
#pragma unroll
        for (int r = 0; r < V3_ROWS; ++r) {
          const float2 pair = pair_of<float2>(tables, words[r].at[i], j, lane);
          parts[r] += pair.x * e.x;
          parts[r] += pair.y * e.y;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < V3_ROWS; ++r) {
      const float absmax =
          absmax_at(p.absmaxes, levels_8, offset, rows[r].block + c / BLOCK_CHUNKS);
      if (first + lane < chunks) sums[r] += absmax * parts[r];
    }
  }
#pragma unroll
  for (int r = 0; r < V3_ROWS; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == 0 && n0 + r < p.N) p.y[n0 + r] = __float2bfloat16(sum);
  }
}

Tensor nf4_gemv_v3_pairs(GEMV_ARGUMENTS) {
  const auto launch = [](const Product& p, Tensor&, cudaStream_t stream) {
    STD_TORCH_CHECK(p.K <= MOST_K, "x: expected at most 2^30 elements, got ", p.K);
    launch_with_tables(nf4_gemv_v3_pairs_kernel, p, V3_BLOCK_ROWS, V3_THREADS, SHARED, stream);
  };
  return multiply(x, codes, q, levels, scales, offset, launch);
}

// ---------------------------------------------------------------------------------------------

RUNG(day72, nf4_gemv_v1_two_steps, GEMV);
RUNG(day72, nf4_gemv_v2_levels, GEMV);
RUNG(day72, nf4_gemv_v3_pairs, GEMV);

// Day 72: NF4 with double quantisation, part 2: matrix-vector products
//
//   W[n, k] = LEVELS[code[n, k]] · absmax[b]    b = (n · K + k) / 64
//   y[n]    = Σ_k W[n, k] · x[k]                x: (K) bf16, y: (N) bf16
//
// codes: (N, K / 2) uint8, the first of two weights in the high nibble. absmax: see part 1.
// 16384 × 16384 weights take 138 MB, where bf16 takes 537 MB. At 4.2 TB/s an H200 reads 8.1 T
// weights per second, and can execute 3.6 instructions per lane for each.
//
//   v1 two_steps     W is written as bf16, and cuBLAS multiplies: 4.5 bytes per weight
//   v2 levels        one kernel, one warp per row; each code looks up its level
//   v3 pairs         a byte looks up both of its levels; one copy of the table per lane
//   v4 tensor_cores  mma adds up, for each lane by itself: the columns of its result are the lanes
//
// Run: python run_day.py 72

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/ptx/mma.cuh"        // taught in day 26
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/warp_reduce.cuh"    // taught in day 23
#include "days/day71/nf4_format.cuh"      // LEVELS: taught in day 71
#include "days/day72/product.cuh"

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
    const Tensor weights = torch::stable::new_empty(x, {p.N, p.K});
    const int64_t words = p.N * p.K / WORD;
    dequantize_kernel<<<grid_size(ceil_div<int64_t>(words, THREADS), "codes"), THREADS, 0,
                        stream>>>(data<uint32_t>(codes), p.absmaxes,
                                  mutable_data<Pack<__nv_bfloat16>>(weights), words);
    torch::stable::copy_(y, torch::stable::matmul(weights, x));
  };
  return multiply(x, codes, q, levels, scales, offset, launch);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one kernel, one warp per row. A lane has the chunks l, l + 32 … of its row. Each
// weight takes a shift, a mask, a load of its level, a product, and half of the work of making
// floats of x.

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
// PRMT puts these two bytes beside each other. A lane has its chunk of 4 rows, for which it makes
// floats of x once.

constexpr int TABLE = 256 * 256;  // bytes
constexpr int SHARED = TABLE + LEVELS_8 * static_cast<int>(sizeof(float));

// The lane's copy of the entry whose index is byte `at` of `word`. T has at most 8 bytes.
template <typename T>
__device__ __forceinline__ T pair_of(const char* tables, uint32_t word, int at, uint32_t lane) {
  const uint32_t entry = __byte_perm(word, sizeof(T) * lane, 0x5504 | at << 4);
  return *reinterpret_cast<const T*>(tables + entry);
}

// The tables of a block: 32 copies of each entry make(first, second), by stores of 16 bytes, and
// behind them the 256 levels of absmaxes.
template <typename T, typename Make>
__device__ void fill_tables(char* tables, const float* levels_8, Make&& make) {
  constexpr int PACKS = 32 / Pack<T>::N;
  for (int i = threadIdx.x; i < 256 * PACKS; i += blockDim.x) {
    const int byte = i / PACKS;
    Pack<T> pack;
    for (T& copy : pack.at) copy = make(LEVELS[byte >> 4], LEVELS[byte & 15]);
    reinterpret_cast<Pack<T>*>(tables + 256 * byte)[i % PACKS] = pack;
  }
  if (threadIdx.x < LEVELS_8) {
    reinterpret_cast<float*>(tables + TABLE)[threadIdx.x] = levels_8[threadIdx.x];
  }
  __syncthreads();  // all wait for the tables
}

// One row of W; beyond the last one, the last one again.
struct Row {
  const Registers* codes;
  const uint8_t* q;
  int64_t block;  // the first of the row
};

__device__ __forceinline__ Row row_of(const Product& p, int64_t n) {
  const int64_t block = min(n, p.N - 1) * (p.K / BLOCK_WEIGHTS);
  return {p.codes + block * BLOCK_CHUNKS, p.absmaxes.q + block, block};
}

constexpr int V3_THREADS = 512;
constexpr int V3_ROWS = 4;  // per warp
constexpr int V3_BLOCK_ROWS = V3_THREADS / 32 * V3_ROWS;

__global__ void __launch_bounds__(V3_THREADS, 2) nf4_gemv_v3_pairs_kernel(const Product p) {
  extern __shared__ __align__(16) char tables[];
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
  for (uint32_t first = 0; first < chunks; first += 32) {  // as often in all lanes
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

// Tables of 64 KB: two blocks fit on an H200's multiprocessor, and 16384 rows are one wave of them.
template <typename Kernel>
void launch_with_tables(Kernel kernel, const Product& p, int rows, int threads,
                        cudaStream_t stream) {
  require_shared_memory(SHARED, "a table per lane");
  allow_shared(kernel, SHARED);
  kernel<<<grid_size(ceil_div<int64_t>(p.N, rows), "codes"), threads, SHARED, stream>>>(p);
}

Tensor nf4_gemv_v3_pairs(GEMV_ARGUMENTS) {
  const auto launch = [](const Product& p, Tensor&, cudaStream_t stream) {
    launch_with_tables(nf4_gemv_v3_pairs_kernel, p, V3_BLOCK_ROWS, V3_THREADS, stream);
  };
  return multiply(x, codes, q, levels, scales, offset, launch);
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: entries are pairs of bf16, as mma takes them. One mma replaces 8 multiply-adds per
// lane, and no floats are made of x. Lane (g, t) has a chunk of the rows g and g + 8. The four
// lanes of a row have different absmaxes, so their sums must stay apart: column 2t of b holds x for
// the lanes t alone, and zeros for the others. Then d[0] and d[2] of lane (g, t) are its own sums.

constexpr int V4_THREADS = 384;  // so that each may have 80 registers
constexpr int K_WARPS = 3;       // warps that share 16 rows, each with a part of the columns
constexpr int BLOCK_ROWS = 16 * V4_THREADS / 32 / K_WARPS;
constexpr int AHEAD = 2;                // steps whose codes are loaded before the first is used
constexpr uint32_t STEP = 4 * K_WARPS;  // chunks from one of a lane to its next

// d += the products of a chunk of the rows g and g + 8 with 32 elements of x, without absmaxes.
__device__ __forceinline__ void multiply_chunk(float (&d)[4], const Registers (&words)[2],
                                               const Registers (&elements)[WORDS],
                                               const char* tables, int lane) {
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
#pragma unroll
    for (int j = 0; j < WORD / 2; j += 2) {  // two bytes of a word are four columns of a
      const auto pair = [&](int r, int at) {
        return pair_of<uint32_t>(tables, words[r].at[i], at, lane);
      };
      const uint32_t a[4] = {pair(0, j), pair(1, j), pair(0, j + 1), pair(1, j + 1)};
      const uint32_t b[2] = {elements[i].at[j], elements[i].at[j + 1]};
      ptx::mma_m16n8k16<__nv_bfloat16>(d, a, b, d);
    }
  }
}

__global__ void __launch_bounds__(V4_THREADS, 2) nf4_gemv_v4_tensor_cores_kernel(const Product p) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) char tables[];
  __shared__ float parts[K_WARPS][BLOCK_ROWS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % K_WARPS, warp_row = warp / K_WARPS * 16;
  const uint32_t chunks = static_cast<uint32_t>(p.K / CHUNK), own = 4 * part + t;
  const int64_t n0 = int64_t{blockIdx.x} * BLOCK_ROWS;
  Row rows[2] = {row_of(p, n0 + warp_row + g), row_of(p, n0 + warp_row + g + 8)};
  uint32_t groups[2], in_group[2];  // of the first block of the rows
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    groups[r] = static_cast<uint32_t>(rows[r].block / GROUP);
    in_group[r] = static_cast<uint32_t>(rows[r].block % GROUP) + own / BLOCK_CHUNKS;
    rows[r].codes += own;
    rows[r].q += own / BLOCK_CHUNKS;
  }
  fill_tables<__nv_bfloat162>(tables, p.absmaxes.levels, [](float first, float second) {
    return __floats2bfloat162_rn(first, second);
  });
  const auto* levels_8 = reinterpret_cast<const float*>(tables + TABLE);
  const float offset = *p.absmaxes.offset;

  // Beyond the last chunk, lanes keep what they had loaded before, and do not add it up.
  float sums[2] = {};
  Registers words[AHEAD][2] = {};
  uint32_t q[AHEAD][2] = {};
  Registers elements[WORDS] = {};  // of x; they stay 0 in lanes whose column is another one's
  const Registers* x = p.x + own * WORDS;
  for (uint32_t first = 0; first < chunks; first += AHEAD * STEP) {  // as often in all warps
#pragma unroll
    for (int s = 0; s < AHEAD; ++s) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (first + own + s * STEP < chunks) {
          words[s][r] = rows[r].codes[s * STEP];
          q[s][r] = rows[r].q[s * STEP / BLOCK_CHUNKS];
        }
      }
    }
    __syncwarp();  // the compiler would move the loads of q down to where they are used
#pragma unroll
    for (int s = 0; s < AHEAD; ++s) {
      const bool inside = first + own + s * STEP < chunks;
      if (inside && g == 2 * t) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) elements[i] = x[s * STEP * WORDS + i];
      }
      float d[4] = {};
      multiply_chunk(d, words[s], elements, tables, lane);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t blocks = in_group[r] + (first + s * STEP) / BLOCK_CHUNKS;
        if (inside) {
          const float scale = p.absmaxes.scales[groups[r] + blocks / GROUP];
          sums[r] += fmaf(levels_8[q[s][r]], scale, offset) * d[2 * r];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r].codes += AHEAD * STEP;
      rows[r].q += AHEAD * STEP / BLOCK_CHUNKS;
    }
    x += AHEAD * STEP * WORDS;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // the four lanes of a row
    sums[r] += __shfl_xor_sync(FULL_WARP, sums[r], 1);
    sums[r] += __shfl_xor_sync(FULL_WARP, sums[r], 2);
    if (t == 0) parts[part][warp_row + 8 * r + g] = sums[r];
  }
  __syncthreads();  // all parts are stored before they are added up
  const int row = threadIdx.x;
  if (row >= BLOCK_ROWS || n0 + row >= p.N) return;
  float sum = 0;
  for (int w = 0; w < K_WARPS; ++w) sum += parts[w][row];
  p.y[n0 + row] = __float2bfloat16(sum);
#endif
}

Tensor nf4_gemv_v4_tensor_cores(GEMV_ARGUMENTS) {
  const auto launch = [](const Product& p, Tensor&, cudaStream_t stream) {
    require_capability(8, 0, "mma of bf16");
    launch_with_tables(nf4_gemv_v4_tensor_cores_kernel, p, BLOCK_ROWS, V4_THREADS, stream);
  };
  return multiply(x, codes, q, levels, scales, offset, launch);
}

// ---------------------------------------------------------------------------------------------

#define GEMV \
  "(Tensor x, Tensor codes, Tensor q, Tensor levels, Tensor scales, Tensor offset) -> Tensor"

RUNG(day72, nf4_gemv_v1_two_steps, GEMV);
RUNG(day72, nf4_gemv_v2_levels, GEMV);
RUNG(day72, nf4_gemv_v3_pairs, GEMV);
RUNG(day72, nf4_gemv_v4_tensor_cores, GEMV);

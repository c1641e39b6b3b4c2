// Day 72: NF4 with double quantisation, part 3: matrix-vector products on tensor cores
//
//   v4 tensor_cores  mma keeps a separate sum per lane: each of its four has its own column
//
// v4 against v3: entries are pairs of bf16, as mma takes them. One mma replaces 8 multiply-adds per
// lane, and x stays bf16. Lane (g, t) has a chunk of the rows g and g + 8. The four
// lanes of a row have two different absmaxes, so their sums must stay apart: column 2t of b holds x
// for the lanes t alone, and zeros for the others. Then d[0] and d[2] of lane (g, t) are its own
// sums.
//
// What a warp's load costs in L1 is the number of lines that its lanes touch. So x is used for four
// rows per lane, and q, a byte per lane and line, is copied to shared memory first.
//
// Run: python run_day.py 72

#include "common/cuda/binding.cuh"       // taught in day 6
#include "common/cuda/capability.cuh"    // taught in day 24
#include "common/cuda/ptx/cache.cuh"     // taught in day 35
#include "common/cuda/ptx/cp_async.cuh"  // taught in day 20
#include "common/cuda/ptx/mma.cuh"       // taught in day 26
#include "common/cuda/warp_reduce.cuh"   // taught in day 23
#include "days/day72/product.cuh"
#include "days/day72/tables.cuh"

#include <cstdint>

constexpr int V4_THREADS = 384;  // so that each may have 80 registers
constexpr int V4_ROWS = 4;       // of a lane: g, g + 8, g + 16 and g + 24
constexpr int K_WARPS = 6;       // warps that share 32 rows, each with a part of the columns
constexpr int BLOCK_ROWS = 8 * V4_ROWS * V4_THREADS / 32 / K_WARPS;
static_assert(BLOCK_ROWS * (MOST_K / CHUNK) + GROUP * BLOCK_CHUNKS <= int64_t{1} << 32);
constexpr uint32_t STEP = 4 * K_WARPS;  // chunks from one of a lane to its next
constexpr int TILE = 256;               // blocks of a row whose q are in shared memory
constexpr int Q_STRIDE = TILE + 4;      // bytes: 8 rows lie in 8 banks
constexpr int V4_SHARED = SHARED + BLOCK_ROWS * Q_STRIDE;

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

// Starts to copy a tile of q, from block `first` on, to shared memory.
__device__ void copy_q(char* to, const Product& p, int64_t n0, int64_t first) {
  const int64_t blocks = p.K / BLOCK_WEIGHTS;
  const int count = static_cast<int>(min(int64_t{TILE}, blocks - first));
  const auto each = [&](int size, auto copy) {
    for (int i = threadIdx.x; i < BLOCK_ROWS * TILE / size; i += V4_THREADS) {
      const int row = i / (TILE / size), b = i % (TILE / size) * size;
      const uint8_t* from = p.absmaxes.q + min(n0 + row, p.N - 1) * blocks + first + b;
      if (b < count) copy(to + row * Q_STRIDE + b, from);
    }
  };
  if (blocks % 4 == 0 && reinterpret_cast<uintptr_t>(p.absmaxes.q) % 4 == 0) {
    each(4, [](char* to, const uint8_t* from) { ptx::cp_async<4>(to, from); });
  } else {
    each(1, [](char* to, const uint8_t* from) { *to = static_cast<char>(*from); });
  }
  ptx::cp_async_commit();
}

__global__ void __launch_bounds__(V4_THREADS, 2) nf4_gemv_v4_tensor_cores_kernel(const Product p) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char tables[];
  __shared__ float parts[K_WARPS][BLOCK_ROWS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % K_WARPS, warp_row = warp / K_WARPS * 8 * V4_ROWS;
  const uint32_t chunks = static_cast<uint32_t>(p.K / CHUNK), own = 4 * part + t;
  const int64_t n0 = int64_t{blockIdx.x} * BLOCK_ROWS;
  copy_q(tables + SHARED, p, n0, 0);
  // Indices are relative to the block's first row, and so have 32 bits.
  const int64_t first_block = n0 * (p.K / BLOCK_WEIGHTS);
  const Registers* codes = p.codes + first_block * BLOCK_CHUNKS;
  const float* scales = p.absmaxes.scales + first_block / GROUP;
  const uint32_t before = static_cast<uint32_t>(first_block % GROUP) * BLOCK_CHUNKS;
  uint32_t starts[V4_ROWS];  // the first chunks of the rows
#pragma unroll
  for (int r = 0; r < V4_ROWS; ++r) {
    starts[r] = static_cast<uint32_t>(min(n0 + warp_row + 8 * r + g, p.N - 1) - n0) * chunks;
  }
  fill_tables<__nv_bfloat162>(tables, p.absmaxes.levels, [](float first, float second) {
    return __floats2bfloat162_rn(first, second);
  });
  const auto* levels_8 = reinterpret_cast<const float*>(tables + TABLE);
  const auto* q = reinterpret_cast<const uint8_t*>(tables + SHARED) + (warp_row + g) * Q_STRIDE;
  const float offset = *p.absmaxes.offset;

  // Beyond the last chunk, lanes keep the values loaded before, and do not add their products.
  float sums[V4_ROWS] = {};
  Registers words[V4_ROWS / 2][2] = {};
  float scale[V4_ROWS] = {};
  Registers elements[WORDS] = {};  // of x; they stay 0 in lanes with g != 2t
  for (uint32_t tile = 0; tile < chunks; tile += TILE * BLOCK_CHUNKS) {
    if (tile > 0) {
      __syncthreads();  // all have read the tile before
      copy_q(tables + SHARED, p, n0, tile / BLOCK_CHUNKS);
    }
    ptx::cp_async_wait_all();
    __syncthreads();  // all wait for the copies of the others
    const uint32_t end = min(tile + TILE * BLOCK_CHUNKS, chunks);
    for (uint32_t first = tile; first < end; first += STEP) {  // as many iterations in all warps
      const uint32_t c = first + own;
      const bool inside = c < end;
      if (inside) {
#pragma unroll
        for (int r = 0; r < V4_ROWS; ++r) {
          words[r / 2][r % 2] = ptx::load_nc_no_allocate(&codes[starts[r] + c]);
          scale[r] = scales[(before + starts[r] + c) / (GROUP * BLOCK_CHUNKS)];
        }
        if (g == 2 * t) {
#pragma unroll
          for (int i = 0; i < WORDS; ++i) elements[i] = p.x[c * WORDS + i];
        }
      }
      __syncwarp();  // the compiler would move the loads of scales down to where they are used
#pragma unroll
      for (int m = 0; m < V4_ROWS / 2; ++m) {
        float d[4] = {};
        multiply_chunk(d, words[m], elements, tables, lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = 2 * m + r;
          if (inside) {
            const float level = levels_8[q[8 * row * Q_STRIDE + (c - tile) / BLOCK_CHUNKS]];
            sums[row] += fmaf(level, scale[row], offset) * d[2 * r];
          }
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < V4_ROWS; ++r) {  // the four lanes of a row
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
    STD_TORCH_CHECK(p.K <= MOST_K, "x: expected at most 2^30 elements, got ", p.K);
    launch_with_tables(nf4_gemv_v4_tensor_cores_kernel, p, BLOCK_ROWS, V4_THREADS, V4_SHARED,
                       stream);
  };
  return multiply(x, codes, q, levels, scales, offset, launch);
}

RUNG(day72, nf4_gemv_v4_tensor_cores, GEMV);

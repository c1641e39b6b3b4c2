// Day 39: quantisation, part 3: products with int4 weights
//
//   W[n, k] = s[g, n] · (q[n, k] - z[g, n])     g = k / 128, q and z from 0 to 15
//   y[m, n] = Σ_k x[m, k] · W[n, k]             x: (M, K) bf16, y: (M, N) bf16
//
// q: (N, K / 8) int32, 8 weights per word. s and z: (K / 128, N, 2) bf16. Together they take 68
// bytes per 128 weights, where bf16 takes 256. At batch 1 each weight is used once: at 4.2 TB/s an
// H200 reads 7.9 T weights per second, and can execute 3.6 instructions per lane for each.
//
//   v1 one_by_one     one warp per result; shift, mask, convert, scale: each weight by itself
//   v2 pairs          16-byte loads; two weights become bf16 by one instruction, without converting
//   v3 tensor_cores   mma multiplies them, also at batch 1; cp.async keeps the loads in flight
//
// Run: python run_day.py 39

#include "common/cuda/binding.cuh"       // taught in day 6
#include "common/cuda/capability.cuh"    // taught in day 24
#include "common/cuda/pack.cuh"          // taught in day 2
#include "common/cuda/ptx/cp_async.cuh"  // taught in day 20
#include "common/cuda/ptx/lop3.cuh"
#include "common/cuda/ptx/mma.cuh"      // taught in day 26
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include "days/day39/int4_format.cuh"

#include <cstdint>
#include <cstring>

constexpr int CHUNK = 32;            // weights per 16 bytes
constexpr int WORDS = CHUNK / WORD;  // of a chunk; each meets 16 bytes of x
constexpr int GROUP_CHUNKS = GROUP / CHUNK;
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// ---------------------------------------------------------------------------------------------
// v1: lane l has the words l, l + 32 … of its row. Each weight takes a shift, a mask, a conversion,
// a subtraction, two multiplications, a load of x and the sum.

struct Product {
  const __nv_bfloat16* x;  // (M, K)
  const uint32_t* words;   // (N, K / 8)
  const Params* params;    // (K / 128, N)
  __nv_bfloat16* y;        // (M, N)
  int64_t M, N, K;
};

__global__ void __launch_bounds__(THREADS) int4_v1_one_by_one_kernel(const Product p) {
  const int64_t n = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32, m = blockIdx.y;
  const int lane = threadIdx.x % 32;
  if (n >= p.N) return;  // the whole warp
  float sum = 0;
  for (int64_t i = lane; i < p.K / WORD; i += 32) {
    const uint32_t word = p.words[n * (p.K / WORD) + i];
    const Params of_group = p.params[i / (GROUP / WORD) * p.N + n];
    for (int k = 0; k < WORD; ++k) {
      const float q = static_cast<float>(word >> bit_of(k) & 15);
      const float weight = (q - __high2float(of_group)) * __low2float(of_group);
      sum += weight * __bfloat162float(p.x[m * p.K + i * WORD + k]);
    }
  }
  sum = warp_sum(sum);
  if (lane == 0) p.y[m * p.N + n] = __float2bfloat16(sum);
}

void check_aligned(const Tensor& t, const char* name, size_t bytes) {
  STD_TORCH_CHECK(is_aligned(t, bytes), name, ": expected an address that is a multiple of ", bytes,
                  " bytes");
}

// What the launchers share: checks, allocates y, and calls launch(product, stream). needs: features
// of compute capability 8.0, if any.
template <typename F>
Tensor multiply_int4(const Tensor& x, const Tensor& words, const Tensor& params, const char* needs,
                     F&& launch) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16}).rank(2).contiguous();
  check(words, "words").on_gpu().dtype({ScalarType::Int}).rank(2).contiguous();
  check(params, "params").on_gpu().dtype({ScalarType::BFloat16}).rank(3).contiguous();
  const int64_t M = x.size(0), N = words.size(0), K = x.size(1);
  check_whole_groups(x, "x", K);
  check(words, "words").size(1, K / WORD).same_device(x, "x");
  check(params, "params").size(0, K / GROUP).size(1, N).size(2, 2).same_device(x, "x");
  check_aligned(x, "x", 16);
  check_aligned(words, "words", 16);
  check_aligned(params, "params", sizeof(Params));
  const DeviceGuard guard(x);
  if (needs) require_capability(8, 0, needs);
  Tensor y = allocate(x, {M, N});
  if (y.numel() == 0) return y;
  launch(Product{data<__nv_bfloat16>(x), data<uint32_t>(words), data<Params>(params),
                 mutable_data<__nv_bfloat16>(y), M, N, K},
         current_stream(x));
  check_launch("int4");
  return y;
}

// Blocks for `rows` rows of W each, and for `batch` rows of x.
dim3 grid_of(const Product& p, int64_t rows, int64_t batch) {
  return {grid_size(ceil_div(p.N, rows), "words"), grid_size_y(ceil_div(p.M, batch), "x")};
}

Tensor int4_v1_one_by_one(const Tensor& x, const Tensor& words, const Tensor& params) {
  return multiply_int4(x, words, params, nullptr, [](const Product& p, cudaStream_t stream) {
    int4_v1_one_by_one_kernel<<<grid_of(p, WARPS, 1), THREADS, 0, stream>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a bf16 from 128 to 255 has its whole part in its 7 lower bits, so 0x4300 | q is
// 128 + q. One LOP3 masks a pair of weights and sets these bits, and 128 + zero is subtracted from
// both at once, exactly. The scale multiplies the sum over a lane's part of a group. A lane loads
// 32 weights of each of 4 rows at a time, and these rows share the 32 elements of x.

// Elements of bf16, two per register, or weights, 8 per register.
using Registers = Pack<uint32_t>;

// What is subtracted from pairs of 128 + q: 128 + zero, twice.
__device__ __forceinline__ __nv_bfloat162 offset_of(Params params) {
  return __hadd2(__high2bfloat162(params), __float2bfloat162_rn(128));
}

// The 8 weights of a word without their scale, as pairs of bf16: pairs[j] has weight 2j in its low
// half and 2j + 1 in its high half.
__device__ __forceinline__ void unpack(uint32_t (&pairs)[4], uint32_t word, __nv_bfloat162 offset) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t bits = ptx::lop3<0xea>(word >> 4 * j, 0x000f000f, 0x43004300);  // (a & b) | c
    __nv_bfloat162 pair;
    memcpy(&pair, &bits, sizeof pair);
    pair = __hsub2(pair, offset);
    memcpy(&pairs[j], &pair, sizeof pair);
  }
}

// A pair as two floats: bf16 is the upper half of fp32.
__device__ __forceinline__ float2 floats_of(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

constexpr int V2_ROWS = 4;  // per warp

__global__ void __launch_bounds__(THREADS, 3) int4_v2_pairs_kernel(const Product p) {
  const int64_t n0 = (int64_t{blockIdx.x} * WARPS + threadIdx.x / 32) * V2_ROWS, m = blockIdx.y;
  const int lane = threadIdx.x % 32;
  if (n0 >= p.N) return;  // the whole warp
  const auto row = [&](int r) { return min(n0 + r, p.N - 1); };
  const int64_t row_chunks = p.K / CHUNK;
  const auto* x = reinterpret_cast<const Registers*>(p.x) + m * row_chunks * WORDS;
  const auto* chunks = reinterpret_cast<const Registers*>(p.words);

  float sums[V2_ROWS] = {};
  for (int64_t c = lane; c < row_chunks; c += 32) {
    Registers weights[V2_ROWS], elements[WORDS];
    Params of_group[V2_ROWS];
#pragma unroll
    for (int r = 0; r < V2_ROWS; ++r) {
      weights[r] = chunks[row(r) * row_chunks + c];
      of_group[r] = p.params[c / GROUP_CHUNKS * p.N + row(r)];
    }
#pragma unroll
    for (int i = 0; i < WORDS; ++i) elements[i] = x[c * WORDS + i];
#pragma unroll
    for (int r = 0; r < V2_ROWS; ++r) {
      float part = 0;
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        uint32_t pairs[4];
        unpack(pairs, weights[r].at[i], offset_of(of_group[r]));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 w = floats_of(pairs[j]), e = floats_of(elements[i].at[j]);
          part += w.x * e.x;
          part += w.y * e.y;
        }
      }
      sums[r] += __low2float(of_group[r]) * part;
    }
  }
#pragma unroll
  for (int r = 0; r < V2_ROWS; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == 0 && n0 + r < p.N) p.y[m * p.N + n0 + r] = __float2bfloat16(sum);
  }
}

Tensor int4_v2_pairs(const Tensor& x, const Tensor& words, const Tensor& params) {
  return multiply_int4(x, words, params, nullptr, [](const Product& p, cudaStream_t stream) {
    int4_v2_pairs_kernel<<<grid_of(p, WARPS * V2_ROWS, 1), THREADS, 0, stream>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one mma replaces 16 instructions per word, 8 that make floats and 8 multiply-adds.
// The weights are its a, 16 rows of W, and the batch its b, 8 rows of x. A product does not care in
// which order k runs, if a and b agree: of the 16 columns of an mma, lane t of a row takes four
// that are adjacent in its own 16 bytes. A ring in shared memory holds groups that cp.async copies
// ahead; a lane reads only what it copied itself, so the ring needs no barrier.

constexpr int K_WARPS = 8;  // warps that share the rows, each with a part of the groups
constexpr int TILES = 2;    // of 16 rows, per warp: they share the elements of x
constexpr int WARP_ROWS = 16 * TILES;
constexpr int BLOCK_ROWS = WARP_ROWS * WARPS / K_WARPS;
constexpr int STAGES = 3;  // groups per warp in shared memory: 2 KB each, 48 KB in all

template <int COLUMNS>  // tiles of 8 rows of x
__global__ void __launch_bounds__(THREADS, COLUMNS == 1 ? 3 : 2)
    int4_v3_tensor_cores_kernel(const Product p) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  constexpr int BATCH = 8 * COLUMNS;
  constexpr int STEP = K_WARPS * GROUP_CHUNKS;  // chunks from one group of a warp to its next
  __shared__ Registers ring[STAGES][WARPS][2 * TILES][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % K_WARPS, warp_row = warp / K_WARPS * WARP_ROWS;
  const int groups = static_cast<int>(p.K / GROUP);
  const int64_t n0 = int64_t{blockIdx.x} * BLOCK_ROWS, m0 = int64_t{blockIdx.y} * BATCH;
  const auto row = [&](int r) { return min(n0 + warp_row + r, p.N - 1); };

  // Lane (g, t) has chunk t of each group of the warp, of the rows g, g + 8, g + 16 and g + 24.
  const Registers* from[2 * TILES];
#pragma unroll
  for (int r = 0; r < 2 * TILES; ++r) {
    const int64_t chunk = (row(8 * r + g) * groups + part) * GROUP_CHUNKS + t;
    from[r] = reinterpret_cast<const Registers*>(p.words) + chunk;
  }
  const auto fetch = [&](int group, Registers(*to)[32]) {
    if (group < groups) {
#pragma unroll
      for (int r = 0; r < 2 * TILES; ++r) {
        ptx::cp_async<16>(&to[r][lane], from[r]);
        from[r] += STEP;
      }
    }
    ptx::cp_async_commit();  // also an empty group, so that each stage is one
  };
  for (int stage = 0; stage < STAGES; ++stage) fetch(part + stage * K_WARPS, ring[stage][warp]);

  // Of x, the elements of the rows g and g + 8 that meet these weights. Beyond the batch it is the
  // last row again, for columns of the product that are not stored.
  const Registers* x[COLUMNS];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const int64_t chunk = (min(m0 + 8 * c + g, p.M - 1) * groups + part) * GROUP_CHUNKS + t;
    x[c] = reinterpret_cast<const Registers*>(p.x) + chunk * WORDS;
  }
  const Params* params = p.params + part * p.N + row(lane);  // a lane loads those of one row
  Params next{};
  if (part < groups) next = *params;

  float sums[TILES][COLUMNS][4] = {};
  int stage = 0;
  for (int group = part; group < groups; group += K_WARPS) {
    const Params own = next;
    params += K_WARPS * p.N;
    if (group + K_WARPS < groups) next = *params;
    Params of_row[2 * TILES];
#pragma unroll
    for (int r = 0; r < 2 * TILES; ++r) of_row[r] = __shfl_sync(FULL_WARP, own, 8 * r + g);
    ptx::cp_async_wait<STAGES - 1>();  // this group has arrived; the later ones may not have

    float of_group[TILES][COLUMNS][4] = {};
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {  // word i of each chunk: its weights 8i to 8i + 7
      Registers elements[COLUMNS];
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) elements[c] = x[c][i];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        uint32_t top[4], bottom[4];  // of rows g and g + 8
        unpack(top, ring[stage][warp][2 * tile][lane].at[i], offset_of(of_row[2 * tile]));
        unpack(bottom, ring[stage][warp][2 * tile + 1][lane].at[i],
               offset_of(of_row[2 * tile + 1]));
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          const uint32_t a[4] = {top[j], bottom[j], top[j + 1], bottom[j + 1]};
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) {
            const uint32_t b[2] = {elements[c].at[j], elements[c].at[j + 1]};
            ptx::mma_m16n8k16<__nv_bfloat16>(of_group[tile][c], a, b, of_group[tile][c]);
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      x[c] += STEP * WORDS;
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[tile][c][e] += __low2float(of_row[2 * tile + e / 2]) * of_group[tile][c][e];
        }
      }
    }
    fetch(group + STAGES * K_WARPS, ring[stage][warp]);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }

  // The parts of the K_WARPS warps meet in shared memory, in the place of the ring.
  ptx::cp_async_wait_all();
  __syncthreads();  // no warp needs the ring any more
  using Rows = float[BLOCK_ROWS][BATCH + 1];
  auto* parts = reinterpret_cast<Rows*>(ring);
  static_assert(sizeof(Rows) * K_WARPS <= sizeof ring);
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        parts[part][warp_row + 16 * tile + e / 2 * 8 + g][8 * c + 2 * t + e % 2] = sums[tile][c][e];
      }
    }
  }
  __syncthreads();  // all parts are stored before any thread adds them up
  for (int i = threadIdx.x; i < BLOCK_ROWS * BATCH; i += THREADS) {
    const int n = i % BLOCK_ROWS, m = i / BLOCK_ROWS;
    if (n0 + n >= p.N || m0 + m >= p.M) continue;
    float sum = 0;
    for (int w = 0; w < K_WARPS; ++w) sum += parts[w][n][m];
    p.y[(m0 + m) * p.N + n0 + n] = __float2bfloat16(sum);
  }
#endif
}

Tensor int4_v3_tensor_cores(const Tensor& x, const Tensor& words, const Tensor& params) {
  constexpr char NEEDS[] = "mma of bf16 and cp.async";
  return multiply_int4(x, words, params, NEEDS, [](const Product& p, cudaStream_t stream) {
    const auto launch = [&](auto kernel, int64_t batch) {
      kernel<<<grid_of(p, BLOCK_ROWS, batch), THREADS, 0, stream>>>(p);
    };
    if (p.M <= 8) return launch(int4_v3_tensor_cores_kernel<1>, 8);
    launch(int4_v3_tensor_cores_kernel<2>, 16);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day39, int4_v1_one_by_one, "(Tensor x, Tensor words, Tensor params) -> Tensor");
RUNG(day39, int4_v2_pairs, "(Tensor x, Tensor words, Tensor params) -> Tensor");
RUNG(day39, int4_v3_tensor_cores, "(Tensor x, Tensor words, Tensor params) -> Tensor");

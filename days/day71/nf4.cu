// Day 71: NF4, four bits per number
//
//   absmax[b] = max |x[i]|                     over the 32, 64 or 128 elements i of block b
//   code[i]   = the level nearest to x[i] / absmax[b], one of 16
//   y[i]      = level[code[i]] · absmax[b]
//
// x: (n) fp32, fp16 or bf16. codes: (⌈n / 2⌉) uint8, the first of two elements in the high nibble.
// absmax: (⌈n / block⌉) fp32. y: (n) bf16. In bf16, with blocks of 64, each direction moves 2.5625
// bytes per element: at 4.2 TB/s an H200's lanes can execute 20 instructions per element.
//
//   quantize v1 block_per_thread  x is read twice; the thresholds below a number are counted
//   quantize v2 shuffles          16 bytes of x per thread, read once; absmax by shuffles
//   quantize v3 cells             one comparison instead of 15: a table says with which threshold;
//                                 four loads per thread in flight
//   dequantize v1 one_byte        two elements per thread
//   dequantize v2 packs           16-byte stores; the levels in shared memory
//
// Run: python run_day.py 71

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/chunk.cuh"        // taught in days 35 and 42
#include "common/cuda/pack.cuh"         // taught in day 2
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day71/nf4_format.cuh"

#include <cstdint>

constexpr int THREADS = 256;
constexpr int CELLS = 32;       // as many as banks: lanes that read different cells never conflict
constexpr float PER_UNIT = 15;  // cells are 1/15 wide, thresholds at least 0.0804 apart
constexpr float ULP =
    1.0f / (1 << 22);  // distance of floats from 2 to 4, which are multiples of it

// threshold t: halfway between levels t and t + 1, rounded to fp32.
constexpr int THRESHOLDS = CODES - 1;
__constant__ float MIDPOINTS[THRESHOLDS] = {
    -0.848096371f, -0.610632896f,  -0.45999527f,  -0.33967942f, -0.234607399f,
    -0.137911737f, -0.0455250181f, 0.0397901498f, 0.120255247f, 0.203521252f,
    0.292013764f,  0.389312536f,   0.501663446f,  0.64278692f,  0.861478448f};

// The number of thresholds below v, from 0 to 15. A tie takes the lower code, NaN takes 0.
__device__ uint32_t code_of(float v) {
  uint32_t code = 0;
#pragma unroll
  for (int t = 0; t < THRESHOLDS; ++t) code += v > MIDPOINTS[t];
  return code;
}

// ---------------------------------------------------------------------------------------------
// quantize v1: thread b handles block b. An element beyond the end counts as 0.

template <typename T>
__global__ void __launch_bounds__(THREADS)
    quantize_v1_block_per_thread_kernel(const T* __restrict__ x, uint8_t* __restrict__ codes,
                                        float* __restrict__ absmax, int64_t n, int block) {
  const int64_t first = (int64_t{blockIdx.x} * THREADS + threadIdx.x) * block;
  if (first >= n) return;
  const int64_t end = min(first + block, n);
  uint32_t largest = 0;
  for (int64_t i = first; i < end; ++i) {
    largest = max(largest, magnitude(static_cast<float>(x[i])));
  }
  const float inverse = inverse_of(largest);
  for (int64_t i = first; i < end; i += 2) {
    const float second = i + 1 < end ? static_cast<float>(x[i + 1]) : 0;
    codes[i / 2] = static_cast<uint8_t>(code_of(static_cast<float>(x[i]) * inverse) << 4 |
                                        code_of(second * inverse));
  }
  absmax[first / block] = absmax_of(largest);
}

void check_block(int64_t block) {
  STD_TORCH_CHECK(block == 32 || block == 64 || block == 128, "block: expected 32, 64 or 128, got ",
                  block);
}

// What the launchers share: checks, allocates, and calls launch(zero, codes, absmax).
template <typename F>
std::tuple<Tensor, Tensor> quantize(const Tensor& x, int64_t block, F&& launch) {
  check(x, "x").on_gpu().floating().rank(1).contiguous();
  check_block(block);
  const DeviceGuard guard(x);
  const int64_t n = x.size(0);
  Tensor codes = allocate(x, {ceil_div<int64_t>(n, 2)}, ScalarType::Byte);
  Tensor absmax = allocate(x, {ceil_div(n, block)}, ScalarType::Float);
  if (n == 0) return {codes, absmax};
  dispatch_floating(x, [&](auto zero) {
    launch(zero, mutable_data<uint8_t>(codes), mutable_data<float>(absmax));
  });
  check_launch("quantize");
  return {codes, absmax};
}

std::tuple<Tensor, Tensor> quantize_v1_block_per_thread(const Tensor& x, int64_t block) {
  return quantize(x, block, [&](auto zero, uint8_t* codes, float* absmax) {
    using T = decltype(zero);
    const int64_t n = x.size(0), threads = ceil_div(n, block);
    quantize_v1_block_per_thread_kernel<T>
        <<<grid_size(ceil_div<int64_t>(threads, THREADS), "x"), THREADS, 0, current_stream(x)>>>(
            data<T>(x), codes, absmax, n, static_cast<int>(block));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a thread loads 16 bytes of x and keeps them in registers, so that x is read once.
// 4 to 32 neighbouring lanes hold a block, and shuffles find its maximum. Loads and stores are
// coalesced.

// 16 bytes of x in registers as they lie in memory. nvcc takes a pack of elements apart when it has
// arrived, and only then issues the next load.
template <typename T>
using Raw = RawChunk<Chunk<T, Pack<T>::N>>;

// Pack `index` of x; zeros beyond the end.
template <typename T>
__device__ Raw<T> load_part(const T* x, int64_t index, int64_t n) {
  constexpr int N = Pack<T>::N;
  Chunk<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.at[i] = index * N + i < n ? x[index * N + i] : T(0.0f);
  Raw<T> raw;
  memcpy(&raw, &pack, sizeof raw);
  return raw;
}

// The bytes of one pack: 4 of fp16 and bf16, 2 of fp32.
template <int N>
__device__ void store_whole(uint8_t* codes, int64_t index, uint32_t bits) {
  if constexpr (N == 8) reinterpret_cast<uint32_t*>(codes)[index] = bits;
  if constexpr (N == 4) reinterpret_cast<uint16_t*>(codes)[index] = static_cast<uint16_t>(bits);
}

// Fewer bytes at the end.
template <int N>
__device__ void store_part(uint8_t* codes, int64_t index, int64_t bytes, uint32_t bits) {
  for (int i = 0; i < N / 2 && index * (N / 2) + i < bytes; ++i) {
    codes[index * (N / 2) + i] = static_cast<uint8_t>(bits >> 8 * i);
  }
}

// The largest number whose reciprocal is not finite, 2^-128.
constexpr uint32_t NO_RECIPROCAL = 0x00200000;

// What v2 and v3 share. Each thread has PACKS packs, THREADS packs apart. All threads call
// prepare() while the loads are in flight. append(codes, v) is 16 · codes + the code of v, a number
// from -1 to 1. WHOLE: all packs of the thread block are complete, at multiples of 16 bytes.
template <bool WHOLE, int BLOCK, int PACKS, typename T, typename Prepare, typename F>
__device__ void quantize_block(const T* x, uint8_t* codes, float* absmax, int64_t n,
                               Prepare&& prepare, F&& append) {
  constexpr int N = Pack<T>::N, LANES = BLOCK / N;
  const int64_t first = int64_t{blockIdx.x} * THREADS * PACKS + threadIdx.x;
  const auto* const from = reinterpret_cast<const Chunk<T, N>*>(x) + first;
  Raw<T> packs[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    packs[k] = WHOLE ? load_raw(from + k * THREADS) : load_part(x, first + k * THREADS, n);
  }
  prepare();
  uint8_t* const bytes = codes + first * (N / 2);
  float* const to = absmax + first / LANES;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int64_t index = first + k * THREADS;
    Chunk<float, N> v = widened(packs[k]);
    uint32_t largest = 0;
#pragma unroll
    for (const float one : v.at) largest = max(largest, magnitude(one));
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) {
      largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, half));
    }
    if (!WHOLE && index * N >= n) continue;  // after the shuffles, for which the warp is complete
    float inverse = 1 / __uint_as_float(largest);
    // Rare: at most NO_RECIPROCAL, or not finite. One unsigned comparison finds both.
    if (largest - NO_RECIPROCAL - 1 >= INFINITY_BITS - NO_RECIPROCAL - 1) {
      inverse = inverse_of(largest);
      if (largest >= INFINITY_BITS) {  // without a scale: 0 has the code 7, -1 the code 0
        inverse = 1;
#pragma unroll
        for (float& one : v.at) one = magnitude(one) < INFINITY_BITS ? 0.0f : -1.0f;
      }
    }
    uint32_t bits = 0;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {  // the first of two in the high nibble
      bits = append(bits, v.at[i ^ 1] * inverse);
    }
    if (WHOLE) {
      store_whole<N>(bytes, k * THREADS, bits);
    } else {
      store_part<N>(codes, index, (n + 1) / 2, bits);
    }
    if (threadIdx.x % LANES == 0) to[k * (THREADS / LANES)] = absmax_of(largest);
  }
}

// aligned: whether x lies on a multiple of 16 bytes.
template <int BLOCK, int PACKS, typename T, typename Prepare, typename F>
__device__ void quantize_packs(const T* x, uint8_t* codes, float* absmax, int64_t n, bool aligned,
                               Prepare&& prepare, F&& append) {
  if (aligned && (blockIdx.x + int64_t{1}) * THREADS * PACKS * Pack<T>::N <= n) {
    quantize_block<true, BLOCK, PACKS>(x, codes, absmax, n, prepare, append);
  } else {
    quantize_block<false, BLOCK, PACKS>(x, codes, absmax, n, prepare, append);
  }
}

template <int BLOCK, typename T>
__global__ void __launch_bounds__(THREADS)
    quantize_v2_shuffles_kernel(const T* __restrict__ x, uint8_t* __restrict__ codes,
                                float* __restrict__ absmax, int64_t n, bool aligned) {
  const auto append = [](uint32_t bits, float v) { return bits * 16 + code_of(v); };
  quantize_packs<BLOCK, 1>(x, codes, absmax, n, aligned, [] {}, append);
}

// Calls launch(constant, grid), where the constant's value is the block size.
template <typename T, int PACKS, typename F>
void for_block(int64_t n, int64_t block, F&& launch) {
  const unsigned blocks = grid_size(ceil_div<int64_t>(n, THREADS * PACKS * Pack<T>::N), "x");
  if (block == 32) launch(std::integral_constant<int, 32>{}, blocks);
  if (block == 64) launch(std::integral_constant<int, 64>{}, blocks);
  if (block == 128) launch(std::integral_constant<int, 128>{}, blocks);
}

std::tuple<Tensor, Tensor> quantize_v2_shuffles(const Tensor& x, int64_t block) {
  return quantize(x, block, [&](auto zero, uint8_t* codes, float* absmax) {
    using T = decltype(zero);
    for_block<T, 1>(x.size(0), block, [&](auto size, unsigned blocks) {
      quantize_v2_shuffles_kernel<size(), T><<<blocks, THREADS, 0, current_stream(x)>>>(
          data<T>(x), codes, absmax, x.size(0), is_aligned(x, 16));
    });
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the axis is cut into 32 cells, each with at most one threshold. A table gives the
// number of thresholds below a cell, and the one threshold that v has to be compared with. A block
// builds this table while its loads are in flight, once for all packs of its threads.

constexpr int V3_PACKS = 4;

struct Cells {
  float threshold[CELLS];
  uint32_t below[CELLS];
};

// Thread c fills cell c, from (c - 16.5) / 15 to (c - 15.5) / 15.
__device__ void fill(Cells& cells, int c) {
  const float low = (c - CELLS / 2 - 0.5f) * (1 / PER_UNIT);
  const float high = (c - CELLS / 2 + 0.5f) * (1 / PER_UNIT);
  cells.below[c] = code_of(low);
  const bool empty = code_of(high) == code_of(low);
  cells.threshold[c] = empty ? 2 : MIDPOINTS[code_of(low)];  // nothing is greater than 2
}

// 16 · codes + the code of v, a number from -1 to 1. The bits of 2 + cell · ULP are 2^30 + cell.
// Four times that is 4 · cell in 32 bits: where the cell's words lie. The sign bit of threshold - v
// is set where v is greater.
__device__ uint32_t append_code(const Cells& cells, uint32_t codes, float v) {
  const uint32_t offset = __float_as_uint(fmaf(v, PER_UNIT * ULP, 2 + CELLS / 2 * ULP)) * 4;
  const char* const at = reinterpret_cast<const char*>(cells.threshold) + offset;
  const float rest = *reinterpret_cast<const float*>(at) - v;
  const uint32_t below = *reinterpret_cast<const uint32_t*>(at + sizeof cells.threshold);
  return codes * 16 + below + (__float_as_uint(rest) >> 31);
}

template <int BLOCK, typename T>
__global__ void __launch_bounds__(THREADS)
    quantize_v3_cells_kernel(const T* __restrict__ x, uint8_t* __restrict__ codes,
                             float* __restrict__ absmax, int64_t n, bool aligned) {
  __shared__ Cells cells;
  const auto prepare = [&] {
    if (threadIdx.x < CELLS) fill(cells, threadIdx.x);
    __syncthreads();  // all wait for the first warp's table
  };
  quantize_packs<BLOCK, V3_PACKS>(
      x, codes, absmax, n, aligned, prepare,
      [&](uint32_t bits, float v) { return append_code(cells, bits, v); });
}

std::tuple<Tensor, Tensor> quantize_v3_cells(const Tensor& x, int64_t block) {
  return quantize(x, block, [&](auto zero, uint8_t* codes, float* absmax) {
    using T = decltype(zero);
    for_block<T, V3_PACKS>(x.size(0), block, [&](auto size, unsigned blocks) {
      quantize_v3_cells_kernel<size(), T><<<blocks, THREADS, 0, current_stream(x)>>>(
          data<T>(x), codes, absmax, x.size(0), is_aligned(x, 16));
    });
  });
}

// ---------------------------------------------------------------------------------------------
// dequantize v1: thread i handles byte i.

__global__ void __launch_bounds__(THREADS)
    dequantize_v1_one_byte_kernel(const uint8_t* __restrict__ codes,
                                  const float* __restrict__ absmax, __nv_bfloat16* __restrict__ y,
                                  int64_t n, int block) {
  const int64_t i = int64_t{blockIdx.x} * THREADS + threadIdx.x;
  if (2 * i >= n) return;
  const float scale = absmax[2 * i / block];
  y[2 * i] = __float2bfloat16(LEVELS[codes[i] >> 4] * scale);
  if (2 * i + 1 < n) y[2 * i + 1] = __float2bfloat16(LEVELS[codes[i] & 15] * scale);
}

// What the launchers share: checks, allocates y, and calls launch(y).
template <typename F>
Tensor dequantize(const Tensor& codes, const Tensor& absmax, int64_t n, int64_t block, F&& launch) {
  check(codes, "codes").on_gpu().dtype({ScalarType::Byte}).rank(1).contiguous();
  check_block(block);
  STD_TORCH_CHECK(n >= 0 && n / 2 + n % 2 == codes.size(0), "n: expected twice the size of codes, ",
                  2 * codes.size(0), ", or one less, got ", n);
  check(absmax, "absmax").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(absmax, "absmax").size(0, ceil_div(n, block)).same_device(codes, "codes");
  const DeviceGuard guard(codes);
  Tensor y = allocate(codes, {n}, ScalarType::BFloat16);
  if (n == 0) return y;
  launch(mutable_data<__nv_bfloat16>(y));
  check_launch("dequantize");
  return y;
}

Tensor dequantize_v1_one_byte(const Tensor& codes, const Tensor& absmax, int64_t n, int64_t block) {
  return dequantize(codes, absmax, n, block, [&](__nv_bfloat16* y) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(codes.size(0), THREADS), "codes");
    dequantize_v1_one_byte_kernel<<<blocks, THREADS, 0, current_stream(codes)>>>(
        data<uint8_t>(codes), data<float>(absmax), y, n, static_cast<int>(block));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: four bytes of codes become 16 bytes of y. The lanes need different levels, which
// constant memory serves one after the other; 16 words of shared memory lie in 16 banks.

__global__ void __launch_bounds__(THREADS)
    dequantize_v2_packs_kernel(const uint8_t* __restrict__ codes, const float* __restrict__ absmax,
                               __nv_bfloat16* __restrict__ y, int64_t n, int shift, bool aligned) {
  using Eight = Pack<__nv_bfloat16>;
  __shared__ float levels[CODES];
  const int64_t index = int64_t{blockIdx.x} * THREADS + threadIdx.x, first = index * Eight::N;
  const bool whole = first + Eight::N <= n;
  uint32_t bits = 0;
  if (whole && aligned) {
    bits = reinterpret_cast<const uint32_t*>(codes)[index];
  } else {
    for (int i = 0; i < 4 && first + 2 * i < n; ++i) bits |= codes[4 * index + i] << 8 * i;
  }
  const float scale = first < n ? absmax[first >> shift] : 0;
  if (threadIdx.x < CODES) levels[threadIdx.x] = LEVELS[threadIdx.x];
  __syncthreads();  // all wait for the levels; the loads are in flight
  if (first >= n) return;
  Eight pack;
#pragma unroll
  for (int i = 0; i < Eight::N; ++i) {
    pack.at[i] = __float2bfloat16(levels[bits >> 4 * (i ^ 1) & 15] * scale);
  }
  if (whole) {
    reinterpret_cast<Eight*>(y)[index] = pack;
  } else {
#pragma unroll  // constant indices: the pack stays in registers
    for (int i = 0; i < Eight::N; ++i) {
      if (first + i < n) y[first + i] = pack.at[i];
    }
  }
}

Tensor dequantize_v2_packs(const Tensor& codes, const Tensor& absmax, int64_t n, int64_t block) {
  return dequantize(codes, absmax, n, block, [&](__nv_bfloat16* y) {
    const int shift = block == 32 ? 5 : block == 64 ? 6 : 7;
    const unsigned blocks = grid_size(ceil_div<int64_t>(n, THREADS * 8), "codes");
    dequantize_v2_packs_kernel<<<blocks, THREADS, 0, current_stream(codes)>>>(
        data<uint8_t>(codes), data<float>(absmax), y, n, shift, is_aligned(codes, 4));
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day71, quantize_v1_block_per_thread, "(Tensor x, int block) -> (Tensor, Tensor)");
RUNG(day71, quantize_v2_shuffles, "(Tensor x, int block) -> (Tensor, Tensor)");
RUNG(day71, quantize_v3_cells, "(Tensor x, int block) -> (Tensor, Tensor)");
RUNG(day71, dequantize_v1_one_byte, "(Tensor codes, Tensor absmax, int n, int block) -> Tensor");
RUNG(day71, dequantize_v2_packs, "(Tensor codes, Tensor absmax, int n, int block) -> Tensor");

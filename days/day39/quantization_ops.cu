// Day 39: quantisation, part 1: floats to int8 and int4
//
//   int8, one scale per row           q[r, k] = round(x[r, k] / s[r])
//                                     s[r] = max_k |x[r, k]| / 127
//   int4, one scale per 128 weights   q[n, k] = round(w[n, k] / s) + z
//                                     s = (max - min) / 15, z = round(-min / s)
//
// x: (rows, cols), w: (N, K), in fp32, fp16 or bf16. Each is read once or, in int8, twice; the
// result is a half or a quarter of a bf16 tensor.
//
//   quantize_int8   one block per row: the maximum, then the quotients
//   quantize_int4   one warp per group: minimum and maximum, quotients, packing
//
// Run: python run_day.py 39

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day39/int4_format.cuh"

#include <cstdint>

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// ---------------------------------------------------------------------------------------------
// int8. Per row is per token for activations and per output channel for weights; a tensor
// with one scale is one row.

// The largest value of all threads of the block, in each of them.
__device__ float block_max(float value) {
  __shared__ float warps[WARPS];
  const float of_warp = warp_max(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = of_warp;
  __syncthreads();  // every thread waits for the maxima of all warps
  return warp_max(warps[threadIdx.x % WARPS]);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    quantize_int8_kernel(const T* __restrict__ x, int8_t* __restrict__ q,
                         float* __restrict__ scales, int64_t cols) {
  x += blockIdx.x * cols;
  q += blockIdx.x * cols;
  float largest = 0;
  for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
    largest = fmaxf(largest, fabsf(static_cast<float>(x[c])));
  }
  float scale = block_max(largest) / 127;
  if (scale == 0) scale = 1;  // a row of zeros, or of numbers so small that the quotient is 0
  for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
    // Below the smallest normal number the scale is rounded coarsely, and a quotient may exceed
    // 127.
    const float rounded = rintf(static_cast<float>(x[c]) / scale);
    q[c] = static_cast<int8_t>(fminf(fmaxf(rounded, -127.0f), 127.0f));
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

// Returns q (rows, cols) int8 and the scales (rows) float32. All numbers must be finite.
std::tuple<Tensor, Tensor> quantize_int8(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor q = allocate(x, {x.size(0), x.size(1)}, ScalarType::Char);
  Tensor scales = allocate(x, {x.size(0)}, ScalarType::Float);
  if (x.size(0) == 0) return {q, scales};
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    quantize_int8_kernel<T><<<grid_size(x.size(0), "x"), THREADS, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<int8_t>(q), mutable_data<float>(scales), x.size(1));
  });
  check_launch("quantize_int8");
  return {q, scales};
}

// ---------------------------------------------------------------------------------------------
// int4. The range includes 0, so that a weight of 0 stays exactly 0.

template <typename T>
__global__ void __launch_bounds__(THREADS)
    quantize_int4_kernel(const T* __restrict__ w, uint32_t* __restrict__ words,
                         Params* __restrict__ params, int64_t N, int64_t groups) {
  constexpr int EACH = GROUP / 32;  // weights per lane, half a word
  const int64_t index = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (index >= N * groups) return;  // the whole warp
  float weights[EACH], low = 0, high = 0;
  for (int i = 0; i < EACH; ++i) {
    weights[i] = static_cast<float>(w[index * GROUP + lane * EACH + i]);
    low = fminf(low, weights[i]);
    high = fmaxf(high, weights[i]);
  }
  high = warp_max(high);
  low = -warp_max(-low);
  // As it is stored: the quotients must fit the scale that will multiply them. The difference of
  // the two may exceed the largest float, so they are divided first.
  float scale = __bfloat162float(__float2bfloat16(high / 15 - low / 15));
  if (scale == 0) scale = 1;
  const float zero = fminf(rintf(-low / scale), 15.0f);
  uint32_t half = 0;
  for (int i = 0; i < EACH; ++i) {
    const float q = fminf(fmaxf(rintf(weights[i] / scale) + zero, 0.0f), 15.0f);
    half |= static_cast<uint32_t>(q) << bit_of(lane * EACH % WORD + i);
  }
  const uint32_t word = half | __shfl_xor_sync(FULL_WARP, half, 1);
  if (lane % 2 == 0) words[(index * 32 + lane) / 2] = word;
  if (lane == 0) params[index % groups * N + index / groups] = __floats2bfloat162_rn(scale, zero);
}

// w: (N, K). Returns the words (N, K / 8) int32, and (K / 128, N, 2) bf16: scale, zero point. All
// numbers must be finite.
std::tuple<Tensor, Tensor> quantize_int4(const Tensor& w) {
  check(w, "w").on_gpu().floating().rank(2).contiguous();
  check_whole_groups(w, "w", w.size(1));
  const DeviceGuard guard(w);
  const int64_t N = w.size(0), groups = w.size(1) / GROUP;
  Tensor words = allocate(w, {N, w.size(1) / WORD}, ScalarType::Int);
  Tensor params = allocate(w, {groups, N, 2}, ScalarType::BFloat16);
  if (w.numel() == 0) return {words, params};
  dispatch_floating(w, [&](auto zero) {
    using T = decltype(zero);
    quantize_int4_kernel<T>
        <<<grid_size(ceil_div<int64_t>(N * groups, WARPS), "w"), THREADS, 0, current_stream(w)>>>(
            data<T>(w), mutable_data<uint32_t>(words), mutable_data<Params>(params), N, groups);
  });
  check_launch("quantize_int4");
  return {words, params};
}

// ---------------------------------------------------------------------------------------------

RUNG(day39, quantize_int8, "(Tensor x) -> (Tensor, Tensor)");
RUNG(day39, quantize_int4, "(Tensor w) -> (Tensor, Tensor)");

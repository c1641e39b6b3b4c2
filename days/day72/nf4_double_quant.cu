// Day 72: NF4 with double quantisation, part 1: one byte per absmax
//
//   v[b]      = absmax[b] - offset              offset: the mean of all absmaxes
//   scales[g] = max |v[b]|                      over the 256 absmaxes b of group g
//   q[b]      = the level nearest to v[b] / scales[g], one of 256, in ascending order
//
// absmax: (n) fp32. levels: (256) fp32. offset: (1) fp32. q: (n) uint8. scales: (⌈n / 256⌉) fp32.
// Per weight in blocks of 64 an absmax takes 0.5 bits in fp32, and 0.127 bits as q and scales.
//
//   quantize_absmax  one block per group; a binary search of 8 steps in shared memory
//
// nf4_gemv.cu multiplies with such weights. Run: python run_day.py 72

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day71/nf4_format.cuh"    // magnitude, inverse_of, absmax_of: taught in day 71
#include "days/day72/double_quant.cuh"

constexpr int THREADS = GROUP;
constexpr int WARPS = THREADS / 32;
constexpr int THRESHOLDS = LEVELS_8 - 1;

// The number of thresholds below v; 0 for NaN. The thresholds are in ascending order. Each step of
// the binary search finds one more bit of the code, from the highest to the lowest.
__device__ uint32_t code_of(const float* thresholds, float v) {
  uint32_t code = 0;
#pragma unroll
  for (uint32_t step = LEVELS_8 / 2; step > 0; step /= 2) {
    if (v > thresholds[code + step - 1]) code += step;
  }
  return code;
}

__global__ void __launch_bounds__(THREADS)
    quantize_absmax_kernel(const float* __restrict__ absmax, const float* __restrict__ levels,
                           const float* __restrict__ offset, uint8_t* __restrict__ q,
                           float* __restrict__ scales, int64_t n) {
  __shared__ float thresholds[THRESHOLDS];
  __shared__ uint32_t largest_of[WARPS];
  const int i = threadIdx.x, lane = i % 32;
  const int64_t b = int64_t{blockIdx.x} * GROUP + i;
  if (i < THRESHOLDS) thresholds[i] = (levels[i] + levels[i + 1]) / 2;
  const float v = b < n ? absmax[b] - *offset : 0;
  uint32_t largest =
      warp_reduce(magnitude(v), [](uint32_t one, uint32_t other) { return max(one, other); });
  if (lane == 0) largest_of[i / 32] = largest;
  __syncthreads();  // all wait for the thresholds and the maxima of the warps
  for (int w = 0; w < WARPS; ++w) largest = max(largest, largest_of[w]);
  if (b < n) q[b] = static_cast<uint8_t>(code_of(thresholds, v * inverse_of(largest)));
  if (i == 0) scales[blockIdx.x] = absmax_of(largest);
}

std::tuple<Tensor, Tensor> quantize_absmax(const Tensor& absmax, const Tensor& levels,
                                           const Tensor& offset) {
  check(absmax, "absmax").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check_levels(levels, offset, absmax, "absmax");
  const DeviceGuard guard(absmax);
  const int64_t n = absmax.size(0), groups = ceil_div<int64_t>(n, GROUP);
  Tensor q = allocate(absmax, {n}, ScalarType::Byte);
  Tensor scales = allocate(absmax, {groups}, ScalarType::Float);
  if (n == 0) return {q, scales};
  quantize_absmax_kernel<<<grid_size(groups, "absmax"), THREADS, 0, current_stream(absmax)>>>(
      data<float>(absmax), data<float>(levels), data<float>(offset), mutable_data<uint8_t>(q),
      mutable_data<float>(scales), n);
  check_launch("quantize_absmax");
  return {q, scales};
}

// ---------------------------------------------------------------------------------------------

RUNG(day72, quantize_absmax, "(Tensor absmax, Tensor levels, Tensor offset) -> (Tensor, Tensor)");

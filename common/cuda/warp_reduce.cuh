// Reductions and scans among the 32 lanes of a warp, in registers. Taught in day 23.
#pragma once

// Bit l stands for lane l. Every lane that a mask names must make the call.
constexpr unsigned FULL_WARP = 0xffffffffu;

// The combination of the 32 lanes' values, in every lane: five steps, in each of which lane l takes
// what lane l ^ half holds. `op` must not care about the order of its arguments, or the lanes
// differ. All 32 lanes must call it, and all get equal bits.
template <typename T, typename Op>
__device__ T warp_reduce(T value, Op op) {
  for (int half = 16; half > 0; half /= 2) {
    value = op(value, __shfl_xor_sync(FULL_WARP, value, half));
  }
  return value;
}

template <typename T>
__device__ T warp_sum(T value) {
  return warp_reduce(value, [](T a, T b) { return a + b; });
}

// fmaxf ignores a NaN and returns the other argument.
__device__ inline float warp_max(float value) {
  return warp_reduce(value, [](float a, float b) { return fmaxf(a, b); });
}

// The sum of the values of lanes 0 to l, in lane l. All 32 lanes must call it.
template <typename T>
__device__ T warp_inclusive_scan(T value) {
  const int lane = threadIdx.x % 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const T below = __shfl_up_sync(FULL_WARP, value, distance);
    if (lane >= distance) value = below + value;
  }
  return value;
}

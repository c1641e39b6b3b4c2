// Day 83: what the forward and the backward pass share: GELU, arguments, element-wise kernels.
#pragma once

#include "common/cuda/chunk.cuh"    // taught in days 35 and 42
#include "common/cuda/dropout.cuh"  // taught in day 62
#include "common/cuda/ptx.cuh"      // ex2: taught in day 20
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <type_traits>

using dropout::Drop, dropout::State;

constexpr int BLOCK = 128;

// ---------------------------------------------------------------------------------------------
// gelu(v) = v · s, with s = 1 / (1 + exp(-2u)) and u = √(2/π) · (v + 0.044715 v³) (day 30).

constexpr float CUBIC = 0.044715f, SLOPE = 2 * 0.79788456f;  // 2 · √(2/π), the slope of 2u at 0
constexpr float LOG2_E = 1.44269504f;

// s at v, v2 = v². For 16-bit results the special function unit is exact enough.
template <typename T>
__device__ __forceinline__ float sigmoid_of_2u(float v, float v2) {
  const float power = v * fmaf(-LOG2_E * SLOPE * CUBIC, v2, -LOG2_E * SLOPE);
  if constexpr (std::is_same_v<T, float>) return 1 / (1 + exp2f(power));
  return __fdividef(1.0f, 1 + ptx::exp2_approx(power));  // 0 where the power of 2 overflows
}

template <typename T>
__device__ __forceinline__ float gelu(float v) {
  return v * sigmoid_of_2u<T>(v, v * v);
}

// With the derivative: s + v · s', and s' = s · (1 - s) · 2u'.
struct GeluSlope {
  float value, slope;
};
template <typename T>
__device__ __forceinline__ GeluSlope gelu_and_slope(float v) {
  const float v2 = v * v, s = sigmoid_of_2u<T>(v, v2);
  return {v * s, fmaf(fmaf(-s, s, s), v * fmaf(3 * CUBIC * SLOPE, v2, SLOPE), s)};
}

template <typename T>
__device__ __forceinline__ float gelu_derivative(float v) {
  return gelu_and_slope<T>(v).slope;
}

// A dropped element is 0 even where x is not finite.
__device__ __forceinline__ float dropped(float x, bool keep, float scale) {
  return keep ? x * scale : 0.0f;
}

// Bit k: whether element k of chunk i is kept.
template <int N>
__device__ __forceinline__ uint32_t kept_of_chunk(const State& state, int64_t i, const Drop& drop) {
  const int64_t first = i * N;
  return dropout::kept_of(state, first / dropout::GROUP, drop) >> (first % dropout::GROUP);
}

// ---------------------------------------------------------------------------------------------
// Kernels of both directions: v1's, and with chunks of more than one element v2's addition.

// One thread per element, or per group of eight.
inline unsigned blocks_for(int64_t work) {
  return grid_size(ceil_div<int64_t>(work, BLOCK), "x");
}

template <typename T>
__global__ void dropout_kernel(const T* __restrict__ x, const State* __restrict__ state,
                               T* __restrict__ y, int64_t n, Drop drop) {
  const int64_t group = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t first = group * dropout::GROUP;
  if (first >= n) return;
  const uint32_t kept = dropout::kept_of(*state, group, drop);
  for (int k = 0; k < dropout::GROUP && first + k < n; ++k) {
    const float value = static_cast<float>(x[first + k]);
    y[first + k] = static_cast<T>(dropped(value, (kept >> k & 1) != 0, drop.scale));
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    add_kernel(const Chunk<T, N>* __restrict__ a, const Chunk<T, N>* __restrict__ b,
               Chunk<T, N>* __restrict__ c, int64_t chunks) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= chunks) return;
  const Chunk<float, N> left = widened(load_raw(a + i)), right = widened(load_raw(b + i));
  Chunk<T, N> sum;
#pragma unroll
  for (int k = 0; k < N; ++k) sum.at[k] = static_cast<T>(left.at[k] + right.at[k]);
  c[i] = sum;
}

// y = dropout(x), and c = a + b.
template <typename T>
void drop(const Tensor& x, const Tensor& state, Tensor& y, const Drop& drop) {
  const int64_t n = x.numel();
  if (n == 0) return;
  dropout_kernel<T>
      <<<blocks_for(ceil_div<int64_t>(n, dropout::GROUP)), BLOCK, 0, current_stream(x)>>>(
          data<T>(x), data<State>(state), mutable_data<T>(y), n, drop);
}

template <typename T, int N>
void add(const Tensor& a, const Tensor& b, Tensor& c) {
  using C = Chunk<T, N>;
  const int64_t chunks = a.numel() / N;
  if (chunks == 0) return;
  add_kernel<T, N><<<blocks_for(chunks), BLOCK, 0, current_stream(a)>>>(data<C>(a), data<C>(b),
                                                                        mutable_data<C>(c), chunks);
}

// ---------------------------------------------------------------------------------------------
// Arguments.

// Of the dtype and on the GPU of x.
inline check check_beside(const Tensor& t, const char* name, const Tensor& x) {
  const check checked(t, name);
  checked.on_gpu().dtype({x.scalar_type()}).contiguous().same_device(x, "x");
  return checked;
}

// x: (rows, C), w1: (H, C), w2: (C, H).
inline void check_weights(const Tensor& x, const Tensor& w1, const Tensor& w2) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check_beside(w1, "w1", x).rank(2).size(1, x.size(1));
  check_beside(w2, "w2", x).rank(2).size(0, x.size(1)).size(1, w1.size(0));
}

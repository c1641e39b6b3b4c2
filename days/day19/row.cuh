// Day 19: one block per row, whose elements stay in registers: what the kernels of both sources
// share.
#pragma once

#include "common/cuda/pack.cuh"    // taught in day 2
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <type_traits>

// One block per row. 128 threads with 8 packs of 16 bytes each hold a row of up to 16 KB.
constexpr int BLOCK = 128;
constexpr int MAX_PACKS = 8;

// Whether rows of x can be loaded in packs of 16 bytes and fit into a block's registers.
inline bool fits_registers(const Tensor& x) {
  const int64_t row_bytes = x.size(1) * x.element_size();
  return row_bytes % 16 == 0 && row_bytes <= 16 * MAX_PACKS * BLOCK && is_aligned(x, 16);
}

// Calls launch(constant) with the number of packs per thread as a compile-time constant, 1, 2, 4 or
// 8: registers cannot be indexed at run time, so the compiler must know how many a row takes.
template <typename F>
void with_packs(int64_t row_bytes, F&& launch) {
  const int64_t packs = ceil_div<int64_t>(row_bytes, 16 * BLOCK);
  if (packs <= 1) return launch(std::integral_constant<int, 1>{});
  if (packs <= 2) return launch(std::integral_constant<int, 2>{});
  if (packs <= 4) return launch(std::integral_constant<int, 4>{});
  launch(std::integral_constant<int, MAX_PACKS>{});
}

// Combines the values of all threads by op, and returns the result to all. shared: one element per
// warp, which may be overwritten only after another barrier. All threads of the block must call it.
template <typename Op>
__device__ float block_reduce(float value, float (&shared)[BLOCK / 32], Op op) {
  // A warp shuffle reads the register of the lane `distance` away, without a barrier.
  for (int distance = 16; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();  // the results of all four warps are written before they are read
  value = shared[0];
  for (int warp = 1; warp < BLOCK / 32; ++warp) value = op(value, shared[warp]);
  return value;
}

// ---------------------------------------------------------------------------------------------
// A block's row of x for the kernels below, in one of two places. each(f) calls f(v) for each of
// this thread's elements v; write(out, f) sets out[c] = f(c, v), where out is the output's row.

// In global memory, of any length: each pass reads it again.
template <typename T>
struct RowInMemory {
  using Element = T;
  const T* x;
  int64_t cols;

  __device__ RowInMemory(const T* x_, int64_t cols_) : x(x_ + blockIdx.x * cols_), cols(cols_) {}

  template <typename F>
  __device__ void each(F f) const {
    for (int64_t c = threadIdx.x; c < cols; c += BLOCK) f(static_cast<float>(x[c]));
  }
  template <typename F>
  __device__ void write(T* out, F f) const {
    for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
      out[c] = static_cast<T>(f(c, static_cast<float>(x[c])));
    }
  }
};

// In the block's registers: the constructor reads it once, in packs of 16 bytes.
template <typename T, int PACKS>
struct RowInRegisters {
  using Element = T;
  static constexpr int N = Pack<T>::N;
  Pack<T> v[PACKS];
  int packs;

  __device__ RowInRegisters(const T* x, int64_t cols) : packs(static_cast<int>(cols / N)) {
    const auto* row = reinterpret_cast<const Pack<T>*>(x + blockIdx.x * cols);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * BLOCK;
      if (p < packs) v[k] = row[p];
    }
  }
  template <typename F>
  __device__ void each(F f) const {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (threadIdx.x + k * BLOCK < packs) {
        for (int i = 0; i < N; ++i) f(static_cast<float>(v[k].at[i]));
      }
    }
  }
  template <typename F>
  __device__ void write(T* out, F f) const {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * BLOCK;
      if (p < packs) {
        Pack<T> pack;
        for (int i = 0; i < N; ++i) {
          pack.at[i] = static_cast<T>(f(int64_t{p} * N + i, static_cast<float>(v[k].at[i])));
        }
        reinterpret_cast<Pack<T>*>(out)[p] = pack;
      }
    }
  }
};

// exp, as exact as an output of type T needs. __expf, computed by the special function unit, has an
// error of at most 2 + 1.173 · |v| ulps: below 2^-16 for |v| <= 88, far below the rounding to 16
// bits.
template <typename T>
__device__ float exponential(float v) {
  return std::is_same_v<T, float> ? expf(v) : __expf(v);
}

// The maximum of a row, and sum_c exp(x[c] - max).
struct Statistics {
  float max, sum;
};

// All threads of the block must call it, and all receive the result.
template <typename Row>
__device__ Statistics statistics(const Row& row) {
  __shared__ float for_max[BLOCK / 32], for_sum[BLOCK / 32];
  float max = -INFINITY;
  row.each([&](float v) { max = fmaxf(max, v); });
  max = block_reduce(max, for_max, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  row.each([&](float v) { sum += exponential<typename Row::Element>(v - max); });
  return {max, block_reduce(sum, for_sum, [](float a, float b) { return a + b; })};
}

// Calls launch(row, zero). decltype(row)::type is the class above that holds a row of x; zero has
// the C++ type of x's dtype.
template <typename F>
void dispatch_row(const Tensor& x, F&& launch) {
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    if (!fits_registers(x)) return launch(std::type_identity<RowInMemory<T>>{}, zero);
    with_packs(x.size(1) * x.element_size(),
               [&](auto packs) { launch(std::type_identity<RowInRegisters<T, packs()>>{}, zero); });
  });
}

// The forward operator of softmax_backward.cu, which the gradient of cross-entropy by a buffer
// calls.
Tensor softmax(const Tensor& x);

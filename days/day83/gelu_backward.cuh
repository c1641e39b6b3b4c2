// The epilogue of a gradient's product in front of GELU: out = sums · gelu'(pre), and the sums of
// the columns of out.
#pragma once

#include "days/day83/epilogues.cuh"

template <typename T>
struct GeluBackward {
  TensorMap out, pres;
  const T* pre;
  float* partial;  // (4 · tiles of rows, N): each warp has sums of the 32 rows that it finishes

  template <int COLUMNS>
  __device__ __forceinline__ void prefetch(int m, int n) const {
    prefetch_tile<COLUMNS>(pres, m, n);
  }

  template <typename Outbox>
  __device__ __forceinline__ void finish(const Strip<2>& strip, const Gemm<T>& p, int m, int n,
                                         Outbox& outbox) const {
    const int64_t part = m / 32 + threadIdx.x % WARPGROUP / 32;
#pragma unroll
    for (float* sums : strip.halves) {
      const PartOf<T> before(pre, p, m, n);
      if (m + ROWS > p.M) clear_missing(sums, p, m, n);
      before.each_pair(sums, [&](float2 v, float& left, float& right) {
        left *= gelu_derivative<T>(v.x);
        right *= gelu_derivative<T>(v.y);
      });
      outbox.store(sums, out, m, n);
      m += ROWS;
    }
    const auto& [upper, lower] = strip.halves;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      const int i = 4 * j;
      float2 column = make_float2(upper[i] + upper[i + 2] + lower[i] + lower[i + 2],
                                  upper[i + 1] + upper[i + 3] + lower[i + 1] + lower[i + 3]);
      // The eight lanes that have these two columns are 4 apart.
#pragma unroll
      for (int apart = 4; apart < 32; apart *= 2) {
        column.x += __shfl_xor_sync(0xffffffff, column.x, apart);
        column.y += __shfl_xor_sync(0xffffffff, column.y, apart);
      }
      const int col = Place(0, n).col + 8 * j;
      if (threadIdx.x % 32 < 4 && col < p.N) {
        *reinterpret_cast<float2*>(partial + part * p.N + col) = column;
      }
    }
  }

  // Rows beyond the last: TMA loaded zeros for them, but 0 · inf is NaN.
  __device__ __forceinline__ void clear_missing(float* sums, const Gemm<T>& p, int m, int n) const {
    const int row = Place(m, n).row;
#pragma unroll
    for (int i = 0; i < 4 * PAIRS; ++i) {
      if (row + i / 2 % 2 * 8 >= p.M) sums[i] = 0;
    }
  }
};

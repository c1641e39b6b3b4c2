// Day 90: the epilogues of the block's products, in the registers of day 83's kernel, and how many
// columns a tile gets.
#pragma once

#include "days/day83/epilogues.cuh"  // taught in day 83

// out = sums + bias
template <typename T>
struct Bias {
  TensorMap out;
  const T* bias;

  template <int>
  __device__ __forceinline__ void prefetch(int, int) const {}

  template <int H, typename Outbox>
  __device__ __forceinline__ void finish(const Strip<H>& strip, const Gemm<T>& p, int m, int n,
                                         Outbox& outbox) const {
#pragma unroll
    for (float* sums : strip.halves) {
      add_bias(sums, bias, p, n);
      outbox.store(sums, out, m, n);
      m += ROWS;
    }
  }
};

// g = sums · gelu'(pre), the sums of its columns, and hidden = gelu(pre) once more: it costs two
// operations, as the sigmoid is there, and no load, so that the forward pass need not keep it.
template <typename T>
struct GeluBackward {
  TensorMap g, hidden, pres;
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
    const int lane = threadIdx.x % 32;
    float2 mine{0, 0};  // sums of the two columns that this lane stores
#pragma unroll
    for (float* sums : strip.halves) {
      PartOf<T> elements(pre, p, m, n);
      const int row = Place(m, n).row;
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
        float2 column{0, 0};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float* const pair = sums + 4 * j + 2 * r;
          const float2 v = floats_of<T>(elements.words[j][r]);
          const GeluSlope left = gelu_and_slope<T>(v.x), right = gelu_and_slope<T>(v.y);
          pair[0] *= left.slope;
          pair[1] *= right.slope;
          // Rows beyond the last: TMA loaded zeros for them, but 0 · inf is NaN.
          if (row + 8 * r >= p.M) pair[0] = pair[1] = 0;
          column.x += pair[0];
          column.y += pair[1];
          elements.words[j][r] = tiles::pack<T>(left.value, right.value);  // instead of pre
        }
        // The eight lanes that have these two columns are 4 apart. One of them keeps the sum.
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) {
          column.x += __shfl_xor_sync(0xffffffff, column.x, apart);
          column.y += __shfl_xor_sync(0xffffffff, column.y, apart);
        }
        if (lane / 4 == j) mine.x += column.x, mine.y += column.y;
      }
      outbox.store(sums, g, m, n);
      elements.each_pair(sums, [&](float2 value, float& left, float& right) {
        left = value.x;
        right = value.y;
      });
      outbox.store(sums, hidden, m, n);
      m += ROWS;
    }
    const int64_t col = n + 2 * lane;  // = 8 · (lane / 4) + 2 · (lane % 4)
    if (col < p.N) *reinterpret_cast<float2*>(partial + part * p.N + col) = mine;
  }
};

// Whether tiles of 256 columns take fewer steps than tiles of 192: each multiprocessor computes so
// many tiles one after the other, and a tile's time grows with its columns.
inline bool prefers_wide(const Tensor& on, int64_t rows, int64_t cols) {
  const auto time = [&](int64_t columns) {
    const int64_t tiles = ceil_div<int64_t>(rows, 2 * ROWS) * ceil_div(cols, columns * PART);
    return columns * ceil_div<int64_t>(tiles, multiprocessor_count(on));
  };
  return time(WIDE) < time(NARROW);
}

// Day 90: the layer norm of 16-bit rows, forward; norms.cu has the mathematics, and the backward
// pass.
#pragma once

#include "common/cuda/chunk.cuh"        // taught in days 35 and 42
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day90/parts.cuh"

namespace block {

constexpr int N = 8;  // elements per chunk of 16 bytes
template <typename T>
using Eight = Chunk<T, N>;
template <typename T>
using RawEight = RawChunk<Chunk<T, N>>;

// ---------------------------------------------------------------------------------------------
// Forward: one warp per row. A lane has the chunks lane, lane + 32 …, up to EACH of them.

constexpr int ROW_WARPS = 4;  // rows per block

template <typename T>
struct NormRows {
  const Eight<T>*x, *branch, *gain, *shift;
  Eight<T>*h, *y;
  float2* statistics;
  int64_t rows;
  int chunks;
  float eps;
};

template <typename T, int EACH, bool ADD>
__global__ void __launch_bounds__(32 * ROW_WARPS) layer_norm_kernel(const NormRows<T> n) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * ROW_WARPS + threadIdx.x / 32;
  if (row >= n.rows) return;
  const int64_t start = row * n.chunks;
  RawEight<T> x[EACH], branch[ADD ? EACH : 1];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {  // all loads are in flight before the first is used
    const int c = lane + 32 * k;
    if (c < n.chunks) x[k] = load_raw(n.x + start + c);
    if (ADD && c < n.chunks) branch[k] = load_raw(n.branch + start + c);
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int c = lane + 32 * k;
    if (c >= n.chunks) break;
    Chunk<float, N> of = widened(x[k]);
    if constexpr (ADD) {
      const Chunk<float, N> more = widened(branch[k]);
      Eight<T> h;
#pragma unroll
      for (int i = 0; i < N; ++i) h.at[i] = static_cast<T>(of.at[i] + more.at[i]);
      n.h[start + c] = h;
      memcpy(&x[k], &h, sizeof h);  // what is normalised is what was stored
      of = widened(x[k]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += of.at[i];
  }
  const float count = static_cast<float>(N * n.chunks), mean = warp_sum(sum) / count;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    if (lane + 32 * k >= n.chunks) break;
    const Chunk<float, N> of = widened(x[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) squares = fmaf(of.at[i] - mean, of.at[i] - mean, squares);
  }
  const float rstd = rsqrtf(warp_sum(squares) / count + n.eps);
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int c = lane + 32 * k;
    if (c >= n.chunks) break;
    const Chunk<float, N> of = widened(x[k]);
    const Chunk<float, N> gain = widened(load_raw(n.gain + c)),
                          shift = widened(load_raw(n.shift + c));
    Eight<T> y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      y.at[i] = static_cast<T>(fmaf((of.at[i] - mean) * rstd, gain.at[i], shift.at[i]));
    }
    n.y[start + c] = y;
  }
  if (lane == 0) n.statistics[row] = make_float2(mean, rstd);
}

// Calls f with a zero of the type of t's elements, of 16 bits.
template <typename F>
void dispatch_16_bits(const Tensor& t, F f) {
  if (t.scalar_type() == ScalarType::Half) return f(__half{});
  f(__nv_bfloat16{});
}

Normed layer_norm(const Tensor& x, const Tensor* branch, const Tensor& gain, const Tensor& shift,
                  double eps) {
  STD_TORCH_CHECK(x.size(1) <= MOST_COLUMNS, "x: expected at most ", MOST_COLUMNS, " columns, got ",
                  x.size(1));
  const int64_t rows = x.size(0);
  Normed made{branch ? allocate_like(x) : x, allocate_like(x),
              allocate(x, {rows, 2}, ScalarType::Float)};
  dispatch_16_bits(x, [&]<typename T>(T) {
    using C = Eight<T>;
    const NormRows<T> n{data<C>(x),
                        branch ? data<C>(*branch) : nullptr,
                        data<C>(gain),
                        data<C>(shift),
                        branch ? mutable_data<C>(made.h) : nullptr,
                        mutable_data<C>(made.y),
                        static_cast<float2*>(made.statistics.mutable_data_ptr()),
                        rows,
                        static_cast<int>(x.size(1) / N),
                        static_cast<float>(eps)};
    const auto launch = [&](auto kernel) {
      const unsigned grid = grid_size(ceil_div<int64_t>(rows, ROW_WARPS), "x");
      kernel<<<grid, 32 * ROW_WARPS, 0, current_stream(x)>>>(n);
    };
    const auto with = [&]<bool ADD>(std::bool_constant<ADD>) {
      if (n.chunks <= 32 * 4) return launch(layer_norm_kernel<T, 4, ADD>);
      if (n.chunks <= 32 * 8) return launch(layer_norm_kernel<T, 8, ADD>);
      launch(layer_norm_kernel<T, 16, ADD>);
    };
    branch ? with(std::true_type{}) : with(std::false_type{});
  });
  check_launch("layer_norm");
  return made;
}

}  // namespace block

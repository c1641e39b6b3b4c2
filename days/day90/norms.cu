// Day 90: layer norm for rows of up to 4096 elements of 16 bits, forward and backward
//
//   h = x + branch      y = (h - mean) · rstd · gain + shift
//   gh = rstd · (a - mean_c(a) - n · mean_c(a · n)) + top      a = g · gain,  n = (h - mean) · rstd
//
// Days 9 and 45 explain the mathematics. New here is what the backward pass does beside it, while
// it has the rows in registers: it writes y again, so that no one has to keep it, and sums the rows
// of gh and of top, which are the gradients of two biases of the block.
//
// Bytes per element: 4 forward, 8 with the addition; 10 backward.

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day30/row_sums.cuh"          // taught in day 30
#include "days/day90/layer_norm.cuh"

#include <algorithm>
#include <optional>

namespace block {

// ---------------------------------------------------------------------------------------------
// Backward: a block takes many rows, and each thread the same columns of all, so that the sums of
// columns stay in its registers. The next row is loaded while this one is computed.

constexpr int COLUMN_THREADS = 128;
constexpr int BLOCKS_PER_SM = 6;  // each stores its sums: 2.4 MB of each kind for 768 columns

template <typename T>
struct NormBack {
  const Eight<T>*g, *top, *h, *gain, *shift;
  const float2* statistics;
  Eight<T>*gh, *y;
  float* sums[4];  // (blocks, C) each: of g · n, g, gh and top
  int64_t rows;
  int chunks;
};

template <typename T, int EACH, bool SUMS>
__global__ void __launch_bounds__(COLUMN_THREADS) layer_norm_backward_kernel(const NormBack<T> b) {
  constexpr int KINDS = SUMS ? 4 : 2;
  __shared__ float2 of_warps[2][COLUMN_THREADS / 32];
  struct Loaded {
    RawEight<T> g[EACH], top[EACH], h[EACH];
    float2 statistics;
  };
  Loaded next;
  const auto load = [&](int64_t row) {
    if (row >= b.rows) return;
    next.statistics = b.statistics[row];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int c = threadIdx.x + COLUMN_THREADS * k;
      if (c >= b.chunks) break;
      next.g[k] = load_raw(b.g + row * b.chunks + c);
      next.top[k] = load_raw(b.top + row * b.chunks + c);
      next.h[k] = load_raw(b.h + row * b.chunks + c);
    }
  };
  float sums[KINDS][EACH][N] = {};
  load(blockIdx.x);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < b.rows; row += gridDim.x, turn ^= 1) {
    const Loaded now = next;
    load(row + gridDim.x);
    const float mean = now.statistics.x, rstd = now.statistics.y;
    float2 total{0, 0};  // of a and of a · n
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int c = threadIdx.x + COLUMN_THREADS * k;
      if (c >= b.chunks) break;
      const Chunk<float, N> g = widened(now.g[k]), h = widened(now.h[k]);
      const Chunk<float, N> gain = widened(load_raw(b.gain + c));
      const Chunk<float, N> shift = widened(load_raw(b.shift + c));
      Eight<T> y;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (h.at[i] - mean) * rstd, a = g.at[i] * gain.at[i];
        y.at[i] = static_cast<T>(fmaf(n, gain.at[i], shift.at[i]));
        sums[0][k][i] += g.at[i] * n;
        sums[1][k][i] += g.at[i];
        total.x += a;
        total.y += a * n;
      }
      b.y[row * b.chunks + c] = y;
    }
    total = make_float2(warp_sum(total.x), warp_sum(total.y));
    // Two halves in turns: no warp is a whole row behind another, as each row has a barrier.
    if (threadIdx.x % 32 == 0) of_warps[turn][threadIdx.x / 32] = total;
    __syncthreads();  // the totals of all warps are there
    total = make_float2(0, 0);
#pragma unroll
    for (const float2& of : of_warps[turn]) total.x += of.x, total.y += of.y;
    const float count = static_cast<float>(N * b.chunks);
    const float mean_a = total.x / count, mean_an = total.y / count;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int c = threadIdx.x + COLUMN_THREADS * k;
      if (c >= b.chunks) break;
      const Chunk<float, N> g = widened(now.g[k]), h = widened(now.h[k]), top = widened(now.top[k]);
      const Chunk<float, N> gain = widened(load_raw(b.gain + c));
      Eight<T> gh;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (h.at[i] - mean) * rstd;
        const float through = __fmul_rn(g.at[i], gain.at[i]) - mean_a - n * mean_an;
        const float all = fmaf(rstd, through, top.at[i]);
        gh.at[i] = static_cast<T>(all);
        if constexpr (SUMS) sums[2][k][i] += all, sums[3][k][i] += top.at[i];
      }
      b.gh[row * b.chunks + c] = gh;
    }
  }
#pragma unroll
  for (int kind = 0; kind < KINDS; ++kind) {
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int c = threadIdx.x + COLUMN_THREADS * k;
      if (c >= b.chunks) break;
      auto* const to =
          reinterpret_cast<float4*>(b.sums[kind]) + (int64_t{blockIdx.x} * b.chunks + c) * (N / 4);
      const float (&of)[N] = sums[kind][k];
      to[0] = make_float4(of[0], of[1], of[2], of[3]);
      to[1] = make_float4(of[4], of[5], of[6], of[7]);
    }
  }
}

NormGradients layer_norm_backward(const Tensor& g, const Tensor& top, const Tensor& h,
                                  const Tensor& statistics, const Tensor& gain, const Tensor& shift,
                                  bool with_sums) {
  const int64_t rows = h.size(0), C = h.size(1);
  const int64_t blocks = std::min<int64_t>(rows, BLOCKS_PER_SM * multiprocessor_count(h));
  NormGradients made{.gh = allocate_like(h), .y = allocate_like(h)};
  Tensor* const results[] = {&made.gain, &made.shift, &made.sum_gh, &made.sum_top};
  Tensor partial[4];
  dispatch_16_bits(h, [&]<typename T>(T) {
    using E = Eight<T>;
    NormBack<T> b{data<E>(g),
                  data<E>(top),
                  data<E>(h),
                  data<E>(gain),
                  data<E>(shift),
                  static_cast<const float2*>(statistics.const_data_ptr()),
                  mutable_data<E>(made.gh),
                  mutable_data<E>(made.y),
                  {},
                  rows,
                  static_cast<int>(C / N)};
    for (int kind = 0; kind < (with_sums ? 4 : 2); ++kind) {
      partial[kind] = allocate(h, {blocks, C}, ScalarType::Float);
      b.sums[kind] = mutable_data<float>(partial[kind]);
    }
    const auto launch = [&](auto kernel) {
      kernel<<<static_cast<unsigned>(blocks), COLUMN_THREADS, 0, current_stream(h)>>>(b);
    };
    const auto with = [&]<bool SUMS>(std::bool_constant<SUMS>) {
      if (b.chunks <= COLUMN_THREADS) return launch(layer_norm_backward_kernel<T, 1, SUMS>);
      if (b.chunks <= 2 * COLUMN_THREADS) return launch(layer_norm_backward_kernel<T, 2, SUMS>);
      launch(layer_norm_backward_kernel<T, 4, SUMS>);
    };
    with_sums ? with(std::true_type{}) : with(std::false_type{});
  });
  check_launch("layer_norm_backward");
  for (int kind = 0; kind < (with_sums ? 4 : 2); ++kind) {
    *results[kind] = allocate(h, {C});
    sum_chunks(partial[kind], *results[kind]);
  }
  return made;
}

}  // namespace block

// ---------------------------------------------------------------------------------------------
// The norms alone, for checks of them.

void check_norm(const Tensor& x, const Tensor& gain, const Tensor& shift) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(2).contiguous();
  const int64_t C = x.size(1);
  STD_TORCH_CHECK(C > 0 && C % 8 == 0, "x: expected columns in multiples of 8, got ", C);
  for (const auto& [t, name] : {std::pair{&gain, "gain"}, std::pair{&shift, "shift"}}) {
    check(*t, name).on_gpu().dtype({x.scalar_type()}).rank(1).size(0, C).contiguous();
    check(*t, name).same_device(x, "x");
    STD_TORCH_CHECK(is_aligned(*t, 16), name, ": expected an address that is a multiple of 16");
  }
  STD_TORCH_CHECK(is_aligned(x, 16), "x: expected an address that is a multiple of 16");
}

void check_rows(const Tensor& t, const char* name, const Tensor& x) {
  check(t, name).on_gpu().like(x, "x").contiguous();
  STD_TORCH_CHECK(is_aligned(t, 16), name, ": expected an address that is a multiple of 16");
}

// h and y
std::tuple<Tensor, Tensor> norm_alone(const Tensor& x, const Tensor& branch, const Tensor& gain,
                                      const Tensor& shift) {
  check_norm(x, gain, shift);
  check_rows(branch, "branch", x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return {allocate_like(x), allocate_like(x)};
  const block::Normed made = block::layer_norm(x, &branch, gain, shift, 1e-5);
  return {made.h, made.y};
}

// gh, and the gradients of gain and shift, y, and the sums of gh and of top
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> norm_backward_alone(
    const Tensor& g, const Tensor& top, const Tensor& x, const Tensor& gain, const Tensor& shift) {
  check_norm(x, gain, shift);
  check_rows(g, "g", x);
  check_rows(top, "top", x);
  STD_TORCH_CHECK(x.size(0) > 0, "x: expected at least one row, got shape ", shape_of(x));
  const DeviceGuard guard(x);
  const block::Normed ahead = block::layer_norm(x, nullptr, gain, shift, 1e-5);
  const auto back = block::layer_norm_backward(g, top, x, ahead.statistics, gain, shift, true);
  return {back.gh, back.gain, back.shift, back.y, back.sum_gh, back.sum_top};
}

RUNG(day90, norm_alone, "(Tensor x, Tensor branch, Tensor gain, Tensor shift) -> (Tensor, Tensor)");
RUNG(day90, norm_backward_alone,
     "(Tensor g, Tensor top, Tensor x, Tensor gain, Tensor shift) -> (Tensor, Tensor, Tensor, "
     "Tensor, Tensor, Tensor)");

// Day 83, second file: the gradients of the feed-forward network with its residual addition
//
//   g2 = dropout'(gy)                 gW2 = g2ᵀ · hidden       gb2 = sum of g2's rows
//   g1 = (g2 · W2) · gelu'(pre)       gW1 = g1ᵀ · x            gb1 = sum of g1's rows
//   gx = gy + g1 · W1
//
// dropout' draws the mask again. Operations: 8 · rows · C · H. Bytes of bf16 beside the operands of
// the four products, with H = 4C:
//
//   v1 separate   one kernel per operation; cuBLAS multiplies: 44 per element of x
//   v2 fused      the sums in the pass that makes their matrix: 34
//   v3 epilogues  gelu' with its sum, and the addition, in products of our own: 4 in a pass, and
//                 10 during the products, beside the partial sums

#include "common/cuda/binding.cuh"     // taught in day 6
#include "common/cuda/capability.cuh"  // taught in day 24
#include "days/day30/row_sums.cuh"     // taught in day 30
#include "days/day83/elements.cuh"
#include "days/day83/gelu_backward.cuh"

#include <tuple>

using torch::stable::matmul;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // of x, w1, b1, w2, b2

Drop check_backward(const Tensor& gy, const Tensor& x, const Tensor& pre, const Tensor& hidden,
                    const Tensor& w1, const Tensor& w2, double p, const Tensor& state) {
  check_weights(x, w1, w2);
  check(gy, "gy").on_gpu().like(x, "x").contiguous();
  check_beside(pre, "pre", x).rank(2).size(0, x.size(0)).size(1, w1.size(0));
  check(hidden, "hidden").on_gpu().like(pre, "pre");  // of any strides: only cuBLAS reads it
  return dropout::check_arguments(p, state, x, "x");
}

Tensor transposed(const Tensor& t) {
  return torch::stable::transpose(t, 0, 1);
}

// ---------------------------------------------------------------------------------------------
// v1: one kernel per operation.

template <typename T>
__global__ void gelu_backward_kernel(const T* __restrict__ g, const T* __restrict__ pre,
                                     T* __restrict__ out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  const float slope = gelu_derivative<T>(static_cast<float>(pre[i]));
  out[i] = static_cast<T>(static_cast<float>(g[i]) * slope);
}

template <typename T>
__global__ void row_sum_kernel(const T* __restrict__ g, float* __restrict__ partial, int64_t rows,
                               int64_t cols) {
  column_sums<1>(partial, rows, cols, [&](int64_t r, int64_t c, float (&sums)[1]) {
    sums[0] += static_cast<float>(g[r * cols + c]);
  });
}

// The sum of all rows of g.
template <typename T>
Tensor sum_of_rows(const Tensor& g) {
  const int64_t rows = g.size(0), cols = g.size(1);
  Tensor sum = allocate(g, {cols});
  if (cols == 0) return sum;
  const dim3 grid = column_grid(rows, cols);
  Tensor partial = allocate(g, {rows > 0 ? grid.y : 0, cols}, ScalarType::Float);
  if (rows > 0) {
    row_sum_kernel<T><<<grid, dim3(32, TALL), 0, current_stream(g)>>>(
        data<T>(g), mutable_data<float>(partial), rows, cols);
  }
  sum_chunks(partial, sum);
  return sum;
}

Gradients ffn_backward_v1_separate(const Tensor& gy, const Tensor& x, const Tensor& pre,
                                   const Tensor& hidden, const Tensor& w1, const Tensor& w2,
                                   double p, const Tensor& state) {
  const Drop of = check_backward(gy, x, pre, hidden, w1, w2, p, state);
  const DeviceGuard guard(x);
  Tensor g2 = allocate_like(gy), g1 = allocate_like(pre);
  Tensor gx = allocate_like(x), gb1, gb2;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    drop<T>(gy, state, g2, of);
    gb2 = sum_of_rows<T>(g2);
    const Tensor to_hidden = matmul(g2, w2);
    if (const int64_t n = pre.numel(); n > 0) {
      gelu_backward_kernel<T><<<blocks_for(n), BLOCK, 0, current_stream(x)>>>(
          data<T>(to_hidden), data<T>(pre), mutable_data<T>(g1), n);
    }
    gb1 = sum_of_rows<T>(g1);
    add<T, 1>(gy, matmul(g1, w1), gx);
  });
  check_launch("ffn_backward_v1_separate");
  return {gx, matmul(transposed(g1), x), gb1, matmul(transposed(g2), hidden), gb2};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a pass also sums what it stores. A thread has the same chunk of columns in many
// rows, and adds up in registers; AHEAD rows are loaded before the first is used.

constexpr int AHEAD = 4;
constexpr int ROWS_PER_BLOCK = 32, MOST_PARTS = 512;  // of the partial sums of a column

template <typename T, int N>
struct DropoutPass {
  const Chunk<T, N>* gy;
  const State* state;
  Drop drop;
  using Loaded = RawChunk<Chunk<T, N>>;

  __device__ Loaded load(int64_t i) const { return load_raw(gy + i); }
  __device__ Chunk<float, N> compute(int64_t i, const Loaded& loaded) const {
    Chunk<float, N> g = widened(loaded);
    const uint32_t kept = kept_of_chunk<N>(*state, i, drop);
#pragma unroll
    for (int k = 0; k < N; ++k) g.at[k] = dropped(g.at[k], (kept >> k & 1) != 0, drop.scale);
    return g;
  }
};

template <typename T, int N>
struct GeluPass {
  const Chunk<T, N>*g, *pre;
  struct Loaded {
    RawChunk<Chunk<T, N>> g, pre;
  };

  __device__ Loaded load(int64_t i) const { return {load_raw(g + i), load_raw(pre + i)}; }
  __device__ Chunk<float, N> compute(int64_t, const Loaded& loaded) const {
    Chunk<float, N> result = widened(loaded.g);
    const Chunk<float, N> v = widened(loaded.pre);
#pragma unroll
    for (int k = 0; k < N; ++k) result.at[k] *= gelu_derivative<T>(v.at[k]);
    return result;
  }
};

// out = what the pass computes, (rows, chunks · N); partial[blockIdx.y] = the sums of those rows.
template <typename T, int N, typename Pass>
__global__ void __launch_bounds__(BLOCK)
    summed_pass_kernel(const Pass pass, Chunk<T, N>* __restrict__ out, float* __restrict__ partial,
                       int64_t rows, int64_t chunks) {
  const int64_t c = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (c >= chunks) return;
  float sums[N] = {};
  for (int64_t first = int64_t{blockIdx.y} * AHEAD; first < rows; first += gridDim.y * AHEAD) {
    typename Pass::Loaded loaded[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (first + k < rows) loaded[k] = pass.load((first + k) * chunks + c);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (first + k >= rows) break;
      const int64_t i = (first + k) * chunks + c;
      const Chunk<float, N> g = pass.compute(i, loaded[k]);
      Chunk<T, N> rounded;
#pragma unroll
      for (int e = 0; e < N; ++e) {
        rounded.at[e] = static_cast<T>(g.at[e]);
        sums[e] += g.at[e];
      }
      out[i] = rounded;
    }
  }
#pragma unroll
  for (int e = 0; e < N; ++e) partial[(blockIdx.y * chunks + c) * N + e] = sums[e];
}

template <typename T, int N, typename Pass>
Tensor summed_pass(const Pass& pass, Tensor& out) {
  const int64_t rows = out.size(0), cols = out.size(1), chunks = cols / N;
  Tensor sum = allocate(out, {cols});
  const int64_t parts = std::min<int64_t>(MOST_PARTS, ceil_div<int64_t>(rows, ROWS_PER_BLOCK));
  Tensor partial = allocate(out, {parts, cols}, ScalarType::Float);
  if (out.numel() > 0) {
    const dim3 grid(blocks_for(chunks), static_cast<unsigned>(parts));
    summed_pass_kernel<T, N><<<grid, BLOCK, 0, current_stream(out)>>>(
        pass, mutable_data<Chunk<T, N>>(out), mutable_data<float>(partial), rows, chunks);
    check_launch("summed_pass");
  }
  sum_chunks(partial, sum);
  return sum;
}

// g2 = dropout'(gy); returns gb2. g1 = g · gelu'(pre); returns gb1.
template <typename T>
Tensor dropout_pass(const Tensor& gy, const Tensor& state, const Drop& drop, Tensor& g2) {
  Tensor sum;
  dispatch_chunk<T>(gy.size(1), {&gy, &g2}, [&](auto n) {
    const DropoutPass<T, n()> pass{data<Chunk<T, n()>>(gy), data<State>(state), drop};
    sum = summed_pass<T, n()>(pass, g2);
  });
  return sum;
}
template <typename T>
Tensor gelu_pass(const Tensor& g, const Tensor& pre, Tensor& g1) {
  Tensor sum;
  dispatch_chunk<T>(pre.size(1), {&g, &pre, &g1}, [&](auto n) {
    using C = Chunk<T, n()>;
    sum = summed_pass<T, n()>(GeluPass<T, n()>{data<C>(g), data<C>(pre)}, g1);
  });
  return sum;
}

Gradients ffn_backward_v2_fused(const Tensor& gy, const Tensor& x, const Tensor& pre,
                                const Tensor& hidden, const Tensor& w1, const Tensor& w2, double p,
                                const Tensor& state) {
  const Drop drop = check_backward(gy, x, pre, hidden, w1, w2, p, state);
  const DeviceGuard guard(x);
  Tensor g2 = allocate_like(gy), g1 = allocate_like(pre);
  Tensor gx = allocate_like(x), gb1, gb2;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    gb2 = dropout_pass<T>(gy, state, drop, g2);
    gb1 = gelu_pass<T>(matmul(g2, w2), pre, g1);
    const Tensor product = matmul(g1, w1);
    dispatch_chunk<T>(x.size(1), {&gy, &product, &gx},
                      [&](auto n) { add<T, n()>(gy, product, gx); });
  });
  check_launch("ffn_backward_v2_fused");
  return {gx, matmul(transposed(g1), x), gb1, matmul(transposed(g2), hidden), gb2};
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: gelu' and the partial sums in the epilogue of g2 · W2, the addition in that of
// g1 · W1. What remains is the pass that makes g2, which two products read.

template <int COLUMNS>
Gradients backward_with_epilogues(const Tensor& gy, const Tensor& x, const Tensor& pre,
                                  const Tensor& hidden, const Tensor& w1, const Tensor& w2,
                                  double p, const Tensor& state) {
  const Drop drop = check_backward(gy, x, pre, hidden, w1, w2, p, state);
  check(x, "x").dtype({ScalarType::BFloat16, ScalarType::Half});
  if (!fit_tiles({&gy, &x, &pre, &w1, &w2})) {
    fell_back("ffn_backward_v2_fused", "rows that are not made of aligned pieces of 16 bytes");
    return ffn_backward_v2_fused(gy, x, pre, hidden, w1, w2, p, state);
  }
  const DeviceGuard guard(x);
  require_wgmma();
  const int64_t rows = x.size(0), H = w1.size(0);
  Tensor g2 = allocate_like(gy), g1 = allocate_like(pre);
  Tensor gx = allocate_like(x), gb2;
  Tensor gb1 = allocate(x, {H});
  const int64_t parts = 4 * ceil_div<int64_t>(rows, HALVES * ROWS);
  Tensor partial = allocate(x, {parts, H}, ScalarType::Float);
  dispatch_half(x, [&](auto zero) {
    using T = decltype(zero);
    gb2 = dropout_pass<T>(gy, state, drop, g2);
    launch_product<T, Major::kMN>(g2, w2,
                                  GeluBackward<T>{map_of_parts<T>(g1), map_of_parts<T>(pre),
                                                  data<T>(pre), mutable_data<float>(partial)});
    sum_chunks(partial, gb1);
    launch_product<T, Major::kMN, COLUMNS>(
        g1, w1, AddDropped<T, false>{map_of_parts<T>(gx), map_of_parts<T>(gy), data<T>(gy)});
  });
  return {gx, matmul(transposed(g1), x), gb1, matmul(transposed(g2), hidden), gb2};
}

Gradients ffn_backward_v3_epilogues(const Tensor& gy, const Tensor& x, const Tensor& pre,
                                    const Tensor& hidden, const Tensor& w1, const Tensor& w2,
                                    double p, const Tensor& state) {
  return backward_with_epilogues<NARROW>(gy, x, pre, hidden, w1, w2, p, state);
}

// v4 against v3: g1 · W1, whose result has as few columns as x, in tiles of 256.
Gradients ffn_backward_v4_wide(const Tensor& gy, const Tensor& x, const Tensor& pre,
                               const Tensor& hidden, const Tensor& w1, const Tensor& w2, double p,
                               const Tensor& state) {
  return backward_with_epilogues<WIDE>(gy, x, pre, hidden, w1, w2, p, state);
}

// ---------------------------------------------------------------------------------------------

#define BACKWARD                                                                            \
  "(Tensor gy, Tensor x, Tensor pre, Tensor hidden, Tensor w1, Tensor w2, float p, Tensor " \
  "state) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"

RUNG(day83, ffn_backward_v1_separate, BACKWARD);
RUNG(day83, ffn_backward_v2_fused, BACKWARD);
RUNG(day83, ffn_backward_v3_epilogues, BACKWARD);
RUNG(day83, ffn_backward_v4_wide, BACKWARD);

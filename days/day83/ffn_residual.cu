// Day 83: a feed-forward network with its residual addition, forward; ffn_backward.cu has backward
//
//   pre = x · W1ᵀ + b1          hidden = gelu(pre)          out = x + dropout(hidden · W2ᵀ + b2)
//
// x, out: (rows, C), W1: (H, C), W2: (C, H), H = 4C as a rule. pre and hidden are kept for the
// backward pass, the mask of dropout is not: it is computed again (day 62).
//
// Operations: 4 · rows · C · H, on tensor cores. Bytes beside the operands of the two products, in
// bf16 and with H = 4C: pre is stored, and x is read again, 10 per element of x. Each pass over a
// matrix that is not part of a product adds to that:
//
//   v1 separate   products by cuBLAS; gelu, dropout, addition: 26 bytes per element of x
//   v2 fused      16 bytes per load; dropout and addition in one pass: 22
//   v3 epilogues  gelu, dropout and addition in the registers of wgmma: 10, during the products
//   v4 wide       the second product, of few columns, in tiles of 256 columns instead of 192
//
// Run: python run_day.py 83

#include "common/cuda/binding.cuh"     // taught in day 6
#include "common/cuda/capability.cuh"  // taught in day 24
#include "common/cuda/linear.cuh"      // taught in day 28
#include "days/day83/elements.cuh"
#include "days/day83/epilogues.cuh"

#include <tuple>

using Outputs = std::tuple<Tensor, Tensor, Tensor>;  // out, pre, hidden

Drop check_forward(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                   const Tensor& b2, double p, const Tensor& state) {
  check_weights(x, w1, w2);
  check_beside(b1, "b1", x).rank(1).size(0, w1.size(0));
  check_beside(b2, "b2", x).rank(1).size(0, x.size(1));
  return dropout::check_arguments(p, state, x, "x");
}

// ---------------------------------------------------------------------------------------------
// v1: cuBLAS's products with the bias in their epilogue (day 25), and one kernel per operation.

template <typename T>
__global__ void gelu_kernel(const T* __restrict__ pre, T* __restrict__ hidden, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) hidden[i] = static_cast<T>(gelu<T>(static_cast<float>(pre[i])));
}

Outputs ffn_v1_separate(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                        const Tensor& b2, double p, const Tensor& state) {
  const Drop of = check_forward(x, w1, b1, w2, b2, p, state);
  const DeviceGuard guard(x);
  const Tensor pre = linear(x, w1, b1);
  Tensor hidden = allocate_like(pre), out = allocate_like(x);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    if (const int64_t n = pre.numel(); n > 0) {
      gelu_kernel<T><<<blocks_for(n), BLOCK, 0, current_stream(x)>>>(data<T>(pre),
                                                                     mutable_data<T>(hidden), n);
    }
    Tensor z = linear(hidden, w2, b2);
    Tensor branch = allocate_like(x);
    drop<T>(z, state, branch, of);
    add<T, 1>(x, branch, out);
  });
  check_launch("ffn_v1_separate");
  return {out, pre, hidden};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: 16 bytes per load; dropout and the addition in one pass, so that what is between
// them stays in registers. N: elements per chunk, 1 where rows are not made of aligned chunks.

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    gelu_chunks_kernel(const Chunk<T, N>* __restrict__ pre, Chunk<T, N>* __restrict__ hidden,
                       int64_t chunks) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= chunks) return;
  const Chunk<float, N> v = widened(load_raw(pre + i));
  Chunk<T, N> y;
#pragma unroll
  for (int k = 0; k < N; ++k) y.at[k] = static_cast<T>(gelu<T>(v.at[k]));
  hidden[i] = y;
}

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    add_dropped_kernel(const Chunk<T, N>* __restrict__ x, const Chunk<T, N>* __restrict__ z,
                       const State* __restrict__ state, Chunk<T, N>* __restrict__ out,
                       int64_t chunks, Drop drop) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= chunks) return;
  const RawChunk<Chunk<T, N>> raw_x = load_raw(x + i), raw_z = load_raw(z + i);
  const uint32_t kept = kept_of_chunk<N>(*state, i, drop);  // the loads do not wait for it
  const Chunk<float, N> residual = widened(raw_x), branch = widened(raw_z);
  Chunk<T, N> y;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float added = dropped(branch.at[k], (kept >> k & 1) != 0, drop.scale);
    y.at[k] = static_cast<T>(residual.at[k] + added);
  }
  out[i] = y;
}

Outputs ffn_v2_fused(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                     const Tensor& b2, double p, const Tensor& state) {
  const Drop drop = check_forward(x, w1, b1, w2, b2, p, state);
  const DeviceGuard guard(x);
  const Tensor pre = linear(x, w1, b1);
  Tensor hidden = allocate_like(pre), out = allocate_like(x);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(pre.size(1), {&pre, &hidden}, [&](auto n) {
      using C = Chunk<T, n()>;
      const int64_t chunks = pre.numel() / n();
      if (chunks == 0) return;
      gelu_chunks_kernel<T, n()><<<blocks_for(chunks), BLOCK, 0, current_stream(x)>>>(
          data<C>(pre), mutable_data<C>(hidden), chunks);
    });
    const Tensor z = linear(hidden, w2, b2);
    dispatch_chunk<T>(x.size(1), {&x, &z, &out}, [&](auto n) {
      using C = Chunk<T, n()>;
      const int64_t chunks = x.numel() / n();
      if (chunks == 0) return;
      add_dropped_kernel<T, n()><<<blocks_for(chunks), BLOCK, 0, current_stream(x)>>>(
          data<C>(x), data<C>(z), data<State>(state), mutable_data<C>(out), chunks, drop);
    });
  });
  check_launch("ffn_v2_fused");
  return {out, pre, hidden};
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: no pass is left. Day 56's kernel multiplies, and its epilogues (epilogues.cuh)
// have the sums in fp32 registers: one stores them before and after gelu, the other adds x.

template <int COLUMNS>
Outputs with_epilogues(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                       const Tensor& b2, double p, const Tensor& state) {
  const Drop drop = check_forward(x, w1, b1, w2, b2, p, state);
  check(x, "x").dtype({ScalarType::BFloat16, ScalarType::Half});
  if (!fit_tiles({&x, &w1, &w2}) || !is_aligned(b1, 4) || !is_aligned(b2, 4)) {
    fell_back("ffn_v2_fused", "rows that are not made of aligned pieces of 16 bytes");
    return ffn_v2_fused(x, w1, b1, w2, b2, p, state);
  }
  const DeviceGuard guard(x);
  require_wgmma();
  Tensor out = allocate_like(x);
  Tensor pre = allocate(x, {x.size(0), w1.size(0)});
  Tensor hidden = allocate_like(pre);
  dispatch_half(x, [&](auto zero) {
    using T = decltype(zero);
    launch_product<T, Major::kK>(
        x, w1, BiasGelu<T, true>{map_of_parts<T>(pre), map_of_parts<T>(hidden), data<T>(b1)});
    launch_product<T, Major::kK, COLUMNS>(
        hidden, w2,
        AddDropped<T, true>{map_of_parts<T>(out), map_of_parts<T>(x), data<T>(x), data<T>(b2),
                            data<State>(state), drop});
  });
  return {out, pre, hidden};
}

Outputs ffn_v3_epilogues(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                         const Tensor& b2, double p, const Tensor& state) {
  return with_epilogues<NARROW>(x, w1, b1, w2, b2, p, state);
}

// v4 against v3: out has a quarter of hidden's columns. 1024 columns are 5.3 tiles of 192, so that
// six tiles compute an eighth more than there is. They are four tiles of 256.
Outputs ffn_v4_wide(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                    const Tensor& b2, double p, const Tensor& state) {
  return with_epilogues<WIDE>(x, w1, b1, w2, b2, p, state);
}

// ---------------------------------------------------------------------------------------------

#define FORWARD                                                                                \
  "(Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor b2, float p, Tensor state) -> (Tensor, " \
  "Tensor, Tensor)"

RUNG(day83, ffn_v1_separate, FORWARD);
RUNG(day83, ffn_v2_fused, FORWARD);
RUNG(day83, ffn_v3_epilogues, FORWARD);
RUNG(day83, ffn_v4_wide, FORWARD);

// Day 15: what all rungs do with q, k and v around their kernels.
#pragma once

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <cmath>
#include <tuple>

constexpr int MAX_D = 128;

// N = B · H heads; each has matrices of S rows and D columns.
struct Sizes {
  int64_t N, S;
  int D;
  float scale;  // 1 / sqrt(D)
  bool causal;
};

inline Sizes check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  check(q, "q").on_gpu().floating().rank(4).contiguous();
  check(k, "k").on_gpu().like(q, "q").contiguous();
  check(v, "v").on_gpu().like(q, "q").contiguous();
  const int64_t D = q.size(3);
  STD_TORCH_CHECK(D >= 1 && D <= MAX_D, "q: expected 1 to ", MAX_D,
                  " elements in the last dimension, got shape ", shape_of(q));
  return {q.size(0) * q.size(1), q.size(2), static_cast<int>(D),
          static_cast<float>(1 / std::sqrt(static_cast<double>(D))), causal};
}

using Attended = std::tuple<Tensor, Tensor>;  // o and lse

// Checks the inputs, allocates o and lse, and calls launch(zero of q's type, sizes, o, lse) unless
// there are no elements (a grid of no blocks is an error).
template <typename F>
Attended attention_by(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                      const char* name, F&& launch) {
  const Sizes n = check_inputs(q, k, v, causal);
  const DeviceGuard guard(q);
  Tensor lse = allocate(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  Tensor o = output_like(
      q, name, [&](auto zero, auto* out) { launch(zero, n, out, mutable_data<float>(lse)); });
  return {o, lse};
}

Attended attention_v3_fa2_order(const Tensor& q, const Tensor& k, const Tensor& v, bool causal);

#define ATTENTION "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)"

// Day 20: the inputs and outputs of attention's backward pass.
#pragma once

#include "common/cuda/attention.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"     // taught in days 6 and 12

#include <tuple>

using namespace fa2;

// lse or its gradient: one fp32 number per row of q.
inline void check_rows(const Tensor& t, const char* name, const Tensor& q) {
  check(t, name).on_gpu().dtype({ScalarType::Float}).rank(3).contiguous().same_device(q, "q");
  for (int64_t dim = 0; dim < 3; ++dim) check(t, name).size(dim, q.size(dim));
}

// The inputs of a backward pass. go, glse: the gradients with respect to o and lse.
struct Given {
  const Tensor &go, &glse, &q, &k, &v, &o, &lse;
  bool causal;

  Sizes check_all() const {
    const Sizes n = check_inputs(q, k, v, causal);
    check(go, "go").on_gpu().like(q, "q").contiguous();
    check(o, "o").on_gpu().like(q, "q").contiguous();
    check_rows(lse, "lse", q);
    check_rows(glse, "glse", q);
    return n;
  }
};

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // gq, gk, gv

// lse, δ and glse: one number each per row of q.
struct RowNumbers {
  const float *lse, *delta, *glse;
};

inline RowNumbers row_numbers(const Given& given, const Tensor& delta) {
  return {data<float>(given.lse), data<float>(delta), data<float>(given.glse)};
}

// δ (B, H, S), by a kernel of naive_backward.cu.
Tensor make_delta(const Given& given, const Sizes& n);
// The launch of v1, on GPUs that lack the shared memory for v2 and v3.
void launch_naive(const Given& given, const Sizes& n, const Tensor& delta, const Gradients& made);

// Checks the inputs, allocates the gradients, computes δ and calls launch(given, sizes, δ,
// gradients).
template <typename F>
Gradients backward(const Given& given, const char* name, F launch) {
  const Sizes n = given.check_all();
  const DeviceGuard guard(given.q);
  const auto empty = [&] { return allocate_like(given.q); };
  Gradients made{empty(), empty(), empty()};
  if (given.q.numel() == 0) return made;  // a grid of no blocks is an error
  launch(given, n, make_delta(given, n), made);
  check_launch(name);
  return made;
}

#define INPUTS                                                                               \
  "(Tensor go, Tensor glse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal" \
  "=False) -> (Tensor, Tensor, Tensor)"

// Day 90: the parts of a transformer block that have files of their own, as functions of tensors.
// Their callers have checked the arguments.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <tuple>

namespace block {

// B sequences of S rows, C = H · D columns in H heads.
struct Sizes {
  int64_t B, S, C, H, D;

  int64_t rows() const { return B * S; }
};

// norms.cu: matrices (rows, C); statistics (rows, 2) in fp32, mean and 1 / standard deviation.
struct Normed {
  Tensor h, y, statistics;
};

// y = norm(h), where h is x, or x + *branch.
Normed layer_norm(const Tensor& x, const Tensor* branch, const Tensor& gain, const Tensor& shift,
                  double eps);

constexpr int64_t MOST_COLUMNS = 4096;  // of layer_norm and layer_norm_backward

struct NormGradients {
  Tensor gh, gain, shift;
  Tensor y;                // what the forward pass returned
  Tensor sum_gh, sum_top;  // the sums of gh's and of top's rows, if requested
};

// gh = the gradient of h through the norm, with g for y's, plus `top`, its gradient past the norm.
NormGradients layer_norm_backward(const Tensor& g, const Tensor& top, const Tensor& h,
                                  const Tensor& statistics, const Tensor& gain, const Tensor& shift,
                                  bool with_sums);

// attention_hopper.cu: causal attention of packed rows, qkv (rows, 3C) to o (rows, C) and lse
// (B, H, S), by TMA and wgmma.
void attend_packed(const Tensor& qkv, const Tensor& o, const Tensor& lse, const Sizes& n);

// attention_backward.cu: the gradient of qkv, and the sum of its rows (3C).
std::tuple<Tensor, Tensor> attend_backward(const Tensor& go, const Tensor& qkv, const Tensor& o,
                                           const Tensor& lse, const Sizes& n);

// The sizes of packed rows qkv (B, S, 3C) for launchers of attention alone, which checks have.
inline Sizes check_packed(const Tensor& qkv, int64_t heads) {
  check(qkv, "qkv").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(3).contiguous();
  const int64_t B = qkv.size(0), S = qkv.size(1), C = qkv.size(2) / 3;
  STD_TORCH_CHECK(heads > 0 && (qkv.size(2) == 192 * heads || qkv.size(2) == 384 * heads),
                  "qkv, heads: expected 3 · 64 or 3 · 128 columns per head, got ", qkv.size(2),
                  " columns and ", heads, " heads");
  STD_TORCH_CHECK(B <= (1 << 30) && S <= (1 << 30) && B * S <= (1 << 30),
                  "qkv: expected at most 2^30 rows, got shape ", shape_of(qkv));
  STD_TORCH_CHECK(is_aligned(qkv, 16), "qkv: expected an address that is a multiple of 16");
  return {B, S, C, heads, C / heads};
}

}  // namespace block

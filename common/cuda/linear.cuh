// A linear layer by PyTorch (taught in day 28).
#pragma once

#include "common/cuda/tensor.cuh"

#include <array>
#include <optional>

// x · weightᵀ + bias: x (…, K), weight (N, K), bias (N), of one dtype; the result is (…, N).
// PyTorch calls cuBLASLt with the bias in its epilogue (day 25), and throws where shapes differ.
inline Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(std::optional<Tensor>(bias))};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Products with NF4 weights: how they lie in memory, and what the launchers of nf4_gemv.cu share.
#pragma once

#include "common/cuda/pack.cuh"    // taught in day 2
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12
#include "days/day72/double_quant.cuh"

#include <cstdint>

constexpr int WORD = 8;    // weights per 32-bit word
constexpr int CHUNK = 32;  // weights per 16 bytes: half a block
constexpr int WORDS = CHUNK / WORD;
constexpr int BLOCK_CHUNKS = BLOCK_WEIGHTS / CHUNK;
constexpr int64_t MOST_K = int64_t{1} << 30;  // where chunks are counted in 32 bits

// Four words: 32 weights, or 8 elements of bf16.
using Registers = Pack<uint32_t>;

struct Product {
  const Registers* x;      // (K) bf16
  const Registers* codes;  // (N, K / 32)
  Absmaxes absmaxes;       // (N, K / 64)
  __nv_bfloat16* y;        // (N)
  int64_t N, K;
};

#define GEMV_ARGUMENTS                                                         \
  const Tensor &x, const Tensor &codes, const Tensor &q, const Tensor &levels, \
      const Tensor &scales, const Tensor &offset

inline void check_aligned(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(is_aligned(t, 16), name, ": expected an address that is a multiple of 16 bytes");
}

// What the launchers share: checks, allocates y, and calls launch(product, y, stream).
template <typename F>
Tensor multiply(GEMV_ARGUMENTS, F&& launch) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16}).rank(1).contiguous();
  const int64_t K = x.size(0);
  STD_TORCH_CHECK(K % BLOCK_WEIGHTS == 0, "x: expected a multiple of ", BLOCK_WEIGHTS,
                  " elements, got ", K);
  check(codes, "codes").on_gpu().dtype({ScalarType::Byte}).rank(2).contiguous();
  check(codes, "codes").size(1, K / 2).same_device(x, "x");
  const int64_t N = codes.size(0), blocks = K / BLOCK_WEIGHTS;
  check(q, "q").on_gpu().dtype({ScalarType::Byte}).rank(2).contiguous();
  check(q, "q").size(0, N).size(1, blocks).same_device(x, "x");
  check(scales, "scales").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(scales, "scales").size(0, ceil_div<int64_t>(N * blocks, GROUP)).same_device(x, "x");
  check_levels(levels, offset, x, "x");
  check_aligned(x, "x");
  check_aligned(codes, "codes");
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {N});
  if (N == 0) return y;
  if (K == 0) return torch::stable::zero_(y);
  const Absmaxes absmaxes{data<uint8_t>(q), data<float>(levels), data<float>(scales),
                          data<float>(offset)};
  launch(Product{data<Registers>(x), data<Registers>(codes), absmaxes,
                 mutable_data<__nv_bfloat16>(y), N, K},
         y, current_stream(x));
  check_launch("nf4_gemv");
  return y;
}

#define GEMV \
  "(Tensor x, Tensor codes, Tensor q, Tensor levels, Tensor scales, Tensor offset) -> Tensor"

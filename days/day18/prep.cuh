// Day 18: what the gradient's kernels and the forward operator share: sizes, indices, outputs.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

constexpr int BLOCK = 256;

constexpr int E = 8;  // elements that a thread moves at once: 16 bytes of bf16

using bf16 = __nv_bfloat16;

// Sizes of the problem, in elements; C = H · D. 32 bits wide, because threads divide by them, and a
// 64-bit division is a long sequence of instructions.
struct Sizes {
  unsigned B, S, H, D, C;
};

// The index of g[b, s, c] in heads: column c is element d = c % D of head h = c / D.
__device__ inline int64_t index_in_heads(Sizes n, unsigned b, unsigned s, unsigned c) {
  return ((int64_t{b} * n.H + c / n.D) * n.S + s) * n.D + c % n.D;
}

// Its index in heads_t: (h, d) in this order is c, so each b is one transpose of (S, C).
__device__ inline int64_t index_in_heads_t(Sizes n, unsigned b, unsigned s, unsigned c) {
  return (int64_t{b} * n.C + c) * n.S + s;
}

// What a launcher returns, and scratch memory for sums across blocks.
struct Outputs {
  Tensor heads, heads_t, bias_grad;
  Tensor partial;  // (chunks, C): sums of g over the rows of one chunk
  Tensor arrived;  // (strips,): how many blocks of a strip of columns have written their sums
};

// t: (B, S, C) or (B, H, S, D), named in the message if its sizes do not fit into 32 bits.
inline Sizes make_sizes(const Tensor& t, const char* name, int64_t B, int64_t S, int64_t H,
                        int64_t D) {
  constexpr int64_t most = 2147483647;
  STD_TORCH_CHECK(B <= most && S <= most && H * D <= most, name,
                  ": expected sizes below 2^31, got ", shape_of(t));
  return {static_cast<unsigned>(B), static_cast<unsigned>(S), static_cast<unsigned>(H),
          static_cast<unsigned>(D), static_cast<unsigned>(H * D)};
}

inline Sizes check_inputs(const Tensor& g, int64_t heads) {
  check(g, "g").on_gpu().floating().rank(3).contiguous();
  const int64_t C = g.size(2);
  STD_TORCH_CHECK(heads >= 1 && heads <= 2147483647 && C % heads == 0,
                  "heads: expected a divisor of g's last size ", C, ", got ", heads);
  return make_sizes(g, "g", g.size(0), g.size(1), heads, C / heads);
}

// The last rung of fused_backward_prep.cu. with_heads_t: whether heads_t is written.
Outputs launch_v3(const Tensor& g, Sizes n, bool with_heads_t);

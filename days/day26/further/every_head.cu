// Day 26, further: heads of 64 and 128 columns in bf16 and fp16, and a softmax that rescales rarely
//
//   o, lse of day 26, for q (B, H, S, D) and k, v (B, H, T, D) in bf16 or fp16, D = 64 or 128.
//
//   v1 scalar         day 15's kernel: fused multiply-adds in fp32; as many keys as rows
//   v4 pipelined      the main line's v4 with dtype and D as template parameters; o is rescaled
//                     only where a maximum of the warp's rows has grown
//   v5 lazy_rescale   … where p could exceed 2⁸
//
// Run: python run_day.py 26 --further

#include "common/cuda/attention.cuh"  // taught in day 15
#include "common/cuda/attention_inputs.cuh"
#include "common/cuda/binding.cuh"
#include "common/cuda/flash_attention.cuh"
#include "common/cuda/tensor.cuh"

#include <tuple>

using Outputs = std::tuple<Tensor, Tensor>;

void check_heads(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attention(q, k, v, {ScalarType::BFloat16, ScalarType::Half}, {64, 128});
}

Outputs attention_of_every_head(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                float headroom) {
  check_heads(q, k, v);
  const DeviceGuard guard(q);
  const Tensor o = allocate_like(q);
  const Tensor lse = allocate(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  flash::forward(q, k, v, nullptr, o, lse, causal, headroom);
  return {o, lse};
}

Outputs attention_v1_scalar(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  check_heads(q, k, v);
  check(k, "k").size(2, q.size(2));
  return fa2::forward(q, k, v, causal);
}

Outputs every_head_v4_pipelined(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  return attention_of_every_head(q, k, v, causal, 0);
}

// v5 against v4: o may keep the scale of an older maximum. Then p is at most 2⁸ instead of 1, which
// fp16 and bf16 hold with the same relative precision, and the division by sum corrects it.
Outputs attention_v5_lazy_rescale(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  return attention_of_every_head(q, k, v, causal, 8);
}

#define ATTENTION "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)"
RUNG(day26, attention_v1_scalar, ATTENTION);
RUNG(day26, every_head_v4_pipelined, ATTENTION);
RUNG(day26, attention_v5_lazy_rescale, ATTENTION);

// What the sources of day 40 share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <tuple>

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

using bf16 = __nv_bfloat16;

__device__ inline float silu(float v) {
  return v / (1 + expf(-v));
}

// gate.cu: softmax of the k largest logits per token, (T, k), fp32, and their experts, (T, k),
// int32.
std::tuple<Tensor, Tensor> gate_v3_eight_lanes(const Tensor& logits, int64_t k);

// Slot s = t · k + j is the j-th choice of token t, and row r is a place in the groups.
struct Groups {
  Tensor slots;    // (S), int32: the slot in each row; -1 in the rows after the last group
  Tensor rows;     // (T, k), int32: the row of each slot; -1 for a slot that is in no group
  Tensor offsets;  // (E + 1), int32: expert e has the rows [offsets[e], offsets[e + 1])
};

constexpr int MAX_EXPERTS = 1024;  // a block counts the slots of all of them in shared memory

// dispatch.cu: the slots of experts (T, k), int32, grouped by expert, either in arbitrary order or
// in that of the slots. With a capacity, an expert keeps its first slots; the others are dropped.
Groups group_by_atomics(const Tensor& experts, int64_t num_experts);
Groups group_by_counting_sort(const Tensor& experts, int64_t num_experts, int64_t capacity);

// dispatch.cu: y[t] = the sum of gates[t][j] · results[rows[t][j]] over j. results: (S, C), bf16;
// rows, gates: (T, k); y: (T, C), bf16, of at least one element.
void combine(const Tensor& results, const Tensor& rows, const Tensor& gates, const Tensor& y);

// atomic_scatter.cu: the sizes of a mixture, S = T · k slots, after its arguments are checked.
struct Sizes {
  int64_t T, C, H, E, S;
};
Sizes check_mixture(const Tensor& x, const Tensor& logits, const Tensor& w1, const Tensor& w2,
                    int64_t k);

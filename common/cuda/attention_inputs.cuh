// The checks of what attention on tensor cores takes: q (B, H, S, D), k and v (B, H, T, D).
#pragma once

#include "common/cuda/tensor.cuh"

#include <algorithm>

// Refuse dtypes other than these, other numbers of columns D, shapes that do not fit together,
// tensors that are not contiguous or whose addresses are not multiples of 16 bytes, and numbers of
// rows for which sums of two positions do not fit into 32 bits.
inline void check_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                            std::initializer_list<ScalarType> dtypes,
                            std::initializer_list<int64_t> columns) {
  check(q, "q").on_gpu().dtype(dtypes).rank(4).contiguous();
  check(k, "k").on_gpu().dtype({q.scalar_type()}).rank(4).contiguous().same_device(q, "q");
  check(v, "v").on_gpu().like(k, "k").contiguous();
  for (int dim : {0, 1, 3}) check(k, "k").size(dim, q.size(dim));
  if (std::find(columns.begin(), columns.end(), q.size(3)) == columns.end()) {
    std::string names;
    for (int64_t D : columns) names += (names.empty() ? "" : " or ") + std::to_string(D);
    STD_TORCH_CHECK(false, "q: expected ", names, " elements in the last dimension, got shape ",
                    shape_of(q));
  }
  STD_TORCH_CHECK(q.size(2) + k.size(2) < (1 << 30), "q, k: expected fewer than 2^30 rows, got ",
                  q.size(2), " and ", k.size(2));
  STD_TORCH_CHECK(is_aligned(q, 16) && is_aligned(k, 16) && is_aligned(v, 16),
                  "q, k, v: expected addresses that are multiples of 16 bytes; call .clone()");
}

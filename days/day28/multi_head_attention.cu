// Day 28: multi-head attention, as in nn.MultiheadAttention
//
//   [q k v] = x · Winᵀ + bin     o_h = softmax(q_h · k_hᵀ / sqrt(D)) · v_h     y = o · Woutᵀ + bout
//   x, y: (B, S, E); Win: (3E, E), bin: (3E); Wout: (E, E), bout: (E); bf16 or fp16
//
// Head h of H has the columns [h · D, (h + 1) · D) of q, k, v and o, D = E / H = 64 or 128.
// padding: (B, S), true for a key that no row of its batch sees.
//
// Operations: 8 · B · S · E² for the projections, 4 · B · S² · E for attention; for 8×1024×1024
// that is 69 + 34 GFLOP. Bytes: 42 MB for x, y and the weights, and 34 MB for each E columns of an
// intermediate matrix that is written and read.
//
//   v1 per_head    a loop over the heads: three projections and one attention for each
//   v2 batched     three projections, and one attention for all heads, which it finds by strides
//   v3 fused_qkv   one projection to 3E columns
//
// Run: python run_day.py 28

#include "common/cuda/binding.cuh"
#include "common/cuda/flash_attention.cuh"  // taught in day 26; strides and padding are new
#include "common/cuda/linear.cuh"           // calls PyTorch from C++; new here
#include "common/cuda/tensor.cuh"

#include <optional>
#include <tuple>

using torch::stable::narrow;
using torch::stable::transpose;
using torch::stable::unsqueeze;
using torch::stable::view;

struct Sizes {
  int64_t B, S, E, H, D;
};

// columns_per_e: 1 for x, 3 for q, k and v side by side.
Sizes check_rows(const Tensor& x, const char* name, int64_t columns_per_e, int64_t heads,
                 const std::optional<Tensor>& padding) {
  check(x, name).on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(3).contiguous();
  const int64_t E = x.size(2) / columns_per_e;
  STD_TORCH_CHECK(x.size(2) % columns_per_e == 0, name, ": expected a multiple of ", columns_per_e,
                  " columns, got shape ", shape_of(x));
  STD_TORCH_CHECK(heads >= 1 && E % heads == 0 && (E / heads == 64 || E / heads == 128), name,
                  ", heads: expected 64 or 128 columns per head, got ", E, " columns and ", heads,
                  " heads");
  if (padding) {
    check(*padding, "padding").on_gpu().dtype({ScalarType::Bool}).rank(2).contiguous();
    check(*padding, "padding").size(0, x.size(0)).size(1, x.size(1)).same_device(x, name);
  }
  return {x.size(0), x.size(1), E, heads, E / heads};
}

// The weights' shapes are those of nn.MultiheadAttention.
struct Weights {
  const Tensor &in, &in_bias, &out, &out_bias;
};

Sizes check_inputs(const Tensor& x, const Weights& w, int64_t heads,
                   const std::optional<Tensor>& padding) {
  const Sizes n = check_rows(x, "x", 1, heads, padding);
  const auto same = [&](const Tensor& t, const char* name, int64_t rank) {
    check(t, name).on_gpu().dtype({x.scalar_type()}).rank(rank).contiguous().same_device(x, "x");
  };
  same(w.in, "in_weight", 2), same(w.in_bias, "in_bias", 1);
  same(w.out, "out_weight", 2), same(w.out_bias, "out_bias", 1);
  check(w.in, "in_weight").size(0, 3 * n.E).size(1, n.E);
  check(w.in_bias, "in_bias").size(0, 3 * n.E);
  check(w.out, "out_weight").size(0, n.E).size(1, n.E);
  check(w.out_bias, "out_bias").size(0, n.E);
  return n;
}

// ---------------------------------------------------------------------------------------------
// Attention on matrices (B, S, H · D), which may be columns of a wider one.

// The heads as (B, H, S, D): another view of the same memory. Head h begins h · D elements behind
// head 0, and a row is as far from the next as in the matrix.
Tensor heads_of(const Tensor& rows, const Sizes& n) {
  return transpose(view(rows, {n.B, n.S, n.H, n.D}), 1, 2);
}

// o (B, S, E), with the heads side by side again, and lse (B, H, S).
std::tuple<Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const std::optional<Tensor>& padding, const Sizes& n) {
  Tensor o = allocate(q, {n.B, n.S, n.E});
  Tensor lse = allocate(q, {n.B, n.H, n.S}, ScalarType::Float);
  flash::forward(heads_of(q, n), heads_of(k, n), heads_of(v, n),
                 padding ? data<bool>(*padding) : nullptr, heads_of(o, n), lse, false);
  return {o, lse};
}

// The same for the result of the fused projection: q, k and v are thirds of its columns.
std::tuple<Tensor, Tensor> attend_packed(Tensor qkv, const std::optional<Tensor>& padding,
                                         const Sizes& n) {
  return attend(narrow(qkv, 2, 0, n.E), narrow(qkv, 2, n.E, n.E), narrow(qkv, 2, 2 * n.E, n.E),
                padding, n);
}

// The kernel alone, for checks of it.
std::tuple<Tensor, Tensor> packed_attention(const Tensor& qkv, int64_t heads,
                                            const std::optional<Tensor>& padding) {
  const Sizes n = check_rows(qkv, "qkv", 3, heads, padding);
  STD_TORCH_CHECK(is_aligned(qkv, 16), "qkv: expected an address that is a multiple of 16 bytes");
  const DeviceGuard guard(qkv);
  return attend_packed(qkv, padding, n);
}

// ---------------------------------------------------------------------------------------------
// v1: head by head. A product with D columns of weights, 64 here, fills a small part of the GPU.

Tensor multi_head_attention_v1_per_head(const Tensor& x, const Tensor& in_weight,
                                        const Tensor& in_bias, const Tensor& out_weight,
                                        const Tensor& out_bias, int64_t heads,
                                        const std::optional<Tensor>& padding) {
  const Sizes n = check_inputs(x, {in_weight, in_bias, out_weight, out_bias}, heads, padding);
  const DeviceGuard guard(x);
  Tensor o = allocate(x, {n.B, n.S, n.E});
  Tensor lse = allocate(x, {n.B, 1, n.S}, ScalarType::Float);
  Tensor weights = in_weight, biases = in_bias;  // narrow takes no const tensor
  for (int64_t h = 0; h < n.H; ++h) {
    const auto project = [&](int64_t part) {  // 0: q, 1: k, 2: v; one head: (B, 1, S, D)
      const int64_t first = part * n.E + h * n.D;
      Tensor rows = linear(x, narrow(weights, 0, first, n.D), narrow(biases, 0, first, n.D));
      return unsqueeze(rows, 1);
    };
    flash::forward(project(0), project(1), project(2), padding ? data<bool>(*padding) : nullptr,
                   unsqueeze(narrow(o, 2, h * n.D, n.D), 1), lse, false);
  }
  return linear(o, out_weight, out_bias);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: all heads at once. A projection makes E columns, and the attention kernel has B ·
// H heads to spread over the multiprocessors.

Tensor multi_head_attention_v2_batched(const Tensor& x, const Tensor& in_weight,
                                       const Tensor& in_bias, const Tensor& out_weight,
                                       const Tensor& out_bias, int64_t heads,
                                       const std::optional<Tensor>& padding) {
  const Sizes n = check_inputs(x, {in_weight, in_bias, out_weight, out_bias}, heads, padding);
  const DeviceGuard guard(x);
  Tensor weights = in_weight, biases = in_bias;
  const auto project = [&](int64_t part) {
    return linear(x, narrow(weights, 0, part * n.E, n.E), narrow(biases, 0, part * n.E, n.E));
  };
  const auto [o, lse] = attend(project(0), project(1), project(2), padding, n);
  return linear(o, out_weight, out_bias);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one product instead of three, which reads x once. y, and what the backward pass
// needs: qkv, o, lse.

std::tuple<Tensor, Tensor, Tensor, Tensor> multi_head_attention_saving(
    const Tensor& x, const Tensor& in_weight, const Tensor& in_bias, const Tensor& out_weight,
    const Tensor& out_bias, int64_t heads, const std::optional<Tensor>& padding) {
  const Sizes n = check_inputs(x, {in_weight, in_bias, out_weight, out_bias}, heads, padding);
  const DeviceGuard guard(x);
  const Tensor qkv = linear(x, in_weight, in_bias);  // (B, S, 3E)
  const auto [o, lse] = attend_packed(qkv, padding, n);
  return {linear(o, out_weight, out_bias), qkv, o, lse};
}

Tensor multi_head_attention_v3_fused_qkv(const Tensor& x, const Tensor& in_weight,
                                         const Tensor& in_bias, const Tensor& out_weight,
                                         const Tensor& out_bias, int64_t heads,
                                         const std::optional<Tensor>& padding) {
  return std::get<0>(
      multi_head_attention_saving(x, in_weight, in_bias, out_weight, out_bias, heads, padding));
}

// ---------------------------------------------------------------------------------------------

RUNG(day28, packed_attention, "(Tensor qkv, int heads, Tensor? padding=None) -> (Tensor, Tensor)");
RUNG(day28, multi_head_attention_v1_per_head,
     "(Tensor x, Tensor in_weight, Tensor in_bias, Tensor out_weight, Tensor out_bias, int heads, "
     "Tensor? padding=None) -> Tensor");
RUNG(day28, multi_head_attention_v2_batched,
     "(Tensor x, Tensor in_weight, Tensor in_bias, Tensor out_weight, Tensor out_bias, int heads, "
     "Tensor? padding=None) -> Tensor");
RUNG(day28, multi_head_attention_v3_fused_qkv,
     "(Tensor x, Tensor in_weight, Tensor in_bias, Tensor out_weight, Tensor out_bias, int heads, "
     "Tensor? padding=None) -> Tensor");
RUNG(day28, multi_head_attention_saving,
     "(Tensor x, Tensor in_weight, Tensor in_bias, Tensor out_weight, Tensor out_bias, int heads, "
     "Tensor? padding=None) -> (Tensor, Tensor, Tensor, Tensor)");

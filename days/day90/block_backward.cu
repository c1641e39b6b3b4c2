// Day 90, second file: the backward pass of the block
//
//   g1 = (gy · Wdown) · gelu'(pre)          gWdown = gyᵀ · hidden       hidden = gelu(pre)
//   gh = gy + norm2'(g1 · Wup)              gWup = g1ᵀ · y2             y2 = norm2(h)
//   go = gh · Wproj                         gWproj = ghᵀ · o
//   gx = gh + norm1'(gqkv · Wqkv)           gWqkv = gqkvᵀ · y1          y1 = norm1(x)
//
// Each bias has the sum of its product's upstream gradient. Operations: twice those of the forward
// pass for the products, 2.5 times for attention. Kept by the forward pass, in bytes of bf16 per
// element of x, F = 4C: x 2, qkv 6, o 2, h 2, pre 8, together 20, beside three fp32 numbers per row
// and head or norm. y1, y2 and hidden, 12 more, are computed again by kernels that have what they
// follow from in registers.
//
//   v2 fused      cuBLAS's products; a pass for gelu', hidden and the sum for the bias
//   v4 hopper     gelu', hidden and the sum in the epilogue of gy · Wdown
//
// Run: python run_day.py 90

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day30/row_sums.cuh"  // taught in day 30
#include "days/day90/epilogues.cuh"
#include "days/day90/parts.cuh"

#include <tuple>

using block::Sizes;
using torch::stable::matmul, torch::stable::view;

// Of x, and in the order of the forward pass's arguments: gain1, shift1, qkv_weight, qkv_bias,
// proj_weight, proj_bias, gain2, shift2, up_weight, up_bias, down_weight, down_bias.
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                             Tensor, Tensor, Tensor, Tensor>;

struct Given {
  const Tensor &gy, &x;
  int64_t heads;
  const Tensor &gain1, &shift1, &qkv_weight, &proj_weight, &gain2, &shift2, &up_weight,
      &down_weight;
  const Tensor &qkv, &o, &lse, &h, &pre, &statistics1, &statistics2;
};

Sizes check_given(const Given& a) {
  check(a.gy, "gy").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(3).contiguous();
  const int64_t B = a.gy.size(0), S = a.gy.size(1), C = a.gy.size(2), rows = B * S;
  STD_TORCH_CHECK(a.heads > 0 && (C == 64 * a.heads || C == 128 * a.heads),
                  "gy, heads: expected 64 or 128 columns per head, got ", C, " columns and ",
                  a.heads, " heads");
  STD_TORCH_CHECK(C <= block::MOST_COLUMNS && B <= (1 << 30) && S <= (1 << 30) && rows <= (1 << 30),
                  "gy: too large, got shape ", shape_of(a.gy));
  check(a.up_weight, "up_weight").rank(2);
  const int64_t F = a.up_weight.size(0);
  const auto like = [&](const Tensor& t, const char* name, std::initializer_list<int64_t> sizes,
                        ScalarType type) {
    check(t, name).on_gpu().dtype({type}).rank(static_cast<int64_t>(sizes.size())).contiguous();
    check(t, name).same_device(a.gy, "gy");
    int64_t dim = 0;
    for (int64_t size : sizes) check(t, name).size(dim++, size);
    STD_TORCH_CHECK(is_aligned(t, 16), name, ": expected an address that is a multiple of 16");
  };
  const ScalarType type = a.gy.scalar_type(), numbers = ScalarType::Float;
  like(a.gy, "gy", {B, S, C}, type);
  like(a.x, "x", {B, S, C}, type);
  like(a.gain1, "gain1", {C}, type);
  like(a.shift1, "shift1", {C}, type);
  like(a.qkv_weight, "qkv_weight", {3 * C, C}, type);
  like(a.proj_weight, "proj_weight", {C, C}, type);
  like(a.gain2, "gain2", {C}, type);
  like(a.shift2, "shift2", {C}, type);
  like(a.up_weight, "up_weight", {F, C}, type);
  like(a.down_weight, "down_weight", {C, F}, type);
  like(a.qkv, "qkv", {rows, 3 * C}, type);
  like(a.o, "o", {rows, C}, type);
  like(a.lse, "lse", {B, a.heads, S}, numbers);
  like(a.h, "h", {rows, C}, type);
  like(a.pre, "pre", {rows, F}, type);
  like(a.statistics1, "statistics1", {rows, 2}, numbers);
  like(a.statistics2, "statistics2", {rows, 2}, numbers);
  STD_TORCH_CHECK(F > 0 && F % 8 == 0, "up_weight: expected rows in multiples of 8, got ", F);
  return {B, S, C, a.heads, C / a.heads};
}

Tensor transposed(const Tensor& t) {
  return torch::stable::transpose(t, 0, 1);
}

// What follows from gy · Wdown and pre.
struct BehindGelu {
  Tensor g1, hidden, bias;  // bias: the sum of g1's rows
};

// ---------------------------------------------------------------------------------------------
// v2: cuBLAS's product, then a pass. A thread has the same chunk of columns in many rows, and sums
// what it stores.

constexpr int ROWS_PER_BLOCK = 32;

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    gelu_backward_kernel(const Chunk<T, 8>* __restrict__ g, const Chunk<T, 8>* __restrict__ pre,
                         Chunk<T, 8>* __restrict__ g1, Chunk<T, 8>* __restrict__ hidden,
                         float* __restrict__ partial, int64_t rows, int64_t chunks) {
  const int64_t c = int64_t{blockIdx.y} * BLOCK + threadIdx.x;
  if (c >= chunks) return;
  float sums[8] = {};
  const int64_t first = int64_t{blockIdx.x} * ROWS_PER_BLOCK;
#pragma unroll 4
  for (int64_t row = first; row < min(first + ROWS_PER_BLOCK, rows); ++row) {
    const int64_t i = row * chunks + c;
    const Chunk<float, 8> up = widened(load_raw(g + i)), v = widened(load_raw(pre + i));
    Chunk<T, 8> of_g, of_hidden;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const GeluSlope at = gelu_and_slope<T>(v.at[k]);
      of_g.at[k] = static_cast<T>(up.at[k] * at.slope);
      of_hidden.at[k] = static_cast<T>(at.value);
      sums[k] += up.at[k] * at.slope;
    }
    g1[i] = of_g;
    hidden[i] = of_hidden;
  }
  auto* const to = reinterpret_cast<float4*>(partial) + (blockIdx.x * chunks + c) * 2;
  to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
  to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
}

BehindGelu behind_gelu_by_pass(const Tensor& gy, const Given& a) {
  const int64_t rows = a.pre.size(0), F = a.pre.size(1), chunks = F / 8;
  const int64_t blocks = ceil_div<int64_t>(rows, ROWS_PER_BLOCK);
  const Tensor g = matmul(gy, a.down_weight);
  BehindGelu made{allocate_like(g), allocate_like(g), allocate(g, {F})};
  const Tensor partial = allocate(g, {blocks, F}, ScalarType::Float);
  dispatch_half(g, [&]<typename T>(T) {
    using C = Chunk<T, 8>;
    const dim3 grid(grid_size(blocks, "gy"), grid_size_y(ceil_div<int64_t>(chunks, BLOCK), "pre"));
    gelu_backward_kernel<T><<<grid, BLOCK, 0, current_stream(g)>>>(
        data<C>(g), data<C>(a.pre), mutable_data<C>(made.g1), mutable_data<C>(made.hidden),
        mutable_data<float>(partial), rows, chunks);
  });
  check_launch("gelu_backward");
  sum_chunks(partial, made.bias);
  return made;
}

// ---------------------------------------------------------------------------------------------
// v4 against v2: all of that in the epilogue of our own product.

BehindGelu behind_gelu_by_epilogue(const Tensor& gy, const Given& a) {
  const int64_t rows = a.pre.size(0), F = a.pre.size(1);
  BehindGelu made{allocate_like(a.pre), allocate_like(a.pre), allocate(a.pre, {F})};
  const int64_t parts = 4 * ceil_div<int64_t>(rows, HALVES * ROWS);
  const Tensor partial = allocate(a.pre, {parts, F}, ScalarType::Float);
  dispatch_half(a.pre, [&]<typename T>(T) {
    launch_product<T, Major::kMN>(
        gy, a.down_weight,
        GeluBackward<T>{map_of_parts<T>(made.g1), map_of_parts<T>(made.hidden),
                        map_of_parts<T>(a.pre), data<T>(a.pre), mutable_data<float>(partial)});
  });
  sum_chunks(partial, made.bias);
  return made;
}

// ---------------------------------------------------------------------------------------------
// Both. The order is that of the chain rule, from y to x.

Gradients backward(const Given& a, bool epilogue, const char* name) {
  const Sizes n = check_given(a);
  const DeviceGuard guard(a.gy);
  const auto zeros = [](const Tensor& like) {
    std::vector<int64_t> sizes;
    for (int64_t dim = 0; dim < like.dim(); ++dim) sizes.push_back(like.size(dim));
    return allocate_zeros(like, sizes);
  };
  if (n.rows() == 0) {  // sums of nothing
    const auto bias = [&](const Tensor& w) { return allocate_zeros(w, {w.size(0)}); };
    return {zeros(a.x),         zeros(a.gain1),       zeros(a.shift1),     zeros(a.qkv_weight),
            bias(a.qkv_weight), zeros(a.proj_weight), bias(a.proj_weight), zeros(a.gain2),
            zeros(a.shift2),    zeros(a.up_weight),   bias(a.up_weight),   zeros(a.down_weight),
            bias(a.down_weight)};
  }
  if (epilogue && compute_capability() != 90) {
    fell_back("block_backward_v2_fused", "a card without wgmma");
    epilogue = false;
  }
  const Tensor gy = view(a.gy, {n.rows(), n.C}), x = view(a.x, {n.rows(), n.C});

  const BehindGelu mlp = epilogue ? behind_gelu_by_epilogue(gy, a) : behind_gelu_by_pass(gy, a);
  const auto second = block::layer_norm_backward(matmul(mlp.g1, a.up_weight), gy, a.h,
                                                 a.statistics2, a.gain2, a.shift2, true);
  const Tensor go = matmul(second.gh, a.proj_weight);
  const auto [gqkv, qkv_bias] = block::attend_backward(go, a.qkv, a.o, a.lse, n);
  const auto first = block::layer_norm_backward(matmul(gqkv, a.qkv_weight), second.gh, x,
                                                a.statistics1, a.gain1, a.shift1, false);
  check_launch(name);
  return {view(first.gh, {n.B, n.S, n.C}),
          first.gain,
          first.shift,
          matmul(transposed(gqkv), first.y),
          qkv_bias,
          matmul(transposed(second.gh), a.o),
          second.sum_gh,
          second.gain,
          second.shift,
          matmul(transposed(mlp.g1), second.y),
          mlp.bias,
          matmul(transposed(gy), mlp.hidden),
          second.sum_top};
}

// ---------------------------------------------------------------------------------------------

#define ARGUMENTS                                                                                  \
  const Tensor &gy, const Tensor &x, int64_t heads, const Tensor &gain1, const Tensor &shift1,     \
      const Tensor &qkv_weight, const Tensor &proj_weight, const Tensor &gain2,                    \
      const Tensor &shift2, const Tensor &up_weight, const Tensor &down_weight, const Tensor &qkv, \
      const Tensor &o, const Tensor &lse, const Tensor &h, const Tensor &pre,                      \
      const Tensor &statistics1, const Tensor &statistics2
#define GIVEN_ARGUMENTS                                                                          \
  Given {                                                                                        \
    gy, x, heads, gain1, shift1, qkv_weight, proj_weight, gain2, shift2, up_weight, down_weight, \
        qkv, o, lse, h, pre, statistics1, statistics2                                            \
  }

Gradients block_backward_v2_fused(ARGUMENTS) {
  return backward(GIVEN_ARGUMENTS, false, "block_backward_v2_fused");
}
Gradients block_backward_v4_hopper(ARGUMENTS) {
  return backward(GIVEN_ARGUMENTS, true, "block_backward_v4_hopper");
}

#define BACKWARD                                                                              \
  "(Tensor gy, Tensor x, int heads, Tensor gain1, Tensor shift1, Tensor qkv_weight, Tensor "  \
  "proj_weight, Tensor gain2, Tensor shift2, Tensor up_weight, Tensor down_weight, Tensor "   \
  "qkv, Tensor o, Tensor lse, Tensor h, Tensor pre, Tensor statistics1, Tensor statistics2) " \
  "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "      \
  "Tensor, Tensor, Tensor)"

RUNG(day90, block_backward_v2_fused, BACKWARD);
RUNG(day90, block_backward_v4_hopper, BACKWARD);

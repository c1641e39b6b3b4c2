// Day 90: a full transformer block, forward; block_backward.cu has the backward pass
//
//   h = x + proj(attention(qkv(norm1(x))))        y = h + down(gelu(up(norm2(h))))
//
// x, h, y: (B, S, C) in bf16 or fp16, H heads of D = 64 or 128 columns, C = H · D; attention is
// causal, qkv, proj, up and down are products with a bias: C to 3C, C to C, C to F and F to C
// columns, F = 4C as a rule. norm is a layer norm. It is a block of GPT-2.
//
// Operations, for N = B · S rows: 8 · N · C² + 4 · N · C · F, and 2 · N · S · C for the scores that
// a causal mask leaves. Products and attention read and write 40 bytes per element of x, with F =
// 4C; the passes between them move so many more:
//
//   v1 separate   one kernel per operation, one element per load: 36 bytes in passes
//   v2 fused      an addition and the norm behind it in one pass, 16 bytes per load: 34
//   v3 epilogues  bias, GELU and additions in the products' registers: 8, and 4 in the products
//   v4 hopper     attention by wgmma and TMA, which finds the heads where the product left them
//
// Run: python run_day.py 90

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/flash_attention.cuh"  // taught in days 26 and 28
#include "common/cuda/linear.cuh"           // taught in day 28
#include "days/day90/epilogues.cuh"
#include "days/day90/parts.cuh"

#include <cfloat>

using block::Sizes, block::Normed;
using torch::stable::narrow, torch::stable::view;

// What a rung has, beside all that the ones before it have.
enum Way { SEPARATE, FUSED, EPILOGUES, HOPPER };

// y, and what the backward pass needs: qkv (rows, 3C), o and h (rows, C), pre (rows, F), lse (B, H,
// S) and both norms' statistics (rows, 2) in fp32. pre is empty unless it is requested.
using Kept = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The arguments of every forward launcher. Weights are (columns out, columns in), as nn.Linear has
// them; each of the twelve belongs to x's dtype and GPU.
struct Block {
  const Tensor& x;
  int64_t heads;
  const Tensor &gain1, &shift1, &qkv_weight, &qkv_bias, &proj_weight, &proj_bias;
  const Tensor &gain2, &shift2, &up_weight, &up_bias, &down_weight, &down_bias;
  double eps;
};

void check_parameter(const Tensor& t, const char* name, const Tensor& x,
                     std::initializer_list<int64_t> sizes) {
  check(t, name).on_gpu().dtype({x.scalar_type()}).rank(static_cast<int64_t>(sizes.size()));
  check(t, name).contiguous().same_device(x, "x");
  int64_t dim = 0;
  for (int64_t size : sizes) check(t, name).size(dim++, size);
  STD_TORCH_CHECK(is_aligned(t, 16), name, ": expected an address that is a multiple of 16 bytes");
}

Sizes check_block(const Block& a) {
  check(a.x, "x").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(3).contiguous();
  STD_TORCH_CHECK(is_aligned(a.x, 16), "x: expected an address that is a multiple of 16 bytes");
  const int64_t B = a.x.size(0), S = a.x.size(1), C = a.x.size(2);
  STD_TORCH_CHECK(a.heads > 0 && (C == 64 * a.heads || C == 128 * a.heads),
                  "x, heads: expected 64 or 128 columns per head, got ", C, " columns and ",
                  a.heads, " heads");
  STD_TORCH_CHECK(B <= (1 << 30) && S <= (1 << 30) && B * S <= (1 << 30),
                  "x: expected at most 2^30 rows, got shape ", shape_of(a.x));
  check(a.up_weight, "up_weight").rank(2);
  const int64_t F = a.up_weight.size(0);
  STD_TORCH_CHECK(F > 0 && F % 8 == 0, "up_weight: expected rows in multiples of 8, got ", F);
  check_parameter(a.gain1, "gain1", a.x, {C});
  check_parameter(a.shift1, "shift1", a.x, {C});
  check_parameter(a.qkv_weight, "qkv_weight", a.x, {3 * C, C});
  check_parameter(a.qkv_bias, "qkv_bias", a.x, {3 * C});
  check_parameter(a.proj_weight, "proj_weight", a.x, {C, C});
  check_parameter(a.proj_bias, "proj_bias", a.x, {C});
  check_parameter(a.gain2, "gain2", a.x, {C});
  check_parameter(a.shift2, "shift2", a.x, {C});
  check_parameter(a.up_weight, "up_weight", a.x, {F, C});
  check_parameter(a.up_bias, "up_bias", a.x, {F});
  check_parameter(a.down_weight, "down_weight", a.x, {C, F});
  check_parameter(a.down_bias, "down_bias", a.x, {C});
  STD_TORCH_CHECK(a.eps > 0 && a.eps <= FLT_MAX, "eps: expected a positive fp32 number, got ",
                  a.eps);
  return {B, S, C, a.heads, C / a.heads};
}

// ---------------------------------------------------------------------------------------------
// v1: layer norms of this day (norms.cu), cuBLAS's products with a bias (day 25), attention of days
// 26 and 28, and one kernel each for GELU and the additions, element by element.
//
// v2 against v1: 16 bytes per load, and the first addition in the norm that follows it.

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    gelu_kernel(const Chunk<T, N>* __restrict__ pre, Chunk<T, N>* __restrict__ hidden,
                int64_t chunks) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= chunks) return;
  const Chunk<float, N> v = widened(load_raw(pre + i));
  Chunk<T, N> y;
#pragma unroll
  for (int k = 0; k < N; ++k) y.at[k] = static_cast<T>(gelu<T>(v.at[k]));
  hidden[i] = y;
}

template <int N>
void gelu_pass(const Tensor& pre, const Tensor& hidden) {
  dispatch_half(pre, [&]<typename T>(T) {
    using C = Chunk<T, N>;
    const int64_t chunks = pre.numel() / N;
    gelu_kernel<T, N><<<blocks_for(chunks), BLOCK, 0, current_stream(pre)>>>(
        data<C>(pre), mutable_data<C>(hidden), chunks);
  });
}

template <int N>
Tensor sum_of(const Tensor& a, const Tensor& b) {
  Tensor c = allocate_like(a);
  dispatch_half(a, [&]<typename T>(T) { add<T, N>(a, b, c); });
  return c;
}

// Attention on mma.sync, which reads each head by strides.
void attend_by_strides(const Tensor& qkv, const Tensor& o, const Tensor& lse, const Sizes& n) {
  const auto heads = [&](Tensor rows, int64_t part) {
    Tensor of = narrow(rows, 1, part * n.C, n.C);
    // Rows of the matrix are 3C apart, which a view keeps.
    return torch::stable::transpose(view(of, {n.B, n.S, n.H, n.D}), 1, 2);
  };
  flash::forward(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), nullptr, heads(o, 0), lse, true);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the products are day 56's kernel, with the epilogues of epilogues.cuh. Two passes
// remain, the norms: each needs a whole row, of which a tile has a part.

// epilogue(a · weightᵀ), for results with few columns in the tiles that take fewer steps.
template <typename T, typename Epilogue>
void product_to_few(const Tensor& a, const Tensor& weight, const Epilogue& epilogue) {
  if (prefers_wide(a, a.size(0), weight.size(0))) {
    return launch_product<T, Major::kK, WIDE>(a, weight, epilogue);
  }
  launch_product<T, Major::kK, NARROW>(a, weight, epilogue);
}

// residual + a · weightᵀ + bias
template <typename T>
Tensor add_product(const Tensor& a, const Tensor& weight, const Tensor& bias,
                   const Tensor& residual) {
  Tensor out = allocate_like(residual);
  product_to_few<T>(a, weight,
                    BiasResidual<T>{map_of_parts<T>(out), map_of_parts<T>(residual),
                                    data<T>(residual), data<T>(bias)});
  return out;
}

template <typename T>
void up_and_gelu(const Tensor& y, const Block& a, bool keep, const Tensor& pre,
                 const Tensor& hidden) {
  const T* const bias = data<T>(a.up_bias);
  if (keep) {
    launch_product<T, Major::kK>(
        y, a.up_weight, BiasGelu<T, true>{map_of_parts<T>(pre), map_of_parts<T>(hidden), bias});
  } else {
    launch_product<T, Major::kK>(y, a.up_weight,
                                 BiasGelu<T, false>{{}, map_of_parts<T>(hidden), bias});
  }
}

// ---------------------------------------------------------------------------------------------
// All rungs. v4 against v3: attention_hopper.cu instead of mma.sync.

Kept forward(const Block& a, Way way, bool keep, const char* name) {
  const Sizes n = check_block(a);
  const DeviceGuard guard(a.x);
  if (way >= EPILOGUES && compute_capability() != 90) {
    fell_back("block_v2_fused", "a card without wgmma, which only those of capability 9.0 have");
    way = FUSED;
  }
  const int64_t rows = n.rows(), F = a.up_weight.size(0);
  const auto matrix = [&](int64_t cols) { return allocate(a.x, {rows, cols}); };
  const auto numbers = [&](std::initializer_list<int64_t> sizes) {
    return allocate(a.x, sizes, ScalarType::Float);
  };
  const Tensor lse = numbers({n.B, n.H, n.S}), o = matrix(n.C);
  if (rows == 0) {
    return {allocate_like(a.x), matrix(3 * n.C), o, lse, matrix(n.C), matrix(F),
            numbers({0, 2}),    numbers({0, 2})};
  }
  const Tensor x = view(a.x, {rows, n.C});
  Tensor qkv, h, y, pre = matrix(way >= EPILOGUES && keep ? F : 0);
  const Tensor hidden = matrix(F);
  Normed second;
  const Normed first = block::layer_norm(x, nullptr, a.gain1, a.shift1, a.eps);
  dispatch_half(x, [&]<typename T>(T) {
    if (way >= EPILOGUES) {
      qkv = matrix(3 * n.C);
      launch_product<T, Major::kK>(first.y, a.qkv_weight,
                                   Bias<T>{map_of_parts<T>(qkv), data<T>(a.qkv_bias)});
    } else {
      qkv = linear(first.y, a.qkv_weight, a.qkv_bias);
    }
    way == HOPPER ? block::attend_packed(qkv, o, lse, n) : attend_by_strides(qkv, o, lse, n);
    if (way >= EPILOGUES) {
      h = add_product<T>(o, a.proj_weight, a.proj_bias, x);
      second = block::layer_norm(h, nullptr, a.gain2, a.shift2, a.eps);
      up_and_gelu<T>(second.y, a, keep, pre, hidden);
      y = add_product<T>(hidden, a.down_weight, a.down_bias, h);
      return;
    }
    const Tensor branch = linear(o, a.proj_weight, a.proj_bias);
    if (way == SEPARATE) {
      second = block::layer_norm(sum_of<1>(x, branch), nullptr, a.gain2, a.shift2, a.eps);
    } else {
      second = block::layer_norm(x, &branch, a.gain2, a.shift2, a.eps);
    }
    h = second.h;
    pre = linear(second.y, a.up_weight, a.up_bias);
    way == SEPARATE ? gelu_pass<1>(pre, hidden) : gelu_pass<8>(pre, hidden);
    const Tensor z = linear(hidden, a.down_weight, a.down_bias);
    y = way == SEPARATE ? sum_of<1>(h, z) : sum_of<8>(h, z);
  });
  check_launch(name);
  return {view(y, {n.B, n.S, n.C}), qkv, o, lse, h, pre, first.statistics, second.statistics};
}

// ---------------------------------------------------------------------------------------------

#define ARGUMENTS                                                                                  \
  const Tensor &x, int64_t heads, const Tensor &gain1, const Tensor &shift1,                       \
      const Tensor &qkv_weight, const Tensor &qkv_bias, const Tensor &proj_weight,                 \
      const Tensor &proj_bias, const Tensor &gain2, const Tensor &shift2, const Tensor &up_weight, \
      const Tensor &up_bias, const Tensor &down_weight, const Tensor &down_bias, double eps
#define BLOCK_OF_ARGUMENTS                                                                \
  Block {                                                                                 \
    x, heads, gain1, shift1, qkv_weight, qkv_bias, proj_weight, proj_bias, gain2, shift2, \
        up_weight, up_bias, down_weight, down_bias, eps                                   \
  }

Tensor block_v1_separate(ARGUMENTS) {
  return std::get<0>(forward(BLOCK_OF_ARGUMENTS, SEPARATE, false, "block_v1_separate"));
}
Tensor block_v2_fused(ARGUMENTS) {
  return std::get<0>(forward(BLOCK_OF_ARGUMENTS, FUSED, false, "block_v2_fused"));
}
Tensor block_v3_epilogues(ARGUMENTS) {
  return std::get<0>(forward(BLOCK_OF_ARGUMENTS, EPILOGUES, false, "block_v3_epilogues"));
}
Tensor block_v4_hopper(ARGUMENTS) {
  return std::get<0>(forward(BLOCK_OF_ARGUMENTS, HOPPER, false, "block_v4_hopper"));
}
// For training: also what the backward pass needs.
Kept block_saving_v2_fused(ARGUMENTS) {
  return forward(BLOCK_OF_ARGUMENTS, FUSED, true, "block_saving_v2_fused");
}
Kept block_saving_v4_hopper(ARGUMENTS) {
  return forward(BLOCK_OF_ARGUMENTS, HOPPER, true, "block_saving_v4_hopper");
}

#define TAKES                                                                               \
  "(Tensor x, int heads, Tensor gain1, Tensor shift1, Tensor qkv_weight, Tensor qkv_bias, " \
  "Tensor proj_weight, Tensor proj_bias, Tensor gain2, Tensor shift2, Tensor up_weight, "   \
  "Tensor up_bias, Tensor down_weight, Tensor down_bias, float eps) -> "
#define KEEPS "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"

RUNG(day90, block_v1_separate, TAKES "Tensor");
RUNG(day90, block_v2_fused, TAKES "Tensor");
RUNG(day90, block_v3_epilogues, TAKES "Tensor");
RUNG(day90, block_v4_hopper, TAKES "Tensor");
RUNG(day90, block_saving_v2_fused, TAKES KEEPS);
RUNG(day90, block_saving_v4_hopper, TAKES KEEPS);

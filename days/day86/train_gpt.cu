// Day 86: a step of training a GPT, as one launcher
//
//   x = table[token] + places[s]
//   each layer:  x += proj(attention(norm(x)))     x += down(gelu(up(norm(x))))
//   loss = cross-entropy(norm(x) · tableᵀ, next token), then all gradients, then AdamW
//
// Weights, activations and their gradients: bf16; gradients of weights, master copy, m and v: fp32.
// Each is one buffer, in which plan.cuh has the places, so that a step is a fixed list of launches.
// Operations of 64 · 256 tokens, 6 layers, 384 columns: 6 per token and weight, 1.05 TFLOP, and
// 0.07 of attention. What passes read and write per layer, in matrices of rows · C, 12.6 MB:
//
//   v1 separate   one pass per operation: 42 forward, 44 backward
//   v2 fused      operations that meet share a pass: 26 forward, 27 backward
//   v3 epilogues  GELU, its derivative, two biases and the additions in products: 10, 15
//
// Run: python run_day.py 86

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/philox.cuh"   // taught in day 33
#include "days/day82/products.cuh"  // taught in days 25 and 82
#include "days/day86/adamw.cuh"
#include "days/day86/norms.cuh"
#include "days/day86/passes.cuh"

#include <algorithm>
#include <vector>

// A row of logits becomes its gradient, in place. NaN where the target names no word. For few
// words: many_words.cu has the others.
__global__ void __launch_bounds__(WARPS * 32)
    cross_entropy_kernel(Half* logits, const int64_t* __restrict__ tokens, float* losses,
                         int64_t rows, int64_t S, int words) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (row >= rows) return;  // whole warps
  const int lane = threadIdx.x % 32;
  const int64_t target = tokens[row / S * (S + 1) + row % S + 1];
  const bool valid = target >= 0 && target < words;
  Half* const x = logits + row * words;
  float mine[FEW_WORDS / 32], most = -INFINITY, sum = 0, at_target = 0;
#pragma unroll
  for (int k = 0; k < FEW_WORDS / 32; ++k) {
    const int i = 32 * k + lane;
    mine[k] = i < words ? __bfloat162float(x[i]) : -INFINITY;
    most = fmaxf(most, mine[k]);
    if (i == target) at_target = mine[k];
  }
  most = warp_max(most);
#pragma unroll
  for (float& each : mine) sum += expf(each - most);
  sum = warp_sum(sum);
  at_target = warp_sum(at_target);
  const float scale = valid ? 1 / static_cast<float>(rows) : NAN;
#pragma unroll
  for (int k = 0; k < FEW_WORDS / 32; ++k) {
    const int i = 32 * k + lane;
    const float g = (expf(mine[k] - most) / sum - (i == target ? 1.0f : 0.0f)) * scale;
    if (i < words) x[i] = __float2bfloat16_rn(g);
  }
  if (lane == 0) losses[row] = valid ? logf(sum) + (most - at_target) : NAN;
}

// The gradient of the places, each of which all sequences have.
__global__ void places_kernel(const Half* __restrict__ g, float* __restrict__ to, int64_t B,
                              int64_t S, int64_t C, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;  // position · C + column
  if (i >= count) return;
  float sum = 0;
  if (i < S * C) {
#pragma unroll 8
    for (int64_t b = 0; b < B; ++b) sum += __bfloat162float(g[b * S * C + i]);
  }
  to[i] = sum;
}

// ---------------------------------------------------------------------------------------------
// The launches of a step. V: the rung.

struct Step {
  const Tensor& on;
  const Shape s;
  const Parameters at;
  const Half* w;
  const int64_t* tokens;
  int64_t length;  // of a row of tokens
  float* grads;    // null for a forward pass alone
  std::vector<LayerActivations> layers;
  Tensor memory;
  Activations m;
  Products by;
  cudaStream_t stream;
  std::vector<PartialSums> sums;  // that add_parts is to add up
  int64_t partial_used = 0;       // floats of m.partial

  Step(const Tensor& weights, const Shape& shape, const Tensor& of_tokens, float* gradients)
      : on(weights),
        s(shape),
        at(shape),
        w(data<Half>(weights)),
        tokens(data<int64_t>(of_tokens)),
        length(of_tokens.size(1)),
        grads(gradients),
        layers(s.layers),
        memory(allocate(weights, {Activations(s, nullptr, layers.data()).bytes}, ScalarType::Byte)),
        m(s, mutable_data<char>(memory), layers.data()),
        by{weights},
        stream(current_stream(weights)) {}

  // y (rows, N) = x (rows, K) · weightᵀ; gx (rows, K) = g (rows, N) · weight; gw (N, K) = gᵀ · x.
  void product(const Half* x, int64_t weight, Half* y, int64_t N, int64_t K) const {
    multiply(by, Matrix<Half>{x, K, false}, Matrix<Half>{w + weight, K, true}, y, N, s.rows(), N, K,
             0);
  }
  void product_backward(const Half* g, int64_t weight, Half* gx, int64_t N, int64_t K) const {
    multiply(by, Matrix<Half>{g, N, false}, Matrix<Half>{w + weight, K, false}, gx, K, s.rows(), K,
             N, 0);
  }
  void weight_gradient(const Half* g, const Half* x, int64_t weight, int64_t N, int64_t K,
                       float beta = 0) const {
    multiply(by, Matrix<Half>{g, N, true}, Matrix<Half>{x, K, false}, grads + weight, K, N, K,
             s.rows(), beta);
  }

  template <typename F>
  void pass(const F& f, int64_t cols) const {
    const int64_t deep = ceil_div<int64_t>(s.rows(), DEEP);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(cols, WIDE * EIGHT)),
                    static_cast<unsigned>(std::min(deep, max_grid_y())));
    pass_kernel<0>
        <<<grid, dim3(WIDE, DEEP), 0, stream>>>(f, nullptr, s.rows(), static_cast<int>(cols));
    check_launch("pass");
  }
  // Room for the sums of a pass over parts of its rows, which become gradients from `to` on.
  float* partial_sums(int64_t parts, int64_t count, int64_t to) {
    float* const partial = m.partial + partial_used;
    partial_used += parts * count;
    sums.push_back({partial, grads + to, parts, count});
    return partial;
  }
  template <int SUMS, typename F>
  void summed_pass(const F& f, int64_t cols, int64_t to) {
    const int64_t deep = ceil_div<int64_t>(s.rows(), DEEP), parts = PARTIAL / (SUMS * cols);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(cols, WIDE * EIGHT)),
                    static_cast<unsigned>(std::min(deep, parts)));
    pass_kernel<SUMS><<<grid, dim3(WIDE, DEEP), 0, stream>>>(
        f, partial_sums(grid.y, SUMS * cols, to), s.rows(), static_cast<int>(cols));
    check_launch("summed_pass");
  }
  // A small kernel takes a few µs, whatever it does: all sums of a step wait for its end.
  void add_parts() const {
    for (size_t first = 0; first < sums.size(); first += SUMS_AT_ONCE) {
      const size_t count = std::min<size_t>(SUMS_AT_ONCE, sums.size() - first);
      ManySums all{};
      std::copy_n(sums.begin() + first, count, all.of);
      int64_t most = 0;
      for (size_t i = 0; i < count; ++i) most = std::max(most, all.of[i].sums);
      const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(most, 32)),
                      static_cast<unsigned>(count));
      add_parts_kernel<<<grid, dim3(32, SUM_ROWS), 0, stream>>>(all);
      check_launch("add_parts");
    }
  }

  // Calls f with the chunks per lane of a row of C columns.
  template <typename F>
  void by_chunks(F f) const {
    const int64_t chunks = ceil_div<int64_t>(s.C(), 32 * EIGHT);
    if (chunks == 1) return f(std::integral_constant<int, 1>{});
    if (chunks == 2) return f(std::integral_constant<int, 2>{});
    f(std::integral_constant<int, 4>{});
  }

  // h = x + added + bias, y = norm(h). v1 does it in three passes.
  template <int V>
  void norm(const Half* x, Half* added, int64_t bias, Half* h, Half* y, float2* stats,
            int64_t weight, int64_t shift) const {
    const int64_t C = s.C();
    const bool separate = V == 1 && added;
    if (separate) {
      pass(AddBias{added, w + bias, C}, C);
      pass(Add{x, added, h, C}, C);
    }
    const Norm n{
        separate ? h : x, separate ? nullptr : added, w + bias, w + weight, w + shift, h, y, stats,
        s.rows(),         static_cast<int>(C)};
    by_chunks([&](auto chunks) {
      norm_kernel<chunks()>
          <<<grid_size(ceil_div<int64_t>(s.rows(), WARPS), "tokens"), WARPS * 32, 0, stream>>>(n);
    });
    check_launch("norm");
  }

  // h = residual + x (rows, K) · weightᵀ + bias, y = norm(h).
  template <int V>
  void product_norm(const Half* x, int64_t K, int64_t weight, int64_t bias, const Half* residual,
                    Half* h, Half* y, float2* stats, int64_t norm_weight, int64_t shift) const {
    if (V == 3) {
      product_add(on, x, w + weight, w + bias, residual, h, s.rows(), s.C(), K);
      return norm<V>(h, nullptr, 0, nullptr, y, stats, norm_weight, shift);
    }
    product(x, weight, m.narrow, s.C(), K);
    norm<V>(residual, m.narrow, bias, h, y, stats, norm_weight, shift);
  }

  // gh += the gradient through a norm of h, whose own are m.narrow; or gh = it, for the last norm.
  // The sums of gh become those of `bias`, which lies before the norm's weight; -1: of none.
  template <int V>
  void norm_backward(const Half* h, const float2* stats, int64_t weight, int64_t bias,
                     bool first = false) {
    const int64_t C = s.C();
    if (V == 1) summed_pass<2>(NormSums{m.narrow, h, stats, C}, C, weight);
    const bool alone = V == 1 && !first;
    const int vectors = V == 1 ? 0 : bias < 0 ? 2 : 3;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(
        V == 1 ? int64_t{1} << 20 : NORM_BLOCKS, ceil_div<int64_t>(s.rows(), WARPS)));
    float* const partial =
        V == 1 ? nullptr : partial_sums(blocks, vectors * C, vectors == 3 ? bias : weight);
    const NormBackward n{m.narrow,
                         h,
                         w + weight,
                         alone || first ? nullptr : m.gh,
                         stats,
                         alone ? m.narrow : m.gh,
                         partial,
                         s.rows(),
                         static_cast<int>(C),
                         vectors};
    by_chunks(
        [&](auto chunks) { norm_backward_kernel<chunks()><<<blocks, WARPS * 32, 0, stream>>>(n); });
    check_launch("norm_backward");
    if (V > 1) return;
    if (alone) pass(Add{m.gh, m.narrow, m.gh, C}, C);
    if (bias >= 0) summed_pass<1>(Sum{m.gh, C}, C, bias);
  }

  template <int V>
  void forward() const {
    const int64_t C = s.C();
    pass(Embed{w + at.table, w + at.places, tokens, layers[0].h, s.S, length, s.words, C}, C);
    const LayerParameters top = at.layer(0);
    norm<V>(layers[0].h, nullptr, 0, nullptr, layers[0].y1, layers[0].stats1, top.norm1,
            top.shift1);
    for (int64_t l = 0; l < s.layers; ++l) {
      const LayerParameters p = at.layer(l);
      const LayerActivations& a = layers[l];
      product(a.y1, p.qkv, m.wide, 3 * C, C);
      if (V == 1) pass(AddBias{m.wide, w + p.qkv_bias, 3 * C}, 3 * C);
      pass(ToHeads{m.wide, V == 1 ? nullptr : w + p.qkv_bias, a.q, a.k, a.v, s.S,
                   static_cast<int>(C)},
           3 * C);
      attention_forward(on, s, a);
      product_norm<V>(a.o, C, p.proj, p.proj_bias, a.h, a.mid, a.y2, a.stats2, p.norm2, p.shift2);
      if (V == 3) {
        product_gelu(on, a.y2, w + p.up, w + p.up_bias, a.pre, a.act, s.rows(), 4 * C, C);
      } else {
        product(a.y2, p.up, a.pre, 4 * C, C);
        if (V == 1) pass(AddBias{a.pre, w + p.up_bias, 4 * C}, 4 * C);
        pass(Gelu{a.pre, a.act, V == 1 ? nullptr : w + p.up_bias, 4 * C}, 4 * C);
      }
      if (l + 1 < s.layers) {
        const LayerParameters q = at.layer(l + 1);
        const LayerActivations& b = layers[l + 1];
        product_norm<V>(a.act, 4 * C, p.down, p.down_bias, a.mid, b.h, b.y1, b.stats1, q.norm1,
                        q.shift1);
      } else {
        product_norm<V>(a.act, 4 * C, p.down, p.down_bias, a.mid, m.last, m.y, m.stats, at.norm,
                        at.shift);
      }
    }
    product(m.y, at.table, m.logits, s.words, C);
  }

  // The logits become their gradients.
  void cross_entropy(float* losses) const {
    if (!s.has_few_words()) return cross_entropy_of_many(on, s, tokens, m.logits, losses);
    const unsigned blocks = grid_size(ceil_div<int64_t>(s.rows(), WARPS), "tokens");
    cross_entropy_kernel<<<blocks, WARPS * 32, 0, stream>>>(m.logits, tokens, losses, s.rows(), s.S,
                                                            static_cast<int>(s.words));
    check_launch("cross_entropy");
  }

  // The table's gradient, as the input: its other part is that of the logits.
  void table_gradient() const {
    if (!s.has_few_words()) {
      return embedding_gradient(on, s, tokens, length, m.gh, grads + at.table);
    }
    pass(OneHot{tokens, m.one_hot, s.S, length, s.words}, s.words);
    weight_gradient(m.one_hot, m.gh, at.table, s.words, s.C(), 1);
  }

  // After the logits have become their gradients.
  template <int V>
  void backward() {
    const int64_t C = s.C(), W = s.words;
    weight_gradient(m.logits, m.y, at.table, W, C);
    product_backward(m.logits, at.table, m.narrow, W, C);
    norm_backward<V>(m.last, m.stats, at.norm, at.layer(s.layers - 1).down_bias, true);
    for (int64_t l = s.layers - 1; l >= 0; --l) {
      const LayerParameters p = at.layer(l);
      const LayerActivations& a = layers[l];
      weight_gradient(m.gh, a.act, p.down, C, 4 * C);
      if (V < 3) product_backward(m.gh, p.down, m.wide, C, 4 * C);
      if (V == 3) {
        float* const partial = partial_sums(gelu_parts(s.rows()), 4 * C, p.up_bias);
        product_gelu_backward(on, m.gh, w + p.down, a.pre, m.wide, partial, s.rows(), 4 * C, C);
      } else if (V == 1) {
        pass(GeluBackward{m.wide, a.pre, 4 * C}, 4 * C);
        summed_pass<1>(Sum{m.wide, 4 * C}, 4 * C, p.up_bias);
      } else {
        summed_pass<1>(GeluBackward{m.wide, a.pre, 4 * C}, 4 * C, p.up_bias);
      }
      weight_gradient(m.wide, a.y2, p.up, 4 * C, C);
      product_backward(m.wide, p.up, m.narrow, 4 * C, C);
      norm_backward<V>(a.mid, a.stats2, p.norm2, p.proj_bias);
      weight_gradient(m.gh, a.o, p.proj, C, C);
      product_backward(m.gh, p.proj, m.narrow, C, C);
      attention_backward(on, s, a, m.narrow, m);
      const FromHeads from{s.is_long() ? nullptr : m.gq, m.gq_rows, m.gk, m.gv, m.wide, s.S,
                           static_cast<int>(C)};
      if (V == 1) {
        pass(from, 3 * C);
        summed_pass<1>(Sum{m.wide, 3 * C}, 3 * C, p.qkv_bias);
      } else {
        summed_pass<1>(from, 3 * C, p.qkv_bias);
      }
      weight_gradient(m.wide, a.y1, p.qkv, 3 * C, C);
      product_backward(m.wide, p.qkv, m.narrow, 3 * C, C);
      norm_backward<V>(a.h, a.stats1, p.norm1, l > 0 ? at.layer(l - 1).down_bias : -1);
    }
    add_parts();
    table_gradient();
    const int64_t places = s.positions * C;
    places_kernel<<<grid_size(ceil_div<int64_t>(places, 256), "positions"), 256, 0, stream>>>(
        m.gh, grads + at.places, s.B, s.S, C, places);
    check_launch("places");
  }
};

// ---------------------------------------------------------------------------------------------
// Arguments.

// tokens: (B, S + extra).
Shape check_model(const Tensor& weights, const Tensor& tokens, int64_t extra, int64_t layers,
                  int64_t heads, int64_t words, int64_t positions) {
  const auto check_number = [](int64_t value, int64_t most, const char* name) {
    STD_TORCH_CHECK(value >= 1 && value <= most, name, ": expected 1 to ", most, ", got ", value);
  };
  check_number(layers, 1024, "layers");
  check_number(heads, MOST_HEADS, "heads");
  check_number(words, MOST_WORDS, "words");
  STD_TORCH_CHECK(words % EIGHT == 0, "words: expected a multiple of 8, got ", words);
  check_number(positions, MOST_POSITIONS, "positions");
  check(tokens, "tokens").on_gpu().dtype({ScalarType::Long}).rank(2).contiguous();
  const Shape s{tokens.size(0), tokens.size(1) - extra, layers, heads, words, positions};
  STD_TORCH_CHECK(s.B >= 1 && s.S >= 1 && s.S <= positions,
                  "tokens: expected at least one sequence ", "of ", 1 + extra, " to ",
                  positions + extra, " tokens, got shape ", shape_of(tokens));
  STD_TORCH_CHECK(s.B <= INT32_MAX / (s.S * 4 * s.C()), "tokens: too many for one step, ",
                  shape_of(tokens));
  check(weights, "weights").on_gpu().dtype({ScalarType::BFloat16}).rank(1).contiguous();
  check(weights, "weights").same_device(tokens, "tokens");
  const int64_t count = Parameters(s).count;
  STD_TORCH_CHECK(weights.size(0) == count, "weights: expected ", count,
                  " parameters for layers = ", layers, ", heads = ", heads, ", words = ", words,
                  " and positions = ", positions, ", got ", weights.size(0));
  STD_TORCH_CHECK(is_aligned(weights, 16), "weights: expected an address that is a multiple of 16 ",
                  "bytes; call .clone()");
  return s;
}

#define ARGUMENTS                                                                                 \
  Tensor weights, Tensor masters, Tensor grads, Tensor exp_avg, Tensor exp_avg_sq, Tensor step,   \
      const Tensor &schedule, const Tensor &tokens, int64_t layers, int64_t heads, int64_t words, \
      int64_t positions, double beta1, double beta2, double eps, double decay

template <int V>
Tensor train_step(ARGUMENTS) {
  const Shape s = check_model(weights, tokens, 1, layers, heads, words, positions);
  const auto check_buffer = [&](const Tensor& t, const char* name) {
    check(t, name)
        .on_gpu()
        .dtype({ScalarType::Float})
        .rank(1)
        .size(0, weights.size(0))
        .contiguous();
    check(t, name).same_device(weights, "weights");
    STD_TORCH_CHECK(is_aligned(t, 16), name,
                    ": expected an address that is a multiple of 16 bytes; ", "call .clone()");
  };
  check_buffer(masters, "masters");
  check_buffer(grads, "grads");
  check_buffer(exp_avg, "exp_avg");
  check_buffer(exp_avg_sq, "exp_avg_sq");
  check(step, "step").on_gpu().dtype({ScalarType::Long}).rank(1).size(0, 1);
  check(step, "step").same_device(weights, "weights");
  check(schedule, "schedule").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(schedule, "schedule").same_device(weights, "weights");
  STD_TORCH_CHECK(schedule.size(0) >= 1, "schedule: expected at least one learning rate, got none");
  STD_TORCH_CHECK(beta1 >= 0 && beta1 < 1, "beta1: expected a number in [0, 1), got ", beta1);
  STD_TORCH_CHECK(beta2 > 0 && beta2 < 1, "beta2: expected a number between 0 and 1, got ", beta2);
  STD_TORCH_CHECK(eps >= 0 && eps < 1, "eps: expected a number in [0, 1), got ", eps);
  STD_TORCH_CHECK(decay >= 0 && decay < 1e6, "decay: expected a number of 0 or more, got ", decay);

  const DeviceGuard guard(weights);
  if (V == 3) require_epilogues();
  const Tensor losses = allocate(weights, {s.B, s.S}, ScalarType::Float);
  Step of(weights, s, tokens, mutable_data<float>(grads));
  of.forward<V>();
  of.cross_entropy(mutable_data<float>(losses));
  of.backward<V>();
  coefficients_kernel<<<1, 1, 0, of.stream>>>(mutable_data<int64_t>(step), data<float>(schedule),
                                              schedule.size(0), of.m.coefficients,
                                              Adam{beta1, beta2, eps, decay});
  const int64_t fours = of.at.count / 4;
  adamw_kernel<<<grid_size(ceil_div<int64_t>(fours, ADAM_BLOCK), "weights"), ADAM_BLOCK, 0,
                 of.stream>>>(
      AdamBuffers{mutable_data<float4>(masters), mutable_data<float4>(exp_avg),
                  mutable_data<float4>(exp_avg_sq), data<float4>(grads),
                  mutable_data<Half>(weights)},
      of.m.coefficients, static_cast<float>(beta1), static_cast<float>(1 - beta1),
      static_cast<float>(beta2), static_cast<float>(1 - beta2), static_cast<float>(eps), fours,
      of.at.matrices_end / 4);
  check_launch("adamw");
  return losses;
}

#define PASSED                                                                                \
  weights, masters, grads, exp_avg, exp_avg_sq, step, schedule, tokens, layers, heads, words, \
      positions, beta1, beta2, eps, decay

Tensor train_step_v1_separate(ARGUMENTS) {
  return train_step<1>(PASSED);
}
Tensor train_step_v2_fused(ARGUMENTS) {
  return train_step<2>(PASSED);
}

Tensor train_step_v3_epilogues(ARGUMENTS) {
  return train_step<3>(PASSED);
}

// The logits of all positions, (B, S, words): for a validation and for samples.
Tensor gpt_logits(const Tensor& weights, const Tensor& tokens, int64_t layers, int64_t heads,
                  int64_t words, int64_t positions) {
  const Shape s = check_model(weights, tokens, 0, layers, heads, words, positions);
  const DeviceGuard guard(weights);
  const Tensor logits = allocate(weights, {s.B, s.S, s.words});
  Step of(weights, s, tokens, nullptr);
  of.m.logits = mutable_data<Half>(logits);
  of.forward<2>();
  return logits;
}

// Rows of `tokens` become pieces of the text that begin anywhere, by Philox: the step's number and
// the seed are all that the next batch depends on. T: of a character, or of a token.
template <typename T>
__global__ void draw_batch_kernel(const T* __restrict__ text, const int64_t* __restrict__ step,
                                  int64_t* __restrict__ tokens, int64_t starts, int64_t length,
                                  uint64_t seed) {
  const uint4 random = philox::random4(seed, blockIdx.x, static_cast<uint64_t>(*step));
  const uint64_t number = uint64_t{random.x} << 32 | random.y;
  const auto start = static_cast<int64_t>(number % static_cast<uint64_t>(starts));
  for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
    tokens[blockIdx.x * length + i] = text[start + i];
  }
}

void draw_batch(const Tensor& text, const Tensor& step, Tensor tokens, int64_t seed) {
  check(text, "text").on_gpu().dtype({ScalarType::Byte, ScalarType::Int}).rank(1).contiguous();
  check(step, "step")
      .on_gpu()
      .dtype({ScalarType::Long})
      .rank(1)
      .size(0, 1)
      .same_device(text, "text");
  check(tokens, "tokens").on_gpu().dtype({ScalarType::Long}).rank(2).contiguous();
  check(tokens, "tokens").same_device(text, "text");
  const int64_t length = tokens.size(1), starts = text.size(0) - length + 1;
  STD_TORCH_CHECK(starts >= 1, "text: expected at least ", length, " characters, got ",
                  text.size(0));
  if (tokens.numel() == 0) return;
  const DeviceGuard guard(text);
  const auto draw = [&]<typename T>(T) {
    draw_batch_kernel<<<grid_size(tokens.size(0), "tokens"), 128, 0, current_stream(text)>>>(
        data<T>(text), data<int64_t>(step), mutable_data<int64_t>(tokens), starts, length,
        static_cast<uint64_t>(seed));
  };
  text.scalar_type() == ScalarType::Byte ? draw(uint8_t{}) : draw(int32_t{});
  check_launch("draw_batch");
}

// ---------------------------------------------------------------------------------------------

#define MODEL "int layers, int heads, int words, int positions"
#define STEP                                                                        \
  "(Tensor(a!) weights, Tensor(b!) masters, Tensor(c!) grads, Tensor(d!) exp_avg, " \
  "Tensor(e!) exp_avg_sq, Tensor(f!) step, Tensor schedule, Tensor tokens, " MODEL  \
  ", float "                                                                        \
  "beta1, float beta2, float eps, float decay) -> Tensor"

RUNG(day86, train_step_v1_separate, STEP);
RUNG(day86, train_step_v2_fused, STEP);
RUNG(day86, train_step_v3_epilogues, STEP);
RUNG(day86, gpt_logits, "(Tensor weights, Tensor tokens, " MODEL ") -> Tensor");
RUNG(day86, draw_batch, "(Tensor text, Tensor step, Tensor(a!) tokens, int seed) -> ()");

// Day 86: where everything of a training step lies: one buffer of parameters, one of activations.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

using Half = __nv_bfloat16;

constexpr int HEAD = 64;        // columns per head
constexpr int EIGHT = 8;        // elements of 16 bytes
constexpr int MOST_HEADS = 16;  // so that a warp has a row of at most 1024 columns in registers
constexpr int FEW_WORDS = 256;  // so that a warp has a row of logits in registers
constexpr int MOST_WORDS = 1 << 20;   // GPT-2 has 50,257
constexpr int FEW_POSITIONS = 256;    // see attention.cu
constexpr int MOST_POSITIONS = 1024;  // GPT-2's

// B sequences of S tokens, rows = B · S; C = heads · HEAD columns.
struct Shape {
  int64_t B, S, layers, heads, words, positions;

  int64_t rows() const { return B * S; }
  int64_t C() const { return heads * HEAD; }
  bool has_few_words() const { return words <= FEW_WORDS; }
  bool is_long() const { return S > FEW_POSITIONS; }
};

// Hands out the parts of a buffer, one after the other.
struct Cursor {
  int64_t at = 0;

  int64_t take(int64_t count) {
    const int64_t mine = at;
    at += count;
    return mine;
  }
};

// Offsets of a layer's parameters, and of those that exist once. Matrices come first, so that
// weight decay, which vectors do not get, ends at one offset.
struct LayerParameters {
  int64_t qkv, proj, up, down;  // (3C, C), (C, C), (4C, C), (C, 4C)
  int64_t norm1, shift1, qkv_bias, proj_bias, norm2, shift2, up_bias, down_bias;
};

struct Parameters {
  Shape of;
  int64_t table = 0, places, matrices_end, vectors, norm, shift, count;

  explicit Parameters(const Shape& s) : of(s) {
    const int64_t C = s.C();
    places = s.words * C;
    matrices_end = places + s.positions * C + s.layers * 12 * C * C;
    norm = matrices_end + s.layers * 13 * C;
    shift = norm + C;
    count = shift + C;
    vectors = matrices_end;
  }

  LayerParameters layer(int64_t l) const {
    const int64_t C = of.C();
    Cursor m{places + of.positions * C + l * 12 * C * C}, v{vectors + l * 13 * C};
    LayerParameters p;
    p.qkv = m.take(3 * C * C), p.proj = m.take(C * C);
    p.up = m.take(4 * C * C), p.down = m.take(4 * C * C);
    p.norm1 = v.take(C), p.shift1 = v.take(C), p.qkv_bias = v.take(3 * C), p.proj_bias = v.take(C);
    p.norm2 = v.take(C), p.shift2 = v.take(C), p.up_bias = v.take(4 * C), p.down_bias = v.take(C);
    return p;
  }
};

// ---------------------------------------------------------------------------------------------
// Activations.

// What a layer keeps for its backward pass.
struct LayerActivations {
  Half *h, *y1;             // (rows, C): the layer's input, and its first norm
  Half *q, *k, *v;          // (B, heads, S, HEAD)
  Half *o, *mid, *y2;       // (rows, C): attention's output, the sum with it, its norm
  Half *pre, *act;          // (rows, 4C): before and after GELU
  float* lse;               // (B, heads, S)
  float2 *stats1, *stats2;  // (rows): mean and 1 / standard deviation
};

constexpr int NORM_BLOCKS = 264;  // of the pass backward through a norm: two for each of an H200's
                                  // 132 multiprocessors
constexpr int64_t PARTIAL = 1 << 16;  // column sums of all blocks of one pass, at most

// The parts of one buffer. Without a base only `bytes` is of use.
struct Activations {
  LayerActivations* layers;
  Half *last, *y;          // (rows, C)
  Half *logits, *one_hot;  // (rows, words): one_hot, for few words: tokens as rows of 0 with a 1
  float2* stats;
  Half *narrow, *wide;      // (rows, C), (rows, 4C): results of products that nothing keeps
  Half *gh, *go, *gk, *gv;  // (rows, C)
  float* gq;        // (B, heads, tiles of 64 rows, 64, HEAD), as fragments; of long sequences
  Half* gq_rows;    // (B, heads, S, HEAD) in its place
  float2* numbers;  // (B, heads, S)
  float* partial;   // sums over parts of the rows, of all passes backward
  float* coefficients;
  int64_t bytes = 0;

  Activations(const Shape& s, char* base, LayerActivations* of_layers) : layers(of_layers) {
    const int64_t rows = s.rows(), C = s.C(), heads = s.B * s.heads;
    const auto take = [&]<typename T>(T*& to, int64_t count) {
      to = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base) + bytes);
      bytes += ceil_div<int64_t>(count * sizeof(T), 256) * 256;
    };
    for (int64_t l = 0; l < s.layers; ++l) {
      LayerActivations& a = layers[l];
      for (Half** each : {&a.h, &a.y1, &a.q, &a.k, &a.v, &a.o, &a.mid, &a.y2})
        take(*each, rows * C);
      for (Half** each : {&a.pre, &a.act}) take(*each, rows * 4 * C);
      take(a.lse, heads * s.S);
      take(a.stats1, rows), take(a.stats2, rows);
    }
    for (Half** each : {&last, &y, &narrow, &gh, &go, &gk, &gv}) take(*each, rows * C);
    take(logits, rows * s.words);
    take(one_hot, s.has_few_words() ? rows * s.words : 0);
    take(wide, rows * 4 * C);
    take(stats, rows);
    take(gq, heads * ceil_div<int64_t>(s.S, 64) * 64 * HEAD);
    gq_rows = reinterpret_cast<Half*>(gq);
    take(numbers, heads * s.S);
    // Of a layer v1 has six passes, v2 two and those through norms, v3 one and a product.
    const int64_t of_layer =
        6 * PARTIAL + 2 * NORM_BLOCKS * 3 * C + ceil_div<int64_t>(rows, 128) * 16 * C;
    take(partial, (s.layers + 1) * of_layer);
    take(coefficients, 16);
  }
};

// ---------------------------------------------------------------------------------------------
// In attention.cu. on: a tensor of the step, for its GPU.

void attention_forward(const Tensor& on, const Shape& s, const LayerActivations& a);
// From g (rows, C), the gradient of a.o: m.gq as fragments of sums, or m.gq_rows where sequences
// are long; m.gk and m.gv (B, heads, S, HEAD).
void attention_backward(const Tensor& on, const Shape& s, const LayerActivations& a, const Half* g,
                        const Activations& m);

// In attention_long.cu: attention_forward on cards with wgmma.
void attention_forward_long(const Tensor& on, const Shape& s, const LayerActivations& a);

// ---------------------------------------------------------------------------------------------
// In many_words.cu, for more words than FEW_WORDS.

// A row of m.logits becomes its gradient, and gets its loss in losses (rows).
void cross_entropy_of_many(const Tensor& on, const Shape& s, const int64_t* tokens, Half* logits,
                           float* losses);
// grad (words, C) += the rows of g (rows, C), each at its token. tokens: (B, length).
void embedding_gradient(const Tensor& on, const Shape& s, const int64_t* tokens, int64_t length,
                        const Half* g, float* grad);

// In products.cu: x (rows, K), weight (N, K), bias (N). On cards with wgmma.

void require_epilogues();
// pre = x · weightᵀ + bias, act = gelu(pre)
void product_gelu(const Tensor& on, const Half* x, const Half* weight, const Half* bias, Half* pre,
                  Half* act, int64_t rows, int64_t N, int64_t K);
// out = x · weightᵀ + bias + residual
void product_add(const Tensor& on, const Half* x, const Half* weight, const Half* bias,
                 const Half* residual, Half* out, int64_t rows, int64_t N, int64_t K);
// out = (g · weight) · gelu'(pre), g (rows, K), weight (K, N), and the sums of out's columns over
// gelu_parts(rows) parts of the rows: partial, (parts, N).
int64_t gelu_parts(int64_t rows);
void product_gelu_backward(const Tensor& on, const Half* g, const Half* weight, const Half* pre,
                           Half* out, float* partial, int64_t rows, int64_t N, int64_t K);

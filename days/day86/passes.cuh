// Day 86: the passes of a training step over matrices of bf16: what they do to eight columns of a
// row, and the kernel that goes over the rows and adds up columns.
#pragma once

#include "common/cuda/chunk.cuh"    // taught in days 35 and 42
#include "days/day30/row_sums.cuh"  // taught in day 30
#include "days/day83/elements.cuh"  // GELU: taught in days 30 and 83
#include "days/day86/plan.cuh"

#include <cmath>
#include <cstring>

using Floats = Chunk<float, EIGHT>;

__device__ __forceinline__ Floats load8(const Half* from) {
  return widened(load_raw(reinterpret_cast<const Chunk<Half, EIGHT>*>(from)));
}

__device__ __forceinline__ void store8(Half* to, const Floats& x) {
  Chunk<Half, EIGHT> rounded;
#pragma unroll
  for (int e = 0; e < EIGHT; ++e) rounded.at[e] = __float2bfloat16_rn(x.at[e]);
  uint4 words;
  memcpy(&words, &rounded, sizeof words);
  *reinterpret_cast<uint4*>(to) = words;
}

constexpr int WIDE = 8, DEEP = 32;  // threads of a block: 64 columns of 32 rows at a time

// f(row, column, sums) for eight columns from `column` on; partial[blockIdx.y] = the sums over the
// block's rows, (SUMS, cols).
template <int SUMS, typename F>
__global__ void __launch_bounds__(WIDE* DEEP)
    pass_kernel(const F f, float* __restrict__ partial, int64_t rows, int cols) {
  const int col = (static_cast<int>(blockIdx.x) * WIDE + threadIdx.x) * EIGHT;
  Floats sums[SUMS + 1] = {};  // an array needs an element
  if (col < cols) {
    for (int64_t r = blockIdx.y * DEEP + threadIdx.y; r < rows; r += gridDim.y * DEEP) {
      f(r, col, sums);
    }
  }
  if constexpr (SUMS > 0) {
    __shared__ float shared[DEEP][WIDE * EIGHT];
    const int mine = threadIdx.y * WIDE + threadIdx.x;
    for (int s = 0; s < SUMS; ++s) {
#pragma unroll
      for (int e = 0; e < EIGHT; ++e) shared[threadIdx.y][threadIdx.x * EIGHT + e] = sums[s].at[e];
      __syncthreads();  // the sums of all rows of threads are stored before they are added
      const int to = static_cast<int>(blockIdx.x) * WIDE * EIGHT + mine;
      if (mine < WIDE * EIGHT && to < cols) {
        float sum = 0;
        for (int y = 0; y < DEEP; ++y) sum += shared[y][mine];
        partial[(int64_t{blockIdx.y} * SUMS + s) * cols + to] = sum;
      }
      __syncthreads();  // all are added before the next ones overwrite them
    }
  }
}

// ---------------------------------------------------------------------------------------------
// The sums of all passes at the end of a step, in one launch per SUMS_AT_ONCE passes.

struct PartialSums {
  const float* partial;  // (parts, sums)
  float* to;             // (sums)
  int64_t parts, sums;
};

constexpr int SUMS_AT_ONCE = 64;  // of 32 bytes each, in the arguments of a kernel
struct ManySums {
  PartialSums of[SUMS_AT_ONCE];
};

// to[i] = the sum of partial[part][i], for the blockIdx.y-th sums; the order is that of day 30.
__global__ void __launch_bounds__(32 * SUM_ROWS)
    add_parts_kernel(const __grid_constant__ ManySums all) {
  __shared__ float shared[SUM_ROWS][32];
  const PartialSums& s = all.of[blockIdx.y];
  const int64_t i = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  for (int64_t p = threadIdx.y; p < s.parts && i < s.sums; p += SUM_ROWS) {
    sum += s.partial[p * s.sums + i];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // all rows of threads have stored their sums before the first row reads them
  if (threadIdx.y > 0 || i >= s.sums) return;
  for (int y = 1; y < SUM_ROWS; ++y) sum += shared[y][threadIdx.x];
  s.to[i] = sum;
}

// ---------------------------------------------------------------------------------------------
// What a pass does. v1 has one operation per pass, v2 takes those together that meet.

// The input of the first layer; NaN for a token that names no word. tokens: of each sequence
// `length`, of which S are read.
struct Embed {
  const Half *table, *places;
  const int64_t* tokens;
  Half* to;
  int64_t S, length, words, C;

  __device__ void operator()(int64_t r, int col, Floats*) const {
    const int64_t token = tokens[r / S * length + r % S];
    Floats sum = load8(places + r % S * C + col);
    const bool valid = token >= 0 && token < words;
    const Floats word = load8(table + (valid ? token * C : 0) + col);
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) sum.at[e] = valid ? sum.at[e] + word.at[e] : NAN;
    store8(to + r * C + col, sum);
  }
};

// Tokens as rows of zeros with a one: their transpose, times gradients, is the table's gradient.
struct OneHot {
  const int64_t* tokens;
  Half* to;
  int64_t S, length, words;

  __device__ void operator()(int64_t r, int col, Floats*) const {
    const int64_t token = tokens[r / S * length + r % S];
    Floats row;
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) row.at[e] = token == col + e ? 1.0f : 0.0f;
    store8(to + r * words + col, row);
  }
};

struct AddBias {
  Half* x;
  const Half* bias;
  int64_t cols;

  __device__ void operator()(int64_t r, int col, Floats*) const {
    Floats sum = load8(x + r * cols + col);
    const Floats b = load8(bias + col);
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) sum.at[e] += b.at[e];
    store8(x + r * cols + col, sum);
  }
};

// to = a + b; `to` may be either.
struct Add {
  const Half *a, *b;
  Half* to;
  int64_t cols;

  __device__ void operator()(int64_t r, int col, Floats*) const {
    Floats sum = load8(a + r * cols + col);
    const Floats other = load8(b + r * cols + col);
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) sum.at[e] += other.at[e];
    store8(to + r * cols + col, sum);
  }
};

// act = gelu(pre), after pre += bias if there is one.
struct Gelu {
  Half *pre, *act;
  const Half* bias;
  int64_t cols;

  __device__ void operator()(int64_t r, int col, Floats*) const {
    Floats x = load8(pre + r * cols + col);
    if (bias) {
      const Floats b = load8(bias + col);
#pragma unroll
      for (int e = 0; e < EIGHT; ++e)
        x.at[e] = __bfloat162float(__float2bfloat16_rn(x.at[e] + b.at[e]));
      store8(pre + r * cols + col, x);
    }
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) x.at[e] = gelu<Half>(x.at[e]);
    store8(act + r * cols + col, x);
  }
};

// g *= gelu'(pre), and the sums of the products.
struct GeluBackward {
  Half* g;
  const Half* pre;
  int64_t cols;

  __device__ void operator()(int64_t r, int col, Floats* sums) const {
    Floats x = load8(g + r * cols + col);
    const Floats p = load8(pre + r * cols + col);
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) {
      x.at[e] *= gelu_derivative<Half>(p.at[e]);
      sums[0].at[e] += x.at[e];
    }
    store8(g + r * cols + col, x);
  }
};

struct Sum {
  const Half* g;
  int64_t cols;

  __device__ void operator()(int64_t r, int col, Floats* sums) const {
    const Floats x = load8(g + r * cols + col);
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) sums[0].at[e] += x.at[e];
  }
};

// The gradients of a norm's weight and bias: sums of g · (h - mean) · rstd and of g.
struct NormSums {
  const Half *g, *h;
  const float2* stats;
  int64_t cols;

  __device__ void operator()(int64_t r, int col, Floats* sums) const {
    const Floats x = load8(g + r * cols + col), of = load8(h + r * cols + col);
    const float2 s = stats[r];
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) {
      sums[0].at[e] += x.at[e] * ((of.at[e] - s.x) * s.y);
      sums[1].at[e] += x.at[e];
    }
  }
};

// Where eight columns of a row of (rows, 3C) belong: which of q, k and v, and where in it.
struct HeadPlace {
  int which;
  int64_t head, s;  // of all sequences' heads; position
  int d;

  __device__ HeadPlace(int64_t r, int col, int64_t S, int C)
      : which(col / C), head(r / S * (C / HEAD) + col % C / HEAD), s(r % S), d(col % HEAD) {}
};

// qkv, plus a bias if there is one, to q, k and v as (B, heads, S, HEAD).
struct ToHeads {
  const Half *qkv, *bias;
  Half *q, *k, *v;
  int64_t S;
  int C;

  __device__ void operator()(int64_t r, int col, Floats*) const {
    Floats x = load8(qkv + r * 3 * C + col);
    if (bias) {
      const Floats b = load8(bias + col);
#pragma unroll
      for (int e = 0; e < EIGHT; ++e) x.at[e] += b.at[e];
    }
    const HeadPlace p(r, col, S, C);
    Half* const to = p.which == 0 ? q : p.which == 1 ? k : v;
    store8(to + (p.head * S + p.s) * HEAD + p.d, x);
  }
};

// The way back, for the gradients, and their sums. gq lies as day 27's kernel adds it: per tile of
// 64 rows fragments of 16 × 8, in which lane 4g + t has columns 2t and 2t + 1 of rows g and g + 8.
// It is null where gq_rows has it.
struct FromHeads {
  const float* gq;
  const Half *gq_rows, *gk, *gv;
  Half* to;
  int64_t S;
  int C;

  __device__ void operator()(int64_t r, int col, Floats* sums) const {
    const HeadPlace p(r, col, S, C);
    Floats x;
    if (p.which == 0 && gq) {
      const int row = static_cast<int>(p.s % 64), g = row % 8, half = row % 16 / 8;
      const int64_t tile = p.head * ((S + 63) / 64) + p.s / 64;
      const float* const from =
          gq + ((tile * 4 + row / 16) * (HEAD / 8) + p.d / 8) * 128 + 16 * g + 2 * half;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float2 two = *reinterpret_cast<const float2*>(from + 4 * t);
        x.at[2 * t] = two.x * 0.125f;
        x.at[2 * t + 1] = two.y * 0.125f;
      }
    } else {
      const Half* const from = p.which == 0 ? gq_rows : p.which == 1 ? gk : gv;
      x = load8(from + (p.head * S + p.s) * HEAD + p.d);
    }
    store8(to + r * 3 * C + col, x);
#pragma unroll
    for (int e = 0; e < EIGHT; ++e) sums[0].at[e] += x.at[e];
  }
};

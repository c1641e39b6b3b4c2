// Day 86: AdamW (day 81) on one buffer, of which only the first part decays. The step's number lies
// on the device, so that a captured graph counts.
#pragma once

#include "common/cuda/chunk.cuh"  // taught in days 35 and 42
#include "days/day86/plan.cuh"

#include <cstring>

struct Adam {
  double beta1, beta2, eps, decay;
};

__global__ void coefficients_kernel(int64_t* step, const float* schedule, int64_t length, float* to,
                                    const Adam a) {
  const int64_t t = *step + 1;
  const double rate = schedule[t <= length ? max(t, int64_t{1}) - 1 : length - 1];
  to[0] = static_cast<float>(rate / (1 - pow(a.beta1, static_cast<double>(t))));
  to[1] = static_cast<float>(1 / sqrt(1 - pow(a.beta2, static_cast<double>(t))));
  to[2] = static_cast<float>(1 - rate * a.decay);
  *step = t;
}

constexpr int ADAM_BLOCK = 256;

struct AdamBuffers {
  float4 *p, *m, *v;
  const float4* g;
  Half* weights;
};

__global__ void __launch_bounds__(ADAM_BLOCK)
    adamw_kernel(const AdamBuffers b, const float* __restrict__ coefficients, float beta1,
                 float rest1, float beta2, float rest2, float eps, int64_t fours, int64_t decayed) {
  const int64_t i = int64_t{blockIdx.x} * ADAM_BLOCK + threadIdx.x;
  if (i >= fours) return;
  const float4 in[4] = {b.p[i], b.m[i], b.v[i], b.g[i]};
  float p[4], m[4], v[4], g[4];
  memcpy(p, &in[0], 16), memcpy(m, &in[1], 16), memcpy(v, &in[2], 16), memcpy(g, &in[3], 16);
  const float rate = coefficients[0], scale = coefficients[1];
  const float shrink = i < decayed ? coefficients[2] : 1.0f;
  Chunk<Half, 4> rounded;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    m[e] = fmaf(beta1, m[e], rest1 * g[e]);
    v[e] = fmaf(beta2, v[e], rest2 * g[e] * g[e]);
    p[e] = fmaf(shrink, p[e], -rate * (m[e] / fmaf(sqrtf(v[e]), scale, eps)));
    rounded.at[e] = __float2bfloat16_rn(p[e]);
  }
  b.p[i] = make_float4(p[0], p[1], p[2], p[3]);
  b.m[i] = make_float4(m[0], m[1], m[2], m[3]);
  b.v[i] = make_float4(v[0], v[1], v[2], v[3]);
  uint2 words;
  memcpy(&words, &rounded, sizeof words);
  reinterpret_cast<uint2*>(b.weights)[i] = words;
}

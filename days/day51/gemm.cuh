// D = α · op(A) · op(B) + β · C: arguments, their checks, and stores; for days 51 and 52.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <cfloat>
#include <cmath>
#include <optional>

// op(A) or op(B) as a matrix (mn, k), where mn is a row of op(A) or a column of op(B). So the same
// code reads both operands, transposed or not.
struct Operand {
  const float* at;
  int64_t size, K;              // mn in [0, size), k in [0, K)
  int64_t mn_stride, k_stride;  // in elements; one of them is 1

  __device__ bool k_major() const { return k_stride == 1; }  // adjacent in memory along k
  __device__ bool has(int64_t mn, int64_t k) const { return mn < size && k < K; }
  __device__ const float* address(int64_t mn, int64_t k) const {
    return at + mn * mn_stride + k * k_stride;
  }
};

struct Gemm {
  Operand a, b;
  const float* c;  // (M, N); null where beta is 0, so that NaN in C does not count then
  float* d;        // (M, N)
  int64_t M, N, K;
  float alpha, beta;
};

// d[m, n] from the sum over k, if there is such an element.
__device__ inline void store(const Gemm& p, int64_t m, int64_t n, float sum) {
  if (m >= p.M || n >= p.N) return;
  const int64_t i = m * p.N + n;
  p.d[i] = p.alpha * sum + p.beta * (p.c ? p.c[i] : 0.0f);
}

// The elements (m, n) to (m, n + 3) of D.
template <bool ALIGNED>
__device__ void store_pack(const Gemm& p, int64_t m, int64_t n, const float* sum) {
  if constexpr (ALIGNED) {
    if (m >= p.M || n >= p.N) return;
    const int64_t i = m * p.N + n;
    const float4 c = p.c ? *reinterpret_cast<const float4*>(p.c + i) : float4{};
    const float4 d = {p.alpha * sum[0] + p.beta * c.x, p.alpha * sum[1] + p.beta * c.y,
                      p.alpha * sum[2] + p.beta * c.z, p.alpha * sum[3] + p.beta * c.w};
    *reinterpret_cast<float4*>(p.d + i) = d;
  } else {
    for (int e = 0; e < 4; ++e) store(p, m, n + e, sum[e]);
  }
}

// x as it is stored: (size, K) if it is K-major, else (K, size).
inline Operand make_operand(const Tensor& x, bool k_major) {
  const int64_t rows = x.size(0), cols = x.size(1);
  return k_major ? Operand{data<float>(x), rows, cols, cols, 1}
                 : Operand{data<float>(x), cols, rows, 1, cols};
}

inline float make_factor(double value, const char* name) {
  STD_TORCH_CHECK(std::abs(value) <= FLT_MAX, name, ": expected a finite fp32 number, got ", value);
  return static_cast<float>(value);
}

// Whether rows in memory, of so many elements, consist of whole packs of 16 bytes, all aligned.
inline bool has_packs(const float* at, int64_t row) {
  return row % 4 == 0 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
}
inline bool has_packs(const Operand& x) {
  return has_packs(x.at, x.k_stride == 1 ? x.K : x.size);
}
inline bool has_packs(const Gemm& p) {
  return has_packs(p.a) && has_packs(p.b) && has_packs(p.c, p.N);
}

struct Arguments {
  const Tensor &a, &b;
  const std::optional<Tensor>& c;
  bool a_transposed, b_transposed;
  double alpha, beta;
};

// Checks the arguments and calls launch(gemm, stream) unless D is empty. K may be 0.
template <typename Launch>
Tensor multiply(const Arguments& of, const char* kernel, Launch&& launch) {
  const auto matrix = [&](const Tensor& x, const char* name) {
    check(x, name).on_gpu().dtype({ScalarType::Float}).rank(2).contiguous().same_device(of.a, "a");
  };
  matrix(of.a, "a"), matrix(of.b, "b");
  Gemm p{make_operand(of.a, !of.a_transposed), make_operand(of.b, of.b_transposed)};
  p.M = p.a.size, p.N = p.b.size, p.K = p.a.K;
  check(of.b, "b").size(of.b_transposed ? 1 : 0, p.K);
  p.alpha = make_factor(of.alpha, "alpha"), p.beta = make_factor(of.beta, "beta");
  STD_TORCH_CHECK(of.c || p.beta == 0, "beta: expected 0 where there is no c, got ", of.beta);
  if (of.c) {
    matrix(*of.c, "c"), check(*of.c, "c").size(0, p.M).size(1, p.N);
    if (p.beta != 0) p.c = data<float>(*of.c);
  }
  const DeviceGuard guard(of.a);
  Tensor d = allocate(of.a, {p.M, p.N});
  if (d.numel() == 0) return d;  // a grid of no blocks is an error
  p.d = mutable_data<float>(d);
  launch(p, current_stream(of.a));
  check_launch(kernel);
  return d;
}

// What all rungs of day 27 share: the arguments and their checks, δ of each row, products of tiles.
#pragma once

#include "common/cuda/binding.cuh"
#include "common/cuda/capability.cuh"
#include "common/cuda/mma_tiles.cuh"  // taught in day 26
#include "common/cuda/pack.cuh"       // taught in day 2
#include "common/cuda/ptx/exp2.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"    // taught in day 23

#include <cmath>
#include <tuple>

constexpr int BM = 64;  // rows of q per tile
constexpr float LOG2_E = 1.44269504f;

// What a row of q needs beside q and go, written by the kernel below.
struct alignas(8) RowNumbers {
  float lse;    // times log2 e; +inf for a row that sees no key, so that its p becomes 0
  float delta;  // δ
};

template <typename T>
struct Given {
  const T *go, *q, *k, *v;
  const RowNumbers* rows;
  int Sq, Sk;
  int below;    // row i sees key j <= i + below: Sk - Sq with a causal mask, else Sk
  float scale;  // 1 / sqrt(D)
};

// ---------------------------------------------------------------------------------------------
// δ and lse, as all rungs need them. D/8 lanes read one row, 16 bytes each.

constexpr int DELTA_BLOCK = 256;

template <typename T, int D>
__global__ void attention_row_numbers_kernel(const T* __restrict__ go, const T* __restrict__ o,
                                             const float* __restrict__ lse,
                                             const float* __restrict__ glse,
                                             RowNumbers* __restrict__ out, int64_t rows) {
  constexpr int LANES = D / Pack<T>::N;
  const int64_t e = int64_t{blockIdx.x} * DELTA_BLOCK + threadIdx.x, row = e / LANES;
  float sum = 0;
  if (row < rows) {
    const auto x = reinterpret_cast<const Pack<T>*>(go)[e];
    const auto y = reinterpret_cast<const Pack<T>*>(o)[e];
#pragma unroll
    for (int i = 0; i < Pack<T>::N; ++i) {
      sum += static_cast<float>(x.at[i]) * static_cast<float>(y.at[i]);
    }
  }
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(FULL_WARP, sum, distance);
  }
  if (row < rows && e % LANES == 0) {
    const float log_sum = lse[row] == -INFINITY ? INFINITY : lse[row] * LOG2_E;
    out[row] = {log_sum, sum - glse[row]};
  }
}

// ---------------------------------------------------------------------------------------------
// Products of a warp. Fragments are those of common/cuda/ptx/mma.cuh.

// c (16 × 8·N8) = a · bᵀ. of_a(fragment, d): columns [d, d + 16) of 16 rows of a; b: a tile.
template <int D, typename T, int N8, typename F>
__device__ __forceinline__ void multiply_rows(float (&c)[N8][4], F of_a, const T* b) {
#pragma unroll
  for (auto& tile : c) tile[0] = tile[1] = tile[2] = tile[3] = 0;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[4], of_b[2][2];
    of_a(a, d);
#pragma unroll
    for (int n = 0; n < N8; n += 2) {
      tiles::load_b_transposed<D>(of_b, b, 8 * n, d);
      ptx::mma_m16n8k16<T>(c[n], a, of_b[0], c[n]);
      ptx::mma_m16n8k16<T>(c[n + 1], a, of_b[1], c[n + 1]);
    }
  }
}

// c (16 × D) += a · b. a: K16 fragments of 16 × 16; b: a tile with 16·K16 rows of D.
template <int D, int K16, typename T>
__device__ __forceinline__ void multiply_add(float (&c)[D / 8][4], const uint32_t (&a)[K16][4],
                                             const T* b) {
#pragma unroll
  for (int k = 0; k < K16; ++k) {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t of_b[2][2];
      tiles::load_b<D>(of_b, b, 16 * k, 8 * n);
      ptx::mma_m16n8k16<T>(c[n], a[k], of_b[0], c[n]);
      ptx::mma_m16n8k16<T>(c[n + 1], a[k], of_b[1], c[n + 1]);
    }
  }
}

// Stores fragments c (16 × D), times `factor`, as rows [first, first + 16) of a matrix of `rows`.
template <int D, typename T>
__device__ void store_rows(T* to, int first, int rows, const float (&c)[D / 8][4], float factor) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + g + 8 * half;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<uint32_t*>(to + int64_t{row} * D + 8 * n + 2 * t) =
          tiles::pack<T>(c[n][2 * half] * factor, c[n][2 * half + 1] * factor);
    }
  }
}

// ---------------------------------------------------------------------------------------------
// Arguments.

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // gq, gk, gv

struct Arguments {
  const Tensor &go, &glse, &q, &k, &v, &o, &lse;
  bool causal;
};

inline void check_matrix(const Tensor& t, const char* name) {
  check(t, name).on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(4).contiguous();
  STD_TORCH_CHECK(is_aligned(t, 16), name,
                  ": expected an address that is a multiple of 16 bytes; call .clone()");
}

// lse or its gradient: one fp32 number per row of q.
inline void check_rows(const Tensor& t, const char* name, const Tensor& q) {
  check(t, name).on_gpu().dtype({ScalarType::Float}).rank(3).contiguous().same_device(q, "q");
  for (int64_t dim = 0; dim < 3; ++dim) check(t, name).size(dim, q.size(dim));
}

constexpr int64_t MOST_ROWS = 1 << 30;  // so that sums of two positions fit into 32 bits

inline void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_matrix(q, "q");
  STD_TORCH_CHECK(q.size(3) == 64 || q.size(3) == 128,
                  "q: expected 64 or 128 elements in the last dimension, got shape ", shape_of(q));
  STD_TORCH_CHECK(q.size(2) < MOST_ROWS, "q: expected less than 2^30 rows, got ", shape_of(q));
  check_matrix(k, "k");
  STD_TORCH_CHECK(k.size(2) < MOST_ROWS, "k: expected less than 2^30 rows, got ", shape_of(k));
  check(k, "k").dtype({q.scalar_type()}).same_device(q, "q");
  for (const int64_t dim : {0, 1, 3}) check(k, "k").size(dim, q.size(dim));
  check_matrix(v, "v");
  check(v, "v").like(k, "k");
}

inline void check_all(const Arguments& a) {
  check_inputs(a.q, a.k, a.v);
  check_matrix(a.o, "o");
  check(a.o, "o").like(a.q, "q");
  check_matrix(a.go, "go");
  check(a.go, "go").like(a.q, "q");
  check_rows(a.lse, "lse", a.q);
  check_rows(a.glse, "glse", a.q);
}

inline void clear(const Tensor& t) {
  if (t.numel() == 0) return;
  check_cuda(
      cudaMemsetAsync(t.mutable_data_ptr(), 0, t.numel() * t.element_size(), current_stream(t)),
      "cudaMemsetAsync");
}

// Calls f(element, dimension): a zero of the dtype's type, and D as an integral_constant.
template <typename F>
void dispatch(const Tensor& q, F f) {
  const auto with_type = [&](auto zero) {
    if (q.size(3) == 64) return f(zero, std::integral_constant<int, 64>{});
    f(zero, std::integral_constant<int, 128>{});
  };
  if (q.scalar_type() == ScalarType::Half) return with_type(__half{});
  with_type(__nv_bfloat16{});
}

// Checks the inputs, allocates the gradients, computes the rows' numbers, and calls launch(given,
// D as an integral_constant, heads, gradients).
template <typename F>
Gradients backward(const Arguments& a, const char* name, F launch) {
  check_all(a);
  const DeviceGuard guard(a.q);
  require_capability(8, 0, "mma of 16×8×16");
  Gradients made{allocate_like(a.q), allocate_like(a.k), allocate_like(a.v)};
  if (a.q.numel() == 0 || a.k.numel() == 0) {  // sums of nothing
    for (const Tensor& t : {std::get<0>(made), std::get<1>(made), std::get<2>(made)}) clear(t);
    return made;
  }
  const int Sq = static_cast<int>(a.q.size(2)), Sk = static_cast<int>(a.k.size(2));
  const int64_t heads = a.q.size(0) * a.q.size(1), rows = heads * Sq;
  const Tensor numbers = allocate(a.lse, {rows, 2}, ScalarType::Float);
  dispatch(a.q, [&](auto zero, auto dimension) {
    using T = decltype(zero);
    constexpr int D = decltype(dimension)::value;
    auto* of_rows = static_cast<RowNumbers*>(numbers.mutable_data_ptr());
    const Given<T> in{data<T>(a.go),
                      data<T>(a.q),
                      data<T>(a.k),
                      data<T>(a.v),
                      of_rows,
                      Sq,
                      Sk,
                      a.causal ? Sk - Sq : Sk,
                      static_cast<float>(1 / std::sqrt(double{D}))};
    const unsigned grid = grid_size(ceil_div<int64_t>(a.q.numel() / 8, DELTA_BLOCK), "q");
    attention_row_numbers_kernel<T, D><<<grid, DELTA_BLOCK, 0, current_stream(a.q)>>>(
        in.go, data<T>(a.o), data<float>(a.lse), data<float>(a.glse), of_rows, rows);
    launch(in, dimension, heads, made);
  });
  check_launch(name);
  return made;
}

#define ARGUMENTS                                                                          \
  const Tensor &go, const Tensor &glse, const Tensor &q, const Tensor &k, const Tensor &v, \
      const Tensor &o, const Tensor &lse, bool causal

#define INPUTS                                                                               \
  "(Tensor go, Tensor glse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal" \
  "=False) -> (Tensor, Tensor, Tensor)"

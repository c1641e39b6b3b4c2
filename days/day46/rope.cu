// Day 46: rotary position embeddings (RoPE) of queries and keys
//
//   (x'[a], x'[b]) = (x[a] · cos - x[b] · sin, x[b] · cos + x[a] · sin)     for each pair of a head
//   angle of pair i at position p:  p · base^(-2i/R)                        i in [0, R/2)
//
//   q: (B, S, HQ, D), k: (B, S, HK, D), cos, sin: (positions, R/2) fp32; token s is at offset + s.
//   The first R of D elements are rotated. Pair i is elements (2i, 2i + 1) if interleaved, else
//   (i, i + R/2).
//
// Bytes, in place: the rotated R of the D elements of q and k, read and written. Operations: 6 per
// pair, so memory-bound.
//
//   v1 naive        one launch per tensor, one pair per thread and step
//   v2 fused        q and k in one launch
//   v3 vectorised   two loads of 16 bytes per thread: 8 pairs of bf16
//   rotary          v3 into new tensors, forward and backward, for autograd
//   table v1, v2    cos and sin of angles in fp32, and in float64
//
// Run: python run_day.py 46

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <tuple>
#include <type_traits>

// ---------------------------------------------------------------------------------------------
// What all rungs share.

// The heads of one tensor. from and to are the same in place.
template <typename T>
struct Heads {
  const T* from;  // (tokens, count, D)
  T* to;
  int count;
};

struct Rotation {
  const float* cos;  // (positions, R/2)
  const float* sin;
  unsigned sequence;  // S
  int64_t offset;     // the position of the first token of each sequence
  int D;
  int R;
  int written;           // elements per head: R in place, D into another tensor
  bool inverse = false;  // rotates back: by the negative angles
};

// x · e^(iθ) of the complex number x = (re, im)
__device__ void rotate(float& re, float& im, float c, float s) {
  const float new_re = re * c - im * s;
  im = im * c + re * s;
  re = new_re;
}

// The row of the tables that belongs to a token.
__device__ int64_t table_row(const Rotation& r, unsigned token) {
  return (r.offset + token % r.sequence) * (r.R / 2);
}

constexpr int64_t MOST = 1 << 30;  // elements per token, so that indices within a token are ints

// A rotation in place.
Rotation check_rotation(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                        int64_t offset) {
  check(q, "q").on_gpu().floating().rank(4).contiguous();
  check(k, "k").on_gpu().dtype({q.scalar_type()}).rank(4).contiguous().same_device(q, "q");
  check(k, "k").size(0, q.size(0)).size(1, q.size(1)).size(3, q.size(3));
  check(cos, "cos").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous().same_device(q, "q");
  check(sin, "sin").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous().same_device(q, "q");
  check(sin, "sin").size(0, cos.size(0)).size(1, cos.size(1));
  STD_TORCH_CHECK(2 * cos.size(1) <= q.size(3),
                  "cos: expected at most half as many columns as q has "
                  "elements per head, ",
                  q.size(3), ", got ", cos.size(1));
  STD_TORCH_CHECK(offset >= 0 && offset <= cos.size(0) - q.size(1), "offset: expected 0 to ",
                  cos.size(0) - q.size(1), ", so that all ", q.size(1),
                  " positions are rows of cos, got ", offset);
  STD_TORCH_CHECK((q.size(2) + k.size(2)) * q.size(3) <= MOST, "q, k: expected at most ", MOST,
                  " elements per token");
  // A grid has a block per token, so S fits into 32 bits.
  return {data<float>(cos),
          data<float>(sin),
          static_cast<unsigned>(q.size(1)),
          offset,
          static_cast<int>(q.size(3)),
          static_cast<int>(2 * cos.size(1)),
          static_cast<int>(2 * cos.size(1))};
}

template <typename T>
Heads<T> heads(const Tensor& from, const Tensor& to) {
  return {data<T>(from), mutable_data<T>(to), static_cast<int>(from.size(2))};
}

int64_t tokens_of(const Tensor& q) {
  return q.size(0) * q.size(1);
}

// ---------------------------------------------------------------------------------------------
// v1: a block per token, whose threads share the pairs of its heads. A launch per tensor.

constexpr int BLOCK = 256;

// Slot j of a head: pair j, or, where the result is another tensor, an element to copy.
template <bool INTERLEAVED, typename T>
__device__ void rotate_slot(const Rotation& r, const Heads<T>& x, int64_t token, int head, int j,
                            int64_t row) {
  const int64_t start = (token * x.count + head) * r.D;
  const int half = r.R / 2;
  if (j >= half) {
    x.to[start + half + j] = x.from[start + half + j];  // elements [R, D)
    return;
  }
  const int64_t a = start + (INTERLEAVED ? 2 * j : j), b = INTERLEAVED ? a + 1 : a + half;
  float re = static_cast<float>(x.from[a]), im = static_cast<float>(x.from[b]);
  rotate(re, im, r.cos[row + j], r.inverse ? -r.sin[row + j] : r.sin[row + j]);
  x.to[a] = static_cast<T>(re);
  x.to[b] = static_cast<T>(im);
}

__device__ int slots(const Rotation& r) {
  return r.R / 2 + r.written - r.R;
}

template <bool INTERLEAVED, typename T>
__global__ void __launch_bounds__(BLOCK) rope_v1_naive_kernel(Rotation r, Heads<T> x) {
  const int64_t row = table_row(r, blockIdx.x);
  const int per_head = slots(r);
  for (int i = threadIdx.x; i < x.count * per_head; i += BLOCK) {
    rotate_slot<INTERLEAVED>(r, x, blockIdx.x, i / per_head, i % per_head, row);
  }
}

// Calls launch with a compile-time constant of the layout and with a value of the elements' type.
template <typename Launch>
void with_layout(const Tensor& q, bool interleaved, Launch launch) {
  dispatch_floating(q, [&](auto zero) {
    if (interleaved) {
      launch(std::true_type{}, zero);
    } else {
      launch(std::false_type{}, zero);
    }
  });
}

void rope_v1_naive(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                   int64_t offset, bool interleaved) {
  const Rotation r = check_rotation(q, k, cos, sin, offset);
  const DeviceGuard guard(q);
  const unsigned grid = grid_size(tokens_of(q), "q");
  if (grid == 0) return;
  with_layout(q, interleaved, [&](auto layout, auto zero) {
    using T = decltype(zero);
    for (const Tensor* x : {&q, &k}) {
      rope_v1_naive_kernel<layout.value>
          <<<grid, BLOCK, 0, current_stream(q)>>>(r, heads<T>(*x, *x));
    }
  });
  check_launch("rope_v1_naive");
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one launch for both tensors. The heads of k follow those of q.

template <bool INTERLEAVED, typename T>
__global__ void __launch_bounds__(BLOCK) rope_v2_fused_kernel(Rotation r, Heads<T> q, Heads<T> k) {
  const int64_t row = table_row(r, blockIdx.x);
  const int per_head = slots(r);
  for (int i = threadIdx.x; i < (q.count + k.count) * per_head; i += BLOCK) {
    const int head = i / per_head, j = i % per_head;
    if (head < q.count) {
      rotate_slot<INTERLEAVED>(r, q, blockIdx.x, head, j, row);
    } else {
      rotate_slot<INTERLEAVED>(r, k, blockIdx.x, head - q.count, j, row);
    }
  }
}

// From q and k to q_out and k_out, which may be the same.
void rope_pairs(const Rotation& r, const Tensor& q, const Tensor& k, const Tensor& q_out,
                const Tensor& k_out, bool interleaved) {
  const unsigned grid = grid_size(tokens_of(q), "q");
  if (grid == 0) return;
  with_layout(q, interleaved, [&](auto layout, auto zero) {
    using T = decltype(zero);
    rope_v2_fused_kernel<layout.value>
        <<<grid, BLOCK, 0, current_stream(q)>>>(r, heads<T>(q, q_out), heads<T>(k, k_out));
  });
  check_launch("rope_v2_fused");
}

void rope_v2_fused(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                   int64_t offset, bool interleaved) {
  const Rotation r = check_rotation(q, k, cos, sin, offset);
  const DeviceGuard guard(q);
  rope_pairs(r, q, k, q, k, interleaved);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a thread handles units of two packs of 16 bytes, both coalesced in both layouts.
// Halves: the packs hold the first and the second elements of N pairs. Interleaved:
// each pack holds N/2 whole pairs, and the second one lies half a rotated part further on.

template <int M>
struct alignas(4 * M) Angles {
  float at[M];
};

// Unit j of a head: N pairs if j is below R / 2N, else 2N elements to copy.
template <bool INTERLEAVED, typename T>
__device__ void rotate_unit(const Rotation& r, const Heads<T>& x, int64_t token, int head, int j,
                            int64_t row) {
  constexpr int N = Pack<T>::N, M = N / 2;
  const int rotated = r.R / (2 * N);
  const int64_t start = (token * x.count + head) * r.D;
  const Pack<T>* from = reinterpret_cast<const Pack<T>*>(x.from + start);
  Pack<T>* to = reinterpret_cast<Pack<T>*>(x.to + start);
  if (j >= rotated) {  // packs [R/N, D/N)
    to[2 * j] = from[2 * j];
    to[2 * j + 1] = from[2 * j + 1];
    return;
  }
  Pack<T> a = from[j], b = from[rotated + j];
  // The pairs of the angles: [N·j, N·j + N), or M from M·j on and M from R/4 + M·j on.
  const int64_t first = row + (INTERLEAVED ? M * j : N * j);
  const int64_t second = INTERLEAVED ? first + r.R / 4 : first + M;
  const Angles<M> c[2] = {*reinterpret_cast<const Angles<M>*>(r.cos + first),
                          *reinterpret_cast<const Angles<M>*>(r.cos + second)};
  const Angles<M> s[2] = {*reinterpret_cast<const Angles<M>*>(r.sin + first),
                          *reinterpret_cast<const Angles<M>*>(r.sin + second)};
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const float angle_cos = c[e / M].at[e % M];
    const float angle_sin = r.inverse ? -s[e / M].at[e % M] : s[e / M].at[e % M];
    Pack<T>& pack = e < M ? a : b;
    T& first_of_pair = INTERLEAVED ? pack.at[e % M * 2] : a.at[e];
    T& second_of_pair = INTERLEAVED ? pack.at[e % M * 2 + 1] : b.at[e];
    float re = static_cast<float>(first_of_pair), im = static_cast<float>(second_of_pair);
    rotate(re, im, angle_cos, angle_sin);
    first_of_pair = static_cast<T>(re);
    second_of_pair = static_cast<T>(im);
  }
  to[j] = a;
  to[rotated + j] = b;
}

constexpr int MOST_THREADS = 512;  // per block: 128 registers for each on every architecture

template <bool INTERLEAVED, typename T>
__global__ void __launch_bounds__(MOST_THREADS)
    rope_v3_vectorised_kernel(Rotation r, Heads<T> q, Heads<T> k, int units) {
  const int64_t row = table_row(r, blockIdx.x);
  for (int i = threadIdx.x; i < (q.count + k.count) * units; i += blockDim.x) {
    const int head = i / units, j = i % units;
    if (head < q.count) {
      rotate_unit<INTERLEAVED>(r, q, blockIdx.x, head, j, row);
    } else {
      rotate_unit<INTERLEAVED>(r, k, blockIdx.x, head - q.count, j, row);
    }
  }
}

// Whether a head, its rotated part and the tables consist of whole packs.
bool fits_packs(const Rotation& r, const Tensor& q, const Tensor& k, const Tensor& cos,
                const Tensor& sin) {
  const int two_packs = q.scalar_type() == ScalarType::Float ? 8 : 16;  // elements
  return r.D % two_packs == 0 && r.R % two_packs == 0 && is_aligned(q, 16) && is_aligned(k, 16) &&
         is_aligned(cos, 16) && is_aligned(sin, 16);
}

void rope_packs(const Rotation& r, const Tensor& q, const Tensor& k, const Tensor& q_out,
                const Tensor& k_out, bool interleaved) {
  const unsigned grid = grid_size(tokens_of(q), "q");
  if (grid == 0) return;
  with_layout(q, interleaved, [&](auto layout, auto zero) {
    using T = decltype(zero);
    const int units = r.written / (2 * Pack<T>::N);
    const int64_t work = (q.size(2) + k.size(2)) * units;  // the units of a token
    if (work == 0) return;
    // Two units per thread: smaller blocks, of which more fit, are a little faster on an H200.
    const int64_t warps = ceil_div<int64_t>(work, 2 * 32);
    const unsigned block =
        warps < MOST_THREADS / 32 ? 32 * static_cast<unsigned>(warps) : MOST_THREADS;
    rope_v3_vectorised_kernel<layout.value>
        <<<grid, block, 0, current_stream(q)>>>(r, heads<T>(q, q_out), heads<T>(k, k_out), units);
  });
  check_launch("rope_v3_vectorised");
}

// By packs where they fit, else as v2.
void rope_fastest(const Rotation& r, const Tensor& q, const Tensor& k, const Tensor& cos,
                  const Tensor& sin, const Tensor& q_out, const Tensor& k_out, bool interleaved) {
  if (fits_packs(r, q, k, cos, sin)) return rope_packs(r, q, k, q_out, k_out, interleaved);
  fell_back("rope_v2_fused", "a head that is not made of whole packs, or is not aligned");
  rope_pairs(r, q, k, q_out, k_out, interleaved);
}

void rope_v3_vectorised(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                        int64_t offset, bool interleaved) {
  const Rotation r = check_rotation(q, k, cos, sin, offset);
  const DeviceGuard guard(q);
  rope_fastest(r, q, k, cos, sin, q, k, interleaved);
}

// The same into new tensors. A rotation is orthogonal, so the gradient is the rotation back.
std::tuple<Tensor, Tensor> rotary(const Tensor& q, const Tensor& k, const Tensor& cos,
                                  const Tensor& sin, int64_t offset, bool interleaved,
                                  bool inverse) {
  Rotation r = check_rotation(q, k, cos, sin, offset);
  r.written = r.D;
  r.inverse = inverse;
  const DeviceGuard guard(q);
  const Tensor q_out = allocate_like(q), k_out = allocate_like(k);
  rope_fastest(r, q, k, cos, sin, q_out, k_out, interleaved);
  return {q_out, k_out};
}

// ---------------------------------------------------------------------------------------------
// Tables. v1: angles in fp32. A position of 131,072 times a frequency is rounded to 24 bits, so the
// angle is off by up to 2^-8. v2: angles in float64, rounded to fp32 only as cos and sin.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    rope_table_kernel(const int64_t* __restrict__ positions, float* __restrict__ cos_table,
                      float* __restrict__ sin_table, int64_t n, int half, T base) {
  const int64_t at = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (at >= n) return;
  const int64_t pair = at % half;
  const T frequency = pow(base, static_cast<T>(-pair) / static_cast<T>(half));
  const T angle = static_cast<T>(positions[at / half]) * frequency;
  cos_table[at] = static_cast<float>(cos(angle));
  sin_table[at] = static_cast<float>(sin(angle));
}

template <typename T>
std::tuple<Tensor, Tensor> rope_table(const char* name, const Tensor& positions, int64_t rotary_dim,
                                      double base) {
  check(positions, "positions").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  STD_TORCH_CHECK(rotary_dim > 0 && rotary_dim <= 65536 && rotary_dim % 2 == 0,
                  "rotary_dim: expected an even number from 2 to 65536, got ", rotary_dim);
  STD_TORCH_CHECK(base > 0 && base < 1e30, "base: expected above 0 and below 1e30, got ", base);
  const DeviceGuard guard(positions);
  const int half = static_cast<int>(rotary_dim / 2);
  const int64_t n = positions.size(0) * half;
  const Tensor cos = allocate(positions, {positions.size(0), half}, ScalarType::Float);
  const Tensor sin = allocate_like(cos);
  if (n == 0) return {cos, sin};
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "positions");
  rope_table_kernel<T><<<grid, BLOCK, 0, current_stream(positions)>>>(
      data<int64_t>(positions), mutable_data<float>(cos), mutable_data<float>(sin), n, half,
      static_cast<T>(base));
  check_launch(name);
  return {cos, sin};
}

std::tuple<Tensor, Tensor> rope_table_v1_float(const Tensor& positions, int64_t rotary_dim,
                                               double base) {
  return rope_table<float>("rope_table_v1_float", positions, rotary_dim, base);
}

std::tuple<Tensor, Tensor> rope_table_v2_double(const Tensor& positions, int64_t rotary_dim,
                                                double base) {
  return rope_table<double>("rope_table_v2_double", positions, rotary_dim, base);
}

// ---------------------------------------------------------------------------------------------

#define IN_PLACE \
  "(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, int offset, bool interleaved) -> ()"
#define TABLE "(Tensor positions, int rotary_dim, float base) -> (Tensor, Tensor)"

RUNG(day46, rope_v1_naive, IN_PLACE);
RUNG(day46, rope_v2_fused, IN_PLACE);
RUNG(day46, rope_v3_vectorised, IN_PLACE);
RUNG(
    day46, rotary,
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, int offset, bool interleaved, bool inverse=False)"
    " -> (Tensor, Tensor)");
RUNG(day46, rope_table_v1_float, TABLE);
RUNG(day46, rope_table_v2_double, TABLE);

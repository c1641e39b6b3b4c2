// Attention of one query per head over a cache of keys and values: what the launchers check, and
// the loop of v3 and of the int8 cache.
#pragma once

#include "common/cuda/chunk.cuh"  // taught in days 35 and 42
#include "common/cuda/tensor.cuh"
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <climits>
#include <cmath>

constexpr int BLOCK = 256;
constexpr int ROWS = 4;  // of keys, and as many of values, that a lane loads at a time

// ---------------------------------------------------------------------------------------------
// Kinds of caches. E elements are 16 bytes, which a lane loads at a time.

template <typename T>
struct PlainCache {
  static constexpr int E = 16 / sizeof(T);
  const T *keys, *values;  // (B, H, T, D)

  static __device__ void unpack(float (&x)[E], const uint4& raw) {
    const Chunk<T, E> chunk = RawChunk<Chunk<T, E>>{raw}.chunk();
#pragma unroll
    for (int e = 0; e < E; ++e) x[e] = static_cast<float>(chunk.at[e]);
  }
  // What a row's elements have to be multiplied by.
  __device__ float key_scale(int64_t) const { return 1; }
  __device__ float value_scale(int64_t) const { return 1; }
};

// T: the type of q and o. D: elements per row. C: the cache.
template <typename T, typename C>
struct Decode {
  using Type = T;
  using Cache = C;
  const T* q;  // (B, H, D)
  C cache;
  const int* lengths;  // (B,)
  T* o;                // (B, H, D)
  int H;
  int64_t room;      // rows per head: the cache's T
  float scale_log2;  // scale · log2 e, so that exp2 does for exp

  __device__ int length_of(int64_t head) const {
    return static_cast<int>(max(int64_t{0}, min(int64_t{lengths[head / H]}, room)));
  }
};

// The sum over LANES neighbouring lanes, in each of them. All 32 lanes must call it.
template <int LANES, typename T>
__device__ T group_sum(T value) {
#pragma unroll
  for (int half = LANES / 2; half > 0; half /= 2) {
    value += __shfl_xor_sync(FULL_WARP, value, half);
  }
  return value;
}

// ---------------------------------------------------------------------------------------------
// One block computes one head. The D / E lanes of a group share each row, with ROWS rows in flight.

// A lane's part of the output so far, relative to 2^max: E elements, and the sum of the weights.
template <typename C>
struct Running {
  static constexpr int E = C::E;
  float out[E] = {}, max = -INFINITY, sum = 0;

  // Adds ROWS tokens, whose scores are -inf where there is none. value(r): the raw elements of v.
  template <typename V>
  __device__ void add(const float (&score)[ROWS], const float (&weight)[ROWS], V&& value) {
    float most = max;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) most = fmaxf(most, score[r]);
    // As long as all scores are -inf, 0 is subtracted: -inf - -inf would be NaN.
    const float base = most == -INFINITY ? 0.0f : most;
    const float shrink = exp2f(max - base);
    sum *= shrink;
#pragma unroll
    for (int e = 0; e < E; ++e) out[e] *= shrink;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float x[E];
      C::unpack(x, value(r));
      const float p = exp2f(score[r] - base);  // 0 where there is no token
      sum += p;
#pragma unroll
      for (int e = 0; e < E; ++e) out[e] += p * weight[r] * x[e];
    }
    max = most;
  }
};

// Merges the outputs of all groups and stores o. `outputs`, (GROUPS, D), may reuse memory that
// other threads read before this call.
template <int D, typename T, typename C>
__device__ void store_merged(const Decode<T, C>& n, int64_t head, int length,
                             const Running<C>& mine, float* outputs) {
  constexpr int E = C::E, LANES = D / E, GROUPS = BLOCK / LANES;
  __shared__ float maxima[GROUPS], sums[GROUPS];
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  __syncthreads();  // all threads have read what lay in `outputs`
  if (lane == 0) maxima[group] = mine.max, sums[group] = mine.sum;
#pragma unroll
  for (int e = 0; e < E; ++e) outputs[group * D + lane * E + e] = mine.out[e];
  __syncthreads();  // thread d < D waits for the results of all groups
  if (threadIdx.x >= D) return;
  float all = -INFINITY, total = 0, result = 0;
  for (int g = 0; g < GROUPS; ++g) all = fmaxf(all, maxima[g]);
  for (int g = 0; g < GROUPS; ++g) {
    const float factor = exp2f(maxima[g] - all);
    total += factor * sums[g];
    result += factor * outputs[g * D + threadIdx.x];
  }
  n.o[head * D + threadIdx.x] = static_cast<T>(length > 0 ? result / total : 0.0f);
}

template <int D, typename T, typename C>
__device__ void decode_head(const Decode<T, C>& n) {
  constexpr int E = C::E, LANES = D / E, GROUPS = BLOCK / LANES;
  __shared__ float outputs[GROUPS * D];
  const int64_t head = blockIdx.x;
  const int length = n.length_of(head);
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const auto* const keys = reinterpret_cast<const uint4*>(n.cache.keys);
  const auto* const values = reinterpret_cast<const uint4*>(n.cache.values);

  float q[E];
#pragma unroll
  for (int e = 0; e < E; ++e) {
    q[e] = n.scale_log2 * static_cast<float>(n.q[head * D + lane * E + e]);
  }
  Running<C> mine;
  for (int begin = 0; begin < length; begin += GROUPS * ROWS) {
    uint4 k[ROWS], v[ROWS];
    float score[ROWS], weight[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int t = begin + r * GROUPS + group;
      const int64_t row = head * n.room + t;
      k[r] = v[r] = uint4{};
      score[r] = weight[r] = 0;
      if (t < length) {
        k[r] = keys[row * LANES + lane];
        v[r] = values[row * LANES + lane];
        score[r] = n.cache.key_scale(row);
        weight[r] = n.cache.value_scale(row);
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float x[E], part = 0;
      C::unpack(x, k[r]);
#pragma unroll
      for (int e = 0; e < E; ++e) part += q[e] * x[e];
      part = group_sum<LANES>(part);
      score[r] = begin + r * GROUPS + group < length ? score[r] * part : -INFINITY;
    }
    mine.add(score, weight, [&](int r) { return v[r]; });
  }
  store_merged<D>(n, head, length, mine, outputs);
}

// ---------------------------------------------------------------------------------------------
// What launchers check.

struct Sizes {
  int64_t B, H, T, D;
};

// x: (B, H, D). keys, values: (B, H, T, D). each: one number per sequence, lengths or positions.
inline Sizes check_cache(const Tensor& x, const char* name, const Tensor& keys,
                         const Tensor& values, const Tensor& each, const char* each_name) {
  check(x, name).on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(3).contiguous();
  const Sizes n{x.size(0), x.size(1), keys.dim() == 4 ? keys.size(2) : 0, x.size(2)};
  STD_TORCH_CHECK(n.D == 64 || n.D == 128, name, ": expected 64 or 128 elements per head, got ",
                  n.D);
  check(keys, "keys").on_gpu().rank(4).contiguous().same_device(x, name);
  check(keys, "keys").size(0, n.B).size(1, n.H).size(3, n.D);
  check(values, "values").on_gpu().like(keys, "keys").contiguous();
  check(each, each_name).on_gpu().dtype({ScalarType::Int}).rank(1).contiguous().size(0, n.B);
  check(each, each_name).same_device(x, name);
  STD_TORCH_CHECK(n.T <= INT_MAX, "keys: expected at most 2^31 - 1 tokens, got ", n.T);
  STD_TORCH_CHECK(n.H <= INT_MAX, "keys: expected at most 2^31 - 1 heads, got ", n.H);
  for (const auto& [tensor, its_name] : {std::pair(&keys, "keys"), std::pair(&values, "values")}) {
    STD_TORCH_CHECK(is_aligned(*tensor, 16), its_name,
                    ": expected its first element on a multiple of 16 bytes, got another address");
  }
  return n;
}

// Calls f with a value of the type of x, which check_cache has found to be one of the two.
template <typename F>
void dispatch_16_bits(const Tensor& x, F&& f) {
  if (x.scalar_type() == ScalarType::Half) return f(__half{});
  f(__nv_bfloat16{});
}

// o like q, for a cache of which make(zero) gives the pointers; launch(n, D as a constant, heads).
template <typename M, typename F>
Tensor decode_into(const Tensor& q, const Sizes& s, const Tensor& lengths, double scale,
                   const char* kernel, M&& make, F&& launch) {
  STD_TORCH_CHECK(std::isfinite(scale) && std::isfinite(static_cast<float>(scale)),
                  "scale: expected a finite number of fp32, got ", scale);
  const DeviceGuard guard(q);
  Tensor o = allocate_like(q);
  if (o.numel() == 0) return o;
  const unsigned heads = grid_size(s.B * s.H, "q");
  dispatch_16_bits(q, [&](auto zero) {
    using T = decltype(zero);
    const auto cache = make(zero);
    const Decode<T, std::decay_t<decltype(cache)>> n{data<T>(q),
                                                     cache,
                                                     data<int>(lengths),
                                                     mutable_data<T>(o),
                                                     static_cast<int>(s.H),
                                                     s.T,
                                                     static_cast<float>(scale * M_LOG2E)};
    if (s.D == 64) return launch(n, std::integral_constant<int, 64>{}, heads);
    launch(n, std::integral_constant<int, 128>{}, heads);
  });
  check_launch(kernel);
  return o;
}

// Day 74: the KV cache: append a token, and attention of one query over all tokens before it
//
//   append   keys[b, h, p[b]] = k[b, h]      values[b, h, p[b]] = v[b, h]
//   decode   o[b, h] = sum_t softmax_t(scale · q[b, h] · keys[b, h, t]) values[b, h, t]
//            over t < lengths[b]
//
// k, v, q, o: (B, H, D) in fp16 or bf16, D = 64 or 128. keys, values: (B, H, T, D) in the same
// type, or in int8 with a scale per token and head (kv_cache_int8.cu). Bytes of decode: 2 · D ·
// sizeof(T) per token and head. Operations: 4 · D, one or two per byte: memory bandwidth is the
// limit.
//
//   v1 rows     one thread per token: the lanes of a warp read 32 rows at a time
//   v2 lanes    D / 8 lanes per token, 16 bytes each: coalesced; the scores in shared memory
//   v3 online   one pass: scores, softmax and sum together, eight rows in flight per lane
//
// Run: python run_day.py 74

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day74/decode.cuh"

// ---------------------------------------------------------------------------------------------
// append: one warp per head. For a position outside the cache it stores nothing: the launcher does
// not know the positions.

constexpr int HEADS = 4;  // warps per block

template <typename T>
__global__ void append_kernel(const T* __restrict__ k, const T* __restrict__ v,
                              T* __restrict__ keys, T* __restrict__ values,
                              const int* __restrict__ positions, int H, int64_t heads, int64_t room,
                              int D) {
  const int64_t head = int64_t{blockIdx.x} * HEADS + threadIdx.x / 32;  // [0, B · H)
  if (head >= heads) return;
  const int position = positions[head / H];
  if (position < 0 || position >= room) return;
  for (int d = threadIdx.x % 32; d < D; d += 32) {
    const int64_t to = (head * room + position) * D + d;
    keys[to] = k[head * D + d];
    values[to] = v[head * D + d];
  }
}

void append(const Tensor& k, const Tensor& v, Tensor& keys, Tensor& values,
            const Tensor& positions) {
  const Sizes n = check_cache(k, "k", keys, values, positions, "positions");
  check(v, "v").like(k, "k").contiguous();
  check(keys, "keys").dtype({k.scalar_type()});
  const DeviceGuard guard(k);
  if (n.B * n.H == 0) return;
  const unsigned grid = grid_size(ceil_div<int64_t>(n.B * n.H, HEADS), "k");
  dispatch_16_bits(k, [&](auto zero) {
    using T = decltype(zero);
    append_kernel<T><<<grid, 32 * HEADS, 0, current_stream(k)>>>(
        data<T>(k), data<T>(v), mutable_data<T>(keys), mutable_data<T>(values),
        data<int>(positions), static_cast<int>(n.H), n.B * n.H, n.T, static_cast<int>(n.D));
  });
  check_launch("append");
}

// ---------------------------------------------------------------------------------------------
// v1: one block per head, in three phases: all scores, their maximum and sum, the sum of the
// values. v2 against v1: in the first phase, neighbouring lanes share a row.

// The reduction of all threads' values, returned to each of them. `shared`: one float per warp.
template <typename Op>
__device__ float block_reduce(float value, float* shared, Op op) {
  value = warp_reduce(value, op);
  __syncthreads();  // all threads have read the result before
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();  // every thread waits for the values of all warps
  float all = shared[0];
  for (int i = 1; i < BLOCK / 32; ++i) all = op(all, shared[i]);
  return all;
}

template <typename T, int D, bool SHARED_ROWS>
__global__ void __launch_bounds__(BLOCK) decode_in_phases_kernel(Decode<T, PlainCache<T>> n) {
  extern __shared__ float scores[];  // [0, length)
  __shared__ float of_warps[BLOCK / 32];
  constexpr int E = 16 / sizeof(T), LANES = SHARED_ROWS ? D / E : 1, DIMS = D / LANES;
  const int64_t head = blockIdx.x;
  const int length = n.length_of(head), lane = threadIdx.x % LANES;
  const T* const keys = n.cache.keys + head * n.room * D;
  const T* const values = n.cache.values + head * n.room * D;

  float q[DIMS];
  for (int d = 0; d < DIMS; ++d) {
    q[d] = n.scale_log2 * static_cast<float>(n.q[head * D + lane * DIMS + d]);
  }
  // All lanes of a group take part in its sum, also where there is no token left.
  for (int begin = 0; begin < length; begin += BLOCK / LANES) {
    const int t = begin + threadIdx.x / LANES;
    float score = 0;
    if (t < length) {
#pragma unroll
      for (int first = 0; first < DIMS; first += E) {
        const Chunk<T, E> k = load_whole(
            reinterpret_cast<const Chunk<T, E>*>(keys + int64_t{t} * D + lane * DIMS + first));
        for (int e = 0; e < E; ++e) score += q[first + e] * static_cast<float>(k.at[e]);
      }
    }
    score = group_sum<LANES>(score);
    if (t < length && lane == 0) scores[t] = score;
  }
  __syncthreads();  // every thread waits for the scores of all tokens

  float max = -INFINITY, sum = 0;
  for (int t = threadIdx.x; t < length; t += BLOCK) max = fmaxf(max, scores[t]);
  max = block_reduce(max, of_warps, [](float a, float b) { return fmaxf(a, b); });
  for (int t = threadIdx.x; t < length; t += BLOCK) {
    sum += scores[t] = exp2f(scores[t] - max);  // -inf - -inf is NaN, as in PyTorch's softmax
  }
  sum = block_reduce(sum, of_warps, [](float a, float b) { return a + b; });

  // A thread sums dimension threadIdx.x % D of every (BLOCK / D)-th token: 32 lanes read 64
  // adjacent bytes.
  __shared__ float parts[BLOCK];
  float part = 0;
  for (int t = threadIdx.x / D; t < length; t += BLOCK / D) {
    part += scores[t] * static_cast<float>(values[int64_t{t} * D + threadIdx.x % D]);
  }
  parts[threadIdx.x] = part;
  __syncthreads();  // thread d < D waits for the parts of its dimension
  if (threadIdx.x >= D) return;
  for (int i = 1; i < BLOCK / D; ++i) part += parts[i * D + threadIdx.x];
  n.o[head * D + threadIdx.x] = static_cast<T>(length > 0 ? part / sum : 0.0f);
}

template <typename F>
Tensor decode_plain(const Tensor& q, const Tensor& keys, const Tensor& values,
                    const Tensor& lengths, double scale, const char* kernel, F&& launch) {
  const Sizes n = check_cache(q, "q", keys, values, lengths, "lengths");
  check(keys, "keys").dtype({q.scalar_type()});
  const auto cache = [&](auto zero) {
    using T = decltype(zero);
    return PlainCache<T>{data<T>(keys), data<T>(values)};
  };
  return decode_into(q, n, lengths, scale, kernel, cache, launch);
}

template <bool SHARED_ROWS>
Tensor decode_in_phases(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& lengths, double scale, const char* name) {
  check(keys, "keys").on_gpu().rank(4);  // decode_plain checks the rest
  const DeviceGuard guard(q);
  const int64_t bytes = keys.size(2) * static_cast<int64_t>(sizeof(float));
  require_shared_memory(bytes + 4096, "the scores of a head");
  return decode_plain(q, keys, values, lengths, scale, name, [&](auto n, auto width, auto heads) {
    const auto kernel = decode_in_phases_kernel<typename decltype(n)::Type, width, SHARED_ROWS>;
    allow_shared(kernel, bytes);
    kernel<<<heads, BLOCK, bytes, current_stream(q)>>>(n);
  });
}

Tensor decode_v1_rows(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const Tensor& lengths, double scale) {
  return decode_in_phases<false>(q, keys, values, lengths, scale, "decode_v1_rows");
}
Tensor decode_v2_lanes(const Tensor& q, const Tensor& keys, const Tensor& values,
                       const Tensor& lengths, double scale) {
  return decode_in_phases<true>(q, keys, values, lengths, scale, "decode_v2_lanes");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one pass. Each group of lanes has its own tokens, and its own maximum, sum and
// output, which are merged at the end (decode.cuh).

template <typename T, int D>
__global__ void __launch_bounds__(BLOCK, 4) decode_v3_online_kernel(Decode<T, PlainCache<T>> n) {
  decode_head<D>(n);
}

Tensor decode_v3_online(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& lengths, double scale) {
  return decode_plain(q, keys, values, lengths, scale, "decode_v3_online",
                      [&](auto n, auto width, auto heads) {
                        decode_v3_online_kernel<typename decltype(n)::Type, width>
                            <<<heads, BLOCK, 0, current_stream(q)>>>(n);
                      });
}

// ---------------------------------------------------------------------------------------------

#define DECODE "(Tensor q, Tensor keys, Tensor values, Tensor lengths, float scale) -> Tensor"

RUNG(day74, append,
     "(Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor positions) -> ()");
RUNG(day74, decode_v1_rows, DECODE);
RUNG(day74, decode_v2_lanes, DECODE);
RUNG(day74, decode_v3_online, DECODE);

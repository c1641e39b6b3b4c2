// Day 74, second file: the cache in int8, with an fp32 scale per token and head
//
//   append_int8   s = max |k| / 127, codes = round(k / s), for each of the B · H new rows
//   decode_int8   D + 4 bytes per row instead of 2 · D
//     v1 floats     the loop of v3; each code becomes fp32
//     v2 integers   scores by dp4a, and the next rows in flight by cp.async
//
// Run: python run_day.py 74

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/ptx/cp_async.cuh"   // taught in day 20
#include "common/cuda/ptx/integer.cuh"    // taught in day 39
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day74/decode.cuh"

// ---------------------------------------------------------------------------------------------
// append_int8: one warp per head quantises both rows.

constexpr int HEADS = 4;  // warps per block

// The larger one, or NaN if one of them is NaN.
__device__ inline float larger(float a, float b) {
  return a > b || isnan(a) ? a : b;
}

// Stores a row of D numbers as codes, and returns its scale: NaN where one of them is not finite.
template <int D, typename T>
__device__ float quantise(int8_t* to, const T* from) {
  const int lane = threadIdx.x % 32;
  float x[D / 32], most = 0;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    x[i] = static_cast<float>(from[lane + 32 * i]);
    most = larger(most, fabsf(x[i]));
  }
  most = warp_reduce(most, larger);
  const bool finite = most < INFINITY;
  const float scale = finite ? most / 127 : NAN;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const float code = scale > 0 ? rintf(x[i] / scale) : 0.0f;
    // A subnormal scale has few bits, so the quotient may round to 128.
    to[lane + 32 * i] = static_cast<int8_t>(fminf(fmaxf(code, -127), 127));
  }
  return scale;
}

template <typename T, int D>
__global__ void append_int8_kernel(const T* __restrict__ k, const T* __restrict__ v,
                                   int8_t* __restrict__ keys, int8_t* __restrict__ values,
                                   float* __restrict__ key_scales, float* __restrict__ value_scales,
                                   const int* __restrict__ positions, int H, int64_t heads,
                                   int64_t room) {
  const int64_t head = int64_t{blockIdx.x} * HEADS + threadIdx.x / 32;  // [0, B · H)
  if (head >= heads) return;
  const int position = positions[head / H];
  if (position < 0 || position >= room) return;  // the whole warp
  const int64_t row = head * room + position;
  const float key_scale = quantise<D>(keys + row * D, k + head * D);
  const float value_scale = quantise<D>(values + row * D, v + head * D);
  if (threadIdx.x % 32 == 0) key_scales[row] = key_scale, value_scales[row] = value_scale;
}

void check_scales(const Tensor& scales, const char* name, const Tensor& keys, const Sizes& n) {
  check(scales, name).on_gpu().dtype({ScalarType::Float}).rank(3).contiguous();
  check(scales, name).size(0, n.B).size(1, n.H).size(2, n.T).same_device(keys, "keys");
}

void append_int8(const Tensor& k, const Tensor& v, Tensor& keys, Tensor& values, Tensor& key_scales,
                 Tensor& value_scales, const Tensor& positions) {
  const Sizes n = check_cache(k, "k", keys, values, positions, "positions");
  check(v, "v").like(k, "k").contiguous();
  check(keys, "keys").dtype({ScalarType::Char});
  check_scales(key_scales, "key_scales", keys, n);
  check_scales(value_scales, "value_scales", keys, n);
  const DeviceGuard guard(k);
  if (n.B * n.H == 0) return;
  const unsigned grid = grid_size(ceil_div<int64_t>(n.B * n.H, HEADS), "k");
  dispatch_16_bits(k, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = n.D == 64 ? append_int8_kernel<T, 64> : append_int8_kernel<T, 128>;
    kernel<<<grid, 32 * HEADS, 0, current_stream(k)>>>(
        data<T>(k), data<T>(v), mutable_data<int8_t>(keys), mutable_data<int8_t>(values),
        mutable_data<float>(key_scales), mutable_data<float>(value_scales), data<int>(positions),
        static_cast<int>(n.H), n.B * n.H, n.T);
  });
  check_launch("append_int8");
}

// ---------------------------------------------------------------------------------------------
// v1: the loop of decode v3. A byte becomes fp32 by one PRMT and one subtraction.

struct Int8Cache {
  static constexpr int E = 16;
  const int8_t *keys, *values;             // (B, H, T, D)
  const float *key_scales, *value_scales;  // (B, H, T)

  // The fp32 number 2^23 + u has the integer u in its low bits, and u is the code + 128.
  static __device__ void unpack(float (&x)[E], const uint4& raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const uint32_t bits = __byte_perm(words[e / 4] ^ 0x80808080u, 0x4b000000u, 0x7440 + e % 4);
      x[e] = __uint_as_float(bits) - 8388736.0f;
    }
  }
  __device__ float key_scale(int64_t row) const { return key_scales[row]; }
  __device__ float value_scale(int64_t row) const { return value_scales[row]; }
};

template <typename T, int D>
__global__ void __launch_bounds__(BLOCK, 3) decode_int8_v1_kernel(Decode<T, Int8Cache> n) {
  decode_head<D>(n);
}

// launch(n, D as a constant, heads)
template <typename F>
Tensor decode_codes(const Tensor& q, const Tensor& keys, const Tensor& values,
                    const Tensor& key_scales, const Tensor& value_scales, const Tensor& lengths,
                    double scale, const char* kernel, F&& launch) {
  const Sizes n = check_cache(q, "q", keys, values, lengths, "lengths");
  check(keys, "keys").dtype({ScalarType::Char});
  check_scales(key_scales, "key_scales", keys, n);
  check_scales(value_scales, "value_scales", keys, n);
  const auto cache = [&](auto) {
    return Int8Cache{data<int8_t>(keys), data<int8_t>(values), data<float>(key_scales),
                     data<float>(value_scales)};
  };
  return decode_into(q, n, lengths, scale, kernel, cache, launch);
}

Tensor decode_int8_v1_floats(const Tensor& q, const Tensor& keys, const Tensor& values,
                             const Tensor& key_scales, const Tensor& value_scales,
                             const Tensor& lengths, double scale) {
  return decode_codes(q, keys, values, key_scales, value_scales, lengths, scale,
                      "decode_int8_v1_floats", [&](auto n, auto width, auto heads) {
                        decode_int8_v1_kernel<typename decltype(n)::Type, width>
                            <<<heads, BLOCK, 0, current_stream(q)>>>(n);
                      });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the scores are sums of integers: q in 24 bits times 8-bit codes is three dp4a per
// four codes. The next rows are copied into shared memory while the current ones are computed, so
// bytes in flight need no registers.

constexpr int STAGES = 2;

// E elements of q as 24-bit integers, in units of `unit`: the largest is as exact as in fp32.
// `unit` is NaN if an element is not finite.
template <int D>
struct IntegerQuery {
  static constexpr int E = Int8Cache::E, WORDS = E / 4, MOST = (1 << 23) - 1;
  // An integer is 65536 · high + 256 · middle + low. A word holds this byte of four integers.
  int high[WORDS] = {};
  unsigned middle[WORDS] = {}, low[WORDS] = {};
  float unit;

  __device__ explicit IntegerQuery(const float (&q)[E]) {
    float most = 0;
#pragma unroll
    for (int e = 0; e < E; ++e) most = larger(most, fabsf(q[e]));
#pragma unroll
    for (int half = D / E / 2; half > 0; half /= 2) {
      most = larger(most, __shfl_xor_sync(FULL_WARP, most, half));
    }
    unit = most < INFINITY ? most / MOST : NAN;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      // A subnormal unit has few bits, so the quotient may exceed MOST.
      const float m = unit > 0 ? fminf(fmaxf(rintf(q[e] / unit), -MOST), MOST) : 0.0f;
      const int bits = static_cast<int>(m), shift = 8 * (e % 4);
      high[e / 4] |= (bits >> 16 & 0xff) << shift;
      middle[e / 4] |= (bits >> 8 & 0xff) << shift;
      low[e / 4] |= (bits & 0xff) << shift;
    }
  }
  // The sum over a row, of which each lane has E codes.
  __device__ float dot(const uint4& raw) const {
    const int codes[WORDS] = {static_cast<int>(raw.x), static_cast<int>(raw.y),
                              static_cast<int>(raw.z), static_cast<int>(raw.w)};
    int upper = 0, between = 0, lower = 0;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      upper = ptx::dp4a(high[w], codes[w], upper);
      between = ptx::dp4a(middle[w], codes[w], between);
      lower = ptx::dp4a(low[w], codes[w], lower);
    }
    const int rest = 256 * between + lower;  // |rest| < 2^28
    const float sum = fmaf(65536.0f, static_cast<float>(upper), static_cast<float>(rest));
    return unit * group_sum<D / E>(sum);
  }
};

template <typename T, int D>
__global__ void __launch_bounds__(BLOCK, 3) decode_int8_v2_kernel(Decode<T, Int8Cache> n) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int E = Int8Cache::E, LANES = D / E, GROUPS = BLOCK / LANES;
  // (STAGES, ROWS, 2, BLOCK): a thread reads what it copied.
  extern __shared__ __align__(128) uint4 ring[];
  const int64_t head = blockIdx.x;
  const int length = n.length_of(head);
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const auto* const keys = reinterpret_cast<const uint4*>(n.cache.keys);
  const auto* const values = reinterpret_cast<const uint4*>(n.cache.values);
  const auto slot = [&](int stage, int r, int which) {
    return ring + ((stage * ROWS + r) * 2 + which) * BLOCK + threadIdx.x;
  };
  float next_key[ROWS] = {}, next_value[ROWS] = {};  // their scales
  const auto fetch = [&](int begin, int stage) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int t = begin + r * GROUPS + group;
      if (t >= length) break;
      const int64_t row = head * n.room + t;
      ptx::cp_async<16>(slot(stage, r, 0), keys + row * LANES + lane);
      ptx::cp_async<16>(slot(stage, r, 1), values + row * LANES + lane);
      next_key[r] = n.cache.key_scale(row);
      next_value[r] = n.cache.value_scale(row);
    }
    ptx::cp_async_commit();
  };

  fetch(0, 0);
  float q[E];
#pragma unroll
  for (int e = 0; e < E; ++e) {
    q[e] = n.scale_log2 * static_cast<float>(n.q[head * D + lane * E + e]);
  }
  const IntegerQuery<D> query(q);
  Running<Int8Cache> mine;
  for (int begin = 0, stage = 0; begin < length; begin += GROUPS * ROWS, stage ^= 1) {
    float score[ROWS], weight[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) score[r] = next_key[r], weight[r] = next_value[r];
    fetch(begin + GROUPS * ROWS, stage ^ 1);
    ptx::cp_async_wait<1>();  // all but the copies that have just begun
    const auto row = [&](int r, int which) {
      return begin + r * GROUPS + group < length ? *slot(stage, r, which) : uint4{};
    };
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const float dot = query.dot(row(r, 0));
      const bool exists = begin + r * GROUPS + group < length;
      score[r] = exists ? score[r] * dot : -INFINITY;
      weight[r] = exists ? weight[r] : 0.0f;
    }
    mine.add(score, weight, [&](int r) { return row(r, 1); });
  }
  store_merged<D>(n, head, length, mine, reinterpret_cast<float*>(ring));
#endif
}

Tensor decode_int8_v2_integers(const Tensor& q, const Tensor& keys, const Tensor& values,
                               const Tensor& key_scales, const Tensor& value_scales,
                               const Tensor& lengths, double scale) {
  return decode_codes(q, keys, values, key_scales, value_scales, lengths, scale,
                      "decode_int8_v2_integers", [&](auto n, auto width, auto heads) {
                        require_capability(8, 0, "cp.async");
                        constexpr int BYTES = STAGES * ROWS * 2 * BLOCK * sizeof(uint4);
                        const auto kernel =
                            decode_int8_v2_kernel<typename decltype(n)::Type, width>;
                        require_shared_memory(BYTES + 1024, "two stages of rows");
                        allow_shared(kernel, BYTES);
                        kernel<<<heads, BLOCK, BYTES, current_stream(q)>>>(n);
                      });
}

// ---------------------------------------------------------------------------------------------

RUNG(day74, append_int8,
     "(Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) key_scales, "
     "Tensor(d!) value_scales, Tensor positions) -> ()");
#define DECODE_INT8                                                                 \
  "(Tensor q, Tensor keys, Tensor values, Tensor key_scales, Tensor value_scales, " \
  "Tensor lengths, float scale) -> Tensor"
RUNG(day74, decode_int8_v1_floats, DECODE_INT8);
RUNG(day74, decode_int8_v2_integers, DECODE_INT8);

// Day 74, second file: the cache in int8, with an fp32 scale per token and head
//
//   append_int8   s = max |k| / 127, codes = round(k / s), for each of the B · H new rows
//   decode_int8   v3 on int8: D + 4 bytes per row instead of 2 · D
//
// Run: python run_day.py 74

#include "common/cuda/binding.cuh"  // taught in day 6
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
    // A scale that is subnormal is so coarse that a quotient may be 128.
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
  check(v, "v").on_gpu().like(k, "k").contiguous();
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
// decode_int8: the loop of v3. A byte becomes fp32 by one PRMT and one subtraction.

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
__global__ void __launch_bounds__(BLOCK, 3) decode_int8_kernel(Decode<T, Int8Cache> n) {
  decode_head<D>(n);
}

Tensor decode_int8(const Tensor& q, const Tensor& keys, const Tensor& values,
                   const Tensor& key_scales, const Tensor& value_scales, const Tensor& lengths,
                   double scale) {
  const Sizes n = check_cache(q, "q", keys, values, lengths, "lengths");
  check(keys, "keys").dtype({ScalarType::Char});
  check_scales(key_scales, "key_scales", keys, n);
  check_scales(value_scales, "value_scales", keys, n);
  const auto cache = [&](auto) {
    return Int8Cache{data<int8_t>(keys), data<int8_t>(values), data<float>(key_scales),
                     data<float>(value_scales)};
  };
  return decode_into(q, n, lengths, scale, "decode_int8", cache,
                     [&](auto n, auto width, auto heads) {
                       decode_int8_kernel<typename decltype(n)::Type, width>
                           <<<heads, BLOCK, 0, current_stream(q)>>>(n);
                     });
}

// ---------------------------------------------------------------------------------------------

RUNG(day74, append_int8,
     "(Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) key_scales, "
     "Tensor(d!) value_scales, Tensor positions) -> ()");
RUNG(day74, decode_int8,
     "(Tensor q, Tensor keys, Tensor values, Tensor key_scales, Tensor value_scales, "
     "Tensor lengths, float scale) -> Tensor");

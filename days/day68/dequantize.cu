// Day 68: dequantisation and the activations, in CUDA and in Triton
//
//   GELU     y[r, c] = gelu(s[r] · q[r, c])        q: (rows, cols) int8, s: (rows,) fp32
//   SwiGLU   y[r, c] = silu(a[r, c]) · b[r, c]     w: (rows, cols) bytes, s: (rows, cols / 64) fp32
//
// y: (rows, cols) bf16. The bytes of w are 2 · cols codes of int4 per row, the first of two in the
// high half: a is the row's first half, b its second one. A code k is (k - 8) · s, and 128 codes
// share an s. Bytes per element of y: 1 + 2 with int8, 1 + 2 + 1/16 with int4.
// Operations: at 4.28 TB/s an H200 makes 1.43 T elements per second and can issue 23 instructions
// for each of them. More than that, and memory waits.
//
//   v1 scalar   one element per thread
//   v2 vectors  8 elements per thread and store, four loads in flight; a conversion per code
//   v3 fast     bytes become fp32 by a permutation, activations by one or two special functions
//
// dequantize_triton.py has the twins, v4. Run: python run_day.py 68

#include "common/cuda/binding.cuh"   // taught in day 6
#include "common/cuda/pack.cuh"      // taught in day 2
#include "common/cuda/ptx/exp2.cuh"  // taught in day 20
#include "common/cuda/tensor.cuh"    // taught in days 6 and 12

#include <cstring>
#include <string>

constexpr int BLOCK = 256;  // threads
constexpr int LOADS = 4;    // in flight per thread
constexpr int EIGHT = 8;    // elements per thread at a time: 16 bytes of y
constexpr int GROUP = 128;  // codes of int4 that share a scale

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float INV_SQRT_2 = 0.70710678118654752f;
constexpr float TANH_LINEAR = 1.5957691216057308f;   // 2 · √(2/π)
constexpr float TANH_CUBIC = 0.071354816272600250f;  // 0.044715 · 2 · √(2/π)

// ---------------------------------------------------------------------------------------------
// Codes to numbers, without their scale.

// In fp32, 0x4b000000 is 2^23, where the lowest bit counts 1. So 0x4b0000uu is 2^23 + u, exactly.
// One permutation of bytes puts byte `at` of `bytes` there. Returns u - OFFSET.
template <int OFFSET>
__device__ float number_of_byte(uint32_t bytes, int at) {
  const uint32_t bits = __byte_perm(bytes, 0x4b000000, 0x7440 | at);  // digits: byte 7, 4, 4, at
  return __uint_as_float(bits) - (8388608.0f + OFFSET);
}

// Four codes of int8. FAST: with its sign bit flipped, a code is the byte code + 128.
template <bool FAST>
__device__ void int8_numbers(float* x, uint32_t codes) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = FAST ? number_of_byte<128>(codes ^ 0x80808080, i)
                : static_cast<float>(static_cast<int8_t>(codes >> 8 * i));
  }
}

// Eight codes of int4: of each byte the high half, then the low half.
template <bool FAST>
__device__ void int4_numbers(float* x, uint32_t codes) {
  const uint32_t halves[2] = {codes >> 4 & 0x0f0f0f0f, codes & 0x0f0f0f0f};  // one code per byte
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) {
    const uint32_t bytes = halves[i % 2];
    x[i] = FAST ? number_of_byte<8>(bytes, i / 2)
                : static_cast<float>(static_cast<int>(bytes >> i / 2 * 8 & 255) - 8);
  }
}

// ---------------------------------------------------------------------------------------------
// The activations. Their arguments are PRE · scale · number: a factor that is free in the scale.

// 16 · v / (1 + 2^x), with one power and one reciprocal, from v and x - 4. A divisor above 2^126
// would have the reciprocal 0; (1 + 2^x) / 16 stays below that until 2^x is infinite in fp32.
__device__ float over_power(float v, float x_minus_4) {
  return __fdividef(v, 0.0625f + ptx::exp2_approx(x_minus_4));
}

// silu(a) · b = a / (1 + e^-a) · b. FAST: the second argument is b / 16.
template <bool FAST>
struct SwiGlu {
  static constexpr float PRE = FAST ? 0.0625f : 1;  // of b

  __device__ static float value(float a, float b) {
    return FAST ? over_power(a, a * -LOG2_E - 4.0f) * b : a / (1.0f + expf(-a)) * b;
  }
};

// v · sigmoid(2u) = v / 2 · (1 + tanh(u)), with 2u = v · (TANH_LINEAR + TANH_CUBIC · v²). FAST: the
// argument is v / 16.
template <bool FAST>
struct GeluTanh {
  static constexpr float PRE = FAST ? 0.0625f : 1;

  __device__ static float value(float v) {
    constexpr float LINEAR = -LOG2_E * TANH_LINEAR * 16;
    constexpr float CUBIC = -LOG2_E * TANH_CUBIC * 16 * 16 * 16;
    return FAST ? over_power(v, v * (LINEAR + CUBIC * (v * v)) - 4.0f)
                : v / (1.0f + expf(-v * (TANH_LINEAR + TANH_CUBIC * v * v)));
  }
};

template <bool FAST>
struct Gelu;

template <>
struct Gelu<false> {
  static constexpr float PRE = 1;

  __device__ static float value(float v) { return 0.5f * v * erfcf(-v * INV_SQRT_2); }
};

// gelu(v) = max(v, 0) - |v| · Φ(-|v|), and Φ(-t) is a power of two of nearly a parabola (day 47).
// The argument is h = v / 2: then max(v, 0) is h + |h|, which passes NaN on, and with t = |h| the
// rest is t · 2^(1 + log2 Φ(-2t)). The polynomial is within 8e-4 of that exponent up to t = 6.6: a
// seventh of an ulp of bf16. There the power is below the smallest normal number, and counts as 0.
template <>
struct Gelu<true> {
  static constexpr float PRE = 0.5f;

  __device__ static float value(float h) {
    constexpr float COEFFICIENTS[] = {-4.0893536e-05f, 1.1402730e-03f,  -1.3390527e-02f,
                                      8.7293331e-02f,  -3.5525363e-01f, -1.8917839f,
                                      -2.2858654f,     -7.8189869e-04f};
    const float t = fminf(fabsf(h), 6.6f);
    float sum = COEFFICIENTS[0];
#pragma unroll
    for (int k = 1; k < 8; ++k) sum = sum * t + COEFFICIENTS[k];
    return (h + fabsf(h)) - t * ptx::exp2_approx(sum);
  }
};

// Calls launch with the functor of that name, which torch's F.gelu calls `approximate`.
template <bool FAST, typename Launch>
void with_gelu(const std::string& approximate, Launch&& launch) {
  if (approximate == "none") return launch(Gelu<FAST>{});
  if (approximate == "tanh") return launch(GeluTanh<FAST>{});
  STD_TORCH_CHECK(false, "approximate: expected none or tanh, got '", approximate, "'");
}

// ---------------------------------------------------------------------------------------------
// What all kernels share. A block has one row, blockIdx.x, and a part of it, blockIdx.y.

template <typename Code>
struct Arguments {
  const Code* codes;    // of int4: two per byte
  const float* scales;  // (rows,), of int4 (rows, cols / 64)
  __nv_bfloat16* y;     // (rows, cols)
  int64_t cols;         // of y
};

// Two bf16 per register, stored by one instruction.
using Stored = Pack<uint32_t>;

__device__ Stored rounded(const float (&v)[EIGHT]) {
  Stored stored;
#pragma unroll
  for (int j = 0; j < EIGHT / 2; ++j) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
    memcpy(&stored.at[j], &pair, sizeof pair);
  }
  return stored;
}

// One block per row and per `each` of the `count` pieces that a row has.
dim3 grid_of(const Tensor& codes, int64_t count, int64_t each) {
  return {grid_size(codes.size(0), "codes"), grid_size_y(ceil_div(count, each), "codes")};
}

// Makes y, and calls launch(arguments) unless it is empty.
template <typename Code, typename Launch>
Tensor dequantize(const Tensor& codes, const Tensor& scales, Launch&& launch) {
  const DeviceGuard guard(codes);
  const int64_t rows = codes.size(0), cols = codes.size(1);
  Tensor y = allocate(codes, {rows, cols}, ScalarType::BFloat16);
  if (y.numel() == 0) return y;
  launch(Arguments<Code>{data<Code>(codes), data<float>(scales), mutable_data<__nv_bfloat16>(y),
                         cols});
  check_launch("dequantize");
  return y;
}

// ---------------------------------------------------------------------------------------------
// int8 and GELU, v1: one element per thread.

template <typename A>
__global__ void __launch_bounds__(BLOCK) gelu_v1_scalar_kernel(const Arguments<int8_t> p) {
  const int64_t row = blockIdx.x, c = int64_t{blockIdx.y} * BLOCK + threadIdx.x;
  if (c >= p.cols) return;
  const float number = static_cast<float>(p.codes[row * p.cols + c]);
  p.y[row * p.cols + c] = __float2bfloat16(A::value(number * (A::PRE * p.scales[row])));
}

// Chunks of EIGHT elements that a block has at most.
constexpr int64_t CHUNKS = BLOCK * LOADS;

// v2 against v1: 8 codes per load and 16 bytes per store. A load of 16 codes would leave a thread
// with two stores, of which each reaches a half of every sector of 32 bytes. All loads of a thread
// are issued before the first one is used. v3 against v2: FAST.
template <typename A, bool FAST>
__global__ void __launch_bounds__(BLOCK) gelu_vectors_kernel(const Arguments<int8_t> p) {
  const int64_t row = blockIdx.x, chunks = p.cols / EIGHT;
  const int64_t first = blockIdx.y * CHUNKS + threadIdx.x;
  const int left = static_cast<int>(min(chunks - first, CHUNKS));  // from this thread's first on
  const auto* from = reinterpret_cast<const uint2*>(p.codes) + row * chunks + first;
  auto* to = reinterpret_cast<Stored*>(p.y) + row * chunks + first;
  uint2 loaded[LOADS] = {};
#pragma unroll
  for (int k = 0; k < LOADS; ++k) {
    if (k * BLOCK < left) loaded[k] = from[k * BLOCK];
  }
  const float scale = A::PRE * p.scales[row];
#pragma unroll
  for (int k = 0; k < LOADS; ++k) {
    if (k * BLOCK >= left) break;
    float v[EIGHT];
    int8_numbers<FAST>(v, loaded[k].x);
    int8_numbers<FAST>(v + 4, loaded[k].y);
#pragma unroll
    for (float& one : v) one = A::value(one * scale);
    to[k * BLOCK] = rounded(v);
  }
}

// FAST decides the functions, VECTORS the kernel. A row that is not made of whole, aligned chunks
// is one for v1's kernel.
template <bool FAST, bool VECTORS>
Tensor gelu(const Tensor& codes, const Tensor& scales, const std::string& approximate) {
  check(codes, "codes").on_gpu().dtype({ScalarType::Char}).rank(2).contiguous();
  check(scales, "scales").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(scales, "scales").size(0, codes.size(0)).same_device(codes, "codes");
  Tensor result;
  with_gelu<FAST>(approximate, [&](auto a) {
    using A = decltype(a);
    result = dequantize<int8_t>(codes, scales, [&](const Arguments<int8_t>& p) {
      const cudaStream_t stream = current_stream(codes);
      if (VECTORS && p.cols % EIGHT == 0 && is_aligned(codes, EIGHT)) {
        const dim3 grid = grid_of(codes, p.cols / EIGHT, CHUNKS);
        gelu_vectors_kernel<A, FAST><<<grid, BLOCK, 0, stream>>>(p);
        return;
      }
      if (VECTORS) fell_back("gelu_v1_scalar", "rows that are no whole, aligned chunks");
      gelu_v1_scalar_kernel<A><<<grid_of(codes, p.cols, BLOCK), BLOCK, 0, stream>>>(p);
    });
  });
  return result;
}

Tensor gelu_v1_scalar(const Tensor& codes, const Tensor& scales, const std::string& approximate) {
  return gelu<false, false>(codes, scales, approximate);
}

Tensor gelu_v2_vectors(const Tensor& codes, const Tensor& scales, const std::string& approximate) {
  return gelu<false, true>(codes, scales, approximate);
}

Tensor gelu_v3_fast(const Tensor& codes, const Tensor& scales, const std::string& approximate) {
  return gelu<true, true>(codes, scales, approximate);
}

// ---------------------------------------------------------------------------------------------
// int4 and SwiGLU, v1: one element per thread, from two half bytes.

// Code c of a row of int4, without its scale.
__device__ float int4_number(const uint8_t* row, int64_t c) {
  return static_cast<float>((c % 2 ? row[c / 2] & 15 : row[c / 2] >> 4) - 8);
}

template <typename A>
__global__ void __launch_bounds__(BLOCK) swiglu_v1_scalar_kernel(const Arguments<uint8_t> p) {
  const int64_t row = blockIdx.x, c = int64_t{blockIdx.y} * BLOCK + threadIdx.x;
  if (c >= p.cols) return;
  const uint8_t* codes = p.codes + row * p.cols;
  const float* scales = p.scales + row * (2 * p.cols / GROUP);
  const float a = int4_number(codes, c) * scales[c / GROUP];
  const float b = int4_number(codes, p.cols + c) * (A::PRE * scales[(p.cols + c) / GROUP]);
  p.y[row * p.cols + c] = __float2bfloat16(A::value(a, b));
}

// v2 against v1: 4 bytes of each half are 8 elements, all of one group. A thread's chunks lie BLOCK
// apart, which are whole groups: its addresses are constant distances from five pointers. v3
// against v2: FAST.
template <typename A, bool FAST>
__global__ void __launch_bounds__(BLOCK) swiglu_vectors_kernel(const Arguments<uint8_t> p) {
  constexpr int CHUNKS_OF_GROUP = GROUP / EIGHT, STEP = BLOCK / CHUNKS_OF_GROUP;  // in groups
  static_assert(BLOCK % CHUNKS_OF_GROUP == 0);
  const int64_t row = blockIdx.x, chunks = p.cols / EIGHT;
  const int64_t first = blockIdx.y * CHUNKS + threadIdx.x;
  const int left = static_cast<int>(min(chunks - first, CHUNKS));  // from this thread's first on
  const auto* gate = reinterpret_cast<const uint32_t*>(p.codes) + 2 * row * chunks + first;
  const auto* up = gate + chunks;
  const float* gate_scale = p.scales + row * (2 * p.cols / GROUP) + first / CHUNKS_OF_GROUP;
  const float* up_scale = gate_scale + p.cols / GROUP;
  auto* to = reinterpret_cast<Stored*>(p.y) + row * chunks + first;
  struct Loaded {
    uint32_t gate, up;
    float gate_scale, up_scale;
  };
  Loaded loaded[LOADS] = {};
#pragma unroll
  for (int k = 0; k < LOADS; ++k) {
    if (k * BLOCK >= left) break;
    loaded[k] = {gate[k * BLOCK], up[k * BLOCK], gate_scale[k * STEP], up_scale[k * STEP]};
  }
#pragma unroll
  for (int k = 0; k < LOADS; ++k) {
    if (k * BLOCK >= left) break;
    float a[EIGHT], b[EIGHT];
    int4_numbers<FAST>(a, loaded[k].gate);
    int4_numbers<FAST>(b, loaded[k].up);
    const float a_scale = loaded[k].gate_scale, b_scale = A::PRE * loaded[k].up_scale;
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) a[i] = A::value(a[i] * a_scale, b[i] * b_scale);
    to[k * BLOCK] = rounded(a);
  }
}

template <bool FAST, bool VECTORS>
Tensor swiglu(const Tensor& codes, const Tensor& scales) {
  check(codes, "codes").on_gpu().dtype({ScalarType::Byte}).rank(2).contiguous();
  const int64_t cols = codes.size(1);
  STD_TORCH_CHECK(cols % GROUP == 0, "codes: expected rows of a multiple of ", GROUP,
                  " bytes, which are whole groups in both halves, got ", cols);
  check(scales, "scales").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(scales, "scales").size(0, codes.size(0)).size(1, 2 * cols / GROUP);
  check(scales, "scales").same_device(codes, "codes");
  return dequantize<uint8_t>(codes, scales, [&](const Arguments<uint8_t>& p) {
    const cudaStream_t stream = current_stream(codes);
    if (VECTORS && is_aligned(codes, sizeof(uint32_t))) {
      const dim3 grid = grid_of(codes, cols / EIGHT, CHUNKS);
      swiglu_vectors_kernel<SwiGlu<FAST>, FAST><<<grid, BLOCK, 0, stream>>>(p);
      return;
    }
    if (VECTORS) fell_back("swiglu_v1_scalar", "codes that are not aligned");
    swiglu_v1_scalar_kernel<SwiGlu<FAST>><<<grid_of(codes, cols, BLOCK), BLOCK, 0, stream>>>(p);
  });
}

Tensor swiglu_v1_scalar(const Tensor& codes, const Tensor& scales) {
  return swiglu<false, false>(codes, scales);
}

Tensor swiglu_v2_vectors(const Tensor& codes, const Tensor& scales) {
  return swiglu<false, true>(codes, scales);
}

Tensor swiglu_v3_fast(const Tensor& codes, const Tensor& scales) {
  return swiglu<true, true>(codes, scales);
}

// ---------------------------------------------------------------------------------------------

#define GELU "(Tensor codes, Tensor scales, str approximate) -> Tensor"
RUNG(day68, gelu_v1_scalar, GELU);
RUNG(day68, gelu_v2_vectors, GELU);
RUNG(day68, gelu_v3_fast, GELU);

RUNG(day68, swiglu_v1_scalar, "(Tensor codes, Tensor scales) -> Tensor");
RUNG(day68, swiglu_v2_vectors, "(Tensor codes, Tensor scales) -> Tensor");
RUNG(day68, swiglu_v3_fast, "(Tensor codes, Tensor scales) -> Tensor");

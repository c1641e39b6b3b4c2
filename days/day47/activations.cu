// Day 47: activation functions, forward and backward, alone and gated
//
//   y[i] = f(x[i])               f: gelu, gelu_tanh, silu, tanh, sigmoid; tensors of any shape
//   gx[i] = gy[i] · f'(x[i])     its gradient
//   y[i] = f(gate[i]) · up[i]    GeGLU with f = gelu, SwiGLU with f = silu
//
//   sigmoid(v) = 1 / (1 + e^-v)      silu(v) = v · sigmoid(v)      gelu(v) = v · Φ(v)
//   gelu_tanh(v) = v/2 · (1 + tanh(u)) = v · sigmoid(2u),  u = √(2/π) · (v + 0.044715 · v³)
//   Φ: the distribution function of the standard normal distribution, (1 + erf(v / √2)) / 2
//
// Bytes: one pass over n · sizeof(T) per tensor. f: 2 passes, its gradient 3; gated: 3, its
// gradients 5. Operations: 10 to 50 per element, so in 16-bit types the arithmetic decides.
//
//   v1 scalar       one element per thread; gated: a launch for f, another for the product
//   v2 vectorised   16 bytes per load; gated: the product in the same launch
//   v3 fast         bf16: the special function unit, and Φ as a power of 2
//
// Run: python run_day.py 47

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <string>
#include <tuple>
#include <type_traits>

constexpr int BLOCK = 256;  // threads; 8 blocks of 256 fill a multiprocessor's 2048 places

constexpr float INV_SQRT_2 = 0.70710678118654752f;
constexpr float INV_SQRT_2PI = 0.39894228040143268f;
constexpr float GELU_LINEAR = 1.5957691216057308f;   // 2 · √(2/π)
constexpr float GELU_CUBIC = 0.071354816272600250f;  // 0.044715 · 2 · √(2/π)

// ---------------------------------------------------------------------------------------------
// The functions, in fp32. FAST: by the special function unit, for results of at most 11 bits.

template <bool FAST>
__device__ float exponential(float v) {
  return FAST ? __expf(v) : expf(v);
}

// σ(v) and σ(-v) = 1 - σ(v), both with all their digits: with h = e^-|v|, which is at most 1, they
// are 1 / (1 + h) and h / (1 + h). The difference 1 - σ(v) is 0 from v = 17 on.
struct Sigmoids {
  float plus, minus;
};

template <bool FAST>
__device__ Sigmoids sigmoids(float v) {
  const float h = exponential<FAST>(-fabsf(v));
  const float large = FAST ? __fdividef(1.0f, 1.0f + h) : 1.0f / (1.0f + h);
  const float small = h * large;
  if (v < 0) return {small, large};
  return {large, small};
}

// log2 Φ(-t) for t from 0 on: within 3e-6 around t = 0.75, where GELU's derivative crosses zero,
// and within 1e-3 up to 13.5, where Φ leaves the range of fp32. Beyond, it falls to -inf, since the
// first coefficient is negative. Weighted minimax coefficients, the highest power first.
__device__ float log2_tail(float t) {
  constexpr float COEFFICIENTS[] = {
      -1.0070319e-09f, 9.57638093e-08f, -3.65292772e-06f, 7.61742558e-05f, -9.88164102e-04f,
      8.62376485e-03f, -0.0540803485f,  -0.458391309f,    -1.15127897f,    -0.999992073f};
  float sum = COEFFICIENTS[0];
#pragma unroll
  for (int k = 1; k < 10; ++k) sum = sum * t + COEFFICIENTS[k];  // Horner's scheme
  return sum;
}

// Φ(v). Where v is negative, (1 + erf(v / √2)) / 2 would be the small difference of two numbers
// around 1/2. erfc, its complement, and 2^log2_tail keep the digits of small results.
template <bool FAST>
__device__ float normal_cdf(float v) {
  if constexpr (!FAST) return 0.5f * erfcf(-v * INV_SQRT_2);
  const float tail = exp2f(log2_tail(fabsf(v)));
  return v < 0 ? tail : 1.0f - tail;
}

// max(v, 0), where NaN stays NaN.
__device__ float positive_part(float v) {
#if !defined(CUDA_ON_CPU) && __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(v), "f"(0.0f));
  return result;
#else
  return v < 0.0f ? 0.0f : v;
#endif
}

// gelu(v) = max(v, 0) - |v| · Φ(-|v|), without a comparison. A polynomial of degree 7 stays within
// 1e-3 of log2 Φ(-t) up to t = 13.7, and its first coefficient is negative. It is one in
// u = -t / 2^12, and 12 is added to its last coefficient, so that ex2 gives 2^12 · Φ(-t): the
// instruction gives 0 for subnormal results, and 2^12 · Φ(-t) is none where |v| · Φ is one of
// bf16's normal numbers. Then u · 2^12 · Φ(-t) = -t · Φ(-t). t ends at 16, so that inf · 0 is not
// computed.
__device__ float fast_gelu(float v) {
  constexpr float SCALE = -4096.0f;
  constexpr float COEFFICIENTS[] = {-2.80987331e-07f, 1.6169705e-05f,   -3.91032199e-04f,
                                    5.23208469e-03f,  -0.0434830181f,   -0.474729036f,
                                    -1.14167098f,     -1.00092401f + 12};
  const float u = fabsf(fminf(v, 16.0f)) * (1 / SCALE);
  float power = SCALE * SCALE * SCALE * SCALE * SCALE * SCALE * SCALE;
  float sum = COEFFICIENTS[0] * power;
#pragma unroll
  for (int k = 1; k < 8; ++k) {
    power *= 1 / SCALE;
    sum = sum * u + COEFFICIENTS[k] * power;
  }
  return fmaf(u, ptx::exp2_approx(sum), positive_part(v));
}

// Each functor has a function and its derivative.
template <bool FAST>
struct Gelu {
  __device__ static float value(float v) { return v * normal_cdf<FAST>(v); }
  __device__ static float derivative(float v) {
    return normal_cdf<FAST>(v) + v * (INV_SQRT_2PI * exponential<FAST>(-0.5f * v * v));
  }
};

template <bool FAST>
struct GeluTanh {
  __device__ static float value(float v) {
    return v * sigmoids<FAST>(v * (GELU_LINEAR + GELU_CUBIC * v * v)).plus;
  }
  __device__ static float derivative(float v) {
    const Sigmoids s = sigmoids<FAST>(v * (GELU_LINEAR + GELU_CUBIC * v * v));
    const float w = fminf(fabsf(v), 16.0f);  // beyond, s.minus or s.plus is 0: not 0 · inf
    return s.plus + v * (s.plus * s.minus) * (GELU_LINEAR + 3.0f * GELU_CUBIC * w * w);
  }
};

template <bool FAST>
struct Silu {
  __device__ static float value(float v) { return v * sigmoids<FAST>(v).plus; }
  __device__ static float derivative(float v) {
    const Sigmoids s = sigmoids<FAST>(v);
    return s.plus + v * (s.plus * s.minus);
  }
};

template <bool FAST>
struct Tanh {
  __device__ static float value(float v) { return FAST ? __tanhf(v) : tanhf(v); }
  __device__ static float derivative(float v) {  // 1 - tanh² loses its digits where tanh is near 1
    const Sigmoids s = sigmoids<FAST>(2.0f * v);
    return 4.0f * (s.plus * s.minus);
  }
};

template <bool FAST>
struct Sigmoid {
  __device__ static float value(float v) { return sigmoids<FAST>(v).plus; }
  __device__ static float derivative(float v) {
    const Sigmoids s = sigmoids<FAST>(v);
    return s.plus * s.minus;
  }
};

// Calls launch with the functor of that name.
template <bool FAST, typename Launch>
void with_function(const std::string& name, Launch launch) {
  if (name == "gelu") return launch(Gelu<FAST>{});
  if (name == "gelu_tanh") return launch(GeluTanh<FAST>{});
  if (name == "silu") return launch(Silu<FAST>{});
  if (name == "tanh") return launch(Tanh<FAST>{});
  if (name == "sigmoid") return launch(Sigmoid<FAST>{});
  STD_TORCH_CHECK(false, "function: expected gelu, gelu_tanh, silu, tanh or sigmoid, got '", name,
                  "'");
}

// The functions that are used as gates: of GeGLU and SwiGLU.
template <bool FAST, typename Launch>
void with_gate_function(const std::string& name, Launch launch) {
  if (name == "gelu") return launch(Gelu<FAST>{});
  if (name == "silu") return launch(Silu<FAST>{});
  STD_TORCH_CHECK(false, "function: expected gelu (GeGLU) or silu (SwiGLU), got '", name, "'");
}

// ---------------------------------------------------------------------------------------------
// What one element costs, as operators from IN numbers to OUT numbers. A is one of the functors.

// A's value where its derivative, which shares Φ with it, is not wanted.
template <typename A>
__device__ float value_alone(float v) {
  if constexpr (std::is_same_v<A, Gelu<true>>) return fast_gelu(v);
  return A::value(v);
}

template <typename A>
struct Forward {  // x → y
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    out[0] = value_alone<A>(in[0]);
  }
};

template <typename A>
struct Backward {  // gy, x → gx
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = in[0] * A::derivative(in[1]);
  }
};

struct Product {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = in[0] * in[1];
  }
};

template <typename A>
struct Gated {  // gate, up → y
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = value_alone<A>(in[0]) * in[1];
  }
};

template <typename A>
struct GatedBackward {  // gy, gate, up → ggate, gup
  __device__ void operator()(const float (&in)[3], float (&out)[2]) const {
    out[0] = in[0] * in[2] * A::derivative(in[1]);
    out[1] = in[0] * A::value(in[1]);
  }
};

// ---------------------------------------------------------------------------------------------
// v1: one kernel for any operator, one element per thread.

template <typename T, int IN, int OUT>
struct Streams {
  const T* in[IN];  // each [0, n)
  T* out[OUT];      // each [0, n)
};

template <typename T, int IN, int OUT, typename F>
__device__ void map_element(const Streams<T, IN, OUT>& s, int64_t i, F f) {
  float in[IN], out[OUT];
#pragma unroll
  for (int k = 0; k < IN; ++k) in[k] = static_cast<float>(s.in[k][i]);
  f(in, out);
#pragma unroll
  for (int k = 0; k < OUT; ++k) s.out[k][i] = static_cast<T>(out[k]);
}

template <typename T, int IN, int OUT, typename F>
__global__ void __launch_bounds__(BLOCK)
    map_elements_kernel(Streams<T, IN, OUT> s, int64_t n, F f) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) map_element(s, i, f);
}

template <typename T, int IN, int OUT, typename F>
void map_elements(const Tensor& x, Streams<T, IN, OUT> s, F f) {
  const int64_t n = x.numel();
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  map_elements_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(s, n, f);
}

Tensor activation_v1_scalar(const Tensor& x, const std::string& function) {
  check(x, "x").on_gpu().floating().contiguous();
  Tensor y;
  with_function<false>(function, [&](auto a) {
    y = output_like(x, "activation_v1_scalar", [&](auto zero, auto* out) {
      using T = decltype(zero);
      map_elements(x, Streams<T, 1, 1>{{data<T>(x)}, {out}}, Forward<decltype(a)>{});
    });
  });
  return y;
}

void check_gated(const Tensor& gate, const Tensor& up) {
  check(gate, "gate").on_gpu().floating().contiguous();
  check(up, "up").on_gpu().like(gate, "gate").contiguous();
}

Tensor gated_v1_separate(const Tensor& gate, const Tensor& up, const std::string& function) {
  check_gated(gate, up);
  Tensor y;
  with_gate_function<false>(function, [&](auto a) {
    y = output_like(gate, "gated_v1_separate", [&](auto zero, auto* out) {
      using T = decltype(zero);
      map_elements(gate, Streams<T, 1, 1>{{data<T>(gate)}, {out}}, Forward<decltype(a)>{});
      map_elements(gate, Streams<T, 2, 1>{{out, data<T>(up)}, {out}}, Product{});  // in place
    });
  });
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: 16 bytes per load and store, 8 elements per thread in 16-bit types. And a gate and
// its product are one operator of two inputs, so f(gate) stays in a register: 3 passes, not 5.

template <typename T, int IN, int OUT, typename F>
__global__ void __launch_bounds__(BLOCK)
    map_packs_kernel(Streams<T, IN, OUT> s, int64_t n, int64_t packs, F f) {
  constexpr int N = Pack<T>::N;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < packs) {
    Pack<T> in[IN], out[OUT];
#pragma unroll
    for (int k = 0; k < IN; ++k) in[k] = reinterpret_cast<const Pack<T>*>(s.in[k])[i];
#pragma unroll
    for (int e = 0; e < N; ++e) {
      float from[IN], to[OUT];
#pragma unroll
      for (int k = 0; k < IN; ++k) from[k] = static_cast<float>(in[k].at[e]);
      f(from, to);
#pragma unroll
      for (int k = 0; k < OUT; ++k) out[k].at[e] = static_cast<T>(to[k]);
    }
#pragma unroll
    for (int k = 0; k < OUT; ++k) reinterpret_cast<Pack<T>*>(s.out[k])[i] = out[k];
  }
  const int64_t rest = packs * N + i;  // [packs · N, n)
  if (rest < n) map_element(s, rest, f);
}

// aligned: whether all inputs begin on a multiple of 16 bytes. If not, no element is in a pack.
// FAST: F uses fast functions, and its kernels are built for bf16 alone, all that v3 takes.
template <bool FAST, typename T, int IN, int OUT, typename F>
void map_packs(const Tensor& x, Streams<T, IN, OUT> s, bool aligned, F f) {
  const int64_t n = x.numel();
  const int64_t packs = aligned ? n / Pack<T>::N : 0;
  const int64_t threads = aligned ? ceil_div<int64_t>(n, Pack<T>::N) : n;
  const unsigned grid = grid_size(ceil_div<int64_t>(threads, BLOCK), "x");
  if constexpr (!FAST || std::is_same_v<T, __nv_bfloat16>) {
    map_packs_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(s, n, packs, f);
  }
}

template <bool FAST>
Tensor activation(const char* name, const Tensor& x, const std::string& function) {
  Tensor y;
  with_function<FAST>(function, [&](auto a) {
    y = output_like(x, name, [&](auto zero, auto* out) {
      using T = decltype(zero);
      map_packs<FAST>(x, Streams<T, 1, 1>{{data<T>(x)}, {out}}, is_aligned(x, 16),
                      Forward<decltype(a)>{});
    });
  });
  return y;
}

template <bool FAST>
Tensor activation_backward(const char* name, const Tensor& gy, const Tensor& x,
                           const std::string& function) {
  Tensor gx;
  with_function<FAST>(function, [&](auto a) {
    gx = output_like(x, name, [&](auto zero, auto* out) {
      using T = decltype(zero);
      map_packs<FAST>(x, Streams<T, 2, 1>{{data<T>(gy), data<T>(x)}, {out}},
                      is_aligned(gy, 16) && is_aligned(x, 16), Backward<decltype(a)>{});
    });
  });
  return gx;
}

template <bool FAST>
Tensor gated(const char* name, const Tensor& gate, const Tensor& up, const std::string& function) {
  Tensor y;
  with_gate_function<FAST>(function, [&](auto a) {
    y = output_like(gate, name, [&](auto zero, auto* out) {
      using T = decltype(zero);
      map_packs<FAST>(gate, Streams<T, 2, 1>{{data<T>(gate), data<T>(up)}, {out}},
                      is_aligned(gate, 16) && is_aligned(up, 16), Gated<decltype(a)>{});
    });
  });
  return y;
}

template <bool FAST>
std::tuple<Tensor, Tensor> gated_backward(const char* name, const Tensor& gy, const Tensor& gate,
                                          const Tensor& up, const std::string& function) {
  Tensor gup = allocate_like(up), ggate;
  const bool aligned = is_aligned(gy, 16) && is_aligned(gate, 16) && is_aligned(up, 16);
  with_gate_function<FAST>(function, [&](auto a) {
    ggate = output_like(gate, name, [&](auto zero, auto* out) {
      using T = decltype(zero);
      map_packs<FAST>(
          gate,
          Streams<T, 3, 2>{{data<T>(gy), data<T>(gate), data<T>(up)}, {out, mutable_data<T>(gup)}},
          aligned, GatedBackward<decltype(a)>{});
    });
  });
  return {ggate, gup};
}

Tensor activation_v2_vectorised(const Tensor& x, const std::string& function) {
  check(x, "x").on_gpu().floating().contiguous();
  return activation<false>("activation_v2_vectorised", x, function);
}

Tensor activation_backward_v2(const Tensor& gy, const Tensor& x, const std::string& function) {
  check(x, "x").on_gpu().floating().contiguous();
  check(gy, "gy").on_gpu().like(x, "x").contiguous();
  return activation_backward<false>("activation_backward_v2", gy, x, function);
}

Tensor gated_v2_fused(const Tensor& gate, const Tensor& up, const std::string& function) {
  check_gated(gate, up);
  return gated<false>("gated_v2_fused", gate, up, function);
}

std::tuple<Tensor, Tensor> gated_backward_v2(const Tensor& gy, const Tensor& gate, const Tensor& up,
                                             const std::string& function) {
  check_gated(gate, up);
  check(gy, "gy").on_gpu().like(gate, "gate").contiguous();
  return gated_backward<false>("gated_backward_v2", gy, gate, up, function);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the same kernels with FAST functions. At the rate of a copy, a multiprocessor of
// an H200 has about 32 instructions per bf16 element of a forward pass; erfcf alone takes more.

// Other dtypes are refused: fp16 has 11 significant bits itself, fp32 24.
void check_bf16(const Tensor& x, const char* name) {
  check(x, name).dtype({ScalarType::BFloat16});
}

Tensor activation_v3_fast(const Tensor& x, const std::string& function) {
  check(x, "x").on_gpu().contiguous();
  check_bf16(x, "x");
  return activation<true>("activation_v3_fast", x, function);
}

Tensor activation_backward_v3(const Tensor& gy, const Tensor& x, const std::string& function) {
  check(x, "x").on_gpu().contiguous();
  check_bf16(x, "x");
  check(gy, "gy").on_gpu().like(x, "x").contiguous();
  return activation_backward<true>("activation_backward_v3", gy, x, function);
}

Tensor gated_v3_fast(const Tensor& gate, const Tensor& up, const std::string& function) {
  check_gated(gate, up);
  check_bf16(gate, "gate");
  return gated<true>("gated_v3_fast", gate, up, function);
}

std::tuple<Tensor, Tensor> gated_backward_v3(const Tensor& gy, const Tensor& gate, const Tensor& up,
                                             const std::string& function) {
  check_gated(gate, up);
  check_bf16(gate, "gate");
  check(gy, "gy").on_gpu().like(gate, "gate").contiguous();
  return gated_backward<true>("gated_backward_v3", gy, gate, up, function);
}

// ---------------------------------------------------------------------------------------------

RUNG(day47, activation_v1_scalar, "(Tensor x, str function) -> Tensor");
RUNG(day47, activation_v2_vectorised, "(Tensor x, str function) -> Tensor");
RUNG(day47, activation_v3_fast, "(Tensor x, str function) -> Tensor");
RUNG(day47, activation_backward_v2, "(Tensor gy, Tensor x, str function) -> Tensor");
RUNG(day47, activation_backward_v3, "(Tensor gy, Tensor x, str function) -> Tensor");
RUNG(day47, gated_v1_separate, "(Tensor gate, Tensor up, str function) -> Tensor");
RUNG(day47, gated_v2_fused, "(Tensor gate, Tensor up, str function) -> Tensor");
RUNG(day47, gated_v3_fast, "(Tensor gate, Tensor up, str function) -> Tensor");

#define GATED_BACKWARD "(Tensor gy, Tensor gate, Tensor up, str function) -> (Tensor, Tensor)"
RUNG(day47, gated_backward_v2, GATED_BACKWARD);
RUNG(day47, gated_backward_v3, GATED_BACKWARD);

// Day 47: other formulas of tanh, sigmoid and GELU, to measure their errors
//
//   y[i] = formula(x[i])         x, y: bf16, any shape
//
// Each is right in exact arithmetic, or almost. Which digits are left in fp32 before the result is
// rounded to bf16, `show` of day.py measures on all 65,536 numbers of the type. Not timed.
//
//   tanh.approx        the special function unit, 11 bits
//   tanh.approx.bf16   the same unit with bf16 operands (sm_90), or emulated
//   tanh_by_exp        1 - 2 / (1 + e^2v)
//   sigmoid_by_tanh    tanh.approx(v / 2) / 2 + 1/2
//   gelu_by_erf        v · (1 + erf(v / √2)) / 2, the formula that PyTorch's kernel uses
//   gelu_by_normcdf    v · normcdf(v), by CUDA's own Φ
//   gelu_by_hastings   the same formula with a short erf: Abramowitz and Stegun 7.1.26
//   gelu_tanh_approx   v/2 · (1 + tanh.approx(u))
//
// Run: python run_day.py 47

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

#include <string>

constexpr int FORMULA_BLOCK = 256;

struct TanhApprox {
  __device__ float operator()(float v) const { return __tanhf(v); }
};

struct TanhApproxBf16 {
  __device__ float operator()(float v) const {
    return __bfloat162float(htanh_approx(__float2bfloat16_rn(v)));
  }
};

struct TanhByExp {
  __device__ float operator()(float v) const { return 1.0f - 2.0f / (1.0f + expf(2.0f * v)); }
};

struct SigmoidByTanh {
  __device__ float operator()(float v) const { return 0.5f * __tanhf(0.5f * v) + 0.5f; }
};

struct GeluByErf {
  __device__ float operator()(float v) const {
    return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
  }
};

struct GeluByNormcdf {
  __device__ float operator()(float v) const { return v * normcdff(v); }
};

// erf(z) = 1 - (a1 t + … + a5 t⁵) · e^-z², t = 1 / (1 + p z), for z from 0 on: within 1.5e-7.
struct GeluByHastings {
  __device__ float operator()(float v) const {
    const float z = fabsf(v) * 0.70710678118654752f;
    const float t = 1.0f / (1.0f + 0.3275911f * z);
    float sum = 1.061405429f;
    for (float a : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) sum = sum * t + a;
    const float erf = copysignf(1.0f - sum * t * expf(-z * z), v);
    return 0.5f * v * (1.0f + erf);
  }
};

struct GeluTanhApprox {
  __device__ float operator()(float v) const {
    const float u = 0.79788456080286536f * (v + 0.044715f * v * v * v);
    return 0.5f * v * (1.0f + __tanhf(u));
  }
};

template <typename F>
__global__ void formula_kernel(const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ y,
                               int64_t n, F f) {
  const int64_t i = int64_t{blockIdx.x} * FORMULA_BLOCK + threadIdx.x;
  if (i < n) y[i] = __float2bfloat16_rn(f(__bfloat162float(x[i])));
}

template <typename F>
Tensor by(const Tensor& x, F f) {
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), FORMULA_BLOCK), "x");
  formula_kernel<<<grid, FORMULA_BLOCK, 0, current_stream(x)>>>(
      data<__nv_bfloat16>(x), mutable_data<__nv_bfloat16>(y), x.numel(), f);
  check_launch("formula");
  return y;
}

Tensor formula(const Tensor& x, const std::string& name) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16}).contiguous();
  if (name == "tanh.approx") return by(x, TanhApprox{});
  if (name == "tanh.approx.bf16") return by(x, TanhApproxBf16{});
  if (name == "tanh_by_exp") return by(x, TanhByExp{});
  if (name == "sigmoid_by_tanh") return by(x, SigmoidByTanh{});
  if (name == "gelu_by_erf") return by(x, GeluByErf{});
  if (name == "gelu_by_normcdf") return by(x, GeluByNormcdf{});
  if (name == "gelu_by_hastings") return by(x, GeluByHastings{});
  if (name == "gelu_tanh_approx") return by(x, GeluTanhApprox{});
  STD_TORCH_CHECK(false, "name: expected one of the formulas of formulas.cu, got '", name, "'");
}

RUNG(day47, formula, "(Tensor x, str name) -> Tensor");

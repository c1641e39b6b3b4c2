// Day 10: fusing a chain of element-wise operations
//
//   y[i] = tanh(sigmoid(relu(a · x[i] + b)))                                     x, y: any shape
//   gx[i] = gy[i] · (1 - y[i]²) · s[i] · (1 - s[i]) · [u[i] > 0] · a             its gradient
//           u = a · x + b,  s = sigmoid(relu(u)),  y = tanh(s)
//
// Bytes, in passes over n · sizeof(T): one launch per operation reads and writes the tensor four
// times, 8 passes; all four in one launch read once and write once, 2 passes. The gradient: 19
// passes against 3. Operations: 4 functions per element, of which expf, tanhf and the division take
// many instructions.
//
//   v1 unfused      one launch per operation, as separate operators do
//   v2 fused        one launch: the four functions composed into one functor
//   v3 vectorised   16 bytes per load and store: 8 bf16 elements per instruction instead of one
//   v4 fast         16-bit types: sigmoid and tanh by the special function unit
//   backward v1 unfused, v2 fused (vectorised; 16-bit types fast): the same for the gradient
//
// Run: python run_day.py 10

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"   // explained in days 6 and 12

#include <type_traits>

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// The functions, as functors (day 3). All compute in fp32.

struct ScaleAndShift {
  float a, b;
  __device__ float operator()(float v) const { return a * v + b; }
};

struct Relu {
  __device__ float operator()(float v) const { return v < 0 ? 0.0f : v; }  // NaN stays NaN
};

struct Sigmoid {
  __device__ float operator()(float v) const { return 1.0f / (1.0f + expf(-v)); }
};

struct Tanh {
  __device__ float operator()(float v) const { return tanhf(v); }
};

// ---------------------------------------------------------------------------------------------
// v1: one kernel for any function, one launch per function. Each launch reads from memory what the
// launch before it has just written.

template <typename T, typename F>
__global__ void map_kernel(const T* x, T* y, int64_t n, F f) {  // x and y may be the same
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) y[i] = static_cast<T>(f(static_cast<float>(x[i])));
}

Tensor chain_v1_unfused(const Tensor& x, double a, double b) {
  check(x, "x").on_gpu().floating().contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;  // a grid of 0 blocks is a launch error
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  const cudaStream_t stream = current_stream(x);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    T* out = mutable_data<T>(y);
    const ScaleAndShift scale{static_cast<float>(a), static_cast<float>(b)};
    map_kernel<<<grid, BLOCK, 0, stream>>>(data<T>(x), out, n, scale);
    map_kernel<<<grid, BLOCK, 0, stream>>>(out, out, n, Relu{});  // in place: no new tensor
    map_kernel<<<grid, BLOCK, 0, stream>>>(out, out, n, Sigmoid{});
    map_kernel<<<grid, BLOCK, 0, stream>>>(out, out, n, Tanh{});
  });
  check_launch("chain_v1_unfused");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one launch. Two functors composed are a functor, so the kernel stays the same. The
// compiler inlines all four functions, and intermediate results stay in registers.

template <typename F, typename G>
struct Composed {
  F f;
  G g;
  __device__ float operator()(float v) const { return g(f(v)); }
};

// then(f, g, h)(v) = h(g(f(v)))
template <typename F>
F then(F f) {
  return f;
}
template <typename F, typename G, typename... More>
auto then(F f, G g, More... more) {
  return then(Composed<F, G>{f, g}, more...);
}

Tensor chain_v2_fused(const Tensor& x, double a, double b) {
  check(x, "x").on_gpu().floating().contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  const ScaleAndShift scale{static_cast<float>(a), static_cast<float>(b)};
  const auto chain = then(scale, Relu{}, Sigmoid{}, Tanh{});
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    map_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), n, chain);
  });
  check_launch("chain_v2_fused");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: 16 bytes per load and store. In bf16 one instruction, one address and one
// comparison with n serve eight elements. The up to 7 elements after the last full pack are
// processed one by one.

template <typename T, typename F>
__global__ void map_packs_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t n, F f) {
  constexpr int N = Pack<T>::N;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t packs = n / N;
  if (i < packs) {
    Pack<T> v = reinterpret_cast<const Pack<T>*>(x)[i];
#pragma unroll
    for (int k = 0; k < N; ++k) v.at[k] = static_cast<T>(f(static_cast<float>(v.at[k])));
    reinterpret_cast<Pack<T>*>(y)[i] = v;
  }
  const int64_t rest = packs * N + i;  // [packs · N, n): fewer than N elements are left
  if (rest < n) y[rest] = static_cast<T>(f(static_cast<float>(x[rest])));
}

// y = f(x), 16 bytes per thread. x holds elements of type T and is aligned to 16 bytes.
template <typename T, typename F>
void map_packs(const Tensor& x, const Tensor& y, F f) {
  const int64_t n = x.numel();
  const unsigned grid = grid_size(ceil_div<int64_t>(ceil_div<int64_t>(n, Pack<T>::N), BLOCK), "x");
  map_packs_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), n, f);
}

Tensor chain_v3_vectorised(const Tensor& x, double a, double b) {
  check(x, "x").on_gpu().floating().contiguous();
  if (!is_aligned(x, 16)) {
    fell_back("chain_v2_fused", "x is not aligned to 16 bytes");  // a slice such as x[1:]
    return chain_v2_fused(x, a, b);
  }
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const ScaleAndShift scale{static_cast<float>(a), static_cast<float>(b)};
  const auto chain = then(scale, Relu{}, Sigmoid{}, Tanh{});
  dispatch_floating(x, [&](auto zero) { map_packs<decltype(zero)>(x, y, chain); });
  check_launch("chain_v3_vectorised");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: cheaper arithmetic. expf, the division and tanhf take many instructions to be
// accurate to the last bits of fp32, of which bf16 then drops 16. The special function unit
// (compute capability 7.5 and later) computes tanh in one instruction, accurate to about 11 bits:
// more than the 8 of bf16 and about the 11 of fp16. The sigmoid is a tanh, scaled and shifted.

struct FastTanh {
  __device__ float operator()(float v) const { return __tanhf(v); }  // tanh.approx.f32
};

struct FastSigmoid {
  __device__ float operator()(float v) const { return 0.5f * __tanhf(0.5f * v) + 0.5f; }
};

Tensor chain_v4_fast(const Tensor& x, double a, double b) {
  // fp32 is refused, since its users expect more than 11 bits.
  check(x, "x").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).contiguous();
  if (!is_aligned(x, 16)) {
    fell_back("chain_v2_fused", "x is not aligned to 16 bytes");
    return chain_v2_fused(x, a, b);
  }
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const ScaleAndShift scale{static_cast<float>(a), static_cast<float>(b)};
  const auto chain = then(scale, Relu{}, FastSigmoid{}, FastTanh{});
  dispatch_floating(x, [&](auto zero) { map_packs<decltype(zero)>(x, y, chain); });
  check_launch("chain_v4_fast");
  return y;
}

// ---------------------------------------------------------------------------------------------
// backward v1: one launch per factor. Only x is saved for the gradient, so u, s and y are computed
// again first: 4 launches of two passes, then 3 of three passes and one of two.

// Derivatives as functions of the output v, which is what PyTorch saves for these operators.
struct ReluDerivative {
  __device__ float operator()(float v) const { return v <= 0 ? 0.0f : 1.0f; }  // NaN: 1
};

struct SigmoidDerivative {
  __device__ float operator()(float v) const { return v * (1.0f - v); }
};

struct TanhDerivative {
  __device__ float operator()(float v) const { return 1.0f - v * v; }
};

// g[i] = from[i] · derivative(v[i]); g and from may be the same.
template <typename T, typename F>
__global__ void times_derivative_kernel(const T* from, const T* v, T* g, int64_t n, F derivative) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) {
    g[i] = static_cast<T>(static_cast<float>(from[i]) * derivative(static_cast<float>(v[i])));
  }
}

void check_gradient(const Tensor& gy, const Tensor& x) {
  check(x, "x").on_gpu().floating().contiguous();
  check(gy, "gy").on_gpu().like(x, "x").contiguous();
}

Tensor chain_backward_v1_unfused(const Tensor& gy, const Tensor& x, double a, double b) {
  check_gradient(gy, x);
  const DeviceGuard guard(x);
  Tensor gx = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return gx;
  Tensor r_kept = allocate_like(x);
  Tensor s_kept = allocate_like(x);
  Tensor y_kept = allocate_like(x);
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  const cudaStream_t stream = current_stream(x);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    T *r = mutable_data<T>(r_kept), *s = mutable_data<T>(s_kept), *y = mutable_data<T>(y_kept);
    T* g = mutable_data<T>(gx);
    const ScaleAndShift scale{static_cast<float>(a), static_cast<float>(b)};
    map_kernel<<<grid, BLOCK, 0, stream>>>(data<T>(x), r, n, scale);
    map_kernel<<<grid, BLOCK, 0, stream>>>(r, r, n, Relu{});
    map_kernel<<<grid, BLOCK, 0, stream>>>(r, s, n, Sigmoid{});
    map_kernel<<<grid, BLOCK, 0, stream>>>(s, y, n, Tanh{});
    times_derivative_kernel<<<grid, BLOCK, 0, stream>>>(data<T>(gy), y, g, n, TanhDerivative{});
    times_derivative_kernel<<<grid, BLOCK, 0, stream>>>(g, s, g, n, SigmoidDerivative{});
    times_derivative_kernel<<<grid, BLOCK, 0, stream>>>(g, r, g, n, ReluDerivative{});
    map_kernel<<<grid, BLOCK, 0, stream>>>(g, g, n, ScaleAndShift{scale.a, 0.0f});
  });
  check_launch("chain_backward_v1_unfused");
  return gx;
}

// ---------------------------------------------------------------------------------------------
// backward v2 against v1: one launch that reads only x and gy. Computing u, s and y again costs
// arithmetic; saving u and s beside the output would cost two tensors and passes to write and read.

template <bool FAST>
struct ChainGradient {
  float a, b;
  __device__ float operator()(float gy, float x) const {
    const float u = a * x + b, r = Relu{}(u), relu_derivative = ReluDerivative{}(r);
    const float e = FAST ? __expf(-r) : expf(-r);
    const float s = FAST ? __fdividef(1.0f, 1.0f + e) : 1.0f / (1.0f + e);
    const float y = FAST ? __tanhf(s) : tanhf(s);
    // s · (1 - s) = e · s²; the difference 1 - s would lose all digits where s is near 1.
    return gy * (1.0f - y * y) * (e * s * s) * relu_derivative * a;
  }
};

template <typename T, typename F>
__global__ void map_pairs_kernel(const T* __restrict__ gy, const T* __restrict__ x,
                                 T* __restrict__ gx, int64_t n, int64_t packs, F f) {
  constexpr int N = Pack<T>::N;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < packs) {
    const Pack<T> g = reinterpret_cast<const Pack<T>*>(gy)[i];
    Pack<T> v = reinterpret_cast<const Pack<T>*>(x)[i];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      v.at[k] = static_cast<T>(f(static_cast<float>(g.at[k]), static_cast<float>(v.at[k])));
    }
    reinterpret_cast<Pack<T>*>(gx)[i] = v;
  }
  const int64_t rest = packs * N + i;  // [packs · N, n)
  if (rest < n) {
    gx[rest] = static_cast<T>(f(static_cast<float>(gy[rest]), static_cast<float>(x[rest])));
  }
}

Tensor chain_backward_v2_fused(const Tensor& gy, const Tensor& x, double a, double b) {
  check_gradient(gy, x);
  const DeviceGuard guard(x);
  Tensor gx = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return gx;
  const bool aligned = is_aligned(gy, 16) && is_aligned(x, 16);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const ChainGradient<!std::is_same_v<T, float>> gradient{static_cast<float>(a),
                                                            static_cast<float>(b)};
    const int64_t packs = aligned ? n / Pack<T>::N : 0;  // 0: all elements are the rest
    const int64_t threads = aligned ? ceil_div<int64_t>(n, Pack<T>::N) : n;
    const unsigned grid = grid_size(ceil_div<int64_t>(threads, BLOCK), "x");
    map_pairs_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(gy), data<T>(x), mutable_data<T>(gx), n, packs, gradient);
  });
  check_launch("chain_backward_v2_fused");
  return gx;
}

// ---------------------------------------------------------------------------------------------

RUNG(day10, chain_v1_unfused, "(Tensor x, float a=1.0, float b=0.0) -> Tensor");
RUNG(day10, chain_v2_fused, "(Tensor x, float a=1.0, float b=0.0) -> Tensor");
RUNG(day10, chain_v3_vectorised, "(Tensor x, float a=1.0, float b=0.0) -> Tensor");
RUNG(day10, chain_v4_fast, "(Tensor x, float a=1.0, float b=0.0) -> Tensor");
RUNG(day10, chain_backward_v1_unfused, "(Tensor gy, Tensor x, float a=1.0, float b=0.0) -> Tensor");
RUNG(day10, chain_backward_v2_fused, "(Tensor gy, Tensor x, float a=1.0, float b=0.0) -> Tensor");

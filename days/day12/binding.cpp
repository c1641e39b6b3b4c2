// Day 12, PyTorch's side: two operators, their schemas, and an implementation per kind of device.
//
// The build defines NAMESPACE, the first part of torch.ops.NAMESPACE.name. With a namespace each,
// the libraries of three build systems can be loaded into one process.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/library.h>
#ifndef CUDA_ON_CPU
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

// Defined in fused_gelu.cu for float, __half and __nv_bfloat16.
template <typename T>
cudaError_t launch_fused_gelu(const T* x, const T* bias, T* y, int64_t rows, int64_t cols,
                              cudaStream_t stream);
template <typename T>
cudaError_t launch_fused_gelu_backward(const T* g, const T* x, const T* bias, T* gx, int64_t rows,
                                       int64_t cols, cudaStream_t stream);

namespace {

// Checks that hold on every device, also for meta tensors. sym_size: a compiler may not know sizes.
void check_arguments(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(x.dim() == 2, "x: expected 2 dimensions, got ", x.dim());
  TORCH_CHECK(x.is_contiguous(), "x: expected a contiguous tensor; call .contiguous()");
  const auto type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
              "x: expected float32, float16 or bfloat16, got ", type);
  TORCH_CHECK(bias.dim() == 1 && bias.sym_size(0) == x.sym_size(1), "bias: expected shape (",
              x.sym_size(1), "), one number per column of x, got ", bias.sym_sizes());
  TORCH_CHECK(bias.is_contiguous(), "bias: expected a contiguous tensor; call .contiguous()");
  TORCH_CHECK(bias.scalar_type() == type, "bias: expected the dtype of x, ", type, ", got ",
              bias.scalar_type());
  TORCH_CHECK(bias.device() == x.device(), "bias: expected the device of x, ", x.device(), ", got ",
              bias.device());
}

void check_gradient(const at::Tensor& g, const at::Tensor& x) {
  TORCH_CHECK(g.sym_sizes() == x.sym_sizes(), "g: expected the shape of x, ", x.sym_sizes(),
              ", got ", g.sym_sizes());
  TORCH_CHECK(g.is_contiguous(), "g: expected a contiguous tensor; call .contiguous()");
  TORCH_CHECK(g.scalar_type() == x.scalar_type(), "g: expected the dtype of x, ", x.scalar_type(),
              ", got ", g.scalar_type());
  TORCH_CHECK(g.device() == x.device(), "g: expected the device of x, ", x.device(), ", got ",
              g.device());
}

// Meta functions: shape and dtype of the result, no data. torch.compile traces with them.
at::Tensor fused_gelu_meta(const at::Tensor& x, const at::Tensor& bias) {
  check_arguments(x, bias);
  return at::empty_like(x);
}

at::Tensor fused_gelu_backward_meta(const at::Tensor& g, const at::Tensor& x,
                                    const at::Tensor& bias) {
  check_arguments(x, bias);
  check_gradient(g, x);
  return at::empty_like(x);
}

#ifdef CUDA_ON_CPU
struct DeviceGuard {
  explicit DeviceGuard(const at::Tensor&) {}
  cudacpu::DeviceGuard guard;
};
cudaStream_t current_stream(const at::Tensor&) {
  return cudacpu::current_stream();
}
#else
struct DeviceGuard {
  explicit DeviceGuard(const at::Tensor& t) : guard(t.device()) {}
  c10::cuda::CUDAGuard guard;
};
cudaStream_t current_stream(const at::Tensor& t) {
  return c10::cuda::getCurrentCUDAStream(t.get_device());
}
#endif

// Calls f with a zero of t's dtype, in CUDA's C++ type.
template <typename F>
void dispatch(const at::Tensor& t, F f) {
  switch (t.scalar_type()) {
    case at::kHalf:
      return f(__half{});
    case at::kBFloat16:
      return f(__nv_bfloat16{});
    default:
      return f(float{});
  }
}

template <typename T>
const T* data(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

at::Tensor fused_gelu(const at::Tensor& x, const at::Tensor& bias) {
  check_arguments(x, bias);
  const DeviceGuard guard(x);
  at::Tensor y = at::empty_like(x);
  dispatch(x, [&](auto zero) {
    using T = decltype(zero);
    const cudaError_t code =
        launch_fused_gelu(data<T>(x), data<T>(bias), static_cast<T*>(y.mutable_data_ptr()),
                          x.size(0), x.size(1), current_stream(x));
    TORCH_CHECK(code == cudaSuccess, "fused_gelu: ", cudaGetErrorString(code));
  });
  return y;
}

at::Tensor fused_gelu_backward(const at::Tensor& g, const at::Tensor& x, const at::Tensor& bias) {
  check_arguments(x, bias);
  check_gradient(g, x);
  const DeviceGuard guard(x);
  at::Tensor gx = at::empty_like(x);
  dispatch(x, [&](auto zero) {
    using T = decltype(zero);
    const cudaError_t code = launch_fused_gelu_backward(data<T>(g), data<T>(x), data<T>(bias),
                                                        static_cast<T*>(gx.mutable_data_ptr()),
                                                        x.size(0), x.size(1), current_stream(x));
    TORCH_CHECK(code == cudaSuccess, "fused_gelu_backward: ", cudaGetErrorString(code));
  });
  return gx;
}

}  // namespace

// The extra macro makes the preprocessor expand NAMESPACE before TORCH_LIBRARY pastes it.
#define LIBRARY(name, m) TORCH_LIBRARY(name, m)
#define LIBRARY_IMPL(name, device, m) TORCH_LIBRARY_IMPL(name, device, m)

LIBRARY(NAMESPACE, m) {
  m.def("fused_gelu(Tensor x, Tensor bias) -> Tensor");
  m.def("fused_gelu_backward(Tensor g, Tensor x, Tensor bias) -> Tensor");
}

#ifdef CUDA_ON_CPU
LIBRARY_IMPL(NAMESPACE, CPU, m) {
#else
LIBRARY_IMPL(NAMESPACE, CUDA, m) {
#endif
  m.impl("fused_gelu", &fused_gelu);
  m.impl("fused_gelu_backward", &fused_gelu_backward);
}

LIBRARY_IMPL(NAMESPACE, Meta, m) {
  m.impl("fused_gelu", &fused_gelu_meta);
  m.impl("fused_gelu_backward", &fused_gelu_backward_meta);
}

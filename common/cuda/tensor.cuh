// What a launcher needs of PyTorch: tensors and their checks, the current stream, launch errors.
//
// PyTorch's stable ABI (torch/csrc/stable) instead of torch/extension.h: a day builds in seconds,
// and a built library works with later versions of torch. Taught in days 6 and 12.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>

#include "common/cuda/torch.cuh"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Blocks needed so that `size` threads cover `count` elements; the last block may be partly idle.
template <typename T>
constexpr T ceil_div(T count, T size) {
  return (count + size - 1) / size;
}

// The number of blocks for a one-dimensional grid, which CUDA limits to 2^31 - 1.
inline unsigned grid_size(int64_t blocks, const char* argument) {
  STD_TORCH_CHECK(blocks <= 2147483647, argument, ": needs ", blocks,
                  " blocks, more than the 2147483647 of one grid");
  return static_cast<unsigned>(blocks);
}

// How many blocks a grid may have along y: fewer on the small card that the CPU backend can play.
inline int64_t max_grid_y() {
#ifdef CUDA_ON_CPU
  return cudacpu::max_grid_y();
#else
  return 65535;
#endif
}

// The number of blocks for the second dimension of a grid.
inline unsigned grid_size_y(int64_t blocks, const char* argument) {
  STD_TORCH_CHECK(blocks <= max_grid_y(), argument, ": needs ", blocks,
                  " blocks along y, more than the ", max_grid_y(), " of one grid");
  return static_cast<unsigned>(blocks);
}

// A runtime call that failed, as an exception with CUDA's own words.
inline void check_cuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) (void)cudaGetLastError();  // or the next check_launch would throw it
  STD_TORCH_CHECK(code == cudaSuccess, what, ": ", cudaGetErrorString(code));
}

// After <<<...>>>: a launch returns nothing, its error (bad grid, too much shared memory) waits
// here.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

// The stream that PyTorch is using now, on the tensor's device. Work on any other stream would
// race.
inline cudaStream_t current_stream([[maybe_unused]] const Tensor& t) {
#ifdef CUDA_ON_CPU
  return cudacpu::current_stream();
#else
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
#endif
}

// The number of the tensor's GPU, for the runtime API. On the CPU backend it is 0, unless a check
// of the launcher plays a second one.
inline int device_index(const Tensor& t) {
#ifdef CUDA_ON_CPU
  return cudacpu::device_of(t.const_data_ptr());
#else
  return t.get_device_index();
#endif
}

// Makes the tensor's GPU the current one until the end of the scope.
class DeviceGuard {
 public:
#ifdef CUDA_ON_CPU
  explicit DeviceGuard(const Tensor&) {}

 private:
  cudacpu::DeviceGuard guard_;
#else
  explicit DeviceGuard(const Tensor& t) : guard_(t.get_device_index()) {}

 private:
  torch::stable::accelerator::DeviceGuard guard_;
#endif
};

inline const char* name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    case ScalarType::Bool:
      return "bool";
    default:
      return "an unsupported dtype";
  }
}

inline std::string shape_of(const Tensor& t) {
  std::ostringstream text;
  text << '(';
  for (int64_t i = 0; i < t.dim(); ++i) text << (i ? ", " : "") << t.size(i);
  text << ')';
  return text.str();
}

// Checks of one argument, each throwing a message that names it, what it was, what is allowed:
//   check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
class check {
 public:
  check(const Tensor& tensor, const char* name) : t_(tensor), name_(name) {}

  const check& on_gpu() const {
#ifdef CUDA_ON_CPU
    STD_TORCH_CHECK(t_.is_cpu(), name_, ": expected a CPU tensor (the CPU backend is in use)");
#else
    STD_TORCH_CHECK(t_.is_cuda(), name_, ": expected a tensor on the GPU, got one on the CPU");
#endif
    return *this;
  }

  const check& on_host() const {
    STD_TORCH_CHECK(t_.is_cpu(), name_, ": expected a CPU tensor, got one on the GPU");
    return *this;
  }

  const check& dtype(std::initializer_list<ScalarType> allowed) const {
    std::string names;
    for (ScalarType type : allowed) {
      if (t_.scalar_type() == type) return *this;
      names += (names.empty() ? "" : " or ") + std::string(name_of(type));
    }
    STD_TORCH_CHECK(false, name_, ": expected ", names, ", got ", name_of(t_.scalar_type()));
    return *this;
  }

  // float32, float16 or bfloat16: what dispatch_floating below covers.
  const check& floating() const {
    return dtype({ScalarType::Float, ScalarType::Half, ScalarType::BFloat16});
  }

  const check& rank(int64_t dims) const {
    STD_TORCH_CHECK(t_.dim() == dims, name_, ": expected ", dims, " dimension(s), got ", t_.dim(),
                    " with shape ", shape_of(t_));
    return *this;
  }

  const check& contiguous() const {
    STD_TORCH_CHECK(t_.is_contiguous(), name_,
                    ": expected a contiguous tensor, got strides that are not; call .contiguous()");
    return *this;
  }

  const check& size(int64_t dim, int64_t expected) const {
    STD_TORCH_CHECK(t_.size(dim) == expected, name_, ": expected size ", expected, " in dimension ",
                    dim, ", got ", t_.size(dim), " with shape ", shape_of(t_));
    return *this;
  }

  const check& like(const Tensor& other, const char* other_name) const {
    dtype({other.scalar_type()});
    STD_TORCH_CHECK(shape_of(t_) == shape_of(other), name_, ": expected the shape of ", other_name,
                    ", ", shape_of(other), ", got ", shape_of(t_));
    return same_device(other, other_name);
  }

  const check& same_device(const Tensor& other, const char* other_name) const {
    const bool same = t_.is_cpu() == other.is_cpu();  // tensors on the host have no index
    STD_TORCH_CHECK(same && device_index(t_) == device_index(other), name_,
                    ": expected the device of ", other_name, ", got another");
    return *this;
  }

 private:
  const Tensor& t_;
  const char* name_;
};

// The tensor's elements as T, which must be the C++ type of its dtype.
template <typename T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <typename T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

// Whether the first element lies on a multiple of `bytes`. PyTorch's own allocations do; a slice
// such as x[1:] need not, and a wide load from it would fault.
inline bool is_aligned(const Tensor& t, size_t bytes) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % bytes == 0;
}

// Calls f with a value of the C++ type of t's dtype, so that f can launch the kernel for that type:
//   dispatch_floating(x, [&](auto zero) { using T = decltype(zero); kernel<T><<<...>>>(...); });
template <typename F>
void dispatch_floating(const Tensor& t, F&& f) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return f(float{});
    case ScalarType::Half:
      return f(__half{});
    case ScalarType::BFloat16:
      return f(__nv_bfloat16{});
    default:
      STD_TORCH_CHECK(false, "no kernel for ", name_of(t.scalar_type()));
  }
}

// What most launchers do around their <<<>>>: makes an output like x, on x's GPU, and returns it.
// Unless it has no elements (a grid of no blocks is an error), it first calls launch(zero, out),
// with a value of the C++ type of x's dtype and the output's elements, and checks the launch:
//   return output_like(x, "softmax", [&](auto zero, auto* y) {
//     using T = decltype(zero);
//     softmax_kernel<T><<<...>>>(data<T>(x), y, ...);
//   });
template <typename F>
Tensor output_like(const Tensor& x, const char* kernel, F&& launch) {
  const DeviceGuard guard(x);
  Tensor out = torch::stable::empty_like(x);
  if (out.numel() == 0) return out;
  dispatch_floating(x, [&](auto zero) { launch(zero, mutable_data<decltype(zero)>(out)); });
  check_launch(kernel);
  return out;
}

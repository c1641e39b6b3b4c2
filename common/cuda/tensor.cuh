// A launcher's interface to PyTorch: tensors and their checks, the current stream, launch errors.
//
// PyTorch's stable ABI (torch/csrc/stable) instead of torch/extension.h: a day builds in seconds,
// and a built library works with later versions of torch. Taught in days 6 and 12.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
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

// The number of blocks for a one-dimensional grid, which CUDA limits to 2^31 - 1. (For a negative
// number, the CPU backend's launch has a better message.)
inline unsigned grid_size(int64_t blocks, const char* argument) {
#ifndef CUDA_ON_CPU
  STD_TORCH_CHECK(blocks >= 0, "a grid of ", blocks, " blocks: did a size overflow?");
#endif
  STD_TORCH_CHECK(blocks <= 2147483647, argument, ": needs ", blocks,
                  " blocks, more than the 2147483647 of one grid");
  return static_cast<unsigned>(blocks);
}

// The limit on blocks of a grid along y: smaller on the small card that the CPU backend can
// simulate.
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

// The limits of a GPU, appended to the error of a launch that it refused, which does not name the
// wrong size. The CPU backend's own message does.
inline std::string launch_limits([[maybe_unused]] cudaError_t code) {
#ifndef CUDA_ON_CPU
  if (code == cudaErrorInvalidConfiguration)
    return ": a grid has 1 to 2147483647 blocks along x and 1 to 65535 along y and z, a block 1 to "
           "1024 threads in all, at most 64 along z; is a size 0, negative or too large?";
  int gpu = 0, usual = 0, most = 0;
  if (code == cudaErrorInvalidValue && cudaGetDevice(&gpu) == cudaSuccess &&
      cudaDeviceGetAttribute(&usual, cudaDevAttrMaxSharedMemoryPerBlock, gpu) == cudaSuccess &&
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu) == cudaSuccess)
    return ": shared memory is at most " + std::to_string(usual) + " bytes per block, or " +
           std::to_string(most) + " after opting in" +
           ": does the launch ask for more, or for a negative size?";
#endif
  return "";
}

// After <<<...>>>: a launch returns nothing, its error (bad grid, too much shared memory) waits
// here.
inline void check_launch(const char* kernel) {
  const cudaError_t code = cudaGetLastError();
  STD_TORCH_CHECK(code == cudaSuccess, kernel, ": ", cudaGetErrorString(code), launch_limits(code));
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
// of the launcher simulates a second one.
inline int device_index(const Tensor& t) {
#ifdef CUDA_ON_CPU
  return cudacpu::device_of(t.const_data_ptr());
#else
  return t.get_device_index();
#endif
}

// Make the tensor's GPU the current one until the end of the scope. It is nearly always that
// already; then nothing is set, which costs a launcher the least. For a tensor on the host, which a
// check refuses, it does nothing.
class DeviceGuard {
#ifdef CUDA_ON_CPU
 public:
  explicit DeviceGuard(const Tensor&) {}

 private:
  cudacpu::DeviceGuard guard_;
#else
 public:
  explicit DeviceGuard(const Tensor& t) : gpu_(t.get_device_index()) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (changes()) check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  }
  ~DeviceGuard() {
    if (changes()) (void)cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool changes() const { return gpu_ >= 0 && gpu_ != before_; }

  int gpu_, before_ = 0;
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

inline bool same_shape(const Tensor& a, const Tensor& b) {
  const auto of_a = a.sizes(), of_b = b.sizes();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end());
}

// Checks of one argument, each throwing a message that names it, what it was, what is allowed:
//   check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
class check {
 public:
  // index: of a tensor of a list, which messages call "grads[3]".
  check(const Tensor& tensor, const char* name, int64_t index = -1)
      : t_(tensor), name_(name), index_(index) {}

  const check& on_gpu() const {
#ifdef CUDA_ON_CPU
    STD_TORCH_CHECK(t_.is_cpu(), title(), ": expected a CPU tensor (the CPU backend is in use)");
#else
    STD_TORCH_CHECK(t_.is_cuda(), title(), ": expected a tensor on the GPU, got one on the CPU");
#endif
    return *this;
  }

  const check& on_host() const {
    STD_TORCH_CHECK(t_.is_cpu(), title(), ": expected a CPU tensor, got one on the GPU");
    return *this;
  }

  const check& dtype(std::initializer_list<ScalarType> allowed) const {
    const ScalarType mine = t_.scalar_type();
    for (ScalarType type : allowed) {
      if (mine == type) return *this;
    }
    std::string names;
    for (ScalarType type : allowed)
      names += (names.empty() ? "" : " or ") + std::string(name_of(type));
    STD_TORCH_CHECK(false, title(), ": expected ", names, ", got ", name_of(mine));
    return *this;
  }

  // float32, float16 or bfloat16: what dispatch_floating below covers.
  const check& floating() const {
    return dtype({ScalarType::Float, ScalarType::Half, ScalarType::BFloat16});
  }

  const check& rank(int64_t dims) const {
    STD_TORCH_CHECK(t_.dim() == dims, title(), ": expected ", dims, " dimension(s), got ", t_.dim(),
                    " with shape ", shape_of(t_));
    return *this;
  }

  const check& contiguous() const {
    STD_TORCH_CHECK(t_.is_contiguous(), title(),
                    ": expected a contiguous tensor, got strides that are not; call .contiguous()");
    return *this;
  }

  const check& size(int64_t dim, int64_t expected) const {
    STD_TORCH_CHECK(t_.size(dim) == expected, title(), ": expected size ", expected,
                    " in dimension ", dim, ", got ", t_.size(dim), " with shape ", shape_of(t_));
    return *this;
  }

  const check& like(const Tensor& other, const char* other_name) const {
    dtype({other.scalar_type()});
    STD_TORCH_CHECK(same_shape(t_, other), title(), ": expected the shape of ", other_name, ", ",
                    shape_of(other), ", got ", shape_of(t_));
    return same_device(other, other_name);
  }

  const check& same_device(const Tensor& other, const char* other_name) const {
    const bool same = t_.is_cpu() == other.is_cpu();  // tensors on the host have no index
    STD_TORCH_CHECK(same && device_index(t_) == device_index(other), title(),
                    ": expected the device of ", other_name, ", got another");
    return *this;
  }

 private:
  // Only a message needs it.
  std::string title() const {
    return index_ < 0 ? name_ : name_ + ('[' + std::to_string(index_) + ']');
  }

  const Tensor& t_;
  const char* name_;
  int64_t index_;
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

// Return true if the first element lies on a multiple of `bytes`. PyTorch's own allocations do; a
// slice such as x[1:] need not, and a wide load from it would fault.
inline bool is_aligned(const Tensor& t, size_t bytes) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % bytes == 0;
}

// A tensor on the device of `on` whose elements are not set yet. It goes straight to PyTorch's C
// interface: torch::stable::new_empty and empty_like look their operator up by its name in each
// call and box its arguments, which takes twice as long. Without a type it has the dtype of `on`.
inline Tensor allocate(const Tensor& on, torch::headeronly::IntHeaderOnlyArrayRef shape,
                       std::optional<ScalarType> type = std::nullopt) {
  using torch::stable::detail::from, torch::stable::detail::to;
  int32_t code = type ? to<int32_t>(from(*type)) : 0;
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_aten_new_empty(on.get(), shape.data(), static_cast<int64_t>(shape.size()),
                                type ? &code : nullptr, nullptr, nullptr, 0, nullptr, &made));
  return Tensor(made);
}

// The same with the shape and the dtype of x; if x is not contiguous, with its order of strides.
inline Tensor allocate_like(const Tensor& x) {
  return x.is_contiguous() ? allocate(x, x.sizes()) : torch::stable::empty_like(x);
}

// The same with zeros, by cudaMemsetAsync on the current stream: torch::stable::new_zeros launches
// a kernel through PyTorch's machinery for elementwise operations, which costs the host more.
inline Tensor allocate_zeros(const Tensor& on, torch::headeronly::IntHeaderOnlyArrayRef shape,
                             std::optional<ScalarType> type = std::nullopt) {
  Tensor zeros = allocate(on, shape, type);
  const size_t bytes = zeros.numel() * zeros.element_size();
  if (bytes > 0) {
    const DeviceGuard guard(on);
    check_cuda(cudaMemsetAsync(zeros.mutable_data_ptr(), 0, bytes, current_stream(on)),
               "cudaMemsetAsync");
  }
  return zeros;
}

// Call f with a value of the C++ type of t's dtype, so that f can launch the kernel for that type:
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

// The common part of most launchers: make an output like x, on x's GPU, and return it.
// Unless it has no elements (a grid of no blocks is an error), first call launch(zero, out),
// with a value of the C++ type of x's dtype and the output's elements, and check the launch:
//   return output_like(x, "softmax", [&](auto zero, auto* y) {
//     using T = decltype(zero);
//     softmax_kernel<T><<<...>>>(data<T>(x), y, ...);
//   });
template <typename F>
Tensor output_like(const Tensor& x, const char* kernel, F&& launch) {
  const DeviceGuard guard(x);
  Tensor out = allocate_like(x);
  if (out.numel() == 0) return out;
  dispatch_floating(x, [&](auto zero) { launch(zero, mutable_data<decltype(zero)>(out)); });
  check_launch(kernel);
  return out;
}

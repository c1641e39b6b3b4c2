// Day 2: vector addition, from host arrays and from tensors
//
//   z[i] = x[i] + y[i]          x, y, z: (n,)
//
// Bytes: read x and y once, write z once: 3 · n · sizeof(T). For n = 2^28 fp32 that is 3.2 GB.
// Operations: n additions, nothing beside it: the memory bus is the limit.
//
//   host_arrays   the C way: cudaMalloc, cudaMemcpy there, kernel, cudaMemcpy back, cudaFree
//   v1 thread_per_element   tensors: no copies, one thread for each element
//   v2 grid_stride          a grid that fits the GPU walks over any n
//   v3 float4               16 bytes a load: fewer instructions for the same bytes
//
// Run: python run_day.py 2

#include "common/cuda/tensor.cuh"

// 256 threads a block: a multiple of the warp's 32, and eight blocks fill a multiprocessor's 2048.
constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// v1: thread i of the whole grid adds element i.

template <typename T>
__global__ void vec_add_v1_thread_per_element_kernel(const T* __restrict__ x,
                                                     const T* __restrict__ y, T* __restrict__ z,
                                                     int64_t n) {
  // int64_t first: blockIdx.x * blockDim.x in 32 bits overflows beyond 2^32 threads.
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];  // the last block has threads beyond the end
}

// What every launcher of this day asks of its arguments.
void check_pair(const Tensor& x, const Tensor& y) {
  check(x, "x").on_gpu().floating().rank(1).contiguous();
  check(y, "y").on_gpu().like(x, "x").contiguous();
}

Tensor vec_add_v1_thread_per_element(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  const DeviceGuard guard(x);
  Tensor z = torch::stable::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return z;  // a grid of no blocks is an error
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    vec_add_v1_thread_per_element_kernel<T>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), data<T>(y), mutable_data<T>(z), n);
  });
  check_launch("vec_add_v1_thread_per_element");
  return z;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the grid is as large as the GPU, not as large as the vector. Thread i adds
// elements i, i + all threads, i + 2 · all threads … so one launch serves any n, and a block is
// started once instead of once every 256 elements.

template <typename T>
__global__ void vec_add_v2_grid_stride_kernel(const T* __restrict__ x, const T* __restrict__ y,
                                              T* __restrict__ z, int64_t n) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += threads) {
    z[i] = x[i] + y[i];
  }
}

// Enough blocks to fill every multiprocessor, but no more than there is work for.
unsigned resident_blocks(const Tensor& x, int64_t blocks_of_work) {
  int multiprocessors = 0;
  check_cuda(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_index(x)),
      "cudaDeviceGetAttribute");
  const int64_t resident = int64_t{multiprocessors} * (2048 / BLOCK);
  return static_cast<unsigned>(blocks_of_work < resident ? blocks_of_work : resident);
}

Tensor vec_add_v2_grid_stride(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  const DeviceGuard guard(x);
  Tensor z = torch::stable::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return z;
  const unsigned grid = resident_blocks(x, ceil_div<int64_t>(n, BLOCK));
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    vec_add_v2_grid_stride_kernel<T>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), data<T>(y), mutable_data<T>(z), n);
  });
  check_launch("vec_add_v2_grid_stride");
  return z;
}

// ---------------------------------------------------------------------------------------------
// v3 against v1: each thread moves 16 bytes with one instruction (a float4: four floats, or eight
// halves in the same bits), two such pieces a vector. The up to 3 (or 7) elements after the last
// full piece are added by single threads.

// N elements in 16 bytes; alignas tells the compiler that one 16-byte load may fetch them.
template <typename T>
struct alignas(16) Pack {
  static constexpr int N = 16 / sizeof(T);
  T at[N];
};

template <typename T>
__global__ void vec_add_v3_float4_kernel(const T* __restrict__ x, const T* __restrict__ y,
                                         T* __restrict__ z, int64_t n) {
  constexpr int N = Pack<T>::N;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t packs = n / N;
  if (i < packs) {
    const Pack<T> a = reinterpret_cast<const Pack<T>*>(x)[i];
    const Pack<T> b = reinterpret_cast<const Pack<T>*>(y)[i];
    Pack<T> sum;
    for (int k = 0; k < N; ++k) sum.at[k] = a.at[k] + b.at[k];
    reinterpret_cast<Pack<T>*>(z)[i] = sum;
  }
  const int64_t rest = packs * N + i;  // [packs · N, n): fewer than N elements are left
  if (rest < n) z[rest] = x[rest] + y[rest];
}

Tensor vec_add_v3_float4(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  // A slice such as x[1:] starts in the middle of 16 bytes, where a 16-byte load would fault.
  if (!is_aligned(x, 16) || !is_aligned(y, 16)) return vec_add_v1_thread_per_element(x, y);
  const DeviceGuard guard(x);
  Tensor z = torch::stable::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return z;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const int64_t threads = ceil_div<int64_t>(n, Pack<T>::N);
    const unsigned grid = grid_size(ceil_div<int64_t>(threads, BLOCK), "x");
    vec_add_v3_float4_kernel<T>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), data<T>(y), mutable_data<T>(z), n);
  });
  check_launch("vec_add_v3_float4");
  return z;
}

// ---------------------------------------------------------------------------------------------
// The C way: x, y and z are arrays on the host. Memory on the GPU is allocated, filled, read back
// and freed by hand; PyTorch has no part in it.

// Memory on the GPU that is freed at the end of the scope, also when an error is thrown.
class DeviceArray {
 public:
  explicit DeviceArray(size_t bytes) { check_cuda(cudaMalloc(&pointer_, bytes), "cudaMalloc"); }
  ~DeviceArray() { cudaFree(pointer_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  float* get() const { return static_cast<float*>(pointer_); }

 private:
  void* pointer_ = nullptr;
};

// z is written. The caller chooses what kind of host memory the three arrays are: pageable, or
// pinned, which the GPU can fetch from by itself.
void vec_add_host_arrays(const Tensor& x, const Tensor& y, Tensor& z) {
  check(x, "x").on_host().dtype({ScalarType::Float}).rank(1).contiguous();
  check(y, "y").on_host().like(x, "x").contiguous();
  check(z, "z").on_host().like(x, "x").contiguous();
  const int64_t n = x.numel();
  if (n == 0) return;
  const size_t bytes = n * sizeof(float);
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");

  DeviceArray dx(bytes), dy(bytes), dz(bytes);
  check_cuda(cudaMemcpy(dx.get(), x.const_data_ptr(), bytes, cudaMemcpyHostToDevice), "copy of x");
  check_cuda(cudaMemcpy(dy.get(), y.const_data_ptr(), bytes, cudaMemcpyHostToDevice), "copy of y");
  vec_add_v1_thread_per_element_kernel<float><<<grid, BLOCK>>>(dx.get(), dy.get(), dz.get(), n);
  check_launch("vec_add_host_arrays");
  // The launch returned at once; this copy waits for the kernel, which is in the same stream.
  check_cuda(cudaMemcpy(z.mutable_data_ptr(), dz.get(), bytes, cudaMemcpyDeviceToHost),
             "copy of z");
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day02, m) {
  m.def("vec_add_host_arrays(Tensor x, Tensor y, Tensor(a!) z) -> ()");
  m.def("vec_add_v1_thread_per_element(Tensor x, Tensor y) -> Tensor");
  m.def("vec_add_v2_grid_stride(Tensor x, Tensor y) -> Tensor");
  m.def("vec_add_v3_float4(Tensor x, Tensor y) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day02, CUDA, m) {
  m.impl("vec_add_v1_thread_per_element", TORCH_BOX(&vec_add_v1_thread_per_element));
  m.impl("vec_add_v2_grid_stride", TORCH_BOX(&vec_add_v2_grid_stride));
  m.impl("vec_add_v3_float4", TORCH_BOX(&vec_add_v3_float4));
}

STABLE_TORCH_LIBRARY_IMPL(day02, CPU, m) {  // its tensors are host arrays
  m.impl("vec_add_host_arrays", TORCH_BOX(&vec_add_host_arrays));
}

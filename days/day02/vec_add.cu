// Day 2: vector addition, from host arrays and from tensors
//
//   z[i] = x[i] + y[i]          x, y, z: (n,)
//
// Bytes: read x and y once, write z once: 3 · n · sizeof(T). For n = 2^28 fp32 that is 3.2 GB.
// Operations: n additions. Memory bandwidth is the limit.
//
//   host_arrays             the C way: cudaMalloc, copy to the device, kernel, copy back, cudaFree
//   v1 thread_per_element   tensors on the device, no copies; one thread per element
//   v2 grid_stride          a grid as large as the GPU loops over any n
//   v3 float4               16 bytes per load: a quarter of the load instructions
//
// Run: python run_day.py 2

#include "common/cuda/binding.cuh"  // explained in day 6
#include "common/cuda/tensor.cuh"

// Threads per block: a multiple of the warp's 32 that divides what a multiprocessor holds on every
// architecture (1024, 1536 or 2048 threads).
constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// v1: thread i of the grid adds element i.

template <typename T>
__global__ void vec_add_v1_thread_per_element_kernel(const T* __restrict__ x,
                                                     const T* __restrict__ y, T* __restrict__ z,
                                                     int64_t n) {
  // int64_t before the product: in 32 bits it overflows beyond 2^32 threads.
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];  // bounds check: the last block has threads beyond the end
}

// What every launcher on tensors requires of its arguments.
void check_pair(const Tensor& x, const Tensor& y) {
  check(x, "x").on_gpu().floating().rank(1).contiguous();
  check(y, "y").on_gpu().like(x, "x").contiguous();
}

Tensor vec_add_v1_thread_per_element(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  const DeviceGuard guard(x);
  Tensor z = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return z;  // a grid of zero blocks is an error
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
// v2 against v1: the grid is as large as the GPU, not as large as the vector. With S threads in the
// grid, thread i adds elements i, i + S, i + 2 · S … One grid serves any n, and far fewer blocks
// have to be started.

template <typename T>
__global__ void vec_add_v2_grid_stride_kernel(const T* __restrict__ x, const T* __restrict__ y,
                                              T* __restrict__ z, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;  // S, the threads of the whole grid
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    z[i] = x[i] + y[i];
  }
}

// A limit of the GPU that x lives on.
int device_attribute(const Tensor& x, cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device_index(x)), "cudaDeviceGetAttribute");
  return value;
}

// As many blocks as the multiprocessors hold at the same time, but not more than there is work for.
unsigned resident_blocks(const Tensor& x, int64_t blocks_of_work) {
  const int64_t multiprocessors = device_attribute(x, cudaDevAttrMultiProcessorCount);
  const int64_t threads = device_attribute(x, cudaDevAttrMaxThreadsPerMultiProcessor);
  const int64_t resident = multiprocessors * (threads / BLOCK);
  return static_cast<unsigned>(blocks_of_work < resident ? blocks_of_work : resident);
}

Tensor vec_add_v2_grid_stride(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  const DeviceGuard guard(x);
  Tensor z = allocate_like(x);
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
// v3 against v1: vectorised loads. Each thread loads 16 bytes (four floats or eight halves) of each
// input with one instruction. Up to 3 (or 7) elements remain after the last full pack; one thread
// adds each of them.

// N elements in 16 bytes. alignas promises the alignment that a 16-byte load needs.
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
  const int64_t rest = packs * N + i;  // [packs · N, n): fewer than N elements
  if (rest < n) z[rest] = x[rest] + y[rest];
}

Tensor vec_add_v3_float4(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  // A slice such as x[1:] is not aligned to 16 bytes, and a 16-byte load from it would fault.
  if (!is_aligned(x, 16) || !is_aligned(y, 16)) {
    fell_back("vec_add_v1_thread_per_element", "an input that is not aligned to 16 bytes");
    return vec_add_v1_thread_per_element(x, y);
  }
  const DeviceGuard guard(x);
  Tensor z = allocate_like(x);
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
// The C way, without PyTorch: x, y and z are arrays on the host, and device memory is allocated,
// filled, read back and freed by hand.

// Device memory that is freed at the end of the scope, also when an exception is thrown.
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

// Writes z. The caller chooses the kind of host memory for the three arrays: pageable, or pinned,
// which the device can read and write without the CPU.
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
  // The launch returned at once. This copy is in the same stream, so it starts after the kernel.
  check_cuda(cudaMemcpy(z.mutable_data_ptr(), dz.get(), bytes, cudaMemcpyDeviceToHost),
             "copy of z");
}

// ---------------------------------------------------------------------------------------------

RUNG(day02, vec_add_v1_thread_per_element, "(Tensor x, Tensor y) -> Tensor");
RUNG(day02, vec_add_v2_grid_stride, "(Tensor x, Tensor y) -> Tensor");
RUNG(day02, vec_add_v3_float4, "(Tensor x, Tensor y) -> Tensor");

// vec_add_host_arrays takes arrays on the host, so it is registered for the CPU: what RUNG writes
// for the others, written out (day 6).
STABLE_TORCH_LIBRARY_FRAGMENT(day02, m) {
  m.def("vec_add_host_arrays(Tensor x, Tensor y, Tensor(a!) z) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(day02, CPU, m) {
  m.impl("vec_add_host_arrays", TORCH_BOX(&vec_add_host_arrays));
}

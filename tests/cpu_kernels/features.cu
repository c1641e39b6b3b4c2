// Kernels for test_cpu_backend.py: each CUDA feature that the CPU backend has, used once.
#include "common/cuda/tensor.cuh"

#include <cassert>
#include <vector>

#include "helper.cuh"

// ---------------------------------------------------------------- launches

namespace nested {
namespace deeper {
template <typename T, int N>
__global__ void add(T* out, T value) {
  out[threadIdx.x] += value * N;
}
}  // namespace deeper
}  // namespace nested

__global__ void add_one(float* out) {
  out[threadIdx.x] += 1;
}
__global__ void add_ten(float* out) {
  out[threadIdx.x] += 10;
}
template <typename T>
__global__ void add_value(T* out, T value) {
  out[threadIdx.x] += value;
}
// Overloads: neither can be named by its address alone.
__global__ void overloaded(float* out, int value) {
  out[threadIdx.x] += static_cast<float>(value);
}
__global__ void overloaded(float* out, float value) {
  out[threadIdx.x] += value;
}

struct Kernels {
  void (*kernel)(float*);
};

#define RUN(...) \
  do {           \
    __VA_ARGS__; \
  } while (0)
#define LAUNCH(kernel, threads, ...) kernel<<<1, threads>>>(__VA_ARGS__)

// Adds 1 + 10 + … to each of the 4 elements; the test knows the sum.
void launch_forms(Tensor out) {
  float* p = static_cast<float*>(out.data_ptr());
  add_one<<<1, 4>>>(p);                                               // 1
  add_value<<<1, 4>>>(p, 100.f);                                      // 100, deduced
  add_value<float><<<dim3(1), dim3(4), 0, nullptr>>>(p, 100);         // 100, explicit
  nested::deeper::add<float, 2><<<1, 4>>>(p, 50.f);                   // 100
  ::nested::deeper::add<float, (3 > 2 ? 1 : 0)><<<1, 4>>>(p, 100.f);  // 100
  void (*pointer)(float*) = &add_one;
  pointer<<<1, 4>>>(p);                                // 1
  (*pointer)<<<1, 4>>>(p);                             // 1
  (out.numel() > 2 ? add_ten : add_one)<<<1, 4>>>(p);  // 10
  void (*table[])(float*) = {add_one, add_ten};
  table[1]<<<1, 4>>>(p);  // 10
  Kernels kernels{add_ten};
  Kernels* there = &kernels;
  kernels.kernel<<<1, 4>>>(p), there->kernel<<<1, 4>>>(p);  // 20
  if (out.numel() == 4) add_ten<<<1, 4>>>(p);               // 10
  for (int i = 0; i < 2; ++i)
    add_ten  // a comment <<< in between
        <<<1,
           4>>>(p);                                       // 20
  RUN(add_value<float><<<1, dim3{4, 1, 1}>>>(p, 100.f));  // 100
  LAUNCH(add_ten, 4, p);                                  // 10
  LAUNCH((add_value<float>), 4, p, 100.f);                // 100
  auto in_lambda = [&](auto value) { add_value<<<1, 4>>>(p, value); };
  in_lambda(100.f);                                      // 100
  const char* text = "kernel<<<1, 2>>>(x); /* \" */";    // is left alone
  add_value<<<1, 4>>>(p, text[6] == '<' ? 100.f : 0.f);  // 100
  overloaded<<<1, 4>>>(p, 1);                            // 1
  overloaded<<<1, 4>>>(p, 1.f);                          // 1
  float value = 100;
  void* arguments[] = {&p, &value};
  check_cuda(cudaLaunchKernel(add_value<float>, dim3(1), dim3(4), arguments), "launch");  // 100
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(4);
  check_cuda(cudaLaunchKernelEx(&config, add_value<float>, p, 100), "launch");  // 100
  check_launch("launch_forms");
}

// block and thread indices of a 3D launch: each element gets its own linear index.
__global__ void write_index(int* out) {
  dim3 g = gridDim, b = blockDim;
  int block = blockIdx.x + g.x * (blockIdx.y + g.y * blockIdx.z);
  int thread = threadIdx.x + b.x * (threadIdx.y + b.y * threadIdx.z);
  out[block * (b.x * b.y * b.z) + thread] = block * 1000 + thread;
}
Tensor indices(Tensor like) {
  Tensor out = torch::stable::new_empty(like, {2 * 3 * 4, 5 * 2 * 3}, ScalarType::Int);
  write_index<<<dim3(2, 3, 4), dim3(5, 2, 3)>>>(static_cast<int*>(out.data_ptr()));
  check_launch("indices");
  return out;
}

// ---------------------------------------------------------------- shared memory

struct __align__(16) Record {
  float value;
  int index;
};

template <int N>
__device__ float sum_in_shared(float value) {
  __shared__ float partial[N];  // each instantiation has its own
  partial[threadIdx.x] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < N; ++i) sum += partial[i];
  __syncthreads();
  return sum;
}

__global__ void shared_forms_kernel(float* out) {
  constexpr int N = 32;
  __shared__ float row[N], matrix[4][N + 1];
  __shared__ Record records[N];
  alignas(64) __shared__ unsigned char bytes[N];
  volatile __shared__ float scalar;
  static __shared__ float (*pointer)[N + 1];
  __shared__ union {
    float as_float;
    int as_int;
  } both;
  int t = threadIdx.x;
  row[t] = static_cast<float>(t);
  for (int i = 0; i < 4; ++i) matrix[i][t] = static_cast<float>(i);
  records[t] = {static_cast<float>(t), t};
  bytes[t] = static_cast<unsigned char>(t);
  if (t == 0) {
    scalar = 5;
    pointer = matrix;
    both.as_float = 1;
  }
  __syncthreads();
  int other = N - 1 - t;
  bool aligned = reinterpret_cast<uintptr_t>(bytes) % 64 == 0 &&
                 reinterpret_cast<uintptr_t>(records) % 16 == 0;
  auto by_copy = [=](int i) { return row[i] + pointer[3][i]; };  // sees row, does not copy it
  row[t] += 1;
  __syncthreads();
  out[t] = by_copy(other) + records[other].value + static_cast<float>(bytes[other]) + scalar +
           (both.as_int == __float_as_int(1.f) ? 1000.f : 0.f) + (aligned ? 10000.f : 0.f) +
           sum_in_shared<32>(1) * 100000;
}

// Two arrays of different types in one dynamic allocation.
__global__ void dynamic_shared_kernel(float* out, int n) {
  extern __shared__ __align__(16) unsigned char raw[];
  float* values = reinterpret_cast<float*>(raw);
  int* order = reinterpret_cast<int*>(values + n);
  int t = threadIdx.x;
  values[t] = static_cast<float>(t);
  order[t] = n - 1 - t;
  __syncthreads();
  out[t] = values[order[t]];
}
__global__ void dynamic_rows_kernel(float* out) {
  extern __shared__ float rows[][8];
  rows[threadIdx.y][threadIdx.x] = static_cast<float>(threadIdx.y * 10 + threadIdx.x);
  __syncthreads();
  out[threadIdx.y * 8 + threadIdx.x] = rows[blockDim.y - 1 - threadIdx.y][threadIdx.x];
}
__global__ void poison_kernel(float* out) {
  __shared__ float never_written[4];
  extern __shared__ float nor_this[];
  out[0] = never_written[3];
  out[1] = nor_this[3];
}

Tensor shared_forms(Tensor like) {
  Tensor out = torch::stable::new_empty(like, {32});
  shared_forms_kernel<<<1, 32>>>(static_cast<float*>(out.data_ptr()));
  check_launch("shared_forms");
  return out;
}
Tensor dynamic_shared(Tensor like, int64_t n) {
  Tensor out = torch::stable::new_empty(like, {n});
  size_t bytes = static_cast<size_t>(n) * 8;
  dynamic_shared_kernel<<<1, static_cast<unsigned>(n), bytes>>>(static_cast<float*>(out.data_ptr()),
                                                                static_cast<int>(n));
  check_launch("dynamic_shared");
  return out;
}
Tensor dynamic_rows(Tensor like) {
  Tensor out = torch::stable::new_empty(like, {4, 8});
  dynamic_rows_kernel<<<1, dim3(8, 4), 4 * 8 * sizeof(float)>>>(
      static_cast<float*>(out.data_ptr()));
  check_launch("dynamic_rows");
  return out;
}
Tensor poison(Tensor like) {
  Tensor out = torch::stable::new_empty(like, {2});
  for (int i = 0; i < 2; ++i) poison_kernel<<<1, 1, 64>>>(static_cast<float*>(out.data_ptr()));
  check_launch("poison");
  return out;
}

// ---------------------------------------------------------------- barriers

__global__ void barriers_kernel(int* out, int n) {
  int t = threadIdx.x;
  if (t >= n) return;  // counts as arrived from here on
  int count = __syncthreads_count(t % 3 == 0);
  int all = __syncthreads_and(t >= 0), not_all = __syncthreads_and(t > 0);
  int any = __syncthreads_or(t == n - 1), none = __syncthreads_or(t < 0);
  out[t] = count * 10000 + (all != 0) * 1000 + (not_all != 0) * 100 + (any != 0) * 10 + (none != 0);
}
Tensor barriers(Tensor like, int64_t n) {
  Tensor out = torch::stable::new_empty(like, {n}, ScalarType::Int);
  barriers_kernel<<<1, 256>>>(static_cast<int*>(out.data_ptr()), static_cast<int>(n));
  check_launch("barriers");
  return out;
}

// ---------------------------------------------------------------- warps

template <typename T>
__global__ void shuffle_kernel(const T* in, T* out, int which, int argument, int width) {
  T value = in[threadIdx.x], result = value;
  unsigned mask = 0xffffffffu;
  if (which == 0) result = __shfl_sync(mask, value, argument, width);
  if (which == 1) result = __shfl_up_sync(mask, value, static_cast<unsigned>(argument), width);
  if (which == 2) result = __shfl_down_sync(mask, value, static_cast<unsigned>(argument), width);
  if (which == 3) result = __shfl_xor_sync(mask, value, argument, width);
  out[threadIdx.x] = result;
}
template <typename T>
void run_shuffle(const Tensor& in, Tensor& out, int64_t which, int64_t argument, int64_t width) {
  unsigned threads = static_cast<unsigned>(in.numel() * in.element_size() / sizeof(T));
  shuffle_kernel<<<1, threads>>>(static_cast<const T*>(in.data_ptr()),
                                 static_cast<T*>(out.data_ptr()), static_cast<int>(which),
                                 static_cast<int>(argument), static_cast<int>(width));
  check_launch("shuffle");
}
// int16 stands for pairs of half: a pair is shuffled as one.
Tensor shuffle(Tensor in, int64_t which, int64_t argument, int64_t width) {
  Tensor out = torch::stable::empty_like(in);
  switch (in.scalar_type()) {
    case ScalarType::Byte:
      run_shuffle<unsigned char>(in, out, which, argument, width);
      break;
    case ScalarType::Half:
      run_shuffle<__half>(in, out, which, argument, width);
      break;
    case ScalarType::BFloat16:
      run_shuffle<__nv_bfloat16>(in, out, which, argument, width);
      break;
    case ScalarType::Int:
      run_shuffle<int>(in, out, which, argument, width);
      break;
    case ScalarType::Long:
      run_shuffle<long long>(in, out, which, argument, width);
      break;
    case ScalarType::Double:
      run_shuffle<double>(in, out, which, argument, width);
      break;
    case ScalarType::Short:
      run_shuffle<__half2>(in, out, which, argument, width);
      break;
    default:
      run_shuffle<float>(in, out, which, argument, width);
  }
  return out;
}

__global__ void votes_kernel(const int* in, unsigned* out) {
  unsigned mask = 0xffffffffu, t = threadIdx.x, row = 0;
  int value = in[t];
  auto put = [&](unsigned result) { out[row++ * blockDim.x + t] = result; };
  put(__ballot_sync(mask, value % 2));
  put(__any_sync(mask, value == 7));
  put(__all_sync(mask, value >= 0));
  put(__match_any_sync(mask, value % 4));
  int same = 0;
  put(__match_all_sync(mask, value >= 0, &same));
  put(static_cast<unsigned>(same));
  put(__match_all_sync(mask, static_cast<long long>(value), &same));
  put(__reduce_add_sync(mask, static_cast<unsigned>(value)));
  put(static_cast<unsigned>(__reduce_min_sync(mask, -value)));
  put(static_cast<unsigned>(__reduce_max_sync(mask, -value)));
  put(__reduce_min_sync(mask, static_cast<unsigned>(value)));
  put(__reduce_max_sync(mask, static_cast<unsigned>(value)));
  put(__reduce_and_sync(mask, static_cast<unsigned>(value) | 8));
  put(__reduce_or_sync(mask, static_cast<unsigned>(value)));
  put(__reduce_xor_sync(mask, static_cast<unsigned>(value)));
}
Tensor votes(Tensor in) {
  Tensor out = torch::stable::new_empty(in, {15, in.numel()});
  votes_kernel<<<1, static_cast<unsigned>(in.numel())>>>(static_cast<const int*>(in.data_ptr()),
                                                         static_cast<unsigned*>(out.data_ptr()));
  check_launch("votes");
  return out;
}

// Lanes that diverge: each side sees its own lanes only.
__global__ void diverge_kernel(unsigned* out, int* counter) {
  unsigned t = threadIdx.x;
  if (t % 4 == 1) {
    unsigned active = __activemask();
    int leader = __ffs(static_cast<int>(active)) - 1, base = 0;
    if (static_cast<int>(t % 32) == leader) base = atomicAdd(counter, __popc(active));
    base = __shfl_sync(active, base, leader);
    __syncwarp(active);
    out[t] = active;
  } else {
    unsigned active = __activemask();
    out[t] = __ballot_sync(active, t % 2 == 0);
  }
}
Tensor diverge(Tensor counter) {
  Tensor out = torch::stable::new_empty(counter, {64});
  diverge_kernel<<<1, 64>>>(static_cast<unsigned*>(out.data_ptr()),
                            static_cast<int*>(counter.data_ptr()));
  check_launch("diverge");
  return out;
}

// ---------------------------------------------------------------- atomics

struct Atomics {
  int i[8];
  unsigned u[8];
  unsigned long long ull[4];
  float f[4];
  double d[1];
  __half h[2];
  __nv_bfloat16 b[2];
  unsigned short s[2];
  float2 pair;
};
__global__ void atomics_kernel(Atomics* a) {
  int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  unsigned n = static_cast<unsigned>(t);
  atomicAdd(&a->i[0], t);
  atomicSub(&a->i[1], 1);
  atomicMin(&a->i[2], -t);
  atomicMax(&a->i[3], t);
  atomicExch(&a->i[4], 42);
  if (atomicCAS(&a->i[5], 0, t + 1) == 0) atomicAdd(&a->i[6], 1);  // exactly one wins
  atomicAdd(&a->u[0], n);
  atomicInc(&a->u[1], 4);
  atomicDec(&a->u[2], 4);
  atomicAnd(&a->u[3], ~(1u << (n % 32)));
  atomicOr(&a->u[4], 1u << (n % 32));
  atomicXor(&a->u[5], n);
  atomicAdd_block(&a->u[6], 1);
  atomicAdd(&a->ull[0], 1ull << 33);
  atomicMax(&a->ull[1], static_cast<unsigned long long>(n) << 33);
  atomicAdd(&a->f[0], 0.5f);
  atomicAdd(&a->d[0], 0.5);
  if (n < 64) atomicAdd(&a->h[1], __float2half(0.5f));
  if (n < 64) atomicAdd(&a->b[1], __float2bfloat16(0.5f));
  if (n < 64) atomicAdd(reinterpret_cast<__half2*>(&a->f[1]), __floats2half2_rn(1.f, 2.f));
  atomicCAS(&a->s[1], static_cast<unsigned short>(0), static_cast<unsigned short>(7));
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  atomicAdd(&a->pair, make_float2(1.f, 2.f));
#endif
}
void atomics(Tensor) {
  Atomics host = {};
  host.u[3] = ~0u;
  Atomics* device = nullptr;
  check_cuda(cudaMalloc(&device, sizeof host), "cudaMalloc");
  check_cuda(cudaMemcpy(device, &host, sizeof host, cudaMemcpyHostToDevice), "cudaMemcpy");
  const int n = 8 * 256;
  atomics_kernel<<<8, 256>>>(device);
  check_launch("atomics");
  check_cuda(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
  check_cuda(cudaFree(device), "cudaFree");
  const int sum = n * (n - 1) / 2;
  STD_TORCH_CHECK(host.i[0] == sum && host.i[1] == -n && host.i[2] == 1 - n);
  STD_TORCH_CHECK(host.i[3] == n - 1 && host.i[4] == 42 && host.i[5] > 0 && host.i[6] == 1);
  STD_TORCH_CHECK(host.u[0] == unsigned(sum) && host.u[1] == n % 5 && host.u[2] == (5 - n % 5) % 5);
  STD_TORCH_CHECK(host.u[3] == 0 && host.u[4] == ~0u && host.u[5] == 0 && host.u[6] == n);
  STD_TORCH_CHECK(host.ull[0] == (1ull << 33) * n && host.ull[1] == (n - 1ull) << 33);
  STD_TORCH_CHECK(host.f[0] == n / 2 && host.d[0] == n / 2);
  STD_TORCH_CHECK(__half2float(host.h[1]) == 32 && __half2float(host.h[0]) == 0);
  STD_TORCH_CHECK(__bfloat162float(host.b[1]) == 32 && host.s[1] == 7 && host.s[0] == 0);
  __half2 half_pair = *reinterpret_cast<__half2*>(&host.f[1]);
  STD_TORCH_CHECK(__low2float(half_pair) == 64 && __high2float(half_pair) == 128);
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  if (properties.major >= 9) STD_TORCH_CHECK(host.pair.x == n && host.pair.y == 2 * n);
}

// A lock between threads of all blocks, and a chain in which each block waits for the one before.
__global__ void lock_kernel(int* lock, int* counter) {
  for (bool done = false; !done;) {
    if (atomicCAS(lock, 0, 1) == 0) {
      *counter = *counter + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}
__global__ void chain_kernel(volatile int* flags, int* order) {
  int block = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0 && block > 0)
    while (flags[block - 1] == 0) {
    }
  __syncthreads();
  if (threadIdx.x == 0) {
    order[block] = block > 0 ? order[block - 1] + 1 : 1;
    __threadfence();
    flags[block] = 1;
  }
}
__global__ void nanosleep_kernel(volatile int* flag, int* out) {
  if (threadIdx.x == 0) {
    while (*flag == 0) __nanosleep(100);
    out[0] = 1;
  } else if (threadIdx.x == blockDim.x - 1) {
    *flag = 1;
  }
}
// Each block waits for the one before, in a loop of another form, and counts trips meanwhile.
__device__ int look(const int* word) {
  return *static_cast<const volatile int*>(word);
}
__global__ void loops_kernel(volatile int* flags, int* order) {
  int block = static_cast<int>(blockIdx.x), trips = 0;
  int* before = const_cast<int*>(flags) + block - 1;
  if (block > 0) {
    switch (block % 8) {
      case 0:
        while (flags[block - 1] == 0) {
          ++trips;
        }
        break;
      case 1:
        while (look(before) == 0) trips += 2;
        break;
      case 2:
        do {
          ++trips;
        } while (*(volatile int*)before == 0);
        break;
      case 3: {
        int seen;
        do {
          seen = flags[block - 1];
        } while (!seen);
        break;
      }
      case 4:
        for (;;) {
          if (flags[block - 1]) break;
          ++trips;
        }
        break;
      case 5:
        for (trips = 1; atomicAdd(before, 0) == 0; ++trips);
        break;
      case 6:
        while (true) {
          int seen = look(before);
          if (seen != 0) break;
        }
        break;
      default:
        do {
        } while (!flags[block - 1]);
    }
  }
  __threadfence();
  order[block] = (block > 0 ? order[block - 1] + 1 : 1) + (trips < 0);
  __threadfence();
  flags[block] = 1;
}
Tensor wait_loops(Tensor zeros) {
  int* p = static_cast<int*>(zeros.data_ptr());
  loops_kernel<<<24, 1>>>(p, p + 32);
  check_launch("wait_loops");
  return zeros;
}
Tensor waits(Tensor zeros) {
  int* p = static_cast<int*>(zeros.data_ptr());
  lock_kernel<<<16, 64>>>(p, p + 1);
  chain_kernel<<<20, 32>>>(p + 10, p + 40);
  nanosleep_kernel<<<1, 64>>>(p + 2, p + 3);
  check_launch("waits");
  return zeros;
}

// ---------------------------------------------------------------- memory and vectors

__constant__ float coefficients[4];
__device__ int device_counter = 3;
__device__ float* device_pointer;

__global__ void vector_kernel(const float4* in, float4* out, int n) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  float4 v = __ldg(&in[i]);
  float4 w = __ldcs(in + i), x = __ldcg(in + i);
  v = make_float4(v.x * coefficients[0], w.y * coefficients[1], x.z * coefficients[2],
                  v.w * coefficients[3] + static_cast<float>(device_counter));
  __stcs(out + i, v);
  if (i == 0) atomicAdd(&device_counter, 1), device_pointer[0] += 1;
}
Tensor vectors(Tensor in) {
  Tensor out = torch::stable::empty_like(in);
  float host[4] = {1, 2, 3, 4};
  int three = 3;
  Tensor count = torch::stable::new_zeros(in, {1});
  float* address = mutable_data<float>(count);
  check_cuda(cudaMemcpyToSymbol(coefficients, host, sizeof host), "cudaMemcpyToSymbol");
  check_cuda(cudaMemcpyToSymbol(device_counter, &three, sizeof three), "cudaMemcpyToSymbol");
  check_cuda(cudaMemcpyToSymbol(device_pointer, &address, sizeof address), "cudaMemcpyToSymbol");
  STD_TORCH_CHECK(cudaMemcpyToSymbol(coefficients, host, 17) == cudaErrorInvalidValue);
  STD_TORCH_CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  int n = static_cast<int>(in.numel() / 4);
  vector_kernel<<<(n + 127) / 128, 128>>>(static_cast<const float4*>(in.data_ptr()),
                                          static_cast<float4*>(out.data_ptr()), n);
  check_launch("vectors");
  int after = 0;
  float counted = 0;
  check_cuda(cudaMemcpyFromSymbol(&after, device_counter, sizeof after), "cudaMemcpyFromSymbol");
  check_cuda(cudaMemcpy(&counted, address, sizeof counted, cudaMemcpyDeviceToHost), "cudaMemcpy");
  STD_TORCH_CHECK(after == 4 && counted == 1);
  return out;
}

// ---------------------------------------------------------------- arithmetic

// Row i of the result is function i of x.
__global__ void math_kernel(const float* in, float* out, int n) {
  int i = static_cast<int>(threadIdx.x), row = 0;
  float x = in[i];
  auto put = [&](float result) { out[row++ * n + i] = result; };
  put(__expf(x));
  put(rsqrtf(x));
  put(exp2f(x));
  put(__fdividef(1.f, x));
  put(__saturatef(x - 1.f));
  put(fmaf(x, x, 1.f));
  put(erff(x));
  put(tanhf(x));
  put(__logf(x));
  put(__powf(x, 1.5f));
  put(__sinf(x));
  put(sinpif(x));
  put(cospif(x));
  put(normcdff(x));
  put(fminf(x, 1.f) + fmaxf(x, 2.f));
  put(min(x, 1.f) + max(2.f, x));
  put(static_cast<float>(min(i, 3) + max(i, 5) + static_cast<int>(min(3u, 4u))));
  put(static_cast<float>(__float2int_rn(x) + __float2int_rz(x) + __float2int_ru(x)));
  put(__fmul_rn(x, 3.f));
  put(rcbrtf(x));
  put(log1pf(x));
  put(exp10f(x));
}
Tensor math(Tensor in) {
  int n = static_cast<int>(in.numel());
  Tensor out = torch::stable::new_empty(in, {22, n});
  math_kernel<<<1, static_cast<unsigned>(n)>>>(static_cast<const float*>(in.data_ptr()),
                                               static_cast<float*>(out.data_ptr()), n);
  check_launch("math");
  return out;
}

// Notes the number of the first check that fails. (An assertion would end the process on a GPU.)
__global__ void bits_kernel(int* failed) {
  int number = 0;
  auto check_that = [&](bool holds) {
    ++number;
    if (!holds) atomicCAS(failed, 0, number);
  };
  check_that(__popc(0xf0f0u) == 8 && __popcll(~0ull) == 64);
  check_that(__clz(1) == 31 && __clz(0) == 32 && __clzll(1) == 63 && __clz(-1) == 0);
  check_that(__ffs(0) == 0 && __ffs(8) == 4 && __ffsll(1ll << 40) == 41);
  check_that(__brev(1u) == 0x80000000u && __brev(0x12345678u) == 0x1e6a2c48u);
  check_that(__brevll(1ull) == 1ull << 63);
  check_that(__byte_perm(0x33221100u, 0x77665544u, 0x7531) == 0x77553311u);
  check_that(__byte_perm(0x00008000u, 0, 0x9999) == 0x80808080u);
  check_that(__funnelshift_l(0x80000000u, 1u, 1) == 3u &&
             __funnelshift_r(0u, 1u, 1) == 0x80000000u);
  check_that(__mulhi(1 << 30, 8) == 2 && __umulhi(1u << 31, 4u) == 2u);
  check_that(__umul64hi(1ull << 63, 4ull) == 2ull && __mul24(3, -4) == -12);
  check_that(__dp4a(0x01020304, 0x01010101, 5) == 15 && __dp4a(-1, 2, 0) == -2);
  check_that(__sad(3, -4, 1u) == 8u && __fns(0x8421u, 0, 3) == 10u);
  check_that(__float_as_int(1.f) == 0x3f800000 && __int_as_float(0x40000000) == 2.f);
  check_that(__double_as_longlong(1.0) == 0x3ff0000000000000ll);
  check_that(__float2int_rn(2.5f) == 2 && __float2int_rd(-0.5f) == -1);
  check_that(__float2int_rz(1e20f) == 2147483647 && __float2uint_rn(-3.f) == 0u);
  check_that(__hadd(3, 4) == 3 && warpSize == 32);
  check_that(__half2int_rn(__float2half(2.5f)) == 2 &&
             __bfloat162int_rd(__float2bfloat16(-0.5f)) == -1);
  long long start = clock64();
  check_that(clock64() >= start && clock() >= 0);
#ifdef CUDA_ON_CPU
  check_that(cudacpu::smid() < 1024);
#else
  asm volatile("// PTX that the CPU backend must not see");
#endif
}
// 0, or the number of the first check that failed.
Tensor bits(Tensor like) {
  Tensor failed = torch::stable::new_zeros(like, {1}, ScalarType::Int);
  bits_kernel<<<4, 32>>>(mutable_data<int>(failed));
  check_launch("bits");
  return failed;
}

template <typename T>
__global__ void half_kernel(const T* in, T* out, int n) {
  int i = static_cast<int>(threadIdx.x), row = 0;
  T x = in[i];
  auto put = [&](T result) { out[row++ * n + i] = result; };
  put(x + x * x);
  put(__hfma(x, x, x));
  put(hexp(x));
  put(hsqrt(x));
  put(htanh(x));
  put(hrcp(x));
  put(__hmax(x, static_cast<T>(1.5f)));
  put(x > static_cast<T>(1.f) ? x : -x);
}
Tensor half_math(Tensor in) {
  int n = static_cast<int>(in.numel());
  Tensor out = torch::stable::new_empty(in, {8, n});
  unsigned threads = static_cast<unsigned>(n);
  if (in.scalar_type() == ScalarType::Half)
    half_kernel<<<1, threads>>>(static_cast<const __half*>(in.data_ptr()),
                                static_cast<__half*>(out.data_ptr()), n);
  else
    half_kernel<<<1, threads>>>(static_cast<const __nv_bfloat16*>(in.data_ptr()),
                                static_cast<__nv_bfloat16*>(out.data_ptr()), n);
  check_launch("half_math");
  return out;
}

// ---------------------------------------------------------------- output

__global__ void print_kernel(const char* word) {
  printf("block %u ", blockIdx.x);
  if (threadIdx.x % 2 == 0) printf("thread %2u: %s %.2f\n", threadIdx.x, word, 0.5);
  __syncthreads();
  if (threadIdx.x == 0) printf("end of block %u\n", blockIdx.x);
}
void print(Tensor, int64_t blocks) {
  print_kernel<<<static_cast<unsigned>(blocks), 2>>>("hello");
  check_launch("print");
}

// ---------------------------------------------------------------- the runtime API

__global__ void big_shared(float* out) {
  extern __shared__ float row[];
  row[threadIdx.x] = 1;
  if (out) out[0] = row[0];
}
__global__ void __launch_bounds__(128) bounded(float* out) {
  if (out) out[0] = 1;
}

#define EXPECT(call, code)                                                                      \
  STD_TORCH_CHECK((call) == (code), #call, " gives ", cudaGetErrorName(cudaPeekAtLastError())); \
  STD_TORCH_CHECK(cudaGetLastError() == (code))

// What each launch in turn is answered, and each setting of a limit; then out[0], which only the
// launch with 100000 bytes may have set.
Tensor launch_errors(Tensor like) {
  Tensor zero = torch::stable::new_zeros(like, {1});
  float* one = mutable_data<float>(zero);
  std::vector<int> codes;
  auto value = [&] {
    float host = -1;
    check_cuda(cudaMemcpy(&host, one, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return static_cast<int>(host);
  };
  auto note = [&] { codes.push_back(static_cast<int>(cudaGetLastError())); };
  auto limit = [&](int bytes) {
    (void)cudaFuncSetAttribute(big_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    note();
  };
  (void)cudaGetLastError();
  bounded<<<0, 32>>>(nullptr), note();
  bounded<<<1, 0>>>(nullptr), note();
  big_shared<<<1, 1025>>>(nullptr), note();
  big_shared<<<dim3(1, 65536), 1>>>(nullptr), note();
  big_shared<<<1, dim3(1, 1, 65)>>>(nullptr), note();
  bounded<<<1, 256>>>(one), note();
  big_shared<<<1, 32, 49153>>>(one), note();
  limit(232449);
  codes.push_back(value());
  limit(100000);
  big_shared<<<1, 32, 100000>>>(one), note();
  codes.push_back(value());
  big_shared<<<1, 32, 100001>>>(one), note();
  big_shared<<<1, 32, 300000>>>(one), note();
  limit(49152);                           // as it was
  add_one<<<1, 1, 60000>>>(one), note();  // the limit was the other kernel's alone
  Tensor out =
      torch::stable::new_empty(like, {static_cast<int64_t>(codes.size())}, ScalarType::Int);
  check_cuda(cudaMemcpy(out.mutable_data_ptr(), codes.data(), codes.size() * sizeof(int),
                        cudaMemcpyHostToDevice),
             "cudaMemcpy");
  return out;
}

void runtime_api(Tensor) {
  int count = -1, device = -1, value = 0;
  (void)cudaGetLastError();
  EXPECT(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT(cudaGetDevice(&device), cudaSuccess);
  STD_TORCH_CHECK(count >= 1 && device == 0);
  EXPECT(cudaSetDevice(count), cudaErrorInvalidDevice);
  cudaDeviceProp p;
  EXPECT(cudaGetDeviceProperties(&p, 0), cudaSuccess);
  const bool hopper = p.major == 9;
  STD_TORCH_CHECK(p.warpSize == 32 && p.maxThreadsPerBlock == 1024 && p.sharedMemPerBlock == 49152);
  STD_TORCH_CHECK(!hopper || p.sharedMemPerBlockOptin == 232448);
  EXPECT(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  STD_TORCH_CHECK(value == p.multiProcessorCount && value >= 1);
  size_t free = 0, total = 0;
  EXPECT(cudaMemGetInfo(&free, &total), cudaSuccess);
  STD_TORCH_CHECK(free > 0 && free <= total && total == p.totalGlobalMem);
  EXPECT(cudaRuntimeGetVersion(&value), cudaSuccess);
  STD_TORCH_CHECK(value / 1000 == CUDART_VERSION / 1000);

  float *a = nullptr, *b = nullptr, *pinned = nullptr;
  EXPECT(cudaMalloc(&a, 4096), cudaSuccess);
  EXPECT(cudaMalloc(&b, 4096), cudaSuccess);
#ifdef CUDA_ON_CPU
  STD_TORCH_CHECK(a[17] != a[17]);  // NaN until written
#endif
  EXPECT(cudaMallocHost(&pinned, 4096), cudaSuccess);
  for (int i = 0; i < 1024; ++i) pinned[i] = static_cast<float>(i);
  cudaPointerAttributes attributes;
  EXPECT(cudaPointerGetAttributes(&attributes, a + 5), cudaSuccess);
  STD_TORCH_CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
  EXPECT(cudaPointerGetAttributes(&attributes, pinned), cudaSuccess);
  STD_TORCH_CHECK(attributes.type == cudaMemoryTypeHost);
  cudaStream_t stream;
  cudaEvent_t start, end, untimed;
  EXPECT(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT(cudaEventCreate(&start), cudaSuccess);
  EXPECT(cudaEventCreate(&end), cudaSuccess);
  EXPECT(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  float milliseconds = -1;
  EXPECT(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  EXPECT(cudaEventRecord(start, stream), cudaSuccess);
  EXPECT(cudaMemcpyAsync(a, pinned, 4096, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT(cudaMemcpy(b, a, 4096, cudaMemcpyDeviceToDevice), cudaSuccess);
  EXPECT(cudaMemset(a, 0, 2048), cudaSuccess);
  EXPECT(cudaEventRecord(end, stream), cudaSuccess);
  EXPECT(cudaEventSynchronize(end), cudaSuccess);
  EXPECT(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  STD_TORCH_CHECK(milliseconds >= 0 && milliseconds < 1000);
  EXPECT(cudaEventRecord(untimed), cudaSuccess);
  EXPECT(cudaEventElapsedTime(&milliseconds, start, untimed), cudaErrorInvalidResourceHandle);
  std::vector<float> host_a(1024), host_b(1024);
  EXPECT(cudaMemcpy(host_a.data(), a, 4096, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT(cudaMemcpy(host_b.data(), b, 4096, cudaMemcpyDefault), cudaSuccess);
  STD_TORCH_CHECK(host_b[1000] == 1000 && host_a[511] == 0 && host_a[512] == 512);
#ifdef CUDA_ON_CPU  // a GPU only sees where its own, larger pieces of memory end
  EXPECT(cudaMemcpy(a, pinned, 8192, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
#endif
  EXPECT(cudaStreamQuery(stream), cudaSuccess);
  EXPECT(cudaStreamWaitEvent(stream, end), cudaSuccess);
  EXPECT(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT(cudaEventDestroy(start), cudaSuccess);
  EXPECT(cudaEventDestroy(end), cudaSuccess);
  EXPECT(cudaEventDestroy(untimed), cudaSuccess);
  EXPECT(cudaFreeHost(pinned), cudaSuccess);
  EXPECT(cudaFree(b), cudaSuccess);
  EXPECT(cudaFree(a), cudaSuccess);
  EXPECT(cudaFree(nullptr), cudaSuccess);
  EXPECT(cudaFree(&count), cudaErrorInvalidValue);
  EXPECT(cudaMalloc(&a, size_t{1} << 50), cudaErrorMemoryAllocation);
  STD_TORCH_CHECK(std::string(cudaGetErrorName(cudaErrorInvalidValue)) == "cudaErrorInvalidValue");
  STD_TORCH_CHECK(std::string(cudaGetErrorString(cudaErrorInvalidConfiguration)) ==
                  "invalid configuration argument");

  int blocks = 0, threads = 0;
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_one, 256, 0), cudaSuccess);
  STD_TORCH_CHECK(!hopper || blocks == 8);
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_one, 256, 40 * 1024),
         cudaSuccess);
  STD_TORCH_CHECK(!hopper || blocks == 5);
  EXPECT(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, add_one), cudaSuccess);
  STD_TORCH_CHECK(!hopper || (threads == 1024 && blocks == 2 * p.multiProcessorCount));
  cudaFuncAttributes function;
  EXPECT(cudaFuncGetAttributes(&function, add_one), cudaSuccess);
  STD_TORCH_CHECK(function.maxThreadsPerBlock == 1024);
}

// ---------------------------------------------------------------- C++ in device code

template <class T>
concept Number = std::is_arithmetic_v<T>;
template <Number... Ts>
__device__ auto sum_of(Ts... values) {
  return (values + ... + 0);
}
struct Scale {
  float factor;
  int shift;
};
struct Shape {
  __device__ virtual float area() const { return 1; }
};
struct Square : Shape {
  float side;
  __device__ explicit Square(float x) : side(x) {}
  __device__ float area() const override { return side * side; }
};
__device__ float twice(float x) {
  return 2 * x;
}

// The elements of a pair, assigned in braces, as nvcc takes it for all of these types.
template <class Pair>
__device__ Pair exchanged(Pair pair) {
  [[maybe_unused]] Pair before = {pair.x, pair.y};
  Pair two[2];
  Pair* last = &two[1];
  two[0] = {pair.y, pair.x};
  *last = {two[0].x, two[0].y};
  if (pair.x == pair.x) pair = {last->x, last->y};
  return pair;
}

__global__ void __maxnreg__(64)
    language_kernel(const __grid_constant__ Scale scale, float* out, int n) {
  __builtin_assume(n > 0);
  auto pair_sum = [](auto pair, float weight) {
    pair = exchanged(pair);
    return static_cast<float>(pair.x) + weight * static_cast<float>(pair.y);
  };
  out[0] = pair_sum(__halves2half2(__float2half(3), __float2half(4)), 10);
  out[1] = pair_sum(__halves2bfloat162(__float2bfloat16(3), __float2bfloat16(4)), 10);
  out[2] = pair_sum(float2{3, 4}, 10);
  out[3] = sum_of(1, 2.5f, 3u);
  out[4] = scale.factor * static_cast<float>(n << scale.shift);

  auto* words = static_cast<int*>(malloc(4 * sizeof(int)));
  memset(words, 0, 4 * sizeof(int));
  words[2] = n;
  auto* copies = new int[4];
  memcpy(copies, words, 4 * sizeof(int));
  out[5] = static_cast<float>(copies[1] + copies[2]);
  free(words);
  delete[] copies;

  const Shape* shape = new Square(3);
  out[6] = shape->area();
  delete static_cast<const Square*>(shape);
  float (*function)(float) = n > 0 ? twice : nullptr;
  out[7] = function(4);

  float sum = 0;
  constexpr int kTimes = 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += 1;
#pragma unroll kTimes
  for (int i = 0; i < 4; ++i) sum += 1;
#pragma unroll(kTimes * 2)
  for (int i = 0; i < 4; ++i) sum += 1;
#pragma unroll 1
  for (int i = 0; i < n; ++i) sum += 1;
  out[8] = sum;

  const clock_t begin = clock();
  const long long begin64 = clock64();
  __nanosleep(100);
  out[9] = clock() != begin && clock64() > begin64;
  union {
    float value;
    unsigned bits;
  } word;
  word.value = 1;
  out[10] = static_cast<float>(word.bits >> 23);
  if (__builtin_expect(n == 0, 0)) __trap();
}
template <class Function>
__global__ void apply_kernel(Function function) {
  function(threadIdx.x);
}
Tensor language(Tensor like) {
  Tensor out = torch::stable::new_zeros(like, {20});
  float* p = mutable_data<float>(out);
  language_kernel<<<1, 1>>>(Scale{0.5f, 1}, p, 4);
  const float factor = 3;
  apply_kernel<<<1, 4>>>([=] __device__(unsigned i) { p[11 + i] = factor * i; });
  auto both = [p, factor] __host__ __device__(unsigned i) { p[15 + i] = factor + i; };
  apply_kernel<<<1, 4>>>(both);
  check_launch("language");
  return out;
}

// ---------------------------------------------------------------- speed

__global__ void empty_kernel() {}
void launch_empty(int64_t blocks, int64_t threads) {
  empty_kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads)>>>();
}
__global__ void barrier_kernel(int rounds) {
  for (int i = 0; i < rounds; ++i) __syncthreads();
}
void launch_barriers(int64_t blocks, int64_t threads, int64_t rounds) {
  barrier_kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads)>>>(
      static_cast<int>(rounds));
}
void launch_many(int64_t times) {
  for (int64_t i = 0; i < times; ++i) empty_kernel<<<1, 32>>>();
}

template <int TILE>
__global__ void matmul_kernel(const float* a, const float* b, float* c, int n) {
  __shared__ float as[TILE][TILE], bs[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k0 = 0; k0 < n; k0 += TILE) {
    as[threadIdx.y][threadIdx.x] = a[row * n + k0 + threadIdx.x];
    bs[threadIdx.y][threadIdx.x] = b[(k0 + threadIdx.y) * n + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; ++k) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
// Square matrices whose size is a multiple of 32.
Tensor matmul(Tensor a, Tensor b) {
  Tensor c = torch::stable::empty_like(a);
  int n = static_cast<int>(a.size(0));
  unsigned tiles = static_cast<unsigned>(n / 32);
  matmul_kernel<32><<<dim3(tiles, tiles), dim3(32, 32)>>>(static_cast<const float*>(a.data_ptr()),
                                                          static_cast<const float*>(b.data_ptr()),
                                                          static_cast<float*>(c.data_ptr()), n);
  check_launch("matmul");
  return c;
}

// A block a row: the row in dynamic shared memory, reductions by shuffles (helper.cuh).
__global__ void softmax_kernel(const float* in, float* out, int columns) {
  extern __shared__ float row[];
  const float* x = in + static_cast<size_t>(blockIdx.x) * columns;
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) top = fmaxf(top, row[i] = x[i]);
  top = block_reduce(top, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i] = __expf(row[i] - top);
  sum = block_reduce(sum, 0.f, [](float a, float b) { return a + b; });
  float* y = out + static_cast<size_t>(blockIdx.x) * columns;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) y[i] = row[i] / sum;
}
Tensor softmax(Tensor in) {
  Tensor out = torch::stable::empty_like(in);
  int columns = static_cast<int>(in.size(1));
  softmax_kernel<<<static_cast<unsigned>(in.size(0)), 256, columns * sizeof(float)>>>(
      static_cast<const float*>(in.data_ptr()), static_cast<float*>(out.data_ptr()), columns);
  check_launch("softmax");
  return out;
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_features, m) {
  m.def("launch_forms(Tensor(a!) out) -> ()");
  m.def("indices(Tensor like) -> Tensor");
  m.def("shared_forms(Tensor like) -> Tensor");
  m.def("dynamic_shared(Tensor like, int n) -> Tensor");
  m.def("dynamic_rows(Tensor like) -> Tensor");
  m.def("poison(Tensor like) -> Tensor");
  m.def("barriers(Tensor like, int n) -> Tensor");
  m.def("shuffle(Tensor x, int which, int argument, int width) -> Tensor");
  m.def("votes(Tensor x) -> Tensor");
  m.def("diverge(Tensor(a!) counter) -> Tensor");
  m.def("atomics(Tensor like) -> ()");
  m.def("waits(Tensor(a!) zeros) -> Tensor");
  m.def("wait_loops(Tensor(a!) zeros) -> Tensor");
  m.def("vectors(Tensor x) -> Tensor");
  m.def("math(Tensor x) -> Tensor");
  m.def("bits(Tensor like) -> Tensor");
  m.def("half_math(Tensor x) -> Tensor");
  m.def("print(Tensor like, int blocks) -> ()");
  m.def("language(Tensor like) -> Tensor");
  m.def("launch_errors(Tensor like) -> Tensor");
  m.def("runtime_api(Tensor like) -> ()");
  m.def("launch_empty(int blocks, int threads) -> ()");
  m.def("launch_barriers(int blocks, int threads, int rounds) -> ()");
  m.def("launch_many(int times) -> ()");
  m.def("matmul(Tensor a, Tensor b) -> Tensor");
  m.def("softmax(Tensor x) -> Tensor");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_features, CUDA, m) {
  m.impl("launch_forms", TORCH_BOX(&launch_forms));
  m.impl("indices", TORCH_BOX(&indices));
  m.impl("shared_forms", TORCH_BOX(&shared_forms));
  m.impl("dynamic_shared", TORCH_BOX(&dynamic_shared));
  m.impl("dynamic_rows", TORCH_BOX(&dynamic_rows));
  m.impl("poison", TORCH_BOX(&poison));
  m.impl("barriers", TORCH_BOX(&barriers));
  m.impl("shuffle", TORCH_BOX(&shuffle));
  m.impl("votes", TORCH_BOX(&votes));
  m.impl("diverge", TORCH_BOX(&diverge));
  m.impl("waits", TORCH_BOX(&waits));
  m.impl("wait_loops", TORCH_BOX(&wait_loops));
  m.impl("vectors", TORCH_BOX(&vectors));
  m.impl("math", TORCH_BOX(&math));
  m.impl("half_math", TORCH_BOX(&half_math));
  m.impl("matmul", TORCH_BOX(&matmul));
  m.impl("softmax", TORCH_BOX(&softmax));
  m.impl("atomics", TORCH_BOX(&atomics));
  m.impl("bits", TORCH_BOX(&bits));
  m.impl("print", TORCH_BOX(&print));
  m.impl("language", TORCH_BOX(&language));
  m.impl("launch_errors", TORCH_BOX(&launch_errors));
  m.impl("runtime_api", TORCH_BOX(&runtime_api));
}
// Speed, of the CPU backend alone. Without a tensor there is no device to choose by.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY_IMPL(test_features, CompositeExplicitAutograd, m) {
  m.impl("launch_empty", TORCH_BOX(&launch_empty));
  m.impl("launch_barriers", TORCH_BOX(&launch_barriers));
  m.impl("launch_many", TORCH_BOX(&launch_many));
}
#endif

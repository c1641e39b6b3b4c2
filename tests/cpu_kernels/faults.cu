// Kernels with a planted fault each, for test_cpu_backend.py. The line that the error must name
// carries the fault's name in a comment: "// line: <name>".
#include "common/cuda/tensor.cuh"

#include <cuda_bf16.h>

#include <cassert>
#include <stdexcept>
#include <vector>

__global__ void divergent_branches(float* x) {
  if (threadIdx.x % 2)
    __syncthreads();
  else
    __syncthreads();
  x[threadIdx.x] = 1;
}
__global__ void divergent_warp(float* x) {
  if (threadIdx.x < 16) __syncwarp();
  if (threadIdx.x >= 16) __syncthreads();
  x[0] = 1;
}
__global__ void caller_not_in_mask(float* x) {
  x[threadIdx.x] = __shfl_sync(0x0000ffffu, x[threadIdx.x], 0);  // line: caller_not_in_mask
}
__global__ void incomplete_mask(float* x) {
  if (threadIdx.x < 8) {
    x[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], 0);  // line: incomplete_mask
  } else {
    __syncthreads();
  }
}
__global__ void mixed_operations(float* x) {
  if (threadIdx.x < 16)
    x[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.f, 1);
  else
    x[threadIdx.x] = __shfl_up_sync(0xffffffffu, 1.f, 1);
}
__global__ void null_pointer(float* x) {
  float* nowhere = x[0] > 1e30f ? x : nullptr;
  if (threadIdx.x == 7) nowhere[threadIdx.x] = 1;  // line: null_pointer
}
__global__ void wild_address(float* x) {
  if (blockIdx.x == 2) x[size_t{1} << 42] = 1;  // line: wild_address
}
__global__ void wild_bf16(const __nv_bfloat16* x, float* y) {
  y[0] = __bfloat162float(x[size_t{1} << 42]);  // line: wild_bf16
}
__global__ void impossible_address(float* x) {
  x[size_t{1} << 50] = 1;  // line: impossible_address
}
__global__ void division_by_zero(int* x) {
  x[threadIdx.x] = 7 / x[0];  // line: division_by_zero
}
__device__ int recurse(int depth, volatile int* out) {
  volatile int room[512];
  room[depth % 512] = depth;
  return depth > 100000 ? *out : recurse(depth + 1, out) + room[depth % 512];
}
__global__ void stack_overflow(int* x) {
  x[0] = recurse(0, x);
}
__global__ void trapped(float* x) {
  if (threadIdx.x == 3 && x[0] < 1e30f) __trap();  // line: trapped
}
__global__ void failed_assertion(float* x) {
  assert(x[0] > 1e30f && "too small");  // line: failed_assertion
}
__global__ void false_assumption(float* x) {
  __builtin_assume(x[0] > 1e30f);  // line: false_assumption
  x[0] = 1;
}
__global__ void spin_on_memory(volatile int* flag) {
  while (*flag == 0);  // line: spin_on_memory
}
__global__ void spin_and_count(volatile int* flag) {
  int trips = 0;
  do {
    ++trips;
  } while (*flag == 0);  // line: spin_and_count
}
__global__ void spin_on_lock(int* lock) {
  while (atomicCAS(lock, 1, 0) != 1) {  // line: spin_on_lock
  }
}
__global__ void endless_loop(volatile int* x) {
  for (unsigned i = 0; *x == 0; ++i) x[1] = static_cast<int>(i);
}
// A lock of the C library's while the watchdog strikes, and destructors that never run.
__global__ void abandoned_owner(float* x) {
  std::vector<float> owned(16, x[0]);
  __syncthreads();
  if (threadIdx.x == 5) __trap();
  __syncthreads();
  x[threadIdx.x] = owned[3];
}
// nvcc compiles no exceptions, but a class of the standard library may throw one here.
__global__ void escaped_exception(float* x) {
  std::vector<float> owned(16, x[0]);
  x[threadIdx.x] = owned.at(threadIdx.x);
}
__device__ float never_throws(float* x) noexcept {
  __trap();
  return x[0];
}
__global__ void fault_in_noexcept(float* x) {
  x[0] = never_throws(x);
}
#ifdef CUDA_ON_CPU
constexpr int MANY = 12000;
#else
constexpr int MANY = 1000;  // ptxas refuses more, unless the array is optimised away
#endif
__global__ void too_much_static(float* x) {
  __shared__ float first[MANY];
  __shared__ float second[300];  // line: too_much_static
  first[threadIdx.x] = second[threadIdx.x] = x[0];
}
__global__ void static_and_dynamic(float* x) {
  extern __shared__ float row[];
  __shared__ float fixed[1024];  // line: static_and_dynamic
  row[threadIdx.x] = fixed[threadIdx.x] = x[0];
}
__global__ void healthy(float* x) {
  __syncthreads();
  atomicAdd(x, 1.f);
}

__global__ void take_turns(int* turns) {
  turns[1 + blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(turns, 1);
}

void run(Tensor x, int64_t which) {
  float* p = static_cast<float*>(x.data_ptr());
  int* i = static_cast<int*>(x.data_ptr());
  switch (which) {
    case 0:
      healthy<<<8, 64>>>(p);
      break;
    case 1:
      divergent_branches<<<2, 64>>>(p);
      break;
    case 2:
      divergent_warp<<<1, 32>>>(p);
      break;
    case 3:
      caller_not_in_mask<<<1, 32>>>(p);
      break;
    case 4:
      incomplete_mask<<<1, 32>>>(p);
      break;
    case 5:
      mixed_operations<<<1, 32>>>(p);
      break;
    case 6:
      null_pointer<<<1, 32>>>(p);
      break;
    case 7:
      wild_address<<<4, 32>>>(p);
      break;
    case 8:
      division_by_zero<<<1, 32>>>(i);
      break;
    case 9:
      stack_overflow<<<1, 1>>>(i);
      break;
    case 10:
      trapped<<<1, 32>>>(p);
      break;
    case 11:
      failed_assertion<<<1, 32>>>(p);
      break;
    case 12:
      spin_on_memory<<<2, 32>>>(i);
      break;
    case 13:
      spin_on_lock<<<2, 32>>>(i);
      break;
    case 14:
      endless_loop<<<2, 32>>>(i);
      break;
    case 15:
      abandoned_owner<<<1, 32>>>(p);
      break;
    case 16:
      fault_in_noexcept<<<1, 32>>>(p);
      break;
    case 17:
      too_much_static<<<1, 32>>>(p);
      break;
    case 18:
      static_and_dynamic<<<1, 32, 46 * 1024>>>(p);
      break;
    case 19:
      impossible_address<<<1, 32>>>(p);
      break;
    case 20:
      escaped_exception<<<1, 32>>>(p);
      break;
    case 23:
      spin_and_count<<<2, 32>>>(i);
      break;
    case 25:
      wild_bf16<<<1, 32>>>(reinterpret_cast<const __nv_bfloat16*>(p), p);
      break;
    case 24:
      false_assumption<<<1, 32>>>(p);
      break;
    case 22:
      take_turns<<<4, 8>>>(i);
      break;
    case 21:
      throw std::runtime_error("thrown by host code");
  }
  check_launch("run");
}

STABLE_TORCH_LIBRARY(test_faults, m) {
  m.def("run(Tensor(a!) x, int which) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(test_faults, CUDA, m) {
  m.impl("run", TORCH_BOX(&run));
}

// y = 2x, right in most runs, with a fault in every kernel but the first. "line: <kernel>" marks
// the line that the debugger must name.
#include "common/cuda/tensor.cuh"

constexpr int THREADS = 64;

__global__ void twice_right_kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}

__global__ void twice_beyond_kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const volatile float* next = x + i + 1;
  static_cast<void>(*next);  // line: twice_beyond
  y[i] = 2 * x[i];
}

// The compiler is free to take 0 for what is never set, and does.
__global__ void twice_unset_kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum;
  if (n < 0) sum = 0;
  if (i < n) y[i] = sum + 2 * x[i];  // line: twice_unset
}

// Block 0 takes what the last block has written, if that came first.
__global__ void twice_late_block_kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = i == 0 && n > THREADS && y[n - 1] == 2 * x[n - 1] ? 0 : 2 * x[i];
}

// A thread reads what its neighbour writes. In whichever order they come, the sum is right.
__global__ void twice_race_kernel(const float* x, float* y, int n) {
  __shared__ volatile float row[THREADS];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  row[threadIdx.x] = 1;
  const float neighbour = row[threadIdx.x ^ 1];  // line: twice_race
  if (i < n) y[i] = neighbour == 1 ? 2 * x[i] : x[i] + x[i];
}

__global__ void twice_deadlock_kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    y[i] = 2 * x[i];
    __syncthreads();  // line: twice_deadlock
  } else {
    while (threadIdx.x > 0) __nanosleep(100);
  }
}

// Threads beyond the end return, and what they should have stored is read.
__global__ void twice_left_early_kernel(const float* x, float* y, int n) {
  __shared__ float row[THREADS];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  row[threadIdx.x] = x[i];
  __syncthreads();  // line: twice_left_early
  y[i] = 2 * x[i] + 0 * row[threadIdx.x ^ 63];
}

// The same, but nothing is left for them to do.
__global__ void twice_left_rightly_kernel(const float* x, float* y, int n) {
  __shared__ float row[THREADS];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  row[threadIdx.x] = x[i];
  __syncthreads();
  y[i] = 2 * row[threadIdx.x];
}

__global__ void twice_mask_kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float two = __shfl_sync(0xffffffffu, 2.0f, 0);  // line: twice_mask
  y[i] = two * x[i];
}

// A NaN, with which the memory begins here, is lost; on a GPU it holds any number.
__global__ void twice_unwritten_kernel(const float* x, float* y, int n) {
  __shared__ float least[THREADS];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(2 * x[i], least[threadIdx.x]);  // line: twice_unwritten
}

// The result is fresh memory, as that of cudaMalloc is.
__global__ void twice_fresh_kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const volatile float* before = y + i;
  static_cast<void>(*before);  // line: twice_fresh
  y[i] = 2 * x[i];
}

#define LAUNCHER(name, kernel)                                                                  \
  Tensor name(const Tensor& x) {                                                                \
    check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();                     \
    Tensor y = torch::stable::empty_like(x);                                                    \
    const int n = static_cast<int>(x.numel());                                                  \
    const int blocks = ceil_div(n, THREADS);                                                    \
    const DeviceGuard guard(x);                                                                 \
    if (n)                                                                                      \
      kernel<<<blocks, THREADS, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(y), \
                                                        n);                                     \
    check_launch(#name);                                                                        \
    return y;                                                                                   \
  }

LAUNCHER(twice_right, twice_right_kernel)
LAUNCHER(twice_beyond, twice_beyond_kernel)
LAUNCHER(twice_unset, twice_unset_kernel)
LAUNCHER(twice_late_block, twice_late_block_kernel)
LAUNCHER(twice_race, twice_race_kernel)
LAUNCHER(twice_deadlock, twice_deadlock_kernel)
LAUNCHER(twice_left_early, twice_left_early_kernel)
LAUNCHER(twice_left_rightly, twice_left_rightly_kernel)
LAUNCHER(twice_mask, twice_mask_kernel)
LAUNCHER(twice_unwritten, twice_unwritten_kernel)
LAUNCHER(twice_fresh, twice_fresh_kernel)

STABLE_TORCH_LIBRARY(day01, m) {
  m.def("twice_right(Tensor x) -> Tensor");
  m.def("twice_beyond(Tensor x) -> Tensor");
  m.def("twice_unset(Tensor x) -> Tensor");
  m.def("twice_late_block(Tensor x) -> Tensor");
  m.def("twice_race(Tensor x) -> Tensor");
  m.def("twice_deadlock(Tensor x) -> Tensor");
  m.def("twice_left_early(Tensor x) -> Tensor");
  m.def("twice_left_rightly(Tensor x) -> Tensor");
  m.def("twice_mask(Tensor x) -> Tensor");
  m.def("twice_unwritten(Tensor x) -> Tensor");
  m.def("twice_fresh(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(day01, CUDA, m) {
  m.impl("twice_right", TORCH_BOX(&twice_right));
  m.impl("twice_beyond", TORCH_BOX(&twice_beyond));
  m.impl("twice_unset", TORCH_BOX(&twice_unset));
  m.impl("twice_late_block", TORCH_BOX(&twice_late_block));
  m.impl("twice_race", TORCH_BOX(&twice_race));
  m.impl("twice_deadlock", TORCH_BOX(&twice_deadlock));
  m.impl("twice_left_early", TORCH_BOX(&twice_left_early));
  m.impl("twice_left_rightly", TORCH_BOX(&twice_left_rightly));
  m.impl("twice_mask", TORCH_BOX(&twice_mask));
  m.impl("twice_unwritten", TORCH_BOX(&twice_unwritten));
  m.impl("twice_fresh", TORCH_BOX(&twice_fresh));
}

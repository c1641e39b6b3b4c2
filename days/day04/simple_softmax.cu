// Day 4: a naive softmax, and why it overflows
//
//   y[r, c] = exp(x[r, c]) / sum_c exp(x[r, c])      x, y: (rows, cols)
//
// The formula as it is written. In fp32 exp(88.8) is already infinite, and infinity over infinity
// is NaN: the answer is right for small x only. Day 5 mends it.
//
// Bytes at the least: read x once, write y once: 2 · rows · cols · sizeof(T).
//
//   v1 thread_per_row   one thread walks over its row twice; the warp's loads lie a row apart
//   v2 two_kernels      a block a row for the sums, then a thread an element for the quotients
//
// Run: python run_day.py 4

#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// v1: one thread a row. At each step the 32 threads of a warp read 32 elements that lie `cols`
// apart, so 32 lines of memory are fetched for 32 numbers. A row is read twice.

template <typename T>
__global__ void softmax_v1_thread_per_row_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                 int64_t rows, int64_t cols) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const T* x_row = x + row * cols;
  T* y_row = y + row * cols;
  float sum = 0;  // fp32 also for half types: 4,000 of them added up in fp16 would lose most digits
  for (int64_t c = 0; c < cols; ++c) sum += expf(static_cast<float>(x_row[c]));
  for (int64_t c = 0; c < cols; ++c) {
    y_row[c] = static_cast<T>(expf(static_cast<float>(x_row[c])) / sum);
  }
}

Tensor softmax_v1_thread_per_row(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;  // a grid of no blocks is an error
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, BLOCK), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    softmax_v1_thread_per_row_kernel<T>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), rows, cols);
  });
  check_launch("softmax_v1_thread_per_row");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: two launches, each with neighbouring threads on neighbouring elements. The first
// gives a row to a warp-sized block whose threads add up every 32nd element; each then adds its
// part to the row's sum with an atomic. The second has a thread for every element. What the first
// leaves for the second goes through memory: rows floats, nothing beside the matrix.

constexpr int SUM_BLOCK = 32;

template <typename T>
__global__ void softmax_v2_row_sums_kernel(const T* __restrict__ x, float* __restrict__ sums,
                                           int64_t cols) {
  const T* x_row = x + blockIdx.x * cols;
  float part = 0;
  for (int64_t c = threadIdx.x; c < cols; c += SUM_BLOCK) {
    part += expf(static_cast<float>(x_row[c]));
  }
  // 32 threads add to one number; the hardware puts them one after another, in an order that may
  // change from run to run, and with it the last bit of the sum. Day 5 does better.
  atomicAdd(&sums[blockIdx.x], part);
}

template <typename T>
__global__ void softmax_v2_quotients_kernel(const T* __restrict__ x, const float* __restrict__ sums,
                                            T* __restrict__ y, int64_t count, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) y[i] = static_cast<T>(expf(static_cast<float>(x[i])) / sums[i / cols]);
}

Tensor softmax_v2_two_kernels(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  Tensor sums = torch::stable::new_zeros(x, {rows}, ScalarType::Float);
  const unsigned row_grid = grid_size(rows, "x");
  const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    softmax_v2_row_sums_kernel<T><<<row_grid, SUM_BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<float>(sums), cols);
    check_launch("softmax_v2_row_sums");
    // Same stream: this kernel starts when the sums are complete. That is the only barrier there
    // is between blocks of a grid.
    softmax_v2_quotients_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<float>(sums), mutable_data<T>(y), x.numel(), cols);
    check_launch("softmax_v2_quotients");
  });
  return y;
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day04, m) {
  m.def("softmax_v1_thread_per_row(Tensor x) -> Tensor");
  m.def("softmax_v2_two_kernels(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day04, CUDA, m) {
  m.impl("softmax_v1_thread_per_row", TORCH_BOX(&softmax_v1_thread_per_row));
  m.impl("softmax_v2_two_kernels", TORCH_BOX(&softmax_v2_two_kernels));
}

// Day 4: a naive softmax, and why it overflows
//
//   y[r, c] = exp(x[r, c]) / sum_c exp(x[r, c])      x, y: (rows, cols)
//
// The formula as it is written. In fp32 exp(x) is infinite for x > 88.72, and infinity over
// infinity is NaN: the result is right for small x only. Day 5 fixes it.
//
// Bytes, at least: read x once, write y once: 2 · rows · cols · sizeof(T).
// Operations: 3 per element: exp, addition, division.
//
//   v1 thread_per_row   one thread per row; the lanes of a warp read addresses one row apart
//   v2 two_kernels      one block per row for the sums, then one thread per quotient
//
// Run: python run_day.py 4

#include "common/cuda/binding.cuh"  // explained in day 6
#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// v1: one thread per row. In each step the 32 lanes of a warp read 32 elements that lie `cols`
// apart: 32 sectors for 32 numbers. A row is read twice.

template <typename T>
__global__ void softmax_v1_thread_per_row_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                 int64_t rows, int64_t cols) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const T* x_row = x + row * cols;
  T* y_row = y + row * cols;
  float sum = 0;  // fp32 for half types too: an fp16 sum of 2048 does not change when 1 is added
  for (int64_t c = 0; c < cols; ++c) sum += expf(static_cast<float>(x_row[c]));
  for (int64_t c = 0; c < cols; ++c) {
    y_row[c] = static_cast<T>(expf(static_cast<float>(x_row[c])) / sum);
  }
}

Tensor softmax_v1_thread_per_row(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;  // a grid of zero blocks is an error
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
// v2 against v1: two launches, both with coalesced accesses. The first gives each row to a block of
// one warp. Each lane sums every 32nd element, and an atomic addition (day 14) adds its part to the
// row's sum. The second has one thread per element. The sums pass from the first to the second
// through global memory: one float per row.

constexpr int SUM_BLOCK = 32;

template <typename T>
__global__ void softmax_v2_row_sums_kernel(const T* __restrict__ x, float* __restrict__ sums,
                                           int64_t cols) {
  const T* x_row = x + blockIdx.x * cols;
  float part = 0;
  for (int64_t c = threadIdx.x; c < cols; c += SUM_BLOCK) {
    part += expf(static_cast<float>(x_row[c]));
  }
  // 32 threads add to one number. The hardware performs the additions one after another, in an
  // order that may change from run to run, and with it the last bits of the sum. Day 5 avoids this.
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
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  Tensor sums = allocate_zeros(x, {rows}, ScalarType::Float);
  const unsigned row_grid = grid_size(rows, "x");
  const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    softmax_v2_row_sums_kernel<T><<<row_grid, SUM_BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<float>(sums), cols);
    check_launch("softmax_v2_row_sums");
    // Same stream: this kernel starts when all sums are complete. Blocks of an ordinary launch
    // cannot wait for one another, so the second kernel is what waits for all blocks of the first.
    softmax_v2_quotients_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<float>(sums), mutable_data<T>(y), x.numel(), cols);
    check_launch("softmax_v2_quotients");
  });
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day04, softmax_v1_thread_per_row, "(Tensor x) -> Tensor");
RUNG(day04, softmax_v2_two_kernels, "(Tensor x) -> Tensor");

// Launchers whose results are wrong in a pattern that the checks recognise, for
// test_patterns_of_kernels.py. Unless they say otherwise they do y = x + 1, x of any shape or
// (rows, cols).
#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 64;

// The index of this thread in a grid along x.
__device__ int64_t own_index() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

// What every launcher here begins with; returns the output.
Tensor checked(const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  return torch::stable::empty_like(x);
}

// Launches kernel(x, y, n) with so many blocks.
template <typename Kernel>
Tensor launch(const Tensor& x, Kernel kernel, int64_t blocks) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  kernel<<<grid_size(blocks, "x"), BLOCK, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), x.numel());
  check_launch("a pattern");
  return y;
}

template <typename Kernel>
Tensor launch(const Tensor& x, Kernel kernel) {
  return launch(x, kernel, ceil_div<int64_t>(x.numel(), BLOCK));
}

// Launches kernel(x, y, rows, cols) with a block of 64 threads per row.
template <typename Kernel>
Tensor launch_rows(const Tensor& x, Kernel kernel) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  kernel<<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), x.size(0), x.size(1));
  check_launch("a pattern");
  return y;
}

// ---------------------------------------------------------------- not all is written

__global__ void add_one(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i < n) y[i] = x[i] + 1;
}
Tensor right(const Tensor& x) {
  return launch(x, add_one);
}
Tensor one_block(const Tensor& x) {
  return launch(x, add_one, 1);
}
Tensor blocks_rounded_down(const Tensor& x) {
  return launch(x, add_one, x.numel() < BLOCK ? 1 : x.numel() / BLOCK);
}

__global__ void add_one_never(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i < 0) y[i] = x[i] + 1;
}
Tensor never_stores(const Tensor& x) {
  return launch(x, add_one_never);
}

__global__ void add_one_but_last(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i + 1 < n) y[i] = x[i] + 1;
}
Tensor bound_one_off(const Tensor& x) {
  return launch(x, add_one_but_last);
}

// Four elements per thread; the last ones, fewer than four, belong to no thread.
__global__ void add_one_to_four(const float* x, float* y, int64_t n) {
  const int64_t first = 4 * own_index();
  if (first + 3 >= n) return;
  for (int64_t i = first; i < first + 4; ++i) y[i] = x[i] + 1;
}
Tensor whole_packs(const Tensor& x) {
  return launch(x, add_one_to_four);
}

__global__ void add_one_to_row(const float* x, float* y, int64_t rows, int64_t cols) {
  const int64_t row = blockIdx.x, col = threadIdx.x;
  if (row < rows && col < cols) y[row * cols + col] = x[row * cols + col] + 1;
}
Tensor no_step_along_row(const Tensor& x) {
  return launch_rows(x, add_one_to_row);
}

__global__ void add_one_but_last_row(const float* x, float* y, int64_t rows, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols && row < rows - 1; c += BLOCK) {
    y[row * cols + c] = x[row * cols + c] + 1;
  }
}
Tensor last_row_missing(const Tensor& x) {
  return launch_rows(x, add_one_but_last_row);
}

__global__ void add_one_but_last_column(const float* x, float* y, int64_t rows, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols - 1 && row < rows; c += BLOCK) {
    y[row * cols + c] = x[row * cols + c] + 1;
  }
}
Tensor last_column_missing(const Tensor& x) {
  return launch_rows(x, add_one_but_last_column);
}

__global__ void add_one_in_first_block(const float* x, float* y, int64_t n) {
  const int64_t i = threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
Tensor no_block_index(const Tensor& x) {
  return launch(x, add_one_in_first_block);
}

// The grid has its columns along x; the kernel takes them for rows.
__global__ void add_one_swapped(const float* x, float* y, int64_t rows, int64_t cols) {
  const int64_t row = own_index(), col = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  if (row < rows && col < cols) y[row * cols + col] = x[row * cols + col] + 1;
}
Tensor rows_and_columns_swapped(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  const dim3 block(16, 4);
  const dim3 grid(grid_size(ceil_div<int64_t>(x.size(1), block.x), "x"),
                  grid_size_y(ceil_div<int64_t>(x.size(0), block.y), "x"));
  add_one_swapped<<<grid, block, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(y),
                                                         x.size(0), x.size(1));
  check_launch("a pattern");
  return y;
}

// ---------------------------------------------------------------- all is written, and wrong

__global__ void double_it(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i < n) y[i] = 2 * (x[i] + 1);
}
Tensor factor_of_two(const Tensor& x) {
  return launch(x, double_it);
}

__global__ void add_one_to_next(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i < n) y[i] = x[(i + 1) % n] + 1;
}
Tensor shifted_by_one(const Tensor& x) {
  return launch(x, add_one_to_next);
}

__global__ void add_one_transposed(const float* x, float* y, int64_t rows, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) y[c * rows + row] = x[row * cols + c] + 1;
}
Tensor transposed(const Tensor& x) {
  return launch_rows(x, add_one_transposed);
}

// y = the sum of each row, in T and in tiles of 16 columns, of which the last may be incomplete.
template <typename T>
__global__ void row_sums(const T* x, T* y, int64_t rows, int64_t cols, bool all_tiles, bool in_t) {
  const int64_t row = own_index();
  if (row >= rows) return;
  float sum = 0;
  const int64_t end = all_tiles ? cols : cols / 16 * 16;
  for (int64_t c = 0; c < end; ++c) {
    sum += static_cast<float>(x[row * cols + c]);
    if (in_t) sum = static_cast<float>(static_cast<T>(sum));
  }
  y[row] = static_cast<T>(sum);
}
Tensor sums_of_rows(const Tensor& x, bool all_tiles, bool in_t) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  Tensor y = allocate(x, {x.size(0)});
  const DeviceGuard guard(x);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    row_sums<T>
        <<<grid_size(ceil_div<int64_t>(x.size(0), BLOCK), "x"), BLOCK, 0, current_stream(x)>>>(
            data<T>(x), mutable_data<T>(y), x.size(0), x.size(1), all_tiles, in_t);
  });
  check_launch("row_sums");
  return y;
}
Tensor last_tile_missing(const Tensor& x) {
  return sums_of_rows(x, false, false);
}
Tensor sum_in_16_bits(const Tensor& x) {
  return sums_of_rows(x, true, true);
}

// y = x / (sum of the row), 0/0 for a row of zeros; here the sum is never added up.
__global__ void divide_by_nothing(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  float sum = 0;
  if (i < n) y[i] = (x[i] - x[i]) / sum;
}
Tensor zero_over_zero(const Tensor& x) {
  return launch(x, divide_by_nothing);
}

// The largest number that was seen so far is subtracted before any was seen.
__global__ void subtract_infinities(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  const float seen = -INFINITY;
  if (i < n) y[i] = x[i] + 1 + (seen - fmaxf(seen, -INFINITY));
}
Tensor infinity_minus_infinity(const Tensor& x) {
  return launch(x, subtract_infinities);
}

// Two factors of 256 and their inverses: exact, unless a product in T overflows.
template <typename T>
__global__ void scale_up_and_down(const T* x, T* y, int64_t n) {
  const int64_t i = own_index();
  if (i >= n) return;
  T value = x[i];
  for (const float factor : {256.0f, 256.0f, 1 / 256.0f, 1 / 256.0f}) {
    value = static_cast<T>(static_cast<float>(value) * factor);
  }
  y[i] = value;
}
Tensor overflows_in_half(const Tensor& x) {
  check(x, "x").on_gpu().floating().contiguous();
  Tensor y = torch::stable::empty_like(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    scale_up_and_down<T>
        <<<grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x"), BLOCK, 0, current_stream(x)>>>(
            data<T>(x), mutable_data<T>(y), x.numel());
  });
  check_launch("scale_up_and_down");
  return y;
}

// ---------------------------------------------------------------- not in every call

// Each thread reads what the thread before it has written, and no barrier orders the two.
__global__ void add_one_by_neighbour(const float* x, float* y, int64_t n) {
  __shared__ float mine[BLOCK];
  const int64_t first = int64_t{blockIdx.x} * blockDim.x;
  const int before = threadIdx.x == 0 ? 0 : threadIdx.x - 1;
  mine[threadIdx.x] = first + threadIdx.x < n ? x[first + threadIdx.x] + 1 : 0;
  if (first + before < n) y[first + before] = mine[before];
  if (threadIdx.x == BLOCK - 1 && first + threadIdx.x < n) y[first + threadIdx.x] = mine[BLOCK - 1];
}
Tensor no_barrier(const Tensor& x) {
  return launch(x, add_one_by_neighbour);
}

// Each thread reads what the thread behind it has written, or not yet, and what it has is never
// right.
__global__ void double_by_neighbour(const float* x, float* y, int64_t n) {
  __shared__ float mine[BLOCK];
  const int64_t i = own_index();
  mine[threadIdx.x] = 0;
  __syncthreads();
  mine[threadIdx.x] = i < n ? 2 * x[i] : 0;
  if (i < n) y[i] = mine[(threadIdx.x + 1) % BLOCK] + 1;
}
Tensor wrong_in_every_order(const Tensor& x) {
  return launch(x, double_by_neighbour);
}

// Threads beyond the end return, and shared memory that they should have set is read.
__global__ void add_one_in_reverse(const float* x, float* y, int64_t n) {
  __shared__ float turned[BLOCK];
  const int64_t i = own_index();
  if (i >= n) return;
  turned[BLOCK - 1 - threadIdx.x] = x[i] + 1;
  __syncthreads();  // line: returned_before_barrier
  y[i] = turned[threadIdx.x];
}
Tensor returned_before_barrier(const Tensor& x) {
  return launch(x, add_one_in_reverse);
}

// The last lane of the mask reads one that has returned.
__global__ void add_difference(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  const unsigned mask = __ballot_sync(0xffffffffu, i < n);
  if (i >= n) return;
  const float next = __shfl_down_sync(mask, x[i], 1);  // line: lane_that_returned
  y[i] = x[i] + 1 + (next - next);
}
Tensor lane_that_returned(const Tensor& x) {
  return launch(x, add_difference);
}

// No lane reads one that has returned, but the mask names them.
__global__ void add_one_of_lane_zero(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i >= n) return;
  const float one = __shfl_sync(0xffffffffu, 1.0f, 0);  // line: mask_of_returned_lanes
  y[i] = x[i] + one;
}
Tensor mask_of_returned_lanes(const Tensor& x) {
  return launch(x, add_one_of_lane_zero);
}

// ---------------------------------------------------------------- launches that are refused

// Launches add_one with this grid, block and dynamic shared memory.
Tensor launch_as(const Tensor& x, dim3 grid, dim3 block, int shared = 0) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  add_one<<<grid, block, static_cast<size_t>(shared), current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), x.numel());  // line: launch_as
  check_launch("launch_as");
  return y;
}
Tensor no_blocks(const Tensor& x) {
  return launch_as(x, 0, BLOCK);
}
Tensor negative_blocks(const Tensor& x) {
  return launch_as(x, static_cast<unsigned>(-5), BLOCK);
}
Tensor many_blocks_along_y(const Tensor& x) {
  return launch_as(x, dim3(1, 70000), BLOCK);
}
Tensor threads_2048(const Tensor& x) {
  return launch_as(x, 1, 2048);
}
Tensor threads_32_32_2(const Tensor& x) {
  return launch_as(x, 1, dim3(32, 32, 2));
}
Tensor shared_300000(const Tensor& x) {
  return launch_as(x, 1, BLOCK, 300000);
}
Tensor shared_not_allowed(const Tensor& x) {
  return launch_as(x, 1, BLOCK, 60000);
}
Tensor negative_shared(const Tensor& x) {
  return launch_as(x, 1, BLOCK, -8);
}

__global__ void add_into(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i < n) y[i] += x[i] + 1;
}
Tensor adds_into_fresh_memory(const Tensor& x) {
  return launch(x, add_into);
}

// Right where fresh memory holds NaN, which fmaxf drops.
__global__ void maximum_into(const float* x, float* y, int64_t n) {
  const int64_t i = own_index();
  if (i < n) y[i] = fmaxf(y[i], x[i] + 1);
}
Tensor maximum_with_fresh_memory(const Tensor& x) {
  return launch(x, maximum_into);
}

__device__ int blocks_that_came;  // never set back to 0

__global__ void add_one_in_turn(const float* x, float* y, int64_t n) {
  __shared__ int turn;
  if (threadIdx.x == 0) turn = atomicAdd(&blocks_that_came, 1);
  __syncthreads();
  const int64_t i = int64_t{turn} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
Tensor counter_never_reset(const Tensor& x) {
  return launch(x, add_one_in_turn);
}

RUNG(test_patterns, right, "(Tensor x) -> Tensor");
RUNG(test_patterns, one_block, "(Tensor x) -> Tensor");
RUNG(test_patterns, blocks_rounded_down, "(Tensor x) -> Tensor");
RUNG(test_patterns, never_stores, "(Tensor x) -> Tensor");
RUNG(test_patterns, bound_one_off, "(Tensor x) -> Tensor");
RUNG(test_patterns, whole_packs, "(Tensor x) -> Tensor");
RUNG(test_patterns, no_step_along_row, "(Tensor x) -> Tensor");
RUNG(test_patterns, last_row_missing, "(Tensor x) -> Tensor");
RUNG(test_patterns, last_column_missing, "(Tensor x) -> Tensor");
RUNG(test_patterns, factor_of_two, "(Tensor x) -> Tensor");
RUNG(test_patterns, shifted_by_one, "(Tensor x) -> Tensor");
RUNG(test_patterns, transposed, "(Tensor x) -> Tensor");
RUNG(test_patterns, zero_over_zero, "(Tensor x) -> Tensor");
RUNG(test_patterns, infinity_minus_infinity, "(Tensor x) -> Tensor");
RUNG(test_patterns, overflows_in_half, "(Tensor x) -> Tensor");
RUNG(test_patterns, no_barrier, "(Tensor x) -> Tensor");
RUNG(test_patterns, wrong_in_every_order, "(Tensor x) -> Tensor");
RUNG(test_patterns, adds_into_fresh_memory, "(Tensor x) -> Tensor");
RUNG(test_patterns, maximum_with_fresh_memory, "(Tensor x) -> Tensor");
RUNG(test_patterns, counter_never_reset, "(Tensor x) -> Tensor");
RUNG(test_patterns, no_block_index, "(Tensor x) -> Tensor");
RUNG(test_patterns, rows_and_columns_swapped, "(Tensor x) -> Tensor");
RUNG(test_patterns, last_tile_missing, "(Tensor x) -> Tensor");
RUNG(test_patterns, sum_in_16_bits, "(Tensor x) -> Tensor");
RUNG(test_patterns, returned_before_barrier, "(Tensor x) -> Tensor");
RUNG(test_patterns, lane_that_returned, "(Tensor x) -> Tensor");
RUNG(test_patterns, mask_of_returned_lanes, "(Tensor x) -> Tensor");
RUNG(test_patterns, no_blocks, "(Tensor x) -> Tensor");
RUNG(test_patterns, negative_blocks, "(Tensor x) -> Tensor");
RUNG(test_patterns, many_blocks_along_y, "(Tensor x) -> Tensor");
RUNG(test_patterns, threads_2048, "(Tensor x) -> Tensor");
RUNG(test_patterns, threads_32_32_2, "(Tensor x) -> Tensor");
RUNG(test_patterns, shared_300000, "(Tensor x) -> Tensor");
RUNG(test_patterns, shared_not_allowed, "(Tensor x) -> Tensor");
RUNG(test_patterns, negative_shared, "(Tensor x) -> Tensor");

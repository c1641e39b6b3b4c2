// Day 23: warp shuffles: lanes that read each other's registers
//
//   row_sum         y[r] = sum_c x[r, c]                        x: (rows, cols), y: (rows,)
//   segment_scan    y[i] = sum of x from the start of i's segment of `width` elements up to i
//   compact         the positive elements of each row first, in their order, then zeros
//   scale_rows      y[r, c] = s[r] · x[r, c]
//
// Bytes of row_sum: read x once, rows · cols · sizeof(T); 262144×1024 fp32 are 1.1 GB. One addition
// per element, so memory bandwidth is the bound.
//
//   row_sum v1 shared        one block per row, a tree in shared memory: 10 barriers (day 5)
//   row_sum v2 shuffle_down  one warp per row, the tree in registers: no barrier, no shared memory
//   row_sum v3 butterfly     xor instead of down: every lane ends with the sum
//   row_sum v4 vectorised    16 bytes per load, four loads in flight
//   segment_scan             __shfl_up_sync with a width, and a mask for a partial warp
//   compact                  __ballot_sync: 32 votes in one word
//   scale_rows               __shfl_sync: one lane's value for all lanes
//
// Run: python run_day.py 23

#include "common/cuda/binding.cuh"
#include "common/cuda/pack.cuh"  // taught in day 2
#include "common/cuda/tensor.cuh"
#include "common/cuda/tree_reduce.cuh"  // taught in day 5

// A mask of participating lanes: bit l stands for lane l. Every lane of the mask that has not
// exited must make the call.
constexpr unsigned FULL_WARP = 0xffffffffu;

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;  // rows per block, where each warp has one row

// ---------------------------------------------------------------------------------------------
// row_sum v1: day 5's tree. 256 threads share a row; the tree has 8 levels, with a barrier each.

template <typename T>
__global__ void row_sum_v1_shared_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t cols) {
  __shared__ float partial[BLOCK];
  const T* row = x + blockIdx.x * cols;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) sum += static_cast<float>(row[c]);
  partial[threadIdx.x] = sum;
  sum = tree_reduce(partial, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) y[blockIdx.x] = static_cast<T>(sum);
}

// Checks x (rows, cols) and allocates y (rows,).
Tensor make_row_sums(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  return allocate(x, {x.size(0)});
}

Tensor row_sum_v1_shared(const Tensor& x) {
  Tensor y = make_row_sums(x);
  const DeviceGuard guard(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  if (rows == 0) return y;  // a grid of no blocks is an error
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    row_sum_v1_shared_kernel<T><<<grid_size(rows, "x"), BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), cols);
  });
  check_launch("row_sum_v1_shared");
  return y;
}

// ---------------------------------------------------------------------------------------------
// row_sum v2 against v1: one warp per row. Its 32 lanes can read each other's registers, so the
// tree needs neither shared memory nor barriers.

// The sum of the 32 lanes' values, in lane 0. Lane l adds the value of lane l + half. Where there
// is no such lane, the shuffle returns the lane's own value; those partial sums are never used.
__device__ float warp_sum_down(float value) {
  for (int half = 16; half > 0; half /= 2) value += __shfl_down_sync(FULL_WARP, value, half);
  return value;
}

template <typename T>
__global__ void row_sum_v2_shuffle_down_kernel(const T* __restrict__ x, T* __restrict__ y,
                                               int64_t rows, int64_t cols) {
  const int lane = threadIdx.x % 32;
  const int64_t r = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (r >= rows) return;  // the same for all 32 lanes, so FULL_WARP stays true below
  float sum = 0;
  for (int64_t c = lane; c < cols; c += 32) sum += static_cast<float>(x[r * cols + c]);
  sum = warp_sum_down(sum);
  if (lane == 0) y[r] = static_cast<T>(sum);
}

Tensor row_sum_v2_shuffle_down(const Tensor& x) {
  Tensor y = make_row_sums(x);
  const DeviceGuard guard(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  if (rows == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    row_sum_v2_shuffle_down_kernel<T>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), rows, cols);
  });
  check_launch("row_sum_v2_shuffle_down");
  return y;
}

// ---------------------------------------------------------------------------------------------
// row_sum v3 against v2: lane l adds the value of lane l ^ half. Each step exchanges values between
// pairs of lanes, so all 32 lanes end with the sum, with the same five shuffles.

__device__ float warp_sum(float value) {
  for (int half = 16; half > 0; half /= 2) value += __shfl_xor_sync(FULL_WARP, value, half);
  return value;
}

template <typename T>
__global__ void row_sum_v3_butterfly_kernel(const T* __restrict__ x, T* __restrict__ y,
                                            int64_t rows, int64_t cols) {
  const int lane = threadIdx.x % 32;
  const int64_t r = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (r >= rows) return;
  float sum = 0;
  for (int64_t c = lane; c < cols; c += 32) sum += static_cast<float>(x[r * cols + c]);
  sum = warp_sum(sum);  // in every lane, as a mean, a norm or a softmax would need it
  if (lane == 0) y[r] = static_cast<T>(sum);
}

Tensor row_sum_v3_butterfly(const Tensor& x) {
  Tensor y = make_row_sums(x);
  const DeviceGuard guard(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  if (rows == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    row_sum_v3_butterfly_kernel<T>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), rows, cols);
  });
  check_launch("row_sum_v3_butterfly");
  return y;
}

// ---------------------------------------------------------------------------------------------
// row_sum v4 against v3: a lane issues four loads of 16 bytes before it adds the first, so a warp
// has 32 × 4 × 16 bytes = 2 KB in flight.

constexpr int LOADS = 4;

template <typename T>
__global__ void row_sum_v4_vectorised_kernel(const T* __restrict__ x, T* __restrict__ y,
                                             int64_t rows, int64_t cols) {
  constexpr int N = Pack<T>::N;
  constexpr int PIECE = 32 * LOADS;  // packs per warp and iteration
  const int lane = threadIdx.x % 32;
  const int64_t r = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (r >= rows) return;
  const T* row = x + r * cols;
  // Elements before the first 16-byte boundary, since a row may start anywhere.
  const int64_t before = -reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T);
  const int64_t head = before < cols ? before : cols;
  const auto* packs = reinterpret_cast<const Pack<T>*>(row + head);
  const int64_t pieces = (cols - head) / (PIECE * N);

  float sums[N] = {};  // N independent chains of additions
  for (int64_t piece = 0; piece < pieces; ++piece) {
    Pack<T> pack[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) pack[k] = packs[piece * PIECE + k * 32 + lane];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      for (int i = 0; i < N; ++i) sums[i] += static_cast<float>(pack[k].at[i]);
    }
  }
  if (lane < head) sums[0] += static_cast<float>(row[lane]);
  for (int64_t c = head + pieces * PIECE * N + lane; c < cols; c += 32) {
    sums[0] += static_cast<float>(row[c]);  // the tail, less than a piece
  }

  for (int i = 1; i < N; ++i) sums[0] += sums[i];
  const float sum = warp_sum(sums[0]);
  if (lane == 0) y[r] = static_cast<T>(sum);
}

Tensor row_sum_v4_vectorised(const Tensor& x) {
  Tensor y = make_row_sums(x);
  const DeviceGuard guard(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  if (rows == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    row_sum_v4_vectorised_kernel<T>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), rows, cols);
  });
  check_launch("row_sum_v4_vectorised");
  return y;
}

// ---------------------------------------------------------------------------------------------
// segment_scan: __shfl_up_sync returns the value of the lane `distance` below. Its last argument
// divides the warp into segments of `width` lanes; a shuffle does not cross their borders.

template <typename T>
__global__ void segment_scan_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t n,
                                    int width) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  // The lanes that remain after the `if`, found while all 32 are still active: what a lane that has
  // exited would return is undefined. __activemask() lists the lanes that are converged right now.
  const unsigned mask = __ballot_sync(FULL_WARP, i < n);
  if (i >= n) return;
  const int place = threadIdx.x % width;  // within the segment
  float sum = static_cast<float>(x[i]);
  for (int distance = 1; distance < width; distance *= 2) {
    const float below = __shfl_up_sync(mask, sum, distance, width);
    if (place >= distance) sum = below + sum;  // else `below` is the lane's own sum
  }
  y[i] = static_cast<T>(sum);
}

Tensor segment_scan(const Tensor& x, int64_t width) {
  check(x, "x").on_gpu().floating().rank(1).contiguous();
  STD_TORCH_CHECK(width >= 1 && width <= 32 && (width & (width - 1)) == 0,
                  "width: expected a power of two from 1 to 32, got ", width);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    segment_scan_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), n,
                                                                  static_cast<int>(width));
  });
  check_launch("segment_scan");
  return y;
}

// ---------------------------------------------------------------------------------------------
// compact: each lane votes on its element, and the ballot returns all 32 votes to every lane. The
// number of 1s below a lane's own bit is the place of its element: an exclusive scan of 32 bits.

template <typename T>
__global__ void compact_kernel(const T* __restrict__ x, T* __restrict__ y,
                               int64_t* __restrict__ counts, int64_t rows, int64_t cols) {
  const int lane = threadIdx.x % 32;
  const unsigned lanes_below = (1u << lane) - 1;
  const int64_t r = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (r >= rows) return;
  const T* x_row = x + r * cols;
  T* y_row = y + r * cols;

  int64_t kept = 0;  // positive elements so far, equal in all lanes
  for (int64_t start = 0; start < cols; start += 32) {
    const int64_t c = start + lane;
    // Lanes beyond the end of the row vote no, so all 32 lanes reach the ballot.
    const T value = c < cols ? x_row[c] : static_cast<T>(0.0f);
    const bool keep = static_cast<float>(value) > 0;
    const unsigned votes = __ballot_sync(FULL_WARP, keep);
    if (keep) y_row[kept + __popc(votes & lanes_below)] = value;
    kept += __popc(votes);
  }
  for (int64_t c = kept + lane; c < cols; c += 32) y_row[c] = static_cast<T>(0.0f);
  if (lane == 0) counts[r] = kept;
}

std::tuple<Tensor, Tensor> compact(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  Tensor y = allocate_like(x);
  Tensor counts = allocate(x, {rows}, ScalarType::Long);
  if (rows == 0) return {y, counts};
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    compact_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), mutable_data<int64_t>(counts), rows, cols);
  });
  check_launch("compact");
  return {y, counts};
}

// ---------------------------------------------------------------------------------------------
// scale_rows: a warp has 32 rows. Lane l loads the factor of row l, so one coalesced load fetches
// all 32; for each row, __shfl_sync then broadcasts the factor from one lane to all.

template <typename T>
__global__ void scale_rows_kernel(const T* __restrict__ x, const T* __restrict__ s,
                                  T* __restrict__ y, int64_t rows, int64_t cols) {
  const int lane = threadIdx.x % 32;
  const int64_t first = (int64_t{blockIdx.x} * WARPS + threadIdx.x / 32) * 32;
  const float mine = first + lane < rows ? static_cast<float>(s[first + lane]) : 0.0f;
  for (int k = 0; k < 32 && first + k < rows; ++k) {  // as many iterations in every lane
    const float factor = __shfl_sync(FULL_WARP, mine, k);
    const int64_t row = (first + k) * cols;
#pragma unroll 4
    for (int64_t c = lane; c < cols; c += 32) {
      y[row + c] = static_cast<T>(factor * static_cast<float>(x[row + c]));
    }
  }
}

Tensor scale_rows(const Tensor& x, const Tensor& s) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(s, "s").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(s, "s").same_device(x, "x").size(0, x.size(0));
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS * 32), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    scale_rows_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), data<T>(s),
                                                                mutable_data<T>(y), rows, cols);
  });
  check_launch("scale_rows");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day23, row_sum_v1_shared, "(Tensor x) -> Tensor");
RUNG(day23, row_sum_v2_shuffle_down, "(Tensor x) -> Tensor");
RUNG(day23, row_sum_v3_butterfly, "(Tensor x) -> Tensor");
RUNG(day23, row_sum_v4_vectorised, "(Tensor x) -> Tensor");
RUNG(day23, segment_scan, "(Tensor x, int width) -> Tensor");
RUNG(day23, compact, "(Tensor x) -> (Tensor, Tensor)");
RUNG(day23, scale_rows, "(Tensor x, Tensor s) -> Tensor");

// Day 49: profiling: a slow kernel, and three steps that its profile asks for
//
//   y[r][c] = x[r][c] − mean over c of x[r][c]          x, y: (rows, 32)
//
// Bytes per element: 8, read once and written once. Operations: 2, so memory bandwidth is the
// limit. Each rung is the cure for one finding in the profile of the rung before it:
//
//   v1 thread_per_row   32 lanes access 32 rows: 32 sectors per request
//   v2 tile             4 sectors per request; rows go through shared memory: bank conflicts
//   v3 padded           no bank conflicts; 12 warps per multiprocessor, because of the tile
//   v4 lanes            no tile: 8 lanes per row, all warps that fit, 16 bytes each in flight
//
// Run: python run_day.py 49, and python run_day.py 49 --profile

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

constexpr int COLUMNS = 32;  // of x
constexpr int BLOCK = 256;   // threads of v1 and v4
constexpr unsigned ALL_LANES = 0xffffffffu;

// Checks x, and calls launch(x, y, rows) unless it is empty: a grid of no blocks is an error.
template <typename F>
Tensor centered(const Tensor& x, const char* kernel, F launch) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  STD_TORCH_CHECK(x.size(1) == COLUMNS, "x: expected ", COLUMNS, " columns, got ", x.size(1));
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  launch(data<float>(x), mutable_data<float>(y), x.size(0));
  check_launch(kernel);
  return y;
}

// ---------------------------------------------------------------------------------------------
// v1: the loops of a CPU program, with one thread per row. In each step the lanes of a warp
// access one column of 32 rows, 128 bytes apart.

__global__ void __launch_bounds__(BLOCK)
    center_v1_thread_per_row_kernel(const float* __restrict__ x, float* __restrict__ y,
                                    int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int c = 0; c < COLUMNS; ++c) sum += x[row * COLUMNS + c];
  const float mean = sum / COLUMNS;
  for (int c = 0; c < COLUMNS; ++c) y[row * COLUMNS + c] = x[row * COLUMNS + c] - mean;
}

Tensor center_v1_thread_per_row(const Tensor& x) {
  return centered(x, "center_v1_thread_per_row", [&](const float* from, float* to, int64_t rows) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(rows, BLOCK), "x");
    center_v1_thread_per_row_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(from, to, rows);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: lanes access neighbouring words of global memory. A tile of rows lies in shared
// memory between the loads and the stores, and a thread adds up a row of the tile.

constexpr int TILE_BLOCK = 64;  // threads
constexpr int TILE_ROWS = 256;  // per block

// stride: floats from a row of the tile to the next, COLUMNS or COLUMNS + 1.
__global__ void __launch_bounds__(TILE_BLOCK)
    center_tile_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t rows,
                       int stride) {
  __shared__ float tile[TILE_ROWS * (COLUMNS + 1)];
  __shared__ float means[TILE_ROWS];
  const int64_t first = int64_t{blockIdx.x} * TILE_ROWS;
  const int count = static_cast<int>(rows - first < TILE_ROWS ? rows - first : TILE_ROWS);
  x += first * COLUMNS;
  y += first * COLUMNS;
  for (int i = threadIdx.x; i < count * COLUMNS; i += TILE_BLOCK) {
    tile[i / COLUMNS * stride + i % COLUMNS] = x[i];
  }
  __syncthreads();  // a row was loaded by 32 threads, and one thread adds it up
  for (int row = threadIdx.x; row < count; row += TILE_BLOCK) {
    float sum = 0.0f;
    for (int c = 0; c < COLUMNS; ++c) sum += tile[row * stride + c];
    means[row] = sum / COLUMNS;
  }
  __syncthreads();  // a mean is read by 32 threads
  for (int i = threadIdx.x; i < count * COLUMNS; i += TILE_BLOCK) {
    y[i] = tile[i / COLUMNS * stride + i % COLUMNS] - means[i / COLUMNS];
  }
}

Tensor center_by_tiles(const Tensor& x, int stride, const char* name) {
  return centered(x, name, [&](const float* from, float* to, int64_t rows) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(rows, TILE_ROWS), "x");
    center_tile_kernel<<<blocks, TILE_BLOCK, 0, current_stream(x)>>>(from, to, rows, stride);
  });
}

Tensor center_v2_tile(const Tensor& x) {
  return center_by_tiles(x, COLUMNS, "center_v2_tile");
}

// v3 against v2: one more word per row of the tile, so that the words of a column lie in 32
// different banks (day 14).
Tensor center_v3_padded(const Tensor& x) {
  return center_by_tiles(x, COLUMNS + 1, "center_v3_padded");
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: no shared memory, which limited the resident blocks. The 8 packs of a row stay in
// the registers of 8 lanes, which add up their sums by shuffles (day 23).

constexpr int LANES = COLUMNS / 4;  // per row, with a pack of 4 floats each

__global__ void __launch_bounds__(BLOCK)
    center_v4_lanes_kernel(const float4* __restrict__ x, float4* __restrict__ y, int64_t rows) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;  // pack i % LANES of row i / LANES
  const bool valid = i < rows * LANES;
  float4 v = valid ? x[i] : float4{};
  float mean = (v.x + v.y) + (v.z + v.w);
  for (int half = LANES / 2; half > 0; half /= 2) mean += __shfl_xor_sync(ALL_LANES, mean, half);
  mean /= COLUMNS;
  v = {v.x - mean, v.y - mean, v.z - mean, v.w - mean};
  if (valid) y[i] = v;
}

Tensor center_v4_lanes(const Tensor& x) {
  return centered(x, "center_v4_lanes", [&](const float* from, float* to, int64_t rows) {
    STD_TORCH_CHECK(is_aligned(x, 16), "x: expected a start that is aligned to 16 bytes");
    const unsigned blocks = grid_size(ceil_div<int64_t>(rows * LANES, BLOCK), "x");
    center_v4_lanes_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
        reinterpret_cast<const float4*>(from), reinterpret_cast<float4*>(to), rows);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day49, center_v1_thread_per_row, "(Tensor x) -> Tensor");
RUNG(day49, center_v2_tile, "(Tensor x) -> Tensor");
RUNG(day49, center_v3_padded, "(Tensor x) -> Tensor");
RUNG(day49, center_v4_lanes, "(Tensor x) -> Tensor");

// Day 13: a colour image, blurred
//
//   B[y, x] = sum_ij w[i] · w[j] · A[y + i - r, x + j - r] / S²    A, B: (H, W, 3)
//   i, j: [0, 2r], S = sum_i w[i]; beyond the edge, the nearest pixel of the image
//
// All data is uint8 and all arithmetic is in integers, so results are exact. Bytes per pixel: 3
// read, 3 written. Operations per pixel: 6 · (2r + 1)² by the formula, 12 · (2r + 1) for the
// separated sums.
//
//   v1 direct            every output reads its (2r + 1)² neighbours
//   v2 separable         sums along rows, then along columns, from a tile in shared memory
//   v3 register_window   four outputs per thread from a window of neighbours in registers
//
// Run: python run_day.py 13

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

#include <vector>

// ---------------------------------------------------------------------------------------------
// blur v1: one thread per output byte; it reads its (2r + 1)² neighbours of the same colour.

constexpr int MAX_RADIUS = 15;

// The weights of a row of neighbours, passed to kernels by value. Arguments lie in constant memory,
// which broadcasts a weight to all lanes of a warp (day 11).
struct Weights {
  int radius;
  int total;                   // S, at most 256, so that a weighted sum of bytes fits in 16 bits
  uint64_t reciprocal;         // 2^40 / S², rounded up
  int at[2 * MAX_RADIUS + 1];  // [0, 2 · radius]
};

// The smaller of a distance and the radius.
__device__ int reach(int64_t distance, int radius) {
  return distance < radius ? static_cast<int>(distance) : radius;
}

// The nearest offset within [low, high].
__device__ int clamped_offset(int offset, int low, int high) {
  return offset < low ? low : offset < high ? offset : high;
}

// sum / S², rounded to nearest. A division by a number unknown at compile time is a sequence of
// instructions, so the host computes the reciprocal 2^40 / S², rounded up, once. For n < 2^24 and
// d <= 2^16, n · (2^40 / d, rounded up) exceeds 2^40 · n / d by less than 2^24, which does not
// reach the next multiple of 2^40. So the shift by 40 gives exactly n / d rounded down.
__device__ uint8_t rounded(uint32_t sum, const Weights& weights) {
  const uint32_t half = weights.total * weights.total / 2;
  return ((sum + half) * weights.reciprocal) >> 40;
}

constexpr int BLOCK_X = 32;  // bytes of a row: a warp reads contiguous bytes
constexpr int BLOCK_Y = 8;   // rows

__global__ void blur_v1_direct_kernel(const uint8_t* __restrict__ image, uint8_t* __restrict__ out,
                                      int64_t height, int64_t width, Weights weights) {
  const int64_t byte = int64_t{blockIdx.x} * BLOCK_X + threadIdx.x;  // [0, 3 · width): in its row
  const int64_t y = int64_t{blockIdx.y} * BLOCK_Y + threadIdx.y;
  if (byte >= 3 * width || y >= height) return;
  // Neighbours beyond the edge become the nearest pixel of the image: offsets are clamped to what
  // the image has on each side. Offsets, unlike positions, fit in 32 bits.
  const int64_t x = byte / 3, pitch = 3 * width;  // pitch: bytes per row
  const int r = weights.radius;
  const int left = reach(x, r), right = reach(width - 1 - x, r);
  const int above = reach(y, r), below = reach(height - 1 - y, r);
  const uint8_t* centre = image + y * pitch + byte;
  uint32_t sum = 0;
  for (int i = 0; i <= 2 * r; ++i) {
    const uint8_t* row = centre + clamped_offset(i - r, -above, below) * pitch;
    for (int j = 0; j <= 2 * r; ++j) {
      const uint32_t weight = weights.at[i] * weights.at[j];
      sum += weight * row[3 * clamped_offset(j - r, -left, right)];
    }
  }
  out[y * pitch + byte] = rounded(sum, weights);
}

// Checks an image (H, W, 3) of bytes and the weights, of which no sum can overflow, and returns the
// weights as a struct.
Weights check_inputs(const Tensor& image, const std::vector<int64_t>& given) {
  check(image, "image").on_gpu().dtype({ScalarType::Byte}).rank(3).contiguous();
  check(image, "image").size(2, 3);
  const int64_t count = given.size();
  STD_TORCH_CHECK(count % 2 == 1 && count <= 2 * MAX_RADIUS + 1,
                  "weights: expected an odd count of at most ", 2 * MAX_RADIUS + 1, ", got ",
                  count);
  Weights weights{.radius = static_cast<int>(count / 2), .total = 0, .reciprocal = 0, .at = {}};
  for (int64_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(given[i] >= 0 && given[i] <= 256, "weights: expected 0 to 256, got ", given[i]);
    weights.at[i] = static_cast<int>(given[i]);
    weights.total += weights.at[i];
  }
  STD_TORCH_CHECK(weights.total >= 1 && weights.total <= 256,
                  "weights: expected a sum of 1 to 256, got ", weights.total);
  weights.reciprocal = ceil_div(uint64_t{1} << 40, uint64_t(weights.total) * weights.total);
  return weights;
}

Tensor blur_v1_direct(const Tensor& image, const std::vector<int64_t>& weights) {
  const Weights by_value = check_inputs(image, weights);
  const DeviceGuard guard(image);
  Tensor out = allocate_like(image);
  if (image.numel() == 0) return out;
  const int64_t height = image.size(0), width = image.size(1);
  const dim3 grid(grid_size(ceil_div<int64_t>(3 * width, BLOCK_X), "image"),
                  grid_size_y(ceil_div<int64_t>(height, BLOCK_Y), "image"));
  blur_v1_direct_kernel<<<grid, dim3(BLOCK_X, BLOCK_Y), 0, current_stream(image)>>>(
      data<uint8_t>(image), mutable_data<uint8_t>(out), height, width, by_value);
  check_launch("blur_v1_direct");
  return out;
}

// ---------------------------------------------------------------------------------------------
// blur v2 against v1: w[i] · w[j] is a product, so the double sum is a sum of sums (the filter is
// separable). A block loads a tile with a halo of r pixels, sums along rows into a second tile, and
// sums that along columns: 2 · (2r + 1) products per output instead of (2r + 1)². The intermediate
// sums need shared memory, and so do the pixels, which all rows of the tile read again.

constexpr int TILE_PIXELS = 32;
constexpr int TILE_BYTES = 3 * TILE_PIXELS;  // of a row of the output tile
constexpr int TILE_ROWS = 32;

// The nearest index within [0, size).
__device__ int64_t clamped(int64_t i, int64_t size) {
  return i < 0 ? 0 : i < size ? i : size - 1;
}

__global__ void blur_v2_separable_kernel(const uint8_t* __restrict__ image,
                                         uint8_t* __restrict__ out, int64_t height, int64_t width,
                                         Weights weights) {
  // Sized for the largest radius: 23 KB. Eight blocks fit on a multiprocessor of an H200 (228 KB).
  __shared__ uint8_t pixels[TILE_ROWS + 2 * MAX_RADIUS][TILE_BYTES + 6 * MAX_RADIUS];
  __shared__ uint16_t sums[TILE_ROWS + 2 * MAX_RADIUS][TILE_BYTES];  // along rows, [0, 65280]
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int r = weights.radius, halo_rows = TILE_ROWS + 2 * r, halo_bytes = TILE_BYTES + 6 * r;
  const int64_t x0 = int64_t{blockIdx.x} * TILE_PIXELS, y0 = int64_t{blockIdx.y} * TILE_ROWS;

  // pixels[j][i] is byte i, counted from pixel x0 - r, of row y0 - r + j.
  for (int i = tx; i < halo_bytes; i += BLOCK_X) {
    const uint8_t* column = image + clamped(x0 - r + i / 3, width) * 3 + i % 3;
    for (int j = ty; j < halo_rows; j += BLOCK_Y) {
      pixels[j][i] = column[clamped(y0 - r + j, height) * width * 3];
    }
  }
  __syncthreads();  // the tile and its halo are complete before any thread sums

  // Sums along rows, also for the halo's rows, which the sums along columns need. The next pixel's
  // byte of the same colour is 3 bytes further.
  for (int j = ty; j < halo_rows; j += BLOCK_Y) {
    for (int i = tx; i < TILE_BYTES; i += BLOCK_X) {
      uint32_t sum = 0;
      for (int k = 0; k <= 2 * r; ++k) sum += weights.at[k] * pixels[j][i + 3 * k];
      sums[j][i] = sum;
    }
  }
  __syncthreads();  // all sums along rows are written before any thread sums along columns

  for (int j = ty; j < TILE_ROWS && y0 + j < height; j += BLOCK_Y) {
    for (int i = tx; i < TILE_BYTES && 3 * x0 + i < 3 * width; i += BLOCK_X) {
      uint32_t sum = 0;
      for (int k = 0; k <= 2 * r; ++k) sum += weights.at[k] * sums[j + k][i];
      out[((y0 + j) * width + x0) * 3 + i] = rounded(sum, weights);
    }
  }
}

Tensor blur_v2_separable(const Tensor& image, const std::vector<int64_t>& weights) {
  const Weights by_value = check_inputs(image, weights);
  const DeviceGuard guard(image);
  Tensor out = allocate_like(image);
  if (image.numel() == 0) return out;
  const int64_t height = image.size(0), width = image.size(1);
  const dim3 grid(grid_size(ceil_div<int64_t>(width, TILE_PIXELS), "image"),
                  grid_size_y(ceil_div<int64_t>(height, TILE_ROWS), "image"));
  blur_v2_separable_kernel<<<grid, dim3(BLOCK_X, BLOCK_Y), 0, current_stream(image)>>>(
      data<uint8_t>(image), mutable_data<uint8_t>(out), height, width, by_value);
  check_launch("blur_v2_separable");
  return out;
}

// ---------------------------------------------------------------------------------------------
// blur v3 against v2: a thread computes four neighbouring outputs from a window in registers, with
// 2r + 4 reads of shared memory instead of 4 · (2r + 1). Registers cannot be indexed at run time,
// so the radius must be a compile-time constant: one kernel for each radius up to 8.

constexpr int WINDOW = 4;        // outputs per thread at a time
constexpr int MAX_UNROLLED = 8;  // the largest radius with its own kernel; above it v2 runs
constexpr int THREADS = BLOCK_X * BLOCK_Y;

// Weighted sums of WINDOW neighbours: out[o] = sum_k weights[k] · in[o + k].
template <int R>
__device__ void slide(const uint32_t (&in)[WINDOW + 2 * R], uint32_t (&out)[WINDOW],
                      const Weights& weights) {
#pragma unroll
  for (int o = 0; o < WINDOW; ++o) {
    out[o] = 0;
#pragma unroll
    for (int k = 0; k <= 2 * R; ++k) out[o] += weights.at[k] * in[o + k];
  }
}

template <int R>
__global__ void blur_v3_register_window_kernel(const uint8_t* __restrict__ image,
                                               uint8_t* __restrict__ out, int64_t height,
                                               int64_t width, Weights weights) {
  constexpr int HALO_ROWS = TILE_ROWS + 2 * R, HALO_BYTES = TILE_BYTES + 6 * R;
  __shared__ uint8_t pixels[HALO_ROWS][HALO_BYTES];
  __shared__ uint16_t sums[HALO_ROWS][TILE_BYTES];
  const int64_t x0 = int64_t{blockIdx.x} * TILE_PIXELS, y0 = int64_t{blockIdx.y} * TILE_ROWS;
  uint32_t window[WINDOW + 2 * R], result[WINDOW];

  for (int i = threadIdx.x; i < HALO_BYTES; i += BLOCK_X) {
    const uint8_t* column = image + clamped(x0 - R + i / 3, width) * 3 + i % 3;
    for (int j = threadIdx.y; j < HALO_ROWS; j += BLOCK_Y) {
      pixels[j][i] = column[clamped(y0 - R + j, height) * width * 3];
    }
  }
  __syncthreads();  // the tile and its halo are complete before any thread sums

  // Sums along rows: 24 windows of four pixels per row, at eight positions in three colours.
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  constexpr int IN_ROW = TILE_BYTES / WINDOW;
  for (int item = thread; item < HALO_ROWS * IN_ROW; item += THREADS) {
    const int j = item / IN_ROW, i = item % IN_ROW / 3 * (3 * WINDOW) + item % 3;
#pragma unroll
    for (int k = 0; k < WINDOW + 2 * R; ++k) window[k] = pixels[j][i + 3 * k];
    slide<R>(window, result, weights);
#pragma unroll
    for (int o = 0; o < WINDOW; ++o) sums[j][i + 3 * o] = result[o];
  }
  __syncthreads();  // all sums along rows are written before any thread sums along columns

  // Sums along columns: four rows per window; adjacent lanes have adjacent bytes.
  for (int item = thread; item < TILE_ROWS / WINDOW * TILE_BYTES; item += THREADS) {
    const int j = item / TILE_BYTES * WINDOW, i = item % TILE_BYTES;
#pragma unroll
    for (int k = 0; k < WINDOW + 2 * R; ++k) window[k] = sums[j + k][i];
    slide<R>(window, result, weights);
#pragma unroll
    for (int o = 0; o < WINDOW; ++o) {
      const bool inside = y0 + j + o < height && 3 * x0 + i < 3 * width;
      if (inside) out[((y0 + j + o) * width + x0) * 3 + i] = rounded(result[o], weights);
    }
  }
}

// Launches the kernel for the radius of the weights, in [R, MAX_UNROLLED].
template <int R>
void launch_window(const Tensor& image, Tensor& out, dim3 grid, const Weights& weights) {
  if constexpr (R < MAX_UNROLLED) {
    if (weights.radius > R) return launch_window<R + 1>(image, out, grid, weights);
  }
  blur_v3_register_window_kernel<R><<<grid, dim3(BLOCK_X, BLOCK_Y), 0, current_stream(image)>>>(
      data<uint8_t>(image), mutable_data<uint8_t>(out), image.size(0), image.size(1), weights);
}

Tensor blur_v3_register_window(const Tensor& image, const std::vector<int64_t>& weights) {
  const Weights by_value = check_inputs(image, weights);
  if (by_value.radius > MAX_UNROLLED) {
    fell_back("blur_v2_separable", "the radius is larger than 8");
    return blur_v2_separable(image, weights);
  }
  const DeviceGuard guard(image);
  Tensor out = allocate_like(image);
  if (image.numel() == 0) return out;
  const dim3 grid(grid_size(ceil_div<int64_t>(image.size(1), TILE_PIXELS), "image"),
                  grid_size_y(ceil_div<int64_t>(image.size(0), TILE_ROWS), "image"));
  launch_window<0>(image, out, grid, by_value);
  check_launch("blur_v3_register_window");
  return out;
}

// ---------------------------------------------------------------------------------------------

RUNG(day13, blur_v1_direct, "(Tensor image, int[] weights) -> Tensor");
RUNG(day13, blur_v2_separable, "(Tensor image, int[] weights) -> Tensor");
RUNG(day13, blur_v3_register_window, "(Tensor image, int[] weights) -> Tensor");

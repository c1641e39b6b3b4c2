// Day 3: matrices on a 2D grid, and functions passed to a kernel
//
//   matrix_add     z[r, c] = x[r, c] + y[r, c]      x, y, z: (rows, cols)
//   element_wise   y[r, c] = f(x[r, c])             f: a · v + b, relu, or square
//
// Bytes: add reads two matrices and writes one, 3 · rows · cols · sizeof(T); element_wise reads
// one and writes one. Operations: one or two per element. Memory bandwidth is the limit.
//
//   add v1 grid_2d        thread (x, y) of a 2D grid adds element (row y, column x)
//   add v2 four_rows      four elements of a column per thread: eight loads in flight, not two
//   map v1 functor        one kernel for any function: the function is a template argument
//   map v2 functor_wide   the matrix as one vector, 16 bytes per load
//
// Run: python run_day.py 3

#include "common/cuda/binding.cuh"  // explained in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"

// A block covers 32 columns by 8 rows. A warp is 32 neighbours of a row: its loads are coalesced.
constexpr int BLOCK_X = 32;
constexpr int BLOCK_Y = 8;

// Blocks along y for `rows` rows. CUDA allows 65535 there (2^31 - 1 along x). For a taller matrix
// the kernel loops in strides of the grid.
unsigned grid_y(int64_t rows, int rows_per_block) {
  const int64_t blocks = ceil_div<int64_t>(rows, rows_per_block);
  return static_cast<unsigned>(blocks < max_grid_y() ? blocks : max_grid_y());
}

// ---------------------------------------------------------------------------------------------
// add v1: x of the grid is the column, y is the row.

// Row-major: the elements of a row are neighbours in memory; the next row starts `cols` later.
__device__ int64_t row_major(int64_t row, int64_t col, int64_t cols) {
  return row * cols + col;
}

template <typename T>
__global__ void matrix_add_v1_grid_2d_kernel(const T* __restrict__ x, const T* __restrict__ y,
                                             T* __restrict__ z, int64_t rows, int64_t cols) {
  const int64_t col = int64_t{blockIdx.x} * BLOCK_X + threadIdx.x;
  if (col >= cols) return;  // the blocks at the right edge reach beyond the matrix
  const int64_t stride = int64_t{gridDim.y} * BLOCK_Y;
  for (int64_t row = int64_t{blockIdx.y} * BLOCK_Y + threadIdx.y; row < rows; row += stride) {
    const int64_t i = row_major(row, col, cols);
    z[i] = x[i] + y[i];
  }
}

void check_pair(const Tensor& x, const Tensor& y) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(y, "y").on_gpu().like(x, "x").contiguous();
}

Tensor matrix_add_v1_grid_2d(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  const DeviceGuard guard(x);
  Tensor z = allocate_like(x);
  if (x.numel() == 0) return z;  // a grid of zero blocks is an error
  const int64_t rows = x.size(0), cols = x.size(1);
  const dim3 block(BLOCK_X, BLOCK_Y);
  const dim3 grid(grid_size(ceil_div<int64_t>(cols, BLOCK_X), "x"), grid_y(rows, BLOCK_Y));
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    matrix_add_v1_grid_2d_kernel<T><<<grid, block, 0, current_stream(x)>>>(
        data<T>(x), data<T>(y), mutable_data<T>(z), rows, cols);
  });
  check_launch("matrix_add_v1_grid_2d");
  return z;
}

// ---------------------------------------------------------------------------------------------
// add v2 against v1: each thread adds ROWS elements of its column. It issues all its loads before
// it needs the first: eight loads in flight per thread instead of two, and a quarter of the blocks.

constexpr int ROWS = 4;

template <typename T>
__global__ void matrix_add_v2_four_rows_kernel(const T* __restrict__ x, const T* __restrict__ y,
                                               T* __restrict__ z, int64_t rows, int64_t cols) {
  const int64_t col = int64_t{blockIdx.x} * BLOCK_X + threadIdx.x;
  if (col >= cols) return;
  const int64_t stride = int64_t{gridDim.y} * BLOCK_Y * ROWS;
  const int64_t first = int64_t{blockIdx.y} * BLOCK_Y * ROWS + threadIdx.y;
  for (int64_t row = first; row < rows; row += stride) {
    T a[ROWS], b[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {  // rows row, row + 8, row + 16, row + 24
      const int64_t r = row + k * BLOCK_Y;
      if (r < rows) {
        a[k] = x[row_major(r, col, cols)];
        b[k] = y[row_major(r, col, cols)];
      }
    }
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      const int64_t r = row + k * BLOCK_Y;
      if (r < rows) z[row_major(r, col, cols)] = a[k] + b[k];
    }
  }
}

Tensor matrix_add_v2_four_rows(const Tensor& x, const Tensor& y) {
  check_pair(x, y);
  const DeviceGuard guard(x);
  Tensor z = allocate_like(x);
  if (x.numel() == 0) return z;
  const int64_t rows = x.size(0), cols = x.size(1);
  const dim3 block(BLOCK_X, BLOCK_Y);
  const dim3 grid(grid_size(ceil_div<int64_t>(cols, BLOCK_X), "x"), grid_y(rows, BLOCK_Y * ROWS));
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    matrix_add_v2_four_rows_kernel<T><<<grid, block, 0, current_stream(x)>>>(
        data<T>(x), data<T>(y), mutable_data<T>(z), rows, cols);
  });
  check_launch("matrix_add_v2_four_rows");
  return z;
}

// ---------------------------------------------------------------------------------------------
// map v1: the function is a functor, an object with operator(), and its type is a template
// argument. The compiler makes one kernel per functor and inlines the call. The functor's members
// (a and b below) reach the device with the kernel's other arguments.

struct ScaleAndShift {
  float a, b;
  __device__ float operator()(float v) const { return a * v + b; }
};

struct Relu {
  // This comparison keeps NaN, as PyTorch does; fmaxf(v, 0) would return 0 for NaN.
  __device__ float operator()(float v) const { return v < 0 ? 0.0f : v; }
};

struct Square {
  __device__ float operator()(float v) const { return v * v; }
};

template <typename T, typename F>
__global__ void element_wise_v1_functor_kernel(const T* __restrict__ x, T* __restrict__ y,
                                               int64_t rows, int64_t cols, F f) {
  const int64_t col = int64_t{blockIdx.x} * BLOCK_X + threadIdx.x;
  if (col >= cols) return;
  const int64_t stride = int64_t{gridDim.y} * BLOCK_Y;
  for (int64_t row = int64_t{blockIdx.y} * BLOCK_Y + threadIdx.y; row < rows; row += stride) {
    const int64_t i = row_major(row, col, cols);
    y[i] = static_cast<T>(f(static_cast<float>(x[i])));
  }
}

// Calls launch(f) with the functor of that name; only "scale_and_shift" uses a and b.
template <typename Launch>
void with_function(const std::string& name, double a, double b, Launch launch) {
  if (name == "scale_and_shift") {
    launch(ScaleAndShift{static_cast<float>(a), static_cast<float>(b)});
  } else if (name == "relu") {
    launch(Relu{});
  } else if (name == "square") {
    launch(Square{});
  } else {
    STD_TORCH_CHECK(false, "f: expected scale_and_shift, relu or square, got ", name);
  }
}

Tensor element_wise_v1_functor(const Tensor& x, const std::string& f, double a, double b) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  const dim3 block(BLOCK_X, BLOCK_Y);
  with_function(f, a, b, [&](auto function) {
    if (x.numel() == 0) return;
    const dim3 grid(grid_size(ceil_div<int64_t>(cols, BLOCK_X), "x"), grid_y(rows, BLOCK_Y));
    dispatch_floating(x, [&](auto zero) {
      using T = decltype(zero);
      element_wise_v1_functor_kernel<<<grid, block, 0, current_stream(x)>>>(
          data<T>(x), mutable_data<T>(y), rows, cols, function);
    });
    check_launch("element_wise_v1_functor");
  });
  return y;
}

// ---------------------------------------------------------------------------------------------
// map v2 against v1: an element-wise function needs no rows and columns. The matrix is one long
// vector, loaded 16 bytes at a time; the last few elements are computed one by one.

constexpr int BLOCK = 256;

template <typename T, typename F>
__global__ void element_wise_v2_functor_wide_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                    int64_t n, F f) {
  constexpr int N = Pack<T>::N;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t packs = n / N;
  if (i < packs) {
    Pack<T> v = reinterpret_cast<const Pack<T>*>(x)[i];
    for (int k = 0; k < N; ++k) v.at[k] = static_cast<T>(f(static_cast<float>(v.at[k])));
    reinterpret_cast<Pack<T>*>(y)[i] = v;
  }
  const int64_t rest = packs * N + i;  // [packs · N, n): fewer than N elements
  if (rest < n) y[rest] = static_cast<T>(f(static_cast<float>(x[rest])));
}

Tensor element_wise_v2_functor_wide(const Tensor& x, const std::string& f, double a, double b) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  if (!is_aligned(x, 16)) {  // a slice such as x[1:]
    fell_back("element_wise_v1_functor", "an input that is not aligned to 16 bytes");
    return element_wise_v1_functor(x, f, a, b);
  }
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t n = x.numel();
  with_function(f, a, b, [&](auto function) {
    if (n == 0) return;
    dispatch_floating(x, [&](auto zero) {
      using T = decltype(zero);
      const int64_t threads = ceil_div<int64_t>(n, Pack<T>::N);
      const unsigned grid = grid_size(ceil_div<int64_t>(threads, BLOCK), "x");
      element_wise_v2_functor_wide_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
          data<T>(x), mutable_data<T>(y), n, function);
    });
    check_launch("element_wise_v2_functor_wide");
  });
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day03, matrix_add_v1_grid_2d, "(Tensor x, Tensor y) -> Tensor");
RUNG(day03, matrix_add_v2_four_rows, "(Tensor x, Tensor y) -> Tensor");
RUNG(day03, element_wise_v1_functor, "(Tensor x, str f, float a=1.0, float b=0.0) -> Tensor");
RUNG(day03, element_wise_v2_functor_wide, "(Tensor x, str f, float a=1.0, float b=0.0) -> Tensor");

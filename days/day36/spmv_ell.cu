// Day 36: sparse matrix times vector, in CSR and in ELL
//
//   y = A x        A: (rows, cols) with nnz entries, x: (cols,), y: (rows,); fp32
//   CSR            row r has the entries [row_ptr[r], row_ptr[r + 1]) of col and value, (nnz,)
//   ELL            entry k of row r is at [k][r] of col and value, (width, rows); -1 is padding
//
// Bytes, with indices of I bytes: nnz · (I + 4) + rows · (I + 4) + cols · 4, if each element of x
// comes from memory once. Operations: 2 per entry. Indices are int32 or int64.
//
//   csr v1 scalar        one thread per row: the lanes of a warp read far apart
//   csr v2 warp          one warp per row: coalesced, but lanes of short rows idle
//   csr v3 sub_warp      2 to 32 lanes per row, five entries per lane in flight
//   csr v4 shared        a warp loads its rows' entries as one aligned run, and adds up from shared
//   ell v1 padded        one thread per row, coalesced, because entries of a column are neighbours
//   ell v2 until_padding stops where the row has ended, so that most padding is never read
//   csr_to_ell           from the one to the other
//
// COO is in spmv_coo.cu. Run: python run_day.py 36

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/sparse.cuh"
#include "common/cuda/tensor.cuh"
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <tuple>
#include <type_traits>

constexpr int BLOCK = 256;
constexpr int DEPTH = 5;  // entries that a lane of csr v3 and v4 loads before it uses the first

// A matrix in CSR, in memory of the GPU.
template <typename Index>
struct Csr {
  const Index* row_ptr;  // (rows + 1,)
  const Index* col;      // (nnz,)
  const float* value;    // (nnz,)
  int64_t rows, cols, nnz;

  // Where row r begins, and r - 1 ends. In [0, nnz] whatever row_ptr holds.
  __device__ int64_t start(int64_t r) const {
    const int64_t at = row_ptr[r];
    return at < 0 ? 0 : at < nnz ? at : nnz;
  }
};

// What an entry contributes to its row: nothing, if its column does not exist. Padding must not be
// a product with 0, which would be NaN where x is infinite.
__device__ float product(float value, int64_t col, const float* x, int64_t cols) {
  return is_index(col, cols) ? value * x[col] : 0.0f;
}

// Allocates y for a matrix in CSR, and calls launch(matrix, elements of x, elements of y).
template <typename Launch>
Tensor multiply_csr(const Tensor& row_ptr, const Tensor& col, const Tensor& value, const Tensor& x,
                    const char* name, Launch&& launch) {
  check_csr(row_ptr, col, value);
  check_floats(check(x, "x")).same_device(row_ptr, "row_ptr");
  const DeviceGuard guard(x);
  const int64_t rows = row_ptr.numel() - 1;
  Tensor y = allocate(x, {rows});
  if (rows == 0) return y;
  dispatch_index(col, [&](auto zero) {
    using Index = decltype(zero);
    const Csr<Index> a{data<Index>(row_ptr), data<Index>(col), data<float>(value), rows, x.numel(),
                       col.numel()};
    launch(a, data<float>(x), mutable_data<float>(y));
  });
  check_launch(name);
  return y;
}

// Blocks for so many lanes per row.
unsigned grid_for(int64_t rows, int lanes) {
  return grid_size(ceil_div<int64_t>(rows, BLOCK / lanes), "row_ptr");
}

// ---------------------------------------------------------------------------------------------
// csr v1: one thread per row. In one step the 32 lanes of a warp read entries of 32 rows, each in a
// sector of its own, and the warp takes as many steps as its longest row has entries.

template <typename Index>
__global__ void csr_v1_scalar_kernel(Csr<Index> a, const float* __restrict__ x, float* y) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= a.rows) return;
  const int64_t end = a.start(row + 1);
  float sum = 0;
  for (int64_t k = a.start(row); k < end; ++k) sum += product(a.value[k], a.col[k], x, a.cols);
  y[row] = sum;
}

Tensor csr_v1_scalar(const Tensor& row_ptr, const Tensor& col, const Tensor& value,
                     const Tensor& x) {
  return multiply_csr(row_ptr, col, value, x, "csr_v1_scalar", [&](auto a, auto* from, auto* y) {
    csr_v1_scalar_kernel<<<grid_for(a.rows, 1), BLOCK, 0, current_stream(x)>>>(a, from, y);
  });
}

// ---------------------------------------------------------------------------------------------
// csr v2 against v1: one warp per row. 32 lanes read 32 neighbouring entries, and add up what they
// have by shuffles. A row of 5 entries leaves 27 lanes idle.

template <typename Index>
__global__ void csr_v2_warp_kernel(Csr<Index> a, const float* __restrict__ x, float* y) {
  const int64_t row = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (row >= a.rows) return;  // the whole warp
  const int64_t end = a.start(row + 1);
  float sum = 0;
  for (int64_t k = a.start(row) + threadIdx.x % 32; k < end; k += 32) {
    sum += product(a.value[k], a.col[k], x, a.cols);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) y[row] = sum;
}

Tensor csr_v2_warp(const Tensor& row_ptr, const Tensor& col, const Tensor& value, const Tensor& x) {
  return multiply_csr(row_ptr, col, value, x, "csr_v2_warp", [&](auto a, auto* from, auto* y) {
    csr_v2_warp_kernel<<<grid_for(a.rows, 32), BLOCK, 0, current_stream(x)>>>(a, from, y);
  });
}

// ---------------------------------------------------------------------------------------------
// csr v3 against v2: LANES lanes per row, 2 to 32, so that DEPTH entries per lane are enough for
// most rows. Each lane loads all of them before it multiplies: more bytes are in flight per warp.

template <int LANES, typename Index>
__global__ void csr_v3_sub_warp_kernel(Csr<Index> a, const float* __restrict__ x, float* y) {
  using Offset =
      std::make_unsigned_t<Index>;  // for int32 half the registers, and k never overflows
  const int64_t row = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  const bool is_row = row < a.rows;
  const Offset end = is_row ? a.start(row + 1) : 0;
  float sum = 0;
  for (Offset k = is_row ? a.start(row) + lane : 0; k < end; k += DEPTH * LANES) {
    Index col[DEPTH];
    float value[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const Offset at = k + i * LANES;
      col[i] = at < end ? a.col[at] : -1;
      value[i] = at < end ? a.value[at] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) sum += product(value[i], col[i], x, a.cols);
  }
  // Distances below LANES stay among the lanes of the row. All 32 lanes take part.
  for (int half = LANES / 2; half > 0; half /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, half);
  if (is_row && lane == 0) y[row] = sum;
}

// Calls f with the number of lanes per row as a constant: one pass is enough for rows that are a
// quarter longer than the mean.
template <typename F>
void dispatch_lanes(int64_t mean, F&& f) {
  const int64_t lanes = ceil_div<int64_t>(mean + mean / 4, DEPTH);
  if (lanes <= 2) return f(std::integral_constant<int, 2>{});
  if (lanes <= 4) return f(std::integral_constant<int, 4>{});
  if (lanes <= 8) return f(std::integral_constant<int, 8>{});
  if (lanes <= 16) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, 32>{});
}

Tensor csr_v3_sub_warp(const Tensor& row_ptr, const Tensor& col, const Tensor& value,
                       const Tensor& x) {
  return multiply_csr(row_ptr, col, value, x, "csr_v3_sub_warp", [&](auto a, auto* from, auto* y) {
    dispatch_lanes(a.nnz / a.rows, [&](auto lanes) {
      csr_v3_sub_warp_kernel<lanes>
          <<<grid_for(a.rows, lanes), BLOCK, 0, current_stream(x)>>>(a, from, y);
    });
  });
}

// ---------------------------------------------------------------------------------------------
// csr v4 against v3: there, one load instruction reads a piece of each row of the warp, from a line
// of its own. Rows of a warp are neighbours, so their entries are one run: here the warp loads it
// from the line in which it begins, 32 neighbouring entries per instruction. The products go to
// shared memory, where each row's lanes add up those of their row.

template <int LANES, typename Index>
__global__ void csr_v4_shared_products_kernel(Csr<Index> a, const float* __restrict__ x, float* y) {
  using Offset = std::make_unsigned_t<Index>;
  constexpr int PASS = 32 * DEPTH;  // entries that a warp loads together
  __shared__ float products[BLOCK / 32][PASS];
  float* own = products[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / LANES;
  const bool is_row = row < a.rows;
  const Offset start = is_row ? a.start(row) : a.nnz;
  const Offset end = is_row ? a.start(row + 1) : 0;
  // The run [first, last) holds all rows of the warp, even if row pointers decrease.
  Offset first = start, last = end;
#pragma unroll
  for (int distance = LANES; distance < 32; distance *= 2) {
    const Offset other_first = __shfl_xor_sync(FULL_WARP, first, distance);
    const Offset other_last = __shfl_xor_sync(FULL_WARP, last, distance);
    first = other_first < first ? other_first : first;
    last = other_last > last ? other_last : last;
  }
  float sum = 0;
  for (Offset base = first / 32 * 32; base < last; base += PASS) {
    Index col[DEPTH];
    float value[DEPTH], of_x[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const Offset at = base + i * 32 + lane;
      const bool is_loaded = at >= first && at < last;
      col[i] = is_loaded ? a.col[at] : -1;
      value[i] = is_loaded ? a.value[at] : 0.0f;
    }
    __syncwarp();  // keeps the compiler from issuing a gather, which waits, between these loads
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const bool is_entry = is_index(col[i], a.cols);
      of_x[i] = is_entry ? x[col[i]] : 0.0f;
      value[i] = is_entry ? value[i] : 0.0f;
    }
    __syncwarp();  // keeps it from multiplying, which waits for a gather, before all are issued
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) own[i * 32 + lane] = value[i] * of_x[i];
    __syncwarp();  // the products of all lanes are complete
    const Offset to = end < base + PASS ? end : base + PASS;
    for (Offset k = (start > base ? start : base) + lane % LANES; k < to; k += LANES) {
      sum += own[k - base];
    }
    __syncwarp();  // all lanes have read: the next pass may overwrite them
  }
  for (int half = LANES / 2; half > 0; half /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, half);
  if (is_row && lane % LANES == 0) y[row] = sum;
}

Tensor csr_v4_shared_products(const Tensor& row_ptr, const Tensor& col, const Tensor& value,
                              const Tensor& x) {
  return multiply_csr(
      row_ptr, col, value, x, "csr_v4_shared_products", [&](auto a, auto* from, auto* y) {
        dispatch_lanes(a.nnz / a.rows, [&](auto lanes) {
          csr_v4_shared_products_kernel<lanes>
              <<<grid_for(a.rows, lanes), BLOCK, 0, current_stream(x)>>>(a, from, y);
        });
      });
}

// ---------------------------------------------------------------------------------------------
// ELL. All rows have `width` places, and the first places of all rows come first, so that one
// thread per row reads coalesced. What a shorter row leaves is padding.

template <typename Index>
struct Ell {
  const Index* col;    // (width, rows)
  const float* value;  // (width, rows)
  int64_t rows, cols, width;
};

// Allocates y for a matrix in ELL, and calls launch(matrix, elements of x, elements of y, blocks).
template <typename Launch>
Tensor multiply_ell(const Tensor& ell_col, const Tensor& ell_value, const Tensor& x,
                    const char* name, Launch&& launch) {
  check(ell_col, "ell_col").on_gpu().dtype({ScalarType::Int, ScalarType::Long}).rank(2);
  check(ell_col, "ell_col").contiguous();
  check_floats(check(ell_value, "ell_value"), 2).same_device(ell_col, "ell_col");
  check(ell_value, "ell_value").size(0, ell_col.size(0)).size(1, ell_col.size(1));
  check_floats(check(x, "x")).same_device(ell_col, "ell_col");
  const DeviceGuard guard(x);
  const int64_t width = ell_col.size(0), rows = ell_col.size(1);
  Tensor y = allocate(x, {rows});
  if (rows == 0) return y;
  dispatch_index(ell_col, [&](auto zero) {
    using Index = decltype(zero);
    const Ell<Index> a{data<Index>(ell_col), data<float>(ell_value), rows, x.numel(), width};
    launch(a, data<float>(x), mutable_data<float>(y), grid_for(rows, 1));
  });
  check_launch(name);
  return y;
}

// ell v1: every place of every row is read, padding too.
template <typename Index>
__global__ void ell_v1_padded_kernel(Ell<Index> a, const float* __restrict__ x, float* y) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= a.rows) return;
  float sum = 0;
#pragma unroll 8
  for (int64_t k = 0; k < a.width; ++k) {
    const int64_t at = k * a.rows + row;
    sum += product(a.value[at], a.col[at], x, a.cols);
  }
  y[row] = sum;
}

Tensor ell_v1_padded(const Tensor& ell_col, const Tensor& ell_value, const Tensor& x) {
  return multiply_ell(ell_col, ell_value, x, "ell_v1_padded",
                      [&](auto a, auto* from, auto* y, unsigned grid) {
                        ell_v1_padded_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(a, from, y);
                      });
}

// ell v2 against v1: a thread stops at the first group of STEPS places that ends with padding. A
// sector whose eight rows have all ended is not read.
constexpr int STEPS = 8;

template <typename Index>
__global__ void ell_v2_until_padding_kernel(Ell<Index> a, const float* __restrict__ x, float* y) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= a.rows) return;
  float sum = 0;
  for (int64_t first = 0; first < a.width; first += STEPS) {
    Index col[STEPS];
    float value[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int64_t at = (first + i) * a.rows + row;
      col[i] = first + i < a.width ? a.col[at] : -1;
      value[i] = first + i < a.width ? a.value[at] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) sum += product(value[i], col[i], x, a.cols);
    if (col[STEPS - 1] < 0) break;  // padding stands at the end of a row only
  }
  y[row] = sum;
}

Tensor ell_v2_until_padding(const Tensor& ell_col, const Tensor& ell_value, const Tensor& x) {
  return multiply_ell(ell_col, ell_value, x, "ell_v2_until_padding",
                      [&](auto a, auto* from, auto* y, unsigned grid) {
                        ell_v2_until_padding_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(a, from,
                                                                                           y);
                      });
}

// ---------------------------------------------------------------------------------------------
// One thread per row moves the row's first `width` entries: reads as csr v1, writes coalesced.

template <typename Index>
__global__ void csr_to_ell_kernel(Csr<Index> a, Index* ell_col, float* ell_value, int64_t width) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= a.rows) return;
  const int64_t start = a.start(row), end = a.start(row + 1);
  for (int64_t k = 0; k < width; ++k) {
    const bool is_entry = start + k < end;
    ell_col[k * a.rows + row] = is_entry ? a.col[start + k] : -1;
    ell_value[k * a.rows + row] = is_entry ? a.value[start + k] : 0.0f;
  }
}

// width: the places per row. Entries beyond are left out; day 37 keeps them in COO.
std::tuple<Tensor, Tensor> csr_to_ell(const Tensor& row_ptr, const Tensor& col, const Tensor& value,
                                      int64_t width) {
  check_csr(row_ptr, col, value);
  STD_TORCH_CHECK(width >= 0 && width <= col.numel(), "width: expected 0 to ", col.numel(),
                  ", the size of col, got ", width);
  const DeviceGuard guard(col);
  const int64_t rows = row_ptr.numel() - 1;
  Tensor ell_col = allocate(col, {width, rows});
  Tensor ell_value = allocate(value, {width, rows});
  if (ell_col.numel() == 0) return {ell_col, ell_value};
  dispatch_index(col, [&](auto zero) {
    using Index = decltype(zero);
    const Csr<Index> a{data<Index>(row_ptr), data<Index>(col), data<float>(value), rows, 0,
                       col.numel()};
    csr_to_ell_kernel<<<grid_for(rows, 1), BLOCK, 0, current_stream(col)>>>(
        a, mutable_data<Index>(ell_col), mutable_data<float>(ell_value), width);
  });
  check_launch("csr_to_ell");
  return {ell_col, ell_value};
}

// ---------------------------------------------------------------------------------------------

RUNG(day36, csr_v1_scalar, "(Tensor row_ptr, Tensor col, Tensor value, Tensor x) -> Tensor");
RUNG(day36, csr_v2_warp, "(Tensor row_ptr, Tensor col, Tensor value, Tensor x) -> Tensor");
RUNG(day36, csr_v3_sub_warp, "(Tensor row_ptr, Tensor col, Tensor value, Tensor x) -> Tensor");
RUNG(day36, csr_v4_shared_products,
     "(Tensor row_ptr, Tensor col, Tensor value, Tensor x) -> Tensor");
RUNG(day36, ell_v1_padded, "(Tensor ell_col, Tensor ell_value, Tensor x) -> Tensor");
RUNG(day36, ell_v2_until_padding, "(Tensor ell_col, Tensor ell_value, Tensor x) -> Tensor");
RUNG(day36, csr_to_ell,
     "(Tensor row_ptr, Tensor col, Tensor value, int width) -> (Tensor, Tensor)");

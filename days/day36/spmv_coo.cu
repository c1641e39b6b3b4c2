// Day 36: sparse matrix times vector, in COO
//
//   y = A x        A: (rows, cols) with nnz entries, x: (cols,), y: (rows,); fp32
//   COO            entry k is value[k] in row row[k] and column col[k]; row, col, value: (nnz,)
//
// Bytes, with indices of I bytes: nnz · (2 I + 4) + rows · 4 + cols · 4. Operations: 2 per entry.
//
//   v1 atomics     one thread and one atomic addition per entry
//   v2 segmented   a warp adds up the entries of a row first: one atomic per row that it meets
//   csr_to_coo     the row of each entry, by binary search in row_ptr
//   coo_to_csr     the first entry of each row, by binary search in row
//
// Entries may have any order in v1 and v2; sorted by rows they are fast. Run: python run_day.py 36

#include "common/cuda/binding.cuh"
#include "common/cuda/sparse.cuh"
#include "common/cuda/tensor.cuh"
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

constexpr int BLOCK = 256;
constexpr int DEPTH = 4;                   // entries that a lane loads before it uses the first
constexpr int PER_WARP = 8 * 32 * DEPTH;   // entries per warp
constexpr int64_t MOST_ROWS = 2147483647;  // of y, which `rows` alone decides the size of

// A matrix in COO, in memory of the GPU.
template <typename Index>
struct Coo {
  const Index* row;    // (nnz,)
  const Index* col;    // (nnz,)
  const float* value;  // (nnz,)
  int64_t rows, cols, nnz;

  // What entry k contributes to its row: nothing, if its column does not exist.
  __device__ float product(int64_t k, const float* x) const {
    const int64_t c = col[k];
    return is_index(c, cols) ? value[k] * x[c] : 0.0f;
  }

  // Adds to a row, if it exists.
  __device__ void add(float* y, int64_t r, float sum) const {
    if (is_index(r, rows)) atomicAdd(&y[r], sum);
  }
};

void check_rows(int64_t rows) {
  STD_TORCH_CHECK(rows >= 0 && rows <= MOST_ROWS, "rows: expected 0 to ", MOST_ROWS, ", got ",
                  rows);
}

// Makes y, all 0, and calls launch(matrix, elements of x, elements of y).
template <typename Launch>
Tensor multiply_coo(const Tensor& row, const Tensor& col, const Tensor& value, const Tensor& x,
                    int64_t rows, const char* name, Launch&& launch) {
  check_indices(check(row, "row"));
  check_indices(check(col, "col")).like(row, "row");
  check_floats(check(value, "value")).size(0, row.numel()).same_device(row, "row");
  check_floats(check(x, "x")).same_device(row, "row");
  check_rows(rows);
  const DeviceGuard guard(x);
  Tensor y = allocate_zeros(x, {rows});
  if (row.numel() == 0) return y;
  dispatch_index(row, [&](auto zero) {
    using Index = decltype(zero);
    const Coo<Index> a{data<Index>(row), data<Index>(col), data<float>(value), rows,
                       x.numel(),        row.numel()};
    launch(a, data<float>(x), mutable_data<float>(y));
  });
  check_launch(name);
  return y;
}

// ---------------------------------------------------------------------------------------------
// v1: perfectly balanced and coalesced, whatever the lengths of the rows. But neighbouring lanes
// mostly add to one row, one after the other.

template <typename Index>
__global__ void coo_v1_atomics_kernel(Coo<Index> a, const float* __restrict__ x, float* y) {
  const int64_t k = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (k < a.nnz) a.add(y, a.row[k], a.product(k, x));
}

Tensor coo_v1_atomics(const Tensor& row, const Tensor& col, const Tensor& value, const Tensor& x,
                      int64_t rows) {
  return multiply_coo(row, col, value, x, rows, "coo_v1_atomics", [&](auto a, auto* from, auto* y) {
    const unsigned grid = grid_size(ceil_div<int64_t>(a.nnz, BLOCK), "row");
    coo_v1_atomics_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(a, from, y);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: neighbouring lanes with the same row are a segment, and are added up by shuffles.
// The last segment of 32 entries is carried on, as the next 32 may go on with its row. A row that
// spans two warps gets two atomics, so y has to be 0 before.

// The sum of a segment's values up to the own lane. Bit l of heads says that a segment begins in
// lane l; bit 0 is set. All 32 lanes must call it.
__device__ float segmented_scan(float sum, unsigned heads) {
  const int lane = threadIdx.x % 32;
  const int head = 31 - __clz(heads & (FULL_WARP >> (31 - lane)));  // of the own segment
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(FULL_WARP, sum, distance);
    if (lane - distance >= head) sum += before;
  }
  return sum;
}

template <typename Index>
__global__ void coo_v2_segmented_kernel(Coo<Index> a, const float* __restrict__ x, float* y) {
  const int lane = threadIdx.x % 32;
  const int64_t begin = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32 * PER_WARP;
  const int64_t end = begin + PER_WARP < a.nnz ? begin + PER_WARP : a.nnz;
  Index open_row = -1;  // of the last segment so far, which is not yet in y; the same in all lanes
  float open_sum = 0;
  for (int64_t first = begin; first < end; first += 32 * DEPTH) {
    Index row[DEPTH];
    float sum[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const int64_t k = first + i * 32 + lane;
      row[i] = k < end ? a.row[k] : -1;
      sum[i] = k < end ? a.product(k, x) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const Index before = __shfl_up_sync(FULL_WARP, row[i], 1);
      const unsigned heads = __ballot_sync(FULL_WARP, lane == 0 || row[i] != before);
      if (lane == 0 && row[i] == open_row) sum[i] += open_sum;
      if (lane == 0 && row[i] != open_row) a.add(y, open_row, open_sum);
      sum[i] = segmented_scan(sum[i], heads);
      const bool is_last = lane < 31 && (heads >> (lane + 1) & 1);
      if (is_last) a.add(y, row[i], sum[i]);
      open_row = __shfl_sync(FULL_WARP, row[i], 31);
      open_sum = __shfl_sync(FULL_WARP, sum[i], 31);
    }
  }
  if (lane == 0) a.add(y, open_row, open_sum);
}

Tensor coo_v2_segmented(const Tensor& row, const Tensor& col, const Tensor& value, const Tensor& x,
                        int64_t rows) {
  return multiply_coo(row, col, value, x, rows, "coo_v2_segmented",
                      [&](auto a, auto* from, auto* y) {
                        const int64_t per_block = BLOCK / 32 * PER_WARP;
                        const unsigned grid = grid_size(ceil_div<int64_t>(a.nnz, per_block), "row");
                        coo_v2_segmented_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(a, from, y);
                      });
}

// ---------------------------------------------------------------------------------------------
// Conversions. Both are a binary search per result: every thread takes log2 steps, however long the
// rows are, and neighbouring threads read the same elements.

// The first place in sorted[0, n) whose element is not below `key`; n if all are.
template <typename Index>
__device__ int64_t lower_bound(const Index* sorted, int64_t n, int64_t key) {
  int64_t first = 0;
  while (n > 0) {
    const int64_t half = n / 2;
    if (sorted[first + half] < key) {
      first += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  return first;
}

template <typename Index>
__global__ void csr_to_coo_kernel(const Index* __restrict__ row_ptr, Index* row, int64_t rows,
                                  int64_t nnz) {
  const int64_t k = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  // The first row that begins after entry k is the one after the entry's own.
  if (k < nnz) row[k] = static_cast<Index>(lower_bound(row_ptr, rows + 1, k + 1) - 1);
}

// col: only its size and dtype count.
Tensor csr_to_coo(const Tensor& row_ptr, const Tensor& col) {
  check_indices(check(row_ptr, "row_ptr"));
  STD_TORCH_CHECK(row_ptr.numel() > 0, "row_ptr: expected one element per row and one more, got 0");
  check_indices(check(col, "col")).dtype({row_ptr.scalar_type()}).same_device(row_ptr, "row_ptr");
  const DeviceGuard guard(col);
  Tensor row = allocate_like(col);
  if (row.numel() == 0) return row;
  const unsigned grid = grid_size(ceil_div<int64_t>(row.numel(), BLOCK), "col");
  dispatch_index(col, [&](auto zero) {
    using Index = decltype(zero);
    csr_to_coo_kernel<<<grid, BLOCK, 0, current_stream(col)>>>(
        data<Index>(row_ptr), mutable_data<Index>(row), row_ptr.numel() - 1, row.numel());
  });
  check_launch("csr_to_coo");
  return row;
}

template <typename Index>
__global__ void coo_to_csr_kernel(const Index* __restrict__ row, Index* row_ptr, int64_t rows,
                                  int64_t nnz) {
  const int64_t r = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (r <= rows) row_ptr[r] = static_cast<Index>(lower_bound(row, nnz, r));
}

// row: sorted, or row_ptr makes no sense.
Tensor coo_to_csr(const Tensor& row, int64_t rows) {
  check_indices(check(row, "row"));
  check_rows(rows);
  const DeviceGuard guard(row);
  Tensor row_ptr = allocate(row, {rows + 1});
  const unsigned grid = grid_size(ceil_div<int64_t>(rows + 1, BLOCK), "rows");
  dispatch_index(row, [&](auto zero) {
    using Index = decltype(zero);
    coo_to_csr_kernel<<<grid, BLOCK, 0, current_stream(row)>>>(
        data<Index>(row), mutable_data<Index>(row_ptr), rows, row.numel());
  });
  check_launch("coo_to_csr");
  return row_ptr;
}

// ---------------------------------------------------------------------------------------------

RUNG(day36, coo_v1_atomics, "(Tensor row, Tensor col, Tensor value, Tensor x, int rows) -> Tensor");
RUNG(day36, coo_v2_segmented,
     "(Tensor row, Tensor col, Tensor value, Tensor x, int rows) -> Tensor");
RUNG(day36, csr_to_coo, "(Tensor row_ptr, Tensor col) -> Tensor");
RUNG(day36, coo_to_csr, "(Tensor row, int rows) -> Tensor");

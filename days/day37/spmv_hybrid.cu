// Day 37: sparse matrix times vector where rows differ in length
//
//   y = A x        A: (rows, cols) with nnz entries, x: (cols,), y: (rows,); fp32
//   hybrid         the first `width` entries of each row in ELL, the rest in COO
//   CSR            row r has the entries [row_ptr[r], row_ptr[r + 1]) of col and value
//
// Bytes, with indices of I bytes: nnz · (I + 4) + rows · (I + 4) + cols · 4. Operations: 2 per
// entry.
//
//   hybrid           ELL for what most rows have, COO for the rest
//   csr_to_rest      the COO part of a hybrid matrix from CSR
//   csr v1 warp      one warp per row, day 36's: the longest row decides
//   merge v2 threads every thread takes equally many rows and entries together, from global memory
//   merge v3 shared  a block loads its share coalesced into shared memory first
//
// For merge, row_ptr has to begin with 0 and not to decrease; otherwise y is undefined, but no
// access is out of bounds. Run: python run_day.py 37

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/sparse_matrices.cuh"  // taught in day 36
#include "common/cuda/tensor.cuh"

#include <tuple>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;

// ---------------------------------------------------------------------------------------------
// hybrid: two kernels on one stream. The first writes each row's sum over its ELL places, the
// second adds to the rows that are longer.

template <typename Index>
__global__ void hybrid_ell_kernel(Ell<Index> a, const float* __restrict__ x, float* y) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row < a.rows) y[row] = ell_row_sum(a, row, x);
}

template <typename Index>
__global__ void hybrid_coo_kernel(Coo<Index> a, const float* __restrict__ x, float* y) {
  coo_add_warp(a, (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32, x, y);
}

Tensor hybrid(const Tensor& ell_col, const Tensor& ell_value, const Tensor& row, const Tensor& col,
              const Tensor& value, const Tensor& x) {
  check(ell_col, "ell_col").on_gpu().dtype({ScalarType::Int, ScalarType::Long}).rank(2);
  check(ell_col, "ell_col").contiguous();
  check_floats(check(ell_value, "ell_value"), 2).same_device(ell_col, "ell_col");
  check(ell_value, "ell_value").size(0, ell_col.size(0)).size(1, ell_col.size(1));
  check_indices(check(row, "row")).dtype({ell_col.scalar_type()}).same_device(ell_col, "ell_col");
  check_indices(check(col, "col")).like(row, "row");
  check_floats(check(value, "value")).size(0, row.numel()).same_device(ell_col, "ell_col");
  check_floats(check(x, "x")).same_device(ell_col, "ell_col");
  const DeviceGuard guard(x);
  const int64_t width = ell_col.size(0), rows = ell_col.size(1), rest = row.numel();
  Tensor y = allocate(x, {rows});
  if (rows == 0) return y;
  const unsigned ell_grid = grid_size(ceil_div<int64_t>(rows, BLOCK), "ell_col");
  const unsigned coo_grid = grid_size(ceil_div<int64_t>(rest, COO_PER_WARP * WARPS), "row");
  dispatch_index(row, [&](auto zero) {
    using Index = decltype(zero);
    const Ell<Index> ell{data<Index>(ell_col), data<float>(ell_value), rows, x.numel(), width};
    const Coo<Index> coo{
        data<Index>(row), data<Index>(col), data<float>(value), rows, x.numel(), rest};
    hybrid_ell_kernel<<<ell_grid, BLOCK, 0, current_stream(x)>>>(ell, data<float>(x),
                                                                 mutable_data<float>(y));
    check_launch("hybrid_ell");
    if (rest == 0) return;
    hybrid_coo_kernel<<<coo_grid, BLOCK, 0, current_stream(x)>>>(coo, data<float>(x),
                                                                 mutable_data<float>(y));
    check_launch("hybrid_coo");
  });
  return y;
}

// ---------------------------------------------------------------------------------------------
// csr_to_rest: one thread per entry of the COO part, which finds its row by binary search in
// rest_ptr: rest_ptr[r] entries of the rows before r are in that part.

template <typename Index>
__global__ void csr_to_rest_kernel(Csr<Index> a, const Index* __restrict__ rest_ptr, int64_t width,
                                   int64_t rest, Index* row, Index* col, float* value) {
  const int64_t k = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (k >= rest) return;
  const int64_t r = lower_bound(rest_ptr, a.rows + 1, k + 1) - 1;
  int64_t entry = -1;
  if (is_index(r, a.rows)) entry = a.start(r) + width + k - rest_ptr[r];
  const bool there = is_index(entry, a.nnz);
  row[k] = static_cast<Index>(there ? r : -1);
  col[k] = there ? a.col[entry] : -1;
  value[k] = there ? a.value[entry] : 0.0f;
}

// width: the places per row of the ELL part. rest: the last element of rest_ptr, the entries of the
// COO part; a launcher cannot look at it without waiting for the GPU.
std::tuple<Tensor, Tensor, Tensor> csr_to_rest(const Tensor& row_ptr, const Tensor& col,
                                               const Tensor& value, const Tensor& rest_ptr,
                                               int64_t width, int64_t rest) {
  check_csr(row_ptr, col, value);
  check_indices(check(rest_ptr, "rest_ptr")).like(row_ptr, "row_ptr");
  const int64_t nnz = col.numel();
  STD_TORCH_CHECK(width >= 0 && width <= nnz, "width: expected 0 to ", nnz,
                  ", the size of col, got ", width);
  STD_TORCH_CHECK(rest >= 0 && rest <= nnz, "rest: expected 0 to ", nnz, ", the size of col, got ",
                  rest);
  const DeviceGuard guard(col);
  Tensor rest_row = allocate(col, {rest});
  Tensor rest_col = allocate(col, {rest});
  Tensor rest_value = allocate(value, {rest});
  if (rest == 0) return {rest_row, rest_col, rest_value};
  const unsigned grid = grid_size(ceil_div<int64_t>(rest, BLOCK), "rest");
  dispatch_index(col, [&](auto zero) {
    using Index = decltype(zero);
    const Csr<Index> a{
        data<Index>(row_ptr), data<Index>(col), data<float>(value), row_ptr.numel() - 1, 0, nnz};
    csr_to_rest_kernel<<<grid, BLOCK, 0, current_stream(col)>>>(
        a, data<Index>(rest_ptr), width, rest, mutable_data<Index>(rest_row),
        mutable_data<Index>(rest_col), mutable_data<float>(rest_value));
  });
  check_launch("csr_to_rest");
  return {rest_row, rest_col, rest_value};
}

// ---------------------------------------------------------------------------------------------
// csr v1: one warp per row. The launch takes as long as the warp with the longest row.

// Makes y, all 0 if rows are added to, and calls launch(matrix, elements of x, elements of y).
template <typename Launch>
Tensor multiply_csr(const Tensor& row_ptr, const Tensor& col, const Tensor& value, const Tensor& x,
                    bool adds, const char* name, Launch&& launch) {
  check_csr(row_ptr, col, value);
  check_floats(check(x, "x")).same_device(row_ptr, "row_ptr");
  const DeviceGuard guard(x);
  const int64_t rows = row_ptr.numel() - 1;
  Tensor y = allocate(x, {rows});
  if (rows == 0) return y;
  if (adds) torch::stable::zero_(y);
  dispatch_index(col, [&](auto zero) {
    using Index = decltype(zero);
    const Csr<Index> a{data<Index>(row_ptr), data<Index>(col), data<float>(value), rows, x.numel(),
                       col.numel()};
    launch(a, data<float>(x), mutable_data<float>(y));
  });
  check_launch(name);
  return y;
}

template <typename Index>
__global__ void csr_v1_warp_kernel(Csr<Index> a, const float* __restrict__ x, float* y) {
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

Tensor csr_v1_warp(const Tensor& row_ptr, const Tensor& col, const Tensor& value, const Tensor& x) {
  return multiply_csr(
      row_ptr, col, value, x, false, "csr_v1_warp", [&](auto a, auto* from, auto* y) {
        const unsigned grid = grid_size(ceil_div<int64_t>(a.rows, WARPS), "row_ptr");
        csr_v1_warp_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(a, from, y);
      });
}

// ---------------------------------------------------------------------------------------------
// merge v2 against v1: equal work per thread. Merging the ends of the rows with the numbers of the
// entries gives one list of rows + nnz steps: "entry k" and "row r ends". Every thread takes
// ITEMS steps of it, and finds by binary search where they begin.

constexpr int ITEMS = 9;  // steps per thread; odd, so that lanes which walk use different banks

// The number of row ends among the first `diagonal` steps; the others are entries. ends(r) is where
// row r ends, for r in [0, rows). The result and `diagonal` minus it stay in [0, rows] and [0,
// entries] whatever the ends are.
template <typename Ends>
__device__ int64_t merge_path(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ends(middle) <= diagonal - 1 - middle) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename Index>
__global__ void merge_v2_threads_kernel(Csr<Index> a, const float* __restrict__ x, float* y) {
  const int64_t begin = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) * ITEMS;
  const int64_t steps = a.rows + a.nnz;
  if (begin >= steps) return;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  int64_t row = merge_path(ends, a.rows, a.nnz, begin), entry = begin - row;
  bool began_here = false;  // the row
  float sum = 0;
  for (int64_t step = begin; step < begin + ITEMS && step < steps; ++step) {
    if (row < a.rows && (entry >= a.nnz || ends(row) <= entry)) {
      if (began_here) {
        y[row] = sum;
      } else {
        atomicAdd(&y[row], sum);  // the threads before have added to it
      }
      began_here = true;
      sum = 0;
      ++row;
    } else {
      sum += product(a.value[entry], a.col[entry], x, a.cols);
      ++entry;
    }
  }
  if (row < a.rows) atomicAdd(&y[row], sum);  // the row goes on in the next thread
}

Tensor merge_v2_threads(const Tensor& row_ptr, const Tensor& col, const Tensor& value,
                        const Tensor& x) {
  return multiply_csr(row_ptr, col, value, x, true, "merge_v2_threads",
                      [&](auto a, auto* from, auto* y) {
                        const unsigned grid =
                            grid_size(ceil_div<int64_t>(a.rows + a.nnz, BLOCK * ITEMS), "row_ptr");
                        merge_v2_threads_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(a, from, y);
                      });
}

// ---------------------------------------------------------------------------------------------
// merge v3 against v2: neighbouring lanes read entries that are ITEMS apart there. Here the block
// computes the products of its TILE steps coalesced and keeps them in shared memory. What a thread
// has left of an open row goes to the thread that ends it, by a segmented scan.

constexpr int TILE = BLOCK * ITEMS;  // steps per block

// The number of row ends before each tile, without a search. Row r ends in step f(r) = ends(r) + r,
// so r ends come before every tile that begins after step f(r - 1) and not after f(r). With f(-1) =
// -1 and f(rows) = all steps, every tile gets a row, whatever row_ptr holds. Also makes y 0.
template <typename Index>
__global__ void merge_v3_prepare_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row, float* y) {
  const int64_t r = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (r > a.rows) return;
  const int64_t before = r == 0 ? -1 : a.start(r) + r - 1;
  const int64_t own = r == a.rows ? a.rows + a.nnz : a.start(r + 1) + r;
  for (int64_t tile = ceil_div<int64_t>(before + 1, TILE); tile * TILE <= own; ++tile) {
    tile_row[tile] = r;
  }
  if (r < a.rows) {
    y[r] = 0;
  } else {
    tile_row[tiles] = r;  // the last tile may have fewer steps
  }
}

// What the threads before this one have of a row that is still open, where `sum` is a thread's own
// part of its last row and `ended` says that this row began in it. Every thread must call it. In
// the last thread, `total` becomes what the whole block has of the row after its last row end.
__device__ float open_before(float sum, bool ended, float& total) {
  __shared__ float warp_total[WARPS];
  __shared__ bool warp_ended[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned heads = __ballot_sync(FULL_WARP, ended);
  const float scanned = segmented_scan(sum, heads | 1);
  if (lane == 31) {
    warp_total[warp] = scanned;
    warp_ended[warp] = heads != 0;
  }
  __syncthreads();     // every warp's total is there
  float of_warps = 0;  // what the warps before have of the row that is open where this warp begins
  for (int w = 0; w < warp; ++w) of_warps = (warp_ended[w] ? 0 : of_warps) + warp_total[w];
  const bool open_since_warps = (heads & (FULL_WARP >> (31 - lane))) == 0;
  total = scanned + (open_since_warps ? of_warps : 0);
  const float left = __shfl_up_sync(FULL_WARP, total, 1);
  return lane == 0 ? of_warps : left;
}

template <typename Index>
__global__ void merge_v3_shared_kernel(Csr<Index> a, const int64_t* __restrict__ tile_row,
                                       const float* __restrict__ x, float* y) {
  // A step has a product or a row's end, so both together need one word per step.
  __shared__ int words[TILE];
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;
  float* products = reinterpret_cast<float*>(words);
  int* ends = words + entries;  // of the rows that end in this tile, counted from its first entry

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // One loop per kind of access: a store to `products` between loads would be a barrier to the
  // compiler, which cannot know that a.col is not in shared memory.
  Index col[ITEMS];
  float value[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int i = j * BLOCK + threadIdx.x;
    col[j] = i < entries ? a.col[first_entry + i] : -1;
    value[j] = i < entries ? a.value[first_entry + i] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) value[j] = product(value[j], col[j], x, a.cols);
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int i = j * BLOCK + threadIdx.x;
    if (i < entries) products[i] = value[j];
  }
  __syncthreads();  // products and ends are complete

  const int begin = min(static_cast<int>(threadIdx.x) * ITEMS, steps);
  int row = static_cast<int>(merge_path([&](int64_t r) { return ends[r]; }, rows, entries, begin));
  int entry = begin - row;
  int first = -1;  // the first row that ends in this thread
  float of_first = 0, sum = 0;
  for (int step = begin; step < begin + ITEMS && step < steps; ++step) {
    if (row < rows && (entry >= entries || ends[row] <= entry)) {
      if (first < 0) {
        first = row;
        of_first = sum;
      } else {
        y[first_row + row] = sum;
      }
      sum = 0;
      ++row;
    } else {
      sum += products[entry++];
    }
  }
  float total;
  of_first += open_before(sum, first >= 0, total);
  // The tile's first row and its last, open one may have parts in other tiles.
  if (first == 0) atomicAdd(&y[first_row], of_first);
  if (first > 0) y[first_row + first] = of_first;
  if (threadIdx.x == BLOCK - 1 && first_row + rows < a.rows) {
    atomicAdd(&y[first_row + rows], total);
  }
}

Tensor merge_v3_shared(const Tensor& row_ptr, const Tensor& col, const Tensor& value,
                       const Tensor& x) {
  const auto launch = [&](auto a, auto* from, auto* y) {
    const int64_t tiles = ceil_div<int64_t>(a.rows + a.nnz, TILE);
    const Tensor tile_row = allocate(x, {tiles + 1}, ScalarType::Long);
    const unsigned prepare_grid = grid_size(ceil_div<int64_t>(a.rows + 1, BLOCK), "row_ptr");
    merge_v3_prepare_kernel<<<prepare_grid, BLOCK, 0, current_stream(x)>>>(
        a, tiles, mutable_data<int64_t>(tile_row), y);
    check_launch("merge_v3_prepare");
    merge_v3_shared_kernel<<<grid_size(tiles, "row_ptr"), BLOCK, 0, current_stream(x)>>>(
        a, data<int64_t>(tile_row), from, y);
  };
  return multiply_csr(row_ptr, col, value, x, false, "merge_v3_shared", launch);
}

// ---------------------------------------------------------------------------------------------

RUNG(day37, hybrid,
     "(Tensor ell_col, Tensor ell_value, Tensor row, Tensor col, Tensor value, Tensor x) "
     "-> Tensor");
RUNG(day37, csr_to_rest,
     "(Tensor row_ptr, Tensor col, Tensor value, Tensor rest_ptr, int width, int rest) "
     "-> (Tensor, Tensor, Tensor)");
RUNG(day37, csr_v1_warp, "(Tensor row_ptr, Tensor col, Tensor value, Tensor x) -> Tensor");
RUNG(day37, merge_v2_threads, "(Tensor row_ptr, Tensor col, Tensor value, Tensor x) -> Tensor");
RUNG(day37, merge_v3_shared, "(Tensor row_ptr, Tensor col, Tensor value, Tensor x) -> Tensor");

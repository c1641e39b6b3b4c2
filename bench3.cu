#include <cstdio>
#include <vector>
#include <algorithm>
#include <cstdint>
#include <random>
#include <cmath>
constexpr unsigned FULL_WARP=0xffffffffu;
template<class T> __host__ __device__ constexpr T ceil_div(T a,T b){return (a+b-1)/b;}
__device__ inline bool is_index(int64_t index,int64_t size){return static_cast<uint64_t>(index)<static_cast<uint64_t>(size);}
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

template <typename Index>
struct Ell {
  const Index* col;    // (width, rows)
  const float* value;  // (width, rows)
  int64_t rows, cols, width;
};

template <typename Index>
struct Coo {
  const Index* row;    // (nnz,)
  const Index* col;    // (nnz,)
  const float* value;  // (nnz,)
  int64_t rows, cols, nnz;
};

// What an entry contributes to its row: nothing, if its column does not exist.
__device__ inline float product(float value, int64_t col, const float* x, int64_t cols) {
  return is_index(col, cols) ? value * x[col] : 0.0f;
}

// The product of a row and x. Stops at padding, which has negative columns and ends a row.
template <typename Index>
__device__ float ell_row_sum(const Ell<Index>& a, int64_t row, const float* __restrict__ x) {
  constexpr int STEPS = 8;  // places that are loaded together
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
    if (col[STEPS - 1] < 0) break;
  }
  return sum;
}

// The sum of a segment's values up to the own lane. Bit l of heads says that a segment begins in
// lane l; bit 0 is set. All 32 lanes must call it.
__device__ inline float segmented_scan(float sum, unsigned heads) {
  const int lane = threadIdx.x % 32;
  const int head = 31 - __clz(heads & (FULL_WARP >> (31 - lane)));  // of the own segment
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(FULL_WARP, sum, distance);
    if (lane - distance >= head) sum += before;
  }
  return sum;
}

constexpr int COO_PER_WARP = 1024;  // entries

// Adds to y the entries [COO_PER_WARP · warp, COO_PER_WARP · (warp + 1)): one atomic for each row
// among 32 of them. All 32 lanes must call it.
template <typename Index>
__device__ void coo_add_warp(const Coo<Index>& a, int64_t warp, const float* __restrict__ x,
                             float* y) {
  constexpr int STEPS = 4;
  const int lane = threadIdx.x % 32;
  const int64_t begin = warp * COO_PER_WARP;
  const int64_t end = begin + COO_PER_WARP < a.nnz ? begin + COO_PER_WARP : a.nnz;
  const auto add = [&](int64_t r, float sum) {
    if (is_index(r, a.rows)) atomicAdd(&y[r], sum);
  };
  Index open_row = -1;  // of the last segment so far, which is not yet in y; the same in all lanes
  float open_sum = 0;
  for (int64_t first = begin; first < end; first += 32 * STEPS) {
    Index row[STEPS];
    float sum[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int64_t k = first + i * 32 + lane;
      row[i] = k < end ? a.row[k] : -1;
      sum[i] = k < end ? product(a.value[k], a.col[k], x, a.cols) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const Index before = __shfl_up_sync(FULL_WARP, row[i], 1);
      const unsigned heads = __ballot_sync(FULL_WARP, lane == 0 || row[i] != before);
      if (lane == 0 && row[i] == open_row) sum[i] += open_sum;
      if (lane == 0 && row[i] != open_row) add(open_row, open_sum);
      sum[i] = segmented_scan(sum[i], heads);
      const bool is_last = lane < 31 && (heads >> (lane + 1) & 1);
      if (is_last) add(row[i], sum[i]);
      open_row = __shfl_sync(FULL_WARP, row[i], 31);
      open_sum = __shfl_sync(FULL_WARP, sum[i], 31);
    }
  }
  if (lane == 0) add(open_row, open_sum);
}

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
namespace m128_7 { constexpr int BLOCK=128, ITEMS=7, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}
namespace m128_8 { constexpr int BLOCK=128, ITEMS=8, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}
namespace m256_7 { constexpr int BLOCK=256, ITEMS=7, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}
namespace m256_8 { constexpr int BLOCK=256, ITEMS=8, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}
namespace m128_9 { constexpr int BLOCK=128, ITEMS=9, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}
namespace m128_11 { constexpr int BLOCK=128, ITEMS=11, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}
namespace m64_7 { constexpr int BLOCK=64, ITEMS=7, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}
namespace m256_11 { constexpr int BLOCK=256, ITEMS=11, WARPS=BLOCK/32, TILE=BLOCK*ITEMS;
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

// merge_path by a warp, which looks at 32 places at a time: 4 rounds instead of 20 for 2^20 rows.
template <typename Ends>
__device__ int64_t merge_path_by_warp(Ends ends, int64_t rows, int64_t entries, int64_t diagonal) {
  int64_t low = diagonal > entries ? diagonal - entries : 0;
  int64_t high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const int64_t stride = ceil_div<int64_t>(high - low, 32);
    const int64_t place = low + (threadIdx.x % 32) * stride;
    const bool is_before = place < high && ends(place) <= diagonal - 1 - place;
    const int count = __popc(__ballot_sync(FULL_WARP, is_before));  // of the places from low on
    const int64_t next = low + count * stride;
    if (count > 0) low = next - stride + 1;
    high = next < high ? next : high;
  }
  return low;
}

// The number of row ends before each tile; one warp per tile, all searches at the same time.
template <typename Index>
__global__ void merge_v3_search_kernel(Csr<Index> a, int64_t tiles, int64_t* tile_row) {
  const int64_t tile = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / 32;
  if (tile > tiles) return;  // the whole warp
  const int64_t steps = a.rows + a.nnz, diagonal = tile * TILE;
  const auto ends = [&](int64_t r) { return a.start(r + 1); };
  const int64_t row = merge_path_by_warp(ends, a.rows, a.nnz, diagonal < steps ? diagonal : steps);
  if (threadIdx.x % 32 == 0) tile_row[tile] = row;
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
  __shared__ float products[TILE];
  __shared__ int ends[TILE];  // of the rows that end in this tile, counted from its first entry
  const int64_t diagonal = int64_t{blockIdx.x} * TILE, left = a.rows + a.nnz - diagonal;
  const int steps = left < TILE ? static_cast<int>(left) : TILE;
  const int64_t first_row = tile_row[blockIdx.x], first_entry = diagonal - first_row;
  const int64_t found = tile_row[blockIdx.x + 1] - first_row;
  const int rows = found < 0 ? 0 : found < steps ? static_cast<int>(found) : steps;
  const int entries = steps - rows;

  for (int i = threadIdx.x; i < rows; i += BLOCK) {
    const int64_t end = a.start(first_row + i + 1) - first_entry;
    ends[i] = end < 0 ? 0 : end < TILE ? static_cast<int>(end) : TILE;
  }
  // All loads of a kind are issued before the first is used. A store to `products` in between would
  // be a barrier to the compiler, which cannot know that a.col is not in shared memory.
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
  for (int j = 0; j < ITEMS; ++j) products[j * BLOCK + threadIdx.x] = value[j];
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

}

static float* junk;
__global__ void flush(float* p, int64_t n){ for(int64_t i=int64_t(blockIdx.x)*256+threadIdx.x;i<n;i+=int64_t(gridDim.x)*256) p[i]=i; }
template<class F> void time(const char* name, F f, float* y, int64_t rows){
  cudaEvent_t a,b; cudaEventCreate(&a); cudaEventCreate(&b); std::vector<float> t;
  for(int i=0;i<12;i++){ flush<<<1024,256>>>(junk,64<<20); cudaEventRecord(a); f(); cudaEventRecord(b); cudaEventSynchronize(b); float ms; cudaEventElapsedTime(&ms,a,b); t.push_back(ms);}
  std::sort(t.begin(),t.end()); std::vector<float> h(rows); cudaMemcpy(h.data(),y,rows*4,cudaMemcpyDeviceToHost);
  double s=0; for(float v:h) s+=v>0?v:-v; printf("  %-34s %.4f ms   check %.6g %s\n",name,t[6],s,cudaGetErrorString(cudaGetLastError()));
}
int main(){
  const int64_t rows=1<<20; cudaMalloc(&junk,256<<20); std::mt19937 g(1);
  for(int kind=2;kind<3;kind++){
    std::vector<int> len(rows),ptr(rows+1); std::poisson_distribution<int> P(32);
    for(int64_t r=0;r<rows;r++) len[r]= kind==0?32: kind==1?P(g): (int)std::min(1048576.0, 32/3.0*pow((r+.5)/rows,-1/1.5));
    if(kind==2) std::shuffle(len.begin(),len.end(),g);
    for(int64_t r=0;r<rows;r++) ptr[r+1]=ptr[r]+len[r];
    int64_t nnz=ptr[rows]; std::vector<int> col(nnz); std::vector<float> val(nnz),xs(rows);
    for(int64_t r=0;r<rows;r++){ for(int k=ptr[r];k<ptr[r+1];k++) col[k]=kind==0?(int)std::min<int64_t>(rows-1,std::max<int64_t>(0,r-16+k-ptr[r])):(int)(g()%rows); if(kind) std::sort(col.begin()+ptr[r],col.begin()+ptr[r+1]); }
    for(auto&v:val) v=(g()%1000)/1000.f-.5f; for(auto&v:xs) v=(g()%1000)/1000.f;
    int*dp,*dc;float*dv,*dx,*y;int64_t*tr; cudaMalloc(&tr,8<<20); cudaMalloc(&dp,ptr.size()*4);cudaMalloc(&dc,nnz*4);cudaMalloc(&dv,nnz*4);cudaMalloc(&dx,rows*4);cudaMalloc(&y,rows*4);
    cudaMemcpy(dp,ptr.data(),ptr.size()*4,cudaMemcpyHostToDevice);cudaMemcpy(dc,col.data(),nnz*4,cudaMemcpyHostToDevice);cudaMemcpy(dv,val.data(),nnz*4,cudaMemcpyHostToDevice);cudaMemcpy(dx,xs.data(),rows*4,cudaMemcpyHostToDevice);
    Csr<int> a{dp,dc,dv,rows,rows,nnz}; printf("%s nnz %ld\n",kind==0?"banded":kind==1?"uniform":"power law",(long)nnz);
    time("v3 128x7",[&]{ int64_t tiles=(rows+nnz+896-1)/896; cudaMemsetAsync(y,0,rows*4); m128_7::merge_v3_search_kernel<<<(tiles+128/32)/(128/32),128>>>(a,tiles,tr); m128_7::merge_v3_shared_kernel<<<tiles,128>>>(a,tr,dx,y); },y,rows);
    time("v3 128x8",[&]{ int64_t tiles=(rows+nnz+1024-1)/1024; cudaMemsetAsync(y,0,rows*4); m128_8::merge_v3_search_kernel<<<(tiles+128/32)/(128/32),128>>>(a,tiles,tr); m128_8::merge_v3_shared_kernel<<<tiles,128>>>(a,tr,dx,y); },y,rows);
    time("v3 256x7",[&]{ int64_t tiles=(rows+nnz+1792-1)/1792; cudaMemsetAsync(y,0,rows*4); m256_7::merge_v3_search_kernel<<<(tiles+256/32)/(256/32),256>>>(a,tiles,tr); m256_7::merge_v3_shared_kernel<<<tiles,256>>>(a,tr,dx,y); },y,rows);
    time("v3 256x8",[&]{ int64_t tiles=(rows+nnz+2048-1)/2048; cudaMemsetAsync(y,0,rows*4); m256_8::merge_v3_search_kernel<<<(tiles+256/32)/(256/32),256>>>(a,tiles,tr); m256_8::merge_v3_shared_kernel<<<tiles,256>>>(a,tr,dx,y); },y,rows);
    time("v3 128x9",[&]{ int64_t tiles=(rows+nnz+1152-1)/1152; cudaMemsetAsync(y,0,rows*4); m128_9::merge_v3_search_kernel<<<(tiles+128/32)/(128/32),128>>>(a,tiles,tr); m128_9::merge_v3_shared_kernel<<<tiles,128>>>(a,tr,dx,y); },y,rows);
    time("v3 128x11",[&]{ int64_t tiles=(rows+nnz+1408-1)/1408; cudaMemsetAsync(y,0,rows*4); m128_11::merge_v3_search_kernel<<<(tiles+128/32)/(128/32),128>>>(a,tiles,tr); m128_11::merge_v3_shared_kernel<<<tiles,128>>>(a,tr,dx,y); },y,rows);
    time("v3 64x7",[&]{ int64_t tiles=(rows+nnz+448-1)/448; cudaMemsetAsync(y,0,rows*4); m64_7::merge_v3_search_kernel<<<(tiles+64/32)/(64/32),64>>>(a,tiles,tr); m64_7::merge_v3_shared_kernel<<<tiles,64>>>(a,tr,dx,y); },y,rows);
    time("v3 256x11",[&]{ int64_t tiles=(rows+nnz+2816-1)/2816; cudaMemsetAsync(y,0,rows*4); m256_11::merge_v3_search_kernel<<<(tiles+256/32)/(256/32),256>>>(a,tiles,tr); m256_11::merge_v3_shared_kernel<<<tiles,256>>>(a,tr,dx,y); },y,rows);
    time("v2 128x7",[&]{ int64_t tiles=(rows+nnz+896-1)/896; cudaMemsetAsync(y,0,rows*4); m128_7::merge_v2_threads_kernel<<<tiles,128>>>(a,dx,y); },y,rows);
    time("search alone 256x8",[&]{ int64_t tiles=(rows+nnz+2047)/2048; cudaMemsetAsync(y,0,rows*4); m256_8::merge_v3_search_kernel<<<(tiles+8)/8,256>>>(a,tiles,tr); },y,rows);
    cudaFree(dp);cudaFree(dc);cudaFree(dv);cudaFree(dx);cudaFree(y);
  }
}

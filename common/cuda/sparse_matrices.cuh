// CSR, ELL and COO on the GPU: what they hold, and the sum of a row or of a warp's entries. Taught
// in day 36.
#pragma once

#include "common/cuda/sparse.cuh"
#include "common/cuda/warp_reduce.cuh"

template <typename Index>
struct Csr {
  const Index* row_ptr;  // (rows + 1,)
  const Index* col;      // (nnz,)
  const float* value;    // (nnz,)
  int64_t rows, cols, nnz;

  // The begin of row r, and end of r - 1. Within [0, nnz] for any row_ptr.
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

// The contribution of an entry to its row: 0 if its column does not exist.
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

// The sum of a segment's values up to the own lane. Bit l of heads is set if a segment begins in
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

constexpr int COO_PER_WARP = 256;  // entries: the loop below runs twice

// Add to y the entries [COO_PER_WARP · warp, COO_PER_WARP · (warp + 1)): one atomic for each row
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

// Tiles of 16-bit elements in shared memory, as tensor cores read them: the swizzle, asynchronous
// loads, and fragments. Taught in day 26.
//
// A tile has rows of D elements, D = 64 or 128, and begins at a multiple of 16 bytes. Row r keeps
// its 16-byte chunk c (elements [8c, 8c + 8)) in place c ^ (r % 8): the same chunk of 8 consecutive
// rows then lies in 8 different groups of 4 banks, and ldmatrix, which reads 8 such chunks at a
// time, has no bank conflicts.
//
// A warp calls the loads of fragments with all 32 lanes; g = lane / 4 and t = lane % 4 as in
// ptx/mma.cuh.
#pragma once

#include "common/cuda/ptx/cp_async.cuh"
#include "common/cuda/ptx/ldmatrix.cuh"
#include "common/cuda/ptx/mma.cuh"

#include <cstring>
#include <type_traits>

namespace tiles {

// 16-byte chunk: 8 elements, what cp.async copies and what one row of an 8×8 matrix is.
constexpr int CHUNK = 8;

// Index of the first element of chunk `chunk` of row `row`.
template <int D>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  static_assert(D % 64 == 0, "the XOR with row % 8 must stay within a row");
  return row * D + (chunk ^ row % 8) * CHUNK;
}

// Start the copy of rows [0, ROWS) of a matrix into `tile`, by all THREADS threads of the block;
// the caller commits and waits. Rows from `rows` on become zeros. stride: elements from row to row;
// it and the address of `from` must be multiples of 16 bytes.
template <int ROWS, int D, int THREADS, typename T>
__device__ __forceinline__ void load_async(T* tile, const T* from, int64_t stride, int rows) {
  // A thread keeps its column, and its row's remainder by 8: one offset serves all of its copies.
  constexpr int STEP = THREADS / (D / CHUNK);
  static_assert(STEP % 8 == 0 && ROWS % STEP == 0);
  const int first = threadIdx.x / (D / CHUNK), chunk = threadIdx.x % (D / CHUNK);
  T* to = tile + swizzled<D>(first, chunk);
  from += first * stride + chunk * CHUNK;
#pragma unroll
  for (int row = 0; row < ROWS; row += STEP) {
    ptx::cp_async_zero_fill<16>(to + row * D, from + row * stride, first + row < rows ? 16 : 0);
  }
}

// Fragment a (16×16) of rows [row, row + 16) and columns [col, col + 16) of the tile.
template <int D, typename T>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const T* tile, int row, int col) {
  const int lane = threadIdx.x % 32;
  ptx::ldmatrix_x4(a, tile + swizzled<D>(row + lane % 16, col / CHUNK + lane / 16));
}

// The same for the transposed tile: a[m][k] is element (k0 + k, m0 + m) of the tile.
template <int D, typename T>
__device__ __forceinline__ void load_a_transposed(uint32_t (&a)[4], const T* tile, int k0, int m0) {
  const int lane = threadIdx.x % 32;
  ptx::ldmatrix_x4_trans(
      a, tile + swizzled<D>(k0 + lane / 16 * 8 + lane % 8, m0 / CHUNK + lane / 8 % 2));
}

// Two fragments b (16×8 each), b[0] for n in [0, 8) and b[1] for n in [8, 16), of a tile whose rows
// are k: b[n / 8] holds element (k0 + k, n0 + n).
template <int D, typename T>
__device__ __forceinline__ void load_b(uint32_t (&b)[2][2], const T* tile, int k0, int n0) {
  const int lane = threadIdx.x % 32;
  uint32_t r[4];
  ptx::ldmatrix_x4_trans(r, tile + swizzled<D>(k0 + lane % 16, n0 / CHUNK + lane / 16));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

// Two fragments b of a tile whose rows are n: b[n / 8] holds element (n0 + n, k0 + k). This is the
// product with the transposed tile, such as q · kᵀ.
template <int D, typename T>
__device__ __forceinline__ void load_b_transposed(uint32_t (&b)[2][2], const T* tile, int n0,
                                                  int k0) {
  const int lane = threadIdx.x % 32;
  uint32_t r[4];
  ptx::ldmatrix_x4(r, tile + swizzled<D>(n0 + lane / 16 * 8 + lane % 8, k0 / CHUNK + lane / 8 % 2));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

// Two numbers as two elements of a register, `low` in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 both = __floats2half2_rn(low, high);
    memcpy(&word, &both, sizeof word);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    memcpy(&word, &both, sizeof word);
  }
  return word;
}

// Fragment a of the 16 columns of which c and next are the left and the right half: the result of a
// product becomes the first operand of the next, without shared memory.
template <typename T>
__device__ __forceinline__ void to_a(uint32_t (&a)[4], const float (&c)[4],
                                     const float (&next)[4]) {
  a[0] = pack<T>(c[0], c[1]);        // row g,     k 2t, 2t+1
  a[1] = pack<T>(c[2], c[3]);        // row g + 8, k 2t, 2t+1
  a[2] = pack<T>(next[0], next[1]);  // row g,     k 2t+8, 2t+9
  a[3] = pack<T>(next[2], next[3]);  // row g + 8, k 2t+8, 2t+9
}

// Maximum and sum over the 4 lanes that hold a row of a fragment c, returned to all of them.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

}  // namespace tiles

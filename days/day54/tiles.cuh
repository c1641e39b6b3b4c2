// Tiles of A and B in shared memory: how they are copied there, and how warps multiply them.
#pragma once

#include "days/day54/gemm.cuh"

// ---------------------------------------------------------------------------------------------
// A tile of C per block, WM × WN of it per warp. 64 × 64 sums are 128 registers per thread. Per 16
// values of k a warp loads 128 rows of 32 bytes from shared memory for 32 products of 16×8×16.

template <typename Element, bool B_BY_COLUMNS, int M, int N, int K, int COUNT>
struct Tile {
  using T = Element;
  static constexpr bool B_IS_NK = B_BY_COLUMNS;  // B is stored as (N, K)
  static constexpr int BM = M, BN = N, BK = K, STAGES = COUNT;
  static constexpr int WM = 64, WN = 64, WARPS_N = BN / WN;
  static constexpr int WARP_COLS = WN;   // from a warp's first column to the next warp's
  static constexpr int GROUP_COLS = 32;  // from a warp's first 32 columns to its next 32
  static constexpr int ROW_B = BN;       // elements per row of a stage's B, where it is (K, N)
  static constexpr int PIECES = 4;       // of 16 rows of A and 16 columns of B, per warp
  static constexpr int THREADS = 32 * (BM / WM) * WARPS_N;
  static constexpr int BLOCKS = THREADS <= 128 ? 2 : 1;            // per multiprocessor
  static constexpr int A_SIZE = BM * BK, SIZE = A_SIZE + BK * BN;  // elements of a stage
  static constexpr int BYTES = STAGES * SIZE * 2;
};

template <typename P>
using Sums = float[P::WM / 16][P::WN / 8][4];

// ---------------------------------------------------------------------------------------------
// Tiles in shared memory. ldmatrix reads 16-byte chunks of 8 consecutive rows at a time.

// Where a tile with rows of COLS elements keeps a row's chunk, in elements. Rows of 128 bytes and
// more: 8 rows use 8 places. Rows of 64 bytes: two of them fill the 32 banks, and 4 pairs use 4.
template <int COLS>
__device__ __forceinline__ int place(int row, int chunk) {
  static_assert(COLS == 32 || COLS % 64 == 0);
  const int swizzle = COLS == 32 ? row / 2 % 4 : row % 8;
  return row * COLS + (chunk ^ swizzle) * tiles::CHUNK;
}

// Copies tiles of ROWS × COLS elements, one after the other along k, with zeros beyond the matrix.
// ALONG_ROWS: k runs down the rows.
template <typename P, int ROWS, int COLS, bool ALONG_ROWS>
struct TileCopy {
  using T = typename P::T;
  static constexpr int CHUNKS = COLS / tiles::CHUNK, STEP = P::THREADS / CHUNKS;
  static constexpr int PASSES = ROWS / STEP;
  static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "all passes of a thread have one swizzle");

  const T* from;   // this thread's chunk in the first of its rows
  int64_t stride;  // elements from row to row
  int rows, cols;  // how many there are from that chunk on

  __device__ TileCopy(const T* matrix, int64_t ld, int all_rows, int all_cols, int row, int col)
      : stride(ld) {
    row += threadIdx.x / CHUNKS, col += threadIdx.x % CHUNKS * tiles::CHUNK;
    from = matrix + row * ld + col, rows = all_rows - row, cols = all_cols - col;
  }

  // Passes [begin, end). No branches, so that the compiler may put products between the copies.
  __device__ __forceinline__ void copy_async(T* tile, int begin, int end) const {
    T* to = tile + place<COLS>(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
    const int64_t pass = STEP * stride;
    const T* source = from + begin * pass;
    const int last = cols > 0 ? rows : 0;
#pragma unroll
    for (int i = begin; i < end; ++i, source += pass) {
      ptx::cp_async_zero_fill<16>(to + i * STEP * COLS, source, i * STEP < last ? 16 : 0);
    }
  }

  // From here on all is zeros.
  __device__ __forceinline__ void end() { rows = 0; }

  __device__ __forceinline__ void copy(T* tile) const {
    T* to = tile + place<COLS>(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      const bool there = i * STEP < rows && cols > 0;
      *reinterpret_cast<uint4*>(to + i * STEP * COLS) =
          there ? *reinterpret_cast<const uint4*>(from + i * STEP * stride) : uint4{};
    }
  }

  __device__ __forceinline__ void advance() {
    (ALONG_ROWS ? rows : cols) -= P::BK;
    from += ALONG_ROWS ? P::BK * stride : int64_t{P::BK};
  }
};

// Both tiles of a step. A stage holds A's, and behind it B's.
template <typename P>
struct StageCopy {
  using T = typename P::T;
  TileCopy<P, P::BM, P::BK, false> a;
  TileCopy<P, P::B_IS_NK ? P::BN : P::BK, P::B_IS_NK ? P::BK : P::BN, !P::B_IS_NK> b;

  __device__ StageCopy(const Gemm<T>& p, int m, int n, int k)
      : a(p.a, p.lda, p.M, p.K, m, k),
        b(p.b, p.ldb, P::B_IS_NK ? p.N : p.K, P::B_IS_NK ? p.K : p.N, P::B_IS_NK ? n : k,
          P::B_IS_NK ? k : n) {}

  __device__ __forceinline__ void copy(T* stage) const {
    a.copy(stage);
    b.copy(stage + P::A_SIZE);
  }

  // Part `part` of `parts` of the copies of a step.
  __device__ __forceinline__ void copy_async(T* stage, int part, int parts) const {
    a.copy_async(stage, a.PASSES * part / parts, a.PASSES * (part + 1) / parts);
    b.copy_async(stage + P::A_SIZE, b.PASSES * part / parts, b.PASSES * (part + 1) / parts);
  }

  __device__ __forceinline__ void advance() { a.advance(), b.advance(); }
  __device__ __forceinline__ void end() { a.end(), b.end(); }
};

// ---------------------------------------------------------------------------------------------
// A warp's operands for 16 values of k, and their products.

// The warp's first row and column within the block's tile.
template <typename P>
__device__ __forceinline__ int warp_row() {
  return threadIdx.x / 32 / P::WARPS_N * P::WM;
}
template <typename P>
__device__ __forceinline__ int warp_col() {
  return threadIdx.x / 32 % P::WARPS_N * P::WARP_COLS;
}

// Where this lane's rows for ldmatrix begin, in elements from the beginning of a stage. Two chunks
// further (16 elements) is an XOR, as the swizzle is one; 16 rows further keeps the swizzle.
template <typename P>
struct Places {
  int a, b;

  __device__ Places() {
    const int lane = threadIdx.x % 32, low = lane % 8, second = lane / 8 % 2, upper = lane / 16;
    a = place<P::BK>(warp_row<P>() + lane % 16, upper);
    b = P::A_SIZE + (P::B_IS_NK ? place<P::BK>(warp_col<P>() + 8 * upper + low, second)
                                : place<P::ROW_B>(lane % 16, warp_col<P>() / 8 + upper));
  }
};

template <typename P>
struct Fragments {
  uint32_t a[P::PIECES][4];     // 16 rows each
  uint32_t b[P::PIECES][2][2];  // 16 columns each, as two times 8

  // Piece i of a stage's; k: which 16 values.
  __device__ __forceinline__ void load_piece(const typename P::T* stage, const Places<P>& at, int k,
                                             int i) {
    uint32_t r[4];
    if constexpr (P::B_IS_NK) {
      ptx::ldmatrix_x4(r, stage + (at.b ^ 16 * k) + 16 * i * P::BK);
    } else {
      ptx::ldmatrix_x4_trans(r, stage + (at.b ^ 16 * i) + 16 * k * P::BN);
    }
    b[i][0][0] = r[0], b[i][0][1] = r[1], b[i][1][0] = r[2], b[i][1][1] = r[3];
    ptx::ldmatrix_x4(a[i], stage + (at.a ^ 16 * k) + 16 * i * P::BK);
  }

  __device__ __forceinline__ void load(const typename P::T* stage, const Places<P>& at, int k) {
#pragma unroll
    for (int i = 0; i < P::PIECES; ++i) load_piece(stage, at, k, i);
  }

  // The products of the 16 rows of piece i.
  __device__ __forceinline__ void multiply_piece(Sums<P>& sums, int i) const {
#pragma unroll
    for (int j = 0; j < P::WN / 8; ++j) {
      ptx::mma_m16n8k16<typename P::T>(sums[i][j], a[i], b[j / 2][j % 2], sums[i][j]);
    }
  }
};

// The products of `now`, and between them the loads of the `next` 16 values of k.
template <typename P>
__device__ __forceinline__ void multiply_and_load(Sums<P>& sums, const Fragments<P>& now,
                                                  Fragments<P>& next, const typename P::T* stage,
                                                  const Places<P>& at, int k) {
#pragma unroll
  for (int i = 0; i < P::PIECES; ++i) {
    next.load_piece(stage, at, k, i);
    now.multiply_piece(sums, i);
  }
}

template <typename P>
__device__ __forceinline__ void clear(Sums<P>& sums) {
#pragma unroll
  for (auto& row : sums) {
#pragma unroll
    for (auto& of : row) of[0] = of[1] = of[2] = of[3] = 0;
  }
}

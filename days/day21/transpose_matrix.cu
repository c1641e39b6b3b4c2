// Day 21: the transpose
//
//   y[c, r] = x[r, c]      x: (rows, cols), y: (cols, rows), both row-major, of any element type
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T); 2.1 GB for 16384² in fp32. No
// operations at all: the copy is the ceiling, and all that differs is who touches what when.
//
//   v1 naive            reads along rows, writes along columns: 32 bytes moved for 4 written
//   v2 shared           a tile through shared memory: rows on both sides, but 32-way bank conflicts
//   v3 padded           the tile's rows 33 elements apart: no conflicts
//   v4 vector_swizzle   16 bytes a load and a store, the tile swizzled: no conflicts, no padding
//   v5 streaming        stores marked as streaming, and in the order of y: memory is kept busy
//
// Run: python run_day.py 21

#include "common/cuda/pack.cuh"  // taught in day 2
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------------------------------------
// v1: a block takes a 32 × 32 tile, a warp a row of it. The reads coalesce; the writes of a warp go
// to 32 rows of y, each to a sector of 32 bytes of its own.

constexpr int SIDE = 32;       // of a tile, in elements: a row of it is a warp
constexpr int BLOCK_ROWS = 8;  // a block of 32 × 8 threads goes over its tile in four steps

// Tiles are numbered along the rows of x, and a block takes the tile of its own number. (A grid of
// two dimensions would do, were not the second limited to 65535 blocks.) The numbers have 32 bits,
// since a grid has fewer than 2^31 blocks; a division of 64 bits would take a hundred instructions.
struct Tile {
  int64_t row, col;  // of its first element in x
};
__device__ Tile tile_of_block(int64_t cols, int tile_rows, int tile_cols) {
  const unsigned in_row = static_cast<unsigned>(ceil_div<int64_t>(cols, tile_cols));
  return {int64_t{blockIdx.x / in_row} * tile_rows, int64_t{blockIdx.x % in_row} * tile_cols};
}

template <typename T>
__global__ void transpose_v1_naive_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                          int64_t cols) {
  const Tile tile = tile_of_block(cols, SIDE, SIDE);
  const int64_t col = tile.col + threadIdx.x;
#pragma unroll
  for (int i = threadIdx.y; i < SIDE; i += BLOCK_ROWS) {
    const int64_t row = tile.row + i;
    if (row < rows && col < cols) y[col * rows + row] = x[row * cols + col];
  }
}

// The number of blocks for tiles of that size.
unsigned grid_of(const Tensor& x, int tile_rows, int tile_cols) {
  const int64_t rows = x.size(0), cols = x.size(1);
  return grid_size(ceil_div<int64_t>(rows, tile_rows) * ceil_div<int64_t>(cols, tile_cols), "x");
}

// Checks x (rows, cols) of any type, and makes y (cols, rows).
Tensor make_output(const Tensor& x) {
  check(x, "x").on_gpu().rank(2).contiguous().dtype(
      {ScalarType::Byte, ScalarType::Char, ScalarType::Bool, ScalarType::Short, ScalarType::Half,
       ScalarType::BFloat16, ScalarType::Int, ScalarType::Float, ScalarType::Long,
       ScalarType::Double});
  return torch::stable::new_empty(x, {x.size(1), x.size(0)});
}

// Calls f with a value of an unsigned type as large as x's elements. What the bits mean is of no
// concern here, so four kernels serve all types.
template <typename F>
void dispatch_size(const Tensor& x, F&& f) {
  switch (x.element_size()) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

Tensor transpose_v1_naive(const Tensor& x) {
  Tensor y = make_output(x);
  if (x.numel() == 0) return y;  // a grid of no blocks is an error
  const DeviceGuard guard(x);
  const unsigned grid = grid_of(x, SIDE, SIDE);
  dispatch_size(x, [&](auto zero) {
    using T = decltype(zero);
    transpose_v1_naive_kernel<T><<<grid, dim3(SIDE, BLOCK_ROWS), 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), x.size(0), x.size(1));
  });
  check_launch("transpose_v1_naive");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the tile goes through shared memory. It is written there row by row and read
// column by column, so that a warp's 32 elements are neighbours in x and in y alike.

// PITCH: elements from one row of the tile in shared memory to the next.
template <typename T, int PITCH>
__device__ void through_tile(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                             int64_t cols) {
  __shared__ T shared[SIDE][PITCH];  // (row of x, column of x)
  const Tile tile = tile_of_block(cols, SIDE, SIDE);
  const int lane = threadIdx.x;

#pragma unroll
  for (int i = threadIdx.y; i < SIDE; i += BLOCK_ROWS) {
    const int64_t row = tile.row + i, col = tile.col + lane;
    if (row < rows && col < cols) shared[i][lane] = x[row * cols + col];
  }
  __syncthreads();  // all rows of the tile are written before anybody reads a column of it
#pragma unroll
  for (int i = threadIdx.y; i < SIDE; i += BLOCK_ROWS) {
    const int64_t row = tile.row + lane, col = tile.col + i;  // lanes along a column of x
    if (row < rows && col < cols) y[col * rows + row] = shared[lane][i];
  }
}

template <typename T>
__global__ void transpose_v2_shared_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                           int64_t cols) {
  through_tile<T, SIDE>(x, y, rows, cols);
}

Tensor transpose_v2_shared(const Tensor& x) {
  Tensor y = make_output(x);
  if (x.numel() == 0) return y;
  const DeviceGuard guard(x);
  const unsigned grid = grid_of(x, SIDE, SIDE);
  dispatch_size(x, [&](auto zero) {
    using T = decltype(zero);
    transpose_v2_shared_kernel<T><<<grid, dim3(SIDE, BLOCK_ROWS), 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), x.size(0), x.size(1));
  });
  check_launch("transpose_v2_shared");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one element of padding a row. Shared memory has 32 banks, and word w lies in bank
// w % 32. With rows 32 words apart a column lies in one bank, and 32 lanes wait for each other; 33
// words apart, it lies in all 32.

template <typename T>
__global__ void transpose_v3_padded_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                           int64_t cols) {
  through_tile<T, SIDE + 1>(x, y, rows, cols);
}

Tensor transpose_v3_padded(const Tensor& x) {
  Tensor y = make_output(x);
  if (x.numel() == 0) return y;
  const DeviceGuard guard(x);
  const unsigned grid = grid_of(x, SIDE, SIDE);
  dispatch_size(x, [&](auto zero) {
    using T = decltype(zero);
    transpose_v3_padded_kernel<T><<<grid, dim3(SIDE, BLOCK_ROWS), 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), x.size(0), x.size(1));
  });
  check_launch("transpose_v3_padded");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: packs of 16 bytes on both sides, four in flight a thread. A row of 33 floats would
// leave the packs of the next row at addresses that are no multiple of 16. So instead of moving the
// rows apart, v4 exchanges the packs within each row.

constexpr int BLOCK = 256;

// The tile in shared memory for elements of type T: 64 × 64 floats, 16 KB; 128 × 128 bytes; …
template <typename T>
struct Swizzled {
  static constexpr unsigned N = Pack<T>::N;                   // elements a pack
  static constexpr unsigned PACKS = sizeof(T) >= 4 ? 16 : 8;  // a row
  static constexpr unsigned WIDTH = PACKS * N;                // elements a row, and rows
  // Blocks on a multiprocessor: 8 are 2048 threads, for which the compiler may use 32 registers
  // each. Taking 16 bytes apart needs more.
  static constexpr unsigned BLOCKS = sizeof(T) > 1 ? 8 : 4;
  Pack<T> at[WIDTH][PACKS];

  // Where pack p of row r lies within its row. Rows [0, N) keep their order, rows [N, 2N) exchange
  // neighbours, and so on: eight groups of rows, eight orders.
  static __device__ unsigned place(unsigned r, unsigned p) { return p ^ (r / N % 8); }
};

// How many rows, or columns, of a tile that begins at `first` lie within the matrix's `size`.
template <typename T>
__device__ unsigned inside(int64_t first, int64_t size) {
  const int64_t left = size - first;
  return left < Swizzled<T>::WIDTH ? static_cast<unsigned>(left) : Swizzled<T>::WIDTH;
}

// The tile of x, into shared memory. Lanes lie along a row: 16 packs are 256 bytes. A thread's
// packs lie below each other, and all its loads are issued before it needs the first.
template <typename T>
__device__ void load_tile(Swizzled<T>& shared, const T* __restrict__ x, int64_t rows, int64_t cols,
                          Tile tile) {
  using S = Swizzled<T>;
  constexpr unsigned STEP = BLOCK / S::PACKS, EACH = S::WIDTH / STEP;
  const unsigned r = threadIdx.x / S::PACKS, p = threadIdx.x % S::PACKS;
  // Columns come in multiples of N, so no pack is half inside.
  const unsigned end = p * S::N < inside<T>(tile.col, cols) ? inside<T>(tile.row, rows) : 0;
  const T* from = x + (tile.row + r) * cols + tile.col + p * S::N;

  Pack<T> packs[EACH];
#pragma unroll
  for (unsigned k = 0; k < EACH; ++k) {
    if (r + k * STEP < end) packs[k] = *reinterpret_cast<const Pack<T>*>(from + k * STEP * cols);
  }
#pragma unroll
  for (unsigned k = 0; k < EACH; ++k) {
    shared.at[r + k * STEP][S::place(r + k * STEP, p)] = packs[k];
  }
}

// The tile, to y, by store(address, pack). A pack of y is N rows of x, and a thread reads them one
// by one. At step k the lanes of a warp read rows N · l + k, for 8 values of l, in 4 neighbouring
// columns. The 8 rows differ in r / N % 8, so their packs lie in 8 different places, of 4 banks
// each; the 4 columns are the words of a pack, if T has 4 bytes, or share words.
template <typename T, typename Store>
__device__ void store_tile(const Swizzled<T>& shared, T* __restrict__ y, int64_t rows, int64_t cols,
                           Tile tile, Store store) {
  using S = Swizzled<T>;
  constexpr unsigned STEP = BLOCK / 8;
  const unsigned l0 = threadIdx.x % 8, c0 = threadIdx.x / 8;  // pack of a row of y, and row of y
  const unsigned tall = inside<T>(tile.row, rows), wide = inside<T>(tile.col, cols);
  T* to = y + (tile.col + c0) * rows + tile.row + l0 * S::N;
#pragma unroll
  for (unsigned g = 0; g < S::PACKS; g += 8) {
#pragma unroll
    for (unsigned h = 0; h < S::WIDTH; h += STEP) {
      const unsigned l = l0 + g, c = c0 + h;
      Pack<T> out;
#pragma unroll
      for (unsigned k = 0; k < S::N; ++k) {
        const unsigned r = l * S::N + k;
        out.at[k] = shared.at[r][S::place(r, c / S::N)].at[c % S::N];
      }
      if (l * S::N < tall && c < wide) {
        store(reinterpret_cast<Pack<T>*>(to + h * rows + g * S::N), out);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK, Swizzled<T>::BLOCKS)
    transpose_v4_vector_swizzle_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                       int64_t cols) {
  __shared__ Swizzled<T> shared;
  const Tile tile = tile_of_block(cols, shared.WIDTH, shared.WIDTH);
  load_tile(shared, x, rows, cols, tile);
  __syncthreads();  // all rows of the tile are written before anybody reads a column of it
  store_tile(shared, y, rows, cols, tile, [](Pack<T>* to, const Pack<T>& pack) { *to = pack; });
}

// Whether all rows of x and of y consist of whole packs.
bool is_in_packs(const Tensor& x) {
  const int64_t in_pack = 16 / x.element_size();
  return x.size(0) % in_pack == 0 && x.size(1) % in_pack == 0 && is_aligned(x, 16);
}

Tensor transpose_v4_vector_swizzle(const Tensor& x) {
  Tensor y = make_output(x);
  if (x.numel() == 0) return y;
  if (!is_in_packs(x)) return transpose_v3_padded(x);
  const DeviceGuard guard(x);
  dispatch_size(x, [&](auto zero) {
    using T = decltype(zero);
    const unsigned grid = grid_of(x, Swizzled<T>::WIDTH, Swizzled<T>::WIDTH);
    transpose_v4_vector_swizzle_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), x.size(0), x.size(1));
  });
  check_launch("transpose_v4_vector_swizzle");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: for the sake of the stores. Neighbouring blocks take tiles below each other in x,
// which lie side by side in y, so that what is written at one time is one piece of memory. And the
// stores are marked as streaming: nobody reads y soon, so the L2 cache writes its lines back first
// instead of keeping them.

template <typename T>
__global__ void __launch_bounds__(BLOCK, Swizzled<T>::BLOCKS)
    transpose_v5_streaming_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                  int64_t cols) {
  __shared__ Swizzled<T> shared;
  const unsigned in_col = static_cast<unsigned>(ceil_div<int64_t>(rows, shared.WIDTH));
  const Tile tile{int64_t{blockIdx.x % in_col} * shared.WIDTH,
                  int64_t{blockIdx.x / in_col} * shared.WIDTH};
  load_tile(shared, x, rows, cols, tile);
  __syncthreads();  // all rows of the tile are written before anybody reads a column of it
  store_tile(shared, y, rows, cols, tile, [](Pack<T>* to, const Pack<T>& pack) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
  });
}

Tensor transpose_v5_streaming(const Tensor& x) {
  Tensor y = make_output(x);
  if (x.numel() == 0) return y;
  if (!is_in_packs(x)) return transpose_v3_padded(x);
  const DeviceGuard guard(x);
  dispatch_size(x, [&](auto zero) {
    using T = decltype(zero);
    const unsigned grid = grid_of(x, Swizzled<T>::WIDTH, Swizzled<T>::WIDTH);
    transpose_v5_streaming_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), x.size(0), x.size(1));
  });
  check_launch("transpose_v5_streaming");
  return y;
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day21, m) {
  m.def("transpose_v1_naive(Tensor x) -> Tensor");
  m.def("transpose_v2_shared(Tensor x) -> Tensor");
  m.def("transpose_v3_padded(Tensor x) -> Tensor");
  m.def("transpose_v4_vector_swizzle(Tensor x) -> Tensor");
  m.def("transpose_v5_streaming(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day21, CUDA, m) {
  m.impl("transpose_v1_naive", TORCH_BOX(&transpose_v1_naive));
  m.impl("transpose_v2_shared", TORCH_BOX(&transpose_v2_shared));
  m.impl("transpose_v3_padded", TORCH_BOX(&transpose_v3_padded));
  m.impl("transpose_v4_vector_swizzle", TORCH_BOX(&transpose_v4_vector_swizzle));
  m.impl("transpose_v5_streaming", TORCH_BOX(&transpose_v5_streaming));
}

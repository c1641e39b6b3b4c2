// Day 21: the transpose
//
//   y[c, r] = x[r, c]      x: (rows, cols), y: (cols, rows), both row-major, of any element type
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T); 2.1 GB for 16384² in fp32. The
// kernel computes nothing, so the rate of a copy is the ceiling.
//
//   v1 naive            coalesced reads, scattered writes: a sector of 32 bytes for 4 bytes
//   v2 shared           a tile in shared memory: coalesced on both sides, 32-way bank conflicts
//   v3 padded           rows of the tile 33 elements apart: no bank conflicts
//   v4 vector_swizzle   16 bytes per load and store, a swizzled tile: no conflicts, no padding
//   v5 streaming        streaming stores, and blocks numbered in the order of y
//
// Run: python run_day.py 21

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------------------------------------
// v1: one 32 × 32 tile per block, one row of it per warp and step. The reads are coalesced. The 32
// writes of a warp go to 32 rows of y, each to a different sector.

constexpr int SIDE = 32;       // side of a tile, in elements: one lane per column
constexpr int BLOCK_ROWS = 8;  // a block of 32 × 8 threads covers its tile in four steps

// Tiles are numbered along the rows of x, and block b takes tile b. A 2D grid would be simpler, but
// its y dimension is limited to 65535 blocks. A grid has fewer than 2^31 blocks, so 32-bit numbers
// suffice; they spare the long instruction sequence of a 64-bit division.
struct Tile {
  int64_t row, col;  // position of its first element in x
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

// The number of blocks, one per tile.
unsigned grid_of(const Tensor& x, int tile_rows, int tile_cols) {
  const int64_t rows = x.size(0), cols = x.size(1);
  return grid_size(ceil_div<int64_t>(rows, tile_rows) * ceil_div<int64_t>(cols, tile_cols), "x");
}

// Checks x (rows, cols) of any type and allocates y (cols, rows).
Tensor make_output(const Tensor& x) {
  check(x, "x").on_gpu().rank(2).contiguous().dtype(
      {ScalarType::Byte, ScalarType::Char, ScalarType::Bool, ScalarType::Short, ScalarType::Half,
       ScalarType::BFloat16, ScalarType::Int, ScalarType::Float, ScalarType::Long,
       ScalarType::Double});
  return allocate(x, {x.size(1), x.size(0)});
}

// Calls f with a value of an unsigned type as large as x's elements. A transpose does not interpret
// its elements, so four instantiations serve all types.
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
// v2 against v1: the tile goes through shared memory. It is written by rows and read by columns, so
// the 32 elements of a warp are neighbours both in x and in y.

// PITCH: distance between rows of the tile in shared memory, in elements.
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
  __syncthreads();  // all rows of the tile are written before any thread reads a column of it
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
// v3 against v2: one element of padding per row. Shared memory has 32 banks, and word w lies in
// bank w % 32. With rows 32 words apart, a column lies in a single bank and the access of a warp is
// serialised into 32; with rows 33 words apart, it lies in 32 different banks.

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
// v4 against v3: packs of 16 bytes on both sides, four loads in flight per thread. Rows of 33
// floats would misalign the packs of the next row. So v4 leaves the rows where they are and
// permutes the packs within each row: a swizzle.

constexpr int BLOCK = 256;

// The threads of a multiprocessor, by compute capability.
#if __CUDA_ARCH__ == 750
constexpr unsigned RESIDENT = 1024;
#elif (__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1100
constexpr unsigned RESIDENT = 1536;
#else  // 8.0, 9.0, 10.0
constexpr unsigned RESIDENT = 2048;
#endif

// The tile in shared memory for elements of type T: 64 × 64 floats, 16 KB; 128 × 128 bytes; …
template <typename T>
struct Swizzled {
  static constexpr unsigned N = Pack<T>::N;                   // elements per pack
  static constexpr unsigned PACKS = sizeof(T) >= 4 ? 16 : 8;  // packs per row
  static constexpr unsigned WIDTH = PACKS * N;                // elements per row; also rows
  // Blocks per multiprocessor for __launch_bounds__. On compute capability 9.0, 8 blocks are all
  // 2048 threads, with 32 registers each. One-byte elements need more registers to unpack.
  static constexpr unsigned BLOCKS = sizeof(T) > 1 ? RESIDENT / BLOCK : 4;
  Pack<T> at[WIDTH][PACKS];

  // The place of pack p within row r. Rows [0, N) keep their order, rows [N, 2N) swap neighbouring
  // packs, and so on: eight groups of rows, eight permutations.
  static __device__ unsigned place(unsigned r, unsigned p) { return p ^ (r / N % 8); }
};

// The number of rows (or columns) of a tile starting at `first` that lie within the matrix's
// `size`.
template <typename T>
__device__ unsigned inside(int64_t first, int64_t size) {
  return static_cast<unsigned>(min(size - first, int64_t{Swizzled<T>::WIDTH}));
}

// Copies a tile of x into shared memory. PACKS neighbouring lanes read one row of it. Each thread
// issues all its loads, one per STEP rows, before it uses the first.
template <typename T>
__device__ void load_tile(Swizzled<T>& shared, const T* __restrict__ x, int64_t rows, int64_t cols,
                          Tile tile) {
  using S = Swizzled<T>;
  constexpr unsigned STEP = BLOCK / S::PACKS, EACH = S::WIDTH / STEP;
  const unsigned r = threadIdx.x / S::PACKS, p = threadIdx.x % S::PACKS;
  // cols is a multiple of N, so each pack lies wholly inside or wholly outside.
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

// Copies the tile to y with store(address, pack). A pack of y holds elements of N rows of x, which
// a thread reads one by one. At step k the lanes of a warp read rows N · l + k, for 8 values of l,
// in 4 neighbouring columns. The 8 rows differ in r / N % 8, so their packs lie in 8 different
// places of 4 banks each. For a 4-byte T the 4 columns are the 4 words of a pack.
template <typename T, typename Store>
__device__ void store_tile(const Swizzled<T>& shared, T* __restrict__ y, int64_t rows, int64_t cols,
                           Tile tile, Store store) {
  using S = Swizzled<T>;
  constexpr unsigned STEP = BLOCK / 8;
  const unsigned l0 = threadIdx.x % 8, c0 = threadIdx.x / 8;  // pack within a row of y; row of y
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
  __syncthreads();  // all rows of the tile are written before any thread reads a column of it
  store_tile(shared, y, rows, cols, tile, [](Pack<T>* to, const Pack<T>& pack) { *to = pack; });
}

// Whether all rows of x and y consist of whole, aligned packs.
bool is_in_packs(const Tensor& x) {
  const int64_t in_pack = 16 / x.element_size();
  return x.size(0) % in_pack == 0 && x.size(1) % in_pack == 0 && is_aligned(x, 16);
}

Tensor not_in_packs(const Tensor& x) {
  fell_back("transpose_v3_padded", "rows of x or y that are not in packs of 16 bytes");
  return transpose_v3_padded(x);
}

Tensor transpose_v4_vector_swizzle(const Tensor& x) {
  Tensor y = make_output(x);
  if (x.numel() == 0) return y;
  if (!is_in_packs(x)) return not_in_packs(x);
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
// v5 against v4: two changes to the stores. Blocks are numbered along the columns of x, so blocks
// that run at the same time write neighbouring tiles of a row of y. And the stores carry the
// streaming hint: y is not read again, so the L2 cache evicts its lines first.

template <typename T>
__global__ void __launch_bounds__(BLOCK, Swizzled<T>::BLOCKS)
    transpose_v5_streaming_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                  int64_t cols) {
  __shared__ Swizzled<T> shared;
  const unsigned in_col = static_cast<unsigned>(ceil_div<int64_t>(rows, shared.WIDTH));
  const Tile tile{int64_t{blockIdx.x % in_col} * shared.WIDTH,
                  int64_t{blockIdx.x / in_col} * shared.WIDTH};
  load_tile(shared, x, rows, cols, tile);
  __syncthreads();  // all rows of the tile are written before any thread reads a column of it
  store_tile(shared, y, rows, cols, tile, [](Pack<T>* to, const Pack<T>& pack) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
  });
}

Tensor transpose_v5_streaming(const Tensor& x) {
  Tensor y = make_output(x);
  if (x.numel() == 0) return y;
  if (!is_in_packs(x)) return not_in_packs(x);
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

RUNG(day21, transpose_v1_naive, "(Tensor x) -> Tensor");
RUNG(day21, transpose_v2_shared, "(Tensor x) -> Tensor");
RUNG(day21, transpose_v3_padded, "(Tensor x) -> Tensor");
RUNG(day21, transpose_v4_vector_swizzle, "(Tensor x) -> Tensor");
RUNG(day21, transpose_v5_streaming, "(Tensor x) -> Tensor");

// Day 55: a transpose between two copies of the tensor memory accelerator
//
//   y[c, r] = x[r, c]      x: (rows, cols), y: (cols, rows) in fp32, fp16 or bf16
//
// TMA brings a tile to shared memory, the threads transpose it there in place, and TMA stores it.
// No thread computes an address in global memory. Bytes: 2 · rows · cols · sizeof(T).
//
//   v1 tensor     one tile per block, in rows of 128 bytes: 8-way bank conflicts
//   v2 swizzle    the same kernel; the tensor maps permute the tile by the swizzle of 128 bytes
//   v3 pipeline   two tiles or more per block, through a ring
//
// Run: python run_day.py 55

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/matrix_map.cuh"       // new here
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/ptx.cuh"              // mbarriers: day 35; tensor copies: new here
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12

using ptx::Swizzle;
using ptx::TensorMap;

constexpr int SPAN = 128;       // bytes of a box's row: as many as the largest swizzle spans
constexpr int BOXES = 2;        // side by side in a tile
constexpr int EACH = 4;         // packs of 16 bytes per thread: 16 registers
constexpr int PER_BLOCK = 2;    // tiles that a block of v3 transposes at least
constexpr int WAVES = 128;      // of resident blocks at most: beyond, blocks get more tiles
constexpr int RING = 96 << 10;  // bytes of a block's ring of tiles, so two blocks per SM

// A square tile: BOXES boxes, one after the other in shared memory. 64 x 64 in fp32, 16 KB; 128 x
// 128 in 16-bit types, 32 KB.
template <typename T>
struct Tile {
  static constexpr int N = Pack<T>::N;            // elements per 16 bytes
  static constexpr int WIDTH = SPAN / sizeof(T);  // columns of a box
  static constexpr int SIDE = BOXES * WIDTH;
  static constexpr int BYTES = SIDE * SIDE * sizeof(T);
  static constexpr int THREADS = SIDE * SIDE / (EACH * N);  // 256 in fp32, 512 in 16-bit types
  static constexpr int STAGES = RING / BYTES;

  // Where element (r, c) lies, in bytes from the tile's begin. The swizzle permutes groups of 8
  // rows, all in the same way.
  template <Swizzle SWIZZLE>
  static __device__ unsigned place(unsigned r, unsigned c) {
    const unsigned in_group =
        ptx::swizzled(SWIZZLE, r % 8 * SPAN + c % WIDTH * unsigned{sizeof(T)});
    return (c / WIDTH * SIDE + r / 8 * 8) * SPAN + in_group;
  }
};

// ---------------------------------------------------------------------------------------------
// v1: one tile per block. The lanes of a warp read 32 neighbours of a row; each thread collects N
// elements of a column, which are 16 bytes of a row of the result.

// Transposes a tile in place, by all threads of the block. Thread i takes the packs i, i + THREADS
// … of the result: pack p is made of column p % SIDE and the N rows from p / SIDE · N on.
template <typename T, Swizzle SWIZZLE>
__device__ void transpose_tile(char* tile) {
  using S = Tile<T>;
  Pack<T> packs[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const unsigned p = threadIdx.x + k * S::THREADS, col = p % S::SIDE, row = p / S::SIDE * S::N;
#pragma unroll
    for (int i = 0; i < S::N; ++i) {
      const unsigned at = S::template place<SWIZZLE>(row + i, col);
      packs[k].at[i] = *reinterpret_cast<const T*>(tile + at);
    }
  }
  __syncthreads();  // every element is in a register before any is overwritten
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const unsigned p = threadIdx.x + k * S::THREADS, col = p % S::SIDE, row = p / S::SIDE * S::N;
    *reinterpret_cast<Pack<T>*>(tile + S::template place<SWIZZLE>(col, row)) = packs[k];
  }
}

// Starts to load the tile whose first element is x[row, col]; called by one thread.
template <typename T>
__device__ void load_tile(char* tile, const TensorMap& x, int row, int col, uint64_t* full) {
  using S = Tile<T>;
  ptx::mbarrier_arrive_expect_bytes(full, S::BYTES);
  for (int b = 0; b < BOXES; ++b) {
    ptx::load_tensor(tile + b * S::SIDE * SPAN, x, {col + b * S::WIDTH, row}, full);
  }
}

// Starts to store the tile whose first element is y[row, col], as one bulk group.
template <typename T>
__device__ void store_tile(const TensorMap& y, int row, int col, const char* tile) {
  using S = Tile<T>;
  for (int b = 0; b < BOXES; ++b) {
    ptx::store_tensor(y, {col + b * S::WIDTH, row}, tile + b * S::SIDE * SPAN);
  }
  ptx::bulk_commit();
}

// The first row and column of tile i of x. Tiles are numbered down the columns of x, so those of
// neighbouring blocks are neighbours in a row of y.
struct Corner {
  int row, col;
};
__device__ inline Corner corner_of(int64_t i, int in_col, int side) {
  return {static_cast<int>(i % in_col) * side, static_cast<int>(i / in_col) * side};
}

template <typename T, Swizzle SWIZZLE>
__global__ void __launch_bounds__(Tile<T>::THREADS)
    transpose_tile_kernel(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y,
                          int in_col) {
#ifdef HAS_TMA
  __shared__ uint64_t full;
  char* const tile = tile_memory();
  const Corner at = corner_of(blockIdx.x, in_col, Tile<T>::SIDE);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);
    ptx::fence_mbarrier_init();
    load_tile<T>(tile, x, at.row, at.col, &full);
  }
  __syncthreads();               // the other threads may use the mbarrier
  ptx::mbarrier_wait(&full, 0);  // the tile has come
  transpose_tile<T, SWIZZLE>(tile);
  ptx::fence_proxy_async();  // what this thread wrote, before TMA reads it …
  __syncthreads();           // … and what all others wrote
  if (threadIdx.x == 0) {
    store_tile<T>(y, at.col, at.row, tile);
    ptx::bulk_wait_read<0>();  // the block's memory may go
  }
#endif
}

// The work of a launch: maps, and tiles down the columns and in all.
struct Work {
  TensorMap from, to;
  int in_col;
  int64_t tiles;
};

// Checks x, which may be a view, makes y, and calls launch(zero, work) with a value of the C++ type
// of x's dtype.
template <Swizzle SWIZZLE, typename F>
Tensor transpose(const Tensor& x, const char* name, F&& launch) {
  check(x, "x").on_gpu().floating().rank(2);
  const int64_t rows = x.size(0), cols = x.size(1), in_16_bytes = 16 / x.element_size();
  STD_TORCH_CHECK(rows % in_16_bytes == 0 && cols % in_16_bytes == 0, "x: its shape is ",
                  shape_of(x), "; for TMA, rows of x and of y need a multiple of ", in_16_bytes,
                  " elements");
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {cols, rows});
  if (x.numel() == 0) return y;
  require_tma();
  dispatch_floating(x, [&](auto zero) {
    using S = Tile<decltype(zero)>;
    const int64_t in_col = ceil_div<int64_t>(rows, S::SIDE);
    launch(zero, Work{matrix_map<decltype(zero)>(x, "x", S::SIDE, S::WIDTH, SWIZZLE),
                      matrix_map<decltype(zero)>(y, "y", S::SIDE, S::WIDTH, SWIZZLE),
                      static_cast<int>(in_col), in_col * ceil_div<int64_t>(cols, S::SIDE)});
  });
  check_launch(name);
  return y;
}

template <Swizzle SWIZZLE>
Tensor transpose_by_tiles(const Tensor& x, const char* name) {
  return transpose<SWIZZLE>(x, name, [&](auto zero, const Work& work) {
    using T = decltype(zero);
    constexpr size_t BYTES = Tile<T>::BYTES + TILE_ALIGNMENT;
    transpose_tile_kernel<T, SWIZZLE>
        <<<grid_size(work.tiles, "x"), Tile<T>::THREADS, BYTES, current_stream(x)>>>(
            work.from, work.to, work.in_col);
  });
}

Tensor transpose_v1_tensor(const Tensor& x) {
  return transpose_by_tiles<Swizzle::kNone>(x, "transpose_v1_tensor");
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: in row r of a box, the 16-byte pack p lies in place p ^ r % 8. TMA permutes what
// it loads, and undoes the permutation of what it stores. Eight lanes that write pack p of eight
// neighbouring rows then reach eight different groups of four banks.

Tensor transpose_v2_swizzle(const Tensor& x) {
  return transpose_by_tiles<Swizzle::k128>(x, "transpose_v2_swizzle");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the ring of copy_v2 (tma.cu). While the threads transpose a tile, the next ones
// are loaded and the one before is stored.

template <typename T>
__global__ void __launch_bounds__(Tile<T>::THREADS, 2)
    transpose_v3_pipeline_kernel(const __grid_constant__ TensorMap x,
                                 const __grid_constant__ TensorMap y, int in_col, int64_t tiles) {
#ifdef HAS_TMA
  using S = Tile<T>;
  __shared__ uint64_t full[S::STAGES];
  char* const ring = tile_memory();
  const int64_t count = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const auto stage = [&](int64_t k) { return ring + k % S::STAGES * S::BYTES; };
  const auto corner = [&](int64_t k) {
    return corner_of(blockIdx.x + k * gridDim.x, in_col, S::SIDE);
  };
  const auto load = [&](int64_t k) {
    if (k < count) load_tile<T>(stage(k), x, corner(k).row, corner(k).col, &full[k % S::STAGES]);
  };

  if (threadIdx.x == 0) {
    for (uint64_t& barrier : full) ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
    for (int64_t k = 0; k < S::STAGES - 1; ++k) load(k);
  }
  __syncthreads();  // the other threads may use the mbarriers
  for (int64_t k = 0; k < count; ++k) {
    ptx::mbarrier_wait(&full[k % S::STAGES], static_cast<int>(k / S::STAGES % 2));
    transpose_tile<T, Swizzle::k128>(stage(k));
    ptx::fence_proxy_async();
    __syncthreads();  // thread 0 waits for all parts of the transposed tile
    if (threadIdx.x == 0) {
      store_tile<T>(y, corner(k).col, corner(k).row, stage(k));
      ptx::bulk_wait_read<1>();  // the store of tile k - 1 has read its stage
      load(k + S::STAGES - 1);
    }
  }
  if (threadIdx.x == 0) ptx::bulk_wait_read<0>();
#endif
}

Tensor transpose_v3_pipeline(const Tensor& x) {
  return transpose<Swizzle::k128>(x, "transpose_v3_pipeline", [&](auto zero, const Work& work) {
    constexpr size_t BYTES = RING + TILE_ALIGNMENT;
    constexpr int THREADS = Tile<decltype(zero)>::THREADS;
    const auto kernel = transpose_v3_pipeline_kernel<decltype(zero)>;
    require_shared_memory(BYTES, "96 KB of tiles");
    allow_shared(kernel, BYTES);
    const int64_t resident = resident_grid(x, kernel, THREADS, BYTES, work.tiles);
    const unsigned grid =
        grid_size(std::clamp(work.tiles / PER_BLOCK, resident, WAVES * resident), "x");
    kernel<<<grid, THREADS, BYTES, current_stream(x)>>>(work.from, work.to, work.in_col,
                                                        work.tiles);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day55, transpose_v1_tensor, "(Tensor x) -> Tensor");
RUNG(day55, transpose_v2_swizzle, "(Tensor x) -> Tensor");
RUNG(day55, transpose_v3_pipeline, "(Tensor x) -> Tensor");

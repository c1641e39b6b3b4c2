// Day 22: tricks of shared memory
//
//   y[r, c] = d · y[r, c - 1] + (1 - d) · x[r, c],  y[r, -1] = 0       x, y: (rows, cols)
//
// The running average with decay d in [0, 1]. Each element depends on the one before it, so one
// thread computes a row from left to right; but only a warp that accesses 32 neighbours of a row is
// coalesced. A tile in shared memory serves both: loaded and stored by rows, computed by columns.
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T), 2.1 GB for 1048576 × 256 in fp32.
// 3 operations and 4 accesses to shared memory per element: fill, read, write back, drain.
//
//   v0 no_tile      one thread per row, in global memory
//   v1 conflict     a tile of 32 columns: 32 lanes in one bank
//   v2 padded       rows of the tile 33 words apart: no conflicts
//   v3 swizzled     columns of the tile permuted by XOR: no conflicts, no padding
//   v4 large_tile   a tile of 64 KB: 128 columns, 16 bytes per access, swizzled packs
//   v5 prefetch     the loads of the next sub-tile are in flight while this one is computed
//
// Run: python run_day.py 22

#include "common/cuda/binding.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------------------------------------
// v0: the obvious version. At each step the lanes of a warp access 32 rows, `cols` elements apart.

constexpr int ROWS = 128;  // rows per block, one thread each

// The weights of the average so far and of the next value: d and 1 - d. The host subtracts in
// double precision, because 1.0f - 0.9f is off by 3 ulp.
struct Decay {
  float keep, add;
};

__device__ float decayed(float average, Decay decay, float value) {
  return decay.keep * average + decay.add * value;
}

template <typename T>
__global__ void ema_v0_no_tile_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                      int64_t cols, Decay decay) {
  const int64_t row = int64_t{blockIdx.x} * ROWS + threadIdx.x;
  if (row >= rows) return;
  float average = 0;
  for (int64_t c = 0; c < cols; ++c) {
    average = decayed(average, decay, static_cast<float>(x[row * cols + c]));
    y[row * cols + c] = static_cast<T>(average);
  }
}

// Checks the arguments and returns the two weights.
Decay check_arguments(const Tensor& x, double decay) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  STD_TORCH_CHECK(decay >= 0 && decay <= 1, "decay: expected 0 to 1, got ", decay);  // nor NaN
  return {static_cast<float>(decay), static_cast<float>(1 - decay)};
}

// Blocks for all rows of x, with `rows` rows each.
unsigned blocks_of(const Tensor& x, int rows) {
  return grid_size(ceil_div<int64_t>(x.size(0), rows), "x");
}

Tensor ema_v0_no_tile(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  return output_like(x, "ema_v0_no_tile", [&](auto zero, auto* y) {
    using T = decltype(zero);
    ema_v0_no_tile_kernel<T><<<blocks_of(x, ROWS), ROWS, 0, current_stream(x)>>>(
        data<T>(x), y, x.size(0), x.size(1), by_value);
  });
}

// ---------------------------------------------------------------------------------------------
// v1 against v0: a block processes its 128 rows in sub-tiles of 32 columns. Its warps load rows, 32
// neighbours at a time; each thread then replaces the values of its own row by averages; then the
// warps store rows. A thread carries the average so far from one sub-tile to the next in a
// register.

constexpr int COLS = 32;  // columns per sub-tile, one lane each
constexpr int WARPS = ROWS / 32;
// Minimum of resident blocks per multiprocessor. Without this bound the compiler uses up to 142
// registers per thread, and the registers of compute capability 9.0 suffice for three blocks only.
constexpr int BLOCKS = 8;

// The layout of a tile in shared memory: PITCH words per row, and the place of an element.
struct Conflict {
  static constexpr int PITCH = COLS;
  static __device__ int place(int row, int col) { return row * PITCH + col; }
};

template <typename T, typename Layout>
__device__ void ema_through_tile(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                 int64_t cols, Decay decay) {
  __shared__ float tile[ROWS * Layout::PITCH];  // (row, column), as Layout places them
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row0 = int64_t{blockIdx.x} * ROWS;

  float average = 0;  // of this thread's row, up to the end of the previous sub-tile
  for (int64_t c0 = 0; c0 < cols; c0 += COLS) {
    const int64_t col = c0 + lane;
#pragma unroll 16
    for (int r = warp; r < ROWS; r += WARPS) {  // 32 rows per warp
      const bool inside = row0 + r < rows && col < cols;
      const float value = inside ? static_cast<float>(x[(row0 + r) * cols + col]) : 0.0f;
      tile[Layout::place(r, lane)] = value;
    }
    __syncthreads();  // all rows are loaded before any thread reads its own

    // At every step the lanes of a warp access a column of the tile: lane l is at (row l, column
    // c).
#pragma unroll 8
    for (int c = 0; c < COLS; ++c) {
      float& at = tile[Layout::place(threadIdx.x, c)];
      average = decayed(average, decay, at);
      at = average;
    }
    __syncthreads();  // all averages are written before any warp stores them

#pragma unroll 16
    for (int r = warp; r < ROWS; r += WARPS) {
      const bool inside = row0 + r < rows && col < cols;
      const float value = tile[Layout::place(r, lane)];
      if (inside) y[(row0 + r) * cols + col] = static_cast<T>(value);
    }
    // No barrier here: the thread that has just read an element of the tile also refills it.
  }
}

template <typename T>
__global__ void __launch_bounds__(ROWS, BLOCKS)
    ema_v1_conflict_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t cols,
                           Decay decay) {
  ema_through_tile<T, Conflict>(x, y, rows, cols, decay);
}

Tensor ema_v1_conflict(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  return output_like(x, "ema_v1_conflict", [&](auto zero, auto* y) {
    using T = decltype(zero);
    ema_v1_conflict_kernel<T><<<blocks_of(x, ROWS), ROWS, 0, current_stream(x)>>>(
        data<T>(x), y, x.size(0), x.size(1), by_value);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one word of padding per row. Lane l accesses word 33 · l + c, which is in bank
// (l + c) % 32: 32 different banks.

struct Padded {
  static constexpr int PITCH = COLS + 1;
  static __device__ int place(int row, int col) { return row * PITCH + col; }
};

template <typename T>
__global__ void __launch_bounds__(ROWS, BLOCKS)
    ema_v2_padded_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t cols,
                         Decay decay) {
  ema_through_tile<T, Padded>(x, y, rows, cols, decay);
}

Tensor ema_v2_padded(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  return output_like(x, "ema_v2_padded", [&](auto zero, auto* y) {
    using T = decltype(zero);
    ema_v2_padded_kernel<T><<<blocks_of(x, ROWS), ROWS, 0, current_stream(x)>>>(
        data<T>(x), y, x.size(0), x.size(1), by_value);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: no padding; column c of row r lies at place c ^ (r % 32) of its row. For a fixed r
// that is a permutation of [0, 32), so rows are free of conflicts; the same holds for a fixed c.

struct Swizzled {
  static constexpr int PITCH = COLS;
  static __device__ int place(int row, int col) { return row * PITCH + (col ^ (row % 32)); }
};

template <typename T>
__global__ void __launch_bounds__(ROWS, BLOCKS)
    ema_v3_swizzled_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t cols,
                           Decay decay) {
  ema_through_tile<T, Swizzled>(x, y, rows, cols, decay);
}

Tensor ema_v3_swizzled(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  return output_like(x, "ema_v3_swizzled", [&](auto zero, auto* y) {
    using T = decltype(zero);
    ema_v3_swizzled_kernel<T><<<blocks_of(x, ROWS), ROWS, 0, current_stream(x)>>>(
        data<T>(x), y, x.size(0), x.size(1), by_value);
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: packs of four columns, and sub-tiles of 128 columns, 64 KB. A quarter of the
// accesses, each four times as wide, and a quarter of the barriers. An access of 16 bytes per lane
// is served in four parts of 8 lanes, so 8 neighbouring rows need their pack at 8 different places:
// pack p of row r lies at place p ^ (r % 8).

constexpr int PACKS = 32;                                  // packs per row of the sub-tile
constexpr int PACK_COLS = 4;                               // columns per pack
constexpr int TILE_BYTES = ROWS * PACKS * sizeof(float4);  // 64 KB

__device__ int place_of_pack(int row, int pack) {
  return row * PACKS + (pack ^ (row % 8));
}

// Four steps: returns the averages after each of four values, and leaves the last in `average`.
__device__ float4 decayed(float& average, Decay decay, float4 values) {
  const float x = decayed(average, decay, values.x), y = decayed(x, decay, values.y);
  const float z = decayed(y, decay, values.z), w = decayed(z, decay, values.w);
  average = w;
  return make_float4(x, y, z, w);
}

// Four neighbours in a row of x or y: 16 bytes of fp32, 8 bytes of the 16-bit types.
template <typename T>
struct alignas(PACK_COLS * sizeof(T)) Four {
  T at[PACK_COLS];
};

template <typename T>
__global__ void ema_v4_large_tile_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                         int64_t cols, Decay decay) {
  extern __shared__ __align__(128) float4 packs[];  // (row, pack), ROWS × PACKS
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row0 = int64_t{blockIdx.x} * ROWS;

  float average = 0;
  for (int64_t c0 = 0; c0 < cols; c0 += PACKS * PACK_COLS) {
    const int64_t col = c0 + lane * PACK_COLS;  // cols is a multiple of 4: packs are whole
#pragma unroll 16
    for (int r = warp; r < ROWS; r += WARPS) {
      Four<T> in{};
      if (row0 + r < rows && col < cols) {
        in = *reinterpret_cast<const Four<T>*>(x + (row0 + r) * cols + col);
      }
      packs[place_of_pack(r, lane)] =
          make_float4(static_cast<float>(in.at[0]), static_cast<float>(in.at[1]),
                      static_cast<float>(in.at[2]), static_cast<float>(in.at[3]));
    }
    __syncthreads();  // all rows are loaded before any thread reads its own

#pragma unroll 8
    for (int p = 0; p < PACKS; ++p) {
      float4& at = packs[place_of_pack(threadIdx.x, p)];
      at = decayed(average, decay, at);
    }
    __syncthreads();  // all averages are written before any warp stores them

#pragma unroll 16
    for (int r = warp; r < ROWS; r += WARPS) {
      const float4 v = packs[place_of_pack(r, lane)];
      const Four<T> out{static_cast<T>(v.x), static_cast<T>(v.y), static_cast<T>(v.z),
                        static_cast<T>(v.w)};
      if (row0 + r < rows && col < cols) {
        *reinterpret_cast<Four<T>*>(y + (row0 + r) * cols + col) = out;
      }
    }
    // No barrier, as in v1: the thread that has just read a pack also refills it.
  }
}

bool has_whole_packs(const Tensor& x) {
  return x.size(1) % PACK_COLS == 0 && is_aligned(x, PACK_COLS * x.element_size());
}

Tensor ema_v4_large_tile(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  if (!has_whole_packs(x) || TILE_BYTES > shared_limit(x)) {
    fell_back("ema_v3_swizzled", "rows begin or end within a pack, or 64 KB are too much");
    return ema_v3_swizzled(x, decay);
  }
  return output_like(x, "ema_v4_large_tile", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const auto kernel = ema_v4_large_tile_kernel<T>;
    // More than 48 KB must be dynamic shared memory, and must be requested for each kernel.
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, TILE_BYTES),
        "cudaFuncSetAttribute");
    kernel<<<blocks_of(x, ROWS), ROWS, TILE_BYTES, current_stream(x)>>>(data<T>(x), y, x.size(0),
                                                                        x.size(1), by_value);
  });
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: a block of v4 has no load in flight while its threads compute. v5 issues the loads
// of the next sub-tile into registers, 16 packs per thread, before it computes the present one. A
// sub-tile is 64 × 64, 16 KB.

constexpr int ROWS_V5 = 64;
constexpr int PACKS_V5 = 16;                 // packs per row of the sub-tile, and per thread
constexpr int STEP_V5 = ROWS_V5 / PACKS_V5;  // rows that the block loads at once
constexpr int COLS_V5 = PACKS_V5 * PACK_COLS;

template <typename T>
__global__ void __launch_bounds__(ROWS_V5, BLOCKS)
    ema_v5_prefetch_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t cols,
                           Decay decay) {
  __shared__ float4 packs[ROWS_V5][PACKS_V5];
  const int r0 = threadIdx.x / PACKS_V5, p = threadIdx.x % PACKS_V5;  // of the thread's first pack
  const int64_t row0 = int64_t{blockIdx.x} * ROWS_V5;
  Four<T> next[PACKS_V5];
  const auto fetch = [&](int64_t c0) {  // issues the loads of the sub-tile that starts at c0
    const int64_t col = c0 + p * PACK_COLS;
#pragma unroll
    for (int k = 0; k < PACKS_V5; ++k) {
      const int64_t row = row0 + r0 + k * STEP_V5;
      next[k] = Four<T>{};
      if (row < rows && col < cols) {
        next[k] = *reinterpret_cast<const Four<T>*>(x + row * cols + col);
      }
    }
  };

  fetch(0);
  float average = 0;
  for (int64_t c0 = 0; c0 < cols; c0 += COLS_V5) {
#pragma unroll
    for (int k = 0; k < PACKS_V5; ++k) {
      const int r = r0 + k * STEP_V5;
      packs[r][p ^ (r % 8)] =
          make_float4(static_cast<float>(next[k].at[0]), static_cast<float>(next[k].at[1]),
                      static_cast<float>(next[k].at[2]), static_cast<float>(next[k].at[3]));
    }
    __syncthreads();  // all rows are loaded before any thread reads its own
    if (c0 + COLS_V5 < cols) fetch(c0 + COLS_V5);  // first used in the next iteration

    for (int q = 0; q < PACKS_V5; ++q) {
      float4& at = packs[threadIdx.x][q ^ (threadIdx.x % 8)];
      at = decayed(average, decay, at);
    }
    __syncthreads();  // all averages are written before any warp stores them

    const int64_t col = c0 + p * PACK_COLS;
#pragma unroll
    for (int k = 0; k < PACKS_V5; ++k) {
      const int r = r0 + k * STEP_V5;
      const float4 v = packs[r][p ^ (r % 8)];
      const Four<T> out{static_cast<T>(v.x), static_cast<T>(v.y), static_cast<T>(v.z),
                        static_cast<T>(v.w)};
      if (row0 + r < rows && col < cols) {
        *reinterpret_cast<Four<T>*>(y + (row0 + r) * cols + col) = out;
      }
    }
    // No barrier, as in v1: the thread that has just read a pack also refills it.
  }
}

Tensor ema_v5_prefetch(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  if (!has_whole_packs(x)) {
    fell_back("ema_v3_swizzled", "rows begin or end within a pack");
    return ema_v3_swizzled(x, decay);
  }
  return output_like(x, "ema_v5_prefetch", [&](auto zero, auto* y) {
    using T = decltype(zero);
    ema_v5_prefetch_kernel<T><<<blocks_of(x, ROWS_V5), ROWS_V5, 0, current_stream(x)>>>(
        data<T>(x), y, x.size(0), x.size(1), by_value);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day22, ema_v0_no_tile, "(Tensor x, float decay) -> Tensor");
RUNG(day22, ema_v1_conflict, "(Tensor x, float decay) -> Tensor");
RUNG(day22, ema_v2_padded, "(Tensor x, float decay) -> Tensor");
RUNG(day22, ema_v3_swizzled, "(Tensor x, float decay) -> Tensor");
RUNG(day22, ema_v4_large_tile, "(Tensor x, float decay) -> Tensor");
RUNG(day22, ema_v5_prefetch, "(Tensor x, float decay) -> Tensor");

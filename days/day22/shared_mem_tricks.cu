// Day 22: tricks of shared memory
//
//   y[r, c] = d · y[r, c - 1] + (1 - d) · x[r, c],  y[r, -1] = 0       x, y: (rows, cols)
//
// the running average with decay d in [0, 1]. Each element needs the one before it, so a row is one
// thread's work, from left to right, while memory wants a warp to take 32 neighbours of a row. A
// tile in shared memory stands between: rows in, columns of it through the threads, rows out.
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T), 2.1 GB for 1048576 × 256 in fp32.
// Operations: 3 an element. Through shared memory each element goes four times: in, twice by its
// thread, out.
//
//   v0 no_tile      a thread walks along its row in global memory
//   v1 conflict     through a tile of 32 columns: 32 lanes in one bank
//   v2 padded       the tile's rows 33 words apart: no conflicts
//   v3 swizzled     the tile's columns exchanged by XOR: no conflicts, no padding
//   v4 large_tile   64 KB of it: 128 columns, 16 bytes an access, swizzled in packs
//   v5 prefetch     the next sub-tile is on its way while this one is worked on
//
// Run: python run_day.py 22

#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------------------------------------
// v0: what one would write first. At each step the lanes of a warp touch 32 rows, `cols` apart.

constexpr int ROWS = 128;  // of a block; a thread each

// What stays of the average so far, and what is added of the next value: d and 1 - d. The host
// subtracts, in double precision; 1.0f - 0.9f is off by two units in the last place.
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

// Checks the arguments, and makes the second one ready for a kernel.
Decay check_arguments(const Tensor& x, double decay) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  STD_TORCH_CHECK(decay >= 0 && decay <= 1, "decay: expected 0 to 1, got ", decay);  // nor NaN
  return {static_cast<float>(decay), static_cast<float>(1 - decay)};
}

Tensor ema_v0_no_tile(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;  // a grid of no blocks is an error
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, ROWS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    ema_v0_no_tile_kernel<T><<<grid, ROWS, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y),
                                                                   rows, cols, by_value);
  });
  check_launch("ema_v0_no_tile");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v1 against v0: a block goes over its 128 rows in sub-tiles of 32 columns. Each warp fetches
// rows, 32 neighbours at a time; then each thread walks along its own row of the sub-tile, and
// leaves the averages in place of the values; then warps write rows. What a thread carries from
// one sub-tile to the next is its partial sum, the average so far.

constexpr int COLS = 32;  // of a sub-tile: a warp
constexpr int WARPS = ROWS / 32;
// Blocks on a multiprocessor, at least. Left alone, the compiler spends up to 142 registers a
// thread on addresses, and with three blocks too few bytes are on their way.
constexpr int BLOCKS = 8;

// How a tile lies in shared memory: PITCH words from row to row, and where in its row a column is.
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

  float average = 0;  // of this thread's row, up to the sub-tile before
  for (int64_t c0 = 0; c0 < cols; c0 += COLS) {
    const int64_t col = c0 + lane;
#pragma unroll 16
    for (int r = warp; r < ROWS; r += WARPS) {  // 32 rows a warp
      const bool inside = row0 + r < rows && col < cols;
      const float value = inside ? static_cast<float>(x[(row0 + r) * cols + col]) : 0.0f;
      tile[Layout::place(r, lane)] = value;
    }
    __syncthreads();  // all rows are there before anybody walks along one

    // Lane l of a warp is at (row l, column c): a column of the tile, at every step.
#pragma unroll 8
    for (int c = 0; c < COLS; ++c) {
      float& at = tile[Layout::place(threadIdx.x, c)];
      average = decayed(average, decay, at);
      at = average;
    }
    __syncthreads();  // all rows are averaged before anybody writes them out

#pragma unroll 16
    for (int r = warp; r < ROWS; r += WARPS) {
      const bool inside = row0 + r < rows && col < cols;
      const float value = tile[Layout::place(r, lane)];
      if (inside) y[(row0 + r) * cols + col] = static_cast<T>(value);
    }
    // No barrier here: each place of the tile is filled again by the thread that has just read it.
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
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, ROWS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    ema_v1_conflict_kernel<T><<<grid, ROWS, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y),
                                                                    rows, cols, by_value);
  });
  check_launch("ema_v1_conflict");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a word of padding at the end of each row. Lane l is at word 33 · l + c, in bank
// (l + c) % 32: all different.

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
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, ROWS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    ema_v2_padded_kernel<T><<<grid, ROWS, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y),
                                                                  rows, cols, by_value);
  });
  check_launch("ema_v2_padded");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: column c of row r lies in place c ^ (r % 32) of its row. For a fixed r that is a
// permutation of [0, 32), so a row has no conflicts; for a fixed c as well, so a column has none.

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
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, ROWS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    ema_v3_swizzled_kernel<T><<<grid, ROWS, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y),
                                                                    rows, cols, by_value);
  });
  check_launch("ema_v3_swizzled");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: four columns at a time, and a sub-tile of 128 columns, 64 KB: a quarter of the
// accesses to shared memory, of the barriers, and of the loads, each four times as wide. A warp
// that accesses 16 bytes a lane is served in four parts of 8 lanes, so what counts is that 8
// neighbouring rows have a pack of 4 words in 8 different places: pack p of row r lies in p ^ (r %
// 8).

constexpr int PACKS = 32;                                  // a row of the sub-tile: a warp
constexpr int PACK_COLS = 4;                               // columns a pack
constexpr int TILE_BYTES = ROWS * PACKS * sizeof(float4);  // 64 KB

__device__ int place_of_pack(int row, int pack) {
  return row * PACKS + (pack ^ (row % 8));
}

// Four steps: the averages at four values, the last of which is left in `average`.
__device__ float4 decayed(float& average, Decay decay, float4 values) {
  const float x = decayed(average, decay, values.x), y = decayed(x, decay, values.y);
  const float z = decayed(y, decay, values.z), w = decayed(z, decay, values.w);
  average = w;
  return make_float4(x, y, z, w);
}

// Four neighbours in a row of x or y: 16 bytes of fp32, 8 of the short types.
template <typename T>
struct alignas(PACK_COLS * sizeof(T)) Four {
  T at[PACK_COLS];
};

template <typename T>
__global__ void ema_v4_large_tile_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows,
                                         int64_t cols, Decay decay) {
  extern __shared__ float4 packs[];  // (row, pack), ROWS × PACKS
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
    __syncthreads();  // all rows are there before anybody walks along one

#pragma unroll 8
    for (int p = 0; p < PACKS; ++p) {
      float4& at = packs[place_of_pack(threadIdx.x, p)];
      at = decayed(average, decay, at);
    }
    __syncthreads();  // all rows are averaged before anybody writes them out

#pragma unroll 16
    for (int r = warp; r < ROWS; r += WARPS) {
      const float4 v = packs[place_of_pack(r, lane)];
      const Four<T> out{static_cast<T>(v.x), static_cast<T>(v.y), static_cast<T>(v.z),
                        static_cast<T>(v.w)};
      if (row0 + r < rows && col < cols) {
        *reinterpret_cast<Four<T>*>(y + (row0 + r) * cols + col) = out;
      }
    }
    // As in v1, each pack is filled again by the thread that has just read it: no barrier.
  }
}

Tensor ema_v4_large_tile(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  const int64_t rows = x.size(0), cols = x.size(1);
  if (cols % PACK_COLS != 0 || !is_aligned(x, PACK_COLS * x.element_size())) {
    return ema_v3_swizzled(x, decay);  // rows that end, or begin, within a pack
  }
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, ROWS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = ema_v4_large_tile_kernel<T>;
    // More than 48 KB must be asked for, kernel by kernel, and must be dynamic.
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, TILE_BYTES),
        "cudaFuncSetAttribute");
    kernel<<<grid, ROWS, TILE_BYTES, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), rows,
                                                          cols, by_value);
  });
  check_launch("ema_v4_large_tile");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: while the threads walk along their rows, memory is idle. So the next sub-tile is
// on its way into registers meanwhile: 16 packs a thread. The sub-tile is 64 × 64, and 16 KB again.

constexpr int ROWS_V5 = 64;
constexpr int PACKS_V5 = 16;                 // a row of the sub-tile; also what a thread fetches
constexpr int STEP_V5 = ROWS_V5 / PACKS_V5;  // rows that the block fetches at once
constexpr int COLS_V5 = PACKS_V5 * PACK_COLS;

template <typename T>
__global__ void __launch_bounds__(ROWS_V5, BLOCKS)
    ema_v5_prefetch_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t cols,
                           Decay decay) {
  __shared__ float4 packs[ROWS_V5][PACKS_V5];
  const int r0 = threadIdx.x / PACKS_V5, p = threadIdx.x % PACKS_V5;  // of my first pack
  const int64_t row0 = int64_t{blockIdx.x} * ROWS_V5;
  Four<T> next[PACKS_V5];
  const auto fetch = [&](int64_t c0) {
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
    __syncthreads();  // all rows are there before anybody walks along one
    if (c0 + COLS_V5 < cols) fetch(c0 + COLS_V5);  // nobody waits for it before the next round

    for (int q = 0; q < PACKS_V5; ++q) {
      float4& at = packs[threadIdx.x][q ^ (threadIdx.x % 8)];
      at = decayed(average, decay, at);
    }
    __syncthreads();  // all rows are averaged before anybody writes them out

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
    // As in v1, each pack is filled again by the thread that has just read it: no barrier.
  }
}

Tensor ema_v5_prefetch(const Tensor& x, double decay) {
  const Decay by_value = check_arguments(x, decay);
  const int64_t rows = x.size(0), cols = x.size(1);
  if (cols % PACK_COLS != 0 || !is_aligned(x, PACK_COLS * x.element_size())) {
    return ema_v3_swizzled(x, decay);
  }
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, ROWS_V5), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    ema_v5_prefetch_kernel<T><<<grid, ROWS_V5, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), rows, cols, by_value);
  });
  check_launch("ema_v5_prefetch");
  return y;
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day22, m) {
  m.def("ema_v0_no_tile(Tensor x, float decay) -> Tensor");
  m.def("ema_v1_conflict(Tensor x, float decay) -> Tensor");
  m.def("ema_v2_padded(Tensor x, float decay) -> Tensor");
  m.def("ema_v3_swizzled(Tensor x, float decay) -> Tensor");
  m.def("ema_v4_large_tile(Tensor x, float decay) -> Tensor");
  m.def("ema_v5_prefetch(Tensor x, float decay) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day22, CUDA, m) {
  m.impl("ema_v0_no_tile", TORCH_BOX(&ema_v0_no_tile));
  m.impl("ema_v1_conflict", TORCH_BOX(&ema_v1_conflict));
  m.impl("ema_v2_padded", TORCH_BOX(&ema_v2_padded));
  m.impl("ema_v3_swizzled", TORCH_BOX(&ema_v3_swizzled));
  m.impl("ema_v4_large_tile", TORCH_BOX(&ema_v4_large_tile));
  m.impl("ema_v5_prefetch", TORCH_BOX(&ema_v5_prefetch));
}

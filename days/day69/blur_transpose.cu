// Day 69: images, blurred and transposed in one pass
//
//   y[n, w, h] = Σ_i k[i] · Σ_j k[j] · x[n, h + i - 3, w + j - 3]     x: (N, H, W), y: (N, W, H)
//
// k: 7 weights in fp32, the same along rows and columns. Beyond an image, x is zero. x and y are
// fp32, fp16 or bf16; sums are fp32.
//
// Bytes: read x once, write y once: 2 · N · H · W · sizeof(T); 2.1 GB for 16 × 4096² in fp32.
// Operations: 28 per element by rows and columns (98 without), so the rate of a copy is the
// ceiling.
//
//   v1 direct         49 loads per output, scattered writes
//   v2 tile           halo, row sums and transpose in shared memory: coalesced on both sides
//   v3 vectors        4 elements per load and streaming store, row sums from registers, a swizzle
//   v4 triton         blur_transpose_triton.py: a program walks down a strip, 7 loads per element
//   v5 triton chunks  the same, with 3 loads per 4 elements
//   v6 in flight      v3, where all rows of a tile are in flight at once and need no registers
//
// Run: python run_day.py 69

#include "common/cuda/binding.cuh"     // taught in day 6
#include "common/cuda/capability.cuh"  // taught in day 24
#include "common/cuda/chunk.cuh"       // taught in days 35 and 42
#include "common/cuda/ptx.cuh"         // cp.async: day 20
#include "common/cuda/tensor.cuh"      // taught in days 6 and 12

constexpr int R = 3;             // radius of the filter
constexpr int TAPS = 2 * R + 1;  // its weights
constexpr int BLOCK = 256;

template <typename T>
struct Arguments {
  const T* x;
  const float* weights;  // (TAPS,)
  T* y;
  int64_t H, W;  // of an image of x
};

// Checks x (N, H, W) and weights, allocates y (N, W, H), and calls launch(arguments, images) unless
// y is empty.
template <typename F>
Tensor transposed_output(const Tensor& x, const Tensor& weights, const char* kernel, F&& launch) {
  check(x, "x").on_gpu().floating().rank(3).contiguous();
  check(weights, "weights").on_gpu().dtype({ScalarType::Float}).rank(1).size(0, TAPS).contiguous();
  check(weights, "weights").same_device(x, "x");
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {x.size(0), x.size(2), x.size(1)});
  if (y.numel() == 0) return y;  // a grid of no blocks is an error
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    launch(
        Arguments<T>{data<T>(x), data<float>(weights), mutable_data<T>(y), x.size(1), x.size(2)});
  });
  check_launch(kernel);
  return y;
}

// Tiles of TALL rows × WIDE columns of x. Blocks are numbered along the columns of x: those that
// run at the same time write neighbours in rows of y (day 21), and share the halo in L2.
struct Tile {
  int64_t image, h, w;  // of its first element
};
template <int TALL, int WIDE>
__device__ Tile tile_of_block(int64_t H, int64_t W) {
  const unsigned down = static_cast<unsigned>(ceil_div<int64_t>(H, TALL));
  const unsigned across = static_cast<unsigned>(ceil_div<int64_t>(W, WIDE));
  const unsigned strip = blockIdx.x / down;
  return {strip / across, int64_t{blockIdx.x % down} * TALL, int64_t{strip % across} * WIDE};
}

template <int TALL, int WIDE>
unsigned grid_of(const Tensor& x) {
  const int64_t strips = x.size(0) * ceil_div<int64_t>(x.size(2), WIDE);
  return grid_size(strips * ceil_div<int64_t>(x.size(1), TALL), "x");
}

struct Filter {
  float k[TAPS];

  __device__ explicit Filter(const float* weights) {
#pragma unroll
    for (int i = 0; i < TAPS; ++i) k[i] = weights[i];
  }

  // The weighted sum of TAPS values.
  __device__ float operator()(const float* v) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < TAPS; ++i) sum = fmaf(k[i], v[i], sum);
    return sum;
  }
};

// ---------------------------------------------------------------------------------------------
// v1: one thread per output and step, 32 × 32 outputs per block. A warp reads rows of x, and writes
// to 32 rows of y.

constexpr int SIDE = 32;
constexpr int BLOCK_ROWS = BLOCK / SIDE;

// x[h, w] of an image, or zero beyond it.
template <typename T>
__device__ float pixel(const T* image, int64_t h, int64_t w, int64_t H, int64_t W) {
  return h >= 0 && h < H && w >= 0 && w < W ? static_cast<float>(image[h * W + w]) : 0.0f;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) blur_transpose_v1_direct_kernel(const Arguments<T> p) {
  const Tile tile = tile_of_block<SIDE, SIDE>(p.H, p.W);
  const T* image = p.x + tile.image * p.H * p.W;
  const Filter filter(p.weights);
  const int64_t w = tile.w + threadIdx.x;
  for (int i = threadIdx.y; i < SIDE; i += BLOCK_ROWS) {
    const int64_t h = tile.h + i;
    if (h >= p.H || w >= p.W) continue;
    float rows[TAPS], v[TAPS];
#pragma unroll
    for (int a = 0; a < TAPS; ++a) {
#pragma unroll
      for (int b = 0; b < TAPS; ++b) v[b] = pixel(image, h + a - R, w + b - R, p.H, p.W);
      rows[a] = filter(v);
    }
    p.y[(tile.image * p.W + w) * p.H + h] = static_cast<T>(filter(rows));
  }
}

Tensor blur_transpose_v1_direct(const Tensor& x, const Tensor& weights) {
  return transposed_output(x, weights, "blur_transpose_v1_direct", [&](const auto& p) {
    blur_transpose_v1_direct_kernel<<<grid_of<SIDE, SIDE>(x), dim3(SIDE, BLOCK_ROWS), 0,
                                      current_stream(x)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: each element is loaded once per block, its row sum is computed once, and a warp
// writes 32 neighbours of a row of y. Rows of `sums` are 33 floats apart, so that the lanes, each
// in another row, access 32 banks.

constexpr int HALO_SIDE = SIDE + 2 * R;

template <typename T>
__global__ void __launch_bounds__(BLOCK) blur_transpose_v2_tile_kernel(const Arguments<T> p) {
  __shared__ float pixels[HALO_SIDE][HALO_SIDE];  // row r is row tile.h + r - R of the image
  __shared__ float sums[HALO_SIDE][SIDE + 1];     // row r likewise, column c is tile.w + c
  const Tile tile = tile_of_block<SIDE, SIDE>(p.H, p.W);
  const T* image = p.x + tile.image * p.H * p.W;
  const Filter filter(p.weights);
  const int lane = threadIdx.x;

  for (int r = threadIdx.y; r < HALO_SIDE; r += BLOCK_ROWS) {
    for (int c = lane; c < HALO_SIDE; c += SIDE) {
      pixels[r][c] = pixel(image, tile.h + r - R, tile.w + c - R, p.H, p.W);
    }
  }
  __syncthreads();  // the tile and its halo are complete before any thread sums
  for (int r = threadIdx.y; r < HALO_SIDE; r += BLOCK_ROWS) {
    sums[r][lane] = filter(&pixels[r][lane]);
  }
  __syncthreads();  // all row sums are written before any thread sums along a column
  const int64_t h = tile.h + lane;  // lanes along a column of x
  for (int c = threadIdx.y; c < SIDE; c += BLOCK_ROWS) {
    const int64_t w = tile.w + c;
    if (h >= p.H || w >= p.W) continue;
    float v[TAPS];
#pragma unroll
    for (int a = 0; a < TAPS; ++a) v[a] = sums[lane + a][c];
    p.y[(tile.image * p.W + w) * p.H + h] = static_cast<T>(filter(v));
  }
}

Tensor blur_transpose_v2_tile(const Tensor& x, const Tensor& weights) {
  return transposed_output(x, weights, "blur_transpose_v2_tile", [&](const auto& p) {
    blur_transpose_v2_tile_kernel<<<grid_of<SIDE, SIDE>(x), dim3(SIDE, BLOCK_ROWS), 0,
                                    current_stream(x)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: four elements per load and store. Row sums come straight from registers: a thread
// loads its chunk and the chunks at both sides, which its neighbours load too, from L1. So one
// barrier and one tile in shared memory are enough.

constexpr int FOUR = 4;               // elements per chunk
constexpr int TALL = 64, WIDE = 128;  // a row of the tile is 32 chunks, one per lane
constexpr int CHUNKS = WIDE / FOUR;
constexpr int GROUPS = TALL / FOUR;  // of 4 rows each
constexpr int WARPS = BLOCK / 32;
constexpr int WARPS_DOWN = GROUPS / 8;  // they share a chunk of columns, 8 groups each
constexpr int SUM_ROWS = TALL + 2 * R;
constexpr int AHEAD = 3;  // rows that a warp loads before it sums the first of them
static_assert(CHUNKS == 32 && R <= FOUR, "a warp per row, whose halo is one chunk at each side");
static_assert(GROUPS % 8 == 0 && WARPS % WARPS_DOWN == 0, "every warp has whole chunks of columns");

// Row sums of a tile and its halo, (SUM_ROWS, WIDE), swizzled: the rows of a group of 4 keep the
// order of their chunks, other groups have other ones. Where a warp reads one word in each of 8
// groups, and 4 neighbours of a chunk, it accesses 32 banks.
struct RowSums {
  float4 at[SUM_ROWS][CHUNKS];

  static __device__ int place(int group, int c) { return c ^ group % 8; }
  __device__ void store(int r, int c, float4 sums) { at[r][place(r / FOUR, c)] = sums; }
  // v6: where chunk c of x waits, of 16 bytes at most, until its sums take its place.
  __device__ void* waiting(int r, int c) { return &at[r][place(r / FOUR, c)]; }
  // Element j of chunk c in row a after the first of a group.
  __device__ float load(int group, int a, int c, int j) const {
    return reinterpret_cast<const float*>(&at[FOUR * group + a][place(group + a / FOUR, c)])[j];
  }
};

// The sums along a row of four neighbours, whose chunk is the middle one of three.
template <typename T>
__device__ float4 row_sums(const Chunk<T, FOUR>* chunks, const Filter& filter) {
  float v[3 * FOUR];
#pragma unroll
  for (int i = 0; i < 3 * FOUR; ++i) v[i] = static_cast<float>(chunks[i / FOUR].at[i % FOUR]);
  const float* left = v + FOUR - R;
  return {filter(left), filter(left + 1), filter(left + 2), filter(left + 3)};
}

// The sums along columns of one chunk of columns, for the rows 4 * g to 4 * g + 3 of the tile.
template <typename T>
__device__ Chunk<T, FOUR> column_sums(const RowSums& sums, const Filter& filter, int g, int c,
                                      int j) {
  float v[FOUR + 2 * R];
  Chunk<T, FOUR> out;
#pragma unroll
  for (int a = 0; a < FOUR + 2 * R; ++a) v[a] = sums.load(g, a, c, j);
#pragma unroll
  for (int i = 0; i < FOUR; ++i) out.at[i] = static_cast<T>(filter(v + i));
  return out;
}

// Stores a chunk with a hint that its line should leave L2 first (day 21).
template <typename T>
__device__ void store_streaming(Chunk<T, FOUR>* to, const Chunk<T, FOUR>& chunk) {
  using Words = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
  __stcs(reinterpret_cast<Words*>(to), *reinterpret_cast<const Words*>(&chunk));
}

// Row r of `sums` is row tile.h + r - R of the image. Those in [top, bottom) are inside.
struct Inside {
  int top, bottom;
};
__device__ Inside rows_inside(const Tile& tile, int64_t H) {
  return {static_cast<int>(max(int64_t{0}, R - tile.h)),
          static_cast<int>(min(int64_t{SUM_ROWS}, H - tile.h + R))};
}

// Sums a tile along its columns and stores it. A warp writes 4 rows of y: 8 lanes with 4 elements
// each are 32 neighbours of a row.
template <typename T>
__device__ __forceinline__ void store_columns(const Arguments<T>& p, const RowSums& sums,
                                              const Filter& filter, const Tile& tile) {
  using Four = Chunk<T, FOUR>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t down = p.H / FOUR;  // chunks per row of y
  const int g = warp % WARPS_DOWN * 8 + lane % 8, j = lane / 8;
  const int wide = static_cast<int>(min(int64_t{WIDE}, p.W - tile.w));
  const int64_t chunk = tile.h / FOUR + g;
  Four* to = reinterpret_cast<Four*>(p.y) + (tile.image * p.W + tile.w + j) * down + chunk;
  if (chunk >= down) return;
#pragma unroll 2
  for (int c = warp / WARPS_DOWN; c < CHUNKS; c += WARPS / WARPS_DOWN) {
    if (FOUR * c + j < wide) {
      store_streaming(to + FOUR * c * down, column_sums<T>(sums, filter, g, c, j));
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) blur_transpose_v3_vectors_kernel(const Arguments<T> p) {
  using Four = Chunk<T, FOUR>;
  __shared__ RowSums sums;
  const Tile tile = tile_of_block<TALL, WIDE>(p.H, p.W);
  const Filter filter(p.weights);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t across = p.W / FOUR;  // chunks per row of x
  const auto [top, bottom] = rows_inside(tile, p.H);
  const int64_t column = tile.w / FOUR + lane;  // of chunks
  const Four* from =
      reinterpret_cast<const Four*>(p.x) + (tile.image * p.H + tile.h - R) * across + column;
  for (int first = warp; first < SUM_ROWS; first += AHEAD * WARPS) {
    Four chunks[AHEAD][3] = {};  // zeros beyond the image
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int r = first + k * WARPS;
#pragma unroll
      for (int s = -1; s <= 1; ++s) {
        if (r >= top && r < bottom && column + s >= 0 && column + s < across) {
          chunks[k][s + 1] = from[r * across + s];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int r = first + k * WARPS;
      if (r < SUM_ROWS) sums.store(r, lane, row_sums(chunks[k], filter));
    }
  }
  __syncthreads();  // all row sums are written before any thread sums along a column
  store_columns(p, sums, filter, tile);
}

// Whether the rows of x and of y are whole, aligned chunks.
bool has_chunks(const Tensor& x) {
  const bool whole = x.dim() == 3 && x.size(1) % FOUR == 0 && x.size(2) % FOUR == 0;
  return whole && is_aligned(x, FOUR * x.element_size());
}
constexpr char NO_CHUNKS[] = "rows of x or y that are no whole, aligned chunks";

Tensor blur_transpose_v3_vectors(const Tensor& x, const Tensor& weights) {
  if (!has_chunks(x)) {
    fell_back("blur_transpose_v2_tile", NO_CHUNKS);
    return blur_transpose_v2_tile(x, weights);
  }
  return transposed_output(x, weights, "blur_transpose_v3_vectors", [&](const auto& p) {
    blur_transpose_v3_vectors_kernel<<<grid_of<TALL, WIDE>(x), BLOCK, 0, current_stream(x)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v6 against v3: cp.async brings every chunk to where its sums will be, so all rows of a tile are
// in flight at once, and none of them in registers. A lane copies its own chunk only, and gets
// neighbours by shuffles.

constexpr int WARP_ROWS = (SUM_ROWS + WARPS - 1) / WARPS;  // rows of sums per warp, at most
static_assert(2 * WARP_ROWS <= 32, "a lane copies one chunk beyond an end of one of them");

// The sums along a row of the lane's own chunk, whose neighbours are in the lanes beside it. `edge`
// is the chunk beyond: lane 0's on the left, lane 31's on the right.
template <typename T>
__device__ float4 row_sums_of_lane(const Chunk<T, FOUR>& own, const Chunk<T, FOUR>& edge,
                                   const Filter& filter) {
  constexpr unsigned ALL = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  float v[FOUR + 2 * R];
#pragma unroll
  for (int i = 0; i < FOUR; ++i) v[R + i] = static_cast<float>(own.at[i]);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float left = __shfl_up_sync(ALL, v[FOUR + i], 1);
    const float right = __shfl_down_sync(ALL, v[R + i], 1);
    v[i] = lane == 0 ? static_cast<float>(edge.at[FOUR - R + i]) : left;
    v[R + FOUR + i] = lane == 31 ? static_cast<float>(edge.at[i]) : right;
  }
  return {filter(v), filter(v + 1), filter(v + 2), filter(v + 3)};
}

constexpr int RESIDENT = 5;  // blocks, with 39 KB of shared memory each

template <typename T>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    blur_transpose_v6_in_flight_kernel(const Arguments<T> p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using Four = Chunk<T, FOUR>;
  __shared__ RowSums sums;
  __shared__ Four edges[WARPS][WARP_ROWS][2];  // beyond both ends of a warp's rows
  const Tile tile = tile_of_block<TALL, WIDE>(p.H, p.W);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t across = p.W / FOUR;  // chunks per row of x
  const auto [top, bottom] = rows_inside(tile, p.H);
  const Four* from = reinterpret_cast<const Four*>(p.x) + (tile.image * p.H + tile.h - R) * across;
  // Starts to copy chunk c of the image's row that belongs to row r of `sums`.
  const auto copy = [&](Four* to, int r, int64_t c) {
    if (r >= top && r < bottom && c >= 0 && c < across) {
      ptx::cp_async<sizeof(Four)>(to, from + r * across + c);
    } else {
      *to = Four{};  // zeros beyond the image
    }
  };
  const int64_t column = tile.w / FOUR;  // the tile's first chunk
  if (lane < 2 * WARP_ROWS) {
    const int k = lane / 2, end = lane % 2;
    copy(&edges[warp][k][end], warp + k * WARPS, end == 0 ? column - 1 : column + CHUNKS);
  }
#pragma unroll
  for (int k = 0; k < WARP_ROWS; ++k) {
    const int r = warp + k * WARPS;
    if (r < SUM_ROWS) copy(static_cast<Four*>(sums.waiting(r, lane)), r, column + lane);
  }
  const Filter filter(p.weights);
  ptx::cp_async_wait_all();
  __syncwarp();  // the edges have come that other lanes copied
#pragma unroll 1
  for (int k = 0; k < WARP_ROWS; ++k) {
    const int r = warp + k * WARPS;
    if (r >= SUM_ROWS) break;
    const Four own = *static_cast<const Four*>(sums.waiting(r, lane));
    sums.store(r, lane, row_sums_of_lane(own, edges[warp][k][lane != 0], filter));
  }
  __syncthreads();  // all row sums are written before any thread sums along a column
  store_columns(p, sums, filter, tile);
#endif
}

Tensor blur_transpose_v6_in_flight(const Tensor& x, const Tensor& weights) {
  if (!has_chunks(x)) {
    fell_back("blur_transpose_v2_tile", NO_CHUNKS);
    return blur_transpose_v2_tile(x, weights);
  }
  return transposed_output(x, weights, "blur_transpose_v6_in_flight", [&](const auto& p) {
    require_capability(8, 0, "cp.async");
    blur_transpose_v6_in_flight_kernel<<<grid_of<TALL, WIDE>(x), BLOCK, 0, current_stream(x)>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day69, blur_transpose_v1_direct, "(Tensor x, Tensor weights) -> Tensor");
RUNG(day69, blur_transpose_v2_tile, "(Tensor x, Tensor weights) -> Tensor");
RUNG(day69, blur_transpose_v3_vectors, "(Tensor x, Tensor weights) -> Tensor");
RUNG(day69, blur_transpose_v6_in_flight, "(Tensor x, Tensor weights) -> Tensor");

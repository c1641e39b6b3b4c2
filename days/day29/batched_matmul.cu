// Day 29: batched matrix multiplication
//
//   C[i] = A[i] · B[i]        A[i]: (M, K), B[i]: (K, N), C[i]: (M, N), for every i of a batch
//
// Operands have any strides, so a transposed one is not copied, and batch dimensions broadcast. For
// 64×64 matrices of 16-bit elements a product moves 24 KB and takes 524 kFLOP: 21 FLOP per byte,
// where the tensor cores of an H200 could do about 190, so memory bandwidth is the limit.
//
//   v1 grid_z         one thread per result, one layer of the grid per matrix, operands from memory
//   v2 warp_tiles     one warp per small matrix, or per tile of a large one: operands from shared
//                     memory, several matrices per block
//   v3 tensor_cores   cp.async fills the tiles, ldmatrix and mma multiply them
//   v3 pointers       matrices of separate tensors: their addresses travel as kernel parameters
//
// Run: python run_day.py 29

#include "common/cuda/binding.cuh"       // taught in day 6
#include "common/cuda/capability.cuh"    // what a card lacks
#include "common/cuda/pack.cuh"          // taught in day 2
#include "common/cuda/ptx/cp_async.cuh"  // this and the next two: taught in day 20
#include "common/cuda/ptx/ldmatrix.cuh"
#include "common/cuda/ptx/mma.cuh"
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <algorithm>
#include <vector>

constexpr int MAX_BATCH_DIMS = 4;

// How the elements of one operand's matrices lie in memory. A line is a row, or, if transposed, a
// column: the direction in which neighbours are closest together.
struct Operand {
  int64_t line_stride;  // elements from one line to the next
  int64_t step;         // elements from one element of a line to the next
  bool transposed;
  bool packs;  // lines consist of aligned packs of 16 bytes
};

struct Product {
  int64_t M, N, K;
  Operand a, b;
  int64_t tiles_m, tiles_n;  // of one result
};

__device__ int64_t offset(const Operand& o, int64_t row, int64_t col) {
  return o.transposed ? col * o.line_stride + row * o.step : row * o.line_stride + col * o.step;
}

// Where the operands of product i begin: a batch of up to four dimensions, each with a stride per
// operand. A stride of 0 broadcasts.
template <typename T>
struct StridedBatch {
  const T *a, *b;
  int dims;
  int64_t size[MAX_BATCH_DIMS], a_stride[MAX_BATCH_DIMS], b_stride[MAX_BATCH_DIMS];

  struct Pair {
    const T *a, *b;
  };
  __device__ Pair at(int64_t i) const {
    Pair found{a, b};
#pragma unroll 1
    for (int d = dims - 1; d >= 0; --d) {
      const int64_t index = d == 0 ? i : i % size[d];  // no division for one dimension
      found.a += index * a_stride[d];
      found.b += index * b_stride[d];
      if (d > 0) i /= size[d];
    }
    return found;
  }
};

// ---------------------------------------------------------------------------------------------
// v1: one thread per result.

template <typename T>
__global__ void bmm_v1_grid_z_kernel(const __grid_constant__ StridedBatch<T> batch, const Product p,
                                     T* __restrict__ c, int64_t matrices) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t m = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  if (m >= p.M || n >= p.N) return;
  const int64_t a_step = offset(p.a, 0, 1), b_step = offset(p.b, 1, 0);  // from one k to the next
  for (int64_t i = blockIdx.z; i < matrices; i += gridDim.z) {
    const auto from = batch.at(i);
    const T *a = from.a + offset(p.a, m, 0), *b = from.b + offset(p.b, 0, n);
    float sum = 0;
    for (int64_t k = 0; k < p.K; ++k) {
      sum += static_cast<float>(a[k * a_step]) * static_cast<float>(b[k * b_step]);
    }
    c[(i * p.M + m) * p.N + n] = static_cast<T>(sum);
  }
}

// The layout of the matrices of t, which are its last two dimensions.
Operand operand(const Tensor& t) {
  const int64_t dims = t.dim(), rows = t.size(dims - 2), cols = t.size(dims - 1);
  const int64_t row_stride = t.stride(dims - 2), col_stride = t.stride(dims - 1);
  const bool transposed = row_stride == 1 && col_stride != 1;
  Operand o{transposed ? col_stride : row_stride, transposed ? row_stride : col_stride, transposed,
            false};
  const int64_t pack = 16 / t.element_size();
  const bool one_line = (transposed ? cols : rows) == 1;  // its stride is not used
  o.packs = o.step == 1 && (one_line || o.line_stride % pack == 0) && is_aligned(t, 16);
  for (int64_t d = 0; d < dims - 2; ++d) {
    if (t.size(d) > 1 && t.stride(d) % pack != 0) o.packs = false;
  }
  return o;
}

// Checks a (…, M, K) and b (…, K, N), whose batch dimensions broadcast; the shape of the result.
std::vector<int64_t> check_operands(const Tensor& a, const Tensor& b) {
  check(a, "a").on_gpu().floating();
  check(b, "b").on_gpu().dtype({a.scalar_type()}).same_device(a, "a");
  for (const Tensor* t : {&a, &b}) {
    STD_TORCH_CHECK(t->dim() >= 2 && t->dim() <= 2 + MAX_BATCH_DIMS, t == &a ? "a" : "b",
                    ": expected 2 to 6 dimensions, got shape ", shape_of(*t));
  }
  check(b, "b").size(b.dim() - 2, a.size(a.dim() - 1));
  const int64_t dims = std::max(a.dim(), b.dim()) - 2;
  std::vector<int64_t> shape(dims + 2);
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t da = d + a.dim() - 2 - dims, db = d + b.dim() - 2 - dims;
    const int64_t sa = da < 0 ? 1 : a.size(da), sb = db < 0 ? 1 : b.size(db);
    STD_TORCH_CHECK(sa == sb || sa == 1 || sb == 1, "b: batch dimensions do not broadcast: a has ",
                    shape_of(a), ", b has ", shape_of(b));
    shape[d] = sa == 1 ? sb : sa;
  }
  shape[dims] = a.size(a.dim() - 2);
  shape[dims + 1] = b.size(b.dim() - 1);
  return shape;
}

template <typename T>
StridedBatch<T> strided(const Tensor& a, const Tensor& b, const std::vector<int64_t>& shape) {
  const int dims = static_cast<int>(shape.size()) - 2;
  StridedBatch<T> batch{data<T>(a), data<T>(b), dims, {}, {}, {}};
  const auto stride = [&](const Tensor& t, int d) {
    const int64_t of_t = d + t.dim() - 2 - dims;  // batch dimensions are aligned at the right
    return of_t < 0 || t.size(of_t) == 1 ? 0 : t.stride(of_t);
  };
  for (int d = 0; d < dims; ++d) {
    batch.size[d] = shape[d];
    batch.a_stride[d] = stride(a, d);
    batch.b_stride[d] = stride(b, d);
  }
  return batch;
}

Product product(const Tensor& a, const Tensor& b, int64_t tile) {
  const int64_t M = a.size(a.dim() - 2), N = b.size(b.dim() - 1);
  return {M, N, a.size(a.dim() - 1), operand(a), operand(b), ceil_div(M, tile), ceil_div(N, tile)};
}

Tensor bmm_v1_grid_z(const Tensor& a, const Tensor& b) {
  const auto shape = check_operands(a, b);
  const DeviceGuard guard(a);
  Tensor c = allocate(a, shape);
  if (c.numel() == 0) return c;  // a grid of no blocks is an error
  const Product p = product(a, b, 1);
  const int64_t matrices = c.numel() / (p.M * p.N);
  const dim3 block(32, 8);
  const dim3 grid(grid_size(ceil_div<int64_t>(p.N, block.x), "b"),
                  grid_size_y(ceil_div<int64_t>(p.M, block.y), "a"),
                  static_cast<unsigned>(std::min<int64_t>(matrices, 65535)));  // limit along z
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    bmm_v1_grid_z_kernel<T><<<grid, block, 0, current_stream(a)>>>(strided<T>(a, b, shape), p,
                                                                   mutable_data<T>(c), matrices);
  });
  check_launch("bmm_v1_grid_z");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a warp loads a tile of each operand into shared memory of its own and reads each
// element from there TILE times. The warps of a block work on different matrices and never wait for
// each other: __syncwarp() orders the lanes of one warp only.

constexpr int WARPS = 4;  // per block

// What one warp computes: the tile of C[matrix] that begins at (m, n).
struct Task {
  int64_t matrix, m, n;
};

__device__ Task task_of(int64_t index, const Product& p, int tile) {
  const int64_t tiles = p.tiles_m * p.tiles_n;
  if (tiles == 1) return {index, 0, 0};  // without the divisions, which take longer than a product
  const int64_t rest = index % tiles;
  return {index / tiles, rest / p.tiles_n * tile, rest % p.tiles_n * tile};
}

// Elements of shared memory from one line of a tile to the next; odd, against bank conflicts.
template <int TILE>
constexpr int LINE = TILE + 1;

// The part of an operand that begins at (row, col), as `tile` lines of shared memory; zeros beyond
// its end. Lanes run along a line, so that loads are coalesced for transposed operands too.
template <int TILE, typename T>
__device__ void load_lines(T* tile, const T* from, const Operand& o, int64_t row, int64_t col,
                           int64_t rows, int64_t cols) {
  for (int e = threadIdx.x % 32; e < TILE * TILE; e += 32) {
    const int line = e / TILE, at = e % TILE;
    const int64_t r = row + (o.transposed ? at : line), c = col + (o.transposed ? line : at);
    tile[line * LINE<TILE> + at] =
        r < rows && c < cols ? from[offset(o, r, c)] : static_cast<T>(0.0f);
  }
}

template <typename T, int TILE>
__global__ void __launch_bounds__(WARPS * 32)
    bmm_v2_warp_tiles_kernel(const __grid_constant__ StridedBatch<T> batch, const Product p,
                             T* __restrict__ c, int64_t tasks) {
  constexpr int STEP = 32 / TILE, ROWS = TILE / STEP;  // a lane has rows lane / TILE + STEP · r
  __shared__ T tiles[WARPS][2][TILE * LINE<TILE>];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t index = int64_t{blockIdx.x} * WARPS + warp;
  if (index >= tasks) return;  // the whole warp, and no barrier of the block follows
  const Task task = task_of(index, p, TILE);
  const auto from = batch.at(task.matrix);
  T *a_tile = tiles[warp][0], *b_tile = tiles[warp][1];
  const int row = lane / TILE, col = lane % TILE;

  float sums[ROWS] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += TILE) {
    load_lines<TILE>(a_tile, from.a, p.a, task.m, k0, p.M, p.K);
    load_lines<TILE>(b_tile, from.b, p.b, k0, task.n, p.K, p.N);
    __syncwarp();  // all lanes have stored their part of both tiles before any lane reads them
    for (int k = 0; k < TILE; ++k) {
      const float b =
          static_cast<float>(b_tile[p.b.transposed ? col * LINE<TILE> + k : k * LINE<TILE> + col]);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int m = row + STEP * r;
        sums[r] += b * static_cast<float>(
                           a_tile[p.a.transposed ? k * LINE<TILE> + m : m * LINE<TILE> + k]);
      }
    }
    __syncwarp();  // all lanes have read the tiles before any lane overwrites them
  }
  for (int r = 0; r < ROWS; ++r) {
    const int64_t m = task.m + row + STEP * r, n = task.n + col;
    if (m < p.M && n < p.N) c[(task.matrix * p.M + m) * p.N + n] = static_cast<T>(sums[r]);
  }
}

Tensor bmm_v2_warp_tiles(const Tensor& a, const Tensor& b) {
  const auto shape = check_operands(a, b);
  const DeviceGuard guard(a);
  Tensor c = allocate(a, shape);
  if (c.numel() == 0) return c;
  const int64_t longest = std::max(shape[shape.size() - 2], shape[shape.size() - 1]);
  dispatch_floating(a, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int tile) {
      const Product p = product(a, b, tile);
      const int64_t tasks = c.numel() / (p.M * p.N) * p.tiles_m * p.tiles_n;
      kernel<<<grid_size(ceil_div<int64_t>(tasks, WARPS), "a"), WARPS * 32, 0, current_stream(a)>>>(
          strided<T>(a, b, shape), p, mutable_data<T>(c), tasks);
    };
    if (longest <= 16) return launch(bmm_v2_warp_tiles_kernel<T, 16>, 16);
    launch(bmm_v2_warp_tiles_kernel<T, 32>, 32);
  });
  check_launch("bmm_v2_warp_tiles");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: tensor cores multiply, and cp.async copies 16 bytes at a time past the registers.
// A tile keeps its lines without padding: pieces of 16 bytes are swizzled, so that ldmatrix reads 8
// lines at one place without bank conflicts. ldmatrix transposes where the operand is transposed.

constexpr int PIECE = 8;  // elements of 16 bytes

// Warps that share a tile. Alone, a warp would keep 64×64 sums in 128 registers per lane, and few
// such warps fit; four warps with 16 rows each need a quarter.
template <int TILE>
constexpr int TEAM = TILE == 64 ? WARPS : 1;

// The team's lanes wait for each other.
template <int TILE>
__device__ void team_barrier() {
  if constexpr (TEAM<TILE> == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// Where the piece of a line begins. 128 bytes hold LINES lines, and 8 lines in a row that have one
// piece each in the same place would meet in the same banks, so that place is XORed with the line.
template <int TILE>
__device__ int place(int line, int piece) {
  constexpr int PIECES = TILE / PIECE, LINES = 8 / PIECES;
  return line * TILE + (piece ^ line / LINES % PIECES) * PIECE;
}

// Begins to copy the part of an operand that begins at `from`; beyond `lines` lines of `length`
// elements it is filled with zeros, which add nothing to a product.
template <int TILE, typename T>
__device__ void load_pieces(T* tile, const T* from, const Operand& o, int lines, int length) {
  constexpr int PIECES = TILE / PIECE, LANES = TEAM<TILE> * 32;
  if (o.packs) {
    const int first = threadIdx.x % PIECES * PIECE;  // the same in every iteration
    const int valid = min(max(length - first, 0), PIECE) * static_cast<int>(sizeof(T));
#pragma unroll
    for (int e = threadIdx.x % LANES; e < TILE * PIECES; e += LANES) {
      const int line = e / PIECES, bytes = line < lines ? valid : 0;
      ptx::cp_async_zero_fill<16>(tile + place<TILE>(line, e % PIECES),
                                  bytes > 0 ? from + line * o.line_stride + first : from, bytes);
    }
  } else {
#pragma unroll 1
    for (int e = threadIdx.x % LANES; e < TILE * TILE; e += LANES) {
      const int line = e / TILE, i = e % TILE;
      tile[place<TILE>(line, i / PIECE) + i % PIECE] =
          line < lines && i < length ? from[line * o.line_stride + i * o.step] : T(0.0f);
    }
  }
}

template <int TILE, typename T>
__device__ void load_operand(T* tile, const T* from, const Operand& o, int64_t row, int64_t col,
                             int64_t rows, int64_t cols) {
  const int64_t lines = o.transposed ? cols - col : rows - row;
  const int64_t length = o.transposed ? rows - row : cols - col;
  load_pieces<TILE>(tile, from + offset(o, row, col), o,
                    static_cast<int>(min(lines, int64_t{TILE})),
                    static_cast<int>(min(length, int64_t{TILE})));
}

// The 16×16 part of an operand that begins at (row, col), multiples of 16, as mma expects a (16×16)
// or, IS_B, two pieces of b (16×8): ldmatrix transposes b, whose columns mma reads along k, and a
// transposed a.
template <int TILE, bool TRANSPOSED, bool IS_B, typename T>
__device__ void load_part(uint32_t (&part)[4], const T* tile, int row, int col) {
  const int lane = threadIdx.x % 32;
  const int line = TRANSPOSED ? col + lane / 16 * 8 + lane % 8 : row + lane % 16;
  const int piece = TRANSPOSED ? row / PIECE ^ lane / 8 % 2 : col / PIECE ^ lane / 16;
  const T* from = tile + place<TILE>(line, piece);
  if constexpr (TRANSPOSED == IS_B) {
    ptx::ldmatrix_x4(part, from);
  } else {
    ptx::ldmatrix_x4_trans(part, from);
  }
}

// sums += the warp's rows of a's tile, from m0, times b's tile, whose first `depth` values of k
// count.
template <int TILE, bool A_TRANSPOSED, bool B_TRANSPOSED, typename T, int PARTS>
__device__ void multiply_tiles(float (&sums)[PARTS][TILE / 8][4], const T* a_tile, const T* b_tile,
                               int m0, int depth) {
#pragma unroll
  for (int k = 0; k < TILE; k += 16) {
    if (k >= depth) break;
    uint32_t a[PARTS][4];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      load_part<TILE, A_TRANSPOSED, false>(a[i], a_tile, m0 + i * 16, k);
    }
#pragma unroll
    for (int n = 0; n < TILE; n += 16) {
      uint32_t b[4];
      load_part<TILE, B_TRANSPOSED, true>(b, b_tile, k, n);
      const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
      for (int i = 0; i < PARTS; ++i) {
        ptx::mma_m16n8k16<T>(sums[i][n / 8], a[i], left, sums[i][n / 8]);
        ptx::mma_m16n8k16<T>(sums[i][n / 8 + 1], a[i], right, sums[i][n / 8 + 1]);
      }
    }
  }
}

// Blocks per multiprocessor that the registers must allow.
template <int TILE>
constexpr int RESIDENT = TILE == 16 ? 12 : 7;

template <typename T, int TILE, typename Batch>
__global__ void __launch_bounds__(WARPS * 32, RESIDENT<TILE>)
    bmm_v3_tensor_cores_kernel(const __grid_constant__ Batch batch, const Product p,
                               T* __restrict__ c, int64_t tasks) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  constexpr int TEAMS = WARPS / TEAM<TILE>, LANES = TEAM<TILE> * 32;
  constexpr int ROWS = TILE / TEAM<TILE>;  // of C, per warp
  __shared__ alignas(16) T tiles[TEAMS][2][TILE * TILE];
  const int team = threadIdx.x / LANES, lane = threadIdx.x % 32;
  const int m0 = threadIdx.x % LANES / 32 * ROWS;  // the first row of the warp
  const int64_t index = int64_t{blockIdx.x} * TEAMS + team;
  if (index >= tasks) return;  // the whole team
  // Tiles of 16 and 32 are for matrices of one tile.
  const Task task = TILE < 64 ? Task{index, 0, 0} : task_of(index, p, TILE);
  const auto from = batch.at(task.matrix);
  T *a_tile = tiles[team][0], *b_tile = tiles[team][1];

  float sums[ROWS / 16][TILE / 8][4] = {};  // 16×8 pieces of the warp's rows
  for (int64_t k0 = 0; k0 < p.K; k0 += TILE) {
    load_operand<TILE>(a_tile, from.a, p.a, task.m, k0, p.M, p.K);
    load_operand<TILE>(b_tile, from.b, p.b, k0, task.n, p.K, p.N);
    ptx::cp_async_wait_all();
    team_barrier<TILE>();  // the copies of all lanes have arrived before any lane reads the tiles
    const int depth = static_cast<int>(p.K - k0 < TILE ? p.K - k0 : TILE);
    if (p.a.transposed) {
      p.b.transposed ? multiply_tiles<TILE, true, true>(sums, a_tile, b_tile, m0, depth)
                     : multiply_tiles<TILE, true, false>(sums, a_tile, b_tile, m0, depth);
    } else {
      p.b.transposed ? multiply_tiles<TILE, false, true>(sums, a_tile, b_tile, m0, depth)
                     : multiply_tiles<TILE, false, false>(sums, a_tile, b_tile, m0, depth);
    }
    team_barrier<TILE>();  // all lanes have read the tiles before any lane overwrites them
  }

  // Through a's tile, so that whole pieces of 16 bytes are stored. A lane has pairs of neighbours.
  struct alignas(4) Two {
    T at[2];
  };
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) {
#pragma unroll
    for (int n = 0; n < TILE / 8; ++n) {
      const float* pair = sums[i / 2][n] + i % 2 * 2;
      *reinterpret_cast<Two*>(a_tile + place<TILE>(m0 + i * 8 + lane / 4, n) + lane % 4 * 2) = {
          static_cast<T>(pair[0]), static_cast<T>(pair[1])};
    }
  }
  team_barrier<TILE>();  // the whole tile is written before any lane stores its pieces
  T* to = c + (task.matrix * p.M + task.m) * p.N + task.n;
  const int rows = static_cast<int>(p.M - task.m < TILE ? p.M - task.m : TILE);
  const int cols = static_cast<int>(p.N - task.n < TILE ? p.N - task.n : TILE);
  const bool whole = p.N % PIECE == 0;  // then all rows of C are aligned
#pragma unroll
  for (int e = threadIdx.x % LANES; e < TILE * TILE / PIECE; e += LANES) {
    const int row = e / (TILE / PIECE), col = e % (TILE / PIECE) * PIECE;
    if (row >= rows || col >= cols) continue;
    const T* piece = a_tile + place<TILE>(row, col / PIECE);
    if (whole) {
      *reinterpret_cast<Pack<T>*>(to + row * p.N + col) = *reinterpret_cast<const Pack<T>*>(piece);
    } else {
#pragma unroll 1
      for (int i = 0; i < PIECE && col + i < cols; ++i) to[row * p.N + col + i] = piece[i];
    }
  }
#endif
}

// Products of `matrices` pairs, into c. For a batch of any kind.
template <typename T, typename Batch>
void multiply(const Batch& batch, Product p, T* c, int64_t matrices, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int tile, int team) {
    p.tiles_m = ceil_div<int64_t>(p.M, tile);
    p.tiles_n = ceil_div<int64_t>(p.N, tile);
    const int64_t tasks = matrices * p.tiles_m * p.tiles_n;
    const unsigned blocks = grid_size(ceil_div<int64_t>(tasks, WARPS / team), "a");
    kernel<<<blocks, WARPS * 32, 0, stream>>>(batch, p, c, tasks);
  };
  const int64_t longest = std::max(p.M, p.N);
  if (longest <= 16) {
    launch(bmm_v3_tensor_cores_kernel<T, 16, Batch>, 16, TEAM<16>);
  } else if (longest <= 32) {
    launch(bmm_v3_tensor_cores_kernel<T, 32, Batch>, 32, TEAM<32>);
  } else {
    launch(bmm_v3_tensor_cores_kernel<T, 64, Batch>, 64, TEAM<64>);
  }
  check_launch("bmm_v3_tensor_cores");
}

// Calls f with a zero of the 16-bit type of t.
template <typename F>
void dispatch_half(const Tensor& t, F&& f) {
  if (t.scalar_type() == ScalarType::Half) return f(__half{});
  f(__nv_bfloat16{});
}

Tensor bmm_v3_tensor_cores(const Tensor& a, const Tensor& b) {
  const auto shape = check_operands(a, b);
  check(a, "a").dtype({ScalarType::Half, ScalarType::BFloat16});
  const DeviceGuard guard(a);
  require_capability(8, 0, "mma of 16-bit types and cp.async");
  Tensor c = allocate(a, shape);
  if (c.numel() == 0) return c;
  const Product p = product(a, b, 1);
  dispatch_half(a, [&](auto zero) {
    using T = decltype(zero);
    multiply(strided<T>(a, b, shape), p, mutable_data<T>(c), c.numel() / (p.M * p.N),
             current_stream(a));
  });
  return c;
}

// ---------------------------------------------------------------------------------------------
// The same kernel for matrices that lie anywhere: their addresses are parameters of the launch, so
// no array of pointers is copied to the GPU. From compute capability 7.0 a kernel may have 32,764
// bytes of parameters (CUDA 12.1).

constexpr int PAIRS = 1920;  // of 16 bytes

template <typename T>
struct PointerBatch {
  struct Pair {
    const T *a, *b;
  } pairs[PAIRS];
  __device__ Pair at(int64_t i) const { return pairs[i]; }
};

// a: tensors (M, K), b: as many tensors (K, N). Returns (matrices, M, N).
Tensor bmm_v3_pointers(std::vector<Tensor> a, std::vector<Tensor> b) {
  STD_TORCH_CHECK(!a.empty() && a.size() == b.size(), "'a' and 'b': expected as many tensors in ",
                  "one as in the other, at least one, got ", a.size(), " and ", b.size());
  check(a[0], "a").dtype({ScalarType::Half, ScalarType::BFloat16}).rank(2);
  check(b[0], "b").rank(2);
  check_operands(a[0], b[0]);
  const DeviceGuard guard(a[0]);
  require_capability(8, 0, "mma of 16-bit types and cp.async");
  Product p = product(a[0], b[0], 1);
  const auto matrices = static_cast<int64_t>(a.size());
  for (int64_t i = 0; i < matrices; ++i) {
    check(a[i], "a").on_gpu().like(a[0], "a[0]").contiguous();
    check(b[i], "b").on_gpu().like(b[0], "b[0]").contiguous();
    p.a.packs = p.a.packs && is_aligned(a[i], 16);
    p.b.packs = p.b.packs && is_aligned(b[i], 16);
  }
  Tensor c = allocate(a[0], {matrices, p.M, p.N});
  if (c.numel() == 0) return c;
  dispatch_half(c, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t first = 0; first < matrices; first += PAIRS) {
      const int64_t count = std::min<int64_t>(PAIRS, matrices - first);
      PointerBatch<T> batch{};
      for (int64_t i = 0; i < count; ++i) {
        batch.pairs[i] = {data<T>(a[first + i]), data<T>(b[first + i])};
      }
      multiply(batch, p, mutable_data<T>(c) + first * p.M * p.N, count, current_stream(c));
    }
  });
  return c;
}

// ---------------------------------------------------------------------------------------------

RUNG(day29, bmm_v1_grid_z, "(Tensor a, Tensor b) -> Tensor");
RUNG(day29, bmm_v2_warp_tiles, "(Tensor a, Tensor b) -> Tensor");
RUNG(day29, bmm_v3_tensor_cores, "(Tensor a, Tensor b) -> Tensor");
RUNG(day29, bmm_v3_pointers, "(Tensor[] a, Tensor[] b) -> Tensor");

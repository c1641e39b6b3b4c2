// Day 52: SGEMM with warp tiles
//
//   D = α · op(A) · op(B) + β · C        op(A): (M, K), op(B): (K, N), C, D: (M, N)
//
// Everything is as in day 51: fp32, row-major, each op the matrix itself or its transpose, any
// shape. Operations: 2 · M · N · K. The bound is the rate at which a multiprocessor starts
// multiply-adds. A scheduler starts one instruction per clock, so every other instruction takes the
// place of one.
//
//   v1 warp_tiles        8 × 16 elements per thread, 64 × 64 per warp, 128 × 256 per block
//   v2 double_buffered   tiles by cp.async and fragments in registers are loaded ahead of their use
//   v3 swizzled          an XOR in the place of the padding
//   v4 tuned             one of several tilings, and split-K: what was the fastest on this GPU
//
// Run: python run_day.py 52

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day52/tiles.cuh"
#include "days/day52/transposed.cuh"

#include <tuple>

// ---------------------------------------------------------------------------------------------
// What all rungs share; the copies into shared memory are in tiles.cuh.

// 8 × 16 elements per thread need 6 packs for 128 multiply-adds, and 128 registers for the sums:
// 256 threads with up to 255 registers fill a multiprocessor.
using Large = Tiling<128, 256, 16, 2, 4, 8, 16, 2, 1>;
using LargeSwizzled = Tiling<128, 256, 16, 2, 4, 8, 16, 2, 1, true>;

// The first row and column of a block in D. Consecutive blocks fill 8 rows of blocks, column by
// column: those that run at the same time read few rows of A and few columns of B, from L2.
struct Corner {
  int64_t m, n;
};
template <typename T>
__device__ Corner block_corner(const Gemm& p) {
  constexpr int64_t GROUP = 8;
  const int64_t rows = ceil_div<int64_t>(p.M, T::BM), columns = ceil_div<int64_t>(p.N, T::BN);
  const int64_t first = blockIdx.x / (GROUP * columns) * GROUP, i = blockIdx.x % (GROUP * columns);
  const int64_t height = min(rows - first, GROUP);
  return {(first + i % height) * T::BM, i / height * T::BN};
}

// The first row and column of a thread in the block's tile. Lanes l and l ^ 1 have the same
// columns, l and l ^ 2 the same rows (day 51).
template <typename T>
__device__ int2 place_of_thread() {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = lane / (2 * T::LANES_N) * 2 + lane % 2, column = lane / 2 % T::LANES_N;
  return {warp / T::WARPS_N * T::WM + row * 4, warp % T::WARPS_N * T::WN + column * 4};
}

// Row k of the tiles, as far as a thread multiplies it. Its packs of rows are 4 · LANES_M apart,
// its packs of columns 4 · LANES_N.
template <typename T>
struct Fragments {
  static constexpr int ROW_STEP = 4 * T::LANES_M, COLUMN_STEP = 4 * T::LANES_N;
  Float4 a[T::TM / 4], b[T::TN / 4];

  template <typename S>
  __device__ void load(const S& stage, int k, int2 at) {
    for (int i = 0; i < T::TM / 4; ++i) {
      const int place = S::A::template place<ROW_STEP>(k, at.x, i);
      a[i] = *reinterpret_cast<const Float4*>(&stage.a[place]);
    }
    for (int j = 0; j < T::TN / 4; ++j) {
      const int place = S::B::template place<COLUMN_STEP>(k, at.y, j);
      b[j] = *reinterpret_cast<const Float4*>(&stage.b[place]);
    }
  }

  // Column by column, downwards and upwards in turns: each multiply-add has an operand in common
  // with the one before, which the hardware then need not read again.
  __device__ void multiply(float (&sum)[T::TM][T::TN]) const {
#pragma unroll
    for (int j = 0; j < T::TN; ++j) {
#pragma unroll
      for (int turn = 0; turn < T::TM; ++turn) {
        const int i = j % 2 ? T::TM - 1 - turn : turn;
        sum[i][j] += a[i / 4].at[i % 4] * b[j / 4].at[j % 4];
      }
    }
  }
};

template <typename T>
__device__ void store_sums(const Gemm& p, Corner corner, int2 at,
                           const float (&sum)[T::TM][T::TN]) {
  using F = Fragments<T>;
  const bool packs = p.N % 4 == 0 && reinterpret_cast<uintptr_t>(p.c) % 16 == 0;
#pragma unroll
  for (int i = 0; i < T::TM; ++i) {
    const int64_t m = corner.m + at.x + i / 4 * F::ROW_STEP + i % 4;
    for (int j = 0; j < T::TN; j += 4) {
      const int64_t n = corner.n + at.y + j / 4 * F::COLUMN_STEP;
      packs ? store_pack<true>(p, m, n, &sum[i][j]) : store_pack<false>(p, m, n, &sum[i][j]);
    }
  }
}

// Calls launch(packs of A, packs of B), two constants: whether tiles of an operand are copied pack
// by pack. Refuses a GPU without cp.async.
template <typename F>
void with_packs(const Gemm& p, F&& launch) {
  require_capability(8, 0, "cp.async");
  const auto along_mn = [](const Operand& x) { return x.k_stride != 1 && has_packs(x); };
  using Yes = std::true_type;
  using No = std::false_type;
  const bool a = along_mn(p.a), b = along_mn(p.b);
  if (a) return b ? launch(Yes{}, Yes{}) : launch(Yes{}, No{});
  return b ? launch(No{}, Yes{}) : launch(No{}, No{});
}

template <typename T>
int64_t blocks_of(const Gemm& p) {
  return ceil_div<int64_t>(p.M, T::BM) * ceil_div<int64_t>(p.N, T::BN);
}

// ---------------------------------------------------------------------------------------------
// v1: warp tiles. A warp computes a square of 64 × 64 elements, for which it loads 128 numbers per
// value of k, and a thread has 8 × 16 of them. Nothing overlaps: the block copies, then multiplies.

template <typename T, bool A_PACKS, bool B_PACKS>
__global__ void __launch_bounds__(T::BLOCK, T::RESIDENT) sgemm_v1_warp_tiles_kernel(Gemm p) {
  __shared__ Stage<T, A_PACKS, B_PACKS> stage;
  const Corner corner = block_corner<T>(p);
  const int2 at = place_of_thread<T>();
  Share<T, T::BM, A_PACKS> a(p.a, corner.m, 0);
  Share<T, T::BN, B_PACKS> b(p.b, corner.n, 0);

  float sum[T::TM][T::TN] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += T::BK) {
    const int left = static_cast<int>(min(p.K - k0, int64_t{T::BK}));
    a.copy(stage.a, p.a, left);
    b.copy(stage.b, p.b, left);
    ptx::cp_async_wait_all();
    __syncthreads();  // both tiles are complete before any thread multiplies
#pragma unroll
    for (int k = 0; k < T::BK; ++k) {
      Fragments<T> fragments;
      fragments.load(stage, k, at);
      fragments.multiply(sum);
    }
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
  }
  store_sums<T>(p, corner, at, sum);
}

Tensor sgemm_v1_warp_tiles(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                           bool a_transposed, bool b_transposed, double alpha, double beta) {
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v1_warp_tiles", [](const Gemm& p, cudaStream_t stream) {
    with_packs(p, [&](auto a_packs, auto b_packs) {
      const auto kernel = sgemm_v1_warp_tiles_kernel<Large, a_packs, b_packs>;
      kernel<<<grid_size(blocks_of<Large>(p), "a, b"), Large::BLOCK, 0, stream>>>(p);
    });
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: double buffering, twice. While the tiles of one stage are multiplied, cp.async
// fills the other one. While row k of a tile is multiplied, row k + 1 comes into registers.

// The tiles of one block, from k0 on to the end of its part of K.
template <typename T, bool A_PACKS, bool B_PACKS>
struct Tiles {
  Stage<T, A_PACKS, B_PACKS>* stages;
  Share<T, T::BM, A_PACKS> a;
  Share<T, T::BN, B_PACKS> b;
  int count;

  // Starts the copies of a whole tile.
  __device__ void copy(int stage) {
    a.copy(stages[stage].a);
    b.copy(stages[stage].b);
  }

  // Starts the copies of the first STAGES - 1 tiles, a group each. The first one takes what whole
  // tiles leave over of `length` values of k, so that no other one has a tail.
  __device__ void begin(const Gemm& p, int64_t length) {
    count = static_cast<int>(ceil_div<int64_t>(length, T::BK));
    if (count > 0) {
      const int left = static_cast<int>(length - int64_t{count - 1} * T::BK);
      a.copy(stages[0].a, p.a, left);
      b.copy(stages[0].b, p.b, left);
    }
    ptx::cp_async_commit();
    for (int i = 1; i < T::STAGES - 1; ++i) {
      if (i < count) copy(i);
      ptx::cp_async_commit();
    }
  }

  // Waits for the next tile: all but the youngest STAGES - 2 groups have arrived, for all threads.
  // All threads have read the tile before, too, so that its stage is free.
  __device__ static void wait() {
    ptx::cp_async_wait<T::STAGES - 2>();
    __syncthreads();
  }
};

// Adds the products of all tiles to the thread's sums. The barrier for a tile stands before the
// last multiplications of the tile before it, which then hide the loads of the first fragments.
template <typename T, bool A_PACKS, bool B_PACKS>
__device__ void multiply_tiles(float (&sum)[T::TM][T::TN], Tiles<T, A_PACKS, B_PACKS>& tiles,
                               int2 at) {
  Fragments<T> fragments[2];
  int stage = 0, free = T::STAGES - 1;
  if (tiles.count == 0) return;
  tiles.wait();
  fragments[0].load(tiles.stages[0], 0, at);
  for (int i = 0; i < tiles.count; ++i) {
#pragma unroll
    for (int k = 0; k < T::BK; ++k) {
      if (k < T::BK - 1) {
        fragments[(k + 1) % 2].load(tiles.stages[stage], k + 1, at);
      } else if (i + 1 < tiles.count) {
        tiles.wait();
        stage = stage < T::STAGES - 1 ? stage + 1 : 0;
        fragments[0].load(tiles.stages[stage], 0, at);
      }
      if (k == 0) {
        if (i + T::STAGES - 1 < tiles.count) tiles.copy(free);
        ptx::cp_async_commit();
        free = free < T::STAGES - 1 ? free + 1 : 0;
      }
      fragments[k % 2].multiply(sum);
    }
  }
}

// Block (x, y) adds up the y-th part of K, of `part` values or what is left, which may be none. The
// sums of the parts follow each other in p.d.
template <typename T, bool A_PACKS, bool B_PACKS>
__global__ void __launch_bounds__(T::BLOCK, T::RESIDENT)
    sgemm_v2_double_buffered_kernel(Gemm p, int64_t part) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Corner corner = block_corner<T>(p);
  const int2 at = place_of_thread<T>();
  const int64_t k0 = blockIdx.y * part;
  Tiles<T, A_PACKS, B_PACKS> tiles{reinterpret_cast<Stage<T, A_PACKS, B_PACKS>*>(shared),
                                   {p.a, corner.m, k0},
                                   {p.b, corner.n, k0}};
  tiles.begin(p, max(min(part, p.K - k0), int64_t{0}));
  float sum[T::TM][T::TN] = {};
  multiply_tiles<T>(sum, tiles, at);
  p.d += blockIdx.y * p.M * p.N;
  store_sums<T>(p, corner, at, sum);
}

template <typename T>
void launch_buffered(const Gemm& p, int64_t splits, cudaStream_t stream) {
  with_packs(p, [&](auto a_packs, auto b_packs) {
    constexpr int SHARED = T::STAGES * sizeof(Stage<T, a_packs, b_packs>);
    const auto kernel = sgemm_v2_double_buffered_kernel<T, a_packs, b_packs>;
    require_shared_memory(SHARED, "two stages of tiles");
    allow_shared(kernel, SHARED);
    const dim3 grid(grid_size(blocks_of<T>(p), "a, b"), grid_size_y(splits, "splits"));
    const int64_t part = ceil_div(ceil_div<int64_t>(p.K, T::BK), splits) * T::BK;
    kernel<<<grid, T::BLOCK, SHARED, stream>>>(p, part);
  });
}

Tensor sgemm_v2_double_buffered(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                                bool a_transposed, bool b_transposed, double alpha, double beta) {
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v2_double_buffered",
                  [](const Gemm& p, cudaStream_t stream) { launch_buffered<Large>(p, 1, stream); });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the place of an element is an XOR of its row or column with its k. It spreads a
// column over the banks as the padding did, without a word of memory.

Tensor sgemm_v3_swizzled(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                         bool a_transposed, bool b_transposed, double alpha, double beta) {
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v3_swizzled", [](const Gemm& p, cudaStream_t stream) {
    launch_buffered<LargeSwizzled>(p, 1, stream);
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: the caller names a tiling, and into how many parts K is split. tuning.py chooses
// both, by what is stored of this GPU. A large K-major operand is transposed first.

// Calls f with a tiling as its argument.
template <typename F>
auto with_tiling(int64_t tiling, F&& f) {
  switch (tiling) {
    case 0:
      return f(Large{});
    case 1:
      return f(LargeSwizzled{});
    case 2:
      return f(Tiling<128, 128, 16, 2, 2, 8, 16, 2, 2>{});
    case 3:
      return f(Tiling<128, 128, 16, 4, 2, 8, 8, 2, 2>{});
    case 4:
      return f(Tiling<64, 64, 16, 2, 2, 8, 4, 3, 4>{});
    case 5:
      return f(Tiling<32, 128, 16, 1, 4, 4, 8, 3, 4>{});
    case 6:
      return f(Tiling<128, 32, 16, 4, 1, 8, 4, 3, 4>{});
    default:
      STD_TORCH_CHECK(false, "tiling: expected 0 to 6, got ", tiling);
  }
}

// D from the sums of all splits, (splits, M, N), always in the same order.
__global__ void add_splits_kernel(Gemm p, const float* sums, int64_t splits) {
  const int64_t elements = p.M * p.N, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  float sum = 0.0f;
  for (int64_t split = 0; split < splits; ++split) sum += sums[split * elements + i];
  store(p, i / p.N, i % p.N, sum);
}

Tensor sgemm_v4_tuned(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                      bool a_transposed, bool b_transposed, double alpha, double beta,
                      int64_t tiling, int64_t splits) {
  STD_TORCH_CHECK(splits >= 1 && splits <= 256, "splits: expected 1 to 256, got ", splits);
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v4_tuned", [&](Gemm p, cudaStream_t stream) {
    const Tensor copies[] = {copy_if_it_pays(p.a, p.N, a, stream),
                             copy_if_it_pays(p.b, p.M, a, stream)};
    with_tiling(tiling, [&](auto chosen) {
      using T = decltype(chosen);
      if (splits == 1) return launch_buffered<T>(p, 1, stream);
      const Tensor sums = allocate(a, {splits, p.M, p.N});
      Gemm parts = p;
      parts.c = nullptr, parts.d = mutable_data<float>(sums), parts.alpha = 1.0f;
      launch_buffered<T>(parts, splits, stream);
      constexpr int BLOCK = 256;
      const unsigned grid = grid_size(ceil_div<int64_t>(p.M * p.N, BLOCK), "a, b");
      add_splits_kernel<<<grid, BLOCK, 0, stream>>>(p, data<float>(sums), splits);
    });
  });
}

// Rows and columns per block of a tiling, for tuning.py.
std::tuple<int64_t, int64_t> tile_of(const Tensor&, int64_t tiling) {
  return with_tiling(tiling, [](auto chosen) {
    using T = decltype(chosen);
    return std::tuple<int64_t, int64_t>{T::BM, T::BN};
  });
}

// ---------------------------------------------------------------------------------------------

#define SGEMM(more)                                                                               \
  "(Tensor a, Tensor b, Tensor? c=None, bool a_transposed=False, bool b_transposed=False, float " \
  "alpha=1.0, float beta=0.0" more ") -> Tensor"
RUNG(day52, sgemm_v1_warp_tiles, SGEMM(""));
RUNG(day52, sgemm_v2_double_buffered, SGEMM(""));
RUNG(day52, sgemm_v3_swizzled, SGEMM(""));
RUNG(day52, sgemm_v4_tuned, SGEMM(", int tiling=0, int splits=1"));
RUNG(day52, tile_of, "(Tensor on, int tiling) -> (int, int)");

// Day 51: SGEMM with register tiles
//
//   D = α · op(A) · op(B) + β · C        op(A): (M, K), op(B): (K, N), C, D: (M, N)
//
// Each op is the matrix itself or its transpose. All are fp32, row-major and contiguous.
//
// Operations: 2 · M · N · K. A block with a tile of 128 × 128 elements of D loads 256 numbers per k
// from global memory, for 32768 operations. The rungs save loads from shared memory: per k, a
// thread has
//
//   v1 column         8 × 1 elements per thread     9 loads for 8 multiply-adds
//   v2 square         8 × 8 elements per thread     16 loads for 64 multiply-adds
//   v3 vectorised     packs of 16 bytes             4 loads for 64 multiply-adds
//   v4 paired_lanes   4 × 8 lanes per warp          the same, in fewer wavefronts
//
// Run: python run_day.py 51

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "days/day51/gemm.cuh"

// ---------------------------------------------------------------------------------------------
// What all rungs share; arguments and their checks are in gemm.cuh.

constexpr int BK = 16;  // depth of a tile: two barriers per 16 values of k

// Words behind each row of a tile. They spread a column over the banks: a warp of v1 or v2 that
// stores 8 values of k for 4 of mn has no bank conflicts, nor has one of v3 that transposes packs.
constexpr int PAD = 4;

// The tile of an operand in shared memory, (k, mn).
template <int BMN>
using Tile = float[BK][BMN + PAD];

// The first row and column of this block's tile of D. Consecutive blocks lie side by side and read
// the same rows of A.
struct Corner {
  int64_t m, n;
};
template <int BM, int BN>
__device__ Corner block_corner(const Gemm& p) {
  const int64_t across = ceil_div<int64_t>(p.N, BN);
  return {blockIdx.x / across * BM, blockIdx.x % across * BN};
}

template <int64_t BM, int64_t BN>
unsigned grid_of(const Gemm& p) {
  return grid_size(ceil_div(p.M, BM) * ceil_div(p.N, BN), "a, b");
}

// ---------------------------------------------------------------------------------------------
// v1: thread coarsening. A thread computes 8 elements of one column, and each value of B that it
// loads from shared memory serves all of them.

// tile[k][mn] = element (mn0 + mn, k0 + k) of x, by all threads of the block. Elements outside of x
// become zeros, which add nothing to a sum.
template <int THREADS, int BMN>
__device__ void load_tile(Tile<BMN>& tile, const Operand& x, int64_t mn0, int64_t k0) {
  const auto load = [&](int mn, int k) {
    tile[k][mn] = x.has(mn0 + mn, k0 + k) ? *x.address(mn0 + mn, k0 + k) : 0.0f;
  };
  const int t = threadIdx.x;
  if (x.k_major()) {  // a warp reads 8 elements of each of 4 rows: 4 whole sectors
#pragma unroll
    for (int mn = 0; mn < BMN; mn += THREADS / 8) {
      for (int k = 0; k < BK; k += 8) load(mn + t / 8, k + t % 8);
    }
  } else {  // a warp reads 32 adjacent elements
#pragma unroll
    for (int k = 0; k < BK; k += THREADS / BMN) load(t % BMN, k + t / BMN);
  }
}

// A thread computes the elements (row + i · ROWS, col + j · COLS) of the block's tile.
template <int BM, int BN, int TM, int TN, int THREADS = BM / TM * (BN / TN)>
__global__ void __launch_bounds__(THREADS, 2) register_tile_kernel(Gemm p) {
  constexpr int ROWS = BM / TM, COLS = BN / TN;
  __shared__ Tile<BM> a_tile;
  __shared__ Tile<BN> b_tile;
  const auto [m0, n0] = block_corner<BM, BN>(p);
  const int row = threadIdx.x / COLS, col = threadIdx.x % COLS;

  float sum[TM][TN] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += BK) {
    load_tile<THREADS, BM>(a_tile, p.a, m0, k0);
    load_tile<THREADS, BN>(b_tile, p.b, n0, k0);
    __syncthreads();  // both tiles are complete before any thread multiplies
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int i = 0; i < TM; ++i) a[i] = a_tile[k][row + i * ROWS];
      for (int j = 0; j < TN; ++j) b[j] = b_tile[k][col + j * COLS];
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) sum[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
  }
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; ++j) store(p, m0 + row + i * ROWS, n0 + col + j * COLS, sum[i][j]);
  }
}

Tensor sgemm_v1_column(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                       bool a_transposed, bool b_transposed, double alpha, double beta) {
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v1_column", [](const Gemm& p, cudaStream_t stream) {
    register_tile_kernel<64, 64, 8, 1><<<grid_of<64, 64>(p), 512, 0, stream>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: 8 × 8 elements per thread. A value of A serves 8 columns, a value of B 8 rows, and
// 256 threads compute a tile of 128 × 128.

constexpr int BM = 128, BN = 128;  // elements of D per block
constexpr int TM = 8, TN = 8;      // elements of D per thread
constexpr int BLOCK = BM / TM * (BN / TN);

Tensor sgemm_v2_square(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                       bool a_transposed, bool b_transposed, double alpha, double beta) {
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v2_square", [](const Gemm& p, cudaStream_t stream) {
    register_tile_kernel<BM, BN, TM, TN><<<grid_of<BM, BN>(p), BLOCK, 0, stream>>>(p);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: all loads take packs of 16 bytes. For that, the rows and columns of a thread are
// adjacent in fours: [row, row + 4) and [row + 64, row + 68), columns likewise.

using Float4 = Pack<float>;

constexpr int ROW_PACKS = TM / 4, COL_PACKS = TN / 4;                // per thread
constexpr int ROW_STEP = BM / ROW_PACKS, COL_STEP = BN / COL_PACKS;  // from pack to pack
constexpr int DEPTH = 4 * BLOCK / BM;  // values of k for which all threads load one pack each
static_assert(BM == BN && DEPTH == 8, "both tiles are loaded alike: two packs of k per row");

// What one thread brings into the tiles of an operand: a pack from (mn, k) of the tile on, and one
// from (mn, k + DEPTH) on. ALIGNED: a pack lies within the operand or outside of it as a whole, at
// a multiple of 16 bytes.
template <bool ALIGNED>
struct Share {
  int mn, k;
  int rows;           // of the operand, from the pack's first one on; negative outside
  const float* from;  // where the next tile's first pack lies
  Float4 packs[BK / DEPTH];

  // Along k, two threads read the 8 elements of a sector; along mn, a warp reads 128 elements.
  __device__ Share(const Operand& x, int64_t mn0) {
    const int t = threadIdx.x, across = BM / 4;  // packs per row of the tile
    mn = x.k_major() ? t / 2 : t % across * 4;
    k = x.k_major() ? t % 2 * 4 : t / across;
    rows = static_cast<int>(min(x.size - mn0, int64_t{BM})) - mn;
    from = x.address(mn0 + mn, k);
  }

  // depth: values of k that are left, 1 or more. Elements outside of the operand become zeros.
  __device__ void load(const Operand& x, int64_t depth) {
    for (int i = 0; i < BK / DEPTH; ++i) {
      const int64_t values = depth - (k + i * DEPTH);  // of k, from the pack's first one on
      const float* pack = from + i * DEPTH * x.k_stride;
      packs[i] = {};
      if constexpr (ALIGNED) {
        if (rows > 0 && values > 0) packs[i] = *reinterpret_cast<const Float4*>(pack);
      } else {
        for (int e = 0; e < 4; ++e) {
          const bool exists = x.k_major() ? rows > 0 && values > e : rows > e && values > 0;
          if (exists) packs[i].at[e] = pack[e];
        }
      }
    }
    from += BK * x.k_stride;
  }

  // A pack that runs along k is transposed: its elements go to four rows of the tile.
  __device__ void store(Tile<BM>& tile, bool k_major) const {
    for (int i = 0; i < BK / DEPTH; ++i) {
      float* to = &tile[k + i * DEPTH][mn];
      if (k_major) {
        for (int e = 0; e < 4; ++e) to[e * (BM + PAD)] = packs[i].at[e];
      } else {
        *reinterpret_cast<Float4*>(to) = packs[i];
      }
    }
  }
};

// Adds the product of the tiles to the sums of the thread's rows and columns.
__device__ inline void multiply_tiles(float (&sum)[TM][TN], const Tile<BM>& a_tile,
                                      const Tile<BN>& b_tile, int row, int col) {
#pragma unroll
  for (int k = 0; k < BK; ++k) {
    Float4 a[ROW_PACKS], b[COL_PACKS];
    for (int i = 0; i < ROW_PACKS; ++i) {
      a[i] = *reinterpret_cast<const Float4*>(&a_tile[k][row + i * ROW_STEP]);
    }
    for (int j = 0; j < COL_PACKS; ++j) {
      b[j] = *reinterpret_cast<const Float4*>(&b_tile[k][col + j * COL_STEP]);
    }
    for (int i = 0; i < TM; ++i) {
      for (int j = 0; j < TN; ++j) sum[i][j] += a[i / 4].at[i % 4] * b[j / 4].at[j % 4];
    }
  }
}

// The first row and column of a thread in the block's tile: a warp has 2 × 16 lanes.
struct LanesInRows {
  static __device__ int2 place() {
    const int t = threadIdx.x;
    return {t / 16 * 4, t % 16 * 4};
  }
};

// Two blocks per multiprocessor: one can multiply while the other one waits for its loads.
template <typename Lanes, bool ALIGNED>
__global__ void __launch_bounds__(BLOCK, 2) sgemm_v3_vectorised_kernel(Gemm p) {
  __shared__ alignas(16) Tile<BM> a_tile;
  __shared__ alignas(16) Tile<BN> b_tile;
  const auto [m0, n0] = block_corner<BM, BN>(p);
  const auto [row, col] = Lanes::place();
  Share<ALIGNED> a(p.a, m0), b(p.b, n0);

  float sum[TM][TN] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += BK) {
    a.load(p.a, p.K - k0);
    b.load(p.b, p.K - k0);
    __syncthreads();  // all threads are done with the tiles before any thread overwrites them
    a.store(a_tile, p.a.k_major());
    b.store(b_tile, p.b.k_major());
    __syncthreads();  // both tiles are complete before any thread multiplies
    multiply_tiles(sum, a_tile, b_tile, row, col);
  }
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int64_t m = m0 + row + i / 4 * ROW_STEP + i % 4;
    for (int j = 0; j < TN; j += 4) {
      store_pack<ALIGNED>(p, m, n0 + col + j / 4 * COL_STEP, &sum[i][j]);
    }
  }
}

template <typename Lanes>
void launch_vectorised(const Gemm& p, cudaStream_t stream) {
  const auto kernel = has_packs(p) ? sgemm_v3_vectorised_kernel<Lanes, true>
                                   : sgemm_v3_vectorised_kernel<Lanes, false>;
  kernel<<<grid_of<BM, BN>(p), BLOCK, 0, stream>>>(p);
}

Tensor sgemm_v3_vectorised(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                           bool a_transposed, bool b_transposed, double alpha, double beta) {
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v3_vectorised", launch_vectorised<LanesInRows>);
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: a warp has 4 × 8 lanes. Lanes l and l ^ 1 share their columns, l and l ^ 2 their
// rows. Such a load of 16 bytes takes two wavefronts, not four: so NVIDIA on Volta and Turing, and
// so ncu on an H200.

struct PairedLanes {
  static __device__ int2 place() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / 2 * 4 + lane / 16 * 2 + lane % 2;  // in packs: [0, 16)
    const int col = warp % 2 * 8 + lane / 2 % 8;
    return {row * 4, col * 4};
  }
};

Tensor sgemm_v4_paired_lanes(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                             bool a_transposed, bool b_transposed, double alpha, double beta) {
  const Arguments of{a, b, c, a_transposed, b_transposed, alpha, beta};
  return multiply(of, "sgemm_v4_paired_lanes", launch_vectorised<PairedLanes>);
}

// ---------------------------------------------------------------------------------------------

#define SGEMM                                                                                     \
  "(Tensor a, Tensor b, Tensor? c=None, bool a_transposed=False, bool b_transposed=False, float " \
  "alpha=1.0, float beta=0.0) -> Tensor"
RUNG(day51, sgemm_v1_column, SGEMM);
RUNG(day51, sgemm_v2_square, SGEMM);
RUNG(day51, sgemm_v3_vectorised, SGEMM);
RUNG(day51, sgemm_v4_paired_lanes, SGEMM);

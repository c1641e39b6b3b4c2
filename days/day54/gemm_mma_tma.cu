// Day 54, second file: the rung whose tiles are copied by TMA, the tensor memory accelerator, which
// day 55 takes apart. It needs compute capability 9.0.
//
//   v5 tma   v4's schedule; one thread asks for whole tiles; 256 × 192 per block, 64 × 96 per warp
//
// A step multiplies (256, 64) by (64, 192): 6.3 M operations on 56 KB from L2.

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/matrix_map.cuh"       // taught in day 55
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // mbarriers: taught in day 35
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day54/stream_k.cuh"
#include "days/day54/tiles.cuh"

#include <algorithm>

// ---------------------------------------------------------------------------------------------
// v5 against v4: one thread starts a step's copies, a box of A and one or three of B, and the
// other threads only multiply. So registers are free for 64 × 96 sums per warp, 192 per thread.

// Columns of B in a box of 128 bytes per row, the widest with a swizzle. Two warps share each box,
// 32 columns each, so that 96 columns of a warp come from three boxes.
constexpr int BOX = 64;

template <typename Element, bool B_BY_COLUMNS>
struct TmaTile {
  using T = Element;
  static constexpr bool B_IS_NK = B_BY_COLUMNS;  // B is stored as (N, K)
  static constexpr int BM = 256, BN = 192, BK = 64, STAGES = 3;
  static constexpr int THREADS = 256, WM = 64, WN = 96, WARPS_N = BN / WN;
  static constexpr int WARP_COLS = 32, GROUP_COLS = WARP_COLS * WARPS_N, ROW_B = BOX;
  static constexpr int PIECES_A = WM / 16, PIECES_B = WN / 16;     // of 16 rows, and of 16 columns
  static constexpr int A_SIZE = BM * BK, SIZE = A_SIZE + BK * BN;  // elements of a stage
  static constexpr int BOX_SIZE = BK * BOX;                        // elements of a box of B
  static constexpr int BYTES = STAGES * SIZE * 2 + TILE_ALIGNMENT;
  static_assert(GROUP_COLS == BOX && WN % WARP_COLS == 0, "a piece is within 32 columns of a box");
};

// The rows of A for 16 values of k, and two times 16 columns of B: while one piece of B is
// multiplied, the next is loaded. A row of A is replaced after its last product.
template <typename P>
struct BoxFragments {
  uint32_t a[P::PIECES_A][4];
  uint32_t b[2][2][2];

  // Piece i of the rows; k: which 16 values of the stage's.
  __device__ __forceinline__ void load_a(const typename P::T* stage, const Places<P>& at, int k,
                                         int i) {
    ptx::ldmatrix_x4(a[i], stage + (at.a ^ 16 * k) + 16 * i * P::BK);
  }

  // Piece j of the columns: two pieces in each 32.
  __device__ __forceinline__ void load_b(const typename P::T* stage, const Places<P>& at, int k,
                                         int j) {
    uint32_t r[4];
    if constexpr (P::B_IS_NK) {
      ptx::ldmatrix_x4(r, stage + (at.b ^ 16 * k) + (j / 2 * P::GROUP_COLS + j % 2 * 16) * P::BK);
    } else {
      ptx::ldmatrix_x4_trans(r, stage + (at.b ^ j % 2 * 16) + j / 2 * P::BOX_SIZE + 16 * k * BOX);
    }
    auto& to = b[j % 2];
    to[0][0] = r[0], to[0][1] = r[1], to[1][0] = r[2], to[1][1] = r[3];
  }

  // All rows, and the first piece of the columns.
  __device__ __forceinline__ void load(const typename P::T* stage, const Places<P>& at, int k) {
#pragma unroll
    for (int i = 0; i < P::PIECES_A; ++i) load_a(stage, at, k, i);
    load_b(stage, at, k, 0);
  }

  // The products of piece i of the rows and piece j of the columns.
  __device__ __forceinline__ void multiply(Sums<P>& sums, int i, int j) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      auto& of = sums[i][2 * j + h];
      ptx::mma_m16n8k16<typename P::T>(of, a[i], b[j % 2][h], of);
    }
  }
};

// The maps describe A and B to TMA (day 55): their sizes, and how large a box is.
struct Maps {
  ptx::TensorMap a, b;
};

// Starts the copies of a block's steps, across all of its parts. Only thread 0 uses it, so it is in
// shared memory: in registers, it would be in those of all threads.
template <typename P>
struct BoxLoads {
  Work work;
  int left, m, n, k;  // left: steps of the current part; 0 after the last part

  __device__ void begin(const Schedule& s, const Work& all) {
    work = all;
    next_part(s);
  }

  __device__ __forceinline__ void next_part(const Schedule& s) {
    left = work.next(s) ? work.count : 0;
    if (left == 0) return;
    const Corner tile = tile_at<P>(work.tile, s);
    m = tile.m * P::BM, n = tile.n * P::BN, k = work.first * P::BK;
  }

  // The copies of the next step. `full` completes a phase when all of their bytes are there; beyond
  // the matrix they are zeros. After the last step there are none, and what the stage holds then is
  // loaded into fragments, but never multiplied.
  __device__ __forceinline__ void fill(typename P::T* stage, uint64_t* full, const Maps& maps,
                                       const Schedule& s) {
    if (left == 0) {
      ptx::mbarrier_arrive(full);
      return;
    }
    ptx::mbarrier_arrive_expect_bytes(full, P::SIZE * 2);
    ptx::load_tensor(stage, maps.a, {k, m}, full);
    if constexpr (P::B_IS_NK) {
      ptx::load_tensor(stage + P::A_SIZE, maps.b, {k, n}, full);
    } else {
#pragma unroll
      for (int i = 0; i < P::BN / BOX; ++i) {
        ptx::load_tensor(stage + P::A_SIZE + i * P::BOX_SIZE, maps.b, {n + i * BOX, k}, full);
      }
    }
    k += P::BK;
    if (--left == 0) next_part(s);
  }
};

// As Pipeline of v2, with an mbarrier per stage in place of groups of copies.
template <typename P>
struct BoxPipeline {
  typename P::T* stages;
  uint64_t* full;
  int stage, parity;
  Places<P> places;
  BoxFragments<P> fragments;

  __device__ __forceinline__ void wait() const {
    ptx::mbarrier_wait(&full[stage], parity);  // this stage is complete …
    __syncthreads();                           // … and all warps have read the one before
  }

  __device__ BoxPipeline(typename P::T* stages, uint64_t* full)
      : stages(stages), full(full), stage(0), parity(0) {
    wait();
    fragments.load(stages, places, 0);
  }

  // sums += the products of `count` steps. The stage of the step before is refilled: all warps have
  // read it, as they met in wait(). Not at once behind it, where fragments are waited for.
  __device__ __forceinline__ void multiply_steps(Sums<P>& sums, int count, BoxLoads<P>& loads,
                                                 const Maps& maps, const Schedule& s) {
    constexpr int LAST = P::BK / 16 - 1;
    for (int step = 0; step < count; ++step) {
      auto* from = stages + stage * P::SIZE;  // where the next fragments are
#pragma unroll
      for (int k = 0; k <= LAST; ++k) {
#pragma unroll
        for (int j = 0; j < P::PIECES_B; ++j) {
          const bool last = j == P::PIECES_B - 1;
          if (k == 1 && j == 1 && threadIdx.x == 0) {
            const int before = stage == 0 ? P::STAGES - 1 : stage - 1;
            loads.fill(stages + before * P::SIZE, &full[before], maps, s);
          }
          if (last && k == LAST) {
            if (++stage == P::STAGES) stage = 0, parity ^= 1;
            wait();
            from = stages + stage * P::SIZE;
          }
          const int next = !last ? k : k < LAST ? k + 1 : 0;
          fragments.load_b(from, places, next, last ? 0 : j + 1);
#pragma unroll
          for (int i = 0; i < P::PIECES_A; ++i) {
            fragments.multiply(sums, i, j);
            if (last) fragments.load_a(from, places, next, i);
          }
        }
      }
    }
  }
};

template <typename P>
__global__ void __launch_bounds__(P::THREADS)
    gemm_v5_tma_kernel(const Gemm<typename P::T> p, const Schedule s,
                       const __grid_constant__ Maps maps) {
#ifdef HAS_TMA
  auto* stages = reinterpret_cast<typename P::T*>(tile_memory());
  __shared__ uint64_t full[P::STAGES];
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : full) ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are there before any thread waits at one
  const int range = range_of_block(s);
  Work work = work_of(s, range);
  __shared__ BoxLoads<P> loads;
  if (threadIdx.x == 0) {
    loads.begin(s, work);
    for (int i = 0; i < P::STAGES - 1; ++i) loads.fill(stages + i * P::SIZE, &full[i], maps, s);
  }
  BoxPipeline<P> pipeline(stages, full);
  while (work.next(s)) {
    Sums<P> sums;
    clear<P>(sums);
    pipeline.multiply_steps(sums, work.count, loads, maps, s);
    finish_part<P>(sums, p, s, work, range);
  }
#endif
}

// ---------------------------------------------------------------------------------------------
// Launchers. Rows of A and B begin at multiples of 16 bytes, as TMA (day 55) needs them too: others
// are copied before (whole_rows of gemm.cuh).

template <typename P>
void launch_tma(const Gemm<typename P::T>& p, const Tensor& a, const Shares& shares) {
  require_tma();
  require_shared_memory(P::BYTES, "the stages");
  Schedule s = all_tiles<P>(p);
  const Exchange exchange = split_tiles<P>(s, a, shares.blocks, shares.stream_tiles);
  const auto map = [](const auto* at, int64_t rows, int64_t cols, int64_t ld, int box_rows) {
    return ptx::make_tensor_map(at, {.sizes = {cols, rows},
                                     .strides = {2 * ld},
                                     .box = {64, box_rows},
                                     .swizzle = ptx::Swizzle::k128});
  };
  const Maps maps{map(p.a, p.M, p.K, p.lda, P::BM),
                  P::B_IS_NK ? map(p.b, p.N, p.K, p.ldb, P::BN) : map(p.b, p.K, p.N, p.ldb, P::BK)};
  const auto kernel = gemm_v5_tma_kernel<P>;
  allow_shared(kernel, P::BYTES);
  kernel<<<grid_size(shares.blocks, "a, b"), P::THREADS, P::BYTES, current_stream(a)>>>(p, s, maps);
}

Tensor gemm_v5_tma(const Tensor& a, const Tensor& b) {
  return multiply_matrices(a, b, "gemm_v5_tma", [&]<typename T>(const Gemm<T>& p, auto b_is_nk) {
    using P = TmaTile<T, b_is_nk()>;
    launch_tma<P>(p, a, stream_k_shares(all_tiles<P>(p), multiprocessor_count(a)));
  });
}

// For the checks: `blocks` blocks, which split the last tiles or not.
Tensor gemm_tma_variant(const Tensor& a, const Tensor& b, int64_t blocks, bool stream) {
  STD_TORCH_CHECK(blocks > 0 && blocks <= 65535, "blocks: expected 1 to 65535, got ", blocks);
  return multiply_matrices(
      a, b, "gemm_tma_variant", [&]<typename T>(const Gemm<T>& p, auto b_is_nk) {
        using P = TmaTile<T, b_is_nk()>;
        const Schedule s = all_tiles<P>(p);
        const int64_t tiles = s.tiles(), used = std::min(blocks, stream ? tiles * s.steps : tiles);
        const int64_t split = !stream ? 0 : tiles < used ? tiles : used + tiles % used;
        launch_tma<P>(p, a, {used, split});
      });
}

// ---------------------------------------------------------------------------------------------

RUNG(day54, gemm_v5_tma, "(Tensor a, Tensor b) -> Tensor");
RUNG(day54, gemm_tma_variant, "(Tensor a, Tensor b, int blocks, bool stream) -> Tensor");

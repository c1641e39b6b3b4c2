// Day 54: matrix products by mma.sync, whose operands are loaded several steps ahead
//
//   C = A · B      A: (M, K), B: (K, N), C: (M, N); bf16 or fp16, sums in fp32, any sizes
//
// B may be stored as (N, K), as the weight of a linear layer is.
//
// Operations: 2 · M · N · K. 8192³ takes 1.1 T of them on 0.4 GB: arithmetic is the limit. A block
// multiplies (128, 64) by (64, 256) per step: 4.2 M operations on 48 KB from L2.
//
//   v1 one_stage    swizzled tiles, ldmatrix, mma.sync; copies and products take turns
//   v2 pipelined    cp.async fills three stages ahead, ldmatrix one fragment ahead
//   v3 persistent   a block per multiprocessor; the next tile's copies run during the last products
//   v4 stream_k     equal shares of the last tiles, so that all blocks finish together
//   v5 tma          the tiles are copied by TMA (day 55): gemm_mma_tma.cu
//
// Run: python run_day.py 54

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day54/stream_k.cuh"
#include "days/day54/tiles.cuh"

#include <algorithm>

// ---------------------------------------------------------------------------------------------
// v1: one stage. All threads copy, then all warps multiply.

template <typename P>
__global__ void __launch_bounds__(P::THREADS)
    gemm_v1_one_stage_kernel(const Gemm<typename P::T> p, const Schedule s) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  auto* stage = reinterpret_cast<typename P::T*>(shared);
  const Corner tile = tile_at<P>(blockIdx.x, s);
  const int m = tile.m * P::BM, n = tile.n * P::BN;
  StageCopy<P> copies(p, m, n, 0);
  const Places<P> places;
  Sums<P> sums;
  clear<P>(sums);
  for (int step = 0; step < s.steps; ++step) {
    __syncthreads();  // all warps have read the tiles before any thread overwrites them
    copies.copy(stage);
    copies.advance();
    __syncthreads();  // the tiles are complete before any warp reads them
#pragma unroll
    for (int k = 0; k < P::BK / 16; ++k) {
      Fragments<P> fragments;
      fragments.load(stage, places, k);
#pragma unroll
      for (int i = 0; i < P::PIECES; ++i) fragments.multiply_piece(sums, i);
    }
  }
  store_sums<P::GROUP_COLS>(p, sums, m + warp_row<P>(), n + warp_col<P>());
#endif
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: while the products of one step run, cp.async fills the stages of the next steps,
// and ldmatrix the fragments of the next 16 values of k.
//
// v3 and v4 are the same kernel: only the schedule is another one, of fewer blocks.

// Starts the copies of a block's steps, across all of its parts.
template <typename P>
struct Loads {
  Work work;
  int left;  // steps of the current part; 0 after the last part
  StageCopy<P> copies;

  __device__ Loads(const Gemm<typename P::T>& p, const Schedule& s, const Work& all)
      : work(all), left(work.next(s) ? work.count : 0), copies(of_part(p, s)) {
    if (left == 0) copies.end();
  }

  __device__ __forceinline__ StageCopy<P> of_part(const Gemm<typename P::T>& p,
                                                  const Schedule& s) const {
    const Corner tile = tile_at<P>(work.tile, s);
    return StageCopy<P>(p, tile.m * P::BM, tile.n * P::BN, work.first * P::BK);
  }

  // A part of the copies of a step.
  __device__ __forceinline__ void copy(typename P::T* stage, int part, int parts) const {
    copies.copy_async(stage, part, parts);
  }

  // To the next step, after all parts of a step.
  __device__ __forceinline__ void advance(const Gemm<typename P::T>& p, const Schedule& s) {
    copies.advance();
    if (left == 0 || --left > 0) return;
    if (work.next(s)) {
      left = work.count, copies = of_part(p, s);
    } else {
      copies.end();
    }
  }
};

// What a block multiplies: the stage of its next step, and the fragments of that step's first 16
// values of k. Behind the last step come zeros, so that all steps load the next one's fragments.
template <typename P>
struct Pipeline {
  typename P::T* stages;
  int stage;
  Places<P> places;
  Fragments<P> fragments[2];

  // Of the groups of copies, the STAGES - 2 youngest may be in flight: this stage is complete …
  __device__ __forceinline__ void wait() const {
    ptx::cp_async_wait<P::STAGES - 2>();
    __syncthreads();  // … for all threads, and all warps have read the stage of the step before
  }

  __device__ Pipeline(typename P::T* stages) : stages(stages), stage(0) {
    wait();
    fragments[0].load(stages, places, 0);
  }

  // sums += the products of `count` steps.
  __device__ __forceinline__ void multiply_steps(Sums<P>& sums, int count, Loads<P>& loads,
                                                 const Gemm<typename P::T>& p, const Schedule& s) {
    constexpr int LAST = P::BK / 16 - 1;
    for (int step = 0; step < count; ++step) {
      const auto* from = stages + stage * P::SIZE;  // where the next fragments are
      auto* refill = stages + (stage == 0 ? P::STAGES - 1 : stage - 1) * P::SIZE;
      stage = stage + 1 == P::STAGES ? 0 : stage + 1;
#pragma unroll
      for (int k = 0; k <= LAST; ++k) {
        if (k < LAST) {
          loads.copy(refill, k, LAST);
        } else {
          loads.advance(p, s);
          ptx::cp_async_commit();  // one group per step
          wait();
          from = stages + stage * P::SIZE;
        }
        multiply_and_load<P>(sums, fragments[k % 2], fragments[(k + 1) % 2], from, places,
                             k < LAST ? k + 1 : 0);
      }
    }
  }
};

template <typename P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS)
    gemm_pipelined_kernel(const Gemm<typename P::T> p, const Schedule s) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  auto* stages = reinterpret_cast<typename P::T*>(shared);
  const int range = range_of_block(s);
  Work work = work_of(s, range);
  Loads<P> loads(p, s, work);
  for (int i = 0; i < P::STAGES - 1; ++i) {
    loads.copy(stages + i * P::SIZE, 0, 1);
    loads.advance(p, s);
    ptx::cp_async_commit();
  }
  Pipeline<P> pipeline(stages);
  while (work.next(s)) {
    Sums<P> sums;
    clear<P>(sums);
    pipeline.multiply_steps(sums, work.count, loads, p, s);
    finish_part<P>(sums, p, s, work, range);
  }
#endif
}

// ---------------------------------------------------------------------------------------------
// Launchers.

Tensor gemm_v1_one_stage(const Tensor& a, const Tensor& b) {
  return multiply_matrices(a, b, "gemm_v1_one_stage",
                           [&]<typename T>(const Gemm<T>& p, auto b_is_nk) {
                             using P = Tile<T, b_is_nk(), 128, 256, 64, 1>;
                             const Schedule s = all_tiles<P>(p);
                             const auto kernel = gemm_v1_one_stage_kernel<P>;
                             allow_shared(kernel, P::BYTES);
                             kernel<<<s.tiles(), P::THREADS, P::BYTES, current_stream(a)>>>(p, s);
                           });
}

// blocks: of the grid. stream_tiles: how many tiles are split into ranges, one per block.
template <typename P>
void launch_pipelined(const Gemm<typename P::T>& p, const Tensor& a, int64_t blocks,
                      int64_t stream_tiles = 0) {
  require_shared_memory(P::BYTES, "the stages");
  Schedule s = all_tiles<P>(p);
  const Exchange exchange = split_tiles<P>(s, a, blocks, stream_tiles);
  const auto kernel = gemm_pipelined_kernel<P>;
  allow_shared(kernel, P::BYTES);
  kernel<<<grid_size(blocks, "a, b"), P::THREADS, P::BYTES, current_stream(a)>>>(p, s);
}

// Calls launch<tile>(gemm): four stages of 48 KB, or of 24 KB on cards with less shared memory.
template <typename Launch>
Tensor pipelined(const Tensor& a, const Tensor& b, const char* name, Launch&& launch) {
  return multiply_matrices(a, b, name, [&]<typename T>(const Gemm<T>& p, auto b_is_nk) {
    using Deep = Tile<T, b_is_nk(), 128, 256, 64, 4>;
    using Flat = Tile<T, b_is_nk(), 128, 256, 32, 4>;
    shared_limit(a) >= Deep::BYTES ? launch.template operator()<Deep>(p)
                                   : launch.template operator()<Flat>(p);
  });
}

Tensor gemm_v2_pipelined(const Tensor& a, const Tensor& b) {
  return pipelined(a, b, "gemm_v2_pipelined", [&]<typename P>(const Gemm<typename P::T>& p) {
    launch_pipelined<P>(p, a, all_tiles<P>(p).tiles());
  });
}

// v3 against v2: as many blocks as are resident.
Tensor gemm_v3_persistent(const Tensor& a, const Tensor& b) {
  return pipelined(a, b, "gemm_v3_persistent", [&]<typename P>(const Gemm<typename P::T>& p) {
    launch_pipelined<P>(p, a, std::min(all_tiles<P>(p).tiles(), multiprocessor_count(a)));
  });
}

// v4 against v3: in v3, the last tiles % blocks tiles keep as few blocks busy for a whole tile.
// Here these are split into equal ranges, with one more tile per block where they are few
// (stream_k.cuh).
Tensor gemm_v4_stream_k(const Tensor& a, const Tensor& b) {
  return pipelined(a, b, "gemm_v4_stream_k", [&]<typename P>(const Gemm<typename P::T>& p) {
    const Shares shares = stream_k_shares(all_tiles<P>(p), multiprocessor_count(a));
    launch_pipelined<P>(p, a, shares.blocks, shares.stream_tiles);
  });
}

// For the tables, bf16 only: other tiles, `blocks` blocks (0: as many as are resident), stream-K or
// not. columns: BN. depth: BK.
Tensor gemm_variant(const Tensor& a, const Tensor& b, int64_t columns, int64_t depth,
                    int64_t stages, int64_t blocks, bool stream) {
  using T = __nv_bfloat16;
  check(a, "a").dtype({ScalarType::BFloat16});
  check(b, "b").contiguous();
  STD_TORCH_CHECK(blocks >= 0 && blocks <= 65535, "blocks: expected 0 to 65535, got ", blocks);
  return multiply_matrices(a, b, "gemm_variant", [&](const auto& p, auto b_is_nk) {
    if constexpr (std::is_same_v<decltype(p), const Gemm<T>&> && !b_is_nk()) {
      bool found = false;
      const auto try_tile = [&]<int N, int K, int COUNT>() {
        if (columns != N || depth != K || stages != COUNT) return;
        using P = Tile<T, false, 128, N, K, COUNT>;
        const int64_t tiles = all_tiles<P>(p).tiles(), steps = all_tiles<P>(p).steps;
        const int64_t resident = int64_t{multiprocessor_count(a)} * P::BLOCKS;
        const int64_t used = std::min(blocks ? blocks : resident, stream ? tiles * steps : tiles);
        launch_pipelined<P>(p, a, used, !stream ? 0 : tiles < used ? tiles : used + tiles % used);
        found = true;
      };
      try_tile.template operator()<256, 64, 3>(), try_tile.template operator()<256, 64, 4>();
      try_tile.template operator()<256, 32, 3>(), try_tile.template operator()<256, 32, 4>();
      try_tile.template operator()<256, 32, 5>(), try_tile.template operator()<128, 64, 3>();
      STD_TORCH_CHECK(found, "columns, depth, stages: no kernel for ", columns, ", ", depth,
                      " and ", stages);
    }
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day54, gemm_v1_one_stage, "(Tensor a, Tensor b) -> Tensor");
RUNG(day54, gemm_v2_pipelined, "(Tensor a, Tensor b) -> Tensor");
RUNG(day54, gemm_v3_persistent, "(Tensor a, Tensor b) -> Tensor");
RUNG(day54, gemm_v4_stream_k, "(Tensor a, Tensor b) -> Tensor");
RUNG(day54, gemm_variant,
     "(Tensor a, Tensor b, int columns=256, int depth=64, int stages=4, int blocks=0, "
     "bool stream=False) -> Tensor");

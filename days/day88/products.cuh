// Day 88: products by day 56's ping-pong kernel, and what becomes of a tile's sums
#pragma once

#include "days/day83/elements.cuh"  // taught in day 83
#include "days/day88/exchange.cuh"

#include <algorithm>

// One consumer has all of a tile, and finishes it while the other one multiplies.

using TileSums = float[HALVES][TILE_COLS / 2];  // of a thread, as wgmma leaves them

template <typename T, typename Epilogue>
__global__ void __launch_bounds__(THREADS, 1)
    shard_product_kernel(const Gemm<T> p, const __grid_constant__ TensorMap a,
                         const __grid_constant__ TensorMap b,
                         const __grid_constant__ Epilogue epilogue) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  run_roles<ShardTile<T>, true, 1, STAGES, GROUP>(
      p, a, b,
      [&](TileSums& sums, int m, int n, int, auto& outbox) { epilogue.finish(sums, m, n, outbox); },
      [](int, int) {});
#endif
}

// epilogue(a · bᵀ), a: (M, K), b: (N, K). spare: multiprocessors that are left to another kernel.
template <typename T, typename Epilogue>
void launch_product(const Tensor& on, const T* a, const T* b, int64_t M, int64_t N, int64_t K,
                    int64_t spare, const Epilogue& epilogue) {
  using P = ShardTile<T>;
  constexpr size_t BYTES = SHARED<P, STAGES>;
  const Gemm<T> p{a, b, nullptr, nullptr, M, N, K, NONE};
  const int64_t places = std::max<int64_t>(1, multiprocessor_count(on) - spare);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(Tiles(M, N).count(), places));
  const auto kernel = shard_product_kernel<T, Epilogue>;
  allow_shared(kernel, BYTES);
  kernel<<<grid, THREADS, BYTES, current_stream(on)>>>(p, map_of_a<P>(p), map_of_b<P>(p), epilogue);
  check_launch("shard_product_kernel");
}

// Parts of 64 × 64, each by TMA, to the tile at (m, n) of a matrix.
template <typename Outbox>
__device__ __forceinline__ void store_tile(const TileSums& sums, Outbox& outbox,
                                           const TensorMap& to, int m, int n) {
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      outbox.store(&sums[h][i * (PART / 2)], to, m + h * ROWS, n + i * PART);
    }
  }
}

template <typename T, bool ACTIVATED>
struct Store {
  TensorMap to;

  template <typename Outbox>
  __device__ __forceinline__ void finish(TileSums& sums, int m, int n, Outbox& outbox) const {
    if constexpr (ACTIVATED) {
#pragma unroll
      for (auto& half : sums) {
#pragma unroll
        for (float& x : half) x = gelu<T>(x);
      }
    }
    store_tile(sums, outbox, to, m, n);
  }
};

template <bool ACTIVATED, typename T>
Store<T, ACTIVATED> store_to(T* matrix, int64_t rows, int64_t cols) {
  return {tile_map<T>(matrix, rows, cols, ROWS, PART)};
}

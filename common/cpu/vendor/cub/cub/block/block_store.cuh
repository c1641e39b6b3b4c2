// Stores of a block: N items per thread.
#pragma once

#include <cub/util_type.cuh>

namespace cub {

enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT,
  BLOCK_STORE_STRIPED,
  BLOCK_STORE_VECTORIZE,
  BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED,
};

template <class T, int N, class Iterator>
__device__ void StoreDirectBlocked(int thread, Iterator to, T (&items)[N]) {
  for (int i = 0; i < N; ++i) to[thread * N + i] = items[i];
}
template <class T, int N, class Iterator>
__device__ void StoreDirectBlocked(int thread, Iterator to, T (&items)[N], int valid) {
  for (int i = 0; i < N; ++i)
    if (thread * N + i < valid) to[thread * N + i] = items[i];
}
template <int THREADS, class T, int N, class Iterator>
__device__ void StoreDirectStriped(int thread, Iterator to, T (&items)[N]) {
  for (int i = 0; i < N; ++i) to[i * THREADS + thread] = items[i];
}
template <int THREADS, class T, int N, class Iterator>
__device__ void StoreDirectStriped(int thread, Iterator to, T (&items)[N], int valid) {
  for (int i = 0; i < N; ++i)
    if (i * THREADS + thread < valid) to[i * THREADS + thread] = items[i];
}

// The counterpart of BlockLoad: each thread stores its items.
template <class T, int X, int N, BlockStoreAlgorithm ALGORITHM = BLOCK_STORE_DIRECT, int Y = 1,
          int Z = 1, int = 0>
class BlockStore {
  static constexpr int THREADS = X * Y * Z;

 public:
  struct TempStorage {};

  __device__ explicit BlockStore(TempStorage&, CUDACPU_HERE) : BlockStore(file, line) {}
  __device__ BlockStore(CUDACPU_HERE)
      : thread_(detail::thread_of(THREADS, "BlockStore", file, line)) {}

  template <class Iterator>
  __device__ void Store(Iterator to, T (&items)[N]) {
    Store(to, items, THREADS * N);
  }
  template <class Iterator>
  __device__ void Store(Iterator to, T (&items)[N], int valid) {
    if constexpr (ALGORITHM == BLOCK_STORE_STRIPED)
      StoreDirectStriped<THREADS>(thread_, to, items, valid);
    else
      StoreDirectBlocked(thread_, to, items, valid);
  }

 private:
  int thread_;
};

}  // namespace cub

// Loads of a block: N items per thread.
#pragma once

#include <cub/util_type.cuh>

namespace cub {

enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED,
};

template <class T, int N, class Iterator>
__device__ void LoadDirectBlocked(int thread, Iterator from, T (&items)[N]) {
  for (int i = 0; i < N; ++i) items[i] = from[thread * N + i];
}
template <class T, int N, class Iterator>
__device__ void LoadDirectBlocked(int thread, Iterator from, T (&items)[N], int valid) {
  for (int i = 0; i < N; ++i)
    if (thread * N + i < valid) items[i] = from[thread * N + i];
}
template <int THREADS, class T, int N, class Iterator>
__device__ void LoadDirectStriped(int thread, Iterator from, T (&items)[N]) {
  for (int i = 0; i < N; ++i) items[i] = from[i * THREADS + thread];
}
template <int THREADS, class T, int N, class Iterator>
__device__ void LoadDirectStriped(int thread, Iterator from, T (&items)[N], int valid) {
  for (int i = 0; i < N; ++i)
    if (i * THREADS + thread < valid) items[i] = from[i * THREADS + thread];
}

// All algorithms but STRIPED give thread t the items t * N, ..., t * N + N - 1. Here each thread
// loads its own; NVIDIA's others differ in which thread loads what, and go through shared memory.
template <class T, int X, int N, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT, int Y = 1,
          int Z = 1, int = 0>
class BlockLoad {
  static constexpr int THREADS = X * Y * Z;

 public:
  struct TempStorage {};

  __device__ explicit BlockLoad(TempStorage&, CUDACPU_HERE) : BlockLoad(file, line) {}
  __device__ BlockLoad(CUDACPU_HERE)
      : thread_(detail::thread_of(THREADS, "BlockLoad", file, line)) {}

  template <class Iterator>
  __device__ void Load(Iterator from, T (&items)[N]) {
    Load(from, items, THREADS * N);
  }
  template <class Iterator>
  __device__ void Load(Iterator from, T (&items)[N], int valid) {
    if constexpr (ALGORITHM == BLOCK_LOAD_STRIPED)
      LoadDirectStriped<THREADS>(thread_, from, items, valid);
    else
      LoadDirectBlocked(thread_, from, items, valid);
  }
  template <class Iterator, class Default>
  __device__ void Load(Iterator from, T (&items)[N], int valid, Default otherwise) {
    for (T& item : items) item = otherwise;
    Load(from, items, valid);
  }

 private:
  int thread_;
};

}  // namespace cub

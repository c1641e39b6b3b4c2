// Reductions of a block.
#pragma once

#include <cub/thread/thread_operators.cuh>

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS,
};

// The result is valid in thread 0. Whatever the algorithm, values are combined in the order of
// BLOCK_REDUCE_WARP_REDUCTIONS, the default: within each warp, then warp after warp.
template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1,
          int = 0>
class BlockReduce {
  static constexpr int THREADS = X * Y * Z;

 public:
  struct TempStorage {
    detail::Room<T, (THREADS + 31) / 32> warps;
  };

  __device__ explicit BlockReduce(TempStorage& storage, CUDACPU_HERE)
      : storage_(storage), thread_(detail::thread_of(THREADS, "BlockReduce", file, line)) {}
  __device__ BlockReduce(CUDACPU_HERE) : BlockReduce(own_storage(), file, line) {}

  template <class Op>
  __device__ T Reduce(T value, Op op, int valid, CUDACPU_HERE) {
    const int lane = thread_ % 32, first = thread_ - lane;
    const int lanes = THREADS - first < 32 ? THREADS - first : 32;
    for (int offset = 1; offset < lanes; offset *= 2) {
      const int source = lane + offset < lanes ? lane + offset : lane;
      const T other = __shfl_sync(detail::lanes(0, lanes), value, source, 32, file, line);
      if (source != lane && thread_ + offset < valid) value = op(value, other);
    }
    if (lane == 0) storage_.warps[thread_ / 32] = value;
    __syncthreads(file, line);
    if (thread_ == 0)
      for (int warp = 1; warp * 32 < THREADS && warp * 32 < valid; ++warp)
        value = op(value, storage_.warps[warp]);
    return value;
  }
  template <class Op>
  __device__ T Reduce(T value, Op op, CUDACPU_HERE) {
    return Reduce(value, op, THREADS, file, line);
  }
  template <int N, class Op>
  __device__ T Reduce(T (&values)[N], Op op, CUDACPU_HERE) {
    T value = values[0];
    for (int i = 1; i < N; ++i) value = op(value, values[i]);
    return Reduce(value, op, THREADS, file, line);
  }
  __device__ T Sum(T value, CUDACPU_HERE) { return Reduce(value, cub::Sum(), THREADS, file, line); }
  __device__ T Sum(T value, int valid, CUDACPU_HERE) {
    return Reduce(value, cub::Sum(), valid, file, line);
  }
  template <int N>
  __device__ T Sum(T (&values)[N], CUDACPU_HERE) {
    return Reduce(values, cub::Sum(), file, line);
  }

 private:
  __device__ static TempStorage& own_storage() {
    __shared__ TempStorage storage;
    return storage;
  }

  TempStorage& storage_;
  int thread_;
};

}  // namespace cub

// Exchanges that change which thread of a block holds which of its items.
#pragma once

#include <cub/util_type.cuh>

namespace cub {

// Blocked: thread t holds the items t * N, ..., t * N + N - 1. Striped: item i of thread t is
// number i * THREADS + t.
template <class T, int X, int N, bool = false, int Y = 1, int Z = 1, int = 0>
class BlockExchange {
  static constexpr int THREADS = X * Y * Z;

 public:
  struct TempStorage {
    detail::Room<T, THREADS * N> items;
  };

  __device__ explicit BlockExchange(TempStorage& storage, CUDACPU_HERE)
      : storage_(storage), thread_(detail::thread_of(THREADS, "BlockExchange", file, line)) {}
  __device__ BlockExchange(CUDACPU_HERE) : BlockExchange(own_storage(), file, line) {}

  template <class Out>
  __device__ void StripedToBlocked(const T (&in)[N], Out (&out)[N], CUDACPU_HERE) {
    for (int i = 0; i < N; ++i) storage_.items[i * THREADS + thread_] = in[i];
    __syncthreads(file, line);
    for (int i = 0; i < N; ++i) out[i] = storage_.items[thread_ * N + i];
  }
  template <class Out>
  __device__ void BlockedToStriped(const T (&in)[N], Out (&out)[N], CUDACPU_HERE) {
    for (int i = 0; i < N; ++i) storage_.items[thread_ * N + i] = in[i];
    __syncthreads(file, line);
    for (int i = 0; i < N; ++i) out[i] = storage_.items[i * THREADS + thread_];
  }
  template <class Out, class Rank>
  __device__ void ScatterToBlocked(const T (&in)[N], Out (&out)[N], Rank (&ranks)[N],
                                   CUDACPU_HERE) {
    for (int i = 0; i < N; ++i) storage_.items[ranks[i]] = in[i];
    __syncthreads(file, line);
    for (int i = 0; i < N; ++i) out[i] = storage_.items[thread_ * N + i];
  }
  template <class Out, class Rank>
  __device__ void ScatterToStriped(const T (&in)[N], Out (&out)[N], Rank (&ranks)[N],
                                   CUDACPU_HERE) {
    for (int i = 0; i < N; ++i) storage_.items[ranks[i]] = in[i];
    __syncthreads(file, line);
    for (int i = 0; i < N; ++i) out[i] = storage_.items[i * THREADS + thread_];
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

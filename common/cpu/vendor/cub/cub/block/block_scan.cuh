// Prefix sums of a block.
#pragma once

#include <cub/thread/thread_operators.cuh>

namespace cub {

enum BlockScanAlgorithm {
  BLOCK_SCAN_RAKING,
  BLOCK_SCAN_RAKING_MEMOIZE,
  BLOCK_SCAN_WARP_SCANS,
};

// Whatever the algorithm, values are combined in the order of BLOCK_SCAN_WARP_SCANS: within each
// warp, then warp after warp.
template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
class BlockScan {
  static constexpr int THREADS = X * Y * Z;

 public:
  struct TempStorage {
    detail::Room<T, (THREADS + 31) / 32> warps;
    detail::Room<T, 1> prefix;
  };

  __device__ explicit BlockScan(TempStorage& storage, CUDACPU_HERE)
      : storage_(storage), thread_(detail::thread_of(THREADS, "BlockScan", file, line)) {}
  __device__ BlockScan(CUDACPU_HERE) : BlockScan(own_storage(), file, line) {}

  // ---------------------------------------------------------------- one item per thread

  __device__ void InclusiveSum(T in, T& out, CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), file, line);
  }
  __device__ void InclusiveSum(T in, T& out, T& aggregate, CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), aggregate, file, line);
  }
  template <class Prefix>
  __device__ void InclusiveSum(T in, T& out, Prefix& prefix, CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), prefix, file, line);
  }
  __device__ void ExclusiveSum(T in, T& out, CUDACPU_HERE) {
    ExclusiveScan(in, out, T{}, cub::Sum(), file, line);
  }
  __device__ void ExclusiveSum(T in, T& out, T& aggregate, CUDACPU_HERE) {
    ExclusiveScan(in, out, T{}, cub::Sum(), aggregate, file, line);
  }
  template <class Prefix>
  __device__ void ExclusiveSum(T in, T& out, Prefix& prefix, CUDACPU_HERE) {
    ExclusiveScan(in, out, cub::Sum(), prefix, file, line);
  }

  template <class Op>
  __device__ void InclusiveScan(T in, T& out, Op op, CUDACPU_HERE) {
    T aggregate;
    InclusiveScan(in, out, op, aggregate, file, line);
  }
  template <class Op>
  __device__ void InclusiveScan(T in, T& out, Op op, T& aggregate, CUDACPU_HERE) {
    T before;
    out = combined(scanned(in, op, before, aggregate, file, line), before, in, op);
  }
  template <class Op, class Prefix>
  __device__ void InclusiveScan(T in, T& out, Op op, Prefix& prefix, CUDACPU_HERE) {
    T items[1] = {in}, results[1];
    InclusiveScan(items, results, op, prefix, file, line);
    out = results[0];
  }
  // Without an initial value, thread 0's result is undefined.
  template <class Op>
  __device__ void ExclusiveScan(T in, T& out, Op op, CUDACPU_HERE) {
    T aggregate;
    scanned(in, op, out, aggregate, file, line);
  }
  template <class Op>
  __device__ void ExclusiveScan(T in, T& out, T initial, Op op, CUDACPU_HERE) {
    T aggregate;
    ExclusiveScan(in, out, initial, op, aggregate, file, line);
  }
  template <class Op>
  __device__ void ExclusiveScan(T in, T& out, T initial, Op op, T& aggregate, CUDACPU_HERE) {
    T before;
    out = scanned(in, op, before, aggregate, file, line) ? op(initial, before) : initial;
  }
  template <class Op, class Prefix>
  __device__ void ExclusiveScan(T in, T& out, Op op, Prefix& prefix, CUDACPU_HERE) {
    T items[1] = {in}, results[1];
    ExclusiveScan(items, results, op, prefix, file, line);
    out = results[0];
  }

  // ---------------------------------------------------------------- several items per thread

  template <int N>
  __device__ void InclusiveSum(T (&in)[N], T (&out)[N], CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), file, line);
  }
  template <int N>
  __device__ void InclusiveSum(T (&in)[N], T (&out)[N], T& aggregate, CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), aggregate, file, line);
  }
  template <int N, class Prefix>
  __device__ void InclusiveSum(T (&in)[N], T (&out)[N], Prefix& prefix, CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), prefix, file, line);
  }
  template <int N>
  __device__ void ExclusiveSum(T (&in)[N], T (&out)[N], CUDACPU_HERE) {
    ExclusiveScan(in, out, T{}, cub::Sum(), file, line);
  }
  template <int N>
  __device__ void ExclusiveSum(T (&in)[N], T (&out)[N], T& aggregate, CUDACPU_HERE) {
    ExclusiveScan(in, out, T{}, cub::Sum(), aggregate, file, line);
  }
  template <int N, class Prefix>
  __device__ void ExclusiveSum(T (&in)[N], T (&out)[N], Prefix& prefix, CUDACPU_HERE) {
    ExclusiveScan(in, out, cub::Sum(), prefix, file, line);
  }

  template <int N, class Op>
  __device__ void InclusiveScan(T (&in)[N], T (&out)[N], Op op, CUDACPU_HERE) {
    T aggregate;
    InclusiveScan(in, out, op, aggregate, file, line);
  }
  template <int N, class Op>
  __device__ void InclusiveScan(T (&in)[N], T (&out)[N], Op op, T& aggregate, CUDACPU_HERE) {
    T before;
    const bool any = scanned(folded(in, op), op, before, aggregate, file, line);
    spread_inclusive(in, out, op, any, before);
  }
  template <int N, class Op, class Prefix>
  __device__ void InclusiveScan(T (&in)[N], T (&out)[N], Op op, Prefix& prefix, CUDACPU_HERE) {
    T before, aggregate;
    const bool any = scanned(folded(in, op), op, before, aggregate, file, line);
    const T initial = prefixed(prefix, aggregate, file, line);
    spread_inclusive(in, out, op, true, any ? op(initial, before) : initial);
  }
  template <int N, class Op>
  __device__ void ExclusiveScan(T (&in)[N], T (&out)[N], T initial, Op op, CUDACPU_HERE) {
    T aggregate;
    ExclusiveScan(in, out, initial, op, aggregate, file, line);
  }
  template <int N, class Op>
  __device__ void ExclusiveScan(T (&in)[N], T (&out)[N], T initial, Op op, T& aggregate,
                                CUDACPU_HERE) {
    T before;
    const bool any = scanned(folded(in, op), op, before, aggregate, file, line);
    spread_exclusive(in, out, op, any ? op(initial, before) : initial);
  }
  template <int N, class Op, class Prefix>
  __device__ void ExclusiveScan(T (&in)[N], T (&out)[N], Op op, Prefix& prefix, CUDACPU_HERE) {
    T before, aggregate;
    const bool any = scanned(folded(in, op), op, before, aggregate, file, line);
    const T initial = prefixed(prefix, aggregate, file, line);
    spread_exclusive(in, out, op, any ? op(initial, before) : initial);
  }

 private:
  __device__ static TempStorage& own_storage() {
    __shared__ TempStorage storage;
    return storage;
  }

  // Everything before this thread's value, and everything. False in thread 0: nothing is before it.
  template <class Op>
  __device__ bool scanned(T value, Op op, T& before, T& aggregate, const char* file, int line) {
    const int lane = thread_ % 32, warp = thread_ / 32;
    const int lanes = THREADS - warp * 32 < 32 ? THREADS - warp * 32 : 32;
    const unsigned mask = detail::lanes(0, lanes);
    for (int offset = 1; offset < lanes; offset *= 2) {
      const T other =
          __shfl_sync(mask, value, lane < offset ? lane : lane - offset, 32, file, line);
      if (lane >= offset) value = op(other, value);
    }
    before = __shfl_sync(mask, value, lane == 0 ? 0 : lane - 1, 32, file, line);
    if (lane == lanes - 1) storage_.warps[warp] = value;
    __syncthreads(file, line);
    aggregate = storage_.warps[0];
    if (warp == 1) before = lane == 0 ? aggregate : op(aggregate, before);
    for (int w = 1; w * 32 < THREADS; ++w) {
      aggregate = op(aggregate, storage_.warps[w]);
      if (w + 1 == warp) before = lane == 0 ? aggregate : op(aggregate, before);
    }
    return thread_ != 0;
  }

  // The first warp calls prefix; what its lane 0 gets holds for the block.
  template <class Prefix>
  __device__ T prefixed(Prefix& prefix, T aggregate, const char* file, int line) {
    if (thread_ < 32) {
      const T value = prefix(aggregate);
      if (thread_ == 0) storage_.prefix[0] = value;
    }
    __syncthreads(file, line);
    return storage_.prefix[0];
  }

  template <class Op>
  __device__ static T combined(bool any, T before, T value, Op op) {
    return any ? op(before, value) : value;
  }
  template <int N, class Op>
  __device__ static T folded(T (&in)[N], Op op) {
    T value = in[0];
    for (int i = 1; i < N; ++i) value = op(value, in[i]);
    return value;
  }
  template <int N, class Op>
  __device__ static void spread_inclusive(T (&in)[N], T (&out)[N], Op op, bool any, T before) {
    for (int i = 0; i < N; ++i) {
      before = combined(any, before, in[i], op);
      any = true;
      out[i] = before;
    }
  }
  template <int N, class Op>
  __device__ static void spread_exclusive(T (&in)[N], T (&out)[N], Op op, T before) {
    for (int i = 0; i < N; ++i) {
      const T value = in[i];
      out[i] = before;
      before = op(before, value);
    }
  }

  TempStorage& storage_;
  int thread_;
};

}  // namespace cub

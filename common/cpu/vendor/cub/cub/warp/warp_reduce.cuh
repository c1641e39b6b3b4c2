// Reductions within a warp, or within parts of it.
#pragma once

#include <cub/thread/thread_operators.cuh>

namespace cub {

// Each run of LANES lanes is a logical warp. The result is valid in its first lane.
template <class T, int LANES = 32, int = 0>
class WarpReduce {
 public:
  struct TempStorage {};

  __device__ explicit WarpReduce(TempStorage&) {}

  // In the order of NVIDIA's header: neighbours, then pairs of neighbours, ...
  template <class Op>
  __device__ T Reduce(T value, Op op, int valid, CUDACPU_HERE) {
    static_assert(LANES >= 1 && LANES <= 32, "a logical warp has 1 to 32 lanes");
    const int lane = cudacpu::current->lane, rank = lane % LANES, first = lane - rank;
    const unsigned mask = detail::lanes(first, LANES);
    for (int offset = 1; offset < LANES; offset *= 2) {
      const int source = rank + offset < LANES ? lane + offset : lane;
      const T other = __shfl_sync(mask, value, source, 32, file, line);
      if (rank + offset < valid && rank + offset < LANES) value = op(value, other);
    }
    return value;
  }
  template <class Op>
  __device__ T Reduce(T value, Op op, CUDACPU_HERE) {
    return Reduce(value, op, LANES, file, line);
  }
  __device__ T Sum(T value, CUDACPU_HERE) { return Reduce(value, cub::Sum(), LANES, file, line); }
  __device__ T Sum(T value, int valid, CUDACPU_HERE) {
    return Reduce(value, cub::Sum(), valid, file, line);
  }
  __device__ T Max(T value, CUDACPU_HERE) { return Reduce(value, cub::Max(), LANES, file, line); }
  __device__ T Min(T value, CUDACPU_HERE) { return Reduce(value, cub::Min(), LANES, file, line); }
};

}  // namespace cub

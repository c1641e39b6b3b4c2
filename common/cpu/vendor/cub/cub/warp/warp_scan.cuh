// Prefix sums within a warp, or within parts of it.
#pragma once

#include <cub/thread/thread_operators.cuh>

namespace cub {

// Each run of LANES lanes is a logical warp.
template <class T, int LANES = 32, int = 0>
class WarpScan {
 public:
  struct TempStorage {};

  __device__ explicit WarpScan(TempStorage&) {}

  template <class Op>
  __device__ void InclusiveScan(T in, T& out, Op op, CUDACPU_HERE) {
    for (int offset = 1; offset < LANES; offset *= 2) {
      const T other = from(in, rank() - offset, file, line);
      if (rank() >= offset) in = op(other, in);
    }
    out = in;
  }
  template <class Op>
  __device__ void InclusiveScan(T in, T& out, Op op, T& aggregate, CUDACPU_HERE) {
    InclusiveScan(in, out, op, file, line);
    aggregate = from(out, LANES - 1, file, line);
  }
  // Without an initial value, the first lane's result is its own input; NVIDIA leaves it undefined.
  template <class Op>
  __device__ void ExclusiveScan(T in, T& out, Op op, CUDACPU_HERE) {
    T inclusive;
    InclusiveScan(in, inclusive, op, file, line);
    out = from(inclusive, rank() - 1, file, line);
  }
  template <class Op>
  __device__ void ExclusiveScan(T in, T& out, T initial, Op op, CUDACPU_HERE) {
    ExclusiveScan(in, out, op, file, line);
    out = rank() == 0 ? initial : op(initial, out);
  }
  template <class Op>
  __device__ void ExclusiveScan(T in, T& out, T initial, Op op, T& aggregate, CUDACPU_HERE) {
    T inclusive;
    InclusiveScan(in, inclusive, op, aggregate, file, line);
    out = from(inclusive, rank() - 1, file, line);
    out = rank() == 0 ? initial : op(initial, out);
  }
  __device__ void InclusiveSum(T in, T& out, CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), file, line);
  }
  __device__ void InclusiveSum(T in, T& out, T& aggregate, CUDACPU_HERE) {
    InclusiveScan(in, out, cub::Sum(), aggregate, file, line);
  }
  __device__ void ExclusiveSum(T in, T& out, CUDACPU_HERE) {
    ExclusiveScan(in, out, T{}, cub::Sum(), file, line);
  }
  __device__ void ExclusiveSum(T in, T& out, T& aggregate, CUDACPU_HERE) {
    ExclusiveScan(in, out, T{}, cub::Sum(), aggregate, file, line);
  }
  __device__ T Broadcast(T value, unsigned source, CUDACPU_HERE) {
    return from(value, static_cast<int>(source), file, line);
  }

 private:
  __device__ static int rank() { return cudacpu::current->lane % LANES; }

  // The value of lane `source` of this logical warp; the running lane's value without such a lane.
  __device__ static T from(T value, int source, const char* file, int line) {
    static_assert(LANES >= 1 && LANES <= 32, "a logical warp has 1 to 32 lanes");
    const int lane = cudacpu::current->lane, first = lane - rank();
    return __shfl_sync(detail::lanes(first, LANES), value, source < 0 ? lane : first + source, 32,
                       file, line);
  }
};

}  // namespace cub

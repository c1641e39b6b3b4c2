// Execution of the algorithms of the device: each is a kernel of one thread, in its stream.
#pragma once

#include <cub/thread/thread_operators.cuh>

namespace cub {
namespace detail {

template <class Work>
__global__ void cub_algorithm(Work work) {
  work();
}

// The first of the two calls only learns how much temporary memory the second needs: a byte.
template <class Work>
cudaError_t run(void* temporary, size_t& temporary_bytes, cudaStream_t stream, Work work) {
  if (temporary == nullptr) {
    temporary_bytes = 1;
    return cudaSuccess;
  }
  cub_algorithm<<<1, 1, 0, stream>>>(work);
  return cudaPeekAtLastError();
}

// in[first] op in[first + 1] op ..., count >= 1 of them. Halves are combined, as on a GPU, whose
// sums of many floats are more accurate than one after the other.
template <class T, class Iterator, class Op>
__device__ T reduced(Iterator in, int64_t first, int64_t count, Op op) {
  if (count > 256) {
    const int64_t half = count / 2;
    return op(reduced<T>(in, first, half, op), reduced<T>(in, first + half, count - half, op));
  }
  T value = in[first];
  for (int64_t i = 1; i < count; ++i) value = op(value, in[first + i]);
  return value;
}

}  // namespace detail
}  // namespace cub

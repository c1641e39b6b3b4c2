// CUB's small types, and what its collectives share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>

namespace cub {

struct NullType {};

template <class Key_, class Value_>
struct KeyValuePair {
  using Key = Key_;
  using Value = Value_;
  Key key;
  Value value;
};

// Two buffers, one of which holds the data: a sort may leave it in either.
template <class T>
struct DoubleBuffer {
  T* d_buffers[2] = {};
  int selector = 0;
  DoubleBuffer() = default;
  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() { return d_buffers[selector]; }
  T* Alternate() { return d_buffers[selector ^ 1]; }
};

namespace detail {

// Room for n values in shared memory, which has no constructors.
template <class T, int n>
struct Room {
  alignas(T) unsigned char bytes[n * sizeof(T)];
  __device__ T& operator[](int i) { return reinterpret_cast<T*>(bytes)[i]; }
};

// The number of this thread in a block of as many threads as `what` was made for.
__device__ inline int thread_of(int threads, const char* what, const char* file, int line) {
  const int there = blockDim.x * blockDim.y * blockDim.z;
  if (there != threads)
    cudacpu::trap({file, line}, "cub::%s for %d threads is used by a block of %d", what, threads,
                  there);
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// The lanes first, ..., first + n - 1.
__device__ inline unsigned lanes(int first, int n) {
  return (n == 32 ? ~0u : (1u << n) - 1) << first;
}

template <class Iterator>
using ValueOf = typename std::iterator_traits<Iterator>::value_type;

}  // namespace detail
}  // namespace cub

// Operators. CUDA 13 takes cuda::std::plus and its like in place of Sum, Max and Min.
#pragma once

#include <cub/util_type.cuh>

namespace cub {

struct Sum {
  template <class A, class B>
  __host__ __device__ auto operator()(const A& a, const B& b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __host__ __device__ T operator()(const T& a, const T& b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  __host__ __device__ T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};
// ArgMax and ArgMin choose, of equal values, the one with the smaller key.
struct ArgMax {
  template <class Pair>
  __host__ __device__ Pair operator()(const Pair& a, const Pair& b) const {
    return a.value < b.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class Pair>
  __host__ __device__ Pair operator()(const Pair& a, const Pair& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct Equality {
  template <class T>
  __host__ __device__ bool operator()(const T& a, const T& b) const {
    return a == b;
  }
};

}  // namespace cub

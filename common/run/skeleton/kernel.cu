// Day @N@: @TITLE@
//
//   y[i] = 2 · x[i]          x, y: (n)
//
// Bytes: read x once, write y once: 2 · n · sizeof(T). Operations: 1 per element, so memory
// bandwidth is the limit.
//
//   v1 thread_per_element   one thread per element
//
// Run: python run_day.py @N@

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 256;  // threads: 8 warps, so that other warps run while one waits for memory

// ---------------------------------------------------------------------------------------------
// v1: the simplest kernel that is right for every size.

template <typename T>
__global__ void skeleton_v1_thread_per_element_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                      int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) y[i] = static_cast<T>(2.0f * static_cast<float>(x[i]));  // the last block has a tail
}

Tensor skeleton_v1_thread_per_element(const Tensor& x) {
  check(x, "x").on_gpu().floating().contiguous();
  const unsigned blocks = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
  return output_like(x, "skeleton_v1_thread_per_element", [&](auto zero, auto* y) {
    using T = decltype(zero);
    skeleton_v1_thread_per_element_kernel<T>
        <<<blocks, BLOCK, 0, current_stream(x)>>>(data<T>(x), y, x.numel());
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day00, skeleton_v1_thread_per_element, "(Tensor x) -> Tensor");

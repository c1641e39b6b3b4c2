// The pipeline primitives: cp.async, its groups and waits, by the names that CUDA's C interface
// has.
#pragma once

#include "cuda_awbarrier_primitives.h"

// Copy 4, 8 or 16 bytes from global to shared memory, the last `zeros` of them as zeros.
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0,
                                    CUDACPU_HERE) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
    cudacpu::trap({file, line},
                  "__pipeline_memcpy_async: %zu bytes, %zu of them zeros; allowed are 4, 8 and 16 "
                  "bytes, and no more zeros than that",
                  bytes, zeros);
  cudacpu::start_copy(to, from, static_cast<int>(bytes), static_cast<int>(bytes - zeros),
                      {file, line});
}
inline void __pipeline_commit() {
  cudacpu::commit_copies();
}
// Wait for all groups of copies but the `prior` youngest; as on a GPU, a `prior` above 8 is the
// same as 8.
inline void __pipeline_wait_prior(size_t prior) {
  cudacpu::wait_for_copies(prior < 8 ? static_cast<unsigned>(prior) : 8);
}
// Let the phase of the barrier complete only after the copies that this thread has begun.
inline void __pipeline_arrive_on(__mbarrier_t* barrier, CUDACPU_HERE) {
  cudacpu::arrive_after_copies(barrier, true, {file, line});
}

// The barrier primitives: mbarriers by the names that CUDA's C interface has.
#pragma once

#include "cudacpu/ptx.h"

using __mbarrier_t = uint64_t;
using __mbarrier_token_t = uint64_t;  // the parity of the phase that the thread has arrived at

inline uint32_t __mbarrier_maximum_count() {
  return (1 << 20) - 1;
}
inline void __mbarrier_init(__mbarrier_t* barrier, uint32_t expected, CUDACPU_HERE) {
  cudacpu::mbarrier_init(barrier, static_cast<int>(expected), {file, line});
}
inline void __mbarrier_inval(__mbarrier_t* barrier, CUDACPU_HERE) {
  cudacpu::mbarrier_invalidate(barrier, {file, line});
}
inline __mbarrier_token_t __mbarrier_arrive(__mbarrier_t* barrier, CUDACPU_HERE) {
  return static_cast<uint64_t>(
      cudacpu::mbarrier_arrive_many(barrier, 1, false, "__mbarrier_arrive", {file, line}));
}
inline __mbarrier_token_t __mbarrier_arrive_and_drop(__mbarrier_t* barrier, CUDACPU_HERE) {
  return static_cast<uint64_t>(
      cudacpu::mbarrier_arrive_many(barrier, 1, true, "__mbarrier_arrive_and_drop", {file, line}));
}
inline bool __mbarrier_test_wait(__mbarrier_t* barrier, __mbarrier_token_t token, CUDACPU_HERE) {
  return cudacpu::mbarrier_test(barrier, static_cast<int>(token), "__mbarrier_test_wait",
                                {file, line});
}
inline bool __mbarrier_test_wait_parity(__mbarrier_t* barrier, bool parity, CUDACPU_HERE) {
  return cudacpu::mbarrier_test(barrier, parity, "__mbarrier_test_wait_parity", {file, line});
}
// Try to wait; the time to sleep has no meaning here.
inline bool __mbarrier_try_wait(__mbarrier_t* barrier, __mbarrier_token_t token, uint32_t,
                                CUDACPU_HERE) {
  return cudacpu::mbarrier_test(barrier, static_cast<int>(token), "__mbarrier_try_wait",
                                {file, line});
}
inline bool __mbarrier_try_wait_parity(__mbarrier_t* barrier, bool parity, uint32_t, CUDACPU_HERE) {
  return cudacpu::mbarrier_test(barrier, parity, "__mbarrier_try_wait_parity", {file, line});
}

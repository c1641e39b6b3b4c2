// The limit on registers per thread, changed while a kernel runs (sm_90a).
//
// A kernel with producers and consumers starts with registers for the average of both. Its
// producers, which only start copies, then give registers back to the multiprocessor, and its
// consumers, which hold accumulators, take them. Registers: a multiple of 8 from 24 to 256. All
// threads of a warpgroup (four neighbouring warps, the first a multiple of 4) must make the same
// call. The kernel needs a limit at entry (__launch_bounds__), or the compiler ignores the request.
// On the CPU backend only the arguments are checked; anywhere but on sm_90a it is a trap.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// Give back all registers above `Registers`, which the thread must not be using.
// PTX: setmaxnreg.dec.sync.aligned.u32 Registers;
template <int Registers>
__device__ __forceinline__ void setmaxnreg_dec(PTX_ONLY_HERE) {
  static_assert(Registers >= 24 && Registers <= 256 && Registers % 8 == 0,
                "Registers must be a multiple of 8 from 24 to 256");
#ifdef CUDA_ON_CPU
  cudacpu::set_max_registers("setmaxnreg.dec", Registers, PTX_SITE);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#else
  __trap();
#endif
}

// Take registers up to `Registers`; wait until others have given back enough.
// PTX: setmaxnreg.inc.sync.aligned.u32 Registers;
template <int Registers>
__device__ __forceinline__ void setmaxnreg_inc(PTX_ONLY_HERE) {
  static_assert(Registers >= 24 && Registers <= 256 && Registers % 8 == 0,
                "Registers must be a multiple of 8 from 24 to 256");
#ifdef CUDA_ON_CPU
  cudacpu::set_max_registers("setmaxnreg.inc", Registers, PTX_SITE);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#else
  __trap();
#endif
}

}  // namespace ptx

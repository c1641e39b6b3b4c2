// Kernels that begin before the one ahead of them has ended (programmatic dependent launch, sm_90).
//
// Launched with the attribute cudaLaunchAttributeProgrammaticStreamSerialization, a kernel may
// start while the kernel before it in the stream still runs, and prepare. It must wait before it
// uses what that kernel wrote. On the CPU backend, and before sm_90, kernels run one after the
// other: nothing to wait for.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// Wait until the kernels before are complete and what they wrote is visible.
// PTX: griddepcontrol.wait;
__device__ __forceinline__ void grid_dependency_wait() {
#if !defined(CUDA_ON_CPU) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Let the next kernel begin as soon as all blocks have called this or returned.
// PTX: griddepcontrol.launch_dependents;
__device__ __forceinline__ void grid_dependency_launch() {
#if !defined(CUDA_ON_CPU) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace ptx

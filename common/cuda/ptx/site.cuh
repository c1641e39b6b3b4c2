// Common parts of all PTX wrappers: shared-memory addresses; on the CPU backend, the caller's line.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// The last parameter of a wrapper that can fail: where it is called, for the CPU backend's message.
// PTX_ONLY_HERE is the same without a parameter before it; PTX_PASS_HERE hands it on.
#ifdef CUDA_ON_CPU
#include <cudacpu/capability.h>
#include <cudacpu/ptx.h>
#define PTX_HERE , CUDACPU_HERE
#define PTX_ONLY_HERE CUDACPU_HERE
#define PTX_PASS_HERE file, line
#define PTX_SITE    \
  ::cudacpu::Site { \
    file, line      \
  }
#else
#define PTX_HERE
#define PTX_ONLY_HERE
#define PTX_PASS_HERE
#endif

namespace ptx {

// The 32-bit address, within shared memory, that PTX instructions with `.shared` take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace ptx

// What all PTX wrappers share: shared-memory addresses, and on the CPU backend the caller's line.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// The last parameter of a wrapper that can fail: where it is called, for the CPU backend's message.
#ifdef CUDA_ON_CPU
#include <cudacpu/ptx.h>
#define PTX_HERE , CUDACPU_HERE
#define PTX_SITE    \
  ::cudacpu::Site { \
    file, line      \
  }
#else
#define PTX_HERE
#endif

namespace ptx {

// The 32-bit address, within shared memory, that PTX instructions with `.shared` take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace ptx

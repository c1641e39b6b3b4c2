// Integer instructions: reductions of a warp (redux, sm_80), products of packed bytes (dp4a,
// sm_61).
//
// CUDA C++ has these as __reduce_add_sync and __dp4a, and so on; here they are under their PTX
// names.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// Every lane of `mask` gets the combination of all their values; the lanes of the mask must all
// call it with the same mask. Sums wrap around. PTX: redux.sync.<add|min|max>.<s32|u32> result,
// value, mask;   redux.sync.<and|or|xor>.b32 …
#ifdef CUDA_ON_CPU
#define PTX_REDUX(operation, type, T, intrinsic)                                                  \
  __device__ __forceinline__ T redux_##operation(T value, uint32_t mask = 0xffffffffu PTX_HERE) { \
    return intrinsic(mask, value, file, line);                                                    \
  }
#else
#define PTX_REDUX(operation, type, T, intrinsic)                                         \
  __device__ __forceinline__ T redux_##operation(T value, uint32_t mask = 0xffffffffu) { \
    T result;                                                                            \
    asm volatile("redux.sync." #operation "." #type " %0, %1, %2;"                       \
                 : "=r"(result)                                                          \
                 : "r"(value), "r"(mask)                                                 \
                 : "memory");                                                            \
    return result;                                                                       \
  }
#endif
PTX_REDUX(add, s32, int, __reduce_add_sync)
PTX_REDUX(add, u32, unsigned, __reduce_add_sync)
PTX_REDUX(min, s32, int, __reduce_min_sync)
PTX_REDUX(min, u32, unsigned, __reduce_min_sync)
PTX_REDUX(max, s32, int, __reduce_max_sync)
PTX_REDUX(max, u32, unsigned, __reduce_max_sync)
PTX_REDUX(and, b32, unsigned, __reduce_and_sync)
PTX_REDUX(or, b32, unsigned, __reduce_or_sync)
PTX_REDUX(xor, b32, unsigned, __reduce_xor_sync)
#undef PTX_REDUX

// c + Σ aᵢ·bᵢ over the four bytes of a and b, which are signed or not as a's and b's types are. The
// sum wraps around.
// sm_61. PTX: dp4a.s32.s32 result, a, b, c;
__device__ __forceinline__ int dp4a(int a, int b, int c) {
#ifdef CUDA_ON_CPU
  return __dp4a(a, b, c);
#else
  int result;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#endif
}

// sm_61. PTX: dp4a.u32.u32 result, a, b, c;
__device__ __forceinline__ unsigned dp4a(unsigned a, unsigned b, unsigned c) {
#ifdef CUDA_ON_CPU
  return __dp4a(a, b, c);
#else
  unsigned result;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#endif
}

// Unsigned bytes by signed ones.
// sm_61. PTX: dp4a.u32.s32 result, a, b, c;
__device__ __forceinline__ int dp4a(unsigned a, int b, int c) {
#ifdef CUDA_ON_CPU
  unsigned sum = static_cast<unsigned>(c);
  for (int i = 0; i < 32; i += 8)
    sum += (a >> i & 0xff) * static_cast<unsigned>(static_cast<int8_t>(b >> i));
  return static_cast<int>(sum);
#else
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#endif
}

}  // namespace ptx

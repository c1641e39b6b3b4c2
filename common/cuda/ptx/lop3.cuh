// Bitwise functions of three words (sm_50).
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// Any function of one bit of each of a, b and c, for all 32 bits at once. Table is what the same
// function gives for 0xf0, 0xcc and 0xaa: for (a & b) | c it is 0xea. The compiler finds most of
// them by itself, but not those with two constants, of which an instruction holds only one.
// sm_50. PTX: lop3.b32 result, a, b, c, Table;
template <int Table>
__device__ __forceinline__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  static_assert(Table >= 0 && Table < 256, "a table has 8 bits");
#ifdef CUDA_ON_CPU
  uint32_t result = 0;
  for (int i = 0; i < 8; ++i) {
    if (Table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
#else
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(Table));
  return result;
#endif
}

}  // namespace ptx

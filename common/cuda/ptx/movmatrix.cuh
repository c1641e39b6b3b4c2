// An 8x8 matrix of 16-bit elements, transposed across the registers of a warp (sm_75).
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// `word` of lane l holds row l / 4, columns 2·(l % 4) (low half) and 2·(l % 4) + 1 of a matrix, as
// ldmatrix loads it; the result holds the same place of its transpose. All 32 lanes must call it.
// PTX: movmatrix.sync.aligned.m8n8.trans.b16 result, word;
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t word PTX_HERE) {
#ifdef CUDA_ON_CPU
  return cudacpu::transpose_matrix(word, PTX_SITE);
#else
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
#endif
}

}  // namespace ptx

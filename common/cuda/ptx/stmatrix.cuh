// 8x8 matrices of 16-bit elements from registers into shared memory (sm_90): ldmatrix backwards.
//
// A whole warp stores 1, 2 or 4 matrices. A row is 16 contiguous bytes; lane 8·i + r passes the
// address of row r of matrix i, a multiple of 16 (addresses of further lanes are not used, but must
// be there). registers[i] of lane l holds two neighbours of matrix i:
//
//   row l / 4, columns 2·(l % 4) (low half) and 2·(l % 4) + 1 (high half)
//
// which is how mma leaves 16-bit results. With trans, the matrix is transposed on its way: the lane
// holds rows 2·(l % 4) and 2·(l % 4) + 1 of column l / 4. All 32 lanes must call it; others see the
// rows after a __syncwarp() or __syncthreads(). A trap before sm_90.
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// One matrix; lanes 0 to 7 pass its rows.
// PTX: stmatrix.sync.aligned.m8n8.x1.shared.b16 [row], {r0};
__device__ __forceinline__ void stmatrix_x1(void* row, const uint32_t (&registers)[1] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(90, "stmatrix", PTX_SITE);
  cudacpu::store_matrices(cudacpu::kStoreMatrix1, 1, row, registers, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(shared_address(row)),
               "r"(registers[0])
               : "memory");
#else
  __trap();
#endif
}

// Two matrices; lanes 0 to 15 pass their rows.
// PTX: stmatrix.sync.aligned.m8n8.x2.shared.b16 [row], {r0, r1};
__device__ __forceinline__ void stmatrix_x2(void* row, const uint32_t (&registers)[2] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(90, "stmatrix", PTX_SITE);
  cudacpu::store_matrices(cudacpu::kStoreMatrix2, 2, row, registers, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)),
      "r"(registers[0]), "r"(registers[1])
      : "memory");
#else
  __trap();
#endif
}

// Four matrices; all lanes pass a row.
// PTX: stmatrix.sync.aligned.m8n8.x4.shared.b16 [row], {r0, r1, r2, r3};
__device__ __forceinline__ void stmatrix_x4(void* row, const uint32_t (&registers)[4] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(90, "stmatrix", PTX_SITE);
  cudacpu::store_matrices(cudacpu::kStoreMatrix4, 4, row, registers, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(registers[0]), "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
      : "memory");
#else
  __trap();
#endif
}

// One matrix, transposed.
// PTX: stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [row], {r0};
__device__ __forceinline__ void stmatrix_x1_trans(void* row,
                                                  const uint32_t (&registers)[1] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(90, "stmatrix", PTX_SITE);
  cudacpu::store_matrices(cudacpu::kStoreMatrix1Transposed, 1, row, registers, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(shared_address(row)),
      "r"(registers[0])
      : "memory");
#else
  __trap();
#endif
}

// Two matrices, transposed.
// PTX: stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [row], {r0, r1};
__device__ __forceinline__ void stmatrix_x2_trans(void* row,
                                                  const uint32_t (&registers)[2] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(90, "stmatrix", PTX_SITE);
  cudacpu::store_matrices(cudacpu::kStoreMatrix2Transposed, 2, row, registers, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)),
      "r"(registers[0]), "r"(registers[1])
      : "memory");
#else
  __trap();
#endif
}

// Four matrices, transposed.
// PTX: stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [row], {r0, r1, r2, r3};
__device__ __forceinline__ void stmatrix_x4_trans(void* row,
                                                  const uint32_t (&registers)[4] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(90, "stmatrix", PTX_SITE);
  cudacpu::store_matrices(cudacpu::kStoreMatrix4Transposed, 4, row, registers, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(registers[0]), "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
               : "memory");
#else
  __trap();
#endif
}

}  // namespace ptx

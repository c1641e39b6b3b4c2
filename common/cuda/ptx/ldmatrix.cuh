// 8x8 matrices of 16-bit elements from shared memory into registers, as mma wants them (sm_75).
//
// A whole warp loads 1, 2 or 4 matrices. A row is 16 contiguous bytes; lane 8·i + r passes the
// address of row r of matrix i, a multiple of 16 (addresses of further lanes are not used, but must
// be there). Then registers[i] of lane l holds two neighbours of matrix i:
//
//   row l / 4, columns 2·(l % 4) (low half) and 2·(l % 4) + 1 (high half)
//
// With trans, the matrix is transposed on its way: rows 2·(l % 4) and 2·(l % 4) + 1, column l / 4.
// All 32 lanes must call it. Elements are only moved: any type of 16 bits will do, and a matrix of
// 8x4 elements of 32 bits as well (without trans).
#pragma once

#include "common/cuda/ptx/site.cuh"

namespace ptx {

// One matrix; lanes 0 to 7 pass its rows.
// PTX: ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r0}, [row];
__device__ __forceinline__ void ldmatrix_x1(uint32_t (&registers)[1], const void* row PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::load_matrices(cudacpu::kLoadMatrix1, 1, registers, row, PTX_SITE);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(registers[0])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// Two matrices; lanes 0 to 15 pass their rows.
// PTX: ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r0, r1}, [row];
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&registers)[2], const void* row PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::load_matrices(cudacpu::kLoadMatrix2, 2, registers, row, PTX_SITE);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(registers[0]), "=r"(registers[1])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// Four matrices; all lanes pass a row.
// PTX: ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [row];
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&registers)[4], const void* row PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::load_matrices(cudacpu::kLoadMatrix4, 4, registers, row, PTX_SITE);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// One matrix, transposed.
// PTX: ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {r0}, [row];
__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t (&registers)[1],
                                                  const void* row PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::load_matrices(cudacpu::kLoadMatrix1Transposed, 1, registers, row, PTX_SITE);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(registers[0])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// Two matrices, transposed.
// PTX: ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r0, r1}, [row];
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&registers)[2],
                                                  const void* row PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::load_matrices(cudacpu::kLoadMatrix2Transposed, 2, registers, row, PTX_SITE);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(registers[0]), "=r"(registers[1])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// Four matrices, transposed.
// PTX: ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}, [row];
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&registers)[4],
                                                  const void* row PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::load_matrices(cudacpu::kLoadMatrix4Transposed, 4, registers, row, PTX_SITE);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

}  // namespace ptx

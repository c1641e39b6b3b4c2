// PTX instructions that CUDA C++ has no name for, as functions of namespace ptx.
//
// Each function documents the PTX that it emits and its operands. The same source runs on the CPU
// backend, where the body is ordinary code. In the order of the days that need them:
//
//   ptx/cp_async.cuh       copies from global to shared memory that run while the thread continues
//   ptx/exp2.cuh           powers of two as the special function unit gives them
//   ptx/ldmatrix.cuh       8x8 matrices from shared memory into the registers that mma needs
//   ptx/stmatrix.cuh       8x8 matrices back from registers into shared memory
//   ptx/movmatrix.cuh      an 8x8 matrix transposed across the registers of a warp
//   ptx/mma.cuh            the tensor cores' matrix products: fp16, bf16, tf32, fp8, int8
//   ptx/integer.cuh        redux (reductions of a warp) and dp4a (four 8-bit products)
//   ptx/named_barrier.cuh  barriers for some warps of a block
//   ptx/mbarrier.cuh       barriers in shared memory, where arriving and waiting are separate
//   ptx/bulk_copy.cuh      copies by TMA that an mbarrier waits for
//   ptx/tensor_map.cuh     descriptions of tensors for TMA
//   ptx/tensor_copy.cuh    loads and stores of its boxes: TMA
//   ptx/lop3.cuh           bitwise functions of three words
//   ptx/log2.cuh           logarithm, square root and its reciprocal as the special function unit
//                          gives them
//   ptx/cluster.cuh        blocks that reach each other's shared memory: barrier, addresses
//   ptx/cache.cuh          loads, stores and prefetches with hints how long data stay in the caches
//   ptx/grid_dependency.cuh  kernels that begin before the one ahead of them has ended
//   ptx/setmaxnreg.cuh     registers handed from one warpgroup to another
//   ptx/wgmma.cuh          matrix products of a warpgroup, while its threads go on
#pragma once

#include "common/cuda/ptx/bulk_copy.cuh"
#include "common/cuda/ptx/cache.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "common/cuda/ptx/exp2.cuh"
#include "common/cuda/ptx/grid_dependency.cuh"
#include "common/cuda/ptx/integer.cuh"
#include "common/cuda/ptx/ldmatrix.cuh"
#include "common/cuda/ptx/log2.cuh"
#include "common/cuda/ptx/lop3.cuh"
#include "common/cuda/ptx/mbarrier.cuh"
#include "common/cuda/ptx/mma.cuh"
#include "common/cuda/ptx/movmatrix.cuh"
#include "common/cuda/ptx/named_barrier.cuh"
#include "common/cuda/ptx/setmaxnreg.cuh"
#include "common/cuda/ptx/stmatrix.cuh"
#include "common/cuda/ptx/tensor_copy.cuh"
#include "common/cuda/ptx/tensor_map.cuh"
#include "common/cuda/ptx/wgmma.cuh"

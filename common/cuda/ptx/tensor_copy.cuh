// Copies of boxes of a tensor by TMA, the tensor memory accelerator (sm_90).
//
// One thread starts a copy for all. `map` is the kernel's `const __grid_constant__ ptx::TensorMap`
// parameter (tensor_map.cuh), and `at` the box's first index in each dimension, the contiguous one
// first: there, a multiple of 16 bytes. A box may reach beyond the tensor. The tile in shared
// memory begins at a multiple of 128 bytes (1024 for the swizzle of 128 bytes to start with its
// first row).
//
// Loads fill elements outside of the tensor with zeros or NaN. The bytes of the whole box, without
// the gaps that a swizzle may leave, are counted at an mbarrier, whose waiters then see the tile.
//
// Stores begin at an index >= 0, and leave out elements outside of the tensor. But where a row ends
// within a piece of 16 bytes, all of the piece is written, over the padding between rows. Every
// thread that wrote to the tile first calls fence_proxy_async, then a barrier follows, then the
// store. After bulk_commit, bulk_wait_read (bulk_copy.cuh) lets the tile be reused; after bulk_wait
// the tensor is written.
//
// On the CPU backend a load takes place at the wait for its mbarrier; a store reads the tile at
// bulk_wait_read and writes the tensor at bulk_wait; in random order, either may be at once. Before
// sm_90, everything here is a trap.
#pragma once

#include "common/cuda/ptx/bulk_copy.cuh"
#include "common/cuda/ptx/tensor_map.cuh"

namespace ptx {

#ifndef CUDA_ON_CPU
// One asm statement for each rank. %0 is the tile, %1 the map, %2 the mbarrier, %3 a mask of
// blocks, and the coordinates follow.
#define PTX_TENSOR_RANK(rank, coordinates, before, middle, after, ...)                    \
  if constexpr (N == rank)                                                                \
    asm volatile(before #rank "d" middle coordinates after::"r"(tile_address), "l"(&map), \
                 "r"(barrier_address), "h"(block_mask), __VA_ARGS__                       \
                 : "memory");
#define PTX_TENSOR(before, middle, after)                                                       \
  static_assert(N >= 1 && N <= 5, "a tensor has 1 to 5 dimensions");                            \
  PTX_TENSOR_RANK(1, "{%4}", before, middle, after, "r"(at[0]))                                 \
  PTX_TENSOR_RANK(2, "{%4, %5}", before, middle, after, "r"(at[0]), "r"(at[1]))                 \
  PTX_TENSOR_RANK(3, "{%4, %5, %6}", before, middle, after, "r"(at[0]), "r"(at[1]), "r"(at[2])) \
  PTX_TENSOR_RANK(4, "{%4, %5, %6, %7}", before, middle, after, "r"(at[0]), "r"(at[1]),         \
                  "r"(at[2]), "r"(at[3]))                                                       \
  PTX_TENSOR_RANK(5, "{%4, %5, %6, %7, %8}", before, middle, after, "r"(at[0]), "r"(at[1]),     \
                  "r"(at[2]), "r"(at[3]), "r"(at[4]))
#endif

// Start to load the box at `at` into `tile`, and count its bytes at `barrier`; both are in this
// block's shared memory.
// PTX: cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile],
// [map, {at…}], [barrier];
template <int N>
__device__ __forceinline__ void load_tensor(void* tile, const TensorMap& map, const int (&at)[N],
                                            uint64_t* barrier PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::start_tensor_load(tile, map, at, N, barrier, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  const uint32_t tile_address = shared_address(tile), barrier_address = shared_address(barrier);
  const uint16_t block_mask = 0;
  PTX_TENSOR("cp.async.bulk.tensor.",
             ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, ", "], [%2];")
#else
  __trap();
#endif
}

// Start to load it for each block of the cluster whose rank is a bit of `mask`: the box is read
// once, and written to, and counted in, the shared memory of each, at the places that `tile` and
// `barrier` have in this block.
// PTX: cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes
// .multicast::cluster [tile], [map, {at…}], [barrier], mask;
template <int N>
__device__ __forceinline__ void load_tensor_multicast(void* tile, const TensorMap& map,
                                                      const int (&at)[N], uint64_t* barrier,
                                                      uint16_t mask PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::start_tensor_multicast(tile, map, at, N, barrier, mask, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  const uint32_t tile_address = shared_address(tile), barrier_address = shared_address(barrier);
  const uint16_t block_mask = mask;
  PTX_TENSOR("cp.async.bulk.tensor.",
             ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
             "[%1, ",
             "], [%2], %3;")
#else
  __trap();
#endif
}

// Start to store `tile` to the box at `at`, as a part of this thread's next bulk group.
// PTX: cp.async.bulk.tensor.Nd.global.shared::cta.tile.bulk_group [map, {at…}], [tile];
template <int N>
__device__ __forceinline__ void store_tensor(const TensorMap& map, const int (&at)[N],
                                             const void* tile PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::start_tensor_store(map, at, N, tile, false, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  const uint32_t tile_address = shared_address(tile), barrier_address = 0;
  const uint16_t block_mask = 0;
  PTX_TENSOR("cp.async.bulk.tensor.", ".global.shared::cta.tile.bulk_group [%1, ", "], [%0];")
#else
  __trap();
#endif
}

// Start to add `tile` to the box at `at`, element by element, each addition atomic, rounded to the
// element's type. Not for elements of one byte.
// PTX: cp.reduce.async.bulk.tensor.Nd.global.shared::cta.add.tile.bulk_group [map, {at…}], [tile];
template <int N>
__device__ __forceinline__ void add_tensor(const TensorMap& map, const int (&at)[N],
                                           const void* tile PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::start_tensor_store(map, at, N, tile, true, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  const uint32_t tile_address = shared_address(tile), barrier_address = 0;
  const uint16_t block_mask = 0;
  PTX_TENSOR("cp.reduce.async.bulk.tensor.", ".global.shared::cta.add.tile.bulk_group [%1, ",
             "], [%0];")
#else
  __trap();
#endif
}

// Bring the box at `at` into the L2 cache. On the CPU, only check the arguments.
// PTX: cp.async.bulk.prefetch.tensor.Nd.L2.global.tile [map, {at…}];
template <int N>
__device__ __forceinline__ void prefetch_tensor(const TensorMap& map, const int (&at)[N] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::check_tensor_map("cp.async.bulk.prefetch.tensor", map, N, PTX_SITE);
  static_cast<void>(at);
#elif __CUDA_ARCH__ >= 900
  const uint32_t tile_address = 0, barrier_address = 0;
  const uint16_t block_mask = 0;
  PTX_TENSOR("cp.async.bulk.prefetch.tensor.", ".L2.global.tile [%1, ", "];")
#else
  __trap();
#endif
}

#undef PTX_TENSOR
#undef PTX_TENSOR_RANK

// Bring the map itself to TMA, which the first copy would have to wait for. On the CPU,
// only check the arguments.
// PTX: prefetch.tensormap [map];
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::check_tensor_map("prefetch.tensormap", map, 0, PTX_SITE);
#elif __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#else
  __trap();
#endif
}

}  // namespace ptx

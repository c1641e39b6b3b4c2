// Day 87: how blocks of several ranks wait for each other, and how they add
#pragma once

#include "common/cuda/chunk.cuh"  // taught in days 35 and 42
#include "days/day87/peers.cuh"

#include <cuda/atomic>

#include <cstdio>

using Flag = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;

// Waits for a flag of this rank. What the other GPU stored before it released the flag is visible
// to this thread afterwards.
__device__ void wait_for(uint32_t& flag, uint32_t value, const Peers& p, int from) {
  const long long begin = clock64();
  while (Flag(flag).load(cuda::memory_order_acquire) < value) {
    if (clock64() - begin > p.patience) {
      printf("rank %d, block %d: rank %d did not arrive in time\n", p.rank(),
             static_cast<int>(blockIdx.x), from);
      __trap();
    }
  }
}

// A barrier for this block and those of the same number of all ranks. All accesses before it, to
// any memory, come before all accesses behind it. Two successive barriers use different flags: a
// rank sets `finished` only after it has reset `arrived`, and the other way round.
using Flags = uint32_t (Signals::*)[MOST_BLOCKS][MOST_RANKS];
__device__ void meet(const Peers& p, Flags flags) {
  __syncthreads();  // thread i signals for all threads of the block
  if (const int i = threadIdx.x; i < p.ranks) {
    Flag((p.signals[i]->*flags)[blockIdx.x][p.rank()]).store(1, cuda::memory_order_release);
    uint32_t& mine = (p.signals[p.rank()]->*flags)[blockIdx.x][i];
    wait_for(mine, 1, p, i);
    Flag(mine).store(0, cuda::memory_order_relaxed);
  }
  __syncthreads();  // all threads wait for those that waited for the other ranks
}

template <typename C>
__device__ void store_raw(C* to, const RawChunk<C>& raw) {
  *reinterpret_cast<RawChunk<C>*>(to) = raw;
}

template <typename T, int N>
__device__ void store_narrowed(Chunk<T, N>* to, const Chunk<float, N>& wide) {
  Chunk<T, N> chunk;
#pragma unroll
  for (int k = 0; k < N; ++k) chunk.at[k] = static_cast<T>(wide.at[k]);
  RawChunk<Chunk<T, N>> raw;
  memcpy(&raw, &chunk, sizeof raw);
  store_raw(to, raw);
}

template <int N>
__device__ void add_to(Chunk<float, N>& sum, const Chunk<float, N>& other) {
#pragma unroll
  for (int k = 0; k < N; ++k) sum.at[k] += other.at[k];
}

// Day 87: blocks of several GPUs that wait for each other
#pragma once

#include <cuda/atomic>

#include <cstdint>
#include <cstdio>

constexpr int MOST_RANKS = 8;     // the GPUs of one host
constexpr int MOST_BLOCKS = 128;  // per rank

// The flags of one rank, which the others set. Block b of a rank waits for block b of the others
// only. All are 0 between two calls.
struct Signals {
  uint32_t arrived[MOST_BLOCKS][MOST_RANKS];   // 1: that rank's block is here
  uint32_t finished[MOST_BLOCKS][MOST_RANKS];  // 1: it touches no other rank's buffer any more
  uint32_t step[MOST_BLOCKS];                  // of a ring: what the rank before has done
};
constexpr int64_t SIGNAL_WORDS = sizeof(Signals) / sizeof(uint32_t);

struct Peers {
  void* buffers[MOST_RANKS];
  Signals* signals[MOST_RANKS];
  int ranks;
  int first;         // rank of the blocks with blockIdx.y = 0
  int64_t chunks;    // per buffer
  int64_t patience;  // in clock cycles

  __device__ int rank() const { return first + static_cast<int>(blockIdx.y); }
  __device__ int64_t part(int i) const { return chunks * i / ranks; }  // where part i begins
  template <typename C>
  __device__ C* buffer(int r) const {
    return static_cast<C*>(buffers[r]);
  }
};

using Flag = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;

// Waits for a flag of this rank. What the other GPU stored before it released the flag is visible
// to this thread afterwards.
__device__ void wait_for(uint32_t& flag, uint32_t value, const Peers& p, int from) {
  const long long begin = clock64();
  while (Flag(flag).load(cuda::memory_order_acquire) < value) {
    if (clock64() - begin > p.patience) {
      printf("all-reduce: rank %d, block %d: rank %d did not arrive in time\n", p.rank(),
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

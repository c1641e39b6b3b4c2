// Day 87: all-reduce over peer memory: every GPU gets the sum of the buffers of all GPUs
//
//   x_r ← x_0 + x_1 + … + x_(N-1)       for each rank r < N ≤ 8; n elements of fp32, fp16 or bf16
//
// A rank is a process with a GPU, and reaches the buffers of the others at addresses of its own
// (peer_memory.cu). A rung plays all ranks in one launch, so that one GPU can check it;
// all_reduce_of_rank is the same kernels for one rank.
//
// With B = n · sizeof(T), a rank receives over NVLink (N-1) · B in v1, 2 (N-1)/N · B in the others:
// 256 MB of 256 MB with N = 2, 448 MB with N = 8. N-1 additions per element, of which each rank
// does all in v1, and an N-th in the others.
//
//   v1 one_shot   each rank reads all buffers and adds them
//   v2 two_shot   each rank adds one part of all buffers, and stores the sum in all of them
//   v3 ring       a part goes round from rank to rank: N-1 steps that add, N-1 that copy
//   v4 in_flight  v3 with four chunks of 16 bytes in flight per thread and buffer
//
// Run: python run_day.py 87

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day87/meeting.cuh"

constexpr int IN_FLIGHT = 4;  // chunks that a thread of v4 loads before it adds

// ---------------------------------------------------------------------------------------------
// v1: each rank reads the same chunk of all buffers and adds them, in the order of the ranks. It
// stores the sum when all ranks have read: two barriers per chunk of a thread.

template <typename T, int N>
__global__ void __launch_bounds__(PEER_BLOCK, 2)
    all_reduce_v1_one_shot_kernel(const __grid_constant__ Peers p) {
  using C = Chunk<T, N>;
  const int64_t step = int64_t{gridDim.x} * PEER_BLOCK;
  for (int64_t begin = int64_t{blockIdx.x} * PEER_BLOCK; begin < p.chunks; begin += step) {
    const int64_t i = begin + threadIdx.x;
    Chunk<float, N> sum{};
    meet(p, &Signals::arrived);  // the buffers of all ranks are ready
    if (i < p.chunks) {
      sum = widened(load_raw(p.buffer<C>(0) + i));
      for (int r = 1; r < p.ranks; ++r) add_to(sum, widened(load_raw(p.buffer<C>(r) + i)));
    }
    meet(p, &Signals::finished);  // all ranks have read this rank's chunk
    if (i < p.chunks) store_narrowed(p.buffer<C>(p.rank()) + i, sum);
  }
}

constexpr auto ONE_SHOT = [](auto zero, auto width) {
  return all_reduce_v1_one_shot_kernel<decltype(zero), width>;
};

void all_reduce_v1_one_shot(Tensors buffers, Tensors signals, int64_t blocks) {
  launch_all("all_reduce_v1_one_shot", buffers, signals, blocks, ONE_SHOT);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: no sum is computed twice. Part r of all buffers is read and written by rank r
// alone, so that it needs no barrier between the two.

template <typename T, int N>
__global__ void __launch_bounds__(PEER_BLOCK, 2)
    all_reduce_v2_two_shot_kernel(const __grid_constant__ Peers p) {
  using C = Chunk<T, N>;
  const int rank = p.rank();
  const int64_t end = p.part(rank + 1);
  meet(p, &Signals::arrived);  // the buffers of all ranks are ready
  for (int64_t i = p.part(rank) + int64_t{blockIdx.x} * PEER_BLOCK + threadIdx.x; i < end;
       i += int64_t{gridDim.x} * PEER_BLOCK) {
    // Each rank begins with another one, so that not all read from the same GPU at one time.
    Chunk<float, N> sum = widened(load_raw(p.buffer<C>(rank) + i));
    for (int k = 1; k < p.ranks; ++k)
      add_to(sum, widened(load_raw(p.buffer<C>((rank + k) % p.ranks) + i)));
    for (int k = 0; k < p.ranks; ++k) store_narrowed(p.buffer<C>((rank + k) % p.ranks) + i, sum);
  }
  meet(p, &Signals::finished);  // all ranks have stored their parts in this rank's buffer
}

constexpr auto TWO_SHOT = [](auto zero, auto width) {
  return all_reduce_v2_two_shot_kernel<decltype(zero), width>;
};

void all_reduce_v2_two_shot(Tensors buffers, Tensors signals, int64_t blocks) {
  launch_all("all_reduce_v2_two_shot", buffers, signals, blocks, TWO_SHOT);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a rank reads from the rank before it and from no other, which is all that a ring
// of links allows. A sum grows by one rank per step, and is rounded to T in each.

// Chunks [begin, end) of this block, AHEAD of them in flight: own + from, or a copy of from. The
// loads from the other GPU are issued first, since they take longest.
template <int AHEAD, bool ADD, typename T, int N>
__device__ void move_part(Chunk<T, N>* own, const Chunk<T, N>* from, int64_t begin, int64_t end) {
  const int64_t step = int64_t{gridDim.x} * PEER_BLOCK;
  int64_t i = begin + int64_t{blockIdx.x} * PEER_BLOCK + threadIdx.x;
  for (; i + (AHEAD - 1) * step < end; i += AHEAD * step) {
    RawChunk<Chunk<T, N>> theirs[AHEAD], mine[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) theirs[k] = load_raw(from + i + k * step);
    if constexpr (ADD) {
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) mine[k] = load_raw(own + i + k * step);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if constexpr (ADD) {
        Chunk<float, N> sum = widened(theirs[k]);
        add_to(sum, widened(mine[k]));
        store_narrowed(own + i + k * step, sum);
      } else {
        store_raw(own + i + k * step, theirs[k]);
      }
    }
  }
  if constexpr (AHEAD > 1) {
    const int64_t done = i - int64_t{blockIdx.x} * PEER_BLOCK - threadIdx.x;
    move_part<1, ADD>(own, from, done, end);
  }
}

template <typename T, int N, int AHEAD>
__device__ void ring(const Peers& p) {
  using C = Chunk<T, N>;
  const int rank = p.rank(), before = (rank + p.ranks - 1) % p.ranks, next = (rank + 1) % p.ranks;
  const int steps = 2 * (p.ranks - 1);
  uint32_t& done_before = p.signals[rank]->step[blockIdx.x];
  meet(p, &Signals::arrived);  // the buffers of all ranks are ready
  for (int step = 0; step < steps; ++step) {
    if (step > 0) {
      if (threadIdx.x == 0) wait_for(done_before, step, p, before);
      __syncthreads();  // all threads wait for the part that the rank before has done
    }
    const int part = (rank - 1 - step + 2 * p.ranks) % p.ranks;
    const int64_t begin = p.part(part), end = p.part(part + 1);
    if (step < p.ranks - 1) {
      move_part<AHEAD, true>(p.buffer<C>(rank), p.buffer<C>(before), begin, end);
    } else {
      move_part<AHEAD, false>(p.buffer<C>(rank), p.buffer<C>(before), begin, end);
    }
    __syncthreads();  // thread 0 signals for all threads
    if (threadIdx.x == 0 && step + 1 < steps)
      Flag(p.signals[next]->step[blockIdx.x]).store(step + 1, cuda::memory_order_release);
  }
  if (threadIdx.x == 0) Flag(done_before).store(0, cuda::memory_order_relaxed);
  meet(p, &Signals::finished);  // the next rank has read this rank's buffer
}

template <typename T, int N>
__global__ void __launch_bounds__(PEER_BLOCK, 2)
    all_reduce_v3_ring_kernel(const __grid_constant__ Peers p) {
  ring<T, N, 1>(p);
}

constexpr auto RING = [](auto zero, auto width) {
  return all_reduce_v3_ring_kernel<decltype(zero), width>;
};

void all_reduce_v3_ring(Tensors buffers, Tensors signals, int64_t blocks) {
  launch_all("all_reduce_v3_ring", buffers, signals, blocks, RING);
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: a load over NVLink takes longer than one from this GPU's memory. Four loads per
// thread are in flight before the first sum, so that few blocks are enough.

template <typename T, int N>
__global__ void __launch_bounds__(PEER_BLOCK)
    all_reduce_v4_in_flight_kernel(const __grid_constant__ Peers p) {
  ring<T, N, IN_FLIGHT>(p);
}

constexpr auto IN_FLIGHT_RING = [](auto zero, auto width) {
  return all_reduce_v4_in_flight_kernel<decltype(zero), width>;
};

void all_reduce_v4_in_flight(Tensors buffers, Tensors signals, int64_t blocks) {
  launch_all("all_reduce_v4_in_flight", buffers, signals, blocks, IN_FLIGHT_RING);
}

// ---------------------------------------------------------------------------------------------
// One rank's launch of the kernel of a rung, `version` 1 to 4: see peers_of_rank. All ranks call it
// with equal arguments but `rank`. Without one of them it fails after about timeout_ms.

void all_reduce_of_rank(Tensor buffer, Tensor memory, const Tensor& memories, int64_t version,
                        int64_t rank, int64_t blocks, int64_t timeout_ms) {
  const Peers p = peers_of_rank(buffer, memory, memories, rank);
  const auto with = [&](auto kernel_of) {
    launch("all_reduce_of_rank", p, buffer, 1, blocks, timeout_ms, kernel_of);
  };
  switch (version) {
    case 1:
      return with(ONE_SHOT);
    case 2:
      return with(TWO_SHOT);
    case 3:
      return with(RING);
    case 4:
      return with(IN_FLIGHT_RING);
    default:
      STD_TORCH_CHECK(false, "version: expected 1 to 4, got ", version);
  }
}

#define LISTS "(Tensor(a!)[] buffers, Tensor(b!)[] signals, int blocks) -> ()"

RUNG(day87, all_reduce_v1_one_shot, LISTS);
RUNG(day87, all_reduce_v2_two_shot, LISTS);
RUNG(day87, all_reduce_v3_ring, LISTS);
RUNG(day87, all_reduce_v4_in_flight, LISTS);
RUNG(day87, all_reduce_of_rank,
     "(Tensor(a!) buffer, Tensor(b!) memory, Tensor memories, int version, int rank, int blocks, "
     "int timeout_ms) -> ()");

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

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/chunk.cuh"            // taught in days 35 and 42
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/tensor_list.cuh"      // taught in day 81
#include "days/day87/meeting.cuh"

#include <algorithm>

constexpr int BLOCK = 512;
constexpr int IN_FLIGHT = 4;                  // chunks that a thread of v4 loads before it adds
constexpr int64_t CYCLES_PER_MS = 2'000'000;  // of a multiprocessor's clock, about
constexpr int64_t TIMEOUT_MS = 60'000;        // where one launch plays all ranks

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

// Calls f with the elements per chunk: 16 bytes, or one element where a buffer is misaligned or
// does not have whole chunks. All ranks come to the same number.
template <typename T, typename F>
void dispatch_width(const Peers& p, int64_t n, F&& f) {
  constexpr int N = 16 / sizeof(T);
  bool whole = n % N == 0;
  for (int r = 0; r < p.ranks; ++r) {
    whole = whole && reinterpret_cast<uintptr_t>(p.buffers[r]) % 16 == 0;
  }
  if (whole) return f(std::integral_constant<int, N>{});
  f(std::integral_constant<int, 1>{});
}

// Launches kernel_of(zero, width), a kernel for the type of `zero` and chunks of `width` elements,
// for `played` ranks from p.first on. own: a buffer of the first of them.
template <typename F>
void launch(const char* name, Peers p, const Tensor& own, int played, int64_t blocks,
            int64_t timeout_ms, F&& kernel_of) {
  STD_TORCH_CHECK(blocks >= 1 && blocks <= MOST_BLOCKS, "blocks: expected 1 to ", MOST_BLOCKS,
                  ", got ", blocks);
  if (own.numel() == 0) return;
  const DeviceGuard guard(own);
  dispatch_floating(own, [&](auto zero) {
    dispatch_width<decltype(zero)>(p, own.numel(), [&](auto width) {
      const auto kernel = kernel_of(zero, width);
      p.chunks = own.numel() / width;
      p.patience = timeout_ms * CYCLES_PER_MS;
      // Blocks that wait for each other must be resident at the same time. Ranks on GPUs of their
      // own wait for blocks of other launches, with the same grid: equal GPUs, and equal arguments.
      const int64_t resident =
          resident_grid(own, kernel, BLOCK, 0, MOST_BLOCKS * MOST_RANKS) / played;
      STD_TORCH_CHECK(resident >= 1, "buffers: ", played,
                      " ranks in one launch, more than the blocks that are resident");
      const int64_t grid = std::min({blocks, resident, ceil_div<int64_t>(p.chunks, BLOCK)});

      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeCooperative;  // refused unless all blocks are resident
      attribute.val.cooperative = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(grid), static_cast<unsigned>(played));
      config.blockDim = dim3(BLOCK);
      config.stream = current_stream(own);
      config.attrs = &attribute;
      config.numAttrs = played > 1;
      check_cuda(cudaLaunchKernelEx(&config, kernel, p), name);
    });
  });
}

// All ranks in one launch.
template <typename F>
void launch_all(const char* name, const Tensors& buffers, const Tensors& signals, int64_t blocks,
                F&& kernel_of) {
  const auto ranks = static_cast<int64_t>(buffers.size());
  STD_TORCH_CHECK(ranks >= 1 && ranks <= MOST_RANKS, "buffers: expected 1 to ", MOST_RANKS,
                  " tensors, one per rank, got ", ranks);
  STD_TORCH_CHECK(buffers.size() == signals.size(),
                  "signals: expected as many tensors as buffers, ", ranks, ", got ",
                  signals.size());
  check_each(buffers, "buffers", [&](const check& one) {
    one.on_gpu().floating().contiguous().like(buffers[0], "buffers[0]");
  });
  check_each(signals, "signals", [&](const check& one) {
    one.on_gpu().dtype({ScalarType::Int}).rank(1).size(0, SIGNAL_WORDS).contiguous();
    one.same_device(buffers[0], "buffers[0]");
  });
  Peers p{};
  p.ranks = static_cast<int>(ranks);
  for (int r = 0; r < p.ranks; ++r) {
    p.buffers[r] = buffers[r].mutable_data_ptr();
    p.signals[r] = static_cast<Signals*>(signals[r].mutable_data_ptr());
  }
  launch(name, p, buffers[0], p.ranks, blocks, TIMEOUT_MS, kernel_of);
}

// ---------------------------------------------------------------------------------------------
// v1: each rank reads the same chunk of all buffers and adds them, in the order of the ranks. It
// stores the sum when all ranks have read: two barriers per chunk of a thread.

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2)
    all_reduce_v1_one_shot_kernel(const __grid_constant__ Peers p) {
  using C = Chunk<T, N>;
  const int64_t step = int64_t{gridDim.x} * BLOCK;
  for (int64_t begin = int64_t{blockIdx.x} * BLOCK; begin < p.chunks; begin += step) {
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
__global__ void __launch_bounds__(BLOCK, 2)
    all_reduce_v2_two_shot_kernel(const __grid_constant__ Peers p) {
  using C = Chunk<T, N>;
  const int rank = p.rank();
  const int64_t end = p.part(rank + 1);
  meet(p, &Signals::arrived);  // the buffers of all ranks are ready
  for (int64_t i = p.part(rank) + int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < end;
       i += int64_t{gridDim.x} * BLOCK) {
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

// Chunks [begin, end) of this block, AHEAD of them in flight: own + from, or a copy of from.
template <int AHEAD, bool ADD, typename T, int N>
__device__ void move_part(Chunk<T, N>* own, const Chunk<T, N>* from, int64_t begin, int64_t end) {
  const int64_t step = int64_t{gridDim.x} * BLOCK;
  int64_t i = begin + int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  for (; i + (AHEAD - 1) * step < end; i += AHEAD * step) {
    RawChunk<Chunk<T, N>> theirs[AHEAD], mine[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      theirs[k] = load_raw(from + i + k * step);
      if constexpr (ADD) mine[k] = load_raw(own + i + k * step);
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
    const int64_t done = i - int64_t{blockIdx.x} * BLOCK - threadIdx.x;
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
__global__ void __launch_bounds__(BLOCK, 2)
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
__global__ void __launch_bounds__(BLOCK)
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
// One rank's launch of the kernel of a rung, `version` 1 to 4. memory: this rank's
// (peer_memory.cu), which begins with its Signals. memories: the address of every rank's memory,
// for this GPU. buffer: a part of `memory`; those of the other ranks are at the same place in
// theirs. All ranks call it with equal arguments but `rank`. Without one of them it fails after
// about timeout_ms.

void all_reduce_of_rank(Tensor buffer, Tensor memory, const Tensor& memories, int64_t version,
                        int64_t rank, int64_t blocks, int64_t timeout_ms) {
  check(buffer, "buffer").on_gpu().floating().contiguous();
  check(memory, "memory").on_gpu().dtype({ScalarType::Byte}).rank(1).contiguous();
  check(memory, "memory").same_device(buffer, "buffer");
  check(memories, "memories").on_host().dtype({ScalarType::Long}).rank(1).contiguous();
  const int64_t ranks = memories.size(0), *addresses = data<int64_t>(memories);
  STD_TORCH_CHECK(ranks >= 1 && ranks <= MOST_RANKS, "memories: expected 1 to ", MOST_RANKS,
                  " addresses, got ", ranks);
  STD_TORCH_CHECK(rank >= 0 && rank < ranks, "rank: expected 0 to ", ranks - 1, ", got ", rank);
  const auto begin = reinterpret_cast<int64_t>(memory.const_data_ptr());
  STD_TORCH_CHECK(addresses[rank] == begin, "memories: expected the address of memory for rank ",
                  rank);
  const int64_t place = reinterpret_cast<int64_t>(buffer.const_data_ptr()) - begin;
  const int64_t bytes = buffer.numel() * static_cast<int64_t>(buffer.element_size());
  STD_TORCH_CHECK(place >= int64_t{sizeof(Signals)} && place + bytes <= memory.numel(),
                  "buffer: expected a part of memory behind its first ", sizeof(Signals), " bytes");
  STD_TORCH_CHECK(timeout_ms >= 1 && timeout_ms <= 1'000'000'000,
                  "timeout_ms: expected 1 to 1000000000, got ", timeout_ms);
  Peers p{};
  p.ranks = static_cast<int>(ranks);
  p.first = static_cast<int>(rank);
  for (int r = 0; r < p.ranks; ++r) {
    p.buffers[r] = reinterpret_cast<char*>(addresses[r]) + place;
    p.signals[r] = reinterpret_cast<Signals*>(addresses[r]);
  }
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

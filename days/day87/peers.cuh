// Day 87: what a kernel knows of all ranks, and its launch for one of them or for all
#pragma once

#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/tensor_list.cuh"      // taught in day 81

#include <algorithm>
#include <type_traits>

constexpr int PEER_BLOCK = 512;
constexpr int MOST_RANKS = 8;                 // the GPUs of one host
constexpr int MOST_BLOCKS = 128;              // per rank
constexpr int64_t CYCLES_PER_MS = 2'000'000;  // of a multiprocessor's clock, about
constexpr int64_t TIMEOUT_MS = 60'000;        // where one launch plays all ranks

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
  __host__ __device__ C* buffer(int r) const {
    return static_cast<C*>(buffers[r]);
  }
};

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
  STD_TORCH_CHECK(timeout_ms >= 1 && timeout_ms <= 1'000'000'000,
                  "timeout_ms: expected 1 to 1000000000, got ", timeout_ms);
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
          resident_grid(own, kernel, PEER_BLOCK, 0, MOST_BLOCKS * MOST_RANKS) / played;
      STD_TORCH_CHECK(resident >= 1, "buffers: ", played,
                      " ranks in one launch, more than the blocks that are resident");
      const int64_t grid = std::min({blocks, resident, ceil_div<int64_t>(p.chunks, PEER_BLOCK)});

      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeCooperative;  // refused unless all blocks are resident
      attribute.val.cooperative = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(grid), static_cast<unsigned>(played));
      config.blockDim = dim3(PEER_BLOCK);
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

// One rank of several processes. memory: this rank's (peer_memory.cu), which begins with its
// Signals. memories: the address of every rank's memory, for this GPU. buffer: a part of `memory`;
// those of the other ranks are at the same place in theirs.
inline Peers peers_of_rank(const Tensor& buffer, const Tensor& memory, const Tensor& memories,
                           int64_t rank) {
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
  Peers p{};
  p.ranks = static_cast<int>(ranks);
  p.first = static_cast<int>(rank);
  for (int r = 0; r < p.ranks; ++r) {
    p.buffers[r] = reinterpret_cast<char*>(addresses[r]) + place;
    p.signals[r] = reinterpret_cast<Signals*>(addresses[r]);
  }
  return p;
}

// How a row is divided among threads, and how their partial results become one: by lanes, by warps,
// by the blocks of a cluster. Forward and backward pass of day 45 share it.
#pragma once

#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/chunk.cuh"            // taught in day 35
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // clusters: day 34; mbarriers: day 35
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"      // taught in day 23

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <type_traits>

constexpr int MAX_WARPS = 32;    // per block
constexpr int MAX_CLUSTER = 16;  // blocks; more than 8 have to be allowed per kernel

// A row of `chunks` chunks belongs to a cluster of `blocks` blocks, with `length` chunks each, of
// which thread t takes t, t + width … If blocks is 1, a block takes `teams` rows at a time, each by
// `width` threads, a multiple of 32.
struct Split {
  int64_t rows;
  int blocks, teams, width, chunks, length;
};

// One row per block. Its threads find their columns themselves: a row may have more than 2^31.
inline Split whole_rows(int64_t rows, int block) {
  return {rows, 1, 1, block, 0, 0};
}

// What one thread works on: `mine` chunks of the rows row, row + step …, of which its block has
// `of_block`.
struct Place {
  int64_t rows, row;
  int chunks, step, first, blocks, rank, team, width, mine, of_block;

  __device__ Place(const Split& s, int rank)
      : rows(s.rows),
        row(int64_t{blockIdx.x / s.blocks} * s.teams + threadIdx.x / s.width),
        chunks(s.chunks),
        step(gridDim.x / s.blocks * s.teams),
        first(rank * s.length + threadIdx.x % s.width),
        blocks(s.blocks),
        rank(rank),
        team(threadIdx.x / s.width),
        width(s.width) {
    const int end = min((rank + 1) * s.length, chunks);
    mine = first < end ? (end - first + width - 1u) / width : 0;
    of_block = max(0, end - rank * s.length);
  }

  // Whether any team of the block has a row: equal in all threads of the cluster, which share
  // barriers.
  __device__ bool goes_on() const { return row - team < rows; }
  // This thread's chunks of the rows `of`: none, if there is no such row.
  __device__ int count(int64_t of) const { return of < rows ? mine : 0; }
  __device__ int64_t at(int64_t of, int k) const { return of * chunks + first + k * width; }
  // Whether this thread stores what exists once per row.
  __device__ bool stores_row() const { return rank == 0 && threadIdx.x % width == 0 && row < rows; }
};

// Older cards do not run these parts, and have no instructions for them.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS 1
#endif

// Shared memory of merge_warps and merge_blocks. Rounds use the halves in turns: a thread that
// writes a half again has passed a barrier of the round in between, after which no thread reads
// what the half held.
template <typename Value>
struct Merging {
  Value warps[2][MAX_WARPS], blocks[2][MAX_CLUSTER];
  uint64_t arrived[2];  // mbarriers
};

#ifdef HAS_CLUSTERS
// Says to the cluster that this block has begun, and that its mbarriers are ready. Before the first
// send_to_blocks all threads of the cluster call it and ptx::cluster_wait. What a thread loads in
// between is in flight meanwhile.
template <typename Value>
__device__ void announce_merging(Merging<Value>& shared) {
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : shared.arrived) ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive_relaxed();
}
#endif

// Both, before the first merge_row of a cluster. All threads of the cluster must call it.
template <bool CLUSTER, typename Value>
__device__ void begin_merging(Merging<Value>& shared) {
#ifdef HAS_CLUSTERS
  if constexpr (CLUSTER) {
    announce_merging(shared);
    ptx::cluster_wait();
  }
#endif
}

// One value for all threads of the block that share a row, from a value of each warp, equal in its
// lanes. Value{} is that of no elements, and merge_lanes merges the values of 32 lanes, with equal
// bits in each. All threads of the block must call it, in rounds 0, 1, 2 …
template <typename Value>
__device__ Value merge_warps(Value value, Merging<Value>& shared, int round, const Place& p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = p.width / 32;
  const int half = round % 2;
  if (warps > 1) {
    if (lane == 0) shared.warps[half][warp] = value;
    __syncthreads();  // every warp waits for the other warps of its row
    value = merge_lanes(lane < warps ? shared.warps[half][p.team * warps + lane] : Value{});
  }
  return value;
}

#ifdef HAS_CLUSTERS
// Sends a block's value of a round to all blocks of its cluster, which has `blocks`. Warp 0 calls
// it, with equal values in its lanes.
template <typename Value>
__device__ void send_to_blocks(const Value& value, Merging<Value>& shared, int round, int rank,
                               int blocks) {
  const int lane = threadIdx.x, half = round % 2;
  uint64_t* arrived = &shared.arrived[half];
  if (lane == 0) ptx::mbarrier_arrive_expect_bytes(arrived, blocks * sizeof(Value));
  if (lane < blocks) {  // lane l sends to block l
    uint32_t words[sizeof(Value) / 4];
    memcpy(words, &value, sizeof value);
    auto* to = reinterpret_cast<uint32_t*>(&shared.blocks[half][rank]);
    for (int i = 0; i < sizeof(Value) / 4; ++i) {
      ptx::store_async_to_rank(to + i, lane, words[i], arrived);
    }
  }
}

// Waits for the values that the blocks of the cluster sent in a round: that of block b at [b].
template <typename Value>
__device__ const Value* receive(Merging<Value>& shared, int round) {
  ptx::mbarrier_wait(&shared.arrived[round % 2], round / 2 % 2);
  return shared.blocks[round % 2];
}
#endif

// One value for all threads of the cluster, from a value of each block, equal in its threads; as
// above. All threads of the cluster must call it, in rounds 0, 1, 2 …
template <bool CLUSTER, typename Value>
__device__ Value merge_blocks(Value value, [[maybe_unused]] Merging<Value>& shared,
                              [[maybe_unused]] int round, [[maybe_unused]] const Place& p) {
#ifdef HAS_CLUSTERS
  if constexpr (CLUSTER) {
    if (threadIdx.x < 32) send_to_blocks(value, shared, round, p.rank, p.blocks);
    const int lane = threadIdx.x % 32;
    const Value* values = receive(shared, round);
    value = merge_lanes(lane < p.blocks ? values[lane] : Value{});
  }
#endif
  return value;
}

// Both: one value for all threads that share a row.
template <bool CLUSTER, typename Value>
__device__ Value merge_row(Value value, Merging<Value>& shared, int round, const Place& p) {
  return merge_blocks<CLUSTER>(merge_warps(value, shared, round, p), shared, round, p);
}

// The chunk at `from`, which no thread writes during the kernel. An ordinary load would wait for
// the stores before it: as far as the compiler knows, they may have changed the chunk.
template <typename T, int N>
__device__ RawChunk<Chunk<T, N>> load_constant(const Chunk<T, N>* from) {
  if constexpr (sizeof(Chunk<T, N>) == 16) {
    return {__ldg(reinterpret_cast<const uint4*>(from))};
  } else {
    return {*from};
  }
}

// Chunks that stay in registers over many rows, from here on as the bits that they are. Without it
// the compiler converts their elements to fp32 once, before the loop, and 16-bit ones take twice
// the registers.
template <typename C, int COUNT>
__device__ void keep_as_bits([[maybe_unused]] RawChunk<C> (&chunks)[COUNT]) {
#ifndef CUDA_ON_CPU
  if constexpr (sizeof(C) == 16) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      uint4& bits = chunks[k].words;
      asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
    }
  }
#endif
}

// What the forward pass keeps of a row for the backward pass.
struct Statistics {
  float mean, rstd;

  __device__ float normalise(float h) const { return (h - mean) * rstd; }
};

// ---------------------------------------------------------------------------------------------
// Host

// Whether a block of `block` threads with up to `each` chunks per thread holds a row, or a cluster
// of such blocks where the current GPU has clusters.
inline bool fits(int64_t chunks, int block, int each) {
  return chunks <= int64_t{block} * each * (has_capability(9, 0) ? MAX_CLUSTER : 1);
}

// Rows that fit, in the smallest cluster of 1, 2, 4, 8 or 16 blocks. `block` is a power of two.
inline Split split_rows(int64_t rows, int64_t row_chunks, int block, int each) {
  const int chunks = static_cast<int>(row_chunks);
  Split s{rows, 1, 1, block, chunks, chunks};
  while (chunks > s.blocks * block * each) s.blocks *= 2;
  s.length = ceil_div(chunks, s.blocks);
  s.width = 32 * ceil_div(s.length, 32 * each);
  if (s.blocks == 1) s.teams = block / s.width;
  return s;
}

// A launch of `clusters` clusters of s.blocks blocks each, as in day 35.
class RowLaunch {
 public:
  template <typename Kernel>
  RowLaunch(const Tensor& on, Kernel kernel, const Split& s, size_t shared_bytes) {
    allow_shared(kernel, shared_bytes);
    config_.gridDim = dim3(s.blocks);
    config_.blockDim = dim3(s.teams * s.width);
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = current_stream(on);
    if (s.blocks == 1) return;
    raise_attribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim.x = static_cast<unsigned>(s.blocks);
    attribute_.val.clusterDim.y = attribute_.val.clusterDim.z = 1;
    config_.attrs = &attribute_;
    config_.numAttrs = 1;
  }
  RowLaunch(const RowLaunch&) = delete;

  // The clusters that are resident on the GPU of `on` at once, or `work` if that is less.
  template <typename Kernel>
  int64_t resident(const Tensor& on, Kernel kernel, int64_t work) {
    if (config_.numAttrs == 0) {
      return resident_grid(on, kernel, static_cast<int>(config_.blockDim.x),
                           config_.dynamicSmemBytes, work);
    }
    const int clusters =
        resident_clusters(kernel, config_, static_cast<int>(attribute_.val.clusterDim.x));
    return std::min<int64_t>(work, std::max(1, clusters));
  }

  template <typename Kernel, typename... Arguments>
  void launch(Kernel kernel, int64_t clusters, Arguments... arguments) {
    config_.gridDim = dim3(grid_size(clusters * config_.gridDim.x, "x"));
    check_cuda(cudaLaunchKernelEx(&config_, kernel, arguments...), "cudaLaunchKernelEx");
  }

 private:
  cudaLaunchAttribute attribute_ = {};
  cudaLaunchConfig_t config_ = {};
};

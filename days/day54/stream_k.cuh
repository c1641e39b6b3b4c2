// Stream-K, for v4 and v5: which tiles blocks share, and how a block adds the sums of others.
#pragma once

#include "days/day54/schedule.cuh"
#include "days/day54/tiles.cuh"

#include <cuda/atomic>

#include <algorithm>

// ---------------------------------------------------------------------------------------------
// The kernel's part. A tile that several blocks share begins in the last part of a block's range.
// That block adds the sums of the ranges behind it, which begin with this tile.

using Flag = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

// The range of this block. Those that share tiles take tickets: ranges from the last to the first,
// in the order in which blocks start. So the ranges that a block waits for belong to blocks that
// are running, and that wait for nothing before they publish.
__device__ __forceinline__ int range_of_block(const Schedule& s) {
  if (!s.ticket) return blockIdx.x;
  __shared__ int my_range;
  if (threadIdx.x == 0) my_range = static_cast<int>(gridDim.x - 1 - atomicAdd(s.ticket, 1u));
  __syncthreads();  // all threads wait for the ticket of thread 0
  return my_range;
}

// A range's sums, as four floats per fragment: those of a warp are adjacent.
template <typename P>
__device__ __forceinline__ float4* partial_sums(const Schedule& s, int range) {
  return reinterpret_cast<float4*>(s.partial + int64_t{range} * P::BM * P::BN) + threadIdx.x;
}

template <typename P>
__device__ __forceinline__ void publish(const Sums<P>& sums, const Schedule& s, int range) {
  float4* to = partial_sums<P>(s, range);
#pragma unroll
  for (const auto& row : sums) {
#pragma unroll
    for (const auto& of : row) {
      *to = make_float4(of[0], of[1], of[2], of[3]);
      to += P::THREADS;
    }
  }
  // All threads have stored their sums, and what thread 0 releases comes after these stores too.
  __syncthreads();
  if (threadIdx.x == 0) Flag(s.ticket[1 + range]).store(1, cuda::memory_order_release);
}

// Adds the sums of the ranges after `range` that begin before `end`.
template <typename P>
__device__ __forceinline__ void add_published(Sums<P>& sums, const Schedule& s, int range,
                                              int end) {
  while (s.begin(++range) < end) {
    if (threadIdx.x == 0) {
      while (Flag(s.ticket[1 + range]).load(cuda::memory_order_acquire) == 0);
    }
    __syncthreads();  // all threads wait for the flag that thread 0 has seen
    const float4* from = partial_sums<P>(s, range);
#pragma unroll
    for (auto& row : sums) {
#pragma unroll
      for (auto& of : row) {
        const float4 four = __ldcg(from);
        of[0] += four.x, of[1] += four.y, of[2] += four.z, of[3] += four.w;
        from += P::THREADS;
      }
    }
  }
}

// After the last step of a part: leaves the sums to another block, or stores the tile.
template <typename P>
__device__ __forceinline__ void finish_part(Sums<P>& sums, const Gemm<typename P::T>& p,
                                            const Schedule& s, const Work& work, int range) {
  if (work.first > 0) {
    publish<P>(sums, s, range);
    return;
  }
  if (work.count < s.steps) add_published<P>(sums, s, range, (work.tile + 1) * s.steps);
  const Corner tile = tile_at<P>(work.tile, s);
  store_sums<P::GROUP_COLS>(p, sums, tile.m * P::BM + warp_row<P>(),
                            tile.n * P::BN + warp_col<P>());
}

// ---------------------------------------------------------------------------------------------
// The launcher's part.

struct Shares {
  int64_t blocks, stream_tiles;
};

// To write and to read the sums of a tile, 256 KB, takes 9,800 clocks at one multiprocessor's part
// of an H200's L2 rate (27 bytes per clock, day 50). A step takes 1024 or more. Where less is
// gained, nothing is split.
constexpr int LEAST = 8;

// How many blocks compute the tiles, and how many tiles they split. places: blocks that are
// resident at a time.
inline Shares stream_k_shares(const Schedule& s, int64_t places) {
  const int64_t tiles = s.tiles(), rest = tiles % places;
  const int64_t idle_steps = rest > 0 ? (places - rest) * s.steps / places : 0;
  if (idle_steps < LEAST) return {std::min(tiles, places), 0};
  // With fewer tiles than places: as many blocks as have LEAST steps each.
  if (tiles < places) return {std::min(places, tiles * s.steps / LEAST), tiles};
  // Ranges of a tile and more begin at different steps of k in all of the tiles, so that blocks
  // find less in L2. Where the short wave's tiles have at most four parts each, only they are
  // split.
  return {places, 3 * rest >= places ? rest : places + rest};
}

// What blocks exchange. It lives until the launch.
struct Exchange {
  Tensor partial, ticket;
};

// Makes the schedule split its first stream_tiles tiles among `blocks` blocks.
template <typename P>
Exchange split_tiles(Schedule& s, const Tensor& a, int64_t blocks, int64_t stream_tiles) {
  Exchange made;
  if (stream_tiles > 0 && stream_tiles * s.steps < INT32_MAX) {
    s.stream_tiles = static_cast<int>(stream_tiles);
    made.partial = allocate(a, {blocks * P::BM * P::BN}, ScalarType::Float);
    made.ticket = allocate_zeros(a, {blocks + 1}, ScalarType::Int);
    s.partial = mutable_data<float>(made.partial), s.ticket = mutable_data<unsigned>(made.ticket);
  }
  return made;
}

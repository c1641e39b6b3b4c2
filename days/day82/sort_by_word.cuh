// Day 82: the positions of tokens, sorted by word: a stable counting sort
//
// The positions of a word are one segment, in ascending order, so that sums over them have the same
// bits in each run. The segments themselves lie in any order, on which no sum depends.
//
//   1  One warp per tile of positions: each position's rank among those of its word in the tile,
//      and how many there are: counts[tile][word].
//   2  One thread per word: its counts become sums over the tiles before, its total a segment.
//   3  One thread per position stores it in its place.
#pragma once

#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <algorithm>
#include <cstdint>

constexpr int SORT_BLOCK = 256;
constexpr int SHORTEST_TILE = 256;  // positions: 8 steps of a warp
constexpr int MOST_TILES = 64;      // of counts, which take 4 bytes per tile and word
constexpr int AT_ONCE = 8;          // counts that a thread loads before it needs the first

__device__ inline bool names_word(int64_t token, int64_t words) {
  return token >= 0 && token < words;
}

struct Segment {
  int start, count;
};

__global__ void __launch_bounds__(32)
    rank_kernel(const int64_t* __restrict__ tokens, int* __restrict__ ranks, int* counts, int64_t n,
                int64_t words, int64_t tile) {
  int* const of_tile = counts + blockIdx.x * words;
  const int64_t begin = blockIdx.x * tile, end = min(n, begin + tile);
  const int lane = threadIdx.x;
  const auto load = [&](int64_t i) { return i < end ? tokens[i] : -1; };
  int64_t next = load(begin + lane);
  for (int64_t i = begin + lane; i - lane < end; i += 32) {
    const int64_t token = next;
    next = load(i + 32);  // in flight while the atomicAdd is
    const bool valid = names_word(token, words);
    const unsigned equal = __match_any_sync(FULL_WARP, valid ? static_cast<int>(token) : -1);
    const int leader = __ffs(equal) - 1;
    int before = 0;
    if (valid && lane == leader) before = atomicAdd(of_tile + token, __popc(equal));
    before = __shfl_sync(FULL_WARP, before, leader);  // all lanes wait: steps go in order
    if (valid) ranks[i] = before + __popc(equal & ((1u << lane) - 1));
  }
}

__global__ void __launch_bounds__(SORT_BLOCK)
    segments_kernel(int* counts, Segment* __restrict__ segments, int* used, int64_t words,
                    int64_t tiles) {
  const int64_t word = int64_t{blockIdx.x} * SORT_BLOCK + threadIdx.x;
  int total = 0;
  for (int64_t first = 0; first < tiles && word < words; first += AT_ONCE) {
    int count[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      count[k] = first + k < tiles ? counts[(first + k) * words + word] : 0;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      if (count[k] > 0) counts[(first + k) * words + word] = total;
      total += count[k];
    }
  }
  // Each warp takes room for all its words by one atomicAdd.
  const int upto = warp_inclusive_scan(total);
  int start = threadIdx.x % 32 == 31 ? atomicAdd(used, upto) : 0;
  start = __shfl_sync(FULL_WARP, start, 31) + upto - total;
  if (word < words) segments[word] = {start, total};
}

__global__ void __launch_bounds__(SORT_BLOCK)
    place_kernel(const int64_t* __restrict__ tokens, const int* __restrict__ ranks,
                 const int* __restrict__ before_tile, const Segment* __restrict__ segments,
                 int* __restrict__ sorted, int64_t n, int64_t words, int64_t tile) {
  const int64_t i = int64_t{blockIdx.x} * SORT_BLOCK + threadIdx.x;
  if (i >= n) return;
  const int64_t token = tokens[i];
  if (!names_word(token, words)) return;
  sorted[segments[token].start + before_tile[i / tile * words + token] + ranks[i]] =
      static_cast<int>(i);
}

struct Sorted {
  Tensor positions;  // (n), int32
  Tensor segments;   // (words, 2), int32
  Tensor used;       // int32, in the first element: how many positions name a word
};

// n and words must not be 0.
inline Sorted sort_by_word(const Tensor& tokens, int64_t words) {
  const int64_t n = tokens.size(0);
  const int64_t tile = std::max<int64_t>(SHORTEST_TILE, ceil_div<int64_t>(n, MOST_TILES));
  const int64_t tiles = ceil_div(n, tile);
  const auto ints = [&](std::initializer_list<int64_t> shape) {
    return allocate(tokens, shape, ScalarType::Int);
  };
  const Tensor zeros = allocate_zeros(tokens, {tiles * words + 1}, ScalarType::Int);
  const Tensor ranks = ints({n});
  const Sorted sorted{ints({n}), ints({words, 2}), zeros};
  int *used = mutable_data<int>(zeros), *counts = used + 1;
  auto* segments = mutable_data<Segment>(sorted.segments);
  const cudaStream_t stream = current_stream(tokens);
  rank_kernel<<<static_cast<unsigned>(tiles), 32, 0, stream>>>(
      data<int64_t>(tokens), mutable_data<int>(ranks), counts, n, words, tile);
  segments_kernel<<<grid_size(ceil_div<int64_t>(words, SORT_BLOCK), "words"), SORT_BLOCK, 0,
                    stream>>>(counts, segments, used, words, tiles);
  place_kernel<<<grid_size(ceil_div<int64_t>(n, SORT_BLOCK), "tokens"), SORT_BLOCK, 0, stream>>>(
      data<int64_t>(tokens), data<int>(ranks), counts, segments,
      mutable_data<int>(sorted.positions), n, words, tile);
  check_launch("sort_by_word");
  return sorted;
}

// How the blocks of day 48 share a channel: parts of slices, and what is merged from them.
#pragma once

#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day48/walks.cuh"

// A block's part of its slice of a channel, in every thread. All threads must call it. partial: in
// shared memory.
template <class Pass, typename T, int N, bool KEEPS = false>
__device__ Part planes_part(const PlaneWalk& walk, const Arguments& p, float origin,
                            Part (&partial)[BLOCK], Kept<T, N, KEEPS> kept = {}) {
  const float origins[] = {origin};
  partial[threadIdx.x] = reduce<Pass, T, N>(walk, p, origins, kept).at(0);
  return tree_reduce(partial, Pass::merge);
}

template <int N>
struct RowsMemory {
  Part parts[WARPS * Rows::MAX_WIDTH * N > BLOCK ? WARPS * Rows::MAX_WIDTH * N : BLOCK];
  float4 coefficients[Rows::MAX_WIDTH * N];
};

// Stores the parts of the channels of a strip, of one slice. All threads must call it.
template <class Pass, typename T, int N, bool KEEPS = false>
__device__ void rows_parts(const RowWalk& walk, const Arguments& p, const Rows& g, int strip,
                           int slice, RowsMemory<N>& memory, Kept<T, N, KEEPS> kept = {}) {
  const int width = g.width, channels = width * N;  // of the strip
  const int64_t first = int64_t{strip} * channels;
  const int mine = threadIdx.x % width * N;
  float origin[N] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int64_t channel = first + mine + i;
    if (channel < g.channels) origin[i] = Pass::template origin<T>(p, channel, channel);
  }
  const Parts<N> parts = reduce<Pass, T, N>(walk, p, origin, kept);
  // Lanes l, l + width, l + 2 · width … of a warp have the same columns.
#pragma unroll
  for (int i = 0; i < N; ++i) {
    Part part = parts.at(i);
    for (int distance = 16; distance >= width; distance /= 2) {
      part = Pass::merge(part, {__shfl_down_sync(FULL_WARP, part.count, distance),
                                __shfl_down_sync(FULL_WARP, part.a, distance),
                                __shfl_down_sync(FULL_WARP, part.b, distance)});
    }
    if (threadIdx.x % 32 < width) memory.parts[threadIdx.x / 32 * channels + mine + i] = part;
  }
  __syncthreads();  // the parts of all warps are written
  if (threadIdx.x < channels && first + threadIdx.x < g.channels) {
    Part all{};
    for (int w = 0; w < WARPS; ++w)
      all = Pass::merge(all, memory.parts[w * channels + threadIdx.x]);
    p.partial[slice * g.channels + first + threadIdx.x] = all;
  }
}

// The coefficients of this thread's channels, from `slices` parts of each. All threads of the block
// must call it. writer: whether the block stores what the statistics change.
template <class Pass, typename T, int N>
__device__ void rows_coefficients(const Arguments& p, const Rows& g, int strip, int slices,
                                  bool writer, RowsMemory<N>& memory, float4 (&mine)[N]) {
  const int channels = g.width * N, groups = BLOCK / channels, t = threadIdx.x;
  const int64_t channel = int64_t{strip} * channels + t % channels;
  constexpr int AT_ONCE = 17;  // loads in flight: all of 132 slices in 8 groups of 64 threads
  Part all{};
  float origin = 0;
  if (channel < g.channels) {
    origin = Pass::template origin<T>(p, channel, channel);
    for (int first = t / channels; first < slices; first += AT_ONCE * groups) {
      Part parts[AT_ONCE] = {};
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int s = first + i * groups;
        if (s < slices) parts[i] = p.partial[s * g.channels + channel];
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) all = Pass::merge(all, parts[i]);
    }
  }
  memory.parts[t] = all;
  __syncthreads();  // the parts of all groups are written
  if (t < channels && channel < g.channels) {
    for (int group = 1; group < groups; ++group) {
      all = Pass::merge(all, memory.parts[group * channels + t]);
    }
    memory.coefficients[t] = Pass::coefficients(all, origin, channel, p, writer);
  }
  __syncthreads();  // the coefficients of all channels are written
#pragma unroll
  for (int i = 0; i < N; ++i) mine[i] = memory.coefficients[t % g.width * N + i];
}

// ---------------------------------------------------------------------------------------------

// How many slices a channel of planes gets, so that about `limit` blocks have 4 chunks per thread.
inline int64_t planes_slices(const Sizes& s, int N, int64_t limit) {
  const int64_t most = ceil_div<int64_t>(s.count() / N, 4 * BLOCK);
  return std::min(most, ceil_div(limit, s.channels));
}

// Memory for so many parts.
inline Tensor parts_for(const Tensor& x, int64_t parts) {
  return allocate(x, {parts, 3}, ScalarType::Float);
}

// Calls f with a number of x's type and N, the elements of a chunk: 16 bytes where all addresses of
// chunks are multiples of that, else one element.
template <typename F>
void with_chunks(const Tensor& x, const Sizes& s, const Arguments& p, F&& f) {
  dispatch_floating(x, [&](auto zero) {
    constexpr int N = 16 / sizeof(zero);
    bool whole = (s.inner == 1 ? s.channels : s.inner) % N == 0;
    for (const void* pointer : {p.in[0], p.in[1], static_cast<const void*>(p.out)}) {
      whole = whole && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
    }
    whole ? f(zero, Number<N>{}) : f(zero, Number<1>{});
  });
}

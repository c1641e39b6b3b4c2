// v2 and v3 of day 45's forward pass, for rows that divide evenly: four packs for each thread, or
// eight. No pack needs a branch then, so the compiler issues loads of several packs before it waits
// for the first. Warps take distances from a mean of their own, and exchange moments once per row.
#pragma once

#include "common/cuda/cluster_launch.cuh"  // taught in day 35
#include "days/day45/forward.cuh"

// Sums of a thread's distances from its warp's base, the mean of an element per lane. Two of each:
// an addition does not wait for the one before it.
template <int N>
struct Distances {
  float d[2] = {}, d2[2] = {};

  __device__ void add(const Chunk<float, N>& from_base) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      d[i % 2] += from_base.at[i];
      d2[i % 2] = fmaf(from_base.at[i], from_base.at[i], d2[i % 2]);
    }
  }

  // The moments of the warp's `count` elements. The base is a mean of 32 of them, so the square of
  // its distance from their mean is at most m2 / 32, and the squares are at most 1 + count / 32
  // times m2: the subtraction cancels 6 bits at most where count is 2048.
  __device__ Moments of_warp(float base, float count) const {
    const float sum = warp_sum(d[0] + d[1]), squares = warp_sum(d2[0] + d2[1]);
    const float mean = sum * (1.0f / count);
    return {count, base, mean, squares - sum * mean};
  }
};

// The sum over groups of LANES lanes, in every lane of the group.
template <int LANES>
__device__ float group_sum(float value) {
#pragma unroll
  for (int half = LANES / 2; half > 0; half /= 2) value += __shfl_xor_sync(FULL_WARP, value, half);
  return value;
}

// The moments of the union of `of` sets with equally many elements, in every lane. Lane l has those
// of set l % of, and `of` divides LANES: the sums over LANES lanes count each set LANES / of times.
template <int LANES>
__device__ Moments merge_equal(const Moments& mine, float base, int of) {
  const float from_base = mine.base - base + mine.mean;
  const float mean = group_sum<LANES>(from_base) * (1.0f / LANES);
  const float d = from_base - mean;
  const float m2 = group_sum<LANES>(mine.m2 + mine.count * d * d);
  return {mine.count * of, base, mean, m2 * (of * (1.0f / LANES))};
}

// ---------------------------------------------------------------------------------------------
// v2: one block of WIDTH threads per row.

constexpr int EVEN_EACH = 4;            // packs per thread
constexpr int RESIDENT_THREADS = 1024;  // per multiprocessor: 64 registers each

template <bool RESIDUAL, int WIDTH, typename T, int N>
__global__ void __launch_bounds__(WIDTH, RESIDENT_THREADS / WIDTH)
    layer_norm_v2_even_kernel(Rows<T, N> m) {
  using C = Chunk<T, N>;
  constexpr int WARPS = WIDTH / 32;
  __shared__ Moments warps[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t start = int64_t{blockIdx.x} * (EVEN_EACH * WIDTH) + threadIdx.x;
  RawChunk<C> x[EVEN_EACH], residual[RESIDUAL ? EVEN_EACH : 1];
#pragma unroll
  for (int k = 0; k < EVEN_EACH; ++k) {
    x[k] = load_raw(m.x + start + k * WIDTH);
    if constexpr (RESIDUAL) residual[k] = load_raw(m.residual + start + k * WIDTH);
  }
  if constexpr (RESIDUAL) {
#pragma unroll
    for (int k = 0; k < EVEN_EACH; ++k) {
      const C sum = added(x[k].chunk(), residual[k].chunk());
      m.h[start + k * WIDTH] = sum;
      memcpy(&x[k], &sum, sizeof sum);
    }
  }
  // In flight while the warps wait for each other. 64 registers have no room for more packs of w
  // and b, and the compiler would move a load_constant below the barrier.
  const RawChunk<C> weight = load_raw(m.weight + threadIdx.x);
  const RawChunk<C> bias = load_raw(m.bias + threadIdx.x);
  const float base = warp_sum(widened(x[0]).at[0] * (1.0f / 32));
  Chunk<float, N> distances[EVEN_EACH];
  Distances<N> sums;
#pragma unroll
  for (int k = 0; k < EVEN_EACH; ++k) {
    distances[k] = from_base(widened(x[k]), base);
    sums.add(distances[k]);
  }
  const Moments mine = sums.of_warp(base, 32.0f * EVEN_EACH * N);
  if (lane == 0) warps[warp] = mine;
  __syncthreads();  // every warp waits for the moments of all warps
  const Moments row = merge_equal<WARPS>(warps[lane % WARPS], warps[0].base, WARPS);
  const Statistics s = statistics_of(row, m.eps);
  const Normal to(base, row.base - base + row.mean, s.rstd);
#pragma unroll
  for (int k = 0; k < EVEN_EACH; ++k) {
    const int c = threadIdx.x + k * WIDTH;
    m.y[start + k * WIDTH] = scaled(distances[k], to, k == 0 ? weight : load_constant(m.weight + c),
                                    k == 0 ? bias : load_constant(m.bias + c));
  }
  if (threadIdx.x == 0) {
    m.mean[blockIdx.x] = s.mean;
    m.rstd[blockIdx.x] = s.rstd;
  }
}

// Whether it was launched: whether the row has four packs for each thread of 2, 4, 8 or 16 warps.
template <bool RESIDUAL, typename T, int N>
bool launch_v2_even(const Rows<T, N>& m, cudaStream_t stream) {
  const auto with = [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    if (m.chunks != EVEN_EACH * WIDTH) return false;
    layer_norm_v2_even_kernel<RESIDUAL, WIDTH><<<grid_size(m.rows, "x"), WIDTH, 0, stream>>>(m);
    return true;
  };
  return with(std::integral_constant<int, 64>{}) || with(std::integral_constant<int, 128>{}) ||
         with(std::integral_constant<int, 256>{}) || with(std::integral_constant<int, 512>{});
}

// ---------------------------------------------------------------------------------------------
// v3: a cluster per row, and no thread loads or stores rows. A warp has 4 KB of the row. A lane
// starts the bulk copy (day 55) that brings them to shared memory, and the one that stores what the
// warp has made of them. Warp 0 of a block merges the moments of its warps, and sends them to all
// blocks.

constexpr int WIDE_EACH = 8;                        // packs per thread
constexpr int WIDE_PACKS = RING_BLOCK * WIDE_EACH;  // of a row per block, 32 KB

constexpr int wide_bytes(bool residual) {
  return WIDE_PACKS * 16 * (residual ? 2 : 1);
}

template <bool RESIDUAL, typename T, int N>
__global__ void __launch_bounds__(RING_BLOCK, RESIDUAL ? 2 : 4)
    layer_norm_v3_even_kernel(Rows<T, N> m) {
#ifdef HAS_CLUSTERS
  using C = Chunk<T, N>;
  constexpr int WARPS = RING_BLOCK / 32, PART = 32 * WIDE_EACH, BYTES = PART * 16;
  extern __shared__ __align__(128) char memory[];
  __shared__ Merging<Moments> shared;
  __shared__ uint64_t arrived[WARPS];  // mbarriers
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int blocks = ptx::cluster_size(), rank = ptx::cluster_block_rank();
  const int64_t row = blockIdx.x / blocks;
  const int first = rank * WIDE_PACKS + warp * PART;
  const int64_t start = row * m.chunks + first;
  C* const h = reinterpret_cast<C*>(memory) + warp * PART;  // the warp's part of x, then of h
  C* const y = RESIDUAL ? h + WIDE_PACKS : h;               // of the residual, then of y
  if (lane == 0) {
    ptx::mbarrier_init(&arrived[warp], 1);
    ptx::fence_mbarrier_init();  // before copies use it
    ptx::mbarrier_arrive_expect_bytes(&arrived[warp], RESIDUAL ? 2 * BYTES : BYTES);
    ptx::copy_bulk(h, m.x + start, BYTES, &arrived[warp]);
    if (RESIDUAL) ptx::copy_bulk(y, m.residual + start, BYTES, &arrived[warp]);
  }
  RawChunk<C> weight[PACKS], bias[PACKS];  // of PACKS packs, the first of them in flight now
  const auto load = [&](int from) {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      weight[k] = load_constant(m.weight + first + lane + (from + k) * 32);
      bias[k] = load_constant(m.bias + first + lane + (from + k) * 32);
    }
  };
  load(0);
  announce_merging(shared);
  __syncwarp();  // the warp's mbarrier is ready
  ptx::mbarrier_wait(&arrived[warp], 0);

  // What the warp's lanes have written of `from` goes to `to`.
  const auto store = [&](C* to, const C* from) {
    ptx::fence_proxy_async();  // what this lane wrote, before it is copied …
    __syncwarp();              // … and what the other lanes wrote
    if (lane != 0) return;
    ptx::store_bulk(to + start, from, BYTES);
    ptx::bulk_commit();
  };
  if constexpr (RESIDUAL) {
#pragma unroll
    for (int i = lane; i < PART; i += 32) h[i] = added(load_whole(h + i), load_whole(y + i));
    store(m.h, h);
  }
  const auto part = [&](int k) { return widened(load_raw(h + lane + k * 32)); };
  const float base = warp_sum(part(0).at[0] * (1.0f / 32));
  Distances<N> sums;
#pragma unroll
  for (int k = 0; k < WIDE_EACH; ++k) sums.add(from_base(part(k), base));
  const Moments mine = sums.of_warp(base, 32.0f * WIDE_EACH * N);
  Moments* const warps = shared.warps[0];
  if (lane == 0) warps[warp] = mine;
  ptx::cluster_wait();
  __syncthreads();  // warp 0 waits for the moments of all warps
  if (warp == 0) {
    const Moments block = merge_equal<WARPS>(warps[lane % WARPS], warps[0].base, WARPS);
    send_to_blocks(block, shared, 0, rank, blocks);
  }
  const Moments* const theirs = receive(shared, 0);
  const Moments all = merge_equal<MAX_CLUSTER>(theirs[lane & (blocks - 1)], theirs[0].base, blocks);
  const Statistics s = statistics_of(all, m.eps);
  const Normal to(all.base, all.mean, s.rstd);
#pragma unroll
  for (int from = 0; from < WIDE_EACH; from += PACKS) {
    if (from > 0) load(from);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      y[lane + (from + k) * 32] = normalised(part(from + k), to, weight[k], bias[k]);
    }
  }
  store(m.y, y);
  if (rank == 0 && threadIdx.x == 0) {
    m.mean[row] = s.mean;
    m.rstd[row] = s.rstd;
  }
  if (lane == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
#endif
}

// Whether a row has eight packs for each thread of 2, 4, 8 or 16 blocks, a cluster.
inline bool is_wide(int64_t chunks) {
  const int64_t blocks = chunks / WIDE_PACKS;
  return chunks % WIDE_PACKS == 0 && blocks > 1 && blocks <= MAX_CLUSTER &&
         (blocks & (blocks - 1)) == 0;
}

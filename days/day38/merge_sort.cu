// Day 38: sorting by comparisons
//
//   values[i] = x[indices[i]], values[i] ≤ values[i + 1]     x, values: (n,) int32, int64 or fp32
//   stable: of equal keys, the one that comes first in x comes first      indices: (n,) int64
//
// Sorted runs of one tile each are merged in passes, and each pass doubles their length: log2(n /
// tile) passes, 15 in v2 for 2^26 elements. A pass reads and writes keys and places: 16 bytes per
// element with 4-byte keys.
//
//   v1 odd_even    sorts tiles of 1024 by exchanging neighbours, 1024 steps; then each element
//                  finds its place in the merged run by binary search
//   v2 merge_path  sorts 8 elements per thread in registers and merges from there on; a search per
//                  tile finds which parts of two runs make it, shared memory does the rest
//   v3 and v4 compare nothing; they are in radix_sort.cu.
//
// Run: python run_day.py 38

#include "common/cuda/binding.cuh"  // taught in day 6

#include "days/day38/order.cuh"

// ---------------------------------------------------------------------------------------------
// v1: odd-even transposition. In even steps the pairs (0, 1), (2, 3), … are put in order, in odd
// steps (1, 2), (3, 4), …. After as many steps as there are elements, all are in order. Equal
// neighbours are not exchanged: the sort is stable.

constexpr int TILE = 1024;  // elements per block, two per thread

template <typename T, typename Index>
__global__ void sort_v1_odd_even_tile_kernel(const T* __restrict__ x, T* __restrict__ values,
                                             Index* __restrict__ places, int64_t n) {
  __shared__ T keys[TILE];
  __shared__ Place place[TILE];
  const int64_t first = int64_t{blockIdx.x} * TILE;
  const int count = static_cast<int>(n - first < TILE ? n - first : TILE);
  for (int i = threadIdx.x; i < count; i += TILE / 2) {
    keys[i] = x[first + i];
    place[i] = static_cast<Place>(first + i);
  }
  for (int step = 0; step < count; ++step) {
    __syncthreads();  // all pairs of the previous step are written before they are read
    const int left = 2 * threadIdx.x + step % 2, right = left + 1;
    if (right < count && ordered(keys[right]) < ordered(keys[left])) {
      const T key = keys[left];
      keys[left] = keys[right];
      keys[right] = key;
      const Place p = place[left];
      place[left] = place[right];
      place[right] = p;
    }
  }
  __syncthreads();  // the last step is written before it is read
  for (int i = threadIdx.x; i < count; i += TILE / 2) {
    values[first + i] = keys[i];
    places[first + i] = static_cast<Index>(place[i]);
  }
}

// The runs [pair, mid) and [mid, end) that a merge makes one of.
struct Runs {
  int64_t pair, mid, end;
};

// Those that contain element i, of n; all runs but the last have `run` elements.
__device__ Runs runs_of(int64_t i, int64_t run, int64_t n) {
  const int64_t pair = i / (2 * run) * (2 * run);
  return {pair, pair + run < n ? pair + run : n, pair + 2 * run < n ? pair + 2 * run : n};
}

// One thread per element. Its place in the merged run is its place in its own run, plus the number
// of elements of the other run that come before it: smaller ones, and for the right run equal ones
// too.
template <typename T, typename Index>
__global__ void sort_v1_merge_by_rank_kernel(const T* __restrict__ from,
                                             const Place* __restrict__ from_place,
                                             T* __restrict__ to, Index* __restrict__ to_place,
                                             int64_t n, int64_t run) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Runs runs = runs_of(i, run, n);
  const bool in_left = i < runs.mid;
  const auto key = ordered(from[i]);
  int64_t low = in_left ? runs.mid : runs.pair, high = in_left ? runs.end : runs.mid;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    const auto other = ordered(from[middle]);
    const bool before = in_left ? other < key : other <= key;
    if (before) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  // From the left run: i + (low - mid). From the right: pair + (i - mid) + (low - pair).
  const int64_t at = i + low - runs.mid;
  to[at] = from[i];
  to_place[at] = static_cast<Index>(from_place[i]);
}

// Passes after the first one, which sorts tiles.
int merges_after(int64_t n, int64_t tile) {
  int merges = 0;
  for (int64_t run = tile; run < n; run *= 2) ++merges;
  return merges;
}

std::tuple<Tensor, Tensor> sort_v1_odd_even(const Tensor& x) {
  return dispatch_sortable(x, [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = x.numel();
    const cudaStream_t stream = current_stream(x);
    const auto pass = [&](int p, const T* from, const Place* from_place, T* to, auto* to_place) {
      if (p == 0) {
        sort_v1_odd_even_tile_kernel<<<grid_size(ceil_div<int64_t>(n, TILE), "x"), TILE / 2, 0,
                                       stream>>>(from, to, to_place, n);
      } else {
        sort_v1_merge_by_rank_kernel<<<grid_size(ceil_div<int64_t>(n, 256), "x"), 256, 0, stream>>>(
            from, from_place, to, to_place, n, int64_t{TILE} << (p - 1));
      }
      check_launch("sort_v1_odd_even");
    };
    return sort_by_passes<T>(x, 1 + merges_after(n, TILE), pass);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: an element's search costs log2(run) reads from memory that no other lane shares,
// and its write goes anywhere. Here the output is cut into equal parts, and one search per cut
// finds the co-ranks: how many elements of each run come before it (Odeh et al., "Merge path",
// 2012). Between two cuts a thread merges one element after the other.

constexpr int BLOCK = 256;
constexpr int PER_THREAD = 8;
constexpr int MERGE_TILE = BLOCK * PER_THREAD;  // elements per block

// How many of the first `count` elements of the merged run come from a (na), where b (nb) gives the
// others. Of equal keys, those of a come first.
template <typename T>
__device__ int64_t co_rank(int64_t count, const T* a, int64_t na, const T* b, int64_t nb) {
  int64_t low = count > nb ? count - nb : 0, high = count < na ? count : na;
  while (low < high) {
    const int64_t i = (low + high) / 2;
    if (ordered(b[count - 1 - i]) < ordered(a[i])) {
      high = i;  // a[i] comes after `count` others or more
    } else {
      low = i + 1;
    }
  }
  return low;
}

// A tile in shared memory, and a thread's part of it in registers.
template <typename T>
struct MergeTile {
  T keys[MERGE_TILE];
  Place places[MERGE_TILE];

  // Merges keys[a, a_end) and keys[b, b_end), in order, until `count` elements are in registers.
  __device__ void merge(int a, int a_end, int b, int b_end, int count, T (&key)[PER_THREAD],
                        Place (&place)[PER_THREAD]) const {
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      if (k >= count) break;
      const bool from_b = a == a_end || (b < b_end && ordered(keys[b]) < ordered(keys[a]));
      const int from = from_b ? b++ : a++;
      key[k] = keys[from];
      place[k] = places[from];
    }
  }

  __device__ void put(int first, int count, const T (&key)[PER_THREAD],
                      const Place (&place)[PER_THREAD]) {
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      if (k >= count) break;
      keys[first + k] = key[k];
      places[first + k] = place[k];
    }
  }

  // All elements of the tile to global memory, coalesced.
  template <typename Index>
  __device__ void store(T* __restrict__ to, Index* __restrict__ to_place, int count) const {
    for (int i = threadIdx.x; i < count; i += BLOCK) {
      to[i] = keys[i];
      to_place[i] = static_cast<Index>(places[i]);
    }
  }
};

// How many of the thread's elements the tile has, which has `count`.
__device__ int my_elements(int count) {
  const int rest = count - static_cast<int>(threadIdx.x) * PER_THREAD;
  return rest < 0 ? 0 : rest < PER_THREAD ? rest : PER_THREAD;
}

template <typename T, typename Index>
__global__ void __launch_bounds__(BLOCK)
    sort_v2_merge_path_tile_kernel(const T* __restrict__ x, T* __restrict__ values,
                                   Index* __restrict__ places, int64_t n) {
  __shared__ MergeTile<T> tile;
  const int64_t base = int64_t{blockIdx.x} * MERGE_TILE;
  const int count = static_cast<int>(n - base < MERGE_TILE ? n - base : MERGE_TILE);
  for (int i = threadIdx.x; i < count; i += BLOCK) tile.keys[i] = x[base + i];
  __syncthreads();  // the tile is loaded before threads read their parts

  const int first = threadIdx.x * PER_THREAD, mine = my_elements(count);
  T key[PER_THREAD];
  Place place[PER_THREAD];
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    if (k < mine) key[k] = tile.keys[first + k];
    place[k] = static_cast<Place>(base + first + k);
  }
#pragma unroll
  for (int step = 0; step < PER_THREAD; ++step) {  // v1's steps, without barriers
#pragma unroll
    for (int k = step % 2; k + 1 < PER_THREAD; k += 2) {
      if (k + 1 < mine && ordered(key[k + 1]) < ordered(key[k])) {
        const T other = key[k];
        key[k] = key[k + 1];
        key[k + 1] = other;
        const Place p = place[k];
        place[k] = place[k + 1];
        place[k + 1] = p;
      }
    }
  }
  for (int run = PER_THREAD; run < MERGE_TILE; run *= 2) {
    __syncthreads();  // all threads have read the tile before any thread overwrites it
    tile.put(first, mine, key, place);
    __syncthreads();  // all runs are written before they are merged
    if (mine == 0) continue;
    const Runs runs = runs_of(first, run, count);
    const int pair = static_cast<int>(runs.pair), mid = static_cast<int>(runs.mid);
    const int end = static_cast<int>(runs.end);
    const int a = pair + static_cast<int>(co_rank(first - pair, tile.keys + pair, mid - pair,
                                                  tile.keys + mid, end - mid));
    tile.merge(a, mid, mid + first - a, end, mine, key, place);
  }
  __syncthreads();  // all threads have read the tile before any thread overwrites it
  tile.put(first, mine, key, place);
  __syncthreads();  // the whole tile is written before it is stored
  tile.store(values + base, places + base, count);
}

// One thread per tile of the output: the co-rank of its first element in its runs.
template <typename T>
__global__ void sort_v2_co_ranks_kernel(const T* __restrict__ keys, int64_t* __restrict__ ranks,
                                        int64_t n, int64_t run, int64_t tiles) {
  const int64_t tile = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tile >= tiles) return;
  const int64_t first = tile * MERGE_TILE;
  const Runs runs = runs_of(first, run, n);
  ranks[tile] = co_rank(first - runs.pair, keys + runs.pair, runs.mid - runs.pair, keys + runs.mid,
                        runs.end - runs.mid);
}

template <typename T, typename Index>
__global__ void __launch_bounds__(BLOCK)
    sort_v2_merge_path_kernel(const T* __restrict__ from, const Place* __restrict__ from_place,
                              T* __restrict__ to, Index* __restrict__ to_place,
                              const int64_t* __restrict__ ranks, int64_t n, int64_t run) {
  __shared__ MergeTile<T> tile;
  const int64_t first = int64_t{blockIdx.x} * MERGE_TILE;
  const Runs runs = runs_of(first, run, n);
  const int64_t next = first + MERGE_TILE < runs.end ? first + MERGE_TILE : runs.end;
  const int count = static_cast<int>(next - first);
  // Co-ranks of both ends. The next tile's is of other runs where this tile is the last of its own.
  const int64_t a = ranks[blockIdx.x];
  const int64_t a_end = next == runs.end ? runs.mid - runs.pair : ranks[blockIdx.x + 1];
  const int64_t b = first - runs.pair - a;
  const int na = static_cast<int>(a_end - a);
  for (int i = threadIdx.x; i < count; i += BLOCK) {
    const int64_t at = i < na ? runs.pair + a + i : runs.mid + b + i - na;
    tile.keys[i] = from[at];
    tile.places[i] = from_place[at];
  }
  __syncthreads();  // both parts are loaded before they are merged

  const int begin = threadIdx.x * PER_THREAD, mine = my_elements(count);
  T key[PER_THREAD];
  Place place[PER_THREAD];
  if (mine > 0) {
    const int rank = static_cast<int>(co_rank(begin, tile.keys, na, tile.keys + na, count - na));
    tile.merge(rank, na, na + begin - rank, count, mine, key, place);
  }
  __syncthreads();  // all threads have read the tile before any thread overwrites it
  tile.put(begin, mine, key, place);
  __syncthreads();  // the whole tile is written before it is stored
  tile.store(to + first, to_place + first, count);
}

std::tuple<Tensor, Tensor> sort_v2_merge_path(const Tensor& x) {
  return dispatch_sortable(x, [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = x.numel();
    const cudaStream_t stream = current_stream(x);
    const unsigned tiles = grid_size(ceil_div<int64_t>(n, MERGE_TILE), "x");
    const Tensor ranks = torch::stable::new_empty(x, {int64_t{tiles}}, ScalarType::Long);
    const auto pass = [&](int p, const T* from, const Place* from_place, T* to, auto* to_place) {
      if (p == 0) {
        sort_v2_merge_path_tile_kernel<<<tiles, BLOCK, 0, stream>>>(from, to, to_place, n);
      } else {
        const int64_t run = int64_t{MERGE_TILE} << (p - 1);
        sort_v2_co_ranks_kernel<<<ceil_div(tiles, 128u), 128, 0, stream>>>(
            from, mutable_data<int64_t>(ranks), n, run, tiles);
        check_launch("sort_v2_merge_path, co-ranks");
        sort_v2_merge_path_kernel<<<tiles, BLOCK, 0, stream>>>(from, from_place, to, to_place,
                                                               data<int64_t>(ranks), n, run);
      }
      check_launch("sort_v2_merge_path");
    };
    return sort_by_passes<T>(x, 1 + merges_after(n, MERGE_TILE), pass);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day38, sort_v1_odd_even, "(Tensor x) -> (Tensor, Tensor)");
RUNG(day38, sort_v2_merge_path, "(Tensor x) -> (Tensor, Tensor)");

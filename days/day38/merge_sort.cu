// Day 38: merge sort by co-ranks
//
//   values[i] = x[indices[i]], values[i] ≤ values[i + 1]          x, values: (n,) int32
//   stable: equal keys keep the order that they have in x         indices: (n,) int64
//
// A run is a sorted part of an array. Blocks sort tiles of x, the first runs. Then each merge pass
// merges runs in pairs, which doubles their length: ceil(log2(n / tile)) passes, each of which
// reads and writes a key and its index, 16 bytes per element. v3 makes 15 for 2^26 elements. With
// the tiles (12 bytes) and the widening of the indices at the end (12) it moves 264 bytes per
// element.
//
//   v1 odd_even    tiles: exchanges of neighbours, one barrier per element of the tile
//                  merge passes: each element finds its place by binary search
//   v2 co_rank     tiles: merges, in parts of 9 elements; a thread finds by one search where its
//                  part begins in both runs. 8 levels of two barriers take the place of 1024 steps
//   v3 merge_path  merge passes: the same parts, after a search per tile cut it out of both runs
//
// Run: python run_day.py 38

#include <utility>

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

// Two neighbouring runs of an array that become one: left, a, [begin, mid); right, b, [mid, end).
template <typename Int>
struct Runs {
  Int begin, mid, end;
};

// The pair of runs that contains element i of n. All runs but the last have `run` elements. In the
// last pair the right run may be shorter or empty.
template <typename Int>
__device__ Runs<Int> runs_of(Int i, Int run, Int n) {
  const Int begin = i / (2 * run) * (2 * run);
  return {begin, begin + run < n ? begin + run : n, begin + 2 * run < n ? begin + 2 * run : n};
}

template <typename T>
__device__ void exchange(T& a, T& b) {
  const T old = a;
  a = b;
  b = old;
}

// Keys and their indices in x: a merge pass reads one of two, and writes the other.
struct Elements {
  Tensor keys, indices;

  explicit Elements(const Tensor& x)
      : keys(allocate_like(x)), indices(allocate(x, {x.numel()}, ScalarType::UInt32)) {}
};

// torch.sort's indices are int64.
std::tuple<Tensor, Tensor> result_of(const Elements& sorted) {
  Tensor wide = allocate(sorted.keys, {sorted.keys.numel()}, ScalarType::Long);
  torch::stable::copy_(wide, sorted.indices);
  return {sorted.keys, wide};
}

void check_keys(const Tensor& x) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype({ScalarType::Int});
  STD_TORCH_CHECK(x.numel() < int64_t{1} << 32, "x: expected fewer than 2^32 elements, got ",
                  x.numel());
}

// ---------------------------------------------------------------------------------------------
// v1: odd-even transposition. In even steps the pairs (0, 1), (2, 3), … are put in order, in odd
// steps (1, 2), (3, 4), …. After as many steps as there are elements, all are in order. Equal
// neighbours are not exchanged: the sort is stable.

constexpr int ODD_EVEN_TILE = 1024;  // elements per block, two per thread

__global__ void sort_v1_odd_even_tile_kernel(const int* __restrict__ x, int* __restrict__ to_keys,
                                             uint32_t* __restrict__ to_indices, int64_t n) {
  __shared__ int keys[ODD_EVEN_TILE];
  __shared__ uint32_t indices[ODD_EVEN_TILE];
  const int64_t base = int64_t{blockIdx.x} * ODD_EVEN_TILE;
  const int count = static_cast<int>(n - base < ODD_EVEN_TILE ? n - base : ODD_EVEN_TILE);
  for (int i = threadIdx.x; i < count; i += ODD_EVEN_TILE / 2) {
    keys[i] = x[base + i];
    indices[i] = static_cast<uint32_t>(base + i);
  }
  for (int step = 0; step < count; ++step) {
    __syncthreads();  // all wait for the load, or for the previous step, before they read
    const int left = 2 * threadIdx.x + step % 2, right = left + 1;
    if (right < count && keys[right] < keys[left]) {
      exchange(keys[left], keys[right]);
      exchange(indices[left], indices[right]);
    }
  }
  __syncthreads();  // the last step is written before it is read
  for (int i = threadIdx.x; i < count; i += ODD_EVEN_TILE / 2) {
    to_keys[base + i] = keys[i];
    to_indices[base + i] = indices[i];
  }
}

// One thread per element. Its rank, its place in the merged run, is its place in its own run plus
// the number of elements of the other run that come before it: the smaller ones, and for an element
// of the right run the equal ones, too.
__global__ void merge_by_rank_kernel(const int* __restrict__ keys,
                                     const uint32_t* __restrict__ indices,
                                     int* __restrict__ to_keys, uint32_t* __restrict__ to_indices,
                                     int64_t n, int64_t run) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Runs<int64_t> runs = runs_of(i, run, n);
  const bool in_left = i < runs.mid;
  const int key = keys[i];
  int64_t low = in_left ? runs.mid : runs.begin, high = in_left ? runs.end : runs.mid;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (in_left ? keys[middle] < key : keys[middle] <= key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  // From the left run: i + (low - mid). From the right: begin + (i - mid) + (low - begin).
  const int64_t rank = i + low - runs.mid;
  to_keys[rank] = key;
  to_indices[rank] = indices[i];
}

std::tuple<Tensor, Tensor> merge_by_rank(Elements from, int64_t tile) {
  const int64_t n = from.keys.numel();
  const unsigned blocks = grid_size(ceil_div<int64_t>(n, 256), "x");
  Elements to(from.keys);
  for (int64_t run = tile; run < n; run *= 2) {
    merge_by_rank_kernel<<<blocks, 256, 0, current_stream(from.keys)>>>(
        data<int>(from.keys), data<uint32_t>(from.indices), mutable_data<int>(to.keys),
        mutable_data<uint32_t>(to.indices), n, run);
    check_launch("merge_by_rank");
    std::swap(from, to);
  }
  return result_of(from);
}

std::tuple<Tensor, Tensor> sort_v1_odd_even(const Tensor& x) {
  check_keys(x);
  const DeviceGuard guard(x);
  const int64_t n = x.numel();
  const Elements tiles(x);
  if (n == 0) return result_of(tiles);
  const unsigned blocks = grid_size(ceil_div<int64_t>(n, ODD_EVEN_TILE), "x");
  sort_v1_odd_even_tile_kernel<<<blocks, ODD_EVEN_TILE / 2, 0, current_stream(x)>>>(
      data<int>(x), mutable_data<int>(tiles.keys), mutable_data<uint32_t>(tiles.indices), n);
  check_launch("sort_v1_odd_even");
  return merge_by_rank(tiles, ODD_EVEN_TILE);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: tiles are sorted by merges, too, where no element searches its place. The output
// of a level is cut into parts of PER_THREAD elements, one per thread. One search per part finds
// its co-rank: how many of the elements before the part come from the left run. So the thread knows
// where both runs go on, and merges one element after the other.

constexpr int BLOCK = 256;
// Odd, so that 32 lanes that access words PER_THREAD apart use 32 different banks (day 14).
constexpr int PER_THREAD = 9;
constexpr int TILE = BLOCK * PER_THREAD;  // elements per block

// The co-rank of k: how many of the first k elements of the merged run come from a, the left run.
// The others come from b, the right one. Of equal keys, those of a come first.
template <typename Int>
__device__ Int co_rank(const int* keys, Runs<Int> runs, Int k) {
  const int *a = keys + runs.begin, *b = keys + runs.mid;
  const Int a_size = runs.mid - runs.begin, b_size = runs.end - runs.mid;
  Int low = k > b_size ? k - b_size : 0, high = k < a_size ? k : a_size;
  while (low < high) {
    const Int i = (low + high) / 2;
    if (b[k - 1 - i] < a[i]) {
      high = i;  // i elements of a and k - i of b come before a[i]
    } else {
      low = i + 1;  // at most k - 1 elements come before a[i]
    }
  }
  return low;
}

// In shared memory.
struct Tile {
  int keys[TILE];
  uint32_t indices[TILE];
};

// Elements [first, first + count) of the merged run, from the two runs in the tile to registers.
__device__ void merge_part(const Tile& tile, Runs<int> runs, int first, int count,
                           int (&keys)[PER_THREAD], uint32_t (&indices)[PER_THREAD]) {
  const int before = first - runs.begin, from_a = co_rank(tile.keys, runs, before);
  int a_at = runs.begin + from_a, b_at = runs.mid + before - from_a;
#pragma unroll
  for (int e = 0; e < PER_THREAD; ++e) {
    if (e >= count) break;
    const bool take_b = a_at == runs.mid || (b_at < runs.end && tile.keys[b_at] < tile.keys[a_at]);
    const int at = take_b ? b_at++ : a_at++;
    keys[e] = tile.keys[at];
    indices[e] = tile.indices[at];
  }
}

// Registers to elements [first, first + count) of the tile.
__device__ void put_part(Tile& tile, int first, int count, const int (&keys)[PER_THREAD],
                         const uint32_t (&indices)[PER_THREAD]) {
  __syncthreads();  // all threads have read the tile before any thread overwrites it
#pragma unroll
  for (int e = 0; e < PER_THREAD; ++e) {
    if (e >= count) break;
    tile.keys[first + e] = keys[e];
    tile.indices[first + e] = indices[e];
  }
  __syncthreads();  // the whole tile is written before threads read what others wrote
}

__device__ void store_tile(const Tile& tile, int count, int* __restrict__ to_keys,
                           uint32_t* __restrict__ to_indices) {
  for (int i = threadIdx.x; i < count; i += BLOCK) {
    to_keys[i] = tile.keys[i];
    to_indices[i] = tile.indices[i];
  }
}

__global__ void __launch_bounds__(BLOCK)
    sort_v2_co_rank_tile_kernel(const int* __restrict__ x, int* __restrict__ to_keys,
                                uint32_t* __restrict__ to_indices, int64_t n) {
  __shared__ Tile tile;
  const int64_t base = int64_t{blockIdx.x} * TILE;
  const int count = static_cast<int>(n - base < TILE ? n - base : TILE);
  for (int i = threadIdx.x; i < count; i += BLOCK) tile.keys[i] = x[base + i];
  __syncthreads();  // the tile is loaded before threads read their parts

  const int first = threadIdx.x * PER_THREAD, mine = min(max(count - first, 0), PER_THREAD);
  int keys[PER_THREAD];
  uint32_t indices[PER_THREAD];
#pragma unroll
  for (int e = 0; e < PER_THREAD; ++e) {
    if (e < mine) keys[e] = tile.keys[first + e];
    indices[e] = static_cast<uint32_t>(base + first + e);
  }
#pragma unroll
  for (int step = 0; step < PER_THREAD; ++step) {  // v1's steps in registers, without barriers
#pragma unroll
    for (int e = step % 2; e + 1 < PER_THREAD; e += 2) {
      if (e + 1 < mine && keys[e + 1] < keys[e]) {
        exchange(keys[e], keys[e + 1]);
        exchange(indices[e], indices[e + 1]);
      }
    }
  }
  put_part(tile, first, mine, keys, indices);
  for (int run = PER_THREAD; run < count; run *= 2) {
    if (mine > 0) merge_part(tile, runs_of(first, run, count), first, mine, keys, indices);
    put_part(tile, first, mine, keys, indices);
  }
  store_tile(tile, count, to_keys + base, to_indices + base);
}

Elements sort_tiles(const Tensor& x, unsigned tiles) {
  const Elements sorted(x);
  sort_v2_co_rank_tile_kernel<<<tiles, BLOCK, 0, current_stream(x)>>>(
      data<int>(x), mutable_data<int>(sorted.keys), mutable_data<uint32_t>(sorted.indices),
      x.numel());
  check_launch("sort_v2_co_rank");
  return sorted;
}

std::tuple<Tensor, Tensor> sort_v2_co_rank(const Tensor& x) {
  check_keys(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return result_of(Elements(x));
  return merge_by_rank(sort_tiles(x, grid_size(ceil_div<int64_t>(x.numel(), TILE), "x")), TILE);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: merge passes merge parts, too. A pass's output is cut twice: by a search in global
// memory into one tile per block, which loads its pieces of both runs into shared memory, and there
// into one part per thread, as in v2 (Odeh et al., "Merge path", 2012).

// One thread per tile of the output: cuts[tile] is where the left run goes on as the tile begins.
// A tile lies in one pair of runs, as 2 * run is a multiple of TILE.
__global__ void sort_v3_cuts_kernel(const int* __restrict__ keys, int64_t* __restrict__ cuts,
                                    int64_t n, int64_t run, int64_t tiles) {
  const int64_t tile = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tile >= tiles) return;
  const Runs<int64_t> runs = runs_of(tile * TILE, run, n);
  cuts[tile] = runs.begin + co_rank(keys, runs, tile * TILE - runs.begin);
}

__global__ void __launch_bounds__(BLOCK)
    sort_v3_merge_path_kernel(const int* __restrict__ keys, const uint32_t* __restrict__ indices,
                              int* __restrict__ to_keys, uint32_t* __restrict__ to_indices,
                              const int64_t* __restrict__ cuts, int64_t n, int64_t run) {
  __shared__ Tile tile;
  const int64_t begin = int64_t{blockIdx.x} * TILE;  // of the tile in the output
  const Runs<int64_t> runs = runs_of(begin, run, n);
  const int64_t end = begin + TILE < runs.end ? begin + TILE : runs.end;
  const int count = static_cast<int>(end - begin);
  // The tile's pieces: [a_at, a_end) of the left run, the rest from b_at on. The last tile of a
  // merged run takes what is left: the next cut belongs to the next pair of runs.
  const int64_t a_at = cuts[blockIdx.x];
  const int64_t a_end = end == runs.end ? runs.mid : cuts[blockIdx.x + 1];
  const int64_t b_at = runs.mid + begin - a_at;
  const int from_a = static_cast<int>(a_end - a_at);
  for (int i = threadIdx.x; i < count; i += BLOCK) {
    const int64_t at = i < from_a ? a_at + i : b_at + i - from_a;
    tile.keys[i] = keys[at];
    tile.indices[i] = indices[at];
  }
  __syncthreads();  // both pieces are loaded before they are merged

  const int first = threadIdx.x * PER_THREAD, mine = min(max(count - first, 0), PER_THREAD);
  int my_keys[PER_THREAD];
  uint32_t my_indices[PER_THREAD];
  if (mine > 0) merge_part(tile, {0, from_a, count}, first, mine, my_keys, my_indices);
  put_part(tile, first, mine, my_keys, my_indices);
  store_tile(tile, count, to_keys + begin, to_indices + begin);
}

std::tuple<Tensor, Tensor> sort_v3_merge_path(const Tensor& x) {
  check_keys(x);
  const DeviceGuard guard(x);
  const int64_t n = x.numel();
  if (n == 0) return result_of(Elements(x));
  const cudaStream_t stream = current_stream(x);
  const unsigned tiles = grid_size(ceil_div<int64_t>(n, TILE), "x");
  const Tensor cuts = allocate(x, {int64_t{tiles}}, ScalarType::Long);
  Elements from = sort_tiles(x, tiles), to(x);
  for (int64_t run = TILE; run < n; run *= 2) {
    sort_v3_cuts_kernel<<<ceil_div(tiles, 128u), 128, 0, stream>>>(
        data<int>(from.keys), mutable_data<int64_t>(cuts), n, run, tiles);
    check_launch("sort_v3_merge_path, cuts");
    sort_v3_merge_path_kernel<<<tiles, BLOCK, 0, stream>>>(
        data<int>(from.keys), data<uint32_t>(from.indices), mutable_data<int>(to.keys),
        mutable_data<uint32_t>(to.indices), data<int64_t>(cuts), n, run);
    check_launch("sort_v3_merge_path");
    std::swap(from, to);
  }
  return result_of(from);
}

// ---------------------------------------------------------------------------------------------

RUNG(day38, sort_v1_odd_even, "(Tensor x) -> (Tensor, Tensor)");
RUNG(day38, sort_v2_co_rank, "(Tensor x) -> (Tensor, Tensor)");
RUNG(day38, sort_v3_merge_path, "(Tensor x) -> (Tensor, Tensor)");

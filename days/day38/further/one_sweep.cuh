// The moves of radix_sort.cu, and v5's kernels, for later days that sort, too: day 92 does.
#pragma once

#include "common/cuda/multiprocessors.cuh"  // taught in day 16
#include "common/cuda/warp_reduce.cuh"      // taught in day 23

#include <cuda/atomic>

#include "days/day38/further/order.cuh"

constexpr int BITS = 8;
constexpr int DIGITS = 1 << BITS;
constexpr int BLOCK = DIGITS;  // thread d does the sums of digit d
constexpr int WARPS = BLOCK / 32;

template <typename T>
constexpr int PASSES = sizeof(T) * 8 / BITS;
constexpr int PER_THREAD = 16;  // keys
// Blocks per multiprocessor that the registers must allow. Without the limit a thread takes 106
// registers, and only two blocks fit.
template <typename T>
constexpr int RESIDENT = sizeof(T) == 4 ? 4 : 3;
constexpr int TILE = BLOCK * PER_THREAD;

template <typename T>
__device__ int digit_of(T key, int pass) {
  return static_cast<int>(ordered(key) >> (pass * BITS)) & (DIGITS - 1);
}

// The lanes of the warp whose digit is that of the calling lane. Each bit of the digit halves them:
// __ballot_sync returns the lanes whose bit is set.
__device__ inline unsigned lanes_with(int digit) {
  unsigned equal = FULL_WARP;
#pragma unroll
  for (int bit = 0; bit < BITS; ++bit) {
    const unsigned set = __ballot_sync(FULL_WARP, digit >> bit & 1);
    equal &= digit >> bit & 1 ? set : ~set;
  }
  return equal;
}

// The sum of `value` of the threads before this one. Every thread of the block must call it; a
// second call needs a barrier before it.
template <typename Sum>
__device__ Sum sum_before(Sum value) {
  __shared__ Sum of_warp[WARPS];
  const int warp = threadIdx.x / 32;
  const Sum upto = warp_inclusive_scan(value);
  if (threadIdx.x % 32 == 31) of_warp[warp] = upto;
  __syncthreads();  // the sums of all warps are written before they are read
  Sum before = upto - value;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  return before;
}

// Moves the elements of a tile to where their digit belongs. total: how many elements of x have
// digit threadIdx.x. before_tile(count): how many of those are in the tiles before this one, which
// itself has `count`.
//
//   1  Each element's rank among the elements of its warp with the same digit.
//   2  Counts of warps become places in the tile, sorted by this digit.
//   3  Through shared memory: neighbours in the sorted tile are mostly neighbours in the output.
template <typename T, typename Index, typename BeforeTile>
__device__ void move_tile(int64_t tile, const T* __restrict__ from,
                          const Place* __restrict__ from_place, T* __restrict__ to,
                          Index* __restrict__ to_place, int64_t n, int pass, Place total,
                          BeforeTile before_tile) {
  constexpr int N = PER_THREAD;
  __shared__ Place places[WARPS][DIGITS];  // of each warp's first element with each digit
  __shared__ Place shift[DIGITS];          // from the place in the sorted tile to that in `to`
  __shared__ T exchange[TILE];
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  const int64_t begin = tile * TILE;
  const int count = static_cast<int>(n - begin < TILE ? n - begin : TILE);
  const int first = warp * (32 * N) + lane;  // this thread has the elements first + 32 k

  T key[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (first + k * 32 < count) key[k] = from[begin + first + k * 32];
  }
  for (int d = lane; d < DIGITS; d += 32) places[warp][d] = 0;
  __syncwarp();  // the warp's counts are 0 before a lane adds to them

  // Each element's digit in the upper half, its rank in the lower.
  uint32_t rank[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    // What is not there counts as the highest digit: behind all others, where nothing is stored.
    const int digit = first + k * 32 < count ? digit_of(key[k], pass) : DIGITS - 1;
    const unsigned equal = lanes_with(digit), below = equal & ((1u << lane) - 1);
    Place before = 0;
    if (below == 0) before = atomicAdd(&places[warp][digit], __popc(equal));
    before = __shfl_sync(FULL_WARP, before, __ffs(equal) - 1);  // from the lowest of the lanes
    rank[k] = digit << 16 | (before + __popc(below));
  }
  __syncthreads();  // the counts of all warps are complete

  Place in_tile = 0;
  for (int w = 0; w < WARPS; ++w) in_tile += places[w][t];
  const Place start = sum_before(in_tile);  // of digit t in the sorted tile
  Place at = start;
  for (int w = 0; w < WARPS; ++w) {
    const Place of_warp = places[w][t];
    places[w][t] = at;
    at += of_warp;
  }
  __syncthreads();  // sum_before is called again; and all places are written before they are read
  const Place before_digit = sum_before(total);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    rank[k] = (rank[k] & 0xffff) + places[warp][rank[k] >> 16];
    exchange[rank[k]] = key[k];
  }
  shift[t] = before_digit + before_tile(in_tile) - start;
  __syncthreads();  // keys and shifts are written before they are read

  Place target[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int i = t + k * BLOCK;
    if (i >= count) break;
    const T sorted = exchange[i];
    target[k] = shift[digit_of(sorted, pass)] + i;
    to[target[k]] = sorted;
  }
  __syncthreads();  // all keys are read before places overwrite them
  Place* const moved = reinterpret_cast<Place*>(exchange);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int i = first + k * 32;
    if (i < count) moved[rank[k]] = from_place ? from_place[begin + i] : begin + i;
  }
  __syncthreads();  // all places are written before they are read
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int i = t + k * BLOCK;
    if (i < count) to_place[target[k]] = static_cast<Index>(moved[i]);
  }
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: the digits of all passes are counted in one reading, since an element's digits do
// not depend on where it is. The sums of the tiles before come from the tiles themselves: each
// publishes its counts, then the counts up to its end (Adinets & Merrill, "Onesweep", 2022).

// Copies of each count, for lanes side by side: keys with equal digits would wait for each other.
template <typename T>
constexpr int COPIES = 16 / sizeof(T);

// totals[pass][d], zeros at first: how many keys have digit d in this pass.
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    sort_v5_one_sweep_totals_kernel(const T* __restrict__ keys, Place* __restrict__ totals,
                                    int64_t n) {
  __shared__ Place of_digit[PASSES<T>][DIGITS][COPIES<T>];
  Place* const counts = of_digit[0][0];
  for (int i = threadIdx.x; i < PASSES<T> * DIGITS * COPIES<T>; i += BLOCK) counts[i] = 0;
  __syncthreads();  // all counts are 0 before threads add to them
  const int64_t threads = int64_t{gridDim.x} * BLOCK;
  const int copy = threadIdx.x % COPIES<T>;
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < n; i += threads) {
    const T key = keys[i];
#pragma unroll
    for (int p = 0; p < PASSES<T>; ++p) atomicAdd(&of_digit[p][digit_of(key, p)][copy], 1u);
  }
  __syncthreads();  // all elements are counted before the counts are read
  for (int p = 0; p < PASSES<T>; ++p) {
    Place count = 0;
    for (int c = 0; c < COPIES<T>; ++c) count += of_digit[p][threadIdx.x][c];
    if (count > 0) atomicAdd(&totals[p * DIGITS + threadIdx.x], count);
  }
}

// What a tile has published of a digit, in one 8-byte word: a state in the upper 4 bytes, a count
// in the lower. States grow from pass to pass, so the words of the pass before count as nothing.
__device__ inline uint32_t counted(int pass) {
  return 2 * pass + 1;  // the lower half counts the elements of this tile
}
__device__ inline uint32_t summed(int pass) {
  return 2 * pass + 2;  // of this tile and of all tiles before it
}

using DeviceWord = cuda::atomic_ref<uint64_t, cuda::thread_scope_device>;

__device__ inline void publish(uint64_t* word, uint32_t state, Place count) {
  DeviceWord(*word).store(uint64_t{state} << 32 | count, cuda::memory_order_relaxed);
}

// The elements with digit threadIdx.x in the tiles before this one, which has `count`.
__device__ inline Place look_back(uint64_t* words, int64_t tile, int pass, Place count) {
  uint64_t* const mine = words + threadIdx.x;
  Place before = 0;
  publish(&mine[tile * DIGITS], tile == 0 ? summed(pass) : counted(pass), count);
  if (tile == 0) return before;
  for (int64_t other = tile - 1;; --other) {
    uint64_t word;
    // The block of that tile has started, since it has drawn its ticket, and will publish.
    do {
      word = DeviceWord(mine[other * DIGITS]).load(cuda::memory_order_relaxed);
    } while (word >> 32 < counted(pass));
    before += static_cast<Place>(word);
    if (word >> 32 == summed(pass)) break;
  }
  publish(&mine[tile * DIGITS], summed(pass), before + count);
  return before;
}

template <typename T, typename Index>
__global__ void __launch_bounds__(BLOCK, RESIDENT<T>)
    sort_v5_one_sweep_kernel(const T* __restrict__ from, const Place* __restrict__ from_place,
                             T* __restrict__ to, Index* __restrict__ to_place,
                             const Place* __restrict__ totals, unsigned* tickets, uint64_t* words,
                             int64_t n, int pass) {
  __shared__ unsigned my_tile;  // in the order in which blocks start, as in day 17
  if (threadIdx.x == 0) my_tile = atomicAdd(&tickets[pass], 1u);
  __syncthreads();  // all threads wait for the ticket of thread 0
  const int64_t tile = my_tile;
  move_tile(tile, from, from_place, to, to_place, n, pass, totals[pass * DIGITS + threadIdx.x],
            [&](Place count) { return look_back(words, tile, pass, count); });
}

// The passes of v5 over n keys, n > 0: pass(p, …) for p = 0, 1, … in order, all on one stream. It
// is for one sort: its scratch is zeroed once.
template <typename T>
class OneSweep {
 public:
  OneSweep(const Tensor& on, int64_t n, const char* argument)
      : on_(on),
        n_(n),
        tiles_(grid_size(ceil_div<int64_t>(n, TILE), argument)),
        scratch_(
            allocate_zeros(on, {TOTALS_BYTES + TICKET_BYTES + words_bytes()}, ScalarType::Byte)) {}

  template <typename Index>
  void pass(int p, const T* from, const Place* from_place, T* to, Index* to_place) const {
    char* const bytes = mutable_data<char>(scratch_);
    auto* totals = reinterpret_cast<Place*>(bytes);
    auto* tickets = reinterpret_cast<unsigned*>(bytes + TOTALS_BYTES);
    auto* words = reinterpret_cast<uint64_t*>(bytes + TOTALS_BYTES + TICKET_BYTES);
    const cudaStream_t stream = current_stream(on_);
    if (p == 0) {
      const unsigned blocks =
          resident_grid(on_, sort_v5_one_sweep_totals_kernel<T>, BLOCK, 0, tiles_);
      sort_v5_one_sweep_totals_kernel<<<blocks, BLOCK, 0, stream>>>(from, totals, n_);
      check_launch("sort_v5_one_sweep, totals");
    }
    sort_v5_one_sweep_kernel<<<tiles_, BLOCK, 0, stream>>>(from, from_place, to, to_place, totals,
                                                           tickets, words, n_, p);
    check_launch("sort_v5_one_sweep");
  }

 private:
  static constexpr int64_t TOTALS_BYTES = PASSES<T> * DIGITS * sizeof(Place), TICKET_BYTES = 64;
  int64_t words_bytes() const { return int64_t{tiles_} * DIGITS * sizeof(uint64_t); }

  const Tensor& on_;
  int64_t n_;
  unsigned tiles_;
  Tensor scratch_;
};

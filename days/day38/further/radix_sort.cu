// Day 38, further: sorting by digits
//
// Least significant digit first: each pass moves all elements to where their digit belongs, and
// elements with equal digits keep their order. After the pass of the highest digit everything is
// sorted. Digits have 8 bits: 4 passes for 4-byte keys, whatever n is.
//
//   v4 radix      per pass: count the digits of each tile, add up the counts, move the elements
//   v5 one_sweep  one reading counts all digits; a pass reads its keys once and finds its offsets
//                 by decoupled look-back (day 17)
//
// Bytes of v5 per element, 4-byte keys: 4 to count; 4 + 8, 8 + 8, 8 + 8 and 8 + 12 in the passes,
// of which the first reads no places and the last writes them as int64: 68. The words of the
// look-back add about 7. For 2^26 elements that is 5.0 GB. v4 reads 4 bytes more in three passes.
//
// Formulas are in merge_sort.cu, v1 to v3 of the day in its main line.
//
// Run: python run_day.py 38 --further

#include "common/cuda/binding.cuh"  // taught in day 6

#include "days/day38/further/one_sweep.cuh"

// ---------------------------------------------------------------------------------------------
// v4: three kernels per pass. counts[d][tile] is how many elements of the tile have digit d.

template <typename T>
__global__ void sort_v4_radix_count_kernel(const T* __restrict__ keys, Place* __restrict__ counts,
                                           int64_t n, int pass) {
  __shared__ Place of_digit[DIGITS];
  of_digit[threadIdx.x] = 0;
  __syncthreads();  // all counts are 0 before threads add to them
  const int64_t first = int64_t{blockIdx.x} * TILE;
  for (int i = threadIdx.x; i < TILE && first + i < n; i += BLOCK) {
    atomicAdd(&of_digit[digit_of(keys[first + i], pass)], 1u);
  }
  __syncthreads();  // all elements are counted before the counts are read
  counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

// One block per digit replaces its counts by the sums of the tiles before, and writes their total.
__global__ void sort_v4_radix_sums_kernel(Place* counts, Place* __restrict__ totals,
                                          int64_t tiles) {
  __shared__ Place of_round;
  Place* const mine = counts + blockIdx.x * tiles;
  Place sum = 0;  // of all rounds so far, in every thread
  for (int64_t i = threadIdx.x; i - threadIdx.x < tiles; i += BLOCK) {
    const Place count = i < tiles ? mine[i] : 0;
    const Place before = sum_before(count);
    if (i < tiles) mine[i] = sum + before;
    if (threadIdx.x == BLOCK - 1) of_round = before + count;
    __syncthreads();  // the round's total is written before it is read
    sum += of_round;
    __syncthreads();  // all threads have read it before the next round writes
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = sum;
}

template <typename T, typename Index>
__global__ void __launch_bounds__(BLOCK, RESIDENT<T>)
    sort_v4_radix_kernel(const T* __restrict__ from, const Place* __restrict__ from_place,
                         T* __restrict__ to, Index* __restrict__ to_place,
                         const Place* __restrict__ counts, const Place* __restrict__ totals,
                         int64_t n, int pass) {
  move_tile(blockIdx.x, from, from_place, to, to_place, n, pass, totals[threadIdx.x],
            [&](Place) { return counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x]; });
}

std::tuple<Tensor, Tensor> sort_v4_radix(const Tensor& x) {
  return dispatch_sortable(x, [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = x.numel();
    const cudaStream_t stream = current_stream(x);
    const unsigned tiles = grid_size(ceil_div<int64_t>(n, TILE), "x");
    const Tensor scratch = allocate(x, {DIGITS * (1 + int64_t{tiles})}, ScalarType::Int);
    Place *totals = mutable_data<Place>(scratch), *counts = totals + DIGITS;
    const auto pass = [&](int p, const T* from, const Place* from_place, T* to, auto* to_place) {
      sort_v4_radix_count_kernel<<<tiles, BLOCK, 0, stream>>>(from, counts, n, p);
      check_launch("sort_v4_radix, count");
      sort_v4_radix_sums_kernel<<<DIGITS, BLOCK, 0, stream>>>(counts, totals, tiles);
      check_launch("sort_v4_radix, sums");
      sort_v4_radix_kernel<<<tiles, BLOCK, 0, stream>>>(from, from_place, to, to_place, counts,
                                                        totals, n, p);
      check_launch("sort_v4_radix");
    };
    return sort_by_passes<T>(x, PASSES<T>, pass);
  });
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: one reading counts the digits of all passes, and the tiles publish their counts to
// each other. Its kernels are in one_sweep.cuh.

std::tuple<Tensor, Tensor> sort_v5_one_sweep(const Tensor& x) {
  return dispatch_sortable(x, [&](auto zero) {
    using T = decltype(zero);
    const OneSweep<T> sweep(x, x.numel(), "x");
    const auto pass = [&](auto... arguments) { sweep.pass(arguments...); };
    return sort_by_passes<T>(x, PASSES<T>, pass);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day38, sort_v4_radix, "(Tensor x) -> (Tensor, Tensor)");
RUNG(day38, sort_v5_one_sweep, "(Tensor x) -> (Tensor, Tensor)");

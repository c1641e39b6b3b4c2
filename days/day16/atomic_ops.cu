// Day 16: atomics on integers: histograms
//
//   counts[b] = number of i with x[i] == b, 0 <= b < bins    x: (n,) uint8, int32 or int64
//
// Bytes: read x once; the bytes written are few. Operations: one atomic addition per element. The
// memory of an H200 delivers 4 to 5 int32 per clock and multiprocessor; the atomics must keep up.
//
//   v1 global           one atomicAdd per element on counts in global memory
//   v2 shared_private   one histogram per block in shared memory, added up at the end
//   v3 warp_aggregated  one lane adds for all lanes of its warp with the same bin
//   v4 lane_copies      up to 32 copies per block, one per lane; wide loads
//
// Run: python run_day.py 16

#include "common/cuda/binding.cuh"
#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"

#include <algorithm>

constexpr int BLOCK = 512;  // four blocks fill a multiprocessor of compute capability 9.0
constexpr unsigned FULL_WARP = 0xffffffffu;

// Checks the arguments of a histogram, makes its counts, all 0, and calls launch(zero of x's type,
// pointer to the counts).
template <typename F>
Tensor histogram_by(const Tensor& x, int64_t bins, const char* name, F&& launch) {
  check(x, "x").on_gpu().rank(1).contiguous();
  check(x, "x").dtype({ScalarType::Byte, ScalarType::Int, ScalarType::Long});
  STD_TORCH_CHECK(bins >= 1 && bins <= 2147483647, "bins: expected 1 to 2147483647, got ", bins);
  const Tensor counts = allocate_zeros(x, {bins}, ScalarType::Long);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return counts;  // a grid of no blocks is an error
  auto* out = mutable_data<int64_t>(counts);
  if (x.scalar_type() == ScalarType::Byte) launch(uint8_t{}, out);
  if (x.scalar_type() == ScalarType::Int) launch(int32_t{}, out);
  if (x.scalar_type() == ScalarType::Long) launch(int64_t{}, out);
  check_launch(name);
  return counts;
}

// The bin of a value; `bins`, one beyond the last bin, for any value outside of [0, bins).
template <typename T>
__device__ unsigned bin_of(T value, unsigned bins) {
  return static_cast<uint64_t>(value) < bins ? static_cast<unsigned>(value) : bins;
}

// counts is int64, as in PyTorch. CUDA's atomicAdd takes unsigned 64-bit integers: the same bits.
__device__ void add_to_count(int64_t* counts, unsigned bin, unsigned number) {
  atomicAdd(reinterpret_cast<unsigned long long*>(counts) + bin,
            static_cast<unsigned long long>(number));
}

// ---------------------------------------------------------------------------------------------
// histogram v1: one atomic addition per element in global memory. The L2 cache executes it. With
// few bins many additions have the same address: contention.

template <typename T>
__global__ void histogram_v1_global_kernel(const T* __restrict__ x, int64_t* counts, int64_t n,
                                           unsigned bins) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  const unsigned bin = bin_of(x[i], bins);
  if (bin < bins) add_to_count(counts, bin, 1);
}

Tensor histogram_v1_global(const Tensor& x, int64_t bins) {
  return histogram_by(x, bins, "histogram_v1_global", [&](auto zero, int64_t* counts) {
    using T = decltype(zero);
    const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
    histogram_v1_global_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), counts, x.numel(), static_cast<unsigned>(bins));
  });
}

// ---------------------------------------------------------------------------------------------
// histogram v2 against v1: privatisation. Each block counts in its own histogram in shared memory,
// where only its threads contend. At the end it adds each bin to global memory: at most bins ×
// blocks global atomics instead of n.

// v2 and v3 differ in the function that adds a warp's 32 bins to the block's histogram.
struct EachLane {
  __device__ static void add(unsigned* histogram, unsigned bin, unsigned bins) {
    if (bin < bins) atomicAdd(&histogram[bin], 1u);
  }
};

template <typename T, typename Add>
__global__ void histogram_shared_kernel(const T* __restrict__ x, int64_t* counts, int64_t n,
                                        unsigned bins) {
  extern __shared__ unsigned histogram[];  // [0, bins)
  for (unsigned bin = threadIdx.x; bin < bins; bin += BLOCK) histogram[bin] = 0;
  __syncthreads();  // all bins are 0 before any thread counts

  // `start` is the same for the whole block, so all lanes of a warp run the same iterations.
  const int64_t stride = int64_t{gridDim.x} * BLOCK;
  for (int64_t start = int64_t{blockIdx.x} * BLOCK; start < n; start += stride) {
    const int64_t i = start + threadIdx.x;
    Add::add(histogram, i < n ? bin_of(x[i], bins) : bins, bins);
  }

  __syncthreads();  // every thread has counted before any thread reads the histogram
  for (unsigned bin = threadIdx.x; bin < bins; bin += BLOCK) {
    if (histogram[bin] > 0) add_to_count(counts, bin, histogram[bin]);
  }
}

// Whether a histogram fits in a block's shared memory. If not, v2 to v4 let v1 do the work: so many
// bins cause little contention.
bool fits_in_shared(const Tensor& x, int64_t bins) {
  if (bins <= shared_limit(x) / int64_t{sizeof(unsigned)}) return true;
  fell_back("histogram_v1_global", "the bins do not fit in a block's shared memory");
  return false;
}

template <typename Add>
Tensor histogram_shared(const Tensor& x, int64_t bins, const char* name) {
  if (!fits_in_shared(x, bins)) return histogram_v1_global(x, bins);
  return histogram_by(x, bins, name, [&](auto zero, int64_t* counts) {
    using T = decltype(zero);
    const auto kernel = histogram_shared_kernel<T, Add>;
    const int64_t bytes = bins * sizeof(unsigned);
    const int64_t work = ceil_div<int64_t>(x.numel(), BLOCK);
    allow_shared(kernel, bytes);
    const unsigned grid = resident_grid(x, kernel, BLOCK, bytes, work);
    kernel<<<grid, BLOCK, bytes, current_stream(x)>>>(data<T>(x), counts, x.numel(),
                                                      static_cast<unsigned>(bins));
  });
}

Tensor histogram_v2_shared_private(const Tensor& x, int64_t bins) {
  return histogram_shared<EachLane>(x, bins, "histogram_v2_shared_private");
}

// ---------------------------------------------------------------------------------------------
// histogram v3 against v2: warp aggregation. The lanes of a warp first find out which of them have
// the same bin. The lowest lane of each group adds the group's size; the others add nothing.

struct WarpAggregated {
  __device__ static void add(unsigned* histogram, unsigned bin, unsigned bins) {
    // Bit l of `same` is set if lane l has this lane's bin. All 32 lanes must execute this.
    const unsigned same = __match_any_sync(FULL_WARP, bin);
    const int leader = __ffs(same) - 1;  // the lowest lane with this bin
    if (threadIdx.x % 32 == leader && bin < bins) atomicAdd(&histogram[bin], __popc(same));
  }
};

Tensor histogram_v3_warp_aggregated(const Tensor& x, int64_t bins) {
  return histogram_shared<WarpAggregated>(x, bins, "histogram_v3_warp_aggregated");
}

// ---------------------------------------------------------------------------------------------
// histogram v4 against v2: one copy of the histogram per lane. A block has up to 32 copies of each
// bin, side by side, and lane l counts in copy l. With 32 copies the lanes access 32 different
// banks, whatever their bins are. Loads of x are 16 bytes wide, four in flight per thread.

constexpr int BLOCK_V4 = 1024;
constexpr int LOADS = 4;
constexpr int64_t MOST_FOR_COPIES = 112 * 1024;  // bytes: two blocks fit on compute capability 9.0

template <typename T>
__global__ void __launch_bounds__(BLOCK_V4)
    histogram_v4_lane_copies_kernel(const T* __restrict__ x, int64_t* counts, int64_t n,
                                    unsigned bins, unsigned copies) {
  extern __shared__ unsigned histogram[];  // [bin][copy]: bins × copies, copies a power of two
  for (unsigned i = threadIdx.x; i < bins * copies; i += BLOCK_V4) histogram[i] = 0;
  __syncthreads();  // all bins are 0 before any thread counts

  unsigned* mine = histogram + threadIdx.x % copies;
  const auto count = [&](T value) {
    const unsigned bin = bin_of(value, bins);
    if (bin < bins) atomicAdd(&mine[bin * copies], 1u);
  };

  constexpr int N = Pack<T>::N;
  constexpr int64_t TILE = int64_t{BLOCK_V4} * LOADS;  // packs
  const auto* packs = reinterpret_cast<const Pack<T>*>(x);
  const int64_t tiles = n / (TILE * N);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    Pack<T> pack[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) pack[k] = packs[tile * TILE + k * BLOCK_V4 + threadIdx.x];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      for (int i = 0; i < N; ++i) count(pack[k].at[i]);
    }
  }
  // The elements after the last whole tile, one by one.
  const int64_t rest = tiles * TILE * N + int64_t{blockIdx.x} * BLOCK_V4 + threadIdx.x;
  for (int64_t i = rest; i < n; i += int64_t{gridDim.x} * BLOCK_V4) count(x[i]);

  __syncthreads();  // every thread has counted before any thread reads the histogram
  for (unsigned bin = threadIdx.x; bin < bins; bin += BLOCK_V4) {
    unsigned total = 0;
    for (unsigned c = 0; c < copies; ++c) {
      // Thread t starts with copy t. Reading the same copy of 32 bins would be a 32-way conflict.
      total += histogram[bin * copies + (c + threadIdx.x) % copies];
    }
    if (total > 0) add_to_count(counts, bin, total);
  }
}

Tensor histogram_v4_lane_copies(const Tensor& x, int64_t bins) {
  if (!is_aligned(x, 16)) {
    fell_back("histogram_v2_shared_private", "x is not aligned to 16 bytes");  // such as x[1:]
    return histogram_v2_shared_private(x, bins);
  }
  if (!fits_in_shared(x, bins)) return histogram_v1_global(x, bins);
  return histogram_by(x, bins, "histogram_v4_lane_copies", [&](auto zero, int64_t* counts) {
    using T = decltype(zero);
    const int64_t room = std::min(shared_limit(x), MOST_FOR_COPIES);
    const int64_t one_copy = bins * sizeof(unsigned);
    int copies = 32;
    while (copies > 1 && one_copy * copies > room) copies /= 2;
    const int64_t bytes = one_copy * copies;
    const auto kernel = histogram_v4_lane_copies_kernel<T>;
    const int64_t work = ceil_div<int64_t>(x.numel(), BLOCK_V4 * LOADS * Pack<T>::N);
    allow_shared(kernel, bytes);
    const unsigned grid = resident_grid(x, kernel, BLOCK_V4, bytes, work);
    kernel<<<grid, BLOCK_V4, bytes, current_stream(x)>>>(data<T>(x), counts, x.numel(),
                                                         static_cast<unsigned>(bins), copies);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day16, histogram_v1_global, "(Tensor x, int bins) -> Tensor");
RUNG(day16, histogram_v2_shared_private, "(Tensor x, int bins) -> Tensor");
RUNG(day16, histogram_v3_warp_aggregated, "(Tensor x, int bins) -> Tensor");
RUNG(day16, histogram_v4_lane_copies, "(Tensor x, int bins) -> Tensor");

// Day 17: scan with the tiles in registers
//
//   v3 three_kernel   totals of tiles, their scan, then the scan with offsets: 3n elements moved
//   v4 look_back      one pass, each tile gets its offset from the tiles before it: 2n
//
// x, y: (n,) fp32, fp16, bf16 or int32. The formulas, and v1 and v2, are in prefix_sum.cu.
//
// Run: python run_day.py 17

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"

#include <cuda/atomic>

constexpr unsigned FULL_WARP = 0xffffffffu;

// Calls f(zero of x's type, zero of the sum's type). Half precision is summed in fp32. Integers are
// summed as unsigned, where overflow is defined: it wraps, as in PyTorch.
template <typename F>
void dispatch_scannable(const Tensor& x, F&& f) {
  if (x.scalar_type() == ScalarType::Int) return f(int32_t{}, uint32_t{});
  dispatch_floating(x, [&](auto zero) { f(zero, float{}); });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: adding the offsets read and wrote all of y a second time. Here the first kernel
// only sums each tile and writes one number per tile; the second scans these numbers; the third
// scans the tiles and has their offsets from the start. The tiles are kept in registers, 32
// elements per thread, and shared memory holds one number per warp.

constexpr int BLOCK = 384;      // 12 warps
constexpr int PER_THREAD = 32;  // elements, in as many registers
#if __CUDA_ARCH__ == 750
constexpr int BLOCKS_PER_SM = 2;  // compute capability 7.5 has room for 1024 threads
#else
constexpr int BLOCKS_PER_SM = 3;  // 3 × 384 threads × 32 elements: 147 KB of fp32 in flight
#endif
constexpr int WIDE_TILE = BLOCK * PER_THREAD;  // 12288 elements per block
constexpr int WARP_TILE = 32 * PER_THREAD;     // 1024 elements per warp

// A thread's part of a tile. Its warp has 1024 consecutive elements, in rows of 32 lanes × N; lane
// l holds elements [l · N, l · N + N) of each row, so that its 16-byte loads are coalesced.
template <typename T, typename Sum>
struct TilePart {
  static constexpr int N = Pack<T>::N;         // 4 floats, 8 halves
  static constexpr int ROWS = PER_THREAD / N;  // 8 rows, or 4
  Sum v[ROWS][N];
  Sum before[ROWS];  // set by scan(): the sum of the warp's elements before v[row][0]

  // The index in x of v[row][0].
  __device__ static int64_t index(int64_t tile, int row) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return tile * WIDE_TILE + warp * WARP_TILE + row * (32 * N) + lane * N;
  }

  // wide: x is aligned to 16 bytes. Elements beyond n become zeros.
  __device__ void load(const T* __restrict__ x, int64_t tile, int64_t n, bool wide) {
    if (wide && (tile + 1) * WIDE_TILE <= n) {
      Pack<T> pack[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        pack[r] = *reinterpret_cast<const Pack<T>*>(x + index(tile, r));
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        for (int i = 0; i < N; ++i) v[r][i] = static_cast<Sum>(pack[r].at[i]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const int64_t at = index(tile, r) + i;
          v[r][i] = at < n ? static_cast<Sum>(x[at]) : Sum{0};
        }
      }
    }
  }

  // The sum of the warp's 1024 elements, in every lane.
  __device__ Sum warp_total() const {
    Sum total = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) total += v[r][i];
    }
    for (int half = 16; half > 0; half /= 2) total += __shfl_xor_sync(FULL_WARP, total, half);
    return total;
  }

  // Makes v an inclusive scan of the thread's part of each row, and sets `before`. Returns the sum
  // of the warp's elements. __shfl_up_sync returns the register of the lane `distance` below.
  __device__ Sum scan() {
    const int lane = threadIdx.x % 32;
    Sum upto[ROWS];  // the sum of the row up to and including this lane
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int i = 1; i < N; ++i) v[r][i] += v[r][i - 1];
      upto[r] = v[r][N - 1];
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {  // Hillis and Steele again, in registers
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const Sum below = __shfl_up_sync(FULL_WARP, upto[r], distance);
        if (lane >= distance) upto[r] = below + upto[r];
      }
    }
    Sum rows = 0;  // the sum of the rows so far
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const Sum below = __shfl_up_sync(FULL_WARP, upto[r], 1);
      before[r] = lane == 0 ? rows : rows + below;
      rows += __shfl_sync(FULL_WARP, upto[r], 31);
    }
    return rows;
  }

  // Stores the scan of this part; base: the sum of everything before the warp's elements.
  __device__ void store(T* __restrict__ y, int64_t tile, int64_t n, Sum base,
                        bool exclusive) const {
    const bool whole = (tile + 1) * WIDE_TILE <= n;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const Sum left = base + before[r];
      Pack<T> pack;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Sum inclusive = left + v[r][i];
        pack.at[i] = static_cast<T>(!exclusive ? inclusive : i == 0 ? left : left + v[r][i - 1]);
      }
      if (whole) {
        *reinterpret_cast<Pack<T>*>(y + index(tile, r)) = pack;
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (index(tile, r) + i < n) y[index(tile, r) + i] = pack.at[i];
        }
      }
    }
  }
};

// The sum of the warps before this one in the block, and the sum of the block.
template <typename Sum>
struct BlockSums {
  Sum before_warp, total;
};

// Every thread of the block must call it; a second call needs a barrier before it.
template <typename Sum>
__device__ BlockSums<Sum> sums_of_block(Sum warp_total) {
  __shared__ Sum of_warp[32];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) of_warp[warp] = warp_total;
  __syncthreads();  // the totals of all warps are written before they are read
  BlockSums<Sum> sums{0, 0};
  for (int w = 0; w < blockDim.x / 32; ++w) {
    if (w == warp) sums.before_warp = sums.total;
    sums.total += of_warp[w];
  }
  return sums;
}

template <typename T, typename Sum>
__global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    scan_v3_three_kernel_totals_kernel(const T* __restrict__ x, Sum* __restrict__ totals, int64_t n,
                                       bool wide) {
  TilePart<T, Sum> part;
  part.load(x, blockIdx.x, n, wide);
  const BlockSums<Sum> sums = sums_of_block(part.warp_total());
  if (threadIdx.x == 0) totals[blockIdx.x] = sums.total;
}

// One block replaces sums[0, n) by their exclusive scan, 1024 at a time.
template <typename Sum>
__global__ void scan_v3_three_kernel_offsets_kernel(Sum* sums, int64_t n) {
  const int lane = threadIdx.x % 32;
  Sum carry = 0;  // the sum of all previous rounds, in every thread
  for (int64_t start = 0; start < n; start += blockDim.x) {
    const int64_t i = start + threadIdx.x;
    Sum upto = i < n ? sums[i] : Sum{0};
    for (int distance = 1; distance < 32; distance *= 2) {
      const Sum below = __shfl_up_sync(FULL_WARP, upto, distance);
      if (lane >= distance) upto = below + upto;
    }
    const Sum below = __shfl_up_sync(FULL_WARP, upto, 1);
    const BlockSums<Sum> block = sums_of_block(__shfl_sync(FULL_WARP, upto, 31));
    if (i < n) sums[i] = carry + block.before_warp + (lane == 0 ? Sum{0} : below);
    carry += block.total;
    __syncthreads();  // all threads have read the warps' totals before the next round writes them
  }
}

template <typename T, typename Sum>
__global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    scan_v3_three_kernel_scan_kernel(const T* __restrict__ x, T* __restrict__ y,
                                     const Sum* __restrict__ offsets, int64_t n, bool wide,
                                     bool exclusive) {
  TilePart<T, Sum> part;
  part.load(x, blockIdx.x, n, wide);
  const BlockSums<Sum> sums = sums_of_block(part.scan());
  part.store(y, blockIdx.x, n, offsets[blockIdx.x] + sums.before_warp, exclusive);
}

void check_scannable(const Tensor& x) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype(
      {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16, ScalarType::Int});
}

Tensor scan_v3_three_kernel(const Tensor& x, bool exclusive) {
  check_scannable(x);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  const unsigned tiles = grid_size(ceil_div<int64_t>(n, WIDE_TILE), "x");
  const bool wide = is_aligned(x, 16);
  const cudaStream_t stream = current_stream(x);
  dispatch_scannable(x, [&](auto zero, auto zero_sum) {
    using T = decltype(zero);
    using Sum = decltype(zero_sum);
    const Tensor totals = allocate(x, {int64_t{tiles}}, ScalarType::Int);
    Sum* total = mutable_data<Sum>(totals);  // both types of Sum have 4 bytes
    scan_v3_three_kernel_totals_kernel<T, Sum>
        <<<tiles, BLOCK, 0, stream>>>(data<T>(x), total, n, wide);
    check_launch("scan_v3_three_kernel, totals");
    scan_v3_three_kernel_offsets_kernel<Sum><<<1, 1024, 0, stream>>>(total, tiles);
    check_launch("scan_v3_three_kernel, offsets");
    scan_v3_three_kernel_scan_kernel<T, Sum>
        <<<tiles, BLOCK, 0, stream>>>(data<T>(x), mutable_data<T>(y), total, n, wide, exclusive);
  });
  check_launch("scan_v3_three_kernel, scan");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: x is read once. A block publishes the total of its tile as soon as it is known,
// and then looks back: it adds the totals of the tiles before it, until it reaches a tile that has
// published the sum of everything up to its own end (Merrill & Garland, 2016, "decoupled
// look-back").

// What a tile has published, in one 8-byte word: a state in the upper 4 bytes, a sum in the lower.
enum State : uint32_t {
  INVALID = 0,    // nothing yet; allocate_zeros writes this
  AGGREGATE = 1,  // the sum of this tile
  PREFIX = 2,     // the sum of this tile and of all tiles before it
};

template <typename Sum>
__device__ uint64_t make_word(State state, Sum sum) {
  uint32_t bits;
  memcpy(&bits, &sum, sizeof bits);
  return uint64_t{state} << 32 | bits;
}

template <typename Sum>
__device__ Sum sum_in(uint64_t word) {
  const auto bits = static_cast<uint32_t>(word);
  Sum sum;
  memcpy(&sum, &bits, sizeof sum);
  return sum;
}

__device__ State state_in(uint64_t word) {
  return static_cast<State>(word >> 32);
}

// Atomic: a reader sees a word as a whole, and never a copy that its multiprocessor has cached.
// Relaxed: nothing but the word itself is handed over, so no other access needs to be ordered.
using DeviceWord = cuda::atomic_ref<uint64_t, cuda::thread_scope_device>;

__device__ void publish(uint64_t* word, uint64_t value) {
  DeviceWord(*word).store(value, cuda::memory_order_relaxed);
}
__device__ uint64_t read_word(uint64_t* word) {
  return DeviceWord(*word).load(cuda::memory_order_relaxed);
}

// The distance between two words, in words of 8 bytes: one 32-byte sector of L2 per word. Adjacent
// words were slower (README).
constexpr int SPACING = 4;

// The sum of all tiles before `tile`, in every lane of the calling warp. Lane l reads the word of
// tile - 1 - l; if none of the 32 has a prefix, the warp continues with the 32 tiles before those.
template <typename Sum>
__device__ Sum look_back(uint64_t* words, int64_t tile) {
  const int lane = threadIdx.x % 32;
  Sum sum = 0;  // of the tiles that this lane has read and that count
  bool found = false;
  for (int64_t nearest = tile - 1; !found; nearest -= 32) {
    const int64_t at = nearest - lane;
    uint64_t word = make_word(PREFIX, Sum{0});  // before the first tile
    if (at >= 0) {
      // The block of that tile has started, since it has drawn its ticket, and will publish.
      while (state_in(word = read_word(&words[at * SPACING])) == INVALID);
    }
    const unsigned with_prefix = __ballot_sync(FULL_WARP, state_in(word) == PREFIX);
    found = with_prefix != 0;
    // The nearest tile with a prefix is the last one that counts.
    if (!found || lane < __ffs(with_prefix)) sum += sum_in<Sum>(word);
  }
  for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, half);
  return sum;
}

template <typename T, typename Sum>
__global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    scan_v4_look_back_kernel(const T* __restrict__ x, T* __restrict__ y,
                             unsigned long long* next_tile, uint64_t* words, int64_t n, bool wide,
                             bool exclusive) {
  __shared__ int64_t my_tile;
  __shared__ Sum my_prefix;
  // A ticket gives tiles to blocks in the order in which the blocks start, which need not be the
  // order of blockIdx. So every tile before ours belongs to a block that is running or finished.
  if (threadIdx.x == 0) my_tile = static_cast<int64_t>(atomicAdd(next_tile, 1ull));
  __syncthreads();  // all threads wait for the ticket of thread 0
  const int64_t tile = my_tile;

  TilePart<T, Sum> part;
  part.load(x, tile, n, wide);
  const BlockSums<Sum> sums = sums_of_block(part.scan());

  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) publish(&words[tile * SPACING], make_word(AGGREGATE, sums.total));
    const Sum prefix = look_back<Sum>(words, tile);
    if (threadIdx.x == 0) {
      publish(&words[tile * SPACING], make_word(PREFIX, prefix + sums.total));
      my_prefix = prefix;
    }
  }
  __syncthreads();  // the other warps wait for warp 0's look-back
  part.store(y, tile, n, my_prefix + sums.before_warp, exclusive);
}

Tensor scan_v4_look_back(const Tensor& x, bool exclusive) {
  check_scannable(x);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  const unsigned tiles = grid_size(ceil_div<int64_t>(n, WIDE_TILE), "x");
  // The ticket counter, then one word per tile, all 0: INVALID.
  const Tensor scratch = allocate_zeros(x, {SPACING * (1 + int64_t{tiles})}, ScalarType::Long);
  dispatch_scannable(x, [&](auto zero, auto zero_sum) {
    using T = decltype(zero);
    using Sum = decltype(zero_sum);
    scan_v4_look_back_kernel<T, Sum><<<tiles, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), mutable_data<unsigned long long>(scratch),
        mutable_data<uint64_t>(scratch) + SPACING, n, is_aligned(x, 16), exclusive);
  });
  check_launch("scan_v4_look_back");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day17, scan_v3_three_kernel, "(Tensor x, bool exclusive=False) -> Tensor");
RUNG(day17, scan_v4_look_back, "(Tensor x, bool exclusive=False) -> Tensor");

// Day 17: scan, also called prefix sum
//
//   inclusive   y[i] = x[0] + … + x[i]              x, y: (n,) fp32, fp16, bf16 or int32
//   exclusive   y[i] = x[0] + … + x[i - 1], y[0] = 0
//
// Bytes: read x once, write y once: 2 · n · sizeof(T); for 2^28 fp32 that is 2.1 GB. Operations:
// one addition an element, if somebody could do them one after the other. The memory bus is the
// limit.
//
//   v1 hillis_steele  tiles by log2 steps over all elements, then tile offsets added: 4n, n log n
//   v2 blelloch       tiles by a tree, up and down: 2n additions instead of n log n
//   v3 three_kernel   sums of tiles, their scan, then scan with offset: 3n instead of 4n bytes
//   v4 look_back      one pass, each tile gets its offset from those before it: 2n bytes
//
// Run: python run_day.py 17

#include "common/cuda/pack.cuh"  // taught in day 2
#include "common/cuda/tensor.cuh"

constexpr unsigned FULL_WARP = 0xffffffffu;

// Calls f(zero of x's type, zero of the sum's type). Half precision is added up in fp32. Integers
// are unsigned while they are added, for there an overflow is defined: it wraps, as in PyTorch.
template <typename F>
void dispatch_scannable(const Tensor& x, F&& f) {
  if (x.scalar_type() == ScalarType::Int) return f(int32_t{}, uint32_t{});
  dispatch_floating(x, [&](auto zero) { f(zero, float{}); });
}

// ---------------------------------------------------------------------------------------------
// v1 and v2 scan tiles of 1024 elements in shared memory, one block each, and leave each tile's
// total. The totals are scanned in the same way, as often as it takes; then every element gets the
// sum of all tiles before its own.

constexpr int TILE = 1024;

template <typename T>
__global__ void add_offsets_kernel(T* __restrict__ y, const T* __restrict__ offset, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * TILE + threadIdx.x;
  if (i < n) y[i] += offset[blockIdx.x];
}

// scan_tiles(x, y, totals, n, exclusive, tiles) launches the kernel that scans each tile.
template <typename T, typename ScanTiles>
void scan_recursively(const Tensor& on, const T* x, T* y, int64_t n, bool exclusive,
                      ScanTiles scan_tiles) {
  const unsigned tiles = grid_size(ceil_div<int64_t>(n, TILE), "x");
  const Tensor totals = torch::stable::new_empty(on, {int64_t{tiles}});  // T is 4 bytes, as on's
  T* total = mutable_data<T>(totals);
  scan_tiles(x, y, total, n, exclusive, tiles);
  if (tiles == 1) return;
  scan_recursively(on, total, total, tiles, true, scan_tiles);  // in place: a tile at a time
  add_offsets_kernel<<<tiles, TILE, 0, current_stream(on)>>>(y, total, n);
  check_launch("add_offsets");
}

// A scan of fp32 or int32 by scan_tiles.
template <typename ScanTiles>
Tensor scan_by_tiles(const Tensor& x, bool exclusive, ScanTiles scan_tiles) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype({ScalarType::Float, ScalarType::Int});
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;  // a grid of no blocks is an error
  if (x.scalar_type() == ScalarType::Float) {
    scan_recursively(x, data<float>(x), mutable_data<float>(y), n, exclusive, scan_tiles);
  } else {
    scan_recursively(x, data<uint32_t>(x), mutable_data<uint32_t>(y), n, exclusive, scan_tiles);
  }
  return y;
}

// ---------------------------------------------------------------------------------------------
// v1: after the step with distance d, each element holds the sum of the 2d elements that end at it.
// 10 steps for 1024 elements, and in each of them every thread adds.

template <typename T>
__global__ void scan_v1_hillis_steele_kernel(const T* x, T* y, T* __restrict__ totals, int64_t n,
                                             bool exclusive) {
  __shared__ T sums[2][TILE];  // one is read while the other is written
  const int t = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * TILE + t;
  int now = 0;
  sums[now][t] = i < n ? x[i] : T{0};
  for (int distance = 1; distance < TILE; distance *= 2) {
    __syncthreads();  // all of the step before is written, and nobody still reads what is now free
    T sum = sums[now][t];
    if (t >= distance) sum = sums[now][t - distance] + sum;
    now = 1 - now;
    sums[now][t] = sum;
  }
  __syncthreads();  // the neighbour's sum is written before it is read
  if (i < n) y[i] = !exclusive ? sums[now][t] : t == 0 ? T{0} : sums[now][t - 1];
  if (t == TILE - 1) totals[blockIdx.x] = sums[now][t];
}

Tensor scan_v1_hillis_steele(const Tensor& x, bool exclusive) {
  const cudaStream_t stream = current_stream(x);
  return scan_by_tiles(
      x, exclusive,
      [&](auto* from, auto* to, auto* totals, int64_t n, bool exclusive, unsigned tiles) {
        scan_v1_hillis_steele_kernel<<<tiles, TILE, 0, stream>>>(from, to, totals, n, exclusive);
        check_launch("scan_v1_hillis_steele");
      });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: first up a tree of sums, as in a reduction, then down again: each node hands the
// sum of all that is left of it to its left child, and that plus the left child's sum to the right
// one. 2n additions instead of n log n, but twice as many steps, and fewer threads busy in each.

// Where element i lies in shared memory. A hole after each 32 words: else the steps with distances
// 16, 32 … would find all their words in one bank (day 14).
__device__ int padded(int i) {
  return i + i / 32;
}

template <typename T>
__global__ void scan_v2_blelloch_kernel(const T* x, T* y, T* __restrict__ totals, int64_t n,
                                        bool exclusive) {
  __shared__ T sums[TILE + TILE / 32];
  const int t = threadIdx.x;  // 512 threads, two elements each: t and t + 512
  const int64_t first = int64_t{blockIdx.x} * TILE;
  T mine[2];
  for (int k = 0; k < 2; ++k) {
    const int at = t + k * TILE / 2;
    mine[k] = first + at < n ? x[first + at] : T{0};
    sums[padded(at)] = mine[k];
  }

  // Up: at distance d, the last element of each group of 2d gets the sum of the group.
  for (int distance = 1; distance < TILE; distance *= 2) {
    __syncthreads();  // all of the level below is written before anybody reads it
    const int right = (t + 1) * 2 * distance - 1, left = right - distance;
    if (right < TILE) sums[padded(right)] = sums[padded(left)] + sums[padded(right)];
  }
  if (t == 0) {  // right = TILE - 1 in the last level: thread 0 wrote it itself
    totals[blockIdx.x] = sums[padded(TILE - 1)];
    sums[padded(TILE - 1)] = T{0};  // nothing lies left of the whole tile
  }
  // Down: the last element of a group holds what lies left of the group, and hands it on.
  for (int distance = TILE / 2; distance > 0; distance /= 2) {
    __syncthreads();  // all of the level above is written before anybody reads it
    const int right = (t + 1) * 2 * distance - 1, left = right - distance;
    if (right < TILE) {
      const T of_left = sums[padded(left)];
      sums[padded(left)] = sums[padded(right)];
      sums[padded(right)] += of_left;
    }
  }
  __syncthreads();  // the tree's leaves are written before they are read

  for (int k = 0; k < 2; ++k) {
    const int at = t + k * TILE / 2;
    const T before = sums[padded(at)];
    if (first + at < n) y[first + at] = exclusive ? before : before + mine[k];
  }
}

Tensor scan_v2_blelloch(const Tensor& x, bool exclusive) {
  const cudaStream_t stream = current_stream(x);
  return scan_by_tiles(
      x, exclusive,
      [&](auto* from, auto* to, auto* totals, int64_t n, bool exclusive, unsigned tiles) {
        scan_v2_blelloch_kernel<<<tiles, TILE / 2, 0, stream>>>(from, to, totals, n, exclusive);
        check_launch("scan_v2_blelloch");
      });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: adding offsets read and wrote all of y a second time. Here a first kernel only
// adds up each tile and writes one number; the second scans these numbers; the third scans the
// tiles and knows their offsets from the start. And the tiles live in registers, 32 elements a
// thread: shared memory carries one number a warp.

constexpr int BLOCK = 384;        // 12 warps
constexpr int BLOCKS_PER_SM = 3;  // 3 × 384 threads × 32 elements are 147 KB on the way, in fp32
constexpr int PER_THREAD = 32;    // elements; so 32 registers
constexpr int WIDE_TILE = BLOCK * PER_THREAD;  // 12288 elements a block
constexpr int WARP_TILE = 32 * PER_THREAD;     // 1024 elements a warp

// A thread's part of a tile. Its warp has 1024 neighbouring elements, in rows of 32 lanes × N; lane
// l holds elements l · N … l · N + N - 1 of each row, so that loads of 16 bytes coalesce.
template <typename T, typename Sum>
struct TilePart {
  static constexpr int N = Pack<T>::N;         // 4 floats, 8 halves
  static constexpr int ROWS = PER_THREAD / N;  // 8 rows, or 4
  Sum v[ROWS][N];
  Sum before[ROWS];  // after scan(): what lies left of this thread's part of the row, in the warp

  // The index in x of v[row][0].
  __device__ static int64_t index(int64_t tile, int row) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return tile * WIDE_TILE + warp * WARP_TILE + row * (32 * N) + lane * N;
  }

  // wide: whether 16-byte pieces may be loaded. Beyond the end are zeros.
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

  // Makes v inclusive within the thread's part of each row, and fills `before`. Returns the sum of
  // the warp's elements. __shfl_up_sync hands a lane the register of the lane `distance` below.
  __device__ Sum scan() {
    const int lane = threadIdx.x % 32;
    Sum upto[ROWS];  // of the row, up to and with this lane
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
    Sum rows = 0;  // the sum of the rows above
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const Sum below = __shfl_up_sync(FULL_WARP, upto[r], 1);
      before[r] = lane == 0 ? rows : rows + below;
      rows += __shfl_sync(FULL_WARP, upto[r], 31);
    }
    return rows;
  }

  // Writes the scan of this part; base: the sum of everything before the warp's elements.
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

// From each warp's total: what lies before the warp in its block, and the block's total. Every
// thread of the block must call it, once.
template <typename Sum>
struct BlockSums {
  Sum before_warp, total;
};

template <typename Sum>
__device__ BlockSums<Sum> sums_of_block(Sum warp_total) {
  __shared__ Sum of_warp[32];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) of_warp[warp] = warp_total;
  __syncthreads();  // all warps' totals are written before they are read
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

// One block makes sums[0, n) exclusive, in place, 1024 at a time.
template <typename Sum>
__global__ void scan_v3_three_kernel_offsets_kernel(Sum* sums, int64_t n) {
  const int lane = threadIdx.x % 32;
  Sum carry = 0;  // the sum of all that is done; every thread has it
  for (int64_t start = 0; start < n; start += blockDim.x) {
    const int64_t i = start + threadIdx.x;
    Sum upto = i < n ? sums[i] : Sum{0};
    const Sum mine = upto;
    for (int distance = 1; distance < 32; distance *= 2) {
      const Sum below = __shfl_up_sync(FULL_WARP, upto, distance);
      if (lane >= distance) upto = below + upto;
    }
    const Sum below = __shfl_up_sync(FULL_WARP, upto, 1);
    const BlockSums<Sum> block = sums_of_block(__shfl_sync(FULL_WARP, upto, 31));
    if (i < n) sums[i] = carry + block.before_warp + (lane == 0 ? Sum{0} : below);
    carry += block.total;
    __syncthreads();  // all have read the warps' totals before the next round overwrites them
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
  Tensor y = torch::stable::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  const unsigned tiles = grid_size(ceil_div<int64_t>(n, WIDE_TILE), "x");
  const bool wide = is_aligned(x, 16);
  const cudaStream_t stream = current_stream(x);
  dispatch_scannable(x, [&](auto zero, auto zero_sum) {
    using T = decltype(zero);
    using Sum = decltype(zero_sum);
    const Tensor totals = torch::stable::new_empty(x, {int64_t{tiles}}, ScalarType::Int);
    Sum* total = mutable_data<Sum>(totals);  // 4 bytes, whatever Sum is
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
// v4 against v3: x is read once. A block publishes its tile's total as soon as it knows it, and
// then looks back: it adds up the totals of the tiles before it, until it meets one that knows the
// sum of everything up to its own end (Merrill & Garland, 2016, "decoupled look-back").

// What a tile has published, in one 8-byte word, so that no reader sees half of it: a state in the
// upper 4 bytes, a sum in the lower ones.
enum State : uint32_t {
  NOTHING = 0,  // what fresh memory is set to
  TOTAL = 1,    // the sum of this tile
  PREFIX = 2,   // the sum of this tile and of all before it
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

// volatile: this access happens, here, and goes to the L2 cache, which all multiprocessors share.
__device__ void publish(uint64_t* word, uint64_t value) {
  *static_cast<volatile uint64_t*>(word) = value;
}
__device__ uint64_t look(const uint64_t* word) {
  return *static_cast<const volatile uint64_t*>(word);
}

// 8-byte words, 32 bytes apart. 32 bytes are the piece in which the L2 cache serves a request: were
// four words in one, the writers of each would queue up with the readers of all four.
constexpr int SPACING = 4;

// The sum of all tiles before `tile`, in every lane of the calling warp. Lane l looks at the tile
// l + 1 before; if none of the 32 has a prefix, the warp goes on with the 32 before those.
template <typename Sum>
__device__ Sum look_back(const uint64_t* words, int64_t tile) {
  const int lane = threadIdx.x % 32;
  Sum sum = 0;  // of the tiles that count among those this lane looks at
  bool found = false;
  for (int64_t nearest = tile - 1; !found; nearest -= 32) {
    const int64_t at = nearest - lane;
    uint64_t word = make_word(PREFIX, Sum{0});  // before the first tile
    if (at >= 0) {
      // A tile has its number because its block runs: it will publish, whatever we do.
      while (state_in(word = look(&words[at * SPACING])) == NOTHING);
    }
    const unsigned with_prefix = __ballot_sync(FULL_WARP, state_in(word) == PREFIX);
    found = with_prefix != 0;
    // The nearest tile with a prefix is the last that counts.
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
  // Blocks take tiles in the order in which they start, and CUDA does not say that this is the
  // order of blockIdx. So every tile before ours belongs to a block that runs or is done.
  if (threadIdx.x == 0) my_tile = static_cast<int64_t>(atomicAdd(next_tile, 1ull));
  __syncthreads();  // all wait for the number that thread 0 has drawn
  const int64_t tile = my_tile;

  TilePart<T, Sum> part;
  part.load(x, tile, n, wide);
  const BlockSums<Sum> sums = sums_of_block(part.scan());

  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) publish(&words[tile * SPACING], make_word(TOTAL, sums.total));
    const Sum prefix = look_back<Sum>(words, tile);
    if (threadIdx.x == 0) {
      publish(&words[tile * SPACING], make_word(PREFIX, prefix + sums.total));
      my_prefix = prefix;
    }
  }
  __syncthreads();  // the other warps wait until warp 0 has looked back
  part.store(y, tile, n, my_prefix + sums.before_warp, exclusive);
}

Tensor scan_v4_look_back(const Tensor& x, bool exclusive) {
  check_scannable(x);
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  const unsigned tiles = grid_size(ceil_div<int64_t>(n, WIDE_TILE), "x");
  // The counter that hands out tiles, then a word a tile; 0 means NOTHING.
  const Tensor scratch =
      torch::stable::new_zeros(x, {SPACING * (1 + int64_t{tiles})}, ScalarType::Long);
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

STABLE_TORCH_LIBRARY(day17, m) {
  m.def("scan_v1_hillis_steele(Tensor x, bool exclusive=False) -> Tensor");
  m.def("scan_v2_blelloch(Tensor x, bool exclusive=False) -> Tensor");
  m.def("scan_v3_three_kernel(Tensor x, bool exclusive=False) -> Tensor");
  m.def("scan_v4_look_back(Tensor x, bool exclusive=False) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day17, CUDA, m) {
  m.impl("scan_v1_hillis_steele", TORCH_BOX(&scan_v1_hillis_steele));
  m.impl("scan_v2_blelloch", TORCH_BOX(&scan_v2_blelloch));
  m.impl("scan_v3_three_kernel", TORCH_BOX(&scan_v3_three_kernel));
  m.impl("scan_v4_look_back", TORCH_BOX(&scan_v4_look_back));
}

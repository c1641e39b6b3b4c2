// Day 17: scan, also called prefix sum: by tiles, in shared memory
//
//   inclusive   y[i] = x[0] + … + x[i]              x, y: (n,) fp32, fp16, bf16 or int32
//   exclusive   y[i] = x[0] + … + x[i - 1], y[0] = 0
//
// Bytes: read x once, write y once: 2 · n · sizeof(T); for 2^28 fp32 that is 2.1 GB. Operations: a
// sequential scan needs one addition per element, so memory bandwidth is the limit.
//
//   v1 hillis_steele  scans tiles in log2 steps, then adds the tiles' offsets: 4n elements moved
//   v2 blelloch       scans tiles by a tree, up and down: 2n additions instead of n log n
//   v3 and v4 are in scan_in_registers.cu.
//
// Run: python run_day.py 17

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------------------------------------
// v1 and v2 scan tiles of 1024 elements in shared memory, one block per tile, and store the total
// of each tile. The totals are scanned recursively in the same way; then the sum of all tiles
// before is added to every element.

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
  const Tensor totals = allocate(on, {int64_t{tiles}});  // T is 4 bytes, as on's
  T* total = mutable_data<T>(totals);
  scan_tiles(x, y, total, n, exclusive, tiles);
  if (tiles == 1) return;
  scan_recursively(on, total, total, tiles, true, scan_tiles);  // in place, tile by tile
  add_offsets_kernel<<<tiles, TILE, 0, current_stream(on)>>>(y, total, n);
  check_launch("add_offsets");
}

// Scans fp32 or int32 with the given scan_tiles.
template <typename ScanTiles>
Tensor scan_by_tiles(const Tensor& x, bool exclusive, ScanTiles scan_tiles) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype({ScalarType::Float, ScalarType::Int});
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
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
// 10 steps for 1024 elements; thread t adds in every step whose distance is at most t.

template <typename T>
__global__ void scan_v1_hillis_steele_kernel(const T* x, T* y, T* __restrict__ totals, int64_t n,
                                             bool exclusive) {
  __shared__ T sums[2][TILE];  // one is read while the other is written
  const int t = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * TILE + t;
  int now = 0;
  sums[now][t] = i < n ? x[i] : T{0};
  for (int distance = 1; distance < TILE; distance *= 2) {
    __syncthreads();  // the previous step is written, and its input is no longer read
    T sum = sums[now][t];
    if (t >= distance) sum = sums[now][t - distance] + sum;
    now = 1 - now;
    sums[now][t] = sum;
  }
  __syncthreads();  // all sums are written before threads read their neighbour's
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
// v2 against v1: first up a tree of sums, as in a reduction, then down again: each node passes the
// sum of everything to its left to its left child, and that plus the left child's sum to its right
// child. 2n additions instead of n log n, but twice as many steps, with fewer active threads.

// The index of element i in shared memory. One unused word after each 32: otherwise all words of a
// step with distance 16, 32, … would be in one bank (bank conflicts, day 14).
__device__ int padded(int i) {
  return i + i / 32;
}

template <typename T>
__global__ void scan_v2_blelloch_kernel(const T* x, T* y, T* __restrict__ totals, int64_t n,
                                        bool exclusive) {
  __shared__ T sums[TILE + TILE / 32];
  const int t = threadIdx.x;  // 512 threads with two elements each: t and t + 512
  const int64_t first = int64_t{blockIdx.x} * TILE;
  T value[2];
  for (int k = 0; k < 2; ++k) {
    const int at = t + k * TILE / 2;
    value[k] = first + at < n ? x[first + at] : T{0};
    sums[padded(at)] = value[k];
  }

  // Up: at distance d, the last element of each group of 2d gets the sum of the group.
  for (int distance = 1; distance < TILE; distance *= 2) {
    __syncthreads();  // the level below is written before it is read
    const int right = (t + 1) * 2 * distance - 1, left = right - distance;
    if (right < TILE) sums[padded(right)] = sums[padded(left)] + sums[padded(right)];
  }
  if (t == 0) {  // thread 0 wrote the last level itself: there right = TILE - 1
    totals[blockIdx.x] = sums[padded(TILE - 1)];
    sums[padded(TILE - 1)] = T{0};  // nothing lies left of the whole tile
  }
  // Down: the last element of a group holds the sum of everything left of the group.
  for (int distance = TILE / 2; distance > 0; distance /= 2) {
    __syncthreads();  // the level above is written before it is read
    const int right = (t + 1) * 2 * distance - 1, left = right - distance;
    if (right < TILE) {
      const T of_left = sums[padded(left)];
      sums[padded(left)] = sums[padded(right)];
      sums[padded(right)] += of_left;
    }
  }
  __syncthreads();  // the leaves of the tree are written before they are read

  for (int k = 0; k < 2; ++k) {
    const int at = t + k * TILE / 2;
    const T before = sums[padded(at)];
    if (first + at < n) y[first + at] = exclusive ? before : before + value[k];
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

RUNG(day17, scan_v1_hillis_steele, "(Tensor x, bool exclusive=False) -> Tensor");
RUNG(day17, scan_v2_blelloch, "(Tensor x, bool exclusive=False) -> Tensor");

// Day 40: dispatch groups the slots by expert, combine brings their results back
//
//   dispatch   slot s = t · k + j goes to row rows[s], and slots[rows[s]] = s; the rows of expert e
//              are [offsets[e], offsets[e + 1])
//   combine    y[t] = Σ_j gates[t][j] · results[rows[t][j]]
//
// Dispatch reads an expert and writes two words per slot, in three launches: 0.2 MB for 16,384
// slots, so the launches are what it costs. Combine is bound by memory: 2k + 2 bytes per element.
//
//   dispatch v1 atomics    a slot's row comes from a counter: the order varies between runs
//   dispatch v2 sorted     a counting sort: the order is that of the slots
//   dispatch v2 capacity   the same, where an expert takes its first `capacity` slots only
//
// Run: python run_day.py 40

#include "days/day40/moe.cuh"

#include <algorithm>

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// v1: count the slots of each expert, add up the counts, and give each slot the next free
// row of its expert. Which slot comes first is chance.

// Whether a slot has an expert: -1 and other numbers beyond the experts stand for none.
__device__ bool is_expert(int expert, int num_experts) {
  return expert >= 0 && expert < num_experts;
}

constexpr int SCAN_BLOCK = 1024;

// sums[i] = value(0) + … + value(i - 1), for i in [0, n], by one block. value(i) may be in sums[i].
template <typename Value>
__device__ void scan_by_block(int* sums, int64_t n, Value value) {
  __shared__ int of_warp[SCAN_BLOCK / 32];
  const int warp = threadIdx.x / 32;
  int before_round = 0;  // in every thread
  for (int64_t first = 0; first < n; first += SCAN_BLOCK) {
    const int64_t i = first + threadIdx.x;
    const int mine = i < n ? value(i) : 0;
    const int upto = warp_inclusive_scan(mine);
    if (threadIdx.x % 32 == 31) of_warp[warp] = upto;
    __syncthreads();  // the sums of all warps are written before they are read
    int before = before_round + upto - mine;
    for (int w = 0; w < SCAN_BLOCK / 32; ++w) {
      if (w < warp) before += of_warp[w];
      before_round += of_warp[w];
    }
    if (i < n) sums[i] = before;
    __syncthreads();  // all have read the sums of the warps before the next round writes them
  }
  if (threadIdx.x == 0) sums[n] = before_round;
  __syncthreads();  // all sums are written before a thread of the block reads them
}

__global__ void dispatch_v1_count_kernel(const int* __restrict__ experts, int* __restrict__ counts,
                                         int64_t n, int num_experts) {
  const int64_t slot = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (slot < n && is_expert(experts[slot], num_experts)) atomicAdd(&counts[experts[slot]], 1);
}

__global__ void dispatch_v1_offsets_kernel(const int* __restrict__ counts,
                                           int* __restrict__ offsets, int num_experts) {
  scan_by_block(offsets, num_experts, [&](int64_t e) { return counts[e]; });
}

// taken: zeros, how many rows of each expert have been given away.
__global__ void dispatch_v1_place_kernel(const int* __restrict__ experts,
                                         const int* __restrict__ offsets, int* __restrict__ taken,
                                         int* __restrict__ slots, int* __restrict__ rows, int64_t n,
                                         int num_experts) {
  const int64_t slot = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (slot >= n) return;
  const int expert = experts[slot];
  int row = -1;
  if (is_expert(expert, num_experts)) {
    row = offsets[expert] + atomicAdd(&taken[expert], 1);
    slots[row] = static_cast<int>(slot);
  }
  rows[slot] = row;
  if (slot >= offsets[num_experts]) slots[slot] = -1;  // rows behind the last group
}

Groups new_groups(const Tensor& experts, int64_t num_experts) {
  check(experts, "experts").on_gpu().dtype({ScalarType::Int}).rank(2).contiguous();
  STD_TORCH_CHECK(experts.numel() <= 0x7fffffff, "experts: expected less than 2^31 elements, got ",
                  shape_of(experts));
  STD_TORCH_CHECK(num_experts >= 1 && num_experts <= MAX_EXPERTS, "num_experts: expected 1 to ",
                  MAX_EXPERTS, ", got ", num_experts);
  const DeviceGuard guard(experts);
  return {allocate(experts, {experts.numel()}), allocate_like(experts),
          allocate(experts, {num_experts + 1})};
}

Groups group_by_atomics(const Tensor& experts, int64_t num_experts) {
  const Groups groups = new_groups(experts, num_experts);
  const DeviceGuard guard(experts);
  const int64_t n = experts.numel();
  const int E = static_cast<int>(num_experts);
  Tensor counts = allocate_zeros(experts, {2, num_experts});
  int *count = mutable_data<int>(counts), *offsets = mutable_data<int>(groups.offsets);
  const unsigned blocks = grid_size(ceil_div<int64_t>(n, BLOCK), "experts");
  const cudaStream_t stream = current_stream(experts);
  if (n > 0) {
    dispatch_v1_count_kernel<<<blocks, BLOCK, 0, stream>>>(data<int>(experts), count, n, E);
    check_launch("dispatch_v1_count");
  }
  dispatch_v1_offsets_kernel<<<1, SCAN_BLOCK, 0, stream>>>(count, offsets, E);
  check_launch("dispatch_v1_offsets");
  if (n > 0) {
    dispatch_v1_place_kernel<<<blocks, BLOCK, 0, stream>>>(data<int>(experts), offsets, count + E,
                                                           mutable_data<int>(groups.slots),
                                                           mutable_data<int>(groups.rows), n, E);
    check_launch("dispatch_v1_place");
  }
  return groups;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a slot's rank in its group is counted, not drawn. It is the sum of the
// slots of the same expert in the tiles before, in the warps before, and in the lanes before: one
// pass of day 38's radix sort, with experts for digits.

constexpr int PER_THREAD = 4;              // slots
constexpr int TILE = BLOCK * PER_THREAD;   // slots of a block
constexpr int WARPS = BLOCK / 32;          // per block
constexpr int PER_WARP = 32 * PER_THREAD;  // slots of a warp, which lie side by side

// counts[e][tile] = how many slots of the tile have expert e
__global__ void __launch_bounds__(BLOCK)
    dispatch_v2_count_kernel(const int* __restrict__ experts, int* __restrict__ counts, int64_t n,
                             int num_experts) {
  __shared__ int of_expert[MAX_EXPERTS];
  for (int e = threadIdx.x; e < num_experts; e += BLOCK) of_expert[e] = 0;
  __syncthreads();  // all counts are 0 before threads add to them
  const int64_t first = int64_t{blockIdx.x} * TILE;
  for (int i = threadIdx.x; i < TILE && first + i < n; i += BLOCK) {
    const int expert = experts[first + i];
    if (is_expert(expert, num_experts)) atomicAdd(&of_expert[expert], 1);
  }
  __syncthreads();  // all slots are counted before the counts are read
  for (int e = threadIdx.x; e < num_experts; e += BLOCK) {
    counts[int64_t{e} * gridDim.x + blockIdx.x] = of_expert[e];
  }
}

// Replaces each count by the sum of those before it, so that an expert's first one is the number of
// slots of lower experts; then offsets from the slots that each expert keeps.
__global__ void __launch_bounds__(SCAN_BLOCK)
    dispatch_v2_offsets_kernel(int* counts, int* __restrict__ offsets, int64_t tiles,
                               int num_experts, int capacity) {
  scan_by_block(counts, num_experts * tiles, [&](int64_t i) { return counts[i]; });
  scan_by_block(offsets, num_experts, [&](int64_t e) {
    return min(counts[(e + 1) * tiles] - counts[e * tiles], capacity);
  });
}

__global__ void __launch_bounds__(BLOCK)
    dispatch_v2_place_kernel(const int* __restrict__ experts, const int* __restrict__ before_tile,
                             const int* __restrict__ offsets, int* __restrict__ slots,
                             int* __restrict__ rows, int64_t n, int num_experts, int capacity) {
  extern __shared__ int ranks[];  // (WARPS, num_experts): counts, then ranks of first slots
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int* const of_warp = ranks + warp * num_experts;
  for (int e = lane; e < num_experts; e += 32) of_warp[e] = 0;
  __syncwarp();  // the warp's counts are 0 before a lane adds to them

  const int64_t first = int64_t{blockIdx.x} * TILE + warp * PER_WARP + lane;
  int expert[PER_THREAD], in_warp[PER_THREAD];
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int64_t slot = first + i * 32;
    expert[i] = slot < n ? experts[slot] : -1;
    const unsigned equal = __match_any_sync(FULL_WARP, expert[i]);  // lanes with this expert
    const int below = __popc(equal & ((1u << lane) - 1));
    const bool counts = is_expert(expert[i], num_experts);
    in_warp[i] = counts ? of_warp[expert[i]] + below : 0;
    __syncwarp();  // the count is read by all lanes before one of them adds to it
    if (counts && below == 0) of_warp[expert[i]] += __popc(equal);
    __syncwarp();  // and the sum is written before the next slots read it
  }
  __syncthreads();  // the counts of all warps are complete
  for (int e = threadIdx.x; e < num_experts; e += BLOCK) {
    const int64_t row = int64_t{e} * gridDim.x;
    int rank = before_tile[row + blockIdx.x] - before_tile[row];
    for (int w = 0; w < WARPS; ++w) {
      const int count = ranks[w * num_experts + e];
      ranks[w * num_experts + e] = rank;
      rank += count;
    }
  }
  __syncthreads();  // all ranks are written before they are read

  const int rows_in_use = offsets[num_experts];
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int64_t slot = first + i * 32;
    if (slot >= n) break;
    int row = -1;
    if (is_expert(expert[i], num_experts)) {
      const int rank = of_warp[expert[i]] + in_warp[i];
      if (rank < capacity) row = offsets[expert[i]] + rank;
    }
    rows[slot] = row;
    if (row >= 0) slots[row] = static_cast<int>(slot);
    if (slot >= rows_in_use) slots[slot] = -1;  // here as the number of a row without a slot
  }
}

Groups group_by_counting_sort(const Tensor& experts, int64_t num_experts, int64_t capacity) {
  const Groups groups = new_groups(experts, num_experts);
  STD_TORCH_CHECK(capacity >= 0, "capacity: expected 0 or more slots per expert, got ", capacity);
  const DeviceGuard guard(experts);
  const int64_t n = experts.numel();
  const int E = static_cast<int>(num_experts), most = static_cast<int>(std::min(capacity, n));
  const unsigned tiles = grid_size(ceil_div<int64_t>(n, TILE), "experts");
  Tensor counts = allocate(experts, {num_experts * tiles + 1});
  int *count = mutable_data<int>(counts), *offsets = mutable_data<int>(groups.offsets);
  const cudaStream_t stream = current_stream(experts);
  if (n > 0) {
    dispatch_v2_count_kernel<<<tiles, BLOCK, 0, stream>>>(data<int>(experts), count, n, E);
    check_launch("dispatch_v2_count");
  }
  dispatch_v2_offsets_kernel<<<1, SCAN_BLOCK, 0, stream>>>(count, offsets, tiles, E, most);
  check_launch("dispatch_v2_offsets");
  if (n > 0) {
    dispatch_v2_place_kernel<<<tiles, BLOCK, WARPS * E * sizeof(int), stream>>>(
        data<int>(experts), count, offsets, mutable_data<int>(groups.slots),
        mutable_data<int>(groups.rows), n, E, most);
    check_launch("dispatch_v2_place");
  }
  return groups;
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

Three dispatch_v1_atomics(const Tensor& experts, int64_t num_experts) {
  const Groups groups = group_by_atomics(experts, num_experts);
  return {groups.slots, groups.rows, groups.offsets};
}
Three dispatch_v2_sorted(const Tensor& experts, int64_t num_experts) {
  const Groups groups = group_by_counting_sort(experts, num_experts, experts.numel());
  return {groups.slots, groups.rows, groups.offsets};
}
Three dispatch_v2_capacity(const Tensor& experts, int64_t num_experts, int64_t capacity) {
  const Groups groups = group_by_counting_sort(experts, num_experts, capacity);
  return {groups.slots, groups.rows, groups.offsets};
}

// ---------------------------------------------------------------------------------------------
// combine: the results of a token are added up in the order of its choices, whatever the order of
// the rows is, so equal inputs give equal bits. N: elements per thread, 8 or 1.

constexpr int COMBINE_BLOCK = 128;

template <int N>
__global__ void __launch_bounds__(COMBINE_BLOCK)
    combine_kernel(const bf16* __restrict__ results, const int* __restrict__ rows,
                   const float* __restrict__ gates, bf16* __restrict__ y, int64_t count, int k,
                   int64_t C) {
  struct alignas(N * sizeof(bf16)) Piece {
    bf16 at[N];
  };
  const int64_t i = (int64_t{blockIdx.x} * COMBINE_BLOCK + threadIdx.x) * N;
  if (i >= count) return;
  const int64_t token = i / C, c = i % C;
  float sums[N] = {};
  for (int j = 0; j < k; ++j) {
    const int64_t row = rows[token * k + j];
    if (row < 0) continue;  // the slot was dropped
    const float gate = gates[token * k + j];
    const Piece piece = *reinterpret_cast<const Piece*>(results + row * C + c);
#pragma unroll
    for (int e = 0; e < N; ++e) sums[e] += gate * static_cast<float>(piece.at[e]);
  }
  Piece rounded;
#pragma unroll
  for (int e = 0; e < N; ++e) rounded.at[e] = static_cast<bf16>(sums[e]);
  *reinterpret_cast<Piece*>(y + i) = rounded;
}

void combine(const Tensor& results, const Tensor& rows, const Tensor& gates, const Tensor& y) {
  const int64_t C = y.size(1), width = C % 8 == 0 ? 8 : 1;  // new tensors are aligned
  const auto kernel = width == 8 ? combine_kernel<8> : combine_kernel<1>;
  const unsigned blocks = grid_size(ceil_div<int64_t>(y.numel() / width, COMBINE_BLOCK), "x");
  kernel<<<blocks, COMBINE_BLOCK, 0, current_stream(y)>>>(
      data<bf16>(results), data<int>(rows), data<float>(gates), mutable_data<bf16>(y), y.numel(),
      static_cast<int>(rows.size(1)), C);
  check_launch("combine");
}

// ---------------------------------------------------------------------------------------------

RUNG(day40, dispatch_v1_atomics, "(Tensor experts, int num_experts) -> (Tensor, Tensor, Tensor)");
RUNG(day40, dispatch_v2_sorted, "(Tensor experts, int num_experts) -> (Tensor, Tensor, Tensor)");
RUNG(day40, dispatch_v2_capacity,
     "(Tensor experts, int num_experts, int capacity) -> (Tensor, Tensor, Tensor)");

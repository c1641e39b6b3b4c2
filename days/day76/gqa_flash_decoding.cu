// Day 76: grouped-query attention, and split-K decoding
//
//   o[b, h] = sum_t softmax_t(scale · q[b, h] · keys[b, h / G, t]) values[b, h / G, t]
//   over t < lengths[b]
//
// q, o: (B, H · G, D) in fp16 or bf16, D = 64 or 128. keys, values: (B, H, T, D) in the same type:
// G heads of queries share one head of keys and values, G = 1 … 16. Bytes: 4 · D per token and head
// of keys; B = 1, H = 8, T = 131072, D = 128: 537 MB. Operations: G per byte. Memory bandwidth is
// the limit, if there are enough blocks to reach it.
//
//   v1 one_block      one block per head of keys: 8 blocks, and the other multiprocessors are idle
//   v2 split          the tokens of a head are split between blocks; a second kernel merges
//   v3 tensor_cores   mma.sync for G queries at a time; each warp has a ring of tiles in flight
//   v4 one_launch     the last block of a head to finish merges its parts
//
// Run: python run_day.py 76

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day76/split_decode.cuh"

#include <climits>

// One head of keys and its group of query heads is a pair: pair b · H + h has rows pair · G + r of
// q and o. A pair has `splits` parts, of which a short sequence uses fewer.
template <typename T>
struct Grouped {
  const T *q, *keys, *values;
  const int* lengths;  // (B,)
  T* o;
  int64_t room;  // rows per head: the cache's T
  int H, group, splits;
  float scale_log2;  // scale · log2 e, so that exp2 does for exp
  Parts parts;
  int* arrived;  // (B · H): the blocks that have stored their part; only v4 has it

  __device__ int length_of(int64_t pair) const {
    return static_cast<int>(max(int64_t{0}, min(int64_t{lengths[pair / H]}, room)));
  }
  // How many of a pair's splits have tokens: at least one unit each.
  __device__ int used_of(int length) const {
    return static_cast<int>(min(int64_t{splits}, ceil_div<int64_t>(length, UNIT)));
  }
};

// Tokens [begin, end) of a block. The numbers of units of two blocks differ by at most one.
struct Range {
  int64_t pair;
  int split, used, begin, end;
};

template <typename T>
__device__ Range range_of(const Grouped<T>& n, int64_t block) {
  Range range{block / n.splits, static_cast<int>(block % n.splits), 0, 0, 0};
  const int length = n.length_of(range.pair);
  range.used = n.used_of(length);
  if (range.split >= range.used) return range;
  const int64_t units = ceil_div<int64_t>(length, UNIT);
  range.begin = static_cast<int>(units * range.split / range.used * UNIT);
  const int64_t end = units * (range.split + 1) / range.used * UNIT;
  range.end = static_cast<int>(min(end, int64_t{length}));
  return range;
}

// ---------------------------------------------------------------------------------------------
// v1 and v2: day 74's loop, with HEADS queries per row that is loaded. A larger group takes several
// blocks per range. v2 against v1: a pair has as many splits as fill the GPU, instead of one.

constexpr int HEADS = 4;

template <typename T, int D>
__global__ void __launch_bounds__(BLOCK, 2) decode_by_lanes_kernel(Grouped<T> n, int passes) {
  constexpr int E = 16 / sizeof(T), LANES = D / E, GROUPS = BLOCK / LANES;
  const Range range = range_of(n, blockIdx.x / passes);
  if (range.begin >= range.end) return;                             // the whole block
  const int first = static_cast<int>(blockIdx.x % passes) * HEADS;  // of the group
  const int heads = min(HEADS, n.group - first);
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const auto* const keys = reinterpret_cast<const uint4*>(n.keys);
  const auto* const values = reinterpret_cast<const uint4*>(n.values);

  float q[HEADS][E];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const int64_t at = (range.pair * n.group + first + h) * D + lane * E + e;
      q[h][e] = h < heads ? n.scale_log2 * static_cast<float>(n.q[at]) : 0.0f;
    }
  }
  Running<PlainCache<T>> mine[HEADS];
  for (int begin = range.begin; begin < range.end; begin += GROUPS * ROWS) {
    uint4 k[ROWS], v[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int t = begin + r * GROUPS + group;
      const int64_t row = range.pair * n.room + t;
      k[r] = v[r] = uint4{};
      if (t < range.end) k[r] = keys[row * LANES + lane], v[r] = values[row * LANES + lane];
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      float score[ROWS], weight[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float x[E], part = 0;
        PlainCache<T>::unpack(x, k[r]);
#pragma unroll
        for (int e = 0; e < E; ++e) part += q[h][e] * x[e];
        part = group_sum<LANES>(part);
        score[r] = begin + r * GROUPS + group < range.end ? part : -INFINITY;
        weight[r] = 1;
      }
      mine[h].add(score, weight, [&](int r) { return v[r]; });
    }
  }

  __shared__ float outputs[HEADS * GROUPS * D];
  __shared__ float2 stats[HEADS * GROUPS];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int place = h * GROUPS + group;
    if (lane == 0) stats[place] = {mine[h].max, mine[h].sum};
#pragma unroll
    for (int e = 0; e < E; ++e) outputs[place * D + lane * E + e] = mine[h].out[e];
  }
  __syncthreads();  // the warps that merge wait for the results of all groups
  const int h = threadIdx.x / 32;
  if (h >= heads) return;
  const int64_t part = range.pair * n.splits + range.split;
  const int place = h * GROUPS;
  store_part<D>(n.parts, part * n.group + first + h,
                merge<D>(stats + place, outputs + place * D, GROUPS, 1));
}

// One warp per row of the output merges the parts of its pair.
template <typename T, int D>
__global__ void merge_kernel(Grouped<T> n, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;  // [0, B · H · G)
  if (row >= rows) return;
  const int64_t pair = row / n.group;
  store_output<D>(n.o + row * D, n.parts, pair * n.splits, n.used_of(n.length_of(pair)), n.group,
                  static_cast<int>(row % n.group));
}

// Checks, allocates, and calls launch(n, D as a constant, pairs), with n but for its splits.
template <typename F>
Tensor decode(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& lengths,
              double scale, const char* name, F&& launch) {
  check(keys, "keys").on_gpu().rank(4).contiguous();
  const int64_t B = keys.size(0), H = keys.size(1), T = keys.size(2);
  const int group = check_groups(q, B, H, "keys");
  check(keys, "keys").dtype({q.scalar_type()}).size(3, q.size(2)).same_device(q, "q");
  check(values, "values").on_gpu().like(keys, "keys").contiguous();
  check(lengths, "lengths").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous().size(0, B);
  check(lengths, "lengths").same_device(q, "q");
  STD_TORCH_CHECK(T <= MAX_TOKENS, "keys: expected at most ", MAX_TOKENS, " tokens, got ", T);
  STD_TORCH_CHECK(is_aligned(keys, 16) && is_aligned(values, 16),
                  "keys, values: expected first elements on multiples of 16 bytes");
  const float scale_log2 = scale_log2_of(scale);
  const DeviceGuard guard(q);
  Tensor o = allocate_like(q);
  if (o.numel() == 0) return o;
  const int pairs = static_cast<int>(grid_size(B * H, "keys"));
  dispatch_16_bits(q, [&](auto zero) {
    using Type = decltype(zero);
    Grouped<Type> n{};
    n.q = data<Type>(q), n.keys = data<Type>(keys), n.values = data<Type>(values);
    n.lengths = data<int>(lengths), n.o = mutable_data<Type>(o);
    n.room = T, n.H = static_cast<int>(H), n.group = group, n.scale_log2 = scale_log2;
    if (q.size(2) == 64) return launch(n, std::integral_constant<int, 64>{}, pairs);
    launch(n, std::integral_constant<int, 128>{}, pairs);
  });
  check_launch(name);
  return o;
}

// As many splits per pair as fill the GPU with resident blocks, but at most one per unit of tokens.
template <typename Kernel>
int splits_for(const Tensor& q, Kernel kernel, int block, int64_t bytes, int64_t pairs,
               int64_t room) {
  const int64_t resident = resident_grid(q, kernel, block, bytes, INT_MAX);
  const int64_t most = ceil_div<int64_t>(room, UNIT), splits = std::min(resident / pairs, most);
  return static_cast<int>(std::max(int64_t{1}, splits));
}

template <typename T, int D>
void launch_merge(const Grouped<T>& n, const Tensor& q, int64_t pairs) {
  const int64_t rows = pairs * n.group;
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS), "q");
  merge_kernel<T, D><<<grid, THREADS, 0, current_stream(q)>>>(n, rows);
}

Tensor decode_by_lanes(const Tensor& q, const Tensor& keys, const Tensor& values,
                       const Tensor& lengths, double scale, bool split, const char* name) {
  return decode(q, keys, values, lengths, scale, name, [&](auto n, auto width, int64_t pairs) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(n.q)>>;
    const auto kernel = decode_by_lanes_kernel<T, width>;
    const int passes = ceil_div(n.group, HEADS);
    n.splits = split ? splits_for(q, kernel, BLOCK, 0, pairs * passes, n.room) : 1;
    const PartsMemory memory(q, pairs * n.splits, n.group);
    n.parts = memory.pointers();
    const unsigned grid = grid_size(pairs * n.splits * passes, "keys");
    kernel<<<grid, BLOCK, 0, current_stream(q)>>>(n, passes);
    check_launch(name);
    launch_merge<T, width>(n, q, pairs);
  });
}

Tensor gqa_v1_one_block(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& lengths, double scale) {
  return decode_by_lanes(q, keys, values, lengths, scale, false, "gqa_v1_one_block");
}
Tensor gqa_v2_split(const Tensor& q, const Tensor& keys, const Tensor& values,
                    const Tensor& lengths, double scale) {
  return decode_by_lanes(q, keys, values, lengths, scale, true, "gqa_v2_split");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: both products by mma.sync, and each warp's next two tiles in flight by cp.async
// (split_decode.cuh). v4 against v3: the last block of a pair merges, instead of a second kernel.

template <typename T, int D, bool MERGES>
__global__ void __launch_bounds__(THREADS, 2) decode_by_tiles_kernel(Grouped<T> n) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  const Range range = range_of(n, blockIdx.x);
  const int64_t row = range.pair * n.group, first = range.pair * n.splits;
  if (range.begin < range.end) {
    const auto row_of = [&](int t) { return range.pair * n.room + t; };
    attend_range<D>(n.q + row * D, n.keys, n.values, row_of, range.begin, range.end, n.group,
                    n.scale_log2, reinterpret_cast<T*>(shared), n.parts, first + range.split);
  }
  if constexpr (MERGES) {
    // An empty sequence has no part: its first block stores zeros.
    const bool merges = range.begin < range.end ? is_last(n.arrived + range.pair, range.used)
                                                : range.used == 0 && range.split == 0;
    if (!merges) return;
    for (int r = threadIdx.x / 32; r < n.group; r += WARPS) {
      store_output<D>(n.o + (row + r) * D, n.parts, first, range.used, n.group, r);
    }
  }
#endif
}

template <bool MERGES>
Tensor decode_by_tiles(const Tensor& q, const Tensor& keys, const Tensor& values,
                       const Tensor& lengths, double scale, const char* name) {
  return decode(q, keys, values, lengths, scale, name, [&](auto n, auto width, int64_t pairs) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(n.q)>>;
    constexpr int BYTES = ring_bytes<T, width>();
    require_tensor_cores(width);
    const auto kernel = decode_by_tiles_kernel<T, width, MERGES>;
    allow_shared(kernel, BYTES);
    n.splits = splits_for(q, kernel, THREADS, BYTES, pairs, n.room);
    const PartsMemory memory(q, pairs * n.splits, n.group);
    n.parts = memory.pointers();
    const Tensor arrived = allocate_zeros(q, {MERGES ? pairs : 0}, ScalarType::Int);
    n.arrived = mutable_data<int>(arrived);
    const unsigned grid = grid_size(pairs * n.splits, "keys");
    kernel<<<grid, THREADS, BYTES, current_stream(q)>>>(n);
    check_launch(name);
    if constexpr (!MERGES) launch_merge<T, width>(n, q, pairs);
  });
}

Tensor gqa_v3_tensor_cores(const Tensor& q, const Tensor& keys, const Tensor& values,
                           const Tensor& lengths, double scale) {
  return decode_by_tiles<false>(q, keys, values, lengths, scale, "gqa_v3_tensor_cores");
}
Tensor gqa_v4_one_launch(const Tensor& q, const Tensor& keys, const Tensor& values,
                         const Tensor& lengths, double scale) {
  return decode_by_tiles<true>(q, keys, values, lengths, scale, "gqa_v4_one_launch");
}

// ---------------------------------------------------------------------------------------------

#define DECODE "(Tensor q, Tensor keys, Tensor values, Tensor lengths, float scale) -> Tensor"

RUNG(day76, gqa_v1_one_block, DECODE);
RUNG(day76, gqa_v2_split, DECODE);
RUNG(day76, gqa_v3_tensor_cores, DECODE);
RUNG(day76, gqa_v4_one_launch, DECODE);

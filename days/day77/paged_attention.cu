// Day 77: PagedAttention: a KV cache in pages, sequences of mixed lengths, prefixes that are shared
//
//   o[b, h] = sum_t softmax_t(scale · q[b, h] · k_t) v_t                over t < lengths[b]
//   k_t = key_pages[table[b, t / S], h / G, t % S], and v_t likewise
//
// q, o: (B, H · G, D) in fp16 or bf16, D = 64 or 128. key_pages, value_pages: (P, H, S, D) in the
// same type, pages of S = 16 or 64 tokens. table: (B, M) in int32, the pages of each sequence, in
// order. Bytes: 4 · D per token and head of keys, and 4 per page. As on day 76, memory bandwidth is
// the limit.
//
//   v1 one_block   one block per sequence and head of keys: the longest sequence is the limit
//   v2 split       day 76's splits: each sequence has the same number of parts, short or long
//   v3 even        all tokens of all sequences in one line, of which each block has an equal range
//   v4 overhead    a pair has more places on the line, for the time that a beginning costs a block
//
// Run: python run_day.py 77

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day76/split_decode.cuh"      // taught in day 76
#include "days/day77/shares.cuh"

#include <climits>

// Pair b · H + h is a head of keys of sequence b: rows pair · G + r of q and o are its queries.
template <typename T>
struct Paged {
  const T *q, *keys, *values;
  const int *table, *lengths;  // (B, M) and (B,)
  T* o;
  int64_t pages;             // P
  int B, H, group, columns;  // columns: M
  float scale_log2;          // scale · log2 e, so that exp2 does for exp
  Parts parts;
  int* arrived;     // (B · H): the blocks that have stored a part of the pair
  int64_t* starts;  // (B + 1), of v3 and v4: where sequence b begins on the line, per head

  __device__ int length_of(int b, int page) const {
    return max(0, min(lengths[b], columns * page));
  }
};

__device__ inline int64_t units_of(int length) {
  return (int64_t{length} + UNIT - 1) / UNIT;
}

// Computes units [first, last) of a pair of this length, as part `part`. The pair has `count` parts
// from `first_part` on. The block that completes them stores the output.
template <typename T, int D, int PAGE>
__device__ void attend_pages(const Paged<T>& n, int64_t pair, int length, int64_t first,
                             int64_t last, int64_t part, int64_t first_part, int count, T* shared) {
  const int* const table = n.table + pair / n.H * n.columns;
  const int64_t head = pair % n.H;
  // A tile of 16 tokens lies in one page. No page of that number: no row.
  const auto row_of = [&](int t) {
    const int64_t page = table[t / PAGE];
    return page >= 0 && page < n.pages ? (page * n.H + head) * PAGE + t % PAGE : -1;
  };
  const int64_t row = pair * n.group;
  attend_range<D>(n.q + row * D, n.keys, n.values, row_of, static_cast<int>(first * UNIT),
                  static_cast<int>(min(last * UNIT, int64_t{length})), n.group, n.scale_log2,
                  shared, n.parts, part);
  if (!is_last(n.arrived + pair, count)) return;
  for (int r = threadIdx.x / 32; r < n.group; r += WARPS) {
    store_output<D>(n.o + (row + r) * D, n.parts, first_part, count, n.group, r);
  }
}

// ---------------------------------------------------------------------------------------------
// v1 and v2: `splits` blocks per pair. v2 against v1: as many as fill the GPU, instead of one.

template <typename T, int D, int PAGE>
__global__ void __launch_bounds__(THREADS, 2) paged_by_pairs_kernel(Paged<T> n, int splits) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  const int64_t pair = blockIdx.x / splits;
  const int split = static_cast<int>(blockIdx.x % splits);
  const int length = n.length_of(static_cast<int>(pair / n.H), PAGE);
  const int64_t units = units_of(length);
  const int used = static_cast<int>(min(int64_t{splits}, units));  // at least a unit per split
  if (split < used) {
    attend_pages<T, D, PAGE>(n, pair, length, start_of(units, split, used),
                             start_of(units, split + 1, used), pair * splits + split, pair * splits,
                             used, reinterpret_cast<T*>(shared));
  } else if (units == 0 && split == 0) {
    const int elements = n.group * D;
    for (int i = threadIdx.x; i < elements; i += THREADS) n.o[pair * elements + i] = T(0.0f);
  }
#endif
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the units of all pairs are one line, in the order of the pairs. Each block has an
// equal range of it, which may contain the end of one pair and the beginning of the next.
// v4 against v3: a pair has OVERHEAD more places, at its beginning. They stand for the time in
// which a block begins with a pair and loads nothing: a block with many short pairs has fewer
// units.

constexpr int PLANNERS = 256;     // threads of the plan's only block
constexpr int PAIR_OVERHEAD = 5;  // of v4, in units: measured, see README.md

// starts[b] = the places of sequences [0, b), per head: the units of each, and `overhead` for each
// that has any.
// Sets `pairs` counters of arrived blocks to 0.
__global__ void plan_kernel(const int* lengths, int64_t* starts, int B, int room, int overhead,
                            int* arrived, int pairs) {
  __shared__ int64_t of_warps[PLANNERS / 32];
  const int warp = threadIdx.x / 32;
  int64_t before = 0;  // units of the sequences of earlier rounds
  for (int first = 0; first < B; first += PLANNERS) {
    const int b = first + threadIdx.x;
    const int64_t units = b < B ? units_of(max(0, min(lengths[b], room))) : 0;
    const int64_t places = units > 0 ? units + overhead : 0;
    const int64_t scanned = warp_inclusive_scan(places);
    __syncthreads();  // all threads have read the sums of the round before
    if (threadIdx.x % 32 == 31) of_warps[warp] = scanned;
    __syncthreads();  // every thread waits for the sums of all warps
    int64_t start = before + scanned - places;
    for (int w = 0; w < PLANNERS / 32; ++w) {
      if (w < warp) start += of_warps[w];
      before += of_warps[w];
    }
    if (b < B) starts[b] = start;
  }
  if (threadIdx.x == 0) starts[B] = before;
  for (int i = threadIdx.x; i < pairs; i += PLANNERS) arrived[i] = 0;
}

// Sequences without tokens have no place on the line: their outputs are zeros.
template <typename T, int D>
__device__ void store_zeros(const Paged<T>& n) {
  for (int b = blockIdx.x; b < n.B; b += gridDim.x) {
    if (n.starts[b] < n.starts[b + 1]) continue;
    const int elements = n.H * n.group * D;
    for (int i = threadIdx.x; i < elements; i += THREADS) n.o[int64_t{b} * elements + i] = T(0.0f);
  }
}

template <typename T, int D, int PAGE, int OVERHEAD>
__global__ void __launch_bounds__(THREADS, 2) paged_even_kernel(Paged<T> n) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  store_zeros<T, D>(n);
  const int64_t all = n.starts[n.B] * n.H, block = blockIdx.x;
  const int64_t shares = min(all, int64_t{gridDim.x});  // at least a place per block
  if (block >= shares) return;
  int64_t place = start_of(all, block, shares);
  const int64_t end = start_of(all, block + 1, shares);
  int b = 0;  // the last sequence that begins at `place` or before, by bisection
  for (int above = n.B; above - b > 1;) {
    const int middle = b + (above - b) / 2;
    (n.starts[middle] * n.H <= place ? b : above) = middle;
  }
  while (place < end) {
    while (n.starts[b + 1] * n.H <= place) ++b;            // empty ones too
    const int64_t places = n.starts[b + 1] - n.starts[b];  // per head
    const int64_t h = (place - n.starts[b] * n.H) / places;
    const int64_t pair = int64_t{b} * n.H + h, begin = n.starts[b] * n.H + h * places;
    const int64_t first = max(int64_t{0}, place - begin - OVERHEAD);
    const int64_t last = min(places, end - begin) - OVERHEAD;
    place = begin + OVERHEAD + last;
    if (first >= last) continue;  // nothing but overhead
    // The parts are numbered along the line. From one part to the next, the block, the pair or both
    // grow, so block + pair is different for each.
    const int64_t first_block = share_of(all, begin + OVERHEAD, shares);
    const int64_t last_block = share_of(all, begin + places - 1, shares);
    attend_pages<T, D, PAGE>(n, pair, n.length_of(b, PAGE), first, last, block + pair,
                             first_block + pair, static_cast<int>(last_block - first_block + 1),
                             reinterpret_cast<T*>(shared));
  }
#endif
}

// ---------------------------------------------------------------------------------------------

// Checks, allocates, and calls launch(n, D and the page size as constants).
template <typename F>
Tensor paged(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
             const Tensor& table, const Tensor& lengths, double scale, const char* name,
             F&& launch) {
  check(key_pages, "key_pages").on_gpu().rank(4).contiguous();
  check(table, "table").on_gpu().dtype({ScalarType::Int}).rank(2).contiguous();
  const int64_t B = table.size(0), H = key_pages.size(1), page = key_pages.size(2);
  STD_TORCH_CHECK(page == 16 || page == 64, "key_pages: expected 16 or 64 tokens per page, got ",
                  page);
  const int group = check_groups(q, B, H, "key_pages");
  check(key_pages, "key_pages").dtype({q.scalar_type()}).size(3, q.size(2)).same_device(q, "q");
  check(value_pages, "value_pages").on_gpu().like(key_pages, "key_pages").contiguous();
  check(table, "table").same_device(q, "q");
  check(lengths, "lengths").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous().size(0, B);
  check(lengths, "lengths").same_device(q, "q");
  STD_TORCH_CHECK(table.size(1) <= MAX_TOKENS / page, "table: expected at most ", MAX_TOKENS / page,
                  " pages of ", page, " tokens per sequence, got ", table.size(1));
  STD_TORCH_CHECK(is_aligned(key_pages, 16) && is_aligned(value_pages, 16),
                  "key_pages, value_pages: expected first elements on multiples of 16 bytes");
  const float scale_log2 = scale_log2_of(scale);
  const DeviceGuard guard(q);
  require_tensor_cores(q.size(2));
  Tensor o = allocate_like(q);
  if (o.numel() == 0) return o;
  const Tensor arrived = allocate(q, {grid_size(B * H, "q")}, ScalarType::Int);
  dispatch_16_bits(q, [&](auto zero) {
    using T = decltype(zero);
    Paged<T> n{};
    n.q = data<T>(q), n.keys = data<T>(key_pages), n.values = data<T>(value_pages);
    n.table = data<int>(table), n.lengths = data<int>(lengths), n.o = mutable_data<T>(o);
    n.pages = key_pages.size(0), n.columns = static_cast<int>(table.size(1));
    n.B = static_cast<int>(B), n.H = static_cast<int>(H), n.group = group;
    n.scale_log2 = scale_log2, n.arrived = mutable_data<int>(arrived);
    const auto with_page = [&](auto width) {
      if (page == 16) return launch(n, width, std::integral_constant<int, 16>{});
      launch(n, width, std::integral_constant<int, 64>{});
    };
    if (q.size(2) == 64) return with_page(std::integral_constant<int, 64>{});
    with_page(std::integral_constant<int, 128>{});
  });
  check_launch(name);
  return o;
}

Tensor paged_by_pairs(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
                      const Tensor& table, const Tensor& lengths, double scale, bool split,
                      const char* name) {
  return paged(q, key_pages, value_pages, table, lengths, scale, name,
               [&](auto n, auto width, auto page) {
                 using T = std::remove_const_t<std::remove_pointer_t<decltype(n.q)>>;
                 constexpr int BYTES = ring_bytes<T, width>();
                 const auto kernel = paged_by_pairs_kernel<T, width, page>;
                 allow_shared(kernel, BYTES);
                 const int64_t pairs = int64_t{n.B} * n.H;
                 const int64_t resident = resident_grid(q, kernel, THREADS, BYTES, INT_MAX);
                 const int64_t splits = split ? std::max(int64_t{1}, resident / pairs) : 1;
                 const PartsMemory memory(q, pairs * splits, n.group);
                 n.parts = memory.pointers();
                 check_cuda(cudaMemsetAsync(n.arrived, 0, pairs * sizeof(int), current_stream(q)),
                            "cudaMemsetAsync");
                 const unsigned grid = grid_size(pairs * splits, "q");
                 kernel<<<grid, THREADS, BYTES, current_stream(q)>>>(n, static_cast<int>(splits));
               });
}

Tensor paged_v1_one_block(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
                          const Tensor& table, const Tensor& lengths, double scale) {
  return paged_by_pairs(q, key_pages, value_pages, table, lengths, scale, false,
                        "paged_v1_one_block");
}
Tensor paged_v2_split(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
                      const Tensor& table, const Tensor& lengths, double scale) {
  return paged_by_pairs(q, key_pages, value_pages, table, lengths, scale, true, "paged_v2_split");
}

template <int OVERHEAD>
Tensor paged_even(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
                  const Tensor& table, const Tensor& lengths, double scale, const char* name) {
  return paged(q, key_pages, value_pages, table, lengths, scale, name,
               [&](auto n, auto width, auto page) {
                 using T = std::remove_const_t<std::remove_pointer_t<decltype(n.q)>>;
                 constexpr int BYTES = ring_bytes<T, width>();
                 const auto kernel = paged_even_kernel<T, width, page, OVERHEAD>;
                 allow_shared(kernel, BYTES);
                 const unsigned grid = resident_grid(q, kernel, THREADS, BYTES, INT_MAX);
                 const PartsMemory memory(q, int64_t{n.B} * n.H + grid, n.group);
                 n.parts = memory.pointers();
                 const Tensor starts = allocate(q, {int64_t{n.B} + 1}, ScalarType::Long);
                 n.starts = mutable_data<int64_t>(starts);
                 plan_kernel<<<1, PLANNERS, 0, current_stream(q)>>>(
                     n.lengths, n.starts, n.B, n.columns * page, OVERHEAD, n.arrived, n.B * n.H);
                 check_launch("plan");
                 kernel<<<grid, THREADS, BYTES, current_stream(q)>>>(n);
               });
}

Tensor paged_v3_even(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
                     const Tensor& table, const Tensor& lengths, double scale) {
  return paged_even<0>(q, key_pages, value_pages, table, lengths, scale, "paged_v3_even");
}
Tensor paged_v4_overhead(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
                         const Tensor& table, const Tensor& lengths, double scale) {
  return paged_even<PAIR_OVERHEAD>(q, key_pages, value_pages, table, lengths, scale,
                                   "paged_v4_overhead");
}

// ---------------------------------------------------------------------------------------------

#define PAGED                                                                       \
  "(Tensor q, Tensor key_pages, Tensor value_pages, Tensor table, Tensor lengths, " \
  "float scale) -> Tensor"

RUNG(day77, paged_v1_one_block, PAGED);
RUNG(day77, paged_v2_split, PAGED);
RUNG(day77, paged_v3_even, PAGED);
RUNG(day77, paged_v4_overhead, PAGED);

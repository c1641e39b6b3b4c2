// Day 78: the next token, drawn from the logits of a language model
//
//   order   larger logits first, of equal logits the smaller index first
//   top-k   keeps the first k tokens, whose masses are exp((x - max) / temperature)
//   top-p   keeps the shortest prefix of those that has at least top_p of their mass
//   token   the first one at which the running sum of mass exceeds u · (mass of what is kept)
//
// logits (B, V) in fp32, fp16 or bf16, u (B) in [0, 1) -> tokens (B), their probabilities (B), and
// how many tokens were kept (B). A row with NaN, +inf or nothing finite gives -1, NaN and 0, and so
// does a u outside [0, 1).
//
// Bytes: V · sizeof(T) per row, read once. Nothing is sorted: each of the three lines above asks
// for the first element at which a running sum exceeds a number, and that is a radix select.
//
//   v1 bits      the element's key bit by bit: one pass over the row per bit
//   v2 radix     10 bits per pass, by a histogram of counts and masses in shared memory
//   v3 cluster   the row is read once and stays as keys in the shared memory of a cluster
//   v4 bound     the maxima of the threads give a bound, and elements below it are left out
//
// Run: python run_day.py 78

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/chunk.cuh"            // taught in days 35 and 42
#include "common/cuda/cluster_launch.cuh"   // taught in day 35
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // clusters: day 34
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/warp_reduce.cuh"      // taught in day 23

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

constexpr int BLOCK = 1024;
constexpr int WARPS = BLOCK / 32;
constexpr int AHEAD = 4;  // chunks that a thread loads before it uses the first
constexpr int64_t MOST_COLUMNS = 1 << 22;
constexpr float ONE = 0x1p40f;  // the mass of the largest logit: 2^22 of them stay below 2^63
constexpr uint32_t NONE = 0xffffffff;

// A key is smaller for a larger logit: the key of 0, minus the bits of a positive logit, plus the
// bits of a negative one without its sign. -inf has the largest key. NaN of either sign comes
// before +inf, since keys wrap around.
template <typename T>
struct Keys {
  using Key = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  static constexpr int BITS = 8 * sizeof(T);
  static constexpr Key SIGN = Key{1} << (BITS - 1);
  static constexpr Key INF = std::is_same_v<T, float>    ? 0x7f800000
                             : std::is_same_v<T, __half> ? 0x7c00
                                                         : 0x7f80;
  static constexpr Key MINUS_INF = static_cast<Key>(-1);
  static constexpr Key ZERO = MINUS_INF - INF;
  static constexpr Key PLUS_INF = ZERO - INF;

  static __device__ Key key_of(T x) {
    Key bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & SIGN ? ZERO + (bits - SIGN) : ZERO - bits;
  }
  static __device__ float logit_of(Key key) {
    const Key bits = key > ZERO ? key - ZERO + SIGN : ZERO - key;
    T x;
    memcpy(&x, &bits, sizeof x);
    return static_cast<float>(x);
  }
};

template <typename T>
struct Weights {
  float largest, per_temperature;

  __device__ float exponential(uint32_t key) const {
    return expf((Keys<T>::logit_of(key) - largest) * per_temperature);
  }
  __device__ uint64_t mass(uint32_t key) const {
    return static_cast<uint64_t>(exponential(key) * ONE);
  }
};

// The sums over some elements: integers, so that the order of the additions does not matter.
struct Sums {
  uint64_t mass = 0;
  uint32_t count = 0;

  __device__ Sums operator+(const Sums& other) const {
    return {mass + other.mass, count + other.count};
  }
};

enum class By { COUNT, MASS };

__device__ inline uint64_t measure(const Sums& sums, By by) {
  return by == By::COUNT ? sums.count : sums.mass;
}

// The result of a search: a key or an index, and the sums of all elements before it.
struct Found {
  uint32_t number = 0;
  Sums before;
};

struct Job {
  const float* u;
  int64_t* tokens;
  float* probabilities;
  int64_t* kept;
  int64_t chunks;  // of a row
  int index_bits;  // of the largest index
  uint32_t k;
  double top_p;
  float per_temperature;
};

// A row in global memory; each(f) calls f(key, index) for this thread's elements.
template <typename T, int N>
struct GlobalRow {
  const Chunk<T, N>* chunks;
  int count;

  template <typename F>
  __device__ void each(F&& f) const {
    for (int c = threadIdx.x; c < count; c += AHEAD * BLOCK) {
      RawChunk<Chunk<T, N>> some[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        if (c + a * BLOCK < count) some[a] = load_raw(chunks + c + a * BLOCK);
      }
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        if (c + a * BLOCK >= count) break;
        const Chunk<T, N> chunk = some[a].chunk();
#pragma unroll
        for (int i = 0; i < N; ++i) f(Keys<T>::key_of(chunk.at[i]), (c + a * BLOCK) * N + i);
      }
    }
  }
};

// Returns the smallest of the threads' keys to all threads of the block.
__device__ inline uint32_t block_least(uint32_t least, uint32_t* of_warp) {
  const auto smaller = [](uint32_t a, uint32_t b) { return min(a, b); };
  least = warp_reduce(least, smaller);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = least;
  __syncthreads();  // the keys of all warps are written before they are read
  return warp_reduce(of_warp[threadIdx.x % 32], smaller);
}
static_assert(WARPS == 32, "each lane reads the key of one warp");

// Whether no logit is NaN or +inf, and not all are -inf.
template <typename T>
__device__ bool is_valid(uint32_t least) {
  return least > Keys<T>::PLUS_INF && least < Keys<T>::MINUS_INF;
}

// What all rungs do with a row, given a search. find_key(by, t): the key of the first element at
// which the running sum exceeds t; find_index(key, t): the index of the element with that key that
// has t such elements before it.
template <typename T, typename Search>
__device__ void sample(Search& search, uint32_t least, const Job& job, unsigned row, bool leader) {
  const float u = job.u[row];
  if (!is_valid<T>(least) || !(u >= 0 && u < 1)) {
    if (leader) {
      job.tokens[row] = -1;
      job.probabilities[row] = NAN;
      job.kept[row] = 0;
    }
    return;
  }
  search.start();
  const Weights<T>& weights = search.weights;
  // The sums of what comes before `found` and of `ties` elements with its key.
  const auto prefix = [&](const Found& found, uint32_t ties) {
    return found.before + Sums{ties * weights.mass(found.number), ties};
  };
  Found last = search.find_key(By::COUNT, job.k - 1);
  Sums kept = prefix(last, job.k - last.before.count);
  if (job.top_p < 1) {
    const auto share = static_cast<uint64_t>(ceil(job.top_p * static_cast<double>(kept.mass)));
    const uint64_t t = min(share, kept.mass) - 1;  // a double has 53 bits: share may be rounded up
    last = search.find_key(By::MASS, t);
    const uint64_t ties = (t - last.before.mass) / weights.mass(last.number) + 1;
    kept = prefix(last, static_cast<uint32_t>(ties));
  }
  const auto t = static_cast<uint64_t>(u * static_cast<double>(kept.mass));
  const Found drawn = search.find_key(By::MASS, t);
  const uint64_t ties = (t - drawn.before.mass) / weights.mass(drawn.number);
  const uint32_t token = search.find_index(drawn.number, ties, job.index_bits);
  if (leader) {
    job.tokens[row] = token;
    job.probabilities[row] =
        weights.exponential(drawn.number) * (ONE / static_cast<float>(kept.mass));
    job.kept[row] = kept.count;
  }
}

// The numbers of an element by which a search may look for it: its key or its index.
struct KeyNumber {
  __device__ uint32_t operator()(uint32_t key, uint32_t) const { return key; }
};
struct IndexNumber {
  uint32_t of_key;  // elements with other keys have no number
  __device__ uint32_t operator()(uint32_t key, uint32_t index) const {
    return key == of_key ? index : NONE;
  }
};

// ---------------------------------------------------------------------------------------------
// v1: halves the numbers that the element may have. Each pass sums the elements of the lower half;
// if the running sum does not exceed t there, the element is in the upper half.

template <typename T, typename Row>
struct BitSearch {
  const Row& row;
  Sums (*of_warp)[WARPS];  // two arrays in turns, so that one barrier per bit is enough
  Weights<T> weights;
  int turn = 0;

  __device__ void start() {}

  // The sums over the block of the elements whose number is in [low, low + 2^bit).
  template <typename Number>
  __device__ Sums lower_half(uint32_t low, int bit, Number number) {
    Sums sums;
    row.each([&](uint32_t key, uint32_t index) {
      if ((number(key, index) - low) >> bit == 0) sums = sums + Sums{weights.mass(key), 1};
    });
    sums = {warp_sum(sums.mass), warp_sum(sums.count)};
    turn ^= 1;
    if (threadIdx.x % 32 == 0) of_warp[turn][threadIdx.x / 32] = sums;
    __syncthreads();  // the sums of all warps are written before they are read
    sums = {};
    for (int w = 0; w < WARPS; ++w) sums = sums + of_warp[turn][w];
    return sums;
  }

  template <typename Number>
  __device__ Found find(int bits, By by, uint64_t t, Number number) {
    Found found;
    for (int bit = bits - 1; bit >= 0; --bit) {
      const Sums sums = found.before + lower_half(found.number, bit, number);
      if (t < measure(sums, by)) continue;
      found = {found.number | 1u << bit, sums};
    }
    return found;
  }
  __device__ Found find_key(By by, uint64_t t) { return find(Keys<T>::BITS, by, t, KeyNumber{}); }
  __device__ uint32_t find_index(uint32_t of_key, uint64_t t, int bits) {
    return find(bits, By::COUNT, t, IndexNumber{of_key}).number;
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    sampling_v1_bits_kernel(const Chunk<T, N>* __restrict__ logits, Job job) {
  __shared__ uint32_t least_of_warp[WARPS];
  __shared__ Sums of_warp[2][WARPS];
  const unsigned r = blockIdx.x;
  const GlobalRow<T, N> row{logits + r * job.chunks, static_cast<int>(job.chunks)};
  uint32_t least = Keys<T>::MINUS_INF;
  row.each([&](uint32_t key, uint32_t) { least = min(least, key); });
  least = block_least(least, least_of_warp);
  BitSearch<T, GlobalRow<T, N>> search{
      row, of_warp, {Keys<T>::logit_of(least), job.per_temperature}};
  sample<T>(search, least, job, r, threadIdx.x == 0);
}

using Drawn = std::tuple<Tensor, Tensor, Tensor>;  // tokens, probabilities, kept
#define ARGUMENTS \
  const Tensor &logits, const Tensor &u, double temperature, int64_t top_k, double top_p
#define GIVEN logits, u, temperature, top_k, top_p

// Checks the arguments, allocates the results and calls launch(chunks of all rows, job).
template <typename F>
Drawn drawn_by(ARGUMENTS, const char* name, F&& launch) {
  check(logits, "logits").on_gpu().floating().rank(2).contiguous();
  const int64_t rows = logits.size(0), columns = logits.size(1);
  check(u, "u").on_gpu().dtype({ScalarType::Float}).rank(1).size(0, rows).contiguous();
  check(u, "u").same_device(logits, "logits");
  STD_TORCH_CHECK(columns > 0 && columns <= MOST_COLUMNS, "logits: expected 1 to ", MOST_COLUMNS,
                  " columns, got ", columns);
  STD_TORCH_CHECK(temperature >= 1e-30 && temperature <= 1e30,
                  "temperature: expected a number from 1e-30 to 1e30, got ", temperature);
  STD_TORCH_CHECK(top_k >= 1, "top_k: expected at least 1, got ", top_k);
  STD_TORCH_CHECK(top_p > 0 && top_p <= 1, "top_p: expected a number in (0, 1], got ", top_p);
  const DeviceGuard guard(logits);
  Tensor tokens = allocate(logits, {rows}, ScalarType::Long);
  Tensor probabilities = allocate(logits, {rows}, ScalarType::Float);
  Tensor kept = allocate(logits, {rows}, ScalarType::Long);
  if (rows == 0) return {tokens, probabilities, kept};
  Job job{data<float>(u), mutable_data<int64_t>(tokens), mutable_data<float>(probabilities),
          mutable_data<int64_t>(kept)};
  job.index_bits = std::bit_width(static_cast<uint32_t>(columns - 1));
  job.k = static_cast<uint32_t>(std::min(top_k, columns));
  job.top_p = top_p;
  job.per_temperature = static_cast<float>(1 / temperature);
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(columns, {&logits}, [&](auto size) {
      job.chunks = columns / size;
      launch(data<Chunk<T, size>>(logits), job);
    });
  });
  check_launch(name);
  return {tokens, probabilities, kept};
}

Drawn sampling_v1_bits(ARGUMENTS) {
  return drawn_by(GIVEN, "sampling_v1_bits", [&](auto* chunks, const Job& job) {
    const unsigned grid = grid_size(logits.size(0), "logits");
    sampling_v1_bits_kernel<<<grid, BLOCK, 0, current_stream(logits)>>>(chunks, job);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: 10 bits per pass instead of one. A histogram has the count and the mass of each
// digit; the digit of the element is the first one at which the running sum over digits exceeds t.
// The histogram of the highest digits is the same for all three searches, and built once.

constexpr int DIGIT_BITS = 10;
constexpr int DIGITS = 1 << DIGIT_BITS;
static_assert(DIGITS == BLOCK, "each thread has the sums of one digit");

// A mass takes two words. Shared memory has no atomic addition of 64 bits: nvcc makes a loop of
// compare-and-swap of it.
struct Histogram {
  uint32_t count[DIGITS], low[DIGITS], high[DIGITS];

  __device__ void clear(int digit) { count[digit] = low[digit] = high[digit] = 0; }
  __device__ void add(uint32_t digit, uint64_t mass) {
    atomicAdd(&count[digit], 1u);
    const auto lower = static_cast<uint32_t>(mass);
    const uint32_t before = atomicAdd(&low[digit], lower);
    const uint32_t carry = before + lower < lower;
    const uint32_t upper = static_cast<uint32_t>(mass >> 32) + carry;
    if (upper > 0) atomicAdd(&high[digit], upper);
  }
  __device__ Sums at(int digit) const {
    return {uint64_t{high[digit]} << 32 | low[digit], count[digit]};
  }
};

// CLUSTER: the blocks of a cluster share a row, and each of them finds the same. Two histograms
// take turns, so one barrier of the cluster per histogram is enough.
template <bool CLUSTER>
struct alignas(16) Scratch {
  Histogram histograms[CLUSTER ? 2 : 1];
  Sums of_warp[WARPS];
  uint32_t least_of_warp[WARPS], least;
  Found found;
  unsigned listed;
};

template <typename T, typename Row, bool CLUSTER>
struct DigitSearch {
  const Row& row;
  Scratch<CLUSTER>& shared;
  Weights<T> weights;
  Sums first = {};  // of the elements with threadIdx.x as their highest digit
  int turn = 0;

  static constexpr int FIRST_SHIFT = Keys<T>::BITS - DIGIT_BITS;

  // Sorts elements whose number is in [low, low + 2^(shift + width)) by the next `width` bits.
  // Returns the sums of those with threadIdx.x as these bits, over all blocks of the row.
  template <typename Number>
  __device__ Sums histogram(uint32_t low, int shift, int width, Number number) {
    turn ^= CLUSTER;
    Histogram& mine = shared.histograms[turn];
    mine.clear(threadIdx.x);
    __syncthreads();  // all digits are 0 before threads add to them
    row.each([&](uint32_t key, uint32_t index) {
      const uint32_t digit = (number(key, index) - low) >> shift;
      if (digit < 1u << width) mine.add(digit, weights.mass(key));
    });
    if constexpr (!CLUSTER) {
      __syncthreads();  // all threads have added before the sums are read
      return mine.at(threadIdx.x);
    }
    ptx::cluster_sync();  // all blocks have added, and have read the histogram before this one
    Sums sums;
    const int blocks = ptx::cluster_size();
    for (int b = 0; b < blocks; ++b) sums = sums + ptx::map_to_rank(&mine, b)->at(threadIdx.x);
    return sums;
  }

  __device__ void start() { first = histogram(0, FIRST_SHIFT, DIGIT_BITS, KeyNumber{}); }

  // Finds the digit at which the running sum exceeds t, and appends it to `found`.
  __device__ Found step(const Sums& own, By by, uint64_t t, int shift, const Found& found) {
    const Sums upto = {warp_inclusive_scan(own.mass), warp_inclusive_scan(own.count)};
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 31) shared.of_warp[warp] = upto;
    __syncthreads();  // the sums of all warps are written before they are read
    Sums after = found.before + upto;
    for (int w = 0; w < warp; ++w) after = after + shared.of_warp[w];
    const Sums before = {after.mass - own.mass, after.count - own.count};
    const bool is_here = measure(before, by) <= t && t < measure(after, by);
    if (is_here) shared.found = {found.number + (threadIdx.x << shift), before};
    __syncthreads();  // the one thread that has the digit has written it
    return shared.found;
  }

  template <typename Number>
  __device__ Found descend(Found found, int bits, By by, uint64_t t, Number number) {
    for (int shift = bits; shift > 0;) {
      const int width = min(shift, DIGIT_BITS);
      shift -= width;
      found = step(histogram(found.number, shift, width, number), by, t, shift, found);
    }
    return found;
  }
  __device__ Found find_key(By by, uint64_t t) {
    return descend(step(first, by, t, FIRST_SHIFT, {}), FIRST_SHIFT, by, t, KeyNumber{});
  }
  __device__ uint32_t find_index(uint32_t of_key, uint64_t t, int bits) {
    return descend({}, bits, By::COUNT, t, IndexNumber{of_key}).number;
  }
};

// The bound of one block per multiprocessor: without it, nvcc gives each thread 32 registers, and
// spills.
template <typename T, int N>
__global__ void __launch_bounds__(BLOCK, 1)
    sampling_v2_radix_kernel(const Chunk<T, N>* __restrict__ logits, Job job) {
  __shared__ Scratch<false> shared;
  const unsigned r = blockIdx.x;
  const GlobalRow<T, N> row{logits + r * job.chunks, static_cast<int>(job.chunks)};
  uint32_t least = Keys<T>::MINUS_INF;
  row.each([&](uint32_t key, uint32_t) { least = min(least, key); });
  least = block_least(least, shared.least_of_warp);
  DigitSearch<T, GlobalRow<T, N>, false> search{
      row, shared, {Keys<T>::logit_of(least), job.per_temperature}};
  sample<T>(search, least, job, r, threadIdx.x == 0);
}

template <typename T, int N>
void launch_v2(const Tensor& logits, const Chunk<T, N>* chunks, const Job& job) {
  const unsigned grid = grid_size(logits.size(0), "logits");
  sampling_v2_radix_kernel<<<grid, BLOCK, 0, current_stream(logits)>>>(chunks, job);
}

Drawn sampling_v2_radix(ARGUMENTS) {
  return drawn_by(GIVEN, "sampling_v2_radix",
                  [&](auto* chunks, const Job& job) { launch_v2(logits, chunks, job); });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a cluster of blocks reads the row once and keeps its keys in shared memory. Every
// block counts its own part; the histograms are added up when they are read.
//
// v4 against v3 (BOUND): the k-th largest of the threads' maxima is a lower bound of the k-th
// largest logit, since each of those k threads has a logit that is as large. Only elements that are
// not below the bound go into a list, and the searches look at nothing else.

constexpr unsigned LIST = 2048;      // elements; a block with more of them searches its whole part
constexpr int64_t MOST_CLUSTER = 8;  // blocks, what every card with clusters has
static_assert(LIST >= BLOCK, "the list has the maxima of the threads first");

template <typename T, int N>
struct KeysRow {
  using Key = typename Keys<T>::Key;
  Chunk<Key, N>* chunks;
  int count;
  uint32_t first;  // the index of the first element
  uint2* list;     // keys and indices
  unsigned listed = NONE;

  template <typename F>
  __device__ void each_of_part(F&& f) const {
    for (int c = threadIdx.x; c < count; c += BLOCK) {
      const Chunk<Key, N> chunk = load_whole(chunks + c);
#pragma unroll
      for (int i = 0; i < N; ++i) f(uint32_t{chunk.at[i]}, first + c * N + i);
    }
  }
  template <typename F>
  __device__ void each(F&& f) const {
    if (listed > LIST) return each_of_part(f);
    for (unsigned i = threadIdx.x; i < listed; i += BLOCK) f(list[i].x, list[i].y);
  }
};

template <typename T, int N, bool BOUND>
__global__ void __launch_bounds__(BLOCK)
    sampling_v3_cluster_kernel(const Chunk<T, N>* __restrict__ logits, Job job, int length) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Row = KeysRow<T, N>;
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<Scratch<true>*>(memory);
  auto* const list = reinterpret_cast<uint2*>(memory + sizeof(Scratch<true>));
  auto* const keys = reinterpret_cast<Chunk<typename Row::Key, N>*>(list + (BOUND ? LIST : 0));
  const int rank = ptx::cluster_block_rank(), blocks = ptx::cluster_size();
  const unsigned r = blockIdx.x / blocks;
  const int chunks = static_cast<int>(job.chunks);
  const int before = min(rank * length, chunks), own = min(length, chunks - before);
  Row row{keys, own, static_cast<uint32_t>(before) * N, list};

  uint32_t largest = Keys<T>::MINUS_INF;  // the key of this thread's largest logit
  Chunk<typename Row::Key, N> chunk;
  GlobalRow<T, N>{logits + r * job.chunks + before, own}.each([&](uint32_t key, uint32_t index) {
    largest = min(largest, key);
    chunk.at[index % N] = static_cast<typename Row::Key>(key);
    if (index % N == N - 1) keys[index / N] = chunk;  // this thread reads it again, no other one
  });
  uint32_t least = block_least(largest, shared.least_of_warp);
  if (threadIdx.x == 0) {
    shared.least = least;
    shared.listed = 0;
  }
  ptx::cluster_sync();  // the keys of all blocks are written before they are read
  for (int b = 0; b < blocks; ++b) least = min(least, *ptx::map_to_rank(&shared.least, b));

  DigitSearch<T, Row, true> search{row, shared, {Keys<T>::logit_of(least), job.per_temperature}};
  if (BOUND && is_valid<T>(least) && job.k <= blocks * BLOCK) {
    constexpr int SHIFT = search.FIRST_SHIFT;
    list[threadIdx.x] = {largest, 0};
    row.listed = BLOCK;
    search.start();
    const uint32_t bound = search.step(search.first, By::COUNT, job.k - 1, SHIFT, {}).number;
    row.each_of_part([&](uint32_t key, uint32_t index) {
      if (key >> SHIFT > bound >> SHIFT) return;
      const unsigned place = atomicAdd(&shared.listed, 1u);
      if (place < LIST) list[place] = {key, index};
    });
    __syncthreads();  // the list is complete before it is read
    row.listed = shared.listed;
  }
  sample<T>(search, least, job, r, rank == 0 && threadIdx.x == 0);
  ptx::cluster_sync();  // no block returns while another one reads its shared memory
#endif
}

template <bool BOUND>
Drawn by_cluster(ARGUMENTS, const char* name) {
  return drawn_by(GIVEN, name, [&]<typename T, int N>(const Chunk<T, N>* chunks, const Job& job) {
    require_capability(9, 0, "clusters");
    const int64_t rows = logits.size(0);
    int64_t blocks = 1;
    const auto length = [&] { return ceil_div(job.chunks, blocks); };  // per block
    const auto bytes = [&] {
      return sizeof(Scratch<true>) + (BOUND ? LIST * sizeof(uint2) : 0) +
             length() * sizeof(Chunk<T, N>);
    };
    const auto fits = [&] { return shared_memory_fits(logits, 0, bytes()); };
    // Enough blocks for the row; more of them while multiprocessors are free, and threads have more
    // than 16 bytes each.
    const auto more = [&] {
      return !fits() || (length() * sizeof(Chunk<T, N>) > 16 * BLOCK &&
                         2 * blocks * rows <= multiprocessor_count(logits));
    };
    while (blocks < MOST_CLUSTER && more()) blocks *= 2;
    if (!fits()) {
      fell_back("sampling_v2_radix", "a row too long for the shared memory of a cluster");
      return launch_v2(logits, chunks, job);
    }
    launch_clusters(sampling_v3_cluster_kernel<T, N, BOUND>, grid_size(rows * blocks, "logits"),
                    static_cast<unsigned>(blocks), BLOCK, bytes(), current_stream(logits), chunks,
                    job, static_cast<int>(length()));
  });
}

Drawn sampling_v3_cluster(ARGUMENTS) {
  return by_cluster<false>(GIVEN, "sampling_v3_cluster");
}
Drawn sampling_v4_bound(ARGUMENTS) {
  return by_cluster<true>(GIVEN, "sampling_v4_bound");
}

// ---------------------------------------------------------------------------------------------

#define SCHEMA                                                           \
  "(Tensor logits, Tensor u, float temperature, int top_k, float top_p)" \
  " -> (Tensor, Tensor, Tensor)"
RUNG(day78, sampling_v1_bits, SCHEMA);
RUNG(day78, sampling_v2_radix, SCHEMA);
RUNG(day78, sampling_v3_cluster, SCHEMA);
RUNG(day78, sampling_v4_bound, SCHEMA);

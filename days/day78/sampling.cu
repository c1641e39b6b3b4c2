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
//   v2 radix     11 bits per pass, by a histogram of counts and masses in shared memory
//   v3 cluster   the row is read once and stays as keys in the shared memory of a cluster
//   v4 bound     the maxima of the threads give a bound: what is below it is not looked at again
//
// Run: python run_day.py 78

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/chunk.cuh"            // taught in days 35 and 42
#include "common/cuda/cluster_launch.cuh"   // taught in day 35
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // clusters: day 35
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/warp_reduce.cuh"      // taught in day 23

#include <cmath>
#include <tuple>

constexpr int BLOCK = 1024;
constexpr int WARPS = BLOCK / 32;
constexpr int AHEAD = 4;  // chunks that a thread loads before it uses the first
constexpr int64_t MOST_COLUMNS = 1 << 22;
constexpr float ONE = 0x1p40f;  // the mass of the largest logit: 2^22 of them stay below 2^63
constexpr uint32_t NONE = 0xffffffff;

template <typename T>
constexpr int KEY_BITS = 8 * sizeof(T);

// A logit as a number that is smaller for a larger logit; -0 is 0. NaN comes before +inf or behind
// -inf, as its sign is.
template <typename T>
__device__ uint32_t key_of(T x) {
  constexpr uint32_t SIGN = 1u << (KEY_BITS<T> - 1);
  std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t> bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & SIGN ? bits - 1u : bits ^ (SIGN - 1);
}

template <typename T>
__device__ float logit_of(uint32_t key) {
  constexpr uint32_t SIGN = 1u << (KEY_BITS<T> - 1);
  const std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t> bits =
      key & SIGN ? key + 1 : key ^ (SIGN - 1);
  T x;
  memcpy(&x, &bits, sizeof x);
  return static_cast<float>(x);
}

// Of some elements. Integers, so that the order of the additions does not matter.
struct Sums {
  uint64_t mass = 0;
  uint32_t count = 0;

  __device__ void add(const Sums& other) {
    mass += other.mass;
    count += other.count;
  }
};

enum class By { COUNT, MASS };

__device__ uint64_t measure(const Sums& sums, By by) {
  return by == By::COUNT ? sums.count : sums.mass;
}

// The result of a search: a key or an index, and the sums of all elements before it.
struct Found {
  uint32_t number = 0;
  Sums before;
};

// The smallest and the largest key.
struct Range {
  uint32_t least = NONE, most = 0;

  __device__ void include(const Range& other) {
    least = min(least, other.least);
    most = max(most, other.most);
  }
  // Whether no logit is NaN or +inf, and not every one -inf.
  template <typename T>
  __device__ bool is_valid() const {
    const uint32_t plus_inf = key_of(static_cast<T>(INFINITY));
    const uint32_t minus_inf = key_of(static_cast<T>(-INFINITY));
    return least > plus_inf && least < minus_inf && most <= minus_inf;
  }
};

template <typename T>
struct Weights {
  float largest, per_temperature;

  __device__ Weights(const Range& range, float per_temperature)
      : largest(logit_of<T>(range.least)), per_temperature(per_temperature) {}

  __device__ float exponential(uint32_t key) const {
    return expf((logit_of<T>(key) - largest) * per_temperature);
  }
  __device__ uint64_t mass(uint32_t key) const {
    return static_cast<uint64_t>(exponential(key) * ONE);
  }
};

struct Job {
  const float* u;
  int64_t* tokens;
  float* probabilities;
  int64_t* kept;
  int chunks, index_bits;  // of a row; of the largest index
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
        for (int i = 0; i < N; ++i) f(key_of(chunk.at[i]), (c + a * BLOCK) * N + i);
      }
    }
  }
};

// What all rungs do with a row, given a search. find_key(by, t): the key of the first element at
// which the running sum exceeds t; find_index(key, t): the index of the element with that key that
// has t such elements before it.
template <typename T, typename Search>
__device__ void sample(Search& search, const Range& range, const Job& job, int64_t row,
                       bool leader) {
  const float u = job.u[row];
  if (!range.is_valid<T>() || !(u >= 0 && u < 1)) {
    if (leader) {
      job.tokens[row] = -1;
      job.probabilities[row] = NAN;
      job.kept[row] = 0;
    }
    return;
  }
  search.start();
  const auto& weights = search.weights;
  // The sums of what comes before `found` and of `ties` elements with its key.
  const auto prefix = [&](const Found& found, uint32_t ties) {
    Sums sums = found.before;
    sums.add({ties * weights.mass(found.number), ties});
    return sums;
  };
  Found last = search.find_key(By::COUNT, job.k - 1);
  Sums kept = prefix(last, job.k - last.before.count);
  if (job.top_p < 1) {
    const auto enough = static_cast<uint64_t>(ceil(job.top_p * static_cast<double>(kept.mass)));
    const uint64_t t = max(enough, uint64_t{1}) - 1;
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

// The range of the whole row, in all threads of the block.
__device__ inline Range block_range(Range mine, Range* of_warp) {
  mine.least = warp_reduce(mine.least, [](uint32_t a, uint32_t b) { return min(a, b); });
  mine.most = warp_reduce(mine.most, [](uint32_t a, uint32_t b) { return max(a, b); });
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();  // the ranges of all warps are written before they are read
  for (int w = 0; w < WARPS; ++w) mine.include(of_warp[w]);
  return mine;
}

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
      if ((number(key, index) - low) >> bit == 0) sums.add({weights.mass(key), 1});
    });
    sums.mass = warp_sum(sums.mass);
    sums.count = warp_sum(sums.count);
    turn ^= 1;
    if (threadIdx.x % 32 == 0) of_warp[turn][threadIdx.x / 32] = sums;
    __syncthreads();  // the sums of all warps are written before they are read
    sums = {};
    for (int w = 0; w < WARPS; ++w) sums.add(of_warp[turn][w]);
    return sums;
  }

  template <typename Number>
  __device__ Found find(int bits, By by, uint64_t t, Number number) {
    Found found;
    for (int bit = bits - 1; bit >= 0; --bit) {
      Sums sums = lower_half(found.number, bit, number);
      sums.add(found.before);
      if (t < measure(sums, by)) continue;
      found = {found.number | 1u << bit, sums};
    }
    return found;
  }
  __device__ Found find_key(By by, uint64_t t) {
    return find(KEY_BITS<T>, by, t, [](uint32_t key, uint32_t) { return key; });
  }
  __device__ uint32_t find_index(uint32_t of_key, uint64_t t, int bits) {
    const auto index_or_none = [=](uint32_t key, uint32_t i) { return key == of_key ? i : NONE; };
    return find(bits, By::COUNT, t, index_or_none).number;
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    sampling_v1_bits_kernel(const Chunk<T, N>* __restrict__ logits, Job job) {
  __shared__ Range ranges[WARPS];
  __shared__ Sums of_warp[2][WARPS];
  const int64_t r = blockIdx.x;
  const GlobalRow<T, N> row{logits + r * job.chunks, job.chunks};
  Range range;
  row.each([&](uint32_t key, uint32_t) { range.include({key, key}); });
  range = block_range(range, ranges);
  BitSearch<T, GlobalRow<T, N>> search{row, of_warp, {range, job.per_temperature}};
  sample<T>(search, range, job, r, threadIdx.x == 0);
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
  Tensor tokens = torch::stable::new_empty(logits, {rows}, ScalarType::Long);
  Tensor probabilities = torch::stable::new_empty(logits, {rows}, ScalarType::Float);
  Tensor kept = torch::stable::new_empty(logits, {rows}, ScalarType::Long);
  if (rows == 0) return {tokens, probabilities, kept};
  int index_bits = 1;
  while (columns > int64_t{1} << index_bits) ++index_bits;
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(columns, {&logits}, [&](auto size) {
      launch(data<Chunk<T, size>>(logits),
             Job{data<float>(u), mutable_data<int64_t>(tokens), mutable_data<float>(probabilities),
                 mutable_data<int64_t>(kept), static_cast<int>(columns / size), index_bits,
                 static_cast<uint32_t>(top_k < columns ? top_k : columns), top_p,
                 static_cast<float>(1 / temperature)});
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
// v2 against v1: 11 bits per pass instead of one. A histogram has the count and the mass of each
// digit; the digit of the element is the first one at which the running sum over digits exceeds t.
// The histogram of the highest digits is the same for all three searches, and built once.

constexpr int DIGIT_BITS = 11;
constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int PER_THREAD = DIGITS / BLOCK;

// A mass takes two words. Shared memory has no atomic addition of 64 bits: nvcc makes a loop of
// compare-and-swap of it.
struct Histogram {
  uint32_t count[DIGITS], low[DIGITS], high[DIGITS];

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

// A thread's digits PER_THREAD · threadIdx.x …, summed over the blocks of a row.
struct Digits {
  Sums at[PER_THREAD];
};

// CLUSTER: the blocks of a cluster share a row, and each of them finds the same. They have two
// histograms in turns, so that one barrier of the cluster per histogram is enough.
template <bool CLUSTER>
struct alignas(16) Scratch {
  Histogram histograms[CLUSTER ? 2 : 1];
  Sums of_warp[WARPS];
  Range ranges[WARPS], range;
  Found found;
  unsigned listed;
};

template <typename T, typename Row, bool CLUSTER>
struct DigitSearch {
  const Row& row;
  Scratch<CLUSTER>& shared;
  Weights<T> weights;
  Digits first = {};  // of the highest digits
  int turn = 0;

  static constexpr int FIRST_SHIFT = KEY_BITS<T> - DIGIT_BITS;

  // Counts elements whose number is in [low, low + 2^(shift + width)), by the next `width` bits.
  template <typename Elements, typename Number>
  __device__ Digits histogram(const Elements& elements, uint32_t low, int shift, int width,
                              Number number) {
    turn ^= CLUSTER;
    Histogram& mine = shared.histograms[turn];
    for (int d = threadIdx.x; d < DIGITS; d += BLOCK) {
      mine.count[d] = mine.low[d] = mine.high[d] = 0;
    }
    __syncthreads();  // all digits are 0 before threads add to them
    elements.each([&](uint32_t key, uint32_t index) {
      const uint32_t digit = (number(key, index) - low) >> shift;
      if (digit < 1u << width) mine.add(digit, weights.mass(key));
    });
    Digits digits;
    if constexpr (CLUSTER) {
      ptx::cluster_sync();  // all blocks have added, and have read the histogram before this one
      const int blocks = ptx::cluster_size();
      for (int b = 0; b < blocks; ++b) {
        const Histogram* const theirs = ptx::map_to_rank(&mine, b);
        for (int i = 0; i < PER_THREAD; ++i) {
          digits.at[i].add(theirs->at(threadIdx.x * PER_THREAD + i));
        }
      }
    } else {
      __syncthreads();  // all threads have added before the sums are read
      for (int i = 0; i < PER_THREAD; ++i) digits.at[i] = mine.at(threadIdx.x * PER_THREAD + i);
    }
    return digits;
  }

  __device__ void start() {
    first = histogram(row, 0, FIRST_SHIFT, DIGIT_BITS, [](uint32_t key, uint32_t) { return key; });
  }

  // The digit at which the running sum exceeds t, appended to what is found already.
  __device__ Found step(const Digits& digits, By by, uint64_t t, int shift, const Found& found) {
    Sums own;
    for (const Sums& sums : digits.at) own.add(sums);
    const Sums upto = {warp_inclusive_scan(own.mass), warp_inclusive_scan(own.count)};
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 31) shared.of_warp[warp] = upto;
    __syncthreads();  // the sums of all warps are written before they are read
    Sums before = found.before;
    before.add({upto.mass - own.mass, upto.count - own.count});
    for (int w = 0; w < warp; ++w) before.add(shared.of_warp[w]);
    for (int i = 0; i < PER_THREAD; ++i) {
      Sums next = before;
      next.add(digits.at[i]);
      if (measure(before, by) <= t && t < measure(next, by)) {
        const uint32_t digit = threadIdx.x * PER_THREAD + i;
        shared.found = {found.number + (digit << shift), before};
      }
      before = next;
    }
    __syncthreads();  // the one thread that has the digit has written it
    return shared.found;
  }

  template <typename Number>
  __device__ Found descend(Found found, int bits, By by, uint64_t t, Number number) {
    for (int shift = bits; shift > 0;) {
      const int width = min(shift, DIGIT_BITS);
      shift -= width;
      found = step(histogram(row, found.number, shift, width, number), by, t, shift, found);
    }
    return found;
  }
  __device__ Found find_key(By by, uint64_t t) {
    const Found found = step(first, by, t, FIRST_SHIFT, {});
    return descend(found, FIRST_SHIFT, by, t, [](uint32_t key, uint32_t) { return key; });
  }
  __device__ uint32_t find_index(uint32_t of_key, uint64_t t, int bits) {
    const auto index_or_none = [=](uint32_t key, uint32_t i) { return key == of_key ? i : NONE; };
    return descend({}, bits, By::COUNT, t, index_or_none).number;
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    sampling_v2_radix_kernel(const Chunk<T, N>* __restrict__ logits, Job job) {
  __shared__ Scratch<false> shared;
  const int64_t r = blockIdx.x;
  const GlobalRow<T, N> row{logits + r * job.chunks, job.chunks};
  Range range;
  row.each([&](uint32_t key, uint32_t) { range.include({key, key}); });
  range = block_range(range, shared.ranges);
  DigitSearch<T, GlobalRow<T, N>, false> search{row, shared, {range, job.per_temperature}};
  sample<T>(search, range, job, r, threadIdx.x == 0);
}

Drawn sampling_v2_radix(ARGUMENTS) {
  return drawn_by(GIVEN, "sampling_v2_radix", [&](auto* chunks, const Job& job) {
    const unsigned grid = grid_size(logits.size(0), "logits");
    sampling_v2_radix_kernel<<<grid, BLOCK, 0, current_stream(logits)>>>(chunks, job);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a cluster of blocks reads the row once and keeps its keys in shared memory. Every
// block counts its own part; the histograms are added up when they are read.
//
// v4 against v3 (BOUND): the k-th largest of the threads' maxima is a lower bound of the k-th
// largest logit, since each of those k threads has a logit that is as large. Only what is not below
// the bound goes into a list, and the searches look at nothing else.

constexpr unsigned LIST = 2048;      // elements; a block with more of them takes its part as it is
constexpr int64_t MOST_CLUSTER = 8;  // blocks, what every card with clusters has

template <typename T, int N>
struct KeysRow {
  using Key = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  Chunk<Key, N>* chunks;
  int count;
  uint32_t first;  // the index of the first element
  uint2* list;     // key and index of what is not below the bound
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

// One element per thread.
struct OneKey {
  uint32_t key;

  template <typename F>
  __device__ void each(F&& f) const {
    f(key, 0);
  }
};

template <typename T, int N, bool BOUND>
__global__ void __launch_bounds__(BLOCK)
    sampling_v3_cluster_kernel(const Chunk<T, N>* __restrict__ logits, Job job, int length) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Row = KeysRow<T, N>;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Scratch<true>*>(memory);
  auto* const list = reinterpret_cast<uint2*>(memory + sizeof(Scratch<true>));
  auto* const keys = reinterpret_cast<Chunk<typename Row::Key, N>*>(list + (BOUND ? LIST : 0));
  const int rank = ptx::cluster_block_rank(), blocks = ptx::cluster_size();
  const int64_t r = blockIdx.x / blocks;
  const int before = min(rank * length, job.chunks), own = min(length, job.chunks - before);
  Row row{keys, own, static_cast<uint32_t>(before) * N, list};

  Range range;
  Chunk<typename Row::Key, N> chunk;
  GlobalRow<T, N>{logits + r * job.chunks + before, own}.each([&](uint32_t key, uint32_t index) {
    range.include({key, key});
    chunk.at[index % N] = static_cast<typename Row::Key>(key);
    if (index % N == N - 1) keys[index / N] = chunk;  // this thread reads it again, no other one
  });
  const uint32_t largest = min(range.least, NONE >> (32 - KEY_BITS<T>));  // of this thread
  range = block_range(range, shared.ranges);
  if (threadIdx.x == 0) {
    shared.range = range;
    shared.listed = 0;
  }
  ptx::cluster_sync();  // the ranges of all blocks are written before they are read
  for (int b = 0; b < blocks; ++b) range.include(*ptx::map_to_rank(&shared.range, b));

  DigitSearch<T, Row, true> search{row, shared, {range, job.per_temperature}};
  if (BOUND && range.is_valid<T>() && job.k <= blocks * BLOCK) {
    constexpr int SHIFT = search.FIRST_SHIFT;
    const Digits maxima = search.histogram(OneKey{largest}, 0, SHIFT, DIGIT_BITS,
                                           [](uint32_t key, uint32_t) { return key; });
    const uint32_t bound = search.step(maxima, By::COUNT, job.k - 1, SHIFT, {}).number >> SHIFT;
    row.each_of_part([&](uint32_t key, uint32_t index) {
      if (key >> SHIFT > bound) return;
      const unsigned place = atomicAdd(&shared.listed, 1u);
      if (place < LIST) list[place] = {key, index};
    });
    __syncthreads();  // the list is complete before it is read
    row.listed = shared.listed;
  }
  sample<T>(search, range, job, r, rank == 0 && threadIdx.x == 0);
  ptx::cluster_sync();  // no block returns while another one reads its shared memory
#endif
}

template <bool BOUND, typename T, int N>
auto cluster_kernel_for(const Chunk<T, N>*) {
  return sampling_v3_cluster_kernel<T, N, BOUND>;
}

// Bytes of shared memory per block, if `blocks` share a row.
template <bool BOUND>
int64_t shared_bytes(const Tensor& logits, int64_t blocks) {
  const int64_t bytes = logits.size(1) * logits.element_size();
  const int64_t list = BOUND ? int64_t{LIST} * sizeof(uint2) : 0;
  return sizeof(Scratch<true>) + list +
         16 * ceil_div<int64_t>(ceil_div<int64_t>(bytes, 16), blocks);
}

template <bool BOUND>
Drawn by_cluster(ARGUMENTS, const char* name) {
  check(logits, "logits").on_gpu().floating().rank(2);
  const DeviceGuard guard(logits);
  require_capability(9, 0, "clusters");
  const int64_t rows = logits.size(0), most = shared_limit(logits);
  // Enough blocks for the row; more of them where multiprocessors and chunks are left for them.
  const int64_t chunks = logits.size(1) % (16 / logits.element_size()) || !is_aligned(logits, 16)
                             ? logits.size(1)
                             : logits.size(1) * logits.element_size() / 16;
  const auto more = [&](int64_t blocks) {
    if (shared_bytes<BOUND>(logits, blocks) > most) return true;
    return chunks > blocks * BLOCK && 2 * blocks * rows <= multiprocessor_count(logits);
  };
  int64_t blocks = 1;
  while (blocks < MOST_CLUSTER && more(blocks)) blocks *= 2;
  if (shared_bytes<BOUND>(logits, blocks) > most) {
    fell_back("sampling_v2_radix", "a row too long for the shared memory of a cluster");
    return sampling_v2_radix(GIVEN);
  }
  return drawn_by(GIVEN, name, [&](auto* chunks, const Job& job) {
    const int length = ceil_div(job.chunks, static_cast<int>(blocks));
    launch_clusters(cluster_kernel_for<BOUND>(chunks), grid_size(rows * blocks, "logits"),
                    static_cast<unsigned>(blocks), BLOCK, shared_bytes<BOUND>(logits, blocks),
                    current_stream(logits), chunks, job, length);
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

// Day 99: the gradient of an embedding, improved: no warp sums more than 32 rows one after the
// other
//
//   dW[w] = Σ g[i] over the positions i with t[i] = w
//
// dW: (words, C); t: (n), int64; g: (n, C), in fp32, fp16 or bf16, sums in fp32, in an order that
// is the same in each run. The g of a token that names no word is left out. As on day 82.
//
// Bytes: n · C read, words · C written. For 8192 tokens, 50257 words, C = 768 in bf16: 90 MB.
//
//   embedding_grad v1 frequent_words   day 82's v3: a block takes its frequent words in turn
//   embedding_grad v2 parts            pieces of at most 32 rows, each by its own warp, then added
//   embedding_grad v3 zeros_beside     zeros are written in a second stream while the sort runs
//
// Run: python run_day.py 99

#include "common/cuda/binding.cuh"   // taught in day 6
#include "common/cuda/chunk.cuh"     // taught in days 35 and 42
#include "common/cuda/tensor.cuh"    // taught in days 6 and 12
#include "days/day82/word_rows.cuh"  // the sort, Rows, store, v1's kernel: taught in day 82

#include <cstdint>
#include <map>
#include <mutex>

constexpr int PIECE = FREQUENT;  // rows that a warp sums: one position per lane

// ---------------------------------------------------------------------------------------------
// v1: day 82's v3. A block has 16 words. Words of more than 32 rows take turns: the 16 warps share
// one word, and one pass over it per 32 chunks of a row, with two barriers per pass. Of tokens that
// are numbered by their frequency, the first block has a quarter of all rows.

Tensor embedding_grad_v1_frequent_words(const Tensor& upstream, const Tensor& tokens,
                                        int64_t words) {
  return embedding_backward(
      upstream, tokens, words, "embedding_grad_v1_frequent_words",
      [](const auto& rows) { return frequent_words_kernel_for<false>(rows); });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a frequent word is cut into pieces of 32 rows. Each piece has a warp per 32 chunks
// of a row, and a part: its sum in fp32, in memory. A second kernel adds the parts of each frequent
// word in order. No barriers, no warp with more than 32 rows.

// What the kernels need beside Rows.
template <int N>
struct Parts {
  Chunk<float, N>* at;    // (2 · tiles, chunks): see slot_of
  const int64_t* tokens;  // (n)
  const int* used;        // so many positions are sorted
  int64_t groups;         // of 32 chunks, in a row
};

// The slot of the part that begins at position k: two per tile of 32 positions. A word has one
// piece per tile at most. Where the last piece of a word begins in a tile, the first piece of the
// next one may begin, too: `first` tells them apart.
__device__ inline int64_t slot_of(int64_t k, bool first) {
  return 2 * (k / PIECE) + first;
}

// Adds load(k), …, load(k + COUNT - 1) to the sum, in this order. No load is under a condition, so
// that all can be in flight before the first is added.
template <int COUNT, int N, typename F>
__device__ void add_batch(Chunk<float, N>& sum, int k, F&& load) {
  decltype(load(k)) raw[COUNT];
#pragma unroll
  for (int j = 0; j < COUNT; ++j) raw[j] = load(k + j);
#pragma unroll
  for (int j = 0; j < COUNT; ++j) {
    const auto wide = widened(raw[j]);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.at[i] += wide.at[i];
  }
}

// Adds load(k) for all k in [begin, end), in this order: batches of 8, then of 4, 2 and 1.
template <int N, typename F>
__device__ Chunk<float, N> sum_of_all(int begin, int end, F&& load) {
  Chunk<float, N> sum{};
  int k = begin;
  for (; end - k >= 8; k += 8) add_batch<8>(sum, k, load);
  const int left = end - k;
  if (left & 4) add_batch<4>(sum, k, load);
  if (left & 2) add_batch<2>(sum, k + (left & 4), load);
  if (left & 1) add_batch<1>(sum, end - 1, load);
  return sum;
}

// Column c of a frequent word: its parts, in order.
template <int N>
__device__ Chunk<float, N> sum_of_parts(const Parts<N>& parts, Segment word, int64_t chunks,
                                        int64_t c) {
  const int pieces = (word.count - 1) / PIECE + 1;
  // From piece to piece, the position grows by a tile, and the slot by two.
  const auto* at = parts.at + slot_of(word.start, false) * chunks + c;
  return sum_of_all<N>(0, pieces, [&](int piece) {
    const int slots = 2 * piece + (piece == 0);
    return load_raw(at + slots * chunks);
  });
}

// One warp per sorted position and group of 32 chunks. Where the position begins a piece, the warp
// sums it: all rows of an infrequent word, which it writes to dW, or one part of a frequent word.
template <typename T, int N, typename To>
__global__ void __launch_bounds__(BLOCK) pieces_kernel(const Rows<T, N, To> rows, Parts<N> parts) {
  const int64_t warp = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t k = warp / parts.groups, c = warp % parts.groups * 32 + lane;
  if (k >= *parts.used) return;
  const int64_t word = parts.tokens[rows.positions[k]];
  const Segment of = rows.segments[word];
  const bool frequent = of.count > FREQUENT, begins = k == of.start;
  if (!begins && !(frequent && (k - of.start) % PIECE == 0)) return;
  const int64_t end = min(int64_t{of.start} + of.count, k + PIECE);
  const int position = k + lane < end ? rows.positions[k + lane] : 0;
  // A lane without a column loads the last one, since all lanes must shuffle.
  const auto* g = rows.g + min(c, rows.chunks - 1);
  const auto sum = sum_of_all<N>(0, static_cast<int>(end - k), [&](int row) {
    return load_raw(g + __shfl_sync(FULL_WARP, position, row) * rows.chunks);
  });
  if (c >= rows.chunks) return;
  if (frequent) {
    parts.at[slot_of(k, begins) * rows.chunks + c] = sum;
  } else {
    store<false>(rows, word, c, sum);
  }
}

// One warp per word and group: the sum of the parts, or zeros for a word that no token names.
template <typename T, int N, typename To>
__global__ void __launch_bounds__(BLOCK)
    embedding_grad_v2_parts_kernel(const Rows<T, N, To> rows, Parts<N> parts) {
  const int64_t warp = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  const int64_t word = warp / parts.groups, c = warp % parts.groups * 32 + threadIdx.x % 32;
  if (word >= rows.words || c >= rows.chunks) return;
  const Segment of = rows.segments[word];
  if (of.count == 0) store<false>(rows, word, c, Chunk<float, N>{});
  if (of.count > FREQUENT) store<false>(rows, word, c, sum_of_parts(parts, of, rows.chunks, c));
}

// Makes dW: sorts, launches the pieces, then calls finish(rows, parts, stream). sort(out) returns
// the sorted positions.
template <typename F, typename G>
Tensor by_parts(const Tensor& upstream, const Tensor& tokens, int64_t words, const char* name,
                F&& sort, G&& finish) {
  check_backward(upstream, tokens, words);
  const DeviceGuard guard(upstream);
  const int64_t n = tokens.size(0), C = upstream.size(1), tiles = ceil_div<int64_t>(n, PIECE);
  if (upstream.numel() == 0 || words == 0) {
    return allocate_zeros(upstream, {words, C});
  }
  const Tensor out = allocate(upstream, {words, C});
  const Sorted sorted = sort(out);
  const Tensor sums = allocate(upstream, {2 * tiles, C}, ScalarType::Float);
  const cudaStream_t stream = current_stream(upstream);
  dispatch_floating(upstream, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(C, {&upstream, &out}, [&](auto size) {
      const int64_t chunks = C / size, groups = ceil_div<int64_t>(chunks, 32);
      const Rows<T, size, T> rows{data<Chunk<T, size>>(upstream),
                                  mutable_data<T>(out),
                                  data<int>(sorted.positions),
                                  data<Segment>(sorted.segments),
                                  words,
                                  chunks};
      const Parts<size> parts{mutable_data<Chunk<float, size>>(sums), data<int64_t>(tokens),
                              data<int>(sorted.used), groups};
      pieces_kernel<<<grid_size(ceil_div<int64_t>(n * groups, WARPS), "tokens"), BLOCK, 0,
                      stream>>>(rows, parts);
      finish(rows, parts, stream);
    });
  });
  check_launch(name);
  return out;
}

Tensor embedding_grad_v2_parts(const Tensor& upstream, const Tensor& tokens, int64_t words) {
  const auto sort = [&](const Tensor&) { return sort_by_word(tokens, words); };
  const auto finish = [](const auto& rows, const auto& parts, cudaStream_t stream) {
    const int64_t blocks = ceil_div<int64_t>(rows.words * parts.groups, WARPS);
    embedding_grad_v2_parts_kernel<<<grid_size(blocks, "words"), BLOCK, 0, stream>>>(rows, parts);
  };
  return by_parts(upstream, tokens, words, "embedding_grad_v2_parts", sort, finish);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: most words do not occur, and their zeros do not depend on the sort, which leaves
// the memory idle. A second stream fills dW with zeros meanwhile. Then nothing has the number of
// words as its size: pieces overwrite the rows of infrequent words, and one warp per tile and group
// looks for a frequent word that begins there.

template <typename T, int N, typename To>
__global__ void __launch_bounds__(BLOCK)
    embedding_grad_v3_zeros_beside_kernel(const Rows<T, N, To> rows, Parts<N> parts) {
  const int64_t warp = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t tile = warp / parts.groups, c = warp % parts.groups * 32 + lane;
  const int64_t k = tile * PIECE + lane;
  int64_t word = 0;
  Segment of{0, 0};
  if (k < *parts.used) {
    word = parts.tokens[rows.positions[k]];
    of = rows.segments[word];
  }
  const unsigned found = __ballot_sync(FULL_WARP, of.count > FREQUENT && of.start == k);
  if (found == 0) return;  // for all lanes
  const int leader = __ffs(found) - 1;
  word = __shfl_sync(FULL_WARP, word, leader);
  of = {__shfl_sync(FULL_WARP, of.start, leader), __shfl_sync(FULL_WARP, of.count, leader)};
  if (c < rows.chunks) store<false>(rows, word, c, sum_of_parts(parts, of, rows.chunks, c));
}

// A stream beside the current one, from the constructor, the fork, to the destructor, the join (day
// 58). It is made once per device. The lock keeps two host threads from recording the same event.
class Beside {
 public:
  explicit Beside(const Tensor& on) : lock_(mutex()), current_(current_stream(on)) {
    static std::map<int, Made> known;
    made_ = &known[device_index(on)];
    if (!made_->stream) made_->make();
    check_cuda(cudaEventRecord(made_->fork, current_), "fork");
    check_cuda(cudaStreamWaitEvent(made_->stream, made_->fork, 0), "fork");
  }
  ~Beside() {  // what the current stream gets from now on waits for stream()
    cudaEventRecord(made_->join, made_->stream);
    cudaStreamWaitEvent(current_, made_->join, 0);
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  cudaStream_t stream() const { return made_->stream; }

 private:
  struct Made {
    cudaStream_t stream = nullptr;
    cudaEvent_t fork = nullptr, join = nullptr;
    void make() {
      check_cuda(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), "event");
      check_cuda(cudaEventCreateWithFlags(&join, cudaEventDisableTiming), "event");
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    }
  };
  static std::mutex& mutex() {
    static std::mutex only;
    return only;
  }
  std::lock_guard<std::mutex> lock_;
  cudaStream_t current_;
  Made* made_ = nullptr;
};

Tensor embedding_grad_v3_zeros_beside(const Tensor& upstream, const Tensor& tokens, int64_t words) {
  const auto sort = [&](const Tensor& out) {
    const Beside beside(upstream);
    check_cuda(cudaMemsetAsync(out.mutable_data_ptr(), 0, out.numel() * out.element_size(),
                               beside.stream()),
               "zeros");
    return sort_by_word(tokens, words);
  };
  const auto finish = [&](const auto& rows, const auto& parts, cudaStream_t stream) {
    const int64_t tiles = ceil_div<int64_t>(tokens.size(0), PIECE);
    const int64_t blocks = ceil_div<int64_t>(tiles * parts.groups, WARPS);
    embedding_grad_v3_zeros_beside_kernel<<<grid_size(blocks, "tokens"), BLOCK, 0, stream>>>(rows,
                                                                                             parts);
  };
  return by_parts(upstream, tokens, words, "embedding_grad_v3_zeros_beside", sort, finish);
}

// ---------------------------------------------------------------------------------------------

#define BACKWARD "(Tensor upstream, Tensor tokens, int words) -> Tensor"
RUNG(day99, embedding_grad_v1_frequent_words, BACKWARD);
RUNG(day99, embedding_grad_v2_parts, BACKWARD);
RUNG(day99, embedding_grad_v3_zeros_beside, BACKWARD);

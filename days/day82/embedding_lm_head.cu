// Day 82: the LM head of a transformer, forward and backward, a chunk of tokens at a time
//
//   x = h · Wᵀ    loss = mean over tokens of cross-entropy(x, t)    dx: its gradient
//   dh = dx · W    dW = dxᵀ · h           h, dh: (rows, C); W, dW: (words, C); t: (rows), int64
//
// in fp32, fp16 or bf16. A row whose target is ignore_index does not count; a target that names no
// word makes the loss, its row of dh and all of dW NaN.
//
// Operations: three products, 6 · rows · C · words; for 8192 × 768 × 50304 1.9 TFLOP. Bytes: x has
// rows · words elements, 824 MB in bf16; W has 77 MB. Each chunk of rows also reads and writes dW
// in fp32, 309 MB.
//
//   lm_head v1 plain      x as a whole; its gradient overwrites it
//   lm_head v2 chunked    one buffer for `together` rows of x; cuBLAS adds to dW in fp32, β = 1
//   tied v2 separate      W is the embedding's too: v2, embedding.cu's gradient, and their sum
//   tied v3 one_gradient  head and embedding add to one gradient that the caller owns
//
// Run: python run_day.py 82

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"    // taught in day 5
#include "common/cuda/warp_reduce.cuh"    // taught in day 23
#include "days/day67/row.cuh"             // taught in day 67
#include "days/day82/products.cuh"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>

constexpr int BLOCK = 512;
constexpr int WARPS = BLOCK / 32;
constexpr int AHEAD = 4;           // loads in flight per thread
constexpr int SMALL_BLOCK = 1024;  // threads of kernels with one block

// From embedding.cu.
Tensor embedding_grad_v3_frequent_words(const Tensor& upstream, const Tensor& tokens,
                                        int64_t words);
void check_backward(const Tensor& upstream, const Tensor& tokens, int64_t words);
void add_embedding_backward(const Tensor& grad, const Tensor& tokens, const Tensor& upstream);

// ---------------------------------------------------------------------------------------------
// Before and after the chunks, one block each. Without a row that counts, the weight is 1 / 0, and
// the mean 0 · inf is NaN, as in PyTorch.

__global__ void __launch_bounds__(SMALL_BLOCK)
    weight_kernel(const int64_t* __restrict__ target, int64_t rows, int64_t ignore_index,
                  float* __restrict__ weight) {
  __shared__ int partial[SMALL_BLOCK];
  int count = 0;
  for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) count += target[r] != ignore_index;
  partial[threadIdx.x] = count;
  count = tree_reduce(partial, [](int a, int b) { return a + b; });
  if (threadIdx.x == 0) *weight = 1.0f / static_cast<float>(count);
}

__global__ void __launch_bounds__(SMALL_BLOCK)
    mean_kernel(const float* __restrict__ losses, int64_t rows, const float* __restrict__ weight,
                float* __restrict__ loss) {
  __shared__ float partial[SMALL_BLOCK];
  float sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) sum += losses[r];
  partial[threadIdx.x] = sum;
  sum = tree_reduce(partial, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) *loss = sum * *weight;
}

// ---------------------------------------------------------------------------------------------
// The loss of a row, and the gradient of its logits in their place. One block per row, which stays
// in shared memory for the second pass if there is room. Rows of the buffer begin at multiples of
// 16 bytes, however many words there are: the last chunk of a row may end behind the words.

template <typename T>
struct Logits {
  T* at;       // (rows, ld)
  int64_t ld;  // elements from one row to the next, a multiple of 16 bytes
  const int64_t* target;
  float* losses;
  const float* weight;  // 1 / number of rows that count
  int64_t words, ignore_index;
};

// The sum of all threads' statistics, in every thread; all of the block must call it.
__device__ Statistics block_merge(Statistics mine) {
  __shared__ Statistics shared[WARPS];
  const auto warp_merge = [](const Statistics& s) {
    const float base = warp_max(s.base);
    return Statistics{base, warp_sum(s.sum * expf(s.base - base)), 0};
  };
  mine = warp_merge(mine);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();  // the statistics of all warps are written before they are read
  return warp_merge(threadIdx.x % 32 < WARPS ? shared[threadIdx.x % 32] : Statistics{});
}

template <typename T, bool STAYS>
__global__ void __launch_bounds__(BLOCK, 2) loss_in_place_kernel(const Logits<T> logits) {
  constexpr int N = 16 / sizeof(T);
  using Raw = RawChunk<Chunk<T, N>>;
  extern __shared__ __align__(128) char memory[];
  const int64_t row = blockIdx.x, target = logits.target[row];
  T* const x = logits.at + row * logits.ld;
  auto* const chunks = reinterpret_cast<Chunk<T, N>*>(x);
  auto* const kept = STAYS ? reinterpret_cast<Chunk<T, N>*>(memory) : chunks;
  const int count = static_cast<int>(ceil_div<int64_t>(logits.words, N)), thread = threadIdx.x;
  if (target == logits.ignore_index) {  // for all threads of the block
    for (int c = thread; c < count; c += BLOCK) store_raw(chunks + c, Raw{});
    if (thread == 0) logits.losses[row] = 0;
    return;
  }

  Statistics mine;
  const auto include = [&](const Raw& raw) {
    const float most = maximum(raw);
    if (most > mine.base + SLACK) {  // as in day 67: rescaled only before an overflow
      mine.sum *= expf(mine.base - most);
      mine.base = most;
    }
    for (const float v : Floats<T, N>(raw).at) mine.sum += exponential<T>(v, mine.base);
  };
  const int whole = static_cast<int>(logits.words / N);
  for (int first = thread; first < whole; first += AHEAD * BLOCK) {
    Raw raw[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (first + k * BLOCK < whole) raw[k] = load_raw(chunks + first + k * BLOCK);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (first + k * BLOCK >= whole) break;
      include(raw[k]);
      if (STAYS) store_raw(kept + first + k * BLOCK, raw[k]);
    }
  }
  if (whole < count && whole % BLOCK == thread) {
    Chunk<T, N> last;  // what is behind the words counts as -inf, whose exponential is 0
    for (int i = 0; i < N; ++i) {
      const int64_t col = int64_t{whole} * N + i;
      last.at[i] = col < logits.words ? x[col] : static_cast<T>(-INFINITY);
    }
    kept[whole] = last;
    include(load_raw(kept + whole));
  }

  // The thread that has the target's chunk takes the logit before the gradient overwrites it.
  const bool valid = target >= 0 && target < logits.words;
  const bool owner = (valid ? target / N : 0) % BLOCK == thread;
  const float hit = owner && valid ? static_cast<float>(x[target]) : 0;
  const Statistics all = block_merge(mine);
  const float scale = valid ? *logits.weight / all.sum : NAN;
#pragma unroll 4
  for (int c = thread; c < count; c += BLOCK) {
    float slopes[N];
    const Floats<T, N> values(load_raw(kept + c));
#pragma unroll
    for (int i = 0; i < N; ++i) slopes[i] = exponential<T>(values.at[i], all.base) * scale;
    store_raw(chunks + c, rounded<T>(slopes));
  }
  if (!owner) return;
  if (valid) x[target] = static_cast<T>(exponential<T>(hit, all.base) * scale - *logits.weight);
  logits.losses[row] = valid ? logf(all.sum * (1 / LIFT<T>)) + (all.base - hit) : NAN;
}

// ---------------------------------------------------------------------------------------------
// The chunks, for all rungs.

using LossAndGradients = std::tuple<Tensor, Tensor, Tensor>;  // loss (), dh, dW

void check_head(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                int64_t together) {
  check(hidden, "hidden").on_gpu().floating().rank(2).contiguous();
  check(weight, "weight").on_gpu().dtype({hidden.scalar_type()}).rank(2).contiguous();
  check(weight, "weight").same_device(hidden, "hidden").size(1, hidden.size(1));
  STD_TORCH_CHECK(weight.numel() > 0 && weight.size(0) <= 2147483647,
                  "weight: expected 1 to 2147483647 rows (words) and at least one column, got ",
                  shape_of(weight));
  check(target, "target").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(target, "target").same_device(hidden, "hidden").size(0, hidden.size(0));
  STD_TORCH_CHECK(together >= 1, "together: expected at least 1, got ", together);
}

// dW = or += the gradient, in its own type; returns the loss and dh. There is one buffer for the
// logits of a chunk, which the gradient overwrites before the next chunk comes.
template <typename T, typename To>
std::tuple<Tensor, Tensor> by_chunks(const Tensor& hidden, const Tensor& weight,
                                     const Tensor& target, int64_t together, int64_t ignore_index,
                                     To* to_weight, bool add) {
  const int64_t rows = hidden.size(0), C = hidden.size(1), words = weight.size(0);
  constexpr int64_t N = 16 / sizeof(T);
  const int64_t ld = ceil_div(words, N) * N;
  const cudaStream_t stream = current_stream(hidden);
  const auto fp32 = [&](std::initializer_list<int64_t> shape) {
    return allocate(hidden, shape, ScalarType::Float);
  };
  Tensor loss = fp32({}), to_hidden = allocate_like(hidden);
  const Tensor share = fp32({}), losses = fp32({rows});
  const Tensor buffer = allocate(hidden, {std::min(together, rows), ld});
  weight_kernel<<<1, SMALL_BLOCK, 0, stream>>>(data<int64_t>(target), rows, ignore_index,
                                               mutable_data<float>(share));
  const int64_t bytes = ld * static_cast<int64_t>(sizeof(T));
  const bool stays = shared_memory_fits(hidden, WARPS * sizeof(Statistics), bytes);
  const auto kernel = stays ? loss_in_place_kernel<T, true> : loss_in_place_kernel<T, false>;
  if (stays) allow_shared(kernel, bytes);
  const Products by{hidden};
  T* const x = mutable_data<T>(buffer);
  for (int64_t first = 0; first < rows; first += together) {
    const int64_t count = std::min(together, rows - first);
    const T* const h = data<T>(hidden) + first * C;
    const Matrix<T> of_weight{data<T>(weight), C, false}, of_hidden{h, C, false};
    const Logits<T> logits{x,
                           ld,
                           data<int64_t>(target) + first,
                           mutable_data<float>(losses) + first,
                           data<float>(share),
                           words,
                           ignore_index};
    multiply(by, of_hidden, Matrix<T>{of_weight.at, C, true}, x, ld, count, words, C, 0);
    kernel<<<grid_size(count, "together"), BLOCK, stays ? bytes : 0, stream>>>(logits);
    // From here on, x is its own gradient.
    multiply(by, Matrix<T>{x, ld, false}, of_weight, mutable_data<T>(to_hidden) + first * C, C,
             count, C, words, 0);
    multiply(by, Matrix<T>{x, ld, true}, of_hidden, to_weight, C, words, C, count,
             add || first > 0 ? 1 : 0);
  }
  mean_kernel<<<1, SMALL_BLOCK, 0, stream>>>(data<float>(losses), rows, data<float>(share),
                                             mutable_data<float>(loss));
  check_launch("by_chunks");
  return {loss, to_hidden};
}

// lm_head v1: all rows are one chunk. cuBLAS keeps the sums of dW in registers and rounds them.
LossAndGradients lm_head_v1_plain(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                                  int64_t together, int64_t ignore_index) {
  check_head(hidden, weight, target, together);
  const DeviceGuard guard(hidden);
  Tensor to_weight = allocate_like(weight);
  if (hidden.size(0) == 0) torch::stable::zero_(to_weight);
  LossAndGradients result;
  dispatch_floating(hidden, [&](auto zero) {
    using T = decltype(zero);
    const auto [loss, to_hidden] =
        by_chunks<T>(hidden, weight, target, std::max<int64_t>(1, hidden.size(0)), ignore_index,
                     mutable_data<T>(to_weight), false);
    result = {loss, to_hidden, to_weight};
  });
  return result;
}

// ---------------------------------------------------------------------------------------------
// lm_head v2 against v1: the logits of `together` rows at a time. The sum over the chunks is fp32,
// since in bf16 small parts would be lost, and is narrowed at the end: when the buffer is free.

constexpr int EACH = 4;  // elements per thread

// sums and out are aligned to 16 bytes.
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    round_kernel(const float* __restrict__ sums, T* __restrict__ out, int64_t elements) {
  const int64_t first = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) * EACH;
  if (first + EACH <= elements) {
    const auto four = *reinterpret_cast<const Chunk<float, EACH>*>(sums + first);
    Chunk<T, EACH> rounded;
#pragma unroll
    for (int i = 0; i < EACH; ++i) rounded.at[i] = static_cast<T>(four.at[i]);
    *reinterpret_cast<Chunk<T, EACH>*>(out + first) = rounded;
  } else {
    for (int64_t i = first; i < elements; ++i) out[i] = static_cast<T>(sums[i]);
  }
}

LossAndGradients lm_head_v2_chunked(const Tensor& hidden, const Tensor& weight,
                                    const Tensor& target, int64_t together, int64_t ignore_index) {
  check_head(hidden, weight, target, together);
  const DeviceGuard guard(hidden);
  const int64_t n = weight.numel();
  Tensor sums = allocate(weight, {weight.size(0), weight.size(1)}, ScalarType::Float);
  if (hidden.size(0) == 0) torch::stable::zero_(sums);
  LossAndGradients result;
  dispatch_floating(hidden, [&](auto zero) {
    using T = decltype(zero);
    const auto [loss, to_hidden] = by_chunks<T>(hidden, weight, target, together, ignore_index,
                                                mutable_data<float>(sums), false);
    Tensor to_weight = sums;
    if constexpr (!std::is_same_v<T, float>) {
      to_weight = allocate_like(weight);
      round_kernel<<<grid_size(ceil_div<int64_t>(n, BLOCK * EACH), "weight"), BLOCK, 0,
                     current_stream(hidden)>>>(data<float>(sums), mutable_data<T>(to_weight), n);
    }
    result = {loss, to_hidden, to_weight};
  });
  check_launch("lm_head_v2_chunked");
  return result;
}

// ---------------------------------------------------------------------------------------------
// tied v2: the head's gradient of W as above, the embedding's as a matrix of its own, and both are
// added to the gradient that the caller owns.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    add_both_kernel(const T* __restrict__ of_head, const T* __restrict__ of_embedding,
                    float* __restrict__ grad, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < elements) grad[i] += static_cast<float>(of_head[i]) + static_cast<float>(of_embedding[i]);
}

using LossAndGradient = std::tuple<Tensor, Tensor>;  // loss (), dh

#define TIED                                                                            \
  const Tensor &grad, const Tensor &hidden, const Tensor &weight, const Tensor &target, \
      const Tensor &tokens, const Tensor &upstream, int64_t together, int64_t ignore_index

void check_tied(TIED) {
  check_head(hidden, weight, target, together);
  check(grad, "grad").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(grad, "grad").same_device(weight, "weight");
  check(grad, "grad").size(0, weight.size(0)).size(1, weight.size(1));
  check_backward(upstream, tokens, weight.size(0));
  check(upstream, "upstream").dtype({weight.scalar_type()}).size(1, weight.size(1));
  check(upstream, "upstream").same_device(weight, "weight");
}

LossAndGradient tied_v2_separate(TIED) {
  check_tied(grad, hidden, weight, target, tokens, upstream, together, ignore_index);
  const DeviceGuard guard(grad);
  const Tensor of_embedding = embedding_grad_v3_frequent_words(upstream, tokens, weight.size(0));
  const auto [loss, to_hidden, of_head] =
      lm_head_v2_chunked(hidden, weight, target, together, ignore_index);
  dispatch_floating(hidden, [&](auto zero) {
    using T = decltype(zero);
    add_both_kernel<<<grid_size(ceil_div<int64_t>(grad.numel(), BLOCK), "grad"), BLOCK, 0,
                      current_stream(grad)>>>(data<T>(of_head), data<T>(of_embedding),
                                              mutable_data<float>(grad), grad.numel());
  });
  check_launch("tied_v2_separate");
  return {loss, to_hidden};
}

// tied v3 against v2: grad is the matrix that cuBLAS adds to, from the first chunk on, and that the
// embedding's backward pass adds to: only the rows of words that occur. No other gradient of W.
LossAndGradient tied_v3_one_gradient(TIED) {
  check_tied(grad, hidden, weight, target, tokens, upstream, together, ignore_index);
  const DeviceGuard guard(grad);
  LossAndGradient result;
  dispatch_floating(hidden, [&](auto zero) {
    result = by_chunks<decltype(zero)>(hidden, weight, target, together, ignore_index,
                                       mutable_data<float>(grad), true);
  });
  add_embedding_backward(grad, tokens, upstream);
  return result;
}

// ---------------------------------------------------------------------------------------------

#define HEAD                                                                               \
  "(Tensor hidden, Tensor weight, Tensor target, int together, int ignore_index=-100) -> " \
  "(Tensor, Tensor, Tensor)"
RUNG(day82, lm_head_v1_plain, HEAD);
RUNG(day82, lm_head_v2_chunked, HEAD);
#define TIED_SCHEMA                                                                \
  "(Tensor(a!) grad, Tensor hidden, Tensor weight, Tensor target, Tensor tokens, " \
  "Tensor upstream, int together, int ignore_index=-100) -> (Tensor, Tensor)"
RUNG(day82, tied_v2_separate, TIED_SCHEMA);
RUNG(day82, tied_v3_one_gradient, TIED_SCHEMA);

// Day 82: an embedding, forward and backward
//
//   y[i] = W[t[i]]      dW[w] = Σ g[i] over the positions i with t[i] = w
//
// W, dW: (words, C); t: (n), int64; y, g: (n, C), in fp32, fp16 or bf16, sums in fp32. A token that
// names no word gives a row of NaN, and its g is left out: a kernel cannot raise an exception.
//
// Bytes: forward n · C read and written; backward n · C read and words · C written. With 16-bit
// elements: 1.07 GB for 65,536 tokens and C = 4096; backward, 8192 tokens, C = 768, 50257 words,
// 90 MB.
//
//   embedding v1 element                one thread per element
//   embedding v2 chunks                 one warp per token, 16 bytes per load, four in flight
//   embedding_grad v1 atomics           zeros in fp32, atomicAdd per element, then narrowed
//   embedding_grad v2 sorted            positions by word; one warp per word writes its row once
//   embedding_grad v3 frequent_words    more than 32 rows are shared by the warps of a block
//
// Run: python run_day.py 82

#include "common/cuda/binding.cuh"   // taught in day 6
#include "common/cuda/chunk.cuh"     // taught in days 35 and 42
#include "common/cuda/tensor.cuh"    // taught in days 6 and 12
#include "days/day82/word_rows.cuh"  // the sums of rows, and the kernel of embedding_grad v3

#include <cmath>
#include <type_traits>

constexpr int AHEAD = 4;  // loads in flight per thread

// ---------------------------------------------------------------------------------------------
// embedding v1: one thread per element. Each one reads the token of its row, and divides for it.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    embedding_v1_element_kernel(const T* __restrict__ weight, const int64_t* __restrict__ tokens,
                                T* __restrict__ out, int64_t elements, int64_t C, int64_t words) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= elements) return;
  const int64_t token = tokens[i / C];
  out[i] = names_word(token, words) ? weight[token * C + i % C] : static_cast<T>(NAN);
}

// Makes the output (n, C), and calls launch(zero, out) if it has elements.
template <typename F>
Tensor embedding(const Tensor& weight, const Tensor& tokens, const char* name, F&& launch) {
  check_tokens(tokens, weight, "weight");
  const DeviceGuard guard(weight);
  Tensor out = allocate(weight, {tokens.size(0), weight.size(1)});
  if (out.numel() == 0) return out;
  dispatch_floating(weight, [&](auto zero) { launch(zero, mutable_data<decltype(zero)>(out)); });
  check_launch(name);
  return out;
}

Tensor embedding_v1_element(const Tensor& weight, const Tensor& tokens) {
  return embedding(weight, tokens, "embedding_v1_element", [&](auto zero, auto* out) {
    using T = decltype(zero);
    const int64_t elements = tokens.size(0) * weight.size(1);
    embedding_v1_element_kernel<<<grid_size(ceil_div<int64_t>(elements, BLOCK), "tokens"), BLOCK, 0,
                                  current_stream(weight)>>>(
        data<T>(weight), data<int64_t>(tokens), out, elements, weight.size(1), weight.size(0));
  });
}

// ---------------------------------------------------------------------------------------------
// embedding v2 against v1: one warp per token, so the token is read once per row. Lane l moves the
// chunks l, l + 32, …, and loads AHEAD of them before it stores the first.

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    embedding_v2_chunks_kernel(const Chunk<T, N>* __restrict__ weight,
                               const int64_t* __restrict__ tokens, Chunk<T, N>* __restrict__ out,
                               int64_t n, int64_t chunks, int64_t words) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (row >= n) return;
  const int64_t token = tokens[row];
  const bool valid = names_word(token, words);
  const auto* from = weight + (valid ? token * chunks : 0);
  auto* to = out + row * chunks;
  RawChunk<Chunk<T, N>> nothing;
  Chunk<T, N> nans;
  for (T& each : nans.at) each = static_cast<T>(NAN);
  memcpy(&nothing, &nans, sizeof nothing);
  for (int64_t first = threadIdx.x % 32; first < chunks; first += 32 * AHEAD) {
    RawChunk<Chunk<T, N>> raw[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int64_t c = first + 32 * k;
      raw[k] = valid && c < chunks ? load_raw(from + c) : nothing;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int64_t c = first + 32 * k;
      if (c < chunks) *reinterpret_cast<RawChunk<Chunk<T, N>>*>(to + c) = raw[k];
    }
  }
}

Tensor embedding_v2_chunks(const Tensor& weight, const Tensor& tokens) {
  return embedding(weight, tokens, "embedding_v2_chunks", [&](auto zero, auto* out) {
    using T = decltype(zero);
    const int64_t n = tokens.size(0), C = weight.size(1);
    dispatch_chunk<T>(C, {&weight}, [&](auto size) {
      using C16 = Chunk<T, size>;
      embedding_v2_chunks_kernel<<<grid_size(ceil_div<int64_t>(n, WARPS), "tokens"), BLOCK, 0,
                                   current_stream(weight)>>>(
          data<C16>(weight), data<int64_t>(tokens), reinterpret_cast<C16*>(out), n, C / size,
          weight.size(0));
    });
  });
}

// ---------------------------------------------------------------------------------------------
// embedding_grad v1: one thread per element of g adds it to a sum in fp32. The order of the
// additions is not the same in each run. For 16-bit elements, a second kernel narrows the sums.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    embedding_grad_v1_atomics_kernel(const T* __restrict__ g, const int64_t* __restrict__ tokens,
                                     float* sums, int64_t elements, int64_t C, int64_t words) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= elements) return;
  const int64_t token = tokens[i / C];
  if (names_word(token, words)) atomicAdd(sums + token * C + i % C, static_cast<float>(g[i]));
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    narrow_kernel(const float* __restrict__ sums, T* __restrict__ out, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < elements) out[i] = static_cast<T>(sums[i]);
}

Tensor embedding_grad_v1_atomics(const Tensor& upstream, const Tensor& tokens, int64_t words) {
  check_backward(upstream, tokens, words);
  const DeviceGuard guard(upstream);
  const int64_t C = upstream.size(1), given = upstream.numel(), elements = words * C;
  const cudaStream_t stream = current_stream(upstream);
  Tensor sums = allocate_zeros(upstream, {words, C}, ScalarType::Float);
  Tensor out = sums;
  if (upstream.scalar_type() != ScalarType::Float) {
    out = allocate(upstream, {words, C});
  }
  if (elements == 0) return out;
  dispatch_floating(upstream, [&](auto zero) {
    using T = decltype(zero);
    if (given > 0) {
      embedding_grad_v1_atomics_kernel<<<grid_size(ceil_div<int64_t>(given, BLOCK), "upstream"),
                                         BLOCK, 0, stream>>>(
          data<T>(upstream), data<int64_t>(tokens), mutable_data<float>(sums), given, C, words);
    }
    if constexpr (!std::is_same_v<T, float>) {
      narrow_kernel<<<grid_size(ceil_div<int64_t>(elements, BLOCK), "words"), BLOCK, 0, stream>>>(
          data<float>(sums), mutable_data<T>(out), elements);
    }
  });
  check_launch("embedding_grad_v1_atomics");
  return out;
}

// ---------------------------------------------------------------------------------------------
// embedding_grad v2 against v1: one warp per word sums the rows of its segment in registers,
// and writes the row of dW once, rounded: zeros for a word that no token names. Nothing is filled
// before, nothing is narrowed after, no atomics.

template <typename T, int N, typename To>
__global__ void __launch_bounds__(BLOCK)
    embedding_grad_v2_sorted_kernel(const Rows<T, N, To> rows) {
  const int64_t word = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (word >= rows.words) return;
  const auto [start, count] = rows.segments[word];
  for (int64_t c = threadIdx.x % 32; c < rows.chunks; c += 32) {
    store<false>(rows, word, c, sum_of(rows, start, start + count, c));
  }
}

template <typename T, int N, typename To>
auto sorted_kernel_for(const Rows<T, N, To>&) {
  return embedding_grad_v2_sorted_kernel<T, N, To>;
}

Tensor embedding_grad_v2_sorted(const Tensor& upstream, const Tensor& tokens, int64_t words) {
  return embedding_backward(upstream, tokens, words, "embedding_grad_v2_sorted",
                            [](const auto& rows) { return sorted_kernel_for(rows); });
}

// ---------------------------------------------------------------------------------------------
// embedding_grad v3 against v2: of the tokens that are timed, one in 16 is the same word. Its
// segment is cut into a piece per warp of the block, and the sums of the pieces are added in order.
// The kernel is in word_rows.cuh.

Tensor embedding_grad_v3_frequent_words(const Tensor& upstream, const Tensor& tokens,
                                        int64_t words) {
  return embedding_backward(
      upstream, tokens, words, "embedding_grad_v3_frequent_words",
      [](const auto& rows) { return frequent_words_kernel_for<false>(rows); });
}

// grad += the gradient of the embedding. grad: (words, C), fp32, of at least one element. For
// embedding_lm_head.cu, which checks the arguments before it changes grad.
void add_embedding_backward(const Tensor& grad, const Tensor& tokens, const Tensor& upstream) {
  if (upstream.numel() == 0) return;
  sum_rows<float>(upstream, tokens, grad,
                  [](const auto& rows) { return frequent_words_kernel_for<true>(rows); });
  check_launch("add_embedding_backward");
}

// ---------------------------------------------------------------------------------------------

RUNG(day82, embedding_v1_element, "(Tensor weight, Tensor tokens) -> Tensor");
RUNG(day82, embedding_v2_chunks, "(Tensor weight, Tensor tokens) -> Tensor");
#define BACKWARD "(Tensor upstream, Tensor tokens, int words) -> Tensor"
RUNG(day82, embedding_grad_v1_atomics, BACKWARD);
RUNG(day82, embedding_grad_v2_sorted, BACKWARD);
RUNG(day82, embedding_grad_v3_frequent_words, BACKWARD);

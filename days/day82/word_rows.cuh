// Day 82: dW of an embedding from the sorted positions: sums of rows, and v3's kernel
//
// Also for day 99, which improves on that kernel.
#pragma once

#include "common/cuda/chunk.cuh"   // taught in days 35 and 42
#include "common/cuda/tensor.cuh"  // taught in days 6 and 12
#include "days/day82/sort_by_word.cuh"

#include <type_traits>

constexpr int BLOCK = 512;
constexpr int WARPS = BLOCK / 32;

// Checks the tokens, and what is indexed beside them.
inline void check_tokens(const Tensor& tokens, const Tensor& of, const char* name) {
  check(of, name).on_gpu().floating().rank(2).contiguous();
  check(tokens, "tokens").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(tokens, "tokens").same_device(of, name);
}

inline void check_backward(const Tensor& upstream, const Tensor& tokens, int64_t words) {
  check_tokens(tokens, upstream, "upstream");
  check(upstream, "upstream").size(0, tokens.size(0));
  STD_TORCH_CHECK(words >= 0 && words <= 2147483647, "words: expected 0 to 2147483647, got ",
                  words);
  STD_TORCH_CHECK(tokens.size(0) <= 2147483647, "tokens: expected at most 2147483647, got ",
                  tokens.size(0));
}

// What the kernels work on. To: type of dW.
template <typename T, int N, typename To>
struct Rows {
  const Chunk<T, N>* g;  // (n, chunks)
  To* out;               // (words, chunks · N)
  const int* positions;
  const Segment* segments;
  int64_t words, chunks;
};

// Chunk c of the rows [begin, end) of `positions`, summed in this order.
template <typename T, int N, typename To>
__device__ Chunk<float, N> sum_of(const Rows<T, N, To>& rows, int begin, int end, int64_t c) {
  Chunk<float, N> sum{};
#pragma unroll 4
  for (int k = begin; k < end; ++k) {
    const auto row = widened(load_raw(rows.g + rows.positions[k] * rows.chunks + c));
#pragma unroll
    for (int i = 0; i < N; ++i) sum.at[i] += row.at[i];
  }
  return sum;
}

// Stores chunk c of a word's sums, or adds it to what is there.
template <bool ADD, typename T, int N, typename To>
__device__ void store(const Rows<T, N, To>& rows, int64_t word, int64_t c,
                      const Chunk<float, N>& sum) {
  constexpr int PART = N * sizeof(To) > 16 ? 16 / sizeof(To) : N;  // at most 16 bytes per access
  auto* to = reinterpret_cast<Chunk<To, PART>*>(rows.out + (word * rows.chunks + c) * N);
#pragma unroll
  for (int p = 0; p < N / PART; ++p) {
    Chunk<To, PART> part{};
    if (ADD) part = to[p];
#pragma unroll
    for (int i = 0; i < PART; ++i) {
      part.at[i] = static_cast<To>(static_cast<float>(part.at[i]) + sum.at[p * PART + i]);
    }
    to[p] = part;
  }
}

// ---------------------------------------------------------------------------------------------
// v3's kernel: see embedding.cu.

constexpr int FREQUENT = 32;  // rows that one warp sums alone

// ADD: dW is added to, and words without a token are left alone: for weights that are tied.
template <bool ADD, typename T, int N, typename To>
__global__ void __launch_bounds__(BLOCK)
    embedding_grad_v3_frequent_words_kernel(const Rows<T, N, To> rows) {
  __shared__ Segment segments[WARPS];
  __shared__ float pieces[WARPS][N][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first_word = int64_t{blockIdx.x} * WARPS, word = first_word + warp;
  const Segment mine = word < rows.words ? rows.segments[word] : Segment{0, 0};
  if (lane == 0) segments[warp] = mine;
  if (word < rows.words && mine.count <= FREQUENT && !(ADD && mine.count == 0)) {
    for (int64_t c = lane; c < rows.chunks; c += 32) {
      store<ADD>(rows, word, c, sum_of(rows, mine.start, mine.start + mine.count, c));
    }
  }
  __syncthreads();  // the segments of all warps are written before they are read
  for (int w = 0; w < WARPS; ++w) {
    const Segment of = segments[w];
    if (of.count <= FREQUENT) continue;  // for all threads of the block
    const int length = ceil_div(of.count, WARPS), end = of.start + of.count;
    const int begin = min(of.start + warp * length, end);
    for (int64_t c = lane; c - lane < rows.chunks; c += 32) {
      Chunk<float, N> sum{};
      if (c < rows.chunks) sum = sum_of(rows, begin, min(begin + length, end), c);
#pragma unroll
      for (int i = 0; i < N; ++i) pieces[warp][i][lane] = sum.at[i];
      __syncthreads();  // the pieces of all warps are written before they are added
      if (warp == 0 && c < rows.chunks) {
        for (int other = 1; other < WARPS; ++other) {
#pragma unroll
          for (int i = 0; i < N; ++i) sum.at[i] += pieces[other][i][lane];
        }
        store<ADD>(rows, first_word + w, c, sum);
      }
      __syncthreads();  // warp 0 has read the pieces before they are overwritten
    }
  }
}

template <bool ADD, typename T, int N, typename To>
auto frequent_words_kernel_for(const Rows<T, N, To>&) {
  return embedding_grad_v3_frequent_words_kernel<ADD, T, N, To>;
}

// ---------------------------------------------------------------------------------------------

// Sorts, and launches the kernel that `kernel_for(rows)` returns on the sorted rows. out: (words,
// C). Nothing here may be empty.
template <typename To, typename F>
void sum_rows(const Tensor& upstream, const Tensor& tokens, const Tensor& out, F&& kernel_for) {
  const int64_t words = out.size(0), C = upstream.size(1);
  const Sorted sorted = sort_by_word(tokens, words);
  dispatch_floating(upstream, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(C, {&upstream, &out}, [&](auto size) {
      using Out = std::conditional_t<std::is_void_v<To>, T, To>;
      const Rows<T, size, Out> rows{data<Chunk<T, size>>(upstream),
                                    mutable_data<Out>(out),
                                    data<int>(sorted.positions),
                                    data<Segment>(sorted.segments),
                                    words,
                                    C / size};
      kernel_for(rows)<<<grid_size(ceil_div<int64_t>(words, WARPS), "words"), BLOCK, 0,
                         current_stream(upstream)>>>(rows);
    });
  });
}

template <typename F>
Tensor embedding_backward(const Tensor& upstream, const Tensor& tokens, int64_t words,
                          const char* name, F&& kernel_for) {
  check_backward(upstream, tokens, words);
  const DeviceGuard guard(upstream);
  if (upstream.numel() == 0 || words == 0) {
    return allocate_zeros(upstream, {words, upstream.size(1)});
  }
  const Tensor out = allocate(upstream, {words, upstream.size(1)});
  sum_rows<void>(upstream, tokens, out, kernel_for);
  check_launch(name);
  return out;
}

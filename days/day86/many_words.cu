// Day 86, fifth file: what the words of GPT-2 need, of which a row of logits fits into no registers
//
//   the loss     one block per row of logits reads it twice, and writes the gradient over it: day
//   67's
//                v1. Probabilities are never stored.
//   the table    the gradient's rows are summed by word, in the order of the positions, on day 82's
//                sorted tokens; the product with rows of 0 and 1, which few words take, would have
//                as many operations as the logits

#include "days/day67/row.cuh"        // taught in day 67
#include "days/day82/word_rows.cuh"  // taught in day 82
#include "days/day86/plan.cuh"

#include <cstdint>

constexpr int ROW_BLOCK = 512;

__global__ void __launch_bounds__(ROW_BLOCK)
    cross_entropy_of_many_kernel(const Job<Half, EIGHT> job, const int64_t* __restrict__ tokens,
                                 int64_t S) {
  __shared__ Statistics shared[ROW_BLOCK / 32];
  const int64_t row = blockIdx.x, start = row * job.chunks;
  const int64_t target = tokens[row / S * (S + 1) + row % S + 1];
  Statistics mine;
#pragma unroll 4
  for (int64_t c = threadIdx.x; c < job.chunks; c += ROW_BLOCK) {
    include<false>(mine, load_raw(job.x + start + c));
  }
  const Statistics all = block_merge<false>(mine, shared);
  const Row<false> of(job, all, target, 1 / static_cast<float>(job.rows));
  // The thread that has the target's chunk reads the logit before it overwrites the chunk.
  const bool has_target = chunk_of<EIGHT>(target, job.chunks) % ROW_BLOCK == threadIdx.x;
  const auto* const x = reinterpret_cast<const Half*>(job.x + start);
  const float at_target = has_target ? static_cast<float>(x[of.valid ? target : 0]) : 0;
#pragma unroll 4
  for (int64_t c = threadIdx.x; c < job.chunks; c += ROW_BLOCK) {
    store_raw(job.dx + start + c, of.gradients(load_raw(job.x + start + c), all.base));
  }
  if (has_target) of.finish(job, all, row, target, at_target);
}

void cross_entropy_of_many(const Tensor& on, const Shape& s, const int64_t* tokens, Half* logits,
                           float* losses) {
  auto* const x = reinterpret_cast<Chunk<Half, EIGHT>*>(logits);
  const Job<Half, EIGHT> job{x,         x, nullptr, losses, nullptr, s.rows(), s.words / EIGHT,
                             INT64_MIN, 0};
  cross_entropy_of_many_kernel<<<grid_size(s.rows(), "tokens"), ROW_BLOCK, 0, current_stream(on)>>>(
      job, tokens, s.S);
  check_launch("cross_entropy_of_many");
}

void embedding_gradient(const Tensor& on, const Shape& s, const int64_t* tokens, int64_t length,
                        const Half* g, float* grad) {
  Tensor inputs = allocate(on, {s.rows()}, ScalarType::Long);  // without the last of each sequence
  check_cuda(cudaMemcpy2DAsync(mutable_data<int64_t>(inputs), s.S * sizeof(int64_t), tokens,
                               length * sizeof(int64_t), s.S * sizeof(int64_t), s.B,
                               cudaMemcpyDeviceToDevice, current_stream(on)),
             "cudaMemcpy2DAsync");
  const Sorted sorted = sort_by_word(inputs, s.words);
  const Rows<Half, EIGHT, float> rows{reinterpret_cast<const Chunk<Half, EIGHT>*>(g),
                                      grad,
                                      data<int>(sorted.positions),
                                      data<Segment>(sorted.segments),
                                      s.words,
                                      s.C() / EIGHT};
  embedding_grad_v3_frequent_words_kernel<true>
      <<<grid_size(ceil_div<int64_t>(s.words, WARPS), "words"), BLOCK, 0, current_stream(on)>>>(
          rows);
  check_launch("embedding_gradient");
}

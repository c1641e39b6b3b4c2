// Day 5, further: softmax of few long rows, each shared by many blocks
//
//   pairs[r, p] = the maximum of piece p of row r, and the sum of its exp(x - max)
//   y[r, c]     = exp(x[r, c] - m[r]) / sum of row r, both merged from its pairs
//
// x, y: (rows, cols); pairs: (rows, pieces, 2) in fp32. Bytes: x twice, y once; the pairs are few.
// Two kernels, because __syncthreads() joins the threads of one block only: the second begins when
// the first has ended.
//
// Run: python run_day.py 5 --further

#include "common/cuda/binding.cuh"  // explained in day 6
#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 256;         // threads
constexpr int PIECE = 32 * BLOCK;  // columns per block: 32 per thread

// The main line's Partial and merge.
struct Pair {
  float max, sum;
};

__device__ Pair merged(Pair a, Pair b) {
  const float shrink = a.max == b.max ? 1.0f : expf(-fabsf(a.max - b.max));
  return b.max > a.max ? Pair{b.max, a.sum * shrink + b.sum} : Pair{a.max, a.sum + b.sum * shrink};
}

// Returns the merged pairs of all threads to every thread, which must all call it.
__device__ Pair merge_block(Pair mine) {
  __shared__ Pair pairs[BLOCK];
  pairs[threadIdx.x] = mine;
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    __syncthreads();  // the readers of this level wait for the writers of the previous one
    if (threadIdx.x < half) {
      pairs[threadIdx.x] = merged(pairs[threadIdx.x], pairs[threadIdx.x + half]);
    }
  }
  __syncthreads();  // all threads wait for thread 0, which writes the result
  return pairs[0];
}

// Block b has piece b % pieces of row b / pieces.
template <typename T>
__global__ void softmax_pieces_kernel(const T* __restrict__ x, Pair* __restrict__ pairs,
                                      int64_t cols, int64_t pieces) {
  const T* x_row = x + blockIdx.x / pieces * cols;
  const int64_t begin = blockIdx.x % pieces * PIECE, end = min(begin + PIECE, cols);
  Pair mine{-INFINITY, 0};
  for (int64_t c = begin + threadIdx.x; c < end; c += BLOCK) {
    mine = merged(mine, {static_cast<float>(x_row[c]), 1.0f});
  }
  mine = merge_block(mine);
  if (threadIdx.x == 0) pairs[blockIdx.x] = mine;
}

template <typename T>
__global__ void softmax_long_rows_kernel(const T* __restrict__ x, const Pair* __restrict__ pairs,
                                         T* __restrict__ y, int64_t cols, int64_t pieces) {
  const int64_t row = blockIdx.x / pieces;
  Pair all{-INFINITY, 0};  // every block merges all pairs of its row
  for (int64_t p = threadIdx.x; p < pieces; p += BLOCK) {
    all = merged(all, pairs[row * pieces + p]);
  }
  all = merge_block(all);
  const float scale = all.max == INFINITY ? NAN : 1.0f / all.sum;
  const int64_t begin = blockIdx.x % pieces * PIECE, end = min(begin + PIECE, cols);
  for (int64_t c = begin + threadIdx.x; c < end; c += BLOCK) {
    const float value = static_cast<float>(x[row * cols + c]);
    y[row * cols + c] = static_cast<T>(expf(value - all.max) * scale);
  }
}

Tensor softmax_long_rows(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  return output_like(x, "softmax_long_rows", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const int64_t cols = x.size(1), pieces = ceil_div<int64_t>(cols, PIECE);
    const unsigned blocks = grid_size(x.size(0) * pieces, "x");
    const Tensor pairs = allocate(x, {int64_t{blocks}, 2}, ScalarType::Float);
    softmax_pieces_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<Pair>(pairs), cols, pieces);
    check_launch("softmax_long_rows, pieces");
    softmax_long_rows_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(data<T>(x), data<Pair>(pairs),
                                                                      y, cols, pieces);
  });
}

RUNG(day05, softmax_long_rows, "(Tensor x) -> Tensor");

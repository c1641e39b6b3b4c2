// Day 15: attention by its formula, with the S×S matrix in memory
//
//   v1 three_kernels    product, softmax, product: s has S² elements per head
//
// The formula and the other rungs are in fa2_forward.cu.
//
// Run: python run_day.py 15

#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "days/day15/attention_by.cuh"

// ---------------------------------------------------------------------------------------------
// v1: the formula, step by step. The two products are those of day 8, with 32 × 32 tiles.

constexpr int TILE = 32;

// Element (m, n) of A · B. A: (M, K), row-major. B: (K, N), row-major; with B_TRANSPOSED it is
// stored as (N, K). Blocks have 32 × 32 threads, and every thread must call it, even outside the
// result.
template <bool B_TRANSPOSED, typename TA, typename TB>
__device__ float tiled_product(const TA* a, const TB* b, int64_t m0, int64_t n0, int64_t M,
                               int64_t N, int64_t K) {
  __shared__ float a_tile[TILE][TILE];      // (m, k)
  __shared__ float b_tile[TILE][TILE + 1];  // (k, n); 33 words: B_TRANSPOSED stores columns
  const int tx = threadIdx.x, ty = threadIdx.y;
  float sum = 0;
  for (int64_t k0 = 0; k0 < K; k0 += TILE) {
    const bool a_inside = m0 + ty < M && k0 + tx < K;
    a_tile[ty][tx] = a_inside ? static_cast<float>(a[(m0 + ty) * K + k0 + tx]) : 0.0f;
    if (B_TRANSPOSED) {  // consecutive threads along k, which is contiguous in memory
      const bool inside = n0 + ty < N && k0 + tx < K;
      b_tile[tx][ty] = inside ? static_cast<float>(b[(n0 + ty) * K + k0 + tx]) : 0.0f;
    } else {
      const bool inside = k0 + ty < K && n0 + tx < N;
      b_tile[ty][tx] = inside ? static_cast<float>(b[(k0 + ty) * N + n0 + tx]) : 0.0f;
    }
    __syncthreads();  // both tiles are complete before they are read
    for (int k = 0; k < TILE; ++k) sum += a_tile[ty][k] * b_tile[k][tx];
    __syncthreads();  // all threads have read the tiles before they are overwritten
  }
  return sum;
}

// s (N, S, S) = q · kᵀ · scale, and -inf where the mask hides a key.
template <typename T>
__global__ void scores_kernel(const T* __restrict__ q, const T* __restrict__ k,
                              float* __restrict__ s, Sizes n, int64_t tiles) {
  const int64_t head = blockIdx.x / (tiles * tiles), tile = blockIdx.x % (tiles * tiles);
  const int64_t i0 = tile / tiles * TILE, j0 = tile % tiles * TILE;
  const int64_t at = head * n.S * n.D;
  const float sum = tiled_product<true>(q + at, k + at, i0, j0, n.S, n.S, n.D);
  const int64_t i = i0 + threadIdx.y, j = j0 + threadIdx.x;
  if (i < n.S && j < n.S) {
    s[(head * n.S + i) * n.S + j] = n.causal && j > i ? -INFINITY : sum * n.scale;
  }
}

constexpr int ROW_BLOCK = 256;

// One block per row of s, in place.
__global__ void softmax_rows_kernel(float* __restrict__ s, float* __restrict__ lse, int64_t S) {
  __shared__ float partial[ROW_BLOCK];
  float* row = s + blockIdx.x * S;
  float max = -INFINITY;
  for (int64_t j = threadIdx.x; j < S; j += ROW_BLOCK) max = fmaxf(max, row[j]);
  partial[threadIdx.x] = max;
  max = tree_reduce(partial, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int64_t j = threadIdx.x; j < S; j += ROW_BLOCK) sum += row[j] = expf(row[j] - max);
  partial[threadIdx.x] = sum;
  sum = tree_reduce(partial, [](float a, float b) { return a + b; });
  for (int64_t j = threadIdx.x; j < S; j += ROW_BLOCK) row[j] /= sum;
  if (threadIdx.x == 0) lse[blockIdx.x] = max + logf(sum);
}

template <typename T>
__global__ void output_kernel(const float* __restrict__ p, const T* __restrict__ v,
                              T* __restrict__ o, Sizes n, int64_t tiles, int64_t d_tiles) {
  const int64_t head = blockIdx.x / (tiles * d_tiles), tile = blockIdx.x % (tiles * d_tiles);
  const int64_t i0 = tile / d_tiles * TILE, d0 = tile % d_tiles * TILE;
  const int64_t at = head * n.S * n.D;
  const float sum = tiled_product<false>(p + head * n.S * n.S, v + at, i0, d0, n.S, n.D, n.S);
  const int64_t i = i0 + threadIdx.y, d = d0 + threadIdx.x;
  if (i < n.S && d < n.D) o[at + i * n.D + d] = static_cast<T>(sum);
}

Attended attention_v1_three_kernels(const Tensor& q, const Tensor& k, const Tensor& v,
                                    bool causal) {
  const char* name = "attention_v1_three_kernels";
  return attention_by(q, k, v, causal, name, [&](auto zero, Sizes n, auto* o, float* lse) {
    using T = decltype(zero);
    const Tensor scores = allocate(q, {n.N, n.S, n.S}, ScalarType::Float);
    float* s = mutable_data<float>(scores);
    const int64_t tiles = ceil_div<int64_t>(n.S, TILE), d_tiles = ceil_div<int64_t>(n.D, TILE);
    const dim3 block(TILE, TILE);
    const cudaStream_t stream = current_stream(q);
    scores_kernel<T><<<grid_size(n.N * tiles * tiles, "q"), block, 0, stream>>>(
        data<T>(q), data<T>(k), s, n, tiles);
    softmax_rows_kernel<<<grid_size(n.N * n.S, "q"), ROW_BLOCK, 0, stream>>>(s, lse, n.S);
    output_kernel<T><<<grid_size(n.N * tiles * d_tiles, "q"), block, 0, stream>>>(
        s, data<T>(v), o, n, tiles, d_tiles);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day15, attention_v1_three_kernels, ATTENTION);

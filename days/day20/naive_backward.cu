// Day 20: the backward pass of attention by its formulas, with p and gs whole in memory
//
//   δ          one number per row of q, which all rungs need
//   v1 naive   five products by day 8's tiles
//
// The formulas and the other rungs are in fa2_backward.cu.
//
// Run: python run_day.py 20

#include "common/cuda/binding.cuh"
#include "days/day20/backward_inputs.cuh"

// ---------------------------------------------------------------------------------------------
// δ, which all rungs need. The gradient of a softmax subtracts from each gp their mean weighted by
// p. That mean is sum_j p · gp = sum_d go · o, which needs no p. lse's own gradient is p, so glse
// is added. It is not included in δ: with few keys gp - δ may cancel, and glse is what remains.

constexpr int WARPS = 8;  // per block; each has one row

template <typename T>
__global__ void attention_delta_kernel(const T* __restrict__ go, const T* __restrict__ o,
                                       float* __restrict__ delta, int64_t rows, int D) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;  // the whole warp
  float sum = 0;
  for (int d = lane; d < D; d += 32) {
    sum += static_cast<float>(go[row * D + d]) * static_cast<float>(o[row * D + d]);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  }
  if (lane == 0) delta[row] = sum;
}

Tensor make_delta(const Given& given, const Sizes& n) {
  const Tensor delta = allocate_like(given.lse);
  const unsigned grid = grid_size(ceil_div<int64_t>(n.N * n.S, WARPS), "q");
  dispatch_floating(given.q, [&](auto zero) {
    using T = decltype(zero);
    attention_delta_kernel<T><<<grid, WARPS * 32, 0, current_stream(given.q)>>>(
        data<T>(given.go), data<T>(given.o), mutable_data<float>(delta), n.N * n.S, n.D);
  });
  return delta;
}

// ---------------------------------------------------------------------------------------------
// v1: the formulas, with p and gs in memory. The products are those of day 8.

// p (N, S, S), from q, k and lse.
template <typename T>
__global__ void attention_probabilities_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                               const float* __restrict__ lse, float* __restrict__ p,
                                               Sizes n, int64_t tiles) {
  const int64_t head = blockIdx.x / (tiles * tiles), tile = blockIdx.x % (tiles * tiles);
  const int64_t i0 = tile / tiles * TILE, j0 = tile % tiles * TILE, at = head * n.S * n.D;
  const float s = tiled_product<false, true>(q + at, k + at, i0, j0, n.S, n.S, n.D) * n.scale;
  const int64_t i = i0 + threadIdx.y, j = j0 + threadIdx.x;
  if (i < n.S && j < n.S) {
    const int64_t row = head * n.S + i;
    p[row * n.S + j] = n.causal && j > i ? 0.0f : expf(s - lse[row]);
  }
}

// gs (N, S, S), from p, go, v, δ and glse.
template <typename T>
__global__ void attention_slopes_kernel(const float* __restrict__ p, const T* __restrict__ go,
                                        const T* __restrict__ v, RowNumbers rows,
                                        float* __restrict__ gs, Sizes n, int64_t tiles) {
  const int64_t head = blockIdx.x / (tiles * tiles), tile = blockIdx.x % (tiles * tiles);
  const int64_t i0 = tile / tiles * TILE, j0 = tile % tiles * TILE, at = head * n.S * n.D;
  const float gp = tiled_product<false, true>(go + at, v + at, i0, j0, n.S, n.S, n.D);
  const int64_t i = i0 + threadIdx.y, j = j0 + threadIdx.x;
  if (i < n.S && j < n.S) {
    const int64_t row = head * n.S + i;
    gs[row * n.S + j] = p[row * n.S + j] * (gp - rows.delta[row] + rows.glse[row]) * n.scale;
  }
}

// out = a · b, or aᵀ · b if TRANSPOSED; a: (N, S, S), b and out: (N, S, D).
template <bool TRANSPOSED, typename T>
__global__ void attention_product_kernel(const float* __restrict__ a, const T* __restrict__ b,
                                         T* __restrict__ out, Sizes n, int64_t tiles,
                                         int64_t d_tiles) {
  const int64_t head = blockIdx.x / (tiles * d_tiles), tile = blockIdx.x % (tiles * d_tiles);
  const int64_t i0 = tile / d_tiles * TILE, d0 = tile % d_tiles * TILE, at = head * n.S * n.D;
  const float sum = tiled_product<TRANSPOSED, false>(a + head * n.S * n.S, b + at, i0, d0, n.S,
                                                     static_cast<int64_t>(n.D), n.S);
  const int64_t i = i0 + threadIdx.y, d = d0 + threadIdx.x;
  if (i < n.S && d < n.D) out[at + i * n.D + d] = static_cast<T>(sum);
}

void launch_naive(const Given& given, const Sizes& n, const Tensor& delta, const Gradients& made) {
  const auto& [gq, gk, gv] = made;
  const Tensor p = allocate(gq, {n.N, n.S, n.S}, ScalarType::Float);
  const Tensor gs = allocate_like(p);
  const int64_t tiles = ceil_div<int64_t>(n.S, TILE), d_tiles = ceil_div<int64_t>(n.D, TILE);
  const unsigned square = grid_size(n.N * tiles * tiles, "q");
  const unsigned flat = grid_size(n.N * tiles * d_tiles, "q");
  const dim3 block(TILE, TILE);
  const cudaStream_t stream = current_stream(gq);
  dispatch_floating(gq, [&](auto zero) {
    using T = decltype(zero);
    const T *go = data<T>(given.go), *q = data<T>(given.q), *k = data<T>(given.k);
    auto* p_at = mutable_data<float>(p);
    auto* gs_at = mutable_data<float>(gs);
    attention_probabilities_kernel<T>
        <<<square, block, 0, stream>>>(q, k, data<float>(given.lse), p_at, n, tiles);
    attention_slopes_kernel<T><<<square, block, 0, stream>>>(
        p_at, go, data<T>(given.v), row_numbers(given, delta), gs_at, n, tiles);
    attention_product_kernel<true, T>
        <<<flat, block, 0, stream>>>(p_at, go, mutable_data<T>(gv), n, tiles, d_tiles);
    attention_product_kernel<true, T>
        <<<flat, block, 0, stream>>>(gs_at, q, mutable_data<T>(gk), n, tiles, d_tiles);
    attention_product_kernel<false, T>
        <<<flat, block, 0, stream>>>(gs_at, k, mutable_data<T>(gq), n, tiles, d_tiles);
  });
}

Gradients attention_backward_v1_naive(const Tensor& go, const Tensor& glse, const Tensor& q,
                                      const Tensor& k, const Tensor& v, const Tensor& o,
                                      const Tensor& lse, bool causal) {
  return backward({go, glse, q, k, v, o, lse, causal}, "attention_backward_v1_naive", launch_naive);
}

// ---------------------------------------------------------------------------------------------

RUNG(day20, attention_backward_v1_naive, INPUTS);

// Day 20: the backward pass of attention without its S×S matrices, on CUDA cores
//
//   forward (day 15)   s = q · kᵀ / sqrt(D)    p = exp(s - lse)    o = p · v
//   backward           gv = pᵀ · go    gp = go · vᵀ    δ = sum_d go · o
//                      gs = p · (gp - δ + glse) / sqrt(D)    gq = gs · k    gk = gsᵀ · q
//   q, k, v, o, go and gq, gk, gv: (B, H, S, D), D up to 128; lse, glse, δ: (B, H, S)
//
// Operations: five products, 10 · B · H · S² · D; for 1×16×4096×64 that is 172 GFLOP. Bytes: 134 MB
// in fp32 for all inputs and outputs; p and gs would be 1.1 GB each.
//
//   v1 naive       p and gs whole in memory, five products by day 8's tiles (naive_backward.cu)
//   v2 two_walks   tiles; a pass over rows for gk and gv, one over keys for gq: seven products
//   v3 one_walk    one pass; gq is accumulated in memory with atomicAdd: five products
//
// Run: python run_day.py 20

#include "common/cuda/attention.cuh"  // taught in day 15
#include "common/cuda/binding.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day20/backward_inputs.cuh"

// ---------------------------------------------------------------------------------------------
// What v2 and v3 do with one tile: 64 rows of q and 64 keys, by 16 × 16 threads with 4 × 4 elements
// of p each, as in the forward pass.

template <int DP>
struct alignas(16) Tiles {
  RowTile<DP> q, go;
  KeyTile<DP> k, v;
  ScoreTile s;  // p, then gs
  float lse[BM], delta[BM], glse[BM];
};

// Loads lse, δ and glse of rows [first, first + 64), 64 threads for each kind. Rows beyond the end
// become 0 and are never used.
template <int DP>
__device__ void load_rows(Tiles<DP>& tile, const RowNumbers& from, int64_t first, int64_t rows) {
  const int kind = threadIdx.x / BM, i = threadIdx.x % BM;
  const bool inside = i < rows;
  if (kind == 0) tile.lse[i] = inside ? from.lse[first + i] * LOG2_E : 0.0f;
  if (kind == 1) tile.delta[i] = inside ? from.delta[first + i] : 0.0f;
  if (kind == 2) tile.glse[i] = inside ? from.glse[first + i] : 0.0f;
}

// acc[r][c] += sum_i s[i][4 ty + r] · b[i][column_of(c)]: sᵀ · b, over rows.
template <int WIDTH, int COLUMNS>
__device__ void multiply_transposed(const ScoreTile& s, const float (&b)[BM][WIDTH],
                                    float (&acc)[TN][COLUMNS]) {
  const int ty = threadIdx.x / SIDE;
#pragma unroll 4
  for (int i = 0; i < BM; ++i) {
    const float4 x = *reinterpret_cast<const float4*>(&s[i][TN * ty]);
#pragma unroll
    for (int c = 0; c < COLUMNS; c += 4) {
      const float4 y = *reinterpret_cast<const float4*>(&b[i][column_of(c)]);
      const float of_x[TN] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int r = 0; r < TN; ++r) {
        acc[r][c + 0] += of_x[r] * y.x;
        acc[r][c + 1] += of_x[r] * y.y;
        acc[r][c + 2] += of_x[r] * y.z;
        acc[r][c + 3] += of_x[r] * y.w;
      }
    }
  }
}

// Recomputes this thread's 4 × 4 elements of p from q, k and lse.
template <int DP>
__device__ void recompute_p(const Tiles<DP>& tile, const Window& window, float scale,
                            float (&p)[TM][TN]) {
  const int ty = threadIdx.x / SIDE;
  multiply_rows(tile.q, tile.k, p);
#pragma unroll
  for (int r = 0; r < TM; ++r) {
#pragma unroll
    for (float& x : p[r]) x = exp2f(x * (scale * LOG2_E) - tile.lse[ty + SIDE * r]);
  }
  for_hidden(window, [&](int r, int c) { p[r][c] = 0; });
}

// Replaces p by gs = p · (go · vᵀ - δ + glse) · scale. Hidden elements are set to 0 again, since an
// infinite v would make them NaN.
template <int DP>
__device__ void turn_into_gs(const Tiles<DP>& tile, const Window& window, float scale,
                             float (&p)[TM][TN]) {
  const int ty = threadIdx.x / SIDE;
  float gp[TM][TN];
  multiply_rows(tile.go, tile.v, gp);
#pragma unroll
  for (int r = 0; r < TM; ++r) {
    const float delta = tile.delta[ty + SIDE * r], glse = tile.glse[ty + SIDE * r];
#pragma unroll
    for (int c = 0; c < TN; ++c) p[r][c] *= (gp[r][c] - delta + glse) * scale;
  }
  for_hidden(window, [&](int r, int c) { p[r][c] = 0; });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: p and gs exist only as tiles. A block keeps 64 keys and loops over the rows, while
// gk and gv accumulate in registers. For gq a second kernel keeps 64 rows, loops over the keys and
// recomputes p and gs: 4 + 3 products instead of 5, but blocks share no output.
//
// v3 against v2: the first loop has gs already, so it also multiplies it by k. The product is one
// tile's part of gq; the parts of different blocks are added in memory (ADD_GQ).

template <typename T, int DP, bool ADD_GQ>
__global__ void __launch_bounds__(THREADS, DP <= 64 ? 2 : 1)
    attention_keys_stay_kernel(const T* __restrict__ go, const T* __restrict__ q,
                               const T* __restrict__ k, const T* __restrict__ v, RowNumbers numbers,
                               float* __restrict__ gq_sum, T* __restrict__ gk, T* __restrict__ gv,
                               Sizes n, bool wide) {
  extern __shared__ __align__(128) float4 shared[];
  auto& tile = *reinterpret_cast<Tiles<DP>*>(shared);
  constexpr int COLUMNS = DP / SIDE;
  const int ty = threadIdx.x / SIDE;
  // The first keys first: with a causal mask most rows see them.
  const int64_t head = blockIdx.x % n.N, j0 = blockIdx.x / n.N * BN, at = head * n.S * n.D;

  float gk_acc[TN][COLUMNS] = {}, gv_acc[TN][COLUMNS] = {};  // keys 4 ty + r
  load_tile(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
  load_tile(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);

  for (int64_t i0 = n.causal ? j0 / BM * BM : 0; i0 < n.S; i0 += BM) {
    __syncthreads();  // all threads have read q, go and gs of the previous rows
    load_tile(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);
    load_tile(tile.go, go + at + i0 * n.D, n.S - i0, n.D, wide);
    load_rows(tile, numbers, head * n.S + i0, n.S - i0);
    __syncthreads();  // all tiles are complete before they are read

    const Window window(i0, j0, n);
    float p[TM][TN];
    recompute_p(tile, window, n.scale, p);
    store_scores(tile.s, p);
    __syncthreads();  // p is complete: a thread reads columns that other threads computed
    multiply_transposed(tile.s, tile.go, gv_acc);
    turn_into_gs(tile, window, n.scale, p);
    __syncthreads();  // all threads have read p before gs overwrites it
    store_scores(tile.s, p);
    __syncthreads();  // gs is complete before it is read
    multiply_transposed(tile.s, tile.q, gk_acc);

    if constexpr (ADD_GQ) {
      float part[TM][COLUMNS] = {};
      multiply_keys(tile.s, tile.k, part);
#pragma unroll
      for (int r = 0; r < TM; ++r) {
        const int64_t i = i0 + ty + SIDE * r;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const int d = column_of(c);
          if (i < n.S && d < n.D) atomicAdd(&gq_sum[at + i * n.D + d], part[r][c]);
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < TN; ++r) {
    const int64_t j = j0 + TN * ty + r;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int d = column_of(c);
      if (j >= n.S || d >= n.D) continue;
      gk[at + j * n.D + d] = static_cast<T>(gk_acc[r][c]);
      gv[at + j * n.D + d] = static_cast<T>(gv_acc[r][c]);
    }
  }
}

template <typename T, int DP>
__global__ void __launch_bounds__(THREADS, DP <= 64 ? 2 : 1)
    attention_rows_stay_kernel(const T* __restrict__ go, const T* __restrict__ q,
                               const T* __restrict__ k, const T* __restrict__ v, RowNumbers numbers,
                               T* __restrict__ gq, Sizes n, int64_t tiles, bool wide) {
  extern __shared__ __align__(128) float4 shared[];
  auto& tile = *reinterpret_cast<Tiles<DP>*>(shared);
  constexpr int COLUMNS = DP / SIDE;
  const int ty = threadIdx.x / SIDE;
  // The last rows first: with a causal mask they have the most keys.
  const int64_t head = blockIdx.x % n.N, i0 = (tiles - 1 - blockIdx.x / n.N) * BM;
  const int64_t at = head * n.S * n.D;

  float acc[TM][COLUMNS] = {};  // rows ty + 16 r
  load_tile(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);
  load_tile(tile.go, go + at + i0 * n.D, n.S - i0, n.D, wide);
  load_rows(tile, numbers, head * n.S + i0, n.S - i0);

  const int64_t past = i0 + BM < n.S ? i0 + BM : n.S;
  const int64_t end = n.causal ? past : n.S;  // no row of the block sees a later key
  for (int64_t j0 = 0; j0 < end; j0 += BN) {
    __syncthreads();  // all threads have read k and v of the previous keys
    load_tile(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
    load_tile(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);
    __syncthreads();  // all tiles are complete before they are read
    const Window window(i0, j0, n);
    float p[TM][TN];
    recompute_p(tile, window, n.scale, p);
    turn_into_gs(tile, window, n.scale, p);
    store_scores(tile.s, p);
    __syncwarp();  // a row of gs is written and read by the 16 lanes of one ty, all in this warp
    multiply_keys(tile.s, tile.k, acc);
  }

#pragma unroll
  for (int r = 0; r < TM; ++r) {
    const int64_t i = i0 + ty + SIDE * r;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int d = column_of(c);
      if (i < n.S && d < n.D) gq[at + i * n.D + d] = static_cast<T>(acc[r][c]);
    }
  }
}

template <typename T, int DP, bool ADD_GQ>
void launch_keys_stay(const Given& given, const Sizes& n, const Tensor& delta, float* gq_sum,
                      const Gradients& made, bool wide) {
  const auto kernel = attention_keys_stay_kernel<T, DP, ADD_GQ>;
  allow_shared(kernel, sizeof(Tiles<DP>));
  kernel<<<grid_size(n.N * ceil_div<int64_t>(n.S, BN), "q"), THREADS, sizeof(Tiles<DP>),
           current_stream(given.q)>>>(data<T>(given.go), data<T>(given.q), data<T>(given.k),
                                      data<T>(given.v), row_numbers(given, delta), gq_sum,
                                      mutable_data<T>(std::get<1>(made)),
                                      mutable_data<T>(std::get<2>(made)), n, wide);
}

template <typename T, int DP>
void launch_rows_stay(const Given& given, const Sizes& n, const Tensor& delta,
                      const Gradients& made, bool wide) {
  const auto kernel = attention_rows_stay_kernel<T, DP>;
  allow_shared(kernel, sizeof(Tiles<DP>));
  const int64_t tiles = ceil_div<int64_t>(n.S, BM);
  kernel<<<grid_size(n.N * tiles, "q"), THREADS, sizeof(Tiles<DP>), current_stream(given.q)>>>(
      data<T>(given.go), data<T>(given.q), data<T>(given.k), data<T>(given.v),
      row_numbers(given, delta), mutable_data<T>(std::get<0>(made)), n, tiles, wide);
}

// Whether the tiles fit into shared memory: 88 KB for D <= 64, 153 KB for more. Elsewhere v1's
// kernels do the work.
bool tiles_fit(const Sizes& n, const Tensor& q) {
  const size_t bytes = n.D <= 64 ? sizeof(Tiles<64>) : sizeof(Tiles<128>);
  if (static_cast<int64_t>(bytes) <= shared_limit(q)) return true;
  fell_back("attention_backward_v1_naive", "the tiles do not fit into shared memory");
  return false;
}

void launch_two_walks(const Given& given, const Sizes& n, const Tensor& delta,
                      const Gradients& made) {
  if (!tiles_fit(n, given.q)) return launch_naive(given, n, delta, made);
  const bool wide = is_wide(n, {&given.go, &given.q, &given.k, &given.v});
  dispatch_floating(given.q, [&](auto zero) {
    using T = decltype(zero);
    if (n.D <= 64) {
      launch_keys_stay<T, 64, false>(given, n, delta, nullptr, made, wide);
      launch_rows_stay<T, 64>(given, n, delta, made, wide);
    } else {
      launch_keys_stay<T, 128, false>(given, n, delta, nullptr, made, wide);
      launch_rows_stay<T, 128>(given, n, delta, made, wide);
    }
  });
}

Gradients attention_backward_v2_two_walks(const Tensor& go, const Tensor& glse, const Tensor& q,
                                          const Tensor& k, const Tensor& v, const Tensor& o,
                                          const Tensor& lse, bool causal) {
  return backward({go, glse, q, k, v, o, lse, causal}, "attention_backward_v2_two_walks",
                  launch_two_walks);
}

// v3's sums are fp32; for the 16-bit types they are rounded when all of them are complete.
template <typename T>
__global__ void attention_round_kernel(const float* __restrict__ sums, T* __restrict__ out,
                                       int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = static_cast<T>(sums[i]);
}

void launch_one_walk(const Given& given, const Sizes& n, const Tensor& delta,
                     const Gradients& made) {
  if (!tiles_fit(n, given.q)) return launch_naive(given, n, delta, made);
  const Tensor& gq = std::get<0>(made);
  const int64_t count = gq.numel();
  const bool in_place = gq.scalar_type() == ScalarType::Float;
  const Tensor sums = in_place ? gq : allocate(gq, {count}, ScalarType::Float);
  const cudaStream_t stream = current_stream(gq);
  check_cuda(cudaMemsetAsync(sums.mutable_data_ptr(), 0, count * sizeof(float), stream),
             "cudaMemsetAsync");
  const bool wide = is_wide(n, {&given.go, &given.q, &given.k, &given.v});
  dispatch_floating(gq, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = n.D <= 64 ? launch_keys_stay<T, 64, true> : launch_keys_stay<T, 128, true>;
    launch(given, n, delta, mutable_data<float>(sums), made, wide);
    if (!in_place) {
      const unsigned grid = grid_size(ceil_div<int64_t>(count, THREADS), "q");
      attention_round_kernel<T>
          <<<grid, THREADS, 0, stream>>>(data<float>(sums), mutable_data<T>(gq), count);
    }
  });
}

Gradients attention_backward_v3_one_walk(const Tensor& go, const Tensor& glse, const Tensor& q,
                                         const Tensor& k, const Tensor& v, const Tensor& o,
                                         const Tensor& lse, bool causal) {
  return backward({go, glse, q, k, v, o, lse, causal}, "attention_backward_v3_one_walk",
                  launch_one_walk);
}

// The forward pass of day 15, whose backward pass these are.
std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     bool causal) {
  return forward(q, k, v, causal);
}

// ---------------------------------------------------------------------------------------------

RUNG(day20, attention, "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day20, attention_backward_v2_two_walks, INPUTS);
RUNG(day20, attention_backward_v3_one_walk, INPUTS);

// Day 26: attention forward on tensor cores
//
//   s = q · kᵀ / sqrt(D)      p = softmax(s)      o = p · v      lse[i] = log sum_j exp(s[i, j])
//   q, o: (B, H, S, D); k, v: (B, H, T, D); bf16 or fp16, D = 64 or 128; lse: (B, H, S), fp32.
//   causal: row i sees the keys j <= i + T - S, so that the last row sees all. A row that sees none
//   gets o = 0 and lse = -inf.
//
// Operations: two products, 4 · B · H · S · T · D; for 4×16×4096×128 that is 550 GFLOP, on tensor
// cores. Bytes: 268 MB for q, k, v and o. The operations are the limit.
//
//   v1 scalar         day 15: fused multiply-adds in fp32
//   v2 tensor_cores   both products by mma.sync, p stays in registers
//   v3 swizzled       the same tiles in shared memory without bank conflicts
//   v4 pipelined      cp.async loads the next keys and values during the products (double
//   buffering) v5 lazy_rescale   o is rescaled only where the maximum grew by a factor of more than
//   2⁸
//
// Run: python run_day.py 26

#include "common/cuda/attention.cuh"  // taught in day 15
#include "common/cuda/binding.cuh"
#include "common/cuda/capability.cuh"
#include "common/cuda/ptx/cp_async.cuh"  // copies are taught in day 20
#include "common/cuda/ptx/exp2.cuh"
#include "common/cuda/ptx/ldmatrix.cuh"
#include "common/cuda/ptx/mma.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"

#include <cmath>
#include <cstring>
#include <tuple>

constexpr int WARPS = 4, THREADS = 32 * WARPS;
// Rows of q per warp: two fragments of 16, so that each fragment of k and v serves two products.
constexpr int M = 2;
constexpr int BM = 16 * M * WARPS;  // rows of q per block
constexpr int BN = 64;              // keys per tile
constexpr int CHUNK = 8;            // elements of 16 bytes, which one copy or one row of 8×8 holds
constexpr float LOG2_E = 1.44269504f;

// N = B · H heads of S rows of q and T keys. scale_log2: log2 e / sqrt(D).
struct Sizes {
  int N, S, T, tiles;  // tiles: of BM rows, per head
  float scale_log2;
  float slack;  // scores may exceed the maximum that o is scaled by, by so much
  bool causal;
};

// ---------------------------------------------------------------------------------------------
// Tiles in shared memory, and the fragments that a warp loads from them. Lane 4g + t holds, of a
// fragment c (16×8), the elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).

// Element index of a row's 16-byte chunk in a tile. Swizzled: chunk c lies in place c ^ (row % 8).
template <int D, bool SWIZZLED>
__device__ __forceinline__ int place(int row, int chunk) {
  return row * D + (SWIZZLED ? chunk ^ row % 8 : chunk) * CHUNK;
}

// Loads rows [0, ROWS) of a matrix of D columns, zeros from `rows` on. ASYNC: starts the copies,
// for which the caller waits.
template <int ROWS, int D, bool SWIZZLED, bool ASYNC, typename T>
__device__ __forceinline__ void load_tile(T* tile, const T* from, int rows) {
  // A thread keeps its column, and its row's remainder by 8: one offset serves all of its copies.
  constexpr int STEP = THREADS / (D / CHUNK);
  static_assert(STEP % 8 == 0 && ROWS % STEP == 0);
  const int first = threadIdx.x / (D / CHUNK), chunk = threadIdx.x % (D / CHUNK);
  T* to = tile + place<D, SWIZZLED>(first, chunk);
  from += first * D + chunk * CHUNK;
#pragma unroll
  for (int row = 0; row < ROWS; row += STEP) {
    const bool inside = first + row < rows;
    if constexpr (ASYNC) {
      ptx::cp_async_zero_fill<16>(to + row * D, from + row * D, inside ? 16 : 0);
    } else {
      *reinterpret_cast<uint4*>(to + row * D) =
          inside ? *reinterpret_cast<const uint4*>(from + row * D) : uint4{};
    }
  }
}

// Two numbers as neighbouring elements, `low` in the low half of the register.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162> both;
  if constexpr (std::is_same_v<T, __half>) {
    both = __floats2half2_rn(low, high);
  } else {
    both = __floats2bfloat162_rn(low, high);
  }
  uint32_t word;
  memcpy(&word, &both, sizeof word);
  return word;
}

// s = q · kᵀ for the warp's 32 rows, from row `row` of the tile q, and BN keys.
template <int D, bool SWIZZLED, typename T>
__device__ __forceinline__ void multiply_scores(float (&s)[M][BN / 8][4], const T* q, const T* k,
                                                int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (auto& c : s[m]) c[0] = c[1] = c[2] = c[3] = 0;
  }
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[M][4];  // rows of q: lane l passes row l % 16, and chunk 0 or 1 of 16 columns
#pragma unroll
    for (int m = 0; m < M; ++m) {
      ptx::ldmatrix_x4(a[m],
                       q + place<D, SWIZZLED>(row + 16 * m + lane % 16, d / CHUNK + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < BN; n += 16) {
      // 16 keys: columns of kᵀ are rows of k, so no transposition. Matrices 0 and 1 are the two
      // chunks of keys 0 to 7, matrices 2 and 3 those of keys 8 to 15.
      uint32_t b[4];
      ptx::ldmatrix_x4(
          b, k + place<D, SWIZZLED>(n + lane / 16 * 8 + lane % 8, d / CHUNK + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_m16n8k16<T>(s[m][n / 8], a[m], {b[0], b[1]}, s[m][n / 8]);
        ptx::mma_m16n8k16<T>(s[m][n / 8 + 1], a[m], {b[2], b[3]}, s[m][n / 8 + 1]);
      }
    }
  }
}

// o += p · v. The fragments c of p are, rounded to T, the fragments a of this product.
template <int D, bool SWIZZLED, typename T>
__device__ __forceinline__ void multiply_values(float (&o)[M][D / 8][4],
                                                const float (&p)[M][BN / 8][4], const T* v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < BN; j += 16) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const auto &left = p[m][j / 8], &right = p[m][j / 8 + 1];
      a[m][0] = pack<T>(left[0], left[1]);
      a[m][1] = pack<T>(left[2], left[3]);
      a[m][2] = pack<T>(right[0], right[1]);
      a[m][3] = pack<T>(right[2], right[3]);
    }
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      // Rows of v are keys, along which this product sums: transposed while loaded.
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, v + place<D, SWIZZLED>(j + lane % 16, d / CHUNK + lane / 16));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_m16n8k16<T>(o[m][d / 8], a[m], {b[0], b[1]}, o[m][d / 8]);
        ptx::mma_m16n8k16<T>(o[m][d / 8 + 1], a[m], {b[2], b[3]}, o[m][d / 8 + 1]);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------
// A warp's 32 rows: o and the online softmax, in registers. [m][h] is row 16m + 8h + g.

template <int D>
struct Rows {
  float o[M][D / 8][4] = {};  // not yet divided by sum
  float max[M][2], sum[M][2];

  __device__ Rows() {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      max[m][0] = max[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;  // over this lane's keys only
    }
  }
};

// Scores become -inf where row i0 + 16m + 8h + g must not see key j0 + 8n + 2t + e.
__device__ __forceinline__ void mask(float (&s)[M][BN / 8][4], int i0, int j0, const Sizes& n) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = i0 + 16 * m + 8 * h + lane / 4, seen = i + 1 + n.T - n.S;
      const int end = (n.causal && seen < n.T ? seen : n.T) - j0;
#pragma unroll
      for (int c = 0; c < BN / 8; ++c) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * c + lane % 4 * 2 + e >= end) s[m][c][2 * h + e] = -INFINITY;
        }
      }
    }
  }
}

// Multiplies what the rows have collected by 2^(before - now) for the new maxima.
// exp(x / sqrt(D)) = 2^(x · scale_log2): one instruction of the special function unit.

template <int D>
__device__ __forceinline__ void softmax_step(Rows<D>& rows, float (&s)[M][BN / 8][4],
                                             const Sizes& n) {
  float top[M][2];
  bool grown = false;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x = rows.max[m][h];
#pragma unroll
      for (auto& c : s[m]) x = fmaxf(x, fmaxf(c[2 * h], c[2 * h + 1]));
      x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));  // the 4 lanes of a row have different t
      x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
      top[m][h] = x;
      grown |= x > rows.max[m][h] + n.slack;
    }
  }
  if (__any_sync(0xffffffff, grown)) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // A row that has seen no key yet has max = -inf, and -inf - -inf would be NaN.
        const float now = top[m][h] == -INFINITY ? 0 : top[m][h];
        const float rescale = ptx::exp2_approx((rows.max[m][h] - now) * n.scale_log2);
        rows.max[m][h] = top[m][h];
        rows.sum[m][h] *= rescale;
#pragma unroll
        for (auto& c : rows.o[m]) {
          c[2 * h] *= rescale;
          c[2 * h + 1] *= rescale;
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float from = rows.max[m][h] == -INFINITY ? 0 : rows.max[m][h] * n.scale_log2;
#pragma unroll
      for (auto& c : s[m]) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = c[2 * h + e];
          x = ptx::exp2_approx(x * n.scale_log2 - from);
          rows.sum[m][h] += x;
        }
      }
    }
  }
}

template <int D, typename T>
__device__ __forceinline__ void store(const Rows<D>& rows, T* o, float* lse, int i0,
                                      const Sizes& n) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = rows.sum[m][h];
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
      const int i = i0 + 16 * m + 8 * h + lane / 4;
      if (i >= n.S) continue;
      const float inverse = sum == 0 ? 0 : 1 / sum;  // 0: the row has seen no key
#pragma unroll
      for (int c = 0; c < D / 8; ++c) {
        const uint32_t two =
            pack<T>(rows.o[m][c][2 * h] * inverse, rows.o[m][c][2 * h + 1] * inverse);
        *reinterpret_cast<uint32_t*>(o + int64_t{i} * D + 8 * c + lane % 4 * 2) = two;
      }
      if (lane % 4 == 0) lse[i] = (rows.max[m][h] * n.scale_log2 + log2f(sum)) / LOG2_E;
    }
  }
}

#ifndef ORDER
#define ORDER 0
#endif
// Which head and which rows a block has.
struct Place {
  int64_t head;
  int i0, end;
  __device__ Place(const Sizes& n, int N) {
    // The last rows first: with a causal mask they have the most keys.
    if (ORDER == 0) {
      head = blockIdx.x % N, i0 = (n.tiles - 1 - blockIdx.x / N) * BM;
    } else {
      head = blockIdx.x / n.tiles, i0 = (n.tiles - 1 - blockIdx.x % n.tiles) * BM;
    }
    const int seen = i0 + BM + n.T - n.S;
    end = n.causal && seen < n.T ? seen : n.T;
  }
};

template <typename T, int D, bool SWIZZLED>
__global__ void __launch_bounds__(THREADS, 2)
    attention_blocking_kernel(const T* __restrict__ q, const T* __restrict__ k,
                              const T* __restrict__ v, T* __restrict__ o, float* __restrict__ lse,
                              Sizes n) {
  extern __shared__ uint4 shared[];          // uint4, so that it is aligned to 16 bytes
  T* q_tile = reinterpret_cast<T*>(shared);  // (BM, D)
  T *k_tile = q_tile + BM * D, *v_tile = k_tile + BN * D;  // (BN, D)
  const Place at(n, n.N);
  q += at.head * n.S * D, o += at.head * n.S * D, lse += at.head * n.S;
  k += at.head * n.T * D, v += at.head * n.T * D;
  const int row = threadIdx.x / 32 * (16 * M);
  Rows<D> rows;
  load_tile<BM, D, SWIZZLED, false>(q_tile, q + int64_t{at.i0} * D, n.S - at.i0);
  for (int j0 = 0; j0 < at.end; j0 += BN) {
    __syncthreads();  // all warps have read k and v of the previous tile
    load_tile<BN, D, SWIZZLED, false>(k_tile, k + int64_t{j0} * D, n.T - j0);
    load_tile<BN, D, SWIZZLED, false>(v_tile, v + int64_t{j0} * D, n.T - j0);
    __syncthreads();  // q, k and v are complete before they are read
    float s[M][BN / 8][4];
    multiply_scores<D, SWIZZLED>(s, q_tile, k_tile, row);
    if (j0 + BN > n.T || (n.causal && j0 + BN > at.i0 + row + n.T - n.S)) {
      mask(s, at.i0 + row, j0, n);
    }
    softmax_step(rows, s, n);
    multiply_values<D, SWIZZLED>(rows.o, s, v_tile);
  }
  store(rows, o, lse, at.i0 + row, n);
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2)
    attention_pipelined_kernel(const T* __restrict__ q, const T* __restrict__ k,
                               const T* __restrict__ v, T* __restrict__ o, float* __restrict__ lse,
                               Sizes n) {
  extern __shared__ uint4 shared[];
  T* q_tile = reinterpret_cast<T*>(shared);
  T* kv_tiles = q_tile + BM * D;
  const Place at(n, n.N);
  q += at.head * n.S * D, o += at.head * n.S * D, lse += at.head * n.S;
  k += at.head * n.T * D, v += at.head * n.T * D;
  const int row = threadIdx.x / 32 * (16 * M);
  Rows<D> rows;
  auto load = [&](int j0) {
    T* to = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    load_tile<BN, D, true, true>(to, k + int64_t{j0} * D, n.T - j0);
    load_tile<BN, D, true, true>(to + BN * D, v + int64_t{j0} * D, n.T - j0);
  };
  load_tile<BM, D, true, true>(q_tile, q + int64_t{at.i0} * D, n.S - at.i0);
  load(0);
  ptx::cp_async_commit();
  for (int j0 = 0; j0 < at.end; j0 += BN) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (j0 + BN < at.end) load(j0 + BN);
    ptx::cp_async_commit();
    const T* k_tile = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    float s[M][BN / 8][4];
    multiply_scores<D, true>(s, q_tile, k_tile, row);
    if (j0 + BN > n.T || (n.causal && j0 + BN > at.i0 + row + n.T - n.S)) {
      mask(s, at.i0 + row, j0, n);
    }
    softmax_step(rows, s, n);
    multiply_values<D, true>(rows.o, s, k_tile + BN * D);
  }
  ptx::cp_async_wait<0>();
  store(rows, o, lse, at.i0 + row, n);
}

// ---------------------------------------------------------------------------------------------

Sizes check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  check(q, "q").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(4).contiguous();
  check(k, "k").on_gpu().dtype({q.scalar_type()}).rank(4).contiguous().same_device(q, "q");
  check(v, "v").on_gpu().like(k, "k").contiguous();
  for (int dim : {0, 1, 3}) check(k, "k").size(dim, q.size(dim));
  const int64_t N = q.size(0) * q.size(1), S = q.size(2), T = k.size(2), D = q.size(3);
  STD_TORCH_CHECK(D == 64 || D == 128,
                  "q: expected 64 or 128 elements in the last dimension, got shape ", shape_of(q));
  STD_TORCH_CHECK(S < INT32_MAX - BM, "q: too many rows for 32 bits, shape ", shape_of(q));
  STD_TORCH_CHECK(T < INT32_MAX - BM, "k: too many rows for 32 bits, shape ", shape_of(k));
  STD_TORCH_CHECK(is_aligned(q, 16) && is_aligned(k, 16) && is_aligned(v, 16),
                  "q, k, v: expected addresses that are multiples of 16 bytes; call .clone()");
  const auto scale_log2 = static_cast<float>(LOG2_E / std::sqrt(static_cast<double>(D)));
  const int64_t tiles = ceil_div<int64_t>(S, BM);
  grid_size(N * tiles, "q");
  return {static_cast<int>(N),
          static_cast<int>(S),
          static_cast<int>(T),
          static_cast<int>(tiles),
          scale_log2,
          0,
          causal};
}

// Launches choose<T, D>() for the dtype and the head dimension of q. buffers: of k and v each.
template <typename Choose>
std::tuple<Tensor, Tensor> launch(const Tensor& q, const Tensor& k, const Tensor& v, Sizes n,
                                  int buffers, const char* name, Choose choose) {
  const DeviceGuard guard(q);
  require_capability(8, 0, "mma.sync of 16×8×16");
  const int64_t D = q.size(3), bytes = (BM + 2 * buffers * BN) * D * q.element_size();
  require_shared_memory(bytes, "tiles of q, k and v");
  Tensor o = torch::stable::empty_like(q);
  Tensor lse = torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  if (q.numel() == 0) return {o, lse};  // a grid of no blocks is an error
  auto run = [&]<typename T>(T) {
    const auto kernel =
        D == 64 ? choose.template operator()<T, 64>() : choose.template operator()<T, 128>();
    allow_shared(kernel, bytes);
    kernel<<<n.N * n.tiles, THREADS, bytes, current_stream(q)>>>(
        data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse), n);
  };
  if (q.scalar_type() == ScalarType::Half) {
    run(__half{});
  } else {
    run(__nv_bfloat16{});
  }
  check_launch(name);
  return {o, lse};
}

std::tuple<Tensor, Tensor> attention_v1_scalar(const Tensor& q, const Tensor& k, const Tensor& v,
                                               bool causal) {
  check_inputs(q, k, v, causal);
  check(k, "k").size(2, q.size(2));
  return fa2::forward(q, k, v, causal);
}

std::tuple<Tensor, Tensor> attention_v2_tensor_cores(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, bool causal) {
  return launch(q, k, v, check_inputs(q, k, v, causal), 1, "attention_v2_tensor_cores",
                []<typename T, int D>() { return attention_blocking_kernel<T, D, false>; });
}

std::tuple<Tensor, Tensor> attention_v3_swizzled(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 bool causal) {
  return launch(q, k, v, check_inputs(q, k, v, causal), 1, "attention_v3_swizzled",
                []<typename T, int D>() { return attention_blocking_kernel<T, D, true>; });
}

std::tuple<Tensor, Tensor> attention_v4_pipelined(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  bool causal) {
  return launch(q, k, v, check_inputs(q, k, v, causal), 2, "attention_v4_pipelined",
                []<typename T, int D>() { return attention_pipelined_kernel<T, D>; });
}

std::tuple<Tensor, Tensor> attention_v5_lazy_rescale(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, bool causal) {
  Sizes n = check_inputs(q, k, v, causal);
  n.slack = 8 / n.scale_log2;
  return launch(q, k, v, n, 2, "attention_v5_lazy_rescale",
                []<typename T, int D>() { return attention_pipelined_kernel<T, D>; });
}

// ---------------------------------------------------------------------------------------------

RUNG(day26, attention_v1_scalar,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day26, attention_v2_tensor_cores,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day26, attention_v3_swizzled,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day26, attention_v4_pipelined,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day26, attention_v5_lazy_rescale,
     "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");

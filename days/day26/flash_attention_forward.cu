// Day 26: attention forward on tensor cores
//
//   s = q · kᵀ / sqrt(D)      p = softmax(s)      o = p · v      lse[i] = log sum_j exp(s[i, j])
//   q, o: (B, H, S, D); k, v: (B, H, T, D); bf16 or fp16, D = 64 or 128; lse: (B, H, S), fp32.
//   causal: row i sees the keys j <= i + T - S, so that the last row sees all. A row that sees none
//   gets o = 0 and lse = -inf.
//
// Operations: two products, 4 · B · H · S · T · D; for 4×16×4096×128 that is 550 GFLOP. Bytes: 268
// MB for q, k, v and o. The operations are the limit.
//
//   v1 scalar         day 15: fused multiply-adds in fp32
//   v2 tensor_cores   both products by mma.sync; p stays in registers
//   v3 swizzled       the same tiles in shared memory, without bank conflicts
//   v4 pipelined      cp.async loads the next keys and values during the products
//   v5 lazy_rescale   o is rescaled only where p could exceed 2⁸
//
// Run: python run_day.py 26

#include "common/cuda/attention.cuh"  // taught in day 15
#include "common/cuda/binding.cuh"
#include "common/cuda/capability.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "common/cuda/ptx/exp2.cuh"
#include "common/cuda/ptx/ldmatrix.cuh"
#include "common/cuda/ptx/mma.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>

// Older cards get empty kernels, which are never launched.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_BF16_MMA
#endif

constexpr int WARPS = 4, THREADS = 32 * WARPS;
// Fragments of 16 rows of q per warp: each fragment of k and of v serves two products.
constexpr int M = 2;
constexpr int BM = WARPS * M * 16;  // rows of q per block
constexpr int BN = 64;              // keys per tile
constexpr int CHUNK = 8;            // elements in 16 bytes: one copy, or a row of an 8×8 matrix
constexpr float LOG2_E = 1.44269504f;

// N = B · H heads with S rows of q and T keys; tiles: of BM rows, per head.
struct Sizes {
  int N, S, T, tiles;
  bool causal;
  int ahead;         // T - S: with causal, row i sees the keys j <= i + ahead
  float scale_log2;  // log2 e / sqrt(D): exp(x / sqrt(D)) = 2^(x · scale_log2)
  float slack;       // scores may exceed the maximum that o is scaled by, by so much
};

// ---------------------------------------------------------------------------------------------
// Tiles of D columns in shared memory.

// Where a tile keeps a row's 16-byte chunk, in elements. Unswizzled, the same chunk of consecutive
// rows lies in the same banks, as rows are 128 or 256 bytes long. Swizzled, 8 rows use all 32.
template <int D, bool SWIZZLED>
__device__ __forceinline__ int place(int row, int chunk) {
  return row * D + (SWIZZLED ? chunk ^ row % 8 : chunk) * CHUNK;
}

// Loads rows [0, ROWS) of a matrix, zeros from `rows` on. ASYNC: only starts the copies.
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

// ---------------------------------------------------------------------------------------------
// The two products of a warp. Lane 4g + t holds four elements of a 16×8 result:
//   c[0], c[1]: row g, columns 2t, 2t + 1        c[2], c[3]: row g + 8, the same columns

using Scores = float[M][BN / 8][4];  // [m][n]: rows 16m + [0, 16), keys 8n + [0, 8)

// s = q · kᵀ for 32 rows of q and BN keys.
template <int D, bool SWIZZLED, typename T>
__device__ __forceinline__ void multiply_keys(Scores& s, const T* q, const T* k) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (auto& fragments : s) {
#pragma unroll
    for (auto& c : fragments) c[0] = c[1] = c[2] = c[3] = 0;
  }
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[M][4];  // 16 rows × 16 columns of q: four 8×8 matrices, the two upper ones first
#pragma unroll
    for (int m = 0; m < M; ++m) {
      ptx::ldmatrix_x4(a[m], q + place<D, SWIZZLED>(16 * m + lane % 16, d / CHUNK + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < BN; n += 16) {
      // Columns of kᵀ are rows of k, as the instruction expects: b[0], b[1] belong to 8 keys, b[2],
      // b[3] to the next 8.
      uint32_t b[4];
      const int key = n + lane / 16 * 8 + lane % 8;
      ptx::ldmatrix_x4(b, k + place<D, SWIZZLED>(key, d / CHUNK + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_m16n8k16<T>(s[m][n / 8], a[m], {b[0], b[1]}, s[m][n / 8]);
        ptx::mma_m16n8k16<T>(s[m][n / 8 + 1], a[m], {b[2], b[3]}, s[m][n / 8 + 1]);
      }
    }
  }
}

// Two numbers as elements of type T in one register, `low` in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 both = __floats2half2_rn(low, high);
    memcpy(&word, &both, sizeof word);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    memcpy(&word, &both, sizeof word);
  }
  return word;
}

// o += p · v. A lane holds the same elements of two neighbouring 16×8 results as of one 16×16 first
// operand, so p moves from one product to the next without shared memory.
template <int D, bool SWIZZLED, typename T>
__device__ __forceinline__ void multiply_values(float (&o)[M][D / 8][4], const Scores& p,
                                                const T* v) {
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
      // This product sums along the rows of v: each 8×8 matrix is transposed while it is loaded.
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
// What a warp keeps of its 32 rows, in registers, and the online softmax of day 15 on it.

template <int D>
struct Rows {
  float o[M][D / 8][4];  // not yet divided by sum
  // [m][h]: of row 16m + 8h + g. sum: over the keys of this lane only.
  float max[M][2], sum[M][2];
};

template <int D>
__device__ __forceinline__ Rows<D> empty_rows() {
  Rows<D> rows{};
#pragma unroll
  for (auto& pair : rows.max) pair[0] = pair[1] = -INFINITY;
  return rows;
}

// Calls f(m, h, row) for each of the lane's 4 rows, of 32.
template <typename F>
__device__ __forceinline__ void for_rows(F f) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) f(m, h, 16 * m + 8 * h + threadIdx.x % 32 / 4);
  }
}

// -inf for every score of rows i0 + [0, 32) and keys j0 + [0, BN) that the row must not see.
__device__ __forceinline__ void mask(Scores& s, int i0, int j0, const Sizes& n) {
  const int keys = n.T - j0, diagonal = i0 + n.ahead + 1 - j0;
  for_rows([&](int m, int h, int row) {
    const int seen = diagonal + row, end = n.causal && seen < keys ? seen : keys;
#pragma unroll
    for (int c = 0; c < BN / 8; ++c) {
      const int key = 8 * c + threadIdx.x % 4 * 2;
      if (key >= end) s[m][c][2 * h] = -INFINITY;
      if (key + 1 >= end) s[m][c][2 * h + 1] = -INFINITY;
    }
  });
}

// Turns s into p = 2^(s - max), and updates max, sum and the scale of o.
template <int D>
__device__ __forceinline__ void softmax_step(Rows<D>& rows, Scores& s, const Sizes& n) {
  float top[M][2];
  bool grown = false;
  for_rows([&](int m, int h, int) {
    float x = rows.max[m][h];
#pragma unroll
    for (auto& c : s[m]) x = fmaxf(x, fmaxf(c[2 * h], c[2 * h + 1]));
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));  // 4 lanes share a row
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
    top[m][h] = x;
    grown |= x > rows.max[m][h] + n.slack;
  });
  if (__any_sync(0xffffffff, grown)) {  // the same branch for the whole warp
    for_rows([&](int m, int h, int) {
      // -inf: the row has seen no key yet, and -inf - -inf would be NaN.
      const float now = top[m][h] == -INFINITY ? 0 : top[m][h];
      const float rescale = ptx::exp2_approx((rows.max[m][h] - now) * n.scale_log2);
      rows.max[m][h] = top[m][h];
      rows.sum[m][h] *= rescale;
#pragma unroll
      for (auto& c : rows.o[m]) c[2 * h] *= rescale, c[2 * h + 1] *= rescale;
    });
  }
  for_rows([&](int m, int h, int) {
    const float max = rows.max[m][h] == -INFINITY ? 0 : rows.max[m][h] * n.scale_log2;
#pragma unroll
    for (auto& c : s[m]) {
      c[2 * h] = ptx::exp2_approx(c[2 * h] * n.scale_log2 - max);
      c[2 * h + 1] = ptx::exp2_approx(c[2 * h + 1] * n.scale_log2 - max);
      rows.sum[m][h] += c[2 * h] + c[2 * h + 1];
    }
  });
}

// One tile of keys: scores, softmax, output. q: the warp's part of the tile, rows i0 + [0, 32).
template <int D, bool SWIZZLED, typename T>
__device__ __forceinline__ void attend(Rows<D>& rows, const T* q, const T* k, const T* v, int i0,
                                       int j0, const Sizes& n) {
  if (n.causal && j0 > i0 + 31 + n.ahead) return;  // none of the warp's rows sees these keys
  Scores s;
  multiply_keys<D, SWIZZLED>(s, q, k);
  // Only tiles on the diagonal and the last tile contain hidden keys.
  if (j0 + BN > n.T || (n.causal && j0 + BN - 1 > i0 + n.ahead)) mask(s, i0, j0, n);
  softmax_step(rows, s, n);
  multiply_values<D, SWIZZLED>(rows.o, s, v);
}

// o and lse of rows i0 + [0, 32) of a head.
template <int D, typename T>
__device__ __forceinline__ void store(const Rows<D>& rows, T* o, float* lse, int i0,
                                      const Sizes& n) {
  for_rows([&](int m, int h, int row) {
    float sum = rows.sum[m][h];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    if (i0 + row >= n.S) return;
    const float inverse = sum == 0 ? 0 : 1 / sum;  // 0: the row has seen no key
    T* out = o + int64_t{i0 + row} * D + threadIdx.x % 4 * 2;
#pragma unroll
    for (int c = 0; c < D / 8; ++c) {
      const float* two = &rows.o[m][c][2 * h];
      *reinterpret_cast<uint32_t*>(out + 8 * c) = pack<T>(two[0] * inverse, two[1] * inverse);
    }
    if (threadIdx.x % 4 == 0) {
      lse[i0 + row] = (rows.max[m][h] * n.scale_log2 + log2f(sum)) / LOG2_E;
    }
  });
}

// The head and the rows of a block, and how many keys its last row sees.
struct Work {
  int head, i0, end;

  __device__ explicit Work(const Sizes& n) {
    const int block = blockIdx.x;
    if (n.causal) {  // the longest rows of all heads first, the shortest at the end
      head = block % n.N, i0 = (n.tiles - 1 - block / n.N) * BM;
    } else {  // the blocks that run at the same time share few heads, whose k and v stay in L2
      head = block / n.tiles, i0 = block % n.tiles * BM;
    }
    const int seen = i0 + BM + n.ahead;
    end = n.causal && seen < n.T ? seen : n.T;
  }
};

// ---------------------------------------------------------------------------------------------
// What all launchers do.

Sizes check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  check(q, "q").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(4).contiguous();
  check(k, "k").on_gpu().dtype({q.scalar_type()}).rank(4).contiguous().same_device(q, "q");
  check(v, "v").on_gpu().like(k, "k").contiguous();
  for (int dim : {0, 1, 3}) check(k, "k").size(dim, q.size(dim));
  const int64_t N = q.size(0) * q.size(1), S = q.size(2), T = k.size(2), D = q.size(3);
  STD_TORCH_CHECK(D == 64 || D == 128,
                  "q: expected 64 or 128 elements in the last dimension, got shape ", shape_of(q));
  STD_TORCH_CHECK(S + T < INT32_MAX - BM, "q, k: expected fewer than 2^31 rows together, got ", S,
                  " and ", T);
  STD_TORCH_CHECK(is_aligned(q, 16) && is_aligned(k, 16) && is_aligned(v, 16),
                  "q, k, v: expected addresses that are multiples of 16 bytes; call .clone()");
  Sizes n;
  n.tiles = static_cast<int>(ceil_div<int64_t>(S, BM));
  n.N = static_cast<int>(grid_size(N * n.tiles, "q") / (n.tiles > 0 ? n.tiles : 1));
  n.S = static_cast<int>(S);
  n.T = static_cast<int>(T);
  n.causal = causal;
  n.ahead = n.T - n.S;
  n.scale_log2 = static_cast<float>(LOG2_E / std::sqrt(static_cast<double>(D)));
  n.slack = 0;
  return n;
}

// Launches the kernel choose<T, D>() for the dtype and head dimension of q. buffers: for k and v.
template <typename Choose>
std::tuple<Tensor, Tensor> launch(const Tensor& q, const Tensor& k, const Tensor& v, const Sizes& n,
                                  int buffers, const char* name, Choose choose) {
  const DeviceGuard guard(q);
  require_capability(8, 0, "mma.sync of 16×8×16");
  const int64_t D = q.size(3), bytes = (BM + 2 * buffers * BN) * D * q.element_size();
  require_shared_memory(bytes, "the tiles of q, k and v");
  Tensor o = torch::stable::empty_like(q);
  Tensor lse = torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  if (q.numel() == 0) return {o, lse};  // a grid of no blocks is an error
  const auto run = [&]<typename T>(T) {
    const auto kernel =
        D == 64 ? choose.template operator()<T, 64>() : choose.template operator()<T, 128>();
    allow_shared(kernel, bytes);
    kernel<<<n.N * n.tiles, THREADS, bytes, current_stream(q)>>>(
        data<T>(q), data<T>(k), data<T>(v), mutable_data<T>(o), mutable_data<float>(lse), n);
  };
  q.scalar_type() == ScalarType::Half ? run(__half{}) : run(__nv_bfloat16{});
  check_launch(name);
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------
// v1: day 15's kernel, which needs as many keys as rows.

std::tuple<Tensor, Tensor> attention_v1_scalar(const Tensor& q, const Tensor& k, const Tensor& v,
                                               bool causal) {
  check_inputs(q, k, v, causal);
  check(k, "k").size(2, q.size(2));
  return fa2::forward(q, k, v, causal);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: both products run on tensor cores. v3 against v2: the tiles are swizzled.

template <typename T, int D, bool SWIZZLED>
__global__ void __launch_bounds__(THREADS, 2)
    attention_blocking_kernel(const T* __restrict__ q, const T* __restrict__ k,
                              const T* __restrict__ v, T* __restrict__ o, float* __restrict__ lse,
                              Sizes n) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  T* q_tile = reinterpret_cast<T*>(shared);                // (BM, D)
  T *k_tile = q_tile + BM * D, *v_tile = k_tile + BN * D;  // (BN, D)
  const Work work(n);
  const int64_t head_q = int64_t{work.head} * n.S, head_k = int64_t{work.head} * n.T;
  q += (head_q + work.i0) * D, k += head_k * D, v += head_k * D;
  const int row = threadIdx.x / 32 * (16 * M);
  Rows<D> rows = empty_rows<D>();
  load_tile<BM, D, SWIZZLED, false>(q_tile, q, n.S - work.i0);
  for (int j0 = 0; j0 < work.end; j0 += BN) {
    __syncthreads();  // all warps have read k and v of the previous tile
    load_tile<BN, D, SWIZZLED, false>(k_tile, k + int64_t{j0} * D, n.T - j0);
    load_tile<BN, D, SWIZZLED, false>(v_tile, v + int64_t{j0} * D, n.T - j0);
    __syncthreads();  // q, k and v are complete before any warp reads them
    attend<D, SWIZZLED>(rows, q_tile + row * D, k_tile, v_tile, work.i0 + row, j0, n);
  }
  store(rows, o + head_q * D, lse + head_q, work.i0 + row, n);
#endif
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

// ---------------------------------------------------------------------------------------------
// v4 against v3: two buffers for k and v. The copies of the next tile run during the products of
// this one, and one barrier per tile is left.

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2)
    attention_pipelined_kernel(const T* __restrict__ q, const T* __restrict__ k,
                               const T* __restrict__ v, T* __restrict__ o, float* __restrict__ lse,
                               Sizes n) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  T* q_tile = reinterpret_cast<T*>(shared);  // (BM, D)
  T* kv_tiles = q_tile + BM * D;             // (2 buffers, k and v, BN, D)
  const Work work(n);
  const int64_t head_q = int64_t{work.head} * n.S, head_k = int64_t{work.head} * n.T;
  q += (head_q + work.i0) * D, k += head_k * D, v += head_k * D;
  const int row = threadIdx.x / 32 * (16 * M);
  Rows<D> rows = empty_rows<D>();
  auto load_keys = [&](int j0) {
    T* to = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    load_tile<BN, D, true, true>(to, k + int64_t{j0} * D, n.T - j0);
    load_tile<BN, D, true, true>(to + BN * D, v + int64_t{j0} * D, n.T - j0);
  };
  if (work.end > 0) {
    load_tile<BM, D, true, true>(q_tile, q, n.S - work.i0);
    load_keys(0);
  }
  for (int j0 = 0; j0 < work.end; j0 += BN) {
    ptx::cp_async_wait_all();  // this thread's copies of this tile are complete,
    __syncthreads();           // now those of all threads, and all warps have read the other buffer
    if (j0 + BN < work.end) load_keys(j0 + BN);
    const T* k_tile = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    attend<D, true>(rows, q_tile + row * D, k_tile, k_tile + BN * D, work.i0 + row, j0, n);
  }
  store(rows, o + head_q * D, lse + head_q, work.i0 + row, n);
#endif
}

std::tuple<Tensor, Tensor> attention_v4_pipelined(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  bool causal) {
  return launch(q, k, v, check_inputs(q, k, v, causal), 2, "attention_v4_pipelined",
                []<typename T, int D>() { return attention_pipelined_kernel<T, D>; });
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: o may keep the scale of an older maximum. Then p is at most 2⁸ instead of 1, which
// fp16 and bf16 hold with the same relative precision, and the division by sum corrects it.

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

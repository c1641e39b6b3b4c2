// Day 26: attention forward on tensor cores
//
//   s = q · kᵀ / sqrt(D)      p = softmax(s)      o = p · v      lse[i] = log sum_j exp(s[i, j])
//   q, o: (B, H, S, D); k, v: (B, H, T, D); bf16, D = 128; lse: (B, H, S), fp32.
//   causal: row i sees the keys j <= i + T - S, so that the last row sees all. A row that sees none
//   gets o = 0 and lse = -inf.
//
// Operations: two products, 4 · B · H · S · T · D; for 4×16×4096×128 that is 550 GFLOP. Bytes: 268
// MB for q, k, v and o. The operations are the limit.
//
//   v1 one_mma         no attention yet: one product, 16×16 times 16×8, by one instruction
//   v2 tensor_cores    both products of attention by mma and ldmatrix; p stays in registers
//   v3 swizzled        the same loads from shared memory, without bank conflicts
//   v4 pipelined       the next keys and values are in flight during the products
//
// Run: python run_day.py 26

#include "common/cuda/attention_inputs.cuh"
#include "common/cuda/binding.cuh"
#include "common/cuda/capability.cuh"
#include "common/cuda/ptx/cp_async.cuh"  // taught in day 20
#include "common/cuda/ptx/exp2.cuh"
#include "common/cuda/ptx/ldmatrix.cuh"
#include "common/cuda/ptx/mma.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"

#include <tuple>

using bf16 = __nv_bfloat16;

// Two numbers, rounded to bf16, in one register; `low` in its low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return uint32_t{__bfloat16_as_ushort(both.y)} << 16 | __bfloat16_as_ushort(both.x);
}

// ---------------------------------------------------------------------------------------------
// v1: c = a · b by one warp. Lane 4g + t has elements of rows g and g + 8 of a and c, and of column
// g of b.

__global__ void product_v1_one_mma_kernel(const bf16 (*a)[16], const bf16 (*b)[8], float (*c)[8]) {
#ifdef HAS_BF16_MMA  // compute capability 8.0; launches require it
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  uint32_t fa[4], fb[2];  // fragments: two neighbours along the depth per register
  fa[0] = pack(a[g][2 * t], a[g][2 * t + 1]);
  fa[1] = pack(a[g + 8][2 * t], a[g + 8][2 * t + 1]);
  fa[2] = pack(a[g][2 * t + 8], a[g][2 * t + 9]);
  fa[3] = pack(a[g + 8][2 * t + 8], a[g + 8][2 * t + 9]);
  fb[0] = pack(b[2 * t][g], b[2 * t + 1][g]);
  fb[1] = pack(b[2 * t + 8][g], b[2 * t + 9][g]);
  float fc[4] = {0, 0, 0, 0};
  ptx::mma_m16n8k16<bf16>(fc, fa, fb, fc);  // fc = fa · fb + fc
  c[g][2 * t] = fc[0];
  c[g][2 * t + 1] = fc[1];
  c[g + 8][2 * t] = fc[2];
  c[g + 8][2 * t + 1] = fc[3];
#endif
}

Tensor product_v1_one_mma(const Tensor& a, const Tensor& b) {
  check(a, "a").on_gpu().dtype({ScalarType::BFloat16}).rank(2).size(0, 16).size(1, 16).contiguous();
  check(b, "b").on_gpu().dtype({ScalarType::BFloat16}).rank(2).size(0, 16).size(1, 8).contiguous();
  check(b, "b").same_device(a, "a");
  const DeviceGuard guard(a);
  require_capability(8, 0, "mma.sync of 16×8×16");
  Tensor c = allocate(a, {16, 8}, ScalarType::Float);
  product_v1_one_mma_kernel<<<1, 32, 0, current_stream(a)>>>(
      reinterpret_cast<const bf16(*)[16]>(data<bf16>(a)),
      reinterpret_cast<const bf16(*)[8]>(data<bf16>(b)),
      reinterpret_cast<float (*)[8]>(mutable_data<float>(c)));
  check_launch("product_v1_one_mma");
  return c;
}

// ---------------------------------------------------------------------------------------------
// Attention. A block has BM rows of q, each of its warps 32 of them. All share tiles of BN keys.

constexpr int D = 128;  // columns of q, k, v and o
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int M = 2;                // fragments of 16 rows of q per warp
constexpr int BM = WARPS * M * 16;  // rows of q per block
constexpr int BN = 64;              // keys per tile
constexpr int CHUNK = 8;            // elements in 16 bytes: one copy, or a row of an 8×8 matrix
constexpr float ROOT_D = 11.3137085f;
constexpr float SCALE = 1.44269504f / ROOT_D;  // log2 e / sqrt(D): exp(s / sqrt(D)) = 2^(s · SCALE)

struct Arguments {
  const bf16 *q, *k, *v;
  bf16* o;
  float* lse;
  int S, T;
  bool causal;
};

// Where a tile in shared memory keeps a chunk of a row, in elements. v2: one row after the other.
struct RowMajor {
  static __device__ int at(int row, int chunk) { return row * D + chunk * CHUNK; }
};

// v3 against v2: each of 8 rows has its chunks in another order.
struct Swizzled {
  static __device__ int at(int row, int chunk) { return row * D + (chunk ^ row % 8) * CHUNK; }
};

// Starts copies of a matrix's rows [0, ROWS); of rows from `valid` on 0 bytes are read, 16 zeroed.
template <int ROWS, typename Layout>
__device__ __forceinline__ void copy_tile(bf16* tile, const bf16* from, int valid) {
  constexpr int STEP = THREADS / (D / CHUNK);  // rows that the block copies at a time
  // Row first + row has the swizzle of row first: tile + row * D is right in both layouts.
  static_assert(STEP % 8 == 0, "the rows of a thread must be equal modulo 8");
  const int first = threadIdx.x / (D / CHUNK), chunk = threadIdx.x % (D / CHUNK);
  tile += Layout::at(first, chunk), from += first * D + chunk * CHUNK;
#pragma unroll
  for (int row = 0; row < ROWS; row += STEP) {
    ptx::cp_async_zero_fill<16>(tile + row * D, from + row * D, first + row < valid ? 16 : 0);
  }
}

// Fragments c of a warp's 32 rows: [m][n] has rows 16m + [0, 16) and columns 8n + [0, 8).
using Scores = float[M][BN / 8][4];  // s, then p
struct Rows {
  float o[M][D / 8][4] = {};                                        // not yet divided by sum
  float max[2 * M] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};  // [r]: of row 8r + g
  float sum[2 * M] = {};                                            // of this lane's columns alone
};
// The lane's element e of row 8r + g, in column 8 (e / 2) + 2t + e % 2.
template <typename Fragments>
__device__ __forceinline__ auto& element(Fragments& c, int r, int e) {
  return c[r / 2][e / 2][r % 2 * 2 + e % 2];
}

// c[m][n] and c[m][n + 1] += a[m] · b, where b has 16 columns: b[0], b[1] the left 8 of them.
template <int N>
__device__ __forceinline__ void multiply(float (&c)[M][N][4], int n, const uint32_t (&a)[M][4],
                                         const uint32_t (&b)[4]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
    ptx::mma_m16n8k16<bf16>(c[m][n], a[m], {b[0], b[1]}, c[m][n]);
    ptx::mma_m16n8k16<bf16>(c[m][n + 1], a[m], {b[2], b[3]}, c[m][n + 1]);
  }
}

// s += q · kᵀ
template <typename Layout>
__device__ __forceinline__ void multiply_keys(Scores& s, const bf16* q, const bf16* k) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[M][4];  // q: rows 16m + [0, 16), columns d + [0, 16)
#pragma unroll
    for (int m = 0; m < M; ++m) {
      ptx::ldmatrix_x4(a[m], q + Layout::at(16 * m + lane % 16, d / CHUNK + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < BN; n += 16) {
      uint32_t b[4];  // kᵀ: rows d + [0, 16), keys n + [0, 16)
      ptx::ldmatrix_x4(b, k + Layout::at(n + lane / 16 * 8 + lane % 8, d / CHUNK + lane / 8 % 2));
      multiply(s, n / 8, a, b);
    }
  }
}

// o += p · v, with p rounded to bf16. Two fragments c of p that are side by side make a fragment a.
template <typename Layout>
__device__ __forceinline__ void multiply_values(Rows& rows, const Scores& p, const bf16* v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < BN; j += 16) {
    uint32_t a[M][4];  // p: rows 16m + [0, 16), keys j + [0, 16)
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const auto &left = p[m][j / 8], &right = p[m][j / 8 + 1];
      a[m][0] = pack(left[0], left[1]);
      a[m][1] = pack(left[2], left[3]);
      a[m][2] = pack(right[0], right[1]);
      a[m][3] = pack(right[2], right[3]);
    }
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      uint32_t b[4];  // v: keys j + [0, 16), columns d + [0, 16)
      ptx::ldmatrix_x4_trans(b, v + Layout::at(j + lane % 16, d / CHUNK + lane / 16));
      multiply(rows.o, d / 8, a, b);
    }
  }
}

// Day 15's online softmax: s becomes p = exp(s - max); max, sum and o follow.
__device__ __forceinline__ void softmax_step(Rows& rows, Scores& s) {
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    float max = rows.max[r];
#pragma unroll
    for (int e = 0; e < BN / 4; ++e) max = fmaxf(max, element(s, r, e));
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1));  // 4 lanes share a row
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2));
    const float shift = max == -INFINITY ? 0 : max;  // no key seen: -inf - -inf would be NaN
    const float rescale = ptx::exp2_approx((rows.max[r] - shift) * SCALE);
    rows.max[r] = max;
    rows.sum[r] *= rescale;
#pragma unroll
    for (int e = 0; e < D / 4; ++e) element(rows.o, r, e) *= rescale;
#pragma unroll
    for (int e = 0; e < BN / 4; ++e) {
      const float p = ptx::exp2_approx(element(s, r, e) * SCALE - shift * SCALE);
      element(s, r, e) = p;
      rows.sum[r] += p;
    }
  }
}

// Keys j0 + [0, BN) for a warp's rows i0 + [0, 32). q, k, v: in shared memory.
template <typename Layout>
__device__ __forceinline__ void attend(Rows& rows, const bf16* q, const bf16* k, const bf16* v,
                                       int i0, int j0, const Arguments& args) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int ahead = args.T - args.S;                // causal: row i sees the keys j <= i + ahead
  if (args.causal && j0 > i0 + 31 + ahead) return;  // none of the rows sees these keys
  Scores s = {};
  multiply_keys<Layout>(s, q, k);
  if (j0 + BN > args.T || (args.causal && j0 + BN - 1 > i0 + ahead)) {  // some keys are hidden
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
      const int end = args.causal ? min(i0 + 8 * r + g + ahead + 1, args.T) : args.T;
#pragma unroll
      for (int e = 0; e < BN / 4; ++e) {
        if (j0 + e / 2 * 8 + 2 * t + e % 2 >= end) element(s, r, e) = -INFINITY;
      }
    }
  }
  softmax_step(rows, s);
  multiply_values<Layout>(rows, s, v);
}

// o and lse of a warp's rows i0 + [0, 32).
__device__ __forceinline__ void store(const Rows& rows, int64_t head, int i0,
                                      const Arguments& args) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int64_t i = i0 + 8 * r + g;
    if (i >= args.S) continue;
    const float inverse = sum == 0 ? 0 : 1 / sum;  // 0: the row has seen no key
    bf16* o = args.o + (head * args.S + i) * D + 2 * t;
#pragma unroll
    for (int e = 0; e < D / 4; e += 2) {
      *reinterpret_cast<uint32_t*>(o + 4 * e) =
          pack(element(rows.o, r, e) * inverse, element(rows.o, r, e + 1) * inverse);
    }
    if (t == 0) args.lse[head * args.S + i] = rows.max[r] / ROOT_D + logf(sum);
  }
}

// v2 against v1: operands come from tiles in shared memory, and results of the first product are
// operands of the second. v3: the same kernel with Layout = Swizzled.
template <typename Layout>
__global__ void __launch_bounds__(THREADS, 2) attention_blocking_kernel(Arguments args) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) bf16 q_tile[];             // (BM, D)
  bf16 *k_tile = q_tile + BM * D, *v_tile = k_tile + BN * D;  // (BN, D)
  const int64_t head = blockIdx.x;
  const bf16 *k = args.k + head * args.T * D, *v = args.v + head * args.T * D;
  const int i0 = (gridDim.y - 1 - blockIdx.y) * BM;  // first the rows that see most keys
  const int end = args.causal ? min(i0 + BM + args.T - args.S, args.T) : args.T;
  const int i_warp = threadIdx.x / 32 * 32;  // the warp's rows: i0 + i_warp + [0, 32)
  Rows rows;
  copy_tile<BM, Layout>(q_tile, args.q + (head * args.S + i0) * D, args.S - i0);
  for (int j0 = 0; j0 < end; j0 += BN) {
    copy_tile<BN, Layout>(k_tile, k + int64_t{j0} * D, args.T - j0);
    copy_tile<BN, Layout>(v_tile, v + int64_t{j0} * D, args.T - j0);
    ptx::cp_async_wait_all();
    __syncthreads();  // the copies of all threads are complete
    attend<Layout>(rows, q_tile + i_warp * D, k_tile, v_tile, i0 + i_warp, j0, args);
    __syncthreads();  // all warps have read k and v, before the next ones are copied
  }
  store(rows, head, i0 + i_warp, args);
#endif
}

// v4 against v3: two tiles of k and two of v. Copies to one pair run while the other is read.
__global__ void __launch_bounds__(THREADS, 2) attention_pipelined_kernel(Arguments args) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) bf16 q_tile[];                 // (BM, D)
  bf16 *k_tile = q_tile + BM * D, *v_tile = k_tile + 2 * BN * D;  // (2, BN, D)
  const int64_t head = blockIdx.x;
  const bf16 *k = args.k + head * args.T * D, *v = args.v + head * args.T * D;
  const int i0 = (gridDim.y - 1 - blockIdx.y) * BM;  // first the rows that see most keys
  const int end = args.causal ? min(i0 + BM + args.T - args.S, args.T) : args.T;
  const int i_warp = threadIdx.x / 32 * 32;  // the warp's rows: i0 + i_warp + [0, 32)
  Rows rows;
  const auto copy_keys = [&](int j0, int to) {
    copy_tile<BN, Swizzled>(k_tile + to, k + int64_t{j0} * D, args.T - j0);
    copy_tile<BN, Swizzled>(v_tile + to, v + int64_t{j0} * D, args.T - j0);
  };
  copy_tile<BM, Swizzled>(q_tile, args.q + (head * args.S + i0) * D, args.S - i0);
  copy_keys(0, 0);  // if no row sees a key (end <= 0), no thread waits for the copies or reads them
  for (int j0 = 0; j0 < end; j0 += BN) {
    const int at = j0 / BN % 2 * (BN * D), other = BN * D - at;
    ptx::cp_async_wait_all();
    __syncthreads();  // the copies of all threads are complete; all warps have read the other pair
    if (j0 + BN < end) copy_keys(j0 + BN, other);
    attend<Swizzled>(rows, q_tile + i_warp * D, k_tile + at, v_tile + at, i0 + i_warp, j0, args);
  }
  store(rows, head, i0 + i_warp, args);
#endif
}

using Outputs = std::tuple<Tensor, Tensor>;

Outputs launch(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int pairs,
               void (*kernel)(Arguments)) {
  check_attention(q, k, v, {ScalarType::BFloat16}, {D});
  const DeviceGuard guard(q);
  require_capability(8, 0, "mma.sync of 16×8×16");
  const int64_t bytes = (BM + 2 * pairs * BN) * D * sizeof(bf16), heads = q.size(0) * q.size(1);
  require_shared_memory(bytes, "the tiles of q, k and v");
  Tensor o = allocate_like(q);
  Tensor lse = allocate(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  if (q.numel() == 0) return {o, lse};  // a grid of no blocks is an error
  Arguments args{data<bf16>(q), data<bf16>(k), data<bf16>(v)};
  args.o = mutable_data<bf16>(o), args.lse = mutable_data<float>(lse), args.causal = causal;
  args.S = static_cast<int>(q.size(2)), args.T = static_cast<int>(k.size(2));
  const dim3 grid(grid_size(heads, "q"), grid_size_y(ceil_div(args.S, BM), "q"));
  allow_shared(kernel, bytes);
  kernel<<<grid, THREADS, bytes, current_stream(q)>>>(args);
  check_launch("attention");
  return {o, lse};
}

Outputs attention_v2_tensor_cores(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  return launch(q, k, v, causal, 1, attention_blocking_kernel<RowMajor>);
}

Outputs attention_v3_swizzled(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  return launch(q, k, v, causal, 1, attention_blocking_kernel<Swizzled>);
}

Outputs attention_v4_pipelined(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  return launch(q, k, v, causal, 2, attention_pipelined_kernel);
}

#define ATTENTION "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)"
RUNG(day26, product_v1_one_mma, "(Tensor a, Tensor b) -> Tensor");
RUNG(day26, attention_v2_tensor_cores, ATTENTION);
RUNG(day26, attention_v3_swizzled, ATTENTION);
RUNG(day26, attention_v4_pipelined, ATTENTION);

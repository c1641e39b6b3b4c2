// Attention forward on tensor cores: day 26's v4 for both 16-bit dtypes and D = 64 or 128, with o
// rescaled rarely (day 26, further), for heads anywhere in memory and with padded keys (day 28).
//
//   o = softmax(q · kᵀ / sqrt(D)) · v      lse[i] = log sum_j exp(s[i, j])
//   q, o: (B, H, S, D), k, v: (B, H, T, D), bf16 or fp16, D = 64 or 128; lse: (B, H, S), fp32.
//
// A row that sees no key gets o = 0 and lse = -inf.
#pragma once

#include "common/cuda/capability.cuh"
#include "common/cuda/mma_tiles.cuh"
#include "common/cuda/ptx/exp2.cuh"
#include "common/cuda/shared_memory.cuh"
#include "common/cuda/tensor.cuh"

#include <cmath>

namespace flash {

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int M = 2;                // fragments of 16 rows of q per warp
constexpr int BM = WARPS * M * 16;  // rows of q per block
constexpr int BN = 64;              // keys per tile
constexpr float LOG2_E = 1.44269504f;

// Strides of the heads of a tensor (B, H, rows, D), in elements; the last dimension is contiguous.
struct Strides {
  int64_t batch, head, row;
};

// All arguments of the kernel except the type of the elements.
struct Arguments {
  const void *q, *k, *v;
  void* o;
  float* lse;
  const bool* padded;  // (B, T), true for a key that no row sees; nullptr: none
  Strides of_q, of_k, of_v, of_o;
  int B, H, S, T, tiles;  // tiles: of BM rows, per head
  bool causal;
  int ahead;  // T - S: with causal, row i sees the keys j <= i + ahead
  float scale_log2, slack;
};

using Scores = float[M][BN / 8][4];

// A warp's 32 rows; [m][h]: row 16m + 8h + g.
template <int D>
struct Rows {
  float o[M][D / 8][4];
  float max[M][2], sum[M][2];
};

template <typename F>
__device__ __forceinline__ void for_rows(F f) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) f(m, h, 16 * m + 8 * h + threadIdx.x % 32 / 4);
  }
}

template <int D, typename T>
__device__ __forceinline__ void multiply_keys(Scores& s, const T* q, const T* k) {
#pragma unroll
  for (auto& fragments : s) {
#pragma unroll
    for (auto& c : fragments) c[0] = c[1] = c[2] = c[3] = 0;
  }
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) tiles::load_a<D>(a[m], q, 16 * m, d);
#pragma unroll
    for (int n = 0; n < BN; n += 16) {
      uint32_t b[2][2];
      tiles::load_b_transposed<D>(b, k, n, d);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_m16n8k16<T>(s[m][n / 8], a[m], b[0], s[m][n / 8]);
        ptx::mma_m16n8k16<T>(s[m][n / 8 + 1], a[m], b[1], s[m][n / 8 + 1]);
      }
    }
  }
}

template <int D, typename T>
__device__ __forceinline__ void multiply_values(float (&o)[M][D / 8][4], const Scores& p,
                                                const T* v) {
#pragma unroll
  for (int j = 0; j < BN; j += 16) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) tiles::to_a<T>(a[m], p[m][j / 8], p[m][j / 8 + 1]);
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      uint32_t b[2][2];
      tiles::load_b<D>(b, v, j, d);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_m16n8k16<T>(o[m][d / 8], a[m], b[0], o[m][d / 8]);
        ptx::mma_m16n8k16<T>(o[m][d / 8 + 1], a[m], b[1], o[m][d / 8 + 1]);
      }
    }
  }
}

// -inf for keys after the end and after the diagonal.
__device__ __forceinline__ void mask(Scores& s, int i0, int j0, const Arguments& n) {
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

// -inf for padded keys. padded: of this batch, from key j0 on; keys: how many there are.
__device__ __forceinline__ void mask_padded(Scores& s, const bool* padded, int keys) {
#pragma unroll
  for (int c = 0; c < BN / 8; ++c) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int key = 8 * c + threadIdx.x % 4 * 2 + e;
      if (key < keys && padded[key]) {
#pragma unroll
        for (int m = 0; m < M; ++m) s[m][c][e] = s[m][c][2 + e] = -INFINITY;
      }
    }
  }
}

// s becomes p; max, sum and o are rescaled where a maximum grew by more than n.slack.
template <int D>
__device__ __forceinline__ void softmax_step(Rows<D>& rows, Scores& s, const Arguments& n) {
  float top[M][2];
  bool grown = false;
  for_rows([&](int m, int h, int) {
    float x = rows.max[m][h];
#pragma unroll
    for (auto& c : s[m]) x = fmaxf(x, fmaxf(c[2 * h], c[2 * h + 1]));
    top[m][h] = tiles::row_max(x);
    grown |= top[m][h] > rows.max[m][h] + n.slack;
  });
  if (__any_sync(0xffffffff, grown)) {
    for_rows([&](int m, int h, int) {
      const float now = top[m][h] == -INFINITY ? 0 : top[m][h];  // -inf - -inf would be NaN
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

template <int D, typename T>
__device__ __forceinline__ void store(const Rows<D>& rows, T* o, int64_t stride, float* lse, int i0,
                                      const Arguments& n) {
  for_rows([&](int m, int h, int row) {
    const float sum = tiles::row_sum(rows.sum[m][h]);
    if (i0 + row >= n.S) return;
    const float inverse = sum == 0 ? 0 : 1 / sum;  // 0: the row has seen no key
    T* out = o + (i0 + row) * stride + threadIdx.x % 4 * 2;
#pragma unroll
    for (int c = 0; c < D / 8; ++c) {
      const float* two = &rows.o[m][c][2 * h];
      *reinterpret_cast<uint32_t*>(out + 8 * c) =
          tiles::pack<T>(two[0] * inverse, two[1] * inverse);
    }
    if (threadIdx.x % 4 == 0) {
      lse[i0 + row] = (rows.max[m][h] * n.scale_log2 + log2f(sum)) / LOG2_E;
    }
  });
}

template <typename T, int D, bool PADDED>
__global__ void __launch_bounds__(THREADS, 2) forward_kernel(const __grid_constant__ Arguments n) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  T* q_tile = reinterpret_cast<T*>(shared);  // (BM, D)
  T* kv_tiles = q_tile + BM * D;             // (2 buffers, k and v, BN, D)
  // With a causal mask the longest rows of all heads come first, the shortest at the end; else the
  // blocks that run at the same time share few heads.
  const int block = blockIdx.x, heads = n.B * n.H;
  const int at = n.causal ? block % heads : block / n.tiles, b = at / n.H, h = at % n.H;
  const int i0 = (n.causal ? n.tiles - 1 - block / heads : block % n.tiles) * BM;
  const int seen = i0 + BM + n.ahead, end = n.causal && seen < n.T ? seen : n.T;
  const int row = threadIdx.x / 32 * (16 * M), mine = i0 + row;

  const T* k = static_cast<const T*>(n.k) + b * n.of_k.batch + h * n.of_k.head;
  const T* v = static_cast<const T*>(n.v) + b * n.of_v.batch + h * n.of_v.head;
  auto load_keys = [&](int j0) {
    T* to = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    tiles::load_async<BN, D, THREADS>(to, k + j0 * n.of_k.row, n.of_k.row, n.T - j0);
    tiles::load_async<BN, D, THREADS>(to + BN * D, v + j0 * n.of_v.row, n.of_v.row, n.T - j0);
  };
  Rows<D> rows{};
#pragma unroll
  for (auto& pair : rows.max) pair[0] = pair[1] = -INFINITY;
  if (end > 0) {
    const T* q = static_cast<const T*>(n.q) + b * n.of_q.batch + h * n.of_q.head;
    tiles::load_async<BM, D, THREADS>(q_tile, q + i0 * n.of_q.row, n.of_q.row, n.S - i0);
    load_keys(0);
  }
  for (int j0 = 0; j0 < end; j0 += BN) {
    ptx::cp_async_wait_all();  // this thread's copies of this tile are complete,
    __syncthreads();           // now those of all threads, and all warps have read the other buffer
    if (j0 + BN < end) load_keys(j0 + BN);
    if (n.causal && j0 > mine + 31 + n.ahead) continue;  // none of the warp's rows sees these keys
    const T* k_tile = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    Scores s;
    multiply_keys<D>(s, q_tile + row * D, k_tile);
    if (j0 + BN > n.T || (n.causal && j0 + BN - 1 > mine + n.ahead)) mask(s, mine, j0, n);
    if constexpr (PADDED) mask_padded(s, n.padded + int64_t{b} * n.T + j0, n.T - j0);
    softmax_step(rows, s, n);
    multiply_values<D>(rows.o, s, k_tile + BN * D);
  }
  T* o = static_cast<T*>(n.o) + b * n.of_o.batch + h * n.of_o.head;
  store(rows, o, n.of_o.row, n.lse + int64_t{at} * n.S, mine, n);
#endif
}

// ---------------------------------------------------------------------------------------------

// The strides of (B, H, rows, D), of which the kernel copies 16 bytes at a time.
inline Strides strides_of(const Tensor& t, const char* name) {
  const int64_t pack = 16 / t.element_size();
  const Strides strides{t.stride(0), t.stride(1), t.stride(2)};
  STD_TORCH_CHECK(t.stride(3) == 1 && strides.batch % pack == 0 && strides.head % pack == 0 &&
                      strides.row % pack == 0 && is_aligned(t, 16),
                  name, ": expected rows that are contiguous and begin at multiples of 16 bytes");
  return strides;
}

// o and lse, which the caller allocates, of q, k and v with any strides. padded: (B, T), or
// nullptr. headroom: o keeps the scale of an older maximum while p is at most 2^headroom.
inline void forward(const Tensor& q, const Tensor& k, const Tensor& v, const bool* padded, Tensor o,
                    Tensor lse, bool causal, float headroom = 8) {
  require_capability(8, 0, "mma.sync of 16×8×16");
  const int64_t D = q.size(3), bytes = (BM + 4 * BN) * D * q.element_size();
  STD_TORCH_CHECK(D == 64 || D == 128, "heads: expected 64 or 128 columns per head, got ", D);
  STD_TORCH_CHECK(q.size(2) + k.size(2) < INT32_MAX - BM, "q, k: too many rows, ", q.size(2),
                  " and ", k.size(2));
  require_shared_memory(bytes, "the tiles of q, k and v");
  if (o.numel() == 0) return;  // a grid of no blocks is an error
  Arguments n;
  n.q = q.const_data_ptr(), n.k = k.const_data_ptr(), n.v = v.const_data_ptr();
  n.o = o.mutable_data_ptr(), n.lse = mutable_data<float>(lse), n.padded = padded;
  n.of_q = strides_of(q, "q"), n.of_k = strides_of(k, "k");
  n.of_v = strides_of(v, "v"), n.of_o = strides_of(o, "o");
  n.B = static_cast<int>(q.size(0)), n.H = static_cast<int>(q.size(1));
  n.S = static_cast<int>(q.size(2)), n.T = static_cast<int>(k.size(2));
  n.tiles = ceil_div(n.S, BM);
  n.causal = causal, n.ahead = n.T - n.S;
  n.scale_log2 = static_cast<float>(LOG2_E / std::sqrt(static_cast<double>(D)));
  n.slack = headroom / n.scale_log2;
  const auto run = [&]<typename T>(T) {
    const auto kernel =
        padded == nullptr ? (D == 64 ? forward_kernel<T, 64, false> : forward_kernel<T, 128, false>)
                          : (D == 64 ? forward_kernel<T, 64, true> : forward_kernel<T, 128, true>);
    allow_shared(kernel, bytes);
    const unsigned grid = grid_size(q.size(0) * q.size(1) * n.tiles, "q");
    kernel<<<grid, THREADS, bytes, current_stream(q)>>>(n);
  };
  q.scalar_type() == ScalarType::Half ? run(__half{}) : run(__nv_bfloat16{});
  check_launch("attention");
}

}  // namespace flash

// Day 66: attention with a pattern, fused: causal, sliding window, ALiBi
//
//   pos(i) = i + T - S          the key at which row i stands: the last row stands at the last key
//   s[i, j] = q[i] · k[j] / sqrt(D) - slope[h] · (pos(i) - j)
//   row i sees the keys pos(i) - window < j <= pos(i)
//   o = softmax(s over the keys that are seen) · v      lse[i] = log sum_j exp(s[i, j])
//
// q, o: (B, H, S, D), k, v: (B, H, T, D), bf16 or fp16, D = 64 or 128; slopes: (H,) in fp32, or
// none; window 0: no limit; lse: (B, H, S), fp32. A row that sees no key gets o = 0 and lse = -inf.
//
// Operations: 4 · D per pair of a row and a key that it sees. 4×16×4096×128, causal: 275 GFLOP.
// 1×16×16384×128 with a window of 1024: 133 GFLOP, of 2200 without a pattern.
//
//   v1 masked   every tile of keys, every score masked
//   v2 tiles    only tiles with a key that is seen; masks only where a tile also has hidden ones
//
// fused_attention_triton.py has the twins, v3 and v4. Run: python run_day.py 66

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/flash_attention.cuh"  // taught in days 26 and 28

#include <algorithm>
#include <tuple>

using flash::BM, flash::BN, flash::M, flash::THREADS;  // a warp has 16 · M rows

// What a row sees, and what distance costs. The position of row i is i + n.ahead.
struct Pattern {
  int window;           // keys up to a row's position
  const float* slopes;  // (H,), per key of distance

  // Whether a row at any of the positions [first, last] sees one of the keys [j0, j0 + BN).
  __device__ bool any(int first, int last, int j0) const {
    return j0 <= last && j0 + BN - 1 > first - window;
  }
  // Whether rows at all of the positions [first, last] see all of them.
  __device__ bool all(int first, int last, int j0) const {
    return j0 + BN - 1 <= first && j0 > last - window;
  }
};

// -inf for every score that is hidden. position: of the warp's first row, from key j0.
__device__ __forceinline__ void hide(flash::Scores& s, int position, int window) {
  flash::for_rows([&](int m, int h, int row) {
#pragma unroll
    for (int c = 0; c < BN / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int distance = position + row - (8 * c + threadIdx.x % 4 * 2 + e);
        if (distance < 0 || distance >= window) s[m][c][2 * h + e] = -INFINITY;
      }
    }
  });
}

// s -= slope · distance. Distances are whole numbers below 2^24, so fp32 has them exactly.
__device__ __forceinline__ void add_alibi(flash::Scores& s, int position, float slope) {
  flash::for_rows([&](int m, int h, int row) {
    const auto first = static_cast<float>(position + row - static_cast<int>(threadIdx.x % 4) * 2);
#pragma unroll
    for (int c = 0; c < BN / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = s[m][c][2 * h + e];
        score = fmaf(-slope, first - static_cast<float>(8 * c + e), score);
      }
    }
  });
}

// One block per BM rows of a head. SKIP: v2.
template <typename T, int D, bool ALIBI, bool SKIP>
__global__ void __launch_bounds__(THREADS, 2)
    fused_attention_kernel(const __grid_constant__ flash::Arguments n, Pattern pattern) {
#ifdef HAS_BF16_MMA
  extern __shared__ __align__(128) uint4 shared[];
  T* q_tile = reinterpret_cast<T*>(shared);  // (BM, D)
  T* kv_tiles = q_tile + BM * D;             // (2 buffers, k and v, BN, D)
  // The rows with the most keys first, of all heads.
  const int heads = n.B * n.H, head = static_cast<int>(blockIdx.x) % heads;
  const int i0 = (n.tiles - 1 - static_cast<int>(blockIdx.x) / heads) * BM;
  const int row = static_cast<int>(threadIdx.x) / 32 * (16 * M);
  const int position = i0 + row + n.ahead, last = position + 16 * M - 1;  // of the warp's rows

  int begin = 0, end = n.T;
  if (SKIP) {
    begin = max(0, i0 + n.ahead - pattern.window + 1) / BN * BN;
    end = min(n.T, i0 + BM + n.ahead);
  }
  const T* q = static_cast<const T*>(n.q) + (int64_t{head} * n.S + i0) * D;
  const T* k = static_cast<const T*>(n.k) + int64_t{head} * n.T * D;
  const T* v = static_cast<const T*>(n.v) + int64_t{head} * n.T * D;
  const auto load_keys = [&](int j0) {
    T* to = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    tiles::load_async<BN, D, THREADS>(to, k + int64_t{j0} * D, D, n.T - j0);
    tiles::load_async<BN, D, THREADS>(to + BN * D, v + int64_t{j0} * D, D, n.T - j0);
  };
  // In units of a score before it is multiplied by 1 / sqrt(D).
  const float slope = ALIBI ? pattern.slopes[head % n.H] * sqrtf(static_cast<float>(D)) : 0;

  flash::Rows<D> rows{};
#pragma unroll
  for (auto& pair : rows.max) pair[0] = pair[1] = -INFINITY;
  if (begin < end) {
    tiles::load_async<BM, D, THREADS>(q_tile, q, D, n.S - i0);
    load_keys(begin);
  }
  for (int j0 = begin; j0 < end; j0 += BN) {
    ptx::cp_async_wait_all();  // this thread's copies of this tile are complete,
    __syncthreads();           // now those of all threads, and all warps have read the other buffer
    if (j0 + BN < end) load_keys(j0 + BN);
    if (SKIP && !pattern.any(position, last, j0)) continue;  // the whole warp
    const T* k_tile = kv_tiles + j0 / BN % 2 * (2 * BN * D);
    flash::Scores s;
    flash::multiply_keys<D>(s, q_tile + row * D, k_tile);
    if (ALIBI) add_alibi(s, position - j0, slope);
    if (!SKIP || !pattern.all(position, last, j0)) hide(s, position - j0, pattern.window);
    flash::softmax_step(rows, s, n);
    flash::multiply_values<D>(rows.o, s, k_tile + BN * D);
  }
  T* o = static_cast<T*>(n.o) + int64_t{head} * n.S * D;
  flash::store(rows, o, D, n.lse + int64_t{head} * n.S, i0 + row, n);
#endif
}

// ---------------------------------------------------------------------------------------------

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slopes,
                  int64_t window) {
  check(q, "q").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(4).contiguous();
  check(k, "k").on_gpu().dtype({q.scalar_type()}).rank(4).contiguous().same_device(q, "q");
  for (int dim : {0, 1, 3}) check(k, "k").size(dim, q.size(dim));
  check(v, "v").on_gpu().dtype({q.scalar_type()}).rank(4).contiguous().same_device(q, "q");
  for (int dim : {0, 1, 2, 3}) check(v, "v").size(dim, k.size(dim));
  STD_TORCH_CHECK(q.size(3) == 64 || q.size(3) == 128,
                  "q: expected 64 or 128 elements in the last dimension, got shape ", shape_of(q));
  STD_TORCH_CHECK(q.size(2) + k.size(2) < (1 << 24), "q, k: expected fewer than 2^24 rows, got ",
                  q.size(2), " and ", k.size(2));
  STD_TORCH_CHECK(is_aligned(q, 16) && is_aligned(k, 16) && is_aligned(v, 16),
                  "q, k, v: expected addresses that are multiples of 16 bytes; call .clone()");
  check(slopes, "slopes").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(slopes, "slopes").same_device(q, "q");
  if (slopes.numel() > 0) check(slopes, "slopes").size(0, q.size(1));
  STD_TORCH_CHECK(window >= 0, "window: expected 0 (no limit) or more, got ", window);
}

template <bool SKIP>
std::tuple<Tensor, Tensor> fused_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& slopes, int64_t window, const char* name) {
  check_inputs(q, k, v, slopes, window);
  const DeviceGuard guard(q);
  require_capability(8, 0, "mma.sync of 16×8×16");
  const int64_t D = q.size(3), bytes = (BM + 4 * BN) * D * q.element_size();
  require_shared_memory(bytes, "the tiles of q, k and v");
  Tensor o = allocate_like(q);
  Tensor lse = allocate(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  if (q.numel() == 0) return {o, lse};  // a grid of no blocks is an error
  flash::Arguments n{};
  n.q = q.const_data_ptr(), n.k = k.const_data_ptr(), n.v = v.const_data_ptr();
  n.o = o.mutable_data_ptr(), n.lse = mutable_data<float>(lse);
  n.B = static_cast<int>(q.size(0)), n.H = static_cast<int>(q.size(1));
  n.S = static_cast<int>(q.size(2)), n.T = static_cast<int>(k.size(2));
  n.tiles = ceil_div(n.S, BM), n.ahead = n.T - n.S;
  n.scale_log2 = static_cast<float>(flash::LOG2_E / std::sqrt(static_cast<double>(D)));
  n.slack = 8 / n.scale_log2;  // p stays at or below 2⁸
  const int most = n.S + n.T;  // no window needs to be longer
  const Pattern pattern{window == 0 ? most : static_cast<int>(std::min<int64_t>(window, most)),
                        slopes.numel() > 0 ? data<float>(slopes) : nullptr};
  const auto run = [&]<typename T, int COLUMNS>() {
    const auto kernel = pattern.slopes != nullptr ? fused_attention_kernel<T, COLUMNS, true, SKIP>
                                                  : fused_attention_kernel<T, COLUMNS, false, SKIP>;
    allow_shared(kernel, bytes);
    const unsigned grid = grid_size(q.size(0) * q.size(1) * n.tiles, "q");
    kernel<<<grid, THREADS, bytes, current_stream(q)>>>(n, pattern);
  };
  const auto of_type = [&]<typename T>(T) {
    D == 64 ? run.template operator()<T, 64>() : run.template operator()<T, 128>();
  };
  q.scalar_type() == ScalarType::Half ? of_type(__half{}) : of_type(__nv_bfloat16{});
  check_launch(name);
  return {o, lse};
}

// v1: flash attention over all keys, of which the pattern hides some.
std::tuple<Tensor, Tensor> fused_attention_v1_masked(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& slopes,
                                                     int64_t window) {
  return fused_attention<false>(q, k, v, slopes, window, "fused_attention_v1_masked");
}

// v2 against v1: a tile that no row sees is neither loaded nor multiplied, and one that all rows
// see entirely is not masked.
std::tuple<Tensor, Tensor> fused_attention_v2_tiles(const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const Tensor& slopes,
                                                    int64_t window) {
  return fused_attention<true>(q, k, v, slopes, window, "fused_attention_v2_tiles");
}

// ---------------------------------------------------------------------------------------------

#define SCHEMA "(Tensor q, Tensor k, Tensor v, Tensor slopes, int window=0) -> (Tensor, Tensor)"
RUNG(day66, fused_attention_v1_masked, SCHEMA);
RUNG(day66, fused_attention_v2_tiles, SCHEMA);

// Day 79: multi-head latent attention: decoding with absorbed weights
//
//   o[b, h] = sum_t softmax_t(scale · q[b, h] · cache[b, t]) cache[b, t, :512]
//   over t < lengths[b]
//
// q: (B, H, 576), cache: (B, T, 576), o: (B, H, 512), in fp16 or bf16. All H heads share the rows
// of the cache: 512 elements are a token's key and its value, 64 more belong to its key. Bytes:
// 1152 per token. Operations: 2 · H · (576 + 512) per token, or 1.9 · H per byte. With H = 128 that
// is 242, about as many as an H100 does per byte: tensor cores and memory are limits at the same
// time. With H = 16, the share of one of eight GPUs, it is 30, and memory is the limit.
//
//   v1 warp_per_head  CUDA cores; each warp reads all tokens of its range for one head
//   v2 mma            64 heads per block: a tile of tokens in shared memory serves both products
//   v3 wgmma          TMA loads the tiles; one warpgroup computes scores, two sum up the values
//   v4 even           one block per multiprocessor, with an equal share of all tokens
//
// Run: python run_day.py 79

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day79/latent_wgmma.cuh"

#include <climits>

// ---------------------------------------------------------------------------------------------
// v1: lane l has elements 64i + 2l and the next one of a row, for i < 8 the values, for 8 the rest.

constexpr int PAIRS = KEY / 64, VALUE_PAIRS = RANK / 64;
constexpr int WARP_HEADS = BLOCK / 32;  // heads per block

template <typename T>
__device__ void unpack(float (&x)[2 * PAIRS], const T* row) {
  const auto* const pairs = reinterpret_cast<const Chunk<T, 2>*>(row);
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const Chunk<T, 2> two = pairs[32 * i + threadIdx.x % 32];
    x[2 * i] = static_cast<float>(two.at[0]), x[2 * i + 1] = static_cast<float>(two.at[1]);
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) mla_by_warps_kernel(Latent<T> n) {
  const Range r = split_range(n, blockIdx.x / n.tiles);
  const int lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.x % n.tiles) * WARP_HEADS + threadIdx.x / 32;
  if (r.begin >= r.end || head >= n.H) return;
  float q[2 * PAIRS], out[2 * VALUE_PAIRS] = {}, most = -INFINITY, sum = 0;
  unpack(q, n.q + (int64_t{r.b} * n.H + head) * KEY);
  for (int t = r.begin; t < r.end; ++t) {
    float x[2 * PAIRS], score = 0;
    unpack(x, n.cache + (r.b * n.room + t) * KEY);
#pragma unroll
    for (int e = 0; e < 2 * PAIRS; ++e) score += q[e] * x[e];
    score = warp_sum(score) * n.scale_log2;
    const float now = fmaxf(most, score);
    const float base = now == -INFINITY ? 0.0f : now;  // -inf - -inf would be NaN
    const float shrink = exp2f(most - base), p = exp2f(score - base);
    most = now;
    sum = sum * shrink + p;
#pragma unroll
    for (int e = 0; e < 2 * VALUE_PAIRS; ++e) out[e] = out[e] * shrink + p * x[e];
  }
  const int64_t row = r.part * n.H + head;
  if (lane == 0) n.parts.stats[row] = {most, sum};
#pragma unroll
  for (int i = 0; i < VALUE_PAIRS; ++i) {
    auto* const to = reinterpret_cast<float2*>(n.parts.outputs + row * RANK + 64 * i);
    to[lane] = {out[2 * i], out[2 * i + 1]};
  }
}

// One warp per row of the output merges the parts of v1 to v3. stored: whether the only part of a
// sequence has been stored as its output already.
template <typename T>
__global__ void merge_kernel(Latent<T> n, int64_t rows, bool stored) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;  // [0, B · H)
  if (row >= rows) return;
  const int64_t b = row / n.H;
  const Range r = split_range(n, b * n.splits);
  if (stored && r.count == 1) return;
  store_output<RANK>(n.o + row * RANK, n.parts, r.first, r.count, n.H, static_cast<int>(row % n.H));
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a row that has been loaded serves 64 heads, by mma.sync. Warp (r, c) of 4 × 2 has
// heads 16r + [0, 16): the scores of tokens 16c + [0, 16) of a tile, and columns 256c + [0, 256) of
// o. Exponentials are exchanged through shared memory.

constexpr int TOKENS = 32;  // per tile
constexpr int MMA_THREADS = 256;
constexpr int MMA_TILE = TOKENS * KEY;  // elements
constexpr int P_ROW = 64;               // elements between rows of p, of which 32 are used
constexpr int MMA_BYTES = (HEADS * KEY + 2 * MMA_TILE + HEADS * P_ROW) * 2 + TILE_ALIGNMENT;

// Starts the copies of `count` rows, zeros from `rows` on: 0 · NaN would be NaN.
template <typename T>
__device__ void copy_rows(T* tile, const T* from, int count, int rows) {
  constexpr int CHUNKS = KEY / tiles::CHUNK;
  for (int e = threadIdx.x; e < count * CHUNKS; e += MMA_THREADS) {
    const int row = e / CHUNKS, chunk = e % CHUNKS;
    const int64_t at = row < rows ? row * KEY + chunk * tiles::CHUNK : 0;
    ptx::cp_async_zero_fill<16>(tile + tiles::swizzled<KEY>(row, chunk), from + at,
                                row < rows ? 16 : 0);
  }
}

template <typename T>
__global__ void __launch_bounds__(MMA_THREADS, 1) mla_mma_kernel(Latent<T> n) {
#ifdef HAS_BF16_MMA
  __shared__ float exchanged[2][HEADS];  // by c: maxima of a tile, and sums at the end
  T* const q = reinterpret_cast<T*>(tile_memory());
  T* const ring = q + HEADS * KEY;
  T* const p = ring + 2 * MMA_TILE;  // (HEADS, P_ROW)
  const Range range = split_range(n, blockIdx.x / n.tiles);
  if (range.begin >= range.end) return;
  const int first = static_cast<int>(blockIdx.x % n.tiles) * HEADS;
  const int r = threadIdx.x / 32 % 4, c = threadIdx.x / 128;
  const int g = threadIdx.x % 32 / 4, lane2 = threadIdx.x % 4 * 2;
  const T* const rows = n.cache + range.b * n.room * KEY;

  copy_rows(q, n.q + (int64_t{range.b} * n.H + first) * KEY, HEADS, n.H - first);
  copy_rows(ring, rows + int64_t{range.begin} * KEY, TOKENS, range.end - range.begin);
  ptx::cp_async_commit();
  float o[SUMS][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int t = range.begin, stage = 0; t < range.end; t += TOKENS, stage ^= 1) {
    ptx::cp_async_wait_all();
    __syncthreads();  // the copies of all threads are there, and all have read the tile before
    const int next = t + TOKENS;
    if (next < range.end) {
      copy_rows(ring + (stage ^ 1) * MMA_TILE, rows + int64_t{next} * KEY, TOKENS,
                range.end - next);
    }
    ptx::cp_async_commit();
    const T* const tile = ring + stage * MMA_TILE;
    float s[2][4] = {};  // tokens 16c + [0, 8) and 16c + [8, 16)
#pragma unroll 4
    for (int d = 0; d < KEY; d += 16) {
      uint32_t a[4], b[2][2];
      tiles::load_a<KEY>(a, q, 16 * r, d);
      tiles::load_b_transposed<KEY>(b, tile, 16 * c, d);
      ptx::mma_m16n8k16<T>(s[0], a, b[0], s[0]);
      ptx::mma_m16n8k16<T>(s[1], a, b[1], s[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[i / 2][2 * h + i % 2];
        const int token = t + 16 * c + i / 2 * 8 + lane2 + i % 2;
        x = token < range.end ? x * n.scale_log2 : -INFINITY;
        top = fmaxf(top, x);
      }
      top = tiles::row_max(top);
      if (lane2 == 0) exchanged[c][16 * r + g + 8 * h] = top;
    }
    __syncthreads();  // both warps of a row wait for each other's maximum
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * r + g + 8 * h;
      const float now = fmaxf(most[h], fmaxf(exchanged[0][row], exchanged[1][row]));
      const float base = now == -INFINITY ? 0.0f : now;  // -inf - -inf would be NaN
      const float shrink = ptx::exp2_approx(most[h] - base);
      most[h] = now;
      sum[h] *= shrink;
#pragma unroll
      for (auto& x : o) x[2 * h] *= shrink, x[2 * h + 1] *= shrink;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float low = ptx::exp2_approx(s[i][2 * h] - base);
        const float high = ptx::exp2_approx(s[i][2 * h + 1] - base);
        sum[h] += low + high;
        T* const to = p + tiles::swizzled<P_ROW>(row, 2 * c + i) + lane2;
        *reinterpret_cast<uint32_t*>(to) = tiles::pack<T>(low, high);
      }
    }
    __syncthreads();  // the exponentials of all 32 tokens are there
#pragma unroll
    for (int k = 0; k < TOKENS; k += 16) {
      uint32_t a[4];
      tiles::load_a<P_ROW>(a, p, 16 * r, k);
#pragma unroll
      for (int d = 0; d < HALF; d += 16) {
        uint32_t b[2][2];
        tiles::load_b<KEY>(b, tile, k, HALF * c + d);
        ptx::mma_m16n8k16<T>(o[d / 8], a, b[0], o[d / 8]);
        ptx::mma_m16n8k16<T>(o[d / 8 + 1], a, b[1], o[d / 8 + 1]);
      }
    }
  }
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = tiles::row_sum(sum[h]);
    if (lane2 == 0) exchanged[c][16 * r + g + 8 * h] = sum[h];
  }
  __syncthreads();  // both warps of a row wait for each other's sum
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = 16 * r + g + 8 * h, head = first + row;
    const float all = exchanged[0][row] + exchanged[1][row];
    factor[h] = last_factor(range, all);
    if (c == 0 && lane2 == 0 && head < n.H) n.parts.stats[range.part * n.H + head] = {most[h], all};
  }
  store_rows(n, range, first + 16 * r + g, HALF * c + lane2,
             [&](int i) { return o[i / 4][i % 4] * factor[i / 2 % 2]; });
#endif
}

// ---------------------------------------------------------------------------------------------
// v3 and v4: latent_wgmma.cuh. v3 against v2: wgmma and TMA. v4 against v3: a block has an equal
// share of the tokens of all sequences, instead of a part of one.

// Checks, allocates, and calls launch(n), with n but for its tiles, splits and parts.
template <typename F>
Tensor mla(const Tensor& q, const Tensor& cache, const Tensor& lengths, double scale,
           const char* name, F&& launch) {
  check(q, "q").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(3).contiguous();
  check(q, "q").size(2, KEY);
  const int64_t B = q.size(0), H = q.size(1);
  check(cache, "cache").on_gpu().dtype({q.scalar_type()}).rank(3).contiguous();
  check(cache, "cache").size(0, B).size(2, KEY).same_device(q, "q");
  check(lengths, "lengths").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous().size(0, B);
  check(lengths, "lengths").same_device(q, "q");
  const int64_t T = cache.size(1);
  STD_TORCH_CHECK(T <= MAX_TOKENS, "cache: expected at most ", MAX_TOKENS, " tokens, got ", T);
  STD_TORCH_CHECK(B <= INT_MAX / 2 && H <= INT_MAX / 2, "q: expected fewer than 2^30 sequences ",
                  "and heads, got shape ", shape_of(q));
  STD_TORCH_CHECK(is_aligned(q, 16) && is_aligned(cache, 16),
                  "q, cache: expected first elements on multiples of 16 bytes");
  const float scale_log2 = scale_log2_of(scale);
  const DeviceGuard guard(q);
  Tensor o = torch::stable::new_empty(q, {B, H, RANK});
  if (o.numel() == 0) return o;
  dispatch_16_bits(q, [&](auto zero) {
    using Type = decltype(zero);
    Latent<Type> n{};
    n.q = data<Type>(q), n.cache = data<Type>(cache), n.lengths = data<int>(lengths);
    n.o = mutable_data<Type>(o), n.room = T, n.scale_log2 = scale_log2;
    n.B = static_cast<int>(B), n.H = static_cast<int>(H);
    launch(n);
  });
  check_launch(name);
  return o;
}

// Memory for `parts` parts of all heads. It lives until the launches after it are enqueued.
struct LatentParts {
  Tensor stats, outputs;

  LatentParts(const Tensor& q, int64_t parts)
      : stats(torch::stable::new_empty(q, {parts, q.size(1), 2}, ScalarType::Float)),
        outputs(torch::stable::new_empty(q, {parts, q.size(1), RANK}, ScalarType::Float)) {}

  Parts pointers() const {
    return {static_cast<float2*>(stats.mutable_data_ptr()), mutable_data<float>(outputs)};
  }
};

// As many splits per sequence as there are resident blocks for, but at least a unit for each; the
// launch of a kernel with `heads` heads per block; and the merge.
template <typename T, typename Kernel, typename... Maps>
void launch_split(Latent<T>& n, const Tensor& q, Kernel kernel, int threads, int64_t bytes,
                  int heads, bool stored, const Maps&... maps) {
  n.tiles = ceil_div(n.H, heads);
  const int64_t resident = resident_grid(q, kernel, threads, bytes, INT_MAX);
  const int64_t fit = resident / (int64_t{n.B} * n.tiles), most = ceil_div<int64_t>(n.room, BN);
  n.splits = static_cast<int>(std::max(int64_t{1}, std::min(fit, most)));
  const LatentParts memory(q, int64_t{n.B} * n.splits);
  n.parts = memory.pointers();
  const unsigned grid = grid_size(int64_t{n.B} * n.splits * n.tiles, "q");
  kernel<<<grid, threads, bytes, current_stream(q)>>>(n, maps...);
  check_launch("mla");
  const int64_t rows = int64_t{n.B} * n.H;
  merge_kernel<T>
      <<<grid_size(ceil_div<int64_t>(rows, WARPS), "q"), THREADS, 0, current_stream(q)>>>(n, rows,
                                                                                          stored);
}

Tensor mla_v1_warp_per_head(const Tensor& q, const Tensor& cache, const Tensor& lengths,
                            double scale) {
  return mla(q, cache, lengths, scale, "mla_v1_warp_per_head", [&]<typename T>(Latent<T>& n) {
    launch_split(n, q, mla_by_warps_kernel<T>, BLOCK, 0, WARP_HEADS, false);
  });
}

Tensor mla_v2_mma(const Tensor& q, const Tensor& cache, const Tensor& lengths, double scale) {
  return mla(q, cache, lengths, scale, "mla_v2_mma", [&]<typename T>(Latent<T>& n) {
    require_capability(8, 0, "mma.sync of 16×8×16");
    require_shared_memory(MMA_BYTES + 1024, "the tiles of q and of the cache");
    allow_shared(mla_mma_kernel<T>, MMA_BYTES);
    launch_split(n, q, mla_mma_kernel<T>, MMA_THREADS, MMA_BYTES, HEADS, true);
  });
}

// The rows of each sequence, as a matrix of its own: a box that reaches beyond the last row gets
// zeros, not the next sequence's rows.
template <typename T>
TensorMap rows_map(const Tensor& t) {
  return ptx::make_tensor_map(
      data<T>(t),
      {.sizes = {KEY, t.size(1), t.size(0)}, .box = {BOX, HEADS, 1}, .swizzle = Swizzle::k128});
}

template <typename T, bool EVEN>
void prepare(const Tensor& q) {
  require_wgmma();
  require_shared_memory(WGMMA_BYTES + 1024, "the tiles of q and of the cache");
  allow_shared(mla_wgmma_kernel<T, EVEN>, WGMMA_BYTES);
}

Tensor mla_v3_wgmma(const Tensor& q, const Tensor& cache, const Tensor& lengths, double scale) {
  return mla(q, cache, lengths, scale, "mla_v3_wgmma", [&]<typename T>(Latent<T>& n) {
    prepare<T, false>(q);
    launch_split(n, q, mla_wgmma_kernel<T, false>, WGMMA_THREADS, WGMMA_BYTES, HEADS, true,
                 rows_map<T>(q), rows_map<T>(n.room > 0 ? cache : q));  // without rows, any map
  });
}

Tensor mla_v4_even(const Tensor& q, const Tensor& cache, const Tensor& lengths, double scale) {
  return mla(q, cache, lengths, scale, "mla_v4_even", [&]<typename T>(Latent<T>& n) {
    prepare<T, true>(q);
    n.tiles = ceil_div(n.H, HEADS);
    // A share has a block per tile of heads; these read the same rows at about the same time.
    const int64_t shares = std::max(1, multiprocessor_count(q) / n.tiles);
    const LatentParts memory(q, shares + n.B);
    n.parts = memory.pointers();
    const Tensor arrived = torch::stable::new_zeros(q, {int64_t{n.B} * n.tiles}, ScalarType::Int);
    n.arrived = mutable_data<int>(arrived);
    const unsigned grid = grid_size(shares * n.tiles, "q");
    mla_wgmma_kernel<T, true><<<grid, WGMMA_THREADS, WGMMA_BYTES, current_stream(q)>>>(
        n, rows_map<T>(q), rows_map<T>(n.room > 0 ? cache : q));
  });
}

// ---------------------------------------------------------------------------------------------

#define MLA "(Tensor q, Tensor cache, Tensor lengths, float scale) -> Tensor"

RUNG(day79, mla_v1_warp_per_head, MLA);
RUNG(day79, mla_v2_mma, MLA);
RUNG(day79, mla_v3_wgmma, MLA);
RUNG(day79, mla_v4_even, MLA);

// Day 79: multi-head latent attention: decoding with absorbed weights
//
//   o[b, h] = sum_t softmax_t(scale · q[b, h] · cache[b, t]) cache[b, t, :512]
//   over t < lengths[b]
//
// q: (B, H, 576), cache: (B, T, 576), o: (B, H, 512), in fp16 or bf16. All H heads share the rows
// of the cache: 512 elements are a token's key and its value, 64 more belong to its key. Bytes:
// 1152 per token. Operations: 2 · H · (576 + 512) per token, or 1.9 · H per byte. With H = 128 that
// is 242, more than an H200's 207: tensor cores and memory take about the same time. With H = 16,
// the share of one of eight GPUs, it is 30, and the problem is memory-bound.
//
//   v1 warp_per_head  CUDA cores; each warp reads all tokens of its range for one head
//   v2 mma            64 heads per block: a tile of tokens in shared memory serves both products
//   v3 wgmma          TMA loads the tiles; one warpgroup computes scores, two sum up the values
//   v4 even           one block per multiprocessor, with an equal share of all tokens
//
// Run: python run_day.py 79

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day79/latent_mma.cuh"
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
// v3 against v2: wgmma and TMA (latent_wgmma.cuh), and a role for each warpgroup. v4 against v3: a
// block has an equal share of the tokens of all sequences, instead of a part of one.

template <typename T, bool EVEN>
struct Roles : Boxes {
  const Latent<T>& n;
  int tile;  // of heads

  // One thread loads: a tile's boxes in the order of their use, and q after the first tile.
  __device__ void load(Walk<T, EVEN>& walk, const TensorMap& q, const TensorMap& cache) const {
    const auto column = [](int box) { return box == 0 ? RANK : (box - 1) * BOX; };
    Range r;
    for (int i = 0, round = 0; walk.next(n, r); ++round) {
      for (int t = r.begin; t < r.end; t += BN) {
        for (int box = 0; box < BOXES; ++box, ++i) {
          uint64_t* const full = &at.full[i % SLOTS];
          ptx::mbarrier_wait(&at.empty[i % SLOTS], 1 - i / SLOTS % 2);
          ptx::mbarrier_arrive_expect_bytes(full, BOX_BYTES);
          ptx::load_tensor(slot(i), cache, {column(box), t, r.b}, full);
        }
        if (t > r.begin) continue;
        ptx::mbarrier_wait(&at.q_empty, 1 - round % 2);
        ptx::mbarrier_arrive_expect_bytes(&at.q_full, BOXES * BOX_BYTES);
        for (int box = 0; box < BOXES; ++box) {
          ptx::load_tensor(q_box(box), q, {column(box), tile * HEADS, r.b}, &at.q_full);
        }
      }
    }
  }

  // The next range of the block, for whole warps.
  __device__ bool next_range(Walk<T, EVEN>& walk, Range& r) const {
    const bool more = walk.next(n, r);
    r.begin = of_warp(r.begin), r.end = of_warp(r.end);
    return of_warp(more) != 0;
  }

  // What a thread of the first warpgroup has of its rows.
  struct Rows {
    float o[4 * SUMS] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    uint32_t p[BN / 16][4];  // the exponentials of a tile, rounded: a of the second product
  };

  __device__ void hand_over(const float (&factor)[2]) const {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if (threadIdx.x % 4 == 0) at.factors[row] = factor[0], at.factors[row + 8] = factor[1];
    ptx::barrier_arrive(P_FULL, CONSUMERS);
  }

  // Scores and exponentials of the tile from token t on, whose first box is the i-th. The
  // exponentials are for both warpgroups. Unless it is the FIRST tile of the range, products with
  // the values of the tile before are in flight, and are waited for here.
  template <bool FIRST>
  __device__ __forceinline__ void attend(Rows& rows, const Range& r, int t, int i) const {
    if (t + BN > r.end) clear_rows(i, r.end - t);
    float s[BN / 2], factor[2];
    multiply_keys<T>(s, i, [&] {
      if constexpr (!FIRST) {
        ptx::wgmma_wait<1>(rows.o);
        release_values(i - BOXES + 1);
      }
    });
    ptx::wgmma_wait<0>(s);
    release(&at.empty[i % SLOTS]);  // the rotary box
    if (t + BN >= r.end) release(&at.q_empty);
    const bool grown = softmax_step(s, rows.most, rows.sum, n.scale_log2, r.end - t, factor);
#pragma unroll
    for (int j = 0; j < BN / 16; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        rows.p[j][e] = tiles::pack<T>(s[8 * j + 2 * e], s[8 * j + 2 * e + 1]);
    }
    ptx::barrier_sync(P_EMPTY, CONSUMERS);  // the other warpgroup has read the tile before
#pragma unroll
    for (int j = 0; j < BN / 16; ++j) {
      const auto& p = rows.p[j];
      *exponentials(threadIdx.x, j) = {p[0], p[1], p[2], p[3]};
    }
    hand_over(factor);
    if (!FIRST && grown) multiply_rows(rows.o, factor);
  }

  // The first warpgroup: scores, exponentials, and values [0, 256).
  __device__ __forceinline__ void score(Walk<T, EVEN>& walk) const {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    Range r;
    for (int i = 0, round = 0; next_range(walk, r); ++round) {
      Rows rows;
      ptx::mbarrier_wait(&at.q_full, round % 2);
      attend<true>(rows, r, r.begin, i);
      i += BOXES;
      for (int t = r.begin + BN; t < r.end; t += BN, i += BOXES) {
        multiply_values<T>(rows.o, rows.p, i - BOXES + 1);
        attend<false>(rows, r, t, i);
      }
      multiply_values<T>(rows.o, rows.p, i - BOXES + 1);
      ptx::wgmma_wait<0>(rows.o);
      release_values(i - BOXES + 1);
      float factor[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = tile * HEADS + row + 8 * h;
        const float sum = tiles::row_sum(rows.sum[h]);
        factor[h] = last_factor(r, sum);
        if (threadIdx.x % 4 == 0 && head < n.H)
          n.parts.stats[r.part * n.H + head] = {rows.most[h], sum};
      }
      ptx::barrier_sync(P_EMPTY, CONSUMERS);
      hand_over(factor);
      store(rows.o, factor, r, 0);
    }
    ptx::barrier_sync(P_EMPTY, CONSUMERS);  // completes the other warpgroup's last arrival
  }

  // The second warpgroup: values [256, 512). Thread t has the rows of the first warpgroup's thread
  // t, so it needs exactly that thread's exponentials.
  __device__ __forceinline__ void add_values(Walk<T, EVEN>& walk) const {
    const int thread = threadIdx.x - WARPGROUP, row = thread / 32 * 16 + thread % 32 / 4;
    ptx::barrier_arrive(P_EMPTY, CONSUMERS);
    Range r;
    for (int i = 0; next_range(walk, r);) {
      float o[4 * SUMS] = {}, factor[2];
      for (int t = r.begin; t < r.end; t += BN, i += BOXES) {
        uint32_t p[BN / 16][4];
        ptx::barrier_sync(P_FULL, CONSUMERS);
#pragma unroll
        for (int j = 0; j < BN / 16; ++j) {
          const uint4 words = *exponentials(thread, j);
          p[j][0] = words.x, p[j][1] = words.y, p[j][2] = words.z, p[j][3] = words.w;
        }
        factor[0] = at.factors[row], factor[1] = at.factors[row + 8];
        ptx::barrier_arrive(P_EMPTY, CONSUMERS);
        if (__any_sync(FULL_WARP, factor[0] != 1 || factor[1] != 1)) multiply_rows(o, factor);
#pragma unroll
        for (int box = 5; box < BOXES; ++box) wait_full(i + box);
        multiply_values<T>(o, p, i + 5);
        ptx::wgmma_wait<0>(o);
        release_values(i + 5);
      }
      ptx::barrier_sync(P_FULL, CONSUMERS);
      factor[0] = at.factors[row], factor[1] = at.factors[row + 8];
      ptx::barrier_arrive(P_EMPTY, CONSUMERS);
      store(o, factor, r, HALF);
    }
  }

  // The warpgroup's half of o, from column `first` on. In v4, the block that stores the last part
  // of a sequence merges them all.
  __device__ __forceinline__ void store(float (&o)[4 * SUMS], const float (&factor)[2],
                                        const Range& r, int first) const {
    const int thread = threadIdx.x % WARPGROUP, warp = threadIdx.x / 32;
    store_rows(n, r, tile * HEADS + thread / 32 * 16 + thread % 32 / 4, first + thread % 4 * 2,
               [&](int i) { return o[i] * factor[i / 2 % 2]; });
    if (!EVEN || r.count == 1) return;
    ptx::barrier_sync(BOTH, CONSUMERS);  // all threads have stored before thread 0 counts the block
    if (threadIdx.x == 0) {
      __threadfence();  // a block that reads the new count also reads this part
      at.last = atomicAdd(n.arrived + int64_t{r.b} * n.tiles + tile, 1) == r.count - 1;
      __threadfence();  // no part is read before the count
    }
    ptx::barrier_sync(BOTH, CONSUMERS);  // thread 0 has written `last`
    if (!at.last) return;
    const int heads = min(HEADS, n.H - tile * HEADS);
    for (int h = warp; h < heads; h += CONSUMERS / 32) {
      const int head = tile * HEADS + h;
      store_output<RANK>(n.o + (int64_t{r.b} * n.H + head) * RANK, n.parts, r.first, r.count, n.H,
                         head);
    }
  }

  // The output of sequences without a token, by all threads.
  __device__ void store_empty() const {
    const int heads = min(HEADS, n.H - tile * HEADS);
    for (int64_t b = blockIdx.x / n.tiles; b < n.B; b += gridDim.x / n.tiles) {
      if (n.length_of(static_cast<int>(b)) > 0) continue;
      T* const o = n.o + (b * n.H + tile * HEADS) * RANK;
      for (int e = threadIdx.x; e < heads * RANK; e += WGMMA_THREADS) o[e] = T(0.0f);
    }
  }
};

template <typename T, bool EVEN>
__global__ void __launch_bounds__(WGMMA_THREADS, 1)
    mla_wgmma_kernel(const __grid_constant__ Latent<T> n, const __grid_constant__ TensorMap q,
                     const __grid_constant__ TensorMap cache) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ Barriers at;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      ptx::mbarrier_init(&at.full[i], 1);
      ptx::mbarrier_init(&at.empty[i], WARPGROUP / 32);
    }
    ptx::mbarrier_init(&at.q_full, 1);
    ptx::mbarrier_init(&at.q_empty, WARPGROUP / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised before any thread uses one
  const Roles<T, EVEN> roles{{tile_memory(), at}, n, static_cast<int>(blockIdx.x % n.tiles)};
  const int role = of_warp(threadIdx.x / WARPGROUP);
  if (EVEN) roles.store_empty();
  Walk<T, EVEN> walk(n);
  if (role == 0) {  // 256 · 232 + 128 · 40 = 64,512 registers
    ptx::setmaxnreg_inc<232>();
    roles.score(walk);
  } else if (role == 1) {
    ptx::setmaxnreg_inc<232>();
    roles.add_values(walk);
  } else {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == CONSUMERS) roles.load(walk, q, cache);
  }
#endif
}

// ---------------------------------------------------------------------------------------------
// Launchers.

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
  Tensor o = allocate(q, {B, H, RANK});
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

// Memory for `parts` parts of all heads. It must live until the launches that use it are enqueued.
struct LatentParts {
  Tensor stats, outputs;

  LatentParts(const Tensor& q, int64_t parts)
      : stats(allocate(q, {parts, q.size(1), 2}, ScalarType::Float)),
        outputs(allocate(q, {parts, q.size(1), RANK}, ScalarType::Float)) {}

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
    const Tensor arrived = allocate_zeros(q, {int64_t{n.B} * n.tiles}, ScalarType::Int);
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

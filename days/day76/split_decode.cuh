// Attention of one query per head, where groups of query heads share a head of keys and values and
// several blocks share the tokens of a sequence: merging their parts, and the loop of v3 and v4.
// Day 77 runs the same loop over pages.
#pragma once

#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/mma_tiles.cuh"      // taught in day 26
#include "common/cuda/ptx/cp_async.cuh"   // taught in day 20
#include "common/cuda/ptx/exp2.cuh"       // taught in day 20
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day74/decode.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int TILE = 16;            // tokens of a warp's tile: k of the second product
constexpr int UNIT = WARPS * TILE;  // tokens per step of a block; ranges begin at multiples
constexpr int STAGES = 3;           // tiles in a warp's ring: one is read, two are in flight
constexpr int MAX_GROUP = 16;       // query heads per head of keys: the rows of a fragment
constexpr int MAX_TOKENS = INT_MAX - 2 * UNIT;  // loops count up to two units beyond the last one

// ---------------------------------------------------------------------------------------------
// Parts: what a block computes of the output of G query heads, from its range of the tokens.

// Row r of part p is row p · G + r. An output is relative to 2^max, and not divided by the sum.
struct Parts {
  float2* stats;   // (parts, G): max, sum
  float* outputs;  // (parts, G, D)
};

// The sum of parts of one row. A warp holds it: lane l has elements E · l + [0, E).
template <int D>
struct Merged {
  static constexpr int E = D / 32;
  float out[E] = {}, max = -INFINITY, sum = 0;
};

// Merges `count` parts of one row; the rows of successive parts are `stride` rows apart.
template <int D>
__device__ Merged<D> merge(const float2* stats, const float* outputs, int count, int stride) {
  constexpr int E = Merged<D>::E;
  const int lane = threadIdx.x % 32;
  Merged<D> all;
  for (int p = lane; p < count; p += 32) all.max = fmaxf(all.max, stats[p * stride].x);
  all.max = warp_max(all.max);
  const float base = all.max == -INFINITY ? 0.0f : all.max;  // -inf - -inf would be NaN
#pragma unroll 8
  for (int p = 0; p < count; ++p) {
    const float2 stat = stats[p * stride];
    const auto out =
        *reinterpret_cast<const Chunk<float, E>*>(outputs + int64_t{p} * stride * D + lane * E);
    const float factor = exp2f(stat.x - base);
    all.sum += factor * stat.y;
#pragma unroll
    for (int e = 0; e < E; ++e) all.out[e] += factor * out.at[e];
  }
  return all;
}

template <int D>
__device__ void store_part(const Parts& parts, int64_t row, const Merged<D>& all) {
  constexpr int E = Merged<D>::E;
  const int lane = threadIdx.x % 32;
  if (lane == 0) parts.stats[row] = {all.max, all.sum};
  Chunk<float, E> out;
#pragma unroll
  for (int e = 0; e < E; ++e) out.at[e] = all.out[e];
  *reinterpret_cast<Chunk<float, E>*>(parts.outputs + row * D + lane * E) = out;
}

// Merges parts first + [0, count) of row r of a group, and stores the row of the output.
template <int D, typename T>
__device__ void store_output(T* o, const Parts& parts, int64_t first, int count, int group, int r) {
  const int64_t row = first * group + r;
  const auto all = merge<D>(parts.stats + row, parts.outputs + row * D, count, group);
  constexpr int E = Merged<D>::E;
#pragma unroll
  for (int e = 0; e < E; ++e) {
    const float result = count > 0 ? all.out[e] / all.sum : 0.0f;
    o[threadIdx.x % 32 * E + e] = static_cast<T>(result);
  }
}

// ---------------------------------------------------------------------------------------------
// The loop of a warp. Lane 4g + t holds rows g and g + 8 of the 16 rows, of which G are query heads
// and the others are zeros: see ptx/mma.cuh.

template <int D>
struct Rows {
  float o[D / 8][4] = {};                                  // relative to 2^max
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // sum: over this lane's tokens only
};

// The 16 rows as fragments a. q: (G, D).
template <int D, typename T>
__device__ void load_queries(uint32_t (&a)[D / 16][4], const T* q, int group) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8, column = 16 * k + i / 2 * 8 + 2 * t;
      a[k][i] = row < group ? *reinterpret_cast<const uint32_t*>(q + row * D + column) : 0;
    }
  }
}

// Starts a warp's copies of TILE rows, with zeros from row `rows` on. What lies in memory beyond
// the last token may be NaN, and 0 · NaN is NaN.
template <int D, typename T>
__device__ void copy_tile(T* tile, const T* from, int rows) {
  constexpr int CHUNKS = D / tiles::CHUNK, STEP = 32 / CHUNKS;  // rows per instruction
  const int lane = threadIdx.x % 32, chunk = lane % CHUNKS;
#pragma unroll
  for (int i = 0; i < TILE; i += STEP) {
    const int row = i + lane / CHUNKS;
    ptx::cp_async_zero_fill<16>(tile + tiles::swizzled<D>(row, chunk),
                                from + row * D + chunk * tiles::CHUNK, row < rows ? 16 : 0);
  }
}

// Adds a tile of TILE tokens, of which the first `tokens` exist.
template <int D, typename T>
__device__ void attend(Rows<D>& rows, const uint32_t (&q)[D / 16][4], const T* keys,
                       const T* values, int tokens, float scale_log2) {
  float s[2][4] = {};  // tokens [0, 8) and [8, 16)
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t b[2][2];
    tiles::load_b_transposed<D>(b, keys, 0, d);
    ptx::mma_m16n8k16<T>(s[0], q[d / 16], b[0], s[0]);
    ptx::mma_m16n8k16<T>(s[1], q[d / 16], b[1], s[1]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& x = s[i / 4][i % 4];
    const int token = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    x = token < tokens ? x * scale_log2 : -INFINITY;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float first = fmaxf(s[0][2 * h], s[0][2 * h + 1]);
    const float second = fmaxf(s[1][2 * h], s[1][2 * h + 1]);
    const float most = fmaxf(rows.max[h], tiles::row_max(fmaxf(first, second)));
    // As long as all scores are -inf, 0 is subtracted: -inf - -inf would be NaN.
    const float base = most == -INFINITY ? 0.0f : most;
    const float shrink = ptx::exp2_approx(rows.max[h] - base);
    rows.max[h] = most;
    rows.sum[h] *= shrink;
#pragma unroll
    for (auto& c : rows.o) c[2 * h] *= shrink, c[2 * h + 1] *= shrink;
#pragma unroll
    for (auto& c : s) {
      c[2 * h] = ptx::exp2_approx(c[2 * h] - base);
      c[2 * h + 1] = ptx::exp2_approx(c[2 * h + 1] - base);
      rows.sum[h] += c[2 * h] + c[2 * h + 1];
    }
  }
  uint32_t p[4];
  tiles::to_a<T>(p, s[0], s[1]);
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t b[2][2];
    tiles::load_b<D>(b, values, 0, d);
    ptx::mma_m16n8k16<T>(rows.o[d / 8], p, b[0], rows.o[d / 8]);
    ptx::mma_m16n8k16<T>(rows.o[d / 8 + 1], p, b[1], rows.o[d / 8 + 1]);
  }
}

// Bytes of a block's rings, in which the warps' outputs are merged afterwards.
template <typename T, int D>
constexpr int ring_bytes() {
  constexpr int RINGS = WARPS * STAGES * 2 * TILE * D * static_cast<int>(sizeof(T));
  static_assert(RINGS >= WARPS * MAX_GROUP * D * static_cast<int>(sizeof(float)));
  return RINGS;
}

// The part of tokens [begin, end), for `group` query heads at q. begin is a multiple of UNIT.
// row_of(t): the row of keys and values of token t, for t = a multiple of TILE; the rows of the
// next TILE - 1 tokens follow it. A row below 0 does not exist, and makes the part NaN.
// `shared` has ring_bytes(). All threads of the block call it.
template <int D, typename T, typename F>
__device__ void attend_range(const T* q, const T* keys, const T* values, F&& row_of, int begin,
                             int end, int group, float scale_log2, T* shared, const Parts& parts,
                             int64_t part) {
  constexpr int HALF = TILE * D, STAGE = 2 * HALF;  // elements: keys, then values
  __shared__ float2 stats[WARPS * MAX_GROUP];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* const ring = shared + warp * STAGES * STAGE;

  // Each warp has every fourth tile, and a ring of its own: it waits for no other warp.
  int ahead = begin + warp * TILE;  // the next tile to fetch
  int64_t row = ahead < end ? row_of(ahead) : 0;
  bool missing = false;
  const auto fetch = [&](int stage) {
    if (ahead < end) {
      const int tokens = row < 0 ? 0 : end - ahead;
      missing |= row < 0;
      copy_tile<D>(ring + stage * STAGE, keys + row * D, tokens);
      copy_tile<D>(ring + stage * STAGE + HALF, values + row * D, tokens);
      ahead += UNIT;
      if (ahead < end) row = row_of(ahead);  // one tile early: it may have to be loaded
    }
    ptx::cp_async_commit();  // without a tile, an empty group: the count below stays right
  };
  for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);
  uint32_t fragments[D / 16][4];
  load_queries<D>(fragments, q, group);
  Rows<D> rows;
  for (int t = begin + warp * TILE, stage = 0; t < end; t += UNIT) {
    ptx::cp_async_wait<STAGES - 2>();  // this lane's copies of the tile are complete,
    __syncwarp();  // now those of all lanes, and all lanes have read the tile before
    fetch(stage == 0 ? STAGES - 1 : stage - 1);
    const T* const tile = ring + stage * STAGE;
    attend<D>(rows, fragments, tile, tile + HALF, end - t, scale_log2);
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }

  __syncthreads();  // all warps have read their rings, where the outputs go now
  float* const outputs = reinterpret_cast<float*>(shared);  // (WARPS, G, D)
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h, place = warp * group + r;
    const float sum = missing ? NAN : tiles::row_sum(rows.sum[h]);
    if (r >= group) continue;
    if (lane % 4 == 0) stats[place] = {rows.max[h], sum};
#pragma unroll
    for (int c = 0; c < D / 8; ++c) {
      const float2 two{rows.o[c][2 * h], rows.o[c][2 * h + 1]};
      *reinterpret_cast<float2*>(outputs + place * D + 8 * c + lane % 4 * 2) = two;
    }
  }
  __syncthreads();  // the warps that merge wait for the outputs of all warps
  for (int r = warp; r < group; r += WARPS) {
    store_part<D>(parts, part * group + r, merge<D>(stats + r, outputs + r * D, WARPS, group));
  }
}

// Counts this block in `arrived`, which begins at 0, and returns whether all `count` blocks have
// stored their parts. All threads of the block call it.
__device__ inline bool is_last(int* arrived, int count) {
  __shared__ bool last;
  __threadfence();  // a block that reads the new count also reads this part
  __syncthreads();  // all threads have stored before thread 0 counts the block
  if (threadIdx.x == 0) last = atomicAdd(arrived, 1) == count - 1;
  __syncthreads();  // thread 0 has written `last`
  __threadfence();  // no part below is read before the count
  return last;
}

// ---------------------------------------------------------------------------------------------
// What launchers check and allocate.

// For the kernels that use attend_range.
inline void require_tensor_cores(int64_t D) {
  require_capability(8, 0, "mma.sync of 16×8×16");
  const int64_t rings = D == 64 ? ring_bytes<__half, 64>() : ring_bytes<__half, 128>();
  require_shared_memory(rings + 1024, "the rings of four warps");
}

// q: (B, heads of queries, D), for B sequences with H heads of keys and values. Returns the query
// heads per head of keys.
inline int check_groups(const Tensor& q, int64_t B, int64_t H, const char* keys_name) {
  check(q, "q").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(3).contiguous();
  check(q, "q").size(0, B);
  const int64_t heads = q.size(1), D = q.size(2);
  STD_TORCH_CHECK(D == 64 || D == 128, "q: expected 64 or 128 elements per head, got ", D);
  STD_TORCH_CHECK(is_aligned(q, 4), "q: expected its first element on a multiple of 4 bytes");
  STD_TORCH_CHECK(H > 0 ? heads % H == 0 && heads <= H * MAX_GROUP : heads == 0,
                  "q: expected a multiple of the ", H, " heads of ", keys_name, ", at most ",
                  MAX_GROUP, " per head, got ", heads);
  return H > 0 ? static_cast<int>(heads / H) : 0;
}

inline float scale_log2_of(double scale) {
  STD_TORCH_CHECK(std::isfinite(scale) && std::isfinite(static_cast<float>(scale)),
                  "scale: expected a finite number of fp32, got ", scale);
  return static_cast<float>(scale * M_LOG2E);
}

// Memory for `parts` parts. It must live until the launches that use it are enqueued.
struct PartsMemory {
  Tensor stats, outputs;

  PartsMemory(const Tensor& q, int64_t parts, int group)
      : stats(allocate(q, {parts, group, 2}, ScalarType::Float)),
        outputs(allocate(q, {parts, group, q.size(2)}, ScalarType::Float)) {}

  Parts pointers() const {
    return {static_cast<float2*>(stats.mutable_data_ptr()), mutable_data<float>(outputs)};
  }
};

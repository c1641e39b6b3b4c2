// Day 93: spatial clustering, a Gaussian mixture whose labels form a Potts field
//
//   q'ᵢₖ = softmaxₖ(log wₖ - ½ Σ꜀ (log vₖ꜀ + (xᵢ꜀ - mₖ꜀)² / vₖ꜀) + β Σⱼ qⱼₖ)    j: neighbours of i
//   Nₖ = Σᵢ q'ᵢₖ + α    mₖ' = (Σᵢ q'ᵢₖ xᵢ + α mₖ) / Nₖ    vₖ' = (Σᵢ q'ᵢₖ xᵢ² + …) / Nₖ - mₖ'²
//   x (n, d), q (n, K), means m and variances v (K, d), all fp32; neighbours (n, N) int32, where a
//   number outside [0, n) is none. One call is one step of expectation and maximisation.
//
// n = 2^20, d = 32, K = 16, N = 6: x 134 MB, q 67 MB, neighbours 25 MB read, q' 67 MB written:
// 293 MB. 8 operations per point, cluster and feature, about 12 per point and cluster: 4.5 GFLOP.
//
//   v1 separate   one thread per likelihood; likelihoods, field and sums are kernels of their own
//   v2 tiles      likelihoods of 4 points and 4 clusters in registers; the field in the same kernel
//   v3 one_pass   the sums of the M-step in the same kernel: x is read once, q' is never read again
//
// Run: python run_day.py 93

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/warp_reduce.cuh"      // taught in day 23
#include "days/day93/parts.cuh"
#include "days/day93/step.cuh"

#include <type_traits>

constexpr int BLOCK = 256;
constexpr int POINTS = 128;         // per tile of v2 and v3
constexpr int MOST_CLUSTERS = 32;   // of v2 and v3: 8 lanes per point, 4 clusters per lane
constexpr int MOST_FEATURES = 128;  // of v2 and v3: a tile of x has at most 66 KB

// ---------------------------------------------------------------------------------------------
// v1: one thread per point and cluster, then one per point, then one per cluster and feature in
// each block. The likelihoods (n, kp) go through memory, and two of the kernels read x.

__global__ void __launch_bounds__(BLOCK)
    likelihood_v1_kernel(const Points p, const Table table, float* logits) {
  const int64_t at = int64_t{blockIdx.x} * BLOCK + threadIdx.x, i = at / p.kp;
  if (i >= p.n) return;
  const int k = static_cast<int>(at % p.kp);
  float sum = 0.0f;
  for (int c = 0; c < p.d; ++c) {
    const int64_t place = int64_t{c} * p.kp + k;
    const float y =
        fmaf(p.x[i * p.d + c] - table.shift[c], table.scale[place], table.offset[place]);
    sum = fmaf(y, y, sum);
  }
  logits[at] = table.constant[k] - sum;
}

__global__ void __launch_bounds__(BLOCK) field_v1_kernel(const Points p, float* logits, float* q) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= p.n) return;
  float most = -INFINITY, total = 0.0f;
  for (int k = 0; k < p.k; ++k) {
    float field = 0.0f;
    for (int e = 0; e < p.degree; ++e) {
      const int j = p.neighbours[i * p.degree + e];
      if (is_point(j, p.n)) field += p.q[int64_t{j} * p.k + k];
    }
    const float logit = fmaf(p.beta, field, logits[i * p.kp + k]);
    logits[i * p.kp + k] = logit;
    most = fmaxf(most, logit);
  }
  for (int k = 0; k < p.k; ++k) total += expf(logits[i * p.kp + k] - most);
  for (int k = 0; k < p.k; ++k) q[i * p.k + k] = expf(logits[i * p.kp + k] - most) / total;
}

// Points [b · POINTS, …) of block b, and on by the grid. A row of sums is complete in its block.
__global__ void __launch_bounds__(BLOCK)
    sums_v1_kernel(const Points p, const float* shift, const float* q, int64_t tiles, float* rows) {
  float* const row = rows + blockIdx.x * p.row();
  for (int at = threadIdx.x; at < p.kp * p.dp; at += BLOCK) {
    const int k = at / p.dp, c = at % p.dp;
    float sum = 0.0f, square = 0.0f, weight = 0.0f;
    for (int64_t tile = blockIdx.x; tile < tiles && k < p.k && c < p.d; tile += gridDim.x) {
      for (int64_t i = tile * POINTS; i < (tile + 1) * POINTS && i < p.n; ++i) {
        const float share = q[i * p.k + k], value = p.x[i * p.d + c] - shift[c];
        sum = fmaf(share, value, sum);
        square = fmaf(share, value * value, square);
        weight += share;
      }
    }
    row[at] = sum;
    row[p.kp * p.dp + at] = square;
    if (c == 0) row[2 * p.kp * p.dp + k] = weight;
  }
}

Step spatial_em_v1_separate(Tensor x, Tensor neighbours, Tensor q, Tensor weights, Tensor means,
                            Tensor variances, double beta) {
  return em_step(
      x, neighbours, q, weights, means, variances, beta,
      [&](const Points& p, const Table& table, float* next, auto new_rows) {
        const cudaStream_t stream = current_stream(x);
        Tensor logits = allocate(x, {p.n, p.kp});
        const int64_t tiles = ceil_div<int64_t>(p.n, POINTS);
        const unsigned blocks = resident_grid(x, sums_v1_kernel, BLOCK, 0, tiles);
        likelihood_v1_kernel<<<grid_size(ceil_div<int64_t>(p.n * p.kp, BLOCK), "x"), BLOCK, 0,
                               stream>>>(p, table, mutable_data<float>(logits));
        field_v1_kernel<<<grid_size(ceil_div<int64_t>(p.n, BLOCK), "x"), BLOCK, 0, stream>>>(
            p, mutable_data<float>(logits), next);
        sums_v1_kernel<<<blocks, BLOCK, 0, stream>>>(p, table.shift, next, tiles, new_rows(blocks));
        check_launch("spatial_em_v1_separate");
      });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: L lanes share a point, each with 4 clusters, and a thread has 4 points: 16 sums in
// registers, as in a tiled matrix product (day 8). All K likelihoods of a point lie in its lanes,
// so that the same kernel adds the field and normalises. The M-step is a second kernel of tiles.

// A tile in shared memory. row / 4 is odd, so that 8 rows of 16 bytes lie in 32 different banks.
struct Tile {
  float *x, *q, *scale, *offset;  // x: (POINTS, row), less shift; q: (POINTS, kp)
  int row;

  __host__ __device__ static int row_of(int dp) { return dp / 4 % 2 ? dp : dp + 4; }
  __host__ static int64_t bytes(const Points& p, bool parameters) {
    const int64_t floats = int64_t{POINTS} * (row_of(p.dp) + p.kp);
    return (floats + (parameters ? 2 * p.dp * p.kp : 0)) * 4;
  }
  __device__ Tile(float* shared, const Points& p) : x(shared), row(row_of(p.dp)) {
    q = x + POINTS * row;
    scale = q + POINTS * p.kp;
    offset = scale + p.dp * p.kp;
  }
};

// x - shift of the tile's points; 0 beyond the last point and feature.
template <int L>
__device__ void load_x(const Tile& tile, const Points& p, const float* shift, int64_t first,
                       bool packs) {
  const int parts = p.dp / 4;
  for (int at = threadIdx.x; at < POINTS * parts; at += 32 * L) {
    const int point = at / parts, c = at % parts * 4;
    float4 value{};
    if (first + point < p.n) {
      value = load_part(p.x + (first + point) * p.d, c, p.d, packs);
      const float4 less = load4(shift + c);
      value = make_float4(value.x - less.x, value.y - less.y, value.z - less.z, value.w - less.w);
    }
    store4(tile.x + point * tile.row + c, value);
  }
}

// Scale and offset to shared memory.
template <int L>
__device__ void load_parameters(const Tile& tile, const Points& p, const Table& table) {
  for (int at = threadIdx.x; at < p.dp * p.kp; at += 32 * L) {
    tile.scale[at] = table.scale[at];
    tile.offset[at] = table.offset[at];
  }
}

// Σ y² for 4 points, `point` + 32 i, and the 4 clusters from `cluster` on.
__device__ void add_squares(float (&sum)[4][4], const Tile& tile, const Points& p, int point,
                            int cluster) {
  for (int c = 0; c < p.dp; c += 4) {
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = load4(tile.x + (point + 32 * i) * tile.row + c);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float4 scale = load4(tile.scale + (c + e) * p.kp + cluster);
      float4 offset = load4(tile.offset + (c + e) * p.kp + cluster);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float y = fmaf(part_of(x[i], e), part_of(scale, k), part_of(offset, k));
          sum[i][k] = fmaf(y, y, sum[i][k]);
        }
      }
    }
  }
}

// Σⱼ qⱼ over the neighbours of point i, for 4 clusters.
__device__ float4 field_of(const Points& p, int64_t i, int cluster, bool packs) {
  float4 field{};
  for (int e = 0; e < p.degree; ++e) {
    const int j = p.neighbours[i * p.degree + e];
    if (!is_point(j, p.n)) continue;
    const float4 share = load_part(p.q + int64_t{j} * p.k, cluster, p.k, packs);
    field = make_float4(field.x + share.x, field.y + share.y, field.z + share.z, field.w + share.w);
  }
  return field;
}

// The softmax over the 4 L numbers of L lanes. All lanes of the warp must call it.
template <int L>
__device__ float4 softmax_of_lanes(float4 logit) {
  float most = fmaxf(fmaxf(logit.x, logit.y), fmaxf(logit.z, logit.w));
#pragma unroll
  for (int half = L / 2; half > 0; half /= 2) {
    most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, half));
  }
  float4 share = make_float4(expf(logit.x - most), expf(logit.y - most), expf(logit.z - most),
                             expf(logit.w - most));
  float total = share.x + share.y + (share.z + share.w);
#pragma unroll
  for (int half = L / 2; half > 0; half /= 2) total += __shfl_xor_sync(FULL_WARP, total, half);
  return make_float4(share.x / total, share.y / total, share.z / total, share.w / total);
}

// q' of a tile, to memory and to the tile, where points beyond the last have 0.
template <int L>
__device__ void expect(const Tile& tile, const Points& p, const Table& table, int64_t first,
                       bool packs, float* q) {
  const int cluster = threadIdx.x % L * 4, point = threadIdx.x / L;
  float sum[4][4] = {};
  add_squares(sum, tile, p, point, cluster);
  const float4 constant = load4(table.constant + cluster);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = first + point + 32 * i;
    const float4 field = at < p.n ? field_of(p, at, cluster, packs) : float4{};
    float4 share = softmax_of_lanes<L>(make_float4(fmaf(p.beta, field.x, constant.x - sum[i][0]),
                                                   fmaf(p.beta, field.y, constant.y - sum[i][1]),
                                                   fmaf(p.beta, field.z, constant.z - sum[i][2]),
                                                   fmaf(p.beta, field.w, constant.w - sum[i][3])));
    store4(tile.q + (point + 32 * i) * p.kp + cluster, at < p.n ? share : float4{});
    if (at >= p.n) continue;
    if (packs && cluster < p.k) store4(q + at * p.k + cluster, share);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (!packs && cluster + k < p.k) q[at * p.k + cluster + k] = part_of(share, k);
    }
  }
}

// One thread's part of the sums: 4 clusters × 4 features, of every `slices`-th point of a tile.
// They stay in registers from tile to tile.
template <int L>
struct Sums {
  float x[4][4] = {}, squares[4][4] = {}, weight[4] = {};
  int slice, slices, cluster, feature;

  __device__ explicit Sums(const Points& p) {
    const int parts = p.dp / 4;  // at most 32, so that there is at least one slice
    slices = 32 / parts;
    slice = threadIdx.x / (L * parts);
    cluster = threadIdx.x % (L * parts) / parts * 4;
    feature = threadIdx.x % parts * 4;
  }

  __device__ void add(const Tile& tile, const Points& p) {
    if (slice >= slices) return;  // the last threads, where 32 / parts leaves a remainder
#pragma unroll 2
    for (int point = slice; point < POINTS; point += slices) {
      float4 share = load4(tile.q + point * p.kp + cluster);
      float4 value = load4(tile.x + point * tile.row + feature);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float v = part_of(value, e), square = v * v;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          x[k][e] = fmaf(part_of(share, k), v, x[k][e]);
          squares[k][e] = fmaf(part_of(share, k), square, squares[k][e]);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) weight[k] += part_of(share, k);
    }
  }

  // The block's row of sums. One slice after the other adds its part to `shared`.
  __device__ void store(float* shared, const Points& p, float* row) const {
    const int size = p.kp * p.dp;
    for (int turn = 0; turn < slices; ++turn) {
      __syncthreads();  // the slice before has added, or, in turn 0, the last tile is used up
      if (slice != turn) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float* const to = shared + (cluster + k) * p.dp + feature;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          to[e] = turn ? to[e] + x[k][e] : x[k][e];
          to[size + e] = turn ? to[size + e] + squares[k][e] : squares[k][e];
        }
        float* const points = shared + 2 * size + cluster + k;
        if (feature == 0) *points = turn ? *points + weight[k] : weight[k];
      }
    }
    __syncthreads();  // the last slice has added
    for (int at = threadIdx.x; at < 2 * size + p.kp; at += 32 * L) row[at] = shared[at];
  }
};

template <int L>
__global__ void __launch_bounds__(32 * L)
    expect_v2_kernel(const Points p, const Table table, bool packs_x, bool packs_q, int64_t tiles,
                     float* q) {
  extern __shared__ __align__(128) float4 shared[];
  const Tile tile(reinterpret_cast<float*>(shared), p);
  load_parameters<L>(tile, p, table);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    load_x<L>(tile, p, table.shift, t * POINTS, packs_x);
    __syncthreads();  // the tile, and at first the parameters, are complete
    expect<L>(tile, p, table, t * POINTS, packs_q, q);
    __syncthreads();  // the tile is used up
  }
}

template <int L>
__global__ void __launch_bounds__(32 * L)
    maximise_v2_kernel(const Points p, const Table table, bool packs_x, bool packs_q, int64_t tiles,
                       const float* q, float* rows) {
  extern __shared__ __align__(128) float4 shared[];
  const Tile tile(reinterpret_cast<float*>(shared), p);
  Sums<L> sums(p);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    load_x<L>(tile, p, table.shift, t * POINTS, packs_x);
    for (int at = threadIdx.x; at < POINTS * L; at += 32 * L) {
      const int64_t i = t * POINTS + at / L;
      const int k = at % L * 4;
      store4(tile.q + at * 4, i < p.n ? load_part(q + i * p.k, k, p.k, packs_q) : float4{});
    }
    __syncthreads();  // the tile is complete
    sums.add(tile, p);
    __syncthreads();  // the tile is used up
  }
  sums.store(tile.x, p, rows + blockIdx.x * p.row());
}

// Calls f with 1, 2, 4 or 8 lanes per point, as a constant.
template <typename F>
void dispatch_lanes(const Points& p, F&& f) {
  STD_TORCH_CHECK(p.k <= MOST_CLUSTERS, "weights: expected at most ", MOST_CLUSTERS,
                  " clusters, got ", p.k);
  STD_TORCH_CHECK(p.d <= MOST_FEATURES, "x: expected at most ", MOST_FEATURES, " features, got ",
                  p.d);
  if (p.kp == 4) return f(std::integral_constant<int, 1>{});
  if (p.kp == 8) return f(std::integral_constant<int, 2>{});
  if (p.kp == 16) return f(std::integral_constant<int, 4>{});
  return f(std::integral_constant<int, 8>{});
}

Step spatial_em_v2_tiles(Tensor x, Tensor neighbours, Tensor q, Tensor weights, Tensor means,
                         Tensor variances, double beta) {
  return em_step(
      x, neighbours, q, weights, means, variances, beta,
      [&](const Points& p, const Table& table, float* next, auto new_rows) {
        dispatch_lanes(p, [&](auto lanes) {
          constexpr int L = decltype(lanes)::value;
          const cudaStream_t stream = current_stream(x);
          const int64_t tiles = ceil_div<int64_t>(p.n, POINTS), with = Tile::bytes(p, true),
                        without = Tile::bytes(p, false);
          allow_shared(expect_v2_kernel<L>, with);
          allow_shared(maximise_v2_kernel<L>, without);
          const unsigned first = resident_grid(x, expect_v2_kernel<L>, 32 * L, with, tiles);
          const unsigned second = resident_grid(x, maximise_v2_kernel<L>, 32 * L, without, tiles);
          const bool packs_x = packs_rows(x), packs_q = packs_rows(q);
          expect_v2_kernel<L>
              <<<first, 32 * L, with, stream>>>(p, table, packs_x, packs_q, tiles, next);
          maximise_v2_kernel<L><<<second, 32 * L, without, stream>>>(p, table, packs_x, packs_q,
                                                                     tiles, next, new_rows(second));
          check_launch("spatial_em_v2_tiles");
        });
      });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: as soon as a tile has its q', the block adds it to the sums, from shared memory.

constexpr int RESIDENT = 768;  // threads per multiprocessor, at least: 80 registers for each

template <int L>
__global__ void __launch_bounds__(32 * L, RESIDENT / (32 * L))
    spatial_em_v3_kernel(const Points p, const Table table, bool packs_x, bool packs_q,
                         int64_t tiles, float* q, float* rows) {
  extern __shared__ __align__(128) float4 shared[];
  const Tile tile(reinterpret_cast<float*>(shared), p);
  Sums<L> sums(p);
  load_parameters<L>(tile, p, table);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    load_x<L>(tile, p, table.shift, t * POINTS, packs_x);
    __syncthreads();  // the tile, and at first the parameters, are complete
    expect<L>(tile, p, table, t * POINTS, packs_q, q);
    __syncthreads();  // all of q' is in the tile
    sums.add(tile, p);
    __syncthreads();  // the tile is used up
  }
  sums.store(tile.x, p, rows + blockIdx.x * p.row());
}

Step spatial_em_v3_one_pass(Tensor x, Tensor neighbours, Tensor q, Tensor weights, Tensor means,
                            Tensor variances, double beta) {
  return em_step(
      x, neighbours, q, weights, means, variances, beta,
      [&](const Points& p, const Table& table, float* next, auto new_rows) {
        dispatch_lanes(p, [&](auto lanes) {
          constexpr int L = decltype(lanes)::value;
          const int64_t tiles = ceil_div<int64_t>(p.n, POINTS), bytes = Tile::bytes(p, true);
          allow_shared(spatial_em_v3_kernel<L>, bytes);
          const unsigned blocks = resident_grid(x, spatial_em_v3_kernel<L>, 32 * L, bytes, tiles);
          spatial_em_v3_kernel<L><<<blocks, 32 * L, bytes, current_stream(x)>>>(
              p, table, packs_rows(x), packs_rows(q), tiles, next, new_rows(blocks));
          check_launch("spatial_em_v3_one_pass");
        });
      });
}

// ---------------------------------------------------------------------------------------------

#define STEP                                                                                 \
  "(Tensor x, Tensor neighbours, Tensor q, Tensor weights, Tensor means, Tensor variances, " \
  "float beta) -> (Tensor, Tensor, Tensor, Tensor)"

RUNG(day93, spatial_em_v1_separate, STEP);
RUNG(day93, spatial_em_v2_tiles, STEP);
RUNG(day93, spatial_em_v3_one_pass, STEP);

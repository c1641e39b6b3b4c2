// What all rungs of day 93 share: the arguments, the table of parameters before the rung's kernels,
// and the new parameters after them.
#pragma once

#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <cmath>
#include <tuple>

constexpr int SLICES = 16;       // threads per sum of the last kernel
constexpr float PSEUDO = 1e-3f;  // α, pseudo-points: an empty cluster stays where it is
constexpr float LEAST = 1e-6f;   // variance

// What a step reads. Padded sizes: kp clusters and dp features, multiples of 4.
struct Points {
  const float* x;
  const int* neighbours;
  const float *q, *weights, *means, *variances;
  int64_t n;
  int d, k, degree, kp, dp;
  float beta;

  // Floats of one block's sums: Σ q x and Σ q x², both (kp, dp), then Σ q, (kp).
  __host__ __device__ int64_t row() const { return int64_t{2} * kp * dp + kp; }
};

// The parameters as the kernels use them: x - shift is standardised by one fmaf per feature.
struct Table {
  float *scale, *offset;  // (dp, kp)
  float* constant;        // (kp)
  float* shift;           // (dp): the mean of all means, so that the sums of squares stay small
};

// ---------------------------------------------------------------------------------------------
// Before all rungs' kernels: the table. One warp per cluster. A padded cluster has probability 0.

static __global__ void table_kernel(const Points p, const Table table) {
  const int k = blockIdx.x, lane = threadIdx.x;
  float logs = 0.0f;
  for (int c = lane; c < p.dp; c += 32) {
    float shift = 0.0f, scale = 0.0f, offset = 0.0f;
    if (c < p.d) {
      for (int other = 0; other < p.k; ++other) shift += p.means[int64_t{other} * p.d + c];
      shift /= static_cast<float>(p.k);
    }
    if (c < p.d && k < p.k) {
      const float variance = p.variances[int64_t{k} * p.d + c];
      scale = sqrtf(0.5f / variance);
      offset = (shift - p.means[int64_t{k} * p.d + c]) * scale;
      logs += logf(variance);
    }
    if (k == 0) table.shift[c] = shift;
    table.scale[int64_t{c} * p.kp + k] = scale;
    table.offset[int64_t{c} * p.kp + k] = offset;
  }
  logs = warp_sum(logs);
  if (lane == 0) table.constant[k] = k < p.k ? logf(p.weights[k]) - 0.5f * logs : -INFINITY;
}

// Whether j is a point.
__device__ inline bool is_point(int j, int64_t n) {
  return j >= 0 && j < n;
}

// ---------------------------------------------------------------------------------------------
// After all rungs' kernels: the blocks' sums become parameters. Block (k, 32 features), SLICES
// threads per feature, each of which adds every SLICES-th row. The order is fixed.

static __global__ void __launch_bounds__(32 * SLICES)
    parameters_kernel(const Points p, const float* shift, const float* rows, int count,
                      float* weights, float* means, float* variances) {
  __shared__ float3 parts[SLICES][32];
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
  const int k = blockIdx.x, c = static_cast<int>(blockIdx.y) * 32 + lane;
  const int64_t first = int64_t{k} * p.dp + c, squares = int64_t{p.kp} * p.dp;
  float3 sum = make_float3(0.0f, 0.0f, 0.0f);  // Σ q x, Σ q x², Σ q
#pragma unroll 4
  for (int row = slice; row < count; row += SLICES) {
    const float* const from = rows + row * p.row();
    if (c < p.d) {
      sum.x += from[first];
      sum.y += from[first + squares];
    }
    sum.z += from[2 * squares + k];
  }
  parts[slice][lane] = sum;
  __syncthreads();  // all slices are there before slice 0 adds them
  if (slice > 0) return;
  for (int i = 1; i < SLICES; ++i) {
    sum.x += parts[i][lane].x;
    sum.y += parts[i][lane].y;
    sum.z += parts[i][lane].z;
  }
  const float points = sum.z + PSEUDO;
  if (c == 0) weights[k] = points / (static_cast<float>(p.n) + PSEUDO * static_cast<float>(p.k));
  if (c >= p.d) return;
  const int64_t at = int64_t{k} * p.d + c;
  const float old = p.means[at] - shift[c];
  const float mean = (sum.x + PSEUDO * old) / points;
  const float square = (sum.y + PSEUDO * (p.variances[at] + old * old)) / points;
  const float variance = square - mean * mean;
  means[at] = shift[c] + mean;
  variances[at] = variance < LEAST ? LEAST : variance;  // NaN stays NaN
}

using Step = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // q, weights, means, variances

// Checks the arguments, makes the table, calls run(p, table, q, new_rows), which launches a rung's
// kernels, and makes parameters of their sums. new_rows(blocks) is memory for so many blocks' sums.
template <typename F>
Step em_step(const Tensor& x, const Tensor& neighbours, const Tensor& q, const Tensor& weights,
             const Tensor& means, const Tensor& variances, double beta, F&& run) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  const int64_t n = x.size(0), d = x.size(1);
  check(neighbours, "neighbours").on_gpu().dtype({ScalarType::Int}).rank(2).contiguous();
  check(neighbours, "neighbours").size(0, n).same_device(x, "x");
  check(weights, "weights").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(weights, "weights").same_device(x, "x");
  const int64_t k = weights.size(0), degree = neighbours.size(1);
  check(q, "q").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(q, "q").size(0, n).size(1, k).same_device(x, "x");
  check(means, "means").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(means, "means").size(0, k).size(1, d).same_device(x, "x");
  check(variances, "variances").on_gpu().contiguous().like(means, "means");
  STD_TORCH_CHECK(n <= 2147483647, "x: expected at most 2147483647 points, got ", n);
  STD_TORCH_CHECK(d >= 1 && d <= 1 << 16, "x: expected 1 to 65536 features, got ", d);
  STD_TORCH_CHECK(k >= 1 && k <= 1 << 12, "weights: expected 1 to 4096 clusters, got ", k);
  STD_TORCH_CHECK(degree <= 1 << 20, "neighbours: expected at most 2^20 per point, got ", degree);
  STD_TORCH_CHECK(std::isfinite(static_cast<float>(beta)), "beta: expected a finite number of ",
                  "fp32, got ", beta);
  int kp = 4;
  while (kp < k) kp *= 2;
  const Points p{data<float>(x),
                 data<int>(neighbours),
                 data<float>(q),
                 data<float>(weights),
                 data<float>(means),
                 data<float>(variances),
                 n,
                 static_cast<int>(d),
                 static_cast<int>(k),
                 static_cast<int>(degree),
                 kp,
                 static_cast<int>(ceil_div<int64_t>(d, 4) * 4),
                 static_cast<float>(beta)};
  const DeviceGuard guard(x);
  const cudaStream_t stream = current_stream(x);
  const int64_t size = int64_t{p.dp} * p.kp;
  Tensor tables = allocate(x, {2 * size + p.kp + p.dp});
  float* const first = mutable_data<float>(tables);
  const Table table{first, first + size, first + 2 * size, first + 2 * size + p.kp};
  table_kernel<<<p.kp, 32, 0, stream>>>(p, table);
  check_launch("table");
  Tensor next = allocate_like(q), rows = x;
  int count = 0;
  if (n > 0) {
    run(p, table, mutable_data<float>(next), [&](int64_t blocks) {
      count = static_cast<int>(blocks);
      rows = allocate(x, {blocks, p.row()});
      return mutable_data<float>(rows);
    });
  }
  Tensor w = allocate_like(weights), m = allocate_like(means), v = allocate_like(variances);
  const dim3 grid(p.k, ceil_div(p.d, 32));
  parameters_kernel<<<grid, 32 * SLICES, 0, stream>>>(
      p, table.shift, data<float>(rows), count, mutable_data<float>(w), mutable_data<float>(m),
      mutable_data<float>(v));
  check_launch("parameters");
  return {next, w, m, v};
}

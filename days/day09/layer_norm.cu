// Day 9: layer normalisation
//
//   y[r, c] = (x[r, c] - m[r]) / sqrt(v[r] + eps) · w[c] + b[c]        x, y: (rows, cols)
//   m[r]    = 1/cols · sum_c x[r, c]                                   w, b: (cols,)
//   v[r]    = 1/cols · sum_c (x[r, c] - m[r])²
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T), 2.1 GB for 65536×4096 fp32.
// Operations: about 8 per element, so memory is the limit.
//
//   v1 two_passes   one block per row: the mean, then the variance around it, then the output
//   v2 welford      mean and variance in one pass: the row is read twice instead of three times
//   v3 warp_a_row   the row in one warp's registers, 16-byte loads: read once, no block barrier
//   v4 team_a_row   several warps share a long row: fewer registers per thread, higher occupancy
//
// Run: python run_day.py 9

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/pack.cuh"         // taught in day 2
#include "common/cuda/tensor.cuh"       // explained in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5

// v1 and v2: one block of 8 warps per row. On sm_90 the registers of v1 (40 per thread in fp32)
// allow 6 blocks per multiprocessor, those of v2 (32) allow 8.
constexpr int BLOCK = 256;

// 1 / sqrt(v + eps). A variance below 0 can only come from rounding. The comparison passes NaN on,
// which fmaxf would replace by 0.
__device__ float inverse_deviation(float variance, float eps) {
  return rsqrtf((variance < 0 ? 0.0f : variance) + eps);
}

// Checks the arguments of every launcher of this day.
void check_inputs(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(weight, "weight").same_device(x, "x").size(0, x.size(1));
  check(bias, "bias").on_gpu().like(weight, "weight").contiguous();
  STD_TORCH_CHECK(eps >= 0, "eps: expected 0 or more, got ", eps);  // also refuses NaN
}

// ---------------------------------------------------------------------------------------------
// v1: the definition, with one correction. Rounding the mean to fp32 changes it by up to half an
// ulp, and every difference from it by the same amount. The second pass therefore sums the
// differences as well as their squares: the mean of the differences is the error of the mean.
// This costs one addition per element.

// Sums over some elements of a row, where d = x - mean and mean is the rounded one.
struct Sums {
  float d, d2;
};

template <typename T>
__global__ void layer_norm_v1_two_passes_kernel(const T* __restrict__ x,
                                                const T* __restrict__ weight,
                                                const T* __restrict__ bias, T* __restrict__ y,
                                                int64_t cols, float eps) {
  __shared__ float partial_sum[BLOCK];
  __shared__ Sums partial_sums[BLOCK];
  const T* x_row = x + blockIdx.x * cols;
  T* y_row = y + blockIdx.x * cols;

  // Thread t takes columns t, t + 256, t + 512 …, so that loads are coalesced.
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) sum += static_cast<float>(x_row[c]);
  partial_sum[threadIdx.x] = sum;
  const float mean = tree_reduce(partial_sum, [](float a, float b) { return a + b; }) / cols;

  Sums sums{0, 0};
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float d = static_cast<float>(x_row[c]) - mean;
    sums.d += d;
    sums.d2 += d * d;
  }
  partial_sums[threadIdx.x] = sums;
  sums = tree_reduce(partial_sums, [](Sums a, Sums b) { return Sums{a.d + b.d, a.d2 + b.d2}; });
  const float correction = sums.d / cols;  // true mean minus rounded mean
  const float scale = inverse_deviation(sums.d2 / cols - correction * correction, eps);

  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float d = static_cast<float>(x_row[c]) - mean;
    y_row[c] = static_cast<T>((d - correction) * scale * static_cast<float>(weight[c]) +
                              static_cast<float>(bias[c]));
  }
}

Tensor layer_norm_v1_two_passes(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                double eps) {
  check_inputs(x, weight, bias, eps);
  return output_like(x, "layer_norm_v1_two_passes", [&](auto zero, auto* y) {
    using T = decltype(zero);
    layer_norm_v1_two_passes_kernel<T><<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(weight), data<T>(bias), y, x.size(1), static_cast<float>(eps));
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: mean and variance in one pass. Each new element moves the mean a little, and adds
// (distance from the old mean) × (distance from the new mean) to the sum of squares (Welford,
// 1962). The results for two sets of elements can be merged (Chan, Golub & LeVeque, 1983), so a
// tree reduction works here too.

// For some elements of a row: their count, their mean, and the sum of squared distances from it.
struct Moments {
  float count, mean, m2;
};

__device__ Moments add(Moments a, float x) {
  const float count = a.count + 1;
  const float from_old = x - a.mean;
  const float mean = a.mean + from_old / count;
  return {count, mean, a.m2 + from_old * (x - mean)};
}

__device__ Moments merge(Moments a, Moments b) {
  if (b.count == 0) return a;  // b has no elements; if a has none either, share would be 0 / 0
  const float count = a.count + b.count;
  const float distance = b.mean - a.mean;
  const float share = b.count / count;
  return {count, a.mean + distance * share, a.m2 + b.m2 + distance * distance * (a.count * share)};
}

template <typename T>
__global__ void layer_norm_v2_welford_kernel(const T* __restrict__ x, const T* __restrict__ weight,
                                             const T* __restrict__ bias, T* __restrict__ y,
                                             int64_t cols, float eps) {
  __shared__ Moments partial[BLOCK];
  const T* x_row = x + blockIdx.x * cols;
  T* y_row = y + blockIdx.x * cols;

  Moments mine{0, 0, 0};
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK)
    mine = add(mine, static_cast<float>(x_row[c]));
  partial[threadIdx.x] = mine;
  const Moments row = tree_reduce(partial, merge);
  const float scale = inverse_deviation(row.m2 / cols, eps);

  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    y_row[c] = static_cast<T>((static_cast<float>(x_row[c]) - row.mean) * scale *
                                  static_cast<float>(weight[c]) +
                              static_cast<float>(bias[c]));
  }
}

Tensor layer_norm_v2_welford(const Tensor& x, const Tensor& weight, const Tensor& bias,
                             double eps) {
  check_inputs(x, weight, bias, eps);
  return output_like(x, "layer_norm_v2_welford", [&](auto zero, auto* y) {
    using T = decltype(zero);
    layer_norm_v2_welford_kernel<T><<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(weight), data<T>(bias), y, x.size(1), static_cast<float>(eps));
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v1: one warp per row. The warp keeps the row in registers: up to 32 packs of 16 bytes
// per lane, all loaded before the first one is used. The second and third pass then need no memory
// access and no barrier.

constexpr int WARPS = 4;       // per block, one row per warp
constexpr int MAX_PACKS = 32;  // per lane: 128 of at most 255 registers, for a row of up to 16 KB

// The sum over the 32 lanes of a warp, in every lane. A shuffle copies a register from one lane to
// another without shared memory or barrier (day 23 has more of them). All lanes must call it.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;
}

// __launch_bounds__ (day 15) states the number of threads in the largest block, from which the
// compiler derives how many registers a thread may use.
template <typename T, int PACKS>
__global__ void __launch_bounds__(WARPS * 32)
    layer_norm_v3_warp_a_row_kernel(const T* __restrict__ x, const T* __restrict__ weight,
                                    const T* __restrict__ bias, T* __restrict__ y, int64_t rows,
                                    int64_t cols, float eps) {
  constexpr int N = Pack<T>::N;
  const int lane = threadIdx.x % 32, packs = static_cast<int>(cols / N);
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (row >= rows) return;  // all lanes of the warp return together, and no barrier follows
  const auto* x_row = reinterpret_cast<const Pack<T>*>(x + row * cols);
  const auto* weights = reinterpret_cast<const Pack<T>*>(weight);
  const auto* biases = reinterpret_cast<const Pack<T>*>(bias);
  auto* y_row = reinterpret_cast<Pack<T>*>(y + row * cols);

  Pack<T> v[PACKS];  // this lane's packs of the row: lane, lane + 32, lane + 64 …
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (lane + k * 32 < packs) v[k] = x_row[lane + k * 32];
  }

  float sum = 0;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (lane + k * 32 < packs) {
      for (int i = 0; i < N; ++i) sum += static_cast<float>(v[k].at[i]);
    }
  }
  const float mean = warp_sum(sum) / cols;

  Sums sums{0, 0};
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (lane + k * 32 < packs) {
      for (int i = 0; i < N; ++i) {
        const float d = static_cast<float>(v[k].at[i]) - mean;
        sums.d += d;
        sums.d2 += d * d;
      }
    }
  }
  const float correction = warp_sum(sums.d) / cols;
  const float variance = warp_sum(sums.d2) / cols - correction * correction;
  const float scale = inverse_deviation(variance, eps);

#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int p = lane + k * 32;
    if (p < packs) {
      const Pack<T> w = weights[p], b = biases[p];  // the same for every row
      for (int i = 0; i < N; ++i) {
        const float d = static_cast<float>(v[k].at[i]) - mean;
        v[k].at[i] = static_cast<T>((d - correction) * scale * static_cast<float>(w.at[i]) +
                                    static_cast<float>(b.at[i]));
      }
      y_row[p] = v[k];
    }
  }
}

Tensor layer_norm_v3_warp_a_row(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                double eps) {
  check_inputs(x, weight, bias, eps);
  const int64_t rows = x.size(0), cols = x.size(1), row_bytes = cols * x.element_size();
  // v1 takes rows that are too long for the registers, or not made of aligned 16-byte packs.
  const int64_t packs = row_bytes / 16;
  const bool aligned = is_aligned(x, 16) && is_aligned(weight, 16) && is_aligned(bias, 16);
  if (packs > MAX_PACKS * 32 || row_bytes % 16 != 0 || !aligned) {
    fell_back("layer_norm_v1_two_passes", "a row too long for one warp or without aligned packs");
    return layer_norm_v1_two_passes(x, weight, bias, eps);
  }
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS), "x");
  return output_like(x, "layer_norm_v3_warp_a_row", [&](auto zero, auto* y) {
    using T = decltype(zero);
    // Registers cannot be indexed, so the number of packs per lane is a template argument.
    const auto kernel = packs <= 4 * 32    ? layer_norm_v3_warp_a_row_kernel<T, 4>
                        : packs <= 8 * 32  ? layer_norm_v3_warp_a_row_kernel<T, 8>
                        : packs <= 16 * 32 ? layer_norm_v3_warp_a_row_kernel<T, 16>
                                           : layer_norm_v3_warp_a_row_kernel<T, MAX_PACKS>;
    kernel<<<grid, WARPS * 32, 0, current_stream(x)>>>(data<T>(x), data<T>(weight), data<T>(bias),
                                                       y, rows, cols, static_cast<float>(eps));
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: a team of warps shares a long row, with at most TEAM_PACKS packs per lane. In
// fp32, 32 packs per lane need 154 registers, and a multiprocessor of sm_90 has room for 12 such
// warps. 8 packs need 61 registers, which leaves room for 32 warps. The price is one barrier per
// sum.

constexpr int TEAM_PACKS = 8;
constexpr int MAX_TEAM = 16;  // warps; 16 · 32 lanes · 8 packs hold a row of up to 64 KB

// The sum over the TEAM warps of the block, in every thread. `shared` has one element per warp and
// is used for one sum only, so no barrier is needed after reading. All threads must call it.
template <int TEAM>
__device__ float team_sum(float value, float (&shared)[TEAM]) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();  // all warps have written their sums before any thread reads them
  value = shared[0];
  for (int warp = 1; warp < TEAM; ++warp) value += shared[warp];
  return value;
}

template <typename T, int TEAM>
__global__ void __launch_bounds__(TEAM * 32)
    layer_norm_v4_team_a_row_kernel(const T* __restrict__ x, const T* __restrict__ weight,
                                    const T* __restrict__ bias, T* __restrict__ y, int64_t cols,
                                    float eps) {
  constexpr int N = Pack<T>::N, THREADS = TEAM * 32;
  __shared__ float for_mean[TEAM], for_d[TEAM], for_d2[TEAM];
  const int t = threadIdx.x, packs = static_cast<int>(cols / N);
  const auto* x_row = reinterpret_cast<const Pack<T>*>(x + blockIdx.x * cols);
  const auto* weights = reinterpret_cast<const Pack<T>*>(weight);
  const auto* biases = reinterpret_cast<const Pack<T>*>(bias);
  auto* y_row = reinterpret_cast<Pack<T>*>(y + blockIdx.x * cols);

  Pack<T> v[TEAM_PACKS];  // this thread's packs of the row: t, t + THREADS, t + 2 · THREADS …
#pragma unroll
  for (int k = 0; k < TEAM_PACKS; ++k) {
    if (t + k * THREADS < packs) v[k] = x_row[t + k * THREADS];
  }

  float sum = 0;
#pragma unroll
  for (int k = 0; k < TEAM_PACKS; ++k) {
    if (t + k * THREADS < packs) {
      for (int i = 0; i < N; ++i) sum += static_cast<float>(v[k].at[i]);
    }
  }
  const float mean = team_sum(sum, for_mean) / cols;

  Sums sums{0, 0};
#pragma unroll
  for (int k = 0; k < TEAM_PACKS; ++k) {
    if (t + k * THREADS < packs) {
      for (int i = 0; i < N; ++i) {
        const float d = static_cast<float>(v[k].at[i]) - mean;
        sums.d += d;
        sums.d2 += d * d;
      }
    }
  }
  const float correction = team_sum(sums.d, for_d) / cols;
  const float variance = team_sum(sums.d2, for_d2) / cols - correction * correction;
  const float scale = inverse_deviation(variance, eps);

#pragma unroll
  for (int k = 0; k < TEAM_PACKS; ++k) {
    const int p = t + k * THREADS;
    if (p < packs) {
      const Pack<T> w = weights[p], b = biases[p];
      for (int i = 0; i < N; ++i) {
        const float d = static_cast<float>(v[k].at[i]) - mean;
        v[k].at[i] = static_cast<T>((d - correction) * scale * static_cast<float>(w.at[i]) +
                                    static_cast<float>(b.at[i]));
      }
      y_row[p] = v[k];
    }
  }
}

Tensor layer_norm_v4_team_a_row(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                double eps) {
  check_inputs(x, weight, bias, eps);
  const int64_t rows = x.size(0), cols = x.size(1), row_bytes = cols * x.element_size();
  const int64_t packs = row_bytes / 16, per_warp = TEAM_PACKS * 32;
  const bool aligned = is_aligned(x, 16) && is_aligned(weight, 16) && is_aligned(bias, 16);
  // v3 takes rows that need only one warp, and handles those not made of aligned 16-byte packs.
  if (packs <= per_warp || row_bytes % 16 != 0 || !aligned) {
    fell_back("layer_norm_v3_warp_a_row",
              "a row short enough for one warp or without aligned packs");
    return layer_norm_v3_warp_a_row(x, weight, bias, eps);
  }
  if (packs > MAX_TEAM * per_warp) {
    fell_back("layer_norm_v1_two_passes", "a row too long for the registers of 16 warps");
    return layer_norm_v1_two_passes(x, weight, bias, eps);
  }
  return output_like(x, "layer_norm_v4_team_a_row", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int team) {
      kernel<<<grid_size(rows, "x"), team * 32, 0, current_stream(x)>>>(
          data<T>(x), data<T>(weight), data<T>(bias), y, cols, static_cast<float>(eps));
    };
    if (packs <= 2 * per_warp) return launch(layer_norm_v4_team_a_row_kernel<T, 2>, 2);
    if (packs <= 4 * per_warp) return launch(layer_norm_v4_team_a_row_kernel<T, 4>, 4);
    if (packs <= 8 * per_warp) return launch(layer_norm_v4_team_a_row_kernel<T, 8>, 8);
    return launch(layer_norm_v4_team_a_row_kernel<T, MAX_TEAM>, MAX_TEAM);
  });
}

// ---------------------------------------------------------------------------------------------

#define LAYER_NORM "(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor"

RUNG(day09, layer_norm_v1_two_passes, LAYER_NORM);
RUNG(day09, layer_norm_v2_welford, LAYER_NORM);
RUNG(day09, layer_norm_v3_warp_a_row, LAYER_NORM);
RUNG(day09, layer_norm_v4_team_a_row, LAYER_NORM);

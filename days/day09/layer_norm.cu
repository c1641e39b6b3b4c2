// Day 9: layer normalisation
//
//   y[r, c] = (x[r, c] - m[r]) / sqrt(v[r] + eps) · w[c] + b[c]        x, y: (rows, cols)
//   m[r]    = 1/cols · sum_c x[r, c]                                   w, b: (cols,)
//   v[r]    = 1/cols · sum_c (x[r, c] - m[r])²
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T). For 65536×4096 fp32 that is 2.1
// GB. Operations: about 8 an element; the memory bus is the limit.
//
//   v1 two_passes   block a row: the mean, then the variance around it, then the output
//   v2 welford      mean and variance in one pass: the row is read twice instead of three times
//   v3 warp_a_row   the row in one warp's registers, 16-byte loads: read once, no block barrier
//   v4 team_a_row   several warps share a long row: fewer registers a thread, more warps at work
//
// Run: python run_day.py 9

#include "common/cuda/pack.cuh"         // taught in day 2
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5

// v1 and v2: one block a row. 8 warps a block and 8 blocks a multiprocessor hide memory's latency.
constexpr int BLOCK = 256;

// 1 / sqrt(v + eps). The test lets NaN through, as fmaxf would not; a variance below 0 can only be
// the rounding of 0.
__device__ float inverse_deviation(float variance, float eps) {
  return rsqrtf((variance < 0 ? 0.0f : variance) + eps);
}

// Checks what every launcher of this day takes.
void check_inputs(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(weight, "weight").same_device(x, "x").size(0, x.size(1));
  check(bias, "bias").on_gpu().like(weight, "weight").contiguous();
  STD_TORCH_CHECK(eps >= 0, "eps: expected 0 or more, got ", eps);  // refuses NaN too
}

// ---------------------------------------------------------------------------------------------
// v1: the definition, with one correction. A mean that is rounded to fp32 is off by up to half an
// ulp, δ, and so is every difference from it. The second pass sums the differences as well as their
// squares: their mean is δ, which costs one addition an element to know and nothing to take away.

// Sums over some of a row's elements, of d = x - mean as it was rounded.
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

  // Threads take columns t, t + 256, t + 512 …: neighbours read neighbours, so loads coalesce.
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
  const float delta = sums.d / cols;  // what the rounded mean lacks
  const float scale = inverse_deviation(sums.d2 / cols - delta * delta, eps);

  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float d = static_cast<float>(x_row[c]) - mean;
    y_row[c] = static_cast<T>((d - delta) * scale * static_cast<float>(weight[c]) +
                              static_cast<float>(bias[c]));
  }
}

Tensor layer_norm_v1_two_passes(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                double eps) {
  check_inputs(x, weight, bias, eps);
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;  // a grid of no blocks is an error
  const int64_t rows = x.size(0), cols = x.size(1);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    layer_norm_v1_two_passes_kernel<T><<<grid_size(rows, "x"), BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(weight), data<T>(bias), mutable_data<T>(y), cols,
        static_cast<float>(eps));
  });
  check_launch("layer_norm_v1_two_passes");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: mean and variance in one pass. Each new element moves the mean a little, and adds
// to the squares what it is away from the old mean times what it is away from the new one (Welford,
// 1962). Two sets of elements merge by the same thought (Chan, Golub & LeVeque, 1983), so it runs
// as a tree.

// Of some of a row's elements: how many, their mean, and the sum of squared differences from it.
struct Moments {
  float count, mean, m2;
};

__device__ Moments add(Moments a, float x) {
  const float count = a.count + 1;
  const float before = x - a.mean;
  const float mean = a.mean + before / count;
  return {count, mean, a.m2 + before * (x - mean)};
}

__device__ Moments merge(Moments a, Moments b) {
  if (b.count == 0) return a;  // of a thread without a column; two of them would give 0 / 0
  const float count = a.count + b.count;
  const float between = b.mean - a.mean;
  const float share = b.count / count;
  return {count, a.mean + between * share, a.m2 + b.m2 + between * between * (a.count * share)};
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
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    layer_norm_v2_welford_kernel<T><<<grid_size(rows, "x"), BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(weight), data<T>(bias), mutable_data<T>(y), cols,
        static_cast<float>(eps));
  });
  check_launch("layer_norm_v2_welford");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v1: a warp takes the row and keeps it in registers, as it came: up to 32 pieces of 16
// bytes a lane, all loaded before the first is used. v1's second and third pass then touch no
// memory and wait for no other warp.

constexpr int WARPS = 4;       // a block, each with a row of its own
constexpr int MAX_PACKS = 32;  // a lane; 128 of its 255 registers hold a row of up to 16 KB

// The sum over the warp's 32 lanes, in every one of them. A shuffle hands a register straight to
// another lane: no shared memory, no barrier (day 23 has more of them). All lanes must call it.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;
}

template <typename T, int PACKS>
__global__ void __launch_bounds__(WARPS * 32)
    layer_norm_v3_warp_a_row_kernel(const T* __restrict__ x, const T* __restrict__ weight,
                                    const T* __restrict__ bias, T* __restrict__ y, int64_t rows,
                                    int64_t cols, float eps) {
  constexpr int N = Pack<T>::N;
  const int lane = threadIdx.x % 32, packs = static_cast<int>(cols / N);
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (row >= rows) return;  // the whole warp together, and no barrier follows
  const auto* x_row = reinterpret_cast<const Pack<T>*>(x + row * cols);
  const auto* weights = reinterpret_cast<const Pack<T>*>(weight);
  const auto* biases = reinterpret_cast<const Pack<T>*>(bias);
  auto* y_row = reinterpret_cast<Pack<T>*>(y + row * cols);

  Pack<T> v[PACKS];  // this lane's part of the row: packs lane, lane + 32, lane + 64 …
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
  const float delta = warp_sum(sums.d) / cols;
  const float scale = inverse_deviation(warp_sum(sums.d2) / cols - delta * delta, eps);

#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int p = lane + k * 32;
    if (p < packs) {
      const Pack<T> w = weights[p], b = biases[p];  // from L1: every row asks for them
      for (int i = 0; i < N; ++i) {
        const float d = static_cast<float>(v[k].at[i]) - mean;
        v[k].at[i] = static_cast<T>((d - delta) * scale * static_cast<float>(w.at[i]) +
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
  // Too long for the registers; or a row that ends, or a tensor that starts, in the middle of a
  // 16-byte piece: then a block a row, one element at a time.
  const int64_t packs = row_bytes / 16;
  const bool aligned = is_aligned(x, 16) && is_aligned(weight, 16) && is_aligned(bias, 16);
  if (packs > MAX_PACKS * 32 || row_bytes % 16 != 0 || !aligned) {
    return layer_norm_v1_two_passes(x, weight, bias, eps);
  }
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, WARPS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    // Registers have no index: how many packs a lane holds must be known to the compiler.
    const auto kernel = packs <= 4 * 32    ? layer_norm_v3_warp_a_row_kernel<T, 4>
                        : packs <= 8 * 32  ? layer_norm_v3_warp_a_row_kernel<T, 8>
                        : packs <= 16 * 32 ? layer_norm_v3_warp_a_row_kernel<T, 16>
                                           : layer_norm_v3_warp_a_row_kernel<T, MAX_PACKS>;
    kernel<<<grid, WARPS * 32, 0, current_stream(x)>>>(data<T>(x), data<T>(weight), data<T>(bias),
                                                       mutable_data<T>(y), rows, cols,
                                                       static_cast<float>(eps));
  });
  check_launch("layer_norm_v3_warp_a_row");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: a long row is shared by a team of warps, at most TEAM_PACKS pieces a lane. With 32
// pieces a lane takes 154 registers, and a multiprocessor has room for 12 warps: too few loads are
// in flight while those add up. With 8 pieces there is room for 32. The price is a barrier a sum.

constexpr int TEAM_PACKS = 8;
constexpr int MAX_TEAM = 16;  // warps; 16 · 32 lanes · 8 packs hold a row of up to 64 KB

// The sum over the block's TEAM warps, in every thread. `shared` has a place for each warp and is
// used for one sum only, so no barrier is needed after reading. All threads must call it.
template <int TEAM>
__device__ float team_sum(float value, float (&shared)[TEAM]) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();  // every warp's sum is there before anybody adds them up
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

  Pack<T> v[TEAM_PACKS];  // this thread's part of the row: packs t, t + THREADS, t + 2 · THREADS …
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
  const float delta = team_sum(sums.d, for_d) / cols;
  const float scale = inverse_deviation(team_sum(sums.d2, for_d2) / cols - delta * delta, eps);

#pragma unroll
  for (int k = 0; k < TEAM_PACKS; ++k) {
    const int p = t + k * THREADS;
    if (p < packs) {
      const Pack<T> w = weights[p], b = biases[p];
      for (int i = 0; i < N; ++i) {
        const float d = static_cast<float>(v[k].at[i]) - mean;
        v[k].at[i] = static_cast<T>((d - delta) * scale * static_cast<float>(w.at[i]) +
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
  const int64_t packs = row_bytes / 16, a_warp = TEAM_PACKS * 32;
  const bool aligned = is_aligned(x, 16) && is_aligned(weight, 16) && is_aligned(bias, 16);
  // One warp is enough; or the row does not come in whole pieces of 16 bytes: v3 knows what to do.
  if (packs <= a_warp || row_bytes % 16 != 0 || !aligned) {
    return layer_norm_v3_warp_a_row(x, weight, bias, eps);
  }
  if (packs > MAX_TEAM * a_warp) return layer_norm_v1_two_passes(x, weight, bias, eps);
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int team) {
      kernel<<<grid_size(rows, "x"), team * 32, 0, current_stream(x)>>>(
          data<T>(x), data<T>(weight), data<T>(bias), mutable_data<T>(y), cols,
          static_cast<float>(eps));
    };
    if (packs <= 2 * a_warp) return launch(layer_norm_v4_team_a_row_kernel<T, 2>, 2);
    if (packs <= 4 * a_warp) return launch(layer_norm_v4_team_a_row_kernel<T, 4>, 4);
    if (packs <= 8 * a_warp) return launch(layer_norm_v4_team_a_row_kernel<T, 8>, 8);
    return launch(layer_norm_v4_team_a_row_kernel<T, MAX_TEAM>, MAX_TEAM);
  });
  check_launch("layer_norm_v4_team_a_row");
  return y;
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day09, m) {
  m.def("layer_norm_v1_two_passes(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor");
  m.def("layer_norm_v2_welford(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor");
  m.def("layer_norm_v3_warp_a_row(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor");
  m.def("layer_norm_v4_team_a_row(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day09, CUDA, m) {
  m.impl("layer_norm_v1_two_passes", TORCH_BOX(&layer_norm_v1_two_passes));
  m.impl("layer_norm_v2_welford", TORCH_BOX(&layer_norm_v2_welford));
  m.impl("layer_norm_v3_warp_a_row", TORCH_BOX(&layer_norm_v3_warp_a_row));
  m.impl("layer_norm_v4_team_a_row", TORCH_BOX(&layer_norm_v4_team_a_row));
}

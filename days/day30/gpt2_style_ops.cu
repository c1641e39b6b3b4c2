// Day 30: the pieces of a GPT-2 block that are not attention: residual and layer norm
//
//   h = x + residual        y = (h - mean) / sqrt(variance + eps) · weight + bias      (rows, cols)
//
// and its gradients; mlp.cu has the MLP. Bytes per element of T: the forward pass reads x and
// residual and writes h and y; the backward pass reads gh, gy and h and writes gx: 8 · sizeof(T)
// together. Operations: about 40 per element, so memory bandwidth is the limit.
//
//   v1 separate   one kernel per operation: 5 passes over a tensor forward, 8 backward
//   v2 fused      the row in one warp's registers: 4 forward, 6 backward
//   v3 one_pass   the gradients of weight and bias from the same registers: 4 backward
//
// Run: python run_day.py 30

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"      // taught in day 23
#include "days/day30/row_sums.cuh"

#include <tuple>
#include <type_traits>

constexpr int WARPS = 4;  // per block, one row per warp
constexpr int BLOCK = WARPS * 32;

// ---------------------------------------------------------------------------------------------
// v1: one kernel per operation.

template <typename T>
__global__ void add_kernel(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c,
                           int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) c[i] = static_cast<T>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}

// Mean and 1 / deviation of a row. `mean` is rounded to fp32; `error` is the true mean minus it
// (day 9).
struct Statistics {
  float mean, error, scale;
  __device__ float normalised(float h) const { return (h - mean - error) * scale; }
};

// each(f) calls f(value) for every element of the row that this lane has. All lanes must call it.
template <typename Each>
__device__ Statistics row_statistics(Each each, int64_t cols, float eps) {
  float sum = 0, d1 = 0, d2 = 0;
  each([&](float h) { sum += h; });
  const float mean = warp_sum(sum) / cols;
  each([&](float h) {
    d1 += h - mean;
    d2 += (h - mean) * (h - mean);
  });
  const float error = warp_sum(d1) / cols;
  const float variance = warp_sum(d2) / cols - error * error;
  // Below 0 by rounding only. Unlike fmaxf, the comparison keeps NaN.
  return {mean, error, rsqrtf((variance < 0 ? 0.0f : variance) + eps)};
}

template <typename T>
__global__ void layer_norm_kernel(const T* __restrict__ h, const T* __restrict__ weight,
                                  const T* __restrict__ bias, T* __restrict__ y, int64_t rows,
                                  int64_t cols, float eps) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (row >= rows) return;  // the whole warp
  const int lane = threadIdx.x % 32;
  const auto each = [&](auto f) {
    for (int64_t c = lane; c < cols; c += 32) f(static_cast<float>(h[row * cols + c]));
  };
  const Statistics s = row_statistics(each, cols, eps);
  for (int64_t c = lane; c < cols; c += 32) {
    y[row * cols + c] = static_cast<T>(s.normalised(static_cast<float>(h[row * cols + c])) *
                                           static_cast<float>(weight[c]) +
                                       static_cast<float>(bias[c]));
  }
}

// With n = normalised h and g = gy · weight:  gh[c] = scale · (g[c] - mean(g) - n[c] · mean(g ·
// n)). The statistics are computed again, and stored for the sums over the rows.
template <typename T>
__global__ void layer_norm_backward_kernel(const T* __restrict__ gy, const T* __restrict__ h,
                                           const T* __restrict__ weight, T* __restrict__ gh,
                                           Statistics* __restrict__ statistics, int64_t rows,
                                           int64_t cols, float eps) {
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  const T *h_row = h + row * cols, *gy_row = gy + row * cols;
  const auto each = [&](auto f) {
    for (int64_t c = lane; c < cols; c += 32) f(static_cast<float>(h_row[c]));
  };
  const Statistics s = row_statistics(each, cols, eps);
  if (lane == 0) statistics[row] = s;
  float g1 = 0, gn = 0;
  for (int64_t c = lane; c < cols; c += 32) {
    const float g = static_cast<float>(gy_row[c]) * static_cast<float>(weight[c]);
    g1 += g;
    gn += g * s.normalised(static_cast<float>(h_row[c]));
  }
  g1 = warp_sum(g1) / cols;
  gn = warp_sum(gn) / cols;
  for (int64_t c = lane; c < cols; c += 32) {
    const float g = static_cast<float>(gy_row[c]) * static_cast<float>(weight[c]);
    const float n = s.normalised(static_cast<float>(h_row[c]));
    gh[row * cols + c] = static_cast<T>(s.scale * (g - g1 - n * gn));
  }
}

template <typename T>
__global__ void norm_column_sums_kernel(const T* __restrict__ gy, const T* __restrict__ h,
                                        const Statistics* __restrict__ statistics,
                                        float* __restrict__ partial, int64_t rows, int64_t cols) {
  column_sums<2>(partial, rows, cols, [&](int64_t r, int64_t c, float (&sums)[2]) {
    const float g = static_cast<float>(gy[r * cols + c]);
    sums[0] += g * statistics[r].normalised(static_cast<float>(h[r * cols + c]));
    sums[1] += g;
  });
}

void check_norm(const Tensor& x, const char* name, const Tensor& weight, double eps) {
  check(x, name).on_gpu().floating().rank(2).contiguous();
  check(weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(weight, "weight").same_device(x, name).size(0, x.size(1));
  STD_TORCH_CHECK(eps >= 0, "eps: expected 0 or more, got ", eps);  // also refuses NaN
}

void check_add_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                    const Tensor& bias, double eps) {
  check_norm(x, "x", weight, eps);
  check(residual, "residual").on_gpu().like(x, "x").contiguous();
  check(bias, "bias").on_gpu().like(weight, "weight").contiguous();
}

void check_add_norm_backward(const Tensor& gh, const Tensor& gy, const Tensor& h,
                             const Tensor& weight, double eps) {
  check_norm(h, "h", weight, eps);
  check(gh, "gh").on_gpu().like(h, "h").contiguous();
  check(gy, "gy").on_gpu().like(h, "h").contiguous();
}

template <typename T>
void norm_column_sums(const Tensor& gy, const Tensor& h, const Tensor& statistics,
                      Tensor& partial) {
  const int64_t rows = h.size(0), cols = h.size(1);
  norm_column_sums_kernel<T><<<column_grid(rows, cols), dim3(32, TALL), 0, current_stream(h)>>>(
      data<T>(gy), data<T>(h), data<Statistics>(statistics), mutable_data<float>(partial), rows,
      cols);
}

template <typename T>
void add(const Tensor& a, const Tensor& b, Tensor& c) {
  const unsigned blocks = grid_size(ceil_div<int64_t>(a.numel(), BLOCK), "x");
  add_kernel<T><<<blocks, BLOCK, 0, current_stream(a)>>>(data<T>(a), data<T>(b), mutable_data<T>(c),
                                                         a.numel());
}

std::tuple<Tensor, Tensor> add_norm_v1_separate(const Tensor& x, const Tensor& residual,
                                                const Tensor& weight, const Tensor& bias,
                                                double eps) {
  check_add_norm(x, residual, weight, bias, eps);
  const DeviceGuard guard(x);
  Tensor h = allocate_like(x), y = allocate_like(x);
  if (x.numel() == 0) return {h, y};
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned blocks = grid_size(ceil_div<int64_t>(rows, WARPS), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    add<T>(x, residual, h);
    layer_norm_kernel<T><<<blocks, BLOCK, 0, current_stream(x)>>>(
        data<T>(h), data<T>(weight), data<T>(bias), mutable_data<T>(y), rows, cols,
        static_cast<float>(eps));
  });
  check_launch("add_norm_v1_separate");
  return {h, y};
}

// Returns the gradient of x, which is also that of residual, and the gradients of weight and bias
// as the rows of one tensor (2, cols).
std::tuple<Tensor, Tensor> add_norm_backward_v1_separate(const Tensor& gh, const Tensor& gy,
                                                         const Tensor& h, const Tensor& weight,
                                                         double eps) {
  check_add_norm_backward(gh, gy, h, weight, eps);
  const DeviceGuard guard(h);
  Tensor gx = allocate_like(h);
  const int64_t rows = h.size(0), cols = h.size(1);
  Tensor sums = allocate(h, {2, cols});
  const dim3 grid = column_grid(rows, cols);
  Tensor partial = allocate(h, {grid.y, 2, cols}, ScalarType::Float);
  if (h.numel() > 0) {
    Tensor normed = allocate_like(h);
    Tensor statistics = allocate(h, {rows, 3}, ScalarType::Float);
    dispatch_floating(h, [&](auto zero) {
      using T = decltype(zero);
      layer_norm_backward_kernel<T>
          <<<grid_size(ceil_div<int64_t>(rows, WARPS), "h"), BLOCK, 0, current_stream(h)>>>(
              data<T>(gy), data<T>(h), data<T>(weight), mutable_data<T>(normed),
              mutable_data<Statistics>(statistics), rows, cols, static_cast<float>(eps));
      add<T>(gh, normed, gx);
      norm_column_sums<T>(gy, h, statistics, partial);
    });
    check_launch("add_norm_backward_v1_separate");
  }
  sum_chunks(partial, sums);
  return {gx, sums};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a warp keeps its row in registers, in packs of 16 bytes. h is normalised while it
// is there, and the backward pass adds gh before it stores gx.

constexpr int MAX_COLS = 32;  // per lane, a row of up to 1024: 64 sums in fp32 registers for v3

// f(k, i) for each element i of each pack k that this lane has of a row: packs lane, lane + 32 …
template <int PACKS, int N, typename F>
__device__ void each_element(int lane, int packs, F f) {
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (lane + k * 32 < packs) {
#pragma unroll
      for (int i = 0; i < N; ++i) f(k, i);
    }
  }
}

template <typename T, int PACKS>
__global__ void __launch_bounds__(BLOCK)
    add_norm_v2_fused_kernel(const Pack<T>* __restrict__ x, const Pack<T>* __restrict__ residual,
                             const Pack<T>* __restrict__ weight, const Pack<T>* __restrict__ bias,
                             Pack<T>* __restrict__ h, Pack<T>* __restrict__ y, int64_t rows,
                             int packs, float eps) {
  constexpr int N = Pack<T>::N;
  const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t first = row * packs + lane;

  Pack<T> v[PACKS], r[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {  // all loads of the row are in flight before one is used
    if (lane + k * 32 < packs) {
      v[k] = x[first + k * 32];
      r[k] = residual[first + k * 32];
    }
  }
  each_element<PACKS, N>(lane, packs, [&](int k, int i) {
    v[k].at[i] = static_cast<T>(static_cast<float>(v[k].at[i]) + static_cast<float>(r[k].at[i]));
  });
  const auto each = [&](auto f) {
    each_element<PACKS, N>(lane, packs, [&](int k, int i) { f(static_cast<float>(v[k].at[i])); });
  };
  const Statistics s = row_statistics(each, int64_t{packs} * N, eps);
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (lane + k * 32 >= packs) continue;
    h[first + k * 32] = v[k];
    const Pack<T> w = weight[lane + k * 32], b = bias[lane + k * 32];
    for (int i = 0; i < N; ++i) {
      v[k].at[i] = static_cast<T>(s.normalised(static_cast<float>(v[k].at[i])) *
                                      static_cast<float>(w.at[i]) +
                                  static_cast<float>(b.at[i]));
    }
    y[first + k * 32] = v[k];
  }
}

// v3 against v2, with SUM_HERE: each warp takes many rows, and each lane adds up gy · normalised h
// and gy of its columns in registers. Without it, the statistics are stored for v1's kernel, which
// reads gy and h again.
template <typename T, int PACKS, bool SUM_HERE>
__global__ void __launch_bounds__(BLOCK)
    add_norm_backward_kernel(const Pack<T>* __restrict__ gh, const Pack<T>* __restrict__ gy,
                             const Pack<T>* __restrict__ h, const Pack<T>* __restrict__ weight,
                             Pack<T>* __restrict__ gx, Statistics* __restrict__ statistics,
                             float* __restrict__ partial, int64_t rows, int packs, float eps) {
  constexpr int N = Pack<T>::N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int cols = packs * N;
  [[maybe_unused]] float sum_gn[PACKS][N] = {}, sum_g[PACKS][N] = {};

  for (int64_t row = int64_t{blockIdx.x} * WARPS + warp; row < rows;
       row += int64_t{gridDim.x} * WARPS) {
    const int64_t first = row * packs + lane;
    Pack<T> v[PACKS], g[PACKS], out[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (lane + k * 32 < packs) {
        v[k] = h[first + k * 32];
        g[k] = gy[first + k * 32];
        out[k] = gh[first + k * 32];
      }
    }
    const auto each = [&](auto f) {
      each_element<PACKS, N>(lane, packs, [&](int k, int i) { f(static_cast<float>(v[k].at[i])); });
    };
    const Statistics s = row_statistics(each, cols, eps);
    float g1 = 0, gn = 0;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (lane + k * 32 >= packs) continue;
      const Pack<T> w = weight[lane + k * 32];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = s.normalised(static_cast<float>(v[k].at[i]));
        const float gi = static_cast<float>(g[k].at[i]);
        const float gw = gi * static_cast<float>(w.at[i]);
        g1 += gw;
        gn += gw * n;
        if constexpr (SUM_HERE) {
          sum_gn[k][i] += gi * n;
          sum_g[k][i] += gi;
        }
      }
    }
    g1 = warp_sum(g1) / cols;
    gn = warp_sum(gn) / cols;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (lane + k * 32 >= packs) continue;
      const Pack<T> w = weight[lane + k * 32];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = s.normalised(static_cast<float>(v[k].at[i]));
        const float gw = static_cast<float>(g[k].at[i]) * static_cast<float>(w.at[i]);
        out[k].at[i] =
            static_cast<T>(static_cast<float>(out[k].at[i]) + s.scale * (gw - g1 - n * gn));
      }
      gx[first + k * 32] = out[k];
    }
    if (!SUM_HERE && lane == 0) statistics[row] = s;
  }

  if constexpr (SUM_HERE) {
    // partial[blockIdx.x][2][cols]: the warps' sums, added in shared memory.
    __shared__ float shared[WARPS][PACKS * 32 * N];
    for (int s = 0; s < 2; ++s) {
      each_element<PACKS, N>(lane, packs, [&](int k, int i) {
        shared[warp][(lane + k * 32) * N + i] = s == 0 ? sum_gn[k][i] : sum_g[k][i];
      });
      __syncthreads();  // all warps have stored their sums before any thread adds them
      for (int c = threadIdx.x; c < cols; c += BLOCK) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += shared[w][c];
        partial[(int64_t{blockIdx.x} * 2 + s) * cols + c] = sum;
      }
      __syncthreads();  // all sums are read before the warps store the next ones
    }
  }
}

// Whether the rows of all these tensors are made of aligned packs and fit into a warp's registers.
bool fits_registers(std::initializer_list<const Tensor*> tensors, int64_t cols) {
  for (const Tensor* t : tensors) {
    if (!is_aligned(*t, 16) || cols * t->element_size() % 16 != 0) return false;
  }
  return cols <= MAX_COLS * 32;
}

constexpr char UNFIT[] = "rows above 1024 elements, or not made of aligned packs of 16 bytes";

// Calls launch(zero, packs) with the number of packs per lane as a compile-time constant.
template <typename F>
void dispatch_packs(const Tensor& x, F&& launch) {
  dispatch_floating(x, [&](auto zero) {
    constexpr int MOST = MAX_COLS / Pack<decltype(zero)>::N;  // 4 for 16-bit types, 8 for fp32
    const int64_t packs = ceil_div<int64_t>(x.size(1) * x.element_size(), 16 * 32);
    if (packs <= MOST / 4) return launch(zero, std::integral_constant<int, MOST / 4>{});
    if (packs <= MOST / 2) return launch(zero, std::integral_constant<int, MOST / 2>{});
    if (packs <= MOST * 3 / 4) return launch(zero, std::integral_constant<int, MOST * 3 / 4>{});
    launch(zero, std::integral_constant<int, MOST>{});
  });
}

std::tuple<Tensor, Tensor> add_norm_v2_fused(const Tensor& x, const Tensor& residual,
                                             const Tensor& weight, const Tensor& bias, double eps) {
  check_add_norm(x, residual, weight, bias, eps);
  if (!fits_registers({&x, &residual, &weight, &bias}, x.size(1))) {
    fell_back("add_norm_v1_separate", UNFIT);
    return add_norm_v1_separate(x, residual, weight, bias, eps);
  }
  const DeviceGuard guard(x);
  Tensor h = allocate_like(x), y = allocate_like(x);
  if (x.numel() == 0) return {h, y};
  const int64_t rows = x.size(0);
  dispatch_packs(x, [&](auto zero, auto packs) {
    using T = decltype(zero);
    using P = Pack<T>;
    add_norm_v2_fused_kernel<T, packs()>
        <<<grid_size(ceil_div<int64_t>(rows, WARPS), "x"), BLOCK, 0, current_stream(x)>>>(
            data<P>(x), data<P>(residual), data<P>(weight), data<P>(bias), mutable_data<P>(h),
            mutable_data<P>(y), rows, static_cast<int>(x.size(1) / P::N), static_cast<float>(eps));
  });
  check_launch("add_norm_v2_fused");
  return {h, y};
}

template <bool SUM_HERE>
std::tuple<Tensor, Tensor> add_norm_backward(const Tensor& gh, const Tensor& gy, const Tensor& h,
                                             const Tensor& weight, double eps) {
  check_add_norm_backward(gh, gy, h, weight, eps);
  if (!fits_registers({&gh, &gy, &h, &weight}, h.size(1)) || h.numel() == 0) {
    if (h.numel() > 0) fell_back("add_norm_backward_v1_separate", UNFIT);
    return add_norm_backward_v1_separate(gh, gy, h, weight, eps);
  }
  const DeviceGuard guard(h);
  Tensor gx = allocate_like(h);
  const int64_t rows = h.size(0), cols = h.size(1);
  Tensor sums = allocate(h, {2, cols});
  Tensor statistics = allocate(h, {SUM_HERE ? 0 : rows, 3}, ScalarType::Float);
  dispatch_packs(h, [&](auto zero, auto packs) {
    using T = decltype(zero);
    using P = Pack<T>;
    const auto kernel = add_norm_backward_kernel<T, packs(), SUM_HERE>;
    int64_t blocks = ceil_div<int64_t>(rows, WARPS);
    if (SUM_HERE) {  // as many blocks as are resident at once, each with many rows
      blocks = resident_grid(h, kernel, BLOCK, 0, blocks);
    }
    const dim3 columns = column_grid(rows, cols);
    Tensor partial =
        allocate(h, {SUM_HERE ? blocks : int64_t{columns.y}, 2, cols}, ScalarType::Float);
    kernel<<<grid_size(blocks, "h"), BLOCK, 0, current_stream(h)>>>(
        data<P>(gh), data<P>(gy), data<P>(h), data<P>(weight), mutable_data<P>(gx),
        mutable_data<Statistics>(statistics), mutable_data<float>(partial), rows,
        static_cast<int>(cols / P::N), static_cast<float>(eps));
    if (!SUM_HERE) norm_column_sums<T>(gy, h, statistics, partial);
    check_launch("add_norm_backward");
    sum_chunks(partial, sums);
  });
  return {gx, sums};
}

std::tuple<Tensor, Tensor> add_norm_backward_v2_fused(const Tensor& gh, const Tensor& gy,
                                                      const Tensor& h, const Tensor& weight,
                                                      double eps) {
  return add_norm_backward<false>(gh, gy, h, weight, eps);
}

std::tuple<Tensor, Tensor> add_norm_backward_v3_one_pass(const Tensor& gh, const Tensor& gy,
                                                         const Tensor& h, const Tensor& weight,
                                                         double eps) {
  return add_norm_backward<true>(gh, gy, h, weight, eps);
}

// The forward pass of v3 is that of v2.
std::tuple<Tensor, Tensor> add_norm_v3_one_pass(const Tensor& x, const Tensor& residual,
                                                const Tensor& weight, const Tensor& bias,
                                                double eps) {
  return add_norm_v2_fused(x, residual, weight, bias, eps);
}

// ---------------------------------------------------------------------------------------------

#define FORWARD \
  "(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps=1e-5) -> (Tensor, Tensor)"
#define BACKWARD \
  "(Tensor gh, Tensor gy, Tensor h, Tensor weight, float eps=1e-5) -> (Tensor, Tensor)"
RUNG(day30, add_norm_v1_separate, FORWARD);
RUNG(day30, add_norm_v2_fused, FORWARD);
RUNG(day30, add_norm_v3_one_pass, FORWARD);
RUNG(day30, add_norm_backward_v1_separate, BACKWARD);
RUNG(day30, add_norm_backward_v2_fused, BACKWARD);
RUNG(day30, add_norm_backward_v3_one_pass, BACKWARD);

// Day 19: the gradient of cross-entropy, with no buffer in between
//
//   y = softmax(x)    loss[r] = -log y[r, t[r]]    gx[r, c] = g[r] · (y[r, c] - [c = t[r]])
//   x, y, gx: (rows, cols); loss, g, t: (rows,)
//
// Bytes: x is read and gx is written: 2 · rows · cols · sizeof(T). With a buffer for y it would be
// 4. Operations: 7 per element, so memory bandwidth is the limit.
//
//   v2 buffer       softmax to memory, then subtract and scale: 4 passes
//   v3 fused        softmax, subtract and scale on the row in registers: 2 passes
//   cross_entropy   the forward operator that this is the gradient of
//
// Run: python run_day.py 19

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day19/row.cuh"

// ---------------------------------------------------------------------------------------------
// The forward operator, and the checks of all launchers.

void check_logits(const Tensor& x, const Tensor& target) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  STD_TORCH_CHECK(x.size(1) > 0, "x: expected at least one column (class), got shape ",
                  shape_of(x));
  check(target, "target").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(target, "target").same_device(x, "x").size(0, x.size(0));
}

// A target outside [0, cols) is no class: its row has loss 0 and gradient 0. (A kernel cannot throw
// an exception as a launcher can.)
__device__ bool is_class(int64_t target, int64_t cols) {
  return target >= 0 && target < cols;
}

template <typename Row, typename T>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_kernel(const T* __restrict__ x, const int64_t* __restrict__ target,
                         float* __restrict__ loss, int64_t cols) {
  const Statistics stats = statistics(Row(x, cols));
  if (threadIdx.x == 0) {
    const int64_t t = target[blockIdx.x];
    // -log(exp(x[t] - max) / sum), without the exp, which could underflow
    loss[blockIdx.x] =
        is_class(t, cols)
            ? logf(stats.sum) - (static_cast<float>(x[blockIdx.x * cols + t]) - stats.max)
            : 0.0f;
  }
}

Tensor cross_entropy(const Tensor& x, const Tensor& target) {
  check_logits(x, target);
  const DeviceGuard guard(x);
  Tensor loss = allocate(x, {x.size(0)}, ScalarType::Float);
  if (x.numel() == 0) return loss;
  dispatch_row(x, [&](auto row, auto zero) {
    using T = decltype(zero);
    cross_entropy_kernel<typename decltype(row)::type, T>
        <<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
            data<T>(x), data<int64_t>(target), mutable_data<float>(loss), x.size(1));
  });
  check_launch("cross_entropy");
  return loss;
}

// ---------------------------------------------------------------------------------------------
// The gradient of cross-entropy, v2: softmax to memory, then a second kernel in place.

template <typename T>
__global__ void subtract_and_scale_kernel(const float* __restrict__ g,
                                          const int64_t* __restrict__ target, T* y, int64_t cols) {
  const int64_t t = target[blockIdx.x];
  const float scale = g[blockIdx.x];
  const bool valid = is_class(t, cols);
  T* row = y + blockIdx.x * cols;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float difference = static_cast<float>(row[c]) - (c == t ? 1.0f : 0.0f);
    row[c] = static_cast<T>(valid ? difference * scale : 0.0f);
  }
}

void check_gradient(const Tensor& g, const Tensor& x) {
  check(g, "g").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(g, "g").same_device(x, "x").size(0, x.size(0));
}

Tensor cross_entropy_backward_v2_buffer(const Tensor& g, const Tensor& x, const Tensor& target) {
  check_logits(x, target);
  check_gradient(g, x);
  const DeviceGuard guard(x);
  const Tensor gx = softmax(x);
  if (x.numel() == 0) return gx;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    subtract_and_scale_kernel<T><<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
        data<float>(g), data<int64_t>(target), mutable_data<T>(gx), x.size(1));
  });
  check_launch("cross_entropy_backward_v2_buffer");
  return gx;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: softmax is never stored. The row of x is still in registers when its maximum and
// sum are known, and the gradient is computed from there: x is read once, gx is written once.

template <typename Row, typename T>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_backward_v3_fused_kernel(const float* __restrict__ g, const T* __restrict__ x,
                                           const int64_t* __restrict__ target, T* __restrict__ gx,
                                           int64_t cols) {
  const Row row(x, cols);
  const int64_t t = target[blockIdx.x];
  const float upstream = g[blockIdx.x];
  const bool valid = is_class(t, cols);
  const Statistics stats = statistics(row);
  const float scale = 1.0f / stats.sum;
  row.write(gx + blockIdx.x * cols, [&](int64_t c, float v) {
    const float difference = exponential<T>(v - stats.max) * scale - (c == t ? 1.0f : 0.0f);
    return valid ? difference * upstream : 0.0f;
  });
}

Tensor cross_entropy_backward_v3_fused(const Tensor& g, const Tensor& x, const Tensor& target) {
  check_logits(x, target);
  check_gradient(g, x);
  const DeviceGuard guard(x);
  Tensor gx = allocate_like(x);
  if (x.numel() == 0) return gx;
  dispatch_row(x, [&](auto row, auto zero) {
    using T = decltype(zero);
    cross_entropy_backward_v3_fused_kernel<typename decltype(row)::type, T>
        <<<grid_size(x.size(0), "x"), BLOCK, 0, current_stream(x)>>>(
            data<float>(g), data<T>(x), data<int64_t>(target), mutable_data<T>(gx), x.size(1));
  });
  check_launch("cross_entropy_backward_v3_fused");
  return gx;
}

// ---------------------------------------------------------------------------------------------

RUNG(day19, cross_entropy, "(Tensor x, Tensor target) -> Tensor");
RUNG(day19, cross_entropy_backward_v2_buffer, "(Tensor g, Tensor x, Tensor target) -> Tensor");
RUNG(day19, cross_entropy_backward_v3_fused, "(Tensor g, Tensor x, Tensor target) -> Tensor");

// Day 20: cross-entropy as an autograd engine computes it, and what all rungs do around the rows
//
//   v1 plain   log p to memory in fp32, then a second kernel: 12 more bytes per element
//
// The formulas and the other rungs are in fused_ce_loss.cu.
//
// Run: python run_day.py 20

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "days/day20/reduced_loss.cuh"

#include <cmath>
#include <string>
#include <tuple>

Reduction reduction_named(const std::string& name) {
  STD_TORCH_CHECK(name == "none" || name == "mean" || name == "sum",
                  "reduction: expected none, mean or sum, got '", name, "'");
  return name == "none" ? Reduction::NONE : name == "mean" ? Reduction::MEAN : Reduction::SUM;
}

void check_logits(const Tensor& logits, const Tensor& target, double label_smoothing) {
  check(logits, "logits").on_gpu().floating().rank(2).contiguous();
  STD_TORCH_CHECK(logits.size(1) > 0, "logits: expected at least one column (class), got shape ",
                  shape_of(logits));
  check(target, "target").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(target, "target").same_device(logits, "logits").size(0, logits.size(0));
  STD_TORCH_CHECK(label_smoothing >= 0 && label_smoothing <= 1,
                  "label_smoothing: expected 0 to 1, got ", label_smoothing);
}

// ---------------------------------------------------------------------------------------------
// Before and after the rows: their weight, and the sum of their losses. One block each.

constexpr int SMALL_BLOCK = 1024;

__global__ void cross_entropy_weight_kernel(const int64_t* __restrict__ target, int64_t rows,
                                            int64_t ignore_index, bool mean,
                                            float* __restrict__ weight) {
  __shared__ int64_t partial[SMALL_BLOCK];
  int64_t count = 0;
  if (mean) {
    for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) count += target[r] != ignore_index;
  }
  partial[threadIdx.x] = count;
  count = tree_reduce(partial, [](int64_t a, int64_t b) { return a + b; });
  // If no row counts it is 1 / 0, and the mean becomes NaN, as in PyTorch.
  if (threadIdx.x == 0) *weight = mean ? 1.0f / static_cast<float>(count) : 1.0f;
}

__global__ void cross_entropy_sum_kernel(const float* __restrict__ losses, int64_t rows,
                                         const float* __restrict__ weight,
                                         float* __restrict__ loss) {
  __shared__ float partial[SMALL_BLOCK];
  float sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) sum += losses[r];
  partial[threadIdx.x] = sum;
  sum = tree_reduce(partial, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) *loss = sum * *weight;
}

Tensor weight_of_rows(const Tensor& target, int64_t ignore_index, Reduction reduction) {
  Tensor weight = allocate(target, {1}, ScalarType::Float);
  cross_entropy_weight_kernel<<<1, SMALL_BLOCK, 0, current_stream(target)>>>(
      data<int64_t>(target), target.size(0), ignore_index, reduction == Reduction::MEAN,
      mutable_data<float>(weight));
  check_launch("cross_entropy_weight");
  return weight;
}

Tensor reduced(const Tensor& losses, const Tensor& weight, Reduction reduction) {
  if (reduction == Reduction::NONE) return losses;
  Tensor loss = allocate(losses, {});
  cross_entropy_sum_kernel<<<1, SMALL_BLOCK, 0, current_stream(losses)>>>(
      data<float>(losses), losses.size(0), data<float>(weight), mutable_data<float>(loss));
  check_launch("cross_entropy_sum");
  return loss;
}

// ---------------------------------------------------------------------------------------------
// v1: what an autograd engine does. The forward pass stores log p, the backward pass reads it.

constexpr int PLAIN_BLOCK = 256;

template <typename T>
__global__ void cross_entropy_log_softmax_kernel(const T* __restrict__ x, float* __restrict__ log_p,
                                                 int64_t cols) {
  __shared__ float partial[PLAIN_BLOCK];
  const T* row = x + blockIdx.x * cols;
  float max = -INFINITY;
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    max = fmaxf(max, static_cast<float>(row[c]));
  }
  partial[threadIdx.x] = max;
  max = tree_reduce(partial, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    sum += expf(static_cast<float>(row[c]) - max);
  }
  partial[threadIdx.x] = sum;
  sum = logf(tree_reduce(partial, [](float a, float b) { return a + b; }));
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    log_p[blockIdx.x * cols + c] = static_cast<float>(row[c]) - max - sum;
  }
}

__global__ void cross_entropy_loss_kernel(const float* __restrict__ log_p,
                                          const int64_t* __restrict__ target,
                                          float* __restrict__ losses, int64_t cols,
                                          LossTerms terms) {
  __shared__ float partial[PLAIN_BLOCK];
  const float* row = log_p + blockIdx.x * cols;
  float total = 0;
  if (terms.smoothing > 0) {
    for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) total += row[c];
  }
  partial[threadIdx.x] = total;
  total = tree_reduce(partial, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) {
    const int64_t t = target[blockIdx.x];
    float loss = NAN;
    if (t >= 0 && t < cols) {
      loss = -(1 - terms.smoothing) * row[t];
      if (terms.smoothing > 0) loss -= terms.smoothing * total / static_cast<float>(cols);
    }
    losses[blockIdx.x] = t == terms.ignore_index ? 0.0f : loss;
  }
}

template <typename T>
__global__ void cross_entropy_gradient_kernel(const float* __restrict__ log_p,
                                              const int64_t* __restrict__ target,
                                              T* __restrict__ dx, int64_t cols, LossTerms terms) {
  const int64_t t = target[blockIdx.x];
  const bool ignored = t == terms.ignore_index, valid = t >= 0 && t < cols;
  const float weight = valid ? *terms.weight : NAN;
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    const float p = expf(log_p[blockIdx.x * cols + c]);
    const float expected =
        terms.smoothing / static_cast<float>(cols) + (c == t ? 1 - terms.smoothing : 0);
    dx[blockIdx.x * cols + c] = static_cast<T>(ignored ? 0.0f : weight * (p - expected));
  }
}

std::tuple<Tensor, Tensor> cross_entropy_v1_plain(const Tensor& logits, const Tensor& target,
                                                  int64_t ignore_index, double label_smoothing,
                                                  const std::string& reduction) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  Tensor dx = allocate_like(logits);
  const int64_t rows = logits.size(0), cols = logits.size(1);
  const Tensor log_p = allocate(logits, {rows, cols}, ScalarType::Float);
  const unsigned grid = grid_size(rows, "logits");
  const cudaStream_t stream = current_stream(logits);
  Tensor loss = with_terms(
      logits, target, ignore_index, label_smoothing, reduction,
      [&](const LossTerms& terms, float* losses) {
        dispatch_floating(logits, [&](auto zero) {
          using T = decltype(zero);
          cross_entropy_log_softmax_kernel<T>
              <<<grid, PLAIN_BLOCK, 0, stream>>>(data<T>(logits), mutable_data<float>(log_p), cols);
          cross_entropy_loss_kernel<<<grid, PLAIN_BLOCK, 0, stream>>>(
              data<float>(log_p), data<int64_t>(target), losses, cols, terms);
          cross_entropy_gradient_kernel<T><<<grid, PLAIN_BLOCK, 0, stream>>>(
              data<float>(log_p), data<int64_t>(target), mutable_data<T>(dx), cols, terms);
        });
      });
  check_launch("cross_entropy_v1_plain");
  return {loss, dx};
}

// ---------------------------------------------------------------------------------------------

RUNG(day20, cross_entropy_v1_plain, SEPARATE);

// Day 20: a linear layer and cross-entropy, a chunk of rows at a time (P.-L. Hsu et al., Liger
// Kernel, 2024)
//
//   x = h · Wᵀ    loss = mean over rows of cross-entropy(x, t)    dx: its gradient
//   dh = dx · W    dW = dxᵀ · h          h, dh: (rows, width); W, dW: (V, width); t: (rows)
//
// Operations: three products, 6 · rows · width · V, on tensor cores (day 26) in 16 bits; for
// 8192 × 2048 × 50304 that is 5.1 TFLOP. Bytes: x has rows · V elements, 824 MB in bf16; h, W and
// their gradients together 480 MB.
//
//   v1 whole     all rows at once: x is stored as a whole, and its gradient overwrites it
//   v2 chunked   `together` rows at a time: no more rows of x exist at any time
//
// The products are PyTorch's (cuBLAS, day 25); the loss and dx are fused_ce_loss.cu's v4.
//
// Run: python run_day.py 20

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5

#include <algorithm>
#include <string>
#include <tuple>

constexpr int64_t IGNORED = -100;  // the target of a row that does not count
constexpr int BLOCK = 256;

// Leaves the gradient of the summed loss in `logits`. From fused_ce_loss.cu.
Tensor cross_entropy_v4_rows_ahead(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                   double label_smoothing, const std::string& reduction);

// sums (+)= part in fp32, elements [0, n); the first chunk overwrites. Also adds the chunk's loss.
template <typename T>
__global__ void linear_add_kernel(const T* __restrict__ part, float* __restrict__ sums, int64_t n,
                                  bool first, const float* __restrict__ part_loss,
                                  float* __restrict__ loss) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) sums[i] = (first ? 0.0f : sums[i]) + static_cast<float>(part[i]);
  if (i == 0) *loss = (first ? 0.0f : *loss) + *part_loss;
}

// One block. Counts the rows, divides the loss by their number, and stores the factor for the
// gradients. Without a row that counts the loss is 0 / 0, NaN, and the gradients stay 0.
__global__ void linear_mean_kernel(const int64_t* __restrict__ target, int64_t rows, float* loss,
                                   float* __restrict__ share) {
  __shared__ int64_t partial[BLOCK];
  int64_t count = 0;
  for (int64_t r = threadIdx.x; r < rows; r += BLOCK) count += target[r] != IGNORED;
  partial[threadIdx.x] = count;
  count = tree_reduce(partial, [](int64_t a, int64_t b) { return a + b; });
  if (threadIdx.x == 0) {
    *loss = (rows == 0 ? 0.0f : *loss) / static_cast<float>(count);
    *share = count > 0 ? 1.0f / static_cast<float>(count) : 1.0f;
  }
}

// to = from · share; `to` may be `from`.
template <typename From, typename To>
__global__ void linear_scale_kernel(const From* from, To* to, int64_t n, const float* share) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) to[i] = static_cast<To>(static_cast<float>(from[i]) * *share);
}

void check_linear(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                  int64_t together) {
  check(hidden, "hidden").on_gpu().floating().rank(2).contiguous();
  check(weight, "weight").on_gpu().dtype({hidden.scalar_type()}).rank(2).contiguous();
  check(weight, "weight").same_device(hidden, "hidden").size(1, hidden.size(1));
  STD_TORCH_CHECK(weight.numel() > 0, "weight: expected at least one row (class) and one column, ",
                  "got shape ", shape_of(weight));
  check(target, "target").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(target, "target").same_device(hidden, "hidden").size(0, hidden.size(0));
  STD_TORCH_CHECK(together >= 1, "together: expected at least 1, got ", together);
}

using LossAndGradients = std::tuple<Tensor, Tensor, Tensor>;  // loss (), dh, dW

// together: rows of hidden that are processed at a time.
LossAndGradients linear_v2_chunked(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                                   int64_t together) {
  using torch::stable::matmul, torch::stable::narrow, torch::stable::transpose;
  check_linear(hidden, weight, target, together);
  const DeviceGuard guard(hidden);
  const cudaStream_t stream = current_stream(hidden);
  const int64_t rows = hidden.size(0), n = weight.numel();
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "weight");
  Tensor loss = allocate(hidden, {}, ScalarType::Float);
  Tensor share = allocate(hidden, {}, ScalarType::Float);
  Tensor to_hidden = allocate_like(hidden);
  Tensor to_weight = allocate_like(weight);
  // The sum over the chunks is fp32: in bf16 small parts would be lost.
  Tensor sums = allocate(weight, {n}, ScalarType::Float);
  if (rows == 0) torch::stable::zero_(sums);

  dispatch_floating(hidden, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t first = 0; first < rows; first += together) {
      const int64_t count = std::min(together, rows - first);
      const auto of_chunk = [&](Tensor all) { return narrow(all, 0, first, count); };
      const Tensor chunk = of_chunk(hidden), targets = of_chunk(target);
      Tensor out = of_chunk(to_hidden);
      const Tensor logits = matmul(chunk, transpose(weight, 0, 1));
      const Tensor part_loss = cross_entropy_v4_rows_ahead(logits, targets, IGNORED, 0, "sum");
      // From here on, logits are their own gradient.
      torch::stable::copy_(out, matmul(logits, weight));
      const Tensor part = matmul(transpose(logits, 0, 1), chunk);
      linear_add_kernel<T><<<grid, BLOCK, 0, stream>>>(data<T>(part), mutable_data<float>(sums), n,
                                                       first == 0, data<float>(part_loss),
                                                       mutable_data<float>(loss));
    }
    linear_mean_kernel<<<1, BLOCK, 0, stream>>>(
        data<int64_t>(target), rows, mutable_data<float>(loss), mutable_data<float>(share));
    linear_scale_kernel<<<grid, BLOCK, 0, stream>>>(data<float>(sums), mutable_data<T>(to_weight),
                                                    n, data<float>(share));
    if (rows > 0) {
      const int64_t elements = hidden.numel();
      linear_scale_kernel<<<grid_size(ceil_div<int64_t>(elements, BLOCK), "hidden"), BLOCK, 0,
                            stream>>>(data<T>(to_hidden), mutable_data<T>(to_hidden), elements,
                                      data<float>(share));
    }
  });
  check_launch("linear_v2_chunked");
  return {loss, to_hidden, to_weight};
}

LossAndGradients linear_v1_whole(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                                 int64_t together) {
  check_linear(hidden, weight, target, together);
  return linear_v2_chunked(hidden, weight, target, std::max<int64_t>(1, hidden.size(0)));
}

// ---------------------------------------------------------------------------------------------

#define LINEAR \
  "(Tensor hidden, Tensor weight, Tensor target, int together) -> (Tensor, Tensor, Tensor)"

RUNG(day20, linear_v1_whole, LINEAR);
RUNG(day20, linear_v2_chunked, LINEAR);

// Day 40: mixture of experts, slot by slot
//
// v1 of the ladder in moe.cu, where the formula stands. Nothing is grouped: a slot multiplies its
// token's row by the weights of its expert, which are read again for each slot, and adds its result
// to the token's sums by atomics. The additions of a token come in any order, and each one rounds.
//
// Run: python run_day.py 40

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day40/moe.cuh"

constexpr int BLOCK = 256;

// (row · matrix)[n] for a row (K) and a matrix (K, N)
__device__ float product(const bf16* row, const bf16* matrix, int64_t n, int64_t K, int64_t N) {
  float sum = 0;
  for (int64_t i = 0; i < K; ++i) {
    sum += static_cast<float>(row[i]) * static_cast<float>(matrix[i * N + n]);
  }
  return sum;
}

__global__ void __launch_bounds__(BLOCK)
    moe_v1_hidden_kernel(const bf16* __restrict__ x, const bf16* __restrict__ w1,
                         const int* __restrict__ experts, bf16* __restrict__ hidden, int64_t count,
                         int k, int64_t C, int64_t H) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= count) return;
  const int64_t slot = i / H, h = i % H;
  const float sum = product(x + slot / k * C, w1 + experts[slot] * C * H, h, C, H);
  hidden[i] = static_cast<bf16>(silu(sum));
}

__global__ void __launch_bounds__(BLOCK)
    moe_v1_scatter_kernel(const bf16* __restrict__ hidden, const bf16* __restrict__ w2,
                          const int* __restrict__ experts, const float* __restrict__ gates,
                          float* __restrict__ sums, int64_t count, int k, int64_t C, int64_t H) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= count) return;
  const int64_t slot = i / C, c = i % C;
  const float sum = product(hidden + slot * H, w2 + experts[slot] * H * C, c, H, C);
  atomicAdd(&sums[slot / k * C + c], gates[slot] * sum);
}

__global__ void __launch_bounds__(BLOCK)
    moe_v1_round_kernel(const float* __restrict__ sums, bf16* __restrict__ y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) y[i] = static_cast<bf16>(sums[i]);
}

Sizes check_mixture(const Tensor& x, const Tensor& logits, const Tensor& w1, const Tensor& w2,
                    int64_t k) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16}).rank(2).contiguous();
  const int64_t T = x.size(0), C = x.size(1);
  check(logits, "logits").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(logits, "logits").same_device(x, "x").size(0, T);
  const int64_t E = logits.size(1);
  check(w1, "w1").on_gpu().dtype({ScalarType::BFloat16}).rank(3).contiguous();
  check(w1, "w1").same_device(x, "x").size(0, E).size(1, C);
  const int64_t H = w1.size(2);
  check(w2, "w2").on_gpu().dtype({ScalarType::BFloat16}).rank(3).contiguous();
  check(w2, "w2").same_device(x, "x").size(0, E).size(1, H).size(2, C);
  STD_TORCH_CHECK(E >= 1 && E <= MAX_EXPERTS, "logits: expected 1 to ", MAX_EXPERTS,
                  " experts, got ", E);
  STD_TORCH_CHECK(k >= 1 && k <= E, "k: expected 1 to ", E, ", the experts of logits, got ", k);
  STD_TORCH_CHECK(T * k <= 0x7fffffff, "x: expected less than 2^31 slots, got ", T, " · ", k);
  return {T, C, H, E, T * k};
}

Tensor moe_v1_atomic_scatter(const Tensor& x, const Tensor& logits, const Tensor& w1,
                             const Tensor& w2, int64_t k) {
  const auto [T, C, H, E, S] = check_mixture(x, logits, w1, w2, k);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (y.numel() == 0) return y;
  const auto [gates, experts] = gate_v3_eight_lanes(logits, k);
  Tensor hidden = allocate(x, {S, H});
  Tensor sums = allocate_zeros(x, {T, C}, ScalarType::Float);
  const cudaStream_t stream = current_stream(x);
  const auto blocks = [](int64_t threads) {
    return grid_size(ceil_div<int64_t>(threads, BLOCK), "x");
  };
  const int chosen = static_cast<int>(k);
  if (H > 0) {
    moe_v1_hidden_kernel<<<blocks(S * H), BLOCK, 0, stream>>>(
        data<bf16>(x), data<bf16>(w1), data<int>(experts), mutable_data<bf16>(hidden), S * H,
        chosen, C, H);
    check_launch("moe_v1_hidden");
  }
  moe_v1_scatter_kernel<<<blocks(S * C), BLOCK, 0, stream>>>(
      data<bf16>(hidden), data<bf16>(w2), data<int>(experts), data<float>(gates),
      mutable_data<float>(sums), S * C, chosen, C, H);
  check_launch("moe_v1_scatter");
  moe_v1_round_kernel<<<blocks(T * C), BLOCK, 0, stream>>>(data<float>(sums), mutable_data<bf16>(y),
                                                           T * C);
  check_launch("moe_v1_round");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day40, moe_v1_atomic_scatter,
     "(Tensor x, Tensor logits, Tensor w1, Tensor w2, int k) -> Tensor");

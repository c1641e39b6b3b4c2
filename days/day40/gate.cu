// Day 40: the gate of a mixture of experts
//
//   experts[t][0 … k) are those with the largest logits[t][0 … E), gates[t] = the softmax of these
//   k logits
//
// T tokens, E experts, k of them per token. A token costs E logits read and 8k bytes written: for
// 65,536 tokens, 64 experts in fp32 and k = 8 that is 21 MB, 5 µs at the rate of a copy on an H200.
// k rounds of E comparisons take longer: instructions are the limit.
//
//   v1 thread        one thread per token
//   v2 warp          one warp per token: coalesced, but a round takes five shuffles of 64 bits
//   v3 eight_lanes   eight lanes per token: three such shuffles, and four tokens per warp
//
// Run: python run_day.py 40

#include "days/day40/moe.cuh"

#include "common/cuda/binding.cuh"       // taught in day 6
#include "common/cuda/warp_reduce.cuh"   // taught in day 23
#include "days/day38/further/order.cuh"  // ordered(float): taught in day 38

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// k rounds, each of which finds the largest key below that of the round before. LANES
// neighbouring lanes share a token.

// A logit and its expert as one number. Its order is that of torch.sort(descending=True,
// stable=True): larger logits first, NaN before all others, -0 equal to 0, and of equal logits the
// one of the lower expert first.
__device__ uint64_t key_of(float logit, int64_t expert) {
  return uint64_t{ordered(logit)} << 32 | (0x7fffffff - static_cast<uint32_t>(expert));
}
__device__ int expert_of(uint64_t key) {
  return 0x7fffffff - static_cast<int>(key & 0x7fffffff);
}

template <int LANES, typename T>
__global__ void __launch_bounds__(BLOCK)
    gate_kernel(const T* __restrict__ logits, float* __restrict__ gates, int* __restrict__ experts,
                int64_t tokens, int64_t num_experts, int64_t k) {
  const int64_t token = (int64_t{blockIdx.x} * BLOCK + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  const bool exists = token < tokens;  // other lanes take part in the shuffles, and store nothing
  const T* const row = logits + (exists ? token : 0) * num_experts;  // [0, num_experts)
  uint64_t previous = ~uint64_t{0};                                  // above all keys
  float largest = 0, sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    uint64_t best = 0;  // below all keys
    for (int64_t e = lane; e < num_experts; e += LANES) {
      const uint64_t key = key_of(static_cast<float>(row[e]), e);
      if (key < previous && key > best) best = key;
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
      const uint64_t other = __shfl_xor_sync(FULL_WARP, best, half);
      if (other > best) best = other;
    }
    previous = best;
    const float logit = static_cast<float>(row[expert_of(best)]);
    if (j == 0) largest = logit;  // what softmax subtracts
    const float weight = expf(logit - largest);
    sum += weight;
    if (exists && j % LANES == lane) {
      experts[token * k + j] = expert_of(best);
      gates[token * k + j] = weight;
    }
  }
  if (!exists) return;
  // Each lane divides what it has stored itself, so no lane waits for another.
  for (int64_t j = lane; j < k; j += LANES) gates[token * k + j] /= sum;
}

template <int LANES>
std::tuple<Tensor, Tensor> gate(const Tensor& logits, int64_t k) {
  check(logits, "logits").on_gpu().floating().rank(2).contiguous();
  const int64_t tokens = logits.size(0), num_experts = logits.size(1);
  STD_TORCH_CHECK(num_experts <= 0x7fffffff, "logits: expected at most 2147483647 experts");
  STD_TORCH_CHECK(k >= 1 && k <= num_experts, "k: expected 1 to ", num_experts,
                  ", the experts of logits, got ", k);
  const DeviceGuard guard(logits);
  Tensor gates = allocate(logits, {tokens, k}, ScalarType::Float);
  Tensor experts = allocate(logits, {tokens, k}, ScalarType::Int);
  if (tokens == 0) return {gates, experts};
  const unsigned blocks = grid_size(ceil_div<int64_t>(tokens, BLOCK / LANES), "logits");
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    gate_kernel<LANES, T><<<blocks, BLOCK, 0, current_stream(logits)>>>(
        data<T>(logits), mutable_data<float>(gates), mutable_data<int>(experts), tokens,
        num_experts, k);
  });
  check_launch("gate");
  return {gates, experts};
}

std::tuple<Tensor, Tensor> gate_v1_thread(const Tensor& logits, int64_t k) {
  return gate<1>(logits, k);
}
std::tuple<Tensor, Tensor> gate_v2_warp(const Tensor& logits, int64_t k) {
  return gate<32>(logits, k);
}
std::tuple<Tensor, Tensor> gate_v3_eight_lanes(const Tensor& logits, int64_t k) {
  return gate<8>(logits, k);
}

// ---------------------------------------------------------------------------------------------

RUNG(day40, gate_v1_thread, "(Tensor logits, int k) -> (Tensor, Tensor)");
RUNG(day40, gate_v2_warp, "(Tensor logits, int k) -> (Tensor, Tensor)");
RUNG(day40, gate_v3_eight_lanes, "(Tensor logits, int k) -> (Tensor, Tensor)");

// Day 86, second file: the attention of days 26 and 27, causal, on the memory of the plan.
//
//   o = softmax(q · kᵀ / 8) · v, rows of which see the keys up to their own position
//
// q, k, v: (B, heads, S, HEAD); o and its gradient: (rows, C), as the products have them. Day 26's
// kernel takes any strides. Day 27's wants heads that are contiguous: the pass that computes δ also
// copies the gradient.
//
// Day 27's v3 adds the parts of gq, one per block of 128 keys, by atomics. At most 256 positions
// are two blocks: 0 + a + b has equal bits in both orders, so that a step can be repeated exactly.
// For more, day 27's v2 computes gq in a pass of its own, and where there is wgmma, day 75's kernel
// is the forward pass.

#include "common/cuda/flash_attention.cuh"  // taught in days 26 and 28
#include "days/day27/keys_stay.cuh"         // taught in day 27
#include "days/day27/rows_stay.cuh"
#include "days/day86/plan.cuh"

constexpr int KEY_WARPS = 8, KEYS = 16 * KEY_WARPS;  // per block
static_assert(FEW_POSITIONS <= 2 * KEYS, "a third part of gq would make the order of sums matter");

void attention_forward(const Tensor& on, const Shape& s, const LayerActivations& a) {
  if (s.is_long() && compute_capability() == 90) return attention_forward_long(on, s, a);
  require_capability(8, 0, "mma.sync of 16×8×16");
  constexpr int64_t BYTES = (flash::BM + 4 * flash::BN) * HEAD * sizeof(Half);
  require_shared_memory(BYTES, "the tiles of q, k and v");
  flash::Arguments n{};
  n.q = a.q, n.k = a.k, n.v = a.v, n.o = a.o, n.lse = a.lse;
  n.of_q = n.of_k = n.of_v = {s.heads * s.S * HEAD, s.S * HEAD, HEAD};
  n.of_o = {s.S * s.C(), HEAD, s.C()};
  n.B = static_cast<int>(s.B), n.H = static_cast<int>(s.heads);
  n.S = n.T = static_cast<int>(s.S);
  n.tiles = ceil_div(n.S, flash::BM);
  n.causal = true;
  n.scale_log2 = flash::LOG2_E / 8;
  n.slack = 8 / n.scale_log2;
  const auto kernel = flash::forward_kernel<Half, HEAD, false>;
  allow_shared(kernel, BYTES);
  const unsigned grid = grid_size(s.B * s.heads * n.tiles, "tokens");
  kernel<<<grid, flash::THREADS, BYTES, current_stream(on)>>>(n);
  check_launch("attention_forward");
}

// Eight lanes have one head of one row: its δ = Σ g · o, and its g where the next kernel expects
// it.
__global__ void __launch_bounds__(DELTA_BLOCK)
    row_numbers_kernel(const Pack<Half>* __restrict__ g, const Pack<Half>* __restrict__ o,
                       const float* __restrict__ lse, Pack<Half>* __restrict__ go,
                       RowNumbers* __restrict__ numbers, int64_t packs, int heads, int S) {
  const int64_t i = int64_t{blockIdx.x} * DELTA_BLOCK + threadIdx.x;
  float sum = 0;
  Pack<Half> x{};
  if (i < packs) {
    x = g[i];
    const Pack<Half> y = o[i];
#pragma unroll
    for (int e = 0; e < EIGHT; ++e)
      sum += static_cast<float>(x.at[e]) * static_cast<float>(y.at[e]);
  }
  for (int distance = 4; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(FULL_WARP, sum, distance);
  }
  if (i >= packs) return;
  const int64_t head = i / EIGHT % heads, row = i / EIGHT / heads;  // g is (B, S, heads, HEAD)
  const int64_t to = (row / S * heads + head) * S + row % S;
  go[to * EIGHT + i % EIGHT] = x;
  if (i % EIGHT == 0) numbers[to] = {lse[to] * LOG2_E, sum};
}

void attention_backward(const Tensor& on, const Shape& s, const LayerActivations& a, const Half* g,
                        const Activations& m) {
  const cudaStream_t stream = current_stream(on);
  const int S = static_cast<int>(s.S), heads = static_cast<int>(s.heads);
  const int64_t packs = s.rows() * s.C() / EIGHT;
  auto* const numbers = reinterpret_cast<RowNumbers*>(m.numbers);
  row_numbers_kernel<<<grid_size(ceil_div<int64_t>(packs, DELTA_BLOCK), "tokens"), DELTA_BLOCK, 0,
                       stream>>>(reinterpret_cast<const Pack<Half>*>(g),
                                 reinterpret_cast<const Pack<Half>*>(a.o), a.lse,
                                 reinterpret_cast<Pack<Half>*>(m.go), numbers, packs, heads, S);
  check_launch("row_numbers");
  const int64_t all_heads = s.B * heads;
  const Given<Half> in{m.go, a.q, a.k, a.v, numbers, S, S, 0, 0.125f};
  if (s.is_long()) {
    launch_keys_stay_with<4, false, Half, HEAD>(on, in, all_heads, 1, nullptr, m.gk, m.gv);
    launch_rows_stay<Half, HEAD>(on, in, all_heads, 1, m.gq_rows);
  } else {
    const int64_t tiles = ceil_div(S, BM);
    check_cuda(cudaMemsetAsync(m.gq, 0, all_heads * tiles * BM * HEAD * sizeof(float), stream),
               "cudaMemsetAsync");
    launch_keys_stay_with<KEY_WARPS, true, Half, HEAD>(on, in, all_heads, 1, m.gq, m.gk, m.gv);
  }
  check_launch("attention_backward");
}

// Day 75: FlashAttention on Hopper
//
//   o = softmax(q · kᵀ / sqrt(D)) · v      lse[i] = log Σ_j exp(s[i, j])
//
//   q, o: (B, H, S, D), k, v: (B, H, T, D), bf16 or fp16, D = 64 or 128; lse: (B, H, S), fp32.
//   causal: row i sees the keys j <= i + T - S. A row that sees no key gets o = 0 and lse = -inf.
//
// 4 · B · H · S · T · D operations, half of them if causal: compute-bound for long rows. wgmma is
// asynchronous, so threads can compute exponentials while products run. Each rung lets more of the
// exponentials overlap with products.
//
//   v1 warp_roles   a producer loads tiles of k and v by TMA, two warpgroups multiply by wgmma
//   v2 ping_pong    they take turns: the softmax of one runs under the products of the other
//   v3 pipelined    the next scores are computed before this tile's values: the softmax also runs
//                   under products of its own warpgroup
//   v4 persistent   one block per multiprocessor takes tickets: the next tiles are loaded while
//                   the previous ones end
//
// Run: python run_day.py 75

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "days/day75/roles.cuh"

#include <algorithm>
#include <cmath>
#include <tuple>

// ---------------------------------------------------------------------------------------------
// Launchers.

// The heads of t, each a matrix of its own: what a box has beyond its last row is not the next
// head's.
template <typename T>
TensorMap heads_map(const Tensor& t, int64_t rows) {
  return ptx::make_tensor_map(data<T>(t), {.sizes = {t.size(3), t.size(2), t.size(0) * t.size(1)},
                                           .box = {64, rows, 1},
                                           .swizzle = Swizzle::k128});
}

template <typename P>
void launch(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, Arguments n) {
  using T = typename P::T;
  require_shared_memory(P::SHARED, "the tiles of q, k and v");
  const auto kernel = attention_kernel<P>;
  allow_shared(kernel, P::SHARED);
  Tensor tickets;
  unsigned grid = grid_size(int64_t{n.heads} * n.tiles, "q");
  if (P::R >= PERSISTENT) {
    tickets = allocate_zeros(q, {1}, ScalarType::Int);
    n.tickets = mutable_data<int>(tickets);
    grid = std::min(grid, static_cast<unsigned>(multiprocessor_count(q)));
  }
  const bool none = n.T == 0;  // then no tile is loaded, and any map will do
  const TensorMap of_k = heads_map<T>(none ? q : k, P::BN),
                  of_v = heads_map<T>(none ? q : v, P::BN);
  kernel<<<grid, THREADS, P::SHARED, current_stream(q)>>>(n, heads_map<T>(q, ROWS), of_k, of_v,
                                                          heads_map<T>(o, ROWS));
}

template <Rung R>
std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                     const char* name) {
  check(q, "q").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(4).contiguous();
  check(k, "k").on_gpu().dtype({q.scalar_type()}).rank(4).contiguous().same_device(q, "q");
  check(v, "v").on_gpu().like(k, "k").contiguous();
  for (int dim : {0, 1, 3}) check(k, "k").size(dim, q.size(dim));
  const int64_t B = q.size(0), H = q.size(1), S = q.size(2), T = k.size(2), D = q.size(3);
  STD_TORCH_CHECK(D == 64 || D == 128,
                  "q: expected 64 or 128 elements in the last dimension, got shape ", shape_of(q));
  STD_TORCH_CHECK(S + T < INT32_MAX - 2 * BM, "q, k: expected fewer than 2^31 rows together, got ",
                  S, " and ", T);
  STD_TORCH_CHECK(is_aligned(q, 16) && is_aligned(k, 16) && is_aligned(v, 16),
                  "q, k, v: expected addresses that are multiples of 16 bytes; call .clone()");
  const DeviceGuard guard(q);
  Tensor o = allocate_like(q);
  Tensor lse = allocate(q, {B, H, S}, ScalarType::Float);
  if (q.numel() == 0) return {o, lse};  // a grid of no blocks is an error
  require_wgmma();
  Arguments n{};
  n.lse = mutable_data<float>(lse);
  n.tiles = static_cast<int>(ceil_div<int64_t>(S, BM));
  n.count = static_cast<int>(grid_size(B * H * n.tiles, "q"));
  n.heads = n.count / n.tiles;
  n.S = static_cast<int>(S), n.T = static_cast<int>(T), n.ahead = n.T - n.S;
  n.causal = causal;
  // Without a mask all tiles have the same number of steps: one head after the other.
  const int64_t bytes = 4 * std::max<int64_t>(T, 1) * D;
  n.group = causal ? static_cast<int>(std::clamp<int64_t>(IN_L2 / bytes, 1, n.heads)) : 1;
  n.scale_log2 = static_cast<float>(LOG2_E / std::sqrt(static_cast<double>(D)));
  n.slack = SLACK / n.scale_log2;
  const auto run = [&]<typename E>(E) {
    if (D == 64) return launch<Plan<E, 64, KEYS, R>>(q, k, v, o, n);
    if (causal) return launch<Plan<E, 128, KEYS, R>>(q, k, v, o, n);
    launch<Plan<E, 128, KEYS_FULL, R>>(q, k, v, o, n);
  };
  q.scalar_type() == ScalarType::Half ? run(__half{}) : run(__nv_bfloat16{});
  check_launch(name);
  return {o, lse};
}

std::tuple<Tensor, Tensor> attention_v1_warp_roles(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, bool causal) {
  return attention<WARP_ROLES>(q, k, v, causal, "attention_v1_warp_roles");
}
std::tuple<Tensor, Tensor> attention_v2_ping_pong(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  bool causal) {
  return attention<PING_PONG>(q, k, v, causal, "attention_v2_ping_pong");
}
std::tuple<Tensor, Tensor> attention_v3_pipelined(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  bool causal) {
  return attention<PIPELINED>(q, k, v, causal, "attention_v3_pipelined");
}
std::tuple<Tensor, Tensor> attention_v4_persistent(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, bool causal) {
  return attention<PERSISTENT>(q, k, v, causal, "attention_v4_persistent");
}

#define ATTENTION "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)"
RUNG(day75, attention_v1_warp_roles, ATTENTION);
RUNG(day75, attention_v2_ping_pong, ATTENTION);
RUNG(day75, attention_v3_pipelined, ATTENTION);
RUNG(day75, attention_v4_persistent, ATTENTION);

// Day 27: the backward pass of attention on tensor cores
//
//   s = q · kᵀ / sqrt(D)    p = exp(s - lse)    gp = go · vᵀ    gs = p · (gp - δ) / sqrt(D)
//   gv = pᵀ · go            gk = gsᵀ · q        gq = gs · k     δ = sum_d go · o - glse
//   q, o, go, gq: (B, H, Sq, D); k, v, gk, gv: (B, H, Sk, D), D = 64 or 128, fp16 or bf16;
//   lse, glse, δ: (B, H, Sq), fp32
//
// Operations: five products, 10 · B · H · Sq · Sk · D; for 4×16×4096×128 that is 1.4 TFLOP. Bytes:
// 0.54 GB for all inputs and outputs, so tensor cores are the limit.
//
//   v1 two_passes   tensor cores; one pass for gk and gv, one for gq: seven products, equal bits
//   v2 pipelined    each tile is loaded while the tile before it is multiplied
//   v3 one_pass     five products; gq is accumulated in memory with atomicAdd
//
// Run: python run_day.py 27

#include "common/cuda/flash_attention.cuh"  // taught in day 26
#include "days/day27/keys_stay.cuh"

// gq from v3's sums, times the scale. A thread has 8 columns of rows g and g + 8 of a fragment:
// four lanes' elements, which are 64 contiguous bytes.
template <typename T, int D>
__global__ void attention_round_kernel(const float4* __restrict__ sums, T* __restrict__ gq, int Sq,
                                       float scale, int64_t threads) {
  const int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e >= threads) return;
  const int64_t groups = (Sq + BM - 1) / BM * (BM / 16), group = e / D;  // of 16 rows
  const int g = static_cast<int>(e % 8), n = static_cast<int>(e / 8 % (D / 8));
  const int64_t head = group / groups, row = group % groups * 16 + g;
  uint32_t low[4], high[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float4 x = sums[4 * e + t];
    low[t] = tiles::pack<T>(x.x * scale, x.y * scale);
    high[t] = tiles::pack<T>(x.z * scale, x.w * scale);
  }
  auto* to = reinterpret_cast<uint4*>(gq + (head * Sq + row) * D + 8 * n);
  if (row < Sq) to[0] = {low[0], low[1], low[2], low[3]};
  if (row + 8 < Sq) to[D] = {high[0], high[1], high[2], high[3]};  // 8 rows of D/8 packs
}

Gradients attention_backward_v3_one_pass(ARGUMENTS) {
  const Arguments a{go, glse, q, k, v, o, lse, causal};
  return backward(
      a, "v3_one_pass", [&]<typename T>(const Given<T>& in, auto d, int64_t heads, auto& made) {
        // Whole tiles of rows, those beyond the end included.
        const int64_t count = heads * ceil_div(in.Sq, BM) * BM * d();
        const Tensor sums = allocate(q, {count}, ScalarType::Float);
        clear(sums);
        launch_keys_stay<true, T, d()>(q, in, heads, 1, mutable_data<float>(sums), made);
        const unsigned blocks = grid_size(ceil_div<int64_t>(count / 16, 256), "q");
        attention_round_kernel<T, d()><<<blocks, 256, 0, current_stream(q)>>>(
            static_cast<const float4*>(sums.const_data_ptr()), mutable_data<T>(std::get<0>(made)),
            in.Sq, in.scale, count / 16);
      });
}

// Day 26's forward pass, o and lse: the operator that the above differentiate.
std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     bool causal) {
  check_inputs(q, k, v);
  const DeviceGuard guard(q);
  Tensor o = allocate_like(q);
  Tensor lse = allocate(q, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  flash::forward(q, k, v, nullptr, o, lse, causal);
  return {o, lse};
}

// ---------------------------------------------------------------------------------------------

RUNG(day27, attention, "(Tensor q, Tensor k, Tensor v, bool causal=False) -> (Tensor, Tensor)");
RUNG(day27, attention_backward_v3_one_pass, INPUTS);

// Day 18: the heads of attention's output merged, and a bias added: the forward operator
//
//   y[b, s, h·D + d] = o[b, h, s, d] + bias[h·D + d]      o bf16, bias and y fp32
//
// Its gradients come from fused_backward_prep.cu. Bytes: 2 + 4 per element.
//
// Run: python run_day.py 18

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day18/prep.cuh"

#include <tuple>

// N: adjacent elements per thread, 8 if D is a multiple of 8 and all is aligned, else 1.
template <int N>
__global__ void merge_heads_kernel(const bf16* __restrict__ o, const float* __restrict__ bias,
                                   float* __restrict__ y, Sizes n, unsigned blocks_per_row) {
  struct alignas(N == 1 ? 2 : 16) In {
    bf16 at[N];
  };
  struct alignas(N == 1 ? 4 : 16) Out {
    float at[N];
  };
  const unsigned row = blockIdx.x / blocks_per_row;
  const unsigned c = (blockIdx.x % blocks_per_row * BLOCK + threadIdx.x) * N;
  if (c >= n.C) return;
  const In in = *reinterpret_cast<const In*>(o + index_in_heads(n, row / n.S, row % n.S, c));
  Out out = *reinterpret_cast<const Out*>(bias + c);
  for (int i = 0; i < N; ++i) out.at[i] += static_cast<float>(in.at[i]);
  *reinterpret_cast<Out*>(y + int64_t{row} * n.C + c) = out;
}

Tensor merge_heads(const Tensor& o, const Tensor& bias) {
  check(o, "o").on_gpu().dtype({ScalarType::BFloat16}).rank(4).contiguous();
  const Sizes n = make_sizes(o, "o", o.size(0), o.size(2), o.size(1), o.size(3));
  check(bias, "bias").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(bias, "bias").same_device(o, "o").size(0, n.C);
  const DeviceGuard guard(o);
  Tensor y = allocate(o, {o.size(0), o.size(2), o.size(1) * o.size(3)}, ScalarType::Float);
  if (y.numel() == 0) return y;
  const bool eights = n.D % E == 0 && is_aligned(o, 16) && is_aligned(bias, 16);
  const unsigned blocks_per_row = ceil_div<unsigned>(n.C, BLOCK * (eights ? E : 1));
  const auto kernel = eights ? merge_heads_kernel<E> : merge_heads_kernel<1>;
  kernel<<<grid_size(int64_t{n.B} * n.S * blocks_per_row, "o"), BLOCK, 0, current_stream(o)>>>(
      data<bf16>(o), data<float>(bias), mutable_data<float>(y), n, blocks_per_row);
  check_launch("merge_heads");
  return y;
}

// Its gradients: that of o, which is g with split heads, and that of bias. heads_t is not needed.
std::tuple<Tensor, Tensor> merge_heads_backward(const Tensor& g, int64_t heads) {
  const Outputs out = launch_v3(g, check_inputs(g, heads), false);
  return {out.heads, out.bias_grad};
}

// ---------------------------------------------------------------------------------------------

RUNG(day18, merge_heads, "(Tensor o, Tensor bias) -> Tensor");
RUNG(day18, merge_heads_backward, "(Tensor g, int heads) -> (Tensor, Tensor)");

// Day 86, third file: products whose epilogues do what v2 does in passes, on day 83's kernel
//
//   pre = x · Wᵀ + b, act = gelu(pre)       out = x · Wᵀ + b + residual
//   out = (g · W) · gelu'(pre), and the sums of its columns
//
// The sums of a tile are in registers of wgmma when the epilogue has them, in fp32: what a pass
// would read was not yet rounded.

#include "days/day83/gelu_backward.cuh"  // taught in days 56 and 83
#include "days/day86/plan.cuh"

namespace {

TensorMap parts(const Half* of, int64_t rows, int64_t cols) {
  return tile_map(of, rows, cols, ROWS, PART);
}

}  // namespace

void require_epilogues() {
  require_wgmma();
  using P = NetworkTile<Half, Major::kK, NARROW>;
  require_shared_memory(SHARED<P, STAGES>, "four pairs of tiles");
}

void product_gelu(const Tensor& on, const Half* x, const Half* weight, const Half* bias, Half* pre,
                  Half* act, int64_t rows, int64_t N, int64_t K) {
  launch_product<Half, Major::kK>(
      on, x, weight, rows, N, K,
      BiasGelu<Half, true>{parts(pre, rows, N), parts(act, rows, N), bias});
}

void product_add(const Tensor& on, const Half* x, const Half* weight, const Half* bias,
                 const Half* residual, Half* out, int64_t rows, int64_t N, int64_t K) {
  launch_product<Half, Major::kK>(
      on, x, weight, rows, N, K,
      BiasResidual<Half>{parts(out, rows, N), parts(residual, rows, N), residual, bias});
}

int64_t gelu_parts(int64_t rows) {
  return 4 * ceil_div<int64_t>(rows, HALVES * ROWS);
}

void product_gelu_backward(const Tensor& on, const Half* g, const Half* weight, const Half* pre,
                           Half* out, float* partial, int64_t rows, int64_t N, int64_t K) {
  launch_product<Half, Major::kMN>(
      on, g, weight, rows, N, K,
      GeluBackward<Half>{parts(out, rows, N), parts(pre, rows, N), pre, partial});
}

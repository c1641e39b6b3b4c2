// Day 86, third file: products whose epilogues do what v2 does in passes, on day 83's kernel
//
//   pre = x · Wᵀ + b, act = gelu(pre)       out = x · Wᵀ + b + residual
//   out = (g · W) · gelu'(pre), and the sums of its columns
//
// The sums of a tile are in registers of wgmma when the epilogue has them, in fp32: what a pass
// would read was not yet rounded.

#include "days/day83/epilogues.cuh"  // taught in days 56 and 83
#include "days/day86/plan.cuh"

#include "days/day30/row_sums.cuh"  // taught in day 30

namespace {

struct BiasGelu {
  TensorMap pre, act;
  const Half* bias;

  template <int>
  __device__ __forceinline__ void prefetch(int, int) const {}

  template <int H, typename Outbox>
  __device__ __forceinline__ void finish(const Strip<H>& strip, const Gemm<Half>& p, int m, int n,
                                         Outbox& outbox) const {
#pragma unroll
    for (float* sums : strip.halves) {
      add_bias(sums, bias, p, n);
      outbox.store(sums, pre, m, n);
#pragma unroll
      for (int i = 0; i < 4 * PAIRS; ++i) sums[i] = gelu<Half>(sums[i]);
      outbox.store(sums, act, m, n);
      m += ROWS;
    }
  }
};

struct BiasAdd {
  TensorMap out, residuals;
  const Half *residual, *bias;

  template <int COLUMNS>
  __device__ __forceinline__ void prefetch(int m, int n) const {
    prefetch_tile<COLUMNS>(residuals, m, n);
  }

  template <int H, typename Outbox>
  __device__ __forceinline__ void finish(const Strip<H>& strip, const Gemm<Half>& p, int m, int n,
                                         Outbox& outbox) const {
#pragma unroll
    for (float* sums : strip.halves) {
      const PartOf<Half> added(residual, p, m, n);
      add_bias(sums, bias, p, n);
      added.each_pair(sums, [](float2 r, float& left, float& right) {
        left += r.x;
        right += r.y;
      });
      outbox.store(sums, out, m, n);
      m += ROWS;
    }
  }
};

// Rows beyond the last are zeros, which TMA loads, and add nothing.
struct GeluBackward {
  TensorMap out, pres;
  const Half* pre;
  float* partial;  // (4 · tiles of rows, N): each warp has the sums of 32 rows

  template <int COLUMNS>
  __device__ __forceinline__ void prefetch(int m, int n) const {
    prefetch_tile<COLUMNS>(pres, m, n);
  }

  template <typename Outbox>
  __device__ __forceinline__ void finish(const Strip<2>& strip, const Gemm<Half>& p, int m, int n,
                                         Outbox& outbox) const {
    const int64_t part = m / 32 + threadIdx.x % WARPGROUP / 32;
#pragma unroll
    for (float* sums : strip.halves) {
      const PartOf<Half> before(pre, p, m, n);
      before.each_pair(sums, [](float2 v, float& left, float& right) {
        left *= gelu_derivative<Half>(v.x);
        right *= gelu_derivative<Half>(v.y);
      });
      outbox.store(sums, out, m, n);
      m += ROWS;
    }
    const auto& [upper, lower] = strip.halves;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      const int i = 4 * j;
      float2 column = make_float2(upper[i] + upper[i + 2] + lower[i] + lower[i + 2],
                                  upper[i + 1] + upper[i + 3] + lower[i + 1] + lower[i + 3]);
      // The eight lanes that have these two columns are 4 apart.
#pragma unroll
      for (int apart = 4; apart < 32; apart *= 2) {
        column.x += __shfl_xor_sync(0xffffffff, column.x, apart);
        column.y += __shfl_xor_sync(0xffffffff, column.y, apart);
      }
      const int col = Place(0, n).col + 8 * j;
      if (threadIdx.x % 32 < 4 && col < p.N) {
        *reinterpret_cast<float2*>(partial + part * p.N + col) = column;
      }
    }
  }
};

// epilogue(a · b), a: (M, K), b: (K, N), or stored as (N, K) where MAJOR is kK.
template <Major MAJOR, typename Epilogue>
void launch(const Tensor& on, const Half* a, const Half* b, int64_t M, int64_t N, int64_t K,
            const Epilogue& epilogue) {
  using P = NetworkTile<Half, MAJOR, NARROW>;
  constexpr size_t BYTES = SHARED<P, STAGES>;
  const Gemm<Half> p{a, b, nullptr, nullptr, M, N, K, NONE};
  const int64_t tiles = ceil_div<int64_t>(M, P::BM) * ceil_div<int64_t>(N, P::BN);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessor_count(on)));
  const auto kernel = product_kernel<P, NARROW, Epilogue>;
  allow_shared(kernel, BYTES);
  kernel<<<grid, THREADS, BYTES, current_stream(on)>>>(p, map_of_a<P>(p), map_of_b<P>(p), epilogue);
  check_launch("product_kernel");
}

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
  launch<Major::kK>(on, x, weight, rows, N, K,
                    BiasGelu{parts(pre, rows, N), parts(act, rows, N), bias});
}

void product_add(const Tensor& on, const Half* x, const Half* weight, const Half* bias,
                 const Half* residual, Half* out, int64_t rows, int64_t N, int64_t K) {
  launch<Major::kK>(on, x, weight, rows, N, K,
                    BiasAdd{parts(out, rows, N), parts(residual, rows, N), residual, bias});
}

int64_t product_gelu_backward(const Tensor& on, const Half* g, const Half* weight, const Half* pre,
                              Half* out, float* partial, int64_t rows, int64_t N, int64_t K) {
  launch<Major::kMN>(on, g, weight, rows, N, K,
                     GeluBackward{parts(out, rows, N), parts(pre, rows, N), pre, partial});
  return 4 * ceil_div<int64_t>(rows, HALVES * ROWS);
}

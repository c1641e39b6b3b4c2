// Day 56, further: products for both dtypes and layouts of B, with bias and activation
//
//   C = f(A · B + bias)     A: (M, K), B: (K, N) or stored as (N, K), C: (M, N); f: none, relu,
//   gelu
//
//   v5 every_layout    the main line's ping-pong: consumers take turns, 128 × 192
//   v6 wide_tiles      consumers share a tile, each has a half of its rows: 128 × 256
//     direct_stores    … with C stored from registers, instead of by TMA
//   v8 chosen          the faster one of both by an estimate, and long sums divided (split-K)
//   others             gemm_clusters.cu
//
// Run: python run_day.py 56 --further

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day56/further/persistent.cuh"

Tensor every_layout_v5_ping_pong(const Tensor& a, const Tensor& b,
                                 const std::optional<Tensor>& bias, int64_t activation) {
  return gemm_persistent<192, true, 1>(a, b, bias, activation, "every_layout_v5_ping_pong");
}

// v6 against v5: both consumers multiply and store at the same time. 128 × 256 needs fewer bytes
// per operation than 128 × 192, and does not fit into the registers of one consumer.
Tensor gemm_v6_wide_tiles(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                          int64_t activation) {
  return gemm_persistent<256, false, 1>(a, b, bias, activation, "gemm_v6_wide_tiles");
}

Tensor gemm_v6_direct_stores(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                             int64_t activation) {
  return gemm_persistent<256, false, 1>(a, b, bias, activation, "gemm_v6_direct_stores", true);
}

// ---------------------------------------------------------------------------------------------
// v8. C = f(sum over splits + bias), in the order of the splits: equal inputs give equal bits.

constexpr int ADD_BLOCK = 256;

template <typename T>
__global__ void __launch_bounds__(ADD_BLOCK) add_splits_kernel(const Gemm<T> p) {
  const int64_t count = p.M * p.N;
  const int64_t first = (int64_t{blockIdx.x} * ADD_BLOCK + threadIdx.x) * 2;
  for (int64_t i = first; i < min(first + 2, count); ++i) {
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < p.splits; ++s) sum += p.partial[s * count + i];
    if (p.bias) sum += static_cast<float>(p.bias[i % p.N]);
    p.c[i] = static_cast<T>(activated(sum, p.activation));
  }
}

// ---------------------------------------------------------------------------------------------
// A GPU with 132 multiprocessors computes 128 tiles as fast as 32, and 133 as slowly as 264. The
// time of each choice is estimated from the number of rounds of tiles. Clock cycles, fitted to
// measured times of an H200; only their ratios matter.

constexpr double LATENCY = 2000;  // from the start of a block to its first product
constexpr double LAUNCH = 6000;   // of a second kernel
constexpr double ADDED = 1300;    // bytes per cycle of the kernel that adds splits, from L2

struct Choice {
  bool ping_pong;
  int splits;
  double cycles;
};

// Tiles of BM × BN: 4,096 operations per cycle and multiprocessor, of which `share` is reached.
Choice best_splits(int64_t M, int64_t N, int64_t K, int places, bool ping_pong) {
  const int BM = 128, BN = ping_pong ? 192 : 256;
  const double share = ping_pong ? 0.93 : 0.9, epilogue = ping_pong ? 500 : 3000;
  const double per_step = 2.0 * BM * BN * BK / 4096 / share;
  const int64_t tiles = ceil_div<int64_t>(M, BM) * ceil_div<int64_t>(N, BN);
  const int64_t steps = ceil_div<int64_t>(K, BK);
  Choice best{ping_pong, 1, 1e300};
  for (int splits = 1; splits <= 128 && splits <= steps; ++splits) {
    // Each part is stored, and then read, as fp32. More of them only cost more.
    const double adding =
        LAUNCH + 8.0 * static_cast<double>(M) * static_cast<double>(N) * splits / ADDED;
    if (splits > 1 && adding >= best.cycles) break;
    const auto rounds = static_cast<double>(ceil_div<int64_t>(tiles * splits, places));
    const auto each = static_cast<double>(ceil_div<int64_t>(steps, splits));
    double cycles = LATENCY + rounds * (each * per_step + epilogue);
    if (splits > 1) cycles += adding;
    if (cycles < best.cycles) best = {ping_pong, splits, cycles};
  }
  return best;
}

Tensor gemm_v8_chosen(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                      int64_t activation) {
  return multiply_matrices(
      a, b, bias, activation, "gemm_v8_chosen", [&]<typename T>(Gemm<T> p, auto major) {
        const int places = multiprocessor_count(a);
        const Choice wide = best_splits(p.M, p.N, p.K, places, false);
        const Choice turns = best_splits(p.M, p.N, p.K, places, true);
        const Choice choice = turns.cycles < wide.cycles ? turns : wide;
        Tensor partial;
        if (choice.splits > 1) {
          partial = allocate(a, {choice.splits, p.M, p.N}, ScalarType::Float);
          p.partial = mutable_data<float>(partial);
          p.splits = choice.splits;
        }
        if (choice.ping_pong) {
          launch_persistent<Tile<T, 128, 192, major()>, true, 1, 4>(a, p);
        } else {
          launch_persistent<Tile<T, 128, 256, major()>, false, 1, 4>(a, p);
        }
        if (choice.splits > 1) {
          const unsigned grid = grid_size(ceil_div<int64_t>(p.M * p.N, 2 * ADD_BLOCK), "a");
          add_splits_kernel<<<grid, ADD_BLOCK, 0, current_stream(a)>>>(p);
        }
      });
}

// ---------------------------------------------------------------------------------------------

RUNG(day56, every_layout_v5_ping_pong, GEMM);
RUNG(day56, gemm_v6_wide_tiles, GEMM);
RUNG(day56, gemm_v6_direct_stores, GEMM);
RUNG(day56, gemm_v8_chosen, GEMM);

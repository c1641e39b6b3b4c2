// Day 56, second file: the rungs whose blocks compute several tiles of C (persistent.cuh).
//
//   v5 persistent   a block per multiprocessor; tiles in an order that keeps A and B in L2; the
//                   producer loads the next tile's first steps while the consumers store C by TMA
//   v6 ping-pong    consumers take turns: one stores its tile while the other one multiplies
//   v7 clusters     two blocks share B: each loads a half of its tile for both

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day56/persistent.cuh"

template <int BM, int BN, bool PING_PONG, int CLUSTER, int STAGES>
Tensor gemm_persistent(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                       int64_t activation, const char* name) {
  return multiply_matrices(
      a, b, bias, activation, name, [&]<typename T>(const Gemm<T>& p, auto major) {
        launch_persistent<Tile<T, BM, BN, major()>, PING_PONG, CLUSTER, STAGES>(a, p);
      });
}

Tensor gemm_v5_persistent(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                          int64_t activation) {
  return gemm_persistent<128, 256, false, 1, 4>(a, b, bias, activation, "gemm_v5_persistent");
}
Tensor gemm_v6_ping_pong(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                         int64_t activation) {
  return gemm_persistent<128, 192, true, 1, 4>(a, b, bias, activation, "gemm_v6_ping_pong");
}
Tensor gemm_v7_clusters(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                        int64_t activation) {
  return gemm_persistent<128, 192, true, 2, 4>(a, b, bias, activation, "gemm_v7_clusters");
}

// ---------------------------------------------------------------------------------------------

RUNG(day56, gemm_v5_persistent, GEMM);
RUNG(day56, gemm_v6_ping_pong, GEMM);
RUNG(day56, gemm_v7_clusters, GEMM);

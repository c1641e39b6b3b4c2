// Day 56, further: variants of persistent blocks, which gemm_chosen.cu does not choose
//
//   v6 column_order    v6 with tiles in the order of columns, instead of groups of 8 rows of tiles
//   v7 clusters        v5, and two blocks share B: each loads a half of its tile for both
//
// Run: python run_day.py 56 --further

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day56/further/persistent.cuh"

// v6 column_order against v6: one group of so many rows of tiles is all of a usual matrix.
constexpr int COLUMNS = 1 << 8;

Tensor gemm_v6_column_order(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                            int64_t activation) {
  return gemm_persistent<256, false, 1, COLUMNS>(a, b, bias, activation, "gemm_v6_column_order");
}

// v7 against v5: the blocks of a cluster compute tiles of one column of tiles.
Tensor gemm_v7_clusters(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                        int64_t activation) {
  return gemm_persistent<192, true, 2>(a, b, bias, activation, "gemm_v7_clusters");
}

// ---------------------------------------------------------------------------------------------

RUNG(day56, gemm_v6_column_order, GEMM);
RUNG(day56, gemm_v7_clusters, GEMM);

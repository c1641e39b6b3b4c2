// Day 55: multicast: one load of the tensor memory accelerator for several blocks
//
//   y[k] = x for k in [0, copies)      x: (rows, cols), y: (copies, rows, cols); fp32, fp16 or bf16
//
// The blocks of a cluster need the same tile of x, and block k stores it to y[k]. Bytes: (1 +
// copies) · rows · cols · sizeof(T).
//
//   v1 each        every block loads the whole tile: L2 sends it `copies` times
//   v2 multicast   every block loads a part of the tile, for all blocks: L2 sends it once
//
// Run: python run_day.py 55

#include "common/cuda/binding.cuh"         // taught in day 6
#include "common/cuda/cluster_launch.cuh"  // taught in day 35
#include "common/cuda/matrix_map.cuh"      // new here
#include "common/cuda/ptx.cuh"             // clusters: day 34; mbarriers: day 35; copies: new here
#include "common/cuda/tensor.cuh"          // taught in days 6 and 12

constexpr int COLS = 256;          // columns of a tile
constexpr int TILE_BYTES = 16384;  // 16 rows in fp32, 32 in 16-bit types
constexpr int MAX_CLUSTER = 8;     // blocks per cluster: what every card with clusters allows
template <typename T>
constexpr int ROWS = TILE_BYTES / (COLS * sizeof(T));

// One cluster per tile. A box is the part of a tile that one block loads: ROWS<T> / copies rows.
template <typename T, bool MULTICAST>
__global__ void repeat_kernel(const __grid_constant__ ptx::TensorMap x,
                              const __grid_constant__ ptx::TensorMap y, int in_row) {
#ifdef HAS_TMA
  __shared__ __align__(128) T tile[ROWS<T>][COLS];
  __shared__ uint64_t full;
  const int copies = static_cast<int>(ptx::cluster_size());
  const int rank = static_cast<int>(ptx::cluster_block_rank());
  const int t = static_cast<int>(blockIdx.x) / copies, part = ROWS<T> / copies;
  const int row = t / in_row * ROWS<T>, col = t % in_row * COLS;

  ptx::mbarrier_init(&full, 1);
  ptx::fence_mbarrier_init();  // for TMA, and for the other blocks
  ptx::mbarrier_arrive_expect_bytes(&full, sizeof tile);
  ptx::cluster_sync();  // all blocks have begun, and their mbarriers are ready
  if constexpr (MULTICAST) {
    // To the same place in each block, and counted at the mbarrier of each.
    ptx::load_tensor_multicast(tile[rank * part], x, {col, row + rank * part}, &full,
                               static_cast<uint16_t>((1 << copies) - 1));
  } else {
    for (int r = 0; r < ROWS<T>; r += part) ptx::load_tensor(tile[r], x, {col, row + r}, &full);
  }
  ptx::mbarrier_wait(&full, 0);  // the parts of all blocks have come
  ptx::store_tensor(y, {col, row, rank}, tile);
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();  // the block's memory may go
  ptx::cluster_sync();       // no block returns while its part is in flight to another
#endif
}

template <bool MULTICAST>
Tensor repeat(const Tensor& x, int64_t copies, const char* name) {
  check(x, "x").on_gpu().floating().rank(2);
  STD_TORCH_CHECK(copies > 0 && copies <= MAX_CLUSTER && (copies & (copies - 1)) == 0,
                  "copies: expected 1, 2, 4 or 8, got ", copies);
  const int64_t rows = x.size(0), cols = x.size(1);
  check_row_bytes(x, "x");
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {copies, rows, cols});
  if (x.numel() == 0) return y;
  require_tma();
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const ptx::TensorMap from = matrix_map<T>(x, "x", ROWS<T> / copies, COLS);
    const ptx::TensorMap to = ptx::make_tensor_map(
        data<T>(y), {.sizes = {cols, rows, copies}, .box = {COLS, ROWS<T>, 1}});
    const int64_t in_row = ceil_div<int64_t>(cols, COLS);
    const int64_t tiles = in_row * ceil_div<int64_t>(rows, ROWS<T>);
    launch_clusters(repeat_kernel<T, MULTICAST>, grid_size(tiles * copies, "x"),
                    static_cast<unsigned>(copies), 1, 0, current_stream(x), from, to,
                    static_cast<int>(in_row));
  });
  check_launch(name);
  return y;
}

Tensor repeat_v1_each(const Tensor& x, int64_t copies) {
  return repeat<false>(x, copies, "repeat_v1_each");
}

// v2 against v1: the load is a multicast.
Tensor repeat_v2_multicast(const Tensor& x, int64_t copies) {
  return repeat<true>(x, copies, "repeat_v2_multicast");
}

RUNG(day55, repeat_v1_each, "(Tensor x, int copies) -> Tensor");
RUNG(day55, repeat_v2_multicast, "(Tensor x, int copies) -> Tensor");

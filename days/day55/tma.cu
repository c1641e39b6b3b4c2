// Day 55: the tensor memory accelerator: copies that no thread touches
//
//   y = x                         x, y: (rows, cols) in fp32, fp16 or bf16
//   y[r, c] += sum_k x[k, r, c]   x: (slices, rows, cols), fp32
//
// One thread starts a copy of 4 KB between global and shared memory; TMA, a unit of each
// multiprocessor, moves the bytes. Bytes: 2 · rows · cols · sizeof(T). Operations: none.
//
//   v1 bulk       one piece of 4 KB per block: load, wait, store, wait
//   v2 pipeline   four pieces or more per block, through a ring of four; up to three are loading
//   v3 tensor     as v2, in boxes of a matrix that a tensor map describes; x may be a view
//   add_slices    as v3, but a store adds to what is in memory
//
// Run: python run_day.py 55

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/matrix_map.cuh"       // new here
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // mbarriers: day 35; bulk and tensor copies: new here
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12

#include <algorithm>

constexpr int PIECE = 4096;   // bytes that one copy moves
constexpr int STAGES = 4;     // pieces per block: 16 KB, so 12 blocks per multiprocessor
constexpr int PER_BLOCK = 4;  // pieces that a block moves at least; see the README for more
constexpr int WAVES = 128;    // of resident blocks at most: larger inputs get more pieces per block
constexpr int THREADS = 1;    // per block: copies need a thread to start them, and no other

// The piece at byte `at` of `bytes`; the last one may be shorter.
__device__ inline int piece_size(int64_t at, int64_t bytes) {
  return static_cast<int>(min(int64_t{PIECE}, bytes - at));
}

// A bulk copy moves a multiple of 16 bytes. What is left behind the last of them, at most 15 bytes,
// is copied by one thread.
__device__ inline void copy_rest(const char* x, char* y, int64_t bytes) {
  for (int64_t i = bytes / 16 * 16; i < bytes; ++i) y[i] = x[i];
}

// ---------------------------------------------------------------------------------------------
// v1: one piece per block. The mbarrier has one phase: it ends when the announced bytes have come.

__global__ void __launch_bounds__(THREADS)
    copy_v1_bulk_kernel(const char* __restrict__ x, char* __restrict__ y, int64_t bytes) {
#ifdef HAS_TMA
  __shared__ __align__(128) char piece[PIECE];
  __shared__ uint64_t full;
  const int64_t whole = bytes / 16 * 16, at = int64_t{blockIdx.x} * PIECE;
  if (at < whole) {
    const int size = piece_size(at, whole);
    ptx::mbarrier_init(&full, 1);  // one arrival per phase: that of this thread
    ptx::fence_mbarrier_init();    // before TMA uses it
    ptx::mbarrier_arrive_expect_bytes(&full, size);
    ptx::copy_bulk(piece, x + at, size, &full);
    ptx::mbarrier_wait(&full, 0);  // all bytes are in `piece`
    ptx::store_bulk(y + at, piece, size);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();  // the block's memory may go once the store has read it
  }
  if (blockIdx.x == gridDim.x - 1) copy_rest(x, y, bytes);
#endif
}

// Calls launch(x's bytes, y's bytes, their number) for an output like x, a tensor of any shape.
template <typename F>
Tensor copy_flat(const Tensor& x, const char* name, F&& launch) {
  check(x, "x").on_gpu().floating().contiguous();
  STD_TORCH_CHECK(is_aligned(x, 16), "x: TMA needs an address that is a multiple of 16");
  return output_like(x, name, [&](auto zero, auto* y) {
    require_tma();
    launch(data<char>(x), reinterpret_cast<char*>(y), x.numel() * int64_t{sizeof zero});
  });
}

Tensor copy_v1_bulk(const Tensor& x) {
  return copy_flat(x, "copy_v1_bulk", [&](const char* from, char* to, int64_t bytes) {
    const unsigned grid = grid_size(ceil_div<int64_t>(bytes, PIECE), "x");
    copy_v1_bulk_kernel<<<grid, THREADS, 0, current_stream(x)>>>(from, to, bytes);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a block moves several pieces through a ring of STAGES buffers. While a piece is
// stored, the next ones are loaded.

// Moves pieces 0 … count - 1 of this block; piece k goes through stage k % STAGES. load(k, stage,
// barrier) announces the bytes of piece k and starts its load; store(k, stage) starts its store.
// One thread calls it. stages: (STAGES, PIECE); full: (STAGES,).
template <typename Load, typename Store>
__device__ void stream_pieces(int64_t count, char* stages, uint64_t* full, Load load, Store store) {
  const auto start = [&](int64_t k) {
    if (k < count) load(k, stages + k % STAGES * PIECE, &full[k % STAGES]);
  };
  for (int s = 0; s < STAGES; ++s) ptx::mbarrier_init(&full[s], 1);
  ptx::fence_mbarrier_init();  // before TMA uses them
  for (int64_t k = 0; k < STAGES - 1; ++k) start(k);
  for (int64_t k = 0; k < count; ++k) {
    ptx::mbarrier_wait(&full[k % STAGES], static_cast<int>(k / STAGES % 2));  // piece k has come
    store(k, stages + k % STAGES * PIECE);
    ptx::bulk_commit();
    ptx::bulk_wait_read<1>();  // the store of piece k - 1 has read its stage, which is free now
    start(k + STAGES - 1);
  }
  ptx::bulk_wait_read<0>();  // the block's memory may go
}

// How many of `pieces` this block moves: blockIdx.x, blockIdx.x + gridDim.x …
__device__ inline int64_t pieces_of_block(int64_t pieces) {
  return (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x;
}

__global__ void __launch_bounds__(THREADS)
    copy_v2_pipeline_kernel(const char* __restrict__ x, char* __restrict__ y, int64_t bytes) {
#ifdef HAS_TMA
  __shared__ uint64_t full[STAGES];
  const int64_t whole = bytes / 16 * 16;
  const auto place = [&](int64_t k) { return (blockIdx.x + k * gridDim.x) * PIECE; };
  stream_pieces(
      pieces_of_block(ceil_div<int64_t>(whole, PIECE)), tile_memory(), full,
      [&](int64_t k, char* stage, uint64_t* barrier) {
        const int size = piece_size(place(k), whole);
        ptx::mbarrier_arrive_expect_bytes(barrier, size);
        ptx::copy_bulk(stage, x + place(k), size, barrier);
      },
      [&](int64_t k, const char* stage) {
        ptx::store_bulk(y + place(k), stage, piece_size(place(k), whole));
      });
  if (blockIdx.x == gridDim.x - 1) copy_rest(x, y, bytes);
#endif
}

constexpr size_t RING_BYTES = STAGES * PIECE + TILE_ALIGNMENT;

// Blocks with a ring each for so many pieces: as many as the GPU holds at one time, or more, since
// multiprocessors are not equally fast, and those that are done take another block.
template <typename Kernel>
unsigned ring_grid(const Tensor& x, Kernel kernel, int64_t pieces) {
  require_shared_memory(RING_BYTES, "four pieces of 4 KB");
  allow_shared(kernel, RING_BYTES);
  const int64_t resident = resident_grid(x, kernel, THREADS, RING_BYTES, pieces);
  return grid_size(std::clamp(pieces / PER_BLOCK, resident, WAVES * resident), "x");
}

Tensor copy_v2_pipeline(const Tensor& x) {
  return copy_flat(x, "copy_v2_pipeline", [&](const char* from, char* to, int64_t bytes) {
    const auto kernel = copy_v2_pipeline_kernel;
    const unsigned grid = ring_grid(x, kernel, ceil_div<int64_t>(bytes, PIECE));
    kernel<<<grid, THREADS, RING_BYTES, current_stream(x)>>>(from, to, bytes);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a piece is a box of BOX_COLS columns. The thread says where the box begins, and
// TMA computes its addresses. Boxes that reach beyond the matrix are clipped.

constexpr int BOX_COLS = 256;  // the most that a tensor map allows
template <typename T>
constexpr int BOX_ROWS = PIECE / (BOX_COLS * sizeof(T));  // 4 in fp32, 8 in 16-bit types

// Where a box begins: the coordinates of its first element, the contiguous one first.
struct Box {
  int col, row, slice;
};

// Box i of slices of in_row · in_col boxes; the slice changes fastest.
__device__ inline Box box_at(int64_t i, int slices, int in_row, int box_rows) {
  const int64_t flat = i / slices;
  return {static_cast<int>(flat % in_row) * BOX_COLS, static_cast<int>(flat / in_row) * box_rows,
          static_cast<int>(i % slices)};
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    copy_v3_tensor_kernel(const __grid_constant__ ptx::TensorMap x,
                          const __grid_constant__ ptx::TensorMap y, int64_t boxes, int in_row) {
#ifdef HAS_TMA
  __shared__ uint64_t full[STAGES];
  const auto box = [&](int64_t k) {
    return box_at(blockIdx.x + k * gridDim.x, 1, in_row, BOX_ROWS<T>);
  };
  stream_pieces(
      pieces_of_block(boxes), tile_memory(), full,
      [&](int64_t k, char* stage, uint64_t* barrier) {
        ptx::mbarrier_arrive_expect_bytes(barrier, PIECE);  // a clipped box counts in full
        ptx::load_tensor(stage, x, {box(k).col, box(k).row}, barrier);
      },
      [&](int64_t k, const char* stage) { ptx::store_tensor(y, {box(k).col, box(k).row}, stage); });
#endif
}

Tensor copy_v3_tensor(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2);
  check_row_bytes(x, "x");
  return output_like(x, "copy_v3_tensor", [&](auto zero, auto* out) {
    using T = decltype(zero);
    require_tma();
    const int64_t rows = x.size(0), cols = x.size(1), in_row = ceil_div<int64_t>(cols, BOX_COLS);
    const ptx::TensorMap from = matrix_map<T>(x, "x", BOX_ROWS<T>, BOX_COLS);
    const ptx::TensorMap to = ptx::make_tensor_map(
        out, {.sizes = {cols, rows}, .box = {BOX_COLS, BOX_ROWS<T>}});  // dense
    const int64_t boxes = in_row * ceil_div<int64_t>(rows, BOX_ROWS<T>);
    const auto kernel = copy_v3_tensor_kernel<T>;
    kernel<<<ring_grid(x, kernel, boxes), THREADS, RING_BYTES, current_stream(x)>>>(
        from, to, boxes, static_cast<int>(in_row));
  });
}

// ---------------------------------------------------------------------------------------------
// add_slices: the store adds. The additions take place in the L2 cache, each of them atomic, so the
// slices may come from any block in any order, and no block reads y. x has a map of three
// dimensions.

__global__ void __launch_bounds__(THREADS)
    add_slices_kernel(const __grid_constant__ ptx::TensorMap x,
                      const __grid_constant__ ptx::TensorMap y, int64_t boxes, int slices,
                      int in_row) {
#ifdef HAS_TMA
  __shared__ uint64_t full[STAGES];
  const auto box = [&](int64_t k) {
    return box_at(blockIdx.x + k * gridDim.x, slices, in_row, BOX_ROWS<float>);
  };
  stream_pieces(
      pieces_of_block(boxes), tile_memory(), full,
      [&](int64_t k, char* stage, uint64_t* barrier) {
        ptx::mbarrier_arrive_expect_bytes(barrier, PIECE);
        ptx::load_tensor(stage, x, {box(k).col, box(k).row, box(k).slice}, barrier);
      },
      [&](int64_t k, const char* stage) { ptx::add_tensor(y, {box(k).col, box(k).row}, stage); });
#endif
}

void add_slices(Tensor y, const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(3).contiguous();
  check(y, "y").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous().same_device(x, "x");
  check(y, "y").size(0, x.size(1)).size(1, x.size(2));
  check_row_bytes(x, "x");
  if (x.numel() == 0) return;
  const DeviceGuard guard(x);
  require_tma();
  STD_TORCH_CHECK(is_aligned(x, 16), "x: TMA needs an address that is a multiple of 16");
  const int64_t slices = x.size(0), rows = x.size(1), cols = x.size(2);
  STD_TORCH_CHECK(slices < int64_t{1} << 31, "x: it has ", slices, " slices; TMA takes 2^31 - 1");
  const int64_t in_row = ceil_div<int64_t>(cols, BOX_COLS);
  const ptx::TensorMap from = ptx::make_tensor_map(
      data<float>(x), {.sizes = {cols, rows, slices}, .box = {BOX_COLS, BOX_ROWS<float>, 1}});
  const ptx::TensorMap to = matrix_map<float>(y, "y", BOX_ROWS<float>, BOX_COLS);
  const int64_t boxes = slices * in_row * ceil_div<int64_t>(rows, BOX_ROWS<float>);
  const unsigned grid = ring_grid(x, add_slices_kernel, boxes);
  add_slices_kernel<<<grid, THREADS, RING_BYTES, current_stream(x)>>>(
      from, to, boxes, static_cast<int>(slices), static_cast<int>(in_row));
  check_launch("add_slices");
}

// ---------------------------------------------------------------------------------------------

RUNG(day55, copy_v1_bulk, "(Tensor x) -> Tensor");
RUNG(day55, copy_v2_pipeline, "(Tensor x) -> Tensor");
RUNG(day55, copy_v3_tensor, "(Tensor x) -> Tensor");
RUNG(day55, add_slices, "(Tensor(a!) y, Tensor x) -> ()");

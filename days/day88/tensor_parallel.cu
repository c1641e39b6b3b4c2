// Day 88: tensor parallelism: a feed-forward network whose weights are split over several GPUs
//
//   out = gelu(x · W1ᵀ) · W2ᵀ = Σ_r gelu(x · W1_rᵀ) · W2_rᵀ        x, out: (rows, C), bf16 or fp16
//
// Rank r < N ≤ 8 has W1_r, H/N rows of W1 (H, C), and W2_r, as many columns of W2 (C, H). Its
// hidden values need no other rank. Its product with W2_r is a part of the sum: an all-reduce.
//
// Per rank: 4 · rows · C · H / N operations, and 2 (N-1)/N · rows · C · 2 bytes over NVLink, each
// way. rows 8192, C 4096, H 16384, N 2: 1.1 T operations, 1.6 ms at 700 T per second; 67 MB, 0.15
// ms at 450 GB/s.
//
//   v1 separate   both products, then day 87's two-shot all-reduce
//   v2 chunks     the sums of a chunk of rows, while the product of the next chunk is computed
//   v3 fused      the product stores each tile in the GPU that adds it, which follows tile by tile
//
// A rung plays all ranks on one GPU, so that one GPU can check it; tensor_parallel_of_rank is the
// same kernels for one rank.
//
// Run: python run_day.py 88

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day88/shards.cuh"

#include <algorithm>

constexpr int CHUNKS = 4;  // of rows, in v2: more of them hide more, but fill fewer multiprocessors

// ---------------------------------------------------------------------------------------------
// Sums: each rank adds its own tiles, and stores the sum in the outputs of all ranks.

// v3: all ranks have stored their parts of this rank's tile `mine` in its slots.
__device__ void await_parts(const Exchange& e, int mine) {
  if (const int source = threadIdx.x; source < e.ranks) {
    uint32_t& flag = e.landed(e.rank(), mine, source);
    wait_for(flag, 1, e, source);
    Flag(flag).store(0, cuda::memory_order_relaxed);
  }
  __syncthreads();  // all threads wait for those that waited for the parts
}

// The sums over all ranks of this thread's chunks of the tile. places: where the chunks lie in the
// outputs, -1 beyond them.
template <typename T, bool FROM_SLOTS, int N, int MOVES>
__device__ __forceinline__ void add_parts(const Exchange& e, int mine,
                                          const int64_t (&places)[MOVES],
                                          Chunk<float, N> (&sums)[MOVES]) {
  const int rank = e.rank();
  for (int i = 0; i < e.ranks; ++i) {
    const int source = (rank + i) % e.ranks;  // not all ranks begin with the same one
    const T* const slot = e.slot<T>(rank, source) + int64_t{mine} * TILE;
    RawChunk<Chunk<T, N>> raw[MOVES] = {};
#pragma unroll
    for (int k = 0; k < MOVES; ++k) {
      const T* const from =
          FROM_SLOTS ? slot + (k * PEER_BLOCK + threadIdx.x) * N : e.buffer<T>(source) + places[k];
      if (places[k] >= 0) raw[k] = load_raw(reinterpret_cast<const Chunk<T, N>*>(from));
    }
#pragma unroll
    for (int k = 0; k < MOVES; ++k) add_to(sums[k], widened(raw[k]));
  }
}

template <typename T, bool FROM_SLOTS>
__device__ void add_tile(const Exchange& e, int mine) {
  constexpr int N = 16 / sizeof(T), ACROSS = TILE_COLS / N, MOVES = TILE / N / PEER_BLOCK;
  static_assert(TILE % (N * PEER_BLOCK) == 0, "each thread moves as many chunks");
  const int rank = e.rank();
  const Corner tile = e.tiles.at(mine * e.ranks + rank);
  int64_t places[MOVES];
#pragma unroll
  for (int k = 0; k < MOVES; ++k) {
    const int chunk = k * PEER_BLOCK + static_cast<int>(threadIdx.x);
    const int64_t row = int64_t{tile.m} * TILE_ROWS + chunk / ACROSS;
    const int64_t col = int64_t{tile.n} * TILE_COLS + chunk % ACROSS * N;
    places[k] = row < e.tiles.rows && col < e.tiles.cols ? row * e.tiles.cols + col : -1;
  }
  Chunk<float, N> sums[MOVES] = {};
  add_parts<T, FROM_SLOTS>(e, mine, places, sums);
  for (int i = 1; i <= e.ranks; ++i) {
    T* const to = e.buffer<T>((rank + i) % e.ranks);
#pragma unroll
    for (int k = 0; k < MOVES; ++k) {
      if (places[k] >= 0) store_narrowed(reinterpret_cast<Chunk<T, N>*>(to + places[k]), sums[k]);
    }
  }
}

// FROM_SLOTS: v3. Without, the parts are where the sums will be: in the outputs of all ranks.
template <typename T, bool FROM_SLOTS>
__global__ void __launch_bounds__(PEER_BLOCK, 1)
    sum_tiles_kernel(const __grid_constant__ Exchange e) {
  if constexpr (!FROM_SLOTS) meet(e, &Signals::arrived);  // all ranks' parts are complete
  for (int mine = blockIdx.x; mine * e.ranks + e.rank() < e.tiles.count(); mine += gridDim.x) {
    if constexpr (FROM_SLOTS) await_parts(e, mine);
    add_tile<T, FROM_SLOTS>(e, mine);
  }
  meet(e, &Signals::finished);  // all ranks have stored their sums in this rank's output
}

// For `played` ranks from e.first on. Blocks of equal number wait for each other: all ranks come to
// the same grid, and blocks of one launch are resident at the same time.
template <typename T, bool FROM_SLOTS>
void launch_sums(const Tensor& on, const Exchange& e, int played, int64_t blocks,
                 cudaStream_t stream) {
  if (!FROM_SLOTS && e.ranks == 1) return;  // the only part is the sum
  const auto kernel = sum_tiles_kernel<T, FROM_SLOTS>;
  const int64_t resident =
      resident_grid(on, kernel, PEER_BLOCK, 0, MOST_BLOCKS * MOST_RANKS) / played;
  STD_TORCH_CHECK(resident >= 1, "outs: ", played,
                  " ranks in one launch, more than the blocks that are resident");
  const int64_t grid = std::min<int64_t>({blocks, resident, e.share()});
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;  // refused unless all blocks are resident
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid), static_cast<unsigned>(played));
  config.blockDim = dim3(PEER_BLOCK);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = played > 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, e), "sum_tiles_kernel");
}

// ---------------------------------------------------------------------------------------------
// v1: the sums begin when the products have finished, and take all multiprocessors.

template <typename T>
void separate(const Shards& s) {
  const Tensors hidden = s.hidden<T>();
  const int64_t rows = s.x.size(0), C = s.x.size(1);
  for (int i = 0; i < s.played(); ++i) {
    T* const out = s.e.buffer<T>(s.e.first + i);
    s.multiply<T>(hidden, i, 0, rows, 0, store_to<false>(out, rows, C));
  }
  launch_sums<T, false>(s.x, s.e, s.played(), MOST_BLOCKS, current_stream(s.x));
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the second product is cut into chunks of rows. While one is multiplied, the sums
// of the one before run in a second stream, on multiprocessors that the product leaves to them.

template <typename T>
void chunks(const Shards& s) {
  const Tensors hidden = s.hidden<T>();
  const Side& side = side_of(s.x);
  const int64_t C = s.x.size(1), step = ceil_div<int64_t>(s.e.tiles.m, CHUNKS) * TILE_ROWS;
  for (int64_t begin = 0; begin < s.x.size(0); begin += step) {
    const int64_t rows = std::min(step, s.x.size(0) - begin);
    Exchange e = s.e;
    e.tiles = Tiles(rows, C);
    for (int r = 0; r < e.ranks; ++r) e.buffers[r] = s.e.buffer<T>(r) + begin * C;
    for (int i = 0; i < s.played(); ++i) {
      T* const out = e.buffer<T>(e.first + i);
      s.multiply<T>(hidden, i, begin, rows, s.blocks, store_to<false>(out, rows, C));
    }
    side.follow(current_stream(s.x));
    launch_sums<T, false>(s.x, e, s.played(), s.blocks, side.stream);
  }
  side.join(current_stream(s.x));
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the product is whole again. Its epilogue stores a tile in the memory of the rank
// that adds it, and sets a flag there. That rank adds a tile as soon as all parts have come.

template <typename T>
struct Deliver {
  TensorMap slots[MOST_RANKS];  // this rank's slot in the memory of each rank
  Exchange e;                   // e.first: this rank

  explicit Deliver(const Exchange& from, int rank) : e(from) {
    e.first = rank;
    for (int r = 0; r < e.ranks; ++r) {
      slots[r] =
          tile_map<T>(e.slot<T>(r, rank), int64_t{e.share()} * TILE_ROWS, TILE_COLS, ROWS, PART);
    }
  }

  template <typename Outbox>
  __device__ __forceinline__ void finish(TileSums& sums, int m, int n, Outbox& outbox) const {
    const int number = e.tiles.number_of({m / TILE_ROWS, n / TILE_COLS});
    const int owner = number % e.ranks, mine = number / e.ranks;
    store_tile(sums, outbox, slots[owner], mine * TILE_ROWS, 0);
    if (threadIdx.x % WARPGROUP == 0) {  // the thread that started the stores
      ptx::bulk_wait<0>();               // they are complete, not only read: the flag may follow
      Flag(e.landed(owner, mine, e.first)).store(1, cuda::memory_order_release);
    }
  }
};

template <typename T>
void fused(const Shards& s) {
  const Tensors hidden = s.hidden<T>();
  const cudaStream_t current = current_stream(s.x);
  // Where this GPU plays all ranks, the sums come behind all products. One rank's sums run beside
  // its product: they wait for products of other GPUs, which wait for nothing.
  const bool beside = s.played() < s.e.ranks;
  if (beside) side_of(s.x).follow(current);
  for (int i = 0; i < s.played(); ++i) {
    s.multiply<T>(hidden, i, 0, s.x.size(0), s.blocks, Deliver<T>(s.e, s.e.first + i));
  }
  launch_sums<T, true>(s.x, s.e, s.played(), s.blocks, beside ? side_of(s.x).stream : current);
  if (beside) side_of(s.x).join(current);
}

// ---------------------------------------------------------------------------------------------
// Bindings.

void run(int64_t version, Shards& s, int64_t timeout_ms) {
  const DeviceGuard guard(s.x);
  check_all(s, timeout_ms);
  s.e.patience = timeout_ms * CYCLES_PER_MS;
  if (s.x.numel() == 0) return;
  const auto with_type = [&]<typename T>(T) {
    version == 1 ? separate<T>(s) : version == 2 ? chunks<T>(s) : fused<T>(s);
  };
  s.x.scalar_type() == ScalarType::Half ? with_type(__half{}) : with_type(__nv_bfloat16{});
}

// All ranks on one GPU.
void run_all(int64_t version, const Tensor& x, const Tensors& w1, const Tensors& w2,
             const Tensors& outs, const Tensors& signals, int64_t blocks) {
  Shards s{x, w1, w2, {}, blocks};
  s.e.tiles = tiles_of(x);
  const auto ranks = static_cast<int64_t>(outs.size());
  STD_TORCH_CHECK(ranks >= 1 && ranks <= MOST_RANKS, "outs: expected 1 to ", MOST_RANKS,
                  " tensors, one per rank, got ", ranks);
  STD_TORCH_CHECK(
      w1.size() == outs.size() && w2.size() == outs.size() && signals.size() == outs.size(),
      "w1, w2, signals: expected as many tensors as outs, ", ranks, ", got ", w1.size(), ", ",
      w2.size(), " and ", signals.size());
  s.e.ranks = static_cast<int>(ranks);
  for (int r = 0; r < s.e.ranks; ++r) {
    check_shard(x, {w1[r], "w1"}, {w2[r], "w2"}, w1[r], w2[r]);
    check(w1[r], "w1").like(w1[0], "w1[0]");
  }
  check_each(outs, "outs", [&](const check& one) { one.on_gpu().contiguous().like(x, "x"); });
  check_each(signals, "signals", [&](const check& one) {
    one.on_gpu().dtype({ScalarType::Int}).rank(1).size(0, signal_words(s.e)).contiguous();
    one.same_device(x, "x");
  });
  Tensors slots;
  for (int r = 0; r < s.e.ranks; ++r) {
    if (version == 3) {
      slots.push_back(allocate(x, {ranks * s.e.share() * TILE}));
      s.e.slots[r] = slots[r].mutable_data_ptr();
    }
    s.e.buffers[r] = outs[r].mutable_data_ptr();
    s.e.signals[r] = static_cast<Signals*>(signals[r].mutable_data_ptr());
  }
  run(version, s, TIMEOUT_MS);
}

void ffn_v1_separate(const Tensor& x, Tensors w1, Tensors w2, Tensors outs, Tensors signals,
                     int64_t blocks) {
  run_all(1, x, w1, w2, outs, signals, blocks);
}
void ffn_v2_chunks(const Tensor& x, Tensors w1, Tensors w2, Tensors outs, Tensors signals,
                   int64_t blocks) {
  run_all(2, x, w1, w2, outs, signals, blocks);
}
void ffn_v3_fused(const Tensor& x, Tensors w1, Tensors w2, Tensors outs, Tensors signals,
                  int64_t blocks) {
  run_all(3, x, w1, w2, outs, signals, blocks);
}

// One rank of several processes: see peers_of_rank. out and slots: parts of memory, behind its
// signals; those of the other ranks are at the same places in theirs.
void tensor_parallel_of_rank(const Tensor& x, const Tensor& w1, const Tensor& w2, Tensor out,
                             Tensor slots, Tensor memory, const Tensor& memories, int64_t version,
                             int64_t rank, int64_t blocks, int64_t timeout_ms) {
  STD_TORCH_CHECK(version >= 1 && version <= 3, "version: expected 1 to 3, got ", version);
  const Tiles tiles = tiles_of(x);
  check_shard(x, {w1, "w1"}, {w2, "w2"}, w1, w2);
  check(out, "out").like(x, "x");
  Shards s{x, {w1}, {w2}, {}, blocks};
  static_cast<Peers&>(s.e) = peers_of_rank(out, memory, memories, rank);
  s.e.tiles = tiles;
  check(slots, "slots")
      .dtype({x.scalar_type()})
      .rank(1)
      .size(0, int64_t{s.e.ranks} * s.e.share() * TILE);
  const Peers of_slots = peers_of_rank(slots, memory, memories, rank);
  std::copy_n(of_slots.buffers, MOST_RANKS, s.e.slots);
  const char* const behind =
      static_cast<const char*>(memory.const_data_ptr()) + 4 * signal_words(s.e);
  for (const Tensor* t : {&out, &slots}) {
    STD_TORCH_CHECK(static_cast<const char*>(t->const_data_ptr()) >= behind || t->numel() == 0,
                    "out, slots: expected parts of memory behind its first ", 4 * signal_words(s.e),
                    " bytes");
  }
  run(version, s, timeout_ms);
}

#define RANKS                                                                                  \
  "(Tensor x, Tensor[] w1, Tensor[] w2, Tensor(a!)[] outs, Tensor(b!)[] signals, int blocks) " \
  "-> ()"

RUNG(day88, ffn_v1_separate, RANKS);
RUNG(day88, ffn_v2_chunks, RANKS);
RUNG(day88, ffn_v3_fused, RANKS);
RUNG(day88, tensor_parallel_of_rank,
     "(Tensor x, Tensor w1, Tensor w2, Tensor(a!) out, Tensor(b!) slots, Tensor(c!) memory, "
     "Tensor memories, int version, int rank, int blocks, int timeout_ms) -> ()");

// Day 60, second file: the forward pass and the data gradient by TMA and wgmma.
//
//   v2 boxes      TMA loads the inputs of a box of outputs, one box per tap and 64 channels
//   v3 clusters   two blocks share the filter's tile: each loads a half of it for both

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/cluster_launch.cuh"   // taught in day 35
#include "common/cuda/mma_tiles.cuh"        // taught in day 26
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day60/boxes.cuh"

// A tile of BM pixels × BN channels. GROUPS: groups of 64 rows that a consumer multiplies.
template <int M, int N, Major B>
struct ConvTile : Tile<bf16, M, N, B> {
  static constexpr int GROUPS = M / ROWS / CONSUMERS;
  static constexpr int STAGES = (192 << 10) / (M * ROW + N * ROW);
};

// A consumer stores 64 pixels × 64 channels at a time, through one of two buffers.
constexpr int PART = 64, PART_BYTES = ROWS * ROW, BUFFERS = 2;

template <typename P>
constexpr size_t BOX_SHARED =
    P::STAGES * P::BYTES + CONSUMERS * BUFFERS * PART_BYTES + TILE_ALIGNMENT;

struct BoxPlan {
  Axis rows, cols;
  Box box;
  int S, depth, channels, tiles_m, tiles_n;  // tiles_m: in units of the cluster's tiles
};

// Loads, products and stores of a block. CLUSTER blocks compute tiles of the same channels.
template <typename P, int CLUSTER>
struct BoxRoles {
  static constexpr uint16_t ALL = (1 << CLUSTER) - 1;  // blocks of the cluster
  static constexpr int COLS = P::BN / CLUSTER;         // of the filter's tile that a block loads

  const BoxPlan& g;
  char* stages;
  uint64_t *full, *empty;
  int rank, first, clusters;

  // Calls f(first pixel, first channel, number of steps before) for each tile of this block. Blocks
  // that run at the same time have all channels of the same pixels, which come from L2.
  template <typename F>
  __device__ __forceinline__ void each_tile(int steps, F f) const {
    int before = 0;
    for (int t = first; t < g.tiles_m * g.tiles_n; t += clusters, before += steps) {
      const int m = t / g.tiles_n * CLUSTER + rank;
      f(corner_of(g.box, m), t % g.tiles_n * P::BN, before);
    }
  }

  // Starts to load the filter: channels [n, n + BN) of the result, [depth, depth + 64) of the sum.
  __device__ __forceinline__ void load_filter(char* to, const TensorMap& filter, int n, int tap,
                                              int depth, uint64_t* arrived) const {
    const auto load = [&](char* part, int c, int k) {
      if constexpr (CLUSTER == 1) {
        ptx::load_tensor(part, filter, {c, tap, k}, arrived);
      } else {
        ptx::load_tensor_multicast(part, filter, {c, tap, k}, arrived, ALL);
      }
    };
    to += rank * COLS * ROW;
    if constexpr (P::B_MAJOR == Major::kK) {
      load(to, depth, n + rank * COLS);
    } else {
#pragma unroll
      for (int i = 0; i < COLS / 64; ++i) {
        load(to + i * P::BOX_BYTES, n + rank * COLS + i * 64, depth);
      }
    }
  }

  // One thread: for each tap and each 64 channels, the inputs of the tile's pixels, and the filter.
  __device__ __forceinline__ void produce(int steps, const TensorMap& from,
                                          const TensorMap& filter) const {
    each_tile(steps, [&](const Pixel& at, int n, int step) {
      for (int i = 0; i < g.rows.taps; ++i) {
        const int row = at.row * g.rows.scale + g.rows.first + i * g.rows.step;
        for (int j = 0; j < g.cols.taps; ++j) {
          const int col = at.col * g.cols.scale + g.cols.first + j * g.cols.step;
          const int tap =
              (g.rows.tap0 + i * g.rows.tap_step) * g.S + g.cols.tap0 + j * g.cols.tap_step;
          for (int c = 0; c < g.depth; c += DEPTH, ++step) {
            const int s = step % P::STAGES, round = step / P::STAGES;
            char* stage = stages + s * P::BYTES;
            ptx::mbarrier_wait(&empty[s], 1 - round % 2);  // all products have read the stage
            ptx::mbarrier_arrive_expect_bytes(&full[s], P::BYTES);
            ptx::load_tensor(stage, from, {c, col, row, at.n}, &full[s]);
            load_filter(stage + P::A_BYTES, filter, n, tap, c, &full[s]);
          }
        }
      }
    });
  }

  // This warp's products have read stage s, which each block of the cluster writes to.
  __device__ __forceinline__ void release(int s) const {
    if constexpr (CLUSTER == 1) {
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&empty[s]);
    } else {
      if (threadIdx.x % 32 < CLUSTER) ptx::mbarrier_arrive_at_rank(&empty[s], threadIdx.x % 32);
    }
  }

  // Stores 64 pixels, which are a box too: those from pixel `first` of the tile's box on.
  // `turn` counts the parts so far: buffers are used in turn.
  __device__ __forceinline__ void store(const float (&sums)[P::BN / 2], const TensorMap& to,
                                        const Pixel& at, int first, int n, char* buffers,
                                        int barrier, int& turn) const {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const int line = thread / 32 * 16 + lane % 16;  // that this lane passes to stmatrix
    const int col = at.col + first % g.box.cols;
    const int row = at.row + first / g.box.cols % g.box.rows;
    const int image = at.n + first / (g.box.cols * g.box.rows);
#pragma unroll
    for (int part = 0; part < P::BN / PART; ++part) {
      if (n + part * PART >= g.channels) break;
      char* buffer = buffers + turn++ % BUFFERS * PART_BYTES;
      if (thread == 0) ptx::bulk_wait_read<BUFFERS - 1>();  // its last store has read the buffer
      ptx::barrier_sync(barrier, WARPGROUP);
#pragma unroll
      for (int pair = 0; pair < PART / 16; ++pair) {  // 16 channels: four matrices of 8 × 8
        const float* of = &sums[part * (PART / 2) + pair * 8];
        const uint32_t matrices[] = {
            tiles::pack<bf16>(of[0], of[1]), tiles::pack<bf16>(of[2], of[3]),
            tiles::pack<bf16>(of[4], of[5]), tiles::pack<bf16>(of[6], of[7])};
        const int piece = pair * 2 + lane / 16;
        ptx::stmatrix_x4(buffer + ptx::swizzled(Swizzle::k128, line * ROW + piece * 16), matrices);
      }
      ptx::fence_for_copy_engine();           // what this thread wrote, before TMA reads it …
      ptx::barrier_sync(barrier, WARPGROUP);  // … and what all others wrote
      if (thread == 0) {
        ptx::store_tensor(to, {n + part * PART, col, row, image}, buffer);
        ptx::bulk_commit();
      }
    }
  }

  __device__ __forceinline__ void consume(int steps, const TensorMap& to) const {
    const int consumer = threadIdx.x / WARPGROUP - 1, rows = consumer * P::GROUPS * ROWS;
    char* buffers = stages + P::STAGES * P::BYTES + consumer * BUFFERS * PART_BYTES;
    int turn = 0;
    each_tile(steps, [&](const Pixel& at, int n, int before) {
      float sums[P::GROUPS][P::BN / 2] = {};
      for (int i = 0; i < steps; ++i) {
        const int s = (before + i) % P::STAGES, round = (before + i) / P::STAGES;
        const char* stage = stages + s * P::BYTES;
        ptx::mbarrier_wait(&full[s], round % 2);
        ptx::wgmma_fence(sums);
#pragma unroll
        for (int group = 0; group < P::GROUPS; ++group) {
          multiply<P>(sums[group], stage + (rows + group * ROWS) * ROW, stage + P::A_BYTES);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();  // the products of the step before have read their stage
        if (i > 0) release((before + i - 1) % P::STAGES);
      }
      ptx::wgmma_wait<0>(sums);
      if (steps > 0) release((before + steps - 1) % P::STAGES);
#pragma unroll
      for (int group = 0; group < P::GROUPS; ++group) {
        store(sums[group], to, at, rows + group * ROWS, n, buffers, 1 + consumer, turn);
      }
    });
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
  }
};

template <typename P, int CLUSTER>
__global__ void __launch_bounds__(THREADS, 1)
    conv2d_boxes_kernel(const __grid_constant__ BoxPlan g, const __grid_constant__ TensorMap from,
                        const __grid_constant__ TensorMap filter,
                        const __grid_constant__ TensorMap to) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[P::STAGES], empty[P::STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < P::STAGES; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], CLUSTER * CONSUMER_WARPS);
    }
    ptx::fence_mbarrier_init();
  }
  // The mbarriers are there before any thread, of any block of the cluster, uses one.
  if constexpr (CLUSTER > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  const int steps = g.rows.taps * g.cols.taps * ((g.depth + DEPTH - 1) / DEPTH);
  const BoxRoles<P, CLUSTER> roles{g,
                                   tile_memory(),
                                   full,
                                   empty,
                                   static_cast<int>(blockIdx.x % CLUSTER),
                                   static_cast<int>(blockIdx.x / CLUSTER),
                                   static_cast<int>(gridDim.x / CLUSTER)};
  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) roles.produce(steps, from, filter);
  } else {
    ptx::setmaxnreg_inc<232>();
    roles.consume(steps, to);
  }
  // A block's shared memory has to be there as long as others write to it and arrive in it.
  if constexpr (CLUSTER > 1) ptx::cluster_sync();
#endif
}

// ---------------------------------------------------------------------------------------------
// Launchers.

template <typename P, int CLUSTER>
void launch_boxes(const Gather& g, const Tensor& on) {
  constexpr bool K_MAJOR = P::B_MAJOR == Major::kK;
  const Box box = best_box(g.rows, g.cols, g.N, P::BM);
  const int tiles_m = ceil_div(box.count(), CLUSTER), tiles_n = ceil_div(g.channels, P::BN);
  const BoxPlan plan{g.rows, g.cols, box, g.S, g.depth, g.channels, tiles_m, tiles_n};
  const TensorMap from = map_of_inputs(g.from, g.rows, g.cols, g.N, g.depth, box);
  const int64_t C = g.filter_channels, taps = g.filter_row / C;
  const TensorMap filter =
      ptx::make_tensor_map(g.filter, {.sizes = {C, taps, K_MAJOR ? g.channels : g.depth},
                                      .box = {DEPTH, 1, K_MAJOR ? P::BN / CLUSTER : DEPTH},
                                      .swizzle = Swizzle::k128});
  const int cols = std::min(box.cols, ROWS), rows = std::min(box.rows, ROWS / cols);
  const TensorMap to =
      ptx::make_tensor_map(g.to, {.sizes = {g.channels, g.cols.outputs, g.rows.outputs, g.N},
                                  .strides = {2 * g.to_col, 2 * g.to_row, 2 * g.to_n},
                                  .box = {PART, cols, rows, ROWS / cols / rows},
                                  .swizzle = Swizzle::k128});
  const auto kernel = conv2d_boxes_kernel<P, CLUSTER>;
  const int64_t tiles = int64_t{tiles_m} * tiles_n;
  const unsigned grid = static_cast<unsigned>(std::min(tiles, places_for(on, CLUSTER))) * CLUSTER;
  if constexpr (CLUSTER > 1) {
    launch_clusters(kernel, grid, CLUSTER, THREADS, BOX_SHARED<P>, current_stream(on), plan, from,
                    filter, to);
  } else {
    allow_shared(kernel, BOX_SHARED<P>);
    kernel<<<grid, THREADS, BOX_SHARED<P>, current_stream(on)>>>(plan, from, filter, to);
  }
}

// Launches the tile size of the least time. The rates are guesses from bytes of shared memory per
// operation.
template <Major B, int CLUSTER>
void convolve(const Gather& given, const Tensor& on) {
  const Gather g = flattened(given);
  if (g.pixels() == 0) return;  // there are no images
  double least = 0;
  void (*best)(const Gather&, const Tensor&) = nullptr;
  const auto consider = [&]<int M, int N>(double rate) {
    const double time = rounds(g, M, N, CLUSTER, places_for(on, CLUSTER)) * M * N / rate;
    if (best && time >= least) return;
    least = time;
    best = launch_boxes<ConvTile<M, N, B>, CLUSTER>;
  };
  consider.template operator()<256, 128>(1.0);
  consider.template operator()<128, 256>(1.0);
  consider.template operator()<128, 128>(0.85);
  consider.template operator()<256, 64>(0.65);
  best(g, on);
}

void require_boxes() {
  require_wgmma();
  require_shared_memory(BOX_SHARED<ConvTile<256, 128, Major::kK>>, "four pairs of tiles");
}

template <int CLUSTER>
Tensor conv2d_by_boxes(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation, const char* name) {
  const Conv v = check_forward(x, w, stride, padding, dilation);
  const DeviceGuard guard(x);
  require_boxes();
  if (stride > MOST_SCALE) {
    fell_back("conv2d_v1_gathered", "a stride of more than 8, which TMA does not have");
    return conv2d_v1_gathered(x, w, stride, padding, dilation);
  }
  Tensor y = torch::stable::new_empty(x, {v.N, v.P, v.Q, v.K});
  convolve<Major::kK, CLUSTER>(
      forward_gather(v, data<bf16>(x), data<bf16>(w), mutable_data<bf16>(y)), x);
  check_launch(name);
  return y;
}

Tensor conv2d_v2_boxes(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation) {
  return conv2d_by_boxes<1>(x, w, stride, padding, dilation, "conv2d_v2_boxes");
}
Tensor conv2d_v3_clusters(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                          int64_t dilation) {
  return conv2d_by_boxes<2>(x, w, stride, padding, dilation, "conv2d_v3_clusters");
}

Tensor conv2d_data_gradient_v2(const Tensor& dy, const Tensor& w, int64_t height, int64_t width,
                               int64_t stride, int64_t padding, int64_t dilation) {
  const Conv v = check_data_gradient(dy, w, height, width, stride, padding, dilation);
  const DeviceGuard guard(dy);
  require_boxes();
  Tensor dx = torch::stable::new_empty(dy, {v.N, v.H, v.W, v.C});
  for (int row = 0; row < std::min(v.stride, v.H); ++row) {
    for (int col = 0; col < std::min(v.stride, v.W); ++col) {
      convolve<Major::kMN, 1>(
          gradient_gather(v, data<bf16>(dy), data<bf16>(w), mutable_data<bf16>(dx), row, col), dy);
    }
  }
  check_launch("conv2d_data_gradient_v2");
  return dx;
}

RUNG(day60, conv2d_v2_boxes, FORWARD);
RUNG(day60, conv2d_v3_clusters, FORWARD);
RUNG(day60, conv2d_data_gradient_v2, DATA_GRADIENT);

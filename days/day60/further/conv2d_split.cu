// Day 60, further: layers with few pixels.
//
//   v6 split      the blocks of a cluster share a tile: each sums some of the steps
//
// 32 images of 7 × 7 are 14 tiles of 128 pixels. With 512 output channels that is 28 tiles of 128 ×
// 256 for 132 multiprocessors. Four blocks per tile make 112, each with a quarter of the sum.

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day60/further/box_roles.cuh"

// Each block has sums of all BN channels, in SPLIT shares of channels. At the end the block of rank
// r has share r of them all. A block numbers the shares from its own on, its share j is share
// j ^ rank, so all blocks do the same. They exchange shares in turns, and each turn halves what a
// block has left:
//
//   turn 1   sends its shares 1 and 3 to block rank ^ 1, which adds them to its shares 0 and 2
//   turn 2   sends its share 2 to block rank ^ 2, which adds it to its share 0
//
// A thread's sums go to the thread with the same number: a warp waits for one warp.
template <typename P, int SPLIT>
struct Exchange {
  static constexpr int SHARE = P::BN / 2 / SPLIT;                // sums of a thread
  static constexpr int PACKS = SHARE / 4;                        // as float4
  static constexpr int SLOT = PACKS * P::CONSUMERS * WARPGROUP;  // a share of a block, float4
  static constexpr int WARPS = P::CONSUMERS * WARPGROUP / 32;
  static constexpr int ARRIVALS = SPLIT / 2 * WARPS;  // of all turns
  static_assert(P::GROUPS == 1 && P::BN / SPLIT % PART == 0, "a block stores whole parts");
  static_assert((SPLIT - 1) * SLOT * 16 <= P::STAGES * P::BYTES, "the slots fit into the stages");

  float4* slots;
  uint64_t* arrived;  // mbarriers, one per turn and warp
  int rank;

  // Pack i of the share that the turn of BIT adds to share j. The slots of a turn follow those of
  // the turn before.
  template <int BIT>
  __device__ __forceinline__ int place(int j, int i) const {
    const int slot = SPLIT - SPLIT / BIT + j / (2 * BIT), thread = threadIdx.x - WARPGROUP;
    return slot * SLOT + i * P::CONSUMERS * WARPGROUP + thread;
  }
  template <int BIT>
  __device__ __forceinline__ uint64_t* barrier() const {
    return &arrived[BIT / 2 * WARPS + (threadIdx.x - WARPGROUP) / 32];
  }

  template <int BIT>
  __device__ __forceinline__ void send(const float (&sums)[P::BN / 2]) const {
    float4* there = ptx::map_to_rank(slots, rank ^ BIT);
#pragma unroll
    for (int j = 0; j < SPLIT; j += 2 * BIT) {
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        const float* from = &sums[(j + BIT) * SHARE + i * 4];
        there[place<BIT>(j, i)] = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
    ptx::mbarrier_arrive_at_rank(barrier<BIT>(), rank ^ BIT);
  }
  template <int BIT>
  __device__ __forceinline__ void add(float (&sums)[P::BN / 2]) const {
    ptx::mbarrier_wait_cluster(barrier<BIT>(), 0);
#pragma unroll
    for (int j = 0; j < SPLIT; j += 2 * BIT) {
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        const float4 from = slots[place<BIT>(j, i)];
        float* to = &sums[j * SHARE + i * 4];
        to[0] += from.x, to[1] += from.y, to[2] += from.z, to[3] += from.w;
      }
    }
  }
};

template <typename P, int SPLIT>
__global__ void __launch_bounds__(P::THREADS, 1)
    conv2d_v6_split_kernel(const __grid_constant__ BoxPlan g,
                           const __grid_constant__ TensorMap from,
                           const __grid_constant__ TensorMap filter,
                           const __grid_constant__ TensorMap to) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int CHANNELS = P::BN / SPLIT;  // of a share
  __shared__ uint64_t full[P::STAGES], empty[P::STAGES];
  __shared__ uint64_t arrived[Exchange<P, SPLIT>::ARRIVALS];
  init_stages<P>(full, empty, 1, from, filter, to);
  const BoxRoles<P, 1> roles{g, tile_memory(), full, empty, 0, 0, 0};
  const int rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT;
  const Exchange<P, SPLIT> exchange{reinterpret_cast<float4*>(roles.stages), arrived, rank};
  if (threadIdx.x < exchange.ARRIVALS) {
    ptx::mbarrier_init(&arrived[threadIdx.x], 32);  // the lanes of a warp
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are there before any thread uses one
  const Pixel at = corner_of(g.box, tile / g.tiles_n);
  const int n = tile % g.tiles_n * P::BN;
  const int first = g.steps * rank / SPLIT, steps = g.steps * (rank + 1) / SPLIT - first;

  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<P::FEW>();
    const auto load = [&](char* tile, int tap, int depth, uint64_t* loaded) {
#pragma unroll
      for (int j = 0; j < SPLIT; ++j) {  // the shares in this block's order
        ptx::load_tensor(tile + j * CHANNELS * ROW, filter, {depth, tap, n + (j ^ rank) * CHANNELS},
                         loaded);
      }
    };
    for (int i = 0; threadIdx.x == 0 && i < steps; ++i) {
      roles.load_step(from, at, first + i, i, load);
    }
    ptx::cluster_sync();
    ptx::cluster_sync();
  } else {
    ptx::setmaxnreg_inc<P::MANY>();
    float sums[P::GROUPS][P::BN / 2] = {};
    roles.multiply_tile(sums, steps, 0);
    ptx::cluster_sync();  // all blocks have read their stages, which become slots
    exchange.template send<1>(sums[0]);
    exchange.template add<1>(sums[0]);
    if constexpr (SPLIT == 4) {
      exchange.template send<2>(sums[0]);
      exchange.template add<2>(sums[0]);
    }
    ptx::cluster_arrive_relaxed();  // this block has what others sent
    const Pixel group = roles.group_in_box(0);
    int turn = 0;
#pragma unroll
    for (int part = 0; part < CHANNELS; part += PART) {
      roles.store_pixels(&sums[0][part / 2], n + rank * CHANNELS + part, to, at, group, turn);
    }
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
    ptx::cluster_wait();                                         // and the others have what it sent
  }
#endif
}

template <typename P, int SPLIT>
void launch_split(const Gather& g, const Tensor& on) {
  const BoxWork work = box_work<P, 1, SPLIT>(g);
  const unsigned grid = grid_size(work.plan.tiles_m * work.plan.tiles_n * SPLIT, "x");
  launch_clusters(conv2d_v6_split_kernel<P, SPLIT>, grid, SPLIT, P::THREADS, BOX_SHARED<P>,
                  current_stream(on), work.plan, work.from, work.filter, work.to);
}

Tensor conv2d_v6_split(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation) {
  const Conv v = check_forward(x, w, stride, padding, dilation);
  const DeviceGuard guard(x);
  require_boxes();
  if (stride > MOST_SCALE) {
    fell_back("conv2d_v3_additions", "a stride of more than 8, which TMA does not have");
    return conv2d_v3_additions(x, w, stride, padding, dilation);
  }
  Tensor y = allocate(x, {v.N, v.P, v.Q, v.K});
  if (y.numel() == 0) return y;
  const Gather g =
      flattened(forward_gather(v, data<bf16>(x), data<bf16>(w), mutable_data<bf16>(y)));
  if (split_time(g, 128, 256, 4, 1.0, x) < split_time(g, 128, 128, 2, 0.75, x)) {
    launch_split<ConvTile<128, 256, Major::kK>, 4>(g, x);
  } else {
    launch_split<ConvTile<128, 128, Major::kK>, 2>(g, x);
  }
  check_launch("conv2d_v6_split");
  return y;
}

RUNG(day60, conv2d_v6_split, FORWARD);

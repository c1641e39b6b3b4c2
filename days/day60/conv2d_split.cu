// Day 60, third file: layers with few pixels.
//
//   v4 split      the blocks of a cluster share a tile: each sums some of the steps
//
// 32 images of 7 × 7 are 14 tiles of 128 pixels. With 512 output channels that is 28 tiles of 128 ×
// 256 for 132 multiprocessors. Four blocks per tile make 112, each with a quarter of the sum.

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day60/box_roles.cuh"

// Each block has sums of all BN channels, in SPLIT shares of channels. At the end the block with
// rank r has share r of them all. Blocks exchange shares in turns, with the block whose rank
// differs in one bit. In each turn a block sends half of the shares that it has left:
//
//   rank   turn 1, with   sends   has left      turn 2, with   sends   has left
//    0          1         1, 3     0, 2              2           2        0
//    1          0         0, 2     1, 3              3           3        1
//    2          3         1, 3     0, 2              0           0        2
//    3          2         0, 2     1, 3              1           1        3
//
// Shares wait in shared memory, as each warp has them: 4 KB, for one bulk copy.
template <typename P, int SPLIT>
struct Exchange {
  static constexpr int SHARE = P::BN / 2 / SPLIT;                // sums of a thread
  static constexpr int PACKS = SHARE / 4, OF_WARP = PACKS * 32;  // float4
  static constexpr int SLOT = OF_WARP * P::CONSUMERS * 4;        // of a block, float4
  static_assert(P::GROUPS == 1 && P::BN / SPLIT % PART == 0, "a block stores whole parts");
  static_assert(2 * (SPLIT - 1) * SLOT * 16 <= P::STAGES * P::BYTES,
                "the slots fit into the stages");

  float4* slots;
  uint64_t* arrived;  // mbarriers, one per turn
  int rank;

  // What a turn sends, in shares; slots for as many to send and as many to receive follow those of
  // the turns before.
  template <int BIT>
  static constexpr int COUNT = SPLIT / (2 * BIT);
  template <int BIT>
  static constexpr int FIRST = 2 * (SPLIT - SPLIT / BIT);

  // Of share q in a turn: whether it is sent, or stays. Lower bits of q agree with the rank.
  template <int BIT>
  __device__ __forceinline__ bool is_sent(int q) const {
    return ((q ^ rank) & (2 * BIT - 1)) == BIT;
  }
  template <int BIT>
  __device__ __forceinline__ bool stays(int q) const {
    return ((q ^ rank) & (2 * BIT - 1)) == 0;
  }
  // This thread's pack i of a slot.
  __device__ __forceinline__ float4& at(int slot, int i) const {
    const int warp = (threadIdx.x - WARPGROUP) / 32;
    return slots[slot * SLOT + warp * OF_WARP + i * 32 + threadIdx.x % 32];
  }

  // One thread, before any block sends.
  __device__ __forceinline__ void init() const {
    for (int turn = 0; 1 << turn < SPLIT; ++turn) {
      ptx::mbarrier_init(&arrived[turn], 1);
      ptx::mbarrier_arrive_expect_bytes(&arrived[turn], (SPLIT >> (turn + 1)) * SLOT * 16);
    }
    ptx::fence_mbarrier_init();
  }
  // Writes what this turn sends to this block's slots.
  template <int BIT>
  __device__ __forceinline__ void collect(const float (&sums)[P::BN / 2]) const {
#pragma unroll
    for (int q = 0; q < SPLIT; ++q) {
      if (!is_sent<BIT>(q)) continue;
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        const float* from = &sums[q * SHARE + i * 4];
        at(FIRST<BIT> + q / (2 * BIT), i) = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
    ptx::fence_for_copy_engine();  // what this lane wrote, before it is copied …
    __syncwarp();                  // … and what the other lanes wrote
  }
  template <int BIT>
  __device__ __forceinline__ void send() const {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < COUNT<BIT>; ++i) {
      ptx::copy_bulk_to_rank(&at(FIRST<BIT> + COUNT<BIT> + i, 0), rank ^ BIT,
                             &at(FIRST<BIT> + i, 0), OF_WARP * 16, &arrived[BIT / 2]);
    }
  }
  // Waits for the other block's shares, and adds them.
  template <int BIT>
  __device__ __forceinline__ void add(float (&sums)[P::BN / 2]) const {
    ptx::mbarrier_wait(&arrived[BIT / 2], 0);
#pragma unroll
    for (int q = 0; q < SPLIT; ++q) {
      if (!stays<BIT>(q)) continue;
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        const float4 from = at(FIRST<BIT> + COUNT<BIT> + q / (2 * BIT), i);
        float* to = &sums[q * SHARE + i * 4];
        to[0] += from.x, to[1] += from.y, to[2] += from.z, to[3] += from.w;
      }
    }
  }
};

template <typename P, int SPLIT>
__global__ void __launch_bounds__(P::THREADS, 1)
    conv2d_v4_split_kernel(const __grid_constant__ BoxPlan g,
                           const __grid_constant__ TensorMap from,
                           const __grid_constant__ TensorMap filter,
                           const __grid_constant__ TensorMap to) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[P::STAGES], empty[P::STAGES], arrived[SPLIT / 2];
  init_stages<P>(full, empty, 1, from, filter, to);
  const BoxRoles<P, 1> roles{g, tile_memory(), full, empty, 0, 0, 0};
  const int rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT;
  const Exchange<P, SPLIT> exchange{reinterpret_cast<float4*>(roles.stages), arrived, rank};
  if (threadIdx.x == 0) exchange.init();
  __syncthreads();  // the mbarriers are there before any thread uses one
  const Pixel at = corner_of(g.box, tile / g.tiles_n);
  const int n = tile % g.tiles_n * P::BN;
  const int first = g.steps * rank / SPLIT, steps = g.steps * (rank + 1) / SPLIT - first;

  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<P::FEW>();
    for (int i = 0; threadIdx.x == 0 && i < steps; ++i) {
      roles.load_step(from, filter, at, n, first + i, i);
    }
    ptx::cluster_sync();
    ptx::cluster_sync();
  } else {
    ptx::setmaxnreg_inc<P::MANY>();
    float sums[P::GROUPS][P::BN / 2] = {};
    roles.multiply_tile(sums, steps, 0);
    ptx::cluster_arrive();  // this thread's products have read their stages, which become slots
    ptx::barrier_sync(1 + P::CONSUMERS, P::CONSUMERS * WARPGROUP);  // and so have the block's
    exchange.template collect<1>(sums[0]);
    ptx::cluster_wait();  // and those of the other blocks
    exchange.template send<1>();
    exchange.template add<1>(sums[0]);
    if constexpr (SPLIT == 4) {
      exchange.template collect<2>(sums[0]);
      exchange.template send<2>();
      exchange.template add<2>(sums[0]);
    }
    ptx::cluster_arrive();  // this block has what others sent
    const Pixel group = roles.group_in_box(0);
    int turn = 0;
#pragma unroll
    for (int q = 0; q < SPLIT; ++q) {  // one of them; registers need constant indices
      if (q != rank) continue;
#pragma unroll
      for (int part = 0; part < P::BN / SPLIT / PART; ++part) {
        const float* of_part = &sums[0][q * (P::BN / 2 / SPLIT) + part * (PART / 2)];
        roles.store_pixels(of_part, n + q * (P::BN / SPLIT) + part * PART, to, at, group, turn);
      }
    }
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
    ptx::cluster_wait();                                         // the others have read it, too
  }
#endif
}

template <typename P, int SPLIT>
void launch_split(const Gather& g, const Tensor& on) {
  const BoxWork work = box_work<P, 1>(g);
  const unsigned grid = grid_size(work.plan.tiles_m * work.plan.tiles_n * SPLIT, "x");
  launch_clusters(conv2d_v4_split_kernel<P, SPLIT>, grid, SPLIT, P::THREADS, BOX_SHARED<P>,
                  current_stream(on), work.plan, work.from, work.filter, work.to);
}

Tensor conv2d_v4_split(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation) {
  const Conv v = check_forward(x, w, stride, padding, dilation);
  const DeviceGuard guard(x);
  require_boxes();
  if (stride > MOST_SCALE) {
    fell_back("conv2d_v1_gathered", "a stride of more than 8, which TMA does not have");
    return conv2d_v1_gathered(x, w, stride, padding, dilation);
  }
  Tensor y = torch::stable::new_empty(x, {v.N, v.P, v.Q, v.K});
  if (y.numel() == 0) return y;
  const Gather g =
      flattened(forward_gather(v, data<bf16>(x), data<bf16>(w), mutable_data<bf16>(y)));
  if (split_time(g, 128, 256, 4, x) < split_time(g, 128, 128, 2, x)) {
    launch_split<ConvTile<128, 256, Major::kK>, 4>(g, x);
  } else {
    launch_split<ConvTile<128, 128, Major::kK>, 2>(g, x);
  }
  check_launch("conv2d_v4_split");
  return y;
}

RUNG(day60, conv2d_v4_split, FORWARD);

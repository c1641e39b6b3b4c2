// Day 60, third file: layers with few pixels.
//
//   v4 split      the blocks of a cluster share a tile: each sums some of the steps
//
// 32 images of 7 × 7 are 14 tiles of 128 pixels. With 512 output channels that is 28 tiles of 128 ×
// 256 for 132 multiprocessors. Four blocks per tile make 112, each with a quarter of the sum.

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day60/box_roles.cuh"

// Each block has sums of all BN channels. It needs those of the others for BN / SPLIT channels,
// which it stores, and sends its own to the others: a slot for each block that sends.
template <typename P, int SPLIT>
struct Exchange {
  static constexpr int OWN = P::BN / 2 / SPLIT;               // sums per thread that a block stores
  static constexpr int PACKS = OWN / 4;                       // as float4
  static constexpr int SLOT = PACKS * CONSUMERS * WARPGROUP;  // float4 that one block sends
  static_assert(P::GROUPS == 1 && P::BN / SPLIT % PART == 0, "a block stores whole parts");
  static_assert((SPLIT - 1) * SLOT * 16 <= P::STAGES * P::BYTES, "the slots fit into the stages");

  float4* slots;
  int rank;

  // This thread's pack i of the slot, neighbours side by side.
  __device__ __forceinline__ int place(int slot, int i) const {
    return slot * SLOT + i * CONSUMERS * WARPGROUP + threadIdx.x - WARPGROUP;
  }
  __device__ __forceinline__ void send(const float (&sums)[P::BN / 2]) const {
#pragma unroll
    for (int to = 0; to < SPLIT; ++to) {
      if (to == rank) continue;
      float4* there = ptx::map_to_rank(slots, to);
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        const float* from = &sums[to * OWN + i * 4];
        there[place(rank - (rank > to), i)] = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
  }
  // total = this thread's sums + what the others have sent, in the order of their ranks.
  __device__ __forceinline__ void receive(float (&total)[OWN], const float* sums) const {
#pragma unroll
    for (int i = 0; i < OWN; ++i) total[i] = sums[i];
#pragma unroll
    for (int slot = 0; slot < SPLIT - 1; ++slot) {
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        const float4 from = slots[place(slot, i)];
        total[i * 4] += from.x, total[i * 4 + 1] += from.y;
        total[i * 4 + 2] += from.z, total[i * 4 + 3] += from.w;
      }
    }
  }
};

template <typename P, int SPLIT>
__global__ void __launch_bounds__(THREADS, 1)
    conv2d_v4_split_kernel(const __grid_constant__ BoxPlan g,
                           const __grid_constant__ TensorMap from,
                           const __grid_constant__ TensorMap filter,
                           const __grid_constant__ TensorMap to) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Swap = Exchange<P, SPLIT>;
  __shared__ uint64_t full[P::STAGES], empty[P::STAGES];
  if (threadIdx.x == 0) init_stages(full, empty, P::STAGES, 1);
  if (threadIdx.x == 32) {  // meanwhile, so that the first loads do not wait for the maps
    ptx::prefetch_tensor_map(from);
    ptx::prefetch_tensor_map(filter);
    ptx::prefetch_tensor_map(to);
  }
  __syncthreads();  // the mbarriers are there before any thread uses one
  const BoxRoles<P, 1> roles{g, tile_memory(), full, empty, 0, 0, 0};
  const int rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT;
  const Pixel at = corner_of(g.box, tile / g.tiles_n);
  const int n = tile % g.tiles_n * P::BN;
  const int first = g.steps * rank / SPLIT, steps = g.steps * (rank + 1) / SPLIT - first;

  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<40>();
    for (int i = 0; threadIdx.x == 0 && i < steps; ++i) {
      roles.load_step(from, filter, at, n, first + i, i);
    }
    ptx::cluster_sync();
    ptx::cluster_sync();
  } else {
    ptx::setmaxnreg_inc<232>();
    float sums[P::GROUPS][P::BN / 2] = {};
    roles.multiply_tile(sums, steps, 0);
    const Swap swap{reinterpret_cast<float4*>(roles.stages), rank};
    ptx::cluster_sync();  // all blocks have read their stages, which become slots
    swap.send(sums[0]);
    ptx::cluster_sync();  // all sums are where they belong
    int turn = 0;
#pragma unroll
    for (int own = 0; own < SPLIT; ++own) {  // one of them; registers need constant indices
      if (own != rank) continue;
      float total[Swap::OWN];
      swap.receive(total, &sums[0][own * Swap::OWN]);
#pragma unroll
      for (int part = 0; part < Swap::OWN * 2 / PART; ++part) {
        const int channel = n + own * (P::BN / SPLIT) + part * PART;
        roles.store_pixels(&total[part * (PART / 2)], channel, to, at, 0, turn);
      }
    }
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
  }
#endif
}

template <typename P, int SPLIT>
void launch_split(const Gather& g, const Tensor& on) {
  const BoxWork work = box_work<P, 1>(g);
  const unsigned grid = grid_size(work.plan.tiles_m * work.plan.tiles_n * SPLIT, "x");
  launch_clusters(conv2d_v4_split_kernel<P, SPLIT>, grid, SPLIT, THREADS, BOX_SHARED<P>,
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

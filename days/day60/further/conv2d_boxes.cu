// Day 60, further: the forward pass and the data gradient by TMA and wgmma.
//
//   v4 boxes      TMA loads the inputs of a box of outputs, one box per tap and 64 channels
//   v5 clusters   two blocks share the filter's tile: each loads a half of it for both

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day60/further/box_roles.cuh"

// A persistent kernel, as in day 56: a block per multiprocessor computes tile after tile, and its
// producer already loads the next one while the consumers store.
template <typename P, int CLUSTER>
__global__ void __launch_bounds__(P::THREADS, 1)
    conv2d_boxes_kernel(const __grid_constant__ BoxPlan g, const __grid_constant__ TensorMap from,
                        const __grid_constant__ TensorMap filter,
                        const __grid_constant__ TensorMap to) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint64_t full[P::STAGES], empty[P::STAGES];
  init_stages<P>(full, empty, CLUSTER, from, filter, to);
  // The mbarriers are there before any thread, of any block of the cluster, uses one.
  if constexpr (CLUSTER > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  const BoxRoles<P, CLUSTER> roles{g,
                                   tile_memory(),
                                   full,
                                   empty,
                                   static_cast<int>(blockIdx.x % CLUSTER),
                                   static_cast<int>(blockIdx.x / CLUSTER),
                                   static_cast<int>(gridDim.x / CLUSTER)};
  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<P::FEW>();
    if (threadIdx.x == 0) {
      roles.each_tile([&](const Pixel& at, int n, int before) {
        const auto load = [&](char* part, int tap, int depth, uint64_t* arrived) {
          roles.load_filter(part, filter, n, tap, depth, arrived);
        };
        for (int i = 0; i < g.steps; ++i) roles.load_step(from, at, i, before + i, load);
      });
    }
  } else {
    ptx::setmaxnreg_inc<P::MANY>();
    Pixel groups[P::GROUPS];
#pragma unroll
    for (int group = 0; group < P::GROUPS; ++group) groups[group] = roles.group_in_box(group);
    int turn = 0;
    roles.each_tile([&](const Pixel& at, int n, int before) {
      float sums[P::GROUPS][P::BN / 2] = {};
      roles.multiply_tile(sums, g.steps, before);
      if (g.steps > 0) roles.release((before + g.steps - 1) % P::STAGES);
#pragma unroll
      for (int group = 0; group < P::GROUPS; ++group) {
#pragma unroll
        for (int part = 0; part < P::BN / PART; ++part) {
          roles.store_pixels(&sums[group][part * (PART / 2)], n + part * PART, to, at,
                             groups[group], turn);
        }
      }
    });
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the block's memory may go
  }
  // A block's shared memory has to be there as long as others write to it and arrive in it.
  if constexpr (CLUSTER > 1) ptx::cluster_sync();
#endif
}

// ---------------------------------------------------------------------------------------------
// Launchers.

template <typename P, int CLUSTER>
void launch_boxes(const Gather& g, const Tensor& on) {
  const BoxWork work = box_work<P, CLUSTER, CLUSTER>(g);
  const auto kernel = conv2d_boxes_kernel<P, CLUSTER>;
  const int64_t tiles = work.plan.tiles_m * work.plan.tiles_n;
  const unsigned grid = static_cast<unsigned>(std::min(tiles, places_for(on, CLUSTER))) * CLUSTER;
  if constexpr (CLUSTER > 1) {
    launch_clusters(kernel, grid, CLUSTER, P::THREADS, BOX_SHARED<P>, current_stream(on), work.plan,
                    work.from, work.filter, work.to);
  } else {
    allow_shared(kernel, BOX_SHARED<P>);
    kernel<<<grid, P::THREADS, BOX_SHARED<P>, current_stream(on)>>>(work.plan, work.from,
                                                                    work.filter, work.to);
  }
}

// Launches the tile size of the least time. Rates are those of products with many steps, relative
// to the largest tile. STORE: steps that one consumer would need to store the whole tile (H200).
template <Major B, int CLUSTER>
void convolve(const Gather& given, const Tensor& on) {
  constexpr double STORE = 4.5;
  const Gather g = flattened(given);
  if (g.pixels() == 0) return;  // there are no images
  double least = 0;
  void (*best)(const Gather&, const Tensor&) = nullptr;
  const auto consider = [&]<int M, int N>(double rate) {
    using P = ConvTile<M, N, B>;
    const double time = rounds(g, M, N, CLUSTER, places_for(on, CLUSTER)) * M * N *
                        (g.steps() / rate + STORE / P::CONSUMERS);
    if (best && time >= least) return;
    least = time;
    best = launch_boxes<P, CLUSTER>;
  };
  consider.template operator()<256, 128>(1.0);
  consider.template operator()<128, 256>(1.0);
  consider.template operator()<192, 128>(0.97);
  consider.template operator()<128, 128>(0.85);
  consider.template operator()<256, 64>(0.65);
  best(g, on);
}

template <int CLUSTER>
Tensor conv2d_by_boxes(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation, const char* name) {
  const Conv v = check_forward(x, w, stride, padding, dilation);
  const DeviceGuard guard(x);
  require_boxes();
  if (stride > MOST_SCALE) {
    fell_back("conv2d_v3_additions", "a stride of more than 8, which TMA does not have");
    return conv2d_v3_additions(x, w, stride, padding, dilation);
  }
  Tensor y = allocate(x, {v.N, v.P, v.Q, v.K});
  convolve<Major::kK, CLUSTER>(
      forward_gather(v, data<bf16>(x), data<bf16>(w), mutable_data<bf16>(y)), x);
  check_launch(name);
  return y;
}

Tensor conv2d_v4_boxes(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                       int64_t dilation) {
  return conv2d_by_boxes<1>(x, w, stride, padding, dilation, "conv2d_v4_boxes");
}
Tensor conv2d_v5_clusters(const Tensor& x, const Tensor& w, int64_t stride, int64_t padding,
                          int64_t dilation) {
  return conv2d_by_boxes<2>(x, w, stride, padding, dilation, "conv2d_v5_clusters");
}

Tensor conv2d_data_gradient_v4(const Tensor& dy, const Tensor& w, int64_t height, int64_t width,
                               int64_t stride, int64_t padding, int64_t dilation) {
  const Conv v = check_data_gradient(dy, w, height, width, stride, padding, dilation);
  const DeviceGuard guard(dy);
  require_boxes();
  Tensor dx = allocate(dy, {v.N, v.H, v.W, v.C});
  for (int row = 0; row < std::min(v.stride, v.H); ++row) {
    for (int col = 0; col < std::min(v.stride, v.W); ++col) {
      convolve<Major::kMN, 1>(
          gradient_gather(v, data<bf16>(dy), data<bf16>(w), mutable_data<bf16>(dx), row, col), dy);
    }
  }
  check_launch("conv2d_data_gradient_v4");
  return dx;
}

RUNG(day60, conv2d_v4_boxes, FORWARD);
RUNG(day60, conv2d_v5_clusters, FORWARD);
RUNG(day60, conv2d_data_gradient_v4, DATA_GRADIENT);

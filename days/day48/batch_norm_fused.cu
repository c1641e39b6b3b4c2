// Day 48: batch normalisation in one launch
//
//   The formulas are those of batch_norm.cu. v2 reads every tensor twice from memory. Here blocks
//   wait for each other between statistics and output, and keep in shared memory what they read.
//
// Bytes: 2 passes for training and 3 for its gradient, where the chip holds what is in work:
//
//   NCHW           one channel at a time: M · sizeof(T), 1.6 MB for 128 × 56 × 56 in fp32, fits
//                  into the shared memory of a cluster of 16 blocks
//   channels_last  rows of all channels: the whole tensor. 132 blocks of 200 KiB hold 27 MB; the
//                  rest is read again, the latest first, as it may still be in L2
//
//   v3 fused     a cluster per channel (NCHW); a cooperative launch for all (channels_last)
//
// Run: python run_day.py 48

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // clusters: day 34
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day48/channels.cuh"
#include "days/day48/slices.cuh"

#include <cooperative_groups.h>

// ---------------------------------------------------------------------------------------------
// v3 against v2, NCHW: the slices of a channel are the blocks of a cluster. Each stores its part in
// the shared memory of all of them, so that one launch is enough.

constexpr int MAX_CLUSTER = 16;  // blocks; more than 8 have to be allowed per kernel

template <class Pass, typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2)
    planes_fused_kernel(Arguments p, Planes g, int cluster, int room) {
  extern __shared__ __align__(128) char memory[];
  __shared__ Part partial[BLOCK], parts[MAX_CLUSTER];
  const Kept<T, N> kept{reinterpret_cast<Chunk<T, N>*>(memory), room};
  const int rank = blockIdx.x % cluster;
  const int64_t channel = blockIdx.x / cluster;
  const float origin = Pass::template origin<T>(p, channel, channel * g.plane * N);
  const PlaneWalk walk(g, channel, rank);
  const Part part = planes_part<Pass, T, N>(walk, p, origin, partial, kept);
  ptx::cluster_sync();  // all blocks have begun: their shared memory may be used
  if (threadIdx.x < cluster) *ptx::map_to_rank(&parts[rank], threadIdx.x) = part;
  ptx::cluster_sync();  // the parts of all blocks are in the memory of each
  Part all{};
  for (int b = 0; b < cluster; ++b) all = Pass::merge(all, parts[b]);
  const float4 k[1] = {Pass::coefficients(all, origin, channel, p, rank == 0 && threadIdx.x == 0)};
  apply<Pass, T, N>(walk, p, k, kept);
}

// The blocks that hold a channel in `bytes` of shared memory each, as far as a cluster can; more if
// otherwise multiprocessors would be idle. A power of two.
template <class Pass, typename T, int N>
int cluster_for(const Sizes& s, int64_t bytes, int64_t limit) {
  const int64_t chunks = s.count() / N, size = chunks * Pass::IN * N * sizeof(T);
  int blocks = 1;
  while (blocks < MAX_CLUSTER && chunks > int64_t{blocks} * BLOCK &&
         (size > blocks * bytes || s.channels * blocks < limit)) {
    blocks *= 2;
  }
  return blocks;
}

template <class Pass, typename T, int N>
void launch_planes(const Tensor& x, const Sizes& s, const Arguments& p) {
  const auto kernel = planes_fused_kernel<Pass, T, N>;
  // Two blocks per multiprocessor, so that one loads while the other stores. 1 KB per block is the
  // system's, and 8 KB more than covers the parts.
  const int64_t bytes = std::max<int64_t>((shared_limit(x) + 1024) / 2 - 1024 - 8192, 0);
  const int64_t limit = 2 * int64_t{multiprocessor_count(x)};
  const int cluster = cluster_for<Pass, T, N>(s, bytes, limit);
  Planes g(s, N, cluster);
  const int64_t row =
      int64_t{Pass::IN} * BLOCK * sizeof(Chunk<T, N>);  // bytes of a chunk per thread
  const int room = static_cast<int>(std::min(bytes / row, ceil_div<int64_t>(g.length, BLOCK)));
  allow_shared(kernel, room * row);
  raise_attribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid_size(s.channels * cluster, "x"));
  config.blockDim = dim3(BLOCK);
  config.dynamicSmemBytes = room * row;
  config.stream = current_stream(x);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, p, g, cluster, room), "cudaLaunchKernelEx");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2, channels_last: one block per multiprocessor, all resident at once. They wait for
// each other once. A thread keeps its first chunks and reads the others again from the last one
// back: what was read last has had the least time to be evicted from L2.

template <class Pass, typename T, int N>
__global__ void __launch_bounds__(BLOCK, 1) rows_fused_kernel(Arguments p, Rows g, int room) {
  extern __shared__ __align__(128) char memory[];
  __shared__ RowsMemory<N> shared;
  const Kept<T, N> kept{reinterpret_cast<Chunk<T, N>*>(memory), room};
  const int strip = blockIdx.x % g.strips, slice = blockIdx.x / g.strips;
  rows_parts<Pass, T, N>(RowWalk(g, strip, slice, false), p, g, strip, slice, shared, kept);
  cooperative_groups::this_grid().sync();  // the parts of all slices are stored
  float4 k[N];
  rows_coefficients<Pass, T, N>(p, g, strip, g.slices, slice == 0, shared, k);
  apply<Pass, T, N>(RowWalk(g, strip, slice, true), p, k, kept);
}

template <class Pass, typename T, int N>
void launch_rows(const Tensor& x, const Rows& g, Arguments p) {
  const auto kernel = rows_fused_kernel<Pass, T, N>;
  const int64_t fixed = sizeof(RowsMemory<N>) + 1024;  // and what the system takes
  const int64_t bytes = std::max<int64_t>(shared_limit(x) - fixed, 0);
  const int64_t row =
      int64_t{Pass::IN} * BLOCK * sizeof(Chunk<T, N>);  // bytes of a chunk per thread
  const int64_t chunks = ceil_div<int64_t>(g.length * g.width, BLOCK);  // of a thread
  const int room = static_cast<int>(std::min(bytes / row, chunks));
  allow_shared(kernel, room * row);
  const Tensor partial = parts_for(x, g.channels * g.slices);
  p.partial = static_cast<Part*>(partial.mutable_data_ptr());
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(g.strips * g.slices));
  config.blockDim = dim3(BLOCK);
  config.dynamicSmemBytes = room * row;
  config.stream = current_stream(x);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, p, g, room), "cudaLaunchKernelEx");
}

// ---------------------------------------------------------------------------------------------

// False where channels_last has more strips of channels than there are blocks.
template <class Pass>
bool launch_fused(const Tensor& x, const Sizes& s, const Arguments& p) {
  const DeviceGuard guard(x);
  bool fits = true;
  with_chunks(x, s, p, [&](auto zero, auto n) {
    using T = decltype(zero);
    constexpr int N = n();
    if (s.inner > 1) {
      require_capability(9, 0, "clusters");
      return launch_planes<Pass, T, N>(x, s, p);
    }
    const int64_t blocks = multiprocessor_count(x);
    const Rows g(s, N, blocks);
    fits = g.strips <= blocks;
    if (fits) launch_rows<Pass, T, N>(x, g, p);
  });
  return fits;
}

constexpr char TOO_MANY[] = "more strips of channels than resident blocks";

Outputs batch_norm_v2_welford(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const Optional& running_mean, const Optional& running_var,
                              double momentum, double eps);
Outputs batch_norm_backward_v2_split(const Tensor& gy, const Tensor& x, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& weight, bool training);

Outputs batch_norm_v3_fused(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Optional& running_mean, const Optional& running_var,
                            double momentum, double eps) {
  Outputs out;
  Arguments p{};
  const Sizes s =
      prepare_forward(x, weight, bias, running_mean, running_var, momentum, eps, out, p);
  if (x.numel() == 0) return out;
  if (!launch_fused<Forward>(x, s, p)) {
    fell_back("batch_norm_v2_welford", TOO_MANY);
    return batch_norm_v2_welford(x, weight, bias, running_mean, running_var, momentum, eps);
  }
  check_launch("batch_norm_v3_fused");
  return out;
}

Outputs batch_norm_backward_v3_fused(const Tensor& gy, const Tensor& x, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& weight, bool training) {
  Outputs out;
  Arguments p{};
  const Sizes s = prepare_backward(gy, x, mean, rstd, weight, training, out, p);
  if (x.numel() == 0) return out;
  if (!launch_fused<Backward>(x, s, p)) {
    fell_back("batch_norm_backward_v2_split", TOO_MANY);
    return batch_norm_backward_v2_split(gy, x, mean, rstd, weight, training);
  }
  check_launch("batch_norm_backward_v3_fused");
  return out;
}

// What a module calls: v3, or v2 for NCHW on a GPU without clusters.
bool has_fused(const Tensor& x) {
  const DeviceGuard guard(x);
  return sizes_of(x).inner == 1 || has_capability(9, 0);
}

Outputs batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Optional& running_mean, const Optional& running_var, double momentum,
                   double eps) {
  const auto launch = has_fused(x) ? batch_norm_v3_fused : batch_norm_v2_welford;
  return launch(x, weight, bias, running_mean, running_var, momentum, eps);
}

Outputs batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& mean,
                            const Tensor& rstd, const Tensor& weight, bool training) {
  const auto launch = has_fused(x) ? batch_norm_backward_v3_fused : batch_norm_backward_v2_split;
  return launch(gy, x, mean, rstd, weight, training);
}

// ---------------------------------------------------------------------------------------------

RUNG(day48, batch_norm_v3_fused, FORWARD);
RUNG(day48, batch_norm_backward_v3_fused, BACKWARD);
RUNG(day48, batch_norm, FORWARD);
RUNG(day48, batch_norm_backward, BACKWARD);

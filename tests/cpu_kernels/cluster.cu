// Kernels for test_cpu_cluster.py: thread block clusters, on the CPU and on a GPU.
#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// Before sm_90 there are no clusters: the kernels have to compile, and do nothing.
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS 1
#else
#define HAS_CLUSTERS 0
#endif

constexpr int kThreads = 64;

// A launch with clusters of these extents. Errors wait in cudaGetLastError, as they do after
// <<<>>>.
template <typename... P, typename... A>
void launch_clusters(dim3 grid, int threads, dim3 cluster, size_t shared, cudaStream_t stream,
                     void (*kernel)(P...), A... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

// ---------------------------------------------------------------- geometry

constexpr int kFacts = 28;

// All that a thread knows of its place: kFacts integers for each thread of the grid.
__device__ void write_place(int* y) {
#if HAS_CLUSTERS
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int* out = y + (block * blockDim.x + threadIdx.x) * kFacts;
  auto put = [&](unsigned value) { *out++ = static_cast<int>(value); };
  auto put3 = [&](dim3 value) {
    put(value.x);
    put(value.y);
    put(value.z);
  };
  const cg::cluster_group cluster = cg::this_cluster();
  put(ptx::cluster_block_rank());
  put(ptx::cluster_size());
  put3(ptx::cluster_block_index());
  put3(ptx::cluster_extent());
  put3(ptx::cluster_index());
  put3(ptx::cluster_grid());
  put(cluster.block_rank());
  put(cluster.num_blocks());
  put(cluster.thread_rank());
  put(cluster.num_threads());
  put3(cluster.block_index());
  put3(cluster.dim_blocks());
  put(cluster.dim_threads().x);
  put(cluster.thread_index().x);
  __shared__ int mine;
  const cg::cluster_group::arrival_token token = cluster.barrier_arrive();
  (void)token;
  cluster.barrier_wait();
  const unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
  put(cluster.query_shared_rank(cluster.map_shared_rank(&mine, static_cast<int>(next))));
  put(ptx::rank_of(ptx::map_to_rank(&mine, next)));
  cluster.sync();
#endif
}
__global__ void place_kernel(int* y) {
  write_place(y);
}
__global__ void __cluster_dims__(2, 2, 1) place_of_fixed_kernel(int* y) {
  write_place(y);
}
template <int X, int Z>
__global__ void __launch_bounds__(kThreads) __cluster_dims__(X, 1, Z)
    place_of_template_kernel(int* y) {
  write_place(y);
}

// like: on the device to use. How the cluster is set: 0 by the launch, 1 by a kernel's attribute
// (2, 2, 1), 2 by a template's (3, 1, 2), 3 not at all. → int32, (blocks, kThreads, kFacts).
Tensor place(Tensor like, int64_t gx, int64_t gy, int64_t gz, int64_t cx, int64_t cy, int64_t cz,
             int64_t how) {
  const dim3 grid(static_cast<unsigned>(gx), static_cast<unsigned>(gy), static_cast<unsigned>(gz));
  const dim3 cluster(static_cast<unsigned>(cx), static_cast<unsigned>(cy),
                     static_cast<unsigned>(cz));
  Tensor y = torch::stable::new_empty(like, {gx * gy * gz, kThreads, kFacts}, ScalarType::Int);
  int* out = mutable_data<int>(y);
  const cudaStream_t stream = current_stream(like);
  if (cx * cy * cz > 8)
    check_cuda(
        cudaFuncSetAttribute(place_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "cudaFuncSetAttribute");
  if (how == 0) launch_clusters(grid, kThreads, cluster, 0, stream, place_kernel, out);
  if (how == 1) place_of_fixed_kernel<<<grid, kThreads, 0, stream>>>(out);
  if (how == 2) place_of_template_kernel<3, 2><<<grid, kThreads, 0, stream>>>(out);
  if (how == 3) place_kernel<<<grid, kThreads, 0, stream>>>(out);
  check_launch("place");
  check_cuda(cudaFuncSetAttribute(place_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 0),
             "cudaFuncSetAttribute");
  return y;
}

// A launch that a GPU refuses; the name of its error.
std::string refused(Tensor like, int64_t grid, int64_t cluster, int64_t how) {
  Tensor y = torch::stable::new_empty(like, {grid * kThreads * kFacts}, ScalarType::Int);
  const dim3 blocks(static_cast<unsigned>(grid)), extent(static_cast<unsigned>(cluster));
  if (how == 0)
    launch_clusters(blocks, kThreads, extent, 0, current_stream(like), place_kernel,
                    mutable_data<int>(y));
  if (how == 1)
    launch_clusters(blocks, kThreads, extent, 0, current_stream(like),
                    place_of_template_kernel<2, 1>, mutable_data<int>(y));
  if (how == 2)
    place_of_template_kernel<2, 1>
        <<<blocks, kThreads, 0, current_stream(like)>>>(mutable_data<int>(y));
  const cudaError_t error = cudaGetLastError();
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

// ---------------------------------------------------------------- each other's shared memory

// Each block has kThreads elements of x; y[i] of the block is that of the next block of the
// cluster. `how` names the way: 0 a pointer of cooperative groups, 1 a mapped pointer, 2 ld, 3 st,
// 4 st.async, 5 cp.async.bulk, 6 atomicAdd; from 3 on, the data is pushed to the block before.
__global__ void shift_kernel(const int* x, int* y, int how) {
#if HAS_CLUSTERS
  __shared__ __align__(16) unsigned mine[kThreads];
  __shared__ __align__(16) unsigned pushed[kThreads];
  __shared__ uint64_t barrier;
  const cg::cluster_group cluster = cg::this_cluster();
  const unsigned t = threadIdx.x, size = cluster.num_blocks(), rank = cluster.block_rank();
  const unsigned next = (rank + 1) % size, before = (rank + size - 1) % size;
  const unsigned i = blockIdx.x * kThreads + t;
  const unsigned value = static_cast<unsigned>(x[i]);
  mine[t] = value;
  pushed[t] = 0;
  if (t == 0) {
    ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::fence_proxy_async();  // `mine` is written by this thread and read by a bulk copy
  cluster.sync();            // all blocks have begun, and written
  // The bytes may come before they are announced: the arrival is what the phase still needs.
  if (t == 0)
    ptx::mbarrier_arrive_expect_bytes_at_rank(&barrier, next,
                                              how == 4 || how == 5 ? 4 * kThreads : 0);
  unsigned result = 0;
  if (how == 0) result = cluster.map_shared_rank(mine, static_cast<int>(next))[t];
  if (how == 1) result = *ptx::map_to_rank(&mine[t], next);
  if (how == 2) result = ptx::load_from_rank(&mine[t], next);
  if (how == 3) ptx::store_to_rank(&pushed[t], before, value);
  if (how == 4) ptx::store_async_to_rank(&pushed[t], before, value, &barrier);
  if (how == 5 && t == 0) ptx::copy_bulk_to_rank(pushed, before, mine, sizeof mine, &barrier);
  if (how == 6) atomicAdd(cluster.map_shared_rank(&pushed[t], static_cast<int>(before)), value);
  if (how == 4 || how == 5) ptx::mbarrier_wait_cluster(&barrier, 0);
  ptx::cluster_sync();  // what was pushed is there, and all have read
  y[i] = static_cast<int>(how < 3 ? result : pushed[t]);
#endif
}
Tensor shift(Tensor x, int64_t cluster, int64_t how) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).contiguous();
  Tensor y = torch::stable::empty_like(x);
  launch_clusters(dim3(grid_size(x.numel() / kThreads, "x")), kThreads,
                  dim3(static_cast<unsigned>(cluster)), 0, current_stream(x), shift_kernel,
                  data<int>(x), mutable_data<int>(y), static_cast<int>(how));
  check_launch("shift");
  return y;
}

// Block 0 of each cluster hands its rows of x, one after the other, to all others by their
// mbarriers and two buffers; block r writes each element times r + 1. x: int32, (clusters, rows,
// kThreads) → (clusters, rows, blocks, kThreads).
__global__ void hand_out_kernel(const int* x, int* y, int rows) {
#if HAS_CLUSTERS
  __shared__ int buffers[2][kThreads];
  __shared__ uint64_t full[2], empty[2];
  const int t = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(ptx::cluster_block_rank());
  const int size = static_cast<int>(ptx::cluster_size());
  if (t == 0) {
    for (int b = 0; b < 2; ++b) {
      ptx::mbarrier_init(&full[b], kThreads);
      ptx::mbarrier_init(&empty[b], size);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const int cluster = static_cast<int>(ptx::cluster_index().x);
  for (int row = 0; row < rows; ++row) {
    const int b = row % 2, parity = row / 2 % 2;
    if (rank == 0) {
      ptx::mbarrier_wait_cluster(&empty[b], parity ^ 1);  // all blocks have read the buffer
      const int value = x[(cluster * rows + row) * kThreads + t];
      for (int to = 0; to < size; ++to) {
        *ptx::map_to_rank(&buffers[b][t], static_cast<uint32_t>(to)) = value;
        ptx::mbarrier_arrive_at_rank(&full[b], static_cast<uint32_t>(to));
      }
    }
    ptx::mbarrier_wait_cluster(&full[b], parity);
    const int value = buffers[b][kThreads - 1 - t];
    y[((cluster * rows + row) * size + rank) * kThreads + kThreads - 1 - t] = value * (rank + 1);
    __syncthreads();  // all of this block have read, before one of them says so
    if (t == 0) ptx::mbarrier_arrive_relaxed_at_rank(&empty[b], 0);
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
#endif
}
Tensor hand_out(Tensor x, int64_t cluster) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).rank(3).contiguous();
  Tensor y = torch::stable::new_empty(x, {x.size(0), x.size(1), cluster, kThreads});
  launch_clusters(dim3(grid_size(x.size(0) * cluster, "x")), kThreads,
                  dim3(static_cast<unsigned>(cluster)), 0, current_stream(x), hand_out_kernel,
                  data<int>(x), mutable_data<int>(y), static_cast<int>(x.size(1)));
  check_launch("hand_out");
  return y;
}

// A histogram whose bins lie in the shared memory of the cluster's blocks. x: int32, in [0, bins).
__global__ void histogram_kernel(const int* x, int n, int* y, int bins) {
#if HAS_CLUSTERS
  extern __shared__ int part[];
  const cg::cluster_group cluster = cg::this_cluster();
  const int each = bins / static_cast<int>(cluster.num_blocks());
  for (int i = static_cast<int>(threadIdx.x); i < each; i += kThreads) part[i] = 0;
  cluster.sync();
  const int threads = static_cast<int>(gridDim.x) * kThreads;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < n;
       i += threads)
    atomicAdd(cluster.map_shared_rank(&part[x[i] % each], x[i] / each), 1);
  cluster.sync();
  const int first = static_cast<int>(cluster.block_rank()) * each;
  for (int i = static_cast<int>(threadIdx.x); i < each; i += kThreads)
    atomicAdd(&y[first + i], part[i]);
#endif
}
Tensor histogram(Tensor x, int64_t bins, int64_t blocks, int64_t cluster) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).contiguous();
  Tensor y = torch::stable::new_zeros(x, {bins});
  launch_clusters(
      dim3(static_cast<unsigned>(blocks)), kThreads, dim3(static_cast<unsigned>(cluster)),
      sizeof(int) * static_cast<size_t>(bins / cluster), current_stream(x), histogram_kernel,
      data<int>(x), static_cast<int>(x.numel()), mutable_data<int>(y), static_cast<int>(bins));
  check_launch("histogram");
  return y;
}

// Some threads return before the barrier: those that have are not waited for. y[block]: how many
// threads of the next block had counted before.
__global__ void early_return_kernel(int* y) {
#if HAS_CLUSTERS
  __shared__ int count;
  const cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) count = 0;
  cluster.sync();
  if (threadIdx.x % 32 >= 16) return;
  atomicAdd(&count, 1);
  __syncwarp(0xffffu);
  cluster.sync();
  if (threadIdx.x == 0)
    y[blockIdx.x] = *cluster.map_shared_rank(&count, static_cast<int>(cluster.block_rank()) ^ 1);
  cluster.sync();
#endif
}
Tensor early_return(Tensor like, int64_t blocks) {
  Tensor y = torch::stable::new_empty(like, {blocks}, ScalarType::Int);
  launch_clusters(dim3(grid_size(blocks, "blocks")), kThreads, dim3(2), 0, current_stream(like),
                  early_return_kernel, mutable_data<int>(y));
  check_launch("early_return");
  return y;
}

// Blocks in a cluster, and clusters at once, that the occupancy functions promise for kThreads.
std::string occupancy(Tensor like, int64_t shared) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 4;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1024);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = current_stream(like);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int size = 0, clusters = 0;
  check_cuda(cudaOccupancyMaxPotentialClusterSize(&size, place_kernel, &config), "potential");
  check_cuda(cudaOccupancyMaxActiveClusters(&clusters, place_kernel, &config), "active");
  return std::to_string(size) + " " + std::to_string(clusters);
}

// A store to the own block by st.async, in a launch without clusters, or with clusters of one block
// or two. Without, a GPU ends with cudaErrorIllegalInstruction.
__global__ void async_store_kernel(int* y) {
#if HAS_CLUSTERS
  __shared__ uint32_t word;
  __shared__ uint64_t barrier;
  ptx::mbarrier_init(&barrier, 1);
  ptx::mbarrier_arrive_expect_bytes(&barrier, sizeof word);
  ptx::store_async_to_rank(&word, ptx::cluster_block_rank(), 7, &barrier);  // line: st.async alone
  ptx::mbarrier_wait(&barrier, 0);
  y[blockIdx.x] = static_cast<int>(word);
#endif
}
Tensor async_store(Tensor like, int64_t cluster) {
  Tensor y = torch::stable::new_zeros(like, {2}, ScalarType::Int);
  const auto stream = current_stream(like);
  if (cluster == 0) {
    async_store_kernel<<<2, 1, 0, stream>>>(mutable_data<int>(y));
  } else {
    launch_clusters(dim3(2), 1, dim3(static_cast<unsigned>(cluster)), 0, stream, async_store_kernel,
                    mutable_data<int>(y));
  }
  check_launch("async_store");
  return y;
}

// ---------------------------------------------------------------- mistakes

// One for each number; not to be run on a GPU. Clusters of 2 blocks.
__global__ void mistake_kernel(int* y, int which) {
#if HAS_CLUSTERS
  __shared__ __align__(16) int tile[kThreads];
  __shared__ uint64_t barrier;
  const cg::cluster_group cluster = cg::this_cluster();
  const int t = static_cast<int>(threadIdx.x), rank = static_cast<int>(cluster.block_rank());
  int* theirs = cluster.map_shared_rank(tile, rank ^ 1);
  tile[t] = t;
  if (which != 1 && which != 2) cluster.sync();
  switch (which) {
    case 1:
      y[t] = theirs[t];  // line: other block has not begun
      break;
    case 2:
      ptx::store_to_rank(reinterpret_cast<unsigned*>(tile), rank ^ 1, 1);  // line: store too early
      break;
    case 3:
      y[blockIdx.x * kThreads + t] = theirs[kThreads - 1 - t];  // line: other block has returned
      break;
    case 4:
      ptx::mbarrier_arrive_at_rank(&barrier, rank ^ 1);  // line: arrival at a garbage mbarrier
      break;
    case 5:
      y[t] = *cluster.map_shared_rank(tile, 2);  // line: rank out of range
      break;
    case 6:
      y[t] = *cluster.map_shared_rank(y, rank ^ 1);  // line: global address
      break;
    case 7:
      if (rank == 1 && t >= 32) __syncthreads();
      cluster.sync();  // line: half a block waits elsewhere
      break;
    case 8:
      cluster.barrier_arrive();
      cluster.barrier_arrive();  // line: arrives twice
      break;
    case 9:
      cluster.barrier_wait();  // line: waits without arriving
      break;
    case 10:
      if (rank == 1) return;
      __nanosleep(100);
      ptx::mbarrier_arrive_at_rank(&barrier, 1);  // line: arrival at a returned block
      break;
    case 11:
      ptx::copy_bulk_to_rank(tile, 5, tile, 64, &barrier);  // line: bulk copy to no block
      break;
    case 12:
      tile[1] = static_cast<int>(ptx::load_from_rank(
          reinterpret_cast<unsigned*>(reinterpret_cast<char*>(tile) + 2), rank ^ 1));
      break;
    case 13:
      if (t == 0) ptx::mbarrier_init(&barrier, 2);
      cluster.sync();
      if (t == 0 && rank == 0) ptx::mbarrier_arrive_at_rank(&barrier, 1);
      ptx::mbarrier_wait_cluster(&barrier, 0);  // line: too few remote arrivals
      break;
  }
#endif
}
Tensor mistake(Tensor like, int64_t which) {
  Tensor y = torch::stable::new_zeros(like, {2 * kThreads}, ScalarType::Int);
  launch_clusters(dim3(2), kThreads, dim3(2), 0, current_stream(like), mistake_kernel,
                  mutable_data<int>(y), static_cast<int>(which));
  check_launch("mistake");
  return y;
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_cluster, m) {
  m.def("place(Tensor like, int gx, int gy, int gz, int cx, int cy, int cz, int how) -> Tensor");
  m.def("refused(Tensor like, int grid, int cluster, int how) -> str");
  m.def("shift(Tensor x, int cluster, int how) -> Tensor");
  m.def("hand_out(Tensor x, int cluster) -> Tensor");
  m.def("histogram(Tensor x, int bins, int blocks, int cluster) -> Tensor");
  m.def("early_return(Tensor like, int blocks) -> Tensor");
  m.def("occupancy(Tensor like, int shared) -> str");
  m.def("async_store(Tensor like, int cluster) -> Tensor");
  m.def("mistake(Tensor like, int which) -> Tensor");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_cluster, CUDA, m) {
  m.impl("place", TORCH_BOX(&place));
  m.impl("refused", TORCH_BOX(&refused));
  m.impl("shift", TORCH_BOX(&shift));
  m.impl("hand_out", TORCH_BOX(&hand_out));
  m.impl("histogram", TORCH_BOX(&histogram));
  m.impl("early_return", TORCH_BOX(&early_return));
  m.impl("occupancy", TORCH_BOX(&occupancy));
  m.impl("async_store", TORCH_BOX(&async_store));
  m.impl("mistake", TORCH_BOX(&mistake));
}

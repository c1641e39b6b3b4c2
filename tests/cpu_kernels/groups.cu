// Kernels for test_cpu_groups.py: cooperative groups.
#include "common/cuda/tensor.cuh"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

// ---------------------------------------------------------------- places in groups

// What a function sees that takes any group by value.
__device__ int size_and_rank(cg::thread_group group) {
  group.sync();
  return static_cast<int>(group.size() * 10000 + group.thread_rank());
}

// 12 numbers for each thread of a 3D block: sizes and ranks of every kind of group.
__global__ void places_kernel(int* out) {
  cg::thread_block block = cg::this_thread_block();
  cg::grid_group grid = cg::this_grid();
  auto tile = cg::tiled_partition<16>(block);
  auto inner = cg::tiled_partition<4>(tile);
  cg::thread_block_tile<4> erased = inner;
  cg::thread_group loose = cg::tiled_partition(static_cast<cg::thread_group>(block), 8);
  int values[] = {
      static_cast<int>(block.size()),
      static_cast<int>(block.thread_rank()),
      static_cast<int>(grid.size()),
      static_cast<int>(grid.thread_rank()),
      static_cast<int>(tile.thread_rank() * 100 + tile.size()),
      static_cast<int>(tile.meta_group_rank() * 100 + tile.meta_group_size()),
      static_cast<int>(inner.thread_rank() * 100 + inner.size()),
      static_cast<int>(erased.meta_group_rank() * 100 + erased.meta_group_size()),
      size_and_rank(block),
      size_and_rank(inner),
      size_and_rank(loose),
      static_cast<int>(block.group_index().x * 1000 + block.thread_index().z * 100 +
                       block.group_dim().y + cg::thread_rank(inner) * cg::group_size(tile)),
  };
  for (int i = 0; i < 12; ++i) out[grid.thread_rank() * 12 + i] = values[i];
}
Tensor places(Tensor like) {
  Tensor out = torch::stable::new_empty(like, {2 * 64, 12}, ScalarType::Int);
  places_kernel<<<2, dim3(8, 4, 2), 0, current_stream(like)>>>(mutable_data<int>(out));
  check_launch("places");
  return out;
}

// ---------------------------------------------------------------- tiles

struct Pair {  // a type that no shuffle of the language takes
  float value;
  int index;
  double weight;
};

// Rows of results, a column for each of 64 threads, in tiles of N.
template <unsigned N>
__global__ void tile_kernel(const float* in, float* out) {
  auto tile = cg::tiled_partition<N>(cg::this_thread_block());
  int t = threadIdx.x;
  float x = in[t];
  int i = static_cast<int>(x * 10);
  Pair pair{x, t, 2.0 * x};
  auto later = [](Pair a, Pair b) { return a.value < b.value ? b : a; };
  Pair best = cg::reduce(tile, pair, later);
  unsigned same = tile.match_any(i);
  int all_the_same = 0;
  tile.match_all(i, all_the_same);
  int broadcast = cg::invoke_one_broadcast(tile, [&] { return i + 1; });
  float rows[] = {
      tile.shfl(x, 1),
      tile.shfl_up(x, 1),
      tile.shfl_down(x, 2),
      tile.shfl_xor(x, N > 1),  // undefined beyond the tile
      tile.shfl(pair, 0).value + static_cast<float>(tile.shfl_down(pair, 1).weight),
      static_cast<float>(tile.any(i == 3)),
      static_cast<float>(tile.all(i >= 0)),
      static_cast<float>(tile.ballot(i % 2) & 0xffffu),
      static_cast<float>(same & 0xffffu),
      static_cast<float>(all_the_same),
      cg::reduce(tile, x, cg::plus<float>()),
      static_cast<float>(cg::reduce(tile, i, cg::plus<int>())),
      cg::reduce(tile, x, cg::less<float>()),
      cg::reduce(tile, x, cg::greater<float>()),
      static_cast<float>(cg::reduce(tile, i, cg::bit_xor<int>())),
      static_cast<float>(best.index),
      cg::inclusive_scan(tile, x),
      cg::exclusive_scan(tile, x),
      static_cast<float>(cg::inclusive_scan(tile, i, cg::plus<int>())),
      static_cast<float>(cg::exclusive_scan(tile, i)),
      cg::inclusive_scan(tile, x, cg::greater<float>()),
      static_cast<float>(broadcast),
  };
  for (int r = 0; r < 22; ++r) out[r * 64 + t] = rows[r];
}
Tensor tiles(Tensor x, int64_t size) {
  Tensor out = torch::stable::new_empty(x, {22, 64});
  auto kernel = size == 32   ? tile_kernel<32>
                : size == 16 ? tile_kernel<16>
                : size == 4  ? tile_kernel<4>
                             : tile_kernel<1>;
  kernel<<<1, 64, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(out));
  check_launch("tiles");
  return out;
}

// ---------------------------------------------------------------- coalesced groups

// Threads whose value is not negative take part; the others keep -1.
__global__ void coalesced_kernel(const float* in, float* out) {
  int t = threadIdx.x;
  float x = in[t];
  for (int r = 0; r < 16; ++r) out[r * 64 + t] = -1;
  if (x >= 0) {
    cg::coalesced_group active = cg::coalesced_threads();
    int i = static_cast<int>(x * 10);
    auto part = cg::labeled_partition(active, i % 3);
    auto half = cg::binary_partition(active, i % 2 == 0);
    auto fours = cg::tiled_partition(active, 4);
    float rows[] = {
        static_cast<float>(active.size()),
        static_cast<float>(active.thread_rank()),
        active.shfl(x, 2),
        active.shfl_up(x, 1),
        active.shfl_down(x, 3),
        static_cast<float>(active.ballot(i % 2)),
        cg::reduce(active, x, cg::plus<float>()),
        cg::inclusive_scan(active, x, cg::plus<float>()),
        static_cast<float>(cg::exclusive_scan(active, i)),
        static_cast<float>(part.size() * 10000 + part.thread_rank() * 100 +
                           part.meta_group_rank() * 10 + part.meta_group_size()),
        cg::reduce(part, x, cg::greater<float>()),
        static_cast<float>(half.size() * 10000 + half.thread_rank() * 100 +
                           half.meta_group_rank() * 10 + half.meta_group_size()),
        static_cast<float>(fours.size() * 10000 + fours.thread_rank() * 100 +
                           fours.meta_group_rank() * 10 + fours.meta_group_size()),
        cg::reduce(fours, x, cg::plus<float>()),
        static_cast<float>(active.any(i == 3) * 10 + active.all(i < 1000)),
        static_cast<float>(cg::exclusive_scan(half, x, cg::plus<float>())),
    };
    for (int r = 0; r < 16; ++r) out[r * 64 + t] = rows[r];
    active.sync();
  }
}
Tensor coalesced(Tensor x) {
  Tensor out = torch::stable::new_empty(x, {16, 64});
  coalesced_kernel<<<1, 64, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(out));
  check_launch("coalesced");
  return out;
}

// One atomic for all threads that come together: the use that coalesced groups were made for.
__global__ void aggregate_kernel(const int* in, int* counters, int* positions, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && in[i] % 3 == 0) {
    auto group = cg::coalesced_threads();
    int base = 0;
    if (group.thread_rank() == 0) base = atomicAdd(counters, static_cast<int>(group.size()));
    positions[i] = group.shfl(base, 0) + static_cast<int>(group.thread_rank());
  }
}
Tensor aggregate(Tensor x) {
  Tensor out = torch::stable::new_zeros(x, {x.numel() + 1});
  int n = static_cast<int>(x.numel());
  aggregate_kernel<<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(
      data<int>(x), mutable_data<int>(out) + n, mutable_data<int>(out), n);
  check_launch("aggregate");
  return out;
}

// ---------------------------------------------------------------- the grid

// Each round, each block adds up what all blocks wrote in the round before.
__global__ void grid_kernel(int* values, int rounds) {
  cg::grid_group grid = cg::this_grid();
  int blocks = static_cast<int>(grid.num_blocks()), block = static_cast<int>(grid.block_rank());
  __shared__ int sum;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) {
      sum = 0;
      for (int i = 0; i < blocks; ++i) sum += values[i];
    }
    cg::sync(cg::this_thread_block());
    grid.sync();
    if (grid.is_valid() && threadIdx.x == blockDim.x - 1) values[block] = sum % 1000 + block;
    grid.sync();
  }
}
// how: 0 cudaLaunchCooperativeKernel, 1 with a cast, 2 cudaLaunchKernelEx, 3 not cooperative
void grid(Tensor values, int64_t rounds, int64_t how) {
  int* pointer = mutable_data<int>(values);
  int times = static_cast<int>(rounds);
  void* arguments[] = {&pointer, &times};
  unsigned blocks = static_cast<unsigned>(values.numel());
  cudaStream_t stream = current_stream(values);
  if (how == 0)
    check_cuda(cudaLaunchCooperativeKernel(grid_kernel, blocks, 96, arguments, 0, stream), "grid");
  if (how == 1)
    check_cuda(cudaLaunchCooperativeKernel((void*)grid_kernel, dim3(blocks), dim3(96), arguments, 0,
                                           stream),
               "grid");
  if (how == 2) {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeCooperative;
    attribute[0].val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(96);
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = 1;
    check_cuda(cudaLaunchKernelEx(&config, grid_kernel, pointer, times), "grid");
  }
  if (how == 3) grid_kernel<<<blocks, 96, 0, stream>>>(pointer, times);
  check_launch("grid");
}

// The greatest number of blocks that may wait for each other, and what one more is answered.
Tensor limits(Tensor like) {
  Tensor out = torch::stable::new_zeros(like, {1});
  int* pointer = nullptr;
  int times = 0, each = 0, processors = 0, supported = 0;
  void* arguments[] = {&pointer, &times};
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "limits");
  check_cuda(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0), "limits");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, grid_kernel, 1024, 0), "limits");
  unsigned most = static_cast<unsigned>(each * processors);
  cudaError_t fits = cudaLaunchCooperativeKernel(grid_kernel, most, 1024, arguments);
  cudaError_t more = cudaLaunchCooperativeKernel(grid_kernel, most + 1, 1024, arguments);
  (void)cudaGetLastError();
  STD_TORCH_CHECK(supported == 1 && fits == cudaSuccess);
  STD_TORCH_CHECK(more == cudaErrorCooperativeLaunchTooLarge, cudaGetErrorName(more));
  return out;
}

// ---------------------------------------------------------------- barriers in two halves

// Each round, a thread reads what its neighbour wrote before it arrived.
__global__ void split_kernel(int* out, int rounds) {
  extern __shared__ int places[];
  cg::thread_block block = cg::this_thread_block();
  unsigned t = block.thread_rank(), n = block.num_threads();
  int sum = 0;
  for (int round = 0; round < rounds; ++round) {
    places[round % 2 * n + t] = static_cast<int>(t) * round;
    auto token = block.barrier_arrive();
    sum += round;  // meanwhile
    block.barrier_wait(std::move(token));
    sum += places[round % 2 * n + (t + 1) % n];
    if (round == 5 && t % 7 == 3) break;  // a thread that has returned is not waited for
  }
  out[t] = sum;
}
Tensor split(Tensor like, int64_t threads, int64_t rounds) {
  Tensor out = torch::stable::new_empty(like, {threads}, ScalarType::Int);
  int n = static_cast<int>(threads);
  split_kernel<<<1, n, 2 * n * sizeof(int), current_stream(like)>>>(mutable_data<int>(out),
                                                                    static_cast<int>(rounds));
  check_launch("split");
  return out;
}

// ---------------------------------------------------------------- memcpy_async

template <size_t N>
struct Multiple {  // what cuda::aligned_size_t is
  size_t value;
  __host__ __device__ operator size_t() const { return value; }
};

// Pieces of 96 floats, two on their way at a time; the block adds its own number to each.
__global__ void staged_kernel(const float* in, float* out, int pieces) {
  __shared__ alignas(16) float stage[2][96];
  cg::thread_block block = cg::this_thread_block();
  cg::memcpy_async(block, stage[0], in, Multiple<16>{sizeof stage[0]});
  for (int i = 0; i < pieces; ++i) {
    int next = i + 1 < pieces ? i + 1 : i;  // the last one once more, which is never read
    cg::memcpy_async(block, stage[(i + 1) % 2], 96, in + next * 96, 200);
    cg::wait_prior<1>(block);
    for (unsigned k = block.thread_rank(); k < 96; k += block.num_threads())
      out[i * 96 + k] = stage[i % 2][95 - k] + static_cast<float>(i);
    block.sync();
  }
  cg::wait(block);
}
// Each tile copies bytes from any address to any other, and then within shared memory.
__global__ void bytes_kernel(const signed char* in, signed char* out, int n, int offset) {
  __shared__ alignas(16) signed char bytes[8][2][64];
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  auto& own = bytes[tile.meta_group_rank()];
  const signed char* from = in + tile.meta_group_rank() * 64 + offset;
  cg::memcpy_async(tile, static_cast<void*>(own[0] + 1), static_cast<const void*>(from), n);
  cg::wait(tile);
  cg::memcpy_async(tile, own[1], own[0] + 1, n);
  cg::wait(tile);
  for (unsigned k = tile.thread_rank(); k < 64; k += tile.num_threads())
    out[tile.meta_group_rank() * 64 + k] = static_cast<int>(k) < n ? own[1][k] : -1;
}
Tensor staged(Tensor x) {
  Tensor out = torch::stable::empty_like(x);
  staged_kernel<<<1, 40, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(out),
                                                 static_cast<int>(x.numel() / 96));
  check_launch("staged");
  return out;
}
Tensor bytes(Tensor x, int64_t n, int64_t offset) {
  Tensor out = torch::stable::empty_like(x);
  bytes_kernel<<<1, 64, 0, current_stream(x)>>>(data<signed char>(x),
                                                mutable_data<signed char>(out), static_cast<int>(n),
                                                static_cast<int>(offset));
  check_launch("bytes");
  return out;
}

// ---------------------------------------------------------------- tiles of several warps

// Rows of results, a column for each of 1024 threads, in tiles of N.
template <unsigned N>
__global__ void wide_tile_kernel(const float* in, float* out) {
  __shared__ cg::block_tile_memory<1024> memory;
  __shared__ int chosen[16];
  cg::thread_block block = cg::this_thread_block(memory);
  auto tile = cg::tiled_partition<N>(block);
  cg::thread_block_tile<N> erased = tile;
  auto half = cg::tiled_partition<N / 2>(tile);
  unsigned t = block.thread_rank();
  float x = in[t];
  int i = static_cast<int>(x * 10);
  cg::invoke_one(tile, [&](int value) { chosen[t / N] = value; }, static_cast<int>(t) + 5);
  tile.sync();
  int from_one = chosen[tile.meta_group_rank()];
  float rows[] = {
      static_cast<float>(tile.thread_rank() + tile.size()),
      static_cast<float>(erased.meta_group_rank() * 100 + erased.meta_group_size()),
      static_cast<float>(half.meta_group_rank() * 1000 + half.thread_rank()),
      static_cast<float>(tile.num_threads() + from_one),
      tile.shfl(x, N - 3),
      static_cast<float>(tile.any(i == 3 && t % N == N - 1)),
      static_cast<float>(tile.all(i < 80)),
      cg::reduce(tile, x, cg::plus<float>()),
      static_cast<float>(cg::reduce(tile, i, cg::plus<int>())),
      cg::reduce(tile, x, cg::greater<float>()),
      cg::reduce(half, x, cg::plus<float>()),
      cg::inclusive_scan(tile, x, cg::plus<float>()),
      cg::exclusive_scan(tile, x, cg::plus<float>()),
      static_cast<float>(cg::inclusive_scan(tile, i)),
      static_cast<float>(cg::exclusive_scan(tile, i, cg::plus<int>())),
      static_cast<float>(cg::invoke_one_broadcast(tile, [&] { return i + 1; })),
  };
  for (int r = 0; r < 16; ++r) out[r * 1024 + t] = rows[r];
}
Tensor wide_tiles(Tensor x, int64_t size) {
  Tensor out = torch::stable::new_empty(x, {16, 1024});
  auto kernel = size == 64    ? wide_tile_kernel<64>
                : size == 128 ? wide_tile_kernel<128>
                : size == 256 ? wide_tile_kernel<256>
                              : wide_tile_kernel<512>;
  kernel<<<1, 1024, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(out));
  check_launch("wide_tiles");
  return out;
}

// ---------------------------------------------------------------- faults

__global__ void grid_sync_in_a_branch(int*) {
  if (blockIdx.x != 1) cg::this_grid().sync();
}
__global__ void grid_sync_not_by_all(int*) {
  if (threadIdx.x < 40) cg::this_grid().sync();
  __syncthreads();
}
__global__ void tile_without_threads(int* out) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  out[0] = cg::reduce(tile, 1, cg::plus<int>());
}
__global__ void tile_in_a_branch(int* out) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  if (tile.thread_rank() < 4)
    out[0] = tile.shfl(3, 0);
  else
    out[1] = tile.shfl_down(3, 1);
}
__global__ void block_sync_in_a_branch(int*) {
  if (threadIdx.x < 32)
    cg::this_thread_block().sync();
  else
    cg::sync(cg::this_thread_block());
}
__global__ void arrives_twice(int*) {
  auto block = cg::this_thread_block();
  (void)block.barrier_arrive();
  (void)block.barrier_arrive();
}
__global__ void waits_alone(int*) {
  auto block = cg::this_thread_block();
  if (threadIdx.x < 40) block.barrier_wait(block.barrier_arrive());
  __syncthreads();
}
__global__ void waits_without_arriving(int*) {
  cg::this_thread_block().barrier_wait(cg::thread_block::arrival_token());
}
__global__ void wide_tile_without_threads(int* out) {
  auto tile = cg::tiled_partition<64>(cg::this_thread_block());
  out[0] = tile.any(1);
}
__global__ void wide_tile_in_a_branch(int* out) {
  auto tile = cg::tiled_partition<64>(cg::this_thread_block());
  if (threadIdx.x < 32)
    out[0] = tile.any(1);
  else
    out[1] = tile.all(1);
}
__global__ void wide_tile_that_loses_a_thread(int*) {
  auto tile = cg::tiled_partition<64>(cg::this_thread_block());
  if (threadIdx.x != 7) tile.sync();
}
__global__ void copies_a_part_of_a_word(int* out) {
  __shared__ int word[4];
  cg::memcpy_async(cg::this_thread_block(), word, out, 7);
  cg::wait(cg::this_thread_block());
}
__global__ void copies_to_an_odd_address(int* out) {
  __shared__ alignas(16) int words[8];
  cg::memcpy_async(cg::this_thread_block(), words + 1, out, Multiple<16>{16});
  cg::wait(cg::this_thread_block());
}
__global__ void copies_odd_pairs(int* out) {
  __shared__ alignas(16) char bytes[16];
  cg::memcpy_async(cg::this_thread_block(), bytes + 3, reinterpret_cast<char*>(out) + 1, 6);
  cg::wait(cg::this_thread_block());
}
__global__ void reads_before_the_wait(int* out) {
  __shared__ int words[4];
  cg::memcpy_async(cg::this_thread_block(), words, out, sizeof words);
  cg::wait_prior<1>(cg::this_thread_block());
  int early = words[threadIdx.x];
  cg::wait(cg::this_thread_block());
  out[threadIdx.x] = early == words[threadIdx.x];
}
void fault(Tensor out, int64_t which) {
  int* pointer = mutable_data<int>(out);
  void* arguments[] = {&pointer};
  if (which == 0) cudaLaunchCooperativeKernel(grid_sync_in_a_branch, 3, 64, arguments);
  if (which == 1) cudaLaunchCooperativeKernel(grid_sync_not_by_all, 3, 64, arguments);
  if (which == 2) tile_without_threads<<<1, 48>>>(pointer);
  if (which == 3) tile_in_a_branch<<<1, 32>>>(pointer);
  if (which == 4) block_sync_in_a_branch<<<1, 64>>>(pointer);
  if (which == 5) arrives_twice<<<1, 64>>>(pointer);
  if (which == 6) waits_alone<<<1, 64>>>(pointer);
  if (which == 7) waits_without_arriving<<<1, 64>>>(pointer);
  if (which == 8) wide_tile_without_threads<<<1, 96>>>(pointer);
  if (which == 9) wide_tile_in_a_branch<<<1, 64>>>(pointer);
  if (which == 10) wide_tile_that_loses_a_thread<<<1, 64>>>(pointer);
  if (which == 11) copies_a_part_of_a_word<<<1, 64>>>(pointer);
  if (which == 12) copies_to_an_odd_address<<<1, 64>>>(pointer);
  if (which == 13) reads_before_the_wait<<<1, 4>>>(pointer);
  if (which == 14) copies_odd_pairs<<<1, 64>>>(pointer);
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_groups, m) {
  m.def("places(Tensor like) -> Tensor");
  m.def("tiles(Tensor x, int size) -> Tensor");
  m.def("coalesced(Tensor x) -> Tensor");
  m.def("aggregate(Tensor x) -> Tensor");
  m.def("grid(Tensor(a!) values, int rounds, int how) -> ()");
  m.def("limits(Tensor like) -> Tensor");
  m.def("split(Tensor like, int threads, int rounds) -> Tensor");
  m.def("staged(Tensor x) -> Tensor");
  m.def("bytes(Tensor x, int n, int offset) -> Tensor");
  m.def("wide_tiles(Tensor x, int size) -> Tensor");
  m.def("fault(Tensor(a!) out, int which) -> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_groups, CUDA, m) {
  m.impl("places", TORCH_BOX(&places));
  m.impl("tiles", TORCH_BOX(&tiles));
  m.impl("coalesced", TORCH_BOX(&coalesced));
  m.impl("aggregate", TORCH_BOX(&aggregate));
  m.impl("grid", TORCH_BOX(&grid));
  m.impl("limits", TORCH_BOX(&limits));
  m.impl("split", TORCH_BOX(&split));
  m.impl("staged", TORCH_BOX(&staged));
  m.impl("bytes", TORCH_BOX(&bytes));
  m.impl("wide_tiles", TORCH_BOX(&wide_tiles));
  m.impl("fault", TORCH_BOX(&fault));
}

// Planted races and unwritten reads, and access patterns whose counts are known, for the tracer.
//
// A kernel is wrong where `fixed` is false. The lines that are to be named end in `// name: first`
// and `// name: second`; or, where what matters is a count, in `// name: load` and `// name:
// store`. No PyTorch: the tests call run_case.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_runtime.h>

#include <string_view>
#include <vector>

#include "common/cuda/ptx.cuh"

namespace cg = cooperative_groups;

namespace {

// ------------------------------------------------------------------ races in shared memory

template <bool fixed>
__global__ void missing_barrier(float* out) {
  __shared__ float row[64];
  row[threadIdx.x] = 1.0f;  // missing_barrier: first
  if (fixed) __syncthreads();
  out[threadIdx.x] = row[63 - threadIdx.x];  // missing_barrier: second
}

// A graph keeps the arguments until it runs: they are no memory that threads could share.
struct Terms {
  float of[64];
};
template <bool fixed>
__global__ void missing_barrier_in_graph(float* out, Terms terms) {
  __shared__ float row[64];
  row[threadIdx.x] = terms.of[threadIdx.x];  // missing_barrier_in_graph: first
  if (fixed) __syncthreads();
  out[threadIdx.x] = row[63 - threadIdx.x];  // missing_barrier_in_graph: second
}

// Each trip writes what the one before may still read.
template <bool fixed>
__global__ void missing_barrier_after(float* out) {
  __shared__ float row[64];
  float sum = 0;
  for (int trip = 0; trip < 3; ++trip) {
    row[threadIdx.x] = trip;  // missing_barrier_after: first
    __syncthreads();
    sum += row[63 - threadIdx.x];  // missing_barrier_after: second
    if (fixed) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

// A tree whose steps are not separated.
template <bool fixed>
__global__ void missing_barrier_between_trips(float* out) {
  __shared__ float part[128];
  unsigned t = threadIdx.x;
  part[t] = t;
  __syncthreads();
  for (unsigned half = 64; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];  // missing_barrier_between_trips: both
    if (fixed) __syncthreads();
  }
  if (t == 0) out[0] = part[0];
}

template <bool fixed>
__global__ void neighbour_without_syncwarp(float* out) {
  __shared__ float lane[32];
  lane[threadIdx.x] = threadIdx.x;  // neighbour_without_syncwarp: first
  if (fixed) __syncwarp();
  out[threadIdx.x] = lane[threadIdx.x ^ 1];  // neighbour_without_syncwarp: second
}

// The way of old, when the lanes of a warp could not part.
template <bool fixed>
__global__ void volatile_warp_sum(float* out) {
  __shared__ float part[64];
  part[threadIdx.x] = threadIdx.x;
  part[threadIdx.x + 32] = threadIdx.x;
  __syncwarp();
  volatile float* v = part;
  for (unsigned half = 16; half > 0; half /= 2) {
    float other = v[threadIdx.x + half];  // volatile_warp_sum: first
    if (fixed) __syncwarp();
    v[threadIdx.x] = v[threadIdx.x] + other;  // volatile_warp_sum: second
    if (fixed) __syncwarp();
  }
  out[threadIdx.x] = part[threadIdx.x];
}

// Two buffers need a barrier a trip; the next but one overwrites what is read.
template <bool fixed>
__global__ void double_buffer(float* out) {
  __shared__ float buffer[2][64];
  float sum = 0;
  for (int trip = 0; trip < 4; ++trip) {
    int which = fixed ? trip % 2 : 0;
    buffer[which][threadIdx.x] = trip;  // double_buffer: first
    __syncthreads();
    sum += buffer[which][63 - threadIdx.x];  // double_buffer: second
  }
  out[threadIdx.x] = sum;
}

template <bool fixed>
__global__ void copy_without_wait(float* out, const float* in) {
  __shared__ __align__(16) float row[128];
  ptx::cp_async<16>(&row[4 * threadIdx.x], &in[4 * threadIdx.x]);  // copy_without_wait: first
  ptx::cp_async_commit();
  if (fixed) ptx::cp_async_wait<0>();
  out[threadIdx.x] = row[4 * threadIdx.x];  // copy_without_wait: second
}

// The wait is for a thread's own copies.
template <bool fixed>
__global__ void copy_without_barrier(float* out, const float* in) {
  __shared__ __align__(16) float row[128];
  ptx::cp_async<16>(&row[4 * threadIdx.x], &in[4 * threadIdx.x]);  // copy_without_barrier: first
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  if (fixed) __syncthreads();
  out[threadIdx.x] = row[4 * (31 - threadIdx.x)];  // copy_without_barrier: second
}

// Two copies are under way, and the wait leaves the wrong one.
template <bool fixed>
__global__ void copy_wait_for_too_few(float* out, const float* in) {
  __shared__ __align__(16) float row[2][128];
  for (int i = 0; i < 2; ++i) {
    float* to = &row[i][4 * threadIdx.x];
    ptx::cp_async<16>(to, in + 4 * threadIdx.x);  // copy_wait_for_too_few: first
    ptx::cp_async_commit();
  }
  ptx::cp_async_wait<fixed ? 0 : 1>();
  __syncthreads();
  out[threadIdx.x] = row[1][4 * threadIdx.x];  // copy_wait_for_too_few: second
}

template <bool fixed>
__global__ void named_barrier_too_small(float* out) {
  __shared__ float row[96];
  row[threadIdx.x] = 1.0f;  // named_barrier_too_small: first
  if (fixed)
    ptx::barrier_sync(1, 96);
  else if (threadIdx.x < 64)
    ptx::barrier_sync(1, 64);
  out[threadIdx.x] = row[95 - threadIdx.x];  // named_barrier_too_small: second
}

// The producer arrives before it writes.
template <bool fixed>
__global__ void arrive_before_write(float* out) {
  __shared__ float row[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 32);
  __syncthreads();
  if (threadIdx.x < 32) {
    if (!fixed) ptx::mbarrier_arrive(&full);
    row[threadIdx.x] = 2.0f;  // arrive_before_write: first
    if (fixed) ptx::mbarrier_arrive(&full);
  } else {
    ptx::mbarrier_wait(&full, 0);
    out[threadIdx.x] = row[threadIdx.x - 32];  // arrive_before_write: second
  }
}

template <bool fixed>
__global__ void bulk_copy_without_wait(float* out, const float* in) {
  __shared__ __align__(16) float row[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 1), ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&full, 256);
    ptx::copy_bulk(row, in, 256, &full);  // bulk_copy_without_wait: first
  }
  if (fixed) ptx::mbarrier_wait(&full, 0);
  out[threadIdx.x] = row[threadIdx.x];  // bulk_copy_without_wait: second
  __syncthreads();
  ptx::mbarrier_wait(&full, 0);
}

template <bool fixed>
__global__ void ldmatrix_without_syncwarp(float* out) {
  __shared__ __align__(16) unsigned short tile[8][8];
  for (int i = threadIdx.x; i < 64; i += 32)
    tile[i % 8][i / 8] = i;  // ldmatrix_without_syncwarp: first
  if (fixed) __syncwarp();
  uint32_t fragment[1];
  ptx::ldmatrix_x1(fragment, tile[threadIdx.x % 8]);  // ldmatrix_without_syncwarp: second
  out[threadIdx.x] = fragment[0];
}

// All four warps read all of the tile.
template <bool fixed>
__global__ void wgmma_without_barrier(float* out) {
  __shared__ __align__(16) __nv_bfloat16 tile[2][64][8];
  for (int i = threadIdx.x; i < 1024; i += 128)
    tile[i / 512][i / 8 % 64][i % 8] = 1.0f;  // wgmma_without_barrier: first
  ptx::fence_proxy_async();
  if (fixed) __syncthreads();
  const uint64_t whole = ptx::wgmma_descriptor(tile, ptx::Swizzle::kNone, 1024, 128);
  float sums[4] = {};
  ptx::wgmma_fence(sums);
  ptx::wgmma<__nv_bfloat16>(sums, whole, whole);  // wgmma_without_barrier: second
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(sums);
  out[threadIdx.x] = sums[0];
}

// A tile of 64 threads has met; the other half of the block has not.
template <bool fixed>
__global__ void wide_tile_too_small(float* out) {
  __shared__ float tile_row[128];
  auto block = cg::this_thread_block();
  tile_row[threadIdx.x] = 1.0f;  // wide_tile_too_small: first
  if (fixed)
    cg::tiled_partition<128>(block).sync();
  else
    cg::tiled_partition<64>(block).sync();
  out[threadIdx.x] = tile_row[127 - threadIdx.x];  // wide_tile_too_small: second
}

// No order of threads shows it: all of them come to the wait before one goes on.
template <bool fixed>
__global__ void write_between_arrival_and_wait(float* out) {
  __shared__ float row[64];
  auto block = cg::this_thread_block();
  if (fixed) row[threadIdx.x] = 1.0f;
  auto token = block.barrier_arrive();
  if (!fixed) row[threadIdx.x] = 1.0f;  // write_between_arrival_and_wait: first
  block.barrier_wait(std::move(token));
  out[threadIdx.x] = row[63 - threadIdx.x];  // write_between_arrival_and_wait: second
}

template <bool fixed>
__global__ void group_copy_without_wait(const float* in, float* out) {
  __shared__ float row[128];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, row, in, sizeof row);  // group_copy_without_wait: first
  if (fixed)
    cg::wait(block);
  else
    block.sync();
  out[threadIdx.x] = row[threadIdx.x];  // group_copy_without_wait: second
}

// A tile of 16 threads has met; the other half of the warp has not.
template <bool fixed>
__global__ void tile_too_small(float* out) {
  __shared__ float lane[32];
  auto tile = cg::tiled_partition<fixed ? 32 : 16>(cg::this_thread_block());
  lane[threadIdx.x] = threadIdx.x;  // tile_too_small: first
  tile.sync();
  out[threadIdx.x] = lane[31 - threadIdx.x];  // tile_too_small: second
}

template <bool fixed>
__global__ void histogram_not_cleared(int* out, const int* in) {
  __shared__ int bins[4];
  if (threadIdx.x < 4) bins[threadIdx.x] = 0;  // histogram_not_cleared: first
  if (fixed) __syncthreads();
  atomicAdd(&bins[in[threadIdx.x] & 3], 1);  // histogram_not_cleared: second
  __syncthreads();
  if (threadIdx.x < 4) out[threadIdx.x] = bins[threadIdx.x];
}

// The atomic updates of many threads do not hide the read between two resets.
template <bool fixed>
__global__ void reset_after_atomics(float* out) {
  __shared__ float sum;
  for (int trip = 0; trip < 3; ++trip) {
    if (threadIdx.x == 63) sum = 0;  // reset_after_atomics: first
    __syncthreads();
    if (threadIdx.x % 8 == 0) atomicAdd(&sum, 1.0f);
    __syncthreads();
    if (threadIdx.x == 0) out[trip] = sum;  // reset_after_atomics: second
    if (fixed) __syncthreads();
  }
}

// ------------------------------------------------------------------ TMA, wgmma,
// clusters

// One thread stores the tile; the others may write the next one when it has waited.
template <bool fixed>
__global__ void stored_tile_overwritten(float* out) {
  __shared__ __align__(16) float tile[64];
  for (int trip = 0; trip < 2; ++trip) {
    tile[threadIdx.x] = trip;  // stored_tile_overwritten: second
    ptx::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::store_bulk(out + 64 * trip, tile, 256);  // stored_tile_overwritten: first
      ptx::bulk_commit();
      if (fixed) ptx::bulk_wait_read<0>();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) ptx::bulk_wait<0>();
}

template <bool fixed>
__global__ void tensor_tile_overwritten(const __grid_constant__ ptx::TensorMap map) {
  __shared__ __align__(128) float tile[8][8];
  for (int trip = 0; trip < 2; ++trip) {
    tile[threadIdx.x / 8][threadIdx.x % 8] = trip;  // tensor_tile_overwritten: second
    ptx::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::store_tensor(map, {0, 8 * trip}, tile);  // tensor_tile_overwritten: first
      ptx::bulk_commit();
      if (fixed) ptx::bulk_wait_read<0>();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) ptx::bulk_wait<0>();
}

// bulk_wait_read is for the tile; what was stored is there after bulk_wait.
template <bool fixed>
__global__ void stored_result_read(float* data, float* out) {
  __shared__ __align__(16) float tile[64];
  tile[threadIdx.x] = 1.0f;
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_bulk(data, tile, 256);  // stored_result_read: first
    ptx::bulk_commit();
    if (fixed)
      ptx::bulk_wait<0>();
    else
      ptx::bulk_wait_read<0>();
  }
  __syncthreads();
  out[threadIdx.x] = data[threadIdx.x];  // stored_result_read: second
}

template <bool fixed>
__global__ void tensor_load_without_wait(const __grid_constant__ ptx::TensorMap map, float* out) {
  __shared__ __align__(128) float tile[8][8];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&full, 256);
    ptx::load_tensor(tile, map, {0, 0}, &full);  // tensor_load_without_wait: first
  }
  __syncthreads();
  if (fixed) ptx::mbarrier_wait(&full, 0);
  out[threadIdx.x] = tile[threadIdx.x / 8][threadIdx.x % 8];  // tensor_load_without_wait: second
  ptx::mbarrier_wait(&full, 0);
}

// Rows of 16 bytes lie in a tile with the pitch of their swizzle. No gap is waited for, or read.
template <bool fixed>
__global__ void narrow_box_without_wait(const __grid_constant__ ptx::TensorMap map, float* out) {
  __shared__ __align__(1024) float tile[8][32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&full, 128);
    ptx::load_tensor(tile, map, {0, 0}, &full);  // narrow_box_without_wait: first
  }
  if (fixed) ptx::mbarrier_wait(&full, 0);
  unsigned row = threadIdx.x / 4;
  out[threadIdx.x] = tile[row][row * 4 + threadIdx.x % 4];  // narrow_box_without_wait: second
  __syncthreads();
  ptx::mbarrier_wait(&full, 0);
  ptx::fence_proxy_async();
  if (threadIdx.x == 0) {
    ptx::store_tensor(map, {0, 8}, tile);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

template <bool fixed>
__global__ void __cluster_dims__(2, 1, 1)
    multicast_without_wait(const __grid_constant__ ptx::TensorMap map, float* out) {
  __shared__ __align__(128) float tile[8][8];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 1), ptx::fence_mbarrier_init();
  ptx::cluster_sync();
  if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_bytes(&full, 256);
  if (threadIdx.x == 0 && ptx::cluster_block_rank() == 0)
    ptx::load_tensor_multicast(tile, map, {0, 0}, &full, 3);  // multicast_without_wait: first
  ptx::cluster_sync();
  if (fixed) ptx::mbarrier_wait(&full, 0);
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      tile[threadIdx.x / 8][threadIdx.x % 8];  // multicast_without_wait: second
  ptx::mbarrier_wait(&full, 0);
  ptx::cluster_sync();
}

// Waiting for its own block's threads does not make a block wait for its neighbour.
template <bool fixed>
__global__ void __cluster_dims__(2, 1, 1) cluster_read_without_barrier(uint32_t* out) {
  __shared__ uint32_t row[32];
  ptx::cluster_sync();
  row[threadIdx.x] = threadIdx.x;  // cluster_read_without_barrier: first
  if (fixed)
    ptx::cluster_sync();
  else
    __syncthreads();
  uint32_t other = ptx::cluster_block_rank() ^ 1;
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      ptx::load_from_rank(&row[31 - threadIdx.x], other);  // cluster_read_without_barrier: second
  ptx::cluster_sync();
}

template <bool fixed>
__global__ void __cluster_dims__(2, 1, 1) cluster_store_without_barrier(uint32_t* out) {
  __shared__ uint32_t row[32];
  ptx::cluster_sync();
  uint32_t other = ptx::cluster_block_rank() ^ 1;
  ptx::store_to_rank(&row[threadIdx.x], other, 1);  // cluster_store_without_barrier: first
  if (fixed)
    ptx::cluster_sync();
  else
    __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      row[threadIdx.x];  // cluster_store_without_barrier: second
  ptx::cluster_sync();
}

template <bool fixed>
__global__ void __cluster_dims__(2, 1, 1) async_store_without_wait(uint32_t* out) {
  __shared__ uint32_t row[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1), ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes(&full, 128);
  }
  ptx::cluster_sync();
  uint32_t other = ptx::cluster_block_rank() ^ 1;
  ptx::store_async_to_rank(&row[threadIdx.x], other, 1, &full);  // async_store_without_wait: first
  ptx::cluster_sync();
  if (fixed) ptx::mbarrier_wait_cluster(&full, 0);
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      row[threadIdx.x];  // async_store_without_wait: second
  ptx::mbarrier_wait_cluster(&full, 0);
  ptx::cluster_sync();
}

// The source of a copy to another block is read until that block's mbarrier says so.
template <bool fixed>
__global__ void __cluster_dims__(2, 1, 1) sent_tile_overwritten(float* out) {
  __shared__ __align__(16) float from[32], to[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1), ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes(&full, 128);
  }
  from[threadIdx.x] = 1.0f;
  ptx::fence_proxy_async();
  ptx::cluster_sync();
  uint32_t other = ptx::cluster_block_rank() ^ 1;
  if (threadIdx.x == 0)
    ptx::copy_bulk_to_rank(to, other, from, 128, &full);  // sent_tile_overwritten: first
  if (fixed) ptx::mbarrier_wait_cluster(&full, 0);
  ptx::cluster_sync();
  from[threadIdx.x] = 2.0f;  // sent_tile_overwritten: second
  ptx::mbarrier_wait_cluster(&full, 0);
  out[blockIdx.x * blockDim.x + threadIdx.x] = to[threadIdx.x];
  ptx::cluster_sync();
}

// A warp's matrix is for the next warp after a barrier.
template <bool fixed>
__global__ void stmatrix_without_barrier(uint32_t* out) {
  __shared__ __align__(16) unsigned short tile[2][8][8];
  const uint32_t fragment[1] = {threadIdx.x};
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::stmatrix_x1(tile[warp][lane % 8], fragment);  // stmatrix_without_barrier: first
  if (fixed) __syncthreads();
  out[threadIdx.x] = tile[warp ^ 1][lane / 8][lane % 8];  // stmatrix_without_barrier: second
}

// A barrier does not end a wgmma: the tile is read until wgmma_wait.
template <bool fixed>
__global__ void wgmma_tile_overwritten(float* out) {
  __shared__ __align__(16) __nv_bfloat16 tile[2][64][8];
  const uint64_t whole = ptx::wgmma_descriptor(tile, ptx::Swizzle::kNone, 1024, 128);
  float sums[4] = {};
  for (int trip = 0; trip < 2; ++trip) {
    for (int i = threadIdx.x; i < 1024; i += 128)
      tile[i / 512][i / 8 % 64][i % 8] = 1.0f;  // wgmma_tile_overwritten: second
    ptx::fence_proxy_async();
    __syncthreads();
    ptx::wgmma_fence(sums);
    ptx::wgmma<__nv_bfloat16>(sums, whole, whole);  // wgmma_tile_overwritten: first
    ptx::wgmma_commit();
    if (fixed) ptx::wgmma_wait<0>(sums);
    __syncthreads();
  }
  ptx::wgmma_wait<0>(sums);
  out[threadIdx.x] = sums[0];
}

// What a thread has stored is no news to TMA before a fence, whatever barrier follows.
template <bool fixed>
__global__ void store_without_fence(float* out) {
  __shared__ __align__(16) float tile[64];
  tile[threadIdx.x] = 1.0f;  // store_without_fence: first
  if (fixed) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_bulk(out, tile, 256);  // store_without_fence: second
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

// The storing thread's own fence, but of the store before.
template <bool fixed>
__global__ void tensor_store_with_old_fence(const __grid_constant__ ptx::TensorMap map) {
  __shared__ __align__(128) float tile[8][8];
  if (!fixed) ptx::fence_proxy_async();
  tile[threadIdx.x / 8][threadIdx.x % 8] = 1.0f;  // tensor_store_with_old_fence: first
  if (fixed) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_tensor(map, {0, 0}, tile);  // tensor_store_with_old_fence: second
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

template <bool fixed>
__global__ void wgmma_without_fence(float* out) {
  __shared__ __align__(16) __nv_bfloat16 tile[2][64][8];
  for (int i = threadIdx.x; i < 1024; i += 128)
    tile[i / 512][i / 8 % 64][i % 8] = 1.0f;  // wgmma_without_fence: first
  if (fixed) ptx::fence_proxy_async();
  __syncthreads();
  const uint64_t whole = ptx::wgmma_descriptor(tile, ptx::Swizzle::kNone, 1024, 128);
  float sums[4] = {};
  ptx::wgmma_fence(sums);
  ptx::wgmma<__nv_bfloat16>(sums, whole, whole);  // wgmma_without_fence: second
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(sums);
  out[threadIdx.x] = sums[0];
}

// A fence after the barrier is of use to the thread that has it, if that is the one which stores.
template <bool fixed>
__global__ void fence_by_another(float* out) {
  __shared__ __align__(16) float tile[64];
  tile[threadIdx.x] = 1.0f;  // fence_by_another: first
  __syncthreads();
  if (threadIdx.x == (fixed ? 0 : 32)) ptx::fence_proxy_async();
  if (threadIdx.x == 0) {
    ptx::store_bulk(out, tile, 256);  // fence_by_another: second
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

template <bool fixed>
__global__ void mbarrier_without_fence(float* out, const float* in) {
  __shared__ __align__(16) float row[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);  // mbarrier_without_fence: first
    if (fixed) ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    ptx::mbarrier_arrive_expect_bytes(&full, 256);
    ptx::copy_bulk(row, in, 256, &full);  // mbarrier_without_fence: second
  }
  ptx::mbarrier_wait(&full, 0);
  out[threadIdx.x] = row[threadIdx.x];
}

// A fence before an mbarrier begins is of no use to it.
template <bool fixed>
__global__ void mbarrier_after_fence(const __grid_constant__ ptx::TensorMap map, float* out) {
  __shared__ __align__(128) float tile[8][8];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    if (!fixed) ptx::fence_proxy_async(), ptx::fence_mbarrier_init();
    ptx::mbarrier_init(&full, 1);  // mbarrier_after_fence: first
    if (fixed) ptx::fence_proxy_async();
    ptx::mbarrier_arrive_expect_bytes(&full, 256);
    ptx::load_tensor(tile, map, {0, 0}, &full);  // mbarrier_after_fence: second
  }
  __syncthreads();
  ptx::mbarrier_wait(&full, 0);
  out[threadIdx.x] = tile[threadIdx.x / 8][threadIdx.x % 8];
}

// fence_mbarrier_init is for mbarriers that its thread has begun, and for nothing else. The thread
// that copies may have the other fence instead.
template <bool fixed>
__global__ void __cluster_dims__(2, 1, 1) mbarrier_fenced_by_another(float* out) {
  __shared__ __align__(16) float from[32], to[32];
  __shared__ uint64_t full;
  from[threadIdx.x] = 1.0f;
  ptx::fence_proxy_async();
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 1);  // mbarrier_fenced_by_another: first
  ptx::cluster_sync();
  uint32_t other = ptx::cluster_block_rank() ^ 1;
  if (threadIdx.x == 1) {
    if (fixed)
      ptx::fence_proxy_async();
    else
      ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes_at_rank(&full, other, 128);
    ptx::copy_bulk_to_rank(to, other, from, 128, &full);  // mbarrier_fenced_by_another: second
  }
  ptx::mbarrier_wait_cluster(&full, 0);
  out[blockIdx.x * blockDim.x + threadIdx.x] = to[threadIdx.x];
  ptx::cluster_sync();
}

template <bool fixed>
__global__ void tile_with_mbarrier_fence(float* out) {
  __shared__ __align__(16) float tile[64];
  tile[threadIdx.x] = 1.0f;  // tile_with_mbarrier_fence: first
  if (fixed)
    ptx::fence_proxy_async();
  else
    ptx::fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_bulk(out, tile, 256);  // tile_with_mbarrier_fence: second
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

// An mbarrier may not begin again while a copy is still to be counted there.
template <bool fixed>
__global__ void mbarrier_begun_again(float* out, const float* in) {
  __shared__ __align__(16) float row[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&full, 256);
    ptx::copy_bulk(row, in, 256, &full);  // mbarrier_begun_again: first
  }
  if (fixed) ptx::mbarrier_wait(&full, 0);
  __syncthreads();
  if (threadIdx.x == 32) ptx::mbarrier_init(&full, 1);  // mbarrier_begun_again: second
  __syncthreads();
  if (!fixed && threadIdx.x == 0) ptx::mbarrier_arrive_expect_bytes(&full, 256);
  if (!fixed) ptx::mbarrier_wait(&full, 0);
  out[threadIdx.x] = row[threadIdx.x];
}

// Two warpgroups read one tile, and the second does not wait before it says that it is done.
template <bool fixed>
__global__ void second_warpgroup_without_wait(float* out) {
  __shared__ __align__(16) __nv_bfloat16 tile[2][64][8];
  const uint64_t whole = ptx::wgmma_descriptor(tile, ptx::Swizzle::kNone, 1024, 128);
  float sums[4] = {};
  for (int trip = 0; trip < 2; ++trip) {
    for (int i = threadIdx.x; i < 1024; i += 256)
      tile[i / 512][i / 8 % 64][i % 8] = 1.0f;  // second_warpgroup_without_wait: second
    ptx::fence_proxy_async();
    __syncthreads();
    ptx::wgmma_fence(sums);
    ptx::wgmma<__nv_bfloat16>(sums, whole, whole);  // second_warpgroup_without_wait: first
    ptx::wgmma_commit();
    if (fixed || threadIdx.x < 128) ptx::wgmma_wait<0>(sums);
    __syncthreads();
  }
  ptx::wgmma_wait<0>(sums);
  out[threadIdx.x] = sums[0];
}

// ------------------------------------------------------------------ reads of what no kernel wrote

template <bool fixed>
__global__ void unwritten_tail(float* out) {
  __shared__ float row[40];
  row[threadIdx.x] = 1.0f;
  if (fixed && threadIdx.x < 8) row[threadIdx.x + 32] = 0.0f;
  __syncthreads();
  out[threadIdx.x] = row[threadIdx.x + 8];  // unwritten_tail: first
}

template <bool fixed>
__global__ void unwritten_dynamic(float* out) {
  extern __shared__ float row[];
  if (fixed || threadIdx.x % 2) row[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = row[31 - threadIdx.x];  // unwritten_dynamic: first
}

template <bool fixed>
__global__ void unwritten_counter(int* out) {
  __shared__ int count;
  if (fixed && threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);  // unwritten_counter: first
  __syncthreads();
  if (threadIdx.x == 0) out[0] = count;
}

// ------------------------------------------------------------------ races in global memory

template <bool fixed>
__global__ void blocks_write_one_element(float* out) {
  if (threadIdx.x == 0) out[fixed ? blockIdx.x : 0] = blockIdx.x;  // blocks_write_one_element: both
}

template <bool fixed>
__global__ void plain_counter(int* out) {
  if (fixed)
    atomicAdd(out, 1);
  else
    *out += 1;  // plain_counter: both
}

template <bool fixed>
__global__ void in_place_neighbour(float* data, float* out) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float right = data[i + 1];        // in_place_neighbour: first
  (fixed ? out : data)[i] = right;  // in_place_neighbour: second
}

// One block hands a value to the other.
template <bool fixed>
__global__ void flag_without_fence(float* data, int* flag, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 3.0f;  // flag_without_fence: first
    if (fixed) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(flag, 1);
  } else {
    if (threadIdx.x == 0)
      while (atomicAdd(flag, 0) == 0) {
      }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];  // flag_without_fence: second
  }
}

// A fence for the block alone.
template <bool fixed>
__global__ void flag_with_block_fence(float* data, int* flag, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 3.0f;  // flag_with_block_fence: first
    if (fixed)
      __threadfence();
    else
      __threadfence_block();
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(flag, 1);
  } else {
    if (threadIdx.x == 0)
      while (atomicAdd(flag, 0) == 0) {
      }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];  // flag_with_block_fence: second
  }
}

// The same through a volatile flag, by single threads.
template <bool fixed>
__global__ void volatile_flag_without_fence(float* data, volatile int* flag, float* out) {
  if (blockIdx.x == 0) {
    data[0] = 3.0f;  // volatile_flag_without_fence: first
    if (fixed) __threadfence();
    *flag = 1;
  } else {
    while (*flag == 0) __nanosleep(100);
    out[0] = data[0];  // volatile_flag_without_fence: second
  }
}

// The block that finishes last adds up what the others have written.
template <bool fixed>
__global__ void last_block_without_fence(float* parts, unsigned* done, float* out) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = blockIdx.x;  // last_block_without_fence: first
    if (fixed) __threadfence();
    is_last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= gridDim.x) return;
  out[threadIdx.x] = parts[threadIdx.x];  // last_block_without_fence: second
}

// A lock without a fence keeps others out, but does not show them what was written.
template <bool fixed>
__global__ void lock_without_fence(int* lock, float* sum) {
  if (threadIdx.x) return;
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  *sum += 1.0f;  // lock_without_fence: both
  if (fixed) __threadfence();
  atomicExch(lock, 0);
}

template <bool fixed>
__global__ void missing_grid_barrier(float* data, float* out) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  data[i] = 1.0f;  // missing_grid_barrier: first
  if (fixed)
    cg::this_grid().sync();
  else
    __syncthreads();
  out[i] = data[n - 1 - i];  // missing_grid_barrier: second
}

// ------------------------------------------------------------------ libcu++

using DeviceFlag = cuda::atomic_ref<int, cuda::thread_scope_device>;

// One block tells the other that there is something to read. Thread 0 does, for all of its block.
template <bool fixed>
__global__ void store_not_released(float* data, int* word, float* out) {
  DeviceFlag flag(*word);
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 3.0f;  // store_not_released: first
    __syncthreads();
    if (threadIdx.x == 0)
      flag.store(1, fixed ? cuda::memory_order_release : cuda::memory_order_relaxed);
  } else {
    if (threadIdx.x == 0)
      while (flag.load(cuda::memory_order_acquire) == 0) {
      }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];  // store_not_released: second
  }
}
template <bool fixed>
__global__ void load_not_acquired(float* data, int* word, float* out) {
  DeviceFlag flag(*word);
  if (blockIdx.x == 0) {
    data[0] = 3.0f;  // load_not_acquired: first
    flag.store(1, cuda::memory_order_release);
  } else {
    while (!flag.load(fixed ? cuda::memory_order_acquire : cuda::memory_order_relaxed)) {
    }
    out[0] = data[0];  // load_not_acquired: second
  }
}
// A release that only the block itself sees.
template <bool fixed>
__global__ void scope_too_small(float* data, int* word, float* out) {
  constexpr auto scope = fixed ? cuda::thread_scope_device : cuda::thread_scope_block;
  cuda::atomic_ref<int, scope> flag(*word);
  if (blockIdx.x == 0) {
    data[0] = 3.0f;  // scope_too_small: first
    flag.store(1, cuda::memory_order_release);
  } else {
    while (flag.load(cuda::memory_order_acquire) == 0) {
    }
    out[0] = data[0];  // scope_too_small: second
  }
}
// The fences are there, on one side alone.
template <bool fixed>
__global__ void reader_without_fence(float* data, int* word, float* out) {
  DeviceFlag flag(*word);
  if (blockIdx.x == 0) {
    data[0] = 3.0f;  // reader_without_fence: first
    cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device);
    flag.store(1, cuda::memory_order_relaxed);
  } else {
    while (flag.load(cuda::memory_order_relaxed) == 0) {
    }
    if (fixed) cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device);
    out[0] = data[0];  // reader_without_fence: second
  }
}
// A lock that is given back by a relaxed store.
template <bool fixed>
__global__ void lock_not_released(int* word, float* sum) {
  if (threadIdx.x) return;
  DeviceFlag lock(*word);
  for (int free = 0; !lock.compare_exchange_strong(free, 1, cuda::memory_order_acquire); free = 0) {
  }
  *sum += 1.0f;  // lock_not_released: both
  lock.store(0, fixed ? cuda::memory_order_release : cuda::memory_order_relaxed);
}

template <bool fixed>
__global__ void arrival_without_wait(float* out) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ float row[64];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  row[threadIdx.x] = 1.0f;  // arrival_without_wait: first
  auto token = barrier.arrive();
  if (fixed) barrier.wait(std::move(token));
  out[threadIdx.x] = row[63 - threadIdx.x];  // arrival_without_wait: second
}
template <bool fixed>
__global__ void stage_without_wait(float* out, const float* in) {
  __shared__ float row[128];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 1> state;
  auto block = cooperative_groups::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  pipeline.producer_acquire();
  cuda::memcpy_async(block, row, in, sizeof row, pipeline);  // stage_without_wait: first
  pipeline.producer_commit();
  if (fixed) pipeline.consumer_wait();
  out[threadIdx.x] = row[4 * threadIdx.x];  // stage_without_wait: second
  pipeline.consumer_release();
}
// The stage is filled again while others still read it.
template <bool fixed>
__global__ void stage_not_acquired(float* out, const float* in) {
  __shared__ float row[64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 1> state;
  auto block = cooperative_groups::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  for (int i = 0; i < 2; ++i) {
    if (fixed) pipeline.producer_acquire();
    cuda::memcpy_async(block, row, in, sizeof row, pipeline);  // stage_not_acquired: second
    pipeline.producer_commit();
    pipeline.consumer_wait();
    out[threadIdx.x] = row[63 - threadIdx.x];  // stage_not_acquired: first
    pipeline.consumer_release();
  }
}

// ------------------------------------------------------------------ nothing wrong

// Threads write different bytes of a word.
__global__ void bytes_of_a_word(unsigned char* out) {
  __shared__ unsigned char row[64];
  row[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = row[threadIdx.x];
}

// A shuffle brings lanes together; a value goes from warp to warp by a barrier.
__global__ void warp_sums(float* out) {
  __shared__ float sums[4];
  float x = threadIdx.x;
  for (int delta = 16; delta > 0; delta /= 2) x += __shfl_down_sync(~0u, x, delta);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  out[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

__global__ void float_atomics(float* out) {
  atomicAdd(out + threadIdx.x % 4, 1.0f);
}

// The first guess of a loop around compare-and-swap may be out of date.
__global__ void compare_and_swap(unsigned* out) {
  unsigned seen = *out, expected;
  do {
    expected = seen;
    seen = atomicCAS(out, expected, expected + 1);
  } while (seen != expected);
}

// Within a block, its fence is enough, for a volatile flag and for an atomic one.
__global__ void block_fences(float* data, volatile int* flag, int* count, float* out) {
  if (threadIdx.x == 0) {
    data[0] = 3.0f;
    __threadfence_block();
    *flag = 1;
    data[1] = 4.0f;
    __threadfence_block();
    atomicAdd(count, 1);
  } else if (threadIdx.x == 32) {
    while (*flag == 0) __nanosleep(100);
    out[0] = data[0];
    while (atomicAdd(count, 0) == 0) {
    }
    out[1] = data[1];
  }
}

// A tile that copies have brought needs no fence, a part that a thread has changed does.
__global__ void copied_tile_sent_on(const float* in, float* out) {
  __shared__ __align__(16) float tile[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1), ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes(&full, 256);
    ptx::copy_bulk(tile, in, 256, &full);
    ptx::mbarrier_wait(&full, 0);
    tile[0] = 1.0f;
    ptx::fence_proxy_async();
    ptx::store_bulk(out, tile, 256);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

// Many threads copy at one mbarrier; another that begins at its place after the last wait has a
// fence of its own. Where only cp.async uses one, it needs none.
__global__ void mbarrier_of_many_copies(float* out, const float* in) {
  __shared__ __align__(16) float tile[256][4];
  __shared__ uint64_t full;
  float sum = 0;
  for (int trip = 0; trip < 3; ++trip) {
    if (threadIdx.x == 64 * trip) ptx::mbarrier_init(&full, 256), ptx::fence_mbarrier_init();
    __syncthreads();
    for (int phase = 0; phase < 2; ++phase) {
      ptx::mbarrier_arrive_expect_bytes(&full, 16);
      ptx::copy_bulk(tile[threadIdx.x], in, 16, &full);
      ptx::mbarrier_wait(&full, phase);
      sum += tile[threadIdx.x ^ 255][phase];
      __syncthreads();
    }
    if (threadIdx.x == 32) ptx::mbarrier_invalidate(&full);
    __syncthreads();
  }
  if (threadIdx.x == 100) ptx::mbarrier_init(&full, 256);
  __syncthreads();
  ptx::cp_async<16>(tile[threadIdx.x], in);
  ptx::cp_async_arrive(&full);
  ptx::mbarrier_wait(&full, 0);
  out[threadIdx.x] = sum + tile[threadIdx.x ^ 255][0];
}

// A cuda::barrier as in NVIDIA's examples, which have no fence.
__global__ void copy_engine_at_cuda_barrier(float* out, const float* in) {
  __shared__ __align__(16) float row[64];
  __shared__ cuda::barrier<cuda::thread_scope_block> full;
  if (threadIdx.x == 0) init(&full, blockDim.x);
  __syncthreads();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    cuda::device::memcpy_async_tx(row, in, cuda::aligned_size_t<16>(256), full);
    cuda::device::barrier_expect_tx(full, 256);
  }
#endif
  full.arrive_and_wait();
  out[threadIdx.x] = row[63 - threadIdx.x];
}

// One thread says for its warpgroup that the tile may be replaced: who has waited for a wgmma knows
// that all four warps' parts of it are complete.
__global__ void wgmma_tile_replaced(float* out) {
  __shared__ __align__(16) __nv_bfloat16 tile[2][64][8];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) ptx::mbarrier_init(&full, 32), ptx::mbarrier_init(&empty, 1);
  __syncthreads();
  const uint64_t whole = ptx::wgmma_descriptor(tile, ptx::Swizzle::kNone, 1024, 128);
  float sums[4] = {};
  for (int trip = 0; trip < 3; ++trip) {
    if (threadIdx.x >= 128) {
      ptx::mbarrier_wait(&empty, trip % 2 ^ 1);
      for (int i = threadIdx.x - 128; i < 1024; i += 32) tile[i / 512][i / 8 % 64][i % 8] = 1.0f;
      ptx::fence_proxy_async();
      ptx::mbarrier_arrive(&full);
    } else {
      ptx::mbarrier_wait(&full, trip % 2);
      ptx::wgmma_fence(sums);
      ptx::wgmma<__nv_bfloat16>(sums, whole, whole);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>(sums);
      if (threadIdx.x == 0) ptx::mbarrier_arrive(&empty);
    }
  }
  if (threadIdx.x < 128) out[threadIdx.x] = sums[0];
}

// A producer and a consumer with two buffers, full and empty.
__global__ void producer_and_consumer(float* out) {
  __shared__ float buffer[2][32];
  __shared__ uint64_t full[2], empty[2];
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; ++i) ptx::mbarrier_init(&full[i], 32), ptx::mbarrier_init(&empty[i], 32);
  __syncthreads();
  unsigned lane = threadIdx.x % 32;
  float sum = 0;
  for (int trip = 0; trip < 6; ++trip) {
    int i = trip % 2, parity = trip / 2 % 2;
    if (threadIdx.x < 32) {
      ptx::mbarrier_wait(&empty[i], parity ^ 1);
      buffer[i][lane] = trip;
      ptx::mbarrier_arrive(&full[i]);
    } else {
      ptx::mbarrier_wait(&full[i], parity);
      sum += buffer[i][31 - lane];
      ptx::mbarrier_arrive(&empty[i]);
    }
  }
  out[threadIdx.x] = sum;
}

// The block that comes last has seen what all others released.
__global__ void ordered_by_atomics(float* data, int* words, float* out) {
  DeviceFlag counter(words[0]), done(words[64]);
  counter.fetch_add(1, cuda::memory_order_relaxed);
  data[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x) return;
  if (done.fetch_add(1, cuda::memory_order_acq_rel) + 1 == static_cast<int>(gridDim.x)) {
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x * blockDim.x; ++i) sum += data[i];
    *out = sum;
  }
}

// ------------------------------------------------------------------ counts

__constant__ float coefficients[4];

__global__ void copy_stride(const float* in, float* out, int stride) {
  float x = in[threadIdx.x * stride];  // copy_stride: load
  out[threadIdx.x * stride] = x;       // copy_stride: store
}

__global__ void copy_float4(const float4* in, float4* out) {
  float4 x = in[threadIdx.x];  // copy_float4: load
  out[threadIdx.x] = x;        // copy_float4: store
}

__global__ void broadcast(const float* in, float* out) {
  __shared__ float one;
  if (threadIdx.x == 0) one = in[0];  // broadcast: single
  __syncthreads();
  out[threadIdx.x] = one + in[5];  // broadcast: load
}

__global__ void constants(float* out) {
  out[threadIdx.x] = coefficients[2];  // constants: load
}

template <int kPitch>
__device__ float through_column(float (*tile)[kPitch]) {
  unsigned x = threadIdx.x % 32, y = threadIdx.x / 32;
  tile[y][x] = x;  // column: store
  __syncthreads();
  return tile[x][y];  // column: load
}
__global__ void column_of_32(float* out) {
  __shared__ float tile[32][32];
  out[threadIdx.x] = through_column<32>(tile);
}
__global__ void column_of_33(float* out) {
  __shared__ float tile[32][33];
  out[threadIdx.x] = through_column<33>(tile);
}
__global__ void column_swizzled(float* out) {
  __shared__ float tile[32][32];
  unsigned x = threadIdx.x % 32, y = threadIdx.x / 32;
  tile[y][x ^ y] = x;  // column_swizzled: store
  __syncthreads();
  out[threadIdx.x] = tile[x][x ^ y];  // column_swizzled: load
}

// Rows of 16-byte pieces: without conflicts in quarters of a warp, whatever the row.
__global__ void shared_float4(float* out) {
  __shared__ float4 row[32];
  row[threadIdx.x] = make_float4(1, 2, 3, 4);
  __syncwarp();
  float4 x = row[threadIdx.x ^ 1];  // shared_float4: load
  out[threadIdx.x] = x.x;
}
__global__ void shared_double_stride_2(float* out) {
  __shared__ double row[64];
  row[threadIdx.x] = 1;
  row[threadIdx.x + 32] = 1;
  __syncwarp();
  double x = row[2 * threadIdx.x];  // shared_double_stride_2: load
  out[threadIdx.x] = static_cast<float>(x);
}

// A third of the lanes take part; loops of different lengths.
__global__ void divergent(const float* in, float* out) {
  float sum = 0;
  for (unsigned i = 0; i <= threadIdx.x % 4; ++i)
    sum += in[32 * i + threadIdx.x];            // divergent: load
  if (threadIdx.x % 2) out[threadIdx.x] = sum;  // divergent: store
}

__global__ void count_atomics(int* out) {
  atomicAdd(out + threadIdx.x / 8, 1);  // count_atomics: atomic
}

// ------------------------------------------------------------------ running them

constexpr size_t kBytes = 1 << 16;

struct Buffers {
  float *a, *b, *c;
  int* flags;
  Buffers() {
    float** all[] = {&a, &b, &c, reinterpret_cast<float**>(&flags)};
    for (float** one : all)
      cudaMalloc(reinterpret_cast<void**>(one), kBytes), cudaMemset(*one, 0, kBytes);
  }
  ~Buffers() { cudaFree(a), cudaFree(b), cudaFree(c), cudaFree(flags); }
};

// The whole of a row-major matrix, in boxes of rows that are as wide as it.
ptx::TensorMap map_of(float* matrix, int64_t columns, int64_t rows, ptx::Swizzle swizzle) {
  return ptx::make_tensor_map(matrix,
                              {.sizes = {columns, rows}, .box = {columns, 8}, .swizzle = swizzle});
}

// Those of TMA, wgmma and clusters.
template <bool fixed>
bool run_planted_on_hopper(std::string_view name) {
  Buffers m;
  auto* words = reinterpret_cast<uint32_t*>(m.flags);
  const ptx::TensorMap map = map_of(m.a, 8, 16, ptx::Swizzle::kNone);
  if (name == "stored_tile_overwritten")
    stored_tile_overwritten<fixed><<<1, 64>>>(m.a);
  else if (name == "tensor_tile_overwritten")
    tensor_tile_overwritten<fixed><<<1, 64>>>(map);
  else if (name == "stored_result_read")
    stored_result_read<fixed><<<1, 64>>>(m.a, m.b);
  else if (name == "tensor_load_without_wait")
    tensor_load_without_wait<fixed><<<1, 64>>>(map, m.b);
  else if (name == "narrow_box_without_wait")
    narrow_box_without_wait<fixed><<<1, 32>>>(map_of(m.a, 4, 16, ptx::Swizzle::k128), m.b);
  else if (name == "multicast_without_wait")
    multicast_without_wait<fixed><<<2, 64>>>(map, m.b);
  else if (name == "cluster_read_without_barrier")
    cluster_read_without_barrier<fixed><<<2, 32>>>(words);
  else if (name == "cluster_store_without_barrier")
    cluster_store_without_barrier<fixed><<<2, 32>>>(words);
  else if (name == "async_store_without_wait")
    async_store_without_wait<fixed><<<2, 32>>>(words);
  else if (name == "sent_tile_overwritten")
    sent_tile_overwritten<fixed><<<2, 32>>>(m.a);
  else if (name == "stmatrix_without_barrier")
    stmatrix_without_barrier<fixed><<<1, 64>>>(words);
  else if (name == "wgmma_tile_overwritten")
    wgmma_tile_overwritten<fixed><<<1, 128>>>(m.a);
  else if (name == "store_without_fence")
    store_without_fence<fixed><<<1, 64>>>(m.a);
  else if (name == "tensor_store_with_old_fence")
    tensor_store_with_old_fence<fixed><<<1, 64>>>(map);
  else if (name == "wgmma_without_fence")
    wgmma_without_fence<fixed><<<1, 128>>>(m.a);
  else if (name == "fence_by_another")
    fence_by_another<fixed><<<1, 64>>>(m.a);
  else if (name == "mbarrier_without_fence")
    mbarrier_without_fence<fixed><<<1, 64>>>(m.a, m.b);
  else if (name == "mbarrier_after_fence")
    mbarrier_after_fence<fixed><<<1, 64>>>(map, m.b);
  else if (name == "mbarrier_fenced_by_another")
    mbarrier_fenced_by_another<fixed><<<2, 32>>>(m.a);
  else if (name == "tile_with_mbarrier_fence")
    tile_with_mbarrier_fence<fixed><<<1, 64>>>(m.a);
  else if (name == "mbarrier_begun_again")
    mbarrier_begun_again<fixed><<<1, 64>>>(m.a, m.b);
  else if (name == "second_warpgroup_without_wait")
    second_warpgroup_without_wait<fixed><<<1, 256>>>(m.a);
  else
    return false;
  return true;
}

// Captured as it is launched, or added as a node.
void run_in_graph(void (*kernel)(float*, Terms), float* out, bool captured) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  Terms terms = {};
  if (captured) {
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    kernel<<<1, 64, 0, stream>>>(out, terms);
    cudaStreamEndCapture(stream, &graph);
  } else {
    void* arguments[] = {&out, &terms};
    cudaKernelNodeParams parameters = {};
    parameters.func = reinterpret_cast<void*>(kernel);
    parameters.gridDim = dim3(1);
    parameters.blockDim = dim3(64);
    parameters.kernelParams = arguments;
    cudaGraphNode_t node;
    cudaGraphCreate(&graph, 0);
    cudaGraphAddKernelNode(&node, graph, nullptr, 0, &parameters);
  }
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, stream);
  cudaStreamSynchronize(stream);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

template <bool fixed>
bool run_planted(std::string_view name) {
  Buffers m;
  auto* words = reinterpret_cast<unsigned*>(m.flags);
  if (name == "missing_barrier")
    missing_barrier<fixed><<<1, 64>>>(m.a);
  else if (name == "missing_barrier_in_graph")
    run_in_graph(missing_barrier_in_graph<fixed>, m.a, true);
  else if (name == "missing_barrier_after")
    missing_barrier_after<fixed><<<1, 64>>>(m.a);
  else if (name == "missing_barrier_between_trips")
    missing_barrier_between_trips<fixed><<<1, 128>>>(m.a);
  else if (name == "neighbour_without_syncwarp")
    neighbour_without_syncwarp<fixed><<<1, 32>>>(m.a);
  else if (name == "volatile_warp_sum")
    volatile_warp_sum<fixed><<<1, 32>>>(m.a);
  else if (name == "double_buffer")
    double_buffer<fixed><<<1, 64>>>(m.a);
  else if (name == "copy_without_wait")
    copy_without_wait<fixed><<<1, 32>>>(m.a, m.b);
  else if (name == "copy_without_barrier")
    copy_without_barrier<fixed><<<1, 32>>>(m.a, m.b);
  else if (name == "copy_wait_for_too_few")
    copy_wait_for_too_few<fixed><<<1, 32>>>(m.a, m.b);
  else if (name == "named_barrier_too_small")
    named_barrier_too_small<fixed><<<1, 96>>>(m.a);
  else if (name == "arrive_before_write")
    arrive_before_write<fixed><<<1, 64>>>(m.a);
  else if (name == "bulk_copy_without_wait")
    bulk_copy_without_wait<fixed><<<1, 64>>>(m.a, m.b);
  else if (name == "ldmatrix_without_syncwarp")
    ldmatrix_without_syncwarp<fixed><<<1, 32>>>(m.a);
  else if (name == "wgmma_without_barrier")
    wgmma_without_barrier<fixed><<<1, 128>>>(m.a);
  else if (name == "wide_tile_too_small")
    wide_tile_too_small<fixed><<<1, 128>>>(m.a);
  else if (name == "write_between_arrival_and_wait")
    write_between_arrival_and_wait<fixed><<<1, 64>>>(m.a);
  else if (name == "group_copy_without_wait")
    group_copy_without_wait<fixed><<<1, 64>>>(m.a, m.b);
  else if (name == "tile_too_small")
    tile_too_small<fixed><<<1, 32>>>(m.a);
  else if (name == "histogram_not_cleared")
    histogram_not_cleared<fixed><<<1, 64>>>(m.flags, m.flags + 64);
  else if (name == "reset_after_atomics")
    reset_after_atomics<fixed><<<1, 64>>>(m.a);
  else if (name == "unwritten_tail")
    unwritten_tail<fixed><<<1, 32>>>(m.a);
  else if (name == "unwritten_dynamic")
    unwritten_dynamic<fixed><<<1, 32, 128>>>(m.a);
  else if (name == "unwritten_counter")
    unwritten_counter<fixed><<<1, 32>>>(m.flags);
  else if (name == "blocks_write_one_element")
    blocks_write_one_element<fixed><<<2, 32>>>(m.a);
  else if (name == "plain_counter")
    plain_counter<fixed><<<2, 1>>>(m.flags);
  else if (name == "in_place_neighbour")
    in_place_neighbour<fixed><<<2, 32>>>(m.a, m.b);
  else if (name == "flag_without_fence")
    flag_without_fence<fixed><<<2, 32>>>(m.a, m.flags, m.b);
  else if (name == "flag_with_block_fence")
    flag_with_block_fence<fixed><<<2, 32>>>(m.a, m.flags, m.b);
  else if (name == "volatile_flag_without_fence")
    volatile_flag_without_fence<fixed><<<2, 1>>>(m.a, m.flags, m.b);
  else if (name == "last_block_without_fence")
    last_block_without_fence<fixed><<<8, 32>>>(m.a, words, m.b);
  else if (name == "lock_without_fence")
    lock_without_fence<fixed><<<4, 32>>>(m.flags, m.a);
  else if (name == "store_not_released")
    store_not_released<fixed><<<2, 32>>>(m.a, m.flags, m.b);
  else if (name == "load_not_acquired")
    load_not_acquired<fixed><<<2, 1>>>(m.a, m.flags, m.b);
  else if (name == "scope_too_small")
    scope_too_small<fixed><<<2, 1>>>(m.a, m.flags, m.b);
  else if (name == "reader_without_fence")
    reader_without_fence<fixed><<<2, 1>>>(m.a, m.flags, m.b);
  else if (name == "lock_not_released")
    lock_not_released<fixed><<<4, 32>>>(m.flags, m.a);
  else if (name == "arrival_without_wait")
    arrival_without_wait<fixed><<<1, 64>>>(m.a);
  else if (name == "stage_without_wait")
    stage_without_wait<fixed><<<1, 32>>>(m.a, m.b);
  else if (name == "stage_not_acquired")
    stage_not_acquired<fixed><<<1, 64>>>(m.a, m.b);
  else if (name == "missing_grid_barrier") {
    void* arguments[] = {&m.a, &m.b};
    cudaLaunchCooperativeKernel(missing_grid_barrier<fixed>, 2, 32, arguments);
  } else
    return false;
  return true;
}

bool run_sound(std::string_view name) {
  Buffers m;
  if (name == "node_of_a_graph")
    run_in_graph(missing_barrier_in_graph<true>, m.a, false);
  else if (name == "bytes_of_a_word")
    bytes_of_a_word<<<1, 64>>>(reinterpret_cast<unsigned char*>(m.a));
  else if (name == "warp_sums")
    warp_sums<<<1, 128>>>(m.a);
  else if (name == "float_atomics")
    float_atomics<<<2, 64>>>(m.a);
  else if (name == "compare_and_swap")
    compare_and_swap<<<2, 64>>>(reinterpret_cast<unsigned*>(m.flags));
  else if (name == "block_fences")
    block_fences<<<1, 64>>>(m.a, m.flags, m.flags + 1, m.b);
  else if (name == "copied_tile_sent_on")
    copied_tile_sent_on<<<1, 32>>>(m.a, m.b);
  else if (name == "mbarrier_of_many_copies")
    mbarrier_of_many_copies<<<1, 256>>>(m.a, m.b);
  else if (name == "copy_engine_at_cuda_barrier")
    copy_engine_at_cuda_barrier<<<1, 64>>>(m.a, m.b);
  else if (name == "ordered_by_atomics")
    ordered_by_atomics<<<4, 32>>>(m.a, m.flags, m.b);
  else if (name == "wgmma_tile_replaced")
    wgmma_tile_replaced<<<1, 160>>>(m.a);
  else if (name == "producer_and_consumer")
    producer_and_consumer<<<1, 64>>>(m.a);
  else
    return false;
  return true;
}

bool run_counted(std::string_view name) {
  Buffers m;
  auto *in4 = reinterpret_cast<float4*>(m.a), *out4 = reinterpret_cast<float4*>(m.b);
  if (name == "copy_stride_1")
    copy_stride<<<1, 64>>>(m.a, m.b, 1);
  else if (name == "copy_stride_2")
    copy_stride<<<1, 64>>>(m.a, m.b, 2);
  else if (name == "copy_stride_32")
    copy_stride<<<1, 64>>>(m.a, m.b, 32);
  else if (name == "copy_misaligned")
    copy_stride<<<1, 64>>>(m.a + 1, m.b + 1, 1);
  else if (name == "copy_float4")
    copy_float4<<<1, 64>>>(in4, out4);
  else if (name == "broadcast")
    broadcast<<<1, 64>>>(m.a, m.b);
  else if (name == "constants")
    constants<<<1, 64>>>(m.b);
  else if (name == "column_of_32")
    column_of_32<<<1, 1024>>>(m.a);
  else if (name == "column_of_33")
    column_of_33<<<1, 1024>>>(m.a);
  else if (name == "column_swizzled")
    column_swizzled<<<1, 1024>>>(m.a);
  else if (name == "shared_float4")
    shared_float4<<<1, 32>>>(m.a);
  else if (name == "shared_double_stride_2")
    shared_double_stride_2<<<1, 32>>>(m.a);
  else if (name == "divergent")
    divergent<<<1, 32>>>(m.a, m.b);
  else if (name == "count_atomics")
    count_atomics<<<1, 64>>>(m.flags);
  else
    return false;
  return true;
}

}  // namespace

// Runs a kernel by its name. False if there is none.
extern "C" bool run_case(const char* name, bool fixed) {
  return (fixed ? run_planted<true>(name) || run_planted_on_hopper<true>(name)
                : run_planted<false>(name) || run_planted_on_hopper<false>(name)) ||
         run_sound(name) || run_counted(name);
}

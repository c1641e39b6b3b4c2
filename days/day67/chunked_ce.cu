// Day 67: chunked cross-entropy: loss and gradient from one read and one write of the logits
//
//   p = softmax(x)   loss[r] = (1 - ε) · -log p[r, t[r]] + ε · mean_c(-log p[r, c])
//   w = 1 / number of rows that count       loss = w · sum_r loss[r]
//   dx[r, c] = w · (p[r, c] - (1 - ε) · [c = t[r]] - ε / V)
//
// x, dx: (rows, V) in fp32, fp16 or bf16; t: (rows). A row counts if its target is not
// ignore_index; the others have loss 0 and gradient 0. A target that names no class makes the loss
// and the gradient of its row NaN: a kernel cannot raise an exception.
//
// Bytes: x read once, dx written once; for 8192 × 50304 bf16 1.65 GB. Two exponentials per element.
//
//   v1 two_reads   chunks of 16 bytes, one pass over them; the gradient reads the row again
//   v2 shared      the row waits in shared memory, two blocks per multiprocessor
//   v3 cluster     rows too long for one block, in the shared memory of up to 16 blocks
//
// chunked_ce_triton.py has the twins, v4 and v5. Run: python run_day.py 67

#include "common/cuda/binding.cuh"         // taught in day 6
#include "common/cuda/capability.cuh"      // taught in day 24
#include "common/cuda/cluster_launch.cuh"  // taught in day 35
#include "common/cuda/ptx.cuh"             // cp.async: day 20; clusters: day 34
#include "common/cuda/shared_memory.cuh"   // taught in day 15
#include "common/cuda/tensor.cuh"          // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"     // taught in day 23
#include "days/day67/row.cuh"

#include <cstdint>
#include <tuple>
#include <type_traits>

constexpr int MOST_CLUSTER = 16;  // blocks; more than 8 have to be allowed per kernel

// ---------------------------------------------------------------------------------------------
// Before and after the rows, one block each.

constexpr int SMALL_BLOCK = 1024;

__global__ void __launch_bounds__(SMALL_BLOCK)
    count_kernel(const int64_t* __restrict__ target, int64_t rows, int64_t ignore_index,
                 float* weight) {
  __shared__ int counts[SMALL_BLOCK / 32];
  int count = 0;
  for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) count += target[r] != ignore_index;
  count = warp_sum(count);
  if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
  __syncthreads();  // the first warp waits for the counts of all warps
  if (threadIdx.x >= 32) return;
  count = warp_sum(counts[threadIdx.x]);
  // If no row counts it is 1 / 0, and the mean becomes NaN, as in PyTorch.
  if (threadIdx.x == 0) *weight = 1.0f / static_cast<float>(count);
}

__global__ void __launch_bounds__(SMALL_BLOCK)
    mean_kernel(const float* __restrict__ losses, int64_t rows, const float* __restrict__ weight,
                float* __restrict__ loss) {
  __shared__ float sums[SMALL_BLOCK / 32];
  float sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) sum += losses[r];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();  // the first warp waits for the sums of all warps
  if (threadIdx.x >= 32) return;
  sum = warp_sum(sums[threadIdx.x]);
  if (threadIdx.x == 0) *loss = sum * *weight;
}

using Both = std::tuple<Tensor, Tensor>;  // the loss () in fp32, and dx

// Checks the arguments, counts, and calls launch(job, smoothed) with the Job and whether labels are
// smoothed, a constant.
template <typename F>
Both cross_entropy(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                   double label_smoothing, const char* name, F launch) {
  check(logits, "logits").on_gpu().floating().rank(2).contiguous();
  STD_TORCH_CHECK(logits.size(1) > 0, "logits: expected at least one column (class), got shape ",
                  shape_of(logits));
  check(target, "target").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(target, "target").same_device(logits, "logits").size(0, logits.size(0));
  STD_TORCH_CHECK(label_smoothing >= 0 && label_smoothing <= 1,
                  "label_smoothing: expected 0 to 1, got ", label_smoothing);
  const DeviceGuard guard(logits);
  const int64_t rows = logits.size(0);
  const auto fp32 = [&](std::initializer_list<int64_t> shape) {
    return allocate(logits, shape, ScalarType::Float);
  };
  Tensor loss = fp32({}), dx = allocate_like(logits);
  const Tensor losses = fp32({rows}), weight = fp32({});
  const cudaStream_t stream = current_stream(logits);
  count_kernel<<<1, SMALL_BLOCK, 0, stream>>>(data<int64_t>(target), rows, ignore_index,
                                              mutable_data<float>(weight));
  if (rows > 0) {
    dispatch_floating(logits, [&](auto zero) {
      using T = decltype(zero);
      dispatch_chunk<T>(logits.size(1), {&logits}, [&](auto size) {
        using C = Chunk<T, size>;
        const Job<T, size> job{data<C>(logits),
                               mutable_data<C>(dx),
                               data<int64_t>(target),
                               mutable_data<float>(losses),
                               data<float>(weight),
                               rows,
                               logits.size(1) / size,
                               ignore_index,
                               static_cast<float>(label_smoothing)};
        label_smoothing > 0 ? launch(job, std::true_type{}) : launch(job, std::false_type{});
      });
    });
  }
  mean_kernel<<<1, SMALL_BLOCK, 0, stream>>>(data<float>(losses), rows, data<float>(weight),
                                             mutable_data<float>(loss));
  check_launch(name);
  return {loss, dx};
}

#define ARGUMENTS \
  const Tensor &logits, const Tensor &target, int64_t ignore_index, double label_smoothing
#define GIVEN logits, target, ignore_index, label_smoothing

// ---------------------------------------------------------------------------------------------
// v1: one block per row. The first pass over the chunks finds the statistics, the second one reads
// the row again for the gradient: from L2, if it is still there.

constexpr int ROW_BLOCK = 512;

template <bool SMOOTHED, typename T, int N>
__global__ void __launch_bounds__(ROW_BLOCK) chunked_ce_v1_two_reads_kernel(Job<T, N> job) {
  __shared__ Statistics shared[ROW_BLOCK / 32];
  const int64_t row = blockIdx.x, target = job.target[row], start = row * job.chunks;
  Statistics mine;
#pragma unroll 4
  for (int64_t c = threadIdx.x; c < job.chunks; c += ROW_BLOCK) {
    include<SMOOTHED>(mine, load_raw(job.x + start + c));
  }
  const Statistics all = block_merge<SMOOTHED>(mine, shared);
  const Row<SMOOTHED> of(job, all, target, *job.weight);
#pragma unroll 4
  for (int64_t c = threadIdx.x; c < job.chunks; c += ROW_BLOCK) {
    store_raw(job.dx + start + c, of.gradients(load_raw(job.x + start + c), all.base));
  }
  const int64_t place = chunk_of<N>(target, job.chunks);
  if (place % ROW_BLOCK == threadIdx.x) {
    const auto* x = reinterpret_cast<const T*>(job.x + start);
    of.finish(job, all, row, target, static_cast<float>(x[of.valid ? target : 0]));
  }
}

Both chunked_ce_v1_two_reads(ARGUMENTS) {
  return cross_entropy(GIVEN, "chunked_ce_v1_two_reads", [&](auto job, auto smoothed) {
    chunked_ce_v1_two_reads_kernel<smoothed>
        <<<grid_size(job.rows, "logits"), ROW_BLOCK, 0, current_stream(logits)>>>(job);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: cp.async brings the row into shared memory, where it stays for the second pass. A
// thread reads only the chunks that it copied itself, so no barrier has to come before that. Two
// rows of up to 100 KB fit into a multiprocessor of compute capability 9.0: one block loads while
// the other one computes and stores.
//
// v3 against v2: the blocks of a cluster share a row. Each warp stores its statistics in the shared
// memory of every block, whose mbarriers count the bytes that have come (day 35).

// Of `count` statistics in shared memory, in every lane. All 32 lanes must call it. All warps add
// in the same order, so they get equal bits.
template <bool SMOOTHED>
__device__ Statistics merge_all(const Statistics* all, int count) {
  Statistics mine;
  for (int i = threadIdx.x % 32; i < count; i += 32) mine.base = fmaxf(mine.base, all[i].base);
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    mine.sum += all[i].sum * expf(all[i].base - mine.base);
    mine.total += all[i].total;
  }
  return warp_merge<SMOOTHED>(mine);
}

// The threads of a block, the most chunks of each, and how many blocks are resident. The registers
// of a multiprocessor are in four parts: with 12 warps each, a thread has 40.
template <int THREADS_, int EACH_, int BLOCKS_>
struct Room {
  static constexpr int THREADS = THREADS_, EACH = EACH_, BLOCKS = BLOCKS_;
  static constexpr int WARPS = THREADS / 32;
};
using Eighth = Room<192, 9, 8>;  // up to 27 KB of a row
using Half = Room<704, 9, 2>;    // up to 99 KB of a row: 50688 columns of 16 bits
using Share = Room<512, 8, 3>;   // up to 64 KB of a row, v3

template <typename R, bool CLUSTER, bool SMOOTHED, typename T, int N>
__global__ void __launch_bounds__(R::THREADS, R::BLOCKS)
    row_in_shared_kernel(Job<T, N> job, int length) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  __shared__ Statistics shared[CLUSTER ? MOST_CLUSTER * R::WARPS : R::WARPS];
  __shared__ uint64_t arrived;  // v3: the mbarrier of the statistics
  const int rank = CLUSTER ? ptx::cluster_block_rank() : 0;
  const int blocks = CLUSTER ? ptx::cluster_size() : 1;
  const int64_t row = blockIdx.x / blocks, target = job.target[row];
  const int64_t before = int64_t{rank} * length, start = row * job.chunks + before;
  const int count = static_cast<int>(min(int64_t{length}, job.chunks - before));
  const int first = threadIdx.x;

  auto* const part = reinterpret_cast<Chunk<T, N>*>(memory) + first;  // part[k * THREADS]: chunk k
  const auto has = [&](int k) { return first + k * R::THREADS < count; };
#pragma unroll
  for (int k = 0; k < R::EACH; ++k) {
    const int c = k * R::THREADS;
    if (has(k)) ptx::cp_async<16>(part + c, job.x + start + first + c);
  }
  ptx::cp_async_commit();
  if constexpr (CLUSTER) {
    if (first == 0) {
      ptx::mbarrier_init(&arrived, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_bytes(&arrived, blocks * R::WARPS * sizeof(Statistics));
    }
    ptx::cluster_arrive_relaxed();  // this block has begun, and its mbarrier is ready
  }

  Statistics mine;
  ptx::cp_async_wait<0>();
#pragma unroll
  for (int k = 0; k < R::EACH; ++k) {
    if (has(k)) include<SMOOTHED>(mine, load_raw(part + k * R::THREADS));
  }
  Statistics all;
  if constexpr (CLUSTER) {
    mine = warp_merge<SMOOTHED>(mine);
    ptx::cluster_wait();  // all blocks have begun: their shared memory may be used
    if (first % 32 < blocks) {
      auto* to = reinterpret_cast<uint32_t*>(&shared[rank * R::WARPS + first / 32]);
      ptx::store_async_to_rank(to, first % 32, __float_as_uint(mine.base), &arrived);
      ptx::store_async_to_rank(to + 1, first % 32, __float_as_uint(mine.sum), &arrived);
      ptx::store_async_to_rank(to + 2, first % 32, __float_as_uint(mine.total), &arrived);
    }
    ptx::mbarrier_wait(&arrived, 0);  // the statistics of all blocks have come
    all = merge_all<SMOOTHED>(shared, blocks * R::WARPS);
  } else {
    all = block_merge<SMOOTHED>(mine, shared);
  }
  const Row<SMOOTHED> of(job, all, target, *job.weight);
#pragma unroll 3
  for (int k = 0; k < R::EACH; ++k) {
    const int c = k * R::THREADS;
    if (has(k)) {
      store_raw(job.dx + start + first + c, of.gradients(load_raw(part + c), all.base));
    }
  }
  const int64_t place = chunk_of<N>(target, job.chunks) - before - first;  // from the first chunk
  if (place >= 0 && place < count - first && place % R::THREADS == 0) {
    of.finish(job, all, row, target, static_cast<float>(part[place].at[of.valid ? target % N : 0]));
  }
#endif
}

// Chunks of 16 bytes of a row of the logits, or 0 if rows are not made of aligned ones.
int64_t chunks_of(const Tensor& logits) {
  check(logits, "logits").on_gpu().rank(2);  // cross_entropy checks the rest
  const int64_t bytes = logits.size(1) * logits.element_size();
  return bytes % 16 == 0 && is_aligned(logits, 16) ? bytes / 16 : 0;
}

// Whether a block of R has threads and this GPU shared memory for so many chunks of a row, beside a
// kernel's own arrays: `statistics` of them, counters and barriers.
template <typename R>
bool fits(const Tensor& logits, int64_t chunks, int64_t statistics) {
  const int64_t own = statistics * static_cast<int64_t>(sizeof(Statistics)) + 64;
  return chunks > 0 && chunks <= R::THREADS * R::EACH &&
         shared_memory_fits(logits, own, 16 * chunks);
}

// Calls f with the Room for a row of the logits, and returns true; or false if there is none.
template <typename F>
bool with_room(const Tensor& logits, F&& f) {
  const int64_t chunks = chunks_of(logits);
  if (fits<Eighth>(logits, chunks, 2 * Eighth::WARPS)) return f(Eighth{}), true;
  if (fits<Half>(logits, chunks, 2 * Half::WARPS)) return f(Half{}), true;
  return false;
}

constexpr char NO_ROOM[] = "a row too long for shared memory, or not made of aligned chunks";

Both two_reads_instead(ARGUMENTS) {
  fell_back("chunked_ce_v1_two_reads", NO_ROOM);
  return chunked_ce_v1_two_reads(GIVEN);
}

// The kernel for a job, which must have chunks of 16 bytes; those of single elements get none.
template <typename R, bool CLUSTER, bool SMOOTHED, typename T, int N>
auto kernel_for(const Job<T, N>&) {
  return row_in_shared_kernel<R, CLUSTER, SMOOTHED, T, 16 / sizeof(T)>;
}

// The same job with chunks of 16 bytes, which it must have already.
template <typename T, int N>
Job<T, 16 / sizeof(T)> in_packs(const Job<T, N>& job) {
  using C = Chunk<T, 16 / sizeof(T)>;
  return {reinterpret_cast<const C*>(job.x),
          reinterpret_cast<C*>(job.dx),
          job.target,
          job.losses,
          job.weight,
          job.rows,
          job.chunks,
          job.ignore_index,
          job.smoothing};
}

Both chunked_ce_v2_shared(ARGUMENTS) {
  const int64_t chunks = chunks_of(logits);
  const DeviceGuard guard(logits);
  require_capability(8, 0, "cp.async");
  Both result;
  const bool done = with_room(logits, [&](auto room) {
    using R = decltype(room);
    result = cross_entropy(GIVEN, "chunked_ce_v2_shared", [&](auto job, auto smoothed) {
      const auto kernel = kernel_for<R, false, smoothed>(job);
      allow_shared(kernel, 16 * chunks);
      kernel<<<grid_size(job.rows, "logits"), R::THREADS, 16 * chunks, current_stream(logits)>>>(
          in_packs(job), static_cast<int>(chunks));
    });
  });
  return done ? result : two_reads_instead(GIVEN);
}

// ---------------------------------------------------------------------------------------------
// v3: the kernel of v2 with CLUSTER.

// The smallest power of two of blocks that hold a row, or MOST_CLUSTER; st.async needs two.
int64_t cluster_for(int64_t chunks) {
  int64_t blocks = 2;
  while (blocks < MOST_CLUSTER && chunks > blocks * Share::THREADS * Share::EACH) blocks *= 2;
  return blocks;
}

bool fits_cluster(const Tensor& logits) {
  const int64_t chunks = chunks_of(logits);
  return fits<Share>(logits, ceil_div(chunks, cluster_for(chunks)), MOST_CLUSTER * Share::WARPS);
}

Both chunked_ce_v3_cluster(ARGUMENTS) {
  const int64_t chunks = chunks_of(logits);
  const DeviceGuard guard(logits);
  require_capability(9, 0, "clusters");
  if (!fits_cluster(logits)) return two_reads_instead(GIVEN);
  return cross_entropy(GIVEN, "chunked_ce_v3_cluster", [&](auto job, auto smoothed) {
    const auto kernel = kernel_for<Share, true, smoothed>(job);
    const auto blocks = static_cast<int>(cluster_for(chunks));
    const int length = static_cast<int>(ceil_div<int64_t>(chunks, blocks));  // chunks per block
    launch_clusters(kernel, grid_size(job.rows * blocks, "logits"), blocks, Share::THREADS,
                    16 * length, current_stream(logits), in_packs(job), length);
  });
}

// What a user calls: the fastest of these for the shape, the alignment and the card.
Both chunked_ce(ARGUMENTS) {
  chunks_of(logits);  // checks what the choice depends on
  const DeviceGuard guard(logits);
  const bool room = with_room(logits, [](auto) {});
  if (room && has_capability(8, 0)) return chunked_ce_v2_shared(GIVEN);
  if (fits_cluster(logits) && has_capability(9, 0)) return chunked_ce_v3_cluster(GIVEN);
  return chunked_ce_v1_two_reads(GIVEN);
}

// ---------------------------------------------------------------------------------------------
// The backward pass: the stored gradient times g, the gradient with respect to the loss. If that is
// 1, as at the end of a chain, no memory is read or written.

constexpr int SCALE_BLOCK = 256;

template <typename T, int N>
__global__ void __launch_bounds__(SCALE_BLOCK)
    scale_kernel(Chunk<T, N>* dx, const float* __restrict__ g, int64_t chunks) {
  const float factor = *g;
  const int64_t i = int64_t{blockIdx.x} * SCALE_BLOCK + threadIdx.x;
  if (factor == 1 || i >= chunks) return;
  Chunk<T, N> chunk = load_whole(dx + i);
#pragma unroll
  for (T& v : chunk.at) v = static_cast<T>(static_cast<float>(v) * factor);
  dx[i] = chunk;
}

void scale(const Tensor& dx, const Tensor& g) {
  check(dx, "dx").on_gpu().floating().contiguous();
  check(g, "g").on_gpu().dtype({ScalarType::Float}).rank(0).same_device(dx, "dx");
  if (dx.numel() == 0) return;
  const DeviceGuard guard(dx);
  dispatch_floating(dx, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(dx.numel(), {&dx}, [&](auto size) {
      const int64_t chunks = dx.numel() / size;
      scale_kernel<<<grid_size(ceil_div<int64_t>(chunks, SCALE_BLOCK), "dx"), SCALE_BLOCK, 0,
                     current_stream(dx)>>>(mutable_data<Chunk<T, size>>(dx), data<float>(g),
                                           chunks);
    });
  });
  check_launch("scale");
}

// ---------------------------------------------------------------------------------------------

#define SCHEMA                                                                       \
  "(Tensor logits, Tensor target, int ignore_index=-100, float label_smoothing=0.0)" \
  " -> (Tensor, Tensor)"
RUNG(day67, chunked_ce_v1_two_reads, SCHEMA);
RUNG(day67, chunked_ce_v2_shared, SCHEMA);
RUNG(day67, chunked_ce_v3_cluster, SCHEMA);
RUNG(day67, chunked_ce, SCHEMA);
RUNG(day67, scale, "(Tensor(a!) dx, Tensor g) -> ()");

// Day 16: atomics on floats: their maximum and their sum
//
//   max = the largest x[i], NaN if any x[i] is NaN      x: (n,) fp32
//   sum = sum_i x[i]                                    x: (n,) fp32
//
// Bytes: read x once. Operations: one per element. max v1 also loads the maximum once per element;
// max v2 needs one atomic per warp, sum v1 one per thread and one per block.
//
//   max v1 compare_and_swap    the atomic that CUDA lacks, built from atomicCAS
//   max v2 ordered_bits        floats as integers in the same order, for atomicMax
//   sum v1 shared_then_global  additions in any order: the last bits change from run to run
//
// Run: python run_day.py 16

#include "common/cuda/binding.cuh"
#include "common/cuda/multiprocessors.cuh"
#include "common/cuda/tensor.cuh"

#include <cuda/atomic>

constexpr int BLOCK = 512;  // four blocks fill a multiprocessor of compute capability 9.0
constexpr unsigned FULL_WARP = 0xffffffffu;

// ---------------------------------------------------------------------------------------------
// max v1: CUDA has no atomicMax for floats. Any atomic can be built from compare-and-swap: read the
// old value, compute the new one, store it only if the old one is still there, else repeat.

// Whether a replaces b as the maximum. NaN replaces any number and stays, as in PyTorch.
__device__ bool beats(float a, float b) {
  return a > b || (a != a && b == b);  // only NaN differs from itself
}

__device__ void atomic_max(float* max, float value) {
  auto* word = reinterpret_cast<unsigned*>(max);  // atomicCAS compares bits
  // A plain read of a word that other threads change is undefined; an atomic load is not. If its
  // value is out of date, the swap fails and returns the current one.
  const cuda::atomic_ref<unsigned, cuda::thread_scope_device> shared_word(*word);
  unsigned seen = shared_word.load(cuda::memory_order_relaxed);
  while (beats(value, __uint_as_float(seen))) {
    const unsigned found = atomicCAS(word, seen, __float_as_uint(value));
    if (found == seen) return;  // no other thread changed it in between
    seen = found;
  }
}

__global__ void max_v1_compare_and_swap_kernel(const float* __restrict__ x, float* max, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) atomic_max(max, x[i]);
}

void check_for_max(const Tensor& x) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype({ScalarType::Float});
  STD_TORCH_CHECK(x.numel() > 0, "x: expected at least one element; an empty x has no maximum");
}

Tensor max_v1_compare_and_swap(const Tensor& x) {
  check_for_max(x);
  const DeviceGuard guard(x);
  Tensor max = allocate(x, {});
  torch::stable::fill_(max, -INFINITY);
  const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
  max_v1_compare_and_swap_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(max), x.numel());
  check_launch("max_v1_compare_and_swap");
  return max;
}

// ---------------------------------------------------------------------------------------------
// max v2 against v1: no loop. The bits of positive floats, read as integers, have the order of the
// floats; those of negative floats have the reverse order. key_of repairs that, and one atomicMax
// for unsigned integers per warp does the rest.

// If a < b as floats, then key_of(a) < key_of(b) as integers. NaN has the largest key.
__device__ unsigned key_of(float value) {
  if (value != value) return 0xffffffffu;
  const unsigned bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ float value_of(unsigned key) {
  if (key == 0xffffffffu) return NAN;
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The largest of a warp's 32 keys, in every lane: one instruction since compute capability 8.0.
__device__ unsigned warp_max(unsigned key) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(FULL_WARP, key);
#else
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(FULL_WARP, key, step));
  return key;
#endif
}

__global__ void max_v2_ordered_bits_kernel(const float* __restrict__ x, unsigned* key, int64_t n) {
  unsigned mine = 0;  // below the key of -inf
  const int64_t threads = int64_t{gridDim.x} * BLOCK;
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < n; i += threads) {
    mine = max(mine, key_of(x[i]));
  }
  mine = warp_max(mine);
  if (threadIdx.x % 32 == 0) atomicMax(key, mine);
}

__global__ void max_v2_ordered_bits_decode_kernel(const unsigned* key, float* max) {
  *max = value_of(*key);
}

Tensor max_v2_ordered_bits(const Tensor& x) {
  check_for_max(x);
  const DeviceGuard guard(x);
  Tensor max = allocate(x, {});
  const Tensor key = allocate_zeros(x, {}, ScalarType::Int);  // below all keys
  const int64_t n = x.numel();
  const unsigned grid =
      resident_grid(x, max_v2_ordered_bits_kernel, BLOCK, 0, ceil_div<int64_t>(n, BLOCK));
  max_v2_ordered_bits_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<float>(x),
                                                                    mutable_data<unsigned>(key), n);
  check_launch("max_v2_ordered_bits");
  max_v2_ordered_bits_decode_kernel<<<1, 1, 0, current_stream(x)>>>(data<unsigned>(key),
                                                                    mutable_data<float>(max));
  check_launch("max_v2_ordered_bits_decode");
  return max;
}

// ---------------------------------------------------------------------------------------------
// sum v1: three levels with less and less contention. A thread adds in a register, the threads of a
// block add in shared memory, the blocks add in global memory. The order of the atomics differs
// from run to run, and so does the rounding.

__global__ void sum_v1_shared_then_global_kernel(const float* __restrict__ x, float* sum,
                                                 int64_t n) {
  __shared__ float of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();  // it is 0 before any thread adds

  float mine = 0;
  const int64_t threads = int64_t{gridDim.x} * BLOCK;
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < n; i += threads) mine += x[i];
  atomicAdd(&of_block, mine);

  __syncthreads();  // all 512 threads have added before thread 0 reads
  if (threadIdx.x == 0) atomicAdd(sum, of_block);
}

Tensor sum_v1_shared_then_global(const Tensor& x) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype({ScalarType::Float});
  const DeviceGuard guard(x);
  const Tensor sum = allocate_zeros(x, {});
  const int64_t n = x.numel();
  if (n == 0) return sum;
  const unsigned grid =
      resident_grid(x, sum_v1_shared_then_global_kernel, BLOCK, 0, ceil_div<int64_t>(n, BLOCK));
  sum_v1_shared_then_global_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(sum), n);
  check_launch("sum_v1_shared_then_global");
  return sum;
}

// ---------------------------------------------------------------------------------------------

RUNG(day16, max_v1_compare_and_swap, "(Tensor x) -> Tensor");
RUNG(day16, max_v2_ordered_bits, "(Tensor x) -> Tensor");
RUNG(day16, sum_v1_shared_then_global, "(Tensor x) -> Tensor");

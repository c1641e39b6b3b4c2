// Day 50: the machine measured: the ceilings of a roofline, by kernels that do nothing else
//
//   copy             y[i] = x[i]                                      bytes read and written
//   read_global      sum of x, taken `times` over                     bytes read, from memory or L2
//   read_shared      the same, from shared memory                     bytes read
//   multiply_adds    c = c / 2 + x (integers: 3 · c + x), `steps` times, in 8 chains per element
//   exponentials     c = 2^-c, `steps` times, in 8 chains per element
//   products         d = repeats · a · bᵀ by wgmma, bf16 or fp8       2 · 64 · 256 · K each
//   chase            `steps` times at = next[at]: one load in flight at any time: latency
//
// Each kernel returns something that depends on all of its work, so that the compiler cannot leave
// any out, and so that a check can tell whether the work was done.
//
//   copy v1 one_pack    16 bytes per thread
//   copy v2 four_packs  64 bytes per thread
//
// Run: python run_day.py 50

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // wgmma, exp2 and load_cg: see their headers
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"      // taught in day 23

#include <cuda_fp8.h>

#include <type_traits>

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// copy. v2 against v1: four packs per thread. In flight per multiprocessor: 2048 threads × 16 bytes
// in v1, up to four times as many in v2.

template <int PACKS>
__global__ void __launch_bounds__(BLOCK)
    copy_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
  const int64_t packs = n / 4, first = int64_t{blockIdx.x} * BLOCK * PACKS + threadIdx.x;
  const auto* from = reinterpret_cast<const float4*>(x);
  auto* to = reinterpret_cast<float4*>(y);
  float4 pack[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (first + k * BLOCK < packs) pack[k] = from[first + k * BLOCK];
  }
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (first + k * BLOCK < packs) to[first + k * BLOCK] = pack[k];
  }
  const int64_t rest = packs * 4 + first;  // the last n % 4 elements
  if (rest < n) y[rest] = x[rest];
}

template <int PACKS>
Tensor copy(const Tensor& x, const char* kernel) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  STD_TORCH_CHECK(is_aligned(x, 16), "x: expected an address that is a multiple of 16");
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const int64_t blocks = ceil_div<int64_t>(ceil_div<int64_t>(x.numel(), 4), BLOCK * PACKS);
  copy_kernel<PACKS><<<grid_size(blocks, "x"), BLOCK, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), x.numel());
  check_launch(kernel);
  return y;
}

Tensor copy_v1_one_pack(const Tensor& x) {
  return copy<1>(x, "copy_v1_one_pack");
}
Tensor copy_v2_four_packs(const Tensor& x) {
  return copy<4>(x, "copy_v2_four_packs");
}

// ---------------------------------------------------------------------------------------------
// read: sums of 32-bit words wrap around, so they are exact in any order. load_cg passes by L1, in
// which each multiprocessor would find its share of 16 MB again.

__device__ inline unsigned sum_of(uint4 pack) {
  return pack.x + pack.y + pack.z + pack.w;
}

// Adds the sums of all threads of a warp to *total.
__device__ inline void add_warp(unsigned sum, unsigned* total) {
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

constexpr int LOADS = 4;  // in flight per thread: 128 KB per multiprocessor with 2048 threads

__global__ void __launch_bounds__(BLOCK)
    read_kernel(const uint4* __restrict__ x, int64_t packs, int times, unsigned* total) {
  const int64_t stride = int64_t{gridDim.x} * BLOCK;
  unsigned sum = 0;
  for (int t = 0; t < times; ++t) {
    int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
    for (; i + (LOADS - 1) * stride < packs; i += LOADS * stride) {
      uint4 pack[LOADS];  // all loads are issued before the first sum
#pragma unroll
      for (int k = 0; k < LOADS; ++k) pack[k] = ptx::load_cg(x + i + k * stride);
#pragma unroll
      for (int k = 0; k < LOADS; ++k) sum += sum_of(pack[k]);
    }
    for (; i < packs; i += stride) sum += sum_of(ptx::load_cg(x + i));
  }
  add_warp(sum, total);
}

// Each block takes BLOCK packs to shared memory. In each round a warp reads 32 adjacent packs, the
// block all of them.
__global__ void __launch_bounds__(BLOCK)
    read_shared_kernel(const uint4* __restrict__ x, int times, unsigned* total) {
  __shared__ uint4 shared[BLOCK];
  shared[threadIdx.x] = x[int64_t{blockIdx.x} * BLOCK + threadIdx.x];
  __syncthreads();  // every warp reads what the others have written
  unsigned sum = 0;
#pragma unroll LOADS
  for (int t = 0; t < times; ++t) sum += sum_of(shared[(threadIdx.x + 32 * t) % BLOCK]);
  add_warp(sum, total);
}

// Checks x (n,), int32, in multiples of `multiple` elements, and calls launch(packs, total).
template <typename Launch>
Tensor summed(const Tensor& x, int64_t times, int64_t multiple, const char* kernel,
              Launch&& launch) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous();
  STD_TORCH_CHECK(is_aligned(x, 16), "x: expected an address that is a multiple of 16");
  STD_TORCH_CHECK(x.numel() % multiple == 0, "x: expected a multiple of ", multiple,
                  " elements, got ", x.numel());
  STD_TORCH_CHECK(times >= 0 && times <= INT32_MAX, "times: expected 0 to 2^31 - 1, got ", times);
  const DeviceGuard guard(x);
  Tensor total = allocate(x, {1});
  check_cuda(cudaMemsetAsync(total.mutable_data_ptr(), 0, 4, current_stream(x)), "cudaMemsetAsync");
  if (x.numel() == 0) return total;
  launch(data<uint4>(x), mutable_data<unsigned>(total));
  check_launch(kernel);
  return total;
}

Tensor read_global(const Tensor& x, int64_t times) {
  return summed(x, times, 4, "read_global", [&](const uint4* packs, unsigned* total) {
    const int64_t count = x.numel() / 4, blocks = ceil_div<int64_t>(count, BLOCK);
    const unsigned grid = resident_grid(x, read_kernel, BLOCK, 0, blocks);
    read_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(packs, count, static_cast<int>(times),
                                                       total);
  });
}

Tensor read_shared(const Tensor& x, int64_t times) {
  return summed(x, times, 4 * BLOCK, "read_shared", [&](const uint4* packs, unsigned* total) {
    const unsigned grid = grid_size(x.numel() / (4 * BLOCK), "x");
    read_shared_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(packs, static_cast<int>(times),
                                                              total);
  });
}

// ---------------------------------------------------------------------------------------------
// multiply_adds: eight chains per thread, each of which waits only for itself. In fp16 two chains
// share a register and an instruction. Integers are unsigned, because these may wrap around.

constexpr int CHAINS = 8;

template <typename T>
struct Chains {
  static constexpr int COUNT = CHAINS;
  using Value = T;
  static __device__ Value start(T x, int i) { return x + static_cast<T>(i); }
  static __device__ Value next(Value c, T x) {
    return std::is_same_v<T, unsigned> ? c * 3 + x : static_cast<T>(c * T(0.5) + x);
  }
  static __device__ T sum(Value c) { return c; }
};

template <>
struct Chains<__half> {
  static constexpr int COUNT = CHAINS / 2;
  using Value = __half2;
  static __device__ Value start(__half x, int i) {
    const float wide = __half2float(x);
    return __floats2half2_rn(wide + 2 * i, wide + 2 * i + 1);
  }
  static __device__ Value next(Value c, __half x) {
    return __hfma2(c, __float2half2_rn(0.5f), __half2half2(x));
  }
  static __device__ __half sum(Value c) { return __hadd(__low2half(c), __high2half(c)); }
};

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    multiply_adds_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t n, int steps) {
  using C = Chains<T>;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  const T mine = x[i];
  typename C::Value c[C::COUNT];
#pragma unroll
  for (int k = 0; k < C::COUNT; ++k) c[k] = C::start(mine, k);
#pragma unroll 32  // 256 multiply-adds per test of s
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int k = 0; k < C::COUNT; ++k) c[k] = C::next(c[k], mine);
  }
  T sum = C::sum(c[0]);
#pragma unroll
  for (int k = 1; k < C::COUNT; ++k) sum = sum + C::sum(c[k]);
  y[i] = sum;
}

Tensor multiply_adds(const Tensor& x, int64_t steps) {
  check(x, "x").on_gpu().rank(1).contiguous();
  check(x, "x").dtype({ScalarType::Float, ScalarType::Half, ScalarType::Int});
  STD_TORCH_CHECK(steps >= 0 && steps <= INT32_MAX, "steps: expected 0 to 2^31 - 1, got ", steps);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    multiply_adds_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y),
                                                                x.numel(), static_cast<int>(steps));
  };
  if (x.scalar_type() == ScalarType::Float) launch(float{});
  if (x.scalar_type() == ScalarType::Half) launch(__half{});
  if (x.scalar_type() == ScalarType::Int) launch(unsigned{});
  check_launch("multiply_adds");
  return y;
}

// ---------------------------------------------------------------------------------------------
// exponentials: one instruction each for the special function units, which takes the sign as well.

__global__ void __launch_bounds__(BLOCK)
    exponentials_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n, int steps) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  float c[CHAINS];
#pragma unroll
  for (int k = 0; k < CHAINS; ++k) c[k] = x[i] + k;
#pragma unroll 8
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) c[k] = ptx::exp2_approx(-c[k]);
  }
  float sum = c[0];
#pragma unroll
  for (int k = 1; k < CHAINS; ++k) sum += c[k];
  y[i] = sum;
}

Tensor exponentials(const Tensor& x, int64_t steps) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  STD_TORCH_CHECK(steps >= 0 && steps <= INT32_MAX, "steps: expected 0 to 2^31 - 1, got ", steps);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
  exponentials_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(y),
                                                             x.numel(), static_cast<int>(steps));
  check_launch("exponentials");
  return y;
}

// ---------------------------------------------------------------------------------------------
// products: the tensor cores of a Hopper card are as fast as they can be only by wgmma, which reads
// its tiles from shared memory. Two warpgroups per block take turns: while one waits for its
// products, those of the other run.

constexpr int M = 64, N = 256, ROW_BYTES = 128;  // of a tile; a row has 64 bf16 or 128 fp8
constexpr int GROUPS = 2;                        // warpgroups per block
constexpr int PIECES = ROW_BYTES / 16;           // of 16 bytes per row

struct Tiles {
  uint4 a[GROUPS][M * PIECES], b[N * PIECES];
};

template <typename T>
__global__ void __launch_bounds__(128 * GROUPS)
    products_kernel(const uint4* __restrict__ a, const uint4* __restrict__ b, float* __restrict__ d,
                    int64_t count, int repeats) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];  // the pattern of a swizzle begins at 1024 bytes
  auto& tiles = *reinterpret_cast<Tiles*>(memory);
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int64_t mine = int64_t{blockIdx.x} * GROUPS + group;
  const auto load = [](uint4* tile, const uint4* from, int pieces, int first, int stride) {
    for (int i = first; i < pieces; i += stride) {
      tile[ptx::swizzled(ptx::Swizzle::k128, i * 16) / 16] = from[i];
    }
  };
  // A group beyond the last product computes that one again, and does not store it.
  load(tiles.a[group], a + min(mine, count - 1) * M * PIECES, M * PIECES, thread, 128);
  load(tiles.b, b, N * PIECES, threadIdx.x, 128 * GROUPS);
  ptx::fence_proxy_async();
  __syncthreads();  // both groups read all of b

  const auto descriptor = [](const uint4* tile, int k) {  // 32 bytes further: one wgmma's K
    return ptx::wgmma_descriptor(tile + 2 * k, ptx::Swizzle::k128, 0, 8 * 128);
  };
  float sums[N / 2] = {};
  ptx::wgmma_fence(sums);
  for (int r = 0; r < repeats; ++r) {
#pragma unroll
    for (int k = 0; k < ROW_BYTES / 32; ++k) {
      ptx::wgmma<T>(sums, descriptor(tiles.a[group], k), descriptor(tiles.b, k));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // the products before are complete; these run
  }
  ptx::wgmma_wait<0>(sums);
  if (mine >= count) return;
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  for (int e = 0; e < N / 2; e += 2) {  // two adjacent columns; see wgmma.cuh
    float* to = d + (mine * M + row + e / 2 % 2 * 8) * N + e / 4 * 8 + lane % 4 * 2;
    to[0] = sums[e];
    to[1] = sums[e + 1];
  }
#endif
}

Tensor products(const Tensor& a, const Tensor& b, int64_t repeats) {
  check(a, "a").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Float8_e4m3fn});
  check(a, "a").rank(3).contiguous();
  const bool fp8 = a.scalar_type() == ScalarType::Float8_e4m3fn;
  const int64_t K = fp8 ? ROW_BYTES : ROW_BYTES / 2;
  check(a, "a").size(1, M).size(2, K);
  check(b, "b").on_gpu().dtype({a.scalar_type()}).rank(2).contiguous();
  check(b, "b").same_device(a, "a").size(0, N).size(1, K);
  STD_TORCH_CHECK(is_aligned(a, 16), "a: expected an address that is a multiple of 16");
  STD_TORCH_CHECK(is_aligned(b, 16), "b: expected an address that is a multiple of 16");
  STD_TORCH_CHECK(repeats >= 0 && repeats <= INT32_MAX, "repeats: expected 0 to 2^31 - 1, got ",
                  repeats);
  const DeviceGuard guard(a);
  require_wgmma();
  Tensor d = allocate(a, {a.size(0), M, N}, ScalarType::Float);
  if (a.size(0) == 0) return d;
  require_shared_memory(sizeof(Tiles), "the tiles of wgmma");
  const auto kernel = fp8 ? products_kernel<__nv_fp8_e4m3> : products_kernel<__nv_bfloat16>;
  allow_shared(kernel, sizeof(Tiles));
  const unsigned grid = grid_size(ceil_div<int64_t>(a.size(0), GROUPS), "a");
  kernel<<<grid, 128 * GROUPS, sizeof(Tiles), current_stream(a)>>>(
      data<uint4>(a), data<uint4>(b), mutable_data<float>(d), a.size(0), static_cast<int>(repeats));
  check_launch("products");
  return d;
}

// ---------------------------------------------------------------------------------------------
// chase: the address of each load is the result of the one before.

constexpr int MAX_SHARED = 8192;        // elements: 32 KB
constexpr int64_t MAX_STEPS = 1 << 24;  // about 10 s, at 0.6 µs each

// Stores -1 in *end if an element of next is no index. A test in the loop of the chase would be
// part of the latency.
__global__ void __launch_bounds__(BLOCK)
    find_outside_kernel(const int* __restrict__ next, int n, int* end) {
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * BLOCK) {
    if (next[i] < 0 || next[i] >= n) atomicMin(end, -1);
  }
}

template <bool SHARED>
__global__ void chase_kernel(const int* __restrict__ next, int n, int start, int64_t steps,
                             int* end) {
  constexpr int COPIED = SHARED ? MAX_SHARED : 1;
  __shared__ int copied[COPIED];
  if (SHARED) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) copied[i] = next[i];
    __syncthreads();  // thread 0 reads what all have copied
  }
  if (threadIdx.x != 0 || *end < 0) return;
  int at = start;
  for (int64_t s = 0; s < steps; ++s) at = SHARED ? copied[at] : next[at];
  *end = at;
}

// next: (n,), each element an index from 0 to n - 1, or the result is -1.
template <bool SHARED>
Tensor chase_in(const Tensor& next, int64_t start, int64_t steps, const char* kernel) {
  check(next, "next").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous();
  const int64_t n = next.numel(), most = SHARED ? MAX_SHARED : INT32_MAX;
  STD_TORCH_CHECK(n > 0 && n <= most, "next: expected 1 to ", most, " elements, got ", n);
  STD_TORCH_CHECK(start >= 0 && start < n, "start: expected 0 to ", n - 1, ", got ", start);
  STD_TORCH_CHECK(steps >= 0 && steps <= MAX_STEPS, "steps: expected 0 to ", MAX_STEPS, ", got ",
                  steps);
  const DeviceGuard guard(next);
  Tensor end = allocate(next, {1});
  const cudaStream_t stream = current_stream(next);
  check_cuda(cudaMemsetAsync(end.mutable_data_ptr(), 0, 4, stream), "cudaMemsetAsync");
  const unsigned grid =
      resident_grid(next, find_outside_kernel, BLOCK, 0, ceil_div<int64_t>(n, BLOCK));
  find_outside_kernel<<<grid, BLOCK, 0, stream>>>(data<int>(next), static_cast<int>(n),
                                                  mutable_data<int>(end));
  chase_kernel<SHARED><<<1, 32, 0, stream>>>(
      data<int>(next), static_cast<int>(n), static_cast<int>(start), steps, mutable_data<int>(end));
  check_launch(kernel);
  return end;
}

Tensor chase(const Tensor& next, int64_t start, int64_t steps) {
  return chase_in<false>(next, start, steps, "chase");
}
Tensor chase_shared(const Tensor& next, int64_t start, int64_t steps) {
  return chase_in<true>(next, start, steps, "chase_shared");
}

// ---------------------------------------------------------------------------------------------

RUNG(day50, copy_v1_one_pack, "(Tensor x) -> Tensor");
RUNG(day50, copy_v2_four_packs, "(Tensor x) -> Tensor");
RUNG(day50, read_global, "(Tensor x, int times) -> Tensor");
RUNG(day50, read_shared, "(Tensor x, int times) -> Tensor");
RUNG(day50, multiply_adds, "(Tensor x, int steps) -> Tensor");
RUNG(day50, exponentials, "(Tensor x, int steps) -> Tensor");
RUNG(day50, products, "(Tensor a, Tensor b, int repeats) -> Tensor");
RUNG(day50, chase, "(Tensor next, int start, int steps) -> Tensor");
RUNG(day50, chase_shared, "(Tensor next, int start, int steps) -> Tensor");

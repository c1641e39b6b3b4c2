// Day 43: occupancy: how many warps a kernel needs, and what it may do instead
//
//   copy       y[i] = x[i]                                       x, y: (n,)   8 bytes per element
//   map        y[i] = x[i] after `steps` times v ← v² + c        x, y: (n,)   2 · steps operations
//   residents  how many blocks of a kernel are on a multiprocessor at once, counted
//   …_facts    what a launch takes: registers, shared memory, resident blocks by the occupancy API
//
//   copy v1 full           16 bytes per thread, as many warps as fit
//   copy v2 low            the same, one block of 256 threads per multiprocessor
//   copy v3 low_wide       the same, 128 bytes per thread: eight loads in flight
//   map v1 full            one chain of dependent operations per thread, as many warps as fit
//   map v2 low             the same, one block of 128 threads per multiprocessor
//   map v3 low_chains      the same, 4 independent chains per thread
//   map v4 bounded         32 chains in 32 registers, by __launch_bounds__: they spill
//
// copy_sweep and map_sweep take everything as an argument. Run: python run_day.py 43

#include <tuple>

#include "common/cuda/binding.cuh"
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"

constexpr int MOST_THREADS = 1024;  // per block, on every GPU
constexpr int ALL_THAT_FIT = 0;     // no limit of the resident blocks

// ---------------------------------------------------------------------------------------------
// The size of a launch.

struct Shape {
  int64_t block;   // threads
  int64_t blocks;  // resident per multiprocessor at most, or ALL_THAT_FIT
};

void check_shape(Shape shape) {
  STD_TORCH_CHECK(shape.block >= 32 && shape.block <= MOST_THREADS && shape.block % 32 == 0,
                  "block: expected a multiple of 32 up to ", MOST_THREADS, ", got ", shape.block);
  STD_TORCH_CHECK(shape.blocks >= 0 && shape.blocks <= 8,
                  "blocks: expected 1 to 8, or 0 for all that fit, got ", shape.blocks);
}

// Bytes of dynamic shared memory per block with which `blocks` blocks fit on a multiprocessor, and
// not one more. No thread uses them. A card that allows a block less holds more blocks.
int64_t ballast(const Tensor& on, int64_t blocks) {
  if (blocks == ALL_THAT_FIT) return 0;
  int all = 0;
  check_cuda(
      cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device_index(on)),
      "cudaDeviceGetAttribute");
  const int64_t bytes = all / (blocks + 1) / 16 * 16 + 16;  // blocks + 1 of them are more than all
  const int64_t limit = shared_limit(on);
  return bytes < limit ? bytes : limit;
}

// Launches kernel(arguments…) with one thread for `each` elements, rounded up to whole blocks.
template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, const char* name, const Tensor& x, int each, Shape shape,
            Arguments... arguments) {
  const int64_t shared = ballast(x, shape.blocks);
  allow_shared(kernel, shared);
  const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), each * shape.block), "x");
  const auto block = static_cast<unsigned>(shape.block);
  kernel<<<grid, block, shared, current_stream(x)>>>(arguments...);
  check_launch(name);
}

// A compile-time constant that can be passed as an argument.
template <int VALUE>
struct Constant {
  static constexpr int value = VALUE;
};

// Calls f(Constant<count>{}) for a count of 1, 2, 4 or 8.
template <typename F>
void with_count(int64_t count, const char* argument, F f) {
  switch (count) {
    case 1:
      return f(Constant<1>{});
    case 2:
      return f(Constant<2>{});
    case 4:
      return f(Constant<4>{});
    case 8:
      return f(Constant<8>{});
    default:
      STD_TORCH_CHECK(false, argument, ": expected 1, 2, 4 or 8, got ", count);
  }
}

// What the launch of a kernel takes: registers per thread, bytes of shared memory per block, and
// how many of its blocks are resident per multiprocessor by the occupancy API.
using Facts = std::tuple<int64_t, int64_t, int64_t>;

// choose(Constant<count>{}) gives the kernel.
template <typename F>
Facts facts(const Tensor& x, int64_t count, Shape shape, F choose) {
  check_shape(shape);
  const DeviceGuard guard(x);
  cudaFuncAttributes attributes;
  int resident = 0;
  const int64_t shared = ballast(x, shape.blocks);
  with_count(count, "count", [&](auto constant) {
    const auto kernel = choose(constant);
    allow_shared(kernel, shared);
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel,
                                                             static_cast<int>(shape.block), shared),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  });
  return {attributes.numRegs, static_cast<int64_t>(attributes.sharedSizeBytes) + shared, resident};
}

// ---------------------------------------------------------------------------------------------
// copy. A thread has PACKS loads of 16 bytes in flight before its first store needs one of them.

template <int PACKS>
__global__ void __launch_bounds__(MOST_THREADS, 1)
    copy_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
  const int64_t begin = int64_t{blockIdx.x} * PACKS * blockDim.x;  // the block's first pack
  if (4 * (begin + PACKS * blockDim.x) > n) {                      // of the last block only
    for (int64_t i = 4 * begin + threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];
    return;
  }
  // Pack p of this thread is begin + threadIdx.x + p · blockDim.x, so that requests are coalesced.
  const float4* from = reinterpret_cast<const float4*>(x) + begin + threadIdx.x;
  float4* to = reinterpret_cast<float4*>(y) + begin + threadIdx.x;
  float4 pack[PACKS];
#pragma unroll
  for (int p = 0; p < PACKS; ++p) pack[p] = from[p * blockDim.x];
#pragma unroll
  for (int p = 0; p < PACKS; ++p) to[p * blockDim.x] = pack[p];
}

Tensor copy_shaped(const Tensor& x, int64_t packs, Shape shape, const char* name) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  STD_TORCH_CHECK(is_aligned(x, 16), "x: expected a start that is aligned to 16 bytes");
  check_shape(shape);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  with_count(packs, "packs", [&](auto count) {
    constexpr int PACKS = decltype(count)::value;
    if (x.numel() == 0) return;
    launch(copy_kernel<PACKS>, name, x, 4 * PACKS, shape, data<float>(x), mutable_data<float>(y),
           x.numel());
  });
  return y;
}

// v1: the latency of memory is hidden by many warps.
Tensor copy_v1_full(const Tensor& x) {
  return copy_shaped(x, 1, {256, ALL_THAT_FIT}, "copy_v1_full");
}

// v2 against v1: 8 warps per multiprocessor, so that few loads are in flight.
Tensor copy_v2_low(const Tensor& x) {
  return copy_shaped(x, 1, {256, 1}, "copy_v2_low");
}

// v3 against v2: eight times as many bytes in flight per warp.
Tensor copy_v3_low_wide(const Tensor& x) {
  return copy_shaped(x, 8, {256, 1}, "copy_v3_low_wide");
}

Tensor copy_sweep(const Tensor& x, int64_t packs, int64_t block, int64_t blocks) {
  return copy_shaped(x, packs, {block, blocks}, "copy_sweep");
}

Facts copy_facts(const Tensor& x, int64_t packs, int64_t block, int64_t blocks) {
  return facts(x, packs, {block, blocks},
               [](auto count) { return copy_kernel<decltype(count)::value>; });
}

// ---------------------------------------------------------------------------------------------
// map. An operation of a chain needs the result of the one before it, so a warp can issue the next
// one only after the latency of a multiply-add. Other warps, or other chains of the same thread,
// fill the gap.

template <int CHAINS>
__device__ void run_chains(const float* __restrict__ x, float* __restrict__ y, float c, int steps,
                           int64_t n) {
  // Element k of this thread is first + k · blockDim.x.
  const int64_t first = int64_t{blockIdx.x} * CHAINS * blockDim.x + threadIdx.x;
  float v[CHAINS];
#pragma unroll
  for (int k = 0; k < CHAINS; ++k) {
    const int64_t i = first + k * blockDim.x;
    v[k] = i < n ? x[i] : 0.0f;
  }
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) v[k] = fmaf(v[k], v[k], c);
  }
#pragma unroll
  for (int k = 0; k < CHAINS; ++k) {
    const int64_t i = first + k * blockDim.x;
    if (i < n) y[i] = v[k];
  }
}

template <int CHAINS>
__global__ void __launch_bounds__(MOST_THREADS, 1)
    map_kernel(const float* __restrict__ x, float* __restrict__ y, float c, int steps, int64_t n) {
  run_chains<CHAINS>(x, y, c, steps, n);
}

void check_map(const Tensor& x, int64_t steps) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  STD_TORCH_CHECK(steps >= 0 && steps <= 1000000, "steps: expected 0 to 1000000, got ", steps);
}

Tensor map_shaped(const Tensor& x, double c, int64_t steps, int64_t chains, Shape shape,
                  const char* name) {
  check_map(x, steps);
  check_shape(shape);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  with_count(chains, "chains", [&](auto count) {
    constexpr int CHAINS = decltype(count)::value;
    if (x.numel() == 0) return;
    launch(map_kernel<CHAINS>, name, x, CHAINS, shape, data<float>(x), mutable_data<float>(y),
           static_cast<float>(c), static_cast<int>(steps), x.numel());
  });
  return y;
}

// v1: 64 warps of one chain each.
Tensor map_v1_full(const Tensor& x, double c, int64_t steps) {
  return map_shaped(x, c, steps, 1, {256, ALL_THAT_FIT}, "map_v1_full");
}

// v2 against v1: four warps per multiprocessor, one for each of its four schedulers.
Tensor map_v2_low(const Tensor& x, double c, int64_t steps) {
  return map_shaped(x, c, steps, 1, {128, 1}, "map_v2_low");
}

// v3 against v2: four independent chains per thread, as many as a multiply-add has cycles of
// latency.
Tensor map_v3_low_chains(const Tensor& x, double c, int64_t steps) {
  return map_shaped(x, c, steps, 4, {128, 1}, "map_v3_low_chains");
}

// v4 against v3: 2 blocks of 1024 threads have to be resident, so the compiler may use 32 of the
// 65,536 registers per thread. 32 chains and their addresses do not fit.
constexpr int BOUNDED_CHAINS = 32;

__global__ void __launch_bounds__(MOST_THREADS, 2)
    map_v4_bounded_kernel(const float* __restrict__ x, float* __restrict__ y, float c, int steps,
                          int64_t n) {
  run_chains<BOUNDED_CHAINS>(x, y, c, steps, n);
}

Tensor map_v4_bounded(const Tensor& x, double c, int64_t steps) {
  check_map(x, steps);
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  launch(map_v4_bounded_kernel, "map_v4_bounded", x, BOUNDED_CHAINS, {MOST_THREADS, ALL_THAT_FIT},
         data<float>(x), mutable_data<float>(y), static_cast<float>(c), static_cast<int>(steps),
         x.numel());
  return y;
}

Tensor map_sweep(const Tensor& x, double c, int64_t steps, int64_t chains, int64_t block,
                 int64_t blocks) {
  return map_shaped(x, c, steps, chains, {block, blocks}, "map_sweep");
}

Facts map_facts(const Tensor& x, int64_t chains, int64_t block, int64_t blocks) {
  return facts(x, chains, {block, blocks},
               [](auto count) { return map_kernel<decltype(count)::value>; });
}

// ---------------------------------------------------------------------------------------------
// residents: each block of this kernel counts itself on its multiprocessor while it is there.

constexpr int MOST_MULTIPROCESSORS = 1024;  // more than any GPU has

__device__ unsigned this_multiprocessor() {  // day 1
#ifdef CUDA_ON_CPU
  return cudacpu::smid();
#else
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
#endif
}

template <int CHAINS>
__global__ void __launch_bounds__(MOST_THREADS, 1)
    residents_kernel(const float* __restrict__ x, float* __restrict__ y, float c, int steps,
                     int64_t n, int* present, int* most) {
  int* here = present + this_multiprocessor() % MOST_MULTIPROCESSORS;
  if (threadIdx.x == 0) atomicMax(most, atomicAdd(here, 1) + 1);
  __syncthreads();  // the block is counted before its threads work
  run_chains<CHAINS>(x, y, c, steps, n);
  __syncthreads();  // all of its threads have worked before it is gone
  if (threadIdx.x == 0) atomicSub(here, 1);
}

// The most blocks that were on one multiprocessor at once, int32 (1,).
Tensor residents(const Tensor& x, double c, int64_t steps, int64_t chains, int64_t block,
                 int64_t blocks) {
  check_map(x, steps);
  const Shape shape{block, blocks};
  check_shape(shape);
  const DeviceGuard guard(x);
  Tensor most = allocate_zeros(x, {1}, ScalarType::Int);
  Tensor present = allocate_zeros(x, {MOST_MULTIPROCESSORS}, ScalarType::Int);
  Tensor y = allocate_like(x);
  with_count(chains, "chains", [&](auto count) {
    if (x.numel() == 0) return;
    constexpr int CHAINS = decltype(count)::value;
    launch(residents_kernel<CHAINS>, "residents", x, CHAINS, shape, data<float>(x),
           mutable_data<float>(y), static_cast<float>(c), static_cast<int>(steps), x.numel(),
           mutable_data<int>(present), mutable_data<int>(most));
  });
  return most;
}

Facts residents_facts(const Tensor& x, int64_t chains, int64_t block, int64_t blocks) {
  return facts(x, chains, {block, blocks},
               [](auto count) { return residents_kernel<decltype(count)::value>; });
}

// ---------------------------------------------------------------------------------------------

#define FACTS "(Tensor x, int count, int block, int blocks) -> (int, int, int)"
#define MAP "(Tensor x, float c, int steps) -> Tensor"

RUNG(day43, copy_v1_full, "(Tensor x) -> Tensor");
RUNG(day43, copy_v2_low, "(Tensor x) -> Tensor");
RUNG(day43, copy_v3_low_wide, "(Tensor x) -> Tensor");
RUNG(day43, copy_sweep, "(Tensor x, int packs, int block, int blocks) -> Tensor");
RUNG(day43, map_v1_full, MAP);
RUNG(day43, map_v2_low, MAP);
RUNG(day43, map_v3_low_chains, MAP);
RUNG(day43, map_v4_bounded, MAP);
RUNG(day43, map_sweep,
     "(Tensor x, float c, int steps, int chains, int block, int blocks) -> Tensor");
RUNG(day43, residents,
     "(Tensor x, float c, int steps, int chains, int block, int blocks) -> Tensor");
RUNG(day43, copy_facts, FACTS);
RUNG(day43, map_facts, FACTS);
RUNG(day43, residents_facts, FACTS);

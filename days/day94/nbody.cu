// Day 94: gravity between all pairs of n bodies
//
//   a[i] = sum_j m[j] (x[j] - x[i]) / (|x[j] - x[i]|² + eps²)^(3/2)
//
// bodies: (n, 4) fp32, x, y, z and the mass m; a: (n, 3). G is 1. The softening eps > 0 keeps close
// bodies from infinite accelerations, and makes the term j = i 0.
//
// Bytes: 28 per body, which is little. Instructions per pair: 3 subtractions, 3 fmaf for the
// squared distance, a reciprocal root by the special function unit, 3 products, 3 fmaf for the
// sums. The 12 on the FMA units are 18 operations, as a multiply-add counts as two, in the time
// of 24.
//
//   v1 global       one thread per body, which reads all bodies from global memory
//   v2 tiles        a block copies tiles of bodies into shared memory
//   v3 registers    four bodies per thread: each read from shared memory serves four pairs
//   v4 fast_root    the reciprocal root in one instruction
//
// Run: python run_day.py 94

#include "common/cuda/binding.cuh"   // taught in day 6
#include "common/cuda/ptx/log2.cuh"  // taught in day 33
#include "common/cuda/tensor.cuh"    // taught in days 6 and 12

#include <cfloat>

// The reciprocal root: of any number, or of one that is at least the smallest normal number.
struct Rsqrtf {
  static __device__ float of(float x) { return rsqrtf(x); }
};
struct SpecialFunction {
  static __device__ float of(float x) { return ptx::rsqrt_approx(x); }
};

// Adds what the body `other` (x, y, z, m) does to one at `own`.
template <typename Root>
__device__ __forceinline__ void add_pull(float3& a, float3 own, float4 other, float eps2) {
  const float dx = other.x - own.x, dy = other.y - own.y, dz = other.z - own.z;
  const float inverse = Root::of(fmaf(dx, dx, fmaf(dy, dy, fmaf(dz, dz, eps2))));
  const float scale = other.w * inverse * (inverse * inverse);
  a.x = fmaf(scale, dx, a.x);
  a.y = fmaf(scale, dy, a.y);
  a.z = fmaf(scale, dz, a.z);
}

__device__ __forceinline__ void add(float3& sum, float3 part) {
  sum.x += part.x;
  sum.y += part.y;
  sum.z += part.z;
}

__device__ float3 position_of(const float* bodies, int64_t i) {
  return make_float3(bodies[4 * i], bodies[4 * i + 1], bodies[4 * i + 2]);
}

__device__ void store(float* a, int64_t i, float3 sum) {
  a[3 * i] = sum.x;
  a[3 * i + 1] = sum.y;
  a[3 * i + 2] = sum.z;
}

// Checks both arguments, makes the output and calls launch(bodies, a, n, eps²).
template <typename Launch>
Tensor accelerations(const Tensor& bodies, double eps, const char* kernel, Launch&& launch) {
  check(bodies, "bodies").on_gpu().dtype({ScalarType::Float}).rank(2).size(1, 4).contiguous();
  STD_TORCH_CHECK(eps > 0 && eps * eps >= FLT_MIN && eps * eps <= FLT_MAX,
                  "eps: expected a positive number whose square is a normal number of fp32, got ",
                  eps);
  const DeviceGuard guard(bodies);
  const int64_t n = bodies.size(0);
  Tensor a = allocate(bodies, {n, 3});
  if (n == 0) return a;
  launch(data<float>(bodies), mutable_data<float>(a), n, static_cast<float>(eps * eps));
  check_launch(kernel);
  return a;
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per body. All lanes of a warp read the same body j: a broadcast, from the L1
// cache.

constexpr int BLOCK = 256;

__global__ void __launch_bounds__(BLOCK)
    nbody_v1_global_kernel(const float* __restrict__ bodies, float* __restrict__ a, int64_t n,
                           float eps2) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  const float3 own = position_of(bodies, i);
  float3 sum = make_float3(0, 0, 0);
  for (int64_t first = 0; first < n; first += BLOCK) {
    const int64_t end = min(first + BLOCK, n);
    float3 part = make_float3(0, 0, 0);
    for (int64_t j = first; j < end; ++j) {
      const float* const b = bodies + 4 * j;
      add_pull<Rsqrtf>(part, own, make_float4(b[0], b[1], b[2], b[3]), eps2);
    }
    add(sum, part);
  }
  store(a, i, sum);
}

Tensor nbody_v1_global(const Tensor& bodies, double eps) {
  const auto launch = [&](const float* from, float* a, int64_t n, float eps2) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(n, BLOCK), "bodies");
    nbody_v1_global_kernel<<<blocks, BLOCK, 0, current_stream(bodies)>>>(from, a, n, eps2);
  };
  return accelerations(bodies, eps, "nbody_v1_global", launch);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: each thread loads one body of a tile into shared memory, and all threads of the
// block use it: one read of 16 bytes per pair instead of four of 4.

// Body j, or one without a mass beyond the last.
__device__ float4 body_of(const float* bodies, int64_t j, int64_t n) {
  if (j >= n) return make_float4(0, 0, 0, 0);
  const float* const b = bodies + 4 * j;
  return make_float4(b[0], b[1], b[2], b[3]);
}

__global__ void __launch_bounds__(BLOCK)
    nbody_v2_tiles_kernel(const float* __restrict__ bodies, float* __restrict__ a, int64_t n,
                          float eps2) {
  __shared__ float4 tile[BLOCK];
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const float4 own = body_of(bodies, i, n);
  float3 sum = make_float3(0, 0, 0);
  for (int64_t first = 0; first < n; first += BLOCK) {
    __syncthreads();  // all have used the last tile
    tile[threadIdx.x] = body_of(bodies, first + threadIdx.x, n);
    __syncthreads();  // the tile is there
    float3 part = make_float3(0, 0, 0);
#pragma unroll 8
    for (int j = 0; j < BLOCK; ++j) {
      add_pull<Rsqrtf>(part, make_float3(own.x, own.y, own.z), tile[j], eps2);
    }
    add(sum, part);
  }
  if (i < n) store(a, i, sum);
}

Tensor nbody_v2_tiles(const Tensor& bodies, double eps) {
  const auto launch = [&](const float* from, float* a, int64_t n, float eps2) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(n, BLOCK), "bodies");
    nbody_v2_tiles_kernel<<<blocks, BLOCK, 0, current_stream(bodies)>>>(from, a, n, eps2);
  };
  return accelerations(bodies, eps, "nbody_v2_tiles", launch);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: four bodies per thread, in registers. That leaves a quarter of the threads, so a
// block's threads form four groups: all have the same bodies, each takes a quarter of each tile.

constexpr int OWN = 4;                  // bodies per thread
constexpr int GROUPS = 4;               // that share the pairs of a block's bodies
constexpr int GROUP = 128;              // threads
constexpr int TILE = GROUPS * GROUP;    // bodies of a tile: each thread loads one
constexpr int PER_BLOCK = GROUP * OWN;  // bodies whose accelerations a block computes

template <typename Root>
__global__ void __launch_bounds__(TILE, 2)
    nbody_registers_kernel(const float* __restrict__ bodies, float* __restrict__ a, int64_t n,
                           float eps2) {
  __shared__ float4 tile[TILE];
  __shared__ float3 sums[GROUPS][GROUP];
  const int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
  const int64_t first_own = int64_t{blockIdx.x} * PER_BLOCK + lane;
  float3 own[OWN], sum[OWN];
#pragma unroll
  for (int k = 0; k < OWN; ++k) {
    const float4 body = body_of(bodies, first_own + k * GROUP, n);
    own[k] = make_float3(body.x, body.y, body.z);
    sum[k] = make_float3(0, 0, 0);
  }
  float4 next = body_of(bodies, threadIdx.x, n);
  for (int64_t first = 0; first < n; first += TILE) {
    __syncthreads();  // all have used the last tile
    tile[threadIdx.x] = next;
    __syncthreads();                                        // the tile is there
    next = body_of(bodies, first + TILE + threadIdx.x, n);  // needed one tile later
    const float4* const mine = tile + group * GROUP;
    float3 part[OWN]{};
#pragma unroll 8
    for (int j = 0; j < GROUP; ++j) {
      const float4 other = mine[j];
#pragma unroll
      for (int k = 0; k < OWN; ++k) add_pull<Root>(part[k], own[k], other, eps2);
    }
#pragma unroll
    for (int k = 0; k < OWN; ++k) add(sum[k], part[k]);
  }
#pragma unroll
  for (int k = 0; k < OWN; ++k) {
    sums[group][lane] = sum[k];
    __syncthreads();  // the first group reads the sums of all
    const int64_t i = first_own + k * GROUP;
    if (group == 0 && i < n) {
      float3 total = sum[k];
      for (int other = 1; other < GROUPS; ++other) add(total, sums[other][lane]);
      store(a, i, total);
    }
    __syncthreads();  // before the next sums are stored
  }
}

template <typename Root>
Tensor by_registers(const Tensor& bodies, double eps, const char* name) {
  const auto launch = [&](const float* from, float* a, int64_t n, float eps2) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(n, PER_BLOCK), "bodies");
    nbody_registers_kernel<Root><<<blocks, TILE, 0, current_stream(bodies)>>>(from, a, n, eps2);
  };
  return accelerations(bodies, eps, name, launch);
}

Tensor nbody_v3_registers(const Tensor& bodies, double eps) {
  return by_registers<Rsqrtf>(bodies, eps, "nbody_v3_registers");
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: rsqrtf scales an argument below the smallest normal number up and the result down.
// The squared distance is at least eps², which is a normal number: the one instruction is enough.

Tensor nbody_v4_fast_root(const Tensor& bodies, double eps) {
  return by_registers<SpecialFunction>(bodies, eps, "nbody_v4_fast_root");
}

// ---------------------------------------------------------------------------------------------

RUNG(day94, nbody_v1_global, "(Tensor bodies, float eps) -> Tensor");
RUNG(day94, nbody_v2_tiles, "(Tensor bodies, float eps) -> Tensor");
RUNG(day94, nbody_v3_registers, "(Tensor bodies, float eps) -> Tensor");
RUNG(day94, nbody_v4_fast_root, "(Tensor bodies, float eps) -> Tensor");

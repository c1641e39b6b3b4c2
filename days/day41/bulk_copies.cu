// Day 41, second file: the rungs without loads and stores of global memory. Bulk copies move pieces
// to shared memory and back; day 55 takes them apart. They need compute capability 9.0.
//
//   particles v5 bulk   4 KB of each field per block; threads move the particles in shared memory
//   swap v3 bulk        4 KB of x and of y per block; no thread touches an element
//
// Bytes per element of the result: 8, and 16 for an element pair of swap. Requests: none.

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/ptx.cuh"            // mbarriers: day 35; bulk copies: day 55
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "days/day41/coalescing.cuh"

// Older cards do not run these kernels, and have no instructions for some of their parts.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_BULK_COPIES 1
#endif

void require_bulk_copies(const Tensor& on) {
  const DeviceGuard guard(on);
  require_capability(9, 0, "bulk copies");
}

// ---------------------------------------------------------------------------------------------
// particles v5 against v4: a block's part of each field is one piece. One thread starts a copy per
// field, and one that stores it. The others only move the particles, four at a time. Mass and
// charge go through shared memory untouched, so no thread but the first waits for them.

constexpr int FIELD_PIECE = 1024;  // floats: 32 KB for all fields, so six blocks are resident
constexpr int MOVERS = 128;        // threads per block

__global__ void __launch_bounds__(MOVERS)
    particles_v5_bulk_kernel(const float* __restrict__ state, float* __restrict__ next, float dt,
                             int64_t n) {
#ifdef HAS_BULK_COPIES
  extern __shared__ __align__(128) float pieces[];  // (FIELDS, FIELD_PIECE)
  __shared__ uint64_t moving, constant;             // mbarriers of 6 fields and of 2
  const int64_t first = int64_t{blockIdx.x} * FIELD_PIECE;
  const int count = static_cast<int>(min(int64_t{FIELD_PIECE}, n - first)), bytes = 4 * count;
  const auto is_constant = [](int f) { return f % 4 == 3; };
  const auto store = [&](int f) {
    ptx::store_bulk(next + f * n + first, pieces + f * FIELD_PIECE, bytes);
  };

  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&moving, 1);
    ptx::mbarrier_init(&constant, 1);
    ptx::fence_mbarrier_init();  // before copies use them
    ptx::mbarrier_arrive_expect_bytes(&moving, 6 * bytes);
    ptx::mbarrier_arrive_expect_bytes(&constant, 2 * bytes);
    for (int f = 0; f < FIELDS; ++f) {
      ptx::copy_bulk(pieces + f * FIELD_PIECE, state + f * n + first, bytes,
                     is_constant(f) ? &constant : &moving);
    }
  }
  __syncthreads();  // all threads wait for the mbarriers to be ready
  ptx::mbarrier_wait(&moving, 0);
  for (int i = threadIdx.x; i < count / 4; i += MOVERS) {
#pragma unroll
    for (int f = 0; f < 3; ++f) {
      float4& position = reinterpret_cast<float4*>(pieces + f * FIELD_PIECE)[i];
      const float4 velocity = reinterpret_cast<float4*>(pieces + (f + 4) * FIELD_PIECE)[i];
      position = make_float4(position.x + dt * velocity.x, position.y + dt * velocity.y,
                             position.z + dt * velocity.z, position.w + dt * velocity.w);
    }
  }
  ptx::fence_proxy_async();  // what this thread wrote, before it is copied
  __syncthreads();           // thread 0 waits for the particles of all threads
  if (threadIdx.x != 0) return;
  for (int f = 0; f < FIELDS; ++f) {
    if (!is_constant(f)) store(f);
  }
  ptx::mbarrier_wait(&constant, 0);
  for (int f = 0; f < FIELDS; ++f) {
    if (is_constant(f)) store(f);
  }
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();  // the block's memory may go once the stores have read it
#endif
}

Tensor particles_v5_bulk(const Tensor& state, double dt) {
  check_arrays(state);
  require_bulk_copies(state);
  const int64_t n = state.size(1);
  if (n % 4 != 0 || !is_aligned(state, 16)) {
    fell_back("particles_v4_soa", "fields that do not begin at multiples of 16 bytes");
    return particles_v4_soa(state, dt);
  }
  return filled(allocate_like(state), "particles_v5_bulk", [&](float* next) {
    constexpr int BYTES = FIELDS * FIELD_PIECE * sizeof(float);
    require_shared_memory(BYTES, "a piece of each field");
    allow_shared(particles_v5_bulk_kernel, BYTES);
    particles_v5_bulk_kernel<<<grid_size(ceil_div<int64_t>(n, FIELD_PIECE), "state"), MOVERS, BYTES,
                               current_stream(state)>>>(data<float>(state), next,
                                                        static_cast<float>(dt), n);
  });
}

// ---------------------------------------------------------------------------------------------
// swap v3 against v2: both elements wait in shared memory instead of registers. A block of one
// thread starts a copy of each array, waits for both, and stores each where the other was.

constexpr int SWAP_PIECE = 1024;  // floats: 8 KB for both arrays, so 24 blocks are resident

__global__ void __launch_bounds__(1)
    swap_v3_bulk_kernel(float* __restrict__ x, float* __restrict__ y, int64_t n) {
#ifdef HAS_BULK_COPIES
  __shared__ __align__(128) float from_x[SWAP_PIECE], from_y[SWAP_PIECE];
  __shared__ uint64_t full;  // mbarrier
  const int64_t first = int64_t{blockIdx.x} * SWAP_PIECE, whole = n / 4 * 4;
  if (first < whole) {
    const int bytes = 4 * static_cast<int>(min(int64_t{SWAP_PIECE}, whole - first));
    ptx::mbarrier_init(&full, 1);
    ptx::fence_mbarrier_init();  // before copies use it
    ptx::mbarrier_arrive_expect_bytes(&full, 2 * bytes);
    ptx::copy_bulk(from_x, x + first, bytes, &full);
    ptx::copy_bulk(from_y, y + first, bytes, &full);
    ptx::mbarrier_wait(&full, 0);  // both pieces have been read: they may be overwritten
    ptx::store_bulk(y + first, from_x, bytes);
    ptx::store_bulk(x + first, from_y, bytes);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();  // the block's memory may go once the stores have read it
  }
  if (blockIdx.x < gridDim.x - 1) return;
  for (int64_t i = whole; i < n; ++i) {  // three elements at most
    const float a = x[i], b = y[i];
    x[i] = b;
    y[i] = a;
  }
#endif
}

void swap_v3_bulk(const Tensor& x, const Tensor& y) {
  check_swap(x, y);
  require_bulk_copies(x);
  swap_aligned(x, y, "swap_v3_bulk", [&](float* of_x, float* of_y, int64_t n) {
    const unsigned grid = grid_size(ceil_div<int64_t>(n, SWAP_PIECE), "x");
    swap_v3_bulk_kernel<<<grid, 1, 0, current_stream(x)>>>(of_x, of_y, n);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day41, particles_v5_bulk, "(Tensor state, float dt) -> Tensor");
RUNG(day41, swap_v3_bulk, "(Tensor(a!) x, Tensor(b!) y) -> ()");

// Day 41: coalescing: how many sectors of 32 bytes one access of a warp touches
//
//   strided    y[i] = x[i · stride]                           x: (n,), y: (⌈n / stride⌉,)
//   shifted    y[i] = x[offset + i]                           x: (n,), y: (count,)
//   particles  (x, y, z) += dt · (vx, vy, vz)                 8 floats each: (n, 8) or (8, n)
//   swap       x[i], y[i] = y[i], x[i]  in place              x, y: (n,)
//
// Bytes per element of the result: 8, and 16 for an element pair of swap. Hardly any operations.
// In brackets: sectors per request, loads and stores, as predicted from the addresses.
//
//   strided                      one thread per element of y                (4 … 32, 4)
//   shifted v1 scalar            a start that is not aligned                (5, 4)
//   shifted v2 packs             aligned packs, put together in registers   (8.5, 16)
//   particles v1 aos_scalar      array of structures, a load per field      (32, 32)
//   particles v2 aos_float4      two loads of 16 bytes per particle         (32, 32)
//   particles v3 aos_lane_pairs  two lanes per particle                     (16, 16)
//   particles v4 soa             structure of arrays: one array per field   (4, 4)
//   swap v1 scalar, v2 float4    4 and 16 bytes per access                  (4, 4), (16, 16)
//   particles v5, swap v3        bulk_copies.cu: copies without requests    none
//
// Run: python run_day.py 41

#include "common/cuda/binding.cuh"
#include "days/day41/coalescing.cuh"

constexpr int BLOCK = 256;
constexpr unsigned ALL_LANES = 0xffffffffu;

// A grid with one thread for each of `work` items.
unsigned grid_for(int64_t work, const char* argument) {
  return grid_size(ceil_div<int64_t>(work, BLOCK), argument);
}

// The index of this thread in the grid.
__device__ int64_t global_thread() {
  return int64_t{blockIdx.x} * BLOCK + threadIdx.x;
}

// ---------------------------------------------------------------------------------------------
// strided: the stores are coalesced. The 32 elements that a warp loads lie 4 · stride bytes apart:
// in 4 · stride sectors, until each lane has one of its own at stride 8.

__global__ void __launch_bounds__(BLOCK)
    strided_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t stride,
                   int64_t count) {
  const int64_t i = global_thread();
  if (i < count) y[i] = x[i * stride];
}

Tensor strided(const Tensor& x, int64_t stride) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  STD_TORCH_CHECK(stride >= 1, "stride: expected at least 1, got ", stride);
  // Rounded up without the sum of n and stride, which could overflow.
  const int64_t count = x.numel() / stride + (x.numel() % stride != 0);
  return filled(allocate(x, {count}), "strided", [&](float* y) {
    strided_kernel<<<grid_for(count, "x"), BLOCK, 0, current_stream(x)>>>(data<float>(x), y, stride,
                                                                          count);
  });
}

// ---------------------------------------------------------------------------------------------
// shifted v1: the 128 bytes of a warp's load begin 4 · offset bytes after x. Unless that is a
// multiple of 32, they touch five sectors instead of four.

__global__ void __launch_bounds__(BLOCK)
    shifted_v1_scalar_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t offset,
                             int64_t count) {
  const int64_t i = global_thread();
  if (i < count) y[i] = x[offset + i];
}

void check_shifted(const Tensor& x, int64_t offset, int64_t count) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  const int64_t n = x.numel();
  STD_TORCH_CHECK(offset >= 0 && offset <= n, "offset: expected 0 to the size of x, ", n, ", got ",
                  offset);
  STD_TORCH_CHECK(count >= 0 && count <= n - offset, "count: expected 0 to ", n - offset,
                  ", the elements of x from offset on, got ", count);
}

Tensor shifted_v1_scalar(const Tensor& x, int64_t offset, int64_t count) {
  check_shifted(x, offset, count);
  return filled(allocate(x, {count}), "shifted_v1_scalar", [&](float* y) {
    shifted_v1_scalar_kernel<<<grid_for(count, "count"), BLOCK, 0, current_stream(x)>>>(
        data<float>(x), y, offset, count);
  });
}

// ---------------------------------------------------------------------------------------------
// shifted v2 against v1: 16 bytes per load and store, all of them aligned. x[offset] may be any
// element of its pack, so four elements of y come from two neighbouring packs of x. A lane loads
// one of them and gets the other from the lane after it; only the last lane loads both.

// Pack p of x, [4p, 4p + 4), with zeros from x[size] on.
__device__ float4 load_pack(const float* __restrict__ x, int64_t p, int64_t size) {
  const int64_t i = 4 * p;
  if (i + 4 <= size) return reinterpret_cast<const float4*>(x)[p];
  return make_float4(i < size ? x[i] : 0.0f, i + 1 < size ? x[i + 1] : 0.0f,
                     i + 2 < size ? x[i + 2] : 0.0f, 0.0f);
}

__global__ void __launch_bounds__(BLOCK)
    shifted_v2_packs_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t offset,
                            int64_t count, int64_t size) {
  const int64_t i = 4 * global_thread();  // writes y[i, i + 4)
  const int64_t first = offset / 4 + global_thread();
  const int shift = static_cast<int>(offset % 4);

  // All lanes load, also those whose y[i] does not exist: the lane before may need their elements.
  const float4 low = load_pack(x, first, size);
  float4 high = make_float4(
      __shfl_down_sync(ALL_LANES, low.x, 1), __shfl_down_sync(ALL_LANES, low.y, 1),
      __shfl_down_sync(ALL_LANES, low.z, 1), 0.0f);  // the shift is 3 at most: high.w is unused
  if (threadIdx.x % 32 == 31 && shift > 0) high = load_pack(x, first + 1, size);

  // The result begins at window[shift]. Two steps with constant indices move it to window[0]; an
  // index that is known only at run time would put the array into local memory.
  float window[7] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z};
  if (shift & 1) {
#pragma unroll
    for (int k = 0; k < 6; ++k) window[k] = window[k + 1];
  }
  if (shift & 2) {
#pragma unroll
    for (int k = 0; k < 4; ++k) window[k] = window[k + 2];
  }

  if (i + 4 <= count) {
    *reinterpret_cast<float4*>(y + i) = make_float4(window[0], window[1], window[2], window[3]);
  } else {
    for (int k = 0; k < 3; ++k) {  // the last, incomplete pack of y
      if (i + k < count) y[i + k] = window[k];
    }
  }
}

Tensor shifted_v2_packs(const Tensor& x, int64_t offset, int64_t count) {
  check_shifted(x, offset, count);
  if (!is_aligned(x, 16)) {  // a slice: the packs around x[0] may begin before it
    fell_back("shifted_v1_scalar", "an input that is not aligned to 16 bytes");
    return shifted_v1_scalar(x, offset, count);
  }
  return filled(allocate(x, {count}), "shifted_v2_packs", [&](float* y) {
    const unsigned grid = grid_for(ceil_div<int64_t>(count, 4), "count");
    shifted_v2_packs_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<float>(x), y, offset, count,
                                                                   x.numel());
  });
}

// ---------------------------------------------------------------------------------------------
// particles: 8 floats, 32 bytes, one sector each: x y z mass vx vy vz charge.
//
// v1: an array of structures, (n, 8). Lane l loads a field of particle l: 32 sectors per request
// with 4 used bytes in each. The 8 loads of a thread visit the same 32 sectors.
__global__ void __launch_bounds__(BLOCK)
    particles_v1_aos_scalar_kernel(const float* __restrict__ state, float* __restrict__ next,
                                   float dt, int64_t n) {
  const int64_t i = global_thread();
  if (i >= n) return;
  float field[FIELDS];
#pragma unroll
  for (int f = 0; f < FIELDS; ++f) field[f] = state[i * FIELDS + f];
#pragma unroll
  for (int f = 0; f < 3; ++f) field[f] += dt * field[f + 4];
#pragma unroll
  for (int f = 0; f < FIELDS; ++f) next[i * FIELDS + f] = field[f];
}

// Checks an array of structures, (n, 8).
void check_structures(const Tensor& state) {
  check(state, "state").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous().size(1, FIELDS);
}

Tensor particles_v1_aos_scalar(const Tensor& state, double dt) {
  check_structures(state);
  return filled(allocate_like(state), "particles_v1_aos_scalar", [&](float* next) {
    const int64_t n = state.size(0);
    particles_v1_aos_scalar_kernel<<<grid_for(n, "state"), BLOCK, 0, current_stream(state)>>>(
        data<float>(state), next, static_cast<float>(dt), n);
  });
}

// ---------------------------------------------------------------------------------------------
// particles v2 against v1: 2 accesses of 16 bytes instead of 8 of 4. But the 16 bytes of
// neighbouring lanes are 32 bytes apart: a request still touches 32 sectors and uses half of each.

__device__ float4 drift(float4 position, float4 velocity, float dt) {
  return make_float4(position.x + dt * velocity.x, position.y + dt * velocity.y,
                     position.z + dt * velocity.z, position.w);  // w is the mass
}

__global__ void __launch_bounds__(BLOCK)
    particles_v2_aos_float4_kernel(const float4* __restrict__ state, float4* __restrict__ next,
                                   float dt, int64_t n) {
  const int64_t i = global_thread();
  if (i >= n) return;
  const float4 position = state[2 * i], velocity = state[2 * i + 1];
  next[2 * i] = drift(position, velocity, dt);
  next[2 * i + 1] = velocity;
}

Tensor particles_v2_aos_float4(const Tensor& state, double dt) {
  check_structures(state);
  if (!is_aligned(state, 16)) {
    fell_back("particles_v1_aos_scalar", "an input that is not aligned to 16 bytes");
    return particles_v1_aos_scalar(state, dt);
  }
  return filled(allocate_like(state), "particles_v2_aos_float4", [&](float* next) {
    const int64_t n = state.size(0);
    particles_v2_aos_float4_kernel<<<grid_for(n, "state"), BLOCK, 0, current_stream(state)>>>(
        data<float4>(state), reinterpret_cast<float4*>(next), static_cast<float>(dt), n);
  });
}

// ---------------------------------------------------------------------------------------------
// particles v3 against v2: two lanes per particle. Lane l loads the 16 bytes after those of lane
// l - 1: 512 contiguous bytes, 16 sectors per request, all of them used. Even lanes hold positions
// and get the velocity from the odd lane after them, in registers.

__global__ void __launch_bounds__(BLOCK)
    particles_v3_aos_lane_pairs_kernel(const float4* __restrict__ state, float4* __restrict__ next,
                                       float dt, int64_t halves) {
  const int64_t h = global_thread();  // halves of particles, [0, 2n)
  float4 half = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (h < halves) half = state[h];
  // Outside of any branch: the mask says that all lanes take part.
  const float4 velocity =
      make_float4(__shfl_down_sync(ALL_LANES, half.x, 1), __shfl_down_sync(ALL_LANES, half.y, 1),
                  __shfl_down_sync(ALL_LANES, half.z, 1), 0.0f);
  if (h % 2 == 0) half = drift(half, velocity, dt);
  if (h < halves) next[h] = half;
}

Tensor particles_v3_aos_lane_pairs(const Tensor& state, double dt) {
  check_structures(state);
  if (!is_aligned(state, 16)) {
    fell_back("particles_v1_aos_scalar", "an input that is not aligned to 16 bytes");
    return particles_v1_aos_scalar(state, dt);
  }
  return filled(allocate_like(state), "particles_v3_aos_lane_pairs", [&](float* next) {
    const int64_t halves = 2 * state.size(0);
    particles_v3_aos_lane_pairs_kernel<<<grid_for(halves, "state"), BLOCK, 0,
                                         current_stream(state)>>>(
        data<float4>(state), reinterpret_cast<float4*>(next), static_cast<float>(dt), halves);
  });
}

// ---------------------------------------------------------------------------------------------
// particles v4 against v1: a structure of arrays, (8, n). The same scalar code, but neighbouring
// lanes find a field in neighbouring words: 4 sectors per request.

__global__ void __launch_bounds__(BLOCK)
    particles_v4_soa_kernel(const float* __restrict__ state, float* __restrict__ next, float dt,
                            int64_t n) {
  const int64_t i = global_thread();
  if (i >= n) return;
  float field[FIELDS];
#pragma unroll
  for (int f = 0; f < FIELDS; ++f) field[f] = state[f * n + i];
#pragma unroll
  for (int f = 0; f < 3; ++f) field[f] += dt * field[f + 4];
#pragma unroll
  for (int f = 0; f < FIELDS; ++f) next[f * n + i] = field[f];
}

// Checks a structure of arrays, (8, n).
void check_arrays(const Tensor& state) {
  check(state, "state").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous().size(0, FIELDS);
}

Tensor particles_v4_soa(const Tensor& state, double dt) {
  check_arrays(state);
  return filled(allocate_like(state), "particles_v4_soa", [&](float* next) {
    const int64_t n = state.size(1);
    particles_v4_soa_kernel<<<grid_for(n, "state"), BLOCK, 0, current_stream(state)>>>(
        data<float>(state), next, static_cast<float>(dt), n);
  });
}

// ---------------------------------------------------------------------------------------------
// swap v1: both elements wait in registers of the thread that exchanges them. No thread touches
// another's elements, so no barrier and no third array is needed.

__global__ void __launch_bounds__(BLOCK)
    swap_v1_scalar_kernel(float* __restrict__ x, float* __restrict__ y, int64_t n) {
  const int64_t i = global_thread();
  if (i >= n) return;
  const float a = x[i], b = y[i];
  x[i] = b;
  y[i] = a;
}

void check_swap(const Tensor& x, const Tensor& y) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  check(y, "y").on_gpu().like(x, "x").contiguous();
  const auto *a = data<float>(x), *b = data<float>(y);
  STD_TORCH_CHECK(a + x.numel() <= b || b + y.numel() <= a,
                  "y: shares memory with x, so that a thread would overwrite what another reads");
}

void swap_v1_scalar(const Tensor& x, const Tensor& y) {
  check_swap(x, y);
  const int64_t n = x.numel();
  if (n == 0) return;
  const DeviceGuard guard(x);
  swap_v1_scalar_kernel<<<grid_for(n, "x"), BLOCK, 0, current_stream(x)>>>(
      mutable_data<float>(x), mutable_data<float>(y), n);
  check_launch("swap_v1_scalar");
}

// ---------------------------------------------------------------------------------------------
// swap v2 against v1: 16 bytes per access, a quarter of the requests.

__global__ void __launch_bounds__(BLOCK)
    swap_v2_float4_kernel(float* __restrict__ x, float* __restrict__ y, int64_t n) {
  const int64_t i = global_thread();
  const int64_t packs = n / 4;
  if (i < packs) {
    float4 *px = reinterpret_cast<float4*>(x) + i, *py = reinterpret_cast<float4*>(y) + i;
    const float4 a = *px, b = *py;
    *px = b;
    *py = a;
  }
  const int64_t rest = 4 * packs + i;  // [4 · packs, n): three elements at most
  if (rest < n) {
    const float a = x[rest], b = y[rest];
    x[rest] = b;
    y[rest] = a;
  }
}

void swap_v2_float4(const Tensor& x, const Tensor& y) {
  check_swap(x, y);
  swap_aligned(x, y, "swap_v2_float4", [&](float* of_x, float* of_y, int64_t n) {
    const unsigned grid = grid_for(ceil_div<int64_t>(n, 4), "x");
    swap_v2_float4_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(of_x, of_y, n);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day41, strided, "(Tensor x, int stride) -> Tensor");
RUNG(day41, shifted_v1_scalar, "(Tensor x, int offset, int count) -> Tensor");
RUNG(day41, shifted_v2_packs, "(Tensor x, int offset, int count) -> Tensor");
RUNG(day41, particles_v1_aos_scalar, "(Tensor state, float dt) -> Tensor");
RUNG(day41, particles_v2_aos_float4, "(Tensor state, float dt) -> Tensor");
RUNG(day41, particles_v3_aos_lane_pairs, "(Tensor state, float dt) -> Tensor");
RUNG(day41, particles_v4_soa, "(Tensor state, float dt) -> Tensor");
RUNG(day41, swap_v1_scalar, "(Tensor(a!) x, Tensor(b!) y) -> ()");
RUNG(day41, swap_v2_float4, "(Tensor(a!) x, Tensor(b!) y) -> ()");

// Day 80: Mamba's selective scan, forward
//
//   Δ = softplus(delta + bias)      h_t = exp(Δ_t A) · h_(t-1) + Δ_t u_t · B_t      N states
//   y_t = (C_t · h_t + D u_t) · silu(z_t)                                           per channel
//
// u, delta, z, y: (batch, channels, length) in T; B, C: (batch, N, length) in T; A: (channels, N),
// D, bias: (channels) fp32. T: fp32, fp16, bf16; N: 8 or 16. Bytes: 4 · sizeof(T) per element of u.
// Special functions: N exponentials per element, and 4 for softplus and silu. An H200 computes 16
// per multiprocessor and clock, 4.2 · 10^12 per second: more than twice the time of the bytes.
//
//   v1 thread_per_channel  a thread has a channel and all its states, and loads step by step
//   v2 tiles               tiles of 32 steps in shared memory: coalesced, B and C once per block
//   v3 warp_scan           a warp has a channel, a lane 8 steps; one scan over the lanes per state
//   v4 lanes               v2 with 4 lanes per channel; segments of time where channels are few
//
// The backward pass is in selective_scan_backward.cu.
//
// Run: python run_day.py 80

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day80/ssm.cuh"

#include <algorithm>

// ---------------------------------------------------------------------------------------------
// v1: thread i handles channel i of (batch · channels). Neighbouring threads load elements that are
// `length` apart, and each loads B and C for itself.

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    selective_scan_v1_kernel(Inputs<T> in, T* __restrict__ y, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (row >= rows) return;
  const int c = static_cast<int>(row % in.channels);
  const int64_t of_batch = row / in.channels * N * in.length;
  float rate[N], h[N] = {};
  for (int n = 0; n < N; ++n) rate[n] = in.A[c * N + n] * LOG2_E;
  for (int t = 0; t < in.length; ++t) {
    const int64_t at = row * in.length + t;
    const float u = static_cast<float>(in.u[at]), z = static_cast<float>(in.z[at]);
    const float delta = softplus(static_cast<float>(in.delta[at]) + in.bias[c]);
    float sum = in.D[c] * u;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int64_t of_state = of_batch + int64_t{n} * in.length + t;
      const float a = ptx::exp2_approx(delta * rate[n]);
      h[n] = a * h[n] + delta * u * static_cast<float>(in.B[of_state]);
      sum += static_cast<float>(in.C[of_state]) * h[n];
    }
    y[at] = static_cast<T>(sum * (z * sigmoid(z)));
  }
}

Tensor selective_scan_v1_thread_per_channel(ARGUMENTS) {
  check_arguments(PASS_ARGUMENTS);
  const DeviceGuard guard(u);
  Tensor y = allocate_like(u);
  if (y.numel() == 0) return y;
  const int64_t rows = u.size(0) * u.size(1);
  dispatch({&u}, A, [&](auto zero, auto, auto N) {
    using T = decltype(zero);
    selective_scan_v1_kernel<T, N()>
        <<<grid_size(ceil_div<int64_t>(rows, BLOCK), "u"), BLOCK, 0, current_stream(u)>>>(
            inputs_of<T>(PASS_ARGUMENTS), mutable_data<T>(y), rows);
  });
  check_launch("selective_scan_v1");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a block has 32 channels of one batch entry. For every 32 steps, all its threads
// load the tile with 16 bytes per load, compute Δ and Δ · u once per element, and store them in
// shared memory. Its 32 channels share B and C. WAYS = 1: one thread per channel.
//
// v4 against v2: WAYS = 4 threads per channel, each with 4 of its 16 states: four times as many
// warps, whose latencies overlap. A reduce-scatter per 4 steps adds their parts of C · h.

template <typename T, int N, int E, int WAYS>
__global__ void __launch_bounds__(CHANNELS* WAYS, BLOCKS_PER_SM)
    scan_tiles_kernel(Inputs<T> in, const float* __restrict__ starts, T* __restrict__ y,
                      Segments n) {
  constexpr int K = N / WAYS;  // states per thread
  __shared__ alignas(16) float deltas[CHANNELS][STRIDE], pushes[CHANNELS][STRIDE];
  __shared__ alignas(16) float sums[CHANNELS][STRIDE];
  __shared__ Matrices<N> tile;
  const Part part(in, n.count);
  const int c = threadIdx.x / WAYS, lane = threadIdx.x % WAYS;
  float rate[K], h[K] = {};
  load_rates<N>(in, part, c, lane * K, rate);
  if (starts != nullptr && c < part.channels) {
    const float* from = starts + part.index(in, n.count, c) * N + lane * K;
#pragma unroll
    for (int k = 0; k < K; ++k) h[k] = from[k];
  }
  const int end = min((part.segment + 1) * n.tiles * TILE, in.length);
  for (int t0 = part.segment * n.tiles * TILE; t0 < end; t0 += TILE) {
    tile.template load<E>(in, part.batch, t0);
    visit_tile<CHANNELS, E>(
        part.row, part.channels, t0, in.length, [&](int row, int step, int64_t at, bool inside) {
          float u[E], delta[E];
          load_steps<E>(in.u, at, inside, u);
          load_steps<E>(in.delta, at, inside, delta);
          for (int i = 0; i < E; ++i) {
            // Δ = 0 outside: the factor is 1, and the states stay.
            delta[i] = inside ? softplus(delta[i] + in.bias[part.channel + row]) : 0;
            u[i] *= delta[i];
          }
          store_shared(&deltas[row][step], delta);
          store_shared(&pushes[row][step], u);
        });
    __syncthreads();  // the tile is complete
    for (int t = 0; t < TILE; t += STEPS) {
      float delta[STEPS], push[STEPS], sum[STEPS] = {};
      load_shared(&deltas[c][t], delta);
      load_shared(&pushes[c][t], push);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        float B[K], C[K];
        load_shared(&tile.B[t + s][lane * K], B);
        load_shared(&tile.C[t + s][lane * K], C);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const float a = ptx::exp2_approx(delta[s] * rate[k]);
          h[k] = a * h[k] + push[s] * B[k];
          sum[s] += C[k] * h[k];
        }
      }
      reduce_scatter<WAYS, 1, STEPS>(sum);  // lane l keeps steps [l · STEPS / WAYS, …)
#pragma unroll
      for (int s = 0; s < STEPS / WAYS; ++s) sums[c][t + lane * (STEPS / WAYS) + s] = sum[s];
    }
    __syncthreads();  // all sums are written, and the tile is no longer read
    visit_tile<CHANNELS, E>(part.row, part.channels, t0, in.length,
                            [&](int row, int step, int64_t at, bool inside) {
                              if (!inside) return;
                              float u[E], z[E], sum[E];
                              load_steps<E>(in.u, at, true, u);
                              load_steps<E>(in.z, at, true, z);
                              load_shared(&sums[row][step], sum);
                              for (int i = 0; i < E; ++i) {
                                sum[i] += in.D[part.channel + row] * u[i];
                                sum[i] *= z[i] * sigmoid(z[i]);
                              }
                              store_steps<E>(y, at, sum);
                            });
  }
}

Tensor selective_scan_v2_tiles(ARGUMENTS) {
  check_arguments(PASS_ARGUMENTS);
  const DeviceGuard guard(u);
  Tensor y = allocate_like(u);
  if (y.numel() == 0) return y;
  const Segments whole{static_cast<int>(ceil_div<int64_t>(u.size(2), TILE)), 1};
  dispatch({&u, &delta, &z, &B, &C}, A, [&](auto zero, auto E, auto N) {
    using T = decltype(zero);
    scan_tiles_kernel<T, N(), E(), 1><<<part_grid(u, 1), CHANNELS, 0, current_stream(u)>>>(
        inputs_of<T>(PASS_ARGUMENTS), nullptr, mutable_data<T>(y), whole);
  });
  check_launch("selective_scan_v2");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: parallel in time. A warp has one channel, and each of its lanes 8 steps in turn.
// h ← a h + b, then h ← a' h + b', is h ← a a' h + (a' b + b'): pairs (a, b) can be scanned (day
// 17). For each state, a lane composes its steps, the lanes scan, and the steps run again from the
// state that the scan gave. The warps of a block share B and C of 256 steps.

constexpr int WARPS = BLOCK / 32;
constexpr int PER_LANE = 8;               // steps
constexpr int WARP_TILE = 32 * PER_LANE;  // steps

template <typename T, int N, int E>
__global__ void __launch_bounds__(BLOCK) selective_scan_v3_kernel(Inputs<T> in, T* __restrict__ y) {
  __shared__ alignas(16) float tile_B[N][WARP_TILE], tile_C[N][WARP_TILE];
  const int groups = ceil_div(in.channels, WARPS);
  const int batch = static_cast<int>(blockIdx.x) / groups;
  const int mine =
      static_cast<int>(blockIdx.x) % groups * WARPS + static_cast<int>(threadIdx.x) / 32;
  const int c = min(mine, in.channels - 1);  // warps beyond the channels compute the last one again
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{batch} * in.channels + c) * in.length;
  float start = 0;  // lane n has state n before the tile
  for (int t0 = 0; t0 < in.length; t0 += WARP_TILE) {
    __syncthreads();  // all warps have read the tile before
    for (int i = threadIdx.x * E; i < N * WARP_TILE; i += BLOCK * E) {
      const int n = i / WARP_TILE, t = i % WARP_TILE;
      const int64_t at = (int64_t{batch} * N + n) * in.length + t0 + t;
      float from_B[E], from_C[E];
      load_steps<E>(in.B, at, t0 + t < in.length, from_B);
      load_steps<E>(in.C, at, t0 + t < in.length, from_C);
      store_shared(&tile_B[n][t], from_B);
      store_shared(&tile_C[n][t], from_C);
    }
    __syncthreads();  // B and C are complete

    const int first = lane * PER_LANE;
    float delta[PER_LANE], push[PER_LANE], sum[PER_LANE];
#pragma unroll
    for (int j = 0; j < PER_LANE; j += E) {
      const int t = t0 + first + j;
      float u[E], raw[E];
      load_steps<E>(in.u, row + t, t < in.length, u);
      load_steps<E>(in.delta, row + t, t < in.length, raw);
#pragma unroll
      for (int i = 0; i < E; ++i) {
        delta[j + i] = t < in.length ? softplus(raw[i] + in.bias[c]) : 0;
        push[j + i] = delta[j + i] * u[i];
        sum[j + i] = in.D[c] * u[i];
      }
    }
    for (int n = 0; n < N; ++n) {
      const float rate = in.A[c * N + n] * LOG2_E;
      float B[PER_LANE], C[PER_LANE], a[PER_LANE];
      load_shared(&tile_B[n][first], B);
      load_shared(&tile_C[n][first], C);
      float product = 1, h = 0;  // the composition of the lane's steps
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) {
        a[i] = ptx::exp2_approx(delta[i] * rate);
        product *= a[i];
        h = a[i] * h + push[i] * B[i];
      }
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const float product_below = __shfl_up_sync(0xffffffffu, product, distance);
        const float h_below = __shfl_up_sync(0xffffffffu, h, distance);
        if (lane >= distance) {
          h = product * h_below + h;
          product *= product_below;
        }
      }
      h += product * __shfl_sync(0xffffffffu, start, n);  // the state after the lane's steps
      const float before = __shfl_up_sync(0xffffffffu, h, 1);
      const float old = __shfl_sync(0xffffffffu, start, n);
      const float last = __shfl_sync(0xffffffffu, h, 31);
      if (lane == n) start = last;
      h = lane == 0 ? old : before;
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) {
        h = a[i] * h + push[i] * B[i];
        sum[i] += C[i] * h;
      }
    }
#pragma unroll
    for (int j = 0; j < PER_LANE; j += E) {
      const int t = t0 + first + j;
      if (t >= in.length || mine > c) break;
      float z[E], out[E];
      load_steps<E>(in.z, row + t, true, z);
#pragma unroll
      for (int i = 0; i < E; ++i) out[i] = sum[j + i] * (z[i] * sigmoid(z[i]));
      store_steps<E>(y, row + t, out);
    }
  }
}

Tensor selective_scan_v3_warp_scan(ARGUMENTS) {
  check_arguments(PASS_ARGUMENTS);
  const DeviceGuard guard(u);
  Tensor y = allocate_like(u);
  if (y.numel() == 0) return y;
  const unsigned grid = grid_size(ceil_div<int64_t>(u.size(1), WARPS) * u.size(0), "u");
  dispatch({&u, &delta, &z, &B, &C}, A, [&](auto zero, auto E, auto N) {
    using T = decltype(zero);
    selective_scan_v3_kernel<T, N(), E()>
        <<<grid, BLOCK, 0, current_stream(u)>>>(inputs_of<T>(PASS_ARGUMENTS), mutable_data<T>(y));
  });
  check_launch("selective_scan_v3");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v4: its kernel is scan_tiles_kernel, above. Where its blocks do not fill the GPU, the length is
// cut into segments: their last states are computed first, and the exponentials twice.

constexpr int MIN_TILES = 4;  // of a segment: 128 steps

Segments segments_of(const Tensor& u) {
  const int64_t tiles = ceil_div<int64_t>(u.size(2), TILE);
  const int64_t room = int64_t{multiprocessor_count(u)} * BLOCKS_PER_SM / part_grid(u, 1);
  int64_t count = std::max<int64_t>(1, std::min(room, tiles / MIN_TILES));
  if (count < 3) count = 1;  // two segments would halve the length and double the work
  const int64_t per_segment = ceil_div(tiles, count);
  return {static_cast<int>(per_segment), static_cast<int>(ceil_div(tiles, per_segment))};
}

Tensor selective_scan_v4_lanes(ARGUMENTS) {
  check_arguments(PASS_ARGUMENTS);
  const DeviceGuard guard(u);
  Tensor y = allocate_like(u);
  if (y.numel() == 0) return y;
  const cudaStream_t stream = current_stream(u);
  const Segments n = segments_of(u);
  const unsigned grid = part_grid(u, n.count);
  const int64_t split = n.count > 1 ? u.size(0) * n.count * u.size(1) : 0;
  const Tensor states = allocate(u, {split * A.size(1)}, ScalarType::Float);
  const Tensor totals = allocate(u, {split}, ScalarType::Float);
  float* starts = split ? mutable_data<float>(states) : nullptr;
  dispatch({&u, &delta, &z, &B, &C}, A, [&](auto zero, auto E, auto N) {
    using T = decltype(zero);
    const Inputs<T> in = inputs_of<T>(PASS_ARGUMENTS);
    if (split) {
      segment_states_kernel<T, N(), E(), false><<<grid, BLOCK, 0, stream>>>(
          in, nullptr, starts, nullptr, mutable_data<float>(totals), n);
      check_launch("segment_states");
      const int64_t count = u.size(0) * A.numel();
      carry_kernel<N(), false>
          <<<grid_size(ceil_div<int64_t>(count, BLOCK), "u"), BLOCK, 0, stream>>>(
              starts, data<float>(totals), in.A, in.channels, count, n.count);
      check_launch("carry");
    }
    scan_tiles_kernel<T, N(), E(), LANES>
        <<<grid, BLOCK, 0, stream>>>(in, starts, mutable_data<T>(y), n);
  });
  check_launch("selective_scan_v4");
  return y;
}

// ---------------------------------------------------------------------------------------------

#define SCHEMA                                                                                  \
  "(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor D, Tensor z, Tensor bias) -> " \
  "Tensor"

RUNG(day80, selective_scan_v1_thread_per_channel, SCHEMA);
RUNG(day80, selective_scan_v2_tiles, SCHEMA);
RUNG(day80, selective_scan_v3_warp_scan, SCHEMA);
RUNG(day80, selective_scan_v4_lanes, SCHEMA);

// Day 80: Mamba's selective scan, backward
//
// With a_t = exp(Δ_t A), g_t = gy_t silu(z_t) and the adjoint of the state, scanned from the end:
//
//   λ_t = C_t g_t + a_(t+1) λ_(t+1)          p_t = a_t λ_t h_(t-1)
//   gu = Δ Σ_n λ B + D g            gΔ = u Σ_n λ B + Σ_n A p       gdelta = gΔ (1 - exp(-Δ))
//   gz = gy (C · h + D u) silu'(z)  gB = Σ_channels λ Δ u          gC = Σ_channels g h
//   gA = Σ_(batch, t) p Δ           gD = Σ_(batch, t) g u          gbias = Σ_(batch, t) gdelta
//
// Bytes: u, delta, z and gy are read twice, three gradients are written: 11 · sizeof(T) per
// element. The states, adjoints and parts of gA of each segment are 40 N bytes per channel and 32
// steps. Exponentials: 3 N per element.
//
//   segment_states   each segment of 32 steps alone: its last state, its first adjoint
//   carry            scans over the segments: what each starts from, from both sides
//   gradients        each segment again: states forward, adjoints backward
//   sum              adds up the partial sums of blocks, in a fixed order
//
// Run: python run_day.py 80

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day80/ssm.cuh"

#include <tuple>

constexpr int GROUPS = 8;  // of 32 channels that a block handles in turn; they share gB and gC
constexpr int WARPS = BLOCK / 32;
constexpr int WARP_CHANNELS = 32 / LANES;

template <typename T>
struct Gradients {
  T *u, *delta, *z;
  float *A, *D, *bias;  // (batch, segments, channels, …): sums of one segment each
  float *B, *C;         // (parts, batch, N, length): sums of 256 channels each
};

template <int N>
struct Shared {
  // Δ, u, g and gy · silu'(z). In the end, delta, u and gate hold the gradients of delta, u and z.
  alignas(16) float delta[CHANNELS][STRIDE], u[CHANNELS][STRIDE], g[CHANNELS][STRIDE],
      gate[CHANNELS][STRIDE];
  Matrices<N> tile;
  alignas(16) float checkpoints[TILE / STEPS][BLOCK][N / LANES];  // the states before each 4 steps
  float sums[WARPS][2][TILE][N + 4];                              // of gB and gC, per warp
};

template <typename T, int N, int E>
__global__ void __launch_bounds__(BLOCK)
    gradients_kernel(Inputs<T> in, const T* __restrict__ gy, const float* __restrict__ starts,
                     const float* __restrict__ adjoints, Gradients<T> out, int segments) {
  constexpr int K = N / LANES;
  extern __shared__ __align__(128) uint4 dynamic[];
  Shared<N>& shared = *reinterpret_cast<Shared<N>*>(dynamic);
  const int parts = ceil_div(in.channels, GROUPS * CHANNELS);
  const int part_of_channels = static_cast<int>(blockIdx.x) % parts;
  const int segment = static_cast<int>(blockIdx.x / parts % segments);
  const int batch = static_cast<int>(blockIdx.x / parts / segments);
  const int t0 = segment * TILE;
  const int c = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int warp = threadIdx.x / 32, number = c % WARP_CHANNELS;  // of the channel within its warp
  shared.tile.template load<E>(in, batch, t0);
  for (int i = threadIdx.x; i < WARPS * 2 * TILE * (N + 4); i += BLOCK)
    (&shared.sums[0][0][0][0])[i] = 0;

  const int end = min((part_of_channels + 1) * GROUPS * CHANNELS, in.channels);
  for (int first = part_of_channels * GROUPS * CHANNELS; first < end; first += CHANNELS) {
    const int channels = min(CHANNELS, end - first), channel = first + c;
    const int64_t row = int64_t{batch} * in.channels + first;
    __syncthreads();  // the gradients of the channels before are stored
    visit_tile<CHANNELS, E>(row, channels, t0, in.length,
                            [&](int r, int step, int64_t at, bool inside) {
                              float u[E], delta[E], z[E], g[E], gate[E];
                              load_steps<E>(in.u, at, inside, u);
                              load_steps<E>(in.delta, at, inside, delta);
                              load_steps<E>(in.z, at, inside, z);
                              load_steps<E>(gy, at, inside, g);
                              for (int i = 0; i < E; ++i) {
                                const float s = sigmoid(z[i]);
                                delta[i] = inside ? softplus(delta[i] + in.bias[first + r]) : 0;
                                gate[i] = g[i] * (s * (1 + z[i] * (1 - s)));
                                g[i] *= z[i] * s;
                              }
                              store_shared(&shared.u[r][step], u);
                              store_shared(&shared.delta[r][step], delta);
                              store_shared(&shared.g[r][step], g);
                              store_shared(&shared.gate[r][step], gate);
                            });
    __syncthreads();  // the tile is complete

    const bool exists = c < channels;
    const int64_t at = (int64_t{batch} * segments + segment) * in.channels + channel;
    float rate[K], h[STEPS + 1][K], carry[K], of_A[K] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int n = lane * K + k;
      rate[k] = exists ? in.A[channel * N + n] * LOG2_E : 0;
      h[0][k] = exists ? starts[at * N + n] : 0;
      carry[k] = exists ? adjoints[at * N + n] : 0;  // a · λ of the step after
    }
    const float D = exists ? in.D[channel] : 0;

    // Forward: only the states before each 4 steps are kept.
    for (int i = 0; i < TILE / STEPS; ++i) {
      store_shared(shared.checkpoints[i][threadIdx.x], h[0]);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const int t = i * STEPS + s;
        const float delta = shared.delta[c][t], push = delta * shared.u[c][t];
        float B[K];
        load_shared(&shared.tile.B[t][lane * K], B);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          h[0][k] = ptx::exp2_approx(delta * rate[k]) * h[0][k] + push * B[k];
        }
      }
    }

    // Backward, 4 steps at a time: their states once more, then the adjoints.
    float of_D = 0, of_bias = 0;
    for (int i = TILE / STEPS - 1; i >= 0; --i) {
      const int t = i * STEPS;
      float delta[STEPS], u[STEPS], g[STEPS], a[STEPS][K];
      load_shared(&shared.delta[c][t], delta);
      load_shared(&shared.u[c][t], u);
      load_shared(&shared.g[c][t], g);
      load_shared(shared.checkpoints[i][threadIdx.x], h[0]);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        float B[K];
        load_shared(&shared.tile.B[t + s][lane * K], B);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          a[s][k] = ptx::exp2_approx(delta[s] * rate[k]);
          h[s + 1][k] = a[s][k] * h[s][k] + delta[s] * u[s] * B[k];
        }
      }
      float over_states[STEPS * 3] = {};   // (step; C · h, Σ λ B, Σ A p)
      float over_channels[2 * STEPS * K];  // (gB or gC, step, state)
#pragma unroll
      for (int s = STEPS - 1; s >= 0; --s) {
        float B[K], C[K];
        load_shared(&shared.tile.B[t + s][lane * K], B);
        load_shared(&shared.tile.C[t + s][lane * K], C);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const float adjoint = C[k] * g[s] + carry[k];
          carry[k] = a[s][k] * adjoint;
          const float p = carry[k] * h[s][k];
          of_A[k] += p * delta[s];
          over_states[s * 3] += C[k] * h[s + 1][k];
          over_states[s * 3 + 1] += adjoint * B[k];
          over_states[s * 3 + 2] += p * rate[k];
          over_channels[s * K + k] = adjoint * (delta[s] * u[s]);
          over_channels[(STEPS + s) * K + k] = g[s] * h[s + 1][k];
        }
      }
      // Lane l keeps the three sums of step t + l, and channel m of the warp K sums of gB, gC.
      reduce_scatter<LANES, 1, STEPS * 3>(over_states);
      reduce_scatter<WARP_CHANNELS, LANES, 2 * STEPS * K>(over_channels);
      float* sum = &shared.sums[warp][number / STEPS][t + number % STEPS][lane * K];
#pragma unroll
      for (int k = 0; k < K; ++k) sum[k] += over_channels[k];

      const int mine = t + lane;
      const float my_u = shared.u[c][mine], my_delta = shared.delta[c][mine];
      const float my_g = shared.g[c][mine];
      const float y = over_states[0] + D * my_u, pull = over_states[1];
      // softplus' = sigmoid = 1 - exp(-softplus)
      const float of_delta = (my_u * pull + over_states[2] * LN_2) * -expm1f(-my_delta);
      of_D += my_g * my_u;
      of_bias += of_delta;
      shared.u[c][mine] = my_delta * pull + D * my_g;
      shared.delta[c][mine] = of_delta;
      shared.gate[c][mine] *= y;
    }

    for (int other = LANES / 2; other > 0; other /= 2) {
      of_D += __shfl_xor_sync(0xffffffffu, of_D, other);
      of_bias += __shfl_xor_sync(0xffffffffu, of_bias, other);
    }
    if (exists) {
      for (int k = 0; k < K; ++k) out.A[at * N + lane * K + k] = of_A[k];
      if (lane == 0) {
        out.D[at] = of_D;
        out.bias[at] = of_bias;
      }
    }
    __syncthreads();  // the gradients of the tile are in shared memory
    visit_tile<CHANNELS, E>(row, channels, t0, in.length,
                            [&](int r, int step, int64_t at, bool inside) {
                              if (!inside) return;
                              float u[E], delta[E], z[E];
                              load_shared(&shared.u[r][step], u);
                              load_shared(&shared.delta[r][step], delta);
                              load_shared(&shared.gate[r][step], z);
                              store_steps<E>(out.u, at, u);
                              store_steps<E>(out.delta, at, delta);
                              store_steps<E>(out.z, at, z);
                            });
  }

  // The last barrier was after the last sums.
  for (int i = threadIdx.x; i < N * TILE; i += BLOCK) {
    const int n = i / TILE, step = i % TILE;
    if (t0 + step >= in.length) continue;
    float of_B = 0, of_C = 0;
    for (int w = 0; w < WARPS; ++w) {
      of_B += shared.sums[w][0][step][n];
      of_C += shared.sums[w][1][step][n];
    }
    const int64_t to =
        ((int64_t{part_of_channels} * in.batch + batch) * N + n) * in.length + t0 + step;
    out.B[to] = of_B;
    out.C[to] = of_C;
  }
}

// sums[i] = Σ_p partial[p, i], in the order of p: equal bits in every run.
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    sum_kernel(const float* __restrict__ partial, T* __restrict__ sums, int64_t count,
               int64_t parts) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
#pragma unroll 8
  for (int64_t p = 0; p < parts; ++p) sum += partial[p * count + i];
  sums[i] = static_cast<T>(sum);
}

// Sums (parts, …) to a tensor like `like`.
template <typename T>
Tensor sum_of(const Tensor& partial, const Tensor& like) {
  Tensor sums = allocate_like(like);
  const int64_t count = like.numel();
  sum_kernel<T>
      <<<grid_size(ceil_div<int64_t>(count, BLOCK), "u"), BLOCK, 0, current_stream(like)>>>(
          data<float>(partial), mutable_data<T>(sums), count, partial.numel() / count);
  check_launch("sum");
  return sums;
}

using Eight = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The gradients of u, delta, A, B, C, D, z and bias.
Eight selective_scan_backward(const Tensor& gy, ARGUMENTS) {
  check_arguments(PASS_ARGUMENTS);
  check(gy, "gy").on_gpu().like(u, "u").contiguous();
  const DeviceGuard guard(u);
  if (u.numel() == 0) {
    const auto zeros = [](const Tensor& t) { return allocate_zeros(t, t.sizes()); };
    return {zeros(u), zeros(delta), zeros(A), zeros(B), zeros(C), zeros(D), zeros(z), zeros(bias)};
  }
  const cudaStream_t stream = current_stream(u);
  const int segments = static_cast<int>(ceil_div<int64_t>(u.size(2), TILE));
  const int64_t rows = u.size(0) * u.size(1) * segments, states = rows * A.size(1);
  const int64_t parts = ceil_div<int64_t>(u.size(1), GROUPS * CHANNELS);
  const auto floats = [&](int64_t count) { return allocate(u, {count}, ScalarType::Float); };
  const Tensor starts = floats(states), adjoints = floats(states), totals = floats(rows);
  const Tensor of_A = floats(states), of_D = floats(rows), of_bias = floats(rows);
  const Tensor of_B = floats(parts * B.numel()), of_C = floats(parts * B.numel());
  Tensor gu = allocate_like(u), gdelta = allocate_like(u), gz = allocate_like(u), gB, gC;
  dispatch({&u, &delta, &z, &B, &C, &gy}, A, [&](auto zero, auto E, auto N) {
    using T = decltype(zero);
    const Inputs<T> in = inputs_of<T>(PASS_ARGUMENTS);
    segment_states_kernel<T, N(), E(), true><<<part_grid(u, segments), BLOCK, 0, stream>>>(
        in, data<T>(gy), mutable_data<float>(starts), mutable_data<float>(adjoints),
        mutable_data<float>(totals), Segments{1, segments});
    check_launch("segment_states");

    const int64_t count = u.size(0) * A.numel();
    const unsigned grid = grid_size(ceil_div<int64_t>(count, BLOCK), "u");
    carry_kernel<N(), false><<<grid, BLOCK, 0, stream>>>(
        mutable_data<float>(starts), data<float>(totals), in.A, in.channels, count, segments);
    carry_kernel<N(), true><<<grid, BLOCK, 0, stream>>>(
        mutable_data<float>(adjoints), data<float>(totals), in.A, in.channels, count, segments);
    check_launch("carry");

    const auto kernel = gradients_kernel<T, N(), E()>;
    require_shared_memory(sizeof(Shared<N()>), "a tile and its states");
    allow_shared(kernel, sizeof(Shared<N()>));
    kernel<<<grid_size(parts * segments * u.size(0), "u"), BLOCK, sizeof(Shared<N()>), stream>>>(
        in, data<T>(gy), data<float>(starts), data<float>(adjoints),
        Gradients<T>{mutable_data<T>(gu), mutable_data<T>(gdelta), mutable_data<T>(gz),
                     mutable_data<float>(of_A), mutable_data<float>(of_D),
                     mutable_data<float>(of_bias), mutable_data<float>(of_B),
                     mutable_data<float>(of_C)},
        segments);
    check_launch("gradients");
    gB = sum_of<T>(of_B, B);
    gC = sum_of<T>(of_C, C);
  });
  return {gu,
          gdelta,
          sum_of<float>(of_A, A),
          gB,
          gC,
          sum_of<float>(of_D, D),
          gz,
          sum_of<float>(of_bias, bias)};
}

// ---------------------------------------------------------------------------------------------

RUNG(day80, selective_scan_backward,
     "(Tensor gy, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor D, Tensor z, "
     "Tensor bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");

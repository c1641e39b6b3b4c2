// What the forward and the backward pass share: arguments, tiles in shared memory, segments.
#pragma once

#include "common/cuda/chunk.cuh"     // taught in days 35 and 42
#include "common/cuda/ptx/exp2.cuh"  // taught in day 20
#include "common/cuda/tensor.cuh"    // taught in days 6 and 12

#include <type_traits>

constexpr int CHANNELS = 32;             // per block
constexpr int LANES = 4;                 // threads per channel: each has a quarter of its states
constexpr int BLOCK = CHANNELS * LANES;  // 4 warps with 8 channels each
constexpr int BLOCKS_PER_SM = 4;         // 4 warps per scheduler, and up to 128 registers
constexpr int TILE = 32;                 // steps of time in shared memory
constexpr int STRIDE = TILE + 4;  // floats between channels: 8 float4 loads have 32 different banks
constexpr int STEPS = 4;          // of a tile that a thread has in registers

constexpr float LOG2_E = 1.44269504f;
constexpr float LN_2 = 0.693147181f;

template <typename T>
struct Inputs {
  const T *u, *delta, *B, *C, *z;
  const float *A, *D, *bias;
  int batch, channels, length;
};

struct Segments {
  int tiles, count;  // tiles per segment, segments of the length
};

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), and log(1 + v) = 2 atanh(v / (2 + v)) as a power
// series: its argument is at most 1/3. Exact to a few units of the last place, also where the
// result is small. log1pf has branches, which lanes would take differently.
__device__ inline float softplus(float x) {
  const float v = exp2f(-LOG2_E * fabsf(x));  // may be subnormal: gradients are proportional to it
  const float s = __fdividef(v, 2 + v), s2 = s * s;
  float series = 1.0f / 13;
#pragma unroll
  for (int k = 11; k > 0; k -= 2) series = series * s2 + 1.0f / k;
  return fmaxf(x, 0) + 2 * s * series;
}

__device__ inline float sigmoid(float x) {
  // Division by / has a slow path: a call, for which registers are spilled.
  return __fdividef(1, 1 + ptx::exp2_approx(-LOG2_E * x));
}

// K floats of shared memory, at most 4 by one instruction.
template <int K>
constexpr int WIDTH = K % 4 == 0   ? 4
                      : K % 2 == 0 ? 2
                                   : 1;

template <int K>
__device__ __forceinline__ void load_shared(const float* from, float (&to)[K]) {
#pragma unroll
  for (int i = 0; i < K; i += WIDTH<K>) {
    const auto chunk = *reinterpret_cast<const Chunk<float, WIDTH<K>>*>(from + i);
#pragma unroll
    for (int j = 0; j < WIDTH<K>; ++j) to[i + j] = chunk.at[j];
  }
}

template <int K>
__device__ __forceinline__ void store_shared(float* to, const float (&from)[K]) {
#pragma unroll
  for (int i = 0; i < K; i += WIDTH<K>) {
    Chunk<float, WIDTH<K>> chunk;
#pragma unroll
    for (int j = 0; j < WIDTH<K>; ++j) chunk.at[j] = from[i + j];
    *reinterpret_cast<Chunk<float, WIDTH<K>>*>(to + i) = chunk;
  }
}

// Sums v[0, COUNT) over GROUP lanes whose numbers differ by multiples of DISTANCE. Of the sums, the
// lane with number g in its group keeps [g · COUNT / GROUP, (g + 1) · COUNT / GROUP), at the start
// of v. In each step it sends the half that it does not keep. All lanes of the warp must call it.
template <int GROUP, int DISTANCE, int COUNT, int SIZE>
__device__ __forceinline__ void reduce_scatter(float (&v)[SIZE]) {
  if constexpr (GROUP > 1) {
    constexpr int HALF = COUNT / 2, OTHER = GROUP / 2 * DISTANCE;
    const bool upper = threadIdx.x & OTHER;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float keep = upper ? v[i + HALF] : v[i];
      const float send = upper ? v[i] : v[i + HALF];
      v[i] = keep + __shfl_xor_sync(0xffffffffu, send, OTHER);
    }
    reduce_scatter<GROUP / 2, DISTANCE, HALF>(v);
  }
}

// The E elements of x from `at` on, in fp32; zeros if they lie outside.
template <int E, typename T>
__device__ __forceinline__ void load_steps(const T* x, int64_t at, bool inside, float (&to)[E]) {
  Chunk<T, E> chunk{};
  if (inside) chunk = load_whole(reinterpret_cast<const Chunk<T, E>*>(x + at));
#pragma unroll
  for (int i = 0; i < E; ++i) to[i] = static_cast<float>(chunk.at[i]);
}

template <int E, typename T>
__device__ __forceinline__ void store_steps(T* x, int64_t at, const float (&from)[E]) {
  Chunk<T, E> chunk;
#pragma unroll
  for (int i = 0; i < E; ++i) chunk.at[i] = static_cast<T>(from[i]);
  *reinterpret_cast<Chunk<T, E>*>(x + at) = chunk;
}

// Calls visit(row, step, at, inside) for the chunks of E steps of a tile with ROWS rows, of which
// `rows` exist. at: the index of the chunk's first element in a tensor with `length` steps per row.
template <int ROWS, int E, typename F>
__device__ __forceinline__ void visit_tile(int64_t first_row, int rows, int t0, int length,
                                           F visit) {
  constexpr int PER_ROW = TILE / E;
  for (int c = threadIdx.x; c < ROWS * PER_ROW; c += blockDim.x) {
    const int row = c / PER_ROW, step = c % PER_ROW * E;
    visit(row, step, (first_row + row) * length + t0 + step, row < rows && t0 + step < length);
  }
}

// B and C of a tile, (step, state): threads of one channel read adjacent states.
template <int N>
struct Matrices {
  alignas(16) float B[TILE][N + 4], C[TILE][N + 4];

  template <int E, typename T>
  __device__ __forceinline__ void load(const Inputs<T>& in, int batch, int t0) {
    visit_tile<N, E>(int64_t{batch} * N, N, t0, in.length,
                     [&](int state, int step, int64_t at, bool inside) {
                       float b[E], c[E];
                       load_steps<E>(in.B, at, inside, b);
                       load_steps<E>(in.C, at, inside, c);
                       for (int i = 0; i < E; ++i) {
                         B[step + i][state] = b[i];
                         C[step + i][state] = c[i];
                       }
                     });
  }
};

// The part of the problem that a block computes: 32 channels of a batch entry, in one segment.
struct Part {
  int batch, segment, channel, channels;  // the first channel; how many of the 32 exist
  int64_t row;                            // the first channel's in (batch · channels, length)

  template <typename T>
  __device__ Part(const Inputs<T>& in, int segments) {
    const int groups = ceil_div(in.channels, CHANNELS);
    channel = static_cast<int>(blockIdx.x % groups) * CHANNELS;
    segment = static_cast<int>(blockIdx.x / groups % segments);
    batch = static_cast<int>(blockIdx.x / groups / segments);
    channels = min(CHANNELS, in.channels - channel);
    row = int64_t{batch} * in.channels + channel;
  }

  // The index of channel c of the part in (batch, segments, channels).
  template <typename T>
  __device__ int64_t index(const Inputs<T>& in, int segments, int c) const {
    return (int64_t{batch} * segments + segment) * in.channels + channel + c;
  }
};

// Loads A · log2(e) of states [first, first + K) of channel c of the part, because a power of 2 is
// one instruction. Channels that do not exist get 0.
template <int N, int K, typename T>
__device__ __forceinline__ void load_rates(const Inputs<T>& in, const Part& part, int c, int first,
                                           float (&rate)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    rate[k] = c < part.channels ? in.A[(part.channel + c) * N + first + k] * LOG2_E : 0.0f;
  }
}

// ---------------------------------------------------------------------------------------------
// Scans segments of time independently, as if the states before them were 0. The true last state is
// then h + exp(A · Σ delta) · h_start: the product of all factors is one exponential. GRADIENT:
// also computes the adjoint at the segment's start, from the segment alone.

template <typename T, int N, int E, bool GRADIENT>
__global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    segment_states_kernel(Inputs<T> in, const T* __restrict__ gy, float* __restrict__ ends,
                          float* __restrict__ adjoints, float* __restrict__ totals, Segments n) {
  constexpr int K = N / LANES;
  __shared__ alignas(16) float deltas[CHANNELS][STRIDE], pushes[CHANNELS][STRIDE];
  __shared__ alignas(16) float gs[GRADIENT ? CHANNELS : 1][STRIDE];
  __shared__ Matrices<N> tile;
  const Part part(in, n.count);
  const int c = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  float rate[K], h[K] = {}, adjoint[K] = {}, product[K], total = 0;
  load_rates<N>(in, part, c, lane * K, rate);
  for (float& p : product) p = 1;
  const int end = min((part.segment + 1) * n.tiles * TILE, in.length);
  for (int t0 = part.segment * n.tiles * TILE; t0 < end; t0 += TILE) {
    __syncthreads();  // all threads have read the tile before
    tile.template load<E>(in, part.batch, t0);
    visit_tile<CHANNELS, E>(
        part.row, part.channels, t0, in.length, [&](int row, int step, int64_t at, bool inside) {
          float u[E], delta[E], g[E], z[E];
          load_steps<E>(in.u, at, inside, u);
          load_steps<E>(in.delta, at, inside, delta);
          if constexpr (GRADIENT) {
            load_steps<E>(gy, at, inside, g);
            load_steps<E>(in.z, at, inside, z);
          }
          for (int i = 0; i < E; ++i) {
            delta[i] = inside ? softplus(delta[i] + in.bias[part.channel + row]) : 0;
            u[i] *= delta[i];
            if constexpr (GRADIENT) g[i] *= z[i] * sigmoid(z[i]);
          }
          store_shared(&deltas[row][step], delta);
          store_shared(&pushes[row][step], u);
          if constexpr (GRADIENT) store_shared(&gs[row][step], g);
        });
    __syncthreads();  // the tile is complete
    for (int t = 0; t < TILE; ++t) {
      float B[K], C[K];
      load_shared(&tile.B[t][lane * K], B);
      load_shared(&tile.C[t][lane * K], C);
      const float delta = deltas[c][t], push = pushes[c][t];
      total += delta;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const float a = ptx::exp2_approx(delta * rate[k]);
        h[k] = a * h[k] + push * B[k];
        if constexpr (GRADIENT) {
          product[k] *= a;
          adjoint[k] += product[k] * (gs[c][t] * C[k]);
        }
      }
    }
  }
  if (c >= part.channels) return;
  const int64_t at = part.index(in, n.count, c);
  if (lane == 0) totals[at] = total;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    ends[at * N + lane * K + k] = h[k];
    if constexpr (GRADIENT) adjoints[at * N + lane * K + k] = adjoint[k];
  }
}

// Replaces the last states that segments computed alone by the true start of each: a scan over the
// segments, one thread per state. REVERSE: from the last segment to the first, for adjoints.
template <int N, bool REVERSE>
__global__ void __launch_bounds__(BLOCK)
    carry_kernel(float* __restrict__ states, const float* __restrict__ totals,
                 const float* __restrict__ A, int channels, int64_t count, int segments) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;  // of (batch, channels, N)
  if (i >= count) return;
  const int64_t per_segment = int64_t{channels} * N;
  const int64_t batch = i / per_segment, of_segment = i % per_segment;
  const float rate = A[of_segment] * LOG2_E;
  float run = 0;
#pragma unroll 4
  for (int s = 0; s < segments; ++s) {
    const int64_t at = batch * segments + (REVERSE ? segments - 1 - s : s);
    float& state = states[at * per_segment + of_segment];
    const float alone = state;
    const float total = totals[at * channels + of_segment / N];
    state = run;
    run = alone + ptx::exp2_approx(total * rate) * run;
  }
}

// ---------------------------------------------------------------------------------------------

#define ARGUMENTS                                                                          \
  const Tensor &u, const Tensor &delta, const Tensor &A, const Tensor &B, const Tensor &C, \
      const Tensor &D, const Tensor &z, const Tensor &bias
#define PASS_ARGUMENTS u, delta, A, B, C, D, z, bias

inline void check_arguments(ARGUMENTS) {
  const auto weight = [&](const Tensor& t, const char* name, int64_t rank) {
    check(t, name).on_gpu().dtype({ScalarType::Float}).rank(rank).contiguous();
    check(t, name).same_device(u, "u").size(0, u.size(1));
  };
  check(u, "u").on_gpu().floating().rank(3).contiguous();
  check(delta, "delta").on_gpu().like(u, "u").contiguous();
  check(z, "z").on_gpu().like(u, "u").contiguous();
  weight(A, "A", 2);
  weight(D, "D", 1);
  weight(bias, "bias", 1);
  STD_TORCH_CHECK(A.size(1) == 8 || A.size(1) == 16,
                  "A: expected 8 or 16 states, its columns, got ", A.size(1));
  const auto matrices = [&](const Tensor& t, const char* name) {
    check(t, name).on_gpu().dtype({u.scalar_type()}).rank(3).contiguous().same_device(u, "u");
    check(t, name).size(0, u.size(0)).size(1, A.size(1)).size(2, u.size(2));
  };
  matrices(B, "B");
  matrices(C, "C");
  // 32 bits count steps and the elements of A, with a segment or a block more.
  STD_TORCH_CHECK(u.size(2) <= 1 << 30, "u: expected at most 2^30 steps, got ", u.size(2));
  STD_TORCH_CHECK(A.numel() <= 1 << 30, "A: expected at most 2^30 elements, got ", A.numel());
}

template <typename T>
Inputs<T> inputs_of(ARGUMENTS) {
  return {data<T>(u),
          data<T>(delta),
          data<T>(B),
          data<T>(C),
          data<T>(z),
          data<float>(A),
          data<float>(D),
          data<float>(bias),
          static_cast<int>(u.size(0)),
          static_cast<int>(u.size(1)),
          static_cast<int>(u.size(2))};
}

// Calls f(zero, E, N): the type of the elements, the elements per chunk and the states.
template <typename F>
void dispatch(std::initializer_list<const Tensor*> rows, const Tensor& A, F&& f) {
  const Tensor& u = **rows.begin();
  dispatch_floating(u, [&](auto zero) {
    dispatch_chunk<decltype(zero)>(u.size(2), rows, [&](auto chunk) {
      if (A.size(1) == 8) return f(zero, chunk, std::integral_constant<int, 8>{});
      f(zero, chunk, std::integral_constant<int, 16>{});
    });
  });
}

// The size of a grid with one block per 32 channels, segment and batch entry.
inline unsigned part_grid(const Tensor& u, int64_t segments) {
  return grid_size(ceil_div<int64_t>(u.size(1), CHANNELS) * u.size(0) * segments, "u");
}

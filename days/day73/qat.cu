// Day 73: fake quantisation, and the gradient of its step size
//
//   v = x / s      q = round(v), ties to even      y = s · clamp(q, qmin, qmax)
//   gx = g where qmin <= q <= qmax, else 0
//   gs = factor · Σ g · (q - v where qmin <= q <= qmax, else qmin or qmax)     the sum of a row
//
// x, y, g, gx: (rows, cols) fp32, fp16 or bf16. s, gs: (rows) fp32, or (1) for the whole tensor,
// which is then computed as one long row. In bf16 the forward pass moves 4 bytes per element, the
// backward pass 6; at 4.2 TB/s an H200's lanes can execute 31 and 47 instructions per element.
//
//   forward v1 elements     one element per thread, which divides to find its row
//   forward v2 chunks       16 bytes per load, 4 loads in flight; a warp or blocks per row
//   backward v1 terms       the terms of gs are stored, a second kernel sums them: 14 bytes
//   backward v2 one_pass    one block per row, its terms summed in registers: 6 bytes
//   backward v3 chunks      loads and teams as in forward v2; one launch, also for one long row
//
// Run: python run_day.py 73

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day73/teams.cuh"

#include <tuple>
#include <type_traits>

// ---------------------------------------------------------------------------------------------
// What all rungs share: the arithmetic of one element.

struct Levels {
  float low, high;  // qmin and qmax
};

// The level of v = x / s. A NaN fails both comparisons and stays NaN.
__device__ __forceinline__ float level_of(float v, Levels levels) {
  const float q = rintf(v);
  return q < levels.low ? levels.low : q > levels.high ? levels.high : q;
}

// Adds the element's term of gs to `sum`, and returns gx.
__device__ __forceinline__ float differentiate(float g, float v, Levels levels, float& sum) {
  const float q = rintf(v);
  float slope = q - v;
  if (q < levels.low) slope = levels.low;
  if (q > levels.high) slope = levels.high;
  sum += g * slope;
  return q >= levels.low && q <= levels.high ? g : 0;  // 0 for NaN
}

Levels check_arguments(const Tensor& x, const Tensor& s, int64_t qmin, int64_t qmax) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(s, "s").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous().same_device(x, "x");
  STD_TORCH_CHECK(s.size(0) == 1 || s.size(0) == x.size(0), "s: expected size 1 or ", x.size(0),
                  ", the rows of x, got ", s.size(0));
  STD_TORCH_CHECK(-32768 <= qmin && qmin <= 0, "qmin: expected -32768 to 0, got ", qmin);
  STD_TORCH_CHECK(1 <= qmax && qmax <= 65535, "qmax: expected 1 to 65535, got ", qmax);
  return {static_cast<float>(qmin), static_cast<float>(qmax)};
}

// ---------------------------------------------------------------------------------------------
// forward v1: thread i handles element i.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    fake_quantize_v1_elements_kernel(const T* __restrict__ x, const float* __restrict__ s,
                                     T* __restrict__ y, Rows n, Levels levels) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n.rows * n.cols) return;
  const float step = s[i / n.cols];
  y[i] = static_cast<T>(step * level_of(static_cast<float>(x[i]) * (1 / step), levels));
}

Tensor fake_quantize_v1_elements(const Tensor& x, const Tensor& s, int64_t qmin, int64_t qmax) {
  const Levels levels = check_arguments(x, s, qmin, qmax);
  return output_like(x, "fake_quantize_v1_elements", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const unsigned grid = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
    fake_quantize_v1_elements_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<float>(s), y, rows_of(x, s), levels);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a team of threads has one row, or a segment of a long one. It divides once, and
// each thread has STEPS chunks of 16 bytes in flight: 64 bytes.

constexpr int STEPS = 4;  // chunks of each tensor

template <typename T, int N, int WIDTH>
__global__ void __launch_bounds__(BLOCK)
    fake_quantize_v2_chunks_kernel(const Chunk<T, N>* __restrict__ x, const float* __restrict__ s,
                                   Chunk<T, N>* __restrict__ y, Segments n, Levels levels) {
  const Team<WIDTH> team(n);
  if (team.row >= n.rows) return;
  RawChunk<Chunk<T, N>> loaded[STEPS];
  const auto load = [&](int c) {
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      if (c + k * WIDTH < team.count) loaded[k] = load_raw(x + team.start + c + k * WIDTH);
    }
  };
  const float step = s[team.row];
  load(team.lane);
  const float inverse = 1 / step;  // it waits for s: the chunks are in flight by now
  for (int c = team.lane; c < team.count; c += STEPS * WIDTH) {
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      if (c + k * WIDTH >= team.count) break;
      Chunk<T, N> chunk = loaded[k].chunk();
#pragma unroll
      for (T& one : chunk.at) {
        one = static_cast<T>(step * level_of(static_cast<float>(one) * inverse, levels));
      }
      y[team.start + c + k * WIDTH] = chunk;
    }
    load(c + STEPS * WIDTH);
  }
}

Tensor fake_quantize_v2_chunks(const Tensor& x, const Tensor& s, int64_t qmin, int64_t qmax) {
  const Levels levels = check_arguments(x, s, qmin, qmax);
  return output_like(x, "fake_quantize_v2_chunks", [&](auto zero, auto* y) {
    using T = decltype(zero);
    dispatch_team<T>(x, s, {&x}, [&](auto size, auto width, Segments n, unsigned grid) {
      using C = Chunk<T, size()>;
      fake_quantize_v2_chunks_kernel<T, size(), width()><<<grid, BLOCK, 0, current_stream(x)>>>(
          data<C>(x), data<float>(s), reinterpret_cast<C*>(y), n, levels);
    });
  });
}

// ---------------------------------------------------------------------------------------------
// backward v1: thread i handles element i and stores its term of gs, in fp32. A second kernel, with
// a block per row, adds the terms. In bf16 the two move 4 + 2 + 4 and 4 bytes per element.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    backward_v1_elements_kernel(const T* __restrict__ g, const T* __restrict__ x,
                                const float* __restrict__ s, T* __restrict__ gx,
                                float* __restrict__ terms, Rows n, Levels levels) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n.rows * n.cols) return;
  const float v = static_cast<float>(x[i]) * (1 / s[i / n.cols]);
  float term = 0;
  gx[i] = static_cast<T>(differentiate(static_cast<float>(g[i]), v, levels, term));
  terms[i] = term;
}

// Returns the block's sum to all of its threads. The order of additions depends only on BLOCK.
// All threads of the block must call it.
__device__ float block_sum(float value) {
  __shared__ float sums[WARPS];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  return tree_reduce(sums, [](float a, float b) { return a + b; });
}

__global__ void __launch_bounds__(BLOCK)
    backward_v1_sum_kernel(const float* __restrict__ terms, float* __restrict__ gs, Rows n,
                           float factor) {
  float sum = 0;
  for (int64_t c = threadIdx.x; c < n.cols; c += BLOCK) sum += terms[blockIdx.x * n.cols + c];
  sum = block_sum(sum);
  if (threadIdx.x == 0) gs[blockIdx.x] = factor * sum;
}

using Gradients = std::tuple<Tensor, Tensor>;  // gx, gs

// What the launchers share: checks, allocates, and calls launch(zero, gx, gs, rows, levels).
template <typename F>
Gradients backward(const Tensor& g, const Tensor& x, const Tensor& s, int64_t qmin, int64_t qmax,
                   const char* kernel, F&& launch) {
  const Levels levels = check_arguments(x, s, qmin, qmax);
  check(g, "g").on_gpu().like(x, "x").contiguous();
  const DeviceGuard guard(x);
  Tensor gx = allocate_like(x);
  if (x.numel() == 0) return {gx, allocate_zeros(s, {s.size(0)}, ScalarType::Float)};
  Tensor gs = allocate_like(s);
  dispatch_floating(x, [&](auto zero) {
    launch(zero, mutable_data<decltype(zero)>(gx), mutable_data<float>(gs), rows_of(x, s), levels);
  });
  check_launch(kernel);
  return {gx, gs};
}

#define BACKWARD_ARGUMENTS \
  const Tensor &g, const Tensor &x, const Tensor &s, int64_t qmin, int64_t qmax, double factor

Gradients fake_quantize_backward_v1_terms(BACKWARD_ARGUMENTS) {
  return backward(
      g, x, s, qmin, qmax, "fake_quantize_backward_v1",
      [&](auto zero, auto* gx, float* gs, Rows n, Levels levels) {
        using T = decltype(zero);
        const Tensor terms = allocate(x, {x.numel()}, ScalarType::Float);
        backward_v1_elements_kernel<T>
            <<<grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x"), BLOCK, 0, current_stream(x)>>>(
                data<T>(g), data<T>(x), data<float>(s), gx, mutable_data<float>(terms), n, levels);
        backward_v1_sum_kernel<<<grid_size(n.rows, "x"), BLOCK, 0, current_stream(x)>>>(
            data<float>(terms), gs, n, static_cast<float>(factor));
      });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the block of a row also computes its gx, so the terms stay in registers.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    backward_v2_one_pass_kernel(const T* __restrict__ g, const T* __restrict__ x,
                                const float* __restrict__ s, T* __restrict__ gx,
                                float* __restrict__ gs, Rows n, Levels levels, float factor) {
  const int64_t start = blockIdx.x * n.cols;
  const float inverse = 1 / s[blockIdx.x];
  float sum = 0;
  for (int64_t i = start + threadIdx.x; i < start + n.cols; i += BLOCK) {
    const float v = static_cast<float>(x[i]) * inverse;
    gx[i] = static_cast<T>(differentiate(static_cast<float>(g[i]), v, levels, sum));
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) gs[blockIdx.x] = factor * sum;
}

Gradients fake_quantize_backward_v2_one_pass(BACKWARD_ARGUMENTS) {
  return backward(
      g, x, s, qmin, qmax, "fake_quantize_backward_v2",
      [&](auto zero, auto* gx, float* gs, Rows n, Levels levels) {
        using T = decltype(zero);
        backward_v2_one_pass_kernel<T><<<grid_size(n.rows, "x"), BLOCK, 0, current_stream(x)>>>(
            data<T>(g), data<T>(x), data<float>(s), gx, gs, n, levels, static_cast<float>(factor));
      });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the teams of forward v2, with chunks of g and x: 128 bytes in flight per thread.
// Where a row has several teams, each stores its sum, and the last one adds them all (day 18).

struct StepGradient {
  float* gs;
  float* partial;     // (rows, splits): the sum of each segment
  unsigned* arrived;  // (rows): how many segments are summed, at first 0
  float factor;
};

// sum: a thread's terms of its team's segment. Stores the sums of rows that are complete. All
// threads of the block must call it.
template <int WIDTH>
__device__ void finish(float sum, int64_t row, const Segments& n, const StepGradient& to) {
  if constexpr (WIDTH == 32) {
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0 && row < n.rows) to.gs[row] = to.factor * sum;
  } else {
    __shared__ bool last;
    sum = block_sum(sum);
    if (n.splits > 1) {
      if (threadIdx.x == 0) {
        to.partial[blockIdx.x] = sum;
        __threadfence();  // a block that reads the new count also reads this sum
        last = atomicAdd(&to.arrived[row], 1) == n.splits - 1;
      }
      __syncthreads();  // all threads wait for thread 0's `last`
      if (!last) return;
      __threadfence();  // no sum below is read before the count
      sum = 0;
#pragma unroll 16
      for (unsigned k = threadIdx.x; k < n.splits; k += BLOCK) {
        sum += to.partial[row * n.splits + k];
      }
      sum = block_sum(sum);
    }
    if (threadIdx.x == 0) to.gs[row] = to.factor * sum;
  }
}

template <typename T, int N, int WIDTH>
__global__ void __launch_bounds__(BLOCK, 4)
    backward_v3_chunks_kernel(const Chunk<T, N>* __restrict__ g, const Chunk<T, N>* __restrict__ x,
                              const float* __restrict__ s, Chunk<T, N>* __restrict__ gx,
                              StepGradient to, Segments n, Levels levels) {
  const Team<WIDTH> team(n);
  RawChunk<Chunk<T, N>> from_g[STEPS], from_x[STEPS];
  const auto load = [&](int c) {
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      if (c + k * WIDTH >= team.count) break;
      from_g[k] = load_raw(g + team.start + c + k * WIDTH);
      from_x[k] = load_raw(x + team.start + c + k * WIDTH);
    }
  };
  const float step = s[min(team.row, n.rows - 1)];
  load(team.lane);
  const float inverse = 1 / step;
  float sum = 0;
  for (int c = team.lane; c < team.count; c += STEPS * WIDTH) {
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      if (c + k * WIDTH >= team.count) break;
      Chunk<T, N> upstream = from_g[k].chunk();
      const Chunk<T, N> of_x = from_x[k].chunk();
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const float v = static_cast<float>(of_x.at[e]) * inverse;
        upstream.at[e] =
            static_cast<T>(differentiate(static_cast<float>(upstream.at[e]), v, levels, sum));
      }
      gx[team.start + c + k * WIDTH] = upstream;
    }
    load(c + STEPS * WIDTH);
  }
  finish<WIDTH>(sum, team.row, n, to);
}

Gradients fake_quantize_backward_v3_chunks(BACKWARD_ARGUMENTS) {
  return backward(
      g, x, s, qmin, qmax, "fake_quantize_backward_v3",
      [&](auto zero, auto* gx, float* gs, Rows, Levels levels) {
        using T = decltype(zero);
        dispatch_team<T>(x, s, {&g, &x}, [&](auto size, auto width, Segments n, unsigned grid) {
          using C = Chunk<T, size()>;
          const bool split = n.splits > 1;
          const Tensor partial = allocate(x, {split ? int64_t{grid} : 0}, ScalarType::Float);
          const Tensor arrived = allocate_zeros(x, {split ? n.rows : 0}, ScalarType::Int);
          const StepGradient to{gs, mutable_data<float>(partial), mutable_data<unsigned>(arrived),
                                static_cast<float>(factor)};
          backward_v3_chunks_kernel<T, size(), width()><<<grid, BLOCK, 0, current_stream(x)>>>(
              data<C>(g), data<C>(x), data<float>(s), reinterpret_cast<C*>(gx), to, n, levels);
        });
      });
}

// ---------------------------------------------------------------------------------------------

#define FORWARD "(Tensor x, Tensor s, int qmin, int qmax) -> Tensor"
#define BACKWARD \
  "(Tensor g, Tensor x, Tensor s, int qmin, int qmax, float factor) -> (Tensor, Tensor)"

RUNG(day73, fake_quantize_v1_elements, FORWARD);
RUNG(day73, fake_quantize_v2_chunks, FORWARD);
RUNG(day73, fake_quantize_backward_v1_terms, BACKWARD);
RUNG(day73, fake_quantize_backward_v2_one_pass, BACKWARD);
RUNG(day73, fake_quantize_backward_v3_chunks, BACKWARD);

// Day 98: deployment: gated RMSNorm as an operator that leaves Python
//
//   y = w x / √(mean(x²) + ε) · silu(z)      x, z, y: (…, D)   w: (D)   silu(z) = z / (1 + e^-z)
//
// The norm of a gated layer, as Mamba 2 has it behind its scan. Bytes: x and z are read and y is
// written, 3 · rows · D · sizeof(T), 1.6 GB for 65536 rows of 4096 in bf16. Operations: about 10
// per element and one square root per row, so memory bandwidth is the limit. The rungs:
//
//   v1 separate   a kernel normalises, a second one gates: 5 tensors of x's size instead of 3
//   v2 fused      one kernel, one block per row; x is read for the sum and again for the result
//   v3 chunks     16 bytes per load; rows stay in registers, and a warp suffices for short ones
//
// v3 is what is deployed: any number of rows, so that one exported model serves any batch. Around
// it: model.py exports and compiles, serve.cpp runs the result, setup.py and package.py make a
// wheel, proof.py does all of that and checks it. Run: python run_day.py 98

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/chunk.cuh"        // taught in days 35 and 42
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

constexpr int WARP = 32;
constexpr int BLOCK = 256;  // threads: 8 warps
constexpr int HELD = 2;     // chunks of x, and of z, that a thread of v3 keeps in registers

__device__ inline float silu(float z) {
  return z / (1.0f + expf(-z));
}

__device__ inline float inverse_rms(float square, int64_t cols, float eps) {
  return rsqrtf(square / static_cast<float>(cols) + eps);
}

__device__ inline float sum(float (&partial)[BLOCK]) {
  return tree_reduce(partial, [](float a, float b) { return a + b; });
}

// No kernel runs on arguments that have not passed this. package.py checks the same shapes of
// tensors without memory, so that an export fails where a call would.
void check_arguments(const Tensor& x, const Tensor& z, const Tensor& weight, double eps) {
  check(x, "x").on_gpu().floating().contiguous();
  STD_TORCH_CHECK(x.dim() >= 1, "x: expected rows, got a tensor without dimensions");
  check(z, "z").on_gpu().contiguous().like(x, "x");
  check(weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
  check(weight, "weight").size(0, x.size(x.dim() - 1)).same_device(x, "x");
  STD_TORCH_CHECK(eps >= 0 && eps < 1e30, "eps: expected a number in [0, 1e30), got ", eps);
}

int64_t cols_of(const Tensor& x) {
  return x.size(x.dim() - 1);
}

// ---------------------------------------------------------------------------------------------
// v1: two kernels. n holds the normalised rows in between, in the dtype of x.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    rms_norm_kernel(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ n,
                    int64_t cols, float eps) {
  __shared__ float partial[BLOCK];
  const int64_t begin = int64_t{blockIdx.x} * cols;
  float square = 0;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float v = static_cast<float>(x[begin + c]);
    square += v * v;
  }
  partial[threadIdx.x] = square;
  const float r = inverse_rms(sum(partial), cols, eps);
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float v = static_cast<float>(x[begin + c]);
    n[begin + c] = static_cast<T>(v * r * static_cast<float>(weight[c]));
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    gate_kernel(const T* __restrict__ n, const T* __restrict__ z, T* __restrict__ y,
                int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < count) y[i] = static_cast<T>(static_cast<float>(n[i]) * silu(static_cast<float>(z[i])));
}

Tensor gated_norm_v1_separate(const Tensor& x, const Tensor& z, const Tensor& weight, double eps) {
  check_arguments(x, z, weight, eps);
  const auto normalise = [&](auto zero, auto* n) {
    using T = decltype(zero);
    const unsigned blocks = grid_size(x.numel() / cols_of(x), "x");
    rms_norm_kernel<T><<<blocks, BLOCK, 0, current_stream(x)>>>(data<T>(x), data<T>(weight), n,
                                                                cols_of(x), float(eps));
  };
  const Tensor n = output_like(x, "rms_norm", normalise);
  return output_like(x, "gate", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const unsigned blocks = grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
    gate_kernel<T><<<blocks, BLOCK, 0, current_stream(x)>>>(data<T>(n), data<T>(z), y, x.numel());
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the gate is applied where the norm is computed, so n is neither written nor read,
// nor rounded to T. Of the tensors of x's size, x itself is still read twice; the second time it
// comes from a cache, for rows that fit there.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    gated_norm_v2_kernel(const T* __restrict__ x, const T* __restrict__ z,
                         const T* __restrict__ weight, T* __restrict__ y, int64_t cols, float eps) {
  __shared__ float partial[BLOCK];
  const int64_t begin = int64_t{blockIdx.x} * cols;
  float square = 0;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float v = static_cast<float>(x[begin + c]);
    square += v * v;
  }
  partial[threadIdx.x] = square;
  const float r = inverse_rms(sum(partial), cols, eps);
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    const float v = static_cast<float>(x[begin + c]), gate = static_cast<float>(z[begin + c]);
    y[begin + c] = static_cast<T>(v * r * static_cast<float>(weight[c]) * silu(gate));
  }
}

Tensor gated_norm_v2_fused(const Tensor& x, const Tensor& z, const Tensor& weight, double eps) {
  check_arguments(x, z, weight, eps);
  return output_like(x, "gated_norm_v2_fused", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const unsigned blocks = grid_size(x.numel() / cols_of(x), "x");
    gated_norm_v2_kernel<T><<<blocks, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(z), data<T>(weight), y, cols_of(x), float(eps));
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: loads of 16 bytes, all of which are in flight before the sum is needed, x read
// once, and a TEAM of 32 threads for a row that its registers hold. A server's batch may be one
// row or many thousand: the grid follows it, and nothing else depends on it.

template <typename T, int N>
using Raw = RawChunk<Chunk<T, N>>;

// The sum of the values of the TEAM threads of a row, in all of them.
template <int TEAM>
__device__ float team_sum(float value) {
  value = warp_sum(value);
  if constexpr (TEAM > WARP) {
    __shared__ float parts[TEAM / WARP];
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();  // all warps have written their sums before any thread adds them
    value = 0;
#pragma unroll
    for (int w = 0; w < TEAM / WARP; ++w) value += parts[w];
  }
  return value;
}

template <typename T, int N>
__device__ float sum_of_squares(const Raw<T, N>& raw) {
  const Chunk<float, N> x = widened(raw);
  float square = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) square += x.at[i] * x.at[i];
  return square;
}

template <typename T, int N>
__device__ Chunk<T, N> gated(const Raw<T, N>& x_raw, const Raw<T, N>& z_raw, const Raw<T, N>& w_raw,
                             float r) {
  const Chunk<float, N> x = widened(x_raw), z = widened(z_raw), w = widened(w_raw);
  Chunk<T, N> y;
#pragma unroll
  for (int i = 0; i < N; ++i) y.at[i] = static_cast<T>(x.at[i] * r * w.at[i] * silu(z.at[i]));
  return y;
}

// The first HELD chunks of a thread stay in registers; what a longer row has beyond them is read a
// second time.
template <typename T, int N, int TEAM>
__global__ void __launch_bounds__(BLOCK)
    gated_norm_v3_kernel(const T* __restrict__ x, const T* __restrict__ z,
                         const T* __restrict__ weight, T* __restrict__ y, int64_t rows,
                         int64_t cols, float eps) {
  const int64_t row = int64_t{blockIdx.x} * (BLOCK / TEAM) + threadIdx.x / TEAM;
  if (row >= rows) return;  // a whole warp, or no thread
  const auto chunks = [&](const T* p) { return reinterpret_cast<const Chunk<T, N>*>(p); };
  const auto* xs = chunks(x + row * cols);
  const auto* zs = chunks(z + row * cols);
  const auto* ws = chunks(weight);
  auto* ys = reinterpret_cast<Chunk<T, N>*>(y + row * cols);
  const int64_t first = threadIdx.x % TEAM, end = cols / N;

  Raw<T, N> held_x[HELD], held_z[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    if (first + k * TEAM < end) {
      held_x[k] = load_raw(xs + first + k * TEAM);
      held_z[k] = load_raw(zs + first + k * TEAM);
    }
  }
  float square = 0;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    if (first + k * TEAM < end) square += sum_of_squares<T, N>(held_x[k]);
  }
  for (int64_t c = first + HELD * TEAM; c < end; c += TEAM) {
    square += sum_of_squares<T, N>(load_raw(xs + c));
  }
  const float r = inverse_rms(team_sum<TEAM>(square), cols, eps);
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const int64_t c = first + k * TEAM;
    if (c < end) ys[c] = gated<T, N>(held_x[k], held_z[k], load_raw(ws + c), r);
  }
  for (int64_t c = first + HELD * TEAM; c < end; c += TEAM) {
    ys[c] = gated<T, N>(load_raw(xs + c), load_raw(zs + c), load_raw(ws + c), r);
  }
}

Tensor gated_norm_v3_chunks(const Tensor& x, const Tensor& z, const Tensor& weight, double eps) {
  check_arguments(x, z, weight, eps);
  return output_like(x, "gated_norm_v3_chunks", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const int64_t cols = cols_of(x), rows = x.numel() / cols;
    dispatch_chunk<T>(cols, {&x, &z, &weight}, [&](auto n) {
      constexpr int N = decltype(n)::value;
      const auto launch = [&](auto team) {
        constexpr int TEAM = decltype(team)::value;
        const unsigned blocks = grid_size(ceil_div<int64_t>(rows, BLOCK / TEAM), "x");
        gated_norm_v3_kernel<T, N, TEAM><<<blocks, BLOCK, 0, current_stream(x)>>>(
            data<T>(x), data<T>(z), data<T>(weight), y, rows, cols, float(eps));
      };
      // A warp suffices for rows that its registers hold.
      if (cols <= int64_t{WARP} * HELD * N) {
        launch(std::integral_constant<int, WARP>{});
      } else {
        launch(std::integral_constant<int, BLOCK>{});
      }
    });
  });
}

// A schema is all that an exported model knows of an operator. It also says what is changed: here
// nothing, since no type has a mark such as Tensor(a!).
RUNG(day98, gated_norm_v1_separate, "(Tensor x, Tensor z, Tensor weight, float eps) -> Tensor");
RUNG(day98, gated_norm_v2_fused, "(Tensor x, Tensor z, Tensor weight, float eps) -> Tensor");
RUNG(day98, gated_norm_v3_chunks, "(Tensor x, Tensor z, Tensor weight, float eps) -> Tensor");

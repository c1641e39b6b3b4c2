// Day 33: a diffusion step, with random numbers that are drawn where they are used
//
//   noise addition   y[r, i] = signal[r] · x[r, i] + noise[r] · z[r, i]        x, y: (rows, cols)
//   denoising step   y[i] = c[0] · x[i] + c[1] · e[i] + c[2] · z[i]            e: predicted noise
//
// z are standard normal numbers: Philox 4x32-10 makes four random words of a seed and a counter,
// Box and Muller's formula makes two normal numbers of two words. Bytes per element of T: x in and
// y out, 2 · sizeof(T); the denoising step also reads e. Operations: 20 multiplications of 32 × 32
// to 64 bits per four elements, and a logarithm, a root, a sine and a cosine per two.
//
//   v1 separate        z goes to memory and back
//   v2 in_registers    one thread per four elements draws its own z
//   v3 packs           16 bytes per load and store
//   v4 fast_math       for 16-bit types: the special function unit instead of exact functions
//
// Run: python run_day.py 33

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <type_traits>

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// Random words. Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011).

// Scrambles a counter (x: lowest word) under a key: 10 rounds, each of which can be inverted, so
// that different counters give different results. The multipliers are the paper's; the key grows
// by the golden ratio and by sqrt(3) - 1, as fractions of 2^32.
__device__ uint4 philox4x32_10(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53u} * counter.x;
    const uint64_t b = uint64_t{0xcd9e8d57u} * counter.z;
    counter =
        make_uint4(static_cast<uint32_t>(b >> 32) ^ counter.y ^ key.x, static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ counter.w ^ key.y, static_cast<uint32_t>(a));
    key.x += 0x9e3779b9u;
    key.y += 0xbb67ae85u;
  }
  return counter;
}

// Four words of a stream, in the layout of cuRAND and of PyTorch's CUDA generator: `group` is what
// they call the subsequence, `step` a quarter of their offset.
__device__ uint4 random4(uint64_t seed, uint64_t step, uint64_t group) {
  return philox4x32_10(make_uint4(static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32),
                                  static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32)),
                       make_uint2(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)));
}

__global__ void philox_words_kernel(const uint64_t* __restrict__ seed,
                                    const uint64_t* __restrict__ step,
                                    const uint64_t* __restrict__ group, uint4* __restrict__ words,
                                    int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) words[i] = random4(seed[i], step[i], group[i]);
}

// The words of each (seed, step, group), int64 tensors of shape (n,), as an int32 tensor (n, 4).
Tensor philox_words(const Tensor& seed, const Tensor& step, const Tensor& group) {
  check(seed, "seed").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(step, "step").on_gpu().like(seed, "seed").contiguous();
  check(group, "group").on_gpu().like(seed, "seed").contiguous();
  const DeviceGuard guard(seed);
  const int64_t n = seed.size(0);
  Tensor words = torch::stable::new_empty(seed, {n, 4}, ScalarType::Int);
  if (n == 0) return words;
  philox_words_kernel<<<grid_size(ceil_div<int64_t>(n, BLOCK), "seed"), BLOCK, 0,
                        current_stream(seed)>>>(data<uint64_t>(seed), data<uint64_t>(step),
                                                data<uint64_t>(group), mutable_data<uint4>(words),
                                                n);
  check_launch("philox_words");
  return words;
}

// ---------------------------------------------------------------------------------------------
// Normal numbers. Box and Muller (1958): the first word gives the radius, the second the angle.
// The order, sine first, and the half that keeps the logarithm's argument above 0 are cuRAND's.

struct Exact {
  static __device__ float2 normal2(uint32_t first, uint32_t second) {
    const float u = fmaf(static_cast<float>(first), 0x1p-32f, 0x1p-33f);  // (0, 1]
    const float radius = sqrtf(-2.0f * logf(u));                          // at most 6.8
    float sine, cosine;
    sincospif(fmaf(static_cast<float>(second), 0x1p-31f, 0x1p-32f), &sine, &cosine);
    return make_float2(radius * sine, radius * cosine);
  }
};

// The same with one instruction of the special function unit per function. Its sine is accurate to
// 2^-21 in [-pi, pi] (CUDA's guide), so the word counts as signed: an angle less 2 pi.
struct Fast {
  static __device__ float2 normal2(uint32_t first, uint32_t second) {
    const float u = fmaf(static_cast<float>(first), 0x1p-32f, 0x1p-33f);
    const float square = fmaxf(-2.0f * __logf(u), 1e-30f);  // at u = 1, 0 · rsqrtf(0) would be NaN
    const float radius = square * rsqrtf(square);
    constexpr float UNIT = 3.14159265f * 0x1p-31f;  // of the angle, in radians
    float sine, cosine;
    __sincosf(fmaf(static_cast<float>(static_cast<int32_t>(second)), UNIT, UNIT / 2), &sine,
              &cosine);
    return make_float2(radius * sine, radius * cosine);
  }
};

// What a call draws from: the seed, and how many calls came before. On the GPU, so that a captured
// graph draws other numbers at each replay once the tensor has changed.
struct State {
  uint64_t seed, step;
};

// Elements 4 · group to 4 · group + 3 of the noise.
template <typename Math>
__device__ void normal4(const State& state, uint64_t group, float* z) {
  const uint4 words = random4(state.seed, state.step, group);
  const float2 a = Math::normal2(words.x, words.y), b = Math::normal2(words.z, words.w);
  z[0] = a.x;
  z[1] = a.y;
  z[2] = b.x;
  z[3] = b.y;
}

// ---------------------------------------------------------------------------------------------
// What is done with an element. Rows have own weights in the noise addition, where each image of
// a batch is at another time; the denoising step has one set, and its tensor counts as one row.

struct Weights {
  float x, e, z;
};

template <typename T>
struct NoiseAddition {
  const T* x;
  const float *signal, *noise;
  static constexpr bool HAS_E = false;
  static constexpr const T* e = nullptr;
  __device__ Weights weights(int64_t row) const { return {signal[row], 0, noise[row]}; }
};

template <typename T>
struct DenoisingStep {
  const T *x, *e;
  const float* coefficients;
  static constexpr bool HAS_E = true;
  __device__ Weights weights(int64_t) const {
    return {coefficients[0], coefficients[1], coefficients[2]};
  }
};

// A NoiseAddition has no e, and 0 · e must not become NaN there.
template <bool HAS_E>
__device__ float combined(const Weights& w, float x, float e, float z) {
  const float drawn = fmaf(w.x, x, w.z * z);
  return HAS_E ? fmaf(w.e, e, drawn) : drawn;
}

// ---------------------------------------------------------------------------------------------
// v1: z is written, and read again. Row r has the groups [r · groups, (r + 1) · groups), with
// groups = cols / 4, rounded up. A block has BLOCK groups of a row; the grid's y dimension, which
// is limited to 65,535, has the rows.

template <typename T>
__global__ void noise_kernel(const State* __restrict__ state, T* __restrict__ z, int64_t rows,
                             int64_t cols) {
  const int64_t groups = (cols + 3) / 4, g = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (g >= groups) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float drawn[4];
    normal4<Exact>(*state, row * groups + g, drawn);
    for (int k = 0; k < 4; ++k) {
      if (g * 4 + k < cols) z[row * cols + g * 4 + k] = static_cast<T>(drawn[k]);
    }
  }
}

template <typename T, typename Operation>
__global__ void combine_kernel(Operation o, const T* __restrict__ z, T* __restrict__ y,
                               int64_t rows, int64_t cols) {
  const int64_t col = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const int64_t i = row * cols + col;
    const float e = Operation::HAS_E ? static_cast<float>(o.e[i]) : 0.0f;
    y[i] = static_cast<T>(combined<Operation::HAS_E>(o.weights(row), static_cast<float>(o.x[i]), e,
                                                     static_cast<float>(z[i])));
  }
}

// A grid with `work` threads along x for each row.
dim3 rows_grid(int64_t rows, int64_t work) {
  const int64_t most = max_grid_y();
  return dim3(grid_size(ceil_div<int64_t>(work, BLOCK), "x"),
              static_cast<unsigned>(rows < most ? rows : most));
}

void check_state(const Tensor& state, const Tensor& x) {
  check(state, "state").on_gpu().dtype({ScalarType::Long}).rank(1).size(0, 2).contiguous();
  check(state, "state").same_device(x, "x");
}

// Standard normal numbers in the shape (rows, cols) and dtype of x: those that the noise addition
// of the same state adds, for the loss that compares a prediction with them.
Tensor noise(const Tensor& x, const Tensor& state) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check_state(state, x);
  const int64_t rows = x.size(0), cols = x.size(1);
  return output_like(x, "noise", [&](auto zero, auto* z) {
    using T = decltype(zero);
    noise_kernel<T><<<rows_grid(rows, ceil_div<int64_t>(cols, 4)), BLOCK, 0, current_stream(x)>>>(
        data<State>(state), z, rows, cols);
  });
}

struct Separate {
  template <typename T, typename Operation>
  static void launch(const Operation& o, const Tensor& x, const Tensor& state, T* y, int64_t rows,
                     int64_t cols) {
    Tensor z = torch::stable::empty_like(x);
    const int64_t groups = ceil_div<int64_t>(cols, 4);
    noise_kernel<T><<<rows_grid(rows, groups), BLOCK, 0, current_stream(x)>>>(
        data<State>(state), mutable_data<T>(z), rows, cols);
    combine_kernel<T>
        <<<rows_grid(rows, cols), BLOCK, 0, current_stream(x)>>>(o, data<T>(z), y, rows, cols);
  }
};

// Calls Rung::launch with the operation on (rows, cols); used by the launchers of all rungs.
template <typename Rung>
Tensor add_noise(const Tensor& x, const Tensor& signal, const Tensor& noise, const Tensor& state,
                 const char* name) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(signal, "signal").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(signal, "signal").same_device(x, "x").size(0, x.size(0));
  check(noise, "noise").on_gpu().like(signal, "signal").contiguous();
  check_state(state, x);
  return output_like(x, name, [&](auto zero, auto* y) {
    using T = decltype(zero);
    const NoiseAddition<T> o{data<T>(x), data<float>(signal), data<float>(noise)};
    Rung::template launch<T>(o, x, state, y, x.size(0), x.size(1));
  });
}

template <typename Rung>
Tensor ddpm_step(const Tensor& x, const Tensor& predicted, const Tensor& coefficients,
                 const Tensor& state, const char* name) {
  check(x, "x").on_gpu().floating().contiguous();
  check(predicted, "predicted").on_gpu().like(x, "x").contiguous();
  check(coefficients, "coefficients").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(coefficients, "coefficients").same_device(x, "x").size(0, 3);
  check_state(state, x);
  return output_like(x, name, [&](auto zero, auto* y) {
    using T = decltype(zero);
    const DenoisingStep<T> o{data<T>(x), data<T>(predicted), data<float>(coefficients)};
    Rung::template launch<T>(o, x, state, y, 1, x.numel());
  });
}

Tensor add_noise_v1_separate(const Tensor& x, const Tensor& signal, const Tensor& noise,
                             const Tensor& state) {
  return add_noise<Separate>(x, signal, noise, state, "add_noise_v1_separate");
}

Tensor ddpm_step_v1_separate(const Tensor& x, const Tensor& predicted, const Tensor& coefficients,
                             const Tensor& state) {
  return ddpm_step<Separate>(x, predicted, coefficients, state, "ddpm_step_v1_separate");
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a thread draws the noise of its four elements and adds it at once. Which thread
// draws has no influence on the numbers, because they depend on the element's place alone.

template <typename T, typename Operation>
__global__ void in_registers_kernel(Operation o, const State* __restrict__ state, T* __restrict__ y,
                                    int64_t rows, int64_t cols) {
  const int64_t groups = (cols + 3) / 4, g = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (g >= groups) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float z[4];
    normal4<Exact>(*state, row * groups + g, z);
    const Weights w = o.weights(row);
    for (int k = 0; k < 4; ++k) {
      if (g * 4 + k >= cols) break;
      const int64_t i = row * cols + g * 4 + k;
      const float e = Operation::HAS_E ? static_cast<float>(o.e[i]) : 0.0f;
      y[i] = static_cast<T>(combined<Operation::HAS_E>(w, static_cast<float>(o.x[i]), e, z[k]));
    }
  }
}

struct InRegisters {
  template <typename T, typename Operation>
  static void launch(const Operation& o, const Tensor& x, const Tensor& state, T* y, int64_t rows,
                     int64_t cols) {
    in_registers_kernel<T>
        <<<rows_grid(rows, ceil_div<int64_t>(cols, 4)), BLOCK, 0, current_stream(x)>>>(
            o, data<State>(state), y, rows, cols);
  }
};

Tensor add_noise_v2_in_registers(const Tensor& x, const Tensor& signal, const Tensor& noise,
                                 const Tensor& state) {
  return add_noise<InRegisters>(x, signal, noise, state, "add_noise_v2_in_registers");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: 16 bytes per load and store, PACKS of them in flight per thread and input. A pack
// has one group of four fp32 elements, or two of 16-bit elements.

constexpr int PACKS = 2;  // per thread: the round keys are computed once for all

template <typename T, typename Math, typename Operation>
__global__ void __launch_bounds__(BLOCK)
    packs_kernel(Operation o, const State* __restrict__ state, T* __restrict__ y, int64_t rows,
                 int64_t cols) {
  constexpr int N = Pack<T>::N;
  const int64_t packs = cols / N;  // per row; cols is a multiple of N
  const int64_t first = int64_t{blockIdx.x} * (BLOCK * PACKS) + threadIdx.x;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const auto* x = reinterpret_cast<const Pack<T>*>(o.x) + row * packs + first;
    const auto* e = reinterpret_cast<const Pack<T>*>(o.e) + row * packs + first;
    Pack<T> xs[PACKS], es[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      if (first + p * BLOCK >= packs) continue;
      xs[p] = x[p * BLOCK];
      if constexpr (Operation::HAS_E) es[p] = e[p * BLOCK];
    }
    const Weights w = o.weights(row);
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const int64_t pack = first + p * BLOCK;
      if (pack >= packs) continue;
      float z[N];
#pragma unroll
      for (int k = 0; k < N; k += 4) {
        normal4<Math>(*state, ((row * packs + pack) * N + k) / 4, z + k);
      }
      Pack<T> out;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float e_k = Operation::HAS_E ? static_cast<float>(es[p].at[k]) : 0.0f;
        out.at[k] = static_cast<T>(
            combined<Operation::HAS_E>(w, static_cast<float>(xs[p].at[k]), e_k, z[k]));
      }
      reinterpret_cast<Pack<T>*>(y)[row * packs + pack] = out;
    }
  }
}

// FAST: whether 16-bit types are drawn by Fast. In fp32 the noise always has all digits.
template <bool FAST>
struct InPacks {
  template <typename T, typename Operation>
  static void launch(const Operation& o, const Tensor& x, const Tensor& state, T* y, int64_t rows,
                     int64_t cols) {
    using Math = std::conditional_t<FAST && sizeof(T) == 2, Fast, Exact>;
    const bool aligned =
        reinterpret_cast<uintptr_t>(o.x) % 16 == 0 && reinterpret_cast<uintptr_t>(o.e) % 16 == 0;
    if (cols % Pack<T>::N != 0 || !aligned) {
      fell_back("v2_in_registers", "rows that are not in packs of 16 bytes");
      return InRegisters::launch<T>(o, x, state, y, rows, cols);
    }
    const int64_t threads = ceil_div<int64_t>(cols / Pack<T>::N, PACKS);
    packs_kernel<T, Math><<<rows_grid(rows, threads), BLOCK, 0, current_stream(x)>>>(
        o, data<State>(state), y, rows, cols);
  }
};

Tensor add_noise_v3_packs(const Tensor& x, const Tensor& signal, const Tensor& noise,
                          const Tensor& state) {
  return add_noise<InPacks<false>>(x, signal, noise, state, "add_noise_v3_packs");
}

// v4 against v3: Fast instead of Exact where T has 16 bits.
Tensor add_noise_v4_fast_math(const Tensor& x, const Tensor& signal, const Tensor& noise,
                              const Tensor& state) {
  return add_noise<InPacks<true>>(x, signal, noise, state, "add_noise_v4_fast_math");
}

// The denoising step with all three changes at once.
Tensor ddpm_step_v2_fused(const Tensor& x, const Tensor& predicted, const Tensor& coefficients,
                          const Tensor& state) {
  return ddpm_step<InPacks<true>>(x, predicted, coefficients, state, "ddpm_step_v2_fused");
}

// ---------------------------------------------------------------------------------------------

RUNG(day33, philox_words, "(Tensor seed, Tensor step, Tensor group) -> Tensor");
RUNG(day33, noise, "(Tensor x, Tensor state) -> Tensor");
RUNG(day33, add_noise_v1_separate,
     "(Tensor x, Tensor signal, Tensor noise, Tensor state) -> Tensor");
RUNG(day33, add_noise_v2_in_registers,
     "(Tensor x, Tensor signal, Tensor noise, Tensor state) -> Tensor");
RUNG(day33, add_noise_v3_packs, "(Tensor x, Tensor signal, Tensor noise, Tensor state) -> Tensor");
RUNG(day33, add_noise_v4_fast_math,
     "(Tensor x, Tensor signal, Tensor noise, Tensor state) -> Tensor");
RUNG(day33, ddpm_step_v1_separate,
     "(Tensor x, Tensor predicted, Tensor coefficients, Tensor state) -> Tensor");
RUNG(day33, ddpm_step_v2_fused,
     "(Tensor x, Tensor predicted, Tensor coefficients, Tensor state) -> Tensor");

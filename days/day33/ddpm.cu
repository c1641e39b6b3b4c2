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
//   v4 fast_math       the special function unit instead of exact functions
//   v5 half_words      16 bits per number, so half as many words, for 16-bit types
//
// Run: python run_day.py 33

#include "common/cuda/binding.cuh"           // taught in day 6
#include "common/cuda/pack.cuh"              // taught in day 2
#include "common/cuda/ptx.cuh"               // approximations: day 20
#include "common/cuda/resident_threads.cuh"  // taught in day 21
#include "common/cuda/tensor.cuh"            // taught in days 6 and 12

#include <type_traits>

constexpr int BLOCK = 128;

// ---------------------------------------------------------------------------------------------
// Random words. Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011).

// Scrambles a counter (x: lowest word) under a key: 10 rounds, each of which can be inverted, so
// that different counters give different results. The multipliers are the paper's; the key grows
// by the golden ratio and by sqrt(3) - 1, as fractions of 2^32.
__device__ uint4 philox4x32_10(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high_a = __umulhi(0xd2511f53u, counter.x), low_a = 0xd2511f53u * counter.x;
    const uint32_t high_b = __umulhi(0xcd9e8d57u, counter.z), low_b = 0xcd9e8d57u * counter.z;
    counter = make_uint4(high_b ^ counter.y ^ key.x, low_b, high_a ^ counter.w ^ key.y, low_a);
    key.x += 0x9e3779b9u;
    key.y += 0xbb67ae85u;
  }
  return counter;
}

__device__ uint32_t low(uint64_t word) {
  return static_cast<uint32_t>(word);
}
__device__ uint32_t high(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}

// What a call draws from: the seed, and how many calls came before. On the GPU, so that a captured
// graph draws other numbers at each replay once the tensor has changed.
struct State {
  uint64_t seed, step;
};

// Four words of a stream, in the layout of cuRAND and of PyTorch's CUDA generator: group is the
// lower half of what they call the subsequence, row its upper half, step a quarter of their offset.
__device__ uint4 random4(const State& s, uint32_t row, uint32_t group) {
  return philox4x32_10(make_uint4(low(s.step), high(s.step), group, row),
                       make_uint2(low(s.seed), high(s.seed)));
}

__global__ void philox_words_kernel(const uint64_t* __restrict__ seed,
                                    const uint64_t* __restrict__ step,
                                    const uint64_t* __restrict__ group, uint4* __restrict__ words,
                                    int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) words[i] = random4({seed[i], step[i]}, high(group[i]), low(group[i]));
}

// The words of each (seed, step, group), int64 tensors of shape (n,), as an int32 tensor (n, 4).
Tensor philox_words(const Tensor& seed, const Tensor& step, const Tensor& group) {
  check(seed, "seed").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(step, "step").on_gpu().like(seed, "seed").contiguous();
  check(group, "group").on_gpu().like(seed, "seed").contiguous();
  const DeviceGuard guard(seed);
  const int64_t n = seed.size(0);
  Tensor words = allocate(seed, {n, 4}, ScalarType::Int);
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
  static constexpr int COUNT = 4;  // numbers of four words

  // Two numbers with this standard deviation. T: the type that they are rounded to.
  template <typename T>
  static __device__ float2 normal2(uint32_t first, uint32_t second, float deviation) {
    const float u = fmaf(static_cast<float>(first), 0x1p-32f, 0x1p-33f);  // (0, 1]
    const float radius = deviation * sqrtf(-2.0f * logf(u));              // at most 6.8 deviations
    float sine, cosine;
    sincospif(fmaf(static_cast<float>(second), 0x1p-31f, 0x1p-32f), &sine, &cosine);
    return make_float2(radius * sine, radius * cosine);
  }
};

// sqrt(-2 ln u) by the special function unit. Near u = 1 the approximated logarithm has few digits,
// perhaps not even the right sign; 16-bit types do not see that.
__device__ float radius_approx(float u) {
  constexpr float MINUS_2_LN_2 = -1.38629436f;
  return ptx::sqrt_approx(fabsf(MINUS_2_LN_2 * ptx::log2_approx(u)));
}

// The same by the special function unit. Its sine is accurate to 2^-21 in [-pi, pi] (CUDA's guide),
// so the word counts as signed: an angle less 2 pi. fp32 takes the exact radius, as cuRAND does.
struct Fast {
  static constexpr int COUNT = 4;

  template <typename T>
  static __device__ float2 normal2(uint32_t first, uint32_t second, float deviation) {
    const float u = fmaf(static_cast<float>(first), 0x1p-32f, 0x1p-33f);
    const float radius = sizeof(T) == 4 ? sqrtf(-2.0f * logf(u)) : radius_approx(u);
    const float angle = static_cast<float>(static_cast<int32_t>(second)) * (3.14159265f * 0x1p-31f);
    float sine, cosine;
    __sincosf(angle, &sine, &cosine);
    return make_float2(deviation * radius * sine, deviation * radius * cosine);
  }
};

// The same of 16-bit words: 65,536 radii, of which the largest is 4.85, and as many angles.
struct HalfWords {
  static constexpr int COUNT = 8;

  template <typename T>
  static __device__ float2 normal2(uint32_t first, uint32_t second, float deviation) {
    const float radius = radius_approx(fmaf(static_cast<float>(first), 0x1p-16f, 0x1p-17f));
    constexpr float STEP = 3.14159265f * 0x1p-15f;
    const float angle = fmaf(static_cast<float>(static_cast<int16_t>(second)), STEP, STEP / 2);
    float sine, cosine;
    __sincosf(angle, &sine, &cosine);
    return make_float2(deviation * radius * sine, deviation * radius * cosine);
  }
};

// Elements COUNT · group to COUNT · (group + 1) - 1 of a row's noise.
template <typename Math, typename T>
__device__ void draw(const State& state, uint32_t row, uint32_t group, float deviation, float* z) {
  const uint4 four = random4(state, row, group);
  const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int k = 0; k < Math::COUNT; k += 2) {
    const bool halves = Math::COUNT == 8;
    const uint32_t first = halves ? words[k / 2] & 0xffff : words[k];
    const uint32_t second = halves ? words[k / 2] >> 16 : words[k + 1];
    const float2 pair = Math::template normal2<T>(first, second, deviation);
    z[k] = pair.x;
    z[k + 1] = pair.y;
  }
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

// The element, with noise z that is multiplied by its weight already. A NoiseAddition has no e, and
// 0 · e must not become NaN there.
template <bool HAS_E>
__device__ float combined(const Weights& w, float x, float e, float z) {
  return fmaf(w.x, x, HAS_E ? fmaf(w.e, e, z) : z);
}

// ---------------------------------------------------------------------------------------------
// v1: z is written, and read again. A block has BLOCK groups of a row; the grid's y dimension,
// which is limited to 65,535, has the rows.

template <typename T>
__global__ void noise_kernel(const State* __restrict__ state, T* __restrict__ z, int64_t rows,
                             int64_t cols) {
  const uint32_t g = blockIdx.x * BLOCK + threadIdx.x;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float drawn[4];
    draw<Exact, T>(*state, low(row), g, 1, drawn);
    for (int k = 0; k < 4; ++k) {
      const int64_t col = int64_t{g} * 4 + k;
      if (col < cols) z[row * cols + col] = static_cast<T>(drawn[k]);
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
    const Weights w = o.weights(row);
    y[i] = static_cast<T>(combined<Operation::HAS_E>(w, static_cast<float>(o.x[i]), e,
                                                     w.z * static_cast<float>(z[i])));
  }
}

// A grid with `work` threads along x for each row.
dim3 rows_grid(int64_t rows, int64_t work) {
  const int64_t most = max_grid_y();
  return dim3(grid_size(ceil_div<int64_t>(work, BLOCK), "x"),
              static_cast<unsigned>(rows < most ? rows : most));
}

// Also checks that groups and rows of x, taken as (rows, cols), are numbers of 32 bits.
void check_state(const Tensor& state, const Tensor& x, int64_t rows, int64_t cols) {
  constexpr int64_t MOST = int64_t{1} << 32;
  STD_TORCH_CHECK(rows < MOST && cols < MOST, "x: too large for 32-bit indices, got ", shape_of(x));
  check(state, "state").on_gpu().dtype({ScalarType::Long}).rank(1).size(0, 2).contiguous();
  check(state, "state").same_device(x, "x");
}

// Standard normal numbers in the shape (rows, cols) and dtype of x: those that the noise addition
// of the same state adds, for the loss that compares a prediction with them.
Tensor noise(const Tensor& x, const Tensor& state) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const int64_t rows = x.size(0), cols = x.size(1);
  check_state(state, x, rows, cols);
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
    Tensor z = allocate_like(x);
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
  check_state(state, x, x.size(0), x.size(1));
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
  check_state(state, x, 1, x.numel());
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
// v2 against v1: a thread draws the noise of its elements and adds it at once. Which thread
// draws has no influence on the numbers, because they depend on the element's place alone.

template <typename Math, typename T, typename Operation>
__global__ void in_registers_kernel(Operation o, const State* __restrict__ state, T* __restrict__ y,
                                    int64_t rows, int64_t cols) {
  const uint32_t g = blockIdx.x * BLOCK + threadIdx.x;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const Weights w = o.weights(row);
    float z[Math::COUNT];
    draw<Math, T>(*state, low(row), g, w.z, z);
    for (int k = 0; k < Math::COUNT; ++k) {
      const int64_t col = int64_t{g} * Math::COUNT + k, i = row * cols + col;
      if (col >= cols) break;
      const float e = Operation::HAS_E ? static_cast<float>(o.e[i]) : 0.0f;
      y[i] = static_cast<T>(combined<Operation::HAS_E>(w, static_cast<float>(o.x[i]), e, z[k]));
    }
  }
}

template <typename Math>
struct InRegisters {
  template <typename T, typename Operation>
  static void launch(const Operation& o, const Tensor& x, const Tensor& state, T* y, int64_t rows,
                     int64_t cols) {
    in_registers_kernel<Math, T>
        <<<rows_grid(rows, ceil_div<int64_t>(cols, Math::COUNT)), BLOCK, 0, current_stream(x)>>>(
            o, data<State>(state), y, rows, cols);
  }
};

Tensor add_noise_v2_in_registers(const Tensor& x, const Tensor& signal, const Tensor& noise,
                                 const Tensor& state) {
  return add_noise<InRegisters<Exact>>(x, signal, noise, state, "add_noise_v2_in_registers");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: 16 bytes per load and store, several of them in flight per thread. A pack has one
// group of four fp32 elements, or two of 16-bit elements.

// Packs per thread and input, and the share of a multiprocessor's threads that should be resident.
// Found by trial on an H200. Many packs per thread share what depends on seed and row alone, and
// let the compiler interleave independent rounds, but take registers from other threads.
template <typename T, typename Operation>
struct Tuning {
  static constexpr bool DEEP = sizeof(T) == 2 && !Operation::HAS_E;
  static constexpr int PACKS = DEEP ? 4 : Operation::HAS_E ? 1 : 2;
  static constexpr int BLOCKS = RESIDENT_THREADS / BLOCK * (DEEP ? 3 : 6) / 8;
};

// The packs first, first + BLOCK, … of a row. FULL: all EACH of them exist, so that nothing keeps
// the compiler from interleaving them.
template <bool FULL, typename Math, typename T, typename Operation>
__device__ void combine_packs(const Operation& o, const State& state, T* __restrict__ y,
                              int64_t row, uint32_t first, uint32_t packs) {
  constexpr int N = Pack<T>::N, EACH = Tuning<T, Operation>::PACKS;
  const auto* x = reinterpret_cast<const Pack<T>*>(o.x) + row * packs;
  const auto* e = reinterpret_cast<const Pack<T>*>(o.e) + row * packs;
  auto* out = reinterpret_cast<Pack<T>*>(y) + row * packs;
  Pack<T> xs[EACH], es[EACH];
#pragma unroll
  for (int p = 0; p < EACH; ++p) {
    const uint32_t pack = first + p * BLOCK;
    if (!FULL && pack >= packs) break;
    xs[p] = x[pack];
    if constexpr (Operation::HAS_E) es[p] = e[pack];
  }
  const Weights w = o.weights(row);
#pragma unroll
  for (int p = 0; p < EACH; ++p) {
    const uint32_t pack = first + p * BLOCK;
    if (!FULL && pack >= packs) break;
    float z[N];
#pragma unroll
    for (int k = 0; k < N; k += Math::COUNT) {
      draw<Math, T>(state, low(row), (pack * N + k) / Math::COUNT, w.z, z + k);
    }
    Pack<T> result;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float e_k = Operation::HAS_E ? static_cast<float>(es[p].at[k]) : 0.0f;
      result.at[k] =
          static_cast<T>(combined<Operation::HAS_E>(w, static_cast<float>(xs[p].at[k]), e_k, z[k]));
    }
    out[pack] = result;
  }
}

template <typename T, typename Math, typename Operation>
__global__ void __launch_bounds__(BLOCK, Tuning<T, Operation>::BLOCKS)
    packs_kernel(Operation o, const State* __restrict__ state, T* __restrict__ y, int64_t rows,
                 uint32_t packs) {
  constexpr uint32_t ALL = BLOCK * Tuning<T, Operation>::PACKS;  // of a block
  const uint32_t begin = blockIdx.x * ALL, first = begin + threadIdx.x;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    if (begin + ALL <= packs) {
      combine_packs<true, Math>(o, *state, y, row, first, packs);
    } else {
      combine_packs<false, Math>(o, *state, y, row, first, packs);
    }
  }
}

template <typename Math>
struct InPacks {
  template <typename T, typename Operation>
  static void launch(const Operation& o, const Tensor& x, const Tensor& state, T* y, int64_t rows,
                     int64_t cols) {
    const bool aligned =
        reinterpret_cast<uintptr_t>(o.x) % 16 == 0 && reinterpret_cast<uintptr_t>(o.e) % 16 == 0;
    if (cols % Pack<T>::N != 0 || !aligned) {
      fell_back("v2_in_registers", "rows that are not in packs of 16 bytes");
      using SameNumbers = std::conditional_t<Math::COUNT == 4, Exact, Math>;
      return InRegisters<SameNumbers>::template launch<T>(o, x, state, y, rows, cols);
    }
    const int64_t packs = cols / Pack<T>::N, each = Tuning<T, Operation>::PACKS;
    const dim3 grid = rows_grid(rows, ceil_div(packs, each));
    packs_kernel<T, Math><<<grid, BLOCK, 0, current_stream(x)>>>(o, data<State>(state), y, rows,
                                                                 static_cast<uint32_t>(packs));
  }
};

Tensor add_noise_v3_packs(const Tensor& x, const Tensor& signal, const Tensor& noise,
                          const Tensor& state) {
  return add_noise<InPacks<Exact>>(x, signal, noise, state, "add_noise_v3_packs");
}

// v4 against v3: Fast instead of Exact.
Tensor add_noise_v4_fast_math(const Tensor& x, const Tensor& signal, const Tensor& noise,
                              const Tensor& state) {
  return add_noise<InPacks<Fast>>(x, signal, noise, state, "add_noise_v4_fast_math");
}

// v5 against v4: a word makes two numbers instead of one, so Philox runs half as often.
Tensor add_noise_v5_half_words(const Tensor& x, const Tensor& signal, const Tensor& noise,
                               const Tensor& state) {
  check(x, "x").dtype({ScalarType::Half, ScalarType::BFloat16});
  return add_noise<InPacks<HalfWords>>(x, signal, noise, state, "add_noise_v5_half_words");
}

// The denoising step with v2's to v4's changes at once.
Tensor ddpm_step_v2_fused(const Tensor& x, const Tensor& predicted, const Tensor& coefficients,
                          const Tensor& state) {
  return ddpm_step<InPacks<Fast>>(x, predicted, coefficients, state, "ddpm_step_v2_fused");
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
RUNG(day33, add_noise_v5_half_words,
     "(Tensor x, Tensor signal, Tensor noise, Tensor state) -> Tensor");
RUNG(day33, ddpm_step_v1_separate,
     "(Tensor x, Tensor predicted, Tensor coefficients, Tensor state) -> Tensor");
RUNG(day33, ddpm_step_v2_fused,
     "(Tensor x, Tensor predicted, Tensor coefficients, Tensor state) -> Tensor");

// Day 62: dropout whose mask is never stored, in CUDA and in Triton
//
//   y[i] = keep[i] ? x[i] / (1 - p) : 0          x, y: n elements of T
//   backward: gx[i] = keep[i] ? gy[i] / (1 - p) : 0, the same function of gy
//
// keep[i] compares 16 random bits with p: Philox 4x32-10 makes eight such halves of a seed, a step
// and the group i / 8. p counts in steps of 2^-16, in the factor 1 / (1 - p) too.
//
// Bytes: x is read and y written, 2 · sizeof(T) per element. Operations: one Philox, 20 products
// of 32 × 32 to 64 bits, per eight elements. Memory bandwidth is the limit if they hide behind it.
//
//   v1 stored        one byte of mask per element goes to memory and back
//   v2 in_registers  one thread per eight elements computes its part of the mask
//   v3 packs         16 bytes per load and store
//   v4 triton        dropout_triton.py: one program per 1024 elements, the same bits
//
// Run: python run_day.py 62

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/philox.cuh"   // taught in day 33
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <cmath>

constexpr int BLOCK = 128;
constexpr int GROUP = 8;           // elements of four random words
constexpr int64_t STEPS = 65'536;  // values of a half, and steps of p

// What a call draws from: the seed, and how many calls came before. On the GPU, so that a captured
// graph draws other numbers at each replay once the tensor has changed.
struct State {
  uint64_t seed, step;
};

// p, rounded to a multiple of 1 / STEPS.
struct Drop {
  uint32_t below;  // halves below it drop their element: p · STEPS
  float scale;     // of what is kept: 1 / (1 - p), and 0 where p is 1
};

// Bit k: whether element 8 · group + k is kept.
__device__ uint32_t kept_of(const State& state, uint64_t group, uint32_t below) {
  const uint4 four = philox::random4(state.seed, group, state.step);
  const uint32_t words[4] = {four.x, four.y, four.z, four.w};
  uint32_t kept = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    kept |= uint32_t{(words[w] & 0xffff) >= below} << (2 * w);
    kept |= uint32_t{words[w] >> 16 >= below} << (2 * w + 1);
  }
  return kept;
}

// A dropped element is 0 even where x is not finite.
template <typename T>
__device__ T dropped(T x, bool keep, float scale) {
  const float scaled = static_cast<float>(x) * scale;
  return static_cast<T>(keep ? scaled : 0.0f);
}

Drop check_arguments(const Tensor& x, double p, const Tensor& state) {
  check(x, "x").on_gpu().floating().contiguous();
  STD_TORCH_CHECK(p >= 0 && p <= 1, "p: expected a probability in [0, 1], got ", p);
  check(state, "state").on_gpu().dtype({ScalarType::Long}).rank(1).size(0, 2).contiguous();
  check(state, "state").same_device(x, "x");
  const int64_t below = std::lrint(p * static_cast<double>(STEPS));
  const double kept = static_cast<double>(STEPS - below) / static_cast<double>(STEPS);
  return {static_cast<uint32_t>(below), below == STEPS ? 0.0f : static_cast<float>(1 / kept)};
}

// One thread for each of so many pieces of work.
unsigned blocks(int64_t work) {
  return grid_size(ceil_div<int64_t>(work, BLOCK), "x");
}

// ---------------------------------------------------------------------------------------------
// v1: the mask is written, and read again.

__global__ void dropout_v1_mask_kernel(const State* __restrict__ state, uint8_t* __restrict__ mask,
                                       int64_t n, uint32_t below) {
  const int64_t group = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t first = group * GROUP;
  if (first >= n) return;
  const uint32_t kept = kept_of(*state, group, below);
  for (int k = 0; k < GROUP && first + k < n; ++k) mask[first + k] = kept >> k & 1;
}

template <typename T>
__global__ void dropout_v1_stored_kernel(const T* __restrict__ x, const uint8_t* __restrict__ mask,
                                         T* __restrict__ y, int64_t n, float scale) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) y[i] = dropped(x[i], mask[i] != 0, scale);
}

Tensor dropout_v1_stored(const Tensor& x, double p, const Tensor& state) {
  const Drop drop = check_arguments(x, p, state);
  return output_like(x, "dropout_v1_stored", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const int64_t n = x.numel();
    Tensor mask = allocate(x, {n}, ScalarType::Byte);
    dropout_v1_mask_kernel<<<blocks(ceil_div<int64_t>(n, GROUP)), BLOCK, 0, current_stream(x)>>>(
        data<State>(state), mutable_data<uint8_t>(mask), n, drop.below);
    dropout_v1_stored_kernel<T><<<blocks(n), BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<uint8_t>(mask), y, n, drop.scale);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the thread that computes eight bits of the mask uses them at once.

template <typename T>
__global__ void dropout_v2_in_registers_kernel(const T* __restrict__ x,
                                               const State* __restrict__ state, T* __restrict__ y,
                                               int64_t n, Drop drop) {
  const int64_t group = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t first = group * GROUP;
  if (first >= n) return;
  const uint32_t kept = kept_of(*state, group, drop.below);
  for (int k = 0; k < GROUP && first + k < n; ++k) {
    y[first + k] = dropped(x[first + k], (kept >> k & 1) != 0, drop.scale);
  }
}

Tensor dropout_v2_in_registers(const Tensor& x, double p, const Tensor& state) {
  const Drop drop = check_arguments(x, p, state);
  return output_like(x, "dropout_v2_in_registers", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const int64_t n = x.numel();
    dropout_v2_in_registers_kernel<T>
        <<<blocks(ceil_div<int64_t>(n, GROUP)), BLOCK, 0, current_stream(x)>>>(
            data<T>(x), data<State>(state), y, n, drop);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a group is loaded and stored in packs of 16 bytes, one of 16-bit elements or two
// of fp32. The loads do not wait for Philox. The last group may be cut off.

template <typename T>
__global__ void dropout_v3_packs_kernel(const T* __restrict__ x, const State* __restrict__ state,
                                        T* __restrict__ y, int64_t n, Drop drop) {
  constexpr int N = Pack<T>::N, PACKS = GROUP / N;
  const int64_t group = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t first = group * GROUP;
  if (first >= n) return;
  if (first + GROUP > n) {
    const uint32_t kept = kept_of(*state, group, drop.below);
#pragma unroll 1  // at most seven elements of the whole tensor
    for (int k = 0; first + k < n; ++k) {
      y[first + k] = dropped(x[first + k], (kept >> k & 1) != 0, drop.scale);
    }
    return;
  }
  Pack<T> pack[PACKS];
  for (int j = 0; j < PACKS; ++j) {
    pack[j] = reinterpret_cast<const Pack<T>*>(x)[group * PACKS + j];
  }
  const uint32_t kept = kept_of(*state, group, drop.below);
  for (int j = 0; j < PACKS; ++j) {
    for (int k = 0; k < N; ++k) {
      pack[j].at[k] = dropped(pack[j].at[k], (kept >> (j * N + k) & 1) != 0, drop.scale);
    }
    reinterpret_cast<Pack<T>*>(y)[group * PACKS + j] = pack[j];
  }
}

Tensor dropout_v3_packs(const Tensor& x, double p, const Tensor& state) {
  const Drop drop = check_arguments(x, p, state);
  if (!is_aligned(x, 16)) {  // a slice such as x[1:]
    fell_back("dropout_v2_in_registers", "an input that is not aligned to 16 bytes");
    return dropout_v2_in_registers(x, p, state);
  }
  return output_like(x, "dropout_v3_packs", [&](auto zero, auto* y) {
    using T = decltype(zero);
    const int64_t n = x.numel();
    dropout_v3_packs_kernel<T>
        <<<blocks(ceil_div<int64_t>(n, GROUP)), BLOCK, 0, current_stream(x)>>>(
            data<T>(x), data<State>(state), y, n, drop);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day62, dropout_v1_stored, "(Tensor x, float p, Tensor state) -> Tensor");
RUNG(day62, dropout_v2_in_registers, "(Tensor x, float p, Tensor state) -> Tensor");
RUNG(day62, dropout_v3_packs, "(Tensor x, float p, Tensor state) -> Tensor");

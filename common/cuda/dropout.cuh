// Dropout whose mask is a function of a seed, a step and the element's index, and never stored
// (taught in day 62).
#pragma once

#include "common/cuda/philox.cuh"
#include "common/cuda/tensor.cuh"

#include <cmath>

namespace dropout {

constexpr int GROUP = 8;           // elements of four random words
constexpr int64_t STEPS = 65'536;  // values of 16 random bits, and steps of p

// The source of a call's random numbers: the seed, and the number of earlier calls.
struct State {
  uint64_t seed, step;
};

// p, rounded to a multiple of 1 / STEPS.
struct Drop {
  uint32_t below;  // halves of words below it drop their element: p · STEPS
  float scale;     // of what is kept: 1 / (1 - p), and 0 where p is 1

  // Element 2w of a group is decided by the lower half of its word w, element 2w + 1 by the upper.
  __device__ bool keeps_low(uint32_t word) const { return (word & 0xffff) >= below; }
  __device__ bool keeps_high(uint32_t word) const { return word >> 16 >= below; }
};

// The four words of elements [8 · group, 8 · group + 8).
__device__ inline uint4 words_of(const State& state, int64_t group) {
  return philox::random4(state.seed, static_cast<uint64_t>(group), state.step);
}

// Bit k: whether element 8 · group + k is kept.
__device__ inline uint32_t kept_of(const State& state, int64_t group, const Drop& drop) {
  const uint4 four = words_of(state, group);
  const uint32_t words[4] = {four.x, four.y, four.z, four.w};
  uint32_t kept = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    kept |= uint32_t{drop.keeps_low(words[w])} << (2 * w);
    kept |= uint32_t{drop.keeps_high(words[w])} << (2 * w + 1);
  }
  return kept;
}

// state: (2,) on the device of `on`, seed and step.
inline Drop check_arguments(double p, const Tensor& state, const Tensor& on, const char* name) {
  STD_TORCH_CHECK(p >= 0 && p <= 1, "p: expected a probability in [0, 1], got ", p);
  check(state, "state").on_gpu().dtype({ScalarType::Long}).rank(1).size(0, 2).contiguous();
  check(state, "state").same_device(on, name);
  const int64_t below = std::lrint(p * static_cast<double>(STEPS));
  const double kept = static_cast<double>(STEPS - below) / static_cast<double>(STEPS);
  return {static_cast<uint32_t>(below), below == STEPS ? 0.0f : static_cast<float>(1 / kept)};
}

}  // namespace dropout

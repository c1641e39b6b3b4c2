// Random numbers for each thread and element, without a state: Philox4x32-10.
//
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011). A counter is
// scrambled under a key: number i of a stream is a function of i, so that any thread computes any
// element, and a kernel with another grid gives the same numbers. Same bits on GPU and CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace philox {

namespace detail {
__host__ __device__ inline uint32_t upper_half(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __umulhi(a, b);  // nvcc adds a zero to the upper half of a 64-bit product
#else
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
#endif
}
}  // namespace detail

// Four random words for a counter (x: lowest) under a key: 10 rounds of the bijection.
__host__ __device__ inline uint4 random4(uint4 counter, uint2 key) {
  constexpr uint32_t kMultiplier0 = 0xd2511f53u, kMultiplier1 = 0xcd9e8d57u;  // from the paper
  constexpr uint32_t kWeyl0 = 0x9e3779b9u, kWeyl1 = 0xbb67ae85u;  // golden ratio, sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = detail::upper_half(kMultiplier0, counter.x);
    const uint32_t high1 = detail::upper_half(kMultiplier1, counter.z);
    counter = make_uint4(high1 ^ counter.y ^ key.x, kMultiplier1 * counter.z,
                         high0 ^ counter.w ^ key.y, kMultiplier0 * counter.x);
    key.x += kWeyl0;
    key.y += kWeyl1;
  }
  return counter;
}

// The words of group `index` (elements 4·index to 4·index + 3) of a stream: `seed` chooses it, and
// `offset` a further one under the same seed, such as the number of the call.
__host__ __device__ inline uint4 random4(uint64_t seed, uint64_t index, uint64_t offset = 0) {
  const uint4 counter =
      make_uint4(static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                 static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32));
  return random4(counter,
                 make_uint2(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)));
}

// Uniform in [0, 1): the upper 24 bits of a word, exact in float32.
__host__ __device__ inline float uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// Two independent standard normal numbers from two words (Box and Muller, 1958). No result is
// beyond 5.8: the first word becomes at least 2^-24. GPU and CPU agree to about 2^-20.
__device__ inline float2 normal2(uint32_t first, uint32_t second) {
  const float radius = sqrtf(-2.0f * logf(1.0f - uniform(first)));
  float sine, cosine;
  sincospif(2.0f * uniform(second), &sine, &cosine);
  return make_float2(radius * cosine, radius * sine);
}

}  // namespace philox

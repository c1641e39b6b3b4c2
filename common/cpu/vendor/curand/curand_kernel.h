// cuRAND's generators in device code: XORWOW and Philox 4x32-10, with their uniform and normal
// numbers. Names and sequences are those of NVIDIA's documentation
// (https://docs.nvidia.com/cuda/curand/device-api-overview.html); XORWOW is Marsaglia's ("Xorshift
// RNGs", 2003), Philox that of Salmon et al. ("Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

struct curandStateXORWOW {
  unsigned d, v[5];
  int has_normal, has_normal_double;  // the second one of a pair
  float normal;
  double normal_double;
};
typedef curandStateXORWOW curandStateXORWOW_t;
typedef curandStateXORWOW curandState;
typedef curandStateXORWOW curandState_t;

struct curandStatePhilox4_32_10 {
  uint4 ctr, output;
  uint2 key;
  unsigned STATE;  // of the four words of `output`, the next one
  int has_normal, has_normal_double;
  float normal;
  double normal_double;
};
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;

namespace cudacpu_curand {

// Move v of XORWOW on by steps + subsequences * 2^67 steps (curand.cu).
void skip(unsigned v[5], unsigned long long steps, unsigned long long subsequences);

inline uint4 philox(uint4 c, uint2 k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xD2511F53} * c.x, q = uint64_t{0xCD9E8D57} * c.z;
    c = {static_cast<unsigned>(q >> 32) ^ c.y ^ k.x, static_cast<unsigned>(q),
         static_cast<unsigned>(p >> 32) ^ c.w ^ k.y, static_cast<unsigned>(p)};
    k.x += 0x9E3779B9;
    k.y += 0xBB67AE85;
  }
  return c;
}

// Add `steps` to the 128 bits of the counter, from its third word on if those are subsequences.
inline void advance(uint4& c, unsigned long long steps, bool subsequences = false) {
  const auto low = [](unsigned a, unsigned b) { return uint64_t{b} << 32 | a; };
  uint64_t first = low(c.x, c.y), second = low(c.z, c.w);
  if (subsequences) {
    second += steps;
  } else {
    first += steps;
    second += first < steps;
  }
  c = {static_cast<unsigned>(first), static_cast<unsigned>(first >> 32),
       static_cast<unsigned>(second), static_cast<unsigned>(second >> 32)};
}

constexpr float kStep = 2.3283064e-10f;                 // 2^-32
constexpr double kStepDouble = 1.1102230246251565e-16;  // 2^-53

inline float uniform(unsigned x) {
  return static_cast<float>(x) * kStep + kStep / 2;
}
inline double uniform_double(unsigned x, unsigned y) {
  const uint64_t bits = uint64_t{x} ^ uint64_t { y } << 21;
  return static_cast<double>(bits) * kStepDouble + kStepDouble / 2;
}
// Box and Muller: two independent normal numbers of two uniform ones.
inline float2 normal2(unsigned x, unsigned y) {
  const float radius = std::sqrt(-2 * std::log(uniform(x)));
  const float angle = uniform(y) * 6.2831855f;
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}
inline double2 normal2_double(double x, double y) {
  const double radius = std::sqrt(-2 * std::log(x)), angle = y * 6.283185307179586;
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}

}  // namespace cudacpu_curand

inline unsigned curand(curandStateXORWOW* s) {
  const unsigned t = s->v[0] ^ s->v[0] >> 2;
  for (int i = 0; i < 4; ++i) s->v[i] = s->v[i + 1];
  s->v[4] = s->v[4] ^ s->v[4] << 4 ^ t ^ t << 1;
  s->d += 362437;
  return s->v[4] + s->d;
}
inline void skipahead(unsigned long long n, curandStateXORWOW* s) {
  cudacpu_curand::skip(s->v, n, 0);
  s->d += static_cast<unsigned>(n) * 362437;
}
inline void skipahead_sequence(unsigned long long n, curandStateXORWOW* s) {
  cudacpu_curand::skip(s->v, 0, n);
}
inline void curand_init(unsigned long long seed, unsigned long long subsequence,
                        unsigned long long offset, curandStateXORWOW* s) {
  const unsigned a = 1099087573u * (static_cast<unsigned>(seed) ^ 0xaad26b49u);
  const unsigned b = 2591861531u * (static_cast<unsigned>(seed >> 32) ^ 0xf7dcefddu);
  *s = {6615241u + b + a,
        {123456789u + a, 362436069u ^ a, 521288629u + b, 88675123u ^ b, 5783321u + a},
        0,
        0,
        0,
        0};
  skipahead_sequence(subsequence, s);
  skipahead(offset, s);
}

inline unsigned curand(curandStatePhilox4_32_10* s) {
  const unsigned words[] = {s->output.x, s->output.y, s->output.z, s->output.w};
  const unsigned word = words[s->STATE];
  if (++s->STATE == 4) {
    cudacpu_curand::advance(s->ctr, 1);
    s->output = cudacpu_curand::philox(s->ctr, s->key);
    s->STATE = 0;
  }
  return word;
}
inline void skipahead(unsigned long long n, curandStatePhilox4_32_10* s) {
  const unsigned long long words = s->STATE + (n & 3);
  cudacpu_curand::advance(s->ctr, n / 4 + words / 4);
  s->STATE = words % 4;
  s->output = cudacpu_curand::philox(s->ctr, s->key);
}
inline void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10* s) {
  cudacpu_curand::advance(s->ctr, n, true);
  s->output = cudacpu_curand::philox(s->ctr, s->key);
}
inline void curand_init(unsigned long long seed, unsigned long long subsequence,
                        unsigned long long offset, curandStatePhilox4_32_10* s) {
  *s = {};
  s->key = {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)};
  skipahead_sequence(subsequence, s);
  skipahead(offset, s);
}
inline uint4 curand4(curandStatePhilox4_32_10* s) {
  uint4 words;
  words.x = curand(s), words.y = curand(s), words.z = curand(s), words.w = curand(s);
  return words;
}
inline float4 curand_uniform4(curandStatePhilox4_32_10* s) {
  const uint4 x = curand4(s);
  using cudacpu_curand::uniform;
  return {uniform(x.x), uniform(x.y), uniform(x.z), uniform(x.w)};
}
inline float4 curand_normal4(curandStatePhilox4_32_10* s) {
  const uint4 x = curand4(s);
  const float2 a = cudacpu_curand::normal2(x.x, x.y), b = cudacpu_curand::normal2(x.z, x.w);
  return {a.x, a.y, b.x, b.y};
}

template <class State>
float curand_uniform(State* s) {
  return cudacpu_curand::uniform(curand(s));
}
template <class State>
double curand_uniform_double(State* s) {
  const unsigned x = curand(s);
  return cudacpu_curand::uniform_double(x, curand(s));
}
template <class State>
float2 curand_normal2(State* s) {
  const unsigned x = curand(s);
  return cudacpu_curand::normal2(x, curand(s));
}
template <class State>
double2 curand_normal2_double(State* s) {
  const double x = curand_uniform_double(s);
  return cudacpu_curand::normal2_double(x, curand_uniform_double(s));
}
template <class State>
float curand_normal(State* s) {
  if (s->has_normal) {
    s->has_normal = 0;
    return s->normal;
  }
  const float2 pair = curand_normal2(s);
  s->has_normal = 1;
  s->normal = pair.y;
  return pair.x;
}
template <class State>
double curand_normal_double(State* s) {
  if (s->has_normal_double) {
    s->has_normal_double = 0;
    return s->normal_double;
  }
  const double2 pair = curand_normal2_double(s);
  s->has_normal_double = 1;
  s->normal_double = pair.y;
  return pair.x;
}
template <class State>
float curand_log_normal(State* s, float mean, float deviation) {
  return std::exp(mean + deviation * curand_normal(s));
}
template <class State>
double curand_log_normal_double(State* s, double mean, double deviation) {
  return std::exp(mean + deviation * curand_normal_double(s));
}

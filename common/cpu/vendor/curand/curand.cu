// cuRAND on the CPU backend: how XORWOW skips ahead, and the generators of the host's API.
#include "curand.h"
#include "curand_kernel.h"

#include <array>
#include <vector>

namespace cudacpu_curand {

namespace {

constexpr int BITS = 160;  // of XORWOW's v
constexpr int LOG2_SUBSEQUENCE = 67;

using Vector = std::array<unsigned, 5>;
// A linear map of the bits: the image of each bit.
using Map = std::array<Vector, BITS>;

Vector moved(const Map& map, const Vector& v) {
  Vector result{};
  for (int bit = 0; bit < BITS; ++bit) {
    if (!(v[bit / 32] >> bit % 32 & 1)) continue;
    for (int i = 0; i < 5; ++i) result[i] ^= map[bit][i];
  }
  return result;
}

// Entry k: 2^k steps.
std::vector<Map> powers_of_a_step() {
  std::vector<Map> powers(LOG2_SUBSEQUENCE + 64);
  for (int bit = 0; bit < BITS; ++bit) {
    curandStateXORWOW state{};
    state.v[bit / 32] = 1u << bit % 32;
    curand(&state);
    for (int i = 0; i < 5; ++i) powers[0][bit][i] = state.v[i];
  }
  for (size_t k = 1; k < powers.size(); ++k)
    for (int bit = 0; bit < BITS; ++bit) powers[k][bit] = moved(powers[k - 1], powers[k - 1][bit]);
  return powers;
}

}  // namespace

void skip(unsigned v[5], unsigned long long steps, unsigned long long subsequences) {
  if (steps == 0 && subsequences == 0) return;
  static const std::vector<Map> powers = powers_of_a_step();
  Vector state{v[0], v[1], v[2], v[3], v[4]};
  for (int k = 0; k < 64; ++k) {
    if (steps >> k & 1) state = moved(powers[k], state);
    if (subsequences >> k & 1) state = moved(powers[LOG2_SUBSEQUENCE + k], state);
  }
  for (int i = 0; i < 5; ++i) v[i] = state[i];
}

}  // namespace cudacpu_curand

// The position of a generator; a copy of it is an argument of each kernel.
struct cudacpu_curand_sequence {
  curandRngType_t type = CURAND_RNG_PSEUDO_XORWOW;
  unsigned long long seed = 0, offset = 0;  // in words, of all subsequences in turn
};

struct curandGenerator_st {
  cudacpu_curand_sequence state;
  bool on_host = false;
  cudaStream_t stream = nullptr;
};

namespace {

constexpr int SUBSEQUENCES = 4096;

// Every SUBSEQUENCES-th element of out is from one subsequence, which one thread draws.
template <class State, class Out, class Draw>
__device__ void draw_all(const cudacpu_curand_sequence& sequence, Out* out, size_t n, Draw draw) {
  const size_t first = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (first >= n) return;
  const unsigned long long position = sequence.offset + first;
  State state;
  curand_init(sequence.seed, position % SUBSEQUENCES, position / SUBSEQUENCES, &state);
  for (size_t i = first; i < n; i += SUBSEQUENCES) out[i] = draw(state);
}

template <class Out, class Draw>
__global__ void draw_kernel(cudacpu_curand_sequence sequence, Out* out, size_t n, Draw draw) {
  if (sequence.type == CURAND_RNG_PSEUDO_PHILOX4_32_10)
    draw_all<curandStatePhilox4_32_10>(sequence, out, n, draw);
  else
    draw_all<curandStateXORWOW>(sequence, out, n, draw);
}

curandStatus_t create(curandGenerator_t* generator, curandRngType_t type, bool on_host) {
  if (!generator) return CURAND_STATUS_NOT_INITIALIZED;
  if (type == CURAND_RNG_PSEUDO_DEFAULT) type = CURAND_RNG_PSEUDO_XORWOW;
  if (type != CURAND_RNG_PSEUDO_XORWOW && type != CURAND_RNG_PSEUDO_PHILOX4_32_10)
    return CURAND_STATUS_TYPE_ERROR;
  *generator = new curandGenerator_st;
  (*generator)->state.type = type;
  (*generator)->on_host = on_host;
  return CURAND_STATUS_SUCCESS;
}

// words: the number of words per value, by which the sequence has moved on afterwards.
template <class Out, class Draw>
curandStatus_t generate(curandGenerator_t g, Out* out, size_t n, int words, Draw draw) {
  if (!g) return CURAND_STATUS_NOT_INITIALIZED;
  if (n == 0) return CURAND_STATUS_SUCCESS;
  Out* to = out;
  if (g->on_host && cudaMalloc(&to, n * sizeof(Out)) != cudaSuccess)
    return CURAND_STATUS_ALLOCATION_FAILED;
  draw_kernel<<<SUBSEQUENCES / 256, 256, 0, g->stream>>>(g->state, to, n, draw);
  bool good = cudaPeekAtLastError() == cudaSuccess;
  if (g->on_host) {
    good &= cudaMemcpy(out, to, n * sizeof(Out), cudaMemcpyDeviceToHost) == cudaSuccess;
    good &= cudaFree(to) == cudaSuccess;
  }
  // Whole rows of subsequences: a number of several words takes as many of its own.
  const unsigned long long rows = (n + SUBSEQUENCES - 1) / SUBSEQUENCES;
  g->state.offset += words == 1 ? n : rows * words * SUBSEQUENCES;
  return good ? CURAND_STATUS_SUCCESS : CURAND_STATUS_LAUNCH_FAILURE;
}

}  // namespace

extern "C" {

curandStatus_t curandCreateGenerator(curandGenerator_t* generator, curandRngType_t type) {
  return create(generator, type, false);
}
curandStatus_t curandCreateGeneratorHost(curandGenerator_t* generator, curandRngType_t type) {
  return create(generator, type, true);
}
curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
  if (!generator) return CURAND_STATUS_NOT_INITIALIZED;
  delete generator;
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandGetVersion(int* version) {
  if (!version) return CURAND_STATUS_OUT_OF_RANGE;
  *version = 10400;
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream) {
  if (!generator) return CURAND_STATUS_NOT_INITIALIZED;
  generator->stream = stream;
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator,
                                                  unsigned long long seed) {
  if (!generator) return CURAND_STATUS_NOT_INITIALIZED;
  generator->state.seed = seed;
  generator->state.offset = 0;
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator, unsigned long long offset) {
  if (!generator) return CURAND_STATUS_NOT_INITIALIZED;
  generator->state.offset = offset;
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandGenerateSeeds(curandGenerator_t generator) {
  return generator ? CURAND_STATUS_SUCCESS : CURAND_STATUS_NOT_INITIALIZED;
}

curandStatus_t curandGenerate(curandGenerator_t generator, unsigned* out, size_t n) {
  return generate(generator, out, n, 1, [](auto& state) { return curand(&state); });
}
curandStatus_t curandGenerateUniform(curandGenerator_t generator, float* out, size_t n) {
  return generate(generator, out, n, 1, [](auto& state) { return curand_uniform(&state); });
}
curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double* out, size_t n) {
  return generate(generator, out, n, 2, [](auto& state) { return curand_uniform_double(&state); });
}
curandStatus_t curandGenerateNormal(curandGenerator_t generator, float* out, size_t n, float mean,
                                    float deviation) {
  return generate(generator, out, n, 2,
                  [=](auto& state) { return mean + deviation * curand_normal2(&state).x; });
}
curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator, double* out, size_t n,
                                          double mean, double deviation) {
  return generate(generator, out, n, 4,
                  [=](auto& state) { return mean + deviation * curand_normal2_double(&state).x; });
}
curandStatus_t curandGenerateLogNormal(curandGenerator_t generator, float* out, size_t n,
                                       float mean, float deviation) {
  return generate(generator, out, n, 2, [=](auto& state) {
    return std::exp(mean + deviation * curand_normal2(&state).x);
  });
}
curandStatus_t curandGenerateLogNormalDouble(curandGenerator_t generator, double* out, size_t n,
                                             double mean, double deviation) {
  return generate(generator, out, n, 4, [=](auto& state) {
    return std::exp(mean + deviation * curand_normal2_double(&state).x);
  });
}

}  // extern "C"

// cuRAND's generators from device code and from host code: known words, sequences that continue
// where they should, and the moments of what is drawn.
#include <curand.h>
#include <curand_kernel.h>

#include <cmath>
#include <vector>

#include "check.cuh"

constexpr int THREADS = 256, DRAWS = 400;

template <class State>
__global__ void words(unsigned* out, unsigned long long subsequence, unsigned long long offset) {
  State state;
  curand_init(1234, subsequence, offset, &state);
  for (int i = 0; i < 8; ++i) out[i] = curand(&state);
}
__global__ void zeros(unsigned* out) {
  curandStatePhilox4_32_10_t state;
  curand_init(0, 0, 0, &state);
  const uint4 x = curand4(&state);
  out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
}
template <class State>
__global__ void draw(float* uniform, float* normal) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  State state;
  curand_init(7, i, 0, &state);
  for (int k = 0; k < DRAWS; ++k) uniform[i * DRAWS + k] = curand_uniform(&state);
  for (int k = 0; k < DRAWS; ++k) normal[i * DRAWS + k] = curand_normal(&state);
}

std::vector<unsigned> on_host(const unsigned* x) {
  std::vector<unsigned> y(8);
  CHECK(cudaMemcpy(y.data(), x, 8 * sizeof(unsigned), cudaMemcpyDeviceToHost));
  return y;
}

// Skipping ahead is the same as drawing, and other subsequences are others.
template <class State>
bool skips(unsigned* x) {
  words<State><<<1, 1>>>(x, 3, 0);
  const auto first = on_host(x);
  words<State><<<1, 1>>>(x, 3, 5);
  const auto later = on_host(x);
  words<State><<<1, 1>>>(x, 4, 0);
  const auto other = on_host(x);
  return first[5] == later[0] && first[7] == later[2] && first != other;
}

void moments(const char* what, const float* x, size_t n) {
  std::vector<float> y(n);
  CHECK(cudaMemcpy(y.data(), x, n * sizeof(float), cudaMemcpyDeviceToHost));
  double mean = 0, variance = 0, lowest = 1e9, highest = -1e9;
  for (float v : y) mean += v / static_cast<double>(n);
  for (float v : y) {
    variance += (v - mean) * (v - mean) / static_cast<double>(n);
    lowest = std::fmin(lowest, v), highest = std::fmax(highest, v);
  }
  printf("%s %.2f %.2f %d\n", what, mean, std::sqrt(variance), lowest > 0 && highest <= 1);
}

template <class State>
void statistics(const char* what) {
  constexpr size_t n = 8 * THREADS * DRAWS;
  float *uniform, *normal;
  CHECK(cudaMalloc(&uniform, n * sizeof(float)));
  CHECK(cudaMalloc(&normal, n * sizeof(float)));
  draw<State><<<8, THREADS>>>(uniform, normal);
  moments(what, uniform, n);
  moments(what, normal, n);
  CHECK(cudaFree(uniform));
  CHECK(cudaFree(normal));
}

int main() {
  unsigned* x;
  CHECK(cudaMalloc(&x, 8 * sizeof(unsigned)));
  zeros<<<1, 1>>>(x);
  const auto known = on_host(x);
  printf("%08x %08x %08x %08x\n", known[0], known[1], known[2], known[3]);
  printf("%d %d\n", skips<curandStateXORWOW>(x), skips<curandStatePhilox4_32_10_t>(x));
  statistics<curandState>("XORWOW");
  statistics<curandStatePhilox4_32_10_t>("Philox");
  CHECK(cudaFree(x));

  curandGenerator_t generator;
  std::vector<float> drawn(10);
  float* device;
  CHECK(cudaMalloc(&device, 10 * sizeof(float)));
  curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_DEFAULT);
  curandSetPseudoRandomGeneratorSeed(generator, 1234);
  curandGenerateUniform(generator, device, 10);
  CHECK(cudaMemcpy(drawn.data(), device, 10 * sizeof(float), cudaMemcpyDeviceToHost));
  for (float v : drawn) printf("%.4f ", v);
  curandDestroyGenerator(generator);
  CHECK(cudaFree(device));
  curandCreateGeneratorHost(&generator, CURAND_RNG_PSEUDO_PHILOX4_32_10);
  double sum = 0;
  for (int call = 0; call < 2; ++call) {
    std::vector<double> normal(10000);
    curandGenerateNormalDouble(generator, normal.data(), normal.size(), 5, 2);
    for (double v : normal) sum += v / 20000;
  }
  curandDestroyGenerator(generator);
  printf("%.1f\n", sum);
  printf("%d\n", curandCreateGenerator(&generator, CURAND_RNG_QUASI_SOBOL32));
}

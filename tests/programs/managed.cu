// Managed memory that host and kernels share, streams, and the time between two events.
#include <cooperative_groups.h>

#include <vector>

#include "check.cuh"

namespace cg = cooperative_groups;

__global__ void scale(float* x, int n, float factor) {
  for (auto i = cg::this_grid().thread_rank(); i < n; i += cg::this_grid().size()) x[i] *= factor;
}

int main() {
  const int n = 1 << 16;
  float* x = nullptr;
  CHECK(cudaMallocManaged(&x, n * sizeof *x));
  for (int i = 0; i < n; ++i) x[i] = 1;
  const cudaMemLocation device{cudaMemLocationTypeDevice, 0}, host{cudaMemLocationTypeHost, 0};
  const cudaMemLocation no_device{cudaMemLocationTypeDevice, -3}, nowhere{};
  const size_t bytes = n * sizeof *x;
  float* plain = nullptr;
  CHECK(cudaMalloc(&plain, bytes));
  CHECK(cudaMemAdvise(x, bytes, cudaMemAdviseSetPreferredLocation, device));
  CHECK(cudaMemAdvise(x, bytes, cudaMemAdviseSetReadMostly, nowhere));
  CHECK(cudaMemPrefetchAsync(x, bytes, device, 0, nullptr));
  CHECK(cudaMemPrefetchAsync(x + n / 2, bytes / 2, host, 0, nullptr));
  int supported = 0;  // for memory that CUDA has not allocated
  CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrPageableMemoryAccess, 0));
  std::vector<float> ordinary(n);
  if (supported) CHECK(cudaMemPrefetchAsync(ordinary.data(), bytes, device, 0, nullptr));
  bool refused =
      cudaMemPrefetchAsync(x, bytes, no_device, 0, nullptr) == cudaErrorInvalidDevice &&
      cudaMemPrefetchAsync(x, bytes, nowhere, 0, nullptr) == cudaErrorInvalidValue &&
      cudaMemPrefetchAsync(x, bytes, device, 1, nullptr) == cudaErrorInvalidValue &&
      cudaMemPrefetchAsync(x, 2 * bytes, device, 0, nullptr) == cudaErrorInvalidValue &&
      cudaMemPrefetchAsync(x, 0, device, 0, nullptr) == cudaErrorInvalidValue &&
      cudaMemPrefetchAsync(plain, bytes, device, 0, nullptr) == cudaErrorInvalidValue &&
      cudaMemAdvise(x, bytes, cudaMemAdviseSetAccessedBy, nowhere) == cudaErrorInvalidValue &&
      cudaMemAdvise(x, bytes, static_cast<cudaMemoryAdvise>(9), device) == cudaErrorInvalidValue;
  if (!refused) return 2;
  (void)cudaGetLastError();
  CHECK(cudaFree(plain));
  cudaStream_t stream;
  cudaEvent_t start, end;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(start, stream));
  for (int round = 0; round < 3; ++round) scale<<<8, 128, 0, stream>>>(x, n, 2.0f);
  CHECK(cudaEventRecord(end, stream));
  CHECK(cudaEventSynchronize(end));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start, end));
  for (int i = 0; i < n; ++i)
    if (x[i] != 8) return 1;
  printf("%s\n", milliseconds > 0 && milliseconds < 10000 ? "8, in a measured time" : "no time");
  CHECK(cudaFree(x));
  return 0;
}

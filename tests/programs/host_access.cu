// Host code that uses device memory as its own, where and when the argument says.
#include <cstdio>
#include <cstring>

#include "check.cuh"

__global__ void add_one(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1;
}

int main(int, char** arguments) {
  constexpr int n = 1000;
  float *x, *managed, *pinned;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  CHECK(cudaMallocManaged(&managed, n * sizeof(float)));
  CHECK(cudaMallocHost(&pinned, n * sizeof(float)));
  const bool before = strcmp(arguments[1], "before") == 0;
  if (before) x[0] = 1;  // before a kernel
  for (int i = 0; i < n; ++i) managed[i] = pinned[i] = static_cast<float>(i);
  CHECK(cudaMemcpy(x, pinned, n * sizeof(float), cudaMemcpyHostToDevice));
  for (int k = 0; k < 100; ++k) {
    add_one<<<4, 256>>>(x, n);
    add_one<<<4, 256>>>(managed, n);
  }
  CHECK(cudaDeviceSynchronize());
  const float expected = pinned[7] + 100;
  if (strcmp(arguments[1], "after") == 0) return x[7] == expected;  // after a kernel
  CHECK(cudaMemcpy(pinned, x, n * sizeof(float), cudaMemcpyDeviceToHost));
  printf("%d\n", managed[7] == expected && pinned[7] == expected);
  CHECK(cudaFree(x));
  if (strcmp(arguments[1], "freed") == 0) printf("%d\n", x[0] == 0);
  CHECK(cudaMalloc(&x, 64 << 20));
  CHECK(cudaMemset(x, 0, 64 << 20));
  CHECK(cudaFree(x));
}

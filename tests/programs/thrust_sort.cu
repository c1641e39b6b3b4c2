// Thrust's vectors and algorithms beside kernels of the program's own.
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include "check.cuh"

__global__ void scatter(int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = i * 7919 % n;
}

struct Square {
  __host__ __device__ int operator()(int x) const { return x * x; }
};

int main() {
  constexpr int n = 1000;
  thrust::device_vector<int> x(n);
  scatter<<<4, 256>>>(thrust::raw_pointer_cast(x.data()), n);
  thrust::sort(x.begin(), x.end());
  const thrust::host_vector<int> sorted = x;
  thrust::transform(thrust::device, x.begin(), x.end(), x.begin(), Square());
  const int sum = thrust::reduce(x.begin(), x.end());

  int* raw;
  CHECK(cudaMalloc(&raw, n * sizeof(int)));
  scatter<<<4, 256>>>(raw, n);
  const thrust::device_ptr<int> pointer(raw);
  thrust::inclusive_scan(pointer, pointer + n, pointer);
  int last = 0;
  CHECK(cudaMemcpy(&last, raw + n - 1, sizeof last, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(raw));
  printf("%d %d %d %d\n", sorted[1], sorted[n - 1], sum, last);
}

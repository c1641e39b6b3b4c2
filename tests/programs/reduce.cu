// A sum of 1 … n by a tree in dynamic shared memory. Arguments: n, threads of a block.
#include "check.cuh"

__constant__ int first;

__global__ void sum(unsigned long long* out, int n) {
  extern __shared__ unsigned long long partial[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  partial[threadIdx.x] = i < n ? i + first : 0;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, partial[0]);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: reduce N THREADS\n");
    return 4;
  }
  int n = atoi(argv[1]), threads = atoi(argv[2]), one = 1;
  CHECK(cudaMemcpyToSymbol(first, &one, sizeof one));
  unsigned long long *out, result = 0;
  CHECK(cudaMalloc(&out, sizeof *out));
  CHECK(cudaMemset(out, 0, sizeof *out));
  sum<<<(n + threads - 1) / threads, threads, threads * sizeof *out>>>(out, n);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost));
  printf("%llu\n", result);
  return 0;
}

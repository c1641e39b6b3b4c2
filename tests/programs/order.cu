// Prints the order in which threads ran; what the argument names then goes wrong.
#include <cstring>

#include "check.cuh"

__global__ void number(int* counter) {
  printf("%d", static_cast<int>(threadIdx.x));
}
__global__ void crash(int* nowhere) {
  *nowhere = 1;  // here
}
__global__ void spin(volatile int* flag) {
  while (true) *flag = 1;
}

int main(int argc, char** argv) {
  int* flag = nullptr;
  CHECK(cudaMalloc(&flag, sizeof *flag));
  number<<<1, 4>>>(flag);
  CHECK(cudaDeviceSynchronize());
  printf("\n");
  fflush(stdout);
  if (argc > 1 && strcmp(argv[1], "crash") == 0) crash<<<1, 1>>>(nullptr);
  if (argc > 1 && strcmp(argv[1], "spin") == 0) spin<<<1, 1>>>(flag);
  return 0;
}

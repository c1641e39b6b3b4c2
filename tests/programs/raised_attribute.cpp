// Two threads raise an attribute of one kernel; the second one to less. Compiled against a stand-in
// for CUDA whose only state is the attribute's value: prints it, and the number of calls.
#include "common/cuda/kernel_queries.cuh"

#include <cstdio>
#include <thread>

static int value = 0, calls = 0;

int cudaGetDevice(int* gpu) {
  *gpu = 0;
  return 0;
}
int cudaFuncSetAttribute(void (*)(), cudaFuncAttribute, int to) {
  value = to;
  ++calls;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(), int, size_t) {
  *blocks = 1;
  return 0;
}
int cudaOccupancyMaxActiveClusters(int* clusters, void (*)(), const cudaLaunchConfig_t*) {
  *clusters = 1;
  return 0;
}

static void kernel() {}

int main() {
  raise_attribute(kernel, MAXIMUM, 98304);
  std::thread([] { raise_attribute(kernel, MAXIMUM, 36864); }).join();
  raise_attribute(kernel, MAXIMUM, 55296);
  std::printf("%d after %d call\n", value, calls);
}

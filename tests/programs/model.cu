// What the card that is played says of itself, refuses, and lacks. Argument: what to try.
#include "check.cuh"

#include "common/cuda/ptx.cuh"

#include <algorithm>
#include <cstring>

#define DEVICE __device__ __forceinline__

// Nothing but what nvcc compiles for the device, in the ways that files ask for it.
DEVICE int by_macro() {
#if __CUDA_ARCH__ >= 800
  return 1;
#else
  return 0;
#endif
}

__host__ __device__ int on_both() {
#ifdef __CUDA_ARCH__
  return __CUDA_ARCH__;
#else
  return -1;
#endif
}

int on_host() {
#ifdef __CUDA_ARCH__
  return 1;
#else
  return 0;
#endif
}

#ifndef __CUDACC__
#error "nvcc defines it"
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool host_sees_it = true;
#endif

__global__ void architecture(int* out) {
  out[0] = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  out[0] = 1;
#endif
  out[1] = by_macro();
  out[2] = on_both();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  out[3] = 1;
#else
  out[3] = 0;
#endif
}

__global__ void dynamic(int* out) {
  extern __shared__ int memory[];
  memory[threadIdx.x] = 1;
  out[0] = memory[threadIdx.x];
}

__global__ void plain(int* out) {
  out[0] = 1;
}

__global__ void __cluster_dims__(2, 1, 1) clustered(int* out) {
  out[0] = 1;
}

__global__ void copies(int* out) {
  __shared__ alignas(16) int to[4];
  ptx::cp_async<16>(to, out);  // cp.async
  ptx::cp_async_wait_all();
}

__global__ void multiplies(int* out) {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  ptx::mma_m16n8k16<__half>(d, a, b, d);
  out[0] = static_cast<int>(d[0]);
}

__global__ void multiplies_fp8(int* out) {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  ptx::mma_m16n8k32<__nv_fp8_e4m3>(d, a, b, d);
  out[0] = static_cast<int>(d[0]);
}

__global__ void reduces(int* out) {
  out[0] = __reduce_add_sync(0xffffffffu, 1);
}

__global__ void waits(int* out) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, 1);
  out[0] = 0;
}

__global__ void copies_in_bulk(int* out) {
  __shared__ alignas(16) int to[4];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes(&barrier, 16);
    ptx::copy_bulk(to, out, 16, &barrier);
    ptx::mbarrier_wait(&barrier, 0);
  }
}

__global__ void fences_wgmma() {
  ptx::wgmma_fence();
}

void report(const char* what) {
  const cudaError_t error = cudaGetLastError();
  printf("%s: %s: %s\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int *out = nullptr, blocks = 0, found[4];
  CHECK(cudaMalloc(&out, 64));
  CHECK(cudaMemset(out, 0, 64));
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, 0));
  if (what == "facts") {
    cudaFuncAttributes function;
    CHECK(cudaFuncGetAttributes(&function, plain));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 32, 0));
    printf("%s|%d|%d|%d|%d|%zu|%zu|%zu|%d|%d|%d|%d|%d\n", p.name, 10 * p.major + p.minor,
           p.multiProcessorCount, p.maxThreadsPerMultiProcessor, p.maxBlocksPerMultiProcessor,
           p.sharedMemPerBlockOptin, p.sharedMemPerMultiprocessor, p.reservedSharedMemPerBlock,
           p.clusterLaunch, p.l2CacheSize, p.regsPerMultiprocessor, function.binaryVersion, blocks);
  } else if (what == "architecture") {
    architecture<<<1, 1>>>(out);
    CHECK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
    printf("%d %d %d %d %d %d\n", found[0], found[1], found[2], found[3], on_host(), host_sees_it);
  } else if (what == "limits") {
    const int most = static_cast<int>(p.sharedMemPerBlockOptin);
    cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 4);
    report("attribute");
    CHECK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    dynamic<<<1, 32, most>>>(out);
    report("launch");
    dynamic<<<1, 32, most + 4>>>(out);
    report("too much");
    clustered<<<2, 32>>>(out);
    report("cluster");
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 1024, 0));
    void* arguments[] = {&out};
    const int resident = blocks * p.multiProcessorCount;
    cudaLaunchCooperativeKernel(plain, dim3(resident + 1), dim3(1024), arguments, 0, nullptr);
    report("cooperative");
  } else if (what == "cp.async") {
    copies<<<1, 1>>>(out);
  } else if (what == "mma") {
    multiplies<<<1, 32>>>(out);
  } else if (what == "fp8") {
    multiplies_fp8<<<1, 32>>>(out);
  } else if (what == "redux") {
    reduces<<<1, 32>>>(out);
  } else if (what == "mbarrier") {
    waits<<<1, 32>>>(out);
  } else if (what == "bulk") {
    copies_in_bulk<<<1, 32>>>(out);
  } else if (what == "wgmma") {
    fences_wgmma<<<1, 128>>>();
  }
  CHECK(cudaGetLastError());
  return 0;
}

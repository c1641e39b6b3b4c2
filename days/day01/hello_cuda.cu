// Day 1: hello, GPU
//
// What is this GPU, and where does a thread run? Four small operators:
//
//   properties      compute capability, multiprocessors, memory, L2 cache, limits and clock, from
//                   the CUDA runtime; day.py compares them with PyTorch's report of the same GPU
//   device_name     the name of the GPU, as bytes
//   global_indices  each thread computes its index in the grid, stores it, and may print it
//   sm_ids          the multiprocessor (SM) that each block ran on, read from a register that
//                   PTX, NVIDIA's assembly language, can name and CUDA C++ cannot
//
// Bytes and operations: almost none, so nothing is timed on this day.
//
// Run: python run_day.py 1

#include "common/cuda/binding.cuh"  // explained in day 6
#include "common/cuda/tensor.cuh"

#include <cstdio>
#include <cstring>

// ---------------------------------------------------------------------------------------------
// properties: one call fills in a struct of about a hundred facts. A few others are attributes,
// which are queried one at a time; CUDA 13 has made the clock one of them.

// Returns int64 facts in this order: compute capability (major, minor), multiprocessors, bytes of
// memory, bytes of L2 cache, threads per warp, threads per block (maximum), threads per
// multiprocessor, registers per multiprocessor, bytes of shared memory (day 5) per block (the
// maximum, which a kernel must opt in to), clock in kHz.
Tensor properties(const Tensor& like) {
  check(like, "like").on_gpu();
  cudaDeviceProp gpu;
  check_cuda(cudaGetDeviceProperties(&gpu, device_index(like)), "cudaGetDeviceProperties");
  int clock_khz = 0;
  check_cuda(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device_index(like)),
             "cudaDeviceGetAttribute");
  const int64_t facts[] = {gpu.major,
                           gpu.minor,
                           gpu.multiProcessorCount,
                           static_cast<int64_t>(gpu.totalGlobalMem),
                           gpu.l2CacheSize,
                           gpu.warpSize,
                           gpu.maxThreadsPerBlock,
                           gpu.maxThreadsPerMultiProcessor,
                           gpu.regsPerMultiprocessor,
                           static_cast<int64_t>(gpu.sharedMemPerBlockOptin),
                           clock_khz};
  Tensor out = allocate(like, {std::size(facts)}, ScalarType::Long);
  // cudaMemcpyDefault: the runtime sees from the addresses that this copies from host to device.
  check_cuda(cudaMemcpy(out.mutable_data_ptr(), facts, sizeof(facts), cudaMemcpyDefault), "copy");
  return out;
}

// Returns the GPU's name as uint8, one byte per character, because tensors hold no text.
Tensor device_name(const Tensor& like) {
  check(like, "like").on_gpu();
  cudaDeviceProp gpu;
  check_cuda(cudaGetDeviceProperties(&gpu, device_index(like)), "cudaGetDeviceProperties");
  const int64_t length = std::strlen(gpu.name);
  Tensor out = allocate(like, {length}, ScalarType::Byte);
  check_cuda(cudaMemcpy(out.mutable_data_ptr(), gpu.name, length, cudaMemcpyDefault), "copy");
  return out;
}

// ---------------------------------------------------------------------------------------------
// global_indices: every thread runs the same kernel; only threadIdx and blockIdx differ.

// out: (gridDim.x * blockDim.x,). Where `print` is true, each thread prints a line; of 2 blocks of
// 4 threads, thread 3 of block 1 prints "hello from thread 3 of block 1: I am number 7 of 8".
__global__ void global_indices_kernel(int* __restrict__ out, bool print) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;  // [0, gridDim.x * blockDim.x)
  out[i] = i;
  if (print) {
    printf("hello from thread %u of block %u: I am number %d of %u\n", threadIdx.x, blockIdx.x, i,
           gridDim.x * blockDim.x);
  }
}

// Launches 1 to 65535 blocks of 1 to 1024 threads. Returns (blocks * threads,) int32.
Tensor global_indices(const Tensor& like, int64_t blocks, int64_t threads, bool print) {
  check(like, "like").on_gpu();
  STD_TORCH_CHECK(blocks >= 1 && blocks <= 65535, "blocks: expected 1 to 65535, got ", blocks);
  STD_TORCH_CHECK(threads >= 1 && threads <= 1024, "threads: expected 1 to 1024, got ", threads);
  const DeviceGuard guard(like);
  Tensor out = allocate(like, {blocks * threads}, ScalarType::Int);
  global_indices_kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0,
                          current_stream(like)>>>(mutable_data<int>(out), print);
  check_launch("global_indices");
  return out;
}

// ---------------------------------------------------------------------------------------------
// sm_ids: CUDA C++ has no name for the multiprocessor that a thread runs on. PTX calls it %smid.

__device__ int multiprocessor_id() {
#ifdef CUDA_ON_CPU
  return cudacpu::smid();  // on the CPU backend, an OS thread plays the part of a multiprocessor
#else
  int id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
#endif
}

__global__ void sm_ids_kernel(int* __restrict__ out) {
  if (threadIdx.x == 0) out[blockIdx.x] = multiprocessor_id();
}

// Returns (blocks,) int32: the multiprocessor of each block. The numbers may differ between runs.
Tensor sm_ids(const Tensor& like, int64_t blocks) {
  check(like, "like").on_gpu();
  STD_TORCH_CHECK(blocks >= 1 && blocks <= 65535, "blocks: expected 1 to 65535, got ", blocks);
  const DeviceGuard guard(like);
  Tensor out = allocate(like, {blocks}, ScalarType::Int);
  sm_ids_kernel<<<static_cast<unsigned>(blocks), 32, 0, current_stream(like)>>>(
      mutable_data<int>(out));
  check_launch("sm_ids");
  return out;
}

// ---------------------------------------------------------------------------------------------

RUNG(day01, properties, "(Tensor like) -> Tensor");
RUNG(day01, device_name, "(Tensor like) -> Tensor");
RUNG(day01, global_indices, "(Tensor like, int blocks, int threads, bool print=False) -> Tensor");
RUNG(day01, sm_ids, "(Tensor like, int blocks) -> Tensor");

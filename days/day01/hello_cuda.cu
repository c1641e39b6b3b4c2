// Day 1: hello, GPU
//
// What is this GPU, and where does a thread run? Three small programs:
//
//   properties      name, compute capability, multiprocessors, memory, caches, clock, from CUDA's
//                   runtime; day.py holds them beside what PyTorch says of the same GPU
//   global_indices  every thread works out its own number, records it, and may print it
//   sm_ids          the multiprocessor (SM) that each block ran on, read from a register that
//                   only PTX, the GPU's assembly language, can name
//
// Bytes and operations: next to none. Nothing of this day is timed.
//
// Run: python run_day.py 1

#include "common/cuda/tensor.cuh"

#include <cstdio>
#include <cstring>

// ---------------------------------------------------------------------------------------------
// properties: one call fills in a struct with about a hundred facts; some newer ones have to be
// asked for one by one.

// The facts of `facts` in this order, as int64: major, minor, multiprocessors, bytes of memory,
// bytes of L2 cache, threads a warp, threads a block at most, threads a multiprocessor, registers a
// multiprocessor, bytes of shared memory a block (at most, if asked for), clock in kHz.
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
  Tensor out = torch::stable::new_empty(like, {std::size(facts)}, ScalarType::Long);
  // The facts are on the host, the tensor may be on the GPU: copying needs the runtime's help.
  check_cuda(cudaMemcpy(out.mutable_data_ptr(), facts, sizeof(facts), cudaMemcpyDefault), "copy");
  return out;
}

// The GPU's name, a byte a letter (uint8): tensors hold no text.
Tensor device_name(const Tensor& like) {
  check(like, "like").on_gpu();
  cudaDeviceProp gpu;
  check_cuda(cudaGetDeviceProperties(&gpu, device_index(like)), "cudaGetDeviceProperties");
  const int64_t length = std::strlen(gpu.name);
  Tensor out = torch::stable::new_empty(like, {length}, ScalarType::Byte);
  check_cuda(cudaMemcpy(out.mutable_data_ptr(), gpu.name, length, cudaMemcpyDefault), "copy");
  return out;
}

// ---------------------------------------------------------------------------------------------
// global_indices: the same program runs in every thread; what differs is threadIdx and blockIdx.

__global__ void global_indices_kernel(int* __restrict__ out, bool print) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;  // threads of earlier blocks, then me
  out[i] = i;
  if (print) {
    printf("hello from thread %u of block %u: I am number %d of %u\n", threadIdx.x, blockIdx.x, i,
           gridDim.x * blockDim.x);
  }
}

// blocks, threads: 1 to 65535 blocks of 1 to 1024 threads. Returns (blocks * threads,) int32.
Tensor global_indices(const Tensor& like, int64_t blocks, int64_t threads, bool print) {
  check(like, "like").on_gpu();
  STD_TORCH_CHECK(blocks >= 1 && blocks <= 65535, "blocks: expected 1 to 65535, got ", blocks);
  STD_TORCH_CHECK(threads >= 1 && threads <= 1024, "threads: expected 1 to 1024, got ", threads);
  const DeviceGuard guard(like);
  Tensor out = torch::stable::new_empty(like, {blocks * threads}, ScalarType::Int);
  global_indices_kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0,
                          current_stream(like)>>>(mutable_data<int>(out), print);
  check_launch("global_indices");
  return out;
}

// ---------------------------------------------------------------------------------------------
// sm_ids: CUDA C++ has no name for the multiprocessor that a thread runs on. PTX has: %smid.

__device__ int multiprocessor_id() {
#ifdef CUDA_ON_CPU
  return cudacpu::smid();  // the CPU backend counts its worker threads as multiprocessors
#else
  int id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
#endif
}

__global__ void sm_ids_kernel(int* __restrict__ out) {
  if (threadIdx.x == 0) out[blockIdx.x] = multiprocessor_id();
}

// Returns (blocks,) int32: the multiprocessor of each block. Another run may give other numbers.
Tensor sm_ids(const Tensor& like, int64_t blocks) {
  check(like, "like").on_gpu();
  STD_TORCH_CHECK(blocks >= 1 && blocks <= 65535, "blocks: expected 1 to 65535, got ", blocks);
  const DeviceGuard guard(like);
  Tensor out = torch::stable::new_empty(like, {blocks}, ScalarType::Int);
  sm_ids_kernel<<<static_cast<unsigned>(blocks), 32, 0, current_stream(like)>>>(
      mutable_data<int>(out));
  check_launch("sm_ids");
  return out;
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day01, m) {
  m.def("properties(Tensor like) -> Tensor");
  m.def("device_name(Tensor like) -> Tensor");
  m.def("global_indices(Tensor like, int blocks, int threads, bool print=False) -> Tensor");
  m.def("sm_ids(Tensor like, int blocks) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day01, CUDA, m) {
  m.impl("properties", TORCH_BOX(&properties));
  m.impl("device_name", TORCH_BOX(&device_name));
  m.impl("global_indices", TORCH_BOX(&global_indices));
  m.impl("sm_ids", TORCH_BOX(&sm_ids));
}

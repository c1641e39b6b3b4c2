// For test_cpu_memory.py: pools, 3D memory, devices beside this one, memory of several processes.
#include "common/cuda/tensor.cuh"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include <cstring>
#include <string>
#include <vector>

#define EXPECT(call, expected)                                                         \
  do {                                                                                 \
    cudaError_t got = (call);                                                          \
    (void)cudaGetLastError();                                                          \
    STD_TORCH_CHECK(got == (expected), #call, " is ", cudaGetErrorName(got), ", not ", \
                    cudaGetErrorName(expected));                                       \
  } while (0)

__global__ void fill_kernel(float* x, float value) {
  x[threadIdx.x] = value;
}

// ---------------------------------------------------------------- pools

uint64_t figure(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
  uint64_t value = ~uint64_t{0};
  EXPECT(cudaMemPoolGetAttribute(pool, attribute, &value), cudaSuccess);
  return value;
}

void pools(Tensor) {
  constexpr size_t kBytes = 1 << 20;
  cudaMemPool_t standard, current, own;
  EXPECT(cudaDeviceGetDefaultMemPool(&standard, 0), cudaSuccess);
  EXPECT(cudaDeviceGetMemPool(&current, 0), cudaSuccess);
  STD_TORCH_CHECK(current == standard);
  cudaMemPoolProps expected = {};
  expected.allocType = cudaMemAllocationTypePinned;
  expected.location = {cudaMemLocationTypeDevice, 0};
  EXPECT(cudaMemPoolCreate(&own, &expected), cudaSuccess);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrUsedMemCurrent) == 0);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrReleaseThreshold) == 0);

  // All that was reserved is kept.
  uint64_t all = ~uint64_t{0};
  EXPECT(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &all), cudaSuccess);
  cudaStream_t stream;
  EXPECT(cudaStreamCreate(&stream), cudaSuccess);
  float *a = nullptr, *b = nullptr;
  EXPECT(cudaMallocFromPoolAsync(&a, kBytes, own, stream), cudaSuccess);
  EXPECT(cudaDeviceSetMemPool(0, own), cudaSuccess);
  EXPECT(cudaMallocAsync(&b, 2 * kBytes, stream), cudaSuccess);
  EXPECT(cudaDeviceSetMemPool(0, standard), cudaSuccess);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrUsedMemCurrent) >= 3 * kBytes);
  fill_kernel<<<1, 64, 0, stream>>>(b, 2.f);
  EXPECT(cudaGetLastError(), cudaSuccess);
  EXPECT(cudaFreeAsync(b, stream), cudaSuccess);
  EXPECT(cudaFreeAsync(a, stream), cudaSuccess);
  EXPECT(cudaStreamSynchronize(stream), cudaSuccess);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrUsedMemCurrent) == 0);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrUsedMemHigh) >= 3 * kBytes);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrReservedMemCurrent) >= 3 * kBytes);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrReservedMemHigh) >=
                  figure(own, cudaMemPoolAttrReservedMemCurrent));
  EXPECT(cudaMemPoolTrimTo(own, 0), cudaSuccess);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrReservedMemCurrent) == 0);
  uint64_t zero = 0;
  EXPECT(cudaMemPoolSetAttribute(own, cudaMemPoolAttrUsedMemHigh, &zero), cudaSuccess);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrUsedMemHigh) == 0);

  // Nothing is kept.
  EXPECT(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &zero), cudaSuccess);
  EXPECT(cudaMallocFromPoolAsync(&a, kBytes, own, stream), cudaSuccess);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrReservedMemCurrent) >= kBytes);
  EXPECT(cudaFreeAsync(a, stream), cudaSuccess);
  EXPECT(cudaStreamSynchronize(stream), cudaSuccess);
  STD_TORCH_CHECK(figure(own, cudaMemPoolAttrUsedMemCurrent) == 0);

  int reuse = -1;
  EXPECT(cudaMemPoolGetAttribute(own, cudaMemPoolReuseAllowOpportunistic, &reuse), cudaSuccess);
  STD_TORCH_CHECK(reuse == 1);
  EXPECT(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemCurrent, nullptr),
         cudaErrorInvalidValue);
  EXPECT(cudaDeviceGetMemPool(&current, 9999), cudaErrorInvalidValue);
  EXPECT(cudaDeviceGetDefaultMemPool(&current, 9999), cudaErrorInvalidDevice);
  EXPECT(cudaMemPoolDestroy(own), cudaSuccess);
  EXPECT(cudaStreamDestroy(stream), cudaSuccess);
#ifdef CUDA_ON_CPU  // NVIDIA's library takes a handle that is none as it comes
  EXPECT(cudaMemPoolTrimTo(own, 0), cudaErrorInvalidValue);
  EXPECT(cudaMemPoolDestroy(standard), cudaErrorInvalidValue);
#endif
}

// ---------------------------------------------------------------- 3D memory

// A box of x, put at another place into rows with a pitch, and back. (depth, height, width)
Tensor box(Tensor x) {
  const auto depth = static_cast<size_t>(x.size(0)), height = static_cast<size_t>(x.size(1)),
             width = static_cast<size_t>(x.size(2)) * sizeof(float);
  Tensor y = torch::stable::new_zeros(x, x.sizes());
  cudaPitchedPtr memory;
  EXPECT(cudaMalloc3D(&memory, make_cudaExtent(width, height, depth)), cudaSuccess);
  STD_TORCH_CHECK(memory.pitch >= width && memory.pitch % 32 == 0 && memory.ysize == height);
  EXPECT(cudaMemset3D(memory, 0, make_cudaExtent(width, height, depth)), cudaSuccess);
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = make_cudaPitchedPtr(x.mutable_data_ptr(), width, width, height);
  copy.dstPtr = memory;
  copy.srcPos = make_cudaPos(sizeof(float), 1, 1);
  copy.dstPos = make_cudaPos(0, 1, 0);
  copy.extent = make_cudaExtent(width - 2 * sizeof(float), height - 1, depth - 1);
  copy.kind = cudaMemcpyDeviceToDevice;
  EXPECT(cudaMemcpy3D(&copy), cudaSuccess);
  cudaMemcpy3DParms back = {};
  back.srcPtr = memory;
  back.dstPtr = make_cudaPitchedPtr(y.mutable_data_ptr(), width, width, height);
  back.extent = make_cudaExtent(width, height, depth);
  back.kind = cudaMemcpyDefault;
  EXPECT(cudaMemcpy3DAsync(&back, nullptr), cudaSuccess);
  EXPECT(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT(cudaFree(memory.ptr), cudaSuccess);
  return y;
}

// ---------------------------------------------------------------- peers, and a profiler's marks

void peers(Tensor) {
  int count = 0, can = -1;
  EXPECT(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT(cudaDeviceCanAccessPeer(&can, 0, 0), cudaSuccess);
  STD_TORCH_CHECK(can == 0);  // a device is no peer of itself
  EXPECT(cudaDeviceEnablePeerAccess(count, 0), cudaErrorInvalidDevice);
  std::vector<float> numbers{1, 2, 3, 4}, back(4);
  float *a = nullptr, *b = nullptr;
  EXPECT(cudaMalloc(&a, 16), cudaSuccess);
  EXPECT(cudaMalloc(&b, 16), cudaSuccess);
  EXPECT(cudaMemcpy(a, numbers.data(), 16, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT(cudaMemcpyPeer(b, 0, a, 0, 16), cudaSuccess);
  EXPECT(cudaMemcpyPeerAsync(b, 0, a, 0, 16, nullptr), cudaSuccess);
  EXPECT(cudaMemcpy(back.data(), b, 16, cudaMemcpyDeviceToHost), cudaSuccess);
  STD_TORCH_CHECK(back == numbers);
  EXPECT(cudaMemcpyPeer(b, count, a, 0, 16), cudaErrorInvalidDevice);
  EXPECT(cudaFree(a), cudaSuccess);
  EXPECT(cudaFree(b), cudaSuccess);

  cudaStream_t stream;
  unsigned long long id = 0, of_default = 0, of_legacy = 0;
  EXPECT(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT(cudaStreamGetId(stream, &id), cudaSuccess);
  EXPECT(cudaStreamGetId(nullptr, &of_default), cudaSuccess);
  EXPECT(cudaStreamGetId(cudaStreamLegacy, &of_legacy), cudaSuccess);
  STD_TORCH_CHECK(id != of_default && of_default == of_legacy);
  EXPECT(cudaStreamDestroy(stream), cudaSuccess);

  EXPECT(cudaProfilerStart(), cudaSuccess);
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.colorType = NVTX_COLOR_ARGB;
  event.color = 0xff00ff00;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = "a range";
  nvtxRangePushEx(&event);
  nvtxMark("here");
  nvtxRangePop();
  nvtxRangeId_t range = nvtxRangeStart("another");
  nvtxRangeEnd(range);
  EXPECT(cudaProfilerStop(), cudaSuccess);
}

// ---------------------------------------------------------------- between processes

// The memory of a round, 64 floats, and the flag of all of them.
struct Shared {
  float* values;
  int* flag;
};
Shared shared_memory(int64_t address, int64_t round) {
  auto* base = reinterpret_cast<char*>(address);
  return {reinterpret_cast<float*>(base) + 64 * round, reinterpret_cast<int*>(base + 4096)};
}

// Waits until the other process has raised the flag, and adds what it wrote there to x.
__global__ void receive_kernel(const float* values, volatile int* flag, int round, float* x) {
  if (threadIdx.x == 0)
    while (*flag < round) {
    }
  __syncthreads();
  __threadfence_system();
  x[threadIdx.x] += static_cast<const volatile float*>(values)[threadIdx.x];
}
__global__ void send_kernel(float* values, volatile int* flag, int round, const float* x) {
  values[threadIdx.x] = x[threadIdx.x];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *flag = round;
}

// Memory for others, and its handle as 64 bytes: (address, handle).
int64_t export_memory(Tensor handle) {
  char* memory = nullptr;
  EXPECT(cudaMalloc(&memory, 8192), cudaSuccess);
  EXPECT(cudaMemset(memory, 0, 8192), cudaSuccess);
  cudaIpcMemHandle_t made, again;
  EXPECT(cudaIpcGetMemHandle(&made, memory), cudaSuccess);
  EXPECT(cudaIpcGetMemHandle(&again, memory), cudaSuccess);
  STD_TORCH_CHECK(memcmp(&made, &again, sizeof made) == 0);
  memcpy(handle.mutable_data_ptr(), &made, sizeof made);
  return reinterpret_cast<int64_t>(memory);
}
int64_t import_memory(Tensor handle) {
  cudaIpcMemHandle_t given;
  memcpy(&given, handle.mutable_data_ptr(), sizeof given);
  void* memory = nullptr;
  cudaError_t status = cudaIpcOpenMemHandle(&memory, given, cudaIpcMemLazyEnablePeerAccess);
  const std::string reason = cudaGetErrorString(status);
  (void)cudaGetLastError();
  STD_TORCH_CHECK(status == cudaSuccess, cudaGetErrorName(status), ": ", reason);
  return reinterpret_cast<int64_t>(memory);
}
void close_memory(Tensor, int64_t address) {
  EXPECT(cudaIpcCloseMemHandle(reinterpret_cast<void*>(address)), cudaSuccess);
}
void free_memory(Tensor, int64_t address) {
  EXPECT(cudaFree(reinterpret_cast<void*>(address)), cudaSuccess);
}
void send(Tensor x, int64_t address, int64_t round) {
  Shared there = shared_memory(address, round);
  send_kernel<<<1, 64>>>(there.values, there.flag, static_cast<int>(round), mutable_data<float>(x));
  check_launch("send");
}
void receive(Tensor x, int64_t address, int64_t round) {
  Shared here = shared_memory(address, round);
  receive_kernel<<<1, 64>>>(here.values, here.flag, static_cast<int>(round),
                            mutable_data<float>(x));
  check_launch("receive");
}

// Whether a kernel that waits in vain is found out while this process shares no memory.
void wait_in_vain(Tensor x) {
  int* flag = mutable_data<int>(x);
  receive_kernel<<<1, 32>>>(nullptr, flag, 1, nullptr);
  check_launch("wait_in_vain");
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_memory, m) {
  m.def("pools(Tensor like) -> ()");
  m.def("box(Tensor x) -> Tensor");
  m.def("peers(Tensor like) -> ()");
  m.def("export_memory(Tensor(a!) handle) -> int");
  m.def("import_memory(Tensor handle) -> int");
  m.def("close_memory(Tensor like, int address) -> ()");
  m.def("free_memory(Tensor like, int address) -> ()");
  m.def("send(Tensor x, int address, int round) -> ()");
  m.def("wait_in_vain(Tensor x) -> ()");
  m.def("receive(Tensor(a!) x, int address, int round) -> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_memory, CUDA, m) {
  m.impl("pools", TORCH_BOX(&pools));
  m.impl("box", TORCH_BOX(&box));
  m.impl("peers", TORCH_BOX(&peers));
}
// Between processes, of the CPU backend alone: a handle is made from a tensor of the host.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY_IMPL(test_memory, CompositeExplicitAutograd, m) {
  m.impl("export_memory", TORCH_BOX(&export_memory));
  m.impl("import_memory", TORCH_BOX(&import_memory));
  m.impl("close_memory", TORCH_BOX(&close_memory));
  m.impl("free_memory", TORCH_BOX(&free_memory));
  m.impl("send", TORCH_BOX(&send));
  m.impl("wait_in_vain", TORCH_BOX(&wait_in_vain));
  m.impl("receive", TORCH_BOX(&receive));
}
#endif

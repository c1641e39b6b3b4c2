// Day 87: memory of a GPU that the processes of other GPUs of the host reach
//
// A process allocates memory and exports a handle of 64 bytes. Another process imports the handle,
// and gets an address at which its own GPU reads and writes that memory: over NVLink, where the
// GPUs are connected by it. PyTorch's allocator is not used, because a handle is of a whole
// allocation, in which other tensors might lie.

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <cstring>

// Memory on the GPU of `on`, filled with zeros.
Tensor peer_memory_allocate(const Tensor& on, int64_t bytes) {
  check(on, "on").on_gpu();
  STD_TORCH_CHECK(bytes >= 1, "bytes: expected at least 1, got ", bytes);
  const DeviceGuard guard(on);
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  check_cuda(cudaMemset(memory, 0, static_cast<size_t>(bytes)), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // before another GPU comes
  return torch::stable::from_blob(memory, {bytes}, {1}, on.device(), ScalarType::Byte,
                                  [](void* address) { (void)cudaFree(address); });
}

void check_handle(const Tensor& handle) {
  check(handle, "handle").on_host().dtype({ScalarType::Byte}).rank(1).contiguous();
  check(handle, "handle").size(0, sizeof(cudaIpcMemHandle_t));
}

void peer_memory_export(const Tensor& memory, Tensor handle) {
  check(memory, "memory").on_gpu();
  check_handle(handle);
  const DeviceGuard guard(memory);
  cudaIpcMemHandle_t found;
  check_cuda(cudaIpcGetMemHandle(&found, memory.mutable_data_ptr()), "cudaIpcGetMemHandle");
  std::memcpy(handle.mutable_data_ptr(), &found, sizeof found);
}

// The address of another process's memory, for the GPU of `on`. It is no tensor: PyTorch would look
// up whose memory it is. That process keeps the memory until this one has closed it.
int64_t peer_memory_import(const Tensor& on, const Tensor& handle) {
  check(on, "on").on_gpu();
  check_handle(handle);
  const DeviceGuard guard(on);
  cudaIpcMemHandle_t found;
  std::memcpy(&found, handle.const_data_ptr(), sizeof found);
  void* memory = nullptr;
  check_cuda(cudaIpcOpenMemHandle(&memory, found, cudaIpcMemLazyEnablePeerAccess),
             "cudaIpcOpenMemHandle");
  return reinterpret_cast<int64_t>(memory);
}

void peer_memory_close(const Tensor& on, int64_t address) {
  check(on, "on").on_gpu();
  const DeviceGuard guard(on);
  check_cuda(cudaIpcCloseMemHandle(reinterpret_cast<void*>(address)), "cudaIpcCloseMemHandle");
}

// A copy by the runtime, to see what the links can do.
void peer_memory_read(Tensor to, int64_t address) {
  check(to, "to").on_gpu().contiguous();
  const DeviceGuard guard(to);
  const size_t bytes = static_cast<size_t>(to.numel()) * to.element_size();
  check_cuda(cudaMemcpyAsync(to.mutable_data_ptr(), reinterpret_cast<const void*>(address), bytes,
                             cudaMemcpyDefault, current_stream(to)),
             "cudaMemcpyAsync");
}

RUNG(day87, peer_memory_allocate, "(Tensor on, int bytes) -> Tensor");
RUNG(day87, peer_memory_export, "(Tensor memory, Tensor(a!) handle) -> ()");
RUNG(day87, peer_memory_import, "(Tensor on, Tensor handle) -> int");
RUNG(day87, peer_memory_close, "(Tensor on, int address) -> ()");
RUNG(day87, peer_memory_read, "(Tensor(a!) to, int address) -> ()");

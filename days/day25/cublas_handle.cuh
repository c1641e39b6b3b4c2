// Day 25: the handle of cuBLAS with its stream and its workspace. HAVE_CUBLAS is defined where the
// library's headers are installed; the CPU backend has no cuBLAS.
//
// The day needs no -lcublas: libtorch_cuda, which every day links with, depends on cuBLAS. So
// PyTorch and this day call the same version.
#pragma once

#include "common/cuda/tensor.cuh"

#ifndef CUDA_ON_CPU
#if __has_include(<cublas_v2.h>)
#define HAVE_CUBLAS
#include <cublasLt.h>
#include <cublas_v2.h>

#include <map>

inline void check_cublas(cublasStatus_t status, const char* call) {
  STD_TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, call, ": ", cublasGetStatusString(status));
}

// A handle is the library's state for one device: settings, stream, workspace. Creating one is
// slow, and two threads must not use one at the same time, so there is one per device and host
// thread. It is never destroyed, because CUDA may be shut down already when the process ends.
inline cublasHandle_t handle_of(const Tensor& t) {
  thread_local std::map<int, cublasHandle_t> handles;
  cublasHandle_t& handle = handles[t.get_device_index()];
  if (handle == nullptr) check_cublas(cublasCreate(&handle), "cublasCreate");
  return handle;
}

constexpr int64_t WORKSPACE = 32 << 20;  // bytes; NVIDIA's recommendation for Hopper

// A workspace from PyTorch's allocator, which does not reuse it before the stream is done with it,
// and which supports capture in a CUDA graph. PyTorch's memory statistics include it.
struct Workspace {
  explicit Workspace(const Tensor& like)
      : room(allocate(like, {WORKSPACE + 256}, ScalarType::Byte)) {
    const auto address = reinterpret_cast<uintptr_t>(room.mutable_data_ptr());
    start = reinterpret_cast<void*>((address + 255) / 256 * 256);  // cuBLAS requires 256 bytes
  }
  Tensor room;
  void* start;
};

// A handle on the current stream. results: whether dot and amax write to the host or the device.
struct Library {
  explicit Library(const Tensor& t, cublasPointerMode_t results = CUBLAS_POINTER_MODE_HOST)
      : handle(handle_of(t)), workspace(t) {
    // In this order: cublasSetStream resets the handle to the library's own workspace.
    check_cublas(cublasSetStream(handle, current_stream(t)), "cublasSetStream");
    check_cublas(cublasSetWorkspace(handle, workspace.start, WORKSPACE), "cublasSetWorkspace");
    check_cublas(cublasSetPointerMode(handle, results), "cublasSetPointerMode");
  }
  cublasHandle_t handle;
  Workspace workspace;
};

inline cudaDataType_t type_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Half:
      return CUDA_R_16F;
    case ScalarType::BFloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

// An object of cuBLASLt that is destroyed at the end of its scope.
template <typename Handle, cublasStatus_t (*destroy)(Handle)>
struct Owned {
  Handle it = nullptr;
  ~Owned() {
    if (it) destroy(it);
  }
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

template <typename Value>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name,
         const Value& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(description, name, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
}
#endif
#endif

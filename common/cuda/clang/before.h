// Declarations for clangd and clang before a day's .cu: those that nvcc has and clang lacks.
#pragma once

// clang calls this at each <<<…>>> where it does not know the CUDA toolkit's version.
extern "C" cudaError_t cudaConfigureCall(dim3 grid, dim3 block, size_t shared = 0,
                                         cudaStream_t stream = nullptr);

// Intrinsics that clang's headers lack, as templates: functions would clash with theirs one day.
// tanh.approx.f32; stores that are written back, kept in L2 only, evicted first, written through.
template <typename Float>
__device__ float __tanhf(Float x);
template <typename T>
__device__ void __stwb(T* to, T value);
template <typename T>
__device__ void __stcg(T* to, T value);
template <typename T>
__device__ void __stcs(T* to, T value);
template <typename T>
__device__ void __stwt(T* to, T value);

// PyTorch's headers are plain host code here, see common/cuda/torch.cuh. This one looks for clang.
#pragma push_macro("__CUDA__")
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDA_ARCH__")
#undef __CUDA__
#undef __CUDACC__
#undef __CUDA_ARCH__
#include <torch/headeronly/util/Half.h>
#pragma pop_macro("__CUDA_ARCH__")
#pragma pop_macro("__CUDACC__")
#pragma pop_macro("__CUDA__")

// PyTorch's stable ABI, included so that it compiles fast: as plain host code.
//
// If __CUDACC__ is defined, torch/headeronly/util/complex.h includes <thrust/complex.h>, which
// takes nvcc as long as all other headers together, once per architecture and once for the host.
// If __F16C__ is defined, Half.h includes <immintrin.h>: a second of g++'s time, and a quarter
// of the precompiled headers of the CPU backend. No launcher uses either, so PyTorch's headers do
// not see these macros. Its number types (c10::Half …) are for host code here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("__F16C__")
#undef __CUDACC__
#undef __CUDA_ARCH__
#undef __F16C__

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#pragma pop_macro("__F16C__")
#pragma pop_macro("__CUDA_ARCH__")
#pragma pop_macro("__CUDACC__")

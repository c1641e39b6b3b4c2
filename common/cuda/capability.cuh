// Refusals before a launch, if the GPU lacks something: the report then shows the rung as SKIP,
// with the reason.
#pragma once

#include "common/cuda/tensor.cuh"

// Defined if kernels may use mma.sync of 16×8×16 and cp.async. For older cards they are compiled
// without a body, and their launchers refuse the card.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_BF16_MMA
#endif

inline int attribute_of_current_gpu(cudaDeviceAttr attribute) {
  int gpu = 0, value = 0;
  check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, gpu), "cudaDeviceGetAttribute");
  return value;
}

// The compute capability of the current GPU, 86 for 8.6.
inline int compute_capability() {
  return 10 * attribute_of_current_gpu(cudaDevAttrComputeCapabilityMajor) +
         attribute_of_current_gpu(cudaDevAttrComputeCapabilityMinor);
}

inline bool has_capability(int major, int minor) {
  return compute_capability() >= 10 * major + minor;
}

// A launcher calls these two first, after its DeviceGuard. common/check/lacks.py knows the words
// "this card lacks", with which the message begins.

// Refuse a GPU of less than this compute capability:
//
//   require_capability(8, 0, "cp.async");
//   this card lacks cp.async: it needs compute capability 8.0, the card has 7.5
inline void require_capability(int major, int minor, const char* feature) {
  const int has = compute_capability();
  STD_TORCH_CHECK(has >= 10 * major + minor, "this card lacks ", feature,
                  ": it needs compute capability ", major, ".", minor, ", the card has ", has / 10,
                  ".", has % 10);
}

// Refuse every GPU but those of compute capability 9.0: later ones have other instructions.
inline void require_wgmma() {
  const int has = compute_capability();
  STD_TORCH_CHECK(has == 90, "this card lacks wgmma: it needs compute capability 9.0, the ",
                  "card has ", has / 10, ".", has % 10);
}

// Refuse a GPU whose blocks cannot have so much shared memory:
//
//   require_shared_memory(sizeof(Tiles<128>), "a tile of 128");
//   this card lacks shared memory for a tile of 128: it needs 156672 bytes per block, the card has
//   101376
inline void require_shared_memory(int64_t bytes, const char* purpose) {
  const int has = attribute_of_current_gpu(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  STD_TORCH_CHECK(bytes <= has, "this card lacks shared memory for ", purpose, ": it needs ", bytes,
                  " bytes per block, the card has ", has);
}

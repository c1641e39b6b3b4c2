// Day 100: the layers of a GPT-2 for all tokens of a prompt, as a function of checked tensors.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

namespace prefill {

// Whose products: cuBLAS's with passes between them, or, on cards of capability 9.0, our own, whose
// epilogues save passes. By size: our own where that saves a pass and its tiles fill half of the
// multiprocessors.
enum class Products { LIBRARY, OWN, BY_SIZE };

// What the last layer leaves of the last token, (1, C) in bf16; keys and values go to the cache.
Tensor layers(const Tensor& wte, const Tensor& wpe, const Tensor& vectors, const Tensor& qkv,
              const Tensor& proj, const Tensor& fc, const Tensor& out, const Tensor& cache,
              const Tensor& prompt, Products products);

}  // namespace prefill

// Day 100: the layers of a GPT-2 for all tokens of a prompt, as a function of checked tensors.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

namespace prefill {

// What the last layer leaves of the last token, (1, C) in bf16; keys and values go to the cache.
// epilogues: the products do what would be passes between them, on cards of capability 9.0.
Tensor layers(const Tensor& wte, const Tensor& wpe, const Tensor& vectors, const Tensor& qkv,
              const Tensor& proj, const Tensor& fc, const Tensor& out, const Tensor& cache,
              const Tensor& prompt, bool epilogues);

}  // namespace prefill

// Day 20: cross-entropy around the rows: arguments, the weight of a row, the reduction of the
// losses.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include <string>

// What the kernels need to know of the loss. weight: w, one number in memory, since it is counted
// on the GPU and the host does not wait for it.
struct LossTerms {
  int64_t ignore_index;
  float smoothing;  // ε
  const float* weight;
};

enum class Reduction { NONE, MEAN, SUM };

Reduction reduction_named(const std::string& name);
void check_logits(const Tensor& logits, const Tensor& target, double label_smoothing);

// w (1): what every row's loss and gradient is multiplied by.
Tensor weight_of_rows(const Tensor& target, int64_t ignore_index, Reduction reduction);
// The losses (rows) themselves, or their sum times w.
Tensor reduced(const Tensor& losses, const Tensor& weight, Reduction reduction);

// Calls launch(terms, losses), which fills losses (rows), and returns the reduced loss.
template <typename F>
Tensor with_terms(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                  double label_smoothing, const std::string& reduction, F&& launch) {
  const Reduction reduce = reduction_named(reduction);
  const int64_t rows = logits.size(0);
  const Tensor weight = weight_of_rows(target, ignore_index, reduce);
  const Tensor losses = allocate(logits, {rows}, ScalarType::Float);
  if (rows > 0) {  // a grid of no blocks is an error
    launch(LossTerms{ignore_index, static_cast<float>(label_smoothing), data<float>(weight)},
           mutable_data<float>(losses));
  }
  return reduced(losses, weight, reduce);
}

#define ARGUMENTS " Tensor target, int ignore_index=-100, float label_smoothing=0.0, "
#define IN_PLACE "(Tensor(a!) logits," ARGUMENTS "str reduction='mean') -> Tensor"
#define SEPARATE "(Tensor logits," ARGUMENTS "str reduction='mean') -> (Tensor, Tensor)"

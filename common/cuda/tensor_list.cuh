// One launch for a list of tensors. Taught in day 81.
#pragma once

#include "common/cuda/tensor.cuh"

#include <vector>

using Tensors = std::vector<Tensor>;

// A check of each tensor of the list, whose messages name it, as in "grads[3]":
//   check_each(grads, "grads", [&](const check& one) { one.on_gpu().floating().contiguous(); });
template <typename F>
void check_each(const Tensors& list, const char* name, F&& checks) {
  for (size_t i = 0; i < list.size(); ++i) checks(check(list[i], name, static_cast<int64_t>(i)));
}

constexpr int LISTED = 256;  // tensors per launch

// A parameter of a kernel. Slot: what the kernel needs of one tensor, of which `n` is the number of
// elements.
template <typename Slot>
struct TensorTable {
  Slot slots[LISTED];
  int begins[LISTED];  // the first block of each tensor, ascending
  int count;
};

// The last tensor that begins at this block or before, by a binary search.
template <typename Slot>
__device__ int tensor_of(const TensorTable<Slot>& table, int block) {
  int low = 0, high = table.count;  // begins[low] <= block < begins[high], if high exists
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.begins[middle] <= block ? low : high) = middle;
  }
  return low;
}

// Call launch(table, blocks) for each LISTED slots, and for the rest; a block has `chunk` elements
// of one tensor. Every slot has elements. name: of the list, for messages.
template <typename Slot, typename F>
void for_tables(const std::vector<Slot>& slots, int64_t chunk, const char* name, F&& launch) {
  static_assert(sizeof(TensorTable<Slot>) <= 32'000, "at most 32,764 bytes of parameters");
  for (size_t first = 0; first < slots.size(); first += LISTED) {
    TensorTable<Slot> table{};
    int64_t blocks = 0;
    for (size_t i = first; i < slots.size() && table.count < LISTED; ++i, ++table.count) {
      table.slots[table.count] = slots[i];
      table.begins[table.count] = static_cast<int>(blocks);  // grid_size refuses what does not fit
      blocks += ceil_div(slots[i].n, chunk);
    }
    launch(table, grid_size(blocks, name));
  }
}

// cooperative_groups::reduce: the combined value of all threads of a tile or coalesced group.
//
// In NVIDIA's order, so that a float sum is a GPU's. reduce_update_async and reduce_store_async are
// not here: they take a cuda::atomic.
#pragma once

#include "../cudacpu/group_operators.h"

namespace cooperative_groups {

template <class Group, class T, class Op>
std::decay_t<T> reduce(const Group& group, T&& value, Op&& op, CUDACPU_HERE) {
  return details::combine<cudacpu::Combination::kReduce, Group, std::decay_t<T>>(group, value, op,
                                                                                 {file, line});
}

}  // namespace cooperative_groups

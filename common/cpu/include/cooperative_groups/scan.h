// cooperative_groups::inclusive_scan and exclusive_scan over a tile or coalesced group.
//
// The exclusive scan of the first thread is a value-initialised one ({}), as in NVIDIA's. The
// _update forms are not here: they take a cuda::atomic.
#pragma once

#include "../cudacpu/group_operators.h"

namespace cooperative_groups {

#define CUDACPU_SCAN(name, kind)                                                                   \
  template <class Group, class T, class Op>                                                        \
  std::decay_t<T> name(const Group& group, T&& value, Op&& op, CUDACPU_HERE) {                     \
    return details::combine<cudacpu::Combination::kind, Group, std::decay_t<T>>(group, value, op,  \
                                                                                {file, line});     \
  }                                                                                                \
  template <class Group, class T>                                                                  \
  std::decay_t<T> name(const Group& group, T&& value, CUDACPU_HERE) {                              \
    plus<std::decay_t<T>> add;                                                                     \
    return details::combine<cudacpu::Combination::kind, Group, std::decay_t<T>>(group, value, add, \
                                                                                {file, line});     \
  }
CUDACPU_SCAN(inclusive_scan, kInclusiveScan)
CUDACPU_SCAN(exclusive_scan, kExclusiveScan)
#undef CUDACPU_SCAN

}  // namespace cooperative_groups

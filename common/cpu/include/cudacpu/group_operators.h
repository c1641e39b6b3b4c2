// The operators of cooperative_groups::reduce and the scans, and which groups they are for.
#pragma once

#include <cooperative_groups.h>

namespace cooperative_groups {

template <class T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {  // the smaller
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {  // the larger
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
  T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
  T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
  T operator()(T a, T b) const { return a ^ b; }
};

namespace details {

// Threads of a tile, 0 for a coalesced group; other groups cannot reduce.
inline unsigned tile_size(const coalesced_group&) {
  return 0;
}
template <unsigned Size, class Parent>
unsigned tile_size(const thread_block_tile<Size, Parent>&) {
  return Size;
}

template <cudacpu::Combination kind, class Group, class T, class Op>
T combine(const Group& group, const T& value, Op& op, cudacpu::Site site) {
  constexpr bool sum = std::is_integral_v<T> && std::is_same_v<std::remove_const_t<Op>, plus<T>>;
  if constexpr (kIsWideTile<Group>) {
    static_assert(sizeof(T) <= kWideTileBytes, "in a tile of several warps, at most 8 bytes");
    return cudacpu::combine_in_tile<kind>(Group::size(), value, op, sum, site);
  } else {
    return cudacpu::combine<kind>(group.get_mask(), tile_size(group), value, op, sum, site);
  }
}

}  // namespace details
}  // namespace cooperative_groups

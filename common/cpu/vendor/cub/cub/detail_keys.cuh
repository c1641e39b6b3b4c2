// The order of keys in radix sorts.
#pragma once

#include <cub/util_type.cuh>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace cub {
namespace detail {

// The key as an unsigned number of the same order; -0.0 and 0.0 are equal.
template <class Key>
uint64_t ordered_bits(Key key) {
  static_assert(
      std::is_integral_v<Key> || std::is_same_v<Key, float> || std::is_same_v<Key, double>,
      "cub's radix sorts on the CPU backend take integers, float and double as keys");
  constexpr int BITS = 8 * sizeof(Key);
  constexpr uint64_t sign = uint64_t{1} << (BITS - 1), all = sign | (sign - 1);
  if constexpr (std::is_floating_point_v<Key>)
    if (key == Key{0}) key = Key{0};
  uint64_t bits = 0;
  std::memcpy(&bits, &key, sizeof key);
  if constexpr (std::is_floating_point_v<Key>) return bits & sign ? ~bits & all : bits | sign;
  return std::is_signed_v<Key> ? bits ^ sign : bits;
}

// The indices of the keys in ascending order by the bits begin, ..., end - 1. Keys that are equal
// in them keep their order.
template <class Key, class Keys>
std::vector<int64_t> sorted_order(Keys keys, int64_t n, int begin, int end, bool descending) {
  const uint64_t mask = end >= 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
  std::vector<uint64_t> bits(n);
  for (int64_t i = 0; i < n; ++i) bits[i] = (ordered_bits<Key>(keys(i)) & mask) >> begin;
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return descending ? bits[b] < bits[a] : bits[a] < bits[b];
  });
  return order;
}

}  // namespace detail
}  // namespace cub

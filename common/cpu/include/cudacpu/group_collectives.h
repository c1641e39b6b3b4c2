// What cooperative groups exchange within a warp: values of any type, reductions, scans.
//
// One warp collective each. Reductions and scans combine in the order in which NVIDIA's header
// does, step for step, so that floating-point results come out as there.
#pragma once

#include <type_traits>
#include <utility>

#include "cudacpu/sync.h"
#include "cudacpu/warp.h"

namespace cudacpu {

// ---------------------------------------------------------------- lanes and ranks

// How many lanes of the mask are below this one.
inline unsigned rank_of(unsigned lane, uint32_t mask) {
  return static_cast<unsigned>(__builtin_popcount(mask & ((1u << lane) - 1)));
}

constexpr unsigned kNoLane = 32;

// The lane with this rank; kNoLane if there are not so many.
inline unsigned lane_of(unsigned rank, uint32_t mask) {
  for (; mask; mask &= mask - 1)
    if (rank-- == 0) return static_cast<unsigned>(__builtin_ctz(mask));
  return kNoLane;
}

// A mask of lanes as a mask of ranks.
inline uint32_t pack(uint32_t lanes, uint32_t mask) {
  uint32_t packed = 0;
  for (unsigned rank = 0; mask; mask &= mask - 1, ++rank)
    packed |= (lanes >> __builtin_ctz(mask) & 1u) << rank;
  return packed;
}

inline void compute_no_result(Thread*, uint32_t) {}
inline constexpr Operation kSyncGroup{"sync of a group", compute_no_result};

// ---------------------------------------------------------------- shuffles of any type

enum class Move : uint8_t { kFrom, kUp, kDown, kXor };
inline constexpr const char* kMoveNames[] = {"shfl of a group", "shfl_up of a group",
                                             "shfl_down of a group", "shfl_xor of a group"};

template <class T>
struct Moved {
  T value;
  T result;
  unsigned source;

  static void compute(Thread* lanes, uint32_t arrived) {
    for (uint32_t left = arrived; left; left &= left - 1) {
      auto& mine = *static_cast<Moved*>(lanes[__builtin_ctz(left)].exchange);
      if (mine.source < kNoLane && (arrived >> mine.source & 1))
        mine.result = static_cast<Moved*>(lanes[mine.source].exchange)->value;
      else  // undefined on the hardware
        memset(static_cast<void*>(&mine.result), 0xff, sizeof mine.result);
    }
  }
};
template <class T, Move kind>
inline constexpr Operation kMove{kMoveNames[static_cast<int>(kind)], Moved<T>::compute};

template <Move kind, class T>
T move(uint32_t mask, const T& value, unsigned source, Site site) {
  static_assert(std::is_trivially_copyable_v<T>, "a shuffle copies bytes");
  Moved<T> exchange{value, value, source};
  collect(mask, kMove<T, kind>, &exchange, site);
  return exchange.result;
}

// ---------------------------------------------------------------- reductions and scans

enum class Combination : uint8_t { kReduce, kInclusiveScan, kExclusiveScan };
inline constexpr const char* kCombinationNames[] = {
    "reduce of a group", "inclusive_scan of a group", "exclusive_scan of a group"};

template <class T, class Op, Combination kind>
struct Combined {
  T value;  // and the result
  Op* op;
  unsigned tile;      // number of threads of a tile; 0: a coalesced group
  bool sum_of_whole;  // integers are added: an exclusive scan subtracts
  Site site;

  static void compute(Thread* lanes, uint32_t arrived) {
    Combined* parts[32];
    T values[32];
    unsigned n = 0;
    for (uint32_t left = arrived; left; left &= left - 1)
      parts[n++] = static_cast<Combined*>(lanes[__builtin_ctz(left)].exchange);
    if (parts[0]->tile && parts[0]->tile != n)
      trap(parts[0]->site,
           "%s: %u threads of a tile of %u take part; the others have returned, or "
           "the block has no such threads",
           kCombinationNames[static_cast<int>(kind)], n, parts[0]->tile);
    if (kind == Combination::kReduce && (parts[0]->tile || n == 32))
      butterfly(parts, values, n);
    else
      scan(parts, values, n);
  }

 private:
  // Each step combines with the lane whose rank differs in one bit.
  static void butterfly(Combined** parts, T* values, unsigned n) {
    for (unsigned bit = n / 2; bit > 0; bit /= 2) {
      for (unsigned i = 0; i < n; ++i) values[i] = parts[i]->value;
      for (unsigned i = 0; i < n; ++i)
        parts[i]->value = (*parts[i]->op)(values[i], values[i ^ bit]);
    }
  }
  // Each step combines with the lane at twice the distance.
  static void scan(Combined** parts, T* values, unsigned n) {
    for (unsigned i = 0; i < n; ++i) values[i] = parts[i]->value;
    for (unsigned distance = 1; distance < n; distance *= 2)
      for (unsigned i = n; i-- > distance;)
        values[i] = (*parts[i]->op)(values[i], values[i - distance]);
    for (unsigned i = n; i-- > 0;) {
      if constexpr (kind == Combination::kReduce)
        parts[i]->value = values[n - 1];
      else if constexpr (kind == Combination::kInclusiveScan)
        parts[i]->value = values[i];
      else if (parts[i]->sum_of_whole)
        parts[i]->value = difference(values[i], parts[i]->value);
      else
        parts[i]->value = i ? values[i - 1] : T{};
    }
  }
  static T difference(const T& a, const T& b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(a - b);
    return a;
  }
};
template <class T, class Op, Combination kind>
inline constexpr Operation kCombine{kCombinationNames[static_cast<int>(kind)],
                                    Combined<T, Op, kind>::compute};

// Combines the values of the lanes of `mask`; tile: see Combined.
template <Combination kind, class T, class Op>
T combine(uint32_t mask, unsigned tile, const T& value, Op& op, bool sum_of_whole, Site site) {
  static_assert(std::is_trivially_copyable_v<T>, "lanes exchange bytes");
  Combined<T, Op, kind> exchange{value, &op, tile, sum_of_whole, site};
  collect(mask, kCombine<T, Op, kind>, &exchange, site);
  return exchange.value;
}

}  // namespace cudacpu

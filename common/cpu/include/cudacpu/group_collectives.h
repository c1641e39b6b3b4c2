// Collectives of cooperative groups: exchanges of values of any type, reductions, scans.
//
// One collective each, of a warp or of a tile of several warps. Reductions and scans combine in the
// order in which NVIDIA's header does, step for step, so that floating-point results come out as
// there.
#pragma once

#include <type_traits>
#include <utility>

#include "cudacpu/sync.h"
#include "cudacpu/warp.h"
#include "cudacpu/wide_tile.h"

namespace cudacpu {

// ---------------------------------------------------------------- lanes and ranks

// The number of lanes of the mask below this one.
inline unsigned rank_of(unsigned lane, uint32_t mask) {
  return static_cast<unsigned>(__builtin_popcount(mask & ((1u << lane) - 1)));
}

constexpr unsigned kNoLane = 32;

// The lane with this rank; kNoLane if the mask has fewer lanes.
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

// An exchange in a tile of several warps.
template <class T>
struct MovedInTile {
  T value;
  T result;
  unsigned source;

  static void compute(Thread* threads, unsigned size) {
    for (unsigned i = 0; i < size; ++i) {
      auto& mine = *static_cast<MovedInTile*>(threads[i].exchange);
      if (mine.source < size)
        mine.result = static_cast<MovedInTile*>(threads[mine.source].exchange)->value;
      else  // undefined on the hardware
        memset(static_cast<void*>(&mine.result), 0xff, sizeof mine.result);
    }
  }
};
template <class T>
inline constexpr TileOperation kMoveInTile{"shfl of a tile", MovedInTile<T>::compute};

template <class T>
T move_in_tile(unsigned size, const T& value, unsigned source, Site site) {
  static_assert(std::is_trivially_copyable_v<T>, "a shuffle copies bytes");
  MovedInTile<T> exchange{value, value, source};
  collect_tile(size, kMoveInTile<T>, &exchange, site);
  return exchange.result;
}

// ---------------------------------------------------------------- votes of a tile of several warps

struct VoteInTile {
  bool predicate;
  bool any, all;

  static void compute(Thread* threads, unsigned size) {
    bool any = false, all = true;
    for (unsigned i = 0; i < size; ++i) {
      bool predicate = static_cast<VoteInTile*>(threads[i].exchange)->predicate;
      any = any || predicate;
      all = all && predicate;
    }
    for (unsigned i = 0; i < size; ++i) {
      auto& part = *static_cast<VoteInTile*>(threads[i].exchange);
      part.any = any;
      part.all = all;
    }
  }
};
inline constexpr TileOperation kAnyInTile{"any of a tile", VoteInTile::compute};
inline constexpr TileOperation kAllInTile{"all of a tile", VoteInTile::compute};

inline VoteInTile vote_in_tile(unsigned size, const TileOperation& operation, int predicate,
                               Site site) {
  VoteInTile exchange{predicate != 0, false, false};
  collect_tile(size, operation, &exchange, site);
  return exchange;
}

// ---------------------------------------------------------------- reductions and scans

// Each step combines with the one whose rank differs in one bit; `op(i, a, b)` is the i-th's.
template <class T, class Op>
void reduce_by_butterfly(T* values, unsigned n, Op op) {
  T before[kNoLane];
  for (unsigned bit = n / 2; bit > 0; bit /= 2) {
    for (unsigned i = 0; i < n; ++i) before[i] = values[i];
    for (unsigned i = 0; i < n; ++i) values[i] = op(i, before[i], before[i ^ bit]);
  }
}
// Each step combines with the one at twice the distance.
template <class T, class Op>
void scan_by_doubling(T* values, unsigned n, Op op) {
  for (unsigned distance = 1; distance < n; distance *= 2)
    for (unsigned i = n; i-- > distance;) values[i] = op(i, values[i], values[i - distance]);
}
// The result before the i-th: a scanned sum of integers less its value, else its neighbour's.
template <class T>
T exclusive(const T* scanned, unsigned i, const T& own, bool sum_of_whole) {
  if constexpr (std::is_integral_v<T>)
    if (sum_of_whole) return static_cast<T>(scanned[i] - own);
  return i ? scanned[i - 1] : T{};
}

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
    auto op = [&](unsigned i, const T& a, const T& b) { return (*parts[i]->op)(a, b); };
    for (unsigned i = 0; i < n; ++i) values[i] = parts[i]->value;
    bool butterfly = kind == Combination::kReduce && (parts[0]->tile || n == 32);
    if (butterfly)
      reduce_by_butterfly(values, n, op);
    else
      scan_by_doubling(values, n, op);
    for (unsigned i = 0; i < n; ++i) {
      if constexpr (kind == Combination::kExclusiveScan)
        parts[i]->value = exclusive(values, i, parts[i]->value, parts[i]->sum_of_whole);
      else
        parts[i]->value = kind == Combination::kReduce && !butterfly ? values[n - 1] : values[i];
    }
  }
};
template <class T, class Op, Combination kind>
inline constexpr Operation kCombine{kCombinationNames[static_cast<int>(kind)],
                                    Combined<T, Op, kind>::compute};

// Combine the values of the lanes of `mask`; tile: see Combined.
template <Combination kind, class T, class Op>
T combine(uint32_t mask, unsigned tile, const T& value, Op& op, bool sum_of_whole, Site site) {
  static_assert(std::is_trivially_copyable_v<T>, "lanes exchange bytes");
  Combined<T, Op, kind> exchange{value, &op, tile, sum_of_whole, site};
  collect(mask, kCombine<T, Op, kind>, &exchange, site);
  return exchange.value;
}

// Combinations in a tile of several warps: first within each warp, then of the warps' results.
inline constexpr const char* kTileCombinationNames[] = {
    "reduce of a tile", "inclusive_scan of a tile", "exclusive_scan of a tile"};

template <class T, class Op, Combination kind>
struct CombinedInTile {
  T value;  // and the result
  Op* op;
  bool sum_of_whole;

  static void compute(Thread* threads, unsigned size) {
    constexpr unsigned kWarp = 32;
    const unsigned warps = size / kWarp;
    auto part = [&](unsigned rank) -> CombinedInTile& {
      return *static_cast<CombinedInTile*>(threads[rank].exchange);
    };
    T of_warp[kWarp], scanned[kWarp];
    for (unsigned warp = 0; warp < warps; ++warp) {
      T values[kWarp];
      auto op = [&](unsigned i, const T& a, const T& b) {
        return (*part(warp * kWarp + i).op)(a, b);
      };
      for (unsigned i = 0; i < kWarp; ++i) values[i] = part(warp * kWarp + i).value;
      if constexpr (kind == Combination::kReduce)
        reduce_by_butterfly(values, kWarp, op);
      else
        scan_by_doubling(values, kWarp, op);
      of_warp[warp] = scanned[warp] = values[kWarp - 1];
      if constexpr (kind != Combination::kReduce)
        for (unsigned i = 0; i < kWarp; ++i) part(warp * kWarp + i).value = values[i];
    }
    auto op = [&](unsigned i, const T& a, const T& b) { return (*part(i * kWarp).op)(a, b); };
    if constexpr (kind == Combination::kReduce) {
      reduce_by_butterfly(scanned, warps, op);
      for (unsigned rank = 0; rank < size; ++rank) part(rank).value = scanned[rank / kWarp];
      return;
    }
    scan_by_doubling(scanned, warps, op);
    for (unsigned rank = size; rank-- > 0;) {
      const unsigned warp = rank / kWarp;
      CombinedInTile& mine = part(rank);
      T before = exclusive(scanned, warp, of_warp[warp], mine.sum_of_whole);
      if (kind == Combination::kExclusiveScan && rank % kWarp == 0) {
        mine.value = before;
        continue;
      }
      const T& in_warp = part(kind == Combination::kExclusiveScan ? rank - 1 : rank).value;
      mine.value = warp ? (*mine.op)(in_warp, before) : in_warp;
    }
  }
};
template <class T, class Op, Combination kind>
inline constexpr TileOperation kCombineInTile{kTileCombinationNames[static_cast<int>(kind)],
                                              CombinedInTile<T, Op, kind>::compute};

template <Combination kind, class T, class Op>
T combine_in_tile(unsigned size, const T& value, Op& op, bool sum_of_whole, Site site) {
  static_assert(std::is_trivially_copyable_v<T>, "threads exchange bytes");
  CombinedInTile<T, Op, kind> exchange{value, &op, sum_of_whole};
  collect_tile(size, kCombineInTile<T, Op, kind>, &exchange, site);
  return exchange.value;
}

}  // namespace cudacpu

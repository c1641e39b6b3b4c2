// Warp collectives: shuffles, votes, match, reductions.
//
// All of them are one mechanism (collective.cpp): a lane brings a structure on its own stack and
// parks; the last lane of the mask to arrive computes for all. An operation is a name and that
// computation, so that a new one (ldmatrix, mma) needs nothing from the scheduler.
#pragma once

#include <cstring>

#include "cudacpu/capability.h"
#include "cudacpu/thread.h"

namespace cudacpu {

struct Operation {
  const char* name;
  // lanes[i].exchange is what lane i brought, for every bit i of `arrived`.
  void (*compute)(Thread* lanes, uint32_t arrived);
  bool shuffles = false;  // lanes read each other's values
};

// A lane's part in a collective.
struct Meeting {
  Wait wait;
  const Operation& operation;
  uint32_t mask;
  void* exchange;
};
void* meet_lanes(void* meeting, void* stack_pointer);

// Meet the other lanes of `mask`; on return, `exchange` holds this lane's results.
inline void collect(uint32_t mask, const Operation& operation, void* exchange, Site site) {
  Meeting meeting{{operation.name, site}, operation, mask, exchange};
  cudacpu_suspend(&meet_lanes, &meeting);
}

uint32_t active_mask(Site site);

struct Shuffle {
  uint64_t value[2];
  uint64_t result[2];
  uint32_t source;
  bool undefined;  // the source lane does not take part: so is the result
};
extern const Operation kShuffle, kShuffleUp, kShuffleDown, kShuffleXor;

struct Vote {
  bool predicate;
  uint32_t ballot;
  uint32_t arrived;
};
extern const Operation kBallot, kAny, kAll, kSyncWarp;

struct Match {
  uint64_t value;
  uint32_t same;  // lanes with this lane's value
  bool all_the_same;
};
extern const Operation kMatchAny, kMatchAll;

struct Reduce {
  uint32_t value;  // and the result
};
extern const Operation kReduceAdd, kReduceMin, kReduceMax, kReduceMinUnsigned, kReduceMaxUnsigned,
    kReduceAnd, kReduceOr, kReduceXor;

// The types for which nvcc has overloads; the headers of the half types add theirs.
template <class T>
inline constexpr bool kHasShuffle = std::is_arithmetic_v<T>;

// Record that a lane reads one that does not take part: the value is undefined.
void note_undefined_shuffle(uint32_t mask, uint32_t source, const Operation& operation, Site site);

template <class T>
T shuffle(uint32_t mask, T value, int source, const Operation& operation, Site site) {
  static_assert(kHasShuffle<T>, "nvcc has no shuffle of this type: shuffle its members");
  Shuffle exchange;
  memcpy(exchange.value, &value, sizeof value);
  exchange.source = static_cast<uint32_t>(source);
  collect(mask, operation, &exchange, site);
  if (exchange.undefined) [[unlikely]]
    note_undefined_shuffle(mask, exchange.source, operation, site);
  memcpy(&value, exchange.result, sizeof value);
  return value;
}

inline Vote vote(uint32_t mask, int predicate, const Operation& operation, Site site) {
  Vote exchange{predicate != 0, 0, 0};
  collect(mask, operation, &exchange, site);
  return exchange;
}

template <class T>
Match match(uint32_t mask, T value, const Operation& operation, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "match compares 4 or 8 bytes");
  Match exchange{0, 0, false};
  memcpy(&exchange.value, &value, sizeof value);
  collect(mask, operation, &exchange, site);
  return exchange;
}

template <class T>
T reduce(uint32_t mask, T value, const Operation& operation, Site site) {
  Reduce exchange{static_cast<uint32_t>(value)};
  collect(mask, operation, &exchange, site);
  return static_cast<T>(exchange.value);
}

}  // namespace cudacpu

inline void __syncwarp(unsigned mask = 0xffffffffu, CUDACPU_HERE) {
  cudacpu::collect(mask, cudacpu::kSyncWarp, nullptr, {file, line});
}

// A segment is `width` lanes, a power of two; a source outside of it leaves a lane its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDACPU_HERE) {
  int lane = static_cast<int>(cudacpu::current->lane), segment = lane & ~(width - 1);
  return cudacpu::shuffle(mask, value, segment | (source & (width - 1)), cudacpu::kShuffle,
                          {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDACPU_HERE) {
  int lane = static_cast<int>(cudacpu::current->lane), segment = lane & ~(width - 1);
  int source = lane - static_cast<int>(delta);
  return cudacpu::shuffle(mask, value, source < segment ? lane : source, cudacpu::kShuffleUp,
                          {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDACPU_HERE) {
  int lane = static_cast<int>(cudacpu::current->lane), last = lane | (width - 1);
  int source = lane + static_cast<int>(delta);
  return cudacpu::shuffle(mask, value, source > last ? lane : source, cudacpu::kShuffleDown,
                          {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, CUDACPU_HERE) {
  int lane = static_cast<int>(cudacpu::current->lane), last = lane | (width - 1);
  int source = lane ^ lane_mask;
  return cudacpu::shuffle(mask, value, source > last ? lane : source, cudacpu::kShuffleXor,
                          {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CUDACPU_HERE) {
  return cudacpu::vote(mask, predicate, cudacpu::kBallot, {file, line}).ballot;
}
inline int __any_sync(unsigned mask, int predicate, CUDACPU_HERE) {
  return cudacpu::vote(mask, predicate, cudacpu::kAny, {file, line}).ballot != 0;
}
inline int __all_sync(unsigned mask, int predicate, CUDACPU_HERE) {
  cudacpu::Vote result = cudacpu::vote(mask, predicate, cudacpu::kAll, {file, line});
  return result.ballot == result.arrived;
}
inline unsigned __activemask(CUDACPU_HERE) {
  return cudacpu::active_mask({file, line});
}

#define CUDACPU_MATCH(T)                                                                   \
  inline unsigned __match_any_sync(unsigned mask, T value, CUDACPU_HERE) {                 \
    return cudacpu::match(mask, value, cudacpu::kMatchAny, {file, line}).same;             \
  }                                                                                        \
  inline unsigned __match_all_sync(unsigned mask, T value, int* predicate, CUDACPU_HERE) { \
    cudacpu::Match result = cudacpu::match(mask, value, cudacpu::kMatchAll, {file, line}); \
    *predicate = result.all_the_same;                                                      \
    return result.all_the_same ? result.same : 0;                                          \
  }
CUDACPU_MATCH(int)
CUDACPU_MATCH(unsigned)
CUDACPU_MATCH(long)
CUDACPU_MATCH(unsigned long)
CUDACPU_MATCH(long long)
CUDACPU_MATCH(unsigned long long)
CUDACPU_MATCH(float)
CUDACPU_MATCH(double)
#undef CUDACPU_MATCH

#define CUDACPU_REDUCE(name, T, operation)                                 \
  inline T name(unsigned mask, T value, CUDACPU_HERE) {                    \
    cudacpu::needs_capability(80, #name, {file, line});                    \
    return cudacpu::reduce(mask, value, cudacpu::operation, {file, line}); \
  }
CUDACPU_REDUCE(__reduce_add_sync, unsigned, kReduceAdd)
CUDACPU_REDUCE(__reduce_add_sync, int, kReduceAdd)
CUDACPU_REDUCE(__reduce_min_sync, unsigned, kReduceMinUnsigned)
CUDACPU_REDUCE(__reduce_min_sync, int, kReduceMin)
CUDACPU_REDUCE(__reduce_max_sync, unsigned, kReduceMaxUnsigned)
CUDACPU_REDUCE(__reduce_max_sync, int, kReduceMax)
CUDACPU_REDUCE(__reduce_and_sync, unsigned, kReduceAnd)
CUDACPU_REDUCE(__reduce_or_sync, unsigned, kReduceOr)
CUDACPU_REDUCE(__reduce_xor_sync, unsigned, kReduceXor)
#undef CUDACPU_REDUCE

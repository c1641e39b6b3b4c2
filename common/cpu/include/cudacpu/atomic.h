// Atomic functions. Those of CUDA are relaxed; here they are sequentially consistent, which is all
// that x86 offers for a read-modify-write anyway.
#pragma once

#include <cstring>

#include "cudacpu/thread.h"
#include "cudacpu/sync.h"

namespace cudacpu {

// Set when a thread of this OS thread has polled since the last atomic that succeeded. Clearing it
// shows the scheduler that spinning threads do get on: a busy lock is not an endless spin.
extern CUDACPU_THREAD_LOCAL bool polled;

inline void atomic_progress() {
  if (polled) [[unlikely]]
    polled = false;
}

// The value that a thread found last by an atomic operation. A thread that finds the same value
// again is taken to wait for another thread, which gets its turn.
struct Finding {
  const Thread* thread;
  const void* address;
  uint64_t bits;
};
extern CUDACPU_THREAD_LOCAL Finding last_finding;

inline void give_way_if_seen(const void* address, uint64_t bits, const char* what, Site site) {
  if (!current) return;
  Finding& last = last_finding;
  if (last.thread == current && last.address == address && last.bits == bits)
    poll(what, site);
  else
    last = {current, address, bits};
}

// Apply `next` to the value at `address` through compare-and-swap on an integer of its size.
template <class Integer, class T, class Next>
T atomic_update(T* address, Next next) {
  static_assert(sizeof(Integer) == sizeof(T));
  auto* word = reinterpret_cast<Integer*>(address);
  Integer old_bits = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T old_value;
    memcpy(static_cast<void*>(&old_value), &old_bits, sizeof old_value);
    T new_value = next(old_value);
    Integer new_bits;
    memcpy(&new_bits, static_cast<const void*>(&new_value), sizeof new_bits);
    if (__atomic_compare_exchange_n(word, &old_bits, new_bits, true, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED))
      return old_value;
  }
}

// A retry loop around compare-and-swap, or a lock taken by exchange, waits for another thread when
// it fails: that thread must get its turn.
template <class T>
T compare_and_swap(T* address, T expected, T desired, Site site) {
  T found = expected;
  if (__atomic_compare_exchange_n(address, &found, desired, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST))
    atomic_progress();
  else
    poll("atomicCAS", site);
  return found;
}

template <class T>
T exchange(T* address, T value, Site site) {
  T found = __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
  if (found == value)
    poll("atomicExch", site);
  else
    atomic_progress();
  return found;
}

}  // namespace cudacpu

// atomicAdd(flag, 0) and atomicOr(flag, 0) are how a thread polls a flag.
#define CUDACPU_ATOMIC_INTEGER(T)                                                                  \
  inline T atomicAdd(T* address, T value, CUDACPU_HERE) {                                          \
    if (__builtin_constant_p(value) && value == 0) cudacpu::poll("atomicAdd(…, 0)", {file, line}); \
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);                                   \
  }                                                                                                \
  inline T atomicOr(T* address, T value, CUDACPU_HERE) {                                           \
    if (__builtin_constant_p(value) && value == 0) cudacpu::poll("atomicOr(…, 0)", {file, line});  \
    return __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST);                                    \
  }                                                                                                \
  inline T atomicAnd(T* address, T value) {                                                        \
    return __atomic_fetch_and(address, value, __ATOMIC_SEQ_CST);                                   \
  }                                                                                                \
  inline T atomicXor(T* address, T value) {                                                        \
    return __atomic_fetch_xor(address, value, __ATOMIC_SEQ_CST);                                   \
  }                                                                                                \
  inline T atomicExch(T* address, T value, CUDACPU_HERE) {                                         \
    return cudacpu::exchange(address, value, {file, line});                                        \
  }                                                                                                \
  inline T atomicCAS(T* address, T expected, T desired, CUDACPU_HERE) {                            \
    return cudacpu::compare_and_swap(address, expected, desired, {file, line});                    \
  }

// The comparison comes first: a maximum that is reached already writes nothing.
#define CUDACPU_ATOMIC_EXTREMA(T)                                                              \
  inline T atomicMin(T* address, T value) {                                                    \
    T found = __atomic_load_n(address, __ATOMIC_RELAXED);                                      \
    while (value < found && !__atomic_compare_exchange_n(address, &found, value, true,         \
                                                         __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)); \
    return found;                                                                              \
  }                                                                                            \
  inline T atomicMax(T* address, T value) {                                                    \
    T found = __atomic_load_n(address, __ATOMIC_RELAXED);                                      \
    while (value > found && !__atomic_compare_exchange_n(address, &found, value, true,         \
                                                         __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)); \
    return found;                                                                              \
  }

CUDACPU_ATOMIC_INTEGER(int)
CUDACPU_ATOMIC_INTEGER(unsigned)
CUDACPU_ATOMIC_INTEGER(unsigned long long)
CUDACPU_ATOMIC_EXTREMA(int)
CUDACPU_ATOMIC_EXTREMA(unsigned)
CUDACPU_ATOMIC_EXTREMA(long long)
CUDACPU_ATOMIC_EXTREMA(unsigned long long)
#undef CUDACPU_ATOMIC_INTEGER
#undef CUDACPU_ATOMIC_EXTREMA

inline int atomicSub(int* address, int value) {
  return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);
}
inline unsigned atomicSub(unsigned* address, unsigned value) {
  return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);
}
inline unsigned short atomicCAS(unsigned short* address, unsigned short expected,
                                unsigned short desired, CUDACPU_HERE) {
  return cudacpu::compare_and_swap(address, expected, desired, {file, line});
}

inline float atomicAdd(float* address, float value) {
  return cudacpu::atomic_update<uint32_t>(address, [=](float old) { return old + value; });
}
inline double atomicAdd(double* address, double value) {
  return cudacpu::atomic_update<uint64_t>(address, [=](double old) { return old + value; });
}
inline float atomicExch(float* address, float value) {
  return cudacpu::atomic_update<uint32_t>(address, [=](float) { return value; });
}
// Each component is atomic, as on the hardware; the whole vector is not.
inline float2 atomicAdd(float2* address, float2 value) {
  return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)};
}
inline float4 atomicAdd(float4* address, float4 value) {
  return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y),
          atomicAdd(&address->z, value.z), atomicAdd(&address->w, value.w)};
}

// Add 1, and wrap to 0 after `limit`.
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return cudacpu::atomic_update<uint32_t>(address,
                                          [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
// Subtract 1, and wrap to `limit` below 0.
inline unsigned atomicDec(unsigned* address, unsigned limit) {
  return cudacpu::atomic_update<uint32_t>(
      address, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}

// The scopes differ in what the hardware has to order; here they are one.
#define CUDACPU_ATOMIC_SCOPES(name)              \
  template <class T, class U>                    \
  inline T name##_block(T* address, U value) {   \
    return name(address, static_cast<T>(value)); \
  }                                              \
  template <class T, class U>                    \
  inline T name##_system(T* address, U value) {  \
    return name(address, static_cast<T>(value)); \
  }
CUDACPU_ATOMIC_SCOPES(atomicAdd)
CUDACPU_ATOMIC_SCOPES(atomicSub)
CUDACPU_ATOMIC_SCOPES(atomicMin)
CUDACPU_ATOMIC_SCOPES(atomicMax)
CUDACPU_ATOMIC_SCOPES(atomicAnd)
CUDACPU_ATOMIC_SCOPES(atomicOr)
CUDACPU_ATOMIC_SCOPES(atomicXor)
CUDACPU_ATOMIC_SCOPES(atomicExch)
CUDACPU_ATOMIC_SCOPES(atomicInc)
CUDACPU_ATOMIC_SCOPES(atomicDec)
#undef CUDACPU_ATOMIC_SCOPES
template <class T, class U, class V>
inline T atomicCAS_block(T* address, U expected, V desired, CUDACPU_HERE) {
  return atomicCAS(address, static_cast<T>(expected), static_cast<T>(desired), file, line);
}
template <class T, class U, class V>
inline T atomicCAS_system(T* address, U expected, V desired, CUDACPU_HERE) {
  return atomicCAS(address, static_cast<T>(expected), static_cast<T>(desired), file, line);
}

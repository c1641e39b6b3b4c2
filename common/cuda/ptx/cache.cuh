// Loads, stores and prefetches with a hint how long caches should keep the data (sm_70).
//
// A hint changes no result, only what is in the caches afterwards. CUDA C++ has some of these as
// __ldcs, __stcg and so on; it has none without allocation in L1, and no policies. T: 4, 8 or 16
// bytes; addresses are those of global memory, multiples of T's size. On the CPU backend: the
// access.
#pragma once

#include "common/cuda/ptx/site.cuh"

#include <cstring>
#include <type_traits>

namespace ptx {

namespace detail {
// The data of a load or a store: T as registers of 32 bits.
template <typename T>
struct Words {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "T has 4, 8 or 16 bytes");
  static_assert(std::is_trivially_copyable<T>::value, "T is moved as bytes");
  uint32_t word[sizeof(T) / 4];

  __device__ __forceinline__ T value() const {
    T result;
    memcpy(&result, word, sizeof result);
    return result;
  }
};
}  // namespace detail

#ifdef CUDA_ON_CPU
#define PTX_LOAD(kind, modifiers)                                  \
  template <typename T>                                            \
  __device__ __forceinline__ T load_##kind(const T* global_from) { \
    return *global_from;                                           \
  }
#define PTX_STORE(kind, modifiers)                                             \
  template <typename T>                                                        \
  __device__ __forceinline__ void store_##kind(T* global_to, const T& value) { \
    *global_to = value;                                                        \
  }
#else
#define PTX_LOAD(kind, modifiers)                                                                \
  template <typename T>                                                                          \
  __device__ __forceinline__ T load_##kind(const T* global_from) {                               \
    const size_t from = __cvta_generic_to_global(global_from);                                   \
    detail::Words<T> words;                                                                      \
    uint32_t* w = words.word;                                                                    \
    if constexpr (sizeof(T) == 16) {                                                             \
      asm volatile("ld.global." modifiers ".v4.u32 {%0, %1, %2, %3}, [%4];"                      \
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])                              \
                   : "l"(from)                                                                   \
                   : "memory");                                                                  \
    } else if constexpr (sizeof(T) == 8) {                                                       \
      asm volatile("ld.global." modifiers ".v2.u32 {%0, %1}, [%2];"                              \
                   : "=r"(w[0]), "=r"(w[1])                                                      \
                   : "l"(from)                                                                   \
                   : "memory");                                                                  \
    } else {                                                                                     \
      asm volatile("ld.global." modifiers ".u32 %0, [%1];" : "=r"(w[0]) : "l"(from) : "memory"); \
    }                                                                                            \
    return words.value();                                                                        \
  }
#define PTX_STORE(kind, modifiers)                                                                \
  template <typename T>                                                                           \
  __device__ __forceinline__ void store_##kind(T* global_to, const T& value) {                    \
    const size_t to = __cvta_generic_to_global(global_to);                                        \
    detail::Words<T> words;                                                                       \
    uint32_t* w = words.word;                                                                     \
    memcpy(w, &value, sizeof value);                                                              \
    if constexpr (sizeof(T) == 16) {                                                              \
      asm volatile("st.global." modifiers ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), \
                   "r"(w[1]), "r"(w[2]), "r"(w[3])                                                \
                   : "memory");                                                                   \
    } else if constexpr (sizeof(T) == 8) {                                                        \
      asm volatile("st.global." modifiers ".v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]),         \
                   "r"(w[1])                                                                      \
                   : "memory");                                                                   \
    } else {                                                                                      \
      asm volatile("st.global." modifiers ".u32 [%0], %1;" ::"l"(to), "r"(w[0]) : "memory");      \
    }                                                                                             \
  }
#endif

// load_nc: through the path for data that no thread writes while the kernel runs.
// load_nc_no_allocate: the same without a place in L1, for data that is read once. load_cg: L2
// only. load_cs: likely read once, evict first.
// PTX: ld.global.<nc|nc.L1::no_allocate|cg|cs>.<u32|v2.u32|v4.u32> value, [from];
PTX_LOAD(nc, "nc")
PTX_LOAD(nc_no_allocate, "nc.L1::no_allocate")
PTX_LOAD(cg, "cg")
PTX_LOAD(cs, "cs")

// store_cg: L2 only. store_cs: evict first, for what this kernel does not read again.
// store_no_allocate: no place in L1.
// PTX: st.global.<cg|cs|L1::no_allocate>.<u32|v2.u32|v4.u32> [to], value;
PTX_STORE(cg, "cg")
PTX_STORE(cs, "cs")
PTX_STORE(no_allocate, "L1::no_allocate")
#undef PTX_LOAD
#undef PTX_STORE

// Request the line with this address in L1 (and L2), or in L2 alone, without waiting.
// PTX: prefetch.global.L1 [from];
__device__ __forceinline__ void prefetch_l1([[maybe_unused]] const void* global_from) {
#ifndef CUDA_ON_CPU
  asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(global_from)));
#endif
}
// PTX: prefetch.global.L2 [from];
__device__ __forceinline__ void prefetch_l2([[maybe_unused]] const void* global_from) {
#ifndef CUDA_ON_CPU
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(global_from)));
#endif
}

// A policy for accesses below: their lines leave L2 first. sm_80.
// PTX: createpolicy.fractional.L2::evict_first.b64 policy, 1.0;
__device__ __forceinline__ uint64_t policy_evict_first() {
  uint64_t policy = 0;
#ifndef CUDA_ON_CPU
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
// The same policy for lines that leave L2 last. sm_80.
// PTX: createpolicy.fractional.L2::evict_last.b64 policy, 1.0;
__device__ __forceinline__ uint64_t policy_evict_last() {
  uint64_t policy = 0;
#ifndef CUDA_ON_CPU
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// A load of 16 bytes under a policy. sm_80.
// PTX: ld.global.L2::cache_hint.v4.u32 value, [from], policy;
__device__ __forceinline__ uint4 load_with_policy(const uint4* global_from,
                                                  [[maybe_unused]] uint64_t policy) {
#ifdef CUDA_ON_CPU
  return *global_from;
#else
  uint4 value;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(__cvta_generic_to_global(global_from)), "l"(policy)
               : "memory");
  return value;
#endif
}
// A store of 16 bytes under a policy. sm_80.
// PTX: st.global.L2::cache_hint.v4.u32 [to], value, policy;
__device__ __forceinline__ void store_with_policy(uint4* global_to, uint4 value,
                                                  [[maybe_unused]] uint64_t policy) {
#ifdef CUDA_ON_CPU
  *global_to = value;
#else
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(
                   __cvta_generic_to_global(global_to)),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "l"(policy)
               : "memory");
#endif
}

}  // namespace ptx

// Loads and stores with a cache hint. The hint has no meaning here; the access has.
#pragma once

#define CUDACPU_LOAD(name)          \
  template <class T>                \
  inline T name(const T* address) { \
    return *address;                \
  }
CUDACPU_LOAD(__ldg)
CUDACPU_LOAD(__ldca)
CUDACPU_LOAD(__ldcg)
CUDACPU_LOAD(__ldcs)
CUDACPU_LOAD(__ldlu)
#undef CUDACPU_LOAD
// "Don't cache, fetch again": a thread that polls memory uses this one.
template <class T>
inline T __ldcv(const T* address) {
  __asm__ volatile("" : : : "memory");
  return *address;
}

#define CUDACPU_STORE(name)                      \
  template <class T, class U>                    \
  inline void name(T* address, const U& value) { \
    *address = value;                            \
  }
CUDACPU_STORE(__stwb)
CUDACPU_STORE(__stcg)
CUDACPU_STORE(__stcs)
CUDACPU_STORE(__stwt)
#undef CUDACPU_STORE

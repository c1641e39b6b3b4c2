// Loads and stores with a cache hint. The hint has no meaning here; the access has. None of them is
// volatile, not even __ldcv ("don't cache, fetch again"): a loop that waits for its value ends at
// once on an H200, since ptxas takes it out.
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
CUDACPU_LOAD(__ldcv)
#undef CUDACPU_LOAD

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

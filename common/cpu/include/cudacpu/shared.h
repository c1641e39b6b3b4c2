// __shared__ variables: references into the arena of the running block.
//
// Each block has its own arena, poisoned with 0xFF bytes (a NaN in every floating-point type), with
// the dynamic part first and then each static declaration as the block's threads first meet it.
#pragma once

#include "cudacpu/thread.h"

// One static declaration: the structure has its declarators as members, exactly as written.
#define CUDACPU_SHARED_PLACE(n, ...)                                              \
  struct cudacpu_type_##n {                                                       \
    __VA_ARGS__;                                                                  \
  };                                                                              \
  static ::cudacpu::SharedVariable cudacpu_variable_##n(sizeof(cudacpu_type_##n), \
                                                        alignof(cudacpu_type_##n), #__VA_ARGS__);

// Declare it in a function, which uses it.
#define CUDACPU_SHARED(n, ...)         \
  CUDACPU_SHARED_PLACE(n, __VA_ARGS__) \
  auto& cudacpu_shared_##n = ::cudacpu::shared<cudacpu_type_##n>(cudacpu_variable_##n);

namespace cudacpu {

constexpr size_t kSharedBase =
    1024;  // the hardware keeps the first KB of each block's shared memory

struct SharedVariable {
  size_t size;
  size_t alignment;
  const char* declaration;  // as written, without __shared__
  uint32_t number = 0;      // index of Block::variables; 0 until a thread meets it

  constexpr SharedVariable(size_t size, size_t alignment, const char* declaration)
      : size(size), alignment(alignment), declaration(declaration) {}
};

constexpr uint32_t kNotPlaced = ~0u;
uint32_t place_shared(SharedVariable& variable, Site site);
void* locate_shared(SharedVariable& variable, Site site);

template <class T>
__attribute__((always_inline)) inline T& shared(SharedVariable& variable, CUDACPU_HERE) {
  static_assert(sizeof(T) <= 48 * 1024,
                "static shared memory is limited to 48 KB: use `extern __shared__`");
#ifdef CUDACPU_TRACE  // the tracer must not take the lookup for the kernel's own access
  return *static_cast<T*>(locate_shared(variable, {file, line}));
#endif
  uint32_t offset = current->block->variables[variable.number];
  if (offset == kNotPlaced) [[unlikely]]
    offset = place_shared(variable, {file, line});
  return *reinterpret_cast<T*>(current->block->arena + offset);
}

// T is an array of unknown bound, like the variable: `float[]`, `float4[][33]`.
template <class T>
__attribute__((always_inline)) inline T& dynamic_shared() {
  return *reinterpret_cast<T*>(current->block->arena + kSharedBase);
}

}  // namespace cudacpu

// Shared-memory addresses as PTX has them: an offset from the start of the block's shared memory.
inline size_t __cvta_generic_to_shared(const void* pointer) {
  return static_cast<const char*>(pointer) - cudacpu::current->block->arena;
}
inline void* __cvta_shared_to_generic(size_t address) {
  return cudacpu::current->block->arena + address;
}
inline unsigned __isShared(const void* pointer) {
  return __cvta_generic_to_shared(pointer) < 256 * 1024;
}
inline unsigned __isLocal(const void* pointer) {
  return cudacpu::is_local(pointer);
}
inline unsigned __isGlobal(const void* pointer) {
  return !__isShared(pointer) && !__isLocal(pointer);
}
// Constants share one address space with global memory here.
inline unsigned __isConstant(const void*) {
  return 0;
}
inline unsigned __isGridConstant(const void*) {
  return 0;
}
#define CUDACPU_ADDRESS_SPACE(space)                             \
  inline size_t __cvta_generic_to_##space(const void* pointer) { \
    return reinterpret_cast<size_t>(pointer);                    \
  }                                                              \
  inline void* __cvta_##space##_to_generic(size_t address) {     \
    return reinterpret_cast<void*>(address);                     \
  }
CUDACPU_ADDRESS_SPACE(global)
CUDACPU_ADDRESS_SPACE(local)
CUDACPU_ADDRESS_SPACE(constant)
CUDACPU_ADDRESS_SPACE(grid_constant)
#undef CUDACPU_ADDRESS_SPACE

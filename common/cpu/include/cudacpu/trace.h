// Calls of headers to the tracer, in builds of the variant "trace" (runtime/trace.h).
#pragma once

#include <cstddef>

#include "cudacpu/thread.h"

#ifdef CUDACPU_TRACE

namespace cudacpu {

// Trace an access that the runtime makes for the running thread: the compiler does not see it.
void trace_read(const void* address, size_t bytes, Site site);
void trace_write(const void* address, size_t bytes, Site site);
// Fences: for all threads of the device, for those of the block, for TMA, and for what
// uses the mbarriers that the thread has begun.
void trace_fence();
void trace_block_fence();
void trace_engine_fence();
void trace_mbarrier_fence();
// One that only lets the thread know what its relaxed atomic loads have seen.
void trace_acquire_fence();
// Set the memory order of the next atomic operation (success, and failure of a compare-and-swap, as
// __ATOMIC_RELAXED and its like), and whether it reaches other blocks. Operations without a stated
// order acquire, and release what was fenced.
void trace_order(int success, int failure, bool reaches_device);
// The fence itself, which the caller has reported to the tracer. (One OS thread runs a launch that
// is traced.)
inline void untraced_fence() {
  __asm__ volatile("" ::: "memory");
}

// Register a library's __constant__ variables, which are one section.
bool trace_constants(const void* begin, const void* end);

}  // namespace cudacpu

extern "C" {
extern const char __start_cudacpu_constant[] __attribute__((weak, visibility("hidden")));
extern const char __stop_cudacpu_constant[] __attribute__((weak, visibility("hidden")));
}
static const bool cudacpu_constants_known =
    ::cudacpu::trace_constants(__start_cudacpu_constant, __stop_cudacpu_constant);
#undef __constant__
#define __constant__ __attribute__((section("cudacpu_constant")))

#else

namespace cudacpu {
inline void trace_read(const void*, size_t, Site) {}
inline void trace_write(const void*, size_t, Site) {}
inline void trace_fence() {}
inline void trace_block_fence() {}
inline void trace_engine_fence() {}
inline void trace_mbarrier_fence() {}
inline void trace_acquire_fence() {}
inline void trace_order(int, int, bool) {}
inline void untraced_fence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
}  // namespace cudacpu

#endif

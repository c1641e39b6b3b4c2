// Barriers of a block, fences, and waiting for other threads.
#pragma once

#include "cudacpu/thread.h"
#include "cudacpu/trace.h"

namespace cudacpu {

enum class BarrierKind : uint8_t { kPlain, kCount, kAnd, kOr };

// A thread's arrival at a barrier of its block.
struct Arrival {
  Wait wait;
  BarrierKind kind;
  bool predicate;
};
void* arrive_at_block_barrier(void* arrival, void* stack_pointer);

// Wait until every thread of the block that has not returned is here; the combined predicate.
inline int sync_block(const char* name, BarrierKind kind, bool predicate, Site site) {
  Arrival arrival{{name, site}, kind, predicate};
  cudacpu_suspend(&arrive_at_block_barrier, &arrival);
  return current->block->barrier_result;
}

// The block's barrier in two halves (split_barrier.cpp): a thread arrives, and waits until every
// thread that has not returned has arrived.
void arrive_at_split_barrier(const char* what, Site site);
void wait_at_split_barrier(const char* what, Site site);

// Wait until every thread of a cooperative launch that has not returned is here.
void* arrive_at_grid_barrier(void* wait, void* stack_pointer);
inline void sync_grid(Site site) {
  Wait wait{"grid.sync()", site};
  cudacpu_suspend(&arrive_at_grid_barrier, &wait);
}

// Return true if all blocks of the grid are resident at once: grid.sync() works.
bool launched_cooperatively();

// Give other threads their turn: the caller finds that one of them has to act first.
void poll(const char* what, Site site);

// Poll between two trips of a loop in the user's code that waits (waiting_loops.py). Return true.
inline bool spin_wait(CUDACPU_HERE) {
  poll("a loop that waits for another thread", {file, line});
  return true;
}

// Record that a statement runs that needs the threads of a warp in step (warp_in_step.py).
void note_warp_in_step(Site site);
inline void warp_in_step(CUDACPU_HERE) {
  note_warp_in_step({file, line});
}

void nanosleep(unsigned nanoseconds, Site site);

}  // namespace cudacpu

inline void __syncthreads(CUDACPU_HERE) {
  cudacpu::sync_block("__syncthreads", cudacpu::BarrierKind::kPlain, false, {file, line});
}
inline int __syncthreads_count(int predicate, CUDACPU_HERE) {
  return cudacpu::sync_block("__syncthreads_count", cudacpu::BarrierKind::kCount, predicate != 0,
                             {file, line});
}
inline int __syncthreads_and(int predicate, CUDACPU_HERE) {
  return cudacpu::sync_block("__syncthreads_and", cudacpu::BarrierKind::kAnd, predicate != 0,
                             {file, line});
}
inline int __syncthreads_or(int predicate, CUDACPU_HERE) {
  return cudacpu::sync_block("__syncthreads_or", cudacpu::BarrierKind::kOr, predicate != 0,
                             {file, line});
}

// A block runs on one OS thread, so its own threads always see each other's writes in order; a grid
// runs on several.
inline void __threadfence_block() {
  cudacpu::trace_block_fence();
  __asm__ volatile("" ::: "memory");
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void __nanosleep(unsigned nanoseconds, CUDACPU_HERE) {
  cudacpu::nanosleep(nanoseconds, {file, line});
}
[[noreturn]] inline void __trap(CUDACPU_HERE) {
  cudacpu::trap({file, line}, "__trap() was called");
}
inline void __brkpt() {}

// Kernels run one after the other: what the one before wrote is there.
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}

inline long long clock64() {
#if defined(__x86_64__)
  return static_cast<long long>(__builtin_ia32_rdtsc());
#else
  long long ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}
namespace cudacpu {
// clock(), in device code.
inline long device_clock() {
  return static_cast<long>(clock64());
}
}  // namespace cudacpu

// The built-in variables of device code, and the thread that is running, as the headers see it.
//
// A CUDA thread is a fiber: a stack that an OS thread switches to. Fibers never move between OS
// threads, so "the running thread" is one thread-local pointer, and so are threadIdx and the
// others, which the scheduler writes at each switch. (Macros would not do: CUDA has structures with
// members of these names.)
#pragma once

#include <cstddef>
#include <cstdint>

// The runtime library is loaded before any kernel: its thread-local variables can have a fixed
// place, which makes reading one a single instruction and everything here about 1.5 times as fast.
#define CUDACPU_THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))

// Where a call stands in the source, as default arguments of the function called.
#define CUDACPU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

extern CUDACPU_THREAD_LOCAL uint3 threadIdx;
extern CUDACPU_THREAD_LOCAL uint3 blockIdx;
extern CUDACPU_THREAD_LOCAL dim3 blockDim;
extern CUDACPU_THREAD_LOCAL dim3 gridDim;
constexpr int warpSize = 32;

namespace cudacpu {

// A place in the user's source.
struct Site {
  const char* file;
  int line;
};

struct Fiber;
struct Warp;

// A resident block, as far as headers need it.
struct Block {
  char* arena;  // this block's shared memory, poison at first
  const uint32_t*
      variables;  // offset in the arena of each __shared__ variable met so far, by number
};

enum class ThreadState : uint8_t { kRunning, kReady, kWaiting, kReturned };

// One CUDA thread of a resident block.
struct Thread {
  uint3 index;    // threadIdx
  uint32_t rank;  // the same, linear: x fastest
  uint32_t lane;  // rank % 32
  Block* block;
  Warp* warp;
  void* exchange;  // what this lane brings to a warp collective and takes from it, on its own stack
  // Of the scheduler's concern only:
  void* stack_pointer;  // while it does not run
  Fiber* fiber;
  Thread* next;          // in the ready queue, or among those that wait at a barrier
  const char* waits_in;  // the operation it waits in, for messages
  Site site;             // where it does
  uint32_t mask;         // of the warp collective it waits in; the answer of __activemask
  ThreadState state;
  bool polling;  // it spins: it is ready, but expects another thread to act first
};

extern CUDACPU_THREAD_LOCAL Thread* current;  // null in host code

// Ends the launch with an error that names the kernel, block and thread. It does not unwind: the
// kernel may be in a function that must not throw.
[[noreturn]] void trap(Site site, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Number of the OS thread that runs this block: the model's streaming multiprocessor.
unsigned smid();

}  // namespace cudacpu

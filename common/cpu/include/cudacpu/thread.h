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

// The place of a call in the source, as default arguments of the function called.
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

struct Warp;

// A resident block, as far as headers need it.
struct Block {
  char* arena;  // this block's shared memory, poison at first
  const uint32_t*
      variables;       // offset in the arena of each __shared__ variable met so far, by number
  int barrier_result;  // of the counting barrier that was completed last
};

enum class ThreadState : uint8_t { kRunning, kReady, kWaiting, kReturned };

// The phase of a barrier in two halves at which a thread has arrived, without having waited for it
// since.
enum class ArrivalPhase : uint8_t { kNone, kEven, kOdd };

// The operation and place in which a thread waits, for messages. It lies on that thread's stack.
struct Wait {
  const char* what;
  Site site;
};

// One CUDA thread of a resident block. A barrier passes over all threads of a block, so that their
// number of cache lines is what it costs: one each.
struct alignas(64) Thread {
  uint3 index;  // threadIdx
  uint8_t lane;
  ThreadState state;
  bool polling;  // it spins: it is ready, but expects another thread to act first
  ArrivalPhase cluster_arrival;
  Block* block;
  Warp* warp;
  void* exchange;       // what this lane brings to a collective and takes from it, on its own stack
  void* stack_pointer;  // while it does not run
  const Wait* wait;     // while it does not run
  Thread* next;         // in the ready queue, or among those that wait at a barrier
};
static_assert(sizeof(Thread) == 64);

extern CUDACPU_THREAD_LOCAL Thread* current;  // null in host code

// Suspend the running thread: `decide` records where it can continue, and returns the stack pointer
// at which another does.
extern "C" void cudacpu_suspend(void* (*decide)(void* argument, void* stack_pointer),
                                void* argument);

// End the launch with an error that names the kernel, block and thread. It does not unwind: the
// kernel may be in a function that must not throw.
[[noreturn]] void trap(Site site, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Return true if it points to a local variable of a thread of this OS thread.
bool is_local(const void* pointer);

// Number of the OS thread that runs this block: the model's streaming multiprocessor.
unsigned smid();

}  // namespace cudacpu

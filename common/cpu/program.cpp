// Support of a whole program: settings from its environment, and an end with a message when a
// kernel fails, because a launch throws and C code does not catch.
//
//   CUDACPU_ORDER        forward, reverse or random     CUDACPU_SEED     of a random order
//   CUDACPU_TIME_LIMIT   seconds of one launch          CUDACPU_THREADS  OS threads
//   CUDACPU_HOST_POINTERS  refuse or allow: as arguments of kernels
//   CUDACPU_DEVICE_POINTERS  refuse or allow: that host code follows them
//   CUDACPU_PROGRESS     seconds after which a launch reports its progress; default 5
//   CUDACPU_STREAMS      early or late: when the work of streams runs
//   CUDACPU_LAST_LATE    how many operations of streams are late: the debugger finds the one that
//   may
//                        not be
//   CUDACPU_PRINTS       "sorted": printf of kernels by its text, the same in each order
//   CUDACPU_HINTS        0 omits the hints that the debugger's rows give
//   CUDACPU_MODEL        the card that is played, 7.5 to 12.0; else the one that it was built for
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <string>
#include <thread>

#include <unistd.h>

extern "C" {
void cudacpu_set_schedule(int threads, int blocks, int completion, uint32_t seed);
void cudacpu_set_threads(unsigned threads);
void cudacpu_set_time_limit(double seconds);
int cudacpu_set_model(const char* name);
void cudacpu_refuse_host_pointers(int on);
void cudacpu_close_device_memory(int on);
void cudacpu_close_device_variables(void* begin, void* end);
void cudacpu_set_prints(int prints);
void cudacpu_set_strict_barriers(int on);
void cudacpu_set_masks(int masks);
void cudacpu_set_asserts_lose_context(int on);
void cudacpu_set_writes_beyond_throw(int on);
void cudacpu_set_progress_after(double seconds);
void cudacpu_set_late_streams(int on);
const char* cudacpu_unfinished_work();
void cudacpu_finish_work();
void cudacpu_set_last_late(uint64_t number);
const char* cudacpu_last_late();
const char* cudacpu_unchecked_error();
void cudacpu_look_for_unset(int on);
const char* cudacpu_unset_in_copy();
const char* cudacpu_warp_in_step();
const char* cudacpu_undefined_shuffle();
#ifdef CUDACPU_TRACE
void cudacpu_set_trace(int mode);
const char* cudacpu_take_trace();
#endif

#ifndef __clang__
// `__device__` variables (cudacpu/device_variable.h). This file is the last to be linked: its page
// ends each section at a page, and makes it begin at one.
#define CUDACPU_PAGE __attribute__((used, aligned(4096)))
CUDACPU_PAGE __attribute__((section("cudacpu_device"))) char cudacpu_last_value[4096] = {};
CUDACPU_PAGE __attribute__((
    section("cudacpu_device_zero,\"aw\",@nobits\n#"))) char cudacpu_last_variable[4096];
extern char __start_cudacpu_device[] __attribute__((visibility("hidden")));
extern char __start_cudacpu_device_zero[] __attribute__((visibility("hidden")));
#endif
}

namespace {

[[noreturn]] void refuse(const char* name, const char* value, const char* allowed) {
  fprintf(stderr, "%s=%s: must be %s\n", name, value, allowed);
  exit(2);
}

// The value of a variable as a number of at least `least`; `missing` where it is not set.
double number(const char* name, double least, double missing) {
  const char* value = getenv(name);
  if (!value || !*value) return missing;
  char* end = nullptr;
  double result = strtod(value, &end);
  if (*end || !(result >= least)) refuse(name, value, least > 0 ? "a positive number" : "a number");
  return result;
}

// Return the index of the variable's value among these words; 0 where it is not set.
int choice(const char* name, std::initializer_list<const char*> words, const char* allowed) {
  const char* value = getenv(name);
  if (!value || !*value) return 0;
  int i = 0;
  for (const char* word : words) {
    if (strcmp(value, word) == 0) return i;
    ++i;
  }
  refuse(name, value, allowed);
}

// Run deferred work of streams that nothing has waited for. The main thread's own variables are
// gone when the program ends, so another thread does it.
void finish_work() {
  const std::string first = cudacpu_unfinished_work();
  if (first.empty()) return;
  fprintf(stderr,
          "CUDA on CPU: nothing waits for %s: it runs now, at the end of the program, and what it "
          "prints is lost; a GPU may not run it\n",
          first.c_str());
  const int none = 2;
  cudacpu_set_prints(none);
  std::thread(cudacpu_finish_work).join();
}

// Return true if a use that is wrong only on a GPU is refused: unless the variable allows it, or
// Thrust makes it, whose vectors are host memory here and whose algorithms are host code.
bool refused(const char* name) {
#ifdef THRUST_DEVICE_SYSTEM
  const char* value = getenv(name);
  if (!value || !*value) return false;
#endif
  return choice(name, {"refuse", "allow"}, "refuse or allow") == 0;
}

// Write the trace to this file, for the debugger and the profiler.
void write_trace() {
#ifdef CUDACPU_TRACE
  const char* path = getenv("CUDACPU_TRACE_FILE");
  FILE* file = path ? fopen(path, "w") : nullptr;
  if (!file) return;
  fputs(cudacpu_take_trace(), file);
  fclose(file);
#endif
}

bool hints = true;
bool limits_late = false;

// Print hints that explain a wrong result afterwards.
void print_hints() {
  if (const char* text = cudacpu_unchecked_error(); *text)
    fprintf(stderr, "CUDA on CPU: %s; the program never looks for errors\n", text);
  if (hints) {
    for (const char* text : {cudacpu_unset_in_copy(), cudacpu_warp_in_step()})
      if (*text) fprintf(stderr, "CUDA on CPU: %s\n", text);
  } else if (const char* text = cudacpu_undefined_shuffle(); *text) {
    fprintf(stderr, "note: %s\n", text);  // a fault only where the value is used
  }
}

// A program that checks its result by assert() ends here, and not in destructors. So does one whose
// kernel has overwritten the C library's records; hints may wait for the lock that it holds then.
void aborted(int signal) {
  const unsigned seconds = 2;
  std::signal(SIGALRM, [](int) { _Exit(128 + SIGABRT); });
  alarm(seconds);
  print_hints();
  write_trace();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

[[noreturn]] void end_with_message() {
  fflush(stdout);
  write_trace();
  try {
    if (auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    if (strstr(error.what(), "did not finish within"))
      fprintf(stderr,
              "  --time-limit (CUDACPU_TIME_LIMIT) gives a launch more, 0 all that it takes\n");
  } catch (...) {
    fprintf(stderr, "an exception that is no std::exception was not caught\n");
  }
  _Exit(1);
}

}  // namespace

// Called by the compiler's check of a function that ends without a value (-fsanitize=return).
// nvcc's host code is not optimised and goes on; optimised code would run into the code that
// follows.
extern "C" [[noreturn]] void __ubsan_handle_missing_return(const void* data) {
  struct Place {
    const char* file;
    uint32_t line;
  };
  const auto& place = *static_cast<const Place*>(data);
  fflush(stdout);
  fprintf(stderr, "%s:%u: this function has to return a value, and ended without one\n", place.file,
          place.line);
  _Exit(1);
}
extern "C" [[noreturn]] void __ubsan_handle_missing_return_abort(const void* data) {
  __ubsan_handle_missing_return(data);
}

namespace {

struct Start {
  Start() {
    const int chosen =
        choice("CUDACPU_ORDER", {"forward", "reverse", "random"}, "forward, reverse or random");
    const int mixed = 2;  // asynchronous copies: at once or late, in random order
    cudacpu_set_schedule(chosen, chosen, chosen == 2 ? mixed : 0,
                         static_cast<uint32_t>(number("CUDACPU_SEED", 0, 0)));
    if (double threads = number("CUDACPU_THREADS", 1, 0))
      cudacpu_set_threads(static_cast<unsigned>(threads));
    const double limit = number("CUDACPU_TIME_LIMIT", 0, 30);
    cudacpu_set_time_limit(limit == 0 ? HUGE_VAL : limit);
    cudacpu_set_progress_after(number("CUDACPU_PROGRESS", 0, 5));
    const char* model = getenv("CUDACPU_MODEL");
    if (!model || !*model) model = CUDACPU_PROGRAM_MODEL;
    if (!cudacpu_set_model(model))
      refuse("CUDACPU_MODEL", model, "a model: python -m common.cpu --help lists them");
    cudacpu_refuse_host_pointers(refused("CUDACPU_HOST_POINTERS"));
    cudacpu_close_device_memory(refused("CUDACPU_DEVICE_POINTERS"));
#ifndef __clang__
    cudacpu_close_device_variables(__start_cudacpu_device, cudacpu_last_value);
    cudacpu_close_device_variables(__start_cudacpu_device_zero, cudacpu_last_variable);
#endif
    cudacpu_set_late_streams(choice("CUDACPU_STREAMS", {"early", "late"}, "early or late"));
    if ((limits_late = number("CUDACPU_LAST_LATE", 0, -1) >= 0))
      cudacpu_set_last_late(static_cast<uint64_t>(number("CUDACPU_LAST_LATE", 0, 0)));
    const int strict = number("CUDACPU_STRICT", 0, 0) != 0;
    cudacpu_set_strict_barriers(strict);
    cudacpu_set_masks(strict);  // those that name lanes that have returned are named
    cudacpu_set_asserts_lose_context(1);
    cudacpu_set_writes_beyond_throw(0);
    cudacpu_set_prints(choice("CUDACPU_PRINTS", {"as run", "sorted"}, "as run or sorted"));
    hints = number("CUDACPU_HINTS", 0, 1) != 0;
    cudacpu_look_for_unset(hints);
#ifdef CUDACPU_TRACE
    cudacpu_set_trace(static_cast<int>(number("CUDACPU_TRACE", 0, 0)));
#endif
    std::set_terminate(end_with_message);
    std::signal(SIGABRT, aborted);
  }
  ~Start() {
    finish_work();
    if (limits_late) fprintf(stderr, "late: %s\n", cudacpu_last_late());
    write_trace();
    print_hints();
  }
} start;

}  // namespace

// printf and assert in device code.
#pragma once

#include "cudacpu/thread.h"

namespace cudacpu {

// The output of a launch appears when it ends, ordered by block, whole calls at a time.
// From host code, plain printf.
int printf(const char* format, ...) __attribute__((format(printf, 1, 2)));

// End the launch in a kernel, and the process elsewhere: called by assert().
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   const char* function);

}  // namespace cudacpu

// __builtin_assume: a condition that nvcc may take for true. If it is false, a GPU goes astray;
// here it is an error. (clang has a function of that name, which does the same as nvcc's.)
#pragma once

namespace cudacpu {
[[noreturn]] void assumption_failed(const char* expression, const char* file, int line);
}

#define __builtin_assume(...)     \
  (static_cast<bool>(__VA_ARGS__) \
       ? void(0)                  \
       : ::cudacpu::assumption_failed(#__VA_ARGS__, __FILE__, __LINE__))

// __builtin_assume: what nvcc may take for true. Where it is not, a GPU goes astray, and this says
// so. (clang has a function of that name, which does as nvcc does.)
#pragma once

namespace cudacpu {
[[noreturn]] void assumption_failed(const char* expression, const char* file, int line);
}

#define __builtin_assume(...)     \
  (static_cast<bool>(__VA_ARGS__) \
       ? void(0)                  \
       : ::cudacpu::assumption_failed(#__VA_ARGS__, __FILE__, __LINE__))

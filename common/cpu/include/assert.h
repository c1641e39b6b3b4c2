// assert() that works in a kernel: a failure ends the launch with an error, not the process.
// No include guard, like the header it replaces: assert follows NDEBUG at each inclusion.
#include_next <assert.h>

#ifndef NDEBUG
namespace cudacpu {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   const char* function);
}
#undef assert
#define assert(...)               \
  (static_cast<bool>(__VA_ARGS__) \
       ? void(0)                  \
       : ::cudacpu::assertion_failed(#__VA_ARGS__, __FILE__, __LINE__, __func__))
#endif

// printf and assert in kernels.
#include "runtime.h"

#include <cstdarg>

namespace cudacpu {

namespace {

// A GPU keeps the last MB of a launch's output. Here the first 16 MB are kept, which bounds what an
// endless loop can print.
constexpr size_t kMaxPrintedBytes = 16 << 20;

}  // namespace

int printf(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int count;
  if (!current) {
    count = vprintf(format, arguments);
  } else {
    char text[4096];
    count = vsnprintf(text, sizeof text, format, arguments);
    size_t length = std::min<size_t>(static_cast<size_t>(std::max(count, 0)), sizeof text - 1);
    if (worker->launch()->printed_bytes.fetch_add(length) < kMaxPrintedBytes)
      block_of(*current).printed.append(text, length);
  }
  va_end(arguments);
  return count;
}

void collect_printed(Launch& launch, ResidentBlock& block) {
  std::lock_guard lock(launch.mutex);
  launch.printed.emplace_back(block.position, std::move(block.printed));
  block.printed.clear();
}

void write_printed(Launch& launch) {
  std::sort(launch.printed.begin(), launch.printed.end());
  for (auto& [position, text] : launch.printed) fwrite(text.data(), 1, text.size(), stdout);
  if (launch.printed_bytes.load() > kMaxPrintedBytes)
    fputs("[CUDA on CPU: the kernel printed more than 16 MB; the rest is not shown]\n", stdout);
  fflush(stdout);
}

void assertion_failed(const char* expression, const char* file, int line, const char* function) {
  if (!current) __assert_fail(expression, file, static_cast<unsigned>(line), function);
  const Stop stop = settings().asserts_lose_context ? Stop::kAsserted : Stop::kFailed;
  worker->launch()->fail(
      stop, format("assertion failed in %s: %s\n  at %s:%d\n", function, expression, file, line) +
                describe(*current));
  worker->abandon();
}
void assumption_failed(const char* expression, const char* file, int line) {
  trap({file, line}, "the condition of __builtin_assume is false: %s", expression);
}

}  // namespace cudacpu

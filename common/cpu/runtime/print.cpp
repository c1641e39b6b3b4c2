// printf and assert in kernels.
#include "runtime.h"

#include <cstdarg>
#include <map>

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
    if (worker->launch()->printed_bytes.fetch_add(length) < kMaxPrintedBytes) {
      ResidentBlock& block = block_of(*current);
      block.printed.append(text, length);
      if (settings().prints == Prints::kSorted)
        block.printers.emplace_back(current - block.threads.data(), length);
    }
  }
  va_end(arguments);
  return count;
}

void collect_printed(Launch& launch, ResidentBlock& block) {
  std::lock_guard lock(launch.mutex);
  if (settings().prints == Prints::kSorted) {
    // The texts of all threads have one position, so that `write_printed` sorts them.
    std::map<std::ptrdiff_t, std::string> of_thread;
    size_t begin = 0;
    for (auto [rank, length] : block.printers) {
      of_thread[rank].append(block.printed, begin, length);
      begin += length;
    }
    for (auto& [rank, text] : of_thread) launch.printed.emplace_back(0, std::move(text));
    block.printers.clear();
  } else {
    launch.printed.emplace_back(block.position, std::move(block.printed));
  }
  block.printed.clear();
}

void write_printed(Launch& launch) {
  if (settings().prints == Prints::kNone) return;
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

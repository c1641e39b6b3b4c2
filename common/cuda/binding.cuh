// Bind a launcher to PyTorch, and let it report that another kernel did the work.
#pragma once

#include <mutex>
#include <string>

#include "common/cuda/torch.cuh"

// Register the function `name` as torch.ops.<day>.<name>: its schema and its implementation for
// tensors on the GPU. One line per rung, at the end of the file:
//
//   RUNG(day05, softmax_v2_online, "(Tensor x) -> Tensor");
#define RUNG(day, name, schema)             \
  STABLE_TORCH_LIBRARY_FRAGMENT(day, m) {   \
    m.def(#name schema);                    \
  }                                         \
  STABLE_TORCH_LIBRARY_IMPL(day, CUDA, m) { \
    m.impl(#name, TORCH_BOX(&name));        \
  }                                         \
  static_assert(true, "a RUNG ends with a semicolon")

// The same for a launcher that takes tensors on the host, and copies them itself.
#define HOST_RUNG(day, name, schema)       \
  STABLE_TORCH_LIBRARY_FRAGMENT(day, m) {  \
    m.def(#name schema);                   \
  }                                        \
  STABLE_TORCH_LIBRARY_IMPL(day, CPU, m) { \
    m.impl(#name, TORCH_BOX(&name));       \
  }                                        \
  static_assert(true, "a HOST_RUNG ends with a semicolon")

// The last launcher's arguments of fell_back(), per thread: autograd calls launchers on other
// threads.
struct Fallback {
  std::mutex lock;
  std::string text;
};

inline Fallback& last_fallback() {
  static Fallback last;
  return last;
}

// A launcher that passes its work to another rung's kernel reports the kernel and the reason:
//
//   fell_back("softmax_v2_online", "a row that does not fit into registers");
//
// The report shows it, and a rung may not be timed on a case for which it fell back.
inline void fell_back(const char* to, const char* why) {
  const std::lock_guard<std::mutex> held(last_fallback().lock);
  last_fallback().text = std::string(to) + ": " + why;
}

// For the checker: what was said since the last call, "" if nothing was.
extern "C" __attribute__((visibility("default"), used)) inline const char* take_fallback() {
  static thread_local std::string taken;
  const std::lock_guard<std::mutex> held(last_fallback().lock);
  taken.swap(last_fallback().text);
  last_fallback().text.clear();
  return taken.c_str();
}

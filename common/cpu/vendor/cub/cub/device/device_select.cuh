// Selections from arrays.
#pragma once

#include <cub/device/run.cuh>

namespace cub {

struct DeviceSelect {
  template <class In, class Out, class Count, class Condition>
  static cudaError_t If(void* temporary, size_t& temporary_bytes, In in, Out out, Count selected,
                        int64_t n, Condition condition, cudaStream_t stream = nullptr) {
    return chosen(temporary, temporary_bytes, in, out, selected, n, stream,
                  [=](int64_t i) { return condition(in[i]); });
  }
  template <class In, class Flags, class Out, class Count>
  static cudaError_t Flagged(void* temporary, size_t& temporary_bytes, In in, Flags flags, Out out,
                             Count selected, int64_t n, cudaStream_t stream = nullptr) {
    return chosen(temporary, temporary_bytes, in, out, selected, n, stream,
                  [=](int64_t i) { return static_cast<bool>(flags[i]); });
  }
  // The first of each run of equal elements.
  template <class In, class Out, class Count>
  static cudaError_t Unique(void* temporary, size_t& temporary_bytes, In in, Out out,
                            Count selected, int64_t n, cudaStream_t stream = nullptr) {
    return chosen(temporary, temporary_bytes, in, out, selected, n, stream,
                  [=](int64_t i) { return i == 0 || !(in[i] == in[i - 1]); });
  }

 private:
  template <class In, class Out, class Count, class Choice>
  static cudaError_t chosen(void* temporary, size_t& temporary_bytes, In in, Out out,
                            Count selected, int64_t n, cudaStream_t stream, Choice choice) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      int64_t count = 0;
      for (int64_t i = 0; i < n; ++i)
        if (choice(i)) out[count++] = in[i];
      *selected = count;
    });
  }
};

}  // namespace cub

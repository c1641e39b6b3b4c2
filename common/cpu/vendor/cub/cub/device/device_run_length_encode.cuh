// Runs of equal elements.
#pragma once

#include <cub/device/run.cuh>

namespace cub {

struct DeviceRunLengthEncode {
  template <class In, class Unique, class Lengths, class Runs>
  static cudaError_t Encode(void* temporary, size_t& temporary_bytes, In in, Unique unique,
                            Lengths lengths, Runs runs, int64_t n, cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      int64_t count = 0;
      for (int64_t first = 0, end; first < n; first = end, ++count) {
        for (end = first + 1; end < n && in[end] == in[first]; ++end) {
        }
        unique[count] = in[first];
        lengths[count] = end - first;
      }
      *runs = count;
    });
  }
};

}  // namespace cub

// Prefix sums of arrays.
#pragma once

#include <cub/device/run.cuh>

namespace cub {

// The output may be the input.
struct DeviceScan {
  template <class In, class Out, class Op, class T>
  static cudaError_t ExclusiveScan(void* temporary, size_t& temporary_bytes, In in, Out out, Op op,
                                   T initial, int64_t n, cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      using Sum = std::decay_t<decltype(op(initial, *in))>;
      Sum before = initial;
      for (int64_t i = 0; i < n; ++i) {
        const Sum next = op(before, in[i]);
        out[i] = before;
        before = next;
      }
    });
  }
  template <class In, class Out, class Op>
  static cudaError_t InclusiveScan(void* temporary, size_t& temporary_bytes, In in, Out out, Op op,
                                   int64_t n, cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      if (n == 0) return;
      std::decay_t<decltype(op(*in, *in))> value = in[0];
      out[0] = value;
      for (int64_t i = 1; i < n; ++i) {
        value = op(value, in[i]);
        out[i] = value;
      }
    });
  }
  template <class In, class Out>
  static cudaError_t ExclusiveSum(void* temporary, size_t& temporary_bytes, In in, Out out,
                                  int64_t n, cudaStream_t stream = nullptr) {
    return ExclusiveScan(temporary, temporary_bytes, in, out, cub::Sum(), detail::ValueOf<In>{}, n,
                         stream);
  }
  template <class In, class Out>
  static cudaError_t InclusiveSum(void* temporary, size_t& temporary_bytes, In in, Out out,
                                  int64_t n, cudaStream_t stream = nullptr) {
    return InclusiveScan(temporary, temporary_bytes, in, out, cub::Sum(), n, stream);
  }
};

}  // namespace cub

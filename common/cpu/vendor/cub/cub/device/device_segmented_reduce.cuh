// Reductions of parts of an array.
#pragma once

#include <cub/device/run.cuh>

namespace cub {

// Segment s holds the elements begin[s], ..., end[s] - 1.
struct DeviceSegmentedReduce {
  template <class In, class Out, class Begin, class End, class Op, class T>
  static cudaError_t Reduce(void* temporary, size_t& temporary_bytes, In in, Out out,
                            int64_t segments, Begin begin, End end, Op op, T initial,
                            cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      using Sum = std::decay_t<decltype(op(initial, *in))>;
      for (int64_t s = 0; s < segments; ++s) {
        const int64_t first = begin[s], count = end[s] - first;
        Sum value = initial;
        if (count > 0) value = op(value, detail::reduced<Sum>(in, first, count, op));
        out[s] = value;
      }
    });
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t Sum(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t segments,
                         Begin begin, End end, cudaStream_t stream = nullptr) {
    return Reduce(temporary, temporary_bytes, in, out, segments, begin, end, cub::Sum(),
                  detail::ValueOf<In>{}, stream);
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t Min(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t segments,
                         Begin begin, End end, cudaStream_t stream = nullptr) {
    return Reduce(temporary, temporary_bytes, in, out, segments, begin, end, cub::Min(),
                  std::numeric_limits<detail::ValueOf<In>>::max(), stream);
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t Max(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t segments,
                         Begin begin, End end, cudaStream_t stream = nullptr) {
    return Reduce(temporary, temporary_bytes, in, out, segments, begin, end, cub::Max(),
                  std::numeric_limits<detail::ValueOf<In>>::lowest(), stream);
  }
};

}  // namespace cub

// Reductions of arrays.
#pragma once

#include <cub/device/run.cuh>

namespace cub {

struct DeviceReduce {
  template <class In, class Out, class Op, class T>
  static cudaError_t Reduce(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t n,
                            Op op, T initial, cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      using Sum = std::decay_t<decltype(op(initial, *in))>;
      Sum value = initial;
      if (n > 0) value = op(value, detail::reduced<Sum>(in, 0, n, op));
      *out = value;
    });
  }
  template <class In, class Out>
  static cudaError_t Sum(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t n,
                         cudaStream_t stream = nullptr) {
    return Reduce(temporary, temporary_bytes, in, out, n, cub::Sum(), detail::ValueOf<In>{},
                  stream);
  }
  template <class In, class Out>
  static cudaError_t Min(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t n,
                         cudaStream_t stream = nullptr) {
    return Reduce(temporary, temporary_bytes, in, out, n, cub::Min(),
                  std::numeric_limits<detail::ValueOf<In>>::max(), stream);
  }
  template <class In, class Out>
  static cudaError_t Max(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t n,
                         cudaStream_t stream = nullptr) {
    return Reduce(temporary, temporary_bytes, in, out, n, cub::Max(),
                  std::numeric_limits<detail::ValueOf<In>>::lowest(), stream);
  }
  // out: a KeyValuePair of index and value.
  template <class In, class Out>
  static cudaError_t ArgMin(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t n,
                            cudaStream_t stream = nullptr) {
    return arg(temporary, temporary_bytes, in, out, n, cub::ArgMin(), stream);
  }
  template <class In, class Out>
  static cudaError_t ArgMax(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t n,
                            cudaStream_t stream = nullptr) {
    return arg(temporary, temporary_bytes, in, out, n, cub::ArgMax(), stream);
  }
  // Runs of equal keys: the first of each, and what is made of its values.
  template <class Keys, class Unique, class Values, class Aggregates, class Runs, class Op>
  static cudaError_t ReduceByKey(void* temporary, size_t& temporary_bytes, Keys keys, Unique unique,
                                 Values values, Aggregates aggregates, Runs runs, Op op, int64_t n,
                                 cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      int64_t count = 0;
      for (int64_t first = 0, end; first < n; first = end, ++count) {
        for (end = first + 1; end < n && keys[end] == keys[first]; ++end) {
        }
        unique[count] = keys[first];
        aggregates[count] =
            detail::reduced<detail::ValueOf<Values>>(values, first, end - first, op);
      }
      *runs = count;
    });
  }

 private:
  template <class In, class Out, class Op>
  static cudaError_t arg(void* temporary, size_t& temporary_bytes, In in, Out out, int64_t n, Op op,
                         cudaStream_t stream) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      using Pair = KeyValuePair<int, detail::ValueOf<In>>;
      Pair best{0, in[0]};
      for (int64_t i = 1; i < n; ++i) best = op(best, Pair{static_cast<int>(i), in[i]});
      *out = best;
    });
  }
};

}  // namespace cub

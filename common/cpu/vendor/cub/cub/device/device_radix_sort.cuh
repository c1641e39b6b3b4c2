// Sorts of arrays.
#pragma once

#include <cub/detail_keys.cuh>
#include <cub/device/run.cuh>

namespace cub {

// Keys that are equal keep their order. Of a DoubleBuffer, the other half holds the result.
struct DeviceRadixSort {
  template <class Key>
  static cudaError_t SortKeys(void* temporary, size_t& temporary_bytes, const Key* in, Key* out,
                              int64_t n, int begin = 0, int end = 8 * sizeof(Key),
                              cudaStream_t stream = nullptr) {
    return sort<Key, NullType>(temporary, temporary_bytes, in, out, nullptr, nullptr, n, begin, end,
                               false, stream);
  }
  template <class Key>
  static cudaError_t SortKeysDescending(void* temporary, size_t& temporary_bytes, const Key* in,
                                        Key* out, int64_t n, int begin = 0,
                                        int end = 8 * sizeof(Key), cudaStream_t stream = nullptr) {
    return sort<Key, NullType>(temporary, temporary_bytes, in, out, nullptr, nullptr, n, begin, end,
                               true, stream);
  }
  template <class Key, class Value>
  static cudaError_t SortPairs(void* temporary, size_t& temporary_bytes, const Key* in, Key* out,
                               const Value* values_in, Value* values_out, int64_t n, int begin = 0,
                               int end = 8 * sizeof(Key), cudaStream_t stream = nullptr) {
    return sort(temporary, temporary_bytes, in, out, values_in, values_out, n, begin, end, false,
                stream);
  }
  template <class Key, class Value>
  static cudaError_t SortPairsDescending(void* temporary, size_t& temporary_bytes, const Key* in,
                                         Key* out, const Value* values_in, Value* values_out,
                                         int64_t n, int begin = 0, int end = 8 * sizeof(Key),
                                         cudaStream_t stream = nullptr) {
    return sort(temporary, temporary_bytes, in, out, values_in, values_out, n, begin, end, true,
                stream);
  }

  template <class Key>
  static cudaError_t SortKeys(void* temporary, size_t& temporary_bytes, DoubleBuffer<Key>& keys,
                              int64_t n, int begin = 0, int end = 8 * sizeof(Key),
                              cudaStream_t stream = nullptr) {
    const cudaError_t error = SortKeys(temporary, temporary_bytes, keys.Current(), keys.Alternate(),
                                       n, begin, end, stream);
    keys.selector ^= temporary != nullptr;
    return error;
  }
  template <class Key>
  static cudaError_t SortKeysDescending(void* temporary, size_t& temporary_bytes,
                                        DoubleBuffer<Key>& keys, int64_t n, int begin = 0,
                                        int end = 8 * sizeof(Key), cudaStream_t stream = nullptr) {
    const cudaError_t error = SortKeysDescending(temporary, temporary_bytes, keys.Current(),
                                                 keys.Alternate(), n, begin, end, stream);
    keys.selector ^= temporary != nullptr;
    return error;
  }
  template <class Key, class Value>
  static cudaError_t SortPairs(void* temporary, size_t& temporary_bytes, DoubleBuffer<Key>& keys,
                               DoubleBuffer<Value>& values, int64_t n, int begin = 0,
                               int end = 8 * sizeof(Key), cudaStream_t stream = nullptr) {
    const cudaError_t error =
        SortPairs(temporary, temporary_bytes, keys.Current(), keys.Alternate(), values.Current(),
                  values.Alternate(), n, begin, end, stream);
    keys.selector ^= temporary != nullptr;
    values.selector ^= temporary != nullptr;
    return error;
  }
  template <class Key, class Value>
  static cudaError_t SortPairsDescending(void* temporary, size_t& temporary_bytes,
                                         DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values,
                                         int64_t n, int begin = 0, int end = 8 * sizeof(Key),
                                         cudaStream_t stream = nullptr) {
    const cudaError_t error =
        SortPairsDescending(temporary, temporary_bytes, keys.Current(), keys.Alternate(),
                            values.Current(), values.Alternate(), n, begin, end, stream);
    keys.selector ^= temporary != nullptr;
    values.selector ^= temporary != nullptr;
    return error;
  }

 private:
  template <class Key, class Value>
  static cudaError_t sort(void* temporary, size_t& temporary_bytes, const Key* in, Key* out,
                          const Value* values_in, Value* values_out, int64_t n, int begin, int end,
                          bool descending, cudaStream_t stream) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      const std::vector<int64_t> order =
          detail::sorted_order<Key>([=](int64_t i) { return in[i]; }, n, begin, end, descending);
      for (int64_t i = 0; i < n; ++i) out[i] = in[order[i]];
      if (values_in == nullptr) return;
      for (int64_t i = 0; i < n; ++i) values_out[i] = values_in[order[i]];
    });
  }
};

}  // namespace cub

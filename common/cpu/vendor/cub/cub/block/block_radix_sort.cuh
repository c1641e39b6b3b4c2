// Sorts of a block.
#pragma once

#include <cub/block/block_scan.cuh>
#include <cub/detail_keys.cuh>

namespace cub {

// Sort X * Y * Z * N keys, and values with them. Keys that are equal keep their order. (Thread 0
// sorts; the parameters that tune NVIDIA's algorithm have no effect.)
template <class Key, int X, int N, class Value = NullType, int RADIX_BITS = 4, bool = true,
          BlockScanAlgorithm = BLOCK_SCAN_WARP_SCANS,
          cudaSharedMemConfig = cudaSharedMemBankSizeFourByte, int Y = 1, int Z = 1, int = 0>
class BlockRadixSort {
  static constexpr int THREADS = X * Y * Z, BITS = 8 * sizeof(Key);

 public:
  union TempStorage {
    detail::Room<Key, THREADS * N> keys;
    detail::Room<Value, THREADS * N> values;
  };

  __device__ explicit BlockRadixSort(TempStorage& storage, CUDACPU_HERE)
      : storage_(storage), thread_(detail::thread_of(THREADS, "BlockRadixSort", file, line)) {}
  __device__ BlockRadixSort(CUDACPU_HERE) : BlockRadixSort(own_storage(), file, line) {}

  __device__ void Sort(Key (&keys)[N], int begin = 0, int end = BITS, CUDACPU_HERE) {
    sort(keys, nullptr, begin, end, false, false, {file, line});
  }
  __device__ void Sort(Key (&keys)[N], Value (&values)[N], int begin = 0, int end = BITS,
                       CUDACPU_HERE) {
    sort(keys, values, begin, end, false, false, {file, line});
  }
  __device__ void SortDescending(Key (&keys)[N], int begin = 0, int end = BITS, CUDACPU_HERE) {
    sort(keys, nullptr, begin, end, true, false, {file, line});
  }
  __device__ void SortDescending(Key (&keys)[N], Value (&values)[N], int begin = 0, int end = BITS,
                                 CUDACPU_HERE) {
    sort(keys, values, begin, end, true, false, {file, line});
  }
  __device__ void SortBlockedToStriped(Key (&keys)[N], int begin = 0, int end = BITS,
                                       CUDACPU_HERE) {
    sort(keys, nullptr, begin, end, false, true, {file, line});
  }
  __device__ void SortBlockedToStriped(Key (&keys)[N], Value (&values)[N], int begin = 0,
                                       int end = BITS, CUDACPU_HERE) {
    sort(keys, values, begin, end, false, true, {file, line});
  }
  __device__ void SortDescendingBlockedToStriped(Key (&keys)[N], int begin = 0, int end = BITS,
                                                 CUDACPU_HERE) {
    sort(keys, nullptr, begin, end, true, true, {file, line});
  }
  __device__ void SortDescendingBlockedToStriped(Key (&keys)[N], Value (&values)[N], int begin = 0,
                                                 int end = BITS, CUDACPU_HERE) {
    sort(keys, values, begin, end, true, true, {file, line});
  }

 private:
  __device__ static TempStorage& own_storage() {
    __shared__ TempStorage storage;
    return storage;
  }

  __device__ void sort(Key* keys, Value* values, int begin, int end, bool descending, bool striped,
                       cudacpu::Site site) {
    for (int i = 0; i < N; ++i) storage_.keys[thread_ * N + i] = keys[i];
    __syncthreads(site.file, site.line);
    std::vector<int64_t> order;
    if (thread_ == 0) {
      order = detail::sorted_order<Key>([&](int64_t i) { return storage_.keys[i]; }, THREADS * N,
                                        begin, end, descending);
      permute(storage_.keys, order);
    }
    __syncthreads(site.file, site.line);
    for (int i = 0; i < N; ++i) keys[i] = storage_.keys[place(i, striped)];
    if (values == nullptr) return;
    __syncthreads(site.file, site.line);
    for (int i = 0; i < N; ++i) storage_.values[thread_ * N + i] = values[i];
    __syncthreads(site.file, site.line);
    if (thread_ == 0) permute(storage_.values, order);
    __syncthreads(site.file, site.line);
    for (int i = 0; i < N; ++i) values[i] = storage_.values[place(i, striped)];
  }
  __device__ int place(int i, bool striped) const {
    return striped ? i * THREADS + thread_ : thread_ * N + i;
  }
  template <class T>
  __device__ static void permute(detail::Room<T, THREADS * N>& items,
                                 const std::vector<int64_t>& order) {
    std::vector<T> sorted(THREADS * N);
    for (int i = 0; i < THREADS * N; ++i) sorted[i] = items[order[i]];
    for (int i = 0; i < THREADS * N; ++i) items[i] = sorted[i];
  }

  TempStorage& storage_;
  int thread_;
};

}  // namespace cub

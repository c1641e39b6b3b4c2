// Day 38, further: the merge sort of the main line for fp32 keys
//
// An fp32 key is mapped to an int32 whose order is the same, and these are sorted. The values are
// then fetched from x by their indices: the sign of a zero and the bits of a NaN stay as they were.
// Besides v3's bytes this moves 8 per element for the map and at least 16 for the fetch, which is
// not coalesced.
//
// Run: python run_day.py 38 --further

#include "common/cuda/binding.cuh"  // taught in day 6

#include "days/day38/further/order.cuh"

constexpr int BLOCK = 256;

std::tuple<Tensor, Tensor> sort_v3_merge_path(const Tensor& x);  // of merge_sort.cu

// ordered() gives an unsigned number; with its highest bit inverted it has the same order as int32.
__global__ void sort_floats_keys_kernel(const float* __restrict__ x, int32_t* __restrict__ keys,
                                        int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) keys[i] = static_cast<int32_t>(ordered(x[i]) ^ 0x80000000u);
}

__global__ void sort_floats_values_kernel(const float* __restrict__ x,
                                          const int64_t* __restrict__ indices,
                                          float* __restrict__ values, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) values[i] = x[indices[i]];
}

std::tuple<Tensor, Tensor> sort_floats_merge_path(const Tensor& x) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype({ScalarType::Float});
  const DeviceGuard guard(x);
  const int64_t n = x.numel();
  const Tensor keys = allocate(x, {n}, ScalarType::Int);
  const Tensor values = allocate_like(x);
  if (n == 0) return {values, allocate(x, {0}, ScalarType::Long)};
  const unsigned blocks = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  sort_floats_keys_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(data<float>(x),
                                                                   mutable_data<int32_t>(keys), n);
  check_launch("sort_floats_merge_path, keys");
  const auto [sorted, indices] = sort_v3_merge_path(keys);
  sort_floats_values_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
      data<float>(x), data<int64_t>(indices), mutable_data<float>(values), n);
  check_launch("sort_floats_merge_path, values");
  return {values, indices};
}

RUNG(day38, sort_floats_merge_path, "(Tensor x) -> (Tensor, Tensor)");

// CUB's device-wide algorithms as operators, to time beside the rungs of days 14, 16, 17 and 38
// (rivals.py). Each call allocates its temporary storage from PyTorch's pool, as a user's would.
#include <cub/cub.cuh>

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

// Call a CUB algorithm twice: with a null pointer it only says how much storage it needs.
template <typename Algorithm>
void with_storage(const Tensor& x, Algorithm algorithm) {
  const DeviceGuard guard(x);
  size_t bytes = 0;
  check_cuda(algorithm(nullptr, bytes), "CUB");
  const Tensor storage =
      torch::stable::new_empty(x, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
  check_cuda(algorithm(storage.mutable_data_ptr(), bytes), "CUB");
}

template <typename In, typename Out>
void reduce(const Tensor& x, const Tensor& y) {
  const auto* in = static_cast<const In*>(x.const_data_ptr());
  auto* out = static_cast<Out*>(y.mutable_data_ptr());
  with_storage(x, [&](void* storage, size_t& bytes) {
    return cub::DeviceReduce::Reduce(storage, bytes, in, out, x.numel(), cuda::std::plus<>{},
                                     Out{0}, current_stream(x));
  });
}

// x: fp32, fp64 or int32. Return the sum, as torch.sum does: of integers in int64.
Tensor sum(const Tensor& x) {
  const bool whole = x.scalar_type() == ScalarType::Int;
  const Tensor y = torch::stable::new_empty(x, {}, whole ? ScalarType::Long : x.scalar_type());
  if (whole) {
    reduce<int, int64_t>(x, y);
  } else if (x.scalar_type() == ScalarType::Double) {
    reduce<double, double>(x, y);
  } else {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float, "x: expected fp32, fp64 or int32");
    reduce<float, float>(x, y);
  }
  return y;
}

// x: fp32. Return its running sums, including or excluding the element itself.
Tensor scan(const Tensor& x, bool exclusive) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float, "x: expected fp32");
  const Tensor y = torch::stable::empty_like(x);
  const auto* in = static_cast<const float*>(x.const_data_ptr());
  auto* out = static_cast<float*>(y.mutable_data_ptr());
  with_storage(x, [&](void* storage, size_t& bytes) {
    return exclusive ? cub::DeviceScan::ExclusiveSum(storage, bytes, in, out, x.numel(),
                                                     current_stream(x))
                     : cub::DeviceScan::InclusiveSum(storage, bytes, in, out, x.numel(),
                                                     current_stream(x));
  });
  return y;
}

// x: int32. Return how many elements are equal to each of 0 to bins - 1, in int32.
Tensor histogram(const Tensor& x, int64_t bins) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Int, "x: expected int32");
  const Tensor y = torch::stable::new_empty(x, {bins}, ScalarType::Int);
  const auto* in = static_cast<const int*>(x.const_data_ptr());
  auto* out = static_cast<int*>(y.mutable_data_ptr());
  const int levels = static_cast<int>(bins) + 1;
  with_storage(x, [&](void* storage, size_t& bytes) {
    return cub::DeviceHistogram::HistogramEven(
        storage, bytes, in, out, levels, 0, static_cast<int>(bins), x.numel(), current_stream(x));
  });
  return y;
}

// keys: int32, int64 or fp32; values: int32, of which CUB sorts 4 bytes per key where torch.sort
// sorts 8. Return both in the order of the keys; equal keys stay in their order.
template <typename Key>
void sort_by(const Tensor& keys, const Tensor& values, const Tensor& sorted, const Tensor& order) {
  with_storage(keys, [&](void* storage, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(storage, bytes,
                                           static_cast<const Key*>(keys.const_data_ptr()),
                                           static_cast<Key*>(sorted.mutable_data_ptr()),
                                           static_cast<const int*>(values.const_data_ptr()),
                                           static_cast<int*>(order.mutable_data_ptr()),
                                           keys.numel(), 0, 8 * sizeof(Key), current_stream(keys));
  });
}

std::tuple<Tensor, Tensor> sort_pairs(const Tensor& keys, const Tensor& values) {
  const Tensor sorted = torch::stable::empty_like(keys), order = torch::stable::empty_like(values);
  STD_TORCH_CHECK(values.scalar_type() == ScalarType::Int, "values: expected int32");
  switch (keys.scalar_type()) {
    case ScalarType::Int:
      sort_by<int>(keys, values, sorted, order);
      break;
    case ScalarType::Long:
      sort_by<int64_t>(keys, values, sorted, order);
      break;
    default:
      STD_TORCH_CHECK(keys.scalar_type() == ScalarType::Float, "keys: expected int32, int64, fp32");
      sort_by<float>(keys, values, sorted, order);
  }
  return {sorted, order};
}

RUNG(cub_calls, sum, "(Tensor x) -> Tensor");
RUNG(cub_calls, scan, "(Tensor x, bool exclusive) -> Tensor");
RUNG(cub_calls, histogram, "(Tensor x, int bins) -> Tensor");
RUNG(cub_calls, sort_pairs, "(Tensor keys, Tensor values) -> (Tensor, Tensor)");

// What the rungs of day 38 share: the order of keys, and the passes between two buffers.
#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

// A key as an unsigned number whose order is that of the keys. int: the sign bit is inverted, so
// that negative numbers come first. float: a larger pattern of bits is a larger absolute value, so
// all bits of negative numbers are inverted. As in torch.sort, -0 equals 0, and every NaN equals
// every other and comes last.
__device__ inline uint32_t ordered(int32_t key) {
  return static_cast<uint32_t>(key) ^ 0x80000000u;
}
__device__ inline uint64_t ordered(int64_t key) {
  return static_cast<uint64_t>(key) ^ 0x8000000000000000u;
}
__device__ inline uint32_t ordered(float key) {
  if (std::isnan(key)) return 0xffffffffu;
  const uint32_t bits = key == 0.0f ? 0u : __float_as_uint(key);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// An element's place in x, as the passes carry it along; the result's indices are int64, as
// torch.sort's.
using Place = uint32_t;

// x sorted, and each element's place in x. Calls pass(p, from, from_place, to, to_place) for p = 0
// … passes - 1. from_place is null in the first pass: there, elements are still where they were.
// to_place is of int64_t in the last pass and of Place before.
//
// Two buffers take turns, and the result is one of them: its indices have room for places, too.
template <typename T, typename Pass>
std::tuple<Tensor, Tensor> sort_by_passes(const Tensor& x, int passes, Pass&& pass) {
  const int64_t n = x.numel();
  Tensor values = allocate_like(x);
  Tensor indices = allocate(x, {n}, ScalarType::Long);
  if (n == 0) return {values, indices};
  const int64_t spare = passes > 1 ? n : 0;
  const Tensor spare_keys = allocate(x, {spare});
  const Tensor spare_places = allocate(x, {spare}, ScalarType::Int);
  T* const keys[2] = {mutable_data<T>(values), mutable_data<T>(spare_keys)};
  Place* const places[2] = {mutable_data<Place>(indices), mutable_data<Place>(spare_places)};

  const T* from = data<T>(x);
  const Place* from_place = nullptr;
  for (int p = 0; p < passes - 1; ++p) {
    const int to = (passes - 1 - p) % 2;  // so that the last pass reads from the spare buffer
    pass(p, from, from_place, keys[to], places[to]);
    from = keys[to];
    from_place = places[to];
  }
  pass(passes - 1, from, from_place, keys[0], mutable_data<int64_t>(indices));
  return {values, indices};
}

// Checks x (n), and calls f with a zero of its type.
template <typename F>
std::tuple<Tensor, Tensor> dispatch_sortable(const Tensor& x, F&& f) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype(
      {ScalarType::Int, ScalarType::Long, ScalarType::Float});
  STD_TORCH_CHECK(x.numel() < int64_t{1} << 32, "x: expected fewer than 2^32 elements, got ",
                  x.numel());
  const DeviceGuard guard(x);
  if (x.scalar_type() == ScalarType::Int) return f(int32_t{});
  if (x.scalar_type() == ScalarType::Long) return f(int64_t{});
  return f(float{});
}

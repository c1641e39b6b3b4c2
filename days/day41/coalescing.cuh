// Day 41: what both of its files need. The functions without a body are in coalescing.cu.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

constexpr int FIELDS = 8;  // of a particle: x, y, z, mass, vx, vy, vz, charge

// Fills y, which has been allocated, by launch(elements of y), and returns it. An empty y needs no
// launch: a grid of no blocks is an error.
template <typename F>
Tensor filled(Tensor y, const char* kernel, F launch) {
  if (y.numel() == 0) return y;
  const DeviceGuard guard(y);
  launch(mutable_data<float>(y));
  check_launch(kernel);
  return y;
}

void check_arrays(const Tensor& state);
void check_swap(const Tensor& x, const Tensor& y);

// What the rungs of bulk_copies.cu fall back to.
Tensor particles_v4_soa(const Tensor& state, double dt);
void swap_v1_scalar(const Tensor& x, const Tensor& y);

// Swaps x and y, which check_swap has checked, by launch(elements of x, elements of y, their
// number) where both lie on multiples of 16 bytes; otherwise by v1.
template <typename F>
void swap_aligned(const Tensor& x, const Tensor& y, const char* kernel, F launch) {
  if (!is_aligned(x, 16) || !is_aligned(y, 16)) {
    fell_back("swap_v1_scalar", "an input that is not aligned to 16 bytes");
    return swap_v1_scalar(x, y);
  }
  if (x.numel() == 0) return;
  const DeviceGuard guard(x);
  launch(mutable_data<float>(x), mutable_data<float>(y), x.numel());
  check_launch(kernel);
}

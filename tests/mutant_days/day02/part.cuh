// What both sources of this day call, one with n = 1 and one with n = 2.
#pragma once

__device__ inline float part(float v, int n) {
  if (v < 0) return v - 1;
  return n == 1 ? v + 1 : v / n;
}

__device__ inline float not_reached(float v) {
  return v + 1;
}

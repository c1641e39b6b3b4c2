// Functions of PyTorch that a launcher calls on a GPU: the current stream, a device guard, the size
// of a grid.
#pragma once

namespace cudacpu {

// Return the stream to which work must be submitted. While a launcher is checked, it is not the
// default one: see runtime/pytorch.cpp.
cudaStream_t current_stream();

// Make device 0, where every tensor lives, the current one until the end of the scope.
class DeviceGuard {
 public:
  DeviceGuard();
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_;
};

// Blocks that a grid may have along y: a small card has few.
int max_grid_y();

// The device that this memory of a tensor is on: 0, unless a check places it on another one.
int device_of(const void* memory);

}  // namespace cudacpu

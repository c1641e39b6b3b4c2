// Day 24: a stream of batches, each normalised by a running mean and variance
//
//   y[b, i] = (x[b, i] - m[i]) / sqrt(v[i] + ε)                      x, y: (batches, n); m, v: (n,)
//   then       m ← m + µ · (x - m)        v ← (1 - µ) · (v + µ · (x - m)²)        with the old m
//
// Bytes: 8 · batches · n if mean and variance stay in registers; 24 · batches · n if every batch
// reads and writes them.
//
//   v1 launch_each   one launch per batch
//   v2 persistent    one launch for all batches: the state stays in registers
//
// Run: python run_day.py 24

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

#include <tuple>

// ---------------------------------------------------------------------------------------------
// rolling v1: one launch per batch, one thread per feature. Registers do not outlive a kernel, so
// each launch reads the state from memory and writes it back.

constexpr float EPSILON = 1e-5f;  // avoids a division by 0 for a constant feature

// Returns x normalised by the present state, then updates the state with weight `momentum`
// (exponentially weighted mean and variance; West, 1979).
__device__ float roll(float x, float& mean, float& var, float momentum) {
  const float off = x - mean;
  const float y = off * rsqrtf(var + EPSILON);
  mean += momentum * off;
  var = (1 - momentum) * (var + momentum * off * off);
  return y;
}

__global__ void rolling_v1_launch_each_kernel(const float* __restrict__ x, float* __restrict__ y,
                                              float* mean, float* var, int64_t n, float momentum) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float m = mean[i], v = var[i];
  y[i] = roll(x[i], m, v, momentum);
  mean[i] = m;
  var[i] = v;
}

using Rolled = std::tuple<Tensor, Tensor, Tensor>;  // y, and the state after the last batch

// Checks x (batches, n), mean (n,), var (n,); allocates y and writable copies of the state.
Rolled make_rolled(const Tensor& x, const Tensor& mean, const Tensor& var, double momentum) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  for (const auto& [state, name] : {std::pair(&mean, "mean"), std::pair(&var, "var")}) {
    check(*state, name).on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
    check(*state, name).same_device(x, "x").size(0, x.size(1));
  }
  STD_TORCH_CHECK(momentum > 0 && momentum <= 1, "momentum: expected above 0 and at most 1, got ",
                  momentum);
  const DeviceGuard guard(x);
  Rolled made{allocate_like(x), allocate_like(mean), allocate_like(var)};
  const size_t bytes = x.size(1) * sizeof(float);
  if (bytes == 0) return made;
  check_cuda(cudaMemcpyAsync(std::get<1>(made).mutable_data_ptr(), mean.const_data_ptr(), bytes,
                             cudaMemcpyDeviceToDevice, current_stream(x)),
             "copy of mean");
  check_cuda(cudaMemcpyAsync(std::get<2>(made).mutable_data_ptr(), var.const_data_ptr(), bytes,
                             cudaMemcpyDeviceToDevice, current_stream(x)),
             "copy of var");
  return made;
}

// One thread per feature. 65,536 features make 512 blocks of 128 threads: at most four per
// multiprocessor of an H200, which all run at the same time.
constexpr int ROLLING_BLOCK = 128;

Rolled rolling_v1_launch_each(const Tensor& x, const Tensor& mean, const Tensor& var,
                              double momentum) {
  Rolled made = make_rolled(x, mean, var, momentum);
  auto& [y, m, v] = made;
  if (x.numel() == 0) return made;
  const DeviceGuard guard(x);
  const int64_t batches = x.size(0), n = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(n, ROLLING_BLOCK), "x");
  for (int64_t b = 0; b < batches; ++b) {
    rolling_v1_launch_each_kernel<<<grid, ROLLING_BLOCK, 0, current_stream(x)>>>(
        data<float>(x) + b * n, mutable_data<float>(y) + b * n, mutable_data<float>(m),
        mutable_data<float>(v), n, static_cast<float>(momentum));
  }
  check_launch("rolling_v1_launch_each");
  return made;
}

// ---------------------------------------------------------------------------------------------
// rolling v2 against v1: one launch loops over all batches. A feature's state stays in registers of
// its thread, and the loads of the next batches are in flight while the present ones are processed.

// Batches loaded ahead. An H200 copies 4.2 TB/s, half of which are reads: 16 KB per microsecond and
// multiprocessor. 496 threads with 16 loads of 4 bytes have 32 KB in flight, enough for a latency
// of 2 µs.
constexpr int AHEAD = 16;

// Loads x[at], x[at + n], …: a feature in the next AHEAD batches, of which `left` exist. The loads
// of a whole group are not checked one by one: that would cost more instructions than the
// arithmetic.
__device__ void load_ahead(float (&into)[AHEAD], const float* __restrict__ x, int64_t at, int64_t n,
                           int64_t left) {
  if (left >= AHEAD) {
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) into[k] = x[at + k * n];
  } else {
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) into[k] = k < left ? x[at + k * n] : 0.0f;
  }
}

__global__ void __launch_bounds__(ROLLING_BLOCK)
    rolling_v2_persistent_kernel(const float* __restrict__ x, float* __restrict__ y, float* mean,
                                 float* var, int64_t batches, int64_t n, float momentum) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float m = mean[i], v = var[i];
  float now[AHEAD], next[AHEAD];  // batches [b, b + 16) and [b + 16, b + 32) of feature i
  load_ahead(now, x, i, n, batches);
  for (int64_t b = 0; b < batches; b += AHEAD) {
    const int64_t at = b * n + i, left = batches - b;
    load_ahead(next, x, at + AHEAD * n, n, left - AHEAD);
    if (left >= AHEAD) {
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) y[at + k * n] = roll(now[k], m, v, momentum);
    } else {
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        if (k < left) y[at + k * n] = roll(now[k], m, v, momentum);
      }
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) now[k] = next[k];
  }
  mean[i] = m;
  var[i] = v;
}

Rolled rolling_v2_persistent(const Tensor& x, const Tensor& mean, const Tensor& var,
                             double momentum) {
  Rolled made = make_rolled(x, mean, var, momentum);
  auto& [y, m, v] = made;
  if (x.numel() == 0) return made;
  const DeviceGuard guard(x);
  const int64_t batches = x.size(0), n = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(n, ROLLING_BLOCK), "x");
  rolling_v2_persistent_kernel<<<grid, ROLLING_BLOCK, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), mutable_data<float>(m), mutable_data<float>(v),
      batches, n, static_cast<float>(momentum));
  check_launch("rolling_v2_persistent");
  return made;
}

// ---------------------------------------------------------------------------------------------

#define ROLLING \
  "(Tensor x, Tensor mean, Tensor var, float momentum=0.1) -> (Tensor, Tensor, Tensor)"

RUNG(day24, rolling_v1_launch_each, ROLLING);
RUNG(day24, rolling_v2_persistent, ROLLING);

// Day 61: element-wise and conditional operations, in CUDA and in Triton
//
//   leaky_add      z[i] = v where v = x[i] + y[i] ≥ 0, else slope · v      x, y, z: n elements
//   clamp_columns  y[r, c] = x[r, c], or the bound that it is beyond       x, y: (rows, cols)
//                  bounds: low[c] and high[c], one pair per column
//
// Bytes: leaky_add reads two vectors and writes one, clamp_columns reads a matrix and writes one.
// Two or three operations per element: memory bandwidth is the limit of both.
//
//   add v1 thread    one thread per element
//   add v2 packs     16 bytes per load
//   add v3 triton    vector_ops_triton.py: one program per 1024 elements
//   clamp v1 packs   16 bytes of a row per thread, which loads the bounds of its columns
//   clamp v2 triton  vector_ops_triton.py: one program per block of 16 × 256 elements
//
// Run: python run_day.py 61

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

constexpr int BLOCK = 256;

// The comparison is false for NaN, which stays.
__device__ float leaky(float v, float slope) {
  return v < 0 ? slope * v : v;
}

// ---------------------------------------------------------------------------------------------
// add v1: one thread per element.

template <typename T>
__global__ void leaky_add_v1_thread_kernel(const T* __restrict__ x, const T* __restrict__ y,
                                           T* __restrict__ z, int64_t n, float slope) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;  // the last block reaches beyond the end
  z[i] = static_cast<T>(leaky(static_cast<float>(x[i]) + static_cast<float>(y[i]), slope));
}

void check_arguments(const Tensor& x, const Tensor& y, double slope) {
  check(x, "x").on_gpu().floating().rank(1).contiguous();
  check(y, "y").on_gpu().like(x, "x").contiguous();
  STD_TORCH_CHECK(!std::isfinite(slope) || std::isfinite(static_cast<float>(slope)),
                  "slope: expected a number of fp32, got ", slope);
}

Tensor leaky_add_v1_thread(const Tensor& x, const Tensor& y, double slope) {
  check_arguments(x, y, slope);
  const DeviceGuard guard(x);
  Tensor z = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return z;
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    leaky_add_v1_thread_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(y), mutable_data<T>(z), n, static_cast<float>(slope));
  });
  check_launch("leaky_add_v1_thread");
  return z;
}

// ---------------------------------------------------------------------------------------------
// add v2 against v1: 16 bytes per load. The elements behind the last full pack are computed one by
// one.

template <typename T>
__global__ void leaky_add_v2_packs_kernel(const T* __restrict__ x, const T* __restrict__ y,
                                          T* __restrict__ z, int64_t n, float slope) {
  constexpr int N = Pack<T>::N;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t packs = n / N;
  const auto one = [&](T a, T b) {
    return static_cast<T>(leaky(static_cast<float>(a) + static_cast<float>(b), slope));
  };
  if (i < packs) {
    Pack<T> a = reinterpret_cast<const Pack<T>*>(x)[i];
    const Pack<T> b = reinterpret_cast<const Pack<T>*>(y)[i];
    for (int k = 0; k < N; ++k) a.at[k] = one(a.at[k], b.at[k]);
    reinterpret_cast<Pack<T>*>(z)[i] = a;
  }
  const int64_t rest = packs * N + i;  // [packs · N, n): fewer than N elements
  if (rest < n) z[rest] = one(x[rest], y[rest]);
}

Tensor leaky_add_v2_packs(const Tensor& x, const Tensor& y, double slope) {
  check_arguments(x, y, slope);
  if (!is_aligned(x, 16) || !is_aligned(y, 16)) {  // a slice such as x[1:]
    fell_back("leaky_add_v1_thread", "an input that is not aligned to 16 bytes");
    return leaky_add_v1_thread(x, y, slope);
  }
  const DeviceGuard guard(x);
  Tensor z = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return z;
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const int64_t threads = ceil_div<int64_t>(n, Pack<T>::N);
    const unsigned grid = grid_size(ceil_div<int64_t>(threads, BLOCK), "x");
    leaky_add_v2_packs_kernel<T><<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(y), mutable_data<T>(z), n, static_cast<float>(slope));
  });
  check_launch("leaky_add_v2_packs");
  return z;
}

// ---------------------------------------------------------------------------------------------
// clamp v1: threadIdx.x selects a pack of columns, and the grid strides over rows. A thread loads
// the bounds of its columns once, and keeps them in registers for all of its rows.

constexpr int LANES = 64;      // packs of a row per block
constexpr int TALL = 4;        // rows of threads per block
constexpr int MOST_ROWS = 64;  // per block, so that the bounds are a small part of what is read

// A bound that is NaN makes NaN, as in PyTorch; NaN itself stays.
__device__ float clamped(float v, float low, float high) {
  v = v < low || low != low ? low : v;
  return v > high || high != high ? high : v;
}

// Elements that are loaded and stored as one piece: a Pack<T>, or a single one.
template <typename T, int N>
struct alignas(N * sizeof(T)) Piece {
  T at[N];
};

template <typename T, int N>
__global__ void clamp_columns_v1_packs_kernel(const T* __restrict__ x, const T* __restrict__ low,
                                              const T* __restrict__ high, T* __restrict__ y,
                                              int64_t rows, int64_t cols) {
  using Some = Piece<T, N>;
  const int64_t across = cols / N;  // pieces per row
  const int64_t c = int64_t{blockIdx.x} * LANES + threadIdx.x;
  if (c >= across) return;
  const Some least = reinterpret_cast<const Some*>(low)[c];
  const Some most = reinterpret_cast<const Some*>(high)[c];
  const int64_t stride = int64_t{gridDim.y} * TALL;
  for (int64_t row = int64_t{blockIdx.y} * TALL + threadIdx.y; row < rows; row += stride) {
    Some v = reinterpret_cast<const Some*>(x)[row * across + c];
    for (int j = 0; j < N; ++j) {
      v.at[j] = static_cast<T>(clamped(static_cast<float>(v.at[j]), static_cast<float>(least.at[j]),
                                       static_cast<float>(most.at[j])));
    }
    reinterpret_cast<Some*>(y)[row * across + c] = v;
  }
}

Tensor clamp_columns_v1_packs(const Tensor& x, const Tensor& low, const Tensor& high) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  for (const auto& [bound, name] : {std::pair{&low, "low"}, std::pair{&high, "high"}}) {
    check(*bound, name).on_gpu().dtype({x.scalar_type()}).rank(1).size(0, x.size(1)).contiguous();
    check(*bound, name).same_device(x, "x");
  }
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  if (x.numel() == 0) return y;
  const int64_t tall = std::min<int64_t>(ceil_div<int64_t>(rows, MOST_ROWS), max_grid_y());
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto packed) {
      constexpr int N = packed ? Pack<T>::N : 1;
      const unsigned wide = grid_size(ceil_div<int64_t>(cols, LANES * N), "x");
      clamp_columns_v1_packs_kernel<T, N>
          <<<dim3(wide, static_cast<unsigned>(tall)), dim3(LANES, TALL), 0, current_stream(x)>>>(
              data<T>(x), data<T>(low), data<T>(high), mutable_data<T>(y), rows, cols);
    };
    const bool aligned = is_aligned(x, 16) && is_aligned(low, 16) && is_aligned(high, 16);
    if (aligned && cols % Pack<T>::N == 0) {
      launch(std::true_type{});
    } else {
      launch(std::false_type{});
    }
  });
  check_launch("clamp_columns_v1_packs");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day61, leaky_add_v1_thread, "(Tensor x, Tensor y, float slope) -> Tensor");
RUNG(day61, leaky_add_v2_packs, "(Tensor x, Tensor y, float slope) -> Tensor");
RUNG(day61, clamp_columns_v1_packs, "(Tensor x, Tensor low, Tensor high) -> Tensor");

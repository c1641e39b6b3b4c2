// Day 44: the backward pass of the norms of rows
//
//   g = gy · weight      D[r] = sum_c g[r, c] · x[r, c]      s: what the forward pass returned
//   RMSNorm  gx = s · (g - x · s · s · D / cols)        gw[c] = sum_r gy[r, c] · x[r, c] · s[r]
//   L2       gx = s · (g - x · s · s · D)
//   L1       gx = s · (g - sign(x) · s · D)
//
// gy, x, gx: (rows, cols) in fp32, fp16 or bf16; weight, gw: (cols,); s: (rows,) in fp32.
// Bytes: 3 · rows · cols · sizeof(T). Operations: 9 per element.
//
//   v1 two_kernels  gx by one block per row, gw by one block per 32 columns: 5 passes
//   v2 one_pass     a block takes many rows, and its threads keep gw of their columns in registers
//   v3 pipelined    the next rows are copied to shared memory while this one is computed
//
// Run: python run_day.py 44 --further

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx.cuh"              // cp.async: day 20
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "days/day44/further/column_sums.cuh"
#include "days/day44/further/rows.cuh"

#include <algorithm>
#include <tuple>
#include <type_traits>

constexpr int BLOCK = 512;

// A backward pass, with rows of `chunks` chunks of N elements.
template <typename T, int N>
struct Backward {
  const Chunk<T, N>*gy, *x;   // (rows, chunks)
  const float* scale;         // (rows,)
  const Chunk<T, N>* weight;  // (chunks,), or null
  Chunk<T, N>* gx;            // (rows, chunks)
  int64_t rows, chunks;
  float eps;

  __device__ float cols() const { return static_cast<float>(chunks * N); }
};

// The upstream gradient times the weight, element i of a chunk.
template <typename Norm, typename T, int N>
__device__ float weighted(const Chunk<T, N>& gy, const Chunk<T, N>& weight, int i) {
  const float g = static_cast<float>(gy.at[i]);
  return Norm::WEIGHTED ? g * static_cast<float>(weight.at[i]) : g;
}

// A chunk's part of D.
template <typename Norm, typename T, int N>
__device__ float dot(float sum, const Chunk<T, N>& gy, const Chunk<T, N>& x,
                     const Chunk<T, N>& weight) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum += weighted<Norm>(gy, weight, i) * static_cast<float>(x.at[i]);
  return sum;
}

// gx of a chunk. pull: what Norm::pull makes of D.
template <typename Norm, typename T, int N>
__device__ Chunk<T, N> gradient(const Chunk<T, N>& gy, const Chunk<T, N>& x,
                                const Chunk<T, N>& weight, float s, float pull) {
  Chunk<T, N> gx;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float along = Norm::direction(static_cast<float>(x.at[i]), s) * pull;
    gx.at[i] = static_cast<T>(s * (weighted<Norm>(gy, weight, i) - along));
  }
  return gx;
}

// Checks the arguments, allocates gx, and calls launch(pass, gx's dtype as zero).
template <typename Launch>
Tensor go_back(const Tensor& gy, const Tensor& x, const Tensor& scale, const Tensor* weight,
               double eps, const char* kernel, Launch&& launch) {
  check(gy, "gy").on_gpu().floating().rank(2).contiguous();
  check(x, "x").on_gpu().like(gy, "gy").contiguous();
  check(scale, "scale").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(scale, "scale").same_device(gy, "gy").size(0, gy.size(0));
  if (weight) {
    check(*weight, "weight").on_gpu().dtype({gy.scalar_type()}).rank(1).contiguous();
    check(*weight, "weight").same_device(gy, "gy").size(0, gy.size(1));
  }
  check_eps(eps);
  const DeviceGuard guard(gy);
  Tensor gx = allocate_like(gy);
  const int64_t rows = gy.size(0), cols = gy.size(1);
  if (cols == 0) return gx;
  dispatch_floating(gy, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(cols, {&gy, &x, weight ? weight : &x}, [&](auto size) {
      using C = Chunk<T, size>;
      launch(Backward<T, size>{data<C>(gy), data<C>(x), data<float>(scale),
                               weight ? data<C>(*weight) : nullptr, mutable_data<C>(gx), rows,
                               cols / size, static_cast<float>(eps)});
    });
  });
  check_launch(kernel);
  return gx;
}

// ---------------------------------------------------------------------------------------------
// v1: gx needs a sum over the row; gw needs sums over columns. One kernel for each. L1 and L2 have
// no weight, so this is all that they need.

template <typename Norm, typename T, int N>
__global__ void __launch_bounds__(BLOCK) norm_gx_kernel(Backward<T, N> b) {
  __shared__ float sums[BLOCK / 32];
  const int64_t row = blockIdx.x;
  const Chunk<T, N>*gy = b.gy + row * b.chunks, *x = b.x + row * b.chunks;
  const auto weight = [&](int64_t c) {
    if constexpr (Norm::WEIGHTED) return load_whole(b.weight + c);
    return Chunk<T, N>{};
  };
  float sum = 0;
#pragma unroll 4
  for (int64_t c = threadIdx.x; c < b.chunks; c += blockDim.x) {
    sum = dot<Norm>(sum, load_whole(gy + c), load_whole(x + c), weight(c));
  }
  const float s = b.scale[row];
  const float pull = Norm::pull(sum_of_block(sum, sums), s, b.cols(), b.eps);
#pragma unroll 4
  for (int64_t c = threadIdx.x; c < b.chunks; c += blockDim.x) {
    b.gx[row * b.chunks + c] =
        gradient<Norm>(load_whole(gy + c), load_whole(x + c), weight(c), s, pull);
  }
}

template <typename Norm, typename T, int N>
void launch_gx(const Tensor& gy, const Backward<T, N>& b) {
  if (b.rows == 0) return;
  const int64_t warps = std::min<int64_t>(BLOCK / 32, ceil_div<int64_t>(b.chunks, 32));
  norm_gx_kernel<Norm>
      <<<grid_size(b.rows, "gy"), static_cast<int>(32 * warps), 0, current_stream(gy)>>>(b);
}

// A block of 32 × 16 threads sums 32 columns; thread row y takes the rows y, y + 16 …
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    norm_gw_kernel(const T* __restrict__ gy, const T* __restrict__ x,
                   const float* __restrict__ scale, T* __restrict__ gw, int64_t rows,
                   int64_t cols) {
  __shared__ float sums[BLOCK / 32][32];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  for (int64_t r = threadIdx.y; r < rows && c < cols; r += BLOCK / 32) {
    sum += static_cast<float>(gy[r * cols + c]) * static_cast<float>(x[r * cols + c]) * scale[r];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // the first row of threads waits for the sums of all rows
  if (threadIdx.y > 0 || c >= cols) return;
  for (int y = 1; y < BLOCK / 32; ++y) sum += sums[y][threadIdx.x];
  gw[c] = static_cast<T>(sum);
}

using Gradients = std::tuple<Tensor, Tensor>;  // gx, gw

Gradients rms_norm_backward_v1_two_kernels(const Tensor& gy, const Tensor& x, const Tensor& scale,
                                           const Tensor& weight) {
  Tensor gw = allocate_like(weight);
  Tensor gx = go_back(gy, x, scale, &weight, 0, "rms_norm_backward_v1", [&](auto b) {
    using T = std::decay_t<decltype(b.x->at[0])>;
    launch_gx<Rms>(gy, b);
    norm_gw_kernel<T><<<grid_size(ceil_div<int64_t>(gy.size(1), 32), "gy"), dim3(32, BLOCK / 32), 0,
                        current_stream(gy)>>>(data<T>(gy), data<T>(x), b.scale, mutable_data<T>(gw),
                                              b.rows, gy.size(1));
  });
  return {gx, gw};
}

Tensor l1_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& scale, double eps) {
  return go_back(gy, x, scale, nullptr, eps, "l1_norm_backward",
                 [&](auto b) { launch_gx<L1>(gy, b); });
}

Tensor l2_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& scale, double eps) {
  return go_back(gy, x, scale, nullptr, eps, "l2_norm_backward",
                 [&](auto b) { launch_gx<L2>(gy, b); });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: gy and x are read once. A block takes the rows blockIdx.x, + gridDim.x …, holds a
// row in registers, and each of its threads keeps gw of its columns over all these rows. At the end
// it stores these sums in a workspace, and a second kernel adds them up.

constexpr int PACKS = 2;      // per thread and tensor: rows of up to 16 KB
constexpr int MIN_ROWS = 16;  // per block, where there are few rows

// A thread's columns: chunks first, first + stride … of every row that its block takes.
template <typename T, int N>
struct Columns {
  const Backward<T, N>& b;
  RawChunk<Chunk<T, N>> weight[PACKS];
  float gw[PACKS][N] = {};

  __device__ explicit Columns(const Backward<T, N>& b) : b(b) {
    each([&](int k, int c) { weight[k] = load_raw(b.weight + c); });
  }

  // Calls f(k, c) for each of the chunks c.
  template <typename F>
  __device__ void each(F f) const {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int c = threadIdx.x + k * blockDim.x;
      if (c < b.chunks) f(k, c);
    }
  }

  // Stores gx of a row and adds to gw. gy(k), x(k): this thread's chunks of the row. All threads of
  // the block must call it.
  template <typename Gy, typename X>
  __device__ void add_row(int64_t row, float s, Gy gy, X x, float* sums) {
    float sum = 0;
    each([&](int k, int) {
      const Chunk<T, N> from_gy = gy(k), from_x = x(k);
      sum = dot<Rms>(sum, from_gy, from_x, weight[k].chunk());
#pragma unroll
      for (int i = 0; i < N; ++i) {
        gw[k][i] += static_cast<float>(from_gy.at[i]) * static_cast<float>(from_x.at[i]) * s;
      }
    });
    const float pull = Rms::pull(sum_of_block(sum, sums), s, b.cols(), b.eps);
    each([&](int k, int c) {
      b.gx[row * b.chunks + c] = gradient<Rms>(gy(k), x(k), weight[k].chunk(), s, pull);
    });
  }

  // partial: (blocks, columns).
  __device__ void store(float* partial) const {
    each([&](int k, int c) {
#pragma unroll
      for (int i = 0; i < N; ++i) partial[(blockIdx.x * b.chunks + c) * N + i] = gw[k][i];
    });
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2)
    rms_norm_backward_v2_one_pass_kernel(Backward<T, N> b, float* __restrict__ partial) {
  __shared__ float sums[2][BLOCK / 32];  // rows in turns, so that one barrier per row is enough
  Columns<T, N> columns(b);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < b.rows; row += gridDim.x, turn ^= 1) {
    RawChunk<Chunk<T, N>> gy[PACKS], x[PACKS];
    columns.each([&](int k, int c) {
      gy[k] = load_raw(b.gy + row * b.chunks + c);
      x[k] = load_raw(b.x + row * b.chunks + c);
    });
    columns.add_row(
        row, b.scale[row], [&](int k) { return gy[k].chunk(); },
        [&](int k) { return x[k].chunk(); }, sums[turn]);
  }
  columns.store(partial);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a ring of STAGES rows in shared memory. While the block computes a row, cp.async
// copies the next STAGES - 1, where v2 has nothing in flight between its loads and the next row. A
// thread reads only what it copied itself, so the ring needs no barrier.

constexpr int STAGES = 3;

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2)
    rms_norm_backward_v3_pipelined_kernel(Backward<T, N> b, float* __restrict__ partial) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  __shared__ float sums[2][BLOCK / 32];
  using C = Chunk<T, N>;
  // Chunk k of tensor t (0: gy, 1: x) of a stage: ring[((stage * 2 + t) * PACKS + k) * blockDim.x]
  auto* const ring = reinterpret_cast<C*>(memory) + threadIdx.x;
  const auto at = [&](int stage, int t, int k) {
    return ring + ((stage * 2 + t) * PACKS + k) * blockDim.x;
  };
  Columns<T, N> columns(b);

  const auto copy = [&](int64_t row, int stage) {
    if (row < b.rows) {
      columns.each([&](int k, int c) {
        ptx::cp_async<16>(at(stage, 0, k), b.gy + row * b.chunks + c);
        ptx::cp_async<16>(at(stage, 1, k), b.x + row * b.chunks + c);
      });
    }
    ptx::cp_async_commit();  // also an empty group, so that each row is one
  };
  const auto scale = [&](int64_t row) { return row < b.rows ? b.scale[row] : 0.0f; };
  int64_t row = blockIdx.x;
  for (int stage = 0; stage < STAGES - 1; ++stage) copy(row + int64_t{stage} * gridDim.x, stage);
  float s = scale(row);
  int stage = 0, turn = 0;
  for (; row < b.rows; row += gridDim.x, turn ^= 1) {
    copy(row + (STAGES - 1) * gridDim.x, (stage + STAGES - 1) % STAGES);
    const float next_s = scale(row + gridDim.x);  // in flight, like the copies
    ptx::cp_async_wait<STAGES - 1>();  // this row has come; those of the younger groups may not
    columns.add_row(
        row, s, [&](int k) { return load_whole(at(stage, 0, k)); },
        [&](int k) { return load_whole(at(stage, 1, k)); }, sums[turn]);
    stage = (stage + 1) % STAGES;
    s = next_s;
  }
  columns.store(partial);
#endif
}

// Threads of a block that takes rows of so many chunks, which must fit into it.
int threads_for(int64_t chunks) {
  return static_cast<int>(32 * ceil_div<int64_t>(chunks, 32 * PACKS));
}

// Bytes of v3's ring: STAGES rows of gy and x.
int64_t ring_bytes(int threads) {
  return int64_t{threads} * STAGES * 2 * PACKS * 16;
}

// Chunks of a row, if it is made of packs of 16 bytes that are aligned in all tensors, else its
// elements.
int64_t chunks_of(const Tensor& gy, const Tensor& x, const Tensor& weight) {
  check(gy, "gy").on_gpu().rank(2);  // go_back checks the rest
  const int64_t bytes = gy.size(1) * gy.element_size();
  const bool whole =
      bytes % 16 == 0 && is_aligned(gy, 16) && is_aligned(x, 16) && is_aligned(weight, 16);
  return whole ? bytes / 16 : gy.size(1);
}

template <bool PIPELINED, typename T, int N>
auto kernel_for(const Backward<T, N>&) {
  if constexpr (PIPELINED && sizeof(Chunk<T, N>) == 16) {
    return rms_norm_backward_v3_pipelined_kernel<T, N>;
  } else {
    return rms_norm_backward_v2_one_pass_kernel<T, N>;
  }
}

// One kernel over all rows, which leaves the sums of its blocks in `partial`, and one that adds
// these up.
template <bool PIPELINED>
Gradients one_pass(const Tensor& gy, const Tensor& x, const Tensor& scale, const Tensor& weight,
                   const char* name) {
  Tensor gw = allocate_like(weight);
  Tensor gx = go_back(gy, x, scale, &weight, 0, name, [&](auto b) {
    const auto kernel = kernel_for<PIPELINED>(b);
    const int block = threads_for(b.chunks);
    const size_t bytes = PIPELINED ? ring_bytes(block) : 0;
    allow_shared(kernel, bytes);
    const unsigned grid =
        resident_grid(gy, kernel, block, bytes, ceil_div<int64_t>(b.rows, MIN_ROWS));
    const Tensor partial = allocate(gy, {int64_t{grid}, gy.size(1)}, ScalarType::Float);
    kernel<<<grid, block, bytes, current_stream(gy)>>>(b, mutable_data<float>(partial));
    add_columns(partial, gw);
  });
  return {gx, gw};
}

Gradients rms_norm_backward_v2_one_pass(const Tensor& gy, const Tensor& x, const Tensor& scale,
                                        const Tensor& weight) {
  if (gy.numel() == 0 || chunks_of(gy, x, weight) > BLOCK * PACKS) {
    fell_back("rms_norm_backward_v1_two_kernels",
              "no elements, rows above 16 KB, or not made of aligned packs of 16 bytes");
    return rms_norm_backward_v1_two_kernels(gy, x, scale, weight);
  }
  return one_pass<false>(gy, x, scale, weight, "rms_norm_backward_v2");
}

Gradients rms_norm_backward_v3_pipelined(const Tensor& gy, const Tensor& x, const Tensor& scale,
                                         const Tensor& weight) {
  const int64_t chunks = chunks_of(gy, x, weight);
  const DeviceGuard guard(gy);
  require_capability(8, 0, "cp.async");
  const bool packs = chunks * 16 == gy.size(1) * gy.element_size();
  const int64_t sums = 2 * sizeof(float) * BLOCK / 32;
  if (gy.numel() == 0 || !packs || chunks > BLOCK * PACKS ||
      !shared_memory_fits(gy, sums, ring_bytes(threads_for(chunks)))) {
    fell_back("rms_norm_backward_v2_one_pass",
              "no elements, or rows that are too long or not made of aligned packs");
    return rms_norm_backward_v2_one_pass(gy, x, scale, weight);
  }
  return one_pass<true>(gy, x, scale, weight, "rms_norm_backward_v3");
}

// ---------------------------------------------------------------------------------------------

#define RMS_BACKWARD "(Tensor gy, Tensor x, Tensor scale, Tensor weight) -> (Tensor, Tensor)"
RUNG(day44, rms_norm_backward_v1_two_kernels, RMS_BACKWARD);
RUNG(day44, rms_norm_backward_v2_one_pass, RMS_BACKWARD);
RUNG(day44, rms_norm_backward_v3_pipelined, RMS_BACKWARD);
RUNG(day44, l1_norm_backward, "(Tensor gy, Tensor x, Tensor scale, float eps=1e-12) -> Tensor");
RUNG(day44, l2_norm_backward, "(Tensor gy, Tensor x, Tensor scale, float eps=1e-12) -> Tensor");

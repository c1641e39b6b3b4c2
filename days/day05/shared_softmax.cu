// Day 5: softmax in shared memory
//
//   y[r, c] = exp(x[r, c] - m[r]) / sum_c exp(x[r, c] - m[r])      x, y: (rows, cols)
//   m[r]    = max_c x[r, c]                                        so that no exp overflows
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T). For 65536×1024 fp32 that is
// 0.54 GB. Operations: about 5 per element, so memory bandwidth is the bound.
//
//   v1 shared_tree   one block per row; the row is kept in shared memory; two tree reductions
//   v2 online        maximum and sum in one reduction: half the barriers, rows of any length
//   v3 registers     the row in registers, 16-byte loads, reductions in warps: two block barriers
//
// Run: python run_day.py 5

#include "common/cuda/binding.cuh"  // explained in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"

// Threads per block, one block per row. A multiprocessor holds several such blocks, and while one
// waits at a barrier another can load. A larger block has a deeper tree with more idle threads.
constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// v1: each row is read once into shared memory; maximum, sum and quotients are computed from there.

// Returns the combination of partial[0, BLOCK) under `op` to every thread. 128 threads combine the
// upper half with the lower, then 64, 32 … 1: log2(256) = 8 levels. Every thread must call it.
template <typename Op>
__device__ float tree_reduce(float* partial, Op op) {
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    __syncthreads();  // the readers of this level wait for the writers of the previous one
    if (threadIdx.x < half) {
      partial[threadIdx.x] = op(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
  }
  __syncthreads();  // all threads wait for thread 0, which writes the result
  const float result = partial[0];
  __syncthreads();  // the caller's next write to partial waits for all these reads
  return result;
}

template <typename T>
__global__ void softmax_v1_shared_tree_kernel(const T* __restrict__ x, T* __restrict__ y,
                                              int64_t cols) {
  extern __shared__ float row[];    // [0, cols): this block's row, as fp32
  __shared__ float partial[BLOCK];  // one number per thread, for the tree
  const T* x_row = x + blockIdx.x * cols;
  T* y_row = y + blockIdx.x * cols;

  // Thread t reads columns t, t + 256, t + 512 …: neighbours read neighbours, coalesced.
  float max = -INFINITY;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    row[c] = static_cast<float>(x_row[c]);
    max = fmaxf(max, row[c]);
  }
  partial[threadIdx.x] = max;
  max = tree_reduce(partial, [](float a, float b) { return fmaxf(a, b); });

  // Each thread accesses only the columns that it wrote itself, so row needs no barrier.
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    row[c] = expf(row[c] - max);
    sum += row[c];
  }
  partial[threadIdx.x] = sum;
  sum = tree_reduce(partial, [](float a, float b) { return a + b; });

  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    y_row[c] = static_cast<T>(row[c] / sum);
  }
}

Tensor softmax_v1_shared_tree(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;  // a grid of zero blocks is an error
  const int64_t rows = x.size(0), cols = x.size(1);

  // A block may use 48 KB of shared memory. A kernel that opts in may use more: up to 227 KB for
  // compute capability 9.0, 99 KB for 8.6, 8.9 and 12.0, 64 KB for 7.5.
  int limit = 0;
  check_cuda(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index(x)),
      "cudaDeviceGetAttribute");
  const int64_t longest = (limit - sizeof(float) * BLOCK) / sizeof(float);
  STD_TORCH_CHECK(cols <= longest, "x: a row of ", cols, " columns does not fit in shared memory, ",
                  longest, " do; use softmax_v2_online");
  const size_t row_bytes = cols * sizeof(float);

  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = softmax_v1_shared_tree_kernel<T>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(row_bytes)),
               "cudaFuncSetAttribute");
    kernel<<<grid_size(rows, "x"), BLOCK, row_bytes, current_stream(x)>>>(data<T>(x),
                                                                          mutable_data<T>(y), cols);
  });
  check_launch("softmax_v1_shared_tree");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one reduction combines pairs of maximum and sum. For a larger maximum, the sum so
// far is rescaled instead of computed again (Milakov & Gimelshein, 2018). The row is not kept but
// read a second time, so it may have any length.

// The maximum of some elements, and their sum of exp(x - max).
struct Partial {
  float max;
  float sum;
};

// The pair for the union of two sets: the sum with the smaller max is scaled down. One exp serves
// both cases without a branch. Equal maxima are a case of their own because -inf - -inf is NaN.
__device__ Partial merge(Partial a, Partial b) {
  const float shrink = a.max == b.max ? 1.0f : expf(-fabsf(a.max - b.max));
  return b.max > a.max ? Partial{b.max, a.sum * shrink + b.sum}
                       : Partial{a.max, a.sum + b.sum * shrink};
}

// A row that contains +inf gives NaN everywhere, as in PyTorch.
__device__ float inverse_of_sum(Partial row) {
  return row.max == INFINITY ? NAN : 1.0f / row.sum;
}

template <typename T>
__global__ void softmax_v2_online_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t cols) {
  __shared__ Partial partial[BLOCK];
  const T* x_row = x + blockIdx.x * cols;
  T* y_row = y + blockIdx.x * cols;

  Partial mine{-INFINITY, 0};  // the pair of the empty set
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    mine = merge(mine, {static_cast<float>(x_row[c]), 1.0f});  // one element: exp(x - x) = 1
  }
  partial[threadIdx.x] = mine;
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    __syncthreads();  // the readers of this level wait for the writers of the previous one
    if (threadIdx.x < half) {
      partial[threadIdx.x] = merge(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
  }
  __syncthreads();  // all threads wait for thread 0, which writes the result
  const Partial all = partial[0];

  const float scale = inverse_of_sum(all);  // one division per thread, not one per element
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    y_row[c] = static_cast<T>(expf(static_cast<float>(x_row[c]) - all.max) * scale);
  }
}

Tensor softmax_v2_online(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    softmax_v2_online_kernel<T><<<grid_size(rows, "x"), BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), cols);
  });
  check_launch("softmax_v2_online");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: two reductions as in v1, and the row stays in registers. A thread loads two packs
// of 16 bytes (4 floats or 8 halves each), keeps them until the end, and calls exp once per
// element. Each warp reduces its own values first, where __syncwarp is enough; one block barrier
// joins the warps. The block has as many threads as the row needs: 128 for 1024 floats.

constexpr int PACKS = 2;           // per thread
constexpr int MAX_THREADS = 1024;  // per block: rows of up to 8192 floats or 16,384 halves, 32 KB

// Returns the combination of all threads' values to every thread, which must all call it.
// shared: (blockDim.x,), one number per thread.
template <typename Op>
__device__ float block_reduce(float value, float* shared, Op op) {
  const int lane = threadIdx.x % 32, first = threadIdx.x - lane;  // [first, first + 32): my warp
  for (int half = 16; half > 0; half /= 2) {
    shared[threadIdx.x] = value;
    __syncwarp();  // each lane's read waits for the writes of all 32 lanes
    value = op(value, shared[first + (lane ^ half)]);
    __syncwarp();  // each lane's next write waits for the reads of all 32 lanes
  }
  if (lane == 0) shared[first] = value;
  __syncthreads();  // all threads wait for the results of all warps
  value = shared[0];
  for (int next = 32; next < blockDim.x; next += 32) value = op(value, shared[next]);
  return value;
}

template <typename T>
__global__ void __launch_bounds__(MAX_THREADS)
    softmax_v3_registers_kernel(const Pack<T>* __restrict__ x, Pack<T>* __restrict__ y, int packs) {
  constexpr int N = Pack<T>::N;
  extern __shared__ float shared[];  // two numbers per thread: one array per reduction
  const Pack<T>* x_row = x + int64_t{blockIdx.x} * packs;
  Pack<T>* y_row = y + int64_t{blockIdx.x} * packs;

  float v[PACKS][N];  // this thread's part of the row: packs t and t + blockDim.x
  float max = -INFINITY;
  for (int k = 0, p = threadIdx.x; k < PACKS; ++k, p += blockDim.x) {
    Pack<T> pack;
    if (p < packs) pack = x_row[p];
    for (int i = 0; i < N; ++i) {
      v[k][i] = p < packs ? static_cast<float>(pack.at[i]) : -INFINITY;  // exp(-inf) = 0
      max = fmaxf(max, v[k][i]);
    }
  }
  max = block_reduce(max, shared, [](float a, float b) { return fmaxf(a, b); });

  float sum = 0;
  for (int k = 0; k < PACKS; ++k) {
    for (int i = 0; i < N; ++i) {
      v[k][i] = expf(v[k][i] - max);
      sum += v[k][i];
    }
  }
  sum = block_reduce(sum, shared + blockDim.x, [](float a, float b) { return a + b; });

  const float scale = 1.0f / sum;
  for (int k = 0, p = threadIdx.x; k < PACKS; ++k, p += blockDim.x) {
    Pack<T> pack;
    for (int i = 0; i < N; ++i) pack.at[i] = static_cast<T>(v[k][i] * scale);
    if (p < packs) y_row[p] = pack;
  }
}

Tensor softmax_v3_registers(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), row_bytes = x.size(1) * x.element_size();
  STD_TORCH_CHECK(
      row_bytes % 16 == 0 && row_bytes <= 16 * PACKS * MAX_THREADS && is_aligned(x, 16),
      "x: expected aligned rows of whole packs of 16 bytes, at most 32 KB, got rows of ", row_bytes,
      " bytes; use softmax_v2_online");
  const int packs = static_cast<int>(row_bytes / 16);
  const int threads = 32 * ceil_div(packs, 32 * PACKS);  // whole warps
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    softmax_v3_registers_kernel<T>
        <<<grid_size(rows, "x"), threads, 2 * threads * sizeof(float), current_stream(x)>>>(
            data<Pack<T>>(x), mutable_data<Pack<T>>(y), packs);
  });
  check_launch("softmax_v3_registers");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day05, softmax_v1_shared_tree, "(Tensor x) -> Tensor");
RUNG(day05, softmax_v2_online, "(Tensor x) -> Tensor");
RUNG(day05, softmax_v3_registers, "(Tensor x) -> Tensor");

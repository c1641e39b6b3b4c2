// Day 5: softmax in shared memory
//
//   y[r, c] = exp(x[r, c] - m[r]) / sum_c exp(x[r, c] - m[r])      x, y: (rows, cols)
//   m[r]    = max_c x[r, c]                                        so that no exp overflows
//
// Bytes: read x once, write y once: 2 · rows · cols · sizeof(T). For 65536×1024 fp32 that is
// 0.54 GB. Operations: about 5 an element, so the memory bus is the limit by far.
//
//   v1 shared_tree   one block a row; the row lives in shared memory; two tree reductions
//   v2 online        maximum and sum in one reduction: half the barriers, a row of any length
//   v3 vectorised    16-byte loads; the last five levels of the tree without a block barrier
//
// Run: python run_day.py 5

#include "common/cuda/tensor.cuh"

// One block a row. 256 threads: 8 warps a block and 8 blocks a multiprocessor hide the latency of
// memory; with more, the tree is deeper and more threads idle in it.
constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// v1: the row is read once into shared memory, then everything happens there.

// Combines partial[0, BLOCK) into partial[0] with `op`: 128 threads add the upper half to the
// lower, then 64, 32 … 1: log2(256) = 8 levels. Every thread of the block must call it.
template <typename Op>
__device__ float tree_reduce(float* partial, Op op) {
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    __syncthreads();  // all of the level above is written before anybody reads it
    if (threadIdx.x < half) {
      partial[threadIdx.x] = op(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
  }
  __syncthreads();  // thread 0 has written the result that all read now
  const float result = partial[0];
  __syncthreads();  // all have read it before the caller reuses partial
  return result;
}

template <typename T>
__global__ void softmax_v1_shared_tree_kernel(const T* __restrict__ x, T* __restrict__ y,
                                              int64_t cols) {
  extern __shared__ float row[];    // [0, cols): this block's row, as fp32
  __shared__ float partial[BLOCK];  // one number a thread, for the tree
  const T* x_row = x + blockIdx.x * cols;
  T* y_row = y + blockIdx.x * cols;

  // Threads take columns t, t + 256, t + 512 …: neighbours read neighbours, so loads coalesce.
  float max = -INFINITY;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    row[c] = static_cast<float>(x_row[c]);
    max = fmaxf(max, row[c]);
  }
  partial[threadIdx.x] = max;
  max = tree_reduce(partial, [](float a, float b) { return fmaxf(a, b); });

  // Each thread touches only the columns that it wrote itself, so no barrier is needed for row.
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
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;  // a grid of no blocks is an error
  const int64_t rows = x.size(0), cols = x.size(1);

  // A block may have 48 KB of shared memory, or up to 227 KB on Hopper if the kernel asks first.
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
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row_bytes),
               "cudaFuncSetAttribute");
    kernel<<<grid_size(rows, "x"), BLOCK, row_bytes, current_stream(x)>>>(data<T>(x),
                                                                          mutable_data<T>(y), cols);
  });
  check_launch("softmax_v1_shared_tree");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: maximum and sum travel as a pair through one tree. When a larger maximum turns
// up, the sum so far is rescaled instead of computed again (Milakov & Gimelshein, 2018). The row is
// not kept: it is read a second time, and comes from the cache. So a row may have any length.

// The sum of exp(x - max) over some of the elements, and the max it refers to.
struct Partial {
  float max = -INFINITY;
  float sum = 0;
};

// The pair for the union of two sets. The one whose max wins keeps its sum as it is: that also
// avoids exp(-inf - -inf), which is NaN, where a set is empty.
__device__ Partial merge(Partial a, Partial b) {
  const float max = fmaxf(a.max, b.max);
  const float a_sum = a.max == max ? a.sum : a.sum * expf(a.max - max);
  const float b_sum = b.max == max ? b.sum : b.sum * expf(b.max - max);
  return {max, a_sum + b_sum};
}

// A row that holds +inf has no softmax: NaN throughout, as in PyTorch.
__device__ float inverse_of_sum(Partial row) {
  return row.max == INFINITY ? NAN : 1.0f / row.sum;
}

template <typename T>
__global__ void softmax_v2_online_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t cols) {
  __shared__ Partial partial[BLOCK];
  const T* x_row = x + blockIdx.x * cols;
  T* y_row = y + blockIdx.x * cols;

  Partial mine;
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    mine = merge(mine, {static_cast<float>(x_row[c]), 1.0f});  // one element: exp(x - x) = 1
  }
  partial[threadIdx.x] = mine;
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    __syncthreads();  // all of the level above is written before anybody reads it
    if (threadIdx.x < half) {
      partial[threadIdx.x] = merge(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
  }
  __syncthreads();  // thread 0 has written the result that all read now
  const Partial all = partial[0];

  const float scale = inverse_of_sum(all);  // one division a thread, not one an element
  for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
    y_row[c] = static_cast<T>(expf(static_cast<float>(x_row[c]) - all.max) * scale);
  }
}

Tensor softmax_v2_online(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
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
// v3 against v2: a thread reads 16 bytes at once (4 floats, 8 halves), so a quarter of the load
// instructions keep the same bytes in flight, and it rescales its sum once for all of them. Half as
// many threads, and the last 32 partials belong to one warp, which needs no block barrier.

constexpr int BLOCK_V3 = 128;

// N elements that are loaded and stored as one piece.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <typename T, int N>
__global__ void softmax_v3_vectorised_kernel(const T* __restrict__ x, T* __restrict__ y,
                                             int64_t packs) {
  __shared__ Partial partial[BLOCK_V3];
  const auto* x_row = reinterpret_cast<const Pack<T, N>*>(x) + blockIdx.x * packs;
  auto* y_row = reinterpret_cast<Pack<T, N>*>(y) + blockIdx.x * packs;

  Partial mine;
  for (int64_t p = threadIdx.x; p < packs; p += BLOCK_V3) {
    const Pack<T, N> pack = x_row[p];
    Partial chunk;  // of these N elements: their max first, then one exp each
    for (int i = 0; i < N; ++i) chunk.max = fmaxf(chunk.max, static_cast<float>(pack.at[i]));
    for (int i = 0; i < N; ++i) {
      const float v = static_cast<float>(pack.at[i]);
      chunk.sum += v == chunk.max ? 1.0f : expf(v - chunk.max);
    }
    mine = merge(mine, chunk);
  }
  partial[threadIdx.x] = mine;
  __syncthreads();  // 128 partials are written; warp 0 takes over, four a lane
  if (threadIdx.x < 32) {
    for (int i = threadIdx.x + 32; i < BLOCK_V3; i += 32) mine = merge(mine, partial[i]);
    for (int half = 16; half > 0; half /= 2) {
      partial[threadIdx.x] = mine;
      __syncwarp();  // the 32 lanes have written before any of them reads
      mine = merge(mine, partial[threadIdx.x ^ half]);
      __syncwarp();  // and read before any of them writes again
    }
    if (threadIdx.x == 0) partial[0] = mine;
  }
  __syncthreads();  // warp 0 has written the result that all read now
  const Partial all = partial[0];

  const float scale = inverse_of_sum(all);
  for (int64_t p = threadIdx.x; p < packs; p += BLOCK_V3) {
    const Pack<T, N> pack = x_row[p];
    Pack<T, N> out;
    for (int i = 0; i < N; ++i) {
      out.at[i] = static_cast<T>(expf(static_cast<float>(pack.at[i]) - all.max) * scale);
    }
    y_row[p] = out;
  }
}

Tensor softmax_v3_vectorised(const Tensor& x) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), cols = x.size(1);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = 16 / sizeof(T);
    const unsigned grid = grid_size(rows, "x");
    // A row that is no multiple of 16 bytes, or a tensor that starts in the middle of 16, goes
    // one element at a time.
    if (cols % N == 0 && is_aligned(x, 16) && is_aligned(y, 16)) {
      softmax_v3_vectorised_kernel<T, N>
          <<<grid, BLOCK_V3, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), cols / N);
    } else {
      softmax_v3_vectorised_kernel<T, 1>
          <<<grid, BLOCK_V3, 0, current_stream(x)>>>(data<T>(x), mutable_data<T>(y), cols);
    }
  });
  check_launch("softmax_v3_vectorised");
  return y;
}

// ---------------------------------------------------------------------------------------------

STABLE_TORCH_LIBRARY(day05, m) {
  m.def("softmax_v1_shared_tree(Tensor x) -> Tensor");
  m.def("softmax_v2_online(Tensor x) -> Tensor");
  m.def("softmax_v3_vectorised(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day05, CUDA, m) {
  m.impl("softmax_v1_shared_tree", TORCH_BOX(&softmax_v1_shared_tree));
  m.impl("softmax_v2_online", TORCH_BOX(&softmax_v2_online));
  m.impl("softmax_v3_vectorised", TORCH_BOX(&softmax_v3_vectorised));
}

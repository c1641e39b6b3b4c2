// Day 95: skeletons of the kernels that a fusing just-in-time compiler generates.
//
// lazy.py records an expression such as x = e / e.sum(-1) as a graph, schedule.py divides the graph
// into kernels, and codegen.py prints a struct F per kernel: its formulas. What all kernels have in
// common stands here, as templates over F. A generated source is this file, F, and launchers.
//
// One operation is one pass: an element costs two or three moves of its bytes. Of n operations on
// (rows, cols), fused ones cost the inputs and outputs once, whatever n is:
//   GELU(x + bias) · scale + residual   8 operations, 18 moves per element   fused: 3 moves
//   softmax                             5 operations,  8 moves per element   fused: 2 moves
//   layer norm                          9 operations, 12 moves per element   fused: 2 moves
//
//   v1 eager         one kernel per operation
//   v2 element-wise  chains of element-wise operations become one kernel
//   v3 rows          reductions too: a row is read once and stays in registers
//   v4 wide          16 bytes per load; threads per row and registers chosen for the row's length
//
//   python run_day.py 95

#ifndef FUSION_JIT_GENERATED            // generated sources are built without PyTorch's headers
#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/tensor_list.cuh"  // taught in day 81
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

constexpr int BLOCK = 256;          // threads of an element-wise kernel
constexpr int ROWS_PER_THREAD = 4;  // so that what a thread computes of its place is used again
constexpr int WARP_ROWS = 4;        // rows per block, where a row takes one warp

// N neighbouring elements as they lie in memory: words of 16 bytes, or one shorter word.
template <typename T, int N>
struct Raw {
  static constexpr int BYTES = N * sizeof(T), WIDTH = BYTES < 16 ? BYTES : 16;
  using Short = std::conditional_t<WIDTH == 8, uint2, std::conditional_t<WIDTH == 4, unsigned, T>>;
  using Word = std::conditional_t<WIDTH == 16, uint4, Short>;
  static_assert(sizeof(Word) == WIDTH, "N elements are whole words");
  Word words[BYTES / WIDTH];

  // Element k, as the type that formulas compute with.
  __device__ std::conditional_t<std::is_same_v<T, bool>, bool, float> at(int k) const {
    T all[N];
    memcpy(all, words, sizeof all);  // in registers, where k is a constant
    return all[k];
  }
};

template <int N, typename T>
__device__ Raw<T, N> read(const T* from) {
  return *reinterpret_cast<const Raw<T, N>*>(from);
}

// Rounds N values to T, and stores them.
template <int N, typename T, typename V>
__device__ void write(T* to, const V (&values)[N]) {
  T all[N];
#pragma unroll
  for (int k = 0; k < N; ++k) all[k] = static_cast<T>(values[k]);
  Raw<T, N> raw;
  memcpy(raw.words, all, sizeof all);
  *reinterpret_cast<Raw<T, N>*>(to) = raw;
}

// What a cast to T and back leaves of a value.
template <typename T>
__device__ float rounded(float value) {
  return static_cast<float>(static_cast<T>(value));
}

// The larger and the smaller of two, and NaN where one of them is NaN, as in PyTorch.
__device__ inline float larger(float a, float b) {
  return a > b || a != a ? a : b;
}
__device__ inline float smaller(float a, float b) {
  return a < b || a != a ? a : b;
}

// ---------------------------------------------------------------------------------------------
// Element-wise: F has no reduction. A thread has N neighbouring columns of some rows.

template <int N, typename F>
__device__ void compute_elements(const F& f, typename F::Row& row, int64_t r, int64_t c,
                                 int64_t cols) {
  typename F::template Held<N> held;
  float no_sums[1];
  f.load(held, r, c, cols);
  f.template visit<0>(held, row, no_sums, r, c, cols);
}

template <int N, typename F>
__global__ void __launch_bounds__(BLOCK)
    elementwise_kernel(const F f, int64_t rows, int64_t cols, unsigned tiles) {
  const int64_t c = (int64_t{blockIdx.x % tiles} * blockDim.x + threadIdx.x) * N;
  const int64_t step = int64_t{gridDim.x / tiles} * blockDim.y;  // rows that the grid takes at once
  for (int64_t r = int64_t{blockIdx.x / tiles} * blockDim.y + threadIdx.y; r < rows; r += step) {
    typename F::Row row;
    f.begin(row, r);
    if (c + N <= cols) {
      compute_elements<N>(f, row, r, c, cols);
    } else {
      for (int64_t tail = c; tail < cols; ++tail) compute_elements<1>(f, row, r, tail, cols);
    }
  }
}

// N > 1: operands lie on multiples of 16 bytes, and so does each row, unless there is one only.
template <int N, typename F>
cudaError_t launch_elementwise(const F& f, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t chunks = (cols + N - 1) / N;
  unsigned width = 1;  // threads along a row, the others have other rows
  while (width < BLOCK && width < chunks) width *= 2;
  const dim3 block(width, BLOCK / width);
  const int64_t tiles = (chunks + width - 1) / width;  // below 2^31: no memory holds more
  const int64_t rows_per_block = int64_t{block.y} * ROWS_PER_THREAD;
  const int64_t needed = (rows + rows_per_block - 1) / rows_per_block;
  const int64_t most = 2147483647 / tiles;
  const int64_t bands = needed < most ? needed : most;
  elementwise_kernel<N><<<static_cast<unsigned>(tiles * bands), block, 0, stream>>>(
      f, rows, cols, static_cast<unsigned>(tiles));
  return cudaGetLastError();
}

// ---------------------------------------------------------------------------------------------
// Rows: F has PHASES reductions that need each other's results, as the variance needs the mean.
// THREADS threads have a row: a warp, or a block. A thread keeps CHUNKS times N elements of it in
// registers, so that no phase reads memory again. CHUNKS = 0: the row is too long, each phase does.

// The results of the row's warps: one place for all phases.
template <int WARPS, typename F>
__device__ auto shared_results() -> float (&)[F::SUMS][WARPS] {
  __shared__ float of_warps[F::SUMS][WARPS];
  return of_warps;
}

// Combines all threads' partial results of phase P, for every thread of the row.
template <int P, int THREADS, typename F>
__device__ void combine_threads(float (&part)[F::SUMS]) {
  constexpr int WARPS = THREADS / 32;
  auto& of_warps = shared_results<WARPS, F>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < F::SUMS; ++i) {
    const auto combine = [i](float a, float b) { return F::template combine<P>(i, a, b); };
    part[i] = warp_reduce(part[i], combine);
    if constexpr (WARPS > 1) {
      if (lane == 0) of_warps[i][warp] = part[i];
      __syncthreads();  // the results of all warps are complete
      float identity[F::SUMS];
      F::template start<P>(identity);
      part[i] = warp_reduce(lane < WARPS ? of_warps[i][lane] : identity[i], combine);
    }
  }
  if constexpr (WARPS > 1) __syncthreads();  // all have read before the next phase writes
}

template <int N, int THREADS, int CHUNKS, typename F>
class RowOfThread {
 public:
  __device__ RowOfThread(const F& f, int64_t r, int64_t cols) : f_(f), r_(r), cols_(cols) {
    f.begin(row_, r);
    if constexpr (CHUNKS > 0) {
      each_chunk([&](Held& held, int64_t c) { f_.load(held, r_, c, cols_); });
    }
  }

  // Phases P, P + 1 … and then what is stored.
  template <int P>
  __device__ void run() {
    float part[F::SUMS];
    F::template start<P>(part);
    each_chunk(
        [&](Held& held, int64_t c) { f_.template visit<P>(held, row_, part, r_, c, cols_); });
    if constexpr (P < F::PHASES) {
      combine_threads<P, THREADS, F>(part);
      F::template finish<P>(row_, part, cols_);
      run<P + 1>();
    } else if (threadIdx.x == 0) {
      f_.leave(row_, r_);
    }
  }

 private:
  using Held = typename F::template Held<N>;

  template <typename Visit>
  __device__ void each_chunk(Visit&& visit) {
    if constexpr (CHUNKS > 0) {
#pragma unroll
      for (int k = 0; k < CHUNKS; ++k) {
        const int64_t c = int64_t{k * THREADS + static_cast<int>(threadIdx.x)} * N;
        if (c < cols_) visit(held_[k], c);
      }
    } else {
      for (int64_t c = int64_t{threadIdx.x} * N; c < cols_; c += THREADS * N) {
        Held held;
        f_.load(held, r_, c, cols_);
        visit(held, c);
      }
    }
  }

  const F& f_;
  const int64_t r_, cols_;
  typename F::Row row_;
  Held held_[CHUNKS > 0 ? CHUNKS : 1];
};

template <int N, int THREADS, int CHUNKS, typename F>
__global__ void __launch_bounds__(THREADS == 32 ? 32 * WARP_ROWS : THREADS)
    row_kernel(const F f, int64_t rows, int64_t cols) {
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  // A row's threads are in this loop equally often: they meet at barriers.
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < rows; r += step) {
    RowOfThread<N, THREADS, CHUNKS, F>(f, r, cols).template run<0>();
  }
}

template <int N, int THREADS, int CHUNKS, typename F>
cudaError_t launch_rows(const F& f, int64_t rows, int64_t cols, cudaStream_t stream) {
  const dim3 block(THREADS, THREADS == 32 ? WARP_ROWS : 1);
  const int64_t needed = (rows + block.y - 1) / block.y;
  const unsigned blocks = needed < 2147483647 ? static_cast<unsigned>(needed) : 2147483647u;
  row_kernel<N, THREADS, CHUNKS><<<blocks, block, 0, stream>>>(f, rows, cols);
  return cudaGetLastError();
}

#ifndef FUSION_JIT_GENERATED
// ---------------------------------------------------------------------------------------------
// By hand: what codegen.py prints behind this file, for two expressions. The skeletons are compiled
// and checked with them before anything is generated.

struct ScaleByHand {
  const float* in;
  float* out;
  float factor;
  static constexpr int PHASES = 0, SUMS = 1;
  struct Row {};
  template <int N>
  struct Held {
    Raw<float, N> in;
  };

  __device__ void begin(Row&, int64_t) const {}
  template <int N>
  __device__ void load(Held<N>& held, int64_t r, int64_t c, int64_t cols) const {
    held.in = read<N>(in + r * cols + c);
  }
  template <int P, int N>
  __device__ void visit(Held<N>& held, Row&, float (&)[SUMS], int64_t r, int64_t c,
                        int64_t cols) const {
    float values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = held.in.at(k) * factor;
    write<N>(out + r * cols + c, values);
  }
};

struct SoftmaxByHand {
  const float* in;
  float* out;
  static constexpr int PHASES = 2, SUMS = 1;
  struct Row {
    float most, sum;
  };
  template <int N>
  struct Held {
    Raw<float, N> in;
  };

  __device__ void begin(Row&, int64_t) const {}
  template <int N>
  __device__ void load(Held<N>& held, int64_t r, int64_t c, int64_t cols) const {
    held.in = read<N>(in + r * cols + c);
  }
  template <int P, int N>
  __device__ void visit(Held<N>& held, Row& row, float (&part)[SUMS], int64_t r, int64_t c,
                        int64_t cols) const {
    float values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (P == 0) part[0] = larger(part[0], held.in.at(k));
      if constexpr (P > 0) values[k] = expf(held.in.at(k) - row.most);
      if constexpr (P == 1) part[0] += values[k];
      if constexpr (P == 2) values[k] /= row.sum;
    }
    if constexpr (P == 2) write<N>(out + r * cols + c, values);
  }

  template <int P>
  __device__ static void start(float (&part)[SUMS]) {
    part[0] = P == 0 ? -INFINITY : 0.0f;
  }
  template <int P>
  __device__ static float combine(int, float a, float b) {
    return P == 0 ? larger(a, b) : a + b;
  }
  template <int P>
  __device__ static void finish(Row& row, float (&part)[SUMS], int64_t) {
    (P == 0 ? row.most : row.sum) = part[0];
  }
  __device__ void leave(const Row&, int64_t) const {}
};

// launch(y, rows, columns, whether x lies on a multiple of 16 bytes, stream) fills y.
template <typename F>
Tensor by_hand(const Tensor& x, const char* name, F&& launch) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  const DeviceGuard guard(x);
  const Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  check_cuda(launch(y, x.size(0), x.size(1), is_aligned(x, 16), current_stream(x)), name);
  return y;
}

Tensor scale_by_hand(const Tensor& x, double factor) {
  return by_hand(x, "scale_by_hand", [&](const Tensor& y, auto rows, auto cols, bool on16, auto s) {
    const ScaleByHand f{data<float>(x), mutable_data<float>(y), static_cast<float>(factor)};
    if (on16 && (cols % 4 == 0 || rows == 1)) return launch_elementwise<4>(f, rows, cols, s);
    return launch_elementwise<1>(f, rows, cols, s);
  });
}

Tensor softmax_by_hand(const Tensor& x) {
  return by_hand(x, "softmax_by_hand",
                 [&](const Tensor& y, auto rows, auto cols, bool on16, auto s) {
                   const SoftmaxByHand f{data<float>(x), mutable_data<float>(y)};
                   if (cols <= 64) return launch_rows<1, 32, 2>(f, rows, cols, s);
                   const bool whole = on16 && cols % 4 == 0;  // chunks of 16 bytes
                   if (whole && cols <= 1024) return launch_rows<4, 128, 2>(f, rows, cols, s);
                   return launch_rows<1, 256, 0>(f, rows, cols, s);
                 });
}

RUNG(day95, scale_by_hand, "(Tensor x, float factor) -> Tensor");
RUNG(day95, softmax_by_hand, "(Tensor x) -> Tensor");

// ---------------------------------------------------------------------------------------------
// The operator: built once, it calls launchers that do not exist yet.

// A launcher of a generated source. operands: pointers to the elements of inputs, then outputs.
using Launcher = cudaError_t (*)(void* const* operands, int64_t rows, int64_t cols,
                                 cudaStream_t stream);

// kernel: the address of a Launcher.
void launch(Tensors inputs, Tensors outputs, int64_t kernel, int64_t rows, int64_t cols) {
  STD_TORCH_CHECK(!outputs.empty() && kernel != 0, "outputs, kernel: expected at least one");
  std::vector<void*> operands;
  const Tensor& first = outputs[0];
  check_each(inputs, "inputs",
             [&](const check& one) { one.on_gpu().contiguous().same_device(first, "outputs[0]"); });
  check_each(outputs, "outputs",
             [&](const check& one) { one.on_gpu().contiguous().same_device(first, "outputs[0]"); });
  const DeviceGuard guard(first);
  for (const Tensor& t : inputs) operands.push_back(const_cast<void*>(t.const_data_ptr()));
  for (const Tensor& t : outputs) operands.push_back(t.mutable_data_ptr());
  const auto launcher = reinterpret_cast<Launcher>(kernel);
  check_cuda(launcher(operands.data(), rows, cols, current_stream(first)), "a generated kernel");
}

RUNG(day95, launch,
     "(Tensor[] inputs, Tensor(a!)[] outputs, int kernel, int rows, int cols) -> ()");
#endif

// Day 20: cross-entropy, its gradient left where the logits were
//
//   p = softmax(x)    loss[r] = (1 - ε) · -log p[r, t[r]] + ε · mean_c(-log p[r, c])
//   dx[r, c] = w · (p[r, c] - (1 - ε) · [c = t[r]] - ε / V)      x, dx: (rows, V); t: (rows)
//
// w is 1, or for reduction "mean" one over the number of rows that count: those whose target is not
// ignore_index. Those that do not have loss 0 and gradient 0. A target that names no class makes
// its row's loss and gradient NaN: a kernel cannot raise, and a NaN cannot be overlooked.
//
// Bytes: x read once, dx written once; for 8192 × 50304 bf16 1.65 GB. Operations: some 10 an
// element, two of them exp, of which a multiprocessor does 16 a clock: that is close to the limit.
//
//   v1 plain          log p to memory in fp32, then a second kernel: 12 bytes more an element
//   v2 in_place       statistics in one pass, the gradient in another, over the logits
//   v3 row_in_shared  the row waits in shared memory for the second look: 1 read, 1 write
//   v4 rows_ahead     a block a multiprocessor, the row in registers, cp.async fetching the next
//
// Run: python run_day.py 20

#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/ptx/cp_async.cuh"     // 16 bytes to shared memory that arrive later
#include "common/cuda/ptx/exp2.cuh"         // 2^x in one instruction
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/tree_reduce.cuh"      // taught in day 5

#include <cmath>
#include <string>
#include <tuple>
#include <type_traits>

// What the kernels need to know of the loss. weight: w, one number in memory, since it is counted
// on the GPU and the host does not wait for it.
struct LossTerms {
  int64_t ignore_index;
  float smoothing;  // ε
  const float* weight;
};

enum class Reduction { NONE, MEAN, SUM };

Reduction reduction_named(const std::string& name) {
  STD_TORCH_CHECK(name == "none" || name == "mean" || name == "sum",
                  "reduction: expected none, mean or sum, got '", name, "'");
  return name == "none" ? Reduction::NONE : name == "mean" ? Reduction::MEAN : Reduction::SUM;
}

void check_logits(const Tensor& logits, const Tensor& target, double label_smoothing) {
  check(logits, "logits").on_gpu().floating().rank(2).contiguous();
  STD_TORCH_CHECK(logits.size(1) > 0, "logits: expected at least one column (class), got shape ",
                  shape_of(logits));
  check(target, "target").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(target, "target").same_device(logits, "logits").size(0, logits.size(0));
  STD_TORCH_CHECK(label_smoothing >= 0 && label_smoothing <= 1,
                  "label_smoothing: expected 0 to 1, got ", label_smoothing);
}

// ---------------------------------------------------------------------------------------------
// Before and after: the weight of a row, and the sum of the rows' losses. One block each.

constexpr int SMALL_BLOCK = 1024;

__global__ void cross_entropy_weight_kernel(const int64_t* __restrict__ target, int64_t rows,
                                            int64_t ignore_index, bool mean,
                                            float* __restrict__ weight) {
  __shared__ int64_t partial[SMALL_BLOCK];
  int64_t count = 0;
  if (mean) {
    for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) count += target[r] != ignore_index;
  }
  partial[threadIdx.x] = count;
  count = tree_reduce(partial, [](int64_t a, int64_t b) { return a + b; });
  // None that counts: 1 / 0, and the mean of nothing is NaN, as in PyTorch.
  if (threadIdx.x == 0) *weight = mean ? 1.0f / static_cast<float>(count) : 1.0f;
}

__global__ void cross_entropy_sum_kernel(const float* __restrict__ losses, int64_t rows,
                                         const float* __restrict__ weight,
                                         float* __restrict__ loss) {
  __shared__ float partial[SMALL_BLOCK];
  float sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += SMALL_BLOCK) sum += losses[r];
  partial[threadIdx.x] = sum;
  sum = tree_reduce(partial, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) *loss = sum * *weight;
}

// Calls launch(terms, losses), which is to fill losses (rows), and returns the reduced loss.
template <typename F>
Tensor with_terms(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                  double label_smoothing, const std::string& reduction, F&& launch) {
  const Reduction reduce = reduction_named(reduction);
  const int64_t rows = logits.size(0);
  const Tensor weight = torch::stable::new_empty(logits, {1}, ScalarType::Float);
  Tensor losses = torch::stable::new_empty(logits, {rows}, ScalarType::Float);
  cross_entropy_weight_kernel<<<1, SMALL_BLOCK, 0, current_stream(logits)>>>(
      data<int64_t>(target), rows, ignore_index, reduce == Reduction::MEAN,
      mutable_data<float>(weight));
  if (rows > 0) {  // a grid of no blocks is an error
    launch(LossTerms{ignore_index, static_cast<float>(label_smoothing), data<float>(weight)},
           mutable_data<float>(losses));
  }
  if (reduce == Reduction::NONE) return losses;
  Tensor loss = torch::stable::new_empty(logits, {}, ScalarType::Float);
  cross_entropy_sum_kernel<<<1, SMALL_BLOCK, 0, current_stream(logits)>>>(
      data<float>(losses), rows, data<float>(weight), mutable_data<float>(loss));
  return loss;
}

// ---------------------------------------------------------------------------------------------
// What all rungs compute of a row.

constexpr float LOG2_E = 1.44269504f;  // exp(v) = 2^(v · log2 e)

// exp(v) for v <= 0, as exactly as an output of type T can show: the special function unit's answer
// is good to about 2 of fp32's ulps here, far below the rounding to 16 bits. For those types, what
// is below the smallest normal number is 0; beside the largest term of a sum, 1, it is nothing.
template <typename T>
__device__ float exponential(float v) {
  return std::is_same_v<T, float> ? expf(v) : ptx::exp2_approx(v * LOG2_E);
}

// A gradient may be that small, and bf16 can show it. LIFT<T> · exp(v) is far from 0, and is
// brought down by a multiplication that there is anyway.
template <typename T>
constexpr float LIFT = std::is_same_v<T, float> ? 1.0f : 0x1p64f;
template <typename T>
__device__ float lifted_exponential(float v) {
  return std::is_same_v<T, float> ? expf(v) : ptx::exp2_approx(v * LOG2_E + 64);
}

// Of some elements of a row: their maximum, sum of exp(x - max), and sum of x, which only label
// smoothing needs.
struct Statistics {
  float max = -INFINITY, sum = 0, total = 0;
};

// The statistics of the whole warp, in all lanes.
__device__ Statistics warp_combine(const Statistics& mine) {
  Statistics all = mine;
  for (int distance = 16; distance > 0; distance /= 2) {
    all.max = fmaxf(all.max, __shfl_xor_sync(0xffffffff, all.max, distance));
  }
  // Equal: also where both are -inf, whose difference is NaN.
  all.sum *= mine.max == all.max ? 1.0f : expf(mine.max - all.max);
  for (int distance = 16; distance > 0; distance /= 2) {
    all.sum += __shfl_xor_sync(0xffffffff, all.sum, distance);
    all.total += __shfl_xor_sync(0xffffffff, all.total, distance);
  }
  return all;
}

// Of the whole block, in all threads, which must all call it. shared: one place a warp, to be
// overwritten only after another barrier.
template <int WARPS>
__device__ Statistics block_combine(const Statistics& mine, Statistics (&shared)[WARPS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Statistics ours = warp_combine(mine);
  if (lane == 0) shared[warp] = ours;
  __syncthreads();  // every warp's are written before any are read
  return warp_combine(lane < WARPS ? shared[lane] : Statistics{});
}

// A row's loss, and its gradient as a function of x: LIFT<T> · exp(x - max) · scale - everywhere,
// and at the target `at_target` less.
template <typename T>
struct RowTerms {
  bool ignored, valid;
  float max, log_sum, smoothing, mean, scale, everywhere, at_target;

  __device__ RowTerms(const Statistics& all, int64_t target, int64_t cols, const LossTerms& terms,
                      float weight)
      : ignored(target == terms.ignore_index),
        valid(target >= 0 && target < cols),
        max(all.max),
        log_sum(logf(all.sum)),
        smoothing(terms.smoothing),
        mean(all.total / static_cast<float>(cols)) {
    scale = valid ? weight / all.sum / LIFT<T> : NAN;
    everywhere = weight * smoothing / static_cast<float>(cols);
    at_target = weight * (1 - smoothing);
  }

  // x_target: the target's logit, of no matter where the target is none.
  __device__ float loss(float x_target) const {
    if (ignored) return 0;
    if (!valid) return NAN;
    const float hit = log_sum + (max - x_target);
    // Without smoothing the mean must not count: one logit of -inf would make it -inf, 0 · inf NaN.
    return smoothing > 0 ? (1 - smoothing) * hit + smoothing * (log_sum + (max - mean)) : hit;
  }
};

// How a thread moves elements where rows do not start at multiples of 16 bytes: singly.
template <typename T>
struct Single {
  static constexpr int N = 1;
  T at[1];
};

// Some neighbouring elements of a row, as fp32. Two 16-bit numbers are converted by one
// instruction.
template <int N>
struct Floats {
  float at[N];
};

template <typename Piece>
__device__ Floats<Piece::N> unpack(const Piece& piece) {
  Floats<Piece::N> out;
#pragma unroll
  for (int i = 0; i < Piece::N; ++i) out.at[i] = static_cast<float>(piece.at[i]);
  return out;
}

__device__ void convert(float a, float b, __half* to) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ void convert(float a, float b, __nv_bfloat16* to) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ void convert(float a, float b, float* to) {
  to[0] = a;
  to[1] = b;
}

template <typename Piece>
__device__ Piece pack(const Floats<Piece::N>& from) {
  Piece out;
  if constexpr (Piece::N == 1) {
    out.at[0] = from.at[0];
  } else {
#pragma unroll
    for (int i = 0; i < Piece::N; i += 2) convert(from.at[i], from.at[i + 1], &out.at[i]);
  }
  return out;
}

// The largest of a piece. Two 16-bit numbers are compared by one instruction. NaN is no number to a
// maximum, which returns the other argument; the sum finds it.
template <typename T>
__device__ float max_of(const Single<T>& piece) {
  return static_cast<float>(piece.at[0]);
}
__device__ float max_of(const Pack<float>& pack) {
  return fmaxf(fmaxf(pack.at[0], pack.at[1]), fmaxf(pack.at[2], pack.at[3]));
}
template <typename T>
__device__ float max_of(const Pack<T>& pack) {
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const auto* two = reinterpret_cast<const Two*>(&pack);
  const Two four = __hmax2(__hmax2(two[0], two[1]), __hmax2(two[2], two[3]));
  return static_cast<float>(__hmax(four.x, four.y));
}

// Adds a piece to sum and total, which are for mine.max.
template <typename T, typename Piece>
__device__ void add(Statistics& mine, const Piece& piece, bool with_total) {
  // As long as all is -inf, exp(x - max) would be NaN; exp(-inf - 0) is the 0 that is meant.
  const float base = mine.max == -INFINITY ? 0.0f : mine.max;
  const auto x = unpack(piece);
#pragma unroll
  for (const float v : x.at) mine.sum += exponential<T>(v - base);
  if (with_total) {
#pragma unroll
    for (const float v : x.at) mine.total += v;
  }
}

// The gradient of a piece of the row, of columns [first, first + N).
template <typename T, typename Piece>
__device__ Piece gradient_of(const Piece& piece, int64_t first, int64_t target,
                             const RowTerms<T>& row) {
  Floats<Piece::N> x = unpack(piece);
#pragma unroll
  for (float& v : x.at) v = lifted_exponential<T>(v - row.max) * row.scale - row.everywhere;
  if (row.ignored) x = {};
  // One piece of the row has the target; only its thread looks for it among the N.
  const int64_t hit = target - first;
  if (hit >= 0 && hit < Piece::N && !row.ignored) {
#pragma unroll
    for (int i = 0; i < Piece::N; ++i) x.at[i] -= i == hit ? row.at_target : 0.0f;
  }
  return pack<Piece>(x);
}

// ---------------------------------------------------------------------------------------------
// v1: as an autograd engine does it. Forward leaves log p in memory, backward reads it.

constexpr int PLAIN_BLOCK = 256;

template <typename T>
__global__ void cross_entropy_log_softmax_kernel(const T* __restrict__ x, float* __restrict__ log_p,
                                                 int64_t cols) {
  __shared__ float partial[PLAIN_BLOCK];
  const T* row = x + blockIdx.x * cols;
  float max = -INFINITY;
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    max = fmaxf(max, static_cast<float>(row[c]));
  }
  partial[threadIdx.x] = max;
  max = tree_reduce(partial, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    sum += expf(static_cast<float>(row[c]) - max);
  }
  partial[threadIdx.x] = sum;
  sum = logf(tree_reduce(partial, [](float a, float b) { return a + b; }));
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    log_p[blockIdx.x * cols + c] = static_cast<float>(row[c]) - max - sum;
  }
}

__global__ void cross_entropy_loss_kernel(const float* __restrict__ log_p,
                                          const int64_t* __restrict__ target,
                                          float* __restrict__ losses, int64_t cols,
                                          LossTerms terms) {
  __shared__ float partial[PLAIN_BLOCK];
  const float* row = log_p + blockIdx.x * cols;
  float total = 0;
  if (terms.smoothing > 0) {
    for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) total += row[c];
  }
  partial[threadIdx.x] = total;
  total = tree_reduce(partial, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) {
    const int64_t t = target[blockIdx.x];
    float loss = NAN;
    if (t >= 0 && t < cols) {
      loss = -(1 - terms.smoothing) * row[t];
      if (terms.smoothing > 0) loss -= terms.smoothing * total / static_cast<float>(cols);
    }
    losses[blockIdx.x] = t == terms.ignore_index ? 0.0f : loss;
  }
}

template <typename T>
__global__ void cross_entropy_gradient_kernel(const float* __restrict__ log_p,
                                              const int64_t* __restrict__ target,
                                              T* __restrict__ dx, int64_t cols, LossTerms terms) {
  const int64_t t = target[blockIdx.x];
  const bool ignored = t == terms.ignore_index, valid = t >= 0 && t < cols;
  const float weight = valid ? *terms.weight : NAN;
  for (int64_t c = threadIdx.x; c < cols; c += PLAIN_BLOCK) {
    const float p = expf(log_p[blockIdx.x * cols + c]);
    const float wanted =
        terms.smoothing / static_cast<float>(cols) + (c == t ? 1 - terms.smoothing : 0);
    dx[blockIdx.x * cols + c] = static_cast<T>(ignored ? 0.0f : weight * (p - wanted));
  }
}

std::tuple<Tensor, Tensor> cross_entropy_v1_plain(const Tensor& logits, const Tensor& target,
                                                  int64_t ignore_index, double label_smoothing,
                                                  const std::string& reduction) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  Tensor dx = torch::stable::empty_like(logits);
  const int64_t rows = logits.size(0), cols = logits.size(1);
  const Tensor log_p = torch::stable::new_empty(logits, {rows, cols}, ScalarType::Float);
  const unsigned grid = grid_size(rows, "logits");
  const cudaStream_t stream = current_stream(logits);
  Tensor loss = with_terms(
      logits, target, ignore_index, label_smoothing, reduction,
      [&](const LossTerms& terms, float* losses) {
        dispatch_floating(logits, [&](auto zero) {
          using T = decltype(zero);
          cross_entropy_log_softmax_kernel<T>
              <<<grid, PLAIN_BLOCK, 0, stream>>>(data<T>(logits), mutable_data<float>(log_p), cols);
          cross_entropy_loss_kernel<<<grid, PLAIN_BLOCK, 0, stream>>>(
              data<float>(log_p), data<int64_t>(target), losses, cols, terms);
          cross_entropy_gradient_kernel<T><<<grid, PLAIN_BLOCK, 0, stream>>>(
              data<float>(log_p), data<int64_t>(target), mutable_data<T>(dx), cols, terms);
        });
      });
  check_launch("cross_entropy_v1_plain");
  return {loss, dx};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: nothing is left in memory between the two passes but the logits themselves, and
// the second writes each gradient over its logit. The first keeps a running maximum, as day 5's
// online softmax does.

constexpr int ROW_BLOCK = 512;

// Takes one more piece of the row into account.
template <typename T, typename Piece>
__device__ void include(Statistics& mine, const Piece& piece, bool with_total) {
  const float before = mine.max;
  mine.max = fmaxf(before, max_of(piece));
  // Equal: also where both are -inf, whose difference is NaN.
  if (before != mine.max) mine.sum *= exponential<T>(before - mine.max);
  add<T>(mine, piece, with_total);
}

// logits and dx may be the same memory.
template <typename T, typename Piece>
__global__ void __launch_bounds__(ROW_BLOCK)
    cross_entropy_v2_in_place_kernel(const T* logits, T* dx, const int64_t* __restrict__ target,
                                     float* __restrict__ losses, int64_t cols, LossTerms terms) {
  __shared__ Statistics shared[ROW_BLOCK / 32];
  const T* row = logits + blockIdx.x * cols;
  const auto* in = reinterpret_cast<const Piece*>(row);
  auto* out = reinterpret_cast<Piece*>(dx + blockIdx.x * cols);
  const int64_t t = target[blockIdx.x], pieces = cols / Piece::N;
  const float x_target = t >= 0 && t < cols ? static_cast<float>(row[t]) : 0.0f;

  Statistics mine;
  for (int64_t p = threadIdx.x; p < pieces; p += ROW_BLOCK) {
    include<T>(mine, in[p], terms.smoothing > 0);
  }
  // Its barrier comes after everybody's x_target, so that none is overwritten before it is read.
  const RowTerms<T> all(block_combine(mine, shared), t, cols, terms, *terms.weight);
  for (int64_t p = threadIdx.x; p < pieces; p += ROW_BLOCK) {
    out[p] = gradient_of<T>(in[p], p * Piece::N, t, all);
  }
  if (threadIdx.x == 0) losses[blockIdx.x] = all.loss(x_target);
}

// Whether rows of x can be moved in pieces of 16 bytes.
bool has_packs(const Tensor& x) {
  return x.size(1) * x.element_size() % 16 == 0 && is_aligned(x, 16);
}

void launch_v2(const Tensor& logits, const Tensor& dx, const Tensor& target, const LossTerms& terms,
               float* losses) {
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = has_packs(logits) && has_packs(dx)
                            ? cross_entropy_v2_in_place_kernel<T, Pack<T>>
                            : cross_entropy_v2_in_place_kernel<T, Single<T>>;
    kernel<<<grid_size(logits.size(0), "logits"), ROW_BLOCK, 0, current_stream(logits)>>>(
        data<T>(logits), mutable_data<T>(dx), data<int64_t>(target), losses, logits.size(1), terms);
  });
  check_launch("cross_entropy_v2_in_place");
}

Tensor cross_entropy_v2_in_place(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                 double label_smoothing, const std::string& reduction) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  return with_terms(logits, target, ignore_index, label_smoothing, reduction,
                    [&](const LossTerms& terms, float* losses) {
                      launch_v2(logits, logits, target, terms, losses);
                    });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the row waits in shared memory for the second look. Two blocks of 100 KB fit on a
// multiprocessor, so that one can load while the other computes. A thread reads what it has written
// itself; there is nothing to wait for but the statistics.

template <typename T>
__global__ void __launch_bounds__(ROW_BLOCK)
    cross_entropy_v3_row_in_shared_kernel(const T* logits, T* dx,
                                          const int64_t* __restrict__ target,
                                          float* __restrict__ losses, int packs, LossTerms terms) {
  extern __shared__ float4 dynamic[];  // float4, so that it starts at a multiple of 16 bytes
  __shared__ Statistics shared[ROW_BLOCK / 32];
  auto* row = reinterpret_cast<Pack<T>*>(dynamic);
  const auto* in = reinterpret_cast<const Pack<T>*>(logits) + int64_t{blockIdx.x} * packs;
  auto* out = reinterpret_cast<Pack<T>*>(dx) + int64_t{blockIdx.x} * packs;
  const int64_t t = target[blockIdx.x], cols = int64_t{packs} * Pack<T>::N;
  const float x_target =
      t >= 0 && t < cols ? static_cast<float>(logits[blockIdx.x * cols + t]) : 0.0f;

  Statistics mine;
#pragma unroll 4
  for (int p = threadIdx.x; p < packs; p += ROW_BLOCK) row[p] = in[p];
  for (int p = threadIdx.x; p < packs; p += ROW_BLOCK) {
    include<T>(mine, row[p], terms.smoothing > 0);
  }
  // Its barrier comes after everybody's x_target, so that none is overwritten before it is read.
  const RowTerms<T> all(block_combine(mine, shared), t, cols, terms, *terms.weight);
  for (int p = threadIdx.x; p < packs; p += ROW_BLOCK) {
    out[p] = gradient_of<T>(row[p], int64_t{p} * Pack<T>::N, t, all);
  }
  if (threadIdx.x == 0) losses[blockIdx.x] = all.loss(x_target);
}

// Shared memory that one block may ask for: 227 KB on Hopper, 163 KB on an A100. A little of it is
// left for the kernels' own arrays.
int64_t shared_limit(const Tensor& t) {
  int limit = 0;
  check_cuda(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index(t)),
      "cudaDeviceGetAttribute");
  return limit - 1024;
}

template <typename Kernel>
void allow_shared(Kernel kernel, int64_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "cudaFuncSetAttribute");
}

void launch_v3(const Tensor& logits, const Tensor& dx, const Tensor& target, const LossTerms& terms,
               float* losses) {
  const int64_t row_bytes = logits.size(1) * logits.element_size();
  if (!has_packs(logits) || !has_packs(dx) || row_bytes > shared_limit(logits)) {
    return launch_v2(logits, dx, target, terms, losses);
  }
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = cross_entropy_v3_row_in_shared_kernel<T>;
    allow_shared(kernel, row_bytes);
    kernel<<<grid_size(logits.size(0), "logits"), ROW_BLOCK, row_bytes, current_stream(logits)>>>(
        data<T>(logits), mutable_data<T>(dx), data<int64_t>(target), losses,
        static_cast<int>(row_bytes / 16), terms);
  });
  check_launch("cross_entropy_v3_row_in_shared");
}

Tensor cross_entropy_v3_row_in_shared(const Tensor& logits, const Tensor& target,
                                      int64_t ignore_index, double label_smoothing,
                                      const std::string& reduction) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  return with_terms(logits, target, ignore_index, label_smoothing, reduction,
                    [&](const LossTerms& terms, float* losses) {
                      launch_v3(logits, logits, target, terms, losses);
                    });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: v3's loads stop while its blocks compute. Here a block stays, takes row after row,
// and has the row that it works on in registers; shared memory is for the next two, which cp.async
// fetches meanwhile. Some 200 KB a multiprocessor are always on their way.

constexpr int MOST_PACKS = 16;  // a thread: 64 of the 128 registers that 512 threads leave it

// rows_ahead: for how many rows there is room in shared memory, 1 or 2.
template <typename T, int PACKS>
__global__ void __launch_bounds__(ROW_BLOCK, 1)
    cross_entropy_v4_rows_ahead_kernel(const T* logits, T* dx, const int64_t* __restrict__ target,
                                       float* __restrict__ losses, int64_t rows, int packs,
                                       int rows_ahead, LossTerms terms) {
  constexpr int N = Pack<T>::N;
  extern __shared__ float4 dynamic[];
  // Of this row and of the one before: a warp may write the next row's while others read this
  // one's.
  __shared__ Statistics shared[2][ROW_BLOCK / 32];
  auto* slot = reinterpret_cast<Pack<T>*>(dynamic);  // (rows_ahead, packs)
  const auto* in = reinterpret_cast<const Pack<T>*>(logits);
  auto* out = reinterpret_cast<Pack<T>*>(dx);
  const int64_t cols = int64_t{packs} * N;

  // Fetches this thread's packs of a row: t, t + 512 … No other thread looks at them, so none of
  // what follows needs a barrier. A group is committed even for no row, to keep count of them.
  const auto fetch = [&](int64_t r, int place) {
    if (r < rows) {
#pragma unroll
      for (int k = 0; k < PACKS; ++k) {
        const int p = threadIdx.x + k * ROW_BLOCK;
        if (p < packs) ptx::cp_async<16>(&slot[place * packs + p], &in[r * packs + p]);
      }
    }
    ptx::cp_async_commit();
  };

  for (int i = 0; i < rows_ahead; ++i) fetch(blockIdx.x + int64_t{i} * gridDim.x, i);
  const float weight = *terms.weight;
  int place = 0, parity = 0;
  int64_t t = blockIdx.x < rows ? target[blockIdx.x] : 0;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t next_t = r + gridDim.x < rows ? target[r + gridDim.x] : 0;  // wanted a row later
    if (rows_ahead == 2) {
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    Pack<T> v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * ROW_BLOCK;
      if (p < packs) v[k] = slot[place * packs + p];
    }
    // The thread that has the target's logit writes the loss.
    const bool valid = t >= 0 && t < cols;
    const bool owner = static_cast<int>(valid ? t / N : 0) % ROW_BLOCK == threadIdx.x;
    float x_target = 0;
    if (owner && valid) x_target = static_cast<float>(slot[place * packs + t / N].at[t % N]);
    fetch(r + int64_t{rows_ahead} * gridDim.x, place);

    // The row is at hand: first its maximum, then the sums, with nothing to rescale.
    Statistics mine;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (threadIdx.x + k * ROW_BLOCK < packs) mine.max = fmaxf(mine.max, max_of(v[k]));
    }
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (threadIdx.x + k * ROW_BLOCK < packs) add<T>(mine, v[k], terms.smoothing > 0);
    }

    const RowTerms<T> all(block_combine(mine, shared[parity]), t, cols, terms, weight);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const int p = threadIdx.x + k * ROW_BLOCK;
      if (p < packs) out[r * packs + p] = gradient_of<T>(v[k], int64_t{p} * N, t, all);
    }
    if (owner) losses[r] = all.loss(x_target);
    t = next_t;
    place = place + 1 < rows_ahead ? place + 1 : 0;
    parity ^= 1;
  }
}

void launch_v4(const Tensor& logits, const Tensor& dx, const Tensor& target, const LossTerms& terms,
               float* losses) {
  const int64_t row_bytes = logits.size(1) * logits.element_size(), packs = row_bytes / 16;
  const int64_t limit = shared_limit(logits);
  if (!has_packs(logits) || !has_packs(dx) || row_bytes > limit || packs > MOST_PACKS * ROW_BLOCK) {
    return launch_v3(logits, dx, target, terms, losses);
  }
  const int rows_ahead = 2 * row_bytes <= limit ? 2 : 1;
  const int64_t rows = logits.size(0);
  const int64_t blocks = multiprocessor_count(logits);
  const unsigned grid = grid_size(rows < blocks ? rows : blocks, "logits");
  dispatch_floating(logits, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = packs <= 4 * ROW_BLOCK ? cross_entropy_v4_rows_ahead_kernel<T, 4>
                        : packs <= 8 * ROW_BLOCK
                            ? cross_entropy_v4_rows_ahead_kernel<T, 8>
                            : cross_entropy_v4_rows_ahead_kernel<T, MOST_PACKS>;
    allow_shared(kernel, rows_ahead * row_bytes);
    kernel<<<grid, ROW_BLOCK, rows_ahead * row_bytes, current_stream(logits)>>>(
        data<T>(logits), mutable_data<T>(dx), data<int64_t>(target), losses, rows,
        static_cast<int>(packs), rows_ahead, terms);
  });
  check_launch("cross_entropy_v4_rows_ahead");
}

Tensor cross_entropy_v4_rows_ahead(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                   double label_smoothing, const std::string& reduction) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  return with_terms(logits, target, ignore_index, label_smoothing, reduction,
                    [&](const LossTerms& terms, float* losses) {
                      launch_v4(logits, logits, target, terms, losses);
                    });
}

// The same with the logits left as they are, which is what autograd can use.
std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& target,
                                         int64_t ignore_index, double label_smoothing,
                                         const std::string& reduction) {
  check_logits(logits, target, label_smoothing);
  const DeviceGuard guard(logits);
  Tensor dx = torch::stable::empty_like(logits);
  Tensor loss = with_terms(
      logits, target, ignore_index, label_smoothing, reduction,
      [&](const LossTerms& terms, float* losses) { launch_v4(logits, dx, target, terms, losses); });
  return {loss, dx};
}

// ---------------------------------------------------------------------------------------------
// The backward pass proper: the gradient is there already, times g, the gradient with respect to
// the loss, one number or one a row. Where that is 1, as it is for the end of a chain, nothing is
// moved.

constexpr int SCALE_BLOCK = 256;

template <typename T>
__global__ void cross_entropy_scale_kernel(T* __restrict__ dx, const float* __restrict__ g,
                                           bool by_row, int64_t cols) {
  const float factor = g[by_row ? blockIdx.x : 0];
  if (factor == 1) return;
  T* row = dx + blockIdx.x * cols;
  for (int64_t c = threadIdx.x; c < cols; c += SCALE_BLOCK) {
    row[c] = static_cast<T>(static_cast<float>(row[c]) * factor);
  }
}

void scale(const Tensor& dx, const Tensor& g) {
  check(dx, "dx").on_gpu().floating().rank(2).contiguous();
  check(g, "g").on_gpu().dtype({ScalarType::Float}).contiguous().same_device(dx, "dx");
  const bool by_row = g.dim() == 1;
  if (by_row) {
    check(g, "g").size(0, dx.size(0));
  } else {
    check(g, "g").rank(0);
  }
  if (dx.numel() == 0) return;
  const DeviceGuard guard(dx);
  dispatch_floating(dx, [&](auto zero) {
    using T = decltype(zero);
    cross_entropy_scale_kernel<T>
        <<<grid_size(dx.size(0), "dx"), SCALE_BLOCK, 0, current_stream(dx)>>>(
            mutable_data<T>(dx), data<float>(g), by_row, dx.size(1));
  });
  check_launch("scale");
}

// ---------------------------------------------------------------------------------------------

// SOURCE of this day opens the namespace; this file adds to it.
STABLE_TORCH_LIBRARY_FRAGMENT(day20, m) {
  m.def(
      "cross_entropy_v1_plain(Tensor logits, Tensor target, int ignore_index=-100,"
      " float label_smoothing=0.0, str reduction='mean') -> (Tensor, Tensor)");
  m.def(
      "cross_entropy_v2_in_place(Tensor(a!) logits, Tensor target, int ignore_index=-100,"
      " float label_smoothing=0.0, str reduction='mean') -> Tensor");
  m.def(
      "cross_entropy_v3_row_in_shared(Tensor(a!) logits, Tensor target, int ignore_index=-100,"
      " float label_smoothing=0.0, str reduction='mean') -> Tensor");
  m.def(
      "cross_entropy_v4_rows_ahead(Tensor(a!) logits, Tensor target, int ignore_index=-100,"
      " float label_smoothing=0.0, str reduction='mean') -> Tensor");
  m.def(
      "cross_entropy(Tensor logits, Tensor target, int ignore_index=-100,"
      " float label_smoothing=0.0, str reduction='mean') -> (Tensor, Tensor)");
  m.def("scale(Tensor(a!) dx, Tensor g) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(day20, CUDA, m) {
  m.impl("cross_entropy_v1_plain", TORCH_BOX(&cross_entropy_v1_plain));
  m.impl("cross_entropy_v2_in_place", TORCH_BOX(&cross_entropy_v2_in_place));
  m.impl("cross_entropy_v3_row_in_shared", TORCH_BOX(&cross_entropy_v3_row_in_shared));
  m.impl("cross_entropy_v4_rows_ahead", TORCH_BOX(&cross_entropy_v4_rows_ahead));
  m.impl("cross_entropy", TORCH_BOX(&cross_entropy));
  m.impl("scale", TORCH_BOX(&scale));
}

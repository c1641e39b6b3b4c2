// Day 11: convolution in one dimension
//
//   y[r, i] = sum_j w[j] · X[r, i + j]      j: [0, taps)      x: (rows, n), w: (taps,)
//   X       = x with `padding` values added at both ends of each row
//   y: (rows, n + 2 · padding - taps + 1); the same as torch.nn.Conv1d on a single channel
//
// Bytes: read x once, write y once: 2 · rows · n · sizeof(T). Operations: 2 · taps per output. A
// short filter is bound by memory, a long one by arithmetic: for fp32 on an H200 the two limits
// meet at about 60 taps. Loads, if every thread fetches all its operands: 2 · taps per output.
//
//   v1 naive             one thread per output; x and w from global memory
//   v2 constant_filter   w in constant memory, which broadcasts one word to a whole warp
//   v3 shared_halo       the block's part of x in shared memory, with a halo for its last outputs
//   v4 register_window   12 outputs per thread from 28 registers: 7 loads for 192 products
//
// Run: python run_day.py 11

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/pack.cuh"     // taught in day 2
#include "common/cuda/tensor.cuh"   // explained in days 6 and 12

#include <map>
#include <mutex>
#include <string>

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// Boundaries. Position p of a padded row is position q = p - padding of x. For q outside [0, n) the
// padding mode defines the value.

enum class Mode { ZEROS, REFLECT, REPLICATE, CIRCULAR };

// x_row[q] for q in [0, n), the padding value for the rest of [-padding, n + padding). Further out,
// where only the tile of a row's last block reaches, the value is 0 and no output uses it.
template <typename T>
__device__ float element(const T* __restrict__ x_row, int64_t q, int64_t n, int64_t padding,
                         Mode mode) {
  if (q < 0 || q >= n) {
    if (mode == Mode::ZEROS || q < -padding || q >= n + padding) return 0.0f;
    if (mode == Mode::REFLECT) q = q < 0 ? -q : 2 * (n - 1) - q;  // no copy of the edge
    if (mode == Mode::REPLICATE) q = q < 0 ? 0 : n - 1;
    if (mode == Mode::CIRCULAR) q = q < 0 ? q + n : q - n;
  }
  return static_cast<float>(x_row[q]);
}

// The checked arguments of a launch.
struct Job {
  int64_t rows, n, padding, out;  // out: length of a row of y
  int taps;
  Mode mode;
};

constexpr int64_t CONSTANT_BYTES = 65536;  // 64 KB on every compute capability up to 12.0

Job check_inputs(const Tensor& x, const Tensor& w, int64_t padding, const std::string& mode) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(w, "w").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous().same_device(x, "x");
  const int64_t taps = w.size(0), most = CONSTANT_BYTES / w.element_size();
  Job job{x.size(0), x.size(1), padding, 0, 0, Mode::ZEROS};
  STD_TORCH_CHECK(job.n > 0, "x: expected rows of at least 1 element, got shape ", shape_of(x));
  STD_TORCH_CHECK(taps >= 1 && taps <= most, "w: expected 1 to ", most,
                  " taps (64 KB of constant memory), got ", taps);
  job.taps = static_cast<int>(taps);
  if (mode == "reflect") {
    job.mode = Mode::REFLECT;
  } else if (mode == "replicate") {
    job.mode = Mode::REPLICATE;
  } else if (mode == "circular") {
    job.mode = Mode::CIRCULAR;
  } else {
    STD_TORCH_CHECK(mode == "zeros", "mode: expected zeros, reflect, replicate or circular, got ",
                    mode);
  }
  // A reflection does not repeat the edge, so it supplies at most n - 1 values; a wrap supplies n.
  const int64_t widest = job.mode == Mode::REFLECT    ? job.n - 1
                         : job.mode == Mode::CIRCULAR ? job.n
                                                      : INT32_MAX;
  STD_TORCH_CHECK(padding >= 0 && padding <= widest, "padding: expected 0 to ", widest,
                  " for mode ", mode, " and rows of ", job.n, ", got ", padding);
  job.out = job.n + 2 * padding - job.taps + 1;
  STD_TORCH_CHECK(job.out >= 1, "w: ", job.taps, " taps are more than the ", job.n + 2 * padding,
                  " elements of a row of x with padding ", padding, " at both ends");
  return job;
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per output, all operands from global memory. A block's 256 outputs lie in one row.

template <typename T>
__global__ void conv1d_v1_naive_kernel(const T* __restrict__ x, const T* __restrict__ w,
                                       T* __restrict__ y, Job job, unsigned blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t i = int64_t{blockIdx.x % blocks_per_row} * BLOCK + threadIdx.x;
  if (i >= job.out) return;
  const T* x_row = x + row * job.n;
  float sum = 0;
  for (int j = 0; j < job.taps; ++j) {
    sum += static_cast<float>(w[j]) *
           element(x_row, i + j - job.padding, job.n, job.padding, job.mode);
  }
  y[row * job.out + i] = static_cast<T>(sum);
}

Tensor conv1d_v1_naive(const Tensor& x, const Tensor& w, int64_t padding, const std::string& mode) {
  const Job job = check_inputs(x, w, padding, mode);
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {job.rows, job.out});
  if (y.numel() == 0) return y;  // a grid of no blocks is an error
  const unsigned blocks_per_row = grid_size(ceil_div<int64_t>(job.out, BLOCK), "x");
  const unsigned grid = grid_size(job.rows * blocks_per_row, "x");
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    conv1d_v1_naive_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), data<T>(w), mutable_data<T>(y), job, blocks_per_row);
  });
  check_launch("conv1d_v1_naive");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the filter is in constant memory. Its cache broadcasts one word to all lanes of a
// warp at once. Lanes that read different words are served one after the other; here every lane
// reads tap j.

__constant__ alignas(16) unsigned char filter_bytes[CONSTANT_BYTES];

template <typename T>
__device__ const T* filter() {
  return reinterpret_cast<const T*>(filter_bytes);
}

// There is one constant memory per device, and calls on two streams could overwrite each other's
// filter while kernels read it. Kernels launched during the lifetime of this object read w: the
// copy of w waits for the last kernel that reads the previous filter, on any stream.
class ConstantFilter {
 public:
  explicit ConstantFilter(const Tensor& w) : lock_(mutex()), stream_(current_stream(w)) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing");
    // A graph under capture cannot wait for work outside of it. A caller that replays the graph
    // beside other calls has to order them.
    if (status == cudaStreamCaptureStatusNone) {
      static std::map<int, cudaEvent_t> last_uses;  // by device
      cudaEvent_t& event = last_uses[device_index(w)];
      if (!event) {
        check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
      }
      check_cuda(cudaStreamWaitEvent(stream_, event, 0), "cudaStreamWaitEvent");
      last_use_ = event;
    }
    check_cuda(
        cudaMemcpyToSymbolAsync(filter_bytes, w.const_data_ptr(), w.numel() * w.element_size(), 0,
                                cudaMemcpyDeviceToDevice, stream_),
        "copy of w to constant memory");
  }
  ~ConstantFilter() {
    if (last_use_) cudaEventRecord(last_use_, stream_);
  }
  ConstantFilter(const ConstantFilter&) = delete;
  ConstantFilter& operator=(const ConstantFilter&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex only;
    return only;
  }
  std::lock_guard<std::mutex> lock_;  // one host thread at a time
  cudaStream_t stream_;
  cudaEvent_t last_use_ = nullptr;
};

template <typename T>
__global__ void conv1d_v2_constant_filter_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                 Job job, unsigned blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t i = int64_t{blockIdx.x % blocks_per_row} * BLOCK + threadIdx.x;
  if (i >= job.out) return;
  const T* x_row = x + row * job.n;
  float sum = 0;
  for (int j = 0; j < job.taps; ++j) {
    sum += static_cast<float>(filter<T>()[j]) *
           element(x_row, i + j - job.padding, job.n, job.padding, job.mode);
  }
  y[row * job.out + i] = static_cast<T>(sum);
}

Tensor conv1d_v2_constant_filter(const Tensor& x, const Tensor& w, int64_t padding,
                                 const std::string& mode) {
  const Job job = check_inputs(x, w, padding, mode);
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {job.rows, job.out});
  if (y.numel() == 0) return y;
  const unsigned blocks_per_row = grid_size(ceil_div<int64_t>(job.out, BLOCK), "x");
  const unsigned grid = grid_size(job.rows * blocks_per_row, "x");
  const ConstantFilter in_use(w);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    conv1d_v2_constant_filter_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), job, blocks_per_row);
  });
  check_launch("conv1d_v2_constant_filter");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: neighbouring outputs share almost all their inputs, so the block loads its part of
// the row into shared memory once: 256 elements, and to their right the halo, the inputs that only
// its last outputs need. A long filter is processed in chunks of taps, so the halo is never longer
// than a chunk. Loading applies the boundary rule; the products need no test.

constexpr int CHUNK = 256;  // taps per tile

template <typename T>
__global__ void conv1d_v3_shared_halo_kernel(const T* __restrict__ x, T* __restrict__ y, Job job,
                                             unsigned blocks_per_row) {
  __shared__ float tile[BLOCK + CHUNK - 1];  // 256 elements, then the halo
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t first = int64_t{blockIdx.x % blocks_per_row} * BLOCK;  // output of thread 0
  const T* x_row = x + row * job.n;

  float sum = 0;
  for (int j0 = 0; j0 < job.taps; j0 += CHUNK) {
    const int taps = job.taps - j0 < CHUNK ? job.taps - j0 : CHUNK;
    const int64_t start = first + j0 - job.padding;  // tile[k] = X[start + k]
    __syncthreads();  // every thread has finished with the previous chunk's tile
    for (int k = threadIdx.x; k < BLOCK + taps - 1; k += BLOCK) {
      tile[k] = element(x_row, start + k, job.n, job.padding, job.mode);
    }
    __syncthreads();  // the tile is complete before any thread multiplies
    // Unrolled, the loop fetches taps ahead of their products: 3 times as fast on an H200 as the
    // compiler's own choice.
#pragma unroll 16
    for (int j = 0; j < taps; ++j) {
      sum += static_cast<float>(filter<T>()[j0 + j]) * tile[threadIdx.x + j];
    }
  }
  const int64_t i = first + threadIdx.x;
  if (i < job.out) y[row * job.out + i] = static_cast<T>(sum);
}

Tensor conv1d_v3_shared_halo(const Tensor& x, const Tensor& w, int64_t padding,
                             const std::string& mode) {
  const Job job = check_inputs(x, w, padding, mode);
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {job.rows, job.out});
  if (y.numel() == 0) return y;
  const unsigned blocks_per_row = grid_size(ceil_div<int64_t>(job.out, BLOCK), "x");
  const unsigned grid = grid_size(job.rows * blocks_per_row, "x");
  const ConstantFilter in_use(w);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    conv1d_v3_shared_halo_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), job, blocks_per_row);
  });
  check_launch("conv1d_v3_shared_halo");
  return y;
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: operands are reused from registers. A thread computes OUT neighbouring outputs.
// For STEP taps they need OUT + STEP - 1 inputs, which the thread loads from shared memory into
// registers once, 16 bytes per load. 28 floats (7 loads) serve 12 · 16 = 192 products; each tap
// serves 12.

constexpr int BLOCK_V4 = 128;
constexpr int OUT = 12;   // outputs per thread; the static_assert below says why not 8 or 16
constexpr int STEP = 16;  // taps per window of registers
constexpr int TILE = BLOCK_V4 * OUT;

// A thread's window starts OUT floats after its neighbour's. Shared memory serves 16-byte loads for
// eight lanes at a time. The eight have no bank conflict (day 14) if their addresses modulo 128 are
// eight different multiples of 16, which they are if OUT / 4 is odd.
static_assert(OUT % 4 == 0 && OUT / 4 % 2 == 1, "windows of eight lanes must not conflict");
static_assert(CHUNK % STEP == 0 && (OUT + STEP) % 4 == 0, "windows are loaded in packs of 4");

// sum[r] += taps[j] · window[r + j] for r in [0, OUT) and j in [0, STEP), or j in [0, count) for
// the last taps of a filter (WHOLE is false). The window is in shared memory, aligned to 16 bytes.
template <bool WHOLE, typename T>
__device__ void add_taps(float (&sum)[OUT], const float* window, const T* taps, int count) {
  float v[OUT + STEP];  // the last element only completes its pack
#pragma unroll
  for (int p = 0; p < (OUT + STEP) / 4; ++p) {
    const Pack<float> pack = reinterpret_cast<const Pack<float>*>(window)[p];
    for (int k = 0; k < 4; ++k) v[4 * p + k] = pack.at[k];
  }
#pragma unroll
  for (int j = 0; j < STEP; ++j) {
    if (WHOLE || j < count) {
      const float tap = static_cast<float>(taps[j]);
#pragma unroll
      for (int r = 0; r < OUT; ++r) sum[r] += tap * v[r + j];
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK_V4)  // at most 128 threads per block (day 15)
    conv1d_v4_register_window_kernel(const T* __restrict__ x, T* __restrict__ y, Job job,
                                     unsigned blocks_per_row) {
  __shared__ alignas(16) float tile[TILE + CHUNK];
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t first = int64_t{blockIdx.x % blocks_per_row} * TILE;
  const T* x_row = x + row * job.n;
  const int mine = threadIdx.x * OUT;  // this thread's outputs: [mine, mine + OUT) of the tile

  float sum[OUT] = {};
  for (int j0 = 0; j0 < job.taps; j0 += CHUNK) {
    const int taps = job.taps - j0 < CHUNK ? job.taps - j0 : CHUNK;
    const int64_t start = first + j0 - job.padding;  // tile[k] = X[start + k]
    __syncthreads();  // every thread has finished with the previous chunk's tile
    for (int k = threadIdx.x; k < TILE + taps - 1; k += BLOCK_V4) {
      tile[k] = element(x_row, start + k, job.n, job.padding, job.mode);
    }
    __syncthreads();  // the tile is complete before any thread multiplies
    int j = 0;
    for (; j + STEP <= taps; j += STEP) {
      add_taps<true>(sum, tile + mine + j, filter<T>() + j0 + j, STEP);
    }
    if (j < taps) add_taps<false>(sum, tile + mine + j, filter<T>() + j0 + j, taps - j);
  }

  // The outputs cross shared memory as well. Each thread writes its 12 outputs to the tile and then
  // stores elements t, t + 128 … of it, so that a warp's stores to global memory are coalesced.
  __syncthreads();  // every thread has finished with the last chunk's tile
#pragma unroll
  for (int p = 0; p < OUT / 4; ++p) {
    Pack<float> pack;
    for (int k = 0; k < 4; ++k) pack.at[k] = sum[4 * p + k];
    reinterpret_cast<Pack<float>*>(tile + mine)[p] = pack;
  }
  __syncthreads();  // the tile holds all outputs before any thread stores those of others
  const int64_t left = job.out - first;  // outputs of this row from the tile's first on
  for (int k = threadIdx.x; k < TILE && k < left; k += BLOCK_V4) {
    y[row * job.out + first + k] = static_cast<T>(tile[k]);
  }
}

Tensor conv1d_v4_register_window(const Tensor& x, const Tensor& w, int64_t padding,
                                 const std::string& mode) {
  const Job job = check_inputs(x, w, padding, mode);
  const DeviceGuard guard(x);
  Tensor y = allocate(x, {job.rows, job.out});
  if (y.numel() == 0) return y;
  const unsigned blocks_per_row = grid_size(ceil_div<int64_t>(job.out, TILE), "x");
  const unsigned grid = grid_size(job.rows * blocks_per_row, "x");
  const ConstantFilter in_use(w);
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    conv1d_v4_register_window_kernel<<<grid, BLOCK_V4, 0, current_stream(x)>>>(
        data<T>(x), mutable_data<T>(y), job, blocks_per_row);
  });
  check_launch("conv1d_v4_register_window");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day11, conv1d_v1_naive, "(Tensor x, Tensor w, int padding=0, str mode='zeros') -> Tensor");
RUNG(day11, conv1d_v2_constant_filter,
     "(Tensor x, Tensor w, int padding=0, str mode='zeros') -> Tensor");
RUNG(day11, conv1d_v3_shared_halo,
     "(Tensor x, Tensor w, int padding=0, str mode='zeros') -> Tensor");
RUNG(day11, conv1d_v4_register_window,
     "(Tensor x, Tensor w, int padding=0, str mode='zeros') -> Tensor");

// Day 24: persistent kernels: blocks that loop over many tasks
//
//   rnn       y[t] = h[t] after steps[t] times  h ← tanh(h · w)    h, y: (tasks, H), w: (H, H)
//   queue     y[i] = x[i], each element a task that must be drawn exactly once
//   rolling   batches x: (batches, n), each normalised by a running mean and variance
//
// Operations of rnn: 2 · H² per step. Bytes of rolling: 8 · batches · n if the mean and the
// variance stay in registers, 24 · batches · n if every batch reads and writes them.
//
//   rnn v1 launch_each          one launch of one block per task
//   rnn v2 block_each           one launch with one block per task
//   rnn v3 persistent_static    as many blocks as fit; block b takes tasks b, b + grid, …
//   rnn v4 persistent_queue     a free block draws the next task from a counter
//   queue v1 warp_ticket        32 tasks per atomic operation: the rate of one counter
//   queue v2 long_ticket        1024 tasks per atomic operation
//   rolling v1 launch_each      one launch per batch
//   rolling v2 persistent       one launch for all batches: the state stays in registers
//
// Run: python run_day.py 24

#include "common/cuda/binding.cuh"
#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------------------------------------
// rnn: the work of one block on one task. All four rungs call it; they differ in the scheduling.

constexpr int MAX_HIDDEN = 128;  // a thread keeps a column of w in registers, of which it has 255

// A block has H threads, H = 32, 64 or 128, and thread j keeps column j of w, filled up with zeros
// where the hidden size is smaller than H. The loads are coalesced.
template <int H>
__device__ void load_column(const float* __restrict__ w, int hidden, float (&column)[H]) {
  const int j = threadIdx.x;
#pragma unroll
  for (int k = 0; k < H; ++k) {
    column[k] = j < hidden && k < hidden ? w[k * hidden + j] : 0.0f;
  }
}

// Task t: steps[t] steps on h[t]. state is a double buffer, the vector before a step and the vector
// after it, so one barrier per step is enough. Every thread of the block must call it.
template <int H>
__device__ void run_task(const float (&column)[H], float (&state)[2][H],
                         const float* __restrict__ h, const int* __restrict__ steps,
                         float* __restrict__ y, int hidden, int64_t t) {
  const int j = threadIdx.x;
  float mine = j < hidden ? h[t * hidden + j] : 0.0f;
  state[0][j] = mine;
  __syncthreads();  // the whole vector is written before any thread multiplies
  const int count = steps[t];
  for (int s = 0; s < count; ++s) {
    const float4* before = reinterpret_cast<const float4*>(state[s % 2]);
    float sum[4] = {};  // four independent chains of multiply-adds, to hide their latency
#pragma unroll
    for (int k = 0; k < H / 4; ++k) {
      const float4 v = before[k];  // a broadcast: all threads read the same address
      sum[0] += v.x * column[4 * k];
      sum[1] += v.y * column[4 * k + 1];
      sum[2] += v.z * column[4 * k + 2];
      sum[3] += v.w * column[4 * k + 3];
    }
    // Threads beyond the hidden size keep 0 even if an element is infinite (0 · ∞ is NaN).
    mine = j < hidden ? tanhf((sum[0] + sum[1]) + (sum[2] + sum[3])) : 0.0f;
    state[(s + 1) % 2][j] = mine;
    __syncthreads();  // all have written this step and read the one before it
  }
  if (j < hidden) y[t * hidden + j] = mine;
}

struct Rnn {
  int64_t tasks;
  int hidden;
};

// Checks h (tasks, H), w (H, H) and steps (tasks,).
Rnn check_rnn(const Tensor& h, const Tensor& w, const Tensor& steps) {
  check(h, "h").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(w, "w").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous().same_device(h, "h");
  check(w, "w").size(0, h.size(1)).size(1, h.size(1));
  check(steps, "steps").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous();
  check(steps, "steps").same_device(h, "h").size(0, h.size(0));
  STD_TORCH_CHECK(h.size(1) <= MAX_HIDDEN, "h: expected at most ", MAX_HIDDEN,
                  " columns, because a thread keeps a column of w in registers, got ", h.size(1));
  return {h.size(0), static_cast<int>(h.size(1))};
}

// A compile-time constant that can be passed as an argument.
template <int VALUE>
struct Constant {
  static constexpr int value = VALUE;
};

// Calls launch with the smallest block size that holds the hidden size.
template <typename Launch>
void with_block_size(int hidden, Launch launch) {
  if (hidden <= 32) {
    launch(Constant<32>{});
  } else if (hidden <= 64) {
    launch(Constant<64>{});
  } else {
    launch(Constant<128>{});
  }
}

// ---------------------------------------------------------------------------------------------
// rnn v1: the host loops over the tasks. Kernels of one stream run one after the other, so only one
// block runs at any time, and each launch loads w again.

template <int H>
__global__ void __launch_bounds__(H)
    rnn_v1_launch_each_kernel(const float* h, const float* w, const int* steps, float* y,
                              int hidden, int64_t task) {
  __shared__ alignas(16) float state[2][H];
  float column[H];
  load_column(w, hidden, column);
  run_task(column, state, h, steps, y, hidden, task);
}

Tensor rnn_v1_launch_each(const Tensor& h, const Tensor& w, const Tensor& steps) {
  const Rnn rnn = check_rnn(h, w, steps);
  const DeviceGuard guard(h);
  Tensor y = torch::stable::empty_like(h);
  if (y.numel() == 0) return y;
  with_block_size(rnn.hidden, [&](auto size) {
    constexpr int H = decltype(size)::value;
    for (int64_t task = 0; task < rnn.tasks; ++task) {
      rnn_v1_launch_each_kernel<H>
          <<<1, H, 0, current_stream(h)>>>(data<float>(h), data<float>(w), data<int>(steps),
                                           mutable_data<float>(y), rnn.hidden, task);
    }
  });
  check_launch("rnn_v1_launch_each");
  return y;
}

// ---------------------------------------------------------------------------------------------
// rnn v2 against v1: one launch with one block per task. The hardware starts a new block wherever
// one has ended, so all multiprocessors are busy. But every block loads w for a single task.

template <int H>
__global__ void __launch_bounds__(H)
    rnn_v2_block_each_kernel(const float* h, const float* w, const int* steps, float* y,
                             int hidden) {
  __shared__ alignas(16) float state[2][H];
  float column[H];
  load_column(w, hidden, column);
  run_task(column, state, h, steps, y, hidden, blockIdx.x);
}

Tensor rnn_v2_block_each(const Tensor& h, const Tensor& w, const Tensor& steps) {
  const Rnn rnn = check_rnn(h, w, steps);
  const DeviceGuard guard(h);
  Tensor y = torch::stable::empty_like(h);
  if (y.numel() == 0) return y;
  const unsigned grid = grid_size(rnn.tasks, "h");
  with_block_size(rnn.hidden, [&](auto size) {
    constexpr int H = decltype(size)::value;
    rnn_v2_block_each_kernel<H><<<grid, H, 0, current_stream(h)>>>(
        data<float>(h), data<float>(w), data<int>(steps), mutable_data<float>(y), rnn.hidden);
  });
  check_launch("rnn_v2_block_each");
  return y;
}

// ---------------------------------------------------------------------------------------------
// rnn v3 against v2: the grid has the size of the machine, not of the work. A block loads w once
// and keeps it for all its tasks. The assignment of tasks to blocks is static, whatever their
// lengths.

// The number of blocks of this kernel that are resident at one time, but no more than `work`.
template <typename Kernel>
unsigned resident_grid(Kernel kernel, int block, int64_t work, const Tensor& on) {
  int blocks = 0;
  // The occupancy depends on the kernel's registers, shared memory and threads.
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, 0),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const int64_t resident = int64_t{multiprocessor_count(on)} * blocks;
  return static_cast<unsigned>(work < resident ? work : resident);
}

template <int H>
__global__ void __launch_bounds__(H)
    rnn_v3_persistent_static_kernel(const float* h, const float* w, const int* steps, float* y,
                                    int hidden, int64_t tasks) {
  __shared__ alignas(16) float state[2][H];
  float column[H];
  load_column(w, hidden, column);
  // No thread reads state after a task's last barrier, so the next task may write to it at once.
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    run_task(column, state, h, steps, y, hidden, task);
  }
}

Tensor rnn_v3_persistent_static(const Tensor& h, const Tensor& w, const Tensor& steps) {
  const Rnn rnn = check_rnn(h, w, steps);
  const DeviceGuard guard(h);
  Tensor y = torch::stable::empty_like(h);
  if (y.numel() == 0) return y;
  with_block_size(rnn.hidden, [&](auto size) {
    constexpr int H = decltype(size)::value;
    const auto kernel = rnn_v3_persistent_static_kernel<H>;
    const unsigned grid = resident_grid(kernel, H, rnn.tasks, h);
    kernel<<<grid, H, 0, current_stream(h)>>>(data<float>(h), data<float>(w), data<int>(steps),
                                              mutable_data<float>(y), rnn.hidden, rnn.tasks);
  });
  check_launch("rnn_v3_persistent_static");
  return y;
}

// ---------------------------------------------------------------------------------------------
// rnn v4 against v3: dynamic assignment. A free block draws the next task from a counter in global
// memory, so a block with a long task draws fewer tasks.

using Counter = unsigned long long;  // the 64-bit type that atomicAdd supports

template <int H>
__global__ void __launch_bounds__(H)
    rnn_v4_persistent_queue_kernel(const float* h, const float* w, const int* steps, float* y,
                                   int hidden, int64_t tasks, Counter* queue) {
  __shared__ alignas(16) float state[2][H];
  __shared__ int64_t ticket;
  float column[H];
  load_column(w, hidden, column);
  int64_t task = blockIdx.x;  // the first gridDim.x tasks need no queue
  while (task < tasks) {
    // The next ticket is needed only after the task, which hides the latency of the atomic.
    int64_t next = 0;
    if (threadIdx.x == 0) next = gridDim.x + static_cast<int64_t>(atomicAdd(queue, 1));
    run_task(column, state, h, steps, y, hidden, task);
    if (threadIdx.x == 0) ticket = next;
    __syncthreads();  // thread 0 has written the ticket that all threads read now
    task = ticket;
    // The barriers of the next task separate this read from the next write to ticket.
  }
}

// Allocates a counter on x's GPU and sets it to 0 on the current stream.
Tensor new_queue(const Tensor& x) {
  Tensor queue = torch::stable::new_empty(x, {1}, ScalarType::Long);
  check_cuda(cudaMemsetAsync(queue.mutable_data_ptr(), 0, sizeof(Counter), current_stream(x)),
             "cudaMemsetAsync");
  return queue;
}

Tensor rnn_v4_persistent_queue(const Tensor& h, const Tensor& w, const Tensor& steps) {
  const Rnn rnn = check_rnn(h, w, steps);
  const DeviceGuard guard(h);
  Tensor y = torch::stable::empty_like(h);
  if (y.numel() == 0) return y;
  const Tensor queue = new_queue(h);
  with_block_size(rnn.hidden, [&](auto size) {
    constexpr int H = decltype(size)::value;
    const auto kernel = rnn_v4_persistent_queue_kernel<H>;
    const unsigned grid = resident_grid(kernel, H, rnn.tasks, h);
    kernel<<<grid, H, 0, current_stream(h)>>>(data<float>(h), data<float>(w), data<int>(steps),
                                              mutable_data<float>(y), rnn.hidden, rnn.tasks,
                                              static_cast<Counter*>(queue.mutable_data_ptr()));
  });
  check_launch("rnn_v4_persistent_queue");
  return y;
}

// ---------------------------------------------------------------------------------------------
// queue: minimal tasks, so that the time is that of the counter. y starts at 0 and task i adds x[i]
// to y[i]: a task that is drawn twice or never leaves a wrong element.

constexpr int BLOCK = 256;

// v1: EACH = 32: lane 0 draws 32 tasks for its warp, one per lane.
// v2 against v1: EACH = 1024: a 32nd of the atomic operations, and 32 tasks per lane.
template <int EACH>
__global__ void queue_kernel(const int* __restrict__ x, int* __restrict__ y, int64_t n,
                             Counter* queue) {
  const int lane = threadIdx.x % 32;
  while (true) {
    int64_t first = 0;
    if (lane == 0) first = static_cast<int64_t>(atomicAdd(queue, EACH));
    first = __shfl_sync(0xffffffffu, first, 0);  // [first, first + EACH) is this warp's
    if (first >= n) return;                      // the same in all lanes
    for (int64_t i = first + lane; i < first + EACH && i < n; i += 32) y[i] += x[i];
  }
}

template <int EACH>
Tensor drain_queue(const Tensor& x, const char* name) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous();
  const DeviceGuard guard(x);
  Tensor y = torch::stable::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  check_cuda(cudaMemsetAsync(y.mutable_data_ptr(), 0, n * sizeof(int), current_stream(x)),
             "cudaMemsetAsync");
  const Tensor queue = new_queue(x);
  const auto kernel = queue_kernel<EACH>;
  const unsigned grid = resident_grid(kernel, BLOCK, ceil_div<int64_t>(n, BLOCK), x);
  kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<int>(x), mutable_data<int>(y), n,
                                                static_cast<Counter*>(queue.mutable_data_ptr()));
  check_launch(name);
  return y;
}

Tensor queue_v1_warp_ticket(const Tensor& x) {
  return drain_queue<32>(x, "queue_v1_warp_ticket");
}

Tensor queue_v2_long_ticket(const Tensor& x) {
  return drain_queue<1024>(x, "queue_v2_long_ticket");
}

// ---------------------------------------------------------------------------------------------
// rolling v1: one launch per batch, one thread per feature. Registers do not outlive a kernel, so
// each launch reads the state from memory and writes it back.

constexpr float EPSILON = 1e-5f;  // avoids a division by 0 for a constant feature

// Returns x normalised by the present state, then updates the state with weight `momentum`
// (exponentially weighted mean and variance; West, 1979).
__device__ float roll(float x, float& mean, float& var, float momentum) {
  const float off = x - mean;
  const float y = off / sqrtf(var + EPSILON);
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
  Rolled made{torch::stable::empty_like(x), torch::stable::empty_like(mean),
              torch::stable::empty_like(var)};
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

constexpr int AHEAD = 8;  // batches loaded ahead, to hide the latency of memory

__global__ void __launch_bounds__(ROLLING_BLOCK)
    rolling_v2_persistent_kernel(const float* __restrict__ x, float* __restrict__ y, float* mean,
                                 float* var, int64_t batches, int64_t n, float momentum) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float m = mean[i], v = var[i];
  float now[AHEAD], next[AHEAD];  // batches [b, b + 8) and [b + 8, b + 16) of feature i
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) now[k] = k < batches ? x[k * n + i] : 0.0f;
  for (int64_t b = 0; b < batches; b += AHEAD) {
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int64_t later = b + AHEAD + k;
      next[k] = later < batches ? x[later * n + i] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (b + k < batches) y[(b + k) * n + i] = roll(now[k], m, v, momentum);
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

RUNG(day24, rnn_v1_launch_each, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, rnn_v2_block_each, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, rnn_v3_persistent_static, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, rnn_v4_persistent_queue, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, queue_v1_warp_ticket, "(Tensor x) -> Tensor");
RUNG(day24, queue_v2_long_ticket, "(Tensor x) -> Tensor");
RUNG(day24, rolling_v1_launch_each, ROLLING);
RUNG(day24, rolling_v2_persistent, ROLLING);

// Day 24: persistent kernels: blocks that loop over many tasks
//
//   rnn       y[t] = h[t] after steps[t] times  h ← tanh(h · w)    h, y: (tasks, H), w: (H, H)
//   queue     y[i] = x[i], each element a task that must be drawn exactly once
//
// Operations of rnn: 2 · H² per step. The day's third problem is in rolling_batches.cu.
//
//   rnn v1 launch_each          one launch of one block per task
//   rnn v2 block_each           one launch with one block per task
//   rnn v3 persistent_static    as many blocks as fit; block b takes tasks b, b + grid, …
//   rnn v4 persistent_queue     a free block draws the next task from a counter
//   queue v1 warp_ticket        32 tasks per atomic operation: the rate of one counter
//   queue v2 long_ticket        1024 tasks per atomic operation
//
// Run: python run_day.py 24

#include "common/cuda/binding.cuh"
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
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
  Tensor y = allocate_like(h);
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
  Tensor y = allocate_like(h);
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
  Tensor y = allocate_like(h);
  if (y.numel() == 0) return y;
  with_block_size(rnn.hidden, [&](auto size) {
    constexpr int H = decltype(size)::value;
    const auto kernel = rnn_v3_persistent_static_kernel<H>;
    const unsigned grid = resident_grid(h, kernel, H, 0, rnn.tasks);
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
  Tensor queue = allocate(x, {1}, ScalarType::Long);
  check_cuda(cudaMemsetAsync(queue.mutable_data_ptr(), 0, sizeof(Counter), current_stream(x)),
             "cudaMemsetAsync");
  return queue;
}

Tensor rnn_v4_persistent_queue(const Tensor& h, const Tensor& w, const Tensor& steps) {
  const Rnn rnn = check_rnn(h, w, steps);
  const DeviceGuard guard(h);
  Tensor y = allocate_like(h);
  if (y.numel() == 0) return y;
  const Tensor queue = new_queue(h);
  with_block_size(rnn.hidden, [&](auto size) {
    constexpr int H = decltype(size)::value;
    const auto kernel = rnn_v4_persistent_queue_kernel<H>;
    const unsigned grid = resident_grid(h, kernel, H, 0, rnn.tasks);
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
  Tensor y = allocate_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  check_cuda(cudaMemsetAsync(y.mutable_data_ptr(), 0, n * sizeof(int), current_stream(x)),
             "cudaMemsetAsync");
  const Tensor queue = new_queue(x);
  const auto kernel = queue_kernel<EACH>;
  const unsigned grid = resident_grid(x, kernel, BLOCK, 0, ceil_div<int64_t>(n, BLOCK));
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

RUNG(day24, rnn_v1_launch_each, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, rnn_v2_block_each, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, rnn_v3_persistent_static, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, rnn_v4_persistent_queue, "(Tensor h, Tensor w, Tensor steps) -> Tensor");
RUNG(day24, queue_v1_warp_ticket, "(Tensor x) -> Tensor");
RUNG(day24, queue_v2_long_ticket, "(Tensor x) -> Tensor");

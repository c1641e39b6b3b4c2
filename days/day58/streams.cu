// Day 58: streams: copies and kernels at the same time
//
//   E[i] = M[i] + e sin E[i]      M, E: (n,) fp32 on the host; e = 0.8
//
// Kepler's equation: M says how long ago a planet passed its sun, E where it is now. Both arrays
// are in host memory, and the GPU solves for E by STEPS steps of E <- M + e sin E.
//
// Bytes: 4 n to the GPU and 4 n back. n = 2^24: 67 MB each way. Operations: 80 sines and 80
// multiply-adds per element.
//
//   v1 serial     copy all, solve all, copy all back
//   v2 chunks     the same in chunks, still in one stream: each chunk waits for the one before
//   v3 streams    chunk c in stream c % 4: copies of both directions and kernels overlap
//   v4 stages     one stream per stage (copy, solve, copy back), ordered by events
//
// Run: python run_day.py 58

#include <algorithm>
#include <map>
#include <mutex>

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 256;  // threads
constexpr int STREAMS = 4;  // with two a copy each way overlaps, with more the kernels do, too
constexpr int BUFFERS = 4;  // chunks in flight in v4
constexpr int STEPS = 80;   // 0.8^80 = 2e-8: each step reduces the error by at least 1 - e
constexpr float ECCENTRICITY = 0.8f;

// ---------------------------------------------------------------------------------------------
// The kernel of all rungs. M and E may be the same array: a thread reads and writes its own
// element.

__global__ void kepler_kernel(const float* M, float* E, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float mean = M[i];
  float anomaly = mean;
  for (int step = 0; step < STEPS; ++step) anomaly = fmaf(ECCENTRICITY, sinf(anomaly), mean);
  E[i] = anomaly;
}

void launch_kepler(const float* M, float* E, int64_t n, cudaStream_t stream) {
  const unsigned grid = grid_size(ceil_div<int64_t>(n, BLOCK), "M");
  kepler_kernel<<<grid, BLOCK, 0, stream>>>(M, E, n);
  check_launch("kepler");
}

// Tensors on the GPU: what the kernel takes without any copy.
Tensor kepler(const Tensor& M) {
  check(M, "M").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  const DeviceGuard guard(M);
  Tensor E = allocate_like(M);
  if (M.numel())
    launch_kepler(data<float>(M), mutable_data<float>(E), M.numel(), current_stream(M));
  return E;
}

// ---------------------------------------------------------------------------------------------
// What the rungs on host arrays share.

// Memory of the GPU in the order of a stream: it is there for what the stream does next, and
// cudaFreeAsync frees it when the stream comes to that point. No call waits.
class Buffer {
 public:
  Buffer(int64_t elements, cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaMallocAsync(&memory_, elements * sizeof(float), stream), "cudaMallocAsync");
  }
  ~Buffer() { (void)cudaFreeAsync(memory_, stream_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* get() const { return static_cast<float*>(memory_); }

 private:
  void* memory_ = nullptr;
  cudaStream_t stream_;
};

// Host arrays and how they are cut. A call returns before its work is done, as if M and E were on
// the GPU: the caller waits for the current stream before it reads E.
struct Arrays {
  const float* M;
  float* E;
  int64_t n, chunk;
  cudaStream_t current;

  Arrays(const Tensor& m, Tensor& e, int64_t elements) : chunk(elements) {
    check(m, "M").on_host().dtype({ScalarType::Float}).rank(1).contiguous();
    check(e, "E").on_host().like(m, "M").contiguous();
    STD_TORCH_CHECK(chunk > 0, "chunk: expected at least 1 element, got ", chunk);
    M = data<float>(m);
    E = mutable_data<float>(e);
    n = m.numel();
    chunk = std::min(chunk, n);
    current = current_stream(m);
  }
};

// Memory that is freed stays with the pool, and the next call gets it without asking the driver.
void keep_freed_memory() {
  int device = 0;
  cudaMemPool_t pool;
  uint64_t all = UINT64_MAX;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "threshold");
}

void copy_in(float* buffer, const float* M, int64_t n, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(buffer, M, n * sizeof(float), cudaMemcpyHostToDevice, stream),
             "copy of M");
}
void copy_out(float* E, const float* buffer, int64_t n, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(E, buffer, n * sizeof(float), cudaMemcpyDeviceToHost, stream),
             "copy of E");
}

// The three stages of one chunk in one stream, whose order is all that they need.
void solve(const float* M, float* E, float* buffer, int64_t n, cudaStream_t stream) {
  copy_in(buffer, M, n, stream);
  launch_kepler(buffer, buffer, n, stream);
  copy_out(E, buffer, n, stream);
}

// ---------------------------------------------------------------------------------------------
// v1: one stream, one chunk. Each copy uses one direction of the bus, and the kernel none.

void kepler_v1_serial(const Tensor& M, Tensor& E, int64_t chunk) {
  const Arrays a(M, E, chunk);
  if (a.n == 0) return;
  keep_freed_memory();
  const Buffer buffer(a.n, a.current);
  solve(a.M, a.E, buffer.get(), a.n, a.current);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: in chunks. A stream does one thing after the other, so nothing overlaps yet; but
// one buffer of a chunk is enough.

void kepler_v2_chunks(const Tensor& M, Tensor& E, int64_t chunk) {
  const Arrays a(M, E, chunk);
  if (a.n == 0) return;
  keep_freed_memory();
  const Buffer buffer(a.chunk, a.current);
  for (int64_t i = 0; i < a.n; i += a.chunk) {
    solve(a.M + i, a.E + i, buffer.get(), std::min(a.chunk, a.n - i), a.current);
  }
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: neighbouring chunks are in different streams, each with a buffer of its own.

// Streams and events of one GPU, which are made once. An event that is not timed is cheaper.
struct Pipes {
  cudaStream_t stream[STREAMS];
  cudaEvent_t fork, join[STREAMS], beside;
  cudaEvent_t copied_in[BUFFERS], solved[BUFFERS], copied_out[BUFFERS];

  explicit Pipes(unsigned flags) {
    for (cudaStream_t& s : stream) check_cuda(cudaStreamCreateWithFlags(&s, flags), "stream");
    make(fork);
    make(join);
    make(beside);
    make(copied_in);
    make(solved);
    make(copied_out);
  }

 private:
  static void make(cudaEvent_t& event) {
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  template <int COUNT>
  static void make(cudaEvent_t (&events)[COUNT]) {
    for (cudaEvent_t& event : events) make(event);
  }
};

// flags: cudaStreamNonBlocking, or 0 for streams that the legacy default stream waits for. The lock
// keeps two host threads from recording the same event in turns.
template <typename F>
void with_pipes(unsigned flags, F&& work) {
  static std::mutex mutex;
  static std::map<std::pair<int, unsigned>, Pipes> known;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard<std::mutex> lock(mutex);
  work(known.try_emplace({device, flags}, flags).first->second);
}

void record(cudaEvent_t event, cudaStream_t stream) {
  check_cuda(cudaEventRecord(event, stream), "cudaEventRecord");
}

// beside(): called after each chunk, for what shares the GPU with the streams.
template <typename F>
void overlap(const Arrays& a, Pipes& p, float* buffers, F&& beside) {
  record(p.fork, a.current);  // fork: no stream begins before what the current one has to do
  for (cudaStream_t s : p.stream) check_cuda(cudaStreamWaitEvent(s, p.fork, 0), "fork");
  int k = 0;
  for (int64_t i = 0; i < a.n; i += a.chunk) {
    // Chunk c + STREAMS reuses the buffer of chunk c, and comes after it in the same stream.
    solve(a.M + i, a.E + i, buffers + k * a.chunk, std::min(a.chunk, a.n - i), p.stream[k]);
    k = (k + 1) % STREAMS;
    beside();
  }
  for (int s = 0; s < STREAMS; ++s) {  // join: the current stream goes on when all have finished
    record(p.join[s], p.stream[s]);
    check_cuda(cudaStreamWaitEvent(a.current, p.join[s], 0), "join");
  }
}

template <typename F>
void overlap_streams(const Tensor& M, Tensor& E, int64_t chunk, unsigned flags, F&& beside) {
  const Arrays a(M, E, chunk);
  if (a.n == 0) return;
  keep_freed_memory();
  const Buffer buffers(STREAMS * a.chunk, a.current);
  with_pipes(flags, [&](Pipes& p) { overlap(a, p, buffers.get(), beside); });
}

void kepler_v3_streams(const Tensor& M, Tensor& E, int64_t chunk) {
  overlap_streams(M, E, chunk, cudaStreamNonBlocking, [] {});
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: one stream per stage instead of one per chunk. Nothing but events orders the
// stages of a chunk, and the chunks that share a buffer.

void overlap_stages(const Arrays& a, Pipes& p, float* buffers) {
  const cudaStream_t in = p.stream[0], compute = p.stream[1], out = p.stream[2];
  record(p.fork, a.current);
  check_cuda(cudaStreamWaitEvent(in, p.fork, 0), "fork");
  int k = 0;
  for (int64_t i = 0; i < a.n; i += a.chunk) {
    const int64_t count = std::min(a.chunk, a.n - i);
    float* buffer = buffers + k * a.chunk;
    // The chunk that had this buffer before is on the host again.
    if (i >= BUFFERS * a.chunk) check_cuda(cudaStreamWaitEvent(in, p.copied_out[k], 0), "reuse");
    copy_in(buffer, a.M + i, count, in);
    record(p.copied_in[k], in);
    check_cuda(cudaStreamWaitEvent(compute, p.copied_in[k], 0), "copied in");
    launch_kepler(buffer, buffer, count, compute);
    record(p.solved[k], compute);
    check_cuda(cudaStreamWaitEvent(out, p.solved[k], 0), "solved");
    copy_out(a.E + i, buffer, count, out);
    record(p.copied_out[k], out);
    k = (k + 1) % BUFFERS;
  }
  record(p.join[0], out);  // the last stage of the last chunk is behind everything else
  check_cuda(cudaStreamWaitEvent(a.current, p.join[0], 0), "join");
}

void kepler_v4_stages(const Tensor& M, Tensor& E, int64_t chunk) {
  const Arrays a(M, E, chunk);
  if (a.n == 0) return;
  keep_freed_memory();
  const Buffer buffers(BUFFERS * a.chunk, a.current);
  with_pipes(cudaStreamNonBlocking, [&](Pipes& p) { overlap_stages(a, p, buffers.get()); });
}

// ---------------------------------------------------------------------------------------------
// v3 again, beside an empty kernel per chunk in a default stream. The legacy default stream waits
// for all streams that were not made as non-blocking, and they wait for it.

__global__ void empty_kernel() {}

void launch_empty(cudaStream_t stream) {
  empty_kernel<<<1, 1, 0, stream>>>();
  check_launch("empty");
}

// other: the stream of the empty kernels. The current stream waits for them as well.
void overlap_beside(const Tensor& M, Tensor& E, int64_t chunk, unsigned flags, cudaStream_t other) {
  overlap_streams(M, E, chunk, flags, [other] { launch_empty(other); });
  with_pipes(flags, [&](Pipes& p) {
    record(p.beside, other);
    check_cuda(cudaStreamWaitEvent(current_stream(M), p.beside, 0), "join");
  });
}

void kepler_beside_legacy(const Tensor& M, Tensor& E, int64_t chunk) {
  overlap_beside(M, E, chunk, cudaStreamDefault, cudaStreamLegacy);
}

// The per-thread default stream is an ordinary stream, one for each host thread.
void kepler_beside_per_thread(const Tensor& M, Tensor& E, int64_t chunk) {
  overlap_beside(M, E, chunk, cudaStreamDefault, cudaStreamPerThread);
}

void kepler_non_blocking_beside_legacy(const Tensor& M, Tensor& E, int64_t chunk) {
  overlap_beside(M, E, chunk, cudaStreamNonBlocking, cudaStreamLegacy);
}

// ---------------------------------------------------------------------------------------------

RUNG(day58, kepler, "(Tensor M) -> Tensor");

// These take arrays on the host, so they are registered for the CPU (day 2).
HOST_RUNG(day58, kepler_v1_serial, "(Tensor M, Tensor(a!) E, int chunk) -> ()");
HOST_RUNG(day58, kepler_v2_chunks, "(Tensor M, Tensor(a!) E, int chunk) -> ()");
HOST_RUNG(day58, kepler_v3_streams, "(Tensor M, Tensor(a!) E, int chunk) -> ()");
HOST_RUNG(day58, kepler_v4_stages, "(Tensor M, Tensor(a!) E, int chunk) -> ()");
HOST_RUNG(day58, kepler_beside_legacy, "(Tensor M, Tensor(a!) E, int chunk) -> ()");
HOST_RUNG(day58, kepler_beside_per_thread, "(Tensor M, Tensor(a!) E, int chunk) -> ()");
HOST_RUNG(day58, kepler_non_blocking_beside_legacy, "(Tensor M, Tensor(a!) E, int chunk) -> ()");

// Streams that wait for each other, or, where the first argument says so, lack one wait. Each case
// prints the sum of y = 2 x, with x = 1 … n.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.cuh"

constexpr int N = 1000;
constexpr size_t BYTES = N * sizeof(float);

__global__ void twice(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) y[i] = 2 * x[i];
}

void launch_twice(const float* x, float* y, cudaStream_t stream) {
  twice<<<4, 256, 0, stream>>>(x, y);  // the launch
  CHECK(cudaGetLastError());
}

struct Buffers {
  float *host, *result, *x, *y;  // the first two are pinned
  cudaStream_t first, second;
  Buffers() {
    CHECK(cudaMallocHost(&host, BYTES));
    CHECK(cudaMallocHost(&result, BYTES));
    CHECK(cudaMalloc(&x, BYTES));
    CHECK(cudaMalloc(&y, BYTES));
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    memset(result, 0, BYTES);
    for (int i = 0; i < N; ++i) host[i] = static_cast<float>(i + 1);
    CHECK(cudaMemset(x, 0, BYTES));
    CHECK(cudaDeviceSynchronize());
  }
};

void print_sum(const float* y) {
  double sum = 0;
  for (int i = 0; i < N; ++i) sum += y[i];
  printf("%.0f\n", sum);
}

// x is copied in one stream and used in another.
void two_streams(Buffers& b, bool waits) {
  cudaEvent_t copied;
  CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
  CHECK(cudaMemcpyAsync(b.x, b.host, BYTES, cudaMemcpyHostToDevice, b.first));
  CHECK(cudaEventRecord(copied, b.first));
  if (waits) CHECK(cudaStreamWaitEvent(b.second, copied, 0));
  CHECK(cudaEventDestroy(copied));
  launch_twice(b.x, b.y, b.second);
  CHECK(cudaMemcpyAsync(b.result, b.y, BYTES, cudaMemcpyDeviceToHost, b.second));
  CHECK(cudaStreamSynchronize(b.second));
  print_sum(b.result);
}

// The host reads the result.
void read_by_the_host(Buffers& b, bool waits) {
  CHECK(cudaMemcpyAsync(b.x, b.host, BYTES, cudaMemcpyHostToDevice, b.first));
  launch_twice(b.x, b.y, b.first);
  CHECK(cudaMemcpyAsync(b.result, b.y, BYTES, cudaMemcpyDeviceToHost, b.first));
  if (waits) CHECK(cudaStreamSynchronize(b.first));
  print_sum(b.result);
}

// The host writes into the memory that a copy reads: a pageable source was read by then.
void reused_by_the_host(Buffers& b, bool waits, bool pageable) {
  std::vector<float> own(b.host, b.host + N);
  float* source = pageable ? own.data() : b.host;
  CHECK(cudaMemcpyAsync(b.x, source, BYTES, cudaMemcpyHostToDevice, b.first));
  if (waits) CHECK(cudaStreamSynchronize(b.first));
  memset(source, 0, BYTES);
  launch_twice(b.x, b.y, b.first);
  CHECK(cudaMemcpyAsync(own.data(), b.y, BYTES, cudaMemcpyDeviceToHost, b.first));
  print_sum(own.data());  // a copy to pageable memory is done when the call returns
}

// Memory is freed in one stream while another uses it.
void freed(Buffers& b, bool waits) {
  float* x;
  cudaEvent_t used;
  CHECK(cudaEventCreate(&used));
  CHECK(cudaMallocAsync(&x, BYTES, b.first));
  CHECK(cudaMemcpyAsync(x, b.host, BYTES, cudaMemcpyHostToDevice, b.first));
  launch_twice(x, b.y, b.first);
  CHECK(cudaEventRecord(used, b.first));
  if (waits) CHECK(cudaStreamWaitEvent(b.second, used, 0));
  CHECK(cudaFreeAsync(x, b.second));
  CHECK(cudaStreamSynchronize(b.second));
  CHECK(cudaMemcpyAsync(b.result, b.y, BYTES, cudaMemcpyDeviceToHost, b.first));
  CHECK(cudaStreamSynchronize(b.first));
  print_sum(b.result);
}

// The legacy default stream is ordered with a stream that blocks, and not with one that does not.
void legacy(Buffers& b, bool blocking) {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, blocking ? cudaStreamDefault : cudaStreamNonBlocking));
  CHECK(cudaMemcpyAsync(b.x, b.host, BYTES, cudaMemcpyHostToDevice, stream));
  launch_twice(b.x, b.y, nullptr);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaMemcpy(b.result, b.y, BYTES, cudaMemcpyDeviceToHost));
  print_sum(b.result);
}

// cudaMemset returns before the memory is set, so a stream that does not block may overtake it.
void set(Buffers& b, bool waits) {
  CHECK(cudaMemset(b.x, 0, BYTES));
  if (waits) CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpyAsync(b.x, b.host, BYTES, cudaMemcpyHostToDevice, b.first));
  CHECK(cudaStreamSynchronize(b.first));
  launch_twice(b.x, b.y, nullptr);
  CHECK(cudaMemcpy(b.result, b.y, BYTES, cudaMemcpyDeviceToHost));
  print_sum(b.result);
}

// The host asks until the work is done, or only once; a host function and a graph are work, too.
void polls(Buffers& b, bool until_done) {
  cudaStream_t stream = b.first;
  cudaEvent_t done;
  CHECK(cudaEventCreate(&done));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch_twice(b.x, b.y, stream);
  CHECK(cudaMemcpyAsync(b.result, b.y, BYTES, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  auto add_one = [](void* host) {
    for (int i = 0; i < N; ++i) static_cast<float*>(host)[i] += 1;
  };
  for (int i = 0; i < N; ++i) b.host[i] -= 1;
  CHECK(cudaLaunchHostFunc(stream, add_one, b.host));
  CHECK(cudaMemcpyAsync(b.x, b.host, BYTES, cudaMemcpyHostToDevice, stream));
  CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaEventRecord(done, stream));
  while (cudaEventQuery(done) == cudaErrorNotReady && until_done);
  print_sum(b.result);
}

// Nothing waits for the last kernel: it may not run before the program ends.
void unfinished(Buffers& b, bool waits) {
  read_by_the_host(b, true);
  launch_twice(b.x, b.y, b.first);
  if (waits) CHECK(cudaDeviceSynchronize());
}

// What a kernel does wrong is known when the host waits for it.
void fails(Buffers& b) {
  launch_twice(reinterpret_cast<float*>(8), b.y, b.first);
  printf("launched\n");
  fflush(stdout);
  CHECK(cudaStreamSynchronize(b.first));
}

int main(int argc, char** argv) {
  if (argc != 3) return 4;
  Buffers b;
  const bool right = strcmp(argv[2], "right") == 0;
  switch (argv[1][0]) {
    case 't':
      two_streams(b, right);
      break;
    case 'r':
      read_by_the_host(b, right);
      break;
    case 'p':
      reused_by_the_host(b, right, false);
      break;
    case 's':
      reused_by_the_host(b, false, true);
      break;
    case 'f':
      freed(b, right);
      break;
    case 'l':
      legacy(b, right);
      break;
    case 'm':
      set(b, right);
      break;
    case 'q':
      polls(b, right);
      break;
    case 'u':
      unfinished(b, right);
      break;
    case 'e':
      fails(b);
      break;
    default:
      return 4;
  }
}

// Day 89, second file: a program with one planted fault per name
//
//   faults NAME           runs it as a program that looks at no error
//   faults NAME codes     looks at what every call returns, and at cudaGetLastError() after each
//                         launch, for whose kernel it does not wait
//   faults NAME checked   waits after each launch as well, compares the result, and at last says
//                         whether the context still works
//
// Whatever is wrong is printed, and then the exit code is 1. Without a name, it lists them.
//
// It needs no PyTorch, so that a process costs little, and a sanitizer sees this program alone. A
// fault that breaks the context breaks it for the whole process, hence one process per fault.
//
// proof.py runs each fault in each way, and expects that at least one of them names it.

#include <cassert>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

constexpr int N = 256;                // elements, and threads of most launches
constexpr double PATIENCE = 1.0;      // seconds that a kernel may take
constexpr unsigned SECONDS = 60;      // of the process, also if its parent is gone
constexpr unsigned SIDE = 65536;      // of a matrix with 2^32 elements
constexpr long long DELAY = 1 << 24;  // clock cycles, about 10 ms

bool codes = false;    // look at what calls return
bool checked = false;  // wait for kernels and compare results, too
int errors = 0;

// An error is printed once, with the place that saw it.
void look(const char* where, cudaError_t code) {
  if (!codes || code == cudaSuccess) return;
  printf("%s: %s: %s\n", where, cudaGetErrorName(code), cudaGetErrorString(code));
  ++errors;
}

// After a launch: an error of the launch itself, then what happened while the kernel ran. A kernel
// that has not ended after PATIENCE never will; only the end of the process stops it.
void finish(const char* kernel) {
  if (codes) look(kernel, cudaGetLastError());
  if (!checked) return;
  const auto began = std::chrono::steady_clock::now();
  while (cudaStreamQuery(nullptr) == cudaErrorNotReady) {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - began;
    if (since.count() > PATIENCE) {
      printf("%s: still running after %g s\n", kernel, PATIENCE);
      fflush(stdout);
      _Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  look((std::string("waiting for ") + kernel).c_str(), cudaDeviceSynchronize());
}

// Memory for n numbers, which begin as 0, 1, 2, ….
template <typename T>
T* numbers(int n) {
  std::vector<T> host(n);
  for (int i = 0; i < n; ++i) host[i] = static_cast<T>(i);
  T* device = nullptr;
  look("cudaMalloc", cudaMalloc(&device, n * sizeof(T)));
  look("cudaMemcpy", cudaMemcpy(device, host.data(), n * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

// Compares n results with first, first + step, ….
template <typename T>
void expect(const T* device, int n, T first, T step) {
  std::vector<T> host(n);
  look("cudaMemcpy", cudaMemcpy(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost));
  for (int i = 0; checked && errors == 0 && i < n; ++i) {
    const T expected = static_cast<T>(first + i * step);
    if (host[i] == expected) continue;
    printf("result %d: %g, expected %g\n", i, double(host[i]), double(expected));
    ++errors;
  }
}

// ---------------------------------------------------------------------------------------------
// Launches that do not take place. The error waits in cudaGetLastError(), and is gone when read.

__global__ void double_each(float* x) {
  x[threadIdx.x] *= 2;
}
void too_many_threads() {
  float* x = numbers<float>(N);
  double_each<<<1, 2048>>>(x);  // a block has at most 1024
  finish("double_each");
  expect(x, N, 0.f, 2.f);
}

__global__ void reverse_in_shared(float* x) {
  extern __shared__ float row[];
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = row[N - 1 - threadIdx.x];
}
void too_much_shared_memory() {
  float* x = numbers<float>(N);
  reverse_in_shared<<<1, N, 1 << 20>>>(x);  // 1 MiB; a multiprocessor of an H200 has 228 KiB
  finish("reverse_in_shared");
  expect(x, N, N - 1.f, -1.f);
}

// Not even a launch: there is no such memory. Any later allocation that fits succeeds.
void out_of_memory() {
  size_t free = 0, total = 0;
  look("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
  float* x = nullptr;
  look("cudaMalloc", cudaMalloc(&x, total + (size_t{1} << 30)));
}

// ---------------------------------------------------------------------------------------------
// Faults of the hardware, which end the kernel and with it the context: sticky errors.

__global__ void gather(const float* x, const int64_t* index, float* y) {
  y[threadIdx.x] = x[index[threadIdx.x]];
}
void illegal_address() {
  const float* x = numbers<float>(N);
  float* y = numbers<float>(N);
  int64_t* index = numbers<int64_t>(N);
  const int64_t wild = int64_t{1} << 40;  // e.g. a token of another vocabulary, in the wrong dtype
  look("cudaMemcpy", cudaMemcpy(index + 9, &wild, sizeof(wild), cudaMemcpyHostToDevice));
  gather<<<1, N>>>(x, index, y);
  finish("gather");
  double_each<<<1, N>>>(y);
  finish("double_each, which is right");
  expect(y, N, 0.f, 2.f);
}

__global__ void add_packs(const float* x, float* y) {
  const float4 pack = reinterpret_cast<const float4*>(x)[threadIdx.x];
  y[threadIdx.x] = pack.x + pack.y + pack.z + pack.w;
}
void misaligned_vector() {
  const float* x = numbers<float>(4 * N + 4);
  float* y = numbers<float>(N);
  add_packs<<<1, N>>>(x + 1, y);  // x[1:] of a tensor begins at byte 4, a float4 at 0 or 16
  finish("add_packs");
  expect(y, N, 10.f, 16.f);
}

__global__ void reciprocal(float* x) {
  assert(x[threadIdx.x] != 0.f);
  x[threadIdx.x] = 1 / x[threadIdx.x];
}
void failed_assert() {
  float* x = numbers<float>(N);
  reciprocal<<<1, N>>>(x);
  finish("reciprocal");
}

__device__ float sum_to(const float* x, int i, int n) {
  volatile float kept[64];
  kept[i % 64] = x[i % N];
  return i + 1 < n ? sum_to(x, i + 1, n) + kept[i % 64] : kept[i % 64];
}
__global__ void sum_by_recursion(const float* x, float* y, int n) {
  *y = sum_to(x, 0, n);
}
void stack_overflow() {
  const float* x = numbers<float>(N);
  float* y = numbers<float>(1);
  sum_by_recursion<<<1, 1>>>(x, y, 1 << 20);  // a thread's stack has 1 KiB unless one asks for more
  finish("sum_by_recursion");
}

// ---------------------------------------------------------------------------------------------
// Faults that are no error: the kernel ends, and its result is wrong, or right by luck.

// The first element of a row of a matrix that is too large: row · SIDE has 32 bits, 2^32 becomes 0.
__global__ void first_of_row(const float* x, float* y, unsigned row, int64_t n) {
  const unsigned i = row * SIDE;
  *y = i < n ? x[i] : -1.f;
}
void overflow_of_an_index() {
  const float* x = numbers<float>(N);
  float* y = numbers<float>(1);
  first_of_row<<<1, 1>>>(x, y, SIDE, N);
  finish("first_of_row");
  expect(y, 1, -1.f, 0.f);  // there are N numbers, so that row SIDE is none of them
}

__global__ void shift_in_shared(float* x) {
  __shared__ float row[N];
  row[threadIdx.x + 1] = x[threadIdx.x];  // the last thread stores one word beyond the row
  __syncthreads();
  if (threadIdx.x > 0) x[threadIdx.x] = row[threadIdx.x];
}
void beyond_shared_memory() {
  float* x = numbers<float>(N);
  shift_in_shared<<<1, N>>>(x);
  finish("shift_in_shared");
  expect(x + 1, N - 1, 0.f, 1.f);
}

__global__ void reverse_without_barrier(float* x) {
  __shared__ float row[N];
  row[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = row[N - 1 - threadIdx.x];  // another warp stores that word, now or later
}
void missing_barrier() {
  float* x = numbers<float>(N);
  reverse_without_barrier<<<1, N>>>(x);
  finish("reverse_without_barrier");
  expect(x, N, N - 1.f, -1.f);
}

__global__ void two_barriers(float* x) {
  __shared__ float row[N];
  row[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x % 2) {
    __syncthreads();  // half of each warp waits here
    x[threadIdx.x] = row[threadIdx.x - 1];
  } else {
    __syncthreads();  // and half of it here
    x[threadIdx.x] = row[threadIdx.x + 1] + 1;
  }
}
void divergent_barrier() {
  float* x = numbers<float>(N);
  two_barriers<<<1, N>>>(x);
  finish("two_barriers");
}

__global__ void count_by_plain_sum(float* sum) {
  *sum += 1;  // reads, adds and stores: the additions of all other threads in between are lost
}
void lost_updates() {
  float* sum = numbers<float>(1);
  count_by_plain_sum<<<4, N>>>(sum);
  finish("count_by_plain_sum");
  expect(sum, 1, 4.f * N, 0.f);
}

__global__ void accumulate(const float* x, float* y) {
  y[threadIdx.x] += x[threadIdx.x];
}
void never_written() {
  const float* x = numbers<float>(N);
  float* y = nullptr;
  look("cudaMalloc", cudaMalloc(&y, N * sizeof(float)));  // and no cudaMemset
  accumulate<<<1, N>>>(x, y);
  finish("accumulate");
  expect(y, N, 0.f, 1.f);
}

void use_after_free() {
  float* x = numbers<float>(N);
  float* y = numbers<float>(N);
  look("cudaFree", cudaFree(x));
  accumulate<<<1, N>>>(x, y);
  finish("accumulate");
  expect(y, N, 0.f, 2.f);
}

__global__ void fill_late(float* x) {
  if (threadIdx.x == 0) {
    for (const long long began = clock64(); clock64() - began < DELAY;) {
    }
  }
  __syncthreads();  // all wait for thread 0
  x[threadIdx.x] = 7;
}
void missing_event() {
  float* x = numbers<float>(N);
  float* y = numbers<float>(N);
  cudaStream_t producer, consumer;
  look("stream", cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking));
  look("stream", cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking));
  fill_late<<<1, N, 0, producer>>>(x);
  // Here belong cudaEventRecord(event, producer) and cudaStreamWaitEvent(consumer, event).
  look("copy", cudaMemcpyAsync(y, x, N * sizeof(float), cudaMemcpyDeviceToDevice, consumer));
  look("waiting", cudaDeviceSynchronize());
  expect(y, N, 7.f, 0.f);
}

__global__ void wait_for_flag(volatile float* flag) {
  while (*flag == 0.f) {  // no other thread ever stores it
  }
}
void no_end() {
  float* flag = numbers<float>(1);
  wait_for_flag<<<1, 1>>>(flag);
  finish("wait_for_flag");
  look("waiting", cudaDeviceSynchronize());
}

// ---------------------------------------------------------------------------------------------

struct Fault {
  const char* name;
  void (*run)();
};
#define FAULT(name) {#name, name}
constexpr Fault FAULTS[] = {
    FAULT(too_many_threads), FAULT(too_much_shared_memory), FAULT(out_of_memory),
    FAULT(illegal_address),  FAULT(misaligned_vector),      FAULT(failed_assert),
    FAULT(stack_overflow),   FAULT(overflow_of_an_index),   FAULT(beyond_shared_memory),
    FAULT(missing_barrier),  FAULT(divergent_barrier),      FAULT(lost_updates),
    FAULT(never_written),    FAULT(use_after_free),         FAULT(missing_event),
    FAULT(no_end),
};

// Whether the context is still there: a sticky error is what every later call returns.
__global__ void do_nothing() {}
void try_again() {
  (void)cudaGetLastError();
  do_nothing<<<1, 1>>>();
  cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) code = cudaDeviceSynchronize();
  printf("afterwards: %s\n", code == cudaSuccess ? "the context works" : cudaGetErrorName(code));
}

int main(int argc, char** argv) {
  alarm(SECONDS);
  checked = argc > 2 && std::strcmp(argv[2], "checked") == 0;
  codes = checked || (argc > 2 && std::strcmp(argv[2], "codes") == 0);
  for (const Fault& fault : FAULTS) {
    if (argc < 2) printf("%s\n", fault.name);
    if (argc < 2 || std::strcmp(argv[1], fault.name) != 0) continue;
    fault.run();
    if (checked && errors) try_again();
    return errors != 0;
  }
  return argc < 2 ? 0 : 2;
}

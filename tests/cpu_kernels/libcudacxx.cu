// Kernels for test_cpu_libcudacxx.py: libcu++ (cuda::atomic, cuda::barrier, cuda::pipeline and what
// cuda::std has), and the barrier and pipeline primitives.
#include "common/cuda/tensor.cuh"

#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/cmath>
#include <cuda/functional>
#include <cuda/pipeline>
#include <cuda/std/array>
#include <cuda/std/atomic>
#include <cuda/std/bit>
#include <cuda/std/chrono>
#include <cuda/std/complex>
#include <cuda/std/cstdint>
#include <cuda/std/functional>
#include <cuda/std/limits>
#include <cuda/std/mdspan>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include <cuda/std/variant>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

using BlockBarrier = cuda::barrier<cuda::thread_scope_block>;

// nvcc warns of constructors that shared variables have; those here do nothing.
#pragma nv_diag_suppress static_var_with_dynamic_init

// ---------------------------------------------------------------- atomics

// What each operation returns, and what it leaves behind.
template <class T>
__device__ void each_operation(T* variable, double* out) {
  cuda::atomic_ref<T, cuda::thread_scope_device> x(*variable);
  int n = 0;
  auto note = [&](T returned) {
    out[n++] = static_cast<double>(returned);
    out[n++] = static_cast<double>(x.load());
  };
  x.store(5, cuda::memory_order_relaxed);
  note(x.load(cuda::memory_order_acquire));
  note(x.exchange(7, cuda::memory_order_acq_rel));
  note(x.fetch_add(3));
  note(x.fetch_sub(4, cuda::memory_order_release));
  note(x.fetch_min(2, cuda::memory_order_relaxed));
  note(x.fetch_min(9));
  note(x.fetch_max(11));
  note(x.fetch_max(1));
  T expected = 11;
  note(x.compare_exchange_strong(expected, 20) ? 1 : 0);
  note(x.compare_exchange_strong(expected, 30, cuda::memory_order_acq_rel,
                                 cuda::memory_order_relaxed)
           ? 1
           : 0);
  note(expected);
  note(x = 40);
  note(x += 2);
  note(x -= 1);
  if constexpr (cuda::std::is_integral_v<T>) {
    note(x.fetch_and(0x2c));
    note(x.fetch_or(0x13));
    note(x.fetch_xor(0x05));
    note(x++);
    note(++x);
    note(x--);
    note(--x);
    note(x &= 0x1e);
    note(x |= 0x41);
    note(x ^= 0x03);
  }
}
__global__ void operations_kernel(double* out) {
  __shared__ int shared_word;
  __shared__ float shared_float;
  __shared__ cuda::atomic<unsigned, cuda::thread_scope_block> object;
  long long* global_long = reinterpret_cast<long long*>(out);
  each_operation(&shared_word, out + 64);
  each_operation(&shared_float, out + 128);
  each_operation(global_long, out + 192);
  double* global_double = out + 1;
  each_operation(global_double, out + 256);
  object = 3;
  out[2] = object++;
  out[3] = object;
  int values[3] = {1, 2, 3};
  cuda::atomic<int*, cuda::thread_scope_block> pointer(values);
  out[4] = *pointer.fetch_add(1);
  out[5] = *pointer.load();
  out[6] = sizeof(object) == 4 && object.is_lock_free();
  cuda::std::atomic<int> of_the_system(4);
  out[7] = of_the_system.fetch_add(1) + of_the_system.load();
}
Tensor operations(Tensor like) {
  Tensor out = torch::stable::new_zeros(like, {320});
  operations_kernel<<<1, 1>>>(mutable_data<double>(out));
  check_launch("operations");
  return out;
}

__device__ cuda::atomic<int, cuda::thread_scope_device> total;

// (threads, sum as float, largest, bits)
__global__ void count_kernel(int* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  total.fetch_add(1, cuda::memory_order_relaxed);
  cuda::atomic_ref<float, cuda::thread_scope_device>(reinterpret_cast<float*>(out)[1])
      .fetch_add(0.5f, cuda::memory_order_relaxed);
  cuda::atomic_ref<int>(out[2]).fetch_max(i);
  cuda::atomic_ref<int>(out[3]).fetch_or(1 << i % 31);
}
__global__ void take_total_kernel(int* out) {
  out[0] = total.exchange(0);
}
void count(Tensor out, int64_t blocks) {
  int* pointer = mutable_data<int>(out);
  count_kernel<<<static_cast<unsigned>(blocks), 64>>>(pointer);
  take_total_kernel<<<1, 1>>>(pointer);
  check_launch("count");
}

// Each block waits for the one before it and hands on what it got, plus one. `how`: by what the
// order is kept and how a thread waits.
template <int how>
__global__ void chain_kernel(int* values, int* flags) {
  constexpr auto device = cuda::thread_scope_device;
  const int b = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    int before = 0;
    if (b > 0) {
      cuda::atomic_ref<int, device> flag(flags[b - 1]);
      if constexpr (how == 0) {
        while (flag.load(cuda::memory_order_acquire) == 0) {
        }
      } else if constexpr (how == 1) {  // the body does something, and does not give way
        int trips = 0, seen = 0;
        do {
          seen = flag.load(cuda::memory_order_relaxed);
          values[gridDim.x + b] = ++trips;
        } while (seen == 0);
        cuda::atomic_thread_fence(cuda::memory_order_acquire, device);
      } else if constexpr (how == 2) {
        flag.wait(0, cuda::memory_order_acquire);
      } else {
        int one = 1;
        while (!flag.compare_exchange_weak(one, 2, cuda::memory_order_acquire)) one = 1;
      }
      before = values[b - 1];
    }
    values[b] = before + 1;
    cuda::atomic_ref<int, device> flag(flags[b]);
    if constexpr (how == 1) {
      cuda::atomic_thread_fence(cuda::memory_order_release, device);
      flag.store(1, cuda::memory_order_relaxed);
    } else {
      flag.store(1, cuda::memory_order_release);
      flag.notify_all();
    }
  }
}
void chain(Tensor values, Tensor flags, int64_t how) {
  int *v = mutable_data<int>(values), *f = mutable_data<int>(flags);
  const auto blocks = static_cast<unsigned>(flags.numel());
  if (how == 0) chain_kernel<0><<<blocks, 32>>>(v, f);
  if (how == 1) chain_kernel<1><<<blocks, 32>>>(v, f);
  if (how == 2) chain_kernel<2><<<blocks, 32>>>(v, f);
  if (how == 3) chain_kernel<3><<<blocks, 32>>>(v, f);
  check_launch("chain");
}

// A lock around a plain counter. One thread a warp, so that the lanes of one do not wait for each
// other.
__global__ void lock_kernel(int* counter, int* lock_word, bool by_exchange) {
  if (threadIdx.x % 32) return;
  cuda::atomic_ref<int, cuda::thread_scope_device> lock(*lock_word);
  for (int i = 0; i < 4; ++i) {
    if (by_exchange) {
      while (lock.exchange(1, cuda::memory_order_acquire)) {
        while (lock.load(cuda::memory_order_relaxed)) __nanosleep(20);
      }
    } else {
      for (;;) {
        int free = 0;
        if (lock.compare_exchange_strong(free, 1, cuda::memory_order_acquire)) break;
      }
    }
    *counter += 1;
    lock.store(0, cuda::memory_order_release);
  }
}
void lock(Tensor counter, bool by_exchange) {
  int* pointer = mutable_data<int>(counter);
  lock_kernel<<<8, 128>>>(pointer, pointer + 1, by_exchange);
  check_launch("lock");
}

// ---------------------------------------------------------------- barriers

// Each round, every thread hands a value to another: by token, by parity, or by polling.
__global__ void hand_on_kernel(float* out, int rounds, int how) {
  __shared__ BlockBarrier ready, done;
  __shared__ float row[96];
  const int t = static_cast<int>(threadIdx.x), last = static_cast<int>(blockDim.x) - 1;
  if (t == 0) {
    init(&ready, blockDim.x);
    init(&done, blockDim.x);
  }
  __syncthreads();
  float value = static_cast<float>(t);
  for (int i = 0; i < rounds; ++i) {
    row[t] = value;
    if (how == 0) {
      BlockBarrier::arrival_token token = ready.arrive();
      ready.wait(cuda::std::move(token));
    } else if (how == 1) {
      (void)ready.arrive();
      ready.wait_parity(i % 2);
    } else if (how == 2) {
      auto token = ready.arrive();
      while (!ready.try_wait_for(BlockBarrier::arrival_token(token),
                                 cuda::std::chrono::nanoseconds(100))) {
      }
    } else {
      ready.arrive_and_wait();
    }
    value = row[last - t] + 1;
    done.arrive_and_wait();
  }
  out[t] = value;
}
Tensor hand_on(Tensor like, int64_t rounds, int64_t how) {
  Tensor out = torch::stable::new_zeros(like, {96});
  hand_on_kernel<<<1, 96>>>(mutable_data<float>(out), static_cast<int>(rounds),
                            static_cast<int>(how));
  check_launch("hand_on");
  return out;
}

// Thread t leaves in round t; who is left goes on. out[t]: how many were there in the round before.
__global__ void drop_kernel(int* out) {
  __shared__ BlockBarrier barrier;
  __shared__ int present[32];
  const int t = static_cast<int>(threadIdx.x);
  present[t] = 0;
  if (t == 0) init(&barrier, 32);
  __syncthreads();
  for (int round = 0; round < t; ++round) {
    atomicAdd(&present[round], 1);
    barrier.arrive_and_wait();
    out[t] = present[round];
  }
  atomicAdd(&present[t], 1);
  barrier.arrive_and_drop();
}
Tensor drop(Tensor like) {
  Tensor out = torch::stable::new_zeros(like, {32}, torch::headeronly::ScalarType::Int);
  drop_kernel<<<1, 32>>>(mutable_data<int>(out));
  check_launch("drop");
  return out;
}

// The block copies its row through shared memory, and turns it round. `how`: by the whole block, by
// bytes and an aligned size, by each thread for itself, or by TMA.
template <int how>
__global__ void turn_round_kernel(const float* in, float* out, int n) {
  extern __shared__ float4 memory[];
  float* row = reinterpret_cast<float*>(memory);
  __shared__ BlockBarrier barrier;
  auto block = cg::this_thread_block();
  if (block.thread_rank() == 0) init(&barrier, block.size());
  block.sync();
  in += static_cast<size_t>(blockIdx.x) * n;
  out += static_cast<size_t>(blockIdx.x) * n;
  if constexpr (how == 0) {
    cuda::memcpy_async(block, row, in, n * sizeof(float), barrier);
  } else if constexpr (how == 1) {
    cuda::memcpy_async(block, static_cast<void*>(row), static_cast<const void*>(in),
                       cuda::aligned_size_t<16>(n * sizeof(float)), barrier);
  } else if constexpr (how == 2) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
      cuda::memcpy_async(row + i, in + i, cuda::aligned_size_t<4>(4), barrier);
  }
  if constexpr (how == 3) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    BlockBarrier::arrival_token token;
    if (threadIdx.x == 0) {
      cuda::device::memcpy_async_tx(row, in, cuda::aligned_size_t<16>(n * sizeof(float)), barrier);
      token = cuda::device::barrier_arrive_tx(barrier, 1, n * sizeof(float));
    } else {
      token = barrier.arrive();
    }
    barrier.wait(cuda::std::move(token));
#endif
  } else {
    barrier.arrive_and_wait();
  }
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    out[i] = row[n - 1 - i];
}
Tensor turn_round(Tensor x, int64_t how) {
  Tensor y = torch::stable::empty_like(x);
  const auto rows = static_cast<unsigned>(x.size(0));
  const int n = static_cast<int>(x.size(1));
  const size_t bytes = n * sizeof(float);
  const float* in = static_cast<const float*>(x.const_data_ptr());
  float* out = mutable_data<float>(y);
  if (how == 0) turn_round_kernel<0><<<rows, 64, bytes>>>(in, out, n);
  if (how == 1) turn_round_kernel<1><<<rows, 64, bytes>>>(in, out, n);
  if (how == 2) turn_round_kernel<2><<<rows, 64, bytes>>>(in, out, n);
  if (how == 3) turn_round_kernel<3><<<rows, 64, bytes>>>(in, out, n);
  check_launch("turn_round");
  return y;
}

// ---------------------------------------------------------------- pipelines

constexpr int kStages = 3;
constexpr int kTile = 64;

// Tiles of x go through the stages in turn; each is turned round. All threads produce and consume.
__global__ void staged_kernel(const float* in, float* out, int tiles) {
  __shared__ float stages[kStages][kTile];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, kStages> state;
  auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  int next = 0;
  for (int i = 0; i < tiles; ++i) {
    for (; next < tiles && next < i + kStages; ++next) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, stages[next % kStages], in + next * kTile,
                         cuda::aligned_size_t<16>(sizeof stages[0]), pipeline);
      pipeline.producer_commit();
    }
    pipeline.consumer_wait();
    out[i * kTile + threadIdx.x] = stages[i % kStages][kTile - 1 - threadIdx.x];
    pipeline.consumer_release();
  }
}
// Of 64 threads and more, the first 32 produce, and the others consume.
template <bool by_role>
__global__ void parted_kernel(const float* in, float* out, int tiles) {
  __shared__ float stages[kStages][kTile];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, kStages> state;
  auto block = cg::this_thread_block();
  const bool produces = threadIdx.x < 32;
  auto make = [&] {
    if constexpr (by_role)
      return cuda::make_pipeline(
          block, &state, produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
    else
      return cuda::make_pipeline(block, &state, size_t{32});
  };
  auto pipeline = make();
  if (produces) {
    for (int i = 0; i < tiles; ++i) {
      pipeline.producer_acquire();
      const int at = static_cast<int>(threadIdx.x) * 2;
      cuda::memcpy_async(&stages[i % kStages][at], in + i * kTile + at, cuda::aligned_size_t<8>(8),
                         pipeline);
      pipeline.producer_commit();
    }
  } else {
    for (int i = 0; i < tiles; ++i) {
      pipeline.consumer_wait();
      const int at = static_cast<int>(threadIdx.x) - 32;
      out[i * kTile + at] = stages[i % kStages][kTile - 1 - at];
      pipeline.consumer_release();
    }
  }
}
// Each thread has stages of its own.
__global__ void own_stages_kernel(const float* in, float* out, int tiles) {
  __shared__ float stages[2][kTile];
  auto pipeline = cuda::make_pipeline();
  const auto t = threadIdx.x;
  auto fetch = [&](int tile) {
    pipeline.producer_acquire();
    if (tile < tiles)
      cuda::memcpy_async(&stages[tile % 2][t], in + tile * kTile + t, sizeof(float), pipeline);
    pipeline.producer_commit();
  };
  fetch(0);
  for (int i = 0; i < tiles; ++i) {
    fetch(i + 1);
    cuda::pipeline_consumer_wait_prior<1>(pipeline);
    out[i * kTile + kTile - 1 - t] = stages[i % 2][t];
    pipeline.consumer_release();
  }
}
// The same by the primitives; what is beyond the last tile is zeros.
__global__ void primitives_kernel(const float* in, float* out, int tiles) {
  __shared__ alignas(16) float stages[2][kTile];
  __shared__ __mbarrier_t full;
  const auto t = threadIdx.x;
  if (t == 0) __mbarrier_init(&full, blockDim.x);
  __syncthreads();
  for (int i = 0; i < tiles; i += 2) {
    if (t < kTile / 4) __pipeline_memcpy_async(&stages[0][4 * t], in + i * kTile + 4 * t, 16);
    __pipeline_commit();
    const bool last = i + 1 == tiles;
    __pipeline_memcpy_async(&stages[1][t], in + (last ? i : i + 1) * kTile + t, 4, last ? 4 : 0);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __pipeline_arrive_on(&full);
    __mbarrier_token_t token = __mbarrier_arrive(&full);
    while (!__mbarrier_test_wait(&full, token)) {
    }
    out[i * kTile + kTile - 1 - t] = stages[0][t];
    if (!last)
      out[(i + 1) * kTile + kTile - 1 - t] = stages[1][t];
    else if (stages[1][t] != 0)
      out[i * kTile] = -1;
    __syncthreads();
  }
}
Tensor staged(Tensor x, int64_t how) {
  Tensor y = torch::stable::empty_like(x);
  const float* in = static_cast<const float*>(x.const_data_ptr());
  float* out = mutable_data<float>(y);
  const int tiles = static_cast<int>(x.size(0));
  if (how == 0) staged_kernel<<<1, kTile>>>(in, out, tiles);
  if (how == 1) parted_kernel<false><<<1, kTile + 32>>>(in, out, tiles);
  if (how == 2) parted_kernel<true><<<1, kTile + 32>>>(in, out, tiles);
  if (how == 3) own_stages_kernel<<<1, kTile>>>(in, out, tiles);
  if (how == 4) primitives_kernel<<<1, kTile>>>(in, out, tiles);
  check_launch("staged");
  return y;
}

// ---------------------------------------------------------------- cuda::std

template <class T>
__device__ double vocabulary_of(T x) {
  if constexpr (cuda::std::is_floating_point_v<T>)
    return static_cast<double>(cuda::std::numeric_limits<T>::epsilon()) * static_cast<double>(x);
  else
    return static_cast<double>(cuda::std::numeric_limits<T>::max()) + static_cast<double>(x);
}
__global__ void vocabulary_kernel(double* out) {
  int n = 0;
  cuda::std::array<int, 4> a{3, 1, 4, 1};
  int sum = 0;
  for (int x : a) sum += x;
  out[n++] = sum;
  auto [i, f] = cuda::std::make_tuple(2, 2.5f);
  out[n++] = i + f;
  cuda::std::complex<float> z(1, 2);
  z *= z;
  out[n++] = z.real();
  out[n++] = z.imag();
  out[n++] = vocabulary_of(1.0f);
  out[n++] = vocabulary_of(cuda::std::uint8_t{1});
  out[n++] = cuda::std::popcount(0xf0u) + cuda::std::countl_zero(1u) + cuda::std::bit_ceil(5u);
  out[n++] = cuda::std::bit_cast<unsigned>(1.0f);
  cuda::std::optional<int> some = 4, nothing;
  out[n++] = *some + nothing.value_or(5);
  cuda::std::variant<int, float> either = 1.5f;
  out[n++] = cuda::std::get<float>(either) + static_cast<double>(either.index());
  cuda::std::span<int, 4> view(a.data(), 4);
  out[n++] = view.back() + static_cast<double>(view.size());
  cuda::std::mdspan<int, cuda::std::extents<int, 2, 2>> matrix(a.data());
  out[n++] = matrix.extent(0) * 10 + matrix.data_handle()[matrix.mapping()(1, 0)];
  out[n++] = cuda::ceil_div(7, 2);
  out[n++] = cuda::maximum<int>{}(3, 8) + cuda::std::plus<int>{}(1, 2);
  auto p = cuda::std::make_pair(6, 7);
  cuda::std::swap(p.first, p.second);
  out[n++] = p.first - p.second;
}
Tensor vocabulary(Tensor like) {
  Tensor out = torch::stable::new_zeros(like, {16});
  vocabulary_kernel<<<1, 1>>>(mutable_data<double>(out));
  check_launch("vocabulary");
  return out;
}

// ---------------------------------------------------------------- mistakes

__global__ void never_initialised(float*) {
  __shared__ BlockBarrier barrier;
  barrier.arrive_and_wait();  // line: never_initialised
}
__global__ void one_is_missing(float*) {
  __shared__ BlockBarrier barrier;
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  if (threadIdx.x != 5) barrier.arrive_and_wait();  // line: one_is_missing
}
__global__ void too_many_arrivals(float*) {
  __shared__ BlockBarrier barrier;
  init(&barrier, 2);
  (void)barrier.arrive(3);  // line: too_many_arrivals
}
// No thread waits for the copy: what is read is what was there before.
__global__ void no_wait(float* out) {
  __shared__ BlockBarrier barrier;
  __shared__ float row[32];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(cg::this_thread_block(), row, out, sizeof row, barrier);
  (void)barrier.arrive();
  out[threadIdx.x] = row[threadIdx.x];
}
__global__ void misaligned(float* out) {
  auto* odd = reinterpret_cast<int*>(reinterpret_cast<char*>(out) + 2);
  cuda::atomic_ref<int> x(*odd);  // line: misaligned
  x.store(1);
}
__global__ void never_set(float* out) {
  cuda::atomic_ref<int> flag(*reinterpret_cast<int*>(out));
  int trips = 0;
  while (flag.load(cuda::memory_order_acquire) != 7) {  // line: never_set
    out[1 + threadIdx.x % 2] = static_cast<float>(++trips);
  }
}
__global__ void uneven_size(float* out) {
  __shared__ BlockBarrier barrier;
  __shared__ alignas(16) float row[32];
  init(&barrier, 1);
  cuda::memcpy_async(row, out, cuda::aligned_size_t<16>(20), barrier);  // line: uneven_size
}
__global__ void stage_never_released(float* out) {
  __shared__ float stages[2][32];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  for (int i = 0; i < 3; ++i) {
    pipeline.producer_acquire();  // line: stage_never_released
    cuda::memcpy_async(block, stages[i % 2], out, sizeof stages[0], pipeline);
    pipeline.producer_commit();
  }
}
void fault(Tensor out, int64_t which) {
  float* pointer = mutable_data<float>(out);
  if (which == 0) never_initialised<<<1, 32>>>(pointer);
  if (which == 1) one_is_missing<<<1, 32>>>(pointer);
  if (which == 2) too_many_arrivals<<<1, 1>>>(pointer);
  if (which == 3) no_wait<<<1, 32>>>(pointer);
  if (which == 4) misaligned<<<1, 1>>>(pointer);
  if (which == 5) never_set<<<1, 32>>>(pointer);
  if (which == 6) uneven_size<<<1, 1>>>(pointer);
  if (which == 7) stage_never_released<<<1, 32>>>(pointer);
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_libcudacxx, m) {
  m.def("operations(Tensor like) -> Tensor");
  m.def("count(Tensor(a!) out, int blocks) -> ()");
  m.def("chain(Tensor(a!) values, Tensor(b!) flags, int how) -> ()");
  m.def("lock(Tensor(a!) counter, bool by_exchange) -> ()");
  m.def("hand_on(Tensor like, int rounds, int how) -> Tensor");
  m.def("drop(Tensor like) -> Tensor");
  m.def("turn_round(Tensor x, int how) -> Tensor");
  m.def("staged(Tensor x, int how) -> Tensor");
  m.def("vocabulary(Tensor like) -> Tensor");
  m.def("fault(Tensor(a!) out, int which) -> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_libcudacxx, CUDA, m) {
  m.impl("operations", TORCH_BOX(&operations));
  m.impl("count", TORCH_BOX(&count));
  m.impl("chain", TORCH_BOX(&chain));
  m.impl("lock", TORCH_BOX(&lock));
  m.impl("hand_on", TORCH_BOX(&hand_on));
  m.impl("drop", TORCH_BOX(&drop));
  m.impl("turn_round", TORCH_BOX(&turn_round));
  m.impl("staged", TORCH_BOX(&staged));
  m.impl("vocabulary", TORCH_BOX(&vocabulary));
  m.impl("fault", TORCH_BOX(&fault));
}

// Day 14: the sum of a vector, the whole ladder
//
//   y = sum_i x[i]     x: (n,) fp32, fp64, int32 or int64;   y: one number, int64 for integers
//
// Bytes: read x once, n · sizeof(T); 4.3 GB for 2^30 fp32. The bytes written are negligible.
// Operations: one addition per element, so the limit is memory bandwidth.
//
//   v1 atomics       every thread adds its element to one number in global memory
//   v2 interleaved   one tree per block: thread t adds a neighbour if t is a multiple of 2, 4, 8 …
//   v3 strided       the same tree with adjacent threads active: less divergence
//   v4 sequential    the upper half is added to the lower half: no bank conflicts either
//   v5 warp          the tree in registers, by warp shuffles: one barrier instead of eight
//   v6 vectorised    as many blocks as are resident, 16-byte loads, eight in flight; two stages
//
// v2 to v5 leave one sum per block. They are launched again on these sums until one is left.
//
// Run: python run_day.py 14

#include "common/cuda/binding.cuh"
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/multiprocessors.cuh"  // taught in day 2
#include "common/cuda/tensor.cuh"

// Threads per block: 8 warps. v2 to v4 keep one number per thread in shared memory.
constexpr int BLOCK = 256;
constexpr unsigned FULL_WARP = 0xffffffffu;

// Calls f(zero of x's type, zero of the sum's type): integers are summed in 64 bits, as in PyTorch.
template <typename F>
void dispatch_summable(const Tensor& x, F&& f) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return f(float{}, float{});
    case ScalarType::Double:
      return f(double{}, double{});
    case ScalarType::Int:
      return f(int32_t{}, int64_t{});
    default:
      return f(int64_t{}, int64_t{});
  }
}

bool is_integer(const Tensor& x) {
  return x.scalar_type() == ScalarType::Int || x.scalar_type() == ScalarType::Long;
}

// Checks x and allocates the scalar for its sum.
Tensor make_sum(const Tensor& x) {
  check(x, "x").on_gpu().rank(1).contiguous().dtype(
      {ScalarType::Float, ScalarType::Double, ScalarType::Int, ScalarType::Long});
  return allocate(x, {}, is_integer(x) ? ScalarType::Long : x.scalar_type());
}

// ---------------------------------------------------------------------------------------------
// v1: every thread adds to one number in global memory. atomicAdd makes read, add and write one
// indivisible step. The number is a double (or a 64-bit integer), because an fp32 number that has
// reached 2^24 does not change when 1 is added to it.

__device__ void atomic_add(double* sum, double value) {
  atomicAdd(sum, value);
}

// CUDA adds unsigned 64-bit integers; in two's complement the bits of a signed sum are the same.
__device__ void atomic_add(int64_t* sum, int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

template <typename T, typename Wide>
__global__ void sum_v1_atomics_kernel(const T* __restrict__ x, Wide* sum, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < n) atomic_add(sum, static_cast<Wide>(x[i]));
}

template <typename Wide, typename Sum>
__global__ void sum_v1_atomics_round_kernel(const Wide* wide, Sum* y) {
  *y = static_cast<Sum>(*wide);
}

Tensor sum_v1_atomics(const Tensor& x) {
  Tensor y = make_sum(x);
  const DeviceGuard guard(x);
  const ScalarType wide_type = is_integer(x) ? ScalarType::Long : ScalarType::Double;
  const Tensor wide = allocate_zeros(x, {}, wide_type);
  const int64_t n = x.numel();
  dispatch_summable(x, [&](auto zero, auto zero_sum) {
    using T = decltype(zero);
    using Sum = decltype(zero_sum);
    using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    if (n > 0) {  // a grid of no blocks is an error
      sum_v1_atomics_kernel<T, Wide>
          <<<grid_size(ceil_div<int64_t>(n, BLOCK), "x"), BLOCK, 0, current_stream(x)>>>(
              data<T>(x), mutable_data<Wide>(wide), n);
      check_launch("sum_v1_atomics");
    }
    sum_v1_atomics_round_kernel<Wide, Sum>
        <<<1, 1, 0, current_stream(x)>>>(data<Wide>(wide), mutable_data<Sum>(y));
  });
  check_launch("sum_v1_atomics_round");
  return y;
}

// ---------------------------------------------------------------------------------------------
// Shared by v2 to v5: a launch reduces n numbers to ceil(n / 256), one per block, and the next
// launch reduces those. Launches in one stream run in order, so each sees everything that the
// previous one wrote. Between the blocks of one launch there is no such barrier.

// launch(from, to, n, grid, stream) starts the kernel that reads from[0, n) and writes to[0, grid).
template <typename Launch>
Tensor sum_in_stages(const Tensor& x, const char* name, Launch launch) {
  Tensor y = make_sum(x);
  const DeviceGuard guard(x);
  const cudaStream_t stream = current_stream(x);
  dispatch_summable(x, [&](auto zero, auto zero_sum) {
    using T = decltype(zero);
    using Sum = decltype(zero_sum);
    int64_t n = x.numel();
    Tensor from = x;
    do {
      // An empty x still takes one block, which writes the empty sum, 0.
      const unsigned grid = n == 0 ? 1 : grid_size(ceil_div<int64_t>(n, BLOCK), "x");
      Tensor to = grid == 1 ? y : allocate(y, {int64_t{grid}});
      if (n == x.numel()) {
        launch(data<T>(from), mutable_data<Sum>(to), n, grid, stream);
      } else {
        launch(data<Sum>(from), mutable_data<Sum>(to), n, grid, stream);
      }
      check_launch(name);
      from = to;
      n = grid;
    } while (n > 1);
  });
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: independent additions, in a tree. Level by level, thread t adds the number at
// distance 1, 2, 4 … 128. In the first five levels every warp has both active and idle lanes
// (divergence), and takes the time of the active ones.

template <typename T, typename Sum>
__global__ void sum_v2_interleaved_kernel(const T* __restrict__ x, Sum* __restrict__ y, int64_t n) {
  __shared__ Sum partial[BLOCK];
  const int t = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + t;
  partial[t] = i < n ? static_cast<Sum>(x[i]) : Sum{0};  // beyond the end: 0 changes no sum
  for (int step = 1; step < BLOCK; step *= 2) {
    __syncthreads();  // the previous level is written before any thread reads it
    if (t % (2 * step) == 0) partial[t] += partial[t + step];
  }
  if (t == 0) y[blockIdx.x] = partial[0];
}

Tensor sum_v2_interleaved(const Tensor& x) {
  return sum_in_stages(x, "sum_v2_interleaved",
                       [](auto* from, auto* to, int64_t n, unsigned grid, cudaStream_t stream) {
                         sum_v2_interleaved_kernel<<<grid, BLOCK, 0, stream>>>(from, to, n);
                       });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the same additions, done by threads 0, 1, 2 …, so that most warps are active or
// idle as a whole. But the lanes of a warp now access words 2 · step apart. From step 4 to 16,
// eight of them fall into each bank that is used, and a bank serves one word at a time: bank
// conflicts.

template <typename T, typename Sum>
__global__ void sum_v3_strided_kernel(const T* __restrict__ x, Sum* __restrict__ y, int64_t n) {
  __shared__ Sum partial[BLOCK];
  const int t = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + t;
  partial[t] = i < n ? static_cast<Sum>(x[i]) : Sum{0};
  for (int step = 1; step < BLOCK; step *= 2) {
    __syncthreads();  // the previous level is written before any thread reads it
    const int at = 2 * step * t;
    if (at < BLOCK) partial[at] += partial[at + step];
  }
  if (t == 0) y[blockIdx.x] = partial[0];
}

Tensor sum_v3_strided(const Tensor& x) {
  return sum_in_stages(x, "sum_v3_strided",
                       [](auto* from, auto* to, int64_t n, unsigned grid, cudaStream_t stream) {
                         sum_v3_strided_kernel<<<grid, BLOCK, 0, stream>>>(from, to, n);
                       });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: the distances in descending order. Thread t adds word t + half to word t, so
// adjacent lanes access adjacent words, which lie in different banks.

template <typename T, typename Sum>
__global__ void sum_v4_sequential_kernel(const T* __restrict__ x, Sum* __restrict__ y, int64_t n) {
  __shared__ Sum partial[BLOCK];
  const int t = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + t;
  partial[t] = i < n ? static_cast<Sum>(x[i]) : Sum{0};
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    __syncthreads();  // the previous level is written before any thread reads it
    if (t < half) partial[t] += partial[t + half];
  }
  if (t == 0) y[blockIdx.x] = partial[0];
}

Tensor sum_v4_sequential(const Tensor& x) {
  return sum_in_stages(x, "sum_v4_sequential",
                       [](auto* from, auto* to, int64_t n, unsigned grid, cudaStream_t stream) {
                         sum_v4_sequential_kernel<<<grid, BLOCK, 0, stream>>>(from, to, n);
                       });
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: the tree in registers. __shfl_down_sync gives a lane the register of the lane
// `half` above it and synchronises the warp, so within a warp the tree needs neither shared memory
// nor a barrier. One number per warp crosses shared memory, with the only barrier of the block.

// The sum of the block's values, valid in thread 0. All threads of the block must call it, once.
template <typename Sum>
__device__ Sum block_sum(Sum value) {
  __shared__ Sum of_warp[BLOCK / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int half = 16; half > 0; half /= 2) value += __shfl_down_sync(FULL_WARP, value, half);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();  // the first warp waits for the eight sums
  if (warp == 0) {
    value = lane < BLOCK / 32 ? of_warp[lane] : Sum{0};
    for (int half = BLOCK / 64; half > 0; half /= 2) {
      value += __shfl_down_sync(FULL_WARP, value, half);
    }
  }
  return value;
}

template <typename T, typename Sum>
__global__ void sum_v5_warp_kernel(const T* __restrict__ x, Sum* __restrict__ y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const Sum sum = block_sum(i < n ? static_cast<Sum>(x[i]) : Sum{0});
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

Tensor sum_v5_warp(const Tensor& x) {
  return sum_in_stages(x, "sum_v5_warp",
                       [](auto* from, auto* to, int64_t n, unsigned grid, cudaStream_t stream) {
                         sum_v5_warp_kernel<<<grid, BLOCK, 0, stream>>>(from, to, n);
                       });
}

// ---------------------------------------------------------------------------------------------
// v6 against v5: a thread adds many elements in registers before the tree. The grid has as many
// blocks as the multiprocessors hold; they stride over tiles of 256 threads × 8 loads × 16 bytes =
// 32 KB. The 8 loads are issued before the first result is used. The tree runs once per block, not
// once per 256 elements, and one block in a second launch adds the sums of all blocks.

constexpr int LOADS = 8;          // 16-byte loads in flight per thread
constexpr int BLOCKS_PER_SM = 4;  // resident blocks; together 128 KB in flight

// Sums x[0, n) into y[0, gridDim.x). head: elements before the first 16-byte boundary.
template <typename T, typename Sum>
__global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)  // keeps 4 blocks resident (day 15)
    sum_v6_vectorised_kernel(const T* __restrict__ x, Sum* __restrict__ y, int64_t n, int head) {
  constexpr int N = Pack<T>::N;
  constexpr int64_t TILE = int64_t{BLOCK} * LOADS;  // packs
  const auto* packs = reinterpret_cast<const Pack<T>*>(x + head);
  const int64_t tiles = (n - head) / (TILE * N);

  Sum sum[N] = {};  // one per element of a pack: N independent chains of additions
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    Pack<T> pack[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) pack[k] = packs[tile * TILE + k * BLOCK + threadIdx.x];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      for (int i = 0; i < N; ++i) sum[i] += static_cast<Sum>(pack[k].at[i]);
    }
  }

  // The elements outside of whole tiles, one by one: the head and the rest at the end.
  const int64_t thread = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (thread < head) sum[0] += static_cast<Sum>(x[thread]);
  for (int64_t i = head + tiles * TILE * N + thread; i < n; i += int64_t{gridDim.x} * BLOCK) {
    sum[0] += static_cast<Sum>(x[i]);
  }

  for (int i = 1; i < N; ++i) sum[0] += sum[i];
  const Sum of_block = block_sum(sum[0]);
  if (threadIdx.x == 0) y[blockIdx.x] = of_block;
}

Tensor sum_v6_vectorised(const Tensor& x) {
  Tensor y = make_sum(x);
  const DeviceGuard guard(x);
  const int64_t n = x.numel();
  dispatch_summable(x, [&](auto zero, auto zero_sum) {
    using T = decltype(zero);
    using Sum = decltype(zero_sum);
    // A slice such as x[1:] can start up to 12 bytes before a 16-byte boundary.
    const int64_t before = -reinterpret_cast<uintptr_t>(data<T>(x)) % 16 / sizeof(T);
    const int head = static_cast<int>(before < n ? before : n);
    const int64_t most = int64_t{multiprocessor_count(x)} * BLOCKS_PER_SM;
    const int64_t work = ceil_div<int64_t>(n, BLOCK * LOADS * Pack<T>::N);
    const auto grid = static_cast<unsigned>(work < 1 ? 1 : work < most ? work : most);
    const Tensor partial = allocate(y, {int64_t{grid}});  // a new allocation is aligned
    sum_v6_vectorised_kernel<T, Sum>
        <<<grid, BLOCK, 0, current_stream(x)>>>(data<T>(x), mutable_data<Sum>(partial), n, head);
    check_launch("sum_v6_vectorised");
    sum_v6_vectorised_kernel<Sum, Sum>
        <<<1, BLOCK, 0, current_stream(x)>>>(data<Sum>(partial), mutable_data<Sum>(y), grid, 0);
  });
  check_launch("sum_v6_vectorised, stage two");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day14, sum_v1_atomics, "(Tensor x) -> Tensor");
RUNG(day14, sum_v2_interleaved, "(Tensor x) -> Tensor");
RUNG(day14, sum_v3_strided, "(Tensor x) -> Tensor");
RUNG(day14, sum_v4_sequential, "(Tensor x) -> Tensor");
RUNG(day14, sum_v5_warp, "(Tensor x) -> Tensor");
RUNG(day14, sum_v6_vectorised, "(Tensor x) -> Tensor");

// Kernels for test_cpu_ptx.py: the PTX wrappers of common/cuda/ptx.cuh, on the CPU and on a GPU.
#include <cuda_fp8.h>

#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------- cp.async

constexpr int kThreads = 64;

// Every thread copies pieces of Bytes to shared memory, two groups at a time under way, and writes
// each piece back where the opposite thread's was. x: `rounds` tiles of kThreads pieces.
template <int Bytes>
__global__ void copy_kernel(const char* x, char* y, int rounds, int valid) {
  constexpr int kStages = 3;
  __shared__ __align__(16) char tiles[kStages][kThreads][Bytes];
  const int t = threadIdx.x;
  auto start = [&](int round) {
    if (round < rounds) {
      const char* from = x + (static_cast<int64_t>(round) * kThreads + t) * Bytes;
      char* to = tiles[round % kStages][t];
      if (valid == Bytes) {
        ptx::cp_async<Bytes>(to, from);
      } else {
        ptx::cp_async_zero_fill<Bytes>(to, from, valid);
      }
    }
    ptx::cp_async_commit();  // an empty group at the end keeps the count right
  };
  for (int round = 0; round < kStages - 1; ++round) start(round);
  for (int round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) {
      ptx::cp_async_wait<kStages - 2>();
    } else {
      ptx::cp_async_wait_all();
    }
    __syncthreads();  // all have waited for their pieces, and no thread reads the tile before
    start(round + kStages - 1);
    char* to = y + (static_cast<int64_t>(round) * kThreads + t) * Bytes;
    for (int i = 0; i < Bytes; ++i) to[i] = tiles[round % kStages][kThreads - 1 - t][i];
  }
}

Tensor copy(Tensor x, int64_t bytes, int64_t valid) {
  check(x, "x").on_gpu().contiguous();
  Tensor y = torch::stable::empty_like(x);
  const int rounds = static_cast<int>(x.numel() / (kThreads * bytes));
  const char* from = static_cast<const char*>(x.const_data_ptr());
  char* to = static_cast<char*>(y.mutable_data_ptr());
  const auto kernel = bytes == 4 ? copy_kernel<4> : bytes == 8 ? copy_kernel<8> : copy_kernel<16>;
  kernel<<<1, kThreads, 0, current_stream(x)>>>(from, to, rounds, static_cast<int>(valid));
  check_launch("copy");
  return y;
}

// ---------------------------------------------------------------- ldmatrix

// Block b loads matrices x[b] (4 of 8x8) and writes each lane's registers: y[b][lane][matrix].
template <int Matrices, bool Transposed>
__global__ void ldmatrix_kernel(const uint16_t* x, uint32_t* y) {
  __shared__ __align__(16) uint16_t rows[32][8];
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) rows[lane][i] = x[(blockIdx.x * 32 + lane) * 8 + i];
  __syncwarp();
  uint32_t registers[Matrices];
  if constexpr (Matrices == 1 && !Transposed) ptx::ldmatrix_x1(registers, rows[lane]);
  if constexpr (Matrices == 2 && !Transposed) ptx::ldmatrix_x2(registers, rows[lane]);
  if constexpr (Matrices == 4 && !Transposed) ptx::ldmatrix_x4(registers, rows[lane]);
  if constexpr (Matrices == 1 && Transposed) ptx::ldmatrix_x1_trans(registers, rows[lane]);
  if constexpr (Matrices == 2 && Transposed) ptx::ldmatrix_x2_trans(registers, rows[lane]);
  if constexpr (Matrices == 4 && Transposed) ptx::ldmatrix_x4_trans(registers, rows[lane]);
  for (int i = 0; i < Matrices; ++i) y[(blockIdx.x * 32 + lane) * Matrices + i] = registers[i];
}

// x: int16, (blocks, 4, 8, 8) → int32, (blocks, 32, matrices).
Tensor ldmatrix(Tensor x, int64_t matrices, bool transposed) {
  check(x, "x").on_gpu().dtype({ScalarType::Short}).rank(4).contiguous();
  Tensor y = torch::stable::new_empty(x, {x.size(0), 32, matrices}, ScalarType::Int);
  const auto plain = matrices == 1   ? ldmatrix_kernel<1, false>
                     : matrices == 2 ? ldmatrix_kernel<2, false>
                                     : ldmatrix_kernel<4, false>;
  const auto trans = matrices == 1   ? ldmatrix_kernel<1, true>
                     : matrices == 2 ? ldmatrix_kernel<2, true>
                                     : ldmatrix_kernel<4, true>;
  const auto kernel = transposed ? trans : plain;
  kernel<<<grid_size(x.size(0), "x"), 32, 0, current_stream(x)>>>(
      static_cast<const uint16_t*>(x.const_data_ptr()),
      static_cast<uint32_t*>(y.mutable_data_ptr()));
  check_launch("ldmatrix");
  return y;
}

// ---------------------------------------------------------------- stmatrix, movmatrix

// Block b stores each lane's registers x[b][lane][matrix] as matrices y[b] (4 of 8x8, of which the
// first `Matrices`).
template <int Matrices, bool Transposed>
__global__ void stmatrix_kernel(const uint32_t* x, uint16_t* y) {
  __shared__ __align__(16) uint16_t rows[32][8];
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) rows[lane][i] = 0;
  __syncwarp();
  uint32_t registers[Matrices];
  for (int i = 0; i < Matrices; ++i) registers[i] = x[(blockIdx.x * 32 + lane) * Matrices + i];
  if constexpr (Matrices == 1 && !Transposed) ptx::stmatrix_x1(rows[lane], registers);
  if constexpr (Matrices == 2 && !Transposed) ptx::stmatrix_x2(rows[lane], registers);
  if constexpr (Matrices == 4 && !Transposed) ptx::stmatrix_x4(rows[lane], registers);
  if constexpr (Matrices == 1 && Transposed) ptx::stmatrix_x1_trans(rows[lane], registers);
  if constexpr (Matrices == 2 && Transposed) ptx::stmatrix_x2_trans(rows[lane], registers);
  if constexpr (Matrices == 4 && Transposed) ptx::stmatrix_x4_trans(rows[lane], registers);
  __syncwarp();
  for (int i = 0; i < 8; ++i) y[(blockIdx.x * 32 + lane) * 8 + i] = rows[lane][i];
}

// x: int32, (blocks, 32, matrices) → int16, (blocks, 4, 8, 8).
Tensor stmatrix(Tensor x, bool transposed) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).rank(3).contiguous();
  Tensor y = torch::stable::new_empty(x, {x.size(0), 4, 8, 8}, ScalarType::Short);
  const int64_t matrices = x.size(2);
  const auto plain = matrices == 1   ? stmatrix_kernel<1, false>
                     : matrices == 2 ? stmatrix_kernel<2, false>
                                     : stmatrix_kernel<4, false>;
  const auto trans = matrices == 1   ? stmatrix_kernel<1, true>
                     : matrices == 2 ? stmatrix_kernel<2, true>
                                     : stmatrix_kernel<4, true>;
  const auto kernel = transposed ? trans : plain;
  kernel<<<grid_size(x.size(0), "x"), 32, 0, current_stream(x)>>>(
      static_cast<const uint32_t*>(x.const_data_ptr()),
      static_cast<uint16_t*>(y.mutable_data_ptr()));
  check_launch("stmatrix");
  return y;
}

// x: int32, (blocks, 32): the register of each lane → the same, transposed.
__global__ void movmatrix_kernel(const uint32_t* x, uint32_t* y) {
  const int i = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  y[i] = ptx::movmatrix_trans(x[i]);
}
Tensor movmatrix(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).rank(2).contiguous();
  Tensor y = torch::stable::empty_like(x);
  movmatrix_kernel<<<grid_size(x.size(0), "x"), 32, 0, current_stream(x)>>>(
      static_cast<const uint32_t*>(x.const_data_ptr()),
      static_cast<uint32_t*>(y.mutable_data_ptr()));
  check_launch("movmatrix");
  return y;
}

// ---------------------------------------------------------------- mma

// One warp multiplies one pair of matrices: a[i] is 16xK, b[i] is 8xK (its columns are contiguous),
// c[i] and d[i] are 16x8. TA, TB: the elements, four, two or one of which fill a register.
template <typename TA, typename TB, typename Sum>
__global__ void mma_kernel(const TA* a, const TB* b, const Sum* c, Sum* d, int count) {
  constexpr int kPer = 4 / sizeof(TA), K = 8 * kPer;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  if (i >= count) return;
  auto word = [&](const auto* matrix, int row, int k) {
    return *reinterpret_cast<const uint32_t*>(matrix + (row * K + k));
  };
  const TA* my_a = a + i * 16 * K;
  const TB* my_b = b + i * 8 * K;
  const int k = t * kPer;
  uint32_t fragment_a[4] = {word(my_a, g, k), word(my_a, g + 8, k), word(my_a, g, k + 4 * kPer),
                            word(my_a, g + 8, k + 4 * kPer)};
  uint32_t fragment_b[2] = {word(my_b, g, k), word(my_b, g, k + 4 * kPer)};
  // Sums of fp16 are two to a register.
  std::conditional_t<sizeof(Sum) == 2, uint32_t[2], Sum[4]> sums;
  Sum* elements = reinterpret_cast<Sum*>(sums);
  for (int j = 0; j < 4; ++j) elements[j] = c[i * 128 + (g + j / 2 * 8) * 8 + 2 * t + j % 2];
  if constexpr (std::is_integral_v<TA>) {
    ptx::mma_m16n8k32<TA>(sums, fragment_a, fragment_b, sums);
  } else if constexpr (sizeof(TA) == 1) {
    ptx::mma_m16n8k32<TA, TB>(sums, fragment_a, fragment_b, sums);
  } else if constexpr (sizeof(TA) == 2) {
    ptx::mma_m16n8k16<TA>(sums, fragment_a, fragment_b, sums);
  } else {
    for (uint32_t& x : fragment_a) x = ptx::to_tf32(__uint_as_float(x));
    for (uint32_t& x : fragment_b) x = ptx::to_tf32(__uint_as_float(x));
    ptx::mma_m16n8k8_tf32(sums, fragment_a, fragment_b, sums);
  }
  for (int j = 0; j < 4; ++j) d[i * 128 + (g + j / 2 * 8) * 8 + 2 * t + j % 2] = elements[j];
}

template <typename TA, typename Sum, typename TB = TA>
void launch_mma(const Tensor& a, const Tensor& b, const Tensor& c, Tensor& d) {
  const int count = static_cast<int>(a.size(0));
  mma_kernel<TA, TB, Sum><<<(count + 3) / 4, 128, 0, current_stream(a)>>>(
      static_cast<const TA*>(a.const_data_ptr()), static_cast<const TB*>(b.const_data_ptr()),
      data<Sum>(c), mutable_data<Sum>(d), count);
  check_launch("mma");
}

template <typename TA, typename TB>
void launch_mma_fp8(const Tensor& a, const Tensor& b, const Tensor& c, Tensor& d) {
  if (c.scalar_type() == ScalarType::Half)
    launch_mma<TA, __half, TB>(a, b, c, d);
  else
    launch_mma<TA, float, TB>(a, b, c, d);
}

// a: (n, 16, K), b: (n, 8, K), c: (n, 16, 8) → d of c's shape and dtype. float32 means tf32.
Tensor mma(Tensor a, Tensor b, Tensor c) {
  check(a, "a").on_gpu().rank(3).contiguous();
  check(b, "b").on_gpu().rank(3).contiguous();
  check(c, "c").on_gpu().rank(3).contiguous();
  Tensor d = torch::stable::empty_like(c);
  const bool b_is_e4m3 = b.scalar_type() == ScalarType::Float8_e4m3fn;
  switch (a.scalar_type()) {
    case ScalarType::Char:
      launch_mma<int8_t, int>(a, b, c, d);
      break;
    case ScalarType::Byte:
      launch_mma<uint8_t, int>(a, b, c, d);
      break;
    case ScalarType::Float8_e4m3fn:
      b_is_e4m3 ? launch_mma_fp8<__nv_fp8_e4m3, __nv_fp8_e4m3>(a, b, c, d)
                : launch_mma_fp8<__nv_fp8_e4m3, __nv_fp8_e5m2>(a, b, c, d);
      break;
    case ScalarType::Float8_e5m2:
      b_is_e4m3 ? launch_mma_fp8<__nv_fp8_e5m2, __nv_fp8_e4m3>(a, b, c, d)
                : launch_mma_fp8<__nv_fp8_e5m2, __nv_fp8_e5m2>(a, b, c, d);
      break;
    case ScalarType::Half:
      c.scalar_type() == ScalarType::Half ? launch_mma<__half, __half>(a, b, c, d)
                                          : launch_mma<__half, float>(a, b, c, d);
      break;
    case ScalarType::BFloat16:
      launch_mma<__nv_bfloat16, float>(a, b, c, d);
      break;
    default:
      launch_mma<float, float>(a, b, c, d);
  }
  return d;
}

// y[i]: the bits of x[i] as tf32.
__global__ void tf32_kernel(const float* x, uint32_t* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = ptx::to_tf32(x[i]);
}
Tensor tf32(Tensor x) {
  Tensor y = torch::stable::new_empty(x, {x.numel()}, ScalarType::Int);
  const int n = static_cast<int>(x.numel());
  tf32_kernel<<<(n + 127) / 128, 128, 0, current_stream(x)>>>(
      data<float>(x), static_cast<uint32_t*>(y.mutable_data_ptr()), n);
  check_launch("tf32");
  return y;
}

// All of it together: c = a·b by cp.async, ldmatrix and mma. a: MxK, b: KxN, row-major; M and N are
// multiples of 64, K of 32. A block of 4 warps makes 64x64 of c, a warp 32x32.
template <typename T>
__global__ void matmul_kernel(const T* a, const T* b, float* c, int N, int K) {
  constexpr int kTile = 64, kDepth = 32, kPad = 8;  // the pad avoids bank conflicts
  __shared__ __align__(16) T as[2][kTile][kDepth + kPad];
  __shared__ __align__(16) T bs[2][kDepth][kTile + kPad];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  auto start = [&](int step) {
    if (step * kDepth < K) {
      for (int i = threadIdx.x; i < kTile * kDepth / 8; i += blockDim.x) {
        const int ar = i / (kDepth / 8), ac = i % (kDepth / 8) * 8;
        ptx::cp_async<16>(&as[step % 2][ar][ac],
                          a + static_cast<int64_t>(row + ar) * K + step * kDepth + ac);
        const int br = i / (kTile / 8), bc = i % (kTile / 8) * 8;
        ptx::cp_async<16>(&bs[step % 2][br][bc],
                          b + static_cast<int64_t>(step * kDepth + br) * N + column + bc);
      }
    }
    ptx::cp_async_commit();
  };
  float sums[2][4][4] = {};
  start(0);
  for (int step = 0; step * kDepth < K; ++step) {
    start(step + 1);
    ptx::cp_async_wait<1>();
    __syncthreads();
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t fa[2][4], fb[4][2];
      for (int i = 0; i < 2; ++i)
        ptx::ldmatrix_x4(fa[i],
                         &as[step % 2][warp / 2 * 32 + i * 16 + lane % 16][k + lane / 16 * 8]);
      for (int j = 0; j < 4; ++j)
        ptx::ldmatrix_x2_trans(fb[j], &bs[step % 2][k + lane % 16][warp % 2 * 32 + j * 8]);
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) ptx::mma_m16n8k16<T>(sums[i][j], fa[i], fb[j], sums[i][j]);
    }
    __syncthreads();  // all have read this tile before a copy replaces it
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int v = 0; v < 4; ++v) {
        const int r = row + warp / 2 * 32 + i * 16 + lane / 4 + v / 2 * 8;
        const int col = column + warp % 2 * 32 + j * 8 + lane % 4 * 2 + v % 2;
        c[static_cast<int64_t>(r) * N + col] = sums[i][j][v];
      }
}

Tensor matmul(Tensor a, Tensor b) {
  check(a, "a").on_gpu().rank(2).contiguous().dtype({ScalarType::Half, ScalarType::BFloat16});
  check(b, "b").on_gpu().rank(2).contiguous().dtype({a.scalar_type()}).size(0, a.size(1));
  Tensor c = torch::stable::new_empty(a, {a.size(0), b.size(1)}, ScalarType::Float);
  const dim3 grid(static_cast<unsigned>(b.size(1) / 64), static_cast<unsigned>(a.size(0) / 64));
  const int N = static_cast<int>(b.size(1)), K = static_cast<int>(a.size(1));
  if (a.scalar_type() == ScalarType::Half)
    matmul_kernel<<<grid, 128, 0, current_stream(a)>>>(data<__half>(a), data<__half>(b),
                                                       mutable_data<float>(c), N, K);
  else
    matmul_kernel<<<grid, 128, 0, current_stream(a)>>>(
        data<__nv_bfloat16>(a), data<__nv_bfloat16>(b), mutable_data<float>(c), N, K);
  check_launch("matmul");
  return c;
}

// ---------------------------------------------------------------- exp2

// y[i] = 2^x[i].
__global__ void exp2_kernel(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = ptx::exp2_approx(x[i]);
}
Tensor powers(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  Tensor y = torch::stable::empty_like(x);
  const int n = static_cast<int>(x.numel());
  exp2_kernel<<<(n + 127) / 128, 128, 0, current_stream(x)>>>(data<float>(x),
                                                              mutable_data<float>(y), n);
  check_launch("powers");
  return y;
}

// ---------------------------------------------------------------- log2, sqrt

// y[i] = log2(x[i]), y[n + i] the square root of x[i], and y[2n + i] its reciprocal.
__global__ void log2_kernel(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  y[i] = ptx::log2_approx(x[i]);
  y[n + i] = ptx::sqrt_approx(x[i]);
  y[2 * n + i] = ptx::rsqrt_approx(x[i]);
}
Tensor logarithms(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  const int n = static_cast<int>(x.numel());
  Tensor y = torch::stable::new_empty(x, {3, n});
  log2_kernel<<<(n + 127) / 128, 128, 0, current_stream(x)>>>(data<float>(x),
                                                              mutable_data<float>(y), n);
  check_launch("logarithms");
  return y;
}

// ---------------------------------------------------------------- redux, dp4a, lop3

// y[row][i] for 15 rows; x: int32, a multiple of 32 elements, one warp a block.
__global__ void integer_kernel(const int* x, int* y) {
  const int i = static_cast<int>(blockIdx.x * 32 + threadIdx.x),
            n = static_cast<int>(gridDim.x) * 32;
  const int v = x[i];
  const unsigned u = static_cast<unsigned>(v);
  int* out = y + i;
  auto put = [&](auto value) {
    *out = static_cast<int>(value);
    out += n;
  };
  put(ptx::redux_add(v));
  put(ptx::redux_min(v));
  put(ptx::redux_max(v));
  put(ptx::redux_min(u));
  put(ptx::redux_max(u));
  put(ptx::redux_and(u));
  put(ptx::redux_or(u));
  put(ptx::redux_xor(u));
  // Odd and even lanes apart.
  put(ptx::redux_add(u, threadIdx.x % 2 ? 0xaaaaaaaau : 0x55555555u));
  const int next = __shfl_xor_sync(0xffffffffu, v, 1);
  put(ptx::dp4a(v, next, v));
  put(ptx::dp4a(u, static_cast<unsigned>(next), u));
  put(ptx::dp4a(u, next, v));
  const unsigned mask = 0x0ff0f0f1u * (threadIdx.x + 1);
  put(ptx::lop3<0xea>(u, static_cast<unsigned>(next), mask));  // (a & b) | c
  put(ptx::lop3<0x96>(u, static_cast<unsigned>(next), mask));  // a ^ b ^ c
  put(ptx::lop3<0xd8>(u, static_cast<unsigned>(next), mask));  // c ? b : a
}
Tensor integer(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).contiguous();
  Tensor y = torch::stable::new_empty(x, {15, x.numel()}, ScalarType::Int);
  integer_kernel<<<grid_size(x.numel() / 32, "x"), 32, 0, current_stream(x)>>>(
      data<int>(x), mutable_data<int>(y));
  check_launch("integer");
  return y;
}

// ---------------------------------------------------------------- named barriers

// Warps 0 and 1 produce tiles of 64 elements of x, warps 2 and 3 consume them: y = x, each tile
// reversed. Two buffers; barriers 1 and 2 say full, 3 and 4 empty, 5 and 6 hold a role together.
__global__ void named_barrier_kernel(const int* x, int* y, int tiles) {
  __shared__ int buffers[2][64];
  const int t = threadIdx.x % 64;
  const bool producer = threadIdx.x < 64;
  for (int tile = 0; tile < tiles; ++tile) {
    const int b = tile % 2;
    if (producer) {
      if (tile >= 2) ptx::barrier_sync(3 + b, 128);
      buffers[b][t] = x[tile * 64 + t];
      ptx::barrier_arrive(1 + b, 128);
      ptx::barrier_sync(5, 64);
    } else {
      ptx::barrier_sync(1 + b, 128);
      y[tile * 64 + t] = buffers[b][63 - t];
      if (tile + 2 < tiles) ptx::barrier_arrive(3 + b, 128);
      ptx::barrier_sync(6, 64);
    }
  }
}
Tensor named_barriers(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).contiguous();
  Tensor y = torch::stable::empty_like(x);
  named_barrier_kernel<<<1, 128, 0, current_stream(x)>>>(data<int>(x), mutable_data<int>(y),
                                                         static_cast<int>(x.numel() / 64));
  check_launch("named_barriers");
  return y;
}

// ---------------------------------------------------------------- mbarrier

// The same by mbarriers. How the data come: 0 by stores, 1 by cp.async, 2 by TMA.
// How a consumer waits: by mbarrier_test in a loop if `test`, else by mbarrier_wait.
__global__ void mbarrier_kernel(const int* x, int* y, int tiles, int how, bool test) {
  __shared__ __align__(16) int buffers[2][64];
  __shared__ uint64_t full[2], empty[2];
  const int t = threadIdx.x % 64;
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; ++b) {
      ptx::mbarrier_init(&full[b], how == 2 ? 1 : 64);
      ptx::mbarrier_init(&empty[b], 64);
    }
    if (how == 2) ptx::fence_proxy_async();
  }
  __syncthreads();
  for (int tile = 0; tile < tiles; ++tile) {
    const int b = tile % 2, parity = tile / 2 % 2;
    if (threadIdx.x < 64) {
      // TMA is fed by one thread. Others that waited here could be a phase late.
      if (how == 2 && t > 0) continue;
      ptx::mbarrier_wait(&empty[b], parity ^ 1);  // a new barrier's "phase before" is complete
      if (how == 0) {
        buffers[b][t] = x[tile * 64 + t];
        ptx::mbarrier_arrive(&full[b]);
      } else if (how == 1) {
        ptx::cp_async<4>(&buffers[b][t], x + tile * 64 + t);
        ptx::cp_async_arrive(&full[b]);
      } else {
        ptx::mbarrier_arrive_expect_bytes(&full[b], 256);
        ptx::copy_bulk(buffers[b], x + tile * 64, 256, &full[b]);
      }
    } else {
      if (test) {
        while (!ptx::mbarrier_test(&full[b], parity)) {
        }
      } else {
        ptx::mbarrier_wait(&full[b], parity);
      }
      y[tile * 64 + t] = buffers[b][63 - t];
      ptx::mbarrier_arrive(&empty[b]);
    }
  }
  __syncthreads();
  if (threadIdx.x < 2) {
    ptx::mbarrier_invalidate(&full[threadIdx.x]);
    ptx::mbarrier_invalidate(&empty[threadIdx.x]);
  }
}
Tensor mbarriers(Tensor x, int64_t how, bool test) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).contiguous();
  Tensor y = torch::stable::empty_like(x);
  mbarrier_kernel<<<1, 128, 0, current_stream(x)>>>(data<int>(x), mutable_data<int>(y),
                                                    static_cast<int>(x.numel() / 64),
                                                    static_cast<int>(how), test);
  check_launch("mbarriers");
  return y;
}

// ---------------------------------------------------------------- mistakes

// One for each number; not to be run on a GPU. x and y have 64 elements.
__global__ void mistake_kernel(const float* x, float* y, int which) {
  __shared__ __align__(16) float tile[2][64];
  __shared__ uint64_t barrier;
  uint32_t registers[4] = {}, b[2] = {};
  float sums[4] = {};
  const int t = threadIdx.x;
  switch (which) {
    case 1:  // waits for one group of two, and reads the other
      ptx::cp_async<4>(&tile[0][t], x + t);
      ptx::cp_async_commit();
      ptx::cp_async<4>(&tile[1][t], x + t);
      ptx::cp_async_commit();
      ptx::cp_async_wait<1>();
      y[t] = tile[0][t] + tile[1][t];
      break;
    case 2:  // starts to replace a tile that others still read
      tile[0][t] = x[t];
      __syncthreads();
      ptx::cp_async<4>(&tile[0][t], x + 63 - t);
      ptx::cp_async_commit();
      y[t] = tile[0][63 - t];
      ptx::cp_async_wait<0>();
      break;
    case 3:  // no barrier between the copies' arrival and their use by others
      ptx::cp_async<4>(&tile[0][t], x + t);
      ptx::cp_async_wait_all();
      y[t] = tile[0][63 - t];
      break;
    case 10:
      ptx::cp_async<16>(&tile[0][t], x + t);  // line: misaligned copy
      break;
    case 11:
      ptx::cp_async<4>(y + t, x + t);  // line: copy to global memory
      break;
    case 12:
      ptx::cp_async_zero_fill<4>(&tile[0][t], x + t, 5);  // line: too many valid bytes
      break;
    case 13:
      ptx::cp_async<4>(&tile[0][t], static_cast<const float*>(nullptr));  // line: copy from null
      break;
    case 14:
      ptx::ldmatrix_x4(registers, &tile[0][t % 32]);  // line: misaligned row
      break;
    case 15:
      ptx::ldmatrix_x4(registers, x + t % 32 * 4);  // line: row in global memory
      break;
    case 18:
      ptx::stmatrix_x4(y + t % 32 * 4, registers);  // line: row stored to global memory
      break;
    case 16:
      if (t % 32 < 16) return;
      ptx::mma_m16n8k16<__half>(sums, registers, b, sums);  // line: half a warp
      break;
    case 17:
      if (t % 2)
        ptx::mma_m16n8k16<__half>(sums, registers, b, sums);
      else
        ptx::mma_m16n8k8_tf32(sums, registers, b, sums);
      break;
    case 20:
      ptx::barrier_sync(t < 32 ? 1 : 2, 64);  // line: two barriers for one
      break;
    case 21:
      ptx::barrier_sync(1, t < 32 ? 64 : 32);  // line: two numbers of threads
      break;
    case 22:
      ptx::barrier_sync(0, 64);  // line: barrier 0
      break;
    case 23:
      ptx::barrier_sync(1, 48);  // line: no whole warps
      break;
    case 24:
      ptx::barrier_sync(t % 2 + 1, 64);  // line: lanes apart
      break;
    case 30:
      ptx::mbarrier_arrive(&barrier);  // line: never initialised
      break;
    case 31:
      if (t == 0) ptx::mbarrier_init(&barrier, 65);
      __syncthreads();
      ptx::mbarrier_arrive(&barrier);
      ptx::mbarrier_wait(&barrier, 0);  // line: too few arrivals
      break;
    case 32:
      if (t == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect_bytes(&barrier, 512);
        ptx::copy_bulk(tile, x, 256, &barrier);
      }
      __syncthreads();
      ptx::mbarrier_wait(&barrier, 0);  // line: too few bytes
      break;
    case 33:
      if (t == 0) ptx::mbarrier_init(&barrier, 64);
      __syncthreads();
      while (!ptx::mbarrier_test(&barrier, 0)) {  // line: no thread arrives
      }
      break;
    case 34:
      if (t == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init();
        ptx::copy_bulk(tile, x + 1, 128, &barrier);  // line: misaligned bulk copy
      }
      break;
    case 4:  // reads first, and then waits for the phase
      if (t == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect_bytes(&barrier, 256);
        ptx::copy_bulk(tile[0], x, 256, &barrier);
      }
      __syncthreads();
      y[t] = tile[0][t];
      __syncthreads();
      ptx::mbarrier_wait(&barrier, 0);
      break;
  }
}
Tensor mistake(Tensor x, int64_t which) {
  Tensor y = torch::stable::empty_like(x);
  mistake_kernel<<<1, 64>>>(data<float>(x), mutable_data<float>(y), static_cast<int>(which));
  check_launch("mistake");
  return y;
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_ptx, m) {
  m.def("copy(Tensor x, int bytes, int valid) -> Tensor");
  m.def("ldmatrix(Tensor x, int matrices, bool transposed) -> Tensor");
  m.def("stmatrix(Tensor x, bool transposed) -> Tensor");
  m.def("movmatrix(Tensor x) -> Tensor");
  m.def("mma(Tensor a, Tensor b, Tensor c) -> Tensor");
  m.def("tf32(Tensor x) -> Tensor");
  m.def("powers(Tensor x) -> Tensor");
  m.def("logarithms(Tensor x) -> Tensor");
  m.def("matmul(Tensor a, Tensor b) -> Tensor");
  m.def("integer(Tensor x) -> Tensor");
  m.def("named_barriers(Tensor x) -> Tensor");
  m.def("mbarriers(Tensor x, int how, bool test) -> Tensor");
  m.def("mistake(Tensor x, int which) -> Tensor");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_ptx, CUDA, m) {
  m.impl("copy", TORCH_BOX(&copy));
  m.impl("ldmatrix", TORCH_BOX(&ldmatrix));
  m.impl("stmatrix", TORCH_BOX(&stmatrix));
  m.impl("movmatrix", TORCH_BOX(&movmatrix));
  m.impl("mma", TORCH_BOX(&mma));
  m.impl("tf32", TORCH_BOX(&tf32));
  m.impl("powers", TORCH_BOX(&powers));
  m.impl("logarithms", TORCH_BOX(&logarithms));
  m.impl("matmul", TORCH_BOX(&matmul));
  m.impl("integer", TORCH_BOX(&integer));
  m.impl("named_barriers", TORCH_BOX(&named_barriers));
  m.impl("mbarriers", TORCH_BOX(&mbarriers));
  m.impl("mistake", TORCH_BOX(&mistake));
}

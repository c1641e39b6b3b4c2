// Day 39: quantisation, part 2: products of int8
//
//   C[m, n] = Σ_k A[m, k] · B[n, k]       A: (M, K), B: (N, K) int8, C: (M, N) int32
//   Y[m, n] = s_a[m] · s_b[n] · C[m, n]   in bf16
//
// 4096³ takes 137 G operations on 101 MB, 1370 per byte: arithmetic is the limit.
//
//   v1 dp4a           tiles in shared memory; one instruction multiplies four pairs of bytes
//   v2 tensor_cores   mma on tiles of 128 bytes per row; cp.async brings the next two meanwhile
//   v3 scaled         the two scales in the epilogue, so that C is never stored
//
// Run: python run_day.py 39

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/mma_tiles.cuh"      // taught in day 26
#include "common/cuda/ptx/integer.cuh"    // dp4a
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12

#include <cstdint>

constexpr int THREADS = 256;
constexpr int ALIGNMENT = 16;  // bytes: rows of A and B consist of whole pieces for cp.async

// ---------------------------------------------------------------------------------------------
// v1: day 8's tiles, of words with four bytes each. A thread has 4×4 results, 16 rows and 16
// columns apart. A row of a tile is one word longer than its data, against bank conflicts.

constexpr int TILE = 64;   // rows of A, and of B, per block
constexpr int DEPTH = 16;  // words of each row at a time
constexpr int EACH = 4;    // results per thread along each side

__device__ void load_words(int (&tile)[TILE][DEPTH + 1], const int* from, int64_t first,
                           int64_t rows, int64_t word, int64_t words) {
  for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
    const int row = e / DEPTH, k = e % DEPTH;
    const bool inside = first + row < rows && word + k < words;
    tile[row][k] = inside ? from[(first + row) * words + word + k] : 0;
  }
}

__global__ void __launch_bounds__(THREADS)
    int8_v1_dp4a_kernel(const int* __restrict__ a, const int* __restrict__ b, int* __restrict__ c,
                        int64_t M, int64_t N, int64_t words) {
  __shared__ int a_tile[TILE][DEPTH + 1], b_tile[TILE][DEPTH + 1];
  const int64_t m0 = int64_t{blockIdx.y} * TILE, n0 = int64_t{blockIdx.x} * TILE;
  const int row = threadIdx.x / 16, col = threadIdx.x % 16;

  int sums[EACH][EACH] = {};
  for (int64_t word = 0; word < words; word += DEPTH) {
    load_words(a_tile, a, m0, M, word, words);
    load_words(b_tile, b, n0, N, word, words);
    __syncthreads();  // both tiles are stored before any thread reads them
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      int left[EACH], right[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        left[i] = a_tile[row + 16 * i][k];
        right[i] = b_tile[col + 16 * i][k];
      }
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) sums[i][j] = ptx::dp4a(left[i], right[j], sums[i][j]);
      }
    }
    __syncthreads();  // all threads have read the tiles before any thread overwrites them
  }
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const int64_t m = m0 + row + 16 * i, n = n0 + col + 16 * j;
      if (m < M && n < N) c[m * N + n] = sums[i][j];
    }
  }
}

void check_int8(const Tensor& a, const Tensor& b) {
  for (const Tensor* t : {&a, &b}) {
    const char* name = t == &a ? "a" : "b";
    check(*t, name).on_gpu().dtype({ScalarType::Char}).rank(2).contiguous();
    STD_TORCH_CHECK(t->size(1) % ALIGNMENT == 0, name, ": expected rows of a multiple of ",
                    ALIGNMENT, " bytes, got shape ", shape_of(*t));
    STD_TORCH_CHECK(is_aligned(*t, ALIGNMENT), name, ": expected an address that is a multiple of ",
                    ALIGNMENT, " bytes");
  }
  check(b, "b").size(1, a.size(1)).same_device(a, "a");
}

// C = A · Bᵀ in int32. A sum of more than 131,071 products may exceed 2^31 - 1; it wraps around.
Tensor int8_v1_dp4a(const Tensor& a, const Tensor& b) {
  check_int8(a, b);
  const DeviceGuard guard(a);
  const int64_t M = a.size(0), N = b.size(0), words = a.size(1) / 4;
  Tensor c = allocate(a, {M, N}, ScalarType::Int);
  if (c.numel() == 0) return c;
  const dim3 grid(grid_size(ceil_div<int64_t>(N, TILE), "b"),
                  grid_size_y(ceil_div<int64_t>(M, TILE), "a"));
  int8_v1_dp4a_kernel<<<grid, THREADS, 0, current_stream(a)>>>(data<int>(a), data<int>(b),
                                                               mutable_data<int>(c), M, N, words);
  check_launch("int8_v1_dp4a");
  return c;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: tensor cores. mma.m16n8k32 of bytes has the fragments of mma.m16n8k16 of 16-bit
// elements, with two bytes for each element: the tiles of day 26 serve, made of pairs of bytes.

constexpr int BM = 128, BN = 128, BK = 128;  // BK in bytes: a row of a tile has 8 pieces of 16
constexpr int STAGES = 3;
constexpr int WARP_ROWS = 64, WARP_COLS = 32;  // of C, per warp: 64 sums per lane

using Pair = uint16_t;  // two bytes
constexpr int PAIRS = BK / 2;

struct Stage {
  Pair a[BM * PAIRS], b[BN * PAIRS];
};

// Starts the copy of `lines` rows of BK bytes; zeros beyond `rows` rows or `length` bytes.
template <int LINES>
__device__ void load_bytes(Pair* tile, const int8_t* from, int64_t stride, int64_t rows,
                           int64_t length) {
#pragma unroll
  for (int e = threadIdx.x; e < LINES * (BK / ALIGNMENT); e += THREADS) {
    const int row = e / (BK / ALIGNMENT), piece = e % (BK / ALIGNMENT);
    const bool inside = row < rows && piece * ALIGNMENT < length;
    ptx::cp_async_zero_fill<ALIGNMENT>(tile + tiles::swizzled<PAIRS>(row, piece),
                                       inside ? from + row * stride + piece * ALIGNMENT : from,
                                       inside ? ALIGNMENT : 0);
  }
}

constexpr int M_PARTS = WARP_ROWS / 16, N_PARTS = WARP_COLS / 8;

// sums += the warp's rows of a, from m0, times its rows of b, from n0.
__device__ void multiply_stage(int (&sums)[M_PARTS][N_PARTS][4], const Stage& stage, int m0,
                               int n0) {
#pragma unroll
  for (int k = 0; k < PAIRS; k += 16) {  // 32 bytes: the depth of one mma
    uint32_t a[M_PARTS][4], b[N_PARTS / 2][2][2];
#pragma unroll
    for (int i = 0; i < M_PARTS; ++i) tiles::load_a<PAIRS>(a[i], stage.a, m0 + 16 * i, k);
#pragma unroll
    for (int j = 0; j < N_PARTS / 2; ++j) {
      tiles::load_b_transposed<PAIRS>(b[j], stage.b, n0 + 16 * j, k);
    }
#pragma unroll
    for (int i = 0; i < M_PARTS; ++i) {
#pragma unroll
      for (int j = 0; j < N_PARTS; ++j) {
        ptx::mma_m16n8k32<int8_t>(sums[i][j], a[i], b[j / 2][j % 2], sums[i][j]);
      }
    }
  }
}

// What becomes of a sum: C itself, or Y.
struct Whole {
  int* c;
  __device__ void store(int64_t place, int64_t, int64_t, int sum) const { c[place] = sum; }
};

template <typename Epilogue>
__global__ void __launch_bounds__(THREADS, 2)
    int8_v2_tensor_cores_kernel(const int8_t* __restrict__ a, const int8_t* __restrict__ b,
                                const Epilogue result, int64_t M, int64_t N, int64_t K) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  auto* stages = reinterpret_cast<Stage*>(memory);
  const int64_t m0 = int64_t{blockIdx.y} * BM, n0 = int64_t{blockIdx.x} * BN;
  const int64_t steps = ceil_div<int64_t>(K, BK);
  const auto load = [&](int64_t step) {
    if (step < steps) {
      Stage& stage = stages[step % STAGES];
      const int64_t k = step * BK;
      load_bytes<BM>(stage.a, a + m0 * K + k, K, M - m0, K - k);
      load_bytes<BN>(stage.b, b + n0 * K + k, K, N - n0, K - k);
    }
    ptx::cp_async_commit();  // also an empty group, so that each step is one
  };
  for (int step = 0; step < STAGES - 1; ++step) load(step);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int m = warp / (BN / WARP_COLS) * WARP_ROWS, n = warp % (BN / WARP_COLS) * WARP_COLS;
  int sums[M_PARTS][N_PARTS][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    ptx::cp_async_wait<STAGES - 2>();
    // The copies of all threads for this step have arrived; and all warps have read the stage of
    // the step before, which the next load overwrites.
    __syncthreads();
    load(step + STAGES - 1);
    multiply_stage(sums, stages[step % STAGES], m, n);
  }

  for (int i = 0; i < M_PARTS; ++i) {
    for (int j = 0; j < N_PARTS; ++j) {
      for (int e = 0; e < 4; ++e) {
        const int64_t row = m0 + m + 16 * i + lane / 4 + e / 2 * 8;
        const int64_t col = n0 + n + 8 * j + lane % 4 * 2 + e % 2;
        if (row < M && col < N) result.store(row * N + col, row, col, sums[i][j][e]);
      }
    }
  }
#endif
}

template <typename Epilogue>
void multiply_int8(const Tensor& a, const Tensor& b, const Epilogue& result) {
  const int64_t M = a.size(0), N = b.size(0);
  constexpr int SHARED = STAGES * sizeof(Stage);
  require_shared_memory(SHARED, "three stages of tiles");
  allow_shared(int8_v2_tensor_cores_kernel<Epilogue>, SHARED);
  const dim3 grid(grid_size(ceil_div<int64_t>(N, BN), "b"),
                  grid_size_y(ceil_div<int64_t>(M, BM), "a"));
  int8_v2_tensor_cores_kernel<<<grid, THREADS, SHARED, current_stream(a)>>>(
      data<int8_t>(a), data<int8_t>(b), result, M, N, a.size(1));
  check_launch("int8_v2_tensor_cores");
}

constexpr char NEEDS[] = "mma of int8 and cp.async";

Tensor int8_v2_tensor_cores(const Tensor& a, const Tensor& b) {
  check_int8(a, b);
  const DeviceGuard guard(a);
  require_capability(8, 0, NEEDS);
  Tensor c = allocate(a, {a.size(0), b.size(0)}, ScalarType::Int);
  if (c.numel() > 0) multiply_int8(a, b, Whole{mutable_data<int>(c)});
  return c;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the epilogue multiplies by the scales and rounds to bf16. C in int32 would be
// written and read again, 8 bytes per result beside the 2 of Y.

struct Scaled {
  __nv_bfloat16* y;
  const float *a_scale, *b_scale;
  int a_step, b_step;  // 1: a scale per row; 0: one for all
  __device__ void store(int64_t place, int64_t row, int64_t col, int sum) const {
    y[place] =
        __float2bfloat16(static_cast<float>(sum) * a_scale[row * a_step] * b_scale[col * b_step]);
  }
};

void check_scale(const Tensor& scale, const char* name, const Tensor& of) {
  check(scale, name).on_gpu().dtype({ScalarType::Float}).rank(1).contiguous().same_device(of, "a");
  STD_TORCH_CHECK(scale.size(0) == 1 || scale.size(0) == of.size(0), name, ": expected 1 or ",
                  of.size(0), " scales, got shape ", shape_of(scale));
}

// a_scale: (M) or (1) float32, b_scale: (N) or (1).
Tensor int8_v3_scaled(const Tensor& a, const Tensor& b, const Tensor& a_scale,
                      const Tensor& b_scale) {
  check_int8(a, b);
  check_scale(a_scale, "a_scale", a);
  check_scale(b_scale, "b_scale", b);
  const DeviceGuard guard(a);
  require_capability(8, 0, NEEDS);
  Tensor y = allocate(a, {a.size(0), b.size(0)}, ScalarType::BFloat16);
  if (y.numel() == 0) return y;
  multiply_int8(a, b,
                Scaled{mutable_data<__nv_bfloat16>(y), data<float>(a_scale), data<float>(b_scale),
                       a_scale.size(0) > 1, b_scale.size(0) > 1});
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day39, int8_v1_dp4a, "(Tensor a, Tensor b) -> Tensor");
RUNG(day39, int8_v2_tensor_cores, "(Tensor a, Tensor b) -> Tensor");
RUNG(day39, int8_v3_scaled, "(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor");

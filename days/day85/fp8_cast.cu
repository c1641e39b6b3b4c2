// Day 85: casts of bf16 to fp8 with a scale of past steps, and the copy that a backward pass needs
//
//   y = fp8(x · scale)           rounded to nearest; what is too large becomes the largest number
//   amax = max(amax, max |x|)    for the scale of later steps; NaN if x has one
//   y_t = yᵀ                     for the products of the backward pass
//
// x: (M, N) bf16, y: (M, N), y_t: (N, M), both e4m3 (3 bits of mantissa) or e5m2 (2); scale and
// amax: one number each, fp32, on the device. Bytes per element without y_t and with it:
//
//   v1 separate  x is read for amax, then for y; y is read for y_t         2 + 3 = 5, 2 + 3 + 2 = 7
//   v2 fused     amax and y in one pass, y is read for y_t                         3,     3 + 2 = 5
//   v3 one_pass  all three                                                                        4
//
// Run: python run_day.py 85

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/chunk.cuh"        // taught in days 35 and 42
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <cuda_fp8.h>

#include <tuple>

using Half = __nv_bfloat16;

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int N8 = 8;      // elements of a load of 16 bytes, and of 8 bytes of y
constexpr int UNROLL = 4;  // loads in flight per thread: 64 bytes
constexpr int64_t PART = BLOCK * UNROLL * N8;  // elements per block

using Eight = RawChunk<Chunk<Half, N8>>;

// Four codes, by the type's conversion: it rounds to nearest, and it saturates.
template <typename Four>
__device__ uint32_t codes4(const float* x, float scale) {
  return Four(make_float4(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale)).__x;
}

template <typename Four>
__device__ uint2 codes8(const Chunk<float, N8>& x, float scale) {
  return make_uint2(codes4<Four>(x.at, scale), codes4<Four>(x.at + 4, scale));
}

// Without their signs, the bits of floats have the order of the floats, and NaN is above infinity.
__device__ unsigned magnitude(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}

__device__ unsigned largest8(const Chunk<float, N8>& x, unsigned largest) {
#pragma unroll
  for (float one : x.at) largest = max(largest, magnitude(one));
  return largest;
}

// One atomic per block. All threads must call it; it has a barrier.
__device__ void join_amax(unsigned largest, unsigned* amax) {
  __shared__ unsigned of_warp[WARPS];
  const auto larger = [](unsigned a, unsigned b) { return max(a, b); };
  largest = warp_reduce(largest, larger);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();  // the first warp waits for all others
  if (threadIdx.x >= 32) return;
  largest = warp_reduce(threadIdx.x < WARPS ? of_warp[threadIdx.x] : 0, larger);
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

struct Cast {
  const Half* x;
  const float* scale;
  uint8_t* y;      // (M, N)
  uint8_t* y_t;    // (N, M), where there is one
  unsigned* amax;  // the bits of an fp32 number
  int64_t M, N;
  bool packs;  // whether x is a multiple of 16 bytes; for tiles, also each row of x and of y_t
};

// ---------------------------------------------------------------------------------------------
// v1: one pass over x for amax, another one for y.

// AMAX, CODES: what a pass computes. A block has elements [begin, begin + PART).
template <typename Four, bool AMAX, bool CODES>
__global__ void __launch_bounds__(BLOCK) cast_kernel(const Cast c) {
  const int64_t begin = int64_t{blockIdx.x} * PART, n = c.M * c.N;
  const float scale = CODES ? *c.scale : 0;
  unsigned largest = 0;
  if (c.packs && begin + PART <= n) {
    const int64_t first = begin / N8 + threadIdx.x;
    Eight loaded[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      loaded[u] = load_raw(reinterpret_cast<const Chunk<Half, N8>*>(c.x) + first + u * BLOCK);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const Chunk<float, N8> wide = widened(loaded[u]);
      if constexpr (AMAX) largest = largest8(wide, largest);
      if constexpr (CODES) {
        reinterpret_cast<uint2*>(c.y)[first + u * BLOCK] = codes8<Four>(wide, scale);
      }
    }
  } else {
    const int64_t end = n < begin + PART ? n : begin + PART;
#pragma unroll 1
    for (int64_t i = begin + threadIdx.x; i < end; i += BLOCK) {
      const float one[4] = {static_cast<float>(c.x[i])};
      if constexpr (AMAX) largest = max(largest, magnitude(one[0]));
      if constexpr (CODES) c.y[i] = static_cast<uint8_t>(codes4<Four>(one, scale));
    }
  }
  if constexpr (AMAX) join_amax(largest, c.amax);
}

template <typename Four, bool AMAX, bool CODES>
void launch_cast(const Cast& c, const Tensor& x, const char* name) {
  const unsigned blocks = grid_size(ceil_div(c.M * c.N, PART), "x");
  cast_kernel<Four, AMAX, CODES><<<blocks, BLOCK, 0, current_stream(x)>>>(c);
  check_launch(name);
}

// Checks, allocates y, and y_t if it is given, and calls launch(Four, cast).
template <typename F>
Tensor cast(const Tensor& x, const Tensor& scale, const Tensor& amax, int64_t mantissa, Tensor* y_t,
            F&& launch) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16}).rank(2).contiguous();
  check(scale, "scale").on_gpu().dtype({ScalarType::Float}).rank(1).size(0, 1);
  check(scale, "scale").same_device(x, "x");
  check(amax, "amax").on_gpu().like(scale, "scale");
  STD_TORCH_CHECK(mantissa == 2 || mantissa == 3, "mantissa: expected 3 (e4m3) or 2 (e5m2), got ",
                  mantissa);
  const auto type = mantissa == 3 ? ScalarType::Float8_e4m3fn : ScalarType::Float8_e5m2;
  const DeviceGuard guard(x);
  const int64_t M = x.size(0), N = x.size(1);
  Tensor y = allocate(x, {M, N}, type);
  if (y_t) *y_t = allocate(x, {N, M}, type);
  if (x.numel() == 0) return y;
  const bool packs = is_aligned(x, 16) && (!y_t || (N % N8 == 0 && M % 16 == 0));
  const Cast c{data<Half>(x),
               data<float>(scale),
               static_cast<uint8_t*>(y.mutable_data_ptr()),
               y_t ? static_cast<uint8_t*>(y_t->mutable_data_ptr()) : nullptr,
               reinterpret_cast<unsigned*>(mutable_data<float>(amax)),
               M,
               N,
               packs};
  if (mantissa == 3) {
    launch(__nv_fp8x4_e4m3{}, c);
  } else {
    launch(__nv_fp8x4_e5m2{}, c);
  }
  return y;
}

#define ARGUMENTS const Tensor &x, const Tensor &scale, const Tensor &amax, int64_t mantissa

Tensor cast_v1_separate(ARGUMENTS) {
  return cast(x, scale, amax, mantissa, nullptr, [&]<typename Four>(Four, const Cast& c) {
    launch_cast<Four, true, false>(c, x, "cast_v1_separate: amax");
    launch_cast<Four, false, true>(c, x, "cast_v1_separate");
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the pass that casts x also finds its amax. The scale is one of past steps, so it
// is known before.

Tensor cast_v2_fused(ARGUMENTS) {
  return cast(x, scale, amax, mantissa, nullptr, [&]<typename Four>(Four, const Cast& c) {
    launch_cast<Four, true, true>(c, x, "cast_v2_fused");
  });
}

// ---------------------------------------------------------------------------------------------
// The transposed copy: a block has a tile of 128 rows and 64 columns, a thread 4 rows and 8 columns
// of it. Four codes of a column become a word, which is stored in shared memory.

constexpr unsigned ROWS = 128, COLS = 64;
constexpr unsigned WORDS = ROWS / 4;    // of a column
constexpr unsigned OF_ROW = COLS / N8;  // threads that share a row

// Transposes 4 × 4 bytes: byte r of columns[j] is byte j of rows[r].
__device__ void transpose4(const uint32_t (&rows)[4], uint32_t (&columns)[4]) {
  const uint32_t upper01 = __byte_perm(rows[0], rows[1], 0x5140);  // columns 0 and 1 of rows 0, 1
  const uint32_t upper23 = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t lower01 = __byte_perm(rows[2], rows[3], 0x5140);
  const uint32_t lower23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(upper01, lower01, 0x5410);
  columns[1] = __byte_perm(upper01, lower01, 0x7632);
  columns[2] = __byte_perm(upper23, lower23, 0x5410);
  columns[3] = __byte_perm(upper23, lower23, 0x7632);
}

// Where a column of the tile has its word q, if it is one of the eight columns from 8 · columns8
// on. Neighbouring lanes write columns 8 apart, whose words would all lie in the same four banks:
// each eight columns exchange groups of four words in a way of their own.
__device__ unsigned place(unsigned columns8, unsigned q) {
  return q ^ 4 * columns8;
}

// From: Half to cast x, or uint8_t to transpose y, which has been cast.
template <typename From, typename Four>
__global__ void __launch_bounds__(BLOCK, 5)
    tile_kernel(const Cast c, const From* __restrict__ from, unsigned tiles_n) {
  constexpr bool CASTS = std::is_same_v<From, Half>;
  using Loaded = RawChunk<Chunk<From, N8>>;
  __shared__ __align__(16) uint32_t tile[COLS * WORDS];
  const int64_t m0 = int64_t{blockIdx.x / tiles_n} * ROWS;
  const int64_t n0 = int64_t{blockIdx.x % tiles_n} * COLS;
  const unsigned columns8 = threadIdx.x % OF_ROW, rows4 = threadIdx.x / OF_ROW;
  const int64_t m = m0 + 4 * rows4, n = n0 + N8 * columns8;
  const bool whole = c.packs && m0 + ROWS <= c.M && n0 + COLS <= c.N;

  Loaded loaded[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (whole) {
      loaded[r] = load_raw(reinterpret_cast<const Chunk<From, N8>*>(from + (m + r) * c.N + n));
      continue;
    }
    Chunk<From, N8> row{};  // zeros beyond the edge, which no amax notices
#pragma unroll
    for (int j = 0; j < N8; ++j) {
      if (m + r < c.M && n + j < c.N) row.at[j] = from[(m + r) * c.N + n + j];
    }
    memcpy(&loaded[r], &row, sizeof row);
  }

  uint32_t codes[2][4];  // the left and the right four of each row
  unsigned largest = 0;
  const float scale = CASTS ? *c.scale : 0;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    uint2 both;
    if constexpr (CASTS) {
      const Chunk<float, N8> wide = widened(loaded[r]);
      largest = largest8(wide, largest);
      both = codes8<Four>(wide, scale);
      uint8_t* to = c.y + (m + r) * c.N + n;
      if (whole) {
        *reinterpret_cast<uint2*>(to) = both;
      } else {
#pragma unroll 1
        for (int j = 0; j < N8; ++j) {
          if (m + r < c.M && n + j < c.N) to[j] = (j < 4 ? both.x : both.y) >> j % 4 * 8 & 0xff;
        }
      }
    } else {
      memcpy(&both, &loaded[r], sizeof both);
    }
    codes[0][r] = both.x;
    codes[1][r] = both.y;
  }
  uint32_t* const mine = &tile[N8 * columns8 * WORDS + place(columns8, rows4)];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[4];
    transpose4(codes[half], words);
#pragma unroll
    for (int j = 0; j < 4; ++j) mine[(4 * half + j) * WORDS] = words[j];
  }
  // The barrier of either: the tile is complete before any thread reads it.
  if constexpr (CASTS) {
    join_amax(largest, c.amax);
  } else {
    __syncthreads();
  }

#pragma unroll
  for (unsigned k = 0; k < COLS * WORDS / 4 / BLOCK; ++k) {
    const unsigned i = threadIdx.x + k * BLOCK;
    const unsigned column = i / (WORDS / 4), q = i % (WORDS / 4) * 4;  // 16 rows of one column
    const uint32_t* words = &tile[column * WORDS + place(column / N8, q)];
    uint8_t* to = c.y_t + (n0 + column) * c.M + m0 + 4 * q;
    if (whole) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(words);
    } else if (n0 + column < c.N) {
#pragma unroll 1
      for (unsigned b = 0; b < 16 && m0 + 4 * q + b < c.M; ++b) {
        to[b] = reinterpret_cast<const uint8_t*>(words)[b];
      }
    }
  }
}

template <typename From, typename Four>
void launch_tiles(const Cast& c, const From* from, const Tensor& x, const char* name) {
  const int64_t tiles_n = ceil_div<int64_t>(c.N, COLS);
  const unsigned blocks = grid_size(ceil_div<int64_t>(c.M, ROWS) * tiles_n, "x");
  tile_kernel<From, Four>
      <<<blocks, BLOCK, 0, current_stream(x)>>>(c, from, static_cast<unsigned>(tiles_n));
  check_launch(name);
}

using Both = std::tuple<Tensor, Tensor>;  // y, y_t

// v1: amax, y and y_t, each in a pass of its own.
Both cast_transpose_v1_separate(ARGUMENTS) {
  Tensor y_t;
  Tensor y = cast(x, scale, amax, mantissa, &y_t, [&]<typename Four>(Four, const Cast& c) {
    launch_cast<Four, true, false>(c, x, "cast_transpose_v1_separate: amax");
    launch_cast<Four, false, true>(c, x, "cast_transpose_v1_separate: cast");
    launch_tiles<uint8_t, Four>(c, c.y, x, "cast_transpose_v1_separate");
  });
  return {y, y_t};
}

// v2 against v1: amax and y in one pass.
Both cast_transpose_v2_fused(ARGUMENTS) {
  Tensor y_t;
  Tensor y = cast(x, scale, amax, mantissa, &y_t, [&]<typename Four>(Four, const Cast& c) {
    launch_cast<Four, true, true>(c, x, "cast_transpose_v2_fused: cast");
    launch_tiles<uint8_t, Four>(c, c.y, x, "cast_transpose_v2_fused");
  });
  return {y, y_t};
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the tile kernel itself casts x and finds amax, so that nothing is read twice.

Both cast_transpose_v3_one_pass(ARGUMENTS) {
  Tensor y_t;
  Tensor y = cast(x, scale, amax, mantissa, &y_t, [&]<typename Four>(Four, const Cast& c) {
    launch_tiles<Half, Four>(c, c.x, x, "cast_transpose_v3_one_pass");
  });
  return {y, y_t};
}

// ---------------------------------------------------------------------------------------------

#define SCHEMA "(Tensor x, Tensor scale, Tensor(a!) amax, int mantissa) -> "

RUNG(day85, cast_v1_separate, SCHEMA "Tensor");
RUNG(day85, cast_v2_fused, SCHEMA "Tensor");
RUNG(day85, cast_transpose_v1_separate, SCHEMA "(Tensor, Tensor)");
RUNG(day85, cast_transpose_v2_fused, SCHEMA "(Tensor, Tensor)");
RUNG(day85, cast_transpose_v3_one_pass, SCHEMA "(Tensor, Tensor)");

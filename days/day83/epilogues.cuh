// Day 83: day 56's ping-pong kernel with epilogues of a feed-forward network.
//
// A consumer has the sums of 128 rows × 192 columns in its registers, and finishes them while the
// other consumer multiplies. Where wgmma leaves the sums: see each_pair.
#pragma once

#include "days/day56/persistent.cuh"  // taught in day 56
#include "days/day83/elements.cuh"

constexpr int STAGES = 4, GROUP_OF_TILES = 8;  // as day 56's v6
constexpr int HALVES = 2, COUNT = 96;          // of 64 rows; sums per thread and half

template <typename T, Major MAJOR>
using NetworkTile = Tile<T, HALVES * ROWS, 2 * COUNT, MAJOR>;

using Sums = float[HALVES][COUNT];

template <typename T>
using Pair = Chunk<T, 2>;  // two neighbouring columns, loaded at once
template <typename T>
__device__ __forceinline__ float2 pair_at(const T* from) {
  const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(from);
  return make_float2(static_cast<float>(pair.at[0]), static_cast<float>(pair.at[1]));
}

// The first row and column of the tile at (m, n) that this thread has sums of.
struct Place {
  int row, col;
  __device__ __forceinline__ Place(int m, int n)
      : row(m + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4),
        col(n + threadIdx.x % 4 * 2) {}
};

// Calls f(row, col, left, right) for this thread's sums of columns [8j, 8j + 8) of the tile at
// (m, n), as far as they exist: those of the columns col and col + 1 in four rows.
template <typename T, typename F>
__device__ __forceinline__ void each_pair(Sums& sums, const Gemm<T>& p, int m, int n, int j, F f) {
  const Place at(m, n);
  const int col = at.col + 8 * j;
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = at.row + h * ROWS + r * 8;
      if (row < p.M && col < p.N) {
        f(row, col, sums[h][4 * j + 2 * r], sums[h][4 * j + 2 * r + 1]);
      }
    }
  }
}

template <typename Box>
__device__ __forceinline__ void store_tile(const Sums& sums, const TensorMap& to, int m, int n,
                                           Box& outbox) {
#pragma unroll
  for (int h = 0; h < HALVES; ++h) outbox.store(sums[h], to, m + h * ROWS, n);
}

// Brings the tile at (m, n) of a map of parts into L2.
__device__ __forceinline__ void prefetch_tile(const TensorMap& map, int m, int n) {
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
#pragma unroll
    for (int part = 0; part < 2 * COUNT / PART; ++part) {
      ptx::prefetch_tensor(map, {n + part * PART, m + h * ROWS});
    }
  }
}

template <typename T, typename F>
__device__ __forceinline__ void add_bias(Sums& sums, const Gemm<T>& p, int m, int n, F bias_at) {
#pragma unroll
  for (int j = 0; j < COUNT / 4; ++j) {
    const int col = Place(m, n).col + 8 * j;
    const float2 b = col < p.N ? bias_at(col) : float2{};
    each_pair(sums, p, m, n, j, [&](int, int, float& left, float& right) {
      left += b.x;
      right += b.y;
    });
  }
}

// The kernel: an Epilogue finishes tiles, and names what the producer is to prefetch for one.
template <typename P, typename Epilogue>
__global__ void __launch_bounds__(THREADS, 1)
    product_kernel(const Gemm<typename P::T> p, const __grid_constant__ TensorMap a,
                   const __grid_constant__ TensorMap b, const __grid_constant__ Epilogue epilogue) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  run_roles<P, true, 1, STAGES, GROUP_OF_TILES>(
      p, a, b,
      [&](Sums& sums, int m, int n, int, auto& outbox) { epilogue.finish(sums, p, m, n, outbox); },
      [&](int m, int n) { epilogue.prefetch(m, n); });
#endif
}

// epilogue(a · b), a: (M, K), b: (K, N), or stored as (N, K) where MAJOR is kK.
template <typename T, Major MAJOR, typename Epilogue>
void launch_product(const Tensor& a, const Tensor& b, const Epilogue& epilogue) {
  using P = NetworkTile<T, MAJOR>;
  constexpr size_t BYTES = SHARED<P, STAGES>;
  require_shared_memory(BYTES, "four pairs of tiles");
  const int64_t M = a.size(0), K = a.size(1), N = b.size(MAJOR == Major::kK ? 0 : 1);
  const Gemm<T> p{data<T>(a), data<T>(b), nullptr, nullptr, M, N, K, NONE};
  const int64_t tiles = ceil_div<int64_t>(M, P::BM) * ceil_div<int64_t>(N, P::BN);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessor_count(a)));
  const auto kernel = product_kernel<P, Epilogue>;
  allow_shared(kernel, BYTES);
  kernel<<<grid, THREADS, BYTES, current_stream(a)>>>(p, map_of_a<P>(p), map_of_b<P>(p), epilogue);
  check_launch("product_kernel");
}

// For the boxes that an epilogue stores and the producer prefetches.
template <typename T>
TensorMap map_of_parts(const Tensor& t) {
  return tile_map(data<T>(t), t.size(0), t.size(1), ROWS, PART);
}

// Whether TMA takes all of these 16-bit matrices: aligned, rows of a multiple of 16 bytes.
inline bool fit_tiles(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors) {
    const int64_t cols = t->size(t->dim() - 1);
    if (t->numel() == 0 || cols % 8 != 0 || !is_aligned(*t, 16)) return false;
    if (t->size(0) > INT32_MAX - 256 || cols > INT32_MAX - 256) return false;
  }
  return true;
}

// Calls f with a value of the C++ type of t's dtype, of 16 bits.
template <typename F>
void dispatch_half(const Tensor& t, F&& f) {
  if (t.scalar_type() == ScalarType::Half) return f(__half{});
  f(__nv_bfloat16{});
}

// ---------------------------------------------------------------------------------------------
// The mask, where wgmma leaves the sums: 8 columns of a row are in the four lanes of a quad, two
// in each, and need the four words of a group, one in each lane.

// Lane q of each quad passes row q of a 4 × 4 matrix, and gets its column q.
__device__ __forceinline__ uint4 transposed_in_quad(uint4 row) {
  const bool lower = (threadIdx.x & 2) != 0, odd = (threadIdx.x & 1) != 0;
  // Lanes 0 and 1 pass their right halves to lanes 2 and 3, for the left halves of those.
  const uint32_t x = __shfl_xor_sync(0xffffffff, lower ? row.x : row.z, 2);
  const uint32_t y = __shfl_xor_sync(0xffffffff, lower ? row.y : row.w, 2);
  row = lower ? make_uint4(x, y, row.z, row.w) : make_uint4(row.x, row.y, x, y);
  // Within each 2 × 2 block, the even lane passes its right element for the odd lane's left one.
  const uint32_t first = __shfl_xor_sync(0xffffffff, odd ? row.x : row.y, 1);
  const uint32_t second = __shfl_xor_sync(0xffffffff, odd ? row.z : row.w, 1);
  return odd ? make_uint4(first, row.y, second, row.w) : make_uint4(row.x, first, row.z, second);
}

// out = residual + dropout(sums + bias), or residual + sums without DROPS.
template <typename T, bool DROPS>
struct AddDropped {
  TensorMap out, residuals;
  const T *residual, *bias;
  const State* state;
  Drop drop;

  __device__ __forceinline__ void prefetch(int m, int n) const { prefetch_tile(residuals, m, n); }

  template <typename Box>
  __device__ __forceinline__ void finish(Sums& sums, const Gemm<T>& p, int m, int n,
                                         Box& outbox) const {
    if constexpr (DROPS) drop_sums(sums, p, m, n);
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
      each_pair(sums, p, m, n, j, [&](int row, int col, float& left, float& right) {
        const float2 r = pair_at(residual + row * p.N + col);
        left += r.x;
        right += r.y;
      });
    }
    store_tile(sums, out, m, n, outbox);
  }

  // Of 32 columns of a row, lane q draws the words of columns [8q, 8q + 8).
  __device__ __forceinline__ void drop_sums(Sums& sums, const Gemm<T>& p, int m, int n) const {
    add_bias(sums, p, m, n, [&](int col) { return pair_at(bias + col); });
    const Place at(m, n);
    const State from = *state;
    const int64_t first = (at.row * p.N + n) / dropout::GROUP + threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int j = 0; j < COUNT / 4; j += 4) {
          const int64_t group = first + (h * ROWS + r * 8) * p.N / dropout::GROUP + j;
          const uint4 mine = transposed_in_quad(dropout::words_of(from, group));
          const uint32_t words[] = {mine.x, mine.y, mine.z, mine.w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            float* const pair = &sums[h][4 * (j + k) + 2 * r];
            pair[0] = dropped(pair[0], drop.keeps_low(words[k]), drop.scale);
            pair[1] = dropped(pair[1], drop.keeps_high(words[k]), drop.scale);
          }
        }
      }
    }
  }
};

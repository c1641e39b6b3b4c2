// Day 83: day 56's ping-pong kernel with epilogues of a feed-forward network.
//
// A consumer has the sums of 128 rows × 192 columns in its registers, and finishes them while the
// other consumer multiplies. It does so in parts of 64 × 64, which are stored one by one: what an
// epilogue computes for a part ends with its store, so it needs few registers beside the sums.
#pragma once

#include "days/day56/further/persistent.cuh"  // taught in day 56
#include "days/day83/elements.cuh"

constexpr int STAGES = 4, GROUP_OF_TILES = 8;  // as day 56's v5
constexpr int HALVES = 2;                      // of a tile: 64 rows each

// A tile has COLUMNS parts of 64 columns. With 3, it belongs to one consumer, and the other one has
// another tile. With 4, the sums are too many for one consumer: each has one half of the rows, and
// both finish at the same time.
constexpr int NARROW = 3, WIDE = 4;

template <typename T, Major MAJOR, int COLUMNS>
using NetworkTile = Tile<T, HALVES * ROWS, COLUMNS * PART, MAJOR>;

// A thread's sums of one or two halves × 64 columns, as wgmma leaves them: pairs of columns.
constexpr int PAIRS = 8;
template <int H>
struct Strip {
  float* halves[H];  // 4 · PAIRS sums each
};

// The first row and column that this thread has of a part at (m, n).
struct Place {
  int row, col;
  __device__ __forceinline__ Place(int m, int n)
      : row(m + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4),
        col(n + threadIdx.x % 4 * 2) {}
};

// Two neighbouring columns in 16 bits each, as they lie in memory.
template <typename T>
__device__ __forceinline__ float2 floats_of(uint32_t pair) {
  T both[2];
  memcpy(both, &pair, sizeof both);
  return make_float2(static_cast<float>(both[0]), static_cast<float>(both[1]));
}

// Those elements of a matrix that lie where this thread's sums of a part at (m, n) do, or 0. All
// loads are issued before a result is needed: the epilogue waits for memory once per part.
template <typename T>
struct PartOf {
  uint32_t words[PAIRS][2];

  __device__ __forceinline__ PartOf(const T* from, const Gemm<T>& p, int m, int n) {
    const Place at(m, n);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = at.row + 8 * r;
      const auto* const first = reinterpret_cast<const uint32_t*>(from + row * p.N + at.col);
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
        words[j][r] = row < p.M && at.col + 8 * j < p.N ? first[4 * j] : 0;
      }
    }
  }

  // Calls f(elements, left, right) for all pairs of sums.
  template <typename F>
  __device__ __forceinline__ void each_pair(float* sums, F f) const {
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* const pair = sums + 4 * j + 2 * r;
        f(floats_of<T>(words[j][r]), pair[0], pair[1]);
      }
    }
  }

  __device__ __forceinline__ void add_to(float* sums) const {
    each_pair(sums, [](float2 element, float& left, float& right) {
      left += element.x;
      right += element.y;
    });
  }
};

template <typename T>
__device__ __forceinline__ void add_bias(float* sums, const T* bias, const Gemm<T>& p, int n) {
  const int col = Place(0, n).col;
  uint32_t words[PAIRS];
#pragma unroll
  for (int j = 0; j < PAIRS; ++j) {
    const auto* const first = reinterpret_cast<const uint32_t*>(bias + col);
    words[j] = col + 8 * j < p.N ? first[4 * j] : 0;
  }
#pragma unroll
  for (int i = 0; i < 4 * PAIRS; ++i) {
    const float2 b = floats_of<T>(words[i / 4]);
    sums[i] += i % 2 == 0 ? b.x : b.y;
  }
}

// Brings a tile into L2, by the map of its parts.
template <int COLUMNS>
__device__ __forceinline__ void prefetch_tile(const TensorMap& map, int m, int n) {
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) ptx::prefetch_tensor(map, {n + i * PART, m + h * ROWS});
  }
}

// An Epilogue finishes strips, and prefetches for a tile whose products are to begin.
template <typename P, int COLUMNS, typename Epilogue>
__global__ void __launch_bounds__(THREADS, 1)
    product_kernel(const Gemm<typename P::T> p, const __grid_constant__ TensorMap a,
                   const __grid_constant__ TensorMap b, const __grid_constant__ Epilogue epilogue) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const auto finish = [&](auto& sums, int m, int n, int, auto& outbox) {
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
      if constexpr (COLUMNS == WIDE) {
        epilogue.finish(Strip<1>{&sums[0][i * 4 * PAIRS]}, p, m, n + i * PART, outbox);
      } else {
        epilogue.finish(Strip<2>{&sums[0][i * 4 * PAIRS], &sums[1][i * 4 * PAIRS]}, p, m,
                        n + i * PART, outbox);
      }
    }
  };
  run_roles<P, COLUMNS == NARROW, 1, STAGES, GROUP_OF_TILES>(
      p, a, b, finish, [&](int m, int n) { epilogue.template prefetch<COLUMNS>(m, n); });
#endif
}

// epilogue(a · b), a: (M, K), b: (K, N), or stored as (N, K) where MAJOR is kK. On the GPU of `on`.
template <typename T, Major MAJOR, int COLUMNS = NARROW, typename Epilogue>
void launch_product(const Tensor& on, const T* a, const T* b, int64_t M, int64_t N, int64_t K,
                    const Epilogue& epilogue) {
  using P = NetworkTile<T, MAJOR, COLUMNS>;
  constexpr size_t BYTES = SHARED<P, STAGES>;
  require_shared_memory(BYTES, "four pairs of tiles");
  const Gemm<T> p{a, b, nullptr, nullptr, M, N, K, NONE};
  const int64_t tiles = ceil_div<int64_t>(M, P::BM) * ceil_div<int64_t>(N, P::BN);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessor_count(on)));
  const auto kernel = product_kernel<P, COLUMNS, Epilogue>;
  allow_shared(kernel, BYTES);
  kernel<<<grid, THREADS, BYTES, current_stream(on)>>>(p, map_of_a<P>(p), map_of_b<P>(p), epilogue);
  check_launch("product_kernel");
}

template <typename T, Major MAJOR, int COLUMNS = NARROW, typename Epilogue>
void launch_product(const Tensor& a, const Tensor& b, const Epilogue& epilogue) {
  launch_product<T, MAJOR, COLUMNS>(a, data<T>(a), data<T>(b), a.size(0),
                                    b.size(MAJOR == Major::kK ? 0 : 1), a.size(1), epilogue);
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
// Epilogues without a mask.

// hidden = gelu(sums + bias); pre, what GELU was applied to, is stored only for a backward pass.
template <typename T, bool KEEP>
struct BiasGelu {
  TensorMap pre, hidden;
  const T* bias;

  template <int>
  __device__ __forceinline__ void prefetch(int, int) const {}

  template <int H, typename Outbox>
  __device__ __forceinline__ void finish(const Strip<H>& strip, const Gemm<T>& p, int m, int n,
                                         Outbox& outbox) const {
#pragma unroll
    for (float* sums : strip.halves) {
      add_bias(sums, bias, p, n);
      if constexpr (KEEP) outbox.store(sums, pre, m, n);
#pragma unroll
      for (int i = 0; i < 4 * PAIRS; ++i) sums[i] = gelu<T>(sums[i]);
      outbox.store(sums, hidden, m, n);
      m += ROWS;
    }
  }
};

// out = residual + sums + bias
template <typename T>
struct BiasResidual {
  TensorMap out, residuals;
  const T *residual, *bias;

  template <int COLUMNS>
  __device__ __forceinline__ void prefetch(int m, int n) const {
    prefetch_tile<COLUMNS>(residuals, m, n);
  }

  template <int H, typename Outbox>
  __device__ __forceinline__ void finish(const Strip<H>& strip, const Gemm<T>& p, int m, int n,
                                         Outbox& outbox) const {
#pragma unroll
    for (float* sums : strip.halves) {
      const PartOf<T> added(residual, p, m, n);
      add_bias(sums, bias, p, n);
      added.add_to(sums);
      outbox.store(sums, out, m, n);
      m += ROWS;
    }
  }
};

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

  template <int COLUMNS>
  __device__ __forceinline__ void prefetch(int m, int n) const {
    prefetch_tile<COLUMNS>(residuals, m, n);
  }

  template <int H, typename Outbox>
  __device__ __forceinline__ void finish(const Strip<H>& strip, const Gemm<T>& p, int m, int n,
                                         Outbox& outbox) const {
#pragma unroll
    for (float* sums : strip.halves) {
      const PartOf<T> added(residual, p, m, n);
      if constexpr (DROPS) {
        add_bias(sums, bias, p, n);
        mask(sums, p, m, n);
      }
      added.add_to(sums);
      outbox.store(sums, out, m, n);
      m += ROWS;
    }
  }

  // Of 32 columns of a row, lane q draws the words of columns [8q, 8q + 8).
  __device__ __forceinline__ void mask(float* sums, const Gemm<T>& p, int m, int n) const {
    const State from = *state;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = Place(m, n).row + 8 * r;
#pragma unroll
      for (int j = 0; j < PAIRS; j += 4) {
        const int64_t group = (row * p.N + n) / dropout::GROUP + j + threadIdx.x % 4;
        const uint4 mine = transposed_in_quad(dropout::words_of(from, group));
        const uint32_t words[] = {mine.x, mine.y, mine.z, mine.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float* const pair = sums + 4 * (j + k) + 2 * r;
          pair[0] = dropped(pair[0], drop.keeps_low(words[k]), drop.scale);
          pair[1] = dropped(pair[1], drop.keeps_high(words[k]), drop.scale);
        }
      }
    }
  }
};

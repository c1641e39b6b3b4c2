// Day 35: the backward pass of layer norm in one kernel
//
//   n = (x - mean) · rstd      g = gy · weight      gx = rstd · (g - mean(g) - n · mean(g · n))
//   gw[c] = sum over the rows of gy · n             gb[c] = sum over the rows of gy
//
// gy, x, gx: (rows, cols) in fp32, fp16 or bf16; mean, rstd: (rows,) in fp32, stored by the forward
// pass; weight, gw, gb: (cols,). Bytes: 3 · rows · cols · sizeof(T). Operations: 14 per element.
//
//   v1 two_kernels  gx by one block per row, gw and gb by one block per 32 columns: 5 passes
//   v2 one_kernel   a block takes many rows and keeps gw and gb in registers: 3 passes
//   v3 pipelined    the next rows are copied to shared memory while this one is computed
//
// Run: python run_day.py 35

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/pack.cuh"             // taught in day 2
#include "common/cuda/ptx.cuh"              // cp.async: day 20
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"      // taught in day 23

#include <cooperative_groups.h>
#include <tuple>

constexpr int BLOCK = 512;
constexpr int WARPS = BLOCK / 32;
constexpr int PACKS = 2;     // of 16 bytes per thread: rows of up to 16 KB
constexpr int MIN_ROWS = 8;  // per team, where there are few rows: each block stores 2 · cols sums

// ---------------------------------------------------------------------------------------------
// v1: gx needs sums over rows; gw and gb need sums over columns. One kernel for each kind.

// The sums of a pair over the warps of a team, in all its threads. Each warp writes its own sum to
// `pairs`, which has a place for each warp of the block. All threads of the block must call it.
__device__ inline float2 team_sum(float2 value, float2* pairs, int first_warp, int warps) {
  value = {warp_sum(value.x), warp_sum(value.y)};
  if (threadIdx.x % 32 == 0) pairs[threadIdx.x / 32] = value;
  __syncthreads();  // every warp waits for the sums of the other warps
  value = {0, 0};
  for (int w = first_warp; w < first_warp + warps; ++w) {
    value.x += pairs[w].x;
    value.y += pairs[w].y;
  }
  return value;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    layer_norm_gx_kernel(const T* __restrict__ gy, const T* __restrict__ x,
                         const float* __restrict__ mean, const float* __restrict__ rstd,
                         const T* __restrict__ weight, T* __restrict__ gx, int64_t cols) {
  __shared__ float2 pairs[WARPS];
  const int64_t row = blockIdx.x;
  const T *gy_row = gy + row * cols, *x_row = x + row * cols;
  const auto each = [&](auto f) {
    for (int64_t c = threadIdx.x; c < cols; c += BLOCK) {
      f(c, static_cast<float>(gy_row[c]) * static_cast<float>(weight[c]),
        (static_cast<float>(x_row[c]) - mean[row]) * rstd[row]);
    }
  };
  float2 sums{0, 0};
  each([&](int64_t, float g, float n) {
    sums.x += g;
    sums.y += g * n;
  });
  sums = team_sum(sums, pairs, 0, WARPS);
  const float g_mean = sums.x / cols, gn_mean = sums.y / cols;
  each([&](int64_t c, float g, float n) {
    gx[row * cols + c] = static_cast<T>(rstd[row] * (g - g_mean - n * gn_mean));
  });
}

// A block of 32 × 16 threads sums 32 columns; thread row y takes the rows y, y + 16 …
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    layer_norm_gw_gb_kernel(const T* __restrict__ gy, const T* __restrict__ x,
                            const float* __restrict__ mean, const float* __restrict__ rstd,
                            T* __restrict__ gw, T* __restrict__ gb, int64_t rows, int64_t cols) {
  __shared__ float2 shared[WARPS][32];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float2 sums{0, 0};
  for (int64_t r = threadIdx.y; r < rows && c < cols; r += WARPS) {
    const float g = static_cast<float>(gy[r * cols + c]);
    sums.x += g * (static_cast<float>(x[r * cols + c]) - mean[r]) * rstd[r];
    sums.y += g;
  }
  shared[threadIdx.y][threadIdx.x] = sums;
  __syncthreads();  // the first row of threads waits for the sums of all rows
  if (threadIdx.y > 0 || c >= cols) return;
  for (int y = 1; y < WARPS; ++y) {
    sums.x += shared[y][threadIdx.x].x;
    sums.y += shared[y][threadIdx.x].y;
  }
  gw[c] = static_cast<T>(sums.x);
  gb[c] = static_cast<T>(sums.y);
}

void check_arguments(const Tensor& gy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                     const Tensor& weight) {
  check(gy, "gy").on_gpu().floating().rank(2).contiguous();
  check(x, "x").on_gpu().like(gy, "gy").contiguous();
  check(mean, "mean").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(mean, "mean").same_device(gy, "gy").size(0, gy.size(0));
  check(rstd, "rstd").on_gpu().like(mean, "mean").contiguous();
  check(weight, "weight").on_gpu().dtype({gy.scalar_type()}).rank(1).contiguous();
  check(weight, "weight").same_device(gy, "gy").size(0, gy.size(1));
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // gx, gw, gb

Gradients layer_norm_backward_v1_two_kernels(const Tensor& gy, const Tensor& x, const Tensor& mean,
                                             const Tensor& rstd, const Tensor& weight) {
  check_arguments(gy, x, mean, rstd, weight);
  const DeviceGuard guard(gy);
  const int64_t rows = gy.size(0), cols = gy.size(1);
  Tensor gx = allocate_like(x);
  Tensor gw = allocate_like(weight), gb = allocate_like(weight);
  if (cols == 0) return {gx, gw, gb};
  dispatch_floating(x, [&](auto zero) {
    using T = decltype(zero);
    if (rows > 0) {
      layer_norm_gx_kernel<T><<<grid_size(rows, "gy"), BLOCK, 0, current_stream(x)>>>(
          data<T>(gy), data<T>(x), data<float>(mean), data<float>(rstd), data<T>(weight),
          mutable_data<T>(gx), cols);
    }
    layer_norm_gw_gb_kernel<T>
        <<<grid_size(ceil_div<int64_t>(cols, 32), "gy"), dim3(32, WARPS), 0, current_stream(x)>>>(
            data<T>(gy), data<T>(x), data<float>(mean), data<float>(rstd), mutable_data<T>(gw),
            mutable_data<T>(gb), rows, cols);
  });
  check_launch("layer_norm_backward_v1_two_kernels");
  return {gx, gw, gb};
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a team of warps holds a row, PACKS packs per thread, and gw and gb are summed from
// the same registers. A thread has the same columns of every row that its team takes. At the end
// each block stores its sums, all blocks wait for each other, and then add them up together.

struct Pointers {
  const void *gy, *x, *weight;
  const float *mean, *rstd;
  void *gx, *gw, *gb;
  float* partial;  // (blocks, 2, cols): gw and gb of the rows of each block
};

// Where a thread works: packs first, first + width … of the rows row, row + step … A block has
// `teams` teams of `width` threads, which is a multiple of 32.
struct Place {
  int packs, width, teams, first, mine;  // packs: of a row; mine: of those, this thread's
  int64_t rows, row, step;

  __device__ Place(int64_t rows, int packs, int width)
      : packs(packs),
        width(width),
        teams(blockDim.x / width),
        first(threadIdx.x % width),
        mine((packs - first + width - 1) / width),
        rows(rows),
        row(int64_t{blockIdx.x} * teams + threadIdx.x / width),
        step(int64_t{gridDim.x} * teams) {}

  // Whether any team of the block has a row: the same for all its threads, which share barriers.
  __device__ bool goes_on() const { return row - threadIdx.x / width < rows; }
  __device__ int count() const { return row < rows ? mine : 0; }
  __device__ int64_t at(int64_t of_row, int k) const { return of_row * packs + first + k * width; }
};

// A thread's packs of the weight, and its sums of gw and gb.
template <typename T>
struct Columns {
  static constexpr int N = Pack<T>::N;
  Pack<T> weight[PACKS];
  float gw[PACKS][N] = {}, gb[PACKS][N] = {};

  __device__ Columns(const Pack<T>* from, const Place& place) {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k < place.mine) weight[k] = from[place.at(0, k)];
    }
  }

  // Stores gx of the place's row, and adds to gw and gb. All threads of the block must call it;
  // those that have no row only wait at the barrier.
  __device__ void add_row(const Pack<T> (&gy)[PACKS], const Pack<T> (&x)[PACKS], float mean,
                          float rstd, Pack<T>* gx, const Place& place, float2* pairs) {
    float2 sums{0, 0};
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k >= place.count()) break;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (static_cast<float>(x[k].at[i]) - mean) * rstd;
        const float upstream = static_cast<float>(gy[k].at[i]);
        const float g = upstream * static_cast<float>(weight[k].at[i]);
        sums.x += g;
        sums.y += g * n;
        gw[k][i] += upstream * n;
        gb[k][i] += upstream;
      }
    }
    const int warps = place.width / 32;
    sums = team_sum(sums, pairs, threadIdx.x / place.width * warps, warps);
    const float g_mean = sums.x / (place.packs * N), gn_mean = sums.y / (place.packs * N);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k >= place.count()) break;
      Pack<T> result;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (static_cast<float>(x[k].at[i]) - mean) * rstd;
        const float g = static_cast<float>(gy[k].at[i]) * static_cast<float>(weight[k].at[i]);
        result.at[i] = static_cast<T>(rstd * (g - g_mean - n * gn_mean));
      }
      gx[place.at(place.row, k)] = result;
    }
  }

  // Stores the sums of the block, over its teams, to `partial`, a (2, packs · N) matrix. shared:
  // N floats per thread of the block.
  __device__ void store(float* shared, float* partial, const Place& place) const {
    for (int s = 0; s < 2; ++s) {
      for (int k = 0; k < PACKS; ++k) {
        for (int i = 0; i < N; ++i) {
          shared[i * blockDim.x + threadIdx.x] = s == 0 ? gw[k][i] : gb[k][i];
        }
        __syncthreads();  // the first team waits for the sums of the others
        if (threadIdx.x < place.width && k < place.mine) {
          for (int i = 0; i < N; ++i) {
            float sum = 0;
            for (int t = 0; t < place.teams; ++t) {
              sum += shared[i * blockDim.x + t * place.width + threadIdx.x];
            }
            partial[(s * place.packs + place.at(0, k)) * N + i] = sum;
          }
        }
        __syncthreads();  // all sums are read before the next ones are written
      }
    }
  }
};

// gw and gb from the sums of all blocks: a block takes 32 of the 2 · cols sums at a time, and its
// warp w those of the blocks w, w + warps … The order is fixed. shared: a float per thread.
template <typename T>
__device__ void add_up_blocks(float* shared, const Pointers& p, int cols) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int first = blockIdx.x * 32; first < 2 * cols; first += gridDim.x * 32) {
    const int i = first + lane;
    float sum = 0;
#pragma unroll 8
    for (int b = warp; b < gridDim.x; b += warps) {
      if (i < 2 * cols) sum += p.partial[int64_t{b} * 2 * cols + i];
    }
    shared[threadIdx.x] = sum;
    __syncthreads();  // the first warp waits for the sums of the others
    if (warp == 0 && i < 2 * cols) {
      for (int w = 1; w < warps; ++w) sum += shared[w * 32 + lane];
      T* out = static_cast<T*>(i < cols ? p.gw : p.gb);
      out[i < cols ? i : i - cols] = static_cast<T>(sum);
    }
    __syncthreads();  // all sums are read before the next ones are written
  }
}

// The end of the kernel: gw and gb from the sums of all threads of the grid.
template <typename T>
__device__ void finish(const Columns<T>& columns, float* shared, const Pointers& p,
                       const Place& place) {
  const int cols = place.packs * Pack<T>::N;
  columns.store(shared, p.partial + int64_t{blockIdx.x} * 2 * cols, place);
  cooperative_groups::this_grid().sync();  // the sums of all blocks are stored
  add_up_blocks<T>(shared, p, cols);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    layer_norm_backward_v2_one_kernel_kernel(Pointers p, int64_t rows, int packs, int width) {
  __shared__ float2 pairs[2][WARPS];  // in turns, so that one barrier per row is enough
  __shared__ float shared[BLOCK * Pack<T>::N];
  const auto *gy = static_cast<const Pack<T>*>(p.gy), *x = static_cast<const Pack<T>*>(p.x);
  Place place(rows, packs, width);
  Columns<T> columns(static_cast<const Pack<T>*>(p.weight), place);

  for (int turn = 0; place.goes_on(); turn ^= 1, place.row += place.step) {
    Pack<T> gy_packs[PACKS], x_packs[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k < place.count()) {
        gy_packs[k] = gy[place.at(place.row, k)];
        x_packs[k] = x[place.at(place.row, k)];
      }
    }
    const bool has_row = place.row < rows;
    const float mean = has_row ? p.mean[place.row] : 0, rstd = has_row ? p.rstd[place.row] : 0;
    columns.add_row(gy_packs, x_packs, mean, rstd, static_cast<Pack<T>*>(p.gx), place, pairs[turn]);
  }
  finish(columns, shared, p, place);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a ring of STAGES rows in shared memory, filled by cp.async. While a team computes
// a row, the copies of the next STAGES - 1 rows are in flight. A thread reads only what it copied
// itself, so the ring needs no barrier.

constexpr int STAGES = 3;  // 32 KB each: 96 KB fit into the 99 KB of an RTX card

template <typename T>
struct Ring {
  Pack<T> gy[STAGES][PACKS][BLOCK], x[STAGES][PACKS][BLOCK];
};

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    layer_norm_backward_v3_pipelined_kernel(Pointers p, int64_t rows, int packs, int width) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  __shared__ float2 pairs[2][WARPS];
  auto& ring = *reinterpret_cast<Ring<T>*>(memory);
  const auto *gy = static_cast<const Pack<T>*>(p.gy), *x = static_cast<const Pack<T>*>(p.x);
  Place place(rows, packs, width);
  Columns<T> columns(static_cast<const Pack<T>*>(p.weight), place);

  const auto copy = [&](int64_t row, int stage) {
    for (int k = 0; row < rows && k < place.mine; ++k) {
      ptx::cp_async<16>(&ring.gy[stage][k][threadIdx.x], gy + place.at(row, k));
      ptx::cp_async<16>(&ring.x[stage][k][threadIdx.x], x + place.at(row, k));
    }
    ptx::cp_async_commit();  // also an empty group, so that all threads count alike
  };
  const auto number = [&](const float* of, int64_t row) { return row < rows ? of[row] : 0.0f; };
  for (int s = 0; s < STAGES - 1; ++s) copy(place.row + s * place.step, s);
  float mean = number(p.mean, place.row), rstd = number(p.rstd, place.row);
  int stage = 0;
  for (int turn = 0; place.goes_on(); turn ^= 1, place.row += place.step) {
    copy(place.row + (STAGES - 1) * place.step, (stage + STAGES - 1) % STAGES);
    ptx::cp_async_wait<STAGES - 1>();  // this row has come; those of the younger groups may not
    Pack<T> gy_packs[PACKS], x_packs[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k < place.count()) {
        gy_packs[k] = ring.gy[stage][k][threadIdx.x];
        x_packs[k] = ring.x[stage][k][threadIdx.x];
      }
    }
    const float next_mean = number(p.mean, place.row + place.step);  // in flight, like the copies
    const float next_rstd = number(p.rstd, place.row + place.step);
    columns.add_row(gy_packs, x_packs, mean, rstd, static_cast<Pack<T>*>(p.gx), place, pairs[turn]);
    stage = (stage + 1) % STAGES;
    mean = next_mean;
    rstd = next_rstd;
  }
  __syncthreads();  // all threads have read the last row: its place becomes that of the sums
  finish(columns, reinterpret_cast<float*>(memory), p, place);
#endif
}

// ---------------------------------------------------------------------------------------------

// Whether the rows are made of aligned packs, and PACKS per thread are enough.
bool fits_block(std::initializer_list<const Tensor*> tensors, int64_t cols) {
  for (const Tensor* t : tensors) {
    if (!is_aligned(*t, 16) || cols * t->element_size() % 16 != 0) return false;
    if (cols * t->element_size() > BLOCK * PACKS * 16) return false;
  }
  return true;
}

template <typename T, bool PIPELINED>
void launch_one_kernel(const Tensor& gy, Pointers p, int64_t cols) {
  const int64_t rows = gy.size(0);
  const int packs = static_cast<int>(cols / Pack<T>::N);
  const int width = 32 * ceil_div(packs, 32 * PACKS);
  const int teams = BLOCK / width, block = teams * width;
  const auto kernel = PIPELINED ? layer_norm_backward_v3_pipelined_kernel<T>
                                : layer_norm_backward_v2_one_kernel_kernel<T>;
  const size_t bytes = PIPELINED ? sizeof(Ring<T>) : 0;
  allow_shared(kernel, bytes);
  const int64_t work = ceil_div<int64_t>(rows, teams * MIN_ROWS);
  const unsigned grid = resident_grid(gy, kernel, block, bytes, work);
  Tensor partial = allocate(gy, {grid, 2, cols}, ScalarType::Float);
  p.partial = mutable_data<float>(partial);

  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;  // refused unless all blocks are resident at once
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(block);
  config.dynamicSmemBytes = bytes;
  config.stream = current_stream(gy);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, p, rows, packs, width), "cudaLaunchKernelEx");
}

template <bool PIPELINED>
Gradients one_kernel(const Tensor& gy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                     const Tensor& weight) {
  check_arguments(gy, x, mean, rstd, weight);
  const int64_t cols = gy.size(1);
  if (gy.numel() == 0 || !fits_block({&gy, &x, &weight}, cols)) {
    fell_back("layer_norm_backward_v1_two_kernels",
              "no elements, rows above 16 KB, or not made of aligned packs of 16 bytes");
    return layer_norm_backward_v1_two_kernels(gy, x, mean, rstd, weight);
  }
  const DeviceGuard guard(gy);
  if (PIPELINED) {
    require_capability(8, 0, "cp.async");
    require_shared_memory(sizeof(Ring<float>) + sizeof(float2[2][WARPS]), "a ring of rows");
  }
  Tensor gx = allocate_like(x);
  Tensor gw = allocate_like(weight), gb = allocate_like(weight);
  const Pointers p{gy.const_data_ptr(),   x.const_data_ptr(),    weight.const_data_ptr(),
                   data<float>(mean),     data<float>(rstd),     gx.mutable_data_ptr(),
                   gw.mutable_data_ptr(), gb.mutable_data_ptr(), nullptr};
  dispatch_floating(x,
                    [&](auto zero) { launch_one_kernel<decltype(zero), PIPELINED>(gy, p, cols); });
  check_launch("layer_norm_backward");
  return {gx, gw, gb};
}

Gradients layer_norm_backward_v2_one_kernel(const Tensor& gy, const Tensor& x, const Tensor& mean,
                                            const Tensor& rstd, const Tensor& weight) {
  return one_kernel<false>(gy, x, mean, rstd, weight);
}

Gradients layer_norm_backward_v3_pipelined(const Tensor& gy, const Tensor& x, const Tensor& mean,
                                           const Tensor& rstd, const Tensor& weight) {
  return one_kernel<true>(gy, x, mean, rstd, weight);
}

// ---------------------------------------------------------------------------------------------

#define ARGUMENTS "(Tensor gy, Tensor x, Tensor mean, Tensor rstd, Tensor weight)"
RUNG(day35, layer_norm_backward_v1_two_kernels, ARGUMENTS " -> (Tensor, Tensor, Tensor)");
RUNG(day35, layer_norm_backward_v2_one_kernel, ARGUMENTS " -> (Tensor, Tensor, Tensor)");
RUNG(day35, layer_norm_backward_v3_pipelined, ARGUMENTS " -> (Tensor, Tensor, Tensor)");

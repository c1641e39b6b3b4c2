// Day 60, further: the gradient of the filter, a product whose sum runs over all pixels.
//
//   dw[k, r, s, c] = Σ_{n, p, q} dy[n, p, q, k] · x[n, p·stride - pad + r·dilation, …, c]
//
// dyᵀ · (gathered x): K × (N·P·Q) by (N·P·Q) × (R·S·C). The result is small and the sum is long, so
// blocks take parts of the pixels (split-K). Each stores its sums in fp32, and a second kernel adds
// the parts in a fixed order: two runs agree bit for bit.
//
//   v3  gathered rows      v4  boxes of pixels by TMA, as in conv2d_boxes.cu

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day60/further/boxes.cuh"
#include "days/day60/further/gathered.cuh"

struct Sums {
  Axis rows, cols;  // which pixel of x a pixel of dy meets
  int N, K, C;
  int S;
  const bf16 *dy, *x;
  float* parts;  // (parts, K, R, S, C)

  __host__ __device__ int pixels() const { return N * rows.outputs * cols.outputs; }
  __host__ __device__ int columns() const { return rows.taps * cols.taps * C; }
};

// ---------------------------------------------------------------------------------------------
// The second kernel: dw = the sum of all parts.

// A thread adds a float4 of every part. Blocks are small, so that a small filter has many of them.
constexpr int BATCH = 11, ADD_THREADS = 64, PACK = 4;  // BATCH: loads in flight per thread

__global__ void __launch_bounds__(ADD_THREADS)
    add_parts_kernel(const float* __restrict__ parts, bf16* __restrict__ dw, int count, int n) {
  const int64_t at = (int64_t{blockIdx.x} * ADD_THREADS + threadIdx.x) * PACK;
  if (at >= count) return;
  float4 sum = *reinterpret_cast<const float4*>(parts + at);
  for (int i = 1; i < n; i += BATCH) {
    float4 batch[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      if (i + j >= n) break;
      batch[j] = *reinterpret_cast<const float4*>(parts + (i + j) * int64_t{count} + at);
    }
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      if (i + j >= n) break;
      sum.x += batch[j].x, sum.y += batch[j].y, sum.z += batch[j].z, sum.w += batch[j].w;
    }
  }
  const uint2 packed{tiles::pack<bf16>(sum.x, sum.y), tiles::pack<bf16>(sum.z, sum.w)};
  *reinterpret_cast<uint2*>(dw + at) = packed;
}

// ---------------------------------------------------------------------------------------------
// v3. Rows of both tiles are pixels, the sum's index; ldmatrix transposes dy's tile.

__global__ void __launch_bounds__(GATHER_THREADS, 2)
    conv2d_weight_gradient_v3_kernel(const __grid_constant__ Sums g, int tiles_n, int per_part) {
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
  using Rows = Copies<true>;
  extern __shared__ __align__(128) bf16 gathered[];
  const int m = blockIdx.x / tiles_n * SIDE, n = blockIdx.x % tiles_n * SIDE;
  int pixel = blockIdx.y * per_part * DEPTH;
  const int steps = min(per_part, (g.pixels() - pixel + DEPTH - 1) / DEPTH);

  // All chunks that this thread copies are of the same output channels, and of the same tap.
  const int channel = m + Rows::offset(), column = n + Rows::offset();
  const bool is_column = column < g.columns();
  const int tap = column / g.C, c = column % g.C;
  const int row0 = g.rows.first + tap / g.S * g.rows.step;
  const int col0 = g.cols.first + tap % g.S * g.cols.step;

  float sums[4][4][4] = {};
  multiply_steps<true>(sums, gathered, steps, [&](bf16* a, bf16* b) {
#pragma unroll
    for (int i = 0; i < Rows::COUNT; ++i) {
      const int index = pixel + Rows::row(i);
      const bool is_pixel = index < g.pixels(), of_dy = is_pixel && channel < g.K;
      Rows::copy(a, i, of_dy ? g.dy + int64_t{index} * g.K + channel : g.dy, of_dy);
      const Pixel at = pixel_at(index, g.rows.outputs, g.cols.outputs);
      const int row = at.row * g.rows.scale + row0, col = at.col * g.cols.scale + col0;
      const bool of_x = is_pixel && is_column && row >= 0 && row < g.rows.inputs && col >= 0 &&
                        col < g.cols.inputs;
      const int64_t from = (int64_t{at.n} * g.rows.inputs + row) * g.cols.inputs + col;
      Rows::copy(b, i, of_x ? g.x + from * g.C + c : g.x, of_x);
    }
    pixel += DEPTH;
  });
  float* part = g.parts + int64_t{blockIdx.y} * g.K * g.columns();
  each_pair(sums, [&](int row, int col, float left, float right) {
    if (m + row >= g.K || n + col >= g.columns()) return;
    float2* to = reinterpret_cast<float2*>(part + int64_t{m + row} * g.columns() + n + col);
    *to = make_float2(left, right);
  });
#endif
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: a step is a box of 64 pixels. TMA loads it of dy, 64 channels at a time, and of x,
// moved by a tap. Both tiles have their channels along a row (kMN), which wgmma reads as they are.

constexpr int CHUNK_BYTES = DEPTH * ROW, WEIGHT_STAGES = 4;

// A tile of the result: WIDE · 64 output channels × CHUNKS · 64 columns, where a chunk of 64
// columns has one tap. With WIDE = 2 a consumer has 64 of the channels and all chunks, with WIDE =
// 1 both have the same 64 and half of the chunks.
template <int WIDE, int CHUNKS>
struct WeightTile {
  static constexpr int BM = WIDE * ROWS, CONSUMER_CHUNKS = CHUNKS * WIDE / CONSUMERS;
  static constexpr int BYTES = (WIDE + CHUNKS) * CHUNK_BYTES;
  static constexpr size_t SHARED = WEIGHT_STAGES * BYTES + TILE_ALIGNMENT;
};

struct WeightPlan {
  Box box;
  int groups;    // of CHUNKS chunks, that cover all columns
  int per_part;  // boxes
};

// sums += (64 pixels × 64 output channels)ᵀ · (64 pixels × columns).
template <int COUNT>
__device__ __forceinline__ void multiply_pixels(float (&sums)[COUNT], const char* dy,
                                                const char* x) {
#pragma unroll
  for (int k = 0; k < DEPTH / 16; ++k) {
    const auto tile = [&](const char* at) {
      return ptx::wgmma_descriptor(at + k * 16 * ROW, Swizzle::k128, CHUNK_BYTES, 8 * ROW);
    };
    ptx::wgmma<bf16, bf16, Major::kMN, Major::kMN>(sums, tile(dy), tile(x));
  }
}

template <int WIDE, int CHUNKS>
__global__ void __launch_bounds__(THREADS, 1)
    conv2d_weight_gradient_v4_kernel(const __grid_constant__ Sums g,
                                     const __grid_constant__ WeightPlan plan,
                                     const __grid_constant__ TensorMap dy,
                                     const __grid_constant__ TensorMap x) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using P = WeightTile<WIDE, CHUNKS>;
  __shared__ uint64_t full[WEIGHT_STAGES], empty[WEIGHT_STAGES];
  char* stages = tile_memory();
  const int m = blockIdx.x / plan.groups * P::BM, group = blockIdx.x % plan.groups * CHUNKS;
  const int first = blockIdx.y * plan.per_part;
  const int steps = min(plan.per_part, plan.box.count() - first);
  const int per_tap = (g.C + DEPTH - 1) / DEPTH, chunks = g.rows.taps * g.cols.taps * per_tap;
  if (threadIdx.x == 0) {
    for (int s = 0; s < WEIGHT_STAGES; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], CONSUMER_WARPS);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are there before any thread uses one

  if (threadIdx.x / WARPGROUP == 0) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      // One thread starts all loads. It divides before the loop, so that the consumers, which
      // multiply in the meantime, do not wait for it.
      int c[CHUNKS], row[CHUNKS], col[CHUNKS];  // of each chunk, for the pixel (0, 0) of dy
#pragma unroll
      for (int i = 0; i < CHUNKS; ++i) {
        const int chunk = group + i, tap = chunk / per_tap;
        c[i] = chunk < chunks ? chunk % per_tap * DEPTH : per_tap * DEPTH;  // beyond: zeros
        row[i] = g.rows.first + tap / g.S * g.rows.step;
        col[i] = g.cols.first + tap % g.S * g.cols.step;
      }
      Pixel at = corner_of(plan.box, first);
      for (int step = 0; step < steps; ++step, next_box(plan.box, at)) {
        const int s = step % WEIGHT_STAGES;
        char* stage = stages + s * P::BYTES;
        ptx::mbarrier_wait(&empty[s], 1 - step / WEIGHT_STAGES % 2);
        ptx::mbarrier_arrive_expect_bytes(&full[s], P::BYTES);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
          ptx::load_tensor(stage + i * CHUNK_BYTES, dy, {m + i * ROWS, at.col, at.row, at.n},
                           &full[s]);
        }
        const int row0 = at.row * g.rows.scale, col0 = at.col * g.cols.scale;
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
          ptx::load_tensor(stage + (WIDE + i) * CHUNK_BYTES, x,
                           {c[i], col0 + col[i], row0 + row[i], at.n}, &full[s]);
        }
      }
    }
  } else {
    ptx::setmaxnreg_inc<232>();
    const int consumer = threadIdx.x / WARPGROUP - 1, thread = threadIdx.x % WARPGROUP;
    const int rows = WIDE == 2 ? consumer : 0;
    const int mine = WIDE == 2 ? 0 : consumer * P::CONSUMER_CHUNKS;  // its first chunk
    float sums[P::CONSUMER_CHUNKS * 32] = {};
    for (int step = 0; step < steps; ++step) {
      const int s = step % WEIGHT_STAGES;
      const char* stage = stages + s * P::BYTES;
      ptx::mbarrier_wait(&full[s], step / WEIGHT_STAGES % 2);
      ptx::wgmma_fence(sums);
      multiply_pixels(sums, stage + rows * CHUNK_BYTES, stage + (WIDE + mine) * CHUNK_BYTES);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the products of the step before have read their stage
      if (step > 0 && thread % 32 == 0) ptx::mbarrier_arrive(&empty[(step - 1) % WEIGHT_STAGES]);
    }
    ptx::wgmma_wait<0>(sums);

    float* part = g.parts + int64_t{blockIdx.y} * g.K * g.columns();
    const int k = m + rows * ROWS + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < P::CONSUMER_CHUNKS * 32; i += 2) {
      const int row = k + i / 2 % 2 * 8, col = i / 4 * 8 + thread % 4 * 2;
      const int chunk = group + mine + col / DEPTH, c = chunk % per_tap * DEPTH + col % DEPTH;
      if (chunk < chunks && row < g.K && c < g.C) {
        const int64_t at = int64_t{row} * g.columns() + chunk / per_tap * g.C + c;
        *reinterpret_cast<float2*>(part + at) = make_float2(sums[i], sums[i + 1]);
      }
    }
  }
#endif
}

// ---------------------------------------------------------------------------------------------
// Launchers.

// plan(g): how many tiles and steps there are. launch(g, steps per part, grid): computes the parts,
// which are added here.
template <typename Plan, typename Launch>
Tensor weight_gradient(const Tensor& dy, const Tensor& x, const Conv& v, const char* name,
                       Plan plan, Launch launch) {
  const Gather f = flattened(forward_gather(v, nullptr, nullptr, nullptr));
  Sums g{f.rows, f.cols, f.N, v.K, v.C, v.S, data<bf16>(dy), data<bf16>(x), nullptr};
  const int64_t count = int64_t{v.K} * g.columns();
  const auto [tiles, steps] = plan(g);
  const int wished = parts_for(tiles, steps, count, multiprocessor_count(dy));
  const int per_part = static_cast<int>(ceil_div<int64_t>(steps, wished));
  const int parts = static_cast<int>(ceil_div<int64_t>(steps, per_part));
  Tensor sums = allocate(dy, {parts, count}, ScalarType::Float);
  g.parts = mutable_data<float>(sums);
  launch(g, per_part, dim3(grid_size(tiles, "dy"), grid_size_y(parts, "dy")));
  check_launch(name);
  Tensor dw = allocate(dy, {v.K, v.R, v.S, v.C});
  add_parts_kernel<<<grid_size(ceil_div<int64_t>(count, ADD_THREADS * PACK), "dy"), ADD_THREADS, 0,
                     current_stream(dy)>>>(g.parts, mutable_data<bf16>(dw), static_cast<int>(count),
                                           parts);
  check_launch("add_parts");
  return dw;
}

struct Work {
  int64_t tiles, steps;
};

Tensor conv2d_weight_gradient_v3(const Tensor& dy, const Tensor& x, int64_t height, int64_t width,
                                 int64_t stride, int64_t padding, int64_t dilation) {
  const Conv v = check_weight_gradient(dy, x, height, width, stride, padding, dilation);
  const DeviceGuard guard(dy);
  require_gathering();
  if (v.N == 0) return allocate_zeros(dy, {v.K, v.R, v.S, v.C});
  const auto plan = [](const Sums& g) {
    return Work{ceil_div(g.K, SIDE) * ceil_div(g.columns(), SIDE), ceil_div(g.pixels(), DEPTH)};
  };
  return weight_gradient(dy, x, v, "conv2d_weight_gradient_v3", plan,
                         [&](const Sums& g, int per_part, dim3 grid) {
                           allow_shared(conv2d_weight_gradient_v3_kernel, GATHER_SHARED);
                           conv2d_weight_gradient_v3_kernel<<<grid, GATHER_THREADS, GATHER_SHARED,
                                                              current_stream(dy)>>>(
                               g, ceil_div(g.columns(), SIDE), per_part);
                         });
}

template <int WIDE, int CHUNKS>
Tensor weight_gradient_by_boxes(const Tensor& dy, const Tensor& x, const Conv& v) {
  using P = WeightTile<WIDE, CHUNKS>;
  require_shared_memory(P::SHARED, "four pairs of tiles");
  WeightPlan boxes{};
  const auto plan = [&](const Sums& g) {
    boxes.box = best_box(g.rows, g.cols, g.N, DEPTH);
    boxes.groups = ceil_div(v.R * v.S * ceil_div(v.C, DEPTH), CHUNKS);
    return Work{ceil_div(v.K, P::BM) * boxes.groups, boxes.box.count()};
  };
  return weight_gradient(dy, x, v, "conv2d_weight_gradient_v4", plan,
                         [&](const Sums& g, int per_part, dim3 grid) {
                           boxes.per_part = per_part;
                           const int P = g.rows.outputs, Q = g.cols.outputs;
                           const Axis rows{P, P, 1, 0, 0, 1, 0, 1}, cols{Q, Q, 1, 0, 0, 1, 0, 1};
                           const auto kernel = conv2d_weight_gradient_v4_kernel<WIDE, CHUNKS>;
                           allow_shared(kernel, P::SHARED);
                           kernel<<<grid, THREADS, P::SHARED, current_stream(dy)>>>(
                               g, boxes, map_of_inputs(g.dy, rows, cols, g.N, g.K, boxes.box),
                               map_of_inputs(g.x, g.rows, g.cols, g.N, g.C, boxes.box));
                         });
}

Tensor conv2d_weight_gradient_v4(const Tensor& dy, const Tensor& x, int64_t height, int64_t width,
                                 int64_t stride, int64_t padding, int64_t dilation) {
  const Conv v = check_weight_gradient(dy, x, height, width, stride, padding, dilation);
  const DeviceGuard guard(dy);
  require_wgmma();
  if (v.N == 0) return allocate_zeros(dy, {v.K, v.R, v.S, v.C});
  if (stride > MOST_SCALE) {
    fell_back("conv2d_weight_gradient_v3", "a stride of more than 8, which TMA does not have");
    return conv2d_weight_gradient_v3(dy, x, height, width, stride, padding, dilation);
  }
  if (v.K <= ROWS) return weight_gradient_by_boxes<1, 4>(dy, x, v);
  // The tile that leaves fewer chunks empty: 18 are six tiles of 3, or five of 4 with two empty.
  const int chunks = v.R * v.S * ceil_div(v.C, DEPTH);
  const bool three = ceil_div(chunks, 3) * 3 < ceil_div(chunks, 4) * 4;
  return three ? weight_gradient_by_boxes<2, 3>(dy, x, v)
               : weight_gradient_by_boxes<2, 4>(dy, x, v);
}

RUNG(day60, conv2d_weight_gradient_v3, WEIGHT_GRADIENT);
RUNG(day60, conv2d_weight_gradient_v4, WEIGHT_GRADIENT);

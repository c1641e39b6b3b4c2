// Day 45: layer norm for training, the forward pass
//
//   h = x + residual        mean[r] = mean_c h[r, c]      rstd[r] = 1 / sqrt(var_c h[r, c] + eps)
//   y[r, c] = (h[r, c] - mean[r]) · rstd[r] · weight[c] + bias[c]
//
// x, residual, h, y: (rows, cols) in fp32, fp16 or bf16; weight, bias: (cols,); mean, rstd: (rows,)
// in fp32, kept for the backward pass in layer_norm_backward.cu. Without a residual, h is x.
// Bytes: 2 · rows · cols · sizeof(T), with a residual 4. Operations: about 10 per element.
//
//   v1 reread     one block per row, element by element, the row read twice: any row
//   v2 registers  the row in the registers of a block, read once: up to 64 KB
//   v3 cluster    up to 16 blocks per row, each keeps its columns of weight and bias: up to 256 KB
//   v4 chosen     the best of these for the shape, the alignment and the card
//   add + norm    v1 with two kernels, v2 fused: h is not read again
//
// Where a row has as many packs for each thread, v2 and v3 launch kernels of even_rows.cuh.
// Run: python run_day.py 45

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day45/even_rows.cuh"

#include <cfloat>
#include <tuple>

// ---------------------------------------------------------------------------------------------
// The moments of the union of 32 lanes' elements, in every lane, relative to the base of lane 0.
// The difference of two bases is nearly exact, so no step rounds to the size of the elements. Lane
// 0 has elements if any lane has.
__device__ inline Moments merge_lanes(Moments mine) {
  const float base = __shfl_sync(FULL_WARP, mine.base, 0);
  const float from_base = mine.base - base + mine.mean;
  const float count = warp_sum(mine.count);
  const float mean = count > 0 ? __fdividef(warp_sum(mine.count * from_base), count) : 0;
  const float d = from_base - mean;
  return {count, base, mean, warp_sum(mine.m2 + mine.count * d * d)};
}

// Sums of the n elements of one thread, relative to its first one. That one's own squared distance
// from the mean is part of m2, so d2 is at most n + 1 times m2: the subtraction cancels at most
// log2(n + 1) bits.
struct Sums {
  float base, count = 0, d = 0, d2 = 0;

  __device__ explicit Sums(float base) : base(base) {}

  __device__ void add(float x) {
    d += x - base;
    d2 += (x - base) * (x - base);
    count += 1;
  }

  __device__ Moments moments() const {
    if (count == 0) return {};
    return {count, base, d / count, d2 - d * (d / count)};
  }
};

// Calls f(element) for the elements of the first `count` chunks, of up to EACH; at(k) is chunk k in
// fp32.
template <int EACH, typename At, typename F>
__device__ void each_element(int count, At at, F f) {
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    if (k >= count) break;
    const auto chunk = at(k);
#pragma unroll
    for (int i = 0; i < sizeof(chunk.at) / sizeof(float); ++i) f(chunk.at[i]);
  }
}

// Shared memory of moments_of_block. Each array is read between two barriers and written before the
// first or after the second, so the next row needs no other one.
struct WarpSums {
  float sums[MAX_WARPS];
  float2 distances[MAX_WARPS];  // sum, sum of squares
};

// The moments of what the block has of a row, `elements` of it, by two passes over chunks that the
// threads have on the chip: the sum, whose mean becomes the base, and the distances from the base
// and their squares. `d` accounts for the base's rounding error. All threads of the block must call
// it.
template <int EACH, typename At>
__device__ Moments moments_of_block(int count, float elements, At at, WarpSums& shared,
                                    const Place& p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = p.width / 32;
  const int first = p.team * warps;  // of the warps that share the row

  float sum = 0, d = 0, d2 = 0;
  each_element<EACH>(count, at, [&](float x) { sum += x; });
  sum = warp_sum(sum);
  if (warps > 1) {
    if (lane == 0) shared.sums[warp] = sum;
    __syncthreads();  // every warp waits for the sums of the row's other warps
    sum = warp_sum(lane < warps ? shared.sums[first + lane] : 0.0f);
  }
  const float base = elements > 0 ? __fdividef(sum, elements) : 0;
  each_element<EACH>(count, at, [&](float x) {
    d += x - base;
    d2 += (x - base) * (x - base);
  });
  d = warp_sum(d);
  d2 = warp_sum(d2);
  if (warps > 1) {
    if (lane == 0) shared.distances[warp] = {d, d2};
    __syncthreads();  // the same for the distances
    const float2 theirs = lane < warps ? shared.distances[first + lane] : float2{0, 0};
    d = warp_sum(theirs.x);
    d2 = warp_sum(theirs.y);
  }
  const float mean = elements > 0 ? __fdividef(d, elements) : 0;
  return {elements, base, mean, d2 - d * mean};
}

// ---------------------------------------------------------------------------------------------
// v1: one block per row. Threads take columns t, t + BLOCK …, first for the moments and then for
// the output. A thread reads the elements of h that it wrote itself, so no barrier is needed.

constexpr int BLOCK = 512;

template <bool RESIDUAL, typename T>
__global__ void __launch_bounds__(BLOCK) layer_norm_v1_reread_kernel(Rows<T, 1> m, Split split) {
  __shared__ Merging<Moments> shared;
  const Place p(split, 0);
  const int64_t start = p.row * m.chunks;
  const Chunk<T, 1>* from = RESIDUAL ? m.h : m.x;

  Sums sums(0);
  for (int64_t c = threadIdx.x; c < m.chunks; c += BLOCK) {
    Chunk<T, 1> h = m.x[start + c];
    if constexpr (RESIDUAL) m.h[start + c] = h = added(h, m.residual[start + c]);
    if (sums.count == 0) sums.base = static_cast<float>(h.at[0]);
    sums.add(static_cast<float>(h.at[0]));
  }
  const Moments all = merge_row<false>(merge_lanes(sums.moments()), shared, 0, p);
  const Statistics s = statistics_of(all, m.eps);
  for (int64_t c = threadIdx.x; c < m.chunks; c += BLOCK) {
    m.y[start + c] = normalised(widened(load_raw(from + start + c)), Normal(s.mean, 0, s.rstd),
                                load_raw(m.weight + c), load_raw(m.bias + c));
  }
  if (p.stores_row()) {
    m.mean[p.row] = s.mean;
    m.rstd[p.row] = s.rstd;
  }
}

// The arguments of every launcher of this file. h: what is normalised, x if there is no residual.
struct NormInputs {
  const Tensor &x, &weight, &bias;
  double eps;
  const Tensor* residual;

  void check_all() const {
    check(x, "x").on_gpu().floating().rank(2).contiguous();
    STD_TORCH_CHECK(x.size(1) > 0, "x: expected at least one column, got shape ", shape_of(x));
    check(weight, "weight").on_gpu().dtype({x.scalar_type()}).rank(1).contiguous();
    check(weight, "weight").same_device(x, "x").size(0, x.size(1));
    check(bias, "bias").on_gpu().like(weight, "weight").contiguous();
    if (residual) check(*residual, "residual").on_gpu().like(x, "x").contiguous();
    STD_TORCH_CHECK(eps >= 0 && eps <= FLT_MAX, "eps: expected a number of fp32 from 0, got ", eps);
  }
};

struct Normed {
  Tensor h, y, mean, rstd;
};

// Checks the arguments, allocates the results, and calls launch(rows of chunks, RESIDUAL) unless
// there are no rows.
template <typename Launch>
Normed normalise(const NormInputs& a, const char* kernel, Launch&& launch) {
  a.check_all();
  const DeviceGuard guard(a.x);
  const int64_t rows = a.x.size(0), cols = a.x.size(1);
  const auto statistic = [&] { return allocate(a.x, {rows}, ScalarType::Float); };
  Normed out{a.residual ? allocate_like(a.x) : a.x, allocate_like(a.x), statistic(), statistic()};
  if (rows == 0) return out;
  dispatch_floating(a.x, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(cols, {&a.x, &a.weight, &a.bias, a.residual}, [&](auto size) {
      using C = Chunk<T, size>;
      const Rows<T, size> m{data<C>(a.x),
                            a.residual ? data<C>(*a.residual) : nullptr,
                            data<C>(a.weight),
                            data<C>(a.bias),
                            a.residual ? mutable_data<C>(out.h) : nullptr,
                            mutable_data<C>(out.y),
                            mutable_data<float>(out.mean),
                            mutable_data<float>(out.rstd),
                            rows,
                            cols / size,
                            static_cast<float>(a.eps)};
      a.residual ? launch(m, std::true_type{}) : launch(m, std::false_type{});
    });
  });
  check_launch(kernel);
  return out;
}

// The same rows, as chunks of one element.
template <typename T, int N>
Rows<T, 1> by_element(const Rows<T, N>& m) {
  const auto in = [](const Chunk<T, N>* p) { return reinterpret_cast<const Chunk<T, 1>*>(p); };
  const auto out = [](Chunk<T, N>* p) { return reinterpret_cast<Chunk<T, 1>*>(p); };
  return {in(m.x), in(m.residual), in(m.weight), in(m.bias),   out(m.h), out(m.y),
          m.mean,  m.rstd,         m.rows,       m.chunks * N, m.eps};
}

Normed norm_v1(const NormInputs& a) {
  return normalise(a, "layer_norm_v1_reread", [&](const auto& m, auto residual) {
    const Split split = whole_rows(m.rows, BLOCK);
    layer_norm_v1_reread_kernel<residual>
        <<<grid_size(m.rows, "x"), BLOCK, 0, current_stream(a.x)>>>(by_element(m), split);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a thread loads its part of the row at once and keeps it in registers, converted
// to fp32 once. The moments take two passes over them: 4 operations per element. Short rows share a
// block, so that a multiprocessor is not limited by its number of blocks.

constexpr int MAX_BLOCK = 1024;

// Chunks per thread, all in flight before the first is used: 64 bytes, or 16 single elements.
template <int N>
constexpr int EACH = N == 1 ? 16 : 4;

template <bool RESIDUAL, typename T, int N>
__global__ void __launch_bounds__(MAX_BLOCK)
    layer_norm_v2_registers_kernel(Rows<T, N> m, Split split) {
  __shared__ WarpSums shared;
  const Place p(split, 0);
  const int count = p.count(p.row);
  const int64_t start = p.at(p.row, 0);
  RawChunk<Chunk<T, N>> x[EACH<N>], residual[RESIDUAL ? EACH<N> : 1];
#pragma unroll
  for (int k = 0; k < EACH<N>; ++k) {
    if (k < count) x[k] = load_raw(m.x + start + k * p.width);
    if (RESIDUAL && k < count) residual[k] = load_raw(m.residual + start + k * p.width);
  }
  Chunk<float, N> h[EACH<N>];
#pragma unroll
  for (int k = 0; k < EACH<N>; ++k) {
    if (k >= count) break;
    if constexpr (RESIDUAL) {
      const Chunk<T, N> sum = added(x[k].chunk(), residual[k].chunk());
      m.h[start + k * p.width] = sum;
      memcpy(&x[k], &sum, sizeof sum);
    }
    h[k] = widened(x[k]);
  }
  const Moments row = moments_of_block<EACH<N>>(
      count, p.of_block * static_cast<float>(N), [&](int k) { return h[k]; }, shared, p);
  const Statistics s = statistics_of(row, m.eps);
  const Normal to(row.base, row.mean, s.rstd);
#pragma unroll
  for (int k = 0; k < EACH<N>; ++k) {
    if (k >= count) break;
    const int c = p.first + k * p.width;
    m.y[start + k * p.width] =
        normalised(h[k], to, load_constant(m.weight + c), load_constant(m.bias + c));
  }
  if (p.stores_row()) {
    m.mean[p.row] = s.mean;
    m.rstd[p.row] = s.rstd;
  }
}

// The threads that a row needs, and short rows enough for 128 threads.
Split registers_split(int64_t rows, int64_t row_chunks, int each) {
  const int chunks = static_cast<int>(row_chunks), width = 32 * ceil_div(chunks, 32 * each);
  return {rows, 1, std::max(1, 128 / width), width, chunks, chunks};
}

// Chunks per row and elements per chunk, as dispatch_chunk will choose them.
struct Chunks {
  int64_t count;
  bool packs;

  explicit Chunks(const NormInputs& a) {
    check(a.x, "x").on_gpu().floating().rank(2);  // check_all checks the rest
    const int64_t bytes = a.x.size(1) * a.x.element_size();
    packs = bytes % 16 == 0 && is_aligned(a.x, 16) && is_aligned(a.weight, 16) &&
            is_aligned(a.bias, 16) && (!a.residual || is_aligned(*a.residual, 16));
    count = packs ? bytes / 16 : a.x.size(1);
  }
  bool fit_block() const { return count <= int64_t{MAX_BLOCK} * (packs ? EACH<16> : EACH<1>); }
};

Normed norm_v2(const NormInputs& a) {
  if (!Chunks(a).fit_block()) {
    fell_back("layer_norm_v1_reread", "a row too long for the registers of a block");
    return norm_v1(a);
  }
  return normalise(a, "layer_norm_v2_registers", [&](const auto& m, auto residual) {
    constexpr int N = sizeof(m.x->at) / sizeof(m.x->at[0]);
    if constexpr (N > 1) {
      if (launch_v2_even<residual>(m, current_stream(a.x))) return;
    }
    const Split split = registers_split(m.rows, m.chunks, EACH<N>);
    const unsigned grid = grid_size(ceil_div<int64_t>(m.rows, split.teams), "x");
    layer_norm_v2_registers_kernel<residual>
        <<<grid, split.teams * split.width, 0, current_stream(a.x)>>>(m, split);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: persistent threads with fixed columns. Weight and bias are loaded once, instead of
// once per row, and stay in registers. The next rows come to shared memory by cp.async while this
// one is computed; a thread reads only what it copied itself. A row above 16 KB is shared by the
// blocks of a cluster. Three blocks are resident, so that the others compute while one waits for
// its cluster.

template <bool RESIDUAL, bool CLUSTER, typename T, int N>
__global__ void __launch_bounds__(RING_BLOCK, RESIDUAL ? 2 : 3)
    layer_norm_v3_cluster_kernel(Rows<T, N> m, Split split) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using C = Chunk<T, N>;
  constexpr int TENSORS = RESIDUAL ? 2 : 1;
  extern __shared__ __align__(128) char memory[];
  __shared__ WarpSums sums;
  __shared__ Merging<Moments> shared;
  Place p(split, CLUSTER ? ptx::cluster_block_rank() : 0);
  // Pack k of tensor t (0: x, later h; 1: residual) of a stage.
  auto* const ring = reinterpret_cast<C*>(memory) + threadIdx.x;
  const auto at = [&](int stage, int t, int k) {
    return ring + ((stage * TENSORS + t) * PACKS + k) * RING_BLOCK;
  };
  const auto copy = [&](int64_t row, int stage) {
    const int64_t start = p.at(row, 0);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k >= p.count(row)) break;
      ptx::cp_async<16>(at(stage, 0, k), m.x + start + k * p.width);
      if (RESIDUAL) ptx::cp_async<16>(at(stage, 1, k), m.residual + start + k * p.width);
    }
    ptx::cp_async_commit();  // also an empty group, so that each row is one
  };
  for (int s = 0; s < STAGES - 1; ++s) copy(p.row + s * p.step, s);
  RawChunk<C> weight[PACKS], bias[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (k >= p.mine) break;
    weight[k] = load_raw(m.weight + p.at(0, k));
    bias[k] = load_raw(m.bias + p.at(0, k));
  }
  begin_merging<CLUSTER>(shared);

  for (int stage = 0, round = 0; p.goes_on(); ++round, p.row += p.step) {
    copy(p.row + (STAGES - 1) * p.step, (stage + STAGES - 1) % STAGES);
    ptx::cp_async_wait<STAGES - 1>();  // this row has come; those of the younger groups may not
    const int count = p.count(p.row);
    const int64_t start = p.at(p.row, 0);
#pragma unroll
    for (int k = 0; RESIDUAL && k < PACKS; ++k) {
      if (k >= count) break;
      const C sum = added(load_whole(at(stage, 0, k)), load_whole(at(stage, 1, k)));
      m.h[start + k * p.width] = *at(stage, 0, k) = sum;
    }
    const auto part = [&](int k) { return widened(load_raw(at(stage, 0, k))); };
    const float elements = p.row < p.rows ? p.of_block * static_cast<float>(N) : 0;
    const Moments block = moments_of_block<PACKS>(count, elements, part, sums, p);
    const Moments row = merge_blocks<CLUSTER>(block, shared, round, p);
    const Statistics s = statistics_of(row, m.eps);
    const Normal to(block.base, row.base - block.base + row.mean, s.rstd);
    keep_as_bits(weight);
    keep_as_bits(bias);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k >= count) break;
      m.y[start + k * p.width] = normalised(part(k), to, weight[k], bias[k]);
    }
    if (p.stores_row()) {
      m.mean[p.row] = s.mean;
      m.rstd[p.row] = s.rstd;
    }
    stage = (stage + 1) % STAGES;
  }
#endif
}

bool fits_cluster(const NormInputs& a) {
  const Chunks chunks(a);
  return chunks.packs && has_capability(8, 0) &&
         shared_memory_fits(a.x, sizeof(Merging<Moments>), ring_bytes(a.residual)) &&
         fits(chunks.count, RING_BLOCK, PACKS);
}

Normed norm_v3(const NormInputs& a) {
  check(a.x, "x").on_gpu();
  const DeviceGuard guard(a.x);
  if (!fits_cluster(a)) {
    fell_back("layer_norm_v2_registers",
              "rows that are not made of aligned packs, above 256 KB, or above 16 KB on a card "
              "without clusters, or a card without cp.async or without the shared memory");
    return norm_v2(a);
  }
  return normalise(a, "layer_norm_v3_cluster", [&](const auto& m, auto residual) {
    const Split split = split_rows(m.rows, m.chunks, RING_BLOCK, PACKS);
    const auto launch = [&](auto kernel) {
      RowLaunch launch(a.x, kernel, split, ring_bytes(residual));
      const int64_t work = ceil_div<int64_t>(m.rows, split.teams);
      launch.launch(kernel, launch.resident(a.x, kernel, work), m, split);
    };
    constexpr int N = sizeof(m.x->at) / sizeof(m.x->at[0]);
    using T = std::decay_t<decltype(m.x->at[0])>;
    if constexpr (N > 1) {
      if (split.blocks == 1) {
        launch(layer_norm_v3_cluster_kernel<residual, false, T, N>);
      } else if (is_wide(m.chunks)) {
        const int64_t blocks = m.chunks / WIDE_PACKS;
        launch_clusters(layer_norm_v3_even_kernel<residual, T, N>, grid_size(m.rows * blocks, "x"),
                        static_cast<unsigned>(blocks), RING_BLOCK, wide_bytes(residual),
                        current_stream(a.x), m);
      } else {
        launch(layer_norm_v3_cluster_kernel<residual, true, T, N>);
      }
    }
  });
}

// ---------------------------------------------------------------------------------------------
// v4: one launcher that chooses: registers of one block up to 32 KB, a cluster above, and v1 where
// nothing holds the row.

constexpr int64_t SHORT = 2048;  // packs

Normed norm_v4(const NormInputs& a) {
  const Chunks chunks(a);
  const DeviceGuard guard(a.x);
  if (chunks.count > SHORT && fits_cluster(a)) return norm_v3(a);
  return chunks.fit_block() ? norm_v2(a) : norm_v1(a);
}

// ---------------------------------------------------------------------------------------------
// The addition as a kernel of its own, and fused with the norm. h is an output in either case: it
// is the residual of the next layer.

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK)
    add_kernel(const Chunk<T, N>* __restrict__ x, const Chunk<T, N>* __restrict__ residual,
               Chunk<T, N>* __restrict__ h, int64_t chunks) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < chunks) h[i] = added(x[i], residual[i]);
}

using Output = std::tuple<Tensor, Tensor, Tensor>;             // y, mean, rstd
using SumOutput = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // h, y, mean, rstd

SumOutput add_layer_norm_v1_separate(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                     const Tensor& bias, double eps) {
  NormInputs{x, weight, bias, eps, &residual}.check_all();
  const Tensor h = output_like(x, "add", [&](auto zero, auto* h) {
    using T = decltype(zero);
    dispatch_chunk<T>(x.numel(), {&x, &residual}, [&](auto size) {
      using C = Chunk<T, size>;
      const int64_t chunks = x.numel() / size;
      const unsigned grid = grid_size(ceil_div<int64_t>(chunks, BLOCK), "x");
      add_kernel<<<grid, BLOCK, 0, current_stream(x)>>>(data<C>(x), data<C>(residual),
                                                        reinterpret_cast<C*>(h), chunks);
    });
  });
  const Normed n = norm_v4({h, weight, bias, eps, nullptr});
  return {h, n.y, n.mean, n.rstd};
}

SumOutput add_layer_norm_v2_fused(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                  const Tensor& bias, double eps) {
  const Normed n = norm_v4({x, weight, bias, eps, &residual});
  return {n.h, n.y, n.mean, n.rstd};
}

Output without_sum(const Normed& n) {
  return {n.y, n.mean, n.rstd};
}
Output layer_norm_v1_reread(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return without_sum(norm_v1({x, weight, bias, eps, nullptr}));
}
Output layer_norm_v2_registers(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               double eps) {
  return without_sum(norm_v2({x, weight, bias, eps, nullptr}));
}
Output layer_norm_v3_cluster(const Tensor& x, const Tensor& weight, const Tensor& bias,
                             double eps) {
  return without_sum(norm_v3({x, weight, bias, eps, nullptr}));
}
Output layer_norm_v4_chosen(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return without_sum(norm_v4({x, weight, bias, eps, nullptr}));
}

// ---------------------------------------------------------------------------------------------

#define LAYER_NORM "(Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)"
#define ADD_LAYER_NORM                                                  \
  "(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) " \
  "-> (Tensor, Tensor, Tensor, Tensor)"

RUNG(day45, layer_norm_v1_reread, LAYER_NORM);
RUNG(day45, layer_norm_v2_registers, LAYER_NORM);
RUNG(day45, layer_norm_v3_cluster, LAYER_NORM);
RUNG(day45, layer_norm_v4_chosen, LAYER_NORM);
RUNG(day45, add_layer_norm_v1_separate, ADD_LAYER_NORM);
RUNG(day45, add_layer_norm_v2_fused, ADD_LAYER_NORM);

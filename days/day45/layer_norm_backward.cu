// Day 45: layer norm for training, the backward pass
//
//   n = (h - mean) · rstd      g = gy · weight
//   gx = rstd · (g - mean_c(g) - n · mean_c(g · n)) + gh
//   gw[c] = sum_r gy[r, c] · n[r, c]        gb[c] = sum_r gy[r, c]
//
// gy, h, gh, gx: (rows, cols) in fp32, fp16 or bf16; mean, rstd: (rows,) in fp32, what the forward
// pass returned; weight, gw, gb: (cols,). gh is the upstream gradient of h itself, where h = x +
// residual has other users; then gx is the gradient of both x and residual.
// Bytes: 3 · rows · cols · sizeof(T), with gh 4. Operations: about 14 per element.
//
//   v1 separate  gx by one block per row; gw and gb by a kernel that reads gy and h again
//   v2 fused     gy and h read once, gw and gb in registers; rows up to 256 KB by clusters
//
// With gh, rows of 8 KB are computed by the kernel of even_rows_backward.cuh.
// Run: python run_day.py 45

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day45/even_rows_backward.cuh"

#include <optional>
#include <tuple>

// g is rounded: as part of an FMA, it would not cancel against a mean of g.
template <typename T>
__device__ Terms terms_of(T gy, T h, T weight, const Statistics& s) {
  return {__fmul_rn(static_cast<float>(gy), static_cast<float>(weight)),
          s.normalise(static_cast<float>(h))};
}

// gx of an element; means: those of g and g · n over the row. more: what is added, gh or 0.
template <typename T>
__device__ T gradient(const Terms& of, const Statistics& s, RowSums means, T more) {
  return static_cast<T>(s.rstd * (of.g - means.g - of.n * means.gn) + static_cast<float>(more));
}

// ---------------------------------------------------------------------------------------------
// v1: gx needs sums over rows, gw and gb need sums over columns: a kernel for each kind. Columns
// are summed in two steps, first over ROWS rows, then over what that left. The order is fixed, so
// equal inputs give equal bits.

constexpr int BLOCK = 512;
constexpr int ROWS = 512;      // per block of the first step
constexpr int ADD_WARPS = 32;  // of the second step

template <typename T>
__global__ void __launch_bounds__(BLOCK) layer_norm_gx_kernel(Backward<T, 1> b, Split split) {
  __shared__ Merging<RowSums> shared;
  const Place p(split, 0);
  const Statistics s = statistics_of(b, p.row);
  const int64_t start = p.row * b.chunks;
  const auto terms = [&](int64_t c) {
    return terms_of(b.gy[start + c].at[0], b.h[start + c].at[0], b.weight[c].at[0], s);
  };
  RowSums sums{0, 0};
  for (int64_t c = threadIdx.x; c < b.chunks; c += BLOCK) {
    sums.g += terms(c).g;
    sums.gn += terms(c).g * terms(c).n;
  }
  sums = merge_row<false>(merge_lanes(sums), shared, 0, p);
  const RowSums means{sums.g / b.chunks, sums.gn / b.chunks};
  for (int64_t c = threadIdx.x; c < b.chunks; c += BLOCK) {
    const T more = b.gh ? b.gh[start + c].at[0] : static_cast<T>(0.0f);
    b.gx[start + c].at[0] = gradient(terms(c), s, means, more);
  }
}

// partial (blocks along y, 2, cols): gw and gb over ROWS rows. A block of 32 × 16 threads sums 32
// columns; thread row y takes the rows y, y + 16 …
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    layer_norm_columns_kernel(Backward<T, 1> b, float* __restrict__ partial) {
  __shared__ float2 shared[BLOCK / 32][32];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  const int64_t first = int64_t{blockIdx.y} * ROWS, end = min(first + ROWS, b.rows);
  float2 sums{0, 0};
  for (int64_t r = first + threadIdx.y; r < end && c < b.chunks; r += BLOCK / 32) {
    const float gy = static_cast<float>(b.gy[r * b.chunks + c].at[0]);
    const float h = static_cast<float>(b.h[r * b.chunks + c].at[0]);
    sums.x += gy * statistics_of(b, r).normalise(h);
    sums.y += gy;
  }
  shared[threadIdx.y][threadIdx.x] = sums;
  __syncthreads();  // the first row of threads waits for the sums of all rows
  if (threadIdx.y > 0 || c >= b.chunks) return;
  for (int y = 1; y < BLOCK / 32; ++y) {
    sums.x += shared[y][threadIdx.x].x;
    sums.y += shared[y][threadIdx.x].y;
  }
  partial[blockIdx.y * 2 * b.chunks + c] = sums.x;
  partial[(blockIdx.y * 2 + 1) * b.chunks + c] = sums.y;
}

// gw and gb from partial (count, 2, cols). A block takes 32 of the 2 · cols sums, and its warp w
// adds the partial ones w, w + ADD_WARPS …
template <typename T>
__global__ void __launch_bounds__(32 * ADD_WARPS)
    add_partial_kernel(const float* __restrict__ partial, T* __restrict__ gw, T* __restrict__ gb,
                       int64_t count, int64_t cols) {
  __shared__ float sums[ADD_WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0;
#pragma unroll 4
  for (int64_t i = warp; i < count; i += ADD_WARPS) {
    if (c < 2 * cols) sum += partial[i * 2 * cols + c];
  }
  sums[warp][lane] = sum;
  __syncthreads();  // warp 0 waits for the sums of all warps
  if (warp > 0 || c >= 2 * cols) return;
  for (int w = 1; w < ADD_WARPS; ++w) sum += sums[w][lane];
  (c < cols ? gw[c] : gb[c - cols]) = static_cast<T>(sum);
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // gx, gw, gb

struct GradInputs {
  const Tensor &gy, &h, &mean, &rstd, &weight;
  const Tensor* gh;

  void check_all() const {
    check(gy, "gy").on_gpu().floating().rank(2).contiguous();
    STD_TORCH_CHECK(gy.size(1) > 0, "gy: expected at least one column, got shape ", shape_of(gy));
    check(h, "h").on_gpu().like(gy, "gy").contiguous();
    check(mean, "mean").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
    check(mean, "mean").same_device(gy, "gy").size(0, gy.size(0));
    check(rstd, "rstd").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
    check(rstd, "rstd").same_device(gy, "gy").size(0, gy.size(0));
    check(weight, "weight").on_gpu().dtype({gy.scalar_type()}).rank(1).contiguous();
    check(weight, "weight").same_device(gy, "gy").size(0, gy.size(1));
    if (gh) check(*gh, "gh").on_gpu().like(gy, "gy").contiguous();
  }
  int64_t rows() const { return gy.size(0); }
  int64_t cols() const { return gy.size(1); }
};

// The second step; partial: (count, 2, cols).
template <typename T>
void add_partial(const Tensor& partial, Tensor& gw, Tensor& gb) {
  const int64_t cols = gw.size(0);
  add_partial_kernel<<<grid_size(ceil_div<int64_t>(2 * cols, 32), "weight"), 32 * ADD_WARPS, 0,
                       current_stream(gw)>>>(data<float>(partial), mutable_data<T>(gw),
                                             mutable_data<T>(gb), partial.size(0), cols);
}

// Checks the arguments, allocates the results, and calls launch(Backward): it returns the partial
// sums, from which gw and gb are made.
template <typename Launch>
Gradients go_back(const GradInputs& a, const char* kernel, Launch&& launch) {
  a.check_all();
  const DeviceGuard guard(a.gy);
  Tensor gx = allocate_like(a.gy);
  Tensor gw = allocate_like(a.weight), gb = allocate_like(a.weight);
  dispatch_floating(a.gy, [&](auto zero) {
    using T = decltype(zero);
    dispatch_chunk<T>(a.cols(), {&a.gy, &a.h, &a.weight, a.gh}, [&](auto size) {
      using C = Chunk<T, size>;
      const Tensor partial =
          launch(Backward<T, size>{data<C>(a.gy), data<C>(a.h), a.gh ? data<C>(*a.gh) : nullptr,
                                   data<C>(a.weight), mutable_data<C>(gx), data<float>(a.mean),
                                   data<float>(a.rstd), a.rows(), a.cols() / size});
      add_partial<T>(partial, gw, gb);
    });
  });
  check_launch(kernel);
  return {gx, gw, gb};
}

Tensor partial_sums(const GradInputs& a, int64_t count) {
  return allocate(a.gy, {count, 2, a.cols()}, ScalarType::Float);
}

// The same tensors, as chunks of one element.
template <typename T, int N>
Backward<T, 1> by_element(const Backward<T, N>& b) {
  const auto in = [](const Chunk<T, N>* p) { return reinterpret_cast<const Chunk<T, 1>*>(p); };
  return {in(b.gy), in(b.h), in(b.gh), in(b.weight), reinterpret_cast<Chunk<T, 1>*>(b.gx),
          b.mean,   b.rstd,  b.rows,   b.chunks * N};
}

Gradients backward_v1(const GradInputs& a) {
  return go_back(a, "layer_norm_backward_v1_separate", [&](const auto& chunks) {
    const auto b = by_element(chunks);
    const int64_t steps = ceil_div<int64_t>(b.rows, ROWS);
    const Tensor partial = partial_sums(a, steps);
    if (b.rows == 0) return partial;
    const Split split = whole_rows(b.rows, BLOCK);
    const auto stream = current_stream(a.gy);
    layer_norm_gx_kernel<<<grid_size(b.rows, "gy"), BLOCK, 0, stream>>>(b, split);
    const dim3 grid(grid_size(ceil_div<int64_t>(b.chunks, 32), "gy"), grid_size_y(steps, "gy"));
    layer_norm_columns_kernel<<<grid, dim3(32, BLOCK / 32), 0, stream>>>(
        b, mutable_data<float>(partial));
    return partial;
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: gy and h are read once. A team of warps, or a cluster of blocks, takes many rows,
// and each thread adds to gw and gb of its own columns in registers. The next rows come to shared
// memory by cp.async while this one is computed. A thread reads only what it copied itself.

template <bool CLUSTER, typename T, int N>
__global__ void __launch_bounds__(BLOCK, 1)
    layer_norm_backward_v2_fused_kernel(Backward<T, N> b, Split split,
                                        float* __restrict__ partial) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using C = Chunk<T, N>;
  extern __shared__ __align__(128) char memory[];
  __shared__ Merging<RowSums> shared;
  Place p(split, CLUSTER ? ptx::cluster_block_rank() : 0);
  const int64_t cols = b.chunks * N;
  const float per_column = 1.0f / cols;

  // Pack k of tensor t (0: gy, 1: h) of a stage.
  auto* const ring = reinterpret_cast<C*>(memory) + threadIdx.x;
  const auto at = [&](int stage, int t, int k) {
    return ring + ((stage * 2 + t) * PACKS + k) * blockDim.x;
  };
  const auto copy = [&](int64_t row, int stage) {
    const int64_t start = p.at(row, 0);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k >= p.count(row)) break;
      ptx::cp_async<16>(at(stage, 0, k), b.gy + start + k * p.width);
      ptx::cp_async<16>(at(stage, 1, k), b.h + start + k * p.width);
    }
    ptx::cp_async_commit();  // also an empty group, so that all threads count alike
  };
  for (int s = 0; s < STAGES - 1; ++s) copy(p.row + s * p.step, s);

  RawChunk<C> weight[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (k < p.mine) weight[k] = load_raw(b.weight + p.at(0, k));
  }
  float gw[PACKS][N] = {}, gb[PACKS][N] = {};
  Statistics s = statistics_of(b, p.row);
  begin_merging<CLUSTER>(shared);

  for (int stage = 0, round = 0; p.goes_on(); ++round, p.row += p.step) {
    copy(p.row + (STAGES - 1) * p.step, (stage + STAGES - 1) % STAGES);
    const int count = p.count(p.row);
    const int64_t start = p.at(p.row, 0);
    RawChunk<C> more[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (b.gh && k < count) more[k] = load_raw(b.gh + start + k * p.width);
    }
    const Statistics next = statistics_of(b, p.row + p.step);  // in flight, like the copies
    ptx::cp_async_wait<STAGES - 1>();  // this row has come; those of the younger groups may not
    keep_as_bits(weight);
    Terms terms[PACKS][N];
    RowSums sums{0, 0};
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k >= count) break;
      const C gy = load_whole(at(stage, 0, k)), h = load_whole(at(stage, 1, k));
      const C w = weight[k].chunk();
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Terms of = terms_of(gy.at[i], h.at[i], w.at[i], s);
        sums.g += of.g;
        sums.gn += of.g * of.n;
        gw[k][i] += static_cast<float>(gy.at[i]) * of.n;
        gb[k][i] += static_cast<float>(gy.at[i]);
        terms[k][i] = of;
      }
    }
    sums = merge_row<CLUSTER>(merge_lanes(sums), shared, round, p);
    const RowSums means{sums.g * per_column, sums.gn * per_column};
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (k >= count) break;
      const C add = b.gh ? more[k].chunk() : C{};
      C gx;
#pragma unroll
      for (int i = 0; i < N; ++i) gx.at[i] = gradient(terms[k][i], s, means, add.at[i]);
      b.gx[start + k * p.width] = gx;
    }
    stage = (stage + 1) % STAGES;
    s = next;
  }

  // The sums of this team, (2, cols) of partial (teams of the grid, 2, cols).
  const int64_t team = int64_t{blockIdx.x} / split.blocks * split.teams + p.team;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (k >= p.mine) break;
    store_sums(partial + team * 2 * cols + p.at(0, k) * N, cols, gw[k], gb[k]);
  }
#endif
}

// Whether this GPU can compute these rows by v2.
bool fits_fused(const GradInputs& a) {
  const int64_t bytes = a.cols() * a.gy.element_size();
  for (const Tensor* tensor : {&a.gy, &a.h, &a.weight, a.gh ? a.gh : &a.h}) {
    if (!is_aligned(*tensor, 16)) return false;
  }
  return a.rows() > 0 && bytes % 16 == 0 && has_capability(8, 0) &&
         shared_memory_fits(a.gy, sizeof(Merging<RowSums>), ring_bytes(BLOCK, 2)) &&
         fits(bytes / 16, BLOCK, PACKS);
}

// Blocks of 256 threads, of which two are resident: one computes while the other waits. Those of
// 512 threads where a row fits no cluster of smaller ones, or does without a cluster.
Split split_for(int64_t rows, int64_t chunks) {
  const bool alone = chunks > SMALL_BLOCK * PACKS && chunks <= BLOCK * PACKS;
  const bool large = alone || chunks > MAX_CLUSTER * SMALL_BLOCK * PACKS;
  return split_rows(rows, chunks, large ? BLOCK : SMALL_BLOCK, PACKS);
}

Gradients backward_v2(const GradInputs& a) {
  a.check_all();
  const DeviceGuard guard(a.gy);
  if (!fits_fused(a)) {
    fell_back("layer_norm_backward_v1_separate",
              "no rows, rows that are not made of aligned packs or above 256 KB, or a card without "
              "cp.async, without 99 KB of shared memory per block, or without clusters for rows "
              "above 16 KB");
    return backward_v1(a);
  }
  return go_back(a, "layer_norm_backward_v2_fused", [&](const auto& b) {
    const Split split = split_for(b.rows, b.chunks);
    const auto launch = [&](auto kernel, int tensors, auto... more) {
      RowLaunch launch(a.gy, kernel, split, ring_bytes(split.teams * split.width, tensors));
      const int64_t work = ceil_div<int64_t>(b.rows, split.teams * FEWEST);
      const int64_t clusters = launch.resident(a.gy, kernel, work);
      Tensor partial = partial_sums(a, clusters * split.teams);
      launch.launch(kernel, clusters, b, more..., mutable_data<float>(partial));
      return partial;
    };
    constexpr int N = sizeof(b.h->at) / sizeof(b.h->at[0]);
    using T = std::decay_t<decltype(b.h->at[0])>;
    if constexpr (N > 1) {
      if (b.gh && b.chunks == EVEN_CHUNKS) {
        return launch(layer_norm_backward_v2_even_kernel<T, N>, 3);
      }
      return split.blocks > 1 ? launch(layer_norm_backward_v2_fused_kernel<true, T, N>, 2, split)
                              : launch(layer_norm_backward_v2_fused_kernel<false, T, N>, 2, split);
    } else {
      return partial_sums(a, 0);  // not reached: fits_fused refuses single elements
    }
  });
}

// ---------------------------------------------------------------------------------------------

const Tensor* pointer(const std::optional<Tensor>& t) {
  return t ? &*t : nullptr;
}
Gradients layer_norm_backward_v1_separate(const Tensor& gy, const Tensor& h, const Tensor& mean,
                                          const Tensor& rstd, const Tensor& weight,
                                          const std::optional<Tensor>& gh) {
  return backward_v1({gy, h, mean, rstd, weight, pointer(gh)});
}
Gradients layer_norm_backward_v2_fused(const Tensor& gy, const Tensor& h, const Tensor& mean,
                                       const Tensor& rstd, const Tensor& weight,
                                       const std::optional<Tensor>& gh) {
  return backward_v2({gy, h, mean, rstd, weight, pointer(gh)});
}

#define BACKWARD                                                                        \
  "(Tensor gy, Tensor h, Tensor mean, Tensor rstd, Tensor weight, Tensor? gh=None) -> " \
  "(Tensor, Tensor, Tensor)"
RUNG(day45, layer_norm_backward_v1_separate, BACKWARD);
RUNG(day45, layer_norm_backward_v2_fused, BACKWARD);

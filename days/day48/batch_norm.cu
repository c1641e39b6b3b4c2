// Day 48: batch normalisation
//
//   y = (x - mean[c]) · rstd[c] · weight[c] + bias[c]        x, y: (N, C, …), NCHW or channels_last
//   mean, rstd: of all M elements of channel c of the batch; in inference, the running statistics
//   gx = weight · rstd · (gy - mean(gy) - n · mean(gy · n))  n = (x - mean) · rstd
//   gw = sum of gy · n     gb = sum of gy                    weight, bias, gw, gb: (C,) in fp32
//
// Bytes: training reads x twice, for the statistics and for y, and writes y: 3 passes of M · C ·
// sizeof(T); its gradient reads x and gy twice and writes gx: 5. What stays on the chip between the
// two reads need not come from memory again: 2 and 3 passes. Operations: about 10 per element.
//
//   v1 naive     one block per channel; mean, then variance, then y: x is read three times
//   v2 welford   many blocks per channel, one pass for both statistics, whole chunks of 16 bytes;
//                distances from a base, merged by Chan's formula: Welford's divides per element
//   v3 fused     in batch_norm_fused.cu: one launch, which keeps what fits in shared memory
//
// Run: python run_day.py 48

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/tree_reduce.cuh"      // taught in day 5
#include "days/day48/channels.cuh"
#include "days/day48/slices.cuh"

// ---------------------------------------------------------------------------------------------
// v1: one block per channel, element by element, in either layout. In channels_last the elements of
// a channel are C apart: each lane reads another sector.

// The sum of f(i) over the elements i of a channel, in every thread. All threads must call it.
template <typename F>
__device__ float channel_sum(int64_t count, F f) {
  __shared__ float partial[BLOCK];
  float mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += BLOCK) mine += f(i);
  partial[threadIdx.x] = mine;
  return tree_reduce(partial, [](float a, float b) { return a + b; });
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) batch_norm_v1_naive_kernel(Arguments p, Sizes s) {
  const int64_t c = blockIdx.x, count = s.count();
  const auto x = [&](int64_t i) {
    return static_cast<float>(static_cast<const T*>(p.in[0])[s.at(c, i)]);
  };
  const float mean = channel_sum(count, x) / count;
  const float m2 = channel_sum(count, [&](int64_t i) { return (x(i) - mean) * (x(i) - mean); });
  const Part all{static_cast<float>(count), mean, m2};
  const float4 k = Forward::coefficients(all, 0, c, p, threadIdx.x == 0);
  for (int64_t i = threadIdx.x; i < count; i += BLOCK) {
    static_cast<T*>(p.out)[s.at(c, i)] = static_cast<T>(Forward::result(k, x(i), 0));
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) batch_norm_backward_v1_naive_kernel(Arguments p, Sizes s) {
  const int64_t c = blockIdx.x, count = s.count();
  const auto load = [&](int tensor, int64_t i) {
    return static_cast<float>(static_cast<const T*>(p.in[tensor])[s.at(c, i)]);
  };
  const float mean = p.mean[c];
  const float sum = channel_sum(count, [&](int64_t i) { return load(1, i); });
  const float dot = channel_sum(count, [&](int64_t i) { return load(1, i) * (load(0, i) - mean); });
  const Part all{static_cast<float>(count), sum, dot};
  const float4 k = Backward::coefficients(all, mean, c, p, threadIdx.x == 0);
  for (int64_t i = threadIdx.x; i < count; i += BLOCK) {
    static_cast<T*>(p.out)[s.at(c, i)] =
        static_cast<T>(Backward::result(k, load(0, i), load(1, i)));
  }
}

Outputs batch_norm_v1_naive(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Optional& running_mean, const Optional& running_var,
                            double momentum, double eps) {
  Outputs out;
  Arguments p{};
  const Sizes s =
      prepare_forward(x, weight, bias, running_mean, running_var, momentum, eps, out, p);
  if (x.numel() == 0) return out;
  const DeviceGuard guard(x);
  dispatch_floating(x, [&](auto zero) {
    batch_norm_v1_naive_kernel<decltype(zero)>
        <<<grid_size(s.channels, "x"), BLOCK, 0, current_stream(x)>>>(p, s);
  });
  check_launch("batch_norm_v1_naive");
  return out;
}

Outputs batch_norm_backward_v1_naive(const Tensor& gy, const Tensor& x, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& weight, bool training) {
  Outputs out;
  Arguments p{};
  const Sizes s = prepare_backward(gy, x, mean, rstd, weight, training, out, p);
  if (x.numel() == 0) return out;
  const DeviceGuard guard(x);
  dispatch_floating(x, [&](auto zero) {
    batch_norm_backward_v1_naive_kernel<decltype(zero)>
        <<<grid_size(s.channels, "x"), BLOCK, 0, current_stream(x)>>>(p, s);
  });
  check_launch("batch_norm_backward_v1_naive");
  return out;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: two launches. In the first, each block leaves one part per slice of a channel; in
// the second, each block merges the parts of its channels, always in the same order, and computes
// its slice of the output. The slices that the first launch read last come first: they have had the
// least time to be evicted from L2.
// A thread of channels_last has N channels, and needs up to 128 registers for them.

template <class Pass, typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2) planes_reduce_kernel(Arguments p, Planes g) {
  __shared__ Part partial[BLOCK];
  const int64_t channel = blockIdx.x / g.slices;
  const float origin = Pass::template origin<T>(p, channel, channel * g.plane * N);
  const PlaneWalk walk(g, channel, blockIdx.x % g.slices);
  const Part part = planes_part<Pass, T, N>(walk, p, origin, partial);
  if (threadIdx.x == 0) p.partial[blockIdx.x] = part;
}

template <class Pass, typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2) planes_apply_kernel(Arguments p, Planes g, int parts) {
  const int64_t block = gridDim.x - 1 - blockIdx.x, channel = block / g.slices;
  const int slice = static_cast<int>(block % g.slices);
  Part all{};
  for (int s = 0; s < parts; ++s) all = Pass::merge(all, p.partial[channel * parts + s]);
  const bool writer = slice == 0 && threadIdx.x == 0;
  const float origin = Pass::template origin<T>(p, channel, channel * g.plane * N);
  const float4 k[1] = {Pass::coefficients(all, origin, channel, p, writer)};
  apply<Pass, T, N>(PlaneWalk(g, channel, slice), p, k);
}

template <class Pass, typename T, int N>
__global__ void __launch_bounds__(BLOCK, 1) rows_reduce_kernel(Arguments p, Rows g) {
  __shared__ RowsMemory<N> memory;
  const int strip = blockIdx.x % g.strips, slice = blockIdx.x / g.strips;
  rows_parts<Pass, T, N>(RowWalk(g, strip, slice, false), p, g, strip, slice, memory);
}

template <class Pass, typename T, int N>
__global__ void __launch_bounds__(BLOCK, 1) rows_apply_kernel(Arguments p, Rows g, int parts) {
  __shared__ RowsMemory<N> memory;
  const int strip = blockIdx.x % g.strips, slice = g.slices - 1 - blockIdx.x / g.strips;
  float4 k[N];
  rows_coefficients<Pass, T, N>(p, g, strip, parts, slice == 0, memory, k);
  apply<Pass, T, N>(RowWalk(g, strip, slice, true), p, k);
}

// Launches one kernel or both. REDUCE: whether the pass has statistics to find.
template <class Pass, bool REDUCE>
void launch_v2(const Tensor& x, const Sizes& s, Arguments p) {
  const DeviceGuard guard(x);
  const int64_t blocks = multiprocessor_count(x);
  const cudaStream_t stream = current_stream(x);
  with_chunks(x, s, p, [&](auto zero, auto n) {
    using T = decltype(zero);
    constexpr int N = n();
    Tensor partial;
    const auto make_parts = [&](int64_t slices) {
      partial = parts_for(x, s.channels * slices);
      p.partial = static_cast<Part*>(partial.mutable_data_ptr());
    };
    if (s.inner == 1) {
      // Each block of the second launch merges the parts of all: one round of blocks.
      const Rows g(s, N, REDUCE ? blocks : 4 * blocks);
      const unsigned grid = grid_size(int64_t{g.strips} * g.slices, "x");
      if constexpr (REDUCE) {
        make_parts(g.slices);
        rows_reduce_kernel<Pass, T, N><<<grid, BLOCK, 0, stream>>>(p, g);
      }
      rows_apply_kernel<Pass, T, N><<<grid, BLOCK, 0, stream>>>(p, g, REDUCE ? g.slices : 0);
    } else {
      const Planes g(s, N, planes_slices(s, N, 4 * blocks));  // at least two rounds
      const unsigned grid = grid_size(s.channels * g.slices, "x");
      if constexpr (REDUCE) {
        make_parts(g.slices);
        planes_reduce_kernel<Pass, T, N><<<grid, BLOCK, 0, stream>>>(p, g);
      }
      planes_apply_kernel<Pass, T, N><<<grid, BLOCK, 0, stream>>>(p, g, REDUCE ? g.slices : 0);
    }
  });
}

Outputs batch_norm_v2_welford(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const Optional& running_mean, const Optional& running_var,
                              double momentum, double eps) {
  Outputs out;
  Arguments p{};
  const Sizes s =
      prepare_forward(x, weight, bias, running_mean, running_var, momentum, eps, out, p);
  if (x.numel() == 0) return out;
  launch_v2<Forward, true>(x, s, p);
  check_launch("batch_norm_v2_welford");
  return out;
}

Outputs batch_norm_backward_v2_split(const Tensor& gy, const Tensor& x, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& weight, bool training) {
  Outputs out;
  Arguments p{};
  const Sizes s = prepare_backward(gy, x, mean, rstd, weight, training, out, p);
  if (x.numel() == 0) return out;
  launch_v2<Backward, true>(x, s, p);
  check_launch("batch_norm_backward_v2_split");
  return out;
}

// Inference is the second launch of v2 alone: 2 passes.
Tensor batch_norm_inference(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& running_mean, const Tensor& running_var, double eps) {
  const Sizes s = sizes_of(x);
  check_per_channel(weight, "weight", x);
  check_per_channel(bias, "bias", x);
  check_per_channel(running_mean, "running_mean", x);
  check_per_channel(running_var, "running_var", x);
  check_eps(eps);
  Tensor y = allocate_like(x);
  if (x.numel() == 0) return y;
  Arguments p{};
  p.in[0] = x.const_data_ptr();
  p.out = y.mutable_data_ptr();
  p.weight = data<float>(weight);
  p.bias = data<float>(bias);
  p.running_mean = const_cast<float*>(data<float>(running_mean));  // Inference only reads them
  p.running_var = const_cast<float*>(data<float>(running_var));
  p.eps = static_cast<float>(eps);
  launch_v2<Inference, false>(x, s, p);
  check_launch("batch_norm_inference");
  return y;
}

// ---------------------------------------------------------------------------------------------

RUNG(day48, batch_norm_v1_naive, FORWARD);
RUNG(day48, batch_norm_v2_welford, FORWARD);
RUNG(day48, batch_norm_backward_v1_naive, BACKWARD);
RUNG(day48, batch_norm_backward_v2_split, BACKWARD);
RUNG(day48, batch_norm_inference,
     "(Tensor x, Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, float eps) "
     "-> Tensor");

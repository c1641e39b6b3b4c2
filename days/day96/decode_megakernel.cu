// Day 96: a GPT-2 that decodes its next tokens, up to all of it in one kernel
//
//   x = wte[token] + wpe[position]                                   x: (C); all weights in bf16
//   of each layer:  q, k, v = LN(x) Wqkvᵀ + b;  x += attention(q, cache with k, v) Wprojᵀ + b
//                   x += gelu(LN(x) Wfcᵀ + b) Woutᵀ + b
//   logits = LN(x) wteᵀ;  the next token has the largest                    `steps` times
//
// GPT-2 of 124 million parameters: C = 768, 12 layers, 50,257 words. Bytes per token: 2 per weight,
// 170 MB of the layers and 77 MB of wte, and 36,864 per position of the cache, 19 MB at 512. A
// matrix is 1.2 to 4.7 MB: 0.3 to 1.1 µs at 4.3 TB/s, an H200's copy, less than all blocks wait.
//
//   v1 kernels     one kernel per operation: 8 per layer
//   v2 fused       5 per layer: every block computes the norm, attention fills the cache
//   v3 persistent  one kernel: the phases of v2, and a barrier of the grid after each
//   v4 stream      no barrier: numbers arrive with a tag, weights through a ring ahead of their use
//
// Run: python run_day.py 96

#include <cooperative_groups.h>

#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day96/arguments.cuh"
#include "days/day96/megakernel.cuh"
#include "days/day96/phases.cuh"

// ---------------------------------------------------------------------------------------------
// v1: a kernel per operation: norm, product with its bias and what follows element by element,
// filling the cache, attention.

#define MODEL const __grid_constant__ Model m, const Buffers b, int layer, int step

__global__ void __launch_bounds__(THREADS) embed_kernel(MODEL) {
  embed(m, b, step);
}

__global__ void __launch_bounds__(THREADS) norm_kernel(MODEL, int kind) {
  extern __shared__ float vector[];
  for (int c = threadIdx.x; c < m.C; c += THREADS) vector[c] = b.x[c];
  __syncthreads();  // the vector is complete
  normalise(vector, norm_before(m, kind, layer), m.C);
  for (int c = threadIdx.x; c < m.C; c += THREADS) b.normed[c] = vector[c];
}

__global__ void __launch_bounds__(THREADS) append_kernel(MODEL) {
  const int c = blockIdx.x * THREADS + threadIdx.x;  // of k, then v
  if (c >= 2 * m.C) return;
  append(m, layer, 1 + c / m.C, c % m.C / m.D, m.first + step, c % m.D, b.qkv[m.C + c], true);
}

template <int KIND, bool NORM>
__global__ void __launch_bounds__(THREADS) multiply_kernel(MODEL) {
  extern __shared__ float vector[];
  multiply<KIND, NORM>(m, b, layer, step, vector);
}

template <bool STORE>
__global__ void __launch_bounds__(THREADS) attend_kernel(MODEL) {
  __shared__ AttendShared shared;
  attend_heads<STORE>(m, b, layer, step, shared);
}

__global__ void __launch_bounds__(THREADS) choose_kernel(MODEL) {
  __shared__ Best of_warps[WARPS];
  choose(m, step, of_warps);
}

// ---------------------------------------------------------------------------------------------
// The buffers of v1 to v3, and their memory.
std::tuple<Tensor, Buffers> new_buffers(const Tensor& wte) {
  const int64_t C = wte.size(1);
  Tensor memory = allocate(wte, {10 * C}, ScalarType::Float);
  float* const at = mutable_data<float>(memory);
  return {memory, {at, at + C, at + 2 * C, at + 5 * C, at + 6 * C}};
}

// One launch per phase. SEPARATE: v1, with norms and filling the cache in kernels of their own.
template <bool SEPARATE>
Decoded by_launches(PARAMETERS, const char* name) {
  return decode(ARGUMENTS, name, [&](const Model& m) {
    const auto [memory, b] = new_buffers(wte);
    const cudaStream_t stream = current_stream(wte);
    const auto product = [&](auto kind, int layer, int step) {
      constexpr int KIND = kind;
      constexpr bool NORM = KIND != PROJ && KIND != OUT, FUSED = NORM && !SEPARATE;
      const size_t bytes = m.C * m.units_per_row(KIND) * sizeof(float);
      if (NORM && SEPARATE) norm_kernel<<<1, THREADS, bytes, stream>>>(m, b, layer, step, KIND);
      const auto kernel = multiply_kernel<KIND, FUSED>;
      const unsigned grid =
          resident_grid(wte, kernel, THREADS, bytes, ceil_div(m.rows(KIND), WARPS));
      kernel<<<grid, THREADS, bytes, stream>>>(m, b, layer, step);
    };
    for (int step = 0; step < m.steps; ++step) {
      embed_kernel<<<ceil_div(m.C, THREADS), THREADS, 0, stream>>>(m, b, 0, step);
      for (int layer = 0; layer < m.L; ++layer) {
        product(std::integral_constant<int, QKV>{}, layer, step);
        if (SEPARATE) {
          append_kernel<<<ceil_div(2 * m.C, THREADS), THREADS, 0, stream>>>(m, b, layer, step);
        }
        attend_kernel<!SEPARATE><<<m.H, THREADS, 0, stream>>>(m, b, layer, step);
        product(std::integral_constant<int, PROJ>{}, layer, step);
        product(std::integral_constant<int, FC>{}, layer, step);
        product(std::integral_constant<int, OUT>{}, layer, step);
      }
      product(std::integral_constant<int, HEAD>{}, 0, step);
      choose_kernel<<<1, THREADS, 0, stream>>>(m, b, 0, step);
    }
  });
}

Decoded decode_v1_kernels(PARAMETERS) {
  return by_launches<true>(ARGUMENTS, "decode_v1_kernels");
}

// v2 against v1: every block of a product computes the norm for itself, and attention fills the
// cache: three launches per layer less.
Decoded decode_v2_fused(PARAMETERS) {
  return by_launches<false>(ARGUMENTS, "decode_v2_fused");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one launch for all tokens. A barrier of the grid ends a phase.

__global__ void __launch_bounds__(THREADS)
    decode_v3_persistent_kernel(const __grid_constant__ Model m, const Buffers b) {
  extern __shared__ float vector[];
  __shared__ AttendShared shared;
  __shared__ Best of_warps[WARPS];
  const auto grid = cooperative_groups::this_grid();
  for (int step = 0; step < m.steps; ++step) {
    embed(m, b, step);
    grid.sync();  // every barrier here: all blocks have stored what the next phase reads
    for (int layer = 0; layer < m.L; ++layer) {
      multiply<QKV, true>(m, b, layer, step, vector);
      grid.sync();
      attend_heads<true>(m, b, layer, step, shared);
      grid.sync();
      multiply<PROJ, false>(m, b, layer, step, vector);
      grid.sync();
      multiply<FC, true>(m, b, layer, step, vector);
      grid.sync();
      multiply<OUT, false>(m, b, layer, step, vector);
      grid.sync();
    }
    multiply<HEAD, true>(m, b, 0, step, vector);
    grid.sync();
    if (blockIdx.x == 0) choose(m, step, of_warps);
    grid.sync();
  }
}

Decoded decode_v3_persistent(PARAMETERS) {
  return decode(ARGUMENTS, "decode_v3_persistent", [&](const Model& m) {
    const auto [memory, b] = new_buffers(wte);
    const size_t bytes = 4 * m.C * sizeof(float);
    const auto kernel = decode_v3_persistent_kernel;
    const unsigned grid = resident_grid(wte, kernel, THREADS, bytes, most_blocks(wte));
    launch_together(kernel, grid, bytes, current_stream(wte), m, b);
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: no barrier of the grid. A block sends each number with its tag, and waits for the
// numbers that it needs; while it waits, its ring fills with the weights of the phases to come.
//
// Nothing is overwritten too early: every block sends rows of every matrix, and needs all rows of
// the phase before. A block that sends to `qkv` for the second time has received `stream` from all
// blocks, and each of these had by then received all that it needs of the first time.
//
// Its kernel is in megakernel.cuh.

Decoded decode_v4_stream(PARAMETERS) {
  return decode(ARGUMENTS, "decode_v4_stream", [&](const Model& m) { stream(wte, m, Greedy{}); });
}

// ---------------------------------------------------------------------------------------------

#define SCHEMA                                                                           \
  "(Tensor wte, Tensor wpe, Tensor vectors, Tensor last_norm, Tensor qkv, Tensor proj, " \
  "Tensor fc, Tensor out, Tensor(a!) cache, Tensor token, int position, int steps) "     \
  "-> (Tensor, Tensor)"

RUNG(day96, decode_v1_kernels, SCHEMA);
RUNG(day96, decode_v2_fused, SCHEMA);
RUNG(day96, decode_v3_persistent, SCHEMA);
RUNG(day96, decode_v4_stream, SCHEMA);

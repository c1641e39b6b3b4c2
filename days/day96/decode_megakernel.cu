// Day 96: a GPT-2 that decodes its next tokens, up to all of it in one kernel
//
//   x = wte[token] + wpe[position]                                   x: (C); all weights in bf16
//   of each layer:  q, k, v = LN(x) Wqkvᵀ + b;  x += attention(q, cache with k, v) Wprojᵀ + b
//                   x += gelu(LN(x) Wfcᵀ + b) Woutᵀ + b
//   logits = LN(x) wteᵀ;  the next token has the largest                    `steps` times
//
// GPT-2 of 124 million parameters: C = 768, 12 layers, 50,257 words. Bytes per token: 2 per weight,
// 170 MB of the layers and 77 MB of wte, and 36,864 per position of the cache, 19 MB at 512. A
// matrix is 1.2 to 4.7 MB: 0.4 to 1.6 µs at 3 TB/s, less than it takes to wait for all blocks.
//
//   v1 kernels     one kernel per operation: 8 per layer
//   v2 fused       5 per layer: every block computes the norm, attention fills the cache
//   v3 persistent  one kernel: the phases of v2, and a barrier of the grid after each
//   v4 stream      no barrier: numbers arrive with a tag, weights through a ring ahead of their use
//
// Run: python run_day.py 96

#include <cooperative_groups.h>

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day96/phases.cuh"
#include "days/day96/worker.cuh"

#include <tuple>

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
// Arguments, as PyTorch has them.

#define PARAMETERS                                                                      \
  const Tensor &wte, const Tensor &wpe, const Tensor &vectors, const Tensor &last_norm, \
      const Tensor &qkv, const Tensor &proj, const Tensor &fc, const Tensor &out,       \
      const Tensor &cache, const Tensor &token, int64_t position, int64_t steps
#define ARGUMENTS wte, wpe, vectors, last_norm, qkv, proj, fc, out, cache, token, position, steps

using Decoded = std::tuple<Tensor, Tensor>;  // tokens (steps), logits (steps, V)
constexpr int64_t MOST_C = 2048, MOST_ROWS = 1 << 28;

// Checks, allocates the results, and calls run(model), which launches.
template <typename F>
Decoded decode(PARAMETERS, const char* name, F&& run) {
  check(wte, "wte").rank(2);
  const int64_t V = wte.size(0), C = wte.size(1);
  const auto weights = [&](const Tensor& t, const char* title,
                           std::initializer_list<int64_t> sizes) {
    const check checked(t, title);
    checked.on_gpu().dtype({ScalarType::BFloat16}).rank(static_cast<int64_t>(sizes.size()));
    checked.contiguous().same_device(wte, "wte");
    int64_t dim = 0;
    for (int64_t size : sizes) checked.size(dim++, size);
    STD_TORCH_CHECK(is_aligned(t, 16), title,
                    ": expected its first element on a multiple of 16 bytes");
  };
  check(qkv, "qkv").rank(3);
  check(cache, "cache").rank(5);
  const int64_t L = qkv.size(0), H = cache.size(2), P = cache.size(3), D = cache.size(4);
  STD_TORCH_CHECK(8 <= D && D <= MOST_D && (D & (D - 1)) == 0,
                  "cache: expected a power of two from 8 to ", MOST_D, " elements per head, got ",
                  D);
  STD_TORCH_CHECK(C == H * D && 0 < C && C <= MOST_C, "wte: expected the cache's ", H, " heads of ",
                  D, " channels, 1 to ", MOST_C, " in all, got ", C);
  STD_TORCH_CHECK(0 < V && V <= MOST_ROWS, "wte: expected 1 to 2^28 words, got ", V);
  STD_TORCH_CHECK(L <= 1 << 16 && P <= MOST_ROWS, "cache: expected at most 2^16 layers and 2^28 ",
                  "positions, got ", L, " and ", P);
  weights(wte, "wte", {V, C}), weights(wpe, "wpe", {P, C}),
      weights(last_norm, "last_norm", {2 * C});
  weights(vectors, "vectors", {L, VECTORS * C}), weights(qkv, "qkv", {L, 3 * C, C});
  weights(proj, "proj", {L, C, C}), weights(fc, "fc", {L, 4 * C, C}),
      weights(out, "out", {L, C, 4 * C});
  weights(cache, "cache", {L, 2, H, P, D});
  check(token, "token").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous().size(0, 1);
  check(token, "token").same_device(wte, "wte");
  STD_TORCH_CHECK(0 <= position && 1 <= steps && position <= P && steps <= P - position,
                  "position, steps: expected 0 and 1 at least, and a sum of at most ", P,
                  ", the positions of wpe and cache, got ", position, " and ", steps);
  const DeviceGuard guard(wte);
  Tensor tokens = torch::stable::new_empty(wte, {steps}, ScalarType::Long);
  Tensor logits = torch::stable::new_empty(wte, {steps, V}, ScalarType::Float);
  Model m{};
  m.matrices[QKV] = data<bf16>(qkv), m.matrices[PROJ] = data<bf16>(proj);
  m.matrices[FC] = data<bf16>(fc), m.matrices[OUT] = data<bf16>(out);
  m.matrices[HEAD] = data<bf16>(wte), m.positions = data<bf16>(wpe);
  m.vectors = data<bf16>(vectors), m.last_norm = data<bf16>(last_norm);
  m.cache = static_cast<bf16*>(cache.mutable_data_ptr()), m.token = data<int64_t>(token);
  m.tokens = mutable_data<int64_t>(tokens), m.logits = mutable_data<float>(logits);
  m.L = static_cast<int>(L), m.C = static_cast<int>(C), m.V = static_cast<int>(V);
  m.P = static_cast<int>(P), m.H = static_cast<int>(H), m.D = static_cast<int>(D);
  m.first = static_cast<int>(position), m.steps = static_cast<int>(steps);
  run(m);
  check_launch(name);
  return {tokens, logits};
}

// The buffers of v1 to v3, and their memory.
std::tuple<Tensor, Buffers> new_buffers(const Tensor& wte) {
  const int64_t C = wte.size(1);
  Tensor memory = torch::stable::new_empty(wte, {10 * C}, ScalarType::Float);
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

// A launch of blocks that wait for each other: refused unless all are resident at once.
template <typename... P, typename... A>
void launch_together(void (*kernel)(P...), unsigned blocks, size_t bytes, cudaStream_t stream,
                     A... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks), config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = bytes, config.stream = stream;
  config.attrs = &attribute, config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

// One block per multiprocessor, but none without QUOTA rows of the smallest matrix.
constexpr int QUOTA = 4;

int64_t most_blocks(const Tensor& wte) {
  return std::min<int64_t>(multiprocessor_count(wte), ceil_div<int64_t>(wte.size(1), QUOTA));
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

constexpr int SPLITS = 4;  // of a head's positions, each the task of one block

struct Mail {
  Word *qkv, *middle, *hidden, *stream;  // (3C), (C), (4C), (C); x is middle, then stream
  Word *parts, *best;                    // (H, SPLITS, D + 1), (blocks, 2)
  int length;                            // positions per split
};

// One element of attention's output, from those of the splits, which are divided by their sums of
// exponentials; log_sum is the log2 of such a sum, -inf where there is no split.
__device__ inline float merge_splits(const float (&value)[SPLITS], const float (&log_sum)[SPLITS]) {
  float most = -INFINITY, sum = 0, result = 0;
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) most = fmaxf(most, log_sum[s]);
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) {
    const float weight = exp2f(log_sum[s] - most);
    sum += weight;
    result += weight * value[s];
  }
  return result / sum;
}

template <int PER_LANE, int STAGES>
__global__ void __launch_bounds__(THREADS, 1)
    decode_v4_stream_kernel(const __grid_constant__ Model m, const Mail mail) {
  extern __shared__ uint4 dynamic_shared[];
  __shared__ AttendShared attend_shared;
  __shared__ Best of_warps[2][WARPS];
  __shared__ Share shares[MATRICES];
  constexpr int SLOTS = STAGES * PER_LANE * 32;  // per warp
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tid = threadIdx.x;
  if (tid < MATRICES) shares[tid] = share_of(m.rows(tid), blockIdx.x, gridDim.x);
  __syncthreads();  // the shares are written
  Raw* const slots = reinterpret_cast<Raw*>(dynamic_shared);
  float* const vector = reinterpret_cast<float*>(slots + WARPS * SLOTS);
  Worker<PER_LANE, STAGES> w{
      m, shares, vector, vector + 4 * m.C, {slots + warp * SLOTS + lane, {warp}}, warp};
  constexpr int BATCH = decltype(w)::BATCH;
  w.ring.start(m, shares);

  int64_t id = *m.token;
  for (int step = 0; step < m.steps; ++step) {
    const int position = m.first + step;
    // Tags of a layer, which no earlier layer or token had: 1 and up, since the words begin as 0.
    const unsigned first_tag = 1 + step * (m.L + 1u);
    unsigned tag = first_tag;
    const auto from_stream = [&] {  // x at the beginning of a layer
      if (tag != first_tag) return w.template gather<BATCH>(mail.stream, m.C, tag - 1);
      for (int c = tid; c < m.C; c += THREADS)
        vector[place_of(c, m.C)] = m.embedding(id, position, c);
    };
    // Element row of x, which only this thread changes.
    float residual =
        tid < shares[OUT].rows ? m.embedding(id, position, shares[OUT].first_row + tid) : 0;
    for (int layer = 0; layer < m.L; ++layer, ++tag) {
      w.template phase<QKV>(layer, QKV_BIAS, from_stream,
                            [&](int row, float y) { send(mail.qkv + row, tag, y); });

      for (int task = blockIdx.x; task < m.H * SPLITS; task += gridDim.x) {
        const int head = task / SPLITS, begin = task % SPLITS * mail.length;
        if (begin > position) continue;
        Word* const part = mail.parts + task * (m.D + 1);
        const auto fetch = [&](int which, int j) {
          float value = 0;
          const Word* const from = mail.qkv + which * m.C + head * m.D + j;
          receive<1>(
              tag, [&](int) { return from; },
              [&](int, unsigned bits) { value = __uint_as_float(bits); });
          return which == 0 ? value : append(m, layer, which, head, position, j, value, true);
        };
        attend(m, attend_shared, layer, head, begin, min(begin + mail.length, position + 1),
               position, fetch, [&](int j, float value, float log_sum) {
                 send(part + j, tag, value);
                 if (j == 0) send(part + m.D, tag, log_sum);
               });
      }

      const auto from_parts = [&] {
        for (int c = tid; c < m.C; c += THREADS) {
          const Word* const parts = mail.parts + c / m.D * SPLITS * (m.D + 1);
          float value[SPLITS] = {}, log_sum[SPLITS];
#pragma unroll
          for (int s = 0; s < SPLITS; ++s) log_sum[s] = -INFINITY;
          const auto at = [&](int i) {
            const int j = i % 2 == 0 ? c % m.D : m.D;
            return i / 2 * mail.length <= position ? parts + i / 2 * (m.D + 1) + j : nullptr;
          };
          receive<2 * SPLITS>(tag, at, [&](int i, unsigned bits) {
            (i % 2 == 0 ? value : log_sum)[i / 2] = __uint_as_float(bits);
          });
          vector[place_of(c, m.C)] = merge_splits(value, log_sum);
        }
      };
      w.template phase<PROJ>(layer, PROJ_BIAS, from_parts, [&](int row, float y) {
        send(mail.middle + row, tag, residual += y);
      });
      w.template phase<FC>(
          layer, FC_BIAS, [&] { w.template gather<BATCH>(mail.middle, m.C, tag); },
          [&](int row, float y) { send(mail.hidden + row, tag, gelu<float>(y)); });
      w.template phase<OUT>(
          layer, OUT_BIAS,
          [&] { w.template gather<std::min(4 * BATCH, 8)>(mail.hidden, 4 * m.C, tag); },
          [&](int row, float y) { send(mail.stream + row, tag, residual += y); });
    }

    Best best;
    float x[PER_LANE][PER_CHUNK];
    w.template load_x<HEAD>(x, 0, from_stream);
    w.multiply_units(x, shares[HEAD].rows, [&](int unit, float logit) {
      const int word = shares[HEAD].first_row + unit;
      m.logits[int64_t{step} * m.V + word] = logit;
      best.consider({logit, word});
    });
    best = block_best(best, of_warps[0]);
    Word* const of_block = mail.best + 2 * blockIdx.x;
    if (tid == 0)
      send(of_block, tag, best.logit), send(of_block + 1, tag, static_cast<unsigned>(best.index));
    if (step == m.steps - 1 && blockIdx.x != 0) return;  // block 0 tells the last token
    for (unsigned b = tid; b < gridDim.x; b += THREADS) {
      Best other;
      receive<2>(
          tag, [&](int i) { return mail.best + 2 * b + i; },
          [&](int i, unsigned bits) {
            if (i == 0) other.logit = __uint_as_float(bits);
            if (i == 1) other.index = static_cast<int>(bits);
          });
      best.consider(other);
    }
    id = block_best(best, of_warps[1]).index;
    if (blockIdx.x == 0 && tid == 0) m.tokens[step] = id;
  }
}

// Calls f with chunks per lane and stages: ten units of 768 channels, 180 KB in all, or fewer on
// cards with less shared memory.
template <typename F>
void dispatch_ring(const Tensor& wte, F&& f) {
  const int64_t C = wte.size(1);
  const bool is_large = shared_limit(wte) >= 220 << 10;
  const auto with = [&](auto per_lane) {
    if (is_large) return f(per_lane, std::integral_constant<int, std::min(16, 30 / per_lane)>{});
    f(per_lane, std::integral_constant<int, std::max(2, 8 / per_lane)>{});
  };
  if (C <= 256) return with(std::integral_constant<int, 1>{});
  if (C <= 768) return with(std::integral_constant<int, 3>{});
  with(std::integral_constant<int, 8>{});
}

Decoded decode_v4_stream(PARAMETERS) {
  return decode(ARGUMENTS, "decode_v4_stream", [&](const Model& m) {
    require_capability(8, 0, "cp.async");
    dispatch_ring(wte, [&](auto per_lane, auto stages) {
      const auto kernel = decode_v4_stream_kernel<per_lane, stages>;
      const int blocks = static_cast<int>(most_blocks(wte));
      STD_TORCH_CHECK(4 * m.C <= blocks * THREADS, "this card lacks multiprocessors for ", m.C,
                      " channels: ", blocks, " blocks have a thread for each of ", blocks * THREADS,
                      " rows");
      const int64_t bytes = int64_t{WARPS} * stages * per_lane * 512 +
                            int64_t{4} * (m.C + ceil_div(m.C, blocks)) * sizeof(float);
      require_shared_memory(bytes + sizeof(AttendShared) + 2048, "the ring of weights");
      allow_shared(kernel, bytes);
      // C words of each of 3 + 1 + 4 + 1, the parts, and two per block.
      const int64_t parts = int64_t{m.H} * SPLITS * (m.D + 1), words = 9 * m.C + parts + 2 * blocks;
      Tensor memory = torch::stable::new_empty(wte, {words}, ScalarType::Long);
      check_cuda(
          cudaMemsetAsync(memory.mutable_data_ptr(), 0, words * sizeof(Word), current_stream(wte)),
          "cudaMemsetAsync");
      Word* const at = static_cast<Word*>(memory.mutable_data_ptr());
      const int length = 16 * ceil_div(ceil_div(m.first + m.steps, SPLITS), 16);
      const Mail mail{at,           at + 3 * m.C,         at + 4 * m.C, at + 8 * m.C,
                      at + 9 * m.C, at + 9 * m.C + parts, length};
      launch_together(kernel, blocks, bytes, current_stream(wte), m, mail);
    });
  });
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

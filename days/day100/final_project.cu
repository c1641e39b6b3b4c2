// Day 100: text from a GPT-2, end to end: prefill of the prompt, then token by token
//
//   prefill   x (n, C) of all n tokens of a prompt goes through the layers at once, and leaves keys
//             and values in the cache and the logits of the last position. 2 operations per weight
//             and token: 85 million weights in layers and 512 tokens make 87 GFLOP, while 170 MB
//             of weights are read once.
//   decode    day 96's v4: 266 MB per token at position 512. Memory bound. The next token is drawn
//             with a temperature, top-k and top-p from Philox's numbers of (seed, position, word).
//
//   prefill v1 tokens     token by token through the decoder, which gets the prompt's next token
//   prefill v2 separate   all at once: cuBLAS's products, passes between them
//   prefill v3 epilogues  bias, GELU and additions in the products' registers (prefill.cu)
//   decode v1 launches    a launch per token, and one block that draws it
//   decode v2 inside      all blocks draw the token, and one launch decodes many
//   prefill v4 by size    so where the product has enough tiles for the card, else as v2
//   generate v1, v2       prefill v1 and decode v1; prefill v4 and decode v2
//
// Run: python run_day.py 100

#include "days/day100/prefill.cuh"
#include "days/day100/sampling.cuh"
#include "days/day96/phases.cuh"  // taught in day 96

// ---------------------------------------------------------------------------------------------
// Decode. The arguments are day 96's, and how the next token is drawn.

#define SAMPLING double temperature, int64_t top_k, double top_p, int64_t seed

Sampler sampler_of(const Tensor& wte, SAMPLING) {
  check(wte, "wte").rank(2);
  STD_TORCH_CHECK(wte.size(0) <= 1 << 24, "wte: expected at most 2^24 words, got ", wte.size(0));
  STD_TORCH_CHECK(temperature == 0 || (1e-3 <= temperature && temperature <= 1e3),
                  "temperature: expected 0, or a number from 0.001 to 1000, got ", temperature);
  STD_TORCH_CHECK(0 <= top_k && top_k <= 1 << 24,
                  "top_k: expected 1 to 2^24 words, or 0 for all, got ", top_k);
  STD_TORCH_CHECK(1e-6 <= top_p && top_p <= 1, "top_p: expected a share from 1e-6 to 1, got ",
                  top_p);
  return {temperature == 0 ? 0.0f : static_cast<float>(1 / temperature), static_cast<int>(top_k),
          static_cast<float>(top_p), static_cast<uint64_t>(seed)};
}

__device__ bool is_kept(const Sampler& s, float count, float mass, float total) {
  const bool by_count = s.top_k != 0, by_mass = s.top_p != 1;
  bool kept = true;
  if (by_count) kept = count < s.top_k;
  if (by_mass) kept = kept && mass < s.top_p * total;
  return kept;
}

// The model as it is at one of its steps, and as if that was the only one.
Model only_step(Model m, int step) {
  if (step > 0) m.token = m.tokens + step - 1;
  m.tokens += step, m.logits += int64_t{step} * m.V, m.first += step, m.steps = 1;
  return m;
}

// One block draws from all logits: there is no other block to exchange anything with.
__global__ void __launch_bounds__(THREADS)
    draw_kernel(const __grid_constant__ Model m, const Sampler sampler, Word* exchanged) {
  __shared__ Sampler::Shared shared;
  Exchange exchange{exchanged};
  const int64_t id = sampler.next(m, 0, {0, m.V}, {}, exchange, shared);
  if (threadIdx.x == 0) m.tokens[0] = id;
}

Decoded decode_v1_launches(PARAMETERS, SAMPLING) {
  const Sampler sampler = sampler_of(wte, temperature, top_k, top_p, seed);
  return decode(ARGUMENTS, "decode_v1_launches", [&](const Model& m) {
    const Tensor exchanged = allocate(wte, {2 * EXCHANGED}, ScalarType::Long);
    Word* const words = static_cast<Word*>(exchanged.mutable_data_ptr());
    for (int step = 0; step < m.steps; ++step) {
      const Model now = only_step(m, step);
      stream(wte, now, Greedy{});
      check_cuda(cudaMemsetAsync(words, 0, 2 * EXCHANGED * sizeof(Word), current_stream(wte)),
                 "cudaMemsetAsync");
      draw_kernel<<<1, THREADS, 0, current_stream(wte)>>>(now, sampler, words);
    }
  });
}

// v2 against v1: the blocks that have the logits draw the token, and go on with it.
Decoded decode_v2_inside(PARAMETERS, SAMPLING) {
  const Sampler sampler = sampler_of(wte, temperature, top_k, top_p, seed);
  return decode(ARGUMENTS, "decode_v2_inside", [&](const Model& m) { stream(wte, m, sampler); });
}

// ---------------------------------------------------------------------------------------------
// Prefill.

#define WEIGHTS                                                                         \
  const Tensor &wte, const Tensor &wpe, const Tensor &vectors, const Tensor &last_norm, \
      const Tensor &qkv, const Tensor &proj, const Tensor &fc, const Tensor &out,       \
      const Tensor &cache
#define GIVEN wte, wpe, vectors, last_norm, qkv, proj, fc, out, cache

// v1's choice of the next token: the prompt's.
struct Prompt {
  const int64_t* tokens;
  using Split = Run;
  struct Shared {};

  __device__ int64_t next(const Model& m, int step, const Share&, Best, Exchange&, Shared&) const {
    __syncthreads();  // all warps have read their vector before that of the next token is written
    return step + 1 < m.steps ? tokens[step + 1] : 0;
  }
};

int64_t length_of(const Tensor& prompt, const Tensor& wpe, const Tensor& wte) {
  check(prompt, "prompt").dtype({ScalarType::Long}).rank(1).contiguous().same_device(wte, "wte");
  check(wte, "wte").rank(2);
  check(wpe, "wpe").rank(2);
  STD_TORCH_CHECK(1 <= prompt.size(0) && prompt.size(0) <= wpe.size(0), "prompt: expected 1 to ",
                  wpe.size(0), " tokens, the positions of wpe, got ", prompt.size(0));
  return prompt.size(0);
}

Tensor part_of(Tensor t, int64_t at, int64_t count) {
  return torch::stable::narrow(t, 0, at, count);
}

// The logits (V) of the last position.
Tensor prefill_v1_tokens(WEIGHTS, const Tensor& prompt) {
  const int64_t n = length_of(prompt, wpe, wte);
  const auto logits =
      std::get<1>(decode(GIVEN, part_of(prompt, 0, 1), 0, n, "prefill_v1_tokens",
                         [&](const Model& m) { stream(wte, m, Prompt{data<int64_t>(prompt)}); }));
  return torch::stable::view(part_of(logits, n - 1, 1), {wte.size(0)});
}

__global__ void __launch_bounds__(THREADS)
    head_kernel(const __grid_constant__ Model m, const bf16* row) {
  extern __shared__ float vector[];
  for (int c = threadIdx.x; c < m.C; c += THREADS) vector[c] = static_cast<float>(row[c]);
  __syncthreads();  // the vector is complete
  normalise(vector, m.last_norm, m.C);
  multiply_rows<HEAD>(m, {}, 0, 0, vector);
}

// All positions at once.
Tensor prefill_at_once(WEIGHTS, const Tensor& prompt, prefill::Products products,
                       const char* name) {
  const int64_t n = length_of(prompt, wpe, wte), V = wte.size(0);
  const auto logits =
      std::get<1>(decode(GIVEN, part_of(prompt, n - 1, 1), n - 1, 1, name, [&](const Model& m) {
        STD_TORCH_CHECK(m.D == 64 || m.D == 128,
                        "cache: expected 64 or 128 elements per head for a prefill at once, got ",
                        m.D);
        const Tensor x =
            prefill::layers(wte, wpe, vectors, qkv, proj, fc, out, cache, prompt, products);
        const size_t bytes = m.C * sizeof(float);
        const unsigned grid = resident_grid(wte, head_kernel, THREADS, bytes, ceil_div(m.V, WARPS));
        head_kernel<<<grid, THREADS, bytes, current_stream(wte)>>>(m, data<bf16>(x));
      }));
  return torch::stable::view(logits, {V});
}

// v2 against v1: each weight is read once, for all positions.
Tensor prefill_v2_separate(WEIGHTS, const Tensor& prompt) {
  return prefill_at_once(GIVEN, prompt, prefill::Products::LIBRARY, "prefill_v2_separate");
}

// v3 against v2: GELU has no pass, and x is added in the products' epilogues instead of the norms.
Tensor prefill_v3_epilogues(WEIGHTS, const Tensor& prompt) {
  return prefill_at_once(GIVEN, prompt, prefill::Products::OWN, "prefill_v3_epilogues");
}

// v4 against v3: our products only where their tiles are enough for the card.
Tensor prefill_v4_by_size(WEIGHTS, const Tensor& prompt) {
  return prefill_at_once(GIVEN, prompt, prefill::Products::BY_SIZE, "prefill_v4_by_size");
}

// ---------------------------------------------------------------------------------------------
// End to end: `steps` tokens after the prompt. The prompt's last token is the first that the
// decoder gets, so that all tokens are drawn in one place.

Tensor generate_v1_tokens(WEIGHTS, const Tensor& prompt, int64_t steps, SAMPLING) {
  const int64_t n = length_of(prompt, wpe, wte);
  if (n > 1) prefill_v1_tokens(GIVEN, part_of(prompt, 0, n - 1));
  return std::get<0>(decode_v1_launches(GIVEN, part_of(prompt, n - 1, 1), n - 1, steps, temperature,
                                        top_k, top_p, seed));
}

Tensor generate_v2_at_once(WEIGHTS, const Tensor& prompt, int64_t steps, SAMPLING) {
  const int64_t n = length_of(prompt, wpe, wte);
  if (n > 1) prefill_v4_by_size(GIVEN, part_of(prompt, 0, n - 1));
  return std::get<0>(decode_v2_inside(GIVEN, part_of(prompt, n - 1, 1), n - 1, steps, temperature,
                                      top_k, top_p, seed));
}

// ---------------------------------------------------------------------------------------------

#define TAKES                                                                                   \
  "(Tensor wte, Tensor wpe, Tensor vectors, Tensor last_norm, Tensor qkv, Tensor proj, Tensor " \
  "fc, Tensor out, Tensor(a!) cache, "
#define DRAWS "float temperature, int top_k, float top_p, int seed) -> "
#define DECODES TAKES "Tensor token, int position, int steps, " DRAWS "(Tensor, Tensor)"
#define PREFILLS TAKES "Tensor prompt) -> Tensor"
#define GENERATES TAKES "Tensor prompt, int steps, " DRAWS "Tensor"

RUNG(day100, decode_v1_launches, DECODES);
RUNG(day100, decode_v2_inside, DECODES);
RUNG(day100, prefill_v1_tokens, PREFILLS);
RUNG(day100, prefill_v2_separate, PREFILLS);
RUNG(day100, prefill_v3_epilogues, PREFILLS);
RUNG(day100, prefill_v4_by_size, PREFILLS);
RUNG(day100, generate_v1_tokens, GENERATES);
RUNG(day100, generate_v2_at_once, GENERATES);

// Day 96: the arguments of a decoder, as PyTorch has them: checked, and made a Model.
#pragma once

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day96/model.cuh"

#include <tuple>

#define PARAMETERS                                                                      \
  const Tensor &wte, const Tensor &wpe, const Tensor &vectors, const Tensor &last_norm, \
      const Tensor &qkv, const Tensor &proj, const Tensor &fc, const Tensor &out,       \
      const Tensor &cache, const Tensor &token, int64_t position, int64_t steps
#define ARGUMENTS wte, wpe, vectors, last_norm, qkv, proj, fc, out, cache, token, position, steps

using Decoded = std::tuple<Tensor, Tensor>;  // tokens (steps), logits (steps, V)
// So small that 32-bit numbers count the chunks of a matrix.
constexpr int64_t MOST_LAYERS = 1 << 10, MOST_C = 2048, MOST_ROWS = 1 << 20;

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
  STD_TORCH_CHECK(0 < V && V <= MOST_ROWS, "wte: expected 1 to 2^20 words, got ", V);
  STD_TORCH_CHECK(L <= MOST_LAYERS && P <= MOST_ROWS, "cache: expected at most ", MOST_LAYERS,
                  " layers and 2^20 positions, got ", L, " and ", P);
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
  Tensor tokens = allocate(wte, {steps}, ScalarType::Long);
  Tensor logits = allocate(wte, {steps, V}, ScalarType::Float);
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

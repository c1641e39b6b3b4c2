// Day 100, second file: the layers of a GPT-2 for all n tokens of a prompt at once
//
// The weights are day 96's. Rows are bf16, as in day 90's block, whose norm and epilogues these
// are; attention is that of days 26 and 28. Operations: 24 n C² per layer, and 2 n² C of attention.

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/flash_attention.cuh"  // taught in days 26 and 28
#include "common/cuda/linear.cuh"           // taught in day 28
#include "days/day100/prefill.cuh"
#include "days/day90/epilogues.cuh"   // taught in days 83 and 90
#include "days/day90/layer_norm.cuh"  // taught in day 90

namespace prefill {

using bf16 = __nv_bfloat16;
using Eight = Chunk<bf16, 8>;
using RawEight = RawChunk<Eight>;
constexpr int PASS = 256;  // threads per block of a pass

// NaN for a token outside the vocabulary.
__global__ void __launch_bounds__(PASS)
    embed_kernel(const RawEight* __restrict__ words, const RawEight* __restrict__ positions,
                 const int64_t* __restrict__ prompt, Eight* __restrict__ x, int64_t all, int V,
                 int chunks) {
  const int64_t i = int64_t{blockIdx.x} * PASS + threadIdx.x;
  if (i >= all) return;
  const int64_t row = i / chunks, c = i % chunks, id = prompt[row];
  const bool is_word = 0 <= id && id < V;
  const Chunk<float, 8> at = widened(positions[i]);
  const Chunk<float, 8> word = widened(words[(is_word ? id : 0) * chunks + c]);
  Eight sum;
#pragma unroll
  for (int e = 0; e < 8; ++e) sum.at[e] = static_cast<bf16>(is_word ? at.at[e] + word.at[e] : NAN);
  x[i] = sum;
}

// Keys and values of all heads, from the rows of q, k and v (n, 3C) to a layer of the cache
// (2, H, P, D). The values of a token whose keys are NaN become 0 in the rows: attention gives NaN
// to each row that sees the key, and 0 · NaN must not reach the rows before.
__global__ void __launch_bounds__(PASS)
    fill_cache_kernel(RawEight* qkv, RawEight* __restrict__ cache, int64_t all, int chunks,
                      int per_head, int64_t P) {
  const int64_t i = int64_t{blockIdx.x} * PASS + threadIdx.x;
  if (i >= all) return;
  const int64_t row = i / (2 * chunks);
  const int c = static_cast<int>(i % (2 * chunks));  // of k, then v
  const int64_t at = row * 3 * chunks + chunks + c;
  cache[(c / per_head * P + row) * per_head + c % per_head] = qkv[at];
  if (c < chunks) return;
  const Chunk<float, 8> key = widened(qkv[at - chunks]);
  if (isnan(key.at[0])) reinterpret_cast<Eight*>(qkv)[at] = Eight{};
}

__global__ void __launch_bounds__(PASS) gelu_kernel(RawEight* hidden, int64_t all) {
  const int64_t i = int64_t{blockIdx.x} * PASS + threadIdx.x;
  if (i >= all) return;
  const Chunk<float, 8> v = widened(hidden[i]);
  Eight y;
#pragma unroll
  for (int e = 0; e < 8; ++e) y.at[e] = static_cast<bf16>(gelu<bf16>(v.at[e]));
  reinterpret_cast<Eight*>(hidden)[i] = y;
}

template <typename... P, typename... A>
void pass(const Tensor& on, int64_t all, void (*kernel)(P...), A... arguments) {
  const unsigned grid = grid_size(ceil_div<int64_t>(all, PASS), "prompt");
  kernel<<<grid, PASS, 0, current_stream(on)>>>(arguments...);
  check_launch("prefill");
}

// Part `which` of a row's thirds, as heads (1, H, n, D) that lie where they are.
Tensor heads(Tensor rows, int64_t which, int64_t H, int64_t D) {
  Tensor part = torch::stable::narrow(rows, 1, which * H * D, H * D);
  return torch::stable::transpose(torch::stable::view(part, {1, rows.size(0), H, D}), 1, 2);
}

// The epilogue's tiles of 256 columns where they take fewer steps (day 90).
template <typename Epilogue>
void product(const Tensor& a, const Tensor& weight, const Epilogue& epilogue) {
  if (prefers_wide(a, a.size(0), weight.size(0))) {
    return launch_product<bf16, Major::kK, WIDE>(a, weight, epilogue);
  }
  launch_product<bf16, Major::kK, NARROW>(a, weight, epilogue);
}

Tensor layers(const Tensor& wte, const Tensor& wpe, const Tensor& vectors, const Tensor& qkv,
              const Tensor& proj, const Tensor& fc, const Tensor& out, const Tensor& cache,
              const Tensor& prompt, Products products) {
  const int64_t n = prompt.size(0), C = wte.size(1), L = qkv.size(0), H = cache.size(2);
  const int64_t P = cache.size(3), D = cache.size(4), chunks = C / 8;
  if (products != Products::LIBRARY && compute_capability() != 90) {
    fell_back("prefill_v2_separate", "a card without wgmma, which only those of 9.0 have");
    products = Products::LIBRARY;
  }
  const auto is_own = [&](int64_t cols) {
    if (products != Products::BY_SIZE) return products == Products::OWN;
    const int64_t tiles = ceil_div<int64_t>(n, 2 * ROWS) * ceil_div<int64_t>(cols, NARROW * PART);
    return 2 * tiles >= multiprocessor_count(wte);
  };
  const auto matrix = [&](int64_t cols) { return allocate(wte, {n, cols}); };
  // x is the sum of x and *branch, where a branch has not been added yet.
  Tensor x = matrix(C), branch;
  bool has_branch = false;
  pass(x, n * chunks, embed_kernel, data<RawEight>(wte), data<RawEight>(wpe), data<int64_t>(prompt),
       mutable_data<Eight>(x), n * chunks, static_cast<int>(wte.size(0)), static_cast<int>(chunks));
  const Tensor rows = matrix(3 * C), o = matrix(C), hidden = matrix(4 * C);
  const Tensor lse = allocate(wte, {1, H, n}, ScalarType::Float);
  for (int64_t layer = 0; layer < L; ++layer) {
    Tensor mine = torch::stable::select(vectors, 0, layer);
    const auto vector = [&](int64_t place, int64_t count) {
      return torch::stable::narrow(mine, 0, place * C, count * C);
    };
    const auto weight = [&](const Tensor& of) { return torch::stable::select(of, 0, layer); };
    const auto norm = [&](int64_t place) {
      const block::Normed made = block::layer_norm(x, has_branch ? &branch : nullptr,
                                                   vector(place, 1), vector(place + 1, 1), 1e-5);
      x = made.h, has_branch = false;
      return made.y;
    };
    const auto add_product = [&](const Tensor& a, const Tensor& of, const Tensor& bias) {
      if (!is_own(C)) {
        branch = linear(a, of, bias), has_branch = true;
        return;
      }
      const Tensor sum = matrix(C);
      product(a, of,
              BiasResidual<bf16>{map_of_parts<bf16>(sum), map_of_parts<bf16>(x), data<bf16>(x),
                                 data<bf16>(bias)});
      x = sum;
    };

    Tensor projected = rows, up = hidden;
    const Tensor first = norm(0);
    if (products == Products::OWN) {
      product(first, weight(qkv), Bias<bf16>{map_of_parts<bf16>(rows), data<bf16>(vector(2, 3))});
    } else {
      projected = linear(first, weight(qkv), vector(2, 3));
    }
    Tensor filled = weight(cache);
    pass(x, 2 * n * chunks, fill_cache_kernel, mutable_data<RawEight>(projected),
         mutable_data<RawEight>(filled), 2 * n * chunks, static_cast<int>(chunks),
         static_cast<int>(D / 8), P);
    flash::forward(heads(projected, 0, H, D), heads(projected, 1, H, D), heads(projected, 2, H, D),
                   nullptr, heads(o, 0, H, D), lse, true);
    add_product(o, weight(proj), vector(5, 1));
    const Tensor second = norm(6);
    if (is_own(4 * C)) {
      product(second, weight(fc),
              BiasGelu<bf16, false>{{}, map_of_parts<bf16>(hidden), data<bf16>(vector(8, 4))});
    } else {
      up = linear(second, weight(fc), vector(8, 4));
      pass(x, 4 * n * chunks, gelu_kernel, mutable_data<RawEight>(up), 4 * n * chunks);
    }
    add_product(up, weight(out), vector(12, 1));
  }
  x = torch::stable::narrow(x, 0, n - 1, 1);
  if (!has_branch) return x;
  branch = torch::stable::narrow(branch, 0, n - 1, 1);
  Tensor any = torch::stable::select(vectors, 0, 0);  // only the sum is needed, not its norm
  any = torch::stable::narrow(any, 0, 0, C);
  return block::layer_norm(x, &branch, any, any, 1e-5).h;
}

}  // namespace prefill

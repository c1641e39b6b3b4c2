// Day 86, fourth file: attention forward of long sequences, on day 75's kernel (TMA and wgmma)
//
// q, k, v: (B, heads, S, HEAD); o: (rows, C), whose boxes are 64 columns of 64 rows of a sequence.
// v3 of day 75: its v4 would need a counter of zero per layer, and a tile has at most 8 steps here.

#include "common/cuda/capability.cuh"
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day75/roles.cuh"           // taught in day 75
#include "days/day86/plan.cuh"

#include <algorithm>

void attention_forward_long(const Tensor& on, const Shape& s, const LayerActivations& a) {
  using P = Plan<Half, HEAD, KEYS, PIPELINED, true>;
  require_wgmma();
  require_shared_memory(P::SHARED, "the tiles of q, k and v");
  const int64_t heads = s.B * s.heads;
  Arguments n{};
  n.lse = a.lse;
  n.tiles = static_cast<int>(ceil_div<int64_t>(s.S, BM));
  n.count = static_cast<int>(grid_size(heads * n.tiles, "tokens"));
  n.heads = static_cast<int>(heads), n.H = static_cast<int>(s.heads);
  n.S = n.T = static_cast<int>(s.S);
  n.causal = true;
  n.group = static_cast<int>(std::clamp<int64_t>(IN_L2 / (4 * s.S * HEAD), 1, heads));
  n.scale_log2 = LOG2_E / 8;
  n.slack = SLACK / n.scale_log2;
  const auto map = [&](const Half* of, int64_t columns, int64_t sequences, int64_t box) {
    return ptx::make_tensor_map(
        of, {.sizes = {columns, s.S, sequences}, .box = {PART, box, 1}, .swizzle = Swizzle::k128});
  };
  const auto kernel = attention_kernel<P>;
  allow_shared(kernel, P::SHARED);
  kernel<<<static_cast<unsigned>(n.count), THREADS, P::SHARED, current_stream(on)>>>(
      n, map(a.q, HEAD, heads, ROWS), map(a.k, HEAD, heads, KEYS), map(a.v, HEAD, heads, KEYS),
      map(a.o, s.C(), s.B, ROWS));
  check_launch("attention_forward_long");
}

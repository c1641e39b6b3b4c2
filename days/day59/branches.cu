// Day 59, second file: kernels that do not wait for each other
//
// Several rings of different sizes, `steps` steps each. The steps of one ring form a chain, as in
// cuda_graphs.cu, but no ring needs another one. 8 rings, 125 steps: again 1,000 kernels.
//
//   v1 launches   one launch per ring and step, in one stream: 1,000 kernels one after the other
//   v2 branches   one graph without an edge between the rings, so that they run beside each other

#include "common/cuda/binding.cuh"  // taught in day 6
#include "days/day59/graphs.cuh"

// All rings: x holds one after the other, of `sizes` elements each.
struct Rings {
  Ring all;  // what they have in common, and n: the elements of all
  std::vector<int> sizes;

  Rings(const Tensor& x, const std::vector<int64_t>& lengths, int64_t steps, double k)
      : all(x, steps, k, "x") {
    int64_t total = 0;
    for (int64_t length : lengths) {
      STD_TORCH_CHECK(0 <= length && length <= all.n, "sizes: expected 0 to the ", all.n,
                      " elements of x, got ", length);
      total += length;
      sizes.push_back(static_cast<int>(length));
    }
    STD_TORCH_CHECK(total == all.n, "sizes: expected a sum of ", all.n, ", the elements of x, got ",
                    total);
  }

  // Calls f(elements, chain) for each ring that has some. arrays: of all.n elements each.
  template <typename F>
  void each_chain(float* out, float* const (&arrays)[2], F&& f) const {
    int at = 0;
    for (int n : sizes) {
      if (n) f(n, Chain{all.x + at, out + at, {arrays[0] + at, arrays[1] + at}, all.steps});
      at += n;
    }
  }
};

Tensor heat_rings_v1_launches(const Tensor& x, std::vector<int64_t> sizes, int64_t steps,
                              double k) {
  const Rings rings(x, sizes, steps, k);
  return solve(x, steps, k, [&](const Ring& r, float* out) {
    Tensor first = allocate_like(x), second = allocate_like(x);
    float* const arrays[] = {mutable_data<float>(first), mutable_data<float>(second)};
    rings.each_chain(out, arrays,
                     [&](int n, const Chain& chain) { launch_steps(chain, n, r.k, r.stream); });
  });
}

// A node without an edge from another one starts when the graph does.
Tensor heat_rings_v2_branches(const Tensor& x, std::vector<int64_t> sizes, int64_t steps,
                              double k) {
  const Rings rings(x, sizes, steps, k);
  return solve(x, steps, k, [&](const Ring& r, float* out) {
    const auto build = [&](Graph& g) {
      rings.each_chain(out, g.arrays,
                       [&](int n, const Chain& chain) { build_chain(g, chain, n, r.k, false); });
    };
    with_graph({6, r.device, rings.sizes, steps, 0}, build, [&](Graph& g) {
      size_t node = 0;
      rings.each_chain(out, g.arrays, [&](int n, const Chain& chain) {
        update(g, node, chain, n, r.k);
        node += static_cast<size_t>(steps);
      });
      g.k = r.k;
      g.launch(r.stream);
    });
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day59, heat_rings_v1_launches, "(Tensor x, int[] sizes, int steps, float k) -> Tensor");
RUNG(day59, heat_rings_v2_branches, "(Tensor x, int[] sizes, int steps, float k) -> Tensor");

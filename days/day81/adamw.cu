// Day 81: AdamW for a list of tensors, in one launch; bf16 weights that are rounded stochastically
//
//   m = β₁ m + (1 - β₁) g             g: gradient; m, v: fp32, one number per parameter
//   v = β₂ v + (1 - β₂) g²
//   p = (1 - lr · λ) p - lr / (1 - β₁ᵗ) · m / (√(v / (1 - β₂ᵗ)) + ε)          in step t = 1, 2, …
//
// Bytes per parameter: p, g, m and v are read, p, m and v written: 28 in fp32. With p and g in
// bf16: 22. With an fp32 master copy p, g in bf16 and bf16 weights written: 28, in place of 40
// where g is widened and p narrowed by kernels of their own. About 20 operations per parameter.
//
//   v1 scalar    one launch per tensor, one parameter per thread
//   v2 packs     16 bytes per load, all loads of a thread first
//   v3 one_launch   one launch for all tensors, whose addresses are parameters of the kernel
//   v4 rounded   v3 for p and g in bf16: 16 random bits decide whether p is rounded up
//   v4 master    v3 for g in bf16 and a master copy of p in fp32, which also stores bf16 weights
//
// Run: python run_day.py 81

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/chunk.cuh"    // taught in days 35 and 42
#include "common/cuda/philox.cuh"   // taught in day 33
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

constexpr int BLOCK = 256;
constexpr int GROUP = 4;   // parameters of one load of m, and of one call of Philox
constexpr int UNROLL = 2;  // groups per thread: 8 loads in flight, up to 128 bytes
constexpr int64_t CHUNK = BLOCK * GROUP * UNROLL;  // parameters per block
constexpr int TENSORS = 256;                       // per launch: 60 bytes each, of at most 32,764

// What is the same for all parameters, computed in double on the host.
struct Coefficients {
  float beta1, rest1, beta2, rest2;  // rest: 1 - beta
  float rate;                        // lr / (1 - β₁ᵗ)
  float root_scale;                  // 1 / √(1 - β₂ᵗ)
  float eps;
  float decay;  // 1 - lr · λ
  uint32_t step;
  uint64_t seed;  // of the stochastic rounding
};

// One tensor of the list. P: type of p, G: of g.
template <typename P, typename G>
struct Slot {
  P* p;
  const G* g;
  float *m, *v;
  __nv_bfloat16* weights;  // a copy of p, if p is a master copy
  int64_t n;
  uint32_t id;  // place in the list
  bool packs;   // whether all begin at multiples of 16 bytes
};

template <typename P>
constexpr bool ROUNDED = std::is_same_v<P, __nv_bfloat16>;
template <typename P, typename G>
constexpr bool MASTER = std::is_same_v<P, float> && std::is_same_v<G, __nv_bfloat16>;

// One parameter: returns the new p. Every sum is an fmaf, so that nvcc has no choice which product
// it fuses: all rungs give the same bits.
__device__ float adamw(float p, float g, float& m, float& v, const Coefficients& c) {
  m = fmaf(c.beta1, m, c.rest1 * g);
  v = fmaf(c.beta2, v, c.rest2 * g * g);
  const float root = fmaf(sqrtf(v), c.root_scale, c.eps);
  const float change = c.rate * (m / root);
  return fmaf(c.decay, p, -change);
}

// One of the two bf16 numbers around x, the upper one with a probability of x's distance from the
// lower one, as a share of their distance. bf16 is the upper half of fp32.
__device__ __nv_bfloat16 round_stochastically(float x, uint32_t random16) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return __float2bfloat16_rn(x);  // infinite or NaN
  return __float2bfloat16_rn(__uint_as_float((bits + random16) & 0xffff0000u));
}

// Four words for the parameters from 4 · group on.
__device__ uint4 random_of(uint32_t id, int64_t group, const Coefficients& c) {
  const uint4 counter =
      make_uint4(static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), id, c.step);
  return philox::random4(
      counter, make_uint2(static_cast<uint32_t>(c.seed), static_cast<uint32_t>(c.seed >> 32)));
}

__device__ uint32_t word_of(const uint4& four, int k) {
  return k == 0 ? four.x : k == 1 ? four.y : k == 2 ? four.z : four.w;
}

// p in the type in which it is stored; of a random word, the upper half counts.
template <typename P>
__device__ P narrowed(float p, uint32_t word) {
  if constexpr (ROUNDED<P>) {
    return round_stochastically(p, word >> 16);
  } else {
    return p;
  }
}

template <typename P, typename G>
__device__ void update_element(const Slot<P, G>& t, int64_t i, const Coefficients& c) {
  float m = t.m[i], v = t.v[i];
  const float p = adamw(static_cast<float>(t.p[i]), static_cast<float>(t.g[i]), m, v, c);
  uint32_t word = 0;
  if constexpr (ROUNDED<P>) {
    word = word_of(random_of(t.id, i / GROUP, c), static_cast<int>(i % GROUP));
  }
  t.p[i] = narrowed<P>(p, word);
  if constexpr (MASTER<P, G>) t.weights[i] = __float2bfloat16_rn(p);
  t.m[i] = m;
  t.v[i] = v;
}

Coefficients coefficients(double lr, double beta1, double beta2, double eps, double weight_decay,
                          int64_t step, int64_t seed = 0) {
  const auto check_size = [](double value, const char* name) {
    STD_TORCH_CHECK(value >= 0 && value <= std::numeric_limits<float>::max(), name,
                    ": expected a number of fp32, 0 or more, got ", value);
  };
  const auto check_beta = [](double value, const char* name) {
    STD_TORCH_CHECK(value >= 0 && value < 1, name, ": expected a number in [0, 1), got ", value);
  };
  check_size(lr, "lr");
  check_beta(beta1, "beta1");
  check_beta(beta2, "beta2");
  check_size(eps, "eps");
  check_size(weight_decay, "weight_decay");
  STD_TORCH_CHECK(step >= 1 && step <= 2147483647, "step: expected 1 to 2147483647, got ", step);
  const double t = static_cast<double>(step);
  return {static_cast<float>(beta1),
          static_cast<float>(1 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1 - beta2),
          static_cast<float>(lr / (1 - std::pow(beta1, t))),
          static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
          static_cast<float>(eps),
          static_cast<float>(1 - lr * weight_decay),
          static_cast<uint32_t>(step),
          static_cast<uint64_t>(seed)};
}

using Tensors = std::vector<Tensor>;

// Each tensor of a list: its dtype and memory, and the shape of its partner in `owners`. A message
// names the tensor, as in "grads[3]".
void check_list(const Tensors& list, const char* name, ScalarType type, const Tensors& owners,
                const std::string& owner) {
  STD_TORCH_CHECK(list.size() == owners.size(), name, ": expected as many tensors as ", owner, ", ",
                  owners.size(), ", got ", list.size());
  const std::string first = owner + "[0]";
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor &t = list[i], &partner = owners[i];
    check(t, name, static_cast<int64_t>(i))
        .on_gpu()
        .dtype({type})
        .contiguous()
        .same_device(owners[0], first.c_str());
    STD_TORCH_CHECK(same_shape(t, partner), name, "[", i, "]: expected the shape of ", owner, "[",
                    i, "], ", shape_of(partner), ", got ", shape_of(t));
  }
}

template <typename T>
constexpr ScalarType TYPE = std::is_same_v<T, float> ? ScalarType::Float : ScalarType::BFloat16;

// All tensors that have elements. weights: for a master copy.
template <typename P, typename G>
std::vector<Slot<P, G>> slots_of(const Tensors& params, const Tensors& grads,
                                 const Tensors& exp_avgs, const Tensors& exp_avg_sqs,
                                 const Tensors* weights = nullptr) {
  const char* const owner = weights ? "masters" : "params";
  STD_TORCH_CHECK(!params.empty(), owner, ": expected at least one tensor, got an empty list");
  check_list(params, owner, TYPE<P>, params, owner);
  check_list(grads, "grads", TYPE<G>, params, owner);
  check_list(exp_avgs, "exp_avgs", ScalarType::Float, params, owner);
  check_list(exp_avg_sqs, "exp_avg_sqs", ScalarType::Float, params, owner);
  if (weights) check_list(*weights, "weights", ScalarType::BFloat16, params, owner);
  std::vector<Slot<P, G>> slots;
  slots.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor &p = params[i], &g = grads[i], &m = exp_avgs[i], &v = exp_avg_sqs[i];
    if (p.numel() == 0) continue;
    const bool packs = is_aligned(p, 16) && is_aligned(g, 16) && is_aligned(m, 16) &&
                       is_aligned(v, 16) && (!weights || is_aligned((*weights)[i], 16));
    slots.push_back({mutable_data<P>(p), data<G>(g), mutable_data<float>(m), mutable_data<float>(v),
                     weights ? mutable_data<__nv_bfloat16>((*weights)[i]) : nullptr, p.numel(),
                     static_cast<uint32_t>(i), packs});
  }
  return slots;
}

// ---------------------------------------------------------------------------------------------
// v1: one launch per tensor, one parameter per thread.

__global__ void __launch_bounds__(BLOCK)
    adamw_v1_scalar_kernel(const Slot<float, float> t, const Coefficients c) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i < t.n) update_element(t, i, c);
}

void adamw_v1_scalar(Tensors params, Tensors grads, Tensors exp_avgs, Tensors exp_avg_sqs,
                     double lr, double beta1, double beta2, double eps, double weight_decay,
                     int64_t step) {
  const Coefficients c = coefficients(lr, beta1, beta2, eps, weight_decay, step);
  const auto slots = slots_of<float, float>(params, grads, exp_avgs, exp_avg_sqs);
  const DeviceGuard guard(params[0]);
  for (const auto& t : slots) {
    const unsigned blocks = grid_size(ceil_div<int64_t>(t.n, BLOCK), "params");
    adamw_v1_scalar_kernel<<<blocks, BLOCK, 0, current_stream(params[0])>>>(t, c);
    check_launch("adamw_v1_scalar");
  }
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a thread has two groups of four parameters, and loads them all before it computes.

// Four elements by one access: 16 bytes of fp32, 8 of bf16.
template <typename T>
using Raw = std::conditional_t<sizeof(T) == 4, uint4, uint2>;

template <typename T>
__device__ Raw<T> load_group(const T* from, int64_t group) {
  return reinterpret_cast<const Raw<T>*>(from)[group];
}

template <typename T>
__device__ Chunk<T, GROUP> elements_of(const Raw<T>& raw) {
  Chunk<T, GROUP> chunk;
  memcpy(&chunk, &raw, sizeof chunk);
  return chunk;
}

template <typename T>
__device__ void store_group(T* to, int64_t group, const Chunk<T, GROUP>& chunk) {
  Raw<T> raw;
  memcpy(&raw, &chunk, sizeof raw);
  reinterpret_cast<Raw<T>*>(to)[group] = raw;
}

// Parameters [chunk · CHUNK, (chunk + 1) · CHUNK) of a tensor, by one block.
template <typename P, typename G>
__device__ void update_chunk(const Slot<P, G>& t, int64_t chunk, const Coefficients& c) {
  const int64_t begin = chunk * CHUNK;
  if (!t.packs || begin + CHUNK > t.n) {  // misaligned, or an incomplete last chunk
    const int64_t end = t.n < begin + CHUNK ? t.n : begin + CHUNK;
#pragma unroll 1
    for (int64_t i = begin + threadIdx.x; i < end; i += BLOCK) update_element(t, i, c);
    return;
  }
  const int64_t first = begin / GROUP + threadIdx.x;  // the groups first and first + BLOCK
  Raw<P> ps[UNROLL];
  Raw<G> gs[UNROLL];
  Raw<float> ms[UNROLL], vs[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    ps[u] = load_group(t.p, first + u * BLOCK);
    gs[u] = load_group(t.g, first + u * BLOCK);
    ms[u] = load_group(t.m, first + u * BLOCK);
    vs[u] = load_group(t.v, first + u * BLOCK);
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int64_t group = first + u * BLOCK;
    uint4 random{};
    if constexpr (ROUNDED<P>) random = random_of(t.id, group, c);
    Chunk<P, GROUP> p = elements_of<P>(ps[u]);
    const Chunk<G, GROUP> g = elements_of<G>(gs[u]);
    Chunk<float, GROUP> m = elements_of<float>(ms[u]), v = elements_of<float>(vs[u]);
    Chunk<__nv_bfloat16, GROUP> weights{};
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      const float updated =
          adamw(static_cast<float>(p.at[k]), static_cast<float>(g.at[k]), m.at[k], v.at[k], c);
      p.at[k] = narrowed<P>(updated, word_of(random, k));
      weights.at[k] = __float2bfloat16_rn(updated);
    }
    store_group(t.p, group, p);
    store_group(t.m, group, m);
    store_group(t.v, group, v);
    if constexpr (MASTER<P, G>) store_group(t.weights, group, weights);
  }
}

__global__ void __launch_bounds__(BLOCK, 4)
    adamw_v2_packs_kernel(const Slot<float, float> t, const Coefficients c) {
  update_chunk(t, blockIdx.x, c);
}

void adamw_v2_packs(Tensors params, Tensors grads, Tensors exp_avgs, Tensors exp_avg_sqs, double lr,
                    double beta1, double beta2, double eps, double weight_decay, int64_t step) {
  const Coefficients c = coefficients(lr, beta1, beta2, eps, weight_decay, step);
  const auto slots = slots_of<float, float>(params, grads, exp_avgs, exp_avg_sqs);
  const DeviceGuard guard(params[0]);
  for (const auto& t : slots) {
    const unsigned blocks = grid_size(ceil_div(t.n, CHUNK), "params");
    adamw_v2_packs_kernel<<<blocks, BLOCK, 0, current_stream(params[0])>>>(t, c);
    check_launch("adamw_v2_packs");
  }
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one launch for up to 256 tensors. The table of their addresses is a parameter of
// the kernel (day 29), and a block finds its tensor in it.

template <typename P, typename G>
struct Table {
  Slot<P, G> slots[TENSORS];
  int begins[TENSORS];  // the first block of each tensor, ascending
  int count;
};

// The last tensor that begins at this block or before.
__device__ int tensor_of(const int* begins, int count, int block) {
  int low = 0, high = count;  // begins[low] <= block < begins[high], where there is a high
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begins[middle] <= block ? low : high) = middle;
  }
  return low;
}

template <typename P, typename G>
__global__ void __launch_bounds__(BLOCK, 4)
    adamw_v3_one_launch_kernel(const __grid_constant__ Table<P, G> table, const Coefficients c) {
  const int i = tensor_of(table.begins, table.count, blockIdx.x);
  const Slot<P, G> t = table.slots[i];
  update_chunk(t, static_cast<int>(blockIdx.x) - table.begins[i], c);
}

template <typename P, typename G>
void launch_tables(const std::vector<Slot<P, G>>& slots, const Coefficients& c,
                   const Tensor& first_param) {
  static_assert(sizeof(Table<P, G>) + sizeof c <= 32'764, "the parameters of a kernel");
  const DeviceGuard guard(first_param);
  for (size_t first = 0; first < slots.size(); first += TENSORS) {
    Table<P, G> table{};
    int64_t blocks = 0;
    for (size_t i = first; i < slots.size() && table.count < TENSORS; ++i, ++table.count) {
      table.slots[table.count] = slots[i];
      table.begins[table.count] =
          static_cast<int>(blocks);  // fewer than a grid may have, see below
      blocks += ceil_div(slots[i].n, CHUNK);
    }
    adamw_v3_one_launch_kernel<P, G>
        <<<grid_size(blocks, "params"), BLOCK, 0, current_stream(first_param)>>>(table, c);
    check_launch("adamw_v3_one_launch");
  }
}

void adamw_v3_one_launch(Tensors params, Tensors grads, Tensors exp_avgs, Tensors exp_avg_sqs,
                         double lr, double beta1, double beta2, double eps, double weight_decay,
                         int64_t step) {
  const Coefficients c = coefficients(lr, beta1, beta2, eps, weight_decay, step);
  launch_tables(slots_of<float, float>(params, grads, exp_avgs, exp_avg_sqs), c, params[0]);
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: other types, the same kernel.

void adamw_v4_rounded(Tensors params, Tensors grads, Tensors exp_avgs, Tensors exp_avg_sqs,
                      double lr, double beta1, double beta2, double eps, double weight_decay,
                      int64_t step, int64_t seed) {
  using Half = __nv_bfloat16;
  const Coefficients c = coefficients(lr, beta1, beta2, eps, weight_decay, step, seed);
  launch_tables(slots_of<Half, Half>(params, grads, exp_avgs, exp_avg_sqs), c, params[0]);
}

void adamw_v4_master(Tensors weights, Tensors masters, Tensors grads, Tensors exp_avgs,
                     Tensors exp_avg_sqs, double lr, double beta1, double beta2, double eps,
                     double weight_decay, int64_t step) {
  const Coefficients c = coefficients(lr, beta1, beta2, eps, weight_decay, step);
  launch_tables(slots_of<float, __nv_bfloat16>(masters, grads, exp_avgs, exp_avg_sqs, &weights), c,
                masters[0]);
}

// ---------------------------------------------------------------------------------------------

#define LISTS \
  "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "
#define NUMBERS "float lr, float beta1, float beta2, float eps, float weight_decay, int step"

RUNG(day81, adamw_v1_scalar, LISTS NUMBERS ") -> ()");
RUNG(day81, adamw_v2_packs, LISTS NUMBERS ") -> ()");
RUNG(day81, adamw_v3_one_launch, LISTS NUMBERS ") -> ()");
RUNG(day81, adamw_v4_rounded, LISTS NUMBERS ", int seed) -> ()");
RUNG(day81, adamw_v4_master,
     "(Tensor(a!)[] weights, Tensor(b!)[] masters, Tensor[] grads, Tensor(c!)[] exp_avgs, "
     "Tensor(d!)[] exp_avg_sqs, " NUMBERS ") -> ()");

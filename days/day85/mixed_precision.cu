// Day 85: mixed precision: unscaling gradients, and scales that follow the gradients on the device
//
//   g = g · inv_scale, for every element of a list of tensors, in place
//   found_inf = 1 if any g was infinite or NaN, else as it was
//   scale = scale · backoff if found_inf, else scale · growth after `interval` steps without
//
// g: fp32, fp16 or bf16; everything else is one number in fp32, on the device. Bytes per gradient:
// it is read and written, 8 in fp32, 4 in 16 bits. One multiplication and one comparison each.
//
//   v1 scalar      one launch per tensor, one gradient per thread
//   v2 packs       16 bytes per load, four loads of a thread first
//   v3 one_launch  one launch for all tensors (day 81)
//
// The casts to fp8 are in fp8_cast.cu, the trainings in training.py.
//
// Run: python run_day.py 85

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/pack.cuh"         // taught in day 2
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/tensor_list.cuh"  // taught in day 81
#include "common/cuda/tree_reduce.cuh"  // taught in day 5
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <cfloat>
#include <cstring>

constexpr int BLOCK = 256;
constexpr int UNROLL = 4;  // packs per thread: 64 bytes in flight
template <typename T>
constexpr int64_t CHUNK = int64_t{BLOCK} * UNROLL * Pack<T>::N;  // gradients per block

// One tensor of the list.
template <typename T>
struct Slot {
  T* g;
  int64_t n;
  bool packs;  // whether g is a multiple of 16 bytes
};

// The new gradient. `bad` becomes true if the old one is infinite or NaN, and stays so.
template <typename T>
__device__ T unscaled(T g, float inv_scale, bool& bad) {
  const float wide = static_cast<float>(g);
  bad |= !(fabsf(wide) <= FLT_MAX);
  return static_cast<T>(wide * inv_scale);
}

// One store per warp that has seen something bad. All lanes must call it.
__device__ void report(bool bad, float* found_inf) {
  if (__any_sync(FULL_WARP, bad) && threadIdx.x % 32 == 0) atomicExch(found_inf, 1.0f);
}

// Checks, and calls launch(slots) with all tensors that have elements.
template <typename F>
void unscale(const Tensors& grads, const Tensor& found_inf, const Tensor& inv_scale, F&& launch) {
  check(found_inf, "found_inf").on_gpu().dtype({ScalarType::Float}).rank(1).size(0, 1);
  check(inv_scale, "inv_scale").on_gpu().like(found_inf, "found_inf");
  if (grads.empty()) return;
  check_each(grads, "grads", [&](const check& one) {
    one.on_gpu().floating().dtype({grads[0].scalar_type()}).contiguous();
    one.same_device(found_inf, "found_inf");
  });
  const DeviceGuard guard(found_inf);
  dispatch_floating(grads[0], [&](auto zero) {
    using T = decltype(zero);
    std::vector<Slot<T>> slots;
    slots.reserve(grads.size());
    for (const Tensor& g : grads) {
      if (g.numel() > 0) slots.push_back({mutable_data<T>(g), g.numel(), is_aligned(g, 16)});
    }
    launch(slots);
  });
}

// ---------------------------------------------------------------------------------------------
// v1: one launch per tensor, one gradient per thread.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    unscale_v1_scalar_kernel(const Slot<T> t, float* found_inf, const float* inv_scale) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  bool bad = false;
  if (i < t.n) t.g[i] = unscaled(t.g[i], *inv_scale, bad);
  report(bad, found_inf);
}

void unscale_v1_scalar(Tensors grads, Tensor found_inf, Tensor inv_scale) {
  unscale(grads, found_inf, inv_scale, [&](const auto& slots) {
    for (const auto& t : slots) {
      const unsigned blocks = grid_size(ceil_div<int64_t>(t.n, BLOCK), "grads");
      unscale_v1_scalar_kernel<<<blocks, BLOCK, 0, current_stream(found_inf)>>>(
          t, mutable_data<float>(found_inf), data<float>(inv_scale));
      check_launch("unscale_v1_scalar");
    }
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a thread has four packs of 16 bytes, and loads them all before it multiplies.

// Gradients [chunk · CHUNK, (chunk + 1) · CHUNK) of a tensor, or up to its end, by one block.
// Returns whether the thread has seen one that is not finite.
template <typename T>
__device__ bool unscale_chunk(const Slot<T>& t, int64_t chunk, float inv_scale) {
  const int64_t begin = chunk * CHUNK<T>, rest = t.n - begin;
  const int count = static_cast<int>(rest < CHUNK<T> ? rest : CHUNK<T>);
  const int packs = t.packs ? count / Pack<T>::N : 0;
  T* const first = t.g + begin;
  uint4* const words = reinterpret_cast<uint4*>(first);
  bool bad = false;
  uint4 loaded[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int i = threadIdx.x + u * BLOCK;
    if (i < packs) loaded[u] = words[i];
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int i = threadIdx.x + u * BLOCK;
    if (i >= packs) break;
    Pack<T> pack;
    memcpy(&pack, &loaded[u], sizeof pack);
#pragma unroll
    for (T& g : pack.at) g = unscaled(g, inv_scale, bad);
    memcpy(&loaded[u], &pack, sizeof pack);
    words[i] = loaded[u];
  }
  // What is behind the last complete pack, or all of a misaligned tensor.
#pragma unroll 1
  for (int i = packs * Pack<T>::N + threadIdx.x; i < count; i += BLOCK) {
    first[i] = unscaled(first[i], inv_scale, bad);
  }
  return bad;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    unscale_v2_packs_kernel(const Slot<T> t, float* found_inf, const float* inv_scale) {
  report(unscale_chunk(t, blockIdx.x, *inv_scale), found_inf);
}

void unscale_v2_packs(Tensors grads, Tensor found_inf, Tensor inv_scale) {
  unscale(grads, found_inf, inv_scale, [&]<typename T>(const std::vector<Slot<T>>& slots) {
    for (const Slot<T>& t : slots) {
      const unsigned blocks = grid_size(ceil_div(t.n, CHUNK<T>), "grads");
      unscale_v2_packs_kernel<<<blocks, BLOCK, 0, current_stream(found_inf)>>>(
          t, mutable_data<float>(found_inf), data<float>(inv_scale));
      check_launch("unscale_v2_packs");
    }
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: one launch for up to 256 tensors, of which a block finds its own by a search.

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    unscale_v3_one_launch_kernel(const __grid_constant__ TensorTable<Slot<T>> table,
                                 float* found_inf, const float* inv_scale) {
  const int i = tensor_of(table, blockIdx.x);
  const int chunk = static_cast<int>(blockIdx.x) - table.begins[i];
  report(unscale_chunk(table.slots[i], chunk, *inv_scale), found_inf);
}

void unscale_v3_one_launch(Tensors grads, Tensor found_inf, Tensor inv_scale) {
  unscale(grads, found_inf, inv_scale, [&]<typename T>(const std::vector<Slot<T>>& slots) {
    for_tables(slots, CHUNK<T>, "grads", [&](const auto& table, unsigned blocks) {
      unscale_v3_one_launch_kernel<<<blocks, BLOCK, 0, current_stream(found_inf)>>>(
          table, mutable_data<float>(found_inf), data<float>(inv_scale));
      check_launch("unscale_v3_one_launch");
    });
  });
}

// ---------------------------------------------------------------------------------------------
// The scale of the loss, after a step. One thread; the host never learns what it decides.

struct Pace {
  double growth, backoff;
  int interval;
};

__global__ void update_loss_scale_kernel(float* scale, float* inv_scale, int* good_steps,
                                         float* found_inf, const Pace pace) {
  float next = *scale;
  int steps = *good_steps + 1;
  if (*found_inf != 0) {
    next = static_cast<float>(next * pace.backoff);
    steps = 0;
  } else if (steps == pace.interval) {
    const float grown = static_cast<float>(next * pace.growth);
    if (grown <= FLT_MAX) next = grown;
    steps = 0;
  }
  *scale = next;
  *inv_scale = 1 / next;
  *good_steps = steps;
  *found_inf = 0;  // for the next step
}

void update_loss_scale(Tensor scale, Tensor inv_scale, Tensor good_steps, Tensor found_inf,
                       double growth, double backoff, int64_t interval) {
  check(scale, "scale").on_gpu().dtype({ScalarType::Float}).rank(1).size(0, 1);
  check(inv_scale, "inv_scale").on_gpu().like(scale, "scale");
  check(good_steps, "good_steps").on_gpu().dtype({ScalarType::Int}).rank(1).size(0, 1);
  check(good_steps, "good_steps").same_device(scale, "scale");
  check(found_inf, "found_inf").on_gpu().like(scale, "scale");
  STD_TORCH_CHECK(growth >= 1 && growth <= FLT_MAX, "growth: expected 1 or more, got ", growth);
  STD_TORCH_CHECK(backoff > 0 && backoff <= 1, "backoff: expected a number in (0, 1], got ",
                  backoff);
  STD_TORCH_CHECK(interval >= 1 && interval <= 2147483647,
                  "interval: expected 1 to 2147483647, got ", interval);
  const DeviceGuard guard(scale);
  update_loss_scale_kernel<<<1, 1, 0, current_stream(scale)>>>(
      mutable_data<float>(scale), mutable_data<float>(inv_scale), mutable_data<int>(good_steps),
      mutable_data<float>(found_inf), Pace{growth, backoff, static_cast<int>(interval)});
  check_launch("update_loss_scale");
}

// ---------------------------------------------------------------------------------------------
// The scales of fp8 tensors, after a step: one block per tensor, one thread per entry of its
// history. history (tensors, length): entry 0 is the amax of the step that has just ended.

constexpr int LONGEST = 1024;

__global__ void __launch_bounds__(LONGEST)
    update_fp8_scales_kernel(float* history, float* scale, float* inv_scale, int length,
                             float largest) {
  __shared__ float entries[LONGEST];
  const int64_t tensor = blockIdx.x;
  const int i = threadIdx.x;
  const float amax = i < length ? history[tensor * length + i] : 0;
  entries[i] = amax <= FLT_MAX ? amax : 0;  // infinity and NaN do not count
  // Its first barrier also separates the loads of the history from the stores below.
  const float most = tree_reduce(entries, [](float a, float b) { return fmaxf(a, b); });
  if (i + 1 < length) history[tensor * length + i + 1] = amax;
  if (i > 0) return;
  history[tensor * length] = 0;  // the next step's casts join theirs
  if (most == 0) return;         // no entry yet: the scale stays
  const float next = fminf(largest / most, FLT_MAX);
  scale[tensor] = next;
  inv_scale[tensor] = 1 / next;
}

void update_fp8_scales(Tensor history, Tensor scale, Tensor inv_scale, double largest) {
  check(history, "history").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(scale, "scale").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(scale, "scale").size(0, history.size(0)).same_device(history, "history");
  check(inv_scale, "inv_scale").on_gpu().like(scale, "scale").contiguous();
  const int64_t length = history.size(1);
  STD_TORCH_CHECK(length >= 1 && length <= LONGEST, "history: expected 1 to ", LONGEST,
                  " entries per tensor, got ", length);
  STD_TORCH_CHECK(largest > 0 && largest <= FLT_MAX,
                  "largest: expected a positive number of fp32, got ", largest);
  if (history.size(0) == 0) return;
  const DeviceGuard guard(history);
  update_fp8_scales_kernel<<<grid_size(history.size(0), "history"), LONGEST, 0,
                             current_stream(history)>>>(
      mutable_data<float>(history), mutable_data<float>(scale), mutable_data<float>(inv_scale),
      static_cast<int>(length), static_cast<float>(largest));
  check_launch("update_fp8_scales");
}

// ---------------------------------------------------------------------------------------------

#define LIST "(Tensor(a!)[] grads, Tensor(b!) found_inf, Tensor inv_scale) -> ()"

RUNG(day85, unscale_v1_scalar, LIST);
RUNG(day85, unscale_v2_packs, LIST);
RUNG(day85, unscale_v3_one_launch, LIST);
RUNG(day85, update_loss_scale,
     "(Tensor(a!) scale, Tensor(b!) inv_scale, Tensor(c!) good_steps, Tensor(d!) found_inf, "
     "float growth, float backoff, int interval) -> ()");
RUNG(day85, update_fp8_scales,
     "(Tensor(a!) history, Tensor(b!) scale, Tensor(c!) inv_scale, float largest) -> ()");

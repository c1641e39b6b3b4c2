// Day 84: rows of unit length, an operator whose gradient is differentiated again
//
//   forward           y  = r x                   r = 1 / √(|x|² + ε), for each row of x (…, D)
//   backward          gx = r (g - y (y·g))       g: the gradient of y
//   double backward   gg = r (h - y (y·h))       h: the gradient of gx
//                     gx = r² (y (3 (y·g)(y·h) - g·h) - g (y·h) - h (y·g))
//
// Each kernel reads its rows once, sums their products and writes its rows. Bytes per element in
// fp32: forward 8 (x, y), backward 12 (g, x, gx), double backward 20 (h, g, x, gg, gx). Operations
// per element: 3, 7 and 21. A gradient penalty needs all three; in PyTorch's operators, which store
// each product and each sum, the same costs several times the bytes.
//
//   v1 formula   forward kernel; its backward is a formula of PyTorch's operators
//   v2 kernel    backward kernel, which computes r and y again; its own backward is a formula
//   v3 twice     double backward kernel: four sums in one pass, two results
//
// What connects them is in autograd.py. Run: python run_day.py 84

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/chunk.cuh"        // taught in days 35 and 42
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23

#include <tuple>

constexpr int WARP = 32;
constexpr int BLOCK = 256;
constexpr int HELD = 2;  // chunks of 16 bytes per thread and input that stay in registers

// What sums are computed in. float64 is there for gradcheck, whose differences need the digits.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T, int N>
using Raw = RawChunk<Chunk<T, N>>;

template <typename T, int N>
__device__ Chunk<Wide<T>, N> in_wide(const Raw<T, N>& raw) {
  if constexpr (std::is_same_v<T, double>) {
    return raw.chunk();
  } else {
    return widened(raw);
  }
}

__device__ inline float inverse_root(float square) {
  return rsqrtf(square);
}
__device__ inline double inverse_root(double square) {
  return rsqrt(square);
}

// The sums of the values of the TEAM threads of a row, in all of them. TEAM is a warp or the block,
// all of whose threads must call it.
template <int TEAM, int COUNT, typename W>
__device__ void team_sums(W (&sums)[COUNT]) {
#pragma unroll
  for (int s = 0; s < COUNT; ++s) sums[s] = warp_sum(sums[s]);
  if constexpr (TEAM > WARP) {
    __shared__ W parts[COUNT][TEAM / WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
      if (lane == 0) parts[s][warp] = sums[s];
    }
    __syncthreads();  // all warps have written their sums before any thread adds them
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
      sums[s] = 0;
#pragma unroll
      for (int w = 0; w < TEAM / WARP; ++w) sums[s] += parts[s][w];
    }
  }
}

// An operator on rows has INPUTS rows to read, SUMS sums over them and OUTPUTS rows to write:
//   add(sums, in)             adds what one element of each input contributes to the sums
//   write(out, in, sums, eps) computes the elements of the outputs

template <typename T, int INPUTS, int OUTPUTS>
struct Pointers {
  const T* in[INPUTS];
  T* out[OUTPUTS];
};

template <typename Op, typename T, int N>
__device__ void add_chunk(Wide<T> (&sums)[Op::SUMS], const Raw<T, N> (&raw)[Op::INPUTS]) {
  Chunk<Wide<T>, N> in[Op::INPUTS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) in[k] = in_wide<T, N>(raw[k]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    Wide<T> element[Op::INPUTS];
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) element[k] = in[k].at[i];
    Op::add(sums, element);
  }
}

template <typename Op, typename T, int N>
__device__ void write_chunk(const Pointers<T, Op::INPUTS, Op::OUTPUTS>& p, int64_t at,
                            const Raw<T, N> (&raw)[Op::INPUTS], const Wide<T> (&sums)[Op::SUMS],
                            Wide<T> eps) {
  Chunk<Wide<T>, N> in[Op::INPUTS];
  Chunk<T, N> out[Op::OUTPUTS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) in[k] = in_wide<T, N>(raw[k]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    Wide<T> element[Op::INPUTS], result[Op::OUTPUTS];
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) element[k] = in[k].at[i];
    Op::write(result, element, sums, eps);
#pragma unroll
    for (int k = 0; k < Op::OUTPUTS; ++k) out[k].at[i] = static_cast<T>(result[k]);
  }
#pragma unroll
  for (int k = 0; k < Op::OUTPUTS; ++k) {
    *reinterpret_cast<Chunk<T, N>*>(p.out[k] + at) = out[k];
  }
}

template <typename T, int N, int INPUTS>
__device__ void load_chunks(Raw<T, N> (&raw)[INPUTS], const T* const (&in)[INPUTS], int64_t at) {
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) {
    raw[k] = load_raw(reinterpret_cast<const Chunk<T, N>*>(in[k] + at));
  }
}

// TEAM threads per row. The first HELD chunks of a thread stay in registers between the sums and
// the results; what a longer row has beyond them is read a second time.
template <typename Op, typename T, int N, int TEAM>
__global__ void __launch_bounds__(BLOCK, 3)
    rows_kernel(const Pointers<T, Op::INPUTS, Op::OUTPUTS> p, int64_t rows, int64_t cols,
                Wide<T> eps) {
  const int64_t row = int64_t{blockIdx.x} * (BLOCK / TEAM) + threadIdx.x / TEAM;
  if (row >= rows) return;  // a whole warp, or no thread
  const int64_t begin = row * cols, end = begin + cols;
  const int64_t first = begin + threadIdx.x % TEAM * N;
  constexpr int STEP = TEAM * N;

  Raw<T, N> held[HELD][Op::INPUTS];
#pragma unroll
  for (int c = 0; c < HELD; ++c) {
    if (first + c * STEP < end) load_chunks<T, N>(held[c], p.in, first + c * STEP);
  }
  Wide<T> sums[Op::SUMS]{};
#pragma unroll
  for (int c = 0; c < HELD; ++c) {
    if (first + c * STEP < end) add_chunk<Op, T, N>(sums, held[c]);
  }
#pragma unroll 1
  for (int64_t at = first + HELD * STEP; at < end; at += STEP) {
    Raw<T, N> raw[Op::INPUTS];
    load_chunks<T, N>(raw, p.in, at);
    add_chunk<Op, T, N>(sums, raw);
  }
  team_sums<TEAM>(sums);
#pragma unroll
  for (int c = 0; c < HELD; ++c) {
    if (first + c * STEP < end) write_chunk<Op, T, N>(p, first + c * STEP, held[c], sums, eps);
  }
#pragma unroll 1
  for (int64_t at = first + HELD * STEP; at < end; at += STEP) {
    Raw<T, N> raw[Op::INPUTS];
    load_chunks<T, N>(raw, p.in, at);
    write_chunk<Op, T, N>(p, at, raw, sums, eps);
  }
}

constexpr auto FLOATS = {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16,
                         ScalarType::Double};

void check_rows(const Tensor& x, double eps) {
  check(x, "x").on_gpu().dtype(FLOATS).contiguous();
  STD_TORCH_CHECK(x.dim() >= 1, "x: expected rows, got a tensor without dimensions");
  STD_TORCH_CHECK(eps >= 0 && eps < 1e30, "eps: expected a number in [0, 1e30), got ", eps);
}

void check_like_x(const Tensor& t, const char* name, const Tensor& x) {
  check(t, name).on_gpu().contiguous().like(x, "x");
}

// Launches rows_kernel<Op>; x is the last of the inputs.
template <typename Op>
void launch_rows(const char* name, const Tensor (&in)[Op::INPUTS], const Tensor (&out)[Op::OUTPUTS],
                 double eps) {
  const Tensor& x = in[Op::INPUTS - 1];
  if (x.numel() == 0) return;
  const int64_t cols = x.size(x.dim() - 1), rows = x.numel() / cols;
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    Pointers<T, Op::INPUTS, Op::OUTPUTS> p;
    bool aligned = true;  // outputs are PyTorch's own allocations
    for (int k = 0; k < Op::INPUTS; ++k) {
      p.in[k] = data<T>(in[k]);
      aligned = aligned && is_aligned(in[k], 16);
    }
    for (int k = 0; k < Op::OUTPUTS; ++k) p.out[k] = mutable_data<T>(out[k]);
    const auto with = [&](auto n, auto team) {
      constexpr int N = decltype(n)::value, TEAM = decltype(team)::value;
      const unsigned blocks = grid_size(ceil_div<int64_t>(rows, BLOCK / TEAM), "x");
      rows_kernel<Op, T, N, TEAM>
          <<<blocks, BLOCK, 0, current_stream(x)>>>(p, rows, cols, static_cast<Wide<T>>(eps));
    };
    const auto with_team = [&](auto n) {
      // A warp suffices for rows that its registers hold.
      if (cols <= int64_t{WARP} * HELD * decltype(n)::value) {
        with(n, std::integral_constant<int, WARP>{});
      } else {
        with(n, std::integral_constant<int, BLOCK>{});
      }
    };
    constexpr int PACK = 16 / sizeof(T);
    if (aligned && cols % PACK == 0) {
      with_team(std::integral_constant<int, PACK>{});
    } else {
      with_team(std::integral_constant<int, 1>{});
    }
  };
  if (x.scalar_type() == ScalarType::Double) {
    launch(double{});
  } else {
    dispatch_floating(x, launch);
  }
  check_launch(name);
}

// ---------------------------------------------------------------------------------------------
// v1: a forward kernel. Its backward is a formula of PyTorch's operators, in autograd.py.

struct Forward {
  static constexpr int INPUTS = 1, SUMS = 1, OUTPUTS = 1;  // x -> y

  template <typename W>
  static __device__ void add(W (&sums)[SUMS], const W (&in)[INPUTS]) {
    sums[0] += in[0] * in[0];
  }

  template <typename W>
  static __device__ void write(W (&out)[OUTPUTS], const W (&in)[INPUTS], const W (&sums)[SUMS],
                               W eps) {
    out[0] = in[0] * inverse_root(sums[0] + eps);
  }
};

Tensor unit_rows_v1_formula(const Tensor& x, double eps) {
  check_rows(x, eps);
  const DeviceGuard guard(x);
  const Tensor y = allocate_like(x);
  launch_rows<Forward>("unit_rows", {x}, {y}, eps);
  return y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the backward is a kernel, too. It reads g and x, and computes r and y again: of
// the forward pass nothing is kept but x, which is there anyway.

struct Backward {
  static constexpr int INPUTS = 2, SUMS = 2, OUTPUTS = 1;  // g, x -> gx

  template <typename W>
  static __device__ void add(W (&sums)[SUMS], const W (&in)[INPUTS]) {
    const W g = in[0], x = in[1];
    sums[0] += x * x;
    sums[1] += x * g;
  }

  template <typename W>
  static __device__ void write(W (&out)[OUTPUTS], const W (&in)[INPUTS], const W (&sums)[SUMS],
                               W eps) {
    const W r = inverse_root(sums[0] + eps);
    const W g = in[0], y = r * in[1], yg = r * sums[1];
    out[0] = r * (g - y * yg);
  }
};

Tensor unit_rows_backward(const Tensor& g, const Tensor& x, double eps) {
  check_rows(x, eps);
  check_like_x(g, "g", x);
  const DeviceGuard guard(x);
  const Tensor gx = allocate_like(x);
  launch_rows<Backward>("unit_rows_backward", {g, x}, {gx}, eps);
  return gx;
}

// The same kernel: an operator has one registered backward, so each rung has an operator.
Tensor unit_rows_v2_kernel(const Tensor& x, double eps) {
  return unit_rows_v1_formula(x, eps);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the backward has a backward kernel of its own. Four sums in one pass over three
// inputs, then both gradients.

// Of one element: gg and gx from h, g and x, and from the sums over its row.
template <typename W>
__device__ void second_gradients(W (&out)[2], const W (&in)[3], const W (&sums)[4], W eps) {
  const W r = inverse_root(sums[0] + eps);
  const W h = in[0], g = in[1], y = r * in[2];
  const W yg = r * sums[1], yh = r * sums[2], gh = sums[3];
  out[0] = r * (h - y * yh);
  out[1] = r * r * (y * (3 * yg * yh - gh) - g * yh - h * yg);
}

struct DoubleBackward {
  static constexpr int INPUTS = 3, SUMS = 4, OUTPUTS = 2;  // h, g, x -> gg, gx

  template <typename W>
  static __device__ void add(W (&sums)[SUMS], const W (&in)[INPUTS]) {
    const W h = in[0], g = in[1], x = in[2];
    sums[0] += x * x;
    sums[1] += x * g;
    sums[2] += x * h;
    sums[3] += g * h;
  }

  template <typename W>
  static __device__ void write(W (&out)[OUTPUTS], const W (&in)[INPUTS], const W (&sums)[SUMS],
                               W eps) {
    second_gradients(out, in, sums, eps);
  }
};

std::tuple<Tensor, Tensor> unit_rows_double_backward(const Tensor& h, const Tensor& g,
                                                     const Tensor& x, double eps) {
  check_rows(x, eps);
  check_like_x(h, "h", x);
  check_like_x(g, "g", x);
  const DeviceGuard guard(x);
  const Tensor gg = allocate_like(x), gx = allocate_like(x);
  launch_rows<DoubleBackward>("unit_rows_double_backward", {h, g, x}, {gg, gx}, eps);
  return {gg, gx};
}

Tensor unit_rows_v3_twice(const Tensor& x, double eps) {
  return unit_rows_v1_formula(x, eps);
}

Tensor unit_rows_backward_twice(const Tensor& g, const Tensor& x, double eps) {
  return unit_rows_backward(g, x, eps);
}

// ---------------------------------------------------------------------------------------------

RUNG(day84, unit_rows_v1_formula, "(Tensor x, float eps) -> Tensor");
RUNG(day84, unit_rows_v2_kernel, "(Tensor x, float eps) -> Tensor");
RUNG(day84, unit_rows_v3_twice, "(Tensor x, float eps) -> Tensor");
RUNG(day84, unit_rows_backward, "(Tensor g, Tensor x, float eps) -> Tensor");
RUNG(day84, unit_rows_backward_twice, "(Tensor g, Tensor x, float eps) -> Tensor");
RUNG(day84, unit_rows_double_backward,
     "(Tensor h, Tensor g, Tensor x, float eps) -> (Tensor, Tensor)");

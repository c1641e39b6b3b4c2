// Kernels for test_cpu_arithmetic.py: directed rounding, atomics of vectors.
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------- directed rounding

// 12 results of floats and 9 of doubles in one rounding mode, for element i of n.
#define ROUND_ALL(mode)                                                              \
  __device__ void floats_##mode(float a, float b, float c, float* out, int n) {      \
    long long whole = static_cast<long long>(a * 1e15f);                             \
    float rows[] = {                                                                 \
        __fadd_##mode(a, b),                                                         \
        __fsub_##mode(a, b),                                                         \
        __fmul_##mode(a, b),                                                         \
        __fdiv_##mode(a, b),                                                         \
        __fmaf_##mode(a, b, c),                                                      \
        __frcp_##mode(a),                                                            \
        __fsqrt_##mode(fabsf(a)),                                                    \
        __int2float_##mode(static_cast<int>(whole)),                                 \
        __uint2float_##mode(static_cast<unsigned>(whole)),                           \
        __ll2float_##mode(whole),                                                    \
        __ull2float_##mode(static_cast<unsigned long long>(whole)),                  \
        __double2float_##mode(static_cast<double>(a) * static_cast<double>(b)),      \
    };                                                                               \
    for (int r = 0; r < 12; ++r) out[r * n] = rows[r];                               \
  }                                                                                  \
  __device__ void doubles_##mode(double a, double b, double c, double* out, int n) { \
    long long whole = static_cast<long long>(a * 1e18);                              \
    double rows[] = {                                                                \
        __dadd_##mode(a, b),                                                         \
        __dsub_##mode(a, b),                                                         \
        __dmul_##mode(a, b),                                                         \
        __ddiv_##mode(a, b),                                                         \
        __fma_##mode(a, b, c),                                                       \
        __drcp_##mode(a),                                                            \
        __dsqrt_##mode(fabs(a)),                                                     \
        __ll2double_##mode(whole),                                                   \
        __ull2double_##mode(static_cast<unsigned long long>(whole)),                 \
    };                                                                               \
    for (int r = 0; r < 9; ++r) out[r * n] = rows[r];                                \
  }
ROUND_ALL(rn)
ROUND_ALL(rz)
ROUND_ALL(rd)
ROUND_ALL(ru)

__global__ void floats_kernel(const float* a, const float* b, const float* c, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  floats_rn(a[i], b[i], c[i], out + i, n);
  floats_rz(a[i], b[i], c[i], out + 12 * n + i, n);
  floats_rd(a[i], b[i], c[i], out + 24 * n + i, n);
  floats_ru(a[i], b[i], c[i], out + 36 * n + i, n);
}
__global__ void doubles_kernel(const double* a, const double* b, const double* c, double* out,
                               int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  doubles_rn(a[i], b[i], c[i], out + i, n);
  doubles_rz(a[i], b[i], c[i], out + 9 * n + i, n);
  doubles_rd(a[i], b[i], c[i], out + 18 * n + i, n);
  doubles_ru(a[i], b[i], c[i], out + 27 * n + i, n);
}
// (mode, operation, element); modes: nearest, towards zero, down, up.
Tensor rounding(Tensor a, Tensor b, Tensor c) {
  int n = static_cast<int>(a.numel());
  unsigned blocks = static_cast<unsigned>(ceil_div(n, 128));
  if (a.scalar_type() == ScalarType::Float) {
    Tensor out = torch::stable::new_empty(a, {4, 12, n});
    floats_kernel<<<blocks, 128, 0, current_stream(a)>>>(
        data<float>(a), data<float>(b), data<float>(c), mutable_data<float>(out), n);
    check_launch("rounding");
    return out;
  }
  Tensor out = torch::stable::new_empty(a, {4, 9, n});
  doubles_kernel<<<blocks, 128, 0, current_stream(a)>>>(
      data<double>(a), data<double>(b), data<double>(c), mutable_data<double>(out), n);
  check_launch("rounding");
  return out;
}

// ---------------------------------------------------------------- atomics of vectors

template <class Pair>
__device__ void add_pairs(Pair* sums, float x, float y) {
  Pair old = atomicAdd(&sums[threadIdx.x % 4], Pair(x, y));
  if (static_cast<float>(old.x) > 1e30f) __trap();  // never: keeps the result in use
}

// Every thread adds (1, 2, …) to one of 4 vectors. Compute capability 9.0 adds float2 and float4.
__global__ void vector_atomics_kernel(__half2* halves, __nv_bfloat162* bfloats, float2* twos,
                                      float4* fours) {
  add_pairs(halves, 1.0f, 2.0f);
  add_pairs(bfloats, 1.0f, 2.0f);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  float2 two = atomicAdd(&twos[threadIdx.x % 4], make_float2(1, 2));
  float4 four = atomicAdd(&fours[threadIdx.x % 4], make_float4(1, 2, 3, 4));
  // Each component is atomic, the vector is not: another block may add between x and y. So each
  // component's found values are 0, d, 2d, … once each, and their sum is the same in every order.
  atomicAdd_block(&twos[4 + blockIdx.x], two);
  atomicAdd_block(&fours[4 + blockIdx.x], four);
#endif
}
void vector_atomics(Tensor halves, Tensor bfloats, Tensor twos, Tensor fours) {
  vector_atomics_kernel<<<2, 64, 0, current_stream(halves)>>>(
      reinterpret_cast<__half2*>(mutable_data<__half>(halves)),
      reinterpret_cast<__nv_bfloat162*>(mutable_data<__nv_bfloat16>(bfloats)),
      reinterpret_cast<float2*>(mutable_data<float>(twos)),
      reinterpret_cast<float4*>(mutable_data<float>(fours)));
  check_launch("vector_atomics");
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_arithmetic, m) {
  m.def("rounding(Tensor a, Tensor b, Tensor c) -> Tensor");
  m.def(
      "vector_atomics(Tensor(a!) halves, Tensor(b!) bfloats, Tensor(c!) twos, Tensor(d!) fours) "
      "-> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_arithmetic, CUDA, m) {
  m.impl("rounding", TORCH_BOX(&rounding));
  m.impl("vector_atomics", TORCH_BOX(&vector_atomics));
}

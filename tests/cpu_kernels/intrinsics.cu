// Kernels for test_cpu_intrinsics.py: SIMD integers, inverse functions, random numbers, cache
// hints.
#include "common/cuda/philox.cuh"
#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor.cuh"

// ---------------------------------------------------------------- SIMD integers

// Each function of parts of a word, for pairs of 16 and then quadruples of 8 bits.
#define SIMD_ROWS(n)                                                                         \
  __vadd##n(a, b), __vaddss##n(a, b), __vaddus##n(a, b), __vsub##n(a, b), __vsubss##n(a, b), \
      __vsubus##n(a, b), __vavgs##n(a, b), __vavgu##n(a, b), __vhaddu##n(a, b),              \
      __vabsdiffs##n(a, b), __vabsdiffu##n(a, b), __vmaxs##n(a, b), __vmaxu##n(a, b),        \
      __vmins##n(a, b), __vminu##n(a, b), __vcmpeq##n(a, b), __vcmpne##n(a, b),              \
      __vcmpges##n(a, b), __vcmpgeu##n(a, b), __vcmpgts##n(a, b), __vcmpgtu##n(a, b),        \
      __vcmples##n(a, b), __vcmpleu##n(a, b), __vcmplts##n(a, b), __vcmpltu##n(a, b),        \
      __vseteq##n(a, b), __vsetne##n(a, b), __vsetges##n(a, b), __vsetgeu##n(a, b),          \
      __vsetgts##n(a, b), __vsetgtu##n(a, b), __vsetles##n(a, b), __vsetleu##n(a, b),        \
      __vsetlts##n(a, b), __vsetltu##n(a, b), __vabs##n(a), __vabsss##n(a), __vneg##n(a),    \
      __vnegss##n(a), __vsads##n(a, b), __vsadu##n(a, b)
constexpr int kSimdRows = 41;

__global__ void simd_kernel(const unsigned* x, const unsigned* y, unsigned* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const unsigned a = x[i], b = y[i];
  const unsigned rows[] = {SIMD_ROWS(2), SIMD_ROWS(4)};
  for (int r = 0; r < 2 * kSimdRows; ++r) out[r * n + i] = rows[r];
}
Tensor simd(Tensor x, Tensor y) {
  const int n = static_cast<int>(x.numel());
  Tensor out = torch::stable::new_empty(x, {2 * kSimdRows, n});
  simd_kernel<<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(
      static_cast<const unsigned*>(x.const_data_ptr()),
      static_cast<const unsigned*>(y.const_data_ptr()),
      static_cast<unsigned*>(out.mutable_data_ptr()), n);
  check_launch("simd");
  return out;
}

// Minima and maxima of three and of sums: 13 for max, then 13 for min; then dp2a.
#define DPX_ROWS(i)                                                                           \
  auto flags_##i = [&](unsigned result, bool high, bool low) {                                \
    return result ^ (high ? 0x80000000u : 0u) ^ (low ? 1u : 0u);                              \
  };                                                                                          \
  put(__vi##i##3_s32(s, t, u)), put(__vi##i##3_u32(a, b, c)), put(__vi##i##3_s16x2(a, b, c)); \
  put(__vi##i##3_u16x2(a, b, c)), put(__vi##i##_s32_relu(s, t));                              \
  put(__vi##i##_s16x2_relu(a, b)), put(__vi##i##3_s32_relu(s, t, u));                         \
  put(__vi##i##3_s16x2_relu(a, b, c)), put(__viadd##i##_s32(s, t, u));                        \
  put(__viadd##i##_u32(a, b, c)), put(__viadd##i##_s16x2(a, b, c));                           \
  put(__viadd##i##_u16x2(a, b, c)), put(__viadd##i##_s32_relu(s, t, u));                      \
  put(__viadd##i##_s16x2_relu(a, b, c));                                                      \
  const int of_signed_##i = __vib##i##_s32(s, t, &high);                                      \
  put(flags_##i(of_signed_##i, high, false));                                                 \
  const unsigned of_unsigned_##i = __vib##i##_u32(a, b, &high);                               \
  put(flags_##i(of_unsigned_##i, high, false));                                               \
  const unsigned of_signed_pair_##i = __vib##i##_s16x2(a, b, &high, &low);                    \
  put(flags_##i(of_signed_pair_##i, high, low));                                              \
  const unsigned of_pair_##i = __vib##i##_u16x2(a, b, &high, &low);                           \
  put(flags_##i(of_pair_##i, high, low));

__global__ void dpx_kernel(const unsigned* x, const unsigned* y, const unsigned* z, unsigned* out,
                           int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const unsigned a = x[i], b = y[i], c = z[i];
  const int s = static_cast<int>(a), t = static_cast<int>(b), u = static_cast<int>(c);
  bool high = false, low = false;
  int row = 0;
  auto put = [&](auto value) { out[row++ * n + i] = static_cast<unsigned>(value); };
  DPX_ROWS(max)
  DPX_ROWS(min)
  put(__dp2a_lo(s, t, u)), put(__dp2a_hi(s, t, u)), put(__dp2a_lo(a, b, c)),
      put(__dp2a_hi(a, b, c));
}
Tensor dpx(Tensor x, Tensor y, Tensor z) {
  const int n = static_cast<int>(x.numel());
  Tensor out = torch::stable::new_empty(x, {40, n});
  dpx_kernel<<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(
      static_cast<const unsigned*>(x.const_data_ptr()),
      static_cast<const unsigned*>(y.const_data_ptr()),
      static_cast<const unsigned*>(z.const_data_ptr()),
      static_cast<unsigned*>(out.mutable_data_ptr()), n);
  check_launch("dpx");
  return out;
}

// ---------------------------------------------------------------- functions

// Rows of functions of x in (0, 1), in T.
template <typename T>
__global__ void inverses_kernel(const T* in, T* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const T x = in[i], three[] = {x, 2 * x, 2};
  int row = 0;
  auto put = [&](T value) { out[row++ * n + i] = value; };
  if constexpr (sizeof(T) == 4) {
    put(erfinvf(2 * x - 1)), put(erfcinvf(2 * x)), put(normcdfinvf(x));
    put(cyl_bessel_i0f(x)), put(cyl_bessel_i1f(-x));
    put(normf(3, three)), put(rnormf(3, three)), put(rnorm3df(x, 2 * x, 2));
    put(rnorm4df(x, x, x, x));
  } else {
    put(erfinv(2 * x - 1)), put(erfcinv(2 * x)), put(normcdfinv(x));
    put(cyl_bessel_i0(x)), put(cyl_bessel_i1(-x));
    put(norm(3, three)), put(rnorm(3, three)), put(rnorm3d(x, 2 * x, 2)), put(rnorm4d(x, x, x, x));
  }
  put(static_cast<T>(isnan(x / 0 - x / 0) + 2 * isinf(x / 0) + 4 * isfinite(x) + 8 * signbit(-x)));
}
Tensor inverses(Tensor x) {
  const int n = static_cast<int>(x.numel());
  Tensor out = torch::stable::new_empty(x, {10, n});
  if (x.scalar_type() == ScalarType::Float)
    inverses_kernel<<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(data<float>(x),
                                                                     mutable_data<float>(out), n);
  else
    inverses_kernel<<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(data<double>(x),
                                                                     mutable_data<double>(out), n);
  check_launch("inverses");
  return out;
}

// Integers as bfloat16, rounded towards zero, down and up: from int, then from long long.
__global__ void to_bfloat16_kernel(const long long* in, __nv_bfloat16* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const long long x = in[i];
  const int small = static_cast<int>(x);
  const __nv_bfloat16 rows[] = {__int2bfloat16_rz(small), __int2bfloat16_rd(small),
                                __int2bfloat16_ru(small), __ll2bfloat16_rz(x),
                                __ll2bfloat16_rd(x),      __ll2bfloat16_ru(x)};
  for (int r = 0; r < 6; ++r) out[r * n + i] = rows[r];
}
Tensor to_bfloat16(Tensor x) {
  const int n = static_cast<int>(x.numel());
  Tensor out = torch::stable::new_empty(x, {6, n}, ScalarType::BFloat16);
  to_bfloat16_kernel<<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(
      static_cast<const long long*>(x.const_data_ptr()), mutable_data<__nv_bfloat16>(out), n);
  check_launch("to_bfloat16");
  return out;
}

// ---------------------------------------------------------------- random numbers

// words: (n, 6), counter and key → (n, 4).
__global__ void philox_kernel(const unsigned* words, unsigned* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const unsigned* w = words + 6 * i;
  const uint4 r = philox::random4(make_uint4(w[0], w[1], w[2], w[3]), make_uint2(w[4], w[5]));
  reinterpret_cast<uint4*>(out)[i] = r;
}
Tensor philox_words(Tensor words) {
  const int n = static_cast<int>(words.size(0));
  Tensor out = torch::stable::new_empty(words, {n, 4});
  philox_kernel<<<ceil_div(n, 128), 128, 0, current_stream(words)>>>(
      static_cast<const unsigned*>(words.const_data_ptr()),
      static_cast<unsigned*>(out.mutable_data_ptr()), n);
  check_launch("philox");
  return out;
}

// out: float, a multiple of 4 elements: uniform, or normal, numbers of the stream `seed`.
__global__ void random_kernel(float* out, int groups, uint64_t seed, bool normal) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= groups) return;
  const uint4 w = philox::random4(seed, i);
  float4 values = make_float4(philox::uniform(w.x), philox::uniform(w.y), philox::uniform(w.z),
                              philox::uniform(w.w));
  if (normal) {
    const float2 first = philox::normal2(w.x, w.y), second = philox::normal2(w.z, w.w);
    values = make_float4(first.x, first.y, second.x, second.y);
  }
  reinterpret_cast<float4*>(out)[i] = values;
}
void random_numbers(Tensor out, int64_t seed, bool normal) {
  const int groups = static_cast<int>(out.numel() / 4);
  random_kernel<<<ceil_div(groups, 128), 128, 0, current_stream(out)>>>(
      mutable_data<float>(out), groups, static_cast<uint64_t>(seed), normal);
  check_launch("random");
}

// ---------------------------------------------------------------- cache hints

// Every load and store with a hint, one after the other: y = x in the end. T of 4, 8, 16 bytes.
template <typename T>
__global__ void cache_kernel(const T* x, T* y, T* scratch, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  ptx::prefetch_l1(x + i);
  ptx::prefetch_l2(x + i);
  ptx::store_cg(scratch + i, ptx::load_nc(x + i));
  ptx::store_cs(scratch + n + i, ptx::load_cg(scratch + i));
  ptx::store_no_allocate(scratch + i, ptx::load_cs(scratch + n + i));
  T value = __ldcg(scratch + i);
  if (threadIdx.x % 2) value = ptx::load_nc_no_allocate(x + i);
  __stcs(scratch + i, value);
  value = __ldcv(scratch + i);
  if constexpr (sizeof(T) == 16) {
    ptx::store_with_policy(scratch + n + i, value, ptx::policy_evict_last());
    value = ptx::load_with_policy(scratch + n + i, ptx::policy_evict_first());
  }
  __stwt(y + i, value);
}
// x: uint8, a multiple of 16 bytes.
Tensor cache(Tensor x, int64_t bytes) {
  Tensor y = torch::stable::empty_like(x);
  Tensor scratch = torch::stable::new_empty(x, {2 * x.numel()});
  auto go = [&](auto zero) {
    using T = decltype(zero);
    const int n = static_cast<int>(x.numel() / sizeof(T));
    cache_kernel<T><<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(
        static_cast<const T*>(x.const_data_ptr()), static_cast<T*>(y.mutable_data_ptr()),
        static_cast<T*>(scratch.mutable_data_ptr()), n);
  };
  if (bytes == 4) go(0u);
  if (bytes == 8) go(uint2{});
  if (bytes == 16) go(uint4{});
  check_launch("cache");
  return y;
}

// ---------------------------------------------------------------- kernels that begin early

// y = 2x, then y += 1 by a kernel that may begin before the first has ended.
__global__ void double_kernel(const float* x, float* y, int n) {
  ptx::grid_dependency_launch();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = 2 * x[i];
}
__global__ void increment_kernel(float* y, int n, bool by_name) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (by_name) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
  }
#endif
  if (!by_name) ptx::grid_dependency_wait();
  if (i < n) y[i] += 1;
}
Tensor early(Tensor x, bool by_name) {
  Tensor y = torch::stable::empty_like(x);
  const int n = static_cast<int>(x.numel());
  double_kernel<<<ceil_div(n, 128), 128, 0, current_stream(x)>>>(data<float>(x),
                                                                 mutable_data<float>(y), n);
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index(x)),
             "early");
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(n, 128)));
  config.blockDim = dim3(128);
  config.stream = current_stream(x);
  config.attrs = attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, increment_kernel, mutable_data<float>(y), n, by_name),
             "early");
  return y;
}

// ---------------------------------------------------------------- kinds of memory

// For each: is it shared, global, local?
__global__ void kinds_kernel(int* out) {
  __shared__ int shared[4];
  int local = 5;
  const void* pointers[] = {shared, out, &local};
  for (int i = 0; i < 3; ++i) {
    out[3 * i] = __isShared(pointers[i]) != 0;
    out[3 * i + 1] = __isGlobal(pointers[i]) != 0;
    out[3 * i + 2] = __isLocal(pointers[i]) != 0;
  }
}
Tensor kinds(Tensor like) {
  Tensor out = torch::stable::new_empty(like, {3, 3}, ScalarType::Int);
  kinds_kernel<<<1, 1, 0, current_stream(like)>>>(mutable_data<int>(out));
  check_launch("kinds");
  return out;
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_intrinsics, m) {
  m.def("kinds(Tensor like) -> Tensor");
  m.def("simd(Tensor x, Tensor y) -> Tensor");
  m.def("dpx(Tensor x, Tensor y, Tensor z) -> Tensor");
  m.def("inverses(Tensor x) -> Tensor");
  m.def("to_bfloat16(Tensor x) -> Tensor");
  m.def("philox_words(Tensor words) -> Tensor");
  m.def("random(Tensor(a!) out, int seed, bool normal) -> ()");
  m.def("cache(Tensor x, int bytes) -> Tensor");
  m.def("early(Tensor x, bool by_name) -> Tensor");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_intrinsics, CUDA, m) {
  m.impl("kinds", TORCH_BOX(&kinds));
  m.impl("simd", TORCH_BOX(&simd));
  m.impl("dpx", TORCH_BOX(&dpx));
  m.impl("inverses", TORCH_BOX(&inverses));
  m.impl("to_bfloat16", TORCH_BOX(&to_bfloat16));
  m.impl("philox_words", TORCH_BOX(&philox_words));
  m.impl("random", TORCH_BOX(&random_numbers));
  m.impl("cache", TORCH_BOX(&cache));
  m.impl("early", TORCH_BOX(&early));
}

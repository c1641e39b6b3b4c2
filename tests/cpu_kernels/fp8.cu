// Kernels for test_cpu_fp8.py: the conversions of <cuda_fp8.h>.
#include <cuda_fp8.h>

#include "common/cuda/tensor.cuh"

// What a type of fp8 is called in its three sizes, and in the functions of C.
struct E4m3 {
  using One = __nv_fp8_e4m3;
  using Two = __nv_fp8x2_e4m3;
  using Four = __nv_fp8x4_e4m3;
  static constexpr auto kName = __NV_E4M3;
};
struct E5m2 {
  using One = __nv_fp8_e5m2;
  using Two = __nv_fp8x2_e5m2;
  using Four = __nv_fp8x4_e5m2;
  static constexpr auto kName = __NV_E5M2;
};

// y = x as fp8, by the conversion number `how`, four elements to a thread; what does not fit
// becomes the largest number, but for 1 and 5.
template <typename Type>
__global__ void encode_kernel(const float4* x, uint32_t* y, int count, int how) {
  using One = typename Type::One;
  using Two = typename Type::Two;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const float4 four = x[i];
  auto each = [&](auto convert) {
    return convert(four.x) | convert(four.y) << 8 | convert(four.z) << 16 | convert(four.w) << 24;
  };
  auto code = [](One value) -> uint32_t { return value.__x; };
  auto pairs = [](Two low, Two high) -> uint32_t {
    return low.__x | static_cast<uint32_t>(high.__x) << 16;
  };
  uint32_t result = 0;
  switch (how) {
    case 0:
      result = each([&](float v) { return code(One(v)); });
      break;
    case 1:
      result = each(
          [&](float v) -> uint32_t { return __nv_cvt_float_to_fp8(v, __NV_NOSAT, Type::kName); });
      break;
    case 2:
      result = each([&](float v) { return code(One(__float2half_rn(v))); });
      break;
    case 3:
      result = each([&](float v) { return code(One(__float2bfloat16_rn(v))); });
      break;
    case 4:
      result = each([&](float v) { return code(One(static_cast<double>(v))); });
      break;
    case 5:
      result = each([&](float v) -> uint32_t {
        return __nv_cvt_halfraw_to_fp8(__half_raw(__float2half_rn(v)), __NV_NOSAT, Type::kName);
      });
      break;
    case 6:
      result = pairs(Two(make_float2(four.x, four.y)), Two(make_float2(four.z, four.w)));
      break;
    case 7:
      result =
          pairs(Two(__floats2half2_rn(four.x, four.y)), Two(__floats2half2_rn(four.z, four.w)));
      break;
    case 8:
      result = typename Type::Four(four).__x;
      break;
  }
  y[i] = result;
}

// y = x, which is fp8, by the conversion number `how`, four elements to a thread.
template <typename Type>
__global__ void decode_kernel(const uint32_t* x, float4* y, int count, int how) {
  using One = typename Type::One;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const uint32_t word = x[i];
  auto each = [&](auto convert) {
    auto one = [&](int shift) {
      One value;
      value.__x = static_cast<__nv_fp8_storage_t>(word >> shift);
      return convert(value);
    };
    return make_float4(one(0), one(8), one(16), one(24));
  };
  auto pairs = [&](auto convert) {
    typename Type::Two low, high;
    low.__x = static_cast<__nv_fp8x2_storage_t>(word);
    high.__x = static_cast<__nv_fp8x2_storage_t>(word >> 16);
    const float2 first = convert(low), second = convert(high);
    return make_float4(first.x, first.y, second.x, second.y);
  };
  float4 result = {};
  switch (how) {
    case 0:
      result = each([](One v) { return static_cast<float>(v); });
      break;
    case 1:
      result = each([](One v) { return __half2float(static_cast<__half>(v)); });
      break;
    case 2:
      result = each([](One v) { return __bfloat162float(static_cast<__nv_bfloat16>(v)); });
      break;
    case 3:
      result = each([](One v) { return static_cast<float>(static_cast<double>(v)); });
      break;
    case 4:
      result = pairs([](auto v) { return static_cast<float2>(v); });
      break;
    case 5:
      result = pairs([](auto v) { return __half22float2(static_cast<__half2>(v)); });
      break;
    case 6: {
      typename Type::Four four;
      four.__x = word;
      result = static_cast<float4>(four);
      break;
    }
  }
  y[i] = result;
}

// x: float32, a multiple of 4 elements → the codes, uint8.
Tensor encode(Tensor x, bool e4m3, int64_t how) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  Tensor y = torch::stable::new_empty(x, {x.numel()}, ScalarType::Byte);
  const int count = static_cast<int>(x.numel() / 4);
  const auto kernel = e4m3 ? encode_kernel<E4m3> : encode_kernel<E5m2>;
  kernel<<<(count + 127) / 128, 128, 0, current_stream(x)>>>(
      static_cast<const float4*>(x.const_data_ptr()), static_cast<uint32_t*>(y.mutable_data_ptr()),
      count, static_cast<int>(how));
  check_launch("encode");
  return y;
}

// x: codes, uint8, a multiple of 4 → float32.
Tensor decode(Tensor x, bool e4m3, int64_t how) {
  check(x, "x").on_gpu().dtype({ScalarType::Byte}).contiguous();
  Tensor y = torch::stable::new_empty(x, {x.numel()}, ScalarType::Float);
  const int count = static_cast<int>(x.numel() / 4);
  const auto kernel = e4m3 ? decode_kernel<E4m3> : decode_kernel<E5m2>;
  kernel<<<(count + 127) / 128, 128, 0, current_stream(x)>>>(
      static_cast<const uint32_t*>(x.const_data_ptr()), static_cast<float4*>(y.mutable_data_ptr()),
      count, static_cast<int>(how));
  check_launch("decode");
  return y;
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_fp8, m) {
  m.def("encode(Tensor x, bool e4m3, int how) -> Tensor");
  m.def("decode(Tensor x, bool e4m3, int how) -> Tensor");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_fp8, CUDA, m) {
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("decode", TORCH_BOX(&decode));
}

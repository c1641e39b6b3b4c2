// The two types of fp8, by their PTX names.
//
// e4m3 has 4 bits of exponent and 3 of mantissa: no infinity, a NaN, values up to 448. e5m2 has 5
// and 2: infinities, NaNs, values up to 57344.
#pragma once

// Defined in <cuda_fp8.h>, which a kernel that computes with them includes.
struct __nv_fp8_e4m3;
struct __nv_fp8_e5m2;

namespace ptx {

template <typename T>
inline constexpr bool kIsE4m3 = false;
template <>
inline constexpr bool kIsE4m3<__nv_fp8_e4m3> = true;

template <typename T>
inline constexpr bool kIsFp8 = kIsE4m3<T>;
template <>
inline constexpr bool kIsFp8<__nv_fp8_e5m2> = true;

// The types of the elements of a product's two matrices. kName is what PTX calls them.
template <typename A, typename B>
struct Fp8Types {
  static_assert(kIsFp8<A> && kIsFp8<B>, "A and B are __nv_fp8_e4m3 or __nv_fp8_e5m2");
  static constexpr bool kAIsE4m3 = kIsE4m3<A>, kBIsE4m3 = kIsE4m3<B>;
  static constexpr char kName[] = {'e', kAIsE4m3 ? '4' : '5', 'm', kAIsE4m3 ? '3' : '2', '.',
                                   'e', kBIsE4m3 ? '4' : '5', 'm', kBIsE4m3 ? '3' : '2', 0};
};

}  // namespace ptx

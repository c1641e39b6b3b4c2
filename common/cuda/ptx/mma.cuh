// Matrix products on the tensor cores: d = a·b + c, by one warp (sm_80).
//
// a is 16xK, b is Kx8, c and d are 16x8. Each lane holds some elements of each, in registers. With
// g = lane / 4 and t = lane % 4, and registers of 32 bits with their elements from the low end:
//
//               K = 16, 16-bit            K = 8, tf32        K = 32, 8-bit
//   a[0]    row g,     k 2t, 2t+1       row g,     k t       row g,     k 4t … 4t+3
//   a[1]    row g + 8, k 2t, 2t+1       row g + 8, k t       row g + 8, k 4t … 4t+3
//   a[2]    row g,     k 2t+8, 2t+9     row g,     k t+4     row g,     k 4t+16 … 4t+19
//   a[3]    row g + 8, k 2t+8, 2t+9     row g + 8, k t+4     row g + 8, k 4t+16 … 4t+19
//   b[0]    k 2t, 2t+1,   column g      k t,   column g      k 4t … 4t+3,     column g
//   b[1]    k 2t+8, 2t+9, column g      k t+4, column g      k 4t+16 … 4t+19, column g
//
//   c[0], c[1]    row g,     columns 2t, 2t+1      (d likewise)
//   c[2], c[3]    row g + 8, columns 2t, 2t+1
//
// Sums in fp16 are two to a register: c[0] holds row g and c[1] row g + 8.
//
// ldmatrix fills a from a row-major tile (x4), and b from one of b's transpose (x2) or, with trans,
// from b itself. All 32 lanes must call an mma. d and c may be the same array.
//
// Products are exact and sums have (about) 24 bits on GPU and CPU, but they are added in different
// orders: results agree bit for bit where no sum is rounded, as for small integers, and otherwise
// to about K·2⁻²³ of Σ|a·b| + |c|. Integers are always exact and wrap around. Sums in fp16 are
// rounded once on the CPU, at the end.
#pragma once

#include "common/cuda/ptx/fp8_types.cuh"
#include "common/cuda/ptx/site.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace ptx {

// T: __half or __nv_bfloat16, with two elements in a register.
// GPU and CPU: within 16·2⁻²³ of Σ|a·b| + |c|.
// PTX: mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d…}, {a…}, {b…}, {c…};   or with bf16
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], const float (&c)[4] PTX_HERE) {
  constexpr bool is_half = std::is_same_v<T, __half>;
  static_assert(is_half || std::is_same_v<T, __nv_bfloat16>, "T is __half or __nv_bfloat16");
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(80, "mma.m16n8k16", PTX_SITE);
  cudacpu::multiply_matrices(is_half ? cudacpu::kMmaHalf : cudacpu::kMmaBfloat16, d, a, b, c,
                             PTX_SITE);
#else
  if constexpr (is_half) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
  }
#endif
}

// The same for __half, with sums of fp16, two to a register.
// GPU and CPU: within 2⁻¹⁰ of Σ|a·b| + |c|.
// PTX: mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d…}, {a…}, {b…}, {c…};
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(uint32_t (&d)[2], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2],
                                             const uint32_t (&c)[2] PTX_HERE) {
  static_assert(std::is_same_v<T, __half>, "only products of __half can have sums of fp16");
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(80, "mma.m16n8k16", PTX_SITE);
  cudacpu::multiply_matrices(cudacpu::kMmaHalfSums, d, a, b, c, PTX_SITE);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
      "{%8, %9};"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]));
#endif
}

// The nearest tf32 (8 bits of exponent, 10 of mantissa) in the upper 19 bits of a register; halves
// away from zero. What mma_m16n8k8 takes.
// PTX: cvt.rna.tf32.f32 result, x;
__device__ __forceinline__ uint32_t to_tf32(float x) {
#ifdef CUDA_ON_CPU
  return cudacpu::round_to_tf32(x);
#else
  uint32_t result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(x));
  return result;
#endif
}

// a and b hold tf32, an element in a register. The lower 13 bits are ignored: a plain float there
// is truncated, to_tf32 rounds.
// GPU and CPU: within 8·2⁻²³ of Σ|a·b| + |c|.
// PTX: mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d…}, {a…}, {b…}, {c…};
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2],
                                                 const float (&c)[4] PTX_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(80, "mma of tf32", PTX_SITE);
  cudacpu::multiply_matrices(cudacpu::kMmaTf32, d, a, b, c, PTX_SITE);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
#endif
}

// T: int8_t or uint8_t, with four elements in a register; sums are 32-bit integers.
// PTX: mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {d…}, {a…}, {b…}, {c…};   or with u8
template <typename T>
__device__ __forceinline__ void mma_m16n8k32(int (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], const int (&c)[4] PTX_HERE) {
  constexpr bool is_signed = std::is_same_v<T, int8_t>;
  static_assert(is_signed || std::is_same_v<T, uint8_t>, "T is int8_t or uint8_t");
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(80, "mma.m16n8k32", PTX_SITE);
  cudacpu::multiply_matrices(is_signed ? cudacpu::kMmaInt8 : cudacpu::kMmaUint8, d, a, b, c,
                             PTX_SITE);
#else
  if constexpr (is_signed) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
  }
#endif
}

// A and B: __nv_fp8_e4m3 or __nv_fp8_e5m2, with four elements in a register; sums are floats.
// sm_89; a trap before. GPU and CPU: within 32·2⁻²³ of Σ|a·b| + |c|.
// PTX: mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {d…}, {a…}, {b…}, {c…};   and so on
template <typename A, typename B = A>
__device__ __forceinline__ void mma_m16n8k32(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], const float (&c)[4] PTX_HERE) {
  using Types = Fp8Types<A, B>;
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(89, "mma of fp8", PTX_SITE);
  cudacpu::multiply_matrices(cudacpu::fp8_product(Types::kAIsE4m3, Types::kBIsE4m3, false), d, a, b,
                             c, PTX_SITE);
#elif __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.%14.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]), "C"(Types::kName));
#else
  __trap();
#endif
}

// The same with sums of fp16, two to a register. sm_89. GPU and CPU: within 2⁻¹⁰ of Σ|a·b| + |c|.
// PTX: mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16 {d…}, {a…}, {b…}, {c…};   and so on
template <typename A, typename B = A>
__device__ __forceinline__ void mma_m16n8k32(uint32_t (&d)[2], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2],
                                             const uint32_t (&c)[2] PTX_HERE) {
  using Types = Fp8Types<A, B>;
#ifdef CUDA_ON_CPU
  cudacpu::needs_capability(89, "mma of fp8", PTX_SITE);
  cudacpu::multiply_matrices(cudacpu::fp8_product(Types::kAIsE4m3, Types::kBIsE4m3, true), d, a, b,
                             c, PTX_SITE);
#elif __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f16.%10.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
      "{%8, %9};"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
        "C"(Types::kName));
#else
  __trap();
#endif
}

}  // namespace ptx

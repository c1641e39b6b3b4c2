// Matrix products of a warpgroup, from shared memory, that run while the threads go on (sm_90a).
//
// A warpgroup is four neighbouring warps, the first a multiple of 4: 128 threads. All of them issue
// the same wgmma: d += a·b, where a is 64xK, b is KxN, d is 64xN in float32, N = 8, 16, … 256, and
// a row of K elements is 32 bytes: K = 16 for __half and __nv_bfloat16, 32 for __nv_fp8_e4m3 and
// __nv_fp8_e5m2 (which may be mixed), 8 for float, which means tf32 (its lower 13 bits are
// ignored).
//
//   wgmma_fence();                          // registers written so far: d, and a if it is there
//   wgmma<T>(d, a, b, false);               // d = a·b
//   wgmma<T>(d, next_a, next_b);            // d += …, in order; several at a time are under way
//   wgmma_commit();                         // closes what was issued into a group
//   wgmma_wait<0>(d);                       // until then, neither d nor the tiles may be touched
//
// Thread t has N/2 elements of d, with w = t / 32 the warp, g = t % 32 / 4, i = t % 4:
//
//   d[4j], d[4j+1]      row 16w + g,      columns 8j + 2i, 8j + 2i + 1
//   d[4j+2], d[4j+3]    row 16w + g + 8,  columns 8j + 2i, 8j + 2i + 1
//
// The same place as mma's c and d (mma.cuh). a in registers is mma's a, too: row 16w + g of a.
//
// A tile in shared memory is described by a descriptor: where it starts, two distances, and its
// swizzle (swizzle.cuh). Its pieces are 16 bytes: E = 8, 16 or 4 elements. W: bytes of the swizzle.
//
//   Major::kK: along a piece runs k (a's rows, b's columns lie each in one piece after the other)
//     kNone       piece (row r, part c = 0, 1) at  r/8·stride + r%8·16 + c·leading
//     k32 … k128  (leading is not used)            r/8·stride + r%8·W + c·16
//   Major::kMN: along a piece run a's rows or b's columns; 16-bit types only
//     kNone       piece (part p, k) at             p·stride + k/8·leading + k%8·16
//     k32 … k128  with P = W/16 pieces a line      p/P·leading + p%P·16 + k/8·stride + k%8·W
//
// With a swizzle, a tile's pattern begins at a multiple of 8·W bytes. The next K of a tile whose
// rows are longer begins 32 bytes further for Major::kK, 2 strides further for Major::kMN.
//
// Tiles written by stores or cp.async need fence_proxy_async() by each thread that wrote, and a
// barrier, before the first wgmma reads them.
//
// Precision: products are exact, sums have about 24 bits, as mma's. Those of fp8 products have
// fewer on Hopper, and on the CPU backend too: within a wgmma, all 32 products and d are cut off 13
// bits below the largest of them, and so is the sum. Kernels that need more add up every few wgmmas
// in float.
//
// On the CPU backend a wgmma takes place as late as is legal, at the wait that requires it, and
// until then its d is NaN; in random order each warp's part either does so or reads its tiles at
// once. Traps anywhere but on sm_90a.
#pragma once

#include "common/cuda/ptx/fp8_types.cuh"  // declares fp8, whose header is up to the user
#include "common/cuda/ptx/site.cuh"
#include "common/cuda/ptx/swizzle.cuh"
#include "common/cuda/ptx/wgmma_operands.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace ptx {

// The index of a tile that is contiguous in shared memory: k, or the other (a's row, b's column).
enum class Major : uint8_t { kK, kMN };

enum class Sign : int8_t { kPlus = 1, kMinus = -1 };

// The descriptor of a tile; distances in bytes, multiples of 16 below 2^18 (see above). It checks
// nothing: on the CPU backend, the wgmma that reads the tile does.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* tile, Swizzle swizzle,
                                                     uint32_t leading_bytes,
                                                     uint32_t stride_bytes) {
  auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3ffff) >> 4); };
  // The hardware counts swizzles backwards: 128 bytes are 1, 64 are 2, 32 are 3.
  const uint64_t mode = (4 - static_cast<uint64_t>(swizzle)) % 4;
  return field(shared_address(tile)) | field(leading_bytes) << 16 | field(stride_bytes) << 32 |
         mode << 62;
}

// Properties of the types of a's and b's elements; kName is the middle of the instruction's name.
template <typename A, typename B>
struct WgmmaTypes {
  static constexpr bool kKnown = false;
};
#ifdef CUDA_ON_CPU
#define PTX_WGMMA_CPU_TYPES(a, b) \
  static constexpr auto kA = cudacpu::MatrixType::a, kB = cudacpu::MatrixType::b;
#else
#define PTX_WGMMA_CPU_TYPES(a, b)
#endif
#define PTX_WGMMA_TYPES(A, B, k, a, b)                        \
  template <>                                                 \
  struct WgmmaTypes<A, B> {                                   \
    static constexpr bool kKnown = true;                      \
    static constexpr bool kCanBeMnMajor = k == 16;            \
    static constexpr char kName[] = "k" #k ".f32." #a "." #b; \
    PTX_WGMMA_CPU_TYPES(a, b)                                 \
  };
PTX_WGMMA_TYPES(__half, __half, 16, f16, f16)
PTX_WGMMA_TYPES(__nv_bfloat16, __nv_bfloat16, 16, bf16, bf16)
PTX_WGMMA_TYPES(float, float, 8, tf32, tf32)
PTX_WGMMA_TYPES(__nv_fp8_e4m3, __nv_fp8_e4m3, 32, e4m3, e4m3)
PTX_WGMMA_TYPES(__nv_fp8_e4m3, __nv_fp8_e5m2, 32, e4m3, e5m2)
PTX_WGMMA_TYPES(__nv_fp8_e5m2, __nv_fp8_e4m3, 32, e5m2, e4m3)
PTX_WGMMA_TYPES(__nv_fp8_e5m2, __nv_fp8_e5m2, 32, e5m2, e5m2)
#undef PTX_WGMMA_TYPES
#undef PTX_WGMMA_CPU_TYPES

// The instruction's last operands, which only 16-bit types have: is a tile there MN-major?
template <bool HasThem, Major MajorA, Major MajorB>
struct WgmmaTransposed {
  static constexpr char kA = MajorA == Major::kMN ? '1' : '0';
  static constexpr char kB = MajorB == Major::kMN ? '1' : '0';
  static constexpr char kBoth[] = {',', ' ', kA, ',', ' ', kB, 0}, kOnlyB[] = {',', ' ', kB, 0};
};
template <Major MajorA, Major MajorB>
struct WgmmaTransposed<false, MajorA, MajorB> {
  static constexpr char kBoth[] = "", kOnlyB[] = "";
};

// The requirements of a call of wgmma, for the compiler's message.
template <typename A, typename B, Major MajorA, Major MajorB, int Elements>
__device__ constexpr void check_wgmma() {
  static_assert(Elements >= 4 && Elements <= 128 && Elements % 4 == 0,
                "d has N/2 elements, N a multiple of 8 from 8 to 256");
  static_assert(WgmmaTypes<A, B>::kKnown,
                "A and B are both __half, __nv_bfloat16 or float (tf32), or each is __nv_fp8_e4m3 "
                "or __nv_fp8_e5m2 (include <cuda_fp8.h>)");
  if constexpr (WgmmaTypes<A, B>::kKnown)
    static_assert(WgmmaTypes<A, B>::kCanBeMnMajor || (MajorA == Major::kK && MajorB == Major::kK),
                  "only tiles of 16-bit elements can be MN-major");
}

// d = a·b + d, or a·b if not `accumulate`; a sign kMinus negates that matrix. d has N/2 elements, a
// and b are descriptors. The arguments must be the same in all threads of the warpgroup.
// GPU and CPU: within K·2⁻²³ of Σ|a·b| + |d|; fp8 bit for bit.
// PTX: wgmma.mma_async.sync.aligned.m64nNk16.f32.bf16.bf16 {d…}, a, b, accumulate, sign of a, sign
// of b, a is MN-major, b is MN-major;   or k16 and f16, k8 and tf32, k32 and e4m3 or e5m2, where
// the last two are missing
template <typename A, typename B = A, Major MajorA = Major::kK, Major MajorB = Major::kK,
          Sign SignA = Sign::kPlus, Sign SignB = Sign::kPlus, int Elements>
__device__ __forceinline__ void wgmma(float (&d)[Elements], uint64_t a, uint64_t b,
                                      bool accumulate = true PTX_HERE) {
  check_wgmma<A, B, MajorA, MajorB, Elements>();
  using Types = WgmmaTypes<A, B>;
#ifdef CUDA_ON_CPU
  cudacpu::start_wgmma({.n = 2 * Elements,
                        .type_a = Types::kA,
                        .type_b = Types::kB,
                        .a_is_mn_major = MajorA == Major::kMN,
                        .b_is_mn_major = MajorB == Major::kMN,
                        .negative = SignA != SignB,
                        .accumulate = accumulate,
                        .a_in_registers = false,
                        .a = a,
                        .b = b},
                       d, nullptr, PTX_SITE);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Transposed = WgmmaTransposed<Types::kCanBeMnMajor, MajorA, MajorB>;
#define PTX_WGMMA(n, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9)                                       \
  if constexpr (Elements == n / 2)                                                                 \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %" #i2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "%" #i3 \
        " {" PTX_WGMMA_NAMES_##n "}, %" #i0 ", %" #i1 ", p, %" #i4 ", %" #i5 "%" #i6 "; }"         \
        : PTX_WGMMA_BOUND_##n(d)                                                                   \
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "C"(Types::kName),                    \
          "n"(static_cast<int>(SignA)), "n"(static_cast<int>(SignB)), "C"(Transposed::kBoth)       \
        : "memory");
  PTX_WGMMA_FOR_EACH_N(PTX_WGMMA)
#undef PTX_WGMMA
#else
  __trap();
#endif
}

// The same with a in registers; each thread holds its part.
// GPU and CPU: within K·2⁻²³ of Σ|a·b| + |d|; fp8 bit for bit.
// PTX: wgmma.mma_async.sync.aligned.m64nNk16.f32.bf16.bf16 {d…}, {a0, a1, a2, a3}, b, accumulate,
// sign of a, sign of b, b is MN-major;   and so on
template <typename A, typename B = A, Major MajorB = Major::kK, Sign SignA = Sign::kPlus,
          Sign SignB = Sign::kPlus, int Elements>
__device__ __forceinline__ void wgmma(float (&d)[Elements], const uint32_t (&a)[4], uint64_t b,
                                      bool accumulate = true PTX_HERE) {
  check_wgmma<A, B, Major::kK, MajorB, Elements>();
  using Types = WgmmaTypes<A, B>;
#ifdef CUDA_ON_CPU
  cudacpu::start_wgmma({.n = 2 * Elements,
                        .type_a = Types::kA,
                        .type_b = Types::kB,
                        .a_is_mn_major = false,
                        .b_is_mn_major = MajorB == Major::kMN,
                        .negative = SignA != SignB,
                        .accumulate = accumulate,
                        .a_in_registers = true,
                        .a = 0,
                        .b = b},
                       d, a, PTX_SITE);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Transposed = WgmmaTransposed<Types::kCanBeMnMajor, Major::kK, MajorB>;
#define PTX_WGMMA(n, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9)                                       \
  if constexpr (Elements == n / 2)                                                                 \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %" #i5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "%" #i6 \
        " {" PTX_WGMMA_NAMES_##n "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, %" #i7 \
                                 ", %" #i8 "%" #i9 "; }"                                           \
        : PTX_WGMMA_BOUND_##n(d)                                                                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),   \
          "C"(Types::kName), "n"(static_cast<int>(SignA)), "n"(static_cast<int>(SignB)),           \
          "C"(Transposed::kOnlyB)                                                                  \
        : "memory");
  PTX_WGMMA_FOR_EACH_N(PTX_WGMMA)
#undef PTX_WGMMA
#else
  __trap();
#endif
}

// Keep the compiler from moving reads and writes of these registers over this place. `registers`
// is a number or an array of any rank: accumulators, or a of a wgmma.
__device__ __forceinline__ void pin_registers([[maybe_unused]] float& x) {
#ifndef CUDA_ON_CPU
  asm volatile("" : "+f"(x)::"memory");
#endif
}
__device__ __forceinline__ void pin_registers([[maybe_unused]] uint32_t& x) {
#ifndef CUDA_ON_CPU
  asm volatile("" : "+r"(x)::"memory");
#endif
}
template <typename T, int Count>
__device__ __forceinline__ void pin_registers(T (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) pin_registers(registers[i]);
}

// Order what the threads did with registers before the wgmmas that follow. Before the first wgmma,
// and whenever d, or a in registers, was read or written since.
// PTX: wgmma.fence.sync.aligned;
__device__ __forceinline__ void wgmma_fence(PTX_ONLY_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::wgmma_fence(PTX_SITE);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}

// The same, also ordered after writes to the accumulators d (an array of any rank).
template <typename Accumulators>
__device__ __forceinline__ void wgmma_fence(Accumulators& d PTX_HERE) {
  pin_registers(d);
  wgmma_fence(PTX_PASS_HERE);
}

// Close the wgmmas since the last commit into a group.
// PTX: wgmma.commit_group.sync.aligned;
__device__ __forceinline__ void wgmma_commit(PTX_ONLY_HERE) {
#ifdef CUDA_ON_CPU
  cudacpu::commit_wgmma(PTX_SITE);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}

// Wait until all groups are complete but the N youngest: their tiles may be overwritten.
// PTX: wgmma.wait_group.sync.aligned N;
template <int N>
__device__ __forceinline__ void wgmma_wait(PTX_ONLY_HERE) {
  static_assert(N >= 0 && N <= 7, "how many groups may still be under way: 0 to 7");
#ifdef CUDA_ON_CPU
  cudacpu::wait_for_wgmma(N, PTX_SITE);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#else
  __trap();
#endif
}

// The same, after which the accumulators d (an array of any rank) may be read, too.
template <int N, typename Accumulators>
__device__ __forceinline__ void wgmma_wait(Accumulators& d PTX_HERE) {
  wgmma_wait<N>(PTX_PASS_HERE);
  pin_registers(d);
}

}  // namespace ptx

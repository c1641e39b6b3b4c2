// nvcuda::wmma: products of small matrices that the 32 threads of a warp hold together.
//
// Shapes and types are NVIDIA's: half, bfloat16, int8 and uint8 as 16x16x16, 32x8x16 and 8x32x16,
// tf32 as 16x16x8, double as 8x8x4. Every function is a warp collective: a lane reads or writes
// memory when all 32 are there, and other lanes see it after __syncwarp(), as on a GPU.
//
// CUDA does not specify which lane holds which element, and a program must not depend on it.
// Accumulators lie here as those of PTX's mma.m16n8 do; a and b lie as is convenient. The profiler
// counts the accesses that nvcc 13.0 makes of them for compute capability 9.0 (but for double).
// Products of halves are added in float, in order of k, and rounded once to the type of d: a tensor
// core may differ in the last places where a sum is rounded.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cudacpu/capability.h"
#include "cudacpu/ptx.h"
#include "cudacpu/trace.h"

// For accesses that trace_read and trace_write have reported to the tracer already.
#ifdef CUDACPU_TRACE
#define CUDACPU_UNTRACED __attribute__((no_sanitize("thread")))
#else
#define CUDACPU_UNTRACED
#endif

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

namespace details {

template <class T>
struct Storage {
  using type = T;
};
template <>
struct Storage<precision::tf32> {
  using type = float;
};

// The shapes that the hardware has for elements of a type.
template <class T>
constexpr bool has_shape(int m, int n, int k) {
  if (std::is_same_v<T, precision::tf32>) return m == 16 && n == 16 && k == 8;
  if (std::is_same_v<T, double>) return m == 8 && n == 8 && k == 4;
  return k == 16 && m * n == 256 && (m == 8 || m == 16 || m == 32);
}
template <class Use, class T>
constexpr bool has_type() {
  using std::is_same_v;
  if (is_same_v<T, __half> || is_same_v<T, double>) return true;
  if (is_same_v<Use, accumulator>) return is_same_v<T, float> || is_same_v<T, int>;
  return is_same_v<T, __nv_bfloat16> || is_same_v<T, precision::tf32> ||
         is_same_v<T, signed char> || is_same_v<T, unsigned char>;
}
// The type alone of an accumulator does not give the shape: float is for half and for tf32.
template <class Use, class T>
constexpr bool is_valid(int m, int n, int k) {
  bool accumulates_tf32 = std::is_same_v<Use, accumulator> && std::is_same_v<T, float> &&
                          has_shape<precision::tf32>(m, n, k);
  return has_type<Use, T>() && (has_shape<T>(m, n, k) || accumulates_tf32);
}

// The row and column of a lane's e-th element.
struct Place {
  unsigned row, column;
};

template <class Use, int M, int N, int K>
struct Shape;
// For a and b: a lane has a run of elements in one row.
template <int Rows, int Columns>
struct Operand {
  static constexpr int kEach = Rows * Columns / 32;
  static_assert(Columns % kEach == 0);
  static Place first(unsigned lane) { return {lane * kEach / Columns, lane * kEach % Columns}; }
};
template <int M, int N, int K>
struct Shape<matrix_a, M, N, K> : Operand<M, K> {};
template <int M, int N, int K>
struct Shape<matrix_b, M, N, K> : Operand<K, N> {};
// For an accumulator: a lane has pairs in a row. A lane's group of four has a row, the next pair is
// 8 rows below, the next four are 8 columns (16 rows, if there are 8 columns) further. 8x32 is 32x8
// transposed.
template <int M, int N, int K>
struct Shape<accumulator, M, N, K> {
  static constexpr int kEach = M * N / 32;
  static Place place(unsigned lane, unsigned e) {
    unsigned group = lane / 4 + e / 2 % 2 * 8, pair = lane % 4 * 2 + e % 2;
    if (M == 16) return {group, pair + e / 4 * 8};
    if (M == 32) return {group + e / 4 * 16, pair};
    if (N == 32) return {pair, group + e / 4 * 16};
    return {group, pair};
  }
};

}  // namespace details

// A lane's part of a matrix. Layout is that of a or b in memory. Of half, the hardware keeps 16
// elements in each lane of a and b even where fewer are its part: they repeat.
template <class Use, int M, int N, int K, class T, class Layout = void>
class fragment {
  static_assert(details::is_valid<Use, T>(M, N, K),
                "wmma has no fragment of this shape and type (see mma.h of the CPU backend)");
  static constexpr bool kRepeats = std::is_same_v<T, __half> && !std::is_same_v<Use, accumulator>;

 public:
  using element_type = T;
  using storage_element_type = typename details::Storage<T>::type;
  static constexpr int num_elements = kRepeats ? 16 : details::Shape<Use, M, N, K>::kEach;
  static constexpr int num_storage_elements = num_elements;
  storage_element_type x[num_elements];
};

namespace details {

// A lane's arrival at a load or store; all lanes have to name the same matrix.
struct Access : cudacpu::WholeWarp {
  const void* memory;
  unsigned stride;
  bool same = false;
};
inline void compute_access(cudacpu::Thread* lanes, uint32_t arrived) {
  Access* first = nullptr;
  for (uint32_t left = arrived; left; left &= left - 1) {
    auto& mine = *static_cast<Access*>(
        static_cast<cudacpu::WholeWarp*>(lanes[__builtin_ctz(left)].exchange));
    if (!first) first = &mine;
    mine.arrived = arrived;
    mine.same = mine.memory == first->memory && mine.stride == first->stride;
  }
}
inline constexpr cudacpu::Operation kLoad{"wmma::load_matrix_sync", compute_access};
inline constexpr cudacpu::Operation kStore{"wmma::store_matrix_sync", compute_access};

inline void begin_access(const cudacpu::Operation& operation, const void* memory, unsigned stride,
                         size_t element, cudacpu::Site site) {
  Access access{{}, memory, stride};
  cudacpu::collect_warp(operation, access, site);
  if (!access.same)
    cudacpu::trap(site, "%s: all lanes of a warp must pass the same address and leading dimension",
                  operation.name);
  if (reinterpret_cast<uintptr_t>(memory) % 16 != 0 || stride * element % 16 != 0)
    cudacpu::trap(site,
                  "%s: misaligned address: the matrix (%p) must begin at a multiple of 16 bytes, "
                  "and so must its next row or column (leading dimension %u, %zu bytes each)",
                  operation.name, memory, stride, element);
}

// The offset of an element in memory.
inline size_t offset(Place place, unsigned stride, bool by_row) {
  return by_row ? static_cast<size_t>(place.row) * stride + place.column
                : static_cast<size_t>(place.column) * stride + place.row;
}

// The number of neighbours of an accumulator that are adjacent in memory: pairs, as their rows do;
// those of 8x32 are pairs of a column.
template <int M, int N>
unsigned adjacent(layout_t layout) {
  return (M == 8 && N == 32) == (layout == mem_col_major) ? 2 : 1;
}

// The reads of a GPU's lane that together load a or b: `lines` rows (of a col_major matrix:
// columns) of `run` elements. A tensor core takes words of four bytes with neighbours along k.
template <class Use, int M, int N, int K, class Layout, class T>
void trace_load(const T* memory, unsigned stride, cudacpu::Site site) {
  constexpr bool is_a = std::is_same_v<Use, matrix_a>;
  constexpr bool along_k = std::is_same_v<Layout, row_major> == is_a;
  constexpr unsigned other = is_a ? M : N, run = along_k ? K : other, lines = along_k ? other : K;
  constexpr unsigned chunk = 16 / sizeof(T);
  const unsigned lane = cudacpu::current->lane, group = lane / 4, in_group = lane % 4;
  if constexpr (sizeof(T) == 2 || along_k) {
    // ldmatrix, of half and of bytes in shared memory: 16 bytes of a line per lane.
    if (sizeof(T) < 4 && !std::is_same_v<T, __nv_bfloat16> && __isShared(memory)) {
      for (unsigned row = lane; row < lines * (run / chunk); row += 32)
        cudacpu::trace_read(memory + size_t{row % lines} * stride + row / lines * chunk, 16, site);
      return;
    }
    // Else a word per lane, four of a line; 16-bit words of another layout are transposed later.
    for (unsigned first = 0; first < lines; first += 8)
      for (unsigned at = 0; at < run; at += chunk)
        cudacpu::trace_read(memory + size_t{first + group} * stride + at + in_group * (chunk / 4),
                            4, site);
  } else {
    // Each line has another k: words of four elements, 1 or 4 bytes each, are collected one by one.
    constexpr unsigned each = 4 / sizeof(T);
    for (unsigned first = 0; first < lines; first += 4 * each)
      for (unsigned at = 0; at < run; at += 8)
        for (unsigned i = 0; i < each; ++i)
          cudacpu::trace_read(memory + size_t{first + in_group * each + i} * stride + at + group,
                              sizeof(T), site);
  }
}

// The values as which the elements of a and b are multiplied.
inline float value(__half x) {
  return __half2float(x);
}
inline float value(__nv_bfloat16 x) {
  return cudacpu::bits<float>(static_cast<uint32_t>(cudacpu::bits<uint16_t>(x)) << 16);
}
// The hardware ignores the last 13 bits of a float that is taken for tf32.
inline float value(float x) {
  return cudacpu::bits<float>(cudacpu::bits<uint32_t>(x) & 0xffffe000u);
}
inline double value(double x) {
  return x;
}
inline int value(signed char x) {
  return x;
}
inline int value(unsigned char x) {
  return x;
}
template <int count, class T, class Sum>
void convert(const T* from, Sum* to) {
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, __half>) {  // NVIDIA's __half2float is slow in host code
    static_assert(count % 4 == 0);
    for (int i = 0; i < count; i += 4) {
      long long four;
      __builtin_memcpy(&four, from + i, sizeof four);
      const cudacpu::FourFloats floats = cudacpu::floats_of_halves(four);
      __builtin_memcpy(to + i, &floats, sizeof floats);
    }
    return;
  }
#endif
  for (int i = 0; i < count; ++i) to[i] = value(from[i]);
}

// A finished element of d, from the sum of products. Floats were added to c one by one; integers,
// whose products cannot overflow, have c still to be added.
template <class D, class Sum, class C>
D finish(Sum sum, C c, bool saturate) {
  if constexpr (std::is_same_v<D, int>) {
    int64_t exact = int64_t{sum} + c;
    if (saturate) exact = std::clamp<int64_t>(exact, INT32_MIN, INT32_MAX);
    return static_cast<int>(static_cast<uint32_t>(exact));
  } else {
    return static_cast<D>(sum);
  }
}

template <int M, int N, int K, class T, class D, class C>
struct Product : cudacpu::WholeWarp {
  const T *a, *b;
  const C* c;
  D* d;
  bool saturate;

  using Sum = decltype(value(T{}));
  using Sums = Shape<accumulator, M, N, K>;
  typedef Sum Eight __attribute__((vector_size(8 * sizeof(Sum))));

  static void compute(cudacpu::Thread* lanes, uint32_t arrived) {
    Product* parts[32];
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (!(arrived >> lane & 1)) continue;
      parts[lane] = static_cast<Product*>(static_cast<cudacpu::WholeWarp*>(lanes[lane].exchange));
      parts[lane]->arrived = arrived;
    }
    if (arrived != ~0u) return;
    alignas(64) Sum a[M * K], b[K * N], sums[M][N];
    for (unsigned lane = 0; lane < 32; ++lane) {
      constexpr int of_a = Shape<matrix_a, M, N, K>::kEach, of_b = Shape<matrix_b, M, N, K>::kEach;
      const Product& mine = *parts[lane];
      convert<of_a>(mine.a, a + lane * of_a);
      convert<of_b>(mine.b, b + lane * of_b);
      for (unsigned e = 0; e < Sums::kEach; ++e) {
        Place p = Sums::place(lane, e);
        sums[p.row][p.column] = std::is_same_v<Sum, int> ? Sum{} : static_cast<Sum>(mine.c[e]);
      }
    }
    for (int row = 0; row < M; row += 4)
      for (int column = 0; column < N; column += 8)
        multiply(a + row * K, b + column, &sums[row][column]);
    for (unsigned lane = 0; lane < 32; ++lane) {
      Product& mine = *parts[lane];
      for (unsigned e = 0; e < Sums::kEach; ++e) {
        Place p = Sums::place(lane, e);
        mine.d[e] = finish<D>(sums[p.row][p.column], mine.c[e], mine.saturate);
      }
    }
  }

 private:
  // Four rows and eight columns: enough sums at a time to hide how long an addition takes.
  static void multiply(const Sum* a, const Sum* b, Sum* sums) {
    Eight row[4];
    for (int i = 0; i < 4; ++i) memcpy(&row[i], sums + i * N, sizeof row[i]);
    for (int k = 0; k < K; ++k) {
      Eight factor;
      memcpy(&factor, b + k * N, sizeof factor);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) row[i] += a[i * K + k] * factor;
    }
    for (int i = 0; i < 4; ++i) memcpy(sums + i * N, &row[i], sizeof row[i]);
  }
};
template <class P>
inline constexpr cudacpu::Operation kProduct{"wmma::mma_sync", P::compute};

}  // namespace details

// Set every element of the fragment to `value`.
template <class Use, int M, int N, int K, class T, class Layout>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& f,
                   const typename details::Storage<T>::type& value) {
  for (auto& element : f.x) element = value;
}

// Read a or b from memory: row_major or col_major, `stride` elements from one row (column) to the
// next.
template <class Use, int M, int N, int K, class T, class Layout>
CUDACPU_UNTRACED void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f,
                                       const typename details::Storage<T>::type* memory,
                                       unsigned stride, CUDACPU_HERE) {
  details::begin_access(details::kLoad, memory, stride, sizeof *memory, {file, line});
  constexpr bool by_row = std::is_same_v<Layout, row_major>;
  using Shape = details::Shape<Use, M, N, K>;
  const auto* mine = memory + details::offset(Shape::first(cudacpu::current->lane), stride, by_row);
  if constexpr (sizeof *memory <= 4) {
    details::trace_load<Use, M, N, K, Layout>(memory, stride, {file, line});
  } else {
    for (unsigned e = 0; e < Shape::kEach; ++e)
      cudacpu::trace_read(&mine[by_row ? e : size_t{e} * stride], sizeof *mine, {file, line});
  }
  for (unsigned e = 0; e < Shape::kEach; ++e) f.x[e] = mine[by_row ? e : size_t{e} * stride];
  for (unsigned e = Shape::kEach; e < f.num_elements; ++e) f.x[e] = f.x[e - Shape::kEach];
}

// Read or write an accumulator: two neighbours of a row at a time, where they are adjacent.
template <int M, int N, int K, class T>
CUDACPU_UNTRACED void load_matrix_sync(fragment<accumulator, M, N, K, T>& f,
                                       const typename details::Storage<T>::type* memory,
                                       unsigned stride, layout_t layout, CUDACPU_HERE) {
  details::begin_access(details::kLoad, memory, stride, sizeof *memory, {file, line});
  using Shape = details::Shape<accumulator, M, N, K>;
  const unsigned pair = details::adjacent<M, N>(layout);
  for (unsigned e = 0; e < f.num_elements; ++e) {
    const T* from = memory + details::offset(Shape::place(cudacpu::current->lane, e), stride,
                                             layout == mem_row_major);
    if (e % pair == 0) cudacpu::trace_read(from, pair * sizeof(T), {file, line});
    f.x[e] = *from;
  }
}
template <int M, int N, int K, class T>
CUDACPU_UNTRACED void store_matrix_sync(typename details::Storage<T>::type* memory,
                                        const fragment<accumulator, M, N, K, T>& f, unsigned stride,
                                        layout_t layout, CUDACPU_HERE) {
  details::begin_access(details::kStore, memory, stride, sizeof *memory, {file, line});
  using Shape = details::Shape<accumulator, M, N, K>;
  const unsigned pair = details::adjacent<M, N>(layout);
  for (unsigned e = 0; e < f.num_elements; ++e) {
    T* to = memory + details::offset(Shape::place(cudacpu::current->lane, e), stride,
                                     layout == mem_row_major);
    if (e % pair == 0) cudacpu::trace_write(to, pair * sizeof(T), {file, line});
    *to = f.x[e];
  }
}

// d = a · b + c. Sums of integers wrap around, or stay in the range of int where `saturate` is set.
template <int M, int N, int K, class T, class LayoutA, class LayoutB, class D, class C>
void mma_sync(fragment<accumulator, M, N, K, D>& d,
              const fragment<matrix_a, M, N, K, T, LayoutA>& a,
              const fragment<matrix_b, M, N, K, T, LayoutB>& b,
              const fragment<accumulator, M, N, K, C>& c, bool saturate = false, CUDACPU_HERE) {
  constexpr bool mixes_half = std::is_same_v<T, __half> &&
                              (std::is_same_v<C, float> || std::is_same_v<C, __half>) &&
                              (std::is_same_v<D, float> || std::is_same_v<D, __half>);
  constexpr bool is_integer = sizeof(T) == 1 && std::is_integral_v<T>;
  using Sum = std::conditional_t<is_integer, int,
                                 std::conditional_t<std::is_same_v<T, double>, double, float>>;
  static_assert(mixes_half || (std::is_same_v<C, Sum> && std::is_same_v<D, Sum>),
                "wmma has no accumulators of this type for these matrices");
  constexpr bool is_turing = is_integer || std::is_same_v<T, __half>;
  if (!is_turing) cudacpu::needs_capability(80, "wmma of bf16, tf32 or double", {file, line});
  using Product = details::Product<M, N, K, typename details::Storage<T>::type, D, C>;
  Product product{{}, a.x, b.x, c.x, d.x, saturate};
  cudacpu::collect_warp(details::kProduct<Product>, product, {file, line});
}

// The nearest tf32, ties away from zero.
inline float __float_to_tf32(float x) {
  return __uint_as_float(cudacpu::round_to_tf32(x));
}

}  // namespace nvcuda::wmma

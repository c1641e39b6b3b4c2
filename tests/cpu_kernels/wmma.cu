// Kernels for test_cpu_wmma.py: nvcuda::wmma in every type and shape.
#include "common/cuda/tensor.cuh"

#include <mma.h>

#include <type_traits>

namespace wmma = nvcuda::wmma;

// ---------------------------------------------------------------- one product

// One warp: d = a·b + c, with a (M, K), b (K, N), c and d (M, N). A col_major matrix lies in memory
// with its columns one after the other.
template <int M, int N, int K, class T, class A, class B, class C, class D, class Element>
__global__ void product_kernel(const Element* a, const Element* b, const C* c, D* d, bool by_row,
                               bool saturate) {
  wmma::fragment<wmma::matrix_a, M, N, K, T, A> left;
  wmma::fragment<wmma::matrix_b, M, N, K, T, B> right;
  wmma::fragment<wmma::accumulator, M, N, K, C> added;
  wmma::fragment<wmma::accumulator, M, N, K, D> result;
  wmma::layout_t layout = by_row ? wmma::mem_row_major : wmma::mem_col_major;
  wmma::load_matrix_sync(left, a, std::is_same<A, wmma::row_major>::value ? K : M);
  wmma::load_matrix_sync(right, b, std::is_same<B, wmma::row_major>::value ? N : K);
  wmma::load_matrix_sync(added, c, by_row ? N : M, layout);
  if constexpr (std::is_same<D, int>::value)
    wmma::mma_sync(result, left, right, added, saturate);
  else
    wmma::mma_sync(result, left, right, added);
  wmma::store_matrix_sync(d, result, by_row ? N : M, layout);
}

template <int M, int N, int K, class T, class C, class D, class Element = T>
void run(const Tensor& a, const Tensor& b, const Tensor& c, Tensor& d, int64_t layout, bool by_row,
         bool saturate) {
  using wmma::col_major, wmma::row_major;
  auto kernel = layout == 0   ? product_kernel<M, N, K, T, row_major, row_major, C, D, Element>
                : layout == 1 ? product_kernel<M, N, K, T, row_major, col_major, C, D, Element>
                : layout == 2 ? product_kernel<M, N, K, T, col_major, row_major, C, D, Element>
                              : product_kernel<M, N, K, T, col_major, col_major, C, D, Element>;
  kernel<<<1, 32, 0, current_stream(a)>>>(
      static_cast<const Element*>(a.data_ptr()), static_cast<const Element*>(b.data_ptr()),
      static_cast<const C*>(c.data_ptr()), static_cast<D*>(d.data_ptr()), by_row, saturate);
  check_launch("product");
}

template <class T, class C, class D>
void run_shapes(const Tensor& a, const Tensor& b, const Tensor& c, Tensor& d, int64_t m,
                int64_t layout, bool by_row, bool saturate) {
  if (m == 16) run<16, 16, 16, T, C, D>(a, b, c, d, layout, by_row, saturate);
  if (m == 32) run<32, 8, 16, T, C, D>(a, b, c, d, layout, by_row, saturate);
  if (m == 8) run<8, 32, 16, T, C, D>(a, b, c, d, layout, by_row, saturate);
}

// layout: 2·(a is column-major) + (b is column-major); by_row: of c and d. d has its type already.
void product(Tensor a, Tensor b, Tensor c, Tensor d, int64_t m, int64_t layout, bool by_row,
             bool saturate) {
  bool half_c = c.scalar_type() == ScalarType::Half, half_d = d.scalar_type() == ScalarType::Half;
  switch (a.scalar_type()) {
    case ScalarType::Half:
      if (half_c && half_d)
        run_shapes<__half, __half, __half>(a, b, c, d, m, layout, by_row, saturate);
      else if (half_c)
        run<16, 16, 16, __half, __half, float>(a, b, c, d, layout, by_row, saturate);
      else if (half_d)
        run<16, 16, 16, __half, float, __half>(a, b, c, d, layout, by_row, saturate);
      else
        run_shapes<__half, float, float>(a, b, c, d, m, layout, by_row, saturate);
      break;
    case ScalarType::BFloat16:
      run_shapes<__nv_bfloat16, float, float>(a, b, c, d, m, layout, by_row, saturate);
      break;
    case ScalarType::Char:
      run_shapes<signed char, int, int>(a, b, c, d, m, layout, by_row, saturate);
      break;
    case ScalarType::Byte:
      run_shapes<unsigned char, int, int>(a, b, c, d, m, layout, by_row, saturate);
      break;
    case ScalarType::Float:
      run<16, 16, 8, wmma::precision::tf32, float, float, float>(a, b, c, d, layout, by_row,
                                                                 saturate);
      break;
    default:
      run<8, 8, 4, double, double, double>(a, b, c, d, layout, by_row, saturate);
  }
}

// ---------------------------------------------------------------- fragments

// Which element of an accumulator (its row-major number) each lane's elements are.
template <int M, int N, class T>
__global__ void places_kernel(const T* numbers, T* out) {
  wmma::fragment<wmma::accumulator, M, N, 16, T> f;
  wmma::load_matrix_sync(f, numbers, N, wmma::mem_row_major);
  for (int e = 0; e < f.num_elements; ++e) out[threadIdx.x * f.num_elements + e] = f.x[e];
}
Tensor places(Tensor numbers, int64_t m) {
  Tensor out = torch::stable::empty_like(numbers);
  auto go = [&](auto zero) {
    using T = decltype(zero);
    auto kernel = m == 16   ? places_kernel<16, 16, T>
                  : m == 32 ? places_kernel<32, 8, T>
                            : places_kernel<8, 32, T>;
    kernel<<<1, 32, 0, current_stream(numbers)>>>(static_cast<const T*>(numbers.data_ptr()),
                                                  static_cast<T*>(out.data_ptr()));
  };
  if (numbers.scalar_type() == ScalarType::Half)
    go(__half{});
  else if (numbers.scalar_type() == ScalarType::Int)
    go(int{});
  else
    go(float{});
  check_launch("places");
  return out;
}

// (2·a)·b + 3 with what a program does to fragments: fill, change each element, round to tf32.
__global__ void elements_kernel(const float* a, const float* b, float* d) {
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
  wmma::fill_fragment(sum, 3.0f);
  wmma::load_matrix_sync(left, a, 8);
  wmma::load_matrix_sync(right, b, 8);
  for (int i = 0; i < left.num_elements; ++i) left.x[i] = wmma::__float_to_tf32(2.0f * left.x[i]);
  for (float& x : right.x) x = wmma::__float_to_tf32(x);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(d, sum, 16, wmma::mem_row_major);
}
Tensor elements(Tensor a, Tensor b) {
  Tensor d = torch::stable::new_empty(a, {16, 16});
  elements_kernel<<<1, 32, 0, current_stream(a)>>>(data<float>(a), data<float>(b),
                                                   mutable_data<float>(d));
  check_launch("elements");
  return d;
}

// ---------------------------------------------------------------- a whole product

// c (n, n) = a·b, n a multiple of 64: a block of 4 warps has a tile of 64×64, through shared
// memory.
__global__ void matmul_kernel(const __half* a, const __half* b, float* c, int n) {
  constexpr int kTile = 64, kDepth = 32, kSkew = 8;
  __shared__ __align__(128) __half as[kTile][kDepth + kSkew], bs[kDepth][kTile + kSkew];
  int row = blockIdx.y * kTile, column = blockIdx.x * kTile, warp = threadIdx.x / 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4];
  for (auto& sum : sums) wmma::fill_fragment(sum, 0.0f);
  for (int k0 = 0; k0 < n; k0 += kDepth) {
    for (int i = threadIdx.x * 8; i < kTile * kDepth; i += blockDim.x * 8) {
      *reinterpret_cast<int4*>(&as[i / kDepth][i % kDepth]) =
          *reinterpret_cast<const int4*>(a + (row + i / kDepth) * n + k0 + i % kDepth);
      *reinterpret_cast<int4*>(&bs[i / kTile][i % kTile]) =
          *reinterpret_cast<const int4*>(b + (k0 + i / kTile) * n + column + i % kTile);
    }
    __syncthreads();
    for (int k = 0; k < kDepth; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
      wmma::load_matrix_sync(left, &as[warp * 16][k], kDepth + kSkew);
      for (int j = 0; j < 4; ++j) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
        wmma::load_matrix_sync(right, &bs[k][j * 16], kTile + kSkew);
        wmma::mma_sync(sums[j], left, right, sums[j]);
      }
    }
    __syncthreads();
  }
  for (int j = 0; j < 4; ++j)
    wmma::store_matrix_sync(c + (row + warp * 16) * n + column + j * 16, sums[j], n,
                            wmma::mem_row_major);
}
Tensor matmul(Tensor a, Tensor b) {
  int n = static_cast<int>(a.size(0));
  Tensor c = torch::stable::new_empty(a, {n, n}, ScalarType::Float);
  unsigned tiles = static_cast<unsigned>(n / 64);
  matmul_kernel<<<dim3(tiles, tiles), 128, 0, current_stream(a)>>>(data<__half>(a), data<__half>(b),
                                                                   mutable_data<float>(c), n);
  check_launch("matmul");
  return c;
}

// ---------------------------------------------------------------- faults

__global__ void half_a_warp(const __half* x, __half*) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> f;
  wmma::load_matrix_sync(f, x, 16);
}
__global__ void in_a_branch(const __half* x, __half* y) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, __half> f;
  wmma::fill_fragment(f, __half(1.0f));
  if (threadIdx.x < 16)
    wmma::load_matrix_sync(f, x, 16, wmma::mem_row_major);
  else
    wmma::store_matrix_sync(y, f, 16, wmma::mem_row_major);
}
__global__ void odd_stride(const __half* x, __half*) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> f;
  wmma::load_matrix_sync(f, x, 17);
}
__global__ void own_addresses(const __half* x, __half*) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> f;
  wmma::load_matrix_sync(f, x + 8 * threadIdx.x, 16);
}
// Right with __syncwarp() before the read: the store of one lane is not yet seen by another.
__global__ void no_syncwarp(const __half* x, __half* y) {
  __shared__ __align__(32) __half tile[256];
  wmma::fragment<wmma::accumulator, 16, 16, 16, __half> f;
  wmma::load_matrix_sync(f, x, 16, wmma::mem_row_major);
  wmma::store_matrix_sync(tile, f, 16, wmma::mem_row_major);
  for (int i = threadIdx.x; i < 256; i += 32) y[i] = tile[255 - i];
}
void fault(Tensor x, Tensor y, int64_t which) {
  void (*kernels[])(const __half*, __half*) = {half_a_warp, in_a_branch, odd_stride, own_addresses,
                                               no_syncwarp};
  kernels[which]<<<1, which == 0 ? 48 : 32>>>(data<__half>(x), mutable_data<__half>(y));
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_wmma, m) {
  m.def(
      "product(Tensor a, Tensor b, Tensor c, Tensor(a!) d, int m, int layout, bool by_row, "
      "bool saturate) -> ()");
  m.def("places(Tensor numbers, int m) -> Tensor");
  m.def("elements(Tensor a, Tensor b) -> Tensor");
  m.def("matmul(Tensor a, Tensor b) -> Tensor");
  m.def("fault(Tensor x, Tensor(a!) y, int which) -> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_wmma, CUDA, m) {
  m.impl("product", TORCH_BOX(&product));
  m.impl("places", TORCH_BOX(&places));
  m.impl("elements", TORCH_BOX(&elements));
  m.impl("matmul", TORCH_BOX(&matmul));
  m.impl("fault", TORCH_BOX(&fault));
}

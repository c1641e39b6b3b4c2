// Kernels for test_cpu_wgmma.py: wgmma in every size, layout and type, a matmul by it, and
// mistakes.
#include <cuda_fp8.h>

#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor.cuh"

constexpr int kThreads = 128;  // a warpgroup

// The place in a warpgroup's 64xN matrix of element e of this thread's accumulators.
struct Place {
  int row, column;
};
__device__ Place place_of(int e) {
  const int t = static_cast<int>(threadIdx.x) % kThreads, lane = t % 32;
  return {t / 32 * 16 + lane / 4 + e / 2 % 2 * 8, e / 4 * 8 + lane % 4 * 2 + e % 2};
}

// ---------------------------------------------------------------- one wgmma

// A tile as its descriptor tells it, and where in the image of shared memory it begins.
struct Tile {
  int start;
  ptx::Swizzle swizzle;
  int leading, stride;
};

// d = ±a·b (+ c): the bytes of `image` become shared memory, where a and b lie. With a in
// registers, the image of a is 64 rows of 32 bytes.
template <typename A, typename B, int N, bool InRegisters, ptx::Major MajorA, ptx::Major MajorB,
          ptx::Sign SignA, ptx::Sign SignB>
__global__ void product_kernel(const uint4* image, int pieces, Tile a, Tile b, const float* c,
                               float* d, bool accumulate) {
  extern __shared__ __align__(1024) uint4 shared[];
  for (int i = threadIdx.x; i < pieces; i += kThreads) shared[i] = image[i];
  ptx::fence_proxy_async();
  __syncthreads();
  float sums[N / 2];
  for (int e = 0; e < N / 2; ++e) sums[e] = c[place_of(e).row * N + place_of(e).column];
  auto descriptor = [&](const Tile& tile) {
    return ptx::wgmma_descriptor(reinterpret_cast<const char*>(shared) + tile.start, tile.swizzle,
                                 tile.leading, tile.stride);
  };
  if constexpr (InRegisters) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(shared) + a.start / 4;
    const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, column = t % 4;
    const uint32_t registers[4] = {words[row * 8 + column], words[(row + 8) * 8 + column],
                                   words[row * 8 + column + 4], words[(row + 8) * 8 + column + 4]};
    ptx::wgmma_fence();
    ptx::wgmma<A, B, MajorB, SignA, SignB>(sums, registers, descriptor(b), accumulate);
  } else {
    ptx::wgmma_fence();
    ptx::wgmma<A, B, MajorA, MajorB, SignA, SignB>(sums, descriptor(a), descriptor(b), accumulate);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(sums);
  for (int e = 0; e < N / 2; ++e) d[place_of(e).row * N + place_of(e).column] = sums[e];
}

using Kernel = void (*)(const uint4*, int, Tile, Tile, const float*, float*, bool);

template <typename A, typename B, int N, bool InRegisters = false,
          ptx::Major MajorA = ptx::Major::kK, ptx::Major MajorB = ptx::Major::kK,
          ptx::Sign SignA = ptx::Sign::kPlus, ptx::Sign SignB = ptx::Sign::kPlus>
constexpr Kernel kProduct = product_kernel<A, B, N, InRegisters, MajorA, MajorB, SignA, SignB>;

// Not all combinations: each would be a kernel to compile.
Kernel find_kernel(const std::string& name, int64_t n) {
  using H = __half;
  using F = __nv_bfloat16;
  using E4 = __nv_fp8_e4m3;
  using E5 = __nv_fp8_e5m2;
  constexpr auto K = ptx::Major::kK, MN = ptx::Major::kMN;
  constexpr auto P = ptx::Sign::kPlus, M = ptx::Sign::kMinus;
  if (name == "bf16") {
    switch (n / 8) {
#define CASE(i) \
  case (i):     \
    return kProduct<F, F, 8 * (i)>;
#define CASES(i) CASE(i) CASE(i + 1) CASE(i + 2) CASE(i + 3)
      CASES(1) CASES(5) CASES(9) CASES(13) CASES(17) CASES(21) CASES(25) CASES(29)
#undef CASES
#undef CASE
    }
  }
  struct Named {
    const char* name;
    int n;
    Kernel kernel;
  };
  static const Named kernels[] = {
      {"bf16 MN K", 128, kProduct<F, F, 128, false, MN, K>},
      {"bf16 K MN", 128, kProduct<F, F, 128, false, K, MN>},
      {"bf16 MN MN", 128, kProduct<F, F, 128, false, MN, MN>},
      {"bf16 registers", 64, kProduct<F, F, 64, true>},
      {"bf16 registers MN", 256, kProduct<F, F, 256, true, K, MN>},
      {"bf16 -a", 16, kProduct<F, F, 16, false, K, K, M, P>},
      {"bf16 -b", 16, kProduct<F, F, 16, false, K, K, P, M>},
      {"bf16 -a -b", 16, kProduct<F, F, 16, false, K, K, M, M>},
      {"bf16 -a registers", 16, kProduct<F, F, 16, true, K, K, M, P>},
      {"f16", 96, kProduct<H, H, 96>},
      {"f16 MN MN", 24, kProduct<H, H, 24, false, MN, MN>},
      {"f16 registers", 40, kProduct<H, H, 40, true>},
      {"tf32", 32, kProduct<float, float, 32>},
      {"tf32 registers", 48, kProduct<float, float, 48, true>},
      {"e4m3 e4m3", 64, kProduct<E4, E4, 64>},
      {"e4m3 e5m2", 64, kProduct<E4, E5, 64>},
      {"e5m2 e4m3", 64, kProduct<E5, E4, 64>},
      {"e5m2 e5m2", 64, kProduct<E5, E5, 64>},
      {"e4m3 registers", 80, kProduct<E4, E4, 80, true>},
      {"e5m2 registers", 80, kProduct<E5, E5, 80, true>},
  };
  for (const Named& known : kernels)
    if (known.name == name && known.n == n) return known.kernel;
  STD_TORCH_CHECK(false, "name: there is no kernel for ", name, " and N = ", n);
}

// image: uint8, a multiple of 16; c: (64, n) → d like c. A tile: start, swizzle, leading, stride.
Tensor product(Tensor image, Tensor c, std::string name, bool accumulate, std::vector<int64_t> a,
               std::vector<int64_t> b) {
  check(image, "image").on_gpu().dtype({ScalarType::Byte}).contiguous();
  check(c, "c").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  Tensor d = torch::stable::empty_like(c);
  auto tile = [](const std::vector<int64_t>& numbers) {
    return Tile{static_cast<int>(numbers[0]), static_cast<ptx::Swizzle>(numbers[1]),
                static_cast<int>(numbers[2]), static_cast<int>(numbers[3])};
  };
  const Kernel kernel = find_kernel(name, c.size(1));
  const int bytes = static_cast<int>(image.numel());
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "product");
  kernel<<<1, kThreads, bytes, current_stream(image)>>>(
      static_cast<const uint4*>(image.const_data_ptr()), bytes / 16, tile(a), tile(b),
      data<float>(c), mutable_data<float>(d), accumulate);
  check_launch("product");
  return d;
}

// ---------------------------------------------------------------- a matmul

// c = a·b: a is MxK, b is KxN, row-major bfloat16; M and N are multiples of 128, K of 64. A block
// of two warpgroups makes 128x128 of c, each 64x128. Tiles of depth 64 come by cp.async, swizzled
// over 128 bytes, two at a time; b's are MN-major, two pieces of 64 columns.
constexpr int BM = 128, BN = 128, BK = 64, kStages = 2;
constexpr int kTileBytes = BM * BK * 2;  // of a and of b alike
constexpr int kLine = 128;               // bytes of the swizzle: 64 elements

__global__ void __launch_bounds__(2 * kThreads)
    matmul_kernel(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int N, int K) {
  extern __shared__ __align__(1024) char tiles[];
  const int row = blockIdx.y * BM, column = blockIdx.x * BN, group = threadIdx.x / kThreads;
  auto tile_a = [&](int step) { return tiles + step % kStages * 2 * kTileBytes; };
  auto tile_b = [&](int step) { return tile_a(step) + kTileBytes; };
  auto start = [&](int step) {
    if (step * BK < K) {
      for (int i = threadIdx.x; i < kTileBytes / 16; i += 2 * kThreads) {
        const int line = i / 8, piece = i % 8;
        const uint32_t to = ptx::swizzled(ptx::Swizzle::k128, line * kLine + piece * 16);
        ptx::cp_async<16>(tile_a(step) + to,
                          a + static_cast<int64_t>(row + line) * K + step * BK + piece * 8);
        const int k = line % BK, half = line / BK;  // of b: 64 columns, all k, then the others
        ptx::cp_async<16>(tile_b(step) + to, b + static_cast<int64_t>(step * BK + k) * N + column +
                                                 half * 64 + piece * 8);
      }
    }
    ptx::cp_async_commit();
  };
  float sums[BN / 2];
  for (float& sum : sums) sum = 0;
  start(0);
  for (int step = 0; step * BK < K; ++step) {
    start(step + 1);
    ptx::cp_async_wait<1>();
    ptx::fence_proxy_async();
    __syncthreads();  // this step's tiles are there, whichever thread copied them
    ptx::wgmma_fence(sums);
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) {
      const uint64_t of_a = ptx::wgmma_descriptor(tile_a(step) + group * 64 * kLine + k * 32,
                                                  ptx::Swizzle::k128, 0, 8 * kLine);
      const uint64_t of_b = ptx::wgmma_descriptor(tile_b(step) + k * 16 * kLine, ptx::Swizzle::k128,
                                                  BK * kLine, 8 * kLine);
      ptx::wgmma<__nv_bfloat16, __nv_bfloat16, ptx::Major::kK, ptx::Major::kMN>(sums, of_a, of_b);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
    __syncthreads();  // both warpgroups have read these tiles before copies replace them
  }
  for (int e = 0; e < BN / 2; ++e)
    c[static_cast<int64_t>(row + group * 64 + place_of(e).row) * N + column + place_of(e).column] =
        sums[e];
}

Tensor matmul(Tensor a, Tensor b) {
  check(a, "a").on_gpu().rank(2).contiguous().dtype({ScalarType::BFloat16});
  check(b, "b").on_gpu().rank(2).contiguous().dtype({ScalarType::BFloat16}).size(0, a.size(1));
  Tensor c = torch::stable::new_empty(a, {a.size(0), b.size(1)}, ScalarType::Float);
  constexpr int kBytes = kStages * 2 * kTileBytes;
  check_cuda(
      cudaFuncSetAttribute(matmul_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "matmul");
  const dim3 grid(static_cast<unsigned>(b.size(1) / BN), static_cast<unsigned>(a.size(0) / BM));
  matmul_kernel<<<grid, 2 * kThreads, kBytes, current_stream(a)>>>(
      data<__nv_bfloat16>(a), data<__nv_bfloat16>(b), mutable_data<float>(c),
      static_cast<int>(b.size(1)), static_cast<int>(a.size(1)));
  check_launch("matmul");
  return c;
}

// ---------------------------------------------------------------- groups, setmaxnreg

// Two accumulators and three groups under way; y: (3, 64, 8), the first accumulator after its first
// group alone (x·x), then both at the end: 3 x·x and x·x. x: (64, 16), of which the first 8 rows
// are b's columns. All whole numbers.
__global__ void __launch_bounds__(2 * kThreads, 1) groups_kernel(const __nv_bfloat16* x, float* y) {
  __shared__ __align__(16) __nv_bfloat16 tile[2][64][8];  // parts of k; no swizzle
  if (threadIdx.x >= kThreads) {                          // a warpgroup that gives its registers
    ptx::setmaxnreg_dec<40>();
    return;
  }
  ptx::setmaxnreg_inc<232>();
  for (int i = threadIdx.x; i < 64 * 16; i += kThreads) tile[i % 16 / 8][i / 16][i % 8] = x[i];
  ptx::fence_proxy_async();
  ptx::barrier_sync(1, kThreads);
  const uint64_t descriptor = ptx::wgmma_descriptor(tile, ptx::Swizzle::kNone, 64 * 16, 8 * 16);
  float sums[2][4] = {};
  ptx::wgmma_fence(sums);
  ptx::wgmma<__nv_bfloat16>(sums[0], descriptor, descriptor, false);
  ptx::wgmma_commit();
  ptx::wgmma<__nv_bfloat16>(sums[1], descriptor, descriptor, false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>(sums[0]);
  for (int e = 0; e < 4; ++e) y[place_of(e).row * 8 + place_of(e).column] = sums[0][e];
  ptx::wgmma_fence(sums[0]);
  ptx::wgmma<__nv_bfloat16>(sums[0], descriptor, descriptor);
  ptx::wgmma<__nv_bfloat16>(sums[0], descriptor, descriptor);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(sums);
  for (int i = 0; i < 2; ++i)
    for (int e = 0; e < 4; ++e)
      y[((i + 1) * 64 + place_of(e).row) * 8 + place_of(e).column] = sums[i][e];
}
Tensor groups(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16}).contiguous();
  Tensor y = torch::stable::new_empty(x, {3, 64, 8}, ScalarType::Float);
  groups_kernel<<<1, 2 * kThreads, 0, current_stream(x)>>>(data<__nv_bfloat16>(x),
                                                           mutable_data<float>(y));
  check_launch("groups");
  return y;
}

// ---------------------------------------------------------------- mistakes

// One for each number; not to be run on a GPU. y = x·x for a tile of ones is 16 where all is right.
__global__ void __launch_bounds__(kThreads, 1) mistake_kernel(float* y, int which) {
  __shared__ __align__(1024) __nv_bfloat16 tile[2][64][8];
  const int t = threadIdx.x, warp = t / 32;
  auto fill = [&](float value) {
    for (int i = t; i < 64 * 16; i += kThreads) (&tile[0][0][0])[i] = value;
  };
  auto describe = [&](int offset = 0, ptx::Swizzle swizzle = ptx::Swizzle::kNone) {
    return ptx::wgmma_descriptor(reinterpret_cast<const char*>(tile) + offset, swizzle, 64 * 16,
                                 8 * 16);
  };
  float sums[4] = {}, other[8] = {};
  if (which != 3) fill(1);
  ptx::fence_proxy_async();
  if (which != 3) __syncthreads();
  const uint64_t x = describe();
  if (which != 10 && which != 11) ptx::wgmma_fence();
  auto multiply = [&] {
    ptx::wgmma<__nv_bfloat16>(sums, x, x);
    ptx::wgmma_commit();
  };
  switch (which) {
    case 0:  // none
      multiply();
      ptx::wgmma_wait<0>(sums);
      break;
    case 1:  // reads the accumulators before the wait
      multiply();
      break;
    case 2:  // overwrites the tile before the wait
      multiply();
      __syncthreads();
      fill(2);
      __syncthreads();
      ptx::wgmma_wait<0>(sums);
      break;
    case 3:  // no barrier between the stores and the wgmma
      fill(1);
      multiply();
      ptx::wgmma_wait<0>(sums);
      break;
    case 4:  // waits for a group fewer
      multiply();
      ptx::wgmma_wait<1>(sums);
      break;
    case 5:  // never committed
      ptx::wgmma<__nv_bfloat16>(sums, x, x);
      ptx::wgmma_wait<0>(sums);
      break;
    case 10:
      multiply();  // has no fence; the line is in the lambda
      break;
    case 11:  // the registers change, and no fence follows
      ptx::wgmma_fence();
      multiply();
      ptx::wgmma_wait<0>(sums);
      sums[1] += 1;
      ptx::wgmma<__nv_bfloat16>(sums, x, x);  // line: changed without a fence
      break;
    case 12:  // the registers change under way
      multiply();
      sums[1] = 1;
      ptx::wgmma_wait<0>(sums);  // line: changed under way
      break;
    case 13:
      if (warp < 2) multiply();
      ptx::wgmma_wait<0>(sums);  // line: two warps of four
      break;
    case 14:
      if (t % 32 < 16) ptx::wgmma<__nv_bfloat16>(sums, x, x);  // line: half a warp
      break;
    case 15:
      ptx::wgmma<__nv_bfloat16>(sums, describe(256, ptx::Swizzle::k128), x);  // line: misaligned
      break;
    case 16:
      ptx::wgmma<__nv_bfloat16>(sums, describe(1024 + 16), x);  // line: out of range
      break;
    case 17:
      ptx::wgmma<__nv_bfloat16>(sums, x, x, warp != 3);  // line: different operations
      break;
    case 18:
      ptx::wgmma<__nv_bfloat16>(sums, x, describe(t % 2 * 16));  // line: lanes apart
      break;
    case 19:
      ptx::wgmma<__nv_bfloat16>(other, x, x);
      ptx::wgmma<__nv_bfloat16>(reinterpret_cast<float (&)[4]>(other[4]), x, x);  // line: overlap
      break;
    case 20:
      ptx::wgmma<__nv_bfloat16>(sums, x, x | uint64_t{1} << 49);  // line: base offset
      break;
    case 21:
      if (warp == 1)
        ptx::setmaxnreg_inc<240>();
      else
        ptx::setmaxnreg_inc<232>();
      break;
    case 22:  // in a block of 96 threads
      multiply();
      break;
  }
  if (t < kThreads)
    for (int e = 0; e < 4; ++e) y[place_of(e).row * 8 + place_of(e).column] = sums[e];
}
Tensor mistake(Tensor y, int64_t which) {
  mistake_kernel<<<1, which == 22 ? 96 : kThreads>>>(mutable_data<float>(y),
                                                     static_cast<int>(which));
  check_launch("mistake");
  return y;
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_wgmma, m) {
  m.def("product(Tensor image, Tensor c, str name, bool accumulate, int[] a, int[] b) -> Tensor");
  m.def("matmul(Tensor a, Tensor b) -> Tensor");
  m.def("groups(Tensor x) -> Tensor");
  m.def("mistake(Tensor y, int which) -> Tensor");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_wgmma, CUDA, m) {
  m.impl("product", TORCH_BOX(&product));
  m.impl("matmul", TORCH_BOX(&matmul));
  m.impl("groups", TORCH_BOX(&groups));
  m.impl("mistake", TORCH_BOX(&mistake));
}

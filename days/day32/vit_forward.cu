// Day 32: a vision transformer (ViT): an image becomes tokens, which blocks of attention read
//
//   tokens[b, 0]     = class_token + positions[0]
//   tokens[b, 1 + n] = weight · patch(b, n) + bias + positions[1 + n]
//
// images: (B, C, H, W), cut into N = H / P · W / P patches of P × P pixels; weight: (E, C, P, P);
// positions: (1 + N, E); tokens: (B, 1 + N, E); bf16 or fp16. The rest of the forward pass is in
// model.py: it calls the operators of days 9, 28 and 30.
//
// With K = C · P² pixels per patch: 2 · B · N · K · E operations; bytes: sizeof(T) times B · N · K
// pixels, B · N · E results and E · K weights. For 256 images of 3×224×224, P = 16 and E = 192,
// that is 14.8 GFLOP and 97 MB: 153 FLOP per byte, so memory and tensor cores are near balance.
//
//   v1 unfold       patches copied to a matrix, a product by cuBLAS, a kernel for the additions
//   v2 one_kernel   tiles of that matrix go from the image to shared memory; it never exists
//   v3 all_columns  192 columns per block instead of 64: each pixel is loaded once, not 3 times
//
// Run: python run_day.py 32

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/linear.cuh"         // taught in day 28
#include "common/cuda/mma_tiles.cuh"      // taught in day 26
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12

// across: patches per row of the grid of patches; N: per image; K: pixels per patch.
struct Sizes {
  int64_t B;
  int C, H, W, P, E, across, N, K;
};

// Where pixel k = (c · P + i) · P + j of patch `row` = b · N + y · across + x is in the images.
// It is one part that depends on the row plus one that depends on k.
__device__ __forceinline__ int64_t pixel_index(int64_t row, int k, const Sizes& n) {
  const int64_t b = row / n.N;
  const int patch = static_cast<int>(row % n.N);
  const int y = patch / n.across, x = patch % n.across;
  const int64_t origin = (b * n.C * n.H + y * n.P) * n.W + x * n.P;
  const int c = k / (n.P * n.P), i = k / n.P % n.P, j = k % n.P;
  return origin + (int64_t{c} * n.H + i) * n.W + j;
}

// What the tokens are made of.
struct Inputs {
  const Tensor &images, &weight, &bias, &class_token, &positions;
};

Sizes check_inputs(const Inputs& in) {
  check(in.images, "images").on_gpu().dtype({ScalarType::Half, ScalarType::BFloat16}).rank(4);
  check(in.images, "images").contiguous();
  const auto same = [&](const Tensor& t, const char* name, int64_t rank) {
    check(t, name).on_gpu().dtype({in.images.scalar_type()}).rank(rank).contiguous();
    check(t, name).same_device(in.images, "images");
  };
  same(in.weight, "weight", 4), same(in.bias, "bias", 1);
  same(in.class_token, "class_token", 1), same(in.positions, "positions", 2);
  const int64_t C = in.images.size(1), H = in.images.size(2), W = in.images.size(3);
  const int64_t E = in.weight.size(0), P = in.weight.size(3);
  check(in.weight, "weight").size(1, C).size(2, P);
  STD_TORCH_CHECK(P > 0, "weight: expected patches of one pixel or more, got ",
                  shape_of(in.weight));
  STD_TORCH_CHECK(H % P == 0 && W % P == 0, "images, weight: expected images of whole patches of ",
                  P, "×", P, " pixels, got ", H, "×", W);
  STD_TORCH_CHECK(C * H * W < INT32_MAX && C * P * P * E < INT32_MAX,
                  "images, weight: expected fewer than 2^31 elements per image and of the weight");
  const int64_t N = (H / P) * (W / P);
  check(in.bias, "bias").size(0, E);
  check(in.class_token, "class_token").size(0, E);
  check(in.positions, "positions").size(0, 1 + N).size(1, E);
  const auto to_int = [](int64_t size) { return static_cast<int>(size); };
  return {in.images.size(0), to_int(C),     to_int(H), to_int(W),        to_int(P),
          to_int(E),         to_int(W / P), to_int(N), to_int(C * P * P)};
}

Tensor empty_tokens(const Inputs& in, const Sizes& n) {
  return allocate(in.images, {n.B, 1 + n.N, n.E});
}

// ---------------------------------------------------------------------------------------------
// v1: three passes. F.unfold would make the transpose of this matrix.

constexpr int BLOCK = 256;

template <typename T>
__global__ void unfold_kernel(const T* __restrict__ images, T* __restrict__ patches, Sizes n) {
  const int64_t at = int64_t{blockIdx.x} * BLOCK + threadIdx.x;  // of (B · N, K)
  if (at >= n.B * n.N * n.K) return;
  patches[at] = images[pixel_index(at / n.K, static_cast<int>(at % n.K), n)];
}

template <typename T>
__global__ void add_positions_kernel(const T* __restrict__ products,
                                     const T* __restrict__ class_token,
                                     const T* __restrict__ positions, T* __restrict__ tokens,
                                     Sizes n) {
  const int64_t at = int64_t{blockIdx.x} * BLOCK + threadIdx.x;  // of (B, 1 + N, E)
  if (at >= n.B * (1 + n.N) * n.E) return;
  const int e = static_cast<int>(at % n.E);
  const int64_t s = at / n.E % (1 + n.N), b = at / n.E / (1 + n.N);
  const T own = s == 0 ? class_token[e] : products[(b * n.N + s - 1) * n.E + e];
  tokens[at] = static_cast<T>(static_cast<float>(own) + static_cast<float>(positions[s * n.E + e]));
}

Tensor embed_v1_unfold(const Tensor& images, const Tensor& weight, const Tensor& bias,
                       const Tensor& class_token, const Tensor& positions) {
  const Inputs in{images, weight, bias, class_token, positions};
  const Sizes n = check_inputs(in);
  const DeviceGuard guard(images);
  Tensor tokens = empty_tokens(in, n);
  if (tokens.numel() == 0) return tokens;
  Tensor patches = allocate(images, {n.B * n.N, n.K});
  const auto blocks = [](const Tensor& of) {
    return grid_size(ceil_div<int64_t>(of.numel(), BLOCK), "images");
  };
  if (patches.numel() > 0) {
    dispatch_floating(images, [&](auto zero) {
      using T = decltype(zero);
      unfold_kernel<T><<<blocks(patches), BLOCK, 0, current_stream(images)>>>(
          data<T>(images), mutable_data<T>(patches), n);
    });
    check_launch("unfold");
  }
  const Tensor products = linear(patches, torch::stable::view(weight, {n.E, n.K}), bias);
  dispatch_floating(images, [&](auto zero) {
    using T = decltype(zero);
    add_positions_kernel<T><<<blocks(tokens), BLOCK, 0, current_stream(images)>>>(
        data<T>(products), data<T>(class_token), data<T>(positions), mutable_data<T>(tokens), n);
  });
  check_launch("add_positions");
  return tokens;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one kernel, and no matrix of patches. A block multiplies a tile of BM patches by
// BN rows of the weight. Eight pixels side by side are 16 bytes of the image, one cp.async, and one
// chunk of the tile: with P a multiple of 8 no chunk crosses the edge of a patch.

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int WARP_ROWS = 4, WARP_COLS = WARPS / WARP_ROWS;  // how the warps share the tile
constexpr int BM = 128;                                      // patches per block
constexpr int BK = 64;  // pixels per step: K = C · P², a multiple of 64 where P is one of 8
constexpr int FRAGMENTS = BM / WARP_ROWS / 16;  // of 16 rows per warp

// Blocks that share patches follow each other, so that the L2 cache serves all but the first.
struct Place {
  int64_t row;  // of the first patch
  int col;      // the first column of the tokens
};
template <int BN>
__device__ Place place_of_block(const Sizes& n) {
  const int columns = ceil_div(n.E, BN);
  return {int64_t{blockIdx.x / columns} * BM, static_cast<int>(blockIdx.x % columns) * BN};
}

// a (BM, BK) · bᵀ, b: (BN, BK), added to the sums of a warp: rows from `row`, columns from `col`.
template <typename T, int COLS>
__device__ __forceinline__ void multiply(float (&sums)[FRAGMENTS][COLS / 8][4], const T* a,
                                         const T* b, int row, int col) {
#pragma unroll 2
  for (int k = 0; k < BK; k += 16) {
    uint32_t left[FRAGMENTS][4];
#pragma unroll
    for (int m = 0; m < FRAGMENTS; ++m) tiles::load_a<BK>(left[m], a, row + 16 * m, k);
#pragma unroll
    for (int c = 0; c < COLS; c += 16) {
      uint32_t right[2][2];
      tiles::load_b_transposed<BK>(right, b, col + c, k);
#pragma unroll
      for (int m = 0; m < FRAGMENTS; ++m) {
        ptx::mma_m16n8k16<T>(sums[m][c / 8], left[m], right[0], sums[m][c / 8]);
        ptx::mma_m16n8k16<T>(sums[m][c / 8 + 1], left[m], right[1], sums[m][c / 8 + 1]);
      }
    }
  }
}

// Two elements side by side, at an address that is a multiple of 4 bytes.
template <typename T>
__device__ __forceinline__ float2 two(const T* from) {
  struct alignas(4) Two {
    T x, y;
  };
  const Two both = *reinterpret_cast<const Two*>(from);
  return {static_cast<float>(both.x), static_cast<float>(both.y)};
}
template <typename T>
__device__ __forceinline__ void store_two(T* to, float x, float y) {
  *reinterpret_cast<uint32_t*>(to) = tiles::pack<T>(x, y);
}

template <typename T, int BN>
__global__ void __launch_bounds__(THREADS, 2)
    embed_kernel(const T* __restrict__ images, const T* __restrict__ weight,
                 const T* __restrict__ bias, const T* __restrict__ class_token,
                 const T* __restrict__ positions, T* __restrict__ tokens, Sizes n) {
#ifdef HAS_BF16_MMA
  constexpr int COLS = BN / WARP_COLS;  // per warp
  extern __shared__ __align__(128) uint4 shared[];
  T* buffers = reinterpret_cast<T*>(shared);  // (2 buffers, BM patches and BN weights, BK)
  const Place at = place_of_block<BN>(n);
  const int64_t rows = n.B * n.N - at.row;  // of this block, or more

  // A thread copies the same chunk of every STEP-th patch, whose first pixels it remembers.
  constexpr int CHUNKS = BK / tiles::CHUNK, STEP = THREADS / CHUNKS;
  const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const T* patch[BM / STEP];
#pragma unroll
  for (int r = 0; r < BM / STEP; ++r) {
    const int row = first + r * STEP;
    patch[r] = images + (row < rows ? pixel_index(at.row + row, 0, n) : 0);
  }
  const auto load = [&](int k) {
    T* a = buffers + k / BK % 2 * (BM + BN) * BK;
    T* to = a + tiles::swizzled<BK>(first, chunk);
    const int64_t pixel = pixel_index(0, k + chunk * tiles::CHUNK, n);
#pragma unroll
    for (int r = 0; r < BM / STEP; ++r) {
      ptx::cp_async_zero_fill<16>(to + r * STEP * BK, patch[r] + pixel,
                                  first + r * STEP < rows ? 16 : 0);
    }
    tiles::load_async<BN, BK, THREADS>(a + BM * BK, weight + int64_t{at.col} * n.K + k, n.K,
                                       n.E - at.col);
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / WARP_COLS * (BM / WARP_ROWS), warp_col = warp % WARP_COLS * COLS;
  float sums[FRAGMENTS][COLS / 8][4] = {};
  load(0);
  for (int k = 0; k < n.K; k += BK) {
    ptx::cp_async_wait_all();  // this thread's copies of this tile are complete,
    __syncthreads();           // now those of all threads, and all warps have read the other buffer
    if (k + BK < n.K) load(k + BK);
    const T* a = buffers + k / BK % 2 * (BM + BN) * BK;
    multiply<T, COLS>(sums, a, a + BM * BK, warp_row, warp_col);
  }

  // The epilogue: lane 4g + t has columns 2t and 2t + 1 of the rows g and g + 8 of each fragment.
#pragma unroll
  for (int r = 0; r < 2 * FRAGMENTS; ++r) {
    const int row = warp_row + 8 * r + lane / 4;
    if (row >= rows) break;
    const int64_t b = (at.row + row) / n.N;
    const int s = 1 + static_cast<int>((at.row + row) % n.N),
              col = at.col + warp_col + lane % 4 * 2;
    T* token = tokens + (b * (1 + n.N) + s) * n.E + col;
    const T* position = positions + int64_t{s} * n.E + col;
#pragma unroll
    for (int c = 0; c < COLS; c += 8) {
      if (col + c >= n.E) break;
      const float* sum = &sums[r / 2][c / 8][r % 2 * 2];
      const float2 shift = two(bias + col + c), where = two(position + c);
      store_two(token + c, sum[0] + shift.x + where.x, sum[1] + shift.y + where.y);
      if (s == 1) {  // the threads of an image's first patch also write the class token above it
        const float2 own = two(class_token + col + c), first_place = two(positions + col + c);
        store_two(token - n.E + c, own.x + first_place.x, own.y + first_place.y);
      }
    }
  }
#endif
}

template <int BN>
Tensor embed(const Inputs& in, const char* name) {
  const Sizes n = check_inputs(in);
  const bool pairs = n.E % 2 == 0 && is_aligned(in.bias, 4) && is_aligned(in.class_token, 4) &&
                     is_aligned(in.positions, 4);
  if (n.P % 8 != 0 || !pairs || !is_aligned(in.images, 16) || !is_aligned(in.weight, 16) ||
      n.N == 0 || n.K == 0) {
    fell_back("embed_v1_unfold", "an odd width, or patches that are not made of aligned chunks");
    return embed_v1_unfold(in.images, in.weight, in.bias, in.class_token, in.positions);
  }
  const DeviceGuard guard(in.images);
  require_capability(8, 0, "mma.sync of 16×8×16");
  const int64_t bytes = 2 * (BM + BN) * BK * in.images.element_size();
  require_shared_memory(bytes, "two tiles of patches and weights");
  Tensor tokens = empty_tokens(in, n);
  if (tokens.numel() == 0) return tokens;  // a grid of no blocks is an error
  const auto run = [&]<typename T>(T) {
    const int64_t blocks = ceil_div<int64_t>(n.B * n.N, BM) * ceil_div(n.E, BN);
    const auto kernel = embed_kernel<T, BN>;
    allow_shared(kernel, bytes);
    kernel<<<grid_size(blocks, "images"), THREADS, bytes, current_stream(in.images)>>>(
        data<T>(in.images), data<T>(in.weight), data<T>(in.bias), data<T>(in.class_token),
        data<T>(in.positions), mutable_data<T>(tokens), n);
  };
  in.images.scalar_type() == ScalarType::Half ? run(__half{}) : run(__nv_bfloat16{});
  check_launch(name);
  return tokens;
}

Tensor embed_v2_one_kernel(const Tensor& images, const Tensor& weight, const Tensor& bias,
                           const Tensor& class_token, const Tensor& positions) {
  return embed<64>({images, weight, bias, class_token, positions}, "embed_v2_one_kernel");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a block makes 192 columns, all that a tiny ViT has. Per step of 16 pixels a warp
// executes 8 ldmatrix for 24 mma instead of 4 for 8, and each pixel goes to one multiprocessor.

Tensor embed_v3_all_columns(const Tensor& images, const Tensor& weight, const Tensor& bias,
                            const Tensor& class_token, const Tensor& positions) {
  return embed<192>({images, weight, bias, class_token, positions}, "embed_v3_all_columns");
}

// ---------------------------------------------------------------------------------------------

#define SCHEMA                                                                         \
  "(Tensor images, Tensor weight, Tensor bias, Tensor class_token, Tensor positions) " \
  "-> Tensor"
RUNG(day32, embed_v1_unfold, SCHEMA);
RUNG(day32, embed_v2_one_kernel, SCHEMA);
RUNG(day32, embed_v3_all_columns, SCHEMA);

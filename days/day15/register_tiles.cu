// Day 15: the forward pass of FlashAttention-2 with register tiles
//
//   v4 register_tiles   128 × 64 tiles; a thread computes 8 × 4 of s and 8 × D/16 of o
//
// The formula and the rungs before it are in fa2_forward.cu.
//
// Run: python run_day.py 15

#include "days/day15/attention_by.cuh"

#include <type_traits>

// ---------------------------------------------------------------------------------------------
// v4 against v3: v3 loads two floats from shared memory for each fused multiply-add. Here a thread
// computes 8 × 4 elements of s, and 8 × D/16 of o, in registers: 12 loads of 16 bytes serve 128
// fused multiply-adds.

constexpr int BM = 128;   // rows of q per block
constexpr int BN = 64;    // keys per tile
constexpr int SIDE = 16;  // 16 × 16 threads: (tx, ty) has rows ty + 16 · r and keys tx + 16 · c
constexpr int TM = BM / SIDE, TN = BN / SIDE;  // 8 × 4 elements of s
// Unused words at the end of each row in shared memory. They make the distance of two rows 4 mod 32
// words, so 8 consecutive rows start in 8 different groups of 4 banks. A 16-byte load is served for
// 8 lanes at a time: without bank conflicts (day 14) when those read 8 consecutive rows. And 4
// words keep every row on a multiple of 16 bytes.
constexpr int PAD = 4;

// Read and written as float4, so aligned to 16 bytes. DP: D rounded up to 32, 64 or 128.
template <int DP>
struct alignas(16) Tiles {
  float q[BM][DP + PAD];
  float k[BN][DP + PAD];
  float v[BN][DP + PAD];
  float p[BM][BN + PAD];
};

// Four elements, loaded by one instruction.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

// Loads rows [0, rows) of a matrix (…, D) into `tile`, as fp32; zeros beyond `rows` and beyond D.
// wide: D and the address allow loads of four elements.
template <int HEIGHT, int DP, typename T>
__device__ void load_tile(float (&tile)[HEIGHT][DP + PAD], const T* from, int64_t rows, int D,
                          bool wide) {
#pragma unroll 4
  for (int e = threadIdx.x; e < HEIGHT * DP / 4; e += SIDE * SIDE) {
    const int row = e / (DP / 4), d = e % (DP / 4) * 4;
    float4 four{0, 0, 0, 0};
    if (row < rows && wide && d < D) {
      const auto in = *reinterpret_cast<const Four<T>*>(from + int64_t{row} * D + d);
      four = {static_cast<float>(in.at[0]), static_cast<float>(in.at[1]),
              static_cast<float>(in.at[2]), static_cast<float>(in.at[3])};
    } else if (row < rows && !wide) {
      const T* in = from + int64_t{row} * D + d;
      if (d + 0 < D) four.x = static_cast<float>(in[0]);
      if (d + 1 < D) four.y = static_cast<float>(in[1]);
      if (d + 2 < D) four.z = static_cast<float>(in[2]);
      if (d + 3 < D) four.w = static_cast<float>(in[3]);
    }
    *reinterpret_cast<float4*>(&tile[row][d]) = four;
  }
}

template <typename T, int DP>
__global__ void __launch_bounds__(SIDE* SIDE, DP <= 64 ? 2 : 1)
    attention_v4_register_tiles_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                       const T* __restrict__ v, T* __restrict__ o,
                                       float* __restrict__ lse, Sizes n, int64_t tiles, bool wide) {
  extern __shared__ __align__(128) float4 shared[];
  auto& tile = *reinterpret_cast<Tiles<DP>*>(shared);
  constexpr int W = DP / SIDE < 4 ? DP / SIDE : 4;  // adjacent columns of o: 2 or 4
  constexpr int GROUPS = DP / SIDE / W;             // columns g · 16 · W + tx · W + [0, W)
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  // The last rows first: with a causal mask they have the most keys, and the shortest blocks should
  // run at the end.
  const int64_t head = blockIdx.x % n.N, i0 = (tiles - 1 - blockIdx.x / n.N) * BM;
  const int64_t at = head * n.S * n.D;
  const float log2_scale = n.scale * 1.44269504f;  // exp(x · scale) = 2^(x · scale · log2 e)

  float acc[TM][GROUPS * W] = {};  // o, not yet divided
  float max[TM], sum[TM];          // max: times log2_scale; sum: over this thread's keys only
  for (int r = 0; r < TM; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0;
  }
  load_tile<BM, DP>(tile.q, q + at + i0 * n.D, n.S - i0, n.D, wide);

  const int64_t rows_end = i0 + BM < n.S ? i0 + BM : n.S;
  const int64_t end = n.causal ? rows_end : n.S;
  for (int64_t j0 = 0; j0 < end; j0 += BN) {
    __syncthreads();  // all threads have read k and v of the previous tile
    load_tile<BN, DP>(tile.k, k + at + j0 * n.D, n.S - j0, n.D, wide);
    load_tile<BN, DP>(tile.v, v + at + j0 * n.D, n.S - j0, n.D, wide);
    __syncthreads();  // q, k and v are complete before they are read

    float s[TM][TN] = {};
#pragma unroll 2
    for (int d = 0; d < DP; d += 4) {
      float4 b[TN];
#pragma unroll
      for (int c = 0; c < TN; ++c) {
        b[c] = *reinterpret_cast<const float4*>(&tile.k[tx + SIDE * c][d]);
      }
#pragma unroll
      for (int r = 0; r < TM; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(&tile.q[ty + SIDE * r][d]);
#pragma unroll
        for (int c = 0; c < TN; ++c) {
          s[r][c] += a.x * b[c].x;
          s[r][c] += a.y * b[c].y;
          s[r][c] += a.z * b[c].z;
          s[r][c] += a.w * b[c].w;
        }
      }
    }

    // Only tiles on the diagonal and the last tile contain masked elements.
    if (j0 + BN > n.S || (n.causal && j0 + BN - 1 > i0)) {
#pragma unroll
      for (int r = 0; r < TM; ++r) {
#pragma unroll
        for (int c = 0; c < TN; ++c) {
          const int64_t i = i0 + ty + SIDE * r, j = j0 + tx + SIDE * c;
          if (j >= n.S || (n.causal && j > i)) s[r][c] = -INFINITY;
        }
      }
    }

    // The online softmax of 8 rows. A row's 64 elements are held by the 16 lanes with the same ty.
#pragma unroll
    for (int r = 0; r < TM; ++r) {
      float tile_max = s[r][0];
      for (int c = 1; c < TN; ++c) tile_max = fmaxf(tile_max, s[r][c]);
      for (int distance = SIDE / 2; distance > 0; distance /= 2) {
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffff, tile_max, distance));
      }
      const float new_max = fmaxf(max[r], tile_max * log2_scale);
      const float rescale = exp2f(max[r] - new_max);
      max[r] = new_max;
      sum[r] *= rescale;
#pragma unroll
      for (int c = 0; c < TN; ++c) {
        const float p = exp2f(s[r][c] * log2_scale - new_max);
        sum[r] += p;
        tile.p[ty + SIDE * r][tx + SIDE * c] = p;
      }
#pragma unroll
      for (int c = 0; c < GROUPS * W; ++c) acc[r][c] *= rescale;
    }
    __syncwarp();  // a row of p is written and read by the 16 lanes of one ty, all in this warp

#pragma unroll 2
    for (int j = 0; j < BN; j += 4) {
      alignas(16) float b[4][GROUPS * W];  // (key, column); written as float4 or float2
#pragma unroll
      for (int key = 0; key < 4; ++key) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
          using Wide = std::conditional_t<W == 4, float4, float2>;
          *reinterpret_cast<Wide*>(&b[key][g * W]) =
              *reinterpret_cast<const Wide*>(&tile.v[j + key][g * SIDE * W + tx * W]);
        }
      }
#pragma unroll
      for (int r = 0; r < TM; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(&tile.p[ty + SIDE * r][j]);
#pragma unroll
        for (int c = 0; c < GROUPS * W; ++c) {
          acc[r][c] += a.x * b[0][c];
          acc[r][c] += a.y * b[1][c];
          acc[r][c] += a.z * b[2][c];
          acc[r][c] += a.w * b[3][c];
        }
      }
    }
    // No barrier for p: it is overwritten only after the two barriers of the next tile.
  }

#pragma unroll
  for (int r = 0; r < TM; ++r) {
    float total = sum[r];
    for (int distance = SIDE / 2; distance > 0; distance /= 2) {
      total += __shfl_xor_sync(0xffffffff, total, distance);
    }
    const int64_t i = i0 + ty + SIDE * r;
    if (i < n.S) {
#pragma unroll
      for (int c = 0; c < GROUPS * W; ++c) {
        const int d = c / W * SIDE * W + tx * W + c % W;
        if (d < n.D) o[at + i * n.D + d] = static_cast<T>(acc[r][c] / total);
      }
      if (tx == 0) lse[head * n.S + i] = max[r] * 0.693147181f + logf(total);  // ln 2
    }
  }
}

Attended attention_v4_register_tiles(const Tensor& q, const Tensor& k, const Tensor& v,
                                     bool causal) {
  const Sizes sizes = check_inputs(q, k, v, causal);
  // Shared memory per block: 227 KB with compute capability 9.0, 163 KB with 8.0, 99 KB with 8.6.
  int limit = 0;
  check_cuda(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index(q)),
      "cudaDeviceGetAttribute");
  const size_t bytes = sizes.D <= 32   ? sizeof(Tiles<32>)
                       : sizes.D <= 64 ? sizeof(Tiles<64>)
                                       : sizeof(Tiles<128>);
  if (bytes > static_cast<size_t>(limit)) {
    fell_back("attention_v3_fa2_order", "tiles larger than the GPU's shared memory per block");
    return attention_v3_fa2_order(q, k, v, causal);
  }
  const char* name = "attention_v4_register_tiles";
  return attention_by(q, k, v, causal, name, [&](auto zero, Sizes n, auto* o, float* lse) {
    using T = decltype(zero);
    const int64_t tiles = ceil_div<int64_t>(n.S, BM);
    const bool wide = n.D % 4 == 0 && is_aligned(q, 4 * sizeof(T)) &&
                      is_aligned(k, 4 * sizeof(T)) && is_aligned(v, 4 * sizeof(T));
    const auto kernel = n.D <= 32   ? attention_v4_register_tiles_kernel<T, 32>
                        : n.D <= 64 ? attention_v4_register_tiles_kernel<T, 64>
                                    : attention_v4_register_tiles_kernel<T, 128>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
    kernel<<<grid_size(n.N * tiles, "q"), SIDE * SIDE, bytes, current_stream(q)>>>(
        data<T>(q), data<T>(k), data<T>(v), o, lse, n, tiles, wide);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day15, attention_v4_register_tiles, ATTENTION);

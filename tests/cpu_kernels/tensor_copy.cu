// Kernels for test_cpu_tensor_copy.py: copies by TMA, on the CPU and on a GPU.
#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor.cuh"

#include <algorithm>
#include <vector>

constexpr int kThreads = 128;
constexpr int kMaxRank = 5;

struct Index {
  int i[kMaxRank];
};

// Dynamic shared memory from a multiple of 1024 bytes on, where the pattern of any swizzle begins.
__device__ uint8_t* aligned_shared() {
  extern __shared__ __align__(1024) uint8_t shared[];
  return shared + (1024 - ptx::shared_address(shared) % 1024) % 1024;
}

// The first and only phase of a barrier that one thread announces bytes at.
__device__ void begin_barrier(uint64_t* barrier) {
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

// ---------------------------------------------------------------- host

// The map of a contiguous tensor without the last `padding` elements of each row. Lists have
// PyTorch's order of dimensions.
template <typename T>
ptx::TensorMap map_of(const Tensor& x, const std::vector<int64_t>& box,
                      const std::vector<int64_t>& every, int64_t swizzle, bool nan,
                      int64_t padding = 0) {
  ptx::TensorLayout layout;
  for (int64_t d = x.dim() - 1; d >= 0; --d) {
    layout.sizes.push_back(x.size(d));
    if (d > 0) layout.strides.push_back(x.stride(d - 1) * static_cast<int64_t>(sizeof(T)));
  }
  layout.sizes[0] -= padding;
  for (size_t d = box.size(); d-- > 0;) layout.box.push_back(box[d]);
  for (size_t d = every.size(); d-- > 0;) layout.element_strides.push_back(every[d]);
  layout.swizzle = static_cast<ptx::Swizzle>(swizzle);
  layout.fill = nan ? ptx::OutOfBounds::kNan : ptx::OutOfBounds::kZero;
  return ptx::make_tensor_map(data<T>(x), layout);
}
ptx::TensorMap any_map_of(const Tensor& x, const std::vector<int64_t>& box,
                          const std::vector<int64_t>& every, int64_t swizzle, bool nan,
                          int64_t padding) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return map_of<float>(x, box, every, swizzle, nan, padding);
    case ScalarType::Half:
      return map_of<__half>(x, box, every, swizzle, nan, padding);
    case ScalarType::BFloat16:
      return map_of<__nv_bfloat16>(x, box, every, swizzle, nan, padding);
    case ScalarType::Int:
      return map_of<int32_t>(x, box, every, swizzle, nan, padding);
    default:
      return map_of<uint8_t>(x, box, every, swizzle, nan, padding);
  }
}
Index index_of(const std::vector<int64_t>& at) {
  Index index = {};
  for (size_t d = 0; d < at.size(); ++d) index.i[d] = static_cast<int>(at[at.size() - 1 - d]);
  return index;
}
int bytes_of(const Tensor& x, const std::vector<int64_t>& box, const std::vector<int64_t>& every) {
  int64_t bytes = static_cast<int64_t>(x.element_size());
  for (size_t d = 0; d < box.size(); ++d) bytes *= (box[d] + every[d] - 1) / every[d];
  return static_cast<int>(bytes);
}

// ---------------------------------------------------------------- loads

// Loads one box to `offset` of shared memory, and writes all `capacity` bytes of that out: what the
// copy has not touched is 0xee.
template <int N>
__global__ void load_kernel(const __grid_constant__ ptx::TensorMap map, Index index, int box_bytes,
                            int offset, uint8_t* y, int capacity) {
  uint8_t* tile = aligned_shared();
  __shared__ uint64_t barrier;
  int at[N];
  for (int d = 0; d < N; ++d) at[d] = index.i[d];
  for (int i = static_cast<int>(threadIdx.x); i < capacity; i += kThreads) tile[i] = 0xee;
  ptx::fence_proxy_async();  // these stores come before the engine's
  begin_barrier(&barrier);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(map);
    ptx::prefetch_tensor(map, at);
    ptx::mbarrier_arrive_expect_bytes(&barrier, box_bytes);
    ptx::load_tensor(tile + offset, map, at, &barrier);
  }
  ptx::mbarrier_wait(&barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < capacity; i += kThreads) y[i] = tile[i];
}

// x: 1 to 5 dimensions, contiguous; box, at, every: for each of them. → uint8,
// (capacity).
Tensor load(Tensor x, std::vector<int64_t> box, std::vector<int64_t> at, std::vector<int64_t> every,
            int64_t swizzle, bool nan, int64_t padding, int64_t offset, int64_t capacity) {
  const ptx::TensorMap map = any_map_of(x, box, every, swizzle, nan, padding);
  Tensor y = torch::stable::new_empty(x, {capacity}, ScalarType::Byte);
  auto launch = [&](auto kernel) {
    kernel<<<1, kThreads, static_cast<size_t>(capacity) + 1024, current_stream(x)>>>(
        map, index_of(at), bytes_of(x, box, every), static_cast<int>(offset),
        mutable_data<uint8_t>(y), static_cast<int>(capacity));
  };
  if (x.dim() == 1) launch(load_kernel<1>);
  if (x.dim() == 2) launch(load_kernel<2>);
  if (x.dim() == 3) launch(load_kernel<3>);
  if (x.dim() == 4) launch(load_kernel<4>);
  if (x.dim() == 5) launch(load_kernel<5>);
  check_launch("load");
  return y;
}

// Each block of a cluster loads its part of the rows of a 64-column tile, for all; every block
// writes the whole tile out, and how many bytes it waited for in all blocks' parts. x: int32,
// (rows, 64) → (tiles, blocks, kRows, 64).
constexpr int kRows = 16;
__global__ void multicast_kernel(const __grid_constant__ ptx::TensorMap map, int* y) {
  int* tile = reinterpret_cast<int*>(aligned_shared());
  __shared__ uint64_t barrier;
  begin_barrier(&barrier);
  const int size = static_cast<int>(ptx::cluster_size());
  const int rank = static_cast<int>(ptx::cluster_block_rank());
  const int part = kRows / size;
  ptx::cluster_sync();  // every block's barrier is ready before a block's copy comes
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&barrier, kRows * 256);
    const int row = static_cast<int>(ptx::cluster_index().x) * kRows + rank * part;
    ptx::load_tensor_multicast(tile + rank * part * 64, map, {0, row}, &barrier,
                               static_cast<uint16_t>((1 << size) - 1));
  }
  ptx::mbarrier_wait(&barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * 64; i += kThreads)
    y[blockIdx.x * kRows * 64 + i] = tile[i];
  ptx::cluster_sync();  // no block returns while copies to it, or from it, are under way
}
Tensor multicast(Tensor x, int64_t cluster) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).rank(2).contiguous().size(1, 64);
  const int64_t tiles = ceil_div<int64_t>(x.size(0), kRows);
  Tensor y = torch::stable::new_empty(x, {tiles, cluster, kRows, 64});
  const ptx::TensorMap map = map_of<int32_t>(x, {kRows / cluster, 64}, {1, 1}, 0, false);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid_size(tiles * cluster, "x"));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kRows * 256 + 1024;
  config.stream = current_stream(x);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, multicast_kernel, map, mutable_data<int>(y)), "multicast");
  return y;
}

// ---------------------------------------------------------------- stores

// Stores, or adds, one tile: `tile` are the bytes as they lie in shared memory, from `offset` on.
template <int N>
__global__ void store_kernel(const __grid_constant__ ptx::TensorMap map, Index index,
                             const uint8_t* x, int bytes, int offset, bool add) {
  uint8_t* tile = aligned_shared() + offset;
  int at[N];
  for (int d = 0; d < N; ++d) at[d] = index.i[d];
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += kThreads) tile[i] = x[i];
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (add) {
      ptx::add_tensor(map, at, tile);
    } else {
      ptx::store_tensor(map, at, tile);
    }
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

// y: 1 to 5 dimensions, contiguous, changed; tile: uint8; the rest as in load.
void store(Tensor y, Tensor tile, std::vector<int64_t> box, std::vector<int64_t> at,
           std::vector<int64_t> every, int64_t swizzle, int64_t padding, int64_t offset, bool add) {
  const ptx::TensorMap map = any_map_of(y, box, every, swizzle, false, padding);
  auto launch = [&](auto kernel) {
    kernel<<<1, kThreads, static_cast<size_t>(tile.numel() + offset) + 1024, current_stream(y)>>>(
        map, index_of(at), data<uint8_t>(tile), static_cast<int>(tile.numel()),
        static_cast<int>(offset), add);
  };
  if (y.dim() == 1) launch(store_kernel<1>);
  if (y.dim() == 2) launch(store_kernel<2>);
  if (y.dim() == 3) launch(store_kernel<3>);
  if (y.dim() == 4) launch(store_kernel<4>);
  if (y.dim() == 5) launch(store_kernel<5>);
  check_launch("store");
}

// y = 2x, tile by tile through shared memory: one block, two stages for loads and two for stores.
// x: float32, (rows, columns), any number of rows; columns a multiple of 4.
constexpr int kTile = 32;
__global__ void double_kernel(const __grid_constant__ ptx::TensorMap from,
                              const __grid_constant__ ptx::TensorMap to, int rows, int columns) {
  constexpr int kBytes = kTile * kTile * 4;
  float* in = reinterpret_cast<float*>(aligned_shared());
  float* out = in + 2 * kTile * kTile;
  __shared__ uint64_t full[2];
  begin_barrier(&full[0]);
  begin_barrier(&full[1]);
  const int across = (columns + kTile - 1) / kTile, tiles = across * ((rows + kTile - 1) / kTile);
  auto start = [&](int tile) {
    if (threadIdx.x > 0 || tile >= tiles) return;
    ptx::mbarrier_arrive_expect_bytes(&full[tile % 2], kBytes);
    ptx::load_tensor(in + tile % 2 * kTile * kTile, from,
                     {tile % across * kTile, tile / across * kTile}, &full[tile % 2]);
  };
  start(0);
  for (int tile = 0; tile < tiles; ++tile) {
    start(tile + 1);
    ptx::mbarrier_wait(&full[tile % 2], tile / 2 % 2);
    if (threadIdx.x == 0) ptx::bulk_wait_read<1>();  // the store before last has read its tile
    __syncthreads();
    const int stage = tile % 2 * kTile * kTile;
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads)
      out[stage + i] = 2 * in[stage + i];
    ptx::fence_proxy_async();
    __syncthreads();  // all of the tile is written, and all have read theirs of `in`
    if (threadIdx.x == 0) {
      ptx::store_tensor(to, {tile % across * kTile, tile / across * kTile}, out + stage);
      ptx::bulk_commit();
    }
  }
  if (threadIdx.x == 0) ptx::bulk_wait_read<0>();
}
Tensor doubled(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  Tensor y = torch::stable::empty_like(x);
  const ptx::TensorMap from = map_of<float>(x, {kTile, kTile}, {1, 1}, 0, false);
  const ptx::TensorMap to = map_of<float>(y, {kTile, kTile}, {1, 1}, 0, false);
  double_kernel<<<1, kThreads, 4 * kTile * kTile * 4 + 1024, current_stream(x)>>>(
      from, to, static_cast<int>(x.size(0)), static_cast<int>(x.size(1)));
  check_launch("doubled");
  return y;
}

// y = x through shared memory, a contiguous piece for each block; x: int32, a multiple of 256.
__global__ void flat_kernel(const int* x, int* y) {
  __shared__ __align__(16) int tile[256];
  __shared__ uint64_t barrier;
  begin_barrier(&barrier);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&barrier, sizeof tile);
    ptx::copy_bulk(tile, x + blockIdx.x * 256, sizeof tile, &barrier);
    ptx::mbarrier_wait(&barrier, 0);
    ptx::store_bulk(y + blockIdx.x * 256, tile, sizeof tile);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}
Tensor flat(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Int}).contiguous();
  Tensor y = torch::stable::empty_like(x);
  flat_kernel<<<grid_size(x.numel() / 256, "x"), kThreads, 0, current_stream(x)>>>(
      data<int>(x), mutable_data<int>(y));
  check_launch("flat");
  return y;
}

// ---------------------------------------------------------------- all of it together

// c = a·b, a: MxK, b: KxN, row-major, 16-bit; K and N multiples of 8. A block makes 64x64 of c with
// 4 warps, and a fifth feeds them by TMA with the swizzle of 128 bytes, through kStages stages. The
// two blocks of a cluster stand one above the other: they need the same tile of b, of which each
// loads half for both.
constexpr int kStages = 2, kSide = 64;
constexpr int kTileBytes = kSide * kSide * 2;
template <typename T>
__global__ void __cluster_dims__(1, 2, 1)
    matmul_kernel(const __grid_constant__ ptx::TensorMap a,
                  const __grid_constant__ ptx::TensorMap b, float* c, int M, int N, int K) {
  uint8_t* tiles = aligned_shared();  // (stage, a or b, 64 rows, 128 bytes)
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(ptx::cluster_block_rank());
  const int row = static_cast<int>(blockIdx.y) * kSide,
            column = static_cast<int>(blockIdx.x) * kSide;
  const int steps = (K + kSide - 1) / kSide;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], 2 * 4);  // a lane of each warp that reads, in both blocks
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();

  float sums[2][4][4] = {};
  if (warp == 4) {
    for (int step = 0; step < steps && lane == 0; ++step) {
      const int s = step % kStages;
      uint8_t* stage = tiles + s * 2 * kTileBytes;
      ptx::mbarrier_wait_cluster(&empty[s], step / kStages % 2 ^ 1);
      ptx::mbarrier_arrive_expect_bytes(&full[s], 2 * kTileBytes);
      ptx::load_tensor(stage, a, {step * kSide, row}, &full[s]);
      ptx::load_tensor_multicast(stage + kTileBytes + rank * kTileBytes / 2, b,
                                 {column, step * kSide + rank * kSide / 2}, &full[s], 3);
    }
  } else {
    for (int step = 0; step < steps; ++step) {
      const int s = step % kStages;
      const uint8_t *as = tiles + s * 2 * kTileBytes, *bs = as + kTileBytes;
      auto place = [](int r, int k) {
        return ptx::swizzled(ptx::Swizzle::k128, static_cast<uint32_t>(r * 128 + k * 2));
      };
      ptx::mbarrier_wait(&full[s], step / kStages % 2);
      for (int k = 0; k < kSide; k += 16) {
        uint32_t fa[2][4], fb[4][2];
        for (int i = 0; i < 2; ++i)
          ptx::ldmatrix_x4(fa[i],
                           as + place(warp / 2 * 32 + i * 16 + lane % 16, k + lane / 16 * 8));
        for (int j = 0; j < 4; ++j)
          ptx::ldmatrix_x2_trans(fb[j], bs + place(k + lane % 16, warp % 2 * 32 + j * 8));
        for (int i = 0; i < 2; ++i)
          for (int j = 0; j < 4; ++j) ptx::mma_m16n8k16<T>(sums[i][j], fa[i], fb[j], sums[i][j]);
      }
      __syncwarp();  // the whole warp has read
      if (lane == 0)
        for (uint32_t r = 0; r < 2; ++r) ptx::mbarrier_arrive_at_rank(&empty[s], r);
    }
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 4; ++j)
        for (int v = 0; v < 4; ++v) {
          const int r = row + warp / 2 * 32 + i * 16 + lane / 4 + v / 2 * 8;
          const int col = column + warp % 2 * 32 + j * 8 + lane % 4 * 2 + v % 2;
          if (r < M && col < N) c[static_cast<int64_t>(r) * N + col] = sums[i][j][v];
        }
  }
  ptx::cluster_sync();  // the other block still arrives here, and its copies end
}

template <typename T>
void launch_matmul(const Tensor& a, const Tensor& b, Tensor& c) {
  const ptx::TensorMap map_a = map_of<T>(a, {kSide, kSide}, {1, 1}, 3, false);
  const ptx::TensorMap map_b = map_of<T>(b, {kSide / 2, kSide}, {1, 1}, 3, false);
  const dim3 grid(grid_size(ceil_div<int64_t>(b.size(1), kSide), "b"),
                  grid_size_y(ceil_div<int64_t>(a.size(0), 2 * kSide) * 2, "a"));
  matmul_kernel<T><<<grid, 160, kStages * 2 * kTileBytes + 1024, current_stream(a)>>>(
      map_a, map_b, mutable_data<float>(c), static_cast<int>(a.size(0)),
      static_cast<int>(b.size(1)), static_cast<int>(a.size(1)));
  check_launch("matmul");
}
Tensor matmul(Tensor a, Tensor b) {
  check(a, "a").on_gpu().rank(2).contiguous().dtype({ScalarType::Half, ScalarType::BFloat16});
  check(b, "b").on_gpu().rank(2).contiguous().dtype({a.scalar_type()}).size(0, a.size(1));
  Tensor c = torch::stable::new_empty(a, {a.size(0), b.size(1)}, ScalarType::Float);
  if (a.scalar_type() == ScalarType::Half)
    launch_matmul<__half>(a, b, c);
  else
    launch_matmul<__nv_bfloat16>(a, b, c);
  return c;
}

// ---------------------------------------------------------------- mistakes

// One for each number; not to be run on a GPU. x and y: float32, (8, 32); clusters of 2 blocks.
__global__ void __cluster_dims__(2, 1, 1)
    mistake_kernel(const __grid_constant__ ptx::TensorMap from,
                   const __grid_constant__ ptx::TensorMap to,
                   const __grid_constant__ ptx::TensorMap bytes,
                   const __grid_constant__ ptx::TensorMap unmade, float* y, int which) {
  __shared__ __align__(128) float tile[8][32];
  __shared__ uint64_t barrier;
  const int t = static_cast<int>(threadIdx.x);
  const unsigned rank = ptx::cluster_block_rank();
  if (which != 8) begin_barrier(&barrier);
  if (which == 10 && rank == 1) return;
  ptx::cluster_arrive();
  if (which != 10) ptx::cluster_wait();
  if (which >= 20) tile[t / 32][t % 32] = 1, tile[4 + t / 32][t % 32] = 1;
  __syncthreads();
  if (t == 0 && which < 20) {
    ptx::mbarrier_arrive_expect_bytes(&barrier, which == 6 ? 2048 : 1024);  // line: first use
    switch (which) {
      case 1:
        ptx::load_tensor(&tile[0][4], from, {0, 0}, &barrier);  // line: misaligned tile
        break;
      case 2:
        ptx::load_tensor(tile, from, {0, 0, 0}, &barrier);  // line: too many coordinates
        break;
      case 3:
        ptx::load_tensor(tile, unmade, {0, 0}, &barrier);  // line: not a map
        break;
      case 4:
        ptx::load_tensor(y, from, {0, 0}, &barrier);  // line: tile in global memory
        break;
      case 5:
        ptx::load_tensor_multicast(tile, from, {0, 0}, &barrier, 4);  // line: no such block
        break;
      case 7:
        ptx::load_tensor(tile, from, {0, 0}, reinterpret_cast<uint64_t*>(y));  // line: no mbarrier
        break;
      case 9:
        ptx::load_tensor(tile, from, {2, 0}, &barrier);  // line: begins within a piece
        break;
      case 10:
        for (int i = 0; i < 4; ++i) __nanosleep(100);  // until the other has returned
        ptx::load_tensor_multicast(tile, from, {0, 0}, &barrier, 2);  // line: to a returned block
        break;
      default:
        ptx::load_tensor(tile, from, {0, 0}, &barrier);  // line: never waited for
    }
  }
  // 11 waits when it has read, 13 not at all.
  const bool waits = which < 20 && which != 13;
  if (waits && which != 11) ptx::mbarrier_wait(&barrier, 0);  // line: more bytes than come
  if (which < 20) y[rank * 256 + t] = tile[t / 32][t % 32];
  if (which == 11) {
    __syncthreads();
    ptx::mbarrier_wait(&barrier, 0);
  }
  if (t == 0 && rank == 0 && which >= 20) {
    ptx::fence_proxy_async();
    switch (which) {
      case 20:
        ptx::store_tensor(to, {0, 0}, tile);  // line: returns too early
        ptx::bulk_commit();
        break;
      case 21:
        ptx::store_tensor(to, {0, 0}, tile);  // line: never committed
        ptx::bulk_wait_read<0>();
        break;
      case 22:
        ptx::store_tensor(to, {0, 0}, tile);
        ptx::bulk_commit();
        tile[0][0] = 7;  // the store has not read it
        ptx::bulk_wait<0>();
        break;
      case 23:
        ptx::store_tensor(to, {0, 0}, tile);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        y[1] = y[0] + 1;  // the store may not have written it
        break;
      case 24:
        ptx::add_tensor(bytes, {0, 0}, tile);  // line: bytes added
        break;
      case 25:
        ptx::store_tensor(to, {0, 0}, &tile[0][1]);  // line: misaligned source
        break;
      case 26:
        ptx::store_bulk(y + 1, tile, 64);  // line: misaligned flat store
        break;
      case 27:
        ptx::store_bulk(y, y + 32, 64);  // line: source in global memory
        break;
      case 28:
        ptx::store_tensor(to, {0, -1}, tile);  // line: negative index
        break;
    }
  }
  ptx::cluster_sync();
}
Tensor mistake(Tensor x, int64_t which) {
  Tensor y = torch::stable::new_zeros(x, {2, 8, 32});
  Tensor first = torch::stable::select(y, 0, 0);
  const ptx::TensorMap from = map_of<float>(x, {8, 32}, {1, 1}, 0, false);
  const ptx::TensorMap to = map_of<float>(first, {8, 32}, {1, 1}, 0, false);
  const ptx::TensorMap bytes = ptx::make_tensor_map(static_cast<uint8_t*>(y.mutable_data_ptr()),
                                                    {.sizes = {128, 8}, .box = {128, 8}});
  const ptx::TensorMap unmade = {};
  mistake_kernel<<<2, kThreads>>>(from, to, bytes, unmade, mutable_data<float>(y),
                                  static_cast<int>(which));
  check_launch("mistake");
  return y;
}

// The build for the CPU defines the operators; the one for a GPU adds its functions to them.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_tensor_copy, m) {
  m.def(
      "load(Tensor x, int[] box, int[] at, int[] every, int swizzle, bool nan, int padding, int "
      "offset, "
      "int capacity) -> Tensor");
  m.def("multicast(Tensor x, int cluster) -> Tensor");
  m.def(
      "store(Tensor(a!) y, Tensor tile, int[] box, int[] at, int[] every, int swizzle, int "
      "padding, int offset, "
      "bool add) -> ()");
  m.def("doubled(Tensor x) -> Tensor");
  m.def("flat(Tensor x) -> Tensor");
  m.def("matmul(Tensor a, Tensor b) -> Tensor");
  m.def("mistake(Tensor x, int which) -> Tensor");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_tensor_copy, CUDA, m) {
  m.impl("load", TORCH_BOX(&load));
  m.impl("multicast", TORCH_BOX(&multicast));
  m.impl("store", TORCH_BOX(&store));
  m.impl("doubled", TORCH_BOX(&doubled));
  m.impl("flat", TORCH_BOX(&flat));
  m.impl("matmul", TORCH_BOX(&matmul));
  m.impl("mistake", TORCH_BOX(&mistake));
}

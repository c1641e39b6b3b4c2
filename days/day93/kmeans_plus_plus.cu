// Day 93: the start of a clustering by k-means++ (Arthur, Vassilvitskii, 2007), drawn on the GPU
//
//   x (n, d) fp32 to K points, int64: the first is any, each further one is point i with the
//   probability Dᵢ² / Σⱼ Dⱼ², where Dᵢ is the distance of point i from the nearest one so far.
//
// n = 2^20, d = 32, K = 16: x is read 15 times, 134 MB each, and D², 4 MB, is read and written.
// 3 operations per feature, so that memory is the limit.
//
//   kmeans_plus_plus   two kernels per centre, and no copy to the host
//
// Run: python run_day.py 93

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/philox.cuh"       // taught in day 33
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day93/parts.cuh"

constexpr int BLOCK = 256;
constexpr int LANES = 8;                   // per point
constexpr int RANGE = 32 * BLOCK / LANES;  // points per block: 32 per group of lanes

// nearest = min(nearest, distance from the newest centre), and their sum in the block's range.
__global__ void __launch_bounds__(BLOCK)
    distances_kernel(const float* x, int64_t n, int64_t d, bool packs, const int64_t* chosen,
                     int64_t count, float* nearest, double* block_sums) {
  __shared__ double sums[BLOCK / LANES];
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const float* const centre = x + chosen[count - 1] * d;
  double sum = 0;
  for (int turn = 0; turn < RANGE / (BLOCK / LANES); ++turn) {
    const int64_t i = int64_t{blockIdx.x} * RANGE + turn * (BLOCK / LANES) + group;
    float distance = 0.0f;
    for (int64_t c = 4 * lane; c < d && i < n; c += 4 * LANES) {
      float4 a = load_part(x + i * d, static_cast<int>(c), static_cast<int>(d), packs);
      float4 b = load_part(centre, static_cast<int>(c), static_cast<int>(d), packs);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float difference = part_of(a, e) - part_of(b, e);
        distance = fmaf(difference, difference, distance);
      }
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
      distance += __shfl_xor_sync(FULL_WARP, distance, half);
    }
    if (i >= n || lane > 0) continue;
    if (count > 1) distance = fminf(distance, nearest[i]);
    nearest[i] = distance;
    sum += distance;
  }
  if (lane == 0) sums[group] = sum;
  __syncthreads();  // all groups' sums are there
  if (threadIdx.x > 0) return;
  for (int i = 1; i < BLOCK / LANES; ++i) sum += sums[i];
  block_sums[blockIdx.x] = sum;
}

// Uniform in [0, 1), with 53 bits.
__device__ double uniform53(uint64_t seed, int64_t number) {
  const uint4 words = philox::random4(seed, static_cast<uint64_t>(number));
  return static_cast<double>((uint64_t{words.x} << 32 | words.y) >> 11) * 0x1p-53;
}

// The first place whose prefix sum is above the target, which is less the sum before it afterwards;
// count where there is none. One warp; each lane adds a contiguous part.
template <typename T>
__device__ int64_t find_prefix(const T* values, int64_t count, double& target) {
  const int lane = threadIdx.x % 32;
  const int64_t part = ceil_div<int64_t>(count, 32);
  const int64_t begin = min(lane * part, count), end = min(begin + part, count);
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += values[i];
  const double through = warp_inclusive_scan(sum);
  const unsigned above = __ballot_sync(FULL_WARP, through > target);
  const int owner = above ? __ffs(above) - 1 : 31;
  double left = target - (through - sum);
  int64_t place = count;
  if (lane == owner) {
    for (place = begin; place < end && !(values[place] > left); ++place) left -= values[place];
  }
  target = __shfl_sync(FULL_WARP, left, owner);
  return __shfl_sync(FULL_WARP, place, owner);
}

// Draws centre `count`. One warp. Where all distances are 0, every point is as likely.
__global__ void draw_kernel(const float* nearest, int64_t n, const double* block_sums,
                            int64_t blocks, uint64_t seed, int64_t count, int64_t* chosen) {
  const double u = uniform53(seed, count);
  double total = 0;
  for (int64_t i = threadIdx.x; i < blocks && count > 0; i += 32) total += block_sums[i];
  total = warp_sum(total);
  int64_t place = min(static_cast<int64_t>(u * static_cast<double>(n)), n - 1);
  if (total > 0) {
    double target = u * total;
    const int64_t block = min(find_prefix(block_sums, blocks, target), blocks - 1);
    const int64_t first = block * RANGE, size = min(int64_t{RANGE}, n - first);
    place = first + min(find_prefix(nearest + first, size, target), size - 1);
  }
  if (threadIdx.x == 0) chosen[count] = place;
}

Tensor kmeans_plus_plus(Tensor x, int64_t clusters, int64_t seed) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  const int64_t n = x.size(0), d = x.size(1);
  STD_TORCH_CHECK(n >= 1 && d <= 1 << 16, "x: expected at least one point, of at most 65536 ",
                  "features, got shape ", shape_of(x));
  STD_TORCH_CHECK(clusters >= 0 && clusters <= 1 << 12, "clusters: expected 0 to 4096, got ",
                  clusters);
  const DeviceGuard guard(x);
  const cudaStream_t stream = current_stream(x);
  const int64_t blocks = ceil_div<int64_t>(n, RANGE);
  Tensor chosen = allocate(x, {clusters}, ScalarType::Long);
  Tensor nearest = allocate(x, {n});
  Tensor sums = allocate(x, {blocks}, ScalarType::Double);
  for (int64_t count = 0; count < clusters; ++count) {
    if (count > 0) {
      distances_kernel<<<grid_size(blocks, "x"), BLOCK, 0, stream>>>(
          data<float>(x), n, d, packs_rows(x), data<int64_t>(chosen), count,
          mutable_data<float>(nearest), mutable_data<double>(sums));
    }
    draw_kernel<<<1, 32, 0, stream>>>(data<float>(nearest), n, data<double>(sums), blocks,
                                      static_cast<uint64_t>(seed), count,
                                      mutable_data<int64_t>(chosen));
    check_launch("kmeans_plus_plus");
  }
  return chosen;
}

// ---------------------------------------------------------------------------------------------

RUNG(day93, kmeans_plus_plus, "(Tensor x, int clusters, int seed) -> Tensor");

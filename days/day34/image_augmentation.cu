// Day 34: a batch of images, augmented for training
//
//   bytes (B, H, W, 3)  →  crop, resize, flip, colours, normalise  →  bf16 (B, 3, height, width)
//
// Each image has its own crop (top, left, height, width), flip, and factors of brightness,
// contrast, saturation and hue, all drawn by the caller. Bytes: 3 per pixel of the crops read, 6
// per pixel of the result written. Operations: about 110 per pixel of the result, on fp32.
//
// Contrast moves every pixel away from the mean grey of its image, which is known only when all
// pixels of the image have been resized and brightened.
//
//   v1 separate     one kernel per operation, fp32 planes between them
//   v2 two_passes   resize once for the mean, and once more for the result
//   v3 one_pass     a cluster of blocks per image keeps its pixels in shared memory
//
// Run: python run_day.py 34

#include "common/cuda/binding.cuh"        // taught in day 6
#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/pack.cuh"           // taught in day 2
#include "common/cuda/ptx.cuh"            // clusters; new here
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "common/cuda/tensor.cuh"         // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"    // taught in day 23

#include <algorithm>

constexpr int WARPS = 8;  // per block; a warp takes whole rows of the result
constexpr int BLOCK = WARPS * 32;

// ---------------------------------------------------------------------------------------------
// The operations on one pixel. Channels lie in [0, 1]; every step that can leave it clamps.

struct Pixel {
  float r, g, b;
};

template <typename F>
__device__ Pixel each(const Pixel& p, F f) {
  return {f(p.r), f(p.g), f(p.b)};
}

// Luma as torchvision weighs it.
__device__ float grey(const Pixel& p) {
  return 0.2989f * p.r + 0.587f * p.g + 0.114f * p.b;
}

__device__ float blend(float value, float other, float ratio) {
  return __saturatef(ratio * value + (1 - ratio) * other);
}

// Moves the hue along its circle by `shift`, in whole circles. With the hue in sixths of the
// circle, a channel is max - (max - min) · clamp(min(k, 4 - k), 0, 1), where k is the distance of
// the hue from the channel's place on the circle.
__device__ Pixel shift_hue(const Pixel& p, float shift) {
  const float most = fmaxf(p.r, fmaxf(p.g, p.b)), range = most - fminf(p.r, fminf(p.g, p.b));
  const float scale = range > 0 ? __fdividef(1.0f, range) : 0.0f;  // grey has no hue
  const float hue = p.r == most   ? (p.g - p.b) * scale
                    : p.g == most ? 2 + (p.b - p.r) * scale
                                  : 4 + (p.r - p.g) * scale;
  const float shifted = hue + 6 * shift;
  const auto channel = [&](float place) {
    const float k = shifted + place;
    const float on_circle = k - 6 * floorf(k * (1.0f / 6));
    return most - range * __saturatef(fminf(on_circle, 4 - on_circle));
  };
  return {channel(5), channel(3), channel(1)};
}

// ---------------------------------------------------------------------------------------------
// Bilinear resize, antialias off: each pixel of the result is a blend of four of the crop. The
// positions of a row are computed once per warp.

struct Shape {
  int images, image_rows, image_cols;  // of the input
  int rows, cols;                      // of the result
};

struct Crop {
  int top, left, height, width;
};

struct Factors {
  float brightness, contrast, saturation, hue;
};

// The arguments of every rung.
struct Batch {
  const uint8_t* images;  // (images, image_rows, image_cols, 3)
  const Crop* crops;      // one per image, as flips and factors
  const bool* flips;
  const Factors* factors;
  const float *mean, *std;  // one per channel
  Shape s;
};

// Two neighbours on an axis of the image, and the weight of the second.
struct Neighbours {
  int first, second;
  float weight;
};

// Of place `i` among `to` in a crop of `length` that begins at `start`, on an axis of `size`
// pixels. A crop that leaves the image repeats the pixels at its edge.
__device__ Neighbours neighbours(int i, int to, int start, int length, int size) {
  const float at = fmaxf((i + 0.5f) * (static_cast<float>(length) / to) - 0.5f, 0.0f);
  const int first = min(static_cast<int>(at), length - 1);
  const auto inside = [&](int place) { return max(0, min(place + start, size - 1)); };
  return {inside(first), inside(min(first + 1, length - 1)), at - first};
}

__device__ Pixel load_pixel(const uint8_t* __restrict__ at) {
  return {static_cast<float>(at[0]), static_cast<float>(at[1]), static_cast<float>(at[2])};
}

// The pixel at column `col` of the result, in a row between `upper` and `lower` of the image.
__device__ Pixel resized(const uint8_t* __restrict__ upper, const uint8_t* __restrict__ lower,
                         float down, int col, bool flip, const Crop& crop, const Shape& s) {
  const Neighbours x =
      neighbours(flip ? s.cols - 1 - col : col, s.cols, crop.left, crop.width, s.image_cols);
  const Pixel a = load_pixel(upper + 3 * x.first), b = load_pixel(upper + 3 * x.second);
  const Pixel c = load_pixel(lower + 3 * x.first), d = load_pixel(lower + 3 * x.second);
  const auto mix = [&](float a, float b, float c, float d) {
    const float above = a + (b - a) * x.weight, below = c + (d - c) * x.weight;
    return (above + (below - above) * down) * (1.0f / 255);
  };
  return {mix(a.r, b.r, c.r, d.r), mix(a.g, b.g, c.g, d.g), mix(a.b, b.b, c.b, d.b)};
}

// Calls f(row, col, pixel) for the resized pixels of rows first, first + step, … below `end`, one
// row per warp. All lanes of a warp must call it.
template <typename F>
__device__ void resized_rows(const Batch& in, int image, int first, int end, int step, F f) {
  const Shape& s = in.s;
  const Crop crop = in.crops[image];
  const bool flip = in.flips[image];
  const uint8_t* bytes = in.images + int64_t{image} * s.image_rows * s.image_cols * 3;
  for (int row = first; row < end; row += step) {
    const Neighbours y = neighbours(row, s.rows, crop.top, crop.height, s.image_rows);
    const uint8_t* upper = bytes + int64_t{y.first} * s.image_cols * 3;
    const uint8_t* lower = bytes + int64_t{y.second} * s.image_cols * 3;
    for (int col = threadIdx.x % 32; col < s.cols; col += 32) {
      f(row, col, resized(upper, lower, y.weight, col, flip, crop, s));
    }
  }
}

// ---------------------------------------------------------------------------------------------
// The colours of an image: brightness before its mean grey is known, the rest after.

__device__ Pixel brightened(const Pixel& p, const Factors& f) {
  return each(p, [&](float v) { return __saturatef(f.brightness * v); });
}

struct Finish {
  Factors factors;
  float mean_grey;
  Pixel mean, scale;  // of the normalisation: (value - mean) · scale

  __device__ Finish(const Batch& in, int image, float mean_grey)
      : factors(in.factors[image]),
        mean_grey(mean_grey),
        mean{in.mean[0], in.mean[1], in.mean[2]},
        scale{1 / in.std[0], 1 / in.std[1], 1 / in.std[2]} {}

  __device__ Pixel contrasted(const Pixel& p) const {
    return each(p, [&](float v) { return blend(v, mean_grey, factors.contrast); });
  }
  __device__ Pixel saturated(const Pixel& p) const {
    const float own = grey(p);
    return each(p, [&](float v) { return blend(v, own, factors.saturation); });
  }
  __device__ Pixel normalised(const Pixel& p) const {
    return {(p.r - mean.r) * scale.r, (p.g - mean.g) * scale.g, (p.b - mean.b) * scale.b};
  }
  __device__ Pixel operator()(const Pixel& p) const {
    return normalised(shift_hue(saturated(contrasted(p)), factors.hue));
  }
};

// The sum over the threads of a block, in all of them; the order of additions is fixed. All threads
// must call it.
__device__ float block_sum(float value) {
  __shared__ float of_warp[32];
  value = warp_sum(value);
  __syncthreads();  // all threads have read the sums of an earlier call
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();  // every warp has stored its sum
  float sum = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) sum += of_warp[w];
  return sum;
}

// ---------------------------------------------------------------------------------------------
// What all launchers check and know.

constexpr int64_t LARGEST = 1 << 15;  // side of a result

Batch checked(const Tensor& images, const Tensor& crops, const Tensor& flips, const Tensor& factors,
              const Tensor& mean, const Tensor& std, int64_t height, int64_t width) {
  check(images, "images").on_gpu().dtype({ScalarType::Byte}).rank(4).size(3, 3).contiguous();
  const int64_t count = images.size(0), rows = images.size(1), cols = images.size(2);
  STD_TORCH_CHECK(count < (1 << 24) && rows < (1 << 24) && cols < (1 << 24),
                  "images: expected sizes below 2^24, got shape ", shape_of(images));
  STD_TORCH_CHECK(rows * cols > 0, "images: expected images with pixels, got ", shape_of(images));
  check(crops, "crops").on_gpu().dtype({ScalarType::Int}).rank(2).size(0, count).size(1, 4);
  check(crops, "crops").contiguous().same_device(images, "images");
  check(flips, "flips").on_gpu().dtype({ScalarType::Bool}).rank(1).size(0, count).contiguous();
  check(flips, "flips").same_device(images, "images");
  check(factors, "factors").on_gpu().dtype({ScalarType::Float}).rank(2).size(0, count).size(1, 4);
  check(factors, "factors").contiguous().same_device(images, "images");
  check(mean, "mean").on_gpu().dtype({ScalarType::Float}).rank(1).size(0, 3).contiguous();
  check(mean, "mean").same_device(images, "images");
  check(std, "std").on_gpu().like(mean, "mean").contiguous();
  STD_TORCH_CHECK(0 <= height && height <= LARGEST, "height: expected 0 to ", LARGEST, ", got ",
                  height);
  STD_TORCH_CHECK(0 <= width && width <= LARGEST, "width: expected 0 to ", LARGEST, ", got ",
                  width);
  const Shape s{static_cast<int>(count), static_cast<int>(rows), static_cast<int>(cols),
                static_cast<int>(height), static_cast<int>(width)};
  return {data<uint8_t>(images),
          data<Crop>(crops),
          data<bool>(flips),
          data<Factors>(factors),
          data<float>(mean),
          data<float>(std),
          s};
}

Tensor make_result(const Tensor& images, const Shape& s) {
  return allocate(images, {s.images, 3, s.rows, s.cols}, ScalarType::BFloat16);
}

constexpr int PARTS = 8;  // blocks per image, which share its rows

// PARTS blocks along x for each image along y; blocks loop over images beyond the limit of a grid.
dim3 parts_grid(const Shape& s) {
  return dim3(PARTS, static_cast<unsigned>(std::min<int64_t>(s.images, max_grid_y())));
}

// The mean of an image's PARTS sums.
__device__ float mean_of_parts(const float* __restrict__ sums, int image, const Shape& s) {
  float sum = 0;
  for (int part = 0; part < PARTS; ++part) sum += sums[image * PARTS + part];
  return sum / (static_cast<float>(s.rows) * s.cols);
}

// ---------------------------------------------------------------------------------------------
// v1: one kernel per operation. Between them lie fp32 planes (B, 3, rows, cols).

__global__ void augment_v1_separate_resize_kernel(Batch in, float* __restrict__ planes) {
  const Shape& s = in.s;
  const int64_t plane = int64_t{s.rows} * s.cols;
  const int first = blockIdx.x * WARPS + threadIdx.x / 32;
  for (int image = blockIdx.y; image < s.images; image += gridDim.y) {
    float* out = planes + image * 3 * plane;
    resized_rows(in, image, first, s.rows, WARPS * PARTS, [&](int row, int col, const Pixel& p) {
      const int64_t i = int64_t{row} * s.cols + col;
      out[i] = p.r;
      out[plane + i] = p.g;
      out[2 * plane + i] = p.b;
    });
  }
}

// Calls f(pixel, place of its red in `planes`) for all pixels of an image that this block has.
template <typename F>
__device__ void pixels_of(const float* planes, int64_t plane, int image, F f) {
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < plane; i += BLOCK * PARTS) {
    const int64_t red = image * 3 * plane + i;
    f(Pixel{planes[red], planes[red + plane], planes[red + 2 * plane]}, red);
  }
}

enum Step { BRIGHTEN, CONTRAST, SATURATE, HUE, NORMALISE };

// One step for all pixels, from planes to planes, which may be the same. sums: of grey, for the
// steps after BRIGHTEN.
template <Step STEP, typename T>
__global__ void augment_v1_separate_step_kernel(Batch in, const float* sums, const float* planes,
                                                T* out) {
  const int64_t plane = int64_t{in.s.rows} * in.s.cols;
  for (int image = blockIdx.y; image < in.s.images; image += gridDim.y) {
    const Finish finish(in, image, STEP == CONTRAST ? mean_of_parts(sums, image, in.s) : 0);
    pixels_of(planes, plane, image, [&](const Pixel& p, int64_t red) {
      const Pixel q = STEP == BRIGHTEN   ? brightened(p, finish.factors)
                      : STEP == CONTRAST ? finish.contrasted(p)
                      : STEP == SATURATE ? finish.saturated(p)
                      : STEP == HUE      ? shift_hue(p, finish.factors.hue)
                                         : finish.normalised(p);
      out[red] = static_cast<T>(q.r);
      out[red + plane] = static_cast<T>(q.g);
      out[red + 2 * plane] = static_cast<T>(q.b);
    });
  }
}

__global__ void augment_v1_separate_sums_kernel(Batch in, const float* __restrict__ planes,
                                                float* __restrict__ sums) {
  for (int image = blockIdx.y; image < in.s.images; image += gridDim.y) {
    float sum = 0;
    pixels_of(planes, int64_t{in.s.rows} * in.s.cols, image,
              [&](const Pixel& p, int64_t) { sum += grey(p); });
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[image * PARTS + blockIdx.x] = sum;
  }
}

Tensor augment_v1_separate(const Tensor& images, const Tensor& crops, const Tensor& flips,
                           const Tensor& factors, const Tensor& mean, const Tensor& std,
                           int64_t height, int64_t width) {
  const Batch in = checked(images, crops, flips, factors, mean, std, height, width);
  const DeviceGuard guard(images);
  Tensor result = make_result(images, in.s);
  if (result.numel() == 0) return result;
  Tensor buffer = allocate(images, {result.numel()}, ScalarType::Float);
  Tensor of_parts = allocate(images, {in.s.images, PARTS}, ScalarType::Float);
  float *planes = mutable_data<float>(buffer), *sums = mutable_data<float>(of_parts);
  const dim3 grid = parts_grid(in.s);
  const cudaStream_t stream = current_stream(images);
  augment_v1_separate_resize_kernel<<<grid, BLOCK, 0, stream>>>(in, planes);
  augment_v1_separate_step_kernel<BRIGHTEN><<<grid, BLOCK, 0, stream>>>(in, sums, planes, planes);
  augment_v1_separate_sums_kernel<<<grid, BLOCK, 0, stream>>>(in, planes, sums);
  augment_v1_separate_step_kernel<CONTRAST><<<grid, BLOCK, 0, stream>>>(in, sums, planes, planes);
  augment_v1_separate_step_kernel<SATURATE><<<grid, BLOCK, 0, stream>>>(in, sums, planes, planes);
  augment_v1_separate_step_kernel<HUE><<<grid, BLOCK, 0, stream>>>(in, sums, planes, planes);
  augment_v1_separate_step_kernel<NORMALISE>
      <<<grid, BLOCK, 0, stream>>>(in, sums, planes, mutable_data<__nv_bfloat16>(result));
  check_launch("augment_v1_separate");
  return result;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: pixels stay in registers. The mean needs a pass of its own, which resizes and
// brightens like the second, and keeps nothing but the sum.

__global__ void augment_v2_two_passes_sums_kernel(Batch in, float* __restrict__ sums) {
  const int first = blockIdx.x * WARPS + threadIdx.x / 32;
  for (int image = blockIdx.y; image < in.s.images; image += gridDim.y) {
    const Factors factors = in.factors[image];
    float sum = 0;
    resized_rows(in, image, first, in.s.rows, WARPS * PARTS,
                 [&](int, int, const Pixel& p) { sum += grey(brightened(p, factors)); });
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[image * PARTS + blockIdx.x] = sum;
  }
}

__global__ void augment_v2_two_passes_kernel(Batch in, const float* __restrict__ sums,
                                             __nv_bfloat16* __restrict__ out) {
  const int64_t plane = int64_t{in.s.rows} * in.s.cols;
  const int first = blockIdx.x * WARPS + threadIdx.x / 32;
  for (int image = blockIdx.y; image < in.s.images; image += gridDim.y) {
    const Finish finish(in, image, mean_of_parts(sums, image, in.s));
    __nv_bfloat16* red = out + image * 3 * plane;
    resized_rows(in, image, first, in.s.rows, WARPS * PARTS, [&](int row, int col, const Pixel& p) {
      const int64_t i = int64_t{row} * in.s.cols + col;
      const Pixel q = finish(brightened(p, finish.factors));
      red[i] = static_cast<__nv_bfloat16>(q.r);
      red[plane + i] = static_cast<__nv_bfloat16>(q.g);
      red[2 * plane + i] = static_cast<__nv_bfloat16>(q.b);
    });
  }
}

Tensor augment_v2_two_passes(const Tensor& images, const Tensor& crops, const Tensor& flips,
                             const Tensor& factors, const Tensor& mean, const Tensor& std,
                             int64_t height, int64_t width) {
  const Batch in = checked(images, crops, flips, factors, mean, std, height, width);
  const DeviceGuard guard(images);
  Tensor result = make_result(images, in.s);
  if (result.numel() == 0) return result;
  Tensor sums = allocate(images, {in.s.images, PARTS}, ScalarType::Float);
  const dim3 grid = parts_grid(in.s);
  const cudaStream_t stream = current_stream(images);
  augment_v2_two_passes_sums_kernel<<<grid, BLOCK, 0, stream>>>(in, mutable_data<float>(sums));
  augment_v2_two_passes_kernel<<<grid, BLOCK, 0, stream>>>(in, data<float>(sums),
                                                           mutable_data<__nv_bfloat16>(result));
  check_launch("augment_v2_two_passes");
  return result;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: the PARTS blocks of an image are a cluster: they run at the same time and
// reach each other's shared memory. Each keeps its brightened pixels there, adds its sum to those
// of the others, and goes on with its own pixels. Every byte of a crop is loaded once.

constexpr int MAX_WARPS = 16;

// `part` rows of the result per block. N: neighbouring pixels per thread and store.
template <int N>
__global__ void __launch_bounds__(MAX_WARPS * 32) __cluster_dims__(PARTS, 1, 1)
    augment_v3_one_pass_kernel(Batch in, int part, __nv_bfloat16* __restrict__ out) {
  extern __shared__ __align__(128) float4 buffer[];  // (3, part · cols), fp32
  __shared__ float sums[PARTS];                      // of grey, of each block of the cluster
  float* pixels = reinterpret_cast<float*>(buffer);
  const int rank = static_cast<int>(ptx::cluster_block_rank()), image = blockIdx.x / PARTS;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, room = part * in.s.cols;
  const int begin = rank * part, end = min(begin + part, in.s.rows);

  ptx::cluster_arrive_relaxed();  // this block has begun: others may store in its shared memory
  const Factors factors = in.factors[image];
  float sum = 0;
  resized_rows(in, image, begin + warp, end, warps, [&](int row, int col, const Pixel& p) {
    const Pixel q = brightened(p, factors);
    const int i = (row - begin) * in.s.cols + col;
    pixels[i] = q.r;
    pixels[room + i] = q.g;
    pixels[2 * room + i] = q.b;
    sum += grey(q);
  });
  sum = block_sum(sum);
  ptx::cluster_wait();  // all blocks have begun
  if (threadIdx.x < PARTS) *ptx::map_to_rank(&sums[rank], threadIdx.x) = sum;
  ptx::cluster_sync();  // all sums are stored; from here on blocks use their own memory only

  float total = 0;
  for (int other = 0; other < PARTS; ++other) total += sums[other];
  const Finish finish(in, image, total / (static_cast<float>(in.s.rows) * in.s.cols));
  const int64_t plane = int64_t{in.s.rows} * in.s.cols;
  __nv_bfloat16* red = out + image * 3 * plane + int64_t{begin} * in.s.cols;
  struct alignas(2 * N) Stored {
    __nv_bfloat16 at[N];
  };
  struct alignas(4 * N) Kept {
    float at[N];
  };
  for (int i = threadIdx.x * N; i < (end - begin) * in.s.cols; i += blockDim.x * N) {
    Kept kept[3];
    for (int c = 0; c < 3; ++c) kept[c] = *reinterpret_cast<const Kept*>(pixels + c * room + i);
    Stored stored[3];
    for (int k = 0; k < N; ++k) {
      const Pixel q = finish({kept[0].at[k], kept[1].at[k], kept[2].at[k]});
      stored[0].at[k] = static_cast<__nv_bfloat16>(q.r);
      stored[1].at[k] = static_cast<__nv_bfloat16>(q.g);
      stored[2].at[k] = static_cast<__nv_bfloat16>(q.b);
    }
    for (int c = 0; c < 3; ++c) *reinterpret_cast<Stored*>(red + c * plane + i) = stored[c];
  }
}

Tensor augment_v3_one_pass(const Tensor& images, const Tensor& crops, const Tensor& flips,
                           const Tensor& factors, const Tensor& mean, const Tensor& std,
                           int64_t height, int64_t width) {
  const Batch in = checked(images, crops, flips, factors, mean, std, height, width);
  const DeviceGuard guard(images);
  const int part = ceil_div(in.s.rows, PARTS);
  const int64_t bytes = int64_t{part} * in.s.cols * 3 * sizeof(float);
  if (!has_capability(9, 0) || bytes > shared_limit(images) - 1024) {  // 1 KB: sums
    fell_back("augment_v2_two_passes", "a card before 9.0, or images beyond its shared memory");
    return augment_v2_two_passes(images, crops, flips, factors, mean, std, height, width);
  }
  Tensor result = make_result(images, in.s);
  if (result.numel() == 0) return result;
  // As many warps as let all have the same number of rows.
  const int warps = ceil_div(part, ceil_div(part, MAX_WARPS));
  const auto kernel =
      in.s.cols % 4 == 0 ? augment_v3_one_pass_kernel<4> : augment_v3_one_pass_kernel<1>;
  allow_shared(kernel, bytes);
  kernel<<<grid_size(int64_t{in.s.images} * PARTS, "images"), warps * 32, bytes,
           current_stream(images)>>>(in, part, mutable_data<__nv_bfloat16>(result));
  check_launch("augment_v3_one_pass");
  return result;
}

// ---------------------------------------------------------------------------------------------

RUNG(day34, augment_v1_separate,
     "(Tensor images, Tensor crops, Tensor flips, Tensor factors, Tensor mean, Tensor std, "
     "int height, int width) -> Tensor");
RUNG(day34, augment_v2_two_passes,
     "(Tensor images, Tensor crops, Tensor flips, Tensor factors, Tensor mean, Tensor std, "
     "int height, int width) -> Tensor");
RUNG(day34, augment_v3_one_pass,
     "(Tensor images, Tensor crops, Tensor flips, Tensor factors, Tensor mean, Tensor std, "
     "int height, int width) -> Tensor");

// Day 92: 3D Gaussian splatting, a picture of a scene made of many soft ellipsoids
//
//   q = level - (a dx² + b dx dy + c dy²)       (dx, dy): from a splat's centre to a pixel's
//   α = min(0.99, 2^q / 255) where q ≥ 0, else 0       2^level = 255 · opacity
//   image = Σ w colour, w = min(α t, t - 10⁻⁴), then t -= w      from front to back, t = 1 at first
//
//   splats: (n, 8)     depths: (n)     colours: (n, 3)     image: (height, width, 4), the last Σ w
//
// Operations: about 20 for each pixel in a splat's ellipse. Bytes: 48 per splat, 16 per pixel. A
// list entry costs 36 bytes to sort by tile, and 48 to read in each block that has it.
//
//   v1 all      one thread per pixel goes through all splats in order of depth
//   v2 lists    a list per tile of 16 × 16 pixels: pairs of splat and tile, sorted by tile
//   v3 staged   a block loads 256 records of its list into shared memory, and stops as one
//   v4 ellipse  a tile that the box touches and the ellipse does not gets no entry
//   v5 rows     v4 with four pixels of a row per thread
//
//   lists, v1 wide_keys    pairs sorted by keys of 64 bits, of tile and depth
//   lists, v2 depth_first  splats sorted by depth, then their pairs by tile, which is stable
//
// Projection is in project.cu, lists are in tile_lists.cuh. Run: python run_day.py 92

#include "common/cuda/binding.cuh"   // taught in day 6
#include "common/cuda/ptx/exp2.cuh"  // taught in day 20

#include "days/day92/tile_lists.cuh"

constexpr int PIXELS = SIDE * SIDE;  // of a tile
constexpr float MAX_ALPHA = 0.99f;
constexpr float LEAST = 1e-4f;  // of t: what is behind has no weight

// A pixel's colour so far, and what of the light from behind still passes.
struct Pixel {
  float red = 0.0f, green = 0.0f, blue = 0.0f, t = 1.0f;
  __device__ bool done() const { return t <= LEAST; }
};

// What a splat's q has in common along a row of pixels.
struct Row {
  float b_dy, rest;
};

__device__ Row row_of(const float4& shape, const float4& level, float y) {
  const float dy = y - shape.y;
  return {shape.w * dy, fmaf(-dy, level.x * dy, level.y)};
}

// The exponent q at a pixel of the row.
__device__ float exponent(const float4& shape, const Row& row, float x) {
  const float dx = x - shape.x;
  return fmaf(-dx, fmaf(shape.z, dx, row.b_dy), row.rest);
}

// Puts a splat behind what the pixel has. q ≥ 0. Rounding may bring q above the level, and a form
// that is negative somewhere always does: there, alpha is the opacity.
__device__ void blend(Pixel& pixel, float q, const float4& level, float blue) {
  const float alpha = fminf(MAX_ALPHA, ptx::exp2_approx(fminf(q, level.y)) * (1.0f / 255.0f));
  const float most = pixel.t - LEAST;
  const float w = fminf(alpha * pixel.t, most);
  pixel.red = fmaf(w, level.z, pixel.red);
  pixel.green = fmaf(w, level.w, pixel.green);
  pixel.blue = fmaf(w, blue, pixel.blue);
  pixel.t = w < most ? pixel.t - w : LEAST;
}

__device__ void store(float4* image, const Canvas& canvas, int x, int y, const Pixel& pixel) {
  if (x >= canvas.width || y >= canvas.height) return;
  image[int64_t{y} * canvas.width + x] =
      make_float4(pixel.red, pixel.green, pixel.blue, 1.0f - pixel.t);
}

// Pixel t of the block's tile, row by row.
__device__ int2 pixel_of(const Canvas& canvas, int t) {
  const int tile_x = blockIdx.x % canvas.columns, tile_y = blockIdx.x / canvas.columns;
  return make_int2(tile_x * SIDE + t % SIDE, tile_y * SIDE + t / SIDE);
}

// Checks the arguments, sorts by depth and calls draw(records, image).
template <typename Draw>
Tensor picture(const Tensor& splats, const Tensor& depths, const Tensor& colours, int64_t width,
               int64_t height, Draw&& draw) {
  const Canvas canvas = check_splats(splats, depths, width, height);
  check(colours, "colours").on_gpu().dtype({ScalarType::Float}).rank(2).size(0, splats.size(0));
  check(colours, "colours").size(1, 3).contiguous().same_device(splats, "splats");
  const DeviceGuard guard(splats);
  const Tensor order = sorted_by_digits<float>(depths, nullptr, PASSES<float>).ids;
  const Records records = records_of(splats, &colours, &order);
  Tensor image = allocate(splats, {height, width, 4});
  draw(records, canvas, reinterpret_cast<float4*>(mutable_data<float>(image)));
  return image;
}

// ---------------------------------------------------------------------------------------------
// v1: every thread goes through all splats. A splat is drawn in the tiles that its box touches: the
// test is the same in all threads of a block.

__global__ void __launch_bounds__(PIXELS)
    splat_v1_all_kernel(const Record* __restrict__ records, float4* __restrict__ image, int64_t n,
                        const Canvas canvas) {
  const int tile_x = blockIdx.x % canvas.columns, tile_y = blockIdx.x / canvas.columns;
  const auto [x, y] = pixel_of(canvas, threadIdx.x);
  Pixel pixel;
  for (int64_t i = 0; i < n && !pixel.done(); ++i) {
    const Record splat = records[i];
    const Box box = box_of(splat, canvas);
    const int column = tile_x - box.x, row = tile_y - box.y;
    if (column < 0 || column >= box.columns || row < 0 || row >= box.rows) continue;
    const float q = exponent(splat.shape, row_of(splat.shape, splat.level, y + 0.5f), x + 0.5f);
    if (q >= 0.0f) blend(pixel, q, splat.level, splat.rest.x);
  }
  store(image, canvas, x, y, pixel);
}

Tensor splat_v1_all(const Tensor& splats, const Tensor& depths, const Tensor& colours,
                    int64_t width, int64_t height) {
  return picture(splats, depths, colours, width, height,
                 [&](const Records& records, const Canvas& canvas, float4* image) {
                   splat_v1_all_kernel<<<canvas.tiles(), PIXELS, 0, current_stream(splats)>>>(
                       records.data(), image, records.n, canvas);
                   check_launch("splat_v1_all");
                 });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a pixel goes through the list of its tile.

__global__ void __launch_bounds__(PIXELS)
    splat_v2_lists_kernel(const Record* __restrict__ records, const int* __restrict__ ids,
                          const int* __restrict__ begins, float4* __restrict__ image,
                          const Canvas canvas) {
  const auto [x, y] = pixel_of(canvas, threadIdx.x);
  const int end = begins[blockIdx.x + 1];
  Pixel pixel;
  for (int i = begins[blockIdx.x]; i < end && !pixel.done(); ++i) {
    const Record& splat = records[ids[i]];
    const float4 shape = splat.shape, level = splat.level;
    const float q = exponent(shape, row_of(shape, level, y + 0.5f), x + 0.5f);
    if (q >= 0.0f) blend(pixel, q, level, splat.rest.x);
  }
  store(image, canvas, x, y, pixel);
}

// Makes the lists and launches `kernel` with a block of `threads` per tile.
template <bool ELLIPSE, typename Kernel>
Tensor picture_by_lists(const Tensor& splats, const Tensor& depths, const Tensor& colours,
                        int64_t width, int64_t height, Kernel kernel, int threads,
                        const char* name) {
  return picture(splats, depths, colours, width, height,
                 [&](const Records& records, const Canvas& canvas, float4* image) {
                   const Lists lists = lists_of<ELLIPSE, int32_t>(records, depths, nullptr, canvas);
                   kernel<<<canvas.tiles(), threads, 0, current_stream(splats)>>>(
                       records.data(), data<int>(lists.ids), data<int>(lists.begins), image,
                       canvas);
                   check_launch(name);
                 });
}

Tensor splat_v2_lists(const Tensor& splats, const Tensor& depths, const Tensor& colours,
                      int64_t width, int64_t height) {
  return picture_by_lists<false>(splats, depths, colours, width, height, splat_v2_lists_kernel,
                                 PIXELS, "splat_v2_lists");
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a record is loaded once per block, not once per warp, and 256 loads are in flight
// before the first is needed. The block ends when all of its pixels are done.

__global__ void __launch_bounds__(PIXELS)
    splat_v3_staged_kernel(const Record* __restrict__ records, const int* __restrict__ ids,
                           const int* __restrict__ begins, float4* __restrict__ image,
                           const Canvas canvas) {
  __shared__ Record staged[PIXELS];
  const auto [x, y] = pixel_of(canvas, threadIdx.x);
  const int end = begins[blockIdx.x + 1];
  Pixel pixel;
  for (int first = begins[blockIdx.x]; first < end; first += PIXELS) {
    const int count = end - first < PIXELS ? end - first : PIXELS;
    if (threadIdx.x < count) staged[threadIdx.x] = records[ids[first + threadIdx.x]];
    __syncthreads();  // records are staged before they are read
    for (int i = 0; i < count && !pixel.done(); ++i) {
      const float4 shape = staged[i].shape, level = staged[i].level;
      const float q = exponent(shape, row_of(shape, level, y + 0.5f), x + 0.5f);
      if (q >= 0.0f) blend(pixel, q, level, staged[i].rest.x);
    }
    if (__syncthreads_and(pixel.done())) break;  // also: all are read before others are staged
  }
  store(image, canvas, x, y, pixel);
}

Tensor splat_v3_staged(const Tensor& splats, const Tensor& depths, const Tensor& colours,
                       int64_t width, int64_t height) {
  return picture_by_lists<false>(splats, depths, colours, width, height, splat_v3_staged_kernel,
                                 PIXELS, "splat_v3_staged");
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: shorter lists. An ellipse fills 79 % of its box, a thin one across it much less;
// `touches` finds the tiles where it has no pixel. The kernel is that of v3.

Tensor splat_v4_ellipse(const Tensor& splats, const Tensor& depths, const Tensor& colours,
                        int64_t width, int64_t height) {
  return picture_by_lists<true>(splats, depths, colours, width, height, splat_v3_staged_kernel,
                                PIXELS, "splat_v4_ellipse");
}

// ---------------------------------------------------------------------------------------------
// v5 against v4: a thread has four neighbouring pixels of a row. A record is read from shared
// memory once for four pixels, and what only depends on dy is computed once.

constexpr int QUAD = 4;                                             // pixels per thread
constexpr int GROUP = PIXELS / QUAD;                                // threads per block
constexpr float NOTHING = -std::numeric_limits<float>::infinity();  // q where nothing is drawn
constexpr int BATCH = 2 * GROUP;  // records in shared memory: 6 KB per block

__global__ void __launch_bounds__(GROUP)
    splat_v5_rows_kernel(const Record* __restrict__ records, const int* __restrict__ ids,
                         const int* __restrict__ begins, float4* __restrict__ image,
                         const Canvas canvas) {
  __shared__ Record staged[BATCH];
  const auto [x, y] = pixel_of(canvas, QUAD * threadIdx.x);
  const float left = x + 0.5f;
  const int end = begins[blockIdx.x + 1];
  Pixel pixels[QUAD];
  bool done = false;
  for (int first = begins[blockIdx.x]; first < end; first += BATCH) {
    const int count = end - first < BATCH ? end - first : BATCH;
#pragma unroll
    for (int k = 0; k < BATCH; k += GROUP) {
      const int i = k + threadIdx.x;
      if (i < count) staged[i] = records[ids[first + i]];
    }
    __syncthreads();  // records are staged before they are read
    for (int i = 0; i < count && !done; ++i) {
      const float4 shape = staged[i].shape, level = staged[i].level;
      const Row row = row_of(shape, level, y + 0.5f);
      float q[QUAD], highest = -1.0f;
#pragma unroll
      for (int k = 0; k < QUAD; ++k) {
        q[k] = exponent(shape, row, left + k);
        highest = fmaxf(highest, q[k]);
      }
      if (!(highest >= 0.0f)) continue;
      const float blue = staged[i].rest.x;
      done = true;
#pragma unroll
      for (int k = 0; k < QUAD; ++k) {
        // Without a branch: 2^-inf is 0, and so is the weight. At a pixel that is done it is, too.
        blend(pixels[k], q[k] >= 0.0f ? q[k] : NOTHING, level, blue);
        done = done && pixels[k].done();
      }
    }
    if (__syncthreads_and(done)) break;  // also: all are read before others are staged
  }
#pragma unroll
  for (int k = 0; k < QUAD; ++k) store(image, canvas, x + k, y, pixels[k]);
}

Tensor splat_v5_rows(const Tensor& splats, const Tensor& depths, const Tensor& colours,
                     int64_t width, int64_t height) {
  return picture_by_lists<true>(splats, depths, colours, width, height, splat_v5_rows_kernel, GROUP,
                                "splat_v5_rows");
}

// ---------------------------------------------------------------------------------------------
// The lists alone. v1 against v2: keys of 64 bits, in six passes for 8160 tiles; v2 sorts the
// depths in four passes, and pairs in two.

std::tuple<Tensor, Tensor> lists_v1_wide_keys(const Tensor& splats, const Tensor& depths,
                                              int64_t width, int64_t height) {
  const Canvas canvas = check_splats(splats, depths, width, height);
  const DeviceGuard guard(splats);
  const Records records = records_of(splats, nullptr, nullptr);
  const Lists lists = lists_of<false, int64_t>(records, depths, nullptr, canvas);
  return {lists.ids, lists.begins};
}

template <bool ELLIPSE>
std::tuple<Tensor, Tensor> lists_depth_first(const Tensor& splats, const Tensor& depths,
                                             int64_t width, int64_t height) {
  const Canvas canvas = check_splats(splats, depths, width, height);
  const DeviceGuard guard(splats);
  const Tensor order = sorted_by_digits<float>(depths, nullptr, PASSES<float>).ids;
  const Records records = records_of(splats, nullptr, &order);
  const Lists lists = lists_of<ELLIPSE, int32_t>(records, depths, &order, canvas);
  return {lists.ids, lists.begins};
}

std::tuple<Tensor, Tensor> lists_v2_depth_first(const Tensor& splats, const Tensor& depths,
                                                int64_t width, int64_t height) {
  return lists_depth_first<false>(splats, depths, width, height);
}

std::tuple<Tensor, Tensor> lists_v3_ellipse(const Tensor& splats, const Tensor& depths,
                                            int64_t width, int64_t height) {
  return lists_depth_first<true>(splats, depths, width, height);
}

// ---------------------------------------------------------------------------------------------

#define PICTURE "(Tensor splats, Tensor depths, Tensor colours, int width, int height) -> Tensor"
#define LISTS "(Tensor splats, Tensor depths, int width, int height) -> (Tensor, Tensor)"
RUNG(day92, splat_v1_all, PICTURE);
RUNG(day92, splat_v2_lists, PICTURE);
RUNG(day92, splat_v3_staged, PICTURE);
RUNG(day92, splat_v4_ellipse, PICTURE);
RUNG(day92, splat_v5_rows, PICTURE);
RUNG(day92, lists_v1_wide_keys, LISTS);
RUNG(day92, lists_v2_depth_first, LISTS);
RUNG(day92, lists_v3_ellipse, LISTS);

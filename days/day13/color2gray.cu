// Day 13: a colour image, converted to grey
//
//   Y[p] = 0.299 · R[p] + 0.587 · G[p] + 0.114 · B[p]           rgb: (H, W, 3), Y: (H, W)
//
// All data is uint8 and all arithmetic is in integers, so results are exact. Bytes per pixel: 3
// read, 1 written. Operations per pixel: 6.
//
//   v1 thread_per_pixel   one thread per pixel: four instructions move four bytes
//   v2 four_pixels        3 words in, 1 word out per thread: four instructions move 16 bytes
//   v3 sixteen_pixels     3 × 16 bytes in, 16 bytes out per thread
//
// Run: python run_day.py 13

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 256;

// ---------------------------------------------------------------------------------------------
// grey v1: one thread per pixel. A warp reads 96 contiguous bytes, but in three instructions, each
// of which reads every third byte.

// The luma of BT.601 in fixed point with 16 fractional bits. The weights are 0.299, 0.587 and 0.114
// times 2^16, rounded so that they add up to 2^16; adding 2^15 makes the shift round to nearest.
// The sum is at most 255 · 2^16 + 2^15, which fits in 24 bits.
__device__ uint32_t luma(uint32_t r, uint32_t g, uint32_t b) {
  return (19595 * r + 38470 * g + 7471 * b + 32768) >> 16;
}

__global__ void grey_v1_thread_per_pixel_kernel(const uint8_t* __restrict__ rgb,
                                                uint8_t* __restrict__ grey, int64_t pixels) {
  const int64_t p = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (p < pixels) grey[p] = luma(rgb[3 * p], rgb[3 * p + 1], rgb[3 * p + 2]);
}

// Checks an image (H, W, 3) of bytes.
void check_image(const Tensor& image) {
  check(image, "image").on_gpu().dtype({ScalarType::Byte}).rank(3).contiguous();
  check(image, "image").size(2, 3);
}

Tensor grey_v1_thread_per_pixel(const Tensor& image) {
  check_image(image);
  const DeviceGuard guard(image);
  Tensor grey = allocate(image, {image.size(0), image.size(1)});
  const int64_t pixels = grey.numel();
  if (pixels == 0) return grey;  // a grid of no blocks is an error
  const unsigned grid = grid_size(ceil_div<int64_t>(pixels, BLOCK), "image");
  grey_v1_thread_per_pixel_kernel<<<grid, BLOCK, 0, current_stream(image)>>>(
      data<uint8_t>(image), mutable_data<uint8_t>(grey), pixels);
  check_launch("grey_v1_thread_per_pixel");
  return grey;
}

// ---------------------------------------------------------------------------------------------
// grey v2 against v1: 4 pixels of 3 bytes are 12 bytes, three whole words. A thread loads three
// words, extracts the bytes in registers, and stores 4 grey bytes as one word.

// Byte k, [0, 4), of a word. NVIDIA GPUs are little-endian: byte 0, the lowest, is first in memory.
__device__ uint32_t byte_of(uint32_t word, int k) {
  return (word >> (8 * k)) & 255;
}

// Four grey pixels as a word, from RGBR GBRG BRGB.
__device__ uint32_t luma_of_four(uint32_t rgbr, uint32_t gbrg, uint32_t brgb) {
  const uint32_t y0 = luma(byte_of(rgbr, 0), byte_of(rgbr, 1), byte_of(rgbr, 2));
  const uint32_t y1 = luma(byte_of(rgbr, 3), byte_of(gbrg, 0), byte_of(gbrg, 1));
  const uint32_t y2 = luma(byte_of(gbrg, 2), byte_of(gbrg, 3), byte_of(brgb, 0));
  const uint32_t y3 = luma(byte_of(brgb, 1), byte_of(brgb, 2), byte_of(brgb, 3));
  return y0 | y1 << 8 | y2 << 16 | y3 << 24;
}

__global__ void grey_v2_four_pixels_kernel(const uint8_t* __restrict__ rgb,
                                           uint8_t* __restrict__ grey, int64_t pixels) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t groups = pixels / 4;
  if (i < groups) {
    const auto* in = reinterpret_cast<const uint32_t*>(rgb) + 3 * i;
    reinterpret_cast<uint32_t*>(grey)[i] = luma_of_four(in[0], in[1], in[2]);
  }
  const int64_t p = groups * 4 + i;  // [4 · groups, pixels): fewer than 4 pixels are left
  if (p < pixels) grey[p] = luma(rgb[3 * p], rgb[3 * p + 1], rgb[3 * p + 2]);
}

Tensor grey_v2_four_pixels(const Tensor& image) {
  check_image(image);
  if (!is_aligned(image, 4)) {
    fell_back("grey_v1_thread_per_pixel", "image is not aligned to 4 bytes");  // e.g. a slice
    return grey_v1_thread_per_pixel(image);
  }
  const DeviceGuard guard(image);
  Tensor grey = allocate(image, {image.size(0), image.size(1)});
  const int64_t pixels = grey.numel();
  if (pixels == 0) return grey;
  // The last fewer than 4 pixels need 3 threads; one block has them even without a whole group.
  const unsigned grid = grid_size(ceil_div<int64_t>(pixels, 4 * BLOCK), "image");
  grey_v2_four_pixels_kernel<<<grid, BLOCK, 0, current_stream(image)>>>(
      data<uint8_t>(image), mutable_data<uint8_t>(grey), pixels);
  check_launch("grey_v2_four_pixels");
  return grey;
}

// ---------------------------------------------------------------------------------------------
// grey v3 against v2: loads of 16 bytes instead of 4, so 48 bytes in flight per thread, not 12.

__global__ void grey_v3_sixteen_pixels_kernel(const uint8_t* __restrict__ rgb,
                                              uint8_t* __restrict__ grey, int64_t pixels) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t groups = pixels / 16;
  if (i < groups) {
    const auto* in = reinterpret_cast<const uint4*>(rgb) + 3 * i;
    const uint4 a = in[0], b = in[1], c = in[2];
    reinterpret_cast<uint4*>(grey)[i] =
        make_uint4(luma_of_four(a.x, a.y, a.z), luma_of_four(a.w, b.x, b.y),
                   luma_of_four(b.z, b.w, c.x), luma_of_four(c.y, c.z, c.w));
  }
  const int64_t p = groups * 16 + i;  // [16 · groups, pixels): fewer than 16 pixels are left
  if (p < pixels) grey[p] = luma(rgb[3 * p], rgb[3 * p + 1], rgb[3 * p + 2]);
}

Tensor grey_v3_sixteen_pixels(const Tensor& image) {
  check_image(image);
  if (!is_aligned(image, 16)) {
    fell_back("grey_v2_four_pixels", "image is not aligned to 16 bytes");
    return grey_v2_four_pixels(image);
  }
  const DeviceGuard guard(image);
  Tensor grey = allocate(image, {image.size(0), image.size(1)});
  const int64_t pixels = grey.numel();
  if (pixels == 0) return grey;
  const unsigned grid = grid_size(ceil_div<int64_t>(pixels, 16 * BLOCK), "image");
  grey_v3_sixteen_pixels_kernel<<<grid, BLOCK, 0, current_stream(image)>>>(
      data<uint8_t>(image), mutable_data<uint8_t>(grey), pixels);
  check_launch("grey_v3_sixteen_pixels");
  return grey;
}

// ---------------------------------------------------------------------------------------------

RUNG(day13, grey_v1_thread_per_pixel, "(Tensor image) -> Tensor");
RUNG(day13, grey_v2_four_pixels, "(Tensor image) -> Tensor");
RUNG(day13, grey_v3_sixteen_pixels, "(Tensor image) -> Tensor");

// Day 70: animated colour patterns
//
//   phase_k = fx_k · x + fy_k · y + ft_k · t + f0_k  mod 2^32      waves: int32 (4, 4), k: [0, 4)
//   theta   = π/4 · sum_k sin(2π · phase_k / 2^32)
//   out     = floor(128 + 127.5 · cos(theta + 2π · palette_c / 2^32))       palette: int32 (3,)
//
// out: (frames, height, width, 3) uint8. Phases are exact, since uint32 wraps where a turn ends.
// Bytes per pixel: 3 written, none read. By the formula: 4 sines and 3 cosines per pixel.
//
//   v1 sinf          one thread per pixel, 3 stores of one byte, sinf and cosf
//   v2 words         four pixels per thread, 3 stores of a word, the hardware's sine: 7 per pixel
//   v3 angle_sums    tables of sines and cosines in shared memory: 2 per pixel
//   v4 staged        16-byte stores of whole sectors, through shared memory
//
// patterns_numba.py has a twin in Numba. Run: python run_day.py 70

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

constexpr int BLOCK = 256;   // threads
constexpr int WAVES = 4;     // sines per pixel
constexpr int CHANNELS = 3;  // red, green, blue
constexpr int PIXELS = 4;    // per thread at a time, from v2 on: 12 bytes, three words
constexpr int WORDS = PIXELS * CHANNELS / 4;

constexpr float RADIANS = 6.2831853071795865f / 4294967296.0f;  // per 2^-32 turns
constexpr float QUARTER_PI = 0.78539816339744831f;              // so that |theta| <= π
constexpr float SWING = 127.5f;                                 // of a channel, around 128

// ---------------------------------------------------------------------------------------------
// What all kernels share.

// A row of `waves`: turns / 2^32 per pixel, per row, per frame, and of the first pixel.
struct Wave {
  uint32_t x, y, t, start;

  // Products and sums wrap as whole turns do.
  __device__ uint32_t phase(int column, int row, int frame) const {
    return x * column + y * row + t * frame + start;
  }
};

struct Movie {
  const Wave* waves;        // [0, WAVES)
  const uint32_t* palette;  // [0, CHANNELS): turns / 2^32
  uint8_t* out;             // (frames, height, width, CHANNELS)
  int frames, height, width;

  // The first byte of a pixel.
  __device__ uint8_t* at(int frame, int row, int column) const {
    return out + ((int64_t{frame} * height + row) * width + column) * CHANNELS;
  }
};

// In radians, [-π, π): as int32, turns above one half become negative.
__device__ float angle(uint32_t turns) {
  return static_cast<float>(static_cast<int32_t>(turns)) * RADIANS;
}

constexpr int64_t MOST = 65536;  // frames, rows or columns; 2^48 pixels are more than any memory

int checked(int64_t count, const char* name) {
  STD_TORCH_CHECK(0 <= count && count <= MOST, name, ": expected 0 to ", MOST, ", got ", count);
  return static_cast<int>(count);
}

// Checks the arguments, makes the output and calls launch(movie, stream) unless it is empty.
template <typename Launch>
Tensor draw(const Tensor& waves, const Tensor& palette, int64_t frames, int64_t height,
            int64_t width, Launch&& launch) {
  check(waves, "waves").on_gpu().dtype({ScalarType::Int}).rank(2).contiguous();
  check(waves, "waves").size(0, WAVES).size(1, 4);
  check(palette, "palette").on_gpu().dtype({ScalarType::Int}).rank(1).contiguous();
  check(palette, "palette").size(0, CHANNELS).same_device(waves, "waves");
  Movie movie = {nullptr,
                 nullptr,
                 nullptr,
                 checked(frames, "frames"),
                 checked(height, "height"),
                 checked(width, "width")};
  const DeviceGuard guard(waves);
  Tensor out = allocate(waves, {frames, height, width, CHANNELS}, ScalarType::Byte);
  if (out.numel() == 0) return out;
  movie.waves = data<Wave>(waves);
  movie.palette = data<uint32_t>(palette);
  movie.out = mutable_data<uint8_t>(out);
  launch(movie, current_stream(waves));
  check_launch("draw");
  return out;
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per pixel. sinf and cosf are within 2 ulp for all arguments, and take about 20
// instructions each.

// The channels of a pixel, [0, 255]: 128 + 127.5 · cos(…) is within [0.5, 255.5]. FAST: by the
// special function unit, one instruction behind a multiplication.
template <bool FAST>
__device__ void pixel(uint32_t (&rgb)[CHANNELS], const Movie& p, int x, int y, int t) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < WAVES; ++k) {
    const float wave = angle(p.waves[k].phase(x, y, t));
    sum += FAST ? __sinf(wave) : sinf(wave);
  }
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
    const float shade = sum * QUARTER_PI + angle(p.palette[c]);
    rgb[c] = static_cast<uint32_t>(128.0f + SWING * (FAST ? __cosf(shade) : cosf(shade)));
  }
}

// Block (r, b) has part b of row r of all frames, so no thread divides by the width.
__global__ void __launch_bounds__(BLOCK) patterns_v1_sinf_kernel(const Movie p) {
  const int x = static_cast<int>(blockIdx.y * BLOCK + threadIdx.x);
  const int y = static_cast<int>(blockIdx.x % p.height),
            t = static_cast<int>(blockIdx.x / p.height);
  if (x >= p.width) return;
  uint32_t rgb[CHANNELS];
  pixel<false>(rgb, p, x, y, t);
  uint8_t* to = p.at(t, y, x);
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) to[c] = static_cast<uint8_t>(rgb[c]);
}

// One block per row of a frame and per BLOCK threads of those that a row needs.
dim3 grid_of(const Movie& p, int threads) {
  return {grid_size(int64_t{p.frames} * p.height, "frames"),
          grid_size_y(ceil_div(threads, BLOCK), "width")};
}

void launch_pixels(const Movie& p, cudaStream_t stream) {
  patterns_v1_sinf_kernel<<<grid_of(p, p.width), BLOCK, 0, stream>>>(p);
}

Tensor patterns_v1_sinf(const Tensor& waves, const Tensor& palette, int64_t frames, int64_t height,
                        int64_t width) {
  return draw(waves, palette, frames, height, width, launch_pixels);
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: four pixels per thread, so that 12 bytes are three whole words (day 13), and the
// hardware's sine and cosine. Their absolute error is about 2^-21: it moves less than one channel
// in a thousand across an integer.

__global__ void __launch_bounds__(BLOCK) patterns_v2_words_kernel(const Movie p) {
  const int x = static_cast<int>(blockIdx.y * BLOCK + threadIdx.x) * PIXELS;
  const int y = static_cast<int>(blockIdx.x % p.height),
            t = static_cast<int>(blockIdx.x / p.height);
  if (x >= p.width) return;
  uint32_t words[WORDS] = {};
#pragma unroll
  for (int j = 0; j < PIXELS; ++j) {
    uint32_t rgb[CHANNELS];
    pixel<true>(rgb, p, x + j, y, t);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      const int byte = CHANNELS * j + c;
      words[byte / 4] |= rgb[c] << byte % 4 * 8;
    }
  }
  auto* to = reinterpret_cast<uint32_t*>(p.at(t, y, x));
#pragma unroll
  for (int w = 0; w < WORDS; ++w) to[w] = words[w];
}

void launch_words(const Movie& p, cudaStream_t stream) {
  patterns_v2_words_kernel<<<grid_of(p, p.width / PIXELS), BLOCK, 0, stream>>>(p);
}

Tensor patterns_v2_words(const Tensor& waves, const Tensor& palette, int64_t frames, int64_t height,
                         int64_t width) {
  return draw(waves, palette, frames, height, width, [](const Movie& p, cudaStream_t stream) {
    if (p.width % PIXELS == 0) return launch_words(p, stream);
    fell_back("patterns_v1_sinf", "a row is no multiple of 4 pixels, so its bytes are no words");
    launch_pixels(p, stream);
  });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: sin(a + b) = sin a · cos b + cos a · sin b. A tile of 128 × 16 pixels in 32 frames
// has 512 values of a, one per row of a frame, and 128 of b, one per column. Both tables lie in
// shared memory, and a pixel costs two multiply-adds per wave. The palette's angles are added the
// same way, so only theta itself needs a sine and a cosine.

constexpr int WARP = 32;                       // lanes, each with PIXELS neighbours:
constexpr int TILE_X = WARP * PIXELS;          // one row of a tile per warp, 384 bytes
constexpr int TILE_Y = 16;                     // rows
constexpr int TILE_T = 32;                     // frames
constexpr int ROWS = 4;                        // of one frame that a warp makes at a time
constexpr int GROUPS = TILE_Y / ROWS;          // of rows in a frame
constexpr int WARPS = BLOCK / WARP;            // 8
constexpr int STEP = WARPS / GROUPS;           // frames that a block makes at a time: 2
constexpr int QUADS = TILE_X * CHANNELS / 16;  // 16-byte pieces of a row of a tile: 24
constexpr int STORES = ROWS * QUADS / WARP;    // of 16 bytes per lane for ROWS rows: 3
static_assert(TILE_T * TILE_Y % BLOCK == 0, "all threads make equally many rows of the table");
static_assert(TILE_X <= BLOCK && TILE_Y % ROWS == 0 && WARPS % GROUPS == 0);
static_assert(ROWS * QUADS % WARP == 0, "all lanes store equally often");

struct Turn {
  float sine, cosine;
};

__device__ Turn turn(uint32_t turns, float scale) {
  Turn result;
  __sincosf(angle(turns), &result.sine, &result.cosine);
  return {result.sine * scale, result.cosine * scale};
}

// One for each wave; 32 bytes, two loads of 16.
struct alignas(16) Turns {
  Turn of[WAVES];
};

// sum_k sin(a_k + b_k)
__device__ float sum_of_sines(const Turns& a, const Turns& b) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < WAVES; ++k) {
    sum = fmaf(a.of[k].sine, b.of[k].cosine, sum);
    sum = fmaf(a.of[k].cosine, b.of[k].sine, sum);
  }
  return sum;
}

// In fp32, 2^15 is where the lowest bit counts 2^-8. So in v + 2^15, for v of [0, 256), byte 1 is
// the integer part of v, and byte 0 the fraction. Returns the integer parts of four as a word.
__device__ uint32_t packed(float a, float b, float c, float d) {
  const uint32_t ab = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0051);  // a's in byte 0
  const uint32_t cd = __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x0051);
  return __byte_perm(ab, cd, 0x5410);
}

// Four neighbours in a row, 12 bytes. row: scaled by π/4; shades: of the palette, by SWING.
__device__ void four_pixels(uint32_t (&words)[WORDS], const Turns& row,
                            const Turns (&columns)[PIXELS], const Turn (&shades)[CHANNELS]) {
  float v[PIXELS * CHANNELS];
#pragma unroll
  for (int j = 0; j < PIXELS; ++j) {
    float sine, cosine;
    __sincosf(sum_of_sines(row, columns[j]), &sine, &cosine);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      const float part = fmaf(cosine, shades[c].cosine, 32768.0f + 128.0f);
      v[CHANNELS * j + c] = fmaf(-sine, shades[c].sine, part);
    }
  }
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    words[w] = packed(v[4 * w], v[4 * w + 1], v[4 * w + 2], v[4 * w + 3]);
  }
}

// One block per tile. Its warps divide the rows of two frames; a warp keeps its rows, and goes on
// to the frame after the next. v4 against v3: STAGED. A lane's 12 bytes reach parts of sectors of
// 32 bytes, and each of v3's three stores touches all 12 sectors of the row. So a warp puts four
// rows into shared memory, and stores them from there in pieces of 16 bytes, in order.
template <bool STAGED>
__global__ void __launch_bounds__(BLOCK)
    patterns_tiles_kernel(const Movie p, unsigned tiles_x, unsigned tiles_y) {
  __shared__ Turns row_table[TILE_T * TILE_Y];  // [frame · TILE_Y + row]
  __shared__ Turns column_table[TILE_X];
  __shared__ uint4 staged[STAGED ? WARPS : 1][ROWS * QUADS];
  const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
  const int x0 = static_cast<int>(blockIdx.x % tiles_x) * TILE_X;
  const int y0 = static_cast<int>(blockIdx.x / tiles_x % tiles_y) * TILE_Y;
  const int t0 = static_cast<int>(blockIdx.x / tiles_x / tiles_y) * TILE_T;

#pragma unroll
  for (int k = 0; k < WAVES; ++k) {
    const Wave wave = p.waves[k];
#pragma unroll
    for (int n = 0; n < TILE_T * TILE_Y / BLOCK; ++n) {
      const int i = n * BLOCK + thread;
      const uint32_t phase = wave.phase(x0, y0 + i % TILE_Y, t0 + i / TILE_Y);
      row_table[i].of[k] = turn(phase, QUARTER_PI);
    }
    if (thread < TILE_X) column_table[thread].of[k] = turn(wave.x * thread, 1);
  }
  __syncthreads();  // both tables are complete before any thread reads them

  Turns columns[PIXELS];
  Turn shades[CHANNELS];
#pragma unroll
  for (int j = 0; j < PIXELS; ++j) columns[j] = column_table[PIXELS * lane + j];
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) shades[c] = turn(p.palette[c], SWING);

  const int first = warp % GROUPS * ROWS;  // of the warp's rows, in the tile
  const int rows = min(p.height - y0 - first, ROWS), frames = min(p.frames - t0, TILE_T);
  const int bytes = min(p.width - x0, TILE_X) * CHANNELS;  // of a row of the tile
  const int pitch = p.width * CHANNELS;
  uint8_t* to = p.at(t0 + warp / GROUPS, y0 + first, x0);
  for (int t = warp / GROUPS; t < frames; t += STEP, to += int64_t{STEP} * p.height * pitch) {
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
      uint32_t words[WORDS];
      four_pixels(words, row_table[t * TILE_Y + first + j], columns, shades);
      auto* place = STAGED ? reinterpret_cast<uint32_t*>(&staged[warp][j * QUADS])
                           : reinterpret_cast<uint32_t*>(to + j * pitch);
      if (STAGED || (j < rows && lane * WORDS * 4 < bytes)) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) place[lane * WORDS + w] = words[w];
      }
    }
    if (STAGED) {
      __syncwarp();  // four rows are complete before any lane reads them
#pragma unroll
      for (int s = 0; s < STORES; ++s) {
        const int piece = s * WARP + lane, j = piece / QUADS, at = piece % QUADS * 16;
        if (j < rows && at < bytes) {
          *reinterpret_cast<uint4*>(to + j * pitch + at) = staged[warp][piece];
        }
      }
      __syncwarp();  // all lanes have read them before any lane writes the next frame's
    }
  }
}

template <bool STAGED>
void launch_tiles(const Movie& p, cudaStream_t stream) {
  const int64_t tiles_x = ceil_div(p.width, TILE_X), tiles_y = ceil_div(p.height, TILE_Y);
  const unsigned grid = grid_size(tiles_x * tiles_y * ceil_div(p.frames, TILE_T), "frames");
  patterns_tiles_kernel<STAGED><<<grid, BLOCK, 0, stream>>>(p, static_cast<unsigned>(tiles_x),
                                                            static_cast<unsigned>(tiles_y));
}

Tensor patterns_v3_angle_sums(const Tensor& waves, const Tensor& palette, int64_t frames,
                              int64_t height, int64_t width) {
  return draw(waves, palette, frames, height, width, [](const Movie& p, cudaStream_t stream) {
    if (p.width % PIXELS == 0) return launch_tiles<false>(p, stream);
    fell_back("patterns_v1_sinf", "a row is no multiple of 4 pixels, so its bytes are no words");
    launch_pixels(p, stream);
  });
}

Tensor patterns_v4_staged(const Tensor& waves, const Tensor& palette, int64_t frames,
                          int64_t height, int64_t width) {
  if (width % 16 != 0) {
    fell_back("patterns_v3_angle_sums", "a row is no multiple of 16 pixels");
    return patterns_v3_angle_sums(waves, palette, frames, height, width);
  }
  return draw(waves, palette, frames, height, width, launch_tiles<true>);
}

// ---------------------------------------------------------------------------------------------

#define PATTERNS "(Tensor waves, Tensor palette, int frames, int height, int width) -> Tensor"
RUNG(day70, patterns_v1_sinf, PATTERNS);
RUNG(day70, patterns_v2_words, PATTERNS);
RUNG(day70, patterns_v3_angle_sums, PATTERNS);
RUNG(day70, patterns_v4_staged, PATTERNS);

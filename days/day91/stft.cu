// Day 91: the short-time Fourier transform of audio, and its log-mel spectrogram
//
//   X[b, f, k] = Σₙ w[n] x̃[b, f·hop + n] e^(-2πikn/N)      n < N = n_fft, k = 0 … N/2
//   L[b, m, f] = log₁₀ max(Σₖ filters[m, k] |X[b, f, k]|², 10⁻¹⁰)
//   x (B, samples), w (N), filters (mels, N/2 + 1), all fp32; x̃ is x with N/2 samples reflected at
//   each end (torch.stft, center=True). X is (B, frames, N/2 + 1, 2): real part, imaginary part.
//
// 64 clips of 30 s at 16 kHz, N = 512, hop 160, 80 mels: 192,064 frames. 123 MB of audio are read,
// 395 MB of X or 61 MB of L are written. By definition, an output takes 4 N operations: 101 GFLOP.
// With an FFT of N/2 complex points, a frame takes 13,300 for X, 15,100 for L: 2.6 and 2.9 GFLOP.
//
//   v1 definition   one thread per output, N products
//   v2 stockham     one block per frame, log₂ N passes of radix 2 through shared memory
//   v3 registers    N/2 complex points per frame, radix 8 to 20 in registers: two or three passes
//   v3 unfused      v3, then a second kernel for power, mel filters and logarithm
//   v4 fused        both in one kernel: the spectrum never reaches memory
//
// Run: python run_day.py 91

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"      // taught in day 23
#include "days/day91/fft.cuh"

constexpr int BLOCK = 256;
constexpr int MOST_V2 = 2048;      // samples per frame in v2: half as many threads per block
constexpr float SILENCE = 1e-10f;  // the smallest power that counts, as in Whisper

struct Audio {
  const float* x;
  const float* window;
  int64_t clips, samples, hop, frames;
  int n;  // samples per frame

  int bins() const { return n / 2 + 1; }
  // Sample i of a clip, reflected at both ends; -samples < i < 2 · samples - 1.
  __device__ float sample(int64_t clip, int64_t i) const {
    const int64_t reflected = i < 0 ? -i : i < samples ? i : 2 * (samples - 1) - i;
    return x[clip * samples + reflected];
  }
};

Audio audio_of(const Tensor& x, const Tensor& window, int64_t hop) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(window, "window").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(window, "window").same_device(x, "x");
  const int64_t n = window.size(0), samples = x.size(1);
  STD_TORCH_CHECK(n >= 1 && n <= 1 << 20, "window: expected 1 to 2^20 samples, got ", n);
  STD_TORCH_CHECK(hop >= 1, "hop: expected at least 1, got ", hop);
  STD_TORCH_CHECK(samples > n / 2, "x: expected clips of more than half a window, ", n / 2,
                  " samples, got ", samples);
  const int64_t frames = (samples - n % 2) / hop + 1;
  return {data<float>(x), data<float>(window), x.size(0), samples, hop,
          frames,         static_cast<int>(n)};
}

Tensor spectrum_like(const Tensor& x, const Audio& a) {
  return allocate(x, {a.clips, a.frames, a.bins(), 2});
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per output, N products. A twiddle factor depends on k · n mod N only.

__global__ void __launch_bounds__(BLOCK)
    stft_v1_definition_kernel(const Audio a, int bins, int64_t count, float2* out) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= count) return;
  const int k = static_cast<int>(i % bins);
  const int64_t frame = i / bins % a.frames, clip = i / bins / a.frames;
  const int64_t start = frame * a.hop - a.n / 2;
  float2 sum = make_float2(0.0f, 0.0f);
  int place = 0;  // k · n mod N
  for (int n = 0; n < a.n; ++n) {
    const float value = a.sample(clip, start + n) * a.window[n];
    const float2 root = root_of_one(place, a.n);
    sum.x = fmaf(value, root.x, sum.x);
    sum.y = fmaf(value, root.y, sum.y);
    place += k;
    if (place >= a.n) place -= a.n;
  }
  out[i] = sum;
}

Tensor stft_v1_definition(Tensor x, Tensor window, int64_t hop) {
  const Audio a = audio_of(x, window, hop);
  const DeviceGuard guard(x);
  Tensor out = spectrum_like(x, a);
  const int64_t count = out.numel() / 2;
  if (count == 0) return out;
  stft_v1_definition_kernel<<<grid_size(ceil_div<int64_t>(count, BLOCK), "x"), BLOCK, 0,
                              current_stream(x)>>>(
      a, a.bins(), count, reinterpret_cast<float2*>(mutable_data<float>(out)));
  check_launch("stft_v1_definition");
  return out;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: log₂ N passes instead of N products per output. A pass of radix 2 makes each
// transform of 2 · done points from two of done points. Stockham's order needs no bit reversal: the
// last pass stores X in its natural order. One block per frame, N/2 threads, each with one pair of
// points per pass.

__global__ void stft_v2_stockham_kernel(const Audio a, float2* out) {
  extern __shared__ float2 shared[];  // [0, N), [N, 2N): two buffers in turns; [2N, 5N/2): roots
  const int half = a.n / 2, j = threadIdx.x;
  float2 *from = shared, *to = shared + a.n, *roots = shared + 2 * a.n;
  const int64_t frame = blockIdx.x % a.frames, clip = blockIdx.x / a.frames;
  const int64_t start = frame * a.hop - half;
  for (int n = j; n < a.n; n += half) {
    from[n] = make_float2(a.sample(clip, start + n) * a.window[n], 0.0f);
  }
  roots[j] = root_of_one(j, a.n);
  __syncthreads();  // samples and roots are complete before any thread reads those of others
  for (int done = 1, stride = half; done < a.n; done *= 2, stride /= 2) {
    const int k = j & (done - 1);  // place in a transform of done points
    const float2 even = from[j], odd = from[j + half] * roots[k * stride];
    to[2 * j - k] = even + odd;
    to[2 * j - k + done] = even - odd;
    __syncthreads();  // a pass is complete before the next reads it, and overwrites what it read
    float2* const swapped = from;
    from = to;
    to = swapped;
  }
  float2* const row = out + int64_t{blockIdx.x} * (half + 1);
  for (int k = j; k <= half; k += half) row[k] = from[k];
}

Tensor stft_v2_stockham(Tensor x, Tensor window, int64_t hop) {
  const Audio a = audio_of(x, window, hop);
  STD_TORCH_CHECK(a.n >= 2 && a.n <= MOST_V2 && (a.n & (a.n - 1)) == 0,
                  "window: expected a power of two from 2 to ", MOST_V2, ", got ", a.n);
  const DeviceGuard guard(x);
  Tensor out = spectrum_like(x, a);
  if (out.numel() == 0) return out;
  const int64_t bytes = a.n * 5 / 2 * sizeof(float2);
  stft_v2_stockham_kernel<<<grid_size(a.clips * a.frames, "x"), a.n / 2, bytes,
                            current_stream(x)>>>(
      a, reinterpret_cast<float2*>(mutable_data<float>(out)));
  check_launch("stft_v2_stockham");
  return out;
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: even and odd samples are real and imaginary part of M = N/2 complex points, of
// which each thread has R0 in registers (fft.cuh). A pass of radix R transforms R points there, so
// that two or three passes suffice. A block has several frames at a time, and goes on to others
// with the same tables.

// A block's shared memory. All but the rows is computed once.
template <typename P>
struct Tables {
  float2 window[P::M];     // for the two samples of each point
  float2 roots[P::ROOTS];  // the passes' twiddle factors, neighbours for neighbouring threads
  float2 last[P::M / 2];   // e^(-2πik/N), for X from Z
  float2 rows[P::FRAMES][P::ROW];
};

template <typename P>
__device__ void fill_tables(Tables<P>& tables, const float* window) {
  for (int i = threadIdx.x; i < P::M; i += P::THREADS) {
    tables.window[i] = make_float2(window[2 * i], window[2 * i + 1]);
  }
  for (int i = threadIdx.x; i < P::ROOTS; i += P::THREADS) {
    const int at = i < P::R0 * P::R1 ? i : i - P::R0 * P::R1;
    const int done = i < P::R0 * P::R1 ? P::R0 : P::R0 * P::R1;
    tables.roots[i] =
        root_of_one(at / done * (at % done), i < P::R0 * P::R1 ? P::R0 * P::R1 : P::M);
  }
  for (int i = threadIdx.x; i < P::M / 2; i += P::THREADS) tables.last[i] = root_of_one(i, P::N);
}

// Points t, t + T, t + 2T … of a frame, windowed: point n is samples 2n and 2n + 1.
template <typename P>
__device__ void load_frame(float2 (&v)[P::R0], const Audio& a, int64_t clip, int64_t frame,
                           const float2* window, int t) {
  const int64_t start = frame * a.hop - P::M;
  const float* const first = a.x + clip * a.samples + start;
  if (start >= 0 && start + P::N <= a.samples && reinterpret_cast<uintptr_t>(first) % 8 == 0) {
#pragma unroll
    for (int i = 0; i < P::R0; ++i) v[i] = reinterpret_cast<const float2*>(first)[t + P::T * i];
  } else {  // at an end of the clip, or misaligned
#pragma unroll
    for (int i = 0; i < P::R0; ++i) {
      const int64_t n = start + 2 * (t + P::T * i);
      v[i] = make_float2(a.sample(clip, n), a.sample(clip, n + 1));
    }
  }
#pragma unroll
  for (int i = 0; i < P::R0; ++i) {
    const float2 w = window[t + P::T * i];
    v[i] = make_float2(v[i].x * w.x, v[i].y * w.y);
  }
}

// From Z[k] and Z[M - k] to X[k] and X[M - k]. root: e^(-2πik/N).
__device__ inline void unpack(float2& lower, float2& upper, float2 root) {
  const float2 a = lower, b = upper;
  const float2 even = make_float2(0.5f * (a.x + b.x), 0.5f * (a.y - b.y));  // (a + b*) / 2
  const float2 odd = make_float2(0.5f * (a.y + b.y), 0.5f * (b.x - a.x));   // (a - b*) / 2i
  const float2 rotated = root * odd;
  lower = even + rotated;
  upper = make_float2(even.x - rotated.x, rotated.y - even.y);  // the conjugate of even - rotated
}

// Calls emit(k, X[k]) for each bin of the frame, from one of the frame's threads. All threads have
// read the row by then, so emit may overwrite it.
template <typename P, typename F>
__device__ void emit_bins(const float2* row, const float2* last, int t, F&& emit) {
  constexpr int PAIRS = P::M / 2 / P::T;  // per thread: k and M - k, or 0 and M / 2
  float2 lower[PAIRS], upper[PAIRS];
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const int k = t + P::T * i;
    lower[i] = row[k];
    upper[i] = row[k == 0 ? P::M / 2 : P::M - k];
  }
  sync_frame<P>();  // all have read before any thread of the frame overwrites
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const int k = t + P::T * i;
    if (k == 0) {
      emit(0, make_float2(lower[i].x + lower[i].y, 0.0f));
      emit(P::M, make_float2(lower[i].x - lower[i].y, 0.0f));
      emit(P::M / 2, make_float2(upper[i].x, -upper[i].y));
    } else {
      unpack(lower[i], upper[i], last[k]);
      emit(k, lower[i]);
      emit(P::M - k, upper[i]);
    }
  }
}

template <typename P>
__global__ void __launch_bounds__(P::THREADS)
    stft_v3_registers_kernel(const Audio a, int64_t tiles, float2* out) {
  __shared__ Tables<P> tables;
  const int local = threadIdx.x / P::T, t = threadIdx.x % P::T;
  fill_tables(tables, a.window);
  __syncthreads();  // the tables are complete
  const int64_t count = a.clips * a.frames;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t mine = tile * P::FRAMES + local, i = mine < count ? mine : count - 1;
    float2 v[P::R0];
    load_frame<P>(v, a, i / a.frames, i % a.frames, tables.window, t);
    transform<P>(v, tables.roots, tables.rows[local], t);
    float2* const to = out + i * P::BINS;
    emit_bins<P>(tables.rows[local], tables.last, t, [&](int k, float2 value) {
      if (mine < count) to[k] = value;
    });
  }
}

// Calls f with the plan of that many samples per frame.
template <typename F>
void dispatch_plan(int n, F&& f) {
  switch (n) {
    case 256:
      return f(Plan<16, 8>{});
    case 400:
      return f(Plan<20, 10>{});
    case 512:
      return f(Plan<16, 16>{});
    case 1024:
      return f(Plan<8, 8, 8>{});
    case 2048:
      return f(Plan<16, 8, 8>{});
    default:
      STD_TORCH_CHECK(false, "window: expected 256, 400, 512, 1024 or 2048 samples, got ", n);
  }
}

Tensor stft_v3_registers(Tensor x, Tensor window, int64_t hop) {
  const Audio a = audio_of(x, window, hop);
  const DeviceGuard guard(x);
  Tensor out = spectrum_like(x, a);
  dispatch_plan(a.n, [&](auto plan) {
    using P = decltype(plan);
    if (out.numel() == 0) return;
    const auto kernel = stft_v3_registers_kernel<P>;
    const int64_t tiles = ceil_div<int64_t>(a.clips * a.frames, P::FRAMES);
    kernel<<<resident_grid(x, kernel, P::THREADS, 0, tiles), P::THREADS, 0, current_stream(x)>>>(
        a, tiles, reinterpret_cast<float2*>(mutable_data<float>(out)));
    check_launch("stft_v3_registers");
  });
  return out;
}

// ---------------------------------------------------------------------------------------------
// Power, mel filters and logarithm. A filter is a triangle, 0 outside its bins [begin, end). Only
// those are multiplied: two products per bin and frame, where the matrix product has one per
// filter.

struct Mels {
  const float* filters;
  const int2* ranges;  // [begin, end) of each filter
  int count;
  float* out;
};

__global__ void __launch_bounds__(BLOCK)
    filter_ranges_kernel(const float* filters, int64_t mels, int bins, int2* ranges) {
  const int64_t m = int64_t{blockIdx.x} * (BLOCK / 32) + threadIdx.x / 32;  // one warp per filter
  if (m >= mels) return;
  int begin = bins, end = 0;
  for (int k = threadIdx.x % 32; k < bins; k += 32) {
    if (filters[m * bins + k] == 0.0f) continue;
    begin = min(begin, k);
    end = k + 1;
  }
  begin = warp_reduce(begin, [](int a, int b) { return min(a, b); });
  end = warp_reduce(end, [](int a, int b) { return max(a, b); });
  if (threadIdx.x % 32 == 0) ranges[m] = make_int2(begin, end);
}

__device__ inline float power(float2 a) {
  return fmaf(a.x, a.x, a.y * a.y);
}

// The mels of FRAMES frames of one clip, from the first one on. Each row begins with a frame's
// powers.
template <typename P>
__device__ void store_mels(const float2 (*rows)[P::ROW], const Mels& mels, int64_t clip,
                           int64_t first, int64_t frames) {
  constexpr int STEP = P::THREADS / P::FRAMES;
  const int local = threadIdx.x % P::FRAMES;  // neighbours store neighbouring frames
  if (first + local >= frames) return;
  const float* const powers = reinterpret_cast<const float*>(rows[local]);
  int m = threadIdx.x / P::FRAMES;
  float* out = mels.out + (clip * mels.count + m) * frames + first + local;
  for (; m < mels.count; m += STEP, out += STEP * frames) {
    const int2 range = mels.ranges[m];
    const float* const weights = mels.filters + int64_t{m} * P::BINS;
    float sum = 0.0f;
    for (int k = range.x; k < range.y; ++k) sum = fmaf(weights[k], powers[k], sum);
    *out = __log10f(sum < SILENCE ? SILENCE : sum);  // NaN stays NaN, which fmaxf would drop
  }
}

template <typename P>
__global__ void __launch_bounds__(P::THREADS)
    log_mel_v3_unfused_kernel(const float2* spectrum, const Mels mels, int64_t frames,
                              int64_t tiles_per_clip) {
  __shared__ float2 rows[P::FRAMES][P::ROW];
  const int64_t clip = blockIdx.x / tiles_per_clip;
  const int64_t first = blockIdx.x % tiles_per_clip * P::FRAMES;
  const int64_t left = frames - first;
  const int points = static_cast<int>(left < P::FRAMES ? left : P::FRAMES) * P::BINS;
  const float2* const from = spectrum + (clip * frames + first) * P::BINS;
  for (int i = threadIdx.x; i < points; i += P::THREADS) {
    reinterpret_cast<float*>(rows[i / P::BINS])[i % P::BINS] = power(from[i]);
  }
  __syncthreads();  // the powers are complete
  store_mels<P>(rows, mels, clip, first, frames);
}

// Finds the filters' ranges, then calls run(plan, mels), which launches.
template <typename F>
Tensor log_mel(const Tensor& x, const Tensor& filters, const Audio& a, F&& run) {
  check(filters, "filters").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous();
  check(filters, "filters").size(1, a.bins()).same_device(x, "x");
  const DeviceGuard guard(x);
  const int64_t count = filters.size(0);
  STD_TORCH_CHECK(count <= 1 << 20, "filters: expected at most 2^20 filters, got ", count);
  Tensor out = allocate(x, {a.clips, count, a.frames});
  Tensor ranges = allocate(x, {count, 2}, ScalarType::Int);
  const Mels mels{data<float>(filters), reinterpret_cast<const int2*>(data<int>(ranges)),
                  static_cast<int>(count), mutable_data<float>(out)};
  dispatch_plan(a.n, [&](auto plan) {
    if (out.numel() == 0) return;
    filter_ranges_kernel<<<grid_size(ceil_div<int64_t>(count, BLOCK / 32), "filters"), BLOCK, 0,
                           current_stream(x)>>>(mels.filters, count, a.bins(),
                                                reinterpret_cast<int2*>(mutable_data<int>(ranges)));
    check_launch("filter_ranges");
    run(plan, mels);
  });
  return out;
}

Tensor log_mel_v3_unfused(Tensor x, Tensor window, int64_t hop, Tensor filters) {
  const Tensor spectrum = stft_v3_registers(x, window, hop);
  const Audio a = audio_of(x, window, hop);
  return log_mel(x, filters, a, [&](auto plan, const Mels& mels) {
    using P = decltype(plan);
    const int64_t tiles = ceil_div<int64_t>(a.frames, P::FRAMES);
    log_mel_v3_unfused_kernel<P>
        <<<grid_size(a.clips * tiles, "x"), P::THREADS, 0, current_stream(x)>>>(
            reinterpret_cast<const float2*>(data<float>(spectrum)), mels, a.frames, tiles);
    check_launch("log_mel_v3_unfused");
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3 unfused: the powers stay in shared memory, in the place of Z, and the same block
// makes mels of them.

template <typename P>
__global__ void __launch_bounds__(P::THREADS)
    log_mel_v4_fused_kernel(const Audio a, int64_t tiles_per_clip, const Mels mels) {
  __shared__ Tables<P> tables;
  const int local = threadIdx.x / P::T, t = threadIdx.x % P::T;
  fill_tables(tables, a.window);
  __syncthreads();  // the tables are complete
  for (int64_t tile = blockIdx.x; tile < a.clips * tiles_per_clip; tile += gridDim.x) {
    const int64_t clip = tile / tiles_per_clip, first = tile % tiles_per_clip * P::FRAMES;
    const int64_t frame = first + local < a.frames ? first + local : a.frames - 1;
    float2* const row = tables.rows[local];
    float2 v[P::R0];
    load_frame<P>(v, a, clip, frame, tables.window, t);
    transform<P>(v, tables.roots, row, t);
    float* const powers = reinterpret_cast<float*>(row);
    emit_bins<P>(row, tables.last, t, [&](int k, float2 value) { powers[k] = power(value); });
    __syncthreads();  // the powers of all frames are complete
    store_mels<P>(tables.rows, mels, clip, first, a.frames);
    __syncthreads();  // all are read before the next frames overwrite them
  }
}

Tensor log_mel_v4_fused(Tensor x, Tensor window, int64_t hop, Tensor filters) {
  const Audio a = audio_of(x, window, hop);
  return log_mel(x, filters, a, [&](auto plan, const Mels& mels) {
    using P = decltype(plan);
    const auto kernel = log_mel_v4_fused_kernel<P>;
    const int64_t tiles = ceil_div<int64_t>(a.frames, P::FRAMES);
    kernel<<<resident_grid(x, kernel, P::THREADS, 0, a.clips * tiles), P::THREADS, 0,
             current_stream(x)>>>(a, tiles, mels);
    check_launch("log_mel_v4_fused");
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day91, stft_v1_definition, "(Tensor x, Tensor window, int hop) -> Tensor");
RUNG(day91, stft_v2_stockham, "(Tensor x, Tensor window, int hop) -> Tensor");
RUNG(day91, stft_v3_registers, "(Tensor x, Tensor window, int hop) -> Tensor");
RUNG(day91, log_mel_v3_unfused, "(Tensor x, Tensor window, int hop, Tensor filters) -> Tensor");
RUNG(day91, log_mel_v4_fused, "(Tensor x, Tensor window, int hop, Tensor filters) -> Tensor");

// The fast Fourier transform of M complex points by T threads, with R0 points in the registers of
// each: passes of radix 8 to 20 there, and shared memory between two passes.
#pragma once

__device__ inline float2 operator+(float2 a, float2 b) {
  return make_float2(a.x + b.x, a.y + b.y);
}
__device__ inline float2 operator-(float2 a, float2 b) {
  return make_float2(a.x - b.x, a.y - b.y);
}
__device__ inline float2 operator*(float2 a, float2 b) {  // of complex numbers
  return make_float2(fmaf(a.x, b.x, -a.y * b.y), fmaf(a.x, b.y, a.y * b.x));
}

// e^(-2πi · place / count), 0 <= place < count.
__device__ inline float2 root_of_one(int place, int count) {
  float2 root;
  const int nearest = 2 * place > count ? place - count : place;  // small angles are more exact
  sincospif(-2.0f * static_cast<float>(nearest) / static_cast<float>(count), &root.y, &root.x);
  return root;
}

// M = R0 · R1 · R2 points: passes of radix R0, R1 and, unless it is 1, R2.
template <int R0_, int R1_, int R2_ = 1>
struct Plan {
  static constexpr int R0 = R0_, R1 = R1_, R2 = R2_;
  static constexpr int M = R0 * R1 * R2, N = 2 * M, BINS = M + 1, T = M / R0;
  static constexpr int FRAMES = M <= 256 ? 16 : 2048 / M;  // per block: 128 to 256 threads
  static constexpr int THREADS = T * FRAMES;
  static constexpr int ROW = M + M / 16 + 1;  // slots of a frame; odd, so that frames begin in
                                              // different banks
  static constexpr int ROOTS = R0 * R1 + (R2 > 1 ? M : 0);  // twiddle factors of all passes
  static_assert(R0 % R1 == 0 && R0 % R2 == 0,
                "each thread has whole transforms of R points in each pass");
};

// The slot of point i between two passes: one of 17 stays empty. Without that, threads that store
// 16 points apart, of 8 bytes each, would all access the same two banks.
__device__ constexpr int padded(int i) {
  return i + i / 16;
}

constexpr double cosine(double angle) {
  double sum = 1, term = 1;
  for (int i = 1; i < 40; ++i) sum += term *= -angle * angle / ((2 * i - 1) * (2 * i));
  return sum;
}

// The twiddle factors e^(-2πi · place / R), as constants.
template <int R>
struct Roots {
  float re[R], im[R];
  constexpr Roots() : re(), im() {
    for (int i = 0; i < R; ++i) {
      const double angle = 6.283185307179586 * i / R;
      re[i] = static_cast<float>(cosine(angle));
      im[i] = static_cast<float>(cosine(angle + 1.5707963267948966));  // -sin
    }
  }
};

__device__ inline float2 times_minus_i(float2 a) {
  return make_float2(a.y, -a.x);
}

// The transform of R points in registers: v[k] = Σₙ v[n] e^(-2πikn/R). R = A · B is made of B
// transforms of A points, factors, and A transforms of B points.
template <int R>
__device__ void dft(float2 (&v)[R]) {
  if constexpr (R == 2) {
    const float2 a = v[0];
    v[0] = a + v[1];
    v[1] = a - v[1];
  } else if constexpr (R == 4) {
    const float2 a = v[0] + v[2], b = v[0] - v[2], c = v[1] + v[3], d = times_minus_i(v[1] - v[3]);
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
  } else if constexpr (R == 5) {
    constexpr float C1 = 0.309016994f, C2 = -0.809016994f, S1 = 0.951056516f, S2 = 0.587785252f;
    const float2 a = v[1] + v[4], b = v[2] + v[3], c = v[1] - v[4], d = v[2] - v[3], z = v[0];
    const auto mix = [](float s, float2 p, float t, float2 q) {
      return make_float2(fmaf(s, p.x, t * q.x), fmaf(s, p.y, t * q.y));
    };
    const float2 p = z + mix(C1, a, C2, b), q = z + mix(C2, a, C1, b);
    const float2 r = times_minus_i(mix(S1, c, S2, d)), s = times_minus_i(mix(S2, c, -S1, d));
    v[0] = z + a + b;
    v[1] = p + r;
    v[2] = q + s;
    v[3] = q - s;
    v[4] = p - r;
  } else {
    constexpr int A = R % 5 == 0 ? 5 : 4, B = R / A;
    constexpr Roots<R> ROOTS;
    float2 parts[A][B];  // [p][b]
#pragma unroll
    for (int b = 0; b < B; ++b) {
      float2 u[A];
#pragma unroll
      for (int a = 0; a < A; ++a) u[a] = v[B * a + b];
      dft<A>(u);
#pragma unroll
      for (int p = 0; p < A; ++p) {
        if (4 * b * p == R) {
          parts[p][b] = times_minus_i(u[p]);
        } else {
          parts[p][b] = b * p ? u[p] * make_float2(ROOTS.re[b * p], ROOTS.im[b * p]) : u[p];
        }
      }
    }
#pragma unroll
    for (int p = 0; p < A; ++p) {
      dft<B>(parts[p]);
#pragma unroll
      for (int q = 0; q < B; ++q) v[p + A * q] = parts[p][q];
    }
  }
}

// Waits for the T threads of a frame, which are in one warp where T divides 32.
template <typename P>
__device__ void sync_frame() {
  if constexpr (32 % P::T == 0) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// One pass of radix R, in Stockham's order: each transform of R · DONE points from R of DONE
// points. v[i] is point t + T · i of what the pass before has stored, and number j of the
// transforms of R points takes the points j + r · M / R, r < R.
template <typename P, int R, int DONE>
__device__ void pass(const float2 (&v)[P::R0], const float2* roots, float2* row, int t) {
  constexpr int C = P::R0 / R;  // transforms of R points per thread
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int j = t + P::T * c, k = j % DONE;
    float2 u[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      u[r] = DONE > 1 && r > 0 ? v[c + C * r] * roots[r * DONE + k] : v[c + C * r];
    }
    dft<R>(u);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int to = (j - k) * R + k + r * DONE;
      row[R * DONE < P::M ? padded(to) : to] = u[r];
    }
  }
  sync_frame<P>();  // the row is complete before any thread of the frame reads it
}

template <typename P>
__device__ void load_row(float2 (&v)[P::R0], const float2* row, int t) {
#pragma unroll
  for (int i = 0; i < P::R0; ++i) v[i] = row[padded(t + P::T * i)];
  sync_frame<P>();  // all have read before any thread of the frame overwrites
}

// The transform Z of the frame's points, in its row: Z[k] in slot k.
template <typename P>
__device__ void transform(float2 (&v)[P::R0], const float2* roots, float2* row, int t) {
  pass<P, P::R0, 1>(v, roots, row, t);
  load_row<P>(v, row, t);
  pass<P, P::R1, P::R0>(v, roots, row, t);
  if constexpr (P::R2 > 1) {
    load_row<P>(v, row, t);
    pass<P, P::R2, P::R0 * P::R1>(v, roots + P::R0 * P::R1, row, t);
  }
}

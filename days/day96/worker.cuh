// Day 96: how a block of v4 computes its rows of a matrix: it waits for the vector, takes the
// weights from its ring, and gives the products to its caller, who sends them on.
#pragma once

#include "days/day96/stream.cuh"

// Element e of a vector of n: the halves of a chunk lie apart, so that lanes that read
// neighbouring chunks by 16 bytes meet no bank twice.
__device__ __forceinline__ int place_of(int e, int n) {
  return e / 4 % 2 * (n / 2) + e / PER_CHUNK * 4 + e % 4;
}

template <int PER_LANE, int STAGES>
struct Worker {
  const Model& m;
  const Share* shares;
  float *vector, *sums;  // in shared memory: (4C), and one per unit of this block
  Ring<PER_LANE, STAGES> ring;
  int unit;            // this warp's next, of the block's share
  int multiplied = 0;  // of the ring's oldest units, whose places are free
  static constexpr int BATCH = ceil_div(PER_LANE * 32 * PER_CHUNK, THREADS);

  // Receives a vector of n numbers.
  template <int N>
  __device__ void gather(const Word* words, int n, unsigned tag) {
    for (int first = threadIdx.x; first < n; first += N * THREADS) {
      const auto at = [&](int i) {
        return first + i * THREADS < n ? words + first + i * THREADS : nullptr;
      };
      receive<N>(tag, at, [&](int i, unsigned bits) {
        vector[place_of(first + i * THREADS, n)] = __uint_as_float(bits);
      });
    }
  }

  // This lane's chunks of the vector that fill() puts into shared memory: of the quarter that its
  // warp multiplies, or of all C elements, normalised. What does not depend on it is loaded first.
  template <int KIND, typename Fill>
  __device__ void load_x(float (&x)[PER_LANE][PER_CHUNK], int layer, Fill&& fill) {
    constexpr bool NORM = KIND != PROJ && KIND != OUT;
    const int lane = threadIdx.x % 32, chunks = m.chunks();
    Raw weights[PER_LANE], biases[PER_LANE];
    if (NORM) {
      const Raw* const norm = reinterpret_cast<const Raw*>(norm_before(m, KIND, layer));
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) {
        const int c = lane + 32 * i;
        if (c < chunks) weights[i] = norm[c], biases[i] = norm[chunks + c];
      }
    }
    fill();
    __syncthreads();  // the vector is complete
    const int first = KIND == OUT ? unit % 4 * chunks : 0, half = m.C * m.units_per_row(KIND) / 2;
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
#pragma unroll
      for (int e = 0; e < PER_CHUNK; ++e) x[i][e] = 0;
      if (lane + 32 * i >= chunks) continue;
      const float* const at = vector + 4 * (first + lane + 32 * i);
      *reinterpret_cast<float4*>(x[i]) = *reinterpret_cast<const float4*>(at);
      *reinterpret_cast<float4*>(x[i] + 4) = *reinterpret_cast<const float4*>(at + half);
#pragma unroll
      for (int e = 0; e < PER_CHUNK; ++e) sum += x[i][e];
    }
    if (!NORM) return;
    const float mean = warp_sum(sum) / m.C;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      if (lane + 32 * i >= chunks) continue;
#pragma unroll
      for (int e = 0; e < PER_CHUNK; ++e) squares += (x[i][e] - mean) * (x[i][e] - mean);
    }
    const float scale = rsqrtf(warp_sum(squares) / m.C + EPSILON);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      if (lane + 32 * i >= chunks) continue;
      const Chunk<float, PER_CHUNK> w = widened(weights[i]), b = widened(biases[i]);
#pragma unroll
      for (int e = 0; e < PER_CHUNK; ++e) x[i][e] = (x[i][e] - mean) * scale * w.at[e] + b.at[e];
    }
  }

  // The places of multiplied units go to the units that come STAGES later.
  __device__ void refill() {
    for (; multiplied > 0; --multiplied) ring.fetch(m, shares);
  }

  // Calls store(unit, sum) from lane 0 for each of this warp's units: two at a time, whose sums
  // over the lanes do not wait for each other. The caller sends the results before it refills the
  // places of the last ones: other blocks wait for the results.
  template <typename Store>
  __device__ void multiply_units(const float (&x)[PER_LANE][PER_CHUNK], int units, Store&& store) {
    while (unit < units) {
      const bool two = unit + WARPS < units;
      refill();
      ptx::cp_async_wait<STAGES - 2>();  // the two oldest are complete
      const float first = ring.unit_product(m, 0, x),
                  second = two ? ring.unit_product(m, 1, x) : 0.0f;
      multiplied = two ? 2 : 1;
      const float sum = warp_sum(first), next = warp_sum(second);
      if (threadIdx.x % 32 == 0) {
        store(unit, sum);
        if (two) store(unit + WARPS, next);
      }
      unit += two ? 2 * WARPS : WARPS;
    }
    unit -= units;
  }

  // One matrix of a layer: calls emit(row, product + bias) from one thread per row of this block.
  template <int KIND, typename Fill, typename Emit>
  __device__ void phase(int layer, int bias_at, Fill&& fill, Emit&& emit) {
    const Share share = shares[KIND];
    const int row = share.first_row + threadIdx.x, per_row = m.units_per_row(KIND);
    const bool has_row = static_cast<int>(threadIdx.x) < share.rows;
    float sum = has_row ? static_cast<float>(m.vector(layer, bias_at)[row]) : 0.0f;
    float x[PER_LANE][PER_CHUNK];
    load_x<KIND>(x, layer, fill);
    multiply_units(x, share.rows * per_row, [&](int u, float product) { sums[u] = product; });
    __syncthreads();  // the rows' threads wait for the sums of all warps
    if (has_row) {
      for (int i = 0; i < per_row; ++i) sum += sums[threadIdx.x * per_row + i];
      emit(row, sum);
    }
    refill();
  }
};

// A thread's chunks of a slice, one after the other: where they are, their part of the statistics,
// and their outputs.
#pragma once

#include "common/cuda/ptx/cp_async.cuh"  // taught in day 20
#include "days/day48/channels.cuh"

// A channel of NCHW is cut into slices of `length` chunks, without regard to its planes.
struct Planes {
  int64_t chunks, plane, step, length;  // chunks of a channel; of a plane; from plane to plane
  int64_t jump;                         // BLOCK chunks further, where the plane does not end
  int slices, rest;                     // rest: BLOCK % plane

  Planes(const Sizes& s, int N, int64_t most)
      : chunks(s.count() / N), plane(s.inner / N), step(s.channels * plane) {
    length = ceil_div(chunks, most);
    slices = static_cast<int>(ceil_div(chunks, length));
    jump = BLOCK / plane * step + BLOCK % plane;
    rest = static_cast<int>(BLOCK % plane);
  }
};

struct PlaneWalk {
  int64_t at, offset;
  int count = 0;
  const Planes& g;

  __device__ PlaneWalk(const Planes& g, int64_t channel, int slice) : g(g) {
    const int64_t first = slice * g.length + threadIdx.x;
    const int64_t end = min((slice + 1) * g.length, g.chunks);
    if (first < end) count = static_cast<int>((end - first + BLOCK - 1) / BLOCK);
    offset = first % g.plane;
    at = first / g.plane * g.step + channel * g.plane + offset;
  }
  // Where the next chunk is. No division: a step of BLOCK chunks passes at most one end of a plane
  // more than BLOCK / plane.
  __device__ int64_t next() {
    const int64_t here = at;
    at += g.jump;
    offset += g.rest;
    if (offset >= g.plane) {
      offset -= g.plane;
      at += g.step - g.plane;
    }
    return here;
  }
  __device__ int slot(int k) const { return k; }
};

// Rows of channels_last: a block takes `width` columns of chunks, with BLOCK / width rows at once,
// of a slice of `length` rows.
struct Rows {
  static constexpr int MAX_WIDTH = 16;  // 256 bytes; a power of two, so that shuffles find columns
  int64_t rows, columns, length, channels;
  int width, strips, slices;

  // limit: of blocks.
  Rows(const Sizes& s, int N, int64_t limit)
      : rows(s.outer), columns(s.channels / N), channels(s.channels), width(1) {
    while (width < MAX_WIDTH && width < columns) width *= 2;
    strips = static_cast<int>(ceil_div<int64_t>(columns, width));
    const int64_t per_block = 4 * BLOCK / width;  // at least: each slice stores a part per channel
    const int64_t most = std::min(limit / strips, ceil_div(rows, per_block));
    length = ceil_div<int64_t>(rows, std::max<int64_t>(1, most));
    slices = static_cast<int>(ceil_div(rows, length));
  }
};

struct RowWalk {
  int64_t at, step;
  int count = 0;
  bool backwards;

  __device__ RowWalk(const Rows& g, int strip, int slice, bool backwards) : backwards(backwards) {
    const int teams = BLOCK / g.width;
    const int64_t column = int64_t{strip} * g.width + threadIdx.x % g.width;
    const int64_t first = slice * g.length + threadIdx.x / g.width;
    const int64_t end = min((slice + 1) * g.length, g.rows);
    if (first < end && column < g.columns) {
      count = static_cast<int>((end - first + teams - 1) / teams);
    }
    step = teams * g.columns;
    at = first * g.columns + column;
    if (backwards) {
      at += (count - 1) * step;
      step = -step;
    }
  }
  __device__ int64_t next() {
    const int64_t here = at;
    at += step;
    return here;
  }
  __device__ int slot(int k) const { return backwards ? count - 1 - k : k; }
};

// Chunks that a block keeps in shared memory from the statistics to the output: `room` per thread
// and tensor. A thread reads only what it brought itself, so no barrier is needed. v2 keeps
// nothing.
template <typename T, int N, bool KEEPS = true>
struct Kept {
  Chunk<T, N>* memory = nullptr;
  int room = 0;

  __device__ Chunk<T, N>& at(int tensor, int slot) const {
    return memory[(tensor * room + slot) * BLOCK + threadIdx.x];
  }
};

// Chunks per thread and tensor that are loaded before the first is used: 64 KB per multiprocessor
// with two blocks of planes, or one block of rows.
template <class Walk>
constexpr int batch(int in, int N) {
  const bool rows = std::is_same_v<Walk, RowWalk>;
  return (N == 1 && rows ? 16 : N == 1 || rows ? 8 : 4) / in;
}

// Adds the chunks of a batch to the parts. A batch is loaded to registers, and stored if it is
// kept.
template <class Pass, typename T, int N, int COLUMNS, class Walk, bool KEEPS>
__device__ void add_loaded(Parts<COLUMNS>& parts, Walk& walk, int k, const Arguments& p,
                           const float (&origin)[COLUMNS], const Kept<T, N, KEEPS>& kept) {
  constexpr int U = batch<Walk>(Pass::IN, N);
  RawChunk<Chunk<T, N>> in[Pass::IN][U];
  const int valid = min(U, walk.count - k);
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (u >= valid) break;
    const int64_t at = walk.next();
#pragma unroll
    for (int i = 0; i < Pass::IN; ++i) {
      in[i][u] = load_raw(static_cast<const Chunk<T, N>*>(p.in[i]) + at);
    }
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (!KEEPS || u >= valid || k + u >= kept.room) break;
#pragma unroll
    for (int i = 0; i < Pass::IN; ++i) kept.at(i, k + u) = in[i][u].chunk();
  }
  Pass::add(parts, in, valid, origin);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_CP_ASYNC
#endif

#ifdef HAS_CP_ASYNC
constexpr int AHEAD = 3;  // batches in flight

// Adds the chunks that are kept: cp.async brings them to shared memory, several batches ahead of
// the sums. Returns how many there were; `walk` is past them.
template <class Pass, typename T, int N, int COLUMNS, class Walk>
__device__ int add_kept(Parts<COLUMNS>& parts, Walk& walk, const Arguments& p,
                        const float (&origin)[COLUMNS], const Kept<T, N>& kept) {
  constexpr int U = batch<Walk>(Pass::IN, N);
  const int count = min(kept.room, walk.count);
  const auto start = [&](int k) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (k + u >= count) break;
      const int64_t at = walk.next();
#pragma unroll
      for (int i = 0; i < Pass::IN; ++i) {
        ptx::cp_async<16>(&kept.at(i, k + u), static_cast<const Chunk<T, N>*>(p.in[i]) + at);
      }
    }
    ptx::cp_async_commit();
  };
  for (int i = 0; i < AHEAD; ++i) start(i * U);
  for (int k = 0; k < count; k += U) {
    start(k + AHEAD * U);
    ptx::cp_async_wait<AHEAD>();
    RawChunk<Chunk<T, N>> in[Pass::IN][U];
    const int valid = min(U, count - k);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= valid) break;
#pragma unroll
      for (int i = 0; i < Pass::IN; ++i) in[i][u] = load_raw(&kept.at(i, k + u));
    }
    Pass::add(parts, in, valid, origin);
  }
  return count;
}
#endif

// This thread's part of its chunks.
template <class Pass, typename T, int N, int COLUMNS, class Walk, bool KEEPS = false>
__device__ Parts<COLUMNS> reduce(Walk walk, const Arguments& p, const float (&origin)[COLUMNS],
                                 Kept<T, N, KEEPS> kept = {}) {
  Parts<COLUMNS> parts;
  int k = 0;
#ifdef HAS_CP_ASYNC
  if constexpr (KEEPS && sizeof(Chunk<T, N>) == 16) {
    k = add_kept<Pass, T, N>(parts, walk, p, origin, kept);
  }
#endif
  for (; k < walk.count; k += batch<Walk>(Pass::IN, N)) {
    add_loaded<Pass, T, N>(parts, walk, k, p, origin, kept);
  }
  Pass::finish(parts, origin);
  return parts;
}

// Stores a chunk. Where x is read again from L2, y should not drive it out: it leaves first.
template <bool FIRST_OUT, typename T, int N>
__device__ void store_chunk(Chunk<T, N>* to, const Chunk<T, N>& chunk) {
  if constexpr (FIRST_OUT && sizeof chunk == 16) {
    uint4 words;
    memcpy(&words, &chunk, sizeof words);
    __stcs(reinterpret_cast<uint4*>(to), words);
  } else {
    *to = chunk;
  }
}

// Computes and stores the outputs of this thread's chunks.
template <class Pass, typename T, int N, int COLUMNS, class Walk, bool KEEPS = false>
__device__ void apply(Walk walk, const Arguments& p, const float4 (&coefficients)[COLUMNS],
                      Kept<T, N, KEEPS> kept = {}) {
  constexpr int U = batch<Walk>(Pass::IN, N);
  for (int k = 0; k < walk.count; k += U) {
    RawChunk<Chunk<T, N>> in[Pass::IN][U];
    int64_t at[U];
    const int valid = min(U, walk.count - k);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= valid) break;
      at[u] = walk.next();
      const int slot = walk.slot(k + u);
#pragma unroll
      for (int i = 0; i < Pass::IN; ++i) {
        const auto* from = static_cast<const Chunk<T, N>*>(p.in[i]) + at[u];
        in[i][u] = KEEPS && slot < kept.room ? load_raw(&kept.at(i, slot)) : load_raw(from);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= valid) break;
      Chunk<T, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = static_cast<float>(in[0][u].chunk().at[i]);
        const float other = static_cast<float>(in[Pass::IN - 1][u].chunk().at[i]);
        const float4 k = coefficients[i * COLUMNS / N];
        result.at[i] = static_cast<T>(Pass::result(k, x, other));
      }
      store_chunk<KEEPS>(static_cast<Chunk<T, N>*>(p.out) + at[u], result);
    }
  }
}

// What the rungs of day 92 share: splats in order of depth, and a list of splats for each tile.
#pragma once

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

#include "days/day38/further/one_sweep.cuh"  // taught in day 38

#include <limits>

constexpr int SIDE = 16;            // of a tile, in pixels
constexpr int64_t LARGEST = 32768;  // width and height of an image: at most 2^22 tiles

// Pairs of a splat and a tile. Places in the lists are int, and so are those a batch further on.
constexpr int64_t MOST_PAIRS = 2147483647 - 256;

struct Canvas {
  int width, height, columns, rows;  // in pixels, and in tiles
  __host__ __device__ int tiles() const { return columns * rows; }
};

// A splat and its colour, in three loads of 16 bytes.
struct Record {
  float4 shape;  // x, y, a, b
  float4 level;  // c, level, red, green
  float4 rest;   // blue, half the width and half the height of the box, nothing
};

// ---------------------------------------------------------------------------------------------
// Where a splat may be drawn.

// Tiles [x, x + columns) × [y, y + rows).
struct Box {
  int x, y, columns, rows;
  __device__ Place count() const { return static_cast<Place>(columns) * rows; }
};

// The tiles that a splat's box touches. None where a bound is NaN or the level is negative.
__device__ inline Box box_of(const Record& splat, const Canvas& canvas) {
  const float left = splat.shape.x - splat.rest.y, right = splat.shape.x + splat.rest.y;
  const float top = splat.shape.y - splat.rest.z, bottom = splat.shape.y + splat.rest.z;
  if (!(left <= right && top <= bottom && splat.level.y >= 0.0f)) return {0, 0, 0, 0};
  // Limited before the conversion: to an int, 1e30 has no value.
  const auto tile = [](float at, float low, float high) {
    return static_cast<int>(fminf(fmaxf(floorf(at / SIDE), low), high));
  };
  const int x = tile(left, 0.0f, canvas.columns), y = tile(top, 0.0f, canvas.rows);
  const int columns = tile(right, -1.0f, canvas.columns - 1) + 1 - x;
  const int rows = tile(bottom, -1.0f, canvas.rows - 1) + 1 - y;
  if (columns <= 0 || rows <= 0) return {0, 0, 0, 0};
  return {x, y, columns, rows};
}

__device__ inline float form(float a, float b, float c, float dx, float dy) {
  return fmaf(dx, fmaf(a, dx, b * dy), dy * (c * dy));
}

// Whether a pixel of the tile may lie in the splat's ellipse: there the form a dx² + b dx dy + c
// dy² is at most the level. The form is convex, so its least value in the rectangle of the tile's
// pixel centres is 0, with the splat's centre inside, or lies on one of the sides that face the
// centre. The margin is more than the rounding of form and level in any pixel of the tile.
__device__ inline bool touches(const Record& splat, int tile_x, int tile_y) {
  const float a = splat.shape.z, b = splat.shape.w, c = splat.level.x, level = splat.level.y;
  const float x0 = (tile_x * SIDE + 0.5f) - splat.shape.x, x1 = x0 + (SIDE - 1);
  const float y0 = (tile_y * SIDE + 0.5f) - splat.shape.y, y1 = y0 + (SIDE - 1);
  const float dx = fminf(fmaxf(0.0f, x0), x1), dy = fminf(fmaxf(0.0f, y0), y1);  // the nearest
  if (dx == 0.0f && dy == 0.0f) return true;
  float least = std::numeric_limits<float>::infinity();
  if (dx != 0.0f) {  // the left or the right side; dy where the form's derivative is 0
    least = form(a, b, c, dx, fminf(fmaxf(-0.5f * (b * dx) / c, y0), y1));
  }
  if (dy != 0.0f) {
    least = fminf(least, form(a, b, c, fminf(fmaxf(-0.5f * (b * dy) / a, x0), x1), dy));
  }
  const float far_x = fmaxf(fabsf(x0), fabsf(x1)), far_y = fmaxf(fabsf(y0), fabsf(y1));
  const float reach = form(a, fabsf(b), c, far_x, far_y) + level;  // no term is larger
  const bool convex = a > 0.0f && c > 0.0f && b * b <= 4.0f * (a * c);
  return !(convex && least > fmaf(1e-6f, reach, level));  // what is NaN stays in the list
}

// ---------------------------------------------------------------------------------------------
// Sorting by depth.

struct Sorted {
  Tensor keys, ids;
};

// keys (n) by their lowest `passes` digits of 8 bits, stable. ids move along; without any, they are
// 0 … n - 1.
template <typename T>
Sorted sorted_by_digits(const Tensor& keys, const Tensor* ids, int passes) {
  const int64_t n = keys.numel();
  if (n == 0 || passes == 0) return {keys, ids ? *ids : allocate(keys, {0})};
  const OneSweep<T> sweep(keys, n, "splats");
  Sorted buffers[2];
  const T* from = data<T>(keys);
  const Place* from_ids = ids ? data<Place>(*ids) : nullptr;
  for (int p = 0; p < passes; ++p) {
    Sorted& to = buffers[p % 2];
    if (p < 2) {
      to = {allocate_like(keys), allocate(keys, {n}, ScalarType::Int)};
    }
    sweep.pass(p, from, from_ids, mutable_data<T>(to.keys), mutable_data<Place>(to.ids));
    from = data<T>(to.keys);
    from_ids = data<Place>(to.ids);
  }
  return buffers[(passes - 1) % 2];
}

// Record i is splat order[i], or splat i where there is no order. No colours: black.
static __global__ void records_kernel(const float* __restrict__ splats,
                                      const float* __restrict__ colours,
                                      const Place* __restrict__ order, Record* __restrict__ records,
                                      int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (i >= n) return;
  const int64_t id = order ? order[i] : i;
  const float* const s = splats + 8 * id;
  float red = 0.0f, green = 0.0f, blue = 0.0f;
  if (colours) {
    red = colours[3 * id];
    green = colours[3 * id + 1];
    blue = colours[3 * id + 2];
  }
  records[i] = {make_float4(s[0], s[1], s[2], s[3]), make_float4(s[4], s[5], red, green),
                make_float4(blue, s[6], s[7], 0.0f)};
}

struct Records {
  Tensor memory;
  int64_t n;
  const Record* data() const { return static_cast<const Record*>(memory.const_data_ptr()); }
};

inline Records records_of(const Tensor& splats, const Tensor* colours, const Tensor* order) {
  const int64_t n = splats.size(0);
  Records records{allocate(splats, {n * 12}), n};
  if (n == 0) return records;
  records_kernel<<<grid_size(ceil_div<int64_t>(n, BLOCK), "splats"), BLOCK, 0,
                   current_stream(splats)>>>(
      data<float>(splats), colours ? data<float>(*colours) : nullptr,
      order ? data<Place>(*order) : nullptr,
      static_cast<Record*>(records.memory.mutable_data_ptr()), n);
  check_launch("records");
  return records;
}

inline Canvas check_splats(const Tensor& splats, const Tensor& depths, int64_t width,
                           int64_t height) {
  check(splats, "splats").on_gpu().dtype({ScalarType::Float}).rank(2).size(1, 8).contiguous();
  check(depths, "depths").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  check(depths, "depths").size(0, splats.size(0)).same_device(splats, "splats");
  STD_TORCH_CHECK(splats.size(0) <= 2147483647, "splats: expected at most 2147483647, got ",
                  splats.size(0));
  const auto check_side = [](int64_t side, const char* name) {
    STD_TORCH_CHECK(side >= 1 && side <= LARGEST, name, ": expected 1 to ", LARGEST, ", got ",
                    side);
  };
  check_side(width, "width");
  check_side(height, "height");
  return {static_cast<int>(width), static_cast<int>(height),
          static_cast<int>(ceil_div<int64_t>(width, SIDE)),
          static_cast<int>(ceil_div<int64_t>(height, SIDE))};
}

// ---------------------------------------------------------------------------------------------
// The lists. A block of the two kernels below has 256 splats. Their candidates, the tiles of their
// boxes, are numbered splat by splat, and its threads share them evenly: one splat may have one
// candidate, or all tiles.

struct Candidates {
  Box box[BLOCK];
  Place begin[BLOCK];  // number of each splat's first candidate
};

// Fills c with the block's splats and returns the number of candidates. Every thread calls it.
__device__ inline Place fill(Candidates& c, const Record* records, int64_t n,
                             const Canvas& canvas) {
  __shared__ Place total;
  const int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const Box box = i < n ? box_of(records[i], canvas) : Box{0, 0, 0, 0};
  const Place before = sum_before(box.count());
  c.box[threadIdx.x] = box;
  c.begin[threadIdx.x] = before;
  if (threadIdx.x == BLOCK - 1) total = before + box.count();
  __syncthreads();  // boxes and total are written before they are read
  return total;
}

// The splat of a candidate: the last one that begins there or before.
__device__ inline int splat_of(const Candidates& c, Place candidate) {
  int low = 0, high = BLOCK;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (c.begin[middle] <= candidate ? low : high) = middle;
  }
  return low;
}

struct Pair {
  int64_t splat;
  int x, y;  // of the tile
};

__device__ inline Pair pair_of(const Candidates& c, Place candidate) {
  const int t = splat_of(c, candidate);
  const int place = static_cast<int>(candidate - c.begin[t]);
  const Box box = c.box[t];
  return {int64_t{blockIdx.x} * BLOCK + t, box.x + place % box.columns,
          box.y + place / box.columns};
}

template <bool ELLIPSE>
__device__ bool keeps(const Candidates& c, Place candidate, Place total, const Record* records) {
  if (candidate >= total) return false;
  if constexpr (!ELLIPSE) return true;
  const Pair pair = pair_of(c, candidate);
  return touches(records[pair.splat], pair.x, pair.y);
}

// counts[block]: the pairs of splat and tile of its splats.
template <bool ELLIPSE>
__global__ void __launch_bounds__(BLOCK)
    count_pairs_kernel(const Record* __restrict__ records, Place* __restrict__ counts, int64_t n,
                       const Canvas canvas) {
  __shared__ Candidates c;
  const Place total = fill(c, records, n, canvas);
  Place count = total;
  if constexpr (ELLIPSE) {
    count = 0;
    for (Place first = 0; first < total; first += BLOCK) {
      count += __syncthreads_count(keeps<true>(c, first + threadIdx.x, total, records));
    }
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// One block. begins[i]: the sum of the counts before i; begins[blocks]: of all.
static __global__ void sum_counts_kernel(const Place* __restrict__ counts,
                                         uint64_t* __restrict__ begins, int64_t blocks) {
  __shared__ uint64_t of_round;
  uint64_t sum = 0;  // of all rounds so far, in every thread
  for (int64_t i = threadIdx.x; i - threadIdx.x < blocks; i += BLOCK) {
    const uint64_t count = i < blocks ? counts[i] : 0;
    const uint64_t before = sum_before(count);
    if (i < blocks) begins[i] = sum + before;
    if (threadIdx.x == BLOCK - 1) of_round = before + count;
    __syncthreads();  // the round's total is written before it is read
    sum += of_round;
    __syncthreads();  // all threads have read it before the next round writes
  }
  if (threadIdx.x == 0) begins[blocks] = sum;
}

// What a pair is sorted by: the tile, or the tile in the upper half and the depth in the lower.
__device__ inline void store_key(int32_t& key, int tile, const float*, int64_t) {
  key = tile;
}
__device__ inline void store_key(int64_t& key, int tile, const float* depths, int64_t splat) {
  key = int64_t{tile} << 32 | ordered(depths[splat]);
}
__device__ inline int tile_of(int32_t key) {
  return key;
}
__device__ inline int tile_of(int64_t key) {
  return static_cast<int>(key >> 32);
}

// Stores the pairs in the order of the splats. ids: what stands for a splat, null for its number.
template <bool ELLIPSE, typename Key>
__global__ void __launch_bounds__(BLOCK)
    store_pairs_kernel(const Record* __restrict__ records, const float* __restrict__ depths,
                       const Place* __restrict__ ids, const uint64_t* __restrict__ begins,
                       Key* __restrict__ keys, Place* __restrict__ pair_ids, int64_t n,
                       const Canvas canvas) {
  __shared__ Candidates c;
  const Place total = fill(c, records, n, canvas);
  uint64_t at = begins[blockIdx.x];
  for (Place first = 0; first < total; first += BLOCK) {
    const Place candidate = first + threadIdx.x;
    const bool kept = keeps<ELLIPSE>(c, candidate, total, records);
    Place before = threadIdx.x;
    if constexpr (ELLIPSE) before = sum_before<Place>(kept);  // after the barrier of fill, or below
    if (kept) {
      const Pair pair = pair_of(c, candidate);
      store_key(keys[at + before], pair.y * canvas.columns + pair.x, depths, pair.splat);
      pair_ids[at + before] = ids ? ids[pair.splat] : static_cast<Place>(pair.splat);
    }
    if constexpr (ELLIPSE) {
      at += __syncthreads_count(kept);
    } else {
      at += BLOCK;
    }
  }
}

// begins[tile]: the place of its first pair in the sorted keys; begins[tiles]: the number of pairs.
template <typename Key>
__global__ void tile_begins_kernel(const Key* __restrict__ keys, int* __restrict__ begins,
                                   int pairs, int tiles) {
  const int tile = blockIdx.x * BLOCK + threadIdx.x;
  if (tile > tiles) return;
  int low = 0, high = pairs;  // the result lies in [low, high]
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (tile_of(keys[middle]) < tile) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  begins[tile] = low;
}

struct Lists {
  Tensor ids;     // (pairs) int32: of the splats, tile by tile, from front to back
  Tensor begins;  // (tiles + 1) int32: where each tile's list begins
};

// Lists of the records, which are in order of depth or, with Key = int64_t, in any order. The
// number of pairs is not known before they are counted, so the host waits for the count.
template <bool ELLIPSE, typename Key>
Lists lists_of(const Records& records, const Tensor& depths, const Tensor* ids,
               const Canvas& canvas) {
  const cudaStream_t stream = current_stream(depths);
  const int64_t n = records.n;
  const unsigned blocks = grid_size(ceil_div<int64_t>(n, BLOCK), "splats");
  const Tensor counts = allocate(depths, {blocks}, ScalarType::Int);
  const Tensor sums = allocate(depths, {int64_t{blocks} + 1}, ScalarType::Long);
  uint64_t* const begins = mutable_data<uint64_t>(sums);
  uint64_t pairs = 0;
  if (n > 0) {
    count_pairs_kernel<ELLIPSE>
        <<<blocks, BLOCK, 0, stream>>>(records.data(), mutable_data<Place>(counts), n, canvas);
    check_launch("count_pairs");
    sum_counts_kernel<<<1, BLOCK, 0, stream>>>(data<Place>(counts), begins, blocks);
    check_launch("sum_counts");
    check_cuda(
        cudaMemcpyAsync(&pairs, begins + blocks, sizeof pairs, cudaMemcpyDeviceToHost, stream),
        "splats");
    check_cuda(cudaStreamSynchronize(stream), "splats");
  }
  STD_TORCH_CHECK(pairs <= MOST_PAIRS, "splats: ", pairs,
                  " pairs of a splat and a tile, more than ", MOST_PAIRS);
  const int64_t count = static_cast<int64_t>(pairs);
  constexpr ScalarType TYPE = sizeof(Key) == 4 ? ScalarType::Int : ScalarType::Long;
  const Tensor keys = allocate(depths, {count}, TYPE);
  const Tensor pair_ids = allocate(depths, {count}, ScalarType::Int);
  if (pairs > 0) {
    store_pairs_kernel<ELLIPSE><<<blocks, BLOCK, 0, stream>>>(
        records.data(), data<float>(depths), ids ? data<Place>(*ids) : nullptr, begins,
        mutable_data<Key>(keys), mutable_data<Place>(pair_ids), n, canvas);
    check_launch("store_pairs");
  }
  int passes = sizeof(Key) == 4 ? 0 : 4;  // of the depth's digits, then of the tile's
  for (int rest = canvas.tiles() - 1; rest > 0; rest >>= BITS) ++passes;
  const Sorted sorted = sorted_by_digits<Key>(keys, &pair_ids, passes);
  Lists lists{sorted.ids, allocate(depths, {int64_t{canvas.tiles()} + 1}, ScalarType::Int)};
  tile_begins_kernel<<<ceil_div(canvas.tiles() + 1, BLOCK), BLOCK, 0, stream>>>(
      data<Key>(sorted.keys), mutable_data<int>(lists.begins), static_cast<int>(pairs),
      canvas.tiles());
  check_launch("tile_begins");
  return lists;
}

// Copies of boxes of a tensor, as TMA makes them: swizzled, and cut off where the
// tensor ends.
#include "../../cuda/ptx/swizzle.cuh"
#include "runtime.h"

#include <cudacpu/capability.h>
#include <cudacpu/tensor_map.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cudacpu {

namespace {

constexpr uint32_t kMark = 0x54454e53;  // of a map that was made
constexpr unsigned kMaxRank = 5;
constexpr uint64_t kPiece = 16;  // bytes that a swizzle moves together
constexpr uintptr_t kTileAlignment = 128;

// The contents of a CUtensorMap here. Unused dimensions have one index.
struct TensorMap {
  uint32_t mark;
  uint8_t rank;
  uint8_t element_bytes;
  uint8_t swizzle;
  uint8_t element_strides[kMaxRank];
  uint16_t box[kMaxRank];
  bool fill_with_nan;
  CUtensorMapDataType type;
  char* tensor;
  uint64_t sizes[kMaxRank];
  uint64_t strides[kMaxRank];  // bytes, of each dimension

  // Return the number of indices of the box that are taken in a dimension.
  unsigned count(unsigned d) const {
    return (box[d] + element_strides[d] - 1u) / element_strides[d];
  }
  uint64_t row_bytes() const { return uint64_t{box[0]} * element_bytes; }
  uint64_t rows() const { return uint64_t{count(1)} * count(2) * count(3) * count(4); }
  uint64_t box_bytes() const { return rows() * row_bytes(); }
  // From one row of a tile to the next: with a swizzle, all that it spans, as seen on an H200.
  uint64_t pitch() const { return swizzle ? kPiece << swizzle : row_bytes(); }
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

const TensorMap& decode(const CUtensorMap& map) {
  return reinterpret_cast<const TensorMap&>(map);
}

// A box of a tensor; the map is copied, for the kernel's parameter may be gone before the copy.
struct Box {
  TensorMap map;
  int at[kMaxRank] = {};

  Box(const TensorMap& map, const int* at_begin) : map(map) { std::copy_n(at_begin, map.rank, at); }

  // The elements of a row that are in the tensor: [first, last) of its box[0].
  int64_t first() const { return std::clamp<int64_t>(-int64_t{at[0]}, 0, map.box[0]); }
  int64_t last() const {
    int64_t end = static_cast<int64_t>(map.sizes[0]) - at[0];
    return std::max(first(), std::min<int64_t>(end, map.box[0]));
  }

  // Return the address in the tensor at which row `row` of the box begins; null if the row is not
  // in the tensor. The address may lie before the tensor, as far as at[0] is negative.
  char* row_in_tensor(uint64_t row) const {
    char* place = map.tensor + int64_t{at[0]} * map.element_bytes;
    for (unsigned d = 1; d < kMaxRank; ++d) {
      int64_t index = at[d] + static_cast<int64_t>(row % map.count(d)) * map.element_strides[d];
      row /= map.count(d);
      if (index < 0 || static_cast<uint64_t>(index) >= map.sizes[d]) return nullptr;
      place += index * static_cast<int64_t>(map.strides[d]);
    }
    return place;
  }

  // Return the address of the byte at `offset` of an unpermuted tile that begins at `tile`.
  uintptr_t place_in_tile(uintptr_t tile, uint64_t offset) const {
    uintptr_t address = tile + offset;
    auto low = static_cast<uint32_t>(address % 4096);
    return address - low + ptx::swizzled(static_cast<ptx::Swizzle>(map.swizzle), low);
  }

  // Call visit(offset in the unpermuted tile, place in the tensor or null, first byte, last byte)
  // for each piece of each row; the bytes [first, last) of the piece are in the tensor. Stores take
  // `whole` pieces, as an H200 does: a row that ends within one is overwritten a little beyond.
  template <class Visit>
  void each_piece(bool whole, Visit visit) const {
    const int64_t begin = first() * map.element_bytes, end = last() * map.element_bytes;
    const auto row_bytes = static_cast<int64_t>(map.row_bytes());
    for (uint64_t row = 0; row < map.rows(); ++row) {
      char* place = row_in_tensor(row);
      for (int64_t x = 0; x < row_bytes; x += kPiece) {
        int64_t from = std::clamp<int64_t>(begin - x, 0, kPiece);
        int64_t to = place ? std::clamp<int64_t>(end - x, from, kPiece) : from;
        if (whole && to > from) to = kPiece;
        visit(row * map.pitch() + static_cast<uint64_t>(x), place ? place + x : nullptr,
              static_cast<size_t>(from), static_cast<size_t>(to));
      }
    }
  }
};

// The 16 bytes that a load writes where the box is outside the tensor.
struct Filling {
  char bytes[kPiece];

  explicit Filling(const TensorMap& map) {
    memset(bytes, 0, sizeof bytes);
    if (!map.fill_with_nan) return;
    constexpr uint32_t nan = 0x7ff77ff7;  // an H200's, of one or two elements
    for (size_t i = 0; i < sizeof bytes; i += 4) memcpy(bytes + i, &nan, 4);
  }
};

void load_box(const Box& box, char* tile) {
  const Filling filling(box.map);
  const auto base = reinterpret_cast<uintptr_t>(tile);
  box.each_piece(false, [&](uint64_t offset, const char* from, size_t first, size_t last) {
    char piece[kPiece];
    if (last - first < kPiece) memcpy(piece, filling.bytes, kPiece);
    if (last > first) memcpy(piece + first, from + first, last - first);
    memcpy(reinterpret_cast<char*>(box.place_in_tile(base, offset)), piece, kPiece);
  });
}

// Store the box. `data`: the bytes read from the tile at `tile`, in the same layout.
void store_box(const Box& box, const char* data, uintptr_t tile) {
  box.each_piece(true, [&](uint64_t offset, char* to, size_t first, size_t last) {
    const char* piece = data + (box.place_in_tile(tile, offset) - tile);
    if (last > first) memcpy(to + first, piece + first, last - first);
  });
}

template <class T>
void add_elements(char* to, const char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T value;
    memcpy(&value, from + i, sizeof value);
    atomicAdd(reinterpret_cast<T*>(to + i), value);
  }
}

// Add the box to the tensor; arguments as of store_box.
void add_box(const Box& box, const char* data, uintptr_t tile) {
  auto add = add_elements<float>;
  if (box.map.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16) add = add_elements<__half>;
  if (box.map.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) add = add_elements<__nv_bfloat16>;
  if (box.map.type == CU_TENSOR_MAP_DATA_TYPE_INT32) add = add_elements<int>;
  box.each_piece(true, [&](uint64_t offset, char* to, size_t first, size_t last) {
    const char* piece = data + (box.place_in_tile(tile, offset) - tile);
    if (last > first) add(to + first, piece + first, last - first);
  });
}

// Return the spans that a load or a store accesses; pieces outside the tensor are only written.
trace::Spans spans_in_tensor(const Box& box, bool whole, trace::Kind kind) {
  trace::Spans spans;
  if (!trace::wants_spans()) return spans;
  box.each_piece(whole, [&](uint64_t, const char* place, size_t first, size_t last) {
    if (last > first) trace::add_span(spans, place + first, last - first, kind);
  });
  return spans;
}
void add_tile_spans(trace::Spans& spans, const Box& box, const void* tile, trace::Kind kind) {
  if (!trace::wants_spans()) return;
  box.each_piece(true, [&](uint64_t offset, const char*, size_t first, size_t last) {
    if (kind == trace::Kind::kRead && last == first) return;
    uintptr_t piece = box.place_in_tile(reinterpret_cast<uintptr_t>(tile), offset);
    trace::add_span(spans, reinterpret_cast<const void*>(piece), kPiece, kind);
  });
}

void check_start(const char* what, const TensorMap& map, const int* at, Site site) {
  int64_t byte = int64_t{at[0]} * map.element_bytes;
  if (byte % static_cast<int64_t>(kPiece))
    trap(site,
         "%s: the box begins at element %d of dimension 0, byte %lld: it must be a multiple of 16",
         what, at[0], static_cast<long long>(byte));
}

void check_tile(const char* what, const void* tile, const char* role, Site site) {
  if (!__isShared(tile))
    trap(site, "%s: the %s %p is not in the block's shared memory", what, role, tile);
  if (reinterpret_cast<uintptr_t>(tile) % kTileAlignment)
    trap(site, "%s: misaligned: the %s %p must be a multiple of %zu", what, role, tile,
         static_cast<size_t>(kTileAlignment));
}

}  // namespace

void encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, unsigned rank, void* tensor,
                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                       const cuuint32_t* element_strides, unsigned swizzle, bool fill_with_nan) {
  TensorMap made = {};
  made.mark = kMark;
  made.rank = static_cast<uint8_t>(rank);
  made.type = type;
  bool is_word = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_INT32;
  made.element_bytes = is_word ? 4 : type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
  made.swizzle = static_cast<uint8_t>(swizzle);
  made.fill_with_nan = fill_with_nan;
  made.tensor = static_cast<char*>(tensor);
  for (unsigned d = 0; d < kMaxRank; ++d) {
    made.sizes[d] = d < rank ? sizes[d] : 1;
    made.strides[d] = d == 0 ? made.element_bytes : d < rank ? strides[d - 1] : 0;
    made.box[d] = static_cast<uint16_t>(d < rank ? box[d] : 1);
    made.element_strides[d] = static_cast<uint8_t>(d < rank ? element_strides[d] : 1);
  }
  *map = {};
  memcpy(map, &made, sizeof made);
}

void check_tensor_map(const char* what, const CUtensorMap& map, int rank, Site site) {
  needs_capability(90, what, site);
  const TensorMap& decoded = decode(map);
  if (decoded.mark != kMark)
    trap(site, "%s: this is not a tensor map that make_tensor_map made", what);
  if (rank && decoded.rank != rank)
    trap(site, "%s: %d coordinate(s) for a tensor of %u dimension(s)", what, rank, decoded.rank);
}

std::pair<const char*, const char*> ends_of_box(const char* what, const CUtensorMap& map,
                                                const int* at, int rank, bool write, Site site) {
  check_tensor_map(what, map, rank, site);
  check_start(what, decode(map), at, site);
  const Box box(decode(map), at);
  if constexpr (kWatchesAddresses)
    check_spans(spans_in_tensor(box, write, write ? trace::Kind::kWrite : trace::Kind::kRead),
                site);
  const int64_t first = box.first() * box.map.element_bytes,
                last = box.last() * box.map.element_bytes;
  const char *begin = nullptr, *end = nullptr;
  if (first == last) return {begin, end};
  for (uint64_t row = 0; row < box.map.rows(); ++row) {
    const char* place = box.row_in_tensor(row);
    if (!place) continue;
    if (!begin) begin = place + first;
    end = place + last - 1;
  }
  return {begin, end};
}

// Queue a load to the running block, or with a mask to the blocks of its cluster whose ranks are
// bits of the mask.
void queue_tensor_load(void* tile, const CUtensorMap& map, const int* at, uint64_t* barrier,
                       const unsigned* mask, Site site) {
  const char* what = "cp.async.bulk.tensor";
  check_tile(what, tile, "destination", site);
  check_mbarrier_place(barrier, what, site);
  const Box box(decode(map), at);
  const auto bytes = static_cast<int>(box.map.box_bytes());
  auto queue = [&](ResidentBlock& block, uint64_t* barrier_there, char* tile_there) {
    trace::Spans spans = spans_in_tensor(box, false, trace::Kind::kRead);
    add_tile_spans(spans, box, tile_there, trace::Kind::kWrite);
    if (trace::wants_spans()) spans.push_back(trace::mbarrier_span(barrier_there));
    auto load = [=] { load_box(box, tile_there); };
    queue_transfer({barrier_there, bytes, load, std::move(spans)}, block, what, site);
  };
  if (!mask) return queue(block_of(*current), barrier, static_cast<char*>(tile));
  const unsigned size = worker->launch()->cluster_size;
  if (*mask == 0 || *mask >> size)
    trap(site,
         "%s: the mask 0x%x names no block, or a block that does not exist: the cluster has %u",
         what, *mask, size);
  for (unsigned rank = 0; rank < size; ++rank) {
    if (!(*mask >> rank & 1)) continue;
    auto* tile_there = static_cast<char*>(map_to_rank(tile, rank, what, site));
    auto* barrier_there = static_cast<uint64_t*>(map_to_rank(barrier, rank, what, site));
    queue(running_block_around(tile_there, what, site), barrier_there, tile_there);
  }
}

void queue_tensor_store(const CUtensorMap& map, const int* at, const void* tile, bool add,
                        Site site) {
  const char* what = add ? "cp.reduce.async.bulk.tensor" : "cp.async.bulk.tensor";
  check_tile(what, tile, "source", site);
  const Box box(decode(map), at);
  if (add && box.map.element_bytes == 1)
    trap(site, "%s: elements of one byte cannot be added", what);
  for (int d = 0; d < box.map.rank; ++d)
    if (at[d] < 0)
      trap(site, "%s: a store begins at index %d of dimension %d; it cannot be negative", what,
           at[d], d);
  // Rows of tensors of more dimensions are padded, for their strides are multiples of 16 bytes.
  if (box.map.rank == 1 && box.last() > 0 && box.last() * box.map.element_bytes % kPiece)
    trap(site, "%s: the tensor ends within a piece of 16 bytes, all of which the store writes",
         what);
  const auto address = reinterpret_cast<uintptr_t>(tile);
  const uint64_t bytes = box.map.rows() * box.map.pitch();  // a swizzle moves pieces within a row
  auto write = [=](const char* data) {
    if (add)
      add_box(box, data, address);
    else
      store_box(box, data, address);
  };
  trace::Spans reads;
  add_tile_spans(reads, box, tile, trace::Kind::kRead);
  auto writes = spans_in_tensor(box, true, add ? trace::Kind::kAtomic : trace::Kind::kWrite);
  queue_bulk_store(
      {static_cast<const char*>(tile), bytes, write, site, std::move(reads), std::move(writes)});
}

}  // namespace cudacpu

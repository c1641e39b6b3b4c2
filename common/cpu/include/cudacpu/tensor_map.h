// The CPU bodies of tensor maps and of copies with them (common/cuda/ptx/tensor_*.cuh).
#pragma once

#include <cuda.h>

#include <utility>

#include "cudacpu/thread.h"

namespace cudacpu {

// Write a map whose arguments have been checked. swizzle: the number of address bits it changes.
void encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, unsigned rank, void* tensor,
                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                       const cuuint32_t* element_strides, unsigned swizzle, bool fill_with_nan);

// Trap unless this is a map of a tensor of that many dimensions; 0: any.
void check_tensor_map(const char* what, const CUtensorMap& map, int rank, Site site);

// The first and the last element of a box that are in the tensor; null if none is. Checks the map,
// and in builds that watch addresses all of the box: is it memory to read, or to `write`?
std::pair<const char*, const char*> ends_of_box(const char* what, const CUtensorMap& map,
                                                const int* at, int rank, bool write, Site site);

void queue_tensor_load(void* tile, const CUtensorMap& map, const int* at, uint64_t* barrier,
                       const unsigned* mask, Site site);
void queue_tensor_store(const CUtensorMap& map, const int* at, const void* tile, bool add,
                        Site site);

// A tensor that is not there faults here, at the kernel's line, and not when the copy takes place.
inline void touch_box(const char* what, const CUtensorMap& map, const int* at, int rank, bool write,
                      Site site) {
  auto [first, last] = ends_of_box(what, map, at, rank, write, site);
  if (!first) return;
  static_cast<void>(*static_cast<const volatile char*>(first));
  static_cast<void>(*static_cast<const volatile char*>(last));
}

inline void start_tensor_load(void* tile, const CUtensorMap& map, const int* at, int rank,
                              uint64_t* barrier, Site site) {
  touch_box("cp.async.bulk.tensor", map, at, rank, false, site);
  queue_tensor_load(tile, map, at, barrier, nullptr, site);
}

inline void start_tensor_multicast(void* tile, const CUtensorMap& map, const int* at, int rank,
                                   uint64_t* barrier, unsigned mask, Site site) {
  touch_box("cp.async.bulk.tensor", map, at, rank, false, site);
  queue_tensor_load(tile, map, at, barrier, &mask, site);
}

inline void start_tensor_store(const CUtensorMap& map, const int* at, int rank, const void* tile,
                               bool add, Site site) {
  touch_box(add ? "cp.reduce.async.bulk.tensor" : "cp.async.bulk.tensor", map, at, rank, true,
            site);
  queue_tensor_store(map, at, tile, add, site);
}

}  // namespace cudacpu

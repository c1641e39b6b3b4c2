// cooperative_groups::memcpy_async: the threads of a group copy to shared memory, and wait later.
//
// As on a GPU, each call is one group of cp.async of every thread (runtime/async_copy.cpp), so that
// the copies take place as late as is legal: at the wait. A GPU copies data without 4-byte
// alignment at once; nothing guarantees that, and here the copy is late, too.
#pragma once

#include "../cooperative_groups.h"
#include "../cudacpu/group_copy.h"

namespace cooperative_groups {

namespace details {

// One call: copies, which are one group of cp.async of every thread.
template <class Group>
void copy_bytes(const Group& group, void* to, const void* from, size_t bytes, size_t alignment,
                cudacpu::Site site) {
  if (bytes % alignment)
    cudacpu::trap(site, "memcpy_async: %zu bytes; the number must be a multiple of %zu", bytes,
                  alignment);
  // NVIDIA's header (CUDA 13.0) looks only at how far apart both are, and takes words of 2 bytes.
  uintptr_t apart = reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from);
  if (alignment == 1 && bytes > 1 && apart % 4 == 2 &&
      (reinterpret_cast<uintptr_t>(to) % 2 || bytes % 2))
    cudacpu::trap(site,
                  "memcpy_async: the destination %p and the source %p are 2 bytes apart, but for "
                  "multiples of 4; a GPU then copies 2 bytes at a time: the addresses and the "
                  "number of bytes, %zu, must be even",
                  to, from, bytes);
  cudacpu::copy_by_group(group, to, from, bytes, alignment, site);
  cudacpu::commit_copies();
}

}  // namespace details

// Copy `bytes` bytes. The alignment is that of the type, or of an aligned size (which has the form
// of cuda::aligned_size_t); the number of bytes must be a multiple of it.
template <class Group, class T, class Size>
void memcpy_async(const Group& group, T* to, const T* from, const Size& bytes, CUDACPU_HERE) {
  details::copy_bytes(group, to, from, static_cast<size_t>(bytes), cudacpu::copy_alignment<T>(),
                      {file, line});
}
template <class Group, class T, template <size_t> class Aligned, size_t alignment>
void memcpy_async(const Group& group, T* to, const T* from, const Aligned<alignment>& bytes,
                  CUDACPU_HERE) {
  details::copy_bytes(group, to, from, static_cast<size_t>(bytes),
                      std::min(alignment, cudacpu::kCopyBytes), {file, line});
}

// Copy as many elements as there are on both sides.
template <class Group, class T>
void memcpy_async(const Group& group, T* to, size_t elements_to, const T* from,
                  size_t elements_from, CUDACPU_HERE) {
  details::copy_bytes(group, to, from, std::min(elements_to, elements_from) * sizeof(T),
                      cudacpu::copy_alignment<T>(), {file, line});
}

// Wait for the copies of all threads of the group, but for their `Stage` youngest calls.
template <unsigned Stage, class Group>
void wait_prior(const Group& group, CUDACPU_HERE) {
  cudacpu::wait_for_copies(Stage);
  group.sync(file, line);
}
template <class Group>
void wait(const Group& group, CUDACPU_HERE) {
  wait_prior<0>(group, file, line);
}

}  // namespace cooperative_groups

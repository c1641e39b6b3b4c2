// The copies that the threads of a group share out among them: memcpy_async of cooperative groups
// and of libcu++.
#pragma once

#include <algorithm>

#include "ptx.h"

namespace cudacpu {

constexpr size_t kCopyBytes = 16;  // of one cp.async

// Copy `bytes` bytes from global to shared memory, 16 at a time, in turn by the threads of the
// group. Between other memories, bytes are copied at once. The addresses must be multiples of
// `alignment`.
template <class Group>
void copy_by_group(const Group& group, void* to, const void* from, size_t bytes, size_t alignment,
                   Site site) {
  if (reinterpret_cast<uintptr_t>(to) % alignment || reinterpret_cast<uintptr_t>(from) % alignment)
    trap(site,
         "memcpy_async: misaligned address: the destination %p and the source %p must be "
         "multiples of %zu",
         to, from, alignment);
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  const size_t rank = group.thread_rank(), threads = group.size();
  if (!__isShared(to) || __isShared(from)) {
    for (size_t i = rank; i < bytes; i += threads) target[i] = source[i];
  } else {
    for (size_t i = rank * kCopyBytes; i < bytes; i += threads * kCopyBytes)
      start_group_copy(target + i, source + i, std::min(kCopyBytes, bytes - i), site);
  }
}

// The alignment that a copy of such elements can count on.
template <class T>
constexpr size_t copy_alignment() {
  if constexpr (std::is_void_v<T>)
    return 1;
  else
    return std::min<size_t>(alignof(T), kCopyBytes);
}

}  // namespace cudacpu

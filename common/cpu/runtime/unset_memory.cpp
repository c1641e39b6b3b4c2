// Bytes of cudaMalloc's memory that no kernel, copy or fill has written yet, and of tensors that a
// launcher allocates through PyTorch without a fill (common/check/guard.py). The memory of the
// program, which host code can write, is not followed.
#include "tracer.h"

#include <map>

namespace cudacpu::trace {

namespace {

struct Followed {
  uintptr_t begin = 0;
  std::vector<bool> written;
};

std::mutex followed_mutex;
std::map<uintptr_t, Followed> followed;  // by where it ends

// The caller holds the lock.
Followed* find_followed(uintptr_t address) {
  auto after = followed.upper_bound(address);
  if (after == followed.end() || address < after->second.begin) return nullptr;
  return &after->second;
}

// Call f(bytes, index of the first, how many) for the part of a range that is followed.
template <class F>
void each_followed(uintptr_t address, size_t bytes, F f) {
  std::lock_guard lock(followed_mutex);
  if (Followed* found = find_followed(address)) {
    const size_t first = address - found->begin;
    f(found->written, first, std::min(bytes, found->written.size() - first));
  }
}

}  // namespace

void follow(const void* begin, size_t bytes) {
  std::lock_guard lock(followed_mutex);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  followed[address + bytes] = {address, std::vector<bool>(bytes)};
}

void follow_no_longer(const void* begin) {
  std::lock_guard lock(followed_mutex);
  auto after = followed.upper_bound(reinterpret_cast<uintptr_t>(begin));
  if (after != followed.end() && after->second.begin == reinterpret_cast<uintptr_t>(begin))
    followed.erase(after);
}

void written(const void* begin, size_t bytes) {
  each_followed(reinterpret_cast<uintptr_t>(begin), bytes, [](auto& bits, size_t i, size_t count) {
    std::fill_n(bits.begin() + static_cast<ptrdiff_t>(i), count, true);
  });
}

std::optional<std::pair<size_t, size_t>> unset_part(const void* begin, size_t bytes) {
  constexpr size_t kPadding = 15;  // the longest: before a member that is aligned to 16 bytes
  constexpr size_t kFewRuns = 2;   // padding comes again with each structure
  constexpr size_t kMany = 64;     // bytes
  size_t first = 0, last = 0, runs = 0, run = 0, longest = 0;
  each_followed(reinterpret_cast<uintptr_t>(begin), bytes, [&](auto& bits, size_t i, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      if (bits[i + k]) {
        run = 0;
        continue;
      }
      if (runs == 0) first = k;
      runs += run == 0;
      last = k;
      longest = std::max(longest, ++run);
    }
  });
  if (runs == 0) return {};
  const bool is_padding = longest <= kPadding && (runs > kFewRuns || bytes < kMany);
  if (is_padding && longest < bytes) return {};
  return std::pair{first, last};
}

bool reads_unset(uintptr_t address, size_t bytes) {
  bool unset = false;
  each_followed(address, bytes, [&](auto& bits, size_t i, size_t count) {
    for (size_t k = i; k < i + count; ++k) unset |= !bits[k];
  });
  return unset;
}

}  // namespace cudacpu::trace

extern "C" {

// Follow a tensor, from now on empty.
void cudacpu_follow(uintptr_t begin, size_t bytes) {
  cudacpu::trace::follow(reinterpret_cast<void*>(begin), bytes);
}
void cudacpu_follow_no_longer(uintptr_t begin) {
  cudacpu::trace::follow_no_longer(reinterpret_cast<void*>(begin));
}
// Record that one of PyTorch's operators has written memory.
void cudacpu_written(uintptr_t begin, size_t bytes) {
  cudacpu::trace::written(reinterpret_cast<void*>(begin), bytes);
}

}  // extern "C"

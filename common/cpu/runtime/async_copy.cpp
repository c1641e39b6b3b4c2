// cp.async: copies that take place when the schedule requires, by default as late as is legal, at
// the wait for them.
#include "runtime.h"

#include <cudacpu/ptx.h>

namespace cudacpu {

namespace {

void perform(const AsyncCopy& copy) {
  memcpy(copy.to, copy.from, copy.valid);
  memset(copy.to + copy.valid, 0, size_t{copy.bytes} - copy.valid);
}

void queue(const AsyncCopy& copy, Site site) {
  check_access(copy.to, copy.bytes, true, site);
  trace::copy_started(copy.to, copy.from, copy.bytes, copy.valid, site);
  if (worker->completes_at_once()) {
    perform(copy);
    return;
  }
  block_of(*current).has_async_copies = true;
  copies_of_current().pending.push_back(copy);
}

}  // namespace

AsyncCopies& copies_of_current() {
  ResidentBlock& block = block_of(*current);
  if (block.async_copies.size() != block.threads.size())
    block.async_copies.resize(block.threads.size());
  return block.async_copies[static_cast<size_t>(current - block.threads.data())];
}

void perform_copies(ResidentBlock& block, AsyncCopies& copies, uint64_t until, uint32_t clock) {
  if (until <= copies.performed) return;
  auto first = copies.pending.begin(),
       last = first + static_cast<std::ptrdiff_t>(until - copies.performed);
  auto rank = static_cast<unsigned>(&copies - block.async_copies.data());
  std::for_each(first, last, [&](const AsyncCopy& copy) {
    perform(copy);
    trace::copy_done(block, rank, copy.to, copy.bytes, clock);
  });
  copies.pending.erase(first, last);
  copies.performed = until;
}

void queue_copy(void* to, const void* from, int bytes, int valid, Site site) {
  if (!__isShared(to))
    trap(site, "cp.async: the destination %p is not in the block's shared memory", to);
  if (reinterpret_cast<uintptr_t>(to) % static_cast<unsigned>(bytes) ||
      reinterpret_cast<uintptr_t>(from) % static_cast<unsigned>(bytes))
    trap(
        site,
        "cp.async: misaligned address: to copy %d bytes, the destination %p and the source %p must "
        "be multiples of %d",
        bytes, to, from, bytes);
  if (valid < 0 || valid > bytes)
    trap(site, "cp.async: %d valid bytes of %d; allowed are 0 to %d", valid, bytes, bytes);
  queue({static_cast<char*>(to), static_cast<const char*>(from), static_cast<uint8_t>(bytes),
         static_cast<uint8_t>(valid)},
        site);
}

void queue_group_copy(void* to, const void* from, size_t bytes, Site site) {
  auto size = static_cast<uint8_t>(bytes);
  queue({static_cast<char*>(to), static_cast<const char*>(from), size, size}, site);
}

void commit_copies() {
  AsyncCopies& copies = copies_of_current();
  block_of(*current).has_async_copies = true;
  copies.group_ends.push_back(copies.performed + copies.pending.size());
}

void wait_for_copies(unsigned n) {
  AsyncCopies& copies = copies_of_current();
  auto& ends = copies.group_ends;
  if (ends.size() <= n) return;
  auto first_left = ends.end() - n;
  perform_copies(block_of(*current), copies, first_left[-1], trace::clock_of_current());
  ends.erase(ends.begin(), first_left);
}

void forget_async_copies(ResidentBlock& block) {
  for (AsyncCopies& copies : block.async_copies) {
    copies.performed = 0;
    copies.pending.clear();
    copies.group_ends.clear();
  }
  block.arrivals_after_copies.clear();
  block.transfers.clear();
  block.has_async_copies = false;
}

}  // namespace cudacpu

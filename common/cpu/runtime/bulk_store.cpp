// Stores by TMA: from shared to global memory, in groups that their thread waits for.
//
// A store reads shared memory as late as bulk_wait_read (or bulk_wait) allows, and writes global
// memory as late as bulk_wait allows, so that a tile which is overwritten too early, or a result
// which is used too early, shows.
#include "runtime.h"

#include <cudacpu/capability.h>

#include <cudacpu/ptx.h>

namespace cudacpu {

namespace {

BulkStores& stores_of_current() {
  ResidentBlock& block = block_of(*current);
  if (block.bulk_stores.size() != block.threads.size())
    block.bulk_stores.resize(block.threads.size());
  block.has_bulk_stores = true;
  return block.bulk_stores[static_cast<size_t>(current - block.threads.data())];
}

void read(BulkStore& store) {
  if (!store.data.empty()) return;
  store.data.assign(store.from, store.from + store.bytes);
}

void write(BulkStore& store) {
  read(store);
  if (store.write) store.write(store.data.data());
  store.write = nullptr;
}

// Read the source of a store: the running thread has waited for that.
void read_for_waiter(BulkStore& store) {
  if (!store.data.empty()) return;
  read(store);
  trace::work_done(store.reads, store.starter, trace::clock_of_current());
}
void write_for_waiter(BulkStore& store) {
  read_for_waiter(store);
  write(store);
  trace::work_done(store.writes, store.starter, trace::clock_of_current());
}

}  // namespace

void queue_bulk_store(BulkStore store) {
  check_spans(store.reads, store.site);
  check_spans(store.writes, store.site);
  trace::work_started(store.reads, store.site);
  store.starter = trace::work_started(store.writes, store.site);
  if (worker->completes_at_once()) read(store);
  if (!store.data.empty() && worker->completes_at_once()) write(store);
  stores_of_current().pending.push_back(std::move(store));
}

void queue_flat_store(void* to, const void* from, int bytes, Site site) {
  const char* what = "cp.async.bulk.global";
  needs_capability(90, what, site);
  if (!__isShared(from))
    trap(site, "%s: the source %p is not in the block's shared memory", what, from);
  check_bulk_copy(to, from, bytes, what, site);
  auto size = static_cast<size_t>(bytes);
  auto write = [=](const char* data) { memcpy(to, data, size); };
  queue_bulk_store({static_cast<const char*>(from), size, write, site,
                    trace::spans_of({{from, size, trace::Kind::kRead}}),
                    trace::spans_of({{to, size, trace::Kind::kWrite}})});
}

void commit_stores() {
  BulkStores& stores = stores_of_current();
  stores.group_ends.push_back(stores.done + stores.pending.size());
}

// Wait for stores. Groups that have only been read stay, for a later bulk_wait.
void wait_for_stores(unsigned n, bool only_read) {
  BulkStores& stores = stores_of_current();
  auto& ends = stores.group_ends;
  if (ends.size() <= n) return;
  auto first_left = ends.end() - n;
  auto count = static_cast<std::ptrdiff_t>(first_left[-1] - stores.done);
  auto begin = stores.pending.begin();
  if (only_read) {
    std::for_each(begin, begin + count, read_for_waiter);
    return;
  }
  std::for_each(begin, begin + count, write_for_waiter);
  stores.pending.erase(begin, begin + count);
  stores.done = first_left[-1];
  ends.erase(ends.begin(), first_left);
}

// Finish the stores of a block that returns. Stores that were read are written now at the latest; a
// store not yet read would read the shared memory of the next block.
void finish_bulk_stores(ResidentBlock& block) {
  block.has_bulk_stores = false;
  for (size_t rank = 0; rank < block.bulk_stores.size(); ++rank) {
    for (BulkStore& store : block.bulk_stores[rank].pending) {
      if (store.data.empty()) {
        worker->launch()->fail(
            Stop::kFailed,
            format("the block returns while a store by TMA still reads its shared "
                   "memory: the thread that started it has to wait, by bulk_commit() and "
                   "bulk_wait_read<0>()\n  at %s:%d\n",
                   store.site.file, store.site.line) +
                describe(block.threads[rank]));
        break;
      }
      write(store);
    }
    block.bulk_stores[rank] = BulkStores{};
  }
}

void forget_bulk_stores(ResidentBlock& block) {
  block.bulk_stores.clear();
  block.has_bulk_stores = false;
}

}  // namespace cudacpu

// mbarrier: a barrier in shared memory with phases, arrivals and bytes that are due.
#include "runtime.h"

#include <cudacpu/capability.h>

#include <cudacpu/ptx.h>

namespace cudacpu {

namespace {

constexpr int kMaxArrivals = (1 << 20) - 1;  // and bytes due

// The contents of the 8 bytes here; on a GPU their layout is opaque to the program.
struct Word {
  uint64_t arrivals : 20;  // that a phase needs
  uint64_t pending : 20;   // of them, in this phase
  int64_t bytes : 21;      // due in this phase
  uint64_t parity : 1;     // of this phase, which is not complete
  uint64_t mark : 2;       // kValid once it is initialised
};
static_assert(sizeof(Word) == sizeof(uint64_t));
constexpr uint64_t kValid = 2;  // neither zeros nor the poison, which is all ones

}  // namespace

void check_mbarrier_place(const uint64_t* barrier, const char* what, Site site) {
  if (!__isShared(barrier))
    trap(site, "%s: the mbarrier at %p is not in the block's shared memory", what,
         static_cast<const void*>(barrier));
  if (reinterpret_cast<uintptr_t>(barrier) % 8)
    trap(site, "%s: misaligned address: the mbarrier at %p must be a multiple of 8", what,
         static_cast<const void*>(barrier));
}

namespace {

Word& valid_word(uint64_t* barrier, const char* what, Site site) {
  auto& word = *reinterpret_cast<Word*>(barrier);
  if (word.mark != kValid)
    trap(site, "%s: the mbarrier at %p was not initialised, or its memory was overwritten", what,
         static_cast<const void*>(barrier));
  return word;
}

Word& word_at(uint64_t* barrier, const char* what, Site site) {
  check_mbarrier_place(barrier, what, site);
  return valid_word(barrier, what, site);
}

bool somebody_waits(const uint64_t* barrier) {
  for (const MbarrierWaiters& waiters : worker->mbarrier_waiters)
    if (waiters.barrier == barrier) return true;
  return false;
}

void end_phase_if_complete(const uint64_t* barrier, Word& word) {
  worker->progress();
  if (word.pending || word.bytes) return;
  word.pending = word.arrivals;
  word.parity ^= 1;
  trace::phase_ended(barrier);
  auto& all = worker->mbarrier_waiters;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].barrier != barrier) continue;
    worker->make_ready(all[i].threads);
    all[i] = all.back();
    all.pop_back();
    return;
  }
}

void arrive_once(const uint64_t* barrier, Word& word, const char* what, Site site) {
  if (!word.pending)
    trap(site, "%s: all %u arrivals of this phase have come; it only waits for %d bytes", what,
         static_cast<unsigned>(word.arrivals), static_cast<int>(word.bytes));
  --word.pending;
  end_phase_if_complete(barrier, word);
}

// Perform the copies that others have tied to this barrier of the block: a thread waits for it, or
// tests it.
void finish_copies(ResidentBlock& block, uint64_t* barrier, Word& word, Site site) {
  auto& arrivals = block.arrivals_after_copies;
  for (size_t i = 0; i < arrivals.size();) {
    ArrivalAfterCopies arrival = arrivals[i];
    if (arrival.barrier != barrier) {
      ++i;
      continue;
    }
    arrivals.erase(arrivals.begin() + static_cast<std::ptrdiff_t>(i));
    perform_copies(block_of(*current), *arrival.thread, arrival.copies, arrival.clock);
    arrive_once(barrier, word, "cp.async.mbarrier.arrive", site);
  }
  auto& transfers = block.transfers;
  for (size_t i = 0; i < transfers.size();) {
    if (transfers[i].barrier != barrier) {
      ++i;
      continue;
    }
    Transfer transfer = std::move(transfers[i]);
    transfers.erase(transfers.begin() + static_cast<std::ptrdiff_t>(i));
    transfer.perform();
    trace::work_done_at(barrier, transfer.spans, transfer.starter);
    word.bytes -= transfer.bytes;
    end_phase_if_complete(barrier, word);
  }
}

void add_bytes(Word& word, int bytes, const char* what, Site site) {
  int64_t due = word.bytes + bytes;
  if (bytes < 0 || due > kMaxArrivals)
    trap(site, "%s: %d bytes in addition to the %d pending; a phase allows 0 to %d", what, bytes,
         static_cast<int>(word.bytes), kMaxArrivals);
  word.bytes = due;
}

void arrive(uint64_t* barrier, Word& word, int bytes, const char* what, Site site) {
  add_bytes(word, bytes, what, site);
  trace::arrived_at(barrier);
  arrive_once(barrier, word, what, site);
}

int check_parity(int parity, const char* what, Site site) {
  if (parity != 0 && parity != 1) trap(site, "%s: parity %d; allowed are 0 and 1", what, parity);
  return parity;
}

struct MbarrierWait {
  Wait wait;
  const uint64_t* barrier;
};

void* wait_at_mbarrier(void* argument, void* stack_pointer) {
  auto& waiting = *static_cast<MbarrierWait*>(argument);
  Thread& self = *current;
  self.state = ThreadState::kWaiting;
  auto& all = worker->mbarrier_waiters;
  auto entry = std::find_if(all.begin(), all.end(), [&](const MbarrierWaiters& waiters) {
    return waiters.barrier == waiting.barrier;
  });
  if (entry == all.end()) entry = all.insert(all.end(), MbarrierWaiters{waiting.barrier, {}});
  entry->threads.push_back(&self);
  return worker->suspend(self, waiting.wait, stack_pointer);
}

}  // namespace

void mbarrier_init(uint64_t* barrier, int arrivals, Site site) {
  check_mbarrier_place(barrier, "mbarrier.init", site);
  if (arrivals < 1 || arrivals > kMaxArrivals)
    trap(site, "mbarrier.init: %d arrivals; allowed are 1 to %d", arrivals, kMaxArrivals);
  if (somebody_waits(barrier))
    trap(site, "mbarrier.init: threads wait for the mbarrier that is there already");
  auto count = static_cast<uint64_t>(arrivals);
  *reinterpret_cast<Word*>(barrier) = Word{count, count, 0, 0, kValid};
  trace::mbarrier_initialised(barrier, site);
}

void mbarrier_invalidate(uint64_t* barrier, Site site) {
  word_at(barrier, "mbarrier.inval", site);
  if (somebody_waits(barrier)) trap(site, "mbarrier.inval: threads still wait for it");
  *barrier = ~uint64_t{0};
}

void mbarrier_arrive(uint64_t* barrier, int bytes, Site site) {
  const char* what = "mbarrier.arrive";
  if (bytes) needs_capability(90, "mbarrier.arrive.expect_tx", site);
  arrive(barrier, word_at(barrier, what, site), bytes, what, site);
}

int mbarrier_arrive_many(uint64_t* barrier, int arrivals, bool drops, const char* what, Site site) {
  Word& word = word_at(barrier, what, site);
  if (arrivals < 1 || static_cast<uint64_t>(arrivals) > word.pending)
    trap(site, "%s: %d arrivals, where %u of this phase are left", what, arrivals,
         static_cast<unsigned>(word.pending));
  const int parity = static_cast<int>(word.parity);
  if (drops) --word.arrivals;
  trace::arrived_at(barrier);
  word.pending -= static_cast<uint64_t>(arrivals);
  end_phase_if_complete(barrier, word);
  return parity;
}

void mbarrier_expect_bytes(uint64_t* barrier, int bytes, Site site) {
  const char* what = "mbarrier.expect_tx";
  needs_capability(90, what, site);
  add_bytes(word_at(barrier, what, site), bytes, what, site);
}

void mbarrier_arrive_at_rank(uint64_t* barrier, uint32_t rank, int bytes, Site site) {
  const char* what = "mbarrier.arrive.shared::cluster";
  needs_capability(90, what, site);
  auto* there = static_cast<uint64_t*>(map_to_rank(barrier, rank, what, site));
  running_block_around(there, what, site);
  arrive(there, valid_word(there, what, site), bytes, what, site);
}

void arrive_after_copies(uint64_t* barrier, bool is_extra, Site site) {
  const char* what = "cp.async.mbarrier.arrive";
  Word& word = word_at(barrier, what, site);
  if (is_extra) {
    if (word.pending == kMaxArrivals)
      trap(site, "%s: more than %d arrivals are pending", what, kMaxArrivals);
    ++word.pending;
  }
  AsyncCopies& copies = copies_of_current();
  ResidentBlock& block = block_of(*current);
  block.has_async_copies = true;
  block.arrivals_after_copies.push_back(
      {barrier, &copies, copies.performed + copies.pending.size(), trace::clock_of_current()});
  trace::arrived_at(barrier);
  if (somebody_waits(barrier)) finish_copies(block, barrier, word, site);
}

void check_bulk_copy(const void* to, const void* from, int bytes, const char* what, Site site) {
  if (bytes <= 0 || bytes % 16 || reinterpret_cast<uintptr_t>(to) % 16 ||
      reinterpret_cast<uintptr_t>(from) % 16)
    trap(site,
         "%s: misaligned: %d bytes, the destination %p and the source %p must be multiples of 16",
         what, bytes, to, from);
}

void queue_bulk_copy(void* to, const void* from, int bytes, uint64_t* barrier, Site site) {
  const char* what = "cp.async.bulk";
  needs_capability(90, what, site);
  check_mbarrier_place(barrier, what, site);
  if (!__isShared(to))
    trap(site, "%s: the destination %p is not in the block's shared memory", what, to);
  check_bulk_copy(to, from, bytes, what, site);
  auto size = static_cast<size_t>(bytes);
  auto copy = [=] { memcpy(to, from, size); };
  auto spans = trace::spans_of({{from, size, trace::Kind::kRead},
                                {to, size, trace::Kind::kWrite},
                                trace::mbarrier_span(barrier)});
  queue_transfer({barrier, bytes, copy, spans}, block_of(*current), what, site);
}

void queue_copy_to_rank(void* to, uint32_t rank, const void* from, int bytes, uint64_t* barrier,
                        Site site) {
  const char* what = "cp.async.bulk.shared::cluster";
  needs_capability(90, what, site);
  if (!__isShared(from))
    trap(site, "%s: the source %p is not in the block's shared memory", what, from);
  check_bulk_copy(to, from, bytes, what, site);
  void* there = map_to_rank(to, rank, what, site);
  auto* barrier_there = static_cast<uint64_t*>(map_to_rank(barrier, rank, what, site));
  auto size = static_cast<size_t>(bytes);
  auto copy = [=] { memcpy(there, from, size); };
  auto spans = trace::spans_of({{from, size, trace::Kind::kRead},
                                {there, size, trace::Kind::kWrite},
                                trace::mbarrier_span(barrier_there)});
  queue_transfer({barrier_there, bytes, copy, spans}, running_block_around(there, what, site), what,
                 site);
}

void queue_async_store(uint32_t* to, uint32_t value, uint64_t* barrier, Site site) {
  const char* what = "st.async";
  needs_capability(90, what, site);
  if (worker->launch()->cluster_size < 2)
    trap(site,
         "%s: needs a cluster of two blocks or more; in a launch without clusters a GPU ends with "
         "cudaErrorIllegalInstruction, and compute-sanitizer refuses a cluster of one block",
         what);
  check_cluster_access(to, sizeof value, what, site);
  auto store = [=] { *to = value; };
  // This is a thread's store, not one of TMA: its mbarrier needs no fence.
  auto spans = trace::spans_of({{to, sizeof value, trace::Kind::kWrite}});
  queue_transfer({barrier, sizeof value, store, spans}, running_block_around(barrier, what, site),
                 what, site);
}

void queue_transfer(Transfer transfer, ResidentBlock& block, const char* what, Site site) {
  uint64_t* barrier = transfer.barrier;
  Word& word = valid_word(barrier, what, site);
  block.has_async_copies = true;
  check_spans(transfer.spans, site);
  transfer.starter = trace::work_started(transfer.spans, site);
  transfer.what = what;
  transfer.site = site;
  block.transfers.push_back(std::move(transfer));
  if (worker->completes_at_once() || somebody_waits(barrier))
    finish_copies(block, barrier, word, site);
}

// End the launch for a transfer in flight when the block returns: it would reach the shared memory
// of the next block.
void check_transfers(const ResidentBlock& block) {
  const Transfer& transfer = block.transfers.front();
  worker->launch()->fail(
      Stop::kFailed,
      format(
          "the block returns while a transfer to its shared memory is in flight: %s; a thread of "
          "it has to wait at the mbarrier\n  at %s:%d\n",
          transfer.what, transfer.site.file, transfer.site.line) +
          describe(block.threads[0]));
}

bool mbarrier_test(uint64_t* barrier, int parity, const char* what, Site site) {
  Word& word = word_at(barrier, what, site);
  finish_copies(block_of(*current), barrier, word, site);
  bool complete = static_cast<int>(word.parity) != check_parity(parity, what, site);
  if (complete)
    trace::waited_at(barrier);
  else
    poll(what, site);
  return complete;
}

void mbarrier_wait(uint64_t* barrier, int parity, const char* what, Site site) {
  Word& word = word_at(barrier, what, site);
  finish_copies(block_of(*current), barrier, word, site);
  if (static_cast<int>(word.parity) == check_parity(parity, what, site)) {
    MbarrierWait wait{{what, site}, barrier};
    cudacpu_suspend(&wait_at_mbarrier, &wait);
  }
  trace::waited_at(barrier);
}

std::string describe_mbarrier(const Thread& thread) {
  for (const MbarrierWaiters& waiters : worker->mbarrier_waiters) {
    for (const Thread* other = waiters.threads.first; other; other = other->next) {
      if (other != &thread) continue;
      const Word& word = *reinterpret_cast<const Word*>(waiters.barrier);
      // (Copies can add arrivals, and a thread that drops out takes one away.)
      const uint64_t missing = std::min<uint64_t>(word.pending, word.arrivals);
      std::string text =
          format(", phase of parity %u, where %u of %u arrivals have come",
                 static_cast<unsigned>(word.parity), static_cast<unsigned>(word.arrivals - missing),
                 static_cast<unsigned>(word.arrivals));
      if (word.bytes) text += format(" and %d bytes are pending", static_cast<int>(word.bytes));
      return text;
    }
  }
  return "";
}

}  // namespace cudacpu

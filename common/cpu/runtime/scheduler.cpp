// The worker: which thread of which block runs next on this OS thread.
//
// Threads that can run are in `ready_`; threads that have not begun are taken block by block. Ready
// threads go first, which keeps a kernel that only synchronises its warps at 32 live stacks. A
// fiber calls the kernel for one thread after the other (next_thread), so that a kernel without
// barriers never switches at all.
#include "runtime.h"
#include "warpgroup.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

CUDACPU_THREAD_LOCAL uint3 threadIdx;
CUDACPU_THREAD_LOCAL uint3 blockIdx;
CUDACPU_THREAD_LOCAL dim3 blockDim;
CUDACPU_THREAD_LOCAL dim3 gridDim;

namespace cudacpu {

CUDACPU_THREAD_LOCAL Thread* current = nullptr;
CUDACPU_THREAD_LOCAL Worker* worker = nullptr;
CUDACPU_THREAD_LOCAL bool entry_pending = false;
CUDACPU_THREAD_LOCAL bool polled = false;
CUDACPU_THREAD_LOCAL Finding last_finding = {};

namespace {

// The number of polls between two looks at the clock for an endless spin.
constexpr uint64_t kPollsPerLook = 1024;

// In a random schedule, one in so many parking threads gives way to one that has not begun.
constexpr uint32_t kStartOneIn = 8;

}  // namespace

ResidentBlock::ResidentBlock() = default;

ResidentBlock::~ResidentBlock() {
  unmap_arena(arena);
}

Worker::Worker(unsigned number)
    : number(number), os_thread(pthread_self()), offsets_(new uint32_t[kMaxSharedVariables]) {
  std::fill_n(offsets_.get(), kMaxSharedVariables, kNotPlaced);
}

// ------------------------------------------------------------------ switching

void* wait_in_queue(void* wait, void* stack_pointer) {
  return worker->suspend(*current, *static_cast<const Wait*>(wait), stack_pointer);
}

void Worker::make_current(Thread* thread) {
  current = thread;
  threadIdx = thread->index;
  if (thread->block != shown_block_) {
    shown_block_ = thread->block;
    blockIdx = block_of(*thread).index;
  }
  thread->state = ThreadState::kRunning;
  trace::switched_to(*thread);
}

// Return the stack pointer of the thread that can run next.
void* Worker::next() {
  if (launch_->stopping()) return next_is_main();
  bool start = wants_unstarted();
  if (launch_->schedule.threads == Order::kRandom && first_unstarted_ < live_.size())
    start = start || random() % kStartOneIn == 0;
  if (start) {
    fresh_fiber_ = fibers_.take();
    if (fresh_fiber_) {
      current = nullptr;  // until next_thread(), which would take it for one that has finished
      return fresh_fiber_->stack_pointer;
    }
    launch_->fail(Stop::kFailed, "no memory for the stacks of so many threads\n");
  }
  if (!ready_.size || launch_->stopping()) return next_is_main();
  Thread* next = ready_.pop_front();
  if (next->polling) --pollers_;
  make_current(next);
  return next->stack_pointer;
}

void* Worker::next_is_main() {
  current = nullptr;
  return main_stack_pointer_;
}

// Leave the main stack for threads, until none of them can run.
void* leave_main(void* self, void* stack_pointer) {
  auto& worker = *static_cast<Worker*>(self);
  worker.main_stack_pointer_ = stack_pointer;
  return worker.next();
}

// Leave a fiber whose threads have returned: it is free for others.
void* leave_fiber(void* argument, void* stack_pointer) {
  auto& fiber = *static_cast<Fiber*>(argument);
  fiber.stack_pointer = stack_pointer;
  worker->fibers_.give(&fiber);
  return worker->next();
}

void Worker::make_ready(ThreadList& threads) {
  progress();
  if (launch_->schedule.threads == Order::kRandom && threads.size > 1) {
    std::vector<Thread*> shuffled;
    while (threads.first) shuffled.push_back(threads.pop_front());
    for (size_t i = shuffled.size(); i > 1; --i) std::swap(shuffled[i - 1], shuffled[random() % i]);
    for (Thread* thread : shuffled) threads.push_back(thread);
  }
  ready_.append(threads);
}

void Worker::abandon() {
  cudacpu_continue(next_is_main());
}

uint32_t Worker::random() {  // xorshift64*
  random_state_ ^= random_state_ >> 12;
  random_state_ ^= random_state_ << 25;
  random_state_ ^= random_state_ >> 27;
  return static_cast<uint32_t>(random_state_ * 0x2545f4914f6cdd1dull >> 32);
}

// ------------------------------------------------------------------ threads

bool Worker::start_next() {
  if (current) finish_current();
  if (launch_->stopping() || ready_.size != pollers_) return false;
  // A further block is begun when none is left. Blocks that wait for each other get company in
  // poll().
  if (first_unstarted_ == live_.size() && (!live_.empty() || !take_blocks())) return false;
  ResidentBlock& block = *live_[first_unstarted_];
  if (block.arena_state == ArenaState::kNotBegun) [[unlikely]]
    open_arena(block);
  unsigned rank = block.started++;
  if (launch_->schedule.threads == Order::kReverse) rank = launch_->threads - 1 - rank;
  if (launch_->schedule.threads == Order::kRandom) rank = block.order[rank];
  if (block.started == launch_->threads) ++first_unstarted_;
  progress();
  make_current(&block.threads[rank]);
  trace::thread_begins(*current);
  return true;
}

void Worker::finish_current() {
  Thread& thread = *current;
  current = nullptr;
  thread.state = ThreadState::kReturned;
  ResidentBlock& block = block_of(thread);
  Warp& warp = *thread.warp;
  --block.alive;
  warp.alive &= ~(uint32_t{1} << thread.lane);
  if (launch_->stopping()) return;
  // Threads that have returned count as arrived, as they do on the hardware.
  if (warp.pending) complete_collectives(warp);
  if (block.barrier.arrived && block.barrier.arrived == block.alive) release_barrier(block);
  if (block.cluster) leave_cluster_barrier(thread);
  if (!block.split_barrier.mine.empty()) leave_split_barrier(thread);
  if (launch_->config.cooperative) {
    --grid_.alive;
    grid_.absent += &thread == block.threads.data();
    if (grid_.waiting.size) release_grid_barrier();
  }
  if (block.alive == 0) retire(block);
}

void fiber_main() {
  for (;;) {
    Worker& self = *worker;
    Fiber* fiber = self.fresh_fiber_;
    self.launch_->loop(self.launch_->call);
    current = nullptr;
    cudacpu_suspend(&leave_fiber, fiber);
    // A thread is to start, and this fiber was taken for it.
  }
}

bool next_thread() {
  return worker->start_next();
}

void thread_threw() {
  try {
    throw;
  } catch (const std::exception& error) {
    worker->report_exception(error.what());
  } catch (...) {
    worker->report_exception("an exception of unknown type");
  }
}

void Worker::report_exception(const char* what) {
  launch_->fail(Stop::kFailed,
                format("a C++ exception left the kernel: %s\n", what) + describe(*current));
}

// ------------------------------------------------------------------ blocks

ResidentBlock& Worker::free_block() {
  if (free_blocks_.empty()) {
    blocks_.push_back(std::make_unique<ResidentBlock>());
    blocks_.back()->arena = map_arena();
    free_blocks_.push_back(blocks_.back().get());
  }
  ResidentBlock& block = *free_blocks_.back();
  free_blocks_.pop_back();
  return block;
}

// Take the next block, or the next cluster of blocks.
bool Worker::take_blocks() {
  uint64_t position = launch_->next_position.fetch_add(1, std::memory_order_relaxed);
  if (position >= launch_->clusters) return false;
  uint64_t number = launch_->cluster_at(position);
  unsigned size = launch_->cluster_size;
  if (size == 1) {
    ResidentBlock& block = free_block();
    block.position = position;
    prepare_block(block, number, 0);
    poison(block);
    live_.push_back(&block);
    return true;
  }
  std::vector<ResidentBlock*> blocks;
  for (unsigned rank = 0; rank < size; ++rank) {
    ResidentBlock& block = free_block();
    block.position = position * size + rank;
    prepare_block(block, number, rank);
    set_arena_state(block, ArenaState::kNotBegun);
    blocks.push_back(&block);
  }
  form_cluster(blocks);
  if (launch_->schedule.blocks == Order::kReverse) std::reverse(blocks.begin(), blocks.end());
  if (launch_->schedule.blocks == Order::kRandom)
    for (unsigned i = size; i > 1; --i) std::swap(blocks[i - 1], blocks[random() % i]);
  live_.insert(live_.end(), blocks.begin(), blocks.end());
  return true;
}

void Worker::form_cluster(std::vector<ResidentBlock*> blocks) {
  clusters_.push_back(std::make_unique<Cluster>());
  Cluster& cluster = *clusters_.back();
  cluster.left = static_cast<unsigned>(blocks.size());
  for (ResidentBlock* block : blocks) {
    block->cluster = &cluster;
    cluster.barrier.alive += block->alive;
    for (Thread& thread : block->threads) thread.cluster_arrival = ArrivalPhase::kNone;
  }
  cluster.blocks = std::move(blocks);
}

void Worker::open_arena(ResidentBlock& block) {
  set_arena_state(block, ArenaState::kOpen);
  poison(block);
}

const ResidentBlock* Worker::closed_arena_at(const void* address) const {
  for (const auto& block : blocks_)
    if (block->arena_state != ArenaState::kOpen && is_in_arena(*block, address)) return block.get();
  return nullptr;
}

// `number`: of the cluster; its blocks are neighbours in the grid.
void Worker::prepare_block(ResidentBlock& block, uint64_t number, unsigned rank) {
  const dim3 &grid = launch_->config.grid, &cluster = launch_->config.cluster;
  const unsigned columns = grid.x / cluster.x, rows = grid.y / cluster.y;
  block.index.x = static_cast<unsigned>(number % columns) * cluster.x + rank % cluster.x;
  block.index.y =
      static_cast<unsigned>(number / columns % rows) * cluster.y + rank / cluster.x % cluster.y;
  block.index.z = static_cast<unsigned>(number / (uint64_t{columns} * rows)) * cluster.z +
                  rank / (cluster.x * cluster.y);
  block.rank = rank;
  block.cluster = nullptr;
  block.started = 0;
  block.alive = launch_->threads;
  block.barrier = Barrier{};
  if (block.has_async_copies) forget_async_copies(block);
  if (block.has_bulk_stores) forget_bulk_stores(block);  // of a launch that failed
  if (block.has_named_barriers) forget_named_barriers(block);
  if (!block.split_barrier.mine.empty()) block.split_barrier = BlockSplitBarrier{};
  if (block.tile_meetings) block.tile_meetings.reset();
  if (!block.warpgroups.empty()) forget_warpgroups(block);
  if (shown_block_ == &block) shown_block_ = nullptr;  // its index has changed
  block.variables = offsets_.get();
  if (block.threads.size() != launch_->threads) shape_block(block);
  unsigned left = launch_->threads;
  for (Warp& warp : block.warps) {
    warp.alive = left >= kWarpSize ? ~0u : (1u << left) - 1;
    warp.pending = 0;
    left -= kWarpSize;
  }
  if (launch_->schedule.random()) {
    // The same threads in the same order whichever worker runs the block.
    random_state_ = (uint64_t{launch_->schedule.seed} + 1) * 0x9e3779b97f4a7c15ull ^
                    (number * launch_->cluster_size + rank + 1) * 0xbf58476d1ce4e5b9ull;
    random_state_ |= 1;
  }
  if (launch_->schedule.threads == Order::kRandom) {
    block.order.resize(launch_->threads);
    for (unsigned i = 0; i < launch_->threads; ++i) block.order[i] = static_cast<uint16_t>(i);
    for (unsigned i = launch_->threads; i > 1; --i)
      std::swap(block.order[i - 1], block.order[random() % i]);
  }
  trace::block_begins(block);
}

// Threads know their place; that only changes with the shape of the block.
void Worker::shape_block(ResidentBlock& block) {
  const dim3& shape = launch_->config.block;
  block.threads.assign(launch_->threads, Thread{});
  block.warps.assign((launch_->threads + kWarpSize - 1) / kWarpSize, Warp{});
  for (unsigned rank = 0; rank < launch_->threads; ++rank) {
    Thread& thread = block.threads[rank];
    thread.index = {rank % shape.x, rank / shape.x % shape.y, rank / (shape.x * shape.y)};
    thread.lane = static_cast<uint8_t>(rank % kWarpSize);
    thread.block = &block;
    thread.warp = &block.warps[rank / kWarpSize];
  }
  for (size_t i = 0; i < block.warps.size(); ++i)
    block.warps[i].lanes = &block.threads[i * kWarpSize];
}

void Worker::retire(ResidentBlock& block) {
  launch_->blocks_returned.fetch_add(1, std::memory_order_relaxed);
  if (block.has_bulk_stores) finish_bulk_stores(block);
  if (!block.transfers.empty()) check_transfers(block);
  check_guards(block);
  trace::block_ends(block);
  if (!block.printed.empty()) collect_printed(*launch_, block);
  size_t place = std::find(live_.begin(), live_.end(), &block) - live_.begin();
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(place));
  if (place < first_unstarted_) --first_unstarted_;
  if (!block.cluster) {
    free_blocks_.push_back(&block);
  } else if (--block.cluster->left > 0) {
    set_arena_state(block, ArenaState::kReturned);
  } else {
    dissolve(*block.cluster);
  }
}

// Dissolve a cluster: all of its blocks have returned, or the launch has failed.
void Worker::dissolve(Cluster& cluster) {
  for (ResidentBlock* block : cluster.blocks) {
    set_arena_state(*block, ArenaState::kOpen);
    free_blocks_.push_back(block);
  }
  std::erase_if(clusters_, [&](const auto& owned) { return owned.get() == &cluster; });
}

// ------------------------------------------------------------------ the launch

void Worker::run(Launch& launch) {
  launch_ = &launch;
  const dim3& shape = launch.config.block;
  bool reshaped = shape.x != blockDim.x || shape.y != blockDim.y || shape.z != blockDim.z;
  blockDim = shape;
  gridDim = launch.config.grid;
  if (reshaped)
    for (auto& block : blocks_) block->threads.clear();
  forget_shared_variables();
  shared_end_ = kSharedBase + (launch.config.shared_bytes + 15) / 16 * 16;
  entry_pending = true;
  polled = false;
  polling_since.store(0);
  same_answers.store(0);
  use_signal_stack();
  working_on.store(&launch);

  grid_ = GridBarrier{};
  if (launch.config.cooperative) {
    grid_.alive = launch.blocks * launch.threads;
    while (take_blocks()) {
    }
  }
  main_loop();

  working_on.store(nullptr);
  if (launch.stopping()) {
    for (ResidentBlock* block : live_) {
      if (!block->printed.empty()) collect_printed(launch, *block);
      if (!block->cluster) free_blocks_.push_back(block);
    }
    while (!clusters_.empty()) dissolve(*clusters_.back());
    for (auto& block : blocks_) block->threads.clear();  // they were left in any state
    live_.clear();
    first_unstarted_ = 0;
    ready_ = ThreadList{};
    pollers_ = 0;
    active_mask_waiters_.clear();
    mbarrier_waiters.clear();
    fibers_.reset();
  }
  current = nullptr;
  launch_ = nullptr;
}

void Worker::main_loop() {
  for (;;) {
    if (fault.signal) report_fault();
    if (launch_->stopping()) return;
    if (ready_.size || first_unstarted_ < live_.size()) {
      cudacpu_suspend(&leave_main, this);
    } else if (live_.empty()) {
      if (!take_blocks()) return;
    } else if (!answer_active_masks()) {
      report_deadlock();
    }
  }
}

// ------------------------------------------------------------------ threads that poll

void poll(const char* what, Site site) {
  if (current) worker->poll({what, site});
}

void Worker::poll(const Wait& wait) {
  Thread& self = *current;
  if (launch_->stopping()) {
    const Site& site = wait.site;
    launch_->add(format("  stopped in %s at %s:%d\n", wait.what, site.file, site.line) +
                 describe(self));
    abandon();
  }
  self.wait = &wait;
  if (!polled) progress();  // an atomic operation succeeded since
  polled = true;
  // After two rounds in which all threads only polled, no thread here will act. Another block may
  // act, or another worker, or none.
  if (++polls_ > 2 * (uint64_t{ready_.size} + 1) && first_unstarted_ == live_.size()) {
    if (launch_->fits_another() && take_blocks()) {
      progress();
    } else if (polls_ % kPollsPerLook == 0) {
      if (endless_spin()) {
        report_deadlock();
        abandon();
      }
      sched_yield();
    }
  }
  if (!ready_.size && first_unstarted_ == live_.size()) return;
  self.state = ThreadState::kReady;
  self.polling = true;
  ready_.push_back(&self);
  ++pollers_;
  cudacpu_suspend(&wait_in_queue, const_cast<Wait*>(&wait));
  self.polling = false;
}

// Return true if all workers of the launch have done nothing but poll for some time, and no other
// process can end that.
bool Worker::endless_spin() {
  if (shares_memory()) return false;
  double now = seconds();
  if (polls_ == kPollsPerLook) polling_since.store(now);
  polling_at.store(now);
  return everybody_polls(*launch_, now - settings().spin_limit.load());
}

// Called by the signal handler, between any two instructions. A thread that waits for others by
// polling is for endless_spin() to judge.
void Worker::answer_watchdog() {
  bool same = current && current == answered_ && !polls_;
  answered_ = current;
  same_answers.store(same ? same_answers.load() + 1 : 0);
}

void nanosleep(unsigned nanoseconds, Site site) {
  if (current) worker->sleep(nanoseconds, site);
}

void Worker::sleep(unsigned nanoseconds, Site site) {
  // Nothing else to do here: really sleep, but not so long that an interrupt would have to wait.
  bool alone = !ready_.size && first_unstarted_ == live_.size();
  if (alone) usleep(std::min(nanoseconds / 1000, 1000u));
  poll({"__nanosleep", site});
}

// ------------------------------------------------------------------ __activemask

uint32_t active_mask(Site site) {
  return worker->active_mask(site);
}

// Lanes that are together on the hardware come here one by one: the answer has to wait until no
// other thread can come. Those that wait at the same place of the same warp were together.
uint32_t Worker::active_mask(Site site) {
  Thread& self = *current;
  uint32_t mask = uint32_t{1} << self.lane;
  if (self.warp->alive == mask) return mask;
  self.exchange = &mask;
  self.state = ThreadState::kWaiting;
  active_mask_waiters_.push_back(&self);
  Wait wait{"__activemask", site};
  cudacpu_suspend(&wait_in_queue, &wait);
  return mask;
}

bool Worker::answer_active_masks() {
  if (active_mask_waiters_.empty()) return false;
  std::vector<Thread*> waiters;
  waiters.swap(active_mask_waiters_);
  for (Thread* thread : waiters) {
    uint32_t& mask = *static_cast<uint32_t*>(thread->exchange);
    for (Thread* other : waiters)
      if (other->warp == thread->warp && same(other->wait->site, thread->wait->site))
        mask |= uint32_t{1} << other->lane;
  }
  std::sort(waiters.begin(), waiters.end());
  if (launch_->schedule.threads == Order::kReverse) std::reverse(waiters.begin(), waiters.end());
  ThreadList list;
  for (Thread* thread : waiters) list.push_back(thread);
  make_ready(list);
  return true;
}

// ------------------------------------------------------------------ what went wrong

void Worker::report_deadlock() {
  unsigned returned = 0;
  for (ResidentBlock* block : live_) returned += launch_->threads - block->alive;
  std::string message = polls_ ? "no thread makes progress: all of them wait for another to act\n"
                               : "deadlock: every thread waits for another\n";
  message += describe_waiting(live_);
  if (returned) message += format("  %u thread(s) have returned\n", returned);
  const uint64_t left = launch_->blocks - launch_->blocks_begun();
  if (left && !launch_->fits_another())
    message += format(
        "  %llu block(s) have not begun: %llu are resident, as many as %s holds; where blocks wait "
        "for the whole grid, cudaLaunchCooperativeKernel refuses one that does not fit\n",
        static_cast<unsigned long long>(left),
        static_cast<unsigned long long>(launch_->blocks_begun() - launch_->blocks_returned.load()),
        device_name().c_str());
  if (grid_.waiting.size && grid_.absent)
    message += format(
        "  in %llu block(s), thread (0,0,0) has returned: grid.sync() can never "
        "complete\n",
        static_cast<unsigned long long>(grid_.absent));
  launch_->fail(Stop::kFailed, std::move(message));
}

bool is_local(const void* pointer) {
  return worker && worker->fibers().top_of(pointer) != pointer;
}

unsigned smid() {
  return worker ? worker->number % static_cast<unsigned>(model().multiprocessors) : 0;
}

}  // namespace cudacpu

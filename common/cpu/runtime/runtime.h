// Declarations that the parts of the runtime library share.
//
// A launch (launch.cpp) is run by workers, one for each OS thread (pool.cpp). A worker takes blocks
// and runs their threads as fibers (scheduler.cpp, fiber.cpp). A thread that must wait parks in a
// barrier (barrier.cpp, cluster.cpp) or a warp collective (collective.cpp) and the worker switches
// to the next. Every failure ends as Launch::fail, and run_grid throws it on the thread that
// launched.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <cudacpu/wide_tile.h>

#include "models.h"
#include "trace.h"

namespace cudacpu {

// Limits that every card has; model() has the others.
constexpr unsigned kMaxThreadsPerBlock = 1024;
constexpr unsigned kWarpSize = 32;
constexpr unsigned kPortableClusterSize = 8;
constexpr size_t kSharedDefault = 48 * 1024;
// Limits of arrays and textures, in elements (the guide's table of technical specifications), and
// the alignment of their memory, in bytes.
constexpr int kMaxWidth = 131072;
constexpr int kMaxHeight = 65536;
constexpr int kMaxSide3D = 16384;
constexpr size_t kMaxLinear = size_t{1} << 28;
constexpr size_t kTextureAlignment = 512;
constexpr size_t kTexturePitchAlignment = 32;

// Thrown by a launch that failed; PyTorch turns it into a RuntimeError.
class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// ------------------------------------------------------------------ fiber.cpp

// A stack and where it was left.
struct Fiber {
  void* stack_pointer;
  char* stack;  // lowest usable address; below it, any access faults
  Fiber* next;  // in the free list
  unsigned number;
};

// The fibers of one worker.
class FiberPool {
 public:
  ~FiberPool();
  Fiber* take();  // null if there is no memory left for stacks
  void give(Fiber* fiber) {
    fiber->next = free_;
    free_ = fiber;
  }
  // Take all of them back, wherever they were; used after a launch that failed.
  void reset();
  bool is_guard(const void* address) const;
  const char* top_of(const void* address) const;  // the end of the stack that holds the address
  // The memory that holds the stack with this address, and other stacks.
  std::pair<const void*, const void*> mapping_of(const void* address) const;
  static size_t stack_bytes();

 private:
  bool grow();
  void prepare(Fiber& fiber);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<void*> mappings_;
  Fiber* free_ = nullptr;
};

// Go on where a stack was left, for good.
extern "C" [[noreturn]] void cudacpu_continue(void* stack_pointer);

// ------------------------------------------------------------------ threads, warps, blocks

// First in, first out, linked through Thread::next.
struct ThreadList {
  Thread* first = nullptr;
  Thread* last = nullptr;
  unsigned size = 0;

  void push_back(Thread* thread) {
    thread->next = nullptr;
    (last ? last->next : first) = thread;
    last = thread;
    ++size;
  }
  void push_front(Thread* thread) {
    thread->next = first;
    first = thread;
    if (!last) last = thread;
    ++size;
  }
  Thread* pop_front() {
    Thread* thread = first;
    first = thread->next;
    if (!first) last = nullptr;
    --size;
    return thread;
  }
  void append(ThreadList& other) {
    if (!other.first) return;
    (last ? last->next : first) = other.first;
    last = other.last;
    size += other.size;
    other = ThreadList{};
  }
};

struct Barrier {
  ThreadList waiting;
  unsigned arrived = 0;
  unsigned predicates = 0;  // how many arrived with a true one
  BarrierKind kind = BarrierKind::kPlain;
  const Arrival* first = nullptr;  // of those that wait, for messages
};

// The barrier of a cooperative launch.
struct GridBarrier {
  ThreadList waiting;
  uint64_t alive = 0;   // threads of the grid that have not returned
  uint64_t absent = 0;  // blocks whose first thread has
};

// A collective that some lanes of its mask have reached.
struct Collective {
  uint32_t mask;
  uint32_t arrived;
  const Meeting* first;
};

struct Warp {
  uint32_t alive;    // lanes that have not returned
  unsigned pending;  // collectives in the table
  Thread* lanes;
  Collective table[kWarpSize];
};

// cp.async: a copy that has begun and not taken place, and those of a thread, oldest first.
struct AsyncCopy {
  char* to;
  const char* from;
  uint8_t bytes;
  uint8_t valid;  // of these; the rest becomes zero
};
struct AsyncCopies {
  std::vector<AsyncCopy> pending;
  uint64_t performed = 0;            // copies that came before these
  std::vector<uint64_t> group_ends;  // of each committed group: how many copies end with it
};

// An arrival at an mbarrier that follows a thread's first `copies` copies.
struct ArrivalAfterCopies {
  uint64_t* barrier;
  AsyncCopies* thread;
  uint64_t copies;
  uint32_t clock;  // of that thread, for the tracer
};

// A transfer of TMA to a block, for which an mbarrier there waits.
struct Transfer {
  uint64_t* barrier;
  int bytes;
  std::function<void()> perform;
  trace::Spans spans;
  const char* what = "";  // what and where it was started
  Site site = {};
  trace::Starter starter = {};
};

// A store of TMA: what it has read of shared memory, and what writes it to global
// memory.
struct BulkStore {
  const char* from;
  size_t bytes;
  std::function<void(const char* data)> write;  // null once that is done
  Site site;
  trace::Spans reads, writes;
  trace::Starter starter = {};
  std::vector<char> data = {};  // empty until it is read
};
// The bulk stores of a thread, oldest first.
struct BulkStores {
  std::vector<BulkStore> pending;
  uint64_t done = 0;                 // stores that came before these
  std::vector<uint64_t> group_ends;  // of each committed group: how many stores end with it
};

// A barrier of some warps of a block.
struct NamedBarrier {
  ThreadList waiting;
  unsigned arrived = 0;   // threads, in whole warps
  unsigned expected = 0;  // set by the first to arrive
  uint32_t phase = 0;     // how often it was completed
};

// Threads that wait for a phase of an mbarrier.
struct MbarrierWaiters {
  const uint64_t* barrier;
  ThreadList threads;
};

// The state of a block's shared memory: it may be used or not; only in a launch with clusters can
// it be closed.
enum class ArenaState : uint8_t { kOpen, kNotBegun, kReturned };

struct ResidentBlock;

// A barrier in two halves.
struct SplitBarrier {
  ThreadList waiting;
  uint64_t alive = 0;    // threads that have not returned
  uint64_t arrived = 0;  // of them, at this phase
  uint32_t phase = 0;
};
struct BlockSplitBarrier {
  SplitBarrier barrier;
  std::vector<ArrivalPhase> mine;  // by thread; empty until it is used
};

// Blocks that are resident together, and their barrier.
struct Cluster {
  std::vector<ResidentBlock*> blocks;  // by rank
  unsigned left = 0;                   // blocks that have not returned
  SplitBarrier barrier;
};

// The meeting point of the threads of a tile of several warps.
struct TileMeeting {
  ThreadList waiting;
  unsigned arrived = 0;
  const TilePart* first = nullptr;  // of those that are there
};
// Tiles of n threads begin at 1024 / n, so that each has a different number.
struct TileMeetings {
  TileMeeting of[kMaxThreadsPerBlock / kWarpSize];
};

struct Warpgroup;  // warpgroup.h

struct ResidentBlock : Block {
  uint3 index;
  uint64_t position;           // in the order of the schedule
  unsigned rank;               // in its cluster
  Cluster* cluster = nullptr;  // null while it has none and needs none
  ArenaState arena_state = ArenaState::kOpen;
  unsigned started;  // threads that have begun
  unsigned alive;    // threads that have not returned, begun or not
  Barrier barrier;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<uint16_t> order;  // of the threads, in a random schedule
  std::string printed;
  std::vector<std::pair<std::ptrdiff_t, size_t>> printers;  // in Prints::kSorted: rank and bytes
  std::vector<AsyncCopies> async_copies;                    // by thread; empty until one is used
  std::vector<ArrivalAfterCopies> arrivals_after_copies;
  std::vector<Transfer> transfers;
  bool has_async_copies = false;
  std::vector<BulkStores> bulk_stores;  // by thread; empty until one is used
  bool has_bulk_stores = false;
  NamedBarrier named_barriers[16];
  bool has_named_barriers = false;
  BlockSplitBarrier split_barrier;
  std::unique_ptr<TileMeetings> tile_meetings;         // null until a tile of several warps is used
  std::vector<std::unique_ptr<Warpgroup>> warpgroups;  // those that have used wgmma
#ifdef CUDACPU_TRACE
  std::unique_ptr<trace::BlockTrace, trace::DeleteBlockTrace> trace;
#endif
  ResidentBlock();
  ~ResidentBlock();
};

inline bool same(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

inline ResidentBlock& block_of(const Thread& thread) {
  return *static_cast<ResidentBlock*>(thread.block);
}

// ------------------------------------------------------------------ settings.cpp

enum class Order : uint8_t { kForward, kReverse, kRandom };

// When asynchronous work (cp.async, TMA, …) takes place: at the wait that requires it,
// at once, or at random one or the other. A program must be right in all three.
enum class Completion : uint8_t { kLate, kEarly, kMixed };

struct alignas(8) Schedule {  // 8 bytes at once, which every compiler has an instruction for
  Order threads = Order::kForward;
  Order blocks = Order::kForward;
  Completion completion = Completion::kLate;
  uint32_t seed = 0;

  bool random() const {
    return threads == Order::kRandom || blocks == Order::kRandom ||
           completion == Completion::kMixed;
  }
};

// The treatment of a shuffle whose mask names lanes that have returned: it passes, is named, or
// ends the launch.
enum class Masks : uint8_t { kAny, kNamed, kEndLaunch };

// The output of a launch's printf: block by block as they ran; sorted by the text of each thread,
// the same in each order; or none.
enum class Prints : uint8_t { kAsRun, kSorted, kNone };

struct Settings {
  std::atomic<Schedule> schedule{Schedule{}};
  std::atomic<unsigned> threads{1};
  // In seconds: how long a launch may take, how long all threads may poll in vain, and how long one
  // may run without reaching a barrier or its end.
  std::atomic<double> time_limit{30.0};
  std::atomic<double> spin_limit{1.5};
  std::atomic<double> stuck_limit{HUGE_VAL};
  // The time at which a launch first reports its progress; then each time that it has taken twice
  // as long.
  std::atomic<double> progress_after{HUGE_VAL};
  // Name a barrier at which threads that have returned were missing. The hardware goes on, but
  // CUDA's rules demand that all threads of a block reach it.
  std::atomic<bool> strict_barriers{false};
  std::atomic<Masks> masks{Masks::kAny};
  std::atomic<Prints> prints{Prints::kAsRun};
  // A failed assert() ends the launch, and the context is lost, as on a GPU; else the launch
  // throws.
  std::atomic<bool> asserts_lose_context{false};
  // Throw for a launch that writes right after an allocation's end; else print that.
  std::atomic<bool> writes_beyond_throw{true};
  // Put the work of streams off until something waits for it (deferred.cpp). Memory of the host
  // that this runtime does not know counts as pageable, or as pinned.
  std::atomic<bool> late_streams{false};
  std::atomic<bool> host_is_pinned{false};
};
Settings& settings();

// ------------------------------------------------------------------ model.cpp

// The card that is played.
const Model& model();
std::string device_name();  // "CPU backend (model 9.0)"
// The limit of a block's shared memory in bytes: the card's, but 48 KB on a small one too, because
// every card has them.
size_t most_shared();
// Trap if the card's architecture lacks a feature of some a-variants.
void needs_wgmma(const char* feature, Site site);
void needs_setmaxnreg(const char* feature, Site site);
// The reason why so many bytes are refused: of one block in all, of one launch.
std::string too_much_shared(size_t bytes, size_t most);
std::string too_much_dynamic_shared(size_t bytes, size_t most);
// The remark about a size that is this number if it is taken as signed, which is below 0.
std::string as_negative(int64_t number);

// ------------------------------------------------------------------ kernel.cpp

struct Launch;

// The data of a kernel; found by its address.
struct Kernel {
  std::atomic<size_t> dynamic_limit{0};  // set by cudaFuncSetAttribute; 0 until then
  std::atomic<size_t> static_shared{0};  // bytes of __shared__ variables, as far as met
  std::atomic<unsigned> max_threads{kMaxThreadsPerBlock};
  std::atomic<bool> any_cluster_size{false};  // also one that is not portable
  std::atomic<const KernelType*> type{nullptr};

  size_t max_dynamic() const {
    size_t limit = dynamic_limit.load();
    return limit ? limit : kSharedDefault - std::min(kSharedDefault, static_shared.load());
  }
};
Kernel& kernel_at(const void* address);
// Blocks of this launch that the card can hold at once.
uint64_t most_resident(const Launch& launch);
// Why a launch with so much dynamic shared memory is refused, which the card has.
std::string more_shared_than_set(size_t bytes, const Kernel& kernel);

// ------------------------------------------------------------------ launch.cpp

// Throw if kernels may get no pointers to host memory, and this address is there. i, relation: of
// the argument, for the message.
void refuse_host_memory(size_t i, const char* relation, const void* address,
                        const LaunchSite& site);

enum class Stop : uint8_t {
  kNo,
  kRefused,
  kRestart,    // with the cluster that the kernel requires; nothing of it has run
  kByAddress,  // the same, with the addresses of its arguments
  kProbed,     // nothing of it was to run
  kFailed,
  kAsserted,
  kTimeLimit,
  kInterrupted
};

struct Launch {
  LaunchSite site;
  Configuration config;
  void (*loop)(void*);
  void* call;
  size_t call_bytes;  // of what is at `call`: the kernel's arguments, in some form
  bool keeps_call;    // also if the kernel is to be called by address
  bool probe;         // only up to the kernel's first instruction
  Schedule schedule;
  uint64_t blocks = 0;
  unsigned cluster_size = 1;  // in blocks
  uint64_t clusters = 0;
  unsigned threads = 0;  // of a block
  uint64_t stride = 1;   // the random order of clusters: position * stride + shift, modulo clusters
  uint64_t shift = 0;
  std::atomic<uint64_t> next_position{0};
  std::atomic<uint64_t> blocks_returned{0};
  std::atomic<Kernel*> kernel{nullptr};
  std::atomic<const char*> signature{nullptr};
  std::atomic<const KernelType*> type{nullptr};  // null, too, if unknown to the kernel
  std::atomic<Stop> stop{Stop::kNo};
  std::atomic<size_t> printed_bytes{0};
  std::atomic<bool> named_a_barrier{false};  // see Settings::strict_barriers
  std::atomic<bool> named_a_mask{false};     // see Settings::masks
  std::mutex mutex;                          // guards what follows
  std::string error;
  bool has_detail = false;
  cudaError_t refusal = cudaSuccess;
  std::string refusal_reason;
  dim3 kernel_cluster;
  std::vector<std::pair<uint64_t, std::string>> printed;

  bool stopping() const { return stop.load(std::memory_order_relaxed) != Stop::kNo; }
  // End the launch; the first call gives the reason.
  void fail(Stop reason, std::string message);
  // Add to the reason of a launch that ran out of time or was interrupted, once.
  void add(const std::string& detail);
  // End it as a GPU does that cannot run it: an error code and no effect.
  void refuse(cudaError_t code, std::string reason = "");
  // End it when it has come to the kernel's first instruction, which was all that it was for.
  void end_probe();
  // End it before anything has run, because the kernel requires this cluster.
  void restart(dim3 cluster);
  // The same, because the kernel takes a reference, or an object with a constructor of its own.
  void call_by_address();
  uint64_t cluster_at(uint64_t position) const;
  uint64_t blocks_begun() const { return std::min(next_position.load(), clusters) * cluster_size; }
  // Return true if another block, or cluster, can be resident on the card beside those that are.
  bool fits_another() const;
  std::string kernel_name() const;
  std::string describe() const;  // a line: its kernel and where it was launched
};
// Why a GPU refuses this grid or this block, or "".
std::string wrong_with_shape(const dim3& grid, const dim3& block);

// ------------------------------------------------------------------ scheduler.cpp

class Worker {
 public:
  explicit Worker(unsigned number);

  // Run blocks of the launch until none is left, or it stops.
  void run(Launch& launch);

  // Called by the running thread:
  bool start_next();  // see next_thread()
  // It is in a queue, and will be resumed from it. Returns where to go on (see cudacpu_suspend).
  void* suspend(Thread& self, const Wait& wait, void* stack_pointer) {
    self.wait = &wait;
    self.stack_pointer = stack_pointer;
    return next();
  }
  void answer_watchdog();       // by noting whether it is the thread that ran when it last asked
  [[noreturn]] void abandon();  // gives up everything that runs here
  void* next_is_main();         // where to go on, to give up everything
  void poll(const Wait& wait);
  void sleep(unsigned nanoseconds, Site site);
  uint32_t active_mask(Site site);
  uint32_t place(SharedVariable& variable, Site site);
  void report_exception(const char* what);
  // Call tell(offset in the arena, bytes, declaration) for each one in use.
  template <class Tell>
  void each_shared_variable(Tell tell) const {
    if (launch_->config.shared_bytes)
      tell(kSharedBase, launch_->config.shared_bytes, "memory, the dynamic part");
    for (const SharedVariable* variable : variables_)
      tell(size_t{offsets_[variable->number]}, variable->size, variable->declaration);
  }

  void* arrive_at_grid_barrier(const Wait& wait, void* stack_pointer);
  void make_ready(ThreadList& threads);  // in the order of the list, or shuffled
  void make_ready_first(Thread& thread) { ready_.push_front(&thread); }
  void form_cluster(std::vector<ResidentBlock*> blocks);  // by rank; none of them is in one
  // The block of a cluster whose closed shared memory has this address, or null.
  const ResidentBlock* closed_arena_at(const void* address) const;
  void progress() { polls_ = 0; }
  std::vector<MbarrierWaiters> mbarrier_waiters;
  uint32_t random();
  // Return true if asynchronous work that starts now takes place at once.
  bool completes_at_once() {
    Completion when = launch_->schedule.completion;
    if (trace::is_on()) return false;  // the tracer sees for itself what a copy could race with
    return when == Completion::kEarly || (when == Completion::kMixed && random() % 2);
  }
  Launch* launch() const { return launch_; }
  size_t shared_end() const { return shared_end_; }
  const FiberPool& fibers() const { return fibers_; }

  // Set by the signal handler, read after the fiber that faulted was left.
  struct Fault {
    int signal = 0;
    void* address = nullptr;
    void* pc = nullptr;
    const Thread* thread = nullptr;
  };
  Fault fault;
  unsigned number;
  pthread_t os_thread;
  // Read by other OS threads:
  std::atomic<Launch*> working_on{nullptr};
  std::atomic<double> polling_since{0};   // its threads have done nothing but poll since then
  std::atomic<double> polling_at{0};      // and still did then
  std::atomic<unsigned> same_answers{0};  // to the watchdog, one after the other

 private:
  friend void fiber_main();
  friend void* leave_main(void* self, void* stack_pointer);
  friend void* leave_fiber(void* fiber, void* stack_pointer);
  bool wants_unstarted() const {
    return first_unstarted_ < live_.size() && ready_.size == pollers_;
  }
  void* next();
  void make_current(Thread* thread);
  bool take_blocks();
  ResidentBlock& free_block();
  void release_grid_barrier();
  void prepare_block(ResidentBlock& block, uint64_t cluster, unsigned rank);
  void shape_block(ResidentBlock& block);
  void finish_current();
  void retire(ResidentBlock& block);
  void dissolve(Cluster& cluster);
  void open_arena(ResidentBlock& block);
  void poison(ResidentBlock& block);
  template <class Each>
  void each_guard(Each each) const;
  void check_guards(const ResidentBlock& block);
  bool answer_active_masks();
  void forget_shared_variables();
  void report_fault();
  void report_deadlock();
  bool endless_spin();
  void main_loop();

  Launch* launch_ = nullptr;
  const Thread* answered_ = nullptr;  // which thread ran when the watchdog last asked
  FiberPool fibers_;
  Fiber* fresh_fiber_ = nullptr;        // the one that is about to begin
  const Block* shown_block_ = nullptr;  // the one whose index is in blockIdx
  void* main_stack_pointer_ = nullptr;
  ThreadList ready_;
  unsigned pollers_ = 0;              // threads in ready_ that only poll
  uint64_t polls_ = 0;                // since something else last happened
  std::vector<ResidentBlock*> live_;  // those whose threads have not all returned
  size_t first_unstarted_ = 0;        // the first of them with a thread that has not begun
  GridBarrier grid_;                  // in a cooperative launch
  std::vector<std::unique_ptr<ResidentBlock>> blocks_;
  std::vector<ResidentBlock*> free_blocks_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<Thread*> active_mask_waiters_;
  std::unique_ptr<uint32_t[]> offsets_;     // in an arena, of each __shared__ variable, by number
  std::vector<SharedVariable*> variables_;  // those met in this launch
  size_t shared_end_ = 0;                   // end of what is used of an arena
  uint64_t random_state_ = 1;
};
extern CUDACPU_THREAD_LOCAL Worker* worker;

// ------------------------------------------------------------------ barrier.cpp, collective.cpp

void release_barrier(ResidentBlock& block);
void complete_collectives(Warp& warp);  // those that only waited for lanes that have returned now
void forget_undefined_shuffle();

// ------------------------------------------------------------------ split_barrier.cpp

// Called by the running thread, whose place is in `mine`. It has arrived when it waits.
void arrive(SplitBarrier& barrier, ArrivalPhase& mine, const char* what, Site site);
void wait(SplitBarrier& barrier, ArrivalPhase& mine, const char* what, Site site);
void leave(SplitBarrier& barrier, ArrivalPhase& mine);  // a thread returns
// A description of the wait if the thread waits there, for messages; or "".
std::string describe(const SplitBarrier& barrier, const Thread& thread, const char* whose);
void leave_split_barrier(Thread& thread);  // of its block

// ------------------------------------------------------------------ wide_tile.cpp

std::string describe_tile(const Thread& thread);

// ------------------------------------------------------------------ cluster.cpp

void leave_cluster_barrier(Thread& thread);  // the thread returns
std::string describe_cluster_barrier(const Thread& thread);
// The block of the running thread's cluster with this address in its shared memory, or null.
ResidentBlock* block_around(const void* pointer);
// The block with this address; trap unless there is one, and it runs.
ResidentBlock& running_block_around(const void* pointer, const char* what, Site site);
std::string explain_closed_arena(const ResidentBlock& block);

// ------------------------------------------------------------------ async_copy.cpp

void forget_async_copies(ResidentBlock& block);  // when all waits for them have ended
AsyncCopies& copies_of_current();
// Perform the first copies of this thread of the block, as far as that has not been done. clock:
// the time of that thread from which on they are done, for the tracer.
void perform_copies(ResidentBlock& block, AsyncCopies& copies, uint64_t until, uint32_t clock);

// ------------------------------------------------------------------ bulk_store.cpp

void queue_bulk_store(BulkStore store);
void finish_bulk_stores(ResidentBlock& block);     // the block returns
void check_transfers(const ResidentBlock& block);  // the same
void forget_bulk_stores(ResidentBlock& block);

// ------------------------------------------------------------------ named_barrier.cpp,
// mbarrier.cpp

// Begin a transfer to a block of the running thread's cluster; `barrier` is in the same block.
void check_mbarrier_place(const uint64_t* barrier, const char* what, Site site);
void check_bulk_copy(const void* to, const void* from, int bytes, const char* what, Site site);
void queue_transfer(Transfer transfer, ResidentBlock& block, const char* what, Site site);

void forget_named_barriers(ResidentBlock& block);
// A description of the wait of a thread in such a barrier, for messages; or "".
std::string describe_named_barrier(const Thread& thread);
std::string describe_mbarrier(const Thread& thread);

// ------------------------------------------------------------------ wgmma.cpp

void forget_warpgroups(ResidentBlock& block);
std::string describe_warpgroup(const Thread& thread);

// ------------------------------------------------------------------ pool.cpp

Worker& this_worker();
// Return true if every worker of the launch has only polled since then, and still does.
bool everybody_polls(const Launch& launch, double since);
// Return true if a worker of the launch answered the watchdog with the same thread so many times.
bool somebody_answered_alike(const Launch& launch, unsigned times);
// Send the signal to the OS threads that run this launch.
void signal_workers(const Launch& launch, int signal);
// Run the launch on as many OS threads as are worth it; return when all are done.
void run_on_workers(Launch& launch);

// ------------------------------------------------------------------ watchdog.cpp

// Watch a launch while in scope: end it after the time limit, or on SIGINT.
class Watch {
 public:
  explicit Watch(Launch& launch);
  ~Watch();

 private:
  Launch* launch_;
};
int watch_signal();  // sent to a worker whose launch must end

// ------------------------------------------------------------------ faults.cpp

void install_fault_handlers();
void use_signal_stack();  // by this OS thread

// ------------------------------------------------------------------ report.cpp

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string in_bytes(size_t n);              // "1 byte", "4 bytes"
std::string describe(const Thread& thread);  // a line
// Group threads by where they wait; a line for each group.
std::string describe_waiting(const std::vector<ResidentBlock*>& blocks);
std::string library_at(const void* pc);   // the file that it was loaded from, or ""
std::string source_line(const void* pc);  // "file:line" through addr2line, or ""
// The return address in the code from which this library was called, and its line; null and "" if
// unknown.
const void* calling_code();
std::string calling_line();
double seconds();

// ------------------------------------------------------------------ addresses.cpp

#if defined(CUDACPU_ADDRESS)
// Bytes next to each part of a block's shared memory that no thread may touch.
constexpr size_t kSharedGap = 256;
// End the launch if one of the bytes is out of bounds. For what the runtime itself reads and
// writes for the running thread; its kernel's own accesses are checked by the compiler.
void check_access(const void* address, size_t bytes, bool write, Site site);
void check_spans(const trace::Spans& spans, Site site);
// Allow, or forbid, kernels to touch this memory from now on.
void allow(const void* memory, size_t bytes);
void forbid(const void* memory, size_t bytes);
constexpr bool kWatchesAddresses = true;
#else
constexpr bool kWatchesAddresses = false;
// Here a block that ends looks for writes to these bytes (check_guards in shared_memory.cpp). A
// multiple of 128, so that each variable begins in the bank where it would begin without them.
constexpr size_t kSharedGap = 128;
inline void check_access(const void*, size_t, bool, Site) {}
inline void check_spans(const trace::Spans&, Site) {}
inline void allow(const void*, size_t) {}
inline void forbid(const void*, size_t) {}
#endif

// ------------------------------------------------------------------ shared_memory.cpp

constexpr size_t kMaxSharedVariables = 16384;
constexpr size_t kArenaBytes = 256 * 1024;
char* map_arena();
void unmap_arena(char* arena);
bool is_in_arena(const Block& block, const void* pointer);
// Open or close the shared memory of a block of a cluster.
void set_arena_state(ResidentBlock& block, ArenaState state);

// ------------------------------------------------------------------ names.cpp

// The name of the object at an address, or next to it; "" if nothing there has a name.
std::string describe_address(const void* address, size_t bytes);
// Describe an address in the shared memory of a block of this worker.
std::string describe_shared(const ResidentBlock& block, const void* address, size_t bytes);
// Name a variable of a kernel file (__device__, __constant__), for good.
void name_variable(const void* begin, size_t bytes, const char* name);

// ------------------------------------------------------------------ errors.cpp

// `reason`: what cudaGetErrorString adds to NVIDIA's words, as long as this is the thread's last
// error.
cudaError_t set_error(cudaError_t code, std::string reason);
cudaError_t set_error(cudaError_t code);
// Record that a launch by <<<>>> was refused: only cudaGetLastError returns it. launch: named by
// the reason.
void note_refused_launch(const LaunchSite& site, const std::string& launch, cudaError_t code);
// Record that a kernel has failed in a way after which a GPU's context answers every call with this
// error; cudaSuccess: a new context.
void lose_context(cudaError_t code);
// Return that error, which then is also the last one of this thread, or cudaSuccess.
cudaError_t lost_context();

// ------------------------------------------------------------------ pytorch.cpp

// Tensors live on device 0. There is another one as long as a launcher is checked.
cudaError_t check_device(int device);
int device_count();
// Throw if a launcher that is checked gives work to the default stream, or has another device than
// the tensors' as its current one. what: "a kernel was launched".
void check_caller(cudaStream_t stream, const char* what, Site site);
// While in scope, kernels and the runtime's own copies may use what is closed to host code: the
// tensors of a launcher that is checked, the device memory of a program (device_pages.cpp).
class MemoryOpen {
 public:
  MemoryOpen();
  ~MemoryOpen();
};
// Return true if host code that touches this address may go on: it is a tensor's, and open from now
// on.
bool host_may_go_on(const void* address, void* pc);
// The name of the tensor at this address that kernels may only read, or "".
std::string read_only_tensor_at(const void* address);
void count_work();
// Let PyTorch's current stream be a separate one (on), or the default one.
void play_current_stream(bool on);
// Record events that explain a wrong result, while a launcher is checked: a kernel has run; threads
// of a block had returned when the others met at a barrier.
void note_launch(const dim3& grid, const dim3& block);
void note_early_return(const ResidentBlock& block, const Barrier& barrier);

// ------------------------------------------------------------------ device_pages.cpp

// Close whole pages of device memory to the host code of a program, and open them for good.
void close_to_host(void* address, size_t bytes);
void open_to_host(void* address);
// Open all of them as long as something on the device runs: see MemoryOpen.
void begin_device_work();
void end_device_work();
// Return true for a __device__ variable of a program whose address host code has not asked for.
bool is_variable_of_host(const void* address);
// Print what is wrong if this address, which host code could not access, is device memory.
void explain_host_access(const void* address, void* pc);

// ------------------------------------------------------------------ memory.cpp

// Return true if kernels may get no pointers to host memory, as in whole programs; a tensor is host
// memory.
bool refuses_host_pointers();
// Return true if an address is not null, and not in or right after the end of an allocation or
// registration of this runtime, nor in a variable or function of the program or a library.
bool is_host_memory(const void* address);
// "memory that was freed, at prog.cu:7" if the address is in such memory of a program, or "".
std::string was_freed(const void* address);
// Record that some of these bytes, of arguments or of an array of pointers, may be addresses of
// allocations, which something else may write to from now on.
void note_given(const void* data, size_t bytes);
// A description of the allocation of the runtime API that holds it, and of the place, or "".
std::string describe_allocation(const void* address);
// The allocation of the runtime API that holds the address; null if none does.
std::pair<const void*, size_t> allocation_around(const void* address);
// Name each allocation of which a byte right after its end was changed since the last launch: a GPU
// lets that pass. "" for none.
std::string writes_beyond_allocations(const Launch& launch);
// Allocate memory for cudaMallocAsync: it exists when the stream reaches the call; if that is
// `captured`, it is the graph's.
cudaError_t allocate_in_order(void** address, size_t bytes, cudaStream_t stream, bool& captured);
// If streams are late, memory that was freed is kept until no work is left that may use it. The
// first throws if the address is in such memory; `what` uses it.
void refuse_freed_memory(const void* address, const std::string& what);
void forget_freed_memory();
// The whole pages of the device memory that holds the address; null if none does.
std::pair<void*, size_t> pages_of_allocation(const void* address);

// ------------------------------------------------------------------ memory_pool.cpp

// Return freed memory at this address to its pool; do nothing if it is not a pool's.
void leave_pool(const void* address);
bool is_of_pool(const void* address);

// ------------------------------------------------------------------ shared_between_processes.cpp

// Return true if this process shares memory with others, so that one may wait for them.
bool shares_memory();
// Stop sharing the memory at this address, which is about to be freed.
void stop_sharing(void* address);

// ------------------------------------------------------------------ device_heap.cpp

size_t device_heap_bytes();  // cudaLimitMallocHeapSize; in device.cpp
// Return true for memory that a kernel has allocated, also after it was freed: a GPU's heap holds
// no memory of the host.
bool is_in_heap(uintptr_t address);
// The message on an access to an address near null. If the heap was found full, it says so.
std::string through_null(uintptr_t address);

// ------------------------------------------------------------------ print.cpp

void write_printed(Launch& launch);
void collect_printed(Launch& launch, ResidentBlock& block);

}  // namespace cudacpu

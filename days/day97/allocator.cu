// Day 97: a caching allocator: memory of the GPU that is freed is kept, and given out again
//
//   allocate(bytes, stream) -> address      free(address)      used_by(address, another stream)
//
// cudaMalloc and cudaFree are calls of the driver, and cudaFree waits until the GPU is idle. A
// caching allocator takes segments from the driver, gives out blocks of them, and keeps what is
// freed. A stream runs its work in order, so the same stream may get a block again before its last
// kernel has run.
//
// Bytes: requested <= allocated (rounded up) <= reserved (taken from the driver). The differences
// are internal and external fragmentation. Host time: one or two searches of a tree per call.
//
//   v1 driver        every request goes to the driver: two calls per block
//   v2 size_classes  free blocks by stream and power of two: up to half of a block unused
//   v3 best_fit      blocks are split off segments, and merged when they are freed
//   v4 events        the host does not wait for another stream that uses a freed block
//   driver_pool      cudaMallocAsync (day 58), the driver's own cache, for comparison
//
// Run: python run_day.py 97

#include "days/day97/allocator.cuh"
#include "days/day97/replay.cuh"

#include <iterator>
#include <limits>

constexpr int64_t ROUND = 512;  // bytes: every block of a cache is a multiple
constexpr int64_t MB = 1 << 20;
constexpr int64_t SMALL = MB;              // up to here, blocks are in segments of their own pool,
constexpr int64_t SMALL_SEGMENT = 2 * MB;  // as in PyTorch, whose sizes these are
constexpr int64_t LARGE_SEGMENT = 20 * MB;
constexpr int64_t LARGE = 10 * MB;  // from here on, a segment is one request

// ---------------------------------------------------------------------------------------------
// v1: every request goes to the driver. cudaFree waits for all work of the GPU, so that no stream
// can still be using the block.

class ByDriver : public Allocator {
 public:
  using Allocator::Allocator;

 protected:
  int64_t rounded(int64_t bytes) const override { return bytes; }
  Blocks::iterator find(int64_t, cudaStream_t) override { return blocks_.end(); }
  void retire(Blocks::iterator b) override {
    char* const memory = b->first;
    leave(b);
    driver_.give(memory);
  }
};

// ---------------------------------------------------------------------------------------------
// v2 against v1: blocks that are freed are kept, by stream and size. Sizes are powers of two, or
// few requests would find a block of their size. A block is never split.

class SizeClasses : public Allocator {
 public:
  using Allocator::Allocator;

 protected:
  int64_t rounded(int64_t bytes) const override {
    if (bytes <= ROUND) return ROUND;
    return int64_t{1} << (64 - __builtin_clzll(bytes - 1));  // 1 above the highest bit of bytes - 1
  }
  Blocks::iterator find(int64_t size, cudaStream_t stream) override {
    const auto b = smallest(false, stream, size);
    return b != blocks_.end() && b->second.bytes == size ? take(b) : blocks_.end();
  }
  void retire(Blocks::iterator b) override {
    // The next kernel of b's own stream comes after all that stream has; others are waited for.
    for (cudaStream_t reader : b->second.readers) driver_.wait(driver_.mark(reader));
    keep(b);
  }
  Blocks::iterator take(Blocks::iterator b) {
    free_.erase(key(b));
    return b;
  }
  virtual void keep(Blocks::iterator b) {
    b->second.state = FREE_BLOCK;
    b->second.requested = 0;
    b->second.readers.clear();
    free_.insert(key(b));
  }
};

// ---------------------------------------------------------------------------------------------
// v3 against v2: blocks are pieces of segments. The smallest free block that is large enough is
// split, and a block that is freed is merged with its free neighbours. Small blocks have segments
// of their own, or one of them would keep a large block from becoming whole again.

class BestFit : public SizeClasses {
 public:
  using SizeClasses::SizeClasses;

 protected:
  int64_t rounded(int64_t bytes) const override { return ceil_div(bytes, ROUND) * ROUND; }
  bool is_small(int64_t segment) const override { return segment == SMALL_SEGMENT; }

  int64_t segment_for(int64_t size) const override {
    if (size <= SMALL) return SMALL_SEGMENT;
    if (size < LARGE) return LARGE_SEGMENT;
    return ceil_div(size, 2 * MB) * (2 * MB);
  }
  Blocks::iterator find(int64_t size, cudaStream_t stream) override {
    const auto b = smallest(size <= SMALL, stream, size);
    return b != blocks_.end() ? take(b) : b;
  }
  // A large block's rest of up to 1 MB stays with it: large requests could not use it.
  void trim(Blocks::iterator b, int64_t size) override {
    Block& block = b->second;
    const int64_t rest = block.bytes - size;
    if (rest < (is_small(segments_.at(block.segment)) ? ROUND : SMALL + ROUND)) return;
    block.bytes = size;
    const Block piece{block.segment, rest, 0, block.stream, FREE_BLOCK, {}};
    free_.insert(key(blocks_.emplace(b->first + size, piece).first));
  }
  void keep(Blocks::iterator b) override {
    if (b != blocks_.begin()) {
      const auto before = std::prev(b);
      if (mergeable(before, b)) b = merge(before, b);
    }
    const auto after = std::next(b);
    if (after != blocks_.end() && mergeable(after, b)) b = merge(b, after);
    SizeClasses::keep(b);
  }

 private:
  static bool mergeable(Blocks::iterator free, Blocks::iterator b) {
    return free->second.state == FREE_BLOCK && free->second.segment == b->second.segment;
  }
  // Of two neighbours, one is the block that was just freed, which is on no list yet.
  Blocks::iterator merge(Blocks::iterator low, Blocks::iterator high) {
    free_.erase(key(low));
    free_.erase(key(high));
    low->second.bytes += high->second.bytes;
    blocks_.erase(high);
    return low;
  }
};

// ---------------------------------------------------------------------------------------------
// v4 against v3: the host does not wait for other streams. An event is recorded in each when the
// block is freed; the block is given out again once all of its events have occurred.

class WithEvents : public BestFit {
 public:
  using BestFit::BestFit;

 protected:
  void retire(Blocks::iterator b) override {
    if (b->second.readers.empty()) return keep(b);
    b->second.state = WAITING_BLOCK;
    std::vector<int64_t> marks;
    for (cudaStream_t reader : b->second.readers) marks.push_back(driver_.mark(reader));
    waiting_.push_back({b, marks});
  }
  void reclaim(bool wait) override {
    for (auto w = waiting_.begin(); w != waiting_.end();) {
      std::vector<int64_t>& marks = w->marks;
      while (!marks.empty()) {
        if (wait) {
          driver_.wait(marks.back());
        } else if (!driver_.passed(marks.back())) {
          break;
        }
        marks.pop_back();
      }
      if (marks.empty()) keep(w->block);
      w = marks.empty() ? waiting_.erase(w) : std::next(w);
    }
  }

 private:
  struct Waiting {
    Blocks::iterator block;
    std::vector<int64_t> marks;
  };
  std::vector<Waiting> waiting_;
};

// ---------------------------------------------------------------------------------------------
// For comparison: stream-ordered allocation (day 58), the driver's own cache. A block is freed in
// the order of its stream, which first waits for the others: the host never does.

class DriverPool : public ByDriver {
 public:
  explicit DriverPool(Driver& driver) : ByDriver(driver) {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    check_cuda(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
    uint64_t all = std::numeric_limits<uint64_t>::max();  // keeps what is freed
    check_cuda(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all), "threshold");
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
  }
  ~DriverPool() override {
    (void)cudaEventDestroy(event_);
    (void)cudaMemPoolDestroy(pool_);
  }

 protected:
  Blocks::iterator grow(int64_t size, cudaStream_t stream) override {
    void* memory = nullptr;
    const cudaError_t error = cudaMallocFromPoolAsync(&memory, size, pool_, stream);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return blocks_.end();
    }
    check_cuda(error, "cudaMallocFromPoolAsync");
    return enter(static_cast<char*>(memory), size, stream);
  }
  void retire(Blocks::iterator b) override {
    const cudaStream_t stream = b->second.stream;
    for (cudaStream_t reader : b->second.readers) {
      check_cuda(cudaEventRecord(event_, reader), "cudaEventRecord");
      check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
    }
    char* const memory = b->first;
    leave(b);
    check_cuda(cudaFreeAsync(memory, stream), "cudaFreeAsync");
  }

 private:
  cudaMemPool_t pool_;
  cudaEvent_t event_;
};

// ---------------------------------------------------------------------------------------------
// On the GPU: each block filled, used and summed up by kernels.

using Result = std::tuple<Tensor, Tensor>;

Result allocator_v1_driver(const Tensor& trace, int64_t touch, bool keep) {
  return replay<ByDriver>(trace, touch, keep);
}
Result allocator_v2_size_classes(const Tensor& trace, int64_t touch, bool keep) {
  return replay<SizeClasses>(trace, touch, keep);
}
Result allocator_v3_best_fit(const Tensor& trace, int64_t touch, bool keep) {
  return replay<BestFit>(trace, touch, keep);
}
Result allocator_v4_events(const Tensor& trace, int64_t touch, bool keep) {
  return replay<WithEvents>(trace, touch, keep);
}
Result allocator_driver_pool(const Tensor& trace, int64_t touch, bool keep) {
  return replay<DriverPool>(trace, touch, keep);
}

// ---------------------------------------------------------------------------------------------
// On paper: where each strategy places the blocks of a trace, with so many bytes of memory.

Result place_v1(const Tensor& trace, int64_t limit) {
  return place<ByDriver>(trace, limit);
}
Result place_v2(const Tensor& trace, int64_t limit) {
  return place<SizeClasses>(trace, limit);
}
Result place_v3(const Tensor& trace, int64_t limit) {
  return place<BestFit>(trace, limit);
}
Result place_v4(const Tensor& trace, int64_t limit) {
  return place<WithEvents>(trace, limit);
}

Tensor place_by_threads(const Tensor& trace, int64_t threads) {
  return place_in_threads<WithEvents>(trace, threads);
}

// ---------------------------------------------------------------------------------------------
// For PyTorch: torch.cuda.memory.CUDAPluggableAllocator finds these by their names. PyTorch passes
// their exceptions on to the caller.

#define EXPORTED extern "C" __attribute__((visibility("default"), used))

struct Managed {
  Device driver;
  WithEvents allocator{driver};
};

// The allocator of a GPU, which lives as long as the program.
Managed& managed(int device) {
  static std::mutex mutex;
  static std::map<int, Managed*> known;
  const std::lock_guard<std::mutex> lock(mutex);
  Managed*& one = known[device];
  if (!one) one = new Managed;
  return *one;
}

EXPORTED void* day97_malloc(ssize_t bytes, int device, cudaStream_t stream) {
  const CurrentDevice current(device);
  return managed(device).allocator.allocate(bytes, stream);
}
EXPORTED void day97_free(void* address, ssize_t, int device, cudaStream_t) {
  const CurrentDevice current(device);
  managed(device).allocator.free(address);
}
EXPORTED void day97_record_stream(void* address, cudaStream_t stream) {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  managed(device).allocator.used_by(address, stream);
}
// requested, allocated and reserved bytes, and calls of the driver
EXPORTED void day97_statistics(int device, int64_t* numbers) {
  const Statistics now = managed(device).allocator.statistics();
  const int64_t all[] = {now.requested, now.allocated, now.reserved, managed(device).driver.calls};
  std::copy(std::begin(all), std::end(all), numbers);
}

// ---------------------------------------------------------------------------------------------

#define REPLAY "(Tensor trace, int touch, bool keep) -> (Tensor, Tensor)"
#define PLACE "(Tensor trace, int limit) -> (Tensor, Tensor)"

HOST_RUNG(day97, allocator_v1_driver, REPLAY);
HOST_RUNG(day97, allocator_v2_size_classes, REPLAY);
HOST_RUNG(day97, allocator_v3_best_fit, REPLAY);
HOST_RUNG(day97, allocator_v4_events, REPLAY);
HOST_RUNG(day97, allocator_driver_pool, REPLAY);
HOST_RUNG(day97, place_v1, PLACE);
HOST_RUNG(day97, place_v2, PLACE);
HOST_RUNG(day97, place_v3, PLACE);
HOST_RUNG(day97, place_v4, PLACE);
HOST_RUNG(day97, place_by_threads, "(Tensor trace, int threads) -> Tensor");

// Day 97: the interface of an allocator, and what all strategies share: a table of blocks, one
// lock.
#pragma once

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

constexpr int64_t LARGEST = int64_t{1} << 40;  // bytes of one allocation

// ---------------------------------------------------------------------------------------------
// Where an allocator gets its memory from, and how it waits for streams. A mark stands
// behind all work that a stream was given before.

class Driver {
 public:
  virtual ~Driver() = default;
  virtual char* take(int64_t bytes) = 0;  // nullptr if there is not so much memory
  virtual void give(char* memory) = 0;
  virtual int64_t mark(cudaStream_t stream) = 0;
  virtual bool passed(int64_t mark) = 0;  // true once per mark, which may then be used again
  virtual void wait(int64_t mark) = 0;    // of the host, instead of `passed`
  int64_t calls = 0;                      // of take and give, and waits of the host
};

// The GPU's.
class Device : public Driver {
 public:
  ~Device() override {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  char* take(int64_t bytes) override {
    ++calls;
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // or the next check_launch would throw it
      return nullptr;
    }
    check_cuda(error, "cudaMalloc");
    return static_cast<char*>(memory);
  }
  void give(char* memory) override {
    ++calls;
    check_cuda(cudaFree(memory), "cudaFree");
  }
  int64_t mark(cudaStream_t stream) override {
    if (unused_.empty()) {
      unused_.push_back(events_.size());
      events_.emplace_back();
      check_cuda(cudaEventCreateWithFlags(&events_.back(), cudaEventDisableTiming), "event");
    }
    const int64_t mark = unused_.back();
    unused_.pop_back();
    check_cuda(cudaEventRecord(events_[mark], stream), "cudaEventRecord");
    return mark;
  }
  bool passed(int64_t mark) override {
    const cudaError_t error = cudaEventQuery(events_[mark]);
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check_cuda(error, "cudaEventQuery");
    unused_.push_back(mark);
    return true;
  }
  void wait(int64_t mark) override {
    ++calls;
    check_cuda(cudaEventSynchronize(events_[mark]), "cudaEventSynchronize");
    unused_.push_back(mark);
  }

 private:
  std::vector<cudaEvent_t> events_;
  std::vector<int64_t> unused_;
};

// ---------------------------------------------------------------------------------------------

// Makes a GPU the current one until the end of the scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~CurrentDevice() { (void)cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

enum State : int64_t { FREE_BLOCK, LIVE_BLOCK, WAITING_BLOCK };

struct Block {
  char* segment;
  int64_t bytes;  // of the block, at least those that were requested
  int64_t requested;
  cudaStream_t stream;  // may use it without waiting for anything
  State state;
  std::vector<cudaStream_t> readers;  // other streams that use it
};

struct Statistics {
  int64_t requested = 0, allocated = 0, reserved = 0;  // bytes: requested <= allocated <= reserved
};

struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What all strategies share: a table of blocks by address, and one lock. A strategy says how a
// size is rounded, which free block serves it, and what becomes of a block that is freed.
class Allocator {
 public:
  explicit Allocator(Driver& driver) : driver_(driver) {}
  virtual ~Allocator() {  // after an error: without one, nothing is left
    for (const auto& [memory, bytes] : segments_) {
      try {
        driver_.give(memory);
      } catch (const std::exception&) {  // the GPU is in a state in which nothing can be freed
      }
    }
  }
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  void* allocate(int64_t bytes, cudaStream_t stream) {
    STD_TORCH_CHECK(bytes >= 0 && bytes <= LARGEST, "bytes: expected 0 to 2^40, got ", bytes);
    if (bytes == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t size = rounded(bytes);
    reclaim(false);
    Blocks::iterator b = find(size, stream);
    if (b == blocks_.end()) b = grow(size, stream);
    if (b == blocks_.end()) {  // the driver has no more: wait for what was freed, and look again
      reclaim(true);
      b = find(size, stream);
    }
    if (b == blocks_.end()) {  // give the driver back what is in no use, and try again
      give_free_segments();
      b = grow(size, stream);
    }
    if (b == blocks_.end()) throw OutOfMemory(shortage(bytes));
    trim(b, size);
    b->second.state = LIVE_BLOCK;
    b->second.requested = bytes;
    now_.requested += bytes;
    now_.allocated += b->second.bytes;
    return b->first;
  }

  void free(void* address) {
    if (!address) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const Blocks::iterator b = live(address);
    now_.requested -= b->second.requested;
    now_.allocated -= b->second.bytes;
    retire(b);
  }

  // The stream has work on the block: it must not be given out again before that work is done.
  void used_by(void* address, cudaStream_t stream) {
    if (!address) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    Block& b = live(address)->second;
    const bool known = std::find(b.readers.begin(), b.readers.end(), stream) != b.readers.end();
    if (stream != b.stream && !known) b.readers.push_back(stream);
  }

  // Gives the driver all segments without a block in use.
  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    reclaim(true);
    give_free_segments();
  }

  Statistics statistics() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }

  // All blocks in the order of their addresses: f(address, block).
  template <typename F>
  void each(F&& f) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [at, b] : blocks_) f(at, b);
  }

 protected:
  using Blocks = std::map<char*, Block>;

  virtual int64_t rounded(int64_t bytes) const = 0;
  virtual Blocks::iterator find(int64_t size, cudaStream_t stream) = 0;
  virtual int64_t segment_for(int64_t size) const { return size; }
  virtual void trim(Blocks::iterator, int64_t /*size*/) {}  // what is beyond the size stays free
  virtual void retire(Blocks::iterator b) = 0;
  virtual void reclaim(bool /*wait*/) {}  // blocks that were freed, and still used

  virtual Blocks::iterator grow(int64_t size, cudaStream_t stream) {
    const int64_t bytes = segment_for(size);
    char* const memory = driver_.take(bytes);
    return memory ? enter(memory, bytes, stream) : blocks_.end();
  }
  Blocks::iterator enter(char* memory, int64_t bytes, cudaStream_t stream) {
    now_.reserved += bytes;
    segments_[memory] = bytes;
    return blocks_.emplace(memory, Block{memory, bytes, 0, stream, FREE_BLOCK, {}}).first;
  }
  Blocks::iterator leave(Blocks::iterator b) {  // of a block that is a whole segment
    now_.reserved -= b->second.bytes;
    segments_.erase(b->second.segment);
    return blocks_.erase(b);
  }

  // Free blocks in the order of stream and size: the first one from (pool, stream, size) on is the
  // smallest that is large enough, of these the one with the lowest address.
  using Key = std::tuple<bool, cudaStream_t, int64_t, char*>;
  virtual bool is_small(int64_t /*segment*/) const { return false; }
  Key key(Blocks::iterator b) const {
    return {is_small(segments_.at(b->second.segment)), b->second.stream, b->second.bytes, b->first};
  }
  Blocks::iterator smallest(bool small, cudaStream_t stream, int64_t size) {
    const auto found = free_.lower_bound({small, stream, size, nullptr});
    const bool fits =
        found != free_.end() && std::get<0>(*found) == small && std::get<1>(*found) == stream;
    return fits ? blocks_.find(std::get<3>(*found)) : blocks_.end();
  }

  void give_free_segments() {
    for (auto b = blocks_.begin(); b != blocks_.end();) {
      const bool whole = b->second.bytes == segments_.at(b->second.segment);
      if (b->second.state != FREE_BLOCK || !whole) {
        ++b;
        continue;
      }
      free_.erase(key(b));
      char* const memory = b->first;
      b = leave(b);
      driver_.give(memory);
    }
  }

  Driver& driver_;
  Blocks blocks_;
  std::map<char*, int64_t> segments_;  // their sizes
  std::set<Key> free_;

 private:
  Blocks::iterator live(void* address) {
    const auto b = blocks_.find(static_cast<char*>(address));
    STD_TORCH_CHECK(b != blocks_.end() && b->second.state == LIVE_BLOCK,
                    "address: expected that of a live block");
    return b;
  }
  std::string shortage(int64_t bytes) const {
    int64_t largest = 0;
    for (const auto& [at, b] : blocks_) {
      if (b.state == FREE_BLOCK) largest = std::max(largest, b.bytes);
    }
    std::ostringstream text;
    text << "out of memory: " << bytes << " bytes requested; " << now_.reserved
         << " bytes are reserved, " << now_.allocated
         << " of them allocated; the largest free block has " << largest;
    return text.str();
  }

  std::mutex mutex_;
  Statistics now_;
};

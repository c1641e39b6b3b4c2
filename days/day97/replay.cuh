// Day 97: what an allocator is tried on: a trace of operations, on the GPU and on paper.
#pragma once

#include "common/cuda/binding.cuh"      // taught in day 6
#include "common/cuda/tensor.cuh"       // taught in days 6 and 12
#include "common/cuda/warp_reduce.cuh"  // taught in day 23
#include "days/day97/allocator.cuh"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

constexpr int BLOCK = 256;        // threads
constexpr int64_t BLOCKS = 1024;  // of a launch at most: a thread takes several bytes
constexpr int STREAMS = 4;        // of a trace; 0 is PyTorch's current stream

// ---------------------------------------------------------------------------------------------
// A driver on paper: addresses of no memory, from 2 MB on, each used once, so that a placement can
// be compared with that of another program, and a trace for a large GPU needs none. A stream passes
// its marks when the trace waits for it.
class Paper : public Driver {
 public:
  explicit Paper(int64_t limit) : limit_(limit) {}
  char* take(int64_t bytes) override {
    ++calls;
    if (bytes > limit_ - taken_) return nullptr;
    const uint64_t at = next_;
    next_ += (bytes + UNIT - 1) / UNIT * UNIT;
    taken_ += bytes;
    sizes_[at] = bytes;
    return reinterpret_cast<char*>(at);
  }
  void give(char* memory) override {
    ++calls;
    const auto found = sizes_.find(reinterpret_cast<uint64_t>(memory));
    STD_TORCH_CHECK(found != sizes_.end(), "an address was given back that was not taken");
    taken_ -= found->second;
    sizes_.erase(found);
  }
  int64_t mark(cudaStream_t stream) override {
    streams_.push_back(stream);
    passed_.push_back(false);
    return static_cast<int64_t>(passed_.size()) - 1;
  }
  bool passed(int64_t mark) override { return passed_[mark]; }
  void wait(int64_t mark) override {
    ++calls;
    synchronise(streams_[mark]);
  }
  void synchronise(cudaStream_t stream) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (streams_[i] == stream) passed_[i] = true;
    }
  }

 private:
  static constexpr uint64_t UNIT = 2 << 20;
  const int64_t limit_;
  int64_t taken_ = 0;
  uint64_t next_ = UNIT;
  std::map<uint64_t, int64_t> sizes_;
  std::vector<cudaStream_t> streams_;  // of each mark
  std::vector<bool> passed_;
};

// ---------------------------------------------------------------------------------------------
// A trace is an int64 tensor (operations, 4). Its rows are (kind, id, bytes, stream):
//
//   ALLOCATE     a block for work of this stream; its id is the number of its row
//   FREE         block id, once the work that its stream was given is done
//   USE          block id, by work of another stream
//   SYNCHRONISE  the host waits for this stream

enum Kind : int64_t { ALLOCATE, FREE, USE, SYNCHRONISE };
struct Operation {
  int64_t kind, id, bytes, stream;
};

// The rows as they stand in the tensor, or an error that names the row.
inline std::vector<Operation> operations_of(const Tensor& trace) {
  check(trace, "trace").on_host().dtype({ScalarType::Long}).rank(2).size(1, 4).contiguous();
  const int64_t* from = data<int64_t>(trace);
  std::vector<Operation> rows;
  std::vector<bool> live(trace.size(0));
  for (int64_t row = 0; row < trace.size(0); ++row, from += 4) {
    const Operation o{from[0], from[1], from[2], from[3]};
    const auto expect = [&](bool holds, const char* what) {
      STD_TORCH_CHECK(holds, "trace: row ", row, ": expected ", what, ", got (", o.kind, ", ", o.id,
                      ", ", o.bytes, ", ", o.stream, ")");
    };
    expect(o.kind >= ALLOCATE && o.kind <= SYNCHRONISE, "a kind of 0 to 3");
    expect(o.stream >= 0 && o.stream < STREAMS, "a stream of 0 to 3");
    expect(o.bytes >= 0 && o.bytes <= LARGEST, "0 to 2^40 bytes");
    if (o.kind == ALLOCATE) {
      expect(o.id == row, "the row's number as its id");
      live[row] = true;
    } else if (o.kind != SYNCHRONISE) {
      expect(o.id >= 0 && o.id < row && live[o.id], "the id of a live block");
      if (o.kind == FREE) live[o.id] = false;
    }
    rows.push_back(o);
  }
  return rows;
}

// Byte i of a block: two blocks agree in one byte of 256 by chance.
__device__ uint8_t pattern(uint32_t id, int64_t i) {
  uint32_t x = id * 0x9e3779b1u + static_cast<uint32_t>(i) * 0x85ebca77u;
  x ^= x >> 15;
  x *= 0xc2b2ae3du;
  return static_cast<uint8_t>(x >> 24);
}

__global__ void fill_kernel(uint8_t* block, int64_t bytes, uint32_t id) {
  const int64_t threads = int64_t{gridDim.x} * BLOCK;
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < bytes; i += threads) {
    block[i] = pattern(id, i);
  }
}

// Adds all bytes of a block to *sum.
__global__ void sum_kernel(const uint8_t* block, int64_t bytes, unsigned long long* sum) {
  const int64_t threads = int64_t{gridDim.x} * BLOCK;
  unsigned long long own = 0;
  for (int64_t i = int64_t{blockIdx.x} * BLOCK + threadIdx.x; i < bytes; i += threads) {
    own += block[i];
  }
  own = warp_sum(own);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

inline unsigned blocks_for(int64_t bytes) {
  return static_cast<unsigned>(std::min(ceil_div<int64_t>(bytes, BLOCK), BLOCKS));
}

// The streams 1 to 3 of a GPU and an event, made once; 0 is the current one.
struct Streams {
  cudaStream_t at[STREAMS]{};
  cudaEvent_t event;

  Streams() {
    for (int s = 1; s < STREAMS; ++s) {
      check_cuda(cudaStreamCreateWithFlags(&at[s], cudaStreamNonBlocking), "stream");
    }
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  // Work that is given to `later` from now on begins when `earlier` has done what it has until now.
  void order(cudaStream_t earlier, cudaStream_t later) const {
    if (earlier == later) return;
    check_cuda(cudaEventRecord(event, earlier), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
  }
};

// An allocator of the GPU, and its driver.
struct Kept {
  int device = -1;
  std::shared_ptr<Driver> driver;
  std::shared_ptr<Allocator> allocator;  // destroyed before its driver
};

// Carries out a trace on the GPU. Each block is filled with a pattern of its own, by at most
// `touch` bytes, and summed up before it is freed and wherever it is used; what is live at the end
// is summed up and freed, too. Returns the sum of each row (an ALLOCATE has that of the end, if
// any), and the bytes that are live after each row. keep: the allocator stays for the next call, as
// one does in a training; otherwise it must have given all memory back.
template <typename Strategy>
std::tuple<Tensor, Tensor> replay(const Tensor& trace, int64_t touch, bool keep) {
  check(trace, "trace").on_host();
  const cudaStream_t current = current_stream(trace);
  // A copy in this stream may be what brings the trace to the host.
  check_cuda(cudaStreamSynchronize(current), "cudaStreamSynchronize");
  const std::vector<Operation> rows = operations_of(trace);
  STD_TORCH_CHECK(touch >= 0, "touch: expected 0 bytes or more, got ", touch);
  const int64_t count = rows.size();
  Tensor out = allocate(trace, {count}, ScalarType::Long);
  Tensor live = allocate(trace, {count}, ScalarType::Long);
  if (count == 0) return {out, live};

  static std::mutex mutex;  // two host threads must not record one event in turns
  static std::map<int, Streams> known;
  const std::lock_guard<std::mutex> lock(mutex);
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  Streams& streams = known[device];
  streams.at[0] = current;
  static Kept& kept = *new Kept;  // leaked: at the end of the program the GPU may be gone
  Kept own = std::exchange(kept, {});
  if (!keep || own.device != device) {
    own.allocator.reset();  // gives its memory back first, by its driver
    own.device = device;
    own.driver = std::make_shared<Device>();
    own.allocator = std::make_shared<Strategy>(*own.driver);
  }
  Allocator& allocator = *own.allocator;
  const auto bytes_of = [&](int64_t id) { return std::min(rows[id].bytes, touch); };

  std::vector<void*> at(count);
  unsigned long long* sums =
      static_cast<unsigned long long*>(allocator.allocate(count * sizeof *sums, current));
  check_cuda(cudaMemsetAsync(sums, 0, count * sizeof *sums, current), "cudaMemsetAsync");
  for (int s = 1; s < STREAMS; ++s) streams.order(current, streams.at[s]);  // fork
  const auto sum_up = [&](int64_t id, int64_t row, cudaStream_t stream) {
    if (bytes_of(id) == 0) return;
    sum_kernel<<<blocks_for(bytes_of(id)), BLOCK, 0, stream>>>(static_cast<const uint8_t*>(at[id]),
                                                               bytes_of(id), sums + row);
    check_launch("sum");
  };
  const int64_t before = allocator.statistics().requested;  // the sums
  for (int64_t row = 0; row < count; ++row) {
    const Operation& o = rows[row];
    const cudaStream_t stream = streams.at[o.stream];
    if (o.kind == ALLOCATE) {
      at[row] = allocator.allocate(o.bytes, stream);
      if (const int64_t bytes = bytes_of(row); bytes > 0) {
        fill_kernel<<<blocks_for(bytes), BLOCK, 0, stream>>>(static_cast<uint8_t*>(at[row]), bytes,
                                                             static_cast<uint32_t>(row));
        check_launch("fill");
      }
    } else if (o.kind == FREE) {
      sum_up(o.id, row, streams.at[rows[o.id].stream]);
      allocator.free(at[o.id]);
      at[o.id] = nullptr;
    } else if (o.kind == USE) {
      streams.order(streams.at[rows[o.id].stream], stream);  // filled before it is used
      sum_up(o.id, row, stream);
      allocator.used_by(at[o.id], stream);
    } else {
      check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }
    mutable_data<int64_t>(live)[row] = allocator.statistics().requested - before;
  }
  for (int64_t id = 0; id < count; ++id) {
    if (!at[id]) continue;
    sum_up(id, id, streams.at[rows[id].stream]);
    allocator.free(at[id]);
  }
  for (int s = 1; s < STREAMS; ++s) streams.order(streams.at[s], current);  // join
  check_cuda(cudaMemcpyAsync(out.mutable_data_ptr(), sums, count * sizeof *sums,
                             cudaMemcpyDeviceToHost, current),
             "copy of the sums");
  check_cuda(cudaStreamSynchronize(current), "cudaStreamSynchronize");
  allocator.free(sums);
  if (keep) {
    kept = own;
  } else {
    allocator.release();
    const Statistics after = allocator.statistics();
    STD_TORCH_CHECK(after.reserved == 0 && after.allocated == 0, after.reserved,
                    " bytes are still reserved after all was freed");
  }
  return {out, live};
}

// The streams of a trace on paper are numbers.
inline cudaStream_t paper_stream(int64_t stream) {
  return reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(stream));
}

// Carries out a trace on paper. Returns (address, allocated, reserved, calls of the driver) after
// each row, and (segment, address, bytes, state) of each block at the end. An ALLOCATE for which
// there is no memory has address -1, and the operations on its block are left out. Rows of the
// other kinds have address -1, too.
template <typename Strategy>
std::tuple<Tensor, Tensor> place(const Tensor& trace, int64_t limit) {
  const std::vector<Operation> rows = operations_of(trace);
  STD_TORCH_CHECK(limit >= 0, "limit: expected 0 bytes or more, got ", limit);
  const int64_t count = rows.size();
  Paper driver(limit);
  Strategy allocator(driver);
  std::vector<void*> at(count);
  Tensor history = allocate(trace, {count, 4}, ScalarType::Long);
  for (int64_t row = 0; row < count; ++row) {
    const Operation& o = rows[row];
    const cudaStream_t stream = paper_stream(o.stream);
    int64_t address = -1;
    if (o.kind == ALLOCATE) {
      try {
        at[row] = allocator.allocate(o.bytes, stream);
        address = reinterpret_cast<int64_t>(at[row]);
      } catch (const OutOfMemory&) {
      }
    } else if (o.kind == FREE) {
      allocator.free(at[o.id]);
    } else if (o.kind == USE) {
      allocator.used_by(at[o.id], stream);
    } else {
      driver.synchronise(stream);
    }
    const Statistics now = allocator.statistics();
    const int64_t numbers[] = {address, now.allocated, now.reserved, driver.calls};
    std::copy(std::begin(numbers), std::end(numbers), mutable_data<int64_t>(history) + 4 * row);
  }
  std::vector<int64_t> blocks;
  allocator.each([&](const char* address, const Block& b) {
    for (int64_t value : {reinterpret_cast<int64_t>(b.segment), reinterpret_cast<int64_t>(address),
                          b.bytes, static_cast<int64_t>(b.state)}) {
      blocks.push_back(value);
    }
  });
  const int64_t found = blocks.size() / 4;
  Tensor snapshot = allocate(trace, {found, 4}, ScalarType::Long);
  std::copy(blocks.begin(), blocks.end(), mutable_data<int64_t>(snapshot));
  return {history, snapshot};
}

// Several host threads carry out the same trace with one allocator. Returns for each thread how
// many bytes it got that no other thread had at that time.
template <typename Strategy>
Tensor place_in_threads(const Tensor& trace, int64_t threads) {
  const std::vector<Operation> rows = operations_of(trace);
  STD_TORCH_CHECK(threads >= 1 && threads <= 64, "threads: expected 1 to 64, got ", threads);
  Paper driver(std::numeric_limits<int64_t>::max());
  Strategy allocator(driver);
  std::mutex mutex;
  std::map<char*, int64_t> taken;  // by all threads
  const auto enter = [&](char* at, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto after = taken.lower_bound(at);
    const bool beside = after == taken.end() || at + bytes <= after->first;
    const auto before = after == taken.begin() ? taken.end() : std::prev(after);
    const bool behind = before == taken.end() || before->first + before->second <= at;
    return beside && behind && taken.emplace(at, bytes).second;
  };
  Tensor out = allocate(trace, {threads}, ScalarType::Long);
  const auto carry_out = [&](int64_t thread) {
    std::vector<void*> at(rows.size());
    int64_t own = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      const Operation& o = rows[row];
      if (o.kind == ALLOCATE && o.bytes > 0) {
        at[row] = allocator.allocate(o.bytes, paper_stream(o.stream));
        if (enter(static_cast<char*>(at[row]), o.bytes)) own += o.bytes;
      } else if (o.kind == FREE && at[o.id]) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          taken.erase(static_cast<char*>(at[o.id]));
        }
        allocator.free(at[o.id]);
      }
    }
    mutable_data<int64_t>(out)[thread] = own;
  };
  std::vector<std::thread> running;
  for (int64_t t = 0; t < threads; ++t) running.emplace_back(carry_out, t);
  for (std::thread& each : running) each.join();
  return out;
}

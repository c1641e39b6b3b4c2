// Work for a stream, which is done at once, put off or kept in a graph; graphs, streams and their
// capture.
//
// Every function of the runtime API that gives a stream something to do describes it as a Work and
// calls submit(): so what a captured stream records is the same as what another runs.
#pragma once

#include "runtime.h"

#include <functional>
#include <optional>
#include <thread>
#include <variant>

namespace cudacpu {

// ------------------------------------------------------------------ work

// Rows of bytes to copy (memory.cpp).
struct Copy {
  void* to;
  size_t to_pitch;  // bytes from one row to the next
  const void* from;
  size_t from_pitch;
  size_t width;  // bytes of a row
  size_t height;
  cudaMemcpyKind kind;
};

// Rows of elements to set (memory.cpp).
struct Fill {
  void* to;
  size_t pitch;
  unsigned value;
  unsigned element_bytes;
  size_t width;  // elements of a row
  size_t height;
};

struct HostCall {
  cudaHostFn_t function;
  void* data;
};

// Memory that a graph allocates each time that it runs, always at the same address, and frees, or
// leaves to cudaFree (memory.cpp).
struct Allocate {
  std::shared_ptr<void> memory;  // kept as long as a graph has it
  size_t bytes;
};
struct Release {
  void* address;
};

struct Empty {};

// A launch (launch.cpp).
struct KernelWork {
  LaunchSite site;
  Configuration config;
  void (*loop)(void* call);
  void* call;
  size_t call_bytes;
  const CallType* call_type = nullptr;  // null once `call` is a bound one (kernel_node.cpp)
  bool keeps_call = false;              // also if the kernel is to be called by address
  // The members below are set only for work that is kept.
  std::shared_ptr<void> owner = {};  // of `call`
  const KernelType* type = nullptr;  // null, too, if the kernel cannot name itself
};

// A graph as a node of another.
struct ChildGraph {
  std::shared_ptr<CUgraph_st> graph;
};

using Work = std::variant<KernelWork, Copy, Fill, HostCall, ChildGraph, Empty, Allocate, Release>;

// Check that it can be done; the error if not.
cudaError_t check(const Copy& copy);
cudaError_t check(const Fill& fill);
cudaError_t check(const HostCall& call);
cudaError_t check(const Release& release);
// Check it, then do it.
cudaError_t perform(const Copy& copy);
cudaError_t perform(const Fill& fill);
cudaError_t perform(const HostCall& call);
cudaError_t perform(const Allocate& allocate);
cudaError_t perform(const Release& release);
cudaError_t perform(const KernelWork& work);
cudaError_t perform(const ChildGraph& child);
inline cudaError_t perform(const Empty&) {
  return cudaSuccess;
}

// Allocate memory for a node, which keeps its address from now on.
cudaError_t allocate_for_graph(void** address, size_t bytes, Allocate& work);
// Bytes that graphs have allocated and not freed.
size_t memory_of_graphs();
// Record that a graph has allocated memory (graph_memory.cpp).
void note_memory_of_graphs();

// Free the allocations of the graph's last run that have not been freed yet.
void release_again(const Allocate& allocate);

// Check a launch that takes place later as a GPU does. Runs the kernel up to its first instruction,
// and fills in what that shows: the type, the cluster. launch.cpp
cudaError_t probe(KernelWork& work);

// ------------------------------------------------------------------ deferred.cpp

struct Deferred;
struct DeferredQueue;
using DeferredWork = std::shared_ptr<Deferred>;

inline bool streams_are_late() {
  return settings().late_streams.load(std::memory_order_relaxed);
}

// Work for a stream that runs when something waits for it. what: for a message; "" for what has no
// effect that a program can see. Errors that are known at once are returned.
// what, uses: a name for messages, and addresses in the memory that it reads or writes.
DeferredWork defer(cudaStream_t stream, std::string what, std::function<cudaError_t()> act,
                   std::vector<const void*> uses = {});
cudaError_t defer(cudaStream_t stream, const Copy& copy);  // memory.cpp, as the next one
cudaError_t defer(cudaStream_t stream, const Fill& fill);
cudaError_t defer(cudaStream_t stream, const HostCall& call);
cudaError_t defer(cudaStream_t stream, const Release& release);
cudaError_t defer(cudaStream_t stream, KernelWork work);  // one that is kept
// Order the next work of this stream after the event, too.
void defer_wait(cudaStream_t stream, const DeferredWork& event);

// Do the work that a call waits for; nothing where streams are not late, or no work is given.
// Return the first error of the work.
cudaError_t wait_for(cudaStream_t stream);
cudaError_t wait_for(const DeferredWork& work);
cudaError_t wait_for_all();
// Do the work for a query, which is a few times answered by cudaErrorNotReady.
cudaError_t query(cudaStream_t stream);
cudaError_t query(const DeferredWork& work);
// When it was done, in seconds; nothing if it is not.
std::optional<double> time_of(const DeferredWork& work);

// ------------------------------------------------------------------ graph.cpp

struct Dependency {
  cudaGraphNode_t on;
  cudaGraphEdgeData data = {};
};

}  // namespace cudacpu

// NVIDIA's headers name these types and leave them open.
struct CUgraphNode_st {
  CUgraph_st* graph;
  cudacpu::Work work;
  std::vector<cudacpu::Dependency> dependencies = {};
  CUgraphNode_st* original = nullptr;  // in a clone: what it is a copy of
  bool enabled = true;                 // in an executable graph: else, it does nothing
  size_t index = 0;                    // in the graph
};

namespace cudacpu {

// A member of what a program creates and has to destroy; counts those that are alive.
struct LiveHandle {
  static inline std::atomic<size_t> count{0};
  LiveHandle() { ++count; }
  LiveHandle(const LiveHandle&) : LiveHandle() {}
  ~LiveHandle() { --count; }
};

}  // namespace cudacpu

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;  // as they were added
  // The order in which they ran last; it is kept until the schedule or an edge changes.
  std::vector<CUgraphNode_st*> order = {};
  cudacpu::Schedule order_for = {};
  cudacpu::LiveHandle counted = {};
};

struct CUgraphExec_st {
  std::unique_ptr<CUgraph_st> graph;  // a clone of what was instantiated
  bool releases_first = false;        // what its last launch has allocated and not freed
  cudacpu::DeferredWork last_launch = {};
  cudacpu::LiveHandle counted = {};
};

namespace cudacpu {

cudaGraphNode_t add_node(CUgraph_st& graph, Work work, std::vector<Dependency> dependencies);
// Add a node for the functions of the API, which give dependencies as an array.
cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* nodes,
                size_t count, Work work);
std::unique_ptr<CUgraph_st> clone(const CUgraph_st& graph);
cudaGraphNodeType type_of(const CUgraphNode_st& node);
// All nodes, each after what it depends on; fewer if they depend on each other in a circle. Of
// those that may come next: the one that was added first, last, or any.
std::vector<CUgraphNode_st*> order_of(const CUgraph_st& graph, const Schedule& schedule);
// The copy of this node in a clone, or in a child graph of it; null if there is none.
CUgraphNode_st* find_in_clone(const CUgraph_st& clone, const CUgraphNode_st* original);

// The work of a node, if it is of this kind.
template <class W>
W* work_of(CUgraphNode_st* node) {
  return node ? std::get_if<W>(&node->work) : nullptr;
}

// One row of bytes.
inline Copy row(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return {to, bytes, from, bytes, bytes, 1, kind};
}
// Append the copies of two dimensions that make up one of three (volume.cpp).
cudaError_t slices_of(const cudaMemcpy3DParms* copy, std::vector<Copy>& slices);
inline Fill fill_of(const cudaMemsetParams& p) {
  return {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height};
}

// Run it in an order that its dependencies allow.
cudaError_t run(CUgraph_st& graph);
// Take over the caller's arguments, so that the work can be done later.
KernelWork keep(KernelWork work, const CallType& type);

// ------------------------------------------------------------------ kernel_node.cpp

// Let the launch call its kernel by the addresses of the arguments: of what they are copies of,
// where the kernel takes a reference. Return false if an argument is not of its parameter's type.
bool bind_by_address(KernelWork& work, const KernelType& type);
// Change kernel, grid, block, shared memory and arguments; the rest of the launch stays.
cudaError_t set_parameters(KernelWork& work, const cudaKernelNodeParams* parameters);

// ------------------------------------------------------------------ capture.cpp

// A capture sequence: the streams that take part, and the graph that they record.
struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;  // that began it
  CUstream_st* origin;
  std::unique_ptr<CUgraph_st> graph;
  std::vector<CUstream_st*> streams;         // the origin is the first
  std::vector<cudaGraphNode_t> left_behind;  // by streams that were destroyed since
  std::string why_invalid;                   // "" while it is not
  bool ended = false;
};

}  // namespace cudacpu

struct CUstream_st {
  unsigned flags;
  int priority;
  std::shared_ptr<cudacpu::Capture> capture = {};
  std::vector<cudaGraphNode_t> tail = {};  // while it is captured: what the next node depends on
  std::vector<cudaGraphEdgeData> tail_data = {};  // of it, as cudaStreamGetCaptureInfo gave it last
  std::shared_ptr<cudacpu::DeferredQueue> queue = {};
  cudacpu::LiveHandle counted = {};
};

struct CUevent_st {
  unsigned flags;
  double recorded_at;                              // s; negative: never, or in a capture
  std::shared_ptr<cudacpu::Capture> capture = {};  // in which it was recorded last
  std::vector<cudaGraphNode_t> nodes = {};         // of it, that it waits for
  cudacpu::DeferredWork deferred = {};             // the record, where streams are late
  cudacpu::LiveHandle counted = {};
};

namespace cudacpu {

extern std::atomic<int> captures_in_progress;
inline bool nobody_captures() {
  return captures_in_progress.load(std::memory_order_relaxed) == 0;
}

// The default stream is written as 0, 1 or 2.
inline bool is_default(cudaStream_t stream) {
  return reinterpret_cast<uintptr_t>(stream) <= 2;
}

// The stream itself; null for the legacy default stream.
CUstream_st* stream_at(cudaStream_t stream);

// Remove a stream that is to be destroyed from its capture; without its origin, a capture ends.
void leave_capture(cudaStream_t stream);

// The fate of work for this stream; the error is the reason of a refusal.
enum class Fate { kRun, kRecord, kRefuse };
Fate fate_of(cudaStream_t stream, cudaError_t& error);
cudaError_t record(cudaStream_t stream, Work work);
cudaError_t submit_launch(KernelWork work, const CallType& type);

template <class W>
cudaError_t submit(cudaStream_t stream, const W& work) {
  check_caller(stream, "a copy, a fill or the like was queued", {"", 0});
  cudaError_t error = lost_context();
  if (error != cudaSuccess) return error;
  switch (nobody_captures() ? Fate::kRun : fate_of(stream, error)) {
    case Fate::kRun:
      return streams_are_late() ? defer(stream, work) : perform(work);
    case Fate::kRecord:
      if (cudaError_t problem = check(work); problem != cudaSuccess) return problem;
      return record(stream, work);
    default:
      return error;
  }
}

// The error of a call that does what no capture sees (cudaMalloc), that uses the legacy stream and
// waits for it (cudaMemcpy), or that waits for the whole device; cudaSuccess if nothing is captured
// that forbids it. Otherwise, the capture is invalid from now on.
cudaError_t refuse_unsafe(const char* function);
cudaError_t refuse_on_legacy_stream(const char* function);
cudaError_t refuse_for_device(const char* function);
// The error of a call that queries a stream, or waits for it.
cudaError_t refuse_waiting_for(cudaStream_t stream, const char* function);
// The error of a call that is not allowed in a captured stream.
cudaError_t refuse_in_capture(cudaStream_t stream, const char* function);

// The error of a call that queries an event which was recorded in a capture.
cudaError_t refuse_captured_event(cudaEvent_t event, const char* function);

// Record an event, or wait for one, in a capture. Return false if none is involved.
bool captured_record(cudaEvent_t event, cudaStream_t stream, cudaError_t& status);
bool captured_wait(cudaStream_t stream, cudaEvent_t event, cudaError_t& status);

}  // namespace cudacpu

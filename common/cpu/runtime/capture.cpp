// Stream capture: what is given to the streams that take part becomes nodes of a graph.
//
// A stream that waits for an event which a captured stream has recorded takes part from then on. A
// stream's tail is the nodes on which its next node depends. A call that a GPU forbids meanwhile
// makes the capture invalid: it records nothing more, and cudaStreamEndCapture returns the error.
#include "graph.h"

namespace cudacpu {

std::atomic<int> captures_in_progress{0};

namespace {

struct Captures {
  std::mutex mutex;  // guards captures, and streams and events that take part in one
  std::vector<std::shared_ptr<Capture>> active;
  unsigned long long last_id = 0;
};

Captures& captures() {
  static auto& instance = *new Captures;
  return instance;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

void invalidate(Capture& capture, const std::string& why) {
  if (capture.why_invalid.empty()) capture.why_invalid = why;
}

cudaError_t report_invalid(const Capture& capture) {
  return set_error(cudaErrorStreamCaptureInvalidated, capture.why_invalid);
}

// Return true if the legacy default stream would wait for a stream of the capture.
bool has_blocking_stream(const Capture& capture) {
  return std::any_of(capture.streams.begin(), capture.streams.end(),
                     [](const auto* stream) { return !(stream->flags & cudaStreamNonBlocking); });
}

// The functions below are called with the lock held.

cudaError_t use_of_legacy_stream(const char* function) {
  bool forbidden = false;
  for (const auto& capture : captures().active) {
    if (!has_blocking_stream(*capture)) continue;
    forbidden = true;
    invalidate(*capture, std::string(function) + " used the legacy default stream");
  }
  if (!forbidden) return cudaSuccess;
  return set_error(cudaErrorStreamCaptureImplicit, function);
}

cudaError_t unsafe_call(const char* function) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool forbidden = false;
  for (const auto& capture : captures().active) {
    bool mine = capture->thread == std::this_thread::get_id();
    bool counts = mine ? capture->mode != cudaStreamCaptureModeRelaxed
                       : capture->mode == cudaStreamCaptureModeGlobal &&
                             thread_mode == cudaStreamCaptureModeGlobal;
    if (!counts) continue;
    forbidden = true;
    invalidate(*capture, std::string(function) + " was called during the capture");
  }
  if (!forbidden) return cudaSuccess;
  return set_error(cudaErrorStreamCaptureUnsupported, function);
}

void add_to_tail(CUstream_st& stream, const std::vector<cudaGraphNode_t>& nodes) {
  for (cudaGraphNode_t node : nodes)
    if (std::find(stream.tail.begin(), stream.tail.end(), node) == stream.tail.end())
      stream.tail.push_back(node);
}

void join(const std::shared_ptr<Capture>& capture, CUstream_st& stream) {
  stream.capture = capture;
  capture->streams.push_back(&stream);
}

// Return true if a stream has recorded nodes that the origin has not waited for.
bool is_unjoined(const Capture& capture) {
  std::vector<bool> reached(capture.graph->nodes.size());
  std::vector<cudaGraphNode_t> pending = capture.origin->tail;
  while (!pending.empty()) {
    cudaGraphNode_t node = pending.back();
    pending.pop_back();
    if (reached[node->index]) continue;
    reached[node->index] = true;
    for (const Dependency& dependency : node->dependencies) pending.push_back(dependency.on);
  }
  auto is_missing = [&](cudaGraphNode_t node) { return !reached[node->index]; };
  auto misses_any = [&](const auto& nodes) {
    return std::any_of(nodes.begin(), nodes.end(), is_missing);
  };
  return misses_any(capture.left_behind) ||
         std::any_of(capture.streams.begin(), capture.streams.end(),
                     [&](const CUstream_st* stream) { return misses_any(stream->tail); });
}

void end(Capture& capture) {
  for (CUstream_st* stream : capture.streams) {
    stream->capture.reset();
    stream->tail.clear();
  }
  capture.ended = true;
  auto& active = captures().active;
  std::erase_if(active, [&](const auto& other) { return other.get() == &capture; });
  captures_in_progress.store(static_cast<int>(active.size()));
}

cudaError_t begin(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (mode != cudaStreamCaptureModeGlobal && mode != cudaStreamCaptureModeThreadLocal &&
      mode != cudaStreamCaptureModeRelaxed)
    return set_error(cudaErrorInvalidValue);
  CUstream_st* stream = stream_at(handle);
  if (!stream)
    return set_error(cudaErrorStreamCaptureUnsupported,
                     "the legacy default stream cannot be captured");
  std::lock_guard lock(captures().mutex);
  if (stream->capture) return set_error(cudaErrorIllegalState, "the stream is already captured");
  auto capture = std::make_shared<Capture>();
  capture->id = ++captures().last_id;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->graph = std::make_unique<CUgraph_st>();
  join(capture, *stream);
  captures().active.push_back(std::move(capture));
  captures_in_progress.store(static_cast<int>(captures().active.size()));
  return cudaSuccess;
}

}  // namespace

CUstream_st* stream_at(cudaStream_t stream) {
  // It outlives its thread: a capture may know it.
  thread_local CUstream_st* const of_this_thread = new CUstream_st{0, 0};
  if (stream == cudaStreamPerThread) return of_this_thread;
  return stream == nullptr || stream == cudaStreamLegacy ? nullptr : stream;
}

void leave_capture(cudaStream_t stream) {
  std::lock_guard lock(captures().mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return;
  if (capture->origin == stream) {
    invalidate(*capture, "its stream was destroyed");
    end(*capture);
    return;
  }
  auto& left = capture->left_behind;
  left.insert(left.end(), stream->tail.begin(), stream->tail.end());
  std::erase(capture->streams, stream);
}

Fate fate_of(cudaStream_t handle, cudaError_t& error) {
  std::lock_guard lock(captures().mutex);
  CUstream_st* stream = stream_at(handle);
  if (!stream) {
    error = use_of_legacy_stream("a launch or a copy");
    return error == cudaSuccess ? Fate::kRun : Fate::kRefuse;
  }
  if (!stream->capture) return Fate::kRun;
  if (stream->capture->why_invalid.empty()) return Fate::kRecord;
  error = report_invalid(*stream->capture);
  return Fate::kRefuse;
}

cudaError_t record(cudaStream_t handle, Work work) {
  std::lock_guard lock(captures().mutex);
  CUstream_st& stream = *stream_at(handle);
  if (!stream.capture) return set_error(cudaErrorIllegalState, "the capture has ended");
  if (!stream.capture->why_invalid.empty()) return report_invalid(*stream.capture);
  const auto* launch = std::get_if<KernelWork>(&work);
  std::vector<Dependency> dependencies;
  for (cudaGraphNode_t node : stream.tail) {
    Dependency dependency{node};
    if (launch && launch->config.programmatic && std::holds_alternative<KernelWork>(node->work)) {
      dependency.data.from_port = cudaGraphKernelNodePortProgrammatic;
      dependency.data.type = cudaGraphDependencyTypeProgrammatic;
    }
    dependencies.push_back(dependency);
  }
  stream.tail = {add_node(*stream.capture->graph, std::move(work), std::move(dependencies))};
  return cudaSuccess;
}

cudaError_t submit_launch(KernelWork work, const CallType& type) {
  cudaStream_t stream = work.config.stream;
  cudaError_t error = cudaSuccess;
  switch (nobody_captures() ? Fate::kRun : fate_of(stream, error)) {
    case Fate::kRun:
      if (!streams_are_late()) return perform(work);
      if (cudaError_t problem = probe(work); problem != cudaSuccess) return problem;
      return defer(stream, keep(std::move(work), type));
    case Fate::kRecord:
      if (cudaError_t problem = probe(work); problem != cudaSuccess) {
        std::lock_guard lock(captures().mutex);
        if (const auto& capture = stream_at(stream)->capture)
          invalidate(*capture,
                     format("the launch at %s:%d was refused", work.site.file, work.site.line));
        return problem;
      }
      return record(stream, keep(std::move(work), type));
    default:
      return error;
  }
}

cudaError_t refuse_unsafe(const char* function) {
  if (nobody_captures()) return cudaSuccess;
  std::lock_guard lock(captures().mutex);
  return unsafe_call(function);
}

cudaError_t refuse_on_legacy_stream(const char* function) {
  if (nobody_captures()) return cudaSuccess;
  std::lock_guard lock(captures().mutex);
  cudaError_t error = use_of_legacy_stream(function);
  return error != cudaSuccess ? error : unsafe_call(function);
}

cudaError_t refuse_for_device(const char* function) {
  if (nobody_captures()) return cudaSuccess;
  std::lock_guard lock(captures().mutex);
  for (const auto& capture : captures().active)
    invalidate(*capture, std::string(function) + " was called during the capture");
  return set_error(cudaErrorStreamCaptureUnsupported, function);
}

cudaError_t refuse_waiting_for(cudaStream_t stream, const char* function) {
  if (nobody_captures()) return cudaSuccess;
  if (!stream_at(stream)) return refuse_on_legacy_stream(function);
  cudaError_t error = refuse_in_capture(stream, function);
  return error != cudaSuccess ? error : refuse_unsafe(function);
}

cudaError_t refuse_in_capture(cudaStream_t handle, const char* function) {
  if (nobody_captures()) return cudaSuccess;
  std::lock_guard lock(captures().mutex);
  CUstream_st* stream = stream_at(handle);
  if (!stream) return use_of_legacy_stream(function);
  if (!stream->capture) return cudaSuccess;
  invalidate(*stream->capture, std::string(function) + " was called on a captured stream");
  return set_error(cudaErrorStreamCaptureUnsupported, function);
}

cudaError_t refuse_captured_event(cudaEvent_t event, const char* function) {
  std::lock_guard lock(captures().mutex);
  invalidate(*event->capture, std::string(function) + " was called for an event of the capture");
  return set_error(cudaErrorCapturedEvent, function);
}

bool captured_record(cudaEvent_t event, cudaStream_t handle, cudaError_t& status) {
  if (nobody_captures()) {
    event->capture.reset();
    return false;
  }
  std::lock_guard lock(captures().mutex);
  CUstream_st* stream = stream_at(handle);
  if (!stream) {
    status = use_of_legacy_stream("cudaEventRecord");
    return status != cudaSuccess;
  }
  event->capture = stream->capture;
  if (!stream->capture) return false;
  event->recorded_at = -1;
  event->nodes = stream->tail;
  status = stream->capture->why_invalid.empty() ? cudaSuccess : report_invalid(*stream->capture);
  return true;
}

bool captured_wait(cudaStream_t handle, cudaEvent_t event, cudaError_t& status) {
  if (nobody_captures() && !event->capture) return false;
  std::lock_guard lock(captures().mutex);
  CUstream_st* stream = stream_at(handle);
  if (!stream && (status = use_of_legacy_stream("cudaStreamWaitEvent")) != cudaSuccess) return true;
  const std::shared_ptr<Capture>& from = event->capture;
  const std::shared_ptr<Capture> into = stream ? stream->capture : nullptr;
  if (!from && !into) return false;
  auto refuse = [&](cudaError_t code, const char* why) {
    if (into) invalidate(*into, why);
    if (from) invalidate(*from, why);
    status = set_error(code, why);
    return true;
  };
  if (into && !into->why_invalid.empty()) {
    status = report_invalid(*into);
    return true;
  }
  if (!from)
    return refuse(cudaErrorStreamCaptureIsolation,
                  "cudaStreamWaitEvent: the event was not recorded in this capture");
  if (from->ended)
    return refuse(cudaErrorCapturedEvent,
                  "cudaStreamWaitEvent: the event was recorded in a capture that has ended");
  if (!stream)
    return refuse(cudaErrorStreamCaptureImplicit,
                  "cudaStreamWaitEvent: the legacy default stream cannot be captured");
  if (into && into != from)
    return refuse(cudaErrorStreamCaptureMerge,
                  "cudaStreamWaitEvent: the event was recorded in another capture");
  if (!into) join(from, *stream);
  add_to_tail(*stream, event->nodes);
  status = cudaSuccess;
  return true;
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return begin(stream, mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  if (!graph) return set_error(cudaErrorInvalidValue);
  *graph = nullptr;
  std::lock_guard lock(captures().mutex);
  CUstream_st* stream = stream_at(handle);
  if (!stream || !stream->capture)
    return set_error(cudaErrorIllegalState, "the stream is not being captured");
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream)
    return set_error(cudaErrorStreamCaptureUnmatched, "the capture began on another stream");
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return set_error(cudaErrorStreamCaptureWrongThread);
  bool unjoined = is_unjoined(*capture);
  end(*capture);
  if (!capture->why_invalid.empty()) return report_invalid(*capture);
  if (unjoined)
    return set_error(
        cudaErrorStreamCaptureUnjoined,
        "the stream where the capture began has not waited for all work of the others");
  *graph = capture->graph.release();
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  if (!status || (edges && !dependencies)) return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(captures().mutex);
  CUstream_st* stream = stream_at(handle);
  if (!stream)
    for (const auto& capture : captures().active)
      if (has_blocking_stream(*capture)) return set_error(cudaErrorStreamCaptureImplicit);
  *status = cudaStreamCaptureStatusNone;
  if (!stream || !stream->capture) return cudaSuccess;
  *status = stream->capture->why_invalid.empty() ? cudaStreamCaptureStatusActive
                                                 : cudaStreamCaptureStatusInvalidated;
  if (id) *id = stream->capture->id;
  if (graph) *graph = stream->capture->graph.get();
  if (dependencies) *dependencies = stream->tail.data();
  if (edges) {
    stream->tail_data.assign(stream->tail.size(), {});
    *edges = stream->tail_data.data();
  }
  if (count) *count = stream->tail.size();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
    return set_error(cudaErrorInvalidValue);
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

}  // extern "C"

// Streams and events. All work is done when it is called, which is one of the orders that streams
// allow; an event is the time at which it was recorded. In a capture (capture.cpp), it stands for
// nodes of a graph; where streams are late (deferred.cpp), for work that is put off.
#include "graph.h"

using namespace cudacpu;

namespace {

cudaError_t create(cudaStream_t* stream, unsigned flags, int priority) {
  if (!stream || flags > cudaStreamNonBlocking) return set_error(cudaErrorInvalidValue);
  *stream = new CUstream_st{flags, std::clamp(priority, -5, 0)};
  return cudaSuccess;
}

// Return an error if the progress of an event cannot be queried.
cudaError_t check_waiting_for(cudaEvent_t event, const char* function) {
  if (!event) return set_error(cudaErrorInvalidResourceHandle);
  if (event->capture) return refuse_captured_event(event, function);
  return refuse_unsafe(function);
}

}  // namespace

namespace cudacpu {

cudaError_t check(const HostCall& call) {
  return call.function ? cudaSuccess : set_error(cudaErrorInvalidValue);
}
cudaError_t perform(const HostCall& call) {
  if (cudaError_t error = check(call); error != cudaSuccess) return error;
  call.function(call.data);
  return cudaSuccess;
}

}  // namespace cudacpu

extern "C" {

// Return the number of streams, events, graphs and memory pools that are not destroyed yet.
size_t cudacpu_handles() {
  return LiveHandle::count.load();
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create(stream, 0, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (is_default(stream)) return set_error(cudaErrorInvalidResourceHandle);
  if (!nobody_captures()) leave_capture(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t error = refuse_waiting_for(stream, "cudaStreamSynchronize");
  return error != cudaSuccess ? error : wait_for(stream);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const cudaError_t error = refuse_waiting_for(stream, "cudaStreamQuery");
  return error != cudaSuccess ? error : query(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (!event) return set_error(cudaErrorInvalidResourceHandle);
  if (flags > cudaEventWaitExternal) return set_error(cudaErrorInvalidValue);
  cudaError_t status = cudaSuccess;
  if (flags == cudaEventWaitExternal &&
      (status = refuse_in_capture(stream, "cudaEventWaitExternal")) != cudaSuccess)
    return status;
  if (!captured_wait(stream, event, status)) defer_wait(stream, event->deferred);
  return status;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (!priority) return set_error(cudaErrorInvalidValue);
  *priority = is_default(stream) ? 0 : stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  if (!id) return set_error(cudaErrorInvalidValue);
  const auto number = reinterpret_cast<uintptr_t>(stream);
  *id = number ? number : reinterpret_cast<uintptr_t>(cudaStreamLegacy);
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  if (!flags) return set_error(cudaErrorInvalidValue);
  *flags = is_default(stream) ? 0 : stream->flags;
  return cudaSuccess;
}
// Hints about caches and priorities have no effect here, and are not kept.
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID,
                                   const cudaStreamAttrValue* value) {
  return value ? cudaSuccess : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaStreamCopyAttributes(cudaStream_t, cudaStream_t) {
  return cudaSuccess;
}
// Managed memory can be accessed from everywhere at all times.
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void* memory, size_t, unsigned) {
  return memory ? cudaSuccess : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
  if (!callback) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = refuse_in_capture(stream, "cudaStreamAddCallback"); error != cudaSuccess)
    return error;
  auto call = [=] {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
  };
  if (!streams_are_late()) return call();
  defer(stream, "a callback", call);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return submit(stream, HostCall{function, data});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!event) return set_error(cudaErrorInvalidValue);
  *event = new CUevent_st{flags, -1.0};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return set_error(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (!event) return set_error(cudaErrorInvalidResourceHandle);
  if (flags > cudaEventRecordExternal) return set_error(cudaErrorInvalidValue);
  cudaError_t status = cudaSuccess;
  if (flags == cudaEventRecordExternal &&
      (status = refuse_in_capture(stream, "cudaEventRecordExternal")) != cudaSuccess)
    return status;
  event->deferred.reset();
  if (captured_record(event, stream, status)) return status;
  event->recorded_at = seconds();
  if (streams_are_late()) event->deferred = defer(stream, "", nullptr);
  return status;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const cudaError_t error = check_waiting_for(event, "cudaEventSynchronize");
  return error != cudaSuccess ? error : wait_for(event->deferred);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const cudaError_t error = check_waiting_for(event, "cudaEventQuery");
  return error != cudaSuccess ? error : query(event->deferred);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!milliseconds) return set_error(cudaErrorInvalidValue);
  for (cudaEvent_t event : {start, end})
    if (!event || event->recorded_at < 0 || (event->flags & cudaEventDisableTiming))
      return set_error(cudaErrorInvalidResourceHandle);
  std::optional<double> times[] = {start->recorded_at, end->recorded_at};
  if (start->deferred) times[0] = time_of(start->deferred);
  if (end->deferred) times[1] = time_of(end->deferred);
  if (!times[0] || !times[1]) return set_error(cudaErrorNotReady);
  *milliseconds = static_cast<float>(1e3 * (*times[1] - *times[0]));
  return cudaSuccess;
}

}  // extern "C"

// Error codes: the last one of each host thread, and their names.
#include "runtime.h"

namespace cudacpu {

namespace {

CUDACPU_THREAD_LOCAL cudaError_t last_error = cudaSuccess;
CUDACPU_THREAD_LOCAL cudaError_t last_text_code = cudaSuccess;
thread_local std::string last_text;          // of that code, with the reason, where there is one
std::atomic<cudaError_t> lost{cudaSuccess};  // why the context is lost, if it is
std::mutex unchecked_mutex;
std::string unchecked_text;  // the first call that failed since the last error was looked at
std::atomic<bool> warp_in_step_noted{false};
std::string warp_in_step_text;

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};

// Names and texts are those of NVIDIA's runtime, for the codes that this one returns or that a
// program compares with.
#define CUDACPU_ERROR(name, text) {name, #name, text}
constexpr ErrorText kErrors[] = {
    CUDACPU_ERROR(cudaSuccess, "no error"),
    CUDACPU_ERROR(cudaErrorInvalidValue, "invalid argument"),
    CUDACPU_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    CUDACPU_ERROR(cudaErrorInitializationError, "initialization error"),
    CUDACPU_ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    CUDACPU_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    CUDACPU_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    CUDACPU_ERROR(cudaErrorInvalidChannelDescriptor, "invalid channel descriptor"),
    CUDACPU_ERROR(cudaErrorInvalidFilterSetting,
                  "linear filtering not supported for non-float type"),
    CUDACPU_ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    CUDACPU_ERROR(cudaErrorInvalidHostPointer, "invalid host pointer"),
    CUDACPU_ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    CUDACPU_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    CUDACPU_ERROR(cudaErrorInsufficientDriver,
                  "CUDA driver version is insufficient for CUDA runtime version"),
    CUDACPU_ERROR(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    CUDACPU_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    CUDACPU_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    CUDACPU_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    CUDACPU_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    CUDACPU_ERROR(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    CUDACPU_ERROR(cudaErrorNoKernelImageForDevice,
                  "no kernel image is available for execution on the device"),
    CUDACPU_ERROR(cudaErrorUnsupportedLimit, "limit is not supported on this architecture"),
    CUDACPU_ERROR(cudaErrorPeerAccessUnsupported,
                  "peer access is not supported between these two devices"),
    CUDACPU_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    CUDACPU_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    CUDACPU_ERROR(cudaErrorNotReady, "device not ready"),
    CUDACPU_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    CUDACPU_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    CUDACPU_ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    CUDACPU_ERROR(cudaErrorAssert, "device-side assert triggered"),
    CUDACPU_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                  "part or all of the requested memory range is already mapped"),
    CUDACPU_ERROR(cudaErrorHostMemoryNotRegistered,
                  "pointer does not correspond to a registered memory region"),
    CUDACPU_ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    CUDACPU_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    CUDACPU_ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    CUDACPU_ERROR(cudaErrorNotPermitted, "operation not permitted"),
    CUDACPU_ERROR(cudaErrorNotSupported, "operation not supported"),
    CUDACPU_ERROR(cudaErrorStreamCaptureUnsupported,
                  "operation not permitted when stream is capturing"),
    CUDACPU_ERROR(cudaErrorStreamCaptureInvalidated,
                  "operation failed due to a previous error during capture"),
    CUDACPU_ERROR(cudaErrorStreamCaptureMerge,
                  "operation would result in a merge of separate capture sequences"),
    CUDACPU_ERROR(cudaErrorStreamCaptureUnmatched,
                  "capture was not ended in the same stream as it began"),
    CUDACPU_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    CUDACPU_ERROR(cudaErrorStreamCaptureIsolation,
                  "dependency created on uncaptured work in another stream"),
    CUDACPU_ERROR(cudaErrorStreamCaptureImplicit,
                  "operation would make the legacy stream depend on a capturing blocking stream"),
    CUDACPU_ERROR(cudaErrorCapturedEvent,
                  "operation not permitted on an event last recorded in a capturing stream"),
    CUDACPU_ERROR(cudaErrorStreamCaptureWrongThread,
                  "attempt to terminate a thread-local capture sequence from another thread"),
    CUDACPU_ERROR(cudaErrorGraphExecUpdateFailure,
                  "the graph update was not performed because it included changes which violated "
                  "constraints specific to instantiated graph update"),
    CUDACPU_ERROR(cudaErrorLossyQuery,
                  "the API call would lose information about edges between nodes"),
    CUDACPU_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    CUDACPU_ERROR(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    CUDACPU_ERROR(cudaErrorInvalidClusterSize,
                  "a kernel launch error has occurred due to cluster misconfiguration"),
    CUDACPU_ERROR(cudaErrorUnknown, "unknown error"),
};
#undef CUDACPU_ERROR

void looked_at_errors() {
  std::lock_guard lock(unchecked_mutex);
  unchecked_text.clear();
}

const ErrorText* find(cudaError_t code) {
  for (const ErrorText& error : kErrors)
    if (error.code == code) return &error;
  return nullptr;
}

}  // namespace

cudaError_t set_error(cudaError_t code, std::string reason) {
  if (code == cudaSuccess) return code;
  last_error = code;
  const ErrorText* error = find(code);
  last_text_code = code;
  last_text = reason.empty() || !error ? "" : error->text + (": " + reason);
  return code;
}

cudaError_t set_error(cudaError_t code) {
  return set_error(code, "");
}

void lose_context(cudaError_t code) {
  lost = code;
}

cudaError_t lost_context() {
  return set_error(lost.load(std::memory_order_relaxed));
}

void note_refused_launch(const LaunchSite& site, const std::string& launch, cudaError_t code) {
  last_text = std::string(cudaGetErrorString(code)) + ", in " + launch;
  last_text_code = code;
  std::lock_guard lock(unchecked_mutex);
  if (!unchecked_text.empty()) return;
  unchecked_text =
      format("kernel %s did not run: ", site.kernel ? site.kernel : "(unknown)") + last_text;
}

void note_unchecked(cudaError_t error, Site site, const char* function) {
  if (error == cudaErrorNotReady || lost != cudaSuccess) return;
  std::lock_guard lock(unchecked_mutex);
  if (!unchecked_text.empty()) return;
  unchecked_text =
      format("%s at %s:%d failed: ", function, site.file, site.line) + cudaGetErrorString(error);
}

void note_warp_in_step(Site site) {
  if (warp_in_step_noted.exchange(true, std::memory_order_relaxed)) return;
  warp_in_step_text = format(
      "%s:%d: threads exchange numbers through volatile memory without __syncwarp(): since Volta "
      "no GPU promises to run the threads of a warp in step, and here each runs on alone, so that "
      "the numbers are others; --sanitize names the race",
      site.file, site.line);
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

// The first statement that needs the threads of a warp to run in step, or "".
const char* cudacpu_warp_in_step() {
  return warp_in_step_text.c_str();
}

// The first launch that was refused, or call that failed, if the last error was not looked at
// since; or "".
const char* cudacpu_unchecked_error() {
  return unchecked_text.c_str();
}

cudaError_t cudaGetLastError() {
  looked_at_errors();
  return std::exchange(last_error, lost.load());
}
cudaError_t cudaPeekAtLastError() {
  looked_at_errors();
  return last_error;
}

const char* cudaGetErrorName(cudaError_t code) {
  const ErrorText* error = find(code);
  return error ? error->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t code) {
  if (code == last_text_code && !last_text.empty()) return last_text.c_str();
  const ErrorText* error = find(code);
  return error ? error->text : "unrecognized error code";
}

}  // extern "C"

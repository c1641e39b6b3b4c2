// What `kernel<<<grid, block, shared, stream>>>(arguments)` becomes.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cudacpu/thread.h"

// A kernel's name as written, with macros expanded: inside a macro, `kernel` may be its parameter.
#define CUDACPU_TEXT(...) CUDACPU_TEXT_AGAIN(__VA_ARGS__)
#define CUDACPU_TEXT_AGAIN(...) #__VA_ARGS__

// First line of every kernel. The first thread of a launch on each OS thread reports which kernel
// it is in: the launch itself may not know, for template arguments can have been deduced.
#define CUDACPU_ENTRY(address, max_threads)  \
  if (::cudacpu::entry_pending) [[unlikely]] \
    ::cudacpu::enter_kernel((const void*)address, __PRETTY_FUNCTION__, (max_threads));

namespace cudacpu {

struct LaunchSite {
  const char* kernel;  // as written; null if the launch does not say
  const char* file;
  int line;
};

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
};

extern CUDACPU_THREAD_LOCAL bool entry_pending;
void enter_kernel(const void* address, const char* signature, unsigned max_threads);

// Ends the thread that ran before and makes the next one current. False when this fiber should
// return to the scheduler, because no thread is left to start or others should run first.
bool next_thread();

// A C++ exception left the kernel.
void thread_threw();

// Runs the whole grid. `loop` calls the kernel once for each thread that next_thread() gives it.
void run_grid(const LaunchSite& site, const Configuration& config, void (*loop)(void*), void* call);

template <class Call, class Arguments>
struct BoundCall {
  const Call& call;
  Arguments& arguments;

  static void loop(void* self) {
    auto& bound = *static_cast<BoundCall*>(self);
    while (next_thread()) {
      try {
        std::apply(bound.call, bound.arguments);
      } catch (...) {
        thread_threw();
      }
    }
  }
};

template <class Call>
class Launcher {
 public:
  Launcher(const LaunchSite& site, Call call, const Configuration& config)
      : site_(site), call_(std::move(call)), config_(config) {}

  // The arguments are evaluated once and copied, as a launch copies them to the device.
  template <class... A>
  void operator()(A&&... arguments) const {
    std::tuple<std::decay_t<A>...> copies(std::forward<A>(arguments)...);
    BoundCall<Call, decltype(copies)> bound{call_, copies};
    run_grid(site_, config_, &decltype(bound)::loop, &bound);
  }

 private:
  LaunchSite site_;
  Call call_;
  Configuration config_;
};

template <class Call>
Launcher<Call> launcher(const LaunchSite& site, Call call, dim3 grid, dim3 block,
                        size_t shared_bytes = 0, cudaStream_t /*stream*/ = nullptr) {
  return Launcher<Call>(site, std::move(call), Configuration{grid, block, shared_bytes});
}

namespace detail {
template <class... P, size_t... I>
cudaError_t launch_pointers(const LaunchSite& site, void (*kernel)(P...), dim3 grid, dim3 block,
                            void** arguments, size_t shared_bytes, std::index_sequence<I...>) {
  launcher(
      site, [&](auto&... a) { kernel(a...); }, grid, block,
      shared_bytes)(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
  return cudaPeekAtLastError();
}
}  // namespace detail

// The rewriter puts the place of the call in front of the arguments of these two.
template <class... P>
cudaError_t cudaLaunchKernel(Site site, void (*kernel)(P...), dim3 grid, dim3 block,
                             void** arguments, size_t shared_bytes = 0,
                             cudaStream_t /*stream*/ = nullptr) {
  return detail::launch_pointers({nullptr, site.file, site.line}, kernel, grid, block, arguments,
                                 shared_bytes, std::index_sequence_for<P...>{});
}

// Launch attributes that only order or tune the launch are met by running it at once; the others
// ask for what the backend does not have.
cudaError_t check_attributes(const cudaLaunchConfig_t& config);

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(Site site, const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... arguments) {
  cudaError_t status = check_attributes(*config);
  if (status != cudaSuccess) return status;
  launcher(
      {nullptr, site.file, site.line}, [&](auto&... a) { kernel(a...); }, config->gridDim,
      config->blockDim,
      config->dynamicSmemBytes)(static_cast<std::remove_cv_t<P>>(std::forward<A>(arguments))...);
  return cudaPeekAtLastError();
}

}  // namespace cudacpu

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
// it is in: the launch itself may not know, for template arguments can have been deduced. After the
// address and the limit on threads come the extents of __cluster_dims__, where the kernel has them.
#define CUDACPU_ENTRY(address, max_threads, ...)                                      \
  if (::cudacpu::entry_pending) [[unlikely]]                                          \
    ::cudacpu::enter_kernel((const void*)address, __PRETTY_FUNCTION__, (max_threads), \
                            dim3{__VA_ARGS__});

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
  bool cooperative =
      false;  // all blocks are resident at once, so that they may wait for each other
  dim3 cluster = {1, 1, 1};  // blocks that are resident together and share their shared memory
};

extern CUDACPU_THREAD_LOCAL bool entry_pending;
void enter_kernel(const void* address, const char* signature, unsigned max_threads, dim3 cluster);

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

// Why a GPU would refuse this cooperative launch, set as the last error; cudaSuccess if it would
// not.
cudaError_t check_cooperative(const void* kernel, const Configuration& config);

namespace detail {
template <class... P, size_t... I>
cudaError_t launch_pointers(Site site, void (*kernel)(P...), const Configuration& config,
                            void** arguments, std::index_sequence<I...>) {
  auto call = [&](auto&... a) { kernel(a...); };
  Launcher<decltype(call)>({nullptr, site.file, site.line}, call,
                           config)(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
  return cudaPeekAtLastError();
}
}  // namespace detail

// The rewriter puts the place of the call in front of the arguments of these three.
template <class... P>
cudaError_t cudaLaunchKernel(Site site, void (*kernel)(P...), dim3 grid, dim3 block,
                             void** arguments, size_t shared_bytes = 0,
                             cudaStream_t /*stream*/ = nullptr) {
  return detail::launch_pointers(site, kernel, {grid, block, shared_bytes}, arguments,
                                 std::index_sequence_for<P...>{});
}
template <class... P>
cudaError_t cudaLaunchCooperativeKernel(Site site, void (*kernel)(P...), dim3 grid, dim3 block,
                                        void** arguments, size_t shared_bytes = 0,
                                        cudaStream_t /*stream*/ = nullptr) {
  Configuration config{grid, block, shared_bytes, true};
  cudaError_t status = check_cooperative(reinterpret_cast<const void*>(kernel), config);
  if (status != cudaSuccess) return status;
  return detail::launch_pointers(site, kernel, config, arguments, std::index_sequence_for<P...>{});
}

// Launch attributes that only order or tune the launch are met by running it at once. The others,
// `cooperative` and the extents of a cluster, are put into `config`.
void read_attributes(const cudaLaunchConfig_t& from, Configuration& config);

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(Site site, const cudaLaunchConfig_t* from, void (*kernel)(P...),
                               A&&... arguments) {
  Configuration config{from->gridDim, from->blockDim, from->dynamicSmemBytes};
  read_attributes(*from, config);
  if (config.cooperative) {
    cudaError_t status = check_cooperative(reinterpret_cast<const void*>(kernel), config);
    if (status != cudaSuccess) return status;
  }
  auto call = [&](auto&... a) { kernel(a...); };
  Launcher<decltype(call)>({nullptr, site.file, site.line}, call,
                           config)(static_cast<std::remove_cv_t<P>>(std::forward<A>(arguments))...);
  return cudaPeekAtLastError();
}

}  // namespace cudacpu

// A launch: refused as a GPU refuses it, run, and its outcome.
#include "runtime.h"

#include <cstdarg>
#include <numeric>

namespace cudacpu {

namespace {

cudaError_t check(const Configuration& config) {
  const dim3 &grid = config.grid, &block = config.block;
  uint64_t threads = uint64_t{block.x} * block.y * block.z;
  bool grid_fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu &&
                   grid.y <= 65535 && grid.z <= 65535;
  bool block_fits = threads > 0 && block.x <= 1024 && block.y <= 1024 && block.z <= 64 &&
                    threads <= kMaxThreadsPerBlock;
  if (!grid_fits || !block_fits) return cudaErrorInvalidConfiguration;
  return config.shared_bytes > kSharedOptIn ? cudaErrorInvalidValue : cudaSuccess;
}

// An order of the blocks that needs no table: position * stride + shift modulo their number, with a
// stride that has no divisor in common with it.
void choose_random_order(Launch& launch) {
  uint64_t mixed = (uint64_t{launch.schedule.seed} + 1) * 0x9e3779b97f4a7c15ull;
  launch.shift = mixed % launch.blocks;
  launch.stride = (mixed >> 7) % launch.blocks;
  while (std::gcd(launch.stride, launch.blocks) != 1)
    launch.stride = (launch.stride + 1) % launch.blocks;
}

}  // namespace

void Launch::fail(Stop reason, std::string message) {
  std::lock_guard lock(mutex);
  if (stopping()) return;
  error = std::move(message);
  stop.store(reason);
}

void Launch::add(const std::string& detail) {
  std::lock_guard lock(mutex);
  if (has_detail || (stop != Stop::kTimeLimit && stop != Stop::kInterrupted)) return;
  has_detail = true;
  error += detail;
}

void Launch::refuse(cudaError_t code) {
  std::lock_guard lock(mutex);
  if (stopping()) return;
  refusal = code;
  stop.store(Stop::kRefused);
}

uint64_t Launch::block_at(uint64_t position) const {
  switch (schedule.blocks) {
    case Order::kReverse:
      return blocks - 1 - position;
    case Order::kRandom:
      return static_cast<uint64_t>((static_cast<unsigned __int128>(position) * stride + shift) %
                                   blocks);
    default:
      return position;
  }
}

std::string Launch::describe() const {
  const char* name = site.kernel ? site.kernel : signature.load();
  return format("  in kernel %s, launched at %s:%d", name ? name : "(unknown)", site.file,
                site.line);
}

void run_grid(const LaunchSite& site, const Configuration& config, void (*loop)(void*),
              void* call) {
  if (current) trap({site.file, site.line}, "a kernel was launched from device code");
  if (cudaError_t problem = check(config); problem != cudaSuccess) {
    set_error(problem);
    return;
  }
  Launch launch;
  launch.site = site;
  launch.config = config;
  launch.loop = loop;
  launch.call = call;
  launch.schedule = settings().schedule.load();
  launch.blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  launch.threads = config.block.x * config.block.y * config.block.z;
  if (launch.schedule.blocks == Order::kRandom) choose_random_order(launch);
  install_fault_handlers();
  {
    Watch watch(launch);
    run_on_workers(launch);
  }
  if (!launch.printed.empty()) write_printed(launch);
  if (!launch.stopping()) return;
  if (launch.stop == Stop::kRefused) {
    set_error(launch.refusal);
    return;
  }
  throw KernelError("CUDA on CPU: " + launch.error + launch.describe());
}

void enter_kernel(const void* address, const char* signature, unsigned max_threads) {
  entry_pending = false;
  Launch& launch = *worker->launch();
  launch.signature.store(signature);
  cudaError_t problem = cudaSuccess;
  if (max_threads && launch.threads > max_threads) problem = cudaErrorLaunchOutOfResources;
  if (address) {
    Kernel& kernel = kernel_at(address);
    launch.kernel.store(&kernel);
    if (max_threads) kernel.max_threads.store(max_threads);
    if (launch.config.shared_bytes > kernel.max_dynamic()) problem = cudaErrorInvalidValue;
  }
  if (problem == cudaSuccess) return;
  launch.refuse(problem);
  worker->abandon();
}

cudaError_t read_attributes(const cudaLaunchConfig_t& from, Configuration& config) {
  for (unsigned i = 0; i < from.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = from.attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeCooperative:
        config.cooperative = attribute.val.cooperative != 0;
        break;
      case cudaLaunchAttributeClusterDimension: {
        const auto& cluster = attribute.val.clusterDim;
        if (cluster.x * cluster.y * cluster.z > 1) return set_error(cudaErrorNotSupported);
        break;
      }
      default:
        break;  // orders or tunes the launch, which is run at once
    }
  }
  return cudaSuccess;
}

void trap(Site site, const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  std::string message = text;
  if (site.line) message += format("\n  at %s:%d", site.file, site.line);
  message += '\n';
  if (!current) throw KernelError("CUDA on CPU: " + message + "  in host code");
  worker->launch()->fail(Stop::kFailed, message + describe(*current));
  worker->abandon();
}

}  // namespace cudacpu

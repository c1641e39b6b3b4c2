// A launch: refused as a GPU refuses it, run, and its outcome; or recorded, if its stream is
// captured.
#include "graph.h"

#include <cstdarg>
#include <numeric>
#include <optional>

namespace cudacpu {

namespace {

std::string text_of(const dim3& d) {
  return format("(%u,%u,%u)", d.x, d.y, d.z);
}

unsigned blocks_of(const dim3& cluster) {
  return cluster.x * cluster.y * cluster.z;
}

// Return the error in the cluster of this launch, or "".
std::string wrong_with_cluster(const Configuration& config) {
  const dim3 &grid = config.grid, &cluster = config.cluster;
  if (!cluster.x || !cluster.y || !cluster.z)
    return "the cluster " + text_of(cluster) + " has no blocks";
  const unsigned most = model().max_cluster;
  if (cluster.x > most || cluster.y > most || cluster.z > most || blocks_of(cluster) > most)
    return format("the cluster %s has more than %u blocks", text_of(cluster).c_str(), most);
  if (grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z)
    return "the grid " + text_of(grid) + " is not a multiple of the cluster " + text_of(cluster);
  return "";
}

// Return the error in the extents of a grid or a block, or "". what: "a grid of %u blocks".
std::string wrong_with_extents(const char* what, const dim3& extents, const dim3& most) {
  const bool one_axis = extents.y == 1 && extents.z == 1;
  const struct {
    const char* axis;
    unsigned extent, most;
  } axes[] = {{one_axis ? "" : " along x", extents.x, most.x},
              {" along y", extents.y, most.y},
              {" along z", extents.z, most.z}};
  for (const auto& [axis, extent, allowed] : axes) {
    if (extent > 0 && extent <= allowed) continue;
    std::string text = format(what, extent) + axis;
    text += extent ? format(": at most %u are allowed", allowed) : ": at least 1 is needed";
    return extent > INT32_MAX ? text + as_negative(static_cast<int32_t>(extent)) : text;
  }
  return "";
}

// Refuse launches that this card cannot run at all. (The runtime's documentation suggests
// cudaErrorNotSupported for clusters; it was not tried on such a card.)
cudaError_t check_card(const Configuration& config) {
  const Model& card = model();
  if (config.shared_bytes > most_shared())
    return set_error(cudaErrorInvalidValue,
                     too_much_dynamic_shared(config.shared_bytes, most_shared()));
  if (card.max_cluster == 1 && blocks_of(config.cluster) > 1)
    return set_error(cudaErrorNotSupported,
                     format("clusters need compute capability 9.0; %s has %s",
                            device_name().c_str(), card.name));
  return cudaSuccess;
}

// Describe the launch that is refused: "add<<<(4,1,1), (256,1,1), 1024>>> at add.cu:7".
std::string text_of(const LaunchSite& site, const Configuration& config) {
  const std::string grid = text_of(config.grid), block = text_of(config.block);
  const std::string shared = config.shared_bytes ? format(", %zu", config.shared_bytes) : "";
  return format("%s<<<%s, %s%s>>> at %s:%d", site.kernel ? site.kernel : "(unknown)", grid.c_str(),
                block.c_str(), shared.c_str(), site.file, site.line);
}

// Choose an order of the clusters that needs no table: position * stride + shift modulo their
// number, with a stride that is coprime to that number.
void choose_random_order(Launch& launch) {
  uint64_t mixed = (uint64_t{launch.schedule.seed} + 1) * 0x9e3779b97f4a7c15ull;
  launch.shift = mixed % launch.clusters;
  launch.stride = (mixed >> 7) % launch.clusters;
  while (std::gcd(launch.stride, launch.clusters) != 1)
    launch.stride = (launch.stride + 1) % launch.clusters;
}

}  // namespace

std::string wrong_with_shape(const dim3& grid, const dim3& block) {
  std::string wrong = wrong_with_extents("a grid of %u blocks", grid, {INT32_MAX, 65535, 65535});
  if (wrong.empty()) wrong = wrong_with_extents("%u threads per block", block, {1024, 1024, 64});
  const unsigned long long threads = uint64_t{block.x} * block.y * block.z;
  if (!wrong.empty() || threads <= kMaxThreadsPerBlock) return wrong;
  return format("%llu threads per block, %s: at most %u are allowed", threads,
                text_of(block).c_str(), kMaxThreadsPerBlock);
}

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

void Launch::refuse(cudaError_t code, std::string reason) {
  std::lock_guard lock(mutex);
  if (stopping()) return;
  refusal = code;
  refusal_reason = std::move(reason);
  stop.store(Stop::kRefused);
}

void Launch::end_probe() {
  std::lock_guard lock(mutex);
  if (!stopping()) stop.store(Stop::kProbed);
}

void Launch::restart(dim3 cluster) {
  std::lock_guard lock(mutex);
  if (stopping()) return;
  kernel_cluster = cluster;
  stop.store(Stop::kRestart);
}

void Launch::call_by_address() {
  std::lock_guard lock(mutex);
  if (!stopping()) stop.store(Stop::kByAddress);
}

bool Launch::fits_another() const {
  if (next_position.load() >= clusters) return false;
  return blocks_begun() - blocks_returned.load() + cluster_size <= most_resident(*this);
}

uint64_t Launch::cluster_at(uint64_t position) const {
  switch (schedule.blocks) {
    case Order::kReverse:
      return clusters - 1 - position;
    case Order::kRandom:
      return static_cast<uint64_t>((static_cast<unsigned __int128>(position) * stride + shift) %
                                   clusters);
    default:
      return position;
  }
}

// Return the name as the launch gives it, or the kernel's own name if the launch uses a variable.
std::string Launch::kernel_name() const {
  const char* told = signature.load();
  if (!told) return site.kernel ? site.kernel : "(unknown)";
  const std::string text(told, strcspn(told, "("));
  const std::string own = text.substr(text.find_last_of(" *&:") + 1);
  const std::string written = site.kernel ? site.kernel : "";
  if (own.empty()) return written.empty() ? "(unknown)" : written;
  return written.find(own) != std::string::npos ? written : own;
}

std::string Launch::describe() const {
  return format("  in kernel %s, launched at %s:%d", kernel_name().c_str(), site.file, site.line);
}

namespace {

struct Outcome {
  cudaError_t status = cudaSuccess;
  std::optional<dim3> cluster;  // it has to be run again with this one, which its kernel asks for
  bool by_address = false;      // it has to be run again with the addresses of its arguments
  const KernelType* type = nullptr;
};

// Run the launch; with `probe`, only up to the kernel's first instruction.
Outcome run_once(const KernelWork& work, bool probe) {
  const auto& [site, config] = std::tie(work.site, work.config);
  if (std::string wrong = wrong_with_shape(config.grid, config.block); !wrong.empty())
    return {set_error(cudaErrorInvalidConfiguration, std::move(wrong))};
  if (cudaError_t problem = check_card(config); problem != cudaSuccess) return {problem};
  if (std::string wrong = wrong_with_cluster(config); !wrong.empty())
    return {set_error(cudaErrorInvalidClusterSize,
                      format("%s, at %s:%d", wrong.c_str(), site.file, site.line))};
  Launch launch;
  launch.site = site;
  launch.config = config;
  launch.loop = work.loop;
  launch.call = work.call;
  launch.call_bytes = work.call_bytes;
  launch.keeps_call = work.keeps_call || !work.call_type;
  launch.probe = probe;
  launch.schedule = settings().schedule.load();
  launch.blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  launch.cluster_size = blocks_of(config.cluster);
  launch.clusters = probe ? 1 : launch.blocks / launch.cluster_size;
  if (probe) launch.config.cooperative = false;  // which would have all blocks begin
  launch.threads = config.block.x * config.block.y * config.block.z;
  if (launch.schedule.blocks == Order::kRandom) choose_random_order(launch);
  install_fault_handlers();
  std::string beyond;
  {
    if (!probe) count_work();
    note_given(work.call, work.call_bytes);
    const MemoryOpen open;
    Watch watch(launch);
    trace::launch_begins(launch);
    run_on_workers(launch);
    trace::launch_ends();
    if (!probe) beyond = writes_beyond_allocations(launch);
  }
  if (!probe) note_launch(config.grid, config.block);
  if (!launch.printed.empty()) write_printed(launch);
  if (!beyond.empty() && (launch.stopping() || !settings().writes_beyond_throw))
    fprintf(stderr, "%s\n", beyond.c_str());
  else if (!beyond.empty())
    throw KernelError(beyond);
  switch (launch.stop.load()) {
    case Stop::kNo:
    case Stop::kProbed:
      return {cudaSuccess, std::nullopt, false, launch.type.load()};
    case Stop::kRestart:
      return {cudaSuccess, launch.kernel_cluster};
    case Stop::kByAddress:
      return {cudaSuccess, std::nullopt, true, launch.type.load()};
    case Stop::kRefused:
      return {set_error(launch.refusal, launch.refusal_reason)};
    case Stop::kAsserted:  // a later wait for the kernel returns the error
      fprintf(stderr, "CUDA on CPU: %s%s\n", launch.error.c_str(), launch.describe().c_str());
      lose_context(cudaErrorAssert);
      return {};
    default:
      throw KernelError("CUDA on CPU: " + launch.error + launch.describe());
  }
}

}  // namespace

void refuse_host_memory(size_t i, const char* relation, const void* address,
                        const LaunchSite& site) {
  if (!refuses_host_pointers()) return;
  std::string why = was_freed(address);
  if (is_variable_of_host(address))
    why =
        "the device memory of a __device__ variable, which on a GPU has another address in host "
        "code: cudaGetSymbolAddress gives the one that kernels use";
  else if (!is_host_memory(address))
    return;
  else if (why.empty())
    why =
        "host memory, which a kernel cannot access: allocate it by cudaMalloc and copy, or by "
        "cudaMallocManaged (CUDACPU_HOST_POINTERS=allow lets it pass)";
  throw KernelError(format("CUDA on CPU: argument %zu of kernel %s %s %s\n  at %s:%d", i + 1,
                           site.kernel ? site.kernel : "(unknown)", relation, why.c_str(),
                           site.file, site.line));
}

cudaError_t perform(const KernelWork& work) {
  const Outcome outcome = run_once(work, false);
  if (!outcome.cluster && !outcome.by_address) return outcome.status;
  KernelWork again = work;
  if (outcome.cluster) again.config.cluster = *outcome.cluster;
  if (outcome.by_address && !bind_by_address(again, *outcome.type)) again.keeps_call = true;
  return perform(again);
}

cudaError_t probe(KernelWork& work) {
  Outcome outcome = run_once(work, true);
  if (outcome.cluster) {
    work.config.cluster = *outcome.cluster;
    outcome = run_once(work, true);
  }
  work.type = outcome.type;
  return outcome.status;
}

namespace {

// Throw if an argument points to memory that a kernel cannot access on a GPU, if that is checked.
void refuse_host_pointers(const LaunchSite& site, const CallType& type, void* call) {
  if (!refuses_host_pointers()) return;
  std::vector<void*> arguments(type.count + 1);
  type.find_arguments(call, arguments.data());
  for (size_t i = 0; i < type.count; ++i)
    if (type.arguments[i].kind == ArgumentKind::kPointer)
      refuse_host_memory(i, "points to", *static_cast<void**>(arguments[i]), site);
}

}  // namespace

cudaError_t run_grid(const LaunchSite& site, const Configuration& config, const CallType& type,
                     void* call) {
  if (current && entry_pending)  // no kernel has begun: what was launched is a host function
    trap({site.file, site.line},
         "a kernel was launched by a function that was launched itself, "
         "but is no __global__ function");
  if (current) trap({site.file, site.line}, "a kernel was launched from device code");
  check_caller(config.stream, "a kernel was launched", {site.file, site.line});
  if (const cudaError_t error = lost_context(); error != cudaSuccess) return error;
  refuse_host_pointers(site, type, call);
  KernelWork work{site, config, type.loop, call, type.bytes, &type};
  const cudaError_t status = nobody_captures() && !streams_are_late()
                                 ? perform(work)
                                 : submit_launch(std::move(work), type);
  if (status != cudaSuccess) note_refused_launch(site, text_of(site, config), status);
  return status;
}

void enter_kernel(const KernelType* type, const char* signature, unsigned max_threads,
                  dim3 cluster) {
  entry_pending = false;
  Launch& launch = *worker->launch();
  launch.signature.store(signature);
  launch.type.store(type);
  const unsigned size = launch.cluster_size;
  if (blocks_of(cluster) > 1) {
    const dim3& now = launch.config.cluster;
    if (size == 1) {
      launch.restart(cluster);
      worker->abandon();
    }
    if (cluster.x != now.x || cluster.y != now.y || cluster.z != now.z) {
      launch.refuse(cudaErrorInvalidClusterSize, "launched with clusters of " + text_of(now) +
                                                     ", but the kernel has "
                                                     "__cluster_dims__" +
                                                     text_of(cluster));
      worker->abandon();
    }
  }
  if (type && type->by_address && !launch.keeps_call && !launch.probe) {
    launch.call_by_address();
    worker->abandon();
  }
  cudaError_t problem = cudaSuccess;
  std::string reason;
  if (max_threads && launch.threads > max_threads) {
    problem = cudaErrorLaunchOutOfResources;
    reason = format("%u threads per block: the kernel's __launch_bounds__ allow %u", launch.threads,
                    max_threads);
  }
  if (type) {
    Kernel& kernel = kernel_at(type->address);
    launch.kernel.store(&kernel);
    if (max_threads) kernel.max_threads.store(max_threads);
    if (launch.config.shared_bytes > kernel.max_dynamic()) {
      problem = cudaErrorInvalidValue;
      const size_t all = launch.config.shared_bytes + kernel.static_shared.load();
      reason = all > most_shared() ? too_much_shared(all, most_shared())
                                   : more_shared_than_set(launch.config.shared_bytes, kernel);
    }
    if (size > kPortableClusterSize && !kernel.any_cluster_size.load()) {
      problem = cudaErrorInvalidClusterSize;
      reason = format(
          "%u blocks in a cluster are more than %u, which not every GPU can run: "
          "cudaFuncSetAttribute with cudaFuncAttributeNonPortableClusterSizeAllowed "
          "allows up to %u",
          size, kPortableClusterSize, model().max_cluster);
    }
  }
  if (problem != cudaSuccess)
    launch.refuse(problem, std::move(reason));
  else if (launch.probe)
    launch.end_probe();
  else
    return;
  worker->abandon();
}

void read_attributes(const cudaLaunchConfig_t& from, Configuration& config) {
  for (unsigned i = 0; i < from.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = from.attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeCooperative:
        config.cooperative = attribute.val.cooperative != 0;
        break;
      case cudaLaunchAttributeClusterDimension: {
        const auto& cluster = attribute.val.clusterDim;
        config.cluster = {cluster.x, cluster.y, cluster.z};
        break;
      }
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        config.programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
        break;
      default:
        break;
    }
  }
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

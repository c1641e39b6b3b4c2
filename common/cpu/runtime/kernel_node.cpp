// Kernels as nodes of a graph, whose arguments lie in memory as cudaKernelNodeParams has them.
#include "graph.h"

namespace cudacpu {

namespace {

// A kernel and its arguments as cudaKernelNodeParams has them: one piece of memory, in which this
// structure comes first, then the pointers, then what they point to.
struct BoundCall {
  const KernelType* type;
  void** arguments;

  static void loop(void* self) {
    auto& call = *static_cast<BoundCall*>(self);
    while (next_thread()) {
      try {
        call.type->call(call.arguments);
      } catch (...) {
        thread_threw();
      }
    }
  }
};

// Convert an argument to a parameter, as C++ does in a call; return false if only C++ can.
bool convert(const ArgumentType& from, const void* value, const ArgumentType& to, void* into) {
  using enum ArgumentKind;
  if (*from.type == *to.type || (from.kind == kPointer && to.kind == kPointer)) {
    memcpy(into, value, to.bytes);
    return true;
  }
  if (from.kind == kNull && to.kind == kPointer) {
    memset(into, 0, to.bytes);
    return true;
  }
  auto is_number = [](ArgumentKind kind) { return kind <= kFloat; };
  if (!is_number(from.kind) || !is_number(to.kind)) return false;

  auto store = [&](auto number) {
    if (to.kind == kFloat) {
      auto as_float = static_cast<float>(number);
      auto as_double = static_cast<double>(number);
      memcpy(into, to.bytes == 4 ? static_cast<void*>(&as_float) : &as_double, to.bytes);
    } else if (to.kind == kBool) {
      *static_cast<bool*>(into) = number != 0;
    } else {
      // The low bytes, which are the value modulo 2^bits; a negative float may become a signed one.
      uint64_t bits = number < 0 ? static_cast<uint64_t>(static_cast<int64_t>(number))
                                 : static_cast<uint64_t>(number);
      memcpy(into, &bits, to.bytes);
    }
  };
  if (from.kind == kFloat) {
    if (from.bytes == 4)
      store(*static_cast<const float*>(value));
    else
      store(*static_cast<const double*>(value));
    return true;
  }
  uint64_t bits = 0;
  memcpy(&bits, value, from.bytes);
  const unsigned unused = 64 - 8 * static_cast<unsigned>(from.bytes);
  if (from.kind == kSigned)
    store(static_cast<int64_t>(bits << unused) >> unused);
  else
    store(bits);
  return true;
}

// Allocate memory for the arguments of a kernel, which the work owns from now on.
BoundCall& bind(KernelWork& work, const KernelType& type) {
  size_t alignment = alignof(std::max_align_t);
  size_t bytes = sizeof(BoundCall) + type.count * sizeof(void*);
  std::vector<size_t> offsets;
  for (size_t i = 0; i < type.count; ++i) {
    const ArgumentType& parameter = type.parameters[i];
    alignment = std::max(alignment, parameter.alignment);
    bytes = (bytes + parameter.alignment - 1) / parameter.alignment * parameter.alignment;
    offsets.push_back(bytes);
    bytes += parameter.bytes;
  }
  bytes = (bytes + alignment - 1) / alignment * alignment;
  auto* memory = static_cast<char*>(aligned_alloc(alignment, bytes));
  if (!memory) throw std::bad_alloc();
  auto* call = new (memory) BoundCall{&type, reinterpret_cast<void**>(memory + sizeof(BoundCall))};
  for (size_t i = 0; i < type.count; ++i) call->arguments[i] = memory + offsets[i];
  work.loop = &BoundCall::loop;
  work.call = call;
  work.call_bytes = bytes;
  work.owner = std::shared_ptr<void>(memory, free);
  work.call_type = nullptr;
  work.type = &type;
  return *call;
}

// Convert work that was captured at a launch to the form that cudaKernelNodeParams needs.
cudaError_t make_bound(KernelWork& work) {
  if (!work.call_type) return cudaSuccess;
  const std::string place = format("the launch at %s:%d", work.site.file, work.site.line);
  if (!work.type)
    return set_error(cudaErrorInvalidDeviceFunction,
                     place + ": a kernel that cannot name itself has no address here");
  const CallType& given = *work.call_type;
  KernelWork bound = work;
  BoundCall& call = bind(bound, *work.type);
  std::vector<void*> arguments(given.count);
  given.find_arguments(work.call, arguments.data());
  for (size_t i = 0; i < given.count; ++i)
    if (!convert(given.arguments[i], arguments[i], work.type->parameters[i], call.arguments[i]))
      return set_error(cudaErrorNotSupported,
                       place + format(": argument %zu is not of the parameter's own type", i + 1));
  work = std::move(bound);
  return cudaSuccess;
}

}  // namespace

bool bind_by_address(KernelWork& work, const KernelType& type) {
  const CallType& given = *work.call_type;
  std::vector<void*> arguments(given.count + 1);
  given.find_arguments(work.call, arguments.data());
  void* const* originals = given.originals(work.call);
  KernelWork bound = work;
  BoundCall& call = bind(bound, type);
  for (size_t i = 0; i < type.count; ++i) {
    const ArgumentType& parameter = type.parameters[i];
    if (!convert(given.arguments[i], arguments[i], parameter, call.arguments[i])) return false;
    if (!type.references[i] || !originals[i]) continue;
    refuse_host_memory(i, "refers to", originals[i], work.site);
    call.arguments[i] = originals[i];
  }
  work = std::move(bound);
  return true;
}

cudaError_t set_parameters(KernelWork& work, const cudaKernelNodeParams* parameters) {
  if (!parameters || !parameters->func) return set_error(cudaErrorInvalidValue);
  if (parameters->extra)
    return set_error(cudaErrorNotSupported, "cudaKernelNodeParams.extra: use kernelParams");
  const KernelType* type = kernel_at(parameters->func).type.load();
  if (!type) return set_error(cudaErrorInvalidDeviceFunction);
  if (type->count && !parameters->kernelParams) return set_error(cudaErrorInvalidValue);
  KernelWork fresh = work;
  fresh.config.grid = parameters->gridDim;
  fresh.config.block = parameters->blockDim;
  fresh.config.shared_bytes = parameters->sharedMemBytes;
  BoundCall& call = bind(fresh, *type);
  for (size_t i = 0; i < type->count; ++i) {
    if (!parameters->kernelParams[i]) return set_error(cudaErrorInvalidValue);
    memcpy(call.arguments[i], parameters->kernelParams[i], type->parameters[i].bytes);
  }
  if (cudaError_t error = probe(fresh); error != cudaSuccess) return error;
  work = std::move(fresh);
  return cudaSuccess;
}

cudaError_t cudaGraphAddKernelNode(Site site, cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t count,
                                   const cudaKernelNodeParams* parameters) {
  KernelWork work{{nullptr, site.file, site.line}, {}, nullptr, nullptr, 0};
  if (cudaError_t error = set_parameters(work, parameters); error != cudaSuccess) return error;
  return add(node, graph, dependencies, count, std::move(work));
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* parameters) {
  auto* work = work_of<KernelWork>(node);
  if (!work || !parameters) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = make_bound(*work); error != cudaSuccess) return error;
  const Configuration& config = work->config;
  *parameters = {const_cast<void*>(work->type->address),
                 config.grid,
                 config.block,
                 static_cast<unsigned>(config.shared_bytes),
                 static_cast<BoundCall*>(work->call)->arguments,
                 nullptr};
  return cudaSuccess;
}
cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                         const cudaKernelNodeParams* parameters) {
  auto* work = work_of<KernelWork>(node);
  return work ? set_parameters(*work, parameters) : set_error(cudaErrorInvalidValue);
}

}  // extern "C"

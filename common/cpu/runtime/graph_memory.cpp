// Nodes of graphs that allocate and free memory, and how much of it graphs hold.
//
// The memory is the C library's, from the moment at which a node is made. What graphs hold of the
// device is a figure: the most that they have had at any time since it was trimmed, which is what a
// GPU keeps for their next launch.
#include "graph.h"

namespace cudacpu {

namespace {

struct GraphMemory {
  std::mutex mutex;
  uint64_t held = 0, most_held = 0;
};

GraphMemory& graph_memory() {
  static auto& instance = *new GraphMemory;
  return instance;
}

bool is_of_device(const cudaMemPoolProps& properties) {
  return properties.allocType == cudaMemAllocationTypePinned &&
         properties.handleTypes == cudaMemHandleTypeNone &&
         properties.location.type == cudaMemLocationTypeDevice && properties.location.id == 0;
}

}  // namespace

void note_memory_of_graphs() {
  const size_t bytes = memory_of_graphs();
  std::lock_guard lock(graph_memory().mutex);
  graph_memory().held = std::max<uint64_t>(graph_memory().held, bytes);
  graph_memory().most_held = std::max(graph_memory().most_held, graph_memory().held);
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                     const cudaGraphNode_t* dependencies, size_t count,
                                     cudaMemAllocNodeParams* parameters) {
  if (!parameters || !parameters->bytesize || !is_of_device(parameters->poolProps))
    return set_error(cudaErrorInvalidValue);
  Allocate work;
  void* address = nullptr;
  if (cudaError_t error = allocate_for_graph(&address, parameters->bytesize, work);
      error != cudaSuccess)
    return error;
  parameters->dptr = address;
  return add(node, graph, dependencies, count, work);
}
cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node,
                                           cudaMemAllocNodeParams* parameters) {
  const auto* work = work_of<Allocate>(node);
  if (!work || !parameters) return set_error(cudaErrorInvalidValue);
  *parameters = {};
  parameters->poolProps.allocType = cudaMemAllocationTypePinned;
  parameters->poolProps.location.type = cudaMemLocationTypeDevice;
  parameters->bytesize = work->bytes;
  parameters->dptr = work->memory.get();
  return cudaSuccess;
}

cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                    const cudaGraphNode_t* dependencies, size_t count,
                                    void* address) {
  if (!graph) return set_error(cudaErrorInvalidValue);
  const Release work{address};
  if (cudaError_t error = check(work); error != cudaSuccess) return error;
  for (const auto& other : graph->nodes)
    if (const auto* release = work_of<Release>(other.get()); release && release->address == address)
      return set_error(cudaErrorInvalidValue, "another node of the graph frees this memory");
  return add(node, graph, dependencies, count, work);
}
cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* address) {
  const auto* work = work_of<Release>(node);
  if (!work || !address) return set_error(cudaErrorInvalidValue);
  *static_cast<void**>(address) = work->address;
  return cudaSuccess;
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  const size_t bytes = memory_of_graphs();
  std::lock_guard lock(graph_memory().mutex);
  graph_memory().held = bytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute,
                                           void* value) {
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  if (!value) return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(graph_memory().mutex);
  switch (attribute) {
    case cudaGraphMemAttrUsedMemCurrent:
    case cudaGraphMemAttrReservedMemCurrent:
      *static_cast<uint64_t*>(value) = graph_memory().held;
      return cudaSuccess;
    case cudaGraphMemAttrUsedMemHigh:
    case cudaGraphMemAttrReservedMemHigh:
      *static_cast<uint64_t*>(value) = graph_memory().most_held;
      return cudaSuccess;
    default:
      return set_error(cudaErrorInvalidValue);
  }
}
// The highest ones can be set to 0, and nothing else.
cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute,
                                           void* value) {
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  const bool is_high =
      attribute == cudaGraphMemAttrUsedMemHigh || attribute == cudaGraphMemAttrReservedMemHigh;
  if (!value || !is_high || *static_cast<uint64_t*>(value) != 0)
    return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(graph_memory().mutex);
  graph_memory().most_held = graph_memory().held;
  return cudaSuccess;
}

}  // extern "C"

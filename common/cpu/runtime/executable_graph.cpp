// Executable graphs: made from a graph, launched, and changed or updated from another graph.
#include "graph.h"

namespace cudacpu {

namespace {

// Return true if an executable graph of it, or of the graph that it was cloned from, still exists.
bool is_instantiated(const CUgraph_st& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    const auto* allocate = std::get_if<Allocate>(&node->work);
    return allocate && allocate->memory.use_count() > 1;
  });
}

template <class W>
cudaError_t set_in_executable(cudaGraphExec_t executable, cudaGraphNode_t node, const W& work) {
  W* old = executable ? work_of<W>(find_in_clone(*executable->graph, node)) : nullptr;
  if (!old) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = check(work); error != cudaSuccess) return error;
  wait_for(executable->last_launch);  // which has the work of before
  *old = work;
  return cudaSuccess;
}

// Return the reason why the work of a node cannot replace another's.
cudaGraphExecUpdateResult compare(const CUgraphNode_st& old, const CUgraphNode_st& fresh,
                                  cudaGraphExecUpdateResultInfo& info);

cudaGraphExecUpdateResult compare(const CUgraph_st& old, const CUgraph_st& fresh,
                                  cudaGraphExecUpdateResultInfo& info) {
  if (old.nodes.size() != fresh.nodes.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t i = 0; i < fresh.nodes.size(); ++i) {
    auto result = compare(*old.nodes[i], *fresh.nodes[i], info);
    if (result == cudaGraphExecUpdateSuccess) continue;
    if (!info.errorNode) info.errorNode = fresh.nodes[i].get();
    return result;
  }
  return cudaGraphExecUpdateSuccess;
}

cudaGraphExecUpdateResult compare(const CUgraphNode_st& old, const CUgraphNode_st& fresh,
                                  cudaGraphExecUpdateResultInfo& info) {
  if (old.work.index() != fresh.work.index()) return cudaGraphExecUpdateErrorNodeTypeChanged;
  if (old.dependencies.size() != fresh.dependencies.size())
    return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t i = 0; i < old.dependencies.size(); ++i) {
    if (old.dependencies[i].on->index == fresh.dependencies[i].on->index) continue;
    info.errorFromNode = fresh.dependencies[i].on;
    return cudaGraphExecUpdateErrorTopologyChanged;
  }
  if (const auto* a = std::get_if<KernelWork>(&old.work)) {
    if (a->config.cooperative != std::get<KernelWork>(fresh.work).config.cooperative)
      return cudaGraphExecUpdateErrorAttributesChanged;
  } else if (const auto* a = std::get_if<Fill>(&old.work)) {
    const auto& b = std::get<Fill>(fresh.work);
    if ((a->height > 1 || b.height > 1) && (a->width != b.width || a->height != b.height))
      return cudaGraphExecUpdateErrorParametersChanged;
  } else if (std::holds_alternative<Allocate>(old.work) ||
             std::holds_alternative<Release>(old.work)) {
    return cudaGraphExecUpdateErrorNotSupported;
  } else if (const auto* a = std::get_if<ChildGraph>(&old.work)) {
    return compare(*a->graph, *std::get<ChildGraph>(fresh.work).graph, info);
  }
  return cudaGraphExecUpdateSuccess;
}

// Take over the work of each node. The nodes of the clone still stand for those that it was made
// from.
void take_over(CUgraph_st& old, const CUgraph_st& fresh) {
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    if (auto* child = std::get_if<ChildGraph>(&old.nodes[i]->work))
      take_over(*child->graph, *std::get<ChildGraph>(fresh.nodes[i]->work).graph);
    else
      old.nodes[i]->work = fresh.nodes[i]->work;
  }
}

// Launch an executable graph, without recording it.
cudaError_t launch(CUgraphExec_st& executable) {
  if (executable.releases_first)
    for (const auto& node : executable.graph->nodes)
      if (const auto* allocate = std::get_if<Allocate>(&node->work)) release_again(*allocate);
  return run(*executable.graph);
}

}  // namespace

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  constexpr unsigned long long kAllowed =
      cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority;
  if (!executable || !graph) return set_error(cudaErrorInvalidValue);
  if (flags & cudaGraphInstantiateFlagDeviceLaunch)
    return set_error(cudaErrorNotSupported, "cudaGraphInstantiateFlagDeviceLaunch");
  if (flags & ~kAllowed) return set_error(cudaErrorInvalidValue);
  if (order_of(*graph, {}).size() != graph->nodes.size())
    return set_error(cudaErrorInvalidValue, "the dependencies of the graph's nodes form a cycle");
  if (is_instantiated(*graph))
    return set_error(cudaErrorInvalidValue,
                     "a graph that allocates memory can have one executable graph at a time");
  *executable =
      new CUgraphExec_st{clone(*graph), (flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  if (!executable) return set_error(cudaErrorInvalidValue);
  wait_for(executable->last_launch);
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!executable) return set_error(cudaErrorInvalidValue);
  return refuse_in_capture(stream, "cudaGraphUpload");
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!executable) return set_error(cudaErrorInvalidValue);
  check_caller(stream, "a graph was launched", {"", 0});
  cudaError_t error = refuse_in_capture(stream, "cudaGraphLaunch");  // as on an H200
  if (error != cudaSuccess) return error;
  if (!streams_are_late()) return launch(*executable);
  executable->last_launch = defer(stream, "a graph", [executable] { return launch(*executable); });
  return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  if (!executable || !graph || !info) return set_error(cudaErrorInvalidValue);
  *info = {};
  info->result = compare(*executable->graph, *graph, *info);
  if (info->result != cudaGraphExecUpdateSuccess) return set_error(cudaErrorGraphExecUpdateFailure);
  wait_for(executable->last_launch);
  take_over(*executable->graph, *graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
  auto* work = executable ? work_of<KernelWork>(find_in_clone(*executable->graph, node)) : nullptr;
  if (!work) return set_error(cudaErrorInvalidValue);
  wait_for(executable->last_launch);
  return set_parameters(*work, parameters);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable, cudaGraphNode_t node,
                                               void* to, const void* from, size_t bytes,
                                               cudaMemcpyKind kind) {
  return set_in_executable(executable, node, row(to, from, bytes, kind));
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaMemsetParams* parameters) {
  if (!parameters) return set_error(cudaErrorInvalidValue);
  return set_in_executable(executable, node, fill_of(*parameters));
}
cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                           const cudaHostNodeParams* parameters) {
  if (!parameters) return set_error(cudaErrorInvalidValue);
  return set_in_executable(executable, node, HostCall{parameters->fn, parameters->userData});
}

cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                                    unsigned enabled) {
  CUgraphNode_st* found = executable ? find_in_clone(*executable->graph, node) : nullptr;
  if (!found || type_of(*found) > cudaGraphNodeTypeMemset) return set_error(cudaErrorInvalidValue);
  wait_for(executable->last_launch);
  found->enabled = enabled != 0;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                                    unsigned* enabled) {
  CUgraphNode_st* found = executable ? find_in_clone(*executable->graph, node) : nullptr;
  if (!found || !enabled) return set_error(cudaErrorInvalidValue);
  *enabled = found->enabled;
  return cudaSuccess;
}

}  // extern "C"

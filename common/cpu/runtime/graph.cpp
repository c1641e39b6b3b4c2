// Graphs: nodes, what they depend on, and how they run.
//
// Nodes run one after the other, in an order that their dependencies allow: the schedule's. What
// runs too early in one of these orders lacks a dependency. A node's work is never changed while it
// is shared, so that clones need only copy the pointers to it.
#include "graph.h"

namespace cudacpu {

namespace {

// ------------------------------------------------------------------ nodes and order

constexpr cudaGraphNodeType kTypes[] = {cudaGraphNodeTypeKernel,   cudaGraphNodeTypeMemcpy,
                                        cudaGraphNodeTypeMemset,   cudaGraphNodeTypeHost,
                                        cudaGraphNodeTypeGraph,    cudaGraphNodeTypeEmpty,
                                        cudaGraphNodeTypeMemAlloc, cudaGraphNodeTypeMemFree};
static_assert(std::size(kTypes) == std::variant_size_v<Work>);

// Return true if it allocates or frees memory: then there is one of it at a time.
bool has_memory_nodes(const CUgraph_st& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return type_of(*node) == cudaGraphNodeTypeMemAlloc ||
           type_of(*node) == cudaGraphNodeTypeMemFree;
  });
}

bool is_same(const Schedule& a, const Schedule& b) {
  return a.blocks == b.blocks && a.seed == b.seed;
}

// Read the dependencies from the API's arrays; false if a node is not of this graph, or twice.
bool read_dependencies(const CUgraph_st& graph, const cudaGraphNode_t* nodes, size_t count,
                       std::vector<Dependency>& dependencies) {
  if (count && !nodes) return false;
  for (size_t i = 0; i < count; ++i) {
    if (!nodes[i] || nodes[i]->graph != &graph) return false;
    for (size_t j = 0; j < i; ++j)
      if (nodes[j] == nodes[i]) return false;
    dependencies.push_back({nodes[i]});
  }
  return true;
}

// Copy as many nodes as there is room for; `count` is that room before, and the number of nodes
// copied after. Without `out`, only set `count` to the number of nodes.
cudaError_t give_nodes(const std::vector<cudaGraphNode_t>& nodes, cudaGraphNode_t* out,
                       size_t* count) {
  if (!count) return set_error(cudaErrorInvalidValue);
  if (out) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i] : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return cudaSuccess;
}

// ------------------------------------------------------------------ description

std::string label_of(const CUgraphNode_st& node) {
  if (const auto* work = std::get_if<KernelWork>(&node.work)) {
    const dim3 &grid = work->config.grid, &block = work->config.block;
    const char* name = work->site.kernel ? work->site.kernel : "kernel";
    return format("%s\\n<<<(%u,%u,%u), (%u,%u,%u), %zu>>>\\n%s:%d", name, grid.x, grid.y, grid.z,
                  block.x, block.y, block.z, work->config.shared_bytes, work->site.file,
                  work->site.line);
  }
  if (const auto* work = std::get_if<Copy>(&node.work))
    return format("MEMCPY\\n%zu bytes", work->width * work->height);
  if (const auto* work = std::get_if<Fill>(&node.work))
    return format("MEMSET\\n%zu bytes", work->width * work->element_bytes * work->height);
  if (std::holds_alternative<HostCall>(node.work)) return "HOST";
  if (std::holds_alternative<Allocate>(node.work)) return "MEM_ALLOC";
  if (std::holds_alternative<Release>(node.work)) return "MEM_FREE";
  return std::holds_alternative<Empty>(node.work) ? "EMPTY" : "GRAPH";
}

// Write the nodes of a graph, a child graph in a box of its own. `name`: the prefix of the names of
// its nodes.
void write_dot(FILE* file, const CUgraph_st& graph, const std::string& name) {
  for (const auto& node : graph.nodes) {
    std::string own = name + "_" + std::to_string(node->index);
    fprintf(file, "  \"%s\" [shape=box, label=\"%zu: %s\"];\n", own.c_str(), node->index,
            label_of(*node).c_str());
    for (const Dependency& dependency : node->dependencies)
      fprintf(file, "  \"%s_%zu\" -> \"%s\"%s;\n", name.c_str(), dependency.on->index, own.c_str(),
              dependency.data.type == cudaGraphDependencyTypeProgrammatic ? " [style=dashed]" : "");
    if (const auto* child = std::get_if<ChildGraph>(&node->work)) {
      fprintf(file, "  subgraph \"cluster_%s\" {\n", own.c_str());
      write_dot(file, *child->graph, own);
      fprintf(file, "  }\n");
    }
  }
}

constexpr char kMemoryNodes[] = "a graph that allocates or frees memory cannot be copied";

// Add work that can be checked.
template <class W>
cudaError_t add_checked(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* nodes,
                        size_t count, const W& work) {
  if (cudaError_t error = check(work); error != cudaSuccess) return error;
  return add(node, graph, nodes, count, work);
}

}  // namespace

cudaGraphNodeType type_of(const CUgraphNode_st& node) {
  return kTypes[node.work.index()];
}

std::vector<CUgraphNode_st*> order_of(const CUgraph_st& graph, const Schedule& schedule) {
  const size_t count = graph.nodes.size();
  std::vector<unsigned> missing(count);
  std::vector<std::vector<size_t>> dependents(count);
  for (size_t i = 0; i < count; ++i) {
    for (const Dependency& dependency : graph.nodes[i]->dependencies)
      dependents[dependency.on->index].push_back(i);
    missing[i] = static_cast<unsigned>(graph.nodes[i]->dependencies.size());
  }
  uint64_t state = schedule.seed;
  auto random = [&] { return state = (state + 1) * 0x9e3779b97f4a7c15ull; };
  std::vector<uint64_t> rank(count);  // what comes first
  for (size_t i = 0; i < count; ++i)
    rank[i] = schedule.blocks == Order::kForward   ? i
              : schedule.blocks == Order::kReverse ? count - i
                                                   : random();
  auto later = [&](size_t a, size_t b) { return rank[a] > rank[b]; };
  std::vector<size_t> ready;  // a heap
  for (size_t i = 0; i < count; ++i)
    if (!missing[i]) ready.push_back(i);
  std::make_heap(ready.begin(), ready.end(), later);
  std::vector<CUgraphNode_st*> order;
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end(), later);
    size_t next = ready.back();
    ready.pop_back();
    order.push_back(graph.nodes[next].get());
    for (size_t i : dependents[next]) {
      if (--missing[i]) continue;
      ready.push_back(i);
      std::push_heap(ready.begin(), ready.end(), later);
    }
  }
  return order;
}

cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* nodes,
                size_t count, Work work) {
  std::vector<Dependency> dependencies;
  if (!node || !graph || !read_dependencies(*graph, nodes, count, dependencies))
    return set_error(cudaErrorInvalidValue);
  *node = add_node(*graph, std::move(work), std::move(dependencies));
  return cudaSuccess;
}

CUgraphNode_st* find_in_clone(const CUgraph_st& clone, const CUgraphNode_st* original) {
  for (const auto& node : clone.nodes) {
    if (node->original == original) return node.get();
    if (const auto* child = std::get_if<ChildGraph>(&node->work))
      if (CUgraphNode_st* found = find_in_clone(*child->graph, original)) return found;
  }
  return nullptr;
}

cudaGraphNode_t add_node(CUgraph_st& graph, Work work, std::vector<Dependency> dependencies) {
  graph.order.clear();
  auto node = std::make_unique<CUgraphNode_st>(
      CUgraphNode_st{&graph, std::move(work), std::move(dependencies)});
  node->index = graph.nodes.size();
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().get();
}

std::unique_ptr<CUgraph_st> clone(const CUgraph_st& graph) {
  auto copy = std::make_unique<CUgraph_st>();
  for (const auto& node : graph.nodes) {
    Work work = node->work;
    if (auto* child = std::get_if<ChildGraph>(&work)) child->graph = clone(*child->graph);
    CUgraphNode_st* fresh = add_node(*copy, std::move(work), node->dependencies);
    fresh->original = node.get();
    fresh->enabled = node->enabled;
  }
  for (const auto& node : copy->nodes)
    for (Dependency& dependency : node->dependencies)
      dependency.on = copy->nodes[dependency.on->index].get();
  return copy;
}

cudaError_t run(CUgraph_st& graph) {
  Schedule schedule = settings().schedule.load();
  if (graph.order.empty() || !is_same(graph.order_for, schedule)) {
    graph.order = order_of(graph, schedule);
    graph.order_for = schedule;
  }
  for (const CUgraphNode_st* node : graph.order) {
    if (!node->enabled) continue;
    cudaError_t error = std::visit([](const auto& work) { return perform(work); }, node->work);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t perform(const ChildGraph& child) {
  return run(*child.graph);
}

KernelWork keep(KernelWork work, const CallType& type) {
  work.call = type.copy(work.call);
  work.owner = std::shared_ptr<void>(work.call, type.destroy);
  return work;
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

// ------------------------------------------------------------------ graphs

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  if (!graph || flags != 0) return set_error(cudaErrorInvalidValue);
  *graph = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph) return set_error(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphClone(cudaGraph_t* copy, cudaGraph_t graph) {
  if (!copy || !graph) return set_error(cudaErrorInvalidValue);
  if (has_memory_nodes(*graph)) return set_error(cudaErrorNotSupported, kMemoryNodes);
  *copy = clone(*graph).release();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* found, cudaGraphNode_t original,
                                     cudaGraph_t graph) {
  if (!found || !original || !graph) return set_error(cudaErrorInvalidValue);
  *found = find_in_clone(*graph, original);
  return *found ? cudaSuccess : set_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t count,
                                   const cudaMemcpy3DParms* copy) {
  std::vector<Copy> slices;
  if (cudaError_t error = slices_of(copy, slices); error != cudaSuccess) return error;
  if (slices.size() != 1)
    return set_error(cudaErrorNotSupported, "a node that copies more than one slice");
  return add_checked(node, graph, dependencies, count, slices[0]);
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                     const cudaGraphNode_t* dependencies, size_t count, void* to,
                                     const void* from, size_t bytes, cudaMemcpyKind kind) {
  return add_checked(node, graph, dependencies, count, row(to, from, bytes, kind));
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t count,
                                   const cudaMemsetParams* parameters) {
  if (!parameters) return set_error(cudaErrorInvalidValue);
  return add_checked(node, graph, dependencies, count, fill_of(*parameters));
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                 const cudaGraphNode_t* dependencies, size_t count,
                                 const cudaHostNodeParams* parameters) {
  if (!parameters) return set_error(cudaErrorInvalidValue);
  return add_checked(node, graph, dependencies, count,
                     HostCall{parameters->fn, parameters->userData});
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                  const cudaGraphNode_t* dependencies, size_t count) {
  return add(node, graph, dependencies, count, Empty{});
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                       const cudaGraphNode_t* dependencies, size_t count,
                                       cudaGraph_t child) {
  if (!child) return set_error(cudaErrorInvalidValue);
  if (has_memory_nodes(*child)) return set_error(cudaErrorNotSupported, kMemoryNodes);
  return add(node, graph, dependencies, count, ChildGraph{clone(*child)});
}
cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* child) {
  const auto* work = work_of<ChildGraph>(node);
  if (!work || !child) return set_error(cudaErrorInvalidValue);
  *child = work->graph.get();
  return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* data,
                                     size_t count) {
  if (!graph || (count && (!from || !to))) return set_error(cudaErrorInvalidValue);
  for (size_t i = 0; i < count; ++i) {
    if (!from[i] || !to[i] || from[i]->graph != graph || to[i]->graph != graph || from[i] == to[i])
      return set_error(cudaErrorInvalidValue);
    for (const Dependency& dependency : to[i]->dependencies)
      if (dependency.on == from[i]) return set_error(cudaErrorInvalidValue);
  }
  for (size_t i = 0; i < count; ++i)
    to[i]->dependencies.push_back({from[i], data ? data[i] : cudaGraphEdgeData{}});
  graph->order.clear();
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (!graph) return set_error(cudaErrorInvalidValue);
  std::vector<cudaGraphNode_t> all;
  for (const auto& node : graph->nodes) all.push_back(node.get());
  return give_nodes(all, nodes, count);
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (!graph) return set_error(cudaErrorInvalidValue);
  std::vector<cudaGraphNode_t> roots;
  for (const auto& node : graph->nodes)
    if (node->dependencies.empty()) roots.push_back(node.get());
  return give_nodes(roots, nodes, count);
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* data, size_t* count) {
  if (!graph || !count || !from != !to || (data && !from)) return set_error(cudaErrorInvalidValue);
  std::vector<cudaGraphNode_t> starts, ends;
  std::vector<cudaGraphEdgeData> all;
  for (const auto& node : graph->nodes) {
    for (const Dependency& dependency : node->dependencies) {
      starts.push_back(dependency.on);
      ends.push_back(node.get());
      all.push_back(dependency.data);
      if (from && !data && dependency.data.type != cudaGraphDependencyTypeDefault)
        return set_error(cudaErrorLossyQuery);
    }
  }
  if (data)
    for (size_t i = 0; i < *count; ++i) data[i] = i < all.size() ? all[i] : cudaGraphEdgeData{};
  size_t room = *count;
  if (cudaError_t error = give_nodes(ends, to, &room); error != cudaSuccess) return error;
  return give_nodes(starts, from, count);
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  if (!node || !type) return set_error(cudaErrorInvalidValue);
  *type = type_of(*node);
  return cudaSuccess;
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
  if (!graph || !path) return set_error(cudaErrorInvalidValue);
  FILE* file = fopen(path, "w");
  if (!file) return set_error(cudaErrorOperatingSystem);
  fprintf(file, "digraph graph_1 {\n");
  write_dot(file, *graph, "graph_1_node");
  fprintf(file, "}\n");
  return fclose(file) == 0 ? cudaSuccess : set_error(cudaErrorOperatingSystem);
}

}  // extern "C"

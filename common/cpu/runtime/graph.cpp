// Graphs: nodes, what they depend on, and how they run.
//
// An executable graph is a clone of what it was made from, and a launch of it runs the nodes one
// after the other, in an order that their dependencies allow: the schedule's. What runs too early
// in one of these orders lacks a dependency. A node's work is never changed while it is shared, so
// that clones need only copy the pointers to it.
#include "graph.h"

namespace cudacpu {

namespace {

// ------------------------------------------------------------------ arguments of kernels

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

// Turns an argument into a parameter, as C++ does where a kernel is called; false if only C++ can.
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

// Room for the arguments of a kernel, which the work owns from now on.
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

// Gives work that was captured at a launch the form that cudaKernelNodeParams needs.
cudaError_t make_bound(KernelWork& work) {
  if (!work.call_type) return cudaSuccess;
  const std::string place = format("the launch at %s:%d", work.site.file, work.site.line);
  if (!work.type)
    return set_error(cudaErrorInvalidDeviceFunction,
                     place + ": an overloaded kernel has no address here");
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

// Changes kernel, grid, block, shared memory and arguments; the rest of the launch stays.
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

// ------------------------------------------------------------------ nodes and order

constexpr cudaGraphNodeType kTypes[] = {cudaGraphNodeTypeKernel,   cudaGraphNodeTypeMemcpy,
                                        cudaGraphNodeTypeMemset,   cudaGraphNodeTypeHost,
                                        cudaGraphNodeTypeGraph,    cudaGraphNodeTypeEmpty,
                                        cudaGraphNodeTypeMemAlloc, cudaGraphNodeTypeMemFree};
static_assert(std::size(kTypes) == std::variant_size_v<Work>);

cudaGraphNodeType type_of(const CUgraphNode_st& node) {
  return kTypes[node.work.index()];
}

// Whether it allocates or frees: then there is one of it at a time.
bool has_memory_nodes(const CUgraph_st& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return type_of(*node) == cudaGraphNodeTypeMemAlloc ||
           type_of(*node) == cudaGraphNodeTypeMemFree;
  });
}

// Whether an executable graph has been made of it, or of what it is a clone of, and still exists.
bool is_instantiated(const CUgraph_st& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    const auto* allocate = std::get_if<Allocate>(&node->work);
    return allocate && allocate->memory.use_count() > 1;
  });
}

bool is_same(const Schedule& a, const Schedule& b) {
  return a.blocks == b.blocks && a.seed == b.seed;
}

// All nodes, each after what it depends on; fewer if they depend on each other in a circle. Of
// those that may come next: the one that was added first, last, or any.
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

// The dependencies that the API gives as arrays; false if a node is not of this graph, or twice.
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

cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* nodes,
                size_t count, Work work) {
  std::vector<Dependency> dependencies;
  if (!node || !graph || !read_dependencies(*graph, nodes, count, dependencies))
    return set_error(cudaErrorInvalidValue);
  *node = add_node(*graph, std::move(work), std::move(dependencies));
  return cudaSuccess;
}

// What an executable graph, or a child in it, has made of this node; null if nothing.
CUgraphNode_st* find(const CUgraph_st& clone, const CUgraphNode_st* original) {
  for (const auto& node : clone.nodes) {
    if (node->original == original) return node.get();
    if (const auto* child = std::get_if<ChildGraph>(&node->work))
      if (CUgraphNode_st* found = find(*child->graph, original)) return found;
  }
  return nullptr;
}

// The work of a node, if it is of this kind.
template <class W>
W* work_of(CUgraphNode_st* node) {
  return node ? std::get_if<W>(&node->work) : nullptr;
}

template <class W>
cudaError_t set_in_executable(cudaGraphExec_t executable, cudaGraphNode_t node, const W& work) {
  W* old = executable ? work_of<W>(find(*executable->graph, node)) : nullptr;
  if (!old) return set_error(cudaErrorInvalidValue);
  if (cudaError_t error = check(work); error != cudaSuccess) return error;
  *old = work;
  return cudaSuccess;
}

// Copies as many nodes as there is room for; `count` is that number before, and how many there are
// after.
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

// ------------------------------------------------------------------ update

// Why the work of a node cannot take the place of another's.
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

// Takes over the work of each node. Those of the clone still stand for the nodes that it was made
// from.
void take_over(CUgraph_st& old, const CUgraph_st& fresh) {
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    if (auto* child = std::get_if<ChildGraph>(&old.nodes[i]->work))
      take_over(*child->graph, *std::get<ChildGraph>(fresh.nodes[i]->work).graph);
    else
      old.nodes[i]->work = fresh.nodes[i]->work;
  }
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

// Writes the nodes of a graph, a child graph in a box of its own. `name`: begins those of its
// nodes.
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

// A launch, of an executable graph that is not recorded.
cudaError_t launch(CUgraphExec_st& executable) {
  if (executable.releases_first)
    for (const auto& node : executable.graph->nodes)
      if (const auto* allocate = std::get_if<Allocate>(&node->work)) release_again(*allocate);
  return run(*executable.graph);
}

Copy copy_of(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return {to, bytes, from, bytes, bytes, 1, kind};
}

Fill fill_of(const cudaMemsetParams& p) {
  return {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height};
}

// Adds work that can be checked.
template <class W>
cudaError_t add_checked(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* nodes,
                        size_t count, const W& work) {
  if (cudaError_t error = check(work); error != cudaSuccess) return error;
  return add(node, graph, nodes, count, work);
}

}  // namespace

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
  work.call_type = &type;
  return work;
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
  *found = find(*graph, original);
  return *found ? cudaSuccess : set_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                     const cudaGraphNode_t* dependencies, size_t count, void* to,
                                     const void* from, size_t bytes, cudaMemcpyKind kind) {
  return add_checked(node, graph, dependencies, count, copy_of(to, from, bytes, kind));
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

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
  if (!graph || !path) return set_error(cudaErrorInvalidValue);
  FILE* file = fopen(path, "w");
  if (!file) return set_error(cudaErrorOperatingSystem);
  fprintf(file, "digraph graph_1 {\n");
  write_dot(file, *graph, "graph_1_node");
  fprintf(file, "}\n");
  return fclose(file) == 0 ? cudaSuccess : set_error(cudaErrorOperatingSystem);
}

// ------------------------------------------------------------------ executable graphs

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  constexpr unsigned long long kAllowed =
      cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority;
  if (!executable || !graph) return set_error(cudaErrorInvalidValue);
  if (flags & cudaGraphInstantiateFlagDeviceLaunch)
    return set_error(cudaErrorNotSupported, "cudaGraphInstantiateFlagDeviceLaunch");
  if (flags & ~kAllowed) return set_error(cudaErrorInvalidValue);
  if (order_of(*graph, {}).size() != graph->nodes.size())
    return set_error(cudaErrorInvalidValue, "nodes of the graph depend on each other in a circle");
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
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!executable) return set_error(cudaErrorInvalidValue);
  return refuse_in_capture(stream, "cudaGraphUpload");
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!executable) return set_error(cudaErrorInvalidValue);
  cudaError_t error = refuse_in_capture(stream, "cudaGraphLaunch");  // as on an H200
  return error != cudaSuccess ? error : launch(*executable);
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  if (!executable || !graph || !info) return set_error(cudaErrorInvalidValue);
  *info = {};
  info->result = compare(*executable->graph, *graph, *info);
  if (info->result != cudaGraphExecUpdateSuccess) return set_error(cudaErrorGraphExecUpdateFailure);
  take_over(*executable->graph, *graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
  auto* work = executable ? work_of<KernelWork>(find(*executable->graph, node)) : nullptr;
  return work ? set_parameters(*work, parameters) : set_error(cudaErrorInvalidValue);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable, cudaGraphNode_t node,
                                               void* to, const void* from, size_t bytes,
                                               cudaMemcpyKind kind) {
  return set_in_executable(executable, node, copy_of(to, from, bytes, kind));
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
  CUgraphNode_st* found = executable ? find(*executable->graph, node) : nullptr;
  if (!found || type_of(*found) > cudaGraphNodeTypeMemset) return set_error(cudaErrorInvalidValue);
  found->enabled = enabled != 0;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                                    unsigned* enabled) {
  CUgraphNode_st* found = executable ? find(*executable->graph, node) : nullptr;
  if (!found || !enabled) return set_error(cudaErrorInvalidValue);
  *enabled = found->enabled;
  return cudaSuccess;
}

}  // extern "C"

// Day 59: CUDA graphs: a thousand small kernels in one launch
//
//   y[i] = (1 - 2k) x[i] + k (x[i-1] + x[i+1])      x, y: (n,) fp32, a ring; `steps` times
//
// Heat in a ring. Each step is a kernel that needs all of the step before, so the kernels form a
// chain. n = 4096, 1000 steps.
//
// Bytes: 8 n per step, 33 KB that stay in the L2 cache: a step is bound by neither bandwidth nor
// arithmetic, but by how fast one kernel follows another.
//
//   v1 launches    one launch per step
//   v2 capture     the launches are captured once as a graph with arrays of its own, and replayed
//   v3 nodes       the graph is built node by node; no copies, an update of two nodes per call
//   v4 dependent   v1, but each kernel begins before the one ahead has ended
//   v5 both        a graph as in v2 with the edges of v4, built by nodes; no update
//
// Kernels that do not need each other are in branches.cu.
//
// Run: python run_day.py 59

#include "common/cuda/binding.cuh"
#include "common/cuda/capability.cuh"
#include "common/cuda/ptx/grid_dependency.cuh"
#include "days/day59/graphs.cuh"

// ---------------------------------------------------------------------------------------------
// The kernel of all rungs. Without the launch attribute of v4, the two calls do nothing.

__global__ void heat_kernel(const float* x, float* y, int n, float k) {
  ptx::grid_dependency_launch();  // the next step may start its blocks now: it waits as well
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int left = i == 0 ? n - 1 : i - 1, right = i == n - 1 ? 0 : i + 1;
  ptx::grid_dependency_wait();  // for all blocks of the step before, which write x and read y
  if (i < n) y[i] = fmaf(k, x[left] + x[right], (1 - k - k) * x[i]);
}

unsigned blocks(int64_t n) {
  return grid_size(ceil_div<int64_t>(n, BLOCK), "x");
}

// The chain of v1 and v4: out is one of the two arrays.
Chain chain_through(const Ring& r, float* out, Tensor& other) {
  float* o = mutable_data<float>(other);
  return {r.x, out, {r.steps % 2 ? out : o, r.steps % 2 ? o : out}, r.steps};
}

void launch_steps(const Chain& chain, int n, float k, cudaStream_t stream) {
  for (int64_t s = 0; s < chain.steps; ++s)
    heat_kernel<<<blocks(n), BLOCK, 0, stream>>>(chain.source(s), chain.target(s), n, k);
  check_launch("heat");
}

// ---------------------------------------------------------------------------------------------
// v1: the host submits every step.

Tensor heat_v1_launches(const Tensor& x, int64_t steps, double k) {
  return solve(x, steps, k, [&](const Ring& r, float* out) {
    Tensor other = allocate_like(x);
    launch_steps(chain_through(r, out, other), r.n, r.k, r.stream);
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: one launch of a graph. A graph keeps addresses, so it has arrays of its own, and
// x and the result are copied.

// Captures what work(stream) submits, in a stream of its own. Nothing runs.
template <typename F>
cudaGraph_t capture(F&& work) {
  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  work(stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "end capture");
  check_cuda(cudaStreamDestroy(stream), "stream");
  return graph;
}

// Replays the graph of a rung. build(graph, chain) makes it, for a chain through its own arrays.
template <typename Build>
void replay(int rung, const Ring& r, float* out, Build&& build) {
  const auto build_inside = [&](Graph& g) {
    build(g, Chain{g.arrays[0], g.arrays[r.steps % 2], {g.arrays[1], g.arrays[0]}, r.steps});
  };
  with_graph({rung, r.device, {r.n}, r.steps, r.k}, build_inside, [&](Graph& g) {
    // A call in another stream may still use the arrays.
    check_cuda(cudaStreamWaitEvent(r.stream, g.done, 0), "wait");
    copy(g.arrays[0], r.x, r.n, r.stream);
    g.launch(r.stream);
    copy(out, g.arrays[r.steps % 2], r.n, r.stream);
    check_cuda(cudaEventRecord(g.done, r.stream), "record");
  });
}

void replay_captured(const Ring& r, float* out) {
  replay(2, r, out, [&](Graph& g, const Chain& chain) {
    g.graph = capture([&](cudaStream_t s) { launch_steps(chain, r.n, r.k, s); });
  });
}

Tensor heat_v2_capture(const Tensor& x, int64_t steps, double k) {
  return solve(x, steps, k, replay_captured);
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: no copies. Only the first node reads x and only the last one writes the result, so
// a call updates these two nodes of the executable graph; a new k updates them all.

// Calls set(parameters) with step s of the chain as the parameters of a node.
template <typename F>
void with_parameters(const Chain& chain, int64_t s, int n, float k, F&& set) {
  const float* source = chain.source(s);
  float* target = chain.target(s);
  void* arguments[] = {&source, &target, &n, &k};
  cudaKernelNodeParams parameters = {};
  parameters.func = reinterpret_cast<void*>(heat_kernel);
  parameters.gridDim = dim3(blocks(n));
  parameters.blockDim = dim3(BLOCK);
  parameters.kernelParams = arguments;  // read during the call
  set(parameters);
}

// An edge from a to b. A programmatic one lets b start when all blocks of a have allowed it.
void add_edge(cudaGraph_t graph, cudaGraphNode_t a, cudaGraphNode_t b, bool programmatic) {
  cudaGraphEdgeData data = {};
  if (programmatic) {
    data.type = cudaGraphDependencyTypeProgrammatic;
    data.from_port = cudaGraphKernelNodePortProgrammatic;
  }
  check_cuda(cudaGraphAddDependencies(graph, &a, &b, &data, 1), "edge");
}

void build_chain(Graph& g, const Chain& chain, int n, float k, bool programmatic) {
  if (!g.graph) check_cuda(cudaGraphCreate(&g.graph, 0), "graph");
  for (int64_t s = 0; s < chain.steps; ++s) {
    with_parameters(chain, s, n, k, [&](const cudaKernelNodeParams& parameters) {
      cudaGraphNode_t node;
      check_cuda(cudaGraphAddKernelNode(&node, g.graph, nullptr, 0, &parameters), "node");
      if (s > 0) add_edge(g.graph, g.nodes.back(), node, programmatic);
      g.nodes.push_back(node);
    });
  }
}

// Launches that are submitted already keep their arguments.
void update(Graph& g, size_t first, const Chain& chain, int n, float k) {
  const auto set = [&](int64_t s) {
    with_parameters(chain, s, n, k, [&](const cudaKernelNodeParams& parameters) {
      const cudaGraphNode_t node = g.nodes[first + s];
      check_cuda(cudaGraphExecKernelNodeSetParams(g.executable, node, &parameters), "update");
    });
  };
  const int64_t last = chain.steps - 1;
  set(0);
  if (last > 0) set(last);
  for (int64_t s = 1; k != g.k && s < last; ++s) set(s);
}

Tensor heat_v3_nodes(const Tensor& x, int64_t steps, double k) {
  return solve(x, steps, k, [&](const Ring& r, float* out) {
    const auto chain = [&](const Graph& g) {
      return Chain{r.x, out, {g.arrays[0], g.arrays[1]}, steps};
    };
    const auto build = [&](Graph& g) { build_chain(g, chain(g), r.n, r.k, false); };
    with_graph({3, r.device, {r.n}, steps, 0}, build, [&](Graph& g) {
      update(g, 0, chain(g), r.n, r.k);
      g.k = r.k;
      g.launch(r.stream);  // launches of one executable graph run one after the other
    });
  });
}

// ---------------------------------------------------------------------------------------------
// v4 against v1: programmatic dependent launch. The blocks of a step start while the step before
// still runs, and wait in the kernel. Only the start overlaps, not the work.

Tensor heat_v4_dependent(const Tensor& x, int64_t steps, double k) {
  return solve(x, steps, k, [&](const Ring& r, float* out) {
    require_capability(9, 0, "programmatic dependent launch");
    Tensor other = allocate_like(x);
    const Chain chain = chain_through(r, out, other);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks(r.n));
    config.blockDim = dim3(BLOCK);
    config.stream = r.stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    for (int64_t s = 0; s < steps; ++s) {
      check_cuda(
          cudaLaunchKernelEx(&config, heat_kernel, chain.source(s), chain.target(s), r.n, r.k),
          "heat");
    }
  });
}

// ---------------------------------------------------------------------------------------------
// v5 against v2: the edges of the graph are programmatic, so it is built by nodes. It has arrays of
// its own, as v2's: with v3's update in place of the copies, it was slower.

Tensor heat_v5_dependent_nodes(const Tensor& x, int64_t steps, double k) {
  return solve(x, steps, k, [&](const Ring& r, float* out) {
    require_capability(9, 0, "programmatic dependent launch");
    replay(5, r, out, [&](Graph& g, const Chain& chain) { build_chain(g, chain, r.n, r.k, true); });
  });
}

// ---------------------------------------------------------------------------------------------
// What a captured pointer means: one step of an array is captured while it holds x. Then `later`
// takes its place at the same address, as a new tensor does when the old one is freed.

Tensor heat_replayed(const Tensor& x, const Tensor& later, double k) {
  check(later, "later").on_gpu().like(x, "x").contiguous();
  return solve(x, 1, k, [&](const Ring& r, float* out) {
    Graph g(r.n);
    copy(g.arrays[0], r.x, r.n, r.stream);
    const Chain chain{g.arrays[0], out, {}, 1};
    g.graph = capture([&](cudaStream_t s) { launch_steps(chain, r.n, r.k, s); });
    g.instantiate();
    copy(g.arrays[0], data<float>(later), r.n, r.stream);
    g.launch(r.stream);
  });
}

// Two streams use the graph of v2: the current one for x, another for `later`.
std::tuple<Tensor, Tensor> heat_in_two_streams(const Tensor& x, const Tensor& later, int64_t steps,
                                               double k) {
  check(later, "later").like(x, "x");
  Tensor second = solve(later, steps, k, [](const Ring&, float*) {}, "later");
  Tensor first = solve(x, steps, k, [&](const Ring& r, float* out) {
    Ring other = r;
    other.x = data<float>(later);
    cudaEvent_t event;
    check_cuda(cudaStreamCreateWithFlags(&other.stream, cudaStreamNonBlocking), "stream");
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    replay_captured(r, out);
    replay_captured(other, mutable_data<float>(second));  // waits for the call before
    check_cuda(cudaEventRecord(event, other.stream), "record");
    check_cuda(cudaStreamWaitEvent(r.stream, event, 0), "wait");
    check_cuda(cudaEventDestroy(event), "event");
    check_cuda(cudaStreamDestroy(other.stream), "stream");
  });
  return {first, second};
}

// ---------------------------------------------------------------------------------------------

RUNG(day59, heat_v1_launches, "(Tensor x, int steps, float k) -> Tensor");
RUNG(day59, heat_v2_capture, "(Tensor x, int steps, float k) -> Tensor");
RUNG(day59, heat_v3_nodes, "(Tensor x, int steps, float k) -> Tensor");
RUNG(day59, heat_v4_dependent, "(Tensor x, int steps, float k) -> Tensor");
RUNG(day59, heat_v5_dependent_nodes, "(Tensor x, int steps, float k) -> Tensor");
RUNG(day59, heat_replayed, "(Tensor x, Tensor later, float k) -> Tensor");
RUNG(day59, heat_in_two_streams,
     "(Tensor x, Tensor later, int steps, float k) -> (Tensor, Tensor)");

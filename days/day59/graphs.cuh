// What the two files of day 59 share: a ring and its chain of steps, and graphs that are kept.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "common/cuda/tensor.cuh"  // taught in days 6 and 12

constexpr int BLOCK = 256;         // threads
constexpr size_t MAX_GRAPHS = 32;  // kept; then all are destroyed
constexpr int64_t MAX_STEPS = 100000;

// What a rung is called with, checked.
struct Ring {
  const float* x;
  int n, device;
  int64_t steps;
  float k;
  cudaStream_t stream;

  Ring(const Tensor& t, int64_t count, double factor, const char* name)
      : steps(count), k(float(factor)) {
    check(t, name).on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
    STD_TORCH_CHECK(t.numel() < (int64_t{1} << 30), name,
                    ": expected fewer than 2^30 elements, got ", t.numel());
    STD_TORCH_CHECK(0 <= steps && steps <= MAX_STEPS, "steps: expected 0 to ", MAX_STEPS, ", got ",
                    steps);
    STD_TORCH_CHECK(0 <= k && k <= 0.5f, "k: expected 0 to 0.5, got ", factor);
    x = data<float>(t);
    n = static_cast<int>(t.numel());
    device = device_index(t);
    stream = current_stream(t);
  }
  bool nothing() const { return n == 0 || steps == 0; }
};

// Step s of a chain from x to out reads source(s) and writes target(s): two arrays in turns.
struct Chain {
  const float* x;
  float* out;
  float* arrays[2];
  int64_t steps;

  const float* source(int64_t s) const { return s ? arrays[(s - 1) % 2] : x; }
  float* target(int64_t s) const { return s < steps - 1 ? arrays[s % 2] : out; }
};

// In cuda_graphs.cu: the launches of all steps, as v1 makes them and v2 captures them.
void launch_steps(const Chain& chain, int n, float k, cudaStream_t stream);

inline void copy(float* to, const float* from, int64_t n, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToDevice, stream),
             "copy");
}

// Calls work(ring, out) on the GPU of x. Without a step or an element, the result is a copy.
template <typename F>
Tensor solve(const Tensor& x, int64_t steps, double k, F&& work, const char* name = "x") {
  const Ring ring(x, steps, k, name);
  const DeviceGuard guard(x);
  Tensor out = allocate_like(x);
  if (!ring.nothing())
    work(ring, mutable_data<float>(out));
  else if (ring.n)
    copy(mutable_data<float>(out), ring.x, ring.n, ring.stream);
  return out;
}

// ---------------------------------------------------------------------------------------------
// Graphs that are kept from call to call.

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t done = nullptr;  // the last call has finished with the arrays
  float* arrays[2] = {};
  std::vector<cudaGraphNode_t> nodes;  // one per ring and step; none in a captured graph
  float k = 0;                         // what the executable graph has

  explicit Graph(int n) {
    for (float*& array : arrays) check_cuda(cudaMalloc(&array, n * sizeof(float)), "cudaMalloc");
    check_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "event");
  }
  ~Graph() {
    for (float* array : arrays) (void)cudaFree(array);  // waits until no launch uses it
    if (executable) (void)cudaGraphExecDestroy(executable);
    if (graph) (void)cudaGraphDestroy(graph);
    if (done) (void)cudaEventDestroy(done);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void instantiate() { check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate"); }
  void launch(cudaStream_t stream) { check_cuda(cudaGraphLaunch(executable, stream), "graph"); }
};

// In cuda_graphs.cu: adds a chain to a graph, one node per step, each with an edge from the one
// before.
void build_chain(Graph& g, const Chain& chain, int n, float k, bool programmatic);
// Passes the chain's arguments to nodes [first, first + steps) of the executable graph: to the
// first and the last of them, or to all where k has changed.
void update(Graph& g, size_t first, const Chain& chain, int n, float k);

// What makes two calls need different graphs: rung, device, sizes, steps, k (0 where it is
// updated).
using Key = std::tuple<int, int, std::vector<int>, int64_t, float>;

struct Graphs {
  std::mutex mutex;
  std::map<Key, std::unique_ptr<Graph>> known;
};
// Never destroyed: when a process ends, its CUDA context may be gone first.
inline Graphs& graphs() {
  static Graphs& kept = *new Graphs;
  return kept;
}

// Calls use(graph) with the graph of that key, which build(graph) makes when there is none. The
// lock: two host threads must not update one graph, or launch it between the other's copies.
template <typename Build, typename Use>
void with_graph(const Key& key, Build&& build, Use&& use) {
  auto& [mutex, known] = graphs();
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(key);
  if (found == known.end()) {
    if (known.size() >= MAX_GRAPHS) known.clear();
    int total = 0;
    for (int n : std::get<std::vector<int>>(key)) total += n;
    auto fresh = std::make_unique<Graph>(total);
    build(*fresh);
    fresh->instantiate();
    found = known.emplace(key, std::move(fresh)).first;
  }
  use(*found->second);
}

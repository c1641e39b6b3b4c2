// Stream capture and graphs, for test_cpu_graphs.py: on the CPU backend and on a GPU.
//
// Each operator captures or builds its graphs on streams of its own, checks what the runtime says
// on the way, and returns what the kernels have computed.
#include "common/cuda/tensor.cuh"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/cuda/ptx.cuh"

#define EXPECT(call, code)                                                     \
  do {                                                                         \
    const cudaError_t got_ = (call);                                           \
    STD_TORCH_CHECK(got_ == (code), #call, " gives ", cudaGetErrorName(got_)); \
    (void)cudaGetLastError();                                                  \
  } while (0)
#define OK(call) EXPECT(call, cudaSuccess)

namespace {

constexpr int THREADS = 64;

__global__ void add(float* out, float value, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) out[i] += value;
}
template <typename T>
__global__ void multiply(T* out, T factor) {
  out[threadIdx.x] *= factor;
}
// out[i] = a[i] - b[i]
__global__ void subtract(const float* a, const float* b, float* out) {
  out[threadIdx.x] = a[threadIdx.x] - b[threadIdx.x];
}
// Each block adds how many blocks its cluster has.
__global__ void add_cluster_size(float* out) {
  atomicAdd(out + threadIdx.x, static_cast<float>(ptx::cluster_size()));
}
__global__ void add_after_dependency(float* out, float value) {
  ptx::grid_dependency_wait();
  out[threadIdx.x] += value;
}
struct Numbers {
  double first;
  float second[3];
};
__global__ void add_numbers(float* out, Numbers numbers, bool twice) {
  const float sum = static_cast<float>(numbers.first) + numbers.second[0] + numbers.second[2];
  out[threadIdx.x] += twice ? 2 * sum : sum;
}
__global__ void overloaded(float* out, int value) {
  out[threadIdx.x] += static_cast<float>(value);
}
__global__ void overloaded(float* out, float value) {
  out[threadIdx.x] += value;
}
template <int>
__global__ void unnamed_parameter(float* out) {
  out[threadIdx.x] += 1;
}
__global__ void __launch_bounds__(THREADS) bounded(float* out) {
  out[threadIdx.x] += 1;
}
__global__ void write_through_null(const float* x, float* nowhere) {
  nowhere[threadIdx.x] = x[threadIdx.x];  // line: the access
}
__device__ float on_device[THREADS];

// A stream that a scope owns, and the graph that is captured on it.
struct Stream {
  cudaStream_t stream = nullptr;
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    OK(cudaStreamCreateWithFlags(&stream, flags));
  }
  ~Stream() { (void)cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return stream; }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) const {
    OK(cudaStreamBeginCapture(stream, mode));
  }
  cudaGraph_t end() const {
    cudaGraph_t graph = nullptr;
    OK(cudaStreamEndCapture(stream, &graph));
    STD_TORCH_CHECK(graph != nullptr);
    return graph;
  }
};
struct Event {
  cudaEvent_t event = nullptr;
  Event() { OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
  ~Event() { (void)cudaEventDestroy(event); }
  Event(const Event&) = delete;
  operator cudaEvent_t() const { return event; }
};

// Makes `to` go on only after what `from` has been given so far.
void order_after(cudaStream_t from, cudaStream_t to) {
  Event event;
  OK(cudaEventRecord(event, from));
  OK(cudaStreamWaitEvent(to, event, 0));
}

Tensor zeros(const Tensor& like, int64_t n = THREADS) {
  return torch::stable::new_zeros(like, {n});
}

// Waits for what PyTorch has done on its own stream: those here do not wait for it.
float* settled(const Tensor& t) {
  OK(cudaDeviceSynchronize());
  return mutable_data<float>(t);
}

float first_of(const Tensor& t) {
  float value = -1;
  OK(cudaMemcpy(&value, t.const_data_ptr(), sizeof value, cudaMemcpyDefault));
  return value;
}

// Instantiates and launches so many times, waits, and destroys both.
void run_and_destroy(cudaGraph_t graph, cudaStream_t stream, int times = 1) {
  cudaGraphExec_t executable = nullptr;
  OK(cudaGraphInstantiate(&executable, graph, 0));
  OK(cudaGraphDestroy(graph));  // the executable graph lives on
  OK(cudaGraphUpload(executable, stream));
  for (int i = 0; i < times; ++i) OK(cudaGraphLaunch(executable, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaGraphExecDestroy(executable));
}

std::map<cudaGraphNodeType, int> count_types(cudaGraph_t graph) {
  size_t count = 0;
  OK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  OK(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::map<cudaGraphNodeType, int> types;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(node, &type));
    ++types[type];
  }
  return types;
}

size_t count_edges(cudaGraph_t graph) {
  size_t count = 0;
  OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  OK(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count));
  STD_TORCH_CHECK(std::find(from.begin(), from.end(), nullptr) == from.end());
  return count;
}

cudaGraphNode_t only_node_of_type(cudaGraph_t graph, cudaGraphNodeType type_to_find) {
  size_t count = 0;
  OK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  OK(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(node, &type));
    if (type == type_to_find) return node;
  }
  STD_TORCH_CHECK(false, "no node of this type");
}

void count_up(void* counter) {
  ++*static_cast<int*>(counter);
}

// ---------------------------------------------------------------- capture

// Every kind of work, in a line; three launches of it.
Tensor captured_line(Tensor like) {
  Tensor x = zeros(like), y = zeros(like);
  float *px = settled(x), *py = mutable_data<float>(y);
  Stream stream;
  int calls = 0;
  cudaGraph_t graph = nullptr;
  {
    float value = 5;
    int n = THREADS;
    stream.begin();
    add<<<1, THREADS, 0, stream>>>(px, value, n);
    value = -1000, n = 0;  // the launch has its own copies
    OK(cudaGetLastError());
    multiply<<<1, THREADS, 0, stream>>>(px, 2.f);
    OK(cudaMemcpyAsync(py, px, THREADS * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemsetAsync(py, 0, sizeof(float), stream));
    OK(cudaLaunchHostFunc(stream, &count_up, &calls));
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    STD_TORCH_CHECK(status == cudaStreamCaptureStatusActive);
    graph = stream.end();
    OK(cudaStreamIsCapturing(stream, &status));
    STD_TORCH_CHECK(status == cudaStreamCaptureStatusNone);
  }
  OK(cudaStreamSynchronize(stream));
  STD_TORCH_CHECK(calls == 0 && first_of(x) == 0, "something ran while it was captured");
  auto types = count_types(graph);
  STD_TORCH_CHECK(types.size() == 4 && types[cudaGraphNodeTypeKernel] == 2 &&
                  types[cudaGraphNodeTypeMemcpy] == 1 && types[cudaGraphNodeTypeMemset] == 1 &&
                  types[cudaGraphNodeTypeHost] == 1);
  STD_TORCH_CHECK(count_edges(graph) == 4);
  run_and_destroy(graph, stream, 3);
  STD_TORCH_CHECK(calls == 3, "the host function ran ", calls, " times");
  return y;  // (((0 + 5) * 2 + 5) * 2 + 5) * 2 = 70, and 0 in the first element
}

struct Steps {
  std::vector<void (*)(float*, float, int)> kernels{add};
  void launch(cudaStream_t stream, float* p) const {
    for (size_t i = 0; i < kernels.size(); ++i)
      kernels[i]<<<1, THREADS, 0, stream>>>(p, 1, THREADS);
  }
};

// Its locals are gone when the graph runs.
cudaGraph_t capture_forms(cudaStream_t stream, float* p, bool hopper) {
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  void (*table[])(float*, float, int) = {nullptr, add};
  int which = 1;
  table[which]<<<1, THREADS, 0, stream>>>(p, 1, THREADS);  // 1
  which = 0, table[1] = nullptr;
  void (*pointer)(float*, float, int) = add;
  pointer<<<1, THREADS, 0, stream>>>(p, -1, THREADS);  // 0
  pointer = nullptr;
  Steps().launch(stream, p);                          // 1
  multiply<float><<<1, THREADS, 0, stream>>>(p, 10);  // 10
  overloaded<<<1, THREADS, 0, stream>>>(p, 2);        // 12
  overloaded<<<1, THREADS, 0, stream>>>(p, 0.5f);     // 12.5
  const Numbers numbers{1, {2, 1000, 3}};
  add_numbers<<<1, THREADS, 0, stream>>>(p, numbers, true);  // 24.5
  float value = 0.25f;
  int n = THREADS;
  void* arguments[] = {&p, &value, &n};
  OK(cudaLaunchKernel(add, dim3(1), dim3(THREADS), arguments, 0, stream));  // 24.75
  value = 1000;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(THREADS);
  config.stream = stream;
  cudaLaunchAttribute attribute[1];
  config.attrs = attribute;
  config.numAttrs = hopper ? 1 : 0;
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  OK(cudaLaunchKernelEx(&config, add_after_dependency, p, 100));  // 124.75
  value = 0.25f;
  OK(cudaLaunchCooperativeKernel(add, dim3(1), dim3(THREADS), arguments, 0, stream));  // 125
  if (hopper) {
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = 2;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    config.gridDim = dim3(2);
    OK(cudaLaunchKernelEx(&config, add_cluster_size, p));  // 129: two blocks add 2
  } else {
    add<<<1, THREADS, 0, stream>>>(p, 4.f, THREADS);
  }
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  return graph;
}
Tensor captured_forms(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  int major = 0;
  OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index(like)));
  Stream stream;
  cudaGraph_t graph = capture_forms(stream, p, major >= 9);
  if (major >= 9) {
    // An edge that is only programmatic must not be taken for an ordinary one.
    size_t count = 0;
    OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    std::vector<cudaGraphNode_t> from(count), to(count);
    EXPECT(cudaGraphGetEdges(graph, from.data(), to.data(), nullptr, &count), cudaErrorLossyQuery);
    std::vector<cudaGraphEdgeData> data(count);
    OK(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count));
    auto programmatic = std::count_if(data.begin(), data.end(), [](const cudaGraphEdgeData& edge) {
      return edge.type == cudaGraphDependencyTypeProgrammatic;
    });
    STD_TORCH_CHECK(count == 10 && programmatic == 1);
  }
  run_and_destroy(graph, stream);
  return x;
}

// 2D copies and fills, and copies of a __device__ variable.
Tensor captured_copies(Tensor like) {
  Tensor out = zeros(like, 2 * THREADS);
  float* p = settled(out);
  float* pinned = nullptr;
  OK(cudaMallocHost(&pinned, THREADS * sizeof(float)));
  for (int i = 0; i < THREADS; ++i) pinned[i] = static_cast<float>(i);
  constexpr size_t row = 8 * sizeof(float);
  void* from = nullptr;
  OK(cudaGetSymbolAddress(&from, on_device));
  Stream stream;
  stream.begin();
  OK(cudaMemcpyToSymbolAsync(on_device, pinned, THREADS * sizeof(float), 0, cudaMemcpyHostToDevice,
                             stream));
  // The left halves of its 8 rows become the left halves of 8 rows of 16.
  OK(cudaMemcpy2DAsync(p, 2 * row, from, row, row / 2, 8, cudaMemcpyDeviceToDevice, stream));
  OK(cudaMemset2DAsync(p + 8, 2 * row, 1, row, 8, stream));
  OK(cudaMemcpyFromSymbolAsync(p + 2 * THREADS - 2, on_device, 2 * sizeof(float), 3 * sizeof(float),
                               cudaMemcpyDeviceToDevice, stream));
  run_and_destroy(stream.end(), stream);
  OK(cudaFreeHost(pinned));
  return out;
}

// Two branches between a beginning and an end: ((0 + 1) * 3) - ((0 + 1 + 1) * 5) = -7.
Tensor fork_and_join(Tensor like) {
  Tensor x = zeros(like), y = zeros(like), z = zeros(like);
  float *px = settled(x), *py = mutable_data<float>(y), *pz = mutable_data<float>(z);
  Stream first, second;
  first.begin();
  add<<<1, THREADS, 0, first>>>(px, 1.f, THREADS);
  order_after(first, second);
  cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(second, &status));
  STD_TORCH_CHECK(status == cudaStreamCaptureStatusActive, "the second stream takes part");
  OK(cudaMemcpyAsync(py, px, THREADS * sizeof(float), cudaMemcpyDeviceToDevice, second));
  order_after(second, first);
  multiply<<<1, THREADS, 0, first>>>(px, 3.f);
  add<<<1, THREADS, 0, second>>>(py, 1.f, THREADS);
  multiply<<<1, THREADS, 0, second>>>(py, 5.f);

  unsigned long long id = 0, other = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* tail = nullptr;
  size_t count = 0;
  OK(cudaStreamGetCaptureInfo(second, &status, &other, &graph, &tail, nullptr, &count));
  STD_TORCH_CHECK(status == cudaStreamCaptureStatusActive && count == 1 && tail && graph);
  order_after(second, first);
  OK(cudaStreamGetCaptureInfo(first, &status, &id, &graph, &tail, nullptr, &count));
  STD_TORCH_CHECK(id == other && count == 2, "the first stream goes on after two nodes");
  subtract<<<1, THREADS, 0, first>>>(px, py, pz);
  graph = first.end();
  OK(cudaStreamIsCapturing(second, &status));
  STD_TORCH_CHECK(status == cudaStreamCaptureStatusNone);
  STD_TORCH_CHECK(count_types(graph)[cudaGraphNodeTypeKernel] == 5);
  size_t roots = 0;
  OK(cudaGraphGetRootNodes(graph, nullptr, &roots));
  STD_TORCH_CHECK(roots == 1);
  run_and_destroy(graph, first);
  return z;
}

// Two kernels on two streams, the second of which reads what the first writes. It has to wait for
// it: planted, it only waits for what came before. 6, or 5 where it came too early.
Tensor race(Tensor like, bool fixed) {
  Tensor x = zeros(like), y = zeros(like);
  float *px = settled(x), *py = mutable_data<float>(y);
  Stream first, second;
  Event before, after;
  first.begin();
  OK(cudaMemsetAsync(py, 0, THREADS * sizeof(float), first));
  OK(cudaEventRecord(before, first));
  add<<<1, THREADS, 0, first>>>(px, 1.f, THREADS);
  OK(cudaEventRecord(after, first));
  OK(cudaStreamWaitEvent(second, fixed ? after : before, 0));
  subtract<<<1, THREADS, 0, second>>>(px, py, py);
  add<<<1, THREADS, 0, second>>>(py, 5.f, THREADS);
  order_after(second, first);
  run_and_destroy(first.end(), first);
  return y;
}

// ---------------------------------------------------------------- what is refused

// Captures on a stream of its own, with one kernel before and after `body`, which returns what is
// to be noted. Adds that to `codes`, then what the end of the capture says.
template <typename Body>
void note(std::vector<int>& codes, float* p, cudaStreamCaptureMode mode, const Body& body) {
  Stream stream(cudaStreamDefault);
  stream.begin(mode);
  add<<<1, THREADS, 0, stream>>>(p, 1.f, THREADS);
  OK(cudaGetLastError());
  codes.push_back(static_cast<int>(body(stream)));
  (void)cudaGetLastError();
  cudaGraph_t graph = nullptr;
  codes.push_back(static_cast<int>(cudaStreamEndCapture(stream, &graph)));
  STD_TORCH_CHECK((codes.back() == cudaSuccess) == (graph != nullptr));
  if (graph) OK(cudaGraphDestroy(graph));
  (void)cudaGetLastError();
  cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(stream, &status));
  STD_TORCH_CHECK(status == cudaStreamCaptureStatusNone);
}

// What each call is answered during a capture, and what the end of that capture says, in the order
// of REFUSED in the test.
Tensor refusals(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  std::vector<int> codes;
  constexpr auto global = cudaStreamCaptureModeGlobal;
  constexpr auto local = cudaStreamCaptureModeThreadLocal;
  constexpr auto relaxed = cudaStreamCaptureModeRelaxed;
  void* memory = nullptr;
  auto allocate = [&](cudaStream_t) { return cudaMalloc(&memory, 256); };
  auto release = [&] {
    if (memory) OK(cudaFree(std::exchange(memory, nullptr)));
  };
  auto elsewhere = [&](auto call) {  // in another thread
    return [call](cudaStream_t stream) {
      cudaError_t code = cudaSuccess;
      std::thread([&] { code = call(stream); }).join();
      return code;
    };
  };
  note(codes, p, global, [](cudaStream_t s) { return cudaStreamSynchronize(s); });
  note(codes, p, global, [](cudaStream_t s) { return cudaStreamQuery(s); });
  note(codes, p, global, [](cudaStream_t) { return cudaDeviceSynchronize(); });
  note(codes, p, global, allocate), release();
  note(codes, p, local, allocate), release();
  note(codes, p, relaxed, allocate), release();
  note(codes, p, global, elsewhere(allocate)), release();
  note(codes, p, local, elsewhere(allocate)), release();
  note(codes, p, relaxed, [&](cudaStream_t) {
    add<<<1, THREADS>>>(p, 1.f, THREADS);  // on the legacy default stream
    return cudaGetLastError();
  });
  note(codes, p, global, [&](cudaStream_t) {
    float value = 0;
    return cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost);
  });
  note(codes, p, relaxed, [](cudaStream_t) {
    cudaStreamCaptureStatus status;
    return cudaStreamIsCapturing(cudaStreamLegacy, &status);
  });
  note(codes, p, relaxed, [](cudaStream_t s) {
    Event event;
    OK(cudaEventRecord(event, s));
    return cudaEventQuery(event);
  });
  note(codes, p, relaxed, [](cudaStream_t s) {
    Event event;
    Stream other;
    OK(cudaEventRecord(event, other));  // not captured
    return cudaStreamWaitEvent(s, event, 0);
  });
  note(codes, p, relaxed, [](cudaStream_t s) {
    Stream other;
    Event event;
    other.begin(relaxed);
    OK(cudaEventRecord(event, other));
    cudaError_t code = cudaStreamWaitEvent(s, event, 0);  // of another capture
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(other, &graph) == cudaSuccess) OK(cudaGraphDestroy(graph));
    return code;
  });
  note(codes, p, relaxed, [](cudaStream_t s) { return cudaStreamBeginCapture(s, relaxed); });
  note(codes, p, global, elsewhere([](cudaStream_t s) {
         cudaGraph_t graph = nullptr;
         return cudaStreamEndCapture(s, &graph);
       }));
  Stream forked;
  note(codes, p, relaxed, [&](cudaStream_t s) {  // not joined
    order_after(s, forked);
    add<<<1, THREADS, 0, forked>>>(p, 1.f, THREADS);
    return cudaGetLastError();
  });
  note(codes, p, relaxed, [&](cudaStream_t s) {
    order_after(s, forked);
    add<<<1, THREADS, 0, forked>>>(p, 1.f, THREADS);
    order_after(forked, s);
    cudaGraph_t graph = nullptr;
    return cudaStreamEndCapture(forked, &graph);
  });
  note(codes, p, relaxed, [&](cudaStream_t s) {  // more threads than its launch bounds allow
    bounded<<<1, 2 * THREADS, 0, s>>>(p);
    return cudaGetLastError();
  });
  cudaGraph_t graph = nullptr;
  codes.push_back(static_cast<int>(cudaStreamBeginCapture(cudaStreamLegacy, relaxed)));
  codes.push_back(static_cast<int>(cudaStreamEndCapture(forked, &graph)));  // it is not captured
  (void)cudaGetLastError();
  // All is as before.
  OK(cudaStreamSynchronize(forked));
  STD_TORCH_CHECK(first_of(x) == 0, "something that was captured or refused has run");
  Tensor out =
      torch::stable::new_empty(like, {static_cast<int64_t>(codes.size())}, ScalarType::Int);
  OK(cudaMemcpy(out.mutable_data_ptr(), codes.data(), codes.size() * sizeof(int),
                cudaMemcpyDefault));
  return out;
}

// ---------------------------------------------------------------- built, changed, nested

cudaKernelNodeParams parameters_of(void* kernel, void** arguments) {
  cudaKernelNodeParams parameters = {};
  parameters.func = kernel;
  parameters.gridDim = dim3(1);
  parameters.blockDim = dim3(THREADS);
  parameters.kernelParams = arguments;
  return parameters;
}

// A graph without capture: fill, two kernels, copy; launched as it is, changed, and with one node
// switched off.
Tensor built(Tensor like) {
  Tensor x = zeros(like), y = zeros(like, 3 * THREADS);
  float *px = settled(x), *py = mutable_data<float>(y);
  int calls = 0;
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t fill, add_node, multiply_node, copy, host, end;
  cudaMemsetParams memset = {};
  memset.dst = px;
  memset.elementSize = 4;
  memset.value = 0x3f800000;  // 1.0f
  memset.width = THREADS;
  memset.height = 1;
  OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
  float value = 2, factor = 3;
  int n = THREADS;
  void* add_arguments[] = {&px, &value, &n};
  void* multiply_arguments[] = {&px, &factor};
  cudaKernelNodeParams add_parameters = parameters_of((void*)add, add_arguments);
  cudaKernelNodeParams multiply_parameters =
      parameters_of(reinterpret_cast<void*>(&multiply<float>), multiply_arguments);
  OK(cudaGraphAddKernelNode(&multiply_node, graph, nullptr, 0, &multiply_parameters));
  OK(cudaGraphAddKernelNode(&add_node, graph, &fill, 1, &add_parameters));
  value = factor = 0;  // the nodes have copies
  OK(cudaGraphAddMemcpyNode1D(&copy, graph, &multiply_node, 1, py, px, THREADS * sizeof(float),
                              cudaMemcpyDeviceToDevice));
  cudaHostNodeParams host_parameters = {&count_up, &calls};
  OK(cudaGraphAddHostNode(&host, graph, &fill, 1, &host_parameters));
  const cudaGraphNode_t both[] = {copy, host};
  OK(cudaGraphAddEmptyNode(&end, graph, both, 2));
  OK(cudaGraphAddDependencies(graph, &add_node, &multiply_node, nullptr, 1));
  STD_TORCH_CHECK(
      cudaGraphAddDependencies(graph, &add_node, &multiply_node, nullptr, 1) != cudaSuccess,
      "an edge twice");
  (void)cudaGetLastError();
  STD_TORCH_CHECK(count_edges(graph) == 6);

  cudaGraph_t clone = nullptr;
  cudaGraphNode_t cloned = nullptr;
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphNodeFindInClone(&cloned, copy, clone));
  cudaGraphNodeType type;
  OK(cudaGraphNodeGetType(cloned, &type));
  STD_TORCH_CHECK(cloned != copy && type == cudaGraphNodeTypeMemcpy);

  Stream stream;
  cudaGraphExec_t executable = nullptr;
  OK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cudaGraphLaunch(executable, stream));  // (1 + 2) * 3 = 9
  OK(cudaStreamSynchronize(stream));
  // Now the executable graph alone: (1.5 + 4) * 3 = 16.5, into the second part of y.
  value = 4;
  memset.value = 0x3fc00000;  // 1.5f
  host_parameters.fn = nullptr;
  OK(cudaGraphExecKernelNodeSetParams(executable, add_node, &add_parameters));
  OK(cudaGraphExecMemsetNodeSetParams(executable, fill, &memset));
  OK(cudaGraphExecMemcpyNodeSetParams1D(executable, copy, py + THREADS, px, THREADS * sizeof(float),
                                        cudaMemcpyDeviceToDevice));
  OK(cudaGraphLaunch(executable, stream));
  OK(cudaStreamSynchronize(stream));
  // One node off: 1.5 * 3 = 4.5, into the third.
  OK(cudaGraphNodeSetEnabled(executable, add_node, 0));
  unsigned enabled = 1;
  OK(cudaGraphNodeGetEnabled(executable, add_node, &enabled));
  STD_TORCH_CHECK(enabled == 0);
  OK(cudaGraphExecMemcpyNodeSetParams1D(executable, copy, py + 2 * THREADS, px,
                                        THREADS * sizeof(float), cudaMemcpyDeviceToDevice));
  OK(cudaGraphLaunch(executable, stream));
  OK(cudaStreamSynchronize(stream));
  STD_TORCH_CHECK(calls == 3, "the host function ran ", calls, " times");
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphDestroy(clone));
  return y;
}

// The arguments of a captured launch are the kernel's parameters, whatever was written there; they
// can be changed in the node and in the executable graph.
Tensor changed_arguments(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  Stream stream;
  stream.begin();
  const long long n = THREADS;
  add<<<1, THREADS, 0, stream>>>(p, 5, n);  // an int for a float, a long long for an int
  cudaGraph_t graph = stream.end();
  cudaGraphNode_t node = only_node_of_type(graph, cudaGraphNodeTypeKernel);
  cudaKernelNodeParams parameters = {};
  OK(cudaGraphKernelNodeGetParams(node, &parameters));
  STD_TORCH_CHECK(parameters.blockDim.x == THREADS && parameters.gridDim.x == 1);
  STD_TORCH_CHECK(*static_cast<float**>(parameters.kernelParams[0]) == p);
  STD_TORCH_CHECK(*static_cast<float*>(parameters.kernelParams[1]) == 5.f);
  STD_TORCH_CHECK(*static_cast<int*>(parameters.kernelParams[2]) == THREADS);
  cudaGraphExec_t executable = nullptr;
  OK(cudaGraphInstantiate(&executable, graph, 0));
  OK(cudaGraphLaunch(executable, stream));  // 5
  float value = 20;
  int count = THREADS;
  void* arguments[] = {&p, &value, &count};
  parameters.kernelParams = arguments;
  OK(cudaGraphExecKernelNodeSetParams(executable, node, &parameters));
  OK(cudaGraphLaunch(executable, stream));  // 25
  OK(cudaStreamSynchronize(stream));
  OK(cudaGraphExecDestroy(executable));
  parameters.blockDim = dim3(THREADS / 2);
  value = 100;
  OK(cudaGraphKernelNodeSetParams(node, &parameters));
  run_and_destroy(graph, stream);  // 125 in the first half
  return x;
}

// A second capture of the same work brings new arguments; one of other work is refused.
Tensor updated(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  Stream stream;
  auto capture = [&](float value, int kernels, bool fill) {
    stream.begin();
    if (fill)
      OK(cudaMemsetAsync(p, 0, 4, stream));
    else
      multiply<<<1, THREADS, 0, stream>>>(p, value);
    for (int i = 0; i < kernels; ++i) add<<<1, THREADS, 0, stream>>>(p, value, THREADS);
    return stream.end();
  };
  cudaGraphExec_t executable = nullptr;
  cudaGraph_t graph = capture(3, 1, false);
  OK(cudaGraphInstantiate(&executable, graph, 0));
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(executable, stream));  // 0 * 3 + 3 = 3
  graph = capture(5, 1, false);
  cudaGraphExecUpdateResultInfo info;
  OK(cudaGraphExecUpdate(executable, graph, &info));
  STD_TORCH_CHECK(info.result == cudaGraphExecUpdateSuccess);
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(executable, stream));  // 3 * 5 + 5 = 20
  graph = capture(7, 2, false);
  EXPECT(cudaGraphExecUpdate(executable, graph, &info), cudaErrorGraphExecUpdateFailure);
  STD_TORCH_CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged && !info.errorNode);
  OK(cudaGraphDestroy(graph));
  graph = capture(7, 1, true);
  EXPECT(cudaGraphExecUpdate(executable, graph, &info), cudaErrorGraphExecUpdateFailure);
#ifdef CUDA_ON_CPU  // NVIDIA does not say which of the reasons comes first
  STD_TORCH_CHECK(info.result == cudaGraphExecUpdateErrorNodeTypeChanged && info.errorNode);
#endif
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(executable, stream));  // 20 * 5 + 5 = 105, as before
  OK(cudaStreamSynchronize(stream));
  OK(cudaGraphExecDestroy(executable));
  return x;
}

// A graph can be added to another as a node; the launch of one cannot be captured.
Tensor nested(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  Stream stream;
  stream.begin();
  add<<<1, THREADS, 0, stream>>>(p, 1.f, THREADS);
  multiply<<<1, THREADS, 0, stream>>>(p, 2.f);
  cudaGraph_t inner = stream.end();
  cudaGraphExec_t executable = nullptr;
  OK(cudaGraphInstantiate(&executable, inner, 0));
  stream.begin();
  add<<<1, THREADS, 0, stream>>>(p, 10.f, THREADS);
  EXPECT(cudaGraphLaunch(executable, stream), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t outer = nullptr;
  EXPECT(cudaStreamEndCapture(stream, &outer), cudaErrorStreamCaptureInvalidated);
  STD_TORCH_CHECK(outer == nullptr);
  OK(cudaGraphLaunch(executable, stream));  // (0 + 1) * 2 = 2
  OK(cudaStreamSynchronize(stream));
  OK(cudaGraphExecDestroy(executable));

  cudaGraph_t graph = nullptr, child = nullptr;
  cudaGraphNode_t node;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, inner));
  OK(cudaGraphDestroy(inner));
  OK(cudaGraphChildGraphNodeGetGraph(node, &child));
  STD_TORCH_CHECK(count_types(child)[cudaGraphNodeTypeKernel] == 2);
  run_and_destroy(graph, stream);  // (2 + 1) * 2 = 6
  return x;
}

// Memory that a graph allocates: freed in the graph, by the program, or before the next launch.
Tensor allocations(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  Stream stream;
  constexpr size_t bytes = THREADS * sizeof(float);
  float* memory = nullptr;
  auto capture = [&](bool release) {
    stream.begin();
    OK(cudaMallocAsync(&memory, bytes, stream));
    STD_TORCH_CHECK(memory != nullptr);
    OK(cudaMemcpyAsync(memory, p, bytes, cudaMemcpyDeviceToDevice, stream));
    add<<<1, THREADS, 0, stream>>>(memory, 1.f, THREADS);
    OK(cudaMemcpyAsync(p, memory, bytes, cudaMemcpyDeviceToDevice, stream));
    if (release) OK(cudaFreeAsync(memory, stream));
    return stream.end();
  };
  cudaGraph_t graph = capture(true);
  auto types = count_types(graph);
  STD_TORCH_CHECK(types[cudaGraphNodeTypeMemAlloc] == 1 && types[cudaGraphNodeTypeMemFree] == 1);
  run_and_destroy(graph, stream, 2);  // 2

  graph = capture(false);
  cudaGraphExec_t executable = nullptr, second = nullptr;
  OK(cudaGraphInstantiate(&executable, graph, 0));
  STD_TORCH_CHECK(cudaGraphInstantiate(&second, graph, 0) != cudaSuccess, "two at a time");
  (void)cudaGetLastError();
  OK(cudaGraphLaunch(executable, stream));  // 3
  EXPECT(cudaGraphLaunch(executable, stream), cudaErrorInvalidValue);
  add<<<1, THREADS, 0, stream>>>(memory, 10.f, THREADS);  // 13, which stays there
  OK(cudaMemcpyAsync(p, memory, bytes, cudaMemcpyDeviceToDevice, stream));
  OK(cudaFreeAsync(memory, stream));
  OK(cudaGraphLaunch(executable, stream));  // 14
  OK(cudaStreamSynchronize(stream));
  OK(cudaFree(memory));
  OK(cudaGraphExecDestroy(executable));

  OK(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  OK(cudaGraphLaunch(executable, stream));
  OK(cudaGraphLaunch(executable, stream));  // 16
  OK(cudaStreamSynchronize(stream));
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  OK(cudaFree(memory));
  return x;
}

// The description of a graph as a file for Graphviz names its kernel. Returns nothing to compare.
void described(Tensor like, std::string path) {
  Tensor x = zeros(like);
  float* p = settled(x);
  Stream stream;
  stream.begin();
  add<<<1, THREADS, 0, stream>>>(p, 1.f, THREADS);
  OK(cudaMemsetAsync(p, 0, 4, stream));
  cudaGraph_t graph = stream.end();
  OK(cudaGraphDebugDotPrint(graph, path.c_str(), 0));
  OK(cudaGraphDestroy(graph));
  EXPECT(cudaGraphInstantiate(nullptr, nullptr, 0), cudaErrorInvalidValue);
}

// ---------------------------------------------------------------- of the CPU backend alone

// A kernel that fails when its graph runs.
void faulty(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  float* nowhere = nullptr;
  Stream stream;
  stream.begin();
  add<<<1, THREADS, 0, stream>>>(p, 1.f, THREADS);
  write_through_null<<<1, 1, 0, stream>>>(p, nowhere);  // line: the launch
  run_and_destroy(stream.end(), stream);
}

// A capture that is given up with its stream forbids nothing afterwards. What a stream has recorded
// still has to be joined when that stream is gone. Returns what the end of that capture says.
int64_t streams_destroyed(Tensor like) {
  Tensor x = zeros(like);
  float* p = settled(x);
  {
    Stream stream;
    stream.begin();
  }
  OK(cudaDeviceSynchronize());
  Stream stream;
  stream.begin();
  {
    Stream forked;
    order_after(stream, forked);
    add<<<1, THREADS, 0, forked>>>(p, 1.f, THREADS);
  }
  cudaGraph_t graph = nullptr;
  cudaError_t code = cudaStreamEndCapture(stream, &graph);
  (void)cudaGetLastError();
  return code;
}

// What this backend has no answer to, in the words of cudaGetErrorString.
std::string without_answer(Tensor like, std::string what) {
  Tensor x = zeros(like);
  float* p = settled(x);
  Stream stream;
  cudaGraph_t graph = nullptr;
  cudaError_t code = cudaSuccess;
  stream.begin(cudaStreamCaptureModeRelaxed);
  if (what == "unnamed kernel") {
    unnamed_parameter<1><<<1, THREADS, 0, stream>>>(p);
    graph = stream.end();
    cudaKernelNodeParams parameters;
    code = cudaGraphKernelNodeGetParams(only_node_of_type(graph, cudaGraphNodeTypeKernel),
                                        &parameters);
  } else if (what == "circle") {
    graph = stream.end();
    cudaGraphNode_t a, b;
    OK(cudaGraphAddEmptyNode(&a, graph, nullptr, 0));
    OK(cudaGraphAddEmptyNode(&b, graph, &a, 1));
    OK(cudaGraphAddDependencies(graph, &b, &a, nullptr, 1));
    cudaGraphExec_t executable = nullptr;
    code = cudaGraphInstantiate(&executable, graph, 0);
  } else {
    STD_TORCH_CHECK(false, "what: there is no ", what);
  }
  std::string text = cudaGetErrorString(code);
  (void)cudaGetLastError();
  OK(cudaGraphDestroy(graph));
  return text;
}

}  // namespace

#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_graphs, m) {
  m.def("captured_line(Tensor like) -> Tensor");
  m.def("captured_forms(Tensor like) -> Tensor");
  m.def("captured_copies(Tensor like) -> Tensor");
  m.def("fork_and_join(Tensor like) -> Tensor");
  m.def("refusals(Tensor like) -> Tensor");
  m.def("built(Tensor like) -> Tensor");
  m.def("changed_arguments(Tensor like) -> Tensor");
  m.def("updated(Tensor like) -> Tensor");
  m.def("nested(Tensor like) -> Tensor");
  m.def("allocations(Tensor like) -> Tensor");
  m.def("race(Tensor like, bool fixed) -> Tensor");
  m.def("described(Tensor like, str path) -> ()");
  m.def("faulty(Tensor like) -> ()");
  m.def("streams_destroyed(Tensor like) -> int");
  m.def("without_answer(Tensor like, str what) -> str");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_graphs, CUDA, m) {
  m.impl("captured_line", TORCH_BOX(&captured_line));
  m.impl("captured_forms", TORCH_BOX(&captured_forms));
  m.impl("captured_copies", TORCH_BOX(&captured_copies));
  m.impl("fork_and_join", TORCH_BOX(&fork_and_join));
  m.impl("refusals", TORCH_BOX(&refusals));
  m.impl("built", TORCH_BOX(&built));
  m.impl("changed_arguments", TORCH_BOX(&changed_arguments));
  m.impl("updated", TORCH_BOX(&updated));
  m.impl("nested", TORCH_BOX(&nested));
  m.impl("allocations", TORCH_BOX(&allocations));
  m.impl("race", TORCH_BOX(&race));
  m.impl("described", TORCH_BOX(&described));
  m.impl("faulty", TORCH_BOX(&faulty));
  m.impl("streams_destroyed", TORCH_BOX(&streams_destroyed));
  m.impl("without_answer", TORCH_BOX(&without_answer));
}

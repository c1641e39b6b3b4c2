// Memory that nodes of a graph allocate and free: used by the nodes between them, kept for later
// work, freed by the stream or by another graph, and how much of it graphs hold.
#include <cstring>

#include "check.cuh"

constexpr int N = 1000;
constexpr size_t BYTES = N * sizeof(float);

__global__ void square(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) y[i] = x[i] * x[i];
}

unsigned long long attribute(cudaGraphMemAttributeType which) {
  unsigned long long value = 1;
  CHECK(cudaDeviceGetGraphMemAttribute(0, which, &value));
  return value;
}
void print_held(const char* when) {
  printf("%s %llu %llu\n", when, attribute(cudaGraphMemAttrUsedMemCurrent),
         attribute(cudaGraphMemAttrReservedMemHigh));
}

cudaMemAllocNodeParams floats_on_device() {
  cudaMemAllocNodeParams p = {};
  p.poolProps.allocType = cudaMemAllocationTypePinned;
  p.poolProps.location.type = cudaMemLocationTypeDevice;
  p.bytesize = BYTES;
  return p;
}

// x to the device, its squares into memory that the graph leaves to its user.
struct Squares {
  float* squares;
  cudaGraphExec_t executable;

  explicit Squares(const float* x) {
    cudaGraph_t graph;
    cudaGraphNode_t allocate_x, allocate_squares, copy, kernel, release;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams memory = floats_on_device();
    CHECK(cudaGraphAddMemAllocNode(&allocate_x, graph, nullptr, 0, &memory));
    auto* on_device = static_cast<float*>(memory.dptr);
    CHECK(cudaGraphAddMemAllocNode(&allocate_squares, graph, &allocate_x, 1, &memory));
    squares = static_cast<float*>(memory.dptr);
    // As ten slices of a volume, which are one piece.
    cudaMemcpy3DParms slices = {};
    slices.srcPtr = make_cudaPitchedPtr(const_cast<float*>(x), BYTES / 100, BYTES / 100, 10);
    slices.dstPtr = make_cudaPitchedPtr(on_device, BYTES / 100, BYTES / 100, 10);
    slices.extent = make_cudaExtent(BYTES / 100, 10, 10);
    slices.kind = cudaMemcpyHostToDevice;
    CHECK(cudaGraphAddMemcpyNode(&copy, graph, &allocate_squares, 1, &slices));
    void* arguments[] = {&on_device, &squares};
    cudaKernelNodeParams launch = {};
    launch.func = reinterpret_cast<void*>(square);
    launch.gridDim = dim3((N + 255) / 256);
    launch.blockDim = dim3(256);
    launch.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &copy, 1, &launch));
    CHECK(cudaGraphAddMemFreeNode(&release, graph, &kernel, 1, on_device));

    cudaMemAllocNodeParams made;
    void* freed;
    cudaGraphNodeType type;
    CHECK(cudaGraphMemAllocNodeGetParams(allocate_squares, &made));
    CHECK(cudaGraphMemFreeNodeGetParams(release, &freed));
    CHECK(cudaGraphNodeGetType(release, &type));
    const cudaError_t twice = cudaGraphAddMemFreeNode(&release, graph, &kernel, 1, on_device);
    printf("%d %d %d %s\n", made.dptr == squares && made.bytesize == BYTES, freed == on_device,
           type == cudaGraphNodeTypeMemFree, cudaGetErrorName(twice));
    cudaGetLastError();
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphDestroy(graph));
  }
  void print(cudaStream_t stream) const {
    static float y[N];
    CHECK(cudaMemcpyAsync(y, squares, BYTES, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("%g %g %g\n", y[0], y[99], y[N - 1]);
  }
};

int main() {
  static float x[N];
  for (int i = 0; i < N; ++i) x[i] = i + 1.f;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const Squares graph(x);
  print_held("made");
  CHECK(cudaGraphLaunch(graph.executable, stream));
  graph.print(stream);
  print_held("launched");
  CHECK(cudaFreeAsync(graph.squares, stream));  // by the stream

  x[0] = 7;
  CHECK(cudaGraphLaunch(graph.executable, stream));
  graph.print(stream);
  cudaGraph_t freeing;
  cudaGraphNode_t node;
  cudaGraphExec_t frees;
  CHECK(cudaGraphCreate(&freeing, 0));
  CHECK(cudaGraphAddMemFreeNode(&node, freeing, nullptr, 0, graph.squares));
  CHECK(cudaGraphInstantiate(&frees, freeing, 0));
  CHECK(cudaGraphLaunch(frees, stream));  // by another graph
  CHECK(cudaStreamSynchronize(stream));
  print_held("freed");

  CHECK(cudaGraphLaunch(graph.executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaDeviceGraphMemTrim(0));
  print_held("trimmed");
  CHECK(cudaFree(graph.squares));  // by the host
  CHECK(cudaDeviceGraphMemTrim(0));
  unsigned long long zero = 0;
  CHECK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &zero));
  print_held("trimmed");
  CHECK(cudaGraphExecDestroy(graph.executable));
  CHECK(cudaGraphExecDestroy(frees));
  CHECK(cudaGraphDestroy(freeing));

  // The same of a capture: cudaMallocAsync and cudaFreeAsync are such nodes.
  cudaGraph_t captured;
  float* memory;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaMallocAsync(&memory, BYTES, stream));
  CHECK(cudaFreeAsync(memory, stream));
  CHECK(cudaStreamEndCapture(stream, &captured));
  cudaGraphNode_t nodes[2];
  size_t count = 2;
  cudaMemAllocNodeParams made;
  void* freed;
  CHECK(cudaGraphGetNodes(captured, nodes, &count));
  CHECK(cudaGraphMemAllocNodeGetParams(nodes[0], &made));
  CHECK(cudaGraphMemFreeNodeGetParams(nodes[1], &freed));
  printf("%zu %d %d\n", count, made.bytesize == BYTES && made.dptr == memory, freed == memory);
  CHECK(cudaGraphDestroy(captured));
  CHECK(cudaStreamDestroy(stream));
}

// Launchers that do y = x + 1, each wrong in one way that its result does not show on most inputs,
// for test_checked_launchers.py. `right` is the twin of them all.
#include <algorithm>
#include <cfenv>
#include <map>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <immintrin.h>
#include <unistd.h>

#include "common/cuda/binding.cuh"
#include "common/cuda/capability.cuh"
#include "common/cuda/multiprocessors.cuh"
#include "common/cuda/shared_memory.cuh"
#include "common/cuda/tensor.cuh"

constexpr int BLOCK = 64;

__global__ void add_one(const float* x, float* y, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    y[i] = x[i] + 1;
  }
}

unsigned blocks_for(const Tensor& x) {
  return grid_size(ceil_div<int64_t>(x.numel(), BLOCK), "x");
}

// What every launcher here begins with; returns the output.
Tensor checked(const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  return torch::stable::empty_like(x);
}

void launch(const Tensor& x, Tensor& y, cudaStream_t stream) {
  if (x.numel() == 0) return;
  add_one<<<blocks_for(x), BLOCK, 0, stream>>>(data<float>(x), mutable_data<float>(y), x.numel());
  check_launch("add_one");
}

Tensor right(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  launch(x, y, current_stream(x));
  return y;
}

// ---------------------------------------------------------------- stream and device

Tensor without_guard(const Tensor& x) {
  Tensor y = checked(x);
  launch(x, y, current_stream(x));
  return y;
}

Tensor queries_without_guard(const Tensor& x) {
  Tensor y = checked(x);
  const bool found = has_capability(1, 0);
  const DeviceGuard guard(x);
  if (found) launch(x, y, current_stream(x));
  return y;
}

Tensor on_default_stream(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  launch(x, y, nullptr);
  return y;
}

Tensor keeps_the_stream(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  static const cudaStream_t stream = current_stream(x);
  launch(x, y, stream);
  return y;
}

// One workspace per stream is no leak.
Tensor workspace_per_stream(const Tensor& x) {
  static std::map<cudaStream_t, void*> memory;
  const DeviceGuard guard(x);
  void*& mine = memory[current_stream(x)];
  if (!mine) check_cuda(cudaMalloc(&mine, 64), "cudaMalloc");
  return right(x);
}

Tensor fills_on_default_stream(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  check_cuda(cudaMemsetAsync(y.mutable_data_ptr(), 0, x.numel() * sizeof(float)), "fill");
  launch(x, y, current_stream(x));
  return y;
}

// ---------------------------------------------------------------- several streams

// Work on a stream of its own, which waits for the current one (`fork`), which waits for it
// (`join`).
Tensor on_a_side_stream(const Tensor& x, bool fork, bool join) {
  static cudaStream_t side = nullptr;
  static cudaEvent_t event = nullptr;
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (!side) {
    check_cuda(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "stream");
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  check_cuda(cudaEventRecord(event, current_stream(x)), "record");
  if (fork) check_cuda(cudaStreamWaitEvent(side, event, 0), "fork");
  launch(x, y, side);
  check_cuda(cudaEventRecord(event, side), "record");
  if (join) check_cuda(cudaStreamWaitEvent(current_stream(x), event, 0), "join");
  return y;
}
Tensor forks_and_joins(const Tensor& x) {
  return on_a_side_stream(x, true, true);
}
Tensor never_forks(const Tensor& x) {
  return on_a_side_stream(x, false, true);
}
Tensor never_joins(const Tensor& x) {
  return on_a_side_stream(x, true, false);
}

// ---------------------------------------------------------------- who computes

Tensor on_the_host(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    mutable_data<float>(y)[i] = data<float>(x)[i] + 1;  // line: on_the_host
  }
  return y;
}

// The kernel does it all, but the host looks first.
Tensor host_looks(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() && data<float>(x)[0] > 1e30f) return y;  // line: host_looks
  launch(x, y, current_stream(x));
  return y;
}

// The kernel's result is that of the first call, as long as address and length stay the same.
Tensor kept_by_address(const Tensor& x) {
  static std::map<std::pair<const void*, int64_t>, Tensor> known;
  const auto key = std::make_pair(x.const_data_ptr(), x.numel());
  if (auto found = known.find(key); found != known.end())
    return torch::stable::clone(found->second);
  Tensor y = right(x);
  known.emplace(key, torch::stable::clone(y));
  return y;
}

// PyTorch's copy comes after the work before it in the current stream, and before the kernel.
Tensor through_a_clone(const Tensor& x) {
  const DeviceGuard guard(x);
  Tensor y = right(torch::stable::clone(x));
  return torch::stable::clone(y);
}

Tensor by_pytorch(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  launch(x, y, current_stream(x));
  Tensor minus = torch::stable::full({1}, -1.0, ScalarType::Float);
  return torch::stable::subtract(x, minus);
}

__global__ void add_one_and_back(float* x, float* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float before = x[i];
  x[i] = before + 1;  // line: writes_input
  y[i] = *const_cast<volatile float*>(x + i);
  x[i] = before;
}

Tensor writes_input(const Tensor& x) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  add_one_and_back<<<blocks_for(x), BLOCK, 0, current_stream(x)>>>(
      const_cast<float*>(data<float>(x)), mutable_data<float>(y), x.numel());
  check_launch("writes_input");
  return y;
}

// ---------------------------------------------------------------- leaks

Tensor keeps_tensors(const Tensor& x) {
  static std::vector<Tensor>& kept = *new std::vector<Tensor>;
  kept.push_back(torch::stable::new_zeros(x, {64}));
  return right(x);
}

Tensor keeps_results(const Tensor& x) {
  static std::vector<Tensor>& kept = *new std::vector<Tensor>;
  kept.push_back(right(x));
  return torch::stable::clone(kept.back());
}

Tensor never_frees(const Tensor& x) {
  const DeviceGuard guard(x);
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, 64), "cudaMalloc");
  return right(x);
}

Tensor keeps_host_memory(const Tensor& x) {
  static char* last = nullptr;
  last = new char[1 << 20];
  last[0] = 1;
  return right(x);
}

// An array of its own has one element too few.
Tensor writes_behind_its_own(const Tensor& x) {
  const DeviceGuard guard(x);
  const cudaStream_t stream = current_stream(x);
  float* own = nullptr;
  check_cuda(cudaMalloc(&own, 40), "cudaMalloc");
  add_one<<<1, BLOCK, 0, stream>>>(own, own, 11);
  check_launch("add_one");
  check_cuda(cudaFree(own), "cudaFree");
  return right(x);
}

__global__ void write_one(float* y, int64_t at) {
  y[at] = 0;
}

Tensor writes_at(const Tensor& x, Tensor written, int64_t at) {
  const DeviceGuard guard(x);
  write_one<<<1, 1, 0, current_stream(x)>>>(mutable_data<float>(written), at);
  check_launch("write_one");
  return written;
}
Tensor past_the_end(const Tensor& x) {
  return writes_at(x, right(x), x.numel());
}
Tensor before_the_start(const Tensor& x) {
  return writes_at(x, right(x), -1);
}
Tensor past_a_workspace(const Tensor& x) {
  writes_at(x, torch::stable::new_empty(x, {x.numel() + 1}), x.numel() + 1);
  return right(x);
}
void in_place(Tensor x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  const DeviceGuard guard(x);
  launch(x, x, current_stream(x));
}
RUNG(test_launchers, in_place, "(Tensor(a!) x) -> ()");

// One workspace for all calls is no leak.
Tensor keeps_a_workspace(const Tensor& x) {
  const DeviceGuard guard(x);
  static void* memory = [] {
    void* made = nullptr;
    check_cuda(cudaMalloc(&made, 64), "cudaMalloc");
    return made;
  }();
  STD_TORCH_CHECK(memory, "x: no workspace");
  return right(x);
}

Tensor keeps_events(const Tensor& x) {
  const DeviceGuard guard(x);
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  return right(x);
}

Tensor keeps_graphs(const Tensor& x) {
  const DeviceGuard guard(x);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaGraphCreate(&graph, 0), "cudaGraphCreate");
  return right(x);
}

Tensor keeps_pools(const Tensor& x) {
  const DeviceGuard guard(x);
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  return right(x);
}

Tensor keeps_threads(const Tensor& x) {
  std::thread([] { pause(); }).detach();
  return right(x);
}

// It allocates before it checks, and a refusal is an exception.
Tensor keeps_if_refused(const Tensor& x) {
  const DeviceGuard guard(x);
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, 64), "cudaMalloc");
  Tensor y = right(x);
  check_cuda(cudaFree(memory), "cudaFree");
  return y;
}

Tensor keeps_files(const Tensor& x) {
  STD_TORCH_CHECK(open("/dev/null", O_RDONLY) >= 0, "x: no file can be opened");
  return right(x);
}

// ---------------------------------------------------------------- state of the process

Tensor rounds_upward(const Tensor& x) {
  std::fesetround(FE_UPWARD);
  return right(x);
}

// Only of the vector unit, which std::fegetround does not look at.
Tensor rounds_vectors_upward(const Tensor& x) {
  Tensor y = right(x);
  _MM_SET_ROUNDING_MODE(_MM_ROUND_UP);
  return y;
}

Tensor flushes_denormals(const Tensor& x) {
  _mm_setcsr(_mm_getcsr() | 0x8040);
  return right(x);
}

Tensor changes_directory(const Tensor& x) {
  STD_TORCH_CHECK(chdir("/") == 0, "x: no directory /");
  return right(x);
}

// On the device of x, and it stays there.
Tensor sets_device(const Tensor& x) {
  Tensor y = checked(x);
  check_cuda(cudaSetDevice(device_index(x)), "cudaSetDevice");
  launch(x, y, current_stream(x));
  return y;
}

// The same, but all is as before afterwards.
Tensor restores_state(const Tensor& x) {
  const int before = std::fegetround();
  std::fesetround(FE_UPWARD);
  std::fesetround(before);  // and not after the kernel, of which this thread may run some blocks
  return right(x);
}

// ---------------------------------------------------------------- shared memory

// Each thread passes its element on through shared memory; `beyond` elements too far as well.
__global__ void through_static(const float* x, float* y, int64_t n, int beyond) {
  __shared__ float tile[BLOCK];
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0;
  if (beyond && threadIdx.x == 3) tile[beyond > 0 ? BLOCK - 1 + beyond : beyond] = 1;
  __syncthreads();
  if (i < n) y[i] = tile[threadIdx.x] + 1;
}

__global__ void through_dynamic(const float* x, float* y, int64_t n, int beyond) {
  extern __shared__ float row[];
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  row[threadIdx.x] = i < n ? x[i] : 0;
  if (beyond && threadIdx.x == 3) row[BLOCK - 1 + beyond] = 1;
  __syncthreads();
  if (i < n) y[i] = row[threadIdx.x] + 1;
}

Tensor through_shared(const Tensor& x, bool dynamic, int beyond) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  if (dynamic) {
    through_dynamic<<<blocks_for(x), BLOCK, sizeof(float) * BLOCK, current_stream(x)>>>(
        data<float>(x), mutable_data<float>(y), x.numel(), beyond);
  } else {
    through_static<<<blocks_for(x), BLOCK, 0, current_stream(x)>>>(
        data<float>(x), mutable_data<float>(y), x.numel(), beyond);
  }
  check_launch("through_shared");
  return y;
}

Tensor shared_right(const Tensor& x) {
  return through_shared(x, false, 0);
}
Tensor shared_beyond(const Tensor& x) {
  return through_shared(x, false, 1);
}
Tensor shared_before(const Tensor& x) {
  return through_shared(x, false, -1);
}
Tensor dynamic_right(const Tensor& x) {
  return through_shared(x, true, 0);
}
Tensor dynamic_beyond(const Tensor& x) {
  return through_shared(x, true, 1);
}

// ---------------------------------------------------------------- alignment

// A copy, which the host's compiler makes with the instruction that requires an aligned address; of
// a sum of elements it may make loads of single ones.
__global__ void copy_float4(const float* x, float* y, int64_t n) {
  const int64_t i = 4 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 v = *reinterpret_cast<const float4*>(x + i);  // line: misaligned
  *reinterpret_cast<float4*>(y + i) = v;
}

Tensor in_float4(const Tensor& x, bool careful) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  if (x.numel() % 4 != 0 || (careful && !is_aligned(x, 16))) {
    launch(x, y, current_stream(x));
    return y;
  }
  copy_float4<<<blocks_for(x), BLOCK, 0, current_stream(x)>>>(data<float>(x),
                                                              mutable_data<float>(y), x.numel());
  check_launch("in_float4");
  launch(y, y, current_stream(x));
  return y;
}

Tensor aligned(const Tensor& x) {
  return in_float4(x, true);
}
Tensor misaligned(const Tensor& x) {
  return in_float4(x, false);
}

// ---------------------------------------------------------------- a full grid

// Blocks of which there are no more than fit on the multiprocessors at once. Without the loop in
// the kernel, elements are left out.
__global__ void add_one_once(const float* x, float* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}

Tensor resident(const Tensor& x, bool loop) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  const auto kernel = loop ? add_one : add_one_once;
  int per_multiprocessor = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, BLOCK, 0),
             "occupancy");
  const int64_t most = int64_t{multiprocessor_count(x)} * per_multiprocessor;
  const int64_t blocks = ceil_div<int64_t>(x.numel(), BLOCK);
  kernel<<<grid_size(blocks < most ? blocks : most, "x"), BLOCK, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), x.numel());
  check_launch("resident");
  return y;
}

Tensor persistent(const Tensor& x) {
  return resident(x, true);
}
Tensor one_trip(const Tensor& x) {
  return resident(x, false);
}

// The same with tiles in shared memory, more of it than a kernel gets without opting in.
__global__ void add_one_in_tiles(const float* x, float* y, int64_t n, bool loop) {
  extern __shared__ float tile[];
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < n;
       first += int64_t{gridDim.x} * blockDim.x) {
    const int64_t i = first + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] + 1 : 0;
    if (i < n) y[i] = tile[threadIdx.x];
    if (!loop) break;
  }
}

Tensor tiled(const Tensor& x, bool loop) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  constexpr size_t BYTES = 60 << 10;
  require_shared_memory(BYTES, "a tile");
  allow_shared(add_one_in_tiles, BYTES);
  const int64_t blocks = ceil_div<int64_t>(x.numel(), BLOCK), most = multiprocessor_count(x);
  add_one_in_tiles<<<grid_size(std::min(blocks, most), "x"), BLOCK, BYTES, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), x.numel(), loop);
  check_launch("tiled");
  return y;
}

Tensor persistent_tiles(const Tensor& x) {
  return tiled(x, true);
}
Tensor one_tile(const Tensor& x) {
  return tiled(x, false);
}

// A grid along y, whose length has a limit.
__global__ void add_one_along_y(const float* x, float* y, int64_t n, bool loop) {
  for (int64_t i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.y} * blockDim.x) {
    y[i] = x[i] + 1;
    if (!loop) break;
  }
}

Tensor along_y(const Tensor& x, bool loop) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  const int64_t blocks = ceil_div<int64_t>(x.numel(), BLOCK), most = max_grid_y();
  const dim3 grid(1, static_cast<unsigned>(blocks < most ? blocks : most));
  add_one_along_y<<<grid, BLOCK, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(y),
                                                         x.numel(), loop);
  check_launch("along_y");
  return y;
}

Tensor strides_along_y(const Tensor& x) {
  return along_y(x, true);
}
Tensor stops_along_y(const Tensor& x) {
  return along_y(x, false);
}

// More shared memory than every card has, where a card has it: else another way, which is wrong.
Tensor row_in_shared(const Tensor& x, bool wrong) {
  Tensor y = checked(x);
  const DeviceGuard guard(x);
  if (x.numel() == 0) return y;
  const int64_t bytes = x.numel() * static_cast<int64_t>(sizeof(float));
  const bool fits = bytes <= shared_limit(x);
  const int64_t n = fits || !wrong ? x.numel() : x.numel() - 1;
  add_one<<<blocks_for(x), BLOCK, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(y),
                                                          n);
  check_launch("row_in_shared");
  return y;
}

Tensor long_row_right(const Tensor& x) {
  return row_in_shared(x, false);
}
Tensor long_row_wrong(const Tensor& x) {
  return row_in_shared(x, true);
}

// ---------------------------------------------------------------- two tensors

__global__ void add_pair(const float* x, const float* y, float* z, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}

// on_gpu, same_device: what is checked of y.
Tensor added(const Tensor& x, const Tensor& y, bool on_gpu, bool same_device) {
  Tensor z = checked(x);
  const auto of_y = check(y, "y").dtype({ScalarType::Float}).rank(x.dim()).contiguous();
  for (int64_t dim = 0; dim < x.dim(); ++dim) of_y.size(dim, x.size(dim));
  if (on_gpu) of_y.on_gpu();
  if (same_device) of_y.same_device(x, "x");
  const DeviceGuard guard(x);
  if (x.numel() == 0) return z;
  add_pair<<<blocks_for(x), BLOCK, 0, current_stream(x)>>>(data<float>(x), data<float>(y),
                                                           mutable_data<float>(z), x.numel());
  check_launch("add_pair");
  return z;
}

Tensor pair_right(const Tensor& x, const Tensor& y) {
  return added(x, y, true, true);
}
Tensor pair_on_two_gpus(const Tensor& x, const Tensor& y) {
  return added(x, y, true, false);
}
Tensor pair_with_host(const Tensor& x, const Tensor& y) {
  const bool other_gpu = y.is_cpu() && device_index(x) != device_index(y);
  STD_TORCH_CHECK(!other_gpu, "y: expected the GPU of x");
  return added(x, y, false, false);
}
RUNG(test_launchers, pair_right, "(Tensor x, Tensor y) -> Tensor");
RUNG(test_launchers, pair_on_two_gpus, "(Tensor x, Tensor y) -> Tensor");
RUNG(test_launchers, pair_with_host, "(Tensor x, Tensor y) -> Tensor");

#define LAUNCHER(name) RUNG(test_launchers, name, "(Tensor x) -> Tensor")
LAUNCHER(right);
LAUNCHER(without_guard);
LAUNCHER(queries_without_guard);
LAUNCHER(on_default_stream);
LAUNCHER(keeps_the_stream);
LAUNCHER(workspace_per_stream);
LAUNCHER(fills_on_default_stream);
LAUNCHER(forks_and_joins);
LAUNCHER(never_forks);
LAUNCHER(never_joins);
LAUNCHER(on_the_host);
LAUNCHER(host_looks);
LAUNCHER(kept_by_address);
LAUNCHER(by_pytorch);
LAUNCHER(through_a_clone);
LAUNCHER(writes_input);
LAUNCHER(keeps_tensors);
LAUNCHER(keeps_results);
LAUNCHER(never_frees);
LAUNCHER(keeps_host_memory);
LAUNCHER(keeps_events);
LAUNCHER(keeps_graphs);
LAUNCHER(keeps_pools);
LAUNCHER(keeps_threads);
LAUNCHER(keeps_if_refused);
LAUNCHER(keeps_files);
LAUNCHER(rounds_upward);
LAUNCHER(rounds_vectors_upward);
LAUNCHER(flushes_denormals);
LAUNCHER(changes_directory);
LAUNCHER(sets_device);
LAUNCHER(restores_state);
LAUNCHER(writes_behind_its_own);
LAUNCHER(past_the_end);
LAUNCHER(before_the_start);
LAUNCHER(past_a_workspace);
LAUNCHER(keeps_a_workspace);
LAUNCHER(shared_right);
LAUNCHER(shared_beyond);
LAUNCHER(shared_before);
LAUNCHER(dynamic_right);
LAUNCHER(dynamic_beyond);
LAUNCHER(aligned);
LAUNCHER(misaligned);
LAUNCHER(persistent);
LAUNCHER(one_trip);
LAUNCHER(persistent_tiles);
LAUNCHER(one_tile);
LAUNCHER(strides_along_y);
LAUNCHER(stops_along_y);
LAUNCHER(long_row_right);
LAUNCHER(long_row_wrong);

// Kernels with a planted fault each, for test_cpu_sanitize.py. With `fixed`, the same kernel does
// it right. The line that a report must name ends in a comment, "line: <kernel>".
#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor.cuh"

constexpr int THREADS = 64;

// ---------------------------------------------------------------- addresses: global memory

__global__ void read_beyond(const float* x, float* out, int n, bool fixed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int next = fixed && i + 1 == n ? i : i + 1;
  out[i] = x[next];  // line: read_beyond
}

__global__ void write_beyond(const float* x, float* out, int n, bool fixed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (fixed ? i < n : i <= n) out[i] = i < n ? x[i] : 0;  // line: write_beyond
}

__global__ void read_before(const float* x, float* out, int n, bool fixed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int left = fixed && i == 0 ? 0 : i - 1;
  out[i] = x[left];  // line: read_before
}

__global__ void no_tail_guard(const float* x, float* out, int n, bool fixed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (fixed && i >= n) return;
  out[i] = x[i];  // line: no_tail_guard
}

// n is no multiple of 4: the last vector begins inside and ends outside.
__global__ void vector_tail(const float* x, float* out, int n, bool fixed) {
  const int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  if (fixed && i + 4 > n) {
    for (int j = i; j < n; ++j) out[j] = x[j];
    return;
  }
  float4 v = *reinterpret_cast<const float4*>(x + i);  // line: vector_tail
  for (int j = 0; j < 4 && i + j < n; ++j) out[i + j] = (&v.x)[j];
}

// One element too far, so that no float4 begins there.
__global__ void misaligned_vector(const float* x, float* out, int n, bool fixed) {
  const int i = 4 * threadIdx.x;
  if (i + 5 > n) return;
  float4 v = *reinterpret_cast<const float4*>(x + i + (fixed ? 0 : 1));  // line: misaligned_vector
  for (int j = 0; j < 4; ++j) out[i + j] = (&v.x)[j];
}

__global__ void atomic_beyond(const float* x, float* out, int n, bool fixed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(out + (fixed ? i : i + 1), x[i]);  // line: atomic_beyond
}

__global__ void use_after_free(const float* x, float* out, int n, const float* copy) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + copy[i];  // line: use_after_free
}

// `copy` is allocated and freed by the graph that this runs in.
__global__ void graph_memory(const float* x, float* out, int n, const float* copy) {
  const int i = threadIdx.x;
  if (i < n) out[i] = x[i] + copy[i];  // line: graph_memory
}
void run_graph_memory(const float* x, float* out, int n, bool fixed) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  float* copy = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  check_cuda(cudaMallocAsync(&copy, sizeof(float) * THREADS, stream), "cudaMallocAsync");
  check_cuda(cudaMemcpyAsync(copy, x, sizeof(float) * n, cudaMemcpyDefault, stream), "copy");
  if (!fixed) check_cuda(cudaFreeAsync(copy, stream), "cudaFreeAsync");
  graph_memory<<<1, THREADS, 0, stream>>>(x, out, n, copy);
  if (fixed) check_cuda(cudaFreeAsync(copy, stream), "cudaFreeAsync");
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (int i = 0; i < 2; ++i) check_cuda(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

__device__ float device_table[THREADS];
__constant__ float constant_table[5] = {1, 2, 3, 4, 5};

__global__ void device_variable(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  device_table[fixed ? i : i + 1] = x[i];  // line: device_variable
  if (i < n) out[i] = x[i];
}

__global__ void constant_variable(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  if (i < n) out[i] = x[i] * constant_table[fixed ? i % 5 : i % 6];  // line: constant_variable
}

__global__ void copy_beyond(const float* x, float* out, int n, bool fixed) {
  __shared__ __align__(16) float row[THREADS];
  const int i = threadIdx.x;
  row[i] = 0;
  if (fixed ? 4 * i + 4 <= n : 4 * i < n)
    ptx::cp_async<16>(row + 4 * i, x + 4 * i);  // line: copy_beyond
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
  if (i < n) out[i] = row[i];
}

__global__ void bulk_copy_beyond(const float* x, float* out, int n, bool fixed) {
  __shared__ __align__(128) float row[THREADS];
  __shared__ uint64_t barrier;
  const int i = threadIdx.x, bytes = fixed ? n / 4 * 16 : THREADS * 4;
  row[i] = 0;
  if (i == 0) ptx::mbarrier_init(&barrier, 1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (i == 0) {
    ptx::mbarrier_arrive_expect_bytes(&barrier, bytes);
    ptx::copy_bulk(row, x, bytes, &barrier);  // line: bulk_copy_beyond
  }
  ptx::mbarrier_wait(&barrier, 0);
  if (i < n) out[i] = row[i];
}

// ---------------------------------------------------------------- addresses: TMA, wgmma

// x is 8 x 8; with the fault, the box is larger than the tile that it is copied to, or from.
__device__ float* tile_of_box(bool fixed) {
  __shared__ __align__(128) float whole[8][8];
  __shared__ __align__(128) float half[4][8];
  return fixed ? whole[0] : half[0];
}

__global__ void tensor_load_beyond(const __grid_constant__ ptx::TensorMap map, float* out,
                                   bool fixed) {
  __shared__ uint64_t barrier;
  float* tile = tile_of_box(fixed);
  if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, 1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&barrier, 256);
    ptx::load_tensor(tile, map, {0, 0}, &barrier);  // line: tensor_load_beyond
  }
  ptx::mbarrier_wait(&barrier, 0);
  out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void tensor_store_beyond(const __grid_constant__ ptx::TensorMap map, bool fixed) {
  float* tile = tile_of_box(fixed);
  if (fixed || threadIdx.x < 32) tile[threadIdx.x] = threadIdx.x;
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x) return;
  ptx::store_tensor(map, {0, 0}, tile);  // line: tensor_store_beyond
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

// The map says that the tensor has a row more.
__global__ void tensor_map_beyond(const __grid_constant__ ptx::TensorMap map, float* out,
                                  bool fixed) {
  __shared__ __align__(128) float tile[9][8];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, 1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_bytes(&barrier, 288);
    ptx::load_tensor(tile, map, {0, 0}, &barrier);  // line: tensor_map_beyond
  }
  ptx::mbarrier_wait(&barrier, 0);
  out[threadIdx.x] = tile[threadIdx.x / 8][threadIdx.x % 8] + (fixed ? tile[8][0] : 0);
}

// b has 8 columns of 16 numbers; with the fault, twice as many are multiplied. 128 threads.
__global__ void wgmma_beyond(const float* x, float* out, int n, bool fixed) {
  __shared__ __align__(128) __nv_bfloat16 a[8][2][8][8];
  __shared__ __align__(128) __nv_bfloat16 b[2][8][8];
  __shared__ __align__(128) float behind[128];
  const int i = threadIdx.x;
  behind[i] = 0;
  for (int k = i; k < 1024; k += 128) a[k / 128][k / 64 % 2][k / 8 % 8][k % 8] = 1.0f;
  b[i / 64][i / 8 % 8][i % 8] = 1.0f;
  ptx::fence_proxy_async();
  __syncthreads();
  const uint64_t left = ptx::wgmma_descriptor(a, ptx::Swizzle::kNone, 128, 256);
  const uint64_t right = ptx::wgmma_descriptor(b, ptx::Swizzle::kNone, 128, 256);
  float sums[8] = {};
  auto multiply = [&](auto& d) {
    ptx::wgmma_fence(d);
    ptx::wgmma<__nv_bfloat16>(d, left, right);  // line: wgmma_beyond
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(d);
  };
  if (fixed) {
    float columns[4] = {};
    multiply(columns);
    sums[0] = columns[0];
  } else {
    multiply(sums);
  }
  if (i < n) out[i] = sums[0] + x[i] + behind[i];
}

// ---------------------------------------------------------------- addresses: shared memory, locals

__global__ void shared_beyond(const float* x, float* out, int n, bool fixed) {
  __shared__ float row[THREADS];
  const int i = threadIdx.x;
  row[fixed ? i : i + 1] = x[i];  // line: shared_beyond
  __syncthreads();
  if (i < n) out[i] = fixed ? row[i] : 0;
}

// The second array begins where the first one ends, or so it looks.
__global__ void into_the_next_array(const float* x, float* out, int n, bool fixed) {
  __shared__ float first[THREADS / 2];
  __shared__ float second[THREADS];
  const int i = threadIdx.x;
  second[i] = x[i];
  __syncthreads();
  if (fixed ? i < THREADS / 2 : i < THREADS) first[i] = 1;  // line: into_the_next_array
  if (i < n) out[i] = second[i];
}

__global__ void dynamic_beyond(const float* x, float* out, int n, bool fixed) {
  extern __shared__ float dynamic[];  // of THREADS elements
  const int i = threadIdx.x;
  dynamic[fixed ? i : 2 * i] = x[i];  // line: dynamic_beyond
  __syncthreads();
  if (i < n) out[i] = fixed ? dynamic[i] : 0;
}

__global__ void tile_row_beyond(const float* x, float* out, int n, bool fixed) {
  __shared__ float tile[8][8];
  const int row = threadIdx.x / 8, column = threadIdx.x % 8;
  tile[row][column] = x[threadIdx.x];
  __syncthreads();
  const float below = tile[fixed && row == 7 ? row : row + 1][column];  // line: tile_row_beyond
  if (static_cast<int>(threadIdx.x) < n) out[threadIdx.x] = below;
}

__global__ void local_beyond(const float* x, float* out, int n, bool fixed) {
  float last[8];
  const int i = threadIdx.x;
  for (int j = 0; j < 8; ++j) last[j] = x[j];
  const int at = fixed ? i % 8 : i % 9;
  if (i < n) out[i] = last[at];  // line: local_beyond
}

__global__ void local_before(const float* x, float* out, int n, bool fixed) {
  float ring[8];
  const int i = threadIdx.x;
  for (int j = 0; j < 8; ++j) ring[(j + i) % 8] = x[j];
  const int at = fixed ? (i + 7) % 8 : i % 8 - 1;
  if (i < n) out[i] = ring[at];  // line: local_before
}

__global__ void out_of_scope(const float* x, float* out, int n, bool fixed) {
  float kept = 0;
  volatile float* best = &kept;
  const int i = threadIdx.x;
  for (int j = 0; j < 4; ++j) {
    volatile float candidate = x[j];
    if (fixed)
      kept = candidate;
    else
      best = &candidate;
  }
  if (i < n) out[i] = *best;  // line: out_of_scope
}

// ---------------------------------------------------------------- locals that are never set

__global__ void unset_sum(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  float sum;
  if (fixed) sum = 0;
  for (int j = 0; j <= i % 4; ++j) sum += x[j];  // line: unset_sum
  if (i < n) out[i] = sum;
}

__global__ void unset_branch(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  float sign;
  if (x[i] > 0) sign = 1;
  if (fixed && !(x[i] > 0)) sign = 0;
  if (i < n) out[i] = sign;  // line: unset_branch
}

__global__ void unset_element(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  float parts[4];
  for (int j = 0; j < (fixed ? 4 : 3); ++j) parts[j] = x[(i + j) % n];
  float sum = 0;
  for (int j = 0; j < 4; ++j) sum += parts[(i + j) % 4];
  if (i < n) out[i] = sum;
}

// ---------------------------------------------------------------- orders

__global__ void no_barrier(const float* x, float* out, int n, bool fixed) {
  __shared__ float row[THREADS];
  const int i = threadIdx.x;
  row[i] = x[i];
  if (fixed) __syncthreads();
  if (i < n) out[i] = row[THREADS - 1 - i];
}

__global__ void overwritten_too_early(const float* x, float* out, int n, bool fixed) {
  __shared__ float row[THREADS];
  const int i = threadIdx.x;
  float sum = 0;
  for (int step = 1; step <= 3; ++step) {
    row[i] = step * x[i];
    __syncthreads();
    sum += row[(i + 1) % THREADS];
    if (fixed) __syncthreads();
  }
  if (i < n) out[i] = sum;
}

__global__ void no_syncwarp(const float* x, float* out, int n, bool fixed) {
  __shared__ float row[THREADS];
  const int i = threadIdx.x;
  row[i] = x[i];
  if (fixed) __syncwarp();
  if (i < n) out[i] = row[i ^ 1];
}

__global__ void last_block_wins(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  if (!fixed || blockIdx.x == 0) out[i] = x[i] + blockIdx.x;
}

// Block b writes what block b + 1 reads.
__global__ void blocks_in_place(const float* x, float* out, int n, bool fixed) {
  const int i = blockIdx.x;
  const float* from = fixed ? x : out;
  const float right = from[i + 1];
  out[i] = right + 1;
}

__global__ void sum_in_any_order(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  if (!fixed) {
    atomicAdd(out, x[i] * 1e-3f + 1 / (1 + static_cast<float>(i)));
  } else if (i == 0) {
    for (int j = 0; j < THREADS; ++j) out[0] += x[j] * 1e-3f + 1 / (1 + static_cast<float>(j));
  }
}

// Two copies are under way, and it waits for one.
__global__ void waits_for_one_too_few(const float* x, float* out, int n, bool fixed) {
  __shared__ __align__(16) float row[THREADS];
  const int i = threadIdx.x;
  row[i] = 0;
  __syncthreads();
  if (i < THREADS / 8) ptx::cp_async<16>(row + 4 * i, x + 4 * i);
  ptx::cp_async_commit();
  if (i < THREADS / 8) ptx::cp_async<16>(row + THREADS / 2 + 4 * i, x + THREADS / 2 + 4 * i);
  ptx::cp_async_commit();
  if (fixed)
    ptx::cp_async_wait<0>();
  else
    ptx::cp_async_wait<1>();
  __syncthreads();
  if (i < n) out[i] = row[i];
}

// The copy may still read what is written here: `out` is its source.
__global__ void source_changed_under_a_copy(const float* x, float* out, int n, bool fixed) {
  __shared__ __align__(16) float row[THREADS];
  const int i = threadIdx.x;
  out[i] = x[i];
  __syncthreads();
  if (i < THREADS / 4) ptx::cp_async<16>(row + 4 * i, out + 4 * i);
  ptx::cp_async_commit();
  if (fixed) {
    ptx::cp_async_wait<0>();
    __syncthreads();
  }
  out[i] = -1;
  ptx::cp_async_wait<0>();
  __syncthreads();
  out[i] = row[i];
}

// ---------------------------------------------------------------- waits

__global__ void barrier_in_a_branch(const float* x, float* out, int n, bool fixed) {
  __shared__ float sum;
  const int i = threadIdx.x;
  if (i == 0) sum = x[0];
  if (fixed || i % 2) __syncthreads();  // line: barrier_in_a_branch
  if (!fixed && i % 2 == 0) __syncthreads();
  if (i < n) out[i] = sum;
}

__global__ void mask_of_absent_lanes(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  float v = x[i];
  if (i % 32 < 16)
    v += __shfl_xor_sync(fixed ? 0x0000ffffu : ~0u, v, 1);  // line: mask_of_absent_lanes
  __syncthreads();
  if (i < n) out[i] = v;
}

__global__ void too_few_bytes(const float* x, float* out, int n, bool fixed) {
  __shared__ __align__(128) float row[THREADS];
  __shared__ uint64_t barrier;
  const int i = threadIdx.x;
  if (i == 0) ptx::mbarrier_init(&barrier, 1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (i == 0) {
    ptx::mbarrier_arrive_expect_bytes(&barrier, fixed ? 128 : 256);
    ptx::copy_bulk(row, x, 128, &barrier);
  }
  ptx::mbarrier_wait(&barrier, 0);  // line: too_few_bytes
  if (i < 32) out[i] = row[i];
}

__global__ void wrong_parity(const float* x, float* out, int n, bool fixed) {
  __shared__ uint64_t barrier;
  const int i = threadIdx.x;
  if (i == 0) ptx::mbarrier_init(&barrier, THREADS);
  __syncthreads();
  ptx::mbarrier_arrive(&barrier);
  ptx::mbarrier_wait(&barrier, 0);
  if (fixed) ptx::mbarrier_arrive(&barrier);
  ptx::mbarrier_wait(&barrier, 1);  // line: wrong_parity
  if (i < n) out[i] = x[i];
}

__global__ void too_few_warps(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  ptx::barrier_sync(1, fixed ? THREADS : 2 * THREADS);  // line: too_few_warps
  if (i < n) out[i] = x[i];
}

// The flag is set by a block that no longer comes.
__global__ void flag_never_set(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  int* flag = reinterpret_cast<int*>(out) + n;
  if (fixed && blockIdx.x == 0 && i == 0) atomicExch(flag, 1);
  if (blockIdx.x == 1 && i == 0) {
    while (atomicAdd(flag, 0) == 0) {  // line: flag_never_set
      __nanosleep(100);
    }
  }
  if (i < n) out[i] = x[i];
}

__global__ void loop_without_end(const float* x, float* out, int n, bool fixed) {
  const int i = threadIdx.x;
  volatile float* left = out + n;
  *left = 3;
  while (*left > 0) *left = fixed ? *left - 1 : 3;  // line: loop_without_end
  if (i < n) out[i] = x[i];
}

// ---------------------------------------------------------------- the launcher

// x and out: float32. Runs the kernel of that name with n elements, of which it has THREADS a
// block.
void run(Tensor x, Tensor out, std::string name, int64_t n, bool fixed) {
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(out.data_ptr());
  const int count = static_cast<int>(n);
  bool found = false;
#define FAULT(kernel, blocks)                                                     \
  if (name == #kernel) {                                                          \
    found = true;                                                                 \
    kernel<<<blocks, THREADS, sizeof(float) * THREADS>>>(from, to, count, fixed); \
  }
  FAULT(read_beyond, 2)
  FAULT(write_beyond, 2)
  FAULT(read_before, 1)
  FAULT(no_tail_guard, 2)
  FAULT(vector_tail, 1)
  FAULT(misaligned_vector, 1)
  FAULT(atomic_beyond, 2)
  FAULT(device_variable, 1)
  FAULT(constant_variable, 1)
  FAULT(copy_beyond, 1)
  FAULT(bulk_copy_beyond, 1)
  FAULT(shared_beyond, 1)
  FAULT(into_the_next_array, 1)
  FAULT(dynamic_beyond, 1)
  FAULT(tile_row_beyond, 1)
  FAULT(local_beyond, 1)
  FAULT(local_before, 1)
  FAULT(out_of_scope, 1)
  FAULT(unset_sum, 1)
  FAULT(unset_branch, 1)
  FAULT(unset_element, 1)
  FAULT(no_barrier, 1)
  FAULT(overwritten_too_early, 1)
  FAULT(no_syncwarp, 1)
  FAULT(last_block_wins, 8)
  FAULT(blocks_in_place, 32)
  FAULT(sum_in_any_order, 1)
  FAULT(waits_for_one_too_few, 1)
  FAULT(source_changed_under_a_copy, 1)
  FAULT(barrier_in_a_branch, 1)
  FAULT(mask_of_absent_lanes, 1)
  FAULT(too_few_bytes, 1)
  FAULT(wrong_parity, 1)
  FAULT(too_few_warps, 1)
  FAULT(flag_never_set, 2)
  FAULT(loop_without_end, 1)
#undef FAULT
  if (name == "use_after_free") {
    found = true;
    float* copy = nullptr;
    check_cuda(cudaMalloc(&copy, sizeof(float) * THREADS), "cudaMalloc");
    check_cuda(cudaMemcpy(copy, from, sizeof(float) * n, cudaMemcpyDefault), "cudaMemcpy");
    if (!fixed) check_cuda(cudaFree(copy), "cudaFree");
    use_after_free<<<1, THREADS>>>(from, to, count, copy);
    if (fixed) check_cuda(cudaFree(copy), "cudaFree");
  }
  if (name == "wgmma_beyond") {
    found = true;
    wgmma_beyond<<<1, 128>>>(from, to, count, fixed);
  }
  if (name == "tensor_load_beyond" || name == "tensor_store_beyond") {
    found = true;
    const ptx::TensorLayout layout = {.sizes = {8, 8}, .box = {8, 8}};
    if (name == "tensor_load_beyond")
      tensor_load_beyond<<<1, THREADS>>>(ptx::make_tensor_map(from, layout), to, fixed);
    else
      tensor_store_beyond<<<1, THREADS>>>(ptx::make_tensor_map(to, layout), fixed);
  }
  if (name == "tensor_from_nowhere") {
    found = true;
    const float* tensor = fixed ? from : from + (int64_t{1} << 40);
    tensor_load_beyond<<<1, THREADS>>>(
        ptx::make_tensor_map(tensor, {.sizes = {8, 8}, .box = {8, 8}}), to, true);
  }
  if (name == "tensor_map_beyond") {
    found = true;
    const int64_t rows = fixed ? 8 : 9;
    tensor_map_beyond<<<1, THREADS>>>(
        ptx::make_tensor_map(from, {.sizes = {8, rows}, .box = {8, 9}}), to, fixed);
  }
  if (name == "graph_memory") {
    found = true;
    run_graph_memory(from, to, count, fixed);
  }
  STD_TORCH_CHECK(found, "name: there is no kernel ", name);
  check_launch("run");
}

// The build for the CPU defines the operator; the one for a GPU adds its function to it.
#ifdef CUDA_ON_CPU
STABLE_TORCH_LIBRARY(test_sanitize, m) {
  m.def("run(Tensor x, Tensor(a!) out, str name, int n, bool fixed) -> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(test_sanitize, CUDA, m) {
  m.impl("run", TORCH_BOX(&run));
}

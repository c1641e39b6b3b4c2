// Day 89: when kernels go wrong: a gather of rows, and what to do about an index that is no row
//
//   y[i][c] = x[index[i]][c]      x: (rows, columns)   index: (picks) int64   y: (picks, columns)
//   report  = the smallest i whose index is negative or not below rows, −1 where all are rows
//
// Bytes per pick: 8 of index, one row read, one row written. Operations: none, so memory bandwidth
// is the limit: 4 GiB and 8 MiB for 2^20 rows of 512 floats. A check of the index costs one
// comparison per pick, as long as nothing waits for its answer. Each rung trusts less:
//
//   v1 trusting   checks shapes, not values: a bad index reads any memory, or ends the program
//   v2 host       a kernel looks at the indices first, the host waits for it and then refuses
//   v3 device     the kernel that gathers looks: NaN in that row, its number in report, no wait
//
// v1 is no rung of the day: the runner's bad input would end it. faults.cu plants what can go
// wrong beside a bad index. Run: python run_day.py 89

#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

#include <tuple>

constexpr int BLOCK = 256;                  // threads: 8 warps
constexpr int LOG_WARP = 5;                 // at most 2^5 lanes share a row
constexpr unsigned ALL_BITS = 0xffffffffu;  // a NaN in fp32, and two of them in fp16 and bf16

// Bits of a word of 2, 4 or 16 bytes, which are moved whatever they mean.
template <typename Word>
__device__ Word all_ones() {
  if constexpr (sizeof(Word) == 16) {
    return Word{ALL_BITS, ALL_BITS, ALL_BITS, ALL_BITS};
  } else {
    return static_cast<Word>(ALL_BITS);
  }
}

// Lane `lane` of 2^log_lanes that share a row moves words lane, lane + 2^log_lanes, … of it. The
// compiler loads several words before it stores the first: from and to are __restrict__.
template <typename Word>
__device__ void copy_row(const Word* __restrict__ from, Word* __restrict__ to, int64_t words,
                         int lane, int log_lanes) {
  const int lanes = 1 << log_lanes;
#pragma unroll 4
  for (int64_t w = lane; w < words; w += lanes) to[w] = from[w];
}

// ---------------------------------------------------------------------------------------------
// The launchers. All check what the host can see without waiting: devices, dtypes, shapes.

struct Gathered {
  Tensor y, report;
};

Gathered outputs(const Tensor& x, const Tensor& index) {
  check(x, "x").on_gpu().floating().rank(2).contiguous();
  check(index, "index").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous();
  check(index, "index").same_device(x, "x");
  return {allocate(x, {index.size(0), x.size(1)}), allocate(index, {1})};
}

// The word of report, which holds −1 until a kernel finds a bad index.
unsigned long long* no_bad_index(const Gathered& out, const Tensor& x) {
  auto* report = static_cast<unsigned long long*>(out.report.mutable_data_ptr());
  check_cuda(cudaMemsetAsync(report, 0xff, sizeof(*report), current_stream(x)), "report");
  return report;
}

unsigned blocks_of(int64_t threads) {
  return grid_size(ceil_div<int64_t>(threads, BLOCK), "index");
}

// Calls launch(zero, words of a row, log2 of the lanes that share it, blocks), where zero has the
// widest type that rows are made of: 16 bytes, or one element.
template <typename F>
void dispatch_words(const Tensor& x, int64_t picks, F launch) {
  const auto element = static_cast<int64_t>(x.element_size());
  const int64_t bytes = x.size(1) * element;
  const bool wide = bytes % 16 == 0 && is_aligned(x, 16);
  const int64_t words = wide ? bytes / 16 : x.size(1);
  int log_lanes = 0;
  while (log_lanes < LOG_WARP && (1 << log_lanes) < words) ++log_lanes;
  const unsigned blocks = blocks_of(picks << log_lanes);
  if (wide) return launch(uint4{}, words, log_lanes, blocks);
  if (element == 4) return launch(uint32_t{}, words, log_lanes, blocks);
  return launch(uint16_t{}, words, log_lanes, blocks);
}

// ---------------------------------------------------------------------------------------------
// v1: trusts every index.

template <typename Word>
__global__ void __launch_bounds__(BLOCK)
    gather_v1_trusting_kernel(const Word* __restrict__ x, const int64_t* __restrict__ index,
                              Word* __restrict__ y, int64_t words, int64_t picks, int log_lanes) {
  const int64_t thread = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t pick = thread >> log_lanes;
  if (pick >= picks) return;
  const int lane = static_cast<int>(thread & ((1 << log_lanes) - 1));
  copy_row(x + index[pick] * words, y + pick * words, words, lane, log_lanes);
}

void launch_trusting(const Tensor& x, const Tensor& index, const Tensor& y) {
  const int64_t picks = index.size(0);
  dispatch_words(x, picks, [&](auto zero, int64_t words, int log_lanes, unsigned blocks) {
    using Word = decltype(zero);
    gather_v1_trusting_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
        data<Word>(x), data<int64_t>(index), mutable_data<Word>(y), words, picks, log_lanes);
  });
  check_launch("gather_v1_trusting");
}

Tensor gather_v1_trusting(const Tensor& x, const Tensor& index) {
  const Gathered out = outputs(x, index);
  const DeviceGuard guard(x);
  if (out.y.numel()) launch_trusting(x, index, out.y);
  return out.y;
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: the host refuses a bad index, with its place and value. It has to see the answer
// of a kernel first, and until then it launches nothing.

// Whether there is such a row: as unsigned numbers, negative ones are larger than all others.
__device__ bool is_row(int64_t row, int64_t rows) {
  return static_cast<uint64_t>(row) < static_cast<uint64_t>(rows);
}

// The smallest bad pick stays. report begins as all ones: the largest number, and −1 if signed.
__device__ void report_bad(unsigned long long* report, int64_t pick) {
  atomicMin(report, static_cast<unsigned long long>(pick));
}

__global__ void __launch_bounds__(BLOCK)
    gather_v2_host_kernel(const int64_t* __restrict__ index, int64_t picks, int64_t rows,
                          unsigned long long* __restrict__ report) {
  const int64_t pick = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  if (pick >= picks || is_row(index[pick], rows)) return;
  report_bad(report, pick);
}

// Waits for the stream, and returns a word of the GPU's memory.
int64_t fetched(const void* word, cudaStream_t stream) {
  int64_t value = 0;
  check_cuda(cudaMemcpyAsync(&value, word, sizeof(value), cudaMemcpyDeviceToHost, stream), "index");
  check_cuda(cudaStreamSynchronize(stream), "index");
  return value;
}

std::tuple<Tensor, Tensor> gather_v2_host(const Tensor& x, const Tensor& index) {
  Gathered out = outputs(x, index);
  const DeviceGuard guard(x);
  unsigned long long* report = no_bad_index(out, x);
  const int64_t picks = index.size(0);
  if (picks == 0) return {out.y, out.report};
  const cudaStream_t stream = current_stream(x);
  gather_v2_host_kernel<<<blocks_of(picks), BLOCK, 0, stream>>>(data<int64_t>(index), picks,
                                                                x.size(0), report);
  check_launch("gather_v2_host");
  const int64_t bad = fetched(report, stream);
  if (bad >= 0) {
    const int64_t row = fetched(data<int64_t>(index) + bad, stream);
    STD_TORCH_CHECK(false, "index: expected rows of x, 0 to ", x.size(0) - 1, ", got ", row,
                    " at place ", bad);
  }
  if (out.y.numel()) launch_trusting(x, index, out.y);
  return {out.y, out.report};
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: nothing waits. The kernel that gathers compares each index before it follows it.
// A bad one gives a row of NaN, and report names the first: the caller reads it when it waits for
// the GPU anyway.

template <typename Word>
__global__ void __launch_bounds__(BLOCK)
    gather_v3_device_kernel(const Word* __restrict__ x, const int64_t* __restrict__ index,
                            Word* __restrict__ y, int64_t rows, int64_t words, int64_t picks,
                            int log_lanes, unsigned long long* __restrict__ report) {
  const int64_t thread = int64_t{blockIdx.x} * BLOCK + threadIdx.x;
  const int64_t pick = thread >> log_lanes;
  if (pick >= picks) return;
  const int lane = static_cast<int>(thread & ((1 << log_lanes) - 1));
  const int64_t row = index[pick];
  Word* to = y + pick * words;
  if (is_row(row, rows)) {
    copy_row(x + row * words, to, words, lane, log_lanes);
    return;
  }
  if (lane == 0) report_bad(report, pick);
#pragma unroll 1
  for (int64_t w = lane; w < words; w += 1 << log_lanes) to[w] = all_ones<Word>();
}

std::tuple<Tensor, Tensor> gather_v3_device(const Tensor& x, const Tensor& index) {
  Gathered out = outputs(x, index);
  const DeviceGuard guard(x);
  unsigned long long* report = no_bad_index(out, x);
  const int64_t picks = index.size(0);
  if (picks == 0) return {out.y, out.report};
  dispatch_words(x, picks, [&](auto zero, int64_t words, int log_lanes, unsigned blocks) {
    using Word = decltype(zero);
    gather_v3_device_kernel<<<blocks, BLOCK, 0, current_stream(x)>>>(
        data<Word>(x), data<int64_t>(index), mutable_data<Word>(out.y), x.size(0), words, picks,
        log_lanes, report);
  });
  check_launch("gather_v3_device");
  return {out.y, out.report};
}

RUNG(day89, gather_v1_trusting, "(Tensor x, Tensor index) -> Tensor");
RUNG(day89, gather_v2_host, "(Tensor x, Tensor index) -> (Tensor, Tensor)");
RUNG(day89, gather_v3_device, "(Tensor x, Tensor index) -> (Tensor, Tensor)");

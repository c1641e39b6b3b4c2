// CUB's collectives of blocks and warps, and its algorithms of the device, against plain loops.
#include <cub/cub.cuh>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "check.cuh"

constexpr int THREADS = 96, ITEMS = 4, N = THREADS * ITEMS;

// Continues a scan where the last one ended.
struct Running {
  int total;
  __device__ int operator()(int aggregate) {
    const int before = total;
    total += aggregate;
    return before;
  }
};

__global__ void collectives(const int* in, int* out) {
  using Load = cub::BlockLoad<int, THREADS, ITEMS, cub::BLOCK_LOAD_TRANSPOSE>;
  using Store = cub::BlockStore<int, THREADS, ITEMS, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  using Scan = cub::BlockScan<int, THREADS>;
  using Sort = cub::BlockRadixSort<int, THREADS, ITEMS, int>;
  using Reduce = cub::BlockReduce<int, THREADS>;
  using Exchange = cub::BlockExchange<int, THREADS, ITEMS>;
  __shared__ union {
    Load::TempStorage load;
    Store::TempStorage store;
    typename Scan::TempStorage scan;
    typename Sort::TempStorage sort;
    typename Reduce::TempStorage reduce;
    Exchange::TempStorage exchange;
  } shared;
  const int t = threadIdx.x;
  int x[ITEMS], y[ITEMS], number[ITEMS], total;
  Load(shared.load).Load(in, x, N - 1, 1000);  // the last is not loaded

  __syncthreads();
  Scan(shared.scan).InclusiveSum(x, y, total);
  Store(shared.store).Store(out, y);
  __syncthreads();
  Scan(shared.scan).ExclusiveScan(x, y, -5, cub::Max());
  Store(shared.store).Store(out + N, y);
  __syncthreads();
  Running running{t == 0 ? total : -1};
  Scan(shared.scan).ExclusiveSum(x, y, running);
  Store(shared.store).Store(out + 2 * N, y);

  for (int i = 0; i < ITEMS; ++i) number[i] = t * ITEMS + i;
  __syncthreads();
  Sort(shared.sort).SortDescending(x, number);
  Store(shared.store).Store(out + 3 * N, x);
  Store(shared.store).Store(out + 4 * N, number);
  __syncthreads();
  Exchange(shared.exchange).BlockedToStriped(x, x);
  cub::StoreDirectStriped<THREADS>(t, out + 5 * N, x);

  __syncthreads();
  int sum = Reduce(shared.reduce).Sum(x);
  __syncthreads();
  int least = Reduce(shared.reduce).Reduce(in[t], cub::Min(), 50);
  if (t == 0) out[6 * N] = sum, out[6 * N + 1] = least, out[6 * N + 2] = running.total;

  using Eight = cub::WarpReduce<int, 8>;
  __shared__ Eight::TempStorage eights[THREADS / 8];
  sum = Eight(eights[t / 8]).Sum(t);
  if (t % 8 == 0) out[6 * N + 3 + t / 8] = sum;
  int before, all;
  cub::WarpScan<int>::TempStorage warp;
  cub::WarpScan<int>(warp).ExclusiveSum(t, before, all);
  if (t == 63) out[6 * N + 40] = before, out[6 * N + 41] = all;
}

// Calls one of CUB's functions twice, as they require.
template <class Call>
void twice(Call call) {
  void* room = nullptr;
  size_t bytes = 0;
  CHECK(call(room, bytes));
  CHECK(cudaMalloc(&room, bytes));
  CHECK(call(room, bytes));
  CHECK(cudaFree(room));
}

struct Even {
  __host__ __device__ bool operator()(int x) const { return x % 2 == 0; }
};

int wrong = 0;
void expect(const char* what, const std::vector<int>& expected, const int* at) {
  std::vector<int> actual(expected.size());
  CHECK(cudaMemcpy(actual.data(), at, expected.size() * sizeof(int), cudaMemcpyDeviceToHost));
  if (actual != expected) printf("%s is wrong\n", what), ++wrong;
}

int main(int argc, char** argv) {
  std::vector<int> in(N);
  for (int i = 0; i < N; ++i) in[i] = i * 7919 % 101 - 50;
  int *x, *out, *more;
  CHECK(cudaMalloc(&x, N * sizeof(int)));
  CHECK(cudaMalloc(&out, 7 * N * sizeof(int)));
  CHECK(cudaMalloc(&more, N * sizeof(int)));
  CHECK(cudaMemcpy(x, in.data(), N * sizeof(int), cudaMemcpyHostToDevice));
  const int threads = argc > 1 ? 64 : THREADS;
  collectives<<<1, threads>>>(x, out);
  CHECK(cudaDeviceSynchronize());

  std::vector<int> loaded = in, y(N), order(N);
  loaded.back() = 1000;
  std::partial_sum(loaded.begin(), loaded.end(), y.begin());
  const int total = y.back();
  expect("InclusiveSum", y, out);
  for (int i = 0, most = -5; i < N; ++i) y[i] = most, most = std::max(most, loaded[i]);
  expect("ExclusiveScan", y, out + N);
  for (int i = 0, sum = total; i < N; ++i) y[i] = sum, sum += loaded[i];
  expect("ExclusiveSum with a prefix", y, out + 2 * N);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return loaded[a] > loaded[b]; });
  for (int i = 0; i < N; ++i) y[i] = loaded[order[i]];
  expect("SortDescending", y, out + 3 * N);
  expect("values of SortDescending", order, out + 4 * N);
  expect("BlockedToStriped", y, out + 5 * N);
  expect("Reduce", {total, *std::min_element(in.begin(), in.begin() + 50), 2 * total}, out + 6 * N);
  expect("WarpReduce", {28, 92, 156}, out + 6 * N + 3);
  expect("WarpScan", {1457, 1520}, out + 6 * N + 40);

  twice([&](void* room, size_t& bytes) { return cub::DeviceReduce::Sum(room, bytes, x, out, N); });
  twice([&](void* r, size_t& b) { return cub::DeviceReduce::Max(r, b, x, out + 1, N); });
  expect("DeviceReduce", {std::accumulate(in.begin(), in.end(), 0), 50}, out);
  twice([&](void* r, size_t& b) { return cub::DeviceScan::InclusiveSum(r, b, x, out, N); });
  std::partial_sum(in.begin(), in.end(), y.begin());
  expect("DeviceScan", y, out);
  twice(
      [&](void* r, size_t& b) { return cub::DeviceSelect::If(r, b, x, out + 1, out, N, Even()); });
  y.assign(1, 0);
  std::copy_if(in.begin(), in.end(), std::back_inserter(y), Even());
  y[0] = y.size() - 1;
  expect("DeviceSelect", y, out);
  cub::DoubleBuffer<int> keys(x, more);
  twice([&](void* r, size_t& b) { return cub::DeviceRadixSort::SortKeys(r, b, keys, N); });
  std::sort(in.begin(), in.end());
  expect("DeviceRadixSort", in, keys.Current());
  twice([&](void* r, size_t& b) {
    return cub::DeviceRunLengthEncode::Encode(r, b, keys.Current(), out + 1, out + N, out, N);
  });
  y.assign(in.begin(), in.end());
  y.erase(std::unique(y.begin(), y.end()), y.end());
  y.insert(y.begin(), y.size());
  expect("DeviceRunLengthEncode", y, out);
  twice([&](void* r, size_t& b) {
    return cub::DeviceHistogram::HistogramEven(r, b, x, out, 3, -50, 50, N);
  });
  const int negative = std::count_if(in.begin(), in.end(), [](int i) { return i < 0; });
  const int most = std::count(in.begin(), in.end(), 50);
  expect("DeviceHistogram", {negative, N - negative - most}, out);
  printf("%d wrong\n", wrong);
}

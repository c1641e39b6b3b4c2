// Day 88: what the rungs have in common: the shards of the ranks that this GPU plays
#pragma once

#include "days/day88/products.cuh"

#include <map>

// A second stream of this host thread and GPU. Its blocks go before those of a product that have
// not begun.
struct Side {
  cudaStream_t stream;
  cudaEvent_t begun, done;

  Side() {
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1), "stream");
    check_cuda(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming), "event");
    check_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "event");
  }

  // Its next work waits for the work that `current` has got so far; or the other way round.
  void follow(cudaStream_t current) const { after(begun, current, stream); }
  void join(cudaStream_t current) const { after(done, stream, current); }

 private:
  static void after(cudaEvent_t event, cudaStream_t first, cudaStream_t second) {
    check_cuda(cudaEventRecord(event, first), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(second, event, 0), "cudaStreamWaitEvent");
  }
};

inline const Side& side_of(const Tensor& on) {
  thread_local std::map<int, Side> known;
  return known[device_index(on)];
}

struct Shards {
  Tensor x;
  Tensors w1, w2;  // of the ranks that are played
  Exchange e;
  int64_t blocks;  // of the sums, per rank, where they share the GPU with a product

  int played() const { return static_cast<int>(w1.size()); }
  int64_t hidden_size() const { return w1[0].size(0); }

  // gelu(x · W1_rᵀ) of each rank. All columns of a rank's part: no communication.
  template <typename T>
  Tensors hidden() const {
    Tensors found;
    for (const Tensor& w : w1) {
      found.push_back(allocate(x, {x.size(0), hidden_size()}));
      launch_product(x, data<T>(x), data<T>(w), x.size(0), hidden_size(), x.size(1), 0,
                     store_to<true>(mutable_data<T>(found.back()), x.size(0), hidden_size()));
    }
    return found;
  }

  // Rows [begin, begin + rows) of this rank's part of the sum; i: of the ranks that are played.
  template <typename T, typename Epilogue>
  void multiply(const Tensors& hidden, int i, int64_t begin, int64_t rows, int64_t spare,
                const Epilogue& epilogue) const {
    const int64_t H = hidden_size();
    launch_product(x, data<T>(hidden[i]) + begin * H, data<T>(w2[i]), rows, x.size(1), H, spare,
                   epilogue);
  }
};

// ---------------------------------------------------------------------------------------------
// Arguments.

inline void check_shard(const Tensor& x, const check& w1, const check& w2, const Tensor& up,
                        const Tensor& down) {
  w1.on_gpu().rank(2).contiguous().same_device(x, "x");
  w2.on_gpu().rank(2).contiguous().same_device(x, "x");
  const bool fit = up.size(1) == x.size(1) && down.size(0) == x.size(1) &&
                   down.size(1) == up.size(0) && up.scalar_type() == x.scalar_type() &&
                   down.scalar_type() == x.scalar_type();
  STD_TORCH_CHECK(
      fit, "x, w1, w2: expected (rows, C), (H / N, C) and (C, H / N) of one dtype, got ",
      shape_of(x), ", ", shape_of(up), " and ", shape_of(down), " of ", name_of(x.scalar_type()),
      ", ", name_of(up.scalar_type()), " and ", name_of(down.scalar_type()));
}

inline Tiles tiles_of(const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::BFloat16, ScalarType::Half}).rank(2).contiguous();
  STD_TORCH_CHECK(x.size(0) < INT32_MAX - 256 && x.size(1) < INT32_MAX - 256 &&
                      x.numel() / (TILE / 4) < INT32_MAX / MOST_RANKS,
                  "x: too many rows or columns, ", shape_of(x));
  return Tiles(x.size(0), x.size(1));
}

// blocks: of the sums, per rank; at most half of the multiprocessors, so that a product which the
// other ranks wait for has the other half.
inline void check_all(const Shards& s, int64_t timeout_ms) {
  const int64_t C = s.x.size(1), most = std::min(MOST_BLOCKS, multiprocessor_count(s.x) / 2);
  STD_TORCH_CHECK(s.blocks >= 1 && s.blocks <= most, "blocks: expected 1 to ", most, ", got ",
                  s.blocks);
  STD_TORCH_CHECK(timeout_ms >= 1 && timeout_ms <= 1'000'000'000,
                  "timeout_ms: expected 1 to 1000000000, got ", timeout_ms);
  if (s.x.numel() == 0) return;
  require_wgmma();
  require_shared_memory(SHARED<ShardTile<__half>, STAGES>, "four pairs of tiles");
  STD_TORCH_CHECK(C % 8 == 0, "x: expected rows of a multiple of 8 elements, as TMA needs, got ",
                  C);
  STD_TORCH_CHECK(s.hidden_size() % 8 == 0 && s.hidden_size() > 0,
                  "w1: expected a multiple of 8 rows, as TMA needs, got ", s.hidden_size());
  bool aligned = is_aligned(s.x, 16);
  for (const Tensor& w : s.w1) aligned = aligned && is_aligned(w, 16);
  for (const Tensor& w : s.w2) aligned = aligned && is_aligned(w, 16);
  for (int r = 0; r < s.e.ranks; ++r) {
    aligned = aligned && reinterpret_cast<uintptr_t>(s.e.buffers[r]) % 16 == 0;
  }
  STD_TORCH_CHECK(aligned, "x, w1, w2, outs: TMA needs addresses that are multiples of 16");
}

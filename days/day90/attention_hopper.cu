// Day 90: causal attention of packed rows by TMA and wgmma
//
//   qkv (B, S, 3C) holds q, k and v of all heads side by side, as one product leaves them; o (B, S,
//   C) holds the heads side by side again, as the next product reads them; lse (B, H, S) in fp32.
//
// Day 75 explains every step, and rows.cuh is its header: this is its last rung. New is where a
// head is. Day 75's tensor maps have a plane per head. Here a plane is a sequence, and a head is
// some of its columns: a box of 64 columns begins at the head's first one, and rows beyond S are
// beyond the plane. So nothing has to move the heads apart before, or together afterwards.

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day75/rows.cuh"              // taught in day 75
#include "days/day90/parts.cuh"

#include <algorithm>
#include <cmath>

namespace block {

struct Barriers {
  uint64_t q_full[CONSUMERS], q_empty[CONSUMERS];  // of each consumer's rows
  uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  int tile[CONSUMERS];  // which one q_full announces; behind the last one there is no more work
};

constexpr int TURN = 1 + CONSUMERS;  // named barrier TURN + c: it is consumer c's turn

// A number that all lanes have, so that what follows from it is computed once per warp.
__device__ __forceinline__ int of_warp(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}

// H heads of D columns in a sequence's rows.
struct Packed {
  int H, D;

  // The first column of a head in o, and in the q of qkv; those of k and v are C and 2C further.
  __device__ __forceinline__ int column(int head) const { return head % H * D; }
  __device__ __forceinline__ int sequence(int head) const { return head / H; }
  __device__ __forceinline__ int columns() const { return H * D; }
};

template <typename P>
struct Roles {
  const Arguments& n;
  const Packed packed;
  Barriers& at;
  char* memory;

  __device__ __forceinline__ char* q_tile(int consumer) const {
    return memory + consumer * P::Q_BYTES;
  }
  __device__ __forceinline__ char* k_tile(int i) const {
    return memory + CONSUMERS * P::Q_BYTES + i % STAGES * P::TILE_BYTES;
  }
  __device__ __forceinline__ char* v_tile(int i) const {
    return k_tile(i) + STAGES * P::TILE_BYTES;
  }

  // -------------------------------------------------------------------------------------------
  // The producer, one thread. Tiles of k and v are counted over all tiles of rows: the i-th goes to
  // stage i % STAGES, for the i / STAGES-th time.

  // Loads BOX_ROWS rows from `row` on into `to`, 64 columns at a time. part: 0 for q, 1 k, 2 v.
  template <int BOX_ROWS>
  __device__ __forceinline__ void load(char* to, const TensorMap& map, int row, int head, int part,
                                       uint64_t* full) const {
    ptx::mbarrier_arrive_expect_bytes(full, BOX_ROWS * P::D * 2);
    const int column = part * packed.columns() + packed.column(head);
#pragma unroll
    for (int box = 0; box < P::D / 64; ++box) {
      ptx::load_tensor(to + box * BOX_ROWS * ROW, map,
                       {column + box * 64, row, packed.sequence(head)}, full);
    }
  }

  // The round-th tile of rows, for both consumers; if there is none, they learn that.
  __device__ __forceinline__ void announce(const TensorMap& q, int index, const Work& w,
                                           int round) const {
    for (int c = 0; c < CONSUMERS; ++c) {
      ptx::mbarrier_wait(&at.q_empty[c], 1 - round % 2);  // its products have read q
      at.tile[c] = index;
      if (index < n.count) {
        load<ROWS>(q_tile(c), q, w.i0 + c * ROWS, w.head, 0, &at.q_full[c]);
      } else {
        ptx::mbarrier_arrive(&at.q_full[c]);
      }
    }
  }

  __device__ __forceinline__ void produce(const TensorMap& q, const TensorMap& kv) const {
    int round = 0, before = 0;
    for (int index = blockIdx.x; index < n.count; ++round) {
      // A ticket is requested here and needed at the end: nothing waits for its latency.
      const int next = gridDim.x + atomicAdd(n.tickets, 1);
      const Work w = work_at<P::BN>(n, index);
      for (int j = 0; j <= w.steps; ++j) {  // in the order of use: k₀, q, k₁, v₀, k₂, v₁ …
        if (j < w.steps) {
          const int i = before + j, s = i % STAGES;
          ptx::mbarrier_wait(&at.k_empty[s], 1 - i / STAGES % 2);
          load<P::BN>(k_tile(i), kv, (w.steps - 1 - j) * P::BN, w.head, 1, &at.k_full[s]);
        }
        if (j == 0) {
          announce(q, index, w, round);
        } else {
          const int i = before + j - 1, s = i % STAGES;
          ptx::mbarrier_wait(&at.v_empty[s], 1 - i / STAGES % 2);
          load<P::BN>(v_tile(i), kv, (w.steps - j) * P::BN, w.head, 2, &at.v_full[s]);
        }
      }
      before += w.steps;
      index = next;
    }
    announce(q, n.count, Work{}, round);
  }

  // -------------------------------------------------------------------------------------------
  // A consumer. Keys come from the last to the first: the diagonal is in the first step.

  // This warp's products have read the tile, or q, that `empty` guards.
  __device__ __forceinline__ void release(uint64_t* empty) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
  }
  __device__ __forceinline__ void keys_read(const Work& w, int c, int before, int j) const {
    release(&at.k_empty[(before + j) % STAGES]);
    if (j == w.steps - 1) release(&at.q_empty[c]);
  }
  __device__ __forceinline__ void wait_for(uint64_t* full, int i) const {
    ptx::mbarrier_wait(&full[i % STAGES], i / STAGES % 2);
  }

  // The scores of step j become exponentials.
  __device__ __forceinline__ bool exponentials(Rows<P>& r, const Work& w, int c, int j,
                                               float (&rescale)[2]) const {
    const int i0 = w.i0 + c * ROWS, j0 = (w.steps - 1 - j) * P::BN;
    if (j0 + P::BN > n.T || j0 + P::BN - 1 > i0) mask(r, n, i0, j0);
    return softmax_step(r, n, rescale);
  }

  // The scores come first. While o += p · v of the step before still runs, they become
  // exponentials; only then is o needed.
  __device__ __forceinline__ void step(Rows<P>& r, const Work& w, int c, int before, int j) const {
    wait_for(at.k_full, before + j);
    ptx::barrier_sync(TURN + c, CONSUMERS * WARPGROUP);
    ptx::pin_registers(r.p);
    ptx::pin_registers(r.s);
    ptx::wgmma_fence(r.o);
    multiply_keys(r, q_tile(c), k_tile(before + j));
    ptx::wgmma_commit();
    multiply_values(r, v_tile(before + j - 1));
    ptx::wgmma_commit();
    ptx::barrier_arrive(TURN + 1 - c, CONSUMERS * WARPGROUP);
    ptx::wgmma_wait<1>(r.s);
    keys_read(w, c, before, j);
    float rescale[2];
    const bool grown = exponentials(r, w, c, j, rescale);
    wait_for(at.v_full, before + j);  // a loop, across which nvcc moves no wgmma_wait (day 75)
    ptx::wgmma_wait<0>(r.o);
    release(&at.v_empty[(before + j - 1) % STAGES]);
    if (grown) multiply_rows(r.o, rescale);
    round_scores(r);
  }

  // o, not yet divided by the sums, of the consumer's rows of tile w, whose first tile of keys is
  // the before-th. Every row sees a key, so there is a step.
  __device__ __forceinline__ void attend(Rows<P>& r, const Work& w, int c, int before) const {
    wait_for(at.k_full, before);
    ptx::wgmma_fence(r.s);
    multiply_keys(r, q_tile(c), k_tile(before));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(r.s);
    keys_read(w, c, before, 0);
    float rescale[2];
    exponentials(r, w, c, 0, rescale);  // o is 0
    round_scores(r);
    wait_for(at.v_full, before);
    for (int j = 1; j < w.steps; ++j) step(r, w, c, before, j);
    const int last = before + w.steps - 1;
    ptx::pin_registers(r.p);
    ptx::wgmma_fence(r.o);
    multiply_values(r, v_tile(last));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(r.o);
    release(&at.v_empty[last % STAGES]);
  }

  // o, divided by the sums, by TMA, which leaves out rows behind the last; and lse.
  __device__ __forceinline__ void store(Rows<P>& r, const Work& w, int c, const TensorMap& o,
                                        int& turn) const {
    const int thread = threadIdx.x % WARPGROUP, i0 = w.i0 + c * ROWS;
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = tiles::row_sum(r.sum[h]);
      inverse[h] = 1 / sum;
      const int row = i0 + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
      if (thread % 4 == 0 && row < n.S)
        n.lse[int64_t{w.head} * n.S + row] = (r.max[h] * n.scale_log2 + log2f(sum)) / LOG2_E;
    }
    multiply_rows(r.o, inverse);
    char* buffers = memory + P::TILES + c * P::BUFFERS * PART_BYTES;
#pragma unroll
    for (int part = 0; part < P::D / PART; ++part) {
      const int column = packed.column(w.head) + part * PART;
      store_part<typename P::T, P::BUFFERS>(
          &r.o[part * (PART / 2)], buffers, turn, 1 + c, [&](const char* from) {
            ptx::store_tensor(o, {column, i0, packed.sequence(w.head)}, from);
          });
    }
  }

  __device__ __forceinline__ void consume(const TensorMap& o) const {
    const int c = of_warp(threadIdx.x / WARPGROUP) - 1;
    if (c == 1) ptx::barrier_arrive(TURN, CONSUMERS * WARPGROUP);  // consumer 0 begins
    int before = 0, turn = 0;
    for (int round = 0;; ++round) {
      ptx::mbarrier_wait(&at.q_full[c], round % 2);
      const int index = of_warp(at.tile[c]);
      if (index >= n.count) break;
      const Work w = work_at<P::BN>(n, index);
      Rows<P> r{};
      r.max[0] = r.max[1] = -INFINITY;
      attend(r, w, c, before);
      before += w.steps;
      store(r, w, c, o, turn);
    }
    if (c == 0) ptx::barrier_sync(TURN, CONSUMERS * WARPGROUP);  // the turn left over
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();  // the memory may go
  }
};

template <typename P>
__global__ void __launch_bounds__(THREADS, 1)
    attend_packed_kernel(const __grid_constant__ Arguments n, const Packed packed,
                         const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap kv,
                         const __grid_constant__ TensorMap o) {
#if defined(CUDA_ON_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ Barriers at;
  if (threadIdx.x == 0) {
    for (int c = 0; c < CONSUMERS; ++c) {
      ptx::mbarrier_init(&at.q_full[c], 1);
      ptx::mbarrier_init(&at.q_empty[c], WARPGROUP / 32);
    }
    for (int s = 0; s < STAGES; ++s) {
      for (uint64_t* full : {&at.k_full[s], &at.v_full[s]}) ptx::mbarrier_init(full, 1);
      for (uint64_t* empty : {&at.k_empty[s], &at.v_empty[s]})
        ptx::mbarrier_init(empty, CONSUMERS * (WARPGROUP / 32));
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are there before any thread uses one
  const Roles<P> roles{n, packed, at, tile_memory()};
  if (threadIdx.x < WARPGROUP) {  // 65,536 registers: 128 · 24 + 256 · 240
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x == 0) roles.produce(q, kv);
  } else {
    ptx::setmaxnreg_inc<240>();
    roles.consume(o);
  }
#endif
}

// Boxes of 64 columns of (B, S, columns). What a box has beyond row S is not the next sequence.
template <typename T>
TensorMap sequences_map(const Tensor& t, int64_t columns, const Sizes& n, int64_t rows) {
  return ptx::make_tensor_map(
      data<T>(t), {.sizes = {columns, n.S, n.B}, .box = {64, rows, 1}, .swizzle = Swizzle::k128});
}

template <typename P>
void launch(const Tensor& qkv, const Tensor& o, const Sizes& n, const Arguments& arguments) {
  using T = typename P::T;
  require_shared_memory(P::SHARED, "the tiles of q, k and v");
  const auto kernel = attend_packed_kernel<P>;
  allow_shared(kernel, P::SHARED);
  const int grid = std::min(arguments.count, multiprocessor_count(qkv));
  const Packed packed{static_cast<int>(n.H), static_cast<int>(n.D)};
  kernel<<<static_cast<unsigned>(grid), THREADS, P::SHARED, current_stream(qkv)>>>(
      arguments, packed, sequences_map<T>(qkv, 3 * n.C, n, ROWS),
      sequences_map<T>(qkv, 3 * n.C, n, P::BN), sequences_map<T>(o, n.C, n, ROWS));
}

void attend_packed(const Tensor& qkv, const Tensor& o, const Tensor& lse, const Sizes& n) {
  const Tensor tickets = allocate_zeros(qkv, {1}, ScalarType::Int);
  Arguments of{};
  of.lse = mutable_data<float>(lse);
  of.tickets = mutable_data<int>(tickets);
  of.tiles = static_cast<int>(ceil_div<int64_t>(n.S, BM));
  of.count = static_cast<int>(grid_size(n.B * n.H * of.tiles, "x"));
  of.heads = static_cast<int>(n.B * n.H);
  of.S = of.T = static_cast<int>(n.S);
  of.causal = true;
  of.group = static_cast<int>(std::clamp<int64_t>(IN_L2 / (4 * n.S * n.D), 1, of.heads));
  of.scale_log2 = static_cast<float>(LOG2_E / std::sqrt(static_cast<double>(n.D)));
  of.slack = SLACK / of.scale_log2;
  const auto run = [&]<typename E>(E) {
    if (n.D == 64) return launch<Plan<E, 64, KEYS, PERSISTENT>>(qkv, o, n, of);
    launch<Plan<E, 128, KEYS, PERSISTENT>>(qkv, o, n, of);
  };
  qkv.scalar_type() == ScalarType::Half ? run(__half{}) : run(__nv_bfloat16{});
  check_launch("attend_packed");
}

}  // namespace block

// The kernel alone, for checks of it: o (B, S, C) and lse (B, H, S).
std::tuple<Tensor, Tensor> attention_alone(const Tensor& qkv, int64_t heads) {
  const block::Sizes n = block::check_packed(qkv, heads);
  const DeviceGuard guard(qkv);
  Tensor o = allocate(qkv, {n.B, n.S, n.C});
  Tensor lse = allocate(qkv, {n.B, n.H, n.S}, ScalarType::Float);
  if (o.numel() == 0) return {o, lse};
  require_wgmma();
  block::attend_packed(qkv, o, lse, n);
  return {o, lse};
}

RUNG(day90, attention_alone, "(Tensor qkv, int heads) -> (Tensor, Tensor)");

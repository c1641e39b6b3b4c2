// The kernel of all rungs of day 75: what a producer and two consumers do, and how they wait for
// one another.
#pragma once

#include "days/day75/rows.cuh"

// x, which is the same in all lanes. The shuffle makes that known to the compiler, which computes
// what depends on it, such as descriptors, once per warp, in uniform registers.
__device__ __forceinline__ int of_warp(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}

struct Barriers {
  uint64_t q_full[CONSUMERS], q_empty[CONSUMERS];  // of each consumer's rows
  uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  int tile[CONSUMERS];  // the tile that q_full announces; count or more: no more work
};

constexpr int TURN = 1 + CONSUMERS;  // named barrier TURN + c: it is consumer c's turn

template <typename P>
struct Roles {
  const Arguments& n;
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

  // Loads BOX_ROWS rows from `row` on into `to`, 64 columns at a time.
  template <int BOX_ROWS>
  __device__ __forceinline__ void load(char* to, const TensorMap& map, int row, int head,
                                       uint64_t* full) const {
    ptx::mbarrier_arrive_expect_bytes(full, BOX_ROWS * P::D * 2);
#pragma unroll
    for (int box = 0; box < P::D / 64; ++box)
      ptx::load_tensor(to + box * BOX_ROWS * ROW, map, {box * 64, row, head}, full);
  }

  // Loads q of the round-th tile of rows for both consumers, or signals that there is none.
  __device__ __forceinline__ void announce(const TensorMap& q, int index, const Work& w,
                                           int round) const {
    for (int c = 0; c < CONSUMERS; ++c) {
      ptx::mbarrier_wait(&at.q_empty[c], 1 - round % 2);  // its products have read q
      at.tile[c] = index;
      if (index < n.count) {
        load<ROWS>(q_tile(c), q, w.i0 + c * ROWS, w.head, &at.q_full[c]);
      } else {
        ptx::mbarrier_arrive(&at.q_full[c]);
      }
    }
  }

  __device__ __forceinline__ void produce(const TensorMap& q, const TensorMap& k,
                                          const TensorMap& v) const {
    int round = 0, before = 0;
    for (int index = blockIdx.x; index < n.count; ++round) {
      // A ticket is requested here and needed at the end: nothing waits for its latency.
      int next = n.count;
      if constexpr (P::R >= PERSISTENT) next = gridDim.x + atomicAdd(n.tickets, 1);
      const Work w = work_at<P::BN>(n, index);
      for (int j = 0; j <= w.steps; ++j) {  // in the order of use: k₀, q, k₁, v₀, k₂, v₁ …
        if (j < w.steps) {
          const int i = before + j, s = i % STAGES;
          ptx::mbarrier_wait(&at.k_empty[s], 1 - i / STAGES % 2);
          load<P::BN>(k_tile(i), k, (w.steps - 1 - j) * P::BN, w.head, &at.k_full[s]);
        }
        if (j == 0) {
          announce(q, index, w, round);
        } else {
          const int i = before + j - 1, s = i % STAGES;
          ptx::mbarrier_wait(&at.v_empty[s], 1 - i / STAGES % 2);
          load<P::BN>(v_tile(i), v, (w.steps - j) * P::BN, w.head, &at.v_full[s]);
        }
      }
      before += w.steps;
      index = next;
    }
    announce(q, n.count, Work{}, round);
  }

  // -------------------------------------------------------------------------------------------
  // A consumer. Keys come from the last to the first: those beyond the diagonal are in the first
  // steps, and the loop ends with tiles that need no mask.

  // This warp's products have read the tile, or q, that `empty` guards.
  __device__ __forceinline__ void release(uint64_t* empty) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
  }
  __device__ __forceinline__ void keys_read(const Work& w, int c, int before, int j) const {
    release(&at.k_empty[(before + j) % STAGES]);
    if (j == w.steps - 1) release(&at.q_empty[c]);
  }
  __device__ __forceinline__ void values_read(int i) const { release(&at.v_empty[i % STAGES]); }

  __device__ __forceinline__ void wait_for_keys(int i) const {
    ptx::mbarrier_wait(&at.k_full[i % STAGES], i / STAGES % 2);
  }
  __device__ __forceinline__ void wait_for_values(int i) const {
    ptx::mbarrier_wait(&at.v_full[i % STAGES], i / STAGES % 2);
  }

  // The scores of step j become exponentials. Steps at the end of the keys, or at the diagonal, are
  // masked.
  __device__ __forceinline__ bool exponentials(Rows<P>& r, const Work& w, int c, int j,
                                               float (&rescale)[2]) const {
    const int i0 = w.i0 + c * ROWS, j0 = (w.steps - 1 - j) * P::BN;
    if (j0 + P::BN > n.T || (n.causal && j0 + P::BN - 1 > i0 + n.ahead)) mask(r, n, i0, j0);
    return softmax_step(r, n, rescale);
  }

  // When a step begins, the values of the step before have arrived; when it ends, its own have.

  // v1, v2: both products, then the softmax. In v2 the other consumer's products run during it.
  __device__ __forceinline__ void step(Rows<P>& r, const Work& w, int c, int before, int j) const {
    wait_for_keys(before + j);
    if constexpr (P::R >= PING_PONG) ptx::barrier_sync(TURN + c, CONSUMERS * WARPGROUP);
    ptx::pin_registers(r.p);
    ptx::pin_registers(r.s);
    ptx::wgmma_fence(r.o);
    multiply_values(r, v_tile(before + j - 1));
    ptx::wgmma_commit();
    multiply_keys(r, q_tile(c), k_tile(before + j));
    ptx::wgmma_commit();
    if constexpr (P::R >= PING_PONG) ptx::barrier_arrive(TURN + 1 - c, CONSUMERS * WARPGROUP);
    ptx::wgmma_wait<1>(r.o);
    values_read(before + j - 1);
    ptx::wgmma_wait<0>(r.s);
    keys_read(w, c, before, j);
    float rescale[2];
    if (exponentials(r, w, c, j, rescale)) multiply_rows(r.o, rescale);
    round_scores(r);
    wait_for_values(before + j);
  }

  // v3: the scores come first. While o += p · v of the step before still runs, they become
  // exponentials; only then is o needed.
  __device__ __forceinline__ void step_pipelined(Rows<P>& r, const Work& w, int c, int before,
                                                 int j) const {
    wait_for_keys(before + j);
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
    // Needed by the next step only. It is a loop, and nvcc moves no wgmma_wait across a loop:
    // without it, the exponentials come after the wait.
    wait_for_values(before + j);
    ptx::wgmma_wait<0>(r.o);
    values_read(before + j - 1);
    if (grown) multiply_rows(r.o, rescale);
    round_scores(r);
  }

  // o, not yet divided by the sums, of the consumer's rows of tile w, whose first tile of keys is
  // the before-th.
  __device__ __forceinline__ void attend(Rows<P>& r, const Work& w, int c, int before) const {
    if (w.steps == 0) return release(&at.q_empty[c]);
    wait_for_keys(before);
    ptx::wgmma_fence(r.s);
    multiply_keys(r, q_tile(c), k_tile(before));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(r.s);
    keys_read(w, c, before, 0);
    float rescale[2];
    exponentials(r, w, c, 0, rescale);  // o is 0
    round_scores(r);
    wait_for_values(before);
    for (int j = 1; j < w.steps; ++j) {
      if constexpr (P::R >= PIPELINED) {
        step_pipelined(r, w, c, before, j);
      } else {
        step(r, w, c, before, j);
      }
    }
    const int last = before + w.steps - 1;
    ptx::pin_registers(r.p);
    ptx::wgmma_fence(r.o);
    multiply_values(r, v_tile(last));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(r.o);
    values_read(last);
  }

  // Stores o, divided by the sums, by TMA, which leaves out rows beyond the last; and lse.
  __device__ __forceinline__ void store(Rows<P>& r, const Work& w, int c, const TensorMap& o,
                                        int& turn) const {
    const int thread = threadIdx.x % WARPGROUP, i0 = w.i0 + c * ROWS;
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = tiles::row_sum(r.sum[h]);
      inverse[h] = sum == 0 ? 0 : 1 / sum;  // 0: the row has seen no key
      const int row = i0 + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
      if (thread % 4 == 0 && row < n.S)
        n.lse[int64_t{w.head} * n.S + row] = (r.max[h] * n.scale_log2 + log2f(sum)) / LOG2_E;
    }
    multiply_rows(r.o, inverse);
    char* buffers = memory + P::TILES + c * P::BUFFERS * PART_BYTES;
#pragma unroll
    for (int part = 0; part < P::D / PART; ++part) {
      store_part<typename P::T, P::BUFFERS>(
          &r.o[part * (PART / 2)], buffers, turn, 1 + c, [&](const char* from) {
            const int col = part * PART;
            if constexpr (P::IN_ROWS) {
              ptx::store_tensor(o, {w.head % n.H * P::D + col, i0, w.head / n.H}, from);
            } else {
              ptx::store_tensor(o, {col, i0, w.head}, from);
            }
          });
    }
  }

  __device__ __forceinline__ void consume(const TensorMap& o) const {
    const int c = of_warp(threadIdx.x / WARPGROUP) - 1;
    constexpr bool TURNS = P::R >= PING_PONG;
    if (TURNS && c == 1) ptx::barrier_arrive(TURN, CONSUMERS * WARPGROUP);  // consumer 0 begins
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
    if (TURNS && c == 0) ptx::barrier_sync(TURN, CONSUMERS * WARPGROUP);  // the turn left over
    if (threadIdx.x % WARPGROUP == 0) ptx::bulk_wait_read<0>();           // the memory may go
  }
};

template <typename P>
__global__ void __launch_bounds__(THREADS, 1)
    attention_kernel(const __grid_constant__ Arguments n, const __grid_constant__ TensorMap q,
                     const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
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
  __syncthreads();  // the mbarriers are initialised before any thread uses one
  const Roles<P> roles{n, at, tile_memory()};
  if (threadIdx.x < WARPGROUP) {  // 128 · 24 + 256 · 240 = 64,512 registers
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x == 0) roles.produce(q, k, v);
  } else {
    ptx::setmaxnreg_inc<240>();
    roles.consume(o);
  }
#endif
}

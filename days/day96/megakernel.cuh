// Day 96: v4's kernel, with a choice of the next token that its caller gives: here the largest
// logit, on day 100 also one that is drawn.
#pragma once

#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "days/day83/elements.cuh"          // gelu: taught in day 83
#include "days/day96/arguments.cuh"
#include "days/day96/worker.cuh"

// A launch of blocks that wait for each other: refused unless all are resident at once.
template <typename... P, typename... A>
void launch_together(void (*kernel)(P...), unsigned blocks, size_t bytes, cudaStream_t stream,
                     A... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks), config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = bytes, config.stream = stream;
  config.attrs = &attribute, config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

// One block per multiprocessor, but none without QUOTA rows of the smallest matrix.
constexpr int QUOTA = 4;

inline int64_t most_blocks(const Tensor& wte) {
  return std::min<int64_t>(multiprocessor_count(wte), ceil_div<int64_t>(wte.size(1), QUOTA));
}

constexpr int SPLITS = 4;  // of a head's positions, each the task of one block

struct Mail {
  Word *qkv, *middle, *hidden, *stream;  // (3C), (C), (4C), (C); x is middle, then stream
  Word *parts, *exchanged;               // (H, SPLITS, D + 1), (2, blocks, EXCHANGED)
  int length;                            // positions per split
};

// One element of attention's output, from those of the splits, which are divided by their sums of
// exponentials; log_sum is the log2 of such a sum, -inf where there is no split.
__device__ inline float merge_splits(const float (&value)[SPLITS], const float (&log_sum)[SPLITS]) {
  float most = -INFINITY, sum = 0, result = 0;
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) most = fmaxf(most, log_sum[s]);
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) {
    const float weight = exp2f(log_sum[s] - most);
    sum += weight;
    result += weight * value[s];
  }
  return result / sum;
}

// Every block sends up to EXCHANGED words to all blocks. Two sets of words take turns: a block that
// writes a set again has received the other one from all blocks, and they had received this one
// before they sent that. For this, a barrier of the block's threads stands between two of its
// exchanges.
constexpr int EXCHANGED = 3;

struct Exchange {
  Word* exchanged;
  unsigned turn = 0;

  // Thread 0's `mine` is sent. Calls take(words of a block) from one thread per block.
  template <int N, typename Take>
  __device__ void operator()(const unsigned (&mine)[N], Take&& take) {
    static_assert(N <= EXCHANGED);
    Word* const set = exchanged + turn % 2 * gridDim.x * EXCHANGED;
    ++turn;  // the tag: the words begin as 0
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) send(set + blockIdx.x * EXCHANGED + i, turn, mine[i]);
    }
    for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS) {
      unsigned words[N];
      receive<N>(
          turn, [&](int i) { return set + b * EXCHANGED + i; },
          [&](int i, unsigned bits) { words[i] = bits; });
      take(words);
    }
  }
};

// What chooses the next token: the largest logit. `best` is that of this thread's logits.
struct Greedy {
  using Split = Run;
  struct Shared {
    Best of_warps[2][WARPS];
  };

  __device__ int64_t next(const Model&, int, const Share&, Best best, Exchange& exchange,
                          Shared& shared) const {
    best = block_best(best, shared.of_warps[0]);
    const unsigned mine[] = {__float_as_uint(best.logit), static_cast<unsigned>(best.index)};
    exchange(mine, [&](const unsigned (&words)[2]) {
      best.consider({__uint_as_float(words[0]), static_cast<int>(words[1])});
    });
    return block_best(best, shared.of_warps[1]).index;
  }
};

template <int PER_LANE, int STAGES, typename Chooser>
__global__ void __launch_bounds__(THREADS, 1)
    stream_kernel(const __grid_constant__ Model m, const Mail mail, const Chooser chooser) {
  extern __shared__ __align__(128) uint4 dynamic_shared[];
  __shared__ AttendShared attend_shared;
  __shared__ typename Chooser::Shared chooser_shared;
  __shared__ Share shares[MATRICES];
  using Split = typename Chooser::Split;         // of positions, in attention
  constexpr int SLOTS = STAGES * PER_LANE * 32;  // per warp
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tid = threadIdx.x;
  if (tid < MATRICES) shares[tid] = share_of(m.rows(tid), blockIdx.x, gridDim.x);
  __syncthreads();  // the shares are written
  Raw* const slots = reinterpret_cast<Raw*>(dynamic_shared);
  float* const vector = reinterpret_cast<float*>(slots + WARPS * SLOTS);
  Worker<PER_LANE, STAGES> w{
      m, shares, vector, vector + 4 * m.C, {slots + warp * SLOTS + lane, {warp}}, warp};
  constexpr int BATCH = decltype(w)::BATCH;
  w.ring.start(m, shares);
  Exchange exchange{mail.exchanged};

  int64_t id = *m.token;
  for (int step = 0; step < m.steps; ++step) {
    const int position = m.first + step;
    // Tags of a layer, which no earlier layer or token had: 1 and up, since the words begin as 0.
    const unsigned first_tag = 1 + step * (m.L + 1u);
    unsigned tag = first_tag;
    const auto from_stream = [&] {  // x at the beginning of a layer
      if (tag != first_tag) return w.template gather<BATCH>(mail.stream, m.C, tag - 1);
      for (int c = tid; c < m.C; c += THREADS)
        vector[place_of(c, m.C)] = m.embedding(id, position, c);
    };
    // Element row of x, which only this thread changes.
    float residual =
        tid < shares[OUT].rows ? m.embedding(id, position, shares[OUT].first_row + tid) : 0;
    for (int layer = 0; layer < m.L; ++layer, ++tag) {
      w.template phase<QKV>(layer, QKV_BIAS, from_stream,
                            [&](int row, float y) { send(mail.qkv + row, tag, y); });

      for (int task = blockIdx.x; task < m.H * SPLITS; task += gridDim.x) {
        const int head = task / SPLITS;
        const Split split{task % SPLITS, mail.length};
        if (!split.has_any(position)) continue;
        Word* const part = mail.parts + task * (m.D + 1);
        const auto fetch = [&](int which, int j) {
          float value = 0;
          const Word* const from = mail.qkv + which * m.C + head * m.D + j;
          receive<1>(
              tag, [&](int) { return from; },
              [&](int, unsigned bits) { value = __uint_as_float(bits); });
          return which == 0 ? value : append(m, layer, which, head, position, j, value, true);
        };
        attend(m, attend_shared, layer, head, split, position, fetch,
               [&](int j, float value, float log_sum) {
                 send(part + j, tag, value);
                 if (j == 0) send(part + m.D, tag, log_sum);
               });
      }

      const auto from_parts = [&] {
        for (int c = tid; c < m.C; c += THREADS) {
          const Word* const parts = mail.parts + c / m.D * SPLITS * (m.D + 1);
          float value[SPLITS] = {}, log_sum[SPLITS];
#pragma unroll
          for (int s = 0; s < SPLITS; ++s) log_sum[s] = -INFINITY;
          const auto at = [&](int i) {
            const int j = i % 2 == 0 ? c % m.D : m.D;
            const Split split{i / 2, mail.length};
            return split.has_any(position) ? parts + i / 2 * (m.D + 1) + j : nullptr;
          };
          receive<2 * SPLITS>(tag, at, [&](int i, unsigned bits) {
            (i % 2 == 0 ? value : log_sum)[i / 2] = __uint_as_float(bits);
          });
          vector[place_of(c, m.C)] = merge_splits(value, log_sum);
        }
      };
      w.template phase<PROJ>(layer, PROJ_BIAS, from_parts, [&](int row, float y) {
        send(mail.middle + row, tag, residual += y);
      });
      w.template phase<FC>(
          layer, FC_BIAS, [&] { w.template gather<BATCH>(mail.middle, m.C, tag); },
          [&](int row, float y) { send(mail.hidden + row, tag, gelu<float>(y)); });
      w.template phase<OUT>(
          layer, OUT_BIAS,
          [&] { w.template gather<std::min(4 * BATCH, 8)>(mail.hidden, 4 * m.C, tag); },
          [&](int row, float y) { send(mail.stream + row, tag, residual += y); });
    }

    Best best;
    float x[PER_LANE][PER_CHUNK];
    w.template load_x<HEAD>(x, 0, from_stream);
    w.multiply_units(x, shares[HEAD].rows, [&](int unit, float logit) {
      const int word = shares[HEAD].first_row + unit;
      m.logits[int64_t{step} * m.V + word] = logit;
      best.consider({logit, word});
    });
    w.refill();
    id = chooser.next(m, step, shares[HEAD], best, exchange, chooser_shared);
    if (blockIdx.x == 0 && tid == 0) m.tokens[step] = id;
  }
}

// Calls f with chunks per lane and stages: ten units of 768 channels, 180 KB in all, or fewer on
// cards with less shared memory.
template <typename F>
void dispatch_ring(const Tensor& wte, F&& f) {
  const int64_t C = wte.size(1);
  const bool is_large = shared_limit(wte) >= 220 << 10;
  const auto with = [&](auto per_lane) {
    if (is_large) return f(per_lane, std::integral_constant<int, std::min(16, 30 / per_lane)>{});
    f(per_lane, std::integral_constant<int, std::max(2, 8 / per_lane)>{});
  };
  if (C <= 256) return with(std::integral_constant<int, 1>{});
  if (C <= 768) return with(std::integral_constant<int, 3>{});
  with(std::integral_constant<int, 8>{});
}

// Decodes m.steps tokens, of which `chooser` chooses each after the first.
template <typename Chooser>
void stream(const Tensor& wte, const Model& m, const Chooser& chooser) {
  require_capability(8, 0, "cp.async");
  dispatch_ring(wte, [&](auto per_lane, auto stages) {
    const auto kernel = stream_kernel<per_lane, stages, Chooser>;
    const int blocks = static_cast<int>(most_blocks(wte));
    STD_TORCH_CHECK(4 * m.C <= blocks * THREADS, "this card lacks multiprocessors for ", m.C,
                    " channels: ", blocks, " blocks have a thread for each of ", blocks * THREADS,
                    " rows");
    const int64_t bytes = int64_t{WARPS} * stages * per_lane * 512 +
                          int64_t{4} * (m.C + ceil_div(m.C, blocks)) * sizeof(float);
    require_shared_memory(bytes + sizeof(AttendShared) + 2048, "the ring of weights");
    allow_shared(kernel, bytes);
    // C words of each of 3 + 1 + 4 + 1, the parts, and two sets of those that blocks exchange.
    const int64_t parts = int64_t{m.H} * SPLITS * (m.D + 1),
                  words = 9 * m.C + parts + 2 * EXCHANGED * blocks;
    Tensor memory = allocate(wte, {words}, ScalarType::Long);
    check_cuda(
        cudaMemsetAsync(memory.mutable_data_ptr(), 0, words * sizeof(Word), current_stream(wte)),
        "cudaMemsetAsync");
    Word* const at = static_cast<Word*>(memory.mutable_data_ptr());
    const int length = 16 * ceil_div(ceil_div(m.first + m.steps, SPLITS), 16);
    const Mail mail{at,           at + 3 * m.C,         at + 4 * m.C, at + 8 * m.C,
                    at + 9 * m.C, at + 9 * m.C + parts, length};
    launch_together(kernel, blocks, bytes, current_stream(wte), m, mail, chooser);
  });
}

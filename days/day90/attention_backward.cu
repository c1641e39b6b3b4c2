// Day 90: the backward pass of attention for packed rows: day 27's kernel, which wants each head as
// a matrix of its own, between two kernels that move the heads apart and together again
//
// Bytes per element of x beside those of attention: 10 read and 10 written to move q, k, v, o and
// go apart; 8 (gq in fp32, gk, gv) read and 6 written to pack the gradients again.

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/chunk.cuh"            // taught in days 35 and 42
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "days/day27/keys_stay.cuh"         // taught in day 27
#include "days/day30/row_sums.cuh"          // taught in day 30
#include "days/day90/parts.cuh"

namespace block {

constexpr int PIECE_THREADS = 128;  // of 16 bytes, 8 elements
constexpr int MOVED = 5;            // q, k, v, o and go

// Row r of a matrix with `pitch` chunks per row, from chunk `first` on, to (B, H, S, D) at `to`.
struct Matrices {
  const uint4* from[MOVED];
  int64_t pitch[MOVED], first[MOVED];
  uint4* to[MOVED];
  int S, H, pieces;  // pieces: chunks per row of a head, 8 or 16

  // Where chunk c of row `row` is in (B, H, S, D).
  __device__ int64_t place(int row, int c) const {
    return (int64_t{row / S * H + c / pieces} * S + row % S) * pieces + c % pieces;
  }
};

// One block per row.
__global__ void __launch_bounds__(PIECE_THREADS) heads_apart_kernel(const Matrices m) {
  const int row = static_cast<int>(blockIdx.x);
  for (int c = threadIdx.x; c < m.H * m.pieces; c += PIECE_THREADS) {
    uint4 words[MOVED];
#pragma unroll
    for (int t = 0; t < MOVED; ++t)
      words[t] = m.from[t][int64_t{row} * m.pitch[t] + m.first[t] + c];
    const int64_t to = m.place(row, c);
#pragma unroll
    for (int t = 0; t < MOVED; ++t) m.to[t][to] = words[t];
  }
}

// gq as day 27 accumulates it: fragments of 16 rows × 8 columns, four elements per lane.
struct Accumulated {
  const float* sums;
  int groups;  // of 16 rows, per head
  float scale;

  // Columns [8c, 8c + 8) of row s of a head: two of each of four lanes.
  template <int D>
  __device__ void row(int64_t head, int s, int c, float (&of)[8]) const {
    const int64_t fragment = (head * groups + s / 16) * (D / 8) + c;
    const float* from = sums + (fragment * 32 + s % 8 * 4) * 4 + s / 8 % 2 * 2;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 two = *reinterpret_cast<const float2*>(from + 4 * t);
      of[2 * t] = two.x * scale, of[2 * t + 1] = two.y * scale;
    }
  }
};

// gqkv (rows, 3C), and the sums of its columns over the rows of a block: partial (blocks, 3C).
// Thread x of a block has the same chunk of gq, gk and gv in all of the block's rows.
template <typename T, int D>
__global__ void __launch_bounds__(PIECE_THREADS)
    heads_together_kernel(const Accumulated gq, const Matrices m, Chunk<T, 8>* __restrict__ gqkv,
                          float* __restrict__ partial, int rows) {
  const int chunks = m.H * m.pieces, c = blockIdx.y * PIECE_THREADS + threadIdx.x;
  if (c >= chunks) return;
  float sums[3][8] = {};
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t at = m.place(row, c);
    const auto* const gk = reinterpret_cast<const Chunk<T, 8>*>(m.from[1]);
    const auto* const gv = reinterpret_cast<const Chunk<T, 8>*>(m.from[2]);
    const Chunk<float, 8> parts[] = {{}, widened(load_raw(gk + at)), widened(load_raw(gv + at))};
    float of[3][8];
    gq.template row<D>(row / m.S * m.H + c / m.pieces, row % m.S, c % m.pieces, of[0]);
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      Chunk<T, 8> rounded;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (part > 0) of[part][i] = parts[part].at[i];
        rounded.at[i] = static_cast<T>(of[part][i]);
        sums[part][i] += of[part][i];
      }
      gqkv[(int64_t{row} * 3 + part) * chunks + c] = rounded;
    }
  }
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    auto* const to =
        reinterpret_cast<float4*>(partial) + ((int64_t{blockIdx.x} * 3 + part) * chunks + c) * 2;
    const float (&of)[8] = sums[part];
    to[0] = make_float4(of[0], of[1], of[2], of[3]);
    to[1] = make_float4(of[4], of[5], of[6], of[7]);
  }
}

std::tuple<Tensor, Tensor> attend_backward(const Tensor& go, const Tensor& qkv, const Tensor& o,
                                           const Tensor& lse, const Sizes& n) {
  require_capability(8, 0, "mma of 16×8×16");
  const int64_t rows = n.rows(), heads = n.B * n.H, pieces = n.D / 8, chunks = n.C / 8;
  const Tensor apart = allocate(qkv, {MOVED, n.B, n.H, n.S, n.D});
  const Tensor gk = allocate(qkv, {n.B, n.H, n.S, n.D});
  const Tensor gv = allocate_like(gk);
  Matrices m{};
  m.S = static_cast<int>(n.S), m.H = static_cast<int>(n.H), m.pieces = static_cast<int>(pieces);
  const Tensor* const from[] = {&qkv, &qkv, &qkv, &o, &go};
  for (int t = 0; t < MOVED; ++t) {
    m.from[t] = static_cast<const uint4*>(from[t]->const_data_ptr());
    m.pitch[t] = t < 3 ? 3 * chunks : chunks, m.first[t] = t < 3 ? t * chunks : 0;
    m.to[t] = static_cast<uint4*>(apart.mutable_data_ptr()) + t * rows * chunks;
  }
  const cudaStream_t stream = current_stream(qkv);
  heads_apart_kernel<<<grid_size(rows, "x"), PIECE_THREADS, 0, stream>>>(m);

  Tensor gqkv = allocate(qkv, {rows, 3 * n.C});
  Tensor sum = allocate(qkv, {3 * n.C});
  const int64_t blocks = std::min<int64_t>(rows, 4 * multiprocessor_count(qkv));
  const Tensor partial = allocate(qkv, {blocks, 3 * n.C}, ScalarType::Float);
  const Tensor glse = allocate_zeros(lse, {heads * n.S});
  const Tensor numbers = allocate(lse, {heads * n.S, 2});
  const int64_t tiles = ceil_div<int64_t>(n.S, BM);
  const Tensor gq = allocate_zeros(lse, {heads * tiles * BM * n.D});
  const auto run = [&]<typename T, int D>(T, std::integral_constant<int, D>) {
    const auto part = [&](int t) { return reinterpret_cast<T*>(m.to[t]); };
    auto* of_rows = static_cast<RowNumbers*>(numbers.mutable_data_ptr());
    const Given<T> in{
        part(4), part(0), part(1), part(2), of_rows, m.S, m.S, 0, 1 / std::sqrt(float{D})};
    const unsigned grid = grid_size(ceil_div<int64_t>(rows * chunks, DELTA_BLOCK), "x");
    attention_row_numbers_kernel<T, D><<<grid, DELTA_BLOCK, 0, stream>>>(
        in.go, part(3), data<float>(lse), data<float>(glse), of_rows, heads * n.S);
    launch_keys_stay<true, T, D>(qkv, in, heads, 1, mutable_data<float>(gq), Gradients{gk, gk, gv});
    m.from[1] = static_cast<const uint4*>(gk.const_data_ptr());
    m.from[2] = static_cast<const uint4*>(gv.const_data_ptr());
    const dim3 together(static_cast<unsigned>(blocks),
                        static_cast<unsigned>(ceil_div<int64_t>(chunks, PIECE_THREADS)));
    heads_together_kernel<T, D><<<together, PIECE_THREADS, 0, stream>>>(
        Accumulated{data<float>(gq), static_cast<int>(tiles * (BM / 16)), in.scale}, m,
        mutable_data<Chunk<T, 8>>(gqkv), mutable_data<float>(partial), static_cast<int>(rows));
  };
  const auto with = [&](auto zero) {
    if (n.D == 64) return run(zero, std::integral_constant<int, 64>{});
    run(zero, std::integral_constant<int, 128>{});
  };
  qkv.scalar_type() == ScalarType::Half ? with(__half{}) : with(__nv_bfloat16{});
  check_launch("attend_backward");
  sum_chunks(partial, sum);
  return {gqkv, sum};
}

}  // namespace block

// The above alone, for checks of it. go, o: (B, S, C), lse: (B, H, S).
std::tuple<Tensor, Tensor> attention_backward_alone(const Tensor& go, const Tensor& qkv,
                                                    const Tensor& o, const Tensor& lse) {
  check(lse, "lse").on_gpu().dtype({ScalarType::Float}).rank(3).contiguous();
  const block::Sizes n = block::check_packed(qkv, lse.size(1));
  check(lse, "lse").size(0, n.B).size(2, n.S).same_device(qkv, "qkv");
  for (const auto& [t, name] : {std::pair{&go, "go"}, std::pair{&o, "o"}}) {
    check(*t, name).on_gpu().dtype({qkv.scalar_type()}).rank(3).contiguous();
    check(*t, name).size(0, n.B).size(1, n.S).size(2, n.C).same_device(qkv, "qkv");
    STD_TORCH_CHECK(is_aligned(*t, 16), name, ": expected an address that is a multiple of 16");
  }
  STD_TORCH_CHECK(n.rows() > 0, "qkv: expected at least one row, got shape ", shape_of(qkv));
  const DeviceGuard guard(qkv);
  return block::attend_backward(go, qkv, o, lse, n);
}

RUNG(day90, attention_backward_alone,
     "(Tensor go, Tensor qkv, Tensor o, Tensor lse) -> (Tensor, Tensor)");

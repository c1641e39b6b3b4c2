// ldmatrix, stmatrix, movmatrix and mma: a warp's lanes bring fragments, the last one to arrive
// computes for all.
#include "tensor_core.h"

namespace cudacpu {

namespace {

// ------------------------------------------------------------------ ldmatrix

template <unsigned Matrices, bool Transposed>
void load_matrix(Thread* lanes, uint32_t arrived) {
  MatrixLoad* exchanges[kWarpSize];
  if (!take_exchanges(lanes, arrived, exchanges)) return;
  for (unsigned matrix = 0; matrix < Matrices; ++matrix) {
    uint16_t at[8][8];
    for (unsigned row = 0; row < 8; ++row) memcpy(at[row], exchanges[8 * matrix + row]->row, 16);
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      unsigned one = lane / 4, two = 2 * (lane % 4);
      uint32_t low = Transposed ? at[two][one] : at[one][two];
      uint32_t high = Transposed ? at[two + 1][one] : at[one][two + 1];
      exchanges[lane]->registers[matrix] = high << 16 | low;
    }
  }
}

// ------------------------------------------------------------------ stmatrix, movmatrix

template <unsigned Matrices, bool Transposed>
void store_matrix(Thread* lanes, uint32_t arrived) {
  MatrixStore* exchanges[kWarpSize];
  if (!take_exchanges(lanes, arrived, exchanges)) return;
  for (unsigned matrix = 0; matrix < Matrices; ++matrix) {
    uint16_t at[8][8];
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      unsigned one = lane / 4, two = 2 * (lane % 4);
      uint32_t word = exchanges[lane]->registers[matrix];
      (Transposed ? at[two][one] : at[one][two]) = static_cast<uint16_t>(word);
      (Transposed ? at[two + 1][one] : at[one][two + 1]) = static_cast<uint16_t>(word >> 16);
    }
    for (unsigned row = 0; row < 8; ++row) memcpy(exchanges[8 * matrix + row]->row, at[row], 16);
  }
}

void move_matrix(Thread* lanes, uint32_t arrived) {
  MatrixMove* exchanges[kWarpSize];
  if (!take_exchanges(lanes, arrived, exchanges)) return;
  uint16_t at[8][8];
  for (unsigned lane = 0; lane < kWarpSize; ++lane)
    memcpy(&at[lane / 4][2 * (lane % 4)], &exchanges[lane]->word, 4);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    unsigned column = lane / 4, row = 2 * (lane % 4);
    exchanges[lane]->word = uint32_t{at[row + 1][column]} << 16 | at[row][column];
  }
}

// ------------------------------------------------------------------ mma

// The layout of a lane's four sums: as they are, or in two registers as fp16.
struct PlainSums {
  template <class Sum>
  static void load(const void* registers, Sum (&sums)[4]) {
    memcpy(sums, registers, sizeof sums);
  }
  template <class Sum>
  static void store(void* registers, const Sum (&sums)[4]) {
    memcpy(registers, sums, sizeof sums);
  }
};
struct HalfSums {
  static void load(const void* registers, float (&sums)[4]) {
    auto words = static_cast<const uint32_t*>(registers);
    for (unsigned i = 0; i < 4; ++i) sums[i] = Half::value(words[i / 2], i % 2);
  }
  static void store(void* registers, const float (&sums)[4]) {
    __half halves[4];
    for (unsigned i = 0; i < 4; ++i) halves[i] = __float2half_rn(sums[i]);
    memcpy(registers, halves, sizeof halves);
  }
};

// Eight sums: one row of d. (g++ takes no vector of a dependent type in an alias.)
template <class Sum>
struct RowOf {
  typedef Sum Type __attribute__((vector_size(8 * sizeof(Sum))));
};
template <class Sum>
using Row = typename RowOf<Sum>::Type;

// The steps of a product are functions of their own, which most products share: with all of them
// inlined in each product, g++ takes a second longer.
#define CUDACPU_STEP __attribute__((noinline)) void

// A lane's register holds neighbours along k; its second register for the same row or column
// follows 4·kPerRegister later.
template <class A>
CUDACPU_STEP read_a(MatrixProduct* const* lanes, typename A::Sum (*a)[8 * A::kPerRegister]) {
  constexpr unsigned kPer = A::kPerRegister;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const MatrixProduct& mine = *lanes[lane];
    unsigned group = lane / 4, first = lane % 4 * kPer;
    for (unsigned i = 0; i < kPer; ++i) {
      a[group][first + i] = A::value(mine.a[0], i);
      a[group + 8][first + i] = A::value(mine.a[1], i);
      a[group][first + 4 * kPer + i] = A::value(mine.a[2], i);
      a[group + 8][first + 4 * kPer + i] = A::value(mine.a[3], i);
    }
  }
}

template <class B>
CUDACPU_STEP read_b(MatrixProduct* const* lanes, Row<typename B::Sum>* b) {
  constexpr unsigned kPer = B::kPerRegister;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const MatrixProduct& mine = *lanes[lane];
    unsigned group = lane / 4, first = lane % 4 * kPer;
    for (unsigned i = 0; i < kPer; ++i) {
      b[first + i][group] = B::value(mine.b[0], i);
      b[first + 4 * kPer + i][group] = B::value(mine.b[1], i);
    }
  }
}

template <class Sums, class Sum>
CUDACPU_STEP read_sums(MatrixProduct* const* lanes, Row<Sum>* sums) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    unsigned group = lane / 4, column = lane % 4 * 2;
    Sum c[4];
    Sums::load(lanes[lane]->c, c);
    for (unsigned i = 0; i < 4; ++i) sums[group + i / 2 * 8][column + i % 2] = c[i];
  }
}

template <class Sums, class Sum>
CUDACPU_STEP write_sums(MatrixProduct* const* lanes, const Row<Sum>* sums) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    unsigned group = lane / 4, column = lane % 4 * 2;
    Sum d[4];
    for (unsigned i = 0; i < 4; ++i) d[i] = sums[group + i / 2 * 8][column + i % 2];
    Sums::store(lanes[lane]->d, d);
  }
}

template <class Sum, unsigned kDepth>
CUDACPU_STEP multiply_rows(const Sum (*a)[kDepth], const Row<Sum>* b, Row<Sum>* sums) {
  for (unsigned row = 0; row < 16; ++row) {
    Row<Sum> sum = sums[row];
    for (unsigned k = 0; k < kDepth; ++k) sum += a[row][k] * b[k];
    sums[row] = sum;
  }
}
#undef CUDACPU_STEP

template <class A, class B = A, class Sums = PlainSums>
void multiply(Thread* lanes, uint32_t arrived) {
  using Sum = typename A::Sum;
  constexpr unsigned kDepth = 8 * A::kPerRegister;
  MatrixProduct* exchanges[kWarpSize];
  if (!take_exchanges(lanes, arrived, exchanges)) return;
  Sum a[16][kDepth];
  Row<Sum> b[kDepth], sums[16];
  read_a<A>(exchanges, a);
  read_b<B>(exchanges, b);
  read_sums<Sums, Sum>(exchanges, sums);
  multiply_rows<Sum, kDepth>(a, b, sums);
  write_sums<Sums, Sum>(exchanges, sums);
}

}  // namespace

const Operation kLoadMatrix1{"ldmatrix.x1", load_matrix<1, false>};
const Operation kLoadMatrix2{"ldmatrix.x2", load_matrix<2, false>};
const Operation kLoadMatrix4{"ldmatrix.x4", load_matrix<4, false>};
const Operation kLoadMatrix1Transposed{"ldmatrix.x1.trans", load_matrix<1, true>};
const Operation kLoadMatrix2Transposed{"ldmatrix.x2.trans", load_matrix<2, true>};
const Operation kLoadMatrix4Transposed{"ldmatrix.x4.trans", load_matrix<4, true>};
const Operation kStoreMatrix1{"stmatrix.x1", store_matrix<1, false>};
const Operation kStoreMatrix2{"stmatrix.x2", store_matrix<2, false>};
const Operation kStoreMatrix4{"stmatrix.x4", store_matrix<4, false>};
const Operation kStoreMatrix1Transposed{"stmatrix.x1.trans", store_matrix<1, true>};
const Operation kStoreMatrix2Transposed{"stmatrix.x2.trans", store_matrix<2, true>};
const Operation kStoreMatrix4Transposed{"stmatrix.x4.trans", store_matrix<4, true>};
const Operation kMoveMatrix{"movmatrix.trans", move_matrix};
const Operation kMmaHalf{"mma.m16n8k16.f16", multiply<Half>};
const Operation kMmaHalfSums{"mma.m16n8k16.f16 with sums of f16", multiply<Half, Half, HalfSums>};
const Operation kMmaBfloat16{"mma.m16n8k16.bf16", multiply<Bfloat16>};
const Operation kMmaTf32{"mma.m16n8k8.tf32", multiply<Tf32>};
const Operation kMmaInt8{"mma.m16n8k32.s8", multiply<Int8>};
const Operation kMmaUint8{"mma.m16n8k32.u8", multiply<Uint8>};

const Operation& fp8_product(bool a_is_e4m3, bool b_is_e4m3, bool half_sums) {
#define CUDACPU_FP8(a, b, A, B)                                             \
  {"mma.m16n8k32." #a "." #b, multiply<A, B>}, {                            \
    "mma.m16n8k32." #a "." #b " with sums of f16", multiply<A, B, HalfSums> \
  }
  static const Operation kProducts[] = {
      CUDACPU_FP8(e5m2, e5m2, E5m2, E5m2), CUDACPU_FP8(e5m2, e4m3, E5m2, E4m3),
      CUDACPU_FP8(e4m3, e5m2, E4m3, E5m2), CUDACPU_FP8(e4m3, e4m3, E4m3, E4m3)};
#undef CUDACPU_FP8
  return kProducts[4 * a_is_e4m3 + 2 * b_is_e4m3 + half_sums];
}

void trap_incomplete_warp(const char* name, uint32_t arrived, Site site) {
  trap(site,
       "%s: all 32 lanes of a warp must call it, but only lanes 0x%08x did: the others have "
       "returned, or the block's last warp is not full",
       name, arrived);
}

void trap_matrix_row(const char* name, const void* row, Site site) {
  if (!__isShared(row))
    trap(site, "%s: the row at %p that lane %u passes is not in the block's shared memory", name,
         row, current->lane);
  trap(site, "%s: misaligned address: the row at %p that lane %u passes must be a multiple of 16",
       name, row, current->lane);
}

}  // namespace cudacpu

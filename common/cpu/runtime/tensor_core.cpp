// ldmatrix and mma: a warp's lanes bring fragments, the last one to arrive computes for all.
#include "runtime.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudacpu/ptx.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace cudacpu {

namespace {

// What lane `lane` brought. False if a lane is missing, which every other then learns.
template <class Exchange>
bool take_exchanges(Thread* lanes, uint32_t arrived, Exchange* (&exchanges)[kWarpSize]) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (!(arrived >> lane & 1)) continue;
    exchanges[lane] = static_cast<Exchange*>(static_cast<WholeWarp*>(lanes[lane].exchange));
    exchanges[lane]->arrived = arrived;
  }
  return arrived == ~0u;
}

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

// ------------------------------------------------------------------ mma

// A type of the elements of a and b: PerRegister of them in 32 bits. A lane's register holds
// neighbours along k; its second register for the same row or column follows 4·PerRegister later.
struct Half {
  static constexpr unsigned kPerRegister = 2;
  using Sum = float;
  static float value(uint32_t word, unsigned i) {
    auto raw = static_cast<uint16_t>(word >> 16 * i);
#if defined(__F16C__)
    return _cvtsh_ss(raw);
#else
    return __half2float(__half(__half_raw{raw}));
#endif
  }
};
struct Bfloat16 {
  static constexpr unsigned kPerRegister = 2;
  using Sum = float;
  static float value(uint32_t word, unsigned i) {
    return bits<float>(i ? word & 0xffff0000u : word << 16);
  }
};
struct Tf32 {
  static constexpr unsigned kPerRegister = 1;
  using Sum = float;
  static float value(uint32_t word, unsigned) { return bits<float>(word & 0xffffe000u); }
};
// Unsigned sums, because they may wrap around.
struct Int8 {
  static constexpr unsigned kPerRegister = 4;
  using Sum = uint32_t;
  static uint32_t value(uint32_t word, unsigned i) {
    return static_cast<uint32_t>(static_cast<int8_t>(word >> 8 * i));
  }
};
struct Uint8 {
  static constexpr unsigned kPerRegister = 4;
  using Sum = uint32_t;
  static uint32_t value(uint32_t word, unsigned i) { return word >> 8 * i & 0xff; }
};

template <class Element>
void multiply(Thread* lanes, uint32_t arrived) {
  using Sum = typename Element::Sum;
  typedef Sum Row __attribute__((vector_size(8 * sizeof(Sum))));
  constexpr unsigned kPer = Element::kPerRegister, kDepth = 8 * kPer;
  MatrixProduct* exchanges[kWarpSize];
  if (!take_exchanges(lanes, arrived, exchanges)) return;
  Sum a[16][kDepth];
  Row b[kDepth], sums[16];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const MatrixProduct& mine = *exchanges[lane];
    unsigned group = lane / 4, first = lane % 4 * kPer, column = lane % 4 * 2;
    for (unsigned i = 0; i < kPer; ++i) {
      a[group][first + i] = Element::value(mine.a[0], i);
      a[group + 8][first + i] = Element::value(mine.a[1], i);
      a[group][first + 4 * kPer + i] = Element::value(mine.a[2], i);
      a[group + 8][first + 4 * kPer + i] = Element::value(mine.a[3], i);
      b[first + i][group] = Element::value(mine.b[0], i);
      b[first + 4 * kPer + i][group] = Element::value(mine.b[1], i);
    }
    Sum c[4];
    memcpy(c, mine.c, sizeof c);
    for (unsigned i = 0; i < 4; ++i) sums[group + i / 2 * 8][column + i % 2] = c[i];
  }
  for (unsigned row = 0; row < 16; ++row) {
    Row sum = sums[row];
    for (unsigned k = 0; k < kDepth; ++k) sum += a[row][k] * b[k];
    sums[row] = sum;
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    unsigned group = lane / 4, column = lane % 4 * 2;
    Sum d[4];
    for (unsigned i = 0; i < 4; ++i) d[i] = sums[group + i / 2 * 8][column + i % 2];
    memcpy(exchanges[lane]->d, d, sizeof d);
  }
}

}  // namespace

const Operation kLoadMatrix1{"ldmatrix.x1", load_matrix<1, false>};
const Operation kLoadMatrix2{"ldmatrix.x2", load_matrix<2, false>};
const Operation kLoadMatrix4{"ldmatrix.x4", load_matrix<4, false>};
const Operation kLoadMatrix1Transposed{"ldmatrix.x1.trans", load_matrix<1, true>};
const Operation kLoadMatrix2Transposed{"ldmatrix.x2.trans", load_matrix<2, true>};
const Operation kLoadMatrix4Transposed{"ldmatrix.x4.trans", load_matrix<4, true>};
const Operation kMmaHalf{"mma.m16n8k16.f16", multiply<Half>};
const Operation kMmaBfloat16{"mma.m16n8k16.bf16", multiply<Bfloat16>};
const Operation kMmaTf32{"mma.m16n8k8.tf32", multiply<Tf32>};
const Operation kMmaInt8{"mma.m16n8k32.s8", multiply<Int8>};
const Operation kMmaUint8{"mma.m16n8k32.u8", multiply<Uint8>};

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

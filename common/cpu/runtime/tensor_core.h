// Common parts of the operations of tensor cores: a warp's lanes, and elements as numbers.
#pragma once

#include "runtime.h"

#include <cuda_fp16.h>
#include <cudacpu/ptx.h>

#include <array>

namespace cudacpu {

// Collect the values of each lane. False if a lane is missing, which every other then learns.
template <class Exchange>
bool take_exchanges(Thread* lanes, uint32_t arrived, Exchange* (&exchanges)[kWarpSize]) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (!(arrived >> lane & 1)) continue;
    exchanges[lane] = static_cast<Exchange*>(static_cast<WholeWarp*>(lanes[lane].exchange));
    exchanges[lane]->arrived = arrived;
  }
  return arrived == ~0u;
}

// A type of the elements of a and b: kPerRegister of them in 32 bits, `value` is that of the i-th.
struct Half {
  static constexpr unsigned kPerRegister = 2;
  using Sum = float;
  static float value(uint32_t word, unsigned i) {
    auto raw = static_cast<uint16_t>(word >> 16 * i);
#if defined(__F16C__)
    return floats_of_halves(raw)[0];
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
// fp8 by a table of its 256 values. kMantissa: bits of mantissa.
template <int kMantissa, int kBias, bool kHasInfinity>
struct Fp8 {
  static constexpr unsigned kPerRegister = 4;
  static constexpr int kLeastExponent = 1 - kBias;  // of normal numbers
  using Sum = float;
  static float value(uint32_t word, unsigned i) { return kValues[word >> 8 * i & 0xff]; }

 private:
  static constexpr float decode(unsigned code) {
    constexpr unsigned kOnes = 0x7f >> kMantissa;  // the largest exponent
    unsigned exponent = (code & 0x7f) >> kMantissa, mantissa = code & ((1u << kMantissa) - 1);
    float magnitude = static_cast<float>(mantissa | (exponent ? 1u << kMantissa : 0));
    for (int e = static_cast<int>(exponent ? exponent : 1) - kBias - kMantissa; e < 0; ++e)
      magnitude /= 2;
    for (int e = static_cast<int>(exponent) - kBias - kMantissa; e > 0; --e) magnitude *= 2;
    bool special = kHasInfinity ? exponent == kOnes : (code & 0x7f) == 0x7f;
    if (special && kHasInfinity && mantissa == 0) magnitude = __builtin_inff();
    if (special && magnitude != __builtin_inff()) magnitude = __builtin_nanf("");
    return code & 0x80 ? -magnitude : magnitude;
  }
  static constexpr std::array<float, 256> decode_all() {
    std::array<float, 256> values{};
    for (unsigned code = 0; code < 256; ++code) values[code] = decode(code);
    return values;
  }
  static const std::array<float, 256> kValues;
};
template <int kMantissa, int kBias, bool kHasInfinity>
constexpr std::array<float, 256> Fp8<kMantissa, kBias, kHasInfinity>::kValues = decode_all();
using E4m3 = Fp8<3, 7, false>;
using E5m2 = Fp8<2, 15, true>;

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

}  // namespace cudacpu

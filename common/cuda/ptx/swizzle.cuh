// TMA's and wgmma's permutation of shared memory, so that rows and columns of a tile of
// 16-byte pieces are read without bank conflicts.
//
// A tile's rows are 32, 64 or 128 bytes long. Within a group of 8 x 128 bytes, the number of a
// 16-byte piece is XORed with that of its 128-byte line, as far as the row's length allows:
//
//   Swizzle::k32    one bit       (address bit 4 ^= bit 7)
//   Swizzle::k64    two bits      (bits 4-5 ^= bits 7-8)
//   Swizzle::k128   three bits    (bits 4-6 ^= bits 7-9)
//
// The bits are those of the shared-memory address, so a tile must begin at a multiple of 256, 512
// or 1024 bytes for its offsets to be permuted alike. (PTX ISA, "Swizzling modes".)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ptx {

enum class Swizzle : uint8_t { kNone, k32, k64, k128 };

// Return the place of the byte at `offset` of an unpermuted tile; its own inverse.
__host__ __device__ constexpr uint32_t swizzled(Swizzle swizzle, uint32_t offset) {
  uint32_t bits = (1u << static_cast<unsigned>(swizzle)) - 1;
  return offset ^ ((offset >> 7 & bits) << 4);
}

}  // namespace ptx

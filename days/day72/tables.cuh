// A byte looks up both of its levels: a table per lane. Shared by v3 and v4 of day 72.
#pragma once

#include "common/cuda/capability.cuh"     // taught in day 24
#include "common/cuda/shared_memory.cuh"  // taught in day 15
#include "days/day71/nf4_format.cuh"      // LEVELS: taught in day 71
#include "days/day72/product.cuh"

constexpr int TABLE = 256 * 256;  // bytes
constexpr int SHARED = TABLE + LEVELS_8 * static_cast<int>(sizeof(float));

// The lane's copy of the entry whose index is byte `at` of `word`. T has at most 8 bytes.
template <typename T>
__device__ __forceinline__ T pair_of(const char* tables, uint32_t word, int at, uint32_t lane) {
  const uint32_t entry = __byte_perm(word, sizeof(T) * lane, 0x5504 | at << 4);
  return *reinterpret_cast<const T*>(tables + entry);
}

// Fills the tables of a block: 32 copies of each entry make(first, second), by stores of 16 bytes,
// and after them the 256 levels of absmaxes.
template <typename T, typename Make>
__device__ void fill_tables(char* tables, const float* levels_8, Make&& make) {
  constexpr int PACKS = 32 / Pack<T>::N;
  for (int i = threadIdx.x; i < 256 * PACKS; i += blockDim.x) {
    const int byte = i / PACKS;
    Pack<T> pack;
    for (T& copy : pack.at) copy = make(LEVELS[byte >> 4], LEVELS[byte & 15]);
    reinterpret_cast<Pack<T>*>(tables + 256 * byte)[i % PACKS] = pack;
  }
  if (threadIdx.x < LEVELS_8) {
    reinterpret_cast<float*>(tables + TABLE)[threadIdx.x] = levels_8[threadIdx.x];
  }
  __syncthreads();  // all wait for the tables
}

// Tables of 64 KB: two blocks fit on an H200's multiprocessor, and 16384 rows are one wave of them.
template <typename Kernel>
void launch_with_tables(Kernel kernel, const Product& p, int rows, int threads, int bytes,
                        cudaStream_t stream) {
  require_shared_memory(bytes, "a table per lane");
  allow_shared(kernel, bytes);
  kernel<<<grid_size(ceil_div<int64_t>(p.N, rows), "codes"), threads, bytes, stream>>>(p);
}

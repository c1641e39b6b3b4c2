// The cards that this backend can play, and the limits of each. This is the one table of them:
// common/cpu/models.py takes the names from it.
//
// Limits are those of NVIDIA's programming guide, "Technical Specifications per Compute
// Capability"; multiprocessors and L2 those of the card named. On every card: 48 KB of shared
// memory per block without opting in, 1024 threads per block, 65536 registers per multiprocessor, a
// warp of 32.
#pragma once

#include <cstddef>

namespace cudacpu {

struct Model {
  const char* name;        // as given to --model and CUDACPU_MODEL: the compute capability
  const char* card;        // an example of such a card
  int capability;          // 86 for 8.6
  int multiprocessors;     // of that card
  int threads;             // per multiprocessor
  int blocks;              // per multiprocessor
  size_t shared_opt_in;    // bytes per block, with cudaFuncSetAttribute
  size_t shared;           // bytes per multiprocessor
  size_t shared_reserved;  // bytes of each block that the system takes
  unsigned max_cluster;    // blocks in a cluster, where any size is allowed; 1: no clusters
  size_t l2;               // bytes, of that card
  int copy_engines;        // of that card; of the last two, as on the cards before them
};

constexpr size_t kKiB = 1024, kMiB = 1024 * 1024;

// The a-variants ("9.0a") are played by the same models: what only they have is there. On 12.0 the
// guide promises clusters of 8 blocks; whether more are possible we do not know.
// clang-format off
constexpr Model kModels[] = {
    // name   card       sm   SMs  threads blocks  opt-in      per SM      reserved clusters  L2       copies
    {"7.5",  "T4",       75,   40, 1024,   16,     64 * kKiB,  64 * kKiB,  0,       1,        4 * kMiB, 3},
    {"8.0",  "A100",     80,  108, 2048,   32,    163 * kKiB, 164 * kKiB,  kKiB,    1,       40 * kMiB, 3},
    {"8.6",  "RTX 3090", 86,   82, 1536,   16,     99 * kKiB, 100 * kKiB,  kKiB,    1,        6 * kMiB, 2},
    {"8.9",  "RTX 4090", 89,  128, 1536,   24,     99 * kKiB, 100 * kKiB,  kKiB,    1,       72 * kMiB, 2},
    {"9.0",  "H200",     90,  132, 2048,   32,    227 * kKiB, 228 * kKiB,  kKiB,    16,      60 * kMiB, 3},
    {"10.0", "B200",    100,  148, 2048,   32,    227 * kKiB, 228 * kKiB,  kKiB,    16,     126 * kMiB, 3},
    {"12.0", "RTX 5090", 120, 170, 1536,   24,     99 * kKiB, 100 * kKiB,  kKiB,    8,       96 * kMiB, 2},
};
// clang-format on

constexpr const char* kDefaultModel = "9.0";

}  // namespace cudacpu

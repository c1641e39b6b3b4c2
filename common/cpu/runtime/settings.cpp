// What the process that runs kernels can choose; backend.py calls these.
#include "runtime.h"

#include <thread>

namespace cudacpu {

Settings& settings() {
  static Settings& instance = *[] {
    auto* fresh = new Settings;
    fresh->threads = std::max(1u, std::thread::hardware_concurrency());
    return fresh;
  }();
  return instance;
}

}  // namespace cudacpu

extern "C" {

void cudacpu_set_schedule(int order, uint64_t seed) {
  cudacpu::settings().order = static_cast<cudacpu::Order>(order);
  cudacpu::settings().seed = seed;
}

void cudacpu_set_threads(unsigned threads) {
  cudacpu::settings().threads = std::max(1u, threads);
}

void cudacpu_set_time_limit(double seconds) {
  cudacpu::settings().time_limit = seconds;
}

}  // extern "C"
